use std::any::Any;
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::super::super::activity::Activity;
use super::super::super::sending::{Done, Jobs};
use super::super::rails::{Hold, MemoryPolicy, RailMemory, RdmaMemory, Way, Ways};
use super::super::{Exposing, LEASE_PATIENCE, MEMORY_PATIENCE, ServingMemory, SessionMemory};
use super::fill;
use crate::engine::sender::{ExposedWindow, Input};
use crate::ids::{EntryId, RegionId, RemoteKey};
use crate::lane::{LaneEvent, RegionTable};
use crate::limits::WINDOW_BYTES;
use crate::manifest::Item;
use crate::memory::Slot;
use crate::storage::identity::Identity;
use crate::storage::root::Root;
use crate::storage::source::{OpenSource, Source, SourceSpec, WalkOptions};
use crate::units::{ByteRange, ChunkIndex, ChunkSize};
use crate::wire::FaultCode;
use crate::wire::message::{HashKind, Preserve, RegionKey};
use crate::workers::Workers;

const MIB: u64 = 1 << 20;
const REGION: RegionId = RegionId(7);

/// Rails that count registrations instead of making any.
struct Counted {
    best: Way,
    policy: MemoryPolicy,
    refuses: Mutex<Option<io::ErrorKind>>,
    alive: Arc<AtomicUsize>,
    slot: Mutex<Vec<u8>>,
}

struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Counted {
    fn new(best: Way) -> Self {
        Self {
            best,
            policy: MemoryPolicy::default(),
            refuses: Mutex::new(None),
            alive: Arc::default(),
            slot: Mutex::default(),
        }
    }

    fn register(&self) -> io::Result<Vec<RegionKey>> {
        if let Some(kind) = *self.refuses.lock().unwrap() {
            return Err(kind.into());
        }
        self.alive.fetch_add(1, Ordering::SeqCst);
        Ok(vec![RegionKey {
            rail: 1,
            address: 0x1000,
            key: RemoteKey(99),
        }])
    }
}

impl RailMemory for Counted {
    fn is_up(&self) -> bool {
        true
    }

    fn policy(&self) -> MemoryPolicy {
        self.policy
    }

    fn ways(&self, _: BorrowedFd<'_>) -> io::Result<Ways> {
        Ok(Ways {
            best: self.best,
            possible: self.best,
            reason: "by order of the test".to_owned(),
        })
    }

    fn register_window(
        &self,
        _: BorrowedFd<'_>,
        _: ByteRange,
        _: Way,
    ) -> io::Result<(Vec<RegionKey>, Hold)> {
        let keys = self.register()?;
        Ok((keys, Box::new(Alive(Arc::clone(&self.alive)))))
    }

    fn register_slot(&self, slot: &mut Slot) -> io::Result<Vec<RegionKey>> {
        *self.slot.lock().unwrap() = slot.to_vec();
        self.register()
    }
}

/// A transfer of one real file, without a peer.
struct World {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    exposing: Exposing,
    results: mpsc::UnboundedReceiver<Done>,
    events: std::sync::mpsc::Receiver<LaneEvent>,
    entry: EntryId,
    bytes: Vec<u8>,
    told_ahead: bool,
}

fn world(len: usize, hash: HashKind, rails: Option<Arc<Counted>>) -> World {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    // No two pages are equal, and no byte is zero.
    let bytes: Vec<u8> = (0..len)
        .map(|at| ((at * 7 + at / 4096) % 256).try_into().unwrap_or(0) | 1u8)
        .collect();
    fs::write(&path, &bytes).unwrap();
    let walk = WalkOptions {
        filters: Arc::default(),
        recursive: false,
        preserve: Preserve::default(),
        hash,
        chunk: ChunkSize::DEFAULT,
    };
    let root = Arc::new(Root::open(folder.path(), Identity::current()).unwrap());
    let spec = SourceSpec {
        root,
        path: b"file".to_vec(),
    };
    let source = Arc::new(Source::new(vec![spec], walk));
    let page = source.next_page().unwrap();
    let entry = page
        .items
        .iter()
        .find_map(|item| match item {
            Item::Entry(entry) => Some(entry.id),
            Item::Note(_) => None,
        })
        .unwrap();
    let (told, events) = std::sync::mpsc::channel();
    let regions = RegionTable::new(Arc::new(move |event| drop(told.send(event))));
    let (results, job_results) = mpsc::unbounded_channel();
    let workers = Workers::start(NonZeroUsize::new(2).unwrap()).unwrap();
    let session = SessionMemory::new(5, Activity::new());
    if let Some(rails) = rails {
        session.set_rails(rails);
    }
    let exposing = Exposing::new(
        session,
        ServingMemory::new(1),
        regions,
        source,
        (hash, ChunkSize::DEFAULT),
        Jobs::new(workers, results),
    );
    World {
        _folder: folder,
        path,
        exposing,
        results: job_results,
        events,
        entry,
        bytes,
        told_ahead: false,
    }
}

