//! What a server tells of what it does: its sessions, their transfers, memory, and counters.
//!
//! ```text
//! client                       server
//!   StatusQuery       ->                  sessions with a number above this one
//!                     <-   StatusPage     the server as a whole, and some of its sessions
//! ```
//!
//! A page holds a few sessions, so that neither end needs memory for all of them; the client asks on
//! from the last it was told. Every text is for people. Nothing here knows who may see what.

use crate::ids::TransferId;
use crate::limits::{
    RAILS_MAX, STATUS_SESSIONS_MAX, STATUS_TRANSFERS_MAX, STATUS_WAYS_MAX, TRANSPORTS_MAX,
};
use crate::wire::WireError;
use crate::wire::codec::{Reader, Writer};

/// Client: tell the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusQuery {
    /// Comes back in the answer; above all earlier ones of the session.
    pub number: u32,
    /// Only sessions with a number above this.
    pub after: u64,
}

/// Server: the status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusPage {
    /// The question's.
    pub number: u32,
    /// Since the server began.
    pub up_s: u64,
    /// Sessions there are, listed or not.
    pub sessions: u32,
    /// Bytes of files registered with adapters, of all sessions.
    pub registered_bytes: u64,
    /// What sessions may have registered together, beside a window of each.
    pub registered_bytes_max: u64,
    /// Payload bytes by transport, since the server began.
    pub moved: Vec<Moved>,
    /// Sessions, ascending by number.
    pub listed: Vec<SessionStatus>,
    /// No session has a number above the last one's here.
    pub last: bool,
}

/// Payload bytes that went by one transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// `tcp`, `rdma`.
    pub transport: String,
    /// Sent by the server's CPU. What adapters read by themselves is not seen by it.
    pub sent_bytes: u64,
    /// Received by the server.
    pub received_bytes: u64,
}

/// A session as its server sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionStatus {
    /// Its number.
    pub id: u64,
    /// It is the one that asks.
    pub own: bool,
    /// The client's address.
    pub from: String,
    /// The client's name and release.
    pub software: String,
    /// Since it began.
    pub up_s: u64,
    /// Bytes of files registered with adapters for it.
    pub registered_bytes: u64,
    /// Data connections by tcp.
    pub tcp_connections: u16,
    /// Its rails.
    pub rails: Vec<String>,
    /// How what it was sent got before adapters.
    pub ways: Vec<WayStatus>,
    /// What runs.
    pub transfers: Vec<TransferStatus>,
    /// How many more run.
    pub transfers_more: u32,
}

/// How often windows of files were exposed in one way, and why in this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WayStatus {
    /// `odp`, `mmap`, `pool`, `tcp`.
    pub way: String,
    /// Windows.
    pub windows: u64,
    /// Why this and none better, of the last file that it was found out for; may be empty.
    pub reason: String,
}

/// What a running transfer or operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Running {
    /// The server sends.
    Pull,
    /// The server receives.
    Push,
    /// Something else.
    Operation,
}

/// A transfer or operation that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferStatus {
    /// Its id.
    pub transfer: TransferId,
    /// What it is.
    pub kind: Running,
    /// Export and path.
    pub about: String,
    /// Since it began.
    pub up_s: u64,
    /// Files told so far.
    pub files_seen: u64,
    /// Files settled.
    pub files_done: u64,
    /// Bytes of the files told so far.
    pub bytes_seen: u64,
    /// Bytes of them that are done with.
    pub bytes_done: u64,
}

type Result<T> = std::result::Result<T, WireError>;

pub(super) fn write_query(w: &mut Writer<'_>, query: &StatusQuery) {
    w.u32(query.number);
    w.u64(query.after);
}

pub(super) fn read_query(r: &mut Reader<'_>) -> Result<StatusQuery> {
    Ok(StatusQuery {
        number: r.u32()?,
        after: r.u64()?,
    })
}

pub(super) fn write_page(w: &mut Writer<'_>, page: &StatusPage) {
    w.u32(page.number);
    w.u64(page.up_s);
    w.u32(page.sessions);
    w.u64(page.registered_bytes);
    w.u64(page.registered_bytes_max);
    w.short_list(&page.moved, TRANSPORTS_MAX, "transports", |w, moved| {
        w.text(&moved.transport);
        w.u64(moved.sent_bytes);
        w.u64(moved.received_bytes);
    });
    w.short_list(&page.listed, STATUS_SESSIONS_MAX, "sessions", write_session);
    w.boolean(page.last);
}

