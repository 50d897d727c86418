//! Random reads of a file on a server, each chunk proved, without a copy on disk.
//!
//! An open file is a pull of one entry that never finishes: each read wants the chunks it touches,
//! gets a grant for them, fetches them into memory, compares their digests with the server's and
//! copies what was asked for. Small files come whole, once.

mod expected;
mod fetching;
mod held;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};

use self::expected::Expected;
pub use self::held::{HeldRegion, RegisteredBuffer};
use super::connect::Session;
use crate::engine::LaneId;
use crate::error::{Error, ErrorKind};
use crate::ids::TransferId;
use crate::lane::LaneEvent;
use crate::manifest::{EntryKind, Item, Note, Version};
use crate::options::Preserve;
use crate::session::exposing::RENEWAL_PAUSE;
use crate::session::peer::{Inbound, Seat};
use crate::units::{ByteRange, ChunkIndex, ChunkRange, ChunkSize};
use crate::wire::message::{
    Carried, Direction, Grant, GrantPart, HashKind, ManifestPage, Open, RemotePath, Wanted,
};
use crate::wire::{Fault, FaultCode, Message};

/// The unit of proof of random reads: small, as a read of one byte costs one of these.
const CHUNK: ChunkSize = ChunkSize::MIN;

/// Bytes that one request to the server asks for at most; longer reads are several.
const STEP_BYTES: u64 = 8 << 20;

/// Region bytes that the server may have granted.
const CREDIT_BYTES: u64 = 64 << 20;

/// Chunks under way at once on all data connections.
const IN_FLIGHT_MAX: usize = 32;

/// A file on a server, open for reading.
///
/// Reads of one handle are served one after another; open the file several times to read at the
/// same time.
#[derive(Debug)]
pub struct RemoteFile {
    len: u64,
    requests: mpsc::Sender<Request>,
    path: RemotePath,
    version: Arc<OnceLock<Version>>,
    carried: Arc<Mutex<Carried>>,
    /// The file's task keeps it.
    session: Weak<Session>,
}

#[derive(Debug)]
enum Request {
    /// Bytes.
    Read(ByteRange, oneshot::Sender<Result<Vec<u8>, Error>>),
    /// Whether all that was read is of one version. The last request.
    Check(oneshot::Sender<Result<(), Error>>),
}

impl Request {
    /// Answers that it can't be done.
    fn refuse(self, error: Error) {
        // Whoever asked may have gone.
        match self {
            Self::Read(_, answer) => drop(answer.send(Err(error))),
            Self::Check(answer) => drop(answer.send(Err(error))),
        }
    }
}

impl RemoteFile {
    /// Whether its session is over, so that nothing can be read any more and [`Client::reopen`] may go on.
    ///
    /// [`Client::reopen`]: crate::Client::reopen
    pub fn is_cut_off(&self) -> bool {
        let session = self.session.upgrade();
        session.is_none_or(|session| session.peer().over().is_some())
    }

    pub(super) fn path(&self) -> &RemotePath {
        &self.path
    }

    /// Its length in bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it was empty when it was opened.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes that came for its reads so far, by the way they came; those that were read again for
    /// repair count again.
    pub fn carried(&self) -> Carried {
        *self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills `buffer` from byte `offset` of the file on, and tells how many bytes there were: less
    /// than asked for only at the end of the file. Every byte was proved by the digest of its chunk.
    ///
    /// # Errors
    /// [`ErrorKind::SourceChanged`] if the file is not what it was when it was opened,
    /// [`ErrorKind::Integrity`] if a chunk did not match its digest in several tries,
    /// [`ErrorKind::Unreachable`] if the session has ended or the server breaks the protocol,
    /// [`ErrorKind::TimedOut`] if nothing of it came for [`ClientOptions::stall_timeout`]. After
    /// any but the second, further reads fail in the same way: open the file again, after a lost session
    /// by [`Client::reopen`](crate::Client::reopen).
    ///
    /// [`ClientOptions::stall_timeout`]: crate::ClientOptions::stall_timeout
    pub async fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Error> {
        let end = offset.saturating_add(buffer.len() as u64).min(self.len);
        let mut at = offset;
        let mut filled = 0;
        while at < end {
            let range = ByteRange {
                start: at,
                end: end.min(at + STEP_BYTES),
            };
            let (answer, answered) = oneshot::channel();
            self.requests
                .send(Request::Read(range, answer))
                .await
                .map_err(|_| closed())?;
            let bytes = answered.await.map_err(|_| closed())??;
            buffer[filled..filled + bytes.len()].copy_from_slice(&bytes);
            filled += bytes.len();
            at = range.end;
        }
        Ok(filled)
    }

    /// Has the server keep a range of the file ready, of at most 64 MiB, for small reads that cost no
    /// more than the network: see [`HeldRegion`]. They are not verified.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the range is empty, too long or not in the file; else as
    /// [`Self::read_at`], and [`ErrorKind::TransportUnavailable`] if only RDMA was to be used and has no
    /// queue pair for it.
    pub async fn hold(&self, range: Range<u64>) -> Result<HeldRegion, Error> {
        let session = self.session.upgrade().ok_or_else(closed)?;
        held::hold(session, &self.path, self.len, range).await
    }

    /// Ends the reading, after which nothing can be read any more, and tells whether everything that was read is of one version of the file:
    /// each read is proved by itself, and the file may have been changed between two of them.
    ///
    /// # Errors
    /// [`ErrorKind::SourceChanged`] if it was changed since it was opened; else as
    /// [`Self::read_at`].
    pub async fn finish(&self) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.requests
            .send(Request::Check(answer))
            .await
            .map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Unreachable, "the file is not open any more")
}

