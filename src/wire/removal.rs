//! What a receiver removed, or would, at its destination: for people who watch at the other end.
//!
//! These are the only paths that travel from receiver to sender. Nothing is opened by them: a sender
//! shows them and counts them.

use super::codec::{Reader, Writer};
use super::decode::read_fault;
use super::encode::write_fault;
use super::{Fault, WireError, tag};
use crate::limits::REMOVALS_MAX;

/// How a receiver treats what the source does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleting {
    /// Most entries that are removed; what is beyond stays, and is a failure. Default: no limit.
    pub max: Option<u64>,
    /// A source that is an empty directory empties its destination. Default: that is refused, as it
    /// is more often a file system that is not mounted.
    pub allow_empty: bool,
}

/// Something at the destination that the source does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The source below whose place it is.
    pub root: u32,
    /// Its path below that; of one that is longer than paths are, the end.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: RemovedKind,
    /// What became of it.
    pub outcome: Removed,
}

/// What something is that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link itself.
    Symlink,
    /// A device, FIFO or socket.
    Special,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// It is gone.
    Gone,
    /// It would be, if this were no dry run.
    Would,
    /// It can't be removed, or nothing is, for this reason.
    Failed(Fault),
    /// It stays, as it should: a mount point, a file that is being written. No failure.
    Kept(Fault),
}

pub(super) fn write_deleting(w: &mut Writer<'_>, deleting: Deleting) {
    if let Some(max) = deleting.max {
        w.u64(max);
    }
}

/// The bits of a push that speak of deleting.
pub(super) fn deleting_bits(deleting: Option<Deleting>) -> u16 {
    let Some(Deleting { max, allow_empty }) = deleting else {
        return 0;
    };
    let bounded = if max.is_some() {
        tag::PUSH_DELETE_MAX
    } else {
        0
    };
    let empty = if allow_empty {
        tag::PUSH_DELETE_EMPTY
    } else {
        0
    };
    tag::PUSH_DELETE | bounded | empty
}

pub(super) fn read_deleting(r: &mut Reader<'_>, bits: u16) -> Result<Option<Deleting>, WireError> {
    let (bounded, allow_empty) = (
        bits & tag::PUSH_DELETE_MAX != 0,
        bits & tag::PUSH_DELETE_EMPTY != 0,
    );
    if bits & tag::PUSH_DELETE == 0 {
        r.require(!bounded && !allow_empty, "options")?;
        return Ok(None);
    }
    let max = if bounded { Some(r.u64()?) } else { None };
    Ok(Some(Deleting { max, allow_empty }))
}

pub(super) fn write(w: &mut Writer<'_>, comparing: bool, removals: &[Removal]) {
    w.boolean(comparing);
    w.list(removals, REMOVALS_MAX, "removals", |w, removal| {
        w.u32(removal.root);
        w.path(&removal.path, "path");
        w.u8(match removal.kind {
            RemovedKind::File => tag::REMOVED_FILE,
            RemovedKind::Directory => tag::REMOVED_DIRECTORY,
            RemovedKind::Symlink => tag::REMOVED_SYMLINK,
            RemovedKind::Special => tag::REMOVED_SPECIAL,
        });
        match &removal.outcome {
            Removed::Gone => w.u8(tag::REMOVED_GONE),
            Removed::Would => w.u8(tag::REMOVED_WOULD),
            Removed::Failed(fault) => {
                w.u8(tag::REMOVED_FAILED);
                write_fault(w, fault);
            }
            Removed::Kept(fault) => {
                w.u8(tag::REMOVED_KEPT);
                write_fault(w, fault);
            }
        }
    });
}

pub(super) fn read(r: &mut Reader<'_>) -> Result<(bool, Vec<Removal>), WireError> {
    let comparing = r.boolean("comparing")?;
    let removals = r.list(REMOVALS_MAX, 8, "removals", |r| {
        let root = r.u32()?;
        let path = r.path("path")?;
        let kind = match r.u8()? {
            tag::REMOVED_FILE => RemovedKind::File,
            tag::REMOVED_DIRECTORY => RemovedKind::Directory,
            tag::REMOVED_SYMLINK => RemovedKind::Symlink,
            tag::REMOVED_SPECIAL => RemovedKind::Special,
            _ => return Err(r.invalid("kind")),
        };
        let outcome = match r.u8()? {
            tag::REMOVED_GONE => Removed::Gone,
            tag::REMOVED_WOULD => Removed::Would,
            tag::REMOVED_FAILED => Removed::Failed(read_fault(r)?),
            tag::REMOVED_KEPT => Removed::Kept(read_fault(r)?),
            _ => return Err(r.invalid("outcome")),
        };
        Ok(Removal {
            root,
            path,
            kind,
            outcome,
        })
    })?;
    Ok((comparing, removals))
}
