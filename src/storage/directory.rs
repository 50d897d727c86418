//! Directories of a walk by handle, and the few of them that are held open.
//!
//! A [`Directory`] knows its name and its parent, so it can be opened again from the walk's root at
//! any time, without following a symlink; it lives for as long as anything remembers a file in it.
//! [`OpenDirectories`] keeps the most recently used descriptors, so that a run of files in one
//! directory costs one open, and a deep tree does not cost a descriptor per level. How many those
//! are depends on what the process has to spare.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::at::open_directory_below;
use super::descriptors::{Budget, DIRECTORIES_OPEN_MIN, Share};
use super::error::StorageError;
use super::root::Root;
use crate::ids::EntryId;
use crate::limits::{DIRECTORIES_OPEN_MAX, PATH_BYTES_MAX};
use crate::manifest::Name;

/// A directory of a walk.
#[derive(Debug)]
pub(super) struct Directory {
    /// Its entry.
    pub(super) id: EntryId,
    /// Directories between it and the walk's root.
    pub(super) depth: usize,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Base { root: Arc<Root>, path: Vec<u8> },
    Held { fd: Arc<OwnedFd>, path: Vec<u8> },
    In { parent: Arc<Directory>, name: Name },
}

impl Directory {
    /// The directory where a walk begins; it is found again by its path, so that many sources don't
    /// hold a descriptor each.
    pub(super) fn base(id: EntryId, root: Arc<Root>, path: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            id,
            depth: 0,
            place: Place::Base { root, path },
        })
    }

    /// The directory where a walk begins, held open: names are removed from no other.
    pub(super) fn held(id: EntryId, fd: OwnedFd, path: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            id,
            depth: 0,
            place: Place::Held {
                fd: Arc::new(fd),
                path,
            },
        })
    }

    /// One in another.
    pub(super) fn child(id: EntryId, parent: &Arc<Self>, name: Name) -> Arc<Self> {
        let depth = parent.depth + 1;
        Arc::new(Self {
            id,
            depth,
            place: Place::In {
                parent: Arc::clone(parent),
                name,
            },
        })
    }

    /// Where it hangs; `None` for the walk's base.
    pub(super) fn parent(&self) -> Option<(&Arc<Self>, &Name)> {
        match &self.place {
            Place::Base { .. } | Place::Held { .. } => None,
            Place::In { parent, name } => Some((parent, name)),
        }
    }

    /// Its path below the export, as the user knows it.
    pub(super) fn path(&self) -> Vec<u8> {
        let (base, mut path) = self.base_and_names();
        let separates = !base.is_empty() && !base.ends_with(b"/") && !path.is_empty();
        let slash: &[u8] = if separates { b"/" } else { b"" };
        path.splice(..0, base.iter().chain(slash).copied());
        path
    }

    /// The path of a name in it.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        join(self.path(), name)
    }

    /// Its path below the walk's base.
    pub(super) fn relative(&self) -> Vec<u8> {
        self.base_and_names().1
    }

    /// The path of a name in it below the walk's base.
    pub(super) fn relative_of(&self, name: &[u8]) -> Vec<u8> {
        join(self.relative(), name)
    }

    fn base_and_names(&self) -> (&[u8], Vec<u8>) {
        let mut names = Vec::with_capacity(self.depth);
        let mut at = self;
        let base = loop {
            match &at.place {
                Place::Base { path, .. } | Place::Held { path, .. } => break path,
                Place::In { parent, name } => {
                    names.push(name.as_bytes());
                    at = parent;
                }
            }
        };
        names.reverse();
        (base, names.join(&b'/'))
    }
}

