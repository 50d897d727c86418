//! A lane's thread: turns for the connections that can do something, and a wait when none can.
//!
//! A connection can do something when its socket is ready, when a fetch came for it, when a read
//! that it posted is done, or when a slot that it missed came back. A turn is bounded, so a busy
//! connection delays another by at most one turn. One that waits for its peer costs nothing but
//! what it holds: at most one slot landing and one going out, and the latter it has to give up when
//! others need it.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};

use super::events::{EventSink, FetchError, LaneEvent, Ticket};
use super::fetch::{Active, Fetch};
use super::link::Link;
use super::regions::{Exposed, RegionTable};
use super::serve::{ServeTools, Serving};
use crate::ids::{ConnectionId, RemoteKey, WorkRequestId};
use crate::memory::{Pool, Slot};
use crate::storage::calls::pwrite;
use crate::storage::{SinkFile, SourceFile};
use crate::sys::reactor::{Direction, Event, FileOperation, Interest, Reactor, Token, Waker};
use crate::transport::{Fill, Host, LostReason, Refusal, Source, Turn};

/// Bytes that a connection may receive, and may send, in one turn.
const TURN_BYTES: usize = 1 << 20;
/// Commands taken between two rounds of turns.
const COMMANDS_PER_ROUND: usize = 256;
/// Fetches that may wait on one connection. Far more than an engine's window has.
const FETCHES_PER_CONNECTION_MAX: usize = 4096;

/// An order from a session.
pub(super) enum Command {
    Attach(Box<Attach>),
    Detach(Token),
    Fetch {
        connection: Token,
        fetch: Fetch,
        ticket: Ticket,
    },
    /// Connections have waited for landing slots for a while: look who keeps them.
    Reclaim,
    /// Time has passed: look for READs that do not end.
    Overdue,
    /// Something outside of the lane knows that a connection is broken.
    Break(Token, LostReason),
    Shutdown,
}

/// A connection that a lane is to carry.
pub(super) struct Attach {
    pub(super) token: Token,
    pub(super) id: ConnectionId,
    pub(super) link: std::io::Result<Link>,
    pub(super) regions: Arc<RegionTable>,
    pub(super) events: EventSink,
}

/// A file that an operation of the reactor keeps open.
pub(super) enum LaneFile {
    /// A file that is read for a peer, and the region that is in use for as long.
    Source {
        file: Arc<dyn SourceFile>,
        _exposed: Arc<Exposed>,
    },
    /// A file that is written around the page cache.
    Sink(Arc<dyn SinkFile>),
}

impl AsFd for LaneFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Source { file, .. } => file.as_fd(),
            Self::Sink(file) => {
                file.direct()
                    .expect("a sink that once had a direct descriptor keeps it")
                    .fd
            }
        }
    }
}

/// Slots of a lane, and the word that one came back.
pub(super) struct LanePools {
    pub(super) landing: Pool,
    pub(super) serving: Pool,
    /// A slot that somebody missed came back.
    pub(super) returned: Arc<AtomicBool>,
}

/// See the module's first paragraph.
pub(super) struct Worker {
    commands: Receiver<Command>,
    waker: Arc<Waker>,
    reactor: Box<dyn Reactor<LaneFile>>,
    pools: LanePools,
    connections: HashMap<Token, Attached>,
    fetches: HashMap<u64, Active>,
    fetch_next: u64,
    /// Connections that get a turn in the next round, each once.
    runnable: VecDeque<Token>,
    /// Connections that missed a slot, each once.
    starved: Vec<Token>,
    /// Counts rounds: the age of a blockage.
    round: u64,
    /// Told to the lane's reminder: somebody waits for a landing slot.
    starving: Arc<AtomicBool>,
    /// Told to the lane's reminder: there are connections whose READs may never end.
    timed: Arc<AtomicBool>,
    landing_patience: Duration,
}

