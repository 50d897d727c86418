//! What the two ends say to each other to make rails: pairings of an RDMA port of the client with
//! one of the server, each with some queue pairs.
//!
//! ```text
//! client                       server
//!   RailOffer         ->                  its ports; a number for this attempt
//!                     <-   RailAnswer     which port with which, the server's queue pairs; or why not
//!   RailConnect       ->                  the client's queue pairs, which can send already
//!                     <-   RailReady      the server's can, too
//!   (each end READs the other's probe over every queue pair)
//!   RailProof        <->   RailProof      what the READ brought
//!   RailDown         <->   RailDown       this queue pair is gone, or came to nothing
//!   RailMemory       <->   RailMemory     what its sender offers can't be READ over rails, and why
//! ```
//!
//! Where the queue pairs are connected by rdma_cm, the answer has invitations: the client dials each of
//! the server's queue pairs, with its token, before it says RailConnect.
//!
//! A probe is some random bytes of fresh memory, so whoever can tell them has READ them through this
//! very queue pair; their digest goes ahead, so that the reader knows by itself whether it read
//! the right ones. A queue pair is in use at an end when its own READ was right and the other end's
//! proof was. Every message carries its attempt's number: what belongs to an earlier one is ignored.
//! Nothing here knows a device; the numbers are the peer's word until they were tried.

use std::fmt;

use crate::ids::RemoteKey;
use crate::limits::{PORT_GIDS_MAX, RAIL_PORTS_MAX, RAIL_QUEUE_PAIRS_MAX, RAILS_MAX};
use crate::wire::codec::{Reader, Writer};
use crate::wire::{WireError, tag};

/// Queue pair numbers and packet sequence numbers have 24 bits.
const NUMBER_MAX: u32 = (1 << 24) - 1;

/// Bytes of a probe.
pub const PROBE_BYTES: usize = 32;

/// Client: rails are wanted between these ports and the server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailOffer {
    /// Above all earlier attempts of the session.
    pub attempt: u32,
    /// The client's usable ports that lack queue pairs.
    pub ports: Vec<RailPort>,
    /// The client makes no data connections by tcp: what can't go by rails can't be had.
    pub rails_only: bool,
    /// How the client would have them connected; `None` from a release that knows one way only.
    pub connect: Option<RailDial>,
}

/// How queue pairs are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RailDial {
    /// By their numbers, unless the server wants it otherwise.
    Direct,
    /// By rdma_cm, or not at all.
    Cm,
}

/// An RDMA port as its owner describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailPort {
    /// What its owner calls it; for people only.
    pub label: String,
    /// The device's GUID; with the number it names the port within its owner.
    pub guid: u64,
    /// Its number on the device.
    pub number: u8,
    /// What it is plugged into.
    pub link: LinkLayer,
    /// Its address in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// The partition that it is used in.
    pub pkey: u16,
    /// Its active MTU.
    pub mtu: PathMtu,
    /// Its speed in Mbit/s; 0 if not known.
    pub speed_mbps: u32,
    /// READs of the peer that a queue pair serves at once.
    pub reads_served_max: u8,
    /// READs that a queue pair has under way at once.
    pub reads_posted_max: u8,
    /// The longest message in bytes; 0 if the device does not say.
    pub message_bytes_max: u32,
    /// Queue pairs that are wanted on a rail of this port.
    pub queue_pairs: u8,
    /// Its usable addresses, best first.
    pub gids: Vec<PortGid>,
}

/// What a port is plugged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
}

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortGid {
    /// How packets to it travel.
    pub kind: GidKind,
    /// The address.
    pub gid: [u8; 16],
}

/// How packets to an address travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// In an InfiniBand fabric.
    InfiniBand,
    /// As Ethernet frames.
    RoceV1,
    /// As UDP over IP.
    RoceV2,
}

