//! Lanes without threads and connections without sockets, for the simulation.
//!
//! In: what sessions order of their lanes. Out: the same orders, for whoever carries them out when it
//! likes; the bytes then go through the very code that lanes have: the fetch hashes and writes them, the
//! other end's serving reads and hashes them. What is not simulated is how a socket cuts them up.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use crossbeam_channel::Receiver;

use super::events::{EventSink, FetchError, LaneEvent, Ticket};
use super::fetch::{Active, Fetch};
use super::serve::{ServeTools, Serving};
use super::worker::{Attach, Command, LaneFile};
use super::{
    DataConnection, LANDING_SLOT_BYTES, LaneHandle, Lanes, ReactorDescription, RegionTable,
    SERVING_SLOT_BYTES, Shared,
};
use crate::ids::{ConnectionId, WorkRequestId};
use crate::memory::{Pool, Slot};
use crate::sys::reactor::{Event, FileOperation, Interest, Reactor, Token, Waker};
use crate::transport::{Fill, LostReason, ReadRequest, Refusal, Source};

impl Lanes {
    /// A lane whose orders are carried out by whoever takes them.
    pub(crate) fn without_threads() -> io::Result<(Self, Orders)> {
        let (commands, orders) = crossbeam_channel::unbounded();
        let lane = LaneHandle {
            commands,
            waker: Waker::new()?,
            starving: Arc::new(AtomicBool::new(false)),
            timed: Arc::new(AtomicBool::new(false)),
        };
        let shared = Arc::new(Shared {
            lanes: vec![lane],
            threads: Mutex::default(),
            reactor: ReactorDescription {
                uring: false,
                reason: "there is no lane".to_owned(),
            },
            connection_next: AtomicU64::new(1),
        });
        Ok((Self { shared }, Orders(orders)))
    }

    /// Gives a connection without a socket to the lane.
    pub(crate) fn attach_in_memory(
        &self,
        regions: Arc<RegionTable>,
        events: EventSink,
    ) -> DataConnection {
        let (lane, token) = self.place(0);
        let link = Err(io::ErrorKind::NotConnected.into());
        super::attach(lane, token, link, regions, events)
    }
}

/// What sessions have ordered of their lane.
pub(crate) struct Orders(Receiver<Command>);

pub(crate) enum Order {
    Attached(End),
    Detached(ConnectionId),
    Fetch(Waiting),
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) id: ConnectionId,
    regions: Arc<RegionTable>,
    events: EventSink,
}

/// A fetch that nobody has carried out yet. Dropped, it was lost with its connection.
pub(crate) struct Waiting {
    pub(crate) connection: ConnectionId,
    fetch: Fetch,
    ticket: Ticket,
}

/// A connection of two ends: `near` fetches what `far` serves.
pub(crate) struct Cable {
    near: End,
    far: End,
    serving: Serving,
    pub(crate) waiting: VecDeque<Waiting>,
}

/// Memory of a lane.
pub(crate) struct Slots {
    landing: Pool,
    serving: Pool,
}

impl Orders {
    /// The next one, if there is any.
    pub(crate) fn next(&self) -> Option<Order> {
        loop {
            return Some(match self.0.try_recv().ok()? {
                Command::Attach(attach) => {
                    let Attach {
                        id,
                        regions,
                        events,
                        ..
                    } = *attach;
                    Order::Attached(End {
                        id,
                        regions,
                        events,
                    })
                }
                Command::Detach(token) => Order::Detached(ConnectionId(token)),
                Command::Fetch {
                    connection,
                    fetch,
                    ticket,
                } => Order::Fetch(Waiting {
                    connection: ConnectionId(connection),
                    fetch,
                    ticket,
                }),
                Command::Reclaim | Command::Overdue | Command::Break(..) | Command::Shutdown => {
                    continue;
                }
            });
        }
    }
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self {
            landing: Pool::new(LANDING_SLOT_BYTES, 64),
            serving: Pool::new(SERVING_SLOT_BYTES, 4),
        }
    }

    /// Whether nobody has any.
    pub(crate) fn are_whole(&self) -> bool {
        let whole = |pool: &Pool| pool.available() == pool.slots_max();
        whole(&self.landing) && whole(&self.serving)
    }
}

