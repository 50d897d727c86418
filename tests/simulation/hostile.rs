//! Each engine alone against a peer that says anything: nothing may panic, no read may leave its
//! grant, and the run must come to its end once the jobs are answered.
//!
//! The peer's words come from a stream of choices: chance in the test, bytes in the fuzz target.

use std::collections::BTreeMap;

use rdcp::engine::receiver::{
    self, FetchFailure, PackResult, Placed, Prepared, Published, ReceiverOptions,
};
use rdcp::engine::sender::{self, ExposedWindow, FilledPack, OpenedFile, SenderOptions};
use rdcp::engine::{FetchToken, LaneId, Receiver, Sender};
use rdcp::ids::{EntryId, RegionId, RemoteKey};
use rdcp::manifest::{Entry, EntryKind, Item, Metadata, Name, Note, Place, Version};
use rdcp::units::{ByteRange, ChunkIndex, ChunkRange, ChunkSize};
use rdcp::wire::message::{
    Carried, ChunkDigest, Grant, GrantPart, HashKind, ManifestPage, Outcome, RegionKey, Wanted,
};
use rdcp::wire::{Fault, FaultCode, Message};

/// A number below the argument, which is not 0.
pub type Choose<'a> = &'a mut dyn FnMut(u64) -> u64;

const CHUNK: ChunkSize = ChunkSize::MIN;

/// Runs a receiver against `events` things that a sender, a lane or a job may do.
pub fn receiver(choose: Choose<'_>, events: u64) {
    let mut options = ReceiverOptions::new(hash(choose), CHUNK);
    options.region_credit_bytes = CHUNK.bytes() * (4 + choose(40));
    options.pages_credit = 1 + u32::try_from(choose(3)).unwrap();
    options.mirror = choose(2) == 0;
    options.tell_removals = choose(2) == 0;
    let mut side = ReceiverSide {
        engine: Receiver::new(options),
        jobs: Vec::new(),
        fetches: Vec::new(),
        granted: BTreeMap::new(),
        next_entry: 0,
        ended: false,
    };
    side.engine.handle(receiver::Input::LaneUp {
        lane: LaneId(0),
        rail: 0,
    });
    for _ in 0..events {
        side.event(choose);
        side.poll();
        assert!(
            side.engine.unsettled() <= 16 * 600 * 4,
            "state grows without bound"
        );
    }
    let lost = Fault::new(FaultCode::Lost, "the peer is gone");
    side.engine.handle(receiver::Input::Cancel(lost));
    side.poll();
    while !side.ended && (side.answer(choose) | side.land(choose)) {
        side.poll();
    }
    assert!(side.ended || side.engine.poll().is_none());
    assert!(side.ended, "the run does not end");
}

struct ReceiverSide {
    engine: Receiver,
    jobs: Vec<receiver::Output>,
    fetches: Vec<FetchToken>,
    granted: BTreeMap<RegionId, (u64, u64)>,
    next_entry: u64,
    ended: bool,
}

impl ReceiverSide {
    fn event(&mut self, choose: Choose<'_>) {
        let message = match choose(12) {
            0 => self.page(choose),
            1..=3 => self.grant(choose),
            4 => Message::Digests(vec![ChunkDigest {
                entry: entry(choose),
                chunk: number(choose),
                value: [u8::try_from(choose(3)).unwrap(); 32],
            }]),
            5 if choose(8) == 0 => Message::Closed(vec![(entry(choose), choose(2) == 0)]),
            5 if choose(8) == 0 => Message::EntryFailed {
                entry: entry(choose),
                fault: fault(choose),
            },
            6 if choose(60) == 0 => Message::Finished,
            6 if choose(60) == 0 => Message::Want(Vec::new()),
            7 if choose(20) == 0 => {
                return self
                    .engine
                    .handle(receiver::Input::LaneDown { lane: LaneId(0) });
            }
            7 => {
                let lane = LaneId(u32::try_from(choose(2)).unwrap());
                return self.engine.handle(receiver::Input::LaneUp {
                    lane,
                    rail: u16::try_from(choose(2)).unwrap(),
                });
            }
            8 | 9 => {
                self.land(choose);
                return;
            }
            _ => {
                self.answer(choose);
                return;
            }
        };
        self.engine.handle(receiver::Input::Message(message));
    }

