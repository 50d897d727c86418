//! The exit statuses: the one table from which the program, its help and its manual take them.

use std::process::ExitCode;

use rdcp::ErrorKind;

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
    pub fn of(kind: ErrorKind) -> Self {
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
pub const TABLE: &[(u8, &str)] = &[
    (0, "done, and verified unless --hash none"),
    (1, "internal error: a defect of rdcp"),
    (2, "usage: the command line makes no sense"),
    (3, "the host can't be reached, or the connection was lost"),
    (
        4,
        "not allowed, or the host's key is unknown or has changed",
    ),
    (5, "no such file, directory or export"),
    (6, "integrity: a digest did not match, after repair"),
    (7, "storage: no space, quota or I/O error"),
    (8, "failures of several kinds, listed"),
    (9, "the source changed while it was read"),
    (10, "the transport that --transport names is not available"),
    (11, "timed out or stalled"),
    (12, "the destination exists, with --overwrite error"),
    (13, "verify: the two sides differ"),
    (14, "the server is busy or draining: try again later"),
    (
        130,
        "interrupted (SIGINT); a rerun goes on with what is missing",
    ),
    (143, "terminated (SIGTERM); likewise"),
];

/// The table as text, a status a line.
pub fn table_text() -> String {
    TABLE
        .iter()
        .map(|(code, meaning)| format!("  {code:>3}  {meaning}\n"))
        .collect()
}

/// The class that stands for several failures: their one class, or "several".
pub fn merged(so_far: Option<ErrorKind>, next: ErrorKind) -> ErrorKind {
    match so_far {
        None => next,
        Some(kind) if kind == next => kind,
        Some(_) => ErrorKind::Several,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_its_own_documented_status() {
        let mut seen = Vec::new();
        for kind in ErrorKind::ALL {
            let code = ExitStatus::of(*kind).code();
            assert!(
                TABLE.iter().any(|(known, _)| *known == code),
                "{kind:?} is not in the table"
            );
            assert!(!seen.contains(&code), "{kind:?} shares status {code}");
            assert_ne!(code, 0, "{kind:?}");
            seen.push(code);
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
        let storage = merged(None, ErrorKind::Storage);
        assert_eq!(
            merged(Some(storage), ErrorKind::Storage),
            ErrorKind::Storage
        );
        assert_eq!(merged(Some(storage), ErrorKind::Denied), ErrorKind::Several);
    }
}
