//! The hands of deleting: names go one by one, from the bottom up, in directories that are held open.
//!
//! In: a directory, and a name in it that the source does not have. Out: the name and all below it are
//! gone, or what of it stays and why. A directory of which anything stays, stays. Nothing is followed
//! and no other mount is entered: each directory is opened as the very one that was looked at, by its
//! name in the one above. However deep it goes, few are open at a time; names are sorted in bounded
//! memory. Which names are superfluous is decided elsewhere.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, openat};
use rustix::io::Errno;

use super::apply::OWNER_ALL;
use super::directory::Handle;
use super::listed::Seen;
use super::mirror::Mirror;
use crate::limits::{DEPTH_MAX, WALK_NAMES_BYTES_MAX};
use crate::manifest::Name;
use crate::storage::at::{DIRECTORY_BUFFER_BYTES, read_directory};
use crate::storage::calls::{fchmod, unlinkat};
use crate::storage::error::StorageError;
use crate::storage::leftover::{Leftover, judge, remove_if_stale};
use crate::storage::names::{NameSorter, SortedNames};
use crate::storage::open_up::OpenedUp;
use crate::storage::part_name::{Hidden, hidden, is_part_name, part_name};
use crate::storage::status::Status;
use crate::wire::message::{Removed, RemovedKind};
use crate::wire::{Fault, FaultCode};

/// Directories on the way that are open, beside the outermost.
const OPEN_MAX: usize = 16;
/// Least memory for the names of one directory, however much the outer ones hold.
const NAMES_BYTES_MIN: usize = 64 << 10;
/// How often a name is looked at that others keep replacing.
const LOOKS_MAX: u32 = 4;

/// Directories on the way to what is looked at.
#[derive(Default)]
pub(super) struct Remover {
    /// The source below whose place this is.
    root: u32,
    /// The place of the source: what lies in another mount is not entered.
    base: Option<Status>,
    pub(super) frames: Vec<Frame>,
}

/// A directory on the way.
pub(super) struct Frame {
    /// Its name in the one before; nothing for the outermost.
    name: Option<Name>,
    /// Below the source.
    pub(super) path: Vec<u8>,
    handle: Option<Arc<Handle>>,
    inode: (u64, u64),
    names: SortedNames,
    pub(super) inside: Inside,
    /// Something was removed in it.
    pub(super) changed: bool,
    /// The mode that it had before it was opened up for this.
    pub(super) closed_mode: Option<u32>,
}

/// What is done with what lies in a directory.
#[derive(Debug)]
pub(super) enum Inside {
    /// It is compared with what the source has.
    Compared { seen: Seen, is_empty_root: bool },
    /// All of it goes, and then the directory.
    Superfluous { spared: bool },
    /// It is only held, for one name in it.
    Held { spared: bool },
}

impl fmt::Debug for Remover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remover")
            .field("root", &self.root)
            .field("depth", &self.frames.len())
            .finish_non_exhaustive()
    }
}

impl Frame {
    pub(super) fn new(
        name: Option<Name>,
        path: Vec<u8>,
        handle: Arc<Handle>,
        inside: Inside,
    ) -> Self {
        Self {
            name,
            path,
            inode: handle.inode,
            handle: Some(handle),
            names: SortedNames::default(),
            inside,
            changed: false,
            closed_mode: None,
        }
    }

    /// A directory in which one name is in the way.
    pub(super) fn held(path: Vec<u8>, handle: Arc<Handle>) -> Self {
        Self::new(None, path, handle, Inside::Held { spared: false })
    }
}

impl Remover {
    pub(super) fn new(root: u32, base: Status) -> Self {
        Self {
            root,
            base: Some(base),
            frames: Vec::new(),
        }
    }

    /// Whether a superfluous directory is being emptied.
    pub(super) fn is_removing(&self) -> bool {
        let innermost = self.frames.last();
        innermost.is_some_and(|frame| matches!(frame.inside, Inside::Superfluous { .. }))
    }

