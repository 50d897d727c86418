//! A session's rails as [`super::rails`] wants them, over what it has of each RDMA device.
//!
//! In: which device each rail begins at. Out: a key for each rail whose device took a registration.
//! Rails of one device share it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::rails::{Hold, MemoryPolicy, RailMemory, Way, Ways};
use crate::memory::Slot;
use crate::transport::rdma::{FileAccess, RegionAddress, SessionDomains};
use crate::units::ByteRange;
use crate::wire::message::RegionKey;

/// Tells the number and the local device of every rail of a session.
pub type RailDevices = Box<dyn Fn() -> Vec<(u16, String)> + Send + Sync>;

/// See the module's first paragraph.
pub struct AdapterMemory {
    domains: Arc<SessionDomains>,
    devices: RailDevices,
    policy: MemoryPolicy,
}

impl AdapterMemory {
    /// The rails of the session that has these domains.
    pub fn new(domains: Arc<SessionDomains>, devices: RailDevices, policy: MemoryPolicy) -> Self {
        Self {
            domains,
            devices,
            policy,
        }
    }

    fn keys(&self, addresses: &[RegionAddress]) -> Vec<RegionKey> {
        let key = |(rail, device): (u16, String)| {
            let found = addresses.iter().find(|address| address.device == device)?;
            Some(RegionKey {
                rail,
                address: found.address,
                key: found.key,
            })
        };
        (self.devices)().into_iter().filter_map(key).collect()
    }
}

impl RailMemory for AdapterMemory {
    fn is_up(&self) -> bool {
        !self.domains.is_empty() && !(self.devices)().is_empty()
    }

    fn policy(&self) -> MemoryPolicy {
        self.policy
    }

    fn ways(&self, file: BorrowedFd<'_>) -> io::Result<Ways> {
        let trial = self.domains.file_access(file)?;
        let way = |access| match access {
            FileAccess::OnDemand => Way::OnDemand,
            FileAccess::Pinned => Way::Pinned,
            FileAccess::Copied => Way::Pool,
        };
        Ok(Ways {
            best: way(trial.access),
            possible: way(trial.possible),
            reason: trial.reason,
        })
    }

    fn register_window(
        &self,
        file: BorrowedFd<'_>,
        range: ByteRange,
        way: Way,
    ) -> io::Result<(Vec<RegionKey>, Hold)> {
        let access = match way {
            Way::OnDemand => FileAccess::OnDemand,
            Way::Pinned => FileAccess::Pinned,
            Way::Pool | Way::Lanes => FileAccess::Copied,
        };
        let len = usize::try_from(range.len())
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let window = self
            .domains
            .register_file_window(file, range.start, len, access)?;
        let keys = self.keys(window.addresses());
        Ok((keys, Box::new(window)))
    }

    fn register_slot(&self, slot: &mut Slot) -> io::Result<Vec<RegionKey>> {
        let addresses = self.domains.register_slot(slot)?;
        Ok(self.keys(&addresses))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RemoteKey;

    #[test]
    fn rails_of_one_device_share_its_key() {
        let devices =
            || [(1, "rxe0"), (2, "rxe0"), (3, "gone")].map(|(rail, name)| (rail, name.to_owned()));
        let memory = AdapterMemory::new(
            Arc::new(SessionDomains::new()),
            Box::new(move || devices().to_vec()),
            MemoryPolicy::default(),
        );
        let address = |device: &str, key| RegionAddress {
            guid: 5,
            device: device.to_owned(),
            address: 4096,
            key: RemoteKey(key),
        };
        let keys = memory.keys(&[address("other", 1), address("rxe0", 2)]);
        let keys: Vec<_> = keys.iter().map(|key| (key.rail, key.key.0)).collect();
        assert_eq!(keys, [(1, 2), (2, 2)]);
    }
}
