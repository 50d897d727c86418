//! IP networks and the IP addresses in GIDs. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// An IP network: `192.168.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpNetwork {
    address: IpAddr,
    prefix_len: u8,
}

impl IpNetwork {
    /// The network that `address` is in when its first `prefix_len` bits name it; nothing if it has
    /// fewer bits.
    pub fn new(address: IpAddr, prefix_len: u8) -> Option<Self> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        (prefix_len <= bits).then(|| Self {
            address: masked(address, prefix_len),
            prefix_len,
        })
    }

    /// Reads a network, or one address as the network that has it alone.
    pub(crate) fn or_address(text: &str) -> Result<Self, String> {
        match text.parse::<IpAddr>() {
            Ok(address) => {
                let bits = if address.is_ipv4() { 32 } else { 128 };
                Self::new(address, bits).ok_or_else(|| format!("`{text}` is no address"))
            }
            Err(_) => text.parse(),
        }
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && masked(address, self.prefix_len) == self.address
    }
}

fn masked(address: IpAddr, prefix_len: u8) -> IpAddr {
    let len = u32::from(prefix_len);
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
            std::net::Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

impl FromStr for IpNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let advice = || {
            format!(
                "`{}` is no network: write it as 192.168.0.0/16 or fd00::/8",
                text.escape_debug()
            )
        };
        let (address, prefix_len) = text.split_once('/').ok_or_else(advice)?;
        let address = address.parse().map_err(|_| advice())?;
        let prefix_len = prefix_len.parse().map_err(|_| advice())?;
        let network = Self::new(address, prefix_len).ok_or_else(advice)?;
        if network.address == address {
            return Ok(network);
        }
        Err(format!(
            "`{text}` has bits behind its prefix: write {network}"
        ))
    }
}

/// The IP address that a GID of RoCE stands for.
pub(crate) fn address_of(gid: &[u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(*gid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// Whether an address is one host's.
pub(crate) fn is_unicast(address: IpAddr) -> bool {
    let special = address.is_unspecified() || address.is_multicast() || address.is_loopback();
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !special && !broadcast
}

/// Whether an address means something on its own link only.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn networks_hold_what_begins_alike() {
        let network: IpNetwork = "192.168.4.0/22".parse().unwrap();
        assert!(network.contains(ip("192.168.7.255")));
        assert!(!network.contains(ip("192.168.8.0")));
        assert!(!network.contains(ip("::ffff:192.168.4.1")));
        let all: IpNetwork = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains(ip("255.1.2.3")) && !all.contains(ip("::1")));
        let one = IpNetwork::new(ip("fe80::1"), 128).unwrap();
        assert!(one.contains(ip("fe80::1")) && !one.contains(ip("fe80::2")));
        let all: IpNetwork = "::/0".parse().unwrap();
        assert!(all.contains(ip("fe80::2")));
    }

    #[test]
    fn what_is_no_network_is_told_with_advice() {
        for text in [
            "",
            "10.0.0.1",
            "10.0.0.0/33",
            "x/8",
            "::/129",
            "10.0.0.0/-1",
        ] {
            let error = text.parse::<IpNetwork>().unwrap_err();
            assert!(error.contains("write it as"), "{error}");
        }
        let error = "10.1.2.3/8".parse::<IpNetwork>().unwrap_err();
        assert!(error.ends_with("write 10.0.0.0/8"), "{error}");
    }

    #[test]
    fn gids_are_addresses() {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(address_of(&gid), ip("10.0.0.1"));
        assert!(is_unicast(ip("10.0.0.1")) && is_unicast(ip("fe80::1")));
        for special in [
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "ff02::1",
            "::1",
        ] {
            assert!(!is_unicast(ip(special)), "{special}");
        }
        assert!(is_link_local(ip("fe80::1")) && is_link_local(ip("169.254.1.1")));
        assert!(!is_link_local(ip("fd00::1")));
    }
}
