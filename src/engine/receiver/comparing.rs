//! Chunks that an older copy at the destination may have: they are compared before they are fetched.
//!
//! In: which chunks the older copy has, the sender's digests as they are told. Out: orders to compare,
//! in portions that keep several workers busy and none for long; chunks that need not be fetched. What
//! the older copy is, where it lies and how its chunks get into the new file is storage's affair: a chunk
//! counts only because what lies in the new file has the digest that the sender told in this run.

use crate::engine::{Event, internal};
use crate::ids::{EntryId, RegionId};
use crate::units::ChunkIndex;
use crate::wire::Fault;
use crate::wire::message::HashKind;

use super::entries::State;
use super::file::{ChunkState, Phase, Step, Window};
use super::{Output, Receiver};

/// Bytes that one order to compare is of, at least, while there is more to come of its window.
const PORTION_BYTES: u64 = 16 << 20;

/// The chunks of a window that wait to be compared.
#[derive(Debug, Default)]
pub(super) struct Comparing {
    /// How many wait for the sender's digest.
    untold: u32,
    /// Those whose digest is known.
    told: Vec<u32>,
}

impl Comparing {
    /// The digest of one that waited has come.
    pub(super) fn tell(&mut self, index: u32) -> Step {
        self.untold = self.untold.saturating_sub(1);
        self.told.push(index);
        Step::Compare
    }
}

impl Window {
    /// Sets those of its chunks aside that come before chunk `older` of the file and that nobody has
    /// begun with.
    pub(super) fn set_aside(&mut self, older: u64, hash: HashKind) {
        let count = u32::try_from(self.chunks.len()).unwrap_or(u32::MAX);
        for index in 0..count {
            let waits = self.chunks[index as usize].state == ChunkState::Waiting;
            let provable = hash != HashKind::Sha256 || self.is_provable(index);
            if !waits || !provable || self.chunk_index(index).0 >= older {
                continue;
            }
            let chunk = &mut self.chunks[index as usize];
            chunk.state = ChunkState::Older;
            match chunk.told {
                true => self.comparing.told.push(index),
                false => self.comparing.untold += 1,
            }
        }
    }

    /// Those to compare next, if they are enough for an order or the last.
    fn next_portion(&mut self, enough: usize) -> Vec<u32> {
        let Comparing { untold, told } = &mut self.comparing;
        if *untold > 0 && told.len() < enough {
            return Vec::new();
        }
        let portion: Vec<u32> = told.drain(..told.len().min(enough)).collect();
        for &index in &portion {
            self.chunks[index as usize].state = ChunkState::Comparing;
        }
        portion
    }

    /// What came of comparing a chunk. `None`: that was not asked.
    fn compared(&mut self, index: u32, same: bool) -> Option<Step> {
        if self.chunks[index as usize].state != ChunkState::Comparing {
            return None;
        }
        if same {
            return Some(self.verify(index));
        }
        self.chunks[index as usize].state = ChunkState::Waiting;
        self.again.push_back((index, None));
        Some(Step::Ready)
    }
}

impl Receiver {
    /// Orders what can be compared of the file.
    pub(super) fn compare(&mut self, entry: EntryId) {
        if self.is_ending() {
            return;
        }
        let (hash, size) = (self.options.hash, self.options.chunk);
        let enough = usize::try_from(PORTION_BYTES / size.bytes()).unwrap_or(1);
        let Some(State::File(file)) = self.entries.get_mut(&entry).map(|record| &mut record.state)
        else {
            return;
        };
        if !matches!(file.phase, Phase::Fetching) {
            return;
        }
        for window in &mut file.windows {
            loop {
                let portion = window.next_portion(enough.max(1));
                if portion.is_empty() {
                    break;
                }
                let chunks = portion.into_iter().filter_map(|index| {
                    let value = window.digest(index)?;
                    Some((window.chunk_index(index), window.proof(index, hash), value))
                });
                let chunks = chunks.collect();
                file.pending += 1;
                self.jobs += 1;
                self.outputs.push_back(Output::Compare {
                    entry,
                    region: window.region,
                    chunks,
                    data: window.data.clone(),
                });
            }
        }
    }

    pub(super) fn compared(
        &mut self,
        entry: EntryId,
        region: RegionId,
        result: Result<Vec<(ChunkIndex, bool)>, Fault>,
    ) -> Result<(), Fault> {
        self.job_done()?;
        let (ending, size) = (self.is_ending(), self.options.chunk);
        let Some(file) = self.file(entry) else {
            return Err(internal("chunks were compared of a file that is gone"));
        };
        file.pending -= 1;
        if ending {
            return Ok(());
        }
        if file.is_failing() {
            self.drain(entry);
            return Ok(());
        }
        let chunks = match result {
            Ok(chunks) => chunks,
            Err(fault) => {
                self.fail_file(entry, fault);
                return Ok(());
            }
        };
        let file_len = file.granted.map_or(0, |(_, len)| len);
        let Some(window) = file.window(region) else {
            return Err(internal(
                "chunks were compared of a region that was released",
            ));
        };
        let mut bytes = 0;
        let mut reused = Vec::with_capacity(chunks.len());
        for (chunk, same) in chunks {
            let step = window
                .position(chunk.0)
                .and_then(|index| Some((index, window.compared(index, same)?)));
            match step {
                Some((index, Step::Verified)) => {
                    bytes += size.range(chunk, file_len).len();
                    reused.push(Output::Verified {
                        entry,
                        chunk,
                        digest: window.digest(index),
                    });
                }
                Some(_) => {}
                None => return Err(internal("a chunk was compared that was not asked for")),
            }
        }
        self.outputs.extend(reused);
        if bytes > 0 {
            let all = &mut self.ledger.carried.reused;
            *all = all.saturating_add(bytes);
            self.outputs
                .push_back(Output::Event(Event::Reused { entry, bytes }));
        }
        self.end_window(entry, region);
        self.enqueue(entry);
        Ok(())
    }
}
