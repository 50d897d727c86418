//! What a lane tells a session, and the guarantee that every fetch is answered exactly once.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::ids::{ConnectionId, EntryId, RegionId};
use crate::integrity::Value;
use crate::memory::Slot;
use crate::transport::{LostReason, Refusal};
use crate::units::ChunkIndex;

/// Takes a lane's events, on the lane's thread: it must not wait and must not call the lane back
/// in a way that waits.
pub type EventSink = Arc<dyn Fn(LaneEvent) + Send + Sync>;

/// Something happened that a session has to know.
#[derive(Debug)]
#[non_exhaustive]
pub enum LaneEvent {
    /// A fetch is over; nothing of this process uses its memory or file any more.
    Landed {
        /// From the fetch.
        token: u64,
        /// What became of it.
        result: Result<Landed, FetchError>,
    },
    /// A chunk of an exposed file was sent whole; this is what was sent.
    Hashed {
        /// The region.
        region: RegionId,
        /// The file.
        entry: EntryId,
        /// The chunk.
        chunk: ChunkIndex,
        /// Its value, of the kind that the region's digests have.
        value: Value,
    },
    /// An exposed file can't be read; the peer was told so for each READ that met it.
    SourceFailed {
        /// The region.
        region: RegionId,
        /// The file.
        entry: EntryId,
        /// Why; `UnexpectedEof` if the file is shorter than it was.
        error: io::Error,
    },
    /// Nothing reads from this region any more.
    Revoked {
        /// The region.
        region: RegionId,
    },
    /// This connection is gone, and its fetches are answered or about to be.
    ConnectionLost {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        reason: LostReason,
    },
    /// A READ of the peer's is answered.
    Served {
        /// Payload bytes of the reply, as far as it went.
        bytes: u64,
    },
}

/// A fetch's bytes are where they were to go.
#[derive(Debug)]
pub struct Landed {
    /// The chunk's value as computed from what arrived; none if the plan was none.
    pub digest: Option<Value>,
    /// The slot with the bytes at its start, if they were to be delivered.
    pub slot: Option<Slot>,
}

/// Why a fetch failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum FetchError {
    /// The connection went before everything had arrived. Another one may do better.
    ConnectionLost,
    /// The peer did not serve it.
    Refused(Refusal),
    /// The peer's RDMA adapter refused access to the region, which cost the connection: the region
    /// went away, or the file behind it is shorter than it was.
    Access,
    /// The bytes arrived but could not be stored.
    Storage(io::Error),
    /// The fetch asks for the impossible, such as no bytes, or delivery of more than a slot holds.
    Invalid(&'static str),
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectionLost => f.write_str("the data connection was lost"),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Access => Refusal::Access.fmt(f),
            Self::Storage(error) => write!(f, "writing failed: {error}"),
            Self::Invalid(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for FetchError {}

/// The duty to answer one fetch. Dropped unanswered - because its lane ended, or never saw the
/// command - it answers that the connection was lost.
pub(super) struct Ticket {
    token: u64,
    /// `None` once answered.
    events: Option<EventSink>,
}

impl Ticket {
    pub(super) fn new(token: u64, events: EventSink) -> Self {
        Self {
            token,
            events: Some(events),
        }
    }

    pub(super) fn answer(mut self, result: Result<Landed, FetchError>) {
        self.tell(result);
    }

    fn tell(&mut self, result: Result<Landed, FetchError>) {
        if let Some(events) = self.events.take() {
            events(LaneEvent::Landed {
                token: self.token,
                result,
            });
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.tell(Err(FetchError::ConnectionLost));
    }
}
