//! The traits of rails over this machine's RDMA adapters.
//!
//! In: what adapters tell of their ports, the options. Out: ports as peers are told of them, with
//! the reasons for those that can't be used; queue pairs, connected.

mod half;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use self::half::AdapterHalf;
use super::book::Book;
use super::by_cm::{self, Reception};
use super::fabric::{Fabric, LostSender, Owner, Survey, Way};
use super::network::{IpNetwork, address_of, is_link_local, is_unicast};
use super::pairing::{LocalGid, LocalPort, Misfit};
use super::trouble::Obstacle;
use crate::ids::TransferId;
use crate::limits::{PORT_GIDS_MAX, RAIL_PORTS_MAX};
use crate::options::RdmaOptions;
use crate::session::exposing::adapters::AdapterMemory;
use crate::session::exposing::rails::{MemoryPolicy, RdmaMemory};
use crate::session::peer::Peer;
use crate::sys::interfaces::{self, InterfaceAddress};
use crate::transport::rdma::{
    self, Connection, Endpoint, PortFacts, ProbeRegion, RailPolicy, SessionDomains,
};
use crate::wire::Message;
use crate::wire::message::{GidKind, LinkLayer, PROBE_BYTES, PathMtu, PortGid, RailLink, RailPort};

/// READs that a queue pair has under way: two of them keep a fast link busy with READs of a
/// megabyte, and more would only take memory from others.
const DEPTH: usize = 16;

/// What one session has of rails, for whoever exposes memory to its peer.
pub(crate) struct SessionRails {
    /// Where memory is registered.
    pub(crate) domains: Arc<SessionDomains>,
    /// Which rails there are.
    pub(crate) book: Arc<Mutex<Book>>,
    /// There is no tcp beside them.
    alone: AtomicBool,
}

impl SessionRails {
    pub(crate) fn new() -> Self {
        Self {
            domains: Arc::new(SessionDomains::new()),
            book: Arc::default(),
            alone: AtomicBool::new(false),
        }
    }

    /// Whether data goes by rails or not at all.
    pub(crate) fn are_alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed)
    }
}

/// From now on what `peer` offers is registered for the rails that it gets. `rails_only`: there is no
/// tcp beside them.
pub(crate) fn register_for_rails(peer: &Peer, memory: RdmaMemory, rails_only: bool) {
    let book = Arc::clone(&peer.rails.book);
    let devices = Box::new(move || {
        book.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .devices()
    });
    peer.rails.alone.store(rails_only, Ordering::Relaxed);
    let policy = MemoryPolicy { memory, rails_only };
    let domains = Arc::clone(&peer.rails.domains);
    let registering = AdapterMemory::new(domains, devices, policy);
    peer.memory().set_rails(Arc::new(registering));
}

/// This machine's adapters for one session.
pub(crate) struct SessionAdapters {
    domains: Arc<SessionDomains>,
    options: RdmaOptions,
    /// A server's that connects by rdma_cm.
    reception: Option<Arc<Reception>>,
}

impl SessionAdapters {
    pub(crate) fn new(
        rails: &SessionRails,
        options: RdmaOptions,
        reception: Option<Arc<Reception>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            domains: Arc::clone(&rails.domains),
            options,
            reception,
        })
    }
}

/// What the device tells of a port now.
pub(super) fn facts_of(port: &LocalPort) -> io::Result<PortFacts> {
    let adapters = rdma::adapters().map_err(io::Error::other)?;
    let is_it = |facts: &PortFacts| {
        facts.device == port.device
            && facts.port == port.port.number
            && facts.guid == port.port.guid
    };
    let ports = adapters.ports(&RailPolicy::default());
    let facts = ports.into_iter().find(is_it);
    facts.ok_or_else(|| io::Error::other("the port is gone"))
}

