//! Watches one transfer for those outside: totals, events with paths, failures for the report, and
//! when a run must end: cancelled by its owner, or without progress for too long.
//!
//! In: the engine's events and the driver's word that something moved. Out: public events and the
//! account of the run. It knows nothing of chunks, lanes or storage.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::names::Names;
use crate::engine::{self, Ledger};
use crate::ids::{EntryId, TransferId};
use crate::location::{Location, Locations};
use crate::manifest::{EntryKind, Item, Place};
use crate::progress::{EntryType, Event, Failure, Progress, Report};
use crate::storage::error::ShownPath;
use crate::wire::message::Outcome;
use crate::wire::{Fault, FaultCode};

/// Failed entries of one transfer that are logged; the others are counted.
const FAILURES_LOGGED_MAX: u64 = 64;

/// Progress events are told at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// How long a cancelled run waits for fetches in flight before it takes their connections away.
const CANCEL_GRACE: Duration = Duration::from_millis(500);

/// A cancelled run that has not ended after this long is given up: its storage hangs.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// The watcher of one transfer.
pub(crate) struct Watch {
    transfer: TransferId,
    names: Names,
    locations: Option<Locations>,
    totals: Totals,
    /// Bytes of files under way that need not travel: an interrupted run or an older copy had them.
    kept: HashMap<EntryId, u64>,
    shared: Arc<Mutex<Progress>>,
    events: Option<mpsc::Sender<Event>>,
    told: Instant,
    cancel: watch::Receiver<Option<Fault>>,
    stall_timeout: Duration,
    renewals_count: bool,
    moved: Instant,
    ending: Option<Instant>,
    connections_dropped: bool,
    /// Failures of entries so far: only the first are logged, or a hostile peer fills the disk.
    failures_seen: u64,
}

/// Counts of a run that the engine's ledger does not keep.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) progress: Progress,
    /// Regular files published.
    pub(crate) files: u64,
    /// Bytes of the published files.
    pub(crate) bytes_published: u64,
    pub(crate) warnings: u64,
    /// When the first READ was posted and when the last chunk or pack was stored, at a receiver.
    data: Option<(Instant, Instant)>,
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
    pub(crate) ledger: Ledger,
    pub(crate) totals: Totals,
    /// Why the run itself ended, if it did not end by itself.
    pub(crate) fault: Option<Fault>,
    /// Whether the peer heard of the end from the run itself.
    pub(crate) told: bool,
}

/// What a run needs beside its orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attention {
    /// It is to be ended for this reason.
    Cancel(Fault),
    /// It is being ended and its fetches hang: take their connections away.
    DropConnections,
    /// It is being ended and its jobs hang: leave them behind.
    GiveUp,
}

/// How a [`Watch`] is set up.
pub(crate) struct WatchOptions {
    pub(crate) transfer: TransferId,
    /// What each root is called in paths.
    pub(crate) roots: Vec<Vec<u8>>,
    /// Where they are, on the end whose user wants to know.
    pub(crate) locations: Option<Locations>,
    pub(crate) shared: Arc<Mutex<Progress>>,
    pub(crate) events: Option<mpsc::Sender<Event>>,
    /// Becomes `Some` when the owner wants the run to end.
    pub(crate) cancel: watch::Receiver<Option<Fault>>,
    pub(crate) stall_timeout: Duration,
    /// That the peer renews its leases counts as if something moved: how long to wait is its decision.
    pub(crate) renewals_count: bool,
}

impl Watch {
    pub(crate) fn new(options: WatchOptions) -> Self {
        let now = Instant::now();
        Self {
            transfer: options.transfer,
            names: Names::new(options.roots),
            locations: options.locations,
            totals: Totals::default(),
            kept: HashMap::new(),
            shared: options.shared,
            events: options.events,
            told: now,
            cancel: options.cancel,
            stall_timeout: options.stall_timeout,
            renewals_count: options.renewals_count,
            moved: now,
            ending: None,
            connections_dropped: false,
            failures_seen: 0,
        }
    }

    /// Something moved: the stall clock starts again.
    pub(crate) fn progressed(&mut self) {
        self.moved = Instant::now();
    }

    /// The peer said that it goes on holding what it was granted.
    pub(crate) fn renewed(&mut self) {
        if self.renewals_count {
            self.progressed();
        }
    }

    /// A READ is posted.
    pub(crate) fn reads(&mut self) {
        let now = Instant::now();
        self.totals.data.get_or_insert((now, now));
    }

    /// Bytes that were read are where they were to go.
    pub(crate) fn stored(&mut self) {
        if let Some((_, ended)) = &mut self.totals.data {
            *ended = Instant::now();
        }
    }

    /// The run is being ended; from now on only its ending is watched.
    pub(crate) fn cancelling(&mut self) {
        self.ending.get_or_insert_with(Instant::now);
    }

