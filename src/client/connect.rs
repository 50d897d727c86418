//! A client's session: the control connection's reader, liveness, and data connections that are
//! made when a transfer needs them and made anew when they are lost.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::identity;
use super::transport::{self, Standing, TransportReport, Tried};
use super::trust::{known_hosts_file, known_only, may_pass, policy, refused};
use crate::error::{Error, ErrorKind};
use crate::ids::TransferId;
use crate::limits::STREAMS_MAX;
use crate::options::{ClientOptions, RdmaOptions, TransportChoice};
use crate::remote::Remote;
use crate::session::SOFTWARE;
use crate::session::control::{self, ConnectOptions, ControlWriter, TlsReader};
use crate::session::data::{self, SessionKey};
use crate::session::known_hosts::{HostPort, KnownHosts};
use crate::session::machinery::{Machinery, machinery};
use crate::session::own_key::{Fingerprint, OwnKey};
use crate::session::peer::{Peer, Seat};
use crate::session::pulse::Pulse;
use crate::session::rails::client::{Own, Wish};
use crate::session::rails::talk::RailSender;
use crate::transport::rdma;
use crate::wire::level::LEVEL_STATUS;
use crate::wire::message::{Carried, StatusPage, StatusQuery, Welcome};
use crate::wire::{Fault, FaultCode, Message};
use crate::workers::Workers;

/// Data connections unless told otherwise: one per core up to this many. More streams than cores
/// cost CPU and gain nothing on one host.
const STREAMS_DEFAULT_MAX: usize = 2;
/// And so many to a server that is this far away: what is lost there slows one of them down and not the
/// others. With 1 % lost and 20 ms each way eight were 2.6 times as fast as one.
const STREAMS_FAR: usize = 8;
const FAR: Duration = Duration::from_millis(5);

/// First and longest pause before a lost data connection is made anew.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(5);

/// A session with a server, shared by a client's clones and transfers.
pub(super) struct Session {
    machinery: Machinery,
    host: HostPort,
    known: Known,
    /// The server's key.
    fingerprint: Fingerprint,
    peer: Arc<Peer>,
    welcome: Welcome,
    writer: ControlWriter,
    pulse: Arc<Pulse>,
    data: Arc<Data>,
    stall_timeout: Duration,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    transport: TransportChoice,
    rdma: RdmaOptions,
    /// The way to whoever makes rails, once they were asked for.
    rails: RailsHeard,
    /// The question about the server's status that waits for its answer.
    asked: Arc<Mutex<Asked>>,
    asking: AsyncMutex<()>,
    /// What came of that.
    tried: OnceLock<Tried>,
    /// The way to wish for queue pairs of one's own, once there may be rails.
    wishes: OnceLock<mpsc::Sender<Wish<rdma::Connection>>>,
}

/// A question about the server's status.
#[derive(Default)]
struct Asked {
    /// The last question's number.
    number: u32,
    waiting: Option<oneshot::Sender<StatusPage>>,
}

impl Asked {
    /// An answer came. `false`: to no question of ours.
    fn answered(&mut self, page: StatusPage) -> bool {
        let number = page.number;
        if number == self.number
            && let Some(waiting) = self.waiting.take()
        {
            // Whoever asked may have given up.
            let _ = waiting.send(page);
            return true;
        }
        // Late answers to earlier questions.
        number < self.number
    }
}

/// Empty before rails are asked for, and once the session is over.
type RailsHeard = Arc<Mutex<Option<RailSender>>>;

/// What it takes to make data connections.
struct Data {
    server: SocketAddr,
    level: u16,
    key: SessionKey,
    deadline: Duration,
    streams: usize,
    /// Held while connections are made, so that two transfers don't make twice as many.
    making: AsyncMutex<bool>,
}

/// What is known of a server, and of what it takes, from elsewhere than its users' files.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The key that it has to show.
    pub(super) fingerprint: Option<Fingerprint>,
    /// The key to prove to it, in place of the user's own.
    pub(super) identity: Option<Arc<OwnKey>>,
    /// What it is called in messages, in place of its address: a place on it.
    pub(super) shown: Option<Remote>,
}

