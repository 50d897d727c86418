//! A transfer over all the sessions that it takes: attempt by attempt until it has ended by itself.
//!
//! In: the work, the way to the server. Out: the report. A session that is lost - the daemon was killed,
//! restarted or drained, the network was cut - is made anew with growing pauses until nothing has moved
//! for the transfer's stall time, and the same work is done again in it. What an attempt has told and
//! settled goes on to the next one with the account ([`Past`]); so it is told and counted once. A failure
//! before the server has taken the first request ends the run at once, as there is nothing to go on with.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::connect::{Session, Unmade};
use super::home::Home;
use super::transfer::Start;
use super::work::Work;
use crate::engine::Verdict;
use crate::error::{Error, ErrorKind};
use crate::location::Locations;
use crate::options::{Overwrite, TransferOptions};
use crate::progress::{Event, Failure, Report};
use crate::session::peer::Seat;
use crate::session::watch::{Ended, Past, Stamp, Totals, Watch, WatchOptions};
use crate::sys::random_bytes;
use crate::wire::message::Carried;
use crate::wire::{Fault, FaultCode};

/// First and longest pause before a session is made anew. Each is cut by chance to something from its
/// half on, so that the clients of a daemon that comes back don't all come at once.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Attempts in a row that did again what was done and came no further, before what they did counts for
/// nothing: a server may let its clients in and drop them for ever.
const FRUITLESS_MAX: u32 = 4;

/// A server that is not heard of for longer than this while nothing moves is asked whether it is there,
/// and has as long to answer. A quarter of the stall time if that is shorter: finding a new way has to fit
/// into it.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// A transfer.
pub(super) struct Run {
    pub(super) home: Arc<Home>,
    pub(super) work: Work,
    pub(super) options: TransferOptions,
    pub(super) start: Start,
    pub(super) roots: Vec<Vec<u8>>,
    pub(super) locations: Locations,
    pub(super) account: Account,
}

/// What the report needs beside the account of entries.
#[derive(Default)]
pub(super) struct Account {
    /// What landed by which way.
    carried: Carried,
    /// Payload bytes that travelled.
    travelled_bytes: u64,
    /// What the attempts so far have moved by their own account.
    moved_bytes: u64,
    reconnects: u64,
    /// A server has taken the request.
    agreed: bool,
}

/// An attempt that is over.
struct Attempt {
    ended: Ended,
    begun: Instant,
    /// What this end sent meanwhile, if it sent over tcp alone.
    sent_bytes: Option<u64>,
}

impl Run {
    pub(super) async fn go(mut self) -> Result<Report, Error> {
        let (mut session, mut seat) = self.begin().await.map_err(|unmade| unmade.error)?;
        self.tell_started(&session, &seat).await;
        let mut past = None;
        let (mut pause, mut fruitless) = (PAUSE, 0);
        loop {
            let attempt = self.attempt(&session, seat, past).await;
            let lost = self.is_lost(&session, &attempt.ended);
            self.count(&attempt);
            let Attempt { ended, begun, .. } = attempt;
            let fault = match ended.fault {
                Some(fault) if lost => fault,
                fault => return self.report(&session, ended.past.totals, fault),
            };
            if self.start.moved.advanced() > begun {
                (pause, fruitless) = (PAUSE, 0);
            } else {
                fruitless += 1;
            }
            match self.again(&fault, &mut pause, fruitless).await {
                Ok(made) => (session, seat) = made,
                Err(error) => return Err(self.give_up(&session, ended.past, error).await),
            }
            past = Some(ended.past);
        }
    }

    /// A session with its data connections, and a seat in it.
    async fn begin(&self) -> Result<(Arc<Session>, Seat), Unmade> {
        let passing = |error: Error| Unmade {
            passes: matches!(
                error.kind(),
                ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::Busy
            ),
            error,
        };
        let session = self.home.renewed().await?;
        session.connect_data().await.map_err(passing)?;
        let seat = session.seat(self.start.id).map_err(passing)?;
        Ok((session, seat))
    }