    fn page(&mut self, choose: Choose<'_>) -> Message {
        let mut items = Vec::new();
        for _ in 0..choose(6) {
            let id = EntryId(self.next_entry + u64::from(choose(40) == 0));
            self.next_entry = id.0 + 1;
            let kind = match choose(6) {
                0 => EntryKind::Directory,
                1 => EntryKind::HardLink(EntryId(choose(id.0 + 1).saturating_sub(1))),
                _ => EntryKind::File {
                    len: number(choose),
                    linked: choose(2) == 0,
                },
            };
            let place = Place::In(EntryId(0), Name::new(&b"n"[..]).unwrap());
            items.push(Item::Entry(Entry {
                id,
                place,
                kind,
                metadata: Metadata::default(),
            }));
            if choose(8) == 0 {
                let directory = EntryId(choose(9));
                items.push(Item::Note(Note::DirectoryEnd {
                    directory,
                    complete: true,
                }));
            }
        }
        Message::Manifest(ManifestPage {
            items,
            last: choose(12) == 0,
        })
    }

    /// Mostly grants that are nearly right.
    fn grant(&mut self, choose: Choose<'_>) -> Message {
        let region = RegionId(choose(60));
        let key = RegionKey {
            rail: 0,
            address: number(choose),
            key: RemoteKey(region.0),
        };
        let mut parts = Vec::new();
        let mut len = 0;
        if choose(2) == 0 {
            let file_len = CHUNK.bytes() * choose(6) + choose(3);
            let start = CHUNK.bytes() * choose(2) * choose(3);
            let all = file_len.saturating_sub(start);
            let part_len = if choose(3) == 0 {
                all.min(CHUNK.bytes())
            } else {
                all
            };
            let end = start + part_len;
            let extents = match choose(3) {
                0 => Vec::new(),
                1 => vec![ByteRange { start, end }],
                _ => vec![ByteRange {
                    start: start + choose(4),
                    end: end.saturating_sub(choose(3)),
                }],
            };
            len = if extents.is_empty() { 0 } else { part_len };
            parts.push(part(entry(choose), file_len, start, 0, part_len, extents));
            parts[0].last = end == file_len;
        } else {
            for n in 0..choose(5) {
                let file_len = choose(3) * choose(2000);
                let mut small = part(
                    EntryId(n * (1 + choose(3))),
                    file_len,
                    0,
                    len,
                    file_len,
                    Vec::new(),
                );
                (small.packed, small.last) = (true, true);
                len += file_len + choose(2);
                parts.push(small);
            }
        }
        if choose(12) == 0 && !parts.is_empty() {
            disturb(&mut parts[0], choose);
        }
        if choose(20) == 0 {
            len = number(choose);
        }
        self.granted.insert(region, (len, key.address));
        Message::Grant(Grant {
            region,
            len,
            lease_ms: 1,
            keys: vec![key],
            parts,
        })
    }

    fn land(&mut self, choose: Choose<'_>) -> bool {
        if self.fetches.is_empty() {
            return false;
        }
        let n = usize::try_from(choose(self.fetches.len() as u64)).unwrap();
        let token = self.fetches.swap_remove(n);
        let result = match choose(8) {
            0 => Err(FetchFailure::Lost),
            1 => Err([FetchFailure::Remote, FetchFailure::Access][choose(2) as usize].clone()),
            2 if choose(4) == 0 => Err(FetchFailure::Storage(fault(choose))),
            _ => Ok(Some([u8::try_from(choose(3)).unwrap(); 32])),
        };
        self.engine
            .handle(receiver::Input::Landed { token, result });
        true
    }

