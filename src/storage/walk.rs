//! A tree, one step at a time: depth first, byte-sorted within a directory.
//!
//! In: a directory and, for each directory found, whether to descend. Out: [`Step`]s. Memory is
//! flat: only the names of the directories on the way are held, and those in bounded memory.
//! Nothing follows a symlink and nothing enters another mount. The walk looks at each name once and
//! opens directories only; it does not know what its steps are used for.

use std::mem::MaybeUninit;
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::at::{DIRECTORY_BUFFER_BYTES, read_directory};
use super::directory::{Directory, OpenDirectories};
use super::error::StorageError;
use super::names::{NameSorter, SortedNames};
use super::part_name::is_part_name;
use super::status::Status;
use crate::ids::EntryId;
use crate::limits::DEPTH_MAX;
use crate::manifest::Name;
use crate::wire::FaultCode;

/// Least memory for the names of one directory, however much the outer ones hold.
const NAMES_BYTES_MIN: usize = 64 << 10;

/// What a walk comes across.
#[derive(Debug)]
pub(super) enum Step {
    /// Something with a name. To go into a directory, [`Walk::descend`] before the next step.
    Found(Found),
    /// Nothing more comes of this directory.
    Left {
        directory: Arc<Directory>,
        complete: bool,
    },
    /// A name that can't be looked at, or a directory that can't be listed (any more).
    Trouble(Trouble),
}

/// Something with a name.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) parent: Arc<Directory>,
    pub(super) name: Name,
    pub(super) status: Status,
    /// Another mount begins here; the walk does not enter it.
    pub(super) mount_point: bool,
}

/// What went wrong where.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) at: TroubleAt,
    pub(super) error: StorageError,
    /// It only vanished while it was walked.
    pub(super) vanished: bool,
}

/// Where something went wrong.
#[derive(Debug)]
pub(super) enum TroubleAt {
    /// At this name.
    Name(Arc<Directory>, Name),
    /// In the listing of this directory.
    Directory(Arc<Directory>),
}

/// Which of our own files in the making a walk shows. A user's file that is only called like one is
/// content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnFiles {
    /// None: they are not content.
    Hidden,
    /// All: to remove a tree is to remove them.
    Shown,
    /// These, the directories, and nothing else: other files are not even looked at.
    Alone,
}

/// The state of a walk.
pub(super) struct Walk {
    base: Status,
    stack: Vec<Frame>,
    /// Listed at the next step.
    entering: Option<Arc<Directory>>,
    own_files: OwnFiles,
    names_bytes_max: usize,
    buffer: Box<[MaybeUninit<u8>]>,
}

struct Frame {
    directory: Arc<Directory>,
    names: SortedNames,
    complete: bool,
}

impl Walk {
    /// A walk of all below `base`, which has this status.
    pub(super) fn new(
        base: Arc<Directory>,
        status: Status,
        own_files: OwnFiles,
        names_bytes_max: usize,
    ) -> Self {
        Self {
            base: status,
            stack: Vec::new(),
            entering: Some(base),
            own_files,
            names_bytes_max,
            buffer: Box::new_uninit_slice(DIRECTORY_BUFFER_BYTES),
        }
    }

    /// Goes into a directory that the last step found.
    pub(super) fn descend(&mut self, id: EntryId, found: &Found) {
        self.entering = Some(Directory::child(id, &found.parent, found.name.clone()));
    }

    /// The next step; `None` when all was told.
    pub(super) fn next(&mut self, open: &OpenDirectories) -> Option<Step> {
        if let Some(directory) = self.entering.take()
            && let Some(trouble) = self.enter(directory, open)
        {
            return Some(Step::Trouble(trouble));
        }
        loop {
            let frame = self.stack.last_mut()?;
            match frame.names.next() {
                Ok(Some(name)) => {
                    if let Some(step) = self.look_at(name, open) {
                        return Some(step);
                    }
                }
                Ok(None) => {
                    let frame = self.stack.pop()?;
                    let Frame {
                        directory,
                        complete,
                        ..
                    } = frame;
                    return Some(Step::Left {
                        directory,
                        complete,
                    });
                }
                Err(error) => {
                    let directory = Arc::clone(&frame.directory);
                    let error = StorageError::new("sort the names of", directory.path(), error);
                    return Some(Step::Trouble(self.give_up(directory, error)));
                }
            }
        }
    }

