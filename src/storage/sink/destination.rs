//! What the user named as destination, and what each source is called there.
//!
//! In: a path below a root, the rule of placement, what kind of thing a source is. Out: the held
//! directory and the name that it gets. Names of sources come from the command line, never from
//! the sending peer. This is the only place below a destination where a symlink is followed,
//! because the user wrote the path.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::apply::OWNER_ALL;
use super::directory::{Handle, join};
use crate::manifest::Name;
use crate::storage::calls::{fsync, mkdirat};
use crate::storage::error::{ShownPath, StorageError};
use crate::storage::open_up::OpenedUp;
use crate::storage::root::{LastSymlink, Root};
use crate::storage::status::Status;
use crate::wire::FaultCode;
use crate::wire::message::{Placement, RootName};

/// Where a source goes.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) directory: Arc<Handle>,
    /// `None`: the directory itself, its contents are meant.
    pub(crate) name: Option<Name>,
}

/// The destination of one transfer.
#[derive(Debug)]
pub(crate) struct Destination {
    root: Arc<Root>,
    path: Vec<u8>,
    /// Whether a symlink in the destination's place stands for its target.
    last: LastSymlink,
    placement: Placement,
    sync: bool,
    held: Mutex<Held>,
}

/// Directories that were found or made, held until the transfer ends.
#[derive(Debug, Default)]
struct Held {
    itself: Option<Arc<Handle>>,
    parent: Option<Arc<Handle>>,
}

impl Destination {
    pub(crate) fn new(
        root: Arc<Root>,
        mut path: Vec<u8>,
        last: LastSymlink,
        mut placement: Placement,
        sync: bool,
    ) -> Self {
        while path.last() == Some(&b'/') {
            path.pop();
            placement.into_directory = true;
        }
        Self {
            root,
            path,
            last,
            placement,
            sync,
            held: Mutex::default(),
        }
    }

    /// What the `source`-th source becomes.
    pub(crate) fn target(&self, source: u32, is_directory: bool) -> Result<Target, StorageError> {
        let roots = &self.placement.roots;
        let root = self.root_name(source)?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let contents = is_directory && (root.contents || root.name.is_empty());
        let itself = self.itself(&mut held, contents)?;
        if contents {
            return match itself {
                Some(directory) => Ok(Target {
                    directory,
                    name: None,
                }),
                None => self.named(&mut held),
            };
        }
        let inside =
            is_directory || self.placement.into_directory || roots.len() > 1 || itself.is_some();
        if !inside {
            return self.named(&mut held);
        }
        let name = self.checked(&root.name)?;
        let directory = match itself {
            Some(directory) => directory,
            None => self.made(&mut held)?,
        };
        Ok(Target {
            directory,
            name: Some(name),
        })
    }

    /// What the `source`-th source would become: the directory, nothing if that would be made, and the
    /// name in it, nothing if it is the directory itself. Makes and opens up nothing.
    pub(crate) fn survey(
        &self,
        source: u32,
        is_directory: bool,
    ) -> Result<(Option<Arc<Handle>>, Option<Name>), StorageError> {
        let root = self.root_name(source)?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let itself = self.itself(&mut held, false)?;
        let contents = is_directory && (root.contents || root.name.is_empty());
        let inside = is_directory
            || self.placement.into_directory
            || self.placement.roots.len() > 1
            || itself.is_some();
        match itself {
            Some(directory) if contents => Ok((Some(directory), None)),
            Some(directory) => Ok((Some(directory), Some(self.checked(&root.name)?))),
            None if contents || !inside => {
                let (front, name) = split_last(&self.path);
                let name = self.checked(name)?;
                if held.parent.is_none() {
                    held.parent = self.open_if_there(front)?;
                }
                Ok((held.parent.clone(), Some(name)))
            }
            None => {
                let name = self.checked(&root.name)?;
                Ok((self.open_if_there(&self.path)?, Some(name)))
            }
        }
    }

    /// How many sources there are.
    pub(crate) fn sources(&self) -> usize {
        self.placement.roots.len()
    }

    fn root_name(&self, source: u32) -> Result<&RootName, StorageError> {
        let roots = &self.placement.roots;
        let root = usize::try_from(source)
            .ok()
            .and_then(|index| roots.get(index));
        root.ok_or_else(|| {
            let text = format!(
                "the sender told source {source}, but there are {}",
                roots.len()
            );
            StorageError::refused("write to", &*self.path, FaultCode::Protocol, text)
        })
    }

