//! What a session does, for those who ask for the status.
//!
//! In: what begins and ends in a session, bytes that moved, ways that windows were exposed in. Out: the
//! session's part of a status page. Counters and a table of what runs, nothing more: it decides
//! nothing, and a session that nobody asks about pays some additions.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::ids::TransferId;
use crate::limits::{STATUS_TRANSFERS_MAX, STATUS_WAYS_MAX};
use crate::progress::Progress;
use crate::wire::message::{Carried, Moved, Running, SessionStatus, TransferStatus, WayStatus};

/// See the module's first paragraph.
#[derive(Debug)]
pub(crate) struct Activity {
    begun: Instant,
    running: Mutex<HashMap<TransferId, Under>>,
    ways: Mutex<BTreeMap<&'static str, Exposed>>,
    traffic: Traffic,
}

/// Something that runs.
#[derive(Debug)]
struct Under {
    kind: Running,
    about: String,
    begun: Instant,
    progress: Arc<Mutex<Progress>>,
}

#[derive(Debug, Default)]
struct Exposed {
    windows: u64,
    reason: String,
}

/// Payload bytes by transport. What adapters of the other end read is not seen here.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    tcp_sent: AtomicU64,
    tcp_received: AtomicU64,
    rdma_received: AtomicU64,
}

impl Traffic {
    /// An answer to a READ was sent over tcp.
    pub(crate) fn sent(&self, bytes: u64) {
        self.tcp_sent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of answers to READs, over tcp.
    pub(crate) fn tcp_sent(&self) -> u64 {
        self.tcp_sent.load(Ordering::Relaxed)
    }

    /// More bytes came.
    pub(crate) fn received(&self, more: Carried) {
        self.tcp_received.fetch_add(more.tcp, Ordering::Relaxed);
        self.rdma_received.fetch_add(more.rdma, Ordering::Relaxed);
    }

    /// Adds what another counted.
    pub(crate) fn add(&self, other: &Self) {
        for (own, other) in [
            (&self.tcp_sent, &other.tcp_sent),
            (&self.tcp_received, &other.tcp_received),
            (&self.rdma_received, &other.rdma_received),
        ] {
            own.fetch_add(other.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// As a status page tells it.
    pub(crate) fn told(&self) -> Vec<Moved> {
        let moved = |transport: &str, sent: u64, received: &AtomicU64| Moved {
            transport: transport.to_owned(),
            sent_bytes: sent,
            received_bytes: received.load(Ordering::Relaxed),
        };
        vec![
            moved(
                "tcp",
                self.tcp_sent.load(Ordering::Relaxed),
                &self.tcp_received,
            ),
            moved("rdma", 0, &self.rdma_received),
        ]
    }
}

impl Activity {
    /// A session begins.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            begun: Instant::now(),
            running: Mutex::default(),
            ways: Mutex::default(),
            traffic: Traffic::default(),
        })
    }

    /// The session's bytes.
    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Something begins; it is over when what this gives is dropped.
    pub(crate) fn begin(
        self: &Arc<Self>,
        transfer: TransferId,
        kind: Running,
        about: String,
        progress: Arc<Mutex<Progress>>,
    ) -> Begun {
        let under = Under {
            kind,
            about,
            begun: Instant::now(),
            progress,
        };
        lock(&self.running).insert(transfer, under);
        Begun {
            activity: Arc::clone(self),
            transfer,
        }
    }

    /// A window was exposed in this way.
    pub(crate) fn exposed(&self, way: &'static str) {
        lock(&self.ways).entry(way).or_default().windows += 1;
    }

    /// Why files go before adapters in this way.
    pub(crate) fn reasoned(&self, way: &'static str, reason: &str) {
        reason.clone_into(&mut lock(&self.ways).entry(way).or_default().reason);
    }

    /// The session's part of a page, as far as it is known here.
    pub(crate) fn told(&self) -> SessionStatus {
        let running = lock(&self.running);
        let mut transfers: Vec<_> = running
            .iter()
            .map(|(id, under)| (under.begun, *id, under))
            .collect();
        // The oldest first: those are what one asks about.
        transfers.sort_by_key(|(begun, id, _)| (*begun, id.0));
        let more = transfers.len().saturating_sub(STATUS_TRANSFERS_MAX);
        let listed = transfers.iter().take(STATUS_TRANSFERS_MAX);
        let ways = lock(&self.ways);
        let ways = ways.iter().take(STATUS_WAYS_MAX);
        SessionStatus {
            up_s: self.begun.elapsed().as_secs(),
            ways: ways
                .map(|(way, exposed)| WayStatus {
                    way: (*way).to_owned(),
                    windows: exposed.windows,
                    reason: exposed.reason.clone(),
                })
                .collect(),
            transfers: listed.map(|(_, id, under)| under.told(*id)).collect(),
            transfers_more: u32::try_from(more).unwrap_or(u32::MAX),
            ..SessionStatus::default()
        }
    }
}

impl Under {
    fn told(&self, transfer: TransferId) -> TransferStatus {
        let progress = *lock(&self.progress);
        TransferStatus {
            transfer,
            kind: self.kind,
            about: self.about.clone(),
            up_s: self.begun.elapsed().as_secs(),
            files_seen: progress.files_seen,
            files_done: progress.files_done,
            bytes_seen: progress.bytes_seen,
            bytes_done: progress.bytes_done,
        }
    }
}

/// Something runs until this is dropped.
#[derive(Debug)]
pub(crate) struct Begun {
    activity: Arc<Activity>,
    transfer: TransferId,
}

impl Drop for Begun {
    fn drop(&mut self) {
        lock(&self.activity.running).remove(&self.transfer);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_told_up_to_a_limit_and_gone_when_over() {
        let activity = Activity::new();
        let begun: Vec<_> = (0..STATUS_TRANSFERS_MAX + 3)
            .map(|number| {
                let id = TransferId([u8::try_from(number).expect("few"); 16]);
                activity.begin(id, Running::Pull, "data/x".to_owned(), Arc::default())
            })
            .collect();
        activity.exposed("odp");
        activity.reasoned("odp", "it works");
        let told = activity.told();
        assert_eq!(told.transfers.len(), STATUS_TRANSFERS_MAX);
        assert_eq!(told.transfers_more, 3);
        assert_eq!(
            (told.ways[0].windows, &*told.ways[0].reason),
            (1, "it works")
        );
        drop(begun);
        assert!(activity.told().transfers.is_empty());
    }

    #[test]
    fn bytes_are_counted_by_transport_and_outlive_their_session() {
        let (all, one) = (Traffic::default(), Traffic::default());
        one.sent(1);
        one.received(Carried {
            tcp: 2,
            rdma: 4,
            resumed: 0,
            reused: 0,
        });
        all.add(&one);
        all.add(&one);
        let told = all.told();
        assert_eq!((told[0].sent_bytes, told[0].received_bytes), (2, 4));
        assert_eq!((&*told[1].transport, told[1].received_bytes), ("rdma", 8));
    }
}
