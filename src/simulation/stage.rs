//! One life of both programs: a sender and a receiver, each with its engine and its driver, in one
//! thread, on a clock that nobody waits for.
//!
//! In: what is to be copied, where to, chance. Out: what the receiver told of it. The control
//! connection carries the real messages through memory; data connections are cables whose fetches, and
//! workers whose jobs, are carried out one at a time in an order that chance draws. Above it only
//! TLS, the handshakes and listening are missing, beneath it sockets.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, yield_now};

use super::plan::{Ending, Life, Plan};
use super::random::Random;
use crate::engine::sender::SenderOptions;
use crate::ids::{SessionId, TransferId};
use crate::lane::Lanes;
use crate::lane::in_memory::{Cable, End, Order, Orders, Slots};
use crate::progress::Event;
use crate::session::control::greeted;
use crate::session::exposing::ServingMemory;
use crate::session::machinery::Machinery;
use crate::session::peer::Peer;
use crate::session::receiving::Receiving;
use crate::session::sending::Sending;
use crate::session::watch::{Ended, Watch, WatchOptions};
use crate::storage::calls::disk;
use crate::storage::descriptors::Budget;
use crate::storage::source::{Source, SourceSpec, WalkOptions};
use crate::storage::{Filters, Identity, LastSymlink, Root, Sink, SinkOptions};
use crate::wire::message::{Outcome, Overwrite, Placement, RootName};
use crate::wire::{Fault, FaultCode, Message};
use crate::workers::{Job, Workers};

/// Jobs that may be begun before one that was submitted earlier has ended: as many as there are threads.
const JOBS_AT_ONCE: usize = 4;
/// Steps after which a run counts as one that does not end. The longest take some thousands.
const STEPS_MAX: u64 = 50_000;
/// Turns that all tasks get before it counts that nothing can be done.
const SETTLING_TURNS: u64 = 40;
/// Bytes that the control connection holds.
const PIPE_BYTES: usize = 64 << 10;
/// Descriptors that the receiver may keep.
const DESCRIPTORS: usize = 64;

/// What both programs of all lives share on one thread, as their lanes would.
pub(crate) struct Kit {
    slots: Slots,
    serving: ServingMemory,
}

/// What became of it.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// What the receiver said to stand under its name, and to be durable if that was asked for.
    pub(crate) published: BTreeSet<Vec<u8>>,
    pub(crate) failed: BTreeMap<Vec<u8>, Fault>,
    /// Why the receiver's run ended, if it came to an end.
    pub(crate) ended: Option<Option<Fault>>,
    pub(crate) steps: u64,
    pub(crate) carried: u64,
    pub(crate) damaged: u64,
    pub(crate) broken: u64,
    /// Bytes that an earlier life had left, and that an older copy had.
    pub(crate) resumed: u64,
    pub(crate) reused: u64,
    /// All that was decided, as one number.
    pub(crate) trace: u64,
}

struct Stage<'a> {
    life: &'a Life,
    random: &'a mut Random,
    kit: &'a Kit,
    peers: [Arc<Peer>; 2],
    submitted: [Receiver<Job>; 2],
    jobs: [VecDeque<Job>; 2],
    orders: [Orders; 2],
    /// Ends of connections whose other end has not come yet.
    loose: [VecDeque<End>; 2],
    cables: Vec<Cable>,
    told: Told,
    events: mpsc::Receiver<Event>,
    cancel: watch::Sender<Option<Fault>>,
    runs: [JoinHandle<Ended>; 2],
}

impl Kit {
    pub(crate) fn new() -> Self {
        Self {
            slots: Slots::new(),
            serving: ServingMemory::new(2),
        }
    }
}

