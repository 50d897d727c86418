//! Checks the verbs layer against a real device:
//! `verbs_check [--cm ADDRESS] [--down INTERFACE] DIRECTORY...`, or
//! `verbs_check --cm-refused ADDRESS:PORT`.
//!
//! Two queue pairs of the first InfiniBand or RoCE device are connected to each other, and files in
//! the directories are served by each way of registering memory. Prints a line per check; exit
//! status 1 if one failed, 2 if there is nothing to check here. With `--cm`, which names an address
//! of the device's network interface, a connection by rdma_cm is checked as well; with `--down` that
//! interface is taken down and up again, to see what the device tells of it. With `--cm-refused`
//! nothing is checked but that an rdcpd which listens there refuses requests that it did not invite.
//! Needs no more than
//! soft-RoCE, so it runs in a virtual machine. Not part of `cargo test`: where there is no
//! device it could not fail.

mod cm;
mod events;
mod fabric;
mod files;
mod reads;

use std::io::{self, Write};
use std::process::ExitCode;

use fabric::Fabric;

/// More than a listener refuses without a pause.
const UNINVITED: usize = 100;

/// What a check says for itself, or why it failed.
type Outcome = Result<String, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let mut directories = Vec::new();
    let (mut cm_address, mut cm_listener, mut interface) = (None, None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--cm" => cm_address = arguments.next(),
            "--cm-refused" => cm_listener = arguments.next(),
            "--down" => interface = arguments.next(),
            _ => directories.push(argument),
        }
    }
    let fabric = match Fabric::open() {
        Ok(fabric) => fabric,
        Err(error) => {
            say(&format!("nothing to check: {error}"));
            return ExitCode::from(2);
        }
    };
    let mut failures = 0;
    let mut check = |name: &str, outcome: Outcome| match outcome {
        Ok(text) => say(&format!("ok      {name}: {text}")),
        Err(error) => {
            failures += 1;
            say(&format!("FAILED  {name}: {}", chain(&*error)));
        }
    };
    if let Some(listener) = cm_listener {
        check(
            "uninvited requests",
            cm::refused(&fabric, &listener, UNINVITED),
        );
        say(&format!("{failures} checks failed"));
        return if failures == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    check("device", fabric.describe());
    check("slot to slot", reads::between_slots(&fabric));
    check("completion events", reads::woken_by_event(&fabric));
    check("what can't be posted", reads::refused_posts(&fabric));
    check("beyond the region", reads::beyond_the_region(&fabric));
    check("after deregistration", reads::after_deregistration(&fabric));
    check("taken down", reads::taken_down(&fabric));
    check("destroyed", reads::destroyed(&fabric));
    check("room in a completion queue", reads::room(&fabric));
    check("200 cycles", reads::cycles(&fabric, 200));
    for directory in &directories {
        check(
            &format!("files in {directory}"),
            files::served(&fabric, directory),
        );
    }
    if let Some(address) = cm_address {
        check("rdma_cm", cm::connected(&fabric, &address));
        check("rdma_cm, rejected", cm::rejected(&fabric, &address));
    }
    if let Some(interface) = interface {
        check("device events", events::told(&fabric, &interface));
    }
    say(&format!("{failures} checks failed"));
    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn say(line: &str) {
    // Whoever reads may have gone; the exit status tells as well.
    let _ = writeln!(io::stdout(), "{line}");
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
