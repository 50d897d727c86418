//! The voice for programs: one JSON object a line.
//!
//! Every line has `v` (the format's version), `seq` (ascending from 0), `time` (RFC 3339),
//! `transfer_id` (null outside transfers) and `type`. The last line is the `summary`, exactly once.
//! Fields may be added within a version; none is taken away or changes its meaning.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rdcp::doctor::Diagnosis;
use rdcp::options::HashKind;
use rdcp::progress::EntryType;
use rdcp::progress::{Event, Progress};
use rdcp::wire::Fault;
use rdcp::wire::message::{Listed, ListedKind, Outcome};
use rdcp::{Error, ErrorKind, Location};
use serde::Serialize;

use super::listing::{kind_name, timestamp};
use super::{
    Difference, JsonTo, Measured, PingReport, Summary, causes, hash_name, hex, without_place,
};
use crate::escape;
use crate::exit::{End, ExitStatus, kind_name as error_kind_name};
use crate::io::Io;
use crate::quantity;

/// Version of the format.
const VERSION: u8 = 1;
/// Progress is told at most twice a second.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

pub(super) struct Json {
    to: JsonTo,
    seq: u64,
    transfer_id: Option<String>,
    started: bool,
    progress_told: Option<Instant>,
    summary: Option<Totals>,
    diagnosis: Option<DiagnosisFields>,
    ended: bool,
}

#[derive(Serialize)]
struct Line<'a, T: Serialize> {
    v: u8,
    seq: u64,
    time: String,
    transfer_id: Option<&'a str>,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    body: T,
}

/// A name that is bytes: readable, and exact.
#[derive(Serialize)]
struct PathFields {
    path: String,
    path_b64: String,
}

impl PathFields {
    fn new(path: &[u8]) -> Self {
        Self {
            path: escape::path_whole(path),
            path_b64: STANDARD.encode(path),
        }
    }
}

#[derive(Serialize)]
struct FaultFields {
    kind: &'static str,
    message: String,
    retryable: bool,
}

/// The place of a failure: its path on its side, or what is known of it.
#[derive(Serialize)]
struct PlaceFields {
    #[serde(flatten)]
    path: PathFields,
    side: Option<&'static str>,
}

impl PlaceFields {
    fn new(path: &[u8], location: Option<&Location>) -> Self {
        Self {
            path: PathFields::new(location.map_or(path, |location| &location.path)),
            side: location.map(|location| location.side.name()),
        }
    }
}

impl FaultFields {
    fn new(fault: &Fault, location: Option<&Location>) -> Self {
        let kind = ErrorKind::of_fault(fault.code);
        Self {
            kind: error_kind_name(kind),
            message: message(&fault.text, location),
            retryable: kind.is_retryable(),
        }
    }
}

fn message(text: &str, location: Option<&Location>) -> String {
    match location {
        Some(location) => escape::text(&without_place(text, &location.path)),
        None => escape::text(text),
    }
}

#[derive(Serialize)]
struct StartBody<'a> {
    transport: &'a str,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Serialize)]
struct ProgressBody {
    files_seen: u64,
    files_done: u64,
    bytes_seen: u64,
    bytes_done: u64,
    bytes_moved: u64,
    totals_known: bool,
}

#[derive(Serialize)]
struct FileBody {
    #[serde(flatten)]
    path: PathFields,
    outcome: &'static str,
    size: u64,
    bytes_moved: u64,
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<FileError>,
}

#[derive(Serialize)]
struct FileError {
    #[serde(flatten)]
    place: PlaceFields,
    #[serde(flatten)]
    fault: FaultFields,
}

#[derive(Serialize)]
struct AboutBody {
    #[serde(flatten)]
    place: PlaceFields,
    #[serde(flatten)]
    fault: FaultFields,
}

#[derive(Serialize)]
struct ErrorBody {
    #[serde(flatten)]
    place: Option<PlaceFields>,
    kind: &'static str,
    message: String,
    hint: Option<String>,
    exit_status: u8,
    retryable: bool,
}

#[derive(Serialize)]
struct EntryBody {
    #[serde(flatten)]
    path: PathFields,
    kind: &'static str,
    size: u64,
    #[serde(flatten)]
    more: EntryMore,
}