    pub(super) fn is_at_top(&self) -> bool {
        self.frames.len() <= 1
    }

    /// Whether anything stays of what was to go.
    pub(super) fn has_spared(&self) -> bool {
        self.frames.first().is_some_and(|frame| {
            matches!(
                frame.inside,
                Inside::Held { spared: true } | Inside::Superfluous { spared: true }
            )
        })
    }

    pub(super) fn tell(&self, mirror: &Mirror, path: Vec<u8>, kind: RemovedKind, outcome: Removed) {
        mirror.tell(self.root, path, kind, outcome);
    }

    /// The path of a name in the innermost directory.
    pub(super) fn path_of(&self, name: Option<&Name>) -> Vec<u8> {
        let mut path = self
            .frames
            .last()
            .map_or_else(Vec::new, |frame| frame.path.clone());
        if let Some(name) = name {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
        }
        path
    }

    /// Goes into a directory.
    pub(super) fn push(&mut self, frame: Frame) {
        self.frames.push(frame);
        let beyond = self.frames.len().checked_sub(OPEN_MAX + 1);
        if let Some(at @ 1..) = beyond {
            self.frames[at].handle = None;
        }
    }

    /// Goes into a directory with all its names.
    pub(super) fn push_listed(&mut self, mirror: &Mirror, mut frame: Frame) {
        let with_hidden = matches!(frame.inside, Inside::Superfluous { .. });
        let listed = match &frame.handle {
            Some(handle) => self.list(handle, with_hidden),
            None => Ok(SortedNames::default()),
        };
        match listed {
            Ok(names) => {
                frame.names = names;
                self.push(frame);
            }
            Err(error) => {
                let path = frame.path.clone();
                self.push(frame);
                self.fail(mirror, path, RemovedKind::Directory, error.fault());
            }
        }
    }

    fn list(&self, handle: &Handle, with_hidden: bool) -> Result<SortedNames, StorageError> {
        let failed = |errno: Errno| StorageError::new("list", &*handle.path, errno);
        let held: usize = self
            .frames
            .iter()
            .map(|frame| frame.names.held_bytes())
            .sum();
        let share = (WALK_NAMES_BYTES_MAX.saturating_sub(held) / 2).max(NAMES_BYTES_MIN);
        let mut sorter = NameSorter::new(share);
        // A descriptor of its own: where a listing stands is kept with it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed: OwnedFd = openat(handle, c".", flags, Mode::empty()).map_err(failed)?;
        let mut buffer = Box::new_uninit_slice(DIRECTORY_BUFFER_BYTES);
        let sorted = read_directory(&listed, &mut buffer, |name: &[u8], _| {
            if !with_hidden && is_part_name(name) {
                return Ok(());
            }
            sorter.push(name)
        });
        sorted
            .and_then(|()| sorter.finish())
            .map_err(|error: io::Error| StorageError::new("list", &*handle.path, error))
    }

    /// The next name of the innermost directory, which is compared, and whether that is a source
    /// without anything.
    pub(super) fn next_compared(&mut self) -> io::Result<Option<(Vec<u8>, bool)>> {
        let Some(frame) = self.frames.last_mut() else {
            return Ok(None);
        };
        let is_empty = matches!(
            frame.inside,
            Inside::Compared {
                is_empty_root: true,
                ..
            }
        );
        Ok(frame.names.next()?.map(|name| (name, is_empty)))
    }

    /// No more names of the innermost directory are looked at.
    pub(super) fn pass_names(&mut self) {
        if let Some(frame) = self.frames.last_mut() {
            frame.names = SortedNames::default();
        }
    }

    /// Leaves the innermost directory; with a descriptor of it, if anything about it is to be mended.
    pub(super) fn pop(&mut self, mirror: &Mirror) -> Option<(Frame, Option<Arc<Handle>>)> {
        let frame = self.frames.last()?;
        let handle = match frame.changed || frame.closed_mode.is_some() {
            true => self.reach(mirror),
            false => None,
        };
        Some((self.frames.pop()?, handle))
    }

