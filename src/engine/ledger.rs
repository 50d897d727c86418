//! The account of a run: how many entries ended how. It stays small however many there are: counts
//! per failure class, and the first failures in full.

use crate::ids::EntryId;
use crate::wire::message::{Action, Carried, Outcome, Removal, Removed};
use crate::wire::{Fault, FaultCode};

/// Failures that are kept in full; the others are only counted.
const FAILURES_LISTED_MAX: usize = 64;

/// How a run went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Entries that pages told.
    pub told: u64,
    /// Entries that are there now and were not before; in a dry run, that would be.
    pub published: u64,
    /// Entries that were there already.
    pub unchanged: u64,
    /// Entries whose content was there and whose metadata was brought up to date.
    pub updated: u64,
    /// Entries that are not there or not complete, and skipped ones that count as failed.
    pub failed: u64,
    /// Entries left out that do not count as failed.
    pub skipped: u64,
    /// What the source does not have and was removed; in a dry run, would be.
    pub deleted: u64,
    /// Bytes of data that travelled for published entries.
    pub bytes: u64,
    /// All that landed, by the way it came. A sender's is what the receiver said in the end.
    pub carried: Carried,
    /// Failures per class.
    classes: Vec<(FaultCode, u64)>,
    /// The first failures.
    listed: Vec<(Option<EntryId>, Fault)>,
}

/// What a ledger comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing failed.
    Clean,
    /// All failures are of this class.
    One(FaultCode),
    /// There are failures of several classes.
    Several,
}

impl Ledger {
    /// What it comes to.
    pub fn verdict(&self) -> Verdict {
        match self.classes.as_slice() {
            [] => Verdict::Clean,
            [(code, _)] => Verdict::One(*code),
            _ => Verdict::Several,
        }
    }

    /// Failures per class, in order of first appearance.
    pub fn classes(&self) -> &[(FaultCode, u64)] {
        &self.classes
    }

    /// The first failures; skipped things have no entry.
    pub fn failures(&self) -> &[(Option<EntryId>, Fault)] {
        &self.listed
    }

    /// An entry ended.
    pub(crate) fn settle(&mut self, entry: EntryId, outcome: &Outcome) {
        match outcome {
            Outcome::Published { bytes, .. } => {
                self.published += 1;
                self.bytes = self.bytes.saturating_add(*bytes);
            }
            Outcome::Unchanged => self.unchanged += 1,
            Outcome::Updated => self.updated += 1,
            Outcome::Planned(reason) => match reason.action() {
                Action::Copy => self.published += 1,
                Action::Update => self.updated += 1,
                Action::Keep => self.unchanged += 1,
            },
            Outcome::Failed(fault) => self.fail(Some(entry), fault),
        }
    }

    /// Something was removed, or not.
    pub(crate) fn removal(&mut self, removal: &Removal) {
        match &removal.outcome {
            Removed::Gone | Removed::Would => self.deleted += 1,
            Removed::Failed(fault) => self.fail(None, fault),
            Removed::Kept(_) => {}
        }
    }

    /// Something failed.
    pub(crate) fn fail(&mut self, entry: Option<EntryId>, fault: &Fault) {
        self.failed += 1;
        let class = fault.class();
        match self.classes.iter_mut().find(|(code, _)| *code == class) {
            Some((_, count)) => *count += 1,
            // Unknown numbers from a peer are one class here, or they could grow the table.
            None if matches!(class, FaultCode::Unknown(_)) => self.fail_unknown(class),
            None => self.classes.push((class, 1)),
        }
        if self.listed.len() < FAILURES_LISTED_MAX {
            self.listed.push((entry, fault.clone()));
        }
    }

    /// Something that had failed in this way is there after all.
    pub(crate) fn mend(&mut self, code: FaultCode) {
        self.failed = self.failed.saturating_sub(1);
        let class = |known: FaultCode| match (known, code) {
            (FaultCode::Unknown(_), FaultCode::Unknown(_)) => true,
            (known, code) => known == code,
        };
        if let Some((_, count)) = self.classes.iter_mut().find(|(code, _)| class(*code)) {
            *count = count.saturating_sub(1);
        }
        self.classes.retain(|(_, count)| *count > 0);
    }

    fn fail_unknown(&mut self, code: FaultCode) {
        let known = |(code, _): &&mut (FaultCode, u64)| matches!(code, FaultCode::Unknown(_));
        match self.classes.iter_mut().find(known) {
            Some((_, count)) => *count += 1,
            None => self.classes.push((code, 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: FaultCode) -> Outcome {
        Outcome::Failed(Fault::new(code, "it failed"))
    }

    #[test]
    fn one_class_of_failure_is_told_from_several() {
        let mut ledger = Ledger::default();
        ledger.settle(EntryId(0), &Outcome::Unchanged);
        ledger.settle(
            EntryId(1),
            &Outcome::Published {
                bytes: 7,
                digest: None,
            },
        );
        assert_eq!(ledger.verdict(), Verdict::Clean);
        ledger.settle(EntryId(2), &failed(FaultCode::Denied));
        ledger.settle(EntryId(3), &failed(FaultCode::Denied));
        assert_eq!(ledger.verdict(), Verdict::One(FaultCode::Denied));
        ledger.settle(EntryId(4), &failed(FaultCode::NoSpace));
        assert_eq!(ledger.verdict(), Verdict::Several);
        assert_eq!(
            (ledger.published, ledger.unchanged, ledger.failed),
            (1, 1, 3)
        );
        assert_eq!(ledger.bytes, 7);
        assert_eq!(
            ledger.classes(),
            [(FaultCode::Denied, 2), (FaultCode::NoSpace, 1)]
        );
        ledger.mend(FaultCode::NoSpace);
        assert_eq!(ledger.verdict(), Verdict::One(FaultCode::Denied));
        ledger.mend(FaultCode::Denied);
        ledger.mend(FaultCode::Denied);
        assert_eq!((ledger.verdict(), ledger.failed), (Verdict::Clean, 0));
    }

    #[test]
    fn a_million_failures_take_no_more_memory_than_a_few() {
        let mut ledger = Ledger::default();
        for n in 0..1_000_000_u64 {
            let unknown = FaultCode::Unknown(u16::try_from(1000 + n % 50_000).unwrap());
            ledger.settle(EntryId(n), &failed(unknown));
        }
        assert_eq!(ledger.failed, 1_000_000);
        assert_eq!(ledger.failures().len(), FAILURES_LISTED_MAX);
        assert_eq!(ledger.classes().len(), 1);
    }
}
