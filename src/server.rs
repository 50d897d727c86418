//! The server's half of the public interface: exports, listening, ending.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::audit::{AuditEvent, Auditor};
use crate::error::{Error, ErrorKind};
use crate::limits::{EXPORT_NAME_BYTES_MAX, STREAMS_MAX};
use crate::options::RdmaOptions;
use crate::session::clients::{Admission, Audience, AuthorizedKeys, AuthorizedKeysError, Rights};
pub use crate::session::counters::RdmaCounts;
use crate::session::counters::counters;
use crate::session::machinery::machinery;
use crate::session::own_key::{Fingerprint, FingerprintError, OwnKey};
use crate::session::rails::network::IpNetwork;
use crate::session::serving::{self, Exported, Offered, Serving};
use crate::session::sweeping;
use crate::session::tls::{self, ClientKeys};
use crate::storage::within::leads_through;
use crate::storage::{Identity, Root};
use crate::wire::message::TransportOffer;

/// A directory that a server offers under a name.
#[derive(Clone, Debug)]
pub struct Export {
    name: String,
    path: PathBuf,
    rights: String,
    clients: Option<Vec<String>>,
    networks: Vec<String>,
    unverified: Option<bool>,
}

impl Export {
    /// Offers the directory `path` under `name`, for reading.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
            rights: Rights::READING.to_string(),
            clients: None,
            networks: Vec::new(),
            unverified: None,
        }
    }

    /// Whether clients may also write, replace and remove. In place of all other rights.
    #[must_use]
    pub fn writable(self, writable: bool) -> Self {
        let rights = if writable {
            Rights::ALL
        } else {
            Rights::READING
        };
        self.rights(rights.to_string())
    }

    /// What clients may do at most, as words with commas between them: `list`, `read` (lists too), `create`,
    /// `overwrite`, `delete`. What a client's key allows limits that further. Default: `list,read`.
    #[must_use]
    pub fn rights(mut self, rights: impl Into<String>) -> Self {
        self.rights = rights.into();
        self
    }

    /// Shows it to clients with one of these keys alone (`SHA256:...`), on a server that asks for keys.
    /// Default: to all that are let in.
    #[must_use]
    pub fn clients(mut self, keys: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.clients = Some(keys.into_iter().map(Into::into).collect());
        self
    }

    /// Shows it to clients from these networks alone (`192.0.2.0/24`, or one address). Default: to all.
    #[must_use]
    pub fn networks(mut self, networks: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.networks = networks.into_iter().map(Into::into).collect();
        self
    }

    /// Whether clients may copy what no digest proves: with `Hash::None`, and in held regions. Default: while the
    /// server listens on loopback addresses alone, where nothing is on the way that could change it.
    #[must_use]
    pub fn unverified(mut self, allowed: bool) -> Self {
        self.unverified = Some(allowed);
        self
    }

    /// Looks whether it can be served, without serving it.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a name that can't be an export's and for words that make no sense, else
    /// what opening the directory says.
    pub fn check(&self) -> Result<(), Error> {
        self.check_name()?;
        self.rules()?;
        self.open().map(drop)
    }

    /// Whether clients could read a file or directory that is there already or to be made, or put another in its
    /// place: it lies in the export, or a link on the way to it does, or what is mounted there shows it. What is
    /// mounted or linked later is not known.
    ///
    /// # Errors
    /// What looking at either says.
    pub fn holds(&self, path: &Path) -> Result<bool, Error> {
        leads_through(&self.path, path).map_err(|error| {
            let message = format!(
                "can't tell whether {} is in {}: {error}",
                path.display(),
                self.path.display()
            );
            Error::new(ErrorKind::Storage, message)
        })
    }

    /// What clients may do there, and which.
    fn rules(&self) -> Result<(Rights, Audience), Error> {
        let usage =
            |what: String| Error::new(ErrorKind::Usage, format!("export {}: {what}", self.name));
        let rights = self.rights.parse().map_err(usage)?;
        let keys = self.clients.as_ref();
        let keys = keys
            .map(|keys| keys.iter().map(|key| key_of(key)).collect())
            .transpose()?;
        let networks = self.networks.iter().map(|text| IpNetwork::or_address(text));
        let networks = networks.collect::<Result<_, _>>().map_err(usage)?;
        Ok((rights, Audience { keys, networks }))
    }

    fn check_name(&self) -> Result<(), Error> {
        let name = &self.name;
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let fits = !name.is_empty() && name.len() <= EXPORT_NAME_BYTES_MAX;
        // `.` and `..` would be taken for directories in a remote path.
        if fits && name.bytes().all(good) && !name.starts_with('.') {
            return Ok(());
        }
        let shown: String = name.chars().take(EXPORT_NAME_BYTES_MAX + 1).collect();
        Err(Error::new(
            ErrorKind::Usage,
            format!("{shown:?} can't be an export's name"),
        )
        .with_hint(format!(
            "write 1 to {EXPORT_NAME_BYTES_MAX} letters, digits, '.', '_' and '-', without a \
                 dot in front"
        )))
    }

    fn open(&self) -> Result<Root, Error> {
        Root::open(&self.path, Identity::current()).map_err(|error| Error::from(error.fault()))
    }
}

