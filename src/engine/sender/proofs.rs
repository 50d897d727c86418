//! The values of a window's chunks as they were told, and what is done when one is doubted.

use crate::engine::{internal, protocol};
use crate::ids::{EntryId, RegionId};
use crate::limits::REPAIRS_MAX;
use crate::units::ChunkIndex;
use crate::wire::message::{ChunkDigest, HashKind};
use crate::wire::{Fault, FaultCode};

use super::entries::State;
use super::{Output, Sender};

/// Values of the chunks of one window. Kept until its release, so that a value computed again can
/// be compared with the first one.
#[derive(Debug)]
pub(super) struct Proofs {
    first_chunk: u64,
    count: u64,
    /// SHA-256: the value of the chunk before the first.
    before: Option<[u8; 32]>,
    /// Empty without a hash.
    values: Vec<Option<[u8; 32]>>,
    missing: usize,
    /// How often a chunk was doubted; few have an entry.
    doubts: Vec<(u64, u32)>,
}

impl Proofs {
    pub(super) fn new(first_chunk: u64, count: u64, hash: HashKind) -> Self {
        // A window has at most `WINDOW_BYTES` in chunks, so the count fits.
        let kept = match hash {
            HashKind::None => 0,
            _ => usize::try_from(count).unwrap_or(usize::MAX),
        };
        Self {
            first_chunk,
            count,
            before: None,
            values: vec![None; kept],
            missing: kept,
            doubts: Vec::new(),
        }
    }

    /// Whether all values are known that must be told before the grant.
    pub(super) fn is_complete(&self, hash: HashKind) -> bool {
        let before = self.first_chunk == 0 || self.before.is_some();
        hash != HashKind::Sha256 || (self.missing == 0 && before)
    }

    fn holds(&self, chunk: u64) -> bool {
        chunk >= self.first_chunk && chunk - self.first_chunk < self.count
    }

    fn slot(&mut self, chunk: u64) -> Option<&mut Option<[u8; 32]>> {
        let index = usize::try_from(chunk.checked_sub(self.first_chunk)?).ok()?;
        self.values.get_mut(index)
    }

    /// Takes in a value; the one that was there before, if any.
    fn tell(&mut self, chunk: u64, value: [u8; 32]) -> Option<[u8; 32]> {
        let slot = self.slot(chunk)?;
        if slot.is_none() {
            *slot = Some(value);
            self.missing -= 1;
            return None;
        }
        *slot
    }

    pub(super) fn tell_before(&mut self, chunk: u64, value: [u8; 32]) {
        if chunk.checked_add(1) == Some(self.first_chunk) {
            self.before = Some(value);
        }
    }

    /// SHA-256: all values from the one before the first chunk on; of a hole only the last.
    pub(super) fn append_all(&self, entry: EntryId, hole: bool, digests: &mut Vec<ChunkDigest>) {
        let before = self.before.filter(|_| !hole && self.first_chunk > 0);
        let before = before.map(|value| (self.first_chunk - 1, value));
        let values = (self.first_chunk..).zip(self.values.iter().copied());
        let values = values.filter_map(|(chunk, value)| Some((chunk, value?)));
        let skip = if hole {
            self.values.len().saturating_sub(1)
        } else {
            0
        };
        let all = before.into_iter().chain(values.skip(skip));
        digests.extend(all.map(|(chunk, value)| ChunkDigest {
            entry,
            chunk,
            value,
        }));
    }

    /// SHA-256: the value before `chunk`.
    fn before(&mut self, chunk: u64) -> Option<[u8; 32]> {
        if chunk == self.first_chunk {
            self.before
        } else {
            *self.slot(chunk.checked_sub(1)?)?
        }
    }

    /// Counts a doubt; `false` if there were too many.
    fn doubt(&mut self, chunk: u64) -> bool {
        match self
            .doubts
            .iter_mut()
            .find(|(doubted, _)| *doubted == chunk)
        {
            Some((_, count)) => {
                *count += 1;
                *count <= REPAIRS_MAX
            }
            None => {
                self.doubts.push((chunk, 1));
                true
            }
        }
    }
}

