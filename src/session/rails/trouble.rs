//! What an adapter's error means for rails: whether waiting helps, and what mends it.
//!
//! In: errors of verbs. Out: words with the limit and the line that raises it, and the answer to "may
//! this pass by itself?". A link comes up again, a peer answers later; a limit or a right stays as it
//! is for as long as the process lives. Nothing here knows ports, sessions or who asks.

use std::io;

/// The line for a shell; the one for a unit stands in [`memlock`].
const MEMLOCK_COMMAND: &str = "printf '* - memlock unlimited\\n' | sudo tee \
                               /etc/security/limits.d/90-rdcp.conf";

/// Why a port or a rail can't be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Obstacle {
    pub(crate) reason: String,
    /// Trying again later may help.
    pub(crate) may_pass: bool,
}

impl Obstacle {
    pub(crate) fn for_good(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            may_pass: false,
        }
    }

    pub(crate) fn for_now(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            may_pass: true,
        }
    }

    /// Of something that failed with this error.
    pub(crate) fn of(what: &str, error: &io::Error) -> Self {
        Self {
            reason: format!("{what} failed: {}", words(error)),
            may_pass: may_pass(error),
        }
    }
}

/// Whether the same may succeed later in this process.
pub(crate) fn may_pass(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        // The kernel says "no memory" when the limit on locked memory is reached.
        io::ErrorKind::OutOfMemory
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::Unsupported
            | io::ErrorKind::InvalidInput
    )
}

/// What the error says, with what mends it if that is known.
pub(crate) fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::OutOfMemory => format!("{error}; {}", memlock()),
        _ => error.to_string(),
    }
}

/// The limit as it is, and how it is raised.
fn memlock() -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    let now = match limit.current {
        Some(bytes) => format!("is {} KiB", bytes >> 10),
        None => return "RLIMIT_MEMLOCK is unlimited, so the machine lacks memory".to_owned(),
    };
    format!(
        "the limit on locked memory (RLIMIT_MEMLOCK) {now}: raise it with {MEMLOCK_COMMAND} and log \
         in again, or for a service with LimitMEMLOCK=infinity in its unit"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_on_locked_memory_is_named_with_its_remedy() {
        let said = words(&io::Error::from(io::ErrorKind::OutOfMemory));
        for part in [
            "RLIMIT_MEMLOCK",
            "limits.d/90-rdcp.conf",
            "LimitMEMLOCK=infinity",
        ] {
            let unlimited = said.contains("is unlimited");
            assert!(said.contains(part) || unlimited, "{said}");
        }
        let said = words(&io::Error::from(io::ErrorKind::PermissionDenied));
        assert!(!said.contains("RLIMIT_MEMLOCK"), "{said}");
    }

    #[test]
    fn limits_and_rights_stay_while_paths_come_back() {
        for lasting in [libc::ENOMEM, libc::EACCES, libc::EPERM, libc::EOPNOTSUPP] {
            assert!(!may_pass(&io::Error::from_raw_os_error(lasting)));
        }
        for passing in [
            libc::ETIMEDOUT,
            libc::ENETDOWN,
            libc::ENODEV,
            libc::ENETUNREACH,
        ] {
            assert!(may_pass(&io::Error::from_raw_os_error(passing)));
        }
    }
}
