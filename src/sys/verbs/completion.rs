//! Completion queues: where a device says that a READ is over.
//!
//! In: queue pairs, each of which reserves room for all that it can have posted, so that a queue
//! never overruns. Out: completions, a batch at a time, and a descriptor that tells of the next one
//! after [`CompletionQueue::arm`]. A completion shows its outcome only together with the buffer, by
//! [`super::QueuePair::finish`].
#![allow(unsafe_code)] // Polling fills C structures.

use std::ffi::c_uint;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_sys::{ibv_comp_channel, ibv_cq, ibv_wc, ibv_wc_status};

use super::Error;
use super::context::Context;
use super::plain::{self, Plain};

/// Events acknowledged at a time: each time takes a lock.
const EVENTS_ACKNOWLEDGED: u32 = 64;

/// How a work request failed. The first failure of a queue pair is its cause; those that follow
/// are [`Self::Flushed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WorkStatus {
    /// The queue pair was in its error state before this one was done: not its fault.
    Flushed,
    /// The peer's device refused: no such key, out of its range, or memory that went away.
    RemoteAccess,
    /// No answer after all retries: the path or the peer is gone.
    RetryExceeded,
    /// The peer was not ready after all retries.
    ReceiverNotReady,
    /// The landing memory is not registered as the request has it.
    LocalProtection,
    /// The request is longer than the connection allows.
    LocalLength,
    /// The device could not do the request.
    LocalOperation,
    /// The peer found the request invalid; more READs at a time than it serves, for one.
    RemoteInvalid,
    /// The peer's device failed at it.
    RemoteOperation,
    /// The peer's answer was not understood.
    BadResponse,
    /// The device failed.
    Fatal,
    /// Another failure; the raw status.
    Other(u32),
}

/// A failure with the device's own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkError {
    /// What kind.
    pub status: WorkStatus,
    /// The maker's code, for their support.
    pub vendor: u32,
}

impl fmt::Display for WorkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vendor = self.vendor;
        f.write_str(match self.status {
            WorkStatus::Flushed => "flushed after an earlier failure",
            WorkStatus::RemoteAccess => "the peer's device refused access to its memory",
            WorkStatus::RetryExceeded => "the peer did not answer",
            WorkStatus::ReceiverNotReady => "the peer was not ready to receive",
            WorkStatus::LocalProtection => "the landing memory is not registered for it",
            WorkStatus::LocalLength => "longer than the connection allows",
            WorkStatus::LocalOperation => "this end's device could not do it",
            WorkStatus::RemoteInvalid => "the peer's device found it invalid",
            WorkStatus::RemoteOperation => "the peer's device failed at it",
            WorkStatus::BadResponse => "the peer's answer was not understood",
            WorkStatus::Fatal => "this end's device failed",
            WorkStatus::Other(status) => {
                return write!(
                    f,
                    "work request failed with status {status}, vendor {vendor:#x}"
                );
            }
        })?;
        write!(f, " (vendor {vendor:#x})")
    }
}

impl std::error::Error for WorkError {}

/// A READ that brought all its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Bytes that landed.
    pub bytes: usize,
}

/// That a work request is over. To be given to the queue pair with this number, which answers with
/// what became of it.
#[derive(Debug)]
#[must_use = "the queue pair it belongs to still holds the buffer"]
pub struct Completion {
    /// Number of the queue pair.
    pub queue_pair: u32,
    pub(super) work: u64,
    pub(super) failure: Option<WorkError>,
}

/// Room for completions, used again and again.
pub struct Batch {
    raw: Vec<ibv_wc>,
    filled: usize,
}

impl Batch {
    /// Room for `size` of them, at least 1.
    pub fn new(size: usize) -> Self {
        let mut raw = Vec::new();
        raw.resize_with(size.clamp(1, 4096), ibv_wc::zeroed);
        Self { raw, filled: 0 }
    }

    /// Takes them out, oldest first.
    pub fn drain(&mut self) -> impl Iterator<Item = Completion> {
        let filled = std::mem::take(&mut self.filled);
        self.raw[..filled].iter().map(completion)
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("filled", &self.filled)
            .finish_non_exhaustive()
    }
}

/// Entries of the queue that are spoken for.
#[derive(Default)]
struct Reserved {
    /// By queue pairs that live.
    living: u32,
    /// By what queue pairs had posted when they were destroyed. The device may have left entries
    /// of theirs; a poll that empties the queue shows that they are gone.
    left: u32,
}

/// See the module's first paragraph.
pub struct CompletionQueue {
    raw: NonNull<ibv_cq>,
    channel: Channel,
    capacity: u32,
    reserved: Mutex<Reserved>,
    unacknowledged: AtomicU32,
}

