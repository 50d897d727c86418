//! Settling entries, and finishing directories when all below them is settled.
//!
//! In: the word that entries are done with. Out: directories with their final mode and times, from
//! the bottom up, each told once. Times come last of all, because making names in a directory
//! changes them; modes come that late because a directory may be closed to its own owner.

use std::sync::Arc;

use rustix::fs::Mode;

use super::apply::{OWNER_ALL, times};
use super::compare::is_same_time;
use super::directory::{Directory, Handle, Parent};
use super::{Sink, State};
use crate::ids::EntryId;
use crate::storage::calls::{fchmod, fsync, futimens};
use crate::storage::error::StorageError;
use crate::storage::status::Status;
use crate::wire::Fault;
use crate::wire::message::Outcome;

/// Directories whose syncs are put together: the first one's journal commit serves the others.
const SYNCED_TOGETHER_MAX: usize = 64;

/// A directory that is finished and not synced.
struct Unsynced {
    /// Where its outcome stands.
    at: usize,
    handle: Arc<Handle>,
    /// What holds its name, if that is not durable.
    named: Option<(Parent, Arc<Handle>)>,
}

impl Sink {
    /// These entries are done with, however they ended. Tells the directories that this finished.
    ///
    /// Entries that [`Sink::place`] settled itself may be told here too; that changes nothing. A
    /// part file that was not published is removed.
    pub fn settled(&self, entries: &[EntryId]) -> Vec<(EntryId, Outcome)> {
        let mut ready = Vec::new();
        let mut dropped = Vec::new();
        {
            let mut table = self.table();
            for entry in entries {
                let Some(pending) = table.pending.remove(entry) else {
                    continue;
                };
                table.names.remove(&pending.key);
                ready.extend(table.directories.settle(&pending.job.parent));
                // Removing a part file is not done under the lock.
                dropped.push(pending.state);
            }
        }
        for state in dropped {
            // Lanes and workers may hold it for a moment longer.
            if let State::Open(part) = state {
                part.remove();
            }
        }
        self.finish(ready)
    }

    /// Finishes directories and, where that was the last thing missing, those above.
    pub(super) fn finish(&self, mut ready: Vec<EntryId>) -> Vec<(EntryId, Outcome)> {
        let mut outcomes = Vec::new();
        let mut unsynced = Vec::new();
        while let Some(id) = ready.pop() {
            let handle = self.handle(&Parent::Entry(id), b"");
            let Some(directory) = self.table().directories.take(id) else {
                continue;
            };
            let answer = handle.and_then(|handle| {
                let outcome = self.finish_one(id, &handle, &directory);
                let unchanged = matches!(outcome, Ok(Outcome::Unchanged));
                let written = directory.touched || !unchanged;
                if written && self.sync && handle.media.can_sync() {
                    // Of one that could not be finished as well: what it holds counts on its name.
                    let named = match directory.is_durable() {
                        true => None,
                        false => Some(self.handle(&directory.parent, &handle.path)?),
                    };
                    unsynced.push(Unsynced {
                        at: outcomes.len(),
                        handle,
                        named: named.map(|above| (directory.parent.clone(), above)),
                    });
                }
                outcome
            });
            let outcome = answer.unwrap_or_else(Outcome::Failed);
            outcomes.push((id, outcome));
            if unsynced.len() >= SYNCED_TOGETHER_MAX {
                self.sync_finished(&mut unsynced, &mut outcomes);
            }
            ready.extend(self.table().directories.settle(&directory.parent));
        }
        self.sync_finished(&mut unsynced, &mut outcomes);
        outcomes
    }

    /// Syncs what they hold and look like, and the names of those in which no file was published: with
    /// a file, a directory's name is made durable before.
    fn sync_finished(&self, unsynced: &mut Vec<Unsynced>, outcomes: &mut [(EntryId, Outcome)]) {
        let named = unsynced.iter().filter_map(|of| of.named.as_ref());
        let names = self.sync_names(named.map(|(parent, above)| (parent, above)));
        for Unsynced { at, handle, named } in unsynced.drain(..) {
            let synced = match &names {
                Err(fault) if named.is_some() => Err(fault.clone()),
                _ => fsync(&*handle)
                    .map_err(|errno| StorageError::new("sync", &*handle.path, errno).into()),
            };
            if let Err(fault) = synced
                && !matches!(outcomes[at].1, Outcome::Failed(_))
            {
                outcomes[at].1 = Outcome::Failed(fault);
            }
        }
    }

    /// Gives a directory its final metadata. Tells whether it is new, or anything about it changed
    /// that is not what it holds.
    fn finish_one(
        &self,
        id: EntryId,
        handle: &Handle,
        directory: &Directory,
    ) -> Result<Outcome, Fault> {
        let shown = &*handle.path;
        let failed = |op| move |errno| StorageError::new(op, shown, errno);
        let now = Status::of(handle).map_err(failed("look at"))?;
        let metadata = &directory.metadata;
        let mode = self
            .rules
            .directory_mode(metadata.mode, &directory.before, directory.made);
        // Opened up for this run only, so giving the mode back is no change.
        let before = directory.before;
        let opened_up =
            !directory.made && now.mode != before.mode && now.mode == before.mode | OWNER_ALL;
        let seen = if opened_up {
            Status {
                mode: before.mode,
                ..now
            }
        } else {
            now
        };
        let keeps = self.only_adds && !directory.made;
        let updated = !keeps
            && self
                .rules
                .update(handle, shown, metadata, &seen, mode, self.notes.of(id))?;
        if opened_up && !updated {
            fchmod(handle, Mode::from_raw_mode(before.mode)).map_err(failed("set the mode of"))?;
        }
        if keeps {
            return Ok(Outcome::Unchanged);
        }
        if directory.touched || !is_same_time(now.mtime, metadata.mtime) {
            futimens(handle, &times(metadata.mtime)).map_err(failed("set the time of"))?;
        }
        Ok(if directory.made {
            Outcome::Published {
                bytes: 0,
                digest: None,
            }
        } else if updated || !is_same_time(before.mtime, metadata.mtime) {
            Outcome::Updated
        } else {
            Outcome::Unchanged
        })
    }
}
