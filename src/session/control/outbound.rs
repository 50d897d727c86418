//! What waits to be written, and how much of it the process allows.
//!
//! In: encoded messages of one connection. Out: batches for its writing task, and a refusal once
//! more waits than the peer may leave unread. Each connection has a little of its own that nobody
//! can take away; beyond that all connections of the process borrow from one [`Budget`], and none
//! may hold more of it than is left. So peers that don't read share what there is among them, the
//! more of them the less for each, and always leave some for the next. Nothing here knows sockets
//! or what the bytes mean.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::limits::{OUTBOUND_BYTES_MAX, OUTBOUND_BYTES_OWN, OUTBOUND_BYTES_PROCESS_MAX};

static PROCESS: OnceLock<Budget> = OnceLock::new();

/// Bytes that may wait on all connections together, beside what each has of its own. Clones share
/// it.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    left: Arc<AtomicUsize>,
}

impl Budget {
    /// A budget of so many bytes.
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            left: Arc::new(AtomicUsize::new(bytes)),
        }
    }

    /// The one of this process.
    pub(super) fn of_process() -> Self {
        PROCESS
            .get_or_init(|| Self::new(OUTBOUND_BYTES_PROCESS_MAX))
            .clone()
    }

    fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// Takes as many as there are, at most `wanted`.
    fn take(&self, wanted: usize) -> usize {
        // It counts and guards no other memory, so no order is needed.
        let taken = |left: usize| Some(left - wanted.min(left));
        let before = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        before.map_or(0, |left| wanted.min(left))
    }

    fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The bytes that wait on one connection. What it has borrowed goes back when it is dropped.
#[derive(Debug)]
pub(super) struct Queue {
    bytes: Vec<u8>,
    /// The batch that is being written.
    writing: usize,
    borrowed: usize,
    budget: Budget,
}

impl Queue {
    pub(super) fn new(budget: Budget) -> Self {
        Self {
            bytes: Vec::new(),
            writing: 0,
            borrowed: 0,
            budget,
        }
    }

    /// Bytes that are not written yet.
    pub(super) fn waiting(&self) -> usize {
        self.bytes.len() + self.writing
    }

    /// Whether one message more may wait.
    pub(super) fn has_room(&self) -> bool {
        let beyond = self.waiting().saturating_sub(OUTBOUND_BYTES_OWN);
        // A message may overdraw by its own length, and is bounded.
        beyond == 0 || (self.waiting() <= OUTBOUND_BYTES_MAX && beyond <= self.budget.left())
    }

    /// Adds what `encode` appends.
    pub(super) fn append<E>(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let result = encode(&mut self.bytes);
        self.settle();
        result
    }

    /// Hands over all that waits, in exchange for an empty buffer.
    pub(super) fn swap(&mut self, batch: &mut Vec<u8>) {
        debug_assert!(batch.is_empty(), "the batch before is written");
        std::mem::swap(&mut self.bytes, batch);
        self.writing = batch.len();
    }

    /// The batch is written.
    pub(super) fn written(&mut self) {
        self.writing = 0;
        self.settle();
    }

    /// Forgets everything: nothing will be written any more.
    pub(super) fn abandon(&mut self) {
        self.bytes = Vec::new();
        self.writing = 0;
        self.settle();
    }

    /// Borrows, or gives back, for what waits now.
    fn settle(&mut self) {
        let beyond = self.waiting().saturating_sub(OUTBOUND_BYTES_OWN);
        if let Some(missing) = beyond.checked_sub(self.borrowed) {
            self.borrowed += self.budget.take(missing);
        } else {
            self.budget.give_back(self.borrowed - beyond);
            self.borrowed = beyond;
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.budget.give_back(self.borrowed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 64 << 10;

    /// Adds pieces until there is no room; how many bytes wait then.
    fn fill(queue: &mut Queue) -> usize {
        while queue.has_room() {
            let piece = |bytes: &mut Vec<u8>| -> Result<(), ()> {
                bytes.resize(bytes.len() + PIECE, 0);
                Ok(())
            };
            queue.append(piece).unwrap();
        }
        queue.waiting()
    }

    #[test]
    fn one_that_is_not_read_leaves_room_for_the_next() {
        let total = 8 << 20;
        let budget = Budget::new(total);
        let mut queues: Vec<_> = (0..5).map(|_| Queue::new(budget.clone())).collect();
        let mut last = usize::MAX;
        for queue in &mut queues {
            let held = fill(queue);
            assert!(held <= last, "a later one got more than an earlier one");
            assert!(held >= OUTBOUND_BYTES_OWN + PIECE, "{held}");
            last = held;
        }
        // The first has half of it, as it was alone.
        let first = queues[0].waiting() - OUTBOUND_BYTES_OWN;
        assert!(first.abs_diff(total / 2) <= PIECE, "{first}");
        drop(queues);
        assert_eq!(budget.left(), total);
    }

    #[test]
    fn with_nothing_left_each_has_its_own() {
        let budget = Budget::new(0);
        for _ in 0..3 {
            assert!(fill(&mut Queue::new(budget.clone())) > OUTBOUND_BYTES_OWN);
        }
        assert_eq!(budget.left(), 0);
    }

    #[test]
    fn no_connection_exceeds_its_maximum() {
        let mut queue = Queue::new(Budget::new(usize::MAX));
        let held = fill(&mut queue);
        assert!(held > OUTBOUND_BYTES_MAX && held <= OUTBOUND_BYTES_MAX + PIECE);
    }

    #[test]
    fn a_batch_counts_until_it_is_written() {
        let total = 4 << 20;
        let budget = Budget::new(total);
        let mut queue = Queue::new(budget.clone());
        let held = fill(&mut queue);
        let mut batch = Vec::new();
        queue.swap(&mut batch);
        assert_eq!((batch.len(), queue.waiting()), (held, held));
        assert!(!queue.has_room());
        queue.written();
        assert_eq!(queue.waiting(), 0);
        assert_eq!(budget.left(), total);
        fill(&mut queue);
        queue.abandon();
        assert_eq!(budget.left(), total);
    }
}
