//! Which transport a client's session takes, and the words for why.
//!
//! In: what the user asked for, what came of making rails, how many bytes went which way. Out: the
//! choice, with its reason, for reports. Making connections is the session's affair.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind};
use crate::options::{RdmaConnect, RdmaOptions, TransportChoice};
use crate::session::peer::Peer;
use crate::session::rails::adapters::{SessionAdapters, register_for_rails, survey};
use crate::session::rails::client::{self, ClientRules, Outcome, Wishes};
use crate::session::rails::pairing::PeerPolicy;
use crate::session::rails::talk::RailSender;
use crate::transport::rdma;
use crate::wire::level::LEVEL_RAILS;
use crate::wire::message::{Carried, RailDial, Welcome};
use crate::workers::Workers;

/// Longest wait for the first rails: the attempt's own deadlines are shorter.
const RAILS_PATIENCE: Duration = Duration::from_secs(30);

/// What a session's bytes go by, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransportReport {
    /// `rdma`, `tcp`, `local`; `rdma+tcp` if bytes went both ways.
    pub transport: &'static str,
    /// For rdma: its rails. For others: why none better.
    pub reason: String,
    /// What a person should know though nothing failed: this host has RDMA devices, and yet tcp is
    /// used without having been asked for.
    pub note: Option<String>,
}

/// That rdma was tried.
#[derive(Clone, Debug, Default)]
pub(super) struct Tried {
    /// This host has RDMA devices.
    pub(super) has_devices: bool,
}

/// What is known of a session's transports at some moment.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub(super) choice: TransportChoice,
    /// The rails in use.
    pub(super) rails: Vec<String>,
    /// Why there are not more.
    pub(super) reasons: Vec<String>,
    /// Why memory could not be read over them.
    pub(super) memory: Option<String>,
    /// This host has RDMA devices.
    pub(super) has_devices: bool,
}

/// Begins to make rails, after `known` was given the way for messages about them, unless it is known
/// already that there can be none in this session. What the server said of its devices in its greeting
/// decides nothing: the answer to an offer also says whether it may change.
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
    let refused = if here.ports.is_empty() && !here.may_pass {
        here.reasons
    } else if welcome.level < LEVEL_RAILS {
        vec!["the server is of a release without rdma".to_owned()]
    } else {
        Vec::new()
    };
    if !refused.is_empty() {
        set_reasons(peer, refused);
        return Err(Tried {
            has_devices: here.has_devices,
        });
    }
    let rules = ClientRules {
        policy: PeerPolicy {
            peer: server,
            networks: options.peer_networks.clone(),
            by_cm: false,
        },
        queue_pairs: options.queue_pairs,
        rails_only,
        connect: match options.connect {
            RdmaConnect::Direct => RailDial::Direct,
            RdmaConnect::Cm => RailDial::Cm,
        },
    };
    register_for_rails(peer, options.memory, rails_only);
    Ok(client::start(
        SessionAdapters::new(&peer.rails, options.clone(), None),
        Arc::clone(peer),
        workers.clone(),
        Arc::clone(&peer.rails.book),
        rules,
        wishes,
        known,
    ))
}

/// Waits for the first attempt's end.
pub(super) async fn first(peer: &Peer, outcome: oneshot::Receiver<Outcome>) -> Tried {
    match tokio::time::timeout(RAILS_PATIENCE, outcome).await {
        Ok(Ok(outcome)) => Tried {
            has_devices: outcome.has_devices,
        },
        Ok(Err(_)) => {
            set_reasons(peer, vec!["the session ended".to_owned()]);
            Tried::default()
        }
        Err(_) => {
            set_reasons(peer, vec!["making rails took too long".to_owned()]);
            Tried { has_devices: true }
        }
    }
}

fn set_reasons(peer: &Peer, reasons: Vec<String>) {
    let book = peer.rails.book.lock();
    book.unwrap_or_else(PoisonError::into_inner)
        .set_reasons(reasons);
}

/// The error for a transport that was asked for and is not there.
pub(super) fn unavailable(name: &str, reason: &str) -> Error {
    let message = format!("the {name} transport is not available: {reason}");
    Error::new(ErrorKind::TransportUnavailable, message)
        .with_hint("leave --transport out, or say --transport tcp")
}

impl Standing {
    /// Why there are no rails, or not more.
    pub(super) fn why_not(&self) -> String {
        let reasons: Vec<_> = self
            .reasons
            .iter()
            .chain(&self.memory)
            .map(String::as_str)
            .collect();
        if reasons.is_empty() {
            return "it was not tried".to_owned();
        }
        reasons.join("; ")
    }

