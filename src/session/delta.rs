//! Chunks that an older copy of a file has already, taken from it instead of the network.
//!
//! In: a part file with its older copy, chunks and the digests that the sender told in this run. Out:
//! which of the chunks are in the part file now. The older copy is somebody else's file, which may
//! change beneath us: what is hashed is what lies in the part file, or the very bytes that are then
//! written there. Runs on workers; memory is one chunk, whatever the file.

use std::io;

use super::resuming::{hash_chunk, hash_plan};
use crate::engine::receiver::Proof;
use crate::integrity::{ChunkHasher, HashPlan};
use crate::storage::SinkFile;
use crate::storage::sink::{Older, OlderCopy, PartFile};
use crate::units::{ByteRange, ChunkIndex, ChunkSize};
use crate::wire::message::{HashKind, Reuse};

/// The older copy is read in pieces of this many bytes, which are hashed while they are in the cache.
const PIECE_BYTES: usize = 256 << 10;

/// What of it can be done: without digests nothing tells whether two chunks are the same, and a peer that
/// may not read (`reads`) is not to learn it.
pub(crate) fn allowed(reuse: Reuse, hash: HashKind, reads: bool) -> Reuse {
    Reuse {
        delta: reuse.delta && reads && hash != HashKind::None,
        ..reuse
    }
}

/// Which of the chunks the older copy has: these are in the part file then. Of the others nothing is
/// left there where the source has no data, as `data` tells.
///
/// # Errors
/// The part file could not be written: it is of no use.
pub(super) fn take_same(
    part: &PartFile,
    len: u64,
    size: ChunkSize,
    chunks: &[(ChunkIndex, Proof, [u8; 32])],
    data: &[ByteRange],
) -> io::Result<Vec<(ChunkIndex, bool)>> {
    let mut buffer = Vec::new();
    let mut compared = Vec::with_capacity(chunks.len());
    for &(chunk, proof, value) in chunks {
        let plan = hash_plan(proof, chunk, size, len);
        let bytes = size.range(chunk, len);
        let same = match part.older() {
            Some(Older::Within { .. }) => {
                buffer.resize(PIECE_BYTES, 0);
                // What can't be read is not there.
                let found = hash_chunk(part, &plan, chunk, size, len, &mut buffer);
                let same = found.ok().flatten() == Some(value);
                if !same && !covers(data, bytes) {
                    part.clear(bytes)?;
                }
                same
            }
            Some(Older::Beside { copy, .. }) => {
                buffer.resize(usize::try_from(bytes.len()).unwrap_or(usize::MAX), 0);
                let same = read_chunk(copy, &plan, bytes.start, &mut buffer) == Some(value);
                if same {
                    write_data(part, bytes, &buffer, data)?;
                }
                same
            }
            None => false,
        };
        compared.push((chunk, same));
    }
    Ok(compared)
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
