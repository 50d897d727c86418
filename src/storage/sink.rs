//! The receiver's half of storage: what a manifest tells is made real under a destination.
//!
//! In: pages of the manifest, files' bytes (through part files, or whole in packs), and the word
//! that an entry is complete. Out: what is wanted of each entry, published files, outcomes. The
//! order of a file is: part file, data, times and attributes, sync, owner and mode, rename, sync of
//! the directory; only then it is called done. Below the destination no symlink is followed and no
//! name is used but those of the manifest. Nothing here knows peers, digests or the protocol.
//!
//! [`Sink`] is shared between worker threads: [`Sink::place`] is called in the manifest's order,
//! everything else in any order and at the same time. The one lock guards tables, never a call into
//! the kernel.

mod apply;
mod commit;
mod compare;
mod destination;
mod directory;
mod finish;
mod in_place;
pub(crate) mod journal;
mod kept;
mod link;
mod listed;
mod media;
mod mirror;
mod notes;
mod older;
mod part;
mod place;
mod plan;
mod published;
mod removing;
mod resume;
mod store;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use self::apply::Rules;
use self::destination::Destination;
use self::directory::{Directories, Handle, Parent};
pub(crate) use self::journal::{Identity, Record};
use self::mirror::Mirror;
use self::notes::Notes;
pub(crate) use self::older::{Older, OlderCopy};
pub(crate) use self::part::PartFile;
use self::plan::Plan;
use self::published::Published;
use crate::ids::EntryId;
use crate::manifest::{Metadata, Name};
use crate::storage::descriptors::{Account, Budget};
use crate::storage::error::StorageError;
use crate::storage::leftover::Sweeper;
use crate::storage::part_name::UniqueNames;
use crate::storage::root::{LastSymlink, Root};
use crate::storage::status::Status;
use crate::units::ChunkSize;
use crate::wire::message::{Outcome, Overwrite, Placement, Preserve, Remark, Reuse};
use crate::wire::{Fault, FaultCode};

pub use self::mirror::MirrorOptions;
pub use self::store::PackFile;

/// How long a run waits for other transfers to end that are at work on its files, and how often it looks.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Share of the process's descriptors that one transfer keeps at most for open directories, and
/// again for the files of a group commit: one in so many. What all transfers keep together is up to
/// the process's [`Budget`].
const DESCRIPTORS_SHARE: u64 = 8;
/// Most descriptors for either, however many there are.
const DESCRIPTORS_MAX: u64 = 512;
/// Fewest, however few there are.
const DESCRIPTORS_MIN: u64 = 8;

/// How a receiver treats its destination.
#[derive(Clone, Debug)]
pub struct SinkOptions {
    /// Whether a symlink in the destination's place stands for its target, or is itself the name
    /// that a file gets.
    pub last_symlink: LastSymlink,
    /// How sources become names.
    pub placement: Placement,
    /// What to do about what is there.
    pub overwrite: Overwrite,
    /// What is carried beside data and mtime.
    pub preserve: Preserve,
    /// Whether entries are durable before they count as done.
    pub sync: bool,
    /// Whether directories that are there keep their modes, owners, attributes and times: for those
    /// who may add and change nothing.
    pub only_adds: bool,
    /// It is only said what would be done.
    pub dry_run: bool,
    /// What the source does not have is removed at the end.
    pub mirror: Option<MirrorOptions>,
    /// What becomes of the content of files that are replaced.
    pub reuse: Reuse,
    /// Chunks are so large.
    pub chunk: ChunkSize,
    /// How the transfer is called to one that wants to write the same file.
    pub writer: Arc<str>,
}

/// What becomes of an entry that a page told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// Its content is wanted: prepare it, or store it from a pack.
    Fetch,
    /// The same, and an older copy is there, which has chunks before this one whole.
    Compare {
        /// The first chunk that it does not have.
        chunks: u64,
    },
    /// It is done with.
    Settled(Outcome),
    /// It is to be linked once the file with this handle is settled.
    Link {
        /// The file.
        to: EntryId,
    },
    /// The directory is there; its outcome comes when all below it is settled.
    Directory,
}

/// What became of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacedPage {
    /// One for each entry of the page, in its order; up to the one that failed if the destination
    /// is of no use.
    pub entries: Vec<(EntryId, Placed)>,
    /// Directories that ended with nothing outstanding.
    pub finished: Vec<(EntryId, Outcome)>,
    /// Nothing can be put at the destination, whatever it is, so that the run has no use.
    pub unusable: Option<Fault>,
}

