//! The fields of the lines, in the words of the format.
//!
//! Bytes from peers and file systems come in and are escaped here; texts with their meaning in
//! JSON come out. Nothing here writes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rdcp::wire::Fault;
use rdcp::wire::message::{Action, Outcome};
use rdcp::{ErrorKind, Location};
use serde::Serialize;

use super::super::{hex, without_place};
use crate::escape;

#[derive(Serialize)]
pub(super) struct Line<'a, T: Serialize> {
    pub(super) v: u8,
    pub(super) seq: u64,
    pub(super) time: String,
    pub(super) transfer_id: Option<&'a str>,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    #[serde(flatten)]
    pub(super) body: T,
}

/// A name that is bytes: readable, and exact.
#[derive(Serialize)]
pub(super) struct PathFields {
    pub(super) path: String,
    pub(super) path_b64: String,
}

impl PathFields {
    pub(super) fn new(path: &[u8]) -> Self {
        Self {
            path: escape::path_whole(path),
            path_b64: STANDARD.encode(path),
        }
    }
}

#[derive(Serialize)]
pub(super) struct FaultFields {
    pub(super) kind: &'static str,
    pub(super) message: String,
    pub(super) retryable: bool,
}

/// The place of a failure: its path on its side, or what is known of it.
#[derive(Serialize)]
pub(super) struct PlaceFields {
    #[serde(flatten)]
    pub(super) path: PathFields,
    pub(super) side: Option<&'static str>,
}

impl PlaceFields {
    pub(super) fn new(path: &[u8], location: Option<&Location>) -> Self {
        Self {
            path: PathFields::new(location.map_or(path, |location| &location.path)),
            side: location.map(|location| location.side.name()),
        }
    }
}

impl FaultFields {
    pub(super) fn new(fault: &Fault, location: Option<&Location>) -> Self {
        let kind = ErrorKind::of_fault(fault.class());
        Self {
            kind: kind.name(),
            message: message(&fault.text, location),
            retryable: kind.is_retryable(),
        }
    }
}

pub(super) fn message(text: &str, location: Option<&Location>) -> String {
    match location {
        Some(location) => escape::text(&without_place(text, &location.path)),
        None => escape::text(text),
    }
}

#[derive(Serialize)]
pub(super) struct StartBody<'a> {
    pub(super) transport: &'a str,
    pub(super) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

#[derive(Serialize)]
pub(super) struct ProgressBody {
    pub(super) files_seen: u64,
    pub(super) files_done: u64,
    pub(super) bytes_seen: u64,
    pub(super) bytes_done: u64,
    pub(super) bytes_moved: u64,
    pub(super) totals_known: bool,
}

#[derive(Serialize)]
pub(super) struct FileBody {
    #[serde(flatten)]
    pub(super) path: PathFields,
    pub(super) outcome: &'static str,
    pub(super) size: u64,
    pub(super) bytes_moved: u64,
    pub(super) digest: Option<String>,
    /// Why it would be copied or not, in a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<FileError>,
}

#[derive(Serialize)]
pub(super) struct FileError {
    #[serde(flatten)]
    pub(super) place: PlaceFields,
    #[serde(flatten)]
    pub(super) fault: FaultFields,
}

#[derive(Serialize)]
pub(super) struct AboutBody {
    #[serde(flatten)]
    pub(super) place: PlaceFields,
    #[serde(flatten)]
    pub(super) fault: FaultFields,
}

#[derive(Serialize)]
pub(super) struct ErrorBody {
    #[serde(flatten)]
    pub(super) place: Option<PlaceFields>,
    pub(super) kind: &'static str,
    pub(super) message: String,
    pub(super) hint: Option<String>,
    pub(super) exit_status: u8,
    pub(super) retryable: bool,
}

#[derive(Serialize)]
pub(super) struct EntryBody {
    #[serde(flatten)]
    pub(super) path: PathFields,
    pub(super) kind: &'static str,
    pub(super) size: u64,
    #[serde(flatten)]
    pub(super) more: EntryMore,
}

#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum EntryMore {
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
pub(super) struct ReconnectBody<'a> {
    pub(super) state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) transport: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seconds: Option<f64>,
}

#[derive(Serialize)]
pub(super) struct LeftBody {
    #[serde(flatten)]
    pub(super) path: PathFields,
    pub(super) size: u64,
    pub(super) allocated: u64,
    pub(super) age_s: u64,
    pub(super) journal: bool,
    pub(super) destination: Option<String>,
    pub(super) destination_b64: Option<String>,
    pub(super) fate: &'static str,
    pub(super) reason: &'static str,
}

