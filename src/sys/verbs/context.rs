//! A device that was opened: its limits and its ports.
//!
//! In: a [`Device`]. Out: what it can do, asked anew by each call, and the parent of everything
//! else. The extended verbs are reached by pointer from here: rdma-sys compares the marker of an
//! extended context with 32 bits, where C's is as wide as a pointer, and so finds none.
#![allow(unsafe_code)] // Queries fill C structures.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::mem::{offset_of, size_of};
use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{
    ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_mtu, ibv_port_attr, ibv_port_state,
    verbs_context,
};

use super::device::Device;
use super::library::Verbs;
use super::plain::{self, Plain};
use super::{Error, GidEntry, gid};

// Of <infiniband/verbs.h>.
const ODP_SUPPORT: u64 = 1 << 0;
const ODP_SUPPORT_READ: u32 = 1 << 3;

/// See the module's first paragraph.
pub struct Context {
    raw: NonNull<ibv_context>,
    verbs: &'static Verbs,
    name: String,
}

// SAFETY: libibverbs may be called from any thread with the same context; what is read of it here
// (descriptor, operations) does not change after it was opened.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What a device can do at most.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Firmware's version, in its maker's words.
    pub firmware: String,
    /// PCI vendor.
    pub vendor: u32,
    /// PCI device.
    pub vendor_part: u32,
    /// Ports are numbered from 1 to this.
    pub ports: u8,
    /// Largest memory region, in bytes.
    pub region_bytes_max: u64,
    /// Most memory regions.
    pub regions_max: u32,
    /// Most queue pairs.
    pub queue_pairs_max: u32,
    /// Most work requests posted on a queue pair.
    pub work_requests_max: u32,
    /// Most completion queues.
    pub completion_queues_max: u32,
    /// Most entries of a completion queue.
    pub completions_max: u32,
    /// Most READs of a peer that one queue pair serves at a time (`max_qp_rd_atom`).
    pub reads_served_max: u32,
    /// Most READs that one queue pair has under way (`max_qp_init_rd_atom`).
    pub reads_posted_max: u32,
    /// Memory that a reliable connection's peer READs may be registered on demand.
    pub on_demand_reads: bool,
}

/// What carries a port's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// Peers have LIDs; a GRH only between subnets.
    InfiniBand,
    /// RoCE: peers have GIDs.
    Ethernet,
    /// Neither.
    Other(u8),
}

/// What a port is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No link.
    Down,
    /// A link, which the subnet manager has not set up yet.
    Initialising,
    /// Set up, not yet in use.
    Armed,
    /// In use. The only state for READs.
    Active,
    /// None of these; the raw value.
    Other(u32),
}

/// Bytes of payload in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256.
    B256,
    /// 512.
    B512,
    /// 1024.
    B1024,
    /// 2048.
    B2048,
    /// 4096.
    B4096,
}

impl Mtu {
    /// As a number.
    pub fn bytes(self) -> u32 {
        match self {
            Self::B256 => 256,
            Self::B512 => 512,
            Self::B1024 => 1024,
            Self::B2048 => 2048,
            Self::B4096 => 4096,
        }
    }

    /// The one with exactly so many bytes.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        [
            Self::B256,
            Self::B512,
            Self::B1024,
            Self::B2048,
            Self::B4096,
        ]
        .into_iter()
        .find(|mtu| mtu.bytes() == bytes)
    }

    pub(super) fn raw(self) -> ibv_mtu::Type {
        match self {
            Self::B256 => ibv_mtu::IBV_MTU_256,
            Self::B512 => ibv_mtu::IBV_MTU_512,
            Self::B1024 => ibv_mtu::IBV_MTU_1024,
            Self::B2048 => ibv_mtu::IBV_MTU_2048,
            Self::B4096 => ibv_mtu::IBV_MTU_4096,
        }
    }

    pub(super) fn from_raw(raw: ibv_mtu::Type) -> Option<Self> {
        Some(match raw {
            ibv_mtu::IBV_MTU_256 => Self::B256,
            ibv_mtu::IBV_MTU_512 => Self::B512,
            ibv_mtu::IBV_MTU_1024 => Self::B1024,
            ibv_mtu::IBV_MTU_2048 => Self::B2048,
            ibv_mtu::IBV_MTU_4096 => Self::B4096,
            _ => return None,
        })
    }
}

/// A port as it was when asked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// What it is ready for.
    pub state: PortState,
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// The path's limit on this side; `None` when the port tells a value that verbs do not know.
    pub mtu: Option<Mtu>,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Longest READ, in bytes. `None`: the device does not say (some drivers answer 0).
    pub message_bytes_max: Option<NonZeroU32>,
    /// Entries of its GID table, used or not.
    pub gids: u32,
    /// Entries of its P_Key table.
    pub pkeys: u16,
    /// Line rate in Mbit/s; 0 when width or speed is unknown.
    pub mbit_per_s: u32,
}

