//! What a server tells of who did what: for a record that is kept, beside the log, whose words may change.
//!
//! In: a session's or request's begin, end or refusal. Out: an [`AuditEvent`] to whoever was set with
//! [`ServerBuilder::audit`](crate::server::ServerBuilder::audit). Single files of a tree are not told, only how many.
//! Paths are what the client asked for, byte by byte: whoever shows them has to escape them.
//!
//! ```
//! use rdcp::audit::{AuditAction, AuditEvent};
//! use rdcp::server::Server;
//!
//! let builder = Server::builder().audit(|event: &AuditEvent| {
//!     if let AuditAction::ClientRefused { reason } = &event.action {
//!         eprintln!("{} was turned away: {}", event.from, reason.escape_debug());
//!     }
//! });
//! # drop(builder);
//! ```

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::engine::Ledger;
use crate::error::ErrorKind;
use crate::wire::Fault;

/// Something that a client did or was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditEvent {
    /// Number of its session, as the log has it too; `None` before there is one.
    pub session: Option<u64>,
    /// Where the client comes from.
    pub from: SocketAddr,
    /// Fingerprint of the key that it proved, where keys are asked for.
    pub key: Option<String>,
    /// What it was.
    pub action: AuditAction,
}

/// What a client did or was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditAction {
    /// It was let in.
    SessionBegan {
        /// What it calls itself: its own words.
        software: String,
    },
    /// It was not let in.
    ClientRefused {
        /// Why, as it was told.
        reason: String,
    },
    /// Its session is over, and with it everything that was exposed to it.
    SessionEnded {
        /// Why; the client's words if it said goodbye.
        reason: String,
    },
    /// It asked for something.
    RequestBegan(AuditRequest),
    /// What it asked for was done, in part, or not at all.
    RequestEnded(AuditRequest, AuditOutcome),
}

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditRequest {
    /// The client's number for it, 32 hexadecimal digits.
    pub transfer: String,
    /// `pull`, `push`, `list`, `stat`, `sum`, `remove`, `make directory` or `clean`.
    pub what: &'static str,
    /// Whether only what would be done was asked for.
    pub dry_run: bool,
    /// What it is about: all sources of a pull, the destination of a push.
    pub places: Vec<AuditPlace>,
}

/// A path in an export.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditPlace {
    /// The export's name, as the client wrote it.
    pub export: String,
    /// The path below it.
    pub path: Vec<u8>,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct AuditOutcome {
    /// Why it was not done, or not to its end; `None`: it was.
    pub failure: Option<(ErrorKind, String)>,
    /// Entries that are there now and were not before.
    pub published: u64,
    /// Entries of which only metadata was changed.
    pub updated: u64,
    /// Entries that were there already.
    pub unchanged: u64,
    /// Entries that were removed because the source does not have them.
    pub deleted: u64,
    /// Entries that failed.
    pub failed: u64,
    /// Bytes of content that were copied.
    pub bytes: u64,
}

impl AuditOutcome {
    pub(crate) fn refused(fault: &Fault) -> Self {
        Self {
            failure: Some((ErrorKind::of_fault(fault.class()), fault.text.clone())),
            ..Self::default()
        }
    }

    pub(crate) fn of(ledger: &Ledger, fault: Option<&Fault>) -> Self {
        Self {
            failure: fault.and_then(|fault| Self::refused(fault).failure),
            published: ledger.published,
            updated: ledger.updated,
            unchanged: ledger.unchanged,
            deleted: ledger.deleted,
            failed: ledger.failed,
            bytes: ledger.bytes,
        }
    }
}

/// Called from the server's own tasks, so it must not wait.
type Told = dyn Fn(&AuditEvent) + Send + Sync;

/// Who is told.
#[derive(Clone, Default)]
pub(crate) struct Auditor(Option<Arc<Told>>);

impl Auditor {
    pub(crate) fn new(told: impl Fn(&AuditEvent) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(told)))
    }

    /// Tells of something that is made only if somebody listens.
    pub(crate) fn tell(&self, event: impl FnOnce() -> AuditEvent) {
        if let Some(told) = &self.0 {
            told(&event());
        }
    }
}

impl fmt::Debug for Auditor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Auditor" } else { "None" })
    }
}
