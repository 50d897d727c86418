//! From the BLAKE3 values of chunks to the file's digest.

use std::collections::BTreeMap;

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

use super::Value;
use crate::units::{ByteRange, ChunkIndex, ChunkRange, ChunkSize};

/// Zeros are hashed in pieces of this many bytes; enough for the widest vectors.
const ZEROS_BYTES: usize = 64 << 10;
static ZEROS: [u8; ZEROS_BYTES] = [0; ZEROS_BYTES];

/// Merges the values of a file's chunks, in whatever order they come, to its digest.
///
/// Siblings are merged as soon as both are there, so what is held follows the number of gaps
/// between the chunks seen (times the depth of the tree at most), not the number of chunks.
#[derive(Clone, Debug)]
pub struct RootBuilder {
    chunk_size: ChunkSize,
    file_len: u64,
    /// At least 1: an empty file has one proof too.
    chunks: u64,
    missing: u64,
    /// Disjoint subtrees by their first chunk; none has its sibling here.
    nodes: BTreeMap<u64, Node>,
}

/// A subtree: 2^level chunks from an index that is a multiple of that, or fewer at the end of the
/// file. There it stands at the lowest level at which it has a left sibling, or is the root.
#[derive(Clone, Copy, Debug)]
struct Node {
    level: u32,
    value: Value,
}

/// Why a value was not taken. What was there before stays as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RootError {
    /// The file has no such chunk.
    #[error("chunk {chunk} is not in a file of {chunks} chunks")]
    OutOfRange {
        /// The chunk.
        chunk: u64,
        /// How many there are.
        chunks: u64,
    },
    /// The chunk's value is there already.
    #[error("the value of chunk {chunk} came twice")]
    Duplicate {
        /// The chunk.
        chunk: u64,
    },
}

impl RootBuilder {
    /// For a file of `file_len` bytes, with no chunk seen yet.
    pub fn new(chunk_size: ChunkSize, file_len: u64) -> Self {
        let chunks = chunk_size.count(file_len).max(1);
        Self {
            chunk_size,
            file_len,
            chunks,
            missing: chunks,
            nodes: BTreeMap::new(),
        }
    }

    /// Takes the value of a chunk as [`super::ChunkHasher`] computes it. An empty file's one value
    /// is that of chunk 0; it may be left out.
    ///
    /// # Errors
    /// The chunk is not in the file, or its value came before.
    pub fn add(&mut self, chunk: ChunkIndex, value: Value) -> Result<(), RootError> {
        let index = chunk.0;
        if index >= self.chunks {
            return Err(RootError::OutOfRange {
                chunk: index,
                chunks: self.chunks,
            });
        }
        self.check_unseen(ChunkRange {
            start: index,
            end: index + 1,
        })?;
        self.missing -= 1;
        self.insert(index, Node { level: 0, value });
        Ok(())
    }

    /// Takes a range of chunks that hold only zeros, without being told their values.
    ///
    /// Values depend on where a chunk lies, so each of its bytes is hashed; a caller that must stay
    /// responsive passes a huge hole in parts. An empty range changes nothing.
    ///
    /// # Errors
    /// A chunk is not in the file, or its value came before.
    pub fn add_hole(&mut self, hole: ChunkRange) -> Result<(), RootError> {
        if hole.start >= hole.end {
            return Ok(());
        }
        if hole.end > self.chunks {
            return Err(RootError::OutOfRange {
                chunk: hole.end - 1,
                chunks: self.chunks,
            });
        }
        self.check_unseen(hole)?;
        self.missing -= hole.end - hole.start;
        let mut start = hole.start;
        while start < hole.end {
            let level = self.level_of_largest(start, hole.end);
            let value = self.zeros_value(start, level);
            self.insert(start, Node { level, value });
            start = self.end_of(start, level);
        }
        Ok(())
    }