    /// Does the work in a session, as far as that goes.
    async fn attempt(&self, session: &Arc<Session>, seat: Seat, past: Option<Past>) -> Attempt {
        let again = past.is_some();
        let traffic = session.peer().activity().traffic();
        let (begun, sent_before) = (Instant::now(), traffic.tcp_sent());
        let watch = Watch::new(WatchOptions {
            transfer: self.start.id,
            roots: self.roots.clone(),
            locations: Some(self.locations.clone()),
            shared: Arc::clone(&self.start.shared),
            events: Some(self.start.events.clone()),
            cancel: self.start.cancel.clone(),
            stall_timeout: self.options.stall_timeout,
            moved: Arc::clone(&self.start.moved),
            // How long to wait is decided here, whatever the server says.
            renewals_count: false,
            goes_on: self.options.reconnect.then_some(past),
            exists_is_error: again && self.options.overwrite == Overwrite::Error,
        });
        let run = self.work.run(session, seat, watch, &self.options, again);
        let patience = (self.options.stall_timeout / 4).min(SILENCE_MAX);
        let ended = tokio::select! {
            ended = run => ended,
            never = guard(session, &self.start.moved, patience), if self.options.reconnect => {
                match never {}
            }
        };
        let by_tcp = session.transport(Carried::default()).transport == "tcp";
        let sent = traffic.tcp_sent().saturating_sub(sent_before);
        Attempt {
            ended,
            begun,
            sent_bytes: (by_tcp && self.work.sends()).then_some(sent),
        }
    }

    /// Whether an attempt was ended by the end of its session, and may go on in another.
    fn is_lost(&mut self, session: &Session, ended: &Ended) -> bool {
        let agreed_before = self.account.agreed;
        self.account.agreed |= ended.agreed;
        let Some(fault) = &ended.fault else {
            return false;
        };
        // One that began to drain after it had let us in.
        let refused = !ended.agreed && fault.class() == FaultCode::Busy;
        let passes = session.peer().was_lost_by(fault) || (agreed_before && refused);
        self.options.reconnect && self.account.agreed && ended.told && passes
    }

    /// Adds what travelled in an attempt.
    fn count(&mut self, attempt: &Attempt) {
        let Attempt {
            ended, sent_bytes, ..
        } = attempt;
        let seen = ended.past.totals.progress.bytes_moved;
        let moved = seen.saturating_sub(self.account.moved_bytes);
        self.account.moved_bytes = seen;
        let mut carried = ended.ledger.carried;
        let travelled = match (self.work.sends(), &ended.fault) {
            // Only the receiver knows what was lent to it and not read.
            (true, None) if carried.resumed > 0 || carried.reused > 0 => {
                carried.tcp.saturating_add(carried.rdma)
            }
            (true, None) => moved,
            (true, Some(_)) => {
                // It could not say what came.
                carried.tcp = sent_bytes.unwrap_or_default();
                sent_bytes.unwrap_or(moved)
            }
            (false, _) => moved,
        };
        let account = &mut self.account;
        account.travelled_bytes += travelled;
        account.carried.tcp += carried.tcp;
        account.carried.rdma += carried.rdma;
        account.carried.resumed += carried.resumed;
        account.carried.reused += carried.reused;
    }

    /// Makes a session anew, once that works, and takes a seat in it.
    async fn again(
        &mut self,
        fault: &Fault,
        pause: &mut Duration,
        fruitless: u32,
    ) -> Result<(Arc<Session>, Seat), Error> {
        let since = Instant::now();
        // To look through a large tree again may take long, and is not endless.
        let moved = match fruitless {
            0..=FRUITLESS_MAX => self.start.moved.moved(),
            _ => self.start.moved.advanced(),
        };
        let deadline = moved + self.options.stall_timeout;
        tracing::warn!(
            transfer = %self.start.id,
            reason = %fault.text.escape_debug(),
            "the session was lost"
        );
        let reason = self.words_of(fault);
        self.tell(Event::Lost { reason }).await;
        let mut cancel = self.start.cancel.clone();
        let mut last = None;
        loop {
            let wake = (Instant::now() + by_chance(*pause)).min(deadline);
            *pause = (*pause * 2).min(PAUSE_MAX);
            let trying = async {
                sleep_until(wake).await;
                timeout_at(deadline, self.begin()).await
            };
            let tried = tokio::select! {
                cancelled = cancel.wait_for(Option::is_some) => {
                    let fault = cancelled.ok().and_then(|fault| fault.clone());
                    let gone = || Fault::new(FaultCode::Cancelled, "cancelled");
                    return Err(fault.unwrap_or_else(gone).into());
                }
                tried = trying => tried,
            };
            match tried {
                Ok(Ok((session, seat))) => {
                    self.account.reconnects += 1;
                    let after = since.elapsed();
                    tracing::info!(
                        transfer = %self.start.id, session = %seat.peer.id, ?after, "connected again"
                    );
                    let transport = session.transport(Carried::default()).transport;
                    self.tell(Event::Reconnected { transport, after }).await;
                    return Ok((session, seat));
                }
                Ok(Err(Unmade {
                    error,
                    passes: true,
                })) => {
                    tracing::debug!(transfer = %self.start.id, %error, "no new session yet");
                    last = Some(error);
                }
                Ok(Err(unmade)) => return Err(unmade.error),
                Err(_) => return Err(self.too_late(fault, last)),
            }
            if Instant::now() >= deadline {
                return Err(self.too_late(fault, last));
            }
        }
    }