/// Results by entry.
pub type Results = Vec<(EntryId, Result<(), Fault>)>;

/// The receiver's side of one transfer.
#[derive(Debug)]
pub struct Sink {
    destination: Destination,
    rules: Rules,
    overwrite: Overwrite,
    sync: bool,
    only_adds: bool,
    /// Only there in a dry run.
    plan: Option<Plan>,
    /// Only there if what the source does not have is removed.
    mirror: Option<Mirror>,
    reuse: Reuse,
    chunk: ChunkSize,
    writer: Arc<str>,
    /// Most files open at once in a group commit.
    group_files_max: usize,
    /// What open directories, groups and part files take their descriptors from.
    descriptors: Account,
    notes: Notes,
    stopped: AtomicBool,
    /// When somebody else was first found at work on one of its files.
    busy_since: OnceLock<Instant>,
    /// Held while directories that are finished are opened up once more.
    reopening: Mutex<()>,
    unique: UniqueNames,
    sweeper: Sweeper,
    published: Mutex<Published>,
    table: Mutex<Table>,
}

/// Directories and entries that are not settled.
#[derive(Debug)]
struct Table {
    directories: Directories,
    pending: HashMap<EntryId, Pending>,
    /// Directory (file system and number) and stem of every pending entry: one name is written by
    /// one entry at a time.
    names: HashSet<(u64, u64, u64)>,
    /// The lowest id that the manifest may tell next.
    next: EntryId,
}

/// A file or link that is wanted.
#[derive(Debug)]
struct Pending {
    job: Job,
    key: (u64, u64, u64),
    state: State,
}

/// What has to be known to make an entry real.
#[derive(Clone, Debug)]
struct Job {
    parent: Parent,
    name: Name,
    metadata: Metadata,
    /// Later entries may be hard links to it.
    linked: bool,
    /// Mode of the file that it replaces.
    existing_mode: Option<u32>,
    /// That file, if its content is of use: chunks before this one will be compared, and no others.
    older: Option<(Status, u64)>,
    /// That file, if it is to stay should its content be what the source has.
    compared: Option<Status>,
    /// The same, if it is to be written where it stands.
    in_place: Option<Status>,
}

#[derive(Debug)]
enum State {
    /// Nothing was made for it.
    Wanted,
    /// A link to this entry is wanted.
    Link(EntryId),
    /// Its part file is being filled.
    Open(Arc<PartFile>),
    /// A job is at work on it.
    Busy,
    /// It is there.
    Done,
}

