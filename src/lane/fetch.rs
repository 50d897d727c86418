//! A fetch on its way: parts that are read one after another, hashed and stored as they land.

use std::ops::Range;
use std::sync::Arc;

use super::events::{FetchError, Landed, Ticket};
use super::worker::LaneFile;
use crate::ids::{RemoteKey, WorkRequestId};
use crate::integrity::{ChunkHasher, HashPlan};
use crate::memory::Slot;
use crate::storage::SinkFile;
use crate::sys::reactor::{Direction, FileOperation, Token};
use crate::transport::{ReadRequest, Refusal};
use crate::units::ByteRange;

/// Chunks below this many bytes are not worth a direct write.
const DIRECT_BYTES_MIN: u64 = 64 << 10;

/// Bytes to be had from the peer.
pub struct Fetch {
    /// Comes back with the answer.
    pub token: u64,
    /// Which region of the peer's.
    pub remote: RemoteKey,
    /// First byte in the region.
    pub offset: u64,
    /// Bytes; not 0.
    pub len: u64,
    /// What to compute over them.
    pub hash: HashPlan,
    /// What to do with them.
    pub store: Store,
}

/// What to do with bytes that land.
pub enum Store {
    /// Write them.
    File {
        /// Where.
        file: Arc<dyn SinkFile>,
        /// Position of the first byte in the file.
        offset: u64,
        /// The parts of the file that have data, ascending and disjoint. What lies outside is zero
        /// and is not written.
        data: Arc<[ByteRange]>,
    },
    /// Give them back in their slot; at most as many as a slot holds.
    Deliver,
    /// Nothing.
    Discard,
}

/// A fetch that a lane has taken.
pub(super) struct Active {
    pub(super) connection: Token,
    ticket: Ticket,
    remote: RemoteKey,
    offset: u64,
    len: u64,
    /// Bytes that READs were posted for.
    posted: u64,
    /// Bytes that landed. READs of a connection land in order, so these are the first ones.
    landed: u64,
    /// Bytes of READs that are over: where the one that is landing began.
    completed: u64,
    hasher: ChunkHasher,
    store: Store,
    direct_alignment: Option<u64>,
    /// READs whose completion has not come.
    reads: u32,
    /// Direct writes whose completion has not come.
    writes: u32,
    failure: Option<FetchError>,
    delivered: Option<Slot>,
}

impl Active {
    pub(super) fn new(fetch: Fetch, connection: Token, ticket: Ticket) -> Self {
        Self {
            connection,
            ticket,
            remote: fetch.remote,
            offset: fetch.offset,
            len: fetch.len,
            posted: 0,
            landed: 0,
            completed: 0,
            hasher: ChunkHasher::new(&fetch.hash),
            direct_alignment: direct_alignment(&fetch.store, fetch.len),
            store: fetch.store,
            reads: 0,
            writes: 0,
            failure: None,
            delivered: None,
        }
    }

    /// Why a fetch can't be done at all.
    pub(super) fn check(fetch: &Fetch, slot_bytes: usize) -> Result<(), FetchError> {
        if fetch.len == 0 {
            return Err(FetchError::Invalid("a fetch of no bytes"));
        }
        if fetch.offset.checked_add(fetch.len).is_none() {
            return Err(FetchError::Invalid("a fetch beyond the end of numbers"));
        }
        match &fetch.store {
            Store::Deliver if fetch.len > slot_bytes as u64 => {
                Err(FetchError::Invalid("delivery of more than a slot holds"))
            }
            Store::File { offset, .. } if offset.checked_add(fetch.len).is_none() => {
                Err(FetchError::Invalid("storing beyond the end of numbers"))
            }
            _ => Ok(()),
        }
    }

    /// Whether its slot leaves the lane.
    pub(super) fn is_delivery(&self) -> bool {
        matches!(self.store, Store::Deliver)
    }

    /// Whether READs are still to be posted.
    pub(super) fn wants_read(&self) -> bool {
        self.posted < self.len && self.failure.is_none()
    }

    /// The next READ, of at most `read_bytes`; it counts as posted.
    pub(super) fn next_read(&mut self, id: WorkRequestId, read_bytes: usize) -> ReadRequest {
        let left = usize::try_from(self.len - self.posted).unwrap_or(usize::MAX);
        let len = left.min(read_bytes);
        let offset = self.offset + self.posted;
        self.posted += len as u64;
        self.reads += 1;
        ReadRequest {
            id,
            key: self.remote,
            offset,
            len,
        }
    }

    /// Hashes a piece that is still in a cache. It is written with the whole READ: a write's fixed
    /// costs, the lock of the file among them, are paid once for it.
    pub(super) fn landed(&mut self, piece: &[u8]) {
        self.landed += piece.len() as u64;
        if self.failure.is_none() {
            self.hasher.update(piece);
        }
    }