/// Opens a file; `before`: what it was before its session was lost, which it has to be still.
pub(super) async fn open(
    session: Arc<Session>,
    path: &RemotePath,
    id: TransferId,
    before: Option<&RemoteFile>,
) -> Result<RemoteFile, Error> {
    let weak = Arc::downgrade(&session);
    let mut reading = Reading::begin(session, path, id, HashKind::Blake3).await?;
    if let Some(before) = before {
        let version = Arc::clone(&before.version);
        reading.file.go_on(before.len, version)?;
    }
    let len = reading.file.len();
    let version = reading.file.version();
    let carried = Arc::clone(&reading.carried);
    let (requests, taken) = mpsc::channel(1);
    tokio::spawn(reading.serve(taken));
    Ok(RemoteFile {
        len,
        requests,
        path: path.clone(),
        version,
        carried,
        session: weak,
    })
}

/// The task behind an open file.
struct Reading {
    seat: Seat,
    /// With their rails.
    lanes: Vec<(LaneId, u16)>,
    /// The file, and what the server may say of it.
    file: Expected,
    /// A small file's content, once it is here.
    whole: Option<Vec<u8>>,
    /// Digests of chunks that are wanted.
    digests: HashMap<u64, [u8; 32]>,
    next_token: u64,
    /// Fetches under way: their rails and bytes.
    posted: HashMap<u64, (u16, u64)>,
    carried: Arc<Mutex<Carried>>,
    /// Fetches that were over while a digest was waited for; no more than are in flight.
    landed: VecDeque<LaneEvent>,
    /// Grants that were checked and are still to be read; each is of another wanted chunk.
    grants: VecDeque<(Grant, GrantPart)>,
    stall_timeout: Duration,
    /// Something was read of the file itself, not of a pack.
    served: bool,
    /// When a read began, or something that it needs came for the first time.
    moved: Instant,
    /// Keeps the session for as long as the file is open.
    _session: Arc<Session>,
}

impl Drop for Reading {
    fn drop(&mut self) {
        let fault = Fault::new(FaultCode::Cancelled, "the file was closed");
        self.seat.say(Message::Failed(fault));
    }
}

impl Reading {
    /// Opens the file, at the server, under this id; the server hashes what it grants for `hash`.
    async fn begin(
        session: Arc<Session>,
        path: &RemotePath,
        id: TransferId,
        hash: HashKind,
    ) -> Result<Self, Error> {
        session.connect_data().await?;
        let seat = session.seat(id)?;
        let open = Open {
            direction: Direction::Pull(vec![path.clone()]),
            hash,
            chunk: CHUNK,
            preserve: Preserve::default(),
            recursive: false,
            dry_run: false,
            filters: Vec::new(),
        };
        seat.say(Message::Open(open));
        seat.say(Message::Credit {
            pages: 1,
            region_bytes: CREDIT_BYTES,
        });
        let mut reading = Self {
            seat,
            lanes: Vec::new(),
            file: Expected::default(),
            whole: None,
            digests: HashMap::new(),
            next_token: 0,
            posted: HashMap::new(),
            carried: Arc::default(),
            landed: VecDeque::new(),
            grants: VecDeque::new(),
            stall_timeout: session.stall_timeout(),
            served: false,
            moved: Instant::now(),
            _session: session,
        };
        reading.manifest().await?;
        Ok(reading)
    }

    /// Takes the manifest, which has the one file.
    async fn manifest(&mut self) -> Result<(), Error> {
        loop {
            match self.inbound().await? {
                Inbound::Message(Message::Opened) => {}
                Inbound::Message(Message::Manifest(page)) => {
                    if let Some(file) = the_file(page)? {
                        self.file = file;
                        return Ok(());
                    }
                }
                inbound => drop(self.hear(inbound)?),
            }
        }
    }

