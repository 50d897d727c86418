//! Memory that a peer may read for its own sake: no file is behind it.
//!
//! A slot like those that windows are copied into, from the same bounded pools, filled with bytes that
//! mean nothing and registered in the session's own domains. It goes back when it is given up, after
//! the last READ of it. Nothing here knows why the peer wants it.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::rails::refusal;
use super::{ServingMemory, SessionMemory, served, tcp_key};
use crate::ids::RegionId;
use crate::lane::{RegionTable, Served};
use crate::memory::Slot;
use crate::wire::message::{Grant, RegionKey};
use crate::wire::{Fault, FaultCode};
use crate::workers::Workers;

/// A slot to lend, and the leave to: it ends when the memory is back.
pub(crate) struct ToLend {
    slot: Slot,
    leave: OwnedSemaphorePermit,
}

/// A slot that a peer may read until this is dropped.
pub(crate) struct Lent {
    region: RegionId,
    len: u64,
    keys: Vec<RegionKey>,
    regions: Arc<RegionTable>,
    workers: Workers,
}

impl SessionMemory {
    /// A slot to lend; nothing if all are in use.
    ///
    /// # Errors
    /// The session has as many as it may.
    pub(crate) fn slot_to_lend(&self, shared: &ServingMemory) -> Result<Option<ToLend>, Fault> {
        let leave = self.leave_to_borrow().ok_or_else(|| {
            let text = "the session measures with as much memory as it may have; try again when a \
                        measurement has ended";
            Fault::new(FaultCode::Busy, text)
        })?;
        let slot = self.lent_slot(shared);
        Ok(slot.map(|slot| ToLend { slot, leave }))
    }

    /// Lets the peer read `len` bytes of the slot, or as many as it has. Blocks.
    ///
    /// # Errors
    /// It can't be registered, and there is no tcp beside the rails.
    pub(crate) fn lend(
        &self,
        ToLend { mut slot, leave }: ToLend,
        len: u64,
        region: RegionId,
        regions: Arc<RegionTable>,
        workers: Workers,
    ) -> Result<Lent, Fault> {
        // Not the zero page of the kernel, of which there would be one for all of the slot.
        slot.adopt(self.owner);
        scribble(&mut slot);
        let (key, tcp) = tcp_key();
        let mut keys = vec![tcp];
        if let Some(rails) = self.rails() {
            match rails.register_slot(&mut slot) {
                Ok(registered) => keys.extend(registered),
                Err(error) if rails.policy().is_strict() => return Err(refusal(&error)),
                Err(error) => self.refusals.note(&error),
            }
        }
        let len = len.min(slot.len() as u64);
        let content = Served::Memory {
            slot: Arc::new(slot),
            len,
        };
        regions.expose_held(served(region, key, content), Box::new(leave));
        Ok(Lent {
            region,
            len,
            keys,
            regions,
            workers,
        })
    }
}

impl Lent {
    /// Its name.
    pub(crate) fn region(&self) -> RegionId {
        self.region
    }

    /// What the peer is told of it.
    pub(crate) fn grant(&self, lease_ms: u32) -> Grant {
        Grant {
            region: self.region,
            len: self.len,
            lease_ms,
            keys: self.keys.clone(),
            parts: Vec::new(),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let (regions, region) = (Arc::clone(&self.regions), self.region);
        // Deregistering blocks.
        self.workers.submit(move || regions.revoke(region));
    }
}

/// Fills memory with bytes of no meaning that differ from page to page.
fn scribble(bytes: &mut [u8]) {
    for (at, word) in (1_u64..).zip(bytes.chunks_exact_mut(8)) {
        word.copy_from_slice(&at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;
    use crate::lane::LaneEvent;
    use crate::session::activity::Activity;
    use crate::units::ChunkSize;

    fn table(revoked: Sender<RegionId>) -> Arc<RegionTable> {
        RegionTable::new(Arc::new(move |event| {
            if let LaneEvent::Revoked { region } = event {
                let _ = revoked.send(region);
            }
        }))
    }

    #[test]
    fn a_slot_is_lent_once_and_comes_back_when_it_is_given_up() {
        let (revoked, gone) = channel();
        let regions = table(revoked);
        let workers = Workers::start(NonZeroUsize::MIN).unwrap();
        let shared = ServingMemory::new(1);
        let memory = SessionMemory::new(7, Activity::new());
        let slot = || memory.slot_to_lend(&shared).unwrap().unwrap();
        let first = slot();
        let slot_bytes = first.slot.len() as u64;
        let lend = |slot, len, region| {
            let (regions, workers) = (Arc::clone(&regions), workers.clone());
            memory.lend(slot, len, RegionId(region), regions, workers)
        };
        let lent = lend(first, u64::MAX, 1).unwrap();
        let grant = lent.grant(1000);
        assert_eq!((grant.len, grant.keys.len()), (slot_bytes, 1));
        assert!(grant.parts.is_empty());
        let other = lend(slot(), 5, 2).unwrap();
        assert_eq!(other.grant(1000).len, 5);
        drop(lent);
        let patience = Duration::from_secs(60);
        assert_eq!(gone.recv_timeout(patience), Ok(RegionId(1)));
        drop(other);
        assert_eq!(gone.recv_timeout(patience), Ok(RegionId(2)));
    }

    #[test]
    fn one_session_borrows_little_and_all_leave_some() {
        let shared = ServingMemory::new(1);
        let session = |number| SessionMemory::new(number, Activity::new());
        let one = session(1);
        let mut held = Vec::new();
        let refused = loop {
            match one.slot_to_lend(&shared) {
                Ok(slot) => held.push(slot.unwrap()),
                Err(fault) => break fault,
            }
        };
        assert_eq!((held.len(), refused.code), (4, FaultCode::Busy));
        held.pop();
        assert!(one.slot_to_lend(&shared).is_ok());
        // Many sessions, each as much as it gets: windows of files find slots all the same.
        let crowd: Vec<_> = (2..100).map(session).collect();
        for session in &crowd {
            while let Ok(Some(slot)) = session.slot_to_lend(&shared) {
                held.push(slot);
            }
        }
        let windows: Vec<_> =
            std::iter::from_fn(|| one.window_slot(&shared, ChunkSize::MIN)).collect();
        assert!(windows.len() >= 32, "{}", windows.len());
    }

    #[test]
    fn no_two_pages_are_alike() {
        let mut bytes = vec![0; 3 * 4096];
        scribble(&mut bytes);
        assert!(bytes[..4096] != bytes[4096..8192] && bytes[4096..8192] != bytes[8192..]);
        assert!(
            bytes
                .chunks(8)
                .all(|word| word.iter().any(|byte| *byte != 0))
        );
    }
}
