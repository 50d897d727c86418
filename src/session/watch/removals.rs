//! What was removed at the destination because the source does not have it, counted and told.
//!
//! In: removals as the engine tells them, of the last attempt of a run alone: nothing is removed before all
//! else is done. Out: events, failures and counts.

use super::Watch;
use crate::progress::{EntryType, Event};
use crate::storage::error::ShownPath;
use crate::wire::message::{Outcome, Removal, Removed, RemovedKind};

impl Watch {
    /// Something was removed at the destination, or would be, or could not be.
    pub(super) async fn removed(&mut self, removal: Removal) {
        self.totals.ledger.removal(&removal);
        let Removal {
            root,
            path: below,
            kind,
            outcome,
        } = removal;
        let path = self.names.path_below(root, &below);
        let entry = match kind {
            RemovedKind::Directory => EntryType::Directory,
            RemovedKind::Symlink => EntryType::Symlink,
            RemovedKind::File | RemovedKind::Special => EntryType::File,
        };
        let locations = self.locations.as_ref();
        let location = locations.and_then(|locations| locations.at_destination(root, &below));
        let is_planned = outcome == Removed::Would;
        match outcome {
            Removed::Gone | Removed::Would => {
                // Not for operators: how many there were is told at the end.
                tracing::debug!(
                    transfer = %self.transfer,
                    path = %ShownPath(&path),
                    is_planned,
                    "deleted"
                );
                self.tell(Event::Deleted {
                    path,
                    entry,
                    is_planned,
                })
                .await;
            }
            Removed::Failed(fault) => {
                self.fail(path.clone(), &fault, location.clone());
                self.tell(Event::Ended {
                    path,
                    entry,
                    outcome: Outcome::Failed(fault),
                    len: 0,
                    location,
                })
                .await;
            }
            Removed::Kept(fault) => self.tell_warning(path, fault, location).await,
        }
    }
}
