//! The server's side of sessions: who connects, and what each asks for.
//!
//! In: fresh connections of either kind. Out: a task per session that reads its messages, a task per
//! transfer or operation. What a client asks is checked against the exports here; below this module
//! nothing knows an export's name.

mod auditing;
mod entering;
mod offered;
mod rails;
mod superseding;
mod transfers;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;

pub(super) use self::auditing::Audited;
use self::auditing::Whose;
pub(super) use self::entering::Entered;
use self::entering::{Leaving, admit};
pub(crate) use self::offered::{Exported, Offered};
use self::superseding::{Owner, Runs};
use super::activity::Traffic;
use super::admission::{Handshakes, Origin, Place};
use super::clients::{Admission, Client};
use super::control::{self, Greeted, Greeting, HANDSHAKE_DEADLINE, TlsReader};
use super::data::{self, ConnectionKind, DATA_HANDSHAKE_DEADLINE, SessionKey};
use super::machinery::Machinery;
use super::peer::{Peer, Seat};
use super::pulse::Pulse;
use super::rails::by_cm::Reception;
use super::rails::talk::RailSender;
use super::{SOFTWARE, benching, operating};
use crate::audit::{AuditAction, AuditEvent, Auditor};
use crate::ids::{SessionId, TransferId};
use crate::options::{RdmaConnect, RdmaOptions};
use crate::storage::error::ShownPath;
use crate::tally::Tally;
use crate::wire::level::{LEVEL_BENCH, LEVEL_RAILS, LEVEL_STATUS};
use crate::wire::message::{RemotePath, TransportOffer};
use crate::wire::{Fault, FaultCode, Message};

/// Operations that run at once, of all sessions and of one. They may wait for their client's credit,
/// so they have threads of their own and never take a worker from a transfer.
const OPERATIONS_MAX: usize = 32;
const OPERATIONS_PER_SESSION_MAX: usize = 4;

/// Pause after the system had no descriptor or memory left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often the list of keys is looked at: how long a key that was taken out is still good.
const KEYS_PAUSE: Duration = Duration::from_secs(1);
/// Pause between the end of something large and the return of its memory to the system: what ends
/// together is returned together, and by then the workers have let go of it.
const TIDY_AFTER: Duration = Duration::from_secs(1);

/// A running server's state.
pub(crate) struct Serving {
    pub(crate) machinery: Machinery,
    offered: RwLock<Arc<Offered>>,
    pub(super) auditor: Auditor,
    rdma: RdmaOptions,
    /// Who listens with rdma_cm, if that is wanted.
    reception: Option<Arc<Reception>>,
    /// What was last found of rdma here, and when.
    rdma_found: tokio::sync::Mutex<Option<(Instant, TransportOffer)>>,
    handshakes: Arc<Handshakes>,
    /// Operations of all sessions that may run at once; each has a thread for as long.
    pub(super) operations: Arc<Semaphore>,
    sessions: Mutex<HashMap<SessionId, Entered>>,
    next_session: AtomicU64,
    draining: watch::Sender<bool>,
    pub(super) begun: Instant,
    /// Bytes of sessions that have ended.
    pub(super) past: Traffic,
    /// Told whenever a transfer, an operation or a session ends.
    ended: Notify,
    /// Memory is about to be returned.
    tidying: AtomicBool,
    runs: Arc<Runs>,
}

impl Serving {
    pub(crate) fn new(
        machinery: Machinery,
        offered: Offered,
        rdma: RdmaOptions,
        auditor: Auditor,
    ) -> Arc<Self> {
        Arc::new(Self {
            machinery,
            handshakes: Handshakes::new(offered.limits.handshakes_max),
            offered: RwLock::new(Arc::new(offered)),
            auditor,
            reception: (rdma.enabled && rdma.connect == RdmaConnect::Cm)
                .then(|| Reception::new(rdma.cm_port)),
            rdma,
            rdma_found: tokio::sync::Mutex::default(),
            operations: Arc::new(Semaphore::new(OPERATIONS_MAX)),
            sessions: Mutex::default(),
            next_session: AtomicU64::new(1),
            draining: watch::Sender::new(false),
            begun: Instant::now(),
            past: Traffic::default(),
            ended: Notify::new(),
            tidying: AtomicBool::new(false),
            runs: Arc::default(),
        })
    }