/// Looks at all ports of this machine. Blocks.
pub(crate) fn survey(options: &RdmaOptions) -> Survey {
    let mut survey = Survey::default();
    let adapters = match rdma::adapters() {
        Ok(adapters) => adapters,
        Err(reason) => {
            survey.reasons.push(reason);
            survey.has_devices = rdma::has_devices();
            return survey;
        }
    };
    let all = adapters.ports(&RailPolicy::default());
    survey.has_devices = !all.is_empty();
    if !options.enabled {
        survey
            .reasons
            .push("rdma is switched off by this end's options".to_owned());
        return survey;
    }
    let (guids, devices): (Vec<_>, Vec<_>) = options
        .devices
        .iter()
        .partition(|name| guid(name).is_some());
    let guids: Vec<_> = guids.into_iter().filter_map(|text| guid(text)).collect();
    let devices: Vec<String> = devices.into_iter().cloned().collect();
    let named = if devices.is_empty() {
        Vec::new()
    } else {
        adapters.ports(&RailPolicy { devices })
    };
    let is_wanted = |facts: &PortFacts| {
        let is_it = |other: &PortFacts| other.device == facts.device && other.port == facts.port;
        options.devices.is_empty() || guids.contains(&facts.guid) || named.iter().any(is_it)
    };
    let interfaces = interfaces::addresses().unwrap_or_else(|error| {
        tracing::warn!(%error, "the addresses of this host's interfaces can't be read");
        Vec::new()
    });
    for facts in all.iter().filter(|facts| is_wanted(facts)) {
        match usable(facts, options, &interfaces) {
            Ok(port) if survey.ports.len() < RAIL_PORTS_MAX => survey.ports.push(port),
            Ok(port) => {
                let label = &port.port.label;
                let reason = format!("{label}: only {RAIL_PORTS_MAX} ports are used");
                survey.reasons.push(reason);
            }
            Err(unusable) => {
                let reason = format!("{}: {}", label(facts), unusable.reason);
                survey.reasons.push(reason);
                survey.may_pass |= unusable.may_pass;
            }
        }
    }
    survey.reasons.extend(adapters.unusable());
    if survey.ports.is_empty() && survey.reasons.is_empty() {
        survey.reasons.push(if survey.has_devices {
            "no RDMA port here is named by the option `devices`".to_owned()
        } else {
            "this machine has no RDMA device".to_owned()
        });
    }
    survey
}

/// A GUID as the kernel writes it: `5254:00ff:fe12:3456`.
fn guid(text: &str) -> Option<u64> {
    let mut groups = text.split(':');
    let mut value = 0;
    for _ in 0..4 {
        let group = groups.next().filter(|group| group.len() == 4)?;
        value = value << 16 | u64::from(u16::from_str_radix(group, 16).ok()?);
    }
    groups.next().is_none().then_some(value)
}

fn label(facts: &PortFacts) -> String {
    format!("{}:{}", facts.device, facts.port)
}

