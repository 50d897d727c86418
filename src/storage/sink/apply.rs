//! Metadata of what was made: modes, owners, times, extended attributes.
//!
//! In: what a manifest tells of an entry, what was there before, what is to be preserved. Out: the
//! same on an open file. Set-id bits never come from a peer, nor do attributes other than `user.*`
//! and POSIX ACLs. Owners are set where this process may; where it may not, a note says so once.
//! Nothing here opens, names or removes anything.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::{self, Errno};

use super::compare::is_same_time;
use super::notes::NotesOf;
use crate::manifest::{Metadata, Name};
use crate::storage::calls::{
    chownat, fchmod, fchown, fremovexattr, fsetxattr, futimens, utimensat,
};
use crate::storage::error::StorageError;
use crate::storage::status::Status;
use crate::storage::xattr::{self, XattrError};
use crate::units::Timestamp;
use crate::wire::message::{Preserve, RemarkKind};

/// Permission and sticky bits: all that a peer may decide.
const MODE_FROM_PEER: u32 = 0o1777;
/// What `umask(2)` and a mode without sticky bit speak of.
const PERMISSIONS: u32 = 0o777;
/// What a directory needs for this run to fill it.
pub(crate) const OWNER_ALL: u32 = 0o700;
/// What a file needs for its owner to look at it.
pub(crate) const OWNER_READS: u32 = 0o400;
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const ACCESS_LIST: &str = "system.posix_acl_access";

/// How metadata of this transfer is applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) preserve: Preserve,
}

impl Rules {
    pub(crate) fn new(preserve: Preserve) -> Self {
        Self { preserve }
    }

    /// The mode that a file must have in the end: the source's, or that of what it replaces. `None`:
    /// the mode that the kernel gives a new file.
    pub(crate) fn exact_mode(&self, source: u32, existing: Option<u32>) -> Option<u32> {
        if self.preserve.mode {
            Some(source & MODE_FROM_PEER)
        } else {
            existing.map(|mode| mode & PERMISSIONS)
        }
    }

    /// The mode of a new directory while it is filled; `mkdir(2)` takes the umask off.
    pub(crate) fn filling_mode(source: u32) -> u32 {
        (source & PERMISSIONS) | OWNER_ALL
    }

    /// The mode of a directory in the end; the set-gid bit is inherited from above, not from peers.
    pub(crate) fn directory_mode(&self, source: u32, before: &Status, made: bool) -> u32 {
        if self.preserve.mode {
            (source & MODE_FROM_PEER) | (before.mode & SET_GID)
        } else if made {
            // The kernel took umask or inherited list into account; the owner's bits were ours.
            before.mode & (source | !OWNER_ALL)
        } else {
            before.mode
        }
    }

    /// Sets attributes and mtime of a complete new file. `inherits`: its directory gave it an
    /// access list. Tells whether the source's access list could not be kept.
    pub(crate) fn apply_content_metadata(
        &self,
        file: impl AsFd,
        inherits: bool,
        shown: &[u8],
        metadata: &Metadata,
        notes: NotesOf<'_>,
    ) -> Result<bool, StorageError> {
        let file = file.as_fd();
        if self.preserve.xattrs && inherits {
            match fremovexattr(file, ACCESS_LIST) {
                Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
                Err(errno) => {
                    return Err(StorageError::new("remove the access list of", shown, errno));
                }
            }
        }
        let applied = self.apply_xattrs(file, shown, metadata, notes)?;
        futimens(file, &times(metadata.mtime))
            .map_err(|errno| StorageError::new("set the time of", shown, errno))?;
        Ok(applied.list_dropped)
    }

    /// The mode to give what has this mode at its source and whose access list could not be kept.
    /// There the group's bits are the list's mask, which may allow far more than the group has.
    pub(crate) fn mode_without_list(&self, mode: u32, metadata: &Metadata) -> u32 {
        let list = metadata
            .xattrs
            .iter()
            .find(|(name, _)| name == ACCESS_LIST.as_bytes());
        match list {
            Some((_, value)) if self.preserve.mode => xattr::mode_without_list(mode, value),
            _ => mode,
        }
    }

    /// Whether this mode's set-id bits must be remarked to be missing.
    pub(crate) fn note_set_id(&self, source: u32, mode: u32, notes: NotesOf<'_>) {
        if self.preserve.mode && source & !mode & (SET_UID | SET_GID) != 0 {
            notes.add(RemarkKind::SetId);
        }
    }

