//! A queue pair on its way into use: made, told to the peer, connected, tried.
//!
//! Nothing is posted before both ends are connected, and nothing but a probe before it has come
//! back right: what a peer claims about addresses is only believed once its memory was read there.
//! Calls block for as long as the device takes; they are made from workers.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::alarm::Alarm;
use super::cm::Line;
use super::connection::Connection;
use super::domain::{Domain, SessionDomains};
use super::facts::{LinkLayer, PortFacts};
use super::pace::Pace;
use super::words;
use crate::ids::RemoteKey;
use crate::lane::LANDING_SLOT_BYTES;
use crate::limits::READS_PER_CONNECTION_MAX;
use crate::memory::{Pool, Slot};
use crate::sys::verbs::{
    self, Batch, CompletionQueue, Finished, Gid, Initialise, Mtu, QueuePair, Receiving, Sending,
};

/// Bytes of a probe.
pub const PROBE_BYTES: usize = 32;
/// A probe's page: registered alone, so that its key opens nothing else.
const PROBE_SLOT_BYTES: usize = 4096;
/// Routers that packets may pass.
const HOP_LIMIT: u8 = 64;

/// The peer's end of a queue pair, as the peer told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePort {
    /// Its port's address.
    pub gid: [u8; 16],
    /// Its port's LID; 0 on Ethernet.
    pub lid: u16,
    /// The queue pair's number.
    pub qp_number: u32,
    /// The first packet that it sends.
    pub psn: u32,
}

/// How a queue pair is to be connected. Limits of READs are cut to what this end's device can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOptions {
    /// Payload bytes of a packet: the smaller of both ports' MTUs.
    pub mtu: u32,
    /// This end's address: its place in the port's table.
    pub gid_index: u8,
    /// DSCP and ECN bits, on RoCE v2 and between InfiniBand subnets.
    pub traffic_class: u8,
    /// InfiniBand's service level; RoCE's priority.
    pub service_level: u8,
    /// Retries before the connection is given up, at most 7. Some devices take 7 as "for ever".
    pub retry_cnt: u8,
    /// Time before a retry: 4.096 us times 2 to the power of this, at most 31.
    pub timeout: u8,
    /// Retries when the peer is not ready, at most 7, which is "for ever".
    pub rnr_retry: u8,
    /// The delay that the peer is told when this end is not ready: a code, at most 31.
    pub min_rnr_timer: u8,
    /// READs of ours under way at a time; at most what the peer serves.
    pub max_rd_atomic: u8,
    /// READs of the peer's served at a time; at most what the peer has under way.
    pub max_dest_rd_atomic: u8,
    /// Longest message that the peer's port serves, if it says so.
    pub peer_max_msg_bytes: Option<u64>,
}

/// A queue pair that is not connected.
pub struct Endpoint {
    wire: Wire,
    facts: PortFacts,
    depth: usize,
    psn: u32,
}

/// A queue pair that is connected at this end.
pub struct Connected {
    wire: Wire,
    depth: usize,
    read_bytes: usize,
    way: Way,
}

/// How a queue pair reaches the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Payload bytes of a packet.
    pub mtu: u32,
    /// This end's address: its place in the port's table. `None`: packets are not routed globally.
    pub gid_index: Option<u8>,
}

/// A queue pair with all that it needs; whatever it is, its end is this one's drop.
pub(super) struct Wire {
    /// Before the queue pair: see there.
    watched: Watched,
    /// Owns the slots that READs land in.
    pub(super) queue_pair: QueuePair,
    /// What rdma_cm has of the connection, if it made it. After the queue pair, which the other end
    /// must not take for connected when it is told of the end.
    line: Option<Line>,
    pub(super) completions: Arc<CompletionQueue>,
    /// Another descriptor of what tells of completions: the queue's own is closed with it, while a
    /// reactor may still name this one.
    pub(super) notices: OwnedFd,
    domain: Arc<Domain>,
}

/// That the device's events about a queue pair are heard.
struct Watched {
    domain: Arc<Domain>,
    queue_pair: u32,
    alarm: Alarm,
    pace: Arc<Pace>,
}

/// Bytes in memory of their own that the peer may READ, to be told to it some other way as well.
pub struct ProbeRegion {
    _slot: Slot,
    address: u64,
    key: RemoteKey,
}

impl Endpoint {
    /// A queue pair on this port, on which at most `depth` READs are under way: fewer, if the
    /// device can't have so many.
    pub fn new(domains: &SessionDomains, facts: &PortFacts, depth: usize) -> io::Result<Self> {
        let mut endpoint = Self::for_cm(domains, facts, depth)?;
        let how = Initialise {
            port: facts.port,
            pkey_index: facts.pkey_index,
            serves: true,
        };
        endpoint.wire.queue_pair.initialise(&how).map_err(words)?;
        Ok(endpoint)
    }

