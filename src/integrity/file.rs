//! Whole files: one pass front to back, or all at once for bytes that lie in memory.

use sha2::{Digest, Sha256};

use super::chunk::{ChunkHasher, HashPlan};
use super::{Sha256Ahead, Value};
use crate::units::{ChunkIndex, ChunkSize};
use crate::wire::message::HashKind;

/// Hashes a file front to back in pieces.
#[derive(Clone)]
pub struct FileHasher(State);

#[derive(Clone)]
// Files in memory go through `digest`; this one lives as long as a file takes to be read.
#[allow(clippy::large_enum_variant)]
enum State {
    Blake3(blake3::Hasher),
    Sha256(Sha256),
}

impl FileHasher {
    /// A hasher before a file's first byte; `None` if the kind is [`HashKind::None`].
    pub fn new(kind: HashKind) -> Option<Self> {
        match kind {
            HashKind::Blake3 => Some(Self(State::Blake3(blake3::Hasher::new()))),
            HashKind::Sha256 => Some(Self(State::Sha256(Sha256::new()))),
            HashKind::None => None,
        }
    }

    /// Hashes the bytes that follow.
    pub fn update(&mut self, piece: &[u8]) {
        match &mut self.0 {
            State::Blake3(hasher) => {
                hasher.update(piece);
            }
            State::Sha256(hasher) => hasher.update(piece),
        }
    }

    /// The file's digest, if it ends here.
    pub fn finish(self) -> Value {
        match self.0 {
            State::Blake3(hasher) => hasher.finalize().into(),
            State::Sha256(hasher) => hasher.finalize().into(),
        }
    }
}

/// The digest of a file that lies in memory; `None` if the kind is [`HashKind::None`].
pub fn digest(kind: HashKind, file: &[u8]) -> Option<Value> {
    match kind {
        HashKind::Blake3 => Some(blake3::hash(file).into()),
        HashKind::Sha256 => Some(Sha256::digest(file).into()),
        HashKind::None => None,
    }
}

/// Tells the proof of each chunk of a file that lies in memory, in order; an empty file has one.
/// Nothing is told if the kind is [`HashKind::None`].
pub fn proofs(
    kind: HashKind,
    chunk_size: ChunkSize,
    file: &[u8],
    mut tell: impl FnMut(ChunkIndex, Value),
) {
    let file_len = file.len() as u64;
    let chunks = chunk_size.count(file_len);
    if chunks <= 1 {
        // The common case by far, and the quickest way for it.
        if let Some(value) = digest(kind, file) {
            tell(ChunkIndex(0), value);
        }
        return;
    }
    let mut ahead = Sha256Ahead::new();
    let indexes = (0..chunks).map(ChunkIndex);
    for (chunk, bytes) in indexes.zip(file.chunks(1 << chunk_size.log2())) {
        match kind {
            HashKind::None => return,
            HashKind::Blake3 => {
                let mut hasher = ChunkHasher::new(&HashPlan::Blake3 {
                    chunk,
                    chunk_size,
                    file_len,
                });
                hasher.update(bytes);
                if let Some(value) = hasher.finish() {
                    tell(chunk, value);
                }
            }
            HashKind::Sha256 => match ahead.update(bytes) {
                Some(state) if chunk.0 + 1 < chunks => tell(chunk, state.0),
                _ => tell(chunk, ahead.clone().finish()),
            },
        }
    }
}
