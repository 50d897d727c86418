//! Files whose content was compared and found to be what the source has: they stay, and only their
//! metadata is brought up to date.
//!
//! In: entries whose content is told apart by digest, the word that all of it is the same. Out:
//! whether the file stayed, and whether anything about it changed. What is looked at here is that the
//! file is still the one that was compared; its content was proved by whoever asks.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::apply::times;
use super::compare::is_same_time;
use super::directory::Handle;
use super::older::read_at;
use super::store::PackFile;
use super::{Job, Sink, State};
use crate::ids::EntryId;
use crate::manifest::Metadata;
use crate::storage::at;
use crate::storage::calls::{fsync, futimens};
use crate::storage::error::StorageError;
use crate::storage::status::Status;
use crate::units::ByteRange;
use crate::wire::Fault;

use super::notes::NotesOf;

/// Holes are looked at in pieces of this many bytes where a file system keeps none.
const PIECE_BYTES: usize = 256 << 10;

impl Sink {
    /// All data of this entry, whose part file is complete, is what the file under its name has. That
    /// file stays if it has zeros in all `holes` and is still the one that was compared; then the part
    /// file is of no use any more. Tells whether its metadata changed; nothing if it has to be replaced.
    pub(crate) fn keep_compared(
        &self,
        entry: EntryId,
        holes: &[ByteRange],
    ) -> Result<Option<bool>, Fault> {
        let (job, state) = self.take_for_job(entry)?;
        let kept = match (&state, &job.compared) {
            (State::Open(_), Some(seen)) => {
                self.keep_same(entry, &job, seen, |file| are_zeros(file, holes))
            }
            _ => Ok(None),
        };
        match (kept, state) {
            (Ok(Some(updated)), State::Open(part)) => {
                part.remove();
                self.give_back(entry, State::Done);
                Ok(Some(updated))
            }
            (answer, state) => {
                self.give_back(entry, state);
                answer
            }
        }
    }

    /// Those of a pack's files, already proved, that are under their names as they came. Each with
    /// whether its metadata changed, or why that failed.
    pub(crate) fn keep_packed(
        &self,
        files: &[PackFile<'_>],
    ) -> Vec<(EntryId, Result<bool, Fault>)> {
        let mut kept = Vec::new();
        for file in files.iter().filter(|_| self.reuse.checksum) {
            let Ok((job, state)) = self.take_for_job(file.id) else {
                continue;
            };
            let answer = match (&state, &job.compared) {
                (State::Wanted, Some(seen)) => {
                    self.keep_same(file.id, &job, seen, |old| has_bytes(old, file.bytes))
                }
                _ => Ok(None),
            };
            match answer {
                Ok(None) => self.give_back(file.id, state),
                Ok(Some(updated)) => {
                    self.give_back(file.id, State::Done);
                    kept.push((file.id, Ok(updated)));
                }
                Err(fault) => {
                    self.give_back(file.id, state);
                    kept.push((file.id, Err(fault)));
                }
            }
        }
        kept
    }

    fn keep_same(
        &self,
        entry: EntryId,
        job: &Job,
        seen: &Status,
        is_same: impl FnOnce(&OwnedFd) -> bool,
    ) -> Result<Option<bool>, Fault> {
        self.check_running()?;
        let directory = self.handle(&job.parent, job.name.as_bytes())?;
        let Ok((file, status)) = at::open_regular(&*directory, &job.name) else {
            return Ok(None);
        };
        if !status.same_content(seen) || !is_same(&file) {
            return Ok(None);
        }
        let shown = directory.shown(&job.name);
        let mode = self.rules.exact_mode(job.metadata.mode, None);
        let mode = mode.unwrap_or(status.mode);
        let notes = self.notes.of(entry);
        let updated = self.bring_up(&file, &shown, &job.metadata, &status, mode, notes)?;
        if updated {
            self.sync_file(&file, &directory, &shown)?;
        }
        self.remember(entry, job.linked, shown)?;
        Ok(Some(updated))
    }

    /// Gives a file that stays what its source has beside content. Tells whether anything differed.
    pub(super) fn bring_up(
        &self,
        file: impl AsFd,
        shown: &[u8],
        metadata: &Metadata,
        before: &Status,
        mode: u32,
        notes: NotesOf<'_>,
    ) -> Result<bool, Fault> {
        let rules = &self.rules;
        let mut updated = rules.update(&file, shown, metadata, before, mode, notes)?;
        if !is_same_time(before.mtime, metadata.mtime) {
            futimens(&file, &times(metadata.mtime))
                .map_err(|errno| StorageError::new("set the time of", shown, errno))?;
            updated = true;
        }
        Ok(updated)
    }

    fn sync_file(&self, file: &OwnedFd, directory: &Handle, shown: &[u8]) -> Result<(), Fault> {
        if self.sync && directory.media.can_sync() {
            fsync(file).map_err(|errno| StorageError::new("sync", shown, errno))?;
        }
        Ok(())
    }
}

/// Whether a file has nothing but zeros there.
pub(super) fn are_zeros(file: &OwnedFd, ranges: &[ByteRange]) -> bool {
    let mut piece = Vec::new();
    ranges
        .iter()
        .all(|range| is_zeros(file, *range, &mut piece).unwrap_or(false))
}

fn is_zeros(file: &OwnedFd, range: ByteRange, piece: &mut Vec<u8>) -> std::io::Result<bool> {
    let mut at = range.start;
    while at < range.end {
        // Data only: a huge hole is not read.
        at = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.max(at),
            Err(Errno::NXIO) => return Ok(true),
            Err(_) => at,
        };
        if at >= range.end {
            return Ok(true);
        }
        let len = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        piece.resize(len.min(PIECE_BYTES), 0);
        let read = read_at(file, piece, at)?;
        if piece[..read].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        if read < piece.len() {
            return Ok(true);
        }
        at += read as u64;
    }
    Ok(true)
}

/// Whether a file, which is as long, has these bytes.
fn has_bytes(file: &OwnedFd, bytes: &[u8]) -> bool {
    let mut there = vec![0; bytes.len()];
    read_at(file, &mut there, 0).is_ok_and(|read| there[..read] == *bytes)
}
