//! One established session, the same at both ends: who gets which message and which lane event.
//!
//! In: messages from the control connection's reader, events from lanes, data connections that
//! come and go. Out: each to the transfer that it belongs to, by transfer id, region or token.
//! Transfers of one session share its control connection and its data connections; their regions
//! and tokens are told apart by a number in the upper bits. Nothing here decides anything.

mod rails;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

use crate::engine::LaneId;
use crate::ids::{RegionId, SessionId, TransferId};
use crate::lane::{DataConnection, EventSink, Fetch, LaneEvent, Lanes, LostReason, RegionTable};
use crate::session::activity::Activity;
use crate::session::control::{ControlError, ControlWriter};
use crate::session::data::ConnectionKeys;
use crate::session::exposing::SessionMemory;
use crate::session::rails::adapters::SessionRails;
use crate::transport::rdma;
use crate::wire::message::{Envelope, StatusPage};
use crate::wire::{Fault, FaultCode, Message};

/// Bits of a region id or fetch token that count within one transfer.
const NUMBER_SHIFT: u32 = 40;
/// Numbers of transfers: as many as the upper bits tell apart.
const NUMBERS: u32 = 1 << (64 - NUMBER_SHIFT);
/// Seats of one session at once. Servers take far fewer; it keeps numbers from coming again soon.
const SEATS_MAX: usize = NUMBERS as usize / 2;

/// Most that may wait in one inbox, by [`weight`]: twice the pages that credit allows, or all digests
/// and grants of the largest region credit one by one.
const QUEUED_WEIGHT_MAX: usize = 8192;

/// With more than this queued for a peer, its Pings are not answered.
const PONG_BACKLOG_BYTES_MAX: usize = 1 << 20;

/// Pages that are made at once for one peer, of all its transfers.
const PAGES_MADE_MAX: usize = 2;

/// What reaches a transfer from its session.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// The peer said this in our transfer.
    Message(Message),
    /// A lane reports about one of our fetches or regions; ids are our own again.
    Lane(LaneEvent),
    /// A data connection of this rail can be used; rail 0 is tcp.
    LaneUp(LaneId, u16),
    /// A data connection is gone. Its fetches come back by themselves.
    LaneDown(LaneId),
    /// The session is over for this reason.
    Over(Fault),
}

/// The session as transfers see it.
pub(crate) struct Peer {
    pub(crate) id: SessionId,
    /// Where memory is registered for the session, and which rails it has.
    pub(crate) rails: SessionRails,
    writer: ControlWriter,
    lanes: Lanes,
    regions: Arc<RegionTable>,
    routes: RwLock<Routes>,
    connections: Mutex<Connections>,
    lost: Notify,
    memory: Arc<SessionMemory>,
    pages: Arc<Semaphore>,
    activity: Arc<Activity>,
    over: watch::Sender<Option<Fault>>,
}

struct Routes {
    by_transfer: HashMap<TransferId, Route>,
    by_number: HashMap<u32, mpsc::UnboundedSender<Inbound>>,
    /// The number that the next seat gets, if it is free.
    next_number: u32,
    idle: Idle,
    over: bool,
}

/// Since when a session has had nothing under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    pub(crate) since: Instant,
    /// Whether anything was ever asked for in it.
    pub(crate) asked: bool,
}

/// The way to one seat.
struct Route {
    sender: mpsc::UnboundedSender<Inbound>,
    /// Weight of the messages that were delivered and not taken.
    queued: Arc<AtomicUsize>,
}

/// What reached a seat and was not taken yet. Its messages are bounded: credit says how many an
/// honest peer sends, and what is beyond that must not pile up before it is looked at.
pub(crate) struct Inbox {
    receiver: mpsc::UnboundedReceiver<Inbound>,
    queued: Arc<AtomicUsize>,
}

impl Inbox {
    /// The next thing; nothing if the session is gone.
    pub(crate) async fn recv(&mut self) -> Option<Inbound> {
        let inbound = self.receiver.recv().await;
        self.taken(inbound.as_ref());
        inbound
    }

    /// The next thing if it is there.
    pub(crate) fn try_recv(&mut self) -> Option<Inbound> {
        let inbound = self.receiver.try_recv().ok();
        self.taken(inbound.as_ref());
        inbound
    }

