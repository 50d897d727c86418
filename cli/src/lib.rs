//! The `rdcp` command: a thin shell around the library of the same name.
//!
//! ```text
//! words -> args (what was typed) -> job (what it means) -> run (the library does it)
//!                                                           '-> output (people or JSON) -> exit
//! ```
//!
//! Only `run` talks to the library's client; only `output` writes; only `exit` knows the statuses.

mod args;
mod compare;
mod confirm;
mod escape;
mod exit;
mod habits;
mod io;
mod job;
mod manual;
mod output;
mod quantity;
mod run;
mod signals;

use std::any::Any;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use clap::Parser;
use clap::error::ErrorKind as ClapKind;
use rdcp::{Error, ErrorKind};

use args::Cli;
use exit::End;
pub use exit::ExitStatus;
pub use io::{Io, Stream};
use job::Job;
use output::{JsonTo, Output};

/// Does what the words say, the first of which names the program.
///
/// A panic becomes status 1 with a request for a report; a JSON reader gets its summary even then.
pub fn run_with(args: impl IntoIterator<Item = OsString>, io: Io) -> ExitStatus {
    let mut output = Output::new(io);
    let args = args.into_iter().collect::<Vec<_>>();
    let end = catch_unwind(AssertUnwindSafe(|| dispatch(&args, &mut output)))
        .unwrap_or_else(|payload| report_panic(&mut output, payload.as_ref()));
    output.finish(end)
}

fn dispatch(args: &[OsString], output: &mut Output) -> End {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return show_clap(args, output, &error),
    };
    if let Some(to) = job::json_of(&cli.command) {
        output.use_json(to);
    }
    trace(cli.verbose, output);
    match Job::from_command(cli.command) {
        Ok(job) => run::run(job, cli.verbose > 0, output),
        Err(error) => {
            output.error(&error);
            End::of(error.kind())
        }
    }
}

/// Help goes to standard output and is a success; all else is a usage error.
fn show_clap(args: &[OsString], output: &mut Output, error: &clap::Error) -> End {
    let wanted = matches!(
        error.kind(),
        ClapKind::DisplayHelp | ClapKind::DisplayVersion
    );
    let io = output.io();
    let stream = if wanted {
        &mut io.stdout
    } else {
        &mut io.stderr
    };
    let coloured =
        stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
    let text = error.render();
    let text = if coloured {
        text.ansi().to_string()
    } else {
        text.to_string()
    };
    stream.write(text.as_bytes());
    if wanted {
        stream.flush();
        return End::DONE;
    }
    let tip = habits::tip(args, error);
    if let Some(tip) = tip {
        stream.write(format!("hint: {tip}\n").as_bytes());
    }
    stream.flush();
    // What could not be parsed may still have been written by a program that reads JSON.
    if args
        .iter()
        .take_while(|word| *word != "--")
        .any(|word| word == "--json")
    {
        output.use_json(JsonTo::Stdout);
        let message = error.to_string();
        let message = message
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("error: ");
        let error = Error::new(ErrorKind::Usage, message);
        output.error(&match tip {
            Some(tip) => error.with_hint(tip),
            None => error,
        });
    }
    End::of(ErrorKind::Usage)
}

fn report_panic(output: &mut Output, payload: &(dyn Any + Send)) -> End {
    let what = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown");
    let error = Error::new(ErrorKind::Internal, format!("internal error: {what}")).with_hint(
        "this is a defect of rdcp, not of your files; please report it with the command line and \
         the lines above",
    );
    output.error(&error);
    End::of(ErrorKind::Internal)
}

/// `-v`: what the library logs, on standard error.
fn trace(verbose: u8, output: &mut Output) {
    let level = match verbose {
        0 => return,
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = tracing_subscriber::EnvFilter::new(format!("warn,rdcp={level},rdcp_cli={level}"));
    // A second subscriber in one process is only met in tests.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(output.io().stderr.is_terminal())
        // It would report a broken pipe to the broken pipe, and panic.
        .log_internal_errors(false)
        .try_init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::tests::captured;

    fn run(line: &str) -> (u8, String, String) {
        let (io, out, err) = captured(false);
        let words = std::iter::once("rdcp")
            .chain(line.split_whitespace())
            .map(OsString::from);
        let status = run_with(words, io);
        (status.code(), out.text(), err.text())
    }

    #[test]
    fn help_is_a_success_on_standard_output() {
        for line in [
            "--help",
            "-h",
            "help",
            "help pull",
            "pull --help",
            "--version",
            "ls -h",
        ] {
            let (status, out, err) = run(line);
            assert_eq!((status, err.as_str()), (0, ""), "{line}");
            assert!(!out.is_empty(), "{line}");
        }
    }

    #[test]
    fn usage_errors_leave_standard_output_alone() {
        for line in [
            "",
            "pull",
            "frobnicate",
            "pull a b",
            "cp a b",
            "ls",
            "man nothing",
            "ping a/b",
            "status a/b",
        ] {
            let (status, out, err) = run(line);
            assert_eq!((status, out.as_str()), (2, ""), "{line}");
            assert!(!err.is_empty(), "{line}");
        }
    }

    #[test]
    fn usage_errors_end_json_with_a_summary() {
        for line in ["pull --json a b", "pull --json", "ls --json --frobnicate x"] {
            let (status, out, _) = run(line);
            assert_eq!(status, 2, "{line}");
            let lines = out.lines().map(|line| serde_json::from_str(line).unwrap());
            let kinds = lines
                .map(|line: serde_json::Value| line["type"].clone())
                .collect::<Vec<_>>();
            assert_eq!(kinds, ["error", "summary"], "{line}");
        }
        let (_, out, err) = run("pull --json -r h:/e/f -");
        assert!(out.is_empty() && err.contains("\"summary\""), "{err}");
    }

    #[test]
    fn panics_ask_for_a_report() {
        let (io, out, err) = captured(false);
        let mut output = Output::new(io);
        let payload = catch_unwind(|| panic!("boom {}", 1)).unwrap_err();
        let end = report_panic(&mut output, payload.as_ref());
        assert_eq!(output.finish(end).code(), 1);
        assert!(
            err.text()
                .starts_with("rdcp: internal error: boom 1\nhint: ")
                && out.text().is_empty()
        );
    }

    #[test]
    fn the_manual_and_completions_go_to_standard_output() {
        assert!(run("man").1.contains(".TH rdcp 1"));
        assert!(run("man pull").1.contains(".TH rdcp-pull 1"));
        assert!(run("completions fish").1.contains("complete -c rdcp"));
    }
}
