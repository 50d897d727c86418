//! Lanes: the threads that move bytes.
//!
//! A session hands connections to lanes and tells them what to fetch and what its peer may read;
//! each lane carries many connections of many sessions and does, per chunk, read, hash and write
//! in one go while the bytes are hot. Fetches, attaching and detaching go in by a queue and never
//! wait; what became of them comes out by [`EventSink`]s. Nothing here decides what is read, tried
//! again or trusted, and nothing here knows paths or manifests.

mod events;
mod fetch;
#[cfg(test)]
pub(crate) mod in_memory;
mod link;
mod regions;
mod serve;
mod solo;
#[cfg(test)]
mod tests;
mod worker;

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};

pub use crate::transport::tcp::ConnectionKeys;
pub use crate::transport::{LostReason, Refusal};
pub use events::{EventSink, FetchError, Landed, LaneEvent};
pub use fetch::{Fetch, Store};
pub use regions::{RegionTable, Served, ServedRegion};
pub use solo::{Solo, SoloError, SoloRead};

use crate::ids::ConnectionId;
use crate::limits::{PACK_BYTES_MAX, SEGMENT_BYTES_MAX};
use crate::memory::Pool;
use crate::sys::reactor::{Reactor, Token, Waker};
use crate::sys::readiness::Readiness;
use crate::sys::ring::{self, Ring};
use crate::transport::{rdma, tcp};
use events::Ticket;
use link::Link;
use worker::{Attach, Command, LaneFile, LanePools, Worker};

/// Bytes of the slots that READs land in: the longest READ, and the longest delivery.
pub const LANDING_SLOT_BYTES: usize = 1 << 20;
/// Bytes of the slots that replies are read into: one segment.
const SERVING_SLOT_BYTES: usize = SEGMENT_BYTES_MAX as usize;
/// Fewest slots of a kind with which a lane makes progress in all its directions.
const SLOTS_MIN: usize = 4;
/// Lanes started when it is left open, at most. More only pay on machines that say so.
const LANES_DEFAULT_MAX: usize = 4;
/// How often lanes look for READs that do not end: small beside the time that those have.
const DEADLINES_PAUSE: Duration = Duration::from_secs(1);

const _: () = assert!(PACK_BYTES_MAX <= LANDING_SLOT_BYTES as u64);

/// How lanes are to be.
#[derive(Clone, Debug)]
pub struct LaneOptions {
    /// How many; `None`: one per core, at least 1 and at most 4.
    pub lanes: Option<usize>,
    /// Most memory for slots, of all lanes together, in bytes. Resident only as far as it was ever
    /// used. Three quarters are for what lands, a quarter for what is sent.
    pub memory_bytes: usize,
    /// Do without io_uring even where it may be used. So does the environment's `RDCP_NO_URING=1`.
    pub force_readiness: bool,
    /// How long a peer may take to fill a slot while other connections wait for one; then it loses
    /// its connection. Default 10 s: a megabyte in that time is slower than any network this is for.
    pub landing_patience: Duration,
}

impl Default for LaneOptions {
    fn default() -> Self {
        Self {
            lanes: None,
            memory_bytes: 64 << 20,
            force_readiness: false,
            landing_patience: Duration::from_secs(10),
        }
    }
}

/// How lanes wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReactorDescription {
    /// By io_uring; else by readiness (epoll).
    pub uring: bool,
    /// Why.
    pub reason: String,
}

/// The process's lanes. Clones are the same lanes; they end with the last clone, or when told.
#[derive(Clone)]
pub struct Lanes {
    shared: Arc<Shared>,
}

struct Shared {
    lanes: Vec<LaneHandle>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    reactor: ReactorDescription,
    connection_next: AtomicU64,
}

#[derive(Clone)]
struct LaneHandle {
    commands: Sender<Command>,
    waker: Arc<Waker>,
    /// A connection of the lane waits for a landing slot.
    starving: Arc<AtomicBool>,
    /// The lane has connections whose READs may never end.
    timed: Arc<AtomicBool>,
}

impl LaneHandle {
    /// A lane that ended drops the command, and with it what the command promised.
    fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
        self.waker.wake();
    }
}

