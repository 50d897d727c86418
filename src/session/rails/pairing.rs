//! Which port of this end goes with which port of the other: pure, no device is touched.
//!
//! In: this end's ports, and what the peer says of its own. Out: pairs, each with the addresses
//! that are used, or why a port has none. What a peer says is not believed further than it harms
//! only the peer: queue pairs go to addresses that are the peer's own, as far as the control
//! connection shows it, or that lie in a network which this end's port is in as well.

use std::fmt;
use std::net::IpAddr;

use super::network::{IpNetwork, address_of, is_link_local, is_unicast};
use crate::wire::message::{GidKind, LinkLayer, PathMtu, RailPort};

/// The highest LID of a single port (InfiniBand 1.2.1, 4.1.3): above are multicast groups.
const LID_UNICAST_MAX: u16 = 0xbfff;
/// The bit of a partition key that says full member.
const PKEY_FULL: u16 = 0x8000;

/// A port of this end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalPort {
    /// What its device is called here.
    pub(crate) device: String,
    /// What the peer is told.
    pub(crate) port: RailPort,
    /// What it is not told, one for each of the port's GIDs.
    pub(crate) gids: Vec<LocalGid>,
}

/// An address of this end's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalGid {
    /// Its index in the port's table.
    pub(crate) index: u8,
    /// The network that it is in, if that can be known.
    pub(crate) network: Option<IpNetwork>,
}

/// Where a peer's addresses may lie.
#[derive(Clone, Debug)]
pub(crate) struct PeerPolicy {
    /// The control connection's other end.
    pub(crate) peer: IpAddr,
    /// Further networks that the administrator names.
    pub(crate) networks: Vec<IpNetwork>,
    /// rdma_cm finds the way, and so between InfiniBand subnets as well.
    pub(crate) by_cm: bool,
}

impl PeerPolicy {
    /// Whether an address may be the peer's, wherever it is.
    pub(crate) fn allows(&self, address: IpAddr) -> bool {
        address == self.peer.to_canonical()
            || self.networks.iter().any(|known| known.contains(address))
    }
}

/// Two ports that go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// Index of this end's port.
    pub(crate) local: usize,
    /// Which of its GIDs.
    pub(crate) local_gid: usize,
    /// Index of the peer's port.
    pub(crate) remote: usize,
    /// Which of its GIDs.
    pub(crate) remote_gid: usize,
}

/// What came of pairing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pairing {
    /// In the order of the peer's ports.
    pub(crate) pairs: Vec<Pair>,
    /// Why ports of the peer have none.
    pub(crate) reasons: Vec<String>,
}

/// How good an address pair is; less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// RoCE v2 before v1: it is what networks are set up for today, and it can be routed.
    roce_v1: bool,
    /// An address without a router's help is often the default one of a port nobody set up.
    link_local: bool,
    /// Through routers.
    routed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fit {
    rank: Rank,
    local_gid: usize,
    remote_gid: usize,
}

/// Why two ports do not go together, in the order in which it is found out: who comes further is
/// nearer to working.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Misfit {
    NoPort,
    LinkLayer,
    NoReads,
    NoGid,
    Kind,
    Family,
    Partition,
    Lid,
    NotUnicast,
    Subnet,
    Elsewhere,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoPort => "the other end has no port for it",
            Self::LinkLayer => "one end is InfiniBand and the other Ethernet",
            Self::NoReads => "its device allows no READ under way",
            Self::NoGid => "it has no address (GID)",
            Self::Kind => "no kind of address (RoCE v1, RoCE v2) is common to both ends",
            Self::Family => "one end has only IPv4 addresses and the other only IPv6",
            Self::Partition => "the partition keys differ, or both are limited members",
            Self::Lid => "it has no LID of a single port: is a subnet manager running?",
            Self::NotUnicast => "its address is not that of a single port",
            Self::Subnet => "the ends are in different subnets",
            Self::Elsewhere => {
                "its address is neither the peer's nor in a network of this end's ports \
                 (rdma.peer_networks can allow others)"
            }
        })
    }
}

/// What both ends of a rail keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreement {
    pub(crate) mtu: PathMtu,
    /// READs that a queue pair of the one who asks may have under way.
    pub(crate) reads_posted: u8,
    /// READs of the other that it serves at once.
    pub(crate) reads_served: u8,
}

