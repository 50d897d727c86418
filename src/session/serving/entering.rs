//! Which sessions a server has, and who gets a place.
//!
//! In: clients that have said hello. Out: a place in the table, or the reason why there is none; the
//! end of sessions that had to give way, or whose client is let in no more. What is said in a session
//! is not known here.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::auditing::Whose;
use super::superseding::Owner;
use super::{Offered, Serving};
use crate::ids::{SessionId, TransferId};
use crate::session::admission::{self, Origin};
use crate::session::clients::{Client, Refused};
use crate::session::control::Greeted;
use crate::session::data::SessionKey;
use crate::session::peer::Peer;
use crate::wire::{Fault, FaultCode, Message};

/// A session with nothing under way gives up its place for a new one: soon if it has never asked for
/// anything, late if it has. While there is room, nobody has to go.
const IDLE_BEFORE_REQUEST: Duration = Duration::from_secs(30);
const IDLE_AFTER_REQUEST: Duration = Duration::from_secs(600);

/// A session in the table. It has no peer until its client was welcomed.
pub(in crate::session) struct Entered {
    pub(super) key: SessionKey,
    client: Arc<Client>,
    origin: Origin,
    pub(in crate::session) peer: Option<Arc<Peer>>,
    pub(in crate::session) from: SocketAddr,
    pub(in crate::session) software: String,
}

impl Entered {
    /// Who asked for what is asked in it.
    pub(super) fn whose(&self, id: SessionId) -> Whose {
        Whose::new(id, self.from, &self.client)
    }

    /// Whose its transfers are.
    pub(super) fn owner(&self) -> Owner {
        Owner {
            key: self.client.key,
            origin: self.origin,
        }
    }

    /// How long it has been idle, if that is long enough to give up its place.
    fn idle(&self) -> Option<Duration> {
        let idle = self.peer.as_ref()?.idle()?;
        let limit = if idle.asked {
            IDLE_AFTER_REQUEST
        } else {
            IDLE_BEFORE_REQUEST
        };
        (idle.since.elapsed() >= limit).then(|| idle.since.elapsed())
    }
}

/// Lets a client in and enters its session in the table, so that its data connections are known from
/// the welcome on; or says why not.
pub(super) fn admit(
    serving: &Serving,
    id: SessionId,
    greeted: &Greeted,
) -> Result<Arc<Client>, Fault> {
    let denied = |Refused(text)| Fault::new(FaultCode::Denied, text);
    let address = greeted.peer().ip();
    let offered = serving.offered();
    let client = offered.admission.admit(greeted.key(), address);
    let client = Arc::new(client.map_err(denied)?);
    if serving.is_draining() {
        return Err(Fault::new(
            FaultCode::Busy,
            "the server is shutting down; try again later",
        ));
    }
    let key = greeted
        .session_key(id)
        .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()))?;
    let origin = Origin::of(address);
    let mut sessions = serving.lock();
    let evicted = make_room(&mut sessions, origin, offered.limits.sessions_max)?;
    let entered = Entered {
        key,
        client: Arc::clone(&client),
        origin,
        peer: None,
        from: greeted.peer(),
        software: greeted.hello().software.clone(),
    };
    sessions.insert(id, entered);
    if let Some(peer) = &evicted {
        serving.past.add(peer.activity().traffic());
    }
    drop(sessions);
    if let Some(peer) = evicted {
        let text = "the session was idle and its place was needed; connect again";
        dismiss(&peer, &Fault::new(FaultCode::Busy, text));
    }
    Ok(client)
}

/// Ends the sessions of clients that would not be let in any more, or not as they were: a key that
/// is taken out of the list is good for nothing from then on. If something else is offered from now on,
/// those too whose client loses something by it: what is exposed to it goes with its session.
pub(super) fn review(serving: &Serving, changed: Option<(&Offered, &Offered)>) {
    let mut over = Vec::new();
    let offered = serving.offered();
    for entered in serving.lock().values() {
        let Some(peer) = &entered.peer else {
            // It has nothing yet, and is looked at again.
            continue;
        };
        let now = offered
            .admission
            .admit(entered.client.key, entered.from.ip());
        let fault = match now {
            Err(Refused(text)) => Fault::new(FaultCode::Denied, text),
            Ok(client) if client != *entered.client => Fault::new(
                FaultCode::Busy,
                "what this client's key may do was changed; connect again",
            ),
            Ok(client) => {
                let lost = changed.and_then(|(earlier, later)| earlier.loses(&client, later));
                let Some(export) = lost else { continue };
                let text = format!("export '{export}' was changed; connect again");
                Fault::new(FaultCode::Busy, text)
            }
        };
        over.push((Arc::clone(peer), fault));
    }
    for (peer, fault) in over {
        tracing::warn!(session = %peer.id, reason = %fault.text, "a session is ended");
        dismiss(&peer, &fault);
    }
}

fn dismiss(peer: &Peer, fault: &Fault) {
    peer.say(TransferId::NONE, Message::Goodbye(fault.clone()));
    peer.close(fault);
}

/// Sees to it that one session more from `origin` may be entered; if another had to be taken out for
/// it, that one's peer.
fn make_room(
    sessions: &mut HashMap<SessionId, Entered>,
    origin: Origin,
    sessions_max: usize,
) -> Result<Option<Arc<Peer>>, Fault> {
    let mut held: HashMap<Origin, usize> = HashMap::new();
    for entered in sessions.values() {
        *held.entry(entered.origin).or_default() += 1;
    }
    let own = held.get(&origin).copied().unwrap_or(0);
    if admission::is_fair(own, sessions.len(), sessions_max) {
        return Ok(None);
    }
    let is_full = sessions.len() >= sessions_max;
    // One of its own if there are places for others; else one of whoever has most.
    let idle = sessions
        .iter()
        .filter(|(_, entered)| is_full || entered.origin == origin)
        .filter_map(|(id, entered)| Some((held.get(&entered.origin), entered.idle()?, *id)))
        .max();
    if let Some((.., id)) = idle {
        return Ok(sessions.remove(&id).and_then(|entered| entered.peer));
    }
    let text = if is_full {
        format!(
            "the server has {} sessions and takes no more; try again later",
            sessions.len()
        )
    } else {
        format!(
            "there are {own} sessions from this address, and what is left is kept for others; try \
             again later"
        )
    };
    Err(Fault::new(FaultCode::Busy, text))
}

/// Takes a session out of the table, however its task ends.
pub(super) struct Leaving<'a> {
    pub(super) serving: &'a Serving,
    pub(super) id: SessionId,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut sessions = self.serving.lock();
        // Under the lock: whoever asks for the status finds its bytes in one place or the other.
        if let Some(peer) = sessions.remove(&self.id).and_then(|entered| entered.peer) {
            self.serving.past.add(peer.activity().traffic());
        }
        drop(sessions);
        self.serving.ended.notify_waiters();
    }
}