impl Lanes {
    /// Starts the threads.
    pub fn start(options: &LaneOptions) -> io::Result<Self> {
        let count = options.lanes.unwrap_or_else(default_count).max(1);
        let mut reactor = choose_reactor(options);
        let (mut lanes, mut threads) = (Vec::new(), Vec::new());
        for index in 0..count {
            let (lane, thread, fell_back) = start_lane(index, count, options, reactor.uring)?;
            if let Some(error) = fell_back {
                reactor = ReactorDescription {
                    uring: false,
                    reason: error,
                };
            }
            lanes.push(lane);
            threads.push(thread);
        }
        let threads = Mutex::new(threads);
        let connection_next = AtomicU64::new(1);
        let shared = Arc::new(Shared {
            lanes,
            threads,
            reactor,
            connection_next,
        });
        remind(Arc::downgrade(&shared), options.landing_patience)?;
        Ok(Self { shared })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.shared.lanes.len()
    }

    /// How they wait, and why so.
    pub fn describe(&self) -> &ReactorDescription {
        &self.shared.reactor
    }

    /// Gives a connection, on which the hellos are through, to the lane with this number (modulo
    /// their count). `events` hears of its fetches and its end; `regions` is what the peer may read.
    pub fn attach(
        &self,
        lane: usize,
        stream: TcpStream,
        keys: ConnectionKeys,
        regions: Arc<RegionTable>,
        events: EventSink,
    ) -> DataConnection {
        let link = tcp::Connection::new(stream, &keys).map(Link::Tcp);
        let (lane, token) = self.place(lane);
        attach(lane, token, link, regions, events)
    }

    /// Gives a queue pair, over which both ends have read each other's probe, to the lane with
    /// this number (modulo their count). `events` hears of its fetches and its end.
    ///
    /// What the peer may read over it is what is registered in the session's domains: adapters
    /// answer without asking `regions`, which is held for as long as the connection, as with tcp.
    pub fn attach_rdma(
        &self,
        lane: usize,
        connection: rdma::Connection,
        regions: Arc<RegionTable>,
        events: EventSink,
    ) -> DataConnection {
        let (lane, token) = self.place(lane);
        let told = lane.clone();
        // After the attachment, which a report of an earlier break would otherwise overtake.
        let broken = connection.watch();
        let attached = attach(lane, token, Ok(Link::Rdma(connection)), regions, events);
        broken.tell(Box::new(move |reason| {
            told.tell(Command::Break(token, LostReason::Adapter(reason)));
        }));
        attached
    }

    fn place(&self, lane: usize) -> (LaneHandle, Token) {
        let lane = self.shared.lanes[lane % self.count()].clone();
        (
            lane,
            self.shared.connection_next.fetch_add(1, Ordering::Relaxed),
        )
    }

    /// Ends all connections and threads, and returns when they have ended.
    pub fn shutdown(&self) {
        self.shared.shutdown();
    }
}

