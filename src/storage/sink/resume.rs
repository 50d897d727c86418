//! Going on with a part file that an interrupted run left, and leaving one to go on with.
//!
//! In: a held directory, what a part file is to be of. Out: its journal, open, and what it claims; or
//! that there is nothing to go on with. Both files count only if they are regular, this user's, with
//! one name, and nobody else can write them, and while their lock is ours. Whatever the journal does
//! not claim is emptied first, because holes of the source are not written: they must be zero here.
//! Nothing here proves a chunk; who asked reads it and looks. What can't be trusted is left to the
//! rules of leftovers.

use std::fs::File;
use std::io::BufReader;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, openat};
use rustix::io::{self, Errno};

use super::directory::Handle;
use super::journal::{Appender, Claims, Identity, Record, Unusable};
use crate::manifest::Name;
use crate::storage::calls::{create, fallocate, fchmod, ftruncate, unlinkat, write_all_at};
use crate::storage::leftover::{Leftover, Lock, lock, remove_if_stale};
use crate::storage::part_name::{journal_name, part_name};
use crate::storage::status::Status;
use crate::units::{ByteRange, ChunkIndex};

/// Files below this length are fetched anew rather than gone on with: by the time that a journal is
/// written and proved they are here.
const RESUMED_BYTES_MIN: u64 = 8 << 20;
/// Bits of a mode that let others write.
const OTHERS_WRITE: u32 = 0o022;

/// The open journal of a part file that is being written.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    name: Name,
    inode: (u64, u64),
    appender: Appender,
}

/// A part file that can be gone on with. Its lock is held.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) file: OwnedFd,
    pub(super) status: Status,
    /// The mode that the kernel would give the file if it were made now.
    pub(super) natural_mode: u32,
    pub(super) journal: Journal,
    pub(super) claims: Claims,
}

/// What stands in a part file's place.
#[derive(Debug)]
pub(super) enum Taken {
    /// It can be gone on with.
    Found(Box<Found>),
    /// It is of an earlier state of the source.
    Changed,
    /// Nothing to go on with, whatever it is.
    Nothing,
}

/// Whether a file of this length is worth a journal.
pub(super) fn is_worth_it(len: u64) -> bool {
    #[cfg(test)]
    if crate::storage::calls::disk::is_here() {
        // Many runs of small files find more than a few of large ones.
        return len > crate::limits::PACK_FILE_BYTES_MAX;
    }
    len >= RESUMED_BYTES_MIN
}

/// Takes over what an earlier run left of this part file, if it can be trusted so far.
pub(super) fn take(
    directory: &Handle,
    part: &Name,
    identity: &Identity,
    natural: Option<u32>,
) -> Taken {
    match find(directory, part, identity, natural) {
        Ok(Some(found)) => Taken::Found(Box::new(found)),
        Err(Stop::Changed) => Taken::Changed,
        Ok(None) | Err(Stop::Failed) => Taken::Nothing,
    }
}

enum Stop {
    /// Which error it was does not matter: a file that is not gone on with is made anew, and that
    /// tells what is wrong.
    Failed,
    Changed,
}

impl From<Errno> for Stop {
    fn from(_: Errno) -> Self {
        Self::Failed
    }
}

fn find(
    directory: &Handle,
    part: &Name,
    identity: &Identity,
    natural: Option<u32>,
) -> Result<Option<Found>, Stop> {
    let Some((file, status)) = open_trusted(directory, part)? else {
        return Ok(None);
    };
    // Without a lock nobody knows whether somebody else is writing it.
    if lock(&file)? != Lock::Taken || !is_still(directory, part, &status) {
        return Ok(None);
    }
    let name = journal_name(identity.stem);
    let Some((journal, journal_status)) = open_trusted(directory, &name)? else {
        return Ok(None);
    };
    let journal = File::from(journal);
    let read = match identity.read(BufReader::new(&journal)) {
        Ok(read) => read,
        Err(Unusable::Source) => return Err(Stop::Changed),
        Err(Unusable::Foreign) => return Ok(None),
    };
    if status.len != identity.len || read.claims.is_empty() {
        return Ok(None);
    }
    let natural_mode = match natural {
        Some(mode) => natural_mode(directory, mode)?,
        None => status.mode,
    };
    // A run that was killed while it published may have opened it to others already.
    fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    for range in unclaimed(&read.claims, identity) {
        clear(&file, range)?;
    }
    if journal_status.len != read.appender.len {
        ftruncate(&journal, read.appender.len)?;
    }
    Ok(Some(Found {
        file,
        status,
        natural_mode,
        journal: Journal {
            file: journal,
            name,
            inode: (journal_status.device, journal_status.inode),
            appender: read.appender,
        },
        claims: read.claims,
    }))
}

