//! What a server does, as text and as the fields of JSON lines.
//!
//! A status comes in; all its texts are a peer's and are escaped here.

use rdcp::Status;
use rdcp::wire::message::{Running, SessionStatus, TransferStatus};
use serde::Serialize;

use crate::escape;
use crate::quantity::{bytes, counted, duration};
use std::time::Duration;

/// Some lines for people; the last has no line end.
pub(super) fn text(server: &str, status: &Status) -> String {
    let mut lines = vec![format!(
        "{}: {}, up {}, {}",
        escape::text(server),
        escape::text(&status.server),
        duration(status.up),
        counted(status.sessions.into(), "session")
    )];
    lines.push(format!(
        "registered for RDMA: {} (up to {} beside a window for each session)",
        bytes(status.registered_bytes),
        bytes(status.registered_bytes_max)
    ));
    for moved in &status.moved {
        lines.push(format!(
            "{}: {} sent, {} received",
            escape::text(&moved.transport),
            bytes(moved.sent_bytes),
            bytes(moved.received_bytes)
        ));
    }
    status
        .listed
        .iter()
        .for_each(|session| session_lines(session, &mut lines));
    let unlisted = u64::from(status.sessions).saturating_sub(status.listed.len() as u64);
    if unlisted > 0 {
        lines.push(format!("and {}", counted(unlisted, "more session")));
    }
    lines.join("\n")
}

fn session_lines(session: &SessionStatus, lines: &mut Vec<String>) {
    lines.push(format!(
        "session {}{} from {}: {}, {}",
        session.id,
        if session.own { " (this one)" } else { "" },
        escape::text(&session.from),
        escape::text(&session.software),
        duration(Duration::from_secs(session.up_s))
    ));
    let tcp = counted(session.tcp_connections.into(), "tcp connection");
    let rails = session.rails.iter().map(|rail| escape::text(rail));
    let by: Vec<_> = std::iter::once(tcp).chain(rails).collect();
    lines.push(format!("  data: {}", by.join(", ")));
    if session.registered_bytes > 0 {
        lines.push(format!(
            "  registered for RDMA: {}",
            bytes(session.registered_bytes)
        ));
    }
    for way in &session.ways {
        let windows = counted(way.windows, "window");
        let reason = match way.reason.as_str() {
            "" => String::new(),
            reason => format!(" ({})", escape::text(reason)),
        };
        lines.push(format!("  {}: {windows}{reason}", escape::text(&way.way)));
    }
    for transfer in &session.transfers {
        lines.push(format!(
            "  {} {}: {}, {} of {}, {} of {}, {}",
            kind_name(transfer.kind),
            transfer.transfer,
            escape::text(&transfer.about),
            transfer.files_done,
            counted(transfer.files_seen, "file"),
            bytes(transfer.bytes_done),
            bytes(transfer.bytes_seen),
            duration(Duration::from_secs(transfer.up_s))
        ));
    }
    if session.transfers_more > 0 {
        lines.push(format!("  and {} more", session.transfers_more));
    }
}

fn kind_name(kind: Running) -> &'static str {
    match kind {
        Running::Pull => "pull",
        Running::Push => "push",
        Running::Operation => "operation",
    }
}

#[derive(Serialize)]
pub(super) struct StatusBody {
    server: String,
    software: String,
    up_s: u64,
    sessions: u32,
    registered_bytes: u64,
    registered_bytes_max: u64,
    transports: Vec<MovedBody>,
}

#[derive(Serialize)]
struct MovedBody {
    name: String,
    sent_bytes: u64,
    received_bytes: u64,
}

impl StatusBody {
    pub(super) fn new(server: &str, status: &Status) -> Self {
        let moved = status.moved.iter().map(|moved| MovedBody {
            name: escape::text(&moved.transport),
            sent_bytes: moved.sent_bytes,
            received_bytes: moved.received_bytes,
        });
        Self {
            server: escape::text(server),
            software: escape::text(&status.server),
            up_s: status.up.as_secs(),
            sessions: status.sessions,
            registered_bytes: status.registered_bytes,
            registered_bytes_max: status.registered_bytes_max,
            transports: moved.collect(),
        }
    }
}

#[derive(Serialize)]
pub(super) struct SessionBody {
    session: u64,
    own: bool,
    from: String,
    software: String,
    up_s: u64,
    registered_bytes: u64,
    tcp_connections: u16,
    rails: Vec<String>,
    memory: Vec<WayBody>,
    transfers: Vec<TransferBody>,
    transfers_more: u32,
}

#[derive(Serialize)]
struct WayBody {
    way: String,
    windows: u64,
    reason: String,
}

#[derive(Serialize)]
struct TransferBody {
    id: String,
    kind: &'static str,
    about: String,
    up_s: u64,
    files_seen: u64,
    files_done: u64,
    bytes_seen: u64,
    bytes_done: u64,
}

impl SessionBody {
    pub(super) fn new(session: &SessionStatus) -> Self {
        let ways = session.ways.iter().map(|way| WayBody {
            way: escape::text(&way.way),
            windows: way.windows,
            reason: escape::text(&way.reason),
        });
        Self {
            session: session.id,
            own: session.own,
            from: escape::text(&session.from),
            software: escape::text(&session.software),
            up_s: session.up_s,
            registered_bytes: session.registered_bytes,
            tcp_connections: session.tcp_connections,
            rails: session
                .rails
                .iter()
                .map(|rail| escape::text(rail))
                .collect(),
            memory: ways.collect(),
            transfers: session.transfers.iter().map(TransferBody::new).collect(),
            transfers_more: session.transfers_more,
        }
    }
}

impl TransferBody {
    fn new(transfer: &TransferStatus) -> Self {
        Self {
            id: transfer.transfer.to_string(),
            kind: kind_name(transfer.kind),
            about: escape::text(&transfer.about),
            up_s: transfer.up_s,
            files_seen: transfer.files_seen,
            files_done: transfer.files_done,
            bytes_seen: transfer.bytes_seen,
            bytes_done: transfer.bytes_done,
        }
    }
}
