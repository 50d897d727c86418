//! Protection domains: queue pairs reach only memory that was registered in their own.
//!
//! One per session and device, so that a key that leaks opens nothing of another session.
#![allow(unsafe_code)] // Made and unmade by C.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::ibv_pd;

use super::context::Context;
use super::{Error, plain};

/// See the module's first paragraph.
pub struct Domain {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread with the same domain.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// A new one.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, Error> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.verbs().ibv_alloc_pd)(context.raw().as_ptr()) };
        let raw = plain::non_null(raw)
            .map_err(|error| context.error("make a protection domain", error))?;
        Ok(Arc::new(Self {
            raw,
            context: Arc::clone(context),
        }))
    }

    /// The device that it is of.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> NonNull<ibv_pd> {
        self.raw
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made once, unmade once; regions and queue pairs hold it, so none is left.
        let code = unsafe { (self.context.verbs().ibv_dealloc_pd)(self.raw.as_ptr()) };
        if let Err(error) = plain::check(code) {
            let device = self.context.name();
            tracing::warn!(%device, %error, "a protection domain can't be given back");
        }
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}