/// What `own` keeps to on a rail with `other`; the other end computes the same with the roles
/// exchanged.
pub(crate) fn agree(own: &RailPort, other: &RailPort) -> Agreement {
    Agreement {
        mtu: own.mtu.min(other.mtu),
        reads_posted: own.reads_posted_max.min(other.reads_served_max),
        reads_served: own.reads_served_max.min(other.reads_posted_max),
    }
}

/// Pairs the ports, each used once. `held` are pairs (this end's port, the peer's) that stay as they
/// are: their ports get no other partner.
pub(crate) fn pair(
    local: &[LocalPort],
    remote: &[RailPort],
    held: &[(usize, usize)],
    policy: &PeerPolicy,
) -> Pairing {
    let mut edges = Vec::with_capacity(remote.len());
    let mut misfits = Vec::with_capacity(remote.len());
    for (theirs, port) in remote.iter().enumerate() {
        let mut nearest = Misfit::NoPort;
        let mut of_port = Vec::new();
        for (ours, own) in local.iter().enumerate() {
            match fit(own, port, policy) {
                Ok(fit) => {
                    let speeds_differ = own.port.speed_mbps.abs_diff(port.speed_mbps);
                    let may = held.iter().all(|(a, b)| (*a == ours) == (*b == theirs));
                    if may {
                        of_port.push(Edge {
                            rank: fit.rank,
                            speeds_differ,
                            local: ours,
                            fit,
                        });
                    }
                }
                Err(misfit) => nearest = nearest.max(misfit),
            }
        }
        of_port.sort_by_key(|edge| (edge.rank, edge.speeds_differ, edge.local));
        edges.push(of_port);
        misfits.push(nearest);
    }
    let partners = matching(&edges, local.len());
    let mut pairing = Pairing::default();
    for (theirs, (of_port, misfit)) in edges.iter().zip(misfits).enumerate() {
        let partner = |edge: &&Edge| partners.get(edge.local) == Some(&Some(theirs));
        match of_port.iter().find(partner) {
            Some(edge) => pairing.pairs.push(Pair {
                local: edge.local,
                local_gid: edge.fit.local_gid,
                remote: theirs,
                remote_gid: edge.fit.remote_gid,
            }),
            None => {
                let misfit = if of_port.is_empty() {
                    misfit
                } else {
                    Misfit::NoPort
                };
                pairing
                    .reasons
                    .push(format!("{}: {misfit}", remote[theirs].label));
            }
        }
    }
    pairing
}

/// A port of this end that goes with one of the peer's.
struct Edge {
    rank: Rank,
    speeds_differ: u32,
    local: usize,
    fit: Fit,
}

