//! The whole path under seeded chance: both engines, both drivers on a clock that is set by hand, a
//! transport in memory, and the storage that is shipped over a disk that fails and loses power.
//!
//! A seed stands for a tree and for several lives of the two programs. In each, calls fail, the session
//! is lost, a READ is damaged, the program is killed, or the power goes and the next life finds what a
//! disk may then hold. Looked at after every life, in the live directory and in the one that is left:
//! what has a name is one of the versions that there were, whole; what was said to be published is
//! durable; no journal claims a chunk that is not so; no memory, seat, region or descriptor stays. In
//! the last life nothing goes wrong, and everything is as at the source.
//!
//! All runs in one thread: jobs of the workers and fetches of the lanes are carried out one after
//! another, in an order that the seed draws. So a seed replays the same run:
//! `RDCP_SEED=n cargo test -p rdcp --lib simulation`. `RDCP_SEEDS=n` sets how many are tried; one more
//! is made of the commit.

mod check;
mod plan;
#[path = "../../tests/simulation/random.rs"]
#[allow(unreachable_pub, missing_docs, dead_code)]
pub(crate) mod random;
mod stage;
pub(crate) mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use check::{Claimed, Granted};
use plan::{Ending, Life, Plan};
use random::Random;
use stage::{Kit, Told, live};

use crate::storage::calls::disk::{self, Call, Disk, Order};
use crate::storage::calls::image::Image;
use crate::wire::FaultCode;

/// Seeds of an ordinary run.
const SEEDS: u64 = 3000;
/// Seeds that are run twice.
const SEEDS_REPEATED: u64 = 40;

/// What happened in all runs together: a simulation without power cuts proves nothing of them.
#[derive(Clone, Debug, Default)]
struct Coverage {
    seeds: u64,
    lives: u64,
    steps: u64,
    calls: u64,
    kills: u64,
    power_cuts: u64,
    lost: u64,
    cancelled: u64,
    ended_early: u64,
    published: u64,
    carried: u64,
    damaged: u64,
    broken: u64,
    torn: u64,
    missing: u64,
    /// Chunks that journals claimed after a life, and those of them that were not so on the disk.
    claimed: u64,
    misclaimed: u64,
    resumed: u64,
    reused: u64,
    failed: BTreeMap<Call, u64>,
    faults: BTreeSet<String>,
}

/// Tells which seed failed, however it failed.
struct Telltale(u64);

impl Drop for Telltale {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {0} failed; replay it with RDCP_SEED={0}", self.0);
            eprintln!("it was {}", Plan::from_seed(self.0).describe());
        }
    }
}

/// The directories of one seed; removed at its end.
struct Place(PathBuf);

