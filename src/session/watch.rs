//! Watches one transfer for those outside: totals, events with paths, failures for the report, and
//! when a run must end: cancelled by its owner, or without progress for too long.
//!
//! In: the engine's events and the driver's word that something moved. Out: public events and the
//! account of the run. A run that goes on in a new session hands its account from attempt to attempt
//! ([`Past`]), and what an earlier one has told is not told or counted again. It knows nothing of
//! chunks, lanes or storage.

mod account;
mod past;
mod removals;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

pub(crate) use self::past::{Ended, Past, Stamp, Totals};
use super::earlier::{Before, Earlier, Key};
use super::names::Names;
use super::remarks::Remarks;
use crate::engine::{self, Ledger};
use crate::ids::{EntryId, TransferId};
use crate::location::{Location, Locations};
use crate::manifest::{EntryKind, Item};
use crate::progress::{EntryType, Event, Progress};
use crate::storage::error::ShownPath;
use crate::wire::message::{Outcome, Remark};
use crate::wire::{Fault, FaultCode};

/// Failed entries of one transfer that are logged; the others are counted.
const FAILURES_LOGGED_MAX: u64 = 64;

/// Progress events are told at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// How long a cancelled run waits for fetches in flight before it takes their connections away.
const CANCEL_GRACE: Duration = Duration::from_millis(500);

/// A cancelled run that has not ended after this long is given up: its storage hangs.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// A run whose peer moves less than this in its stall time, and settles nothing, stands still: keeping
/// a connection alive is no progress. The smallest chunk.
const PROGRESS_BYTES_MIN: u64 = 64 << 10;

/// The watcher of one transfer.
pub(crate) struct Watch {
    transfer: TransferId,
    names: Names,
    locations: Option<Locations>,
    totals: Totals,
    /// What a run that can go on in a new session keeps of its attempts.
    earlier: Option<Earlier>,
    /// The last entry that this attempt has told.
    told_up_to: Option<Key>,
    /// Entries that came to nothing because the run is being ended.
    interrupted: Vec<(EntryId, Fault)>,
    exists_is_error: bool,
    remarks: Remarks,
    /// The peer has taken the request.
    agreed: bool,
    /// Bytes of files under way that need not travel: an interrupted run or an older copy had them.
    kept: HashMap<EntryId, u64>,
    /// Those among them that an interrupted run had brought.
    resumed: HashMap<EntryId, u64>,
    /// Bytes that moved since the stall clock was last set back.
    crept_bytes: u64,
    served_bytes: u64,
    shared: Arc<Mutex<Progress>>,
    events: Option<mpsc::Sender<Event>>,
    told: Instant,
    cancel: watch::Receiver<Option<Fault>>,
    stall_timeout: Duration,
    renewals_count: bool,
    moved: Arc<Stamp>,
    ending: Option<Instant>,
    /// Its end is waited for with patience, as it is to go on.
    patient: bool,
    connections_dropped: bool,
    /// Failures of entries so far: only the first are logged, or a hostile peer fills the disk.
    failures_seen: u64,
}

/// What a run needs beside its orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attention {
    /// It is to be ended for this reason.
    Cancel(Fault),
    /// It is being ended and its fetches hang: take their connections away.
    DropConnections,
    /// It was being ended with patience, and its owner has none any more.
    Hurry,
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
    /// Where it is noted that something moved.
    pub(crate) moved: Arc<Stamp>,
    /// That the peer renews its leases counts as if something moved: how long to wait is its decision.
    pub(crate) renewals_count: bool,
    /// Whether the run can go on in a new session; the account of what it has done so far, if it does.
    pub(crate) goes_on: Option<Option<Past>>,
    /// What stands at the destination was to be an error. An attempt after the first can't ask for that,
    /// since some of it is the run's own: nothing that stands may be replaced, and whose it is is told
    /// apart here.
    pub(crate) exists_is_error: bool,
}

impl Watch {
    pub(crate) fn new(options: WatchOptions) -> Self {
        let now = Instant::now();
        let (goes_on, past) = match options.goes_on {
            Some(past) => (true, past),
            None => (false, None),
        };
        if past.is_none() {
            options.moved.advance();
        }
        let past = past.unwrap_or_else(|| Past {
            totals: Totals::default(),
            remarks: Remarks::default(),
            earlier: goes_on.then(Earlier::default),
        });
        Self {
            transfer: options.transfer,
            names: Names::new(options.roots),
            locations: options.locations,
            totals: past.totals,
            earlier: past.earlier,
            told_up_to: None,
            interrupted: Vec::new(),
            exists_is_error: options.exists_is_error,
            remarks: past.remarks,
            agreed: false,
            kept: HashMap::new(),
            resumed: HashMap::new(),
            crept_bytes: 0,
            served_bytes: 0,
            shared: options.shared,
            events: options.events,
            told: now,
            cancel: options.cancel,
            stall_timeout: options.stall_timeout,
            renewals_count: options.renewals_count,
            moved: options.moved,
            ending: None,
            patient: false,
            connections_dropped: false,
            failures_seen: 0,
        }
    }

