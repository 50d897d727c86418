//! Listings as people read them: names, long lines, what one thing is, round trips.

use rdcp::doctor::Diagnosis;
use rdcp::units::Timestamp;
use rdcp::wire::message::{Fate, LeftBehind, Listed, ListedKind};

use super::{Measured, PingReport};
use crate::escape;
use crate::quantity::{self, bytes, counted, round_trip};

/// One harmless line with the name.
pub(crate) fn short(path: &[u8]) -> String {
    escape::path_whole(path)
}

/// Kind and mode, owner, size in bytes, time, name.
pub(crate) fn long(path: &[u8], listed: &Listed) -> String {
    let name = escape::path_whole(path);
    let target = match &listed.kind {
        ListedKind::Export { writable } => {
            return format!("{}  {name}", if *writable { "rw" } else { "ro" });
        }
        ListedKind::Symlink(target) => format!(" -> {}", escape::path_whole(target)),
        _ => String::new(),
    };
    format!(
        "{}  {:>5} {:>5}  {:>13}  {}  {name}{target}",
        mode_text(listed),
        listed.uid,
        listed.gid,
        listed.len,
        time_text(listed.mtime, "%Y-%m-%d %H:%M"),
    )
}

/// What one thing is, a property a line.
pub(crate) fn block(place: &str, listed: &Listed) -> String {
    let mut lines = vec![format!("  path: {}", escape::text(place))];
    lines.push(format!("  kind: {}", kind_name(&listed.kind)));
    if let ListedKind::Symlink(target) = &listed.kind {
        lines.push(format!("target: {}", escape::path_whole(target)));
    }
    if let ListedKind::Export { writable } = &listed.kind {
        lines.push(format!(
            "access: {}",
            if *writable {
                "read and write"
            } else {
                "read only"
            }
        ));
    } else {
        let exact = if listed.len < 1024 {
            String::new()
        } else {
            format!(" ({})", bytes(listed.len))
        };
        lines.push(format!("  size: {}{exact}", counted(listed.len, "byte")));
        lines.push(format!(
            "  mode: {:04o} ({})",
            listed.mode & 0o7777,
            mode_text(listed)
        ));
        lines.push(format!(" owner: {}:{}", listed.uid, listed.gid));
        lines.push(format!(
            " mtime: {}",
            time_text(listed.mtime, "%Y-%m-%d %H:%M:%S%.f %:z")
        ));
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// What a copy left behind: what becomes of it, bytes on disk, age, path, what it is of, and why.
pub(crate) fn left_behind(path: &[u8], left: &LeftBehind) -> String {
    let of = match &left.destination[..] {
        b"" => String::new(),
        name => format!(", of '{}'", escape::path_whole(name)),
    };
    format!(
        "{:<12}  {:>10}  {:>5}  {}{of}: {}",
        fate_text(left.fate),
        bytes(left.allocated),
        age_text(left.age_s),
        escape::path_whole(path),
        left.why.text(),
    )
}

fn fate_text(fate: Fate) -> &'static str {
    match fate {
        Fate::Removed => "removed",
        Fate::Would => "would remove",
        Fate::Kept => "kept",
    }
}

/// In the largest unit of which it has two.
fn age_text(age_s: u64) -> String {
    for (unit_s, unit) in [(86400, 'd'), (3600, 'h'), (60, 'm')] {
        if age_s >= 2 * unit_s {
            return format!("{}{unit}", age_s / unit_s);
        }
    }
    format!("{age_s}s")
}

/// What a listed thing is, in a word.
pub(crate) fn kind_name(kind: &ListedKind) -> &'static str {
    match kind {
        ListedKind::Export { .. } => "export",
        ListedKind::File => "file",
        ListedKind::Directory => "directory",
        ListedKind::Symlink(_) => "symlink",
        _ => "special",
    }
}

