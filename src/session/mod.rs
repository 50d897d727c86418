//! One peer: control connection, engines, lanes and storage joined. Async lives here and outward.
//!
//! ```text
//! client: connect --.                         .-- serving: accept, greet
//!                   v                         v
//!                 peer: who gets which message and lane event
//!                   |            |
//!             receiving       sending       operating
//!           (engine::Receiver) (engine::Sender)
//! ```
//!
//! In: fresh connections, requests of the public interface. Out: transfers carried to their end.
//! The modules here know threads, clocks and sockets and decide nothing about chunks; they know no
//! command line, configuration file or terminal.

pub mod control;
pub(crate) mod counters;
pub mod data;
pub mod exposing;
mod hashing;
pub mod known_hosts;
pub mod own_key;
pub mod tls;

mod activity;
mod admission;
mod benching;
pub(crate) mod clients;
pub(crate) mod delta;
pub mod dump;
mod earlier;
mod inspecting;
pub(crate) mod machinery;
mod names;
mod operating;
pub(crate) mod peer;
pub(crate) mod pulse;
pub mod rails;
pub(crate) mod receiving;
mod remarks;
mod resuming;
pub(crate) mod sending;
pub(crate) mod serving;
pub(crate) mod sweeping;
mod throttle;
pub(crate) mod watch;

/// What each end calls itself in greetings.
pub(crate) const SOFTWARE: &str = concat!("rdcp ", env!("CARGO_PKG_VERSION"));
