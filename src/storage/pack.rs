//! Laying many small files into one piece of memory.
//!
//! In: handles and memory. Out: which file lies where, its proofs, and what could not be had. A file
//! is opened, read and looked at again right away: what is in a pack was a file's content while
//! nothing changed it.

use std::fs::File;
use std::io;

use super::error::StorageError;
use super::source::{Location, Source, read_at};
use super::status::Status;
use super::version::version_of;
use crate::ids::EntryId;
use crate::integrity::proofs;
use crate::manifest::Version;
use crate::units::ByteRange;
use crate::wire::message::{ChunkDigest, GrantPart};
use crate::wire::{Fault, FaultCode};

/// How often a file is read before it counts as changing all the time.
const READS_MAX: usize = 2;

/// What lies in a pack.
#[derive(Debug, Default)]
pub struct PackFilled {
    /// The files that are in it, back to back.
    pub parts: Vec<GrantPart>,
    /// Their proofs.
    pub digests: Vec<ChunkDigest>,
    /// The files that can't be had.
    pub failed: Vec<(EntryId, Fault)>,
    /// Files that grew since they were listed, so that they don't fit any more: they go into
    /// another pack, or travel alone.
    pub unfit: Vec<EntryId>,
    /// Bytes of the memory that are used, from its start.
    pub used_len: u64,
}

impl Source {
    /// Reads the files into `memory`, in this order.
    pub fn fill_pack(&self, entries: &[EntryId], memory: &mut [u8]) -> PackFilled {
        let mut pack = PackFilled::default();
        let mut used = 0;
        for &entry in entries {
            match self.read_whole(entry, &mut memory[used..]) {
                Ok(Some((version, len))) => {
                    let bytes = &memory[used..used + len];
                    proofs(
                        self.options.hash,
                        self.options.chunk,
                        bytes,
                        |chunk, value| {
                            pack.digests.push(ChunkDigest {
                                entry,
                                chunk: chunk.0,
                                value,
                            });
                        },
                    );
                    pack.parts.push(part(entry, version, used, len));
                    used += len;
                }
                Ok(None) => pack.unfit.push(entry),
                Err(error) => pack.failed.push((entry, error.fault())),
            }
        }
        pack.used_len = used as u64;
        pack
    }

    /// A file's version and length, its bytes at the start of `room`; `None` if it does not fit.
    fn read_whole(
        &self,
        entry: EntryId,
        room: &mut [u8],
    ) -> Result<Option<(Version, usize)>, StorageError> {
        let location = self.location(entry)?;
        for _ in 0..READS_MAX {
            match self.read_once(&location, room)? {
                Reading::Whole(version, len) => return Ok(Some((version, len))),
                Reading::Unfit => return Ok(None),
                Reading::Changed => {}
            }
        }
        let text = "it changed while it was read; copy it again when nothing writes to it";
        Err(StorageError::refused(
            "read",
            location.path(),
            FaultCode::SourceChanged,
            text,
        ))
    }

    fn read_once(&self, location: &Location, room: &mut [u8]) -> Result<Reading, StorageError> {
        let (file, before) = self.open_at(location)?;
        let file = File::from(file);
        let room = match usize::try_from(before.len) {
            Ok(len) if len <= room.len() => &mut room[..len],
            _ => return Ok(Reading::Unfit),
        };
        let failed = |error: io::Error| StorageError::new("read", location.path(), error);
        let read = read_full(&file, room).map_err(failed)?;
        let after = Status::of(&file).map_err(|errno| failed(errno.into()))?;
        if read < room.len() || !before.same_content(&after) {
            return Ok(Reading::Changed);
        }
        Ok(Reading::Whole(version_of(&before), read))
    }
}

enum Reading {
    Whole(Version, usize),
    Unfit,
    Changed,
}

fn read_full(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match read_at(file, &mut buffer[done..], done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

fn part(entry: EntryId, version: Version, used: usize, len: usize) -> GrantPart {
    let file_len = len as u64;
    let data = ByteRange {
        start: 0,
        end: file_len,
    };
    GrantPart {
        entry,
        version,
        file_len,
        file_offset: 0,
        region_offset: used as u64,
        len: file_len,
        extents: if data.is_empty() {
            Vec::new()
        } else {
            vec![data]
        },
        last: true,
        packed: true,
    }
}
