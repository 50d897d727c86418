//! A directory that is held open: an export, or what a local path of a command lies in.
//!
//! In: paths below it, as users and peers name them. Out: descriptors and status. The kernel keeps
//! every resolution below the directory (`RESOLVE_BENEATH`), refuses magic links such as those of
//! `/proc/PID/fd`, and follows other symlinks only in the named path itself. Files are looked at
//! through `O_PATH` before they are opened, so that opening has no effect on devices and never
//! waits for a FIFO's writer. Nothing here knows rights of peers or transfers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, openat};
use rustix::io::{self, Errno};

use super::at::open2;
use super::error::StorageError;
use super::identity::Identity;
use super::status::Status;
use crate::limits::PATH_BYTES_MAX;
use crate::manifest::Name;
use crate::wire::FaultCode;

/// File systems whose files are windows into the kernel, by `f_type` (statfs(2)).
const KERNEL_FILE_SYSTEMS: &[(u64, &str)] = &[
    (0x0000_9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x7363_6673, "securityfs"),
    (0x0000_1cd1, "devpts"),
    (0x6165_676c, "pstore"),
    (0xcafe_4a11, "bpf"),
    (0x6265_6570, "configfs"),
    (0xde5e_81e4, "efivarfs"),
    (0xf97c_ff8c, "selinuxfs"),
    (0x6e73_6673, "nsfs"),
];

/// Whether a symlink at the end of a named path stands for its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastSymlink {
    /// Its target is meant, if that lies below the root.
    Follow,
    /// The link itself is meant.
    Keep,
}

/// A directory held open.
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
    path: PathBuf,
    identity: Identity,
    /// It is the root of the process's own tree.
    is_top: bool,
}

