//! A queue pair over which a lane READs.
//!
//! Its owner gives it turns, as a tcp connection's does: `send` gives memory to READs that were
//! posted and hands them to the adapter, `receive` takes what the adapter has finished. Memory goes
//! back only with its completion, or when the queue pair is destroyed. At the end that is read, the
//! adapter answers by itself: there a connection only holds the queue pair.
//! Nothing here knows files, digests or how readiness is found out.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use super::alarm::Alarm;
use super::endpoint::{Wire, wire_key};
use super::queue::{Outcome, ReadQueue, Step};
use super::words;
use crate::memory::Slot;
use crate::sys::verbs::{self, Batch, Finished, WorkError, WorkStatus};
use crate::transport::{Host, LostReason, ReadRequest, Refusal, Turn};

/// Completions taken at once.
const COMPLETIONS_PER_POLL: usize = 16;

/// One connected queue pair, either side of it.
pub struct Connection {
    wire: Wire,
    queue: ReadQueue,
    batch: Batch,
    read_bytes: usize,
    /// The completion queue will tell of the next completion.
    armed: bool,
}

impl Connection {
    pub(super) fn new(wire: Wire, depth: usize, read_bytes: usize) -> Self {
        Self {
            wire,
            queue: ReadQueue::new(depth),
            batch: Batch::new(COMPLETIONS_PER_POLL.min(depth)),
            read_bytes,
            armed: false,
        }
    }

    /// What rings when the adapter says that this connection is broken.
    pub(crate) fn watch(&self) -> Alarm {
        self.wire.alarm().clone()
    }

    /// How many READs may be posted now.
    pub(crate) fn room(&self) -> usize {
        self.queue.room()
    }

    /// Bytes of the longest READ that the ports take.
    pub(crate) fn read_bytes_max(&self) -> usize {
        self.read_bytes
    }

    /// Bytes of the longest READ that is of use now: fewer, while packets get lost.
    pub(crate) fn read_bytes(&self) -> usize {
        self.read_bytes.min(self.wire.pace().read_bytes())
    }

    /// Posts a READ; the next `send` tells the adapter. There must be [`Self::room`], its length
    /// must be at most [`Self::read_bytes_max`] and what a landing slot holds.
    pub(crate) fn post_read(&mut self, read: ReadRequest) {
        self.queue.push(read);
    }

    /// Since when the adapter has had READs without ending any.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        self.queue.waiting_since()
    }

    /// Whether by `now` no READ has ended for longer than any may take.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.queue.is_overdue(now)
    }

    /// Gives memory to READs that wait for it, and hands them to the adapter.
    pub(crate) fn send<H: Host>(&mut self, host: &mut H) -> Result<Turn, LostReason> {
        while let Some((number, read)) = self.queue.next() {
            let held = self.queue.under_way();
            let Some(slot) = host.landing_slot(read.id, held) else {
                return Ok(Turn::NoSlot);
            };
            let posting = verbs::Read {
                id: number,
                slot,
                range: 0..read.len,
                address: read.offset,
                rkey: wire_key(read.key).map_err(LostReason::Io)?,
            };
            self.wire.post(posting).map_err(LostReason::Io)?;
            self.queue.posted(Instant::now());
        }
        Ok(Turn::Idle)
    }

    /// Takes what the adapter has finished, up to about `budget` bytes.
    pub(crate) fn receive<H: Host>(
        &mut self,
        host: &mut H,
        budget: usize,
    ) -> Result<Turn, LostReason> {
        let broken = |error| LostReason::Io(words(error));
        if self.armed && self.wire.completions.take_events().map_err(broken)? > 0 {
            self.armed = false;
        }
        let mut taken = 0;
        while taken < budget {
            let found = self
                .wire
                .completions
                .poll(&mut self.batch)
                .map_err(broken)?;
            if found == 0 {
                if self.armed {
                    return Ok(Turn::WouldBlock);
                }
                // A completion between the look and the arming would go unnoticed: one more look.
                self.wire.completions.arm().map_err(broken)?;
                self.armed = true;
                continue;
            }
            taken += self.take_batch(host)?;
        }
        Ok(Turn::Again)
    }

    /// Takes what the adapter has finished, without asking it to tell of the next: for whoever looks
    /// again at once.
    pub(crate) fn poll<H: Host>(&mut self, host: &mut H) -> Result<Turn, LostReason> {
        let completions = &self.wire.completions;
        let found = completions.poll(&mut self.batch);
        if found.map_err(|error| LostReason::Io(words(error)))? == 0 {
            if let Some(reason) = self.wire.alarm().rung() {
                return Err(LostReason::Adapter(reason));
            }
            return Ok(Turn::WouldBlock);
        }
        self.take_batch(host)?;
        Ok(Turn::Again)
    }

    /// Acts on what the last look found; how many bytes it brought.
    fn take_batch<H: Host>(&mut self, host: &mut H) -> Result<usize, LostReason> {
        let now = Instant::now();
        let mut taken = 0;
        for completion in self.batch.drain() {
            // One that a queue pair before this one left is none of ours.
            if let Some(finished) = self.wire.queue_pair.finish(completion) {
                if is_of_retries(&finished) {
                    self.wire.pace().stumbled();
                }
                taken += take_in(&mut self.queue, host, finished, now)?;
            }
        }
        Ok(taken)
    }

    /// Registers a slot to land in, which its first READ would do otherwise. Blocks.
    pub(crate) fn prepare(&self, slot: &mut Slot) -> io::Result<()> {
        self.wire.prepare(slot)
    }

    /// What tells of completions, to be armed.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.wire.notices()
    }

    /// Ends the connection: the queue pair is destroyed, then the memory that the adapter had is
    /// free. What is left is a descriptor, to be closed when nothing names it.
    pub(crate) fn end(self) -> OwnedFd {
        self.wire.end()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("queue_pair", &self.wire.queue_pair)
            .field("read_bytes", &self.read_bytes)
            .finish_non_exhaustive()
    }
}

