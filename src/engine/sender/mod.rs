//! The half that serves: it tells the manifest, lays out regions, grants them, proves chunks, and
//! answers for the version of every file.
//!
//! Pages come from the walk as the receiver's credit allows. What is wanted goes into packs or,
//! file by file, into windows; regions are exposed within the region credit and withdrawn when
//! they are released. It must not know how bytes are read, hashed or sent.
//!
//! State is kept per entry that was told and is not settled, and per region that is out.

mod entries;
mod io;
mod packing;
mod proofs;
mod regions;
mod state;
mod windows;

pub use io::{ExposedWindow, FilledPack, Input, OpenedFile, Output, SenderOptions};

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::engine::{Event, Ledger, internal, protocol};
use crate::ids::{EntryId, RegionId};
use crate::limits::{BATCH_ENTRIES_MAX, DIGESTS_MAX, OPEN_FILES_MAX, PACK_BYTES_MAX};
use crate::manifest::{EntryKind, Item, Note};
use crate::wire::message::{ChunkDigest, ManifestPage, Removal};
use crate::wire::{Fault, Message};

use entries::Record;
use packing::Turn;
use regions::{Credit, Region};

/// Entries that were told and are not settled, at most: no page goes out beyond that, however much
/// credit the receiver gives. Far more than a receiver of default credit ever leaves unsettled.
const UNSETTLED_MAX: usize = 64 << 10;

/// The sending half of a transfer. Drive it as the [engine](crate::engine) says.
#[derive(Debug)]
pub struct Sender {
    options: SenderOptions,
    outputs: VecDeque<Output>,
    ledger: Ledger,
    stage: Stage,
    /// Jobs that are out and not answered.
    jobs: usize,

    pages_credit: u32,
    walking: bool,
    /// The walk's next page, for which there is credit.
    next_page: Option<ManifestPage>,
    last_page_sent: bool,
    /// The first handle that no page has told.
    next_entry: u64,
    entries: BTreeMap<EntryId, Record>,

    credit: Credit,
    next_region: u64,
    regions: BTreeMap<RegionId, Region>,
    /// Small files that are wanted, with their listed lengths; stale ones are skipped.
    small: BinaryHeap<Reverse<(EntryId, u64)>>,
    /// Sum of those lengths.
    small_bytes: u64,
    /// Big files that are wanted and not open; stale ones are skipped.
    big: VecDeque<EntryId>,
    /// Open files with windows to come, in turn; stale ones are skipped.
    open: VecDeque<EntryId>,
    open_files: usize,
    /// Pack memory in use, in whole packs.
    packs: u64,
    turn: Turn,

    digests: Vec<ChunkDigest>,
    closed: Vec<(EntryId, bool)>,
    moved: u64,
    /// The receiver has compared its destination with what was told.
    compared: bool,
}

/// Where the run stands.
#[derive(Debug)]
enum Stage {
    Running,
    /// The receiver said Finish: regions are still being withdrawn.
    Finishing,
    /// Cut short: what is in flight is waited for.
    Ending {
        fault: Fault,
        tell_peer: bool,
    },
    /// The last output is out or in the queue.
    Ended,
}

impl Sender {
    /// A sender at the start of its run; the first credit begins the walk.
    pub fn new(options: SenderOptions) -> Self {
        let mut options = options;
        options.open_files_max = options.open_files_max.clamp(1, OPEN_FILES_MAX);
        options.pack_bytes_max = options.pack_bytes_max.max(PACK_BYTES_MAX);
        options.regions_max = options.regions_max.max(2);
        Self {
            outputs: VecDeque::new(),
            ledger: Ledger::default(),
            stage: Stage::Running,
            jobs: 0,
            pages_credit: 0,
            walking: false,
            next_page: None,
            last_page_sent: false,
            next_entry: 0,
            entries: BTreeMap::new(),
            credit: Credit::default(),
            next_region: options.first_region.0,
            regions: BTreeMap::new(),
            small: BinaryHeap::new(),
            small_bytes: 0,
            big: VecDeque::new(),
            open: VecDeque::new(),
            open_files: 0,
            packs: 0,
            turn: Turn::default(),
            digests: Vec::new(),
            closed: Vec::new(),
            moved: 0,
            compared: false,
            options,
        }
    }

