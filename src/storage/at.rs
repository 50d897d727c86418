//! Opening and looking at one name in a held directory, without ever following a symlink.
//!
//! In: a directory descriptor and a [`Name`]. Out: descriptors of the kind that was asked for and
//! their status. Nothing here knows paths, exports or transfers; the walk, the sink and the
//! operations are built on it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, RawDir, ResolveFlags, openat, openat2, readlinkat};
use rustix::io::{self, Errno};

use super::status::Status;
use crate::manifest::Name;

/// Room for one `getdents64(2)` answer.
pub const DIRECTORY_BUFFER_BYTES: usize = 32 << 10;

/// How often an open is tried again that a concurrent rename disturbed (`EAGAIN`, openat2(2)).
const DISTURBED_RETRIES: usize = 64;

/// Nothing outside, no symlinks of any kind, no other mount.
fn strict() -> ResolveFlags {
    ResolveFlags::BENEATH
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_XDEV
}

/// `openat2` that outlasts concurrent renames.
pub(crate) fn open2(
    directory: impl AsFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    let directory = directory.as_fd();
    let flags = flags | OFlags::CLOEXEC;
    for _ in 0..DISTURBED_RETRIES {
        match openat2(directory, path, flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            answer => return answer,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens a directory for listing and for opening names in it.
pub fn open_directory(directory: impl AsFd, name: &Name) -> io::Result<OwnedFd> {
    open_directory_below(directory, name.as_bytes())
}

/// The same for several components at once, none of which may be a symlink or a mount point.
pub(crate) fn open_directory_below(directory: impl AsFd, path: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    open2(directory, path, flags, Mode::empty(), strict())
}

/// The same directory under a descriptor of its own, whose listing begins at its beginning.
pub(crate) fn open_again(directory: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(directory, c".", flags, Mode::empty())
}

/// Opens a regular file for reading.
///
/// The caller has seen by [`Status::at`] that the name is a regular file. Should it have become a
/// FIFO or a device since, the open does not wait (`O_NONBLOCK`), and the answer is `ENXIO`.
pub fn open_regular(directory: impl AsFd, name: &Name) -> io::Result<(OwnedFd, Status)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    open_checked(directory, name, flags)
}

/// Opens a regular file for reading and writing; otherwise as [`open_regular`].
pub(crate) fn open_for_writing(directory: impl AsFd, name: &Name) -> io::Result<(OwnedFd, Status)> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    open_checked(directory, name, flags)
}

fn open_checked(directory: impl AsFd, name: &Name, flags: OFlags) -> io::Result<(OwnedFd, Status)> {
    let file = open2(directory, name.as_bytes(), flags, Mode::empty(), strict())?;
    let status = Status::of(&file)?;
    if status.is_directory() {
        return Err(Errno::ISDIR);
    }
    if !status.is_file() {
        return Err(Errno::NXIO);
    }
    Ok((file, status))
}

/// The target of a symlink.
pub fn read_link(directory: impl AsFd, name: &Name) -> io::Result<Vec<u8>> {
    readlinkat(directory, name.as_bytes(), Vec::new()).map(std::ffi::CString::into_bytes)
}

/// Calls `each` with every name in the directory but `.` and `..`, in the file system's order.
/// Stops at the first error, of the listing or of `each`.
pub fn read_directory<E: From<Errno>>(
    directory: impl AsFd,
    buffer: &mut [MaybeUninit<u8>],
    mut each: impl FnMut(&[u8], FileType) -> Result<(), E>,
) -> Result<(), E> {
    let directory = directory.as_fd();
    let mut entries = RawDir::new(directory, buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            each(name, entry.file_type())?;
        }
    }
    Ok(())
}