#[derive(Serialize)]
#[serde(untagged)]
enum EntryMore {
    Export {
        writable: bool,
    },
    Other {
        mode: String,
        uid: u32,
        gid: u32,
        mtime: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        target_b64: Option<String>,
    },
}

#[derive(Serialize)]
struct DigestBody {
    #[serde(flatten)]
    path: PathFields,
    hash: &'static str,
    digest: String,
    size: u64,
}

#[derive(Serialize)]
struct DifferenceBody {
    #[serde(flatten)]
    path: PathFields,
    difference: &'static str,
}

#[derive(Serialize)]
struct PingBody {
    server: String,
    software: String,
    level: u16,
    count: usize,
    min_us: u64,
    avg_us: u64,
    transport: String,
    reason: String,
    transports: Vec<OfferBody>,
}

#[derive(Serialize)]
struct MeasuredBody {
    server: String,
    transport: &'static str,
    available: bool,
    reason: String,
    #[serde(flatten)]
    figures: Option<FiguresBody>,
}

#[derive(Serialize)]
struct FiguresBody {
    connections: usize,
    bytes: u64,
    seconds: f64,
    bytes_per_second: u64,
    reads: usize,
    read_p50_us: f64,
    read_p99_us: f64,
}

#[derive(Serialize)]
struct OfferBody {
    name: String,
    available: bool,
    reason: String,
}

#[derive(Clone, Serialize)]
struct Totals {
    transport: String,
    reason: String,
    hash: &'static str,
    verified: bool,
    published: u64,
    files: u64,
    unchanged: u64,
    updated: u64,
    failed: u64,
    warnings: u64,
    bytes: u64,
    bytes_moved: u64,
    seconds: f64,
    data_ms: Option<f64>,
}

#[derive(Serialize)]
struct SummaryBody {
    exit_status: u8,
    kind: Option<&'static str>,
    retryable: bool,
    #[serde(flatten)]
    totals: Option<Totals>,
    #[serde(flatten)]
    diagnosis: Option<DiagnosisFields>,
}

#[derive(Clone, Serialize)]
struct DiagnosisFields {
    would_use_rdma: bool,
    checks: Vec<CheckBody>,
}

#[derive(Clone, Serialize)]
struct CheckBody {
    check: &'static str,
    about: String,
    status: &'static str,
    message: String,
    fix: Option<String>,
}

impl Json {
    pub(super) fn new(to: JsonTo) -> Self {
        Self {
            to,
            seq: 0,
            transfer_id: None,
            started: false,
            progress_told: None,
            summary: None,
            diagnosis: None,
            ended: false,
        }
    }

    pub(super) fn set_transfer(&mut self, transfer: &str) {
        self.transfer_id = Some(transfer.to_owned());
    }

    pub(super) fn event(&mut self, io: &mut Io, event: &Event) {
        match event {
            Event::Started {
                transfer,
                transport,
                reason,
                note,
            } => {
                self.set_transfer(&transfer.to_string());
                self.started = true;
                self.put(
                    io,
                    "start",
                    StartBody {
                        transport,
                        reason: escape::text(reason),
                        note: note.as_deref().map(escape::text),
                    },
                );
            }
            Event::Progress(progress) => self.progress(io, *progress),
            Event::Ended {
                path,
                entry,
                outcome,
                len,
                location,
            } => {
                let kind = match entry {
                    EntryType::Directory => "directory",
                    EntryType::Symlink => "symlink",
                    _ => "file",
                };
                self.put(io, kind, file_body(path, outcome, *len, location.as_ref()));
            }
            Event::Warning {
                path,
                fault,
                location,
            } => {
                let body = AboutBody {
                    place: PlaceFields::new(path, location.as_ref()),
                    fault: FaultFields::new(fault, location.as_ref()),
                };
                self.put(io, "warning", body);
            }
            _ => {}
        }
    }

    pub(super) fn progress(&mut self, io: &mut Io, progress: Progress) {
        // The first line of a copy is its start; until then there is nothing to tell.
        if !self.started {
            return;
        }
        let now = Instant::now();
        if self
            .progress_told
            .is_some_and(|told| now.duration_since(told) < PROGRESS_EVERY)
        {
            return;
        }
        self.progress_told = Some(now);
        let Progress {
            files_seen,
            bytes_seen,
            totals_known,
            files_done,
            bytes_done,
            bytes_moved,
            ..
        } = progress;
        let body = ProgressBody {
            files_seen,
            files_done,
            bytes_seen,
            bytes_done,
            bytes_moved,
            totals_known,
        };
        self.put(io, "progress", body);
    }