    /// Sets the owner, which takes set-id bits off, and then the mode.
    pub(crate) fn apply_access(
        &self,
        file: impl AsFd,
        shown: &[u8],
        metadata: &Metadata,
        mode: Option<u32>,
        notes: NotesOf<'_>,
    ) -> Result<(), StorageError> {
        let file = file.as_fd();
        if self.preserve.owner {
            let (uid, gid) = owner(metadata);
            note_refused_owner(fchown(file, uid, gid), shown, notes)?;
        }
        self.note_set_id(metadata.mode, mode.unwrap_or(0), notes);
        match mode {
            Some(mode) => set_mode(file, mode, shown),
            None => Ok(()),
        }
    }

    /// Sets attributes to what the source has, nothing more and nothing less.
    fn apply_xattrs(
        &self,
        file: BorrowedFd<'_>,
        shown: &[u8],
        metadata: &Metadata,
        notes: NotesOf<'_>,
    ) -> Result<Applied, StorageError> {
        let mut applied = Applied::default();
        if !self.preserve.xattrs {
            return Ok(applied);
        }
        for (name, value) in &metadata.xattrs {
            if !xattr::is_carried(name) {
                notes.add(RemarkKind::AttributesPrivileged);
                continue;
            }
            match fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
                Err(Errno::NOTSUP) if name.starts_with(b"user.") => {
                    notes.add(RemarkKind::AttributesUnsupported);
                }
                Err(Errno::NOTSUP) => {
                    applied.list_dropped |= name == ACCESS_LIST.as_bytes();
                    notes.add(RemarkKind::AccessListsUnsupported);
                }
                Err(errno) => return Err(StorageError::new("set attributes of", shown, errno)),
                Ok(()) => applied.any = true,
            }
        }
        Ok(applied)
    }

    /// Brings the metadata of what stays to what the source has. Tells whether anything differed.
    pub(crate) fn update(
        &self,
        file: impl AsFd,
        shown: &[u8],
        metadata: &Metadata,
        before: &Status,
        mode: u32,
        notes: NotesOf<'_>,
    ) -> Result<bool, StorageError> {
        let file = file.as_fd();
        let (mut changed, mut mode) = (false, mode);
        if self.preserve.xattrs {
            let applied = self.update_xattrs(file, shown, metadata, notes)?;
            changed = applied.any;
            if applied.list_dropped {
                mode = self.mode_without_list(mode, metadata);
            }
        }
        self.note_set_id(metadata.mode, mode, notes);
        if self.preserve.owner && (before.uid, before.gid) != (metadata.uid, metadata.gid) {
            let (uid, gid) = owner(metadata);
            if note_refused_owner(fchown(file, uid, gid), shown, notes)? {
                changed = true;
                // What ran with the rights of one owner must not run with those of another.
                mode &= if before.is_directory() {
                    !SET_UID
                } else {
                    !(SET_UID | SET_GID)
                };
            }
        }
        // An access list that changed may have changed the mode.
        if before.mode != mode || changed {
            set_mode(file, mode, shown)?;
            changed = true;
        }
        Ok(changed)
    }

    fn update_xattrs(
        &self,
        file: BorrowedFd<'_>,
        shown: &[u8],
        metadata: &Metadata,
        notes: NotesOf<'_>,
    ) -> Result<Applied, StorageError> {
        let present = match xattr::read_open(file) {
            Ok(present) => present,
            // More than a source can have: they differ.
            Err(XattrError::TooMany) => Vec::new(),
            Err(XattrError::Io(errno)) => {
                return Err(StorageError::new("read attributes of", shown, errno));
            }
        };
        let carried = |(name, _): &&(Vec<u8>, Vec<u8>)| xattr::is_carried(name);
        let mut wanted: Vec<_> = metadata.xattrs.iter().filter(carried).cloned().collect();
        if wanted.len() < metadata.xattrs.len() {
            notes.add(RemarkKind::AttributesPrivileged);
        }
        wanted.sort_unstable();
        let mut applied = Applied::default();
        if present == wanted {
            return Ok(applied);
        }
        let superfluous = present
            .iter()
            .filter(|(name, _)| !wanted.iter().any(|(other, _)| other == name));
        for (name, _) in superfluous {
            match fremovexattr(file, name.as_slice()) {
                Ok(()) => applied.any = true,
                Err(Errno::NODATA | Errno::NOTSUP) => {}
                Err(errno) => return Err(StorageError::new("remove attributes of", shown, errno)),
            }
        }
        let set = self.apply_xattrs(file, shown, metadata, notes)?;
        applied.any |= set.any;
        applied.list_dropped = set.list_dropped;
        Ok(applied)
    }

    /// Brings owner and mtime of a symlink that stays to the source's. Tells whether they differed.
    pub(crate) fn update_symlink(
        &self,
        directory: impl AsFd,
        name: &Name,
        shown: &[u8],
        metadata: &Metadata,
        there: &Status,
        notes: NotesOf<'_>,
    ) -> Result<bool, StorageError> {
        let directory = directory.as_fd();
        let mut changed = false;
        if self.preserve.owner && (there.uid, there.gid) != (metadata.uid, metadata.gid) {
            let (uid, gid) = owner(metadata);
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let answer = chownat(directory, name.as_bytes(), uid, gid, flags);
            changed = note_refused_owner(answer, shown, notes)?;
        }
        if !is_same_time(there.mtime, metadata.mtime) {
            set_symlink_time(directory, name, metadata.mtime)
                .map_err(|errno| StorageError::new("set the time of", shown, errno))?;
            changed = true;
        }
        Ok(changed)
    }

    /// Sets owner and mtime of a symlink by its name; it has no mode of its own.
    pub(crate) fn apply_to_symlink(
        &self,
        directory: impl AsFd,
        name: &Name,
        shown: &[u8],
        metadata: &Metadata,
        notes: NotesOf<'_>,
    ) -> Result<(), StorageError> {
        let directory = directory.as_fd();
        if self.preserve.owner {
            let (uid, gid) = owner(metadata);
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let answer = chownat(directory, name.as_bytes(), uid, gid, flags);
            note_refused_owner(answer, shown, notes)?;
        }
        set_symlink_time(directory, name, metadata.mtime)
            .map_err(|errno| StorageError::new("set the time of", shown, errno))
    }
}

