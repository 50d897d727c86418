//! The server's end: answers offers, one attempt at a time.
//!
//! In: offers and what follows them. Out: answers, and queue pairs in use. A client can make it
//! hold the queue pairs of one attempt, and those in use up to the session's maximum; an offer that
//! comes in between ends the attempt before it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::book::{Book, RailKey, RailReport};
use super::fabric::{Fabric, Half, Owner, Path, Way};
use super::pairing::{self, LocalPort, PeerPolicy};
use super::talk::{ATTEMPT_DEADLINE, Connected, Heard, Purpose, RailSender, Talk, end_of};
use super::trouble::Obstacle;
use crate::limits::{RAIL_PORTS_MAX, RAILS_MAX};
use crate::session::counters::counters;
use crate::sys::random_bytes;
use crate::wire::Message;
use crate::wire::message::{
    PROBE_BYTES, RailAnswer, RailConnect, RailDial, RailEnd, RailOffer, RailPair, RailPort,
    RailReady,
};
use crate::workers::Workers;

/// Queue pairs that a rail may have beyond those that lanes are to have.
const OWN_QUEUE_PAIRS_MAX: usize = 4;

/// What a server keeps to.
#[derive(Clone, Debug)]
pub(crate) struct ServerRules {
    /// Whose addresses it connects to. By rdma_cm: it listens, and connects no queue pair otherwise.
    pub(crate) policy: PeerPolicy,
    /// Queue pairs per rail at most.
    pub(crate) queue_pairs_max: u8,
}

/// Begins to answer offers. It ends when the sender is dropped.
pub(crate) fn start<F, O>(
    fabric: Arc<F>,
    owner: Arc<O>,
    workers: Workers,
    book: Arc<Mutex<Book>>,
    rules: ServerRules,
) -> RailSender
where
    F: Fabric,
    O: Owner<<F::Half as Half>::Connection>,
{
    let (sender, talk) = Talk::new(fabric, owner, workers, book);
    let server = Server {
        talk,
        rules,
        attempt_last: 0,
    };
    tokio::spawn(server.run());
    sender
}

struct Server<F: Fabric, O> {
    talk: Talk<F, O>,
    rules: ServerRules,
    attempt_last: u32,
}

/// A rail that the client was told of.
struct Told<H> {
    rail: u16,
    half: H,
    nonce: [u8; PROBE_BYTES],
    path: Path,
    key: RailKey,
    local: LocalPort,
    remote: RailPort,
    by_cm: bool,
}

/// A rail and its place in the answer.
struct Made<H> {
    told: Told<H>,
    pair: RailPair,
}

impl<F, O> Server<F, O>
where
    F: Fabric,
    O: Owner<<F::Half as Half>::Connection>,
{
    async fn run(mut self) {
        let mut next = None;
        loop {
            let message = match next.take() {
                Some(message) => message,
                None => match self.talk.hear(None).await {
                    Heard::Message(message) => message,
                    Heard::Closed => return,
                    Heard::Lost | Heard::TimedOut => continue,
                },
            };
            // Whatever else comes now belongs to an attempt that is over.
            if let Message::RailOffer(offer) = message
                && offer.attempt > self.attempt_last
            {
                self.attempt_last = offer.attempt;
                match self.attempt(offer).await {
                    Some(Heard::Message(message)) => next = Some(message),
                    Some(Heard::Closed) => return,
                    _ => {}
                }
            }
        }
    }

    /// One attempt; gives back what was heard that ended it early.
    async fn attempt(&mut self, offer: RailOffer) -> Option<Heard> {
        let attempt = offer.attempt;
        let deadline = Instant::now() + ATTEMPT_DEADLINE;
        let (fabric, book) = (Arc::clone(&self.talk.fabric), Arc::clone(&self.talk.book));
        let rules = self.rules.clone();
        let hopeless = self.talk.hopeless.clone();
        let preparing = self.talk.workers.run(move || match hopeless {
            Some(reason) => Prepared {
                reasons: vec![reason],
                ..Prepared::nothing()
            },
            None => prepare(&*fabric, &book, &rules, &offer),
        });
        let prepared = preparing.await.unwrap_or_else(|error| Prepared {
            reasons: vec![format!("making queue pairs broke: {error}")],
            ..Prepared::nothing()
        });
        let Prepared {
            made,
            reasons,
            may_pass,
        } = prepared;
        let (told, rails): (Vec<_>, Vec<_>) =
            made.into_iter().map(|made| (made.told, made.pair)).unzip();
        for reason in &reasons {
            tracing::debug!(attempt, reason = %reason.escape_debug(), "no rail");
        }
        self.talk.owner.say(Message::RailAnswer(RailAnswer {
            attempt,
            rails,
            reasons,
            may_pass,
        }));
        if told.is_empty() {
            counters().attempts_failed.count();
            return None;
        }
        let connect = match self.connection(attempt, deadline).await {
            Ok(connect) => connect,
            Err(heard) => {
                self.talk.discard(told).await;
                return Some(heard);
            }
        };
        let connecting = self
            .talk
            .workers
            .run(move || connect_all(told, connect.rails, deadline));
        let (connected, reasons) = connecting.await.unwrap_or_else(|error| {
            let reason = format!("connecting queue pairs broke: {error}");
            (Vec::new(), vec![reason])
        });
        self.talk.owner.say(Message::RailReady(RailReady {
            attempt,
            rails: connected.iter().map(|rail| rail.rail).collect(),
            reasons,
        }));
        let proving = self
            .talk
            .prove(attempt, connected, deadline, Purpose::Lanes);
        let proved = proving.await;
        if proved.up > 0 {
            let rails = self.talk.book().reports();
            let rails: Vec<_> = rails.iter().map(ToString::to_string).collect();
            tracing::info!(attempt, rails = %rails.join("; ").escape_debug(), "rails are up");
        }
        match proved.interrupted {
            Some(message) => Some(Heard::Message(message)),
            None => proved.closed.then_some(Heard::Closed),
        }
    }

    /// Waits for the client's halves.
    async fn connection(&mut self, attempt: u32, deadline: Instant) -> Result<RailConnect, Heard> {
        loop {
            match self.talk.hear(Some(deadline)).await {
                Heard::Message(Message::RailConnect(connect)) if connect.attempt == attempt => {
                    return Ok(connect);
                }
                Heard::Message(Message::RailOffer(offer)) if offer.attempt > attempt => {
                    return Err(Heard::Message(Message::RailOffer(offer)));
                }
                Heard::Message(_) | Heard::Lost => {}
                Heard::TimedOut => return Err(Heard::TimedOut),
                Heard::Closed => return Err(Heard::Closed),
            }
        }
    }
}