/// The largest packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathMtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl PathMtu {
    const ALL: [Self; 5] = [
        Self::B256,
        Self::B512,
        Self::B1024,
        Self::B2048,
        Self::B4096,
    ];

    /// In bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Self::B256 => 256,
            Self::B512 => 512,
            Self::B1024 => 1024,
            Self::B2048 => 2048,
            Self::B4096 => 4096,
        }
    }

    /// The largest that is not above `bytes`.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        let fits = |mtu: &Self| mtu.bytes() <= bytes;
        Self::ALL.into_iter().rev().find(fits)
    }
}

/// Server: which ports go together, and its own half of each rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailAnswer {
    /// The offer's.
    pub attempt: u32,
    /// The rails that can be tried.
    pub rails: Vec<RailPair>,
    /// Why there are not more, a reason a port or one for all.
    pub reasons: Vec<String>,
    /// One of the reasons may pass by itself, so that a later offer may come to more.
    pub may_pass: bool,
}

/// A rail that can be tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailPair {
    /// The rail's number, 1 and up. Within a session it always means the same two ports.
    pub rail: u16,
    /// Which port of the offer.
    pub port: u8,
    /// Which of that port's addresses.
    pub gid: u8,
    /// The server's port, with the one address that is used.
    pub server: RailPort,
    /// The server's half.
    pub end: RailEnd,
    /// Where to dial; `None`: connected by their numbers.
    pub invitation: Option<Invitation>,
}

/// Where a server listens with rdma_cm for the queue pairs of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The IP address of its port; an IPv4 one is mapped.
    pub address: [u8; 16],
    /// The port in rdma_cm's space, which has nothing to do with tcp's.
    pub port: u16,
    /// What each of its queue pairs' requests has to carry.
    pub tokens: Vec<RailToken>,
}

/// Bytes of a token.
pub const RAIL_TOKEN_BYTES: usize = 32;

/// The secret that opens a listener once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RailToken(pub [u8; RAIL_TOKEN_BYTES]);

impl fmt::Debug for RailToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RailToken")
    }
}

/// One end's half of a rail in the making.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailEnd {
    /// What the peer is to READ.
    pub probe: Probe,
    /// Its queue pairs: the n-th of one end belongs to the n-th of the other.
    pub queue_pairs: Vec<QueuePair>,
}

/// Memory that holds [`PROBE_BYTES`] random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Its address.
    pub address: u64,
    /// Its key.
    pub key: RemoteKey,
    /// BLAKE3 of what it holds.
    pub digest: [u8; 32],
}

/// What a peer must know of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePair {
    /// Its number, 24 bits.
    pub number: u32,
    /// The sequence number of the first packet that it sends, 24 bits.
    pub psn: u32,
}

/// Client: its halves of the rails, connected to the server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailConnect {
    /// The offer's.
    pub attempt: u32,
    /// Rail and half; those that came to nothing here are left out.
    pub rails: Vec<(u16, RailEnd)>,
}

/// Server: these rails are connected at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailReady {
    /// The offer's.
    pub attempt: u32,
    /// The rails; those that came to nothing are left out.
    pub rails: Vec<u16>,
    /// Why rails were left out.
    pub reasons: Vec<String>,
}

/// Names one queue pair at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RailLink {
    /// The attempt that made it.
    pub attempt: u32,
    /// Its rail.
    pub rail: u16,
    /// Which queue pair of that rail and attempt, from 0.
    pub queue_pair: u8,
}

fn write_link(w: &mut Writer<'_>, link: &RailLink) {
    w.u32(link.attempt);
    w.u16(link.rail);
    w.u8(link.queue_pair);
}

fn read_link(r: &mut Reader<'_>) -> Result<RailLink, WireError> {
    Ok(RailLink {
        attempt: r.u32()?,
        rail: read_rail(r)?,
        queue_pair: read_queue_pair_index(r)?,
    })
}

fn read_queue_pair_index(r: &mut Reader<'_>) -> Result<u8, WireError> {
    let index = r.u8()?;
    r.require(usize::from(index) < RAIL_QUEUE_PAIRS_MAX, "queue pair")?;
    Ok(index)
}

