//! One page of the manifest: what becomes of each entry.
//!
//! In: entries in the walk's order. Out: directories and symlinks made, files compared, the rest
//! wanted. A sender is not trusted: ids must ascend, a directory must have been told before what
//! lies in it, nothing may be nested too deeply, one name is written once at a time; what breaks
//! this fails with a fault of its own and harms nothing else.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use super::apply::{OWNER_ALL, OWNER_READS, Rules};
use super::commit::rename;
use super::compare::{self, Decision, Offered};
use super::directory::{Handle, Known, Parent};
use super::{Job, Pending, Placed, PlacedPage, Sink, State, in_place, older};
use crate::ids::EntryId;
use crate::limits::{DEPTH_MAX, PACK_FILE_BYTES_MAX, PATH_BYTES_MAX};
use crate::manifest::{Entry, EntryKind, Item, Metadata, Name, Note, Place};
use crate::storage::at;
use crate::storage::calls::{fchmod, mkdirat, symlinkat, unlinkat};
use crate::storage::error::{ShownPath, StorageError};
use crate::storage::open_up::OpenedUp;
use crate::storage::part_name::{is_part_name, stem_of};
use crate::storage::status::Status;
use crate::units::Timestamp;
use crate::wire::message::{Outcome, Overwrite};
use crate::wire::{Fault, FaultCode};

/// Most directories that are open at once: a walk goes depth first.
pub(super) const UNENDED_MAX: usize = DEPTH_MAX + 1;

/// How often a name is looked at whose file is another each time.
const LOOKS_MAX: u32 = 8;

/// Files of fewer chunks than this are fetched whole, unless they are to be told apart by content:
/// there is little to save, and both ends would hash for it.
const COMPARED_CHUNKS_MIN: u64 = 4;

/// Where an entry is put.
struct Spot {
    parent: Parent,
    directory: Arc<Handle>,
    /// `None`: it is the directory itself.
    name: Option<Name>,
    /// The directory was made by this run, so nothing is expected in it.
    fresh: bool,
}

/// What is there of a file that is wanted, and of use.
#[derive(Default)]
struct Existing {
    there: Option<Status>,
    /// Chunks before this one are compared.
    chunks: u64,
    /// It stays if its content is the same.
    compared: Option<Status>,
}

/// What one page needs to remember.
struct Page {
    now: Timestamp,
    /// The directory that the last entry was put in, as most have the same as the one before.
    last: Option<(EntryId, Arc<Handle>, bool)>,
    /// Directories with new symlinks, to be synced before those count as done.
    unsynced: Vec<(Parent, Arc<Handle>)>,
    /// The destination itself can't be used.
    unusable: Option<Fault>,
}

impl Sink {
    /// Decides about the entries of one page, in the manifest's order.
    pub fn place(&self, items: Vec<Item>) -> PlacedPage {
        if let Some(plan) = &self.plan {
            return self.plan_page(plan, items);
        }
        let mut page = Page {
            now: compare::now(),
            last: None,
            unsynced: Vec::new(),
            unusable: None,
        };
        let mut placed = PlacedPage::default();
        let mut ended = Vec::new();
        for item in items {
            match item {
                Item::Entry(entry) => {
                    let id = entry.id;
                    let place = self.mirror.is_some().then(|| entry.place.clone());
                    let directory =
                        (entry.kind == EntryKind::Directory).then_some(entry.metadata.mtime);
                    let answer = self.place_entry(entry, &mut page);
                    if let Some(place) = place {
                        self.list_entry(&place, id, directory);
                    }
                    placed.entries.push((id, answer.unwrap_or_else(failed)));
                    if page.unusable.is_some() {
                        break;
                    }
                }
                Item::Note(note @ Note::DirectoryEnd { directory, .. }) => {
                    self.list_note(&note);
                    // It may be the one remembered, and nothing more is taken into it.
                    page.last = None;
                    // The end of what is not open ends nothing.
                    if self.table().directories.end(directory) == Ok(true) {
                        ended.push(directory);
                    }
                }
                // What a sender skipped is told to the user by others.
                Item::Note(note) => self.list_note(&note),
            }
        }
        placed.unusable = page.unusable.take();
        self.sync_symlinks(&page.unsynced, &mut placed);
        placed.finished.extend(self.finish(ended));
        placed
    }