impl Context {
    /// Opens a device.
    pub fn open(device: &Device) -> Result<Arc<Self>, Error> {
        let verbs = device.verbs();
        // SAFETY: the device's list is alive while `device` is.
        let raw = unsafe { (verbs.ibv_open_device)(device.raw().as_ptr()) };
        let raw = plain::non_null(raw).map_err(|error| {
            Error::new(device.name(), "be opened", error)
                .with_hint("is /dev/infiniband/uverbs* there and open to this user?")
        })?;
        Ok(Arc::new(Self {
            raw,
            verbs,
            name: device.name().to_owned(),
        }))
    }

    /// The device's name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the device can do.
    pub fn limits(&self) -> Result<Limits, Error> {
        let mut attributes = ibv_device_attr::zeroed();
        // SAFETY: the context is open, and the call fills the structure.
        let code = unsafe { (self.verbs.ibv_query_device)(self.raw.as_ptr(), &raw mut attributes) };
        plain::check(code).map_err(|error| self.error("tell its limits", error))?;
        Ok(Limits {
            firmware: plain::text(&attributes.fw_ver),
            vendor: attributes.vendor_id,
            vendor_part: attributes.vendor_part_id,
            ports: attributes.phys_port_cnt,
            region_bytes_max: attributes.max_mr_size,
            regions_max: count(attributes.max_mr),
            queue_pairs_max: count(attributes.max_qp),
            work_requests_max: count(attributes.max_qp_wr),
            completion_queues_max: count(attributes.max_cq),
            completions_max: count(attributes.max_cqe),
            reads_served_max: count(attributes.max_qp_rd_atom),
            reads_posted_max: count(attributes.max_qp_init_rd_atom),
            on_demand_reads: self.on_demand_reads(),
        })
    }

    /// A port, numbered from 1.
    pub fn port(&self, number: u8) -> Result<Port, Error> {
        let failed = |error| self.error(format!("tell of its port {number}"), error);
        let mut attributes = ibv_port_attr::zeroed();
        let query = self
            .extended(offset_of!(verbs_context, query_port))
            .and_then(|extended| {
                // SAFETY: `extended` points to the whole context and has this member.
                unsafe { (*extended.as_ptr()).query_port }
            })
            .ok_or_else(|| failed(io::Error::from_raw_os_error(libc::EOPNOTSUPP)))?;
        // SAFETY: the context is open, and the call fills no more than the size that it is told.
        let code = unsafe {
            query(
                self.raw.as_ptr(),
                number,
                &raw mut attributes,
                size_of::<ibv_port_attr>(),
            )
        };
        plain::check(code).map_err(failed)?;
        Ok(port(number, &attributes))
    }

    /// An entry of a port's P_Key table; the highest bit tells full membership.
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16, Error> {
        let mut pkey = 0;
        // SAFETY: the context is open, and the call writes one number.
        let code = unsafe {
            (self.verbs.ibv_query_pkey)(self.raw.as_ptr(), port, c_int::from(index), &raw mut pkey)
        };
        plain::check(code)
            .map_err(|error| self.error(format!("tell P_Key {index} of port {port}"), error))?;
        Ok(u16::from_be(pkey))
    }

    /// The addresses of all ports, as they are now: netdevs come and go, so nothing is kept.
    pub fn gids(&self) -> Result<Vec<GidEntry>, Error> {
        let mut room = 0;
        for number in 1..=self.limits()?.ports {
            room += self.port(number)?.gids as usize;
        }
        let mut table = vec![gid::RawGidEntry::default(); room];
        // SAFETY: the context is open; the table has room for the number of entries told, each of
        // the size told.
        let filled = unsafe {
            (self.verbs._ibv_query_gid_table)(
                self.raw.as_ptr(),
                table.as_mut_ptr(),
                room,
                0,
                size_of::<gid::RawGidEntry>(),
            )
        };
        let Ok(filled) = usize::try_from(filled) else {
            let code = i32::try_from(filled).unwrap_or(-1);
            let source = plain::check(code)
                .err()
                .unwrap_or_else(io::Error::last_os_error);
            return Err(self.error("tell its addresses", source));
        };
        table.truncate(filled);
        Ok(table.iter().map(GidEntry::from_raw).collect())
    }

    pub(super) fn raw(&self) -> NonNull<ibv_context> {
        self.raw
    }

