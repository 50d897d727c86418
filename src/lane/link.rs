//! The connection that a lane gives turns to, over whichever transport.
//!
//! A match instead of a trait object: the calls of a turn stay visible to the compiler, and tcp
//! pays nothing for the other's being there.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use crate::memory::Slot;
use crate::transport::rdma;
use crate::transport::tcp;
use crate::transport::{Host, LostReason, ReadRequest, Turn};

/// See the module's first paragraph. The calls are those of the transports.
#[expect(
    clippy::large_enum_variant,
    reason = "tcp stays where it was, without a pointer to follow"
)]
pub(super) enum Link {
    Tcp(tcp::Connection),
    Rdma(rdma::Connection),
}

impl Link {
    /// How many READs may be posted now.
    pub(super) fn room(&self) -> usize {
        match self {
            Self::Tcp(connection) => connection.room(),
            Self::Rdma(connection) => connection.room(),
        }
    }

    /// Bytes of the longest READ, where slots have so many. `whole`: what is read is wanted in one
    /// slot, which is worth a long READ.
    pub(super) fn read_bytes(&self, slot_bytes: usize, whole: bool) -> usize {
        match self {
            Self::Tcp(_) => slot_bytes,
            Self::Rdma(connection) if whole => connection.read_bytes_max().min(slot_bytes),
            Self::Rdma(connection) => connection.read_bytes().min(slot_bytes),
        }
    }

    pub(super) fn post_read(&mut self, read: ReadRequest) {
        match self {
            Self::Tcp(connection) => connection.post_read(read),
            Self::Rdma(connection) => connection.post_read(read),
        }
    }

    pub(super) fn receive<H: Host>(
        &mut self,
        host: &mut H,
        budget: usize,
    ) -> Result<Turn, LostReason> {
        match self {
            Self::Tcp(connection) => connection.receive(host, budget),
            Self::Rdma(connection) => connection.receive(host, budget),
        }
    }

    pub(super) fn send<H: Host>(
        &mut self,
        host: &mut H,
        budget: usize,
    ) -> Result<Turn, LostReason> {
        match self {
            Self::Tcp(connection) => connection.send(host, budget),
            Self::Rdma(connection) => connection.send(host),
        }
    }

    /// The piece of a reply that was promised. Adapters answer by themselves and are promised none.
    pub(super) fn filled<H: Host>(
        &mut self,
        host: &mut H,
        piece: Option<Slot>,
    ) -> Result<(), LostReason> {
        match self {
            Self::Tcp(connection) => connection.filled(host, piece),
            Self::Rdma(_) => Ok(()),
        }
    }

    /// A slot of a reply that is on its way, if the link has one that it can do without.
    pub(super) fn yield_slot(&mut self) -> Option<Slot> {
        match self {
            Self::Tcp(connection) => connection.yield_slot(),
            Self::Rdma(_) => None,
        }
    }

    /// Since when slots have waited for bytes without any landing.
    pub(super) fn landing_since(&self) -> Option<Instant> {
        match self {
            Self::Tcp(connection) => connection.landing_since(),
            Self::Rdma(connection) => connection.waiting_since(),
        }
    }

    /// Whether a READ has been with the adapter for longer than any may be.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        match self {
            // Its replies are timed by whoever waits for its slots.
            Self::Tcp(_) => false,
            Self::Rdma(connection) => connection.is_overdue(now),
        }
    }

    /// What the reactor waits on.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(connection) => connection.socket(),
            Self::Rdma(connection) => connection.socket(),
        }
    }

    /// Ends it; nothing writes to its slots any more. What is left is to be closed when nothing
    /// names the descriptor.
    pub(super) fn end(self) -> OwnedFd {
        match self {
            Self::Tcp(connection) => connection.end(),
            Self::Rdma(connection) => connection.end(),
        }
    }
}
