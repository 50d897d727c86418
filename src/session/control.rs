//! The control connection: TLS, then Hello and Welcome, then messages both ways.
//!
//! ```text
//! client                               server
//!   TLS 1.3 handshake      <->           its key is proved
//!   is it the right key?                 (nothing is sent before that is settled)
//!   Hello                   ->           levels that the client speaks
//!                          <-  Welcome   the level taken, the session's name; or Goodbye
//!   messages               <->
//! ```
//!
//! [`connect`] and [`greet`] do the first part on either side, each within a deadline, and give back
//! a reader, a writer and the key for the session's data connections. The server's side pauses
//! between Hello and Welcome, as the session must be entered in its tables before the client learns
//! its name. What the messages mean is not known here.

mod error;
mod outbound;
mod reader;
mod writer;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWriteExt, ReadHalf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream, client, server};

pub use error::{ControlError, Written};
pub use reader::ControlReader;
pub use writer::ControlWriter;

use crate::ids::{SessionId, TransferId};
use crate::limits::GREETING_BYTES_MAX;
use crate::session::data::SessionKey;
use crate::session::known_hosts::{HostDecision, HostPolicy, HostPort, HostTrust, KnownHosts};
use crate::session::own_key::{Fingerprint, OwnKey};
use crate::session::tls::{self, Shown};
use crate::wire::level::{self, LEVEL_MAX, LEVEL_MIN};
use crate::wire::message::{Hello, TransportOffer, Welcome};
use crate::wire::{Decoder, Envelope, Fault, FaultCode, Message, encode};

/// How long a peer may take from its first byte to the end of the greeting.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// The exporter's label for the key of data connections; the context is the session's id.
const EXPORTER_LABEL: &[u8] = b"EXPORTER-rdcp data connections";

/// The reader of a control connection.
pub type TlsReader = ControlReader<ReadHalf<TlsStream<TcpStream>>>;

/// What a client brings along to connect.
#[derive(Clone)]
pub struct ConnectOptions {
    /// Name and release, for the peer's log.
    pub software: String,
    /// Which keys are known.
    pub known_hosts: KnownHosts,
    /// Asked about a host that is not known.
    pub policy: HostPolicy,
    /// For the connection, and once more for the handshake. See [`HANDSHAKE_DEADLINE`].
    pub deadline: Duration,
    /// The client's own key, shown to servers whose key is known.
    pub identity: Option<Arc<OwnKey>>,
}

/// A client's control connection, greeted.
pub struct ClientControl {
    /// What the server says.
    pub reader: TlsReader,
    /// What is said to it.
    pub writer: ControlWriter,
    /// Its greeting.
    pub welcome: Welcome,
    /// For the session's data connections.
    pub key: SessionKey,
    /// Where the server is; data connections go there too.
    pub peer: SocketAddr,
    /// The server's key.
    pub fingerprint: Fingerprint,
    /// How long TCP took to connect: one way there and back, and no answer of the server's program.
    pub round_trip: Duration,
}

/// Connects to a server, makes sure that it is the right one, and greets it.
pub async fn connect(
    host: &HostPort,
    options: &ConnectOptions,
) -> Result<ClientControl, ControlError> {
    let mut shown_to = match &options.identity {
        Some(_) => pinned(host, options).await?,
        None => None,
    };
    let first = match handshake(host, options, shown_to).await {
        // It is not the server that was known: who it is has to be seen without showing anything.
        Err(ControlError::Tls(_)) if shown_to.take().is_some() => {
            handshake(host, options, None).await?
        }
        done => done?,
    };
    let fingerprint = first.fingerprint;
    let asked = decide(host, fingerprint, options).await?;
    let shows_late = options.identity.is_some() && shown_to.is_none();
    if !shows_late {
        match greet_server(first, options).await {
            // A person takes longer to compare a key than a server waits for Hello.
            Err(ControlError::Lost(_) | ControlError::Closed) if asked => {}
            greeted => return greeted,
        }
    }
    let second = handshake(host, options, shows_late.then_some(fingerprint)).await?;
    if second.fingerprint != fingerprint {
        decide(host, second.fingerprint, options).await?;
    }
    greet_server(second, options).await
}

/// The key that was accepted for this host, if one was.
async fn pinned(
    host: &HostPort,
    options: &ConnectOptions,
) -> Result<Option<Fingerprint>, ControlError> {
    let (host, hosts) = (host.clone(), options.known_hosts.clone());
    let read = tokio::task::spawn_blocking(move || hosts.pinned(&host));
    match read.await {
        Ok(pinned) => Ok(pinned?),
        Err(_) => Err(ControlError::Closed),
    }
}

