//! The calls of storage over the disk of this thread's simulation, or over the kernel's where there is
//! none.
//!
//! In: the arguments of the kernel's calls. Out: its answers, or those that the disk's script has in
//! their place. What is done is done by the kernel too: a disk only keeps account. Each thread has its
//! own, so simulations run beside one another and beside all other tests.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, FallocateFlags, Gid, Mode, OFlags, RenameFlags, SeekFrom, Timestamps, Uid, XattrFlags,
};
use rustix::io::{self, Errno};

use super::disk::{self, Call, Disk, What, inode_at, inode_of};

/// Makes a call unless the script has it fail, and enters what it did.
fn step<T>(
    call: Call,
    make: impl FnOnce() -> io::Result<T>,
    enter: impl FnOnce(&mut Disk, &T),
) -> io::Result<T> {
    if let Some(answer) = disk::with(|disk| disk.admit(call)) {
        answer?;
    }
    let made = make()?;
    disk::with(|disk| enter(disk, &made));
    Ok(made)
}

pub(super) fn openat(
    directory: impl AsFd,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let directory = directory.as_fd();
    step(
        Call::Create,
        || rustix::fs::openat(directory, name, flags, mode),
        |disk, file| disk.made(directory, name, inode_of(file)),
    )
}

pub(crate) fn mkdirat(directory: impl AsFd, name: &[u8], mode: Mode) -> io::Result<()> {
    let directory = directory.as_fd();
    step(
        Call::Mkdir,
        || rustix::fs::mkdirat(directory, name, mode),
        |disk, ()| disk.made(directory, name, inode_at(directory, name)),
    )
}

pub(crate) fn symlinkat(target: &[u8], directory: impl AsFd, name: &[u8]) -> io::Result<()> {
    let directory = directory.as_fd();
    step(
        Call::Symlink,
        || rustix::fs::symlinkat(target, directory, name),
        |disk, ()| disk.made(directory, name, inode_at(directory, name)),
    )
}

pub(crate) fn linkat(
    from: impl AsFd,
    name: &[u8],
    directory: impl AsFd,
    new: &[u8],
    flags: AtFlags,
) -> io::Result<()> {
    let (from, directory) = (from.as_fd(), directory.as_fd());
    step(
        Call::Link,
        || rustix::fs::linkat(from, name, directory, new, flags),
        |disk, ()| disk.linked(directory, new, inode_at(directory, new)),
    )
}

pub(crate) fn unlinkat(directory: impl AsFd, name: &[u8], flags: AtFlags) -> io::Result<()> {
    let directory = directory.as_fd();
    step(
        Call::Unlink,
        || rustix::fs::unlinkat(directory, name, flags),
        |disk, ()| disk.unlinked(directory, name),
    )
}

pub(crate) fn renameat(
    from: impl AsFd,
    old: &[u8],
    directory: impl AsFd,
    new: &[u8],
) -> io::Result<()> {
    renameat_with(from, old, directory, new, RenameFlags::empty())
}

pub(crate) fn renameat_with(
    from: impl AsFd,
    old: &[u8],
    directory: impl AsFd,
    new: &[u8],
    flags: RenameFlags,
) -> io::Result<()> {
    let (from, directory) = (from.as_fd(), directory.as_fd());
    step(
        Call::Rename,
        || rustix::fs::renameat_with(from, old, directory, new, flags),
        |disk, ()| disk.renamed((from, old), (directory, new)),
    )
}

pub(crate) fn pwrite(file: impl AsFd, bytes: &[u8], offset: u64) -> io::Result<usize> {
    let file = file.as_fd();
    let bytes = match disk::with(|disk| disk.admit_write(bytes.len())) {
        Some(admitted) => &bytes[..admitted?],
        None => bytes,
    };
    let written = rustix::io::pwrite(file, bytes, offset)?;
    disk::with(|disk| {
        let (at, bytes) = (offset, bytes[..written].to_vec());
        disk.wrote(inode_of(file), What::Bytes { at, bytes });
    });
    Ok(written)
}

pub(crate) fn write(file: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let file = file.as_fd();
    if !disk::is_here() {
        return rustix::io::write(file, bytes);
    }
    let offset = rustix::fs::tell(file)?;
    let written = pwrite(file, bytes, offset)?;
    rustix::fs::seek(file, SeekFrom::Start(offset + written as u64))?;
    Ok(written)
}

pub(crate) fn ftruncate(file: impl AsFd, len: u64) -> io::Result<()> {
    let file = file.as_fd();
    step(
        Call::Length,
        || rustix::fs::ftruncate(file, len),
        |disk, ()| disk.wrote(inode_of(file), What::Len(len)),
    )
}

