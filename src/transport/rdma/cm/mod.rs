//! Connecting queue pairs by the kernel's connection manager (rdma_cm), beside doing it by hand.
//!
//! ```text
//!  reader     the thread that reads rdma_cm's events, there while anything here is
//!  listener   takes requests that carry a token it was told to expect, and refuses all others
//!  dial       asks a listener, with such a token
//!  line       a connection that is made: what rdma_cm says of it later rings the queue pair's alarm
//! ```
//!
//! In: queue pairs that were made and led nowhere yet, addresses, tokens. Out: the same queue pairs,
//! connected. What makes a token worth something is that it was told on a connection that the peer
//! has proved to be at the other end of; where and to whom is not known here, nor are messages and
//! sessions.

mod dial;
mod line;
mod listener;
mod reader;

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

pub use dial::Dial;
pub(super) use line::Line;
pub use listener::{Awaited, Listener};

use super::endpoint::LinkOptions;
use super::facts::PortFacts;
use super::words;
use crate::sys::interfaces::InterfaceAddress;
use crate::sys::verbs::Mtu;
use crate::sys::verbs::cm::{Decided, EventChannel, Identifier, OpenError, Parameters};

/// Bytes of a token. rdma_cm's private data have room for 56.
pub const TOKEN_BYTES: usize = 32;

const _: () = assert!(TOKEN_BYTES <= crate::sys::verbs::cm::PRIVATE_DATA_BYTES_MAX);

/// What a request must carry to be taken: random, and good for one request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token(pub [u8; TOKEN_BYTES]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It is a secret.
        f.write_str("Token")
    }
}

/// `address` with `port`; one that means something on its own link only is told whose link that is.
pub fn socket_address(address: IpAddr, port: u16, interface: Option<&str>) -> SocketAddr {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            let index = interface.and_then(|name| {
                let text = fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).ok()?;
                text.trim().parse().ok()
            });
            SocketAddrV6::new(v6, port, 0, index.unwrap_or(0)).into()
        }
        other => SocketAddr::new(other, port),
    }
}

/// Which of this host's addresses lead to a port. On InfiniBand nothing else tells, as addresses
/// belong to interfaces that are laid over ports.
///
/// # Errors
/// There is no rdma_cm.
pub(crate) fn addresses_of<'a>(
    facts: &PortFacts,
    addresses: &'a [InterfaceAddress],
) -> io::Result<Vec<&'a InterfaceAddress>> {
    let channel = EventChannel::new().map_err(unavailable)?;
    let leads_there = |known: &&InterfaceAddress| {
        let at = socket_address(known.address, 0, Some(&known.interface));
        // An address that leads to no RDMA device can't be bound to.
        Identifier::new(&channel, 0)
            .and_then(|mut id| id.bind(at).map(|()| is_of(&id, facts)))
            .unwrap_or(false)
    };
    Ok(addresses.iter().filter(leads_there).collect())
}

fn is_of(id: &Identifier, facts: &PortFacts) -> bool {
    id.device_name().as_deref() == Some(facts.device.as_str()) && id.device_port() == facts.port
}

/// The error for an address that rdma_cm takes to another device than the caller.
fn elsewhere(id: &Identifier, facts: &PortFacts) -> io::Error {
    let found = id.device_name().unwrap_or_else(|| "no device".to_owned());
    let why = format!(
        "rdma_cm goes by {found}:{}, not by {}:{}",
        id.device_port(),
        facts.device,
        facts.port
    );
    io::Error::new(io::ErrorKind::AddrNotAvailable, why)
}

fn unavailable(error: OpenError) -> io::Error {
    match error {
        OpenError::Unavailable(why) => io::Error::new(io::ErrorKind::Unsupported, why.to_string()),
        OpenError::Failed(error) => words(error),
    }
}

/// What the other end is told of a connection, beside `private_data`.
fn parameters<'a>(
    facts: &PortFacts,
    options: &LinkOptions,
    private_data: &'a [u8],
) -> Parameters<'a> {
    Parameters {
        private_data,
        reads_served: options.max_dest_rd_atomic.min(facts.max_qp_rd_atom),
        reads_posted: options.max_rd_atomic.min(facts.max_qp_init_rd_atom),
        retry_count: options.retry_cnt.min(7),
        rnr_retry: options.rnr_retry.min(7),
    }
}

/// What the options settle. A class or level of 0 leaves it at what rdma_cm works out.
fn decided(options: &LinkOptions) -> Decided {
    let if_set = |value: u8| (value != 0).then_some(value);
    Decided {
        serves: true,
        mtu_max: Mtu::from_bytes(options.mtu),
        rnr_timer: Some(options.min_rnr_timer.min(31)),
        timeout: Some(options.timeout.min(31)),
        traffic_class: if_set(options.traffic_class),
        service_level: if_set(options.service_level),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_link_local_addresses_need_an_interface() {
        let at = socket_address("fe80::1".parse().unwrap(), 7, Some("lo"));
        let index = fs::read_to_string("/sys/class/net/lo/ifindex").unwrap();
        let SocketAddr::V6(at) = at else {
            panic!("{at}");
        };
        assert_eq!(
            (at.port(), at.scope_id().to_string()),
            (7, index.trim().to_owned())
        );
        let global = socket_address("fd00::1".parse().unwrap(), 7, Some("lo"));
        assert_eq!(global, "[fd00::1]:7".parse().unwrap());
    }

    #[test]
    fn tokens_are_not_shown() {
        assert_eq!(format!("{:?}", Token([7; TOKEN_BYTES])), "Token");
    }
}
