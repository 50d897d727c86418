//! Drives a [`Sender`]: carries its orders out with lanes, workers and the source, and hands it
//! what comes back.
//!
//! In: messages and lane events from the seat, results of jobs. Out: messages, regions that the
//! peer may read, events. What regions are made of is [`super::exposing`]'s affair. Walking, opening,
//! exposing and hashing run on the workers; serving READs is the lanes' and the adapters' work; the
//! rest is this task.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::MissedTickBehavior;

use super::dump::Listener;
use super::exposing::rails::Way;
use super::exposing::{Exposing, Made, Opened};
use super::hashing::{hash_on, read_fault, rehash};
use super::machinery::{Machinery, memory_returned};
use super::peer::{Inbound, Seat};
use super::receiving::panic_message;
use super::watch::{Attention, Ended, Watch};
use crate::engine::sender::{ExposedWindow, FilledPack, Input, Output, SenderOptions};
use crate::engine::{Event, Sender};
use crate::ids::{EntryId, RegionId, TransferId};
use crate::integrity::Sha256Ahead;
use crate::lane::LaneEvent;
use crate::storage::source::{OpenSource, Source};
use crate::units::{ChunkIndex, ChunkSize};
use crate::wire::message::{HashKind, ManifestPage};
use crate::wire::{Fault, FaultCode, Message};
use crate::workers::Workers;

/// How often it is looked whether the peer is still heard of, and what it has read.
const LEASE_LOOK: Duration = Duration::from_secs(1);

/// What a sending run needs.
pub(crate) struct Sending {
    pub(crate) seat: Seat,
    pub(crate) machinery: Machinery,
    pub(crate) source: Arc<Source>,
    pub(crate) options: SenderOptions,
    pub(crate) watch: Watch,
}

struct Driver {
    seat: Seat,
    jobs: Jobs,
    source: Arc<Source>,
    hash: HashKind,
    chunk: ChunkSize,
    engine: Sender,
    exposing: Exposing,
    watch: Watch,
    /// The session is over, which counts only after what was said before has been acted on: the
    /// last words of a run and those of its session often come together.
    over: Option<Fault>,
    files: HashMap<EntryId, Open>,
    page: PageTurn,
}

/// How far the next page is.
enum PageTurn {
    /// The engine wants none.
    Unwanted,
    /// It waits until the peer has read most of what was said.
    Wanted,
    /// It is made, and then said. Dropped afterwards.
    Making(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit),
}

/// The way to the workers, and back from them.
#[derive(Clone)]
pub(super) struct Jobs {
    workers: Workers,
    results: mpsc::UnboundedSender<Done>,
}

/// A big file that is served.
struct Open {
    file: Arc<OpenSource>,
    way: Way,
    ahead: Ahead,
}

/// SHA-256 is hashed front to back by one job at a time.
enum Ahead {
    /// No job runs. The state between jobs.
    Idle(Option<Sha256Ahead>),
    /// A job runs; it is to be followed by one up to here.
    Running(Option<ChunkIndex>),
}

/// What a job reports.
pub(super) enum Done {
    Input(Input),
    Page(Result<ManifestPage, Fault>),
    Opened(EntryId, Result<Opened, Fault>),
    /// With how adapters can read it, if they can.
    PackFilled(RegionId, FilledPack, Option<Way>),
    Exposed(RegionId, Result<(ExposedWindow, Made), Fault>),
    /// The values of a window's chunks were told as far as they can be had.
    HashedWindow,
    /// Hashing ahead came this far, or failed.
    Ahead(EntryId, Result<Sha256Ahead, Fault>),
    Panicked(String),
}

impl Sending {
    /// Runs to the end. The error is why the run itself ended; failures of single entries are in
    /// the ledger.
    pub(crate) async fn run(self) -> Ended {
        let (results, job_results) = mpsc::unbounded_channel();
        let jobs = Jobs::new(self.machinery.workers, results);
        let exposing = Exposing::new(
            Arc::clone(self.seat.peer.memory()),
            self.machinery.serving,
            self.seat.regions(),
            Arc::clone(&self.source),
            (self.options.hash, self.options.chunk),
            jobs.clone(),
        );
        let mut driver = Driver {
            seat: self.seat,
            jobs,
            exposing,
            source: self.source,
            hash: self.options.hash,
            chunk: self.options.chunk,
            engine: Sender::new(self.options),
            watch: self.watch,
            over: None,
            files: HashMap::new(),
            page: PageTurn::Unwanted,
        };
        driver.run(job_results).await
    }
}

