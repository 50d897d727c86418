//! How what a sender offers becomes memory that its peer can read: by the lanes over tcp always, and
//! by adapters where the session has rails.
//!
//! ```text
//!  order: window, pack      waits for pinned bytes or a slot        (this task)
//!        |
//!        v                  map + register | fill, hash, register   (workers)
//!  region in the table, keys for tcp and rails
//!        |  the grant is said
//!        v                  hash what only the adapters read        (workers)
//!  values of chunks
//!        |  released, or its lease ended
//!        v                  deregister, unmap, give back            (workers)
//! ```
//!
//! In: orders of the engine, word of what was said to the peer and by it. Out: results of jobs and
//! values of chunks. A file's window is registered in place where the kernel can (`odp`, `mmap`), else
//! copied into a slot (`pool`); what can't be registered goes over tcp. Nothing here decides which
//! window comes next or what a value means.

pub mod adapters;
pub(crate) mod budget;
pub(crate) mod lent;
mod memory;
pub mod rails;
mod windows;

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::activity::Activity;
use super::counters::counters;
use super::hashing::{PIECE_BYTES, blake3_value};
use super::sending::{Done, Jobs};
use crate::engine::sender::{FilledPack, Input, OpenedFile};
use crate::ids::{EntryId, RegionId, RemoteKey};
use crate::lane::{RegionTable, Served, ServedRegion};
use crate::limits::WINDOW_BYTES;
use crate::memory::Slot;
use crate::storage::source::{OpenSource, Source};
use crate::units::{ByteRange, ChunkIndex, ChunkSize};
use crate::wire::message::{HashKind, RegionKey};
use crate::wire::{Fault, FaultCode};

use budget::Reservation;
use memory::slot_size;
pub(crate) use memory::{ServingMemory, SessionMemory};
use rails::{Hold, RailMemory, Way};

/// A peer that says nothing for so long loses what it was granted. Peers say something every
/// [`RENEWAL_PAUSE`] while they hold any.
pub(crate) const LEASE_PATIENCE: Duration = Duration::from_secs(30);
/// What waits so long for memory that others have is told "busy".
pub(crate) const MEMORY_PATIENCE: Duration = Duration::from_secs(60);
/// How often a receiver that holds regions says something, at least.
pub(crate) const RENEWAL_PAUSE: Duration = Duration::from_secs(8);

/// One transfer's part.
pub(super) struct Exposing {
    session: Arc<SessionMemory>,
    shared: ServingMemory,
    regions: Arc<RegionTable>,
    source: Arc<Source>,
    hash: HashKind,
    chunk: ChunkSize,
    jobs: Jobs,
    packs: VecDeque<Pack>,
    windows: VecDeque<Window>,
    /// Regions that are or will be in the session's table. A run that ends early takes them out:
    /// the session and its memory live on.
    held: HashMap<RegionId, Held>,
    to_hash: VecDeque<ToHash>,
    hashing: usize,
    hashing_max: usize,
    heard: Instant,
    counts: Counts,
}

/// A region from its order until nothing can read it.
struct Held {
    entry: Option<EntryId>,
    /// Adapters can reach it: ending that blocks.
    registered: bool,
    granted: bool,
    proofs: Proofs,
    lease: Lease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    Running,
    /// It ended before its time, and the region is being withdrawn.
    Ending,
    /// It ended before its time, and nothing can read the region. The engine has yet to say so.
    Over,
}

/// Where the BLAKE3 values of a window come from once it is granted.
#[derive(Default)]
pub(super) enum Proofs {
    /// From the lanes, or there are none.
    #[default]
    Elsewhere,
    /// They are known already.
    Known(Vec<(ChunkIndex, [u8; 32])>),
    /// From a job of ours.
    ToHash(Vec<ChunkIndex>, Arc<OpenSource>),
}

/// A pack that waits for memory.
struct Pack {
    region: RegionId,
    entries: Vec<EntryId>,
    capacity: u64,
    since: Instant,
}

/// A window that waits for memory.
struct Window {
    region: RegionId,
    entry: EntryId,
    file: Arc<OpenSource>,
    way: Way,
    range: ByteRange,
    /// The receiver waits for its chunks' values before it reads any.
    told_ahead: bool,
    since: Instant,
}

/// What a window is made with.
enum Room {
    /// Nothing: the lanes read the file.
    None,
    /// So many registered bytes.
    Registered(Reservation),
    /// A slot.
    Slot(Slot),
}