/// For each of this end's ports the index of the peer's that it goes with. As many pairs as can be;
/// better ranks first, and worse ones only ever add pairs (Kuhn's augmenting paths).
fn matching(edges: &[Vec<Edge>], local: usize) -> Vec<Option<usize>> {
    let mut partners = vec![None; local];
    let mut ranks: Vec<_> = edges.iter().flatten().map(|edge| edge.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    for rank in ranks {
        for theirs in 0..edges.len() {
            if !partners.contains(&Some(theirs)) {
                let mut visited = vec![false; local];
                augment(edges, theirs, rank, &mut partners, &mut visited);
            }
        }
    }
    partners
}

fn augment(
    edges: &[Vec<Edge>],
    theirs: usize,
    rank: Rank,
    partners: &mut [Option<usize>],
    visited: &mut [bool],
) -> bool {
    let usable = || edges[theirs].iter().filter(|edge| edge.rank <= rank);
    // A free port first: nobody moves without need.
    if let Some(edge) = usable().find(|edge| partners[edge.local].is_none()) {
        partners[edge.local] = Some(theirs);
        return true;
    }
    // At most as deep as there are ports, of which limits name the maximum.
    for edge in usable() {
        if std::mem::replace(&mut visited[edge.local], true) {
            continue;
        }
        let Some(other) = partners[edge.local] else {
            continue;
        };
        if augment(edges, other, rank, partners, visited) {
            partners[edge.local] = Some(theirs);
            return true;
        }
    }
    false
}

/// Whether two ports go together, and over which addresses.
fn fit(local: &LocalPort, remote: &RailPort, policy: &PeerPolicy) -> Result<Fit, Misfit> {
    let own = &local.port;
    if own.link != remote.link {
        return Err(Misfit::LinkLayer);
    }
    let agreement = agree(own, remote);
    if agreement.reads_posted == 0 || agreement.reads_served == 0 {
        return Err(Misfit::NoReads);
    }
    if own.gids.is_empty() || remote.gids.is_empty() {
        return Err(Misfit::NoGid);
    }
    if own.link == LinkLayer::InfiniBand {
        fit_partition(own, remote)?;
        for lid in [own.lid, remote.lid] {
            if !(1..=LID_UNICAST_MAX).contains(&lid) {
                return Err(Misfit::Lid);
            }
        }
    }
    let mut best: Result<Fit, Misfit> = Err(Misfit::Kind);
    for (local_gid, (ours, about)) in own.gids.iter().zip(&local.gids).enumerate() {
        for (remote_gid, theirs) in remote.gids.iter().enumerate() {
            let rank = if ours.kind != theirs.kind {
                Err(Misfit::Kind)
            } else if ours.kind == GidKind::InfiniBand {
                rank_infiniband(own.link, &ours.gid, &theirs.gid, policy.by_cm)
            } else if own.link != LinkLayer::Ethernet {
                Err(Misfit::Kind)
            } else {
                let (ours_at, theirs_at) = (address_of(&ours.gid), address_of(&theirs.gid));
                rank_roce(ours.kind, ours_at, about.network, theirs_at, policy)
            };
            best = match (best, rank) {
                (Ok(fit), Ok(rank)) if fit.rank <= rank => Ok(fit),
                (_, Ok(rank)) => Ok(Fit {
                    rank,
                    local_gid,
                    remote_gid,
                }),
                (Ok(fit), Err(_)) => Ok(fit),
                (Err(one), Err(other)) => Err(one.max(other)),
            };
        }
    }
    best
}

/// Both ends must be in one partition, and one of them a full member of it.
fn fit_partition(own: &RailPort, remote: &RailPort) -> Result<(), Misfit> {
    let same = (own.pkey ^ remote.pkey) & !PKEY_FULL == 0;
    if same && (own.pkey | remote.pkey) & PKEY_FULL != 0 {
        Ok(())
    } else {
        Err(Misfit::Partition)
    }
}

fn rank_infiniband(
    link: LinkLayer,
    ours: &[u8; 16],
    theirs: &[u8; 16],
    by_cm: bool,
) -> Result<Rank, Misfit> {
    if link != LinkLayer::InfiniBand {
        return Err(Misfit::Kind);
    }
    let port_of = |gid: &[u8; 16]| u64::from_be_bytes(last_half(gid));
    if theirs[0] == 0xff || port_of(theirs) == 0 {
        return Err(Misfit::NotUnicast);
    }
    let routed = ours[..8] != theirs[..8];
    if routed && !by_cm {
        return Err(Misfit::Subnet);
    }
    Ok(Rank {
        roce_v1: false,
        link_local: false,
        routed,
    })
}

fn last_half(gid: &[u8; 16]) -> [u8; 8] {
    let mut half = [0; 8];
    half.copy_from_slice(&gid[8..]);
    half
}

fn rank_roce(
    kind: GidKind,
    ours: IpAddr,
    network: Option<IpNetwork>,
    theirs: IpAddr,
    policy: &PeerPolicy,
) -> Result<Rank, Misfit> {
    if ours.is_ipv4() != theirs.is_ipv4() {
        return Err(Misfit::Family);
    }
    let peer = policy.peer.to_canonical();
    // Loopback is a network of its own on every host: only the same host can be meant.
    let same_host = peer.is_loopback() && ours.is_loopback() && theirs.is_loopback();
    if !is_unicast(theirs) && !same_host {
        return Err(Misfit::NotUnicast);
    }
    let link_local = is_link_local(theirs);
    if link_local != is_link_local(ours) {
        return Err(Misfit::Subnet);
    }
    let near = link_local
        || same_host
        || ours == theirs
        || network.is_some_and(|network| network.contains(theirs));
    if !near && !policy.allows(theirs) {
        return Err(Misfit::Elsewhere);
    }
    let roce_v1 = kind == GidKind::RoceV1;
    if roce_v1 && !near {
        return Err(Misfit::Subnet);
    }
    Ok(Rank {
        roce_v1,
        link_local,
        routed: !near,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::message::PortGid;

    fn ethernet(label: &str, gids: &[(GidKind, &str)]) -> RailPort {
        let gids = gids.iter().map(|(kind, address)| PortGid {
            kind: *kind,
            gid: gid(address),
        });
        RailPort {
            label: label.to_owned(),
            guid: 1,
            number: 1,
            link: LinkLayer::Ethernet,
            lid: 0,
            pkey: 0xffff,
            mtu: PathMtu::B4096,
            speed_mbps: 100_000,
            reads_served_max: 16,
            reads_posted_max: 16,
            message_bytes_max: 0,
            queue_pairs: 2,
            gids: gids.collect(),
        }
    }

    fn infiniband(label: &str, lid: u16, pkey: u16, gid_text: &str) -> RailPort {
        RailPort {
            link: LinkLayer::InfiniBand,
            lid,
            pkey,
            ..ethernet(label, &[(GidKind::InfiniBand, gid_text)])
        }
    }

    fn gid(address: &str) -> [u8; 16] {
        match address.parse().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        }
    }

    /// This end's port, its addresses in /24 and /64 networks.
    fn local(port: RailPort) -> LocalPort {
        let gids = port.gids.iter().enumerate().map(|(at, gid)| {
            let address = address_of(&gid.gid);
            let prefix_len = if address.is_ipv4() { 24 } else { 64 };
            LocalGid {
                index: u8::try_from(at).unwrap(),
                network: IpNetwork::new(address, prefix_len),
            }
        });
        LocalPort {
            device: port.label.clone(),
            gids: gids.collect(),
            port,
        }
    }

    fn policy() -> PeerPolicy {
        PeerPolicy {
            peer: "192.0.2.1".parse().unwrap(),
            networks: Vec::new(),
            by_cm: false,
        }
    }

    const V1: GidKind = GidKind::RoceV1;
    const V2: GidKind = GidKind::RoceV2;

    fn one(ours: RailPort, theirs: RailPort, policy: &PeerPolicy) -> Result<Pair, String> {
        let mut found = pair(&[local(ours)], &[theirs], &[], policy);
        match found.pairs.pop() {
            Some(pair) => Ok(pair),
            None => Err(found.reasons.remove(0)),
        }
    }

    fn roce(
        ours: &[(GidKind, &str)],
        theirs: &[(GidKind, &str)],
    ) -> Result<(usize, usize), String> {
        one(
            ethernet("ours", ours),
            ethernet("theirs", theirs),
            &policy(),
        )
        .map(|pair| (pair.local_gid, pair.remote_gid))
    }

    #[test]
    fn routable_roce_v2_goes_before_all_others() {
        let ours = [
            (V1, "fe80::a"),
            (V2, "fe80::a"),
            (V1, "10.0.0.1"),
            (V2, "10.0.0.1"),
        ];
        let theirs = [(V2, "fe80::b"), (V1, "10.0.0.2"), (V2, "10.0.0.2")];
        assert_eq!(roce(&ours, &theirs), Ok((3, 2)));
        assert_eq!(
            roce(&ours, &theirs[..2]),
            Ok((1, 0)),
            "v2 link-local before v1"
        );
        assert_eq!(roce(&ours, &theirs[1..2]), Ok((2, 0)));
    }

    #[test]
    fn kinds_and_families_are_not_mixed() {
        let error = |ours, theirs| roce(&[ours], &[theirs]).unwrap_err();
        assert!(error((V1, "10.0.0.1"), (V2, "10.0.0.2")).contains("no kind of address"));
        assert!(error((V2, "10.0.0.1"), (V2, "fd00::2")).contains("only IPv6"));
        assert!(error((V2, "fe80::1"), (V2, "fd00::2")).contains("different subnets"));
        let ib = infiniband("ib", 1, 0xffff, "fe80::1");
        let eth = ethernet("eth", &[(V2, "10.0.0.1")]);
        let told = one(ib, eth, &policy()).unwrap_err();
        assert_eq!(told, "eth: one end is InfiniBand and the other Ethernet");
        assert!(
            roce(&[], &[(V2, "10.0.0.1")])
                .unwrap_err()
                .contains("no address")
        );
        // InfiniBand's kind of address on Ethernet is none.
        let kind = GidKind::InfiniBand;
        let told = roce(&[(kind, "fe80::1")], &[(kind, "fe80::2")]).unwrap_err();
        assert!(told.contains("no kind"), "{told}");
    }

    #[test]
    fn an_address_that_points_elsewhere_is_refused() {
        let ours = [(V2, "10.0.0.1")];
        let elsewhere = [(V2, "10.9.9.9")];
        assert!(
            roce(&ours, &elsewhere)
                .unwrap_err()
                .contains("neither the peer's")
        );
        let ports = || (ethernet("ours", &ours), ethernet("theirs", &elsewhere));
        let the_peer = PeerPolicy {
            peer: "::ffff:10.9.9.9".parse().unwrap(),
            networks: Vec::new(),
            by_cm: false,
        };
        let (own, their) = ports();
        assert!(one(own, their, &the_peer).is_ok());
        let allowed = PeerPolicy {
            networks: vec!["10.9.0.0/16".parse().unwrap()],
            ..policy()
        };
        let (own, their) = ports();
        assert!(one(own, their, &allowed).is_ok());
        // RoCE v1 is not routed, whoever the peer is.
        let own = ethernet("ours", &[(V1, "10.0.0.1")]);
        let their = ethernet("theirs", &[(V1, "10.9.9.9")]);
        assert!(
            one(own, their, &the_peer)
                .unwrap_err()
                .contains("different subnets")
        );
    }

    #[test]
    fn only_a_single_ports_address_is_taken() {
        for special in ["224.0.0.1", "255.255.255.255", "0.0.0.0", "127.0.0.1"] {
            let told = roce(&[(V2, "10.0.0.1")], &[(V2, special)]).unwrap_err();
            assert!(
                told.contains("not that of a single port"),
                "{special}: {told}"
            );
        }
        for special in ["ff02::1", "::"] {
            let told = roce(&[(V2, "fd00::1")], &[(V2, special)]).unwrap_err();
            assert!(
                told.contains("not that of a single port"),
                "{special}: {told}"
            );
        }
        // Unless both ends are this host.
        let same_host = PeerPolicy {
            peer: "::1".parse().unwrap(),
            networks: Vec::new(),
            by_cm: false,
        };
        let port = || ethernet("lo", &[(V2, "127.0.0.1")]);
        assert!(one(port(), port(), &same_host).is_ok());
        assert!(one(port(), port(), &policy()).is_err());
    }

    #[test]
    fn infiniband_pairs_by_subnet_lid_and_partition() {
        let ours = || infiniband("ours", 1, 0xffff, "fe80::1");
        let theirs = || infiniband("theirs", 2, 0x7fff, "fe80::2");
        let told = |ours, theirs| one(ours, theirs, &policy()).unwrap_err();
        assert!(
            one(ours(), theirs(), &policy()).is_ok(),
            "a limited member with a full one"
        );
        let limited = RailPort {
            pkey: 0x7fff,
            ..ours()
        };
        assert!(told(limited, theirs()).contains("partition"));
        let other = RailPort {
            pkey: 0x8001,
            ..theirs()
        };
        assert!(told(ours(), other).contains("partition"));
        for lid in [0, 0xc000, 0xffff] {
            let wrong = RailPort { lid, ..theirs() };
            assert!(told(ours(), wrong).contains("LID"));
            let wrong = RailPort { lid, ..ours() };
            assert!(told(wrong, theirs()).contains("LID"));
        }
        let far = infiniband("far", 2, 0xffff, "fec0::2");
        assert!(told(ours(), far.clone()).contains("different subnets"));
        let by_cm = PeerPolicy {
            by_cm: true,
            ..policy()
        };
        assert!(one(ours(), far, &by_cm).is_ok(), "rdma_cm finds the way");
        let group = infiniband("group", 2, 0xffff, "ff12::2");
        assert!(told(ours(), group).contains("not that of a single port"));
        // RoCE's kinds on InfiniBand are none.
        let strange = RailPort {
            gids: ethernet("x", &[(V2, "10.0.0.2")]).gids,
            ..theirs()
        };
        assert!(told(ours(), strange).contains("no kind"));
    }

    #[test]
    fn both_ends_compute_the_same_limits() {
        let client = RailPort {
            mtu: PathMtu::B1024,
            reads_served_max: 1,
            reads_posted_max: 128,
            ..ethernet("client", &[])
        };
        let server = ethernet("server", &[]);
        let (here, there) = (agree(&client, &server), agree(&server, &client));
        assert_eq!(
            (here.mtu, here.reads_posted, here.reads_served),
            (PathMtu::B1024, 16, 1)
        );
        assert_eq!(there.mtu, here.mtu);
        assert_eq!(there.reads_posted, here.reads_served);
        assert_eq!(there.reads_served, here.reads_posted);
        let none = RailPort {
            reads_served_max: 0,
            ..ethernet("none", &[(V2, "10.0.0.2")])
        };
        let told = one(ethernet("ours", &[(V2, "10.0.0.1")]), none, &policy()).unwrap_err();
        assert!(told.contains("allows no READ"), "{told}");
    }

    fn pairs(found: &Pairing) -> Vec<(usize, usize)> {
        found
            .pairs
            .iter()
            .map(|pair| (pair.remote, pair.local))
            .collect()
    }

    #[test]
    fn each_port_is_used_once_and_as_many_as_can_be() {
        let port = |label: &str, address: &str| ethernet(label, &[(V2, address)]);
        let two_networks = ethernet("both", &[(V2, "10.0.1.9"), (V2, "10.0.2.9")]);
        // The first of the peer's ports fits both of ours, the second only the first.
        let ours = [local(port("a", "10.0.1.1")), local(port("b", "10.0.2.1"))];
        let theirs = [two_networks, port("one", "10.0.1.8")];
        let found = pair(&ours, &theirs, &[], &policy());
        assert_eq!(pairs(&found), [(0, 1), (1, 0)]);
        assert!(found.reasons.is_empty());
        let more = [theirs.as_slice(), &[port("late", "10.0.2.7")]].concat();
        let found = pair(&ours, &more, &[], &policy());
        assert_eq!(found.pairs.len(), 2);
        assert_eq!(found.reasons, ["late: the other end has no port for it"]);
        assert!(pair(&[], &theirs, &[], &policy()).pairs.is_empty());
    }

    #[test]
    fn ports_of_one_network_pair_in_order_and_like_with_like() {
        let port = |at: u8, speed_mbps| RailPort {
            speed_mbps,
            ..ethernet("p", &[(V2, &format!("10.0.0.{at}"))])
        };
        let ours: Vec<_> = (1..=4).map(|at| local(port(at, 100_000))).collect();
        let theirs: Vec<_> = (11..=14).map(|at| port(at, 100_000)).collect();
        let found = pair(&ours, &theirs, &[], &policy());
        assert_eq!(pairs(&found), [(0, 0), (1, 1), (2, 2), (3, 3)]);
        let ours = [local(port(1, 25_000)), local(port(2, 200_000))];
        let theirs = [port(11, 200_000), port(12, 25_000)];
        assert_eq!(
            pairs(&pair(&ours, &theirs, &[], &policy())),
            [(0, 1), (1, 0)]
        );
    }

    #[test]
    fn better_addresses_are_not_given_up_for_worse() {
        // Only one of the peer's ports can be served; it is the one with the better address.
        let ours = [local(ethernet("a", &[(V2, "10.0.0.1"), (V1, "10.0.0.1")]))];
        let theirs = [
            ethernet("v1", &[(V1, "10.0.0.2")]),
            ethernet("v2", &[(V2, "10.0.0.3")]),
        ];
        assert_eq!(pairs(&pair(&ours, &theirs, &[], &policy())), [(1, 0)]);
    }

    #[test]
    fn held_pairs_stay_together() {
        let port = |at: u8| ethernet("p", &[(V2, &format!("10.0.0.{at}"))]);
        let ours: Vec<_> = (1..=3).map(|at| local(port(at))).collect();
        let theirs = [port(11), port(12)];
        let found = pair(&ours, &theirs, &[(2, 0)], &policy());
        assert_eq!(pairs(&found), [(0, 2), (1, 0)]);
        // A port that the peer does not offer now holds its partner all the same.
        let found = pair(&ours, &theirs, &[(0, usize::MAX)], &policy());
        assert_eq!(pairs(&found), [(0, 1), (1, 2)]);
    }
}
