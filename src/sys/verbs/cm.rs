//! Connecting by rdma_cm: for routed InfiniBand, and where an administrator wants it.
//!
//! In: addresses, private data, queue pairs. Out: typed events on a descriptor. The queue pairs are
//! ordinary ones of ours, on our own contexts and domains, led through their states by what rdma_cm
//! works out ([`Identifier::initialise`], [`Identifier::ready`]): queue pairs that librdmacm makes
//! would give their peer the right to write.
//!
//! ```text
//!  active                                     passive
//!  resolve_address -> AddressResolved         listen
//!  resolve_route   -> RouteResolved
//!  initialise(qp); connect(qp)     ------>    ConnectRequest: initialise(qp), ready(qp), accept(qp)
//!  ConnectResponse: ready(qp), establish      Established
//! ```
//!
//! An event is copied and acknowledged before it is told. Nothing here knows what the private data
//! mean or who may connect.
#![allow(unsafe_code)] // Identifiers and events are C memory.

mod address;
mod event;

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_sys::{
    ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, rdma_cm_event, rdma_cm_event_type, rdma_cm_id,
    rdma_conn_param, rdma_event_channel, rdma_port_space,
};

use self::address::Address;
pub use self::event::{Event, Step};
use super::context::Mtu;
use super::library::{self, Cm};
use super::plain::{self, Plain};
use super::queue_pair::QueuePair;
use super::{Error, Unavailable};

/// Most private data that a side can send, in bytes: what is left in a connection request.
pub const PRIVATE_DATA_BYTES_MAX: usize = 56;
/// Most private data that an event of any kind carries, in bytes.
const EVENT_DATA_BYTES_MAX: usize = 255;

/// Why rdma_cm can't be had.
#[derive(Debug)]
pub enum OpenError {
    /// librdmacm is missing.
    Unavailable(Unavailable),
    /// The kernel's side is not there.
    Failed(Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => why.fmt(f),
            Self::Failed(error) => write!(f, "{error}: {}", error.io()),
        }
    }
}

impl std::error::Error for OpenError {}

/// How a connection is to be.
#[derive(Clone, Copy, Debug)]
pub struct Parameters<'data> {
    /// At most [`PRIVATE_DATA_BYTES_MAX`] bytes for the other end.
    pub private_data: &'data [u8],
    /// READs of the peer served at a time.
    pub reads_served: u8,
    /// READs under way at a time.
    pub reads_posted: u8,
    /// Retries before the connection is given up, at most 7.
    pub retry_count: u8,
    /// The same when the peer is not ready; 7 is for ever.
    pub rnr_retry: u8,
}

/// What the other end told in its request or response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its private data, and padding that InfiniBand adds.
    pub private_data: Vec<u8>,
    /// READs that this end may be asked to serve at a time.
    pub reads_served_max: u8,
    /// READs that this end may have under way at a time.
    pub reads_posted_max: u8,
    /// The number of its queue pair.
    pub queue_pair: u32,
}

/// What this end decides by itself, over what rdma_cm works out; `None` leaves it at that.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decided {
    /// Whether the peer may read.
    pub serves: bool,
    /// Payload bytes of a packet at most: rdma_cm does not ask the port of the end that accepts.
    pub mtu_max: Option<Mtu>,
    /// The delay that a peer is told when this end is not ready, as a code.
    pub rnr_timer: Option<u8>,
    /// Time before a retry: 4.096 us times 2 to the power of this.
    pub timeout: Option<u8>,
    /// DSCP and ECN bits of this end's packets, where they are routed globally.
    pub traffic_class: Option<u8>,
    /// InfiniBand's service level, or RoCE's priority.
    pub service_level: Option<u8>,
}

/// The way that rdma_cm has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Payload of a packet.
    pub mtu: Option<Mtu>,
    /// This end's address, by its place in the port's table, if packets are routed globally.
    pub gid_index: Option<u8>,
}

/// Where events are read.
pub struct EventChannel {
    raw: NonNull<rdma_event_channel>,
    cm: &'static Cm,
    /// Held while members of identifiers are read or written: reading an event fills in the device
    /// of the identifier that it speaks of.
    members: Mutex<()>,
}