    fn place_entry(&self, entry: Entry, page: &mut Page) -> Result<Placed, Fault> {
        let Entry {
            id,
            place,
            kind,
            metadata,
        } = entry;
        self.claim(id)?;
        self.check_running()?;
        let is_directory = kind == EntryKind::Directory;
        self.check_mirrored(&place, is_directory)?;
        let spot = self.spot(&place, is_directory, page).and_then(|spot| {
            if let (Parent::Entry(parent), Some(name), false) =
                (&spot.parent, &spot.name, spot.fresh)
            {
                self.clear_the_way(*parent, &spot.directory, name, is_directory)?;
            }
            Ok(spot)
        });
        if is_directory {
            let answer = spot.and_then(|spot| self.place_directory(id, spot, metadata));
            if let Err(fault) = &answer {
                let mut table = self.table();
                if table.directories.unended() < UNENDED_MAX {
                    table.directories.add_failed(id, fault.code);
                }
            }
            return answer;
        }
        let spot = spot?;
        match kind {
            EntryKind::File { len, linked } => self.place_file(
                id,
                spot,
                Offered {
                    len,
                    mtime: metadata.mtime,
                },
                linked,
                metadata,
                page,
            ),
            EntryKind::Symlink(target) => self.place_symlink(id, spot, &target, &metadata, page),
            EntryKind::HardLink(to) => self.place_link(id, spot, to, metadata),
            EntryKind::Directory => Err(protocol("a directory was told twice")),
        }
    }

    /// Ids ascend, so none is told twice.
    pub(super) fn claim(&self, id: EntryId) -> Result<(), Fault> {
        let mut table = self.table();
        if id < table.next || id.0 == u64::MAX {
            return Err(protocol(format!("entry {id} was told out of order")));
        }
        table.next = EntryId(id.0 + 1);
        Ok(())
    }

    fn spot(&self, place: &Place, is_directory: bool, page: &mut Page) -> Result<Spot, Fault> {
        match place {
            Place::Root(source) => {
                let target = self.destination.target(*source, is_directory);
                let target = target.map_err(|error| {
                    let fault = error.fault();
                    // What a source is called may be refused, and the next one's name be fine.
                    if !matches!(fault.code, FaultCode::Invalid | FaultCode::Protocol) {
                        page.unusable = Some(fault.clone());
                    }
                    fault
                })?;
                let parent = Parent::Held(target.directory.clone());
                Ok(Spot {
                    parent,
                    directory: target.directory,
                    name: target.name,
                    fresh: false,
                })
            }
            Place::In(id, name) => self.spot_in(*id, name, page),
        }
        .and_then(|spot| match &spot.name {
            Some(name) if is_part_name(name.as_bytes()) => {
                let text = format!(
                    "'{}' was left out: names of this form are those of unfinished files",
                    ShownPath(&spot.directory.shown(name))
                );
                Err(Fault::new(FaultCode::Invalid, text))
            }
            _ => Ok(spot),
        })
    }

    fn spot_in(&self, id: EntryId, name: &Name, page: &mut Page) -> Result<Spot, Fault> {
        let parent = Parent::Entry(id);
        if let Some((last, directory, fresh)) = &page.last
            && *last == id
        {
            let directory = directory.clone();
            return Ok(Spot {
                parent,
                directory,
                name: Some(name.clone()),
                fresh: *fresh,
            });
        }
        let fresh = match self.table().directories.known(id) {
            Known::Placed(directory) if !directory.ended => directory.made,
            Known::Failed(code) => {
                let shown = ShownPath(name.as_bytes());
                let text = format!("can't write '{shown}': its directory could not be used");
                return Err(Fault::new(code, text));
            }
            _ => {
                let shown = ShownPath(name.as_bytes());
                let text = format!("'{shown}' was told in {id}, which is no open directory");
                return Err(protocol(text));
            }
        };
        let directory = self.handle(&parent, name.as_bytes())?;
        page.last = Some((id, directory.clone(), fresh));
        Ok(Spot {
            parent,
            directory,
            name: Some(name.clone()),
            fresh,
        })
    }

