//! Random reads of a file on a server, each chunk proved, without a copy on disk.
//!
//! An open file is a pull of one entry that never finishes: each read wants the chunks it touches,
//! gets a grant for them, fetches them into memory, compares their digests with the server's and
//! copies what was asked for. Small files come whole, once.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::connect::Session;
use crate::engine::LaneId;
use crate::error::{Error, ErrorKind};
use crate::ids::{EntryId, TransferId};
use crate::integrity::{self, HashPlan};
use crate::lane::{Fetch, LaneEvent, Store};
use crate::limits::{PACK_FILE_BYTES_MAX, REPAIRS_MAX};
use crate::manifest::{EntryKind, Item, Note, Version};
use crate::memory::Slot;
use crate::options::Preserve;
use crate::session::peer::{Inbound, Seat};
use crate::units::{ByteRange, ChunkIndex, ChunkRange, ChunkSize};
use crate::wire::message::{
    Direction, Grant, GrantPart, HashKind, Open, RegionKey, RemotePath, Wanted,
};
use crate::wire::{Fault, FaultCode, Message};

/// The unit of proof of random reads: small, as a read of one byte costs one of these.
const CHUNK: ChunkSize = ChunkSize::MIN;

/// Bytes that one request to the server asks for at most; longer reads are several.
const STEP_BYTES: u64 = 8 << 20;

/// Region bytes that the server may have granted.
const CREDIT_BYTES: u64 = 64 << 20;

/// Digests kept at once: those of one request twice over, and no more.
#[allow(clippy::cast_possible_truncation, reason = "some hundreds")]
const DIGESTS_KEPT_MAX: usize = 2 * (STEP_BYTES / CHUNK.bytes()) as usize + 8;

/// Grants and landed chunks that wait their turn.
const UNASKED_MAX: usize = 256;

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
}

#[derive(Debug)]
struct Request {
    range: ByteRange,
    answer: oneshot::Sender<Result<Vec<u8>, Error>>,
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
    /// [`ErrorKind::Unreachable`] if the session has ended.
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
                .send(Request { range, answer })
                .await
                .map_err(|_| closed())?;
            let bytes = answered.await.map_err(|_| closed())??;
            buffer[filled..filled + bytes.len()].copy_from_slice(&bytes);
            filled += bytes.len();
            at = range.end;
        }
        Ok(filled)
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Unreachable, "the file is not open any more")
}

pub(super) async fn open(session: Arc<Session>, path: &RemotePath) -> Result<RemoteFile, Error> {
    session.connect_data().await?;
    let seat = session.seat(TransferId::random())?;
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
    let mut reading = Reading {
        seat,
        lanes: Vec::new(),
        entry: EntryId(0),
        len: 0,
        version: None,
        whole: None,
        digests: HashMap::new(),
        next_token: 0,
        waiting: VecDeque::new(),
        later: Vec::new(),
        _session: session,
    };
    let len = reading.manifest().await?;
    let (requests, taken) = mpsc::channel(1);
    tokio::spawn(reading.serve(taken));
    Ok(RemoteFile { len, requests })
}

/// The task behind an open file.
struct Reading {
    seat: Seat,
    /// With their rails.
    lanes: Vec<(LaneId, u16)>,
    entry: EntryId,
    len: u64,
    version: Option<Version>,
    /// A small file's content, once it is here.
    whole: Option<Vec<u8>>,
    /// Digests of chunks that are under way.
    digests: HashMap<u64, [u8; 32]>,
    next_token: u64,
    /// What came while something else was waited for.
    waiting: VecDeque<Inbound>,
    /// Grants that came while an earlier one was read.
    later: Vec<Inbound>,
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
    /// Takes the manifest, which has the one file.
    async fn manifest(&mut self) -> Result<u64, Error> {
        loop {
            match self.next().await? {
                Inbound::Message(Message::Opened) => {}
                Inbound::Message(Message::Manifest(page)) => {
                    for item in page.items {
                        match item {
                            Item::Entry(entry) => {
                                let EntryKind::File { len, .. } = entry.kind else {
                                    return Err(not_a_file());
                                };
                                (self.entry, self.len) = (entry.id, len);
                                return Ok(len);
                            }
                            Item::Note(Note::Skipped { fault, .. }) => return Err(fault.into()),
                            Item::Note(_) => {}
                        }
                    }
                    if page.last {
                        return Err(not_a_file());
                    }
                }
                _ => {}
            }
        }
    }