    fn answer(&mut self, choose: Choose<'_>) -> bool {
        use receiver::{Input, Output};
        if self.jobs.is_empty() {
            return false;
        }
        let job = self
            .jobs
            .remove(usize::try_from(choose(self.jobs.len() as u64)).unwrap());
        let result = if choose(12) == 0 {
            Err(fault(choose))
        } else {
            Ok(())
        };
        self.engine.handle(match job {
            Output::Place { page, items } => {
                let entries = items.iter().filter_map(|item| match item {
                    Item::Entry(entry) => Some((entry.id, place(entry, choose))),
                    Item::Note(_) => None,
                });
                Input::Placed {
                    page,
                    entries: entries.collect(),
                    directories: Vec::new(),
                }
            }
            Output::Prepare { entry, .. } => {
                let (start, len) = (choose(4), choose(40));
                let held = rdcp::units::ChunkRange {
                    start,
                    end: start + len,
                };
                let held = if len < 20 { Vec::new() } else { vec![held] };
                Input::Prepared {
                    entry,
                    result: result.map(|()| Prepared {
                        held,
                        older: choose(5),
                        in_place: choose(2) == 0,
                    }),
                }
            }
            Output::Prove {
                entry,
                region,
                chunks,
            } => {
                let right = chunks.iter().filter(|_| choose(2) == 0);
                let right = right.map(|(chunk, _)| (*chunk, [7; 32])).collect();
                Input::Proved {
                    entry,
                    region,
                    result: result.map(|()| right),
                }
            }
            Output::Compare {
                entry,
                region,
                chunks,
                ..
            } => {
                let compared = chunks.iter().map(|(chunk, ..)| (*chunk, choose(2) == 0));
                let compared = compared.collect();
                Input::Compared {
                    entry,
                    region,
                    result: result.map(|()| compared),
                }
            }
            Output::Allocate { entry, region, .. } => Input::Allocated {
                entry,
                region,
                result,
            },
            Output::StorePack { region, files, .. } => {
                let results = files.iter().map(|file| {
                    let result = match choose(5) {
                        0 => PackResult::Mismatch,
                        2 => PackResult::Kept {
                            updated: choose(2) == 0,
                        },
                        1 => PackResult::Failed(fault(choose)),
                        _ => PackResult::Stored { digest: None },
                    };
                    (file.entry, result)
                });
                Input::PackStored {
                    region,
                    results: results.collect(),
                }
            }
            Output::Publish { entry } => Input::Published {
                entry,
                result: result.map(|()| match choose(3) {
                    0 => Published::Kept {
                        updated: choose(2) == 0,
                    },
                    _ => Published::New { digest: None },
                }),
            },
            Output::Link { entry, .. } => Input::Linked {
                entry,
                result: result.map(|()| choose(2) == 0),
            },
            Output::Settled(_) => Input::DirectoriesSettled(Vec::new()),
            Output::Mirror => Input::Mirrored {
                more: choose(3) == 0,
            },
            other => panic!("{other:?} is no job"),
        });
        true
    }

    fn poll(&mut self) {
        use receiver::Output;
        while let Some(output) = self.engine.poll() {
            assert!(!self.ended, "{output:?} after the end");
            match output {
                Output::Fetch(fetch) => {
                    let (len, address) = self.granted[&fetch.region];
                    assert_eq!(address, fetch.key.address);
                    assert!(fetch.region_offset + fetch.len <= len && fetch.len > 0);
                    self.fetches.push(fetch.token);
                }
                Output::FetchPack {
                    token, region, len, ..
                } => {
                    assert_eq!(self.granted[&region].0, len);
                    self.fetches.push(token);
                }
                Output::Finished(_) | Output::Failed { .. } => self.ended = true,
                Output::Send(_)
                | Output::Verified { .. }
                | Output::Hole { .. }
                | Output::Event(_) => {}
                job => self.jobs.push(job),
            }
        }
    }
}

/// Runs a sender against `events` things that a receiver, a lane or a job may do.
pub fn sender(choose: Choose<'_>, events: u64) {
    let mut options = SenderOptions::new(hash(choose), CHUNK);
    options.open_files_max = 1 + usize::try_from(choose(3)).unwrap();
    options.mirror = choose(2) == 0;
    options.dry_run = choose(5) == 0;
    let mut side = SenderSide {
        engine: Sender::new(options),
        jobs: Vec::new(),
        next_entry: 0,
        ended: false,
    };
    side.poll();
    for _ in 0..events {
        side.event(choose);
        side.poll();
        assert!(side.engine.unsettled() as u64 <= side.next_entry);
    }
    side.engine.handle(sender::Input::Cancel(Fault::new(
        FaultCode::Lost,
        "the peer is gone",
    )));
    side.poll();
    while !side.ended && side.answer(choose) {
        side.poll();
    }
    assert!(side.ended, "the run does not end");
}