    /// The same to be connected by rdma_cm, which takes it from its very first state on.
    pub fn for_cm(domains: &SessionDomains, facts: &PortFacts, depth: usize) -> io::Result<Self> {
        let domain = domains.on(facts)?;
        let context = &domain.adapter.context;
        let limits = context.limits().map_err(words)?;
        let most = limits.work_requests_max.min(limits.completions_max);
        let depth = fitting_depth(depth, most);
        let completions = CompletionQueue::new(context, depth).map_err(words)?;
        let notices = completions.as_fd().try_clone_to_owned()?;
        let mut queue_pair =
            QueuePair::new(&domain.protection, &completions, depth).map_err(words)?;
        queue_pair.land_in(&domain.landing);
        let watched = Watched::new(&domain, queue_pair.number(), facts.port);
        let wire = Wire {
            watched,
            queue_pair,
            line: None,
            completions,
            notices,
            domain,
        };
        Ok(Self {
            wire,
            facts: facts.clone(),
            depth: depth as usize,
            psn: random_psn(),
        })
    }

    /// The queue pair's number.
    pub fn number(&self) -> u32 {
        self.wire.queue_pair.number()
    }

    /// The first packet that it sends: random, so that packets of an earlier connection are not
    /// taken for its own.
    pub fn psn(&self) -> u32 {
        self.psn
    }

    /// Connects it to the peer's: from here on it serves the peer's READs, and may READ once the
    /// peer's end is connected as well.
    pub fn connect(mut self, peer: &RemotePort, options: &LinkOptions) -> io::Result<Connected> {
        let queue_pair = &mut self.wire.queue_pair;
        let mtu = Mtu::from_bytes(options.mtu).ok_or_else(|| {
            let why = format!("{} bytes is not an MTU of RDMA", options.mtu);
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })?;
        let receiving = Receiving {
            destination: destination(&self.facts, peer, options)?,
            psn: peer.psn,
            mtu,
            reads_served: options.max_dest_rd_atomic.min(self.facts.max_qp_rd_atom),
            rnr_timer: options.min_rnr_timer.min(31),
        };
        queue_pair
            .receive(self.facts.port, &receiving)
            .map_err(words)?;
        let sending = Sending {
            psn: self.psn,
            reads_posted: options.max_rd_atomic.min(self.facts.max_qp_init_rd_atom),
            timeout: options.timeout.min(31),
            retry_count: options.retry_cnt.min(7),
            rnr_retry: options.rnr_retry.min(7),
        };
        queue_pair.send(&sending).map_err(words)?;
        let way = Way {
            mtu: options.mtu,
            gid_index: Some(options.gid_index),
        };
        Ok(self.connected(way, options))
    }

    fn connected(self, way: Way, options: &LinkOptions) -> Connected {
        let longest = [self.facts.max_msg_bytes, options.peer_max_msg_bytes];
        Connected {
            wire: self.wire,
            depth: self.depth,
            read_bytes: fitting_read_bytes(longest),
            way,
        }
    }

    /// rdma_cm has connected it.
    pub(super) fn connected_by(
        mut self,
        line: Line,
        found: &verbs::cm::Found,
        options: &LinkOptions,
    ) -> Connected {
        self.wire.line = Some(line);
        let way = Way {
            mtu: found.mtu.map_or(options.mtu, Mtu::bytes),
            gid_index: found.gid_index,
        };
        self.connected(way, options)
    }

    pub(super) fn facts(&self) -> &PortFacts {
        &self.facts
    }

    pub(super) fn queue_pair(&mut self) -> &mut QueuePair {
        &mut self.wire.queue_pair
    }

    pub(super) fn alarm(&self) -> &Alarm {
        self.wire.alarm()
    }
}

impl Connected {
    /// READs a probe of the peer's, which must be connected. Blocks until it is here or `deadline`.
    /// After an error the queue pair is of no use any more.
    pub fn probe(
        &mut self,
        address: u64,
        key: RemoteKey,
        deadline: Instant,
    ) -> io::Result<[u8; PROBE_BYTES]> {
        let slot = Pool::new(PROBE_SLOT_BYTES, 1)
            .take()
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let read = verbs::Read {
            id: 0,
            slot,
            range: 0..PROBE_BYTES,
            address,
            rkey: wire_key(key)?,
        };
        self.wire.post(read)?;
        let Finished { slot, outcome, .. } = self.wire.await_completion(deadline)?;
        outcome.map_err(io::Error::other)?;
        let mut bytes = [0; PROBE_BYTES];
        bytes.copy_from_slice(&slot[..PROBE_BYTES]);
        Ok(bytes)
    }

    /// How it reaches the other end.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Ready for a lane.
    pub fn into_connection(self) -> Connection {
        Connection::new(self.wire, self.depth, self.read_bytes)
    }
}