    /// The held directory that a path shown to users lies in, and the rest of the path.
    pub(crate) fn split<'a>(&self, shown: &'a [u8]) -> Option<(Arc<Handle>, &'a [u8])> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = |handle: &Option<Arc<Handle>>| {
            let handle = handle.as_ref()?;
            let rest = shown.strip_prefix(&*handle.path)?;
            let rest = if handle.path.is_empty() {
                rest
            } else {
                rest.strip_prefix(b"/")?
            };
            Some((handle.clone(), rest))
        };
        // The destination itself first: its path may end in a symlink that was followed.
        rest(&held.itself).or_else(|| rest(&held.parent))
    }

    /// The destination, if it is a directory that is there. One that becomes a source's copy
    /// (`contents`) may have got a mode from an earlier run that closes it to its own owner.
    fn itself(&self, held: &mut Held, contents: bool) -> Result<Option<Arc<Handle>>, StorageError> {
        if let Some(handle) = &held.itself {
            return Ok(Some(handle.clone()));
        }
        let found = match self.root.resolve(&self.path, self.last) {
            Ok((seen, status)) if status.is_directory() => match self.open(&self.path) {
                Err(error) if error.errno() == Some(Errno::ACCESS) && contents => {
                    self.open_closed(seen, status).ok_or(error)?
                }
                answer => answer?,
            },
            Ok(_) => return Ok(None),
            Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(in_the_way(error)),
        };
        held.itself = Some(found.clone());
        Ok(Some(found))
    }

    /// The destination is the name: its parent, and its last component.
    fn named(&self, held: &mut Held) -> Result<Target, StorageError> {
        let (front, name) = split_last(&self.path);
        let name = self.checked(name)?;
        if held.parent.is_none() {
            held.parent = Some(self.open_or_make(front)?);
        }
        let directory = held.parent.clone();
        let directory = directory.ok_or_else(|| StorageError::new("open", front, Errno::NOENT))?;
        Ok(Target {
            directory,
            name: Some(name),
        })
    }

    /// The destination as a directory, made if that was asked for.
    fn made(&self, held: &mut Held) -> Result<Arc<Handle>, StorageError> {
        let made = self.open_or_make(&self.path)?;
        held.itself = Some(made.clone());
        Ok(made)
    }

    fn open_or_make(&self, path: &[u8]) -> Result<Arc<Handle>, StorageError> {
        match self.open_if_there(path)? {
            Some(there) => Ok(there),
            None => {
                self.make(path)?;
                self.open(path)
            }
        }
    }

    /// A directory; nothing if it is missing and may be made.
    fn open_if_there(&self, path: &[u8]) -> Result<Option<Arc<Handle>>, StorageError> {
        match self.open(path) {
            Err(error) if error.errno() == Some(Errno::NOENT) && self.placement.make_parents => {
                Ok(None)
            }
            Err(error) if error.errno() == Some(Errno::NOENT) => {
                let what = if path == self.path {
                    "there is no such directory".to_owned()
                } else {
                    format!("there is no directory '{}'", ShownPath(path))
                };
                let text = format!("{what}; make it first, or let --mkpath make it");
                let code = FaultCode::NotFound;
                Err(StorageError::refused("write to", &*self.path, code, text))
            }
            answer => answer.map(Some),
        }
    }

    /// Makes a directory with all its missing parents.
    fn make(&self, path: &[u8]) -> Result<(), StorageError> {
        let ends = path
            .iter()
            .enumerate()
            .filter(|&(_, &byte)| byte == b'/')
            .map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            let (front, last) = split_last(&path[..end]);
            if last.is_empty() {
                continue;
            }
            match self.root.resolve(&path[..end], LastSymlink::Follow) {
                Ok(_) => continue,
                Err(error) if error.errno() == Some(Errno::NOENT) => {}
                Err(error) => return Err(in_the_way(error)),
            }
            let name = self.checked(last)?;
            let above = self.open(front)?;
            let failed = |errno| StorageError::new("make the directory", &path[..end], errno);
            match mkdirat(&*above, name.as_bytes(), Mode::from_raw_mode(0o777)) {
                Err(Errno::EXIST) => {}
                answer => answer.map_err(failed)?,
            }
            if self.sync && above.media.can_sync() {
                fsync(&*above).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn open(&self, path: &[u8]) -> Result<Arc<Handle>, StorageError> {
        let fd = self.root.open_dir(path).map_err(in_the_way)?;
        let (handle, _) = Handle::new(fd, path.into())
            .map_err(|errno| StorageError::new("look at", path, errno))?;
        Ok(Arc::new(handle))
    }

    /// Opens the destination up to us, if it is ours.
    fn open_closed(&self, seen: OwnedFd, before: Status) -> Option<Arc<Handle>> {
        OpenedUp::seen(seen, before, OWNER_ALL).ok()?;
        let fd = self.root.open_dir(&self.path).ok()?;
        let (mut handle, status) = Handle::new(fd, self.path.as_slice().into()).ok()?;
        handle.closed_mode = status.same_file(&before).then_some(before.mode);
        Some(Arc::new(handle))
    }

    fn checked(&self, name: &[u8]) -> Result<Name, StorageError> {
        Name::new(name).map_err(|error| {
            let shown = join(&self.path, name);
            StorageError::refused("write to", shown, FaultCode::Invalid, error.to_string())
        })
    }
}

/// A file where a directory is needed is in the way, not missing.
fn in_the_way(error: StorageError) -> StorageError {
    if error.errno() != Some(Errno::NOTDIR) {
        return error;
    }
    let text = "a directory is needed and something else stands there; remove it or choose another \
                place";
    StorageError::refused("write to", error.path, FaultCode::WrongKind, text)
}

fn split_last(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::identity::Identity;
    use std::fs;

    struct Row {
        destination: &'static [u8],
        sources: &'static [(&'static [u8], bool)],
        make_parents: bool,
        is_directory: bool,
        expected: Result<&'static str, FaultCode>,
    }

    fn resolve(row: &Row) -> Result<String, FaultCode> {
        let outer = tempfile::tempdir().unwrap();
        fs::create_dir(outer.path().join("dir")).unwrap();
        fs::write(outer.path().join("file"), "x").unwrap();
        std::os::unix::fs::symlink("dir", outer.path().join("link")).unwrap();
        std::os::unix::fs::symlink("/etc", outer.path().join("out")).unwrap();
        let root = Arc::new(Root::open(outer.path(), Identity::current()).unwrap());
        let roots = row.sources.iter();
        let roots = roots
            .map(|&(name, contents)| RootName {
                name: name.into(),
                contents,
            })
            .collect();
        let placement = Placement {
            into_directory: false,
            make_parents: row.make_parents,
            roots,
        };
        let destination = Destination::new(
            root,
            row.destination.into(),
            LastSymlink::Follow,
            placement,
            true,
        );
        let target = destination
            .target(0, row.is_directory)
            .map_err(|error| error.code())?;
        let path = match target.name {
            Some(name) => target.directory.shown(&name),
            None => [&*target.directory.path, b"/."].concat(),
        };
        Ok(String::from_utf8(path).unwrap())
    }

    #[test]
    fn sources_are_placed_by_the_rule() {
        const ONE: &[(&[u8], bool)] = &[(b"src", false)];
        const CONTENTS: &[(&[u8], bool)] = &[(b"src", true)];
        const TWO: &[(&[u8], bool)] = &[(b"src", false), (b"other", false)];
        let row = |destination: &'static [u8], sources, make_parents, is_directory, expected| Row {
            destination,
            sources,
            make_parents,
            is_directory,
            expected,
        };
        let table = [
            // A directory always becomes DST/name.
            row(b"dir", ONE, false, true, Ok("dir/src")),
            row(b"new", ONE, false, true, Err(FaultCode::NotFound)),
            row(b"new", ONE, true, true, Ok("new/src")),
            row(b"file", ONE, false, true, Err(FaultCode::WrongKind)),
            row(b"", ONE, false, true, Ok("src")),
            // With a slash its contents go into DST.
            row(b"dir", CONTENTS, false, true, Ok("dir/.")),
            row(b"new", CONTENTS, false, true, Ok("new")),
            row(b"a/new", CONTENTS, false, true, Err(FaultCode::NotFound)),
            row(b"a/new", CONTENTS, true, true, Ok("a/new")),
            row(b"dir", &[(b"", false)], false, true, Ok("dir/.")),
            // A file goes into DST if that is a directory, ends in a slash, or for several sources.
            row(b"dir", ONE, false, false, Ok("dir/src")),
            row(b"link", ONE, false, false, Ok("link/src")),
            row(b"new/", ONE, false, false, Err(FaultCode::NotFound)),
            row(b"new/", ONE, true, false, Ok("new/src")),
            row(b"new", TWO, true, false, Ok("new/src")),
            row(b"new", TWO, false, false, Err(FaultCode::NotFound)),
            row(b"file", TWO, false, false, Err(FaultCode::WrongKind)),
            // Else DST is its name.
            row(b"new", ONE, false, false, Ok("new")),
            row(b"file", ONE, false, false, Ok("file")),
            row(b"dir/new", ONE, false, false, Ok("dir/new")),
            row(b"a/b/new", ONE, false, false, Err(FaultCode::NotFound)),
            row(b"a/b/new", ONE, true, false, Ok("a/b/new")),
            row(b"", ONE, false, false, Ok("src")),
            // Nothing leads outside.
            row(b"..", ONE, false, false, Err(FaultCode::Denied)),
            row(b"out/x", ONE, false, false, Err(FaultCode::Denied)),
            row(
                b"dir",
                &[(b"..", false)],
                false,
                true,
                Err(FaultCode::Invalid),
            ),
            row(
                b"dir",
                &[(b"a/b", false)],
                false,
                true,
                Err(FaultCode::Invalid),
            ),
            row(b"dir", &[], false, true, Err(FaultCode::Protocol)),
        ];
        for case in table {
            assert_eq!(
                resolve(&case),
                case.expected.map(str::to_owned),
                "{:?} {:?} {}",
                case.destination.escape_ascii().to_string(),
                case.sources,
                case.is_directory
            );
        }
    }
}