fn join(mut path: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The directories that are held open, most recently used first.
#[derive(Debug)]
pub(super) struct OpenDirectories {
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    open: Vec<(Arc<Directory>, Arc<OwnedFd>)>,
    share: Share,
}

impl Default for OpenDirectories {
    fn default() -> Self {
        Self::within(&Budget::of_process())
    }
}

impl OpenDirectories {
    /// Holds few, and more as the budget allows.
    pub(super) fn within(budget: &Budget) -> Self {
        Self {
            held: Mutex::new(Held {
                open: Vec::new(),
                share: budget.account().share(DIRECTORIES_OPEN_MIN),
            }),
        }
    }

    /// A descriptor of the directory for listing it and opening names in it.
    pub(super) fn open(&self, directory: &Arc<Directory>) -> Result<Arc<OwnedFd>, StorageError> {
        if let Some(held) = self.held(directory) {
            return Ok(held);
        }
        let opened = Arc::new(self.reopen(directory)?);
        let mut held = self.lock();
        let wanted = (held.open.len() + 1).min(DIRECTORIES_OPEN_MAX);
        let kept = held.share.fit(wanted);
        held.open.truncate(kept.saturating_sub(1));
        held.open
            .insert(0, (Arc::clone(directory), Arc::clone(&opened)));
        Ok(opened)
    }

    fn held(&self, directory: &Arc<Directory>) -> Option<Arc<OwnedFd>> {
        let open = &mut self.lock().open;
        let at = open
            .iter()
            .position(|(held, _)| Arc::ptr_eq(held, directory))?;
        open[..=at].rotate_right(1);
        Some(Arc::clone(&open[0].1))
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens from the nearest ancestor that is held open, in as few steps as the longest path that
    /// the kernel takes allows.
    fn reopen(&self, directory: &Arc<Directory>) -> Result<OwnedFd, StorageError> {
        let mut names = Vec::new();
        let mut at = directory;
        let mut from = loop {
            match &at.place {
                Place::Base { root, path } => break Arc::new(root.open_dir(path)?),
                Place::Held { fd, .. } => break Arc::clone(fd),
                Place::In { parent, name } => {
                    names.push(name.as_bytes());
                    at = parent;
                }
            }
            if let Some(held) = self.held(at) {
                break held;
            }
        };
        while !names.is_empty() {
            let mut path = Vec::new();
            while let Some(name) = names.last()
                && path.len() + 1 + name.len() <= PATH_BYTES_MAX
            {
                path = join(path, name);
                names.pop();
            }
            let opened = open_directory_below(&from, &path)
                .map_err(|errno| StorageError::new("open", directory.path(), errno))?;
            from = Arc::new(opened);
        }
        // Shared only if it is the walk's held base itself, without a step from it.
        match Arc::try_unwrap(from) {
            Ok(opened) => Ok(opened),
            Err(shared) => shared
                .try_clone()
                .map_err(|error| StorageError::new("open", directory.path(), error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_budget_leaves_a_few_directories_open() {
        let temporary = tempfile::tempdir().unwrap();
        let fd = OwnedFd::from(std::fs::File::open(temporary.path()).unwrap());
        let mut chain = vec![Directory::held(EntryId(0), fd, Vec::new())];
        let mut path = temporary.path().to_owned();
        for level in 1..=60 {
            path.push("d");
            std::fs::create_dir(&path).unwrap();
            let name = Name::new(&b"d"[..]).unwrap();
            let child = Directory::child(EntryId(level), &chain[chain.len() - 1], name);
            chain.push(child);
        }
        let budget = Budget::new(50);
        let rich = OpenDirectories::within(&budget);
        let poor = OpenDirectories::within(&budget);
        for open in [&rich, &poor] {
            for directory in chain.iter().chain(chain.iter().rev()) {
                open.open(directory).unwrap();
            }
        }
        let (rich_len, poor_len) = (rich.lock().open.len(), poor.lock().open.len());
        assert!(
            rich_len > poor_len && rich_len < DIRECTORIES_OPEN_MAX,
            "{rich_len}"
        );
        // What the first left is enough for a few more than everyone has.
        assert!(poor_len > DIRECTORIES_OPEN_MIN, "{poor_len}");
        let beyond = rich_len + poor_len - 2 * DIRECTORIES_OPEN_MIN;
        assert_eq!(budget.left(), 50 - i64::try_from(beyond).unwrap());
        drop((rich, poor));
        assert_eq!(budget.left(), 50);
    }
}
