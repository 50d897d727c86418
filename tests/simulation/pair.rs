//! A receiver and a sender joined by virtual connections, lanes, workers and files, one event at a
//! time, in an order that a seed decides. Every event checks the invariants it touches.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rdcp::engine::receiver::{self, FetchFailure, PackFile, PackResult, Placed};
use rdcp::engine::sender::{self, ExposedWindow, FilledPack, OpenedFile};
use rdcp::engine::{Event, FetchToken, LaneId, Ledger, Receiver, Sender};
use rdcp::ids::{EntryId, RegionId};
use rdcp::limits::{PACK_BYTES_MAX, PAGE_ITEMS_MAX, REPAIRS_MAX};
use rdcp::manifest::{Entry, EntryKind};
use rdcp::units::{ByteRange, ChunkIndex, ChunkRange};
use rdcp::wire::message::{ChunkDigest, GrantPart, HashKind, Outcome, RegionKey, Wanted};
use rdcp::wire::{Fault, FaultCode, Message};

use super::files::{Sink, SourceFile, Trouble, digest, digests, fault, is_wanted};
use super::plan::Plan;
use super::random::{Random, mix};
use super::ways::{Lane, TCP, Ways};

/// More steps than any honest run takes: beyond it, something goes round in circles.
const STEPS_MAX: u64 = 400_000;

/// How one side ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub fault: Option<Fault>,
    pub ledger: Ledger,
}

/// Who said a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Receiver,
    Sender,
}

pub struct Pair {
    pub plan: Plan,
    random: Random,
    /// Events happen as early as they can, in a fixed order, not by chance.
    pub orderly: bool,
    pub receiver: Receiver,
    pub sender: Sender,
    pub sink: Sink,
    /// Every message, if `record` is set.
    pub said: Vec<(Side, Message)>,
    pub record: bool,

    to_receiver: VecDeque<Message>,
    to_sender: VecDeque<Message>,
    places: VecDeque<receiver::Output>,
    receiver_jobs: Vec<receiver::Output>,
    sender_jobs: Vec<sender::Output>,
    ahead: BTreeMap<EntryId, Ahead>,
    /// Windows whose values are told ahead, and chunks that are to be hashed for that.
    told_ahead: BTreeSet<RegionId>,
    to_hash: Vec<(EntryId, ChunkIndex)>,
    reports: Vec<sender::Input>,
    regions: BTreeMap<RegionId, Region>,
    fetches: Vec<InFlight>,
    landed_packs: BTreeMap<RegionId, (u64, Vec<PackedFile>)>,
    ways: Ways,
    next_page: usize,
    pub steps: u64,

    // What the checkers remember.
    tokens: BTreeSet<FetchToken>,
    told: BTreeSet<EntryId>,
    forgotten: BTreeSet<EntryId>,
    open: BTreeSet<EntryId>,
    confirmed: BTreeMap<EntryId, Vec<u64>>,
    closed: BTreeSet<EntryId>,
    pages_credit: i64,
    region_credit: i64,
    granted_bytes: i64,
    progress: u64,
    resumed: u64,
    pub reused: u64,
    walk_failed: bool,
    pub outcomes: BTreeMap<EntryId, Outcome>,
    pub sender_outcomes: BTreeMap<EntryId, Outcome>,
    pub repairs: u64,
    /// Chunks and packs that came wrong or not at all, and may avoid rails from then on.
    doubted_chunks: BTreeSet<(EntryId, u64)>,
    doubted_packs: BTreeSet<RegionId>,
    /// Chunks that were fetched over tcp though a rail is up, since the last round.
    repairing: Vec<(EntryId, u64)>,
    /// Remote access errors per file.
    pub denied: BTreeMap<EntryId, u64>,
    pub railed: u64,
    pub stood_in: u64,
    pub receiver_end: Option<End>,
    pub sender_end: Option<End>,
}

struct Ahead {
    next: u64,
    upto: u64,
    state: Option<[u8; 32]>,
}

#[derive(Debug)]
struct Region {
    content: Content,
    len: u64,
    granted: bool,
    released: bool,
    withdrawn: bool,
}

#[derive(Debug)]
enum Content {
    Window { entry: EntryId, range: ByteRange },
    Pack(Vec<PackedFile>),
}

#[derive(Clone, Debug)]
struct PackedFile {
    entry: EntryId,
    contents: Vec<u64>,
}

struct InFlight {
    token: FetchToken,
    lane: LaneId,
    len: u64,
    what: What,
    served: Option<Served>,
    lost: bool,
}

enum What {
    Chunk(receiver::Fetch),
    Pack(RegionId),
}

enum Served {
    Content(u64),
    Pack(Vec<PackedFile>),
    Refused,
    /// A remote access error.
    Denied,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Report,
    ToSender,
    ToReceiver,
    SenderJob,
    Place,
    ReceiverJob,
    HashAhead,
    HashWindow,
    Serve,
    Land,
}

impl Pair {
    pub fn new(plan: Plan) -> Self {
        let mut pair = Self {
            random: plan.random.clone(),
            orderly: false,
            receiver: Receiver::new(plan.receiver.clone()),
            sender: Sender::new(plan.sender.clone()),
            sink: Sink::default(),
            said: Vec::new(),
            record: false,
            to_receiver: VecDeque::new(),
            to_sender: VecDeque::new(),
            places: VecDeque::new(),
            receiver_jobs: Vec::new(),
            sender_jobs: Vec::new(),
            ahead: BTreeMap::new(),
            told_ahead: BTreeSet::new(),
            to_hash: Vec::new(),
            reports: Vec::new(),
            regions: BTreeMap::new(),
            fetches: Vec::new(),
            landed_packs: BTreeMap::new(),
            ways: Ways::new(&plan.rails, plan.faults.keyless),
            next_page: 0,
            steps: 0,
            tokens: BTreeSet::new(),
            told: BTreeSet::new(),
            forgotten: BTreeSet::new(),
            open: BTreeSet::new(),
            confirmed: BTreeMap::new(),
            closed: BTreeSet::new(),
            pages_credit: 0,
            region_credit: 0,
            granted_bytes: 0,
            progress: 0,
            resumed: 0,
            reused: 0,
            walk_failed: false,
            outcomes: BTreeMap::new(),
            sender_outcomes: BTreeMap::new(),
            repairs: 0,
            doubted_chunks: BTreeSet::new(),
            doubted_packs: BTreeSet::new(),
            repairing: Vec::new(),
            denied: BTreeMap::new(),
            railed: 0,
            stood_in: 0,
            receiver_end: None,
            sender_end: None,
            plan,
        };
        for &Lane { id: lane, rail, .. } in pair.ways.lanes() {
            pair.receiver.handle(receiver::Input::LaneUp { lane, rail });
        }
        pair
    }

    /// Runs to the end of both sides.
    pub fn drive(&mut self) {
        while self.receiver_end.is_none() || self.sender_end.is_none() {
            assert!(self.step(), "deadlock: {}", self.picture());
            assert!(self.steps < STEPS_MAX, "no end: {}", self.picture());
        }
    }

