//! Quantities with a meaning: chunk sizes, chunk indexes, byte ranges, time stamps.
//!
//! All lengths and offsets are 64 bits wide everywhere; `usize` is for slices in memory only.

/// The unit of scheduling, proof and repair: a power of two from 64 KiB to 16 MiB, one per transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkSize(u8);

impl ChunkSize {
    /// 64 KiB.
    pub const MIN: Self = Self(16);
    /// 1 MiB. Large enough that per-chunk costs vanish, small enough for a warm cache.
    pub const DEFAULT: Self = Self(20);
    /// 16 MiB.
    pub const MAX: Self = Self(24);

    /// The chunk size with 2^`log2` bytes, if that is within [`Self::MIN`]..=[`Self::MAX`].
    pub const fn from_log2(log2: u8) -> Option<Self> {
        if log2 >= Self::MIN.0 && log2 <= Self::MAX.0 {
            Some(Self(log2))
        } else {
            None
        }
    }

    /// The chunk size of exactly `bytes`, if that is a power of two within the limits.
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        if !bytes.is_power_of_two() {
            return None;
        }
        // A u64 has at most 63 trailing zeros, so the cast keeps the value.
        #[allow(clippy::cast_possible_truncation)]
        Self::from_log2(bytes.trailing_zeros() as u8)
    }

    /// log2 of the size in bytes, the form on the wire.
    pub const fn log2(self) -> u8 {
        self.0
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.0
    }

    /// The slowest rate, in bytes a second, at which a chunk takes no longer than it may.
    pub const fn bytes_per_s_min(self) -> u64 {
        self.bytes().div_ceil(crate::limits::CHUNK_LASTS_S_MAX)
    }

    /// How many chunks a file of `len` bytes has; 0 for an empty file.
    pub const fn count(self, len: u64) -> u64 {
        len.div_ceil(self.bytes())
    }

    /// The chunk that holds byte `offset`.
    pub const fn index_of(self, offset: u64) -> ChunkIndex {
        ChunkIndex(offset >> self.0)
    }

    /// The bytes of chunk `index` in a file of `len` bytes; empty past the end.
    pub fn range(self, index: ChunkIndex, len: u64) -> ByteRange {
        let start = index.0.saturating_mul(self.bytes()).min(len);
        let end = start.saturating_add(self.bytes()).min(len);
        ByteRange { start, end }
    }
}

impl Default for ChunkSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The position of a chunk in its file, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkIndex(pub u64);

/// Half-open range of bytes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte; never below `start`.
    pub end: u64,
}

impl ByteRange {
    /// Number of bytes.
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether it holds no byte.
    pub const fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// The part that both ranges share; empty when there is none.
    pub fn intersect(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self {
            start,
            end: self.end.min(other.end).max(start),
        }
    }
}

/// Half-open range of chunks of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkRange {
    /// First chunk.
    pub start: u64,
    /// One past the last chunk.
    pub end: u64,
}

/// A time stamp as file systems keep it: seconds since 1970 (negative before) and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z.
    pub seconds: i64,
    /// 0..=999_999_999, always counted forward.
    pub nanoseconds: u32,
}
