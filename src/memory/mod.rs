//! Memory that bytes land in: bounded pools of page-aligned slots.
//!
//! A [`Slot`] is exclusive: it moves into an operation and comes back with its completion, and
//! dropping it gives it to its [`Pool`]. A pool makes slots as they are first needed and never more
//! than its maximum, so the maximum is a bound on resident memory, not a cost paid at start. The
//! last slot given back is the next one taken: it is the one still in a cache.
//! Nothing here knows connections, files or what the bytes mean.

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::{Advice, MmapMut};

/// Slots from this size on are offered huge pages: the usual size of one.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Whose bytes a slot held last: any number that names a session, 0 for nobody.
pub type Owner = u64;

/// Called when a slot comes back after [`Pool::take`] found none; from whichever thread drops it.
pub type ReturnHook = Box<dyn Fn() + Send + Sync>;

/// What a device was told about a slot's memory: a registration, which has to end before the memory
/// serves anybody else. It travels with the slot and ends when the slot is dropped.
pub trait Attachment: Any + Send + Sync {
    /// Ends it. False: the device may still reach the memory, which then must never be used again.
    fn detach(&mut self) -> bool;
}

/// A bounded set of equal slots. Clones share the set.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    slot_bytes: usize,
    slots_max: usize,
    stock: Mutex<Stock>,
    /// A taker was refused since the last slot came back.
    missed: AtomicBool,
    on_return: Option<ReturnHook>,
}

struct Stock {
    /// Used as a stack: see the module's first paragraph.
    free: Vec<Memory>,
    made: usize,
}

struct Memory {
    map: MmapMut,
    owner: Owner,
}

impl Pool {
    /// A pool of at most `slots_max` slots with `slot_bytes` bytes each, rounded up to whole pages.
    pub fn new(slot_bytes: usize, slots_max: usize) -> Self {
        Self::build(slot_bytes, slots_max, None)
    }

    /// Like [`Self::new`]; `on_return` is called when a slot comes back that somebody missed.
    pub fn with_hook(slot_bytes: usize, slots_max: usize, on_return: ReturnHook) -> Self {
        Self::build(slot_bytes, slots_max, Some(on_return))
    }

    fn build(slot_bytes: usize, slots_max: usize, on_return: Option<ReturnHook>) -> Self {
        let page = rustix::param::page_size();
        let stock = Stock {
            free: Vec::with_capacity(slots_max),
            made: 0,
        };
        Self {
            shared: Arc::new(Shared {
                slot_bytes: slot_bytes.max(1).next_multiple_of(page),
                slots_max,
                stock: Mutex::new(stock),
                missed: AtomicBool::new(false),
                on_return,
            }),
        }
    }

    /// Bytes of each slot.
    pub fn slot_bytes(&self) -> usize {
        self.shared.slot_bytes
    }

    /// The most slots that can be out at once.
    pub fn slots_max(&self) -> usize {
        self.shared.slots_max
    }

    /// How many [`Self::take`] could hand out now.
    pub fn available(&self) -> usize {
        self.shared.available(&self.shared.stock())
    }

    /// A slot with whatever bytes it held last; `None` when all are out or the kernel has no
    /// memory. Fit for landing bytes of which only the filled part is ever shown.
    pub fn take(&self) -> Option<Slot> {
        self.take_leaving(0)
    }

    /// Like [`Self::take`], for uses that may last: `None` also if that would leave fewer than
    /// `reserve` slots for others.
    pub fn take_leaving(&self, reserve: usize) -> Option<Slot> {
        self.take_memory(reserve).map(|memory| self.slot(memory))
    }

    /// A slot for bytes of `owner`: all zero unless `owner` was the last to use it. Fit for memory
    /// that a peer of that owner can read beyond what was filled.
    pub fn take_for(&self, owner: Owner) -> Option<Slot> {
        let mut slot = self.take()?;
        slot.adopt(owner);
        Some(slot)
    }

    /// Gives the memory of all slots that are not out back to the system.
    pub(crate) fn give_back(&self) {
        let free = {
            let mut stock = self.shared.stock();
            stock.made -= stock.free.len();
            std::mem::replace(&mut stock.free, Vec::with_capacity(self.shared.slots_max))
        };
        // Unmapped outside of the lock.
        drop(free);
    }

    fn slot(&self, memory: Memory) -> Slot {
        Slot {
            memory: Some(memory),
            attachments: Vec::new(),
            shared: Arc::clone(&self.shared),
        }
    }

    fn take_memory(&self, reserve: usize) -> Option<Memory> {
        let mut stock = self.shared.stock();
        if self.shared.available(&stock) > reserve {
            if let Some(memory) = stock.free.pop() {
                return Some(memory);
            }
            if let Ok(memory) = Memory::map(self.shared.slot_bytes) {
                stock.made += 1;
                return Some(memory);
            }
        }
        // Set while the stock is locked: a slot that comes back after this sees it.
        self.shared.missed.store(true, Ordering::Relaxed);
        None
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("slot_bytes", &self.slot_bytes())
            .field("slots_max", &self.slots_max())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn stock(&self) -> MutexGuard<'_, Stock> {
        // Nothing panics while it is held, and a stock is whole between any two statements.
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn available(&self, stock: &Stock) -> usize {
        stock.free.len() + (self.slots_max - stock.made)
    }

    fn give_back(&self, memory: Memory) {
        let missed = {
            let mut stock = self.stock();
            stock.free.push(memory);
            self.missed.swap(false, Ordering::Relaxed)
        };
        if let (true, Some(hook)) = (missed, &self.on_return) {
            hook();
        }
    }
}

impl Memory {
    fn map(bytes: usize) -> io::Result<Self> {
        let map = MmapMut::map_anon(bytes)?;
        if bytes >= HUGE_PAGE_BYTES {
            // Fewer pages to fault in, to pin and for an adapter to look up. Only a wish: some kernels
            // have none.
            let _ = map.advise(Advice::HugePage);
        }
        Ok(Self { map, owner: 0 })
    }
}

/// Exclusive use of one slot. Its address does not change while it moves.
pub struct Slot {
    /// `None` only while it is being dropped.
    memory: Option<Memory>,
    /// Never more than one per device.
    attachments: Vec<Box<dyn Attachment>>,
    shared: Arc<Shared>,
}

impl Slot {
    /// Whose bytes it holds, as told to [`Pool::take_for`].
    pub fn owner(&self) -> Owner {
        self.memory.as_ref().map_or(0, |memory| memory.owner)
    }