/// Acts on one READ that is over; how many bytes it brought.
fn take_in<H: Host>(
    queue: &mut ReadQueue,
    host: &mut H,
    finished: Finished,
    now: Instant,
) -> Result<usize, LostReason> {
    let Finished { id, slot, outcome } = finished;
    let step = queue
        .complete(id, charge(outcome), now)
        .map_err(|_| LostReason::Adapter("READs ended out of order".to_owned()))?;
    match step {
        Step::Landed(read) => {
            host.landed(read.id, &slot, 0..read.len);
            host.completed(read.id, Some(slot), Ok(()));
            return Ok(read.len);
        }
        Step::Refused(read) => host.completed(read.id, Some(slot), Err(Refusal::Access)),
        Step::Over => {}
    }
    let reason = outcome
        .err()
        .map_or_else(String::new, |error| error.to_string());
    Err(LostReason::Adapter(reason))
}

/// Whether the adapter sent its packets again as often as it may, in vain.
fn is_of_retries(finished: &Finished) -> bool {
    let status = finished.outcome.as_ref().err().map(|error| error.status);
    status == Some(WorkStatus::RetryExceeded)
}

/// What an outcome means for its READ. Only what the peer's adapter says of the READ itself is
/// charged to it: a path that fails says nothing of the bytes.
fn charge(outcome: Result<verbs::Done, WorkError>) -> Outcome {
    match outcome.map_err(|error| error.status) {
        Ok(_) => Outcome::Done,
        Err(WorkStatus::RemoteAccess | WorkStatus::RemoteOperation | WorkStatus::RemoteInvalid) => {
            Outcome::Refused
        }
        Err(_) => Outcome::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_charged_only_with_what_the_peer_says_of_it() {
        let failed = |status| charge(Err(WorkError { status, vendor: 0 }));
        assert_eq!(charge(Ok(verbs::Done { bytes: 1 })), Outcome::Done);
        assert_eq!(failed(WorkStatus::RemoteAccess), Outcome::Refused);
        // What adapters answer whose on-demand page went away.
        assert_eq!(failed(WorkStatus::RemoteOperation), Outcome::Refused);
        for status in [
            WorkStatus::Flushed,
            WorkStatus::RetryExceeded,
            WorkStatus::Fatal,
            WorkStatus::LocalProtection,
            WorkStatus::Other(77),
        ] {
            assert_eq!(failed(status), Outcome::Lost, "{status:?}");
        }
    }
}