    pub(super) fn set_summary(&mut self, summary: &Summary) {
        self.summary = Some(Totals {
            transport: summary.transport.clone(),
            reason: escape::text(&summary.reason),
            hash: hash_name(summary.hash),
            verified: summary.verified,
            published: summary.published,
            files: summary.files,
            unchanged: summary.unchanged,
            updated: summary.updated,
            failed: summary.failed,
            warnings: summary.warnings,
            bytes: summary.bytes,
            bytes_moved: summary.bytes_moved,
            seconds: summary.elapsed.as_secs_f64(),
            data_ms: summary.data_elapsed.map(|data| data.as_secs_f64() * 1e3),
        });
    }

    pub(super) fn error(&mut self, io: &mut Io, error: &Error) {
        let kind = error.kind();
        let body = ErrorBody {
            place: error
                .location()
                .map(|location| PlaceFields::new(b"", Some(location))),
            kind: error_kind_name(kind),
            message: message(&causes(error), error.location()),
            hint: error.hint().map(escape::text),
            exit_status: ExitStatus::of(kind).code(),
            retryable: is_retryable(kind),
        };
        self.put(io, "error", body);
    }

    pub(super) fn entry_failed(&mut self, io: &mut Io, at: &Location, fault: &Fault) {
        let body = AboutBody {
            place: PlaceFields::new(b"", Some(at)),
            fault: FaultFields::new(fault, Some(at)),
        };
        self.put(io, "error", body);
    }

    pub(super) fn entry(&mut self, io: &mut Io, path: &[u8], listed: &Listed) {
        let target = match &listed.kind {
            ListedKind::Symlink(target) => Some(target),
            _ => None,
        };
        let more = match listed.kind {
            ListedKind::Export { writable } => EntryMore::Export { writable },
            _ => EntryMore::Other {
                mode: format!("{:04o}", listed.mode & 0o7777),
                uid: listed.uid,
                gid: listed.gid,
                mtime: timestamp(listed.mtime).map(|time| time.to_string()),
                target: target.map(|target| escape::path_whole(target)),
                target_b64: target.map(|target| STANDARD.encode(target)),
            },
        };
        let kind = kind_name(&listed.kind);
        let body = EntryBody {
            path: PathFields::new(path),
            kind,
            size: listed.len,
            more,
        };
        self.put(io, "entry", body);
    }

    pub(super) fn digest(
        &mut self,
        io: &mut Io,
        path: &[u8],
        digest: &[u8; 32],
        hash: HashKind,
        size: u64,
    ) {
        let path = PathFields::new(path);
        self.put(
            io,
            "digest",
            DigestBody {
                path,
                hash: hash_name(hash),
                digest: hex(digest),
                size,
            },
        );
    }

    pub(super) fn difference(&mut self, io: &mut Io, path: &[u8], difference: Difference) {
        let difference = match difference {
            Difference::MissingHere => "missing_here",
            Difference::MissingThere => "missing_there",
            Difference::Content => "content",
            Difference::Kind => "kind",
        };
        self.put(
            io,
            "difference",
            DifferenceBody {
                path: PathFields::new(path),
                difference,
            },
        );
    }

