//! One chunk's value, computed while its bytes pass by.

use blake3::hazmat::HasherExt;

use super::Value;
use super::sha256::{Sha256State, Sha256Stream};
use crate::units::{ByteRange, ChunkIndex, ChunkSize};

/// [`ChunkHasher::catch_up`] stops at multiples of this: four times what the widest vectors take
/// at once, and little enough to be still in the cache when its rest has come.
const STRIDE_BYTES: usize = 64 << 10;

/// How a chunk is to be hashed: all that a [`ChunkHasher`] must know beforehand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashPlan {
    /// Not at all.
    #[default]
    None,
    /// As a subtree of the file's BLAKE3 tree.
    Blake3 {
        /// Which chunk; 0 in an empty file, whose one proof is its digest.
        chunk: ChunkIndex,
        /// The transfer's chunk size.
        chunk_size: ChunkSize,
        /// The file's length in bytes: it says how long the chunk is and whether it is the root.
        file_len: u64,
    },
    /// As a link of the file's SHA-256 chain.
    Sha256 {
        /// The state before the chunk.
        before: Sha256State,
        /// Where the chunk starts in the file, in bytes; a multiple of 64.
        start: u64,
        /// The file's length in bytes: a chunk that ends there is the last.
        file_len: u64,
    },
}

/// Hashes one chunk in pieces, front to back. Lives in place: nothing is allocated per chunk.
///
/// Bytes that are not exactly the planned chunk never panic; see [`Self::finish`].
#[derive(Clone)]
pub struct ChunkHasher {
    state: State,
    /// Bytes seen so far.
    hashed: usize,
}

#[derive(Clone)]
// Boxing the large state would cost an allocation per chunk.
#[allow(clippy::large_enum_variant)]
enum State {
    None,
    Blake3 {
        hasher: blake3::Hasher,
        missing: u64,
        root: bool,
    },
    Sha256 {
        stream: Sha256Stream,
        file_len: u64,
    },
    /// The plan named no chunk of its file, or more bytes came than the chunk has.
    Misfit,
}

impl ChunkHasher {
    /// A hasher for the chunk that `plan` names.
    pub fn new(plan: &HashPlan) -> Self {
        let state = match *plan {
            HashPlan::None => State::None,
            HashPlan::Blake3 {
                chunk,
                chunk_size,
                file_len,
            } => State::blake3(chunk, chunk_size, file_len),
            HashPlan::Sha256 {
                before,
                start,
                file_len,
            } => {
                if start.is_multiple_of(64) && start <= file_len {
                    State::Sha256 {
                        stream: Sha256Stream::resume(before, start),
                        file_len,
                    }
                } else {
                    State::Misfit
                }
            }
        };
        Self { state, hashed: 0 }
    }

    /// Hashes the piece that follows. Pieces may have any size; BLAKE3 is at full speed only with
    /// multiples of 64 KiB. Where pieces come as a socket gives them, use [`Self::catch_up`].
    pub fn update(&mut self, piece: &[u8]) {
        let len = piece.len() as u64;
        self.hashed = self.hashed.saturating_add(piece.len());
        let fits = match &mut self.state {
            State::None | State::Misfit => true,
            State::Blake3 {
                hasher, missing, ..
            } => match missing.checked_sub(len) {
                Some(left) => {
                    *missing = left;
                    hasher.update(piece);
                    true
                }
                None => false,
            },
            State::Sha256 { stream, file_len } => {
                let fits = len <= *file_len - stream.position();
                if fits {
                    stream.update(piece);
                }
                fits
            }
        };
        if !fits {
            self.state = State::Misfit;
        }
    }

    /// Hashes what is new in `landed`, which holds the chunk from its first byte on as far as it has
    /// landed. It may leave a tail for the next call, so that odd pieces cost BLAKE3 nothing; the
    /// call that shows the whole chunk leaves none.
    pub fn catch_up(&mut self, landed: &[u8]) {
        let new = landed.len().saturating_sub(self.hashed);
        let end = match &self.state {
            State::Blake3 { missing, .. } if (new as u64) < *missing => {
                landed.len() - landed.len() % STRIDE_BYTES
            }
            _ => landed.len(),
        };
        if let Some(new) = landed.get(self.hashed..end) {
            self.update(new);
        }
    }

    /// Whether the bytes so far can be the whole chunk. For SHA-256, which is not told where the
    /// chunk ends, that is so at the end of the file and between blocks.
    pub fn is_whole(&self) -> bool {
        match &self.state {
            State::None => true,
            State::Blake3 { missing, .. } => *missing == 0,
            State::Sha256 { stream, file_len } => {
                stream.position() == *file_len || stream.state().is_some()
            }
            State::Misfit => false,
        }
    }