/// Why there is no session.
#[derive(Debug)]
pub(super) struct Unmade {
    pub(super) error: Error,
    /// Another try may do better without anybody mending anything.
    pub(super) passes: bool,
}

impl From<Error> for Unmade {
    fn from(error: Error) -> Self {
        Self {
            error,
            passes: false,
        }
    }
}

impl Session {
    /// Connects, and makes sure of the server's key. `known`: what it showed in an earlier session, and
    /// has to show again, whatever the file of known hosts says by now.
    pub(super) async fn establish(
        host: &str,
        port: u16,
        options: ClientOptions,
        known: Known,
    ) -> Result<Arc<Self>, Unmade> {
        options.rdma.check()?;
        if options.transport == TransportChoice::Local {
            let reason = "same-host copies are not part of this release";
            return Err(transport::unavailable("local", reason).into());
        }
        let machinery = machinery()?;
        let host = HostPort::new(host, port);
        let connect = ConnectOptions {
            software: SOFTWARE.to_owned(),
            known_hosts: KnownHosts::new(match known.shown {
                // Other hosts' keys may be written down for the address.
                Some(_) => PathBuf::from("/dev/null"),
                None => known_hosts_file(options.known_hosts)?,
            }),
            policy: match known.fingerprint {
                None => policy(options.unknown_host),
                Some(known) => known_only(known),
            },
            deadline: options.connect_timeout,
            identity: match &known.identity {
                Some(identity) => Some(Arc::clone(identity)),
                None => identity::load(options.identity)?.map(Arc::new),
            },
        };
        let control = control::connect(&host, &connect)
            .await
            .map_err(|error| Unmade {
                passes: may_pass(&error),
                error: refused(&host, error),
            })?;
        if known
            .fingerprint
            .is_some_and(|known| known != control.fingerprint)
        {
            let message = format!(
                "the key of {host} has changed since this run began: {} is shown now",
                control.fingerprint
            );
            return Err(Error::new(ErrorKind::Denied, message)
                .with_hint("if the new key is right, the same command again goes on from here")
                .into());
        }
        let cores = machinery.lanes.count();
        let is_far = control.round_trip >= FAR && !control.peer.ip().is_loopback();
        let streams = options.streams.unwrap_or_else(|| match is_far {
            true => STREAMS_FAR,
            false => cores.min(STREAMS_DEFAULT_MAX),
        });
        let streams = streams
            .clamp(1, STREAMS_MAX)
            .min(control.welcome.data_connections_max.into());
        let peer = Peer::new(
            control.welcome.session,
            control.writer.clone(),
            machinery.lanes.clone(),
        );
        let pulse = Arc::new(Pulse::new());
        let data = Arc::new(Data {
            server: control.peer,
            level: control.welcome.level,
            key: control.key,
            deadline: options.connect_timeout,
            streams: streams.max(1),
            making: AsyncMutex::new(false),
        });
        tracing::debug!(
            session = %control.welcome.session,
            server = %control.welcome.software.escape_debug(),
            level = control.welcome.level,
            round_trip = ?control.round_trip,
            streams,
            host_key = %control.fingerprint,
            "connected"
        );
        let rails = RailsHeard::default();
        let asked = Arc::new(Mutex::new(Asked::default()));
        let reading = tokio::spawn(read(
            host.clone(),
            control.reader,
            Arc::clone(&rails),
            Arc::clone(&asked),
            Arc::clone(&peer),
            control.writer.clone(),
            Arc::clone(&pulse),
        ));
        let beating = {
            let (peer, pulse) = (Arc::clone(&peer), Arc::clone(&pulse));
            tokio::spawn(async move {
                let fault = pulse.beat(&peer).await;
                peer.close(&fault);
            })
        };
        Ok(Arc::new(Self {
            machinery,
            host,
            known,
            fingerprint: control.fingerprint,
            peer,
            welcome: control.welcome,
            writer: control.writer,
            pulse,
            data,
            stall_timeout: options.stall_timeout,
            tasks: Mutex::new(vec![reading, beating]),
            transport: options.transport,
            rdma: options.rdma,
            rails,
            asked,
            asking: AsyncMutex::new(()),
            tried: OnceLock::new(),
            wishes: OnceLock::new(),
        }))
    }

