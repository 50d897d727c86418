//! What RDMA came to in this process so far, for reports.
//!
//! In: single events, from whichever thread. Out: all counts at once. They only ever rise, and
//! nothing is decided by them.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters; see [`counters`].
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        /// What RDMA came to since the process began, of all its sessions.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct RdmaCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            const fn new() -> Self {
                Self { $($name: Counter(AtomicU64::new(0)),)* }
            }

            /// All of them.
            pub(crate) fn counts(&self) -> RdmaCounts {
                RdmaCounts { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Windows of files that adapters faulted in.
    windows_odp,
    /// Windows of files that were mapped and pinned.
    windows_mmap,
    /// Windows of files that were copied into slots.
    windows_pool,
    /// Windows that only the lanes could read, though there were rails or not.
    windows_tcp,
    /// Packs that adapters could read.
    packs,
    /// Registrations that were refused.
    refusals,
    /// Leases that ended because the receiver was silent.
    leases_ended,
    /// Windows and packs that were told "busy", after waiting for memory.
    busy,
    /// Queue pairs that came into use.
    queue_pairs_up,
    /// Queue pairs in use that were lost, at either end.
    queue_pairs_lost,
    /// Attempts to make rails that brought none.
    attempts_failed,
}

/// One of them.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The process's.
pub(crate) fn counters() -> &'static Counters {
    static COUNTERS: Counters = Counters::new();
    &COUNTERS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counts_for_itself() {
        let counters = Counters::default();
        counters.refusals.count();
        counters.refusals.count();
        counters.windows_mmap.count();
        let expected = RdmaCounts {
            refusals: 2,
            windows_mmap: 1,
            ..RdmaCounts::default()
        };
        assert_eq!(counters.counts(), expected);
    }
}
