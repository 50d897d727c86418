//! Queue pairs among a session's data connections.

use std::sync::{Arc, PoisonError};

use super::{Carrier, Inbound, Peer};
use crate::lane::LostReason;
use crate::session::rails::fabric::{Lost, LostSender};
use crate::session::rails::trouble;
use crate::transport::rdma;
use crate::wire::message::RailLink;
use crate::wire::{Fault, FaultCode};

/// What is known of a queue pair beside that it is a data connection.
pub(super) struct Railed {
    pub(super) link: RailLink,
    /// Hears if it is lost at this end.
    pub(super) lost: LostSender,
}

impl Railed {
    pub(super) fn tell_lost(&self, reason: &LostReason) {
        let (reason, may_pass) = match reason.io() {
            Some(error) => (trouble::words(error), trouble::may_pass(error)),
            None => (reason.to_string(), true),
        };
        // Nobody makes rails any more if the session is about to end.
        let _ = self.lost.send(Lost {
            link: self.link,
            reason,
            may_pass,
        });
    }
}

impl Peer {
    /// Puts a queue pair on a lane and tells every transfer. `false` if the session is over.
    pub(crate) fn attach_rail(
        self: &Arc<Self>,
        link: RailLink,
        connection: rdma::Connection,
        lost: LostSender,
    ) -> bool {
        self.carry(Some(Railed { link, lost }), Carrier::Rdma(connection))
    }

    /// The other end has lost this queue pair. What was in flight on it comes back as lost.
    pub(crate) fn detach_rail(&self, link: RailLink) {
        let detached = {
            let mut connections = self
                .connections
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let found = connections
                .railed
                .iter()
                .find(|(_, known)| known.link == link);
            let Some(lane) = found.map(|(lane, _)| *lane) else {
                return;
            };
            connections.railed.remove(&lane);
            let Some(at) = connections.up.iter().position(|(known, _)| *known == lane) else {
                return;
            };
            let (_, detached) = connections.up.swap_remove(at);
            let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
            routes.tell(|| Inbound::LaneDown(lane));
            detached
        };
        // Outside of the lock: lanes answer what is in flight.
        drop(detached);
    }

    /// There are no rails any more and there will be none. A session that goes by rails alone is of
    /// no use then: whoever waits in it hears why at once.
    pub(crate) fn without_rails(&self, reason: &str) {
        if self.rails.are_alone() {
            self.close(&Fault::new(
                FaultCode::TransportUnavailable,
                format!("the rdma transport is not available any more: {reason}"),
            ));
        }
    }
}