/// A server that has proved to hold a key, which may be the wrong one: it has been told nothing.
struct Stranger {
    stream: client::TlsStream<TcpStream>,
    peer: SocketAddr,
    fingerprint: Fingerprint,
    round_trip: Duration,
}

/// TCP and TLS, up to a server that has proved a key: this one, if the client's own is to be shown.
async fn handshake(
    host: &HostPort,
    options: &ConnectOptions,
    shown_to: Option<Fingerprint>,
) -> Result<Stranger, ControlError> {
    let unreachable = |source| ControlError::Connect {
        host: host.clone(),
        source,
    };
    let addresses = timeout(
        options.deadline,
        tokio::net::lookup_host((host.host(), host.port())),
    );
    let addresses = match addresses.await {
        Ok(Ok(addresses)) => addresses.collect::<Vec<_>>(),
        Ok(Err(error)) => return Err(no_address(host, &error)),
        Err(_) => return Err(no_address(host, &io::ErrorKind::TimedOut.into())),
    };
    let connecting = async {
        let begun = Instant::now();
        let stream = TcpStream::connect(&*addresses).await?;
        let round_trip = begun.elapsed();
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?;
        Ok((stream, peer, round_trip))
    };
    // Nobody is there: that is no answer that was due, but a host that can't be reached.
    let (stream, peer, round_trip) = timeout(options.deadline, connecting)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(unreachable)?;
    let shown = options.identity.as_deref().zip(shown_to);
    let shown = shown.map(|(key, to)| Shown { key, to });
    let config = tls::client_config(shown).map_err(ControlError::TlsSetup)?;
    let name = tls::server_name().map_err(ControlError::TlsSetup)?;
    let handshake = TlsConnector::from(config).connect(name, stream);
    let handshake = async {
        let done = handshake.await;
        done.map_err(|error| ControlError::Tls(tls::without_goodbye(error)))
    };
    let stream = within(options.deadline, "the TLS handshake", handshake).await?;
    if !tls::speaks_rdcp(stream.get_ref().1) {
        return Err(ControlError::NotRdcp);
    }
    let fingerprint = tls::presented_key(stream.get_ref().1)
        .and_then(|key| key.ok_or(rustls::Error::NoCertificatesPresented))
        .map_err(ControlError::TlsSetup)?;
    Ok(Stranger {
        stream,
        peer,
        fingerprint,
        round_trip,
    })
}

fn no_address(host: &HostPort, error: &io::Error) -> ControlError {
    let reason = error.to_string();
    // What Rust's library puts in front is said by this error itself.
    let prefix = "failed to lookup address information: ";
    ControlError::Lookup {
        host: host.clone(),
        reason: reason.strip_prefix(prefix).unwrap_or(&reason).to_owned(),
    }
}

/// Fails if the key is the wrong one; tells whether the policy was asked. Reads and writes a file
/// and may ask a person, so it has a thread of its own and no deadline.
async fn decide(
    host: &HostPort,
    fingerprint: Fingerprint,
    options: &ConnectOptions,
) -> Result<bool, ControlError> {
    let (host, hosts) = (host.clone(), options.known_hosts.clone());
    let policy = Arc::clone(&options.policy);
    let judged = tokio::task::spawn_blocking(move || judge(&host, fingerprint, &hosts, &policy));
    match judged.await {
        Ok(judged) => judged,
        Err(panicked) if panicked.is_panic() => std::panic::resume_unwind(panicked.into_panic()),
        Err(_) => Err(ControlError::Closed),
    }
}

fn judge(
    host: &HostPort,
    fingerprint: Fingerprint,
    hosts: &KnownHosts,
    policy: &HostPolicy,
) -> Result<bool, ControlError> {
    let trust = hosts.check(host, &fingerprint)?;
    let host = || host.clone();
    match trust {
        HostTrust::Known => Ok(false),
        HostTrust::Changed {
            known,
            presented,
            lines,
        } => Err(ControlError::HostChanged {
            host: host(),
            known,
            presented,
            written: Box::new(Written {
                file: hosts.path().to_owned(),
                lines,
            }),
        }),
        HostTrust::Unknown { .. } => match policy(&trust) {
            HostDecision::Refuse => Err(ControlError::HostUnknown {
                host: host(),
                fingerprint,
            }),
            HostDecision::AcceptOnce => Ok(true),
            HostDecision::Remember => hosts
                .remember(&host(), &fingerprint)
                .map(|()| true)
                .map_err(Into::into),
        },
    }
}

async fn greet_server(
    server: Stranger,
    options: &ConnectOptions,
) -> Result<ClientControl, ControlError> {
    within(
        options.deadline,
        "the server's greeting",
        say_hello(server, &options.software),
    )
    .await
}

