//! Memory that the session's peer may READ: slots, and windows of files.
//!
//! Each is registered on every device that the session uses, since any of its rails may be the one
//! that reads it. How a file can be served depends on kernel, device and file system: it is tried
//! once per device and file system. Nothing here knows what a region is for or when it ends.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::domain::{Domain, SessionDomains};
use super::words;
use crate::ids::RemoteKey;
use crate::memory::Slot;
use crate::sys::verbs::{self, FileMapping, FileMode, FileRegion, RemoteMemory};

/// How a file gets to the peer, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileAccess {
    /// `odp`: mapped, and faulted in by the adapter as it reads. Pins nothing; a file that is cut
    /// shorter ends the connection that reads there.
    OnDemand,
    /// `mmap`: mapped and pinned. Truncation, holes and direct writes go unnoticed.
    Pinned,
    /// `pool`: only by copying it into slots.
    Copied,
}

impl fmt::Display for FileAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OnDemand => "odp",
            Self::Pinned => "mmap",
            Self::Copied => "pool",
        })
    }
}

/// What came of trying how files can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The best way that works and can be trusted.
    pub access: FileAccess,
    /// The best way that the kernel allows, for those who insist.
    pub possible: FileAccess,
    /// Why not a better one; empty if there is none.
    pub reason: String,
}

/// Trials on one device, by file system.
#[derive(Default)]
pub(super) struct Trials {
    by_device_number: Mutex<HashMap<u64, Trial>>,
}

/// Where a region begins, on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionAddress {
    /// The device, by number and name as in [`super::PortFacts`]. All its rails share the key.
    pub guid: u64,
    /// Its name.
    pub device: String,
    /// What the peer adds an offset to.
    pub address: u64,
    /// What its READ must carry.
    pub key: RemoteKey,
}

/// A window of a file that the peer may READ until this is dropped.
#[derive(Debug)]
pub struct FileWindow {
    addresses: Vec<RegionAddress>,
    /// Each ends its registration as it is dropped, then the mapping.
    _regions: Vec<FileRegion>,
}

impl FileWindow {
    /// One for each device on which it could be registered.
    pub fn addresses(&self) -> &[RegionAddress] {
        &self.addresses
    }
}

impl SessionDomains {
    /// Lets the peer READ all of `slot`, whatever is and will be in it, until the slot is dropped:
    /// bytes of others must have been overwritten. One address for each device on which it could be
    /// registered; an error if that is none.
    pub fn register_slot(&self, slot: &mut Slot) -> io::Result<Vec<RegionAddress>> {
        self.on_each(|domain| {
            let memory = verbs::region::register_serving(slot, &domain.protection);
            memory.map(|memory| (address(domain, memory), ()))
        })
        .map(|(addresses, _)| addresses)
    }

    /// Lets the peer READ `len` bytes of `file` from `offset` on, which must all be there. Blocks
    /// while pages are read in, if they are to be pinned.
    ///
    /// `offset` and whatever the peer READs should begin with a page: soft-RoCE of Linux 7.3 answers
    /// READs of [`FileAccess::OnDemand`] that begin within one with bytes of the next.
    pub fn register_file_window(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        access: FileAccess,
    ) -> io::Result<FileWindow> {
        let mode = match access {
            FileAccess::OnDemand => FileMode::OnDemand,
            FileAccess::Pinned => FileMode::Pinned,
            FileAccess::Copied => {
                let why = "a file that is served by copying is not registered";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        };
        let mapping = FileMapping::new(file, offset, len)?;
        let (addresses, regions) = self.on_each(|domain| {
            let region = FileRegion::new(&domain.protection, &mapping, 0..len, mode)?;
            Ok((address(domain, region.remote()), region))
        })?;
        Ok(FileWindow {
            addresses,
            _regions: regions,
        })
    }

    /// How files of `file`'s file system can be served on all of the session's devices. Tried with
    /// this file, which must not be empty, if it was not tried before; then it blocks for a page.
    pub fn file_access(&self, file: BorrowedFd<'_>) -> io::Result<Trial> {
        let file_system = rustix::fs::fstat(file)?.st_dev;
        let mut worst: Option<Trial> = None;
        for domain in self.all() {
            let trial = domain.adapter.trials.known(file_system);
            let trial = match trial {
                Some(trial) => trial,
                None => {
                    let trial = attempt(&domain, file)?;
                    let device = domain.adapter.context.name();
                    tracing::info!(
                        device,
                        file_system = format_args!("{:#x}", file_system),
                        access = %trial.access,
                        reason = trial.reason,
                        "how files are served over RDMA"
                    );
                    domain.adapter.trials.learn(file_system, trial.clone());
                    trial
                }
            };
            let worst = worst.get_or_insert_with(|| trial.clone());
            worst.possible = worst.possible.max(trial.possible);
            if worst.access < trial.access {
                (worst.access, worst.reason) = (trial.access, trial.reason);
            }
        }
        Ok(worst.unwrap_or_else(|| Trial {
            access: FileAccess::Copied,
            possible: FileAccess::Copied,
            reason: "the session has no RDMA device".to_owned(),
        }))
    }

    /// A registration that was tried to work did not: the file system is tried anew for the next
    /// file.
    pub fn forget_access(&self, file: BorrowedFd<'_>) {
        let Ok(status) = rustix::fs::fstat(file) else {
            return;
        };
        for domain in self.all() {
            domain.adapter.trials.forget(status.st_dev);
        }
    }

    /// Registers on each device; an error if none takes it.
    fn on_each<R>(
        &self,
        mut register: impl FnMut(&Domain) -> Result<(RegionAddress, R), verbs::Error>,
    ) -> io::Result<(Vec<RegionAddress>, Vec<R>)> {
        let (mut addresses, mut regions) = (Vec::new(), Vec::new());
        let mut failed = None;
        for domain in self.all() {
            match register(&domain) {
                Ok((address, region)) => {
                    addresses.push(address);
                    regions.push(region);
                }
                Err(error) => failed = Some(words(error)),
            }
        }
        match (addresses.is_empty(), failed) {
            (true, Some(error)) => Err(error),
            (true, None) => Err(io::Error::other("the session has no RDMA device")),
            (false, failed) => {
                if let Some(error) = failed {
                    // The devices that lack it go without; their rails' READs take another.
                    tracing::debug!(%error, "a region is registered on some devices only");
                }
                Ok((addresses, regions))
            }
        }
    }
}

impl Trials {
    fn known(&self, file_system: u64) -> Option<Trial> {
        self.lock().get(&file_system).cloned()
    }

