//! What a run amounts to, over all its attempts, and how an attempt ended.
//!
//! In: what the watch counts. Out: the account for reports, and for the attempt that comes next. It
//! counts nothing itself.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::Ledger;
use crate::progress::{Failure, Progress};
use crate::session::earlier::Earlier;
use crate::session::remarks::Remarks;
use crate::wire::Fault;

/// Counts of a run, of all its attempts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) progress: Progress,
    /// What was told of progress before this attempt: it never falls.
    pub(super) floor: Progress,
    /// How entries ended, each counted once.
    pub(crate) ledger: Ledger,
    /// Bytes of the files that are settled.
    pub(super) settled_bytes: u64,
    /// Bytes that moved for settled files in the attempt that settled each.
    pub(crate) settled_moved_bytes: u64,
    /// Bytes of settled files that need not travel in the attempt that settled them.
    pub(crate) resumed_bytes: u64,
    /// Bytes of settled files that older copies had, in the attempt that settled each.
    pub(crate) reused_bytes: u64,
    /// Regular files published.
    pub(crate) files: u64,
    /// Bytes of the published files.
    pub(crate) bytes_published: u64,
    pub(crate) warnings: u64,
    /// When the first READ was posted and when the last chunk or pack was stored, at a receiver.
    pub(super) data: Option<(Instant, Instant)>,
    /// The first failures with their paths, without those that follow from a directory's.
    pub(crate) failures: Vec<Failure>,
}

impl Totals {
    /// From the first READ to the last bytes in a file; nothing where this end sends, or read nothing.
    pub(crate) fn data_elapsed(&self) -> Option<Duration> {
        self.data.map(|(began, ended)| ended - began)
    }
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The engine's account, of this attempt alone.
    pub(crate) ledger: Ledger,
    /// Why the run itself ended, if it did not end by itself.
    pub(crate) fault: Option<Fault>,
    /// Whether the peer heard of the end from the run itself.
    pub(crate) told: bool,
    /// Whether the peer had taken the request.
    pub(crate) agreed: bool,
    pub(crate) past: Past,
}

/// What a run hands on to its next attempt, or to its report.
#[derive(Debug)]
pub(crate) struct Past {
    pub(crate) totals: Totals,
    pub(crate) remarks: Remarks,
    pub(super) earlier: Option<Earlier>,
}

/// When something moved last in a run, of all its attempts.
#[derive(Debug)]
pub(crate) struct Stamp(Mutex<Stamps>);

#[derive(Clone, Copy, Debug)]
struct Stamps {
    moved: Instant,
    advanced: Instant,
}

impl Default for Stamp {
    fn default() -> Self {
        let now = Instant::now();
        Self(Mutex::new(Stamps {
            moved: now,
            advanced: now,
        }))
    }
}

impl Stamp {
    /// When something moved last, if only by doing again what an earlier attempt had done.
    pub(crate) fn moved(&self) -> Instant {
        self.lock().moved
    }

    /// When the run came further last.
    pub(crate) fn advanced(&self) -> Instant {
        self.lock().advanced
    }

    /// Something moved.
    pub(crate) fn set(&self) {
        self.lock().moved = Instant::now();
    }

    /// The run came further.
    pub(crate) fn advance(&self) {
        let now = Instant::now();
        *self.lock() = Stamps {
            moved: now,
            advanced: now,
        };
    }

    fn lock(&self) -> MutexGuard<'_, Stamps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Totals {
    /// Progress as it is told: it never falls.
    pub(crate) fn shown_progress(&self) -> Progress {
        let (now, floor) = (&self.progress, &self.floor);
        Progress {
            files_seen: now.files_seen.max(floor.files_seen),
            bytes_seen: now.bytes_seen.max(floor.bytes_seen),
            totals_known: now.totals_known,
            files_done: now.files_done.max(floor.files_done),
            bytes_done: now.bytes_done.max(floor.bytes_done),
            bytes_moved: now.bytes_moved.max(floor.bytes_moved),
        }
    }

    /// An attempt is over: what it had of files that it did not settle is to be had again.
    pub(super) fn leave(&mut self) {
        self.floor = self.shown_progress();
        self.progress.bytes_done = self.settled_bytes;
    }
}
