//! A running transfer: its handle, how each direction is set up, and how it is accounted for.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::connect::Session;
use super::{PullSource, local};
use crate::engine::Verdict;
use crate::engine::receiver::ReceiverOptions;
use crate::engine::sender::SenderOptions;
use crate::error::{Error, ErrorKind};
use crate::ids::TransferId;
use crate::location::{Base, Location, Locations, Root, Side, Target};
use crate::options::{HashKind, TransferOptions};
use crate::progress::{Event, Failure, Progress, Report};
use crate::session::delta;
use crate::session::peer::Seat;
use crate::session::receiving::Receiving;
use crate::session::sending::Sending;
use crate::session::watch::{Ended, Watch, WatchOptions};
use crate::storage::error::ShownPath;
use crate::storage::sink::{Sink, SinkOptions};
use crate::storage::source::{Source, WalkOptions};
use crate::storage::{LastSymlink, StorageError};
use crate::wire::message::{Carried, Direction, Open, Placement, RemotePath, RootName};
use crate::wire::{Fault, FaultCode, Message};

/// Events that wait for a watcher before the transfer waits for it.
const EVENTS_QUEUED_MAX: usize = 4096;

/// A transfer that was started. Dropping it cancels it; [`Self::finish`] waits for its end.
///
/// Whoever takes events must go on taking them: a transfer waits for a watcher that has fallen
/// behind by some thousands. Whoever takes none calls [`Self::finish`].
#[derive(Debug)]
pub struct Transfer {
    id: TransferId,
    progress: Arc<Mutex<Progress>>,
    events: mpsc::Receiver<Event>,
    cancel: Canceller,
    task: JoinHandle<Result<Report, Error>>,
}

/// Cancels its transfer; can be cloned and kept elsewhere.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<watch::Sender<Option<Fault>>>);

impl Canceller {
    /// Ends the transfer. What is published stays; part files are removed, but for those that the
    /// same transfer can go on with ([`TransferOptions::resume`]).
    pub fn cancel(&self) {
        let fault = Fault::new(FaultCode::Cancelled, "cancelled");
        self.0.send_replace(Some(fault));
    }
}