async fn say_hello(server: Stranger, software: &str) -> Result<ClientControl, ControlError> {
    let Stranger {
        stream,
        peer,
        fingerprint,
        round_trip,
    } = server;
    let mut reader = ControlReader::new(stream.into(), Decoder::with_limit(GREETING_BYTES_MAX));
    let software = software.to_owned();
    let hello = Hello {
        level_min: LEVEL_MIN,
        level_max: LEVEL_MAX,
        software,
    };
    say(reader.io_mut(), Message::Hello(hello)).await?;
    let welcome = hear_welcome(&mut reader).await?;
    let key = session_key(reader.io(), welcome.session)?;
    let (reader, writing) = reader.part();
    let writer = ControlWriter::start(writing);
    Ok(ClientControl {
        reader,
        writer,
        welcome,
        key,
        peer,
        fingerprint,
        round_trip,
    })
}

/// The halves of a control connection on which both ends have greeted.
#[cfg(test)]
pub(crate) fn greeted<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static>(
    io: S,
) -> (ControlReader<tokio::io::ReadHalf<S>>, ControlWriter) {
    let (reader, writing) = ControlReader::new(io, crate::wire::Decoder::new()).part();
    (reader, ControlWriter::start(writing))
}

/// A client that has said Hello and waits for its Welcome.
pub struct Greeted {
    reader: ControlReader<TlsStream<TcpStream>>,
    key: Option<Fingerprint>,
    hello: Hello,
    level: u16,
    peer: SocketAddr,
    deadline: Duration,
}

/// What a server tells of itself and of a new session.
#[derive(Clone, Debug)]
pub struct Greeting {
    /// The session's name.
    pub session: SessionId,
    /// Random, new for each session.
    pub epoch: u64,
    /// Name and release, for the client's log.
    pub software: String,
    /// Most data connections of the session.
    pub data_connections_max: u16,
    /// Which transports there are, and why not others.
    pub transports: Vec<TransportOffer>,
}

/// A server's control connection, greeted.
pub struct ServerControl {
    /// What the client says.
    pub reader: TlsReader,
    /// What is said to it.
    pub writer: ControlWriter,
    /// Its greeting.
    pub hello: Hello,
    /// The level that both speak.
    pub level: u16,
    /// Where the client is.
    pub peer: SocketAddr,
}

/// Takes a fresh connection through TLS up to the client's Hello. A client whose levels are all
/// unknown here is told so and refused.
pub async fn greet(
    stream: TcpStream,
    config: Arc<rustls::ServerConfig>,
    deadline: Duration,
) -> Result<Greeted, ControlError> {
    within(
        deadline,
        "the client's greeting",
        greet_client(stream, config, deadline),
    )
    .await
}

async fn greet_client(
    stream: TcpStream,
    config: Arc<rustls::ServerConfig>,
    deadline: Duration,
) -> Result<Greeted, ControlError> {
    stream.set_nodelay(true).map_err(ControlError::Lost)?;
    let peer = stream.peer_addr().map_err(ControlError::Lost)?;
    let stream: server::TlsStream<TcpStream> = TlsAcceptor::from(config)
        .accept(stream)
        .await
        .map_err(|error| ControlError::Tls(tls::without_goodbye(error)))?;
    if !tls::speaks_rdcp(stream.get_ref().1) {
        return Err(ControlError::NotRdcp);
    }
    let key = tls::presented_key(stream.get_ref().1).map_err(ControlError::TlsSetup)?;
    let mut reader = ControlReader::new(stream.into(), Decoder::with_limit(GREETING_BYTES_MAX));
    let hello = hear_hello(&mut reader).await?;
    let (min, max) = (hello.level_min, hello.level_max);
    let Some(level) = level::negotiate(min, max) else {
        let error = ControlError::Incompatible { min, max };
        dismiss(
            reader,
            Fault::new(FaultCode::Incompatible, error.to_string()),
        )
        .await?;
        return Err(error);
    };
    Ok(Greeted {
        reader,
        key,
        hello,
        level,
        peer,
        deadline,
    })
}

impl Greeted {
    /// What the client said.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Where the client is.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The key that it proved to hold, if it was asked for one and showed one.
    pub fn key(&self) -> Option<Fingerprint> {
        self.key
    }

    /// The key of the data connections of the session that will be called `session`. It has to be
    /// found under that name before [`welcome`](Self::welcome).
    pub fn session_key(&self, session: SessionId) -> Result<SessionKey, ControlError> {
        session_key(self.reader.io(), session)
    }

