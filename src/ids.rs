//! Names of things that cross the wire or a thread: newtypes, so that one can't be passed for another.
//!
//! Nothing here knows what the thing behind a name is; a name from a peer is only a number until
//! the table that issued it has been asked.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number!(
    /// An entry of one transfer's manifest: the only name a receiver may use after the manifest.
    /// Issued by the sender, ascending from 0 within the transfer.
    EntryId(u64)
);
number!(
    /// A region that a sender has granted, unique within its session.
    RegionId(u64)
);
number!(
    /// The token that a READ must carry: an RDMA rkey, or its random 64-bit stand-in over tcp.
    RemoteKey(u64)
);
number!(
    /// One authenticated control connection, unique in a server's life.
    SessionId(u64)
);
number!(
    /// A data connection (tcp) or queue pair (rdma), unique within the process.
    ConnectionId(u64)
);
number!(
    /// A posted READ, from posting until its completion; unique within the process's lane.
    WorkRequestId(u64)
);

/// The 128-bit id that the client makes for each transfer. It stands in every message, log line,
/// error and JSON line on both ends.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub [u8; 16]);

impl TransferId {
    /// The id that frames carry which belong to no transfer.
    pub const NONE: Self = Self([0; 16]);

    /// A fresh random id.
    pub fn random() -> Self {
        Self(crate::sys::random_bytes())
    }
}

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
