//! The lanes of a simulated session, on tcp and on rails, and which keys a region has for them.

use rdcp::engine::LaneId;
use rdcp::ids::{RegionId, RemoteKey};
use rdcp::wire::message::RegionKey;

use super::random::{Random, mix};

/// The rail of tcp.
pub const TCP: u16 = 0;

#[derive(Clone, Copy, Debug)]
pub struct Lane {
    pub id: LaneId,
    pub rail: u16,
    pub up: bool,
}

#[derive(Debug)]
pub struct Ways {
    lanes: Vec<Lane>,
    /// One region in so many has no key for a rail.
    keyless: u64,
}

impl Ways {
    pub fn new(rails: &[u16], keyless: u64) -> Self {
        let lane = |(id, rail): (u32, &u16)| Lane {
            id: LaneId(id),
            rail: *rail,
            up: true,
        };
        Self {
            lanes: (0..).zip(rails).map(lane).collect(),
            keyless,
        }
    }

    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    pub fn any_down(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.up)
    }

    /// The rail of a lane that is up, or was last under this id.
    pub fn rail(&self, id: LaneId) -> Option<u16> {
        let lane = self.lanes.iter().find(|lane| lane.id == id)?;
        Some(lane.rail)
    }

    pub fn is_up(&self, id: LaneId) -> bool {
        self.lanes.iter().any(|lane| lane.id == id && lane.up)
    }

    pub fn down(&mut self, id: LaneId) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.id == id) {
            lane.up = false;
        }
    }

    /// Brings one back that is down. A connection that comes back is another one, unless nothing of
    /// the last one is left and chance wills it.
    pub fn revive(&mut self, random: &mut Random, is_busy: impl Fn(LaneId) -> bool) -> Lane {
        let down: Vec<usize> = (0..self.lanes.len())
            .filter(|n| !self.lanes[*n].up)
            .collect();
        let lane = &mut self.lanes[random.pick(&down)];
        if is_busy(lane.id) || random.one_in(2) {
            lane.id.0 += 100;
        }
        lane.up = true;
        *lane
    }

    /// The keys of a region, the same at every call: for tcp always, for rails not all; but never
    /// so few that a session without tcp can't reach it.
    pub fn keys(&self, region: RegionId) -> Vec<RegionKey> {
        let mut rails: Vec<u16> = self.lanes.iter().map(|lane| lane.rail).collect();
        rails.sort_unstable();
        rails.dedup();
        let sure = match rails.contains(&TCP) {
            true => TCP,
            false => rails[usize::try_from(mix(region.0) % rails.len() as u64).unwrap()],
        };
        let told = |rail: &u16| {
            let drawn = mix(region.0 ^ mix(u64::from(*rail) + 1));
            *rail == sure || self.keyless == 0 || !drawn.is_multiple_of(self.keyless)
        };
        let mut keys: Vec<RegionKey> = rails
            .into_iter()
            .filter(told)
            .map(|rail| key(region, rail))
            .collect();
        // A sender tells of tcp and of rails that the receiver has no lane on (yet).
        if sure != TCP {
            keys.push(key(region, TCP));
        }
        keys.push(key(region, 9));
        keys
    }

    /// Whether a rail that is up could have brought bytes of the region.
    pub fn rail_reaches(&self, region: RegionId) -> bool {
        let keys = self.keys(region);
        self.lanes
            .iter()
            .filter(|lane| lane.up && lane.rail != TCP)
            .any(|lane| keys.iter().any(|key| key.rail == lane.rail))
    }
}

/// Where the region is on this rail, and its key there.
pub fn key(region: RegionId, rail: u16) -> RegionKey {
    RegionKey {
        rail,
        address: (region.0 << 20) + (u64::from(rail) << 12),
        key: RemoteKey(region.0 ^ 0xbeef ^ (u64::from(rail) << 48)),
    }
}