    fn taken(&self, inbound: Option<&Inbound>) {
        if let Some(Inbound::Message(message)) = inbound {
            self.queued.fetch_sub(weight(message), Ordering::Relaxed);
        }
    }
}

/// What a message counts in an inbox: those that carry lists of names take most of the memory.
fn weight(message: &Message) -> usize {
    match message {
        Message::Manifest(_) | Message::Listing(_) => 256,
        _ => 1,
    }
}

/// What is put on a lane.
#[expect(
    clippy::large_enum_variant,
    reason = "it is made once per connection and moved on at once"
)]
enum Carrier {
    Tcp(std::net::TcpStream, ConnectionKeys),
    Rdma(rdma::Connection),
    #[cfg(test)]
    Memory,
}

#[derive(Default)]
struct Connections {
    up: Vec<(LaneId, Arc<DataConnection>)>,
    /// Those that are queue pairs.
    railed: HashMap<LaneId, rails::Railed>,
    issued: u32,
    closed: bool,
}

/// A transfer's place in its session; leaving it is dropping it.
pub(crate) struct Seat {
    pub(crate) peer: Arc<Peer>,
    pub(crate) transfer: TransferId,
    pub(crate) inbox: Inbox,
    number: u32,
}

impl Peer {
    pub(crate) fn new(id: SessionId, writer: ControlWriter, lanes: Lanes) -> Arc<Self> {
        let activity = Activity::new();
        let peer = Arc::new_cyclic(|peer: &Weak<Self>| Self {
            id,
            rails: SessionRails::new(),
            writer,
            lanes,
            regions: RegionTable::new(sink(Weak::clone(peer))),
            routes: RwLock::new(Routes::new()),
            connections: Mutex::default(),
            lost: Notify::new(),
            memory: SessionMemory::new(id.0, Arc::clone(&activity)),
            pages: Arc::new(Semaphore::new(PAGES_MADE_MAX)),
            activity,
            over: watch::Sender::new(None),
        });
        super::dump::enter(&peer);
        peer
    }

    /// In words.
    pub(crate) fn describe(&self) -> Vec<String> {
        let rails = {
            let book = self.rails.book.lock();
            book.unwrap_or_else(PoisonError::into_inner).reports()
        };
        let over = match self.over() {
            Some(fault) => format!("; over: {}", fault.text.escape_debug()),
            None => String::new(),
        };
        let mut lines = vec![
            format!("session {}{over}", self.id),
            format!(
                "seats: {}; data connections by tcp: {}; messages unread by the peer: {} bytes; \
                 registered for rails: {} bytes",
                self.seats(),
                self.connections(),
                self.writer.queued_bytes(),
                self.memory.registered_bytes()
            ),
        ];
        lines.extend(rails.iter().map(|rail| format!("rail: {rail}")));
        for moved in self.activity.traffic().told() {
            lines.push(format!(
                "{}: {} bytes sent, {} received",
                moved.transport, moved.sent_bytes, moved.received_bytes
            ));
        }
        lines
    }

