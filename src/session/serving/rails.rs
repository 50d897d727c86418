//! What a server says of its transports, and who answers a session's offers of rails.
//!
//! In: the server's options for RDMA, its ports as they are now. Out: offers for greetings, the way
//! for a session's messages about rails. What is said there is the affair of the session's rails.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Serving;
use crate::session::peer::Peer;
use crate::session::rails::adapters::{SessionAdapters, register_for_rails, survey};
use crate::session::rails::pairing::PeerPolicy;
use crate::session::rails::server::{self, ServerRules};
use crate::session::rails::talk::RailSender;
use crate::wire::Message;
use crate::wire::message::TransportOffer;

/// How long what was found of the RDMA ports is told to clients.
const RDMA_FOUND_FOR: Duration = Duration::from_secs(5);

impl Serving {
    /// What a client is told of the transports here.
    pub(crate) async fn transports(&self) -> Vec<TransportOffer> {
        let offer = |name: &str, available, reason: &str| TransportOffer {
            name: name.to_owned(),
            available,
            reason: reason.to_owned(),
        };
        vec![
            self.rdma_offer().await,
            offer("tcp", true, "always there"),
            offer("local", false, "not part of this release"),
        ]
    }

    /// Looked at anew now and then: ports and their addresses come and go.
    async fn rdma_offer(&self) -> TransportOffer {
        let mut found = self.rdma_found.lock().await;
        if let Some((when, offer)) = &*found
            && when.elapsed() < RDMA_FOUND_FOR
        {
            return offer.clone();
        }
        let (options, reception) = (self.rdma.clone(), self.reception.clone());
        let looking = self.machinery.workers.run(move || {
            let mut survey = survey(&options);
            if let Some(reception) = reception {
                reception.listen_on(&mut survey);
            }
            survey
        });
        let survey = looking.await.unwrap_or_default();
        let ports: Vec<_> = survey
            .ports
            .iter()
            .map(|port| port.port.label.as_str())
            .collect();
        let available = !ports.is_empty();
        let offer = TransportOffer {
            name: "rdma".to_owned(),
            available,
            reason: if available && self.reception.is_some() {
                format!("{}, by rdma_cm", ports.join(", "))
            } else if available {
                ports.join(", ")
            } else {
                survey.reasons.join("; ")
            },
        };
        *found = Some((Instant::now(), offer.clone()));
        offer
    }

    /// Begins to answer a session's offers of rails, of which `message` is the first. What can't be
    /// registered for a client that does without tcp fails, rather than being offered in vain.
    pub(super) fn rails(&self, peer: &Arc<Peer>, client: IpAddr, message: &Message) -> RailSender {
        let rails_only = matches!(message, Message::RailOffer(offer) if offer.rails_only);
        register_for_rails(peer, self.rdma.memory, rails_only);
        let rules = ServerRules {
            policy: PeerPolicy {
                peer: client,
                networks: self.rdma.peer_networks.clone(),
                by_cm: self.reception.is_some(),
            },
            queue_pairs_max: self.rdma.queue_pairs,
        };
        server::start(
            SessionAdapters::new(&peer.rails, self.rdma.clone(), self.reception.clone()),
            Arc::clone(peer),
            self.machinery.workers.clone(),
            Arc::clone(&peer.rails.book),
            rules,
        )
    }
}
