//! Directories of a destination: open ones, and what is owed to each.
//!
//! In: names below held directories, counts of entries. Out: open directories by entry, never
//! through a symlink and never another directory than the one that was placed, and the news that
//! all below a directory is settled. Memory follows the directories that are still open or have
//! unsettled entries, descriptors a limit and what the process has to spare: the least recently used
//! ones are closed and opened again by name. Nothing here decides what becomes of an entry.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use rustix::fs::{Mode, OFlags, ResolveFlags, fgetxattr_query};
use rustix::io::{self, Errno};

use super::media::Media;
use crate::ids::EntryId;
use crate::manifest::{Metadata, Name};
use crate::storage::at::open2;
use crate::storage::descriptors::{Account, DIRECTORIES_OPEN_MIN, Share};
use crate::storage::root::refuse_kernel_file_systems;
use crate::storage::status::Status;
use crate::wire::FaultCode;

/// An open directory. Jobs keep it open for as long as they need it.
#[derive(Debug)]
pub(crate) struct Handle {
    fd: OwnedFd,
    /// Where it is, relative to the root and as the user may see it.
    pub(crate) path: Arc<[u8]>,
    /// Its file system and number.
    pub(crate) inode: (u64, u64),
    /// What it lies on.
    pub(crate) media: Media,
    /// The mode that it had before it was opened up to this run.
    pub(crate) closed_mode: Option<u32>,
    has_default_list: OnceLock<bool>,
    /// This run has looked for what others left in it.
    pub(crate) swept: AtomicBool,
}

impl Handle {
    /// Takes an open directory over.
    pub(crate) fn new(fd: OwnedFd, path: Arc<[u8]>) -> io::Result<(Self, Status)> {
        let status = Status::of(&fd)?;
        if !status.is_directory() {
            return Err(Errno::NOTDIR);
        }
        let media = Media::of(&fd)?;
        Ok((Self::assemble(fd, path, &status, media), status))
    }

    fn assemble(fd: OwnedFd, path: Arc<[u8]>, status: &Status, media: Media) -> Self {
        let inode = (status.device, status.inode);
        Self {
            fd,
            path,
            inode,
            media,
            closed_mode: None,
            has_default_list: OnceLock::new(),
            swept: AtomicBool::new(false),
        }
    }

    /// Opens a directory in this one. No symlink is followed; a mount point is entered, because the
    /// destination's owner put it there.
    pub(crate) fn open(&self, name: &Name) -> io::Result<(Self, Status)> {
        let fd = open_strictly(&self.fd, name.as_bytes())?;
        let status = Status::of(&fd)?;
        let device = status.device;
        let media = if device == self.inode.0 {
            self.media
        } else {
            // Writing into the kernel's own file systems is never meant.
            refuse_kernel_file_systems(&fd, &[]).map_err(|_| Errno::PERM)?;
            Media::of(&fd)?
        };
        let path = self.shown(name).into();
        Ok((Self::assemble(fd, path, &status, media), status))
    }

    /// Whether files made in it inherit an access list.
    pub(crate) fn has_default_list(&self) -> bool {
        *self.has_default_list.get_or_init(|| {
            fgetxattr_query(&self.fd, c"system.posix_acl_default").is_ok_and(|len| len > 0)
        })
    }

