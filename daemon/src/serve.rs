//! Settings in, running server out: the only file that knows the library's server.

use std::io;
use std::path::PathBuf;

use rdcp::TransportOffer;
use rdcp::server::{Server, ServerLimits};
use tracing::{info, warn};

use crate::settings::Settings;
use crate::state_dir;

/// Why the daemon could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("signals can't be handled")]
    Signals(#[source] io::Error),
    #[error("the state directory {} can't be made", path.display())]
    StateDirectory { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Server(#[from] rdcp::Error),
}

/// Starts the server and logs what an operator wants to see first.
pub(crate) async fn start(settings: &Settings) -> Result<Server, StartError> {
    let state_dir = &settings.state_dir.value;
    state_dir::make(state_dir).map_err(|source| StartError::StateDirectory {
        path: state_dir.clone(),
        source,
    })?;
    let limits = ServerLimits::default().sessions_max(settings.sessions_max.value);
    let mut builder = Server::builder()
        .state_directory(state_dir)
        .auth_none(settings.auth.is_some())
        .limits(limits)
        .rdma(settings.rdma.options());
    for address in &settings.listen.value {
        builder = builder.listen(*address);
    }
    for export in &settings.exports {
        builder = builder.export(export.value.offer());
    }
    let server = builder.start().await?;
    // Before it is said that it listens: whoever reads that may count on a server that runs.
    let transports = server.transports().await;
    announce(&server, settings, &transports);
    Ok(server)
}

fn announce(server: &Server, settings: &Settings, transports: &[TransportOffer]) {
    for address in server.local_addrs() {
        info!(%address, "listening");
    }
    info!(fingerprint = server.fingerprint(), "host key");
    for export in &settings.exports {
        let export = &export.value;
        info!(name = export.name, path = ?export.path, writable = export.writable, "export");
    }
    info!(reactor = server.reactor(), "data plane");
    for offer in transports {
        let (name, available) = (&offer.name, offer.available);
        info!(name, available, reason = offer.reason, "transport");
    }
    if settings.auth.is_some() {
        warn!(
            "AUTHENTICATION IS OFF (auth = none): everybody who reaches this port may read the \
             exports and change the writable ones"
        );
    } else {
        info!("clients are not authenticated: every user of this host may use the exports");
    }
    if rustix::process::geteuid().is_root() {
        warn!("running as root: files are read and written as root; run rdcpd as its own user");
    }
}