    /// Takes in a fact.
    pub fn handle(&mut self, input: Input) {
        if matches!(self.stage, Stage::Ended) {
            return;
        }
        let handled = match input {
            Input::Message(message) => self.message(message),
            Input::Page(page) => self.page(page),
            Input::Opened { entry, result } => self.opened(entry, result),
            Input::PackFilled { region, pack } => self.pack_filled(region, pack),
            Input::Exposed { region, result } => self.exposed(region, result),
            Input::Hashed {
                entry,
                chunk,
                value,
            } => {
                self.hashed(entry, chunk, value);
                Ok(())
            }
            Input::Unexposed { region } => self.unexposed(region),
            Input::Checked { entry, same } => self.checked(entry, same),
            Input::Rehashed {
                entry,
                chunk,
                result,
            } => self.rehashed(entry, chunk, result),
            Input::SourceFailed { entry, fault } => {
                self.fail_entry(entry, fault);
                Ok(())
            }
            Input::Cancel(fault) => Err(fault),
        };
        if let Err(fault) = handled {
            self.end(fault, true);
        }
    }

    /// The next thing to do; `None` until the next input. Poll only after all inputs at hand.
    pub fn poll(&mut self) -> Option<Output> {
        if self.outputs.is_empty() {
            self.advance();
        }
        self.outputs.pop_front()
    }

    /// What has been settled so far.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Entries that state is kept for.
    pub fn unsettled(&self) -> usize {
        self.entries.len()
    }

    fn message(&mut self, message: Message) -> Result<(), Fault> {
        match message {
            Message::Failed(fault) => {
                self.end(fault, false);
                Ok(())
            }
            // The peer may not know yet that the run ends here.
            _ if matches!(self.stage, Stage::Ending { .. }) => Ok(()),
            // A grant of a file that failed over there and Finish passed each other.
            Message::Release(_) if matches!(self.stage, Stage::Finishing) => Ok(()),
            _ if matches!(self.stage, Stage::Finishing) => Err(protocol("more after Finish")),
            Message::Credit {
                pages,
                region_bytes,
            } => {
                self.pages_credit = self.pages_credit.saturating_add(pages);
                self.credit.add(region_bytes);
                Ok(())
            }
            Message::Want(wants) => wants
                .into_iter()
                .try_for_each(|(entry, wanted)| self.want(entry, &wanted)),
            Message::Deleted {
                comparing,
                removals,
            } if self.options.mirror => {
                self.removed(comparing, removals);
                Ok(())
            }
            Message::Recheck { entry, chunk } => self.recheck(entry, chunk),
            Message::Release(regions) => regions
                .into_iter()
                .try_for_each(|region| self.release(region)),
            Message::Close(entries) => entries.into_iter().try_for_each(|entry| self.close(entry)),
            Message::Settled(outcomes) => outcomes
                .into_iter()
                .try_for_each(|(entry, outcome)| self.settled(entry, outcome)),
            Message::Finish(carried) => {
                self.ledger.carried = carried;
                self.finish()
            }
            _ => Err(protocol("a receiver does not say this")),
        }
    }

    fn page(&mut self, page: Result<ManifestPage, Fault>) -> Result<(), Fault> {
        self.job_done()?;
        self.next_page = Some(page?);
        self.walking = false;
        Ok(())
    }

    /// For those who watch; it decides nothing.
    fn removed(&mut self, comparing: bool, removals: Vec<Removal>) {
        self.compared |= comparing;
        for removal in removals {
            self.ledger.removal(&removal);
            self.outputs
                .push_back(Output::Event(Event::Removed(removal)));
        }
    }

    fn finish(&mut self) -> Result<(), Fault> {
        let unsettled = self.entries.values().any(|record| !record.settled);
        if !self.last_page_sent || unsettled {
            return Err(protocol("Finish before everything was settled"));
        }
        if self.options.mirror && !self.compared {
            self.outputs.push_back(Output::Event(Event::NotMirrored));
        }
        self.stage = Stage::Finishing;
        self.withdraw_all();
        Ok(())
    }

    /// Does what has become possible.
    fn advance(&mut self) {
        match self.stage {
            Stage::Ended => return,
            Stage::Ending { .. } => return self.conclude(),
            Stage::Finishing => return self.conclude_finish(),
            Stage::Running => {}
        }
        self.send_pages();
        if self.is_ending() {
            return self.conclude();
        }
        self.open_files();
        if let Err(fault) = self.serve() {
            self.end(fault, true);
            return self.conclude();
        }
        self.flush();
    }

