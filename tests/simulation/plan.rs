//! What a seed stands for: a tree, the bounds of both ends, and everything that will go wrong.

use rdcp::engine::receiver::{Placed, ReceiverOptions};
use rdcp::engine::sender::SenderOptions;
use rdcp::ids::{EntryId, RegionId};
use rdcp::limits::{PACK_FILE_BYTES_MAX, WINDOW_BYTES};
use rdcp::manifest::{EntryKind, Note, Place};
use rdcp::units::{ChunkRange, ChunkSize};
use rdcp::wire::FaultCode;
use rdcp::wire::message::{HashKind, Outcome, Wanted};

use super::files::{SourceFile, Tree, Trouble, fault};
use super::random::Random;
use super::ways::TCP;

/// What goes wrong beside the troubles of single files. All "one in n steps" unless told
/// otherwise, 0 is never.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub lane_down: u64,
    pub lane_up: u64,
    /// Of the fetches over rails: they meet a remote access error, which ends their connection.
    pub denied: u64,
    /// Regions that have no key for a rail.
    pub keyless: u64,
    pub source_change: u64,
    /// Cancels the receiver (false) or the sender (true) at this step.
    pub cancel: Option<(u64, bool)>,
    /// The walk fails at this page.
    pub walk_fails: Option<usize>,
}

#[derive(Debug)]
pub struct Plan {
    pub random: Random,
    pub receiver: ReceiverOptions,
    pub sender: SenderOptions,
    /// The rail of each lane.
    pub rails: Vec<u16>,
    pub faults: Faults,
    /// What the source can expose at once, one of these per file.
    pub window_bytes: &'static [u64],
    pub tree: Tree,
    /// Earlier runs have left parts of some files.
    pub interrupted: bool,
    /// Some files have an older copy at the destination.
    pub older: bool,
    /// What storage says of entries that it does not simply take.
    pub placed: std::collections::BTreeMap<EntryId, Placed>,
}

impl Plan {
    /// The plain case: nothing goes wrong, credit is ample.
    pub fn quiet(hash: HashKind, chunk: ChunkSize) -> Self {
        Self {
            random: Random::new(1),
            receiver: ReceiverOptions::new(hash, chunk),
            sender: SenderOptions::new(hash, chunk),
            rails: vec![TCP; 2],
            faults: Faults::default(),
            window_bytes: &[WINDOW_BYTES],
            tree: Tree::default(),
            interrupted: false,
            older: false,
            placed: Default::default(),
        }
    }

