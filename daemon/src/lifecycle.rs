//! From start to end: the server runs until a signal, running transfers get time to end, a second
//! signal does not wait for them. SIGUSR1 ends nothing: it has the state told.

use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use crate::serve::{self, StartError};
use crate::settings::Settings;

/// Serves until told to end; the exit code is 0 after a drain, 128 + signal after a second signal.
pub(crate) async fn run(settings: &Settings) -> Result<ExitCode, StartError> {
    // Before the server starts, so that a signal in between is not lost.
    let mut signals = Signals::install().map_err(StartError::Signals)?;
    raise_file_limit();
    let asked = signal(SignalKind::user_defined1()).map_err(StartError::Signals)?;
    tokio::spawn(tell_state(asked));
    let server = tokio::select! {
        started = serve::start(settings) => started?,
        (name, _) = signals.next() => {
            info!(signal = name, "ended before the server had started");
            return Ok(ExitCode::SUCCESS);
        }
    };
    let (name, _) = signals.next().await;
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
        (name, number) = signals.next() => {
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

/// The signals that end the daemon. SIGHUP is what a closing terminal sends.
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

    async fn next(&mut self) -> (&'static str, u8) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", 15),
            _ = self.interrupt.recv() => ("SIGINT", 2),
            _ = self.hang_up.recv() => ("SIGHUP", 1),
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
