//! Drives a [`Receiver`]: carries its orders out with lanes, workers and the sink, and hands it
//! what comes back.
//!
//! In: messages and lane events from the seat, results of jobs. Out: messages, fetches, files
//! under their names, events. It decides nothing about chunks, only who does what on which thread:
//! blocking calls run on the workers, data moves on the lanes, the rest is this task.

mod comparing;
mod packs;
mod recording;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use self::packs::store_pack;
use super::delta::Found;
use super::dump::Listener;
use super::exposing::RENEWAL_PAUSE;
use super::peer::{Inbound, Seat};
use super::resuming::{RECORDING_BYTES, RECORDING_PAUSE, Records, clear_holes, hash_plan};
use super::throttle::Throttle;
use super::watch::{Attention, Ended, Watch};
use crate::engine::receiver::{
    FetchFailure, Input, Output, PackFile, PackResult, Prepared, Published, ReceiverOptions,
};
use crate::engine::{self, Event, FetchToken, LaneId, Receiver};
use crate::ids::{EntryId, RegionId};
use crate::integrity::{HashPlan, RootBuilder};
use crate::lane::{Fetch, FetchError, LaneEvent, Store};
use crate::manifest::{Item, Version};
use crate::memory::Slot;
use crate::storage::sink::{Identity, Older, PartFile, Placed, PlacedPage, Sink};
use crate::storage::{SinkFile, StorageError};
use crate::units::{ByteRange, ChunkIndex, ChunkRange, ChunkSize};
use crate::wire::message::{Carried, HashKind, Outcome, Remark, Wanted};
use crate::wire::{Fault, FaultCode, Message};
use crate::workers::Workers;

/// Chunks of holes whose zeros are hashed for a file's digest, in bytes; the digest of a file with
/// larger holes is not computed, as that would take longer than its transfer.
const HOLE_BYTES_HASHED_MAX: u64 = 1 << 30;

/// What a receiving run needs.
pub(crate) struct Receiving {
    pub(crate) seat: Seat,
    pub(crate) workers: Workers,
    pub(crate) sink: Arc<Sink>,
    pub(crate) options: ReceiverOptions,
    /// Whether it goes on with what interrupted runs left, and leaves something to go on with.
    pub(crate) resume: bool,
    /// How fast it reads at most.
    pub(crate) bytes_per_s: Option<NonZeroU64>,
    pub(crate) watch: Watch,
}

struct Driver {
    seat: Seat,
    workers: Workers,
    sink: Arc<Sink>,
    hash: HashKind,
    chunk: ChunkSize,
    resume: bool,
    engine: Receiver,
    watch: Watch,
    /// The session is over, which counts only after what was said before has been acted on: the
    /// last words of a run and those of its session often come together.
    over: Option<Fault>,
    results: mpsc::UnboundedSender<Done>,
    /// By entry, so that what is done for several is done in their order.
    files: BTreeMap<EntryId, File>,
    /// Fetches on lanes, by the number that the lane knows each by.
    fetches: HashMap<u64, Posted>,
    next_fetch: u64,
    /// What has landed as far as the session's activity was told.
    counted: Carried,
    packs: HashMap<RegionId, Arc<Slot>>,
    /// Pages waiting for their turn: they are placed in order, one at a time.
    pages: VecDeque<(u64, Vec<Item>)>,
    placing: bool,
    /// Files and links of this round, that are published and made together.
    publishing: Vec<(EntryId, Option<File>)>,
    linking: Vec<EntryId>,
    /// Fetches whose lane was gone when they were posted. The word that it is gone waits in the inbox
    /// by then; only after that are they told to be lost, or the engine would post them there again.
    lost: Vec<FetchToken>,
    throttle: Option<Throttle>,
    /// Fetches whose time has not come. The engine orders no more than the lanes take at once.
    held_back: VecDeque<(FetchToken, Target, LaneId, Fetch)>,
    /// Remarks that the peer was not told of yet.
    untold: Vec<Remark>,
}

/// A big file under way.
struct File {
    sink: Option<Arc<PartFile>>,
    len: u64,
    records: Records,
    found: Arc<Found>,
    /// Chunks that are there and proved.
    verified: u64,
    root: Option<RootBuilder>,
    holes: Vec<ChunkRange>,
    last_value: Option<[u8; 32]>,
}