pub(crate) fn fallocate(
    file: impl AsFd,
    flags: FallocateFlags,
    offset: u64,
    len: u64,
) -> io::Result<()> {
    let file = file.as_fd();
    step(
        Call::Allocate,
        || rustix::fs::fallocate(file, flags, offset, len),
        |disk, ()| {
            let end = offset.saturating_add(len);
            if flags.contains(FallocateFlags::PUNCH_HOLE) {
                disk.wrote(inode_of(file), What::Zeros { at: offset, end });
            } else if !flags.contains(FallocateFlags::KEEP_SIZE) {
                disk.wrote(inode_of(file), What::LenAtLeast(end));
            }
        },
    )
}

/// The file systems that simulations run on don't share bytes; the copy is made beside.
pub(crate) fn ioctl_ficlone(part: impl AsFd, older: impl AsFd) -> io::Result<()> {
    if disk::is_here() {
        return Err(Errno::NOTSUP);
    }
    rustix::fs::ioctl_ficlone(part, older)
}

/// Nothing is synced in earnest beneath a simulation: what that would make durable is the disk's affair.
pub(crate) fn fsync(of: impl AsFd) -> io::Result<()> {
    match disk::with(|disk| disk.sync(of.as_fd(), false)) {
        Some(answer) => answer,
        None => rustix::fs::fsync(of),
    }
}

pub(crate) fn fdatasync(of: impl AsFd) -> io::Result<()> {
    match disk::with(|disk| disk.sync(of.as_fd(), true)) {
        Some(answer) => answer,
        None => rustix::fs::fdatasync(of),
    }
}

/// What a failed sync lost is seen from now on.
pub(crate) fn forget_cached(file: impl AsFd) {
    let file = file.as_fd();
    let left = disk::with(|disk| disk.forget_lost(inode_of(file))).flatten();
    if let Some(bytes) = left {
        rustix::fs::ftruncate(file, bytes.len() as u64).expect("it is open for writing");
        let written = rustix::io::pwrite(file, &bytes, 0).expect("it was written before");
        assert_eq!(written, bytes.len());
    }
}

/// A hint, that may do nothing.
pub(crate) fn start_writeback(file: impl AsFd) {
    if !disk::is_here() {
        crate::sys::writeback::start_writeback(file);
    }
}

pub(crate) fn fchmod(of: impl AsFd, mode: Mode) -> io::Result<()> {
    let of = of.as_fd();
    step(
        Call::Access,
        || rustix::fs::fchmod(of, mode),
        |disk, ()| disk.mode_set(inode_of(of), mode),
    )
}

pub(crate) fn chmod(path: String, mode: Mode) -> io::Result<()> {
    step(
        Call::Access,
        || rustix::fs::chmod(&path, mode),
        |disk, ()| {
            let status = rustix::fs::stat(&path).expect("it was there for the call before");
            disk.mode_set(status.st_ino, mode);
        },
    )
}

pub(crate) fn fchown(of: impl AsFd, uid: Option<Uid>, gid: Option<Gid>) -> io::Result<()> {
    step(
        Call::Access,
        || rustix::fs::fchown(of, uid, gid),
        |_, ()| {},
    )
}

pub(crate) fn chownat(
    directory: impl AsFd,
    name: &[u8],
    uid: Option<Uid>,
    gid: Option<Gid>,
    flags: AtFlags,
) -> io::Result<()> {
    step(
        Call::Access,
        || rustix::fs::chownat(directory, name, uid, gid, flags),
        |_, ()| {},
    )
}

pub(crate) fn futimens(of: impl AsFd, times: &Timestamps) -> io::Result<()> {
    let of = of.as_fd();
    step(
        Call::Times,
        || rustix::fs::futimens(of, times),
        |disk, ()| disk.time_set(inode_of(of), times),
    )
}

pub(crate) fn utimensat(
    directory: impl AsFd,
    name: &[u8],
    times: &Timestamps,
    flags: AtFlags,
) -> io::Result<()> {
    let directory = directory.as_fd();
    step(
        Call::Times,
        || rustix::fs::utimensat(directory, name, times, flags),
        |disk, ()| disk.time_set(inode_at(directory, name), times),
    )
}

pub(crate) fn fsetxattr(
    file: impl AsFd,
    name: &[u8],
    value: &[u8],
    flags: XattrFlags,
) -> io::Result<()> {
    step(
        Call::Access,
        || rustix::fs::fsetxattr(file, name, value, flags),
        |_, ()| {},
    )
}

pub(crate) fn fremovexattr(file: impl AsFd, name: impl rustix::path::Arg) -> io::Result<()> {
    step(
        Call::Access,
        || rustix::fs::fremovexattr(file, name),
        |_, ()| {},
    )
}
