//! Operations on the engine: a hostile peer says what it likes, in any order, with numbers at every
//! edge, to a state machine whose own driver is honest, if slow and unlucky. Nothing may panic, what
//! is outstanding stays within what credit allows, and whatever was said, a cancelled run ends once
//! its jobs are answered.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdcp::engine::receiver::{
    FetchFailure, Input as In, Output as Out, PackResult, Placed, Prepared, Published, ReceiverOptions,
};
use rdcp::engine::sender::{ExposedWindow, FilledPack, OpenedFile, SenderOptions};
use rdcp::engine::sender::{Input as SendIn, Output as SendOut};
use rdcp::engine::{LaneId, Receiver, Sender};
use rdcp::ids::{EntryId, RegionId, RemoteKey};
use rdcp::limits::PACK_BYTES_MAX;
use rdcp::manifest::{Entry, EntryKind, Item, Metadata, Name, Note, Place, Version};
use rdcp::units::{ByteRange, ChunkIndex, ChunkRange, ChunkSize};
use rdcp::wire::message::{
    Carried, ChunkDigest, Grant, GrantPart, HashKind, ManifestPage, Message, Outcome, Reason,
    RegionKey, Removal, Removed, RemovedKind, Wanted,
};
use rdcp::wire::{Fault, FaultCode};

/// Jobs that a machine may have outstanding with the small credits given here, roughly: more means
/// that a peer can make it grow.
const JOBS_MAX: usize = 4096;
/// Rounds of answering after which a cancelled run must have ended.
const ROUNDS_MAX: usize = 100_000;

fuzz_target!(|input: &[u8]| {
    let mut draw = Draw(input);
    let hash = [HashKind::Blake3, HashKind::Sha256, HashKind::None][draw.below(3)];
    if draw.coin() {
        receiver(hash, &mut draw);
    } else {
        sender(hash, &mut draw);
    }
});

fn receiver(hash: HashKind, draw: &mut Draw<'_>) {
    let mut options = ReceiverOptions::new(hash, ChunkSize::MIN);
    options.pages_credit = 2;
    options.region_credit_bytes = 1 << 20;
    options.fail_early = draw.coin();
    options.mirror = draw.coin();
    options.tell_removals = draw.coin();
    let mut machine = Receiver::new(options);
    let mut jobs = Vec::new();
    machine.handle(In::LaneUp { lane: LaneId(0), rail: 0 });
    if take_orders(&mut machine, &mut jobs) {
        return;
    }
    while !draw.is_empty() {
        let input = match draw.below(8) {
            0..=3 => In::Message(draw.message_to_receiver()),
            4 if draw.byte() < 16 => match draw.below(3) {
                0 => In::LaneUp { lane: LaneId(draw.small()), rail: draw.below(2) as u16 },
                1 => In::LaneDown { lane: LaneId(draw.small()) },
                _ => In::Cancel(fault()),
            },
            5 if draw.byte() < 32 => In::Removed(draw.removals()),
            _ if jobs.is_empty() => continue,
            _ => {
                let job = jobs.swap_remove(draw.below(jobs.len()));
                answer(job, draw)
            }
        };
        machine.handle(input);
        if take_orders(&mut machine, &mut jobs) {
            return;
        }
        assert!(jobs.len() <= JOBS_MAX, "{} jobs are outstanding", jobs.len());
    }
    machine.handle(In::Cancel(fault()));
    for _ in 0..ROUNDS_MAX {
        if take_orders(&mut machine, &mut jobs) {
            return;
        }
        let job = jobs.pop().expect("a cancelled run whose jobs are answered has ended");
        machine.handle(answer(job, draw));
    }
    panic!("a cancelled run goes on for ever");
}

/// Polls until there is nothing more; keeps the jobs. Whether the run has ended.
fn take_orders(machine: &mut Receiver, jobs: &mut Vec<Out>) -> bool {
    while let Some(output) = machine.poll() {
        match output {
            Out::Finished(_) | Out::Failed { .. } => return true,
            Out::Place { .. }
            | Out::Prepare { .. }
            | Out::Allocate { .. }
            | Out::Fetch(_)
            | Out::FetchPack { .. }
            | Out::StorePack { .. }
            | Out::Prove { .. }
            | Out::Compare { .. }
            | Out::Publish { .. }
            | Out::Link { .. }
            | Out::Mirror
            | Out::Settled(_) => jobs.push(output),
            Out::Send(_) | Out::Verified { .. } | Out::Hole { .. } | Out::Event(_) => {}
        }
    }
    false
}

