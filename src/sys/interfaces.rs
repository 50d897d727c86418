//! The addresses of this host's network interfaces, each with the length of its network's prefix.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One address of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceAddress {
    /// The interface's name.
    pub(crate) interface: String,
    /// The address.
    pub(crate) address: IpAddr,
    /// How many of its leading bits name the network.
    pub(crate) prefix_len: u8,
}

/// All addresses that this host has now.
pub(crate) fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    let list = List::read()?;
    let mut addresses = Vec::new();
    let mut next = list.first;
    while !next.is_null() {
        // SAFETY: getifaddrs(3) promises a list that ends with NULL, valid until it is freed, which
        // `List` does when it goes.
        let entry = unsafe { &*next };
        addresses.extend(convert(entry));
        next = entry.ifa_next;
    }
    Ok(addresses)
}

struct List {
    first: *mut libc::ifaddrs,
}

impl List {
    fn read() -> io::Result<Self> {
        let mut first = std::ptr::null_mut();
        // SAFETY: the call takes a pointer to write the list's head to, and `first` is one.
        let result = unsafe { libc::getifaddrs(&raw mut first) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { first })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the head came from getifaddrs(3) and is freed this once; nothing of the list is
        // referred to any more, as `addresses` copies what it keeps.
        unsafe { libc::freeifaddrs(self.first) };
    }
}

fn convert(entry: &libc::ifaddrs) -> Option<InterfaceAddress> {
    let address = read_address(entry.ifa_addr)?;
    let mask = read_address(entry.ifa_netmask)?;
    let prefix_len = match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    };
    if entry.ifa_name.is_null() {
        return None;
    }
    // SAFETY: a name of the list is a string with its NUL (getifaddrs(3)).
    let name = unsafe { CStr::from_ptr(entry.ifa_name) };
    Some(InterfaceAddress {
        interface: name.to_string_lossy().into_owned(),
        address,
        prefix_len: u8::try_from(prefix_len).ok()?,
    })
}

/// The IP address behind a pointer of the list; nothing for other families and for none.
fn read_address(pointer: *const libc::sockaddr) -> Option<IpAddr> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: pointers of the list that are not NULL lead to a socket address, of which every kind
    // begins with its family.
    let family = unsafe { (*pointer).sa_family };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is what is there; it is copied, aligned or not.
            let v4 = unsafe { pointer.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { pointer.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_its_address_and_network() {
        let all = addresses().unwrap();
        let loopback = InterfaceAddress {
            interface: "lo".to_owned(),
            address: Ipv4Addr::LOCALHOST.into(),
            prefix_len: 8,
        };
        assert!(all.contains(&loopback), "{all:?}");
    }
}