/// What an offer can be answered with.
struct Prepared<H> {
    made: Vec<Made<H>>,
    reasons: Vec<String>,
    may_pass: bool,
}

impl<H> Prepared<H> {
    fn nothing() -> Self {
        Self {
            made: Vec::new(),
            reasons: Vec::new(),
            may_pass: false,
        }
    }
}

/// Looks at this host's ports, pairs them, and makes queue pairs.
fn prepare<F: Fabric>(
    fabric: &F,
    book: &Mutex<Book>,
    rules: &ServerRules,
    offer: &RailOffer,
) -> Prepared<F::Half> {
    if let Some(reason) = disagreement(offer.connect, rules.policy.by_cm) {
        return Prepared {
            reasons: vec![reason.to_owned()],
            ..Prepared::nothing()
        };
    }
    let offered = offer.ports.as_slice();
    let survey = fabric.survey();
    let (mut reasons, mut may_pass) = (survey.reasons, survey.may_pass);
    let pairing = {
        let book = book.lock().unwrap_or_else(PoisonError::into_inner);
        let held: Vec<_> = book
            .in_use()
            .filter_map(|(_, key, _)| {
                let is_ours = |port: &LocalPort| key.is_of_local(port);
                let ours = survey.ports.iter().position(is_ours)?;
                let is_theirs = |port: &RailPort| key.is_of_remote(port);
                // One that is not offered holds its partner all the same.
                Some((
                    ours,
                    offered.iter().position(is_theirs).unwrap_or(usize::MAX),
                ))
            })
            .collect();
        pairing::pair(&survey.ports, offered, &held, &rules.policy)
    };
    reasons.splice(0..0, pairing.reasons);
    let mut made: Vec<Made<F::Half>> = Vec::new();
    for pair in pairing.pairs {
        let (local, remote) = (&survey.ports[pair.local], &offered[pair.remote]);
        let reserved: Vec<_> = made.iter().map(|made| made.told.rail).collect();
        match make(
            fabric,
            book,
            rules,
            &reserved,
            (local, pair.local_gid),
            remote,
            &pair,
        ) {
            Ok(rail) => made.push(rail),
            Err(obstacle) => {
                may_pass |= obstacle.may_pass;
                reasons.push(format!("{}: {}", local.port.label, obstacle.reason));
            }
        }
    }
    reasons.truncate(RAIL_PORTS_MAX);
    Prepared {
        made,
        reasons,
        may_pass,
    }
}

/// Why queue pairs can't be connected as both ends want it, if they can't.
fn disagreement(wanted: Option<RailDial>, by_cm: bool) -> Option<&'static str> {
    match (wanted, by_cm) {
        (Some(RailDial::Cm), false) => Some(
            "the server does not listen with rdma_cm, which is asked for: connect = \"cm\" in [rdma] \
             of its configuration makes it listen",
        ),
        (None, true) => Some(
            "the server connects queue pairs by rdma_cm only, which the client's release does not \
             know",
        ),
        _ => None,
    }
}

