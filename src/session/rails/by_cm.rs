//! What rdma_cm needs beside queue pairs: addresses of this end's ports, and who listens on them.
//!
//! In: ports, the number to listen on. Out: listeners, made as they are first needed and kept as long
//! as the server; this end's address for a rail. Which rails are connected that way is not known
//! here.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Mutex, PoisonError};

use super::adapters::facts_of;
use super::fabric::Survey;
use super::network::{IpNetwork, address_of, is_link_local, is_unicast};
use super::pairing::LocalPort;
use crate::sys::interfaces::{self, InterfaceAddress};
use crate::transport::rdma::cm::{self, Dial, Listener, Token};
use crate::transport::rdma::{self, PortFacts};
use crate::wire::message::{GidKind, Invitation, RailToken};

/// A server's listeners.
pub(crate) struct Reception {
    port: u16,
    /// `None` once the server is at its end.
    listeners: Mutex<Option<Vec<Listening>>>,
}

/// The address that was asked for, and who listens there.
type Listening = (SocketAddr, Arc<Listener>);

impl Reception {
    /// Listens on nothing yet; `port` is where it will on each address, 0 for a free one.
    pub(crate) fn new(port: u16) -> Arc<Self> {
        Arc::new(Self {
            port,
            listeners: Mutex::new(Some(Vec::new())),
        })
    }

    /// Listens on all addresses of the ports, and leaves out ports where it can't. Blocks.
    pub(crate) fn listen_on(&self, survey: &mut Survey) {
        let mut reasons = Vec::new();
        survey.ports.retain(|port| {
            let listening = facts_of(port).and_then(|facts| self.listen_on_port(port, &facts));
            if let Err(error) = &listening {
                reasons.push(format!("{}: rdma_cm: {error}", port.port.label));
            }
            listening.is_ok()
        });
        survey.reasons.extend(reasons);
    }

    /// Fails if it can listen on none of the port's addresses.
    fn listen_on_port(&self, port: &LocalPort, facts: &PortFacts) -> io::Result<()> {
        let mut outcome = Err(io::Error::other("the port has no address"));
        for gid in 0..port.gids.len() {
            let listening =
                own_address(port, facts, gid, None).and_then(|own| self.at(own.address));
            match listening {
                Ok(_) => outcome = Ok(()),
                Err(error) if outcome.is_err() => outcome = Err(error),
                Err(_) => {}
            }
        }
        outcome
    }

    /// Who listens on this address. Blocks.
    pub(crate) fn at(&self, address: SocketAddr) -> io::Result<Arc<Listener>> {
        let mut listeners = self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(listeners) = &mut *listeners else {
            return Err(io::Error::other("the server is shutting down"));
        };
        // One whose device has gone leaves its address to another.
        listeners.retain(|(_, listener)| !listener.is_over());
        if let Some((_, listener)) = listeners.iter().find(|(known, _)| *known == address) {
            return Ok(Arc::clone(listener));
        }
        let at = SocketAddr::new(address.ip(), self.port);
        let at = match (at, address) {
            (SocketAddr::V6(mut at), SocketAddr::V6(address)) => {
                at.set_scope_id(address.scope_id());
                at.into()
            }
            _ => at,
        };
        let listener = Listener::new(at)?;
        tracing::info!(address = %SocketAddr::new(at.ip(), listener.port()), "listening with rdma_cm");
        listeners.push((address, Arc::clone(&listener)));
        Ok(listener)
    }

    /// Ends all listeners.
    pub(crate) fn close(&self) {
        let listeners = self.listeners.lock();
        let listeners = listeners.unwrap_or_else(PoisonError::into_inner).take();
        // Without the lock: it waits for rdma_cm.
        drop(listeners);
    }
}

/// This end's address for one of a port's GIDs; its port is 0. On InfiniBand, where a GID is no IP
/// address, it is that of an interface over the port, and rather one in the network of `toward`.
/// Blocks.
pub(crate) fn own_address(
    port: &LocalPort,
    facts: &PortFacts,
    gid: usize,
    toward: Option<IpAddr>,
) -> io::Result<Own> {
    let missing = || io::Error::other("the address (GID) is gone");
    let told = port.port.gids.get(gid).ok_or_else(missing)?;
    let index = port.gids.get(gid).ok_or_else(missing)?.index;
    if told.kind != GidKind::InfiniBand {
        let known = facts.gids.iter().find(|known| known.index == index);
        let interface = known.and_then(|known| known.netdev.as_deref());
        return Ok(Own {
            address: cm::socket_address(address_of(&told.gid), 0, interface),
            // Pairing has looked at that.
            is_near: true,
        });
    }
    let addresses = interfaces::addresses()?;
    let over_port = cm::addresses_of(facts, &addresses)?;
    let best = best(&over_port, toward).ok_or_else(|| {
        let why = "rdma_cm finds no interface with an IP address over the InfiniBand port (is the \
                   module ib_ipoib loaded?)";
        io::Error::new(io::ErrorKind::AddrNotAvailable, why)
    })?;
    Ok(Own {
        address: cm::socket_address(best.address, 0, Some(&best.interface)),
        is_near: toward.is_some_and(|toward| is_in_network_of(best, toward)),
    })
}

