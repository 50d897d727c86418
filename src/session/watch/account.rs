//! How entries ended, counted and told once however many attempts a run takes.
//!
//! In: outcomes as the engine tells them. Out: counts, events and failures with their places. What an
//! earlier attempt has told is left out ([`Earlier`](crate::session::earlier::Earlier)).

use super::{FAILURES_LOGGED_MAX, Watch};
use crate::ids::EntryId;
use crate::location::Location;
use crate::manifest::{Item, Place};
use crate::progress::{EntryType, Event, Failure, Report};
use crate::session::earlier::Before;
use crate::storage::error::ShownPath;
use crate::wire::message::{Action, Outcome};
use crate::wire::{Fault, FaultCode};

impl Watch {
    /// Finds out which of these entries an earlier attempt has told.
    pub(super) fn recall(&mut self, items: &[Item]) {
        let Some(earlier) = &self.earlier else { return };
        let entries = items.iter().filter_map(|item| match item {
            Item::Entry(entry) => Some(entry.id),
            Item::Note(_) => None,
        });
        let mut last = None;
        for entry in entries {
            if earlier.is_any()
                && let Some(key) = self.names.key(entry)
            {
                self.names.set_before(entry, earlier.of(&key));
            }
            last = Some(entry);
        }
        if let Some(key) = last.and_then(|entry| self.names.key(entry)) {
            self.told_up_to = Some(key);
        }
    }

    /// Whether no earlier attempt has said this of a place.
    pub(super) fn is_news(&mut self, place: &Place, fault: &Fault) -> bool {
        let Some(earlier) = &mut self.earlier else {
            return true;
        };
        let key = self.names.key_of_place(place);
        key.is_none_or(|key| earlier.say(&key, &fault.text))
    }

    pub(super) async fn done(&mut self, entry: EntryId, outcome: Outcome) {
        if let Outcome::Failed(fault) = &outcome
            && self.earlier.is_some()
            && fault.code == FaultCode::Cancelled
        {
            // It follows from the end of the run, which may go on.
            self.interrupted.push((entry, fault.clone()));
            return;
        }
        self.account(entry, outcome).await;
    }

    /// Counts and tells how an entry ended, unless an earlier attempt did.
    pub(super) async fn account(&mut self, entry: EntryId, outcome: Outcome) {
        let Some(outcome) = self.news(entry, outcome).await else {
            self.resumed.remove(&entry);
            self.kept.remove(&entry);
            self.names.settle(entry);
            return;
        };
        self.advanced();
        let len = self.names.len(entry);
        let is_file = self.names.is_file(entry);
        let path = self.names.path(entry);
        let entry_type = self.names.entry_type(entry);
        let mut location = None;
        if is_file {
            self.totals.progress.files_done += 1;
            self.totals.settled_bytes = self.totals.settled_bytes.saturating_add(len);
        }
        self.totals.ledger.settle(entry, &outcome);
        let resumed = self.resumed.remove(&entry).unwrap_or_default();
        let kept = self.kept.remove(&entry).unwrap_or_default();
        let comes = match &outcome {
            Outcome::Published { .. } => true,
            Outcome::Planned(reason) => reason.action() == Action::Copy,
            _ => false,
        };
        if comes && is_file {
            self.totals.files += 1;
            self.totals.bytes_published = self.totals.bytes_published.saturating_add(len);
        }
        let counted = match &outcome {
            Outcome::Published { bytes, .. } => {
                self.totals.settled_moved_bytes += bytes;
                self.totals.resumed_bytes += resumed;
                self.totals.reused_bytes += kept.saturating_sub(resumed);
                bytes.saturating_add(kept)
            }
            _ => kept,
        };
        // What had landed of a file that failed, or was fetched twice, is counted already: no sum of
        // bytes done may pass that of the bytes seen.
        let progress = &mut self.totals.progress;
        progress.bytes_done = progress
            .bytes_done
            .saturating_add(len.saturating_sub(counted))
            .min(progress.bytes_seen);
        if let Outcome::Failed(fault) = &outcome {
            let place = self.names.place(entry);
            location = self.locate(place.as_ref(), entry_type, fault);
            // One cause is told once, and not again for each name below a directory.
            if !self.names.fail(entry) {
                self.fail(path.clone(), fault, location.clone());
            }
        }
        self.names.settle(entry);
        self.tell(Event::Ended {
            path,
            entry: entry_type,
            outcome,
            len,
            location,
        })
        .await;
    }