    /// Waits until the run must be ended, or takes too long to end, and says what to do.
    pub(crate) async fn attention(&mut self) -> Attention {
        if let Some(since) = self.ending {
            if !self.connections_dropped {
                tokio::time::sleep_until(since + CANCEL_GRACE).await;
                self.connections_dropped = true;
                return Attention::DropConnections;
            }
            tokio::time::sleep_until(since + GIVE_UP_AFTER).await;
            return Attention::GiveUp;
        }
        let stalled = self.moved + self.stall_timeout;
        tokio::select! {
            fault = wait_for(&mut self.cancel) => Attention::Cancel(fault),
            () = tokio::time::sleep_until(stalled) => {
                let seconds = self.stall_timeout.as_secs_f64();
                let text = format!("nothing moved for {seconds} s");
                Attention::Cancel(Fault::new(FaultCode::TimedOut, text))
            }
        }
    }

    /// Learns the names and sizes that a page tells.
    ///
    /// # Errors
    /// What no walk makes; see [`Names::learn`].
    pub(crate) fn learn(&mut self, items: &[Item]) -> Result<(), Fault> {
        self.names.learn(items)?;
        for item in items {
            if let Item::Entry(entry) = item
                && let EntryKind::File { len, .. } = entry.kind
            {
                self.totals.progress.files_seen += 1;
                self.totals.progress.bytes_seen =
                    self.totals.progress.bytes_seen.saturating_add(len);
            }
        }
        Ok(())
    }

    /// The path of an entry, for messages.
    pub(crate) fn path(&self, entry: EntryId) -> Vec<u8> {
        self.names.path(entry)
    }

    /// Takes an event of the engine and tells those who watch. Waits if they are slow.
    pub(crate) async fn event(&mut self, event: engine::Event) {
        match event {
            engine::Event::Told { last, .. } => self.totals.progress.totals_known |= last,
            engine::Event::Started { entry, len } => {
                tracing::trace!(transfer = %self.transfer, %entry, len, "started");
            }
            engine::Event::Moved { bytes } => {
                let progress = &mut self.totals.progress;
                progress.bytes_moved = progress.bytes_moved.saturating_add(bytes);
                progress.bytes_done = progress
                    .bytes_done
                    .saturating_add(bytes)
                    .min(progress.bytes_seen);
            }
            engine::Event::Resumed { entry, bytes } | engine::Event::Reused { entry, bytes } => {
                *self.kept.entry(entry).or_default() += bytes;
                let progress = &mut self.totals.progress;
                progress.bytes_done = progress
                    .bytes_done
                    .saturating_add(bytes)
                    .min(progress.bytes_seen);
            }
            engine::Event::Repairing { entry, chunk } => {
                let place = self.names.place(entry);
                let text = format!("chunk {chunk} did not match its digest and is read again");
                let fault = Fault::new(FaultCode::Integrity, text);
                let location = self.locate(place.as_ref(), EntryType::File, &fault);
                self.tell_warning(self.names.path(entry), fault, location)
                    .await;
            }
            engine::Event::Done { entry, outcome } => self.done(entry, outcome).await,
            engine::Event::Skipped {
                place,
                fault,
                failure,
            } => {
                let path = self.names.path_of_place(&place);
                let location = self.locate(Some(&place), EntryType::Unknown, &fault);
                if failure {
                    self.fail(path.clone(), &fault, location.clone());
                    self.tell(Event::Ended {
                        path,
                        entry: EntryType::Unknown,
                        outcome: Outcome::Failed(fault),
                        len: 0,
                        location,
                    })
                    .await;
                } else {
                    self.tell_warning(path, fault, location).await;
                }
            }
        }
        self.publish_progress(false).await;
    }

    async fn done(&mut self, entry: EntryId, outcome: Outcome) {
        let len = self.names.len(entry);
        let is_file = self.names.is_file(entry);
        let path = self.names.path(entry);
        let entry_type = self.names.entry_type(entry);
        let mut location = None;
        if is_file {
            self.totals.progress.files_done += 1;
        }
        let kept = self.kept.remove(&entry).unwrap_or_default();
        let counted = match &outcome {
            Outcome::Published { bytes, .. } => {
                if is_file {
                    self.totals.files += 1;
                    self.totals.bytes_published = self.totals.bytes_published.saturating_add(len);
                }
                bytes.saturating_add(kept)
            }
            _ => kept,
        };
        // What had landed of a file that failed, or was fetched twice, is counted already: no sum of
        // bytes done may pass that of the bytes seen.
        let progress = &mut self.totals.progress;
        progress.bytes_done = progress
            .bytes_done
            .saturating_add(len.saturating_sub(counted))
            .min(progress.bytes_seen);
        if let Outcome::Failed(fault) = &outcome {
            let place = self.names.place(entry);
            location = self.locate(place.as_ref(), entry_type, fault);
            // One cause is told once, and not again for each name below a directory.
            if !self.names.fail(entry) {
                self.fail(path.clone(), fault, location.clone());
            }
        }
        self.names.settle(entry);
        self.tell(Event::Ended {
            path,
            entry: entry_type,
            outcome,
            len,
            location,
        })
        .await;
    }

    /// Where something is that a fault tells of.
    fn locate(&self, place: Option<&Place>, entry: EntryType, fault: &Fault) -> Option<Location> {
        let (root, below) = self.names.split(place?);
        let is_directory = entry == EntryType::Directory;
        self.locations
            .as_ref()?
            .of(root?, &below, is_directory, fault)
    }

