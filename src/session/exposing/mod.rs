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
pub mod rails;
mod windows;

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::activity::Activity;
use super::hashing::{PIECE_BYTES, blake3_value};
use super::machinery::pack_pool;
use super::sending::{Done, Jobs};
use crate::engine::sender::{FilledPack, Input, OpenedFile};
use crate::ids::{EntryId, RegionId, RemoteKey};
use crate::lane::{RegionTable, Served, ServedRegion};
use crate::limits::WINDOW_BYTES;
use crate::memory::{Owner, Pool, Slot};
use crate::storage::source::{OpenSource, Source};
use crate::units::{ByteRange, ChunkIndex, ChunkSize};
use crate::wire::message::{HashKind, RegionKey};
use crate::wire::{Fault, FaultCode};

use budget::{Budget, Purse, Reservation};
use rails::{Hold, RailMemory, Way};

/// Bytes of files that all sessions together may have registered, beside one window of each.
const REGISTERED_BYTES_MAX: u64 = 1 << 30;
/// Bytes of slots for windows that all sessions share, of each size, beside one slot of each.
const SLOT_BYTES_IN_ALL: usize = 256 << 20;
/// A slot for a window: this, or one chunk where chunks are larger.
const SLOT_BYTES_MIN: usize = 4 << 20;
/// Sizes of slots that there are: from the least up to the largest chunk.
const SLOT_SIZES: usize = 3;

/// A peer that says nothing for so long loses what it was granted. Peers say something every
/// [`RENEWAL_PAUSE`] while they hold any.
const LEASE_PATIENCE: Duration = Duration::from_secs(30);
/// How often a receiver that holds regions says something, at least.
pub(crate) const RENEWAL_PAUSE: Duration = Duration::from_secs(8);

const _: () = assert!(ChunkSize::MAX.bytes() == (SLOT_BYTES_MIN << (SLOT_SIZES - 1)) as u64);

/// Memory for what is served that all sessions of the process share.
#[derive(Clone)]
pub(crate) struct ServingMemory {
    packs: Pool,
    slots: [Pool; SLOT_SIZES],
    budget: Arc<Budget>,
}

/// Memory of one session, which goes on with it whatever others hold.
pub(crate) struct SessionMemory {
    owner: Owner,
    own_pack: Pool,
    /// Made when it is first needed, of the size that was needed then.
    own_slot: Mutex<Option<Pool>>,
    purse: OnceLock<Arc<Purse>>,
    rails: OnceLock<Arc<dyn RailMemory>>,
    activity: Arc<Activity>,
}

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
}

/// A window that waits for memory.
struct Window {
    region: RegionId,
    entry: EntryId,
    file: Arc<OpenSource>,
    way: Way,
    range: ByteRange,
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

impl ServingMemory {
    /// `packs_max` packs, and the usual bounds of the rest.
    pub(crate) fn new(packs_max: usize) -> Self {
        Self {
            packs: pack_pool(packs_max),
            slots: std::array::from_fn(|size| {
                let bytes = SLOT_BYTES_MIN << size;
                super::machinery::serving_pool(bytes, SLOT_BYTES_IN_ALL / bytes)
            }),
            budget: Budget::new(REGISTERED_BYTES_MAX, super::machinery::tell_returned),
        }
    }
}

impl ServingMemory {
    /// Bytes of files that are registered for all sessions beside a window of each, and the bound.
    pub(crate) fn registered_bytes(&self) -> (u64, u64) {
        self.budget.held()
    }
}

impl SessionMemory {
    /// Of the session with this number, which no other has.
    pub(crate) fn new(owner: Owner, activity: Arc<Activity>) -> Arc<Self> {
        Arc::new(Self {
            owner,
            own_pack: pack_pool(1),
            own_slot: Mutex::new(None),
            purse: OnceLock::new(),
            rails: OnceLock::new(),
            activity,
        })
    }

    /// From now on regions are registered for these rails too. Once per session.
    pub(crate) fn set_rails(&self, rails: Arc<dyn RailMemory>) {
        // A second call is a defect of ours, and harmless: the first rails stay.
        let _ = self.rails.set(rails);
    }

    /// Bytes of files that are registered for the session.
    pub(crate) fn registered_bytes(&self) -> u64 {
        self.purse.get().map_or(0, |purse| purse.held())
    }