    pub(super) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The server's key.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The server, as it was named.
    pub(super) fn host(&self) -> &HostPort {
        &self.host
    }

    /// What was known of the server before it was reached.
    pub(super) fn known(&self) -> Known {
        self.known.clone()
    }

    /// A place on it.
    pub(super) fn place(&self, export: &str, path: &[u8]) -> Remote {
        let end = path.iter().rposition(|byte| *byte != b'/');
        if let Some(shown) = &self.known.shown {
            return Remote {
                export: export.to_owned(),
                path: path[..end.map_or(0, |at| at + 1)].to_vec(),
                trailing_slash: false,
                ..shown.clone()
            };
        }
        Remote {
            ssh: None,
            host: self.host.host().to_owned(),
            port: self.host.port(),
            export: export.to_owned(),
            path: path[..end.map_or(0, |at| at + 1)].to_vec(),
            trailing_slash: false,
        }
    }

    /// How long a read of an open file may take without anything coming.
    pub(super) fn stall_timeout(&self) -> Duration {
        self.stall_timeout
    }

    pub(super) fn machinery(&self) -> Machinery {
        self.machinery.clone()
    }

    pub(super) fn workers(&self) -> Workers {
        self.machinery.workers.clone()
    }

    /// A seat for a transfer or operation.
    pub(super) fn seat(&self, transfer: TransferId) -> Result<Seat, Error> {
        self.peer
            .seat(transfer)
            .ok_or_else(|| match self.peer.over() {
                Some(fault) => fault.into(),
                None => Error::new(ErrorKind::Internal, "a transfer id was made twice"),
            })
    }

    /// Makes the session's data connections, if they are not there yet.
    pub(super) async fn connect_data(&self) -> Result<(), Error> {
        let mut made = self.data.making.lock().await;
        if !*made {
            let up = self.make_rails().await?;
            let streams = match (self.transport, up) {
                (TransportChoice::Rdma, _) => 0,
                // It stands by for what rails can't reach, and for when they are lost.
                (_, true) => 1,
                _ => self.data.streams,
            };
            let mut first_error = None;
            for _ in 0..streams {
                match self.data.connect(&self.peer).await {
                    Ok(()) => {}
                    Err(error) => first_error = Some(error),
                }
            }
            if self.peer.connections() == 0
                && !up
                && let Some(error) = first_error
            {
                let message = format!("{}: the server takes no data connection", self.host);
                return Err(Error::new(ErrorKind::Unreachable, message).with_source(error));
            }
            *made = true;
            let (peer, data) = (Arc::clone(&self.peer), Arc::clone(&self.data));
            let keeping = tokio::spawn(async move { data.keep(&peer, streams).await });
            self.tasks
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(keeping);
        }
        Ok(())
    }

    /// Makes rails, if they are wanted. Says whether there are any.
    async fn make_rails(&self) -> Result<bool, Error> {
        if self.transport == TransportChoice::Tcp {
            return Ok(false);
        }
        if self.tried.get().is_some() {
            return self.rails_or_tcp();
        }
        let server = self.data.server.ip();
        let workers = &self.machinery.workers;
        let (wish, wishes) = mpsc::channel(1);
        let _ = self.wishes.set(wish);
        let begun = transport::begin(
            &self.peer,
            &self.welcome,
            server,
            (&self.rdma, self.transport == TransportChoice::Rdma),
            workers,
            wishes,
            |sender| *heard(&self.rails) = Some(sender),
        );
        let tried = match begun.await {
            Ok(outcome) => transport::first(&self.peer, outcome).await,
            Err(tried) => tried,
        };
        if let Some(fault) = self.peer.over() {
            return Err(fault.into());
        }
        let _ = self.tried.set(tried);
        self.rails_or_tcp()
    }

