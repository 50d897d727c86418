//! Whether the way to a file leads through a directory.
//!
//! In: two paths of this host. Out: yes, if whoever has the directory could read the file, or put another in
//! its place: because the file lies below it, because a link on the way does, or because a file system that
//! is mounted below it shows the file a second time. Only the present state is looked at. Nothing here knows
//! exports or whose the file is.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Links that are followed in a row, as the kernel does (path_resolution(7)).
const LINKS_FOLLOWED_MAX: usize = 40;

/// A directory, wherever it is seen: its file system and its number there.
type Place = (u64, u64);

/// Whether the way to `path` leads through `directory`. What of the path is not there yet does not count.
///
/// # Errors
/// What looking at either says.
pub(crate) fn leads_through(directory: &Path, path: &Path) -> io::Result<bool> {
    let places = shown_by(directory)?;
    let mut left: VecDeque<OsString> = parts(&std::path::absolute(path)?);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = left.pop_front() {
        if is_in(&places, &at)? {
            return Ok(true);
        }
        if part == ".." {
            // No link is left in it.
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let seen = match next.symlink_metadata() {
            // Nothing is there, or a file stands in the way of all that is left.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(false);
            }
            seen => seen?,
        };
        if !seen.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        if links > LINKS_FOLLOWED_MAX {
            return Err(rustix::io::Errno::LOOP.into());
        }
        let target = fs::read_link(&next)?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        for part in parts(&target).into_iter().rev() {
            left.push_front(part);
        }
    }
    is_in(&places, &at)
}

/// The names on a way, `..` among them.
fn parts(path: &Path) -> VecDeque<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

fn place(path: &Path) -> io::Result<Place> {
    path.metadata().map(|seen| (seen.dev(), seen.ino()))
}

/// The directory, and what is mounted below it.
fn shown_by(directory: &Path) -> io::Result<HashSet<Place>> {
    let top = directory.canonicalize()?;
    let mut places = HashSet::from([place(&top)?]);
    let mounts = fs::read("/proc/self/mountinfo")?;
    let below = mount_points(&mounts).filter(|point| point.starts_with(&top));
    // One that can't be looked at shows nothing either.
    places.extend(below.filter_map(|point| place(&point).ok()));
    Ok(places)
}

/// The fifth field of each line, in which some bytes are written as octal numbers (proc_pid_mountinfo(5)).
fn mount_points(mounts: &[u8]) -> impl Iterator<Item = PathBuf> {
    let lines = mounts.split(|&byte| byte == b'\n');
    let fields = lines.filter_map(|line| line.split(|&byte| byte == b' ').nth(4));
    fields.map(|field| PathBuf::from(OsString::from_vec(unescaped(field))))
}

fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, more @ ..] = rest {
        let number = more.get(..3).filter(|_| *first == b'\\');
        let number = number.and_then(|digits| std::str::from_utf8(digits).ok());
        match number.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[3..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    bytes
}

/// Whether a directory without links in its path is one of these, or below one.
fn is_in(places: &HashSet<Place>, path: &Path) -> io::Result<bool> {
    for above in path.ancestors() {
        if places.contains(&place(above)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn every_link_on_the_way_counts() {
        let top = tempfile::tempdir().unwrap();
        let at = |path: &str| top.path().join(path);
        for directory in ["shared/inner", "own", "etc"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        fs::write(at("own/keys"), "").unwrap();
        // A chain whose middle can be turned elsewhere, and whose ends can not.
        symlink(at("own/keys"), at("shared/middle")).unwrap();
        symlink("../shared/middle", at("etc/keys")).unwrap();
        symlink("own", at("alias")).unwrap();
        symlink("round", at("round")).unwrap();
        let through = |path: &str| leads_through(&at("shared"), &at(path)).unwrap();
        for held in [
            "shared",
            "shared/inner",
            "shared/later/state",
            "etc/keys",
            "own/../shared/x",
        ] {
            assert!(through(held), "{held}");
        }
        for free in [
            "own/keys",
            "own/keys/state",
            "alias/keys",
            "etc",
            "later/state",
            "sharedness",
        ] {
            assert!(!through(free), "{free}");
        }
        assert!(leads_through(&at("shared"), &at("round/x")).is_err());
        assert!(leads_through(Path::new("/"), &at("own")).unwrap());
    }

    #[test]
    fn mount_points_are_read_with_any_byte() {
        let mounts =
            b"36 35 98:0 / /mnt/a\\040b\\134c rw - ext3 /dev/root rw\n37 35 98:0 / /x rw\n\n";
        let points: Vec<_> = mount_points(mounts).collect();
        let odd = Path::new(OsStr::from_bytes(b"/mnt/a b\\c"));
        assert_eq!(points, [odd, Path::new("/x")]);
    }
}
