//! The server's half of one transfer.
//!
//! In: what a client opened, and its seat. Out: the run of a sender or a receiver on an export, and
//! the lines in the log that tell of its beginning and end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{Serving, Subject};
use crate::engine::receiver::ReceiverOptions;
use crate::engine::sender::SenderOptions;
use crate::session::clients::{Client, Right};
use crate::session::delta;
use crate::session::peer::Seat;
use crate::session::receiving::Receiving;
use crate::session::sending::Sending;
use crate::session::watch::{Ended, Watch, WatchOptions};
use crate::storage::LastSymlink;
use crate::storage::sink::{Sink, SinkOptions};
use crate::storage::source::{Source, SourceSpec, WalkOptions};
use crate::wire::message::{Direction, Open, Overwrite, RemotePath, Running};
use crate::wire::{Fault, FaultCode, Message};

/// A transfer whose client lets nothing move for this long, and does not even renew leases, is ended;
/// the client's own limit is shorter unless it was raised.
const STALL_TIMEOUT: Duration = Duration::from_secs(600);

/// The server's half of one transfer.
pub(super) async fn run(serving: Arc<Serving>, seat: Seat, client: Arc<Client>, open: Open) {
    let (transfer, session) = (seat.transfer, seat.peer.id);
    let (direction, places) = match &open.direction {
        Direction::Pull(sources) => ("pull", sources.as_slice()),
        Direction::Push { destination, .. } => ("push", std::slice::from_ref(destination)),
    };
    let Subject { export, path } = Subject::of(places.first());
    let sources = match &open.direction {
        Direction::Pull(sources) => sources.len(),
        Direction::Push { placement, .. } => placement.roots.len(),
    };
    tracing::info!(
        %session, %transfer, direction, export, path, sources, hash = ?open.hash, "transfer began"
    );
    let shared = Arc::default();
    let kind = match &open.direction {
        Direction::Pull(_) => Running::Pull,
        Direction::Push { .. } => Running::Push,
    };
    let about = format!("{export}/{path}");
    let activity = seat.peer.activity();
    let _begun = activity.begin(transfer, kind, about, Arc::clone(&shared));
    // The owner is the client; it cancels by message.
    let (_cancel, cancel) = watch::channel(None);
    let watch = |roots| {
        Watch::new(WatchOptions {
            transfer,
            roots,
            locations: None,
            shared: Arc::clone(&shared),
            events: None,
            cancel: cancel.clone(),
            stall_timeout: STALL_TIMEOUT,
            // A client that reads what it holds moves nothing that shows here.
            renewals_count: true,
        })
    };
    let peer = Arc::clone(&seat.peer);
    let ended = match open.direction.clone() {
        Direction::Pull(sources) => send(&serving, seat, &client, &open, sources, watch).await,
        Direction::Push { .. } => receive(&serving, seat, &client, &open, watch).await,
    };
    match ended {
        Ok(Ended {
            ledger,
            totals,
            fault,
            told,
        }) => {
            let result = match &fault {
                Some(_) => "ended early",
                None if ledger.failed > 0 => "some failed",
                None => "done",
            };
            tracing::info!(
                %session,
                %transfer,
                direction,
                export,
                path,
                result,
                reason = fault.as_ref().map(|fault| fault.text.escape_debug().to_string()),
                files = totals.files,
                published = ledger.published,
                updated = ledger.updated,
                unchanged = ledger.unchanged,
                failed = ledger.failed,
                bytes = ledger.bytes,
                resumed = ledger.carried.resumed,
                reused = ledger.carried.reused,
                "transfer ended"
            );
            if let Some(fault) = fault.filter(|_| !told) {
                peer.say(transfer, Message::Failed(fault));
            }
        }
        Err(fault) => {
            let reason = fault.text.escape_debug();
            tracing::info!(
                %session, %transfer, direction, export, path, result = "refused", %reason,
                "transfer ended"
            );
            peer.say(transfer, Message::Failed(fault));
        }
    }
}

async fn send(
    serving: &Serving,
    seat: Seat,
    client: &Client,
    open: &Open,
    sources: Vec<RemotePath>,
    watch: impl FnOnce(Vec<Vec<u8>>) -> Watch,
) -> Result<Ended, Fault> {
    let mut specs = Vec::with_capacity(sources.len());
    let mut roots = Vec::with_capacity(sources.len());
    for source in sources {
        let export = serving.export(client, &source, Right::Read)?;
        specs.push(SourceSpec {
            root: Arc::clone(&export.root),
            path: source.path.clone(),
        });
        roots.push(source.path);
    }
    let walk = WalkOptions {
        recursive: open.recursive,
        preserve: open.preserve,
        hash: open.hash,
        chunk: open.chunk,
    };
    let options = SenderOptions {
        first_region: seat.first_region(),
        ..SenderOptions::new(open.hash, open.chunk)
    };
    seat.say(Message::Opened);
    let run = Sending {
        seat,
        machinery: serving.machinery.clone(),
        source: Arc::new(Source::new(specs, walk)),
        options,
        watch: watch(roots),
    };
    Ok(run.run().await)
}

async fn receive(
    serving: &Serving,
    seat: Seat,
    client: &Client,
    open: &Open,
    watch: impl FnOnce(Vec<Vec<u8>>) -> Watch,
) -> Result<Ended, Fault> {
    let Direction::Push {
        destination,
        placement,
        overwrite,
        sync,
        resume,
        reuse,
    } = open.direction.clone()
    else {
        return Err(Fault::new(
            FaultCode::Internal,
            "a pull can't be received here",
        ));
    };
    let export = serving.export(client, &destination, Right::Create)?;
    let replaces = !matches!(overwrite, Overwrite::Never | Overwrite::Error);
    if replaces && !client.may(Right::Overwrite) {
        let text = "this client's key may make files here and replace none: push with --overwrite \
                    never, or error";
        return Err(Fault::new(FaultCode::Denied, text));
    }
    if let Some(fault) = delta::refusal(reuse, overwrite, open.hash, client.may(Right::Read)) {
        return Err(fault);
    }
    let roots = placement
        .roots
        .iter()
        .map(|root| root.name.clone())
        .collect();
    let options = SinkOptions {
        last_symlink: LastSymlink::Follow,
        placement,
        overwrite,
        preserve: open.preserve,
        sync,
        only_adds: !client.may(Right::Overwrite),
        // Which chunks are asked for tells what is there.
        reuse: delta::allowed(reuse, open.hash, client.may(Right::Read)),
        chunk: open.chunk,
    };
    let root = Arc::clone(&export.root);
    let sink = Sink::new(root, destination.path, options);
    seat.say(Message::Opened);
    let run = Receiving {
        seat,
        workers: serving.machinery.workers.clone(),
        sink: Arc::new(sink),
        options: ReceiverOptions {
            end_when_full: true,
            ..ReceiverOptions::new(open.hash, open.chunk)
        },
        resume,
        watch: watch(roots),
    };
    Ok(run.run().await)
}
