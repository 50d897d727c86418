//! Entries from their page until they are settled, and the page credit they hold.

use std::collections::{BTreeMap, VecDeque};

use crate::engine::wanted::{Remaining, coarsen};
use crate::engine::{Event, internal, protocol};
use crate::ids::{EntryId, RegionId};
use crate::limits::{DEPTH_MAX, PAGE_ITEMS_MAX};
use crate::manifest::{Entry, EntryKind, Item, Note, Place};
use crate::wire::message::{HashKind, ManifestPage, Outcome, Wanted};
use crate::wire::{Fault, FaultCode};

use super::file::{File, Phase};
use super::{FINISHING_MAX, Output, Placed, Published, Receiver};

/// Failed files that hard links may still come to; more of them end the run, as the links could
/// not be told from those to good files.
const FAILED_LINKED_MAX: usize = 64 << 10;

/// Most unsettled directories per page of credit. An honest walk is depth first, so each unsettled
/// page keeps at most its own directories and their ancestors; twice that, as storage settles
/// directories a moment after their page's credit came back.
const DIRECTORIES_PER_PAGE_MAX: usize = 2 * (DEPTH_MAX + PAGE_ITEMS_MAX);

/// A page with unsettled entries.
#[derive(Debug)]
pub(super) struct Page {
    unsettled: usize,
    placed: bool,
}

/// An unsettled entry.
#[derive(Debug)]
pub(super) struct Record {
    page: u64,
    /// Hard links to it may come.
    linked: bool,
    pub(super) state: State,
}

/// What is being done about an unsettled entry.
#[derive(Debug)]
pub(super) enum State {
    /// Storage looks at its page.
    Placing,
    /// A file that is wanted or comes in windows.
    File(Box<File>),
    /// A file of this pack.
    Packed(RegionId),
    /// A hard link whose first name is not settled.
    LinkWaiting,
    /// A hard link that storage makes.
    Linking,
    /// A directory with something outstanding below it.
    Directory,
}

impl Receiver {
    pub(super) fn manifest(&mut self, page: ManifestPage) -> Result<(), Fault> {
        if self.pages.len() >= self.options.pages_credit as usize {
            return Err(protocol("a manifest page without credit"));
        }
        if self.last_page_came || page.items.len() > PAGE_ITEMS_MAX {
            return Err(protocol(
                "a manifest page after the last one, or one too large",
            ));
        }
        // It would hold no credit, so nothing would bound how many come.
        if page.items.is_empty() && !page.last {
            return Err(protocol("a manifest page that tells nothing"));
        }
        let number = self.next_page;
        self.next_page += 1;
        self.last_page_came = page.last;
        let (mut unsettled, mut bytes) = (0, 0_u64);
        let mut skipped = Vec::new();
        for item in &page.items {
            match item {
                Item::Entry(entry) => {
                    self.tell(entry, number)?;
                    unsettled += 1;
                    if let EntryKind::File { len, .. } = entry.kind {
                        bytes = bytes.saturating_add(len);
                    }
                }
                Item::Note(note @ Note::Skipped { .. }) => skipped.push(note.clone()),
                Item::Note(_) => {}
            }
        }
        self.ledger.told += unsettled as u64;
        let told = Event::Told {
            entries: unsettled as u64,
            bytes,
            last: page.last,
        };
        self.outputs.push_back(Output::Event(told));
        if page.items.is_empty() {
            return Ok(());
        }
        self.pages.insert(
            number,
            Page {
                unsettled,
                placed: false,
            },
        );
        self.start_job(Output::Place {
            page: number,
            items: page.items,
        });
        // After the page itself, so that whoever learns names from it can say where these are.
        skipped.iter().for_each(|note| self.note(note));
        Ok(())
    }

