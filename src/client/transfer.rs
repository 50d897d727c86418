//! A running transfer: its handle, and how each direction is set up.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::again::{Account, Run};
use super::home::Home;
use super::work::Work;
use super::{PullSource, local};
use crate::error::{Error, ErrorKind};
use crate::ids::TransferId;
use crate::location::{Base, Location, Locations, Root, Side, Target};
use crate::options::TransferOptions;
use crate::progress::{Event, Progress, Report};
use crate::session::delta;
use crate::session::watch::Stamp;
use crate::storage::LastSymlink;
use crate::storage::error::ShownPath;
use crate::storage::sink::SinkOptions;
use crate::storage::source::WalkOptions;
use crate::storage::{FilterError, Filters, MirrorOptions};
use crate::wire::message::{Placement, RemotePath, RootName};
use crate::wire::{Fault, FaultCode};

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
pub(super) struct Start {
    pub(super) id: TransferId,
    pub(super) begun: Instant,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) shared: Arc<Mutex<Progress>>,
    pub(super) cancel: watch::Receiver<Option<Fault>>,
    /// When something moved last.
    pub(super) moved: Arc<Stamp>,
}

pub(super) fn pull(
    home: Arc<Home>,
    sources: Vec<PullSource>,
    destination: PathBuf,
    options: TransferOptions,
) -> Transfer {
    begin(options.id, move |start| {
        run_pull(home, sources, destination, options, start)
    })
}

pub(super) fn push(
    home: Arc<Home>,
    sources: Vec<PathBuf>,
    destination: RemotePath,
    into_directory: bool,
    options: TransferOptions,
) -> Transfer {
    begin(options.id, move |start| {
        run_push(home, sources, destination, into_directory, options, start)
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
        moved: Arc::default(),
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
    home: Arc<Home>,
    sources: Vec<PullSource>,
    destination: PathBuf,
    options: TransferOptions,
    start: Start,
) -> Result<Report, Error> {
    check_reuse(&options)?;
    let filters = filters(&options)?;
    let session = home.session();
    let placement = Placement {
        into_directory: ends_in_slash(&destination),
        make_parents: options.make_parents,
        roots: sources.iter().map(root_name).collect(),
    };
    check_names(&placement.roots)?;
    check_rate(&options)?;
    check_mirrored(&placement, &options)?;
    let roots = shown_roots(&placement.roots);
    let names = placement.roots.clone();
    let sink = SinkOptions {
        // Links to directories have been followed by then.
        last_symlink: LastSymlink::Keep,
        placement,
        overwrite: options.overwrite,
        preserve: options.preserve,
        sync: options.sync,
        only_adds: false,
        dry_run: options.dry_run,
        mirror: options
            .delete
            .map(|deleting| MirrorOptions { deleting, filters }),
        reuse: delta::allowed(options.reuse, options.hash, true),
        chunk: options.chunk,
        // Said of each attempt by itself.
        writer: Arc::default(),
    };
    // Looking at the destination can block.
    let target = bytes_of(&destination);
    let local = session
        .workers()
        .run(move || local::destination(&destination))
        .await
        .map_err(broken)?
        .map_err(|error| Error::from(error.fault()).at(Location::local(&*target)))?;
    let file_inside = names.len() > 1 || local.below.is_empty() || target.ends_with(b"/");
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
    drop(session);
    let paths = sources.into_iter().map(|source| RemotePath {
        export: source.export,
        path: source.path,
    });
    let work = Work::Pull {
        sources: paths.collect(),
        root: local.root,
        below: local.below,
        sink,
    };
    let run = Run {
        home,
        work,
        options,
        start,
        roots,
        locations,
        account: Account::default(),
    };
    run.go().await
}

async fn run_push(
    home: Arc<Home>,
    sources: Vec<PathBuf>,
    destination: RemotePath,
    into_directory: bool,
    options: TransferOptions,
    start: Start,
) -> Result<Report, Error> {
    check_reuse(&options)?;
    check_rate(&options)?;
    let session = home.session();
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
    let placement = Placement {
        into_directory,
        make_parents: options.make_parents,
        roots,
    };
    check_mirrored(&placement, &options)?;
    let roots = &placement.roots;
    let file_inside = into_directory || roots.len() > 1;
    let located = sources.iter().zip(roots).map(|(source, name)| Root {
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
    drop(session);
    let shown = shown_roots(&placement.roots);
    let walk = WalkOptions {
        recursive: options.recursive,
        filters: filters(&options)?,
        preserve,
        hash: options.hash,
        chunk: options.chunk,
    };
    let work = Work::Push {
        specs,
        walk,
        destination,
        placement,
    };
    let run = Run {
        home,
        work,
        options,
        start,
        roots: shown,
        locations,
        account: Account::default(),
    };
    run.go().await
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

fn check_rate(options: &TransferOptions) -> Result<(), Error> {
    let slowest = options.chunk.bytes_per_s_min();
    match options.bytes_per_s {
        Some(rate) if rate.get() < slowest => {
            let kib = slowest.div_ceil(1024);
            let message =
                format!("the rate is too low: chunks of this size need {kib} KiB a second");
            let hint = "allow more, or choose smaller chunks";
            Err(Error::new(ErrorKind::Usage, message).with_hint(hint))
        }
        _ => Ok(()),
    }
}

/// Whether what the sources do not have can be told, if it is to be removed.
fn check_mirrored(placement: &Placement, options: &TransferOptions) -> Result<(), Error> {
    if options.delete.is_none() {
        return Ok(());
    }
    MirrorOptions::check(placement, options.recursive).map_err(Error::from)
}

/// The filters, if they can be applied.
fn filters(options: &TransferOptions) -> Result<Arc<Filters>, Error> {
    let filters = Filters::new(&options.filters);
    let usage = |error: FilterError| Error::new(ErrorKind::Usage, error.to_string());
    filters.map(Arc::new).map_err(usage)
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
