//! How many descriptors the process keeps for speed: one budget for all transfers.
//!
//! In: who would keep how many open. Out: how many may be. Caches of open directories and groups of
//! files are faster the bigger they are and work at any size, so whoever finds the budget spent
//! goes on with the few that everyone is guaranteed. Nothing here opens or closes anything.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::process::{Resource, getrlimit};

/// Directories that every source and every destination may hold open, however many there are; more
/// are held only as long as the process has descriptors to spare.
pub(crate) const DIRECTORIES_OPEN_MIN: usize = 8;

/// Part of the process's descriptors that is lent out: one in so many.
const BUDGET_SHARE: u64 = 4;
/// Most that are lent out, however many the process may have.
const BUDGET_MAX: u64 = 1 << 20;

static PROCESS: OnceLock<Budget> = OnceLock::new();

/// Descriptors that may be kept beyond what everyone is guaranteed. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    left: Arc<AtomicUsize>,
}

impl Budget {
    /// A budget of so many descriptors.
    pub(crate) fn new(descriptors: usize) -> Self {
        Self {
            left: Arc::new(AtomicUsize::new(descriptors)),
        }
    }

    /// The budget of this process, measured by its limit at first use.
    pub(crate) fn of_process() -> Self {
        PROCESS
            .get_or_init(|| {
                let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
                let descriptors = (limit / BUDGET_SHARE).min(BUDGET_MAX);
                Self::new(usize::try_from(descriptors).unwrap_or(usize::MAX))
            })
            .clone()
    }

    /// A share that may always keep `guaranteed` descriptors, and more while there are any left.
    pub(crate) fn share(&self, guaranteed: usize) -> Share {
        Share {
            budget: self.clone(),
            guaranteed: guaranteed.max(1),
            lent: 0,
        }
    }

    /// Descriptors that are not lent.
    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// Takes as many as there are, at most `wanted`.
    fn take(&self, wanted: usize) -> usize {
        let mut left = self.left.load(Ordering::Relaxed);
        loop {
            let taken = wanted.min(left);
            if taken == 0 {
                return 0;
            }
            // It counts and guards no other memory, so no order is needed.
            match self.left.compare_exchange_weak(
                left,
                left - taken,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return taken,
                Err(now) => left = now,
            }
        }
    }

    fn give_back(&self, descriptors: usize) {
        self.left.fetch_add(descriptors, Ordering::Relaxed);
    }
}

/// What one cache or group borrows from a [`Budget`]; dropping it gives all of it back.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    guaranteed: usize,
    lent: usize,
}

impl Share {
    /// Borrows what keeping `wanted` descriptors takes, and gives back what is borrowed beyond it.
    /// Tells how many of them may be kept, which is at least the guaranteed number.
    #[must_use]
    pub(crate) fn fit(&mut self, wanted: usize) -> usize {
        let beyond = wanted.saturating_sub(self.guaranteed);
        if let Some(missing) = beyond.checked_sub(self.lent) {
            self.lent += self.budget.take(missing);
        } else {
            self.budget.give_back(self.lent - beyond);
            self.lent = beyond;
        }
        wanted.min(self.guaranteed + self.lent)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.give_back(self.lent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_guaranteed_costs_nothing_and_the_rest_is_shared() {
        let budget = Budget::new(5);
        let (mut first, mut second) = (budget.share(2), budget.share(2));
        assert_eq!(first.fit(2), 2);
        assert_eq!(budget.left(), 5);
        assert_eq!(first.fit(6), 6);
        assert_eq!(budget.left(), 1);
        assert_eq!(second.fit(9), 3);
        assert_eq!(first.fit(9), 6);
        assert_eq!(budget.left(), 0);
        assert_eq!(budget.share(2).fit(9), 2);
    }

    #[test]
    fn what_is_not_kept_any_more_is_given_back() {
        let budget = Budget::new(5);
        let mut share = budget.share(1);
        assert_eq!(share.fit(6), 6);
        assert_eq!(share.fit(3), 3);
        assert_eq!(budget.left(), 3);
        drop(share);
        assert_eq!(budget.left(), 5);
    }

    #[test]
    fn the_process_has_one_budget() {
        let (one, other) = (Budget::of_process(), Budget::of_process());
        assert!(Arc::ptr_eq(&one.left, &other.left));
    }
}
