//! Chunks that an older copy of a file has already, taken from it instead of the network.
//!
//! In: a part file with its older copy, chunks and the digests that the sender told in this run. Out:
//! which of the chunks are in the part file now. The older copy is somebody else's file, which may
//! change beneath us: what is hashed is what lies in the part file, or the very bytes that are then
//! written there. Runs on workers; memory is one chunk, whatever the file.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::resuming::{hash_chunk, hash_plan};
use crate::engine::receiver::Proof;
use crate::integrity::{ChunkHasher, HashPlan};
use crate::storage::SinkFile;
use crate::storage::sink::{Older, OlderCopy, PartFile};
use crate::units::{ByteRange, ChunkIndex, ChunkSize};
use crate::wire::message::{HashKind, Overwrite, Reuse};
use crate::wire::{Fault, FaultCode};

/// The older copy is read in pieces of this many bytes, which are hashed while they are in the cache.
const PIECE_BYTES: usize = 256 << 10;
/// Chunks of a file that are compared without being written, at most: what is remembered of each takes
/// some 80 bytes.
const UNWRITTEN_CHUNKS_MAX: usize = 1 << 18;

/// What of it can be done: without digests nothing tells whether two chunks are the same, and a peer that
/// may not read (`reads`) is not to learn it.
pub(crate) fn allowed(reuse: Reuse, hash: HashKind, reads: bool) -> Reuse {
    Reuse {
        delta: reuse.delta && reads && hash != HashKind::None,
        ..reuse
    }
}

/// Why that can't be done, if it can't.
pub(crate) fn refusal(
    reuse: Reuse,
    overwrite: Overwrite,
    hash: HashKind,
    reads: bool,
) -> Option<Fault> {
    if reuse.in_place && overwrite == Overwrite::Older {
        let text = "what an interrupted copy left in place is newer than its source, so the next one would \
                    take it for good: --inplace does not go with --update";
        return Some(Fault::new(FaultCode::Invalid, text));
    }
    if !reuse.checksum {
        return None;
    }
    if hash == HashKind::None {
        let text = "files can't be told apart by content without a hash; choose one, or do without \
                    --checksum";
        return Some(Fault::new(FaultCode::Invalid, text));
    }
    let text = "this client's key may not read here, and what --checksum does would tell it what is \
                there: push without it";
    (!reads).then(|| Fault::new(FaultCode::Denied, text))
}

/// What was found of a file in its older copy.
///
/// A file that is told apart by content usually is what it was. Where taking a chunk means writing it,
/// that is put off until something differs: until then the chunks are only remembered. What is written
/// later is read and hashed again.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The older copy stays if all is the same.
    by_content: bool,
    /// Chunks that were the same.
    same: AtomicU64,
    rest: Mutex<Rest>,
}

/// Chunks that were the same and are not in the part file.
#[derive(Debug, Default)]
struct Rest {
    /// Nothing differs so far, and there is room for more.
    grows: bool,
    chunks: usize,
    portions: Vec<Portion>,
    /// Chunks that are not in the part file, as what has them is only compared so far.
    unwritten: HashSet<ChunkIndex>,
}

#[derive(Debug)]
struct Portion {
    chunks: Vec<Asked>,
    data: Arc<[ByteRange]>,
}

/// A chunk, how it is hashed, and the sender's value.
type Asked = (ChunkIndex, Proof, [u8; 32]);

impl Found {
    pub(super) fn of(part: &PartFile) -> Self {
        let writes = matches!(part.older(), Some(Older::Beside { .. }));
        Self {
            by_content: part.is_by_content(),
            same: AtomicU64::new(0),
            rest: Mutex::new(Rest {
                grows: part.is_by_content() && writes,
                ..Rest::default()
            }),
        }
    }

    /// Whether the older copy has all of so many chunks, and then stays.
    pub(super) fn is_all(&self, chunks: u64) -> bool {
        self.by_content && self.same.load(Ordering::Relaxed) == chunks
    }

    /// Which of the chunks the older copy has: these are in the part file then, or will be written there.
    /// Of the others nothing is left there where the source has no data, as `data` tells.
    ///
    /// # Errors
    /// The part file could not be written: it is of no use.
    pub(super) fn take_same(
        &self,
        part: &PartFile,
        len: u64,
        size: ChunkSize,
        chunks: Vec<Asked>,
        data: Arc<[ByteRange]>,
    ) -> io::Result<Vec<(ChunkIndex, bool)>> {
        let put_off = self.rest().grows;
        let mut buffer = Vec::new();
        let mut compared = Vec::with_capacity(chunks.len());
        let mut unwritten = Vec::new();
        for asked in chunks {
            let same = take(part, len, size, &asked, &data, put_off, &mut buffer)?;
            compared.push((asked.0, same));
            if same && put_off {
                unwritten.push(asked);
            }
        }
        let same = compared.iter().filter(|(_, same)| *same).count();
        self.same.fetch_add(same as u64, Ordering::Relaxed);
        let more = {
            let mut rest = self.rest();
            rest.chunks += unwritten.len();
            rest.grows &= same == compared.len() && rest.chunks < UNWRITTEN_CHUNKS_MAX;
            if !unwritten.is_empty() {
                rest.unwritten.extend(unwritten.iter().map(|asked| asked.0));
                let chunks = unwritten;
                rest.portions.push(Portion { chunks, data });
            }
            // What was put off is made up for bit by bit.
            if rest.grows {
                None
            } else {
                rest.portions.pop()
            }
        };
        if let Some(portion) = more {
            write(part, len, size, &portion, &mut buffer)?;
            self.wrote(&portion);
        }
        Ok(compared)
    }

