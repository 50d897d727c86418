//! What exposing needs of a session's rails: registration, and what an administrator wants of it.
//!
//! In: open files and slots. Out: keys per rail, guards that end a registration, and the reasons for
//! what is not to be had. Nothing here knows which region the memory is for.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::memory::Slot;
use crate::units::ByteRange;
use crate::wire::message::RegionKey;
use crate::wire::{Fault, FaultCode};

/// How the bytes of a file get before the adapters of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Mapped, and faulted in by the adapter.
    OnDemand,
    /// Mapped and pinned.
    Pinned,
    /// Copied into slots.
    Pool,
    /// Not at all: the lanes read the file and send it over tcp.
    Lanes,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OnDemand => "odp",
            Self::Pinned => "mmap",
            Self::Pool => "pool",
            Self::Lanes => "tcp",
        })
    }
}

/// How files are made readable for RDMA adapters at the sending end. For tests, and for
/// administrators who know their kernels; the choice is made by trying otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RdmaMemory {
    /// The best that works for each file system.
    #[default]
    Auto,
    /// Mapped, and faulted in by the adapter; or an error.
    Odp,
    /// Mapped and pinned; or an error.
    Mmap,
    /// Copied into memory of ours.
    Pool,
}

/// What ends a registration when it is dropped. Then also the mapping goes, if there is one.
pub type Hold = Box<dyn std::any::Any + Send + Sync>;

/// What is wanted of memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryPolicy {
    /// The way that was asked for.
    pub memory: RdmaMemory,
    /// There is no tcp beside the rails: what can't be registered can't be had.
    pub rails_only: bool,
}

impl MemoryPolicy {
    /// Whether a registration that fails fails its file.
    pub(super) fn is_strict(self) -> bool {
        self.rails_only || self.memory != RdmaMemory::Auto
    }

    /// The way for a file system where these are to be had.
    ///
    /// # Errors
    /// What was asked for is not to be had.
    pub(super) fn choose(self, ways: &Ways) -> Result<Way, Fault> {
        let Ways {
            best,
            possible,
            reason,
        } = ways;
        let wanted = match self.memory {
            RdmaMemory::Auto => return Ok(*best),
            RdmaMemory::Odp => Way::OnDemand,
            RdmaMemory::Mmap => Way::Pinned,
            RdmaMemory::Pool => Way::Pool,
        };
        if wanted >= *possible {
            return Ok(wanted);
        }
        Err(Fault::new(
            FaultCode::TransportUnavailable,
            format!(
                "RDMA memory {wanted} is asked for, but files here can only be served by {best} \
                 ({reason}); use \"auto\" or \"{best}\""
            ),
        ))
    }
}

/// How a file system's files can get before all devices of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ways {
    /// The best that works and can be trusted.
    pub best: Way,
    /// The best that the kernel allows.
    pub possible: Way,
    /// Why `best` is not a better one; empty if there is none.
    pub reason: String,
}

/// The rails of one session. Calls block.
pub trait RailMemory: Send + Sync {
    /// Whether there are rails at present.
    fn is_up(&self) -> bool;

    /// What is wanted of memory.
    fn policy(&self) -> MemoryPolicy;

    /// The ways for files of this one's file system. The file is not empty.
    fn ways(&self, file: BorrowedFd<'_>) -> io::Result<Ways>;

    /// Lets the peer read a range of a file in this way, by [`Way::OnDemand`] or [`Way::Pinned`]:
    /// one key per rail that can reach it.
    fn register_window(
        &self,
        file: BorrowedFd<'_>,
        range: ByteRange,
        way: Way,
    ) -> io::Result<(Vec<RegionKey>, Hold)>;

    /// Lets the peer read all of the slot until it is dropped.
    fn register_slot(&self, slot: &mut Slot) -> io::Result<Vec<RegionKey>>;
}

/// Says that something could not be registered: once for each kind of reason.
pub(super) fn note_refusal(error: &io::Error) {
    static TOLD: LazyLock<Mutex<HashSet<io::ErrorKind>>> = LazyLock::new(Mutex::default);
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.insert(error.kind()) {
        let text = refusal(error).text;
        tracing::warn!("{text}; it goes over tcp, and so does all that meets this later");
    }
}

/// What a failed registration means where there is no other way.
pub(super) fn refusal(error: &io::Error) -> Fault {
    // The kernel says "no memory" when the limit on locked memory is reached.
    let hint = match error.kind() {
        io::ErrorKind::OutOfMemory => format!("; {}", memlock_hint()),
        _ => String::new(),
    };
    Fault::new(
        FaultCode::TransportUnavailable,
        format!("memory can't be registered for RDMA: {error}{hint}"),
    )
}

fn memlock_hint() -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    let now = match limit.current {
        Some(bytes) => format!("is {} KiB", bytes >> 10),
        None => "is off, so the machine lacks memory".to_owned(),
    };
    format!(
        "the limit on locked memory (RLIMIT_MEMLOCK) {now}: raise it with LimitMEMLOCK= in the \
         unit or ulimit -l"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(memory: RdmaMemory) -> MemoryPolicy {
        MemoryPolicy {
            memory,
            rails_only: false,
        }
    }

    fn ways(best: Way, reason: &str) -> Ways {
        Ways {
            best,
            possible: best,
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn who_insists_gets_what_is_possible() {
        let ways = Ways {
            best: Way::Pinned,
            possible: Way::OnDemand,
            reason: "not trusted".to_owned(),
        };
        assert_eq!(policy(RdmaMemory::Auto).choose(&ways), Ok(Way::Pinned));
        assert_eq!(policy(RdmaMemory::Odp).choose(&ways), Ok(Way::OnDemand));
    }

    #[test]
    fn what_is_asked_for_is_had_or_refused_by_name() {
        assert_eq!(
            policy(RdmaMemory::Auto).choose(&ways(Way::Pool, "old")),
            Ok(Way::Pool)
        );
        assert_eq!(
            policy(RdmaMemory::Mmap).choose(&ways(Way::OnDemand, "")),
            Ok(Way::Pinned)
        );
        assert_eq!(
            policy(RdmaMemory::Pool).choose(&ways(Way::OnDemand, "")),
            Ok(Way::Pool)
        );
        let fault = policy(RdmaMemory::Odp)
            .choose(&ways(Way::Pinned, "no ODP"))
            .unwrap_err();
        assert_eq!(fault.code, FaultCode::TransportUnavailable);
        assert!(fault.text.contains("odp") && fault.text.contains("no ODP"));
    }

    #[test]
    fn the_limit_on_locked_memory_is_named() {
        let text = refusal(&io::Error::from(io::ErrorKind::OutOfMemory)).text;
        assert!(text.contains("RLIMIT_MEMLOCK") && text.contains("LimitMEMLOCK="));
        let text = refusal(&io::Error::from(io::ErrorKind::PermissionDenied)).text;
        assert!(!text.contains("RLIMIT_MEMLOCK"));
    }
}
