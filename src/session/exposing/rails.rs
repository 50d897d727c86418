//! What exposing needs of a session's rails: registration, and what an administrator wants of it.
//!
//! In: open files and slots. Out: keys per rail, guards that end a registration, and the reasons for
//! what is not to be had. Nothing here knows which region the memory is for.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

use crate::memory::Slot;
use crate::session::counters::counters;
use crate::session::rails::trouble;
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

/// What could not be registered in one session and went over tcp: the first reason, for both ends'
/// reports. The log has each kind of reason once for the process.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    first: OnceLock<String>,
    told: AtomicBool,
}

impl Refusals {
    pub(super) fn note(&self, error: &io::Error) {
        static LOGGED: LazyLock<Mutex<HashSet<io::ErrorKind>>> = LazyLock::new(Mutex::default);
        let text = refusal(error).text;
        counters().refusals.count();
        let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.insert(error.kind()) {
            tracing::warn!("{text}; it goes over tcp, and so does all that meets this later");
        }
        drop(logged);
        // Later ones are like the first, or a consequence of it.
        let _ = self.first.set(text);
    }

    /// Why memory of this end's went over tcp, if any did.
    pub(crate) fn first(&self) -> Option<&str> {
        self.first.get().map(String::as_str)
    }

    /// The same, once.
    pub(super) fn untold(&self) -> Option<&str> {
        let first = self.first()?;
        (!self.told.swap(true, Ordering::Relaxed)).then_some(first)
    }
}

/// What a failed registration means where there is no other way.
pub(super) fn refusal(error: &io::Error) -> Fault {
    let words = trouble::words(error);
    Fault::new(
        FaultCode::TransportUnavailable,
        format!("memory can't be registered for RDMA: {words}"),
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
}
