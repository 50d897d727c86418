//! What a session's data connections bring, from memory to memory.
//!
//! The server lends a region, and the lanes read it over and over into slots that nobody looks at: the
//! same connections, the same READs as many at a time as a transfer has, and nothing else of one.
//! In: how long and how much. Out: bytes and time, and how long single READs take.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout_at};

use super::again::said_by;
use super::connect::Session;
use crate::engine::LaneId;
use crate::engine::receiver::ReceiverOptions;
use crate::error::{Error, ErrorKind};
use crate::ids::TransferId;
use crate::integrity::HashPlan;
use crate::lane::{Fetch, FetchError, LANDING_SLOT_BYTES, LaneEvent, Store};
use crate::limits::RAILS_MAX;
use crate::session::exposing::RENEWAL_PAUSE;
use crate::session::peer::{Inbound, Seat};
use crate::units::ChunkSize;
use crate::wire::level::LEVEL_BENCH;
use crate::wire::message::{Carried, Grant, HashKind, RegionKey};
use crate::wire::{Fault, FaultCode, Message};

/// Bytes that the server is asked to lend.
const REGION_BYTES: u64 = 4 << 20;
/// Bytes of a READ that is one of many: a chunk, as transfers have them.
const READ_BYTES: u64 = LANDING_SLOT_BYTES as u64;
/// Bytes of a READ that is alone.
const SMALL_BYTES: u64 = 4096;
/// Single READs: as many as say something of the slowest in a hundred, unless that takes too long.
const SINGLES_MAX: usize = 2000;
const SINGLES_TIME_MAX: Duration = Duration::from_secs(2);

/// How much is measured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Bench {
    /// For how long bytes are read; single READs take at most as long again, and 2 s. Default 3 s.
    pub time: Duration,
    /// How many bytes are read, in whole READs, beside those that the connections begin with. Default:
    /// as many as the time allows.
    pub bytes_max: u64,
}

impl Default for Bench {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(3),
            bytes_max: u64::MAX,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchReport {
    /// `rdma` or `tcp`.
    pub transport: &'static str,
    /// For rdma: its rails. For tcp: why nothing better.
    pub reason: String,
    /// Data connections that were used; for rdma, queue pairs.
    pub connections: usize,
    /// Bytes that were read.
    pub bytes: u64,
    /// In what time: from when all connections were busy to the last byte.
    pub elapsed: Duration,
    /// READs of 4 KiB, one at a time.
    pub reads: usize,
    /// What half of them took at most.
    pub read_p50: Duration,
    /// What 99 in a hundred took at most.
    pub read_p99: Duration,
}

pub(super) async fn run(session: &Session, options: &Bench) -> Result<BenchReport, Error> {
    if options.time.is_zero() || options.bytes_max == 0 {
        let message = "a measurement takes some time and some bytes";
        return Err(Error::new(ErrorKind::Usage, message));
    }
    if session.welcome().level < LEVEL_BENCH {
        let host = session.host();
        let message = format!("{host}: the server is of a release that lends nothing to measure");
        return Err(Error::new(ErrorKind::Usage, message).with_hint("update rdcpd there"));
    }
    session.connect_data().await?;
    let seat = session.seat(TransferId::random())?;
    seat.say(Message::Bench {
        region_bytes: REGION_BYTES,
    });
    let mut renewals = interval(RENEWAL_PAUSE);
    renewals.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut measuring = Measuring {
        seat,
        server: session.host().to_string(),
        lanes: Vec::new(),
        flying: HashMap::new(),
        next_token: 0,
        carried: Carried::default(),
        stall_timeout: session.stall_timeout(),
        moved: Instant::now(),
        renewals,
        over: false,
    };
    let grant = measuring.grant().await?;
    let (connections, bytes, elapsed) = measuring.stream(&grant, options).await?;
    let time = options.time.min(SINGLES_TIME_MAX);
    let mut singles = measuring.singles(&grant, time).await?;
    measuring.release(&grant).await?;
    singles.sort_unstable();
    let report = session.transport(measuring.carried);
    Ok(BenchReport {
        transport: report.transport,
        reason: report.reason,
        connections,
        bytes,
        elapsed,
        reads: singles.len(),
        read_p50: percentile(&singles, 50),
        read_p99: percentile(&singles, 99),
    })
}

/// What that many in a hundred took at most; they ascend.
fn percentile(ascending: &[Duration], hundredths: usize) -> Duration {
    let at = (ascending.len() * hundredths).div_ceil(100);
    let found = ascending.get(at.saturating_sub(1));
    found.copied().unwrap_or_default()
}

/// A measurement under way; dropped before its end, it tells the server that nobody measures.
struct Measuring {
    seat: Seat,
    server: String,
    /// With their rails.
    lanes: Vec<(LaneId, u16)>,
    /// READs under way, with their lanes.
    flying: HashMap<u64, LaneId>,
    next_token: u64,
    /// What was asked for, by the way it comes.
    carried: Carried,
    stall_timeout: Duration,
    /// When something came last.
    moved: Instant,
    renewals: Interval,
    over: bool,
}

impl Drop for Measuring {
    fn drop(&mut self) {
        if !self.over {
            let fault = Fault::new(FaultCode::Cancelled, "the client does not measure any more");
            self.seat.say(Message::Failed(fault));
        }
    }
}

/// What is of interest to whoever waits.
enum News {
    Landed(Result<(), FetchError>),
    Message(Message),
    /// A connection came or went.
    Lanes,
}

impl Measuring {
    async fn grant(&mut self) -> Result<Grant, Error> {
        loop {
            match self.news().await? {
                News::Message(Message::Grant(grant)) if is_readable(&grant) => return Ok(grant),
                News::Message(_) => return Err(out_of_turn()),
                News::Landed(..) | News::Lanes => {}
            }
        }
    }

