//! The client's end: offers its ports, and makes anew what is lost.
//!
//! In: a first wish for rails, then word of losses. Out: offers, and queue pairs in use. A rail that
//! comes to nothing costs its attempt and not the session.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::book::{Book, RailKey, RailReport};
use super::fabric::{Fabric, Half, Owner, Path, Survey, Way};
use super::network::{address_of, is_unicast};
use super::pairing::{self, LocalPort, PeerPolicy};
use super::talk::{ATTEMPT_DEADLINE, Connected, Heard, RailSender, Talk, end_of};
use crate::limits::RAIL_PORTS_MAX;
use crate::sys::random_bytes;
use crate::wire::Message;
use crate::wire::message::{
    GidKind, Invitation, PortGid, RailAnswer, RailConnect, RailDial, RailEnd, RailOffer, RailPair,
    RailPort, RailReady,
};
use crate::workers::Workers;

/// First and longest pause before lost queue pairs are made anew.
const REBUILD_PAUSE: Duration = Duration::from_millis(100);
const REBUILD_PAUSE_MAX: Duration = Duration::from_secs(5);

/// What a client keeps to.
#[derive(Clone, Debug)]
pub(crate) struct ClientRules {
    /// Whose addresses it connects to.
    pub(crate) policy: PeerPolicy,
    /// Queue pairs that it wants per rail.
    pub(crate) queue_pairs: u8,
    /// How it would have them connected.
    pub(crate) connect: RailDial,
}

/// What came of the first attempt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Queue pairs that came into use.
    pub(crate) up: usize,
    /// Why there are not more; said once each.
    pub(crate) reasons: Vec<String>,
    /// This host has RDMA devices.
    pub(crate) has_devices: bool,
}

/// Begins to make rails, after `known` was given the way for messages about them; tells how the first
/// attempt went. It goes on making anew what is lost until the sender is dropped.
pub(crate) fn start<F, O>(
    fabric: Arc<F>,
    owner: Arc<O>,
    workers: Workers,
    book: Arc<Mutex<Book>>,
    rules: ClientRules,
    known: impl FnOnce(RailSender),
) -> oneshot::Receiver<Outcome>
where
    F: Fabric,
    O: Owner<<F::Half as Half>::Connection>,
{
    let (sender, talk) = Talk::new(fabric, owner, workers, book);
    known(sender);
    let (first, outcome) = oneshot::channel();
    let client = Client {
        talk,
        rules,
        attempt_last: 0,
    };
    tokio::spawn(client.run(first));
    outcome
}

struct Client<F: Fabric, O> {
    talk: Talk<F, O>,
    rules: ClientRules,
    attempt_last: u32,
}

/// The session is over.
struct Over;

