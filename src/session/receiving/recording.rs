//! The driver's side of going on: journals while files are under way, what is kept of an interrupted
//! run, and what an earlier one left.
//!
//! In: what the engine orders of such files, time that passes. Out: jobs for the workers. What is
//! recorded, and how it is proved, is [`resuming`](crate::session::resuming)'s affair.

use std::sync::Arc;

use super::{Done, Driver, write_fault};
use crate::engine::receiver::{Input, Proof};
use crate::ids::{EntryId, RegionId};
use crate::session::resuming::prove_held;
use crate::units::ChunkIndex;
use crate::wire::{Fault, FaultCode};

impl Driver {
    /// These entries are done with. What the run was interrupted at stays, with its records.
    pub(super) fn settled(&mut self, entries: Vec<EntryId>) {
        let mut interrupted = Vec::new();
        for entry in &entries {
            if let Some(file) = self.files.remove(entry)
                && self.engine.is_ending()
                && let Some(part) = file.sink
            {
                interrupted.push((*entry, part, file.records));
            }
        }
        let sink = Arc::clone(&self.sink);
        let sync = self.sink.syncs();
        let goes_on = self.seat.peer.over().is_some();
        self.job(move || {
            let mut kept = Vec::with_capacity(interrupted.len());
            for (entry, part, records) in interrupted {
                records.finish(&part, sync, goes_on);
                kept.push(entry);
            }
            sink.keep(&kept);
            Done::Input(Input::DirectoriesSettled(sink.settled(&entries)))
        });
    }

    /// Looks which chunks of an earlier run are still what it had proved.
    pub(super) fn prove(
        &mut self,
        entry: EntryId,
        region: RegionId,
        chunks: Vec<(ChunkIndex, Proof)>,
    ) {
        let file = self.files.get(&entry);
        let part = file.and_then(|file| file.sink.clone().map(|part| (part, file.len)));
        let size = self.chunk;
        let path = self.watch.path(entry);
        self.job(move || {
            let result = match part {
                Some((part, len)) => {
                    prove_held(&part, len, size, &chunks).map_err(|error| write_fault(&path, error))
                }
                None => Err(Fault::new(FaultCode::Internal, "no part file is open")),
            };
            Done::Input(Input::Proved {
                entry,
                region,
                result,
            })
        });
    }

    /// Gives the journals what has waited for long enough.
    pub(super) fn record_all(&mut self) {
        let waiting = self.files.iter_mut();
        let due = waiting.filter_map(|(entry, file)| file.records.is_overdue().then_some(*entry));
        for entry in due.collect::<Vec<_>>() {
            self.record(entry);
        }
    }

    pub(super) fn record(&mut self, entry: EntryId) {
        let Some(file) = self.files.get_mut(&entry) else {
            return;
        };
        let Some(part) = file.sink.clone() else {
            return;
        };
        let records = file.records.take();
        let sync = self.sink.syncs();
        self.job(move || {
            part.record(&records, sync);
            Done::Recorded(entry)
        });
    }
}
