//! Queue pairs: one end of a reliable connection, on which READs are posted and served.
//!
//! Made with a depth, for which room is reserved in its completion queue; led from reset through
//! `initialise`, `receive` and `send` by what the other end told (or by [`super::cm`]). A READ moves
//! its slot in; the slot comes back with the READ's completion, or from [`QueuePair::destroy`], and
//! never earlier: until then the device may write to it. There is no way to take back a single READ:
//! whoever is tired of waiting takes the queue pair down.
//! Peers may at most read. Nothing here knows what is read or who is connected.
#![allow(unsafe_code)] // Work requests carry addresses.

use std::fmt;
use std::io;
use std::mem;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma_sys::{
    ibv_access_flags, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state,
    ibv_qp_type, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode, rdma_t,
};

use super::Error;
use super::completion::{Completion, CompletionQueue, Done, WorkError};
use super::context::Mtu;
use super::domain::Domain;
use super::gid::Gid;
use super::plain::{self, Plain};
use super::region::{self, Landing};
use crate::memory::Slot;

/// Deepest send queue: an index into it takes 16 bits of a work request's name.
pub const SEND_DEPTH_MAX: u32 = 1 << 16;

/// What [`QueuePair::initialise`] wants to know.
#[derive(Clone, Copy, Debug)]
pub struct Initialise {
    /// The port, from 1.
    pub port: u8,
    /// Which entry of its P_Key table; both ends must be in the same partition.
    pub pkey_index: u16,
    /// Whether the peer may read what is registered for serving in the queue pair's domain.
    pub serves: bool,
}

/// Where the other end is.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// Number of its queue pair.
    pub queue_pair: u32,
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
    /// InfiniBand's service level.
    pub service_level: u8,
    /// Global routing: always on Ethernet, between subnets on InfiniBand.
    pub route: Option<Route>,
}

/// The global part of a destination.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The other end's address.
    pub gid: Gid,
    /// This end's address: its place in the port's table.
    pub local_index: u32,
    /// Routers it may pass.
    pub hop_limit: u8,
    /// DSCP and ECN bits, on RoCE v2.
    pub traffic_class: u8,
    /// Chooses among equal paths; 0 lets the device do so.
    pub flow_label: u32,
}

/// What [`QueuePair::receive`] wants to know.
#[derive(Clone, Copy, Debug)]
pub struct Receiving {
    /// Where READs come from and go to.
    pub destination: Destination,
    /// Number of the first packet that comes; 24 bits, chosen by the other end.
    pub psn: u32,
    /// Payload of a packet, at most that of both ports.
    pub mtu: Mtu,
    /// READs of the peer served at a time (`max_dest_rd_atomic`).
    pub reads_served: u8,
    /// The delay that a peer is told when this end is not ready, as a code.
    pub rnr_timer: u8,
}

/// What [`QueuePair::send`] wants to know.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// Number of the first packet that goes out; 24 bits.
    pub psn: u32,
    /// READs under way at a time (`max_rd_atomic`), at most what the peer serves.
    pub reads_posted: u8,
    /// Time before a retry: 4.096 us times 2 to the power of this.
    pub timeout: u8,
    /// Retries before the connection is given up.
    pub retry_count: u8,
    /// The same when the peer is not ready; 7 is for ever.
    pub rnr_retry: u8,
}

/// A READ to be posted.
#[derive(Debug)]
pub struct Read {
    /// Comes back with its completion.
    pub id: u64,
    /// Where the bytes land; registered for landing in the queue pair's domain.
    pub slot: Slot,
    /// Which bytes of the slot.
    pub range: Range<usize>,
    /// The first byte at the peer's.
    pub address: u64,
    /// The peer's key.
    pub rkey: u32,
}

/// Why a READ was not posted.
#[derive(Debug)]
#[non_exhaustive]
pub enum PostError {
    /// As many are posted as the queue pair is deep: try again after a completion.
    Full,
    /// The queue pair was not led to the state in which it sends, or was taken down.
    NotConnected,
    /// The slot is not registered for landing in the queue pair's domain.
    NotRegistered,
    /// The slot can't be registered for landing.
    Unregistrable(Box<Error>),
    /// The range is not in the slot, or too long for a work request.
    OutOfRange,
    /// The device did not take it.
    Failed(io::Error),
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the queue pair is full"),
            Self::NotConnected => f.write_str("the queue pair is not connected"),
            Self::NotRegistered => f.write_str("the slot is not registered for landing here"),
            Self::Unregistrable(error) => write!(f, "{error}: {}", error.io()),
            Self::OutOfRange => f.write_str("the range is not in the slot"),
            Self::Failed(error) => write!(f, "the device did not take the work request: {error}"),
        }
    }
}

