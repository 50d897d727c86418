//! What a transfer consists of: entries with names, kinds and metadata, told page by page.
//!
//! The sender's walk makes entries; the wire carries them; the receiver's storage makes them real.
//! Nothing here knows peers, files' contents or where bytes are stored. An entry names its parent
//! by handle and itself by one path component, so no path can point outside the destination.

mod name;

pub use name::{Name, NameError};

use crate::ids::EntryId;
use crate::units::Timestamp;

/// One thing of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its handle.
    pub id: EntryId,
    /// Where it hangs.
    pub place: Place,
    /// What it is.
    pub kind: EntryKind,
    /// Mode, owner, times and extended attributes.
    pub metadata: Metadata,
}

/// Where an entry hangs: the destination's name of a root never comes from the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is the n-th source that was asked for; the receiver knows what to call it.
    Root(u32),
    /// It lies in a directory of this manifest, told before, under this name.
    In(EntryId, Name),
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryKind {
    /// A regular file.
    File {
        /// Length in bytes when it was listed; the grant tells the length that counts.
        len: u64,
        /// Further entries of this transfer may be hard links to it.
        linked: bool,
    },
    /// A directory. Its entries follow, then a [`Note::DirectoryEnd`].
    Directory,
    /// A symbolic link with its target's bytes.
    Symlink(Vec<u8>),
    /// The same inode as the file with this handle, told before.
    HardLink(EntryId),
}

/// Metadata as `statx(2)` and `listxattr(2)` tell it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Permission bits, set-id and sticky bits: mode & 0o7777.
    pub mode: u32,
    /// Owner. Applied only where allowed.
    pub uid: u32,
    /// Group. Applied only where allowed.
    pub gid: u32,
    /// Last modification; always preserved.
    pub mtime: Timestamp,
    /// `user.*` and, as raw values, `system.posix_acl_*`; only with archive mode.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// One item of a manifest page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An entry.
    Entry(Entry),
    /// Something that is not an entry.
    Note(Note),
}

/// What a walk says beside entries.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// All entries of a directory have been told. `complete` is false when its listing failed.
    DirectoryEnd {
        /// The directory.
        directory: EntryId,
        /// Whether every name in it was listed.
        complete: bool,
    },
    /// Something under `place` can't be transferred: unreadable, vanished, a device, a socket.
    Skipped {
        /// Where it hangs.
        place: Place,
        /// Why; a failure counts in the exit status, a mere note does not.
        fault: crate::wire::Fault,
        /// Whether the run counts it as failed.
        failure: bool,
    },
}

/// What identifies a file's state of content: made from size, mtime, ctime, inode and birth time
/// by the sender's storage, opaque to the peer. Equality is a hint that nothing changed, never proof.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Version(pub [u8; 32]);