    pub(super) fn verbs(&self) -> &'static Verbs {
        self.verbs
    }

    pub(super) fn error(&self, action: impl Into<String>, source: io::Error) -> Error {
        Error::new(&self.name, action, source)
    }

    fn on_demand_reads(&self) -> bool {
        let query = self
            .extended(offset_of!(verbs_context, query_device_ex))
            .and_then(|extended| {
                // SAFETY: `extended` points to the whole context and has this member.
                unsafe { (*extended.as_ptr()).query_device_ex }
            });
        let Some(query) = query else {
            return false;
        };
        let mut attributes = ibv_device_attr_ex::zeroed();
        // SAFETY: the context is open; no input means "everything"; the call fills no more than the
        // size that it is told.
        let code = unsafe {
            query(
                self.raw.as_ptr(),
                std::ptr::null(),
                &raw mut attributes,
                size_of::<ibv_device_attr_ex>(),
            )
        };
        let caps = &attributes.odp_caps;
        code == 0
            && caps.general_caps & ODP_SUPPORT != 0
            && caps.per_transport_caps.rc_odp_caps & ODP_SUPPORT_READ != 0
    }

    /// The extended context around this one, if it has the member at `offset`: `verbs_get_ctx_op`
    /// of <infiniband/verbs.h>. Members are added at the front, so the size is counted from the end.
    fn extended(&self, offset: usize) -> Option<NonNull<verbs_context>> {
        // SAFETY: the context is open, and the member does not change.
        let marker = unsafe { (*self.raw.as_ptr()).abi_compat };
        if marker as usize != usize::MAX {
            return None;
        }
        // SAFETY: the marker says that the context lies at this place in an extended one.
        let extended = unsafe { self.raw.byte_sub(offset_of!(verbs_context, context)) };
        let extended = extended.cast::<verbs_context>();
        // SAFETY: the size stands right before the context, so every extended context has it.
        let size = unsafe { (*extended.as_ptr()).sz };
        (size >= size_of::<verbs_context>() - offset).then_some(extended)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; what was made of it holds it, so nothing is left.
        let code = unsafe { (self.verbs.ibv_close_device)(self.raw.as_ptr()) };
        if let Err(error) = plain::check(code) {
            tracing::warn!(device = %self.name, %error, "an RDMA device can't be closed");
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn count(number: c_int) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

fn port(number: u8, attributes: &ibv_port_attr) -> Port {
    Port {
        number,
        state: match attributes.state {
            ibv_port_state::IBV_PORT_DOWN => PortState::Down,
            ibv_port_state::IBV_PORT_INIT => PortState::Initialising,
            ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
            ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
            other => PortState::Other(other),
        },
        link_layer: match attributes.link_layer {
            // Unspecified means InfiniBand: the field is younger than InfiniBand.
            0 | 1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            other => LinkLayer::Other(other),
        },
        mtu: Mtu::from_raw(attributes.active_mtu),
        lid: attributes.lid,
        message_bytes_max: NonZeroU32::new(attributes.max_msg_sz),
        gids: count(attributes.gid_tbl_len),
        pkeys: attributes.pkey_tbl_len,
        mbit_per_s: lanes(attributes.active_width) * lane_mbit(attributes.active_speed),
    }
}

/// Lanes of a link, of the InfiniBand specification's PortInfo.LinkWidthActive.
fn lanes(width: u8) -> u32 {
    match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    }
}

/// Mbit/s of a lane, of PortInfo.LinkSpeedActive and its extensions.
fn lane_mbit(speed: u8) -> u32 {
    match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_told_in_words() {
        let mut raw = ibv_port_attr::zeroed();
        raw.state = ibv_port_state::IBV_PORT_ACTIVE;
        raw.active_mtu = ibv_mtu::IBV_MTU_4096;
        raw.link_layer = 2;
        raw.active_width = 2;
        raw.active_speed = 32;
        let told = port(1, &raw);
        assert_eq!(
            (told.state, told.mtu),
            (PortState::Active, Some(Mtu::B4096))
        );
        assert_eq!(
            (told.link_layer, told.mbit_per_s),
            (LinkLayer::Ethernet, 100_000)
        );
        assert_eq!(told.message_bytes_max, None, "0 is unknown");
        raw.active_mtu = 17;
        raw.state = 9;
        raw.max_msg_sz = 1 << 23;
        let told = port(1, &raw);
        assert_eq!((told.state, told.mtu), (PortState::Other(9), None));
        assert_eq!(told.message_bytes_max, NonZeroU32::new(1 << 23));
    }

    #[test]
    fn an_mtu_is_known_by_its_bytes() {
        for bytes in [256, 512, 1024, 2048, 4096] {
            let mtu = Mtu::from_bytes(bytes).unwrap();
            assert_eq!(Mtu::from_raw(mtu.raw()), Some(mtu));
        }
        assert_eq!(Mtu::from_bytes(1500), None);
    }
}
