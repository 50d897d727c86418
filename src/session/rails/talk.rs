//! What both ends do alike while rails are made: hear, and prove.
//!
//! In: the messages about rails that the session's reader hands over, word of queue pairs that were
//! lost, halves of rails that are connected. Out: queue pairs that are in use, proofs, and RailDown
//! for what came to nothing. Calls that block run on the workers, and never two attempts at once:
//! that bounds what a peer can make this end hold.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::book::{Book, RailKey, RailReport};
use super::fabric::{Fabric, Half, Lost, LostSender, Owner};
use crate::limits::{RAIL_QUEUE_PAIRS_MAX, RAILS_MAX};
use crate::session::counters::counters;
use crate::wire::message::{PROBE_BYTES, Probe, RailEnd, RailLink};
use crate::wire::{Fault, FaultCode, Message};
use crate::workers::Workers;

/// How long a whole attempt may take at this end.
pub(super) const ATTEMPT_DEADLINE: Duration = Duration::from_secs(15);
/// How long the READs of probes may take: longer than an adapter goes on resending.
const PROBE_DEADLINE: Duration = Duration::from_secs(5);

/// Messages about rails that wait: all proofs and losses of an attempt, several times over.
const MESSAGES_MAX: usize = 4 * RAILS_MAX * RAIL_QUEUE_PAIRS_MAX;

/// The way to whoever makes a session's rails.
#[derive(Clone, Debug)]
pub(crate) struct RailSender(mpsc::Sender<Message>);

impl RailSender {
    /// Hands over what the peer said about rails.
    ///
    /// # Errors
    /// The peer says far more about rails than there is to say.
    pub(crate) fn hear(&self, message: Message) -> Result<(), Fault> {
        match self.0.try_send(message) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Fault::new(
                FaultCode::Protocol,
                "the peer sends more about rails than there is to say",
            )),
        }
    }
}

/// What came.
pub(super) enum Heard {
    /// The peer said this, and it is not about queue pairs in use.
    Message(Message),
    /// A queue pair in use is gone, at either end.
    Lost,
    /// It is too late.
    TimedOut,
    /// The session is over.
    Closed,
}

/// One end of the conversation.
pub(super) struct Talk<F: Fabric, O> {
    pub(super) fabric: Arc<F>,
    pub(super) owner: Arc<O>,
    pub(super) workers: Workers,
    pub(super) book: Arc<Mutex<Book>>,
    messages: mpsc::Receiver<Message>,
    lost: mpsc::UnboundedReceiver<Lost>,
    lost_sender: LostSender,
    /// Queue pairs in use that were lost so far, at either end.
    pub(super) losses: u64,
    /// Why this end can't keep any: what made in their place would be lost as well.
    pub(super) hopeless: Option<String>,
    pub(super) own: OwnLinks,
}

/// Why a queue pair is of no use any more; empty while it is.
pub(crate) type Gone = Arc<OnceLock<String>>;

/// Queue pairs in use that no lane carries, at the end that reads over them.
#[derive(Default)]
pub(super) struct OwnLinks(Vec<(RailLink, Gone)>);

impl OwnLinks {
    /// One more; what tells its reader when it is gone.
    pub(super) fn add(&mut self, link: RailLink) -> Gone {
        // Those whose reader has gone need not be told anything.
        self.0.retain(|(_, gone)| Arc::strong_count(gone) > 1);
        let gone = Gone::default();
        self.0.push((link, Arc::clone(&gone)));
        gone
    }

    /// The peer has lost it; `false` if it is not one of these.
    fn lose(&mut self, link: RailLink, reason: &str) -> bool {
        let Some(at) = self.0.iter().position(|(known, _)| *known == link) else {
            return false;
        };
        let (_, gone) = self.0.swap_remove(at);
        let _ = gone.set(format!("the peer lost the queue pair: {reason}"));
        true
    }

    /// From now on nobody hears of their losses.
    pub(super) fn lose_all(&mut self, reason: &str) {
        for (_, gone) in self.0.drain(..) {
            let _ = gone.set(reason.to_owned());
        }
    }
}

impl Drop for OwnLinks {
    fn drop(&mut self) {
        self.lose_all("the session ended");
    }
}