    /// Something moved: the stall clock starts again. That the peer says something is not enough.
    pub(crate) fn progressed(&mut self) {
        self.moved.set();
        self.crept_bytes = 0;
    }

    /// The run came further: something moved that no earlier attempt had done.
    pub(crate) fn advanced(&mut self) {
        self.moved.advance();
        self.crept_bytes = 0;
    }

    /// In words: whose run it is, and how far.
    pub(crate) fn describe(&self, role: &str, session: impl std::fmt::Display) -> Vec<String> {
        let progress = self.totals.shown_progress();
        vec![
            format!("transfer {} in session {session}, {role}", self.transfer),
            format!(
                "progress: last {:.1} s ago, ends after {} s without; {} of {} files, {} of {} \
                 bytes{}; {} bytes moved",
                self.moved.moved().elapsed().as_secs_f64(),
                self.stall_timeout.as_secs_f64(),
                progress.files_done,
                progress.files_seen,
                progress.bytes_done,
                progress.bytes_seen,
                if progress.totals_known { "" } else { " so far" },
                progress.bytes_moved
            ),
        ]
    }

    /// So many bytes moved.
    fn crept(&mut self, bytes: u64) {
        self.crept_bytes = self.crept_bytes.saturating_add(bytes);
        if self.crept_bytes >= PROGRESS_BYTES_MIN {
            self.advanced();
        }
    }

    /// This end's answers to READs in its session come to so many bytes by now: the receiver says that it
    /// has read them only once it has read all of a region.
    pub(crate) fn served(&mut self, bytes: u64) {
        let more = bytes.saturating_sub(std::mem::replace(&mut self.served_bytes, bytes));
        self.crept(more);
    }

    /// The peer has taken the request.
    pub(crate) fn agreed(&mut self) {
        self.agreed = true;
    }