impl Driver {
    async fn run(&mut self, mut job_results: mpsc::UnboundedReceiver<Done>) -> Ended {
        let mut listener = Listener::new();
        let mut looks = tokio::time::interval(LEASE_LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let memory_returned = memory_returned();
            if let Some(ended) = self.carry_out().await {
                return ended;
            }
            let peer = Arc::clone(&self.seat.peer);
            if let Some(fault) = self.over.take() {
                self.cancel(fault);
                continue;
            }
            tokio::select! {
                biased;
                answers = listener.asked() => drop(answers.send(self.describe())),
                inbound = self.seat.inbox.recv() => match inbound {
                    Some(inbound) => {
                        self.inbound(inbound);
                        while let Some(inbound) = self.seat.inbox.try_recv() {
                            self.inbound(inbound);
                        }
                    }
                    None => self.cancel(Fault::new(FaultCode::Lost, "the session ended")),
                },
                result = job_results.recv() => {
                    let mut next = result;
                    while let Some(result) = next {
                        if let Some(ended) = self.job_done(result) {
                            return ended;
                        }
                        next = job_results.try_recv().ok();
                    }
                }
                attention = self.watch.attention() => match attention {
                    Attention::Cancel(fault) => self.cancel(fault),
                    Attention::DropConnections => self.seat.peer.drop_connections(),
                    Attention::Hurry => {}
                    Attention::GiveUp => return self.watch.given_up(),
                },
                turn = peer.page_turn(), if matches!(self.page, PageTurn::Wanted) => match turn {
                    Ok(turn) => self.next_page(turn),
                    Err(fault) => self.no_page(fault),
                },
                // Only then, so that a slot wakes nobody who has no use for it.
                () = memory_returned, if self.exposing.is_waiting() => {}
                _ = looks.tick() => {
                    self.watch.served(self.seat.peer.activity().traffic().tcp_sent());
                    let now = Instant::now();
                    let mut failed = self.exposing.end_leases(now);
                    failed.extend(self.exposing.end_waits(now));
                    for failed in failed {
                        self.engine.handle(failed);
                    }
                }
            }
        }
    }

    /// In words.
    fn describe(&self) -> Vec<String> {
        let mut lines = self.watch.describe("sending", self.seat.peer.id);
        lines.extend(self.engine.describe());
        lines.push(format!(
            "source: {} files open; {}",
            self.files.len(),
            self.exposing.describe()
        ));
        lines
    }

    fn cancel(&mut self, fault: Fault) {
        let lost = self.seat.peer.was_lost_by(&fault);
        self.watch.cancelling(lost);
        self.engine.handle(Input::Cancel(fault.clone()));
        self.no_page(fault);
    }

    fn inbound(&mut self, inbound: Inbound) {
        if let Inbound::Message(message) = &inbound {
            self.exposing.heard();
            if is_renewal(message) {
                if self.exposing.has_granted() {
                    self.watch.renewed();
                }
                return;
            }
        }
        let input = match inbound {
            // The server took the request; the engine hears from its peer itself.
            Inbound::Message(Message::Opened) => {
                self.watch.agreed();
                return;
            }
            // For those who watch; it decides nothing.
            Inbound::Message(Message::Remarks(remarks)) => {
                for remark in &remarks {
                    self.watch.remark(remark);
                }
                return;
            }
            Inbound::Message(message) => Input::Message(message),
            Inbound::Over(fault) => {
                self.over = Some(fault);
                return;
            }
            // The receiver alone chooses lanes.
            Inbound::LaneUp(..) | Inbound::LaneDown(_) => return,
            Inbound::Lane(event) => match event {
                LaneEvent::Hashed {
                    entry,
                    chunk,
                    value,
                    ..
                } => {
                    // The peer has read a chunk.
                    self.watch.advanced();
                    Input::Hashed {
                        entry,
                        chunk,
                        value,
                    }
                }
                LaneEvent::SourceFailed { entry, error, .. } => Input::SourceFailed {
                    entry,
                    fault: read_fault(&error),
                },
                LaneEvent::Revoked { region } if self.exposing.revoked(region) => {
                    Input::Unexposed { region }
                }
                _ => return,
            },
        };
        self.engine.handle(input);
    }