    pub(crate) fn sessions(&self) -> usize {
        self.lock().len()
    }

    /// Transfers and operations of all sessions.
    fn seats(&self) -> usize {
        let sessions = self.lock();
        sessions
            .values()
            .filter_map(|entered| entered.peer.as_ref())
            .map(|peer| peer.seats())
            .sum()
    }

    /// Waits up to `grace` for what runs, then ends all sessions.
    pub(crate) async fn drain(&self, grace: Duration) {
        self.draining.send_replace(true);
        let quiet = async {
            loop {
                let ended = self.ended.notified();
                if self.seats() == 0 {
                    return;
                }
                ended.await;
            }
        };
        if tokio::time::timeout(grace, quiet).await.is_err() {
            tracing::warn!(running = self.seats(), "ending what still runs");
        }
        self.end();
        // The goodbyes are on their way; what a client does not read is not waited for.
        let gone = async {
            loop {
                let ended = self.ended.notified();
                if self.sessions() == 0 {
                    return;
                }
                ended.await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(2), gone).await;
    }

    /// Ends all sessions now.
    pub(crate) fn end(&self) {
        self.draining.send_replace(true);
        if let Some(reception) = &self.reception {
            reception.close();
        }
        let peers: Vec<_> = self
            .lock()
            .values()
            .filter_map(|entered| entered.peer.clone())
            .collect();
        let fault = Fault::new(
            FaultCode::Busy,
            "the server is shutting down; try again later",
        );
        for peer in peers {
            peer.say(TransferId::NONE, Message::Goodbye(fault.clone()));
            peer.close(&fault);
        }
    }

    /// What is offered now. What is begun goes by what was offered then, and is ended if that is taken away.
    pub(crate) fn offered(&self) -> Arc<Offered> {
        let offered = self.offered.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&offered)
    }

    /// Offers something else from now on, and ends the sessions of those who lose something by it.
    pub(crate) fn offer(&self, mut later: Offered) {
        let mut offered = self.offered.write().unwrap_or_else(PoisonError::into_inner);
        later.keep_directories(&offered);
        let earlier = std::mem::replace(&mut *offered, Arc::new(later));
        let later = Arc::clone(&offered);
        drop(offered);
        entering::review(self, Some((&earlier, &later)));
    }

    /// Returns what is not in use any more to the system, in a moment.
    pub(super) fn tidy(self: &Arc<Self>) {
        if self.tidying.swap(true, Ordering::Relaxed) {
            return;
        }
        let serving = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(TIDY_AFTER).await;
            serving.tidying.store(false, Ordering::Relaxed);
            let shared = serving.machinery.serving.clone();
            serving.machinery.workers.submit(move || {
                shared.give_back();
                crate::sys::heap::give_back();
            });
        });
    }

    fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Whose transfers of a session are.
    fn owner_of(&self, session: SessionId) -> Option<Owner> {
        self.lock().get(&session).map(Entered::owner)
    }

    /// Who asked for what is asked in a session.
    pub(super) fn whose_is(&self, session: SessionId) -> Option<Whose> {
        let sessions = self.lock();
        let entered = sessions.get(&session)?;
        Some(entered.whose(session))
    }

    fn key_of(&self, session: SessionId) -> Option<SessionKey> {
        self.lock().get(&session).map(|entered| entered.key.clone())
    }

    fn peer_of(&self, session: SessionId) -> Option<Arc<Peer>> {
        self.lock()
            .get(&session)
            .and_then(|entered| entered.peer.clone())
    }

    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, Entered>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accepts connections until its task is ended.