impl World {
    fn done(&mut self) -> Done {
        self.results.blocking_recv().unwrap()
    }

    /// Opens the file; its most bytes per window too.
    fn open(&mut self) -> Result<(Arc<OpenSource>, Way, u64), FaultCode> {
        self.exposing.open(self.entry);
        match self.done() {
            Done::Opened(_, Ok(opened)) => {
                let told = self.exposing.told(&opened);
                Ok((Arc::new(opened.file), opened.way, told.window_bytes))
            }
            Done::Opened(_, Err(fault)) => Err(fault.code),
            _ => panic!("a file was opened"),
        }
    }

    /// Exposes all of the file as one window.
    fn expose(&mut self) -> Result<ExposedWindow, FaultCode> {
        let (file, way, _) = self.open()?;
        let range = ByteRange {
            start: 0,
            end: file.len,
        };
        let of = (REGION, self.entry);
        self.exposing.expose(of, file, way, range, self.told_ahead);
        self.exposing.advance();
        match self.done() {
            Done::Exposed(_, Ok((window, made))) => {
                self.exposing.exposed(REGION, Some(made));
                Ok(window)
            }
            Done::Exposed(_, Err(fault)) => {
                self.exposing.exposed(REGION, None);
                Err(fault.code)
            }
            _ => panic!("a window was exposed"),
        }
    }

    /// The values that are told once the window is granted.
    fn values(&mut self) -> Vec<(ChunkIndex, [u8; 32])> {
        let known = self.exposing.granted(REGION);
        let mut values: Vec<_> = known.into_iter().map(value).collect();
        self.exposing.advance();
        while self.exposing.hashing > 0 {
            match self.done() {
                Done::Input(input) => values.push(value(input)),
                Done::HashedWindow => self.exposing.hashed_window(),
                _ => panic!("a window is hashed"),
            }
        }
        values
    }

    fn expected(&self) -> Vec<(ChunkIndex, [u8; 32])> {
        let mut expected = Vec::new();
        let size = ChunkSize::DEFAULT;
        crate::integrity::proofs(HashKind::Blake3, size, &self.bytes, |chunk, value| {
            expected.push((chunk, value));
        });
        expected
    }

    /// Withdraws the window, and waits until nothing can read it.
    fn withdraw(&mut self) {
        assert!(self.exposing.unexpose(REGION).is_none());
        assert!(self.is_revoked());
        assert!(self.exposing.revoked(REGION));
    }

    fn is_revoked(&self) -> bool {
        let event = self.events.recv_timeout(Duration::from_secs(60)).unwrap();
        matches!(event, LaneEvent::Revoked { region: REGION })
    }
}

fn value(input: Input) -> (ChunkIndex, [u8; 32]) {
    match input {
        Input::Hashed { chunk, value, .. } => (chunk, value),
        other => panic!("{other:?} is no value"),
    }
}

fn rails(keys: &[RegionKey]) -> Vec<u16> {
    keys.iter().map(|key| key.rail).collect()
}

#[test]
fn without_rails_the_lanes_read_and_hash() {
    let mut world = world(3 << 20, HashKind::Blake3, None);
    let (_, way, window_bytes) = world.open().unwrap();
    assert_eq!((way, window_bytes), (Way::Lanes, WINDOW_BYTES));
    let window = world.expose().unwrap();
    assert_eq!(rails(&window.keys), [0]);
    assert_eq!(world.values(), []);
    world.withdraw();
}

#[test]
fn a_receiver_that_compares_first_need_not_read_to_learn_the_values() {
    let mut world = world(3 << 20, HashKind::Blake3, None);
    world.told_ahead = true;
    world.expose().unwrap();
    assert!(world.results.try_recv().is_err(), "hashed before the grant");
    assert_eq!(world.values(), world.expected());
    world.withdraw();
}