/// An answer that an honest driver may give.
fn answer(job: Out, draw: &mut Draw<'_>) -> In {
    let well = draw.byte() >= 32;
    let done = |well: bool| if well { Ok(()) } else { Err(fault()) };
    match job {
        Out::Place { page, items } => {
            let entries = items.iter().filter_map(|item| match item {
                Item::Entry(entry) => Some((entry.id, placed(entry, draw))),
                Item::Note(_) => None,
            });
            In::Placed { page, entries: entries.collect(), directories: Vec::new() }
        }
        Out::Prepare { entry, .. } => {
            let held = match draw.below(3) {
                0 => vec![ChunkRange { start: 0, end: 5 }, ChunkRange { start: 6, end: 90 }],
                _ => Vec::new(),
            };
            let older = draw.below(5) as u64;
            In::Prepared { entry, result: done(well).map(|()| Prepared { held, older, in_place: well }) }
        }
        Out::Compare { entry, region, chunks, .. } => {
            let compared = chunks.iter().map(|(chunk, ..)| (*chunk, draw.coin())).collect();
            In::Compared { entry, region, result: done(well).map(|()| compared) }
        }
        Out::Prove { entry, region, chunks } => {
            let right = chunks.iter().filter(|_| draw.below(2) == 0);
            let right = right.map(|(chunk, _)| (*chunk, [7; 32])).collect();
            In::Proved { entry, region, result: done(well).map(|()| right) }
        }
        Out::Allocate { entry, region, .. } => {
            In::Allocated { entry, region, result: done(well) }
        }
        Out::Fetch(fetch) => In::Landed { token: fetch.token, result: landed(draw) },
        Out::FetchPack { token, .. } => In::Landed { token, result: landed(draw) },
        Out::StorePack { region, files, .. } => {
            let results = files.iter().map(|file| {
                let result = match draw.below(5) {
                    0 => PackResult::Mismatch,
                    2 => PackResult::Kept { updated: draw.coin() },
                    1 => PackResult::Failed(fault()),
                    _ => PackResult::Stored { digest: None },
                };
                (file.entry, result)
            });
            In::PackStored { region, results: results.collect() }
        }
        Out::Publish { entry } => {
            let published = match draw.below(3) {
                0 => Published::Kept { updated: draw.coin() },
                _ => Published::New { digest: None },
            };
            In::Published { entry, result: done(well).map(|()| published) }
        }
        Out::Link { entry, .. } => In::Linked { entry, result: done(well).map(|()| well) },
        Out::Mirror => In::Mirrored { more: draw.below(4) == 0 },
        _ => In::DirectoriesSettled(Vec::new()),
    }
}

fn placed(entry: &Entry, draw: &mut Draw<'_>) -> Placed {
    match &entry.kind {
        EntryKind::HardLink(to) if draw.coin() => Placed::Link(*to),
        EntryKind::File { len, .. } => match draw.below(5) {
            0 => Placed::Settled(Outcome::Unchanged),
            1 if *len > ChunkSize::MIN.bytes() => {
                Placed::Fetch(Wanted::Chunks(vec![ChunkRange { start: 0, end: 1 }]))
            }
            2 => Placed::Fetch(Wanted::Compared(draw.below(7) as u64)),
            _ => Placed::Fetch(Wanted::All),
        },
        _ => Placed::Settled(Outcome::Published { bytes: 0, digest: None }),
    }
}

fn landed(draw: &mut Draw<'_>) -> Result<Option<[u8; 32]>, FetchFailure> {
    match draw.below(8) {
        0 => Err(FetchFailure::Lost),
        1 => Err(FetchFailure::Remote),
        2 => Err(FetchFailure::Storage(fault())),
        3 => Err(FetchFailure::Access),
        _ => Ok(Some(draw.value())),
    }
}