/// A fetch on a lane.
struct Posted {
    /// What the engine knows it by.
    token: FetchToken,
    target: Target,
}

/// What a fetch is for.
#[derive(Clone, Copy)]
enum Target {
    Chunk(EntryId),
    Pack(RegionId),
}

/// What a job reports.
enum Done {
    /// An answer for the engine.
    Input(Input),
    /// The part file of an entry.
    Prepared(EntryId, Result<Arc<PartFile>, Fault>),
    /// The records of an entry that were given to its journal are in it.
    Recorded(EntryId),
    /// One of several jobs' worth of a long one is done.
    GoesOn,
    /// What became of a page.
    Placed(u64, PlacedPage),
    /// Answers for the engine, of a job for several orders.
    Inputs(Vec<Input>),
    /// Whether there is more to compare.
    Mirrored(bool),
    /// It panicked with this message.
    Panicked(String),
}

impl Receiving {
    /// Runs to the end. The error is why the run itself ended; failures of single entries are in
    /// the ledger.
    pub(crate) async fn run(self) -> Ended {
        let (results, mut job_results) = mpsc::unbounded_channel();
        let engine = Receiver::new(self.options.clone());
        let mut driver = Driver {
            seat: self.seat,
            workers: self.workers,
            sink: self.sink,
            hash: self.options.hash,
            chunk: self.options.chunk,
            resume: self.resume,
            engine,
            watch: self.watch,
            over: None,
            results,
            files: BTreeMap::new(),
            fetches: HashMap::new(),
            next_fetch: 0,
            counted: Carried::default(),
            packs: HashMap::new(),
            pages: VecDeque::new(),
            placing: false,
            publishing: Vec::new(),
            linking: Vec::new(),
            lost: Vec::new(),
            throttle: self.bytes_per_s.map(Throttle::new),
            held_back: VecDeque::new(),
            untold: Vec::new(),
        };
        let mut listener = Listener::new();
        let mut renewals = tokio::time::interval(RENEWAL_PAUSE);
        renewals.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut recordings = tokio::time::interval(RECORDING_PAUSE);
        recordings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if let Some(ended) = driver.carry_out().await {
                return ended;
            }
            let due = driver.due();
            if let Some(fault) = driver.over.take() {
                driver.cancel(fault);
                continue;
            }
            tokio::select! {
                biased;
                answers = listener.asked() => drop(answers.send(driver.describe())),
                inbound = driver.seat.inbox.recv() => match inbound {
                    Some(inbound) => {
                        driver.inbound(inbound);
                        while let Some(inbound) = driver.seat.inbox.try_recv() {
                            driver.inbound(inbound);
                        }
                    }
                    None => driver.cancel(Fault::new(FaultCode::Lost, "the session ended")),
                },
                result = job_results.recv() => {
                    let mut next = result;
                    while let Some(result) = next {
                        if let Some(ended) = driver.job_done(result) {
                            return ended;
                        }
                        next = job_results.try_recv().ok();
                    }
                }
                attention = driver.watch.attention() => match attention {
                    Attention::Cancel(fault) => driver.cancel(fault),
                    Attention::DropConnections => driver.seat.peer.drop_connections(),
                    Attention::Hurry => {}
                    Attention::GiveUp => return driver.watch.given_up(),
                },
                () = until(due) => driver.let_go(),
                _ = recordings.tick(), if !driver.files.is_empty() => driver.record_all(),
                // Nothing else may be there to say while a disk or a rail is slow.
                _ = renewals.tick(), if driver.engine.holds_regions() => {
                    driver.seat.say(Message::Credit { pages: 0, region_bytes: 0 });
                }
            }
        }
    }
}

impl Driver {
    /// In words.
    fn describe(&self) -> Vec<String> {
        let mut lines = self.watch.describe("receiving", self.seat.peer.id);
        lines.extend(self.engine.describe());
        lines.push(format!(
            "storage: {} part files, {} pages wait to be placed; fetches on lanes: {}",
            self.files.len(),
            self.pages.len(),
            self.fetches.len()
        ));
        lines
    }

