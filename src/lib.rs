//! rdcp moves files and trees between hosts, every byte checked.
pub mod client;
pub mod error;
pub mod ids;
pub mod limits;
pub mod manifest;
pub mod options;
pub mod progress;
pub mod remote;
pub mod server;
pub mod units;
pub mod wire;

pub use error::{Error, ErrorKind};

pub mod engine;
pub mod integrity;
pub mod lane;
pub mod memory;
pub mod session;
pub mod storage;
pub mod sys;
pub mod transport;
pub mod workers;
