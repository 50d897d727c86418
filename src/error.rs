//! The library's one error type: what happened, to what, what to do next, and who must act.
//!
//! Inside, each module has its own typed errors; they become this one at the edge of the public
//! interface. Its text is lower case, without a full stop, and does not repeat its source.

use std::error::Error as StdError;
use std::fmt;

use crate::location::Location;
use crate::progress::Report;
use crate::storage::error::ShownPath;
use crate::wire::{Fault, FaultCode};

/// Why an operation failed.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
    location: Option<Location>,
    report: Option<Box<Report>>,
}

/// The classes of failure; each has its exit status in the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A defect of this program.
    Internal,
    /// The request makes no sense.
    Usage,
    /// The peer can't be reached, the connection was lost, or it does not speak our language.
    Unreachable,
    /// Not allowed, or the host's key is unknown or has changed.
    Denied,
    /// No such file, directory or export; or a device, FIFO or socket has the name.
    NotFound,
    /// A digest did not match after repair.
    Integrity,
    /// Local or remote storage: no space, quota, I/O errors.
    Storage,
    /// Failures of several kinds; the report lists them.
    Several,
    /// The source changed while it was read.
    SourceChanged,
    /// The forced transport is not available.
    TransportUnavailable,
    /// No progress for too long.
    TimedOut,
    /// What stands at the destination is in the way: it is of another kind than what was to go
    /// there, or it exists and that was to be an error.
    Exists,
    /// The two sides of a comparison differ.
    Different,
    /// The peer is at a limit or draining.
    Busy,
    /// Cancelled by its owner.
    Cancelled,
}

impl ErrorKind {
    /// Every class, for tables and tests.
    pub const ALL: &'static [Self] = &[
        Self::Internal,
        Self::Usage,
        Self::Unreachable,
        Self::Denied,
        Self::NotFound,
        Self::Integrity,
        Self::Storage,
        Self::Several,
        Self::SourceChanged,
        Self::TransportUnavailable,
        Self::TimedOut,
        Self::Exists,
        Self::Different,
        Self::Busy,
        Self::Cancelled,
    ];

    /// One word for it, the same in every JSON that is made of it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::Usage => "usage",
            Self::Unreachable => "unreachable",
            Self::Denied => "denied",
            Self::NotFound => "not_found",
            Self::Integrity => "integrity",
            Self::Storage => "storage",
            Self::Several => "several",
            Self::SourceChanged => "source_changed",
            Self::TransportUnavailable => "transport_unavailable",
            Self::TimedOut => "timed_out",
            Self::Exists => "exists",
            Self::Different => "different",
            Self::Busy => "busy",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the same request may succeed later without anybody mending anything.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Unreachable | Self::SourceChanged | Self::TimedOut | Self::Busy
        )
    }

    /// The class of a fault that crossed the wire or came out of storage.
    pub fn of_fault(code: FaultCode) -> Self {
        match code {
            FaultCode::Invalid => Self::Usage,
            FaultCode::Protocol | FaultCode::Incompatible | FaultCode::Lost => Self::Unreachable,
            FaultCode::Denied => Self::Denied,
            // Of a thing that was asked for by name: nothing of that name can be copied.
            FaultCode::NotFound | FaultCode::Special => Self::NotFound,
            FaultCode::Exists | FaultCode::WrongKind => Self::Exists,
            FaultCode::Integrity => Self::Integrity,
            FaultCode::NoSpace | FaultCode::Storage => Self::Storage,
            FaultCode::SourceChanged => Self::SourceChanged,
            FaultCode::Busy => Self::Busy,
            FaultCode::TimedOut => Self::TimedOut,
            FaultCode::Cancelled => Self::Cancelled,
            FaultCode::TransportUnavailable => Self::TransportUnavailable,
            FaultCode::Internal | FaultCode::Unknown(_) => Self::Internal,
        }
    }
}

impl Error {
    /// An error of this kind with its one-line message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
            source: None,
            location: None,
            report: None,
        }
    }

    /// The same with what to do next.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with what caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same about a thing, whose path the message then need not repeat.
    #[must_use]
    pub fn at(mut self, location: Location) -> Self {
        self.location.get_or_insert(location);
        self
    }

    /// The same with what a transfer had done until it ended by this.
    #[must_use]
    pub(crate) fn with_report(mut self, report: Report) -> Self {
        self.report = Some(Box::new(report));
        self
    }

    /// Its class.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What to do next, where that is known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// What happened, without the thing that it happened to.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// To what it happened, if it is one thing on one side.
    pub fn location(&self) -> Option<&Location> {
        self.location.as_ref()
    }

    /// What a transfer had done until it ended by this.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{}: ", ShownPath(&location.path))?;
        }
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::new(ErrorKind::of_fault(fault.class()), fault.text)
    }
}
