//! A receiver in words, for a person who wants to know why a run stands still.

use std::collections::BTreeMap;

use super::entries::State;
use super::file::{File, Phase};
use super::{Receiver, Stage};

impl Receiver {
    /// Its counters, a line for each subject.
    pub fn describe(&self) -> Vec<String> {
        let mut by_state: BTreeMap<&'static str, usize> = BTreeMap::new();
        let (mut windows, mut pending) = (0, 0);
        for record in self.entries.values() {
            *by_state.entry(record.state.name()).or_default() += 1;
            if let State::File(file) = &record.state {
                windows += file.windows.len();
                pending += file.pending;
            }
        }
        let by_state: Vec<_> = by_state
            .iter()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        let stage = match &self.stage {
            Stage::Running => "running",
            Stage::Finishing => "all settled, Finish said",
            Stage::Mirroring => "what the source does not have is removed",
            Stage::Ending { .. } => "being ended",
            Stage::Ended => "ended",
        };
        vec![
            format!("stage: {stage}; jobs out: {}", self.jobs),
            format!(
                "entries: {} told, {} unsettled ({}); pages: {} unsettled, last one came: {}",
                self.ledger.told,
                self.entries.len(),
                by_state.join(", "),
                self.pages.len(),
                self.last_page_came
            ),
            format!(
                "files: {} open at the sender, {windows} windows, {pending} fetches and jobs of \
                 them, {} wait to be closed, {} being published; packs: {}",
                self.open_files,
                self.to_close.len(),
                self.finishing,
                self.packs.len()
            ),
            format!(
                "regions: {} granted, {} bytes of a credit of {}; digests ahead of their grant: {}",
                self.regions.len(),
                self.region_bytes,
                self.options.region_credit_bytes,
                self.early_digests
            ),
            format!(
                "ready to be fetched: {} files and packs; out of reach of every lane: {}; {}",
                self.ready.len(),
                self.stranded.len(),
                self.lanes.describe()
            ),
        ]
    }
}

impl State {
    fn name(&self) -> &'static str {
        match self {
            Self::Placing => "being placed",
            Self::File(file) => file.name(),
            Self::Packed(_) => "in packs",
            Self::LinkWaiting => "links that wait for their file",
            Self::Linking => "being linked",
            Self::Directory => "directories",
        }
    }
}

impl File {
    fn name(&self) -> &'static str {
        match self.phase {
            Phase::Fetching if self.granted.is_none() => "files wanted",
            Phase::Fetching => "files being fetched",
            Phase::Settling => "files complete",
            Phase::Closing => "files being closed",
            Phase::Publishing => "files being published",
            Phase::Failing(_) => "files failing",
        }
    }
}