/// A half that is connected with the peer's.
pub(super) struct Connected<H> {
    pub(super) rail: u16,
    pub(super) half: H,
    pub(super) queue_pairs: usize,
    /// What our probe holds.
    pub(super) nonce: [u8; PROBE_BYTES],
    /// Theirs.
    pub(super) probe: Probe,
    pub(super) key: RailKey,
    pub(super) report: RailReport,
}

/// What a proof stands for.
pub(super) fn digest(read: &[u8; PROBE_BYTES]) -> [u8; 32] {
    *blake3::hash(read).as_bytes()
}

/// What the peer is told of a half.
pub(super) fn end_of<H: Half>(half: &H, nonce: &[u8; PROBE_BYTES]) -> RailEnd {
    let (address, key) = half.probe();
    RailEnd {
        probe: Probe {
            address,
            key,
            digest: digest(nonce),
        },
        queue_pairs: half.queue_pairs(),
    }
}

/// How far one queue pair's proving is.
#[derive(Clone, Copy, Default)]
struct Proof {
    /// Our READ brought the right bytes.
    ours: bool,
    /// So did theirs.
    theirs: bool,
    /// It is in use, or came to nothing.
    over: bool,
}

struct Proving<H> {
    /// Not here while its probes are read.
    half: Option<H>,
    nonce: [u8; PROBE_BYTES],
    expected: [u8; 32],
    proofs: Vec<Proof>,
    key: RailKey,
    report: RailReport,
}

/// What the READs of a rail's probes brought, with the half that made them.
struct Probed<H> {
    rail: u16,
    half: H,
    reads: Vec<std::io::Result<[u8; PROBE_BYTES]>>,
}

/// How proving ended.
pub(super) struct Proved<C> {
    /// Queue pairs that came into use.
    pub(super) up: usize,
    /// Why others did not.
    pub(super) reasons: Vec<String>,
    /// What was said that belongs to a later attempt, and ended this one.
    pub(super) interrupted: Option<Message>,
    pub(super) closed: bool,
    /// What was not given to lanes.
    pub(super) kept: Option<(RailLink, C)>,
}

impl<C> Default for Proved<C> {
    fn default() -> Self {
        Self {
            up: 0,
            reasons: Vec::new(),
            interrupted: None,
            closed: false,
            kept: None,
        }
    }
}

/// What becomes of queue pairs that are proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Lanes carry them.
    Lanes,
    /// The one that there is is kept for whoever asked.
    Own,
}

