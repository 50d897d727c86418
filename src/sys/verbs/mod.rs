//! RDMA verbs behind types that can't be misused: one file per object of the verbs specification.
//!
//! ```text
//!  library     the shared libraries, found at run time
//!  device      what is plugged in            context   a device that was opened, its ports
//!  gid         addresses of a port           events    what a device says unasked
//!  domain      protection domain             region    registered memory: slots, files
//!  completion  completion queue              queue_pair  reliable connection, posting READs
//!  cm          connecting by rdma_cm, where `direct` is not wanted
//! ```
//!
//! In: devices, memory to register, READs. Out: keys, completions with the buffers that they give
//! back, events. The bindings and their build are rdma-sys's; what it gets wrong is mended here
//! once: functions by `library`, extended verbs by `context`, events by `events`.
//!
//! What the types promise:
//! - A child holds its parents, so they are closed in the order that the verbs ask for.
//! - A region holds the memory that it registers. Memory whose registration can't be ended is
//!   leaked rather than used again.
//! - A buffer that a READ lands in belongs to its queue pair until the READ's completion was polled
//!   or the queue pair was destroyed.
//! - A completion can't be had without its status, and a completion queue can't overrun.
//! - No right to write or to do atomics is ever given to a peer: there is no way to ask for one.
//!
//! Nothing here knows files' meaning, sessions, or which peer is asked for what.

pub mod cm;
pub mod completion;
pub mod context;
pub mod device;
pub mod domain;
pub mod events;
pub mod gid;
pub mod library;
mod plain;
pub mod queue_pair;
pub mod region;

use std::fmt;
use std::io;

pub use completion::{Batch, Completion, CompletionQueue, Done, WorkError, WorkStatus};
pub use context::{Context, Limits, LinkLayer, Mtu, Port, PortState};
pub use device::{Device, Transport, devices};
pub use domain::Domain;
pub use events::{AsyncEvent, Events};
pub use gid::{Gid, GidEntry, GidKind};
pub use library::{Unavailable, cm_library, library};
pub use queue_pair::{
    Destination, Finished, Initialise, PostError, QueuePair, Read, Receiving, Sending,
};
pub use region::{FileMapping, FileMode, FileRegion, FileSupport, Landing, RemoteMemory, probe};

/// A verb that failed: what was tried, on which device, and the kernel's or library's answer as its
/// source.
#[derive(Debug)]
pub struct Error {
    action: String,
    device: String,
    hint: &'static str,
    source: io::Error,
}

impl Error {
    fn new(device: &str, action: impl Into<String>, source: io::Error) -> Self {
        Self {
            action: action.into(),
            device: device.to_owned(),
            hint: "",
            source,
        }
    }

    fn with_hint(mut self, hint: &'static str) -> Self {
        self.hint = hint;
        self
    }

    /// The answer of the kernel or of the library.
    pub fn io(&self) -> &io::Error {
        &self.source
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: can't {}", self.device, self.action)?;
        if !self.hint.is_empty() {
            write!(f, " ({})", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
