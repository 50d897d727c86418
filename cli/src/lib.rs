//! The `rdcp` command: a thin shell around the library.
pub mod args;
pub mod compare;
pub mod confirm;
pub mod escape;
pub mod exit;
pub mod io;
pub mod job;
pub mod manual;
pub mod output;
pub mod quantity;
pub use exit::ExitStatus;
pub use io::Io;
/// x
pub fn run_with(_a: impl IntoIterator<Item = std::ffi::OsString>, _io: Io) -> ExitStatus {
    ExitStatus::DONE
}
