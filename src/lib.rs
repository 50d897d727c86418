//! rdcp moves files and trees between hosts, every byte checked.
pub mod ids;
pub mod limits;
pub mod manifest;
pub mod units;
pub mod wire;

pub mod engine;
pub mod integrity;
pub mod lane;
pub mod memory;
pub mod session;
pub mod storage;
pub mod sys;
pub mod transport;
pub mod workers;
