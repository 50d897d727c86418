//! Windows of big files: which one is exposed next, and when it is granted.

use crate::engine::{internal, protocol};
use crate::ids::{EntryId, RegionId};
use crate::limits::{GRANT_EXTENTS_MAX, WINDOW_BYTES, WINDOWS_PER_FILE_MAX};
use crate::units::{ByteRange, ChunkIndex, ChunkRange};
use crate::wire::message::{Grant, GrantPart, HashKind, RegionKey};
use crate::wire::{Fault, Message};

use super::entries::State;
use super::packing::Turn;
use super::proofs::Proofs;
use super::regions::{Content, Region, RegionStage};
use super::{ExposedWindow, Output, Sender};

/// A part of a big file that is a region.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) entry: EntryId,
    /// Its bytes in the file.
    range: ByteRange,
    /// One past the last chunk of the wanted run that it is of.
    run_end: u64,
    /// No window of the file comes after it.
    last: bool,
    keys: Vec<RegionKey>,
    extents: Vec<ByteRange>,
    pub(super) proofs: Proofs,
}

impl Window {
    /// Bytes of it that are data.
    pub(super) fn data_bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.len()).sum()
    }
}

impl Sender {
    /// The open file whose turn it is to have its next window exposed.
    pub(super) fn next_open(&mut self) -> Option<EntryId> {
        for _ in 0..self.open.len() {
            let entry = *self.open.front()?;
            let record = self.entries.get(&entry).filter(|record| !record.settled);
            match record.map(|record| &record.state) {
                Some(State::Open(file)) if !file.remaining.is_done() => {
                    let waits =
                        file.in_hole && file.windows.iter().any(|region| self.is_made(region));
                    if file.windows.len() < WINDOWS_PER_FILE_MAX && !waits {
                        return Some(entry);
                    }
                    self.open.rotate_left(1);
                }
                Some(State::Opening(_)) => self.open.rotate_left(1),
                _ => drop(self.open.pop_front()),
            }
        }
        None
    }

    fn is_made(&self, region: &RegionId) -> bool {
        let held = self.regions.get(region);
        held.is_some_and(|held| held.stage == RegionStage::Making)
    }

    /// Exposes the file's next window if it fits into `limit` bytes.
    pub(super) fn expose_window(&mut self, entry: EntryId, limit: u64) -> Result<bool, Fault> {
        let (size, hash) = (self.options.chunk, self.options.hash);
        let (total, idle) = (self.credit.total(), self.credit.in_use() == 0);
        let Some(file) = self.open_file(entry) else {
            return Ok(false);
        };
        // Four windows fill the credit: some are read while others are made ready.
        let window_bytes = file.window_bytes.min(WINDOW_BYTES).min(total / 4);
        let most = (window_bytes / size.bytes()).max(1);
        let Some(next) = file.remaining.peek() else {
            return Ok(false);
        };
        let count = (next.end - next.start).min(most);
        let start = size.range(ChunkIndex(next.start), file.len).start;
        let end = size.range(ChunkIndex(next.start + count - 1), file.len).end;
        let range = ByteRange { start, end };
        if range.len() > limit {
            return match idle && limit == total && total > 0 {
                true => Err(protocol("the region credit is below the size of a chunk")),
                false => Ok(false),
            };
        }
        file.remaining.advance(count);
        let (last, file_len, hashed) = (file.remaining.is_done(), file.len, file.hashed);
        let mut proofs = Proofs::new(next.start, count, hash);
        if let Some((chunk, value)) = hashed {
            proofs.tell_before(chunk, value);
        }
        let window = Window {
            entry,
            range,
            run_end: next.end,
            last,
            keys: Vec::new(),
            extents: Vec::new(),
            proofs,
        };
        let region = self.add_region(Content::Window(window), range.len());
        let mut told_ahead = false;
        if let Some(record) = self.entries.get_mut(&entry) {
            record.holders += 1;
            if let State::Open(file) = &mut record.state {
                file.windows.push(region);
            }
            told_ahead = hash == HashKind::Blake3 && next.start < record.compared;
        }
        self.turn = Turn::Pack;
        self.open.rotate_left(1);
        self.start_job(Output::Expose {
            region,
            entry,
            range,
            file_len,
            told_ahead,
        });
        if hash == HashKind::Sha256 {
            let upto = ChunkIndex(next.start + count);
            self.outputs.push_back(Output::HashAhead { entry, upto });
        }
        Ok(true)
    }

    pub(super) fn exposed(
        &mut self,
        region: RegionId,
        result: Result<ExposedWindow, Fault>,
    ) -> Result<(), Fault> {
        self.job_done()?;
        let held = self.regions.get_mut(&region);
        let Some((held, entry)) = held.and_then(|held| {
            let entry = held.window()?.entry;
            Some((held, entry))
        }) else {
            return Err(internal("a window was exposed that was not asked for"));
        };
        match result {
            Ok(exposed) => {
                held.stage = RegionStage::Exposed;
                let is_hole = exposed.extents.is_empty();
                if let Some(window) = held.window_mut() {
                    window.keys = exposed.keys;
                    window.extents = coarsen(exposed.extents);
                }
                if let Some(file) = self.open_file(entry) {
                    file.in_hole = is_hole;
                }
                if is_hole {
                    self.extend_hole(entry, region, exposed.hole_end);
                }
                if self.is_ending() || self.open_file(entry).is_none() {
                    self.withdraw(region);
                } else {
                    self.grant_windows(entry);
                }
            }
            Err(fault) => {
                self.fail_entry(entry, fault);
                self.drop_region(region)?;
            }
        }
        Ok(())
    }

