//! What rdma_cm tells.

use std::io;

use super::{Identifier, Told};

/// What happened. `id` is the key that the identifier was made with.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The address leads to a device.
    AddressResolved {
        /// Whose.
        id: u64,
    },
    /// It leads to the other end.
    RouteResolved {
        /// Whose.
        id: u64,
    },
    /// Somebody wants to connect to a listener.
    ConnectRequest {
        /// The listener.
        id: u64,
        /// To be accepted or rejected; dropping it rejects.
        request: Identifier,
        /// What they told.
        told: Told,
    },
    /// The other end accepted; [`Identifier::ready`] and [`Identifier::establish`] are due.
    ConnectResponse {
        /// Whose.
        id: u64,
        /// What they told.
        told: Told,
    },
    /// Both ends may post READs.
    Established {
        /// Whose.
        id: u64,
    },
    /// The other end does not want to.
    Rejected {
        /// Whose.
        id: u64,
        /// The protocol's reason; 28 is "by whoever listens", 8 "nobody listens".
        reason: i32,
        /// What they told.
        private_data: Vec<u8>,
    },
    /// Resolving or connecting failed.
    Failed {
        /// Whose.
        id: u64,
        /// At what.
        step: Step,
        /// Why.
        error: io::Error,
    },
    /// The connection is over.
    Disconnected {
        /// Whose.
        id: u64,
    },
    /// The device is being pulled out: everything on it has to be destroyed.
    DeviceRemoved {
        /// Whose.
        id: u64,
    },
    /// The network changed; the connection may lead nowhere now.
    AddressChanged {
        /// Whose.
        id: u64,
    },
    /// Packets of the connection can't arrive any more: its queue pair's number is free.
    TimeWaitOver {
        /// Whose.
        id: u64,
    },
    /// Another event; the raw kind.
    Unknown {
        /// Whose.
        id: u64,
        /// The kind.
        kind: u32,
    },
}

impl Event {
    /// Whose it is: of a request, the listener.
    pub fn id(&self) -> u64 {
        match self {
            Self::AddressResolved { id }
            | Self::RouteResolved { id }
            | Self::ConnectRequest { id, .. }
            | Self::ConnectResponse { id, .. }
            | Self::Established { id }
            | Self::Rejected { id, .. }
            | Self::Failed { id, .. }
            | Self::Disconnected { id }
            | Self::DeviceRemoved { id }
            | Self::AddressChanged { id }
            | Self::TimeWaitOver { id }
            | Self::Unknown { id, .. } => *id,
        }
    }
}

/// What can fail on the way to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Finding the device that leads to an address.
    Address,
    /// Finding the way.
    Route,
    /// Connecting.
    Connect,
    /// Reaching the other end.
    Reach,
}
