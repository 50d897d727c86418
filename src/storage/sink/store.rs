//! Small files out of a pack: written whole and committed in groups.
//!
//! In: entries with all their bytes, already proved. Out: what became of each. A small file costs
//! as few calls into the kernel as there can be: create, lock, look, write, times, rename, close. Its
//! hidden name is random; the lock says that somebody is at work on it, and ends with the process,
//! so that what is left without a lock can be swept.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::commit::{Staged, StagedFile};
use super::directory::{Handle, Parent};
use super::part::RACES_MAX;
use super::{Job, Results, Sink, State, in_place, not_wanted};
use crate::ids::EntryId;
use crate::manifest::Name;
use crate::storage::calls::{create, ftruncate, unlinkat, write};
use crate::storage::descriptors::Share;
use crate::storage::error::StorageError;
use crate::storage::leftover::{Lock, lock};
use crate::storage::status::Status;
use crate::wire::{Fault, FaultCode};

/// Files of a group that is not synced: only descriptors are spent on it.
const UNSYNCED_GROUP_FILES: usize = 16;
/// Descriptors that every group may take, for its files and the directories that they are in; more
/// only while the process has them to spare.
const GROUP_DESCRIPTORS_MIN: usize = 8;

/// A file of a pack.
#[derive(Clone, Copy, Debug)]
pub struct PackFile<'a> {
    /// The entry, which [`Sink::place`] wanted.
    pub id: EntryId,
    /// Its whole content, proved.
    pub bytes: &'a [u8],
}

impl Sink {
    /// Writes and publishes small files as groups. What fails leaves the old file as it was.
    ///
    /// One result for each file, in no particular order.
    pub fn store_pack(&self, files: &[PackFile<'_>]) -> Results {
        let group_files = if self.sync {
            self.group_files_max
        } else {
            UNSYNCED_GROUP_FILES
        };
        let mut results = Vec::with_capacity(files.len());
        let mut files = files.iter();
        while !files.as_slice().is_empty() {
            let mut share = self.descriptors.share(GROUP_DESCRIPTORS_MIN);
            let group = self.stage_some(&mut files, group_files.max(1), &mut share, &mut results);
            self.commit(group, &mut results);
        }
        results
    }

    /// Takes files off the front until the group has `files_max` or no more descriptors.
    fn stage_some(
        &self,
        files: &mut std::slice::Iter<'_, PackFile<'_>>,
        files_max: usize,
        share: &mut Share,
        results: &mut Results,
    ) -> Vec<Staged> {
        let mut group: Vec<Staged> = Vec::with_capacity(files.len().min(files_max));
        let mut last: Option<(EntryId, Arc<Handle>)> = None;
        let mut held = 0;
        // The next file takes its own descriptor, and may be the first one in another directory.
        while group.len() < files_max && share.fit(held + 2) == held + 2 {
            let at_it = files.clone();
            let Some(file) = files.next() else { break };
            let (job, state) = match self.take_for_job(file.id) {
                Ok(taken) => taken,
                Err(fault) => {
                    results.push((file.id, Err(fault)));
                    continue;
                }
            };
            if !matches!(state, State::Wanted) {
                self.give_back(file.id, state);
                results.push((file.id, Err(not_wanted(file.id))));
                continue;
            }
            match self.stage(file, job, &mut last) {
                Ok(staged) => {
                    let same = |other: &Staged| Arc::ptr_eq(&other.directory, &staged.directory);
                    held += if group.last().is_some_and(same) { 1 } else { 2 };
                    group.push(staged);
                }
                Err(fault) => {
                    self.give_back(file.id, State::Wanted);
                    // Too many open files: the group's come back when it is committed.
                    if fault.code == FaultCode::Busy && !group.is_empty() {
                        *files = at_it;
                        break;
                    }
                    results.push((file.id, Err(fault)));
                }
            }
        }
        group
    }

    fn stage(
        &self,
        file: &PackFile<'_>,
        job: Job,
        last: &mut Option<(EntryId, Arc<Handle>)>,
    ) -> Result<Staged, Fault> {
        self.check_running()?;
        let file_id = file.id;
        let directory = match (&job.parent, &last) {
            (Parent::Entry(id), Some((other, directory))) if id == other => directory.clone(),
            (parent, _) => {
                let directory = self.handle(parent, job.name.as_bytes())?;
                if let Parent::Entry(id) = parent {
                    *last = Some((*id, directory.clone()));
                }
                directory
            }
        };
        let mode = self.rules.exact_mode(job.metadata.mode, job.existing_mode);
        if let Some(seen) = &job.in_place {
            let (file, inode) =
                self.patiently(|| write_over(&directory, &job, seen, file.bytes))?;
            return Ok(Staged {
                entry: file_id,
                job,
                directory,
                file: StagedFile::Over(file, inode),
                mode,
            });
        }
        // Otherwise the kernel makes the right mode itself, by umask or inherited access list.
        let created = mode.map_or(job.metadata.mode & 0o777, |_| 0o600);
        let (made, hidden) = self
            .write_new(&directory, created, file.bytes)
            .map_err(|errno| StorageError::new("write", directory.shown(&job.name), errno))?;
        let file_of = StagedFile::Small(made, hidden);
        Ok(Staged {
            entry: file.id,
            job,
            directory,
            file: file_of,
            mode,
        })
    }

    /// Creates a file with this content, or nothing.
    fn write_new(
        &self,
        directory: &Handle,
        mode: u32,
        bytes: &[u8],
    ) -> rustix::io::Result<(OwnedFd, Name)> {
        let mode = Mode::from_raw_mode(mode);
        for _ in 0..RACES_MAX {
            let hidden = self.unique.next();
            let Some(file) = create_locked(directory, &hidden, mode)? else {
                continue;
            };
            if let Err(errno) = write_all(&file, bytes) {
                let _ = unlinkat(directory, hidden.as_bytes(), AtFlags::empty());
                return Err(errno);
            }
            return Ok((file, hidden));
        }
        Err(Errno::BUSY)
    }
}

/// Creates a file, locked. `None`: in the moment before it was locked somebody took it for a
/// leftover.
fn create_locked(
    directory: &Handle,
    hidden: &Name,
    mode: Mode,
) -> rustix::io::Result<Option<OwnedFd>> {
    let file = create(directory, hidden.as_bytes(), OFlags::WRONLY, mode)?;
    let is_ours = match lock(&file) {
        Ok(Lock::Taken) => Status::of(&file).map(|made| made.links > 0),
        Ok(Lock::Busy) => Ok(false),
        Ok(Lock::None) => Ok(true),
        Err(errno) => Err(errno),
    };
    if is_ours.is_err() {
        let _ = unlinkat(directory, hidden.as_bytes(), AtFlags::empty());
    }
    Ok(is_ours?.then_some(file))
}

/// Writes a small file where it stands.
fn write_over(
    directory: &Handle,
    job: &Job,
    seen: &Status,
    bytes: &[u8],
) -> Result<(OwnedFd, (u64, u64)), Fault> {
    let (file, status) = in_place::open(directory, &job.name, seen)?;
    let inode = (status.device, status.inode);
    let written = write_all(&file, bytes).and_then(|()| ftruncate(&file, bytes.len() as u64));
    match written {
        Ok(()) => Ok((file, inode)),
        Err(errno) => {
            let error = StorageError::new("write in place", directory.shown(&job.name), errno);
            Err(Fault::from(error).of_mixture())
        }
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match write(file, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