/// What setting attributes came to.
#[derive(Clone, Copy, Debug, Default)]
struct Applied {
    /// Something was set or removed.
    any: bool,
    /// The source has an access list, and the file system keeps none.
    list_dropped: bool,
}

/// Sets the mtime of what has this name; a symlink itself, not its target.
pub(crate) fn set_symlink_time(
    directory: impl AsFd,
    name: &Name,
    mtime: Timestamp,
) -> io::Result<()> {
    utimensat(
        directory,
        name.as_bytes(),
        &times(mtime),
        AtFlags::SYMLINK_NOFOLLOW,
    )
}

/// mtime as told, atime as it is.
pub(crate) fn times(mtime: Timestamp) -> Timestamps {
    // The codec bounds nanoseconds; a value that slipped through must not mean UTIME_NOW.
    let nanoseconds = mtime.nanoseconds.min(999_999_999);
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: mtime.seconds,
            tv_nsec: nanoseconds.into(),
        },
    }
}

fn set_mode(file: BorrowedFd<'_>, mode: u32, shown: &[u8]) -> Result<(), StorageError> {
    fchmod(file, Mode::from_raw_mode(mode))
        .map_err(|errno| StorageError::new("set the mode of", shown, errno))
}

fn owner(metadata: &Metadata) -> (Option<Uid>, Option<Gid>) {
    // The all-ones id means "leave it" to the kernel; so it does here.
    let known = |id: u32| (id != u32::MAX).then_some(id);
    (
        known(metadata.uid).map(Uid::from_raw),
        known(metadata.gid).map(Gid::from_raw),
    )
}

/// Whether the owner was set. Being refused is not a failure: owners are kept where allowed.
fn note_refused_owner(
    answer: io::Result<()>,
    shown: &[u8],
    notes: NotesOf<'_>,
) -> Result<bool, StorageError> {
    match answer {
        Ok(()) => Ok(true),
        Err(Errno::PERM | Errno::INVAL | Errno::NOTSUP) => {
            notes.add(RemarkKind::Owner);
            Ok(false)
        }
        Err(errno) => Err(StorageError::new("set the owner of", shown, errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(mode: bool) -> Rules {
        Rules {
            preserve: Preserve {
                mode,
                ..Preserve::default()
            },
        }
    }

    #[test]
    fn modes_of_files_are_the_sources_the_present_ones_or_the_kernels() {
        assert_eq!(rules(true).exact_mode(0o6755, Some(0o600)), Some(0o755));
        assert_eq!(rules(false).exact_mode(0o6755, Some(0o4640)), Some(0o640));
        assert_eq!(rules(false).exact_mode(0o6755, None), None);
    }

    #[test]
    fn directories_can_be_filled_and_keep_an_inherited_group() {
        assert_eq!(Rules::filling_mode(0o2555), 0o755);
        let before = Status::of(std::fs::File::open("/").unwrap()).unwrap();
        let inherited = Status {
            mode: 0o2750,
            ..before
        };
        assert_eq!(rules(true).directory_mode(0o1777, &inherited, true), 0o3777);
        assert_eq!(rules(false).directory_mode(0o555, &inherited, true), 0o2550);
        assert_eq!(
            rules(false).directory_mode(0o555, &inherited, false),
            0o2750
        );
    }
}