/// Rail 0 is tcp and never negotiated.
fn read_rail(r: &mut Reader<'_>) -> Result<u16, WireError> {
    let rail = r.u16()?;
    r.require((1..RAILS_MAX).contains(&usize::from(rail)), "rail")?;
    Ok(rail)
}

pub(super) fn write_offer(w: &mut Writer<'_>, offer: &RailOffer) {
    w.u32(offer.attempt);
    w.short_list(&offer.ports, RAIL_PORTS_MAX, "ports", write_port);
    w.boolean(offer.rails_only);
    match offer.connect {
        None => {}
        Some(RailDial::Direct) => w.u8(tag::DIAL_DIRECT),
        Some(RailDial::Cm) => w.u8(tag::DIAL_CM),
    }
}

pub(super) fn read_offer(r: &mut Reader<'_>) -> Result<RailOffer, WireError> {
    Ok(RailOffer {
        attempt: r.u32()?,
        ports: r.short_list(RAIL_PORTS_MAX, PORT_BYTES_MIN, "ports", read_port)?,
        rails_only: r.boolean("rails only")?,
        connect: if r.is_at_end() {
            None
        } else {
            Some(match r.u8()? {
                tag::DIAL_DIRECT => RailDial::Direct,
                tag::DIAL_CM => RailDial::Cm,
                _ => return Err(r.invalid("way of connecting")),
            })
        },
    })
}

/// A port with an empty label and no address.
const PORT_BYTES_MIN: usize = 2 + 8 + 1 + 1 + 2 + 2 + 1 + 4 + 1 + 1 + 4 + 1 + 1;

fn write_port(w: &mut Writer<'_>, port: &RailPort) {
    w.text(&port.label);
    w.u64(port.guid);
    w.u8(port.number);
    w.u8(match port.link {
        LinkLayer::InfiniBand => tag::LINK_INFINIBAND,
        LinkLayer::Ethernet => tag::LINK_ETHERNET,
    });
    w.u16(port.lid);
    w.u16(port.pkey);
    w.u8(match port.mtu {
        PathMtu::B256 => 1,
        PathMtu::B512 => 2,
        PathMtu::B1024 => 3,
        PathMtu::B2048 => 4,
        PathMtu::B4096 => 5,
    });
    w.u32(port.speed_mbps);
    w.u8(port.reads_served_max);
    w.u8(port.reads_posted_max);
    w.u32(port.message_bytes_max);
    w.bound(
        port.queue_pairs.into(),
        RAIL_QUEUE_PAIRS_MAX,
        "queue pairs of a port",
    );
    w.u8(port.queue_pairs);
    w.short_list(&port.gids, PORT_GIDS_MAX, "gids", |w, gid| {
        w.u8(match gid.kind {
            GidKind::InfiniBand => tag::GID_INFINIBAND,
            GidKind::RoceV1 => tag::GID_ROCE_V1,
            GidKind::RoceV2 => tag::GID_ROCE_V2,
        });
        w.array(&gid.gid);
    });
}

fn read_port(r: &mut Reader<'_>) -> Result<RailPort, WireError> {
    let label = r.text("label")?;
    let guid = r.u64()?;
    let number = r.u8()?;
    let link = match r.u8()? {
        tag::LINK_INFINIBAND => LinkLayer::InfiniBand,
        tag::LINK_ETHERNET => LinkLayer::Ethernet,
        _ => return Err(r.invalid("link layer")),
    };
    let lid = r.u16()?;
    let pkey = r.u16()?;
    let mtu = usize::from(r.u8()?).checked_sub(1);
    let mtu = mtu.and_then(|at| PathMtu::ALL.get(at).copied());
    let mtu = mtu.ok_or_else(|| r.invalid("mtu"))?;
    let speed_mbps = r.u32()?;
    let reads_served_max = r.u8()?;
    let reads_posted_max = r.u8()?;
    let message_bytes_max = r.u32()?;
    let queue_pairs = r.u8()?;
    let wanted = 1..=RAIL_QUEUE_PAIRS_MAX;
    r.require(wanted.contains(&usize::from(queue_pairs)), "queue pairs")?;
    let gids = r.short_list(PORT_GIDS_MAX, 17, "gids", |r| {
        let kind = match r.u8()? {
            tag::GID_INFINIBAND => GidKind::InfiniBand,
            tag::GID_ROCE_V1 => GidKind::RoceV1,
            tag::GID_ROCE_V2 => GidKind::RoceV2,
            _ => return Err(r.invalid("gid's kind")),
        };
        Ok(PortGid {
            kind,
            gid: r.array()?,
        })
    })?;
    Ok(RailPort {
        label,
        guid,
        number,
        link,
        lid,
        pkey,
        mtu,
        speed_mbps,
        reads_served_max,
        reads_posted_max,
        message_bytes_max,
        queue_pairs,
        gids,
    })
}

