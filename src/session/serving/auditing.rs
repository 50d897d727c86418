//! Requests as the record of who did what tells them: each has a begin and an end, whatever ends it.
//!
//! In: a request when it begins, its outcome. Out: events. A request whose task is dropped is told as one that
//! was cut short.

use crate::audit::{AuditAction, AuditEvent, AuditOutcome, AuditPlace, AuditRequest, Auditor};
use crate::ids::{SessionId, TransferId};
use crate::session::clients::Client;
use crate::wire::message::RemotePath;
use crate::wire::{Fault, FaultCode};
use std::net::SocketAddr;

/// Whose an event is.
#[derive(Clone)]
pub(crate) struct Whose {
    pub(crate) session: SessionId,
    pub(crate) from: SocketAddr,
    pub(crate) key: Option<String>,
}

impl Whose {
    pub(crate) fn new(session: SessionId, from: SocketAddr, client: &Client) -> Self {
        let key = client.key.map(|key| key.to_string());
        Self { session, from, key }
    }

    pub(crate) fn did(&self, action: AuditAction) -> AuditEvent {
        AuditEvent {
            session: Some(self.session.0),
            from: self.from,
            key: self.key.clone(),
            action,
        }
    }
}

/// A request that was told as begun and not yet as ended.
pub(crate) struct Audited {
    auditor: Auditor,
    whose: Option<(Whose, AuditRequest)>,
}

impl Audited {
    pub(crate) fn begin(
        auditor: &Auditor,
        whose: Option<Whose>,
        transfer: TransferId,
        what: &'static str,
        dry_run: bool,
        places: &[RemotePath],
    ) -> Self {
        let mut kept = None;
        if let Some(whose) = whose {
            auditor.tell(|| {
                let place = |place: &RemotePath| AuditPlace {
                    export: place.export.clone(),
                    path: place.path.clone(),
                };
                let request = AuditRequest {
                    transfer: transfer.to_string(),
                    what,
                    dry_run,
                    places: places.iter().map(place).collect(),
                };
                let event = whose.did(AuditAction::RequestBegan(request.clone()));
                kept = Some((whose, request));
                event
            });
        }
        Self {
            auditor: auditor.clone(),
            whose: kept,
        }
    }

    pub(crate) fn end(mut self, outcome: AuditOutcome) {
        self.tell(outcome);
    }

    fn tell(&mut self, outcome: AuditOutcome) {
        if let Some((whose, request)) = self.whose.take() {
            self.auditor
                .tell(|| whose.did(AuditAction::RequestEnded(request, outcome)));
        }
    }
}

impl Drop for Audited {
    fn drop(&mut self) {
        let fault = Fault::new(FaultCode::Lost, "the server or its session ended");
        self.tell(AuditOutcome::refused(&fault));
    }
}
