//! Why bytes are not a message, and why a message does not become bytes.

use crate::limits::FRAME_BYTES_MAX;
use crate::wire::{Fault, FaultCode};

/// Why what a peer sent can't be read. The connection can't be used after one: where the next frame
/// would start is not to be trusted any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A frame announced a longer body than is allowed here.
    #[error("a frame of {len} bytes is longer than the {max} bytes allowed")]
    FrameTooLong {
        /// Announced bytes.
        len: u32,
        /// Bytes allowed.
        max: usize,
    },
    /// A frame of a type of a later release, which says that it must not be skipped.
    #[error("message type {0} is not known to this release")]
    UnknownType(u16),
    /// A body ended within a field.
    #[error("{message} ends within its fields")]
    Truncated {
        /// The message.
        message: &'static str,
    },
    /// A list or text is longer than its maximum.
    #[error("{message}: {field} has {count}, at most {max} are allowed")]
    TooMany {
        /// The message.
        message: &'static str,
        /// The field.
        field: &'static str,
        /// How many it has.
        count: usize,
        /// How many are allowed.
        max: usize,
    },
    /// A field holds a value that it must not hold.
    #[error("{message}: {field} has a value that is not allowed")]
    Invalid {
        /// The message.
        message: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A message of the session with a transfer's id, or the reverse.
    #[error("{message} stands under the wrong id")]
    Misplaced {
        /// The message.
        message: &'static str,
    },
}

impl WireError {
    /// What the peer is told before the connection ends.
    pub fn to_fault(&self) -> Fault {
        let code = match self {
            Self::UnknownType(_) => FaultCode::Incompatible,
            _ => FaultCode::Protocol,
        };
        Fault::new(code, self.to_string())
    }
}

/// Why a message can't be sent: a defect on this side, as the peer would refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A list or byte string is longer than its maximum.
    #[error("{field} has {count}, at most {max} can be sent")]
    TooMany {
        /// The field.
        field: &'static str,
        /// How many it has.
        count: usize,
        /// How many are allowed.
        max: usize,
    },
    /// The whole body is longer than a frame may be.
    #[error("a message of {0} bytes is longer than the {FRAME_BYTES_MAX} bytes of a frame")]
    FrameTooLong(usize),
    /// A message of the session with a transfer's id, or the reverse.
    #[error("the message stands under the wrong id")]
    Misplaced,
}
