//! Registered memory: what a device may read for a peer, or write what a READ brought into.
//!
//! - Slots that READs bring bytes into are registered in place, once per domain and for as long as
//!   the domain's [`Landing`]. One slot alone: [`register_landing`].
//! - A slot that a peer may read is registered by [`register_serving`]. The registration travels
//!   with the slot through all its uses and ends when the slot is dropped, before its pool hands it
//!   on.
//! - A range of a file is mapped ([`FileMapping`]) and registered ([`FileRegion`]) for a peer's reads,
//!   pinned or on demand. The mapping can't be read through here: a file that is cut shorter turns
//!   the CPU's access into a signal. What a device serves of it may be stale (pinned) or end the
//!   connection (on demand) once the file is cut; digests and versions are what finds out.
//!
//! Rights are fixed by the function's name; none gives a peer the right to write. Addresses are
//! virtual ones, because not all drivers take others.
//! Nothing here knows which peer is told a key.
#![allow(unsafe_code)] // Registration hands addresses to a device.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::{Advice, MmapOptions, MmapRaw};
use rdma_sys::{ibv_access_flags, ibv_mr};

use super::domain::Domain;
use super::{Error, plain};
use crate::memory::{Attachment, Pool, Slot};

const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
const REMOTE_READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
const ON_DEMAND: u32 = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;

/// What a peer has to know to read registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Of the first byte.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// The key that a READ carries.
    pub rkey: u32,
}

/// A registration; whoever holds one keeps its memory.
struct Registration {
    raw: NonNull<ibv_mr>,
    domain: Arc<Domain>,
    ended: bool,
}

// SAFETY: libibverbs may be called from any thread; what is read of it (keys) does not change.
unsafe impl Send for Registration {}
// SAFETY: as above; ending it takes `&mut`.
unsafe impl Sync for Registration {}

impl Registration {
    /// # Safety
    /// `address` to `address + len` stay mapped, and used as `access` has it, until
    /// [`Self::end`] answered true or, if it does not, for ever.
    unsafe fn new(
        domain: &Arc<Domain>,
        address: *mut c_void,
        len: usize,
        access: u32,
    ) -> Result<Self, Error> {
        let context = domain.context();
        let register = context.verbs().ibv_reg_mr;
        // SAFETY: the domain is alive; the caller answers for the memory. The bits fit.
        let raw = unsafe { register(domain.raw().as_ptr(), address, len, access.cast_signed()) };
        let raw = plain::non_null(raw).map_err(|error| {
            let action = format!("register {len} bytes");
            let is_limit = error.raw_os_error() == Some(libc::ENOMEM);
            let failed = context.error(action, error);
            if is_limit {
                failed.with_hint("raise the limit on locked memory: LimitMEMLOCK=, ulimit -l")
            } else {
                failed
            }
        })?;
        Ok(Self {
            raw,
            domain: Arc::clone(domain),
            ended: false,
        })
    }

    fn lkey(&self) -> u32 {
        // SAFETY: alive until `end`, which takes `&mut`; keys do not change.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    fn rkey(&self) -> u32 {
        // SAFETY: as in `lkey`.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// Once; later calls answer the same. False: the device may go on using the memory.
    fn end(&mut self) -> bool {
        if self.ended {
            return true;
        }
        let context = self.domain.context();
        // SAFETY: made once, and not ended yet.
        let code: c_int = unsafe { (context.verbs().ibv_dereg_mr)(self.raw.as_ptr()) };
        match plain::check(code) {
            Ok(()) => self.ended = true,
            Err(error) => {
                let device = context.name();
                tracing::error!(%device, %error, "a memory region can't be given back; it is leaked");
            }
        }
        self.ended
    }
}

/// What a slot is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Landing,
    Serving,
}

struct SlotRegistration {
    registration: Registration,
    purpose: Use,
}

impl Attachment for SlotRegistration {
    fn detach(&mut self) -> bool {
        self.registration.end()
    }
}

/// Lets READs of `domain`'s queue pairs bring bytes into `slot`, and nobody else. Does nothing when
/// that is so already. A slot that peers may read can't be had for this.
pub fn register_landing(slot: &mut Slot, domain: &Arc<Domain>) -> Result<(), Error> {
    register_slot(slot, domain, Use::Landing).map(|_| ())
}