    fn learn(&self, file_system: u64, trial: Trial) {
        self.lock().insert(file_system, trial);
    }

    fn forget(&self, file_system: u64) {
        self.lock().remove(&file_system);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Trial>> {
        // Whole between any two statements.
        self.by_device_number
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn attempt(domain: &Arc<Domain>, file: BorrowedFd<'_>) -> io::Result<Trial> {
    let support = verbs::probe(&domain.protection, file)?;
    Ok(choose(
        is_software(domain.adapter.context.name()),
        support.on_demand.map_err(|error| words(error).to_string()),
        support.pinned.map_err(|error| words(error).to_string()),
    ))
}

/// The best way that works, and why not a better one.
fn choose(is_software: bool, on_demand: Result<(), String>, pinned: Result<(), String>) -> Trial {
    let possible = match (&on_demand, &pinned) {
        (Ok(()), _) => FileAccess::OnDemand,
        (Err(_), Ok(())) => FileAccess::Pinned,
        (Err(_), Err(_)) => FileAccess::Copied,
    };
    // Where packets do not begin with pages, soft-RoCE of Linux 7.3 answers READs of memory that is
    // faulted in with bytes of other pages. Without a hash nobody would notice.
    let on_demand = match on_demand {
        Ok(()) if is_software => Err("soft-RoCE serves wrong bytes this way".to_owned()),
        other => other,
    };
    let (access, reason) = match (on_demand, pinned) {
        (Ok(()), _) => (FileAccess::OnDemand, String::new()),
        (Err(odp), Ok(())) => (FileAccess::Pinned, format!("odp: {odp}")),
        (Err(odp), Err(mmap)) => (FileAccess::Copied, format!("odp: {odp}; mmap: {mmap}")),
    };
    Trial {
        access,
        possible,
        reason,
    }
}

/// Whether the kernel itself plays the device: no hardware stands behind it.
fn is_software(device: &str) -> bool {
    !std::path::Path::new("/sys/class/infiniband")
        .join(device)
        .join("device")
        .exists()
}

fn address(domain: &Domain, memory: RemoteMemory) -> RegionAddress {
    RegionAddress {
        guid: domain.adapter.guid(),
        device: domain.adapter.context.name().to_owned(),
        address: memory.address,
        key: RemoteKey(memory.rkey.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_best_way_that_works_is_chosen_and_explained() {
        let no = |what: &str| Err(what.to_owned());
        let trial = choose(true, Ok(()), Ok(()));
        assert_eq!(
            (trial.access, trial.possible),
            (FileAccess::Pinned, FileAccess::OnDemand)
        );
        assert!(trial.reason.contains("soft-RoCE"));
        let trial = choose(false, Ok(()), no("b"));
        assert_eq!(
            (trial.access, trial.reason.as_str()),
            (FileAccess::OnDemand, "")
        );
        let trial = choose(false, no("a"), Ok(()));
        assert_eq!(
            (trial.access, trial.reason.as_str()),
            (FileAccess::Pinned, "odp: a")
        );
        let trial = choose(false, no("a"), no("b"));
        assert_eq!(
            (trial.access, trial.reason.as_str()),
            (FileAccess::Copied, "odp: a; mmap: b")
        );
        assert!(FileAccess::OnDemand < FileAccess::Pinned);
        assert!(FileAccess::Pinned < FileAccess::Copied);
    }

    #[test]
    fn without_a_device_files_are_copied_and_nothing_is_registered() {
        let domains = SessionDomains::new();
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let trial = domains.file_access(file.as_fd()).unwrap();
        assert_eq!(trial.access, FileAccess::Copied);
        let register = |access| domains.register_file_window(file.as_fd(), 0, 4096, access);
        assert!(register(FileAccess::Pinned).is_err());
        assert_eq!(
            register(FileAccess::Copied).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        let pool = crate::memory::Pool::new(4096, 1);
        assert!(domains.register_slot(&mut pool.take().unwrap()).is_err());
    }
}