impl<F, O> Client<F, O>
where
    F: Fabric,
    O: Owner<<F::Half as Half>::Connection>,
{
    async fn run(mut self, first: oneshot::Sender<Outcome>) {
        let Ok(outcome) = self.attempt().await else {
            return;
        };
        // Whoever waited may have given up; the rails are there all the same.
        let _ = first.send(outcome);
        let mut pause = REBUILD_PAUSE;
        loop {
            let lacking = self.talk.book().is_lacking();
            if !lacking {
                pause = REBUILD_PAUSE;
                match self.talk.hear(None).await {
                    Heard::Closed => return,
                    Heard::Message(_) | Heard::Lost | Heard::TimedOut => continue,
                }
            }
            // What else is lost meanwhile is made with it.
            let until = Instant::now() + pause;
            loop {
                match self.talk.hear(Some(until)).await {
                    Heard::Closed => return,
                    Heard::TimedOut => break,
                    Heard::Message(_) | Heard::Lost => {}
                }
            }
            match self.attempt().await {
                Ok(outcome) if outcome.up > 0 => pause = REBUILD_PAUSE,
                Ok(outcome) => {
                    let reasons = outcome.reasons.join("; ");
                    tracing::debug!(reasons = %reasons.escape_debug(), "no rail was made anew");
                    pause = (pause * 2).min(REBUILD_PAUSE_MAX);
                }
                Err(Over) => return,
            }
        }
    }

    async fn attempt(&mut self) -> Result<Outcome, Over> {
        self.attempt_last += 1;
        let attempt = self.attempt_last;
        let deadline = Instant::now() + ATTEMPT_DEADLINE;
        let fabric = Arc::clone(&self.talk.fabric);
        let Survey {
            mut ports,
            reasons,
            has_devices,
        } = match self.talk.workers.run(move || fabric.survey()).await {
            Ok(survey) => survey,
            Err(error) => Survey {
                reasons: vec![format!("looking at the RDMA ports broke: {error}")],
                ..Survey::default()
            },
        };
        let mut outcome = Outcome {
            up: 0,
            reasons,
            has_devices,
        };
        {
            let book = self.talk.book();
            ports.retain_mut(|local| {
                let in_use = u8::try_from(book.of_local(local)).unwrap_or(u8::MAX);
                local.port.queue_pairs = self.rules.queue_pairs.saturating_sub(in_use);
                local.port.queue_pairs > 0
            });
        }
        ports.truncate(RAIL_PORTS_MAX);
        if ports.is_empty() {
            return Ok(outcome);
        }
        self.talk.owner.say(Message::RailOffer(RailOffer {
            attempt,
            ports: ports.iter().map(|local| local.port.clone()).collect(),
            connect: Some(self.rules.connect),
        }));
        let is_answer = |message| match message {
            Message::RailAnswer(answer) if answer.attempt == attempt => Some(answer),
            _ => None,
        };
        let Some(answer) = self.wait(deadline, is_answer).await? else {
            outcome
                .reasons
                .push("the server did not answer the offer of rails".to_owned());
            return Ok(outcome);
        };
        outcome.reasons.extend(answer.reasons.iter().cloned());
        let (connected, ends) = self.connect(ports, answer, deadline, &mut outcome).await;
        // Said even if there are none, so that the server does not hold its halves until they are
        // too old.
        self.talk.owner.say(Message::RailConnect(RailConnect {
            attempt,
            rails: ends,
        }));
        if connected.is_empty() {
            return Ok(outcome);
        }
        let is_ready = |message| match message {
            Message::RailReady(ready) if ready.attempt == attempt => Some(ready),
            _ => None,
        };
        let Some(RailReady { rails, reasons, .. }) = self.wait(deadline, is_ready).await? else {
            let reason = "the server did not connect its queue pairs in time";
            outcome.reasons.push(reason.to_owned());
            self.talk.discard(connected).await;
            return Ok(outcome);
        };
        outcome.reasons.extend(reasons);
        let is_ready = |rail: &Connected<F::Half>| rails.contains(&rail.rail);
        let (ready, left_out): (Vec<_>, Vec<_>) = connected.into_iter().partition(is_ready);
        self.talk.discard(left_out).await;
        let proved = self.talk.prove(attempt, ready, deadline).await;
        if proved.closed {
            return Err(Over);
        }
        outcome.up = proved.up;
        outcome.reasons.extend(proved.reasons);
        Ok(outcome)
    }

    /// Waits for one message; nothing if it is late.
    async fn wait<T>(
        &mut self,
        deadline: Instant,
        wanted: impl Fn(Message) -> Option<T>,
    ) -> Result<Option<T>, Over> {
        loop {
            match self.talk.hear(Some(deadline)).await {
                Heard::Message(message) => {
                    if let Some(found) = wanted(message) {
                        return Ok(Some(found));
                    }
                }
                Heard::Lost => {}
                Heard::TimedOut => return Ok(None),
                Heard::Closed => return Err(Over),
            }
        }
    }

    /// Makes and connects this end's halves of what the server answered.
    async fn connect(
        &self,
        ports: Vec<LocalPort>,
        answer: RailAnswer,
        deadline: Instant,
        outcome: &mut Outcome,
    ) -> (Vec<Connected<F::Half>>, Vec<(u16, RailEnd)>) {
        let (fabric, book) = (Arc::clone(&self.talk.fabric), Arc::clone(&self.talk.book));
        let rules = self.rules.clone();
        let connecting = self.talk.workers.run(move || {
            let mut ports: Vec<_> = ports.into_iter().map(Some).collect();
            let (mut connected, mut ends, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
            for pair in answer.rails {
                // Each port and each rail once, whatever the server says.
                let port = ports.get_mut(usize::from(pair.port)).and_then(Option::take);
                let twice = ends.iter().any(|(rail, _)| *rail == pair.rail);
                let Some(port) = port.filter(|_| !twice) else {
                    reasons.push("the server's answer names a rail twice".to_owned());
                    continue;
                };
                match connect_one(&*fabric, &book, &rules, &port, pair, deadline) {
                    Ok((rail, end)) => {
                        ends.push((rail.rail, end));
                        connected.push(rail);
                    }
                    Err(reason) => reasons.push(format!("{}: {reason}", port.port.label)),
                }
            }
            (connected, ends, reasons)
        });
        match connecting.await {
            Ok((connected, ends, reasons)) => {
                outcome.reasons.extend(reasons);
                (connected, ends)
            }
            Err(error) => {
                let reason = format!("connecting queue pairs broke: {error}");
                outcome.reasons.push(reason);
                (Vec::new(), Vec::new())
            }
        }
    }
}

/// One half, connected. The server's word is checked as a client's is by a server.
fn connect_one<F: Fabric>(
    fabric: &F,
    book: &Mutex<Book>,
    rules: &ClientRules,
    local: &LocalPort,
    pair: RailPair,
    deadline: Instant,
) -> Result<(Connected<F::Half>, RailEnd), String> {
    let RailPair {
        rail,
        gid,
        server,
        end,
        invitation,
        ..
    } = pair;
    let gid = usize::from(gid);
    let (Some(kind), Some(about)) = (local.port.gids.get(gid), local.gids.get(gid)) else {
        return Err("the server's answer names an address that was not offered".to_owned());
    };
    let only = LocalPort {
        device: local.device.clone(),
        port: RailPort {
            gids: vec![*kind],
            ..local.port.clone()
        },
        gids: vec![*about],
    };
    let policy = PeerPolicy {
        by_cm: invitation.is_some(),
        ..rules.policy.clone()
    };
    let found = pairing::pair(
        std::slice::from_ref(&only),
        std::slice::from_ref(&server),
        &[],
        &policy,
    );
    if found.pairs.is_empty() {
        return Err(found.reasons.join(", "));
    }
    let key = RailKey::new(local, &server);
    let may = {
        let book = book.lock().unwrap_or_else(PoisonError::into_inner);
        book.may_mean(rail, &key)
    };
    if !may {
        return Err(format!("the server uses number {rail} for another rail"));
    }
    let queue_pairs = end.queue_pairs.len();
    if queue_pairs > usize::from(local.port.queue_pairs) {
        return Err("the server has more queue pairs than were asked for".to_owned());
    }
    let by_cm = invitation.is_some();
    let way = way(invitation, rules, &server)?;
    let nonce = random_bytes();
    let mut half = fabric
        .open(local, gid, nonce, queue_pairs, way)
        .map_err(|error| format!("making queue pairs failed: {error}"))?;
    let agreement = pairing::agree(&local.port, &server);
    let path = Path {
        kind: kind.kind,
        gid_index: about.index,
        remote_gid: server.gids.first().map_or([0; 16], |gid| gid.gid),
        remote_lid: server.lid,
        remote_message_bytes_max: server.message_bytes_max,
        agreement,
    };
    let reached = half
        .connect(&path, &end.queue_pairs, deadline)
        .map_err(|error| format!("connecting to {} failed: {error}", server.label))?;
    let told = end_of(&half, &nonce);
    let report = RailReport::new(rail, local, &server, &reached, by_cm);
    let connected = Connected {
        rail,
        half,
        queue_pairs,
        nonce,
        probe: end.probe,
        key,
        report,
    };
    Ok((connected, told))
}

/// How a half is connected. An invitation has to be to the server's port that was paired: to a GID's
/// address where that is one, else to what may be the server's.
fn way(
    invitation: Option<Invitation>,
    rules: &ClientRules,
    server: &RailPort,
) -> Result<Way, String> {
    let Some(invitation) = invitation else {
        return match rules.connect {
            RailDial::Direct => Ok(Way::Direct),
            RailDial::Cm => {
                Err("the server did not invite to rdma_cm, which is asked for".to_owned())
            }
        };
    };
    let address = address_of(&invitation.address);
    let is_the_ports = |gid: &PortGid| match gid.kind {
        GidKind::InfiniBand => is_unicast(address),
        GidKind::RoceV1 | GidKind::RoceV2 => address_of(&gid.gid) == address,
    };
    if !server.gids.iter().all(is_the_ports) {
        return Err(format!(
            "the server invites to {address}, which is not its port's"
        ));
    }
    Ok(Way::Dial {
        may_be_far: rules.policy.allows(address),
        invitation,
    })
}
