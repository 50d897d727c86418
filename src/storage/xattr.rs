//! Reading the extended attributes that are carried: `user.*` and POSIX ACLs.
//!
//! Attributes of a name in a directory are reached as `/proc/self/fd/N/name`, the only way that
//! neither follows a symlink nor opens the file; so they need a mounted /proc.

use std::ffi::CString;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{fgetxattr, flistxattr, lgetxattr, llistxattr};
use rustix::io::{self, Errno};

use crate::limits::{XATTR_BYTES_MAX, XATTRS_MAX};
use crate::manifest::Name;

/// Longest list of attribute names that the kernel tells (`XATTR_LIST_MAX`).
const LIST_BYTES_MAX: usize = 64 << 10;

/// A list that fits here needs no memory of its own; nearly all do.
const SHORT_LIST_BYTES: usize = 1 << 10;

/// Names with raw values.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Why attributes were not read.
#[derive(Debug, thiserror::Error)]
pub enum XattrError {
    /// The kernel said no.
    #[error(transparent)]
    Io(#[from] Errno),
    /// More than is carried.
    #[error(
        "more than {XATTRS_MAX} extended attributes or {XATTR_BYTES_MAX} bytes of them; \
         they were left out"
    )]
    TooMany,
}

/// Whether an attribute of this name is carried.
pub fn is_carried(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        || matches!(
            name,
            b"system.posix_acl_access" | b"system.posix_acl_default"
        )
}

/// What a file's mode says without its access list: the group's own permissions, as far as the mask
/// allows them, in place of the mask. A value that is no list changes nothing.
pub fn mode_without_list(mode: u32, list: &[u8]) -> u32 {
    const VERSION: [u8; 4] = 2_u32.to_le_bytes();
    const GROUP_OBJECT: u16 = 0x04;
    const MASK: u16 = 0x10;
    // Entries are a tag, permissions and an id, all little-endian (acl(5), linux/posix_acl_xattr.h).
    let Some(entries) = list.strip_prefix(&VERSION) else {
        return mode;
    };
    let permissions = |wanted: u16| {
        entries.chunks_exact(8).find_map(|entry| {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            let granted = u16::from_le_bytes([entry[2], entry[3]]);
            (tag == wanted).then_some(u32::from(granted) & 0o7)
        })
    };
    match permissions(GROUP_OBJECT) {
        Some(group) => {
            let group = group & permissions(MASK).unwrap_or(0o7);
            (mode & !0o070) | (group << 3)
        }
        None => mode,
    }
}

/// The carried attributes of an open file or directory (not `O_PATH`).
pub fn read_open(file: impl AsFd) -> Result<Xattrs, XattrError> {
    let file = file.as_fd();
    read(
        |buffer| flistxattr(file, buffer),
        |name, buffer| fgetxattr(file, name, buffer),
    )
}

/// The carried attributes of what has this name in the directory; a symlink is not followed.
pub fn read_at(directory: impl AsFd, name: &Name) -> Result<Xattrs, XattrError> {
    let mut path = Vec::with_capacity(32 + name.as_bytes().len());
    // Writing into a Vec can't fail.
    let _ = write!(path, "/proc/self/fd/{}/", directory.as_fd().as_raw_fd());
    path.extend_from_slice(name.as_bytes());
    let Ok(path) = CString::new(path) else {
        return Err(Errno::INVAL.into());
    };
    let path = path.as_c_str();
    read(
        |buffer| llistxattr(path, buffer),
        |name, buffer| lgetxattr(path, name, buffer),
    )
}

/// Whether [`read_at`] can work on this machine.
pub fn reachable() -> bool {
    std::fs::symlink_metadata("/proc/self/fd").is_ok()
}

fn read(
    list: impl Fn(&mut [u8]) -> io::Result<usize>,
    get: impl Fn(&[u8], &mut [u8]) -> io::Result<usize>,
) -> Result<Xattrs, XattrError> {
    let mut short = [0; SHORT_LIST_BYTES];
    match list(&mut short) {
        Ok(len) => read_values(&short[..len], get),
        Err(Errno::RANGE) => {
            let mut long = vec![0; LIST_BYTES_MAX];
            let len = list(&mut long)?;
            read_values(&long[..len], get)
        }
        Err(Errno::NOTSUP) => Ok(Xattrs::new()),
        Err(errno) => Err(errno.into()),
    }
}

fn read_values(
    names: &[u8],
    get: impl Fn(&[u8], &mut [u8]) -> io::Result<usize>,
) -> Result<Xattrs, XattrError> {
    let mut carried = Xattrs::new();
    let mut room = XATTR_BYTES_MAX;
    for name in names
        .split(|&byte| byte == 0)
        .filter(|name| is_carried(name))
    {
        room = room.checked_sub(name.len()).ok_or(XattrError::TooMany)?;
        let mut value = vec![0; room];
        match get(name, &mut value) {
            Ok(len) => value.truncate(len),
            // Removed since it was listed.
            Err(Errno::NODATA) => continue,
            Err(Errno::RANGE) => return Err(XattrError::TooMany),
            Err(errno) => return Err(errno.into()),
        }
        if carried.len() == XATTRS_MAX {
            return Err(XattrError::TooMany);
        }
        room -= value.len();
        value.shrink_to_fit();
        carried.push((name.to_vec(), value));
    }
    carried.sort_unstable();
    Ok(carried)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_gets_its_own_permissions_where_the_list_is_lost() {
        let list = |entries: &[(u16, u16, u32)]| {
            let mut value = 2_u32.to_le_bytes().to_vec();
            for (tag, permissions, id) in entries {
                value.extend(tag.to_le_bytes());
                value.extend(permissions.to_le_bytes());
                value.extend(id.to_le_bytes());
            }
            value
        };
        let none = u32::MAX;
        // user::rw-, user:1000:rwx, group::r--, mask::rwx, other::---
        let full = list(&[
            (1, 6, none),
            (2, 7, 1000),
            (4, 4, none),
            (16, 7, none),
            (32, 0, none),
        ]);
        assert_eq!(mode_without_list(0o670, &full), 0o640);
        let masked = list(&[
            (1, 6, none),
            (2, 7, 1000),
            (4, 6, none),
            (16, 4, none),
            (32, 0, none),
        ]);
        assert_eq!(mode_without_list(0o1640, &masked), 0o1640);
        let plain = list(&[(1, 6, none), (4, 5, none), (32, 0, none)]);
        assert_eq!(mode_without_list(0o650, &plain), 0o650);
        for broken in [
            &b""[..],
            b"\x02\0\0\0",
            b"\x03\0\0\0\x04\0\0\0\0\0\0\0",
            &full[..9],
        ] {
            assert_eq!(mode_without_list(0o670, broken), 0o670);
        }
    }
}