    fn place_directory(
        &self,
        id: EntryId,
        spot: Spot,
        metadata: Metadata,
    ) -> Result<Placed, Fault> {
        if self.table().directories.unended() >= UNENDED_MAX {
            return Err(protocol(format!(
                "directories are nested more than {DEPTH_MAX} deep"
            )));
        }
        let Spot {
            parent,
            directory,
            name,
            ..
        } = spot;
        let (opened, made) = match &name {
            None => {
                let failed = |errno| StorageError::new("look at", &*directory.path, errno);
                let mut status = Status::of(&*directory).map_err(failed)?;
                if let Some(mode) = directory.closed_mode {
                    status.mode = mode;
                }
                let_fill(&directory, &status).map_err(failed)?;
                ((directory, status), false)
            }
            Some(name) => make_directory(&directory, name, &metadata)?,
        };
        // Even where nothing is wanted: what a run that died was writing may be there by another way now.
        let swept = self.sweep(&opened.0, made);
        let mut table = self.table();
        if made {
            table.directories.touch(&parent);
        }
        table
            .directories
            .add(id, parent, name, metadata, opened, made);
        if swept {
            table.directories.touch(&Parent::Entry(id));
        }
        Ok(Placed::Directory)
    }

    fn place_file(
        &self,
        id: EntryId,
        spot: Spot,
        offered: Offered,
        linked: bool,
        metadata: Metadata,
        page: &Page,
    ) -> Result<Placed, Fault> {
        let (mut there, mut spot) = what_is_there(spot)?;
        let mut looks = 1;
        while let Some(seen) = &there {
            let shown = spot.directory.shown(spot.name()?);
            let by_content = self.reuse.checksum;
            let outcome = match compare::file(offered, seen, self.overwrite, by_content, page.now) {
                Decision::Replace => break,
                Decision::Keep => Some(Outcome::Unchanged),
                Decision::Same => self.update_file(id, &spot, &shown, &metadata, seen)?,
                Decision::Exists => return Err(exists(&shown)),
            };
            if let Some(outcome) = outcome {
                self.remember(id, linked, shown)?;
                return Ok(Placed::Settled(outcome));
            }
            // Runs into one tree that began together each publish the file that none had found: what
            // is there now is looked at afresh.
            if looks == LOOKS_MAX {
                let text = "another run is writing it at the same time; run it again when that has \
                            ended";
                return Err(StorageError::refused("update", shown, FaultCode::Busy, text).into());
            }
            looks += 1;
            (there, spot) = what_is_there(spot)?;
        }
        let there = there.filter(Status::is_file);
        if let (true, Some(there)) = (self.reuse.in_place, &there) {
            in_place::check(there, &spot.directory.shown(spot.name()?))?;
        }
        let chunks = there.map_or(0, |there| self.comparable(offered, &there));
        let compared = there.filter(|there| self.reuse.checksum && there.len == offered.len);
        let existing = Existing {
            there,
            chunks,
            compared,
        };
        self.want(id, spot, metadata, linked, existing, State::Wanted)?;
        Ok(match chunks {
            0 => Placed::Fetch,
            chunks => Placed::Compare { chunks },
        })
    }

    /// How many chunks of what is there are to be compared with what is offered.
    fn comparable(&self, offered: Offered, there: &Status) -> u64 {
        // Small files come in packs, whole.
        if offered.len <= PACK_FILE_BYTES_MAX {
            return 0;
        }
        let chunks = older::whole_chunks(self.chunk, there.len, offered.len);
        let is_compared = self.reuse.checksum && there.len == offered.len;
        // In place, what is the same need not even be written.
        let is_long = self.reuse.in_place || chunks >= COMPARED_CHUNKS_MIN;
        let is_worth_it = self.reuse.delta && is_long;
        if is_compared || is_worth_it {
            chunks
        } else {
            0
        }
    }