/// Lives one life: copies `source` to `top`.
pub(crate) fn live(
    plan: &Plan,
    life: &Life,
    (source, top): (&Path, &Path),
    kit: &Kit,
    random: &mut Random,
) -> Told {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let budget = Budget::new(DESCRIPTORS);
    let told = runtime.block_on(async {
        let mut stage = Stage::set(plan, life, (source, top), kit, &budget, random);
        stage.connect(plan.connections);
        stage.play().await;
        stage.strike().await
    });
    // Whatever is still under way goes as it would with its process.
    drop(runtime);
    assert_eq!(
        budget.left(),
        DESCRIPTORS as i64,
        "descriptors stay counted"
    );
    assert!(kit.slots.are_whole(), "a lane's memory is gone");
    assert!(kit.serving.is_whole(), "memory to serve from is gone");
    assert_closed(top);
    assert_closed(source);
    told
}

/// No descriptor of this process is open below `top`.
fn assert_closed(top: &Path) {
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        if let Ok(open) = std::fs::read_link(entry.path()) {
            let is_below = open
                .as_os_str()
                .as_bytes()
                .starts_with(top.as_os_str().as_bytes());
            assert!(!is_below, "{} is still open", open.display());
        }
    }
}

impl<'a> Stage<'a> {
    fn set(
        plan: &Plan,
        life: &'a Life,
        (source, top): (&Path, &Path),
        kit: &'a Kit,
        budget: &Budget,
        random: &'a mut Random,
    ) -> Self {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let (receiver_lanes, receiver_orders) = Lanes::without_threads().unwrap();
        let (sender_lanes, sender_orders) = Lanes::without_threads().unwrap();
        let receiver = peer(1, near, receiver_lanes);
        let sender = peer(2, far, sender_lanes.clone());
        let (receiver_workers, receiver_jobs) = Workers::without_threads();
        let (sender_workers, sender_jobs) = Workers::without_threads();
        let transfer = TransferId([7; 16]);
        let (told, events) = mpsc::channel(4096);
        let (cancel, cancelled) = watch::channel(None);

        let seat = receiver.seat(transfer).unwrap();
        let root = Arc::new(Root::open(top, Identity::current()).unwrap());
        let options = sink_options(plan);
        let destination = plan.destination.to_vec();
        let sink =
            Sink::with_descriptors(root, destination, options, plan.descriptors, budget.clone());
        let receiving = Receiving {
            seat,
            workers: receiver_workers,
            sink: Arc::new(sink),
            options: plan.receiver.clone(),
            resume: plan.resume,
            bytes_per_s: None,
            watch: watch_of(transfer, Some(told), cancelled.clone(), life.goes_on),
        };

        let seat = sender.seat(transfer).unwrap();
        let spec = SourceSpec {
            root: Arc::new(Root::open(source, Identity::current()).unwrap()),
            path: Vec::new(),
        };
        let walk = WalkOptions {
            recursive: true,
            filters: Arc::new(Filters::new(&[]).unwrap()),
            preserve: plan.preserve,
            hash: plan.hash,
            chunk: plan.chunk,
        };
        let sending = Sending {
            options: SenderOptions {
                first_region: seat.first_region(),
                ..SenderOptions::new(plan.hash, plan.chunk)
            },
            seat,
            machinery: Machinery {
                lanes: sender_lanes,
                workers: sender_workers,
                serving: kit.serving.clone(),
            },
            source: Arc::new(Source::new(vec![spec], walk)),
            watch: watch_of(transfer, None, cancelled, false),
        };
        Self {
            life,
            random,
            kit,
            peers: [receiver, sender],
            submitted: [receiver_jobs, sender_jobs],
            jobs: Default::default(),
            orders: [receiver_orders, sender_orders],
            loose: Default::default(),
            cables: Vec::new(),
            told: Told::default(),
            events,
            cancel,
            runs: [tokio::spawn(receiving.run()), tokio::spawn(sending.run())],
        }
    }

    fn connect(&mut self, connections: u64) {
        for _ in 0..connections {
            self.peers.iter().for_each(|peer| {
                peer.attach_in_memory();
            });
        }
    }