/// What a server takes on at most. A client beyond a limit is told to try again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Sessions at once. Default 1024: an idle one costs some tens of KiB. One address gets seven
    /// eighths of them at most; when all are taken, an idle one gives way for a new one.
    pub sessions_max: usize,
    /// Connections whose handshake is not done. Default 1024. Beyond it, and beyond the share of one
    /// address, the oldest that has taken more than a second is let go.
    pub handshakes_max: usize,
    /// Data connections of one session. Default 16.
    pub data_connections_max: u16,
    /// Transfers and operations of one session at once. Default 64.
    pub transfers_max: usize,
}

impl ServerLimits {
    /// The same with another number of sessions at once.
    #[must_use]
    pub fn sessions_max(mut self, sessions: usize) -> Self {
        self.sessions_max = sessions;
        self
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            sessions_max: 1024,
            handshakes_max: 1024,
            data_connections_max: 16,
            transfers_max: 64,
        }
    }
}

/// What a server is made of, before it runs.
#[derive(Debug, Default)]
pub struct ServerBuilder {
    exports: Vec<Export>,
    listen: Vec<SocketAddr>,
    state_directory: Option<PathBuf>,
    auth_none: bool,
    keys_said: Vec<String>,
    keys_file: Option<PathBuf>,
    limits: ServerLimits,
    rdma: RdmaOptions,
    auditor: Auditor,
    unswept: bool,
}

/// The host key's file in the state directory.
pub const HOST_KEY_FILE: &str = "host_key.pem";

impl ServerBuilder {
    /// Adds an export.
    #[must_use]
    pub fn export(mut self, export: Export) -> Self {
        self.exports.push(export);
        self
    }

