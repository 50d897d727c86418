//! The half that lands chunks: it asks, reads, proves, stores, and settles every entry.
//!
//! Pages of the manifest come in and go to storage, which says what is wanted. Grants tell where
//! wanted bytes lie; fetches of chunks and packs go out over the lanes; what landed and matched is
//! released; a file whose chunks are all there is published once the sender has confirmed its
//! version. It must not know how bytes travel, where they are stored or how they are hashed.
//!
//! State is kept per unsettled entry and per open region only, so credit bounds it.

mod comparing;
mod entries;
mod fetching;
mod file;
mod grants;
mod io;
mod lanes;
mod mirror;
mod outbox;
mod pack;
mod state;

pub use io::{
    Fetch, FetchFailure, Input, Output, PackFile, PackResult, Placed, Prepared, Proof, Published,
    ReceiverOptions,
};

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::engine::{Event, Ledger, internal, protocol};
use crate::ids::{EntryId, RegionId};
use crate::limits::PACK_FILE_BYTES_MAX;
use crate::wire::{Fault, Message};

use entries::{Page, Record};
use fetching::Work;
use lanes::Lanes;
use mirror::Mirror;
use outbox::Outbox;
use pack::Pack;

/// Most files that are being closed and published at once: bounds open part files and the
/// storage's queue. Their source files stay open at the sender meanwhile.
const FINISHING_MAX: usize = 64;

/// The receiving half of a transfer. Drive it as the [engine](crate::engine) says.
#[derive(Debug)]
pub struct Receiver {
    options: ReceiverOptions,
    outputs: VecDeque<Output>,
    outbox: Outbox,
    ledger: Ledger,
    stage: Stage,
    /// Jobs that are out and not answered.
    jobs: usize,

    /// Unsettled entries.
    entries: BTreeMap<EntryId, Record>,
    /// The first handle that no page has told.
    next_entry: u64,
    /// Pages with unsettled entries.
    pages: BTreeMap<u64, Page>,
    next_page: u64,
    last_page_came: bool,
    /// Unsettled directories.
    directories: usize,
    /// Hard links that wait for an entry.
    waiting_links: BTreeMap<EntryId, Vec<EntryId>>,
    /// Files that failed and that links may still come to.
    failed_linked: BTreeSet<EntryId>,

    packs: BTreeMap<RegionId, Pack>,
    /// Granted and not released, with their lengths.
    regions: BTreeMap<RegionId, u64>,
    /// Sum of those lengths.
    region_bytes: u64,
    /// Files with a grant whose Closed is to come.
    open_files: usize,
    /// Digests kept ahead of their grant, of all files.
    early_digests: usize,

    lanes: Lanes,
    /// Files and packs with something to fetch, in turn.
    ready: VecDeque<Work>,
    /// Those that no lane can reach.
    stranded: Vec<Work>,
    /// Files that are complete and wait for their Close.
    to_close: VecDeque<EntryId>,
    finishing: usize,
    /// Settled since the last poll, for storage.
    settled: Vec<EntryId>,
    moved: u64,
    mirror: Mirror,
}

/// Where the run stands.
#[derive(Debug)]
enum Stage {
    Running,
    /// All is settled and Finish was said.
    Finishing,
    /// The sender has done its part; what it does not have is being removed.
    Mirroring,
    /// Cut short: what is in flight is waited for.
    Ending {
        fault: Fault,
        tell_peer: bool,
    },
    /// The last output is out or in the queue.
    Ended,
}