    /// Content is the same; the rest is brought up to date where that was asked for. Nothing: another
    /// file has taken the name meanwhile.
    fn update_file(
        &self,
        id: EntryId,
        spot: &Spot,
        shown: &[u8],
        metadata: &Metadata,
        there: &Status,
    ) -> Result<Option<Outcome>, Fault> {
        let mode = self
            .rules
            .exact_mode(metadata.mode, None)
            .unwrap_or(there.mode);
        let preserve = self.rules.preserve;
        let differs = mode != there.mode
            || (preserve.owner && (metadata.uid, metadata.gid) != (there.uid, there.gid));
        let notes = self.notes.of(id);
        self.rules.note_set_id(metadata.mode, mode, notes);
        if !differs && !preserve.xattrs {
            return Ok(Some(Outcome::Unchanged));
        }
        let failed = |errno| StorageError::new("open", shown, errno);
        let file = match open_file(&spot.directory, spot.name()?, there) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let status = Status::of(&file).map_err(failed)?;
        if !status.same_file(there) {
            return Ok(None);
        }
        let updated = self
            .rules
            .update(&file, shown, metadata, there, mode, notes);
        if status.mode != there.mode && !matches!(updated, Ok(true)) {
            // Opened up to be looked at only.
            fchmod(&file, Mode::from_raw_mode(there.mode)).map_err(failed)?;
        }
        Ok(Some(match updated? {
            true => Outcome::Updated,
            false => Outcome::Unchanged,
        }))
    }

    fn place_symlink(
        &self,
        id: EntryId,
        spot: Spot,
        target: &[u8],
        metadata: &Metadata,
        page: &mut Page,
    ) -> Result<Placed, Fault> {
        if !self.rules.preserve.symlinks {
            return Err(protocol("a symbolic link was told that was not asked for"));
        }
        if target.is_empty() || target.len() > PATH_BYTES_MAX || target.contains(&0) {
            return Err(protocol(
                "a symbolic link has a target that no link can have",
            ));
        }
        let (there, spot) = what_is_there(spot)?;
        let (directory, name) = (&spot.directory, spot.name()?);
        let shown = directory.shown(name);
        if let Some(there) = &there {
            let same = there.is_symlink()
                && at::read_link(directory, name).is_ok_and(|present| present == target);
            match compare::symlink(same, metadata.mtime, there, self.overwrite) {
                Decision::Replace => {}
                Decision::Keep => return Ok(Placed::Settled(Outcome::Unchanged)),
                Decision::Same => {
                    let notes = self.notes.of(id);
                    let updated = self
                        .rules
                        .update_symlink(directory, name, &shown, metadata, there, notes)?;
                    return Ok(Placed::Settled(match updated {
                        true => Outcome::Updated,
                        false => Outcome::Unchanged,
                    }));
                }
                Decision::Exists => return Err(exists(&shown)),
            }
        }
        self.sweep(directory, spot.fresh);
        self.make_symlink(id, &spot, &shown, target, metadata)?;
        self.table().directories.touch(&spot.parent);
        if self.sync {
            page.note_unsynced(&spot.parent, directory);
        }
        Ok(Placed::Settled(Outcome::Published {
            bytes: 0,
            digest: None,
        }))
    }

    /// Under a name of our own first: whoever looks sees the old link or the new one.
    fn make_symlink(
        &self,
        id: EntryId,
        spot: &Spot,
        shown: &[u8],
        target: &[u8],
        metadata: &Metadata,
    ) -> Result<(), Fault> {
        let (directory, name) = (&*spot.directory, spot.name()?);
        let hidden = self.unique.next();
        symlinkat(target, directory, hidden.as_bytes())
            .map_err(|errno| StorageError::new("make the symbolic link", shown, errno))?;
        let answer = self
            .rules
            .apply_to_symlink(directory, &hidden, shown, metadata, self.notes.of(id))
            .and_then(|()| rename(directory, &hidden, name, self.must_be_new(), shown));
        if answer.is_err() {
            let _ = unlinkat(directory, hidden.as_bytes(), AtFlags::empty());
        }
        Ok(answer?)
    }

    fn place_link(
        &self,
        id: EntryId,
        spot: Spot,
        to: EntryId,
        metadata: Metadata,
    ) -> Result<Placed, Fault> {
        if !self.rules.preserve.hard_links {
            return Err(protocol("a hard link was told that was not asked for"));
        }
        if to >= id {
            return Err(protocol("a hard link was told before its file"));
        }
        let (there, spot) = what_is_there(spot)?;
        if there.is_some() {
            match self.overwrite {
                Overwrite::Error => return Err(exists(&spot.directory.shown(spot.name()?))),
                Overwrite::Never => return Ok(Placed::Settled(Outcome::Unchanged)),
                _ => {}
            }
        }
        self.want(
            id,
            spot,
            metadata,
            false,
            Existing::default(),
            State::Link(to),
        )?;
        Ok(Placed::Link { to })
    }

