//! Messages to the sender, gathered while inputs are handled and sent as few full ones.

use std::collections::VecDeque;

use crate::engine::wanted::coarsen;
use crate::ids::{EntryId, RegionId};
use crate::limits::{BATCH_ENTRIES_MAX, WANT_RANGES_MAX};
use crate::wire::Message;
use crate::wire::message::{Outcome, Wanted};

use super::io::Output;

/// What is to be said at the next poll.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) want: Vec<(EntryId, Wanted)>,
    pub(super) recheck: Vec<(EntryId, u64)>,
    pub(super) release: Vec<RegionId>,
    pub(super) close: Vec<EntryId>,
    pub(super) settled: Vec<(EntryId, Outcome)>,
    pub(super) pages: u32,
    pub(super) region_bytes: u64,
}

impl Outbox {
    /// Regions are released before their file is closed, entries settled before their page's
    /// credit comes back: the sender frees what it holds before it is asked for more.
    pub(super) fn flush(&mut self, outputs: &mut VecDeque<Output>) {
        self.flush_want(outputs);
        let mut send = |message| outputs.push_back(Output::Send(message));
        for (entry, chunk) in self.recheck.drain(..) {
            send(Message::Recheck { entry, chunk });
        }
        batches(&mut self.release, |batch| send(Message::Release(batch)));
        batches(&mut self.close, |batch| send(Message::Close(batch)));
        batches(&mut self.settled, |batch| send(Message::Settled(batch)));
        if self.pages > 0 || self.region_bytes > 0 {
            let (pages, region_bytes) = (self.pages, self.region_bytes);
            (self.pages, self.region_bytes) = (0, 0);
            send(Message::Credit {
                pages,
                region_bytes,
            });
        }
    }

    fn flush_want(&mut self, outputs: &mut VecDeque<Output>) {
        let mut batch = Vec::new();
        let mut ranges = 0;
        for (entry, wanted) in self.want.drain(..) {
            let wanted = coarsen(wanted);
            let more = if let Wanted::Chunks(ranges) = &wanted {
                ranges.len()
            } else {
                0
            };
            if batch.len() == BATCH_ENTRIES_MAX || ranges + more > WANT_RANGES_MAX {
                outputs.push_back(Output::Send(Message::Want(std::mem::take(&mut batch))));
                ranges = 0;
            }
            ranges += more;
            batch.push((entry, wanted));
        }
        if !batch.is_empty() {
            outputs.push_back(Output::Send(Message::Want(batch)));
        }
    }
}

fn batches<T>(items: &mut Vec<T>, mut send: impl FnMut(Vec<T>)) {
    while !items.is_empty() {
        let count = items.len().min(BATCH_ENTRIES_MAX);
        send(items.drain(..count).collect());
    }
}
