//! One peer: the connections to it and what is said on them.
//!
//! [`control`] is the encrypted control connection that carries messages, [`data`] opens the data
//! connections whose bytes the lanes move. [`tls`], [`host_key`] and [`known_hosts`] settle who is
//! at the other end. Async lives here and outward. Nothing here knows files, hashes, the command
//! line or the layout of messages.

pub mod control;
pub mod data;
pub mod host_key;
pub mod known_hosts;
pub mod tls;

#[cfg(test)]
mod tests;
