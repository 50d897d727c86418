//! The daemon's configuration: any text is a configuration or a list of problems, each with a place
//! in the file. The daemon is a program and no library, so its parser's files are taken in here.
#![no_main]
// Most of them is for the daemon alone.
#![allow(dead_code)]

#[path = "../../../daemon/src/args.rs"]
mod args;
#[path = "../../../daemon/src/config/mod.rs"]
mod config;
#[path = "../../../daemon/src/export.rs"]
mod export;
#[path = "../../../daemon/src/settings.rs"]
mod settings;
#[path = "../../../daemon/src/state_dir.rs"]
mod state_dir;

use std::error::Error;
use std::path::Path;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Err(problems) = config::Config::parse(Path::new("f.toml"), text) {
        assert!(!problems.is_empty());
        let lines = 1 + text.bytes().filter(|byte| *byte == b'\n').count();
        for problem in problems.iter() {
            let told = problem.to_string();
            let place = told.strip_prefix("f.toml:").and_then(|rest| rest.split_once(": "));
            let line = place.and_then(|(line, _)| line.parse::<usize>().ok());
            assert!(line.is_some_and(|line| (1..=lines).contains(&line)), "{told:?}");
            // It goes to a terminal.
            assert!(!told.contains(|letter: char| letter.is_control()), "{told:?}");
        }
    }
});

/// As in the daemon's `main.rs`.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