    fn cancel(&mut self, fault: Fault) {
        // The engine waits for all that it has ordered.
        self.lost
            .extend(self.held_back.drain(..).map(|(token, ..)| token));
        let lost = self.seat.peer.was_lost_by(&fault);
        self.watch.cancelling(lost);
        self.engine.handle(Input::Cancel(fault));
    }

    fn inbound(&mut self, inbound: Inbound) {
        let input = match inbound {
            // The server took the request; the engine hears from its peer itself.
            Inbound::Message(Message::Opened) => {
                self.watch.agreed();
                return;
            }
            Inbound::Message(message) => Input::Message(message),
            Inbound::LaneUp(lane, rail) => Input::LaneUp { lane, rail },
            Inbound::LaneDown(lane) => Input::LaneDown { lane },
            Inbound::Over(fault) => {
                self.over = Some(fault);
                return;
            }
            Inbound::Lane(LaneEvent::Landed { token, result }) => {
                let Some(input) = self.landed(token, result) else {
                    return;
                };
                input
            }
            // Events of a sender's regions can't be meant for a receiver.
            Inbound::Lane(_) => return,
        };
        self.engine.handle(input);
        self.count_carried();
    }

    /// Adds what has landed since the last call to what the session tells of its bytes.
    fn count_carried(&mut self) {
        let now = self.engine.ledger().carried;
        // A run that has ended has handed its ledger out, and another, empty one is in its place.
        let more = Carried {
            tcp: now.tcp.saturating_sub(self.counted.tcp),
            rdma: now.rdma.saturating_sub(self.counted.rdma),
            // It has not travelled.
            resumed: 0,
            reused: 0,
        };
        if more != Carried::default() {
            self.seat.peer.activity().traffic().received(more);
            self.counted = now;
        }
    }

    /// What the engine is told of a fetch that is over; nothing if it is not one of ours.
    fn landed(
        &mut self,
        number: u64,
        result: Result<crate::lane::Landed, FetchError>,
    ) -> Option<Input> {
        let Posted { token, target } = self.fetches.remove(&number)?;
        let result = match result {
            Ok(landed) => {
                self.watch.stored();
                self.watch.advanced();
                if let (Target::Pack(region), Some(slot)) = (target, landed.slot) {
                    self.packs.insert(region, Arc::new(slot));
                }
                Ok(landed.digest)
            }
            Err(FetchError::ConnectionLost) => Err(FetchFailure::Lost),
            Err(FetchError::Refused(_)) => Err(FetchFailure::Remote),
            Err(FetchError::Access) => Err(FetchFailure::Access),
            Err(FetchError::Storage(error)) => {
                Err(FetchFailure::Storage(self.write_fault(target, error)))
            }
            Err(error) => {
                let fault = Fault::new(FaultCode::Internal, error.to_string());
                Err(FetchFailure::Storage(fault))
            }
        };
        Some(Input::Landed { token, result })
    }

    fn job_done(&mut self, done: Done) -> Option<Ended> {
        self.watch.progressed();
        let input = match done {
            Done::Input(input) => {
                if let Input::PackStored { .. } = &input {
                    self.watch.stored();
                }
                input
            }
            Done::Prepared(entry, result) => {
                let result = result.map(|part| {
                    let prepared = Prepared {
                        held: part.claims().ranges(),
                        older: part.older().map_or(0, Older::chunks),
                        in_place: part.over_inode().is_some(),
                    };
                    if let Some(file) = self.files.get_mut(&entry) {
                        file.found = Arc::new(Found::of(&part));
                        file.records = Records::of(&part);
                        file.sink = Some(part);
                    }
                    prepared
                });
                Input::Prepared { entry, result }
            }
            Done::Recorded(entry) => {
                if let Some(file) = self.files.get_mut(&entry) {
                    file.records.recorded();
                }
                return None;
            }
            Done::GoesOn => return None,
            Done::Placed(page, placed) => {
                self.placing = false;
                self.engine.handle(Input::Placed {
                    page,
                    entries: placed.entries.into_iter().map(verdict).collect(),
                    directories: placed.finished,
                });
                if let Some(fault) = placed.unusable {
                    self.cancel(fault);
                }
                return None;
            }
            Done::Inputs(inputs) => {
                for input in inputs {
                    self.engine.handle(input);
                }
                return None;
            }
            Done::Mirrored(more) => {
                self.take_removals();
                Input::Mirrored { more }
            }
            Done::Panicked(message) => return Some(self.watch.broken(&message)),
        };
        self.engine.handle(input);
        None
    }

