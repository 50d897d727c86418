//! Every call by which storage changes what lies under a name.
//!
//! In: open directories and files, names. Out: the kernel's answers; outside of tests these are its own
//! calls and nothing else. They stand in one place so that it can be read off what a receiver does to a
//! disk, and so that the simulation can put a disk of its own beneath the very code that runs elsewhere:
//! one that fails an operation, or loses power between two. Not here: reads and opens of what is there,
//! unnamed scratch files, and direct writes that a reactor posts. Nothing here decides anything.

#[cfg(test)]
pub(crate) mod disk;
#[cfg(test)]
pub(crate) mod image;
#[cfg(test)]
mod scripted;

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::{self, Errno};

#[cfg(not(test))]
pub(crate) use crate::sys::writeback::start_writeback;
#[cfg(not(test))]
use rustix::fs::openat;
#[cfg(not(test))]
pub(crate) use rustix::fs::{
    chmod, chownat, fallocate, fchmod, fchown, fdatasync, fremovexattr, fsetxattr, fsync,
    ftruncate, futimens, ioctl_ficlone, linkat, mkdirat, renameat, renameat_with, symlinkat,
    unlinkat, utimensat,
};
#[cfg(not(test))]
pub(crate) use rustix::io::{pwrite, write};

#[cfg(test)]
pub(crate) use scripted::forget_cached;
#[cfg(test)]
use scripted::openat;
#[cfg(test)]
pub(crate) use scripted::{
    chmod, chownat, fallocate, fchmod, fchown, fdatasync, fremovexattr, fsetxattr, fsync,
    ftruncate, futimens, ioctl_ficlone, linkat, mkdirat, pwrite, renameat, renameat_with,
    start_writeback, symlinkat, unlinkat, utimensat, write,
};

/// Makes a file of this name, which nothing may have yet, and opens it.
pub(crate) fn create(
    directory: impl AsFd,
    name: &[u8],
    access: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let flags = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, mode)
}

/// Drops what memory holds of a file and the disk may not have, after a sync that failed: the kernel takes
/// it for written. A hint.
#[cfg(not(test))]
pub(crate) fn forget_cached(file: impl AsFd) {
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

/// Writes all of it.
pub(crate) fn write_all_at(
    file: impl AsFd,
    mut bytes: &[u8],
    mut offset: u64,
) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match pwrite(&file, bytes, offset) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// What changes a file system, by the names that it is imported under.
    const CHANGING: &[&str] = &[
        "chmod",
        "chmodat",
        "chown",
        "chownat",
        "copy_file_range",
        "fallocate",
        "fchmod",
        "fchown",
        "fdatasync",
        "fremovexattr",
        "fsetxattr",
        "fsync",
        "ftruncate",
        "futimens",
        "ioctl_ficlone",
        "linkat",
        "lremovexattr",
        "lsetxattr",
        "mkdirat",
        "mknodat",
        "pwrite",
        "pwritev",
        "renameat",
        "renameat_with",
        "symlinkat",
        "sync_file_range",
        "syncfs",
        "unlinkat",
        "utimensat",
        "write",
    ];

    fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    /// The names that `use rustix::...` and `rustix::...` take in a source, tests apart.
    fn taken(source: &str) -> Vec<String> {
        let code = source
            .split("#[cfg(test)]\nmod tests")
            .next()
            .unwrap_or(source);
        let mut names = Vec::new();
        for (at, _) in code.match_indices("rustix::") {
            let end = code[at..].find(';').map_or(code.len(), |end| at + end);
            let clause = match code[..at].ends_with("use ") {
                true => &code[at..end],
                false => code[at..]
                    .split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
                    .next()
                    .unwrap(),
            };
            names.extend(
                clause
                    .split(|c: char| !c.is_alphanumeric() && c != '_')
                    .map(str::to_owned),
            );
        }
        names
    }

    #[test]
    fn storage_changes_nothing_by_any_other_way() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/storage");
        let mut files = Vec::new();
        sources(&top, &mut files);
        assert!(files.len() > 30, "{files:?}");
        for file in files {
            let is_here = file.starts_with(top.join("calls")) || file.ends_with("storage/calls.rs");
            let is_test = file.to_string_lossy().ends_with("tests.rs");
            if is_here || is_test {
                continue;
            }
            let source = fs::read_to_string(&file).unwrap();
            for name in taken(&source) {
                assert!(
                    !CHANGING.contains(&name.as_str()),
                    "{} takes {name} from the kernel and not from storage::calls",
                    file.display()
                );
            }
        }
    }
}