/// A connection with all that its turns need.
struct Attached {
    id: ConnectionId,
    connection: Link,
    events: EventSink,
    regions: Arc<RegionTable>,
    serving: Serving,
    /// Fetches with READs still to be posted.
    queue: VecDeque<u64>,
    inward: Way,
    outward: Way,
    is_runnable: bool,
    is_starved: bool,
    /// When `outward` was last found blocked.
    blocked_round: u64,
}

/// What is known of one direction of a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A call may succeed.
    Open,
    /// A call would have waited; the reactor will tell.
    Armed,
}

impl Worker {
    pub(super) fn new(
        commands: Receiver<Command>,
        waker: Arc<Waker>,
        reactor: Box<dyn Reactor<LaneFile>>,
        pools: LanePools,
    ) -> Self {
        Self {
            commands,
            waker,
            reactor,
            pools,
            connections: HashMap::new(),
            fetches: HashMap::new(),
            fetch_next: 0,
            runnable: VecDeque::new(),
            starved: Vec::new(),
            round: 0,
            starving: Arc::default(),
            timed: Arc::default(),
            landing_patience: Duration::MAX,
        }
    }

    /// Has `starving` say whether connections wait for landing slots, and gives peers `patience` to
    /// fill those that they have while it does.
    pub(super) fn watch_starvation(&mut self, starving: Arc<AtomicBool>, patience: Duration) {
        self.starving = starving;
        self.landing_patience = patience;
    }

    /// Has `timed` say whether there are connections to be reminded of by [`Command::Overdue`].
    pub(super) fn watch_deadlines(&mut self, timed: Arc<AtomicBool>) {
        self.timed = timed;
    }

    /// Works until told to shut down, or until nobody is left to tell.
    pub(super) fn run(mut self) {
        let mut events = Vec::new();
        while self.take_commands() {
            self.round += 1;
            self.feed_starved();
            for _ in 0..self.runnable.len() {
                if let Some(token) = self.runnable.pop_front() {
                    self.give_turn(token);
                }
            }
            if let Err(error) = self.wait(&mut events) {
                // Without its reactor a lane can only answer for what it holds.
                tracing::error!(%error, "a lane's reactor failed; its connections end");
                break;
            }
            for event in events.drain(..) {
                self.handle(event);
            }
        }
        let tokens: Vec<Token> = self.connections.keys().copied().collect();
        for token in tokens {
            self.end(token, LostReason::Shutdown);
        }
        // Field order drops the reactor, which waits for posted operations, before the pools; the
        // tickets of fetches whose writes were under way answer as they drop.
    }

    /// False: shut down.
    fn take_commands(&mut self) -> bool {
        for _ in 0..COMMANDS_PER_ROUND {
            match self.commands.try_recv() {
                Ok(Command::Attach(attach)) => self.attach(*attach),
                Ok(Command::Detach(token)) => self.end(token, LostReason::Detached),
                Ok(Command::Fetch {
                    connection,
                    fetch,
                    ticket,
                }) => {
                    self.take_fetch(connection, fetch, ticket);
                }
                Ok(Command::Reclaim) => self.reclaim_landing(),
                Ok(Command::Overdue) => self.end_overdue(),
                Ok(Command::Break(token, reason)) => self.end(token, reason),
                Ok(Command::Shutdown) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => break,
            }
        }
        true
    }

    fn wait(&mut self, events: &mut Vec<Event<LaneFile>>) -> std::io::Result<()> {
        if !self.runnable.is_empty() {
            return self.reactor.wait(false, events);
        }
        self.waker.announce_sleep();
        let idle = self.commands.is_empty() && !self.pools.returned.load(Ordering::SeqCst);
        let outcome = self.reactor.wait(idle, events);
        self.waker.awake();
        outcome
    }

    fn handle(&mut self, event: Event<LaneFile>) {
        match event {
            Event::Ready { token, interest } => {
                let Some(attached) = self.connections.get_mut(&token) else {
                    return;
                };
                match interest {
                    Interest::Readable => attached.inward = Way::Open,
                    Interest::Writable => attached.outward = Way::Open,
                }
                self.make_runnable(token);
            }
            Event::File { operation, result } => match operation.direction {
                Direction::Read => self.read_done(operation, result),
                Direction::Write => {
                    let id = operation.tag;
                    let Some(active) = self.fetches.get_mut(&id) else {
                        return;
                    };
                    active.written(operation, result);
                    self.finish_if_over(id);
                }
            },
        }
    }