    fn rails(&self) -> Option<&Arc<dyn RailMemory>> {
        self.rails.get().filter(|rails| rails.is_up())
    }

    /// The session's own pack slot if it is free, else a shared one.
    fn pack_slot(&self, shared: &ServingMemory) -> Option<Slot> {
        self.own_pack
            .take_for(self.owner)
            .or_else(|| shared.packs.take_for(self.owner))
    }

    /// A slot for a window in a transfer with such chunks; whatever it held is still in it.
    fn window_slot(&self, shared: &ServingMemory, chunk: ChunkSize) -> Option<Slot> {
        let (size, bytes) = slot_size(chunk);
        let mut own = self.own_slot.lock().unwrap_or_else(PoisonError::into_inner);
        // Another size than before: as no slot of the old size is out, it can be exchanged.
        if own
            .as_ref()
            .is_none_or(|own| own.slot_bytes() < bytes && own.available() == 1)
        {
            *own = Some(super::machinery::serving_pool(bytes, 1));
        }
        own.as_ref()
            .filter(|own| own.slot_bytes() >= bytes)
            .and_then(Pool::take)
            .or_else(|| shared.slots[size].take())
    }

    fn reserve(&self, shared: &ServingMemory, bytes: u64) -> Option<Reservation> {
        self.purse
            .get_or_init(|| shared.budget.purse())
            .reserve(bytes)
    }
}

/// Which slots serve windows of files with such chunks, and their bytes.
fn slot_size(chunk: ChunkSize) -> (usize, usize) {
    let size = (0..SLOT_SIZES - 1)
        .find(|size| (SLOT_BYTES_MIN << size) as u64 >= chunk.bytes())
        .unwrap_or(SLOT_SIZES - 1);
    (size, SLOT_BYTES_MIN << size)
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
        let rails = self.session.rails().cloned();
        let activity = Arc::clone(&self.session.activity);
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
        });
    }

    /// Exposes a window of a file as soon as there is memory.
    pub(super) fn expose(
        &mut self,
        (region, entry): (RegionId, EntryId),
        file: Arc<OpenSource>,
        way: Way,
        range: ByteRange,
    ) {
        self.windows.push_back(Window {
            region,
            entry,
            file,
            way,
            range,
        });
    }

    /// Whether something waits for memory that others have.
    pub(super) fn is_waiting(&self) -> bool {
        !self.packs.is_empty() || !self.windows.is_empty()
    }

    /// Starts what there is memory for. Called whenever something happened, and when memory comes back
    /// that somebody missed.
    pub(super) fn advance(&mut self) {
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
            Way::OnDemand | Way::Pinned => {
                let reserved = self.session.reserve(&self.shared, bytes);
                reserved.map(Room::Registered)
            }
            Way::Pool if bytes <= slot_size(self.chunk).1 as u64 => {
                let slot = self.session.window_slot(&self.shared, self.chunk);
                slot.map(Room::Slot)
            }
            Way::Pool | Way::Lanes => Some(Room::None),
        }
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
        } = pack;
        self.hold(region, None);
        let rails = self.session.rails().cloned();
        let (source, regions) = (Arc::clone(&self.source), Arc::clone(&self.regions));
        let jobs = self.jobs.clone();
        self.jobs.run(move || {
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
                        Err(error) => rails::note_refusal(&error),
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
        }
    }

    /// A window was made, or not (then nothing is held for it any more).
    pub(super) fn exposed(&mut self, region: RegionId, made: Option<Made>) {
        let Some(made) = made else {
            self.held.remove(&region);
            return;
        };
        let count = match made.way {
            Some(Way::OnDemand) => &mut self.counts.odp,
            Some(Way::Pinned) => &mut self.counts.mmap,
            Some(Way::Pool) => &mut self.counts.pool,
            Some(Way::Lanes) | None => &mut self.counts.tcp,
        };
        *count += 1;
        self.session
            .activity
            .exposed(way_name(made.way.unwrap_or(Way::Lanes)));
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

fn lease_ended() -> Fault {
    let text = format!(
        "the receiver said nothing for {} s, so the memory that it was granted was taken back",
        LEASE_PATIENCE.as_secs()
    );
    Fault::new(FaultCode::TimedOut, text)
}