    /// How many chunks have not been seen.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// The file's digest, once no chunk is missing.
    pub fn finish(&self) -> Option<Value> {
        if self.missing == 0 {
            self.nodes.get(&0).map(|root| root.value)
        } else if self.file_len == 0 {
            Some(blake3::hash(&[]).into())
        } else {
            None
        }
    }

    fn check_unseen(&self, range: ChunkRange) -> Result<(), RootError> {
        // Nodes are disjoint, so only the last that starts before the range's end can reach into it.
        match self.nodes.range(..range.end).next_back() {
            Some((&start, node)) if self.end_of(start, node.level) > range.start => {
                Err(RootError::Duplicate {
                    chunk: start.max(range.start),
                })
            }
            _ => Ok(()),
        }
    }

    /// Puts a subtree in and merges upwards as far as siblings are there.
    fn insert(&mut self, mut start: u64, mut node: Node) {
        while !self.is_root(start, node.level) {
            let sibling = start ^ (1 << node.level);
            if sibling < self.chunks {
                let other = match self.nodes.get(&sibling) {
                    Some(other) if other.level == node.level => *other,
                    _ => break,
                };
                self.nodes.remove(&sibling);
                let (left, right) = if start < sibling {
                    (node, other)
                } else {
                    (other, node)
                };
                start = start.min(sibling);
                node.value = if self.is_root(start, node.level + 1) {
                    merge_subtrees_root(&left.value, &right.value, Mode::Hash).into()
                } else {
                    merge_subtrees_non_root(&left.value, &right.value, Mode::Hash)
                };
            }
            // Without a sibling, at the end of the file, a subtree is its parent.
            node.level += 1;
        }
        self.nodes.insert(start, node);
    }

    fn is_root(&self, start: u64, level: u32) -> bool {
        start == 0 && self.end_of(start, level) == self.chunks
    }

    /// One past a subtree's last chunk.
    fn end_of(&self, start: u64, level: u32) -> u64 {
        // Chunks are at least 64 KiB, so there are at most 2^48 of them and levels end there.
        (start + (1 << level)).min(self.chunks)
    }

    /// The level of the largest subtree that starts at `start` and ends by `end`.
    fn level_of_largest(&self, start: u64, end: u64) -> u32 {
        let mut level = 0;
        while self.end_of(start, level) < self.chunks
            && start.is_multiple_of(2 << level)
            && self.end_of(start, level + 1) <= end
        {
            level += 1;
        }
        level
    }

    fn zeros_value(&self, start: u64, level: u32) -> Value {
        let end = self.end_of(start, level);
        let bytes = ByteRange {
            start: start * self.chunk_size.bytes(),
            end: self
                .chunk_size
                .range(ChunkIndex(end - 1), self.file_len)
                .end,
        };
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(bytes.start);
        let mut left = bytes.len();
        while left > 0 {
            // At most the length of an array in memory, so the cast keeps the value.
            #[allow(clippy::cast_possible_truncation)]
            let piece = left.min(ZEROS_BYTES as u64) as usize;
            hasher.update(&ZEROS[..piece]);
            left -= piece as u64;
        }
        if self.is_root(start, level) {
            hasher.finalize().into()
        } else {
            hasher.finalize_non_root()
        }
    }
}

