//! The progress bar: one line on a terminal, drawn by indicatif, worded here.
//!
//! It never says 100 %: that is for the summary, which comes once everything is in place.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rdcp::progress::Progress;

use crate::quantity;

/// The rate is that of this long; shorter jumps, longer lags.
const RATE_WINDOW: Duration = Duration::from_secs(5);
const BAR_WIDTH: usize = 10;

/// A drawn bar. It disappears when dropped.
pub(super) struct Bar {
    drawn: ProgressBar,
    meter: Meter,
}

impl Bar {
    pub(super) fn new() -> Self {
        let drawn = ProgressBar::new_spinner();
        // The template is fixed and known to be sound; without it the default style shows.
        if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
            drawn.set_style(style);
        }
        Self {
            drawn,
            meter: Meter::default(),
        }
    }

    pub(super) fn update(&mut self, progress: Progress) {
        let rate = self.meter.rate(Instant::now(), progress.bytes_moved);
        self.drawn.set_message(line(progress, rate));
        self.drawn.tick();
    }

    /// Takes the bar away while something else is written.
    pub(super) fn suspend(&self, write: impl FnOnce()) {
        self.drawn.suspend(write);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.drawn.finish_and_clear();
    }
}

/// Bytes per second over the last seconds.
#[derive(Default)]
struct Meter {
    samples: VecDeque<(Instant, u64)>,
}

impl Meter {
    fn rate(&mut self, now: Instant, bytes: u64) -> Option<u64> {
        self.samples.push_back((now, bytes));
        while self.samples.len() > 2
            && self
                .samples
                .get(1)
                .is_some_and(|(at, _)| now.duration_since(*at) >= RATE_WINDOW)
        {
            self.samples.pop_front();
        }
        let (since, before) = self.samples.front()?;
        quantity::per_second(bytes.saturating_sub(*before), now.duration_since(*since))
    }
}

fn line(progress: Progress, rate: Option<u64>) -> String {
    let Progress {
        bytes_seen,
        bytes_done,
        files_seen,
        files_done,
        totals_known,
        ..
    } = progress;
    let rate = rate.filter(|rate| *rate > 0);
    let mut parts = Vec::new();
    if totals_known {
        let percent = percent(bytes_done, bytes_seen, files_done, files_seen);
        parts.push(format!("{} {percent:>2}%", bar(percent)));
        if bytes_done >= bytes_seen && bytes_seen > 0 {
            // What is left is to sync and to rename, and nobody knows how long that takes.
            parts.push("finishing".to_owned());
        } else if let Some(rate) = rate {
            let left = bytes_seen.saturating_sub(bytes_done).div_ceil(rate);
            let left = quantity::clock(Duration::from_secs(left));
            parts.push(format!("{left} left"));
        }
        parts.push(format!(
            "{} of {}",
            quantity::bytes(bytes_done),
            quantity::bytes(bytes_seen)
        ));
    } else {
        parts.push(format!("{} so far", quantity::bytes(bytes_done)));
    }
    if let Some(rate) = rate {
        parts.push(format!("{}/s", quantity::bytes(rate)));
    }
    // A narrow terminal cuts at the end, so the order is that of what a waiting person asks.
    parts.push(if totals_known {
        format!("{files_done} of {}", quantity::counted(files_seen, "file"))
    } else {
        format!("{files_done} of {files_seen}+ files")
    });
    parts.join("  ")
}

/// 0 to 99. Bytes decide, unless there are none.
fn percent(bytes_done: u64, bytes_seen: u64, files_done: u64, files_seen: u64) -> u8 {
    let (done, total) = if bytes_seen > 0 {
        (bytes_done, bytes_seen)
    } else {
        (files_done, files_seen)
    };
    let percent = (u128::from(done) * 100)
        .checked_div(u128::from(total))
        .unwrap_or(0);
    u8::try_from(percent.min(99)).unwrap_or(99)
}

fn bar(percent: u8) -> String {
    let full = usize::from(percent) * BAR_WIDTH / 100;
    format!(
        "[{}>{}]",
        "=".repeat(full),
        " ".repeat(BAR_WIDTH - 1 - full)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(files: (u64, u64), bytes: (u64, u64), totals_known: bool) -> Progress {
        let mut progress = Progress::default();
        (progress.files_done, progress.files_seen) = files;
        (progress.bytes_done, progress.bytes_seen) = bytes;
        progress.totals_known = totals_known;
        progress
    }

    #[test]
    fn the_bar_never_says_it_is_done() {
        for done in [0, 1, 50, 99, 100, 101] {
            let shown = line(progress((1, 1), (done, 100), true), Some(10));
            assert!(!shown.contains("100%"), "{shown}");
            assert!(bar(percent(done, 100, 1, 1)).len() == BAR_WIDTH + 2);
        }
        assert_eq!(percent(0, 0, 0, 0), 0);
        assert_eq!(percent(u64::MAX, u64::MAX, 1, 1), 99);
    }

    #[test]
    fn totals_are_promised_only_when_known() {
        let shown = line(progress((3, 9), (3 << 20, 9 << 20), false), Some(1 << 20));
        assert_eq!(shown, "3.0 MiB so far  1.0 MiB/s  3 of 9+ files");
        let shown = line(progress((3, 9), (3 << 20, 9 << 20), true), Some(1 << 20));
        assert_eq!(
            shown,
            "[===>      ] 33%  0:06 left  3.0 MiB of 9.0 MiB  1.0 MiB/s  3 of 9 files"
        );
        let shown = line(progress((8, 9), (9 << 20, 9 << 20), true), Some(1 << 20));
        assert_eq!(
            shown,
            "[=========>] 99%  finishing  9.0 MiB of 9.0 MiB  1.0 MiB/s  8 of 9 files"
        );
        // The longest that there may be: 80 columns hold all but the number of files.
        let (total, done) = (1023 << 40, 1000 << 40);
        let shown = line(
            progress((999_999, 1_000_000), (done, total), true),
            Some(1000 << 20),
        );
        let kept: String = shown.chars().take(80).collect();
        assert!(
            kept.contains(" left ") && kept.contains("1000.0 MiB/s"),
            "{kept}"
        );
    }

    #[test]
    fn the_rate_forgets_what_is_long_ago() {
        let mut meter = Meter::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(meter.rate(at(0), 0), None);
        assert_eq!(meter.rate(at(2), 200), Some(100));
        for second in 3..20 {
            meter.rate(at(second), 200);
        }
        assert_eq!(meter.rate(at(20), 200), Some(0));
        assert!(meter.samples.len() < 10);
    }
}