impl Cable {
    pub(crate) fn new(near: End, far: End) -> Self {
        Self {
            near,
            far,
            serving: Serving::default(),
            waiting: VecDeque::new(),
        }
    }

    /// What the ends call it: the one that fetches, the one that serves.
    pub(crate) fn ids(&self) -> [ConnectionId; 2] {
        [self.near.id, self.far.id]
    }

    /// It breaks: both ends hear of it, and what was waiting is lost.
    pub(crate) fn lose(self) {
        for end in [&self.near, &self.far] {
            (end.events)(LaneEvent::ConnectionLost {
                connection: end.id,
                reason: LostReason::Closed,
            });
        }
    }

    /// Carries out a fetch, whole. `damage` has its hands on the bytes while they are under way.
    pub(crate) fn carry(
        &mut self,
        waiting: Waiting,
        slots: &Slots,
        damage: &mut dyn FnMut(&mut [u8]),
    ) {
        let Waiting { fetch, ticket, .. } = waiting;
        if let Err(error) = Active::check(&fetch, slots.landing.slot_bytes()) {
            ticket.answer(Err(error));
            return;
        }
        if slots.landing.available() == 0 {
            ticket.answer(Err(FetchError::ConnectionLost));
            return;
        }
        let id = WorkRequestId(0);
        let mut active = Active::new(fetch, 0, ticket);
        while active.wants_read() {
            let read = active.next_read(id, slots.landing.slot_bytes());
            let write = match self.answer(&read, slots) {
                Ok(mut slot) => {
                    damage(&mut slot[..read.len]);
                    for piece in slot[..read.len].chunks(SERVING_SLOT_BYTES) {
                        active.landed(piece);
                    }
                    active.completed(id, Some(slot), Ok(()))
                }
                Err(refusal) => active.completed(id, None, Err(refusal)),
            };
            assert!(
                write.is_none(),
                "files here have no way around the page cache"
            );
        }
        active.finish();
    }

    fn answer(&mut self, read: &ReadRequest, slots: &Slots) -> Result<Slot, Refusal> {
        let exposed = self
            .far
            .regions
            .find(read.key, read.offset, read.len as u64)?;
        let mut landing = slots
            .landing
            .take()
            .expect("it was looked whether there is one");
        let answered = match self.serving.open(exposed, read.offset) {
            Source::Memory(slot, at) => {
                landing[..read.len].copy_from_slice(&slot[at..at + read.len]);
                Ok(landing)
            }
            Source::Filled => self.fill(landing, read.len, slots),
        };
        self.serving.close();
        if answered.is_ok() {
            let bytes = read.len as u64;
            (self.far.events)(LaneEvent::Served { bytes });
        }
        answered
    }

    fn fill(&mut self, mut landing: Slot, len: usize, slots: &Slots) -> Result<Slot, Refusal> {
        let mut tools = ServeTools {
            token: 0,
            pool: &slots.serving,
            reactor: &mut Nothing,
        };
        for start in (0..len).step_by(SERVING_SLOT_BYTES) {
            let piece = (len - start).min(SERVING_SLOT_BYTES);
            match self.serving.fill(&mut tools, start as u64, piece, false) {
                Fill::Now(slot) => landing[start..start + piece].copy_from_slice(&slot[..piece]),
                Fill::Failed => return Err(Refusal::SourceFailed),
                Fill::Later | Fill::NoSlot => unreachable!("nothing is posted or held here"),
            }
        }
        Ok(landing)
    }
}

/// A reactor that takes nothing: reads are made on the spot.
struct Nothing;

impl Reactor<LaneFile> for Nothing {
    fn add(&mut self, _: Token, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn arm(&mut self, _: Token, _: BorrowedFd<'_>, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn retire(&mut self, _: Token, _: OwnedFd) {}

    fn post(&mut self, operation: FileOperation<LaneFile>) -> Result<(), FileOperation<LaneFile>> {
        Err(operation)
    }

    fn wait(&mut self, _: bool, _: &mut Vec<Event<LaneFile>>) -> io::Result<()> {
        Ok(())
    }
}
