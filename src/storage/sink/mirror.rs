//! Deleting: what is at the destination and not at the source.
//!
//! In: what the source has, as the manifest told it ([`super::listed`]), and the destination as it is
//! at the end of a run in which nothing failed. Both are in byte order, so they are compared a name at
//! a time, and memory is flat. Out: removals, told one by one. The work is done in steps, so that a
//! run can be ended and its peer hears of it.
//!
//! What is never removed: anything outside the trees that this run copied; anything in a directory
//! whose listing was not complete, or that is not the one that was copied into any more; what the
//! filters leave out; other mounts; what another run is writing; and nothing at all if a source is
//! empty. Nothing follows a symbolic link: a name is removed as what it is, in a directory that is held
//! open. [`super::removing`] has the hands for it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::Sink;
use super::apply::times;
use super::directory::{Handle, Known};
use super::listed::{Listed, Seen, Token, Tokens};
use super::removing::{Frame, Inside, Remover};
use crate::ids::EntryId;
use crate::limits::PATH_BYTES_MAX;
use crate::manifest::{Name, Note, Place};
use crate::storage::calls::{fchmod, fsync, futimens};
use crate::storage::error::StorageError;
use crate::storage::filter::Filters;
use crate::storage::status::Status;
use crate::units::Timestamp;
use crate::wire::message::{Deleting, Placement, Removal, Removed, RemovedKind};
use crate::wire::{Fault, FaultCode};

/// Names that one step looks at.
const STEP_NAMES_MAX: usize = 4096;
/// Removals that one step makes.
const STEP_REMOVALS_MAX: usize = 256;
/// Removals that are kept to be told. Only a tree that is in the way is removed in one step; of one that
/// is larger the rest is counted.
const UNTOLD_REMOVALS_MAX: usize = 16 << 10;

/// What a run that deletes needs to know.
#[derive(Clone, Debug)]
pub struct MirrorOptions {
    /// How far it goes.
    pub deleting: Deleting,
    /// What they leave out stays.
    pub filters: Arc<Filters>,
}

/// Deleting in one run.
#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) options: MirrorOptions,
    pub(super) dry_run: bool,
    listed: Mutex<Listed>,
    removals: Mutex<Vec<Removal>>,
    /// How many were removed,
    removed: AtomicU64,
    /// and how many were not because of the limit.
    beyond: AtomicU64,
    /// How many are gone that were not told.
    untold: AtomicU64,
    comparing: Mutex<Option<Comparing>>,
}

/// How far the comparison is.
#[derive(Debug)]
struct Comparing {
    tokens: Tokens,
    peeked: Option<Token>,
    remover: Remover,
}

impl MirrorOptions {
    /// Whether sources can be mirrored together.
    ///
    /// # Errors
    /// Two sources whose places are not apart: what one has would be superfluous to the other.
    pub fn check(placement: &Placement, recursive: bool) -> Result<(), Fault> {
        let refused = |text: &str| Err(Fault::new(FaultCode::Invalid, text));
        if !recursive {
            return refused("--delete is about directories: it needs -r or -a");
        }
        let roots = &placement.roots;
        let mut names: Vec<_> = roots.iter().map(|root| &root.name).collect();
        names.sort_unstable();
        let is_spread = roots
            .iter()
            .any(|root| root.contents || root.name.is_empty());
        if roots.len() > 1 && (is_spread || names.windows(2).any(|pair| pair[0] == pair[1])) {
            return refused(
                "--delete takes a source whose contents are meant (with a slash at its end) alone: \
                 what others have is superfluous to it; copy each in a run of its own",
            );
        }
        Ok(())
    }
}

impl Mirror {
    pub(super) fn new(options: MirrorOptions, dry_run: bool) -> Self {
        Self {
            options,
            dry_run,
            listed: Mutex::default(),
            removals: Mutex::default(),
            removed: AtomicU64::new(0),
            beyond: AtomicU64::new(0),
            untold: AtomicU64::new(0),
            comparing: Mutex::default(),
        }
    }

    /// Tells what became of something.
    pub(super) fn tell(&self, root: u32, path: Vec<u8>, kind: RemovedKind, outcome: Removed) {
        let path = match path.len().checked_sub(PATH_BYTES_MAX) {
            None | Some(0) => path,
            Some(beyond) => [b"...", &path[beyond + 3..]].concat(),
        };
        let mut removals = lock(&self.removals);
        let is_done = matches!(outcome, Removed::Gone | Removed::Would);
        if is_done && removals.len() >= UNTOLD_REMOVALS_MAX {
            self.untold.fetch_add(1, Ordering::Relaxed);
            return;
        }
        removals.push(Removal {
            root,
            path,
            kind,
            outcome,
        });
    }