struct ToHash {
    entry: EntryId,
    file: Arc<OpenSource>,
    chunks: Vec<ChunkIndex>,
}

/// Windows by the way that they went.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    odp: u64,
    mmap: u64,
    pool: u64,
    tcp: u64,
}

/// What came of making a window, for [`Exposing::exposed`].
#[derive(Default)]
pub(super) struct Made {
    way: Option<Way>,
    proofs: Proofs,
}

/// A file that was opened, and how it gets before adapters.
pub(super) struct Opened {
    pub(super) file: OpenSource,
    pub(super) way: Way,
}

impl Exposing {
    pub(super) fn new(
        session: Arc<SessionMemory>,
        shared: ServingMemory,
        regions: Arc<RegionTable>,
        source: Arc<Source>,
        (hash, chunk): (HashKind, ChunkSize),
        jobs: Jobs,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            session,
            shared,
            regions,
            source,
            hash,
            chunk,
            jobs,
            packs: VecDeque::new(),
            windows: VecDeque::new(),
            held: HashMap::new(),
            to_hash: VecDeque::new(),
            hashing: 0,
            // Half of the workers at most: opening and filling go on beside it.
            hashing_max: cores.clamp(1, 4),
            heard: Instant::now(),
            counts: Counts::default(),
        }
    }

    /// Opens a file and finds out how it can be served.
    pub(super) fn open(&self, entry: EntryId) {
        let source = Arc::clone(&self.source);
        let activity = Arc::clone(&self.session.activity);
        // Rails that are down for a moment will be what the file goes by, if there is nothing else.
        let alone = || {
            self.session
                .rails
                .get()
                .filter(|_| self.session.must_wait())
        };
        let rails = self.session.rails().or_else(alone).cloned();
        self.jobs.run(move || {
            let opened = source.open_file(entry).map_err(|error| error.fault());
            let result = opened.and_then(|file| {
                let way = match &rails {
                    Some(rails) if file.len > 0 => way_of(&**rails, &file, &activity)?,
                    _ => Way::Lanes,
                };
                Ok(Opened { file, way })
            });
            Done::Opened(entry, result)
        });
    }

    /// What the engine is told of a file that is served this way.
    pub(super) fn told(&self, opened: &Opened) -> OpenedFile {
        OpenedFile {
            version: opened.file.version,
            len: opened.file.len,
            window_bytes: match opened.way {
                Way::Pool => slot_size(self.chunk).1 as u64,
                Way::OnDemand | Way::Pinned | Way::Lanes => WINDOW_BYTES,
            },
        }
    }

    /// Fills a pack as soon as there is memory.
    pub(super) fn fill_pack(&mut self, region: RegionId, entries: Vec<EntryId>, capacity: u64) {
        self.packs.push_back(Pack {
            region,
            entries,
            capacity,
            since: Instant::now(),
        });
    }

    /// Exposes a window of a file as soon as there is memory.
    pub(super) fn expose(
        &mut self,
        (region, entry): (RegionId, EntryId),
        file: Arc<OpenSource>,
        way: Way,
        range: ByteRange,
        told_ahead: bool,
    ) {
        self.windows.push_back(Window {
            region,
            entry,
            file,
            way,
            range,
            told_ahead,
            since: Instant::now(),
        });
    }

    /// Gives up what has waited for too long by `now` for memory that others have. A transfer that
    /// has some itself waits for its own receiver and not for others.
    pub(super) fn end_waits(&mut self, now: Instant) -> Vec<Input> {
        let mut given_up = Vec::new();
        if !self.held.is_empty() || self.session.must_wait() {
            return given_up;
        }
        let is_late = |since: Instant| now.saturating_duration_since(since) >= MEMORY_PATIENCE;
        while self.packs.front().is_some_and(|pack| is_late(pack.since))
            && let Some(pack) = self.packs.pop_front()
        {
            let failed = pack.entries.into_iter().map(|entry| (entry, busy()));
            given_up.push(Input::PackFilled {
                region: pack.region,
                pack: FilledPack {
                    failed: failed.collect(),
                    ..FilledPack::default()
                },
            });
        }
        while self
            .windows
            .front()
            .is_some_and(|window| is_late(window.since))
            && let Some(window) = self.windows.pop_front()
        {
            given_up.push(Input::Exposed {
                region: window.region,
                result: Err(busy()),
            });
        }
        for _ in &given_up {
            counters().busy.count();
        }
        given_up
    }

    /// In words.
    pub(super) fn describe(&self) -> String {
        let Counts {
            odp,
            mmap,
            pool,
            tcp,
        } = self.counts;
        format!(
            "regions that can be read: {}; waiting for memory: {} packs, {} windows; to be hashed: {}; \
             windows so far: odp {odp}, mmap {mmap}, pool {pool}, tcp {tcp}; the receiver was heard \
             {:.1} s ago",
            self.held.len(),
            self.packs.len(),
            self.windows.len(),
            self.to_hash.len(),
            self.heard.elapsed().as_secs_f64()
        )
    }

    /// Whether something waits for memory that others have.
    pub(super) fn is_waiting(&self) -> bool {
        !self.packs.is_empty() || !self.windows.is_empty()
    }

    /// Starts what there is memory for. Called whenever something happened, and when memory comes back
    /// that somebody missed.
    pub(super) fn advance(&mut self) {
        if self.session.must_wait() {
            return;
        }
        while !self.packs.is_empty() {
            let slot = self.session.pack_slot(&self.shared);
            let (Some(slot), Some(pack)) = (slot, self.packs.pop_front()) else {
                break;
            };
            self.start_pack(pack, slot);
        }
        while let Some(window) = self.windows.front() {
            let Some(room) = self.room(window) else {
                break;
            };
            if let Some(window) = self.windows.pop_front() {
                self.start_window(window, room);
            }
        }
        while self.hashing < self.hashing_max
            && let Some(order) = self.to_hash.pop_front()
        {
            self.hashing += 1;
            self.start_hashing(order);
        }
    }

    fn room(&self, window: &Window) -> Option<Room> {
        let bytes = window.range.len();
        match window.way {
            _ if self.session.rails().is_none() => Some(Room::None),
            // A file that was opened before there were rails moves to them with its next window.
            Way::OnDemand | Way::Pinned | Way::Lanes => {
                let reserved = self.session.reserve(&self.shared, bytes);
                reserved.map(Room::Registered)
            }
            Way::Pool if bytes <= slot_size(self.chunk).1 as u64 => {
                let slot = self.session.window_slot(&self.shared, self.chunk);
                slot.map(Room::Slot)
            }
            Way::Pool => Some(Room::None),
        }
    }

    /// Why windows or packs of the session went over tcp though there are rails; told once.
    pub(super) fn untold_refusal(&self) -> Option<String> {
        self.session.refusals.untold().map(str::to_owned)
    }

    fn hold(&mut self, region: RegionId, entry: Option<EntryId>) {
        let held = Held {
            entry,
            registered: false,
            granted: false,
            proofs: Proofs::Elsewhere,
            lease: Lease::Running,
        };
        self.held.insert(region, held);
    }

    fn start_pack(&mut self, pack: Pack, mut slot: Slot) {
        let Pack {
            region,
            entries,
            capacity,
            ..
        } = pack;
        self.hold(region, None);
        let session = Arc::clone(&self.session);
        let (source, regions) = (Arc::clone(&self.source), Arc::clone(&self.regions));
        let jobs = self.jobs.clone();
        self.jobs.run(move || {
            let rails = session.rails();
            let room = usize::try_from(capacity)
                .unwrap_or(usize::MAX)
                .min(slot.len());
            let filled = source.fill_pack(&entries, &mut slot[..room]);
            let mut pack = FilledPack {
                len: filled.used_len,
                keys: Vec::new(),
                parts: filled.parts,
                digests: filled.digests,
                failed: filled.failed,
                left: filled.unfit,
            };
            let mut way = None;
            if pack.len > 0 {
                let (key, tcp) = tcp_key();
                pack.keys.push(tcp);
                if let Some(rails) = rails {
                    let used = usize::try_from(pack.len).unwrap_or(usize::MAX);
                    slot[used..].fill(0);
                    match rails.register_slot(&mut slot) {
                        Ok(keys) => {
                            pack.keys.extend(keys);
                            way = Some(Way::Pool);
                        }
                        Err(error) if rails.policy().is_strict() => {
                            return Done::PackFilled(region, unregistered(pack, &error), way);
                        }
                        Err(error) => session.refusals.note(&error),
                    }
                }
                let content = Served::Memory {
                    slot: Arc::new(slot),
                    len: pack.len,
                };
                expose_to(&regions, served(region, key, content), None, &jobs);
            }
            Done::PackFilled(region, pack, way)
        });
    }

    fn start_hashing(&self, order: ToHash) {
        let ToHash {
            entry,
            file,
            chunks,
        } = order;
        let (chunk_size, jobs) = (self.chunk, self.jobs.clone());
        self.jobs.run(move || {
            let mut buffer = vec![0; PIECE_BYTES];
            for chunk in chunks {
                if jobs.are_over() {
                    break;
                }
                match blake3_value(&file, chunk_size, chunk, &mut buffer) {
                    Ok(value) => jobs.report(Done::Input(Input::Hashed {
                        entry,
                        chunk,
                        value,
                    })),
                    Err(fault) => {
                        jobs.report(Done::Input(Input::SourceFailed { entry, fault }));
                        break;
                    }
                }
            }
            Done::HashedWindow
        });
    }

    /// A job of [`Self::start_hashing`] is over.
    pub(super) fn hashed_window(&mut self) {
        self.hashing -= 1;
    }

    /// A pack was filled.
    pub(super) fn filled(&mut self, region: RegionId, is_exposed: bool, way: Option<Way>) {
        if !is_exposed {
            self.held.remove(&region);
        } else if let Some(held) = self.held.get_mut(&region) {
            held.registered = way.is_some();
            if held.registered {
                counters().packs.count();
            }
        }
    }

    /// A window was made, or not (then nothing is held for it any more).
    pub(super) fn exposed(&mut self, region: RegionId, made: Option<Made>) {
        let Some(made) = made else {
            self.held.remove(&region);
            return;
        };
        let (all, counts) = (counters(), &mut self.counts);
        let (count, of_all) = match made.way {
            Some(Way::OnDemand) => (&mut counts.odp, &all.windows_odp),
            Some(Way::Pinned) => (&mut counts.mmap, &all.windows_mmap),
            Some(Way::Pool) => (&mut counts.pool, &all.windows_pool),
            Some(Way::Lanes) | None => (&mut counts.tcp, &all.windows_tcp),
        };
        *count += 1;
        self.session
            .activity
            .exposed(way_name(made.way.unwrap_or(Way::Lanes)));
        of_all.count();
        if let Some(held) = self.held.get_mut(&region) {
            held.registered = made.way.is_some();
            held.proofs = made.proofs;
        }
    }

    /// The peer was told of a region: what proves it is told from now on.
    pub(super) fn granted(&mut self, region: RegionId) -> Vec<Input> {
        let Some(held) = self.held.get_mut(&region) else {
            return Vec::new();
        };
        held.granted = true;
        let (Some(entry), proofs) = (held.entry, std::mem::take(&mut held.proofs)) else {
            return Vec::new();
        };
        match proofs {
            Proofs::Elsewhere => Vec::new(),
            Proofs::Known(values) => {
                let hashed = |(chunk, value)| Input::Hashed {
                    entry,
                    chunk,
                    value,
                };
                values.into_iter().map(hashed).collect()
            }
            Proofs::ToHash(chunks, file) => {
                self.to_hash.push_back(ToHash {
                    entry,
                    file,
                    chunks,
                });
                Vec::new()
            }
        }
    }

    /// Nothing may read the region any more. What the engine is told at once, if that is so already;
    /// else it hears when [`Self::revoked`] says so.
    pub(super) fn unexpose(&mut self, region: RegionId) -> Option<Input> {
        let held = self.held.get(&region)?;
        match (held.lease, held.registered) {
            (Lease::Running, true) => self.revoke_by_job(region),
            (Lease::Running, false) => self.regions.revoke(region),
            (Lease::Ending, _) => {}
            (Lease::Over, _) => {
                self.held.remove(&region);
                return Some(Input::Unexposed { region });
            }
        }
        if let Some(held) = self.held.get_mut(&region) {
            // From here on the engine waits for it.
            held.lease = Lease::Running;
        }
        None
    }

    /// Deregistering blocks.
    fn revoke_by_job(&self, region: RegionId) {
        let regions = Arc::clone(&self.regions);
        self.jobs.run_unreported(move || regions.revoke(region));
    }

    /// Nothing can read the region any more. Whether the engine waits for that.
    pub(super) fn revoked(&mut self, region: RegionId) -> bool {
        match self.held.get_mut(&region) {
            Some(held) if held.lease == Lease::Ending => {
                held.lease = Lease::Over;
                false
            }
            _ => {
                self.held.remove(&region);
                true
            }
        }
    }

    /// The peer said something in this transfer: its leases go on.
    pub(super) fn heard(&mut self) {
        self.heard = Instant::now();
    }

    /// Whether the peer holds anything.
    pub(super) fn has_granted(&self) -> bool {
        self.held.values().any(|held| held.granted)
    }

    /// Ends the leases of a peer that has said nothing for long. What adapters can read holds memory
    /// that others wait for; what only lanes read does not.
    pub(super) fn end_leases(&mut self, now: Instant) -> Vec<Input> {
        if now.saturating_duration_since(self.heard) < LEASE_PATIENCE {
            return Vec::new();
        }
        let mut failed = Vec::new();
        let mut ending = Vec::new();
        for (region, held) in &mut self.held {
            if held.granted && held.registered && held.lease == Lease::Running {
                held.lease = Lease::Ending;
                counters().leases_ended.count();
                ending.push(*region);
                failed.extend(held.entry.map(|entry| Input::SourceFailed {
                    entry,
                    fault: lease_ended(),
                }));
            }
        }
        for region in ending {
            self.revoke_by_job(region);
        }
        failed
    }
}