    /// Takes a seat for a transfer. `None` if one with this id has a seat, or the session is over.
    pub(crate) fn seat(self: &Arc<Self>, transfer: TransferId) -> Option<Seat> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        // Connections are locked first, as in `attach`: a lane that comes up in between is told
        // exactly once.
        let connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        if routes.over || routes.by_transfer.contains_key(&transfer) {
            return None;
        }
        let number = routes.take_number()?;
        routes.idle.asked = true;
        for (lane, _) in &connections.up {
            // The receiver is held below, so this can't fail.
            let rail = connections.rail_of(*lane);
            let _ = sender.send(Inbound::LaneUp(*lane, rail));
        }
        let route = Route {
            sender: sender.clone(),
            queued: Arc::clone(&queued),
        };
        routes.by_transfer.insert(transfer, route);
        routes.by_number.insert(number, sender);
        Some(Seat {
            peer: Arc::clone(self),
            transfer,
            inbox: Inbox { receiver, queued },
            number,
        })
    }

    /// The session's own memory to serve from.
    pub(crate) fn memory(&self) -> &Arc<SessionMemory> {
        &self.memory
    }

    /// What the session does, for those who ask.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Since when no transfer has had a seat; nothing while one has.
    pub(crate) fn idle(&self) -> Option<Idle> {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        routes.by_transfer.is_empty().then_some(routes.idle)
    }

    /// How many transfers have a seat.
    pub(crate) fn seats(&self) -> usize {
        self.routes
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .by_transfer
            .len()
    }

    /// Says something to the peer.
    pub(crate) fn say(&self, transfer: TransferId, message: Message) {
        if let Err(error) = self.writer.send(&Envelope { transfer, message }) {
            match error {
                // The reader finds out as well, and ends the session.
                ControlError::Closed => {}
                error => {
                    tracing::warn!(session = %self.id, %transfer, %error, "can't speak to the peer");
                    self.writer.abort();
                    self.close(&error.to_fault());
                }
            }
        }
    }

    /// Answers a Ping, unless the peer leaves so much unread that it does not listen for answers.
    pub(crate) fn pong(&self, nonce: u64) {
        if self.writer.queued_bytes() < PONG_BACKLOG_BYTES_MAX {
            self.say(TransferId::NONE, Message::Pong { nonce });
        }
    }

    /// Tells the status, under the same condition: a page is large beside its question.
    pub(crate) fn inform(&self, page: impl FnOnce() -> StatusPage) {
        if self.writer.queued_bytes() < PONG_BACKLOG_BYTES_MAX {
            self.say(TransferId::NONE, Message::StatusPage(page()));
        }
    }

    /// Waits until the peer has read most of what was said to it.
    ///
    /// # Errors
    /// The session ended meanwhile.
    pub(crate) async fn has_read(&self) -> Result<(), Fault> {
        match self.writer.ready().await {
            Ok(()) => Ok(()),
            // Its last words may still be on their way, and are the reason.
            Err(_) => Err(self.closed().await),
        }
    }

    /// Waits for the turn to make a page and say it: pages are long, and what a peer does not read
    /// lies in memory, whatever credit it gives. Kept until the page was said.
    ///
    /// # Errors
    /// The session ended meanwhile.
    pub(crate) async fn page_turn(&self) -> Result<OwnedSemaphorePermit, Fault> {
        let turn = Arc::clone(&self.pages).acquire_owned().await;
        let turn = turn.map_err(|_| ended())?;
        self.has_read().await?;
        Ok(turn)
    }

    /// Hands a message to its transfer. One to a transfer that has no seat, as it has just ended,
    /// needs no answer.
    ///
    /// # Errors
    /// The peer has sent far more than it had credit for.
    pub(crate) fn deliver(&self, envelope: Envelope) -> Result<(), Fault> {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        let Some(route) = routes.by_transfer.get(&envelope.transfer) else {
            return Ok(());
        };
        let weight = weight(&envelope.message);
        if route.queued.fetch_add(weight, Ordering::Relaxed) >= QUEUED_WEIGHT_MAX {
            return Err(Fault::new(
                FaultCode::Protocol,
                "the peer sends more than it has credit for",
            ));
        }
        // Fails if the transfer has just ended.
        let _ = route.sender.send(Inbound::Message(envelope.message));
        Ok(())
    }

    /// Puts a data connection by tcp on a lane and tells every transfer. `false` if the session is
    /// over.
    pub(crate) fn attach(
        self: &Arc<Self>,
        stream: std::net::TcpStream,
        keys: ConnectionKeys,
    ) -> bool {
        self.carry(None, Carrier::Tcp(stream, keys))
    }

    /// Puts a data connection without a socket on a lane without a thread.
    #[cfg(test)]
    pub(crate) fn attach_in_memory(self: &Arc<Self>) -> bool {
        self.carry(None, Carrier::Memory)
    }

    /// Whether nothing of the session is left that costs others: no seat, no region, no memory.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.seats() == 0 && self.regions.is_empty() && self.memory.is_whole()
    }

    /// What is alike whatever carries the bytes.
    fn carry(self: &Arc<Self>, rail: Option<rails::Railed>, connection: Carrier) -> bool {
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if connections.closed {
            return false;
        }
        let lane = LaneId(connections.issued);
        connections.issued += 1;
        // Connections of one session start on different lanes of the process and go round.
        let start = usize::try_from(self.id.0 % 64).unwrap_or(0);
        let at = (start + lane.0 as usize) % self.lanes.count();
        let events = sink(Arc::downgrade(self));
        let regions = Arc::clone(&self.regions);
        let connection = match connection {
            Carrier::Tcp(stream, keys) => self.lanes.attach(at, stream, keys, regions, events),
            Carrier::Rdma(queue_pair) => self.lanes.attach_rdma(at, queue_pair, regions, events),
            #[cfg(test)]
            Carrier::Memory => self.lanes.attach_in_memory(regions, events),
        };
        connections.up.push((lane, Arc::new(connection)));
        if let Some(railed) = rail {
            connections.railed.insert(lane, railed);
        }
        let rail = connections.rail_of(lane);
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        routes.tell(|| Inbound::LaneUp(lane, rail));
        true
    }

    /// How many data connections by tcp are up.
    pub(crate) fn connections(&self) -> usize {
        let connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        connections.up.len() - connections.railed.len()
    }

    /// Ends every data connection. What was in flight on them comes back as lost.
    pub(crate) fn drop_connections(&self) {
        let dropped = {
            let mut connections = self
                .connections
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let dropped = std::mem::take(&mut connections.up);
            let over = connections.closed;
            for (_, railed) in connections.railed.drain().filter(|_| !over) {
                railed.tell_lost(&LostReason::Detached);
            }
            let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
            for (lane, _) in &dropped {
                routes.tell(|| Inbound::LaneDown(*lane));
            }
            dropped
        };
        // Dropping them detaches them, outside of the lock: lanes answer what is in flight.
        drop(dropped);
        self.lost.notify_one();
    }

    /// The session is over: tells every transfer, ends the data connections.
    pub(crate) fn close(&self, fault: &Fault) {
        {
            let mut connections = self
                .connections
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            connections.closed = true;
        }
        {
            let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
            if !routes.over {
                routes.over = true;
                self.over.send_replace(Some(fault.clone()));
                routes.tell(|| Inbound::Over(fault.clone()));
            }
        }
        self.drop_connections();
        self.lost.notify_waiters();
        self.lost.notify_one();
    }

    /// Why the session is over, if it is.
    pub(crate) fn over(&self) -> Option<Fault> {
        self.over.borrow().clone()
    }

    /// Whether it was the end of the session that ended a run in this way, and another session may do
    /// better.
    pub(crate) fn was_lost_by(&self, fault: &Fault) -> bool {
        self.over().is_some_and(|over| {
            let passes = [FaultCode::Lost, FaultCode::Busy, FaultCode::TimedOut];
            over.code == fault.code && passes.contains(&over.class())
        })
    }

    /// Waits for the session's end.
    pub(crate) async fn closed(&self) -> Fault {
        let mut over = self.over.subscribe();
        // The sender lives in `self`, so the wait can't fail.
        match over.wait_for(Option::is_some).await {
            Ok(fault) => fault.clone().unwrap_or_else(ended),
            Err(_) => ended(),
        }
    }

    /// Waits until a data connection is lost, or was since the last call.
    pub(crate) async fn connection_lost(&self) {
        self.lost.notified().await;
    }

    fn lane_event(&self, event: LaneEvent) {
        if let LaneEvent::ConnectionLost { connection, reason } = &event {
            tracing::debug!(session = %self.id, %connection, %reason, "data connection ended");
            let mut connections = self
                .connections
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let is_it = |(_, known): &(LaneId, Arc<DataConnection>)| known.id() == *connection;
            let Some(at) = connections.up.iter().position(is_it) else {
                return;
            };
            let (lane, _) = connections.up.swap_remove(at);
            if let Some(railed) = connections.railed.remove(&lane) {
                railed.tell_lost(reason);
            }
            let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
            routes.tell(|| Inbound::LaneDown(lane));
            self.lost.notify_one();
            return;
        }
        if let LaneEvent::Served { bytes } = &event {
            self.activity.traffic().sent(*bytes);
        }
        let Some((number, event)) = localise(event) else {
            return;
        };
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = routes.by_number.get(&number) {
            let _ = sender.send(Inbound::Lane(event));
        }
    }

    fn connection(&self, lane: LaneId) -> Option<Arc<DataConnection>> {
        let connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        connections
            .up
            .iter()
            .find(|(known, _)| *known == lane)
            .map(|(_, found)| Arc::clone(found))
    }
}

