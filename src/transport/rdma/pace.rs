//! How long READs over a port may be: shorter as packets are sent again, longer when that is over.
//!
//! A lost packet costs what is left of its READ, since adapters send again from there on; so where
//! losses are, short READs lose less. In: the port's count of retries, now and then, and the queue
//! pairs that retries did not save. Out: bytes. Nothing here knows where counts come from.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The longest READ of all, and the shortest that it is cut to.
const READ_BYTES_MAX: usize = 1 << 20;
const READ_BYTES_MIN: usize = 64 << 10;
/// Looks without a retry after which READs may be longer again.
const QUIET_LOOKS: u32 = 15;

/// See the module's first paragraph. One for each port of a device, for all its queue pairs.
#[derive(Debug)]
pub(super) struct Pace {
    read_bytes: AtomicUsize,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    retries: Option<u64>,
    quiet: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            read_bytes: AtomicUsize::new(READ_BYTES_MAX),
            seen: Mutex::default(),
        }
    }
}

impl Pace {
    /// Bytes of the longest READ now.
    pub(super) fn read_bytes(&self) -> usize {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// A look at the port: so many packets were sent again since it exists.
    pub(super) fn look(&self, retries: u64) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // A count that fell is one that began anew.
        let rose = seen.retries.is_some_and(|before| retries > before);
        seen.retries = Some(retries);
        if rose {
            seen.quiet = 0;
            drop(seen);
            self.stumbled();
            return;
        }
        seen.quiet += 1;
        if seen.quiet >= QUIET_LOOKS {
            seen.quiet = 0;
            self.change(|bytes| bytes.saturating_mul(2));
        }
    }

    /// Packets had to be sent again.
    pub(super) fn stumbled(&self) {
        self.change(|bytes| bytes / 2);
    }

    fn change(&self, change: impl Fn(usize) -> usize) {
        let change = |bytes| Some(change(bytes).clamp(READ_BYTES_MIN, READ_BYTES_MAX));
        let before = self
            .read_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        let (before, now) = (before.unwrap_or_else(|same| same), self.read_bytes());
        if before != now {
            tracing::debug!(read_bytes = now, "the length of RDMA READs was changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_halved_down_to_the_least_as_retries_appear() {
        let pace = Pace::default();
        pace.look(1000);
        assert_eq!(pace.read_bytes(), 1 << 20, "those were before our time");
        let mut expected = 1 << 20;
        for retries in 1001..1010 {
            pace.look(retries);
            expected = (expected / 2).max(64 << 10);
            assert_eq!(pace.read_bytes(), expected);
        }
        assert_eq!(expected, 64 << 10);
    }

    #[test]
    fn they_grow_again_when_it_was_quiet_for_long() {
        let pace = Pace::default();
        pace.stumbled();
        pace.stumbled();
        for _ in 0..QUIET_LOOKS - 1 {
            pace.look(7);
        }
        assert_eq!(pace.read_bytes(), 256 << 10);
        pace.look(7);
        assert_eq!(pace.read_bytes(), 512 << 10);
        // One retry, and the quiet begins anew.
        for _ in 0..QUIET_LOOKS - 1 {
            pace.look(7);
        }
        pace.look(8);
        assert_eq!(pace.read_bytes(), 256 << 10);
        for _ in 0..100 * QUIET_LOOKS {
            pace.look(8);
        }
        assert_eq!(pace.read_bytes(), 1 << 20);
    }
}
