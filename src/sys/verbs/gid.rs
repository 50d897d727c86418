//! Addresses of ports: the GID table, with each entry's kind and network interface.
//!
//! Out: entries, read anew at each question. Neither rdma-sys nor its bindings have the table's
//! type (it hides behind inline functions), so it stands here, as <infiniband/verbs.h> has it.
#![allow(unsafe_code)] // One call that turns an interface's number into its name.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A 128-bit address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address that a RoCE v2 packet carries for it: IPv4 when mapped into IPv6.
    pub fn ip(self) -> IpAddr {
        let address = Ipv6Addr::from(self.0);
        address
            .to_ipv4_mapped()
            .map_or(IpAddr::V6(address), IpAddr::V4)
    }

    /// The GID of an IP address.
    pub fn from_ip(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self(Ipv4Addr::to_ipv6_mapped(&ip).octets()),
            IpAddr::V6(ip) => Self(ip.octets()),
        }
    }

    /// Whether it names one port: neither unset, nor a group, nor the loopback address.
    pub fn is_unicast(self) -> bool {
        let IpAddr::V6(address) = self.ip() else {
            let IpAddr::V4(address) = self.ip() else {
                return false;
            };
            return !address.is_unspecified()
                && !address.is_multicast()
                && !address.is_broadcast()
                && !address.is_loopback();
        };
        !address.is_unspecified() && !address.is_multicast() && !address.is_loopback()
    }

    /// Whether it is only good on its own link (`fe80::/10`).
    pub fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.ip(), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// How packets with this address look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1: an Ethernet frame of its own; does not pass routers.
    RoceV1,
    /// RoCE v2: UDP, port 4791.
    RoceV2,
    /// Something newer; the raw value.
    Other(u32),
}

/// An entry of a port's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// Its place, which a queue pair is told.
    pub index: u32,
    /// The port.
    pub port: u8,
    /// InfiniBand, RoCE v1 or v2.
    pub kind: GidKind,
    /// The network interface, by number; `None` on InfiniBand.
    pub interface: Option<u32>,
}

impl GidEntry {
    /// The name that its interface has now.
    pub fn interface_name(&self) -> Option<String> {
        let mut name = [0 as c_char; libc::IF_NAMESIZE];
        // SAFETY: the buffer has the size that the call asks for.
        let found = unsafe { libc::if_indextoname(self.interface?, name.as_mut_ptr()) };
        if found.is_null() {
            return None;
        }
        // SAFETY: the call has written a C string into the buffer, which is alive.
        let name = unsafe { CStr::from_ptr(found) };
        Some(name.to_string_lossy().into_owned())
    }

    pub(super) fn from_raw(raw: &RawGidEntry) -> Self {
        Self {
            gid: Gid(raw.gid),
            index: raw.gid_index,
            // Ports are numbered in one byte everywhere else.
            port: u8::try_from(raw.port_num).unwrap_or(0),
            kind: match raw.gid_type {
                0 => GidKind::InfiniBand,
                1 => GidKind::RoceV1,
                2 => GidKind::RoceV2,
                other => GidKind::Other(other),
            },
            interface: (raw.ndev_ifindex != 0).then_some(raw.ndev_ifindex),
        }
    }
}

/// `struct ibv_gid_entry`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct RawGidEntry {
    gid: [u8; 16],
    gid_index: u32,
    port_num: u32,
    gid_type: u32,
    ndev_ifindex: u32,
}

const _: () = assert!(size_of::<RawGidEntry>() == 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_both_ways() {
        for text in ["10.0.0.1", "2001:db8::1"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(Gid::from_ip(ip).ip(), ip);
            assert!(Gid::from_ip(ip).is_unicast());
        }
        for text in [
            "0.0.0.0",
            "224.0.0.1",
            "127.0.0.1",
            "255.255.255.255",
            "::",
            "ff02::1",
            "::1",
        ] {
            assert!(!Gid::from_ip(text.parse().unwrap()).is_unicast(), "{text}");
        }
        assert!(Gid::from_ip("fe80::1".parse().unwrap()).is_link_local());
        assert!(!Gid::from_ip("fec0::1".parse().unwrap()).is_link_local());
    }

    #[test]
    fn an_entry_of_a_kind_that_is_not_known_is_kept() {
        let raw = RawGidEntry {
            gid_type: 9,
            port_num: 1,
            gid_index: 3,
            ..RawGidEntry::default()
        };
        let entry = GidEntry::from_raw(&raw);
        assert_eq!(
            (entry.kind, entry.index, entry.port),
            (GidKind::Other(9), 3, 1)
        );
        assert_eq!(entry.interface_name(), None);
    }

    #[test]
    fn interfaces_have_names() {
        let entry = GidEntry {
            gid: Gid([0; 16]),
            index: 0,
            port: 1,
            kind: GidKind::RoceV2,
            interface: Some(1),
        };
        // Number 1 is the loopback interface in every network namespace.
        assert_eq!(entry.interface_name().as_deref(), Some("lo"));
    }
}