impl Root {
    /// Holds `path` open. Symlinks in it are followed: it comes from the local configuration or
    /// command line.
    ///
    /// # Errors
    /// When it is not a directory, can't be reached, is one of the kernel's own file systems, or
    /// when `identity` is not the process's own.
    pub fn open(path: &Path, identity: Identity) -> Result<Self, StorageError> {
        let shown = path.as_os_str().as_encoded_bytes();
        identity.ensure_current()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty())
            .map_err(|errno| StorageError::new("open", shown, errno))?;
        refuse_kernel_file_systems(&directory, shown)?;
        probe(&directory, shown)?;
        let is_top = is_top(&directory);
        Ok(Self {
            directory,
            path: path.to_owned(),
            identity,
            is_top,
        })
    }

    /// Where it was opened; for local messages only.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the same path led both to the same directory, with the same rights.
    pub fn is_same_directory(&self, other: &Self) -> bool {
        let place = |root: &Self| fstat(&root.directory).map(|found| (found.st_dev, found.st_ino));
        self.path == other.path
            && self.identity == other.identity
            && place(self).is_ok_and(|own| place(other) == Ok(own))
    }

    /// Whose rights its operations have.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Opens what `path` names with `O_PATH`: good for looking at it and for opening names in it.
    /// An empty path names the root itself.
    pub fn resolve(
        &self,
        path: &[u8],
        last: LastSymlink,
    ) -> Result<(OwnedFd, Status), StorageError> {
        self.check(path)?;
        let failed = |errno: Errno| StorageError::new("open", path, errno);
        let flags = match last {
            LastSymlink::Follow => OFlags::PATH,
            LastSymlink::Keep => OFlags::PATH | OFlags::NOFOLLOW,
        };
        let found = self.open_below(path, flags).map_err(failed)?;
        let status = Status::of(&found).map_err(failed)?;
        refuse_kernel_file_systems(&found, path)?;
        Ok((found, status))
    }

    /// Looks at what `path` names; a symlink at its end is not followed.
    pub fn stat(&self, path: &[u8]) -> Result<Status, StorageError> {
        self.resolve(path, LastSymlink::Keep)
            .map(|(_, status)| status)
    }

    /// Opens a directory for listing. An empty path names the root itself.
    pub fn open_dir(&self, path: &[u8]) -> Result<OwnedFd, StorageError> {
        let (seen, status) = self.resolve(path, LastSymlink::Follow)?;
        if !status.is_directory() {
            return Err(StorageError::new("open", path, Errno::NOTDIR));
        }
        // "." below the descriptor is the very directory that was looked at.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        open2(&seen, b".", flags, Mode::empty(), beneath())
            .map_err(|errno| StorageError::new("open", path, errno))
    }

    /// Opens a regular file for reading.
    pub fn open_regular(&self, path: &[u8]) -> Result<(OwnedFd, Status), StorageError> {
        let (_, seen) = self.resolve(path, LastSymlink::Follow)?;
        let failed = |errno: Errno| StorageError::new("open", path, errno);
        if seen.is_directory() {
            return Err(failed(Errno::ISDIR));
        }
        if !seen.is_file() {
            return Err(special(path, seen.kind));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.open_below(path, flags).map_err(failed)?;
        let status = Status::of(&file).map_err(failed)?;
        if !status.is_file() {
            return Err(special(path, status.kind));
        }
        Ok((file, status))
    }

    /// The directory (`O_PATH`) that the last component of `path` lies in, and that component.
    /// Trailing slashes are ignored.
    ///
    /// # Errors
    /// Besides the kernel's: a path that is empty or ends in `.` or `..` names nothing in a
    /// directory.
    pub fn parent_of(&self, path: &[u8]) -> Result<(OwnedFd, Name), StorageError> {
        let end = path
            .iter()
            .rposition(|&byte| byte != b'/')
            .map_or(0, |at| at + 1);
        let trimmed = &path[..end];
        let (parent, last) = match trimmed.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (&trimmed[..=slash], &trimmed[slash + 1..]),
            None => (&b""[..], trimmed),
        };
        let name = Name::new(last).map_err(|error| {
            StorageError::refused("use", path, FaultCode::Invalid, error.to_string())
        })?;
        let (directory, status) = self.resolve(parent, LastSymlink::Follow)?;
        if !status.is_directory() {
            return Err(StorageError::new("open", parent, Errno::NOTDIR));
        }
        Ok((directory, name))
    }

    fn open_below(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let path = if path.is_empty() { b"." } else { path };
        // Nothing is outside of it, so absolute links mean what they mean everywhere.
        let within = match self.is_top {
            true => ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
            false => beneath(),
        };
        open2(&self.directory, path, flags, Mode::empty(), within)
    }

    fn check(&self, path: &[u8]) -> Result<(), StorageError> {
        if path.len() > PATH_BYTES_MAX {
            return Err(StorageError::new("open", path, Errno::NAMETOOLONG));
        }
        if path.contains(&0) {
            let text = "the path holds a NUL byte";
            return Err(StorageError::refused(
                "open",
                path,
                FaultCode::Invalid,
                text,
            ));
        }
        Ok(())
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// What a device, FIFO or socket is answered with.
pub(crate) fn special(path: &[u8], kind: FileType) -> StorageError {
    let text = format!("it is {}", not_copied(kind));
    StorageError::refused("open", path, FaultCode::Special, text)
}

/// What a thing is that has no content of its own, and what has.
pub(super) fn not_copied(kind: FileType) -> String {
    let what = match kind {
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "nothing that can be copied",
    };
    format!("{what}; only regular files, directories and symbolic links are copied")
}

/// Whether openat2(2) works at all: a kernel before 5.6 answers ENOSYS, an old seccomp profile EPERM.
/// The directory could just be opened, so neither has to do with it.
fn probe(directory: &OwnedFd, path: &[u8]) -> Result<(), StorageError> {
    match open2(directory, b".", OFlags::PATH, Mode::empty(), beneath()) {
        Err(Errno::NOSYS | Errno::PERM) => Err(StorageError::new("open", path, Errno::NOSYS)),
        Err(errno) => Err(StorageError::new("open", path, errno)),
        Ok(_) => Ok(()),
    }
}

/// Whether it is the directory that `/` names here.
fn is_top(directory: &OwnedFd) -> bool {
    let place = |found: rustix::fs::Stat| (found.st_dev, found.st_ino);
    match (fstat(directory), rustix::fs::stat("/")) {
        (Ok(own), Ok(top)) => place(own) == place(top),
        _ => false,
    }
}

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS
}