fn sender(hash: HashKind, draw: &mut Draw<'_>) {
    let mut machine = Sender::new(SenderOptions {
        hash,
        chunk: ChunkSize::MIN,
        first_region: RegionId(1),
        open_files_max: 2,
        pack_bytes_max: 2 * PACK_BYTES_MAX,
        regions_max: 3,
        lease_ms: 60_000,
        fail_early: draw.coin(),
        dry_run: draw.below(4) == 0,
        mirror: draw.coin(),
    });
    let mut walk = Walk::default();
    let mut jobs = Vec::new();
    if take_sender_orders(&mut machine, &mut jobs) {
        return;
    }
    while !draw.is_empty() {
        let input = match draw.below(8) {
            0..=3 => SendIn::Message(draw.message_to_sender()),
            4 if draw.byte() < 8 => SendIn::Cancel(fault()),
            _ if jobs.is_empty() => continue,
            _ => {
                let job = jobs.swap_remove(draw.below(jobs.len()));
                answer_sender(job, &mut walk, &mut jobs, hash, draw)
            }
        };
        machine.handle(input);
        if take_sender_orders(&mut machine, &mut jobs) {
            return;
        }
        assert!(jobs.len() <= JOBS_MAX, "{} jobs are outstanding", jobs.len());
    }
    machine.handle(SendIn::Cancel(fault()));
    for _ in 0..ROUNDS_MAX {
        if take_sender_orders(&mut machine, &mut jobs) {
            return;
        }
        let job = jobs.pop().expect("a cancelled run whose jobs are answered has ended");
        let input = answer_sender(job, &mut walk, &mut jobs, hash, draw);
        machine.handle(input);
    }
    panic!("a cancelled run goes on for ever");
}

/// What a job of the sender still owes: HashAhead answers chunk by chunk.
enum Job {
    Order(SendOut),
    Hash { entry: EntryId, next: u64, upto: u64 },
}

fn take_sender_orders(machine: &mut Sender, jobs: &mut Vec<Job>) -> bool {
    while let Some(output) = machine.poll() {
        match output {
            SendOut::Finished(_) | SendOut::Failed { .. } => return true,
            SendOut::Send(_) | SendOut::Forget { .. } | SendOut::Event(_) => {}
            SendOut::HashAhead { entry, upto } => {
                // The order is renewed with a higher end; one job for each file stands for it.
                let standing = jobs.iter_mut().find_map(|job| match job {
                    Job::Hash { entry: of, upto, .. } if *of == entry => Some(upto),
                    _ => None,
                });
                match standing {
                    Some(standing) => *standing = upto.0,
                    None => jobs.push(Job::Hash { entry, next: 0, upto: upto.0 }),
                }
            }
            order => jobs.push(Job::Order(order)),
        }
    }
    false
}

/// The entries that the walk has told.
#[derive(Default)]
struct Walk {
    lens: Vec<u64>,
}

