//! READs over a tcp connection: requests and replies as messages, in both directions at once.
//!
//! A [`Connection`] owns a socket that never waits. Its owner gives it turns: `receive` moves what
//! has arrived into slots and hands requests to the queue, `send` moves requests and replies out.
//! Both do a bounded share of work. Payload goes between slot and socket without a copy of ours,
//! one system call for a segment with its header.
//! Nothing here knows files, digests or how readiness is found out; the [`Host`] fills and takes
//! slots.
#![doc = include_str!("FORMAT.md")]

mod header;
mod receive;
#[cfg(test)]
mod scripted;
mod send;

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::net::sockopt::set_socket_send_buffer_size;

use crate::limits::READS_PER_CONNECTION_MAX;
use crate::memory::Slot;
use crate::transport::{LostReason, ReadRequest};

pub use header::ConnectionKeys;
use header::{Opener, Sealer};
use receive::Inbound;
#[cfg(test)]
pub(crate) use scripted::Scripted;
use send::{Outbound, Reply, Request};

/// Bytes that may wait in a socket whose peer is on this machine. There is no distance to fill, and
/// what the kernel would let pile up, up to megabytes, is out of the caches when it is read.
const WITHIN_HOST_SEND_BUFFER_BYTES: usize = 512 << 10;

/// One data connection, either side of it.
pub(crate) struct Connection {
    socket: TcpStream,
    opener: Opener,
    sealer: Sealer,

    // As the one who reads.
    /// READs of ours that are unanswered, in the order of their posting; the first is landing.
    reads: VecDeque<Posted>,
    /// READs of ours that no message has told the peer yet: the last ones of `reads`.
    untold: usize,
    request_next: u64,
    landing: Option<Slot>,
    /// When the slot was taken, while there is one.
    landing_since: Instant,
    inbound: Inbound,

    // As the one who is read.
    /// What the peer asked for, unanswered; bounded like `reads`.
    requests: VecDeque<Request>,
    reply: Option<Reply>,
    outbound: Outbound,
}

/// A READ of ours.
struct Posted {
    request: u64,
    read: ReadRequest,
    received: usize,
}

impl Connection {
    /// A connection over `socket`, on which the hellos are through.
    pub(crate) fn new(socket: TcpStream, keys: &ConnectionKeys) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        // A request must not wait for the acknowledgement of the one before.
        socket.set_nodelay(true)?;
        if is_within_host(&socket)? {
            set_socket_send_buffer_size(&socket, WITHIN_HOST_SEND_BUFFER_BYTES)?;
        }
        Ok(Self {
            socket,
            opener: Opener::new(&keys.receive),
            sealer: Sealer::new(&keys.send),
            reads: VecDeque::with_capacity(READS_PER_CONNECTION_MAX),
            untold: 0,
            request_next: 0,
            landing: None,
            landing_since: Instant::now(),
            inbound: Inbound::default(),
            requests: VecDeque::with_capacity(READS_PER_CONNECTION_MAX),
            reply: None,
            outbound: Outbound::default(),
        })
    }

    /// How many READs may be posted now.
    pub(crate) fn room(&self) -> usize {
        READS_PER_CONNECTION_MAX - self.reads.len()
    }

    /// Posts a READ; the next `send` tells the peer. There must be [`Self::room`].
    pub(crate) fn post_read(&mut self, read: ReadRequest) {
        debug_assert!(self.room() > 0 && read.len > 0);
        self.reads.push_back(Posted {
            request: self.request_next,
            read,
            received: 0,
        });
        self.request_next += 1;
        self.untold += 1;
    }

    /// Since when a reply has been landing in a slot, if one has.
    pub(crate) fn landing_since(&self) -> Option<Instant> {
        self.landing.as_ref().map(|_| self.landing_since)
    }

    /// The socket, to be armed.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Ends the connection. READs that got no reply get none. What is left is the socket, shut
    /// down, to be closed when nothing names its descriptor.
    pub(crate) fn end(self) -> OwnedFd {
        // It fails when the peer has ended it already.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        self.socket.into()
    }
}

/// Whether both ends are on this machine.
fn is_within_host(socket: &TcpStream) -> io::Result<bool> {
    let (local, peer) = (socket.local_addr()?.ip(), socket.peer_addr()?.ip());
    Ok(local == peer || peer.to_canonical().is_loopback())
}

fn protocol(what: &'static str) -> LostReason {
    LostReason::Protocol(what)
}

fn broken(error: io::Error) -> LostReason {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => LostReason::Closed,
        _ => LostReason::Io(error),
    }
}
