//! Drives a [`Sender`]: carries its orders out with lanes, workers and the source, and hands it
//! what comes back.
//!
//! In: messages and lane events from the seat, results of jobs. Out: messages, regions that the
//! peer may read, events. Walking, opening, filling packs and hashing ahead run on the workers;
//! serving READs is the lanes' work; the rest is this task.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::machinery::{Machinery, pack_returned};
use super::peer::{Inbound, Seat};
use super::receiving::panic_message;
use super::watch::{Attention, Ended, Watch};
use crate::engine::sender::{ExposedWindow, FilledPack, Input, OpenedFile, Output, SenderOptions};
use crate::engine::{Event, Sender};
use crate::ids::{EntryId, RegionId, RemoteKey};
use crate::integrity::{ChunkHasher, HashPlan, Sha256Ahead, Sha256State};
use crate::lane::{LaneEvent, RegionTable, Served, ServedRegion};
use crate::limits::GRANT_EXTENTS_MAX;
use crate::memory::{Pool, Slot};
use crate::storage::SourceFile;
use crate::storage::source::{OpenSource, Source};
use crate::units::{ByteRange, ChunkIndex, ChunkSize};
use crate::wire::message::{HashKind, ManifestPage, RegionKey};
use crate::wire::{Fault, FaultCode, Message};
use crate::workers::Workers;

/// Bytes that are read at a time where a file is hashed outside the lanes.
const HASH_PIECE_BYTES: usize = 256 << 10;

/// What a sending run needs.
pub(crate) struct Sending {
    pub(crate) seat: Seat,
    pub(crate) machinery: Machinery,
    pub(crate) source: Arc<Source>,
    pub(crate) options: SenderOptions,
    pub(crate) watch: Watch,
}

struct Driver {
    seat: Seat,
    workers: Workers,
    source: Arc<Source>,
    hash: HashKind,
    chunk: ChunkSize,
    engine: Sender,
    watch: Watch,
    /// The session is over, which counts only after what was said before has been acted on: the
    /// last words of a run and those of its session often come together.
    over: Option<Fault>,
    results: mpsc::UnboundedSender<Done>,
    files: HashMap<EntryId, Open>,
    /// Memory of packs that all sessions share, beside what ours has of its own.
    packs: Pool,
    /// Regions that are or will be in the session's table. A run that ends early takes them out:
    /// the session and its memory live on.
    exposed: HashSet<RegionId>,
    /// Packs that wait for memory.
    waiting: VecDeque<WaitingPack>,
}

/// A big file that is served.
struct Open {
    file: Arc<OpenSource>,
    ahead: Ahead,
}

/// SHA-256 is hashed front to back by one job at a time.
enum Ahead {
    /// No job runs. The state between jobs.
    Idle(Option<Sha256Ahead>),
    /// A job runs; it is to be followed by one up to here.
    Running(Option<ChunkIndex>),
}

/// A pack that waits for memory.
struct WaitingPack {
    region: RegionId,
    entries: Vec<EntryId>,
    capacity: u64,
}

/// What a job reports.
enum Done {
    Input(Input),
    Page(Result<ManifestPage, Fault>),
    Opened(EntryId, Result<OpenSource, Fault>),
    PackFilled(RegionId, FilledPack),
    Exposed(RegionId, Result<ExposedWindow, Fault>),
    /// Hashing ahead came this far, or failed.
    Ahead(EntryId, Result<Sha256Ahead, Fault>),
    Panicked(String),
}

impl Sending {
    /// Runs to the end. The error is why the run itself ended; failures of single entries are in
    /// the ledger.
    pub(crate) async fn run(self) -> Ended {
        let (results, job_results) = mpsc::unbounded_channel();
        let mut driver = Driver {
            seat: self.seat,
            workers: self.machinery.workers,
            source: self.source,
            hash: self.options.hash,
            chunk: self.options.chunk,
            engine: Sender::new(self.options),
            watch: self.watch,
            over: None,
            results,
            files: HashMap::new(),
            packs: self.machinery.packs,
            exposed: HashSet::new(),
            waiting: VecDeque::new(),
        };
        driver.run(job_results).await
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The results are closed by now, so a job that exposes one later takes it out itself.
        let regions = self.seat.regions();
        for region in self.exposed.drain() {
            regions.revoke(region);
        }
    }
}

