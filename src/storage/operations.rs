//! What is done with files outside transfers: list, stat, sum, remove, make directories.
//!
//! In: a held root and a path below it. Out: [`Listed`] lines, told one by one so that memory stays
//! flat, or nothing but success. Whether the peer may do this is decided before. A long operation
//! asks `cancelled` again and again and then ends with [`FaultCode::Cancelled`].

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, readlinkat};
use rustix::io::Errno;

use super::at::{self, read_link};
use super::calls::{mkdirat, unlinkat};
use super::directory::{Directory, OpenDirectories};
use super::error::StorageError;
use super::part_name::is_part_name;
use super::root::{LastSymlink, Root};
use super::source::read_at;
use super::status::Status;
use super::walk::{Found, OwnFiles, Step, Trouble, TroubleAt, Walk};
use crate::ids::EntryId;
use crate::integrity::sum_file;
use crate::limits::{PATH_BYTES_MAX, WALK_NAMES_BYTES_MAX};
use crate::manifest::Name;
use crate::wire::message::{HashKind, Listed, ListedKind};
use crate::wire::{Fault, FaultCode};

/// How often a file is summed before it counts as changing all the time.
const SUMS_MAX: usize = 2;

/// How often a tree is removed into which something is written meanwhile.
const REMOVALS_MAX: usize = 5;

/// Where lines go, and whether anybody still wants them.
pub struct Output<'a> {
    /// Takes a line.
    pub tell: &'a mut dyn FnMut(Listed),
    /// Whether to stop.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// Why a mount below what was named is not summed.
const OTHER_MOUNT: &str = "is a mount point; other mounts are not entered, so name it by itself";
/// Why one is not removed.
const MOUNTED: &str = "a file system is mounted there; unmount it first";

/// The thing itself; a symlink at the end of the path is not followed.
pub fn stat(root: &Root, path: &[u8]) -> Result<Listed, StorageError> {
    let (seen, status) = root.resolve(path, LastSymlink::Keep)?;
    let kind = if status.is_symlink() {
        let target = readlinkat(&seen, c"", Vec::new())
            .map_err(|errno| StorageError::new("read the link", path, errno))?;
        ListedKind::Symlink(target.into_bytes())
    } else {
        kind_of(&status)
    };
    Ok(listed(Vec::new(), kind, &status))
}

/// The entries of a directory, all below it if `recursive`, or the one thing that is no directory.
pub fn list(
    root: &Root,
    path: &[u8],
    recursive: bool,
    output: &mut Output<'_>,
) -> Result<(), StorageError> {
    let mut tree = match Tree::begin(root, path, OwnFiles::Hidden) {
        Ok(Some(tree)) => tree,
        Ok(None) => {
            (output.tell)(stat(root, path)?);
            return Ok(());
        }
        // A link that leads nowhere, or outside, can be listed itself.
        Err(error) => match stat(root, path) {
            Ok(line) if matches!(line.kind, ListedKind::Symlink(_)) => {
                (output.tell)(line);
                return Ok(());
            }
            _ => return Err(error),
        },
    };
    while let Some(step) = tree.next("list", path, output.cancelled)? {
        match step {
            Step::Found(found) if tree.is_too_long(&found) => {
                tree.blame_too_long("list", &found, output);
            }
            Step::Found(found) => {
                if recursive && found.status.is_directory() && !found.mount_point {
                    tree.walk.descend(EntryId(0), &found);
                }
                (output.tell)(tree.line(&found));
            }
            Step::Trouble(trouble) if trouble.vanished => {}
            Step::Trouble(trouble) => (output.tell)(tree.blamed(trouble)?),
            Step::Left { directory, .. } => tree.left(&directory),
        }
    }
    Ok(())
}

/// The digest of a file, or of all files below a directory if `recursive`; always computed from
/// content. A file that can't be summed has a line with its fault.
pub fn sum(
    root: &Root,
    path: &[u8],
    recursive: bool,
    hash: HashKind,
    output: &mut Output<'_>,
) -> Result<(), StorageError> {
    let Some(mut tree) = Tree::begin(root, path, OwnFiles::Hidden)? else {
        let (status, digest) = sum_open(path, hash, output.cancelled, &|| root.open_regular(path))?;
        let line = listed(Vec::new(), ListedKind::File, &status);
        (output.tell)(Listed {
            digest: Some(digest),
            ..line
        });
        return Ok(());
    };
    if !recursive {
        let text = "it is a directory; add -r to sum all files below it";
        return Err(StorageError::refused("sum", path, FaultCode::Invalid, text));
    }
    while let Some(step) = tree.next("sum", path, output.cancelled)? {
        match step {
            Step::Found(found)
                if (found.status.is_directory() || found.status.is_file())
                    && tree.is_too_long(&found) =>
            {
                tree.blame_too_long("sum", &found, output);
            }
            // Whoever compares by sums would take what is missing on both sides for equal.
            Step::Found(found) if found.mount_point => {
                let path = found.parent.path_of(found.name.as_bytes());
                let error = StorageError::refused("sum", path, FaultCode::Storage, OTHER_MOUNT);
                let relative = found.parent.relative_of(found.name.as_bytes());
                let line = listed(relative, kind_of(&found.status), &found.status);
                (output.tell)(Listed {
                    fault: Some(error.fault()),
                    ..line
                });
            }
            Step::Found(found) if found.status.is_directory() => {
                tree.walk.descend(EntryId(0), &found);
            }
            Step::Found(found) if found.status.is_file() => {
                let line = tree.sum(&found, hash, output.cancelled)?;
                (output.tell)(line);
            }
            Step::Trouble(trouble) if !trouble.vanished => (output.tell)(tree.blamed(trouble)?),
            Step::Left { directory, .. } => tree.left(&directory),
            Step::Found(_) | Step::Trouble(_) => {}
        }
    }
    Ok(())
}