/// Lets peers of `domain`'s queue pairs read all of `slot`; what is told again when that is so
/// already. They see what it holds, from now until it is dropped: it must hold nothing of others. A
/// slot that READs land in can't be had for this.
pub fn register_serving(slot: &mut Slot, domain: &Arc<Domain>) -> Result<RemoteMemory, Error> {
    let rkey = register_slot(slot, domain, Use::Serving)?;
    Ok(RemoteMemory {
        address: slot.as_ptr().addr() as u64,
        len: slot.len() as u64,
        rkey,
    })
}

fn register_slot(slot: &mut Slot, domain: &Arc<Domain>, purpose: Use) -> Result<u32, Error> {
    let other = slot
        .attached::<SlotRegistration>()
        .map(|attached| attached.purpose)
        .find(|other| *other != purpose);
    if let Some(other) = other {
        let source = io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("it is registered for {other:?}"),
        );
        let action = format!("register a slot for {purpose:?}");
        return Err(domain.context().error(action, source));
    }
    if let Some(same) = slot_registration(slot, domain) {
        return Ok(same.registration.rkey());
    }
    let access = match purpose {
        Use::Landing => LOCAL_WRITE,
        Use::Serving => REMOTE_READ,
    };
    let (address, len) = (slot.as_mut_ptr().cast(), slot.len());
    // SAFETY: the slot's memory does not move, and is neither unmapped nor used by others before
    // the registration, which is attached to the slot right below, has ended; where it does not
    // end, the slot leaks the memory. Bytes are written to it only while a queue pair owns the slot.
    let registration = unsafe { Registration::new(domain, address, len, access) }?;
    let rkey = registration.rkey();
    slot.attach(Box::new(SlotRegistration {
        registration,
        purpose,
    }));
    Ok(rkey)
}

fn slot_registration<'slot>(
    slot: &'slot Slot,
    domain: &Arc<Domain>,
) -> Option<&'slot SlotRegistration> {
    slot.attached::<SlotRegistration>()
        .find(|attached| Arc::ptr_eq(&attached.registration.domain, domain))
}

/// Slots that READs of one domain's queue pairs bring bytes into, each registered at its first use
/// and from then on, whoever uses it in between: nobody but a queue pair of the domain that owns the
/// slot can make the device write there.
pub struct Landing {
    domain: Arc<Domain>,
    /// By address. The pool keeps the memory mapped, so an address means the same for as long.
    slots: Mutex<HashMap<usize, (Registration, Pool)>>,
}

impl Landing {
    /// Without slots yet.
    pub fn new(domain: &Arc<Domain>) -> Arc<Self> {
        Arc::new(Self {
            domain: Arc::clone(domain),
            slots: Mutex::default(),
        })
    }

    /// Where it registers.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// The local key of a slot, which is registered if it was not.
    pub(super) fn key(&self, slot: &mut Slot) -> Result<u32, Error> {
        let mut slots = self.slots();
        let address = slot.as_ptr().addr();
        if let Some((registration, _)) = slots.get(&address) {
            return Ok(registration.lkey());
        }
        let (start, len) = (slot.as_mut_ptr().cast(), slot.len());
        // SAFETY: the memory stays mapped while its pool lives, which stands beside the
        // registration and is dropped after it, or leaked if the registration does not end. Bytes
        // are written to it only while a queue pair owns the slot.
        let registration = unsafe { Registration::new(&self.domain, start, len, LOCAL_WRITE) }?;
        let key = registration.lkey();
        slots.insert(address, (registration, slot.pool()));
        Ok(key)
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<usize, (Registration, Pool)>> {
        // Whole between any two statements.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        for (_, (mut registration, pool)) in self.slots().drain() {
            if !registration.end() {
                std::mem::forget(pool);
            }
        }
    }
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Landing")
            .field("slots", &self.slots().len())
            .finish_non_exhaustive()
    }
}

/// The local key with which queue pairs of `domain` write into `slot`, if it was registered so.
pub(super) fn landing_key(slot: &Slot, domain: &Arc<Domain>) -> Option<u32> {
    slot_registration(slot, domain)
        .filter(|found| found.purpose == Use::Landing)
        .map(|found| found.registration.lkey())
}

/// A range of a file in the address space: shared, read-only, and out of the CPU's reach.
pub struct FileMapping {
    map: MmapRaw,
}