impl Sender {
    pub(super) fn hashed(&mut self, entry: EntryId, chunk: ChunkIndex, value: [u8; 32]) {
        let hash = self.options.hash;
        let ChunkIndex(chunk) = chunk;
        // It may have failed or been settled meanwhile.
        if self.open_file(entry).is_none() {
            return;
        }
        if hash == HashKind::Sha256 {
            self.hashed_ahead(entry, chunk, value);
        } else if hash == HashKind::Blake3
            && let Some(region) = self.window_of(entry, chunk)
        {
            match self
                .proofs(region)
                .and_then(|proofs| proofs.tell(chunk, value))
            {
                None => self.digests.push(ChunkDigest {
                    entry,
                    chunk,
                    value,
                }),
                Some(first) if first != value => self.fail_entry(entry, changed()),
                Some(_) => {}
            }
        }
    }

    fn hashed_ahead(&mut self, entry: EntryId, chunk: u64, value: [u8; 32]) {
        let Some(file) = self.open_file(entry) else {
            return;
        };
        file.hashed = Some((chunk, value));
        // At most a few windows, and none of them twice.
        for n in 0.. {
            let Some(file) = self.open_file(entry) else {
                return;
            };
            let Some(&region) = file.windows.get(n) else {
                break;
            };
            if let Some(proofs) = self.proofs(region) {
                proofs.tell(chunk, value);
                proofs.tell_before(chunk, value);
            }
        }
        self.grant_windows(entry);
    }

    /// The region that has this chunk of the file.
    fn window_of(&mut self, entry: EntryId, chunk: u64) -> Option<RegionId> {
        for n in 0.. {
            let region = *self.open_file(entry)?.windows.get(n)?;
            if self
                .proofs(region)
                .is_some_and(|proofs| proofs.holds(chunk))
            {
                return Some(region);
            }
        }
        None
    }

    fn proofs(&mut self, region: RegionId) -> Option<&mut Proofs> {
        self.regions
            .get_mut(&region)?
            .window_mut()
            .map(|window| &mut window.proofs)
    }

    pub(super) fn recheck(&mut self, entry: EntryId, chunk: u64) -> Result<(), Fault> {
        let record = self.entries.get(&entry).filter(|record| !record.settled);
        match record.map(|record| &record.state) {
            // The receiver will hear why, or has by now.
            Some(State::Failed) => return Ok(()),
            Some(State::Open(_)) => {}
            _ => return Err(protocol("a recheck of a file that is not open")),
        }
        let region = self.window_of(entry, chunk);
        let granted = |region: &RegionId| {
            self.regions
                .get(region)
                .is_some_and(super::regions::Region::is_granted)
        };
        let Some(region) = region.filter(granted) else {
            return Err(protocol("a recheck of a chunk that is not granted"));
        };
        let Some(proofs) = self.proofs(region) else {
            return Ok(());
        };
        let before = proofs.before(chunk);
        if !proofs.doubt(chunk) {
            return Err(protocol("a chunk is rechecked too often"));
        }
        if let Some(record) = self.entries.get_mut(&entry) {
            record.holders += 1;
        }
        self.start_job(Output::Rehash {
            entry,
            chunk: ChunkIndex(chunk),
            before,
        });
        Ok(())
    }

    pub(super) fn rehashed(
        &mut self,
        entry: EntryId,
        chunk: ChunkIndex,
        result: Result<[u8; 32], Fault>,
    ) -> Result<(), Fault> {
        self.job_done()?;
        if !self.entries.contains_key(&entry) {
            return Err(internal("a chunk was hashed again that was not asked for"));
        }
        let ChunkIndex(chunk) = chunk;
        match result {
            Err(fault) => self.fail_entry(entry, fault),
            Ok(value) => self.compare(entry, chunk, value),
        }
        self.let_go(entry);
        Ok(())
    }

    /// The chunk reads as `value` now. If it did before, it was damaged on its way.
    fn compare(&mut self, entry: EntryId, chunk: u64, value: [u8; 32]) {
        let Some(region) = self.window_of(entry, chunk) else {
            return;
        };
        let value = if self.options.hash == HashKind::None {
            [0; 32]
        } else {
            value
        };
        match self
            .proofs(region)
            .and_then(|proofs| proofs.tell(chunk, value))
        {
            Some(first) if first != value => self.fail_entry(entry, changed()),
            _ => self.digests.push(ChunkDigest {
                entry,
                chunk,
                value,
            }),
        }
    }
}

fn changed() -> Fault {
    let text = "the source reads differently than a moment ago; copy it again";
    Fault::new(FaultCode::SourceChanged, text)
}