fn make<F: Fabric>(
    fabric: &F,
    book: &Mutex<Book>,
    rules: &ServerRules,
    reserved: &[u16],
    (local, local_gid): (&LocalPort, usize),
    remote: &RailPort,
    pair: &pairing::Pair,
) -> Result<Made<F::Half>, Obstacle> {
    let key = RailKey::new(local, remote);
    let (rail, in_use) = {
        let book = book.lock().unwrap_or_else(PoisonError::into_inner);
        let rail = book.number(&key, reserved).ok_or_else(|| {
            Obstacle::for_good(format!(
                "the session has had its {} rails: begin another one",
                RAILS_MAX - 1
            ))
        })?;
        let in_use = book.in_use().find(|(number, _, _)| *number == rail);
        (rail, in_use.map_or(0, |(_, _, count)| count))
    };
    let queue_pairs = grantable(rules.queue_pairs_max, in_use, remote.queue_pairs);
    if queue_pairs == 0 {
        // The client may have heard of a loss that is still on its way to this end.
        return Err(Obstacle::for_now(
            "the rail has all the queue pairs that it may have",
        ));
    }
    let nonce = random_bytes();
    let gid = local.port.gids[local_gid];
    let path = Path {
        kind: gid.kind,
        gid_index: local.gids[local_gid].index,
        remote_gid: remote.gids[pair.remote_gid].gid,
        remote_lid: remote.lid,
        remote_message_bytes_max: remote.message_bytes_max,
        agreement: pairing::agree(&local.port, remote),
    };
    let way = if rules.policy.by_cm {
        Way::Await(path)
    } else {
        Way::Direct
    };
    let half = fabric
        .open(local, local_gid, nonce, queue_pairs, way)
        .map_err(|error| Obstacle::of("making queue pairs", &error))?;
    let pair = RailPair {
        rail,
        port: u8::try_from(pair.remote).unwrap_or(u8::MAX),
        gid: u8::try_from(pair.remote_gid).unwrap_or(u8::MAX),
        server: RailPort {
            gids: vec![gid],
            ..local.port.clone()
        },
        end: end_of(&half, &nonce),
        invitation: half.invitation(),
    };
    let told = Told {
        rail,
        half,
        nonce,
        path,
        key,
        local: local.clone(),
        remote: remote.clone(),
        by_cm: rules.policy.by_cm,
    };
    Ok(Made { told, pair })
}

/// How many queue pairs a rail gets beside those in use. When it has all that lanes are to have, some
/// more, one at a time: programs read over queue pairs of their own.
fn grantable(queue_pairs_max: u8, in_use: usize, wanted: u8) -> usize {
    let of_lanes = usize::from(queue_pairs_max);
    match of_lanes.saturating_sub(in_use) {
        0 => usize::from(in_use < of_lanes + OWN_QUEUE_PAIRS_MAX && wanted > 0),
        room => room.min(wanted.into()),
    }
}

/// Connects the halves that the client has a counterpart of.
fn connect_all<H: Half>(
    told: Vec<Told<H>>,
    mut theirs: Vec<(u16, RailEnd)>,
    deadline: Instant,
) -> (Vec<Connected<H>>, Vec<String>) {
    let mut connected = Vec::new();
    let mut reasons = Vec::new();
    for mut told in told {
        let Some(at) = theirs.iter().position(|(rail, _)| *rail == told.rail) else {
            continue;
        };
        let (_, end) = theirs.swap_remove(at);
        let queue_pairs = told.half.queue_pairs().len();
        let result = if end.queue_pairs.len() == queue_pairs {
            told.half
                .connect(&told.path, &end.queue_pairs, deadline)
                .map_err(|error| error.to_string())
        } else {
            Err("the ends have different numbers of queue pairs".to_owned())
        };
        match result {
            Ok(reached) => connected.push(Connected {
                rail: told.rail,
                half: told.half,
                queue_pairs,
                nonce: told.nonce,
                probe: end.probe,
                key: told.key,
                report: RailReport::new(told.rail, &told.local, &told.remote, &reached, told.by_cm),
            }),
            Err(reason) => reasons.push(format!("{}: {reason}", told.local.port.label)),
        }
    }
    (connected, reasons)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_rail_gets_a_few_more_one_at_a_time() {
        assert_eq!(grantable(2, 0, 8), 2);
        assert_eq!(grantable(2, 1, 8), 1);
        assert_eq!(grantable(2, 2, 8), 1);
        assert_eq!(grantable(2, 1 + OWN_QUEUE_PAIRS_MAX, 8), 1);
        assert_eq!(grantable(2, 2 + OWN_QUEUE_PAIRS_MAX, 8), 0);
        assert_eq!(grantable(4, 0, 1), 1);
    }
}