/// Findings about RDMA, each with the command that mends it.
pub(crate) fn diagnosis(diagnosis: &Diagnosis) -> String {
    let mut lines = Vec::new();
    for check in &diagnosis.checks {
        let about = escape::text(&check.about);
        let gap = if about.is_empty() { "" } else { " " };
        lines.push(format!(
            "{:<7}  {}{gap}{about}: {}",
            check.status.name(),
            check.topic.name(),
            escape::text(&check.text),
        ));
        if let Some(fix) = &check.fix {
            lines.push(format!("{:<7}  $ {}", "", escape::text(fix)));
        }
    }
    lines.push(if diagnosis.would_use_rdma {
        "a transfer would use RDMA".to_owned()
    } else {
        "a transfer would not use RDMA".to_owned()
    });
    lines.join("\n")
}

/// Round trips and transports.
pub(crate) fn ping(report: &PingReport) -> String {
    let mut lines = vec![
        format!(
            "{}: {}, level {}",
            escape::text(&report.server),
            escape::text(&report.software),
            report.level
        ),
        format!(
            "round trip: min {}, avg {} of {}",
            round_trip(report.shortest()),
            round_trip(report.average()),
            report.round_trips.len()
        ),
        format!(
            "data goes by {}: {}",
            report.transport,
            escape::text(&report.reason)
        ),
    ];
    let width = report
        .transports
        .iter()
        .map(|offer| offer.name.chars().count())
        .max()
        .unwrap_or(0)
        .min(16);
    lines.extend(report.transports.iter().map(|offer| {
        let available = if offer.available { "yes" } else { "no" };
        let line = format!(
            "{:<width$}  {available:<3}  {}",
            escape::text(&offer.name),
            escape::text(&offer.reason)
        );
        line.trim_end().to_owned()
    }));
    lines.join("\n")
}

/// What a transport brings, in a line.
pub(crate) fn measured(measured: &Measured) -> String {
    let transport = measured.transport;
    let report = match &measured.result {
        Ok(report) => report,
        Err(reason) => return format!("{transport:<5}  {}", escape::text(reason)),
    };
    let rate = quantity::rate(report.bytes, report.elapsed).unwrap_or_else(|| "-".to_owned());
    let over = match transport {
        "rdma" => escape::text(&report.reason),
        _ => counted(report.connections as u64, "connection"),
    };
    format!(
        "{transport:<5}  {rate:>12}  4 KiB in {} (half), {} (99 of 100)  {over}",
        round_trip(report.read_p50),
        round_trip(report.read_p99),
    )
}