    /// The path of a name in it, for messages.
    pub(crate) fn shown(&self, name: &Name) -> Vec<u8> {
        join(&self.path, name.as_bytes())
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// One path behind the other.
pub(crate) fn join(front: &[u8], back: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(front.len() + 1 + back.len());
    path.extend_from_slice(front);
    if !front.is_empty() && !front.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(back);
    path
}

/// Opens a directory below another one, no component of which is a symlink.
pub(crate) fn open_strictly(directory: impl AsFd, path: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    open2(directory, path, flags, Mode::empty(), resolve)
}

/// What an entry hangs in.
#[derive(Clone, Debug)]
pub(crate) enum Parent {
    /// A directory that is held for the whole transfer: what the user named.
    Held(Arc<Handle>),
    /// A directory of the manifest.
    Entry(EntryId),
}

/// A directory of the manifest whose end is still to come.
#[derive(Debug)]
pub(crate) struct Directory {
    /// What it hangs in.
    pub(crate) parent: Parent,
    /// Its name there; `None`: it is the held directory itself.
    pub(crate) name: Option<Name>,
    /// File system and number, to know it again.
    pub(crate) inode: (u64, u64),
    /// What it is to look like in the end.
    pub(crate) metadata: Metadata,
    /// What it looked like when it was opened or made.
    pub(crate) before: Status,
    /// This run made it, so what it holds was made by this run.
    pub(crate) made: bool,
    /// Names in it were or will be changed.
    pub(crate) touched: bool,
    /// Its own name is durable.
    durable: bool,
    /// Its listing has ended.
    pub(crate) ended: bool,
    /// Entries in it that are not settled.
    pub(crate) outstanding: u64,
    handle: Option<Arc<Handle>>,
    used: u64,
}

/// How a directory is reached: through these names from a directory that is open.
pub(crate) struct Route {
    from: Arc<Handle>,
    /// Entry, name and identity of each step, outermost first.
    steps: Vec<(EntryId, Name, (u64, u64))>,
}

/// What the table knows of a directory's id.
pub(crate) enum Known<'a> {
    /// It was placed.
    Placed(&'a Directory),
    /// It could not be placed, for a reason of this class.
    Failed(FaultCode),
    /// It was never told, has ended, or is no directory.
    Unknown,
}

/// All directories that are open or owe something.
#[derive(Debug)]
pub(crate) struct Directories {
    placed: HashMap<EntryId, Directory>,
    failed: HashMap<EntryId, FaultCode>,
    /// Directories that have not ended; the rest of `placed` waits for entries.
    unended: usize,
    /// By last use, only those whose handle is open.
    recent: BTreeMap<u64, EntryId>,
    clock: u64,
    handles_max: usize,
    /// Lets as many handles be kept as `recent` has.
    share: Share,
}

impl Directories {
    /// Keeps at most `handles_max` open, and no more than `descriptors` allows beyond a few.
    pub(crate) fn new(handles_max: usize, descriptors: &Account) -> Self {
        Self {
            placed: HashMap::new(),
            failed: HashMap::new(),
            unended: 0,
            recent: BTreeMap::new(),
            clock: 0,
            handles_max: handles_max.max(1),
            share: descriptors.share(DIRECTORIES_OPEN_MIN),
        }
    }

    /// How many have not ended.
    pub(crate) fn unended(&self) -> usize {
        self.unended
    }

    pub(crate) fn known(&self, id: EntryId) -> Known<'_> {
        if let Some(directory) = self.placed.get(&id) {
            return Known::Placed(directory);
        }
        self.failed
            .get(&id)
            .map_or(Known::Unknown, |code| Known::Failed(*code))
    }

    /// Adds a directory that is there.
    pub(crate) fn add(
        &mut self,
        id: EntryId,
        parent: Parent,
        name: Option<Name>,
        metadata: Metadata,
        (handle, before): (Arc<Handle>, Status),
        made: bool,
    ) {
        self.count(&parent, 1);
        let directory = Directory {
            parent,
            name,
            inode: handle.inode,
            metadata,
            before,
            made,
            touched: made,
            durable: !made,
            ended: false,
            outstanding: 0,
            handle: None,
            used: 0,
        };
        self.placed.insert(id, directory);
        self.unended += 1;
        self.keep(id, handle);
    }

    /// Remembers that a directory is not there, so that all below it fails too.
    pub(crate) fn add_failed(&mut self, id: EntryId, code: FaultCode) {
        self.failed.insert(id, code);
        self.unended += 1;
    }

    /// Counts entries of a directory that are to be settled.
    pub(crate) fn count(&mut self, parent: &Parent, entries: u64) {
        if let Some(directory) = self.of_parent(parent) {
            directory.outstanding += entries;
        }
    }

    /// Notes that names in the directory change.
    pub(crate) fn touch(&mut self, parent: &Parent) {
        if let Some(directory) = self.of_parent(parent) {
            directory.touched = true;
        }
    }

    /// Directories from this one upwards whose own names are not durable yet, and what each of
    /// them hangs in.
    pub(crate) fn undurable(&self, parent: &Parent) -> Vec<(EntryId, Parent)> {
        let mut found = Vec::new();
        let mut at = parent;
        while let Parent::Entry(id) = at {
            match self.placed.get(id) {
                Some(directory) if !directory.durable => {
                    found.push((*id, directory.parent.clone()));
                    at = &directory.parent;
                }
                _ => break,
            }
        }
        found
    }

    /// Notes that a directory's own name is durable.
    pub(crate) fn set_durable(&mut self, id: EntryId) {
        if let Some(directory) = self.placed.get_mut(&id) {
            directory.durable = true;
        }
    }

    /// One entry fewer is outstanding. Tells the directory if it can be finished now.
    #[must_use]
    pub(crate) fn settle(&mut self, parent: &Parent) -> Option<EntryId> {
        let Parent::Entry(id) = parent else {
            return None;
        };
        let directory = self.placed.get_mut(id)?;
        directory.outstanding = directory.outstanding.saturating_sub(1);
        directory.is_finishable().then_some(*id)
    }

    /// The directory's listing has ended. `Ok` tells whether it can be finished now.
    pub(crate) fn end(&mut self, id: EntryId) -> Result<bool, Errno> {
        if self.failed.remove(&id).is_some() {
            self.unended -= 1;
            return Ok(false);
        }
        let directory = self
            .placed
            .get_mut(&id)
            .filter(|directory| !directory.ended);
        let directory = directory.ok_or(Errno::NOENT)?;
        directory.ended = true;
        self.unended -= 1;
        Ok(directory.is_finishable())
    }

    /// Takes a finished directory out. Its parent's count stays until [`Self::settle`].
    pub(crate) fn take(&mut self, id: EntryId) -> Option<Directory> {
        let mut directory = self.placed.remove(&id)?;
        if directory.handle.take().is_some() {
            self.recent.remove(&directory.used);
            // Fewer than before are kept, so this only gives back.
            let _ = self.share.fit(self.recent.len());
        }
        if !directory.ended {
            self.unended -= 1;
        }
        Some(directory)
    }

    /// The directory's handle, or the way to open it.
    pub(crate) fn reach(&mut self, parent: &Parent) -> Result<Result<Arc<Handle>, Route>, Errno> {
        let mut steps = Vec::new();
        let mut at = parent.clone();
        loop {
            let id = match at {
                Parent::Held(from) => return Ok(finish_route(from, steps)),
                Parent::Entry(id) => id,
            };
            if let Some(from) = self.live(id) {
                return Ok(finish_route(from, steps));
            }
            let directory = self.placed.get(&id).ok_or(Errno::NOENT)?;
            match (&directory.name, &directory.parent) {
                (Some(name), above) => {
                    steps.push((id, name.clone(), directory.inode));
                    at = above.clone();
                }
                (None, Parent::Held(itself)) => return Ok(finish_route(itself.clone(), steps)),
                (None, Parent::Entry(_)) => return Err(Errno::NOENT),
            }
        }
    }

    /// Keeps a handle that was opened, closing the least recently used one if there are too many.
    pub(crate) fn keep(&mut self, id: EntryId, handle: Arc<Handle>) {
        let clock = self.tick();
        let Some(directory) = self.placed.get_mut(&id) else {
            return;
        };
        if directory.handle.replace(handle).is_some() {
            self.recent.remove(&directory.used);
        }
        directory.used = clock;
        self.recent.insert(clock, id);
        let kept = self.share.fit(self.recent.len().min(self.handles_max));
        while self.recent.len() > kept {
            let Some((_, oldest)) = self.recent.pop_first() else {
                return;
            };
            if let Some(directory) = self.placed.get_mut(&oldest) {
                directory.handle = None;
            }
        }
    }

    fn live(&mut self, id: EntryId) -> Option<Arc<Handle>> {
        let newest = self.clock;
        let directory = self.placed.get_mut(&id)?;
        let handle = directory.handle.clone()?;
        if directory.used != newest {
            self.recent.remove(&directory.used);
            self.clock += 1;
            directory.used = self.clock;
            self.recent.insert(self.clock, id);
        }
        Some(handle)
    }

    fn of_parent(&mut self, parent: &Parent) -> Option<&mut Directory> {
        match parent {
            Parent::Held(_) => None,
            Parent::Entry(id) => self.placed.get_mut(id),
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

impl Directory {
    /// Whether its own name is durable, as far as this run can tell.
    pub(crate) fn is_durable(&self) -> bool {
        self.durable
    }

    fn is_finishable(&self) -> bool {
        self.ended && self.outstanding == 0
    }
}

fn finish_route(
    from: Arc<Handle>,
    mut steps: Vec<(EntryId, Name, (u64, u64))>,
) -> Result<Arc<Handle>, Route> {
    if steps.is_empty() {
        return Ok(from);
    }
    steps.reverse();
    Err(Route { from, steps })
}

impl Route {
    /// Opens the directories on the way, hands each to `keep` and returns the last. Each must be the
    /// one that was placed: a directory that somebody put in its stead is not written into
    /// (`ESTALE`). However long the way is, two are open at a time beside what `keep` keeps.
    pub(crate) fn open(
        self,
        mut keep: impl FnMut(EntryId, Arc<Handle>),
    ) -> io::Result<Arc<Handle>> {
        let mut at = self.from;
        for (id, name, inode) in self.steps {
            let (next, _) = at.open(&name)?;
            if next.inode != inode {
                return Err(Errno::STALE);
            }
            at = Arc::new(next);
            keep(id, at.clone());
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::descriptors::Budget;

    fn held(path: &std::path::Path) -> (Arc<Handle>, Status) {
        let fd = OwnedFd::from(std::fs::File::open(path).unwrap());
        let (handle, status) = Handle::new(fd, Arc::from(&b""[..])).unwrap();
        (Arc::new(handle), status)
    }

    fn deep(levels: u64, handles_max: usize) -> (tempfile::TempDir, Directories) {
        let temporary = tempfile::tempdir().unwrap();
        let (top, _) = held(temporary.path());
        let mut directories = Directories::new(handles_max, &Budget::of_process().account());
        let name = Name::new(&b"d"[..]).unwrap();
        let mut path = temporary.path().to_owned();
        let (mut parent, mut above) = (Parent::Held(top.clone()), top);
        for level in 0..levels {
            path.push("d");
            std::fs::create_dir(&path).unwrap();
            let (handle, status) = above.open(&name).unwrap();
            above = Arc::new(handle);
            let id = EntryId(level);
            let metadata = Metadata::default();
            let opened = (above.clone(), status);
            directories.add(id, parent, Some(name.clone()), metadata, opened, false);
            parent = Parent::Entry(id);
        }
        (temporary, directories)
    }

    #[test]
    fn closed_directories_are_opened_again_by_name() {
        let (_temporary, mut directories) = deep(20, 3);
        assert_eq!(directories.recent.len(), 3);
        let deepest = Parent::Entry(EntryId(19));
        assert!(directories.reach(&deepest).unwrap().is_ok());
        let shallow = Parent::Entry(EntryId(10));
        let Err(route) = directories.reach(&shallow).unwrap() else {
            panic!("it was closed")
        };
        let mut opened = 0;
        route
            .open(|id, handle| {
                opened += 1;
                directories.keep(id, handle);
            })
            .unwrap();
        assert_eq!(opened, 11);
        assert!(directories.reach(&shallow).unwrap().is_ok());
        assert_eq!(directories.recent.len(), 3);
    }

    #[test]
    fn another_directory_of_the_same_name_is_refused() {
        let (temporary, mut directories) = deep(3, 1);
        let middle = temporary.path().join("d/d");
        std::fs::rename(&middle, temporary.path().join("aside")).unwrap();
        std::fs::create_dir(&middle).unwrap();
        let Err(route) = directories.reach(&Parent::Entry(EntryId(1))).unwrap() else {
            panic!("it was closed")
        };
        assert_eq!(route.open(|_, _| ()).unwrap_err(), Errno::STALE);
    }

    #[test]
    fn a_directory_is_finishable_once_it_ended_and_nothing_is_outstanding() {
        let (_temporary, mut directories) = deep(1, 4);
        let id = EntryId(0);
        directories.count(&Parent::Entry(id), 2);
        assert_eq!(directories.settle(&Parent::Entry(id)), None);
        assert_eq!(directories.end(id), Ok(false));
        assert_eq!(directories.settle(&Parent::Entry(id)), Some(id));
        assert_eq!(directories.end(id), Err(Errno::NOENT));
        assert!(directories.take(id).is_some());
        assert_eq!(directories.unended(), 0);
    }
}
