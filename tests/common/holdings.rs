//! What a daemon holds, before and after: nothing of what peers made it take may stay.

use std::time::{Duration, Instant};
use std::{fs, thread};

use super::{DEADLINE, Daemon, World};

/// Memory that a daemon may take on beyond what it had after its first transfers, in KiB.
const GROWTH_KIB_MAX: u64 = 64 << 10;

/// What a daemon holds.
pub(crate) struct Holdings {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    pub(crate) anonymous_kib: u64,
}

impl Holdings {
    /// After everything that is started once has been started: by transfers both ways, several
    /// at once.
    pub(crate) fn after_warming_up(world: &World, daemon: &Daemon) -> Self {
        world.write("export/warm", vec![1; 3 << 20]);
        let pulls: Vec<_> = (0..4)
            .map(|number| {
                let words = [daemon.url("data/warm"), format!("warm{number}").into()];
                world.rdcp("pull").args(words).start()
            })
            .collect();
        for pull in pulls {
            pull.wait().ok();
        }
        world
            .rdcp("push")
            .args(["warm0".into(), daemon.url("data/warm")])
            .run()
            .ok();
        // The sessions' descriptors are closed a moment after their clients have gone.
        let mut least = Self::of(daemon);
        for _ in 0..40 {
            thread::sleep(Duration::from_millis(10));
            let now = Self::of(daemon);
            least.descriptors = least.descriptors.min(now.descriptors);
            least.threads = least.threads.max(now.threads);
        }
        least
    }

    pub(crate) fn of(daemon: &Daemon) -> Self {
        Self {
            descriptors: daemon.descriptors(),
            threads: daemon.threads(),
            anonymous_kib: daemon.anonymous_kib(),
        }
    }

    /// Everything that came on top is given back.
    #[track_caller]
    pub(crate) fn assert_again(&self, daemon: &Daemon) {
        let start = Instant::now();
        loop {
            let now = Self::of(daemon);
            // A blocking pool may keep a thread or two more for a while.
            if now.descriptors <= self.descriptors && now.threads <= self.threads + 4 {
                break;
            }
            assert!(
                start.elapsed() < DEADLINE,
                "descriptors grew from {} to {}, threads from {} to {}",
                self.descriptors,
                now.descriptors,
                self.threads,
                now.threads
            );
            thread::sleep(Duration::from_millis(10));
        }
        let now = daemon.anonymous_kib();
        assert!(
            now < self.anonymous_kib + GROWTH_KIB_MAX,
            "memory grew from {} to {now} KiB",
            self.anonymous_kib
        );
    }
}

/// Others are served now.
#[track_caller]
pub(crate) fn assert_serves(world: &World, daemon: &Daemon) {
    let words = [daemon.url("data/warm"), "served".into()];
    world.rdcp("pull").arg("--no-fsync").args(words).run().ok();
    assert_eq!(world.read("local/served").len(), 3 << 20);
    fs::remove_file(world.path("local/served")).unwrap();
}
