//! Why there is no control connection, or none any more.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::session::known_hosts::{HostPort, KnownHostsError};
use crate::session::own_key::Fingerprint;
use crate::wire::level::{LEVEL_MAX, LEVEL_MIN};
use crate::wire::{EncodeError, Fault, FaultCode, WireError};

/// Why a control connection was not made, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The server can't be reached.
    #[error("can't connect to {host}")]
    Connect {
        /// The server.
        host: HostPort,
        /// What the system said.
        source: io::Error,
    },
    /// The server's name has no address.
    #[error("can't find an address of {host}: {reason}")]
    Lookup {
        /// The server.
        host: HostPort,
        /// What the system said.
        reason: String,
    },
    /// The peer did not answer in time.
    #[error("no answer within {after:?}: {waiting_for} was due")]
    TimedOut {
        /// How long.
        after: Duration,
        /// What was waited for.
        waiting_for: &'static str,
    },
    /// The TLS handshake failed.
    #[error("the TLS handshake failed")]
    Tls(#[source] io::Error),
    /// A TLS configuration or its keys can't be used.
    #[error("TLS can't be set up")]
    TlsSetup(#[source] rustls::Error),
    /// What is at the other end is no rdcp.
    #[error("the peer does not speak rdcp")]
    NotRdcp,
    /// The host's key was never accepted.
    #[error("the key of {host} is not known: {fingerprint}")]
    HostUnknown {
        /// The server.
        host: HostPort,
        /// The key that it showed.
        fingerprint: Fingerprint,
    },
    /// The host shows another key than was accepted: it has a new one, or another answers for it.
    #[error(
        "the key of {host} has changed: {known} was accepted ({}, line {}), {presented} is shown now",
        written.file.display(), written.lines.first().unwrap_or(&0)
    )]
    HostChanged {
        /// The server.
        host: HostPort,
        /// The key that was accepted.
        known: Fingerprint,
        /// The key that it showed.
        presented: Fingerprint,
        /// Where the accepted one is written down.
        written: Box<Written>,
    },
    /// The file of known hosts can't be used.
    #[error("the host's key can't be checked")]
    KnownHosts(#[from] KnownHostsError),
    /// The peer broke the format.
    #[error("the peer broke the protocol")]
    Wire(#[from] WireError),
    /// A message of our own can't be sent.
    #[error("a message can't be sent")]
    Encode(#[from] EncodeError),
    /// The peer said something else than its turn was.
    #[error("the peer broke the protocol: {expected} was due")]
    OutOfTurn {
        /// What was due.
        expected: &'static str,
    },
    /// The two releases have no feature level in common.
    #[error("the peer speaks levels {min} to {max}, this release {LEVEL_MIN} to {LEVEL_MAX}")]
    Incompatible {
        /// Its lowest.
        min: u16,
        /// Its highest.
        max: u16,
    },
    /// The peer said why it goes.
    #[error("refused by the peer: {}", .0.text.escape_debug())]
    Refused(Fault),
    /// The peer reads too slowly for what it asked for.
    #[error("the peer leaves {bytes} bytes of answers unread")]
    Unread {
        /// Bytes queued.
        bytes: usize,
    },
    /// The peer has stopped reading.
    #[error("the peer has read nothing for {seconds} s, with {bytes} bytes waiting for it")]
    Stalled {
        /// Bytes of the batch that could not be written.
        bytes: usize,
        /// How long.
        seconds: u64,
    },
    /// The connection is closed.
    #[error("the connection is closed")]
    Closed,
    /// The connection was lost.
    #[error("the connection was lost")]
    Lost(#[source] io::Error),
}

/// Where keys of a host are written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The file.
    pub file: PathBuf,
    /// The lines there about the host, counted from 1.
    pub lines: Vec<usize>,
}

impl ControlError {
    /// The failure class and the words, with all causes, for reports and, where it is still
    /// possible, for the peer.
    pub fn to_fault(&self) -> Fault {
        if let Self::Refused(fault) = self {
            return fault.clone();
        }
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Fault::new(self.code(), text)
    }

    fn code(&self) -> FaultCode {
        match self {
            Self::Wire(error) => error.to_fault().code,
            Self::Refused(fault) => fault.code,
            Self::Connect { .. } | Self::Lookup { .. } | Self::Closed | Self::Lost(_) => {
                FaultCode::Lost
            }
            Self::TimedOut { .. } | Self::Stalled { .. } => FaultCode::TimedOut,
            // What TLS itself objects to is "invalid data"; the rest is the socket's.
            Self::Tls(error) if error.kind() != io::ErrorKind::InvalidData => FaultCode::Lost,
            Self::Tls(_) | Self::OutOfTurn { .. } | Self::Unread { .. } => FaultCode::Protocol,
            Self::NotRdcp | Self::Incompatible { .. } => FaultCode::Incompatible,
            Self::HostUnknown { .. } | Self::HostChanged { .. } => FaultCode::Denied,
            Self::KnownHosts(_) => FaultCode::Denied,
            Self::TlsSetup(_) | Self::Encode(_) => FaultCode::Internal,
        }
    }
}