    pub fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let hash = random.pick(&[HashKind::Blake3, HashKind::Sha256, HashKind::None]);
        let log2 = random.pick(&[16, 18, 20, 20, 20, 24]);
        let chunk = ChunkSize::from_log2(log2).unwrap();
        let mut plan = Self::quiet(hash, chunk);
        plan.interrupted = hash != HashKind::None;
        plan.older = true;
        let lanes = 1 + random.below(4);
        plan.rails = match random.below(2) {
            0 => vec![TCP; usize::try_from(lanes).unwrap()],
            _ => (0..=lanes).map(|_| random.pick(&[TCP, 1, 2, 3])).collect(),
        };
        plan.draw_bounds(&mut random);
        plan.draw_faults(&mut random);
        plan.draw_tree(&mut random);
        plan.random = random;
        plan
    }

    fn draw_bounds(&mut self, random: &mut Random) {
        let chunk = self.receiver.chunk.bytes();
        let least = chunk.max(PACK_FILE_BYTES_MAX);
        self.receiver.pages_credit = random.pick(&[1, 1, 2, 16]);
        self.receiver.region_credit_bytes = random.pick(&[
            least,
            least,
            least + 1,
            3 * least + 17,
            8 << 20,
            WINDOW_BYTES,
            256 << 20,
        ]);
        self.receiver.lane_fetches_max = random.pick(&[1, 2, 8]);
        self.receiver.in_flight_bytes_max = random.pick(&[1, chunk, 5 * chunk, 64 << 20]);
        self.receiver.fail_early = random.one_in(16);
        self.window_bytes = &[1, 4 << 20, 5 << 20, WINDOW_BYTES, u64::MAX];
        self.sender.open_files_max = random.pick(&[1, 2, 128]);
        self.sender.pack_bytes_max = random.pick(&[1, 4 << 20, 64 << 20]);
        self.sender.regions_max = random.pick(&[2, 3, 256]);
        self.sender.fail_early = random.one_in(16);
        self.sender.first_region = RegionId(random.below(1 << 40));
    }

    fn draw_faults(&mut self, random: &mut Random) {
        if random.one_in(2) {
            self.faults.lane_down = random.pick(&[20, 100, 500]);
        }
        self.faults.lane_up = 10;
        self.faults.denied = random.pick(&[0, 0, 3, 30, 200]);
        self.faults.keyless = random.pick(&[0, 2, 5]);
        self.faults.source_change = random.pick(&[20, 100, 400]);
        if random.one_in(8) {
            self.faults.cancel = Some((random.below(400), random.one_in(2)));
        }
    }

    fn draw_tree(&mut self, random: &mut Random) {
        let items_per_page = 1 + random.below(random.clone().pick(&[3, 8, 60]));
        let entries = random.below(random.clone().pick(&[4, 40, 120]));
        let mut open: Vec<EntryId> = Vec::new();
        let mut linkable: Vec<EntryId> = Vec::new();
        for _ in 0..entries {
            let parent = open.last().copied();
            match random.below(20) {
                0 | 1 if open.len() < 12 => {
                    let directory = self.tree.add(parent, EntryKind::Directory);
                    if random.one_in(8) {
                        // It can't be made; in this tree there is nothing below it.
                        let failed = Outcome::Failed(fault(FaultCode::Denied));
                        self.placed.insert(directory, Placed::Settled(failed));
                    } else {
                        open.push(directory);
                    }
                }
                2 | 3 => {
                    if let Some(directory) = open.pop() {
                        self.tree.end_directory(directory);
                    }
                }
                4 => drop(
                    self.tree
                        .add(parent, EntryKind::Symlink(b"target".to_vec())),
                ),
                5 if !linkable.is_empty() => {
                    let to = random.pick(&linkable);
                    self.tree.add(parent, EntryKind::HardLink(to));
                }
                6 => self.tree.note(Note::Skipped {
                    place: Place::Root(0),
                    fault: fault(FaultCode::Special),
                    failure: random.one_in(4),
                }),
                _ => {
                    let linked = random.one_in(5);
                    let file = self.draw_file(random);
                    let wanted = self.draw_wanted(random, &file);
                    let id = self.tree.add_file(parent, file, linked);
                    if linked {
                        linkable.push(id);
                    }
                    self.placed.extend(wanted.map(|placed| (id, placed)));
                }
            }
            if self.tree.unpaged() as u64 >= items_per_page {
                self.tree.end_page(false);
            }
        }
        while let Some(directory) = open.pop() {
            self.tree.end_directory(directory);
            if random.one_in(3) {
                self.tree.end_page(false);
            }
        }
        self.tree.end_page(true);
        if random.one_in(30) {
            self.faults.walk_fails = Some(random.index(self.tree.pages.len()));
        }
    }

    fn draw_file(&self, random: &mut Random) -> SourceFile {
        let chunk = self.receiver.chunk;
        let len = match random.below(10) {
            0 => 0,
            1..=4 => random.below(9000),
            5 | 6 => random.below(PACK_FILE_BYTES_MAX + 2),
            7 => chunk.bytes() * random.below(5),
            8 => random.below(chunk.bytes() * 30),
            _ => random.below(chunk.bytes() * 150),
        };
        let mut file = SourceFile::new(random.next(), len, chunk);
        if random.one_in(4) {
            // Sparse: runs of chunks with and without data.
            let mut data = random.one_in(2);
            for has_data in &mut file.data {
                if random.one_in(4) {
                    data = !data;
                }
                *has_data = data;
            }
        }
        if random.one_in(10) {
            // It grew or shrank since it was listed.
            file.listed_len = random.below(2 * len + PACK_FILE_BYTES_MAX);
        }
        if random.one_in(5) {
            let full = if random.one_in(8) {
                Trouble::Full
            } else {
                Trouble::None
            };
            file.trouble = random.pick(&[
                Trouble::Vanishes,
                Trouble::Unreadable(1),
                Trouble::Unreadable(4),
                Trouble::Changes,
                Trouble::ChangesUnseen,
                Trouble::Damaged(1),
                Trouble::Damaged(2),
                Trouble::Damaged(8),
                Trouble::PrepareFails,
                Trouble::AllocateFails,
                Trouble::WriteFails,
                Trouble::PublishFails,
                full,
            ]);
        }
        file
    }

    fn draw_wanted(&self, random: &mut Random, file: &SourceFile) -> Option<Placed> {
        match random.below(12) {
            0 => Some(Placed::Settled(Outcome::Unchanged)),
            1 if random.one_in(3) => {
                Some(Placed::Settled(Outcome::Failed(fault(FaultCode::Exists))))
            }
            2 | 3 => {
                // What a journal did not have; the last range may reach beyond the file.
                let mut ranges = Vec::new();
                let mut at = random.below(3);
                while at <= file.data.len() as u64 {
                    let end = at + 1 + random.below(20);
                    ranges.push(ChunkRange { start: at, end });
                    at = end + random.below(9);
                }
                (!ranges.is_empty()).then_some(Placed::Fetch(Wanted::Chunks(ranges)))
            }
            _ => None,
        }
    }

    /// Whether the run may end before its time.
    pub fn may_end_early(&self) -> bool {
        self.faults.cancel.is_some()
            || self.faults.walk_fails.is_some()
            || self.receiver.fail_early
            || self.sender.fail_early
    }
}