pub(super) fn refuse_kernel_file_systems(fd: impl AsFd, path: &[u8]) -> Result<(), StorageError> {
    let told = fstatfs(fd).map_err(|errno| StorageError::new("look at", path, errno))?;
    // The kernel's magic numbers are 32 bits wide; the field's width and sign vary.
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation)]
    let magic = u64::from(told.f_type as u32);
    let known = KERNEL_FILE_SYSTEMS
        .iter()
        .find(|(number, _)| *number == magic);
    let Some((_, name)) = known else {
        return Ok(());
    };
    let text = format!(
        "it lies in the kernel's own file system '{name}', whose files have no lasting content"
    );
    Err(StorageError::refused("open", path, FaultCode::Denied, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn tree() -> (tempfile::TempDir, Root) {
        let outer = tempfile::tempdir().unwrap();
        fs::create_dir_all(outer.path().join("export/a/b")).unwrap();
        fs::write(outer.path().join("secret"), "s").unwrap();
        fs::write(outer.path().join("export/a/file"), "data").unwrap();
        let root = Root::open(&outer.path().join("export"), Identity::current()).unwrap();
        (outer, root)
    }

    #[test]
    fn paths_that_lead_outside_are_refused() {
        let (outer, root) = tree();
        let export = outer.path().join("export");
        symlink("../secret", export.join("up")).unwrap();
        symlink(outer.path().join("secret"), export.join("absolute")).unwrap();
        symlink("/proc/self/root", export.join("magic")).unwrap();
        symlink("/proc/self/fd/0", export.join("fd")).unwrap();
        for path in [
            &b"../secret"[..],
            b"/etc/passwd",
            b"up",
            b"absolute",
            b"magic/etc",
            b"fd",
            b"a/../..",
        ] {
            let error = root.open_regular(path).unwrap_err();
            assert_eq!(error.code(), FaultCode::Denied, "{}", error.fault().text);
            assert!(root.parent_of(&[path, b"/x"].concat()).is_err());
        }
        assert_eq!(
            root.open_regular(b"a\0b").unwrap_err().code(),
            FaultCode::Invalid
        );
    }

    #[test]
    fn symlinks_inside_are_followed_where_a_path_was_named() {
        let (outer, root) = tree();
        symlink("a/file", outer.path().join("export/link")).unwrap();
        let (_, status) = root.open_regular(b"link").unwrap();
        assert_eq!(status.len, 4);
        assert!(root.stat(b"link").unwrap().is_symlink());
        assert!(root.stat(b"a/../a/b").unwrap().is_directory());
    }

    #[test]
    fn only_regular_files_are_opened_for_data() {
        let (outer, root) = tree();
        let fifo = outer.path().join("export/fifo");
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(
            root.open_regular(b"fifo").unwrap_err().code(),
            FaultCode::Special
        );
        assert_eq!(
            root.open_regular(b"a").unwrap_err().code(),
            FaultCode::WrongKind
        );
        assert_eq!(
            root.open_regular(b"none").unwrap_err().code(),
            FaultCode::NotFound
        );
        assert_eq!(
            root.open_dir(b"a/file").unwrap_err().code(),
            FaultCode::NotFound
        );
    }

    #[test]
    fn the_kernels_own_file_systems_are_refused() {
        for path in ["/proc", "/sys"] {
            let error = Root::open(Path::new(path), Identity::current()).unwrap_err();
            assert_eq!(error.code(), FaultCode::Denied);
        }
        let top = Root::open(Path::new("/"), Identity::current()).unwrap();
        assert_eq!(
            top.open_regular(b"proc/self/mem").unwrap_err().code(),
            FaultCode::Denied
        );
    }

    #[test]
    fn parents_are_split_off() {
        let (_outer, root) = tree();
        let (directory, name) = root.parent_of(b"a/new//").unwrap();
        assert_eq!(name.as_bytes(), b"new");
        assert!(
            Status::of(directory)
                .unwrap()
                .same_file(&root.stat(b"a").unwrap())
        );
        assert_eq!(root.parent_of(b"new").unwrap().1.as_bytes(), b"new");
        for nothing in [&b""[..], b"/", b"a/..", b"."] {
            assert!(root.parent_of(nothing).is_err());
        }
    }
}