// SAFETY: librdmacm may be called from any thread with the same channel; the descriptor is constant.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// A channel whose descriptor does not wait.
    pub fn new() -> Result<Arc<Self>, OpenError> {
        let cm = library::cm().map_err(OpenError::Unavailable)?;
        let failed = |error| {
            let error = Error::new("rdma_cm", "be opened", error)
                .with_hint("is the module rdma_ucm loaded, and /dev/infiniband/rdma_cm there?");
            OpenError::Failed(error)
        };
        // SAFETY: takes nothing.
        let raw = unsafe { (cm.rdma_create_event_channel)() };
        let raw = plain::non_null(raw).map_err(failed)?;
        let members = Mutex::new(());
        let channel = Arc::new(Self { raw, cm, members });
        plain::set_nonblocking(channel.as_fd()).map_err(failed)?;
        Ok(channel)
    }

    /// The next event; `None` when there is none yet. Identifiers of requests get the key 0 until
    /// [`Identifier::set_key`].
    pub fn next_event(self: &Arc<Self>) -> Result<Option<Event>, Error> {
        let _members = self.lock();
        let mut raw: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the channel is alive; the call writes a pointer.
        let code = unsafe { (self.cm.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut raw) };
        if let Err(error) = plain::check_errno(code) {
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(Error::new("rdma_cm", "tell its events", error)),
            };
        }
        let raw = plain::non_null(raw)
            .map_err(|error| Error::new("rdma_cm", "tell its events", error))?;
        let event = self.translate(raw);
        // SAFETY: got by the call above, and acknowledged once; nothing refers to it any more.
        unsafe { (self.cm.rdma_ack_cm_event)(raw.as_ptr()) };
        Ok(Some(event))
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With `members` held.
    fn translate(self: &Arc<Self>, raw: NonNull<rdma_cm_event>) -> Event {
        // SAFETY: an event that was not acknowledged yet; the borrow ends before it is.
        let event = unsafe { raw.as_ref() };
        let is_request = event.event == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
        let named = if is_request {
            event.listen_id
        } else {
            event.id
        };
        // SAFETY: destroying an identifier waits until its events are acknowledged, so it is alive.
        let id = unsafe { (*named).context }.addr() as u64;
        let failed = |step| Event::Failed {
            id,
            step,
            error: match event.status {
                // Reasons of the protocol are positive, error numbers of the kernel negative.
                status @ ..0 => io::Error::from_raw_os_error(status.saturating_neg()),
                reason => io::Error::other(format!("reason {reason}")),
            },
        };
        match event.event {
            rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED => Event::AddressResolved { id },
            rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED => Event::RouteResolved { id },
            rdma_cm_event_type::RDMA_CM_EVENT_ADDR_ERROR => failed(Step::Address),
            rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_ERROR => failed(Step::Route),
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_ERROR => failed(Step::Connect),
            rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE => failed(Step::Reach),
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST => {
                let told = told(event);
                match NonNull::new(event.id) {
                    Some(raw) => {
                        let channel = Arc::clone(self);
                        let request = Identifier { raw, channel };
                        request.write_key(0);
                        Event::ConnectRequest { id, request, told }
                    }
                    None => Event::Unknown {
                        id,
                        kind: event.event,
                    },
                }
            }
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_RESPONSE => Event::ConnectResponse {
                id,
                told: told(event),
            },
            rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED => Event::Established { id },
            rdma_cm_event_type::RDMA_CM_EVENT_REJECTED => Event::Rejected {
                id,
                reason: event.status,
                private_data: told(event).private_data,
            },
            rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED => Event::Disconnected { id },
            rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL => Event::DeviceRemoved { id },
            rdma_cm_event_type::RDMA_CM_EVENT_ADDR_CHANGE => Event::AddressChanged { id },
            rdma_cm_event_type::RDMA_CM_EVENT_TIMEWAIT_EXIT => Event::TimeWaitOver { id },
            kind => Event::Unknown { id, kind },
        }
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive, and the member does not change.
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the descriptor is the channel's, which lives as long as `self`.
        unsafe { plain::borrow(self, fd) }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: made once, unmade once; identifiers hold it, so none is left.
        unsafe { (self.cm.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").finish_non_exhaustive()
    }
}

/// One end of a connection in the making, or a listener.
pub struct Identifier {
    raw: NonNull<rdma_cm_id>,
    channel: Arc<EventChannel>,
}

// SAFETY: librdmacm may be called from any thread; what changes the identifier takes `&mut`.
unsafe impl Send for Identifier {}
// SAFETY: as above.
unsafe impl Sync for Identifier {}

impl Identifier {
    /// A new one, whose events carry `key`.
    pub fn new(channel: &Arc<EventChannel>, key: u64) -> Result<Self, Error> {
        let failed = |error| Error::new("rdma_cm", "make an identifier", error);
        let mut raw: *mut rdma_cm_id = ptr::null_mut();
        // SAFETY: the channel is alive; the call writes a pointer. The key is never followed.
        let code = unsafe {
            (channel.cm.rdma_create_id)(
                channel.raw.as_ptr(),
                &raw mut raw,
                key_pointer(key),
                rdma_port_space::RDMA_PS_TCP,
            )
        };
        plain::check_errno(code).map_err(failed)?;
        let raw = plain::non_null(raw).map_err(failed)?;
        Ok(Self {
            raw,
            channel: Arc::clone(channel),
        })
    }

    /// Has later events carry another key.
    pub fn set_key(&mut self, key: u64) {
        let _members = self.channel.lock();
        self.write_key(key);
    }

    /// Waits for requests to an address; port 0 takes a free one, which [`Self::local_port`] tells.
    pub fn listen(&mut self, address: SocketAddr, backlog: u16) -> Result<(), Error> {
        self.bind(address)?;
        // SAFETY: the identifier is alive.
        let code = unsafe { (self.cm().rdma_listen)(self.raw.as_ptr(), c_int::from(backlog)) };
        plain::check_errno(code).map_err(|error| self.error(format!("listen on {address}"), error))
    }

    /// Binds to a local address, and so to the device that has it.
    pub fn bind(&mut self, address: SocketAddr) -> Result<(), Error> {
        let mut raw = Address::new(address);
        // SAFETY: the identifier is alive; the call reads an address of the family that it names.
        let code = unsafe { (self.cm().rdma_bind_addr)(self.raw.as_ptr(), raw.as_mut_ptr()) };
        plain::check_errno(code).map_err(|error| self.error(format!("bind to {address}"), error))
    }

    /// Looks for the device that leads to `to`, or checks that `from`'s does. Hosts with several
    /// ports in one subnet have to say `from`; its port 0 takes a free one.
    pub fn resolve_address(
        &mut self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<(), Error> {
        let mut source = from.map(Address::new);
        let source = source.as_mut().map_or(ptr::null_mut(), Address::as_mut_ptr);
        let mut target = Address::new(to);
        // SAFETY: the identifier is alive; the call reads addresses of the families that they name.
        let code = unsafe {
            (self.cm().rdma_resolve_addr)(
                self.raw.as_ptr(),
                source,
                target.as_mut_ptr(),
                milliseconds(timeout),
            )
        };
        plain::check_errno(code).map_err(|error| self.error(format!("resolve {to}"), error))
    }

    /// Looks for the way to the address that was resolved.
    pub fn resolve_route(&mut self, timeout: Duration) -> Result<(), Error> {
        // SAFETY: the identifier is alive.
        let code =
            unsafe { (self.cm().rdma_resolve_route)(self.raw.as_ptr(), milliseconds(timeout)) };
        plain::check_errno(code).map_err(|error| self.error("find a route", error))
    }

    /// The name of the device that it is bound to, once an address was resolved or a request came:
    /// the queue pair has to be of this one.
    pub fn device_name(&self) -> Option<String> {
        let _members = self.channel.lock();
        // SAFETY: the identifier is alive; the lock keeps events from filling the member in.
        let context = NonNull::new(unsafe { (*self.raw.as_ptr()).verbs })?;
        // SAFETY: librdmacm keeps the contexts of devices open for good.
        let device = NonNull::new(unsafe { (*context.as_ptr()).device })?;
        // SAFETY: an open context keeps its device; names do not change.
        let device = unsafe { device.as_ref() };
        Some(plain::text(&device.name))
    }

    /// The port of that device.
    pub fn device_port(&self) -> u8 {
        let _members = self.channel.lock();
        // SAFETY: as in `device_name`.
        unsafe { (*self.raw.as_ptr()).port_num }
    }

    /// The port that it is bound to.
    pub fn local_port(&self) -> u16 {
        // SAFETY: the identifier is alive.
        u16::from_be(unsafe { (self.cm().rdma_get_src_port)(self.raw.as_ptr()) })
    }

    /// Leads a queue pair of this device out of its reset state. `serves`: whether the peer may read.
    pub fn initialise(&mut self, queue_pair: &mut QueuePair, serves: bool) -> Result<(), Error> {
        let attributes = self.attributes(queue_pair, ibv_qp_state::IBV_QPS_INIT)?;
        queue_pair.apply(attributes, serves)
    }

    /// Makes it ready to receive and to send: after a request, before [`Self::accept`]; or after
    /// the response, before [`Self::establish`].
    pub fn ready(&mut self, queue_pair: &mut QueuePair, decided: &Decided) -> Result<Found, Error> {
        let (mut receiving, mask) = self.attributes(queue_pair, ibv_qp_state::IBV_QPS_RTR)?;
        decided.apply_receiving(&mut receiving);
        let address = &receiving.ah_attr;
        let found = Found {
            mtu: Mtu::from_raw(receiving.path_mtu),
            gid_index: (address.is_global != 0).then_some(address.grh.sgid_index),
        };
        queue_pair.apply((receiving, mask), decided.serves)?;
        let (mut sending, mask) = self.attributes(queue_pair, ibv_qp_state::IBV_QPS_RTS)?;
        sending.timeout = decided.timeout.unwrap_or(sending.timeout);
        queue_pair.apply((sending, mask), decided.serves)?;
        Ok(found)
    }

    /// Asks the other end.
    pub fn connect(&mut self, queue_pair: &QueuePair, with: &Parameters<'_>) -> Result<(), Error> {
        let mut raw = self.parameters(queue_pair, with)?;
        // SAFETY: the identifier is alive; the call copies the parameters and the private data,
        // which `with` borrows.
        let code = unsafe { (self.cm().rdma_connect)(self.raw.as_ptr(), &raw mut raw) };
        plain::check_errno(code).map_err(|error| self.error("connect", error))
    }

    /// Agrees to a request.
    pub fn accept(&mut self, queue_pair: &QueuePair, with: &Parameters<'_>) -> Result<(), Error> {
        let mut raw = self.parameters(queue_pair, with)?;
        // SAFETY: as in `connect`.
        let code = unsafe { (self.cm().rdma_accept)(self.raw.as_ptr(), &raw mut raw) };
        plain::check_errno(code).map_err(|error| self.error("accept a connection", error))
    }

    /// Turns a request down.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), Error> {
        let len = self.data_len(private_data)?;
        let data = private_data.as_ptr().cast();
        // SAFETY: the identifier is alive; the call copies the data.
        let code = unsafe { (self.cm().rdma_reject)(self.raw.as_ptr(), data, len) };
        plain::check_errno(code).map_err(|error| self.error("reject a connection", error))
    }

    /// Tells the other end, whose response came, that the queue pair is ready.
    pub fn establish(&mut self) -> Result<(), Error> {
        // SAFETY: the identifier is alive.
        let code = unsafe { (self.cm().rdma_establish)(self.raw.as_ptr()) };
        plain::check_errno(code).map_err(|error| self.error("establish a connection", error))
    }

    /// Ends the connection, or agrees to its end after [`Event::Disconnected`]: without that the
    /// other end hears of it only after a timeout. The queue pair is its owner's to take down.
    pub fn disconnect(&mut self) -> Result<(), Error> {
        // SAFETY: the identifier is alive.
        let code = unsafe { (self.cm().rdma_disconnect)(self.raw.as_ptr()) };
        plain::check_errno(code).map_err(|error| self.error("disconnect", error))
    }

    /// What the queue pair has to be told to get into `state`, and which of it counts.
    fn attributes(
        &mut self,
        queue_pair: &QueuePair,
        state: ibv_qp_state::Type,
    ) -> Result<(ibv_qp_attr, ibv_qp_attr_mask), Error> {
        let ours = queue_pair.domain().context().name();
        if self.device_name().as_deref() != Some(ours) {
            let why = format!("the address leads to another device than {ours}");
            let source = io::Error::new(io::ErrorKind::InvalidInput, why);
            return Err(self.error("prepare a queue pair", source));
        }
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = state;
        let mut mask = 0;
        // SAFETY: the identifier is alive; the call fills the structure and the mask.
        let code = unsafe {
            (self.cm().rdma_init_qp_attr)(self.raw.as_ptr(), &raw mut attributes, &raw mut mask)
        };
        plain::check_errno(code).map_err(|error| self.error("prepare a queue pair", error))?;
        Ok((attributes, ibv_qp_attr_mask(mask.cast_unsigned())))
    }

    fn parameters(
        &self,
        queue_pair: &QueuePair,
        with: &Parameters<'_>,
    ) -> Result<rdma_conn_param, Error> {
        let mut raw = rdma_conn_param::zeroed();
        raw.private_data_len = self.data_len(with.private_data)?;
        raw.private_data = with.private_data.as_ptr().cast();
        raw.responder_resources = with.reads_served;
        raw.initiator_depth = with.reads_posted;
        raw.flow_control = 1;
        raw.retry_count = with.retry_count;
        raw.rnr_retry_count = with.rnr_retry;
        raw.qp_num = queue_pair.number();
        Ok(raw)
    }

    fn data_len(&self, private_data: &[u8]) -> Result<u8, Error> {
        match u8::try_from(private_data.len()) {
            Ok(len) if private_data.len() <= PRIVATE_DATA_BYTES_MAX => Ok(len),
            _ => {
                let why = format!("{} bytes are too many", private_data.len());
                let source = io::Error::new(io::ErrorKind::InvalidInput, why);
                Err(self.error("send private data", source))
            }
        }
    }

    /// With `members` held.
    fn write_key(&self, key: u64) {
        // SAFETY: the identifier is alive; librdmacm never looks at the member, and who else does
        // holds the lock.
        unsafe { (*self.raw.as_ptr()).context = key_pointer(key) };
    }

    fn cm(&self) -> &'static Cm {
        self.channel.cm
    }

    fn error(&self, action: impl Into<String>, source: io::Error) -> Error {
        let device = self.device_name();
        Error::new(device.as_deref().unwrap_or("rdma_cm"), action, source)
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // SAFETY: made once, unmade once. The queue pair is none of librdmacm's.
        let code = unsafe { (self.cm().rdma_destroy_id)(self.raw.as_ptr()) };
        if let Err(error) = plain::check_errno(code) {
            tracing::warn!(%error, "an identifier of rdma_cm can't be given back");
        }
    }
}

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identifier")
            .field("device", &self.device_name())
            .finish_non_exhaustive()
    }
}