    /// What the sink has removed counts before whatever else is said.
    fn take_removals(&mut self) {
        let removals = self.sink.take_removals();
        if !removals.is_empty() {
            self.engine.handle(Input::Removed(removals));
        }
    }

    /// Carries out all orders at hand.
    async fn carry_out(&mut self) -> Option<Ended> {
        for token in std::mem::take(&mut self.lost) {
            let result = Err(FetchFailure::Lost);
            self.engine.handle(Input::Landed { token, result });
        }
        // While the entries have names, at both ends.
        self.take_remarks();
        self.take_removals();
        if self.engine.is_ending() && !self.watch.is_patient() {
            self.sink.stop();
        }
        while let Some(output) = self.engine.poll() {
            if let Some(ended) = self.output(output).await {
                return Some(ended);
            }
        }
        self.place_next();
        self.publish();
        self.link();
        None
    }

    /// Takes what the sink left out or did otherwise. The peer is told at once while there are
    /// entries to name, as few are, and of mere numbers in the end.
    fn take_remarks(&mut self) {
        for remark in self.sink.take_remarks() {
            self.watch.remark(&remark);
            let named = !remark.entries.is_empty();
            match self.untold.iter_mut().find(|of| of.kind == remark.kind) {
                Some(untold) => {
                    untold.count = untold.count.saturating_add(remark.count);
                    untold.entries.extend(remark.entries);
                }
                None => self.untold.push(remark),
            }
            if named {
                self.tell_remarks();
            }
        }
    }

    fn tell_remarks(&mut self) {
        if !self.untold.is_empty() {
            let untold = std::mem::take(&mut self.untold);
            self.seat.say(Message::Remarks(untold));
        }
    }

    fn write_fault(&self, target: Target, error: std::io::Error) -> Fault {
        let path = match target {
            Target::Chunk(entry) => self.watch.path(entry),
            Target::Pack(_) => Vec::new(),
        };
        write_fault(&path, error)
    }

    async fn output(&mut self, output: Output) -> Option<Ended> {
        match output {
            Output::Send(message) => {
                if matches!(message, Message::Finish(_) | Message::Failed(_)) {
                    self.tell_remarks();
                }
                self.seat.say(message);
            }
            Output::Place { page, items } => {
                if let Err(fault) = self.watch.learn(&items) {
                    self.over = Some(fault);
                }
                self.pages.push_back((page, items));
            }
            Output::Prepare {
                entry,
                file_len,
                version,
            } => self.prepare(entry, file_len, version),
            Output::Prove {
                entry,
                region,
                chunks,
            } => self.prove(entry, region, chunks),
            Output::Compare {
                entry,
                region,
                chunks,
                data,
            } => self.compare(entry, region, chunks, data),
            Output::Allocate {
                entry,
                region,
                ranges,
            } => {
                let file = self.files.get(&entry).and_then(|file| file.sink.clone());
                let path = self.watch.path(entry);
                self.job(move || {
                    let result = match file {
                        Some(file) => file
                            .allocate(&ranges)
                            .map_err(|error| write_fault(&path, error)),
                        None => Err(Fault::new(FaultCode::Internal, "no part file is open")),
                    };
                    Done::Input(Input::Allocated {
                        entry,
                        region,
                        result,
                    })
                });
            }
            Output::Fetch(fetch) => self.fetch(fetch),
            Output::FetchPack {
                token,
                lane,
                region,
                key,
                len,
            } => {
                let fetch = Fetch {
                    token: 0,
                    remote: key.key,
                    offset: key.address,
                    len,
                    hash: HashPlan::None,
                    store: Store::Deliver,
                };
                self.post(token, Target::Pack(region), lane, fetch);
            }
            Output::StorePack {
                region,
                files,
                digests,
            } => self.store_pack(region, files, digests),
            Output::Verified {
                entry,
                chunk,
                digest,
            } => self.verified(entry, chunk, digest),
            Output::Hole {
                entry,
                chunks,
                value,
            } => {
                if let Some(file) = self.files.get_mut(&entry) {
                    match file.holes.last_mut() {
                        Some(last) if last.end == chunks.start => last.end = chunks.end,
                        _ => file.holes.push(chunks),
                    }
                    let last = chunks.end == self.chunk.count(file.len);
                    if last && value.is_some() {
                        file.last_value = value;
                    }
                }
            }
            Output::Publish { entry } => {
                let file = self.files.remove(&entry);
                self.publishing.push((entry, file));
            }
            Output::Link { entry, .. } => self.linking.push(entry),
            Output::Mirror => {
                let sink = Arc::clone(&self.sink);
                self.job(move || Done::Mirrored(sink.mirror_step()));
            }
            Output::Settled(entries) => self.settled(entries),
            Output::Event(event) => {
                if let Event::Done {
                    entry,
                    outcome: Outcome::Failed(_),
                } = &event
                {
                    // Whatever ends the run, this one failed by itself and leaves nothing.
                    self.files.remove(entry);
                }
                self.watch.event(event).await;
            }
            Output::Finished(ledger) => {
                return Some(self.watch.finished(ledger).await);
            }
            Output::Failed { fault, ledger } => {
                let lost = self.seat.peer.was_lost_by(&fault);
                return Some(self.watch.failed(fault, ledger, lost).await);
            }
        }
        None
    }

