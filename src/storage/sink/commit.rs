//! From a complete hidden file to the final name: the group commit.
//!
//! In: files whose bytes are all written. Out: for each, whether it stands durably under its name.
//! The steps are taken for all files together - times and attributes, sync, owner and mode, rename,
//! one sync per directory - so that one journal commit of the file system serves the group. A sync
//! that fails fails the group, since nobody can tell whose bytes were lost; any other failure fails
//! its file. What fails before the rename leaves the old file as it was.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, RenameFlags, statat};
use rustix::io::Errno;

use super::directory::{Handle, Parent};
use super::part::{Made, PartFile};
use super::{Identity, Job, OlderCopy, Results, Sink, State, in_place, not_wanted};
use crate::ids::EntryId;
use crate::manifest::Name;
use crate::storage::calls::{
    fdatasync, forget_cached, fsync, renameat, renameat_with, start_writeback, unlinkat,
};
use crate::storage::error::StorageError;
use crate::storage::file::SinkFile;
use crate::storage::part_name::stem_of;
use crate::storage::status::Status;
use crate::wire::message::RemarkKind;
use crate::wire::{Fault, FaultCode};

/// A complete file under its hidden name.
pub(super) struct Staged {
    pub(super) entry: EntryId,
    pub(super) job: Job,
    pub(super) directory: Arc<Handle>,
    pub(super) file: StagedFile,
    /// The mode to give it; `None`: it was created with the right one.
    pub(super) mode: Option<u32>,
}

/// Who removes the hidden name if it comes to nothing.
pub(super) enum StagedFile {
    /// A part file, by itself.
    Part(Arc<PartFile>),
    /// A small file under a name that only this call knows.
    Small(OwnedFd, Name),
    /// A small file that was written where it stands, and which inode it is.
    Over(OwnedFd, (u64, u64)),
}

impl StagedFile {
    /// Which inode it is if it was written where it stands.
    fn over(&self) -> Option<(u64, u64)> {
        match self {
            Self::Part(part) => part.over_inode(),
            Self::Small(..) => None,
            Self::Over(_, inode) => Some(*inode),
        }
    }
}

impl Staged {
    fn shown(&self) -> Vec<u8> {
        self.directory.shown(&self.job.name)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.file {
            StagedFile::Part(part) => part.file(),
            StagedFile::Small(file, _) | StagedFile::Over(file, _) => file.as_fd(),
        }
    }

    fn hidden(&self) -> &Name {
        match &self.file {
            StagedFile::Part(part) => part.name(),
            StagedFile::Small(_, name) => name,
            StagedFile::Over(..) => &self.job.name,
        }
    }

    fn discard(&self) {
        match &self.file {
            StagedFile::Part(part) => part.remove(),
            StagedFile::Small(_, name) => {
                // The name is random and was created exclusively a moment ago.
                let _ = unlinkat(&self.directory, name.as_bytes(), AtFlags::empty());
            }
            StagedFile::Over(..) => {}
        }
    }
}

impl Sink {
    /// Makes the part file of a wanted entry, `file_len` bytes long, all holes.
    ///
    /// # Errors
    /// `Busy` while another transfer writes the same name; `Denied` when something that is not ours
    /// stands in the part file's place; what the file system says.
    pub fn prepare(&self, entry: EntryId, file_len: u64) -> Result<Arc<dyn SinkFile>, Fault> {
        Ok(self.prepare_as(entry, file_len, None)?)
    }

    /// The same with what the file will be of: then it goes on with what an interrupted run left of
    /// exactly that, and can be gone on with itself. The version and the rest are the granted ones;
    /// the destination's name is known here.
    ///
    /// # Errors
    /// As for [`Self::prepare`].
    pub(crate) fn prepare_as(
        &self,
        entry: EntryId,
        file_len: u64,
        identity: Option<&dyn Fn(u64) -> Identity>,
    ) -> Result<Arc<PartFile>, Fault> {
        self.check_running()?;
        let (job, state) = self.take_for_job(entry)?;
        if !matches!(state, State::Wanted) {
            self.give_back(entry, state);
            return Err(not_wanted(entry));
        }
        let exact = self.rules.exact_mode(job.metadata.mode, job.existing_mode);
        let natural = exact.is_none().then_some(job.metadata.mode);
        let identity = identity.map(|of| of(stem_of(&job.name)));
        let made = self.patiently(|| {
            let directory = self.handle(&job.parent, job.name.as_bytes())?;
            if let Some(seen) = &job.in_place {
                let compared = job.older.map(|(_, chunks)| (self.chunk, chunks));
                let part = PartFile::over(directory, &job.name, seen, file_len, compared)?;
                let changed = false;
                return Ok(Made { part, changed });
            }
            let older = job.older.and_then(|(seen, chunks)| {
                OlderCopy::open(&directory, &job.name, &seen, (self.chunk, chunks))
            });
            let made = PartFile::create(directory, &job.name, file_len, natural, identity, older)?;
            Ok(made)
        });
        match made {
            Ok(made) => {
                if made.changed {
                    self.notes.of(entry).add(RemarkKind::BegunAnew);
                }
                let mut part = made.part.counted(|| self.descriptors.hold(), &self.writer);
                part.by_content = job.compared.is_some_and(|there| there.len == file_len);
                let part = Arc::new(part);
                self.give_back(entry, State::Open(part.clone()));
                Ok(part)
            }
            Err(fault) => {
                self.give_back(entry, State::Wanted);
                Err(fault)
            }
        }
    }