    /// Lets one window tell a whole run of holes: without that, a huge sparse file is walked in steps
    /// of a window each, and every step is a job and a message that no credit holds back.
    ///
    /// Only the window before the next one can grow, so in a hole windows are made one by one. With SHA-256 none does: zeros are hashed as well
    /// there, and that holds the steps back.
    fn extend_hole(&mut self, entry: EntryId, region: RegionId, hole_end: u64) {
        let (size, hash) = (self.options.chunk, self.options.hash);
        let window = self.regions.get(&region).and_then(Region::window);
        let Some((end, run_end)) = window.map(|window| (window.range.end, window.run_end)) else {
            return;
        };
        let Some(file) = self.open_file(entry) else {
            return;
        };
        let next = file.remaining.peek();
        let follows = |next: &ChunkRange| size.index_of(end).0 == next.start && next.end == run_end;
        let Some(next) = next.filter(follows) else {
            return;
        };
        // The chunk in which data begins is no hole.
        let hole_chunks = if hole_end >= file.len {
            next.end
        } else {
            size.index_of(hole_end).0.min(next.end)
        };
        if hash == HashKind::Sha256 || hole_chunks <= next.start {
            return;
        }
        let end = size.range(ChunkIndex(hole_chunks - 1), file.len).end;
        file.remaining.advance(hole_chunks - next.start);
        let last = file.remaining.is_done();
        if let Some(window) = self.regions.get_mut(&region).and_then(Region::window_mut) {
            window.range.end = end;
            window.last = last;
        }
    }

    /// Grants the file's windows that are exposed and proved, in order.
    pub(super) fn grant_windows(&mut self, entry: EntryId) {
        while let Some(region) = self.next_ungranted(entry) {
            let hash = self.options.hash;
            let ready = self.regions.get(&region).is_some_and(|held| {
                let proved = |window: &Window| window.proofs.is_complete(hash);
                held.stage == RegionStage::Exposed && held.window().is_some_and(proved)
            });
            if !ready {
                break;
            }
            self.grant_window(entry, region);
        }
    }

    fn next_ungranted(&mut self, entry: EntryId) -> Option<RegionId> {
        let windows = self.open_file(entry)?.windows.as_slice();
        // At most a few, and the borrow of the file must end before the regions are looked at.
        let windows: [Option<RegionId>; WINDOWS_PER_FILE_MAX] =
            std::array::from_fn(|n| windows.get(n).copied());
        let granted = |region: &RegionId| {
            self.regions
                .get(region)
                .is_some_and(super::regions::Region::is_granted)
        };
        windows
            .into_iter()
            .flatten()
            .find(|region| !granted(region))
    }

    fn grant_window(&mut self, entry: EntryId, region: RegionId) {
        let hash = self.options.hash;
        let Some(file) = self.open_file(entry) else {
            return;
        };
        let (version, file_len) = (file.version, file.len);
        let Some(held) = self.regions.get_mut(&region) else {
            return;
        };
        held.stage = RegionStage::Granted;
        let Some(window) = held.window_mut() else {
            return;
        };
        let (range, last) = (window.range, window.last);
        let hole = window.extents.is_empty();
        let extents = window.extents.clone();
        let keys = std::mem::take(&mut window.keys);
        if hash == HashKind::Sha256 {
            window.proofs.append_all(entry, hole, &mut self.digests);
            // Before the grant, or the receiver could not begin.
            self.flush_digests();
        }
        if last && let Some(file) = self.open_file(entry) {
            file.last_granted = true;
        }
        if hole {
            self.withdraw(region);
        }
        let part = GrantPart {
            entry,
            version,
            file_len,
            file_offset: range.start,
            region_offset: 0,
            len: range.len(),
            extents,
            last,
            packed: false,
        };
        let (len, keys) = if hole {
            (0, Vec::new())
        } else {
            (range.len(), keys)
        };
        self.send_grant(region, len, keys, part);
    }

    /// A file with nothing to read in it still gets its one grant.
    pub(super) fn grant_if_empty(&mut self, entry: EntryId) {
        let ending = self.is_ending();
        let Some(file) = self.open_file(entry) else {
            return;
        };
        if ending || !file.remaining.is_done() {
            return;
        }
        file.last_granted = true;
        let part = GrantPart {
            entry,
            version: file.version,
            file_len: file.len,
            file_offset: 0,
            region_offset: 0,
            len: 0,
            extents: Vec::new(),
            last: true,
            packed: false,
        };
        let region = RegionId(self.next_region);
        self.next_region += 1;
        self.send_grant(region, 0, Vec::new(), part);
    }

    fn send_grant(&mut self, region: RegionId, len: u64, keys: Vec<RegionKey>, part: GrantPart) {
        let lease_ms = self.options.lease_ms;
        let grant = Grant {
            region,
            len,
            lease_ms,
            keys,
            parts: vec![part],
        };
        self.outputs.push_back(Output::Send(Message::Grant(grant)));
    }
}

/// Makes extents few enough for a grant: the holes between the last ones count as data.
fn coarsen(mut extents: Vec<ByteRange>) -> Vec<ByteRange> {
    if extents.len() > GRANT_EXTENTS_MAX {
        let end = extents.last().map_or(0, |extent| extent.end);
        extents.truncate(GRANT_EXTENTS_MAX);
        if let Some(last) = extents.last_mut() {
            last.end = end;
        }
    }
    extents
}