    /// The connections that transfers would read this by, each with its key: the rails', else tcp's.
    fn reach(&self, grant: &Grant) -> Vec<(LaneId, RegionKey)> {
        let with_key = |(lane, rail): &(LaneId, u16)| {
            let key = grant.keys.iter().find(|key| key.rail == *rail)?;
            Some((*lane, *key))
        };
        let all: Vec<_> = self.lanes.iter().filter_map(with_key).collect();
        let has_rails = all.iter().any(|(_, key)| key.rail != 0);
        all.into_iter()
            .filter(|(_, key)| (key.rail != 0) == has_rails)
            .collect()
    }

    /// Reads with all connections busy: how many there were, the bytes, and the time they took.
    async fn stream(
        &mut self,
        grant: &Grant,
        options: &Bench,
    ) -> Result<(usize, u64, Duration), Error> {
        // What a receiver has under way.
        let limits = ReceiverOptions::new(HashKind::None, ChunkSize::DEFAULT);
        let each = limits.lane_fetches_max as usize;
        let read_bytes = READ_BYTES.min(grant.len);
        let in_flight = |flying: usize| flying as u64 * read_bytes;
        let most = limits.in_flight_bytes_max.min(options.bytes_max);
        let places = grant.len / read_bytes;
        let mut place = 0;
        // READs that come back before anything counts: while they are under way, slots are registered
        // and windows of tcp open.
        let mut warming = None;
        let (mut began, mut ended) = (Instant::now(), Instant::now());
        let (mut bytes, mut connections) = (0_u64, 0);
        loop {
            let wanted = options.bytes_max - bytes.min(options.bytes_max);
            let is_over = warming == Some(0)
                && (began.elapsed() >= options.time || in_flight(self.flying.len()) >= wanted);
            let lanes = self.reach(grant);
            connections = lanes.len().max(connections);
            loop {
                let next = in_flight(self.flying.len() + 1);
                let is_full = !self.flying.is_empty() && (next > most || next > wanted);
                if is_over || is_full {
                    break;
                }
                // The first of the connections that have least under way.
                let busy = |lane: LaneId| self.flying.values().filter(|on| **on == lane).count();
                let least = lanes.iter().min_by_key(|(lane, _)| busy(*lane));
                let Some(&(lane, key)) = least.filter(|(lane, _)| busy(*lane) < each) else {
                    break;
                };
                if !self.post(lane, key, place * read_bytes, read_bytes) {
                    break;
                }
                place = (place + 1) % places;
            }
            if self.flying.is_empty() && is_over {
                return Ok((connections, bytes, ended - began));
            }
            if !self.flying.is_empty() {
                warming.get_or_insert(self.flying.len());
            }
            let is_warm = warming == Some(0);
            match self.news().await? {
                News::Landed(Ok(())) if is_warm => {
                    bytes += read_bytes;
                    ended = Instant::now();
                }
                // One whose connection was lost counts as little: others go on, and it is made anew.
                News::Landed(Ok(()) | Err(FetchError::ConnectionLost)) => {
                    if let Some(left) = warming.as_mut().filter(|_| !is_warm) {
                        *left -= 1;
                        (began, ended) = (Instant::now(), Instant::now());
                    }
                }
                News::Landed(Err(error)) => return Err(refused(error)),
                News::Message(_) => return Err(out_of_turn()),
                News::Lanes => {}
            }
        }
    }

    /// Reads a little at a time, in turn over all connections, and tells how long each READ took.
    async fn singles(&mut self, grant: &Grant, time: Duration) -> Result<Vec<Duration>, Error> {
        let bytes = SMALL_BYTES.min(grant.len);
        let places = grant.len / bytes;
        let mut took = Vec::new();
        let began = Instant::now();
        while took.len() < SINGLES_MAX && (took.is_empty() || began.elapsed() < time) {
            let turn = took.len() as u64;
            let lanes = self.reach(grant);
            let asked = Instant::now();
            let next = lanes.get(took.len() % lanes.len().max(1));
            let offset = turn % places * bytes;
            if !next.is_some_and(|&(lane, key)| self.post(lane, key, offset, bytes)) {
                // It is gone, which is about to be told.
                self.news().await?;
                continue;
            }
            while !self.flying.is_empty() {
                match self.news().await? {
                    News::Landed(Ok(())) => took.push(asked.elapsed()),
                    News::Landed(Err(FetchError::ConnectionLost)) | News::Lanes => {}
                    News::Landed(Err(error)) => return Err(refused(error)),
                    News::Message(_) => return Err(out_of_turn()),
                }
            }
        }
        Ok(took)
    }

