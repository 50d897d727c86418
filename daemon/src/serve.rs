//! Settings in, running server out: the only file that knows the library's server.

use std::io;
use std::path::PathBuf;

use rdcp::client::Identity;
use rdcp::server::{Server, ServerBuilder, ServerLimits};
use rdcp::{ErrorKind, TransportOffer};
use tracing::{info, warn};

use crate::audit::AuditLog;
use crate::export::CheckedExport;
use crate::settings::{AuthMode, Settings};
use crate::state_dir;

/// Why the daemon could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("signals can't be handled")]
    Signals(#[source] io::Error),
    #[error("the state directory {} can't be made", path.display())]
    StateDirectory { path: PathBuf, source: io::Error },
    #[error("the audit record {} can't be written", path.display())]
    Audit { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Server(#[from] rdcp::Error),
}

/// Starts the server and logs what an operator wants to see first.
pub(crate) async fn start(settings: &Settings) -> Result<(Server, Option<AuditLog>), StartError> {
    let state_dir = &settings.state_dir.value;
    state_dir::make(state_dir).map_err(|source| StartError::StateDirectory {
        path: state_dir.clone(),
        source,
    })?;
    let audit = settings.audit.as_ref().map(|audit| {
        AuditLog::open(&audit.value).map_err(|source| StartError::Audit {
            path: audit.value.clone(),
            source,
        })
    });
    let audit = audit.transpose()?;
    let mut builder = builder(settings)?;
    if let Some(audit) = &audit {
        let teller = audit.teller();
        builder = builder.audit(move |event| teller.tell(event));
    }
    let server = builder.start().await?;
    // Before it is said that it listens: whoever reads that may count on a server that runs.
    let transports = server.transports().await;
    announce(&server, settings, &transports);
    if let Some(audit) = &audit {
        audit.teller().note("daemon_started");
    }
    Ok((server, audit))
}

/// Offers what the settings say now in place of what they said before.
pub(crate) fn reload(server: &Server, settings: &Settings) -> Result<(), rdcp::Error> {
    server.reload(&builder(settings)?)?;
    for export in &settings.exports {
        tell(&export.value);
    }
    Ok(())
}

/// The server that the settings describe.
fn builder(settings: &Settings) -> Result<ServerBuilder, rdcp::Error> {
    let limits = ServerLimits::default().sessions_max(settings.sessions_max.value);
    let mut builder = Server::builder()
        .state_directory(&settings.state_dir.value)
        .limits(limits)
        .rdma(settings.rdma.options());
    builder = match settings.auth.as_ref().map(|auth| auth.value) {
        None => builder,
        Some(AuthMode::None) => builder.auth_none(true),
        Some(AuthMode::Keys) => authorized(builder, settings)?,
    };
    for address in &settings.listen.value {
        builder = builder.listen(*address);
    }
    for export in &settings.exports {
        builder = builder.export(export.value.offer());
    }
    Ok(builder)
}

/// Lets in whose keys are named, and by hand the starter.
fn authorized(
    mut builder: ServerBuilder,
    settings: &Settings,
) -> Result<ServerBuilder, rdcp::Error> {
    for key in &settings.authorize {
        builder = builder.authorize(key);
    }
    if let Some(file) = &settings.authorized_keys {
        builder = builder.authorized_keys(&file.value);
    }
    if settings.from_file {
        return Ok(builder);
    }
    let own = Identity::load()?;
    let names_others = settings.authorized_keys.is_some() || !settings.authorize.is_empty();
    match own {
        Some(own) => {
            info!(key = own.fingerprint, "the key of this user is authorized");
            Ok(builder.authorize(own.fingerprint))
        }
        None if names_others => Ok(builder),
        None => Err(rdcp::Error::new(
            ErrorKind::Usage,
            "nobody's key is authorized, and this user has none",
        )
        .with_hint("make one with 'rdcp keygen', or name a client's: --authorize SHA256:...")),
    }
}

fn announce(server: &Server, settings: &Settings, transports: &[TransportOffer]) {
    for address in server.local_addrs() {
        info!(%address, "listening");
    }
    info!(fingerprint = server.fingerprint(), "host key");
    for export in &settings.exports {
        tell(&export.value);
    }
    info!(reactor = server.reactor(), "data plane");
    for offer in transports {
        let (name, available) = (&offer.name, offer.available);
        info!(name, available, reason = offer.reason, "transport");
    }
    match settings.auth.as_ref().map(|auth| auth.value) {
        Some(AuthMode::None) => warn!(
            "AUTHENTICATION IS OFF (auth = none): everybody who reaches this port may read the \
             exports and change the writable ones"
        ),
        Some(AuthMode::Keys) => info!("clients are let in by their keys"),
        None => info!("clients are not authenticated: every user of this host may use the exports"),
    }
    if rustix::process::geteuid().is_root() {
        warn!("running as root: files are read and written as root; run rdcpd as its own user");
    }
}

fn tell(export: &CheckedExport) {
    let access = &export.access;
    info!(
        name = export.name,
        path = ?export.path,
        rights = access.words(),
        clients = access.clients.as_ref().map(Vec::len),
        from = (!access.networks.is_empty()).then(|| access.networks.join(",")),
        "export"
    );
}