    /// Serves reads until the handle is dropped.
    async fn serve(mut self, mut requests: mpsc::Receiver<Request>) {
        let over = self.serve_while_usable(&mut requests).await;
        // The session and the server's end of the file are let go, whoever keeps the handle.
        drop(self);
        let Some(over) = over else { return };
        while let Some(request) = requests.recv().await {
            request.refuse(again(&over));
        }
    }

    /// Serves reads until the handle is dropped, or the file can't be read any more: the reason.
    async fn serve_while_usable(
        &mut self,
        requests: &mut mpsc::Receiver<Request>,
    ) -> Option<Error> {
        loop {
            tokio::select! {
                request = requests.recv() => {
                    let (range, answer) = match request? {
                        Request::Read(range, answer) => (range, answer),
                        Request::Check(answer) => {
                            // Whoever asked may have gone.
                            let _ = answer.send(self.check().await);
                            return None;
                        }
                    };
                    let result = self.read(range).await;
                    let over = match &result {
                        // After a chunk that could not be repaired, others may be read.
                        Err(error) if error.kind() == ErrorKind::Integrity => {
                            (!self.file.is_granted()).then(|| again(error))
                        }
                        Err(error) => Some(again(error)),
                        Ok(_) => None,
                    };
                    // Whoever asked may have gone.
                    let _ = answer.send(result);
                    if over.is_some() {
                        return over;
                    }
                }
                () = sleep(RENEWAL_PAUSE), if !self.grants.is_empty() => self.renew(),
                inbound = self.seat.inbox.recv() => {
                    let heard = inbound.ok_or_else(closed).and_then(|inbound| self.hear(inbound));
                    if let Err(error) = heard {
                        return Some(error);
                    }
                }
            }
        }
    }

    async fn read(&mut self, range: ByteRange) -> Result<Vec<u8>, Error> {
        if let Some(whole) = &self.whole {
            return Ok(cut(whole, 0, range));
        }
        let first = CHUNK.index_of(range.start).0;
        let end = CHUNK.index_of(range.end - 1).0 + 1;
        let start = CHUNK.range(ChunkIndex(first), self.file.len()).start;
        let stop = CHUNK.range(ChunkIndex(end - 1), self.file.len()).end;
        let span = usize::try_from(stop - start).unwrap_or(0);
        let mut bytes = vec![0; span];
        self.ask(ChunkRange { start: first, end });
        loop {
            let (grant, part) = self.grant().await?;
            if part.packed {
                let whole = self.fetch_whole(&grant, &part).await;
                self.release(&grant);
                let whole = whole?;
                let answer = cut(&whole, 0, range);
                self.whole = Some(whole);
                return Ok(answer);
            }
            self.served = true;
            let fetched = self.fetch_window(&grant, &part, start, &mut bytes).await;
            self.release(&grant);
            fetched?;
            if part.last {
                return Ok(cut(&bytes, start, range));
            }
        }
    }

    /// Asks for chunks.
    fn ask(&mut self, wanted: ChunkRange) {
        self.moved = Instant::now();
        // What an earlier read that failed has left.
        self.digests.clear();
        for (grant, _) in std::mem::take(&mut self.grants) {
            self.release(&grant);
        }
        self.file.want(wanted);
        let wanted = Wanted::Chunks(vec![wanted]);
        self.seat
            .say(Message::Want(vec![(self.file.entry(), wanted)]));
    }

    /// Asks the server whether the file is still what it opened. A file that came in a pack was
    /// looked at when it was laid there.
    async fn check(&mut self) -> Result<(), Error> {
        if !self.served {
            return Ok(());
        }
        self.moved = Instant::now();
        self.seat.say(Message::Close(vec![self.file.entry()]));
        loop {
            match self.inbound().await? {
                Inbound::Message(Message::Closed(answers)) => {
                    let same = match answers[..] {
                        [(entry, same)] => self.file.check_entry(entry).map(|()| same)?,
                        _ => return Err(out_of_turn()),
                    };
                    if same {
                        return Ok(());
                    }
                    let message = "the source changed while it was read; copy it again";
                    return Err(Error::new(ErrorKind::SourceChanged, message));
                }
                inbound => drop(self.hear(inbound)?),
            }
        }
    }

    /// Waits for the next grant.
    async fn grant(&mut self) -> Result<(Grant, GrantPart), Error> {
        loop {
            if let Some(grant) = self.grants.pop_front() {
                return Ok(grant);
            }
            // A fetch that is over now is of a connection that an earlier read lost.
            drop(self.receive().await?);
        }
    }