pub(super) fn read_page(r: &mut Reader<'_>) -> Result<StatusPage> {
    Ok(StatusPage {
        number: r.u32()?,
        up_s: r.u64()?,
        sessions: r.u32()?,
        registered_bytes: r.u64()?,
        registered_bytes_max: r.u64()?,
        moved: r.short_list(TRANSPORTS_MAX, 18, "transports", |r| {
            Ok(Moved {
                transport: r.text("transport")?,
                sent_bytes: r.u64()?,
                received_bytes: r.u64()?,
            })
        })?,
        listed: r.short_list(STATUS_SESSIONS_MAX, 38, "sessions", read_session)?,
        last: r.boolean("last")?,
    })
}

fn write_session(w: &mut Writer<'_>, session: &SessionStatus) {
    w.u64(session.id);
    w.boolean(session.own);
    w.text(&session.from);
    w.text(&session.software);
    w.u64(session.up_s);
    w.u64(session.registered_bytes);
    w.u16(session.tcp_connections);
    w.short_list(&session.rails, RAILS_MAX, "rails", |w, rail| w.text(rail));
    w.short_list(&session.ways, STATUS_WAYS_MAX, "ways", |w, way| {
        w.text(&way.way);
        w.u64(way.windows);
        w.text(&way.reason);
    });
    let transfers = &session.transfers;
    w.short_list(transfers, STATUS_TRANSFERS_MAX, "transfers", write_transfer);
    w.u32(session.transfers_more);
}

fn read_session(r: &mut Reader<'_>) -> Result<SessionStatus> {
    Ok(SessionStatus {
        id: r.u64()?,
        own: r.boolean("own")?,
        from: r.text("from")?,
        software: r.text("software")?,
        up_s: r.u64()?,
        registered_bytes: r.u64()?,
        tcp_connections: r.u16()?,
        rails: r.short_list(RAILS_MAX, 2, "rails", |r| r.text("rail"))?,
        ways: r.short_list(STATUS_WAYS_MAX, 12, "ways", |r| {
            Ok(WayStatus {
                way: r.text("way")?,
                windows: r.u64()?,
                reason: r.text("reason")?,
            })
        })?,
        transfers: r.short_list(STATUS_TRANSFERS_MAX, 59, "transfers", read_transfer)?,
        transfers_more: r.u32()?,
    })
}

fn write_transfer(w: &mut Writer<'_>, transfer: &TransferStatus) {
    w.array(&transfer.transfer.0);
    w.u8(match transfer.kind {
        Running::Pull => 1,
        Running::Push => 2,
        Running::Operation => 3,
    });
    w.text(&transfer.about);
    w.u64(transfer.up_s);
    w.u64(transfer.files_seen);
    w.u64(transfer.files_done);
    w.u64(transfer.bytes_seen);
    w.u64(transfer.bytes_done);
}

fn read_transfer(r: &mut Reader<'_>) -> Result<TransferStatus> {
    Ok(TransferStatus {
        transfer: TransferId(r.array()?),
        kind: match r.u8()? {
            1 => Running::Pull,
            2 => Running::Push,
            3 => Running::Operation,
            _ => return Err(r.invalid("kind")),
        },
        about: r.text("about")?,
        up_s: r.u64()?,
        files_seen: r.u64()?,
        files_done: r.u64()?,
        bytes_seen: r.u64()?,
        bytes_done: r.u64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Decoder, Envelope, Message, encode};

    #[test]
    fn a_page_of_which_everything_is_empty_can_be_read() {
        let page = StatusPage {
            listed: vec![SessionStatus::default()],
            ..StatusPage::default()
        };
        let envelope = Envelope {
            transfer: TransferId::NONE,
            message: Message::StatusPage(page),
        };
        let mut frame = Vec::new();
        encode(&envelope, &mut frame).unwrap();
        let mut decoder = Decoder::new();
        decoder.feed(&frame);
        assert_eq!(decoder.next(), Ok(Some(envelope)));
    }
}
