//! A dry run: what would become of each entry, and why. Nothing is made, written, opened up or swept.
//!
//! In: entries in the walk's order. Out: a reason for each, or the failure that the real run would end
//! it with as far as looking can tell: what is in the way, a directory that may not be written into, a
//! destination that is not there. Space, quotas and the limits of the file system are not tried.
//! Directories that are there are kept as those of a real run, so that they are opened the same way.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Access, AtFlags, accessat};
use rustix::io::Errno;

use super::compare::{self, Decision, Offered, is_same_time};
use super::directory::{Handle, Known, Parent};
use super::place::{UNENDED_MAX, exists, failed, protocol, what_stands_there};
use super::published::Published;
use super::{Placed, PlacedPage, Sink};
use crate::ids::EntryId;
use crate::manifest::{Entry, EntryKind, Item, Metadata, Name, Note, Place};
use crate::storage::at;
use crate::storage::error::{ShownPath, StorageError};
use crate::storage::part_name::is_part_name;
use crate::storage::status::Status;
use crate::storage::xattr;
use crate::units::Timestamp;
use crate::wire::message::{Outcome, Overwrite, Reason};
use crate::wire::{Fault, FaultCode};

/// What a dry run remembers.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Directories that would be made and have not ended.
    absent: Mutex<HashSet<EntryId>>,
    /// Files that links may come to: what of them is there, by file system and number.
    inodes: Mutex<Published>,
}

/// Where an entry would go.
struct Spot {
    parent: Parent,
    /// Nothing: that directory would be made.
    directory: Option<Arc<Handle>>,
    /// Nothing: it is the directory itself.
    name: Option<Name>,
}

impl Sink {
    /// Says what would become of the entries of one page, in the manifest's order.
    pub(super) fn plan_page(&self, plan: &Plan, items: Vec<Item>) -> PlacedPage {
        let mut placed = PlacedPage::default();
        let now = compare::now();
        for item in items {
            match item {
                Item::Entry(entry) => {
                    let id = entry.id;
                    let place = self.mirror.is_some().then(|| entry.place.clone());
                    let directory =
                        (entry.kind == EntryKind::Directory).then_some(entry.metadata.mtime);
                    let answer = self.plan_entry(plan, entry, now, &mut placed.unusable);
                    let answer = answer.map(|reason| Placed::Settled(Outcome::Planned(reason)));
                    if let Some(place) = place {
                        self.list_entry(&place, id, directory);
                    }
                    placed.entries.push((id, answer.unwrap_or_else(failed)));
                    if placed.unusable.is_some() {
                        break;
                    }
                }
                Item::Note(note @ Note::DirectoryEnd { directory, .. }) => {
                    self.list_note(&note);
                    if !plan.absent().remove(&directory) {
                        self.plan_end(directory);
                    }
                }
                Item::Note(note) => self.list_note(&note),
            }
        }
        placed
    }

    /// Forgets a directory that has ended.
    fn plan_end(&self, id: EntryId) {
        let mut table = self.table();
        if table.directories.end(id).is_ok()
            && let Some(directory) = table.directories.take(id)
        {
            // It is told already, and so is what it lies in.
            let _ = table.directories.settle(&directory.parent);
        }
    }

    fn plan_entry(
        &self,
        plan: &Plan,
        entry: Entry,
        now: Timestamp,
        unusable: &mut Option<Fault>,
    ) -> Result<Reason, Fault> {
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
        let spot = self.plan_spot(plan, &place, is_directory, unusable);
        // What would be removed first is not in the way.
        if let Ok(Spot {
            parent: Parent::Entry(parent),
            directory: Some(directory),
            name: Some(name),
        }) = &spot
            && self.clear_the_way(*parent, directory, name, is_directory)?
        {
            if is_directory {
                plan.absent().insert(id);
            }
            return Ok(Reason::KindDiffers);
        }
        if is_directory {
            let answer = spot.and_then(|spot| self.plan_directory(plan, id, spot, metadata));
            if let Err(fault) = &answer {
                let mut table = self.table();
                if table.directories.unended() < UNENDED_MAX {
                    table.directories.add_failed(id, fault.code);
                }
            }
            return answer;
        }
        let spot = spot?;
        let reason = match kind {
            EntryKind::File { len, linked } => {
                let mtime = metadata.mtime;
                self.plan_file(
                    plan,
                    (id, linked),
                    &spot,
                    Offered { len, mtime },
                    &metadata,
                    now,
                )
            }
            EntryKind::Symlink(target) => self.plan_symlink(&spot, &target, &metadata),
            EntryKind::HardLink(to) => self.plan_link(plan, &spot, to),
            EntryKind::Directory => Err(protocol("a directory was told twice")),
        }?;
        if reason.action() == crate::wire::message::Action::Copy {
            may_write(&spot)?;
        }
        Ok(reason)
    }

