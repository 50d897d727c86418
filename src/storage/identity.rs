//! Whose rights file operations have: user, group and supplementary groups.
//!
//! Sources and sinks carry an identity through their [`Root`](super::root::Root). Operations run as
//! the process itself, so an identity that is not the process's is refused when the root is opened:
//! nothing is ever opened with more rights than were asked for.

use rustix::process::{getegid, geteuid, getgroups};

use super::error::StorageError;
use crate::wire::FaultCode;

/// A user with groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary group ids, sorted, without repeats.
    pub groups: Vec<u32>,
}

impl Identity {
    /// An identity of these ids.
    pub fn new(uid: u32, gid: u32, mut groups: Vec<u32>) -> Self {
        groups.sort_unstable();
        groups.dedup();
        Self { uid, gid, groups }
    }

    /// What this process is.
    pub fn current() -> Self {
        // getgroups(2) only fails for a buffer that is too small, which rustix sizes itself; without
        // an answer the smaller set of rights is assumed.
        let groups = getgroups().unwrap_or_default();
        let groups = groups
            .into_iter()
            .map(rustix::process::Gid::as_raw)
            .collect();
        Self::new(geteuid().as_raw(), getegid().as_raw(), groups)
    }

    /// Refuses identities other than the process's own.
    pub fn ensure_current(&self) -> Result<(), StorageError> {
        if *self == Self::current() {
            return Ok(());
        }
        let text = format!(
            "this process runs as uid {} and can't act as uid {}, gid {}; start it as that user",
            geteuid().as_raw(),
            self.uid,
            self.gid
        );
        Err(StorageError::refused(
            "act for another user",
            *b"",
            FaultCode::Denied,
            text,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_process_itself_is_accepted() {
        let own = Identity::current();
        assert!(own.ensure_current().is_ok());
        let other = Identity {
            uid: own.uid + 1,
            ..own
        };
        assert_eq!(
            other.ensure_current().unwrap_err().code(),
            FaultCode::Denied
        );
    }
}