    fn picture(&self) -> String {
        format!(
            "receiver ended {:?}, sender ended {:?}, {} and {} unsettled, {} fetches, \
             {} of {} region bytes granted\n{:?}\n{:?}",
            self.receiver_end.is_some(),
            self.sender_end.is_some(),
            self.receiver.unsettled(),
            self.sender.unsettled(),
            self.fetches.len(),
            self.granted_bytes,
            self.region_credit,
            self.receiver,
            self.sender,
        )
    }

    /// One event, and what follows from it at once. `false` if nothing can happen.
    pub fn step(&mut self) -> bool {
        self.steps += 1;
        self.trouble();
        let mut kinds = self.enabled();
        if kinds.is_empty() {
            self.poll();
            kinds = self.enabled();
        }
        if kinds.is_empty() && self.ways.any_down() {
            self.lane_up();
            self.poll();
            return true;
        }
        let ended = self.receiver_end.is_some() && self.sender_end.is_some();
        if kinds.is_empty() {
            return ended;
        }
        let kind = if self.orderly {
            kinds[0]
        } else {
            self.random.pick(&kinds)
        };
        self.happen(kind);
        // Inputs are handed in as they come, several between two rounds of polling.
        if self.orderly || !self.random.one_in(3) {
            self.poll();
        }
        true
    }

    fn enabled(&self) -> Vec<Kind> {
        let served = |fetch: &InFlight| fetch.served.is_some() || fetch.lost;
        [
            (Kind::Report, !self.reports.is_empty()),
            (Kind::ToSender, !self.to_sender.is_empty()),
            (Kind::ToReceiver, !self.to_receiver.is_empty()),
            (Kind::SenderJob, !self.sender_jobs.is_empty()),
            (Kind::Place, !self.places.is_empty()),
            (Kind::ReceiverJob, !self.receiver_jobs.is_empty()),
            (
                Kind::HashAhead,
                self.ahead.values().any(|ahead| ahead.next < ahead.upto),
            ),
            (Kind::HashWindow, !self.to_hash.is_empty()),
            (Kind::Serve, self.fetches.iter().any(|fetch| !served(fetch))),
            (Kind::Land, self.fetches.iter().any(served)),
        ]
        .into_iter()
        .filter_map(|(kind, enabled)| enabled.then_some(kind))
        .collect()
    }

    fn happen(&mut self, kind: Kind) {
        match kind {
            Kind::Report => {
                let report = take(&mut self.random, self.orderly, &mut self.reports);
                self.sender.handle(report);
            }
            Kind::ToSender => {
                let message = self.to_sender.pop_front().unwrap();
                self.at_sender(&message);
                self.sender.handle(sender::Input::Message(message));
            }
            Kind::ToReceiver => {
                let message = self.to_receiver.pop_front().unwrap();
                if let Message::Closed(answers) = &message {
                    let same = answers.iter().filter(|(_, same)| *same);
                    self.closed.extend(same.map(|(entry, _)| *entry));
                }
                self.receiver.handle(receiver::Input::Message(message));
            }
            Kind::SenderJob => {
                let job = take(&mut self.random, self.orderly, &mut self.sender_jobs);
                let input = self.sender_job(job);
                self.sender.handle(input);
            }
            Kind::Place => {
                let job = self.places.pop_front().unwrap();
                let input = self.receiver_job(job);
                self.receiver.handle(input);
            }
            Kind::ReceiverJob => {
                let job = take(&mut self.random, self.orderly, &mut self.receiver_jobs);
                let input = self.receiver_job(job);
                self.receiver.handle(input);
            }
            Kind::HashAhead => self.hash_ahead(),
            Kind::HashWindow => self.hash_window(),
            Kind::Serve => self.serve(),
            Kind::Land => self.land(),
        }
    }

    // ---- what goes wrong at any time ----

    fn trouble(&mut self) {
        let faults = self.plan.faults.clone();
        if self.random.one_in(faults.lane_down) {
            self.lane_down();
        }
        if self.ways.any_down() && self.random.one_in(faults.lane_up) {
            self.lane_up();
        }
        if self.random.one_in(faults.source_change) {
            let changing: Vec<EntryId> = self
                .plan
                .tree
                .files
                .iter()
                .filter(|(_, file)| {
                    matches!(file.trouble, Trouble::Changes | Trouble::ChangesUnseen)
                })
                .map(|(entry, _)| *entry)
                .collect();
            if !changing.is_empty() {
                let entry = self.random.pick(&changing);
                let file = self.plan.tree.files.get_mut(&entry).unwrap();
                let seen = file.trouble == Trouble::Changes;
                file.change(&mut self.random, seen);
            }
        }
        match faults.cancel {
            Some((step, true)) if step == self.steps => {
                self.sender
                    .handle(sender::Input::Cancel(fault(FaultCode::Cancelled)));
            }
            Some((step, false)) if step == self.steps => {
                self.receiver
                    .handle(receiver::Input::Cancel(fault(FaultCode::Cancelled)));
            }
            _ => {}
        }
    }

    pub fn lane_down(&mut self) {
        let up: Vec<LaneId> = self
            .ways
            .lanes()
            .iter()
            .filter(|lane| lane.up)
            .map(|lane| lane.id)
            .collect();
        if !up.is_empty() {
            let lane = self.random.pick(&up);
            self.lose(lane);
        }
    }

    /// The lane goes, and with it what is in flight there and not served.
    fn lose(&mut self, lane: LaneId) {
        self.ways.down(lane);
        for fetch in self.fetches.iter_mut().filter(|fetch| fetch.lane == lane) {
            // Completions of what had arrived are still delivered.
            fetch.lost = fetch.served.is_none() || !self.random.one_in(4);
        }
        self.receiver.handle(receiver::Input::LaneDown { lane });
    }

    fn lane_up(&mut self) {
        let busy: Vec<LaneId> = self.fetches.iter().map(|fetch| fetch.lane).collect();
        let Lane { id: lane, rail, .. } = self
            .ways
            .revive(&mut self.random, |lane| busy.contains(&lane));
        self.receiver.handle(receiver::Input::LaneUp { lane, rail });
    }

    // ---- outputs ----

    fn poll(&mut self) {
        while let Some(output) = self.receiver.poll() {
            self.receiver_output(output);
        }
        for chunk in std::mem::take(&mut self.repairing) {
            let doubted = self.doubted_chunks.contains(&chunk);
            assert!(doubted, "tcp is used though a rail is up");
        }
        while let Some(output) = self.sender.poll() {
            self.sender_output(output);
        }
        let directories = self.plan.tree.pages.len() * PAGE_ITEMS_MAX;
        assert!(self.receiver.unsettled() <= directories);
    }

