//! The RDMA devices of this machine, as libibverbs lists them.
//!
//! Out: names, identifiers and kind of each, and what [`super::Context::open`] opens. A list is a
//! snapshot; a device that is pulled out later fails to open. Devices are told apart by GUID and by
//! their ports' addresses, never by name: udev renames them.
#![allow(unsafe_code)] // The list is C memory.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{ibv_device, ibv_node_type, ibv_transport_type};

use super::library::{self, Verbs};
use super::{Error, Unavailable, plain};

/// Whose words a device speaks on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand or RoCE; which of them is a matter of the port.
    InfiniBand,
    /// RDMA over TCP. A READ there needs the right to write remotely, which is never given here.
    Iwarp,
    /// Something that reliable connections can't be had from (usNIC, EFA, a raw packet device).
    Other(i32),
}

/// Why devices can't be listed.
#[derive(Debug)]
pub enum ListError {
    /// The library is missing.
    Unavailable(Unavailable),
    /// The library is there, and the kernel's side is not.
    Failed(Error),
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => why.fmt(f),
            Self::Failed(error) => write!(f, "{error}: {}", error.io()),
        }
    }
}

impl std::error::Error for ListError {}

/// A list that C made; its devices are good for as long as it is.
struct List {
    verbs: &'static Verbs,
    array: NonNull<*mut ibv_device>,
}

// SAFETY: the list does not change after it was made, and the library may be called from any thread.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the array came from ibv_get_device_list and is freed once; every `Device` that
        // names an element of it holds this list.
        unsafe { (self.verbs.ibv_free_device_list)(self.array.as_ptr()) };
    }
}

/// One device. Clones are the same.
#[derive(Clone)]
pub struct Device {
    list: Arc<List>,
    raw: NonNull<ibv_device>,
    name: String,
    guid: u64,
    transport: Transport,
}

// SAFETY: `raw` points to an element of `list`, which does not change; see there.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// All devices. None is an answer as well, not an error.
pub fn devices() -> Result<Vec<Device>, ListError> {
    let verbs = library::verbs().map_err(ListError::Unavailable)?;
    let mut count: c_int = 0;
    // SAFETY: `count` is written by the call.
    let array = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
    let array = match plain::non_null(array) {
        Ok(array) => array,
        // The kernel has no RDMA at all: no devices.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => return Ok(Vec::new()),
        Err(error) => {
            let error = Error::new("this machine", "list RDMA devices", error);
            return Err(ListError::Failed(error));
        }
    };
    let list = Arc::new(List { verbs, array });
    let count = usize::try_from(count).unwrap_or(0);
    Ok((0..count)
        .filter_map(|index| element(&list, index))
        .collect())
}

/// `index` is below the list's count.
fn element(list: &Arc<List>, index: usize) -> Option<Device> {
    // SAFETY: the array has more elements than `index`.
    let slot = unsafe { list.array.add(index) };
    // SAFETY: an element of the array, which C has filled.
    let raw = NonNull::new(unsafe { slot.read() })?;
    // SAFETY: elements point to devices, which are good while the list is; the copy of the borrow
    // ends in this function.
    let device = unsafe { raw.as_ref() };
    // SAFETY: as above.
    let guid = unsafe { (list.verbs.ibv_get_device_guid)(raw.as_ptr()) };
    Some(Device {
        list: Arc::clone(list),
        raw,
        name: plain::text(&device.name),
        guid: u64::from_be(guid),
        transport: transport(device.transport_type, device.node_type),
    })
}

impl Device {
    /// The kernel's name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Node GUID. 0 on some virtual devices.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// What it speaks.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    pub(super) fn raw(&self) -> NonNull<ibv_device> {
        self.raw
    }

    pub(super) fn verbs(&self) -> &'static Verbs {
        self.list.verbs
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name)
            .field("guid", &format_args!("{:016x}", self.guid))
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}

fn transport(transport: ibv_transport_type::Type, node: ibv_node_type::Type) -> Transport {
    match (transport, node) {
        (ibv_transport_type::IBV_TRANSPORT_IWARP, _) | (_, ibv_node_type::IBV_NODE_RNIC) => {
            Transport::Iwarp
        }
        (ibv_transport_type::IBV_TRANSPORT_IB, _) => Transport::InfiniBand,
        (other, _) => Transport::Other(other),
    }
}

impl From<ListError> for io::Error {
    fn from(error: ListError) -> Self {
        Self::other(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iwarp_is_told_by_transport_and_by_node() {
        let (ib, iwarp) = (
            ibv_transport_type::IBV_TRANSPORT_IB,
            ibv_transport_type::IBV_TRANSPORT_IWARP,
        );
        let (ca, rnic) = (ibv_node_type::IBV_NODE_CA, ibv_node_type::IBV_NODE_RNIC);
        assert_eq!(transport(ib, ca), Transport::InfiniBand);
        assert_eq!(transport(iwarp, rnic), Transport::Iwarp);
        assert_eq!(transport(ib, rnic), Transport::Iwarp);
        assert!(matches!(transport(2, ca), Transport::Other(2)));
    }

    #[test]
    fn listing_answers_with_and_without_the_library() {
        match (library::library(), devices()) {
            (Ok(()), Ok(list)) => assert!(list.iter().all(|device| !device.name().is_empty())),
            (Ok(()), Err(ListError::Failed(_))) => {}
            (Err(why), Err(ListError::Unavailable(same))) => assert_eq!(why, same),
            (library, listed) => panic!("{library:?}, {listed:?}"),
        }
    }
}