    /// Serves reads until the handle is dropped or the session ends.
    async fn serve(mut self, mut requests: mpsc::Receiver<Request>) {
        loop {
            tokio::select! {
                request = requests.recv() => {
                    let Some(Request { range, answer }) = request else { return };
                    let result = self.read(range).await;
                    let over = matches!(&result, Err(error) if error.kind() == ErrorKind::Unreachable);
                    // Whoever asked may have gone.
                    let _ = answer.send(result);
                    if over {
                        return;
                    }
                }
                inbound = self.seat.inbox.recv() => match inbound.map(|inbound| self.hear(inbound)) {
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return,
                },
            }
        }
    }

    async fn read(&mut self, range: ByteRange) -> Result<Vec<u8>, Error> {
        if let Some(whole) = &self.whole {
            return Ok(cut(whole, 0, range));
        }
        let first = CHUNK.index_of(range.start).0;
        let end = CHUNK.index_of(range.end - 1).0 + 1;
        let start = CHUNK.range(ChunkIndex(first), self.len).start;
        let stop = CHUNK.range(ChunkIndex(end - 1), self.len).end;
        let span = usize::try_from(stop - start).unwrap_or(0);
        let mut bytes = vec![0; span];
        self.digests.clear();
        let wanted = Wanted::Chunks(vec![ChunkRange { start: first, end }]);
        self.seat.say(Message::Want(vec![(self.entry, wanted)]));
        loop {
            let grant = self.grant().await?;
            let part = grant.parts.first().cloned().ok_or_else(out_of_turn)?;
            self.check(&grant, &part, ByteRange { start, end: stop })?;
            if part.packed {
                let whole = self.fetch_whole(&grant, &part).await?;
                let answer = cut(&whole, 0, range);
                self.whole = Some(whole);
                return Ok(answer);
            }
            self.fetch_window(&grant, &part, start, &mut bytes).await?;
            if part.last {
                return Ok(cut(&bytes, start, range));
            }
        }
    }

    /// Waits for the next grant.
    async fn grant(&mut self) -> Result<Grant, Error> {
        // What was asked for comes in a few grants; a server that sends many more is not ours.
        if self.waiting.len() + self.later.len() > UNASKED_MAX {
            return Err(out_of_turn());
        }
        self.waiting.extend(std::mem::take(&mut self.later));
        loop {
            if let Inbound::Message(Message::Grant(grant)) = self.next().await? {
                return Ok(grant);
            }
        }
    }

    /// A grant answers what was wanted, which lies in `span`, and its numbers hang together.
    fn check(&mut self, grant: &Grant, part: &GrantPart, span: ByteRange) -> Result<(), Error> {
        if part.entry != self.entry || grant.parts.len() != 1 {
            return Err(out_of_turn());
        }
        let known = *self.version.get_or_insert(part.version);
        if part.version != known || part.file_len != self.len {
            let message = "the file is not what it was when it was opened";
            return Err(Error::new(ErrorKind::SourceChanged, message));
        }
        let end = part.file_offset.checked_add(part.len);
        let region_end = part.region_offset.checked_add(part.len);
        let (Some(end), Some(region_end)) = (end, region_end) else {
            return Err(out_of_turn());
        };
        let fits = if part.packed {
            part.file_offset == 0 && part.len == self.len && part.len <= PACK_FILE_BYTES_MAX
        } else {
            let begins = part.file_offset.is_multiple_of(CHUNK.bytes());
            let ends = end.is_multiple_of(CHUNK.bytes()) || end == self.len;
            begins && ends && span.start <= part.file_offset && end <= span.end
        };
        let mut at = part.file_offset;
        let ordered = part.extents.iter().all(|extent| {
            let good = extent.start >= at && extent.end > extent.start && extent.end <= end;
            at = extent.end;
            good
        });
        // A part without data has no region; one with data lies inside of its region.
        let backed = part.extents.is_empty() || region_end <= grant.len;
        if fits && ordered && backed {
            Ok(())
        } else {
            Err(out_of_turn())
        }
    }