    fn receiver_output(&mut self, output: receiver::Output) {
        use receiver::Output;
        assert!(self.receiver_end.is_none(), "{output:?} after the end");
        match output {
            Output::Send(message) => {
                if let Message::Release(regions) = &message {
                    for region in regions {
                        self.check_release(*region);
                    }
                }
                if let Message::Recheck { entry, chunk } = &message {
                    self.doubted_chunks.insert((*entry, *chunk));
                }
                if self.record {
                    self.said.push((Side::Receiver, message.clone()));
                }
                self.to_sender.push_back(message);
            }
            Output::Place { .. } => self.places.push_back(output),
            Output::Fetch(fetch) => self.check_fetch(fetch),
            Output::FetchPack {
                token,
                lane,
                region,
                key,
                len,
            } => {
                let model = &self.regions[&region];
                assert!(model.granted && !model.released && len == model.len && len > 0);
                let doubted = self.doubted_packs.contains(&region);
                let best = self.is_best_way(lane, region, key);
                assert!(best || doubted, "tcp is used though a rail is up");
                self.landed_packs.remove(&region);
                self.post(InFlight {
                    token,
                    lane,
                    len,
                    what: What::Pack(region),
                    served: None,
                    lost: false,
                });
            }
            Output::Verified {
                entry,
                chunk,
                digest: proof,
            } => {
                self.check_verified(entry, chunk, proof);
            }
            Output::Hole { entry, chunks, .. } => {
                let file = &self.plan.tree.files[&entry];
                for chunk in chunks.start..chunks.end {
                    assert!(
                        !file.data[usize::try_from(chunk).unwrap()],
                        "data called a hole"
                    );
                    assert!(
                        self.sink
                            .files
                            .entry(entry)
                            .or_default()
                            .holes
                            .insert(chunk)
                    );
                }
            }
            Output::Publish { entry } => {
                self.check_publish(entry);
                self.receiver_jobs.push(Output::Publish { entry });
            }
            Output::Event(event) => self.receiver_event(event),
            Output::Finished(ledger) => {
                assert_eq!(self.receiver.unsettled(), 0);
                self.receiver_end = Some(End {
                    fault: None,
                    ledger,
                });
            }
            Output::Failed { fault, ledger } => {
                assert!(self.fetches.is_empty(), "ended with fetches in flight");
                assert!(self.receiver_jobs.is_empty() && self.places.is_empty());
                self.receiver_end = Some(End {
                    fault: Some(fault),
                    ledger,
                });
            }
            job => self.receiver_jobs.push(job),
        }
    }

    fn receiver_event(&mut self, event: Event) {
        match event {
            Event::Moved { bytes } => {
                assert!(bytes > 0);
                self.progress += bytes;
            }
            Event::Done { entry, outcome } => {
                assert!(
                    self.outcomes.insert(entry, outcome).is_none(),
                    "{entry} ended twice"
                );
            }
            Event::Repairing { .. } => self.repairs += 1,
            Event::Resumed { bytes, .. } => {
                assert!(bytes > 0);
                self.resumed += bytes;
            }
            Event::Reused { bytes, .. } => {
                assert!(bytes > 0);
                self.reused += bytes;
            }
            _ => {}
        }
    }

    fn post(&mut self, fetch: InFlight) {
        assert!(self.tokens.insert(fetch.token), "a token is used twice");
        assert!(
            self.ways.is_up(fetch.lane),
            "a fetch on a lane that is down"
        );
        let lane = fetch.lane;
        self.fetches.push(fetch);
        let on_lane = self
            .fetches
            .iter()
            .filter(|fetch| fetch.lane == lane)
            .count();
        assert!(
            on_lane <= self.plan.receiver.lane_fetches_max as usize,
            "lane overfull"
        );
        let packs: u64 = self.landed_packs.values().map(|(len, _)| *len).sum();
        let bytes = packs + self.fetches.iter().map(|fetch| fetch.len).sum::<u64>();
        let alone = self.fetches.len() == 1 && packs == 0;
        assert!(
            alone || bytes <= self.plan.receiver.in_flight_bytes_max,
            "too much in flight"
        );
    }

    fn check_fetch(&mut self, fetch: receiver::Fetch) {
        let model = &self.regions[&fetch.region];
        assert!(
            model.granted && !model.released,
            "a fetch outside its grant's life"
        );
        let Content::Window { entry, range } = &model.content else {
            panic!("a chunk of a pack")
        };
        assert_eq!(*entry, fetch.entry);
        let wary = self.denied.contains_key(entry);
        assert_eq!(range.start + fetch.region_offset, fetch.file_offset);
        assert!(
            fetch.region_offset + fetch.len <= model.len,
            "a fetch beyond its region"
        );
        let file = &self.plan.tree.files[&fetch.entry];
        let bytes = self.plan.receiver.chunk.range(fetch.chunk, file.len);
        assert_eq!((bytes.start, bytes.len()), (fetch.file_offset, fetch.len));
        assert!(
            file.data[usize::try_from(fetch.chunk.0).unwrap()],
            "a hole is fetched"
        );
        let sink = &self.sink.files[&fetch.entry];
        assert!(sink.prepared);
        let reserved = |range: &ByteRange| sink.reserved.contains(range);
        assert!(
            fetch.data.iter().all(reserved),
            "written before space is reserved"
        );
        let same = |other: &InFlight| {
            matches!(&other.what, What::Chunk(other)
                if (other.entry, other.chunk) == (fetch.entry, fetch.chunk))
        };
        assert!(!self.fetches.iter().any(same), "a chunk in flight twice");
        assert!(
            !sink.verified.contains(&fetch.chunk.0),
            "a proved chunk is fetched again"
        );
        // A repair may go out before the word of it, in one round of polling.
        let doubted = (!wary).then_some((*entry, fetch.chunk.0));
        if !self.is_best_way(fetch.lane, fetch.region, fetch.key) {
            self.repairing.extend(doubted);
        }
        self.post(InFlight {
            token: fetch.token,
            lane: fetch.lane,
            len: fetch.len,
            what: What::Chunk(fetch),
            served: None,
            lost: false,
        });
    }

    /// Whether it goes over a rail, or no rail could bring it. The key is the region's for the
    /// lane's rail in any case.
    fn is_best_way(&mut self, lane: LaneId, region: RegionId, key: RegionKey) -> bool {
        let rail = self.ways.rail(lane).expect("a lane that is known");
        assert!(self.ways.keys(region).contains(&key) && key.rail == rail);
        if rail != TCP {
            self.railed += 1;
            return true;
        }
        self.stood_in += u64::from(self.plan.rails.iter().any(|rail| *rail != TCP));
        !self.ways.rail_reaches(region)
    }

    fn check_release(&mut self, region: RegionId) {
        let of_region = |fetch: &InFlight| match &fetch.what {
            What::Chunk(fetch) => fetch.region == region,
            What::Pack(pack) => *pack == region,
        };
        assert!(
            !self.fetches.iter().any(of_region),
            "released with fetches in flight"
        );
        let model = self.regions.get_mut(&region).unwrap();
        assert!(
            model.granted && !model.released,
            "released twice or never granted"
        );
        model.released = true;
    }

