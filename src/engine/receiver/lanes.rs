//! Which lane takes the next fetch, and what is in flight on which.

use crate::engine::{FetchToken, LaneId};
use crate::ids::{EntryId, RegionId};
use crate::wire::message::RegionKey;

/// The rail of all tcp connections.
pub(super) const TCP: u16 = 0;

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
    pub(super) rail: u16,
    pub(super) len: u64,
}

impl InFlight {
    /// The way it went.
    pub(super) fn way(&self) -> Avoid {
        Avoid {
            lane: self.lane,
            rail: self.rail,
        }
    }
}

/// Where a fetch went that came to nothing: its repair had better go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Avoid {
    pub(super) lane: LaneId,
    pub(super) rail: u16,
}

/// The answer to "who takes this fetch".
#[derive(Clone, Copy, Debug)]
pub(super) enum Pick {
    /// This lane, reading with this key.
    Lane(LaneId, RegionKey),
    /// None at the moment. Another fetch may find one.
    Busy,
    /// None takes any fetch at the moment: all are full, or none is up.
    Full,
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

impl Lane {
    /// How good the lane is for a fetch, the best first. Rails are tcp's betters; but a repair goes
    /// the way that has least in common with the one that failed.
    fn rank(&self, avoid: Option<Avoid>) -> u8 {
        match avoid {
            None => u8::from(self.rail == TCP),
            Some(avoid) if self.id == avoid.lane => 3,
            Some(_) if self.rail == TCP => 0,
            Some(avoid) if self.rail != avoid.rail => 1,
            Some(_) => 2,
        }
    }
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