    /// Adds an address to listen on. Port 0 lets the system choose.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen.push(address);
        self
    }

    /// Where the host key is kept, or made at the first start. Without it the key lasts as long as
    /// the server.
    #[must_use]
    pub fn state_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.state_directory = Some(directory.into());
        self
    }

    /// Lets in clients that prove the key with this fingerprint (`SHA256:...`, as `rdcp keygen` prints
    /// it), with every right that the exports give. With it, or with [`Self::authorized_keys`], all
    /// clients have to prove a key.
    #[must_use]
    pub fn authorize(mut self, fingerprint: impl Into<String>) -> Self {
        self.keys_said.push(fingerprint.into());
        self
    }

    /// Lets in clients that prove a key listed in this file. Each line is
    /// `[OPTIONS] SHA256:... [COMMENT]`; options are `export="a,b"`, `rights="list,read"` (also create,
    /// overwrite, delete), `from="10.0.0.0/8,::1"` and `expires="2027-01-31"`, with commas between them.
    /// The file is read again when it changes; a key that is taken out loses its sessions within
    /// seconds.
    #[must_use]
    pub fn authorized_keys(mut self, file: impl Into<PathBuf>) -> Self {
        self.keys_file = Some(file.into());
        self
    }

    /// Lets anybody who reaches the server use its exports. Without it, and without keys that clients
    /// have to prove, only loopback addresses can be listened on.
    #[must_use]
    pub fn auth_none(mut self, auth_none: bool) -> Self {
        self.auth_none = auth_none;
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how RDMA is used.
    #[must_use]
    pub fn rdma(mut self, rdma: RdmaOptions) -> Self {
        self.rdma = rdma;
        self
    }

    /// Whether what copies that died left in writable exports is removed, at the start and once a day. Default: yes.
    #[must_use]
    pub fn sweep(mut self, sweep: bool) -> Self {
        self.unswept = !sweep;
        self
    }

    /// Has somebody told who does what, to be kept. Called from the server's tasks: it must not wait for
    /// anything, a disk for example.
    #[must_use]
    pub fn audit(mut self, told: impl Fn(&AuditEvent) + Send + Sync + 'static) -> Self {
        self.auditor = Auditor::new(told);
        self
    }

    /// Starts to listen and serve.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for what makes no sense, [`ErrorKind::Unreachable`] if an address can't
    /// be listened on, [`ErrorKind::Storage`] if a directory or the host key can't be used.
    pub async fn start(self) -> Result<Server, Error> {
        self.check()?;
        let machinery = machinery()?;
        let key = match &self.state_directory {
            Some(directory) => OwnKey::load_or_create(&directory.join(HOST_KEY_FILE)),
            None => OwnKey::ephemeral(),
        };
        let key = key.map_err(|error| {
            Error::new(ErrorKind::Storage, "the host key can't be used").with_source(error)
        })?;
        let offered = self.offered(&key)?;
        let mut listeners = Vec::with_capacity(self.listen.len());
        for address in &self.listen {
            let unreachable = |error: std::io::Error| {
                Error::new(ErrorKind::Unreachable, format!("can't listen on {address}"))
                    .with_source(error)
                    .with_hint("is another daemon running, or the port below 1024?")
            };
            listeners.push(TcpListener::bind(address).await.map_err(unreachable)?);
        }
        let local_addrs = listeners
            .iter()
            .filter_map(|listener| listener.local_addr().ok())
            .collect();
        let serving = Serving::new(machinery, offered, self.rdma.clone(), self.auditor.clone());
        let mut tasks: Vec<_> = listeners
            .into_iter()
            .map(|listener| tokio::spawn(serving::accept(Arc::clone(&serving), listener)))
            .collect();
        tasks.push(tokio::spawn(serving::watch_keys(Arc::clone(&serving))));
        if !self.unswept {
            tasks.push(tokio::spawn(sweeping::sweep_daily(Arc::clone(&serving))));
        }
        Ok(Server {
            local_addrs,
            key,
            begun_as: self,
            serving,
            tasks,
        })
    }

    /// What it is to offer, opened. Looks at files, and may wait for them.
    fn offered(&self, key: &OwnKey) -> Result<Offered, Error> {
        let mut exports = Vec::with_capacity(self.exports.len());
        let is_near = self.listen.iter().all(|address| address.ip().is_loopback());
        for export in &self.exports {
            self.check_own_files(export)?;
            let (rights, audience) = export.rules()?;
            exports.push(Arc::new(Exported {
                name: export.name.clone(),
                root: Arc::new(export.open()?),
                rights,
                audience,
                unverified: export.unverified.unwrap_or(is_near),
            }));
        }
        let admission = self.admission()?;
        let asked = match admission {
            Admission::Everybody => ClientKeys::Unasked,
            Admission::Keys(_) => ClientKeys::Asked,
        };
        let tls = tls::server_config(key, asked).map_err(|error| {
            Error::new(ErrorKind::Internal, "TLS can't be set up").with_source(error)
        })?;
        Ok(Offered {
            exports,
            admission: Arc::new(admission),
            tls,
            limits: self.limits,
        })
    }

    /// What a running server can't be given in place of what it began with.
    fn fixed_that_differs(&self, other: &Self) -> Option<&'static str> {
        let differing = [
            (self.listen != other.listen, "the addresses to listen on"),
            (
                self.state_directory != other.state_directory,
                "the state directory",
            ),
            (self.rdma != other.rdma, "the use of RDMA"),
            (
                self.limits.handshakes_max != other.limits.handshakes_max,
                "the limit of handshakes",
            ),
        ];
        differing
            .into_iter()
            .find_map(|(differs, what)| differs.then_some(what))
    }

    /// Whoever may read the server's own files could pass for it, and who may write them, let himself in.
    fn check_own_files(&self, export: &Export) -> Result<(), Error> {
        let host_key = self
            .state_directory
            .as_ref()
            .map(|state| state.join(HOST_KEY_FILE));
        for own in self
            .state_directory
            .iter()
            .chain(&host_key)
            .chain(&self.keys_file)
        {
            if export.holds(own)? {
                let (name, path) = (&export.name, &export.path);
                return Err(Error::new(
                    ErrorKind::Usage,
                    format!(
                        "export {name} ({}) holds {}, which is the server's own",
                        path.display(),
                        own.display()
                    ),
                )
                .with_hint("export a directory below, or keep the server's own files elsewhere"));
            }
        }
        Ok(())
    }

    fn asks_for_keys(&self) -> bool {
        self.keys_file.is_some() || !self.keys_said.is_empty()
    }

    /// Whom the server lets in. Reads the file of keys.
    fn admission(&self) -> Result<Admission, Error> {
        if !self.asks_for_keys() {
            return Ok(Admission::Everybody);
        }
        let mut said = Vec::new();
        for text in &self.keys_said {
            said.push(key_of(text)?);
        }
        AuthorizedKeys::new(said, self.keys_file.clone())
            .map(Admission::Keys)
            .map_err(unusable_keys)
    }

    fn check(&self) -> Result<(), Error> {
        self.rdma.check()?;
        let usage = |message: String| Err(Error::new(ErrorKind::Usage, message));
        if self.exports.is_empty() {
            return usage("a server without exports serves nothing".to_owned());
        }
        for (at, export) in self.exports.iter().enumerate() {
            let name = &export.name;
            export.check_name()?;
            if self.exports[..at].iter().any(|other| other.name == *name) {
                return usage(format!("two exports are called {name}"));
            }
            if export.clients.is_some() && !self.asks_for_keys() {
                return usage(format!(
                    "export {name} is for certain keys, and this server asks nobody for a key"
                ));
            }
        }
        if self.listen.is_empty() {
            return usage("no address to listen on".to_owned());
        }
        if self.auth_none && self.asks_for_keys() {
            return usage("either everybody is let in, or who proves a key".to_owned());
        }
        for address in &self.listen {
            if !self.auth_none && !self.asks_for_keys() && !address.ip().is_loopback() {
                return Err(Error::new(
                    ErrorKind::Usage,
                    format!(
                        "{address} can be reached by others, and clients don't prove who they are"
                    ),
                )
                .with_hint(
                    "authorize keys of clients, listen on 127.0.0.1 or [::1], or say auth = \"none\" \
                     to let anybody in",
                ));
            }
        }
        if usize::from(self.limits.data_connections_max) > STREAMS_MAX
            || self.limits.data_connections_max == 0
        {
            return usage(format!(
                "data connections per session must be 1 to {STREAMS_MAX}"
            ));
        }
        Ok(())
    }
}

