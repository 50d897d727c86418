//! Log lines: one each, on standard error, as text or JSON.

use std::env;
use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use crate::settings::{LogFormat, Settings};

/// Begins to log. Called once; a second call would change nothing.
pub(crate) fn start(settings: &Settings) {
    // The filter was checked when the settings were made.
    let filter = EnvFilter::new(&settings.log_filter.value);
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // A reader of the log that has gone away must not take the daemon with it.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none());
    let begun = match settings.log_format.value {
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
        // The journal stamps its lines itself (systemd.exec(5), JOURNAL_STREAM).
        LogFormat::Text if env::var_os("JOURNAL_STREAM").is_some() => {
            lines.without_time().try_init()
        }
        LogFormat::Text => lines.try_init(),
    };
    // It fails only if logging has begun before, and then the lines go there.
    drop(begun);
}
