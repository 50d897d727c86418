//! Fetches: which goes out next, and what follows from one that landed.

use crate::engine::{Event, internal, protocol};
use crate::ids::{EntryId, RegionId};
use crate::limits::REPAIRS_MAX;
use crate::units::ChunkIndex;
use crate::wire::message::{HashKind, Outcome};
use crate::wire::{Fault, FaultCode};

use super::entries::{State, changed, kept};
use super::file::{Keep, PartFile, Phase, Step};
use super::lanes::{Avoid, InFlight, Pick, TCP, Target};
use super::{Fetch, FetchFailure, Output, PackResult, Prepared, Receiver};

/// Something with bytes to fetch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// The next chunk of this file.
    File(EntryId),
    /// This pack.
    Pack(RegionId),
}

/// What came of trying to post a work's next fetch.
enum Posted {
    /// It is out, and there may be more.
    More,
    /// It is out or there is none, and nothing more for now.
    Done,
    /// The lanes for it take no more now.
    Busy,
    /// No lane takes anything now.
    Full,
    /// No lane can.
    Unreachable,
}

impl Receiver {
    /// Puts the file in the queue of work if it is not there.
    pub(super) fn enqueue(&mut self, entry: EntryId) {
        if let Some(file) = self.file(entry)
            && !std::mem::replace(&mut file.queued, true)
        {
            self.ready.push_back(Work::File(entry));
        }
    }

    /// Posts what the lanes take: a chunk or pack of each in turn, so that a huge file does not
    /// hold up the small ones.
    pub(super) fn post_fetches(&mut self) {
        let mut busy = Vec::new();
        while let Some(work) = self.ready.pop_front() {
            let posted = match work {
                Work::File(entry) => self.post_chunk(entry),
                Work::Pack(region) => self.post_pack(region),
            };
            match posted {
                Posted::More => self.ready.push_back(work),
                Posted::Done => {}
                Posted::Unreachable => self.stranded.push(work),
                // Its rail is full; what can only go over another one need not wait for that.
                Posted::Busy => busy.push(work),
                Posted::Full => {
                    self.ready.push_front(work);
                    break;
                }
            }
        }
        busy.into_iter()
            .rev()
            .for_each(|work| self.ready.push_front(work));
    }

    fn post_chunk(&mut self, entry: EntryId) -> Posted {
        let (hash, size) = (self.options.hash, self.options.chunk);
        let lanes = &mut self.lanes;
        let Some(State::File(file)) = self.entries.get_mut(&entry).map(|record| &mut record.state)
        else {
            return Posted::Done;
        };
        let next = file.next_chunk(hash);
        let (Some((at, index, avoid)), Some((_, file_len))) = (next, file.granted) else {
            file.queued = false;
            return Posted::Done;
        };
        let window = &mut file.windows[at];
        let chunk = window.chunk_index(index);
        let bytes = size.range(chunk, file_len);
        let (lane, key) = match lanes.pick(&window.keys, bytes.len(), avoid.or(file.wary)) {
            Pick::Lane(lane, key) => (lane, key),
            none => {
                window.requeue(index, avoid);
                return nowhere(none);
            }
        };
        let rail = key.rail;
        window.post(index, Avoid { lane, rail });
        let target = Target::Chunk {
            entry,
            region: window.region,
            index,
        };
        let token = lanes.post(InFlight {
            target,
            lane,
            rail,
            len: bytes.len(),
        });
        self.outputs.push_back(Output::Fetch(Fetch {
            token,
            lane,
            entry,
            chunk,
            region: window.region,
            key,
            region_offset: window.region_offset(bytes.start),
            file_offset: bytes.start,
            len: bytes.len(),
            file_len,
            proof: window.proof(index, hash),
            data: window.data.clone(),
        }));
        file.pending += 1;
        Posted::More
    }

    fn post_pack(&mut self, region: RegionId) -> Posted {
        let Some(pack) = self.packs.get(&region) else {
            return Posted::Done;
        };
        let (lane, key) = match self.lanes.pick(&pack.keys, pack.len, pack.avoid) {
            Pick::Lane(lane, key) => (lane, key),
            none => return nowhere(none),
        };
        let len = pack.len;
        let token = self.lanes.post(InFlight {
            target: Target::Pack { region },
            lane,
            rail: key.rail,
            len,
        });
        self.outputs.push_back(Output::FetchPack {
            token,
            lane,
            region,
            key,
            len,
        });
        Posted::Done
    }