impl Drop for Exposing {
    fn drop(&mut self) {
        // The results are closed by now, so a job that exposes one later takes it out itself.
        for (region, held) in std::mem::take(&mut self.held) {
            if held.registered {
                self.revoke_by_job(region);
            } else {
                self.regions.revoke(region);
            }
        }
        let Counts {
            odp,
            mmap,
            pool,
            tcp,
        } = self.counts;
        if odp + mmap + pool > 0 {
            tracing::debug!(odp, mmap, pool, tcp, "windows were exposed");
        }
    }
}

/// How a file gets before the adapters of these rails.
fn way_of(rails: &dyn RailMemory, file: &OpenSource, activity: &Activity) -> Result<Way, Fault> {
    let ways = rails
        .ways(file.file.as_fd())
        .map_err(|error| rails::refusal(&error))?;
    let way = rails.policy().choose(&ways)?;
    activity.reasoned(way_name(way), &ways.reason);
    Ok(way)
}

/// As options and status name it.
const fn way_name(way: Way) -> &'static str {
    match way {
        Way::OnDemand => "odp",
        Way::Pinned => "mmap",
        Way::Pool => "pool",
        Way::Lanes => "tcp",
    }
}

/// The pack's files can't be had: there is no way for its bytes.
fn unregistered(pack: FilledPack, error: &std::io::Error) -> FilledPack {
    let fault = rails::refusal(error);
    let mut failed = pack.failed;
    failed.extend(pack.parts.iter().map(|part| (part.entry, fault.clone())));
    FilledPack {
        failed,
        left: pack.left,
        ..FilledPack::default()
    }
}