struct SenderSide {
    engine: Sender,
    jobs: Vec<sender::Output>,
    next_entry: u64,
    ended: bool,
}

impl SenderSide {
    fn event(&mut self, choose: Choose<'_>) {
        let entry = entry(choose);
        let message = match choose(24) {
            0..=2 => Message::Credit {
                pages: u32::try_from(choose(4)).unwrap(),
                region_bytes: CHUNK.bytes() * choose(90),
            },
            3..=6 => Message::Want(vec![(entry, wanted(choose))]),
            7 if choose(9) == 0 => Message::Recheck {
                entry,
                chunk: number(choose),
            },
            8 if choose(3) == 0 => Message::Release(vec![RegionId(choose(12))]),
            9 if choose(9) == 0 => Message::Close(vec![entry]),
            10 if choose(9) == 0 => Message::Settled(vec![(entry, outcome(choose))]),
            11 if choose(60) == 0 => Message::Finish(Carried::default()),
            12 if choose(60) == 0 => Message::Opened,
            13 | 14 => {
                let chunk = ChunkIndex(choose(9));
                let value = [u8::try_from(choose(2)).unwrap(); 32];
                return self.engine.handle(sender::Input::Hashed {
                    entry,
                    chunk,
                    value,
                });
            }
            15 if choose(9) == 0 => {
                let fault = fault(choose);
                return self
                    .engine
                    .handle(sender::Input::SourceFailed { entry, fault });
            }
            _ => {
                self.answer(choose);
                return;
            }
        };
        self.engine.handle(sender::Input::Message(message));
    }

    fn answer(&mut self, choose: Choose<'_>) -> bool {
        use sender::{Input, Output};
        if self.jobs.is_empty() {
            return false;
        }
        let job = self
            .jobs
            .remove(usize::try_from(choose(self.jobs.len() as u64)).unwrap());
        let fails = choose(12) == 0;
        self.engine.handle(match job {
            Output::NextPage => {
                let mut items = Vec::new();
                for _ in 0..choose(5) {
                    let id = EntryId(self.next_entry);
                    self.next_entry += 1;
                    let place = Place::Root(0);
                    let len = number(choose).saturating_mul(choose(2) * choose(3));
                    let kind = EntryKind::File { len, linked: false };
                    let metadata = Metadata::default();
                    items.push(Item::Entry(Entry {
                        id,
                        place,
                        kind,
                        metadata,
                    }));
                }
                Input::Page(Ok(ManifestPage {
                    items,
                    last: choose(9) == 0,
                }))
            }
            Output::Open { entry } => {
                let file = OpenedFile {
                    window_bytes: number(choose),
                    version: Version([1; 32]),
                    len: number(choose),
                };
                Input::Opened {
                    entry,
                    result: if fails { Err(fault(choose)) } else { Ok(file) },
                }
            }
            Output::FillPack {
                region,
                entries,
                capacity,
            } => {
                let mut pack = FilledPack {
                    len: capacity,
                    ..FilledPack::default()
                };
                for entry in entries {
                    match choose(5) {
                        0 => pack.failed.push((entry, fault(choose))),
                        1 => pack.left.push(entry),
                        _ => pack.parts.push(part(entry, 1, 0, 0, 1, Vec::new())),
                    }
                }
                Input::PackFilled { region, pack }
            }
            Output::Expose { region, range, .. } => {
                let extents = if choose(3) == 0 {
                    Vec::new()
                } else {
                    vec![range]
                };
                let window = ExposedWindow {
                    keys: Vec::new(),
                    extents,
                    hole_end: number(choose),
                };
                let result = if fails {
                    Err(fault(choose))
                } else {
                    Ok(window)
                };
                Input::Exposed { region, result }
            }
            Output::Unexpose { region } => Input::Unexposed { region },
            Output::Check { entry } => Input::Checked {
                entry,
                same: !fails,
            },
            Output::Rehash { entry, chunk, .. } => {
                let value = [u8::try_from(choose(2)).unwrap(); 32];
                let result = if fails { Err(fault(choose)) } else { Ok(value) };
                Input::Rehashed {
                    entry,
                    chunk,
                    result,
                }
            }
            other => panic!("{other:?} is no job"),
        });
        true
    }