    /// Whether there are rails; an error if there are none and nothing else is wanted.
    fn rails_or_tcp(&self) -> Result<bool, Error> {
        let standing = self.standing();
        let up = !standing.rails.is_empty();
        let reasons = standing.why_not();
        tracing::debug!(session = %self.peer.id, up, reasons = %reasons.escape_debug(), "rdma");
        if !up && self.transport == TransportChoice::Rdma {
            return Err(transport::unavailable("rdma", &reasons));
        }
        Ok(up)
    }

    /// A queue pair of this rail for reads that no lane does, or why there is none.
    pub(super) async fn own_queue_pair(&self, rail: u16) -> Result<Own<rdma::Connection>, String> {
        let gone = || "the session has no rails any more".to_owned();
        let wishes = self.wishes.get().ok_or_else(gone)?;
        let (answer, answered) = oneshot::channel();
        let wished = wishes.send(Wish { rail, answer }).await;
        wished.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    /// A data connection for reads that no lane does; `why_not` is why no rail does for them.
    pub(super) async fn own_connection(
        &self,
        why_not: &str,
    ) -> Result<data::DataConnection, Error> {
        if self.transport == TransportChoice::Rdma {
            return Err(transport::unavailable("rdma", why_not));
        }
        self.data.open(&self.peer).await.map_err(|error| {
            let message = format!("{}: the server takes no data connection more", self.host);
            Error::new(ErrorKind::Unreachable, message).with_source(error)
        })
    }

    /// The session as transfers see it.
    pub(super) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    fn standing(&self) -> Standing {
        let book = self.peer.rails.book.lock();
        let book = book.unwrap_or_else(PoisonError::into_inner);
        let memory = self.peer.memory().refusals().first().map(str::to_owned);
        let theirs = book.memory().map(|reason| format!("the server: {reason}"));
        Standing {
            choice: self.transport,
            rails: book.reports().iter().map(ToString::to_string).collect(),
            reasons: book.reasons().to_vec(),
            memory: memory.or(theirs),
            has_devices: self.tried.get().is_some_and(|tried| tried.has_devices),
        }
    }

    /// What data goes by now, and why; of a transfer that has ended, what its bytes went by.
    pub(super) fn transport(&self, carried: Carried) -> TransportReport {
        self.standing().report(carried)
    }

    /// A page of the server's status: sessions above this number.
    pub(super) async fn status(&self, after: u64, deadline: Duration) -> Result<StatusPage, Error> {
        let level = self.welcome.level;
        if level < LEVEL_STATUS {
            let message = format!(
                "{}: {} there speaks level {level}, and its status can be asked for from level \
                 {LEVEL_STATUS} on",
                self.host, self.welcome.software
            );
            let hint = "install a newer rdcpd there; 'rdcp ping' works with this one";
            return Err(Error::new(ErrorKind::Unreachable, message).with_hint(hint));
        }
        let _one = self.asking.lock().await;
        let (answer, answered) = oneshot::channel();
        let number = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.number += 1;
            asked.waiting = Some(answer);
            asked.number
        };
        let query = StatusQuery { number, after };
        self.peer.say(TransferId::NONE, Message::StatusQuery(query));
        let answered = async {
            tokio::select! {
                page = answered => page.map_err(|_| out_of_turn()),
                fault = self.peer.closed() => Err(fault),
            }
        };
        match tokio::time::timeout(deadline, answered).await {
            Ok(result) => result.map_err(Error::from),
            Err(_) => {
                let message = format!("{}: the server does not answer", self.host);
                Err(Error::new(ErrorKind::TimedOut, message))
            }
        }
    }