    fn want(
        &self,
        id: EntryId,
        spot: Spot,
        metadata: Metadata,
        linked: bool,
        existing: Existing,
        state: State,
    ) -> Result<(), Fault> {
        let Spot {
            parent,
            directory,
            name,
            fresh,
        } = spot;
        let Existing {
            there,
            chunks,
            compared,
        } = existing;
        let name = name.ok_or_else(nameless)?;
        self.sweep(&directory, fresh);
        let key = (directory.inode.0, directory.inode.1, stem_of(&name));
        let mut table = self.table();
        if !table.names.insert(key) {
            let shown = directory.shown(&name);
            let text = format!("two sources want to be '{}' at once", ShownPath(&shown));
            return Err(Fault::new(FaultCode::Exists, text));
        }
        table.directories.count(&parent, 1);
        // A link may turn out to be there.
        if !matches!(state, State::Link(_)) {
            table.directories.touch(&parent);
        }
        let job = Job {
            parent,
            name,
            metadata,
            linked,
            existing_mode: there.map(|there| there.mode),
            older: there.filter(|_| chunks > 0).map(|there| (there, chunks)),
            compared,
            in_place: there.filter(|_| self.reuse.in_place),
        };
        table.pending.insert(id, Pending { job, key, state });
        Ok(())
    }

    /// Removes what runs that died left in a directory that takes part. One that this run made (`fresh`) has
    /// nothing of the kind. Whether anything was there.
    fn sweep(&self, directory: &Handle, fresh: bool) -> bool {
        let is_due = !fresh && !directory.swept.swap(true, Ordering::Relaxed);
        is_due && self.sweeper.sweep(directory, directory.inode)
    }

    /// Keeps the path of a file that later entries may be links to.
    pub(super) fn remember(&self, id: EntryId, linked: bool, shown: Vec<u8>) -> Result<(), Fault> {
        if !linked || !self.rules.preserve.hard_links {
            return Ok(());
        }
        let mut published = self
            .published
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        published
            .add(id, shown)
            .map_err(|error| StorageError::new("keep the table of hard links", *b"", error).into())
    }

    /// Whether nothing that exists may be replaced, not even what appeared since it was looked at.
    pub(super) fn must_be_new(&self) -> bool {
        matches!(self.overwrite, Overwrite::Error | Overwrite::Never)
    }

    fn sync_symlinks(&self, unsynced: &[(Parent, Arc<Handle>)], placed: &mut PlacedPage) {
        let named = unsynced
            .iter()
            .map(|(parent, directory)| (parent, directory));
        let Err(fault) = self.sync_names(named) else {
            return;
        };
        // Which link is in which directory is not kept: none of the page counts as done.
        for (_, answer) in &mut placed.entries {
            if matches!(answer, Placed::Settled(Outcome::Published { .. })) {
                *answer = failed(fault.clone());
            }
        }
    }
}

impl Spot {
    fn name(&self) -> Result<&Name, Fault> {
        self.name.as_ref().ok_or_else(nameless)
    }
}

impl Page {
    fn note_unsynced(&mut self, parent: &Parent, directory: &Arc<Handle>) {
        // Links of one directory come together, by and large.
        let is_last = |(_, last): &(Parent, Arc<Handle>)| last.inode == directory.inode;
        if !self.unsynced.last().is_some_and(is_last) {
            self.unsynced.push((parent.clone(), directory.clone()));
        }
    }
}

/// Looks at the name of a file or link. Only files and symlinks are ever replaced: a directory is in
/// the way, and so is a device, FIFO or socket, which is more than a name to whoever uses it.
fn what_is_there(spot: Spot) -> Result<(Option<Status>, Spot), Fault> {
    let name = spot.name()?;
    if spot.fresh {
        return Ok((None, spot));
    }
    let there = what_stands_there(&spot.directory, name)?;
    Ok((there, spot))
}

