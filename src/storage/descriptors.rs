//! How many descriptors the process keeps for speed: one budget for all transfers.
//!
//! In: who would keep how many open. Out: how many may be. Caches of open directories and groups of
//! files are faster the bigger they are and work at any size, so whoever finds the budget spent
//! goes on with the few that everyone is guaranteed. Each transfer has an [`Account`]: it may borrow
//! [`SHARE_MULTIPLE`] times as many as are left, so one alone gets most of them, several come to
//! equal parts as their caches turn over, and a new one always finds some. Files under way are
//! needed whatever is left; they count, so that caches make room for them. Nothing here opens or
//! closes anything.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::process::{Resource, getrlimit};

/// Directories that every source and every destination may hold open, however many there are; more
/// are held only as long as the process has descriptors to spare.
pub(crate) const DIRECTORIES_OPEN_MIN: usize = 8;

/// Part of the process's descriptors that is lent out: one in so many.
const BUDGET_SHARE: u64 = 4;
/// A transfer may have borrowed so many times what is left.
const SHARE_MULTIPLE: i64 = 3;
/// Most that are lent out, however many the process may have.
const BUDGET_MAX: u64 = 1 << 20;

static PROCESS: OnceLock<Budget> = OnceLock::new();

/// Descriptors that may be kept beyond what everyone is guaranteed. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    /// Below zero while files under way take more than there are.
    left: Arc<AtomicI64>,
}

impl Budget {
    /// A budget of so many descriptors.
    pub(crate) fn new(descriptors: usize) -> Self {
        let descriptors = i64::try_from(descriptors).unwrap_or(i64::MAX);
        Self {
            left: Arc::new(AtomicI64::new(descriptors)),
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

    /// What one transfer borrows by.
    pub(crate) fn account(&self) -> Account {
        Account {
            budget: self.clone(),
            lent: Arc::default(),
        }
    }

    /// Descriptors that are not lent.
    #[cfg(test)]
    pub(crate) fn left(&self) -> i64 {
        self.left.load(Ordering::Relaxed)
    }
}

/// One transfer's dealings with a [`Budget`]. Clones are the same account.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    budget: Budget,
    lent: Arc<AtomicI64>,
}

impl Account {
    /// A share that may always keep `guaranteed` descriptors, and more as is fair.
    pub(crate) fn share(&self, guaranteed: usize) -> Share {
        Share {
            account: self.clone(),
            guaranteed: guaranteed.max(1),
            lent: 0,
        }
    }

    /// Counts a descriptor that is needed whatever is left.
    pub(crate) fn hold(&self) -> Hold {
        self.borrow(1);
        Hold(self.clone())
    }

    /// How many this account may have borrowed in all, as things stand.
    fn fair(&self) -> i64 {
        // These count and guard no other memory, so no order is needed. A race between two makes
        // one of them unfair by what the other took, until it asks again.
        let left = self.budget.left.load(Ordering::Relaxed);
        let lent = self.lent.load(Ordering::Relaxed);
        let all = left.saturating_add(lent).max(0);
        // No overflow: a budget is far below the type's range.
        all.min(i64::MAX / SHARE_MULTIPLE) * SHARE_MULTIPLE / (SHARE_MULTIPLE + 1)
    }

    /// Borrows; a negative number gives back.
    fn borrow(&self, descriptors: i64) {
        self.lent.fetch_add(descriptors, Ordering::Relaxed);
        self.budget.left.fetch_sub(descriptors, Ordering::Relaxed);
    }
}

/// What one cache or group of a transfer borrows; dropping it gives all of it back.
#[derive(Debug)]
pub(crate) struct Share {
    account: Account,
    guaranteed: usize,
    lent: i64,
}

impl Share {
    /// Borrows what keeping `wanted` descriptors takes, and gives back what is borrowed beyond it or
    /// is not fair any more. Tells how many of them may be kept, which is at least the guaranteed
    /// number.
    #[must_use]
    pub(crate) fn fit(&mut self, wanted: usize) -> usize {
        let beyond = wanted.saturating_sub(self.guaranteed);
        let beyond = i64::try_from(beyond).unwrap_or(i64::MAX);
        let others = self.account.lent.load(Ordering::Relaxed) - self.lent;
        let lent = beyond.min((self.account.fair() - others).max(0));
        self.account.borrow(lent - self.lent);
        self.lent = lent;
        let kept = self.guaranteed + usize::try_from(lent).unwrap_or(0);
        wanted.min(kept)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.account.borrow(-self.lent);
    }
}

/// A descriptor of a file under way.
#[derive(Debug)]
pub(crate) struct Hold(Account);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.borrow(-1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_guaranteed_costs_nothing_and_the_rest_is_shared() {
        let budget = Budget::new(16);
        let (first, second) = (budget.account(), budget.account());
        let (mut first, mut second) = (first.share(2), second.share(2));
        assert_eq!(first.fit(2), 2);
        assert_eq!(budget.left(), 16);
        assert_eq!(first.fit(6), 6);
        assert_eq!(budget.left(), 12);
        // Three quarters, as it is alone.
        assert_eq!(first.fit(99), 2 + 12);
        assert_eq!(second.fit(99), 2 + 3);
        assert_eq!(budget.left(), 1);
        drop((first, second));
        assert_eq!(Budget::new(0).account().share(2).fit(9), 2);
    }

    #[test]
    fn transfers_that_go_on_asking_come_to_equal_parts() {
        let budget = Budget::new(1000);
        let mut shares: Vec<_> = (0..4).map(|_| budget.account().share(8)).collect();
        for _ in 0..50 {
            for share in &mut shares {
                assert!(share.fit(5000) >= 8);
            }
        }
        let kept: Vec<_> = shares.iter_mut().map(|share| share.fit(5000)).collect();
        let (least, most) = (kept.iter().min().unwrap(), kept.iter().max().unwrap());
        assert!(most - least <= 8, "{kept:?}");
        assert!(*least > 200, "{kept:?}");
        assert!(budget.left() > 0);
    }

    #[test]
    fn shares_of_one_transfer_are_its_one_part() {
        let budget = Budget::new(100);
        let (account, other) = (budget.account(), budget.account());
        let (mut directories, mut group) = (account.share(8), account.share(8));
        assert_eq!(directories.fit(68), 68);
        assert_eq!(group.fit(99), 8 + 15);
        assert_eq!(other.share(8).fit(99), 8 + 18);
    }

    #[test]
    fn files_under_way_count_and_are_never_refused() {
        let budget = Budget::new(40);
        let account = budget.account();
        let mut cache = account.share(8);
        assert_eq!(cache.fit(38), 38);
        let files: Vec<_> = (0..100).map(|_| account.hold()).collect();
        assert!(budget.left() < 0);
        // The caches make room: its own, and those of others.
        assert_eq!(cache.fit(38), 8);
        assert_eq!(budget.account().share(8).fit(99), 8);
        drop(files);
        assert_eq!(cache.fit(38), 38);
        drop(cache);
        assert_eq!(budget.left(), 40);
    }

    #[test]
    fn what_is_not_kept_any_more_is_given_back() {
        let budget = Budget::new(50);
        let mut share = budget.account().share(1);
        assert_eq!(share.fit(6), 6);
        assert_eq!(share.fit(3), 3);
        assert_eq!(budget.left(), 48);
        drop(share);
        assert_eq!(budget.left(), 50);
    }

    #[test]
    fn the_process_has_one_budget() {
        let (one, other) = (Budget::of_process(), Budget::of_process());
        assert!(Arc::ptr_eq(&one.left, &other.left));
    }
}
