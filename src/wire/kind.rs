//! The types of frames and their numbers.

use crate::wire::Message;
use crate::wire::message::Message as M;

macro_rules! kinds {
    ($($name:ident = $value:literal,)*) => {
        /// A message's type as a number of the wire. Numbers are never used again for another
        /// meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Kind { $($name = $value,)* }

        impl Kind {
            /// The number on the wire.
            pub(super) const fn to_wire(self) -> u16 {
                self as u16
            }

            /// The type with this number, if this release knows it.
            pub(super) const fn from_wire(kind: u16) -> Option<Self> {
                match kind { $($value => Some(Self::$name),)* _ => None }
            }

            /// Its name, for errors.
            pub(super) const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The type of a message.
            pub(super) const fn of(message: &Message) -> Self {
                match message { $(M::$name { .. } => Self::$name,)* }
            }
        }
    };
}

kinds! {
    Hello = 1,
    Welcome = 2,
    Ping = 3,
    Pong = 4,
    Goodbye = 5,
    RailOffer = 6,
    RailAnswer = 7,
    RailConnect = 8,
    RailReady = 9,
    RailProof = 10,
    RailDown = 11,
    StatusQuery = 12,
    StatusPage = 13,
    RailMemory = 14,
    Open = 16,
    Opened = 17,
    Failed = 18,
    Credit = 19,
    Manifest = 20,
    Want = 21,
    Grant = 22,
    Digests = 23,
    Recheck = 24,
    Release = 25,
    Close = 26,
    Closed = 27,
    EntryFailed = 28,
    Settled = 29,
    Finish = 30,
    Finished = 31,
    Remarks = 32,
    Bench = 33,
    Deleted = 34,
    Operate = 48,
    Listing = 49,
    Done = 50,
}

impl Kind {
    /// Whether a reader that does not know it may skip it.
    pub(super) const fn may_be_skipped(self) -> bool {
        matches!(self, Self::Remarks | Self::RailMemory)
    }

    /// Whether it belongs to the session and so stands under no transfer's id.
    pub(super) const fn is_of_session(self) -> bool {
        self.to_wire() < Self::Open.to_wire()
    }
}
