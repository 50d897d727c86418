//! Socket addresses as librdmacm takes them.
#![allow(unsafe_code)] // A C structure whose content depends on its first member.

use std::mem;
use std::net::SocketAddr;

use libc::sockaddr;

#[expect(clippy::cast_possible_truncation, reason = "2 and 10")]
const FAMILY_V4: libc::sa_family_t = libc::AF_INET as libc::sa_family_t;
#[expect(clippy::cast_possible_truncation, reason = "2 and 10")]
const FAMILY_V6: libc::sa_family_t = libc::AF_INET6 as libc::sa_family_t;

/// A socket address as C has it.
pub(super) struct Address {
    storage: libc::sockaddr_storage,
}

impl Address {
    pub(super) fn new(address: SocketAddr) -> Self {
        // SAFETY: integers only.
        let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let storage_pointer = &raw mut storage;
        match address {
            SocketAddr::V4(address) => {
                let raw = libc::sockaddr_in {
                    sin_family: FAMILY_V4,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(address.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                // SAFETY: every socket address fits the storage, in size and alignment.
                unsafe { storage_pointer.cast::<libc::sockaddr_in>().write(raw) };
            }
            SocketAddr::V6(address) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: FAMILY_V6,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.ip().octets(),
                    },
                    sin6_scope_id: address.scope_id(),
                };
                // SAFETY: as above.
                unsafe { storage_pointer.cast::<libc::sockaddr_in6>().write(raw) };
            }
        }
        Self { storage }
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut sockaddr {
        (&raw mut self.storage).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_laid_out_as_c_has_them() {
        let address = Address::new("10.0.0.1:20471".parse().unwrap());
        // SAFETY: a storage is bytes; all of them were zeroed or written.
        let bytes: [u8; 8] = unsafe { (&raw const address.storage).cast::<[u8; 8]>().read() };
        assert_eq!(bytes[2..], [0x4f, 0xf7, 10, 0, 0, 1]);
        assert_eq!(i32::from(address.storage.ss_family), libc::AF_INET);
        let address = Address::new("[fe80::1%3]:1".parse().unwrap());
        assert_eq!(i32::from(address.storage.ss_family), libc::AF_INET6);
    }
}
