//! Finding what copies that died left behind in a tree, and removing what nobody works on.
//!
//! In: a held root, a directory below it, which of it is to go. Out: a [`Listed`] line for each part
//! file (with its journal) and each journal without one, removed or not, and why. Only directories are
//! entered and only names of ours are looked at; whether one may go is `leftover`'s question. A
//! name's destination is known if something in the same directory has the name that it was made from.
//! Nothing here knows peers or rights.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::at::{DIRECTORY_BUFFER_BYTES, read_directory};
use super::directory::Directory;
use super::error::StorageError;
use super::leftover::{Judged, clean_one, now_seconds, sweep_one};
use super::operations::{Output, Tree, kind_of, listed};
use super::part_name::{Hidden, hidden, stem_of};
use super::root::Root;
use super::walk::{Found, OwnFiles, Step};
use crate::ids::EntryId;
use crate::manifest::Name;
use crate::wire::FaultCode;
use crate::wire::message::{Cleaning, LeftBehind, Listed};

/// Names of ours in one directory whose destinations are looked for; those beyond have none.
const DESTINATIONS_MAX: usize = 4096;

/// Removes what copies left in a directory and all below it that is in the same mount. What can't be
/// listed or removed is a line with its fault, and the rest goes on.
///
/// # Errors
/// If it is no directory or can't be listed at all.
pub fn clean(
    root: &Root,
    path: &[u8],
    which: Cleaning,
    dry_run: bool,
    output: &mut Output<'_>,
) -> Result<(), StorageError> {
    let Some(mut tree) = Tree::begin(root, path, OwnFiles::Alone)? else {
        let text = "it is no directory; name the one that was copied into";
        return Err(StorageError::refused(
            "clean",
            path,
            FaultCode::Invalid,
            text,
        ));
    };
    let mut destinations = Destinations::default();
    while let Some(step) = tree.next("clean", path, output.cancelled)? {
        match step {
            Step::Found(found) => match hidden(found.name.as_bytes()) {
                Some(_) if tree.is_too_long(&found) => tree.blame_too_long("clean", &found, output),
                Some(name) => {
                    if let Some(line) =
                        look_at(&tree, &mut destinations, &found, name, which, dry_run)
                    {
                        (output.tell)(line);
                    }
                }
                None if found.status.is_directory() && !found.mount_point => {
                    tree.walk.descend(EntryId(0), &found);
                }
                None => {}
            },
            Step::Trouble(trouble) if trouble.vanished => {}
            Step::Trouble(trouble) => (output.tell)(tree.blamed(trouble)?),
            Step::Left { directory, .. } => tree.left(&directory),
        }
    }
    Ok(())
}

/// A line for a name of ours; none for a journal that is told with its part file, and for what is gone
/// by now.
fn look_at(
    tree: &Tree,
    destinations: &mut Destinations,
    found: &Found,
    name: Hidden,
    which: Cleaning,
    dry_run: bool,
) -> Option<Listed> {
    let blame = |op, error: StorageError| {
        let line = listed(
            found.parent.relative_of(found.name.as_bytes()),
            kind_of(&found.status),
            &found.status,
        );
        let error = StorageError { op, ..error };
        Some(Listed {
            fault: Some(error.fault()),
            ..line
        })
    };
    let path = || found.parent.path_of(found.name.as_bytes());
    let fd = match tree.open.open(&found.parent) {
        Ok(fd) => fd,
        Err(error) => return blame("open", error),
    };
    let (Hidden::Part(stem) | Hidden::Journal(stem)) = name;
    // Before anything is removed: what is told of it is of what was there.
    let destination = destinations.of(&found.parent, &*fd, stem);
    let judged = match clean_one(&fd, name, which, dry_run, now_seconds()) {
        Ok(Some(judged)) => judged,
        Ok(None) => return None,
        Err(errno) => return blame("look at", StorageError::new("look at", path(), errno)),
    };
    let Judged {
        status,
        age_s,
        allocated,
        journal,
        fate,
        why,
        failed,
    } = judged;
    let relative = found.parent.relative_of(found.name.as_bytes());
    Some(Listed {
        fault: failed.map(|errno| StorageError::new("remove", path(), errno).fault()),
        left: Some(LeftBehind {
            destination,
            age_s,
            allocated,
            journal,
            fate,
            why,
        }),
        ..listed(relative, kind_of(&status), &status)
    })
}

/// What the names of ours in one directory were made from.
#[derive(Default)]
struct Destinations {
    /// The directory that was looked at last,
    directory: Option<Arc<Directory>>,
    /// and its names by their stems.
    names: HashMap<u64, Vec<u8>>,
}

impl Destinations {
    /// The name that this stem was made from, if the directory has it; else nothing.
    fn of(&mut self, directory: &Arc<Directory>, fd: impl AsFd, stem: u64) -> Vec<u8> {
        let is_known = |known: &Arc<Directory>| Arc::ptr_eq(known, directory);
        if !self.directory.as_ref().is_some_and(is_known) {
            // It only makes a line clearer.
            self.names = names_by_stem(fd).unwrap_or_default();
            self.directory = Some(Arc::clone(directory));
        }
        self.names.get(&stem).cloned().unwrap_or_default()
    }
}