    /// The chunk's value; `None` exactly if the plan was [`HashPlan::None`].
    ///
    /// Bytes that are not [whole](Self::is_whole) have no value. They get a random one, because it
    /// differs from whatever a peer can have announced: a lazy comparison still fails.
    pub fn finish(self) -> Option<Value> {
        let whole = self.is_whole();
        let value = match self.state {
            State::None => return None,
            State::Blake3 {
                hasher, root: true, ..
            } if whole => Some(hasher.finalize().into()),
            State::Blake3 { hasher, .. } if whole => Some(hasher.finalize_non_root()),
            State::Sha256 { stream, file_len } if stream.position() == file_len => {
                Some(stream.finish())
            }
            State::Sha256 { stream, .. } => stream.state().map(|state| state.0),
            State::Blake3 { .. } | State::Misfit => None,
        };
        Some(value.unwrap_or_else(crate::sys::random_bytes))
    }
}

impl State {
    fn blake3(chunk: ChunkIndex, chunk_size: ChunkSize, file_len: u64) -> Self {
        let chunks = chunk_size.count(file_len).max(1);
        if chunk.0 >= chunks {
            return Self::Misfit;
        }
        let ByteRange { start, end } = chunk_size.range(chunk, file_len);
        let mut hasher = blake3::Hasher::new();
        // A chunk that exists starts at a multiple of its power-of-two size and is no longer than
        // that, so it is a subtree, as the library demands.
        hasher.set_input_offset(start);
        Self::Blake3 {
            hasher,
            missing: end - start,
            root: chunks == 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: ChunkSize = ChunkSize::MIN;
    const CHUNK: usize = 64 << 10;

    fn blake3(chunk: u64, file_len: u64) -> HashPlan {
        HashPlan::Blake3 {
            chunk: ChunkIndex(chunk),
            chunk_size: SIZE,
            file_len,
        }
    }

    fn sha256(start: u64, file_len: u64) -> HashPlan {
        HashPlan::Sha256 {
            before: Sha256State::INITIAL,
            start,
            file_len,
        }
    }

    fn run(plan: &HashPlan, bytes: &[u8]) -> (bool, Option<Value>) {
        let mut hasher = ChunkHasher::new(plan);
        hasher.update(bytes);
        (hasher.is_whole(), hasher.finish())
    }

    #[test]
    fn no_plan_has_no_value() {
        assert_eq!(run(&HashPlan::None, b"anything"), (true, None));
    }

    #[test]
    fn a_file_of_one_chunk_or_none_is_its_root() {
        for len in [0, 1, CHUNK - 1, CHUNK] {
            let bytes = vec![3; len];
            let root = blake3::hash(&bytes).into();
            assert_eq!(
                run(&blake3(0, len as u64), &bytes),
                (true, Some(root)),
                "{len}"
            );
        }
    }

    #[test]
    fn bytes_that_are_not_the_chunk_match_nothing() {
        let bytes = vec![7; 2 * CHUNK];
        let cases = [
            (blake3(0, 100), 99),
            (blake3(0, 100), 101),
            (blake3(0, 2 * CHUNK as u64), CHUNK - 1),
            (blake3(0, 2 * CHUNK as u64), CHUNK + 1),
            (blake3(1, 2 * CHUNK as u64), 0),
            (blake3(1, 2 * CHUNK as u64), CHUNK + 1),
            (blake3(1, CHUNK as u64), 0),
            (blake3(1, CHUNK as u64), CHUNK),
            (blake3(u64::MAX, u64::MAX), CHUNK),
            (sha256(0, 100), 99),
            (sha256(0, 100), 101),
            (sha256(1, 100), 99),
            (sha256(128, 100), 0),
            (sha256(u64::MAX - 63, u64::MAX), CHUNK),
        ];
        for (plan, len) in cases {
            let (whole, first) = run(&plan, &bytes[..len]);
            let (_, second) = run(&plan, &bytes[..len]);
            assert!(!whole, "{plan:?} with {len}");
            assert!(first.is_some() && second.is_some(), "{plan:?} with {len}");
            assert_ne!(first, second, "{plan:?} with {len}");
        }
    }

    #[test]
    fn a_surplus_is_not_forgotten_by_later_pieces() {
        let mut hasher = ChunkHasher::new(&blake3(0, 10));
        hasher.update(&[0; 11]);
        hasher.update(&[0; 10]);
        assert!(!hasher.is_whole());
    }

    #[test]
    fn the_last_chunk_of_the_largest_file_has_a_value() {
        let chunk = SIZE.count(u64::MAX) - 1;
        let (whole, value) = run(&blake3(chunk, u64::MAX), &vec![1; CHUNK - 1]);
        assert!(whole && value.is_some());
    }
}