    /// What is new of an outcome, seen from all attempts of the run.
    async fn news(&mut self, entry: EntryId, outcome: Outcome) -> Option<Outcome> {
        let key = self.earlier.is_some().then(|| self.names.key(entry));
        let (Some(key), Some(earlier)) = (key.flatten(), &mut self.earlier) else {
            return Some(outcome);
        };
        let failed_before = match &outcome {
            Outcome::Failed(fault) => !earlier.fail(&key, fault.class()),
            _ => false,
        };
        if !earlier.is_any() {
            return Some(outcome);
        }
        let entry_type = self.names.entry_type(entry);
        let stands = matches!(outcome, Outcome::Unchanged | Outcome::Updated);
        match self.names.before(entry) {
            Before::Settled if failed_before => {
                self.names.fail(entry);
                None
            }
            Before::Settled => match outcome {
                Outcome::Failed(_) => Some(outcome),
                Outcome::Published { bytes, .. } => {
                    if let Some(code) = earlier.mend(&key) {
                        self.totals.ledger.mend(code);
                        let path = self.names.path(entry);
                        self.totals.failures.retain(|failure| failure.path != path);
                        // Its length counts as done already.
                        self.not_done(entry, bytes);
                        return Some(outcome);
                    }
                    self.totals.settled_moved_bytes += bytes;
                    self.not_done(entry, bytes);
                    let text = "it was copied again after the connection was lost: it may have \
                                changed meanwhile";
                    let fault = Fault::new(FaultCode::SourceChanged, text);
                    let place = self.names.place(entry);
                    let location = self.locate(place.as_ref(), entry_type, &fault);
                    self.tell_warning(self.names.path(entry), fault, location)
                        .await;
                    None
                }
                _ => None,
            },
            before => {
                earlier.settle(&key);
                let own = match (before, entry_type) {
                    // Its data moved, so it was not there: the word that it was published got lost.
                    (Before::Open { started: true }, _) => true,
                    // A directory or link that was made, and not settled any more. Whether it was
                    // there before is not known, unless nothing else was.
                    (Before::Open { .. }, EntryType::Directory | EntryType::Symlink) => {
                        self.exists_is_error || self.totals.ledger.unchanged == 0
                    }
                    _ => false,
                };
                if stands && own {
                    let bytes = match entry_type {
                        EntryType::File => self.names.len(entry),
                        _ => 0,
                    };
                    self.not_done(entry, 0);
                    // They were moved by an attempt that is over.
                    self.totals.progress.bytes_done += bytes;
                    let digest = None;
                    return Some(Outcome::Published { bytes, digest });
                }
                if stands && self.exists_is_error && entry_type != EntryType::Directory {
                    let text = format!(
                        "'{}' exists and was not to be replaced",
                        ShownPath(&self.names.path(entry))
                    );
                    let fault = Fault::new(FaultCode::Exists, text);
                    earlier.fail(&key, fault.code);
                    return Some(Outcome::Failed(fault));
                }
                Some(outcome)
            }
        }
    }

    /// Takes bytes of an entry that is counted already off what is done.
    fn not_done(&mut self, entry: EntryId, moved: u64) {
        self.resumed.remove(&entry);
        let kept = self.kept.remove(&entry).unwrap_or_default();
        let progress = &mut self.totals.progress;
        progress.bytes_done = progress.bytes_done.saturating_sub(moved + kept);
    }

    /// Where something is that a fault tells of.
    pub(super) fn locate(
        &self,
        place: Option<&Place>,
        entry: EntryType,
        fault: &Fault,
    ) -> Option<Location> {
        let (root, below) = self.names.split(place?);
        let is_directory = entry == EntryType::Directory;
        self.locations
            .as_ref()?
            .of(root?, &below, is_directory, fault)
    }

    pub(super) fn fail(&mut self, path: Vec<u8>, fault: &Fault, location: Option<Location>) {
        self.failures_seen += 1;
        if self.failures_seen <= FAILURES_LOGGED_MAX {
            tracing::warn!(
                transfer = %self.transfer,
                path = %ShownPath(&path),
                reason = %fault.text.escape_debug(),
                "failed"
            );
        } else if self.failures_seen == FAILURES_LOGGED_MAX + 1 {
            tracing::warn!(transfer = %self.transfer, "further failures are only counted");
        }
        if self.totals.failures.len() < Report::FAILURES_LISTED_MAX {
            self.totals.failures.push(Failure {
                path,
                location,
                fault: fault.clone(),
            });
        }
    }
}
