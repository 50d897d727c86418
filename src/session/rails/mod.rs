//! Rails: how the two ends of a session agree on RDMA queue pairs beside their control connection.
//!
//! ```text
//!   client: attempts, rebuilding      server: answers, one attempt at a time
//!                      \              /
//!                       talk: hear, prove      what both do alike
//!                      /      |      \
//!                pairing    book     fabric    pure; pure; traits over adapters and the session
//!                                     adapters   the traits over this machine's; `by_cm` for rdma_cm
//! ```
//!
//! In: the ports of both ends, messages about rails, lost queue pairs. Out: queue pairs in use, each
//! proved by a READ in both directions, and the reasons for those that are not. Nothing here knows
//! files, regions or lanes; which bytes take which rail is the engine's affair.

pub(crate) mod adapters;
pub(crate) mod book;
pub(crate) mod by_cm;
pub(crate) mod client;
pub(crate) mod fabric;
pub mod network;
pub(crate) mod pairing;
pub(crate) mod server;
pub(crate) mod talk;
#[cfg(test)]
mod tests;
pub(crate) mod trouble;
