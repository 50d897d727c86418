//! What a receiver tells beside outcomes: things that were left out, once per kind.
//!
//! In: a subject and the first path it happened to. Out: sentences for the summary. Memory is one
//! sentence per subject.

use std::sync::{Mutex, PoisonError};

use crate::storage::error::ShownPath;

/// What was left out or done otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// This user may not give files away.
    OwnerRefused,
    /// The file system keeps no attributes.
    XattrsUnsupported,
    /// A peer sent attributes that are never taken from peers.
    PrivilegedXattr,
    /// A hard link could not be made, so the file was copied.
    LinkCopied,
}

impl Subject {
    fn text(self) -> &'static str {
        match self {
            Self::OwnerRefused => {
                "owners were not set: this user may not set them (run the receiver as root)"
            }
            Self::XattrsUnsupported => {
                "extended attributes were left out: the destination's file system does not keep them"
            }
            Self::PrivilegedXattr => {
                "extended attributes other than user.* and POSIX ACLs were left out"
            }
            Self::LinkCopied => {
                "hard links were copied: the destination's file system does not link them"
            }
        }
    }
}

/// The notes of one transfer.
#[derive(Debug, Default)]
pub(crate) struct Notes(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    subjects: Vec<Subject>,
    pending: Vec<String>,
}

impl Notes {
    /// Notes it, unless the subject has been noted before.
    pub(crate) fn add(&self, subject: Subject, shown: &[u8]) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !told.subjects.contains(&subject) {
            told.subjects.push(subject);
            told.pending.push(format!(
                "{}; first at '{}'",
                subject.text(),
                ShownPath(shown)
            ));
        }
    }

    /// What has been noted since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(
            &mut self
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pending,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subject_is_told_once() {
        let notes = Notes::default();
        notes.add(Subject::LinkCopied, b"a");
        notes.add(Subject::LinkCopied, b"b");
        let told = notes.take();
        assert_eq!(told.len(), 1);
        assert!(told[0].ends_with("'a'"), "{}", told[0]);
        notes.add(Subject::LinkCopied, b"c");
        assert!(notes.take().is_empty());
    }
}
