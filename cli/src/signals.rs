//! SIGINT and SIGTERM: the first asks the run to end in order, the second ends the process. SIGUSR1 has
//! the process say what it does.

use std::io::Write as _;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::exit::ExitStatus;

/// Tells of the first signal.
#[derive(Clone)]
pub(crate) struct Signals {
    first: watch::Receiver<Option<ExitStatus>>,
}

impl Signals {
    /// Listens from now on; needs a runtime.
    pub(crate) fn listen() -> std::io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut asked = signal(SignalKind::user_defined1())?;
        tokio::spawn(async move {
            while asked.recv().await.is_some() {
                let mut text = String::new();
                for line in rdcp::describe_activity().await {
                    text.push_str(&format!("rdcp: state: {line}\n"));
                }
                // In one piece, whatever else is written there; who asked and does not read gets nothing.
                let _ = std::io::stderr().write_all(text.as_bytes());
            }
        });
        let (sender, first) = watch::channel(None);
        tokio::spawn(async move {
            let status = next(&mut interrupt, &mut terminate).await;
            // Without a receiver the run is over anyway.
            let _ = sender.send(Some(status));
            let again = next(&mut interrupt, &mut terminate).await;
            std::process::exit(i32::from(again.code()));
        });
        Ok(Self { first })
    }

    /// Waits for the first signal; later calls return at once.
    pub(crate) async fn first(&mut self) -> ExitStatus {
        let found = self
            .first
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|status| *status);
        match found {
            Some(status) => status,
            // The listener ends with the runtime only, and so does this.
            None => std::future::pending().await,
        }
    }
}

async fn next(interrupt: &mut Signal, terminate: &mut Signal) -> ExitStatus {
    tokio::select! {
        _ = interrupt.recv() => ExitStatus::INTERRUPTED,
        _ = terminate.recv() => ExitStatus::TERMINATED,
    }
}