    fn fail(&mut self, path: Vec<u8>, fault: &Fault, location: Option<Location>) {
        self.failures_seen += 1;
        if self.failures_seen <= FAILURES_LOGGED_MAX {
            tracing::warn!(
                transfer = %self.transfer,
                path = %ShownPath(&path),
                reason = %fault.text.escape_debug(),
                "failed"
            );
        } else if self.failures_seen == FAILURES_LOGGED_MAX + 1 {
            tracing::warn!(transfer = %self.transfer, "further failures are only counted");
        }
        if self.totals.failures.len() < Report::FAILURES_LISTED_MAX {
            self.totals.failures.push(Failure {
                path,
                location,
                fault: fault.clone(),
            });
        }
    }

    /// A warning for those who watch.
    pub(crate) async fn warn(&mut self, path: Vec<u8>, fault: Fault) {
        self.tell_warning(path, fault, None).await;
    }

    async fn tell_warning(&mut self, path: Vec<u8>, fault: Fault, location: Option<Location>) {
        self.totals.warnings += 1;
        tracing::info!(
            transfer = %self.transfer,
            path = %ShownPath(&path),
            reason = %fault.text.escape_debug(),
            "warning"
        );
        self.tell(Event::Warning {
            path,
            fault,
            location,
        })
        .await;
    }

    async fn tell(&mut self, event: Event) {
        let Some(events) = &self.events else { return };
        let sent = tokio::select! {
            sent = events.send(event) => sent.is_ok(),
            // A watcher that sleeps must not keep its own cancellation from working.
            _ = wait_for(&mut self.cancel) => true,
        };
        if !sent {
            self.events = None;
        }
    }

    async fn publish_progress(&mut self, at_once: bool) {
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = self.totals.progress;
        if at_once || self.told.elapsed() >= PROGRESS_INTERVAL {
            self.told = Instant::now();
            self.tell(Event::Progress(self.totals.progress)).await;
        }
    }

    /// The run ended by itself.
    pub(crate) async fn finished(&mut self, ledger: Ledger) -> Ended {
        self.publish_progress(true).await;
        Ended {
            ledger,
            totals: std::mem::take(&mut self.totals),
            fault: None,
            told: true,
        }
    }

    /// The run was ended.
    pub(crate) async fn failed(&mut self, fault: Fault, ledger: Ledger) -> Ended {
        self.publish_progress(true).await;
        Ended {
            ledger,
            totals: std::mem::take(&mut self.totals),
            fault: Some(fault),
            told: true,
        }
    }

    /// A job panicked: a defect of ours, and nothing it touched can be trusted to answer.
    pub(crate) fn broken(&mut self, panic: &str) -> Ended {
        tracing::error!(transfer = %self.transfer, panic, "a job panicked");
        let fault = Fault::new(FaultCode::Internal, format!("a job panicked: {panic}"));
        Ended {
            ledger: Ledger::default(),
            totals: std::mem::take(&mut self.totals),
            fault: Some(fault),
            told: false,
        }
    }

    /// A cancelled run whose jobs don't come back.
    pub(crate) fn given_up(&mut self) -> Ended {
        let text = "the run was ended while storage did not answer";
        Ended {
            ledger: Ledger::default(),
            totals: std::mem::take(&mut self.totals),
            fault: Some(Fault::new(FaultCode::TimedOut, text)),
            told: false,
        }
    }
}

/// Waits until a cancellation is there. One whose owner has gone never comes.
async fn wait_for(cancel: &mut watch::Receiver<Option<Fault>>) -> Fault {
    let fault = match cancel.wait_for(Option::is_some).await {
        Ok(fault) => fault.clone(),
        Err(_) => None,
    };
    match fault {
        Some(fault) => fault,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(600);

    /// How long a watch lets a run go on whose peer renews its leases for twice as long as a run may
    /// stand still, and then falls silent.
    async fn lasts(renewals_count: bool) -> Duration {
        let (_owner, cancel) = watch::channel(None);
        let began = Instant::now();
        let mut watch = Watch::new(WatchOptions {
            transfer: TransferId::random(),
            roots: Vec::new(),
            locations: None,
            shared: Arc::default(),
            events: None,
            cancel,
            stall_timeout: STALL,
            renewals_count,
        });
        let pause = Duration::from_secs(8);
        loop {
            let attention = tokio::time::timeout(pause, watch.attention()).await;
            match attention {
                Ok(Attention::Cancel(fault)) => {
                    assert_eq!(fault.code, FaultCode::TimedOut);
                    return began.elapsed();
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) if began.elapsed() < 2 * STALL => watch.renewed(),
                Err(_) => {}
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn leases_that_are_renewed_keep_a_run_whose_peer_decides_how_long() {
        let kept = lasts(true).await;
        assert!(
            (3 * STALL - Duration::from_secs(8)..3 * STALL).contains(&kept),
            "{kept:?}"
        );
        assert_eq!(lasts(false).await.as_secs(), STALL.as_secs());
    }
}