impl<F, O> Talk<F, O>
where
    F: Fabric,
    O: Owner<<F::Half as Half>::Connection>,
{
    pub(super) fn new(
        fabric: Arc<F>,
        owner: Arc<O>,
        workers: Workers,
        book: Arc<Mutex<Book>>,
    ) -> (RailSender, Self) {
        let (sender, messages) = mpsc::channel(MESSAGES_MAX);
        let (lost_sender, lost) = mpsc::unbounded_channel();
        let talk = Self {
            fabric,
            owner,
            workers,
            book,
            messages,
            lost,
            lost_sender,
            own: OwnLinks::default(),
            losses: 0,
            hopeless: None,
        };
        (RailSender(sender), talk)
    }

    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next thing, until `deadline`. Losses of queue pairs in use are seen to here; of one that no
    /// lane carries only its reader has to know.
    pub(super) async fn hear(&mut self, deadline: Option<Instant>) -> Heard {
        loop {
            let late = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            let message = tokio::select! {
                biased;
                // This end holds a sender, so there is always a next one.
                Some(lost) = self.lost.recv() => {
                    self.take_loss(lost);
                    return Heard::Lost;
                }
                message = self.messages.recv() => message,
                () = late => return Heard::TimedOut,
            };
            match message {
                Some(Message::RailDown { link, reason }) if self.own.lose(link, &reason) => {
                    counters().queue_pairs_lost.count();
                }
                Some(Message::RailDown { link, reason })
                    if self.take_down(link, &format!("the peer: {reason}")) =>
                {
                    let reason = reason.escape_debug().to_string();
                    tracing::info!(rail = link.rail, reason, "the peer lost a queue pair");
                    self.owner.detach(link);
                    return Heard::Lost;
                }
                Some(message) => return Heard::Message(message),
                None => return Heard::Closed,
            }
        }
    }

    /// A queue pair of a lane of this end is lost.
    fn take_loss(&mut self, lost: Lost) {
        let Lost {
            link,
            reason,
            may_pass,
        } = lost;
        if self.take_down(link, &reason) {
            tracing::info!(rail = link.rail, reason, "rail lost a queue pair");
            let reason = reason.clone();
            self.owner.say(Message::RailDown { link, reason });
        }
        if !may_pass {
            self.hopeless.get_or_insert(reason);
        }
    }

    /// It is not in use any more; `false` if it was not before.
    fn take_down(&mut self, link: RailLink, reason: &str) -> bool {
        let was_up = {
            let mut book = self.book();
            let was_up = book.down(link);
            if was_up {
                book.add_reason(reason);
            }
            was_up
        };
        if was_up {
            self.losses += 1;
            counters().queue_pairs_lost.count();
        }
        was_up
    }

    /// Drops what may block.
    pub(super) async fn discard<T: Send + 'static>(&self, what: T) {
        // A panic there is logged by the workers and changes nothing here.
        let _ = self.workers.run(move || drop(what)).await;
    }

    /// READs the peer's probes, hears of its READs of ours, and takes what is proved in both
    /// directions into use. Ends when all is settled, at the deadline, or when the peer begins
    /// another attempt; when it returns, nothing of the attempt is held that is not in use.
    pub(super) async fn prove(
        &mut self,
        attempt: u32,
        rails: Vec<Connected<F::Half>>,
        deadline: Instant,
        purpose: Purpose,
    ) -> Proved<<F::Half as Half>::Connection> {
        let mut proved = Proved::default();
        let (done, mut probed) = mpsc::unbounded_channel();
        let mut proving = BTreeMap::new();
        for rail in rails {
            let number = rail.rail;
            proving.insert(number, self.begin(rail, deadline, done.clone()));
        }
        drop(done);
        let mut reading = true;
        while proving.values().any(|rail| !rail.is_over()) {
            tokio::select! {
                read = probed.recv(), if reading => match read {
                    Some(read) => self.take_reads(attempt, read, &mut proving, &mut proved),
                    None => {
                        // Whoever's half did not come back panicked; the workers logged it.
                        reading = false;
                        for rail in proving.values_mut().filter(|rail| rail.half.is_none()) {
                            rail.end();
                        }
                    }
                },
                heard = self.hear(Some(deadline)) => match heard {
                    Heard::Lost => {}
                    Heard::Message(message) => {
                        if let Some(later) = self.take_word(attempt, message, &mut proving, &mut proved) {
                            proved.interrupted = Some(later);
                            break;
                        }
                    }
                    Heard::TimedOut => {
                        proved.reasons.push("a queue pair was not proved in time".to_owned());
                        break;
                    }
                    Heard::Closed => {
                        proved.closed = true;
                        break;
                    }
                },
            }
            self.take_into_use(attempt, purpose, &mut proving, &mut proved);
        }
        // The READs that are still under way end by their deadline.
        let mut left = Vec::new();
        while let Some(read) = probed.recv().await {
            left.push(read.half);
        }
        left.extend(proving.into_values().filter_map(|rail| rail.half));
        self.discard(left).await;
        proved
    }

    fn begin(
        &self,
        rail: Connected<F::Half>,
        deadline: Instant,
        done: mpsc::UnboundedSender<Probed<F::Half>>,
    ) -> Proving<F::Half> {
        let Connected {
            rail,
            mut half,
            queue_pairs,
            nonce,
            probe,
            key,
            report,
        } = rail;
        self.workers.submit(move || {
            // From now on: the workers may have had other things to do first.
            let deadline = deadline.min(Instant::now() + PROBE_DEADLINE);
            let read = |at| half.read_probe(at, &probe, deadline);
            let reads = (0..queue_pairs).map(read).collect();
            // Nobody takes it if the session is gone; then it is dropped here, where it may block.
            let _ = done.send(Probed { rail, half, reads });
        });
        Proving {
            half: None,
            nonce,
            expected: probe.digest,
            proofs: vec![Proof::default(); queue_pairs],
            key,
            report,
        }
    }

    fn take_reads(
        &self,
        attempt: u32,
        read: Probed<F::Half>,
        proving: &mut BTreeMap<u16, Proving<F::Half>>,
        proved: &mut Proved<<F::Half as Half>::Connection>,
    ) {
        let Some(rail) = proving.get_mut(&read.rail) else {
            return;
        };
        rail.half = Some(read.half);
        for (queue_pair, (proof, read)) in (0_u8..).zip(rail.proofs.iter_mut().zip(read.reads)) {
            let link = RailLink {
                attempt,
                rail: rail.report.rail,
                queue_pair,
            };
            let failed = match read {
                Ok(read) if digest(&read) == rail.expected => {
                    proof.ours = true;
                    self.owner.say(Message::RailProof { link, read });
                    continue;
                }
                Ok(_) => "a READ of the peer's probe brought other bytes".to_owned(),
                Err(error) => format!("a READ of the peer's probe failed: {error}"),
            };
            if !std::mem::replace(&mut proof.over, true) {
                self.give_up(link, &rail.report, failed, proved);
            }
        }
    }

    fn give_up(
        &self,
        link: RailLink,
        report: &RailReport,
        reason: String,
        proved: &mut Proved<<F::Half as Half>::Connection>,
    ) {
        tracing::info!(rail = link.rail, local = report.local, reason, "no rail");
        proved
            .reasons
            .push(format!("{} to {}: {reason}", report.local, report.remote));
        self.owner.say(Message::RailDown { link, reason });
    }

    /// Gives back what belongs to a later attempt.
    fn take_word(
        &self,
        attempt: u32,
        message: Message,
        proving: &mut BTreeMap<u16, Proving<F::Half>>,
        proved: &mut Proved<<F::Half as Half>::Connection>,
    ) -> Option<Message> {
        let (link, read) = match message {
            Message::RailProof { link, read } => (link, Ok(read)),
            Message::RailDown { link, reason } => (link, Err(reason)),
            Message::RailOffer(offer) if offer.attempt > attempt => {
                return Some(Message::RailOffer(offer));
            }
            _ => return None,
        };
        let rail = proving
            .get_mut(&link.rail)
            .filter(|_| link.attempt == attempt)?;
        let proof = rail.proofs.get_mut(usize::from(link.queue_pair))?;
        if proof.over {
            return None;
        }
        match read {
            // Compared by digests, so that how long it takes tells nothing.
            Ok(read) if digest(&read) == digest(&rail.nonce) => proof.theirs = true,
            Ok(_) => {
                proof.over = true;
                let reason = "the peer did not READ what our probe holds".to_owned();
                self.give_up(link, &rail.report, reason, proved);
            }
            Err(reason) => {
                proof.over = true;
                let reason = reason.escape_debug();
                let (local, remote) = (&rail.report.local, &rail.report.remote);
                proved
                    .reasons
                    .push(format!("{local} to {remote}: the peer says: {reason}"));
            }
        }
        None
    }

    fn take_into_use(
        &self,
        attempt: u32,
        purpose: Purpose,
        proving: &mut BTreeMap<u16, Proving<F::Half>>,
        proved: &mut Proved<<F::Half as Half>::Connection>,
    ) {
        for (number, rail) in proving {
            let Some(half) = &mut rail.half else {
                continue;
            };
            for (queue_pair, proof) in (0_u8..).zip(&mut rail.proofs) {
                if proof.over || !proof.ours || !proof.theirs {
                    continue;
                }
                proof.over = true;
                let link = RailLink {
                    attempt,
                    rail: *number,
                    queue_pair,
                };
                let Some(connection) = half.take(queue_pair.into()) else {
                    let reason = "the queue pair can't be used any more".to_owned();
                    self.give_up(link, &rail.report, reason, proved);
                    continue;
                };
                if purpose == Purpose::Own {
                    proved.up += 1;
                    counters().queue_pairs_up.count();
                    proved.kept = Some((link, connection));
                    continue;
                }
                // In the book first: it may be lost as soon as it is attached.
                self.book().up(link, rail.key.clone(), rail.report.clone());
                if self
                    .owner
                    .attach(link, connection, self.lost_sender.clone())
                {
                    proved.up += 1;
                    counters().queue_pairs_up.count();
                } else {
                    self.book().down(link);
                }
            }
        }
    }
}

impl<H> Proving<H> {
    fn is_over(&self) -> bool {
        self.proofs.iter().all(|proof| proof.over)
    }

    fn end(&mut self) {
        for proof in &mut self.proofs {
            proof.over = true;
        }
    }
}