/// Looks whether a file of authorized keys can be used.
///
/// # Errors
/// [`ErrorKind::Usage`]: it can't be read, others may write it, or a line makes no sense.
pub fn check_authorized_keys(file: &Path) -> Result<(), Error> {
    AuthorizedKeys::new(Vec::new(), Some(file.to_owned()))
        .map(drop)
        .map_err(unusable_keys)
}

/// Looks whether a text is a key's fingerprint, as `rdcp keygen` prints it.
///
/// # Errors
/// [`ErrorKind::Usage`]: it is not.
pub fn check_key(text: &str) -> Result<(), Error> {
    key_of(text).map(drop)
}

fn key_of(text: &str) -> Result<Fingerprint, Error> {
    let wrong = |error: FingerprintError| {
        Error::new(ErrorKind::Usage, format!("{text:?} is no key: {error}"))
            .with_hint("'rdcp keygen' prints the key of its user")
    };
    text.parse().map_err(wrong)
}

fn unusable_keys(error: AuthorizedKeysError) -> Error {
    let message = "the file of authorized keys can't be used";
    Error::new(ErrorKind::Usage, message).with_source(error)
}

/// A running server. Dropping it ends it at once.
pub struct Server {
    local_addrs: Vec<SocketAddr>,
    key: OwnKey,
    begun_as: ServerBuilder,
    serving: Arc<Serving>,
    tasks: Vec<JoinHandle<()>>,
}

