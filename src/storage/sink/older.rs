//! The older copy of a file that is being received: what of it can be had without its bytes travelling.
//!
//! In: the name that the file will get, what was seen there. Out: the open copy, or a part file that
//! shares its bytes, and how many chunks of the new file lie in it. The copy is only read; what it is
//! worth is settled by whoever hashes what then lies in the part file. Nothing here knows digests.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{Errno, pread};

use super::directory::Handle;
use crate::manifest::Name;
use crate::storage::at;
use crate::storage::calls::{ftruncate, ioctl_ficlone};
use crate::storage::status::Status;
use crate::units::ChunkSize;

/// An open older copy.
#[derive(Debug)]
pub(crate) struct OlderCopy {
    file: OwnedFd,
    len: u64,
    chunk: ChunkSize,
    /// No more of them are compared.
    chunks_max: u64,
}

/// Where the bytes of an older copy are to be had.
#[derive(Debug)]
pub(crate) enum Older {
    /// In the part file itself, where they belong: it began as a clone.
    Within {
        /// Chunks before this one.
        chunks: u64,
    },
    /// In the copy, which may change at any time.
    Beside {
        /// The copy.
        copy: OlderCopy,
        /// Chunks before this one.
        chunks: u64,
    },
}

/// How many chunks of a file of `len` bytes an older one of `older_len` has whole.
pub(super) fn whole_chunks(chunk: ChunkSize, older_len: u64, len: u64) -> u64 {
    if older_len >= len {
        chunk.count(len)
    } else {
        older_len / chunk.bytes()
    }
}

impl OlderCopy {
    /// Opens the copy that was seen, if it still has the name and this process may read it.
    pub(super) fn open(
        directory: &Handle,
        name: &Name,
        seen: &Status,
        (chunk, chunks_max): (ChunkSize, u64),
    ) -> Option<Self> {
        let (file, status) = at::open_regular(directory, name).ok()?;
        status.same_file(seen).then_some(Self {
            file,
            len: status.len,
            chunk,
            chunks_max,
        })
    }

    /// Sees to it that an empty part file is `len` bytes long, and takes the copy's bytes into it without
    /// moving any, where the file system can.
    pub(super) fn give_to(self, part: impl AsFd, len: u64) -> Result<Older, Errno> {
        let chunks = self.chunks(len);
        if ioctl_ficlone(&part, &self.file).is_err() {
            ftruncate(&part, len)?;
            return Ok(Older::Beside { copy: self, chunks });
        }
        // What is not compared must not stay: where the source has holes nothing is written.
        let kept = chunks.saturating_mul(self.chunk.bytes()).min(len);
        ftruncate(&part, kept)?;
        ftruncate(&part, len)?;
        Ok(Older::Within { chunks })
    }

    /// How many chunks of a file of `len` bytes are to be compared.
    fn chunks(&self, len: u64) -> u64 {
        whole_chunks(self.chunk, self.len, len).min(self.chunks_max)
    }

    /// For a part file that has bytes of its own already.
    pub(super) fn beside(self, len: u64) -> Older {
        let chunks = self.chunks(len);
        Older::Beside { copy: self, chunks }
    }

    /// Reads from `offset` on; less than `buffer` holds only at the end of the copy.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        read_at(&self.file, buffer, offset)
    }
}

impl Older {
    /// Chunks before this one can be compared.
    pub(crate) fn chunks(&self) -> u64 {
        match self {
            Self::Within { chunks } | Self::Beside { chunks, .. } => *chunks,
        }
    }
}

/// Reads from `offset` on; less than `buffer` holds only at the end of the file.
pub(super) fn read_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match pread(&file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(filled)
}
