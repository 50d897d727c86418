//! Opening what its mode closes to its own owner.
//!
//! In: a name in a directory, or what was found there. Out: the same with more rights for its owner,
//! if that is this process's user, and the way back. A tree may hold directories without any right
//! and files that nobody may read; whoever owns a copy of it must still be able to bring it up to
//! date. Nothing here decides when the way back is taken.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::{self, Errno};

use super::at::open2;
use super::calls::chmod;
use super::status::Status;

/// Something that was opened up.
#[derive(Debug)]
pub(crate) struct OpenedUp {
    /// Opened with `O_PATH`.
    seen: OwnedFd,
    /// What it was like before.
    pub(crate) before: Status,
}

impl OpenedUp {
    /// Adds these bits to the mode of what has this path below the directory; no component of it
    /// is a symlink.
    ///
    /// # Errors
    /// `ACCESS` if it is not ours to open up.
    pub(crate) fn below(directory: impl AsFd, path: &[u8], bits: u32) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        let seen = open2(directory, path, flags, Mode::empty(), resolve)?;
        let before = Status::of(&seen)?;
        Self::seen(seen, before, bits)
    }

    /// Adds these bits to the mode of what was opened with `O_PATH`.
    pub(crate) fn seen(seen: OwnedFd, before: Status, bits: u32) -> io::Result<Self> {
        let is_ours = before.uid == rustix::process::geteuid().as_raw();
        if !is_ours || !(before.is_file() || before.is_directory()) {
            return Err(Errno::ACCESS);
        }
        let opened = Self { seen, before };
        opened.set(before.mode | bits)?;
        Ok(opened)
    }

    /// Gives it back the mode that it had.
    pub(crate) fn restore(&self) -> io::Result<()> {
        self.set(self.before.mode)
    }

    fn set(&self, mode: u32) -> io::Result<()> {
        // fchmod(2) refuses O_PATH descriptors; their magic link names the very same inode.
        let path = format!("/proc/self/fd/{}", self.seen.as_raw_fd());
        match chmod(path, Mode::from_raw_mode(mode)) {
            // Without /proc there is no way.
            Err(Errno::NOENT) => Err(Errno::ACCESS),
            answer => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_was_opened_up_can_be_closed_again() {
        let top = tempfile::tempdir().unwrap();
        let closed = top.path().join("closed");
        fs::create_dir(&closed).unwrap();
        let mode = || fs::metadata(&closed).unwrap().permissions().mode() & 0o7777;
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o005)).unwrap();
        let directory = fs::File::open(top.path()).unwrap();
        let opened = OpenedUp::below(&directory, b"closed", 0o700).unwrap();
        assert_eq!((opened.before.mode, mode()), (0o005, 0o705));
        opened.restore().unwrap();
        assert_eq!(mode(), 0o005);

        symlink("closed", top.path().join("link")).unwrap();
        assert!(OpenedUp::below(&directory, b"link", 0o700).is_err());
        assert_eq!(mode(), 0o005);
    }
}