    pub(super) fn ping(&mut self, io: &mut Io, report: &PingReport) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let transports = report.transports.iter().map(|offer| OfferBody {
            name: escape::text(&offer.name),
            available: offer.available,
            reason: escape::text(&offer.reason),
        });
        let body = PingBody {
            server: escape::text(&report.server),
            software: escape::text(&report.software),
            level: report.level,
            count: report.round_trips.len(),
            min_us: micros(report.shortest()),
            avg_us: micros(report.average()),
            transport: report.transport.clone(),
            reason: escape::text(&report.reason),
            transports: transports.collect(),
        };
        self.put(io, "ping", body);
    }

    pub(super) fn measured(&mut self, io: &mut Io, measured: &Measured) {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let report = measured.result.as_ref();
        let reason = report.map_or_else(String::as_str, |report| &report.reason);
        let figures = report.ok().map(|report| FiguresBody {
            connections: report.connections,
            bytes: report.bytes,
            seconds: report.elapsed.as_secs_f64(),
            bytes_per_second: quantity::per_second(report.bytes, report.elapsed).unwrap_or(0),
            reads: report.reads,
            read_p50_us: micros(report.read_p50),
            read_p99_us: micros(report.read_p99),
        });
        let body = MeasuredBody {
            server: escape::text(&measured.server),
            transport: measured.transport,
            available: figures.is_some(),
            reason: escape::text(reason),
            figures,
        };
        self.put(io, "bench", body);
    }

    pub(super) fn set_diagnosis(&mut self, diagnosis: &Diagnosis) {
        let checks = diagnosis.checks.iter().map(|check| CheckBody {
            check: check.topic.name(),
            about: escape::text(&check.about),
            status: check.status.name(),
            message: escape::text(&check.text),
            fix: check.fix.as_deref().map(escape::text),
        });
        self.diagnosis = Some(DiagnosisFields {
            would_use_rdma: diagnosis.would_use_rdma,
            checks: checks.collect(),
        });
    }

    pub(super) fn finish(&mut self, io: &mut Io, end: End) {
        if self.ended {
            return;
        }
        let body = SummaryBody {
            exit_status: end.status.code(),
            kind: end.kind.map(error_kind_name),
            retryable: end.kind.is_some_and(is_retryable),
            totals: self.summary.take(),
            diagnosis: self.diagnosis.take(),
        };
        self.put(io, "summary", body);
        self.ended = true;
    }

    /// Nothing is put behind the summary.
    fn put(&mut self, io: &mut Io, kind: &'static str, body: impl Serialize) {
        if self.ended {
            return;
        }
        let line = Line {
            v: VERSION,
            seq: self.seq,
            time: jiff::Timestamp::now().to_string(),
            transfer_id: self.transfer_id.as_deref(),
            kind,
            body,
        };
        self.seq += 1;
        let stream = match self.to {
            JsonTo::Stdout => &mut io.stdout,
            JsonTo::Stderr => &mut io.stderr,
        };
        // Strings and numbers only: there is nothing that JSON could refuse.
        if let Ok(text) = serde_json::to_string(&line) {
            stream.line(&text);
        }
    }
}

fn file_body(path: &[u8], outcome: &Outcome, size: u64, location: Option<&Location>) -> FileBody {
    let error_path = path;
    let path = PathFields::new(path);
    let body = |outcome| FileBody {
        path,
        outcome,
        size,
        bytes_moved: 0,
        digest: None,
        error: None,
    };
    match outcome {
        Outcome::Published { bytes, digest } => FileBody {
            bytes_moved: *bytes,
            digest: digest.as_ref().map(hex),
            ..body("published")
        },
        Outcome::Unchanged => body("unchanged"),
        Outcome::Updated => body("updated"),
        Outcome::Failed(fault) => FileBody {
            error: Some(FileError {
                place: PlaceFields::new(error_path, location),
                fault: FaultFields::new(fault, location),
            }),
            ..body("failed")
        },
        _ => body("other"),
    }
}