pub(super) fn write_answer(w: &mut Writer<'_>, answer: &RailAnswer) {
    w.u32(answer.attempt);
    w.short_list(&answer.rails, RAILS_MAX - 1, "rails", |w, pair| {
        w.u16(pair.rail);
        w.u8(pair.port);
        w.u8(pair.gid);
        write_port(w, &pair.server);
        write_end(w, &pair.end);
    });
    write_reasons(w, &answer.reasons);
    w.boolean(answer.may_pass);
    let invited: Vec<_> = (0..)
        .zip(&answer.rails)
        .filter_map(|(at, pair)| Some((at, pair.invitation.as_ref()?)))
        .collect();
    w.short_list(&invited, RAILS_MAX - 1, "invitations", |w, (at, told)| {
        w.u8(*at);
        w.array(&told.address);
        w.u16(told.port);
        w.short_list(&told.tokens, RAIL_QUEUE_PAIRS_MAX, "tokens", |w, token| {
            w.array(&token.0);
        });
    });
}

pub(super) fn read_answer(r: &mut Reader<'_>) -> Result<RailAnswer, WireError> {
    let item_bytes_min = 4 + PORT_BYTES_MIN + END_BYTES_MIN;
    let mut answer = RailAnswer {
        attempt: r.u32()?,
        rails: r.short_list(RAILS_MAX - 1, item_bytes_min, "rails", |r| {
            let rail = read_rail(r)?;
            let port = r.u8()?;
            r.require(usize::from(port) < RAIL_PORTS_MAX, "port")?;
            let gid = r.u8()?;
            r.require(usize::from(gid) < PORT_GIDS_MAX, "gid")?;
            let server = read_port(r)?;
            r.require(server.gids.len() == 1, "server's gids")?;
            Ok(RailPair {
                rail,
                port,
                gid,
                server,
                end: read_end(r)?,
                invitation: None,
            })
        })?,
        reasons: read_reasons(r)?,
        may_pass: r.boolean("may pass")?,
    };
    if !r.is_at_end() {
        read_invitations(r, &mut answer.rails)?;
    }
    Ok(answer)
}

/// Index of the rail, address, port, and one token.
const INVITATION_BYTES_MIN: usize = 1 + 16 + 2 + 1 + RAIL_TOKEN_BYTES;

fn read_invitations(r: &mut Reader<'_>, rails: &mut [RailPair]) -> Result<(), WireError> {
    let invited = r.short_list(RAILS_MAX - 1, INVITATION_BYTES_MIN, "invitations", |r| {
        let at = usize::from(r.u8()?);
        let told = Invitation {
            address: r.array()?,
            port: r.u16()?,
            tokens: r.short_list(RAIL_QUEUE_PAIRS_MAX, RAIL_TOKEN_BYTES, "tokens", |r| {
                r.array().map(RailToken)
            })?,
        };
        Ok((at, told))
    })?;
    let mut least = 0;
    for (at, told) in invited {
        // In their order, so that there is one way to write them.
        let pair = rails.get_mut(at).filter(|_| at >= least);
        let pair = pair.ok_or_else(|| r.invalid("rail of an invitation"))?;
        let fits = told.tokens.len() == pair.end.queue_pairs.len();
        r.require(fits, "tokens")?;
        pair.invitation = Some(told);
        least = at + 1;
    }
    Ok(())
}

