//! Memory to serve from: what all sessions share, and what one has for itself.
//!
//! In: wishes for slots and registered bytes. Out: some, or nothing while others have them. Each
//! session has a slot of each kind and one window's bytes that nobody can take. Which region memory is
//! for is not known here.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::budget::{Budget, Purse, Reservation};
use super::rails::{RailMemory, Refusals};
use crate::memory::{Owner, Pool, Slot};
use crate::session::activity::Activity;
use crate::session::machinery::pack_pool;
use crate::units::ChunkSize;

/// Bytes of files that all sessions together may have registered, beside one window of each.
const REGISTERED_BYTES_MAX: u64 = 1 << 30;
/// Bytes of slots for windows that all sessions share, of each size, beside one slot of each.
const SLOT_BYTES_IN_ALL: usize = 256 << 20;
/// A slot for a window: this, or one chunk where chunks are larger.
const SLOT_BYTES_MIN: usize = 4 << 20;
/// Slots that are lent to one session at once: nobody measures with more than one at a time.
const LENT_MAX: usize = 4;
/// Of the slots that all share, those that are never lent: one in so many.
const UNLENT_SHARE: usize = 2;
/// Sizes of slots that there are: from the least up to the largest chunk.
const SLOT_SIZES: usize = 3;

const _: () = assert!(ChunkSize::MAX.bytes() == (SLOT_BYTES_MIN << (SLOT_SIZES - 1)) as u64);

/// Memory for what is served that all sessions of the process share.
#[derive(Clone)]
pub(crate) struct ServingMemory {
    packs: Pool,
    slots: [Pool; SLOT_SIZES],
    budget: Arc<Budget>,
}

/// Memory of one session, which goes on with it whatever others hold.
pub(crate) struct SessionMemory {
    pub(super) owner: Owner,
    own_pack: Pool,
    /// Made when it is first needed, of the size that was needed then.
    own_slot: Mutex<Option<Pool>>,
    lent: Arc<Semaphore>,
    purse: OnceLock<Arc<Purse>>,
    pub(super) rails: OnceLock<Arc<dyn RailMemory>>,
    pub(super) refusals: Refusals,
    pub(super) activity: Arc<Activity>,
}

impl ServingMemory {
    /// `packs_max` packs, and the usual bounds of the rest.
    pub(crate) fn new(packs_max: usize) -> Self {
        Self {
            packs: pack_pool(packs_max),
            slots: std::array::from_fn(|size| {
                let bytes = SLOT_BYTES_MIN << size;
                crate::session::machinery::serving_pool(bytes, SLOT_BYTES_IN_ALL / bytes)
            }),
            budget: Budget::new(
                REGISTERED_BYTES_MAX,
                crate::session::machinery::tell_returned,
            ),
        }
    }

    /// Returns the memory of slots that nobody uses to the system.
    pub(crate) fn give_back(&self) {
        self.packs.give_back();
        self.slots.iter().for_each(Pool::give_back);
    }

    /// Whether nobody has any of it.
    #[cfg(test)]
    pub(crate) fn is_whole(&self) -> bool {
        let whole = |pool: &Pool| pool.available() == pool.slots_max();
        whole(&self.packs) && self.slots.iter().all(whole) && self.budget.held().0 == 0
    }

    /// Bytes of files that are registered for all sessions beside a window of each, and the bound.
    pub(crate) fn registered_bytes(&self) -> (u64, u64) {
        self.budget.held()
    }
}

impl SessionMemory {
    /// Of the session with this number, which no other has.
    pub(crate) fn new(owner: Owner, activity: Arc<Activity>) -> Arc<Self> {
        Arc::new(Self {
            owner,
            own_pack: pack_pool(1),
            own_slot: Mutex::new(None),
            lent: Arc::new(Semaphore::new(LENT_MAX)),
            purse: OnceLock::new(),
            rails: OnceLock::new(),
            refusals: Refusals::default(),
            activity,
        })
    }

    /// From now on regions are registered for these rails too. Once per session.
    pub(crate) fn set_rails(&self, rails: Arc<dyn RailMemory>) {
        // A second call is a defect of ours, and harmless: the first rails stay.
        let _ = self.rails.set(rails);
    }

    /// Whether nothing of it is in use.
    #[cfg(test)]
    pub(crate) fn is_whole(&self) -> bool {
        let own = self.own_slot.lock().unwrap_or_else(PoisonError::into_inner);
        self.own_pack.available() == 1 && own.as_ref().is_none_or(|own| own.available() == 1)
    }

    /// Bytes of files that are registered for the session.
    pub(crate) fn registered_bytes(&self) -> u64 {
        self.purse.get().map_or(0, |purse| purse.held())
    }

    /// What of this end's could not be read over rails.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    pub(super) fn rails(&self) -> Option<&Arc<dyn RailMemory>> {
        self.rails.get().filter(|rails| rails.is_up())
    }

    /// There is no other way than rails, and no rail at present: nothing is made readable now, as
    /// nobody could come to read it.
    pub(super) fn must_wait(&self) -> bool {
        let rails = self.rails.get();
        rails.is_some_and(|rails| rails.policy().rails_only && !rails.is_up())
    }

    /// The session's own pack slot if it is free, else a shared one.
    pub(super) fn pack_slot(&self, shared: &ServingMemory) -> Option<Slot> {
        self.own_pack
            .take_for(self.owner)
            .or_else(|| shared.packs.take_for(self.owner))
    }

    /// A slot for a window in a transfer with such chunks; whatever it held is still in it.
    pub(super) fn window_slot(&self, shared: &ServingMemory, chunk: ChunkSize) -> Option<Slot> {
        let (size, _) = slot_size(chunk);
        self.own_window_slot(chunk)
            .or_else(|| shared.slots[size].take())
    }

    /// Leave to have one slot more lent; nothing if the session has as many as it may.
    pub(super) fn leave_to_borrow(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.lent).try_acquire_owned().ok()
    }

    /// A slot to lend: it serves no file, so those that do are left their part of what is shared.
    pub(super) fn lent_slot(&self, shared: &ServingMemory) -> Option<Slot> {
        let (size, _) = slot_size(ChunkSize::MIN);
        let pool = &shared.slots[size];
        self.own_window_slot(ChunkSize::MIN)
            .or_else(|| pool.take_leaving(pool.slots_max() / UNLENT_SHARE))
    }

    fn own_window_slot(&self, chunk: ChunkSize) -> Option<Slot> {
        let (_, bytes) = slot_size(chunk);
        let mut own = self.own_slot.lock().unwrap_or_else(PoisonError::into_inner);
        // Another size than before: as no slot of the old size is out, it can be exchanged.
        if own
            .as_ref()
            .is_none_or(|own| own.slot_bytes() < bytes && own.available() == 1)
        {
            *own = Some(crate::session::machinery::serving_pool(bytes, 1));
        }
        own.as_ref()
            .filter(|own| own.slot_bytes() >= bytes)
            .and_then(Pool::take)
    }

    pub(super) fn reserve(&self, shared: &ServingMemory, bytes: u64) -> Option<Reservation> {
        self.purse
            .get_or_init(|| shared.budget.purse())
            .reserve(bytes)
    }
}

/// Which slots serve windows of files with such chunks, and their bytes.
pub(super) fn slot_size(chunk: ChunkSize) -> (usize, usize) {
    let size = (0..SLOT_SIZES - 1)
        .find(|size| (SLOT_BYTES_MIN << size) as u64 >= chunk.bytes())
        .unwrap_or(SLOT_SIZES - 1);
    (size, SLOT_BYTES_MIN << size)
}
