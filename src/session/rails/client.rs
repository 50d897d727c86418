//! The client's end: offers its ports, and makes anew what is lost.
//!
//! In: a first wish for rails, then word of losses. Out: offers, and queue pairs in use. A rail that
//! comes to nothing costs its attempt and not the session.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::book::{Book, RailKey, RailReport};
use super::fabric::{Fabric, Half, Owner, Path, Survey, Way};
use super::network::{address_of, is_unicast};
use super::pairing::{self, LocalPort, PeerPolicy};
use super::talk::{ATTEMPT_DEADLINE, Connected, Gone, Heard, Purpose, RailSender, Talk, end_of};
use super::trouble::Obstacle;
use crate::limits::RAIL_PORTS_MAX;
use crate::session::counters::counters;
use crate::sys::random_bytes;
use crate::wire::Message;
use crate::wire::message::{
    GidKind, Invitation, PortGid, RailAnswer, RailConnect, RailDial, RailEnd, RailLink, RailOffer,
    RailPair, RailPort, RailReady,
};
use crate::workers::Workers;

/// First and longest pause before lost queue pairs are made anew.
const REBUILD_PAUSE: Duration = Duration::from_millis(100);
const REBUILD_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Longest pause while no rail has ever come up.
const FIRST_PAUSE_MAX: Duration = Duration::from_secs(20);
/// What has been in use for so long was no mistake.
const STEADY: Duration = Duration::from_secs(10);

/// What a client keeps to.
#[derive(Clone, Debug)]
pub(crate) struct ClientRules {
    /// Whose addresses it connects to.
    pub(crate) policy: PeerPolicy,
    /// Queue pairs that it wants per rail.
    pub(crate) queue_pairs: u8,
    /// It makes no data connections by tcp.
    pub(crate) rails_only: bool,
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
    /// One of them may pass by itself.
    pub(crate) may_pass: bool,
    /// This host has RDMA devices.
    pub(crate) has_devices: bool,
}

/// Somebody wants a queue pair of a rail's for reads of its own, which no lane carries.
pub(crate) struct Wish<C> {
    /// A rail that is in use.
    pub(crate) rail: u16,
    /// Gets it, or why it is not to be had.
    pub(crate) answer: oneshot::Sender<Result<Own<C>, String>>,
}

/// A queue pair for reads of its owner's. Its owner says RailDown when it has ended it.
pub(crate) struct Own<C> {
    pub(crate) link: RailLink,
    pub(crate) connection: C,
    pub(crate) gone: Gone,
}

/// The wishes of a session.
pub(crate) type Wishes<C> = mpsc::Receiver<Wish<C>>;

/// Begins to make rails, after `known` was given the way for messages about them; tells how the first
/// attempt went. It goes on making anew what is lost until the sender is dropped.
pub(crate) fn start<F, O>(
    fabric: Arc<F>,
    owner: Arc<O>,
    workers: Workers,
    book: Arc<Mutex<Book>>,
    rules: ClientRules,
    wishes: Wishes<<F::Half as Half>::Connection>,
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
        wishes,
        attempt_last: 0,
    };
    tokio::spawn(client.run(first));
    outcome
}