/// Where a queue's events are read; outlives the queue.
struct Channel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread with the same queue: it locks where it must.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue with at least `capacity` entries, and a descriptor of its own.
    pub fn new(context: &Arc<Context>, capacity: u32) -> Result<Arc<Self>, Error> {
        let failed =
            |error| context.error(format!("make a queue of {capacity} completions"), error);
        let verbs = context.verbs();
        // SAFETY: the context is open.
        let channel = unsafe { (verbs.ibv_create_comp_channel)(context.raw().as_ptr()) };
        let channel = Channel {
            raw: plain::non_null(channel).map_err(failed)?,
            context: Arc::clone(context),
        };
        plain::set_nonblocking(channel.as_fd()).map_err(failed)?;
        let entries = i32::try_from(capacity.max(1))
            .map_err(|_| failed(io::Error::from_raw_os_error(libc::EINVAL)))?;
        // SAFETY: context and channel are alive; every device has a vector 0.
        let raw = unsafe {
            (verbs.ibv_create_cq)(
                context.raw().as_ptr(),
                entries,
                ptr::null_mut(),
                channel.raw.as_ptr(),
                0,
            )
        };
        let raw = plain::non_null(raw).map_err(failed)?;
        // SAFETY: just made; the member does not change, as queues are never resized here.
        let actual = unsafe { (*raw.as_ptr()).cqe };
        Ok(Arc::new(Self {
            raw,
            channel,
            capacity: u32::try_from(actual).unwrap_or(capacity),
            reserved: Mutex::default(),
            unacknowledged: AtomicU32::new(0),
        }))
    }

    /// Fills `batch`, unless something is left in it; how many completions it has then. 0: none.
    pub fn poll(&self, batch: &mut Batch) -> Result<usize, Error> {
        if batch.filled > 0 {
            return Ok(batch.filled);
        }
        let left = self.reserved().left;
        // SAFETY: the context is open, and its operations do not change.
        let poll = unsafe { (*self.context().raw().as_ptr()).ops.poll_cq };
        let poll = poll.ok_or_else(|| self.unsupported("be polled"))?;
        let room = batch.raw.len();
        let asked = i32::try_from(room).unwrap_or(i32::MAX);
        // SAFETY: the queue is alive; the batch has room for as many as asked.
        let found = unsafe { poll(self.raw.as_ptr(), asked, batch.raw.as_mut_ptr()) };
        let found = usize::try_from(found).map_err(|_| {
            let error = io::Error::other(format!("ibv_poll_cq answered {found}"));
            self.context().error("poll completions", error)
        })?;
        batch.filled = found.min(room);
        if found < room && left > 0 {
            // Empty, after those queue pairs were destroyed: nothing of theirs is in the queue.
            self.reserved().left -= left;
        }
        Ok(batch.filled)
    }

    /// Asks for one event at the next completion that arrives from now on. What came before makes
    /// none: poll once more after this, before waiting.
    pub fn arm(&self) -> Result<(), Error> {
        // SAFETY: the context is open, and its operations do not change.
        let arm = unsafe { (*self.context().raw().as_ptr()).ops.req_notify_cq };
        let arm = arm.ok_or_else(|| self.unsupported("be armed"))?;
        // SAFETY: the queue is alive; 0: any completion.
        let code = unsafe { arm(self.raw.as_ptr(), 0) };
        plain::check(code).map_err(|error| self.context().error("arm completions", error))
    }

    /// Takes the events that made the descriptor readable; how many there were. Never waits.
    pub fn take_events(&self) -> Result<u32, Error> {
        let verbs = self.context().verbs();
        let mut taken = 0;
        loop {
            let (mut queue, mut user) = (ptr::null_mut(), ptr::null_mut());
            let channel = self.channel.raw.as_ptr();
            // SAFETY: the channel is alive; the call writes two pointers. Only `self` uses the
            // channel, so the event is its own.
            let code = unsafe { (verbs.ibv_get_cq_event)(channel, &raw mut queue, &raw mut user) };
            if let Err(error) = plain::check_errno(code) {
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(taken),
                    io::ErrorKind::Interrupted => continue,
                    _ => Err(self.context().error("tell of completions", error)),
                };
            }
            taken += 1;
            let waiting = self.unacknowledged.fetch_add(1, Ordering::Relaxed) + 1;
            if waiting >= EVENTS_ACKNOWLEDGED {
                self.acknowledge();
            }
        }
    }

    /// The device that it is of.
    pub fn context(&self) -> &Arc<Context> {
        &self.channel.context
    }

    /// Entries that new queue pairs may still reserve.
    pub fn available(&self) -> u32 {
        let reserved = self.reserved();
        self.capacity - reserved.living - reserved.left
    }

    pub(super) fn raw(&self) -> NonNull<ibv_cq> {
        self.raw
    }

    /// False: there is no room for so many.
    pub(super) fn reserve(&self, entries: u32) -> bool {
        let mut reserved = self.reserved();
        let taken = reserved.living + reserved.left;
        let fits = entries <= self.capacity - taken;
        if fits {
            reserved.living += entries;
        }
        fits
    }

    /// A queue pair that had reserved `entries` is destroyed, with `posted` of them in use.
    pub(super) fn release(&self, entries: u32, posted: u32) {
        let mut reserved = self.reserved();
        reserved.living -= entries;
        reserved.left += posted;
    }

    fn reserved(&self) -> std::sync::MutexGuard<'_, Reserved> {
        // Nothing panics while it is held.
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unsupported(&self, action: &str) -> Error {
        let error = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        self.context().error(action, error)
    }

    fn acknowledge(&self) {
        let events: c_uint = self.unacknowledged.swap(0, Ordering::Relaxed);
        if events > 0 {
            // SAFETY: the queue is alive, and so many of its events were taken and not acknowledged.
            unsafe { (self.context().verbs().ibv_ack_cq_events)(self.raw.as_ptr(), events) };
        }
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // Destroying waits for events that were taken and not acknowledged.
        self.acknowledge();
        // SAFETY: made once, unmade once; queue pairs hold it, so none is left.
        let code = unsafe { (self.context().verbs().ibv_destroy_cq)(self.raw.as_ptr()) };
        if let Err(error) = plain::check(code) {
            let device = self.context().name();
            tracing::warn!(%device, %error, "a completion queue can't be given back");
        }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive, and the member does not change.
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the descriptor is the channel's, which lives as long as `self`.
        unsafe { plain::borrow(self, fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made once, unmade once, after the queue that uses it.
        let code = unsafe { (self.context.verbs().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
        if let Err(error) = plain::check(code) {
            let device = self.context.name();
            tracing::warn!(%device, %error, "a completion channel can't be given back");
        }
    }
}

/// A failed one says nothing but who it is and why: the rest of the structure is undefined then.
fn completion(raw: &ibv_wc) -> Completion {
    let failure = (raw.status != ibv_wc_status::IBV_WC_SUCCESS).then(|| WorkError {
        status: status(raw.status),
        vendor: raw.vendor_err,
    });
    Completion {
        queue_pair: raw.qp_num,
        work: raw.wr_id,
        failure,
    }
}

fn status(raw: ibv_wc_status::Type) -> WorkStatus {
    match raw {
        ibv_wc_status::IBV_WC_WR_FLUSH_ERR => WorkStatus::Flushed,
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR => WorkStatus::RemoteAccess,
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR | ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR => {
            WorkStatus::RetryExceeded
        }
        ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => WorkStatus::ReceiverNotReady,
        ibv_wc_status::IBV_WC_LOC_PROT_ERR | ibv_wc_status::IBV_WC_LOC_ACCESS_ERR => {
            WorkStatus::LocalProtection
        }
        ibv_wc_status::IBV_WC_LOC_LEN_ERR => WorkStatus::LocalLength,
        ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => WorkStatus::LocalOperation,
        ibv_wc_status::IBV_WC_REM_INV_REQ_ERR | ibv_wc_status::IBV_WC_REM_INV_RD_REQ_ERR => {
            WorkStatus::RemoteInvalid
        }
        ibv_wc_status::IBV_WC_REM_OP_ERR | ibv_wc_status::IBV_WC_REM_ABORT_ERR => {
            WorkStatus::RemoteOperation
        }
        ibv_wc_status::IBV_WC_BAD_RESP_ERR => WorkStatus::BadResponse,
        ibv_wc_status::IBV_WC_FATAL_ERR => WorkStatus::Fatal,
        other => WorkStatus::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_drained_once_and_failures_are_typed() {
        let mut batch = Batch::new(4);
        batch.raw[0].wr_id = 7;
        batch.raw[0].qp_num = 17;
        batch.raw[1].status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        batch.raw[2].status = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
        batch.raw[2].vendor_err = 0x88;
        batch.filled = 3;
        let all: Vec<_> = batch.drain().collect();
        assert_eq!(
            (all[0].work, all[0].queue_pair, all[0].failure),
            (7, 17, None)
        );
        assert_eq!(all[1].failure.unwrap().status, WorkStatus::Flushed);
        let failure = all[2].failure.unwrap();
        assert_eq!(
            (failure.status, failure.vendor),
            (WorkStatus::RemoteAccess, 0x88)
        );
        assert_eq!(batch.drain().count(), 0);
    }

    #[test]
    fn a_status_from_the_future_keeps_its_number() {
        assert_eq!(status(99), WorkStatus::Other(99));
    }
}