    /// Publishes one file whose part file is complete.
    pub fn publish(&self, entry: EntryId) -> Result<(), Fault> {
        let mut results = self.publish_all(&[entry]);
        results
            .pop()
            .map_or_else(|| Err(not_wanted(entry)), |(_, result)| result)
    }

    /// Publishes files whose part files are complete, as one group. What fails is given up: its
    /// part file is removed.
    pub fn publish_all(&self, entries: &[EntryId]) -> Results {
        let mut results = Vec::with_capacity(entries.len());
        let mut group = Vec::with_capacity(entries.len());
        for &entry in entries {
            match self.take_for_job(entry) {
                Ok((job, State::Open(part))) => {
                    let exact = self.rules.exact_mode(job.metadata.mode, job.existing_mode);
                    let mode = Some(exact.unwrap_or(part.natural_mode()));
                    let directory = part.directory().clone();
                    let file = StagedFile::Part(part);
                    group.push(Staged {
                        entry,
                        job,
                        directory,
                        file,
                        mode,
                    });
                }
                Ok((_, state)) => {
                    self.give_back(entry, state);
                    results.push((entry, Err(not_wanted(entry))));
                }
                Err(fault) => results.push((entry, Err(fault))),
            }
        }
        self.commit(group, &mut results);
        results
    }

    /// Commits a group of complete files and tells what became of each.
    pub(super) fn commit(&self, mut group: Vec<Staged>, results: &mut Results) {
        self.each(&mut group, results, |staged| {
            self.check_running()?;
            let shown = staged.shown();
            let metadata = &staged.job.metadata;
            if staged.file.over().is_some() {
                return self.bring_up_written(staged, &shown);
            }
            let list_dropped = self.rules.apply_content_metadata(
                staged.fd(),
                self.rules.preserve.xattrs && staged.directory.has_default_list(),
                &shown,
                metadata,
                self.notes.of(staged.entry),
            )?;
            if list_dropped && let Some(mode) = staged.mode {
                staged.mode = Some(self.rules.mode_without_list(mode, metadata));
            }
            Ok(())
        });
        if let Err(fault) = self.sync_files(&group) {
            self.fail_all(group, &fault, results);
            return;
        }
        self.each(&mut group, results, |staged| {
            self.check_running()?;
            let shown = staged.shown();
            let metadata = &staged.job.metadata;
            let notes = self.notes.of(staged.entry);
            if let Some(inode) = staged.file.over() {
                let (directory, name) = (&staged.directory, &staged.job.name);
                return Ok(in_place::check_still(directory, name, inode, &shown)?);
            }
            self.rules
                .apply_access(staged.fd(), &shown, metadata, staged.mode, notes)?;
            let (directory, name) = (&staged.directory, &staged.job.name);
            rename(directory, staged.hidden(), name, self.must_be_new(), &shown)?;
            if let StagedFile::Part(part) = &staged.file {
                part.renamed();
            }
            Ok(())
        });
        let named = group
            .iter()
            .map(|staged| (&staged.job.parent, &staged.directory));
        let failure = self.sync_names(named).err();
        for staged in group {
            let linked = staged.job.linked;
            let result = match &failure {
                Some(fault) => Err(fault.clone()),
                None if linked => self.remember(staged.entry, linked, staged.shown()),
                None => Ok(()),
            };
            self.give_back(staged.entry, State::Done);
            results.push((staged.entry, result));
        }
    }

    /// A file that was written where it stands gets what its source has beside content. Its time says that
    /// it is complete, so its bytes are on the disk before.
    fn bring_up_written(&self, staged: &Staged, shown: &[u8]) -> Result<(), Fault> {
        let file = staged.fd();
        if self.sync && staged.directory.media.can_sync() {
            fdatasync(file).map_err(|errno| {
                // The next run compares it, and must see what the disk has and not what was lost.
                forget_cached(file);
                StorageError::new("sync", shown, errno)
            })?;
        }
        let status =
            Status::of(file).map_err(|errno| StorageError::new("look at", shown, errno))?;
        let metadata = &staged.job.metadata;
        let mode = staged.mode.unwrap_or(status.mode);
        let notes = self.notes.of(staged.entry);
        self.bring_up(file, shown, metadata, &status, mode, notes)?;
        Ok(())
    }

