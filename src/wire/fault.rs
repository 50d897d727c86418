//! A failure as it crosses the wire: a code that programs act on, a text that people read.

/// What went wrong, on which side of the wire's table it stands, and the words for a person.
#[derive(Clone, Debug, Eq)]
pub struct Fault {
    /// The class, which decides the exit status.
    pub code: FaultCode,
    /// One line: what happened, to what, what to do next. From a peer it is untrusted text: at most
    /// `TEXT_BYTES_MAX` bytes, escaped before it is shown.
    pub text: String,
    /// It came over the wire, so it tells of the other end. Not a part of what is said, and so
    /// neither sent nor compared.
    pub from_peer: bool,
}

impl PartialEq for Fault {
    fn eq(&self, other: &Self) -> bool {
        (self.code, &self.text) == (other.code, &other.text)
    }
}

/// What is added to the failure of a file that was being written where it stands.
const MIXTURE: &str = "; the file there may be part old and part new now: run the same command again to mend \
                       it";

impl Fault {
    /// The same, of a file that was being written where it stands.
    pub fn of_mixture(mut self) -> Self {
        if !self.is_of_mixture() {
            self.text.push_str(MIXTURE);
        }
        self
    }

    /// Whether it says that a file may be part old and part new.
    pub fn is_of_mixture(&self) -> bool {
        self.text.ends_with(MIXTURE)
    }

    /// A fault with its text.
    pub fn new(code: FaultCode, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
            from_peer: false,
        }
    }

    /// The class that counts at this end. What the peer cancelled was not cancelled by the user of
    /// this end: the peer has stopped taking part, and may do so again later.
    pub fn class(&self) -> FaultCode {
        match self.code {
            FaultCode::Cancelled if self.from_peer => FaultCode::Busy,
            code => code,
        }
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        /// The wire's failure classes. A number that this release does not know stays a number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum FaultCode {
            $($(#[$doc])* $name,)*
            /// A class of a later release.
            Unknown(u16),
        }

        impl FaultCode {
            /// The number on the wire.
            pub const fn to_wire(self) -> u16 {
                match self { $(Self::$name => $value,)* Self::Unknown(code) => code }
            }

            /// The class with this number.
            pub const fn from_wire(code: u16) -> Self {
                match code { $($value => Self::$name,)* other => Self::Unknown(other) }
            }

            /// Every known class, for tables and tests.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

codes! {
    /// A defect of ours.
    Internal = 1,
    /// The request makes no sense to this end.
    Invalid = 2,
    /// The peer broke the protocol.
    Protocol = 3,
    /// The two ends share no feature level or the like.
    Incompatible = 4,
    /// Not allowed: rights, permissions, read-only exports.
    Denied = 5,
    /// No such export, file or directory, or one that may not be seen.
    NotFound = 6,
    /// It exists and the request said that this is an error.
    Exists = 7,
    /// A digest did not match, after repair.
    Integrity = 8,
    /// No space or quota left.
    NoSpace = 9,
    /// Another failure of storage.
    Storage = 10,
    /// The source changed while it was read.
    SourceChanged = 11,
    /// Limits reached or draining: try again.
    Busy = 12,
    /// No progress for too long.
    TimedOut = 13,
    /// The transfer was cancelled by its owner.
    Cancelled = 14,
    /// Neither file, directory nor symlink, so it was left out.
    Special = 15,
    /// The transport that was forced is not available.
    TransportUnavailable = 16,
    /// A directory stands where a file must go, or the reverse; a directory is not empty.
    WrongKind = 17,
    /// The connection was lost.
    Lost = 18,
}
