//! What a session lets its peer read: regions by key.
//!
//! The session adds and removes regions; the lanes that carry its connections look them up, once
//! per READ. A region that was removed lives on until the last READ that found it is over, and
//! says so when it goes. Nothing here knows how bytes are moved.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use super::events::{EventSink, LaneEvent};
use crate::ids::{EntryId, RegionId, RemoteKey};
use crate::memory::Slot;
use crate::storage::SourceFile;
use crate::transport::Refusal;
use crate::units::ChunkSize;

/// Bytes that a peer may read.
pub struct ServedRegion {
    /// Its name, for events.
    pub region: RegionId,
    /// What a READ must carry: random, so that it can't be guessed.
    pub key: RemoteKey,
    /// The bytes.
    pub content: Served,
}

/// Where a region's bytes are.
pub enum Served {
    /// A window of a file.
    File {
        /// The file.
        file: Arc<dyn SourceFile>,
        /// Its name, for events.
        entry: EntryId,
        /// Where the window starts in the file.
        file_offset: u64,
        /// Bytes of the window.
        len: u64,
        /// Bytes of the file: which chunk is the last and whether it is the only one.
        file_len: u64,
        /// Chunks of this size are hashed as they are sent (BLAKE3) and told by
        /// [`LaneEvent::Hashed`].
        hash: Option<ChunkSize>,
    },
    /// Memory that does not change any more.
    Memory {
        /// The memory.
        slot: Arc<Slot>,
        /// How much of it, from its start.
        len: u64,
    },
}

impl ServedRegion {
    /// Bytes that may be read.
    pub fn len(&self) -> u64 {
        match &self.content {
            Served::File { len, .. } => *len,
            Served::Memory { slot, len } => (*len).min(slot.len() as u64),
        }
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for ServedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key, which is a secret.
        f.debug_struct("ServedRegion")
            .field("region", &self.region)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// One session's regions; shared by the session and the lanes of its connections.
pub struct RegionTable {
    regions: RwLock<Regions>,
    events: EventSink,
}

#[derive(Default)]
struct Regions {
    by_key: HashMap<RemoteKey, Arc<Exposed>>,
    keys: HashMap<RegionId, RemoteKey>,
}

impl RegionTable {
    /// An empty table, whose regions report to `events`.
    pub fn new(events: EventSink) -> Arc<Self> {
        Arc::new(Self {
            regions: RwLock::default(),
            events,
        })
    }

    /// Lets the peer read `region`. READs that arrive after this call find it.
    pub fn expose(&self, region: ServedRegion) {
        self.expose_with(region, None);
    }

    /// Like [`Self::expose`], for a region that others than the lanes can read as well: what lets them
    /// is dropped when the region goes, before its memory and before that is told.
    pub fn expose_held(&self, region: ServedRegion, hold: Box<dyn Any + Send + Sync>) {
        self.expose_with(region, Some(hold));
    }

    fn expose_with(&self, region: ServedRegion, hold: Option<Box<dyn Any + Send + Sync>>) {
        let (id, key) = (region.region, region.key);
        let exposed = Arc::new(Exposed {
            _hold: hold,
            region,
            read_way: OnceLock::new(),
            advised_until: AtomicU64::new(0),
            events: Arc::clone(&self.events),
            _farewell: Farewell {
                region: id,
                events: Arc::clone(&self.events),
            },
        });
        let replaced = {
            let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
            regions.keys.insert(id, key);
            regions.by_key.insert(key, exposed)
        };
        // Dropped outside of the lock: it may tell that it is gone.
        drop(replaced);
    }

    /// Ends the reading of a region. [`LaneEvent::Revoked`] tells when the last READ under way is
    /// over, at once if there is none. A region that is not there is not an error and tells
    /// nothing.
    pub fn revoke(&self, region: RegionId) {
        let removed = {
            let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
            regions
                .keys
                .remove(&region)
                .and_then(|key| regions.by_key.remove(&key))
        };
        drop(removed);
    }

    /// Ends the reading of all regions.
    pub fn revoke_all(&self) {
        let removed = {
            let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *regions)
        };
        drop(removed);
    }

    /// Whether nothing can be read.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.by_key.is_empty()
    }

    /// The region of a READ. The lock is held for the look alone, and contended only while the
    /// session changes the table.
    pub(super) fn find(
        &self,
        key: RemoteKey,
        offset: u64,
        len: u64,
    ) -> Result<Arc<Exposed>, Refusal> {
        let found = {
            let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
            regions.by_key.get(&key).map(Arc::clone)
        };
        let exposed = found.ok_or(Refusal::UnknownKey)?;
        match offset.checked_add(len) {
            Some(end) if end <= exposed.region.len() => Ok(exposed),
            _ => Err(Refusal::OutOfRange),
        }
    }
}

impl fmt::Debug for RegionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionTable").finish_non_exhaustive()
    }
}

/// A region in use: by its table, and by every READ that found it there.
pub(super) struct Exposed {
    /// The first field: it goes before what it lets others read.
    _hold: Option<Box<dyn Any + Send + Sync>>,
    pub(super) region: ServedRegion,
    /// How its file is read. Unset: by trying without waiting, and posting what would wait.
    pub(super) read_way: OnceLock<ReadWay>,
    /// Up to where the kernel was asked to read the file ahead.
    pub(super) advised_until: AtomicU64,
    pub(super) events: EventSink,
    _farewell: Farewell,
}

/// How a file is read whose file system can't tell whether a read would wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadWay {
    /// Plainly: its bytes are in memory.
    Plain,
    /// By the reactor.
    Post,
}

/// Tells that a region is gone when it is dropped: the last field of [`Exposed`], so that memory
/// and file have been given back by then, and whoever waits for them finds them.
struct Farewell {
    region: RegionId,
    events: EventSink,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        (self.events)(LaneEvent::Revoked {
            region: self.region,
        });
    }
}
