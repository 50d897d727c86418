//! What one session has of each device: a protection domain, and what is registered in it.
//!
//! Keys of one session mean nothing in another's domain, so domains are never shared. Landing
//! memory is registered once per domain and slot, for the adapter to write to and for nobody else;
//! what the peer may read is registered by [`super::region`]. Nothing here knows which bytes those
//! are.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::adapter::{Adapter, adapters};
use super::facts::PortFacts;
use super::words;
use crate::lane::LANDING_SLOT_BYTES;
use crate::memory::Pool;
use crate::sys::verbs;

/// What one connection's READs land in when all of them are under way.
const TRIAL_BYTES: usize = 16 * LANDING_SLOT_BYTES;

/// One session's domains, one per device that it uses, made as they are first needed. To be dropped
/// with the session; what was made of them holds on to its own.
#[derive(Default)]
pub struct SessionDomains {
    domains: Mutex<Vec<Arc<Domain>>>,
}

/// One session's part of one device.
pub(super) struct Domain {
    pub(super) landing: Arc<verbs::Landing>,
    pub(super) protection: Arc<verbs::Domain>,
    pub(super) adapter: Arc<Adapter>,
}

impl SessionDomains {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are any: without, nothing can be registered.
    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// The domain on this port's device.
    pub(super) fn on(&self, facts: &PortFacts) -> io::Result<Arc<Domain>> {
        let mut domains = self.lock();
        // A device that went and came again is another one: what was registered is gone with it.
        domains.retain(|domain| !domain.adapter.is_gone());
        if let Some(domain) = domains.iter().find(|domain| domain.adapter.is_of(facts)) {
            return Ok(Arc::clone(domain));
        }
        let adapter = adapters()
            .map_err(io::Error::other)?
            .find(facts)
            .ok_or_else(|| io::Error::other(format!("{}: the device was removed", facts.device)))?;
        let protection = verbs::Domain::new(&adapter.context).map_err(words)?;
        try_landing(&protection)?;
        let domain = Arc::new(Domain {
            landing: verbs::Landing::new(&protection),
            protection,
            adapter,
        });
        domains.push(Arc::clone(&domain));
        Ok(domain)
    }

    /// Those on devices that are there.
    pub(super) fn all(&self) -> Vec<Arc<Domain>> {
        let mut domains = self.lock();
        domains.retain(|domain| !domain.adapter.is_gone());
        domains.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Domain>>> {
        // Whole between any two statements.
        self.domains.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection whose memory can't be registered breaks with its first READs, and so would every one
/// that is made in its place: that shows here, before the peer is told of any.
fn try_landing(protection: &Arc<verbs::Domain>) -> io::Result<()> {
    let mut slot = Pool::new(TRIAL_BYTES, 1)
        .take()
        .ok_or(io::ErrorKind::OutOfMemory)?;
    verbs::region::register_landing(&mut slot, protection).map_err(words)
}

impl fmt::Debug for SessionDomains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionDomains")
            .field("devices", &self.lock().len())
            .finish()
    }
}
