//! Entries from their page until the receiver has settled them.

use crate::engine::wanted::Remaining;
use crate::engine::{Event, internal, protocol};
use crate::ids::{EntryId, RegionId};
use crate::limits::PACK_FILE_BYTES_MAX;
use crate::manifest::Version;
use crate::wire::message::{HashKind, Outcome, Wanted};
use crate::wire::{Fault, Message};

use super::{OpenedFile, Output, Sender};

/// An entry that was told.
#[derive(Debug)]
pub(super) struct Record {
    /// Listed length; `None` if it is no file.
    len: Option<u64>,
    pub(super) state: State,
    /// The receiver has settled it; it stays until nothing refers to it.
    pub(super) settled: bool,
    /// Jobs and regions that refer to it.
    pub(super) holders: usize,
    /// The receiver compares the chunks before this one with an older copy of its own, and waits for
    /// their values.
    pub(super) compared: u64,
    /// It counts among the open files.
    is_open: bool,
    /// Why this end could not serve it. The receiver says it again when it settles the entry, and
    /// then it would pass for the receiver's.
    fault: Option<Box<Fault>>,
}

/// How far an entry is.
#[derive(Debug)]
pub(super) enum State {
    /// Told; nothing was asked of it (or nothing ever is).
    Told,
    /// The receiver wants nothing of it.
    Declined,
    /// Wanted, and waits for a pack or to be opened.
    Wanted(Remaining),
    /// A pack is being filled with it.
    Packing(Remaining),
    /// It was granted in a pack.
    Packed,
    Opening(Remaining),
    Open(OpenFile),
    /// Its version is being checked, or was found changed (then the receiver will settle it).
    Checking,
    /// Its version was confirmed: it may be published.
    Confirmed,
    /// The receiver was told that it can't be had.
    Failed,
}

/// A big file that is served.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) version: Version,
    pub(super) len: u64,
    pub(super) window_bytes: u64,
    pub(super) remaining: Remaining,
    /// Regions that are out or on their way, ascending.
    pub(super) windows: Vec<RegionId>,
    /// The window that was made last has no data.
    pub(super) in_hole: bool,
    /// The grant that says so was sent.
    pub(super) last_granted: bool,
    /// SHA-256: the value of the chunk that was hashed last.
    pub(super) hashed: Option<(u64, [u8; 32])>,
}

impl Record {
    pub(super) fn new(len: Option<u64>) -> Self {
        Self {
            len,
            state: State::Told,
            settled: false,
            holders: 0,
            compared: 0,
            is_open: false,
            fault: None,
        }
    }
}

impl Sender {
    pub(super) fn want(&mut self, entry: EntryId, wanted: &Wanted) -> Result<(), Fault> {
        if self.options.dry_run {
            return Err(protocol("a want in a dry run"));
        }
        let record = self
            .entries
            .get_mut(&entry)
            .filter(|record| !record.settled);
        // A file that is read at random is wanted again and again, each time after all that was
        // wanted before has been granted.
        if let Some(Record {
            state: State::Open(file),
            ..
        }) = record
            && file.last_granted
            // States of SHA-256 come front to back, once.
            && self.options.hash != HashKind::Sha256
            && let Some(mut remaining) = Remaining::new(wanted)
        {
            remaining.clamp(self.options.chunk.count(file.len));
            if remaining.is_done() {
                return Err(protocol(
                    "a second want for chunks that are not in the file",
                ));
            }
            file.remaining = remaining;
            file.last_granted = false;
            if !self.open.contains(&entry) {
                self.open.push_back(entry);
            }
            return Ok(());
        }
        let record = self
            .entries
            .get_mut(&entry)
            .filter(|record| !record.settled);
        let Some((record, len)) = record.and_then(|record| {
            let len = record.len?;
            matches!(record.state, State::Told).then_some((record, len))
        }) else {
            return Err(protocol("a want for something else than an untouched file"));
        };
        if matches!(wanted, Wanted::Nothing) {
            record.state = State::Declined;
            return Ok(());
        }
        let Some(remaining) = Remaining::new(wanted) else {
            return Err(protocol("a want with malformed ranges"));
        };
        record.state = State::Wanted(remaining);
        if let Wanted::Compared(before) = wanted {
            record.compared = *before;
        }
        if len <= PACK_FILE_BYTES_MAX {
            self.small.push(std::cmp::Reverse((entry, len)));
            self.small_bytes += len;
        } else {
            self.big.push_back(entry);
        }
        Ok(())
    }

    /// Opens big files in the order of their wants.
    pub(super) fn open_files(&mut self) {
        // Files beyond these would only wait for credit, with their descriptors open.
        while self.open_files < self.options.open_files_max && self.open.len() < READY_FILES_MAX {
            let Some(entry) = self.big.pop_front() else {
                break;
            };
            let Some(record) = self.entries.get_mut(&entry) else {
                continue;
            };
            match std::mem::replace(&mut record.state, State::Failed) {
                State::Wanted(remaining) if !record.settled => {
                    record.state = State::Opening(remaining);
                    record.is_open = true;
                    record.holders += 1;
                    self.open_files += 1;
                    self.open.push_back(entry);
                    self.start_job(Output::Open { entry });
                }
                other => record.state = other,
            }
        }
    }