impl Driver {
    async fn run(&mut self, mut job_results: mpsc::UnboundedReceiver<Done>) -> Ended {
        loop {
            let pack_returned = pack_returned();
            if let Some(ended) = self.carry_out().await {
                return ended;
            }
            if let Some(fault) = self.over.take() {
                self.cancel(fault);
                continue;
            }
            tokio::select! {
                biased;
                inbound = self.seat.inbox.recv() => match inbound {
                    Some(inbound) => {
                        self.inbound(inbound);
                        while let Some(inbound) = self.seat.inbox.try_recv() {
                            self.inbound(inbound);
                        }
                    }
                    None => self.cancel(Fault::new(FaultCode::Lost, "the session ended")),
                },
                result = job_results.recv() => {
                    let mut next = result;
                    while let Some(result) = next {
                        if let Some(ended) = self.job_done(result) {
                            return ended;
                        }
                        next = job_results.try_recv().ok();
                    }
                }
                attention = self.watch.attention() => match attention {
                    Attention::Cancel(fault) => self.cancel(fault),
                    Attention::DropConnections => self.seat.peer.drop_connections(),
                    Attention::GiveUp => return self.watch.given_up(),
                },
                // Only then, so that a slot wakes nobody who has no use for it.
                () = pack_returned, if !self.waiting.is_empty() => {}
            }
        }
    }

    fn cancel(&mut self, fault: Fault) {
        self.watch.cancelling();
        self.engine.handle(Input::Cancel(fault));
    }

    fn inbound(&mut self, inbound: Inbound) {
        self.watch.progressed();
        let input = match inbound {
            // The server took the request; the engine hears from its peer itself.
            Inbound::Message(Message::Opened) => return,
            Inbound::Message(message) => Input::Message(message),
            Inbound::Over(fault) => {
                self.over = Some(fault);
                return;
            }
            // The receiver alone chooses lanes.
            Inbound::LaneUp(..) | Inbound::LaneDown(_) => return,
            Inbound::Lane(event) => match event {
                LaneEvent::Hashed {
                    entry,
                    chunk,
                    value,
                    ..
                } => Input::Hashed {
                    entry,
                    chunk,
                    value,
                },
                LaneEvent::SourceFailed { entry, error, .. } => Input::SourceFailed {
                    entry,
                    fault: read_fault(&error),
                },
                LaneEvent::Revoked { region } => Input::Unexposed { region },
                _ => return,
            },
        };
        self.engine.handle(input);
    }

    fn job_done(&mut self, done: Done) -> Option<Ended> {
        self.watch.progressed();
        let input = match done {
            Done::Input(input) => input,
            Done::Page(page) => {
                let page = page.and_then(|page| {
                    self.watch.learn(&page.items)?;
                    Ok(page)
                });
                Input::Page(page)
            }
            Done::Opened(entry, result) => {
                let result = result.map(|file| {
                    let opened = OpenedFile {
                        version: file.version,
                        len: file.len,
                    };
                    let ahead = Ahead::Idle(Some(Sha256Ahead::new()));
                    self.files.insert(
                        entry,
                        Open {
                            file: Arc::new(file),
                            ahead,
                        },
                    );
                    opened
                });
                Input::Opened { entry, result }
            }
            Done::PackFilled(region, pack) => {
                if pack.len == 0 {
                    self.exposed.remove(&region);
                }
                Input::PackFilled { region, pack }
            }
            Done::Exposed(region, result) => Input::Exposed { region, result },
            Done::Ahead(entry, Ok(state)) => {
                let next = self.files.get_mut(&entry).and_then(|open| {
                    let next = match open.ahead {
                        Ahead::Running(next) => next,
                        Ahead::Idle(_) => None,
                    };
                    open.ahead = Ahead::Idle(Some(state));
                    next
                });
                if let Some(upto) = next {
                    self.hash_ahead(entry, upto);
                }
                return None;
            }
            Done::Ahead(entry, Err(fault)) => Input::SourceFailed { entry, fault },
            Done::Panicked(message) => return Some(self.watch.broken(&message)),
        };
        self.engine.handle(input);
        None
    }

