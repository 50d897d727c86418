//! The server's answer to whoever asks what it does.
//!
//! In: a question and the table of sessions. Out: a page of them. Whoever gets it sees
//! every session; who may ask is decided before.

use std::sync::PoisonError;

use super::activity::Traffic;
use super::serving::{Entered, Serving};
use crate::ids::SessionId;
use crate::limits::{RAILS_MAX, STATUS_SESSIONS_MAX};
use crate::wire::message::{SessionStatus, StatusPage, StatusQuery};

impl Serving {
    /// A page of the status, for the session `asking`.
    pub(super) fn status(&self, query: StatusQuery, asking: SessionId) -> StatusPage {
        let sessions = self.lock();
        let traffic = Traffic::default();
        traffic.add(&self.past);
        let (mut above, mut registered) = (Vec::new(), 0_u64);
        for (id, entered) in sessions.iter() {
            let Some(peer) = &entered.peer else { continue };
            traffic.add(peer.activity().traffic());
            registered = registered.saturating_add(peer.memory().registered_bytes());
            if id.0 > query.after {
                above.push(*id);
            }
        }
        above.sort_unstable();
        let last = above.len() <= STATUS_SESSIONS_MAX;
        above.truncate(STATUS_SESSIONS_MAX);
        let listed = above.iter().filter_map(|id| {
            let entered = sessions.get(id)?;
            told(*id, entered, asking)
        });
        StatusPage {
            number: query.number,
            up_s: self.begun.elapsed().as_secs(),
            sessions: u32::try_from(sessions.len()).unwrap_or(u32::MAX),
            registered_bytes: registered,
            registered_bytes_max: self.machinery.serving.registered_bytes().1,
            moved: traffic.told(),
            listed: listed.collect(),
            last,
        }
    }
}

fn told(id: SessionId, entered: &Entered, asking: SessionId) -> Option<SessionStatus> {
    let peer = entered.peer.as_ref()?;
    let rails = {
        let book = peer.rails.book.lock();
        book.unwrap_or_else(PoisonError::into_inner).reports()
    };
    Some(SessionStatus {
        id: id.0,
        own: id == asking,
        from: entered.from.to_string(),
        software: entered.software.clone(),
        registered_bytes: peer.memory().registered_bytes(),
        tcp_connections: u16::try_from(peer.connections()).unwrap_or(u16::MAX),
        rails: rails
            .iter()
            .take(RAILS_MAX)
            .map(ToString::to_string)
            .collect(),
        ..peer.activity().told()
    })
}
