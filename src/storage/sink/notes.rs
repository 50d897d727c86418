//! What a receiver tells beside outcomes: things that were left out or done otherwise.
//!
//! In: what happened, to which entry. Out: remarks, counted by kind, with the first entries of each.
//! Memory is a few numbers per kind. Nothing here knows words or who reads them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::ids::EntryId;
use crate::limits::REMARK_ENTRIES_MAX;
use crate::wire::message::{Remark, RemarkKind};

/// The notes of one transfer.
#[derive(Debug, Default)]
pub(crate) struct Notes(Mutex<BTreeMap<RemarkKind, Told>>);

/// The notes about one entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotesOf<'a> {
    notes: &'a Notes,
    entry: EntryId,
}

#[derive(Debug, Default)]
struct Told {
    /// Entries since the last call of [`Notes::take`].
    count: u64,
    /// The first of those, while few have been named in all.
    entries: Vec<EntryId>,
    /// How many were named by earlier calls.
    named: usize,
    /// An entry may give the same reason more than once.
    last: Option<EntryId>,
}

impl Notes {
    pub(crate) fn of(&self, entry: EntryId) -> NotesOf<'_> {
        NotesOf { notes: self, entry }
    }

    /// What has been noted since the last call.
    pub(crate) fn take(&self) -> Vec<Remark> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = kinds.iter_mut().filter(|(_, told)| told.count > 0);
        told.map(|(&kind, told)| {
            told.named += told.entries.len();
            Remark {
                kind,
                count: std::mem::take(&mut told.count),
                entries: std::mem::take(&mut told.entries),
            }
        })
        .collect()
    }
}

impl NotesOf<'_> {
    /// This happened to the entry.
    pub(crate) fn add(self, kind: RemarkKind) {
        let mut kinds = self.notes.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = kinds.entry(kind).or_default();
        if told.last.replace(self.entry) == Some(self.entry) {
            return;
        }
        told.count += 1;
        if told.named + told.entries.len() < REMARK_ENTRIES_MAX {
            told.entries.push(self.entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_the_first_are_named_once() {
        let notes = Notes::default();
        for entry in [1, 2, 2, 3] {
            notes.of(EntryId(entry)).add(RemarkKind::LinkCopied);
        }
        let told = |count, entries: &[u64]| Remark {
            kind: RemarkKind::LinkCopied,
            count,
            entries: entries.iter().copied().map(EntryId).collect(),
        };
        assert_eq!(notes.take(), [told(3, &[1, 2, 3])]);
        assert_eq!(notes.take(), []);
        for entry in 4..10 {
            notes.of(EntryId(entry)).add(RemarkKind::LinkCopied);
        }
        assert_eq!(notes.take(), [told(6, &[4])]);
        notes.of(EntryId(10)).add(RemarkKind::LinkCopied);
        assert_eq!(notes.take(), [told(1, &[])]);
    }
}
