//! `rdcpd`, the daemon: a command line and a configuration file in, a running [`rdcp::server`] out,
//! its life told in log lines and in the exit status.

mod args;
mod audit;
mod config;
mod export;
mod lifecycle;
mod logging;
mod manual;
mod serve;
mod settings;
mod state_dir;
mod stdio;

use std::io::Write as _;
use std::panic;
use std::process::ExitCode;
use std::thread;

use clap::Parser;
use rdcp::ErrorKind;

use crate::args::Args;
use crate::logging::Filter;
use crate::serve::StartError;
use crate::settings::Settings;

/// Threads of the control plane at most: it only moves small messages, the data plane has its own.
const CONTROL_THREADS_MAX: usize = 4;

const EXIT_INTERNAL: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_UNREACHABLE: u8 = 3;
const EXIT_DENIED: u8 = 4;
const EXIT_NOT_FOUND: u8 = 5;
const EXIT_STORAGE: u8 = 7;

fn main() -> ExitCode {
    // It is answered once something is served, and harmless before.
    rdcp::ignore_user_signal();
    // A panic that reaches this far has been told on standard error by the panic hook.
    panic::catch_unwind(run).unwrap_or(ExitCode::from(EXIT_INTERNAL))
}

fn run() -> ExitCode {
    let args = Args::parse();
    if args.man {
        return match manual::page() {
            Ok(page) => print(&page),
            Err(error) => {
                say(&format!("the manual page can't be made: {error}"));
                ExitCode::from(EXIT_INTERNAL)
            }
        };
    }
    if args.stdio {
        logging::start_quiet(&args);
        return on_runtime(stdio::run());
    }
    let (check, show) = (args.check_config, args.show_config);
    let settings = match Settings::load(args.clone()) {
        Ok(settings) => settings,
        Err(problems) => {
            for problem in problems.iter() {
                say(&problem.to_string());
            }
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if show {
        return print(&settings.to_toml());
    }
    if check {
        let exports = settings.exports.len();
        return print(&format!(
            "the configuration is right: {exports} export(s)\n"
        ));
    }
    let filter = logging::start(&settings);
    serve(&args, settings, &filter)
}

fn serve(args: &Args, settings: Settings, filter: &Filter) -> ExitCode {
    on_runtime(async move {
        let ended = lifecycle::run(args, settings, filter).await;
        ended.unwrap_or_else(|error| {
            say(&match &error {
                StartError::Server(error) => in_one_line(error),
                other => with_causes(other),
            });
            ExitCode::from(exit_status(&error))
        })
    })
}

fn on_runtime(run: impl Future<Output = ExitCode>) -> ExitCode {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.min(CONTROL_THREADS_MAX))
        .thread_name("rdcpd-control")
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("the control threads can't be started: {error}"));
            return ExitCode::from(EXIT_INTERNAL);
        }
    };
    let ended = runtime.block_on(run);
    // Work that blocks on a slow disk must not hold up the exit.
    runtime.shutdown_background();
    ended
}

/// The error and its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The error, its causes, and what to do next, in one line.
fn in_one_line(error: &rdcp::Error) -> String {
    let text = with_causes(error);
    match error.hint() {
        Some(hint) => format!("{text}; {hint}"),
        None => text,
    }
}

fn exit_status(error: &StartError) -> u8 {
    match error {
        StartError::Signals(_) => EXIT_INTERNAL,
        StartError::StateDirectory { .. } | StartError::Audit { .. } => EXIT_STORAGE,
        StartError::Server(error) => match error.kind() {
            ErrorKind::Usage => EXIT_USAGE,
            ErrorKind::Unreachable => EXIT_UNREACHABLE,
            ErrorKind::Denied => EXIT_DENIED,
            ErrorKind::NotFound => EXIT_NOT_FOUND,
            ErrorKind::Storage => EXIT_STORAGE,
            _ => EXIT_INTERNAL,
        },
    }
}

/// A line for the person who started the daemon. Not `eprintln`, which panics when nobody listens.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "rdcpd: {line}");
}

/// Standard output; a reader that has gone away is no failure.
fn print(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}