    /// Fetches a small file from its pack.
    async fn fetch_whole(&mut self, grant: &Grant, part: &GrantPart) -> Result<Vec<u8>, Error> {
        let len = usize::try_from(part.len).unwrap_or(usize::MAX);
        for _ in 0..=REPAIRS_MAX {
            let bytes = if len == 0 {
                Vec::new()
            } else {
                let token = self.post(grant, part.region_offset, part.len, HashPlan::None)?;
                let arrived = self.arrive(token).await?;
                arrived.slot.get(..len).ok_or_else(out_of_turn)?.to_vec()
            };
            let mut right = true;
            let digests = &self.digests;
            integrity::proofs(HashKind::Blake3, CHUNK, &bytes, |chunk, value| {
                right &= digests.get(&chunk.0) == Some(&value);
            });
            if right {
                self.release(grant);
                return Ok(bytes);
            }
        }
        Err(corrupt(0))
    }

    /// Fetches the chunks of a window that have data, and proves them.
    async fn fetch_window(
        &mut self,
        grant: &Grant,
        part: &GrantPart,
        base: u64,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let window = ByteRange {
            start: part.file_offset,
            end: part.file_offset + part.len,
        };
        let chunks = CHUNK.index_of(window.start).0..CHUNK.count(window.end);
        let has_data =
            |range: ByteRange| part.extents.iter().any(|e| !e.intersect(range).is_empty());
        let mut todo: Vec<(ChunkIndex, u32)> = chunks
            .map(ChunkIndex)
            .filter(|&chunk| has_data(CHUNK.range(chunk, self.len)))
            .map(|chunk| (chunk, 0))
            .collect();
        todo.reverse();
        let mut flying: HashMap<u64, (ChunkIndex, u32)> = HashMap::new();
        while !todo.is_empty() || !flying.is_empty() {
            while flying.len() < IN_FLIGHT_MAX
                && let Some((chunk, tries)) = todo.pop()
            {
                let range = CHUNK.range(chunk, self.len);
                let plan = HashPlan::Blake3 {
                    chunk,
                    chunk_size: CHUNK,
                    file_len: self.len,
                };
                let offset = part.region_offset + (range.start - window.start);
                let token = self.post(grant, offset, range.len(), plan)?;
                flying.insert(token, (chunk, tries));
            }
            let (token, arrived) = self.arrive_any().await?;
            let Some((chunk, tries)) = flying.remove(&token) else {
                continue;
            };
            let Some(arrived) = arrived else {
                // Its connection was lost: that costs the chunk nothing.
                todo.push((chunk, tries));
                continue;
            };
            let range = CHUNK.range(chunk, self.len);
            let expected = self.digest(chunk).await?;
            if arrived.digest != Some(expected) {
                if tries >= REPAIRS_MAX {
                    return Err(corrupt(chunk.0));
                }
                self.digests.remove(&chunk.0);
                self.seat.say(Message::Recheck {
                    entry: self.entry,
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
        self.release(grant);
        Ok(())
    }

    fn release(&self, grant: &Grant) {
        if grant.len > 0 {
            self.seat.say(Message::Release(vec![grant.region]));
        }
    }

    /// Posts a fetch on the next lane in turn.
    fn post(&mut self, grant: &Grant, offset: u64, len: u64, hash: HashPlan) -> Result<u64, Error> {
        if grant.keys.is_empty() {
            return Err(out_of_turn());
        }
        let token = self.next_token;
        self.next_token += 1;
        let turn = usize::try_from(token).unwrap_or(0);
        // Rails before tcp, as far as the grant has keys for them.
        let reach = |(lane, rail): &(LaneId, u16)| {
            let key = grant.keys.iter().find(|key| key.rail == *rail)?;
            Some((*lane, *key))
        };
        let (tcp, rails): (Vec<_>, Vec<_>) = self
            .lanes
            .iter()
            .filter_map(reach)
            .partition(|(_, key)| key.rail == 0);
        let in_turn = |lanes: &[(LaneId, RegionKey)]| {
            let mut lanes = lanes.to_vec();
            let by = turn % lanes.len().max(1);
            lanes.rotate_left(by);
            lanes
        };
        for (lane, key) in in_turn(&rails).into_iter().chain(in_turn(&tcp)) {
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
        Err(Error::new(
            ErrorKind::Unreachable,
            "no data connection is left",
        ))
    }

    async fn arrive(&mut self, token: u64) -> Result<Arrived, Error> {
        loop {
            let (landed, arrived) = self.arrive_any().await?;
            if landed == token {
                return arrived.ok_or_else(|| {
                    Error::new(ErrorKind::Unreachable, "a data connection was lost")
                });
            }
        }
    }

    /// The next fetch that is over; nothing if its connection was lost.
    async fn arrive_any(&mut self) -> Result<(u64, Option<Arrived>), Error> {
        use crate::lane::FetchError;
        loop {
            let (token, result) = match self.next().await? {
                Inbound::Lane(LaneEvent::Landed { token, result }) => (token, result),
                grant @ Inbound::Message(Message::Grant(_)) => {
                    self.later.push(grant);
                    if self.later.len() > UNASKED_MAX {
                        return Err(out_of_turn());
                    }
                    continue;
                }
                _ => continue,
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
                if let Err(error) = self.next().await {
                    return error;
                }
            }
        };
        match tokio::time::timeout(patience, explained).await {
            Ok(explained) => explained,
            Err(_) => {
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
            let inbound = self.receive().await?;
            if matches!(
                inbound,
                Inbound::Lane(_) | Inbound::Message(Message::Grant(_))
            ) {
                self.waiting.push_back(inbound);
                if self.waiting.len() > UNASKED_MAX {
                    return Err(out_of_turn());
                }
            }
        }
    }

    /// The next thing that reaches this transfer, after what concerns all of it was seen to.
    async fn next(&mut self) -> Result<Inbound, Error> {
        match self.waiting.pop_front() {
            Some(inbound) => Ok(inbound),
            None => self.receive().await,
        }
    }

    async fn receive(&mut self) -> Result<Inbound, Error> {
        let inbound = self.seat.inbox.recv().await.ok_or_else(closed)?;
        self.hear(inbound)
    }

    fn hear(&mut self, inbound: Inbound) -> Result<Inbound, Error> {
        match inbound {
            Inbound::LaneUp(lane, rail) => self.lanes.push((lane, rail)),
            Inbound::LaneDown(lane) => self.lanes.retain(|(known, _)| *known != lane),
            Inbound::Over(fault) => {
                return Err(Error::new(ErrorKind::Unreachable, fault.text));
            }
            Inbound::Message(Message::Failed(fault)) => return Err(fault.into()),
            Inbound::Message(Message::EntryFailed { fault, .. }) => return Err(fault.into()),
            Inbound::Message(Message::Digests(ref digests)) => {
                for digest in digests {
                    self.digests.insert(digest.chunk, digest.value);
                }
                if self.digests.len() > DIGESTS_KEPT_MAX {
                    return Err(out_of_turn());
                }
            }
            Inbound::Message(_) | Inbound::Lane(_) => {}
        }
        Ok(inbound)
    }
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

fn not_a_file() -> Error {
    Error::new(ErrorKind::Usage, "only regular files can be opened")
}

fn out_of_turn() -> Error {
    Error::new(ErrorKind::Unreachable, "the server broke the protocol")
}

fn corrupt(chunk: u64) -> Error {
    let message = format!("chunk {chunk} does not match its digest");
    Error::new(ErrorKind::Integrity, message)
        .with_hint("something between the two hosts alters data: check memory and network")
}