    fn read_done(&mut self, operation: FileOperation<LaneFile>, result: std::io::Result<usize>) {
        let token = operation.tag;
        let Some((connection, mut desk)) = self.desk(token) else {
            return;
        };
        let (serving, mut tools) = desk.serving();
        let piece = match serving.read_done(&mut tools, operation, result) {
            Ok(None) => return,
            Ok(Some(slot)) => Some(slot),
            Err(_) => None,
        };
        match connection.filled(&mut desk, piece) {
            Ok(()) => self.make_runnable(token),
            Err(reason) => self.end(token, reason),
        }
    }

    fn attach(&mut self, attach: Attach) {
        let Attach {
            token,
            id,
            link,
            regions,
            events,
        } = attach;
        let added = link.and_then(|link| self.reactor.add(token, link.socket()).map(|()| link));
        let connection = match added {
            Ok(connection) => connection,
            Err(error) => {
                let reason = LostReason::Io(error);
                events(LaneEvent::ConnectionLost {
                    connection: id,
                    reason,
                });
                return;
            }
        };
        if matches!(connection, Link::Rdma(_)) {
            self.timed.store(true, Ordering::Relaxed);
        }
        let attached = Attached {
            id,
            connection,
            events,
            regions,
            serving: Serving::default(),
            queue: VecDeque::new(),
            inward: Way::Open,
            outward: Way::Open,
            is_runnable: false,
            is_starved: false,
            blocked_round: 0,
        };
        self.connections.insert(token, attached);
        self.make_runnable(token);
    }

    fn take_fetch(&mut self, connection: Token, fetch: Fetch, ticket: Ticket) {
        // A ticket that is dropped answers that the connection is lost.
        let Some(attached) = self.connections.get_mut(&connection) else {
            return;
        };
        if let Err(error) = Active::check(&fetch, self.pools.landing.slot_bytes()) {
            ticket.answer(Err(error));
            return;
        }
        if attached.queue.len() >= FETCHES_PER_CONNECTION_MAX {
            ticket.answer(Err(FetchError::Invalid(
                "too many fetches wait on one connection",
            )));
            return;
        }
        let id = self.fetch_next;
        self.fetch_next += 1;
        attached.queue.push_back(id);
        self.fetches
            .insert(id, Active::new(fetch, connection, ticket));
        self.make_runnable(connection);
    }

    fn make_runnable(&mut self, token: Token) {
        let Some(attached) = self.connections.get_mut(&token) else {
            return;
        };
        if !attached.is_runnable {
            attached.is_runnable = true;
            self.runnable.push_back(token);
        }
    }

    fn feed_starved(&mut self) {
        // Taken even if nobody waits, so that it does not keep the lane awake.
        if !self.pools.returned.swap(false, Ordering::SeqCst) {
            return;
        }
        self.starving.store(false, Ordering::Relaxed);
        for token in std::mem::take(&mut self.starved) {
            if let Some(attached) = self.connections.get_mut(&token) {
                attached.is_starved = false;
                self.make_runnable(token);
            }
        }
    }