#[derive(Serialize)]
pub(super) struct DigestBody {
    #[serde(flatten)]
    pub(super) path: PathFields,
    pub(super) hash: &'static str,
    pub(super) digest: String,
    pub(super) size: u64,
}

#[derive(Serialize)]
pub(super) struct DifferenceBody {
    #[serde(flatten)]
    pub(super) path: PathFields,
    pub(super) difference: &'static str,
}

#[derive(Serialize)]
pub(super) struct PingBody {
    pub(super) server: String,
    pub(super) software: String,
    pub(super) level: u16,
    pub(super) count: usize,
    pub(super) min_us: u64,
    pub(super) avg_us: u64,
    pub(super) transport: String,
    pub(super) reason: String,
    pub(super) transports: Vec<OfferBody>,
}

#[derive(Serialize)]
pub(super) struct MeasuredBody {
    pub(super) server: String,
    pub(super) transport: &'static str,
    pub(super) available: bool,
    pub(super) reason: String,
    #[serde(flatten)]
    pub(super) figures: Option<FiguresBody>,
}

#[derive(Serialize)]
pub(super) struct FiguresBody {
    pub(super) connections: usize,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) bytes_per_second: u64,
    pub(super) reads: usize,
    pub(super) read_p50_us: f64,
    pub(super) read_p99_us: f64,
}

#[derive(Serialize)]
pub(super) struct OfferBody {
    pub(super) name: String,
    pub(super) available: bool,
    pub(super) reason: String,
}

#[derive(Clone, Serialize)]
pub(super) struct ByTransport {
    pub(super) tcp: u64,
    pub(super) rdma: u64,
}

#[derive(Clone, Serialize)]
pub(super) struct Totals {
    pub(super) transport: String,
    pub(super) reason: String,
    pub(super) bytes_by_transport: ByTransport,
    pub(super) hash: &'static str,
    pub(super) dry_run: bool,
    pub(super) verified: Option<bool>,
    pub(super) published: u64,
    pub(super) files: u64,
    pub(super) unchanged: u64,
    pub(super) updated: u64,
    pub(super) deleted: u64,
    pub(super) failed: u64,
    pub(super) warnings: u64,
    pub(super) bytes: u64,
    pub(super) bytes_moved: u64,
    pub(super) bytes_resumed: u64,
    pub(super) reconnects: u64,
    pub(super) bytes_reused: u64,
    pub(super) seconds: f64,
    pub(super) data_ms: Option<f64>,
}

#[derive(Serialize)]
pub(super) struct SummaryBody {
    pub(super) exit_status: u8,
    pub(super) kind: Option<&'static str>,
    pub(super) retryable: bool,
    #[serde(flatten)]
    pub(super) totals: Option<Totals>,
    #[serde(flatten)]
    pub(super) diagnosis: Option<DiagnosisFields>,
}

#[derive(Clone, Serialize)]
pub(super) struct DiagnosisFields {
    pub(super) would_use_rdma: bool,
    pub(super) checks: Vec<CheckBody>,
}

#[derive(Clone, Serialize)]
pub(super) struct CheckBody {
    pub(super) check: &'static str,
    pub(super) about: String,
    pub(super) status: &'static str,
    pub(super) message: String,
    pub(super) fix: Option<String>,
}

/// Something that the source does not have was removed, or would be.
pub(super) fn deleted_body(path: &[u8], is_planned: bool) -> FileBody {
    FileBody {
        path: PathFields::new(path),
        outcome: if is_planned {
            "would_delete"
        } else {
            "deleted"
        },
        size: 0,
        bytes_moved: 0,
        digest: None,
        reason: Some("not_in_source"),
        error: None,
    }
}

pub(super) fn file_body(
    path: &[u8],
    outcome: &Outcome,
    size: u64,
    location: Option<&Location>,
) -> FileBody {
    let error_path = path;
    let path = PathFields::new(path);
    let body = |outcome| FileBody {
        path,
        outcome,
        size,
        bytes_moved: 0,
        digest: None,
        reason: None,
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
        Outcome::Planned(reason) => FileBody {
            reason: Some(reason.name()),
            ..body(match reason.action() {
                Action::Copy => "would_copy",
                Action::Update => "would_update",
                Action::Keep => "would_keep",
            })
        },
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