pub(super) fn what_stands_there(directory: &Handle, name: &Name) -> Result<Option<Status>, Fault> {
    match Status::at(directory, name) {
        Err(Errno::NOENT) => Ok(None),
        Ok(there) if there.is_directory() => {
            let shown = directory.shown(name);
            let text = "a directory stands there; remove it or choose another place";
            Err(StorageError::refused("write", shown, FaultCode::WrongKind, text).into())
        }
        Ok(there) if !there.is_file() && !there.is_symlink() => {
            let shown = directory.shown(name);
            let text = "a device, FIFO or socket stands there; remove it or choose another place";
            Err(StorageError::refused("write", shown, FaultCode::WrongKind, text).into())
        }
        Ok(there) => Ok(Some(there)),
        Err(errno) => Err(StorageError::new("look at", directory.shown(name), errno).into()),
    }
}

/// Makes or finds a directory that this run can fill.
fn make_directory(
    above: &Handle,
    name: &Name,
    metadata: &Metadata,
) -> Result<((Arc<Handle>, Status), bool), Fault> {
    let shown = above.shown(name);
    let failed = |errno| StorageError::new("make the directory", &*shown, errno);
    let mode = Mode::from_raw_mode(Rules::filling_mode(metadata.mode));
    let made = match mkdirat(above, name.as_bytes(), mode) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(failed(errno).into()),
    };
    let opened = match above.open(name) {
        Err(Errno::ACCESS) if !made => open_up(above, name),
        answer => answer,
    };
    let (handle, before) = match opened {
        Ok(opened) => opened,
        Err(Errno::NOTDIR | Errno::LOOP) => {
            let text = "something else stands there; remove it or choose another place";
            let error =
                StorageError::refused("make the directory", shown, FaultCode::WrongKind, text);
            return Err(error.into());
        }
        Err(errno) => return Err(failed(errno).into()),
    };
    let_fill(&handle, &before).map_err(failed)?;
    Ok(((Arc::new(handle), before), made))
}

/// Opens a directory that its owner may not list, if that is us, by letting us. Tells what it was
/// like before.
fn open_up(above: &Handle, name: &Name) -> rustix::io::Result<(Handle, Status)> {
    let opened = OpenedUp::below(above, name.as_bytes(), OWNER_ALL)?;
    let (handle, _) = above.open(name)?;
    if handle.inode != (opened.before.device, opened.before.inode) {
        return Err(Errno::STALE);
    }
    Ok((handle, opened.before))
}

/// Lets this run fill a directory that is closed to its own owner, as a copied read-only one is;
/// `before` is given back when it is finished.
fn let_fill(handle: &Handle, before: &Status) -> rustix::io::Result<()> {
    let uid = rustix::process::geteuid();
    if uid.is_root() || before.uid != uid.as_raw() || before.mode & OWNER_ALL == OWNER_ALL {
        return Ok(());
    }
    fchmod(handle, Mode::from_raw_mode(before.mode | OWNER_ALL))
}

/// Opens a file to bring its metadata up to date; one that its owner, if that is us, may not read is
/// opened up for that.
fn open_file(directory: &Handle, name: &Name, seen: &Status) -> rustix::io::Result<OwnedFd> {
    match at::open_regular(directory, name) {
        Ok((file, _)) => Ok(file),
        Err(Errno::ACCESS) => {
            let opened = OpenedUp::below(directory, name.as_bytes(), OWNER_READS)?;
            let file = at::open_regular(directory, name);
            if file.is_err() || !opened.before.same_file(seen) {
                opened.restore()?;
            }
            file.map(|(file, _)| file)
        }
        Err(errno) => Err(errno),
    }
}

pub(super) fn failed(fault: Fault) -> Placed {
    Placed::Settled(Outcome::Failed(fault))
}

pub(super) fn exists(shown: &[u8]) -> Fault {
    let text = format!("'{}' exists and was not to be replaced", ShownPath(shown));
    Fault::new(FaultCode::Exists, text)
}

pub(super) fn protocol(text: impl Into<String>) -> Fault {
    Fault::new(FaultCode::Protocol, text)
}

pub(super) fn nameless() -> Fault {
    protocol("something that is no directory was told as a destination's contents")
}
