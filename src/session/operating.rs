//! The server's side of operations: list, stat, sum, remove, make a directory, clean.
//!
//! The blocking work runs on a thread of its own, of which there are few, and hands its lines over in
//! batches; they are sent only against the client's credit, and only while it has read most of what
//! was sent before, so a client that does not read costs the server a few batches, whatever credit it
//! gives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout_at};

use super::clients::{Client, Right, Rights};
use super::peer::{Inbound, Peer, Seat};
use super::serving::{Audited, Serving, Subject};
use crate::audit::AuditOutcome;
use crate::limits::{LISTING_BYTES_TARGET, LISTING_LINES_MAX};
use crate::storage::cleaning;
use crate::storage::operations::{self, Output};
use crate::storage::{Root, StorageError};
use crate::wire::message::{HashKind, Listed, ListedKind, Operation, RemotePath, Running};
use crate::wire::{Fault, FaultCode, Message};

/// How long an operation waits for its client to take lines, and for its own turn.
const CREDIT_TIMEOUT: Duration = Duration::from_secs(30);
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(30);

/// About what a line takes beside its path, at most: one with a name and a fault.
const LINE_BYTES: usize = 256;

/// Batches that wait between the worker and the connection.
const BATCHES_QUEUED_MAX: usize = 1;

/// Runs one operation to its end.
pub(crate) async fn run(
    serving: Arc<Serving>,
    mut seat: Seat,
    client: Arc<Client>,
    operation: Operation,
    of_session: Arc<Semaphore>,
) {
    let (session, transfer) = (seat.peer.id, seat.transfer);
    let (name, place) = match &operation {
        Operation::List { path, .. } => ("list", path),
        Operation::Stat { path } => ("stat", path),
        Operation::Sum { path, .. } => ("sum", path),
        Operation::Remove { path, .. } => ("remove", path),
        Operation::MakeDirectory { path, .. } => ("make directory", path),
        Operation::Clean { path, .. } => ("clean", path),
    };
    let Subject { export, path } = Subject::of(Some(place));
    tracing::info!(%session, %transfer, operation = name, export, path, "operation began");
    let dry_run = matches!(operation, Operation::Clean { dry_run: true, .. });
    let audited = Audited::begin(
        &serving.auditor,
        serving.whose_is(session),
        transfer,
        name,
        dry_run,
        std::slice::from_ref(place),
    );
    let about = format!("{name} {export}/{path}");
    let activity = seat.peer.activity();
    let _begun = activity.begin(transfer, Running::Operation, about, Arc::default());
    let answer = match perform(&serving, &mut seat, &client, operation, &of_session).await {
        Ok(()) => Message::Done,
        Err(fault) => Message::Failed(fault),
    };
    let (result, reason) = match &answer {
        Message::Failed(fault) => ("failed", Some(fault.text.escape_debug().to_string())),
        _ => ("done", None),
    };
    tracing::info!(
        %session, %transfer, operation = name, export, path, result, reason, "operation ended"
    );
    audited.end(match &answer {
        Message::Failed(fault) => AuditOutcome::refused(fault),
        _ => AuditOutcome::default(),
    });
    seat.say(answer);
}

async fn perform(
    serving: &Arc<Serving>,
    seat: &mut Seat,
    client: &Client,
    operation: Operation,
    of_session: &Arc<Semaphore>,
) -> Result<(), Fault> {
    match operation {
        Operation::List { path, .. } | Operation::Stat { path } if path.export.is_empty() => {
            let offered = serving.offered();
            let listed = offered
                .visible(client)
                .map(|export| exported(&export.name, export.rights_of(client)));
            seat.say(Message::Listing(listed.collect()));
            Ok(())
        }
        Operation::List { path, recursive } => {
            let root = root(serving, client, &path, Right::List)?;
            listing(serving, seat, of_session, move |output| {
                operations::list(&root, &path.path, recursive, output)
            })
            .await
        }
        Operation::Stat { path } => {
            let root = root(serving, client, &path, Right::List)?;
            listing(serving, seat, of_session, move |output| {
                (output.tell)(operations::stat(&root, &path.path)?);
                Ok(())
            })
            .await
        }
        Operation::Sum {
            path,
            recursive,
            hash,
        } => {
            if hash == HashKind::None {
                return Err(Fault::new(FaultCode::Invalid, "a sum needs a digest"));
            }
            let root = root(serving, client, &path, Right::Read)?;
            listing(serving, seat, of_session, move |output| {
                operations::sum(&root, &path.path, recursive, hash, output)
            })
            .await
        }
        Operation::Remove { path, recursive } => {
            let root = root(serving, client, &path, Right::Delete)?;
            listing(serving, seat, of_session, move |output| {
                operations::remove(&root, &path.path, recursive, output.cancelled)
            })
            .await
        }
        Operation::MakeDirectory { path, parents } => {
            let root = root(serving, client, &path, Right::Create)?;
            listing(serving, seat, of_session, move |_| {
                operations::make_directory(&root, &path.path, parents)
            })
            .await
        }
        Operation::Clean {
            path,
            which,
            dry_run,
        } => {
            // Its lines tell names.
            let _ = root(serving, client, &path, Right::List)?;
            let root = root(serving, client, &path, Right::Delete)?;
            listing(serving, seat, of_session, move |output| {
                cleaning::clean(&root, &path.path, which, dry_run, output)
            })
            .await
        }
    }
}

fn root(
    serving: &Serving,
    client: &Client,
    path: &RemotePath,
    right: Right,
) -> Result<Arc<Root>, Fault> {
    let export = serving.offered().export(client, path, right)?;
    Ok(Arc::clone(&export.root))
}