impl FileMapping {
    /// Maps `len` bytes from `offset` on, any byte, of a file that is open for reading. The file must
    /// reach to the range's end, else registration fails.
    ///
    /// No page is read in here: pinning does that in the same way, and looks at each page anyway.
    pub fn new(file: impl AsFd, offset: u64, len: usize) -> io::Result<Arc<Self>> {
        if len == 0 {
            let why = "a mapping of no bytes";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mut options = MmapOptions::new();
        options.offset(offset).len(len);
        let map = options.map_raw_read_only(file.as_fd().as_raw_fd())?;
        // Some file systems then read a file in by huge pages, each of which is pinned in one step: on
        // xfs and Linux 6.12 that is a sixth of the work. Only a wish: some kernels have none.
        let _ = map.advise(Advice::HugePage);
        Ok(Arc::new(Self { map }))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Never: there are no empty mappings.
    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }
}

impl fmt::Debug for FileMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileMapping")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// How a device holds on to a file's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileMode {
    /// All pages stay in memory and count against the limit on locked memory.
    Pinned,
    /// The device faults pages in as it needs them: coherent with the file, and nothing is pinned.
    OnDemand,
}

/// A part of a mapping that peers may read.
pub struct FileRegion {
    registration: Registration,
    mapping: Arc<FileMapping>,
    remote: RemoteMemory,
}

impl FileRegion {
    /// Registers the bytes `range` of the mapping for reads by peers of `domain`'s queue pairs.
    /// Blocks for as long as reading the pages in takes, when pinned.
    pub fn new(
        domain: &Arc<Domain>,
        mapping: &Arc<FileMapping>,
        range: Range<usize>,
        mode: FileMode,
    ) -> Result<Self, Error> {
        if range.is_empty() || range.end > mapping.len() {
            let why = format!("{range:?} is not in a mapping of {} bytes", mapping.len());
            let source = io::Error::new(io::ErrorKind::InvalidInput, why);
            return Err(domain.context().error("register a part of a file", source));
        }
        let access = match mode {
            FileMode::Pinned => REMOTE_READ,
            FileMode::OnDemand => REMOTE_READ | ON_DEMAND,
        };
        let address = mapping.map.as_mut_ptr().wrapping_add(range.start);
        let len = range.len();
        // SAFETY: the range is in the mapping, which the region holds until the registration has
        // ended, and for ever if it does not. A device only reads it; Rust never does.
        let registration = unsafe { Registration::new(domain, address.cast(), len, access) }?;
        let remote = RemoteMemory {
            address: address.addr() as u64,
            len: len as u64,
            rkey: registration.rkey(),
        };
        Ok(Self {
            registration,
            mapping: Arc::clone(mapping),
            remote,
        })
    }

    /// What a peer has to be told.
    pub fn remote(&self) -> RemoteMemory {
        self.remote
    }

    /// What it is a part of.
    pub fn mapping(&self) -> &Arc<FileMapping> {
        &self.mapping
    }
}

impl Drop for FileRegion {
    fn drop(&mut self) {
        if !self.registration.end() {
            std::mem::forget(Arc::clone(&self.mapping));
        }
    }
}

impl fmt::Debug for FileRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileRegion")
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}

/// Which ways of serving a file work here.
#[derive(Debug)]
pub struct FileSupport {
    /// [`FileMode::OnDemand`].
    pub on_demand: Result<(), Error>,
    /// [`FileMode::Pinned`].
    pub pinned: Result<(), Error>,
}

/// Tries to register the first page of `file`, which must not be empty: what works depends on the
/// kernel, the device and the file system, and trying is the only way to know. That a registration
/// succeeds does not say that the device serves the right bytes: soft-RoCE of Linux 7.3 does not,
/// from [`FileMode::OnDemand`], where a packet does not start on a page. A READ has to show that.
pub fn probe(domain: &Arc<Domain>, file: impl AsFd) -> io::Result<FileSupport> {
    let page = rustix::param::page_size();
    let len = usize::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
    let len = len.min(page);
    let mapping = FileMapping::new(file, 0, len)?;
    let attempt = |mode| FileRegion::new(domain, &mapping, 0..len, mode).map(drop);
    Ok(FileSupport {
        on_demand: attempt(FileMode::OnDemand),
        pinned: attempt(FileMode::Pinned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn rights_are_those_of_the_header_and_never_writes() {
        assert_eq!((LOCAL_WRITE, REMOTE_READ, ON_DEMAND), (1, 4, 64));
    }

    #[test]
    fn mappings_start_at_any_byte_and_are_never_empty() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        let mapping = FileMapping::new(&file, 4097, 5000).unwrap();
        assert_eq!(mapping.len(), 5000);
        assert!(!mapping.is_empty());
        let error = FileMapping::new(&file, 0, 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