fn answer_sender(
    job: Job,
    walk: &mut Walk,
    jobs: &mut Vec<Job>,
    hash: HashKind,
    draw: &mut Draw<'_>,
) -> SendIn {
    let well = draw.byte() >= 32;
    let len_of = |walk: &Walk, entry: EntryId| {
        usize::try_from(entry.0).ok().and_then(|at| walk.lens.get(at).copied()).unwrap_or(0)
    };
    let order = match job {
        Job::Hash { entry, .. } if !well => return SendIn::SourceFailed { entry, fault: fault() },
        Job::Hash { entry, next, upto } => {
            if next + 1 < upto {
                jobs.push(Job::Hash { entry, next: next + 1, upto });
            }
            return SendIn::Hashed { entry, chunk: ChunkIndex(next), value: draw.value() };
        }
        Job::Order(order) => order,
    };
    match order {
        SendOut::NextPage => SendIn::Page(if well { Ok(walk.page(draw)) } else { Err(fault()) }),
        SendOut::Open { entry } => {
            let window_bytes = draw.number();
            let file =
                OpenedFile { version: Version::default(), len: len_of(walk, entry), window_bytes };
            SendIn::Opened { entry, result: if well { Ok(file) } else { Err(fault()) } }
        }
        SendOut::FillPack { region, entries, capacity } => {
            let mut pack = FilledPack::default();
            for entry in entries {
                let len = len_of(walk, entry);
                if draw.byte() < 16 {
                    pack.failed.push((entry, fault()));
                } else if pack.len + len > capacity {
                    pack.left.push(entry);
                } else {
                    pack.parts.push(packed(entry, len, pack.len));
                    if hash != HashKind::None {
                        let chunks = ChunkSize::MIN.count(len).max(1);
                        let value = draw.value();
                        let of = |chunk| ChunkDigest { entry, chunk, value };
                        pack.digests.extend((0..chunks).map(of));
                    }
                    pack.len += len;
                }
            }
            if pack.len > 0 {
                pack.keys = vec![key()];
            }
            SendIn::PackFilled { region, pack }
        }
        SendOut::Expose { region, range, .. } => {
            let extents = if draw.coin() { vec![range] } else { Vec::new() };
            let window = ExposedWindow { keys: vec![key()], extents, hole_end: draw.number() };
            SendIn::Exposed { region, result: if well { Ok(window) } else { Err(fault()) } }
        }
        SendOut::Unexpose { region } => SendIn::Unexposed { region },
        SendOut::Check { entry } => SendIn::Checked { entry, same: well },
        SendOut::Rehash { entry, chunk, .. } => {
            let result = if well { Ok(draw.value()) } else { Err(fault()) };
            SendIn::Rehashed { entry, chunk, result }
        }
        _ => SendIn::Cancel(fault()),
    }
}

impl Walk {
    fn page(&mut self, draw: &mut Draw<'_>) -> ManifestPage {
        let items = (0..draw.below(4)).map(|_| {
            let id = EntryId(self.lens.len() as u64);
            let len = [0, 1, 4096, 300 << 10, 3 << 20, 200 << 20][draw.below(6)];
            self.lens.push(len);
            Item::Entry(Entry {
                id,
                place: Place::Root(0),
                kind: EntryKind::File { len, linked: draw.byte() < 16 },
                metadata: Metadata::default(),
            })
        });
        ManifestPage { items: items.collect(), last: draw.byte() < 64 }
    }
}

fn packed(entry: EntryId, len: u64, region_offset: u64) -> GrantPart {
    GrantPart {
        entry,
        version: Version::default(),
        file_len: len,
        file_offset: 0,
        region_offset,
        len,
        extents: if len > 0 { vec![ByteRange { start: 0, end: len }] } else { Vec::new() },
        last: true,
        packed: true,
    }
}

fn key() -> RegionKey {
    RegionKey { rail: 0, address: 0, key: RemoteKey(1) }
}

fn fault() -> Fault {
    Fault::new(FaultCode::Storage, "as drawn")
}

/// Choices drawn from the fuzzer's bytes; zeroes once they are used up.
struct Draw<'b>(&'b [u8]);