    /// Takes one removal from those that are allowed; `false` if none is left.
    pub(super) fn may_remove(&self) -> bool {
        let max = self.options.deleting.max.unwrap_or(u64::MAX);
        // Steps and pages may run at the same time.
        let taken = self
            .removed
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |removed| {
                (removed < max).then_some(removed + 1)
            });
        if taken.is_err() {
            self.beyond.fetch_add(1, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    /// It came to nothing.
    pub(super) fn give_back(&self) {
        self.removed.fetch_sub(1, Ordering::Relaxed);
    }

    /// What was told since the last call.
    pub(super) fn take(&self) -> Vec<Removal> {
        std::mem::take(&mut *lock(&self.removals))
    }

    fn pending_removals(&self) -> usize {
        lock(&self.removals).len()
    }

    /// That there was more to remove than allowed is a failure, and said once.
    fn tell_limit(&self) {
        let beyond = self.beyond.load(Ordering::Relaxed);
        if beyond == 0 {
            return;
        }
        let removed = self.removed.load(Ordering::Relaxed);
        let were = if self.dry_run { "would be" } else { "were" };
        let text = format!(
            "{removed} {were} deleted, as many as --max-delete allows; at least {beyond} more that the \
             source does not have stay"
        );
        let outcome = Removed::Failed(Fault::new(FaultCode::Exists, text));
        self.tell(0, Vec::new(), RemovedKind::Directory, outcome);
    }
}

impl Sink {
    /// What was removed, or would be, since the last call.
    pub fn take_removals(&self) -> Vec<Removal> {
        let mirror = self.mirror.as_ref();
        mirror.map_or_else(Vec::new, Mirror::take)
    }

    /// Keeps what an entry says of the source. To be called when it was placed.
    pub(super) fn list_entry(&self, place: &Place, id: EntryId, directory: Option<Timestamp>) {
        let Some(mirror) = &self.mirror else { return };
        let seen = directory.and_then(|mtime| self.seen(id, mtime));
        let mut listed = lock(&mirror.listed);
        match place {
            Place::Root(root) if directory.is_some() => listed.root(*root, id, seen),
            Place::Root(_) => {}
            Place::In(parent, name) if directory.is_some() => {
                listed.directory(*parent, name.as_bytes(), id, seen);
            }
            Place::In(parent, name) => listed.name(*parent, name.as_bytes()),
        }
    }

    /// Keeps what a note says of it.
    pub(super) fn list_note(&self, note: &Note) {
        let Some(mirror) = &self.mirror else { return };
        let mut listed = lock(&mirror.listed);
        match note {
            Note::DirectoryEnd {
                directory,
                complete,
            } => listed.end(*directory, *complete),
            // The source has it, though it is not copied.
            Note::Skipped {
                place: Place::In(parent, name),
                ..
            } => listed.name(*parent, name.as_bytes()),
            Note::Skipped { .. } => {}
        }
    }

    /// A directory that was there before this run.
    fn seen(&self, id: EntryId, mtime: Timestamp) -> Option<Seen> {
        match self.table().directories.known(id) {
            Known::Placed(directory) if !directory.made => Some(Seen {
                inode: directory.inode,
                mtime,
            }),
            _ => None,
        }
    }

    /// Refuses to mirror what is alone and no directory.
    pub(super) fn check_mirrored(&self, place: &Place, is_directory: bool) -> Result<(), Fault> {
        let is_alone = matches!(place, Place::Root(_)) && self.destination.sources() == 1;
        if self.mirror.is_some() && is_alone && !is_directory {
            let text = "--delete is about directories, and the source is none; leave it out";
            return Err(Fault::new(FaultCode::Invalid, text));
        }
        Ok(())
    }

    /// Removes what stands in the way of an entry below a source: a tree in the place of a file, or
    /// something else in that of a directory. Whether the way is free now, or would be.
    pub(super) fn clear_the_way(
        &self,
        parent: EntryId,
        directory: &Arc<Handle>,
        name: &Name,
        is_directory: bool,
    ) -> Result<bool, Fault> {
        let Some(mirror) = self.mirror.as_ref().filter(|_| !self.must_be_new()) else {
            return Ok(false);
        };
        let failed = |errno| StorageError::new("look at", directory.shown(name), errno);
        let there = match Status::at(&**directory, name) {
            Err(Errno::NOENT) => return Ok(false),
            answer => answer.map_err(failed)?,
        };
        let in_the_way = match is_directory {
            true => there.is_file() || there.is_symlink(),
            false => there.is_directory(),
        };
        // Filters are of paths: without one nothing can be said to be superfluous.
        let path = lock(&mirror.listed).path_of(parent);
        let (Some((root, path)), true) = (path, in_the_way) else {
            return Ok(false);
        };
        let base = Status::of(&**directory).map_err(failed)?;
        let mut remover = Remover::new(root, base);
        remover.push(Frame::held(path, directory.clone()));
        remover.remove_superfluous(mirror, name.clone());
        while !remover.is_at_top() {
            self.check_running()?;
            remover.go_on(mirror);
        }
        let untold = mirror.untold.swap(0, Ordering::Relaxed);
        if untold > 0 {
            let text = format!("{untold} more below it were deleted and are not listed one by one");
            let outcome = Removed::Kept(Fault::new(FaultCode::Special, text));
            let path = remover.path_of(Some(name));
            mirror.tell(root, path, RemovedKind::Directory, outcome);
        }
        Ok(!remover.has_spared())
    }

    /// Goes on with the comparison. Whether there is more to do.
    pub fn mirror_step(&self) -> bool {
        let Some(mirror) = &self.mirror else {
            return false;
        };
        let mut comparing = lock(&mirror.comparing);
        let going = match &mut *comparing {
            Some(going) => going,
            none => match lock(&mirror.listed).tokens() {
                Ok(tokens) => none.insert(Comparing {
                    tokens,
                    peeked: None,
                    remover: Remover::default(),
                }),
                Err(error) => {
                    give_up(mirror, error);
                    return false;
                }
            },
        };
        let mut names = 0;
        while names < STEP_NAMES_MAX && mirror.pending_removals() < STEP_REMOVALS_MAX {
            names += 1;
            if self.check_running().is_err() {
                return false;
            }
            match going.next(self, mirror) {
                Ok(true) => {}
                Ok(false) => {
                    mirror.tell_limit();
                    return false;
                }
                Err(error) => {
                    give_up(mirror, error);
                    return false;
                }
            }
        }
        true
    }

    /// The directory that a source was copied into, if it still is the one.
    fn open_compared(&self, root: u32, seen: Seen) -> Result<(Arc<Handle>, Status), StorageError> {
        let (directory, name) = self.destination.survey(root, true)?;
        let Some(directory) = directory else {
            return Err(StorageError::new("open", *b"", Errno::NOENT));
        };
        let failed = |errno| StorageError::new("open", &*directory.path, errno);
        let handle = match name {
            Some(name) => Arc::new(directory.open(&name).map_err(failed)?.0),
            None => directory.clone(),
        };
        if handle.inode != seen.inode {
            return Err(failed(Errno::STALE));
        }
        let status = Status::of(&*handle).map_err(failed)?;
        Ok((handle, status))
    }

    /// Gives a directory that something was removed in what it has at the source.
    fn restore(&self, handle: &Handle, frame: &Frame, seen: Seen) -> rustix::io::Result<()> {
        if let Some(mode) = frame.closed_mode {
            fchmod(handle, Mode::from_raw_mode(mode))?;
        }
        // Who may only add leaves directories their times.
        if frame.changed && !self.only_adds {
            futimens(handle, &times(seen.mtime))?;
        }
        if frame.changed && self.sync && handle.media.can_sync() {
            fsync(handle)?;
        }
        Ok(())
    }
}

impl Comparing {
    /// One name more, of a source or of the destination. Whether there is more.
    fn next(&mut self, sink: &Sink, mirror: &Mirror) -> io::Result<bool> {
        if self.remover.is_removing() {
            self.remover.go_on(mirror);
        } else if self.remover.frames.is_empty() {
            return self.next_root(sink, mirror);
        } else {
            self.compare(sink, mirror)?;
        }
        Ok(true)
    }

    fn next_root(&mut self, sink: &Sink, mirror: &Mirror) -> io::Result<bool> {
        let (root, seen, complete) = match self.tokens.next()? {
            None => return Ok(false),
            Some(Token::Root {
                root,
                seen,
                complete,
            }) => (root, seen, complete),
            Some(_) => return Err(io::ErrorKind::InvalidData.into()),
        };
        match sink.open_compared(root, seen) {
            Ok((handle, base)) => {
                self.remover = Remover::new(root, base);
                self.enter(mirror, None, handle, (seen, complete), None)?;
            }
            Err(error) => {
                let outcome = Removed::Failed(error.fault());
                mirror.tell(root, Vec::new(), RemovedKind::Directory, outcome);
                self.tokens.skip()?;
            }
        }
        Ok(true)
    }

    /// Goes into a directory that both sides have, whose token was taken.
    fn enter(
        &mut self,
        mirror: &Mirror,
        name: Option<Name>,
        handle: Arc<Handle>,
        (seen, complete): (Seen, bool),
        closed_mode: Option<u32>,
    ) -> io::Result<()> {
        let path = self.remover.path_of(name.as_ref());
        if !complete {
            // What lies below was listed by itself; but who can't list a directory may not know what
            // else it is not told.
            let text = "nothing in it was deleted: its listing at the source was not complete";
            let outcome = Removed::Kept(Fault::new(FaultCode::Special, text));
            self.remover
                .tell(mirror, path, RemovedKind::Directory, outcome);
            return self.tokens.skip();
        }
        let is_empty_root = name.is_none() && *self.peek()? == Token::Leave;
        let inside = Inside::Compared {
            seen,
            is_empty_root,
        };
        let mut frame = Frame::new(name, path, handle, inside);
        frame.closed_mode = closed_mode;
        self.remover.push_listed(mirror, frame);
        Ok(())
    }

    /// The next name of a directory that both sides have.
    fn compare(&mut self, sink: &Sink, mirror: &Mirror) -> io::Result<()> {
        let Some((name, is_empty_root)) = self.remover.next_compared()? else {
            self.pass_rest()?;
            self.leave(sink, mirror);
            return Ok(());
        };
        let Ok(name) = Name::new(name) else {
            return Ok(());
        };
        // What the source has and the destination has not is no affair of this.
        let found = loop {
            let (is_it, is_directory) = match self.peek()? {
                Token::Name(told) if **told <= *name.as_bytes() => (told == name.as_bytes(), false),
                Token::Directory { name: told, .. } if **told <= *name.as_bytes() => {
                    (told == name.as_bytes(), true)
                }
                _ => break None,
            };
            let token = self.peeked.take();
            match (is_it, is_directory) {
                (true, _) => break token,
                (false, true) => self.tokens.skip()?,
                (false, false) => {}
            }
        };
        match found {
            Some(Token::Directory { seen, complete, .. }) => {
                self.descend(mirror, name, seen, complete)
            }
            Some(_) => Ok(()),
            None if is_empty_root && !mirror.options.deleting.allow_empty => {
                if !self.remover.is_left_out(mirror, &name) {
                    self.refuse(mirror);
                }
                Ok(())
            }
            None => {
                self.remover.remove_superfluous(mirror, name);
                Ok(())
            }
        }
    }

    /// A directory that both sides have.
    fn descend(
        &mut self,
        mirror: &Mirror,
        name: Name,
        seen: Seen,
        complete: bool,
    ) -> io::Result<()> {
        match self.remover.open_below(mirror, &name) {
            Some((handle, closed_mode)) if handle.inode == seen.inode => {
                self.enter(mirror, Some(name), handle, (seen, complete), closed_mode)
            }
            Some((_, closed_mode)) => {
                // Another run has put one of its own there, and will know.
                let path = self.remover.path_of(Some(&name));
                let text = "nothing in it was deleted: it was replaced while this run went on";
                let outcome = Removed::Kept(Fault::new(FaultCode::Special, text));
                self.remover
                    .tell(mirror, path, RemovedKind::Directory, outcome);
                debug_assert!(closed_mode.is_none() || !mirror.dry_run);
                self.tokens.skip()
            }
            None => self.tokens.skip(),
        }
    }

    /// A directory that both sides have is done with: it gets back what the removals changed.
    fn leave(&mut self, sink: &Sink, mirror: &Mirror) {
        let Some((frame, handle)) = self.remover.pop(mirror) else {
            return;
        };
        let (Inside::Compared { seen, .. }, Some(handle)) = (&frame.inside, handle) else {
            return;
        };
        if let Err(errno) = sink.restore(&handle, &frame, *seen) {
            let error = StorageError::new("set the time of", &*handle.path, errno);
            let outcome = Removed::Failed(error.fault());
            self.remover
                .tell(mirror, frame.path, RemovedKind::Directory, outcome);
        }
    }

    /// Nothing is removed for the sake of a source that has nothing.
    fn refuse(&mut self, mirror: &Mirror) {
        let text = "the source is empty, or all of it is left out, so nothing was deleted: is a file \
                    system not mounted there? With --allow-empty the destination is emptied";
        let outcome = Removed::Failed(Fault::new(FaultCode::NotFound, text));
        let kind = RemovedKind::Directory;
        self.remover.tell(mirror, Vec::new(), kind, outcome);
        self.remover.pass_names();
    }

    /// Passes over what the source has beyond the last name here.
    fn pass_rest(&mut self) -> io::Result<()> {
        match self.peeked.take() {
            Some(Token::Leave) => return Ok(()),
            Some(Token::Directory { .. }) => self.tokens.skip()?,
            _ => {}
        }
        self.tokens.skip()
    }

    fn peek(&mut self) -> io::Result<&Token> {
        let token = match self.peeked.take() {
            Some(token) => token,
            None => self.tokens.next()?.ok_or(io::ErrorKind::UnexpectedEof)?,
        };
        Ok(self.peeked.insert(token))
    }
}

fn give_up(mirror: &Mirror, error: io::Error) {
    let error = StorageError::new("keep the list of what the source has", *b"", error);
    let outcome = Removed::Failed(error.fault());
    mirror.tell(0, Vec::new(), RemovedKind::Directory, outcome);
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
