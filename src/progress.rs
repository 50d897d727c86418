//! What a transfer tells while it runs and when it ended: one stream of events, from which bars,
//! JSON lines and reports are all made.

use std::time::Duration;

use crate::ids::TransferId;
use crate::location::Location;
use crate::wire::Fault;
pub use crate::wire::message::Carried;
use crate::wire::message::{HashKind, Outcome};

/// Running totals of a transfer. They never fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Files told by the manifest so far.
    pub files_seen: u64,
    /// Bytes of those files.
    pub bytes_seen: u64,
    /// The manifest is complete: the two above are totals.
    pub totals_known: bool,
    /// Files that ended: published, updated, unchanged or failed.
    pub files_done: u64,
    /// Bytes of files that ended plus bytes landed of those under way.
    pub bytes_done: u64,
    /// Payload bytes that travelled.
    pub bytes_moved: u64,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EntryType {
    /// A regular file, or another name of one.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// Something that could not be looked at.
    Unknown,
}

/// Something that happened in a transfer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// It began; the transport is chosen.
    Started {
        /// Its id.
        transfer: TransferId,
        /// `rdma`, `tcp`, `local`.
        transport: &'static str,
        /// Why this transport and none better; for rdma, its rails.
        reason: String,
        /// What a person should know of that choice though nothing failed.
        note: Option<String>,
    },
    /// Totals moved on. Sent at most ten times a second.
    Progress(Progress),
    /// An entry ended.
    Ended {
        /// Its path below the destination, as bytes.
        path: Vec<u8>,
        /// What it is.
        entry: EntryType,
        /// How.
        outcome: Outcome,
        /// Its length, for files.
        len: u64,
        /// Where it failed, if it did.
        location: Option<Location>,
    },
    /// Something that the source does not have was removed at the destination. What could not be is
    /// told as [`Event::Ended`], and counts as failed.
    Deleted {
        /// Its path below the destination, as bytes.
        path: Vec<u8>,
        /// What it was.
        entry: EntryType,
        /// It is a dry run: it would be removed.
        is_planned: bool,
    },
    /// The session was lost, and the transfer tries to go on in another.
    Lost {
        /// What ended it.
        reason: String,
    },
    /// It goes on in a new session.
    Reconnected {
        /// `rdma`, `tcp`, `local`: what bytes go by now.
        transport: &'static str,
        /// How long there was no session.
        after: Duration,
    },
    /// Something that a person may want to know and that is no failure.
    Warning {
        /// What it is about; may be empty.
        path: Vec<u8>,
        /// What it is.
        fault: Fault,
        /// Where it is.
        location: Option<Location>,
    },
}

/// An entry that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its path below the destination, as bytes.
    pub path: Vec<u8>,
    /// Where it failed: the side, and the path as its user would write it.
    pub location: Option<Location>,
    /// Why.
    pub fault: Fault,
}

/// How a transfer ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Its id.
    pub transfer: TransferId,
    /// `rdma`, `tcp`, `local`; `rdma+tcp` if bytes went both ways.
    pub transport: &'static str,
    /// Why this transport and none better.
    pub reason: String,
    /// What landed by which transport, bytes that were read twice counted twice. Of a push, or of what a
    /// push moved in a session that was lost: what this end sent over tcp, since what landed, and what
    /// adapters read, was not told.
    pub carried: Carried,
    /// What proved the chunks.
    pub hash: HashKind,
    /// Nothing was done: the counts below are of what would be.
    pub dry_run: bool,
    /// Files, links and directories published.
    pub published: u64,
    /// Regular files among them.
    pub files: u64,
    /// Entries that were there already, as they are at the source.
    pub unchanged: u64,
    /// Entries whose content was there and whose metadata was brought up to date.
    pub updated: u64,
    /// What the source does not have and was removed at the destination.
    pub deleted: u64,
    /// Entries that failed.
    pub failed: u64,
    /// Warnings.
    pub warnings: u64,
    /// Payload bytes that travelled.
    pub bytes_moved: u64,
    /// Bytes of the published files.
    pub bytes_published: u64,
    /// Bytes that an interrupted run had left at the destination, and that were proved there instead of
    /// being copied again. What this run itself brought before it lost a session is not among them.
    pub bytes_resumed: u64,
    /// How often the session was lost and the transfer went on in another.
    pub reconnects: u64,
    /// Bytes that older copies of the files had at the destination, and that were taken from there, each
    /// proved like one that travels.
    pub bytes_reused: u64,
    /// From the request to its end.
    pub elapsed: Duration,
    /// From the first READ to the last bytes in a file; nothing on a push, or if nothing was read.
    pub data_elapsed: Option<Duration>,
    /// The first failures, at most [`Report::FAILURES_LISTED_MAX`]: without those of entries that
    /// only failed with the directory they lie in, nor those like the one that ended the run.
    pub failures: Vec<Failure>,
    /// How many more there are.
    pub failures_unlisted: u64,
    /// The kind that decides the exit status, if something failed: the one kind of all failures, or
    /// [`Several`](crate::ErrorKind::Several).
    pub failure_kind: Option<crate::ErrorKind>,
}

impl Report {
    /// How many failures a report lists with their paths.
    pub const FAILURES_LISTED_MAX: usize = 100;

    /// Whether every byte of the published files was proved by a digest. `None` if there was nothing
    /// to prove: files that were there already were not read, and none failed or was published.
    pub fn verified(&self) -> Option<bool> {
        match (self.files, self.failed) {
            _ if self.dry_run => None,
            (0, 0) => None,
            (files, _) => Some(self.hash != HashKind::None && files > 0),
        }
    }
}
