//! Which interfaces of this machine lead to a host, as the kernel's routes have it.
//!
//! A UDP socket that is connected asks the routing table and sends nothing.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

use crate::sys::interfaces;

/// One address of the host and the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// The host's address.
    pub(super) host: IpAddr,
    /// The address that packets leave from.
    pub(super) source: IpAddr,
    /// The interface that has it.
    pub(super) interface: Option<String>,
}

impl Way {
    /// The host is this machine.
    pub(super) fn is_here(&self) -> bool {
        self.host == self.source || self.host.is_loopback()
    }
}

/// The ways to all addresses of a host, or why there is none.
pub(super) fn sources(host: &str, port: u16) -> Result<Vec<Way>, String> {
    let addresses = (host, port)
        .to_socket_addrs()
        .map_err(|error| format!("its name can't be resolved: {error}"))?;
    let own = interfaces::addresses().unwrap_or_default();
    let mut ways = Vec::new();
    let mut why = "it has no address".to_owned();
    for address in addresses {
        match source(address) {
            Ok(source) => ways.push(Way {
                host: address.ip(),
                source,
                interface: own
                    .iter()
                    .find(|known| known.address == source)
                    .map(|known| known.interface.clone()),
            }),
            Err(error) => why = format!("no route to {}: {error}", address.ip()),
        }
    }
    if ways.is_empty() {
        return Err(why);
    }
    Ok(ways)
}

fn source(address: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr = if address.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0_u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_leads_to_this_machine() {
        let ways = sources("127.0.0.1", 9).unwrap();
        assert!(ways[0].is_here());
        assert_eq!(ways[0].interface.as_deref(), Some("lo"));
    }
}
