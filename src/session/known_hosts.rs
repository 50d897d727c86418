//! Pinned host keys.

/// What the known hosts say of a host's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostTrust {
    /// The key is the pinned one.
    Known,
    /// No key is pinned for this host and port.
    Unknown {
        /// `host:port`.
        host: String,
        /// What it presented.
        fingerprint: String,
    },
    /// Another key is pinned.
    Changed {
        /// `host:port`.
        host: String,
        /// The pinned one.
        known: String,
        /// What it presented.
        presented: String,
    },
}
