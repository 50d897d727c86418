//! The server's half of one transfer.
//!
//! In: what a client opened, and its seat. Out: the run of a sender or a receiver on an export, and
//! the lines in the log that tell of its beginning and end.

use std::sync::Arc;
use std::time::Duration;

use super::{Audited, Serving, Subject};
use crate::audit::AuditOutcome;
use crate::engine::receiver::ReceiverOptions;
use crate::engine::sender::SenderOptions;
use crate::session::clients::{Client, Right};
use crate::session::delta;
use crate::session::peer::Seat;
use crate::session::receiving::Receiving;
use crate::session::sending::Sending;
use crate::session::watch::{Ended, Watch, WatchOptions};
use crate::storage::sink::{Sink, SinkOptions};
use crate::storage::source::{Source, SourceSpec, WalkOptions};
use crate::storage::{FilterError, Filters, LastSymlink, MirrorOptions};
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
        %session, %transfer, direction, export, path, sources, hash = ?open.hash,
        dry_run = open.dry_run, "transfer began"
    );
    let audited = Audited::begin(
        &serving.auditor,
        serving.whose_is(session),
        transfer,
        direction,
        open.dry_run,
        places,
    );
    let shared = Arc::default();
    let kind = match &open.direction {
        Direction::Pull(_) => Running::Pull,
        Direction::Push { .. } => Running::Push,
    };
    let about = format!("{export}/{path}");
    let activity = seat.peer.activity();
    let _begun = activity.begin(transfer, kind, about, Arc::clone(&shared));
    // The client cancels by message, and by going on in another session.
    let owner = serving.owner_of(session);
    let entered = match owner {
        Some(owner) => serving.runs.enter(transfer, owner).await,
        None => Err(Fault::new(FaultCode::Lost, "the session ended")),
    };
    let watch = |roots, cancel| {
        Watch::new(WatchOptions {
            transfer,
            roots,
            locations: None,
            shared: Arc::clone(&shared),
            events: None,
            cancel,
            stall_timeout: STALL_TIMEOUT,
            moved: Arc::default(),
            // A client that reads what it holds moves nothing that shows here.
            renewals_count: true,
            // Its client begins anew; there is nothing here to go on with but what is on the disk.
            goes_on: None,
            exists_is_error: false,
        })
    };
    let peer = Arc::clone(&seat.peer);
    let ended = match entered {
        Ok(place) => {
            let cancel = place.cancel.clone();
            let watch = |roots| watch(roots, cancel);
            let ended = match open.direction.clone() {
                Direction::Pull(sources) => {
                    send(&serving, seat, &client, &open, sources, watch).await
                }
                Direction::Push { .. } => receive(&serving, seat, &client, &open, watch).await,
            };
            drop(place);
            ended
        }
        Err(fault) => Err(fault),
    };
    match ended {
        Ok(Ended {
            ledger,
            past,
            fault,
            told,
            ..
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
                files = past.totals.files,
                published = ledger.published,
                updated = ledger.updated,
                unchanged = ledger.unchanged,
                deleted = ledger.deleted,
                failed = ledger.failed,
                bytes = ledger.bytes,
                resumed = ledger.carried.resumed,
                reused = ledger.carried.reused,
                "transfer ended"
            );
            audited.end(AuditOutcome::of(&ledger, fault.as_ref()));
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
            audited.end(AuditOutcome::refused(&fault));
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
    let filters = filters(open)?;
    let mut specs = Vec::with_capacity(sources.len());
    let mut roots = Vec::with_capacity(sources.len());
    let offered = serving.offered();
    for source in sources {
        let export = offered.export(client, &source, Right::Read)?;
        export.admits(open.hash)?;
        specs.push(SourceSpec {
            root: Arc::clone(&export.root),
            path: source.path.clone(),
        });
        roots.push(source.path);
    }
    let walk = WalkOptions {
        recursive: open.recursive,
        filters,
        preserve: open.preserve,
        hash: open.hash,
        chunk: open.chunk,
    };
    let options = SenderOptions {
        first_region: seat.first_region(),
        dry_run: open.dry_run,
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

/// The filters of a request, if they can be applied.
fn filters(open: &Open) -> Result<Arc<Filters>, Fault> {
    let filters = Filters::new(&open.filters);
    let fault = |error: FilterError| Fault::new(FaultCode::Invalid, error.to_string());
    filters.map(Arc::new).map_err(fault)
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
        bytes_per_s,
        delete,
        reuse,
    } = open.direction.clone()
    else {
        return Err(Fault::new(
            FaultCode::Internal,
            "a pull can't be received here",
        ));
    };
    let offered = serving.offered();
    let export = offered.export(client, &destination, Right::Create)?;
    export.admits(open.hash)?;
    let replaces = !matches!(overwrite, Overwrite::Never | Overwrite::Error);
    let overwrites = export.lets(client, Right::Overwrite);
    let reads = export.lets(client, Right::Read);
    if replaces && !overwrites {
        let text = "this client may make files here and replace none: push with --overwrite never, \
                    or error";
        return Err(Fault::new(FaultCode::Denied, text));
    }
    let mirror = match delete {
        Some(deleting) => {
            // What is removed is named to the client.
            for right in [Right::Delete, Right::List] {
                offered.export(client, &destination, right)?;
            }
            MirrorOptions::check(&placement, open.recursive)?;
            let filters = filters(open)?;
            Some(MirrorOptions { deleting, filters })
        }
        None => None,
    };
    let mirrors = mirror.is_some();
    if let Some(fault) = delta::refusal(reuse, overwrite, open.hash, reads) {
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
        only_adds: !overwrites,
        dry_run: open.dry_run,
        mirror,
        // Which chunks are asked for tells what is there.
        reuse: delta::allowed(reuse, open.hash, reads),
        chunk: open.chunk,
        writer: client.shown(seat.transfer).into(),
    };
    let root = Arc::clone(&export.root);
    let sink = Sink::new(root, destination.path, options);
    seat.say(Message::Opened);
    let run = Receiving {
        seat,
        workers: serving.machinery.workers.clone(),
        sink: Arc::new(sink),
        options: ReceiverOptions {
            mirror: mirrors,
            tell_removals: mirrors,
            ..ReceiverOptions::new(open.hash, open.chunk)
        },
        resume,
        bytes_per_s,
        watch: watch(roots),
    };
    Ok(run.run().await)
}
