//! Queue pairs among a session's data connections.

use std::sync::{Arc, PoisonError};

use super::{Carrier, Inbound, Peer};
use crate::session::rails::fabric::LostSender;
use crate::transport::rdma;
use crate::wire::message::RailLink;

/// What is known of a queue pair beside that it is a data connection.
pub(super) struct Railed {
    pub(super) link: RailLink,
    /// Hears if it is lost at this end.
    pub(super) lost: LostSender,
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
}