/// An interrupted copy goes on where it was, so trying again makes sense.
fn is_retryable(kind: ErrorKind) -> bool {
    kind.is_retryable() || kind == ErrorKind::Cancelled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::tests::captured;
    use crate::output::Output;
    use rdcp::ids::TransferId;
    use rdcp::units::Timestamp;
    use rdcp::wire::FaultCode;
    use serde_json::Value;

    fn lines(run: impl FnOnce(&mut Output), to: JsonTo) -> Vec<Value> {
        let (io, out, err) = captured(true);
        let mut output = Output::new(io);
        output.use_json(to);
        run(&mut output);
        output.finish(End::of(ErrorKind::Busy));
        // A second end adds nothing, nor does what comes late.
        output.finish(End::DONE);
        output.error(&Error::new(ErrorKind::Internal, "late"));
        let (told, silent) = match to {
            JsonTo::Stdout => (out, err),
            JsonTo::Stderr => (err, out),
        };
        assert_eq!(silent.text(), "");
        told.text()
            .lines()
            .map(|line| serde_json::from_str(line).expect(line))
            .collect()
    }

    #[test]
    fn every_line_is_an_object_with_the_same_head_and_the_summary_is_last() {
        let lines = lines(
            |output| {
                output.begin_copy(false, true, false);
                // Before the start there is no progress.
                output.progress(Progress::default());
                output.event(&Event::Started {
                    transfer: TransferId([7; 16]),
                    transport: "tcp",
                    reason: "no\x1b device".into(),
                    note: None,
                });
                output.progress(Progress::default());
                output.progress(Progress::default());
                output.event(&Event::Ended {
                    path: b"a\xff\n".to_vec(),
                    entry: EntryType::File,
                    location: None,
                    outcome: Outcome::Published {
                        bytes: 5,
                        digest: Some([1; 32]),
                    },
                    len: 6,
                });
                output.event(&Event::Ended {
                    path: b"b".to_vec(),
                    entry: EntryType::Directory,
                    location: Some(Location::local(*b"/x/b")),
                    outcome: Outcome::Failed(Fault::new(FaultCode::Busy, "later")),
                    len: 0,
                });
                output.event(&Event::Warning {
                    path: Vec::new(),
                    fault: Fault::new(FaultCode::Special, "socket"),
                    location: None,
                });
                output.error(&Error::new(ErrorKind::Busy, "draining").with_hint("wait"));
            },
            JsonTo::Stdout,
        );
        let kinds = lines
            .iter()
            .map(|line| line["type"].as_str().unwrap())
            .collect::<Vec<_>>();
        // Two progress reports within half a second are one.
        assert_eq!(
            kinds,
            [
                "start",
                "progress",
                "file",
                "directory",
                "warning",
                "error",
                "summary"
            ]
        );
        for (seq, line) in lines.iter().enumerate() {
            assert_eq!(
                (&line["v"], &line["seq"]),
                (&Value::from(1), &Value::from(seq))
            );
            assert_eq!(line["transfer_id"], "07".repeat(16));
            line["time"]
                .as_str()
                .unwrap()
                .parse::<jiff::Timestamp>()
                .unwrap();
        }
        assert_eq!(lines[0]["reason"], "no\\x1b device");
        assert_eq!(lines[2]["path"], "a\\xff\\n");
        assert_eq!(lines[2]["path_b64"], STANDARD.encode(b"a\xff\n"));
        assert_eq!(lines[2]["digest"], "01".repeat(32));
        assert_eq!(lines[3]["error"]["kind"], "busy");
        assert_eq!(lines[3]["path"], "b");
        assert_eq!(lines[3]["error"]["path"], "/x/b");
        assert_eq!(lines[3]["error"]["side"], "local");
        assert_eq!(
            (&lines[5]["hint"], &lines[5]["exit_status"]),
            (&"wait".into(), &14.into())
        );
        let last = &lines[6];
        assert_eq!(
            (&last["exit_status"], &last["retryable"]),
            (&14.into(), &true.into())
        );
    }

    #[test]
    fn lines_step_aside_for_a_file_on_standard_output() {
        let lines = lines(|_| {}, JsonTo::Stderr);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0]["type"], "summary");
        assert_eq!(lines[0]["transfer_id"], Value::Null);
    }

    #[test]
    fn listings_are_exact() {
        let listed = Listed {
            path: b"l".to_vec(),
            kind: ListedKind::Symlink(b"\xff".to_vec()),
            len: u64::MAX,
            mode: 0o120_777,
            uid: 1,
            gid: 2,
            mtime: Timestamp {
                seconds: 1,
                nanoseconds: 500_000_000,
            },
            digest: None,
            fault: None,
        };
        let export = Listed {
            kind: ListedKind::Export { writable: true },
            ..listed.clone()
        };
        let lines = lines(
            |output| {
                output.entry(b"l", &listed, false);
                output.entry(b"data", &export, false);
                output.digest(b"f", &[0; 32], HashKind::Sha256, 3);
                output.difference(b"f", Difference::MissingHere);
            },
            JsonTo::Stdout,
        );
        assert_eq!(lines[0]["size"], u64::MAX);
        assert_eq!(lines[0]["mode"], "0777");
        assert_eq!(lines[0]["mtime"], "1970-01-01T00:00:01.5Z");
        assert_eq!(lines[0]["target_b64"], "/w==");
        assert_eq!(
            (&lines[1]["kind"], &lines[1]["writable"]),
            (&"export".into(), &true.into())
        );
        assert_eq!(lines[2]["hash"], "sha256");
        assert_eq!(lines[3]["difference"], "missing_here");
    }
}