    /// Makes it a slot for bytes of `owner`, as [`Pool::take_for`] hands out. For large slots, which
    /// are better zeroed where that may take a while.
    pub fn adopt(&mut self, owner: Owner) {
        if self.owner() != owner {
            self.zero();
            self.memory_mut().owner = owner;
        }
    }

    /// Overwrites all of it with zeros and forgets its owner.
    pub fn zero(&mut self) {
        self.fill(0);
        self.memory_mut().owner = 0;
    }

    /// The pool that it goes back to, and that keeps its memory where it is.
    pub(crate) fn pool(&self) -> Pool {
        Pool {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Has `attachment`, which speaks of exactly this slot's memory, end with the slot.
    pub(crate) fn attach(&mut self, attachment: Box<dyn Attachment>) {
        self.attachments.push(attachment);
    }

    /// What was attached and is of this kind.
    pub(crate) fn attached<A: Attachment>(&self) -> impl Iterator<Item = &A> {
        self.attachments
            .iter()
            .filter_map(|attachment| (&**attachment as &dyn Any).downcast_ref())
    }

    fn memory_mut(&mut self) -> &mut Memory {
        self.memory
            .as_mut()
            .expect("memory leaves a slot only in its drop")
    }
}

impl Deref for Slot {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self
            .memory
            .as_ref()
            .expect("memory leaves a slot only in its drop")
            .map
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory_mut().map
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else {
            return;
        };
        let mut is_free = true;
        for attachment in &mut self.attachments {
            is_free &= attachment.detach();
        }
        if is_free {
            self.shared.give_back(memory);
        } else {
            // The pool is a slot poorer: better than memory that a device reads or writes on.
            std::mem::forget(memory);
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("bytes", &self.len())
            .field("owner", &self.owner())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn is_bounded_and_reuses_the_last_returned_slot() {
        let pool = Pool::new(5000, 2);
        assert_eq!(pool.slot_bytes() % rustix::param::page_size(), 0);
        let first = pool.take().unwrap();
        let mut second = pool.take().unwrap();
        second[0] = 7;
        assert!(pool.take().is_none());
        let address = second.as_ptr();
        drop(first);
        drop(second);
        assert_eq!(pool.available(), 2);
        let again = pool.take().unwrap();
        assert_eq!((again.as_ptr(), again[0]), (address, 7));
    }

    #[test]
    fn another_owner_finds_zeros() {
        let pool = Pool::new(4096, 1);
        let mut slot = pool.take_for(1).unwrap();
        slot.fill(9);
        drop(slot);
        assert_eq!(pool.take_for(1).unwrap()[4095], 9);
        let slot = pool.take_for(2).unwrap();
        assert!(slot.iter().all(|&byte| byte == 0));
        assert_eq!(slot.owner(), 2);
    }

    #[test]
    fn what_is_given_back_can_be_made_again() {
        let pool = Pool::new(4096, 2);
        let held = pool.take();
        drop(pool.take());
        pool.give_back();
        assert_eq!((pool.available(), pool.shared.stock().made), (1, 1));
        assert!(pool.take().is_some());
        drop(held);
        pool.give_back();
        assert_eq!((pool.available(), pool.shared.stock().made), (2, 0));
    }

    #[test]
    fn hook_runs_only_for_a_missed_slot() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let hook = Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let pool = Pool::with_hook(4096, 1, hook);
        drop(pool.take());
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        let held = pool.take();
        assert!(pool.take().is_none());
        drop(held);
        drop(pool.take());
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    struct Registered(Arc<AtomicUsize>, bool);

    impl Attachment for Registered {
        fn detach(&mut self) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed);
            self.1
        }
    }

    #[test]
    fn attachments_end_before_the_memory_is_used_again() {
        let ended = Arc::new(AtomicUsize::new(0));
        let pool = Pool::new(4096, 2);
        let mut slot = pool.take().unwrap();
        slot.attach(Box::new(Registered(Arc::clone(&ended), true)));
        assert_eq!(slot.attached::<Registered>().count(), 1);
        drop(slot);
        assert_eq!((ended.load(Ordering::Relaxed), pool.available()), (1, 2));
        assert_eq!(
            pool.take().unwrap().attached::<Registered>().count(),
            0,
            "the next user starts without"
        );
    }

    #[test]
    fn memory_that_a_device_may_still_reach_is_not_used_again() {
        let ended = Arc::new(AtomicUsize::new(0));
        let pool = Pool::new(4096, 2);
        let mut slot = pool.take().unwrap();
        slot.attach(Box::new(Registered(Arc::clone(&ended), false)));
        drop(slot);
        assert_eq!((ended.load(Ordering::Relaxed), pool.available()), (1, 1));
    }

    #[test]
    fn outlives_its_pool() {
        let pool = Pool::new(4096, 1);
        let mut slot = pool.take().unwrap();
        drop(pool);
        slot.zero();
    }
}