    /// Gives the memory back, and waits until the server has taken it.
    async fn release(&mut self, grant: &Grant) -> Result<(), Error> {
        self.seat.say(Message::Release(vec![grant.region]));
        self.over = true;
        loop {
            match self.news().await? {
                News::Message(Message::Done) => return Ok(()),
                News::Message(_) => return Err(out_of_turn()),
                News::Landed(..) | News::Lanes => {}
            }
        }
    }

    fn post(&mut self, lane: LaneId, key: RegionKey, offset: u64, len: u64) -> bool {
        let token = self.next_token;
        self.next_token += 1;
        let is_posted = self.seat.fetch(
            lane,
            Fetch {
                token,
                remote: key.key,
                // No overflow: looked at when it was granted.
                offset: key.address + offset,
                len,
                hash: HashPlan::None,
                store: Store::Discard,
            },
        );
        if is_posted {
            self.flying.insert(token, lane);
            match key.rail {
                0 => self.carried.tcp += len,
                _ => self.carried.rdma += len,
            }
        }
        is_posted
    }

    /// What comes next.
    async fn news(&mut self) -> Result<News, Error> {
        loop {
            let deadline = self.moved + self.stall_timeout;
            let inbound = tokio::select! {
                biased;
                // First, as there may always be something in the inbox.
                _ = self.renewals.tick() => {
                    self.seat.say(Message::Credit { pages: 0, region_bytes: 0 });
                    continue;
                }
                inbound = timeout_at(deadline, self.seat.inbox.recv()) => inbound,
            };
            let Ok(inbound) = inbound else {
                let seconds = self.stall_timeout.as_secs_f64();
                let server = &self.server;
                let message = format!("{server}: nothing came for {seconds} s");
                return Err(Error::new(ErrorKind::TimedOut, message));
            };
            match inbound {
                Some(Inbound::Lane(LaneEvent::Landed { token, result })) => {
                    self.moved = Instant::now();
                    self.flying.remove(&token);
                    return Ok(News::Landed(result.map(drop)));
                }
                Some(Inbound::Lane(_)) => {}
                Some(Inbound::LaneUp(lane, rail)) => {
                    self.lanes.push((lane, rail));
                    return Ok(News::Lanes);
                }
                Some(Inbound::LaneDown(lane)) => {
                    self.lanes.retain(|(known, _)| *known != lane);
                    return Ok(News::Lanes);
                }
                Some(Inbound::Message(Message::Failed(fault))) => {
                    self.over = true;
                    return Err(said_by(&self.server, fault));
                }
                Some(Inbound::Message(message)) => {
                    self.moved = Instant::now();
                    return Ok(News::Message(message));
                }
                Some(Inbound::Over(fault)) => {
                    self.over = true;
                    return Err(said_by(&self.server, fault));
                }
                None => {
                    let message = format!("{}: the session ended", self.server);
                    return Err(Error::new(ErrorKind::Unreachable, message));
                }
            }
        }
    }
}

/// Whether it has bytes, each with an address, and a way to read them.
fn is_readable(grant: &Grant) -> bool {
    let keys = &grant.keys;
    (1..=REGION_BYTES).contains(&grant.len)
        && (1..=RAILS_MAX).contains(&keys.len())
        && keys
            .iter()
            .all(|key| key.address.checked_add(grant.len).is_some())
}

fn refused(error: FetchError) -> Error {
    Error::new(ErrorKind::Unreachable, "the server did not serve a read").with_source(error)
}

fn out_of_turn() -> Error {
    let message = "the server broke the protocol of measurements";
    Error::new(ErrorKind::Unreachable, message)
        .with_hint("is it a damaged or foreign build of rdcpd?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{RegionId, RemoteKey};

    #[test]
    fn percentiles_are_measured_values() {
        let all: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&all, 50), Duration::from_millis(100));
        assert_eq!(percentile(&all, 99), Duration::from_millis(198));
        assert_eq!(percentile(&all[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }

    #[test]
    fn only_regions_that_can_be_read_are_taken() {
        let key = RegionKey {
            rail: 0,
            address: 0,
            key: RemoteKey(1),
        };
        let grant = Grant {
            region: RegionId(1),
            len: REGION_BYTES,
            lease_ms: 1,
            keys: vec![key],
            parts: Vec::new(),
        };
        assert!(is_readable(&grant));
        for wrong in [
            Grant {
                len: 0,
                ..grant.clone()
            },
            Grant {
                len: REGION_BYTES + 1,
                ..grant.clone()
            },
            Grant {
                keys: Vec::new(),
                ..grant.clone()
            },
            Grant {
                keys: vec![
                    key,
                    RegionKey {
                        address: u64::MAX - 5,
                        ..key
                    },
                ],
                ..grant.clone()
            },
        ] {
            assert!(!is_readable(&wrong), "{wrong:?}");
        }
    }
}