impl Place {
    fn new(seed: u64) -> Self {
        let memory = Path::new("/dev/shm");
        let beside = std::env::temp_dir();
        let within = if memory.is_dir() { memory } else { &beside };
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rdcp-simulation-{}-{number}-{seed}", std::process::id());
        let place = within.join(name);
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir(&place).unwrap();
        Self(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        disk::replace(None);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One seed from its first life to its last.
struct World<'a> {
    plan: Plan,
    kit: &'a Kit,
    random: Random,
    place: Place,
    /// What the destination is now: a new directory after each power cut.
    top: PathBuf,
    disks: u64,
    /// What stood at the destination before, and all states of the source; the last one is now.
    history: Vec<crate::simulation::tree::Tree>,
    granted: Vec<Granted>,
    /// What journals claimed and was not so when this life began.
    wrong: BTreeSet<(Vec<u8>, u64)>,
    trace: u64,
}

impl<'a> World<'a> {
    fn new(seed: u64, kit: &'a Kit) -> Self {
        let plan = Plan::from_seed(seed);
        let place = Place::new(seed);
        let source = place.0.join("source");
        let top = place.0.join("0");
        for directory in [&source, &top] {
            std::fs::create_dir(directory).unwrap();
        }
        plan.source.lay_out(&source);
        if !plan.older.0.is_empty() {
            let at = tree::place(&top, plan.destination);
            std::fs::create_dir_all(&at).unwrap();
            plan.older.lay_out(&at);
        }
        let granted = Granted::of(&plan.source, &source, &plan);
        Self {
            history: vec![plan.older.clone(), plan.source.clone()],
            plan,
            kit,
            random: Random::new(seed),
            place,
            top,
            disks: 0,
            granted,
            wrong: BTreeSet::new(),
            trace: 0,
        }
    }

    fn source(&self) -> PathBuf {
        self.place.0.join("source")
    }

    fn run(&mut self, coverage: &mut Coverage) {
        coverage.seeds += 1;
        self.insert_disk();
        for life in self.plan.lives.clone() {
            if life.source_changes {
                self.change_source();
            }
            self.live_through(&life, coverage);
        }
        self.last_life(coverage);
    }

    fn insert_disk(&self) {
        let random = Random::new(random::mix(self.trace ^ self.disks));
        let disk = Disk::new(&self.top, self.plan.order, disk::Script::default(), random);
        disk::replace(Some(disk));
    }

    fn change_source(&mut self) {
        let mut tree = self.history.last().expect("it has one").clone();
        tree.change(&mut self.random);
        tree.lay_out(&self.source());
        self.granted
            .extend(Granted::of(&tree, &self.source(), &self.plan));
        self.history.push(tree);
    }

    fn live_through(&mut self, life: &Life, coverage: &mut Coverage) -> Told {
        disk::with(|disk| disk.go_on(life.script.clone()));
        let failed_before = disk::with(|disk| disk.failed.clone()).unwrap_or_default();
        let source = self.source();
        let told = live(
            &self.plan,
            life,
            (&source, &self.top),
            self.kit,
            &mut self.random,
        );
        self.trace = random::mix(self.trace ^ told.trace);
        coverage.count(life, &told);
        self.describe(&told);
        if let Some(Some(fault)) = &told.ended {
            let is_ours = matches!(fault.code, FaultCode::Internal | FaultCode::Protocol);
            assert!(!is_ours, "the run ended with {fault:?}");
        }
        for (path, fault) in &told.failed {
            let shown = path.escape_ascii();
            assert!(
                fault.code != FaultCode::Internal,
                "{shown} failed with {fault:?}"
            );
        }

        let when = "while it was on";
        check::visible(when, &self.top, &self.plan, &self.history);
        let now = self.history.last().expect("it has one").clone();
        check::published(when, &self.top, &self.plan, &now, &told.published);
        let failed = disk::with(|disk| disk.failed.clone()).unwrap_or_default();
        let unlinks = |of: &BTreeMap<Call, u64>| of.get(&Call::Unlink).copied();
        // What could not be removed claims what was once so.
        let all_removed = unlinks(&failed) == unlinks(&failed_before);
        let live = check::claims(&self.top, &self.plan, &self.granted);
        self.judge(&live, all_removed, "the live directory");
        coverage.claimed += live.chunks;

        if life.ending == Ending::Power {
            let strict = all_removed && self.plan.order == Order::Journal;
            self.cut_power(&told, strict, coverage);
        } else {
            self.wrong = live.wrong;
        }
        told
    }

    /// Shows what a life came to, where one seed is replayed.
    fn describe(&self, told: &Told) {
        if number("RDCP_SEED").is_some() {
            let mut shown = Vec::new();
            check::walk(&self.top, b"", &mut |path, at| {
                let len = std::fs::symlink_metadata(at).unwrap().len();
                shown.push(format!("{} ({len})", path.escape_ascii()));
            });
            println!("{told:?}\nthere: {}", shown.join(", "));
        }
    }

    fn judge(&self, claimed: &Claimed, strict: bool, of: &str) {
        let new: Vec<_> = claimed.wrong.difference(&self.wrong).collect();
        assert!(
            !strict || new.is_empty(),
            "journals in {of} claim what is not so: {new:?}"
        );
    }

    /// What a disk may hold afterwards is what the next life finds.
    fn cut_power(&mut self, told: &Told, strict: bool, coverage: &mut Coverage) {
        let disk = disk::replace(None).expect("each life has one");
        coverage.calls += disk.made.values().sum::<u64>();
        for (call, times) in &disk.failed {
            *coverage.failed.entry(*call).or_default() += times;
        }
        let image = Image::draw(&disk, &mut self.random);
        coverage.torn += image.torn;
        coverage.missing += image.missing;
        self.disks += 1;
        self.top = self.place.0.join(self.disks.to_string());
        image.lay_out(&self.top);

        let when = "after the power cut";
        check::visible(when, &self.top, &self.plan, &self.history);
        let now = self.history.last().expect("it has one");
        check::published(when, &self.top, &self.plan, now, &told.published);
        let left = check::claims(&self.top, &self.plan, &self.granted);
        self.judge(&left, strict, "what the power cut left");
        coverage.misclaimed += left.wrong.len() as u64;
        self.wrong = left.wrong;
        self.insert_disk();
    }

    /// Nothing goes wrong any more; then the power goes once more.
    fn last_life(&mut self, coverage: &mut Coverage) {
        let source = self.history.last().expect("it has one").clone();
        disk::with(|disk| disk.go_on(disk::Script::default()));
        let told = live(
            &self.plan,
            &Life::quiet(),
            (&self.source(), &self.top),
            self.kit,
            &mut self.random,
        );
        self.trace = random::mix(self.trace ^ told.trace);
        coverage.count(&Life::quiet(), &told);
        self.describe(&told);
        assert_eq!(told.ended, Some(None), "the last life did not end well");
        assert!(
            told.failed.is_empty(),
            "in the last life: {:?}",
            told.failed
        );
        check::complete(&self.top, &self.plan, &source);
        check::tidy(&self.top, &self.plan, &source, &told.published);
        if self.plan.sync {
            self.cut_power(&told, false, coverage);
        }
    }
}

impl Coverage {
    fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.seeds, other.seeds),
            (&mut self.lives, other.lives),
            (&mut self.steps, other.steps),
            (&mut self.calls, other.calls),
            (&mut self.kills, other.kills),
            (&mut self.power_cuts, other.power_cuts),
            (&mut self.lost, other.lost),
            (&mut self.cancelled, other.cancelled),
            (&mut self.ended_early, other.ended_early),
            (&mut self.published, other.published),
            (&mut self.carried, other.carried),
            (&mut self.damaged, other.damaged),
            (&mut self.broken, other.broken),
            (&mut self.torn, other.torn),
            (&mut self.missing, other.missing),
            (&mut self.claimed, other.claimed),
            (&mut self.misclaimed, other.misclaimed),
            (&mut self.resumed, other.resumed),
            (&mut self.reused, other.reused),
        ] {
            *sum += more;
        }
        for (call, times) in &other.failed {
            *self.failed.entry(*call).or_default() += times;
        }
        self.faults.extend(other.faults.iter().cloned());
    }

    /// Whether each kind of trouble came up.
    fn assert_enough(&self) {
        let seeds = self.seeds;
        assert!(
            self.kills > seeds / 4 && self.power_cuts > seeds,
            "{self:?}"
        );
        assert!(
            self.lost > seeds / 10 && self.cancelled > seeds / 10,
            "{self:?}"
        );
        assert!(
            self.ended_early > seeds / 10 && self.published > seeds,
            "{self:?}"
        );
        assert!(
            self.damaged > seeds / 4 && self.broken > seeds / 20,
            "{self:?}"
        );
        assert!(
            self.torn > seeds / 4 && self.missing > seeds / 4,
            "{self:?}"
        );
        assert!(
            self.claimed > seeds / 10 && self.resumed > seeds << 10,
            "{self:?}"
        );
        assert!(self.reused > seeds << 8, "{self:?}");
        for call in Call::ALL {
            let failed = self.failed.get(call).copied().unwrap_or_default();
            assert!(failed > 0, "{call:?} never failed: {self:?}");
        }
    }

    fn count(&mut self, life: &Life, told: &Told) {
        self.lives += 1;
        self.steps += told.steps;
        self.published += told.published.len() as u64;
        self.carried += told.carried;
        self.damaged += told.damaged;
        self.broken += told.broken;
        self.resumed += told.resumed;
        self.reused += told.reused;
        self.ended_early += u64::from(matches!(told.ended, Some(Some(_))));
        *match life.ending {
            Ending::Power => &mut self.power_cuts,
            Ending::Kill => &mut self.kills,
            Ending::Lost(_) => &mut self.lost,
            Ending::Cancelled(_) => &mut self.cancelled,
            Ending::Itself => return,
        } += 1;
        let codes = told
            .failed
            .values()
            .map(|fault| format!("{:?}", fault.code));
        self.faults.extend(codes);
    }
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().expect("a number"))
}

