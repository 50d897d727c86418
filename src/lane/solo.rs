//! A connection that no lane carries: whoever reads gives it its turns, and waits for each READ.
//!
//! In: a READ and the memory for it. Out: that memory, with the bytes or the reason. Over rdma the
//! calling thread posts the READ and polls for its end, without a system call to wait; over tcp it
//! waits for the socket. The peer may read nothing over such a connection.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::Link;
use crate::ids::{RemoteKey, WorkRequestId};
use crate::memory::Slot;
use crate::transport::tcp::ConnectionKeys;
use crate::transport::{Fill, Host, LostReason, ReadRequest, Refusal, Source, Turn, rdma, tcp};

/// Bytes taken in one turn: any READ's.
const TURN_BYTES: usize = 1 << 20;
/// Looks for a completion between two looks at the clock and at the caller's word.
const POLLS_PER_LOOK: u32 = 256;
/// How long a wait for a socket takes at most before the caller's word is looked at.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// See the module's first paragraph.
pub struct Solo {
    link: Link,
}

/// Why a READ brought nothing. The connection is of no use afterwards.
#[derive(Debug)]
pub enum SoloError {
    /// The connection is lost.
    Lost(LostReason),
    /// The peer did not serve it.
    Refused(Refusal),
    /// The caller says that it is over.
    Over(String),
    /// It was not there in time.
    TimedOut,
}

impl fmt::Display for SoloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(reason) => reason.fmt(f),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Over(reason) => f.write_str(reason),
            Self::TimedOut => f.write_str("the read was not answered in time"),
        }
    }
}

impl std::error::Error for SoloError {}

/// Bytes to be had.
#[derive(Clone, Copy, Debug)]
pub struct SoloRead {
    /// Which region of the peer's.
    pub remote: RemoteKey,
    /// First byte in the region.
    pub offset: u64,
    /// Bytes; not 0, at most what the slot holds.
    pub len: usize,
}

impl Solo {
    /// Over a tcp connection on which the hellos are through.
    pub fn tcp(stream: TcpStream, keys: &ConnectionKeys) -> io::Result<Self> {
        let link = Link::Tcp(tcp::Connection::new(stream, keys)?);
        Ok(Self { link })
    }

    /// Over a queue pair that both ends have proved.
    pub fn rdma(connection: rdma::Connection) -> Self {
        let link = Link::Rdma(connection);
        Self { link }
    }

    /// Bytes of the longest READ into a slot of so many.
    pub fn read_bytes(&self, slot_bytes: usize) -> usize {
        // Whoever reads so wants it in one.
        self.link.read_bytes(slot_bytes, true)
    }

    /// Makes a slot ready to land in, so that the first READ need not. Blocks.
    pub fn prepare(&self, slot: &mut Slot) -> io::Result<()> {
        match &self.link {
            Link::Tcp(_) => Ok(()),
            Link::Rdma(connection) => connection.prepare(slot),
        }
    }

    /// Waits until the bytes are at the slot's start. `over` tells why it is of no use to wait any
    /// longer, if that is so.
    ///
    /// # Errors
    /// The slot is gone then, and the connection is to be ended: only that makes sure that nothing
    /// is written to the slot any more.
    pub fn read(
        &mut self,
        read: SoloRead,
        slot: Slot,
        deadline: Instant,
        over: impl Fn() -> Option<String>,
    ) -> Result<Slot, SoloError> {
        let request = ReadRequest {
            id: WorkRequestId(0),
            key: read.remote,
            offset: read.offset,
            len: read.len,
        };
        self.link.post_read(request);
        let mut desk = Desk {
            slot: Some(slot),
            done: None,
        };
        let mut looks: u32 = 0;
        loop {
            let sent = self.link.send(&mut desk, TURN_BYTES);
            let sent = sent.map_err(SoloError::Lost)?;
            let taken = match &mut self.link {
                Link::Tcp(connection) => connection.receive(&mut desk, TURN_BYTES),
                Link::Rdma(connection) => connection.poll(&mut desk),
            };
            // A refusal by the peer's adapter takes the connection with it.
            match desk.done.take() {
                Some((Some(slot), Ok(()))) => return Ok(slot),
                Some((_, Err(refusal))) => return Err(SoloError::Refused(refusal)),
                Some((None, Ok(()))) | None => {}
            }
            let taken = taken.map_err(SoloError::Lost)?;
            if let Link::Rdma(_) = self.link {
                looks = looks.wrapping_add(1);
                if !looks.is_multiple_of(POLLS_PER_LOOK) {
                    continue;
                }
            }
            if let Some(reason) = over() {
                return Err(SoloError::Over(reason));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SoloError::TimedOut);
            }
            match &self.link {
                // By now something else is slow, and may need this processor.
                Link::Rdma(_) => std::thread::yield_now(),
                Link::Tcp(_) if taken == Turn::WouldBlock => {
                    self.wait(left, sent == Turn::WouldBlock)
                        .map_err(|error| SoloError::Lost(LostReason::Io(error)))?;
                }
                Link::Tcp(_) => {}
            }
        }
    }

    /// Ends it; nothing writes to its slots any more.
    pub fn end(self) {
        drop(self.link.end());
    }

    fn wait(&self, left: Duration, writes: bool) -> io::Result<()> {
        let pause = Timespec::try_from(left.min(WAIT_MAX)).map_err(io::Error::other)?;
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, writes);
        let socket = self.link.socket();
        let mut fds = [PollFd::from_borrowed_fd(socket, flags)];
        match poll(&mut fds, Some(&pause)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl fmt::Debug for Solo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Solo").finish_non_exhaustive()
    }
}

/// The one READ that is under way.
struct Desk {
    slot: Option<Slot>,
    done: Option<(Option<Slot>, Result<(), Refusal>)>,
}

impl Host for Desk {
    fn landing_slot(&mut self, _: WorkRequestId, _: usize) -> Option<Slot> {
        self.slot.take()
    }

    fn landed(&mut self, _: WorkRequestId, _: &Slot, _: Range<usize>) {}

    fn completed(&mut self, _: WorkRequestId, slot: Option<Slot>, status: Result<(), Refusal>) {
        self.done = Some((slot, status));
    }

    fn open(&mut self, _: RemoteKey, _: u64, _: u64) -> Result<Source, Refusal> {
        Err(Refusal::UnknownKey)
    }

    fn fill(&mut self, _: u64, _: usize) -> Fill {
        Fill::Failed
    }

    fn refill(&mut self, _: u64, _: usize) -> Fill {
        Fill::Failed
    }

    fn served(&mut self, _: u64) {}
}