    pub(super) fn prepared(
        &mut self,
        entry: EntryId,
        result: Result<Prepared, Fault>,
    ) -> Result<(), Fault> {
        self.job_done()?;
        let Some(file) = self.file(entry) else {
            return Err(internal("a file was prepared that was not asked for"));
        };
        file.pending -= 1;
        match result {
            Ok(Prepared {
                held,
                older,
                in_place,
            }) => {
                file.in_place = in_place;
                file.part_file = PartFile::Ready;
                file.held = held;
                file.older = file.older.min(older);
                self.drain(entry);
                self.allocate(entry);
                self.complete(entry);
            }
            Err(fault) => {
                self.fail_file(entry, fault);
                self.drain(entry);
            }
        }
        Ok(())
    }

    /// Reserves space for windows that came since the last time, and has it looked which of their
    /// chunks are there already, and which an older copy has.
    pub(super) fn allocate(&mut self, entry: EntryId) {
        if self.is_ending() {
            return;
        }
        let hash = self.options.hash;
        let Some(State::File(file)) = self.entries.get_mut(&entry).map(|record| &mut record.state)
        else {
            return;
        };
        if !matches!(file.phase, Phase::Fetching) {
            return;
        }
        for window in &mut file.windows {
            if !std::mem::replace(&mut window.asked, true) {
                file.pending += 1;
                self.jobs += 1;
                let (region, ranges) = (window.region, window.data.clone());
                self.outputs.push_back(Output::Allocate {
                    entry,
                    region,
                    ranges,
                });
                let chunks = window.hold(&file.held, hash);
                if !chunks.is_empty() {
                    file.pending += 1;
                    self.jobs += 1;
                    self.outputs.push_back(Output::Prove {
                        entry,
                        region,
                        chunks,
                    });
                }
                window.set_aside(file.older, hash);
            }
        }
        self.compare(entry);
    }

    pub(super) fn proved(
        &mut self,
        entry: EntryId,
        region: RegionId,
        result: Result<Vec<(ChunkIndex, [u8; 32])>, Fault>,
    ) -> Result<(), Fault> {
        self.job_done()?;
        let (ending, size) = (self.is_ending(), self.options.chunk);
        let Some(file) = self.file(entry) else {
            return Err(internal("chunks were proved of a file that is gone"));
        };
        file.pending -= 1;
        if ending {
            return Ok(());
        }
        if file.is_failing() {
            self.drain(entry);
            return Ok(());
        }
        let chunks = match result {
            Ok(chunks) => chunks,
            Err(fault) => {
                self.fail_file(entry, fault);
                return Ok(());
            }
        };
        let file_len = file.granted.map_or(0, |(_, len)| len);
        let Some(window) = file.window(region) else {
            return Err(internal("chunks were proved of a region that was released"));
        };
        let mut bytes = 0;
        let mut proved = Vec::with_capacity(chunks.len());
        let mut is_changed = false;
        for (chunk, value) in chunks {
            let Some(index) = window.position(chunk.0) else {
                continue;
            };
            match window.keep(index, value) {
                Keep::Yes => {
                    bytes += size.range(chunk, file_len).len();
                    let digest = Some(value);
                    proved.push(Output::Verified {
                        entry,
                        chunk,
                        digest,
                    });
                }
                Keep::Changed => is_changed = true,
                Keep::No => {}
            }
        }
        window.proved();
        if is_changed {
            // What its version did not show. Not fetched over what is there: holes are not written.
            self.fail_file(entry, changed());
            return Ok(());
        }
        self.outputs.extend(proved);
        if bytes > 0 {
            let resumed = &mut self.ledger.carried.resumed;
            *resumed = resumed.saturating_add(bytes);
            let event = Event::Resumed { entry, bytes };
            self.outputs.push_back(Output::Event(event));
        }
        self.end_window(entry, region);
        self.enqueue(entry);
        Ok(())
    }

    pub(super) fn allocated(
        &mut self,
        entry: EntryId,
        region: RegionId,
        result: Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.job_done()?;
        let Some(file) = self.file(entry) else {
            return Err(internal("space was reserved that was not asked for"));
        };
        file.pending -= 1;
        match result {
            Ok(()) => {
                if let Some(window) = file.window(region) {
                    window.allocated = true;
                }
                self.drain(entry);
                // An earlier run may have left all of it.
                self.end_window(entry, region);
                self.enqueue(entry);
            }
            Err(fault) => {
                self.fail_file(entry, fault);
                self.drain(entry);
            }
        }
        Ok(())
    }

    /// Lets the file go on to its end if all of it is there.
    pub(super) fn complete(&mut self, entry: EntryId) {
        if let Some(file) = self.file(entry)
            && file.is_complete()
        {
            file.phase = Phase::Settling;
            self.to_close.push_back(entry);
        }
    }