fn run(seed: u64, kit: &Kit, coverage: &mut Coverage) -> u64 {
    let _telltale = Telltale(seed);
    let mut world = World::new(seed, kit);
    world.run(coverage);
    world.trace
}

#[test]
fn a_seed_replays_the_same_run() {
    let kit = Kit::new();
    for seed in 0..SEEDS_REPEATED {
        let [first, second] = [(); 2].map(|()| run(seed, &kit, &mut Coverage::default()));
        assert_eq!(
            first, second,
            "seed {seed} went another way the second time"
        );
    }
}

#[test]
fn every_seed_leaves_a_destination_that_is_right() {
    if let Some(seed) = number("RDCP_SEED") {
        let mut coverage = Coverage::default();
        run(seed, &Kit::new(), &mut coverage);
        println!("{coverage:#?}");
        return;
    }
    let seeds = number("RDCP_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let coverage = Mutex::new(Coverage::default());
    let failed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(8);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let (kit, mut own) = (Kit::new(), Coverage::default());
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let seed = match number.cmp(&seeds) {
                        std::cmp::Ordering::Less => Some(number),
                        std::cmp::Ordering::Equal => random::of_commit(),
                        std::cmp::Ordering::Greater => None,
                    };
                    let Some(seed) = seed else { break };
                    let work = AssertUnwindSafe(|| run(seed, &kit, &mut own));
                    if catch_unwind(work).is_err() {
                        failed.lock().unwrap().push(seed);
                    }
                }
                coverage.lock().unwrap().add(&own);
            });
        }
    });
    let coverage = coverage.into_inner().unwrap();
    println!("{coverage:?}");
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "seeds that failed: {failed:?}");
    if seeds >= 1000 {
        coverage.assert_enough();
    }
}