    /// Lists a directory. Whatever was listed before an error is walked all the same.
    fn enter(&mut self, directory: Arc<Directory>, open: &OpenDirectories) -> Option<Trouble> {
        let held: usize = self
            .stack
            .iter()
            .map(|frame| frame.names.held_bytes())
            .sum();
        // Half of what is left: what lies deeper needs some too.
        let share = (self.names_bytes_max.saturating_sub(held) / 2).max(NAMES_BYTES_MIN);
        let mut sorter = NameSorter::new(share.min(self.names_bytes_max));
        let listed = self.list(&directory, open, &mut sorter);
        let sorted = sorter.finish();
        let (names, error) = match (sorted, listed) {
            (Ok(names), listed) => (names, listed.err()),
            (Err(error), _) => {
                let error = StorageError::new("sort the names of", directory.path(), error);
                (SortedNames::default(), Some(error))
            }
        };
        let complete = error.is_none();
        self.stack.push(Frame {
            directory: Arc::clone(&directory),
            names,
            complete,
        });
        error.map(|error| Trouble {
            vanished: false,
            at: TroubleAt::Directory(directory),
            error,
        })
    }

    fn list(
        &mut self,
        directory: &Arc<Directory>,
        open: &OpenDirectories,
        sorter: &mut NameSorter,
    ) -> Result<(), StorageError> {
        if directory.depth > DEPTH_MAX {
            let text = format!("directories are nested more than {DEPTH_MAX} deep");
            let code = FaultCode::Storage;
            return Err(StorageError::refused("list", directory.path(), code, text));
        }
        let fd = open.open(directory)?;
        let own_files = self.own_files;
        read_directory(&fd, &mut self.buffer, |name: &[u8], kind: FileType| {
            let shown = match own_files {
                OwnFiles::Hidden => !is_part_name(name),
                OwnFiles::Shown => true,
                OwnFiles::Alone => {
                    matches!(kind, FileType::Directory | FileType::Unknown) || is_part_name(name)
                }
            };
            match shown {
                true => sorter.push(name),
                false => Ok(()),
            }
        })
        .map_err(|error| StorageError::new("list", directory.path(), error))
    }

    fn look_at(&mut self, name: Vec<u8>, open: &OpenDirectories) -> Option<Step> {
        let frame = self.stack.last()?;
        let parent = Arc::clone(&frame.directory);
        let name = match Name::new(name) {
            Ok(name) => name,
            Err(error) => {
                let code = FaultCode::Storage;
                let error = StorageError::refused("list", parent.path(), code, error.to_string());
                return Some(Step::Trouble(self.blemish(parent, error)));
            }
        };
        let fd = match open.open(&parent) {
            Ok(fd) => fd,
            Err(error) => return Some(Step::Trouble(self.give_up(parent, error))),
        };
        match Status::at(&fd, &name) {
            Ok(status) => {
                let mount_point = !status.same_mount(&self.base);
                Some(Step::Found(Found {
                    parent,
                    name,
                    status,
                    mount_point,
                }))
            }
            Err(errno) => {
                let error = StorageError::new("look at", parent.path_of(name.as_bytes()), errno);
                let vanished = errno == Errno::NOENT;
                Some(Step::Trouble(Trouble {
                    at: TroubleAt::Name(parent, name),
                    error,
                    vanished,
                }))
            }
        }
    }