impl std::error::Error for PostError {}

/// A READ that is over, with its slot. The bytes are there only if the outcome says so.
#[derive(Debug)]
#[must_use]
pub struct Finished {
    /// As posted.
    pub id: u64,
    /// As posted.
    pub slot: Slot,
    /// What became of it.
    pub outcome: Result<Done, WorkError>,
}

/// See the module's first paragraph.
pub struct QueuePair {
    raw: NonNull<ibv_qp>,
    domain: Arc<Domain>,
    completions: Arc<CompletionQueue>,
    number: u32,
    depth: u32,
    /// Unlike numbers, never used again in this process: a completion that a destroyed queue pair
    /// left behind is not taken for one of its successor's.
    serial: u64,
    sends: bool,
    landing: Option<Arc<Landing>>,
    /// Index = low bits of a work request's name. `None` is free and listed in `free`.
    posted: Vec<Option<Posted>>,
    free: Vec<u16>,
    destroyed: bool,
}

struct Posted {
    id: u64,
    slot: Slot,
    bytes: usize,
}

// SAFETY: libibverbs may be called from any thread; calls that change it take `&mut`.
unsafe impl Send for QueuePair {}
// SAFETY: as above; by `&` only numbers are read.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// A queue pair in its reset state, on which `depth` READs may be posted.
    pub fn new(
        domain: &Arc<Domain>,
        completions: &Arc<CompletionQueue>,
        depth: u32,
    ) -> Result<Self, Error> {
        let context = domain.context();
        let failed = |error| context.error(format!("make a queue pair {depth} deep"), error);
        if !Arc::ptr_eq(context, completions.context()) {
            let why = "its completion queue is another device's";
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, why)));
        }
        if depth == 0 || depth > SEND_DEPTH_MAX {
            let why = format!("a depth is 1 to {SEND_DEPTH_MAX}");
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, why)));
        }
        if !completions.reserve(depth) {
            let why = "its completion queue has no room for it";
            return Err(failed(io::Error::new(io::ErrorKind::StorageFull, why)));
        }
        let made = create(domain, completions, depth);
        if made.is_err() {
            completions.release(depth, 0);
        }
        let raw = made.map_err(failed)?;
        static SERIAL_NEXT: AtomicU64 = AtomicU64::new(1);
        // SAFETY: just made; the member does not change.
        let number = unsafe { (*raw.as_ptr()).qp_num };
        let mut posted = Vec::new();
        posted.resize_with(depth as usize, || None);
        Ok(Self {
            raw,
            domain: Arc::clone(domain),
            completions: Arc::clone(completions),
            number,
            depth,
            serial: SERIAL_NEXT.fetch_add(1, Ordering::Relaxed),
            sends: false,
            landing: None,
            posted,
            free: (0..=u16::MAX).take(depth as usize).rev().collect(),
            destroyed: false,
        })
    }

    /// Its number, 24 bits, which the other end has to know.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Where its memory has to be registered.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// READs posted and not finished.
    pub fn in_flight(&self) -> usize {
        self.posted.len() - self.free.len()
    }

    /// READs that can be posted now.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// From now on slots need not be registered for landing: `landing`, which must be of the queue
    /// pair's domain, does so at their first use.
    pub fn land_in(&mut self, landing: &Arc<Landing>) {
        debug_assert!(Arc::ptr_eq(landing.domain(), &self.domain));
        self.landing = Some(Arc::clone(landing));
    }

    /// Reset to init.
    pub fn initialise(&mut self, with: &Initialise) -> Result<(), Error> {
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attributes.port_num = with.port;
        attributes.pkey_index = with.pkey_index;
        attributes.qp_access_flags = access(with.serves);
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        self.modify(attributes, mask, "initialise")
    }

    /// Init to "ready to receive".
    pub fn receive(&mut self, port: u8, with: &Receiving) -> Result<(), Error> {
        let destination = &with.destination;
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attributes.path_mtu = with.mtu.raw();
        attributes.dest_qp_num = destination.queue_pair;
        attributes.rq_psn = with.psn;
        attributes.max_dest_rd_atomic = with.reads_served;
        attributes.min_rnr_timer = with.rnr_timer;
        let address = &mut attributes.ah_attr;
        address.dlid = destination.lid;
        address.sl = destination.service_level;
        address.port_num = port;
        if let Some(route) = &destination.route {
            let index = u8::try_from(route.local_index).map_err(|_| {
                let why = format!("GID index {} does not fit verbs", route.local_index);
                let source = io::Error::new(io::ErrorKind::InvalidInput, why);
                self.error("make ready to receive", source)
            })?;
            address.is_global = 1;
            address.grh.dgid.raw = route.gid.0;
            address.grh.sgid_index = index;
            address.grh.hop_limit = route.hop_limit;
            address.grh.traffic_class = route.traffic_class;
            address.grh.flow_label = route.flow_label;
        }
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(attributes, mask, "make ready to receive")
    }

    /// "Ready to receive" to "ready to send": from here on READs may be posted.
    pub fn send(&mut self, with: &Sending) -> Result<(), Error> {
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attributes.sq_psn = with.psn;
        attributes.max_rd_atomic = with.reads_posted;
        attributes.timeout = with.timeout;
        attributes.retry_cnt = with.retry_count;
        attributes.rnr_retry = with.rnr_retry;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC
            | ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY;
        self.modify(attributes, mask, "make ready to send")?;
        self.sends = true;
        Ok(())
    }

    /// To the error state: what is posted comes back as [`super::WorkStatus::Flushed`], unless it
    /// was done before; the peer's READs are refused.
    pub fn fail(&mut self) -> Result<(), Error> {
        self.sends = false;
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        self.modify(attributes, ibv_qp_attr_mask::IBV_QP_STATE, "take down")
    }

    /// Posts a READ. The slot is the queue pair's until the READ is finished; on an error
    /// everything comes back.
    pub fn post_read(&mut self, mut read: Read) -> Result<(), (Read, PostError)> {
        let Read { slot, range, .. } = &mut read;
        let length = match u32::try_from(range.len()) {
            Ok(length) if range.start <= range.end && range.end <= slot.len() => length,
            _ => return Err((read, PostError::OutOfRange)),
        };
        if !self.sends {
            return Err((read, PostError::NotConnected));
        }
        let lkey = match (region::landing_key(slot, &self.domain), &self.landing) {
            (Some(lkey), _) => lkey,
            (None, Some(landing)) => match landing.key(slot) {
                Ok(lkey) => lkey,
                Err(error) => return Err((read, PostError::Unregistrable(Box::new(error)))),
            },
            (None, None) => return Err((read, PostError::NotRegistered)),
        };
        let Some(index) = self.free.pop() else {
            return Err((read, PostError::Full));
        };
        let mut piece = ibv_sge {
            addr: slot.as_ptr().addr() as u64 + range.start as u64,
            length,
            lkey,
        };
        let mut request = ibv_send_wr::zeroed();
        request.wr_id = self.work(index);
        request.sg_list = &raw mut piece;
        request.num_sge = 1;
        request.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
        request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        request.wr.rdma = rdma_t {
            remote_addr: read.address,
            rkey: read.rkey,
        };
        if let Err(error) = self.post(&mut request) {
            self.free.push(index);
            return Err((read, PostError::Failed(error)));
        }
        self.posted[usize::from(index)] = Some(Posted {
            id: read.id,
            bytes: read.range.len(),
            slot: read.slot,
        });
        Ok(())
    }

    /// What became of a READ, with its slot. `None`: the completion is not of this queue pair, but
    /// of a destroyed one that had the same number.
    pub fn finish(&mut self, completion: Completion) -> Option<Finished> {
        let index = u16::try_from(completion.work & 0xffff).unwrap_or(0);
        if completion.work != self.work(index) {
            return None;
        }
        let posted = self.posted.get_mut(usize::from(index))?.take()?;
        self.free.push(index);
        let Posted { id, slot, bytes } = posted;
        let outcome = match completion.failure {
            None => Ok(Done { bytes }),
            Some(failure) => Err(failure),
        };
        Some(Finished { id, slot, outcome })
    }

    /// Ends it and gives back the slots of READs whose completion was not seen, with their ids.
    /// What is in those slots is undefined.
    pub fn destroy(mut self) -> Vec<(u64, Slot)> {
        self.end();
        let posted = mem::take(&mut self.posted);
        let back = posted.into_iter().flatten();
        back.map(|posted| (posted.id, posted.slot)).collect()
    }

    /// What rdma_cm worked out for the state that `attributes` name.
    pub(super) fn apply(
        &mut self,
        (mut attributes, mask): (ibv_qp_attr, ibv_qp_attr_mask),
        serves: bool,
    ) -> Result<(), Error> {
        // The kernel proposes rights to write; they are not given.
        attributes.qp_access_flags = access(serves);
        let is_sending = attributes.qp_state == ibv_qp_state::IBV_QPS_RTS;
        self.modify(attributes, mask, "connect")?;
        self.sends |= is_sending;
        Ok(())
    }

    fn work(&self, index: u16) -> u64 {
        self.serial << 16 | u64::from(index)
    }

    fn post(&mut self, request: &mut ibv_send_wr) -> io::Result<()> {
        // SAFETY: the context is open, and its operations do not change.
        let post = unsafe { (*self.domain.context().raw().as_ptr()).ops.post_send };
        let post = post.ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        let mut refused = ptr::null_mut();
        // SAFETY: the queue pair is alive; the request and its piece are copied by the call. The
        // piece lies in a slot that the caller puts into `posted` when this succeeds, where it
        // stays until the completion or the queue pair's end, and nobody else refers to its bytes.
        let code = unsafe { post(self.raw.as_ptr(), request, &raw mut refused) };
        plain::check(code)
    }

    fn modify(
        &mut self,
        mut attributes: ibv_qp_attr,
        mask: ibv_qp_attr_mask,
        action: &str,
    ) -> Result<(), Error> {
        let modify = self.domain.context().verbs().ibv_modify_qp;
        // SAFETY: the queue pair is alive; the call reads the members that the mask names.
        let code = unsafe { modify(self.raw.as_ptr(), &raw mut attributes, mask.0.cast_signed()) };
        plain::check(code).map_err(|error| self.error(action, error))
    }

    fn error(&self, action: &str, source: io::Error) -> Error {
        let action = format!("{action} queue pair {}", self.number);
        self.domain.context().error(action, source)
    }

    fn end(&mut self) {
        if mem::replace(&mut self.destroyed, true) {
            return;
        }
        let context = self.domain.context();
        // SAFETY: made once, unmade once.
        let code = unsafe { (context.verbs().ibv_destroy_qp)(self.raw.as_ptr()) };
        let in_flight = u32::try_from(self.in_flight()).unwrap_or(self.depth);
        match plain::check(code) {
            Ok(()) => self.completions.release(self.depth, in_flight),
            Err(error) => {
                let device = context.name();
                tracing::error!(%device, %error, "a queue pair can't be destroyed; its memory is leaked");
                // The device may still write to the slots.
                mem::forget(mem::take(&mut self.posted));
            }
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // Before the fields, and so before the slots.
        self.end();
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.number)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

fn access(serves: bool) -> u32 {
    if serves {
        ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    } else {
        0
    }
}

fn create(
    domain: &Arc<Domain>,
    completions: &Arc<CompletionQueue>,
    depth: u32,
) -> io::Result<NonNull<ibv_qp>> {
    let mut attributes = ibv_qp_init_attr::zeroed();
    attributes.send_cq = completions.raw().as_ptr();
    attributes.recv_cq = completions.raw().as_ptr();
    attributes.qp_type = ibv_qp_type::IBV_QPT_RC;
    attributes.sq_sig_all = 1;
    attributes.cap.max_send_wr = depth;
    attributes.cap.max_send_sge = 1;
    // Nothing is ever received; not all drivers take 0.
    attributes.cap.max_recv_wr = 1;
    attributes.cap.max_recv_sge = 1;
    let make = domain.context().verbs().ibv_create_qp;
    // SAFETY: domain and queue are alive, and are of the same device, as the caller has checked.
    let raw = unsafe { make(domain.raw().as_ptr(), &raw mut attributes) };
    plain::non_null(raw)
}