    /// The server has not come back in time.
    fn too_late(&self, fault: &Fault, last: Option<Error>) -> Error {
        let kind = match &last {
            Some(error) => error.kind(),
            None => ErrorKind::of_fault(fault.class()),
        };
        let seconds = self.options.stall_timeout.as_secs_f64();
        let text = self.words_of(fault);
        let message = format!("{text}; trying again came to nothing for {seconds} s");
        let error = Error::new(kind, message);
        match last {
            Some(last) => error.with_source(last),
            None => error,
        }
    }

    /// What a fault says, and who, if it was the server.
    fn words_of(&self, fault: &Fault) -> String {
        let server = self.home.session().host().to_string();
        said_by(&server, fault.clone()).message().to_owned()
    }

    /// The error that ends a run between two sessions.
    async fn give_up(mut self, session: &Session, mut past: Past, error: Error) -> Error {
        for (text, path) in past.remarks.take() {
            past.totals.warnings += 1;
            let fault = Fault::new(FaultCode::Special, text);
            let location = None;
            self.tell(Event::Warning {
                path,
                fault,
                location,
            })
            .await;
        }
        let ended = Fault::new(FaultCode::Cancelled, error.message());
        self.log_end(&past.totals, Some(&ended));
        let report = self.summed_up(session, past.totals);
        error.with_report(report)
    }

    async fn tell_started(&mut self, session: &Session, seat: &Seat) {
        let chosen = session.transport(Carried::default());
        tracing::info!(
            transfer = %self.start.id,
            session = %seat.peer.id,
            transport = chosen.transport,
            reason = %chosen.reason.escape_debug(),
            "started"
        );
        self.tell(Event::Started {
            transfer: self.start.id,
            transport: chosen.transport,
            reason: chosen.reason,
            note: chosen.note,
        })
        .await;
    }

    async fn tell(&mut self, event: Event) {
        let mut cancel = self.start.cancel.clone();
        tokio::select! {
            // A watcher that has gone needs no events.
            _ = self.start.events.send(event) => {}
            // One that sleeps must not keep its own cancellation from working.
            Ok(_) = cancel.wait_for(Option::is_some) => {}
        }
    }

    fn report(
        self,
        session: &Session,
        totals: Totals,
        fault: Option<Fault>,
    ) -> Result<Report, Error> {
        self.log_end(&totals, fault.as_ref());
        let mut report = self.summed_up(session, totals);
        let Some(fault) = fault else {
            return Ok(report);
        };
        // What ended the run may be the failure of an entry, and is then about that entry's place.
        let same = |failure: &Failure| {
            (failure.fault.code, &failure.fault.text) == (fault.code, &fault.text)
        };
        let entry = report.failures.iter().find(|failure| same(failure));
        let Some(location) = entry.and_then(|failure| failure.location.clone()) else {
            return Err(said_by(&session.host().to_string(), fault).with_report(report));
        };
        // What was under way then follows from it.
        let follows = |code| code == fault.code || code == FaultCode::Cancelled;
        report
            .failures
            .retain(|failure| !follows(failure.fault.code));
        Err(Error::from(fault).at(location).with_report(report))
    }