#[cfg(test)]
// Lengths in tests fit every integer.
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use super::*;
    use crate::integrity::{ChunkHasher, HashPlan};

    const SIZE: ChunkSize = ChunkSize::MIN;
    const CHUNK: u64 = 64 << 10;

    fn value(chunk: u64, file: &[u8]) -> Value {
        let chunk = ChunkIndex(chunk);
        let file_len = file.len() as u64;
        let range = SIZE.range(chunk, file_len);
        let mut hasher = ChunkHasher::new(&HashPlan::Blake3 {
            chunk,
            chunk_size: SIZE,
            file_len,
        });
        hasher.update(&file[range.start as usize..range.end as usize]);
        hasher.finish().unwrap()
    }

    #[test]
    fn an_empty_file_needs_no_value_and_takes_one() {
        let empty: Value = blake3::hash(&[]).into();
        let mut root = RootBuilder::new(SIZE, 0);
        assert_eq!(root.finish(), Some(empty));
        root.add(ChunkIndex(0), value(0, &[])).unwrap();
        assert_eq!(root.finish(), Some(empty));
        assert_eq!(
            root.add(ChunkIndex(0), empty),
            Err(RootError::Duplicate { chunk: 0 })
        );
        let out = Err(RootError::OutOfRange {
            chunk: 1,
            chunks: 1,
        });
        assert_eq!(root.add(ChunkIndex(1), empty), out);
    }

    #[test]
    fn wrong_indexes_are_refused_and_change_nothing() {
        let file = vec![9; 5 * CHUNK as usize + 1];
        let mut root = RootBuilder::new(SIZE, file.len() as u64);
        for chunk in [1, 0, 5] {
            root.add(ChunkIndex(chunk), value(chunk, &file)).unwrap();
        }
        for chunk in [0, 1, 5] {
            let twice = Err(RootError::Duplicate { chunk });
            assert_eq!(root.add(ChunkIndex(chunk), [0; 32]), twice);
        }
        for chunk in [6, u64::MAX] {
            let out = Err(RootError::OutOfRange { chunk, chunks: 6 });
            assert_eq!(root.add(ChunkIndex(chunk), [0; 32]), out);
        }
        let hole = |start, end| ChunkRange { start, end };
        assert_eq!(
            root.add_hole(hole(1, 3)),
            Err(RootError::Duplicate { chunk: 1 })
        );
        assert_eq!(
            root.add_hole(hole(2, 6)),
            Err(RootError::Duplicate { chunk: 5 })
        );
        assert_eq!(
            root.add_hole(hole(2, 7)),
            Err(RootError::OutOfRange {
                chunk: 6,
                chunks: 6
            })
        );
        assert_eq!(root.add_hole(hole(3, 3)), Ok(()));
        assert_eq!((root.missing(), root.finish()), (3, None));
        for chunk in [4, 2, 3] {
            root.add(ChunkIndex(chunk), value(chunk, &file)).unwrap();
        }
        assert_eq!(root.finish(), Some(blake3::hash(&file).into()));
    }

    #[test]
    fn the_largest_file_overflows_nothing() {
        let last = SIZE.count(u64::MAX) - 1;
        let mut root = RootBuilder::new(SIZE, u64::MAX);
        for chunk in [last, 0, last - 1] {
            root.add(ChunkIndex(chunk), [1; 32]).unwrap();
        }
        root.add_hole(ChunkRange {
            start: last - 3,
            end: last - 1,
        })
        .unwrap();
        assert_eq!(root.finish(), None);
    }

    #[test]
    fn memory_follows_gaps_not_chunks() {
        const CHUNKS: u64 = 100_000;
        let mut root = RootBuilder::new(SIZE, CHUNKS * CHUNK);
        let mut most = 0;
        // Two runs that grow towards each other.
        for step in 0..CHUNKS / 2 {
            root.add(ChunkIndex(step), [1; 32]).unwrap();
            root.add(ChunkIndex(CHUNKS - 1 - step), [2; 32]).unwrap();
            most = most.max(root.nodes.len());
        }
        assert!(most <= 2 * 17, "{most} nodes");
        assert_eq!(root.nodes.len(), 1);
        assert!(root.finish().is_some());
    }

    #[test]
    fn a_file_of_zeros_is_hashed_from_one_hole() {
        for len in [
            1,
            CHUNK - 1,
            CHUNK,
            CHUNK + 1,
            7 * CHUNK,
            8 * CHUNK,
            13 * CHUNK + 77,
        ] {
            let mut root = RootBuilder::new(SIZE, len);
            root.add_hole(ChunkRange {
                start: 0,
                end: SIZE.count(len),
            })
            .unwrap();
            let expected = blake3::hash(&vec![0; len as usize]).into();
            assert_eq!(root.finish(), Some(expected), "{len}");
        }
    }
}