impl Connections {
    fn rail_of(&self, lane: LaneId) -> u16 {
        self.railed.get(&lane).map_or(0, |railed| railed.link.rail)
    }
}

impl Routes {
    fn new() -> Self {
        Self {
            by_transfer: HashMap::new(),
            by_number: HashMap::new(),
            next_number: 1,
            idle: Idle {
                since: Instant::now(),
                asked: false,
            },
            over: false,
        }
    }

    /// A number that no seat has. They go round, so that one comes again only after all others did:
    /// by then nothing that was sent under it is under way any more.
    fn take_number(&mut self) -> Option<u32> {
        if self.by_number.len() >= SEATS_MAX {
            return None;
        }
        loop {
            let number = self.next_number;
            self.next_number = (number + 1) % NUMBERS;
            if !self.by_number.contains_key(&number) {
                return Some(number);
            }
        }
    }

    fn tell(&self, inbound: impl Fn() -> Inbound) {
        for sender in self.by_number.values() {
            let _ = sender.send(inbound());
        }
    }
}

/// Hands a lane's events to the session, if it is still there.
fn sink(peer: Weak<Peer>) -> EventSink {
    Arc::new(move |event| {
        if let Some(peer) = peer.upgrade() {
            peer.lane_event(event);
        }
    })
}