    fn check_verified(&mut self, entry: EntryId, chunk: ChunkIndex, proof: Option<[u8; 32]>) {
        let hash = self.plan.receiver.hash;
        assert_eq!(proof.is_some(), hash != HashKind::None);
        let sink = self.sink.files.get_mut(&entry).unwrap();
        assert!(
            sink.written.contains_key(&chunk.0),
            "proved before it was written"
        );
        assert!(sink.verified.insert(chunk.0), "proved twice");
    }

    fn check_publish(&mut self, entry: EntryId) {
        assert!(
            self.closed.contains(&entry),
            "published before Closed(true)"
        );
        let file = &self.plan.tree.files[&entry];
        let sink = &self.sink.files[&entry];
        assert!(sink.prepared && sink.len == file.len);
        for chunk in 0..file.data.len() as u64 {
            let there = sink.verified.contains(&chunk) || sink.holes.contains(&chunk);
            assert!(
                there || !self.is_wanted(entry, chunk),
                "published without chunk {chunk}"
            );
        }
    }

    fn is_wanted(&self, entry: EntryId, chunk: u64) -> bool {
        match &self.sink.placed[&entry] {
            Placed::Fetch(wanted) => is_wanted(wanted, chunk),
            _ => false,
        }
    }

    /// What arrived is what the source had.
    fn check_content(&self, entry: EntryId) {
        let file = &self.plan.tree.files[&entry];
        let damaged = matches!(file.trouble, Trouble::Damaged(_));
        if damaged && self.plan.receiver.hash == HashKind::None {
            return;
        }
        for (&chunk, &content) in &self.sink.files[&entry].written {
            assert!(
                file.had(chunk, content),
                "chunk {chunk} of {entry} is not the source's"
            );
            if let Some(generations) = self.confirmed.get(&entry)
                && file.trouble == Trouble::Changes
            {
                let mut then = file.clone();
                then.generations.clone_from(generations);
                assert_eq!(then.content(chunk), content, "a mixture of versions");
            }
        }
    }

    fn sender_output(&mut self, output: sender::Output) {
        use sender::Output;
        assert!(self.sender_end.is_none(), "{output:?} after the end");
        match output {
            Output::Send(message) => {
                self.sent_by_sender(&message);
                if self.record {
                    self.said.push((Side::Sender, message.clone()));
                }
                self.to_receiver.push_back(message);
            }
            Output::HashAhead { entry, upto } => {
                assert!(!self.forgotten.contains(&entry));
                let ahead = self.ahead.entry(entry);
                let ahead = ahead.or_insert(Ahead {
                    next: 0,
                    upto: 0,
                    state: None,
                });
                assert!(upto.0 > ahead.upto);
                ahead.upto = upto.0;
            }
            Output::Forget { entry } => {
                assert!(self.forgotten.insert(entry), "forgotten twice");
                self.open.remove(&entry);
                self.ahead.remove(&entry);
            }
            Output::Event(Event::Done { entry, outcome }) => {
                assert!(self.sender_outcomes.insert(entry, outcome).is_none());
            }
            Output::Event(_) => {}
            Output::Finished(ledger) => {
                assert_eq!(self.sender.unsettled(), 0);
                self.sender_end = Some(End {
                    fault: None,
                    ledger,
                });
                self.check_sender_end();
            }
            Output::Failed { fault, ledger } => {
                self.sender_end = Some(End {
                    fault: Some(fault),
                    ledger,
                });
                self.check_sender_end();
            }
            job => {
                if let Output::Open { entry } = &job {
                    assert!(self.open.insert(*entry));
                    assert!(self.open.len() <= self.plan.sender.open_files_max);
                }
                self.check_not_forgotten(&job);
                self.sender_jobs.push(job);
                self.check_pack_memory();
            }
        }
    }

    fn check_not_forgotten(&self, job: &sender::Output) {
        use sender::Output;
        match job {
            Output::Open { entry }
            | Output::Expose { entry, .. }
            | Output::Check { entry }
            | Output::Rehash { entry, .. } => assert!(!self.forgotten.contains(entry)),
            Output::FillPack { entries, .. } => {
                assert!(entries.iter().all(|entry| !self.forgotten.contains(entry)));
            }
            _ => {}
        }
    }

    fn check_pack_memory(&self) {
        let filling = |job: &&sender::Output| matches!(job, sender::Output::FillPack { .. });
        let filling = self.sender_jobs.iter().filter(filling).count();
        let packs = self
            .regions
            .values()
            .filter(|region| matches!(region.content, Content::Pack(_)) && !region.withdrawn);
        let packs = (filling + packs.count()) as u64;
        let most = (self.plan.sender.pack_bytes_max / PACK_BYTES_MAX).max(1);
        assert!(packs <= most, "{packs} packs of {most}");
        let regions = self
            .regions
            .values()
            .filter(|region| !region.withdrawn)
            .count();
        assert!(regions <= self.plan.sender.regions_max);
    }

    fn check_sender_end(&self) {
        assert!(self.sender_jobs.is_empty());
        assert!(
            self.regions.values().all(|region| region.withdrawn),
            "a region outlives its run"
        );
        assert_eq!(
            self.told, self.forgotten,
            "the source must not remember any entry"
        );
    }

    fn sent_by_sender(&mut self, message: &Message) {
        match message {
            Message::Manifest(page) => {
                self.pages_credit -= 1;
                assert!(self.pages_credit >= 0, "a page without credit");
                for item in &page.items {
                    if let rdcp::manifest::Item::Entry(entry) = item {
                        self.told.insert(entry.id);
                    }
                }
            }
            Message::Grant(grant) if grant.len > 0 => {
                self.granted_bytes += i64::try_from(grant.len).unwrap();
                assert!(
                    self.granted_bytes <= self.region_credit,
                    "a grant without credit"
                );
                let region = self.regions.get_mut(&grant.region).unwrap();
                assert!(!region.granted && !region.withdrawn && region.len == grant.len);
                region.granted = true;
                if self.told_ahead.contains(&grant.region) {
                    self.hash_granted(grant);
                }
            }
            _ => {}
        }
    }

    /// A message reaches the sender: credit counts from now on.
    fn at_sender(&mut self, message: &Message) {
        match message {
            Message::Credit {
                pages,
                region_bytes,
            } => {
                self.pages_credit += i64::from(*pages);
                self.region_credit += i64::try_from(*region_bytes).unwrap();
            }
            Message::Release(regions) => {
                for region in regions {
                    self.granted_bytes -= i64::try_from(self.regions[region].len).unwrap();
                }
            }
            _ => {}
        }
    }

    // ---- the source's side ----

