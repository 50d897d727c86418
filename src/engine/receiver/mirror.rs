//! Deleting, as far as the conversation goes: when the destination is compared with what the source
//! has, and who hears of what was removed.
//!
//! The comparison is the last thing that a run does, and only if nothing failed. Where the peer is to
//! hear of it, it comes before Finish; else after Finished, so that a sender need not wait for it.

use crate::engine::Event;
use crate::limits::REMOVALS_MAX;
use crate::wire::message::{Removal, Removed};
use crate::wire::{Fault, Message};

use super::{Output, Receiver, Stage};

/// How far the comparison is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mirror {
    /// Not begun, and perhaps never wanted.
    Idle,
    /// A job is at it.
    Comparing,
    /// Done, or not to be done.
    Over,
}

impl Receiver {
    /// Whether the comparison was begun now, and is to be waited for.
    pub(super) fn begin_mirror(&mut self) -> bool {
        if !self.options.mirror || self.mirror != Mirror::Idle {
            return self.mirror == Mirror::Comparing;
        }
        if self.ledger.failed > 0 {
            self.mirror = Mirror::Over;
            self.outputs.push_back(Output::Event(Event::NotMirrored));
            return false;
        }
        self.mirror = Mirror::Comparing;
        self.start_job(Output::Mirror);
        true
    }

    /// Storage went on with the comparison.
    pub(super) fn mirrored(&mut self, more: bool) -> Result<(), Fault> {
        self.job_done()?;
        if self.is_ending() {
            return Ok(());
        }
        if self.options.tell_removals {
            // The peer waits, and hears that it does not in vain.
            self.send_removals(Vec::new());
        }
        if more {
            self.start_job(Output::Mirror);
            return Ok(());
        }
        self.mirror = Mirror::Over;
        if matches!(self.stage, Stage::Mirroring) {
            self.conclude_well();
        }
        Ok(())
    }

    /// Storage removed something, or would, or could not.
    pub(super) fn removed(&mut self, removals: Vec<Removal>) {
        let mut failed = None;
        for removal in &removals {
            self.ledger.removal(removal);
            self.outputs
                .push_back(Output::Event(Event::Removed(removal.clone())));
            if let (Removed::Failed(fault), true) = (&removal.outcome, self.options.fail_early) {
                failed.get_or_insert(fault.clone());
            }
        }
        if self.options.tell_removals {
            let mut removals = removals;
            while removals.len() > REMOVALS_MAX {
                let rest = removals.split_off(REMOVALS_MAX);
                self.send_removals(std::mem::replace(&mut removals, rest));
            }
            self.send_removals(removals);
        }
        self.end_if(failed);
    }

    fn send_removals(&mut self, removals: Vec<Removal>) {
        let comparing = self.mirror != Mirror::Idle;
        let message = Message::Deleted {
            comparing,
            removals,
        };
        self.outputs.push_back(Output::Send(message));
    }
}
