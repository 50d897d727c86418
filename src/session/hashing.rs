//! Hashing a source on the workers, outside of the lanes.
//!
//! In: open files and which of their chunks. Out: the chunks' values, or why there are none. All
//! bytes come by reads of the file, so they are what the file holds now, whatever a device serves.
//! Nothing here knows regions or messages.

use crate::integrity::{ChunkHasher, HashPlan, Sha256Ahead, Sha256State};
use crate::storage::SourceFile;
use crate::storage::source::{OpenSource, Source};
use crate::units::{ByteRange, ChunkIndex, ChunkSize};
use crate::wire::message::HashKind;
use crate::wire::{Fault, FaultCode};

/// Bytes that are read at a time: still in the second-level cache when they are hashed.
pub(super) const PIECE_BYTES: usize = 256 << 10;

/// Hashes a file on, front to back, up to chunk `upto`, and tells each chunk's value.
pub(super) fn hash_on(
    file: &OpenSource,
    mut state: Sha256Ahead,
    chunk_size: ChunkSize,
    upto: ChunkIndex,
    mut tell: impl FnMut(ChunkIndex, [u8; 32]),
) -> Result<Sha256Ahead, Fault> {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut chunk = chunk_size.index_of(state.position());
    while chunk < upto {
        let range = chunk_size.range(chunk, file.len);
        read_range(&*file.file, range, &mut buffer, |piece| {
            state.update(piece);
        })?;
        let value = match state.update(&[]) {
            Some(between) if range.end < file.len => between.0,
            _ => state.clone().finish(),
        };
        tell(chunk, value);
        chunk.0 += 1;
    }
    Ok(state)
}

/// The chunks of `range`, which begins and ends as chunks do, that have data in `extents`.
pub(super) fn chunks_with_data(
    range: ByteRange,
    extents: &[ByteRange],
    chunk_size: ChunkSize,
    file_len: u64,
) -> impl Iterator<Item = ChunkIndex> {
    let first = chunk_size.index_of(range.start).0;
    (first..chunk_size.count(range.end))
        .map(ChunkIndex)
        .filter(move |chunk| {
            let bytes = chunk_size.range(*chunk, file_len);
            extents
                .iter()
                .any(|extent| !extent.intersect(bytes).is_empty())
        })
}

/// The BLAKE3 value of a chunk as the file reads now.
pub(super) fn blake3_value(
    file: &OpenSource,
    chunk_size: ChunkSize,
    chunk: ChunkIndex,
    buffer: &mut [u8],
) -> Result<[u8; 32], Fault> {
    let plan = HashPlan::Blake3 {
        chunk,
        chunk_size,
        file_len: file.len,
    };
    let mut hasher = ChunkHasher::new(&plan);
    let range = chunk_size.range(chunk, file.len);
    read_range(&*file.file, range, buffer, |piece| hasher.update(piece))?;
    Ok(hasher.finish().unwrap_or_default())
}

/// Reads a chunk afresh and computes its value; then looks whether the file is still the version
/// that was opened. Without a hash nothing else tells that the chunk is not what it was.
pub(super) fn rehash(
    source: &Source,
    file: &OpenSource,
    hash: HashKind,
    chunk_size: ChunkSize,
    chunk: ChunkIndex,
    before: Option<[u8; 32]>,
) -> Result<[u8; 32], Fault> {
    let range = chunk_size.range(chunk, file.len);
    let plan = match hash {
        HashKind::Blake3 => HashPlan::Blake3 {
            chunk,
            chunk_size,
            file_len: file.len,
        },
        HashKind::Sha256 => HashPlan::Sha256 {
            before: before.map_or(Sha256State::INITIAL, Sha256State),
            start: range.start,
            file_len: file.len,
        },
        HashKind::None => HashPlan::None,
    };
    source.drop_cache(&*file.file, range);
    let mut hasher = ChunkHasher::new(&plan);
    let mut buffer = vec![0; PIECE_BYTES];
    read_range(&*file.file, range, &mut buffer, |piece| {
        hasher.update(piece)
    })?;
    if !source.unchanged(&*file.file, file.version) {
        return Err(Fault::new(
            FaultCode::SourceChanged,
            "the file was changed while it was copied; copy it again",
        ));
    }
    Ok(hasher.finish().unwrap_or_default())
}

/// Reads a range of a file in pieces. A file that ends early has changed.
pub(super) fn read_range(
    file: &dyn SourceFile,
    range: ByteRange,
    buffer: &mut [u8],
    mut piece: impl FnMut(&[u8]),
) -> Result<(), Fault> {
    let mut at = range.start;
    while at < range.end {
        let want = usize::try_from(range.end - at)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = file
            .read_at(&mut buffer[..want], at)
            .map_err(|error| read_fault(&error))?;
        if read == 0 {
            return Err(became_shorter());
        }
        piece(&buffer[..read]);
        at += read as u64;
    }
    Ok(())
}

pub(super) fn became_shorter() -> Fault {
    Fault::new(FaultCode::SourceChanged, "the file became shorter")
}

/// What a failed read of a source means to the peer.
pub(super) fn read_fault(error: &std::io::Error) -> Fault {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        return Fault::new(
            FaultCode::SourceChanged,
            "the file became shorter while it was read",
        );
    }
    Fault::new(FaultCode::Storage, format!("reading failed: {error}"))
}