fn attach(
    lane: LaneHandle,
    token: Token,
    link: io::Result<Link>,
    regions: Arc<RegionTable>,
    events: EventSink,
) -> DataConnection {
    let id = ConnectionId(token);
    let attach = Attach {
        token,
        id,
        link,
        regions,
        events: Arc::clone(&events),
    };
    lane.tell(Command::Attach(Box::new(attach)));
    DataConnection { id, lane, events }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes")
            .field("count", &self.count())
            .field("reactor", self.describe())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn shutdown(&self) {
        for lane in &self.lanes {
            lane.tell(Command::Shutdown);
        }
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // The last clone may be dropped by an event sink, on a lane itself.
            if thread.thread().id() != std::thread::current().id() {
                // A lane that panicked has ended too; its tickets answered as they were dropped.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// A connection that a lane carries. Dropping it detaches the connection: its fetches are answered
/// and its socket is closed, soon.
pub struct DataConnection {
    id: ConnectionId,
    lane: LaneHandle,
    events: EventSink,
}

impl DataConnection {
    /// Its name in events.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// Has the lane fetch something. [`LaneEvent::Landed`] answers, exactly once, whatever happens.
    pub fn fetch(&self, fetch: Fetch) {
        let ticket = Ticket::new(fetch.token, Arc::clone(&self.events));
        self.lane.tell(Command::Fetch {
            connection: self.id.0,
            fetch,
            ticket,
        });
    }
}

impl Drop for DataConnection {
    fn drop(&mut self) {
        self.lane.tell(Command::Detach(self.id.0));
    }
}

impl fmt::Debug for DataConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataConnection")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Starts the thread that reminds starving lanes to look for peers that keep slots without filling
/// them, and lanes with RDMA connections to look for READs that do not end: lanes have no clock of
/// their own, and one that waits is not woken by peers that do nothing. It ends soon after the
/// lanes.
fn remind(shared: Weak<Shared>, patience: Duration) -> io::Result<()> {
    let pause = (patience / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
    std::thread::Builder::new()
        .name("rdcp-reminder".to_owned())
        .spawn(move || {
            let mut looked = Instant::now();
            loop {
                std::thread::sleep(pause);
                let look = looked.elapsed() >= DEADLINES_PAUSE;
                if look {
                    looked = Instant::now();
                }
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                for lane in &shared.lanes {
                    if lane.starving.load(Ordering::Relaxed) {
                        lane.tell(Command::Reclaim);
                    }
                    if look && lane.timed.load(Ordering::Relaxed) {
                        lane.tell(Command::Overdue);
                    }
                }
            }
        })?;
    Ok(())
}

fn default_count() -> usize {
    std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(LANES_DEFAULT_MAX)
}

fn choose_reactor(options: &LaneOptions) -> ReactorDescription {
    let reason = if options.force_readiness {
        "io_uring was not asked for".to_owned()
    } else if std::env::var_os("RDCP_NO_URING").is_some_and(|value| value == "1") {
        "RDCP_NO_URING=1 is set".to_owned()
    } else {
        match ring::probe() {
            Ok(()) => {
                return ReactorDescription {
                    uring: true,
                    reason: "io_uring is there".to_owned(),
                };
            }
            Err(reason) => reason,
        }
    };
    ReactorDescription {
        uring: false,
        reason,
    }
}

/// Starts one lane; the text tells why it does without the ring that it was to have.
fn start_lane(
    index: usize,
    count: usize,
    options: &LaneOptions,
    uring: bool,
) -> io::Result<(LaneHandle, JoinHandle<()>, Option<String>)> {
    let (commands, received) = unbounded();
    let waker = Waker::new()?;
    let pools = make_pools(options.memory_bytes / count, &waker);
    let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
    let thread_waker = Arc::clone(&waker);
    let starving = Arc::new(AtomicBool::new(false));
    let (thread_starving, patience) = (Arc::clone(&starving), options.landing_patience);
    let timed = Arc::new(AtomicBool::new(false));
    let thread_timed = Arc::clone(&timed);
    let thread = std::thread::Builder::new()
        .name(format!("rdcp-lane-{index}"))
        .spawn(move || {
            // A ring belongs to the thread that made it.
            match make_reactor(&thread_waker, uring) {
                Ok((reactor, fell_back)) => {
                    let _ = ready.send(Ok(fell_back));
                    let mut worker = Worker::new(received, thread_waker, reactor, pools);
                    worker.watch_starvation(thread_starving, patience);
                    worker.watch_deadlines(thread_timed);
                    worker.run();
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            }
        })?;
    let fell_back = is_ready
        .recv()
        .map_err(|_| io::Error::other("a lane did not start"))??;
    let lane = LaneHandle {
        commands,
        waker,
        starving,
        timed,
    };
    Ok((lane, thread, fell_back))
}

type AnyReactor = Box<dyn Reactor<LaneFile>>;

fn make_reactor(waker: &Arc<Waker>, uring: bool) -> io::Result<(AnyReactor, Option<String>)> {
    let mut fell_back = None;
    if uring {
        match Ring::new(Arc::clone(waker)) {
            Ok(ring) => return Ok((Box::new(ring), None)),
            Err(error) => fell_back = Some(format!("no ring for a lane: {error}")),
        }
    }
    Ok((Box::new(Readiness::new(Arc::clone(waker))?), fell_back))
}

fn make_pools(memory_bytes: usize, waker: &Arc<Waker>) -> LanePools {
    let returned = Arc::new(AtomicBool::new(false));
    let pool = |slot_bytes: usize, bytes: usize| {
        let (returned, waker) = (Arc::clone(&returned), Arc::clone(waker));
        let hook = Box::new(move || {
            returned.store(true, Ordering::SeqCst);
            waker.wake();
        });
        Pool::with_hook(slot_bytes, (bytes / slot_bytes).max(SLOTS_MIN), hook)
    };
    LanePools {
        landing: pool(LANDING_SLOT_BYTES, memory_bytes / 4 * 3),
        serving: pool(SERVING_SLOT_BYTES, memory_bytes / 4),
        returned,
    }
}