fn mode_text(listed: &Listed) -> String {
    let mode = listed.mode;
    let kind = match listed.kind {
        ListedKind::File => '-',
        ListedKind::Directory | ListedKind::Export { .. } => 'd',
        ListedKind::Symlink(_) => 'l',
        _ => '?',
    };
    let mut text = String::from(kind);
    for (shift, set_bit, set_char) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & set_bit != 0, bits & 1 != 0) {
            (true, true) => set_char,
            (true, false) => set_char.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// In the zone of this machine; a time that no calendar holds is shown as its seconds.
fn time_text(time: Timestamp, format: &str) -> String {
    match timestamp(time) {
        Some(at) => at
            .to_zoned_datetime(jiff::tz::TimeZone::system())
            .strftime(format)
            .to_string(),
        None => format!("@{}", time.seconds),
    }
}

/// The library's time stamp as jiff's, if it is within its years.
pub(crate) fn timestamp(time: Timestamp) -> Option<jiff::Timestamp> {
    let nanoseconds = i32::try_from(time.nanoseconds).ok()?;
    jiff::Timestamp::new(time.seconds, nanoseconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdcp::client::BenchReport;
    use rdcp::wire::message::TransportOffer;
    use std::time::Duration;

    fn listed(kind: ListedKind, mode: u32) -> Listed {
        Listed {
            path: Vec::new(),
            kind,
            len: 4096,
            mode,
            uid: 1000,
            gid: 100,
            mtime: Timestamp {
                seconds: 0,
                nanoseconds: 5,
            },
            digest: None,
            fault: None,
            left: None,
        }
    }

    #[test]
    fn modes_look_as_in_ls() {
        for (kind, mode, text) in [
            (ListedKind::File, 0o644, "-rw-r--r--"),
            (ListedKind::Directory, 0o1777, "drwxrwxrwt"),
            (ListedKind::File, 0o6750, "-rwsr-s---"),
            (ListedKind::File, 0o4644, "-rwSr--r--"),
            (ListedKind::Symlink(b"x".to_vec()), 0o777, "lrwxrwxrwx"),
            (ListedKind::Special, 0, "?---------"),
        ] {
            assert_eq!(mode_text(&listed(kind, mode)), text);
        }
    }

    #[test]
    fn long_lines_stay_one_harmless_line() {
        let line = long(
            b"a\nb\x1b",
            &listed(ListedKind::Symlink(b"\xff\r".to_vec()), 0o777),
        );
        assert!(
            line.starts_with("lrwxrwxrwx   1000   100           4096  19"),
            "{line}"
        );
        assert!(line.ends_with("  a\\nb\\x1b -> \\xff\\r"), "{line}");
        assert_eq!(
            long(b"data", &listed(ListedKind::Export { writable: true }, 0)),
            "rw  data"
        );
    }

    #[test]
    fn what_was_left_behind_is_one_harmless_line() {
        let left = LeftBehind {
            destination: b"big\n.iso".to_vec(),
            age_s: 8 * 86400,
            allocated: 12 << 20,
            journal: true,
            fate: Fate::Would,
            why: rdcp::Why::Expired,
        };
        assert_eq!(
            left_behind(b"d/.rdcp-1.part", &left),
            "would remove    12.0 MiB     8d  d/.rdcp-1.part, of 'big\\n.iso': no copy went on with it in time"
        );
        let nameless = LeftBehind {
            destination: Vec::new(),
            age_s: 119,
            ..left
        };
        let line = left_behind(b"p", &nameless);
        assert!(line.contains("   119s  p: "), "{line}");
    }

    #[test]
    fn times_beyond_the_calendar_are_shown_as_seconds() {
        let time = Timestamp {
            seconds: i64::MAX,
            nanoseconds: u32::MAX,
        };
        assert_eq!(time_text(time, "%Y"), format!("@{}", i64::MAX));
    }

    #[test]
    fn a_thing_has_a_property_a_line() {
        let text = block("h:/e/x", &listed(ListedKind::File, 0o644));
        assert!(
            text.contains(
                "  kind: file\n  size: 4096 bytes (4.0 KiB)\n  mode: 0644 (-rw-r--r--)\n"
            )
        );
    }

    #[test]
    fn ping_tells_each_transport_with_its_reason() {
        let offer = |name: &str, available, reason: &str| TransportOffer {
            name: name.into(),
            available,
            reason: reason.into(),
        };
        let text = ping(&PingReport {
            server: "h:20471".into(),
            software: "rdcpd 0.1.0\x1b".into(),
            level: 1,
            round_trips: vec![Duration::from_micros(100), Duration::from_micros(300)],
            transport: "tcp".into(),
            reason: "no rdma: the server: no device\u{7}".into(),
            transports: vec![offer("rdma", false, "no device"), offer("tcp", true, "")],
        });
        assert_eq!(
            text,
            "h:20471: rdcpd 0.1.0\\x1b, level 1\nround trip: min 100 us, avg 200 us of 2\n\
             data goes by tcp: no rdma: the server: no device\\x07\n\
             rdma  no   no device\ntcp   yes"
        );
    }

    #[test]
    fn a_transport_is_measured_or_explained_in_a_line() {
        let measured = |transport, result| {
            measured(&Measured {
                server: "h:20471".into(),
                transport,
                result,
            })
        };
        assert_eq!(
            measured("rdma", Err("it is not there: no device\u{7}".into())),
            "rdma   it is not there: no device\\x07"
        );
        let report = BenchReport {
            transport: "tcp",
            reason: "tcp was asked for".into(),
            connections: 2,
            bytes: 3 << 30,
            elapsed: Duration::from_secs(2),
            reads: 9,
            read_p50: Duration::from_micros(85),
            read_p99: Duration::from_micros(1500),
        };
        assert_eq!(
            measured("tcp", Ok(report.clone())),
            "tcp       1.5 GiB/s  4 KiB in 85 us (half), 1.50 ms (99 of 100)  2 connections"
        );
        let rails = "rxe0:1 to rxe0:1 (RoCE v2, MTU 4096, 2 queue pairs)";
        let report = BenchReport {
            transport: "rdma",
            reason: rails.into(),
            ..report
        };
        assert!(measured("rdma", Ok(report)).ends_with(rails));
    }
}