    /// Runs a blocking call on the workers; what it reports comes back by the results.
    fn job(&mut self, job: impl FnOnce() -> Done + Send + 'static) {
        let results = self.results.clone();
        self.workers.submit(move || {
            let done = catch_unwind(AssertUnwindSafe(job))
                .unwrap_or_else(|panic| Done::Panicked(panic_message(&*panic)));
            let _ = results.send(done);
        });
    }

    fn place_next(&mut self) {
        if self.placing {
            return;
        }
        let Some((page, items)) = self.pages.pop_front() else {
            return;
        };
        self.placing = true;
        let sink = Arc::clone(&self.sink);
        self.job(move || Done::Placed(page, sink.place(items)));
    }

    fn prepare(&mut self, entry: EntryId, file_len: u64, version: Version) {
        let root = (self.hash == HashKind::Blake3).then(|| RootBuilder::new(self.chunk, file_len));
        let file = File {
            sink: None,
            len: file_len,
            records: Records::default(),
            found: Arc::default(),
            verified: 0,
            root,
            holes: Vec::new(),
            last_value: None,
        };
        self.files.insert(entry, file);
        let sink = Arc::clone(&self.sink);
        let (hash, chunk) = (self.hash, self.chunk);
        // What nothing proves can't be gone on with.
        let resumes = self.resume && hash != HashKind::None;
        self.job(move || {
            let identity = |stem| Identity {
                stem,
                hash,
                chunk,
                len: file_len,
                version,
            };
            let identity: Option<&dyn Fn(u64) -> Identity> = resumes.then_some(&identity);
            Done::Prepared(entry, sink.prepare_as(entry, file_len, identity))
        });
    }

    fn fetch(&mut self, order: engine::receiver::Fetch) {
        let Some(file) = self
            .files
            .get(&order.entry)
            .and_then(|file| file.sink.clone())
        else {
            let fault = Fault::new(FaultCode::Internal, "a chunk was fetched for no part file");
            let result = Err(FetchFailure::Storage(fault));
            let token = order.token;
            self.engine.handle(Input::Landed { token, result });
            return;
        };
        let hash = hash_plan(order.proof, order.chunk, self.chunk, order.file_len);
        let fetch = Fetch {
            token: 0,
            remote: order.key.key,
            offset: order.key.address.saturating_add(order.region_offset),
            len: order.len,
            hash,
            store: Store::File {
                file,
                offset: order.file_offset,
                data: order.data,
            },
        };
        self.post(order.token, Target::Chunk(order.entry), order.lane, fetch);
    }

    /// Gives a fetch to its lane, now or when its time has come.
    fn post(&mut self, token: FetchToken, target: Target, lane: LaneId, fetch: Fetch) {
        let Some(throttle) = &self.throttle else {
            return self.post_now(token, target, lane, fetch);
        };
        let waits = !self.held_back.is_empty() || throttle.wait_until(Instant::now()).is_some();
        self.held_back.push_back((token, target, lane, fetch));
        if !waits {
            self.let_go();
        }
    }

