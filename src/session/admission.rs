//! Who may come in when there is not room for everybody.
//!
//! In: where a connection comes from. Out: a place for its handshake, or whether its origin may have
//! one more place among the sessions. An origin is an address, or a network of IPv6 that one host
//! commonly has all of. Places are shared by one rule: **an origin may hold [`FREE_MULTIPLE`] times
//! as many as are free**. So one alone gets most of them and can't take the last ones. When several
//! have taken all nevertheless, the one with most has to give way first, by what is overdue or idle.
//! Nothing here knows what is said on a connection.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

/// Of 1024 places one origin gets 896, a second 112 of those that are left, a third 14.
const FREE_MULTIPLE: usize = 7;

/// A handshake that is younger is not given up for another: what is honest is done by then, even
/// when a thousand clients come at once.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where connections come from, as far as shares go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin(IpAddr);

impl Origin {
    /// The origin of connections from `address`.
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() & (u128::MAX << 64);
                Self(IpAddr::V6(network.into()))
            }
            address => Self(address),
        }
    }
}

/// Whether one who holds `held` of `places_max` places may have one more while `taken` of them are
/// taken.
pub(crate) fn is_fair(held: usize, taken: usize, places_max: usize) -> bool {
    let free = places_max.saturating_sub(taken);
    held < free.saturating_mul(FREE_MULTIPLE)
}

/// Connections whose handshake is under way.
#[derive(Debug)]
pub(crate) struct Handshakes {
    places_max: usize,
    table: Mutex<Table>,
    left: Notify,
}

#[derive(Debug, Default)]
struct Table {
    /// By arrival.
    by_origin: HashMap<Origin, BTreeMap<u64, Waiting>>,
    taken: usize,
    arrived: u64,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    /// Dropped when the place is needed for another.
    _kept: oneshot::Sender<()>,
}

/// The place of one handshake; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Place {
    handshakes: Arc<Handshakes>,
    origin: Origin,
    number: u64,
    kept: oneshot::Receiver<()>,
}

impl Handshakes {
    pub(crate) fn new(places_max: usize) -> Arc<Self> {
        Arc::new(Self {
            places_max: places_max.max(1),
            table: Mutex::default(),
            left: Notify::new(),
        })
    }

    /// A place for a connection from `origin`. If there is none, or it has more than its share, the
    /// oldest handshake that should be done by now gives up its own; else this waits.
    pub(crate) async fn enter(self: &Arc<Self>, origin: Origin) -> Place {
        loop {
            let left = self.left.notified();
            let now = Instant::now();
            if let Some(place) = self.try_enter(origin, now) {
                return place;
            }
            // Whether a place came back or one became old enough: look again.
            let _ = timeout_at(now + PATIENCE, left).await;
        }
    }

    fn try_enter(self: &Arc<Self>, origin: Origin, now: Instant) -> Option<Place> {
        let mut table = self.lock();
        if table.taken >= self.places_max {
            let crowded = table.by_origin.iter().max_by_key(|(_, held)| held.len());
            let crowded = crowded.map(|(origin, _)| *origin)?;
            table.evict(crowded, now);
        } else if !is_fair(table.held(origin), table.taken, self.places_max) {
            table.evict(origin, now);
        }
        if table.taken >= self.places_max {
            return None;
        }
        let (keep, kept) = oneshot::channel();
        let number = table.arrived;
        table.arrived += 1;
        table.taken += 1;
        let waiting = Waiting {
            since: now,
            _kept: keep,
        };
        let of_origin = table.by_origin.entry(origin).or_default();
        of_origin.insert(number, waiting);
        Some(Place {
            handshakes: Arc::clone(self),
            origin,
            number,
            kept,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn held(&self, origin: Origin) -> usize {
        self.by_origin.get(&origin).map_or(0, BTreeMap::len)
    }

    /// Ends the oldest handshake of an origin, if it should be done by now.
    fn evict(&mut self, origin: Origin, now: Instant) {
        let of_origin = self.by_origin.get(&origin);
        let oldest = of_origin.and_then(|held| held.first_key_value());
        if let Some((number, waiting)) = oldest
            && now.duration_since(waiting.since) >= PATIENCE
        {
            let number = *number;
            self.remove(origin, number);
        }
    }

    fn remove(&mut self, origin: Origin, number: u64) {
        let Some(of_origin) = self.by_origin.get_mut(&origin) else {
            return;
        };
        if of_origin.remove(&number).is_some() {
            self.taken -= 1;
        }
        if of_origin.is_empty() {
            self.by_origin.remove(&origin);
        }
    }
}

impl Place {
    /// Completes when the place is needed for another.
    pub(crate) async fn evicted(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.kept).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.handshakes.lock().remove(self.origin, self.number);
        self.handshakes.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(last: u8) -> Origin {
        Origin::of(IpAddr::from([127, 0, 0, last]))
    }

    #[test]
    fn a_source_is_an_address_or_a_network_of_ipv6() {
        let of = |text: &str| Origin::of(text.parse().unwrap());
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:3:4:5:6"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    }

    #[test]
    fn who_takes_all_it_can_leaves_places_for_the_next() {
        for (places_max, origins, left) in [(1024, 1, 128), (1024, 2, 16), (1024, 3, 2), (16, 1, 2)]
        {
            let mut taken = 0;
            for _ in 0..origins {
                let mut held = 0;
                while is_fair(held, taken, places_max) {
                    (held, taken) = (held + 1, taken + 1);
                }
            }
            assert_eq!(
                places_max - taken,
                left,
                "{places_max} places, {origins} origins"
            );
        }
        assert!(is_fair(0, 0, 1));
        assert!(!is_fair(0, 1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn silent_handshakes_give_way_and_young_ones_do_not() {
        let handshakes = Handshakes::new(16);
        let mut silent = Vec::new();
        for _ in 0..14 {
            silent.push(handshakes.enter(origin(1)).await);
        }
        // Beyond its share, as none is old.
        silent.push(handshakes.enter(origin(1)).await);
        tokio::time::advance(PATIENCE).await;
        let other = handshakes.enter(origin(2)).await;
        assert_eq!(handshakes.lock().taken, 16);
        // There is no place left: the oldest of the crowd goes.
        let next = handshakes.enter(origin(3)).await;
        silent[0].evicted().await;
        assert_eq!(handshakes.lock().taken, 16);
        drop(other);
        // Its own oldest, for one more of the crowd.
        let another = handshakes.enter(origin(1)).await;
        silent[1].evicted().await;
        drop((next, another, silent));
        assert_eq!(handshakes.lock().taken, 0);
        assert!(handshakes.lock().by_origin.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_that_comes_at_once_waits_for_its_turn() {
        let handshakes = Handshakes::new(2);
        let first = handshakes.enter(origin(1)).await;
        let mut second = handshakes.enter(origin(1)).await;
        let waiting = tokio::spawn({
            let handshakes = Arc::clone(&handshakes);
            async move { handshakes.enter(origin(1)).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        let third = waiting.await.unwrap();
        // Nobody gave way for it.
        assert!(
            second
                .kept
                .try_recv()
                .is_err_and(|error| { error == oneshot::error::TryRecvError::Empty })
        );
        drop((second, third));
    }
}
