//! What one process shares among all its sessions: the lanes, the workers and memory to serve from.
//!
//! Started at first use and kept until the process ends, so that threads do not grow with clients,
//! servers or sessions.

use std::num::NonZeroUsize;
use std::sync::OnceLock;

use tokio::sync::Notify;

use super::exposing::ServingMemory;
use crate::error::{Error, ErrorKind};
use crate::lane::{LaneOptions, Lanes};
use crate::limits::PACK_BYTES_MAX;
use crate::memory::Pool;
use crate::workers::Workers;

/// Lanes, workers, and memory to serve from.
#[derive(Clone)]
pub(crate) struct Machinery {
    pub(crate) lanes: Lanes,
    pub(crate) workers: Workers,
    /// Memory for what is served, for all transfers together.
    pub(crate) serving: ServingMemory,
}

/// Packs of all transfers at once, beside each session's own: 64 MiB.
const PACKS_MAX: usize = 64;

/// Enough for slow calls to overlap on the smallest machine, and for fsyncs to be merged.
const WORKERS_MIN: usize = 4;
const WORKERS_MAX: usize = 16;

/// Bytes of a slot that a pack is laid in.
#[allow(clippy::cast_possible_truncation, reason = "1 MiB fits every usize")]
const PACK_SLOT_BYTES: usize = PACK_BYTES_MAX as usize;

/// Told when memory for what is served comes back that somebody missed.
static RETURNED: Notify = Notify::const_new();

/// Slots that packs are laid in.
pub(crate) fn pack_pool(slots_max: usize) -> Pool {
    serving_pool(PACK_SLOT_BYTES, slots_max)
}

/// Slots that are served from. Whoever finds none waits for [`memory_returned`].
pub(crate) fn serving_pool(slot_bytes: usize, slots_max: usize) -> Pool {
    Pool::with_hook(slot_bytes, slots_max, Box::new(tell_returned))
}

/// Wakes all who wait for [`memory_returned`].
pub(crate) fn tell_returned() {
    RETURNED.notify_waiters();
}

/// Completes when a slot comes back to any [`serving_pool`] after somebody found it empty, or
/// registered bytes come back. What comes back from the moment of the call on counts, so call it
/// before looking for memory.
pub(crate) fn memory_returned() -> impl Future<Output = ()> {
    RETURNED.notified()
}

static MACHINERY: OnceLock<Result<Machinery, String>> = OnceLock::new();

/// The process's lanes and workers.
///
/// # Errors
/// When the kernel refuses threads, memory or descriptors.
pub(crate) fn machinery() -> Result<Machinery, Error> {
    MACHINERY
        .get_or_init(|| start().map_err(|error| error.to_string()))
        .clone()
        .map_err(|error| {
            Error::new(
                ErrorKind::Storage,
                format!("starting the data plane failed: {error}"),
            )
            .with_hint("raise the limits on open files, processes and locked memory (ulimit -a)")
        })
}

fn start() -> std::io::Result<Machinery> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let workers = NonZeroUsize::new((cores * 2).clamp(WORKERS_MIN, WORKERS_MAX));
    Ok(Machinery {
        lanes: Lanes::start(&LaneOptions::default())?,
        workers: Workers::start(workers.unwrap_or(NonZeroUsize::MIN))?,
        serving: ServingMemory::new(PACKS_MAX),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_slot_that_comes_back_wakes_all_who_missed_one() {
        let (own, other) = (pack_pool(1), pack_pool(1));
        let held = own.take_for(1).unwrap();
        // Begun before the look, so what comes back in between is not lost.
        let waits = [memory_returned(), memory_returned()];
        assert!(own.take_for(1).is_none());
        assert!(other.take_for(2).is_some());
        drop(held);
        for wait in waits {
            tokio::time::timeout(Duration::from_secs(60), wait)
                .await
                .unwrap();
        }
        assert!(own.take_for(1).is_some());
    }
}
