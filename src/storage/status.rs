//! What `statx(2)` tells of a file, in our own types.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, statx};
use rustix::io;

use crate::manifest::{Metadata, Name};
use crate::units::Timestamp;

/// Type, size, owner, times and place of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Regular file, directory, symlink or something special.
    pub kind: FileType,
    /// Permission, set-id and sticky bits: mode & 0o7777.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub len: u64,
    /// Bytes that it takes on disk, as far as the file system counts.
    pub allocated: u64,
    /// Number of hard links.
    pub links: u32,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or metadata.
    pub ctime: Timestamp,
    /// Birth; zero where the file system does not keep it.
    pub btime: Timestamp,
    /// Number within the file system.
    pub inode: u64,
    /// The file system (`st_dev`).
    pub device: u64,
    /// The mount it was reached through; `None` before Linux 5.8.
    pub mount: Option<u64>,
}

impl Status {
    /// Of an open file, also one opened with `O_PATH`.
    pub fn of(fd: impl AsFd) -> io::Result<Self> {
        statx(
            fd,
            c"",
            AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT,
            wanted(),
        )
        .map(|raw| (&raw).into())
    }

    /// Of what has this name in the directory; a symlink is not followed, nothing is mounted.
    pub fn at(directory: impl AsFd, name: &Name) -> io::Result<Self> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        statx(directory, name.as_bytes(), flags, wanted()).map(|raw| (&raw).into())
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind == FileType::Symlink
    }

    /// Whether both are the same inode.
    pub fn same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether nothing that a version is made of differs.
    pub fn same_content(&self, other: &Self) -> bool {
        let facts = |status: &Self| (status.len, status.mtime, status.ctime, status.inode);
        facts(self) == facts(other) && self.btime == other.btime
    }

    /// Whether both are in the same mount; by file system where mounts can't be told apart.
    pub fn same_mount(&self, other: &Self) -> bool {
        match (self.mount, other.mount) {
            (Some(one), Some(two)) => one == two,
            _ => self.device == other.device,
        }
    }

    /// What of it a manifest tells, without extended attributes.
    pub fn metadata(&self) -> Metadata {
        Metadata {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            mtime: self.mtime,
            xattrs: Vec::new(),
        }
    }
}

fn wanted() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID
}

impl From<&Statx> for Status {
    fn from(raw: &Statx) -> Self {
        let told = StatxFlags::from_bits_retain(raw.stx_mask);
        let device = (u64::from(raw.stx_dev_major) << 32) | u64::from(raw.stx_dev_minor);
        let btime = if told.contains(StatxFlags::BTIME) {
            timestamp(raw.stx_btime.tv_sec, raw.stx_btime.tv_nsec)
        } else {
            Timestamp::default()
        };
        Self {
            kind: FileType::from_raw_mode(u32::from(raw.stx_mode)),
            mode: u32::from(raw.stx_mode) & 0o7777,
            uid: raw.stx_uid,
            gid: raw.stx_gid,
            len: raw.stx_size,
            allocated: raw.stx_blocks.saturating_mul(512),
            links: raw.stx_nlink,
            mtime: timestamp(raw.stx_mtime.tv_sec, raw.stx_mtime.tv_nsec),
            ctime: timestamp(raw.stx_ctime.tv_sec, raw.stx_ctime.tv_nsec),
            btime,
            inode: raw.stx_ino,
            device,
            mount: told.contains(StatxFlags::MNT_ID).then_some(raw.stx_mnt_id),
        }
    }
}

fn timestamp(seconds: i64, nanoseconds: u32) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds,
    }
}