    fn sender_job(&mut self, job: sender::Output) -> sender::Input {
        use sender::{Input, Output};
        match job {
            Output::NextPage => Input::Page(self.walk()),
            Output::Open { entry } => {
                let file = self.plan.tree.files.get_mut(&entry).unwrap();
                let result = if file.trouble == Trouble::Vanishes {
                    self.open.remove(&entry);
                    Err(fault(FaultCode::NotFound))
                } else {
                    file.opened_version = file.version;
                    let window_bytes = self.random.pick(self.plan.window_bytes);
                    Ok(OpenedFile {
                        window_bytes,
                        version: file.version(),
                        len: file.len,
                    })
                };
                Input::Opened { entry, result }
            }
            Output::FillPack {
                region,
                entries,
                capacity,
            } => Input::PackFilled {
                region,
                pack: self.fill_pack(region, &entries, capacity),
            },
            Output::Expose {
                region,
                entry,
                range,
                file_len,
                told_ahead,
            } => {
                if told_ahead {
                    assert_eq!(self.plan.sender.hash, HashKind::Blake3);
                    self.told_ahead.insert(region);
                }
                let file = &self.plan.tree.files[&entry];
                assert!(file_len == file.len && range.end <= file_len && !range.is_empty());
                let extents = file.extents(range, self.plan.sender.chunk);
                let hole_end = file.next_data(range.end, self.plan.sender.chunk);
                let content = Content::Window { entry, range };
                self.expose(region, content, range.len());
                Input::Exposed {
                    region,
                    result: Ok(ExposedWindow {
                        keys: self.ways.keys(region),
                        extents,
                        hole_end,
                    }),
                }
            }
            Output::Unexpose { region } => {
                let model = self.regions.get_mut(&region).unwrap();
                assert!(!model.withdrawn, "withdrawn twice");
                model.withdrawn = true;
                Input::Unexposed { region }
            }
            Output::Check { entry } => {
                let file = &self.plan.tree.files[&entry];
                self.confirmed.insert(entry, file.generations.clone());
                self.open.remove(&entry);
                Input::Checked {
                    entry,
                    same: !file.is_changed(),
                }
            }
            Output::Rehash {
                entry,
                chunk,
                before,
            } => {
                let result = if self.read_fails(entry) {
                    Err(fault(FaultCode::Storage))
                } else if self.plan.tree.files[&entry].is_changed() {
                    Err(fault(FaultCode::SourceChanged))
                } else {
                    let content = self.plan.tree.files[&entry].content(chunk.0);
                    Ok(digest(content, chunk.0, self.proof(before)).unwrap_or([9; 32]))
                };
                Input::Rehashed {
                    entry,
                    chunk,
                    result,
                }
            }
            other => panic!("{other:?} is no job"),
        }
    }

    fn proof(&self, before: Option<[u8; 32]>) -> receiver::Proof {
        match self.plan.sender.hash {
            HashKind::Blake3 => receiver::Proof::Blake3,
            HashKind::Sha256 => receiver::Proof::Sha256 { before },
            _ => receiver::Proof::None,
        }
    }

    fn walk(&mut self) -> Result<rdcp::wire::message::ManifestPage, Fault> {
        assert!(!self.walk_failed);
        if self.plan.faults.walk_fails == Some(self.next_page) {
            self.walk_failed = true;
            return Err(fault(FaultCode::Storage));
        }
        self.next_page += 1;
        Ok(self.plan.tree.pages[self.next_page - 1].clone())
    }

    fn expose(&mut self, region: RegionId, content: Content, len: u64) {
        let model = Region {
            content,
            len,
            granted: false,
            released: false,
            withdrawn: false,
        };
        assert!(
            self.regions.insert(region, model).is_none(),
            "a region's name is used twice"
        );
    }

    fn fill_pack(&mut self, region: RegionId, entries: &[EntryId], capacity: u64) -> FilledPack {
        assert!(
            entries.windows(2).all(|pair| pair[0] < pair[1]),
            "not in manifest order"
        );
        let mut pack = FilledPack::default();
        let mut packed = Vec::new();
        for &entry in entries {
            if self.plan.tree.files[&entry].trouble == Trouble::Vanishes {
                pack.failed.push((entry, fault(FaultCode::NotFound)));
                continue;
            }
            if self.read_fails(entry) {
                pack.failed.push((entry, fault(FaultCode::Storage)));
                continue;
            }
            let file = &self.plan.tree.files[&entry];
            if pack.len + file.len > capacity || file.len > rdcp::limits::PACK_FILE_BYTES_MAX {
                pack.left.push(entry);
                continue;
            }
            let contents: Vec<u64> = (0..file.data.len() as u64)
                .map(|n| file.content(n))
                .collect();
            let values = digests(&contents, self.plan.sender.hash);
            let values = (0..).zip(values);
            pack.digests
                .extend(values.map(|(chunk, value)| ChunkDigest {
                    entry,
                    chunk,
                    value,
                }));
            pack.parts.push(GrantPart {
                entry,
                version: file.version(),
                file_len: file.len,
                file_offset: 0,
                region_offset: pack.len,
                len: file.len,
                extents: Vec::new(),
                last: true,
                packed: true,
            });
            pack.len += file.len;
            packed.push(PackedFile { entry, contents });
        }
        if pack.len > 0 {
            pack.keys = self.ways.keys(region);
            self.expose(region, Content::Pack(packed), pack.len);
        } else {
            self.landed_packs.insert(region, (0, packed));
        }
        pack
    }

    fn read_fails(&mut self, entry: EntryId) -> bool {
        match self.plan.tree.files[&entry].trouble {
            Trouble::Unreadable(n) => self.random.one_in(n),
            _ => false,
        }
    }

    fn hash_ahead(&mut self) {
        let behind = self
            .ahead
            .iter()
            .filter(|(_, ahead)| ahead.next < ahead.upto);
        let entries: Vec<EntryId> = behind.map(|(entry, _)| *entry).collect();
        let entry = if self.orderly {
            entries[0]
        } else {
            self.random.pick(&entries)
        };
        if self.read_fails(entry) {
            self.ahead.remove(&entry);
            let fault = fault(FaultCode::Storage);
            self.sender
                .handle(sender::Input::SourceFailed { entry, fault });
            return;
        }
        let ahead = self.ahead.get_mut(&entry).unwrap();
        let chunk = ahead.next;
        let content = self.plan.tree.files[&entry].content(chunk);
        let proof = receiver::Proof::Sha256 {
            before: ahead.state,
        };
        let value = digest(content, chunk, proof).unwrap();
        (ahead.next, ahead.state) = (chunk + 1, Some(value));
        self.sender.handle(sender::Input::Hashed {
            entry,
            chunk: ChunkIndex(chunk),
            value,
        });
    }

    /// A receiver compares before it reads: its chunks are hashed beside.
    fn hash_granted(&mut self, grant: &rdcp::wire::message::Grant) {
        let part = &grant.parts[0];
        let size = self.plan.sender.chunk;
        for chunk in size.index_of(part.file_offset).0..size.count(part.file_offset + part.len) {
            let file = &self.plan.tree.files[&part.entry];
            if file.data[usize::try_from(chunk).unwrap()] {
                self.to_hash.push((part.entry, ChunkIndex(chunk)));
            }
        }
    }