impl Draw<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn coin(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    fn small(&mut self) -> u32 {
        u32::from(self.byte() % 4)
    }

    /// Mostly small, sometimes at an edge.
    fn number(&mut self) -> u64 {
        let chunk = ChunkSize::MIN.bytes();
        match self.byte() {
            small @ 0..=199 => u64::from(small % 8),
            200..=219 => u64::from(self.byte()) * chunk,
            220..=229 => chunk - 1 + u64::from(self.byte() % 3),
            230..=239 => 1 << (self.byte() % 64),
            _ => u64::MAX - u64::from(self.byte()),
        }
    }

    fn entry(&mut self) -> EntryId {
        EntryId(self.number())
    }

    fn region(&mut self) -> RegionId {
        RegionId(self.number())
    }

    fn value(&mut self) -> [u8; 32] {
        [self.byte() & 1; 32]
    }

    fn removals(&mut self) -> Vec<Removal> {
        self.several(|draw| Removal {
            root: draw.small(),
            path: vec![b'p'; draw.below(9)],
            kind: RemovedKind::File,
            outcome: match draw.below(4) {
                0 => Removed::Gone,
                1 => Removed::Would,
                2 => Removed::Failed(fault()),
                _ => Removed::Kept(fault()),
            },
        })
    }

    fn several<T>(&mut self, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(4)).map(|_| one(self)).collect()
    }

    fn outcome(&mut self) -> Outcome {
        match self.below(5) {
            0 => Outcome::Unchanged,
            4 => Outcome::Planned(Reason::New),
            1 => Outcome::Failed(fault()),
            2 => Outcome::Updated,
            _ => Outcome::Published { bytes: self.number(), digest: None },
        }
    }

    fn range(&mut self) -> ByteRange {
        // The decoder lets only ranges through that run forward.
        let (a, b) = (self.number(), self.number());
        ByteRange { start: a.min(b), end: a.max(b) }
    }

    fn place(&mut self) -> Place {
        let name = Name::new(vec![b'a' + self.byte() % 8]).expect("a letter is a name");
        if self.coin() { Place::Root(self.small()) } else { Place::In(self.entry(), name) }
    }

    fn item(&mut self) -> Item {
        match self.below(8) {
            0 => {
                let (directory, complete) = (self.entry(), self.coin());
                Item::Note(Note::DirectoryEnd { directory, complete })
            }
            1 => Item::Note(Note::Skipped { place: self.place(), fault: fault(), failure: true }),
            _ => {
                let kind = match self.below(6) {
                    0 => EntryKind::Directory,
                    1 => EntryKind::Symlink(b"target".to_vec()),
                    2 => EntryKind::HardLink(self.entry()),
                    _ => EntryKind::File { len: self.number(), linked: self.coin() },
                };
                let (id, place) = (self.entry(), self.place());
                Item::Entry(Entry { id, place, kind, metadata: Metadata::default() })
            }
        }
    }

    fn part(&mut self) -> GrantPart {
        GrantPart {
            entry: self.entry(),
            version: Version::default(),
            file_len: self.number(),
            file_offset: self.number(),
            region_offset: self.number(),
            len: self.number(),
            extents: self.several(Self::range),
            last: self.coin(),
            packed: self.coin(),
        }
    }

    fn message_to_receiver(&mut self) -> Message {
        match self.below(8) {
            0 | 1 => Message::Manifest(ManifestPage {
                items: self.several(Self::item),
                last: self.byte() < 32,
            }),
            2 | 3 => Message::Grant(Grant {
                region: self.region(),
                len: self.number(),
                lease_ms: 60_000,
                keys: if self.byte() < 16 { Vec::new() } else { vec![key()] },
                parts: self.several(Self::part),
            }),
            4 => Message::Digests(self.several(|draw| ChunkDigest {
                entry: draw.entry(),
                chunk: draw.number(),
                value: draw.value(),
            })),
            5 => Message::Closed(self.several(|draw| (draw.entry(), draw.coin()))),
            6 => Message::EntryFailed { entry: self.entry(), fault: fault() },
            _ => self.any_message(),
        }
    }

    fn message_to_sender(&mut self) -> Message {
        match self.below(8) {
            0 | 1 => {
                Message::Credit { pages: self.small(), region_bytes: self.number() }
            }
            2 | 3 => Message::Want(self.several(|draw| {
                let wanted = match draw.below(5) {
                    0 => Wanted::Nothing,
                    2 => Wanted::Compared(draw.number()),
                    1 => Wanted::Chunks(draw.several(|draw| {
                        let range = draw.range();
                        ChunkRange { start: range.start, end: range.end }
                    })),
                    _ => Wanted::All,
                };
                (draw.entry(), wanted)
            })),
            4 => Message::Release(self.several(Self::region)),
            5 => Message::Close(self.several(Self::entry)),
            6 => Message::Settled(self.several(|draw| (draw.entry(), draw.outcome()))),
            _ => self.any_message(),
        }
    }

    /// Some that are for the other half, or for none.
    fn any_message(&mut self) -> Message {
        match self.below(8) {
            0 => Message::Finished,
            1 => Message::Finish(Carried::default()),
            2 => Message::Failed(fault()),
            3 => Message::Recheck { entry: self.entry(), chunk: self.number() },
            4 => Message::Opened,
            5 => Message::Credit { pages: self.small(), region_bytes: self.number() },
            6 => Message::Done,
            7 if self.coin() => {
                Message::Deleted { comparing: self.coin(), removals: self.removals() }
            }
            _ => Message::Ping { nonce: 0 },
        }
    }
}