    /// Writes what was only compared so far; after each portion it asks whether to go on.
    ///
    /// # Errors
    /// The part file could not be written, or the older copy is not what it was any more.
    pub(super) fn write_rest(
        &self,
        part: &PartFile,
        len: u64,
        size: ChunkSize,
        mut goes_on: impl FnMut() -> bool,
    ) -> io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            let portion = self.rest().portions.pop();
            let Some(portion) = portion else {
                return Ok(());
            };
            write(part, len, size, &portion, &mut buffer)?;
            self.wrote(&portion);
            if !goes_on() {
                return Err(io::Error::other("the transfer was ended"));
            }
        }
    }

    /// Whether a chunk is in the part file, if it is proved: what is not may not be recorded as if it were.
    pub(super) fn is_written(&self, chunk: ChunkIndex) -> bool {
        !self.rest().unwritten.contains(&chunk)
    }

    fn wrote(&self, portion: &Portion) {
        let mut rest = self.rest();
        for (chunk, ..) in &portion.chunks {
            rest.unwritten.remove(chunk);
        }
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the older copy has a chunk, which then is in the part file unless that is put off.
fn take(
    part: &PartFile,
    len: u64,
    size: ChunkSize,
    &(chunk, proof, value): &Asked,
    data: &[ByteRange],
    put_off: bool,
    buffer: &mut Vec<u8>,
) -> io::Result<bool> {
    let plan = hash_plan(proof, chunk, size, len);
    let bytes = size.range(chunk, len);
    match part.older() {
        Some(Older::Within { .. }) => {
            buffer.resize(PIECE_BYTES, 0);
            // What can't be read is not there.
            let found = hash_chunk(part, &plan, chunk, size, len, buffer);
            let same = found.ok().flatten() == Some(value);
            if !same && !covers(data, bytes) {
                part.clear(bytes)?;
            }
            Ok(same)
        }
        Some(Older::Beside { copy, .. }) => {
            buffer.resize(usize::try_from(bytes.len()).unwrap_or(usize::MAX), 0);
            let same = read_chunk(copy, &plan, bytes.start, buffer) == Some(value);
            if same && !put_off {
                write_data(part, bytes, buffer, data)?;
            }
            Ok(same)
        }
        None => Ok(false),
    }
}

/// Writes what was put off.
fn write(
    part: &PartFile,
    len: u64,
    size: ChunkSize,
    portion: &Portion,
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    for asked in &portion.chunks {
        if !take(part, len, size, asked, &portion.data, false, buffer)? {
            let text =
                "the file that is to be replaced changed while it was compared; run it again";
            return Err(io::Error::other(text));
        }
    }
    Ok(())
}

/// Reads a whole chunk of the copy, and its value; nothing if it can't be read.
fn read_chunk(
    copy: &OlderCopy,
    plan: &HashPlan,
    start: u64,
    buffer: &mut [u8],
) -> Option<[u8; 32]> {
    let mut hasher = ChunkHasher::new(plan);
    let mut at = start;
    for piece in buffer.chunks_mut(PIECE_BYTES) {
        if copy.read_at(piece, at).ok()? < piece.len() {
            return None;
        }
        hasher.update(piece);
        at += piece.len() as u64;
    }
    hasher.finish()
}

/// Writes what of a chunk is data at the source; the rest is zeros in both.
fn write_data(
    part: &PartFile,
    chunk: ByteRange,
    bytes: &[u8],
    data: &[ByteRange],
) -> io::Result<()> {
    for extent in data.iter().map(|extent| extent.intersect(chunk)) {
        if extent.is_empty() {
            continue;
        }
        let at = |offset: u64| usize::try_from(offset - chunk.start).unwrap_or(usize::MAX);
        part.write_at(&bytes[at(extent.start)..at(extent.end)], extent.start)?;
    }
    Ok(())
}

/// Whether all of a range is data.
fn covers(data: &[ByteRange], range: ByteRange) -> bool {
    let at = data.partition_point(|extent| extent.end <= range.start);
    data.get(at)
        .is_some_and(|extent| extent.start <= range.start && extent.end >= range.end)
}
