//! Packs: which small files go together, and the grant of a filled one; and which of packs and
//! windows may have the region credit.

use std::cmp::Reverse;

use crate::engine::{Event, internal, protocol};
use crate::ids::{EntryId, RegionId};
use crate::limits::{PACK_BYTES_MAX, PACK_FILES_MAX};
use crate::wire::message::Grant;
use crate::wire::{Fault, Message};

use super::entries::State;
use super::regions::{Content, RegionStage};
use super::{FilledPack, Output, Sender};

/// Whose turn it is when there is too little credit for both packs and windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Turn {
    #[default]
    Pack,
    Window,
}

impl Sender {
    /// Makes the regions that credit and memory allow.
    pub(super) fn serve(&mut self) -> Result<(), Fault> {
        while self.regions.len() < self.options.regions_max {
            let (small, big) = (self.next_small().is_some(), self.next_open());
            let ample = self.credit.total() / 4 >= PACK_BYTES_MAX;
            let made = match (small, big) {
                (false, None) => false,
                (true, None) => self.fill_pack(self.credit.available())?,
                (false, Some(entry)) => self.expose_window(entry, self.credit.available())?,
                (true, Some(entry)) if ample => {
                    self.fill_pack(self.credit.available_to_packs())?
                        || self.expose_window(entry, self.credit.available_to_windows())?
                }
                (true, Some(entry)) => match self.turn {
                    Turn::Pack => self.fill_pack(self.credit.available())?,
                    Turn::Window => self.expose_window(entry, self.credit.available())?,
                },
            };
            if !made {
                break;
            }
        }
        Ok(())
    }

    /// The first small file that waits for a pack, and its listed length.
    fn next_small(&mut self) -> Option<(EntryId, u64)> {
        while let Some(&Reverse((entry, len))) = self.small.peek() {
            let waits = self
                .entries
                .get(&entry)
                .is_some_and(|record| !record.settled && matches!(record.state, State::Wanted(_)));
            if waits {
                return Some((entry, len));
            }
            self.pop_small(len);
        }
        None
    }

    fn pop_small(&mut self, len: u64) {
        self.small.pop();
        self.small_bytes -= len;
    }

    /// Fills a pack with at most `limit` bytes. What waits goes out at once, full or not: more
    /// wants may never come.
    fn fill_pack(&mut self, limit: u64) -> Result<bool, Fault> {
        let room = limit.min(PACK_BYTES_MAX);
        // Rather one good pack after the next release than one of the few bytes that are left.
        if room < self.small_bytes.min(PACK_BYTES_MAX) && self.credit.in_use() > 0 {
            return Ok(false);
        }
        if (self.packs + 1) * PACK_BYTES_MAX > self.options.pack_bytes_max {
            return Ok(false);
        }
        let (mut entries, mut capacity) = (Vec::new(), 0);
        while let Some((entry, len)) = self.next_small() {
            if entries.len() == PACK_FILES_MAX || capacity + len > room {
                break;
            }
            self.pop_small(len);
            capacity += len;
            entries.push(entry);
            self.pack(entry);
        }
        if entries.is_empty() {
            // Nothing else holds credit: waiting would not help.
            return match self.credit.total() {
                0 => Ok(false),
                _ => Err(protocol(
                    "the region credit is below the size of a packed file",
                )),
            };
        }
        self.packs += 1;
        self.turn = Turn::Window;
        let region = self.add_region(Content::Pack(entries.clone()), capacity);
        self.start_job(Output::FillPack {
            region,
            entries,
            capacity,
        });
        Ok(true)
    }

    fn pack(&mut self, entry: EntryId) {
        if let Some(record) = self.entries.get_mut(&entry) {
            record.holders += 1;
            match std::mem::replace(&mut record.state, State::Failed) {
                State::Wanted(remaining) => record.state = State::Packing(remaining),
                other => record.state = other,
            }
        }
    }

    pub(super) fn pack_filled(&mut self, region: RegionId, pack: FilledPack) -> Result<(), Fault> {
        self.job_done()?;
        let Some(held) = self.regions.get_mut(&region) else {
            return Err(internal("a pack was filled that was not asked for"));
        };
        let Content::Pack(entries) = &mut held.content else {
            return Err(internal("a window was filled like a pack"));
        };
        let entries = std::mem::take(entries);
        let FilledPack {
            len,
            keys,
            parts,
            digests,
            failed,
            left,
        } = pack;
        for part in &parts {
            self.set_packed(part.entry);
        }
        for entry in left {
            self.unpack(entry);
        }
        for (entry, fault) in failed {
            self.fail_entry(entry, fault);
        }
        for &entry in &entries {
            self.check_packed(entry)?;
            self.let_go(entry);
        }
        if len == 0 {
            // Nothing was exposed, so there is nothing to release either.
            self.drop_region(region)?;
        } else {
            self.charge(region, len);
        }
        if parts.is_empty() || self.is_ending() {
            if len > 0 {
                self.withdraw(region);
            }
            return Ok(());
        }
        if let Some(held) = self.regions.get_mut(&region) {
            held.stage = RegionStage::Granted;
        }
        for part in &parts {
            let (entry, len) = (part.entry, part.len);
            self.outputs
                .push_back(Output::Event(Event::Started { entry, len }));
        }
        let lease_ms = self.options.lease_ms;
        let grant = Grant {
            region,
            len,
            lease_ms,
            keys,
            parts,
        };
        self.outputs.push_back(Output::Send(Message::Grant(grant)));
        self.digests.extend(digests);
        Ok(())
    }

    fn set_packed(&mut self, entry: EntryId) {
        if let Some(record) = self.entries.get_mut(&entry)
            && matches!(record.state, State::Packing(_))
        {
            record.state = State::Packed;
        }
    }

    /// The file did not fit: it is served as a big one.
    fn unpack(&mut self, entry: EntryId) {
        let Some(record) = self.entries.get_mut(&entry) else {
            return;
        };
        match std::mem::replace(&mut record.state, State::Failed) {
            State::Packing(remaining) => {
                record.state = State::Wanted(remaining);
                self.big.push_back(entry);
            }
            other => record.state = other,
        }
    }

    fn check_packed(&self, entry: EntryId) -> Result<(), Fault> {
        let left_out = self
            .entries
            .get(&entry)
            .is_some_and(|record| matches!(record.state, State::Packing(_)) && !self.is_ending());
        if left_out {
            Err(internal("a pack was filled without word of a file"))
        } else {
            Ok(())
        }
    }
}