/// See [`own_address`].
pub(crate) struct Own {
    pub(crate) address: SocketAddr,
    /// Where it leads to is known to be in a network of the port's.
    pub(crate) is_near: bool,
}

/// The address that suits `toward` best; without one, the first.
fn best<'a>(
    known: &[&'a InterfaceAddress],
    toward: Option<IpAddr>,
) -> Option<&'a InterfaceAddress> {
    let usable = known
        .iter()
        .copied()
        .filter(|known| is_unicast(known.address) && !is_link_local(known.address));
    match toward {
        None => usable.min_by_key(|known| !known.address.is_ipv4()),
        Some(toward) => usable
            .filter(|known| known.address.is_ipv4() == toward.is_ipv4())
            .min_by_key(|known| !is_in_network_of(known, toward)),
    }
}

fn is_in_network_of(known: &InterfaceAddress, address: IpAddr) -> bool {
    IpNetwork::new(known.address, known.prefix_len).is_some_and(|net| net.contains(address))
}

/// How packets travel whose GID has this place in a port's table.
pub(super) fn kind_of(facts: &PortFacts, index: u8) -> Option<GidKind> {
    let known = facts.gids.iter().find(|known| known.index == index)?;
    Some(match known.kind {
        rdma::GidKind::Ib => GidKind::InfiniBand,
        rdma::GidKind::RoceV1 => GidKind::RoceV1,
        rdma::GidKind::RoceV2 => GidKind::RoceV2,
    })
}

/// What the other end is told of a listener at this end's `address`.
pub(super) fn invitation(address: IpAddr, port: u16, tokens: Vec<RailToken>) -> Invitation {
    let address = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    Invitation {
        address,
        port,
        tokens,
    }
}

/// What is dialled from `own` after an invitation; which queue pair answers is not known yet.
pub(super) fn dials(invitation: &Invitation, own: SocketAddr) -> Vec<Dial> {
    let to = match (own, address_of(&invitation.address)) {
        // It means something on the link of this end's address only.
        (SocketAddr::V6(own), IpAddr::V6(v6)) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, invitation.port, 0, own.scope_id()).into()
        }
        (_, address) => SocketAddr::new(address, invitation.port),
    };
    let dial = |token: &RailToken| Dial {
        from: own,
        to,
        token: Token(token.0),
        queue_pair: 0,
    };
    invitation.tokens.iter().map(dial).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_over_a_port_suits_the_other_ends() {
        let known = |interface: &str, address: &str, prefix_len| InterfaceAddress {
            interface: interface.to_owned(),
            address: address.parse().unwrap(),
            prefix_len,
        };
        let all = [
            known("ib0", "fe80::1", 64),
            known("ib0", "fd00::1", 64),
            known("ib0", "10.0.0.1", 24),
            known("ib0.8001", "10.1.0.1", 24),
        ];
        let all: Vec<_> = all.iter().collect();
        let found = |toward: Option<&str>| {
            let toward = toward.map(|text| text.parse().unwrap());
            best(&all, toward).map(|known| known.address.to_string())
        };
        assert_eq!(found(None).unwrap(), "10.0.0.1");
        assert_eq!(found(Some("10.1.0.9")).unwrap(), "10.1.0.1");
        assert_eq!(found(Some("192.0.2.1")).unwrap(), "10.0.0.1", "by a router");
        assert_eq!(found(Some("fd00::9")).unwrap(), "fd00::1");
        assert_eq!(best(&all[..1], None), None);
    }

    #[test]
    fn a_server_that_ends_listens_no_more() {
        let reception = Reception::new(0);
        reception.close();
        let error = reception.at("127.0.0.1:0".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("shutting down"), "{error}");
    }

    #[test]
    fn an_address_of_no_device_can_not_be_listened_on() {
        let reception = Reception::new(0);
        let error = reception.at("192.0.2.1:0".parse().unwrap()).unwrap_err();
        assert!(!error.to_string().is_empty());
    }
}
