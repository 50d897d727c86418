//! The `rdcp` command: a thin shell around the library.
mod args;
mod escape;
mod exit;
mod io;
mod job;
pub use exit::ExitStatus;
pub use io::Io;
/// x
pub fn run_with(_a: impl IntoIterator<Item = std::ffi::OsString>, _io: Io) -> ExitStatus {
    ExitStatus::DONE
}
