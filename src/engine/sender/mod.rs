//! Sender placeholder.
mod io;
pub use io::*;
/// x
#[derive(Debug)]
pub struct Sender;