    pub(super) fn opened(
        &mut self,
        entry: EntryId,
        result: Result<OpenedFile, Fault>,
    ) -> Result<(), Fault> {
        self.job_done()?;
        let Some(record) = self.entries.get_mut(&entry) else {
            return Err(internal("a file was opened that was not asked for"));
        };
        match (std::mem::replace(&mut record.state, State::Failed), result) {
            (State::Opening(mut remaining), Ok(file)) => {
                remaining.clamp(self.options.chunk.count(file.len));
                record.state = State::Open(OpenFile {
                    version: file.version,
                    len: file.len,
                    window_bytes: file.window_bytes,
                    remaining,
                    windows: Vec::new(),
                    in_hole: false,
                    last_granted: false,
                    hashed: None,
                });
                let len = file.len;
                self.outputs
                    .push_back(Output::Event(Event::Started { entry, len }));
                self.grant_if_empty(entry);
            }
            (State::Opening(remaining), Err(fault)) => {
                record.state = State::Opening(remaining);
                self.fail_entry(entry, fault);
            }
            (other, _) => record.state = other,
        }
        self.let_go(entry);
        Ok(())
    }

    /// The entry can't be had: the receiver is told once. Regions of it that are granted stay until
    /// they are released, the others go at once.
    pub(super) fn fail_entry(&mut self, entry: EntryId, fault: Fault) {
        let ending = self.is_ending();
        let Some(record) = self.entries.get_mut(&entry) else {
            return;
        };
        match record.state {
            // What was granted in a pack or confirmed stays as it was.
            State::Packed | State::Checking | State::Confirmed | State::Failed => return,
            _ if record.settled || ending => return,
            _ => {}
        }
        record.state = State::Failed;
        record.fault = Some(Box::new(fault.clone()));
        self.outputs
            .push_back(Output::Send(Message::EntryFailed { entry, fault }));
        self.withdraw_ungranted(entry);
    }

    pub(super) fn close(&mut self, entry: EntryId) -> Result<(), Fault> {
        let record = self
            .entries
            .get_mut(&entry)
            .filter(|record| !record.settled);
        let Some(record) = record else {
            return Err(protocol(
                "Close of an entry that is settled or was not told",
            ));
        };
        match &record.state {
            // The receiver will hear why, or has by now.
            State::Failed => return Ok(()),
            State::Open(file) if file.last_granted => {}
            _ => return Err(protocol("Close before the last grant")),
        }
        let out = self
            .regions
            .values()
            .any(|region| region.is_granted_of(entry));
        if out {
            return Err(protocol("Close before the last release"));
        }
        if let Some(record) = self.entries.get_mut(&entry) {
            record.state = State::Checking;
            record.holders += 1;
        }
        self.start_job(Output::Check { entry });
        Ok(())
    }

    pub(super) fn checked(&mut self, entry: EntryId, same: bool) -> Result<(), Fault> {
        self.job_done()?;
        let Some(record) = self.entries.get_mut(&entry) else {
            return Err(internal("a file was checked that was not asked for"));
        };
        if same {
            record.state = State::Confirmed;
        }
        self.open_files -= usize::from(std::mem::replace(&mut record.is_open, false));
        if !record.settled {
            self.closed.push((entry, same));
        }
        self.let_go(entry);
        Ok(())
    }

    pub(super) fn settled(&mut self, entry: EntryId, outcome: Outcome) -> Result<(), Fault> {
        let record = self
            .entries
            .get_mut(&entry)
            .filter(|record| !record.settled);
        let Some(record) = record else {
            return Err(protocol("an entry is settled twice or was not told"));
        };
        let allowed = match (&outcome, &record.state) {
            (Outcome::Failed(_), _) => true,
            (Outcome::Planned(_), State::Told) => self.options.dry_run,
            (Outcome::Planned(_), _) => false,
            _ if self.options.dry_run => false,
            (_, State::Told | State::Declined) => true,
            // A file that was compared may turn out to have been there.
            (_, State::Packed | State::Confirmed) => true,
            (Outcome::Published { .. } | Outcome::Unchanged | Outcome::Updated, _) => false,
        };
        if !allowed {
            return Err(protocol(
                "an outcome that the conversation so far does not allow",
            ));
        }
        record.settled = true;
        let outcome = match (outcome, record.fault.take()) {
            (Outcome::Failed(said), Some(own)) if said.code == own.code => {
                Outcome::Failed(match said.is_of_mixture() {
                    true => own.of_mixture(),
                    false => *own,
                })
            }
            (outcome, _) => outcome,
        };
        self.ledger.settle(entry, &outcome);
        let failed = match &outcome {
            Outcome::Failed(fault) if self.options.fail_early => Some(fault.clone()),
            _ => None,
        };
        self.outputs
            .push_back(Output::Event(Event::Done { entry, outcome }));
        self.withdraw_ungranted(entry);
        self.forget_if_free(entry);
        if let Some(fault) = failed {
            self.end(fault, true);
        }
        Ok(())
    }

    /// A job or region that referred to the entry is gone.
    pub(super) fn let_go(&mut self, entry: EntryId) {
        if let Some(record) = self.entries.get_mut(&entry) {
            record.holders -= 1;
        }
        self.forget_if_free(entry);
    }

    fn forget_if_free(&mut self, entry: EntryId) {
        let free = |record: &Record| record.settled && record.holders == 0;
        if self.entries.get(&entry).is_some_and(free)
            && let Some(record) = self.entries.remove(&entry)
        {
            self.open_files -= usize::from(record.is_open);
            self.outputs.push_back(Output::Forget { entry });
        }
    }

    /// The file if it is open and served.
    pub(super) fn open_file(&mut self, entry: EntryId) -> Option<&mut OpenFile> {
        let record = self
            .entries
            .get_mut(&entry)
            .filter(|record| !record.settled)?;
        match &mut record.state {
            State::Open(file) => Some(file),
            _ => None,
        }
    }
}

/// Open files that wait for their next window.
const READY_FILES_MAX: usize = 16;