/// The port as rails use it, or why they can't.
fn usable(
    facts: &PortFacts,
    options: &RdmaOptions,
    interfaces: &[InterfaceAddress],
) -> Result<LocalPort, Obstacle> {
    if facts.is_iwarp {
        let reason = "iWARP: what a READ brings must be writable for the peer, and no peer is \
                      given that right";
        return Err(Obstacle::for_good(reason));
    }
    let link = match facts.link_layer {
        rdma::LinkLayer::InfiniBand => LinkLayer::InfiniBand,
        rdma::LinkLayer::Ethernet => LinkLayer::Ethernet,
        rdma::LinkLayer::Other => {
            return Err(Obstacle::for_good("it is neither InfiniBand nor Ethernet"));
        }
    };
    if !facts.active {
        return Err(Obstacle::for_now(format!("its state is {}", facts.state)));
    }
    let mtu = PathMtu::from_bytes(facts.mtu).ok_or_else(|| {
        Obstacle::for_good(format!("its MTU of {} bytes is none of RDMA's", facts.mtu))
    })?;
    let mut gids: Vec<_> = facts
        .gids
        .iter()
        .filter(|gid| options.gid_index.is_none_or(|index| index == gid.index))
        .filter_map(|gid| {
            let kind = match (gid.kind, link) {
                (rdma::GidKind::Ib, LinkLayer::InfiniBand) => GidKind::InfiniBand,
                (rdma::GidKind::RoceV1, LinkLayer::Ethernet) => GidKind::RoceV1,
                (rdma::GidKind::RoceV2, LinkLayer::Ethernet) => GidKind::RoceV2,
                _ => return None,
            };
            let address = address_of(&gid.gid);
            let known = interfaces.iter().find(|known| known.address == address);
            let network = known.and_then(|known| IpNetwork::new(address, known.prefix_len));
            let rank = (kind != GidKind::RoceV2, is_link_local(address), gid.index);
            let own = LocalGid {
                index: gid.index,
                network,
            };
            let usable =
                kind == GidKind::InfiniBand || is_unicast(address) || address.is_loopback();
            usable.then_some((rank, PortGid { kind, gid: gid.gid }, own))
        })
        .collect();
    gids.sort_by_key(|(rank, _, _)| *rank);
    gids.truncate(PORT_GIDS_MAX);
    if gids.is_empty() {
        // An interface gets its address after its link.
        return Err(Obstacle::for_now(match options.gid_index {
            Some(index) => format!("it has no usable address (GID) at index {index}"),
            None => "it has no usable address (GID): has its interface an IP address?".to_owned(),
        }));
    }
    let (told, own) = gids.into_iter().map(|(_, told, own)| (told, own)).unzip();
    Ok(LocalPort {
        device: facts.device.clone(),
        port: RailPort {
            label: label(facts),
            guid: facts.guid,
            number: facts.port,
            link,
            lid: facts.lid,
            pkey: facts.pkey,
            mtu,
            speed_mbps: facts.speed_mbps,
            reads_served_max: facts.max_qp_rd_atom,
            reads_posted_max: facts.max_qp_init_rd_atom,
            message_bytes_max: facts
                .max_msg_bytes
                .map_or(0, |max| u32::try_from(max).unwrap_or(u32::MAX)),
            queue_pairs: options.queue_pairs,
            gids: told,
        },
        gids: own,
    })
}

impl Fabric for SessionAdapters {
    type Half = AdapterHalf;

    fn survey(&self) -> Survey {
        survey(&self.options)
    }

    fn open(
        &self,
        port: &LocalPort,
        gid: usize,
        probe: [u8; PROBE_BYTES],
        queue_pairs: usize,
        way: Way,
    ) -> io::Result<AdapterHalf> {
        let facts = facts_of(port)?;
        let make = |_| match way {
            Way::Direct => Endpoint::new(&self.domains, &facts, DEPTH),
            Way::Await(_) | Way::Dial { .. } => Endpoint::for_cm(&self.domains, &facts, DEPTH),
        };
        let endpoints = (0..queue_pairs).map(make).collect::<io::Result<Vec<_>>>()?;
        let probe = ProbeRegion::new(&self.domains, &facts, probe)?;
        let mut half = AdapterHalf::new(endpoints, probe, facts, self.options.clone());
        match way {
            Way::Direct => {}
            Way::Await(path) => {
                let own = by_cm::own_address(port, &half.facts, gid, None)?;
                let reception = self.reception.as_ref();
                let reception = reception
                    .ok_or_else(|| io::Error::other("nobody listens with rdma_cm here"))?;
                half.invite(reception, own.address, &path)?;
            }
            Way::Dial {
                invitation,
                may_be_far,
            } => {
                let to = address_of(&invitation.address);
                let own = by_cm::own_address(port, &half.facts, gid, Some(to))?;
                if !own.is_near && !may_be_far {
                    let why = format!("{to}: {}", Misfit::Elsewhere);
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
                }
                half.dials = by_cm::dials(&invitation, own.address);
            }
        }
        Ok(half)
    }
}

impl Owner<Connection> for Peer {
    fn say(&self, message: Message) {
        Self::say(self, TransferId::NONE, message);
    }

    fn attach(self: &Arc<Self>, link: RailLink, connection: Connection, lost: LostSender) -> bool {
        self.attach_rail(link, connection, lost)
    }

