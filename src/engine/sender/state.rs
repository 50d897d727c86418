//! A sender in words, for a person who wants to know why a run stands still.

use std::collections::BTreeMap;

use super::entries::State;
use super::regions::RegionStage;
use super::{Sender, Stage};

impl Sender {
    /// Its counters, a line for each subject.
    pub fn describe(&self) -> Vec<String> {
        let mut by_state: BTreeMap<&'static str, usize> = BTreeMap::new();
        for record in self.entries.values() {
            let name = match record.settled {
                true => "settled and still in use",
                false => record.state.name(),
            };
            *by_state.entry(name).or_default() += 1;
        }
        let mut by_stage: BTreeMap<&'static str, usize> = BTreeMap::new();
        for region in self.regions.values() {
            *by_stage.entry(region.stage.name()).or_default() += 1;
        }
        let counted = |counts: BTreeMap<&str, usize>| {
            let counts = counts.iter().map(|(name, count)| format!("{count} {name}"));
            counts.collect::<Vec<_>>().join(", ")
        };
        let stage = match &self.stage {
            Stage::Running => "running",
            Stage::Finishing => "the receiver has finished",
            Stage::Ending { .. } => "being ended",
            Stage::Ended => "ended",
        };
        vec![
            format!("stage: {stage}; jobs out: {}", self.jobs),
            format!(
                "entries: {} told, {} kept ({})",
                self.ledger.told,
                self.entries.len(),
                counted(by_state)
            ),
            format!(
                "pages: credit for {}, one being made: {}, last one sent: {}",
                self.pages_credit, self.walking, self.last_page_sent
            ),
            format!(
                "files: {} open, {} wait to be opened, {} with windows to come; small files that \
                 wait for a pack: {} of {} bytes",
                self.open_files,
                self.big.len(),
                self.open.len(),
                self.small.len(),
                self.small_bytes
            ),
            format!(
                "regions: {} ({}); credit: {} of {} bytes in use",
                self.regions.len(),
                counted(by_stage),
                self.credit.in_use(),
                self.credit.total()
            ),
        ]
    }
}

impl State {
    fn name(&self) -> &'static str {
        match self {
            Self::Told => "told",
            Self::Declined => "not wanted",
            Self::Wanted(_) => "wanted",
            Self::Packing(_) => "being packed",
            Self::Packed => "in packs",
            Self::Opening(_) => "being opened",
            Self::Open(_) => "open",
            Self::Checking => "being checked",
            Self::Confirmed => "confirmed",
            Self::Failed => "failed",
        }
    }
}

impl RegionStage {
    fn name(self) -> &'static str {
        match self {
            Self::Making => "being made",
            Self::Exposed => "exposed",
            Self::Granted => "granted",
            Self::Withdrawing => "being withdrawn",
        }
    }
}