    fn poll(&mut self) {
        use sender::Output;
        while let Some(output) = self.engine.poll() {
            assert!(!self.ended, "{output:?} after the end");
            match output {
                Output::Finished(_) | Output::Failed { .. } => self.ended = true,
                Output::Send(_)
                | Output::HashAhead { .. }
                | Output::Forget { .. }
                | Output::Event(_) => {}
                job => self.jobs.push(job),
            }
        }
    }
}

fn hash(choose: Choose<'_>) -> HashKind {
    [HashKind::Blake3, HashKind::Sha256, HashKind::None][usize::try_from(choose(3)).unwrap()]
}

fn entry(choose: Choose<'_>) -> EntryId {
    EntryId(if choose(30) == 0 {
        number(choose)
    } else {
        choose(9)
    })
}

/// Small numbers, and those where arithmetic breaks.
fn number(choose: Choose<'_>) -> u64 {
    match choose(9) {
        0 => u64::MAX,
        1 => u64::MAX - CHUNK.bytes(),
        2 => i64::MAX as u64,
        3 => CHUNK.bytes() * choose(900),
        4 => CHUNK.bytes() * 2 + 1,
        _ => choose(9),
    }
}

fn fault(choose: Choose<'_>) -> Fault {
    let code = [
        FaultCode::Storage,
        FaultCode::NoSpace,
        FaultCode::Unknown(999),
    ];
    Fault::new(code[usize::try_from(choose(3)).unwrap()], "as it happens")
}

fn outcome(choose: Choose<'_>) -> Outcome {
    match choose(4) {
        0 => Outcome::Published {
            bytes: number(choose),
            digest: None,
        },
        1 => Outcome::Unchanged,
        2 => Outcome::Updated,
        _ => Outcome::Failed(fault(choose)),
    }
}

fn wanted(choose: Choose<'_>) -> Wanted {
    match choose(4) {
        0 => Wanted::Nothing,
        1 => {
            let start = number(choose);
            let end = number(choose);
            Wanted::Chunks(vec![
                ChunkRange { start, end },
                ChunkRange {
                    start: end,
                    end: u64::MAX,
                },
            ])
        }
        2 => Wanted::Compared(number(choose)),
        _ => Wanted::All,
    }
}

fn place(entry: &Entry, choose: Choose<'_>) -> Placed {
    match entry.kind {
        EntryKind::Directory => Placed::Directory,
        EntryKind::HardLink(to) => Placed::Link(to),
        _ if choose(4) == 0 => Placed::Settled(outcome(choose)),
        _ if choose(3) == 0 => Placed::Fetch(Wanted::Compared(choose(7))),
        _ => Placed::Fetch(Wanted::All),
    }
}

fn part(
    entry: EntryId,
    file_len: u64,
    file_offset: u64,
    region_offset: u64,
    len: u64,
    extents: Vec<ByteRange>,
) -> GrantPart {
    GrantPart {
        entry,
        version: Version([1; 32]),
        file_len,
        file_offset,
        region_offset,
        len,
        extents,
        last: false,
        packed: false,
    }
}

fn disturb(part: &mut GrantPart, choose: Choose<'_>) {
    match choose(8) {
        0 => part.file_len = number(choose),
        1 => part.file_offset = number(choose),
        2 => part.region_offset = number(choose),
        3 => part.len = number(choose),
        4 => part.last = !part.last,
        5 => part.packed = !part.packed,
        6 => part.version = Version([2; 32]),
        _ => part.extents.push(ByteRange {
            start: number(choose),
            end: number(choose),
        }),
    }
}