/// A key in the guise of a pointer that nobody follows.
fn key_pointer(key: u64) -> *mut c_void {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    ptr::without_provenance_mut(key as usize)
}

fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX)
}

/// Of an event that carries what the other end told about the connection.
fn told(event: &rdma_cm_event) -> Told {
    // SAFETY: identifiers here are of the port space of connections, whose events have this member;
    // all bits are a value of it.
    let conn = unsafe { &event.param.conn };
    let len = usize::from(conn.private_data_len).min(EVENT_DATA_BYTES_MAX);
    let private_data = if conn.private_data.is_null() {
        Vec::new()
    } else {
        let data = conn.private_data.cast::<u8>();
        // SAFETY: so many bytes are there until the event is acknowledged; they are copied before.
        unsafe { std::slice::from_raw_parts(data, len) }.to_vec()
    };
    Told {
        private_data,
        // librdmacm tells the peer's numbers from this end's point of view.
        reads_served_max: conn.responder_resources,
        reads_posted_max: conn.initiator_depth,
        queue_pair: conn.qp_num,
    }
}

impl Decided {
    fn apply_receiving(&self, attributes: &mut ibv_qp_attr) {
        // The raw values are in the order of the bytes that they stand for.
        if let Some(mtu) = self.mtu_max {
            attributes.path_mtu = attributes.path_mtu.min(mtu.raw());
        }
        attributes.min_rnr_timer = self.rnr_timer.unwrap_or(attributes.min_rnr_timer);
        let address = &mut attributes.ah_attr;
        address.sl = self.service_level.unwrap_or(address.sl);
        if address.is_global != 0 {
            address.grh.traffic_class = self.traffic_class.unwrap_or(address.grh.traffic_class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_end_decides_goes_over_what_was_worked_out() {
        let seen = |decided: &Decided, is_global| {
            let mut attributes = ibv_qp_attr::zeroed();
            attributes.path_mtu = Mtu::B1024.raw();
            attributes.min_rnr_timer = 5;
            attributes.ah_attr.sl = 3;
            attributes.ah_attr.is_global = is_global;
            decided.apply_receiving(&mut attributes);
            let address = &attributes.ah_attr;
            let class = address.grh.traffic_class;
            let mtu = Mtu::from_raw(attributes.path_mtu).unwrap();
            (mtu, attributes.min_rnr_timer, address.sl, class)
        };
        assert_eq!(seen(&Decided::default(), 1), (Mtu::B1024, 5, 3, 0));
        let decided = Decided {
            mtu_max: Some(Mtu::B4096),
            rnr_timer: Some(12),
            traffic_class: Some(105),
            service_level: Some(4),
            ..Decided::default()
        };
        assert_eq!(seen(&decided, 0), (Mtu::B1024, 12, 4, 0));
        assert_eq!(seen(&decided, 1), (Mtu::B1024, 12, 4, 105));
        let decided = Decided {
            mtu_max: Some(Mtu::B512),
            ..decided
        };
        assert_eq!(seen(&decided, 1).0, Mtu::B512);
    }

    #[test]
    fn keys_go_through_a_pointer_unchanged() {
        for key in [0, 1, u64::MAX] {
            assert_eq!(key_pointer(key).addr() as u64, key);
        }
    }

    #[test]
    fn without_library_or_module_the_reason_is_told() {
        match EventChannel::new() {
            Ok(channel) => assert!(channel.next_event().unwrap().is_none()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