    fn give_turn(&mut self, token: Token) {
        self.post_reads(token);
        let Some(attached) = self.connections.get_mut(&token) else {
            return;
        };
        attached.is_runnable = false;
        let (inward, outward) = (attached.inward, attached.outward);
        let mut again = false;
        if inward == Way::Open {
            let Some((connection, mut desk)) = self.desk(token) else {
                return;
            };
            match connection.receive(&mut desk, TURN_BYTES) {
                Ok(Turn::WouldBlock) => self.arm(token, Interest::Readable),
                Ok(Turn::NoSlot) => {
                    self.starve(token);
                    self.starving.store(true, Ordering::Relaxed);
                }
                Ok(Turn::Again | Turn::Idle) => again = true,
                Err(reason) => return self.end(token, reason),
            }
            // Replies that came in made room.
            self.post_reads(token);
        }
        if outward == Way::Open {
            let Some((connection, mut desk)) = self.desk(token) else {
                return;
            };
            let is_rdma = matches!(connection, Link::Rdma(_));
            match connection.send(&mut desk, TURN_BYTES) {
                Ok(Turn::WouldBlock) => self.arm(token, Interest::Writable),
                Ok(Turn::NoSlot) => {
                    self.starve(token);
                    // Over tcp the slot is one to send from; an adapter wants one to land in.
                    if is_rdma {
                        self.starving.store(true, Ordering::Relaxed);
                    } else {
                        self.reclaim_slot();
                    }
                }
                Ok(Turn::Again) => again = true,
                Ok(Turn::Idle) => {}
                Err(reason) => return self.end(token, reason),
            }
        }
        if again {
            self.make_runnable(token);
        }
    }

    /// Posts READs for waiting fetches, as many as the connection takes.
    fn post_reads(&mut self, token: Token) {
        let Some(attached) = self.connections.get_mut(&token) else {
            return;
        };
        while attached.connection.room() > 0 {
            let Some(&id) = attached.queue.front() else {
                return;
            };
            let wants_read = self
                .fetches
                .get_mut(&id)
                .filter(|active| active.wants_read());
            let Some(active) = wants_read else {
                attached.queue.pop_front();
                continue;
            };
            let read_bytes = attached
                .connection
                .read_bytes(self.pools.landing.slot_bytes(), active.is_delivery());
            attached
                .connection
                .post_read(active.next_read(WorkRequestId(id), read_bytes));
        }
    }

    fn arm(&mut self, token: Token, interest: Interest) {
        let Some(attached) = self.connections.get_mut(&token) else {
            return;
        };
        match interest {
            Interest::Readable => attached.inward = Way::Armed,
            Interest::Writable => {
                attached.outward = Way::Armed;
                attached.blocked_round = self.round;
            }
        }
        if let Err(error) = self
            .reactor
            .arm(token, attached.connection.socket(), interest)
        {
            self.end(token, LostReason::Io(error));
        }
    }

    fn starve(&mut self, token: Token) {
        let Some(attached) = self.connections.get_mut(&token) else {
            return;
        };
        if !attached.is_starved {
            attached.is_starved = true;
            self.starved.push(token);
        }
    }

    /// Takes a slot from the connection whose peer has not read for longest, so that peers that
    /// never read can't use up all slots. Looks at all connections, but only while slots are short.
    fn reclaim_slot(&mut self) {
        let mut blocked: Vec<&mut Attached> = self
            .connections
            .values_mut()
            .filter(|attached| attached.outward == Way::Armed)
            .collect();
        blocked.sort_unstable_by_key(|attached| attached.blocked_round);
        let slot = blocked
            .into_iter()
            .find_map(|attached| attached.connection.yield_slot());
        drop(slot);
    }

    /// Ends the connection that has kept a landing slot for longest without filling it, if that is
    /// longer than peers have for it. Its fetches go on over others; a slot comes back.
    fn reclaim_landing(&mut self) {
        if self.starved.is_empty() {
            return;
        }
        let kept = self
            .connections
            .iter()
            .filter_map(|(token, attached)| Some((attached.connection.landing_since()?, *token)));
        if let Some((since, token)) = kept.min()
            && since.elapsed() >= self.landing_patience
        {
            self.end(token, LostReason::Stalled);
        }
    }

    /// Ends the connections whose READs have not ended in a time in which any would.
    fn end_overdue(&mut self) {
        let (now, mut timed) = (Instant::now(), false);
        let mut overdue = Vec::new();
        for (token, attached) in &self.connections {
            timed |= matches!(attached.connection, Link::Rdma(_));
            if attached.connection.is_overdue(now) {
                overdue.push(*token);
            }
        }
        self.timed.store(timed, Ordering::Relaxed);
        for token in overdue {
            self.end(token, LostReason::Stalled);
        }
    }