    pub(super) fn landed(
        &mut self,
        token: crate::engine::FetchToken,
        result: Result<Option<[u8; 32]>, FetchFailure>,
    ) -> Result<(), Fault> {
        let Some(fetch) = self.lanes.land(token) else {
            return Err(internal("a fetch landed that was not in flight"));
        };
        if result.is_ok() {
            let carried = &mut self.ledger.carried;
            let by = match fetch.rail {
                TCP => &mut carried.tcp,
                _ => &mut carried.rdma,
            };
            *by = by.saturating_add(fetch.len);
        }
        match fetch.target {
            Target::Chunk {
                entry,
                region,
                index,
            } => self.chunk_landed(entry, (region, index), fetch.way(), result),
            Target::Pack { region } => {
                self.pack_landed(region, fetch, result);
                Ok(())
            }
        }
    }

    fn chunk_landed(
        &mut self,
        entry: EntryId,
        (region, index): (RegionId, u32),
        way: Avoid,
        result: Result<Option<[u8; 32]>, FetchFailure>,
    ) -> Result<(), Fault> {
        let (ending, hash) = (self.is_ending(), self.options.hash);
        let Some(file) = self.file(entry) else {
            return Err(internal("a chunk landed of a file that is gone"));
        };
        file.pending -= 1;
        if ending {
            return Ok(());
        }
        if file.is_failing() {
            self.drain(entry);
            return Ok(());
        }
        if matches!(result, Err(FetchFailure::Access)) {
            // The rest of the file had better not end more connections.
            file.wary = Some(way);
        }
        let Some(window) = file.window(region) else {
            return Err(internal("a chunk landed of a region that was released"));
        };
        let step = match result {
            Ok(None) if hash != HashKind::None => {
                return Err(internal("a chunk landed without its digest"));
            }
            Ok(digest) => window.land(index, digest.filter(|_| hash != HashKind::None)),
            Err(FetchFailure::Lost) => {
                window.requeue(index, None);
                self.enqueue(entry);
                return Ok(());
            }
            Err(failure @ (FetchFailure::Remote | FetchFailure::Access)) => {
                match window.refuse(index) {
                    Step::GiveUp => {
                        self.fail_file(entry, refused(&failure));
                        return Ok(());
                    }
                    step => step,
                }
            }
            Err(FetchFailure::Storage(fault)) => {
                self.fail_file(entry, fault);
                return Ok(());
            }
        };
        self.take_step(entry, region, index, step)
    }

    /// Does what follows from a chunk that landed or a digest that came.
    pub(super) fn take_step(
        &mut self,
        entry: EntryId,
        region: RegionId,
        index: u32,
        step: Step,
    ) -> Result<(), Fault> {
        let Some(file) = self.file(entry) else {
            return Ok(());
        };
        let Some(window) = file.window(region) else {
            return Ok(());
        };
        let chunk = window.chunk_index(index);
        match step {
            Step::Wait => {}
            Step::Ready => self.enqueue(entry),
            Step::Compare => self.compare(entry),
            Step::Verified => {
                let digest = window.digest(index);
                self.verified(entry, region, chunk, digest);
            }
            Step::Recheck => {
                self.outbox.recheck.push((entry, chunk.0));
                let event = Event::Repairing {
                    entry,
                    chunk: chunk.0,
                };
                self.outputs.push_back(Output::Event(event));
            }
            Step::GiveUp => self.fail_file(entry, damaged()),
            Step::Changed => self.fail_file(entry, changed()),
            Step::Contradiction => {
                return Err(protocol("a digest that was not asked for, or a second one"));
            }
        }
        Ok(())
    }

    fn verified(
        &mut self,
        entry: EntryId,
        region: RegionId,
        chunk: ChunkIndex,
        digest: Option<[u8; 32]>,
    ) {
        let size = self.options.chunk;
        let Some(file) = self.file(entry) else { return };
        let file_len = file.granted.map_or(0, |(_, len)| len);
        let bytes = size.range(chunk, file_len).len();
        file.bytes += bytes;
        self.moved += bytes;
        self.outputs.push_back(Output::Verified {
            entry,
            chunk,
            digest,
        });
        self.end_window(entry, region);
    }

    /// Releases the window if all of it is there, and with the last one lets the file go on.
    pub(super) fn end_window(&mut self, entry: EntryId, region: RegionId) {
        let Some(file) = self.file(entry) else { return };
        let done = file
            .windows
            .iter()
            .position(|window| window.region == region);
        // Its space is asked for beside looking at what is there: that answer is waited for, too.
        let done = done.filter(|at| file.windows[*at].is_done() && file.windows[*at].allocated);
        if let Some(window) = done.and_then(|at| file.windows.remove(at)) {
            self.release(window.region);
            self.complete(entry);
        }
    }

