//! What a destination lies on, as far as writing to it depends on that.
//!
//! In: an open directory. Out: whether syncing means anything there, whether direct IO is worth a
//! try, how space is reserved. Nothing here knows files or transfers.

use std::os::fd::AsFd;

use rustix::fs::fstatfs;
use rustix::io;

/// Kinds of file systems, by what they do with a written byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    /// Memory only: nothing is durable, so nothing is synced.
    Memory,
    /// A server or a user-space process keeps the bytes.
    Remote,
    /// A device of this machine.
    Disk,
}

/// `f_type` of file systems in memory: tmpfs, ramfs.
const IN_MEMORY: &[u32] = &[0x0102_1994, 0x8584_58f6];

/// `f_type` of file systems behind a network or a process: nfs, cifs, smb2, smb, 9p, ceph, fuse
/// (also virtiofs), lustre, gpfs, afs, orangefs, coda, ocfs2, gfs2, vboxsf, beegfs.
const BEHIND_A_SERVER: &[u32] = &[
    0x0000_6969,
    0xff53_4d42,
    0xfe53_4d42,
    0x0000_517b,
    0x0102_1997,
    0x00c3_6400,
    0x6573_5546,
    0x0bd0_0bd0,
    0x4750_4653,
    0x5346_414f,
    0x2003_0528,
    0x7375_7245,
    0x7461_636f,
    0x0116_1970,
    0x786f_4256,
    0x1983_0326,
];

impl Media {
    /// Of the file system that `fd` lies on.
    pub(crate) fn of(fd: impl AsFd) -> io::Result<Self> {
        #[cfg(test)]
        if crate::storage::calls::disk::is_here() {
            return Ok(Self::Disk);
        }
        let told = fstatfs(fd)?;
        // The kernel's magic numbers are 32 bits wide; the field's width and sign vary.
        #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation)]
        let magic = told.f_type as u32;
        Ok(Self::of_magic(magic))
    }

    fn of_magic(magic: u32) -> Self {
        if IN_MEMORY.contains(&magic) {
            Self::Memory
        } else if BEHIND_A_SERVER.contains(&magic) {
            Self::Remote
        } else {
            Self::Disk
        }
    }

    /// Whether a sync makes anything durable.
    pub(crate) fn can_sync(self) -> bool {
        self != Self::Memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart() {
        assert_eq!(Media::of_magic(0x0102_1994), Media::Memory);
        assert_eq!(Media::of_magic(0x6969), Media::Remote);
        assert_eq!(Media::of_magic(0xef53), Media::Disk);
        assert_eq!(
            Media::of(std::fs::File::open("/dev/shm").unwrap()),
            Ok(Media::Memory)
        );
    }
}
