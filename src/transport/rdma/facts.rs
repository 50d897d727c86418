//! What there is to know about a port before it is used.
//!
//! Everything is asked anew each time: links go down, addresses and partitions change. Nothing here
//! knows which port suits whom.

use crate::sys::verbs::{self, Context, Error, GidEntry, Limits, Mtu, Port, PortState};

/// Places of a partition table that are looked at; the first one is in use almost everywhere.
const PKEYS_LOOKED_AT: u16 = 16;

/// What carries the frames of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID, routed by GID.
    InfiniBand,
    /// Ethernet (RoCE, iWARP): addressed by GID.
    Ethernet,
    /// Something else.
    Other,
}

/// How a GID is carried on its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GidKind {
    /// InfiniBand, or whatever is not RoCE.
    Ib,
    /// RoCE in Ethernet frames of its own: not routed.
    RoceV1,
    /// RoCE in UDP: routed.
    RoceV2,
}

/// One address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidFacts {
    /// Its place in the port's table. Changes when addresses do.
    pub index: u8,
    /// The address: an IPv6 address, or an IPv4 one mapped into it, where it is RoCE v2.
    pub gid: [u8; 16],
    /// How it is carried.
    pub kind: GidKind,
    /// The network interface that it belongs to, if there is one.
    pub netdev: Option<String>,
}

/// One port as it was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// The device's name on this host. Names change between boots; nothing is matched by them.
    pub device: String,
    /// The device's number, unique in the world except for software devices.
    pub guid: u64,
    /// The port's number on its device, from 1.
    pub port: u8,
    /// What carries its frames.
    pub link_layer: LinkLayer,
    /// Whether it may be used.
    pub active: bool,
    /// State in words.
    pub state: String,
    /// InfiniBand's local address; 0 elsewhere.
    pub lid: u16,
    /// Which of its partition keys is used.
    pub pkey_index: u16,
    /// That key.
    pub pkey: u16,
    /// Payload bytes of its largest packet now.
    pub mtu: u32,
    /// Megabits per second, 0 if unknown.
    pub speed_mbps: u32,
    /// Its addresses, empty places left out.
    pub gids: Vec<GidFacts>,
    /// READs that a peer may have under way on one queue pair of the device.
    pub max_qp_rd_atom: u8,
    /// READs that one queue pair of the device may have under way.
    pub max_qp_init_rd_atom: u8,
    /// Longest message, if the device says so.
    pub max_msg_bytes: Option<u64>,
    /// iWARP: READs there need the right to write, which is never given.
    pub is_iwarp: bool,
}

/// Which devices are to be used. Empty: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RailPolicy {
    /// Names of devices (`mlx5_0`), or of a port of one (`mlx5_0:1`), or of a network interface
    /// that belongs to a port (`eth0`).
    pub devices: Vec<String>,
}

impl RailPolicy {
    pub(super) fn allows(&self, facts: &PortFacts) -> bool {
        let matches = |wanted: &String| {
            let port = wanted
                .strip_prefix(facts.device.as_str())
                .and_then(|rest| rest.strip_prefix(':'));
            *wanted == facts.device
                || port.is_some_and(|port| port == facts.port.to_string())
                || facts
                    .gids
                    .iter()
                    .any(|gid| gid.netdev.as_ref() == Some(wanted))
        };
        self.devices.is_empty() || self.devices.iter().any(matches)
    }
}

/// A port as it is now. `addresses` are those of all ports of its device.
pub(super) fn facts(
    context: &Context,
    limits: &Limits,
    number: u8,
    addresses: &[GidEntry],
) -> Result<PortFacts, Error> {
    let port = context.port(number)?;
    let (pkey_index, pkey) = partition(context, &port)?;
    Ok(PortFacts {
        device: context.name().to_owned(),
        guid: 0,
        port: number,
        link_layer: match port.link_layer {
            verbs::LinkLayer::InfiniBand => LinkLayer::InfiniBand,
            verbs::LinkLayer::Ethernet => LinkLayer::Ethernet,
            verbs::LinkLayer::Other(_) => LinkLayer::Other,
        },
        active: port.state == PortState::Active,
        state: format!("{:?}", port.state).to_lowercase(),
        lid: port.lid,
        pkey_index,
        pkey,
        mtu: port.mtu.map_or(0, Mtu::bytes),
        speed_mbps: port.mbit_per_s,
        gids: addresses
            .iter()
            .filter(|entry| entry.port == number)
            .filter_map(gid)
            .collect(),
        max_qp_rd_atom: small(limits.reads_served_max),
        max_qp_init_rd_atom: small(limits.reads_posted_max),
        max_msg_bytes: port.message_bytes_max.map(|bytes| u64::from(bytes.get())),
        is_iwarp: false,
    })
}

/// The first partition that the port belongs to.
fn partition(context: &Context, port: &Port) -> Result<(u16, u16), Error> {
    for index in 0..port.pkeys.min(PKEYS_LOOKED_AT) {
        let pkey = context.pkey(port.number, index)?;
        if pkey != 0 {
            return Ok((index, pkey));
        }
    }
    Ok((0, 0))
}

/// An address that a queue pair can be told; nothing if it is of another kind.
fn gid(entry: &GidEntry) -> Option<GidFacts> {
    Some(GidFacts {
        index: u8::try_from(entry.index).ok()?,
        gid: entry.gid.0,
        kind: match entry.kind {
            verbs::GidKind::InfiniBand => GidKind::Ib,
            verbs::GidKind::RoceV1 => GidKind::RoceV1,
            verbs::GidKind::RoceV2 => GidKind::RoceV2,
            verbs::GidKind::Other(_) => return None,
        },
        netdev: entry.interface_name(),
    })
}

fn small(count: u32) -> u8 {
    u8::try_from(count).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_name_devices_ports_and_interfaces() {
        let facts = PortFacts {
            device: "mlx5_0".to_owned(),
            guid: 1,
            port: 2,
            link_layer: LinkLayer::Ethernet,
            active: true,
            state: "active".to_owned(),
            lid: 0,
            pkey_index: 0,
            pkey: 0xffff,
            mtu: 4096,
            speed_mbps: 0,
            gids: vec![GidFacts {
                index: 0,
                gid: [1; 16],
                kind: GidKind::RoceV2,
                netdev: Some("eth0".to_owned()),
            }],
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            max_msg_bytes: None,
            is_iwarp: false,
        };
        let allows = |names: &[&str]| {
            let devices = names.iter().map(ToString::to_string).collect();
            RailPolicy { devices }.allows(&facts)
        };
        assert!(allows(&[]));
        assert!(allows(&["mlx5_1", "mlx5_0"]));
        assert!(allows(&["mlx5_0:2"]));
        assert!(allows(&["eth0"]));
        assert!(!allows(&["mlx5_0:1"]));
        assert!(!allows(&["mlx5_", "eth", "mlx5_01"]));
    }
}
