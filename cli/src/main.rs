//! The `rdcp` command. Everything is in the library beside this file, so that tests can run it.

fn main() -> std::process::ExitCode {
    // It is answered once something runs, and harmless before.
    rdcp::ignore_user_signal();
    rdcp_cli::run_with(std::env::args_os(), rdcp_cli::Io::process()).into()
}
