//! Sizes, rates and times as people read them.

use std::time::Duration;

/// `512 B`, `1.5 KiB`, `12.0 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    // Far beyond f64's 53 bits the rounding is invisible in three digits.
    #[allow(clippy::cast_precision_loss)]
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    // What would be shown as 1024.0 is one of the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Bytes per second; `None` if no time has passed.
pub(crate) fn rate(count: u64, elapsed: Duration) -> Option<String> {
    per_second(count, elapsed).map(|value| format!("{}/s", bytes(value)))
}

/// Whole bytes per second.
pub(crate) fn per_second(count: u64, elapsed: Duration) -> Option<u64> {
    let nanoseconds = elapsed.as_nanos();
    let value = (u128::from(count) * 1_000_000_000).checked_div(nanoseconds)?;
    Some(u64::try_from(value).unwrap_or(u64::MAX))
}

/// `0.4 s`, `2 min 05 s`, `3 h 07 min`.
pub(crate) fn duration(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", elapsed.as_secs_f64().min(59.9)),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// `0:07`, `12:34`, `1:02:03`: short enough for a bar.
pub(crate) fn clock(left: Duration) -> String {
    let seconds = left.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds % 3600 / 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// `1 file`, `3 files`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    let plural = match noun {
        "entry" => "entries".to_owned(),
        _ => format!("{noun}s"),
    };
    if count == 1 {
        format!("1 {noun}")
    } else {
        format!("{count} {plural}")
    }
}

/// `12.3 ms`, `85 us`: round trips.
pub(crate) fn round_trip(time: Duration) -> String {
    match time.as_micros() {
        micros @ 0..1000 => format!("{micros} us"),
        _ => format!("{:.2} ms", time.as_secs_f64() * 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (1 << 40, "1.0 TiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn rates_and_times() {
        assert_eq!(rate(3 << 20, Duration::from_secs(2)).unwrap(), "1.5 MiB/s");
        assert_eq!(rate(1, Duration::ZERO), None);
        assert_eq!(
            per_second(u64::MAX, Duration::from_nanos(1)),
            Some(u64::MAX)
        );
        assert_eq!(duration(Duration::from_millis(420)), "0.4 s");
        assert_eq!(duration(Duration::from_secs(125)), "2 min 05 s");
        assert_eq!(duration(Duration::from_secs(3600 * 3 + 420)), "3 h 07 min");
        assert_eq!(clock(Duration::from_secs(3723)), "1:02:03");
        assert_eq!(clock(Duration::from_secs(7)), "0:07");
        assert_eq!(round_trip(Duration::from_micros(85)), "85 us");
        assert_eq!(round_trip(Duration::from_micros(12_345)), "12.35 ms");
        assert_eq!(counted(1, "file"), "1 file");
        assert_eq!(counted(0, "entry"), "0 entries");
    }
}