    fn log_end(&self, totals: &Totals, fault: Option<&Fault>) {
        let result = fault.map_or("done", |_| "ended early");
        let ledger = &totals.ledger;
        tracing::info!(
            transfer = %self.start.id,
            result,
            reason = fault.map(|fault| fault.text.escape_debug().to_string()),
            published = ledger.published,
            updated = ledger.updated,
            unchanged = ledger.unchanged,
            deleted = ledger.deleted,
            failed = ledger.failed,
            bytes = self.account.travelled_bytes,
            reconnects = self.account.reconnects,
            "ended"
        );
    }

    fn summed_up(&self, session: &Session, totals: Totals) -> Report {
        let account = &self.account;
        let ledger = &totals.ledger;
        let failure_kind = match ledger.verdict() {
            Verdict::Clean => None,
            Verdict::One(code) => Some(ErrorKind::of_fault(code)),
            Verdict::Several => {
                let mut kinds = ledger
                    .classes()
                    .iter()
                    .map(|(code, _)| ErrorKind::of_fault(*code));
                let first = kinds.next();
                if kinds.all(|kind| Some(kind) == first) {
                    first
                } else {
                    Some(ErrorKind::Several)
                }
            }
        };
        let mut carried = account.carried;
        if account.reconnects > 0 {
            // What attempts had brought of files that a later one settled came by this run.
            let settled = totals.settled_moved_bytes;
            let own = account.travelled_bytes.saturating_sub(settled);
            let resumed = match self.work.sends() {
                true => carried.resumed,
                false => totals.resumed_bytes,
            };
            carried.resumed = resumed.saturating_sub(own);
            if !self.work.sends() {
                carried.reused = totals.reused_bytes;
            }
        }
        let moved_by = session.transport(carried);
        let listed = u64::try_from(totals.failures.len()).unwrap_or(u64::MAX);
        Report {
            transfer: self.start.id,
            transport: moved_by.transport,
            reason: moved_by.reason,
            carried,
            hash: self.options.hash,
            dry_run: self.options.dry_run,
            published: ledger.published,
            files: totals.files,
            unchanged: ledger.unchanged,
            updated: ledger.updated,
            deleted: ledger.deleted,
            failed: ledger.failed,
            warnings: totals.warnings,
            bytes_moved: account.travelled_bytes,
            bytes_resumed: carried.resumed,
            bytes_reused: carried.reused,
            bytes_published: totals.bytes_published,
            reconnects: account.reconnects,
            elapsed: self.start.begun.elapsed(),
            data_elapsed: totals.data_elapsed(),
            failures_unlisted: ledger.failed.saturating_sub(listed),
            failures: totals.failures,
            failure_kind,
        }
    }
}

/// Sees to it that a session whose server is not there any more ends, though nothing says so: a cable that
/// was pulled, a proxy that swallows everything. Where only the data connections are dead, they are
/// made anew.
async fn guard(session: &Session, moved: &Stamp, patience: Duration) -> Infallible {
    let mut dropped_at = None;
    loop {
        let since = moved.moved();
        sleep_until(since.max(dropped_at.unwrap_or(since)) + patience).await;
        if moved.moved() > since {
            continue;
        }
        if session.ping(patience).await.is_err() {
            if session.peer().over().is_none() {
                let text = format!("{}: the server does not answer", session.host());
                session.peer().close(&Fault::new(FaultCode::TimedOut, text));
            }
            // The run hears of it and ends.
            return std::future::pending().await;
        }
        if moved.moved() == since && since.elapsed() >= 2 * patience {
            tracing::debug!("nothing moves: data connections are made anew");
            session.peer().drop_connections();
        }
        dropped_at = Some(Instant::now());
    }
}

/// The error for a fault, which names the server if it was the server that said it.
pub(super) fn said_by(server: &str, fault: Fault) -> Error {
    if fault.from_peer {
        return Error::new(
            ErrorKind::of_fault(fault.class()),
            format!("{server}: {}", fault.text),
        );
    }
    fault.into()
}

/// Something from the half of a pause up to all of it.
fn by_chance(pause: Duration) -> Duration {
    let [chance] = random_bytes::<1>();
    pause / 2 + pause / 2 * u32::from(chance) / u32::from(u8::MAX)
}