    async fn carry_out(&mut self) -> Option<Ended> {
        while let Some(output) = self.engine.poll() {
            match output {
                Output::Send(message) => self.seat.say(message),
                Output::NextPage => {
                    let source = Arc::clone(&self.source);
                    self.job(move || Done::Page(source.next_page().map_err(|error| error.fault())));
                }
                Output::Open { entry } => {
                    let source = Arc::clone(&self.source);
                    self.job(move || {
                        Done::Opened(
                            entry,
                            source.open_file(entry).map_err(|error| error.fault()),
                        )
                    });
                }
                Output::FillPack {
                    region,
                    entries,
                    capacity,
                } => {
                    self.waiting.push_back(WaitingPack {
                        region,
                        entries,
                        capacity,
                    });
                }
                Output::Expose {
                    region,
                    entry,
                    range,
                    file_len,
                } => {
                    self.expose(region, entry, range, file_len);
                }
                Output::HashAhead { entry, upto } => self.hash_ahead(entry, upto),
                Output::Unexpose { region } => {
                    self.exposed.remove(&region);
                    self.seat.regions().revoke(region);
                }
                Output::Check { entry } => {
                    let file = self.files.get(&entry).map(|open| Arc::clone(&open.file));
                    let source = Arc::clone(&self.source);
                    self.job(move || {
                        let same =
                            file.is_some_and(|file| source.unchanged(&*file.file, file.version));
                        Done::Input(Input::Checked { entry, same })
                    });
                }
                Output::Rehash {
                    entry,
                    chunk,
                    before,
                } => self.rehash(entry, chunk, before),
                Output::Forget { entry } => {
                    self.files.remove(&entry);
                    self.source.forget(entry);
                }
                Output::Event(event) => self.event(event).await,
                Output::Finished(ledger) => return Some(self.watch.finished(ledger).await),
                Output::Failed { fault, ledger } => {
                    return Some(self.watch.failed(fault, ledger).await);
                }
            }
        }
        self.fill_packs();
        None
    }

    async fn event(&mut self, event: Event) {
        self.watch.event(event).await;
    }

    /// Runs a blocking call on the workers; what it reports comes back by the results.
    fn job(&mut self, job: impl FnOnce() -> Done + Send + 'static) {
        let results = self.results.clone();
        self.workers.submit(move || {
            let done = catch_unwind(AssertUnwindSafe(job))
                .unwrap_or_else(|panic| Done::Panicked(panic_message(&*panic)));
            let _ = results.send(done);
        });
    }

    /// Fills the packs that there is memory for. Called whenever something happened, and when memory
    /// comes back that somebody missed.
    fn fill_packs(&mut self) {
        while !self.waiting.is_empty() {
            let slot = self.seat.peer.pack_slot(&self.packs);
            let (Some(slot), Some(pack)) = (slot, self.waiting.pop_front()) else {
                return;
            };
            self.fill_pack(pack, slot);
        }
    }

    fn fill_pack(&mut self, pack: WaitingPack, mut slot: Slot) {
        let WaitingPack {
            region,
            entries,
            capacity,
        } = pack;
        let source = Arc::clone(&self.source);
        let regions = self.seat.regions();
        let results = self.results.clone();
        self.exposed.insert(region);
        self.job(move || {
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
            if pack.len > 0 {
                let key = random_key();
                let content = Served::Memory {
                    slot: Arc::new(slot),
                    len: pack.len,
                };
                let served = ServedRegion {
                    region,
                    key,
                    content,
                };
                expose_to(&regions, served, &results);
                pack.keys.push(RegionKey {
                    rail: 0,
                    address: 0,
                    key,
                });
            }
            Done::PackFilled(region, pack)
        });
    }

    fn expose(&mut self, region: RegionId, entry: EntryId, range: ByteRange, file_len: u64) {
        let Some(file) = self.files.get(&entry).map(|open| Arc::clone(&open.file)) else {
            let fault = Fault::new(FaultCode::Internal, "no open file belongs to the entry");
            self.engine.handle(Input::Exposed {
                region,
                result: Err(fault),
            });
            return;
        };
        let hash = (self.hash == HashKind::Blake3).then_some(self.chunk);
        let source = Arc::clone(&self.source);
        let regions = self.seat.regions();
        let results = self.results.clone();
        self.exposed.insert(region);
        self.job(move || {
            let extents = source.extents(&file, range, GRANT_EXTENTS_MAX);
            let key = random_key();
            let content = Served::File {
                file: Arc::clone(&file.file),
                entry,
                file_offset: range.start,
                len: range.len(),
                file_len,
                hash,
            };
            let served = ServedRegion {
                region,
                key,
                content,
            };
            expose_to(&regions, served, &results);
            let keys = vec![RegionKey {
                rail: 0,
                address: 0,
                key,
            }];
            Done::Exposed(region, Ok(ExposedWindow { keys, extents }))
        });
    }

