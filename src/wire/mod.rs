//! Bytes on the connections, and the messages they mean.
//!
//! [`message`] holds what the two ends say to each other as plain values; `codec` turns them into
//! bounded little-endian frames and back, trusting nothing; `data` does the same for the headers
//! on data connections. Nothing here knows the engine, files, clocks or the configuration.
#![doc = include_str!("FORMAT.md")]

pub mod fault;
pub mod message;

pub use fault::{Fault, FaultCode};
pub use message::Message;