#[test]
fn windows_in_place_are_hashed_by_reads_once_they_are_granted() {
    for way in [Way::OnDemand, Way::Pinned] {
        let counted = Arc::new(Counted::new(way));
        let mut world = world(5 * (1 << 19), HashKind::Blake3, Some(Arc::clone(&counted)));
        let window = world.expose().unwrap();
        assert_eq!(rails(&window.keys), [0, 1]);
        assert!(world.results.try_recv().is_err(), "hashed before the grant");
        assert_eq!(world.values(), world.expected());
        assert_eq!(counted.alive.load(Ordering::SeqCst), 1);
        world.withdraw();
        assert_eq!(counted.alive.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn without_a_hash_nobody_reads_what_adapters_do() {
    let counted = Arc::new(Counted::new(Way::OnDemand));
    let mut world = world(3 << 20, HashKind::None, Some(counted));
    world.expose().unwrap();
    // What the CPU does not touch may be gone.
    fs::File::options()
        .write(true)
        .open(&world.path)
        .unwrap()
        .set_len(0)
        .unwrap();
    assert_eq!(world.values(), []);
    world.withdraw();
}

#[test]
fn a_copy_is_what_the_digests_say_and_shows_nothing_else() {
    let counted = Arc::new(Counted::new(Way::Pool));
    let mut world = world(5 * (1 << 19), HashKind::Blake3, Some(Arc::clone(&counted)));
    let (_, way, window_bytes) = world.open().unwrap();
    assert_eq!((way, window_bytes), (Way::Pool, 4 * MIB));
    let window = world.expose().unwrap();
    assert_eq!(rails(&window.keys), [0, 1]);
    // The copy was hashed, whatever becomes of the file.
    let file = fs::File::options().write(true).open(&world.path).unwrap();
    file.write_all_at(&[0; 100], 0).unwrap();
    assert_eq!(world.values(), world.expected());
    let slot = counted.slot.lock().unwrap();
    let (used, tail) = slot.split_at(world.bytes.len());
    assert!(used == world.bytes && tail.iter().all(|byte| *byte == 0));
    drop(slot);
    world.withdraw();
}

#[test]
fn what_can_not_be_registered_goes_by_the_lanes() {
    for best in [Way::Pinned, Way::Pool] {
        let counted = Arc::new(Counted::new(best));
        *counted.refuses.lock().unwrap() = Some(io::ErrorKind::OutOfMemory);
        let mut world = world(1 << 20, HashKind::Blake3, Some(counted));
        assert_eq!(rails(&world.expose().unwrap().keys), [0]);
        world.withdraw();
    }
}

#[test]
fn where_rails_are_the_only_way_a_refusal_fails_the_file() {
    for (best, rails_only, memory) in [
        (Way::Pinned, true, RdmaMemory::Auto),
        (Way::Pool, true, RdmaMemory::Auto),
        (Way::OnDemand, false, RdmaMemory::Mmap),
    ] {
        let counted = Counted {
            policy: MemoryPolicy { memory, rails_only },
            refuses: Mutex::new(Some(io::ErrorKind::OutOfMemory)),
            ..Counted::new(best)
        };
        let mut world = world(1 << 20, HashKind::Blake3, Some(Arc::new(counted)));
        let code = world.expose().unwrap_err();
        assert_eq!(code, FaultCode::TransportUnavailable);
        assert!(world.exposing.held.is_empty());
    }
}

#[test]
fn a_way_that_is_asked_for_and_not_to_be_had_fails_the_open() {
    let counted = Counted {
        policy: MemoryPolicy {
            memory: RdmaMemory::Odp,
            rails_only: false,
        },
        ..Counted::new(Way::Pool)
    };
    let mut world = world(1 << 20, HashKind::Blake3, Some(Arc::new(counted)));
    assert_eq!(world.open().err(), Some(FaultCode::TransportUnavailable));
}

#[test]
fn a_silent_peer_loses_what_adapters_could_read() {
    let counted = Arc::new(Counted::new(Way::Pinned));
    let mut world = world(1 << 20, HashKind::Blake3, Some(Arc::clone(&counted)));
    world.expose().unwrap();
    world.values();
    world.exposing.heard();
    let begin = Instant::now();
    assert!(world.exposing.end_leases(begin).is_empty());
    let failed = world.exposing.end_leases(begin + LEASE_PATIENCE);
    assert!(matches!(failed[..], [Input::SourceFailed { .. }]));
    assert!(world.is_revoked());
    assert_eq!(counted.alive.load(Ordering::SeqCst), 0);
    assert!(
        !world.exposing.revoked(REGION),
        "the engine did not ask for it"
    );
    // When it does, it is done already.
    let answer = world.exposing.unexpose(REGION);
    assert!(matches!(answer, Some(Input::Unexposed { region: REGION })));
    assert!(world.exposing.held.is_empty());
}

#[test]
fn one_session_waits_for_its_own_registered_bytes() {
    let counted = Arc::new(Counted::new(Way::Pinned));
    let mut world = world(1 << 20, HashKind::None, Some(counted));
    let (file, way, _) = world.open().unwrap();
    // More than the session's window and half of what all share.
    let huge = ByteRange {
        start: 0,
        end: 1 << 40,
    };
    world
        .exposing
        .expose((REGION, world.entry), file, way, huge, false);
    world.exposing.advance();
    assert!(world.exposing.is_waiting());
    // Others do not give any back in time.
    let begin = Instant::now();
    assert!(world.exposing.end_waits(begin).is_empty());
    let mut given_up = world.exposing.end_waits(begin + MEMORY_PATIENCE);
    let Some(Input::Exposed { region, result }) = given_up.pop() else {
        panic!("{given_up:?}");
    };
    assert_eq!(
        (region, result.unwrap_err().code),
        (REGION, FaultCode::Busy)
    );
    assert!(!world.exposing.is_waiting());
}

#[test]
fn who_has_memory_already_waits_for_more_as_long_as_it_takes() {
    let counted = Arc::new(Counted::new(Way::Pinned));
    let mut world = world(1 << 20, HashKind::None, Some(counted));
    world.expose().unwrap();
    let (file, way, _) = world.open().unwrap();
    let huge = ByteRange {
        start: 0,
        end: 1 << 40,
    };
    world.exposing.expose(
        (RegionId(REGION.0 + 1), world.entry),
        file,
        way,
        huge,
        false,
    );
    world.exposing.advance();
    let late = Instant::now() + 10 * MEMORY_PATIENCE;
    assert!(world.exposing.end_waits(late).is_empty());
    assert!(world.exposing.is_waiting());
    world.withdraw();
}

#[test]
fn holes_in_a_slot_are_zero_and_not_read() {
    let chunk = ChunkSize::MIN;
    let bytes = usize::try_from(chunk.bytes()).unwrap();
    let mut world = world(4 * bytes, HashKind::Blake3, None);
    let (file, _, _) = world.open().unwrap();
    let mut slot = vec![9; 5 * bytes];
    let extent = ByteRange {
        start: chunk.bytes() + 5,
        end: 2 * chunk.bytes() + 1,
    };
    let window = ByteRange {
        start: 0,
        end: file.len,
    };
    let values = fill(
        &mut slot,
        &file,
        window,
        &[extent],
        (HashKind::Blake3, chunk),
    )
    .unwrap();
    let chunks: Vec<u64> = values.iter().map(|(chunk, _)| chunk.0).collect();
    assert_eq!(chunks, [1, 2]);
    assert!(
        slot[..bytes]
            .iter()
            .chain(&slot[3 * bytes..])
            .all(|byte| *byte == 0)
    );
    assert!(slot[bytes..3 * bytes] == world.bytes[bytes..3 * bytes]);
    // It ended before it was read.
    fs::File::options()
        .write(true)
        .open(&world.path)
        .unwrap()
        .set_len(10)
        .unwrap();
    let shorter = fill(&mut slot, &file, window, &[extent], (HashKind::None, chunk));
    assert_eq!(shorter.unwrap_err().code, FaultCode::SourceChanged);
}

#[test]
fn a_hold_goes_when_its_region_goes() {
    let alive = Arc::new(AtomicUsize::new(1));
    let hold: Box<dyn Any + Send + Sync> = Box::new(Alive(Arc::clone(&alive)));
    let (told, events) = std::sync::mpsc::channel();
    let seen = Arc::clone(&alive);
    let regions = RegionTable::new(Arc::new(move |_| {
        let _ = told.send(seen.load(Ordering::SeqCst));
    }));
    let slot = Arc::new(crate::memory::Pool::new(4096, 1).take().unwrap());
    let content = crate::lane::Served::Memory { slot, len: 1 };
    regions.expose_held(super::served(REGION, RemoteKey(1), content), hold);
    regions.revoke(REGION);
    assert_eq!(events.recv().unwrap(), 0, "told before it was gone");
}