    fn hash_window(&mut self) {
        let (entry, chunk) = take(&mut self.random, self.orderly, &mut self.to_hash);
        if self.read_fails(entry) {
            self.to_hash.retain(|(other, _)| *other != entry);
            let fault = fault(FaultCode::Storage);
            self.reports
                .push(sender::Input::SourceFailed { entry, fault });
            return;
        }
        let content = self.plan.tree.files[&entry].content(chunk.0);
        let value = digest(content, chunk.0, receiver::Proof::Blake3).unwrap();
        self.reports.push(sender::Input::Hashed {
            entry,
            chunk,
            value,
        });
    }

    fn serve(&mut self) {
        let waiting: Vec<usize> = (0..self.fetches.len())
            .filter(|n| self.fetches[*n].served.is_none() && !self.fetches[*n].lost)
            .collect();
        let n = if self.orderly {
            waiting[0]
        } else {
            self.random.pick(&waiting)
        };
        let region = match &self.fetches[n].what {
            What::Chunk(fetch) => fetch.region,
            What::Pack(region) => *region,
        };
        let lane = self.fetches[n].lane;
        let on_rail = self.ways.rail(lane).is_some_and(|rail| rail != TCP);
        if on_rail && self.ways.is_up(lane) && self.random.one_in(self.plan.faults.denied) {
            // The whole connection dies of it; the word of that comes before or after.
            self.fetches[n].served = Some(Served::Denied);
            if self.random.one_in(2) {
                self.land_fetch(n);
                self.lose(lane);
            } else {
                self.lose(lane);
                self.fetches[n].lost = false;
            }
            return;
        }
        let model = &self.regions[&region];
        assert!(model.granted && !model.released, "read after release");
        if model.withdrawn {
            assert!(self.plan.may_end_early(), "withdrawn while it is read");
            self.fetches[n].served = Some(Served::Refused);
            return;
        }
        let served = match (&self.fetches[n].what, &model.content) {
            (What::Pack(_), Content::Pack(files)) => Served::Pack(files.clone()),
            (What::Chunk(fetch), Content::Window { .. }) => {
                let (entry, chunk) = (fetch.entry, fetch.chunk);
                self.serve_chunk(entry, chunk)
            }
            _ => panic!("a chunk of a pack, or a pack of a window"),
        };
        self.fetches[n].served = Some(served);
    }

    fn serve_chunk(&mut self, entry: EntryId, chunk: ChunkIndex) -> Served {
        if self.read_fails(entry) {
            let fault = fault(FaultCode::Storage);
            self.reports
                .push(sender::Input::SourceFailed { entry, fault });
            return Served::Refused;
        }
        let content = self.plan.tree.files[&entry].content(chunk.0);
        if self.plan.sender.hash == HashKind::Blake3 {
            let value = digest(content, chunk.0, receiver::Proof::Blake3).unwrap();
            self.reports.push(sender::Input::Hashed {
                entry,
                chunk,
                value,
            });
        }
        Served::Content(content)
    }

    // ---- the sink's side ----

    fn land(&mut self) {
        let ready: Vec<usize> = (0..self.fetches.len())
            .filter(|n| self.fetches[*n].served.is_some() || self.fetches[*n].lost)
            .collect();
        let n = if self.orderly {
            ready[0]
        } else {
            self.random.pick(&ready)
        };
        self.land_fetch(n);
    }

    fn land_fetch(&mut self, n: usize) {
        let fetch = self.fetches.remove(n);
        let token = fetch.token;
        let result = match (fetch.what, fetch.served) {
            _ if fetch.lost => Err(FetchFailure::Lost),
            (What::Pack(region), Some(served @ (Served::Refused | Served::Denied))) => {
                self.doubted_packs.insert(region);
                let Content::Pack(files) = &self.regions[&region].content else {
                    panic!("a window is read like a pack")
                };
                let entries = files.iter().map(|file| file.entry).collect();
                Err(self.refused(&served, entries))
            }
            (What::Chunk(fetch), Some(served @ (Served::Refused | Served::Denied))) => {
                Err(self.refused(&served, vec![fetch.entry]))
            }
            (What::Pack(region), Some(Served::Pack(mut files))) => {
                for file in &mut files {
                    if self.is_damaged(file.entry) {
                        file.contents
                            .iter_mut()
                            .for_each(|content| *content ^= 1 << 40);
                    }
                }
                self.landed_packs.insert(region, (fetch.len, files));
                Ok(None)
            }
            (What::Chunk(fetch), Some(Served::Content(content))) => {
                self.land_chunk(&fetch, content)
            }
            _ => panic!("a fetch landed with another's bytes"),
        };
        self.receiver
            .handle(receiver::Input::Landed { token, result });
    }

    fn refused(&mut self, served: &Served, entries: Vec<EntryId>) -> FetchFailure {
        if matches!(served, Served::Refused) {
            return FetchFailure::Remote;
        }
        for entry in entries {
            *self.denied.entry(entry).or_default() += 1;
        }
        FetchFailure::Access
    }

    fn land_chunk(
        &mut self,
        fetch: &receiver::Fetch,
        content: u64,
    ) -> Result<Option<[u8; 32]>, FetchFailure> {
        let trouble = self.plan.tree.files[&fetch.entry].trouble;
        if trouble == Trouble::WriteFails {
            return Err(FetchFailure::Storage(fault(FaultCode::Storage)));
        }
        let damaged = self.is_damaged(fetch.entry);
        let content = if damaged {
            content ^ (1 << 40)
        } else {
            content
        };
        let sink = self.sink.files.get_mut(&fetch.entry).unwrap();
        sink.written.insert(fetch.chunk.0, content);
        sink.kept.remove(&fetch.chunk.0);
        Ok(digest(content, fetch.chunk.0, fetch.proof))
    }

    fn is_damaged(&mut self, entry: EntryId) -> bool {
        match self.plan.tree.files[&entry].trouble {
            Trouble::Damaged(n) => self.random.one_in(n),
            _ => false,
        }
    }