    /// What bytes went by if some did, else what they would go by now.
    pub(super) fn report(&self, carried: Carried) -> TransportReport {
        let has_rails = !self.rails.is_empty();
        let by = (carried.rdma > 0, carried.tcp > 0);
        let (transport, reason) = match by {
            (true, true) => (
                "rdma+tcp",
                format!("{}; {}", self.by_rails(), self.also_tcp()),
            ),
            (true, false) => ("rdma", self.by_rails()),
            (false, false) if has_rails => ("rdma", self.by_rails()),
            (false, false) if self.choice == TransportChoice::Rdma => ("rdma", self.by_rails()),
            (false, _) => ("tcp", self.by_tcp()),
        };
        let has_note = transport == "tcp" && self.has_devices && !self.is_tcp_asked_for();
        let note = has_note.then(|| {
            format!(
                "data goes by tcp although this host has RDMA devices: {}",
                self.why_not()
            )
        });
        TransportReport {
            transport,
            reason,
            note,
        }
    }

    fn is_tcp_asked_for(&self) -> bool {
        self.choice == TransportChoice::Tcp
    }

    fn by_rails(&self) -> String {
        let rails = if self.rails.is_empty() {
            "its rails were lost on the way".to_owned()
        } else {
            self.rails.join("; ")
        };
        match self.reasons.is_empty() {
            true => rails,
            false => format!("{rails}; not all: {}", self.reasons.join("; ")),
        }
    }

    fn also_tcp(&self) -> String {
        match &self.memory {
            Some(memory) => format!("some by tcp: {memory}"),
            None => "some by tcp, while a rail was missing or as a repair".to_owned(),
        }
    }

    fn by_tcp(&self) -> String {
        if self.is_tcp_asked_for() {
            return "tcp was asked for".to_owned();
        }
        match (&self.memory, self.rails.is_empty()) {
            (Some(memory), false) => format!("there are rails, but nothing went by them: {memory}"),
            (None, false) => "there were no rails while data went".to_owned(),
            (_, true) => format!("no rdma: {}", self.why_not()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Carried = Carried {
        tcp: 0,
        rdma: 0,
        resumed: 0,
        reused: 0,
    };

    fn standing(choice: TransportChoice) -> Standing {
        Standing {
            choice,
            rails: Vec::new(),
            reasons: vec!["a: no".to_owned(), "b: no".to_owned()],
            memory: None,
            has_devices: false,
        }
    }

    #[test]
    fn the_report_says_why() {
        let none = standing(TransportChoice::Auto);
        let auto = none.report(NOTHING);
        assert_eq!((auto.transport, auto.note), ("tcp", None));
        assert_eq!(auto.reason, "no rdma: a: no; b: no");
        let devices = Standing {
            has_devices: true,
            ..none
        };
        let note = devices.report(NOTHING).note.unwrap();
        assert!(note.ends_with("RDMA devices: a: no; b: no"), "{note}");
        let forced = Standing {
            has_devices: true,
            ..standing(TransportChoice::Tcp)
        };
        let forced = forced.report(NOTHING);
        assert_eq!(
            (forced.reason.as_str(), forced.note),
            ("tcp was asked for", None)
        );
        let up = Standing {
            rails: vec!["x to y".to_owned()],
            ..devices
        };
        let rdma = up.report(NOTHING);
        assert_eq!(rdma.transport, "rdma");
        assert_eq!(rdma.reason, "x to y; not all: a: no; b: no");
        let lost = standing(TransportChoice::Rdma).report(NOTHING);
        assert!(lost.transport == "rdma" && lost.reason.contains("lost"));
    }

    #[test]
    fn what_bytes_went_by_counts_and_not_what_there_is() {
        let (tcp, rdma) = (
            Carried { tcp: 5, ..NOTHING },
            Carried { rdma: 5, ..NOTHING },
        );
        let up = Standing {
            rails: vec!["x to y".to_owned()],
            reasons: Vec::new(),
            memory: Some("no memory".to_owned()),
            ..standing(TransportChoice::Auto)
        };
        let report = up.report(tcp);
        assert_eq!(report.transport, "tcp");
        assert!(report.reason.ends_with("no memory"), "{}", report.reason);
        assert_eq!(up.report(rdma).transport, "rdma");
        let both = up.report(Carried {
            tcp: 1,
            rdma: 1,
            ..NOTHING
        });
        assert_eq!(both.transport, "rdma+tcp");
        assert!(both.reason.contains("some by tcp: no memory"));
        // The rails are gone again, and yet they did it.
        let gone = standing(TransportChoice::Auto).report(rdma);
        assert_eq!(gone.transport, "rdma");
    }
}