fn served(region: RegionId, key: RemoteKey, content: Served) -> ServedRegion {
    ServedRegion {
        region,
        key,
        content,
    }
}

/// Lets the peer read a region, unless the run that it is for has ended: nobody would end that.
fn expose_to(regions: &RegionTable, served: ServedRegion, hold: Option<Hold>, run: &Jobs) {
    let region = served.region;
    match hold {
        Some(hold) => regions.expose_held(served, hold),
        None => regions.expose(served),
    }
    // Looked at afterwards: either we see that the run is over, or it sees the region.
    if run.are_over() {
        regions.revoke(region);
    }
}

/// A key that can't be guessed, and how tcp reads with it.
fn tcp_key() -> (RemoteKey, RegionKey) {
    let key = RemoteKey(u64::from_le_bytes(crate::sys::random_bytes()));
    let told = RegionKey {
        rail: 0,
        address: 0,
        key,
    };
    (key, told)
}

fn busy() -> Fault {
    let text = format!(
        "the sender's memory for what is read has been in use by other sessions for {} s; try again \
         later",
        MEMORY_PATIENCE.as_secs()
    );
    Fault::new(FaultCode::Busy, text)
}

fn lease_ended() -> Fault {
    let text = format!(
        "the receiver said nothing for {} s, so the memory that it was granted was taken back",
        LEASE_PATIENCE.as_secs()
    );
    Fault::new(FaultCode::TimedOut, text)
}