    fn detach(&self, link: RailLink) {
        self.detach_rail(link);
    }

    fn gave_up(&self, reason: &str) {
        self.without_rails(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::rdma::GidFacts;

    fn facts() -> PortFacts {
        let gid = |index, kind, address: &str| GidFacts {
            index,
            kind,
            gid: address.parse::<std::net::Ipv6Addr>().unwrap().octets(),
            netdev: Some("eth0".to_owned()),
        };
        PortFacts {
            device: "rxe0".to_owned(),
            guid: 5,
            port: 1,
            link_layer: rdma::LinkLayer::Ethernet,
            active: true,
            state: "active".to_owned(),
            lid: 0,
            pkey_index: 0,
            pkey: 0xffff,
            mtu: 1024,
            speed_mbps: 0,
            gids: vec![
                gid(0, rdma::GidKind::RoceV2, "fe80::1"),
                gid(1, rdma::GidKind::RoceV1, "::ffff:10.0.0.1"),
                gid(2, rdma::GidKind::RoceV2, "ff02::1"),
                gid(3, rdma::GidKind::RoceV2, "::ffff:10.0.0.1"),
                gid(4, rdma::GidKind::Ib, "fe80::2"),
            ],
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            max_msg_bytes: None,
            is_iwarp: false,
        }
    }

    fn interfaces() -> Vec<InterfaceAddress> {
        vec![InterfaceAddress {
            interface: "eth0".to_owned(),
            address: "10.0.0.1".parse().unwrap(),
            prefix_len: 24,
        }]
    }

    #[test]
    fn a_ports_addresses_come_best_first_with_their_networks() {
        let port = usable(&facts(), &RdmaOptions::default(), &interfaces()).unwrap();
        let indices: Vec<_> = port.gids.iter().map(|gid| gid.index).collect();
        assert_eq!(indices, [3, 0, 1]);
        assert_eq!(port.gids[0].network, Some("10.0.0.0/24".parse().unwrap()));
        assert_eq!(port.port.gids.len(), 3);
        assert_eq!(
            (port.port.label.as_str(), port.port.queue_pairs),
            ("rxe0:1", 2)
        );
        let only = |index| RdmaOptions {
            gid_index: Some(index),
            ..RdmaOptions::default()
        };
        let port = usable(&facts(), &only(1), &[]).unwrap();
        assert_eq!((port.gids.len(), port.gids[0].network), (1, None));
        let unusable = usable(&facts(), &only(9), &[]).unwrap_err();
        assert!(unusable.reason.contains("index 9") && unusable.may_pass);
    }

    #[test]
    fn ports_that_can_not_be_used_say_why() {
        let mut iwarp = facts();
        iwarp.is_iwarp = true;
        let mut down = facts();
        down.active = false;
        down.state = "down".to_owned();
        let mut bare = facts();
        bare.gids.clear();
        let mut strange = facts();
        strange.link_layer = rdma::LinkLayer::Other;
        let mut tiny = facts();
        tiny.mtu = 100;
        for (facts, part, may_pass) in [
            (iwarp, "iWARP", false),
            (down, "its state is down", true),
            (bare, "has its interface an IP address?", true),
            (strange, "neither InfiniBand", false),
            (tiny, "MTU of 100 bytes", false),
        ] {
            let unusable = usable(&facts, &RdmaOptions::default(), &[]).unwrap_err();
            assert!(unusable.reason.contains(part), "{unusable:?}");
            assert_eq!(unusable.may_pass, may_pass, "{unusable:?}");
        }
    }

    #[test]
    fn guids_are_told_from_names() {
        assert_eq!(guid("5254:00ff:fe12:3456"), Some(0x5254_00ff_fe12_3456));
        for name in [
            "mlx5_0",
            "mlx5_0:1",
            "5254:00ff:fe12",
            "5254:00ff:fe12:3456:0",
            ":::",
            "g254:00ff:fe12:3456",
        ] {
            assert_eq!(guid(name), None, "{name}");
        }
    }
}