/// Removes what has this name, which is not followed if it is a symlink; a directory, with all
/// below it, only if `recursive`. Goes on after a failure and then tells the first.
///
/// # Errors
/// Besides the kernel's: the root itself is never removed, nor are other mounts.
pub fn remove(
    root: &Root,
    path: &[u8],
    recursive: bool,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<(), StorageError> {
    let (parent, name) = root.parent_of(path)?;
    let failed = |errno: Errno| StorageError::new("remove", path, errno);
    let status = Status::at(&parent, &name).map_err(failed)?;
    if !status.is_directory() {
        return unlinkat(&parent, name.as_bytes(), AtFlags::empty()).map_err(failed);
    }
    if !recursive {
        let text = "it is a directory; add -r to remove it with all below it";
        return Err(StorageError::refused(
            "remove",
            path,
            FaultCode::Invalid,
            text,
        ));
    }
    for _ in 1..REMOVALS_MAX {
        match remove_tree(root, path, &parent, &name, &status, cancelled) {
            // Something is written into it at the same time; what came is removed as well.
            Err(error) if error.errno() == Some(Errno::NOTEMPTY) => {}
            removed => return removed,
        }
    }
    remove_tree(root, path, &parent, &name, &status, cancelled)
}

/// Removes a directory, which has this status, and all below it.
fn remove_tree(
    root: &Root,
    path: &[u8],
    parent: &OwnedFd,
    name: &Name,
    status: &Status,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<(), StorageError> {
    let failed = |errno: Errno| StorageError::new("remove", path, errno);
    if let Some(mut tree) = Tree::begin(root, path, OwnFiles::Shown)? {
        // The walk follows no symlink; should the name have become one, it must not lead elsewhere.
        if !tree.base.same_file(status) {
            let text = "something else took its name; run the command again";
            return Err(StorageError::refused(
                "remove",
                path,
                FaultCode::SourceChanged,
                text,
            ));
        }
        if !status.same_mount(&Status::of(parent).map_err(failed)?) {
            let (code, text) = (FaultCode::Denied, MOUNTED);
            return Err(StorageError::refused("remove", path, code, text));
        }
        tree.remove_all(path, cancelled)?;
    }
    unlinkat(parent, name.as_bytes(), AtFlags::REMOVEDIR).map_err(failed)
}

/// Makes a directory; with `parents` also those above it, and one that exists is fine.
pub fn make_directory(root: &Root, path: &[u8], parents: bool) -> Result<(), StorageError> {
    if !parents {
        return make_one(root, path);
    }
    let ends = path
        .iter()
        .enumerate()
        .filter(|&(_, &byte)| byte == b'/')
        .map(|(at, _)| at);
    for end in ends.chain([path.len()]) {
        let prefix = &path[..end];
        if prefix.is_empty() && end < path.len() {
            // A leading slash; the kernel's answer to an absolute path says what is wrong with it.
            root.stat(path)?;
            continue;
        }
        match root.resolve(prefix, LastSymlink::Follow) {
            Ok((_, status)) if status.is_directory() => {}
            Ok(_) => return Err(no_directory(prefix)),
            Err(error) if error.code() == FaultCode::NotFound => match make_one(root, prefix) {
                // Made by someone else in between.
                Err(error) if error.code() == FaultCode::Exists => {}
                made => made?,
            },
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn make_one(root: &Root, path: &[u8]) -> Result<(), StorageError> {
    let (parent, name) = root.parent_of(path).map_err(|error| match error.errno() {
        Some(Errno::NOTDIR) => no_directory(&error.path),
        _ => error,
    })?;
    if is_part_name(name.as_bytes()) {
        // It would keep a file of another client from being written, and no listing shows it.
        let text = "names like this are kept for files that are being written; choose another";
        return Err(StorageError::refused(
            "make directory",
            path,
            FaultCode::Denied,
            text,
        ));
    }
    mkdirat(
        &parent,
        name.as_bytes(),
        Mode::RWXU | Mode::RWXG | Mode::RWXO,
    )
    .map_err(|errno| StorageError::new("make directory", path, errno))
}

fn no_directory(path: &[u8]) -> StorageError {
    let text = "something that is no directory stands there; remove it or choose another place";
    let path = path.strip_suffix(b"/").unwrap_or(path);
    StorageError::refused("make directory", path, FaultCode::WrongKind, text)
}

/// A walk with the directories that it holds open.
pub(super) struct Tree {
    pub(super) walk: Walk,
    pub(super) open: OpenDirectories,
    base: Status,
    /// Directories on the way that were blamed for names whose path no line can hold.
    too_long_in: Vec<Arc<Directory>>,
}

impl Tree {
    /// A walk of the directory at `path`; `None` if that is not a directory.
    pub(super) fn begin(
        root: &Root,
        path: &[u8],
        own_files: OwnFiles,
    ) -> Result<Option<Self>, StorageError> {
        let (_, status) = root.resolve(path, LastSymlink::Follow)?;
        if !status.is_directory() {
            return Ok(None);
        }
        let open = OpenDirectories::default();
        let fd = root.open_dir(path)?;
        let base = Status::of(&fd).map_err(|errno| StorageError::new("look at", path, errno))?;
        let directory = Directory::held(EntryId(0), fd, path.to_vec());
        let walk = Walk::new(directory, base, own_files, WALK_NAMES_BYTES_MAX);
        Ok(Some(Self {
            walk,
            open,
            base,
            too_long_in: Vec::new(),
        }))
    }

    pub(super) fn next(
        &mut self,
        op: &'static str,
        path: &[u8],
        cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Step>, StorageError> {
        if cancelled() {
            return Err(cancelled_error(op, path));
        }
        Ok(self.walk.next(&self.open))
    }

    /// A line for what was found.
    fn line(&self, found: &Found) -> Listed {
        let path = found.parent.relative_of(found.name.as_bytes());
        if !found.status.is_symlink() {
            return listed(path, kind_of(&found.status), &found.status);
        }
        let target = self.open.open(&found.parent).and_then(|fd| {
            read_link(&fd, &found.name)
                .map_err(|errno| StorageError::new("read the link", &*path, errno))
        });
        match target {
            Ok(target) => listed(path, ListedKind::Symlink(target), &found.status),
            Err(error) => {
                let line = listed(path, ListedKind::Symlink(Vec::new()), &found.status);
                Listed {
                    fault: Some(error.fault()),
                    ..line
                }
            }
        }
    }

    fn sum(
        &self,
        found: &Found,
        hash: HashKind,
        cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Listed, StorageError> {
        let path = found.parent.path_of(found.name.as_bytes());
        let open = || {
            let fd = self.open.open(&found.parent)?;
            at::open_regular(&fd, &found.name)
                .map_err(|errno| StorageError::new("open", &*path, errno))
        };
        let relative = found.parent.relative_of(found.name.as_bytes());
        match sum_open(&path, hash, cancelled, &open) {
            Ok((status, digest)) => {
                let line = listed(relative, ListedKind::File, &status);
                Ok(Listed {
                    digest: Some(digest),
                    ..line
                })
            }
            Err(error) if error.code() == FaultCode::Cancelled => Err(error),
            Err(error) => {
                let line = listed(relative, ListedKind::File, &found.status);
                Ok(Listed {
                    fault: Some(error.fault()),
                    ..line
                })
            }
        }
    }

    /// Whether the path of what was found is longer than a line's may be, though the kernel, which
    /// is asked from directory to directory, lets it be.
    pub(super) fn is_too_long(&self, found: &Found) -> bool {
        let path = found.parent.relative_of(found.name.as_bytes());
        path.len() > PATH_BYTES_MAX
    }

    /// A line for the directory that holds names that can't be told: one, however many they are.
    pub(super) fn blame_too_long(
        &mut self,
        op: &'static str,
        found: &Found,
        output: &mut Output<'_>,
    ) {
        let parent = &found.parent;
        if self
            .too_long_in
            .iter()
            .any(|told| Arc::ptr_eq(told, parent))
        {
            return;
        }
        self.too_long_in.push(Arc::clone(parent));
        let text = format!(
            "its path is longer than {PATH_BYTES_MAX} bytes; name a directory further down on the \
             command line"
        );
        let path = parent.path_of(found.name.as_bytes());
        let error = StorageError::refused(op, path, FaultCode::Storage, text);
        (output.tell)(blank(
            parent.relative(),
            ListedKind::Directory,
            Some(error.fault()),
        ));
    }

    /// Nothing more comes of this directory.
    pub(super) fn left(&mut self, directory: &Arc<Directory>) {
        self.too_long_in
            .retain(|told| !Arc::ptr_eq(told, directory));
    }

    /// A line for what went wrong; the error itself if that is the listing of the whole.
    pub(super) fn blamed(&self, trouble: Trouble) -> Result<Listed, StorageError> {
        let (path, kind) = match trouble.at {
            TroubleAt::Name(parent, name) => {
                let path = parent.relative_of(name.as_bytes());
                match path.len() {
                    0..=PATH_BYTES_MAX => (path, ListedKind::Special),
                    _ => (parent.relative(), ListedKind::Directory),
                }
            }
            TroubleAt::Directory(directory) => match directory.parent() {
                Some(_) => (directory.relative(), ListedKind::Directory),
                None => return Err(trouble.error),
            },
        };
        Ok(blank(path, kind, Some(trouble.error.fault())))
    }

    /// Removes all below the base. What can't be removed stays; the first reason is told.
    fn remove_all(
        &mut self,
        path: &[u8],
        cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), StorageError> {
        let mut first = None;
        while let Some(step) = self.next("remove", path, cancelled)? {
            let removed = match step {
                Step::Found(found) if found.mount_point => {
                    let path = found.parent.path_of(found.name.as_bytes());
                    let (code, text) = (FaultCode::Denied, MOUNTED);
                    Err(StorageError::refused("remove", path, code, text))
                }
                Step::Found(found) if found.status.is_directory() => {
                    self.walk.descend(EntryId(0), &found);
                    Ok(())
                }
                Step::Found(found) => self.unlink(&found.parent, &found.name, AtFlags::empty()),
                Step::Left { directory, .. } => match directory.parent() {
                    Some((parent, name)) => self.unlink(parent, name, AtFlags::REMOVEDIR),
                    None => Ok(()),
                },
                Step::Trouble(trouble) if trouble.vanished => Ok(()),
                Step::Trouble(trouble) => Err(trouble.error),
            };
            if let Err(error) = removed {
                first.get_or_insert(error);
            }
        }
        first.map_or(Ok(()), Err)
    }

    fn unlink(
        &self,
        parent: &Arc<Directory>,
        name: &Name,
        flags: AtFlags,
    ) -> Result<(), StorageError> {
        let fd = self.open.open(parent)?;
        match unlinkat(&*fd, name.as_bytes(), flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(StorageError::new(
                "remove",
                parent.path_of(name.as_bytes()),
                errno,
            )),
        }
    }
}

/// Sums what `open` opens, until it did not change meanwhile.
fn sum_open(
    path: &[u8],
    hash: HashKind,
    cancelled: &(dyn Fn() -> bool + Sync),
    open: &dyn Fn() -> Result<(OwnedFd, Status), StorageError>,
) -> Result<(Status, [u8; 32]), StorageError> {
    for _ in 0..SUMS_MAX {
        let (file, status) = open()?;
        let file = std::fs::File::from(file);
        let read = |buffer: &mut [u8], offset: u64| {
            if cancelled() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            read_at(&file, buffer, offset)
        };
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let summed = sum_file(read, status.len, hash, threads);
        if cancelled() {
            return Err(cancelled_error("sum", path));
        }
        let after = Status::of(&file).map_err(|errno| StorageError::new("look at", path, errno))?;
        if after.same_content(&status) {
            return match summed {
                Ok(digest) => Ok((status, digest)),
                Err(error) => Err(StorageError::new("read", path, error)),
            };
        }
    }
    let text = "it changed while it was read; sum it again when nothing writes to it";
    Err(StorageError::refused(
        "sum",
        path,
        FaultCode::SourceChanged,
        text,
    ))
}

fn cancelled_error(op: &'static str, path: &[u8]) -> StorageError {
    StorageError::refused(op, path, FaultCode::Cancelled, "it was cancelled")
}

pub(super) fn kind_of(status: &Status) -> ListedKind {
    if status.is_file() {
        ListedKind::File
    } else if status.is_directory() {
        ListedKind::Directory
    } else {
        ListedKind::Special
    }
}

pub(super) fn listed(path: Vec<u8>, kind: ListedKind, status: &Status) -> Listed {
    Listed {
        len: status.len,
        mode: status.mode,
        uid: status.uid,
        gid: status.gid,
        mtime: status.mtime,
        ..blank(path, kind, None)
    }
}

/// A line of something that was not looked at.
fn blank(path: Vec<u8>, kind: ListedKind, fault: Option<Fault>) -> Listed {
    Listed {
        path,
        kind,
        len: 0,
        mode: 0,
        uid: 0,
        gid: 0,
        mtime: Default::default(),
        digest: None,
        fault,
        left: None,
    }
}

#[cfg(test)]
#[path = "operations_tests.rs"]
mod tests;
