//! Random reads of a file on a server, each chunk proved, without a copy on disk.
//!
//! An open file is a pull of one entry that never finishes: each read wants the chunks it touches,
//! gets a grant for them, fetches them into memory, compares their digests with the server's and
//! copies what was asked for. Small files come whole, once.

mod expected;
mod held;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use self::expected::Expected;
pub use self::held::{HeldRegion, RegisteredBuffer};
use super::connect::Session;
use crate::engine::LaneId;
use crate::error::{Error, ErrorKind};
use crate::ids::TransferId;
use crate::integrity::{self, HashPlan};
use crate::lane::{Fetch, LaneEvent, Store};
use crate::limits::REPAIRS_MAX;
use crate::manifest::{EntryKind, Item, Note};
use crate::memory::Slot;
use crate::options::Preserve;
use crate::session::peer::{Inbound, Seat};
use crate::units::{ByteRange, ChunkIndex, ChunkRange, ChunkSize};
use crate::wire::message::{
    Direction, Grant, GrantPart, HashKind, ManifestPage, Open, RegionKey, RemotePath, Wanted,
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
    /// Its length in bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it was empty when it was opened.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `buffer` from byte `offset` of the file on, and tells how many bytes there were: less
    /// than asked for only at the end of the file. Every byte was proved by the digest of its chunk.
    ///
    /// # Errors
    /// [`ErrorKind::SourceChanged`] if the file is not what it was when it was opened,
    /// [`ErrorKind::Integrity`] if a chunk did not match its digest in several tries,
    /// [`ErrorKind::Unreachable`] if the session has ended or the server breaks the protocol,
    /// [`ErrorKind::TimedOut`] if nothing of it came for [`ClientOptions::stall_timeout`]. After
    /// any but the second, further reads fail in the same way: open the file again.
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

    /// Ends the reading, and tells whether everything that was read is of one version of the file:
    /// each read is proved by itself, and the file may have been changed between two of them.
    ///
    /// # Errors
    /// [`ErrorKind::SourceChanged`] if it was changed since it was opened; else as
    /// [`Self::read_at`].
    pub async fn finish(self) -> Result<(), Error> {
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

pub(super) async fn open(
    session: Arc<Session>,
    path: &RemotePath,
    id: TransferId,
) -> Result<RemoteFile, Error> {
    let weak = Arc::downgrade(&session);
    let reading = Reading::begin(session, path, id).await?;
    let len = reading.file.len();
    let (requests, taken) = mpsc::channel(1);
    tokio::spawn(reading.serve(taken));
    Ok(RemoteFile {
        len,
        requests,
        path: path.clone(),
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

/// A chunk that landed.
struct Arrived {
    slot: Slot,
    digest: Option<[u8; 32]>,
}

impl Drop for Reading {
    fn drop(&mut self) {
        let fault = Fault::new(FaultCode::Cancelled, "the file was closed");
        self.seat.say(Message::Failed(fault));
    }
}

impl Reading {
    /// Opens the file, at the server, under this id.
    async fn begin(
        session: Arc<Session>,
        path: &RemotePath,
        id: TransferId,
    ) -> Result<Self, Error> {
        session.connect_data().await?;
        let seat = session.seat(id)?;
        let open = Open {
            direction: Direction::Pull(vec![path.clone()]),
            hash: HashKind::Blake3,
            chunk: CHUNK,
            preserve: Preserve::default(),
            recursive: false,
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

    /// Fetches a small file from its pack.
    async fn fetch_whole(&mut self, grant: &Grant, part: &GrantPart) -> Result<Vec<u8>, Error> {
        let len = usize::try_from(part.len).unwrap_or(usize::MAX);
        let mut tries = 0;
        while tries <= REPAIRS_MAX {
            let bytes = if len == 0 {
                Vec::new()
            } else {
                let token = self
                    .post(grant, part.region_offset, part.len, HashPlan::None)
                    .await?;
                let Some(arrived) = self.arrive(token).await? else {
                    // Its connection was lost: that is no wrong try.
                    continue;
                };
                arrived.slot.get(..len).ok_or_else(out_of_turn)?.to_vec()
            };
            let mut proofs = Vec::new();
            integrity::proofs(HashKind::Blake3, CHUNK, &bytes, |chunk, value| {
                proofs.push((chunk, value));
            });
            let mut right = true;
            for (chunk, value) in proofs {
                // They may come after the grant.
                right &= self.digest(chunk).await? == value;
            }
            if right {
                return Ok(bytes);
            }
            tries += 1;
        }
        Err(corrupt(0))
    }

    /// Fetches the chunks of a window that have data, and proves them. Unless the file can't be read
    /// any more, nothing is under way at its end.
    async fn fetch_window(
        &mut self,
        grant: &Grant,
        part: &GrantPart,
        base: u64,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let file_len = self.file.len();
        let window = ByteRange {
            start: part.file_offset,
            end: part.file_offset + part.len,
        };
        let chunks = CHUNK.index_of(window.start).0..CHUNK.count(window.end);
        let has_data =
            |range: ByteRange| part.extents.iter().any(|e| !e.intersect(range).is_empty());
        let mut todo: Vec<(ChunkIndex, u32)> = chunks
            .map(ChunkIndex)
            .filter(|&chunk| has_data(CHUNK.range(chunk, file_len)))
            .map(|chunk| (chunk, 0))
            .collect();
        todo.reverse();
        let mut flying: HashMap<u64, (ChunkIndex, u32)> = HashMap::new();
        let mut beyond_repair = None;
        while !todo.is_empty() || !flying.is_empty() {
            while flying.len() < IN_FLIGHT_MAX
                && let Some((chunk, tries)) = todo.pop()
            {
                let range = CHUNK.range(chunk, file_len);
                let plan = HashPlan::Blake3 {
                    chunk,
                    chunk_size: CHUNK,
                    file_len,
                };
                let offset = part.region_offset + (range.start - window.start);
                let token = self.post(grant, offset, range.len(), plan).await?;
                flying.insert(token, (chunk, tries));
            }
            let (token, arrived) = self.arrive_any().await?;
            let Some((chunk, tries)) = flying.remove(&token) else {
                continue;
            };
            if beyond_repair.is_some() {
                continue;
            }
            let Some(arrived) = arrived else {
                // Its connection was lost: that costs the chunk nothing.
                todo.push((chunk, tries));
                continue;
            };
            let range = CHUNK.range(chunk, file_len);
            let expected = self.digest(chunk).await?;
            if arrived.digest != Some(expected) {
                if tries >= REPAIRS_MAX {
                    beyond_repair = Some(corrupt(chunk.0));
                    todo.clear();
                    continue;
                }
                self.digests.remove(&chunk.0);
                self.seat.say(Message::Recheck {
                    entry: self.file.entry(),
                    chunk: chunk.0,
                });
                todo.push((chunk, tries + 1));
                continue;
            }
            let at = usize::try_from(range.start - base).unwrap_or(usize::MAX);
            let len = usize::try_from(range.len()).unwrap_or(usize::MAX);
            let (Some(to), Some(from)) = (bytes.get_mut(at..at + len), arrived.slot.get(..len))
            else {
                return Err(out_of_turn());
            };
            to.copy_from_slice(from);
        }
        beyond_repair.map_or(Ok(()), Err)
    }

    fn release(&self, grant: &Grant) {
        if grant.len > 0 {
            self.seat.say(Message::Release(vec![grant.region]));
        }
    }

    /// The lanes that can read what was granted, in the order to try: rails before tcp, the next in
    /// turn first.
    fn reach(&self, grant: &Grant, token: u64) -> Vec<(LaneId, RegionKey)> {
        let with_key = |(lane, rail): &(LaneId, u16)| {
            let key = grant.keys.iter().find(|key| key.rail == *rail)?;
            Some((*lane, *key))
        };
        let (mut tcp, mut rails): (Vec<_>, Vec<_>) = self
            .lanes
            .iter()
            .filter_map(with_key)
            .partition(|(_, key)| key.rail == 0);
        let turn = usize::try_from(token).unwrap_or(0);
        for lanes in [&mut rails, &mut tcp] {
            let by = turn % lanes.len().max(1);
            lanes.rotate_left(by);
        }
        rails.append(&mut tcp);
        rails
    }

    /// Posts a fetch on the next lane in turn; waits for one if all connections are lost, as they
    /// are made anew.
    async fn post(
        &mut self,
        grant: &Grant,
        offset: u64,
        len: u64,
        hash: HashPlan,
    ) -> Result<u64, Error> {
        if grant.keys.is_empty() {
            return Err(out_of_turn());
        }
        let token = self.next_token;
        self.next_token += 1;
        loop {
            for (lane, key) in self.reach(grant, token) {
                let fetch = Fetch {
                    token,
                    remote: key.key,
                    offset: key.address.saturating_add(offset),
                    len,
                    hash,
                    store: Store::Deliver,
                };
                if self.seat.fetch(lane, fetch) {
                    return Ok(token);
                }
            }
            let landed = self.receive().await?;
            self.landed.extend(landed);
        }
    }

    /// Waits for one fetch; nothing if its connection was lost.
    async fn arrive(&mut self, token: u64) -> Result<Option<Arrived>, Error> {
        loop {
            let (landed, arrived) = self.arrive_any().await?;
            if landed == token {
                return Ok(arrived);
            }
        }
    }

    /// The next fetch that is over; nothing if its connection was lost.
    async fn arrive_any(&mut self) -> Result<(u64, Option<Arrived>), Error> {
        use crate::lane::FetchError;
        loop {
            let event = match self.landed.pop_front() {
                Some(event) => Some(event),
                None => self.receive().await?,
            };
            let Some(LaneEvent::Landed { token, result }) = event else {
                continue;
            };
            return match result {
                Ok(landed) => {
                    let slot = landed.slot.ok_or_else(out_of_turn)?;
                    Ok((
                        token,
                        Some(Arrived {
                            slot,
                            digest: landed.digest,
                        }),
                    ))
                }
                Err(FetchError::ConnectionLost) => Ok((token, None)),
                Err(error) => Err(self.refused(error).await),
            };
        }
    }

    /// Why the server did not serve a READ: it says so on the control connection, if it is the
    /// file's fault.
    async fn refused(&mut self, error: crate::lane::FetchError) -> Error {
        let patience = std::time::Duration::from_secs(2);
        let explained = async {
            loop {
                if let Err(error) = self.receive().await {
                    return error;
                }
            }
        };
        match tokio::time::timeout(patience, explained).await {
            Ok(explained) if explained.kind() != ErrorKind::TimedOut => explained,
            _ => {
                Error::new(ErrorKind::Storage, "the server did not serve a read").with_source(error)
            }
        }
    }

    async fn digest(&mut self, chunk: ChunkIndex) -> Result<[u8; 32], Error> {
        loop {
            if let Some(value) = self.digests.get(&chunk.0) {
                return Ok(*value);
            }
            // What lands meanwhile is looked at after the digest is here.
            let landed = self.receive().await?;
            self.landed.extend(landed);
        }
    }

    async fn receive(&mut self) -> Result<Option<LaneEvent>, Error> {
        let inbound = self.inbound().await?;
        self.hear(inbound)
    }

    /// What reaches the file next, while something is waited for.
    async fn inbound(&mut self) -> Result<Inbound, Error> {
        let deadline = self.moved + self.stall_timeout;
        match timeout_at(deadline, self.seat.inbox.recv()).await {
            Ok(inbound) => inbound.ok_or_else(closed),
            Err(_) => Err(stalled(self.stall_timeout)),
        }
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

fn corrupt(chunk: u64) -> Error {
    let message = format!("chunk {chunk} does not match its digest");
    Error::new(ErrorKind::Integrity, message)
        .with_hint("something between the two hosts alters data: check memory and network")
}