    /// Takes one step for every file; those that fail leave the group.
    fn each(
        &self,
        group: &mut Vec<Staged>,
        results: &mut Results,
        mut step: impl FnMut(&mut Staged) -> Result<(), Fault>,
    ) {
        group.retain_mut(|staged| match step(staged) {
            Ok(()) => true,
            Err(fault) => {
                self.give_up(staged, Err(fault), results);
                false
            }
        });
    }

    fn fail_all(&self, group: Vec<Staged>, fault: &Fault, results: &mut Results) {
        for staged in group {
            self.give_up(&staged, Err(fault.clone()), results);
        }
    }

    fn give_up(&self, staged: &Staged, result: Result<(), Fault>, results: &mut Results) {
        // What was complete and only not published any more is not to be fetched again.
        if let (StagedFile::Part(part), Err(_)) = (&staged.file, self.check_running()) {
            part.keep();
        }
        staged.discard();
        self.give_back(staged.entry, State::Done);
        results.push((staged.entry, result));
    }

    fn sync_files(&self, group: &[Staged]) -> Result<(), Fault> {
        if !self.sync {
            return Ok(());
        }
        let durable = || {
            group
                .iter()
                .filter(|staged| staged.directory.media.can_sync())
        };
        if group.len() > 1 {
            durable().for_each(|staged| start_writeback(staged.fd()));
        }
        for staged in durable() {
            self.check_running()?;
            let failed = |errno| StorageError::new("sync", staged.shown(), errno);
            if let Err(errno) = fsync(staged.fd()) {
                forget_cached(staged.fd());
                return Err(failed(errno).into());
            }
            if let StagedFile::Part(part) = &staged.file
                && let Some(errno) = part.sync_failure()
            {
                return Err(failed(errno).into());
            }
        }
        Ok(())
    }

    /// Makes new names durable: syncs each directory once, and those above that hold the names of
    /// directories which this run made.
    pub(super) fn sync_names<'a>(
        &self,
        named: impl Iterator<Item = (&'a Parent, &'a Arc<Handle>)>,
    ) -> Result<(), Fault> {
        if !self.sync {
            return Ok(());
        }
        let mut synced = Synced::default();
        let mut durable = Vec::new();
        for (parent, directory) in named {
            if !synced.sync(directory)? {
                continue;
            }
            let undurable = self.table().directories.undurable(parent);
            for (id, above) in undurable {
                let above = self.handle(&above, &directory.path)?;
                synced.sync(&above)?;
                durable.push(id);
            }
        }
        let mut table = self.table();
        durable
            .into_iter()
            .for_each(|id| table.directories.set_durable(id));
        Ok(())
    }
}

/// Directories that were synced, by file system and number; none is held open for it.
#[derive(Default)]
struct Synced(HashSet<(u64, u64)>);

impl Synced {
    /// Syncs a directory on a medium that can be synced, unless that was done. Tells whether it was
    /// done now.
    fn sync(&mut self, directory: &Handle) -> Result<bool, StorageError> {
        if !directory.media.can_sync() || !self.0.insert(directory.inode) {
            return Ok(false);
        }
        fsync(directory).map_err(|errno| StorageError::new("sync", &*directory.path, errno))?;
        Ok(true)
    }
}

/// Renames a hidden name to the final one. With `must_be_new` nothing is replaced.
pub(super) fn rename(
    directory: &Handle,
    hidden: &Name,
    name: &Name,
    must_be_new: bool,
    shown: &[u8],
) -> Result<(), StorageError> {
    let (from, to) = (hidden.as_bytes(), name.as_bytes());
    let answer = if must_be_new {
        match renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE) {
            // Not every file system has the flag; looking first leaves a moment open.
            Err(Errno::INVAL | Errno::NOSYS) => {
                match statat(directory, to, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(_) => Err(Errno::EXIST),
                    Err(_) => renameat(directory, from, directory, to),
                }
            }
            answer => answer,
        }
    } else {
        renameat(directory, from, directory, to)
    };
    answer.map_err(|errno| match errno {
        Errno::EXIST if must_be_new => {
            let text = "it appeared while the transfer ran and was not to be replaced";
            StorageError::refused("write", shown, FaultCode::Exists, text)
        }
        errno => StorageError::new("rename to", shown, errno),
    })
}