    /// Goes on until both runs have ended, or the disk has.
    async fn play(&mut self) {
        while !self.is_over() {
            self.told.steps += 1;
            assert!(
                self.told.steps < STEPS_MAX,
                "it does not end: {:?}",
                self.told
            );
            self.interfere();
            for _ in 0..self.random.below(5) {
                yield_now().await;
            }
            if self.act() {
                if self.random.one_in(self.life.pauses) {
                    tokio::time::sleep(Duration::from_millis(1100)).await;
                }
                continue;
            }
            for _ in 0..SETTLING_TURNS {
                yield_now().await;
            }
            if !self.act() && !self.is_over() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    fn is_over(&self) -> bool {
        disk::with(|disk| disk.is_dead()) == Some(true)
            || self.runs.iter().all(JoinHandle::is_finished)
    }

    /// What comes from outside.
    fn interfere(&mut self) {
        match self.life.ending {
            Ending::Lost(step) if step == self.told.steps => {
                let fault = Fault::new(FaultCode::Lost, "the connection was cut");
                self.peers.iter().for_each(|peer| peer.close(&fault));
            }
            Ending::Cancelled(step) if step == self.told.steps => {
                let fault = Fault::new(FaultCode::Cancelled, "cancelled");
                self.cancel.send_replace(Some(fault));
            }
            _ => {}
        }
        if self.random.one_in(self.life.breaks) && !self.cables.is_empty() {
            let at = self.random.index(self.cables.len());
            self.cables.swap_remove(at).lose();
            self.told.broken += 1;
            self.connect(1);
        }
    }

    /// Does one thing that waits to be done, if there is any.
    fn act(&mut self) -> bool {
        self.take_orders();
        let busy = |cable: &Cable| !cable.waiting.is_empty();
        let mut choices: Vec<usize> = (0..2).filter(|side| !self.jobs[*side].is_empty()).collect();
        choices.extend(
            (0..self.cables.len())
                .filter(|at| busy(&self.cables[*at]))
                .map(|at| at + 2),
        );
        if choices.is_empty() {
            return false;
        }
        let choice = self.random.pick(&choices);
        self.note(choice as u64 + 100 * choices.len() as u64);
        if let Some(at) = choice.checked_sub(2) {
            self.carry(at);
        } else {
            let jobs = &mut self.jobs[choice];
            let at = self.random.index(jobs.len().min(JOBS_AT_ONCE));
            let job = jobs.remove(at).expect("it is one of them");
            job();
        }
        true
    }

    fn carry(&mut self, at: usize) {
        let cable = &mut self.cables[at];
        let Some(fetch) = cable.waiting.pop_front() else {
            return;
        };
        let damages = self.random.one_in(self.life.damaged);
        let random = &mut *self.random;
        let mut damage = |bytes: &mut [u8]| {
            if damages {
                bytes[random.index(bytes.len())] ^= 1 << random.below(8);
            }
        };
        cable.carry(fetch, &self.kit.slots, &mut damage);
        self.told.carried += 1;
        self.told.damaged += u64::from(damages);
    }

    fn take_orders(&mut self) {
        for side in 0..2 {
            self.jobs[side].extend(self.submitted[side].try_iter());
            while let Some(order) = self.orders[side].next() {
                match order {
                    Order::Attached(end) => self.loose[side].push_back(end),
                    Order::Detached(id) => {
                        self.loose[side].retain(|end| end.id != id);
                        let is_it = |cable: &Cable| cable.ids()[side] == id;
                        if let Some(at) = self.cables.iter().position(is_it) {
                            self.cables.swap_remove(at).lose();
                        }
                    }
                    Order::Fetch(waiting) => {
                        let is_its = |cable: &&mut Cable| cable.ids()[side] == waiting.connection;
                        if let Some(cable) = self.cables.iter_mut().find(is_its) {
                            cable.waiting.push_back(waiting);
                        }
                    }
                }
            }
        }
        while let [Some(near), Some(far)] = self.loose.each_mut().map(VecDeque::pop_front) {
            self.cables.push(Cable::new(near, far));
        }
        while let Ok(event) = self.events.try_recv() {
            self.hear(event);
        }
    }

    fn hear(&mut self, event: Event) {
        if let Event::Ended { path, outcome, .. } = event {
            match outcome {
                Outcome::Published { .. } => {
                    self.told.published.insert(path);
                }
                Outcome::Failed(fault) => {
                    self.told.failed.insert(path, fault);
                }
                _ => {}
            }
        }
    }

    fn note(&mut self, what: u64) {
        self.told.trace = super::random::mix(self.told.trace ^ what);
    }

    /// After the end: what is left is done, and looked at.
    async fn strike(mut self) -> Told {
        let is_dead = disk::with(|disk| disk.is_dead()) == Some(true);
        if is_dead {
            self.take_orders();
            return self.told;
        }
        for _ in 0..SETTLING_TURNS {
            yield_now().await;
            while self.act() {}
        }
        let [receiving, sending] = self.runs.each_mut();
        let ended = receiving.await.unwrap();
        sending.await.unwrap();
        while let Ok(event) = self.events.try_recv() {
            self.hear(event);
        }
        self.told.resumed = ended.past.totals.resumed_bytes;
        self.told.reused = ended.past.totals.reused_bytes;
        self.told.ended = Some(ended.fault);
        let fault = Fault::new(FaultCode::Lost, "the end");
        self.peers.iter().for_each(|peer| peer.close(&fault));
        for _ in 0..SETTLING_TURNS {
            yield_now().await;
            while self.act() {}
        }
        for peer in &self.peers {
            assert!(peer.is_idle(), "something is left: {:?}", peer.describe());
        }
        self.told
    }
}

fn sink_options(plan: &Plan) -> SinkOptions {
    SinkOptions {
        last_symlink: LastSymlink::Follow,
        placement: Placement {
            into_directory: false,
            make_parents: true,
            roots: vec![RootName {
                name: Vec::new(),
                contents: true,
            }],
        },
        overwrite: Overwrite::IfDifferent,
        preserve: plan.preserve,
        sync: plan.sync,
        only_adds: false,
        dry_run: false,
        mirror: None,
        reuse: plan.reuse,
        chunk: plan.chunk,
        writer: "simulation".into(),
    }
}

fn watch_of(
    transfer: TransferId,
    events: Option<mpsc::Sender<Event>>,
    cancel: watch::Receiver<Option<Fault>>,
    goes_on: bool,
) -> Watch {
    Watch::new(WatchOptions {
        transfer,
        roots: vec![Vec::new()],
        locations: None,
        shared: Arc::default(),
        events,
        cancel,
        stall_timeout: Duration::from_secs(600),
        moved: Arc::default(),
        renewals_count: true,
        goes_on: goes_on.then_some(None),
        exists_is_error: false,
    })
}

/// One end of a session, and the task that hands it what the other says.
fn peer(id: u64, pipe: DuplexStream, lanes: Lanes) -> Arc<Peer> {
    let (mut reader, writer) = greeted(pipe);
    let peer = Peer::new(SessionId(id), writer, lanes);
    let heard = Arc::clone(&peer);
    tokio::spawn(async move {
        let fault = loop {
            match reader.next().await {
                Ok(Some(envelope)) => {
                    if let Err(fault) = heard.deliver(envelope) {
                        break fault;
                    }
                }
                Ok(None) => break Fault::new(FaultCode::Lost, "the session ended"),
                Err(error) => break error.to_fault(),
            }
        };
        heard.close(&fault);
    });
    // The server took the request.
    peer.say(TransferId([7; 16]), Message::Opened);
    peer
}
