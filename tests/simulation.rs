//! Both engines under seeded chance: every order of events, lost lanes, damaged bytes, changing
//! sources, failing stores, cancelled runs, credit at its minimum.
//!
//! `RDCP_SEED=n` replays one seed, `RDCP_SEEDS=n` sets how many are tried.

#![allow(missing_docs, unreachable_pub, clippy::cast_possible_truncation)]

#[path = "simulation/files.rs"]
mod files;
#[path = "simulation/pair.rs"]
mod pair;
#[path = "simulation/plan.rs"]
mod plan;
#[path = "simulation/random.rs"]
mod random;

use pair::Pair;
use plan::Plan;

/// Tells which seed failed, however it failed.
struct Telltale(u64);

impl Drop for Telltale {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {0} failed; replay it with RDCP_SEED={0}", self.0);
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

fn run(seed: u64) -> u64 {
    let _telltale = Telltale(seed);
    let mut pair = Pair::new(Plan::from_seed(seed));
    pair.drive();
    pair.check_end();
    pair.steps
}

#[test]
fn every_seed_ends_as_its_plan_allows() {
    if let Some(seed) = number("RDCP_SEED") {
        run(seed);
        return;
    }
    let seeds = number("RDCP_SEEDS").unwrap_or(1000);
    let steps: u64 = (0..seeds).map(run).sum();
    println!("{seeds} seeds, {steps} steps");
}
