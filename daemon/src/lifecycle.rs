//! From start to end: the server runs until a signal, running transfers get time to end, a second
//! signal does not wait for them. SIGUSR1 ends nothing: it has the state told. Nor does SIGHUP where there
//! is a configuration file: it is read again.

use std::process::ExitCode;

use rdcp::server::Server;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinError;
use tracing::{error, info, warn};

use crate::args::Args;
use crate::audit::AuditLog;
use crate::config::problem::Problems;
use crate::logging::Filter;
use crate::serve::{self, StartError};
use crate::settings::Settings;

/// Serves until told to end; the exit code is 0 after a drain, 128 + signal after a second signal.
pub(crate) async fn run(
    args: &Args,
    mut settings: Settings,
    filter: &Filter,
) -> Result<ExitCode, StartError> {
    // A terminal that closes sends it; a service is told so to read its configuration again.
    let by_hand = !settings.from_file;
    // Before the server starts, so that a signal in between is not lost.
    let mut signals = Signals::install().map_err(StartError::Signals)?;
    raise_file_limit();
    let asked = signal(SignalKind::user_defined1()).map_err(StartError::Signals)?;
    tokio::spawn(tell_state(asked));
    let (server, audit) = tokio::select! {
        started = serve::start(&settings) => started?,
        (name, _) = signals.end(by_hand) => {
            info!(signal = name, "ended before the server had started");
            return Ok(ExitCode::SUCCESS);
        }
    };
    let name = loop {
        if let Told::End(name) = signals.next(by_hand).await {
            break name;
        }
        // One that comes meanwhile is kept for the next round.
        let args = args.clone();
        let reading = tokio::task::spawn_blocking(move || Settings::load(args));
        tokio::select! {
            read = reading => reload(&server, &mut settings, read, filter, audit.as_ref()),
            // What a dead file system holds up must not keep the daemon from ending.
            (name, _) = signals.end(by_hand) => break name,
        }
    };
    let _ended = RecordEnd(audit);
    let grace = settings.drain.value;
    info!(
        signal = name,
        grace_seconds = grace.as_secs(),
        "draining: no new sessions; a second signal ends at once"
    );
    tokio::select! {
        () = server.shutdown(grace) => {
            info!("ended");
            Ok(ExitCode::SUCCESS)
        }
        (name, number) = signals.end(by_hand) => {
            warn!(signal = name, "ended at once: transfers that were running have failed");
            Ok(ExitCode::from(128 + number))
        }
    }
}

/// SIGUSR1: says in the log what runs, for an operator who wonders why something stands still.
async fn tell_state(mut asked: Signal) {
    while asked.recv().await.is_some() {
        for line in rdcp::describe_activity().await {
            // Somebody asked for it, so no ordinary filter drops it.
            warn!("state: {line}");
        }
    }
}

/// Has what was read again offered; what is wrong with it is told, and then all stays as it was.
fn reload(
    server: &Server,
    settings: &mut Settings,
    read: Result<Result<Settings, Problems>, JoinError>,
    filter: &Filter,
    audit: Option<&AuditLog>,
) {
    const STAYS: &str = "the configuration was not taken: all stays as it was";
    if let Some(audit) = audit {
        // It may have been renamed, whatever becomes of the rest.
        audit.reopen();
    }
    let next = match read {
        Ok(Ok(next)) => next,
        Ok(Err(problems)) => {
            for problem in problems.iter() {
                error!(%problem, "{STAYS}");
            }
            return;
        }
        Err(error) => return error!(problem = %error, "{STAYS}"),
    };
    if next.log_format.value != settings.log_format.value {
        let problem = format!(
            "{}: the form of log lines can't be changed while the daemon runs; start it again for that",
            next.log_format.source
        );
        return error!(problem, "{STAYS}");
    }
    let place = |settings: &Settings| settings.audit.as_ref().map(|audit| audit.value.clone());
    if place(&next) != place(settings) {
        let problem =
            "the audit record can't be moved while the daemon runs; start it again for that";
        return error!(problem, "{STAYS}");
    }
    // It opens directories, which were looked at a moment ago.
    match tokio::task::block_in_place(|| serve::reload(server, &next)) {
        Ok(()) => {
            filter.set(&next);
            *settings = next;
            if let Some(audit) = audit {
                audit.teller().note("configuration_taken");
            }
            info!(
                exports = settings.exports.len(),
                "the configuration was read again"
            );
        }
        Err(error) => error!(problem = crate::in_one_line(&error), "{STAYS}"),
    }
}

/// Ends the record of who did what, however the daemon ends.
struct RecordEnd(Option<AuditLog>);

impl Drop for RecordEnd {
    fn drop(&mut self) {
        if let Some(audit) = self.0.take() {
            audit.teller().note("daemon_ended");
            audit.end();
        }
    }
}

/// What a signal says.
enum Told {
    End(&'static str),
    Reload,
}

/// The signals that the daemon is told things by.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn install() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self, by_hand: bool) -> Told {
        let Self {
            terminate,
            interrupt,
            hang_up,
        } = self;
        tokio::select! {
            _ = terminate.recv() => Told::End("SIGTERM"),
            _ = interrupt.recv() => Told::End("SIGINT"),
            _ = hang_up.recv() => if by_hand { Told::End("SIGHUP") } else { Told::Reload },
        }
    }

    /// The next one that ends the daemon.
    async fn end(&mut self, by_hand: bool) -> (&'static str, u8) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", 15),
            _ = self.interrupt.recv() => ("SIGINT", 2),
            _ = self.hang_up.recv(), if by_hand => ("SIGHUP", 1),
        }
    }
}

/// Each session takes several descriptors, and each file under way one; the soft limit that a
/// login gives (1024) is meant for programs that use select(2).
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        warn!(%error, "the limit of open files can't be raised: set LimitNOFILE");
    }
}