struct Client<F: Fabric, O> {
    talk: Talk<F, O>,
    rules: ClientRules,
    wishes: Wishes<<F::Half as Half>::Connection>,
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
        // Whether another attempt may bring more than there is.
        let mut wanted = outcome.may_pass;
        let had_none = outcome.up == 0;
        // Whoever waited may have given up; the rails are there all the same.
        let _ = first.send(outcome);
        if had_none && !wanted {
            return;
        }
        let mut pause = REBUILD_PAUSE;
        let mut latest = Instant::now();
        loop {
            if !wanted {
                if self.talk.book().in_use().next().is_none() {
                    return self.give_up();
                }
                match self.hear(None).await {
                    Heard::Closed => return,
                    Heard::Lost => wanted = self.talk.hopeless.is_none(),
                    Heard::Message(_) | Heard::TimedOut => {}
                }
                // What is lost soon after it was made is not made anew at once for ever.
                if wanted && latest.elapsed() >= STEADY {
                    pause = REBUILD_PAUSE;
                }
                continue;
            }
            // What else is lost meanwhile is made with it.
            let until = Instant::now() + pause;
            loop {
                match self.hear(Some(until)).await {
                    Heard::Closed => return,
                    Heard::TimedOut => break,
                    Heard::Message(_) | Heard::Lost => {}
                }
            }
            if self.talk.hopeless.is_some() {
                wanted = false;
                continue;
            }
            let losses = self.talk.losses;
            let before = self.talk.book().reasons().to_vec();
            let Ok(outcome) = self.attempt().await else {
                return;
            };
            let is_short = outcome.up > 0 && self.talk.book().is_lacking();
            let may_be_more = outcome.may_pass || is_short || self.talk.losses > losses;
            let most = self.pause_max();
            pause = (pause * 2).min(most);
            if outcome.up > 0 {
                latest = Instant::now();
                let rails: Vec<_> = {
                    let book = self.talk.book();
                    book.reports().iter().map(ToString::to_string).collect()
                };
                tracing::info!(rails = %rails.join("; ").escape_debug(), "rails came up");
            } else if before != outcome.reasons {
                let reasons = outcome.reasons.join("; ");
                tracing::info!(reasons = %reasons.escape_debug(), "no rail came up yet");
            }
            wanted = may_be_more && self.talk.hopeless.is_none();
        }
    }

    /// The next thing, until `until`; wishes are seen to here.
    async fn hear(&mut self, until: Option<Instant>) -> Heard {
        loop {
            let wish = tokio::select! {
                heard = self.talk.hear(until) => return heard,
                // Without anybody to wish for more there is only the rest to hear.
                Some(wish) = self.wishes.recv() => wish,
            };
            let losses = self.talk.losses;
            if self.fulfil(wish).await.is_err() {
                return Heard::Closed;
            }
            if self.talk.losses > losses {
                return Heard::Lost;
            }
        }
    }

    async fn fulfil(&mut self, wish: Wish<<F::Half as Half>::Connection>) -> Result<(), Over> {
        let answer = match self.talk.hopeless.clone() {
            Some(reason) => Err(reason),
            // Why it came to nothing is told to who wished: it says nothing about lanes.
            None => {
                let (outcome, kept) = self.try_once(Some(wish.rail)).await?;
                kept.ok_or_else(|| match outcome.reasons.as_slice() {
                    [] => "the rail was lost".to_owned(),
                    reasons => reasons.join("; "),
                })
            }
        };
        let answer = answer.map(|(link, connection)| Own {
            link,
            connection,
            gone: self.talk.own.add(link),
        });
        // Whoever wished may have gone.
        if let Err(Ok(own)) = wish.answer.send(answer) {
            let (link, reason) = (own.link, "nobody wants it any more".to_owned());
            self.talk.discard(own.connection).await;
            self.talk.owner.say(Message::RailDown { link, reason });
        }
        Ok(())
    }

    /// How long the longest pause is: what never worked is tried less often than what did.
    fn pause_max(&self) -> Duration {
        if self.talk.book().had_any() {
            REBUILD_PAUSE_MAX
        } else {
            FIRST_PAUSE_MAX
        }
    }

    /// There are no rails, and waiting does not bring any.
    fn give_up(&mut self) {
        let reason = match &self.talk.hopeless {
            Some(reason) => reason.clone(),
            None => self.talk.book().reasons().join("; "),
        };
        tracing::info!(reason = %reason.escape_debug(), "rails are given up");
        self.talk.own.lose_all(&reason);
        self.talk.owner.gave_up(&reason);
    }

    /// One attempt for lanes; why it did not come to more is kept for reports.
    async fn attempt(&mut self) -> Result<Outcome, Over> {
        let (outcome, _) = self.try_once(None).await?;
        self.talk.book().set_reasons(outcome.reasons.clone());
        if outcome.up == 0 {
            counters().attempts_failed.count();
        }
        Ok(outcome)
    }

    /// Makes what is lacking; or one queue pair of the rail `own`, which is kept.
    async fn try_once(
        &mut self,
        own: Option<u16>,
    ) -> Result<(Outcome, Option<(RailLink, <F::Half as Half>::Connection)>), Over> {
        self.attempt_last += 1;
        let attempt = self.attempt_last;
        let deadline = Instant::now() + ATTEMPT_DEADLINE;
        let fabric = Arc::clone(&self.talk.fabric);
        let Survey {
            mut ports,
            reasons,
            may_pass,
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
            may_pass,
            has_devices,
        };
        {
            let book = self.talk.book();
            ports.retain_mut(|local| {
                if let Some(rail) = own {
                    local.port.queue_pairs = 1;
                    return book.is_port_of(rail, local);
                }
                let in_use = u8::try_from(book.of_local(local)).unwrap_or(u8::MAX);
                local.port.queue_pairs = self.rules.queue_pairs.saturating_sub(in_use);
                local.port.queue_pairs > 0
            });
        }
        ports.truncate(RAIL_PORTS_MAX);
        if ports.is_empty() {
            return Ok((outcome, None));
        }
        self.talk.owner.say(Message::RailOffer(RailOffer {
            attempt,
            ports: ports.iter().map(|local| local.port.clone()).collect(),
            rails_only: self.rules.rails_only,
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
            outcome.may_pass = true;
            return Ok((outcome, None));
        };
        outcome.reasons.extend(of_server(&answer.reasons));
        outcome.may_pass |= answer.may_pass;
        let (connected, ends) = self.connect(ports, answer, deadline, &mut outcome).await;
        // Said even if there are none, so that the server does not hold its halves until they are
        // too old.
        self.talk.owner.say(Message::RailConnect(RailConnect {
            attempt,
            rails: ends,
        }));
        if connected.is_empty() {
            return Ok((outcome, None));
        }
        let is_ready = |message| match message {
            Message::RailReady(ready) if ready.attempt == attempt => Some(ready),
            _ => None,
        };
        let Some(RailReady { rails, reasons, .. }) = self.wait(deadline, is_ready).await? else {
            let reason = "the server did not connect its queue pairs in time";
            outcome.reasons.push(reason.to_owned());
            outcome.may_pass = true;
            self.talk.discard(connected).await;
            return Ok((outcome, None));
        };
        outcome.may_pass |= !reasons.is_empty();
        outcome.reasons.extend(of_server(&reasons));
        let is_ready = |rail: &Connected<F::Half>| rails.contains(&rail.rail);
        let (ready, left_out): (Vec<_>, Vec<_>) = connected.into_iter().partition(is_ready);
        self.talk.discard(left_out).await;
        let purpose = own.map_or(Purpose::Lanes, |_| Purpose::Own);
        let proved = self.talk.prove(attempt, ready, deadline, purpose).await;
        if proved.closed {
            return Err(Over);
        }
        outcome.up = proved.up;
        // A path that does not carry today may be mended tomorrow.
        outcome.may_pass |= !proved.reasons.is_empty();
        outcome.reasons.extend(proved.reasons);
        Ok((outcome, proved.kept))
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
            let (mut connected, mut ends) = (Vec::new(), Vec::new());
            let (mut reasons, mut may_pass) = (Vec::new(), false);
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
                    Err(obstacle) => {
                        may_pass |= obstacle.may_pass;
                        reasons.push(format!("{}: {}", port.port.label, obstacle.reason));
                    }
                }
            }
            (connected, ends, reasons, may_pass)
        });
        match connecting.await {
            Ok((connected, ends, reasons, may_pass)) => {
                outcome.reasons.extend(reasons);
                outcome.may_pass |= may_pass;
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

/// The server's reasons, told from this end's.
fn of_server(reasons: &[String]) -> impl Iterator<Item = String> {
    reasons.iter().map(|reason| format!("the server: {reason}"))
}

/// One half, connected. The server's word is checked as a client's is by a server.
fn connect_one<F: Fabric>(
    fabric: &F,
    book: &Mutex<Book>,
    rules: &ClientRules,
    local: &LocalPort,
    pair: RailPair,
    deadline: Instant,
) -> Result<(Connected<F::Half>, RailEnd), Obstacle> {
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
        return Err(Obstacle::for_good(
            "the server's answer names an address that was not offered",
        ));
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
        return Err(Obstacle::for_good(found.reasons.join(", ")));
    }
    let key = RailKey::new(local, &server);
    let may = {
        let book = book.lock().unwrap_or_else(PoisonError::into_inner);
        book.may_mean(rail, &key)
    };
    if !may {
        return Err(Obstacle::for_good(format!(
            "the server uses number {rail} for another rail"
        )));
    }
    let queue_pairs = end.queue_pairs.len();
    if queue_pairs > usize::from(local.port.queue_pairs) {
        return Err(Obstacle::for_good(
            "the server has more queue pairs than were asked for",
        ));
    }
    let by_cm = invitation.is_some();
    let way = way(invitation, rules, &server)?;
    let nonce = random_bytes();
    let mut half = fabric
        .open(local, gid, nonce, queue_pairs, way)
        .map_err(|error| Obstacle::of("making queue pairs", &error))?;
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
        .map_err(|error| Obstacle::of(&format!("connecting to {}", server.label), &error))?;
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
) -> Result<Way, Obstacle> {
    let Some(invitation) = invitation else {
        return match rules.connect {
            RailDial::Direct => Ok(Way::Direct),
            RailDial::Cm => Err(Obstacle::for_good(
                "the server did not invite to rdma_cm, which is asked for",
            )),
        };
    };
    let address = address_of(&invitation.address);
    let is_the_ports = |gid: &PortGid| match gid.kind {
        GidKind::InfiniBand => is_unicast(address),
        GidKind::RoceV1 | GidKind::RoceV2 => address_of(&gid.gid) == address,
    };
    if !server.gids.iter().all(is_the_ports) {
        return Err(Obstacle::for_good(format!(
            "the server invites to {address}, which is not its port's"
        )));
    }
    Ok(Way::Dial {
        may_be_far: rules.policy.allows(address),
        invitation,
    })
}
