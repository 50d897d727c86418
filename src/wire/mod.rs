//! Bytes on the connections, and the messages they mean.
//!
//! [`message`] holds what the two ends say to each other as plain values. `encode` appends one as
//! a frame, [`Decoder`] takes frames out of a stream of bytes, trusting nothing. Nothing here knows
//! the engine, files, clocks or the configuration, nor whether bytes came by RDMA or TCP.
#![doc = include_str!("FORMAT.md")]

mod codec;
mod decode;
mod encode;
mod error;
pub mod fault;
mod frame;
mod kind;
pub mod left_behind;
pub mod level;
pub mod message;
pub mod plan;
pub mod rail;
pub mod removal;
pub mod status;
mod tag;

pub use encode::{item_bytes, listed_bytes};
pub use error::{EncodeError, WireError};
pub use fault::{Fault, FaultCode};
pub use frame::{Decoder, FLAG_REFUSE_UNKNOWN, FRAME_HEADER_BYTES, encode};
pub use message::{Envelope, Message};