/// Two passes, so that memory does not grow with the directory.
fn names_by_stem(directory: impl AsFd) -> Result<HashMap<u64, Vec<u8>>, Errno> {
    let mut names = HashMap::new();
    let mut buffer = Box::new_uninit_slice(DIRECTORY_BUFFER_BYTES);
    let mut pass = |each: &mut dyn FnMut(&[u8])| {
        // A descriptor of its own: where a listing stands is kept with it.
        let listed = super::at::open_again(&directory)?;
        read_directory(&listed, &mut buffer, |name: &[u8], _: FileType| {
            each(name);
            Ok::<(), Errno>(())
        })
    };
    pass(&mut |name| {
        if let Some(Hidden::Part(stem) | Hidden::Journal(stem)) = hidden(name)
            && names.len() < DESTINATIONS_MAX
        {
            names.insert(stem, Vec::new());
        }
    })?;
    pass(&mut |bytes| {
        if let Ok(name) = Name::new(bytes)
            && let Some(slot) = names.get_mut(&stem_of(&name))
        {
            *slot = bytes.to_vec();
        }
    })?;
    Ok(names)
}

/// What a sweep of a tree came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Directories that were looked into.
    pub directories: u64,
    /// Names that were removed.
    pub removed: u64,
    /// Directories that can't be listed.
    pub failed: u64,
    /// It was told to stop before it came to the end.
    pub stopped: bool,
}

/// Removes what is stale in a root and all below it that is in the same mount, as a copy into each of
/// its directories would. `go_on` is asked before each directory, and may take its time.
///
/// # Errors
/// If the root can't be listed at all.
pub fn sweep_tree(root: &Root, go_on: &mut dyn FnMut() -> bool) -> Result<Swept, StorageError> {
    let mut swept = Swept::default();
    let Some(mut tree) = Tree::begin(root, b"", OwnFiles::Alone)? else {
        return Ok(swept);
    };
    while let Some(step) = tree.next("sweep", b"", &|| false)? {
        match step {
            Step::Found(found) => match hidden(found.name.as_bytes()) {
                Some(name) => {
                    if let Ok(fd) = tree.open.open(&found.parent) {
                        swept.removed += sweep_one(fd.as_fd(), name);
                    }
                }
                None if found.status.is_directory() && !found.mount_point => {
                    if !go_on() {
                        swept.stopped = true;
                        return Ok(swept);
                    }
                    tree.walk.descend(EntryId(0), &found);
                }
                None => {}
            },
            Step::Trouble(trouble) => swept.failed += u64::from(!trouble.vanished),
            Step::Left { .. } => swept.directories += 1,
        }
    }
    Ok(swept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Identity;
    use crate::storage::part_name::{journal_name, part_name};
    use crate::wire::message::{Fate, Why};
    use std::fs;
    use std::path::Path;

    fn cleaned(top: &Path, which: Cleaning, dry_run: bool) -> Vec<(String, Fate, Why, Vec<u8>)> {
        let root = Root::open(top, Identity::current()).unwrap();
        let mut lines = Vec::new();
        let mut output = Output {
            tell: &mut |line| lines.push(line),
            cancelled: &|| false,
        };
        clean(&root, b"", which, dry_run, &mut output).unwrap();
        let told = lines.into_iter().map(|line| {
            let left = line.left.expect("a line of this kind");
            let path = String::from_utf8(line.path).unwrap();
            (path, left.fate, left.why, left.destination)
        });
        told.collect()
    }

    #[test]
    fn each_is_told_once_with_what_it_is_of_and_only_what_was_asked_for_goes() {
        let top = tempfile::tempdir().unwrap();
        let below = top.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join("big.iso"), "old").unwrap();
        let stem = stem_of(&Name::new(&b"big.iso"[..]).unwrap());
        for name in [part_name(stem), journal_name(stem), part_name(1)] {
            fs::write(below.join(name.as_os_str()), "x").unwrap();
        }
        let path = |name: Name| format!("a/b/{}", name.as_os_str().to_str().unwrap());
        let resumable = |fate, why| (path(part_name(stem)), fate, why, b"big.iso".to_vec());
        let other = |fate| (path(part_name(1)), fate, Why::Abandoned, Vec::new());
        let sorted = |mut lines: Vec<_>| {
            lines.sort_by_key(|(path, ..): &(String, _, _, _)| path.clone());
            lines
        };
        for (which, dry_run, expected) in [
            (
                Cleaning::Stale,
                true,
                vec![resumable(Fate::Kept, Why::Resumable), other(Fate::Would)],
            ),
            (
                Cleaning::OlderThan { age_s: 3600 },
                false,
                vec![
                    resumable(Fate::Kept, Why::Young),
                    (path(part_name(1)), Fate::Kept, Why::Young, Vec::new()),
                ],
            ),
            (
                Cleaning::Stale,
                false,
                vec![resumable(Fate::Kept, Why::Resumable), other(Fate::Removed)],
            ),
            (
                Cleaning::All,
                false,
                vec![resumable(Fate::Removed, Why::Asked)],
            ),
            (Cleaning::All, false, vec![]),
        ] {
            let told = cleaned(top.path(), which, dry_run);
            assert_eq!(sorted(told), sorted(expected), "{which:?} {dry_run}");
        }
        assert_eq!(fs::read_dir(&below).unwrap().count(), 1);
    }

    #[test]
    fn a_sweep_goes_through_the_tree_and_can_be_stopped() {
        let top = tempfile::tempdir().unwrap();
        for (number, below) in ["a", "b", "b/c"].iter().enumerate() {
            let directory = top.path().join(below);
            fs::create_dir_all(&directory).unwrap();
            let name = part_name(number as u64);
            fs::write(directory.join(name.as_os_str()), "x").unwrap();
        }
        let root = Root::open(top.path(), Identity::current()).unwrap();
        let mut asked = 0;
        let stopped = sweep_tree(&root, &mut || {
            asked += 1;
            asked == 1
        });
        let stopped = stopped.unwrap();
        assert!(stopped.stopped && stopped.removed == 1, "{stopped:?}");
        let swept = sweep_tree(&root, &mut || true).unwrap();
        let expected = Swept {
            directories: 4,
            removed: 2,
            failed: 0,
            stopped: false,
        };
        assert_eq!(swept, expected);
    }
}