    fn receiver_job(&mut self, job: receiver::Output) -> receiver::Input {
        use receiver::{Input, Output};
        match job {
            Output::Place { page, items } => {
                let decided = &self.plan.placed;
                let older = self.plan.older;
                let files = &self.plan.tree.files;
                let decide = |entry: &Entry| match decided.get(&entry.id) {
                    Some(placed) => placed.clone(),
                    None => match entry.kind {
                        EntryKind::File { .. } => {
                            let older = older.then(|| older_chunks(&files[&entry.id]));
                            Placed::Fetch(older.flatten().map_or(Wanted::All, Wanted::Compared))
                        }
                        EntryKind::Directory => Placed::Directory,
                        EntryKind::HardLink(to) => Placed::Link(to),
                        _ => Placed::Settled(Outcome::Published {
                            bytes: 0,
                            digest: None,
                        }),
                    },
                };
                let (entries, directories) = self.sink.place(&items, decide);
                Input::Placed {
                    page,
                    entries,
                    directories,
                }
            }
            Output::Prepare {
                entry,
                file_len,
                version,
            } => {
                let sink = self.sink.files.entry(entry).or_default();
                assert!(!sink.prepared && sink.version.is_none(), "prepared twice");
                (sink.version, sink.len) = (Some(version), file_len);
                let fails = self.plan.tree.files[&entry].trouble == Trouble::PrepareFails;
                sink.prepared = !fails;
                let result = if fails {
                    Err(fault(FaultCode::Denied))
                } else {
                    // What was seen when it was placed may be shorter by now, or longer.
                    let older = older_chunks(&self.plan.tree.files[&entry]).unwrap_or(0);
                    Ok(receiver::Prepared {
                        held: self.held(entry),
                        older: older.saturating_sub(entry.0 % 3),
                        in_place: entry.0.is_multiple_of(5),
                    })
                };
                Input::Prepared { entry, result }
            }
            Output::Prove {
                entry,
                region,
                chunks,
            } => Input::Proved {
                entry,
                region,
                result: Ok(self.prove_held(entry, &chunks)),
            },
            Output::Compare {
                entry,
                region,
                chunks,
                ..
            } => Input::Compared {
                entry,
                region,
                result: self.compare(entry, &chunks),
            },
            Output::Allocate {
                entry,
                region,
                ranges,
            } => {
                let sink = self.sink.files.get_mut(&entry).unwrap();
                assert!(sink.prepared && !ranges.is_empty());
                sink.reserved.extend(ranges.iter());
                let fails = self.plan.tree.files[&entry].trouble == Trouble::AllocateFails;
                let result = if fails {
                    Err(fault(FaultCode::Denied))
                } else {
                    Ok(())
                };
                Input::Allocated {
                    entry,
                    region,
                    result,
                }
            }
            Output::StorePack {
                region,
                files,
                digests,
            } => {
                let (_, landed) = self.landed_packs.remove(&region).expect("the pack landed");
                let results = files
                    .iter()
                    .map(|file| (file.entry, self.store_packed(file, &digests, &landed)));
                let results: Vec<_> = results.collect();
                let wrong = |(_, result): &(_, _)| matches!(result, PackResult::Mismatch);
                if results.iter().any(wrong) {
                    self.doubted_packs.insert(region);
                }
                Input::PackStored { region, results }
            }
            Output::Publish { entry } => {
                // What an older copy had all of may stay.
                let kept = self.plan.older && entry.0.is_multiple_of(2) && {
                    let sink = &self.sink.files[&entry];
                    !sink.verified.is_empty() && sink.verified.is_subset(&sink.compared)
                };
                let published = match kept {
                    true => receiver::Published::Kept {
                        updated: entry.0.is_multiple_of(4),
                    },
                    false => receiver::Published::New { digest: None },
                };
                let result = self.publish(entry).map_or(Ok(published), Err);
                Input::Published { entry, result }
            }
            Output::Link { entry, to } => {
                let there = match self.outcomes.get(&to) {
                    Some(Outcome::Failed(_)) | None => false,
                    Some(_) => true,
                };
                assert!(there, "linked to {to}, which is not there");
                Input::Linked {
                    entry,
                    result: Ok(true),
                }
            }
            Output::Settled(entries) => {
                for entry in &entries {
                    let busy = |job: &Output| match job {
                        Output::Prepare { entry: other, .. }
                        | Output::Allocate { entry: other, .. }
                        | Output::Prove { entry: other, .. }
                        | Output::Compare { entry: other, .. }
                        | Output::Publish { entry: other } => entry == other,
                        _ => false,
                    };
                    assert!(
                        !self.receiver_jobs.iter().any(busy),
                        "settled with a job out"
                    );
                    assert!(!self.fetches.iter().any(|fetch| matches!(&fetch.what,
                        What::Chunk(fetch) if fetch.entry == *entry)));
                }
                Input::DirectoriesSettled(self.sink.settle(&entries))
            }
            other => panic!("{other:?} is no job"),
        }
    }