    /// Asks the server for a sign of life.
    pub(super) async fn ping(&self, deadline: Duration) -> Result<(), Error> {
        let answered = self.pulse.ask(&self.peer);
        match tokio::time::timeout(deadline, answered).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(fault)) => Err(fault.into()),
            Err(_) => {
                let message = format!("{}: the server does not answer", self.host);
                Err(Error::new(ErrorKind::TimedOut, message))
            }
        }
    }

    pub(super) async fn close(&self) {
        self.peer.close(&Fault::new(
            FaultCode::Cancelled,
            "the client closed the session",
        ));
        self.writer.close().await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for task in self
            .tasks
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            task.abort();
        }
        self.peer
            .close(&Fault::new(FaultCode::Cancelled, "the client went away"));
    }
}

impl Data {
    async fn open(&self, peer: &Peer) -> Result<data::DataConnection, data::DataError> {
        data::open_data(self.server, peer.id, self.level, &self.key, self.deadline).await
    }

    async fn connect(&self, peer: &Arc<Peer>) -> Result<(), data::DataError> {
        let connection = self.open(peer).await?;
        peer.attach(connection.stream, connection.keys);
        Ok(())
    }

    /// Makes lost connections anew, for as long as the session lasts.
    async fn keep(&self, peer: &Arc<Peer>, streams: usize) {
        let mut pause = RECONNECT_PAUSE;
        while peer.over().is_none() {
            if peer.connections() >= streams {
                pause = RECONNECT_PAUSE;
                peer.connection_lost().await;
                continue;
            }
            tokio::time::sleep(pause).await;
            match self.connect(peer).await {
                Ok(()) => pause = RECONNECT_PAUSE,
                Err(error) => {
                    tracing::debug!(session = %peer.id, %error, "no new data connection");
                    pause = (pause * 2).min(RECONNECT_PAUSE_MAX);
                }
            }
        }
    }
}

/// Reads what the server says until the connection ends.
async fn read(
    host: HostPort,
    mut reader: TlsReader,
    rails: RailsHeard,
    asked: Arc<Mutex<Asked>>,
    peer: Arc<Peer>,
    writer: ControlWriter,
    pulse: Arc<Pulse>,
) {
    let fault = loop {
        let next = tokio::select! {
            next = reader.next() => next,
            fault = writer.failed() => break fault,
        };
        let envelope = match next {
            Ok(Some(envelope)) => envelope,
            Ok(None) => {
                break Fault::new(
                    FaultCode::Lost,
                    format!("{host}: the server closed the session"),
                );
            }
            Err(error) => {
                let fault = error.to_fault();
                break Fault::new(fault.code, format!("{host}: {}", fault.text));
            }
        };
        pulse.heard();
        if envelope.transfer == TransferId::NONE {
            match envelope.message {
                Message::Ping { nonce } => peer.pong(nonce),
                Message::Pong { nonce } => pulse.answered(nonce),
                Message::Goodbye(fault) => break fault,
                Message::StatusPage(page) => {
                    let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
                    if !asked.answered(page) {
                        break out_of_turn();
                    }
                }
                message @ (Message::RailAnswer(_)
                | Message::RailReady(_)
                | Message::RailProof { .. }
                | Message::RailDown { .. }) => {
                    // Without an offer of ours there is nothing to say about rails.
                    let told = heard(&rails).as_ref().map(|rails| rails.hear(message));
                    match told {
                        Some(Ok(())) => {}
                        Some(Err(fault)) => break fault,
                        None => break out_of_turn(),
                    }
                }
                Message::RailMemory { reason } => {
                    let book = peer.rails.book.lock();
                    let reason = reason.escape_debug().to_string();
                    book.unwrap_or_else(PoisonError::into_inner)
                        .set_memory(reason);
                }
                _ => break out_of_turn(),
            }
            continue;
        }
        if let Err(fault) = peer.deliver(envelope) {
            break fault;
        }
    };
    peer.close(&fault);
    // Nothing about rails comes any more, so whoever waits for it ends.
    *heard(&rails) = None;
    writer.abort();
}

fn heard(rails: &RailsHeard) -> MutexGuard<'_, Option<RailSender>> {
    rails.lock().unwrap_or_else(PoisonError::into_inner)
}

fn out_of_turn() -> Fault {
    Fault::new(FaultCode::Protocol, "the server spoke out of turn")
}
