//! A bound on how fast a run reads: `TransferOptions::bytes_per_s`.
//!
//! In: the moment, and how many bytes somebody is about to ask for. Out: whether now is the time. The
//! receiver drives, so it is the one place where a rate can be kept in both directions and over every
//! transport: bytes that nobody asks for do not travel. What is counted is file content, and what is read
//! again; not frames, nor what the control connection says. It knows no fetches and no clocks.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// How late a timer may be without the rate suffering: what was not used within this is lost.
const SLACK: Duration = Duration::from_millis(50);

/// See the module's first paragraph.
#[derive(Debug)]
pub(super) struct Throttle {
    bytes_per_s: NonZeroU64,
    /// When all that was asked for will have come at this rate.
    free_at: Option<Instant>,
}

impl Throttle {
    pub(super) fn new(bytes_per_s: NonZeroU64) -> Self {
        Self {
            bytes_per_s,
            free_at: None,
        }
    }

    /// When the next bytes may be asked for, if that is after `now`.
    pub(super) fn wait_until(&self, now: Instant) -> Option<Instant> {
        self.free_at.filter(|at| *at > now)
    }

    /// So many bytes are asked for.
    pub(super) fn took(&mut self, now: Instant, bytes: u64) {
        let nanos =
            u128::from(bytes).saturating_mul(1_000_000_000) / u128::from(self.bytes_per_s.get());
        let lasts = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let begin = match self.free_at {
            Some(at) => now.checked_sub(SLACK).map_or(now, |late| at.max(late)),
            None => now,
        };
        self.free_at = Some(begin + lasts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_the_time_that_they_should_take() {
        let begin = Instant::now();
        let mut throttle = Throttle::new(NonZeroU64::new(1 << 20).expect("not 0"));
        assert_eq!(throttle.wait_until(begin), None);
        let mut now = begin;
        for _ in 0..16 {
            throttle.took(now, 256 << 10);
            now = throttle.wait_until(now).expect("a quarter of a second");
        }
        assert_eq!(now - begin, Duration::from_secs(4));
    }

    #[test]
    fn a_late_timer_is_made_up_for_and_a_pause_is_not() {
        let begin = Instant::now();
        let mut throttle = Throttle::new(NonZeroU64::new(1 << 20).expect("not 0"));
        throttle.took(begin, 1 << 20);
        // 20 ms late: the next one is due as if it had not been.
        throttle.took(begin + Duration::from_millis(1020), 1 << 20);
        assert_eq!(
            throttle.wait_until(begin + Duration::from_millis(1020)),
            Some(begin + Duration::from_secs(2))
        );
        // A minute later, there is no minute's worth of bytes to be had.
        let late = begin + Duration::from_secs(62);
        throttle.took(late, 1 << 20);
        assert_eq!(
            throttle.wait_until(late),
            Some(late + Duration::from_secs(1) - SLACK)
        );
    }
}