fn write_reasons(w: &mut Writer<'_>, reasons: &[String]) {
    w.short_list(reasons, RAIL_PORTS_MAX, "reasons", |w, reason| {
        w.text(reason)
    });
}

fn read_reasons(r: &mut Reader<'_>) -> Result<Vec<String>, WireError> {
    r.short_list(RAIL_PORTS_MAX, 2, "reasons", |r| r.text("reason"))
}

/// Probe, and one queue pair.
const END_BYTES_MIN: usize = 8 + 8 + 32 + 1 + 8;

fn write_end(w: &mut Writer<'_>, end: &RailEnd) {
    w.u64(end.probe.address);
    w.u64(end.probe.key.0);
    w.array(&end.probe.digest);
    w.short_list(
        &end.queue_pairs,
        RAIL_QUEUE_PAIRS_MAX,
        "queue pairs",
        |w, pair| {
            w.u32(pair.number & NUMBER_MAX);
            w.u32(pair.psn & NUMBER_MAX);
        },
    );
}

fn read_end(r: &mut Reader<'_>) -> Result<RailEnd, WireError> {
    let probe = Probe {
        address: r.u64()?,
        key: RemoteKey(r.u64()?),
        digest: r.array()?,
    };
    let queue_pairs = r.short_list(RAIL_QUEUE_PAIRS_MAX, 8, "queue pairs", |r| {
        let (number, psn) = (r.u32()?, r.u32()?);
        r.require(number <= NUMBER_MAX, "queue pair's number")?;
        r.require(psn <= NUMBER_MAX, "packet sequence number")?;
        Ok(QueuePair { number, psn })
    })?;
    r.require(!queue_pairs.is_empty(), "queue pairs")?;
    Ok(RailEnd { probe, queue_pairs })
}

pub(super) fn write_connect(w: &mut Writer<'_>, connect: &RailConnect) {
    w.u32(connect.attempt);
    w.short_list(&connect.rails, RAILS_MAX - 1, "rails", |w, (rail, end)| {
        w.u16(*rail);
        write_end(w, end);
    });
}

pub(super) fn read_connect(r: &mut Reader<'_>) -> Result<RailConnect, WireError> {
    Ok(RailConnect {
        attempt: r.u32()?,
        rails: r.short_list(RAILS_MAX - 1, 2 + END_BYTES_MIN, "rails", |r| {
            Ok((read_rail(r)?, read_end(r)?))
        })?,
    })
}

pub(super) fn write_ready(w: &mut Writer<'_>, ready: &RailReady) {
    w.u32(ready.attempt);
    w.short_list(&ready.rails, RAILS_MAX - 1, "rails", |w, rail| w.u16(*rail));
    write_reasons(w, &ready.reasons);
}

pub(super) fn read_ready(r: &mut Reader<'_>) -> Result<RailReady, WireError> {
    Ok(RailReady {
        attempt: r.u32()?,
        rails: r.short_list(RAILS_MAX - 1, 2, "rails", read_rail)?,
        reasons: read_reasons(r)?,
    })
}

pub(super) fn write_proof(w: &mut Writer<'_>, link: &RailLink, read: &[u8; PROBE_BYTES]) {
    write_link(w, link);
    w.array(read);
}

pub(super) fn read_proof(r: &mut Reader<'_>) -> Result<(RailLink, [u8; PROBE_BYTES]), WireError> {
    Ok((read_link(r)?, r.array()?))
}

pub(super) fn write_down(w: &mut Writer<'_>, link: &RailLink, reason: &str) {
    write_link(w, link);
    w.text(reason);
}

pub(super) fn read_down(r: &mut Reader<'_>) -> Result<(RailLink, String), WireError> {
    Ok((read_link(r)?, r.text("reason")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_is_the_largest_that_fits() {
        assert_eq!(PathMtu::from_bytes(255), None);
        assert_eq!(PathMtu::from_bytes(1500), Some(PathMtu::B1024));
        for mtu in PathMtu::ALL {
            assert_eq!(PathMtu::from_bytes(mtu.bytes()), Some(mtu));
        }
    }
}