/// Opens what has this name if it is a file that only this user can have written.
fn open_trusted(directory: &Handle, name: &Name) -> io::Result<Option<(OwnedFd, Status)>> {
    // NONBLOCK: a FIFO put in its place must not hold us up.
    let flags =
        OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(directory, name.as_bytes(), flags, Mode::empty())?;
    let status = Status::of(&file)?;
    let trusted = status.is_file()
        && status.uid == rustix::process::geteuid().as_raw()
        && status.links == 1
        && status.mode & OTHERS_WRITE == 0;
    Ok(trusted.then_some((file, status)))
}

/// The bytes that belong to no claimed chunk.
fn unclaimed(claims: &Claims, identity: &Identity) -> Vec<ByteRange> {
    let mut left = Vec::new();
    let mut start = 0;
    for range in claims.ranges() {
        let begin = identity.chunk.range(ChunkIndex(range.start), identity.len);
        let end = identity
            .chunk
            .range(ChunkIndex(range.end - 1), identity.len);
        if start < begin.start {
            left.push(ByteRange {
                start,
                end: begin.start,
            });
        }
        start = end.end;
    }
    if start < identity.len {
        left.push(ByteRange {
            start,
            end: identity.len,
        });
    }
    left
}

/// Makes a range of a file zeros that take no space.
pub(super) fn clear(file: impl AsFd, range: ByteRange) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        match fallocate(&file, flags, range.start, range.len()) {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
}

/// What the kernel makes of this mode here, by umask or an inherited access list: found out with a
/// file that lives for a moment, since the part file was made by another run.
fn natural_mode(directory: &Handle, mode: u32) -> io::Result<u32> {
    let name = part_name(u64::from_ne_bytes(crate::sys::random_bytes()));
    let mode = Mode::from_raw_mode(mode & 0o777);
    let probe = create(directory, name.as_bytes(), OFlags::RDWR, mode)?;
    let made = Status::of(&probe);
    unlinkat(directory, name.as_bytes(), AtFlags::empty())?;
    Ok(made?.mode)
}

fn is_still(directory: &Handle, name: &Name, seen: &Status) -> bool {
    Status::at(directory, name).is_ok_and(|now| now.same_file(seen))
}

impl Journal {
    /// Begins the journal of a part file; nothing where something stands in its place that is not
    /// a leftover of ours.
    pub(super) fn create(directory: &Handle, identity: &Identity) -> io::Result<Option<Self>> {
        let Some((header, appender)) = identity.begin() else {
            return Ok(None);
        };
        let name = journal_name(identity.stem);
        let private = Mode::RUSR | Mode::WUSR;
        let create = || create(directory, name.as_bytes(), OFlags::RDWR, private);
        let file = match create() {
            // Of a part file that is gone: ours has the lock, so nobody else writes there.
            Err(Errno::EXIST) => match remove_if_stale(directory, &name)? {
                Leftover::Gone | Leftover::Stale(..) => create()?,
                _ => return Ok(None),
            },
            answer => answer?,
        };
        let made = Status::of(&file)?;
        let journal = Self {
            file: File::from(file),
            name,
            inode: (made.device, made.inode),
            appender,
        };
        match write_all_at(&journal.file, &header, 0) {
            Ok(()) => Ok(Some(journal)),
            Err(_) => {
                journal.remove(directory);
                Ok(None)
            }
        }
    }

    /// Adds records. After an error the rest of the journal is not believed, so nothing more is to be
    /// added.
    pub(super) fn append(&mut self, records: &[Record]) -> std::io::Result<()> {
        let at = self.appender.len;
        let bytes = self.appender.append(records);
        write_all_at(&self.file, &bytes, at)
    }

    /// Removes its name, if it still is this file.
    pub(super) fn remove(&self, directory: &Handle) {
        let seen = Status::at(directory, &self.name);
        if seen.is_ok_and(|seen| (seen.device, seen.inode) == self.inode) {
            // What stays is swept once its part file is gone.
            let _ = unlinkat(directory, self.name.as_bytes(), AtFlags::empty());
        }
    }
}
