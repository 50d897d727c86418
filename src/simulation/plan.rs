//! What a seed stands for: a tree, how it is copied, and what goes wrong in which life of the programs.

use super::random::Random;
use super::tree::Tree;
use crate::engine::receiver::ReceiverOptions;
use crate::storage::calls::disk::{Fault, FaultKind, Order, Script};
use crate::units::ChunkSize;
use crate::wire::message::{HashKind, Preserve, Reuse};

/// Lives before the last one, in which nothing goes wrong.
const LIVES_MAX: u64 = 3;

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) source: Tree,
    pub(crate) older: Tree,
    /// Where the tree goes, below the directory that is there.
    pub(crate) destination: &'static [u8],
    pub(crate) hash: HashKind,
    pub(crate) chunk: ChunkSize,
    pub(crate) sync: bool,
    pub(crate) resume: bool,
    pub(crate) preserve: Preserve,
    pub(crate) reuse: Reuse,
    pub(crate) receiver: ReceiverOptions,
    pub(crate) connections: u64,
    pub(crate) descriptors: usize,
    pub(crate) order: Order,
    pub(crate) lives: Vec<Life>,
}

/// From the start of both programs to their end.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) script: Script,
    pub(crate) ending: Ending,
    /// The source is changed before it.
    pub(crate) source_changes: bool,
    /// One READ in so many is damaged under way; 0: none.
    pub(crate) damaged: u64,
    /// A connection breaks once in so many steps; 0: none does.
    pub(crate) breaks: u64,
    /// Time passes once in so many steps, enough for journals to be written; 0: never while something
    /// can be done.
    pub(crate) pauses: u64,
    /// The receiver means to go on in another session if it loses this one.
    pub(crate) goes_on: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It comes to its end.
    Itself,
    /// Its program is killed where the script ends, or afterwards.
    Kill,
    /// The power goes where the script ends, or afterwards.
    Power,
    /// The session is lost after so many steps.
    Lost(u64),
    /// It is cancelled after so many steps.
    Cancelled(u64),
}

impl Plan {
    pub(crate) fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x0073_696d_756c_6174);
        let random = &mut random;
        let hash = random.pick(&[
            HashKind::Blake3,
            HashKind::Blake3,
            HashKind::Blake3,
            HashKind::Sha256,
            HashKind::Sha256,
            HashKind::None,
        ]);
        let chunk = random.pick(&[ChunkSize::MIN, ChunkSize::MIN, ChunkSize::DEFAULT]);
        let source = Tree::draw(random);
        let older = match random.one_in(3) {
            true => Tree::default(),
            false => source.older(random),
        };
        let destination: &[u8] = random.pick(&[b"", b"copy", b"made/for/copy"]);
        let hashed = hash != HashKind::None;
        let reuse = Reuse {
            delta: hashed && random.one_in(2),
            checksum: hashed && random.one_in(8),
            in_place: random.one_in(5),
        };
        let sync = !random.one_in(8);
        let defaults = ReceiverOptions::new(hash, chunk);
        let receiver = ReceiverOptions {
            pages_credit: random.pick(&[1, defaults.pages_credit]),
            region_credit_bytes: random.pick(&[1, 1 << 20, defaults.region_credit_bytes]),
            lane_fetches_max: random.pick(&[1, 2, defaults.lane_fetches_max]),
            fail_early: random.one_in(12),
            ..defaults
        };
        let lives = (0..1 + random.below(LIVES_MAX)).map(|number| Life::draw(number, random));
        let mut lives: Vec<_> = lives.collect();
        for life in &mut lives {
            // Without syncs nothing is promised of power cuts, without a hash nothing of damage.
            if !sync && life.ending == Ending::Power {
                life.ending = Ending::Kill;
            }
            if !hashed {
                life.damaged = 0;
            }
        }
        Self {
            lives,
            source,
            older,
            destination,
            hash,
            chunk,
            sync,
            resume: !random.one_in(8),
            preserve: Preserve {
                mode: true,
                symlinks: true,
                // What has several names is never written in place.
                hard_links: !reuse.in_place && !random.one_in(6),
                xattrs: false,
                owner: false,
            },
            reuse,
            receiver,
            connections: 1 + random.below(3),
            descriptors: random.pick(&[8, 16, 256]),
            order: random.pick(&[Order::Journal, Order::None]),
        }
    }
}

impl Plan {
    /// In a line.
    pub(crate) fn describe(&self) -> String {
        let lives: Vec<_> = self
            .lives
            .iter()
            .map(|life| (life.ending, life.script.ends_at, &life.script.faults))
            .collect();
        format!(
            "{:?}, order {:?}, synced: {}, resumed: {}, {:?}, lives {lives:?}",
            self.hash, self.order, self.sync, self.resume, self.reuse
        )
    }
}

impl Life {
    /// The last one.
    pub(crate) fn quiet() -> Self {
        Self {
            script: Script::default(),
            ending: Ending::Power,
            source_changes: false,
            damaged: 0,
            breaks: 0,
            pauses: 3,
            goes_on: false,
        }
    }

    fn draw(number: u64, random: &mut Random) -> Self {
        let mut script = Script::default();
        let some_call = |random: &mut Random| match random.below(4) {
            0 => random.below(12),
            1 => random.below(150),
            _ => random.below(50),
        };
        for _ in 0..random.pick(&[0, 0, 1, 1, 2]) {
            let kind = random.pick(&[
                FaultKind::Any,
                FaultKind::Any,
                FaultKind::Any,
                FaultKind::Syncs,
                FaultKind::Syncs,
                FaultKind::Full,
                FaultKind::ReadOnly,
                FaultKind::Short,
            ]);
            let calls = match kind {
                FaultKind::Any => random.pick(&[1, 1, 1, 3]),
                FaultKind::Syncs => random.pick(&[1, 1, 2, 30]),
                _ => random.pick(&[3, 40, 100_000]),
            };
            let first = some_call(random);
            script.faults.push(Fault { first, calls, kind });
        }
        let ending = match random.below(8) {
            0..=2 => Ending::Power,
            3 | 4 => Ending::Kill,
            5 => Ending::Lost(random.below(60)),
            6 => Ending::Cancelled(random.below(60)),
            _ => Ending::Itself,
        };
        if matches!(ending, Ending::Power | Ending::Kill) && !random.one_in(4) {
            script.ends_at = Some(some_call(random));
        }
        Self {
            script,
            ending,
            source_changes: number > 0 && random.one_in(5),
            damaged: random.pick(&[0, 0, 4]),
            breaks: random.pick(&[0, 0, 0, 25]),
            pauses: random.pick(&[0, 2, 3, 6]),
            goes_on: random.one_in(2),
        }
    }
}