    fn pack_landed(
        &mut self,
        region: RegionId,
        fetch: InFlight,
        result: Result<Option<[u8; 32]>, FetchFailure>,
    ) {
        if self.is_ending() {
            return;
        }
        let Some(pack) = self.packs.get_mut(&region) else {
            return;
        };
        match result {
            Ok(_) => {
                pack.landed = true;
                pack.avoid = Some(fetch.way());
                self.store_pack(region);
                return;
            }
            Err(FetchFailure::Lost) => self.ready.push_front(Work::Pack(region)),
            Err(FetchFailure::Remote | FetchFailure::Access) if pack.repairs < REPAIRS_MAX => {
                pack.repairs += 1;
                pack.avoid = Some(fetch.way());
                self.ready.push_back(Work::Pack(region));
            }
            Err(failure @ (FetchFailure::Remote | FetchFailure::Access)) => {
                self.fail_pack(region, &refused(&failure));
            }
            Err(FetchFailure::Storage(fault)) => self.fail_pack(region, &fault),
        }
        self.lanes.free_bytes(fetch.len);
    }

    /// Hands the pack to storage if its bytes and all digests are there.
    pub(super) fn store_pack(&mut self, region: RegionId) {
        let Some(pack) = self.packs.get_mut(&region) else {
            return;
        };
        if pack.is_ready() && !std::mem::replace(&mut pack.storing, true) {
            let (files, digests) = (pack.files.clone(), pack.digests());
            self.start_job(Output::StorePack {
                region,
                files,
                digests,
            });
        }
    }

    pub(super) fn pack_stored(
        &mut self,
        region: RegionId,
        mut results: Vec<(EntryId, PackResult)>,
    ) -> Result<(), Fault> {
        self.job_done()?;
        let Some(pack) = self.packs.get_mut(&region) else {
            return Err(internal("a pack was stored that was not asked for"));
        };
        pack.storing = false;
        pack.landed = pack.len == 0;
        let len = pack.len;
        let files = std::mem::take(&mut pack.files);
        results.sort_by_key(|(entry, _)| *entry);
        if !files
            .iter()
            .map(|file| file.entry)
            .eq(results.iter().map(|(entry, _)| *entry))
        {
            return Err(internal("other files of a pack were stored than asked for"));
        }
        self.lanes.free_bytes(len);
        let mut wrong = Vec::new();
        for (file, (entry, result)) in files.into_iter().zip(results) {
            match result {
                PackResult::Stored { digest } => {
                    self.moved += file.len;
                    self.settle(
                        entry,
                        Outcome::Published {
                            bytes: file.len,
                            digest,
                        },
                    );
                }
                PackResult::Kept { updated } => {
                    self.moved += file.len;
                    self.settle(entry, kept(updated));
                }
                PackResult::Mismatch => wrong.push(file),
                PackResult::Failed(fault) => {
                    self.settle(entry, Outcome::Failed(fault));
                }
            }
        }
        self.repair_pack(region, wrong);
        Ok(())
    }

    /// Fetches the pack again for the files that came wrong; without any, it is done with.
    fn repair_pack(&mut self, region: RegionId, wrong: Vec<super::PackFile>) {
        let Some(pack) = self.packs.get_mut(&region) else {
            return;
        };
        let first = wrong.first().map(|file| file.entry);
        pack.files = wrong;
        let Some(first) = first else {
            self.packs.remove(&region);
            self.release(region);
            return;
        };
        // Bytes that never travelled can't come right by another fetch.
        if pack.repairs >= REPAIRS_MAX || pack.len == 0 {
            return self.fail_pack(region, &damaged());
        }
        pack.repairs += 1;
        self.outputs.push_back(Output::Event(Event::Repairing {
            entry: first,
            chunk: 0,
        }));
        if !self.is_ending() {
            self.ready.push_back(Work::Pack(region));
        }
    }

    fn fail_pack(&mut self, region: RegionId, fault: &Fault) {
        let Some(pack) = self.packs.remove(&region) else {
            return;
        };
        for file in &pack.files {
            self.settle(file.entry, Outcome::Failed(fault.clone()));
        }
        self.release(region);
    }
}

fn damaged() -> Fault {
    let text = format!(
        "the data did not match its digest and came wrong {REPAIRS_MAX} times more; \
         look at memory and network hardware at both ends"
    );
    Fault::new(FaultCode::Integrity, text)
}

fn refused(failure: &FetchFailure) -> Fault {
    let text = match failure {
        FetchFailure::Access => {
            "the sender's RDMA device refuses to read the data that it had offered, and there is \
             no other way to it; allow tcp beside rdma, or copy it again"
        }
        _ => "the sender could not read the data that it had offered",
    };
    Fault::new(FaultCode::Storage, text)
}

/// Why no lane was picked.
fn nowhere(pick: Pick) -> Posted {
    match pick {
        Pick::Full => Posted::Full,
        Pick::Unreachable => Posted::Unreachable,
        Pick::Busy | Pick::Lane(..) => Posted::Busy,
    }
}