impl Transfer {
    /// Its id, which stands in every log line and message about it on both ends.
    pub fn id(&self) -> TransferId {
        self.id
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next thing that happened; `None` once the transfer has ended.
    pub async fn next_event(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Ends it; [`Self::finish`] then tells [`ErrorKind::Cancelled`].
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// A handle that cancels it from elsewhere.
    pub fn canceller(&self) -> Canceller {
        self.cancel.clone()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// Why the transfer itself did not go to its end. Entries that failed are no error here: see
    /// [`Report::failure_kind`].
    pub async fn finish(mut self) -> Result<Report, Error> {
        self.events.close();
        // Events that nobody takes are dropped, and with them the reason to wait for us.
        while self.events.recv().await.is_some() {}
        match (&mut self.task).await {
            Ok(result) => result,
            Err(error) => {
                Err(Error::new(ErrorKind::Internal, "the transfer's task broke").with_source(error))
            }
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// What both directions set up alike.
struct Start {
    id: TransferId,
    begun: Instant,
    events: mpsc::Sender<Event>,
    shared: Arc<Mutex<Progress>>,
    cancel: watch::Receiver<Option<Fault>>,
}

pub(super) fn pull(
    session: Arc<Session>,
    sources: Vec<PullSource>,
    destination: PathBuf,
    options: TransferOptions,
) -> Transfer {
    begin(options.id, move |start| {
        run_pull(session, sources, destination, options, start)
    })
}

pub(super) fn push(
    session: Arc<Session>,
    sources: Vec<PathBuf>,
    destination: RemotePath,
    into_directory: bool,
    options: TransferOptions,
) -> Transfer {
    begin(options.id, move |start| {
        run_push(
            session,
            sources,
            destination,
            into_directory,
            options,
            start,
        )
    })
}

fn begin<F>(id: Option<TransferId>, run: impl FnOnce(Start) -> F) -> Transfer
where
    F: Future<Output = Result<Report, Error>> + Send + 'static,
{
    let id = id.unwrap_or_else(TransferId::random);
    let (events, taken) = mpsc::channel(EVENTS_QUEUED_MAX);
    let (canceller, cancel) = watch::channel(None);
    let progress = Arc::new(Mutex::new(Progress::default()));
    let shared = Arc::clone(&progress);
    let start = Start {
        id,
        begun: Instant::now(),
        events,
        shared,
        cancel,
    };
    let task = tokio::spawn(run(start));
    Transfer {
        id,
        progress,
        events: taken,
        cancel: Canceller(Arc::new(canceller)),
        task,
    }
}

async fn run_pull(
    session: Arc<Session>,
    sources: Vec<PullSource>,
    destination: PathBuf,
    options: TransferOptions,
    start: Start,
) -> Result<Report, Error> {
    check_reuse(&options)?;
    let placement = Placement {
        into_directory: ends_in_slash(&destination),
        make_parents: options.make_parents,
        roots: sources.iter().map(root_name).collect(),
    };
    check_names(&placement.roots)?;
    let roots = shown_roots(&placement.roots);
    let names = placement.roots.clone();
    let sink_options = SinkOptions {
        // Links to directories have been followed by then.
        last_symlink: LastSymlink::Keep,
        placement,
        overwrite: options.overwrite,
        preserve: options.preserve,
        sync: options.sync,
        only_adds: false,
        reuse: delta::allowed(options.reuse, options.hash, true),
        chunk: options.chunk,
    };
    // Looking at the destination can block.
    let target = bytes_of(&destination);
    let (sink, is_directory) = session
        .workers()
        .run(move || -> Result<(Sink, bool), StorageError> {
            let local = local::destination(&destination)?;
            let is_directory = local.below.is_empty();
            let sink = Sink::new(local.root, local.below, sink_options);
            Ok((sink, is_directory))
        })
        .await
        .map_err(broken)?
        .map_err(|error| Error::from(error.fault()).at(Location::local(&*target)))?;
    let file_inside = names.len() > 1 || is_directory || target.ends_with(b"/");
    let located = sources.iter().zip(&names).map(|(source, name)| Root {
        source: Base::Remote(session.place(&source.export, &source.path)),
        target: Target {
            base: Base::Local(target.clone()),
            name: shown_name(name),
            file_inside,
        },
    });
    let locations = Locations {
        roots: located.collect(),
        sender: Side::Remote,
    };
    session.connect_data().await?;
    let seat = session.seat(start.id)?;
    let paths = sources.into_iter().map(|source| RemotePath {
        export: source.export,
        path: source.path,
    });
    seat.say(Message::Open(open(
        Direction::Pull(paths.collect()),
        &options,
    )));
    let receiver_options = ReceiverOptions {
        fail_early: options.fail_early,
        end_when_full: true,
        ..ReceiverOptions::new(options.hash, options.chunk)
    };
    let (watch, account) = watching(start, roots, locations, &options, &session, &seat).await;
    let run = Receiving {
        seat,
        workers: session.workers(),
        sink: Arc::new(sink),
        options: receiver_options,
        resume: options.resume,
        watch,
    };
    account.report(run.run().await)
}

async fn run_push(
    session: Arc<Session>,
    sources: Vec<PathBuf>,
    destination: RemotePath,
    into_directory: bool,
    options: TransferOptions,
    start: Start,
) -> Result<Report, Error> {
    check_reuse(&options)?;
    let preserve = options.preserve;
    let paths = sources.clone();
    let found = session
        .workers()
        .run(move || -> Vec<Result<_, Error>> {
            paths
                .iter()
                .map(|path| {
                    local::source(path, preserve).map_err(|error| {
                        Error::from(error.fault()).at(Location::local(bytes_of(path)))
                    })
                })
                .collect()
        })
        .await
        .map_err(broken)?;
    let found = found.into_iter().collect::<Result<Vec<_>, Error>>()?;
    let (specs, roots): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    check_names(&roots)?;
    let file_inside = into_directory || roots.len() > 1;
    let located = sources.iter().zip(&roots).map(|(source, name)| Root {
        source: Base::Local(without_slashes(bytes_of(source))),
        target: Target {
            base: Base::Remote(session.place(&destination.export, &destination.path)),
            name: shown_name(name),
            file_inside,
        },
    });
    let locations = Locations {
        roots: located.collect(),
        sender: Side::Local,
    };
    let shown = shown_roots(&roots);
    let walk = WalkOptions {
        recursive: options.recursive,
        preserve,
        hash: options.hash,
        chunk: options.chunk,
    };
    session.connect_data().await?;
    let seat = session.seat(start.id)?;
    let direction = Direction::Push {
        destination,
        placement: Placement {
            into_directory,
            make_parents: options.make_parents,
            roots,
        },
        overwrite: options.overwrite,
        sync: options.sync,
        resume: options.resume,
        reuse: options.reuse,
    };
    seat.say(Message::Open(open(direction, &options)));
    let sender_options = SenderOptions {
        first_region: seat.first_region(),
        fail_early: options.fail_early,
        ..SenderOptions::new(options.hash, options.chunk)
    };
    let (watch, account) = watching(start, shown, locations, &options, &session, &seat).await;
    let run = Sending {
        seat,
        machinery: session.machinery(),
        source: Arc::new(Source::new(specs, walk)),
        options: sender_options,
        watch,
    };
    account.report(run.run().await)
}

/// What the report needs beside how the run ended.
struct Account {
    id: TransferId,
    begun: Instant,
    hash: HashKind,
    server: String,
    session: Arc<Session>,
    /// This end is the sender.
    sends: bool,
}

async fn watching(
    start: Start,
    roots: Vec<Vec<u8>>,
    locations: Locations,
    options: &TransferOptions,
    session: &Arc<Session>,
    seat: &Seat,
) -> (Watch, Account) {
    let sends = matches!(&locations.sender, Side::Local);
    let chosen = session.transport(Carried::default());
    tracing::info!(
        transfer = %start.id,
        session = %seat.peer.id,
        transport = chosen.transport,
        reason = %chosen.reason.escape_debug(),
        "started"
    );
    let started = Event::Started {
        transfer: start.id,
        transport: chosen.transport,
        reason: chosen.reason,
        note: chosen.note,
    };
    // A watcher that has gone already needs no events.
    let _ = start.events.send(started).await;
    let watch = Watch::new(WatchOptions {
        transfer: start.id,
        roots,
        locations: Some(locations),
        shared: start.shared,
        events: Some(start.events),
        cancel: start.cancel,
        stall_timeout: options.stall_timeout,
        // How long to wait is decided here, whatever the server says.
        renewals_count: false,
    });
    (
        watch,
        Account {
            id: start.id,
            begun: start.begun,
            hash: options.hash,
            server: session.host().to_string(),
            session: Arc::clone(session),
            sends,
        },
    )
}

impl Account {
    fn report(self, ended: Ended) -> Result<Report, Error> {
        let Ended {
            ledger,
            totals,
            fault,
            ..
        } = ended;
        let result = fault.as_ref().map_or("done", |_| "ended early");
        tracing::info!(
            transfer = %self.id,
            result,
            reason = fault.as_ref().map(|fault| fault.text.escape_debug().to_string()),
            published = ledger.published,
            updated = ledger.updated,
            unchanged = ledger.unchanged,
            failed = ledger.failed,
            bytes = ledger.bytes,
            "ended"
        );
        let failure_kind = match ledger.verdict() {
            Verdict::Clean => None,
            Verdict::One(code) => Some(ErrorKind::of_fault(code)),
            Verdict::Several => {
                let mut kinds = ledger
                    .classes()
                    .iter()
                    .map(|(code, _)| ErrorKind::of_fault(*code));
                let first = kinds.next();
                if kinds.all(|kind| Some(kind) == first) {
                    first
                } else {
                    Some(ErrorKind::Several)
                }
            }
        };
        let moved_by = self.session.transport(ledger.carried);
        let listed = u64::try_from(totals.failures.len()).unwrap_or(u64::MAX);
        let mut report = Report {
            transfer: self.id,
            transport: moved_by.transport,
            reason: moved_by.reason,
            carried: ledger.carried,
            hash: self.hash,
            published: ledger.published,
            files: totals.files,
            unchanged: ledger.unchanged,
            updated: ledger.updated,
            failed: ledger.failed,
            warnings: totals.warnings,
            bytes_moved: match (self.sends, ledger.carried) {
                // What a receiver had already was lent to it and not read: only the receiver knows.
                (
                    true,
                    all @ Carried {
                        resumed, reused, ..
                    },
                ) if resumed > 0 || reused > 0 => all.tcp.saturating_add(all.rdma),
                _ => totals.progress.bytes_moved,
            },
            bytes_resumed: ledger.carried.resumed,
            bytes_reused: ledger.carried.reused,
            bytes_published: totals.bytes_published,
            elapsed: self.begun.elapsed(),
            data_elapsed: totals.data_elapsed(),
            failures: totals.failures,
            failures_unlisted: ledger.failed.saturating_sub(listed),
            failure_kind,
        };
        let Some(fault) = fault else {
            return Ok(report);
        };
        // What ended the run may be the failure of an entry, and is then about that entry's place.
        let same = |failure: &Failure| {
            (failure.fault.code, &failure.fault.text) == (fault.code, &fault.text)
        };
        let entry = report.failures.iter().find(|failure| same(failure));
        let Some(location) = entry.and_then(|failure| failure.location.clone()) else {
            return Err(said_by(&self.server, fault).with_report(report));
        };
        // What was under way then follows from it.
        let follows = |code| code == fault.code || code == FaultCode::Cancelled;
        report
            .failures
            .retain(|failure| !follows(failure.fault.code));
        Err(Error::from(fault).at(location).with_report(report))
    }
}

/// The error for a fault, which names the server if it was the server that said it.
pub(super) fn said_by(server: &str, fault: Fault) -> Error {
    if fault.from_peer {
        return Error::new(
            ErrorKind::of_fault(fault.class()),
            format!("{server}: {}", fault.text),
        );
    }
    fault.into()
}

/// What can't be asked for together.
fn check_reuse(options: &TransferOptions) -> Result<(), Error> {
    match delta::refusal(options.reuse, options.overwrite, options.hash, true) {
        Some(fault) => Err(Error::new(ErrorKind::Usage, fault.text)),
        None => Ok(()),
    }
}

/// Two sources that would have one name at the destination: nothing could make both right.
fn check_names(roots: &[RootName]) -> Result<(), Error> {
    let mut names: Vec<_> = roots
        .iter()
        .filter(|root| !root.contents && !root.name.is_empty())
        .map(|root| &root.name)
        .collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => {
            let name = ShownPath(pair[0]);
            let message = format!("two sources would both become '{name}' at the destination");
            Err(Error::new(ErrorKind::Usage, message).with_hint(
                "copy them to different directories, one run for each; of directories, a slash at \
                 the end means the contents",
            ))
        }
    }
}

fn open(direction: Direction, options: &TransferOptions) -> Open {
    Open {
        direction,
        hash: options.hash,
        chunk: options.chunk,
        preserve: options.preserve,
        recursive: options.recursive,
    }
}

fn root_name(source: &PullSource) -> RootName {
    let end = source
        .path
        .iter()
        .rposition(|&byte| byte != b'/')
        .map_or(0, |at| at + 1);
    let trimmed = &source.path[..end];
    let name = trimmed
        .rsplit(|&byte| byte == b'/')
        .next()
        .unwrap_or_default();
    // The top of an export is called what the export is called.
    let name = if name.is_empty() {
        source.export.as_bytes()
    } else {
        name
    };
    RootName {
        name: name.to_vec(),
        contents: source.contents,
    }
}

/// What roots are called in messages: nothing where a directory's contents are meant.
fn shown_roots(roots: &[RootName]) -> Vec<Vec<u8>> {
    roots.iter().map(shown_name).collect()
}

fn shown_name(root: &RootName) -> Vec<u8> {
    if root.contents {
        Vec::new()
    } else {
        root.name.clone()
    }
}

fn bytes_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// Without slashes at its end; the root stays one.
fn without_slashes(mut path: Vec<u8>) -> Vec<u8> {
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    path
}

fn ends_in_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

fn broken(panic: crate::workers::WorkerPanicked) -> Error {
    Error::new(ErrorKind::Internal, "a blocking call broke").with_source(panic)
}
