//! The voice for programs: one JSON object a line.
//!
//! Every line has `v` (the format's version), `seq` (ascending from 0), `time` (RFC 3339),
//! `transfer_id` (null outside transfers) and `type`. The last line is the `summary`, exactly once.
//! Fields may be added within a version; none is taken away or changes its meaning.

mod lines;

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rdcp::doctor::Diagnosis;
use rdcp::options::HashKind;
use rdcp::progress::EntryType;
use rdcp::progress::{Event, Progress};
use rdcp::wire::message::{Listed, ListedKind};
use rdcp::wire::{Fault, FaultCode};
use rdcp::{Error, ErrorKind, Fate, LeftBehind, Location, Status};
use serde::Serialize;

use super::status::{SessionBody, StatusBody};
use lines::{
    AboutBody, ByTransport, CheckBody, DiagnosisFields, DifferenceBody, DigestBody, EntryBody,
    EntryMore, ErrorBody, FaultFields, FiguresBody, LeftBody, Line, MeasuredBody, OfferBody,
    PathFields, PingBody, PlaceFields, ProgressBody, ReconnectBody, StartBody, SummaryBody, Totals,
    deleted_body, file_body, message,
};

use super::listing::{kind_name, timestamp};
use super::{Change, Difference, JsonTo, Measured, PingReport, Summary, causes, hash_name, hex};
use crate::escape;
use crate::exit::{End, ExitStatus};
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

    /// Where its lines go.
    pub(super) fn to(&self) -> JsonTo {
        self.to
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
                let kind = entry_type_name(*entry);
                self.put(io, kind, file_body(path, outcome, *len, location.as_ref()));
            }
            Event::Deleted {
                path,
                entry,
                is_planned,
            } => self.put(io, entry_type_name(*entry), deleted_body(path, *is_planned)),
            Event::Lost { reason } => {
                let body = ReconnectBody {
                    state: "lost",
                    message: Some(escape::text(reason)),
                    transport: None,
                    seconds: None,
                };
                self.put(io, "reconnect", body);
            }
            Event::Reconnected { transport, after } => {
                let body = ReconnectBody {
                    state: "connected",
                    message: None,
                    transport: Some(transport),
                    seconds: Some(after.as_secs_f64()),
                };
                self.put(io, "reconnect", body);
            }
            Event::Warning {
                path,
                fault,
                location,
            } => {
                let mut body = AboutBody {
                    place: PlaceFields::new(path, location.as_ref()),
                    fault: FaultFields::new(fault, location.as_ref()),
                };
                if fault.code == FaultCode::Special {
                    // Of an entry that was asked for by name this is a failure; here it is none.
                    body.fault.kind = "left_out";
                }
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
            bytes_by_transport: ByTransport {
                tcp: summary.carried.tcp,
                rdma: summary.carried.rdma,
            },
            hash: hash_name(summary.hash),
            dry_run: summary.dry_run,
            verified: summary.verified,
            published: summary.published,
            files: summary.files,
            unchanged: summary.unchanged,
            updated: summary.updated,
            deleted: summary.deleted,
            failed: summary.failed,
            warnings: summary.warnings,
            bytes: summary.bytes,
            bytes_moved: summary.bytes_moved,
            bytes_resumed: summary.bytes_resumed,
            reconnects: summary.reconnects,
            bytes_reused: summary.bytes_reused,
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
            kind: kind.name(),
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

    pub(super) fn changed(&mut self, io: &mut Io, change: Change, path: &[u8]) {
        let kind = match change {
            Change::Removed => "removed",
            Change::Made => "made",
        };
        self.put(io, kind, PathFields::new(path));
    }

    pub(super) fn left_behind(&mut self, io: &mut Io, path: &[u8], size: u64, left: &LeftBehind) {
        let known = (!left.destination.is_empty()).then_some(&left.destination);
        let body = LeftBody {
            path: PathFields::new(path),
            size,
            allocated: left.allocated,
            age_s: left.age_s,
            journal: left.journal,
            destination: known.map(|name| escape::path_whole(name)),
            destination_b64: known.map(|name| STANDARD.encode(name)),
            fate: match left.fate {
                Fate::Removed => "removed",
                Fate::Would => "would_remove",
                Fate::Kept => "kept",
            },
            reason: left.why.name(),
        };
        self.put(io, "leftover", body);
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

    /// The server as a whole, then a line for each session.
    pub(super) fn status(&mut self, io: &mut Io, server: &str, status: &Status) {
        self.put(io, "status", StatusBody::new(server, status));
        for session in &status.listed {
            self.put(io, "session", SessionBody::new(session));
        }
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
            kind: end.kind.map(ErrorKind::name),
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

fn entry_type_name(entry: EntryType) -> &'static str {
    match entry {
        EntryType::Directory => "directory",
        EntryType::Symlink => "symlink",
        _ => "file",
    }
}

/// An interrupted copy goes on where it was, so trying again makes sense.
fn is_retryable(kind: ErrorKind) -> bool {
    kind.is_retryable() || kind == ErrorKind::Cancelled
}

#[cfg(test)]
mod tests;