    /// Chunks that an earlier run is said to have written: of some files most, of some a few.
    fn held(&self, entry: EntryId) -> Vec<ChunkRange> {
        let file = &self.plan.tree.files[&entry];
        // Drawn apart, so that runs with nothing to go on with are what they were.
        let mut random = Random::new(file.seed);
        let rare = match random.below(4) {
            0 => 2,
            1 => 9,
            _ => return Vec::new(),
        };
        if !self.plan.interrupted {
            return Vec::new();
        }
        // Beyond the end as well: a claim is no more than that.
        let mut ranges: Vec<ChunkRange> = Vec::new();
        for start in 0..file.data.len() as u64 + 2 {
            if random.one_in(rare) {
                continue;
            }
            let end = start + 1;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(ChunkRange { start, end }),
            }
        }
        ranges
    }

    /// Some of them are not what they are said to be.
    fn prove_held(
        &mut self,
        entry: EntryId,
        chunks: &[(ChunkIndex, receiver::Proof)],
    ) -> Vec<(ChunkIndex, [u8; 32])> {
        let file = &self.plan.tree.files[&entry];
        let sink = self.sink.files.get_mut(&entry).unwrap();
        assert!(sink.prepared && !chunks.is_empty());
        let mut proved = Vec::new();
        for &(chunk, proof) in chunks {
            assert!(
                !sink.written.contains_key(&chunk.0),
                "fetched before it was looked at"
            );
            if mix(file.seed ^ chunk.0).is_multiple_of(5) {
                continue;
            }
            let content = file.content(chunk.0);
            sink.written.insert(chunk.0, content);
            sink.kept.insert(chunk.0);
            proved.push((chunk, digest(content, chunk.0, proof).unwrap()));
        }
        proved
    }

    /// The older copy has some of the chunks, and may change at any time.
    fn compare(
        &mut self,
        entry: EntryId,
        chunks: &[(ChunkIndex, receiver::Proof, [u8; 32])],
    ) -> Result<Vec<(ChunkIndex, bool)>, Fault> {
        let file = &self.plan.tree.files[&entry];
        let sink = self.sink.files.get_mut(&entry).unwrap();
        assert!(sink.prepared && !chunks.is_empty());
        if file.trouble == Trouble::WriteFails {
            return Err(fault(FaultCode::Storage));
        }
        let damaged = matches!(file.trouble, Trouble::Damaged(_));
        let mut compared = Vec::new();
        for &(chunk, proof, value) in chunks {
            let fetched = |fetch: &InFlight| matches!(&fetch.what, What::Chunk(fetch) if (fetch.entry, fetch.chunk) == (entry, chunk));
            assert!(
                !sink.written.contains_key(&chunk.0) && !self.fetches.iter().any(fetched),
                "fetched before it was compared"
            );
            let differs = mix(file.seed ^ mix(chunk.0)).is_multiple_of(3);
            let spoilt = damaged && self.random.one_in(4);
            let content = file.first_content(chunk.0) ^ u64::from(differs || spoilt) << 41;
            let same = digest(content, chunk.0, proof) == Some(value);
            if same {
                sink.written.insert(chunk.0, content);
                sink.kept.insert(chunk.0);
                sink.compared.insert(chunk.0);
            }
            compared.push((chunk, same));
        }
        Ok(compared)
    }

    fn store_packed(
        &mut self,
        file: &PackFile,
        expected: &[[u8; 32]],
        landed: &[PackedFile],
    ) -> PackResult {
        let packed = landed
            .iter()
            .find(|packed| packed.entry == file.entry)
            .unwrap();
        let own = digests(&packed.contents, self.plan.receiver.hash);
        if own != expected[file.digests.clone()] {
            return PackResult::Mismatch;
        }
        if let Some(fault) = self.publish_fails(file.entry) {
            return PackResult::Failed(fault);
        }
        let sink = self.sink.files.entry(file.entry).or_default();
        sink.written = (0..).zip(packed.contents.iter().copied()).collect();
        self.check_content(file.entry);
        PackResult::Stored { digest: None }
    }

    fn publish(&mut self, entry: EntryId) -> Option<Fault> {
        let failed = self.publish_fails(entry);
        if failed.is_none() {
            self.check_content(entry);
        }
        failed
    }

    fn publish_fails(&self, entry: EntryId) -> Option<Fault> {
        match self.plan.tree.files[&entry].trouble {
            Trouble::PublishFails => Some(fault(FaultCode::Storage)),
            Trouble::Full => Some(fault(FaultCode::NoSpace)),
            _ => None,
        }
    }

    // ---- the end ----

    /// Compares the run with what the plan lets one expect.
    pub fn check_end(&self) {
        let receiver = self.receiver_end.as_ref().unwrap();
        let sender = self.sender_end.as_ref().unwrap();
        for fault in [&receiver.fault, &sender.fault].into_iter().flatten() {
            let defect = matches!(fault.code, FaultCode::Protocol | FaultCode::Internal);
            assert!(!defect, "{}", fault.text);
            assert!(self.plan.may_end_early(), "ended early: {}", fault.text);
        }
        for (entry, outcome) in &self.outcomes {
            self.check_outcome(*entry, outcome);
        }
        assert_eq!(receiver.ledger.told, self.told_by_receiver(receiver));
        if receiver.fault.is_none() {
            assert!(sender.fault.is_none(), "only one side failed");
            assert_eq!(account(&receiver.ledger), account(&sender.ledger));
            assert_eq!(self.outcomes, self.sender_outcomes);
            assert_eq!(
                self.outcomes.keys().copied().collect::<BTreeSet<_>>(),
                self.told
            );
            assert_eq!(self.told.len(), self.plan.tree.parents.len());
            assert_eq!(self.sink.outstanding(), 0);
            assert!(receiver.ledger.bytes <= self.progress);
            assert_eq!(receiver.ledger.carried.resumed, self.resumed);
            assert_eq!(receiver.ledger.carried.reused, self.reused);
        }
        for (entry, outcome) in &self.sender_outcomes {
            assert_eq!(
                Some(outcome),
                self.outcomes.get(entry),
                "the sender knows better"
            );
        }
    }

    fn told_by_receiver(&self, receiver: &End) -> u64 {
        if receiver.fault.is_some() {
            receiver.ledger.told
        } else {
            self.told.len() as u64
        }
    }

    fn check_outcome(&self, entry: EntryId, outcome: &Outcome) {
        if let Some(Placed::Settled(placed)) = self.sink.placed.get(&entry) {
            assert_eq!(placed, outcome);
        } else if let Some(to) = self.plan.tree.links.get(&entry) {
            let target_failed = matches!(self.outcomes[to], Outcome::Failed(_));
            assert_eq!(
                matches!(outcome, Outcome::Failed(_)),
                target_failed,
                "link {entry}"
            );
        } else if let Some(file) = self.plan.tree.files.get(&entry) {
            let detected = self.plan.receiver.hash != HashKind::None;
            match outcome {
                Outcome::Failed(fault) => {
                    // Regions go when the sender's run is cut short, before the word of it comes.
                    let cut = self
                        .receiver_end
                        .as_ref()
                        .is_some_and(|end| end.fault.is_some());
                    let refused = cut && fault.code == FaultCode::Storage;
                    // A chunk or pack that meets an access error each time is given up.
                    let denied = self.denied.get(&entry).copied().unwrap_or(0);
                    let most = match file.trouble {
                        Trouble::None => u64::from(REPAIRS_MAX) + 1,
                        _ => 1,
                    };
                    let given_up = denied >= most
                        && matches!(fault.code, FaultCode::Storage | FaultCode::Integrity);
                    let allowed = file.trouble.allowed(fault.code) || refused || given_up;
                    assert!(allowed, "{entry}, {:?}, failed: {fault:?}", file.trouble);
                }
                Outcome::Unchanged | Outcome::Updated => {
                    let sink = &self.sink.files[&entry];
                    let all = sink.verified.is_subset(&sink.compared);
                    assert!(all, "{entry} is said to have been there");
                }
                Outcome::Published { .. } => {
                    let always = matches!(
                        file.trouble,
                        Trouble::Vanishes | Trouble::PublishFails | Trouble::Full
                    );
                    assert!(
                        !always,
                        "{entry} was published in spite of {:?}",
                        file.trouble
                    );
                    let sink = &self.sink.files[&entry];
                    let spoilt =
                        file.trouble == Trouble::Damaged(1) && sink.written.len() > sink.kept.len();
                    assert!(!(spoilt && detected), "{entry} was published damaged");
                }
                _ => panic!("{entry} ended as {outcome:?}"),
            }
        }
    }
}

/// How many chunks an older copy of the file has, if there is one.
fn older_chunks(file: &SourceFile) -> Option<u64> {
    // Drawn apart, so that runs without one are what they were.
    let mut random = Random::new(file.seed ^ 0x01de);
    let chunks = file.data.len() as u64;
    match random.below(3) {
        0 => Some(1 + random.below(chunks + 3)),
        _ => None,
    }
}

/// A ledger without the order of events, which the two ends see differently.
fn account(ledger: &Ledger) -> ([u64; 7], BTreeSet<String>, BTreeSet<String>) {
    let counts = [
        ledger.told,
        ledger.published,
        ledger.unchanged,
        ledger.updated,
        ledger.failed,
        ledger.skipped,
        ledger.bytes,
    ];
    let classes = ledger.classes().iter().map(|class| format!("{class:?}"));
    let failures = ledger
        .failures()
        .iter()
        .map(|failure| format!("{failure:?}"));
    (counts, classes.collect(), failures.collect())
}

fn take<T>(random: &mut Random, orderly: bool, from: &mut Vec<T>) -> T {
    if orderly {
        from.remove(0)
    } else {
        random.take(from)
    }
}