    fn send_pages(&mut self) {
        if let Some(page) = self.next_page.take() {
            self.pages_credit -= 1;
            self.send_page(page);
        }
        // Not ahead of the credit: a receiver has several pages to settle before it could miss one,
        // and who gives no credit for many transfers must not have a page of each lie here.
        let room = self.entries.len() < UNSETTLED_MAX;
        if self.pages_credit > 0 && room && !self.walking && !self.last_page_sent {
            self.walking = true;
            self.start_job(Output::NextPage);
        }
    }

    fn send_page(&mut self, page: ManifestPage) {
        let (mut entries, mut bytes) = (0, 0_u64);
        for item in &page.items {
            match item {
                Item::Entry(entry) => {
                    entries += 1;
                    let len = match entry.kind {
                        EntryKind::File { len, .. } => Some(len),
                        _ => None,
                    };
                    bytes = bytes.saturating_add(len.unwrap_or(0));
                    self.entries.insert(entry.id, Record::new(len));
                    self.next_entry = self.next_entry.max(entry.id.0.saturating_add(1));
                }
                Item::Note(note) => self.note(note),
            }
        }
        self.ledger.told += entries;
        self.last_page_sent = page.last;
        let told = Event::Told {
            entries,
            bytes,
            last: page.last,
        };
        self.outputs.push_back(Output::Event(told));
        self.outputs
            .push_back(Output::Send(Message::Manifest(page)));
    }

    fn note(&mut self, note: &Note) {
        if let Note::Skipped {
            place,
            fault,
            failure,
        } = note
        {
            if *failure {
                self.ledger.fail(None, fault);
            } else {
                self.ledger.skipped += 1;
            }
            self.outputs.push_back(Output::Event(Event::Skipped {
                place: place.clone(),
                fault: fault.clone(),
                failure: *failure,
            }));
            if *failure && self.options.fail_early {
                self.end(fault.clone(), true);
            }
        }
    }

    fn flush(&mut self) {
        self.flush_digests();
        while !self.closed.is_empty() {
            let count = self.closed.len().min(BATCH_ENTRIES_MAX);
            let batch = self.closed.drain(..count).collect();
            self.outputs.push_back(Output::Send(Message::Closed(batch)));
        }
        if self.moved > 0 {
            let bytes = std::mem::take(&mut self.moved);
            self.outputs
                .push_back(Output::Event(Event::Moved { bytes }));
        }
    }

    fn flush_digests(&mut self) {
        while !self.digests.is_empty() {
            let count = self.digests.len().min(DIGESTS_MAX);
            let batch = self.digests.drain(..count).collect();
            self.outputs
                .push_back(Output::Send(Message::Digests(batch)));
        }
    }

    fn start_job(&mut self, job: Output) {
        self.jobs += 1;
        self.outputs.push_back(job);
    }

    fn job_done(&mut self) -> Result<(), Fault> {
        self.jobs = self
            .jobs
            .checked_sub(1)
            .ok_or_else(|| internal("a job ended twice"))?;
        Ok(())
    }

    fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Ending { .. } | Stage::Ended)
    }

    /// Cuts the run short: withdraws what is exposed and waits for the jobs. The first reason
    /// stands.
    fn end(&mut self, fault: Fault, tell_peer: bool) {
        if self.is_ending() {
            return;
        }
        self.stage = Stage::Ending { fault, tell_peer };
        self.withdraw_all();
    }

    fn conclude(&mut self) {
        if self.jobs > 0 {
            return;
        }
        self.flush();
        let Stage::Ending { fault, tell_peer } = std::mem::replace(&mut self.stage, Stage::Ended)
        else {
            return;
        };
        for entry in std::mem::take(&mut self.entries).into_keys() {
            self.outputs.push_back(Output::Forget { entry });
        }
        if tell_peer {
            self.outputs
                .push_back(Output::Send(Message::Failed(fault.clone())));
        }
        let ledger = std::mem::take(&mut self.ledger);
        self.outputs.push_back(Output::Failed { fault, ledger });
    }

    fn conclude_finish(&mut self) {
        if self.jobs > 0 || !self.entries.is_empty() {
            return;
        }
        self.flush();
        self.stage = Stage::Ended;
        self.outputs.push_back(Output::Send(Message::Finished));
        self.outputs
            .push_back(Output::Finished(std::mem::take(&mut self.ledger)));
    }
}