    /// Whether the filters leave this out whatever it is.
    pub(super) fn is_left_out(&self, mirror: &Mirror, name: &Name) -> bool {
        let path = || self.path_of(Some(name));
        let filters = &mirror.options.filters;
        let handle = self.frames.last().and_then(|frame| frame.handle.as_ref());
        let is_directory = handle
            .and_then(|handle| Status::at(&**handle, name).ok())
            .is_some_and(|status| status.is_directory());
        filters.leaves_out(name.as_bytes(), is_directory, path)
    }

    /// Opens a directory below the innermost one that both sides have. What can't be entered is told.
    pub(super) fn open_below(
        &mut self,
        mirror: &Mirror,
        name: &Name,
    ) -> Option<(Arc<Handle>, Option<u32>)> {
        let handle = self.reach(mirror)?;
        let path = self.path_of(Some(name));
        // Gone, or no directory any more: somebody else is at work here.
        let status = Status::at(&*handle, name)
            .ok()
            .filter(Status::is_directory)?;
        if self.is_other_mount(&status) {
            let outcome = Removed::Kept(Fault::new(FaultCode::Special, OTHER_MOUNT));
            self.tell(mirror, path, RemovedKind::Directory, outcome);
            return None;
        }
        match open(&handle, name, mirror.dry_run) {
            Ok((opened, closed_mode)) => Some((Arc::new(opened), closed_mode)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
            Err(errno) => {
                let error = StorageError::new("open", handle.shown(name), errno);
                let outcome = Removed::Failed(error.fault());
                self.tell(mirror, path, RemovedKind::Directory, outcome);
                None
            }
        }
    }

    /// Removes a name of the innermost directory; a directory is gone into first.
    pub(super) fn remove_superfluous(&mut self, mirror: &Mirror, name: Name) {
        let Some(handle) = self.reach(mirror) else {
            return;
        };
        let path = self.path_of(Some(&name));
        for _ in 0..LOOKS_MAX {
            let status = match Status::at(&*handle, &name) {
                Err(Errno::NOENT) => return,
                Ok(status) => status,
                Err(errno) => {
                    let error = StorageError::new("look at", handle.shown(&name), errno);
                    return self.fail(mirror, path, RemovedKind::Special, error.fault());
                }
            };
            let is_directory = status.is_directory();
            let filters = &mirror.options.filters;
            if filters.leaves_out(name.as_bytes(), is_directory, || path.clone()) {
                return self.spare();
            }
            let kind = kind_of(&status);
            if self.is_other_mount(&status) {
                let outcome = Removed::Kept(Fault::new(FaultCode::Special, OTHER_MOUNT));
                self.tell(mirror, path, kind, outcome);
                return self.spare();
            }
            if !is_directory {
                self.unlink(mirror, &handle, (&name, path, kind));
                return;
            }
            if self.frames.len() > DEPTH_MAX {
                let text = format!("directories are nested more than {DEPTH_MAX} deep");
                return self.fail(mirror, path, kind, Fault::new(FaultCode::Storage, text));
            }
            let opened = match open(&handle, &name, mirror.dry_run) {
                Ok((opened, _)) if opened.inode != (status.device, status.inode) => continue,
                // What it is now decides: a link is removed as a link.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                answer => answer,
            };
            return match opened {
                Ok((opened, closed_mode)) => {
                    let inside = Inside::Superfluous { spared: false };
                    let mut frame = Frame::new(Some(name), path, Arc::new(opened), inside);
                    frame.closed_mode = closed_mode;
                    self.push_listed(mirror, frame);
                }
                Err(errno) => {
                    let error = StorageError::new("open", handle.shown(&name), errno);
                    self.fail(mirror, path, kind, error.fault());
                }
            };
        }
        let text = "others keep replacing it; run it again when that has ended";
        let error = StorageError::refused("remove", handle.shown(&name), FaultCode::Busy, text);
        self.fail(mirror, path, RemovedKind::Special, error.fault());
    }

    /// The next name of a superfluous directory, or the directory itself.
    pub(super) fn go_on(&mut self, mirror: &Mirror) {
        let Some(frame) = self.frames.last_mut() else {
            return;
        };
        match frame.names.next() {
            Ok(Some(name)) => {
                let Ok(name) = Name::new(name) else {
                    return self.spare();
                };
                match hidden(name.as_bytes()) {
                    Some(found) => self.remove_leftover(mirror, name, found),
                    None => self.remove_superfluous(mirror, name),
                }
            }
            Ok(None) => self.remove_emptied(mirror),
            Err(error) => {
                let path = frame.path.clone();
                let error = StorageError::new("sort the names of", path.clone(), error);
                self.pass_names();
                self.fail(mirror, path, RemovedKind::Directory, error.fault());
            }
        }
    }

    /// A file of a run: what is being written stays, what was left goes with its directory.
    fn remove_leftover(&mut self, mirror: &Mirror, name: Name, found: Hidden) {
        // Looking whether somebody is at work on it may open it up.
        if mirror.dry_run {
            return;
        }
        let Some(handle) = self.reach(mirror) else {
            return;
        };
        // A journal has no lock of its own: it is his who has the part file's.
        let is_written = match found {
            Hidden::Journal(stem) => matches!(
                judge(&*handle, &part_name(stem)),
                Ok(Leftover::Busy | Leftover::Doubtful)
            ),
            Hidden::Part(_) => false,
        };
        let removed = match is_written {
            true => Ok(Leftover::Busy),
            false => remove_if_stale(&*handle, &name),
        };
        match removed {
            Ok(Leftover::Gone | Leftover::Stale(..)) => {
                if let Some(frame) = self.frames.last_mut() {
                    frame.changed = true;
                }
            }
            Ok(Leftover::Foreign) => self.remove_superfluous(mirror, name),
            Ok(Leftover::Busy | Leftover::Doubtful) => {
                if matches!(found, Hidden::Part(_)) {
                    let text = "a file that another run is writing stays, and so its directory";
                    let outcome = Removed::Kept(Fault::new(FaultCode::Special, text));
                    let path = self.path_of(None);
                    self.tell(mirror, path, RemovedKind::Directory, outcome);
                }
                self.spare();
            }
            Err(errno) => {
                let error = StorageError::new("remove", handle.shown(&name), errno);
                let path = self.path_of(Some(&name));
                self.fail(mirror, path, RemovedKind::File, error.fault());
            }
        }
    }

    /// All names of a superfluous directory were looked at.
    fn remove_emptied(&mut self, mirror: &Mirror) {
        let Some((frame, handle)) = self.pop(mirror) else {
            return;
        };
        let Some(name) = frame.name else { return };
        let mut is_gone = false;
        if matches!(frame.inside, Inside::Superfluous { spared: true }) {
            self.spare();
        } else if let Some(above) = self.reach(mirror) {
            let kind = RemovedKind::Directory;
            is_gone = self.unlink(mirror, &above, (&name, frame.path, kind));
        }
        if let (false, Some(handle), Some(mode)) = (is_gone, handle, frame.closed_mode) {
            // What stays is as it was; that its owner may fill it now is no failure of deleting.
            let _ = fchmod(&*handle, Mode::from_raw_mode(mode));
        }
    }

    /// Takes a name away; whether it is gone, or would be.
    fn unlink(
        &mut self,
        mirror: &Mirror,
        handle: &Handle,
        (name, path, kind): (&Name, Vec<u8>, RemovedKind),
    ) -> bool {
        if !mirror.may_remove() {
            self.spare();
            return false;
        }
        if mirror.dry_run {
            self.tell(mirror, path, kind, Removed::Would);
            return true;
        }
        let flags = match kind {
            RemovedKind::Directory => AtFlags::REMOVEDIR,
            _ => AtFlags::empty(),
        };
        let remove = || unlinkat(handle, name.as_bytes(), flags);
        let removed = match remove() {
            Err(Errno::ACCESS) if self.open_up(handle) => remove(),
            answer => answer,
        };
        match removed {
            Ok(()) => {
                if let Some(frame) = self.frames.last_mut() {
                    frame.changed = true;
                }
                self.tell(mirror, path, kind, Removed::Gone);
                true
            }
            Err(errno) => {
                mirror.give_back();
                if errno != Errno::NOENT {
                    let error = StorageError::new("remove", handle.shown(name), errno);
                    self.fail(mirror, path, kind, error.fault());
                }
                errno == Errno::NOENT
            }
        }
    }

    /// Lets us remove names in the innermost directory, if it is ours.
    fn open_up(&mut self, handle: &Handle) -> bool {
        let Some(frame) = self.frames.last_mut() else {
            return false;
        };
        let user = rustix::process::geteuid().as_raw();
        let status = Status::of(handle).ok();
        let Some(status) = status.filter(|status| status.uid == user) else {
            return false;
        };
        if status.mode & OWNER_ALL == OWNER_ALL {
            return false;
        }
        frame.closed_mode.get_or_insert(status.mode);
        fchmod(handle, Mode::from_raw_mode(status.mode | OWNER_ALL)).is_ok()
    }

    fn is_other_mount(&self, status: &Status) -> bool {
        self.base.is_some_and(|base| !status.same_mount(&base))
    }

    /// Something of the innermost directory stays, and so does that.
    fn spare(&mut self) {
        if let Some(frame) = self.frames.last_mut() {
            match &mut frame.inside {
                Inside::Superfluous { spared } | Inside::Held { spared } => *spared = true,
                Inside::Compared { .. } => {}
            }
        }
    }

    fn fail(&mut self, mirror: &Mirror, path: Vec<u8>, kind: RemovedKind, fault: Fault) {
        self.tell(mirror, path, kind, Removed::Failed(fault));
        self.spare();
    }

    /// The innermost directory, open. If it is not to be found any more, that is told and nothing more
    /// of it is looked at.
    fn reach(&mut self, mirror: &Mirror) -> Option<Arc<Handle>> {
        match self.reopen() {
            Ok(handle) => Some(handle),
            Err(errno) => {
                let path = self.path_of(None);
                let error = StorageError::new("open", path.clone(), errno);
                self.pass_names();
                self.fail(mirror, path, RemovedKind::Directory, error.fault());
                None
            }
        }
    }

    /// From the nearest one that is open, each the very one that it was.
    fn reopen(&mut self) -> rustix::io::Result<Arc<Handle>> {
        let open = self.frames.iter().rposition(|frame| frame.handle.is_some());
        let nearest = open.ok_or(Errno::NOENT)?;
        let mut at = self.frames[nearest].handle.clone().ok_or(Errno::NOENT)?;
        for frame in &self.frames[nearest + 1..] {
            let name = frame.name.as_ref().ok_or(Errno::NOENT)?;
            let (next, _) = at.open(name)?;
            if next.inode != frame.inode {
                return Err(Errno::STALE);
            }
            at = Arc::new(next);
        }
        if let Some(frame) = self.frames.last_mut() {
            frame.handle = Some(at.clone());
        }
        Ok(at)
    }
}

/// Why what lies in another mount is left.
const OTHER_MOUNT: &str =
    "is a mount point: other mounts are not entered to delete, nor removed; unmount it first";

/// Opens a directory that is listed next. One that its owner may not list, if that is us, is opened up,
/// but not for a dry run; its mode before that is told.
fn open(
    directory: &Handle,
    name: &Name,
    dry_run: bool,
) -> rustix::io::Result<(Handle, Option<u32>)> {
    match directory.open(name) {
        Err(Errno::ACCESS) if !dry_run => {
            let opened = OpenedUp::below(directory, name.as_bytes(), OWNER_ALL)?;
            let (handle, _) = directory.open(name)?;
            if handle.inode != (opened.before.device, opened.before.inode) {
                return Err(Errno::STALE);
            }
            Ok((handle, Some(opened.before.mode)))
        }
        answer => answer.map(|(handle, _)| (handle, None)),
    }
}

fn kind_of(status: &Status) -> RemovedKind {
    if status.is_directory() {
        RemovedKind::Directory
    } else if status.is_file() {
        RemovedKind::File
    } else if status.is_symlink() {
        RemovedKind::Symlink
    } else {
        RemovedKind::Special
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::filter::Filters;
    use crate::storage::sink::MirrorOptions;
    use crate::wire::message::{Deleting, Removal};
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    fn mirror(max: Option<u64>) -> Mirror {
        let deleting = Deleting {
            max,
            allow_empty: false,
        };
        let filters = Arc::new(Filters::default());
        Mirror::new(MirrorOptions { deleting, filters }, false)
    }

    fn remover(top: &Path) -> Remover {
        let fd = OwnedFd::from(fs::File::open(top).unwrap());
        let (handle, base) = Handle::new(fd, b"top".as_slice().into()).unwrap();
        let mut remover = Remover::new(3, base);
        remover.push(Frame::held(Vec::new(), Arc::new(handle)));
        remover
    }

    fn name(of: &str) -> Name {
        Name::new(of.as_bytes()).unwrap()
    }

    fn told(mirror: &Mirror) -> Vec<String> {
        let line = |removal: Removal| {
            let outcome = match removal.outcome {
                Removed::Gone => "gone",
                Removed::Would => "would",
                Removed::Failed(_) => "failed",
                Removed::Kept(_) => "kept",
            };
            format!("{outcome} {}", removal.path.escape_ascii())
        };
        mirror.take().into_iter().map(line).collect()
    }

    #[test]
    fn what_becomes_a_link_after_it_was_listed_goes_as_a_link() {
        let outer = tempfile::tempdir().unwrap();
        let (top, outside) = (outer.path().join("top"), outer.path().join("outside"));
        fs::create_dir_all(top.join("x/sub/deep")).unwrap();
        fs::create_dir_all(outside.join("deep")).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        let mirror = mirror(None);
        let mut remover = remover(&top);
        remover.remove_superfluous(&mirror, name("x"));
        // It is listed by now; what it lists is somewhere else.
        fs::rename(top.join("x/sub"), outer.path().join("moved")).unwrap();
        symlink(&outside, top.join("x/sub")).unwrap();
        while !remover.is_at_top() {
            remover.go_on(&mirror);
        }
        assert_eq!(told(&mirror), ["gone x/sub", "gone x"]);
        assert!(!remover.has_spared());
        assert!(outside.join("kept").exists() && outside.join("deep").exists());
        assert!(outer.path().join("moved/deep").exists());
    }

    #[test]
    fn deep_trees_and_closed_directories_go_and_what_has_a_limit_stays() {
        let outer = tempfile::tempdir().unwrap();
        let mut at = outer.path().join("deep");
        for _ in 0..3 * OPEN_MAX {
            fs::create_dir(&at).unwrap();
            fs::write(at.join("file"), "x").unwrap();
            at.push("d");
        }
        let closed = outer.path().join("closed");
        fs::create_dir_all(closed.join("in")).unwrap();
        fs::set_permissions(closed.join("in"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
        let limited = mirror(Some(1));
        let mut one = remover(outer.path());
        one.remove_superfluous(&limited, name("closed"));
        while !one.is_at_top() {
            one.go_on(&limited);
        }
        assert!(one.has_spared());
        assert_eq!(told(&limited), ["gone closed/in"]);
        let mode = fs::metadata(&closed).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o500, "what stays has its mode again");

        let all = mirror(None);
        let mut remover = remover(outer.path());
        for superfluous in ["closed", "deep"] {
            remover.remove_superfluous(&all, name(superfluous));
            while !remover.is_at_top() {
                remover.go_on(&all);
            }
        }
        assert!(!remover.has_spared());
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 0);
        assert_eq!(told(&all).len(), 1 + 2 * 3 * OPEN_MAX);
    }
}
