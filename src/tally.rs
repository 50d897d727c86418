//! Log lines that a peer can cause as often as it likes: one now and then, with how many there were.
//!
//! In: each time that there would be a line. Out: whether there is one now, and for how many. Pure;
//! what the line says is its writer's affair.

use std::time::{Duration, Instant};

/// Between two lines.
pub(crate) const TELL_PAUSE: Duration = Duration::from_secs(10);

/// Counts what was not told.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    untold: u64,
    told: Option<Instant>,
}

impl Tally {
    /// One more. If a line is due: how many it is about.
    pub(crate) fn count(&mut self, now: Instant) -> Option<u64> {
        self.untold += 1;
        let is_due = |told: Instant| now.saturating_duration_since(told) >= TELL_PAUSE;
        if !self.told.is_none_or(is_due) {
            return None;
        }
        self.told = Some(now);
        Some(self.take())
    }

    /// How many no line was about, for the last one.
    pub(crate) fn take(&mut self) -> u64 {
        std::mem::take(&mut self.untold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_at_once_and_then_one_for_many() {
        let begun = Instant::now();
        let mut tally = Tally::default();
        assert_eq!(tally.count(begun), Some(1));
        for _ in 0..20_000 {
            assert_eq!(tally.count(begun), None);
        }
        assert_eq!(tally.count(begun + TELL_PAUSE), Some(20_001));
        assert_eq!(tally.take(), 0);
        assert_eq!(tally.count(begun + TELL_PAUSE), None);
        assert_eq!(tally.take(), 1);
    }
}