impl Server {
    /// Begins to describe a server.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// The addresses that it listens on.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// What clients pin: `SHA256:` and the digest of its public key.
    pub fn fingerprint(&self) -> String {
        self.key.fingerprint().to_string()
    }

    /// Offers from now on what `next` says: its exports, the keys that it lets in, its limits. All of it or,
    /// with an error, nothing. Sessions of clients that lose something by it end at once, with everything
    /// that is exposed to them; their clients connect again, and go on with what is still theirs. New sessions
    /// and requests of old ones get what is offered now.
    ///
    /// Opens files, and may wait for them: not for an async task of a server that others wait for.
    ///
    /// # Errors
    /// What [`ServerBuilder::start`] says, and [`ErrorKind::Usage`] if `next` differs in what a running server
    /// keeps: addresses, state directory, RDMA, the limit of handshakes.
    pub fn reload(&self, next: &ServerBuilder) -> Result<(), Error> {
        next.check()?;
        if let Some(what) = self.begun_as.fixed_that_differs(next) {
            let text = format!("{what} can't be changed while the server runs");
            return Err(Error::new(ErrorKind::Usage, text).with_hint("start it again for that"));
        }
        self.serving.offer(next.offered(&self.key)?);
        Ok(())
    }

    /// What moves the bytes: `io_uring`, or a readiness loop and why.
    pub fn reactor(&self) -> String {
        let reactor = self.serving.machinery.lanes.describe();
        if reactor.uring {
            "io_uring".to_owned()
        } else {
            format!("readiness loop: {}", reactor.reason)
        }
    }

    /// What clients are told of the transports here.
    pub async fn transports(&self) -> Vec<TransportOffer> {
        self.serving.transports().await
    }

    /// What RDMA came to in this process so far, of all servers and clients in it.
    pub fn rdma_counts(&self) -> RdmaCounts {
        counters().counts()
    }

    /// How many sessions there are.
    pub fn sessions(&self) -> usize {
        self.serving.sessions()
    }

    /// Takes no new session, transfer or operation, lets those that run end within `grace`, then
    /// ends the rest.
    pub async fn shutdown(mut self, grace: Duration) {
        // Who comes while transfers run out is told why there is nothing for them, and a transfer that
        // has lost a data connection can make it anew.
        self.serving.drain(grace).await;
        for task in self.tasks.drain(..) {
            task.abort();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
        self.serving.end();
    }
}