impl Receiver {
    /// A receiver at the start of its run; the first poll grants credit.
    pub fn new(options: ReceiverOptions) -> Self {
        let mut options = options;
        options.pages_credit = options.pages_credit.max(1);
        options.region_credit_bytes = options
            .region_credit_bytes
            .max(options.chunk.bytes())
            .max(PACK_FILE_BYTES_MAX);
        let outbox = Outbox {
            pages: options.pages_credit,
            region_bytes: options.region_credit_bytes,
            ..Outbox::default()
        };
        Self {
            outputs: VecDeque::new(),
            outbox,
            ledger: Ledger::default(),
            stage: Stage::Running,
            jobs: 0,
            entries: BTreeMap::new(),
            next_entry: 0,
            pages: BTreeMap::new(),
            next_page: 0,
            last_page_came: false,
            directories: 0,
            waiting_links: BTreeMap::new(),
            failed_linked: BTreeSet::new(),
            packs: BTreeMap::new(),
            regions: BTreeMap::new(),
            region_bytes: 0,
            open_files: 0,
            early_digests: 0,
            lanes: Lanes::new(options.lane_fetches_max, options.in_flight_bytes_max),
            ready: VecDeque::new(),
            stranded: Vec::new(),
            to_close: VecDeque::new(),
            finishing: 0,
            settled: Vec::new(),
            moved: 0,
            mirror: Mirror::Idle,
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
            Input::Placed {
                page,
                entries,
                directories,
            } => self.placed(page, entries, directories),
            Input::Prepared { entry, result } => self.prepared(entry, result),
            Input::Allocated {
                entry,
                region,
                result,
            } => self.allocated(entry, region, result),
            Input::Proved {
                entry,
                region,
                result,
            } => self.proved(entry, region, result),
            Input::Compared {
                entry,
                region,
                result,
            } => self.compared(entry, region, result),
            Input::Landed { token, result } => self.landed(token, result),
            Input::PackStored { region, results } => self.pack_stored(region, results),
            Input::Published { entry, result } => self.published(entry, result),
            Input::Removed(removals) => {
                self.removed(removals);
                Ok(())
            }
            Input::Mirrored { more } => self.mirrored(more),
            Input::Linked { entry, result } => self.linked(entry, result),
            Input::DirectoriesSettled(directories) => self.directories_settled(directories),
            Input::LaneUp { lane, rail } => {
                self.lanes.up(lane, rail);
                self.ready.extend(self.stranded.drain(..));
                Ok(())
            }
            Input::LaneDown { lane } => {
                self.lanes.down(lane);
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

    /// Whether the sender keeps anything readable for us: as long as it does, it must hear of us.
    pub fn holds_regions(&self) -> bool {
        matches!(self.stage, Stage::Running) && !self.regions.is_empty()
    }

    fn message(&mut self, message: Message) -> Result<(), Fault> {
        match message {
            Message::Failed(fault) => {
                self.end(fault, false);
                Ok(())
            }
            // The peer may not know yet that the run ends here.
            _ if self.is_ending() => Ok(()),
            Message::Manifest(page) => self.manifest(page),
            Message::Grant(grant) => self.grant(grant),
            Message::Digests(digests) => self.digests(&digests),
            Message::EntryFailed { entry, fault } => self.entry_failed(entry, fault),
            Message::Closed(answers) => self.closed(&answers),
            Message::Finished => self.finished(),
            _ => Err(protocol("a sender does not say this")),
        }
    }

    fn finished(&mut self) -> Result<(), Fault> {
        if !matches!(self.stage, Stage::Finishing) {
            return Err(protocol("Finished without Finish"));
        }
        self.stage = Stage::Mirroring;
        if !self.begin_mirror() {
            self.conclude_well();
        }
        Ok(())
    }

    fn conclude_well(&mut self) {
        self.stage = Stage::Ended;
        self.outputs
            .push_back(Output::Finished(std::mem::take(&mut self.ledger)));
    }

    /// Does what has become possible.
    fn advance(&mut self) {
        match self.stage {
            Stage::Ended => return,
            Stage::Ending { .. } => return self.conclude(),
            Stage::Running | Stage::Finishing | Stage::Mirroring => {}
        }
        self.post_fetches();
        self.start_closes();
        self.flush_moved();
        self.outbox.flush(&mut self.outputs);
        self.tell_storage();
        let idle = self.jobs == 0 && self.last_page_came && self.pages.is_empty();
        if !idle || !matches!(self.stage, Stage::Running) {
            return;
        }
        if self.entries.is_empty() {
            if self.options.tell_removals && self.begin_mirror() {
                return;
            }
            let finish = Message::Finish(self.ledger.carried);
            self.outputs.push_back(Output::Send(finish));
            self.stage = Stage::Finishing;
        } else {
            // Nothing can come any more that would settle them.
            self.end(protocol("the manifest did not end its directories"), true);
            self.conclude();
        }
    }

    /// Settled entries that storage must hear of.
    fn tell_storage(&mut self) {
        if !self.settled.is_empty() {
            let settled = std::mem::take(&mut self.settled);
            self.start_job(Output::Settled(settled));
        }
    }

    fn flush_moved(&mut self) {
        if self.moved > 0 {
            let bytes = std::mem::take(&mut self.moved);
            self.outputs
                .push_back(Output::Event(Event::Moved { bytes }));
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

    /// Whether the run was cut short: nothing new is to be begun.
    pub fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Ending { .. } | Stage::Ended)
    }

    /// Cuts the run short. Fetches and jobs in flight are waited for; the first reason stands.
    fn end(&mut self, fault: Fault, tell_peer: bool) {
        if self.is_ending() {
            return;
        }
        self.stage = Stage::Ending { fault, tell_peer };
        self.ready.clear();
        self.stranded.clear();
    }

    /// Once nothing is in flight: give up what is unsettled, and say so.
    fn conclude(&mut self) {
        if !self.lanes.is_idle() || self.jobs > 0 {
            return;
        }
        self.flush_moved();
        self.give_up_all();
        self.tell_storage();
        if self.jobs > 0 {
            return;
        }
        let Stage::Ending { fault, tell_peer } = std::mem::replace(&mut self.stage, Stage::Ended)
        else {
            return;
        };
        if tell_peer {
            // What is durable is acknowledged even so; nothing else matters any more.
            let settled = std::mem::take(&mut self.outbox.settled);
            self.outbox = Outbox {
                settled,
                ..Outbox::default()
            };
            self.outbox.flush(&mut self.outputs);
            self.outputs
                .push_back(Output::Send(Message::Failed(fault.clone())));
        }
        let ledger = std::mem::take(&mut self.ledger);
        self.outputs.push_back(Output::Failed { fault, ledger });
    }
}