    /// Tells the client that it is welcome, and begins to carry messages.
    pub async fn welcome(self, greeting: Greeting) -> Result<ServerControl, ControlError> {
        let Self {
            mut reader,
            hello,
            level,
            peer,
            deadline,
            ..
        } = self;
        let welcome = Welcome {
            level,
            session: greeting.session,
            epoch: greeting.epoch,
            software: greeting.software,
            data_connections_max: greeting.data_connections_max,
            transports: greeting.transports,
        };
        let saying = say(reader.io_mut(), Message::Welcome(welcome));
        within(deadline, "the client to read", saying).await?;
        let (reader, writing) = reader.part();
        Ok(ServerControl {
            reader,
            writer: ControlWriter::start(writing),
            hello,
            level,
            peer,
        })
    }

    /// Tells the client why not, and closes.
    pub async fn refuse(self, fault: Fault) -> Result<(), ControlError> {
        within(
            self.deadline,
            "the client to read",
            dismiss(self.reader, fault),
        )
        .await
    }
}

async fn dismiss(
    mut reader: ControlReader<TlsStream<TcpStream>>,
    fault: Fault,
) -> Result<(), ControlError> {
    say(reader.io_mut(), Message::Goodbye(fault)).await?;
    reader.io_mut().shutdown().await.map_err(ControlError::Lost)
}

/// Writes a message of the session, whole.
async fn say(io: &mut TlsStream<TcpStream>, message: Message) -> Result<(), ControlError> {
    let mut bytes = Vec::new();
    encode(
        &Envelope {
            transfer: TransferId::NONE,
            message,
        },
        &mut bytes,
    )?;
    io.write_all(&bytes).await.map_err(ControlError::Lost)?;
    io.flush().await.map_err(ControlError::Lost)
}

async fn hear(reader: &mut ControlReader<impl AsyncRead + Unpin>) -> Result<Message, ControlError> {
    let envelope = reader.next().await?.ok_or(ControlError::Closed)?;
    Ok(envelope.message)
}

async fn hear_hello(
    reader: &mut ControlReader<impl AsyncRead + Unpin>,
) -> Result<Hello, ControlError> {
    match hear(reader).await? {
        Message::Hello(hello) => Ok(hello),
        _ => Err(ControlError::OutOfTurn { expected: "Hello" }),
    }
}

/// A greeting at a level that is spoken here.
async fn hear_welcome(
    reader: &mut ControlReader<impl AsyncRead + Unpin>,
) -> Result<Welcome, ControlError> {
    let welcome = match hear(reader).await? {
        Message::Welcome(welcome) => welcome,
        Message::Goodbye(fault) => return Err(ControlError::Refused(fault)),
        _ => {
            return Err(ControlError::OutOfTurn {
                expected: "Welcome",
            });
        }
    };
    if !level::is_spoken(welcome.level) {
        return Err(ControlError::Incompatible {
            min: welcome.level,
            max: welcome.level,
        });
    }
    Ok(welcome)
}

/// What one end makes of all that the other says on a fresh control connection, TLS aside: how many
/// messages came behind its greeting. For fuzzing.
pub(crate) async fn overhear(said: &[u8], by_client: bool) -> Result<usize, ControlError> {
    let io = tokio::io::join(said, tokio::io::sink());
    let mut reader = ControlReader::new(io, Decoder::with_limit(GREETING_BYTES_MAX));
    if by_client {
        let hello = hear_hello(&mut reader).await?;
        let (min, max) = (hello.level_min, hello.level_max);
        level::negotiate(min, max).ok_or(ControlError::Incompatible { min, max })?;
    } else {
        hear_welcome(&mut reader).await?;
    }
    let (mut reader, _) = reader.part();
    let mut heard = 0;
    while reader.next().await?.is_some() {
        heard += 1;
    }
    Ok(heard)
}

fn session_key(io: &TlsStream<TcpStream>, session: SessionId) -> Result<SessionKey, ControlError> {
    let context = session.0.to_le_bytes();
    let exported = match io {
        TlsStream::Client(stream) => {
            stream
                .get_ref()
                .1
                .export_keying_material([0; 32], EXPORTER_LABEL, Some(&context))
        }
        TlsStream::Server(stream) => {
            stream
                .get_ref()
                .1
                .export_keying_material([0; 32], EXPORTER_LABEL, Some(&context))
        }
    };
    exported
        .map(SessionKey::new)
        .map_err(ControlError::TlsSetup)
}

async fn within<T>(
    deadline: Duration,
    waiting_for: &'static str,
    work: impl Future<Output = Result<T, ControlError>>,
) -> Result<T, ControlError> {
    timeout(deadline, work)
        .await
        .unwrap_or(Err(ControlError::TimedOut {
            after: deadline,
            waiting_for,
        }))
}