    fn plan_spot(
        &self,
        plan: &Plan,
        place: &Place,
        is_directory: bool,
        unusable: &mut Option<Fault>,
    ) -> Result<Spot, Fault> {
        let spot = match place {
            Place::Root(source) => {
                let found = self.destination.survey(*source, is_directory);
                let (directory, name) = found.map_err(|error| {
                    let fault = error.fault();
                    if !matches!(fault.code, FaultCode::Invalid | FaultCode::Protocol) {
                        *unusable = Some(fault.clone());
                    }
                    fault
                })?;
                // Nothing is ever owed to a directory that would be made.
                let parent = directory
                    .clone()
                    .map_or(Parent::Entry(EntryId(u64::MAX)), Parent::Held);
                Spot {
                    parent,
                    directory,
                    name,
                }
            }
            Place::In(id, name) => {
                let is_absent = plan.absent().contains(id);
                if !is_absent {
                    match self.table().directories.known(*id) {
                        Known::Placed(directory) if !directory.ended => {}
                        Known::Failed(code) => {
                            let shown = ShownPath(name.as_bytes());
                            let text =
                                format!("can't write '{shown}': its directory could not be used");
                            return Err(Fault::new(code, text));
                        }
                        _ => {
                            let shown = ShownPath(name.as_bytes());
                            let text =
                                format!("'{shown}' was told in {id}, which is no open directory");
                            return Err(protocol(text));
                        }
                    }
                }
                let parent = Parent::Entry(*id);
                let directory = match is_absent {
                    true => None,
                    false => Some(self.handle(&parent, name.as_bytes())?),
                };
                Spot {
                    parent,
                    directory,
                    name: Some(name.clone()),
                }
            }
        };
        match &spot.name {
            Some(name) if is_part_name(name.as_bytes()) => {
                let text = format!(
                    "'{}' was left out: names of this form are those of unfinished files",
                    ShownPath(name.as_bytes())
                );
                Err(Fault::new(FaultCode::Invalid, text))
            }
            _ => Ok(spot),
        }
    }