    /// When the first fetch that is held back may go.
    fn due(&self) -> Option<Instant> {
        let throttle = self
            .throttle
            .as_ref()
            .filter(|_| !self.held_back.is_empty())?;
        let now = Instant::now();
        Some(throttle.wait_until(now).unwrap_or(now))
    }

    /// Posts what has been held back for long enough.
    fn let_go(&mut self) {
        // Whoever holds back is not stuck.
        self.watch.progressed();
        while let Some(throttle) = &mut self.throttle {
            let now = Instant::now();
            if throttle.wait_until(now).is_some() {
                return;
            }
            let Some((token, target, lane, fetch)) = self.held_back.pop_front() else {
                return;
            };
            throttle.took(now, fetch.len);
            self.post_now(token, target, lane, fetch);
        }
    }

    fn post_now(&mut self, token: FetchToken, target: Target, lane: LaneId, mut fetch: Fetch) {
        let number = self.next_fetch;
        fetch.token = number;
        self.watch.reads();
        if self.seat.fetch(lane, fetch) {
            self.next_fetch += 1;
            self.fetches.insert(number, Posted { token, target });
        } else {
            self.lost.push(token);
        }
    }

    fn store_pack(&mut self, region: RegionId, files: Vec<PackFile>, digests: Vec<[u8; 32]>) {
        let slot = self.packs.remove(&region);
        let sink = Arc::clone(&self.sink);
        let (hash, chunk) = (self.hash, self.chunk);
        self.job(move || {
            // A pack of empty files has no bytes, so nothing was fetched for it.
            let empty = files.iter().all(|file| file.len == 0);
            let results = match slot {
                None if empty => store_pack(&sink, &[], hash, chunk, &files, &digests),
                Some(slot) => store_pack(&sink, &slot, hash, chunk, &files, &digests),
                None => {
                    let fault = Fault::new(FaultCode::Internal, "a pack's bytes are not there");
                    let failed = |file: &PackFile| (file.entry, PackResult::Failed(fault.clone()));
                    files.iter().map(failed).collect()
                }
            };
            Done::Input(Input::PackStored { region, results })
        });
    }

    fn verified(&mut self, entry: EntryId, chunk: ChunkIndex, digest: Option<[u8; 32]>) {
        let (Some(file), Some(digest)) = (self.files.get_mut(&entry), digest) else {
            return;
        };
        file.verified += 1;
        if file.found.is_written(chunk) {
            file.records.add(file.sink.as_deref(), chunk, digest);
        }
        let is_due = file.records.bytes(self.chunk) >= RECORDING_BYTES;
        if let Some(root) = &mut file.root
            && let Err(error) = root.add(chunk, digest)
        {
            // The engine verifies each chunk once, so this is a defect; the file's digest is then
            // not told, its chunks are proved all the same.
            tracing::error!(%entry, %error, "a chunk's digest could not be merged");
            file.root = None;
        }
        if chunk.0 + 1 == self.chunk.count(file.len) {
            file.last_value = Some(digest);
        }
        if is_due && file.records.are_waiting() {
            self.record(entry);
        }
    }

