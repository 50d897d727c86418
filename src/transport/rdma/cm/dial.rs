//! Asking a listener for a connection.
//!
//! In: a queue pair that was led nowhere, the listener's address, a token of its. Out: the queue pair,
//! connected. It blocks until the other end has answered, or the deadline.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use super::line::{Line, LineEar};
use super::reader::Reader;
use super::{Token, decided, elsewhere, is_of, parameters};
use crate::sys::verbs::cm::{Event, Found, Identifier, Step, Told};
use crate::transport::rdma::endpoint::{Connected, Endpoint, LinkOptions};
use crate::transport::rdma::words;

/// What a listener told, by way of its owner, to whoever is to dial it.
#[derive(Clone, Copy, Debug)]
pub struct Dial {
    /// This end's address, which leads to the queue pair's port. Its port is 0.
    pub from: SocketAddr,
    /// The listener.
    pub to: SocketAddr,
    /// What it expects.
    pub token: Token,
    /// The queue pair that it has for it.
    pub queue_pair: u32,
}

impl Endpoint {
    /// Connects it by rdma_cm. The other end is connected when this returns.
    ///
    /// # Errors
    /// There is no way there, it refuses, answers with another queue pair, or not by `deadline`.
    pub fn dial(
        mut self,
        dial: &Dial,
        options: &LinkOptions,
        deadline: Instant,
    ) -> io::Result<Connected> {
        let to = dial.to;
        match self.reach(dial, options, deadline) {
            Ok((line, found)) => Ok(self.connected_by(line, &found, options)),
            Err(error) => {
                let why = format!("rdma_cm to {to}: {error}");
                Err(io::Error::new(error.kind(), why))
            }
        }
    }

    fn reach(
        &mut self,
        dial: &Dial,
        options: &LinkOptions,
        deadline: Instant,
    ) -> io::Result<(Line, Found)> {
        let reader = Reader::get()?;
        let (sender, events) = mpsc::channel();
        let ear = LineEar::making(sender);
        let hearing = reader.enter(ear.clone());
        let mut id = Identifier::new(reader.channel(), hearing.key()).map_err(words)?;
        id.resolve_address(Some(dial.from), dial.to, left(deadline)?)
            .map_err(words)?;
        match next(&events, deadline)? {
            Event::AddressResolved { .. } => {}
            other => return Err(failed(other)),
        }
        if !is_of(&id, self.facts()) {
            return Err(elsewhere(&id, self.facts()));
        }
        id.resolve_route(left(deadline)?).map_err(words)?;
        match next(&events, deadline)? {
            Event::RouteResolved { .. } => {}
            other => return Err(failed(other)),
        }
        let with = parameters(self.facts(), options, &dial.token.0);
        id.initialise(self.queue_pair(), true).map_err(words)?;
        id.connect(self.queue_pair(), &with).map_err(words)?;
        let told = match next(&events, deadline)? {
            Event::ConnectResponse { told, .. } => told,
            other => return Err(failed(other)),
        };
        expect(&told, dial.queue_pair)?;
        let found = id
            .ready(self.queue_pair(), &decided(options))
            .map_err(words)?;
        // Before the other end is told: it may end the connection at once.
        ear.is_made(self.alarm().clone());
        id.establish().map_err(words)?;
        Ok((Line::new(id, hearing), found))
    }
}

/// The end that answered must have the queue pair that was told beforehand.
pub(super) fn expect(told: &Told, queue_pair: u32) -> io::Result<()> {
    if told.queue_pair == queue_pair {
        return Ok(());
    }
    let why = "the other end connects another queue pair than it told";
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    // Below a millisecond it would be taken for "at once".
    if left < Duration::from_millis(1) {
        return Err(late());
    }
    Ok(left)
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
}

fn next(events: &Receiver<Event>, deadline: Instant) -> io::Result<Event> {
    // The ear has the sender for as long as the connection is made.
    events.recv_timeout(left(deadline)?).map_err(|_| late())
}

/// The protocol's reason for a request that nobody listens to (InfiniBand 1.2.1, table 105: an
/// invalid service).
const NOBODY_LISTENS: i32 = 8;

fn failed(event: Event) -> io::Error {
    match event {
        Event::Rejected {
            reason: NOBODY_LISTENS,
            ..
        } => io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens there"),
        Event::Rejected { reason, .. } => {
            let why = format!("the request was refused (reason {reason})");
            io::Error::new(io::ErrorKind::ConnectionRefused, why)
        }
        Event::Failed { step, error, .. } => {
            let what = match step {
                Step::Address => "no device leads there",
                Step::Route => "no route was found",
                Step::Connect => "connecting failed",
                Step::Reach => "the other end can't be reached",
            };
            io::Error::new(error.kind(), format!("{what}: {error}"))
        }
        Event::DeviceRemoved { .. } => io::Error::other("the device was removed"),
        Event::Disconnected { .. } => io::Error::other("the other end has ended the connection"),
        other => io::Error::other(format!("rdma_cm said {other:?} out of turn")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_and_failures_are_told_in_words() {
        let told = |event| failed(event).to_string();
        let rejected = |reason| Event::Rejected {
            id: 1,
            reason,
            private_data: Vec::new(),
        };
        assert_eq!(told(rejected(8)), "nobody listens there");
        assert_eq!(told(rejected(28)), "the request was refused (reason 28)");
        let route = Event::Failed {
            id: 1,
            step: Step::Route,
            error: io::Error::from_raw_os_error(libc::EHOSTUNREACH),
        };
        assert!(told(route).starts_with("no route was found: "));
    }

    #[test]
    fn nothing_is_begun_that_is_late() {
        let now = Instant::now();
        assert_eq!(left(now).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(left(now + Duration::from_secs(60)).is_ok());
    }
}
