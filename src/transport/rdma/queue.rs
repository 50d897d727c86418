//! A connection's READs in their order: those that wait for memory, then those that the adapter has;
//! and whether one of these takes longer than any may.
//!
//! Nothing here knows verbs or has a clock: the time comes in. Memory is the queue pair's business.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::transport::ReadRequest;

/// How long a READ may be with the adapter. Whatever an adapter resends by itself is over long
/// before, where it gives up at all: some resend for ever.
const READ_PATIENCE: Duration = Duration::from_secs(30);

/// See the module's first paragraph.
pub(super) struct ReadQueue {
    depth: usize,
    waiting: VecDeque<ReadRequest>,
    posted: VecDeque<(u64, ReadRequest)>,
    /// Number of the next READ to be posted: what its completion carries.
    number_next: u64,
    /// When a READ last ended, or the first of those under way was posted.
    progress: Option<Instant>,
}

/// What a completion says of its READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All bytes are in memory.
    Done,
    /// The peer's adapter refused it.
    Refused,
    /// Another READ's failure took it along, or the path or an adapter failed: says nothing of the
    /// bytes.
    Lost,
}

/// What is to be done about a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Hand the bytes on.
    Landed(ReadRequest),
    /// Tell whoever asked; the connection is over.
    Refused(ReadRequest),
    /// The connection is over. Whose READs are lost is known to whoever posted them.
    Over,
}

/// A completion that belongs to no READ, or not to the first one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stray;

impl ReadQueue {
    pub(super) fn new(depth: usize) -> Self {
        Self {
            depth,
            waiting: VecDeque::with_capacity(depth),
            posted: VecDeque::with_capacity(depth),
            number_next: 0,
            progress: None,
        }
    }

    /// How many READs it takes now.
    pub(super) fn room(&self) -> usize {
        self.depth
            .saturating_sub(self.waiting.len() + self.posted.len())
    }

    /// READs that the adapter has.
    pub(super) fn under_way(&self) -> usize {
        self.posted.len()
    }

    pub(super) fn push(&mut self, read: ReadRequest) {
        debug_assert!(self.room() > 0 && read.len > 0);
        self.waiting.push_back(read);
    }

    /// The READ that is to be posted next, with the number to post it with.
    pub(super) fn next(&self) -> Option<(u64, ReadRequest)> {
        Some((self.number_next, *self.waiting.front()?))
    }

    /// Since when the adapter has had READs without ending any.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        self.progress.filter(|_| !self.posted.is_empty())
    }

    /// Whether by `now` none has ended for longer than any may take.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.waiting_since()
            .is_some_and(|since| now.saturating_duration_since(since) >= READ_PATIENCE)
    }

    /// That READ was posted.
    pub(super) fn posted(&mut self, now: Instant) {
        if let Some(read) = self.waiting.pop_front() {
            if self.posted.is_empty() {
                self.progress = Some(now);
            }
            self.posted.push_back((self.number_next, read));
            self.number_next += 1;
        }
    }

    /// The adapter said something of the READ with this number. It may only speak of the first one:
    /// READs of a queue pair end in order.
    pub(super) fn complete(
        &mut self,
        number: u64,
        outcome: Outcome,
        now: Instant,
    ) -> Result<Step, Stray> {
        match self.posted.front() {
            Some((first, _)) if *first == number => {}
            _ => return Err(Stray),
        }
        let (_, read) = self.posted.pop_front().ok_or(Stray)?;
        self.progress = Some(now);
        Ok(match outcome {
            Outcome::Done => Step::Landed(read),
            Outcome::Refused => Step::Refused(read),
            Outcome::Lost => Step::Over,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{RemoteKey, WorkRequestId};

    fn read(id: u64) -> ReadRequest {
        ReadRequest {
            id: WorkRequestId(id),
            key: RemoteKey(1),
            offset: 0,
            len: 4096,
        }
    }

    /// A full queue of this depth, of which so many READs are posted.
    fn full(depth: usize, posted: usize) -> ReadQueue {
        let mut queue = ReadQueue::new(depth);
        while queue.room() > 0 {
            let id = (depth - queue.room()) as u64;
            queue.push(read(id));
        }
        for number in 0..posted as u64 {
            assert_eq!(queue.next(), Some((number, read(number))));
            queue.posted(Instant::now());
        }
        queue
    }

    #[test]
    fn room_counts_what_waits_and_what_is_under_way() {
        let mut queue = full(3, 2);
        assert_eq!((queue.room(), queue.under_way()), (0, 2));
        assert_eq!(
            queue.complete(0, Outcome::Done, Instant::now()),
            Ok(Step::Landed(read(0)))
        );
        assert_eq!((queue.room(), queue.under_way()), (1, 1));
        queue.posted(Instant::now());
        assert_eq!((queue.next(), queue.under_way()), (None, 2));
        queue.posted(Instant::now());
        assert_eq!(queue.under_way(), 2, "nothing waited");
    }

    #[test]
    fn completions_out_of_order_or_of_nothing_are_strays() {
        let mut queue = full(2, 2);
        assert_eq!(queue.complete(1, Outcome::Done, Instant::now()), Err(Stray));
        assert_eq!(queue.complete(7, Outcome::Lost, Instant::now()), Err(Stray));
        assert_eq!(
            queue.complete(0, Outcome::Done, Instant::now()),
            Ok(Step::Landed(read(0)))
        );
        assert_eq!(queue.complete(0, Outcome::Done, Instant::now()), Err(Stray));
        assert_eq!(
            queue.complete(1, Outcome::Done, Instant::now()),
            Ok(Step::Landed(read(1)))
        );
        assert_eq!(queue.complete(2, Outcome::Done, Instant::now()), Err(Stray));
    }

    #[test]
    fn only_what_the_peer_refused_is_charged_to_its_read() {
        let mut queue = full(3, 3);
        assert_eq!(
            queue.complete(0, Outcome::Refused, Instant::now()),
            Ok(Step::Refused(read(0)))
        );
        assert_eq!(
            queue.complete(1, Outcome::Lost, Instant::now()),
            Ok(Step::Over)
        );
        assert_eq!(
            queue.complete(2, Outcome::Lost, Instant::now()),
            Ok(Step::Over)
        );
    }

    #[test]
    fn a_connection_is_overdue_when_nothing_ends_for_long() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut queue = ReadQueue::new(2);
        queue.push(read(0));
        assert!(!queue.is_overdue(at(1000)), "the adapter has none");
        queue.posted(at(0));
        queue.push(read(1));
        queue.posted(at(20));
        assert!(!queue.is_overdue(at(29)));
        assert!(queue.is_overdue(at(30)), "the first counts");
        // One ended in time, so the other has its own.
        queue.complete(0, Outcome::Done, at(25)).unwrap();
        assert!(!queue.is_overdue(at(54)));
        assert!(queue.is_overdue(at(55)));
        queue.complete(1, Outcome::Done, at(56)).unwrap();
        assert!(!queue.is_overdue(at(1000)), "all have ended");
        // What comes after a long rest is timed from its own beginning.
        queue.push(read(2));
        queue.posted(at(2000));
        assert_eq!(queue.waiting_since(), Some(at(2000)));
        assert!(!queue.is_overdue(at(2029)) && queue.is_overdue(at(2030)));
    }
}