    fn tell(&mut self, entry: &Entry, page: u64) -> Result<(), Fault> {
        if entry.id.0 < self.next_entry || entry.id.0 == u64::MAX {
            return Err(protocol("entries of a manifest are out of order"));
        }
        if matches!(&entry.place, Place::In(parent, _) if *parent >= entry.id) {
            return Err(protocol("an entry that lies in one told after it"));
        }
        let linked = match &entry.kind {
            EntryKind::File { linked, .. } => *linked,
            EntryKind::HardLink(to) if *to >= entry.id => {
                return Err(protocol("a hard link to an entry that was not told"));
            }
            EntryKind::Directory | EntryKind::Symlink(_) | EntryKind::HardLink(_) => false,
        };
        self.next_entry = entry.id.0 + 1;
        self.entries.insert(
            entry.id,
            Record {
                page,
                linked,
                state: State::Placing,
            },
        );
        Ok(())
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

    /// Refuses handles that no page has told.
    pub(super) fn check_told(&self, entry: EntryId) -> Result<(), Fault> {
        if entry.0 < self.next_entry {
            Ok(())
        } else {
            Err(protocol("an entry that no page has told"))
        }
    }

    /// The file behind the handle, if it is unsettled and not in a pack.
    pub(super) fn file(&mut self, entry: EntryId) -> Option<&mut File> {
        match &mut self.entries.get_mut(&entry)?.state {
            State::File(file) => Some(file),
            _ => None,
        }
    }

    pub(super) fn placed(
        &mut self,
        number: u64,
        placed: Vec<(EntryId, Placed)>,
        directories: Vec<(EntryId, Outcome)>,
    ) -> Result<(), Fault> {
        self.job_done()?;
        for (entry, placed) in placed {
            let record = self.entries.get_mut(&entry);
            let Some(record) = record.filter(|record| matches!(record.state, State::Placing))
            else {
                return Err(internal("storage placed an entry that it was not told"));
            };
            match placed {
                Placed::Settled(outcome) => {
                    self.settle(entry, outcome);
                }
                Placed::Fetch(wanted) => {
                    let wanted = coarsen(wanted);
                    let Some(remaining) = Remaining::new(&wanted) else {
                        return Err(internal("storage wants chunks that make no sense"));
                    };
                    let mut file = File::new(remaining);
                    if let (Wanted::Compared(before), true) =
                        (&wanted, self.options.hash != HashKind::None)
                    {
                        file.older = *before;
                    }
                    record.state = State::File(Box::new(file));
                    self.outbox.want.push((entry, wanted));
                }
                Placed::Link(to) => {
                    record.state = State::LinkWaiting;
                    self.link_after(entry, to);
                }
                Placed::Directory => {
                    record.state = State::Directory;
                    self.directories += 1;
                    if let Some(page) = self.pages.get_mut(&number) {
                        page.unsettled -= 1;
                    }
                }
            }
        }
        if let Some(page) = self.pages.get_mut(&number) {
            page.placed = true;
        }
        self.return_page(number);
        self.settle_directories(directories)?;
        let directories_max = self.options.pages_credit as usize * DIRECTORIES_PER_PAGE_MAX;
        if self.directories > directories_max {
            return Err(protocol("too many directories are not ended"));
        }
        Ok(())
    }

    pub(super) fn directories_settled(
        &mut self,
        directories: Vec<(EntryId, Outcome)>,
    ) -> Result<(), Fault> {
        self.job_done()?;
        self.settle_directories(directories)
    }

    fn settle_directories(&mut self, directories: Vec<(EntryId, Outcome)>) -> Result<(), Fault> {
        for (directory, outcome) in directories {
            let record = self.entries.get(&directory);
            if !record.is_some_and(|record| matches!(record.state, State::Directory)) {
                return Err(internal("storage finished a directory that was not placed"));
            }
            self.settle(directory, outcome);
        }
        Ok(())
    }

    pub(super) fn end_if(&mut self, fault: Option<Fault>) {
        if let Some(fault) = fault {
            self.end(fault, true);
        }
    }

    fn link_after(&mut self, link: EntryId, to: EntryId) {
        if self.failed_linked.contains(&to) {
            self.fail_link(link);
        } else if self.entries.contains_key(&to) {
            self.waiting_links.entry(to).or_default().push(link);
        } else {
            self.start_link(link, to);
        }
    }

    fn start_link(&mut self, link: EntryId, to: EntryId) {
        if self.is_ending() {
            return;
        }
        if let Some(record) = self.entries.get_mut(&link) {
            record.state = State::Linking;
            self.start_job(Output::Link { entry: link, to });
        }
    }

    fn fail_link(&mut self, link: EntryId) {
        self.settle(link, Outcome::Failed(link_fault()));
    }

    pub(super) fn linked(
        &mut self,
        entry: EntryId,
        result: Result<bool, Fault>,
    ) -> Result<(), Fault> {
        self.job_done()?;
        match result {
            Ok(true) => self.settle(
                entry,
                Outcome::Published {
                    bytes: 0,
                    digest: None,
                },
            ),
            Ok(false) => self.settle(entry, Outcome::Unchanged),
            Err(fault) => self.settle(entry, Outcome::Failed(fault)),
        }
        Ok(())
    }

    /// The entry is done with: account for it, tell the sender, go on with what waited for it.
    pub(super) fn settle(&mut self, entry: EntryId, outcome: Outcome) {
        let mut queue = VecDeque::from([(entry, outcome)]);
        while let Some((entry, outcome)) = queue.pop_front() {
            let Some(record) = self.entries.remove(&entry) else {
                continue;
            };
            self.forget_file(&record);
            let failed = match &outcome {
                Outcome::Failed(fault) => Some(fault.clone()),
                _ => None,
            };
            self.settle_links(entry, &record, failed.is_some(), &mut queue);
            self.ledger.settle(entry, &outcome);
            let event = Event::Done {
                entry,
                outcome: outcome.clone(),
            };
            self.outputs.push_back(Output::Event(event));
            self.outbox.settled.push((entry, outcome));
            match record.state {
                State::Directory => self.directories -= 1,
                State::Placing => self.leave_page(record.page),
                _ => {
                    self.settled.push(entry);
                    self.leave_page(record.page);
                }
            }
            if self.options.fail_early {
                self.end_if(failed);
            }
        }
    }

    fn settle_links(
        &mut self,
        entry: EntryId,
        record: &Record,
        failed: bool,
        queue: &mut VecDeque<(EntryId, Outcome)>,
    ) {
        if failed && record.linked {
            self.failed_linked.insert(entry);
            if self.failed_linked.len() > FAILED_LINKED_MAX {
                let text = "too many files with hard links failed; see the first failures";
                self.end(Fault::new(FaultCode::Storage, text), true);
            }
        }
        for link in self.waiting_links.remove(&entry).into_iter().flatten() {
            if failed {
                queue.push_back((link, Outcome::Failed(link_fault())));
            } else {
                self.start_link(link, entry);
            }
        }
    }

    /// Gives back what a settled file held in common accounts.
    fn forget_file(&mut self, record: &Record) {
        if let State::File(file) = &record.state {
            self.early_digests -= file.early.len();
            self.open_files -= usize::from(file.open);
        }
    }

    fn leave_page(&mut self, number: u64) {
        if let Some(page) = self.pages.get_mut(&number) {
            page.unsettled -= 1;
        }
        self.return_page(number);
    }

    fn return_page(&mut self, number: u64) {
        let done = |page: &Page| page.placed && page.unsettled == 0;
        if self.pages.get(&number).is_some_and(done) {
            self.pages.remove(&number);
            self.outbox.pages += u32::from(!self.last_page_came);
        }
    }

    pub(super) fn entry_failed(&mut self, entry: EntryId, fault: Fault) -> Result<(), Fault> {
        self.check_told(entry)?;
        let Some(record) = self.entries.get_mut(&entry) else {
            // It failed or was settled here while the sender's word was under way.
            return Ok(());
        };
        match &record.state {
            State::File(file) => {
                // A published file is as it was granted, whatever became of the source since.
                if !matches!(file.phase, Phase::Publishing) {
                    self.fail_file(entry, fault);
                }
                Ok(())
            }
            _ => Err(protocol(
                "the failure of an entry that was not wanted or came in a pack",
            )),
        }
    }

    /// The file fails. What is in flight for it is waited for.
    pub(super) fn fail_file(&mut self, entry: EntryId, fault: Fault) {
        let Some(file) = self.file(entry) else { return };
        match file.phase {
            Phase::Failing(_) => return,
            Phase::Closing | Phase::Publishing => self.finishing -= 1,
            Phase::Fetching | Phase::Settling => {}
        }
        if let Some(file) = self.file(entry) {
            file.phase = Phase::Failing(match file.in_place {
                true => fault.of_mixture(),
                false => fault,
            });
        }
        self.drain(entry);
    }

    /// Settles a failed file once nothing is in flight for it.
    pub(super) fn drain(&mut self, entry: EntryId) {
        let Some(file) = self.file(entry) else { return };
        let Phase::Failing(fault) = &file.phase else {
            return;
        };
        if file.pending > 0 {
            return;
        }
        let fault = fault.clone();
        for window in std::mem::take(&mut file.windows) {
            self.release(window.region);
        }
        self.settle(entry, Outcome::Failed(fault));
    }

    /// Says Close for complete files, as many as may be closed and published at once.
    pub(super) fn start_closes(&mut self) {
        while self.finishing < FINISHING_MAX {
            let Some(entry) = self.to_close.pop_front() else {
                break;
            };
            let Some(file) = self.file(entry) else {
                continue;
            };
            if matches!(file.phase, Phase::Settling) {
                file.phase = Phase::Closing;
                self.finishing += 1;
                self.outbox.close.push(entry);
            }
        }
    }

    pub(super) fn closed(&mut self, answers: &[(EntryId, bool)]) -> Result<(), Fault> {
        for &(entry, same) in answers {
            self.check_told(entry)?;
            if !self.entries.contains_key(&entry) {
                continue;
            }
            let Some(file) = self.file(entry) else {
                return Err(protocol("Closed without Close"));
            };
            let was_open = match file.phase {
                Phase::Failing(_) | Phase::Closing => std::mem::replace(&mut file.open, false),
                _ => return Err(protocol("Closed without Close")),
            };
            if matches!(file.phase, Phase::Closing) {
                if same {
                    file.phase = Phase::Publishing;
                    file.pending += 1;
                    self.start_job(Output::Publish { entry });
                } else {
                    self.fail_file(entry, changed());
                }
            }
            self.open_files -= usize::from(was_open);
        }
        Ok(())
    }

    pub(super) fn published(
        &mut self,
        entry: EntryId,
        result: Result<Published, Fault>,
    ) -> Result<(), Fault> {
        self.job_done()?;
        let Some(file) = self.file(entry) else {
            return Err(internal("a file was published that was not complete"));
        };
        file.pending -= 1;
        match result {
            Ok(published) if matches!(file.phase, Phase::Publishing) => {
                let bytes = file.bytes;
                self.finishing -= 1;
                let outcome = match published {
                    Published::New { digest } => Outcome::Published { bytes, digest },
                    Published::Kept { updated } => kept(updated),
                };
                self.settle(entry, outcome);
            }
            // It failed meanwhile: that it has its name now does not make it right.
            Ok(_) => self.drain(entry),
            Err(fault) => self.fail_file(entry, fault),
        }
        Ok(())
    }

    /// The run was cut short: what is unsettled comes to nothing. Entries that had failed by
    /// themselves before are accounted for.
    pub(super) fn give_up_all(&mut self) {
        // Directories stay: storage may settle them when it hears of the rest.
        let directory = |record: &Record| matches!(record.state, State::Directory);
        let entries = std::mem::take(&mut self.entries);
        let (directories, others) = entries
            .into_iter()
            .partition(|(_, record)| directory(record));
        self.entries = directories;
        let others: BTreeMap<EntryId, Record> = others;
        for (entry, record) in others {
            if !matches!(record.state, State::Placing) {
                self.settled.push(entry);
            }
            if let State::File(file) = record.state
                && let Phase::Failing(fault) = file.phase
            {
                let outcome = Outcome::Failed(fault);
                self.ledger.settle(entry, &outcome);
                let event = Event::Done {
                    entry,
                    outcome: outcome.clone(),
                };
                self.outputs.push_back(Output::Event(event));
                self.outbox.settled.push((entry, outcome));
            }
        }
    }
}

/// How an entry ended whose content was there.
pub(super) fn kept(updated: bool) -> Outcome {
    match updated {
        true => Outcome::Updated,
        false => Outcome::Unchanged,
    }
}

/// The source is not what it was when it was granted.
pub(super) fn changed() -> Fault {
    Fault::new(
        FaultCode::SourceChanged,
        "the source changed while it was read; copy it again",
    )
}

fn link_fault() -> Fault {
    let text = "not linked: the file that this is another name of was not copied";
    Fault::new(FaultCode::NotFound, text)
}