    /// The receiver left something out, or did it otherwise.
    pub(crate) fn remark(&mut self, remark: &Remark) {
        let names = &self.names;
        let is_news = |entry: &EntryId| names.before(*entry) != Before::Settled;
        if remark.entries.iter().all(is_news) {
            self.remarks.add(remark, |entry| names.path(entry));
            return;
        }
        let mut news = remark.clone();
        news.entries.retain(is_news);
        let repeated = (remark.entries.len() - news.entries.len()) as u64;
        news.count = news.count.saturating_sub(repeated);
        self.remarks.add(&news, |entry| names.path(entry));
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

    /// The run is being ended; from now on only its ending is watched. `lost`: its session has ended.
    pub(crate) fn cancelling(&mut self, lost: bool) {
        if self.ending.is_none() {
            self.ending = Some(Instant::now());
            self.patient = lost && self.earlier.is_some();
        }
    }

    /// Whether the run is being ended and is to go on in another session: what is under way in storage
    /// need not be cut short.
    pub(crate) fn is_patient(&self) -> bool {
        self.patient
    }

    /// Waits until the run must be ended, or takes too long to end, and says what to do.
    pub(crate) async fn attention(&mut self) -> Attention {
        if let Some(since) = self.ending {
            if !self.connections_dropped {
                tokio::time::sleep_until(since + CANCEL_GRACE).await;
                self.connections_dropped = true;
                return Attention::DropConnections;
            }
            if self.patient {
                // It is to go on, for which its storage has to be done: a slow one may take its time.
                let patience = self.stall_timeout.max(GIVE_UP_AFTER);
                tokio::select! {
                    () = tokio::time::sleep_until(since + patience) => return Attention::GiveUp,
                    _ = wait_for(&mut self.cancel) => {}
                }
                self.patient = false;
                self.ending = Some(Instant::now());
                return Attention::Hurry;
            }
            tokio::time::sleep_until(since + GIVE_UP_AFTER).await;
            return Attention::GiveUp;
        }
        let stalled = self.moved.moved() + self.stall_timeout;
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
        self.recall(items);
        let is_news = |item: &Item| match item {
            Item::Entry(entry) => self.names.before(entry.id) == Before::New,
            Item::Note(_) => false,
        };
        if items.iter().any(is_news) {
            self.advanced();
        }
        for item in items {
            if let Item::Entry(entry) = item
                && let EntryKind::File { len, .. } = entry.kind
                && self.names.before(entry.id) == Before::New
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
            engine::Event::Told { entries, last, .. } => {
                self.totals.progress.totals_known |= last;
                if entries > 0 || last {
                    self.progressed();
                }
            }
            engine::Event::Started { entry, len } => {
                tracing::trace!(transfer = %self.transfer, %entry, len, "started");
                self.names.start(entry);
            }
            engine::Event::Moved { bytes } => {
                self.crept(bytes);
                let progress = &mut self.totals.progress;
                progress.bytes_moved = progress.bytes_moved.saturating_add(bytes);
                progress.bytes_done = progress
                    .bytes_done
                    .saturating_add(bytes)
                    .min(progress.bytes_seen);
            }
            engine::Event::Resumed { entry, bytes } | engine::Event::Reused { entry, bytes } => {
                if let engine::Event::Resumed { .. } = &event {
                    *self.resumed.entry(entry).or_default() += bytes;
                }
                *self.kept.entry(entry).or_default() += bytes;
                self.crept(bytes);
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
            engine::Event::Removed(removal) => {
                self.progressed();
                self.removed(removal).await;
            }
            engine::Event::NotMirrored => {
                let text = "nothing that the source does not have was deleted, since something failed; \
                            mend that and run it again";
                let fault = Fault::new(FaultCode::Special, text);
                self.tell_warning(Vec::new(), fault, None).await;
            }
            engine::Event::Done { entry, outcome } => {
                self.progressed();
                self.done(entry, outcome).await;
            }
            engine::Event::Skipped { place, fault, .. } if !self.is_news(&place, &fault) => {}
            engine::Event::Skipped {
                place,
                fault,
                failure,
            } => {
                let path = self.names.path_of_place(&place);
                let location = self.locate(Some(&place), EntryType::Unknown, &fault);
                if failure {
                    self.totals.ledger.fail(None, &fault);
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
        let progress = self.totals.shown_progress();
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = progress;
        if at_once || self.told.elapsed() >= PROGRESS_INTERVAL {
            self.told = Instant::now();
            self.tell(Event::Progress(progress)).await;
        }
    }

    /// The run ended by itself.
    pub(crate) async fn finished(&mut self, ledger: Ledger) -> Ended {
        self.report_remarks().await;
        self.publish_progress(true).await;
        self.ended(ledger, None, true)
    }

    /// The run was ended. `lost`: by the end of its session, so that it may go on in another.
    pub(crate) async fn failed(&mut self, fault: Fault, ledger: Ledger, lost: bool) -> Ended {
        if !(lost && self.earlier.is_some()) {
            for (entry, fault) in std::mem::take(&mut self.interrupted) {
                self.account(entry, Outcome::Failed(fault)).await;
            }
            self.report_remarks().await;
        }
        self.publish_progress(true).await;
        self.ended(ledger, Some(fault), true)
    }

    /// What was left out, once per kind.
    async fn report_remarks(&mut self) {
        for (text, path) in self.remarks.take() {
            let fault = Fault::new(FaultCode::Special, text);
            self.warn(path, fault).await;
        }
    }

    /// A job panicked: a defect of ours, and nothing it touched can be trusted to answer.
    pub(crate) fn broken(&mut self, panic: &str) -> Ended {
        tracing::error!(transfer = %self.transfer, panic, "a job panicked");
        let fault = Fault::new(FaultCode::Internal, format!("a job panicked: {panic}"));
        self.ended(Ledger::default(), Some(fault), false)
    }

    /// A cancelled run whose jobs don't come back.
    pub(crate) fn given_up(&mut self) -> Ended {
        let text = "the run was ended while storage did not answer";
        let fault = Fault::new(FaultCode::TimedOut, text);
        self.ended(Ledger::default(), Some(fault), false)
    }

    fn ended(&mut self, ledger: Ledger, fault: Option<Fault>, told: bool) -> Ended {
        let mut earlier = self.earlier.take();
        if let Some(earlier) = &mut earlier {
            earlier.leave(self.told_up_to.take(), self.names.open());
        }
        let mut totals = std::mem::take(&mut self.totals);
        totals.leave();
        Ended {
            ledger,
            fault,
            told,
            agreed: self.agreed,
            past: Past {
                totals,
                remarks: std::mem::take(&mut self.remarks),
                earlier,
            },
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
            moved: Arc::default(),
            renewals_count,
            goes_on: None,
            exists_is_error: false,
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

    /// How long a watch lets a run go on of which so many bytes come each second for twice as long as it
    /// may stand still, and then none.
    async fn lasts_at(bytes_per_second: u64) -> Duration {
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
            moved: Arc::default(),
            renewals_count: false,
            goes_on: None,
            exists_is_error: false,
        });
        loop {
            match tokio::time::timeout(Duration::from_secs(1), watch.attention()).await {
                Ok(_) => return began.elapsed(),
                Err(_) if began.elapsed() < 2 * STALL => {
                    let bytes = bytes_per_second;
                    watch.event(engine::Event::Moved { bytes }).await;
                }
                Err(_) => {}
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_trickle_are_no_progress() {
        assert_eq!(lasts_at(1).await.as_secs(), STALL.as_secs());
        let enough = PROGRESS_BYTES_MIN / STALL.as_secs() + 1;
        assert!(lasts_at(enough).await >= 2 * STALL);
    }
}
