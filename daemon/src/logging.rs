//! Log lines: one each, on standard error, as text or JSON.

use std::env;
use std::io::{self, IsTerminal};

use tracing_subscriber::fmt::{FormatEvent, FormatFields, MakeWriter, SubscriberBuilder};
use tracing_subscriber::{EnvFilter, Registry};

use crate::args::Args;
use crate::settings::{LogFormat, Settings};

/// Sets what is logged from now on.
pub(crate) struct Filter(Box<dyn Fn(EnvFilter) + Send + Sync>);

impl Filter {
    /// Logs what these settings say.
    pub(crate) fn set(&self, settings: &Settings) {
        (self.0)(filter(settings));
    }
}

/// It was checked when the settings were made.
fn filter(settings: &Settings) -> EnvFilter {
    EnvFilter::new(&settings.log_filter.value)
}

/// Begins to log. Called once; a second call would change nothing.
pub(crate) fn start(settings: &Settings) -> Filter {
    start_with(filter(settings), settings.log_format.value)
}

/// The same for a daemon whose standard error is somebody's terminal: it tells what it was asked to, else errors.
pub(crate) fn start_quiet(args: &Args) {
    let level = match args.verbose {
        0 => "error",
        1 => "debug",
        _ => "trace",
    };
    // What is no filter is told by those that the words do make.
    let filter = EnvFilter::new(args.log_filter.as_deref().unwrap_or(level));
    start_with(filter, args.log_format.unwrap_or(LogFormat::Text));
}

fn start_with(filter: EnvFilter, format: LogFormat) -> Filter {
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // A reader of the log that has gone away must not take the daemon with it.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none());
    match format {
        LogFormat::Json => begin(lines.json().flatten_event(true)),
        // The journal stamps its lines itself (systemd.exec(5), JOURNAL_STREAM).
        LogFormat::Text if env::var_os("JOURNAL_STREAM").is_some() => begin(lines.without_time()),
        LogFormat::Text => begin(lines),
    }
}

fn begin<N, E, W>(lines: SubscriberBuilder<N, E, EnvFilter, W>) -> Filter
where
    N: for<'writer> FormatFields<'writer> + Send + Sync + 'static,
    E: FormatEvent<Registry, N> + Send + Sync + 'static,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let lines = lines.with_filter_reloading();
    let handle = lines.reload_handle();
    // It fails only if logging has begun before, and then the lines go there.
    drop(lines.try_init());
    // It fails only once nothing is logged any more.
    Filter(Box::new(move |filter| drop(handle.reload(filter))))
}
