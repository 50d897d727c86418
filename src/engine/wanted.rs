//! What is still to be granted of a file. Sender and receiver walk the same cursor, so they agree
//! on which window may come next and which one is the last.

use crate::limits::WANT_RANGES_MAX;
use crate::units::ChunkRange;
use crate::wire::message::Wanted;

/// Wanted chunks that no window has covered yet, ascending.
#[derive(Clone, Debug)]
pub(super) struct Remaining {
    /// Ascending, disjoint, none empty.
    ranges: Vec<ChunkRange>,
    /// The first of `ranges` with anything left.
    at: usize,
}

impl Remaining {
    /// All that `wanted` names; `None` if it names nothing or is malformed.
    pub(super) fn new(wanted: &Wanted) -> Option<Self> {
        let ranges = match wanted {
            Wanted::Nothing => return None,
            Wanted::All | Wanted::Compared(_) => vec![ChunkRange {
                start: 0,
                end: u64::MAX,
            }],
            Wanted::Chunks(ranges) => ranges.clone(),
        };
        let ascending = ranges.windows(2).all(|pair| pair[0].end <= pair[1].start);
        let filled = ranges.iter().all(|range| range.start < range.end);
        let bounded = !ranges.is_empty() && ranges.len() <= WANT_RANGES_MAX;
        (ascending && filled && bounded).then_some(Self { ranges, at: 0 })
    }

    /// The file turned out to have `count` chunks: what lies beyond is not wanted.
    pub(super) fn clamp(&mut self, count: u64) {
        self.ranges.retain_mut(|range| {
            range.end = range.end.min(count);
            range.start < range.end
        });
    }

    /// The next chunks, without a gap; `None` when all are covered.
    pub(super) fn peek(&self) -> Option<ChunkRange> {
        self.ranges.get(self.at).copied()
    }

    /// The first `count` of the next chunks are covered; never more than [`Self::peek`] tells.
    pub(super) fn advance(&mut self, count: u64) {
        if let Some(range) = self.ranges.get_mut(self.at) {
            range.start = range.start.saturating_add(count).min(range.end);
            self.at += usize::from(range.start == range.end);
        }
    }

    /// Whether all is covered.
    pub(super) fn is_done(&self) -> bool {
        self.at == self.ranges.len()
    }
}

/// Makes `wanted` small enough for a message: the chunks between the last ranges come along.
pub(super) fn coarsen(wanted: Wanted) -> Wanted {
    match wanted {
        Wanted::Chunks(mut ranges) if ranges.len() > WANT_RANGES_MAX => {
            let end = ranges.last().map_or(0, |range| range.end);
            ranges.truncate(WANT_RANGES_MAX);
            if let Some(last) = ranges.last_mut() {
                last.end = end;
            }
            Wanted::Chunks(ranges)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> ChunkRange {
        ChunkRange { start, end }
    }

    #[test]
    fn windows_walk_through_the_ranges_and_end_with_the_file() {
        let mut left = Remaining::new(&Wanted::Chunks(vec![range(1, 3), range(5, 90)])).unwrap();
        left.clamp(7);
        assert_eq!(left.peek(), Some(range(1, 3)));
        left.advance(1);
        assert_eq!(left.peek(), Some(range(2, 3)));
        left.advance(1);
        assert_eq!(left.peek(), Some(range(5, 7)));
        left.advance(2);
        assert!(left.is_done());
        assert_eq!(left.peek(), None);
    }

    #[test]
    fn an_empty_file_has_nothing_left_at_once() {
        let mut left = Remaining::new(&Wanted::All).unwrap();
        left.clamp(0);
        assert!(left.is_done());
    }

    #[test]
    fn malformed_ranges_are_refused() {
        for bad in [
            vec![],
            vec![range(3, 3)],
            vec![range(3, 2)],
            vec![range(0, 4), range(3, 5)],
            vec![range(4, 5), range(0, 1)],
        ] {
            assert!(Remaining::new(&Wanted::Chunks(bad)).is_none());
        }
        assert!(Remaining::new(&Wanted::Nothing).is_none());
    }

    #[test]
    fn too_many_ranges_become_fewer_that_cover_them() {
        let many: Vec<_> = (0..WANT_RANGES_MAX as u64 + 9)
            .map(|n| range(2 * n, 2 * n + 1))
            .collect();
        let end = many.last().unwrap().end;
        let Wanted::Chunks(few) = coarsen(Wanted::Chunks(many)) else {
            panic!("still chunks")
        };
        assert_eq!(few.len(), WANT_RANGES_MAX);
        assert_eq!(few.last().unwrap().end, end);
    }
}
