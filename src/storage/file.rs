//! What a lane sees of storage: open files, read or written at positions.
//!
//! The storage layer opens, names, sizes, publishes and closes files; a lane only moves bytes
//! between them and connections. Both traits are blocking and take `&self`, so that one file can be
//! worked on by several lanes at once; the descriptors let a lane try a read that must not wait, or
//! hand the operation to io_uring, which keeps its own reference to the object until it is done.
//! Nothing here knows paths, transfers, peers or digests.

use std::io;
use std::os::fd::BorrowedFd;

use crate::units::ByteRange;

/// A regular file that is being sent.
pub trait SourceFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes at `offset`; 0 only at the end of the file (or for an
    /// empty buffer). May wait for a device. Restarts after a signal by itself.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The descriptor that [`Self::read_at`] reads: the same bytes at the same offsets. It stays
    /// open for as long as `self` lives.
    fn as_fd(&self) -> BorrowedFd<'_>;
}

/// A part file that is being filled.
pub trait SinkFile: Send + Sync {
    /// Writes all of `bytes` at `offset` through the page cache. May wait for a device.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// The way around the page cache, if this file has one that works; the same on every call.
    ///
    /// Whoever writes through it keeps memory, offset and length on multiples of
    /// [`DirectIo::alignment_bytes`] and writes the rest with [`Self::write_at`]. The two must not
    /// meet in one aligned block at the same time.
    fn direct(&self) -> Option<DirectIo<'_>> {
        None
    }

    /// Reserves space for `ranges` of the file, so that a full disk shows before bytes are moved.
    /// File systems that can't reserve are no error.
    fn allocate(&self, ranges: &[ByteRange]) -> io::Result<()>;
}

/// A second descriptor of a file, opened with `O_DIRECT`.
#[derive(Clone, Copy, Debug)]
pub struct DirectIo<'a> {
    /// The descriptor; open for as long as the file object lives.
    pub fd: BorrowedFd<'a>,
    /// Memory address, file offset and length of a write are multiples of this many bytes: a power
    /// of two, at most 4096 (larger needs mean no direct IO).
    pub alignment_bytes: u32,
}
