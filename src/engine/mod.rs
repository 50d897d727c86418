//! Decides what is read next, on which lane, what is tried again and when a file is done.
//!
//! Two state machines that hold the conversation of [`crate::wire::message`] with each other: the
//! [`Receiver`], which drives, and the [`Sender`], which serves. Both are sans-IO: facts go in by
//! `handle`, orders come out of `poll`; there is no socket, file, clock, thread or hash in here,
//! and push and pull, every transport and every store use the same two machines.
//!
//! ```text
//!            messages, job results, completions, lanes
//!                          | handle(Input)     as many as are at hand
//!                          v
//!                       machine
//!                          | poll() -> Output  until None
//!                          v
//!            messages, jobs, fetches, events
//! ```
//!
//! The driver hands in every input that is at hand and only then polls until `None`: messages are
//! batched and fetches chosen at that moment. Every job and fetch is answered exactly once, also
//! after the run was cancelled, or it waits for ever. After `Finished` or `Failed` nothing more
//! comes. Numbers from the peer are checked here against what the conversation allows; what the
//! driver says is trusted.
//!
//! Rules of the conversation beyond the message's own text:
//!  - region credit comes back with Release, page credit with Credit;
//!  - a grant of length 0 opens no region and is not released;
//!  - a region holds either packed files only or one window of one file;
//!  - windows of a file come in ascending order and cover all that was wanted of it;
//!  - a window may be released unread, or read in part: what an interrupted run left is not read again;
//!  - a file wanted as Compared: the values of a window's first chunks follow its grant unread for;
//!  - SHA-256: the values of a window's chunks and of the chunk before it come before its grant;
//!  - Finish releases what is granted, for a grant may be under way when the last entry fails;
//!  - entries that a page told and that are settled at once need no Want;
//!  - what the source does not have is removed after all is settled, if nothing failed;
//!  - a directory is settled after all below it; it holds no page credit while it waits for that.

mod ledger;
pub mod receiver;
pub mod sender;
mod wanted;

pub use ledger::{Ledger, Verdict};
pub use receiver::Receiver;
pub use sender::Sender;

use crate::ids::EntryId;
use crate::manifest::Place;
use crate::wire::message::{Outcome, Removal};
use crate::wire::{Fault, FaultCode};

/// Somewhere that fetches can be posted: a data connection or queue pair of this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

/// Names a fetch from its output until it landed; unique within a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchToken(pub u64);

/// What those who watch a run are told. Human output and JSON come from this one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A page told this many entries, and files of this many bytes in all.
    Told {
        /// Entries, directories and links among them.
        entries: u64,
        /// Listed bytes of the files.
        bytes: u64,
        /// No page follows: totals are complete.
        last: bool,
    },
    /// Data of this file is about to move.
    Started {
        /// Which.
        entry: EntryId,
        /// Its length as it was opened.
        len: u64,
    },
    /// So many bytes more arrived and were proved (at a sender: were read and released).
    Moved {
        /// Since the last such event.
        bytes: u64,
    },
    /// So many bytes of this file need not travel: an interrupted run had brought them.
    Resumed {
        /// Of this file.
        entry: EntryId,
        /// Since the last such event.
        bytes: u64,
    },
    /// So many bytes of this file need not travel: an older copy had the same.
    Reused {
        /// Of this file.
        entry: EntryId,
        /// Since the last such event.
        bytes: u64,
    },
    /// A chunk or pack did not match its digest and is read again.
    Repairing {
        /// Of this file.
        entry: EntryId,
        /// This chunk.
        chunk: u64,
    },
    /// An entry is done with.
    Done {
        /// Which.
        entry: EntryId,
        /// How it ended.
        outcome: Outcome,
    },
    /// Something that the source does not have was removed at the destination, or would be, or could
    /// not be.
    Removed(Removal),
    /// Something failed, so what the source does not have stays.
    NotMirrored,
    /// The walk left something out.
    Skipped {
        /// Where it hangs.
        place: Place,
        /// Why.
        fault: Fault,
        /// Whether it counts as failed.
        failure: bool,
    },
}

/// The peer broke the conversation.
fn protocol(what: &str) -> Fault {
    Fault::new(
        FaultCode::Protocol,
        format!("the peer broke the protocol: {what}"),
    )
}

/// Our own driver broke its contract.
fn internal(what: &str) -> Fault {
    Fault::new(
        FaultCode::Internal,
        format!("a defect of rdcp, please report it: {what}"),
    )
}
