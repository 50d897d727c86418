//! Answering a peer's READs: the bytes of files, read and hashed while hot.

use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{Advice, fadvise, fstatfs};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::events::LaneEvent;
use super::regions::{Exposed, ReadWay, Served};
use super::worker::LaneFile;
use crate::ids::RemoteKey;
use crate::integrity::{ChunkHasher, HashPlan};
use crate::memory::{Pool, Slot};
use crate::storage::SourceFile;
use crate::sys::reactor::{Direction, FileOperation, Reactor, Token};
use crate::transport::{Fill, Source};
use crate::units::{ByteRange, ChunkSize};

/// How far the kernel is asked to read ahead once a file proves to be cold, in bytes.
const AHEAD_BYTES: u64 = 8 << 20;

// File systems whose files are memory: a plain read never waits for a device.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// What a connection is serving.
#[derive(Default)]
pub(super) struct Serving {
    current: Option<Current>,
    run: Option<Run>,
}

/// The request that is open.
struct Current {
    exposed: Arc<Exposed>,
    /// Its first byte in the region.
    offset: u64,
    piece: Piece,
}

/// The piece of the request that is being read.
#[derive(Clone, Copy, Default)]
struct Piece {
    /// Its first byte in the region.
    offset: u64,
    len: usize,
    /// Its bytes were hashed when they were first sent.
    hashed: bool,
}

/// A piece of a file.
struct Target {
    exposed: Arc<Exposed>,
    file: Arc<dyn SourceFile>,
    /// Its first byte in the file.
    position: u64,
    len: usize,
}

/// READs that follow one another through a chunk: what they read is hashed as one.
struct Run {
    key: RemoteKey,
    /// Where it goes on, in the file.
    position: u64,
    chunk_end: u64,
    hasher: ChunkHasher,
}

/// What serving needs of its lane.
pub(super) struct ServeTools<'a> {
    pub(super) token: Token,
    pub(super) pool: &'a Pool,
    pub(super) reactor: &'a mut dyn Reactor<LaneFile>,
}

impl Serving {
    /// Begins a request for what lies at `offset` of `exposed`.
    pub(super) fn open(&mut self, exposed: Arc<Exposed>, offset: u64) -> Source {
        let source = match &exposed.region.content {
            // The table checked that the request lies in the slot.
            Served::Memory { slot, .. } => Source::Memory(
                Arc::clone(slot),
                usize::try_from(offset).unwrap_or(usize::MAX),
            ),
            Served::File { .. } => Source::Filled,
        };
        self.current = Some(Current {
            exposed,
            offset,
            piece: Piece::default(),
        });
        source
    }

    /// Reads `len` bytes from byte `at` of the request on; see `Host::fill` (`hashed` is false) and
    /// `Host::refill`.
    pub(super) fn fill(
        &mut self,
        tools: &mut ServeTools<'_>,
        at: u64,
        len: usize,
        hashed: bool,
    ) -> Fill {
        let Some(current) = &mut self.current else {
            return Fill::Failed;
        };
        let Some(slot) = tools.pool.take() else {
            return Fill::NoSlot;
        };
        current.piece = Piece {
            offset: current.offset + at,
            len,
            hashed,
        };
        match self.read_on(tools, slot, 0) {
            Ok(Some(slot)) => Fill::Now(slot),
            Ok(None) => Fill::Later,
            Err(error) => {
                self.report(error);
                Fill::Failed
            }
        }
    }

    /// A posted read ended. The piece, if it is whole now; `Ok(None)` if more had to be posted. A
    /// source that failed is told to the session here.
    pub(super) fn read_done(
        &mut self,
        tools: &mut ServeTools<'_>,
        operation: FileOperation<LaneFile>,
        result: io::Result<usize>,
    ) -> Result<Option<Slot>, SourceFailed> {
        let FileOperation { slot, range, .. } = operation;
        let outcome = match result {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => self.read_on(tools, slot, range.start + read),
            Err(error) if is_transient(&error) => self.read_plainly(slot, range.start),
            Err(error) => Err(error),
        };
        outcome.map_err(|error| {
            self.report(error);
            SourceFailed
        })
    }

    /// The request that was open is over.
    pub(super) fn close(&mut self) {
        self.current = None;
    }

