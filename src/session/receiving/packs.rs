//! Small files that came in a pack: proved and stored together, on a worker.
//!
//! In: a pack's bytes, what lies where in it, what must prove it. Out: what became of each file. It
//! knows nothing of how the pack came, nor of what follows.

use crate::engine::receiver::{PackFile, PackResult};
use crate::ids::EntryId;
use crate::integrity;
use crate::storage::sink::{self, Sink};
use crate::units::ChunkSize;
use crate::wire::message::HashKind;
use crate::wire::{Fault, FaultCode};

/// Proves the files of a pack and stores those that are right.
pub(super) fn store_pack(
    sink: &Sink,
    pack: &[u8],
    hash: HashKind,
    chunk: ChunkSize,
    files: &[PackFile],
    digests: &[[u8; 32]],
) -> Vec<(EntryId, PackResult)> {
    let mut results = Vec::with_capacity(files.len());
    let mut right = Vec::with_capacity(files.len());
    let mut values = Vec::with_capacity(files.len());
    for file in files {
        let Some(bytes) = slice(pack, file.offset, file.len) else {
            let fault = Fault::new(FaultCode::Protocol, "a file lies outside its pack");
            results.push((file.entry, PackResult::Failed(fault)));
            continue;
        };
        let expected = digests.get(file.digests.clone()).unwrap_or(&[]);
        let Some(digest) = prove(bytes, hash, chunk, expected) else {
            results.push((file.entry, PackResult::Mismatch));
            continue;
        };
        right.push(sink::PackFile {
            id: file.entry,
            bytes,
        });
        values.push(digest);
    }
    // What is there already is compared with what came: small files travel to be compared.
    let kept = sink.keep_packed(&right);
    for (entry, result) in &kept {
        let result = match result {
            Ok(updated) => PackResult::Kept { updated: *updated },
            Err(fault) => PackResult::Failed(fault.clone()),
        };
        results.push((*entry, result));
    }
    let is_new = |entry| !kept.iter().any(|(other, _)| *other == entry);
    let (right, values): (Vec<_>, Vec<_>) = right
        .into_iter()
        .zip(values)
        .filter(|(file, _)| is_new(file.id))
        .unzip();
    let stored = sink.store_pack(&right);
    for ((entry, result), digest) in stored.into_iter().zip(values) {
        let result = match result {
            Ok(()) => PackResult::Stored { digest },
            Err(fault) => PackResult::Failed(fault),
        };
        results.push((entry, result));
    }
    results
}

fn slice(bytes: &[u8], offset: u64, len: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    bytes.get(start..end)
}

/// Whether a small file's bytes match the proofs of its chunks: `None` if not, else its digest if
/// there is a hash.
#[allow(clippy::option_option)]
fn prove(
    bytes: &[u8],
    hash: HashKind,
    chunk_size: ChunkSize,
    expected: &[[u8; 32]],
) -> Option<Option<[u8; 32]>> {
    if hash == HashKind::None {
        return Some(None);
    }
    let mut proofs = Vec::with_capacity(expected.len());
    integrity::proofs(hash, chunk_size, bytes, |_, value| proofs.push(value));
    if proofs != expected {
        return None;
    }
    let digest = match (hash, proofs.as_slice()) {
        (HashKind::Blake3, [_, _, ..]) => integrity::digest(hash, bytes),
        (_, proofs) => proofs.last().copied(),
    };
    Some(digest)
}
