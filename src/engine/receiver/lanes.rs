//! Which lane takes the next fetch, and what is in flight on which.

use crate::engine::{FetchToken, LaneId};
use crate::ids::{EntryId, RegionId};
use crate::wire::message::RegionKey;

/// What a fetch in flight was for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// The n-th chunk of a file's window.
    Chunk {
        entry: EntryId,
        region: RegionId,
        index: u32,
    },
    /// A whole pack.
    Pack { region: RegionId },
}

/// A fetch in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) target: Target,
    pub(super) lane: LaneId,
    pub(super) len: u64,
}

/// The answer to "who takes this fetch".
#[derive(Clone, Copy, Debug)]
pub(super) enum Pick {
    /// This lane, reading with this key.
    Lane(LaneId, RegionKey),
    /// None at the moment: all are full, or none is up.
    Busy,
    /// No lane that is up can reach the region.
    Unreachable,
}

#[derive(Debug)]
struct Lane {
    id: LaneId,
    rail: u16,
    in_flight: u32,
    up: bool,
}

/// The lanes, and a slab of fetches in flight that keeps its capacity.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    fetches: usize,
    bytes: u64,
    fetches_per_lane_max: u32,
    bytes_max: u64,
}

#[derive(Debug)]
struct Slot {
    /// Told apart from earlier fetches in the same slot.
    generation: u32,
    fetch: Option<InFlight>,
}

impl Lanes {
    pub(super) fn new(fetches_per_lane_max: u32, bytes_max: u64) -> Self {
        Self {
            lanes: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            fetches: 0,
            bytes: 0,
            fetches_per_lane_max: fetches_per_lane_max.max(1),
            bytes_max,
        }
    }

    pub(super) fn up(&mut self, id: LaneId, rail: u16) {
        match self.lanes.iter_mut().find(|lane| lane.id == id) {
            Some(lane) => (lane.up, lane.rail) = (true, rail),
            None => self.lanes.push(Lane {
                id,
                rail,
                in_flight: 0,
                up: true,
            }),
        }
    }

    pub(super) fn down(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == id) {
            lane.up = false;
        }
        self.forget_idle();
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.fetches == 0
    }

    /// The least busy lane that can read a region with these keys; not `avoid` if there is another.
    pub(super) fn pick(&self, keys: &[RegionKey], len: u64, avoid: Option<LaneId>) -> Pick {
        if self.bytes > 0 && self.bytes.saturating_add(len) > self.bytes_max {
            return Pick::Busy;
        }
        let reachable = || {
            self.lanes.iter().filter(|lane| lane.up).filter_map(|lane| {
                let key = keys.iter().find(|key| key.rail == lane.rail)?;
                Some((lane, *key))
            })
        };
        let another = reachable().any(|(lane, _)| Some(lane.id) != avoid);
        let best = reachable()
            .filter(|(lane, _)| lane.in_flight < self.fetches_per_lane_max)
            .filter(|(lane, _)| !another || Some(lane.id) != avoid)
            .min_by_key(|(lane, _)| lane.in_flight);
        match best {
            Some((lane, key)) => Pick::Lane(lane.id, key),
            None if reachable().next().is_some() => Pick::Busy,
            None if self.lanes.iter().any(|lane| lane.up) => Pick::Unreachable,
            None => Pick::Busy,
        }
    }

    /// The fetch goes to its lane.
    pub(super) fn post(&mut self, fetch: InFlight) -> FetchToken {
        self.fetches += 1;
        self.bytes = self.bytes.saturating_add(fetch.len);
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == fetch.lane) {
            lane.in_flight += 1;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                fetch: None,
            });
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let slot = &mut self.slots[index as usize];
        slot.fetch = Some(fetch);
        FetchToken(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// The fetch landed; `None` if there is no such fetch in flight. A pack's bytes stay charged
    /// until [`Self::free_bytes`], as its buffer is kept until it is stored.
    pub(super) fn land(&mut self, token: FetchToken) -> Option<InFlight> {
        let index = u32::try_from(token.0 & u64::from(u32::MAX)).ok()?;
        let slot = self.slots.get_mut(index as usize)?;
        if u64::from(slot.generation) != token.0 >> 32 {
            return None;
        }
        let fetch = slot.fetch.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        self.fetches -= 1;
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == fetch.lane) {
            lane.in_flight -= 1;
        }
        self.forget_idle();
        if matches!(fetch.target, Target::Chunk { .. }) {
            self.free_bytes(fetch.len);
        }
        Some(fetch)
    }

    /// Buffers of this many bytes are free again.
    pub(super) fn free_bytes(&mut self, len: u64) {
        self.bytes = self.bytes.saturating_sub(len);
    }

    /// Lanes that went down and have nothing in flight: their ids may never come back.
    fn forget_idle(&mut self) {
        self.lanes.retain(|lane| lane.up || lane.in_flight > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RemoteKey;

    fn keys() -> [RegionKey; 1] {
        [RegionKey {
            rail: 0,
            address: 0,
            key: RemoteKey(7),
        }]
    }

    fn pack(lane: LaneId, len: u64) -> InFlight {
        InFlight {
            target: Target::Pack {
                region: RegionId(1),
            },
            lane,
            len,
        }
    }

    fn picked(pick: Pick) -> Option<u32> {
        match pick {
            Pick::Lane(lane, _) => Some(lane.0),
            Pick::Busy | Pick::Unreachable => None,
        }
    }

    #[test]
    fn the_least_busy_lane_gets_the_fetch_until_all_are_full() {
        let mut lanes = Lanes::new(1, 100);
        assert_eq!(picked(lanes.pick(&keys(), 1, None)), None, "no lane is up");
        lanes.up(LaneId(1), 0);
        lanes.up(LaneId(2), 0);
        lanes.post(pack(LaneId(1), 10));
        assert_eq!(picked(lanes.pick(&keys(), 1, None)), Some(2));
        let token = lanes.post(pack(LaneId(2), 10));
        assert!(matches!(lanes.pick(&keys(), 1, None), Pick::Busy));
        assert!(lanes.land(token).is_some());
        assert!(lanes.land(token).is_none(), "a fetch lands once");
        assert_eq!(picked(lanes.pick(&keys(), 1, None)), Some(2));
    }

    #[test]
    fn bytes_are_bounded_but_one_fetch_always_goes() {
        let mut lanes = Lanes::new(9, 100);
        lanes.up(LaneId(1), 0);
        assert_eq!(picked(lanes.pick(&keys(), 1000, None)), Some(1));
        lanes.post(pack(LaneId(1), 99));
        assert!(matches!(lanes.pick(&keys(), 2, None), Pick::Busy));
        assert_eq!(picked(lanes.pick(&keys(), 1, None)), Some(1));
    }

    #[test]
    fn a_repair_goes_over_another_lane_if_there_is_one() {
        let mut lanes = Lanes::new(2, 100);
        lanes.up(LaneId(1), 0);
        assert_eq!(picked(lanes.pick(&keys(), 1, Some(LaneId(1)))), Some(1));
        lanes.up(LaneId(2), 0);
        lanes.post(pack(LaneId(2), 1));
        assert_eq!(picked(lanes.pick(&keys(), 1, Some(LaneId(1)))), Some(2));
        lanes.down(LaneId(2));
        assert_eq!(picked(lanes.pick(&keys(), 1, Some(LaneId(1)))), Some(1));
    }

    #[test]
    fn a_lane_of_another_rail_can_not_reach() {
        let mut lanes = Lanes::new(2, 100);
        lanes.up(LaneId(1), 3);
        assert!(matches!(lanes.pick(&keys(), 1, None), Pick::Unreachable));
    }
}
