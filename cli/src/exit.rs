//! The exit statuses: the one table from which the program, its help and its manual take them.

use std::process::ExitCode;

use rdcp::wire::Fault;
use rdcp::{Error, ErrorKind, Location};

use crate::output::Output;

/// What a process ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitStatus(u8);

impl ExitStatus {
    /// Done.
    pub const DONE: Self = Self(0);
    /// A defect of this program.
    pub const INTERNAL: Self = Self(1);
    /// The command line makes no sense.
    pub const USAGE: Self = Self(2);
    /// Ended by SIGINT.
    pub const INTERRUPTED: Self = Self(130);
    /// Ended by SIGTERM.
    pub const TERMINATED: Self = Self(143);

    /// The number.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The status of a class of failures.
    pub(crate) fn of(kind: ErrorKind) -> Self {
        Self(match kind {
            ErrorKind::Usage => 2,
            ErrorKind::Unreachable => 3,
            ErrorKind::Denied => 4,
            ErrorKind::NotFound => 5,
            ErrorKind::Integrity => 6,
            ErrorKind::Storage => 7,
            ErrorKind::Several => 8,
            ErrorKind::SourceChanged => 9,
            ErrorKind::TransportUnavailable => 10,
            ErrorKind::TimedOut => 11,
            ErrorKind::Exists => 12,
            ErrorKind::Different => 13,
            ErrorKind::Busy => 14,
            ErrorKind::Cancelled => 130,
            // Internal, and classes that a later library adds before this table knows them.
            _ => 1,
        })
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.0)
    }
}

/// Each status with its meaning, as help and manual show it.
pub(crate) const TABLE: &[(u8, &str)] = &[
    (
        0,
        "done, and what was copied is verified unless --hash none",
    ),
    (1, "internal error: a defect of rdcp"),
    (2, "usage: the command line makes no sense"),
    (3, "the host can't be reached, or the connection was lost"),
    (
        4,
        "not allowed, or the host's key is unknown or has changed",
    ),
    (
        5,
        "no such file, directory or export, or a device, FIFO or socket of that name; or an empty source \
         with --delete",
    ),
    (6, "integrity: a digest did not match, after repair"),
    (
        7,
        "storage: no space, quota or I/O error; or standard output was not taken",
    ),
    (8, "failures of several kinds, listed"),
    (9, "the source changed while it was read"),
    (
        10,
        "the transport that --transport names is not available; doctor: RDMA would not be used",
    ),
    (11, "timed out or stalled"),
    (
        12,
        "something is in the way at the destination: of another kind, or any with --overwrite error; or \
         more is to be deleted than --max-delete allows",
    ),
    (13, "verify: the two sides differ"),
    (14, "the server is busy or draining: try again later"),
    (
        130,
        "interrupted (SIGINT); a rerun goes on with what is missing",
    ),
    (143, "terminated (SIGTERM); likewise"),
];

/// The table as text, a status a line.
pub(crate) fn table_text() -> String {
    TABLE
        .iter()
        .map(|(code, meaning)| format!("  {code:>3}  {meaning}\n"))
        .collect()
}

/// How a run ended: its status, and the class of failure behind it if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// What the process ends with.
    pub(crate) status: ExitStatus,
    /// Why, if not well.
    pub(crate) kind: Option<ErrorKind>,
}

impl End {
    /// All well.
    pub(crate) const DONE: Self = Self {
        status: ExitStatus::DONE,
        kind: None,
    };

    /// Because of a failure.
    pub(crate) fn of(kind: ErrorKind) -> Self {
        Self {
            status: ExitStatus::of(kind),
            kind: Some(kind),
        }
    }

    /// Because of a signal.
    pub(crate) fn signal(status: ExitStatus) -> Self {
        Self {
            status,
            kind: Some(ErrorKind::Cancelled),
        }
    }
}

/// The ending of a run that goes on after failures.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    kind: Option<ErrorKind>,
}

impl Ending {
    /// Something failed, and it was told.
    pub(crate) fn failed(&mut self, kind: ErrorKind) {
        self.kind = Some(match self.kind {
            Some(so_far) if so_far != kind => ErrorKind::Several,
            _ => kind,
        });
    }

    /// Something failed: tells it.
    pub(crate) fn error(&mut self, output: &mut Output, error: &Error) {
        output.error(error);
        self.failed(error.kind());
    }

    /// An entry failed: tells it.
    pub(crate) fn entry_failed(&mut self, output: &mut Output, at: &Location, fault: &Fault) {
        output.entry_failed(at, fault);
        self.failed(ErrorKind::of_fault(fault.class()));
    }

    /// One kind of failure gives its own status.
    pub(crate) fn end(self) -> End {
        self.kind.map_or(End::DONE, End::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_its_own_documented_status() {
        let mut seen = Vec::new();
        let mut names = Vec::new();
        for kind in ErrorKind::ALL {
            let code = ExitStatus::of(*kind).code();
            assert!(
                TABLE.iter().any(|(known, _)| *known == code),
                "{kind:?} is not in the table"
            );
            assert!(!seen.contains(&code), "{kind:?} shares status {code}");
            assert_ne!(code, 0, "{kind:?}");
            seen.push(code);
            assert!(!names.contains(&kind.name()), "{kind:?} shares its name");
            names.push(kind.name());
        }
        // The rest of the table: success, and the signal that is no class of the library.
        let rest = TABLE
            .iter()
            .map(|(code, _)| *code)
            .filter(|code| !seen.contains(code));
        assert_eq!(rest.collect::<Vec<_>>(), [0, 143]);
    }

    #[test]
    fn one_kind_of_failure_keeps_its_status() {
        let end = |kinds: &[ErrorKind]| {
            let mut ending = Ending::default();
            kinds.iter().for_each(|kind| ending.failed(*kind));
            ending.end().status.code()
        };
        assert_eq!(end(&[]), 0);
        assert_eq!(end(&[ErrorKind::Storage, ErrorKind::Storage]), 7);
        assert_eq!(
            end(&[ErrorKind::Storage, ErrorKind::Denied, ErrorKind::Storage]),
            8
        );
    }
}
