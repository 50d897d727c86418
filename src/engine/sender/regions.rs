//! Regions from the order to make them until nothing can read them, and the credit they hold.

use crate::engine::{internal, protocol};
use crate::ids::{EntryId, RegionId};
use crate::wire::Fault;

use super::windows::Window;
use super::{Output, Sender};

/// Bytes that may be granted and not released.
#[derive(Debug, Default)]
pub(super) struct Credit {
    total: u64,
    packs: u64,
    windows: u64,
}

impl Credit {
    pub(super) fn add(&mut self, bytes: u64) {
        self.total = self.total.saturating_add(bytes);
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn in_use(&self) -> u64 {
        self.packs + self.windows
    }

    pub(super) fn available(&self) -> u64 {
        self.total - self.in_use()
    }

    /// What packs may take while files wait for windows: a quarter.
    pub(super) fn available_to_packs(&self) -> u64 {
        self.available()
            .min((self.total / 4).saturating_sub(self.packs))
    }

    /// What windows may take while files wait for packs: the rest.
    pub(super) fn available_to_windows(&self) -> u64 {
        self.available()
            .min((self.total - self.total / 4).saturating_sub(self.windows))
    }
}

/// Bytes that one peer may read, or is about to.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) stage: RegionStage,
    /// Region credit that it holds.
    charged: u64,
    pub(super) content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegionStage {
    /// The driver makes it.
    Making,
    /// It could be read, but its proofs or its predecessors are not there yet.
    Exposed,
    /// The receiver was told.
    Granted,
    /// The driver withdraws it.
    Withdrawing,
}

#[derive(Debug)]
pub(super) enum Content {
    /// These small files, while it is filled.
    Pack(Vec<EntryId>),
    /// Part of a big file.
    Window(Window),
}

impl Region {
    pub(super) fn new(content: Content) -> Self {
        Self {
            stage: RegionStage::Making,
            charged: 0,
            content,
        }
    }

    pub(super) fn is_granted(&self) -> bool {
        self.stage == RegionStage::Granted
    }

    pub(super) fn is_granted_of(&self, entry: EntryId) -> bool {
        self.is_granted() && self.window().is_some_and(|window| window.entry == entry)
    }

    pub(super) fn window(&self) -> Option<&Window> {
        match &self.content {
            Content::Window(window) => Some(window),
            Content::Pack(_) => None,
        }
    }

    pub(super) fn window_mut(&mut self) -> Option<&mut Window> {
        match &mut self.content {
            Content::Window(window) => Some(window),
            Content::Pack(_) => None,
        }
    }
}

impl Sender {
    pub(super) fn add_region(&mut self, content: Content, bytes: u64) -> RegionId {
        let region = RegionId(self.next_region);
        self.next_region += 1;
        self.regions.insert(region, Region::new(content));
        self.charge(region, bytes);
        region
    }

    /// From now on the region holds so much credit.
    pub(super) fn charge(&mut self, region: RegionId, bytes: u64) {
        let Some(region) = self.regions.get_mut(&region) else {
            return;
        };
        let account = match region.content {
            Content::Pack(_) => &mut self.credit.packs,
            Content::Window(_) => &mut self.credit.windows,
        };
        *account = *account - region.charged + bytes;
        region.charged = bytes;
    }

    /// The receiver will read no more of it.
    pub(super) fn release(&mut self, region: RegionId) -> Result<(), Fault> {
        let Some(held) = self.regions.get(&region).filter(|held| held.is_granted()) else {
            return Err(protocol("the release of a region that is not granted"));
        };
        self.moved += held.window().map_or(held.charged, Window::data_bytes);
        self.withdraw(region);
        Ok(())
    }

    /// Nobody is to read the region any more.
    pub(super) fn withdraw(&mut self, region: RegionId) {
        let Some(held) = self.regions.get_mut(&region) else {
            return;
        };
        held.stage = RegionStage::Withdrawing;
        if let Some(entry) = held.window().map(|window| window.entry)
            && let Some(file) = self.open_file(entry)
        {
            file.windows.retain(|window| *window != region);
        }
        self.charge(region, 0);
        self.start_job(Output::Unexpose { region });
    }

    /// Withdraws what is exposed of a file and was not granted.
    pub(super) fn withdraw_ungranted(&mut self, entry: EntryId) {
        self.withdraw_where(|region| {
            region.stage == RegionStage::Exposed
                && region.window().is_some_and(|window| window.entry == entry)
        });
    }

    /// Withdraws everything; what is being made is withdrawn when it comes.
    pub(super) fn withdraw_all(&mut self) {
        self.withdraw_where(|region| {
            matches!(region.stage, RegionStage::Exposed | RegionStage::Granted)
        });
    }

    fn withdraw_where(&mut self, chosen: impl Fn(&Region) -> bool) {
        let regions = self.regions.iter().filter(|(_, region)| chosen(region));
        let regions: Vec<RegionId> = regions.map(|(id, _)| *id).collect();
        for region in regions {
            self.withdraw(region);
        }
    }

    pub(super) fn unexposed(&mut self, region: RegionId) -> Result<(), Fault> {
        self.job_done()?;
        self.drop_region(region)
    }

    /// The region is gone, with its memory and its hold on its file.
    pub(super) fn drop_region(&mut self, region: RegionId) -> Result<(), Fault> {
        self.charge(region, 0);
        let Some(held) = self.regions.remove(&region) else {
            return Err(internal("a region was withdrawn that does not exist"));
        };
        match held.content {
            Content::Pack(_) => self.packs -= 1,
            Content::Window(window) => self.let_go(window.entry),
        }
        Ok(())
    }
}