impl ProbeRegion {
    /// Lets the peer READ `nonce` until this is dropped.
    pub fn new(
        domains: &SessionDomains,
        facts: &PortFacts,
        nonce: [u8; PROBE_BYTES],
    ) -> io::Result<Self> {
        let domain = domains.on(facts)?;
        let mut slot = Pool::new(PROBE_SLOT_BYTES, 1)
            .take()
            .ok_or(io::ErrorKind::OutOfMemory)?;
        slot[..PROBE_BYTES].copy_from_slice(&nonce);
        let memory = verbs::region::register_serving(&mut slot, &domain.protection);
        let memory = memory.map_err(words)?;
        Ok(Self {
            _slot: slot,
            address: memory.address,
            key: RemoteKey(memory.rkey.into()),
        })
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// What a READ of it must carry.
    pub fn key(&self) -> RemoteKey {
        self.key
    }
}

impl Wire {
    pub(super) fn alarm(&self) -> &Alarm {
        &self.watched.alarm
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.watched.pace
    }

    pub(super) fn notices(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }

    /// Hands a READ to the adapter. After an error the connection is of no use any more.
    pub(super) fn post(&mut self, read: verbs::Read) -> io::Result<()> {
        self.queue_pair.post_read(read).map_err(|(_, error)| {
            let device = self.queue_pair.domain().context().name();
            // Which kind it is decides whether it is worth trying again.
            let kind = match &error {
                verbs::PostError::Unregistrable(error) => error.io().kind(),
                _ => io::ErrorKind::Other,
            };
            io::Error::new(kind, format!("{device}: {error}"))
        })
    }

    /// Registers a slot to land in.
    pub(super) fn prepare(&self, slot: &mut Slot) -> io::Result<()> {
        verbs::region::register_landing(slot, &self.domain.protection).map_err(words)
    }

    /// Destroys the queue pair, and with it all that the adapter could write to; what is left is a
    /// descriptor that a reactor may still name.
    pub(super) fn end(self) -> OwnedFd {
        let Self {
            watched,
            mut queue_pair,
            line,
            completions,
            notices,
            domain: _domain,
        } = self;
        drop(watched);
        if let Err(error) = queue_pair.fail() {
            // Destroying does without; it fails where the device has gone.
            tracing::debug!(%error, source = %error.io(), "a queue pair is not taken down first");
        }
        drop(queue_pair.destroy());
        drop(line);
        drop(completions);
        notices
    }