    fn plan_directory(
        &self,
        plan: &Plan,
        id: EntryId,
        spot: Spot,
        metadata: Metadata,
    ) -> Result<Reason, Fault> {
        let mut absent = plan.absent();
        if self.table().directories.unended() + absent.len() >= UNENDED_MAX {
            return Err(protocol("directories are nested too deep"));
        }
        let there = match (&spot.directory, &spot.name) {
            (Some(directory), None) => Some((directory.clone(), Status::of(&**directory))),
            (Some(directory), Some(name)) => match directory.open(name) {
                Ok((opened, status)) => Some((Arc::new(opened), Ok(status))),
                Err(Errno::NOENT) => None,
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    let text = "something else stands there; remove it or choose another place";
                    let (code, shown) = (FaultCode::WrongKind, directory.shown(name));
                    let error = StorageError::refused("make the directory", shown, code, text);
                    return Err(error.into());
                }
                Err(errno) => {
                    let shown = directory.shown(name);
                    return Err(StorageError::new("make the directory", shown, errno).into());
                }
            },
            (None, _) => None,
        };
        let Some((handle, status)) = there else {
            may_write(&spot)?;
            absent.insert(id);
            return Ok(Reason::New);
        };
        drop(absent);
        let failed = |errno| StorageError::new("look at", &*handle.path, errno);
        let status = status.map_err(failed)?;
        let mode = self.rules.directory_mode(metadata.mode, &status, false);
        let keeps = self.only_adds;
        let differs = !keeps
            && (mode != status.mode
                || !is_same_time(status.mtime, metadata.mtime)
                || self.owner_differs(&metadata, &status)
                || self.attributes_differ(&metadata, || xattr::read_open(&*handle).ok()));
        let mut table = self.table();
        let found = (handle, status);
        table
            .directories
            .add(id, spot.parent, spot.name, metadata, found, false);
        Ok(match differs {
            true => Reason::MetadataDiffers,
            false => Reason::There,
        })
    }

    fn plan_file(
        &self,
        plan: &Plan,
        (id, linked): (EntryId, bool),
        spot: &Spot,
        offered: Offered,
        metadata: &Metadata,
        now: Timestamp,
    ) -> Result<Reason, Fault> {
        let Some((directory, name, there)) = look(spot)? else {
            return Ok(Reason::New);
        };
        let shown = directory.shown(name);
        let by_content = self.reuse.checksum;
        let reason = match compare::file(offered, &there, self.overwrite, by_content, now) {
            Decision::Exists => return Err(exists(&shown)),
            Decision::Keep if self.overwrite == Overwrite::Never => Reason::KeptNever,
            Decision::Keep => Reason::KeptNewer,
            Decision::Same => self.plan_update(directory, name, metadata, &there),
            Decision::Replace if !there.is_file() => Reason::KindDiffers,
            Decision::Replace if there.len != offered.len => Reason::SizeDiffers,
            Decision::Replace if by_content => Reason::ByContent,
            Decision::Replace if is_same_time(there.mtime, offered.mtime) => Reason::Doubtful,
            Decision::Replace if there.mtime < offered.mtime => Reason::Newer,
            Decision::Replace => Reason::Older,
        };
        if linked && reason.action() != crate::wire::message::Action::Copy {
            let inode = [there.device.to_le_bytes(), there.inode.to_le_bytes()].concat();
            let kept = plan.inodes().add(id, inode);
            let failed = |error| StorageError::new("keep the table of hard links", *b"", error);
            kept.map_err(failed)?;
        }
        Ok(reason)
    }

    /// Content is the same; is the rest?
    fn plan_update(
        &self,
        directory: &Handle,
        name: &Name,
        metadata: &Metadata,
        there: &Status,
    ) -> Reason {
        let mode = self.rules.exact_mode(metadata.mode, None);
        let read = || {
            let (file, _) = at::open_regular(directory, name).ok()?;
            xattr::read_open(file).ok()
        };
        let differs = mode.is_some_and(|mode| mode != there.mode)
            || self.owner_differs(metadata, there)
            || self.attributes_differ(metadata, read);
        match differs {
            true => Reason::MetadataDiffers,
            false => Reason::Same,
        }
    }

    fn plan_symlink(
        &self,
        spot: &Spot,
        target: &[u8],
        metadata: &Metadata,
    ) -> Result<Reason, Fault> {
        if !self.rules.preserve.symlinks {
            return Err(protocol("a symbolic link was told that was not asked for"));
        }
        let Some((directory, name, there)) = look(spot)? else {
            return Ok(Reason::New);
        };
        let same = there.is_symlink()
            && at::read_link(directory, name).is_ok_and(|present| present == target);
        Ok(
            match compare::symlink(same, metadata.mtime, &there, self.overwrite) {
                Decision::Exists => return Err(exists(&directory.shown(name))),
                Decision::Keep if self.overwrite == Overwrite::Never => Reason::KeptNever,
                Decision::Keep => Reason::KeptNewer,
                Decision::Same
                    if !is_same_time(there.mtime, metadata.mtime)
                        || self.owner_differs(metadata, &there) =>
                {
                    Reason::MetadataDiffers
                }
                Decision::Same => Reason::There,
                Decision::Replace if !there.is_symlink() => Reason::KindDiffers,
                Decision::Replace => Reason::TargetDiffers,
            },
        )
    }

    fn plan_link(&self, plan: &Plan, spot: &Spot, to: EntryId) -> Result<Reason, Fault> {
        if !self.rules.preserve.hard_links {
            return Err(protocol("a hard link was told that was not asked for"));
        }
        let Some((directory, name, there)) = look(spot)? else {
            return Ok(Reason::New);
        };
        match self.overwrite {
            Overwrite::Error => return Err(exists(&directory.shown(name))),
            Overwrite::Never => return Ok(Reason::KeptNever),
            _ => {}
        }
        let failed = |error| StorageError::new("find the file of", directory.shown(name), error);
        let file = plan.inodes().get(to).map_err(failed)?;
        let inode = [there.device.to_le_bytes(), there.inode.to_le_bytes()].concat();
        Ok(match file == Some(inode) {
            true => Reason::There,
            false => Reason::NotLinked,
        })
    }

    /// Who may not give files away leaves owners as they are.
    fn owner_differs(&self, metadata: &Metadata, there: &Status) -> bool {
        self.rules.preserve.owner
            && rustix::process::geteuid().is_root()
            && (metadata.uid, metadata.gid) != (there.uid, there.gid)
    }

    /// What can't be read here is taken for the same.
    fn attributes_differ(
        &self,
        metadata: &Metadata,
        read: impl FnOnce() -> Option<xattr::Xattrs>,
    ) -> bool {
        if !self.rules.preserve.xattrs {
            return false;
        }
        let carried = |(name, _): &&(Vec<u8>, Vec<u8>)| xattr::is_carried(name);
        let mut wanted: Vec<_> = metadata.xattrs.iter().filter(carried).cloned().collect();
        wanted.sort_unstable();
        read().is_some_and(|present| present != wanted)
    }
}

impl Plan {
    fn absent(&self) -> std::sync::MutexGuard<'_, HashSet<EntryId>> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inodes(&self) -> std::sync::MutexGuard<'_, Published> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What stands at the place of a file or link, if anything does.
fn look(spot: &Spot) -> Result<Option<(&Handle, &Name, Status)>, Fault> {
    let name = spot.name.as_ref().ok_or_else(super::place::nameless)?;
    let Some(directory) = &spot.directory else {
        return Ok(None);
    };
    let there = what_stands_there(directory, name)?;
    Ok(there.map(|there| (&**directory, name, there)))
}

/// Whether names can be made in a directory. One that is ours is opened up by a real run.
fn may_write(spot: &Spot) -> Result<(), Fault> {
    let Some(directory) = &spot.directory else {
        return Ok(());
    };
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    match accessat(&**directory, c".", wanted, AtFlags::empty()) {
        Err(Errno::ACCESS)
            if Status::of(&**directory)
                .is_ok_and(|status| status.uid == rustix::process::geteuid().as_raw()) =>
        {
            Ok(())
        }
        Err(errno) => Err(StorageError::new("write into", &*directory.path, errno).into()),
        Ok(()) => Ok(()),
    }
}