    /// In words.
    pub(super) fn describe(&self) -> String {
        let lanes = self
            .lanes
            .iter()
            .filter(|lane| lane.up || lane.in_flight > 0);
        let lanes: Vec<_> = lanes
            .map(|lane| {
                let rail = match lane.rail {
                    TCP => "tcp".to_owned(),
                    rail => format!("rail {rail}"),
                };
                let down = if lane.up { "" } else { " (lost)" };
                format!("lane {} by {rail}{down}: {}", lane.id.0, lane.in_flight)
            })
            .collect();
        format!(
            "in flight: {} fetches, {} bytes of {} at most ({})",
            self.fetches,
            self.bytes,
            self.bytes_max,
            lanes.join(", ")
        )
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

    /// The least busy of the best lanes that can read a region with these keys. Better ones that
    /// are full are waited for: worse ones would slow them down rather than help.
    pub(super) fn pick(&self, keys: &[RegionKey], len: u64, avoid: Option<Avoid>) -> Pick {
        let has_room = |lane: &Lane| lane.up && lane.in_flight < self.fetches_per_lane_max;
        let too_much = self.bytes > 0 && self.bytes.saturating_add(len) > self.bytes_max;
        if too_much || !self.lanes.iter().any(has_room) {
            return Pick::Full;
        }
        let reachable = || {
            self.lanes.iter().filter(|lane| lane.up).filter_map(|lane| {
                let key = keys.iter().find(|key| key.rail == lane.rail)?;
                Some((lane, *key))
            })
        };
        let Some(best) = reachable().map(|(lane, _)| lane.rank(avoid)).min() else {
            return Pick::Unreachable;
        };
        reachable()
            .filter(|(lane, _)| lane.rank(avoid) == best && has_room(lane))
            .min_by_key(|(lane, _)| lane.in_flight)
            .map_or(Pick::Busy, |(lane, key)| Pick::Lane(lane.id, key))
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

    fn keys(rails: &[u16]) -> Vec<RegionKey> {
        let key = |rail: &u16| RegionKey {
            rail: *rail,
            address: 0,
            key: RemoteKey(7),
        };
        rails.iter().map(key).collect()
    }

    fn pack(lane: u32, len: u64) -> InFlight {
        InFlight {
            target: Target::Pack {
                region: RegionId(1),
            },
            lane: LaneId(lane),
            rail: 0,
            len,
        }
    }

    fn avoid(lane: u32, rail: u16) -> Option<Avoid> {
        Some(Avoid {
            lane: LaneId(lane),
            rail,
        })
    }

    /// Lanes 1, 2, ... on these rails, that take `fetches_max` each.
    fn lanes(rails: &[u16], fetches_max: u32) -> Lanes {
        let mut lanes = Lanes::new(fetches_max, 100);
        for (id, rail) in (1..).zip(rails) {
            lanes.up(LaneId(id), *rail);
        }
        lanes
    }

    fn picked(pick: Pick) -> Option<u32> {
        match pick {
            Pick::Lane(lane, _) => Some(lane.0),
            Pick::Busy | Pick::Full | Pick::Unreachable => None,
        }
    }

    #[test]
    fn the_least_busy_lane_gets_the_fetch_until_all_are_full() {
        let keys = keys(&[0]);
        let mut lanes = lanes(&[], 1);
        assert!(
            matches!(lanes.pick(&keys, 1, None), Pick::Full),
            "no lane is up"
        );
        lanes.up(LaneId(1), 0);
        lanes.up(LaneId(2), 0);
        lanes.post(pack(1, 10));
        assert_eq!(picked(lanes.pick(&keys, 1, None)), Some(2));
        let token = lanes.post(pack(2, 10));
        assert!(matches!(lanes.pick(&keys, 1, None), Pick::Full));
        assert!(lanes.land(token).is_some());
        assert!(lanes.land(token).is_none(), "a fetch lands once");
        assert_eq!(picked(lanes.pick(&keys, 1, None)), Some(2));
    }

    #[test]
    fn bytes_are_bounded_but_one_fetch_always_goes() {
        let keys = keys(&[0]);
        let mut lanes = lanes(&[0], 9);
        assert_eq!(picked(lanes.pick(&keys, 1000, None)), Some(1));
        lanes.post(pack(1, 99));
        assert!(matches!(lanes.pick(&keys, 2, None), Pick::Full));
        assert_eq!(picked(lanes.pick(&keys, 1, None)), Some(1));
    }

    #[test]
    fn a_repair_goes_over_another_lane_if_there_is_one() {
        let keys = keys(&[0]);
        let mut lanes = lanes(&[0], 2);
        assert_eq!(picked(lanes.pick(&keys, 1, avoid(1, 0))), Some(1));
        lanes.up(LaneId(2), 0);
        lanes.post(pack(2, 1));
        assert_eq!(picked(lanes.pick(&keys, 1, avoid(1, 0))), Some(2));
        lanes.down(LaneId(2));
        assert_eq!(picked(lanes.pick(&keys, 1, avoid(1, 0))), Some(1));
    }

    #[test]
    fn rails_come_before_tcp_also_when_they_are_full() {
        let keys = keys(&[0, 1, 2]);
        let mut lanes = lanes(&[0, 1, 2], 1);
        lanes.post(pack(2, 1));
        assert_eq!(picked(lanes.pick(&keys, 1, None)), Some(3));
        lanes.post(pack(3, 1));
        assert!(matches!(lanes.pick(&keys, 1, None), Pick::Busy));
        lanes.down(LaneId(2));
        assert!(matches!(lanes.pick(&keys, 1, None), Pick::Busy));
        lanes.down(LaneId(3));
        assert_eq!(picked(lanes.pick(&keys, 1, None)), Some(1));
    }

    #[test]
    fn a_region_without_a_key_for_a_rail_goes_over_those_it_has_keys_for() {
        let mut lanes = lanes(&[0, 1, 2], 1);
        assert_eq!(picked(lanes.pick(&keys(&[0, 2]), 1, None)), Some(3));
        assert_eq!(picked(lanes.pick(&keys(&[0]), 1, None)), Some(1));
        lanes.post(pack(1, 1));
        assert!(matches!(lanes.pick(&keys(&[0]), 1, None), Pick::Busy));
        let elsewhere = keys(&[3]);
        assert!(matches!(lanes.pick(&elsewhere, 1, None), Pick::Unreachable));
    }

    #[test]
    fn a_repair_prefers_tcp_then_another_rail_then_another_lane() {
        let keys = keys(&[0, 1, 2]);
        let mut lanes = lanes(&[1, 1, 2, 0], 9);
        assert_eq!(picked(lanes.pick(&keys, 1, avoid(1, 1))), Some(4));
        lanes.down(LaneId(4));
        assert_eq!(picked(lanes.pick(&keys, 1, avoid(1, 1))), Some(3));
        lanes.down(LaneId(3));
        assert_eq!(picked(lanes.pick(&keys, 1, avoid(1, 1))), Some(2));
        lanes.down(LaneId(2));
        assert_eq!(picked(lanes.pick(&keys, 1, avoid(1, 1))), Some(1));
        // The lane that failed is gone by now: its rail is still the last choice.
        lanes.down(LaneId(1));
        lanes.up(LaneId(11), 1);
        lanes.up(LaneId(12), 2);
        assert_eq!(picked(lanes.pick(&keys, 1, avoid(1, 1))), Some(12));
    }
}