    /// The next completion.
    fn await_completion(&mut self, deadline: Instant) -> io::Result<Finished> {
        let mut batch = Batch::new(1);
        loop {
            // Armed before the look: what comes after the look makes the descriptor readable.
            self.completions.take_events().map_err(words)?;
            self.completions.arm().map_err(words)?;
            self.completions.poll(&mut batch).map_err(words)?;
            if let Some(completion) = batch.drain().next()
                && let Some(finished) = self.queue_pair.finish(completion)
            {
                return Ok(finished);
            }
            if let Some(reason) = self.watched.alarm.rung() {
                return Err(io::Error::other(reason));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = "the peer's probe can't be read: no answer";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            self.wait(left)?;
        }
    }

    /// Waits until completions are told of, or for a moment: an alarm makes no descriptor readable.
    fn wait(&self, most: Duration) -> io::Result<()> {
        let pause = most.min(Duration::from_millis(200));
        let pause = Timespec::try_from(pause).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&self.notices, PollFlags::IN)];
        match poll(&mut fds, Some(&pause)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Watched {
    fn new(domain: &Arc<Domain>, queue_pair: u32, port: u8) -> Self {
        let alarm = Alarm::default();
        domain.adapter.watch(queue_pair, port, alarm.clone());
        Self {
            domain: Arc::clone(domain),
            queue_pair,
            alarm,
            pace: domain.adapter.pace(port),
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.domain.adapter.unwatch(self.queue_pair);
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("queue_pair", &self.wire.queue_pair)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connected")
            .field("queue_pair", &self.wire.queue_pair)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ProbeRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key, which is a secret.
        f.debug_struct("ProbeRegion").finish_non_exhaustive()
    }
}

/// A key as verbs have it; a peer may say any number.
pub(super) fn wire_key(key: RemoteKey) -> io::Result<u32> {
    u32::try_from(key.0).map_err(|_| {
        let why = "the peer's key of a region is not one of RDMA";
        io::Error::new(io::ErrorKind::InvalidData, why)
    })
}

/// How deep a queue pair is made where `wanted` was asked for and a device takes `most`.
fn fitting_depth(wanted: usize, most: u32) -> u32 {
    let wanted = u32::try_from(wanted.min(READS_PER_CONNECTION_MAX)).unwrap_or(1);
    wanted.min(most).max(1)
}

/// Bytes of the longest READ where ports take messages of these lengths, if they say.
fn fitting_read_bytes(longest: [Option<u64>; 2]) -> usize {
    let longest = longest.into_iter().flatten().min();
    longest
        .and_then(|longest| usize::try_from(longest).ok())
        .unwrap_or(LANDING_SLOT_BYTES)
        .clamp(1, LANDING_SLOT_BYTES)
}

/// 24 bits.
fn random_psn() -> u32 {
    u32::from_ne_bytes(crate::sys::random_bytes()) & 0x00ff_ffff
}

/// Where packets go. InfiniBand needs global routing only between subnets, Ethernet always.
fn destination(
    facts: &PortFacts,
    peer: &RemotePort,
    options: &LinkOptions,
) -> io::Result<verbs::queue_pair::Destination> {
    let local = facts.gids.iter().find(|gid| gid.index == options.gid_index);
    let local = local.ok_or_else(|| {
        let (device, port, index) = (&facts.device, facts.port, options.gid_index);
        let why = format!("{device}: port {port} has no address with index {index}");
        io::Error::new(io::ErrorKind::AddrNotAvailable, why)
    })?;
    let same_subnet = local.gid[..8] == peer.gid[..8];
    let routed = facts.link_layer != LinkLayer::InfiniBand || !same_subnet;
    Ok(verbs::queue_pair::Destination {
        queue_pair: peer.qp_number,
        lid: peer.lid,
        service_level: options.service_level,
        route: routed.then_some(verbs::queue_pair::Route {
            gid: Gid(peer.gid),
            local_index: options.gid_index.into(),
            hop_limit: HOP_LIMIT,
            traffic_class: options.traffic_class,
            flow_label: 0,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::rdma::{GidFacts, GidKind};

    #[test]
    fn depths_fit_the_device_and_the_protocol() {
        assert_eq!(fitting_depth(16, 100), 16);
        assert_eq!(fitting_depth(16, 8), 8);
        assert_eq!(fitting_depth(0, 8), 1);
        assert_eq!(fitting_depth(16, 0), 1, "a device that does not say");
        let most = u32::try_from(READS_PER_CONNECTION_MAX).unwrap();
        assert_eq!(fitting_depth(usize::MAX, u32::MAX), most);
    }

    #[test]
    fn reads_are_as_long_as_both_ports_and_a_slot_allow() {
        assert_eq!(fitting_read_bytes([None, None]), LANDING_SLOT_BYTES);
        assert_eq!(
            fitting_read_bytes([Some(1 << 31), None]),
            LANDING_SLOT_BYTES
        );
        assert_eq!(fitting_read_bytes([Some(1 << 23), Some(1 << 16)]), 1 << 16);
        assert_eq!(fitting_read_bytes([None, Some(0)]), 1);
    }

    #[test]
    fn keys_of_rdma_have_32_bits() {
        assert_eq!(wire_key(RemoteKey(u64::from(u32::MAX))).unwrap(), u32::MAX);
        assert!(wire_key(RemoteKey(1 << 32)).is_err());
    }

    #[test]
    fn infiniband_is_routed_between_subnets_only() {
        let mut facts = PortFacts {
            device: "d".to_owned(),
            guid: 1,
            port: 1,
            link_layer: LinkLayer::InfiniBand,
            active: true,
            state: "active".to_owned(),
            lid: 4,
            pkey_index: 0,
            pkey: 0xffff,
            mtu: 4096,
            speed_mbps: 0,
            gids: vec![GidFacts {
                index: 3,
                gid: [1; 16],
                kind: GidKind::Ib,
                netdev: None,
            }],
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            max_msg_bytes: None,
            is_iwarp: false,
        };
        let mut peer = RemotePort {
            gid: [1; 16],
            lid: 5,
            qp_number: 6,
            psn: 7,
        };
        let mut options = LinkOptions {
            mtu: 4096,
            gid_index: 3,
            traffic_class: 105,
            service_level: 0,
            retry_cnt: 6,
            timeout: 14,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            peer_max_msg_bytes: None,
        };
        let local = destination(&facts, &peer, &options).unwrap();
        assert!(local.route.is_none());
        assert_eq!((local.lid, local.queue_pair), (5, 6));
        peer.gid = [2; 16];
        let far = destination(&facts, &peer, &options).unwrap().route.unwrap();
        assert_eq!((far.local_index, far.traffic_class), (3, 105));
        facts.link_layer = LinkLayer::Ethernet;
        peer.gid = [1; 16];
        assert!(
            destination(&facts, &peer, &options)
                .unwrap()
                .route
                .is_some()
        );
        options.gid_index = 4;
        assert!(destination(&facts, &peer, &options).is_err());
    }
}