    /// The innermost directory is not complete, but goes on.
    fn blemish(&mut self, directory: Arc<Directory>, error: StorageError) -> Trouble {
        if let Some(frame) = self.stack.last_mut() {
            frame.complete = false;
        }
        Trouble {
            at: TroubleAt::Directory(directory),
            error,
            vanished: false,
        }
    }

    /// Nothing more can be told of the innermost directory.
    fn give_up(&mut self, directory: Arc<Directory>, error: StorageError) -> Trouble {
        if let Some(frame) = self.stack.last_mut() {
            frame.names = SortedNames::default();
        }
        self.blemish(directory, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::identity::Identity;
    use crate::storage::part_name::part_name;
    use crate::storage::root::Root;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    /// Paths in the order of the walk; a directory's end is its path with "/." behind it.
    fn walked(path: &Path, names_bytes_max: usize) -> (Vec<Vec<u8>>, Vec<Trouble>) {
        let root = Arc::new(Root::open(path, Identity::current()).unwrap());
        let status = root.stat(b"").unwrap();
        let base = Directory::base(EntryId(0), root, Vec::new());
        let open = OpenDirectories::default();
        let mut walk = Walk::new(base, status, OwnFiles::Hidden, names_bytes_max);
        let (mut paths, mut troubles) = (Vec::new(), Vec::new());
        while let Some(step) = walk.next(&open) {
            match step {
                Step::Found(found) => {
                    paths.push(found.parent.path_of(found.name.as_bytes()));
                    if found.status.is_directory() {
                        walk.descend(EntryId(1), &found);
                    }
                }
                Step::Left { directory, .. } => paths.push(directory.path_of(b".")),
                Step::Trouble(trouble) => troubles.push(trouble),
            }
        }
        (paths, troubles)
    }

    #[test]
    fn names_come_depth_first_in_byte_order() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir_all(top.path().join("b/d")).unwrap();
        let ours = part_name(1);
        for name in [
            &b"b/d/x"[..],
            b"b/a",
            b"a\nb",
            b"\xff\xfe",
            b"-rf",
            ours.as_bytes(),
        ] {
            fs::write(top.path().join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
        }
        let (paths, troubles) = walked(top.path(), 1 << 20);
        assert!(troubles.is_empty());
        let expected: [&[u8]; 9] = [
            b"-rf",
            b"a\nb",
            b"b",
            b"b/a",
            b"b/d",
            b"b/d/x",
            b"b/d/.",
            b"b/.",
            b"\xff\xfe",
        ];
        assert_eq!(paths[..9], expected);
        assert_eq!(paths[9..], [b"."]);
    }

    #[test]
    fn huge_directories_are_sorted_on_disk() {
        let top = tempfile::tempdir().unwrap();
        for i in 0..5000 {
            fs::write(top.path().join(format!("file-{}", i * 7919 % 5000)), "").unwrap();
        }
        let (paths, troubles) = walked(top.path(), 2000);
        assert!(troubles.is_empty());
        assert_eq!(paths.len(), 5001);
        assert!(paths[..5000].is_sorted());
    }

    #[test]
    fn trees_deeper_than_the_open_directories_and_the_longest_path_are_walked() {
        let top = tempfile::tempdir().unwrap();
        let name = Name::new("n".repeat(60).into_bytes()).unwrap();
        let mut at: std::os::fd::OwnedFd = fs::File::open(top.path()).unwrap().into();
        for _ in 0..DEPTH_MAX + 1 {
            rustix::fs::mkdirat(&at, name.as_bytes(), rustix::fs::Mode::RWXU).unwrap();
            at = crate::storage::at::open_directory(&at, &name).unwrap();
        }
        let (paths, troubles) = walked(top.path(), 1 << 20);
        assert_eq!(paths.len(), 2 * (DEPTH_MAX + 1) + 1);
        assert_eq!(troubles.len(), 1);
        assert!(troubles[0].error.fault().text.contains("1024 deep"));
    }
}