    fn release(&self, grant: &Grant) {
        if grant.len > 0 {
            self.seat.say(Message::Release(vec![grant.region]));
        }
    }

    async fn receive(&mut self) -> Result<Option<LaneEvent>, Error> {
        let inbound = self.inbound().await?;
        self.hear(inbound)
    }

    /// What reaches the file next, while something is waited for.
    async fn inbound(&mut self) -> Result<Inbound, Error> {
        loop {
            let deadline = self.moved + self.stall_timeout;
            let until = deadline.min(Instant::now() + RENEWAL_PAUSE);
            match timeout_at(until, self.seat.inbox.recv()).await {
                Ok(inbound) => return inbound.ok_or_else(closed),
                Err(_) if Instant::now() >= deadline => return Err(stalled(self.stall_timeout)),
                Err(_) => self.renew(),
            }
        }
    }

    /// Says that what was granted is still wanted: the server takes it back from who is silent.
    fn renew(&self) {
        self.seat.say(Message::Credit {
            pages: 0,
            region_bytes: 0,
        });
    }

    /// Sees to what reaches the file; a fetch that is over comes back.
    fn hear(&mut self, inbound: Inbound) -> Result<Option<LaneEvent>, Error> {
        match inbound {
            Inbound::LaneUp(lane, rail) => self.lanes.push((lane, rail)),
            Inbound::LaneDown(lane) => self.lanes.retain(|(known, _)| *known != lane),
            Inbound::Over(fault) => {
                return Err(Error::new(ErrorKind::Unreachable, fault.text));
            }
            Inbound::Lane(event @ LaneEvent::Landed { .. }) => {
                if matches!(&event, LaneEvent::Landed { result: Ok(_), .. }) {
                    self.moved = Instant::now();
                }
                return Ok(Some(event));
            }
            // Nothing is served here.
            Inbound::Lane(_) => {}
            Inbound::Message(Message::Failed(fault)) => return Err(fault.into()),
            Inbound::Message(Message::EntryFailed { entry, fault }) => {
                self.file.check_entry(entry)?;
                return Err(fault.into());
            }
            Inbound::Message(Message::Digests(digests)) => {
                for digest in digests {
                    let wanted = self.file.digest(&digest)?;
                    if wanted && self.digests.insert(digest.chunk, digest.value).is_none() {
                        self.moved = Instant::now();
                    }
                }
            }
            Inbound::Message(Message::Grant(grant)) => {
                let part = self.file.grant(&grant)?;
                self.moved = Instant::now();
                self.grants.push_back((grant, part));
            }
            Inbound::Message(_) => return Err(out_of_turn()),
        }
        Ok(None)
    }
}

/// The one file of a manifest. `None`: the page has nothing, and another follows.
fn the_file(page: ManifestPage) -> Result<Option<Expected>, Error> {
    for item in page.items {
        match item {
            Item::Entry(entry) => {
                let EntryKind::File { len, .. } = entry.kind else {
                    return Err(not_a_file());
                };
                return Expected::new(entry.id, len).map(Some);
            }
            Item::Note(Note::Skipped { fault, .. }) => return Err(fault.into()),
            Item::Note(_) => {}
        }
    }
    if page.last {
        return Err(not_a_file());
    }
    Ok(None)
}

/// The part of `range` out of bytes that start at `base` of the file.
fn cut(bytes: &[u8], base: u64, range: ByteRange) -> Vec<u8> {
    let from = usize::try_from(range.start - base)
        .unwrap_or(usize::MAX)
        .min(bytes.len());
    let to = usize::try_from(range.end - base)
        .unwrap_or(usize::MAX)
        .min(bytes.len());
    bytes[from..to.max(from)].to_vec()
}

/// The same error once more, for a later read of the same file.
fn again(error: &Error) -> Error {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    let same = Error::new(error.kind(), text);
    match error.hint() {
        Some(hint) => same.with_hint(hint),
        None => same,
    }
}

fn stalled(limit: Duration) -> Error {
    let seconds = limit.as_secs_f64();
    let message = format!("the server sent nothing of the file for {seconds} s");
    Error::new(ErrorKind::TimedOut, message)
        .with_hint("open the file again; a slow disk may need a longer stall timeout")
}

fn not_a_file() -> Error {
    Error::new(ErrorKind::Usage, "only regular files can be opened")
}

fn out_of_turn() -> Error {
    let message = "the server broke the protocol of open files";
    Error::new(ErrorKind::Unreachable, message)
        .with_hint("is it a damaged or foreign build of rdcpd?")
}