    fn job_done(&mut self, done: Done) -> Option<Ended> {
        self.watch.progressed();
        let input = match done {
            Done::Input(input) => input,
            Done::Page(page) => {
                if page.is_err() {
                    self.page = PageTurn::Unwanted;
                }
                let page = page.and_then(|page| {
                    self.watch.learn(&page.items)?;
                    Ok(page)
                });
                Input::Page(page)
            }
            Done::Opened(entry, result) => {
                let result = result.map(|opened| {
                    let told = self.exposing.told(&opened);
                    let Opened { file, way } = opened;
                    let open = Open {
                        file: Arc::new(file),
                        way,
                        ahead: Ahead::Idle(Some(Sha256Ahead::new())),
                    };
                    self.files.insert(entry, open);
                    told
                });
                Input::Opened { entry, result }
            }
            Done::PackFilled(region, pack, way) => {
                self.exposing.filled(region, pack.len > 0, way);
                self.tell_refusal();
                Input::PackFilled { region, pack }
            }
            Done::Exposed(region, Ok((window, made))) => {
                self.exposing.exposed(region, Some(made));
                self.tell_refusal();
                let result = Ok(window);
                Input::Exposed { region, result }
            }
            Done::Exposed(region, Err(fault)) => {
                self.exposing.exposed(region, None);
                let result = Err(fault);
                Input::Exposed { region, result }
            }
            Done::HashedWindow => {
                self.exposing.hashed_window();
                return None;
            }
            Done::Ahead(entry, Ok(state)) => {
                let next = self.files.get_mut(&entry).and_then(|open| {
                    let next = match open.ahead {
                        Ahead::Running(next) => next,
                        Ahead::Idle(_) => None,
                    };
                    open.ahead = Ahead::Idle(Some(state));
                    next
                });
                if let Some(upto) = next {
                    self.hash_ahead(entry, upto);
                }
                return None;
            }
            Done::Ahead(entry, Err(fault)) => Input::SourceFailed { entry, fault },
            Done::Panicked(message) => return Some(self.watch.broken(&message)),
        };
        self.engine.handle(input);
        None
    }

    async fn carry_out(&mut self) -> Option<Ended> {
        while let Some(output) = self.engine.poll() {
            match output {
                Output::Send(message) => self.say(message),
                Output::NextPage => self.page = PageTurn::Wanted,
                Output::Open { entry } => self.exposing.open(entry),
                Output::FillPack {
                    region,
                    entries,
                    capacity,
                } => self.exposing.fill_pack(region, entries, capacity),
                Output::Expose {
                    region,
                    entry,
                    range,
                    told_ahead,
                    ..
                } => match self.files.get(&entry) {
                    Some(open) => {
                        let file = Arc::clone(&open.file);
                        let of = (region, entry);
                        self.exposing.expose(of, file, open.way, range, told_ahead);
                    }
                    None => {
                        let fault =
                            Fault::new(FaultCode::Internal, "no open file belongs to the entry");
                        let result = Err(fault);
                        self.engine.handle(Input::Exposed { region, result });
                    }
                },
                Output::HashAhead { entry, upto } => self.hash_ahead(entry, upto),
                Output::Unexpose { region } => {
                    if let Some(input) = self.exposing.unexpose(region) {
                        self.engine.handle(input);
                    }
                }
                Output::Check { entry } => {
                    let file = self.files.get(&entry).map(|open| Arc::clone(&open.file));
                    let source = Arc::clone(&self.source);
                    self.jobs.run(move || {
                        let same =
                            file.is_some_and(|file| source.unchanged(&*file.file, file.version));
                        Done::Input(Input::Checked { entry, same })
                    });
                }
                Output::Rehash {
                    entry,
                    chunk,
                    before,
                } => self.rehash(entry, chunk, before),
                Output::Forget { entry } => {
                    self.files.remove(&entry);
                    self.source.forget(entry);
                }
                Output::Event(event) => self.event(event).await,
                Output::Finished(ledger) => {
                    return Some(self.watch.finished(ledger).await);
                }
                Output::Failed { fault, ledger } => {
                    let lost = self.seat.peer.was_lost_by(&fault);
                    return Some(self.watch.failed(fault, ledger, lost).await);
                }
            }
        }
        self.exposing.advance();
        None
    }