    fn end(&mut self, token: Token, reason: LostReason) {
        let Some(attached) = self.connections.remove(&token) else {
            return;
        };
        let Attached {
            id: connection,
            connection: link,
            events,
            serving,
            ..
        } = attached;
        self.reactor.retire(token, link.end());
        drop(serving);
        let lost: Vec<u64> = self
            .fetches
            .iter()
            .filter_map(|(id, active)| (active.connection == token).then_some(*id))
            .collect();
        for id in lost {
            if let Some(active) = self.fetches.get_mut(&id) {
                active.lose_connection();
            }
            self.finish_if_over(id);
        }
        events(LaneEvent::ConnectionLost { connection, reason });
    }

    fn finish_if_over(&mut self, id: u64) {
        finish_if_over(&mut self.fetches, id);
    }

    /// A connection and everything that its calls need besides it.
    fn desk(&mut self, token: Token) -> Option<(&mut Link, Desk<'_>)> {
        let Attached {
            connection,
            events,
            regions,
            serving,
            ..
        } = self.connections.get_mut(&token)?;
        let desk = Desk {
            token,
            events,
            regions,
            serving,
            fetches: &mut self.fetches,
            pools: &self.pools,
            reactor: &mut *self.reactor,
        };
        Some((connection, desk))
    }
}

fn finish_if_over(fetches: &mut HashMap<u64, Active>, id: u64) {
    if fetches.get(&id).is_some_and(Active::is_over)
        && let Some(active) = fetches.remove(&id)
    {
        active.finish();
    }
}

/// What a connection is given for one turn.
struct Desk<'a> {
    token: Token,
    events: &'a EventSink,
    regions: &'a RegionTable,
    serving: &'a mut Serving,
    fetches: &'a mut HashMap<u64, Active>,
    pools: &'a LanePools,
    reactor: &'a mut dyn Reactor<LaneFile>,
}

impl Desk<'_> {
    fn serving(&mut self) -> (&mut Serving, ServeTools<'_>) {
        let (token, pool) = (self.token, &self.pools.serving);
        (
            self.serving,
            ServeTools {
                token,
                pool,
                reactor: &mut *self.reactor,
            },
        )
    }
}

impl Host for Desk<'_> {
    fn landing_slot(&mut self, id: WorkRequestId, held: usize) -> Option<Slot> {
        let pool = &self.pools.landing;
        // A session may be slow to give back what is delivered to it, and a connection with many
        // READs under way must not keep others from having one.
        let lasting = held > 0 || self.fetches.get(&id.0).is_some_and(Active::is_delivery);
        pool.take_leaving(if lasting { pool.slots_max() / 4 } else { 0 })
    }

    fn landed(&mut self, id: WorkRequestId, slot: &Slot, range: Range<usize>) {
        if let Some(active) = self.fetches.get_mut(&id.0) {
            active.landed(&slot[range]);
        }
    }

    fn completed(&mut self, id: WorkRequestId, slot: Option<Slot>, status: Result<(), Refusal>) {
        let Some(active) = self.fetches.get_mut(&id.0) else {
            return;
        };
        if let Some(write) = active.completed(id, slot, status)
            && let Err(write) = self.reactor.post(write)
        {
            let bytes = &write.slot[write.range.clone()];
            let result = pwrite(&write.file, bytes, write.offset);
            active.written(write, result.map_err(Into::into));
        }
        finish_if_over(self.fetches, id.0);
    }

    fn open(&mut self, key: RemoteKey, offset: u64, len: u64) -> Result<Source, Refusal> {
        let exposed = self.regions.find(key, offset, len)?;
        Ok(self.serving.open(exposed, offset))
    }

    fn fill(&mut self, at: u64, len: usize) -> Fill {
        let (serving, mut tools) = self.serving();
        serving.fill(&mut tools, at, len, false)
    }

    fn refill(&mut self, at: u64, len: usize) -> Fill {
        let (serving, mut tools) = self.serving();
        serving.fill(&mut tools, at, len, true)
    }

    fn served(&mut self, bytes: u64) {
        self.serving.close();
        (self.events)(LaneEvent::Served { bytes });
    }
}