fn ended() -> Fault {
    Fault::new(FaultCode::Lost, "the session ended")
}

/// Splits the transfer's number off the ids in an event.
fn localise(mut event: LaneEvent) -> Option<(u32, LaneEvent)> {
    let number = match &mut event {
        LaneEvent::Landed { token, .. } => {
            let number = *token >> NUMBER_SHIFT;
            *token &= (1 << NUMBER_SHIFT) - 1;
            number
        }
        LaneEvent::Hashed { region, .. }
        | LaneEvent::SourceFailed { region, .. }
        | LaneEvent::Revoked { region, .. } => region.0 >> NUMBER_SHIFT,
        _ => return None,
    };
    u32::try_from(number).ok().map(|number| (number, event))
}

impl Seat {
    /// The first region id of this transfer; it has 2^40 of them.
    pub(crate) fn first_region(&self) -> RegionId {
        RegionId(u64::from(self.number) << NUMBER_SHIFT)
    }

    /// Says something to the peer in this transfer.
    pub(crate) fn say(&self, message: Message) {
        self.peer.say(self.transfer, message);
    }

    /// Posts a fetch, whose token is below 2^40. `false`: the lane is gone, and the fetch with it; the
    /// word of that is in the inbox.
    pub(crate) fn fetch(&self, lane: LaneId, mut fetch: Fetch) -> bool {
        let Some(connection) = self.peer.connection(lane) else {
            return false;
        };
        debug_assert!(
            fetch.token >> NUMBER_SHIFT == 0,
            "a transfer numbers its fetches from 0"
        );
        fetch.token |= u64::from(self.number) << NUMBER_SHIFT;
        connection.fetch(fetch);
        true
    }

    /// What the peer may read, over every data connection that is up now or comes later.
    pub(crate) fn regions(&self) -> Arc<RegionTable> {
        Arc::clone(&self.peer.regions)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut routes = self
            .peer
            .routes
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        routes.by_transfer.remove(&self.transfer);
        routes.by_number.remove(&self.number);
        routes.idle.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(routes: &mut Routes) -> u32 {
        let number = routes.take_number().unwrap();
        routes.by_number.insert(number, mpsc::unbounded_channel().0);
        number
    }

    #[test]
    fn a_number_in_use_is_not_given_again() {
        let mut routes = Routes::new();
        let (first, second) = (route(&mut routes), route(&mut routes));
        routes.next_number = NUMBERS - 1;
        assert_eq!(route(&mut routes), NUMBERS - 1);
        let after = route(&mut routes);
        assert!(after != first && after != second, "{after}");
        routes.by_number.remove(&first);
        routes.next_number = first;
        assert_eq!(route(&mut routes), first);
    }

    #[test]
    fn the_largest_numbers_fit_into_ids() {
        let last = u64::from(NUMBERS - 1) << NUMBER_SHIFT | ((1 << NUMBER_SHIFT) - 1);
        assert_eq!(last, u64::MAX);
        let event = LaneEvent::Revoked {
            region: RegionId(last),
        };
        assert_eq!(localise(event).unwrap().0, NUMBERS - 1);
    }
}