    fn next_page(&mut self, turn: OwnedSemaphorePermit) {
        self.page = PageTurn::Making(turn);
        let source = Arc::clone(&self.source);
        self.jobs
            .run(move || Done::Page(source.next_page().map_err(|error| error.fault())));
    }

    /// The engine waits for the page that it wanted, though nobody will read it.
    fn no_page(&mut self, fault: Fault) {
        if matches!(self.page, PageTurn::Wanted) {
            self.page = PageTurn::Unwanted;
            self.engine.handle(Input::Page(Err(fault)));
        }
    }

    /// The receiver reports which way bytes went, and should be able to say why.
    fn tell_refusal(&self) {
        if let Some(reason) = self.exposing.untold_refusal() {
            let message = Message::RailMemory { reason };
            self.seat.peer.say(TransferId::NONE, message);
        }
    }

    async fn event(&mut self, event: Event) {
        self.watch.event(event).await;
    }

    fn say(&mut self, message: Message) {
        let granted = match &message {
            Message::Grant(grant) => Some(grant.region),
            _ => None,
        };
        let is_page = matches!(message, Message::Manifest(_));
        self.seat.say(message);
        if is_page {
            self.page = PageTurn::Unwanted;
        }
        for hashed in granted
            .into_iter()
            .flat_map(|region| self.exposing.granted(region))
        {
            self.engine.handle(hashed);
        }
    }

    /// Hashes a file on, front to back, as far as `upto`; one job per file at a time.
    fn hash_ahead(&mut self, entry: EntryId, upto: ChunkIndex) {
        let Some(open) = self.files.get_mut(&entry) else {
            return;
        };
        let state = match &mut open.ahead {
            Ahead::Idle(state) => state.take(),
            Ahead::Running(next) => {
                *next = Some(upto);
                return;
            }
        };
        open.ahead = Ahead::Running(None);
        let Some(state) = state else { return };
        let (file, chunk_size) = (Arc::clone(&open.file), self.chunk);
        let jobs = self.jobs.clone();
        self.jobs.run(move || {
            let tell = |chunk, value| {
                jobs.report(Done::Input(Input::Hashed {
                    entry,
                    chunk,
                    value,
                }));
            };
            Done::Ahead(entry, hash_on(&file, state, chunk_size, upto, tell))
        });
    }

    fn rehash(&mut self, entry: EntryId, chunk: ChunkIndex, before: Option<[u8; 32]>) {
        let file = self.files.get(&entry).map(|open| Arc::clone(&open.file));
        let (hash, chunk_size) = (self.hash, self.chunk);
        let source = Arc::clone(&self.source);
        self.jobs.run(move || {
            let result = match file {
                Some(file) => rehash(&source, &file, hash, chunk_size, chunk, before),
                None => Err(Fault::new(
                    FaultCode::SourceChanged,
                    "the file is not open any more",
                )),
            };
            Done::Input(Input::Rehashed {
                entry,
                chunk,
                result,
            })
        });
    }
}

impl Jobs {
    pub(super) fn new(workers: Workers, results: mpsc::UnboundedSender<Done>) -> Self {
        Self { workers, results }
    }

    /// Runs a blocking call on the workers; what it reports comes back by the results.
    pub(super) fn run(&self, job: impl FnOnce() -> Done + Send + 'static) {
        let results = self.results.clone();
        self.workers.submit(move || {
            let done = catch_unwind(AssertUnwindSafe(job))
                .unwrap_or_else(|panic| Done::Panicked(panic_message(&*panic)));
            let _ = results.send(done);
        });
    }

    /// Runs one that nobody waits for.
    pub(super) fn run_unreported(&self, job: impl FnOnce() + Send + 'static) {
        self.workers.submit(job);
    }

    /// Reports something from within a job. Whoever waits for it may have gone.
    pub(super) fn report(&self, done: Done) {
        let _ = self.results.send(done);
    }

    /// Whether nobody waits for results any more.
    pub(super) fn are_over(&self) -> bool {
        self.results.is_closed()
    }
}

/// Whether a message only says that the receiver is still there, and goes on holding what it has.
fn is_renewal(message: &Message) -> bool {
    matches!(
        message,
        Message::Credit {
            pages: 0,
            region_bytes: 0
        }
    )
}