    /// Reads the rest of the current piece, of which `filled` bytes are in the slot.
    fn read_on(
        &mut self,
        tools: &mut ServeTools<'_>,
        mut slot: Slot,
        mut filled: usize,
    ) -> io::Result<Option<Slot>> {
        let Some(Target {
            exposed,
            file,
            position,
            len,
        }) = self.target()
        else {
            return Err(no_file());
        };
        while filled < len {
            match exposed.read_way.get() {
                Some(ReadWay::Plain) => return self.read_plainly(slot, filled),
                Some(ReadWay::Post) => return self.post(tools, slot, filled),
                None => {}
            }
            let rest = &mut slot[filled..len];
            match try_read(file.as_fd(), rest, position + filled as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => filled += read,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    read_ahead(&exposed, &*file, position + filled as u64);
                    return self.post(tools, slot, filled);
                }
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    // Should another lane have set it, it saw the same file.
                    let _ = exposed.read_way.set(read_way(file.as_fd()));
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.hash(&slot[..len]);
        Ok(Some(slot))
    }

    /// The same by calls that may wait: for files in memory, and where there is no other way.
    fn read_plainly(&mut self, mut slot: Slot, mut filled: usize) -> io::Result<Option<Slot>> {
        let Some(Target {
            file,
            position,
            len,
            ..
        }) = self.target()
        else {
            return Err(no_file());
        };
        while filled < len {
            match file.read_at(&mut slot[filled..len], position + filled as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => filled += read,
            }
        }
        self.hash(&slot[..len]);
        Ok(Some(slot))
    }

    fn post(
        &mut self,
        tools: &mut ServeTools<'_>,
        slot: Slot,
        filled: usize,
    ) -> io::Result<Option<Slot>> {
        let Some(Target {
            exposed,
            file,
            position,
            len,
        }) = self.target()
        else {
            return Err(no_file());
        };
        let operation = FileOperation {
            tag: tools.token,
            direction: Direction::Read,
            file: LaneFile::Source {
                file,
                _exposed: exposed,
            },
            slot,
            range: filled..len,
            offset: position + filled as u64,
        };
        match tools.reactor.post(operation) {
            Ok(()) => Ok(None),
            Err(operation) => self.read_plainly(operation.slot, filled),
        }
    }

    /// What the current piece is read from.
    fn target(&self) -> Option<Target> {
        let current = self.current.as_ref()?;
        let Served::File {
            file, file_offset, ..
        } = &current.exposed.region.content
        else {
            return None;
        };
        let position = file_offset + current.piece.offset;
        let (exposed, file) = (Arc::clone(&current.exposed), Arc::clone(file));
        Some(Target {
            exposed,
            file,
            position,
            len: current.piece.len,
        })
    }

    /// Hashes the current piece, and tells the value of each chunk that ends in it and was sent
    /// from its start.
    fn hash(&mut self, mut bytes: &[u8]) {
        let Some(Current { exposed, piece, .. }) = &self.current else {
            return;
        };
        let Served::File {
            entry,
            file_offset,
            file_len,
            hash: Some(chunk_size),
            ..
        } = &exposed.region.content
        else {
            return;
        };
        if piece.hashed {
            return;
        }
        let key = exposed.region.key;
        let mut position = file_offset + piece.offset;
        while !bytes.is_empty() {
            let run = match self.run.take() {
                Some(run) if run.key == key && run.position == position => Some(run),
                _ => Run::start(key, position, *chunk_size, *file_len),
            };
            let chunk = chunk_size.index_of(position);
            let chunk_end = chunk_size.range(chunk, *file_len).end;
            let left = usize::try_from(chunk_end.saturating_sub(position)).unwrap_or(usize::MAX);
            if left == 0 {
                // Beyond the length that the file was granted with: no chunk.
                return;
            }
            let (head, tail) = bytes.split_at(left.min(bytes.len()));
            bytes = tail;
            position += head.len() as u64;
            let Some(mut run) = run else { continue };
            run.hasher.update(head);
            run.position = position;
            if position < run.chunk_end {
                self.run = Some(run);
            } else if let Some(value) = run.hasher.finish() {
                let (region, entry) = (exposed.region.region, *entry);
                (exposed.events)(LaneEvent::Hashed {
                    region,
                    entry,
                    chunk,
                    value,
                });
            }
        }
    }

    fn report(&self, error: io::Error) {
        let Some(Current { exposed, .. }) = &self.current else {
            return;
        };
        let Served::File { entry, .. } = &exposed.region.content else {
            return;
        };
        let (region, entry) = (exposed.region.region, *entry);
        (exposed.events)(LaneEvent::SourceFailed {
            region,
            entry,
            error,
        });
    }
}

/// The session was told why.
pub(super) struct SourceFailed;

impl Run {
    fn start(key: RemoteKey, position: u64, chunk_size: ChunkSize, file_len: u64) -> Option<Self> {
        let chunk = chunk_size.index_of(position);
        let ByteRange { start, end } = chunk_size.range(chunk, file_len);
        let plan = HashPlan::Blake3 {
            chunk,
            chunk_size,
            file_len,
        };
        (start == position && start < end).then(|| Self {
            key,
            position,
            chunk_end: end,
            hasher: ChunkHasher::new(&plan),
        })
    }
}

/// Reads what is in the page cache.
fn try_read(file: BorrowedFd<'_>, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
    preadv2(
        file,
        &mut [IoSliceMut::new(bytes)],
        offset,
        ReadWriteFlags::NOWAIT,
    )
}

/// How to read a file that can't be read without waiting.
fn read_way(file: BorrowedFd<'_>) -> ReadWay {
    match fstatfs(file).map(|status| u64::try_from(status.f_type).unwrap_or(0)) {
        Ok(TMPFS_MAGIC | RAMFS_MAGIC) => ReadWay::Plain,
        _ => ReadWay::Post,
    }
}

/// Has the kernel fetch what will be asked for next, once for each stretch of a region.
fn read_ahead(exposed: &Exposed, file: &dyn SourceFile, position: u64) {
    let until = exposed.advised_until.load(Ordering::Relaxed);
    if position + AHEAD_BYTES / 2 <= until {
        return;
    }
    let Served::File {
        file_offset, len, ..
    } = &exposed.region.content
    else {
        return;
    };
    let end = (position + AHEAD_BYTES).min(file_offset + len);
    exposed
        .advised_until
        .store(position + AHEAD_BYTES, Ordering::Relaxed);
    // Advice only: without it the reads that follow wait longer.
    let _ = fadvise(
        file.as_fd(),
        position,
        NonZeroU64::new(end.saturating_sub(position)),
        Advice::WillNeed,
    );
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
    )
}

fn no_file() -> io::Error {
    io::Error::other("no file is being served")
}
