//! Who may have how many bytes of files registered with adapters at once.
//!
//! Registered windows keep pages in memory and count against limits of the kernel. Each session may
//! always have one; beyond that sessions share one bound, and none gets more than half of what the
//! others leave, so that a session that comes late finds some. Nothing here knows files or adapters.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits::WINDOW_BYTES;

/// The bound that sessions share.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes_max: u64,
    shared: Mutex<u64>,
    on_return: fn(),
}

/// One session's part.
#[derive(Debug)]
pub(crate) struct Purse {
    budget: Arc<Budget>,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    /// The window that is the session's own is in use.
    own: bool,
    own_bytes: u64,
    shared: u64,
}

/// Bytes that may be registered until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    purse: Arc<Purse>,
    /// `None`: it is the session's own.
    shared: Option<u64>,
}

impl Budget {
    /// At most `bytes_max` beside each session's own window; `on_return` is called when some come
    /// back.
    pub(crate) fn new(bytes_max: u64, on_return: fn()) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            shared: Mutex::new(0),
            on_return,
        })
    }

    /// Bytes that sessions share now, and how many they may.
    pub(crate) fn held(&self) -> (u64, u64) {
        (*lock(&self.shared), self.bytes_max)
    }

    /// A session's part.
    pub(crate) fn purse(self: &Arc<Self>) -> Arc<Purse> {
        Arc::new(Purse {
            budget: Arc::clone(self),
            used: Mutex::default(),
        })
    }
}

impl Purse {
    /// Room for a window; `None` if there is none now.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let mut used = lock(&self.used);
        if !used.own && bytes <= WINDOW_BYTES {
            used.own = true;
            used.own_bytes = bytes;
            return Some(self.reservation(None));
        }
        let mut shared = lock(&self.budget.shared);
        let others = shared.saturating_sub(used.shared);
        let most = self.budget.bytes_max.saturating_sub(others) / 2;
        if used.shared.saturating_add(bytes) > most {
            return None;
        }
        used.shared += bytes;
        *shared += bytes;
        Some(self.reservation(Some(bytes)))
    }

    /// Bytes that the session has registered.
    pub(crate) fn held(&self) -> u64 {
        let used = lock(&self.used);
        used.own_bytes + used.shared
    }

    fn reservation(self: &Arc<Self>, shared: Option<u64>) -> Reservation {
        Reservation {
            purse: Arc::clone(self),
            shared,
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        {
            let mut used = lock(&self.purse.used);
            match self.shared {
                None => {
                    used.own = false;
                    used.own_bytes = 0;
                }
                Some(bytes) => {
                    used.shared -= bytes;
                    *lock(&self.purse.budget.shared) -= bytes;
                }
            }
        }
        (self.purse.budget.on_return)();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_session_has_one_window_whatever_others_hold() {
        let budget = Budget::new(0, || {});
        let (one, other) = (budget.purse(), budget.purse());
        let held = one.reserve(WINDOW_BYTES).unwrap();
        assert!(one.reserve(1).is_none());
        assert!(other.reserve(1).is_some());
        drop(held);
        assert!(one.reserve(WINDOW_BYTES).is_some());
    }

    #[test]
    fn nobody_gets_more_than_half_of_what_others_leave() {
        let budget = Budget::new(1000, || {});
        let (one, other) = (budget.purse(), budget.purse());
        let _own = [one.reserve(1).unwrap(), other.reserve(1).unwrap()];
        let held = one.reserve(500).unwrap();
        assert!(one.reserve(1).is_none(), "the rest is for others");
        let half = other.reserve(250).unwrap();
        assert!(other.reserve(1).is_none());
        drop(held);
        assert!(other.reserve(250).is_some());
        drop(half);
        assert_eq!(*lock(&budget.shared), 0);
    }

    #[test]
    fn more_than_a_window_is_never_the_sessions_own() {
        let budget = Budget::new(0, || {});
        assert!(budget.purse().reserve(WINDOW_BYTES + 1).is_none());
    }
}