    /// A READ is over: its bytes are written. What has to go around the page cache is returned, to
    /// be posted.
    pub(super) fn completed(
        &mut self,
        id: WorkRequestId,
        slot: Option<Slot>,
        status: Result<(), Refusal>,
    ) -> Option<FileOperation<LaneFile>> {
        self.reads -= 1;
        // READs end in order, and what landed last belongs to the one that ends now.
        let part_start = std::mem::replace(&mut self.completed, self.landed);
        match status {
            Ok(()) => {}
            Err(Refusal::Access) => self.fail(FetchError::Access),
            Err(refusal) => self.fail(FetchError::Refused(refusal)),
        }
        if self.failure.is_some() {
            return None;
        }
        let slot = slot?;
        if matches!(self.store, Store::Deliver) {
            self.delivered = Some(slot);
            return None;
        }
        if let Some(alignment) = self.direct_alignment {
            return self.write_direct(id, slot, part_start, alignment);
        }
        let len = usize::try_from(self.landed - part_start).unwrap_or(usize::MAX);
        self.write(&slot[..len], part_start);
        None
    }

    /// A direct write is over.
    pub(super) fn written(
        &mut self,
        operation: FileOperation<LaneFile>,
        result: std::io::Result<usize>,
    ) {
        self.writes -= 1;
        let Store::File { file, .. } = &self.store else {
            return;
        };
        // What it did not take, for whatever reason, the page cache takes or explains.
        let through = result.unwrap_or(0).min(operation.range.len());
        let rest = operation.range.start + through..operation.range.end;
        if rest.is_empty() {
            return;
        }
        let outcome = file.write_at(&operation.slot[rest], operation.offset + through as u64);
        if let Err(error) = outcome {
            self.fail(FetchError::Storage(error));
        }
    }

    /// The connection is gone, with all READs that were posted on it.
    pub(super) fn lose_connection(&mut self) {
        self.reads = 0;
        // What has landed whole needs no connection.
        if self.landed < self.len {
            self.fail(FetchError::ConnectionLost);
        }
    }

    /// Whether nothing is under way any more that concerns it.
    pub(super) fn is_over(&self) -> bool {
        self.reads == 0 && self.writes == 0 && !self.wants_read()
    }

    /// Answers the fetch.
    pub(super) fn finish(self) {
        let Self {
            ticket,
            failure,
            hasher,
            delivered,
            store,
            ..
        } = self;
        // Before the answer: whoever gets it may close the file.
        drop(store);
        match failure {
            Some(error) => {
                drop(delivered);
                ticket.answer(Err(error));
            }
            None => ticket.answer(Ok(Landed {
                digest: hasher.finish(),
                slot: delivered,
            })),
        }
    }

    fn fail(&mut self, error: FetchError) {
        self.failure.get_or_insert(error);
    }

    /// Writes the data in `piece`, which starts at byte `at` of the fetch, through the page cache.
    fn write(&mut self, piece: &[u8], at: u64) {
        let Store::File { file, offset, data } = &self.store else {
            return;
        };
        let start = offset + at;
        let whole = ByteRange {
            start,
            end: start + piece.len() as u64,
        };
        let first = data.partition_point(|range| range.end <= whole.start);
        for range in &data[first..] {
            let part = range.intersect(whole);
            if part.is_empty() {
                break;
            }
            if let Err(error) = file.write_at(&piece[within(part, start)], part.start) {
                self.fail(FetchError::Storage(error));
                return;
            }
        }
    }

    /// Splits a part, at a slot's start, into what can go around the page cache and the rest.
    fn write_direct(
        &mut self,
        id: WorkRequestId,
        slot: Slot,
        at: u64,
        alignment: u64,
    ) -> Option<FileOperation<LaneFile>> {
        let Store::File { file, offset, data } = &self.store else {
            return None;
        };
        let file = Arc::clone(file);
        let start = offset + at;
        let len = self.landed - at;
        let whole = ByteRange {
            start,
            end: start + len,
        };
        let len = usize::try_from(len).unwrap_or(0);
        let all_data = data.iter().any(|range| range.intersect(whole) == whole);
        let aligned = len - len % usize::try_from(alignment).unwrap_or(usize::MAX);
        if !all_data || !start.is_multiple_of(alignment) || aligned == 0 {
            self.write(&slot[..len], at);
            return None;
        }
        if aligned < len {
            self.write(&slot[aligned..len], at + aligned as u64);
        }
        if self.failure.is_some() {
            return None;
        }
        self.writes += 1;
        Some(FileOperation {
            tag: id.0,
            direction: Direction::Write,
            file: LaneFile::Sink(file),
            slot,
            range: 0..aligned,
            offset: start,
        })
    }
}

fn direct_alignment(store: &Store, len: u64) -> Option<u64> {
    let Store::File { file, .. } = store else {
        return None;
    };
    let direct = file.direct().filter(|_| len >= DIRECT_BYTES_MIN)?;
    Some(u64::from(direct.alignment_bytes.max(1)))
}

/// `part` of the file as a range of bytes that start at `start` of the file.
fn within(part: ByteRange, start: u64) -> Range<usize> {
    // Both ends lie in a piece of memory.
    let position = |at: u64| usize::try_from(at - start).unwrap_or(usize::MAX);
    position(part.start)..position(part.end)
}