pub(crate) async fn accept(serving: Arc<Serving>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                // Clients beyond the limit wait in the kernel's queue.
                let place = serving.handshakes.enter(Origin::of(from.ip())).await;
                let serving = Arc::clone(&serving);
                tokio::spawn(async move {
                    tracing::trace!(%from, "connection");
                    connection(serving, stream, from, place).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Looks now and then whether the list of keys was edited, until its task is ended.
pub(crate) async fn watch_keys(serving: Arc<Serving>) {
    let mut looking: Option<JoinHandle<()>> = None;
    loop {
        tokio::time::sleep(KEYS_PAUSE).await;
        // Files may block, even small ones, and what is known counts meanwhile: a key may expire.
        let admission = Arc::clone(&serving.offered().admission);
        // A task for nothing would keep idle threads of the runtime from ending.
        if admission.may_change() && looking.as_ref().is_none_or(JoinHandle::is_finished) {
            looking = Some(tokio::task::spawn_blocking(move || {
                if let Admission::Keys(keys) = &*admission
                    && let Err(error) = keys.refresh()
                {
                    let reason = chain(&error);
                    tracing::error!(reason, "the keys that are let in stay as they were");
                }
            }));
        }
        entering::review(&serving, None);
    }
}

/// One fresh connection, of either kind. Its place is given back when its handshake is done.
async fn connection(serving: Arc<Serving>, stream: TcpStream, from: SocketAddr, mut place: Place) {
    let met = tokio::select! {
        met = meet(&serving, stream, from) => met,
        () = place.evicted() => {
            tracing::info!(%from, "a silent connection gave way: too many are opened at once");
            return;
        }
    };
    match met {
        Some(Met::Control(greeted)) => session(serving, *greeted, place).await,
        Some(Met::Data(connection)) => attach(&serving, connection),
        None => {}
    }
}

/// What a fresh connection has turned out to be.
enum Met {
    Control(Box<Greeted>),
    Data(data::DataConnection),
}

async fn meet(serving: &Serving, stream: TcpStream, from: SocketAddr) -> Option<Met> {
    match data::classify(&stream, HANDSHAKE_DEADLINE).await {
        Ok(ConnectionKind::Control) => {
            let config = Arc::clone(&serving.offered().tls);
            match control::greet(stream, config, HANDSHAKE_DEADLINE).await {
                Ok(greeted) => return Some(Met::Control(Box::new(greeted))),
                Err(error) => {
                    let reason = chain(&error);
                    tracing::info!(%from, reason, "a control connection failed");
                }
            }
        }
        Ok(ConnectionKind::Data) => {
            let key_of = |session| serving.key_of(session);
            match data::accept_data(stream, key_of, DATA_HANDSHAKE_DEADLINE).await {
                Ok(connection) => return Some(Met::Data(connection)),
                Err(error) => {
                    let reason = chain(&error);
                    tracing::info!(%from, reason, "a data connection failed");
                }
            }
        }
        Err(error) => {
            let reason = chain(&error);
            tracing::debug!(%from, reason, "a connection said nothing");
        }
    }
    None
}

fn attach(serving: &Serving, connection: data::DataConnection) {
    let Some(peer) = serving.peer_of(connection.session) else {
        return;
    };
    if peer.connections() >= serving.offered().limits.data_connections_max.into() {
        tracing::warn!(session = %peer.id, "the session has all the data connections it may have");
        return;
    }
    peer.attach(connection.stream, connection.keys);
}

/// Tells a client why it is not let in.
async fn turn_away(greeted: Greeted, fault: Fault) {
    let from = greeted.peer();
    tracing::warn!(%from, reason = %fault.text, "a client was turned away");
    if let Err(error) = greeted.refuse(fault).await {
        tracing::debug!(%from, %error, "the refusal did not reach the client");
    }
}

/// A session, from its welcome to its end.
async fn session(serving: Arc<Serving>, greeted: Greeted, place: Place) {
    let id = SessionId(serving.next_session.fetch_add(1, Ordering::Relaxed));
    let from = greeted.peer();
    let client = match admit(&serving, id, &greeted) {
        Ok(client) => client,
        Err(fault) => {
            serving.auditor.tell(|| AuditEvent {
                session: None,
                from,
                key: greeted.key().map(|key| key.to_string()),
                action: AuditAction::ClientRefused {
                    reason: fault.text.clone(),
                },
            });
            return turn_away(greeted, fault).await;
        }
    };
    let left = Leaving {
        serving: &serving,
        id,
    };
    let software = greeted.hello().software.clone();
    let greeting = Greeting {
        session: id,
        epoch: u64::from_le_bytes(crate::sys::random_bytes()),
        software: SOFTWARE.to_owned(),
        data_connections_max: serving.offered().limits.data_connections_max,
        transports: serving.transports().await,
    };
    let control = match greeted.welcome(greeting).await {
        Ok(control) => control,
        Err(error) => {
            tracing::info!(%from, %error, "a client went away before it was welcomed");
            return;
        }
    };
    drop(place);
    let peer = Peer::new(id, control.writer.clone(), serving.machinery.lanes.clone());
    if let Some(entered) = serving.lock().get_mut(&id) {
        entered.peer = Some(Arc::clone(&peer));
    }
    let key = client.key.map(tracing::field::display);
    tracing::info!(
        session = %id, %from, key, software = %software.escape_debug(), "session began"
    );
    let whose = Whose::new(id, from, &client);
    serving
        .auditor
        .tell(|| whose.did(AuditAction::SessionBegan { software }));
    let pulse = Pulse::new();
    let spoken = Spoken {
        rails_from: (control.level >= LEVEL_RAILS).then_some(control.peer.ip()),
        status: control.level >= LEVEL_STATUS,
        bench: control.level >= LEVEL_BENCH,
    };
    let fault = tokio::select! {
        fault = read(&serving, control.reader, &peer, &client, spoken, &pulse) => fault,
        fault = pulse.beat(&peer) => fault,
        fault = peer.closed() => fault,
        fault = control.writer.failed() => fault,
    };
    tracing::info!(session = %id, reason = %fault.text.escape_debug(), "session ended");
    serving.auditor.tell(|| {
        whose.did(AuditAction::SessionEnded {
            reason: fault.text.clone(),
        })
    });
    peer.close(&fault);
    // The last words are on their way before the session counts as gone: a server that ends waits
    // for them.
    control.writer.close().await;
    drop(left);
    serving.tidy();
}

/// What can be spoken of at a session's level.
#[derive(Clone, Copy)]
struct Spoken {
    /// Rails, by a client at this address.
    rails_from: Option<IpAddr>,
    /// Memory to measure with.
    bench: bool,
    /// The server's status.
    status: bool,
}

/// Reads what the client says until the connection ends, and says why it did.
async fn read(
    serving: &Arc<Serving>,
    mut reader: TlsReader,
    peer: &Arc<Peer>,
    client: &Arc<Client>,
    spoken: Spoken,
    pulse: &Pulse,
) -> Fault {
    // Made at the first offer: most sessions have none.
    let mut rails: Option<RailSender> = None;
    let operations = Arc::new(Semaphore::new(OPERATIONS_PER_SESSION_MAX));
    let mut refusals = Refusals {
        session: peer.id,
        lines: Tally::default(),
    };
    loop {
        let envelope = match reader.next().await {
            Ok(Some(envelope)) => envelope,
            Ok(None) => return Fault::new(FaultCode::Lost, "the client closed the session"),
            Err(error) => {
                let fault = error.to_fault();
                peer.say(TransferId::NONE, Message::Goodbye(fault.clone()));
                return fault;
            }
        };
        pulse.heard();
        let transfer = envelope.transfer;
        let began = match envelope.message {
            Message::Ping { nonce } if transfer == TransferId::NONE => {
                peer.pong(nonce);
                Ok(())
            }
            Message::Pong { nonce } if transfer == TransferId::NONE => {
                pulse.answered(nonce);
                Ok(())
            }
            Message::Goodbye(fault) => return fault,
            message @ (Message::RailOffer(_)
            | Message::RailConnect(_)
            | Message::RailProof { .. }
            | Message::RailDown { .. })
                if transfer == TransferId::NONE =>
            {
                let told = match spoken.rails_from {
                    Some(client) => rails
                        .get_or_insert_with(|| serving.rails(peer, client, &message))
                        .hear(message),
                    None => Err(Fault::new(
                        FaultCode::Protocol,
                        "rails can't be spoken of at this session's level",
                    )),
                };
                if let Err(fault) = told {
                    peer.say(TransferId::NONE, Message::Goodbye(fault.clone()));
                    return fault;
                }
                Ok(())
            }
            Message::StatusQuery(_)
                if transfer == TransferId::NONE && !serving.offered().trusts(client) =>
            {
                let text = "this client may not ask for the server's status: that takes every export and \
                            every right that its key could have";
                let fault = Fault::new(FaultCode::Denied, text);
                peer.say(TransferId::NONE, Message::Goodbye(fault.clone()));
                return fault;
            }
            Message::StatusQuery(query) if transfer == TransferId::NONE && spoken.status => {
                peer.inform(|| serving.status(query, peer.id));
                Ok(())
            }
            Message::RailMemory { reason } if transfer == TransferId::NONE => {
                tracing::info!(
                    session = %peer.id,
                    reason = %reason.escape_debug(),
                    "the client's memory can't be read over its rails"
                );
                Ok(())
            }
            Message::Open(open) => begin(serving, peer, transfer).map(|seat| {
                let (serving_too, client) = (Arc::clone(serving), Arc::clone(client));
                run(serving, transfers::run(serving_too, seat, client, open));
            }),
            Message::Bench { region_bytes } if spoken.bench => {
                begin(serving, peer, transfer).map(|seat| {
                    let measured = benching::run(Arc::clone(serving), seat, region_bytes);
                    let serving_too = Arc::clone(serving);
                    run(serving, async move {
                        measured.await;
                        serving_too.tidy();
                    });
                })
            }
            Message::Bench { .. } => Err(Fault::new(
                FaultCode::Protocol,
                "memory to measure with can't be asked for at this session's level",
            )),
            Message::Operate(operation) => begin(serving, peer, transfer).map(|seat| {
                run(
                    serving,
                    operating::run(
                        Arc::clone(serving),
                        seat,
                        Arc::clone(client),
                        operation,
                        Arc::clone(&operations),
                    ),
                );
            }),
            _ if transfer == TransferId::NONE => {
                let fault = Fault::new(FaultCode::Protocol, "a message belongs to no transfer");
                peer.say(TransferId::NONE, Message::Goodbye(fault.clone()));
                return fault;
            }
            message => {
                let envelope = crate::wire::message::Envelope { transfer, message };
                if let Err(fault) = peer.deliver(envelope) {
                    peer.say(TransferId::NONE, Message::Goodbye(fault.clone()));
                    return fault;
                }
                Ok(())
            }
        };
        if let Err(fault) = began {
            refusals.tell(transfer, &fault);
            peer.say(transfer, Message::Failed(fault));
        }
    }
}

/// Log lines about what a client began and may not: a request costs it a few bytes, so there is no
/// line for each.
struct Refusals {
    session: SessionId,
    lines: Tally,
}

impl Refusals {
    fn tell(&mut self, transfer: TransferId, fault: &Fault) {
        if let Some(count) = self.lines.count(Instant::now()) {
            let reason = &*fault.text;
            tracing::info!(session = %self.session, %transfer, reason, count, "refused");
        }
    }
}

impl Drop for Refusals {
    fn drop(&mut self) {
        let count = self.lines.take();
        if count > 0 {
            tracing::info!(session = %self.session, count, "more was refused");
        }
    }
}

/// A seat for what a client begins.
fn begin(serving: &Serving, peer: &Arc<Peer>, transfer: TransferId) -> Result<Seat, Fault> {
    if serving.is_draining() {
        return Err(Fault::new(
            FaultCode::Busy,
            "the server is shutting down; try again later",
        ));
    }
    if transfer == TransferId::NONE {
        return Err(Fault::new(FaultCode::Protocol, "a transfer needs an id"));
    }
    if peer.seats() >= serving.offered().limits.transfers_max {
        let text = "the session has as many transfers as it may have; try again later";
        return Err(Fault::new(FaultCode::Busy, text));
    }
    peer.seat(transfer)
        .ok_or_else(|| Fault::new(FaultCode::Protocol, "a transfer with this id runs already"))
}

/// Spawns a transfer's or operation's task, whose end is told to whoever waits for quiet.
fn run(serving: &Arc<Serving>, task: impl Future<Output = ()> + Send + 'static) {
    let serving = Arc::clone(serving);
    tokio::spawn(async move {
        task.await;
        serving.ended.notify_waiters();
    });
}

/// What a request is about, as log lines name it: both from a client, and harmless to show.
pub(super) struct Subject {
    pub(super) export: String,
    pub(super) path: String,
}

impl Subject {
    pub(super) fn of(place: Option<&RemotePath>) -> Self {
        let export = place.map_or("", |place| &place.export);
        let path = place.map_or(&b""[..], |place| &place.path);
        Self {
            export: ShownPath(export.as_bytes()).to_string(),
            path: ShownPath(path).to_string(),
        }
    }
}

/// An error and its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text.escape_debug().to_string()
}
