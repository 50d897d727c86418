//! Ways to move bytes between two hosts, in the words of verbs.
//!
//! A connection is symmetric: either end posts READs of regions that the other exposed. A READ
//! names a key, an offset and a length of at most one slot; bytes land in a slot that the
//! connection draws when its way of moving bytes needs one (tcp: when the reply arrives; rdma:
//! when the READ is posted). READs of one connection land and complete in the order in which they
//! were posted. What lands, and where the bytes of a reply come from, is the `Host`'s business.
//! Nothing here knows files, digests, manifests or sessions.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::ids::{RemoteKey, WorkRequestId};
use crate::memory::Slot;

pub mod rdma;
pub(crate) mod tcp;

/// A READ to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    /// Comes back with everything that is said about this READ.
    pub(crate) id: WorkRequestId,
    /// Which region of the peer's.
    pub(crate) key: RemoteKey,
    /// First byte in the region.
    pub(crate) offset: u64,
    /// Bytes; not 0, at most what one slot holds.
    pub(crate) len: usize,
}

/// Why the peer did not serve a READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// No region has this key, or not any more.
    UnknownKey,
    /// The READ reaches out of its region.
    OutOfRange,
    /// The peer could not read its source.
    SourceFailed,
    /// The peer's RDMA adapter let nobody read there: the region went away, or the file behind it
    /// is shorter than it was.
    Access,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownKey => "the region is not exposed any more",
            Self::OutOfRange => "the read reaches out of its region",
            Self::SourceFailed => "the sender could not read its source",
            Self::Access => "the sender's RDMA adapter refused access to the region",
        })
    }
}

/// Why a connection ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum LostReason {
    /// The peer closed it.
    Closed,
    /// The kernel reported it broken.
    Io(io::Error),
    /// The peer broke the protocol, in this way.
    Protocol(&'static str),
    /// The peer left a reply unfinished for long, while others waited for the memory it took, or
    /// a READ of an RDMA connection did not end at all.
    Stalled,
    /// The RDMA adapter says that the connection, its port or the adapter itself is broken.
    Adapter(String),
    /// This end detached it.
    Detached,
    /// The lane ended.
    Shutdown,
}

impl LostReason {
    /// The kernel's answer, if it was one.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the peer closed the data connection"),
            Self::Io(error) => write!(f, "the data connection broke: {error}"),
            Self::Protocol(what) => write!(f, "the peer broke the protocol: {what}"),
            Self::Stalled => f.write_str("the peer did not finish a reply"),
            Self::Adapter(what) => write!(f, "the RDMA connection broke: {what}"),
            Self::Detached => f.write_str("the data connection was given up"),
            Self::Shutdown => f.write_str("this end is shutting down"),
        }
    }
}

/// The bytes that answer a request.
pub(crate) enum Source {
    /// They lie in memory, from this position on.
    Memory(Arc<Slot>, usize),
    /// They are to be asked for piece by piece, in order: [`Host::fill`].
    Filled,
}

/// The answer to [`Host::fill`].
pub(crate) enum Fill {
    /// The piece, at the slot's start.
    Now(Slot),
    /// It comes by `Connection::filled`.
    Later,
    /// No slot is free. The connection is given another turn when one is.
    NoSlot,
    /// The source can't be read.
    Failed,
}

/// How much a connection did with its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Its share; there may be more to do.
    Again,
    /// All that the socket allows: arm it.
    WouldBlock,
    /// All that can be done without another slot.
    NoSlot,
    /// Everything that there is to do.
    Idle,
}

/// What a connection needs from whoever runs it.
pub(crate) trait Host {
    /// Memory for the bytes of this READ. `held` is how many such slots the connection has: one
    /// that has some leaves others theirs.
    fn landing_slot(&mut self, id: WorkRequestId, held: usize) -> Option<Slot>;

    /// The next bytes of this READ are in `range` of its slot, still in a cache.
    fn landed(&mut self, id: WorkRequestId, slot: &Slot, range: Range<usize>);

    /// The READ is over. All of its bytes are at the slot's start if `status` is `Ok`; else a slot
    /// that is given is free for other uses. READs that a lost connection takes along are not reported.
    fn completed(&mut self, id: WorkRequestId, slot: Option<Slot>, status: Result<(), Refusal>);

    /// The peer asks for these bytes. One request at a time, until [`Self::served`].
    fn open(&mut self, key: RemoteKey, offset: u64, len: u64) -> Result<Source, Refusal>;

    /// The next `len` bytes of the request that is open, from byte `at` of it.
    fn fill(&mut self, at: u64, len: usize) -> Fill;

    /// The same bytes as an earlier [`Self::fill`], because their slot was needed elsewhere.
    fn refill(&mut self, at: u64, len: usize) -> Fill;

    /// The request that is open is over; `bytes` of it were handed to the kernel.
    fn served(&mut self, bytes: u64);
}
