//! Being asked for connections.
//!
//! In: an address to listen on, and queue pairs for which requests are expected, each under a token
//! that nobody else knows. Out: the queue pairs, connected. A request that carries no such token is
//! refused before anything is made for it, and those who send many of them are heard more slowly:
//! so is everybody else then, but no more than that.
//!
//! Requests are answered on the reader's thread: each costs a few calls that wait for no peer.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::dial::expect;
use super::line::{Line, LineEar};
use super::reader::{Ear, Hearing, Reader};
use super::{TOKEN_BYTES, Token, decided, elsewhere, is_of, parameters};
use crate::sys::verbs::cm::{Event, Identifier, Told};
use crate::tally::Tally;
use crate::transport::rdma::endpoint::{Connected, Endpoint, LinkOptions};
use crate::transport::rdma::words;

/// Requests that the kernel keeps until they are looked at; beyond that it refuses them by itself.
const BACKLOG: u16 = 64;

/// Requests without a token that are refused at once in a second, and the pause for each beyond.
const REFUSALS_PER_SECOND: u32 = 64;
const REFUSAL_PAUSE: Duration = Duration::from_millis(10);

/// Listens on one address of this host, until it is dropped.
pub struct Listener {
    id: Identifier,
    _hearing: Hearing,
    gate: Arc<Gate>,
}

/// What the reader's thread knows of a listener.
struct Gate {
    reader: std::sync::Weak<Reader>,
    /// By digest of their token, so that how long a look-up takes tells nothing of it.
    expected: Mutex<HashMap<[u8; 32], Arc<Place>>>,
    refusals: Mutex<Refusals>,
    /// Its device or address has gone.
    over: AtomicBool,
}

/// A queue pair and the request that it waits for.
struct Place {
    options: LinkOptions,
    state: Mutex<State>,
}

enum State {
    Waits(Box<Endpoint>),
    /// With the number of the other end's queue pair.
    Came(Box<Connected>, Told),
    Failed(String),
    Gone,
}

/// A queue pair that waits for its request. Dropping it takes the token back.
pub struct Awaited {
    place: Arc<Place>,
    token: [u8; 32],
    gate: Arc<Gate>,
    /// Nobody could ask without it.
    _listener: Arc<Listener>,
}

fn digest(token: &[u8]) -> [u8; 32] {
    *blake3::hash(token).as_bytes()
}

impl Listener {
    /// Begins to listen on `address`, which must lead to an RDMA device; port 0 takes a free one.
    ///
    /// # Errors
    /// There is no rdma_cm, or the address is taken or none of an RDMA device.
    pub fn new(address: SocketAddr) -> io::Result<Arc<Self>> {
        let reader = Reader::get()?;
        let gate = Arc::new(Gate {
            reader: Arc::downgrade(&reader),
            expected: Mutex::default(),
            refusals: Mutex::new(Refusals::new(Instant::now())),
            over: AtomicBool::new(false),
        });
        let hearing = reader.enter(gate.clone());
        let mut id = Identifier::new(reader.channel(), hearing.key()).map_err(words)?;
        id.listen(address, BACKLOG).map_err(words)?;
        Ok(Arc::new(Self {
            id,
            _hearing: hearing,
            gate,
        }))
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.id.local_port()
    }

    /// Whether its device or address has gone: whoever wants one has to make another.
    pub fn is_over(&self) -> bool {
        self.gate.over.load(Ordering::Relaxed)
    }

    /// From now on one request that carries `token` is connected with this queue pair.
    pub fn expect(
        self: &Arc<Self>,
        token: Token,
        endpoint: Endpoint,
        options: &LinkOptions,
    ) -> Awaited {
        let token = digest(&token.0);
        let place = Arc::new(Place {
            options: *options,
            state: Mutex::new(State::Waits(Box::new(endpoint))),
        });
        self.gate.expected().insert(token, Arc::clone(&place));
        Awaited {
            place,
            token,
            gate: Arc::clone(&self.gate),
            _listener: Arc::clone(self),
        }
    }
}

