//! READs by RDMA adapters: the peer's memory comes into ours, and no CPU of the peer's has a part
//! in it.
//!
//! ```text
//!  adapter   the machine's devices; `watch` hears what they say, `facts` are what ports tell
//!  domain    what a session has of each device     region   memory that the peer may READ
//!  cm        connecting by the kernel's connection manager, where that is wanted
//!  pace      how long READs over a port may be
//!  endpoint  a queue pair before it is in use      connection   one in use, given turns by a lane
//! ```
//!
//! Whoever negotiates rails makes [`Endpoint`]s, tells the peer of them, connects them to the
//! peer's and has each READ a probe; a [`Connection`] then goes to a lane. Nothing here knows
//! messages, sessions' states, files' meaning or which rail is better.

mod adapter;
mod alarm;
pub mod cm;
mod connection;
mod domain;
mod endpoint;
mod facts;
mod pace;
mod queue;
mod region;
mod watch;

use std::io;

pub use adapter::{Adapters, adapters, has_devices};
pub use connection::Connection;
pub use domain::SessionDomains;
pub use endpoint::{Connected, Endpoint, LinkOptions, PROBE_BYTES, ProbeRegion, RemotePort, Way};
pub use facts::{GidFacts, GidKind, LinkLayer, PortFacts, RailPolicy};
pub use region::{FileAccess, FileWindow, RegionAddress, Trial};

use crate::sys::verbs;

/// What a verb that failed says, its cause included: there the number is that counts.
fn words(error: verbs::Error) -> io::Error {
    let kind = error.io().kind();
    io::Error::new(kind, format!("{error}: {}", error.io()))
}