impl Sink {
    /// A sink for `destination`, a path below `root`; a trailing slash counts as
    /// [`Placement::into_directory`]. Nothing is looked at or made before the first page.
    pub fn new(root: Arc<Root>, destination: impl Into<Vec<u8>>, options: SinkOptions) -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let share = limit.unwrap_or(u64::MAX) / DESCRIPTORS_SHARE;
        let share = share.clamp(DESCRIPTORS_MIN, DESCRIPTORS_MAX);
        let share = usize::try_from(share).unwrap_or(usize::MAX);
        let budget = Budget::of_process();
        let mut sink = Self::with_descriptors(root, destination.into(), options, share, budget);
        sink.sweeper = Sweeper::of_process();
        sink
    }

    /// The same with bounds of its own, and as if nobody else were in the process.
    pub(crate) fn with_descriptors(
        root: Arc<Root>,
        destination: Vec<u8>,
        options: SinkOptions,
        share: usize,
        budget: Budget,
    ) -> Self {
        let SinkOptions {
            last_symlink,
            placement,
            overwrite,
            preserve,
            sync,
            only_adds,
            dry_run,
            mirror,
            reuse,
            chunk,
            writer,
        } = options;
        let descriptors = budget.account();
        Self {
            destination: Destination::new(root, destination, last_symlink, placement, sync),
            rules: Rules::new(preserve),
            overwrite,
            sync,
            only_adds,
            plan: dry_run.then(Plan::default),
            mirror: mirror.map(|options| Mirror::new(options, dry_run)),
            reuse,
            chunk,
            writer,
            group_files_max: share,
            notes: Notes::default(),
            stopped: AtomicBool::new(false),
            busy_since: OnceLock::new(),
            reopening: Mutex::new(()),
            unique: UniqueNames::new(),
            sweeper: Sweeper::default(),
            published: Mutex::default(),
            table: Mutex::new(Table {
                directories: Directories::new(share, &descriptors),
                pending: HashMap::new(),
                names: HashSet::new(),
                next: EntryId(0),
            }),
            descriptors,
        }
    }

    /// What was left out or done otherwise since the last call. No failures.
    pub fn take_remarks(&self) -> Vec<Remark> {
        self.notes.take()
    }

    /// From now on nothing new is published: what was not begun fails as cancelled, at once. What is
    /// being synced may end.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether entries are durable before they count as done.
    pub(crate) fn syncs(&self) -> bool {
        self.sync
    }

    /// Whether it has not been stopped.
    pub(crate) fn is_running(&self) -> bool {
        !self.stopped.load(Ordering::Relaxed)
    }

    /// Whether there is still any sense in beginning something.
    fn check_running(&self) -> Result<(), Fault> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(Fault::new(FaultCode::Cancelled, "the transfer was ended"));
        }
        Ok(())
    }

    /// Tries again while another transfer is at work on the file: it may be one that was interrupted a
    /// moment ago, and is still about to end, which the same command again meets. Not for long, and not
    /// for each file: in all for [`BUSY_PATIENCE`] from the first one on. Blocks.
    fn patiently<T>(&self, mut attempt: impl FnMut() -> Result<T, Fault>) -> Result<T, Fault> {
        loop {
            match attempt() {
                Err(fault) if fault.code == FaultCode::Busy && self.is_patient() => {
                    self.check_running()?;
                    std::thread::sleep(BUSY_PAUSE);
                }
                answer => return answer,
            }
        }
    }

    fn is_patient(&self) -> bool {
        self.busy_since.get_or_init(Instant::now).elapsed() < BUSY_PATIENCE
    }

    /// The run is interrupted: these files stay, as far as they are recorded, for one that goes on.
    /// To be said before the entries are settled.
    pub(crate) fn keep(&self, entries: &[EntryId]) {
        let table = self.table();
        for entry in entries {
            if let Some(State::Open(part)) = table.pending.get(entry).map(|of| &of.state) {
                part.keep();
            }
        }
    }

    /// Gives an entry's part file up, if it has one: closes it and removes its hidden name. The
    /// entry can be prepared again until it is settled.
    pub fn abandon(&self, entry: EntryId) {
        let part = {
            let mut table = self.table();
            let Some(pending) = table.pending.get_mut(&entry) else {
                return;
            };
            match std::mem::replace(&mut pending.state, State::Wanted) {
                State::Open(part) => Some(part),
                other => {
                    pending.state = other;
                    None
                }
            }
        };
        if let Some(part) = part {
            part.remove();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic elsewhere leaves counts that are too high at worst, so directories unfinished.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open directory that an entry hangs in. `shown` is what messages name.
    fn handle(&self, parent: &Parent, shown: &[u8]) -> Result<Arc<Handle>, Fault> {
        let failed = |errno| StorageError::new("open the directory of", shown, errno);
        let route = match self.table().directories.reach(parent) {
            Ok(Ok(handle)) => return Ok(handle),
            Ok(Err(route)) => route,
            Err(errno) => return Err(failed(errno).into()),
        };
        let opened = route.open(|id, handle| self.table().directories.keep(id, handle));
        let opened = opened.map_err(|errno| match errno {
            Errno::STALE => {
                let text = "its directory was replaced while the transfer ran; run it again";
                StorageError::refused("write", shown, FaultCode::Storage, text)
            }
            errno => failed(errno),
        })?;
        Ok(opened)
    }

    /// Takes an entry for a job; its state is given back by [`Self::give_back`].
    fn take_for_job(&self, entry: EntryId) -> Result<(Job, State), Fault> {
        let mut table = self.table();
        let Some(pending) = table.pending.get_mut(&entry) else {
            return Err(not_wanted(entry));
        };
        match std::mem::replace(&mut pending.state, State::Busy) {
            State::Busy => Err(not_wanted(entry)),
            State::Done => {
                pending.state = State::Done;
                Err(not_wanted(entry))
            }
            state => Ok((pending.job.clone(), state)),
        }
    }

    fn give_back(&self, entry: EntryId, state: State) {
        if let Some(pending) = self.table().pending.get_mut(&entry) {
            pending.state = state;
        }
        // Otherwise it was settled in the meantime; dropping the state removes a part file.
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        for pending in table.pending.values() {
            // Lanes may hold the file for a moment longer; its name goes now.
            if let State::Open(part) = &pending.state {
                part.keep();
                part.remove();
            }
        }
    }
}

fn not_wanted(entry: EntryId) -> Fault {
    Fault::new(
        FaultCode::Internal,
        format!("entry {entry} is not one that can be worked on now"),
    )
}