    /// Publishes the files of this round as one group: their syncs are put together.
    fn publish(&mut self) {
        if self.publishing.is_empty() {
            return;
        }
        let files = std::mem::take(&mut self.publishing).into_iter();
        let files: Vec<_> = files
            .map(|(entry, file)| (entry, self.watch.path(entry), file))
            .collect();
        let sink = Arc::clone(&self.sink);
        let (hash, chunk) = (self.hash, self.chunk);
        let results = self.results.clone();
        self.job(move || {
            let mut digests: BTreeMap<EntryId, Option<[u8; 32]>> = BTreeMap::new();
            let mut ended = Vec::new();
            for (entry, path, file) in files {
                if let Some(file) = file
                    .as_ref()
                    .filter(|file| file.found.is_all(file.verified))
                {
                    match sink.keep_compared(entry, &file.hole_ranges(chunk)) {
                        Ok(None) => {}
                        kept => {
                            let updated = |kept| kept == Some(true);
                            let result = kept.map(|kept| Published::Kept {
                                updated: updated(kept),
                            });
                            ended.push(Input::Published { entry, result });
                            continue;
                        }
                    }
                }
                let written = file.as_ref().map_or(Ok(()), |file| {
                    file.write_rest(chunk, || {
                        let _ = results.send(Done::GoesOn);
                        sink.is_running()
                    })
                });
                if let Err(error) = written {
                    let result = Err(write_fault(&path, error));
                    ended.push(Input::Published { entry, result });
                    continue;
                }
                let cleared = file.as_ref().map_or(Ok(()), |file| file.clear_holes(chunk));
                if let Err(error) = cleared {
                    let result = Err(write_fault(&path, error));
                    ended.push(Input::Published { entry, result });
                    continue;
                }
                digests.insert(entry, file.and_then(|file| file.digest(hash, chunk)));
            }
            let entries: Vec<_> = digests.keys().copied().collect();
            let answer = |(entry, result): (EntryId, Result<(), Fault>)| {
                let digest = digests.get(&entry).copied().flatten();
                Input::Published {
                    entry,
                    result: result.map(|()| Published::New { digest }),
                }
            };
            let published = sink.publish_all(&entries).into_iter().map(answer);
            Done::Inputs(published.chain(ended).collect())
        });
    }

    /// Makes the hard links of this round.
    fn link(&mut self) {
        if self.linking.is_empty() {
            return;
        }
        let entries = std::mem::take(&mut self.linking);
        let sink = Arc::clone(&self.sink);
        self.job(move || {
            let answer = |(entry, result)| Input::Linked { entry, result };
            Done::Inputs(sink.link_all(&entries).into_iter().map(answer).collect())
        });
    }
}

impl File {
    /// Holes of the source are zeros here, whatever an earlier run wrote there.
    fn clear_holes(&self, chunk: ChunkSize) -> std::io::Result<()> {
        match &self.sink {
            Some(part) => clear_holes(part, self.len, chunk, &self.holes),
            None => Ok(()),
        }
    }

    /// The bytes that are holes at the source.
    fn hole_ranges(&self, chunk: ChunkSize) -> Vec<ByteRange> {
        let filled = self.holes.iter().filter(|hole| hole.start < hole.end);
        let ranges = filled.map(|hole| ByteRange {
            start: chunk.range(ChunkIndex(hole.start), self.len).start,
            end: chunk.range(ChunkIndex(hole.end - 1), self.len).end,
        });
        ranges.collect()
    }

    /// Writes what was only compared so far. `goes_on` is asked now and then.
    fn write_rest(&self, chunk: ChunkSize, goes_on: impl FnMut() -> bool) -> std::io::Result<()> {
        match &self.sink {
            Some(part) => self.found.write_rest(part, self.len, chunk, goes_on),
            None => Ok(()),
        }
    }

    /// The digest of the whole file, if its chunks' proofs are known.
    fn digest(self, hash: HashKind, chunk: ChunkSize) -> Option<[u8; 32]> {
        if hash == HashKind::Sha256 {
            return self.last_value;
        }
        let mut root = self.root?;
        let holes: u64 = self.holes.iter().map(|hole| hole.end - hole.start).sum();
        if holes.saturating_mul(chunk.bytes()) > HOLE_BYTES_HASHED_MAX {
            return None;
        }
        for hole in self.holes {
            root.add_hole(hole).ok()?;
        }
        root.finish()
    }
}

/// What the engine needs to know of a placed entry.
fn verdict((entry, placed): (EntryId, Placed)) -> (EntryId, engine::receiver::Placed) {
    let verdict = match placed {
        Placed::Fetch => engine::receiver::Placed::Fetch(Wanted::All),
        Placed::Compare { chunks } => engine::receiver::Placed::Fetch(Wanted::Compared(chunks)),
        Placed::Settled(outcome) => engine::receiver::Placed::Settled(outcome),
        Placed::Link { to } => engine::receiver::Placed::Link(to),
        Placed::Directory => engine::receiver::Placed::Directory,
    };
    (entry, verdict)
}

/// Sleeps; for ever if there is nothing to wait for.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// What a failed write means.
fn write_fault(path: &[u8], error: std::io::Error) -> Fault {
    StorageError::new("write", path, error).fault()
}

/// The words of a panic.
pub(super) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without words".to_owned())
}
