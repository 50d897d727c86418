//! What a server removes by itself: what copies that died left in its writable exports.
//!
//! In: the exports. Out: lines of the log. A copy into a directory sweeps that one anyway; this is for
//! those that nobody copies into any more. It begins when the server does and comes back every day, on
//! a thread of the lowest priority that rests after each directory, and gives up for the day after
//! some minutes. Which names may go is storage's question, and the same as for copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::serving::Serving;
use crate::storage::Root;
use crate::storage::cleaning::{Swept, sweep_tree};

/// Pause between sweeps: what is left for seven days goes on the eighth.
const SWEEP_PAUSE: Duration = Duration::from_secs(24 * 3600);
/// Longest sweep of all exports together.
const SWEEP_TIME_MAX: Duration = Duration::from_secs(600);
/// Rest after each directory, so that a disk has time for others.
const REST: Duration = Duration::from_millis(1);
/// How much nicer than the rest of the process the thread is: as nice as can be.
const NICE: i32 = 19;

/// Sweeps until its task is ended.
pub(crate) async fn sweep_daily(serving: Arc<Serving>) {
    let stop = StopOnDrop(Arc::default());
    loop {
        let offered = serving.offered();
        let exports = offered
            .exports
            .iter()
            .filter(|export| export.rights.change());
        let exports: Vec<_> = exports
            .map(|export| (export.name.clone(), Arc::clone(&export.root)))
            .collect();
        let (done, over) = tokio::sync::oneshot::channel::<()>();
        let stopped = Arc::clone(&stop.0);
        let thread = thread::Builder::new().name("rdcp-sweep".to_owned());
        let started = thread.spawn(move || {
            sweep(&exports, &stopped);
            drop(done);
        });
        match started {
            // It says nothing, and ends.
            Ok(_) => drop(over.await),
            Err(error) => tracing::warn!(%error, "what copies left behind is not swept today"),
        }
        tokio::time::sleep(SWEEP_PAUSE).await;
    }
}

fn sweep(exports: &[(String, Arc<Root>)], stopped: &AtomicBool) {
    // Of this thread alone (setpriority(2), "C library/kernel differences"); it works without too.
    let _ = rustix::process::nice(NICE);
    let begun = Instant::now();
    for (export, root) in exports {
        let mut go_on = || {
            thread::sleep(REST);
            !stopped.load(Ordering::Relaxed) && begun.elapsed() < SWEEP_TIME_MAX
        };
        match sweep_tree(root, &mut go_on) {
            Ok(swept) => tell(export, swept),
            Err(error) => {
                let reason = error.fault().text;
                tracing::warn!(export, reason, "what copies left behind can't be swept");
            }
        }
    }
}

fn tell(export: &str, swept: Swept) {
    let Swept {
        directories,
        removed,
        failed,
        stopped,
    } = swept;
    tracing::info!(
        export,
        directories,
        removed,
        failed,
        complete = !stopped,
        "what copies left behind was swept"
    );
}

/// Ends the thread with its task.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