    /// Hashes a file on, front to back, as far as `upto`; one job per file at a time.
    fn hash_ahead(&mut self, entry: EntryId, upto: ChunkIndex) {
        let Some(open) = self.files.get_mut(&entry) else {
            return;
        };
        let state = match &mut open.ahead {
            Ahead::Idle(state) => state.take(),
            Ahead::Running(next) => {
                *next = Some(upto);
                return;
            }
        };
        open.ahead = Ahead::Running(None);
        let Some(mut state) = state else { return };
        let (file, chunk_size) = (Arc::clone(&open.file), self.chunk);
        let results = self.results.clone();
        self.job(move || {
            let mut buffer = vec![0; HASH_PIECE_BYTES];
            let mut chunk = chunk_size.index_of(state.position());
            while chunk < upto {
                let range = chunk_size.range(chunk, file.len);
                let hashed = hash_range(&*file.file, range, &mut buffer, |piece| {
                    state.update(piece);
                });
                if let Err(fault) = hashed {
                    return Done::Ahead(entry, Err(fault));
                }
                let value = match state.update(&[]) {
                    Some(between) if range.end < file.len => between.0,
                    _ => state.clone().finish(),
                };
                // Whoever waits for it may have gone.
                let _ = results.send(Done::Input(Input::Hashed {
                    entry,
                    chunk,
                    value,
                }));
                chunk.0 += 1;
            }
            Done::Ahead(entry, Ok(state))
        });
    }

    fn rehash(&mut self, entry: EntryId, chunk: ChunkIndex, before: Option<[u8; 32]>) {
        let file = self.files.get(&entry).map(|open| Arc::clone(&open.file));
        let (hash, chunk_size) = (self.hash, self.chunk);
        let source = Arc::clone(&self.source);
        self.job(move || {
            let result = match file {
                Some(file) => rehash(&source, &file, hash, chunk_size, chunk, before),
                None => Err(Fault::new(
                    FaultCode::SourceChanged,
                    "the file is not open any more",
                )),
            };
            Done::Input(Input::Rehashed {
                entry,
                chunk,
                result,
            })
        });
    }
}

/// Lets the peer read a region, unless the run that it is for has ended: nobody would end that.
fn expose_to(regions: &RegionTable, served: ServedRegion, run: &mpsc::UnboundedSender<Done>) {
    let region = served.region;
    regions.expose(served);
    // Looked at afterwards: either we see that the run is over, or it sees the region.
    if run.is_closed() {
        regions.revoke(region);
    }
}

/// Reads a chunk afresh and computes its value.
fn rehash(
    source: &Source,
    file: &OpenSource,
    hash: HashKind,
    chunk_size: ChunkSize,
    chunk: ChunkIndex,
    before: Option<[u8; 32]>,
) -> Result<[u8; 32], Fault> {
    let range = chunk_size.range(chunk, file.len);
    let plan = match hash {
        HashKind::Blake3 => HashPlan::Blake3 {
            chunk,
            chunk_size,
            file_len: file.len,
        },
        HashKind::Sha256 => HashPlan::Sha256 {
            before: before.map_or(Sha256State::INITIAL, Sha256State),
            start: range.start,
            file_len: file.len,
        },
        HashKind::None => HashPlan::None,
    };
    source.drop_cache(&*file.file, range);
    let mut hasher = ChunkHasher::new(&plan);
    let mut buffer = vec![0; HASH_PIECE_BYTES];
    hash_range(&*file.file, range, &mut buffer, |piece| {
        hasher.update(piece)
    })?;
    Ok(hasher.finish().unwrap_or_default())
}

/// Reads a range of a file in pieces. A file that ends early has changed.
fn hash_range(
    file: &dyn SourceFile,
    range: ByteRange,
    buffer: &mut [u8],
    mut piece: impl FnMut(&[u8]),
) -> Result<(), Fault> {
    let mut at = range.start;
    while at < range.end {
        let want = usize::try_from(range.end - at)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = file
            .read_at(&mut buffer[..want], at)
            .map_err(|error| read_fault(&error))?;
        if read == 0 {
            return Err(Fault::new(
                FaultCode::SourceChanged,
                "the file became shorter",
            ));
        }
        piece(&buffer[..read]);
        at += read as u64;
    }
    Ok(())
}

/// What a failed read of a source means to the peer.
fn read_fault(error: &std::io::Error) -> Fault {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        return Fault::new(
            FaultCode::SourceChanged,
            "the file became shorter while it was read",
        );
    }
    Fault::new(FaultCode::Storage, format!("reading failed: {error}"))
}

/// A key that can't be guessed.
fn random_key() -> RemoteKey {
    RemoteKey(u64::from_le_bytes(crate::sys::random_bytes()))
}