fn exported(name: &str, rights: Rights) -> Listed {
    let writable = rights.change();
    let kind = ListedKind::Export { writable };
    Listed {
        path: name.as_bytes().to_vec(),
        kind,
        len: 0,
        mode: if writable { 0o755 } else { 0o555 },
        uid: 0,
        gid: 0,
        mtime: crate::units::Timestamp::default(),
        digest: None,
        fault: None,
        left: None,
    }
}

/// Does blocking work on a worker and sends its lines as they come.
async fn listing(
    serving: &Arc<Serving>,
    seat: &mut Seat,
    of_session: &Arc<Semaphore>,
    work: impl FnOnce(&mut Output<'_>) -> Result<(), StorageError> + Send + 'static,
) -> Result<(), Fault> {
    let (batches, mut taken) = mpsc::channel::<Vec<Listed>>(BATCHES_QUEUED_MAX);
    let cancelled = Arc::new(AtomicBool::new(false));
    let stop = StopOnDrop(Arc::clone(&cancelled));
    let permits = admitted(serving, seat, of_session).await?;
    let tidied = TidyOnDrop(Arc::clone(serving), Arc::clone(&seat.peer));
    let done = tokio::task::spawn_blocking(move || {
        // What it held is freed before.
        let _tidied = tidied;
        // Given back when the work is over, not when nobody waits for it any more.
        let _permits = permits;
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut tell = |line: Listed| {
            bytes += line.path.len() + LINE_BYTES;
            batch.push(line);
            if batch.len() >= LISTING_LINES_MAX || bytes >= LISTING_BYTES_TARGET {
                bytes = 0;
                if batches.blocking_send(std::mem::take(&mut batch)).is_err() {
                    cancelled.store(true, Ordering::Relaxed);
                }
            }
        };
        let stopped = || cancelled.load(Ordering::Relaxed);
        let result = work(&mut Output {
            tell: &mut tell,
            cancelled: &stopped,
        });
        if !batch.is_empty() {
            // If nobody takes it any more, the operation has been cancelled.
            let _ = batches.blocking_send(batch);
        }
        result
    });
    let mut credit: u64 = 0;
    // Since when there has been none: messages that bring none don't count, or a client could hold
    // its place with them for ever.
    let mut without = Instant::now();
    loop {
        if credit > 0 {
            tokio::select! {
                batch = taken.recv() => match batch {
                    Some(batch) => {
                        credit = credit.saturating_add(until_read(seat).await?) - 1;
                        without = Instant::now();
                        seat.say(Message::Listing(batch));
                    }
                    None => break,
                },
                inbound = seat.inbox.recv() => credit = credit.saturating_add(heard(inbound)?),
            }
        } else {
            let waited = timeout_at(without + CREDIT_TIMEOUT, seat.inbox.recv()).await;
            credit = credit.saturating_add(heard(waited.map_err(|_| unread())?)?);
        }
    }
    let result = done.await;
    drop(stop);
    result
        .map_err(|panic| Fault::new(FaultCode::Internal, panic.to_string()))?
        .map_err(|error| error.fault())
}

/// The work of a session that has ended may end after it, and so hold what is given back then.
struct TidyOnDrop(Arc<Serving>, Arc<Peer>);

impl Drop for TidyOnDrop {
    fn drop(&mut self) {
        if self.1.over().is_some() {
            self.0.tidy();
        }
    }
}

/// Waits until the client has read most of what was said in its session. The credit that it gave
/// meanwhile.
async fn until_read(seat: &mut Seat) -> Result<u64, Fault> {
    let deadline = Instant::now() + CREDIT_TIMEOUT;
    let mut credit: u64 = 0;
    loop {
        let peer = Arc::clone(&seat.peer);
        tokio::select! {
            biased;
            read = peer.has_read() => return read.map(|()| credit),
            inbound = seat.inbox.recv() => credit = credit.saturating_add(heard(inbound)?),
            () = tokio::time::sleep_until(deadline) => return Err(unread()),
        }
    }
}

/// Waits for the turn of an operation: one of its session's places, then one of all. What the client
/// says meanwhile is taken afterwards.
async fn admitted(
    serving: &Serving,
    seat: &Seat,
    of_session: &Arc<Semaphore>,
) -> Result<[OwnedSemaphorePermit; 2], Fault> {
    let places = async {
        let own = Arc::clone(of_session).acquire_owned().await.ok()?;
        let common = Arc::clone(&serving.operations).acquire_owned().await.ok()?;
        Some([own, common])
    };
    tokio::select! {
        places = tokio::time::timeout(ADMISSION_TIMEOUT, places) => match places {
            Ok(Some(places)) => Ok(places),
            _ => {
                let text = "the server has too many operations under way; try again later";
                Err(Fault::new(FaultCode::Busy, text))
            }
        },
        fault = seat.peer.closed() => Err(fault),
    }
}

fn unread() -> Fault {
    Fault::new(
        FaultCode::TimedOut,
        "the client does not take the lines that it asked for",
    )
}

/// The credit in a message, or why the operation ends.
fn heard(inbound: Option<Inbound>) -> Result<u64, Fault> {
    match inbound {
        Some(Inbound::Message(Message::Credit { pages, .. })) => Ok(pages.into()),
        Some(Inbound::Message(Message::Failed(fault)) | Inbound::Over(fault)) => Err(fault),
        Some(Inbound::Message(_)) => Err(Fault::new(
            FaultCode::Protocol,
            "an operation takes credit and nothing else",
        )),
        Some(Inbound::Lane(_) | Inbound::LaneUp(..) | Inbound::LaneDown(_)) => Ok(0),
        None => Err(Fault::new(FaultCode::Lost, "the session ended")),
    }
}

/// Tells the worker to stop when whoever waits for it goes.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