impl Awaited {
    /// The queue pair, if the other end's with this number is connected with it.
    ///
    /// # Errors
    /// Nobody has asked, connecting failed, or another queue pair was connected.
    pub fn take(self, other_queue_pair: u32) -> io::Result<Connected> {
        match std::mem::replace(&mut *self.place.state(), State::Gone) {
            State::Came(connected, told) => {
                expect(&told, other_queue_pair)?;
                Ok(*connected)
            }
            State::Failed(why) => Err(io::Error::other(why)),
            State::Waits(_) | State::Gone => {
                Err(io::Error::other("no request by rdma_cm has come in"))
            }
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.gate.expected().remove(&self.token);
    }
}

impl Place {
    fn state(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while it is connected: who looks for it meanwhile waits.
    fn connect(&self, reader: &Arc<Reader>, request: Identifier, told: Told) {
        let mut state = self.state();
        let State::Waits(endpoint) = std::mem::replace(&mut *state, State::Gone) else {
            return;
        };
        *state = match accept(reader, *endpoint, &self.options, request) {
            Ok(connected) => State::Came(Box::new(connected), told),
            Err(error) => State::Failed(format!("a request by rdma_cm was not taken: {error}")),
        };
    }
}

fn accept(
    reader: &Arc<Reader>,
    mut endpoint: Endpoint,
    options: &LinkOptions,
    mut request: Identifier,
) -> io::Result<Connected> {
    if !is_of(&request, endpoint.facts()) {
        return Err(elsewhere(&request, endpoint.facts()));
    }
    let hearing = reader.enter(LineEar::made(endpoint.alarm().clone()));
    request.set_key(hearing.key());
    let with = parameters(endpoint.facts(), options, &[]);
    request
        .initialise(endpoint.queue_pair(), true)
        .map_err(words)?;
    let found = request
        .ready(endpoint.queue_pair(), &decided(options))
        .map_err(words)?;
    request
        .accept(endpoint.queue_pair(), &with)
        .map_err(words)?;
    Ok(endpoint.connected_by(Line::new(request, hearing), &found, options))
}

impl Gate {
    fn expected(&self) -> MutexGuard<'_, HashMap<[u8; 32], Arc<Place>>> {
        // Whole between any two statements.
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place that a request asks for; it is nobody's afterwards. InfiniBand pads private data.
    fn place(&self, private_data: &[u8]) -> Option<Arc<Place>> {
        let token = private_data.get(..TOKEN_BYTES)?;
        self.expected().remove(&digest(token))
    }

    fn refuse(&self, mut request: Identifier) {
        if let Err(error) = request.reject(&[]) {
            // Dropping it refuses as well.
            tracing::debug!(%error, source = %error.io(), "refusing a request by rdma_cm");
        }
        drop(request);
        let verdict = {
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            refusals.count(Instant::now())
        };
        if let Some(count) = verdict.tell {
            tracing::info!(
                count,
                "requests by rdma_cm without a known token were refused"
            );
        }
        if verdict.pause {
            std::thread::sleep(REFUSAL_PAUSE);
        }
    }
}

impl Ear for Gate {
    fn hear(&self, event: Event) {
        match event {
            Event::ConnectRequest { request, told, .. } => {
                match (self.place(&told.private_data), self.reader.upgrade()) {
                    (Some(place), Some(reader)) => place.connect(&reader, request, told),
                    _ => self.refuse(request),
                }
            }
            Event::DeviceRemoved { .. } | Event::AddressChanged { .. } => {
                self.over.store(true, Ordering::Relaxed);
            }
            other => tracing::debug!(event = ?other, "an event of a listener by rdma_cm"),
        }
    }
}

/// Counts refusals. Pure.
struct Refusals {
    since: Instant,
    in_this_second: u32,
    lines: Tally,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Verdict {
    /// The next request has to wait.
    pause: bool,
    /// So many are to be told of.
    tell: Option<u64>,
}

impl Refusals {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            in_this_second: 0,
            lines: Tally::default(),
        }
    }

    fn count(&mut self, now: Instant) -> Verdict {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            self.since = now;
            self.in_this_second = 0;
        }
        self.in_this_second = self.in_this_second.saturating_add(1);
        Verdict {
            pause: self.in_this_second > REFUSALS_PER_SECOND,
            tell: self.lines.count(now),
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaited").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::TELL_PAUSE;

    #[test]
    fn who_is_refused_often_waits_and_the_log_is_told_now_and_then() {
        let begun = Instant::now();
        let mut refusals = Refusals::new(begun);
        let first = refusals.count(begun);
        assert_eq!((first.pause, first.tell), (false, Some(1)));
        for _ in 1..REFUSALS_PER_SECOND {
            assert_eq!(refusals.count(begun), Verdict::default());
        }
        assert!(refusals.count(begun).pause);
        let later = begun + Duration::from_secs(1);
        assert_eq!(refusals.count(later), Verdict::default());
        let told = refusals.count(begun + TELL_PAUSE).tell;
        assert_eq!(told, Some(u64::from(REFUSALS_PER_SECOND) + 2));
    }

    #[test]
    fn a_token_is_good_for_one_request() {
        let gate = Gate {
            reader: std::sync::Weak::new(),
            expected: Mutex::default(),
            refusals: Mutex::new(Refusals::new(Instant::now())),
            over: AtomicBool::new(false),
        };
        let options = LinkOptions {
            mtu: 1024,
            gid_index: 0,
            traffic_class: 0,
            service_level: 0,
            retry_cnt: 6,
            timeout: 14,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            peer_max_msg_bytes: None,
        };
        let place = Arc::new(Place {
            options,
            state: Mutex::new(State::Gone),
        });
        let token = [7; TOKEN_BYTES];
        gate.expected().insert(digest(&token), place);
        let mut padded = token.to_vec();
        padded.extend([0; 24]);
        assert!(gate.place(&token[..TOKEN_BYTES - 1]).is_none());
        assert!(gate.place(&[8; 56]).is_none());
        assert!(gate.place(&[]).is_none());
        assert!(gate.place(&padded).is_some());
        assert!(gate.place(&padded).is_none());
    }
}
