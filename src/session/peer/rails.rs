//! Queue pairs among a session's data connections.

use std::sync::{Arc, PoisonError};

use super::{Inbound, Peer, sink};
use crate::engine::LaneId;
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
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if connections.closed {
            return false;
        }
        let lane = LaneId(connections.issued);
        connections.issued += 1;
        let start = usize::try_from(self.id.0 % 64).unwrap_or(0);
        let at = (start + lane.0 as usize) % self.lanes.count();
        let events = sink(Arc::downgrade(self));
        let regions = Arc::clone(&self.regions);
        let connection = self.lanes.attach_rdma(at, connection, regions, events);
        connections.up.push((lane, Arc::new(connection)));
        let rail = link.rail;
        connections.railed.insert(lane, Railed { link, lost });
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        routes.tell(|| Inbound::LaneUp(lane, rail));
        true
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
