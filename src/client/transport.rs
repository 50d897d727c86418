//! Which transport a client's session takes, and the words for why.
//!
//! In: what the user asked for, what the server offers, what came of making rails. Out: the choice,
//! with its reason, for reports. Making connections is the session's affair.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind};
use crate::options::{RdmaOptions, TransportChoice};
use crate::session::peer::Peer;
use crate::session::rails::adapters::{SessionAdapters, register_for_rails, survey};
use crate::session::rails::client::{self, ClientRules, Outcome, Wishes};
use crate::session::rails::pairing::PeerPolicy;
use crate::session::rails::talk::RailSender;
use crate::transport::rdma;
use crate::wire::level::LEVEL_RAILS;
use crate::wire::message::Welcome;
use crate::workers::Workers;

/// Longest wait for the first rails: the attempt's own deadlines are shorter.
const RAILS_PATIENCE: Duration = Duration::from_secs(30);

/// What a session's bytes go by, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransportReport {
    /// `rdma`, `tcp`, `local`.
    pub transport: &'static str,
    /// For rdma: its rails. For others: why none better.
    pub reason: String,
    /// What a person should know though nothing failed: this host has RDMA devices, and yet tcp is
    /// used without having been asked for.
    pub note: Option<String>,
}

/// What came of trying rdma.
#[derive(Clone, Debug, Default)]
pub(super) struct Tried {
    /// Rails came into use.
    pub(super) up: bool,
    /// Why there are not more, or none.
    pub(super) reasons: Vec<String>,
    /// This host has RDMA devices.
    pub(super) has_devices: bool,
}

/// Begins to make rails, after `known` was given the way for messages about them, unless it is known already that there can be none.
pub(super) async fn begin(
    peer: &Arc<Peer>,
    welcome: &Welcome,
    server: std::net::IpAddr,
    (options, rails_only): (&RdmaOptions, bool),
    workers: &Workers,
    wishes: Wishes<rdma::Connection>,
    known: impl FnOnce(RailSender),
) -> Result<oneshot::Receiver<Outcome>, Tried> {
    let looking = {
        let options = options.clone();
        workers.run(move || survey(&options))
    };
    let here = looking.await.unwrap_or_default();
    let offer = welcome.transports.iter().find(|offer| offer.name == "rdma");
    let refused = match offer {
        _ if here.ports.is_empty() => here.reasons.clone(),
        _ if welcome.level < LEVEL_RAILS => {
            vec!["the server is of a release without rdma".to_owned()]
        }
        Some(offer) if offer.available => Vec::new(),
        Some(offer) => vec![format!("the server: {}", offer.reason)],
        None => vec!["the server does not offer it".to_owned()],
    };
    if !refused.is_empty() {
        return Err(Tried {
            up: false,
            reasons: refused,
            has_devices: here.has_devices,
        });
    }
    let rules = ClientRules {
        policy: PeerPolicy {
            peer: server,
            networks: options.peer_networks.clone(),
        },
        queue_pairs: options.queue_pairs,
    };
    register_for_rails(peer, options.memory, rails_only);
    Ok(client::start(
        SessionAdapters::new(&peer.rails, options.clone()),
        Arc::clone(peer),
        workers.clone(),
        Arc::clone(&peer.rails.book),
        rules,
        wishes,
        known,
    ))
}

/// Waits for the first attempt's end.
pub(super) async fn first(outcome: oneshot::Receiver<Outcome>) -> Tried {
    match tokio::time::timeout(RAILS_PATIENCE, outcome).await {
        Ok(Ok(outcome)) => Tried {
            up: outcome.up > 0,
            reasons: outcome.reasons,
            has_devices: outcome.has_devices,
        },
        Ok(Err(_)) => Tried {
            reasons: vec!["the session ended".to_owned()],
            ..Tried::default()
        },
        Err(_) => Tried {
            reasons: vec!["making rails took too long".to_owned()],
            has_devices: true,
            ..Tried::default()
        },
    }
}

/// The error for a transport that was asked for and is not there.
pub(super) fn unavailable(name: &str, reason: &str) -> Error {
    let message = format!("the {name} transport is not available: {reason}");
    Error::new(ErrorKind::TransportUnavailable, message)
        .with_hint("leave --transport out, or say --transport tcp")
}

/// What is reported; `rails` are those in use now.
pub(super) fn report(choice: TransportChoice, tried: &Tried, rails: &[String]) -> TransportReport {
    let why_not = if tried.reasons.is_empty() {
        "it was not tried".to_owned()
    } else {
        tried.reasons.join("; ")
    };
    if tried.up {
        let mut reason = if rails.is_empty() {
            "its rails were lost on the way".to_owned()
        } else {
            rails.join("; ")
        };
        if !tried.reasons.is_empty() {
            reason = format!("{reason}; not all: {why_not}");
        }
        return TransportReport {
            transport: "rdma",
            reason,
            note: None,
        };
    }
    let asked_for = choice == TransportChoice::Tcp;
    let reason = if asked_for {
        "tcp was asked for".to_owned()
    } else {
        format!("no rdma: {why_not}")
    };
    let note = (tried.has_devices && !asked_for)
        .then(|| format!("data goes by tcp although this host has RDMA devices: {why_not}"));
    TransportReport {
        transport: "tcp",
        reason,
        note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_says_why() {
        let none = Tried {
            reasons: vec!["a: no".to_owned(), "b: no".to_owned()],
            ..Tried::default()
        };
        let auto = report(TransportChoice::Auto, &none, &[]);
        assert_eq!((auto.transport, auto.note), ("tcp", None));
        assert_eq!(auto.reason, "no rdma: a: no; b: no");
        let devices = Tried {
            has_devices: true,
            ..none.clone()
        };
        let note = report(TransportChoice::Auto, &devices, &[]).note.unwrap();
        assert!(note.ends_with("RDMA devices: a: no; b: no"), "{note}");
        let forced = report(TransportChoice::Tcp, &devices, &[]);
        assert_eq!(
            (forced.reason.as_str(), forced.note),
            ("tcp was asked for", None)
        );
        let up = Tried {
            up: true,
            ..devices
        };
        let rails = ["x to y".to_owned()];
        let rdma = report(TransportChoice::Auto, &up, &rails);
        assert_eq!(rdma.transport, "rdma");
        assert_eq!(rdma.reason, "x to y; not all: a: no; b: no");
        assert!(
            report(TransportChoice::Rdma, &up, &[])
                .reason
                .contains("lost")
        );
    }
}
