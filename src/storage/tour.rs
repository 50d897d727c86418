//! The manifest of a transfer's sources, page by page.
//!
//! In: the steps of a [`Walk`] per source. Out: entries with handles, notes of what is left out, and
//! in [`Files`] where each file is. What is carried and what is only noted is decided here:
//!
//! | found | told as |
//! | --- | --- |
//! | regular file | `File`; `HardLink` if the inode was told before and hard links are carried |
//! | directory | `Directory`, its entries, `DirectoryEnd` |
//! | symlink | `Symlink` if symlinks are carried, else a note |
//! | device, FIFO, socket; mount point; vanished since it was listed | a note |
//! | what the filters leave out | nothing, and nothing below it |
//! | what can't be looked at or listed | a failure; if it is a directory, also not complete |
//!
//! A source itself that is not there, is special, or is a directory without `recursive`, is a
//! failure. Extended attributes beyond the limits, or that can't be read, are left out whole; the
//! entry is told without them and the loss is a failure beside it, since they were asked for.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::at::read_link;
use super::directory::{Directory, OpenDirectories};
use super::error::{ShownPath, StorageError};
use super::links::LinkTable;
use super::root::{LastSymlink, not_copied, special};
use super::source::{Files, Location, SourceSpec, WalkOptions};
use super::status::Status;
use super::walk::{Found, OwnFiles, Step, Trouble, TroubleAt, Walk};
use super::xattr::{self, XattrError, Xattrs};
use crate::ids::EntryId;
use crate::limits::DEPTH_MAX;
use crate::limits::{LINKS_IN_MEMORY_MAX, PAGE_BYTES_TARGET, PAGE_ITEMS_MAX, WALK_NAMES_BYTES_MAX};
use crate::manifest::{Entry, EntryKind, Item, Metadata, Name, Note, Place};
use crate::wire::message::ManifestPage;
use crate::wire::{Fault, FaultCode};

/// Upper bound of what an item takes beside its variable parts, in bytes.
const ITEM_BYTES: usize = 96;

/// The state of a manifest that is being told.
pub(super) struct Tour {
    sources: Vec<SourceSpec>,
    options: WalkOptions,
    /// How many sources were begun.
    begun: u32,
    next_id: u64,
    walk: Option<Walk>,
    links: LinkTable,
    /// Told by a step, not yet in a page.
    ready: VecDeque<Item>,
    names_bytes_max: usize,
}

/// What a step works with.
#[derive(Clone, Copy)]
struct Tables<'a> {
    open: &'a OpenDirectories,
    files: &'a Files,
}

impl Tour {
    pub(super) fn new(sources: Vec<SourceSpec>, options: WalkOptions) -> Self {
        Self {
            sources,
            options,
            begun: 0,
            next_id: 0,
            walk: None,
            links: LinkTable::new(LINKS_IN_MEMORY_MAX),
            ready: VecDeque::new(),
            names_bytes_max: WALK_NAMES_BYTES_MAX,
        }
    }

    /// The next page.
    pub(super) fn next_page(
        &mut self,
        open: &OpenDirectories,
        files: &Files,
    ) -> Result<ManifestPage, StorageError> {
        if self.options.preserve.xattrs && !xattr::reachable() {
            let text = "extended attributes are read through /proc, which is not mounted here";
            let code = FaultCode::Incompatible;
            return Err(StorageError::refused(
                "read extended attributes",
                *b"",
                code,
                text,
            ));
        }
        let tables = Tables { open, files };
        let mut items = Vec::new();
        let mut bytes = 0;
        while items.len() < PAGE_ITEMS_MAX && bytes < PAGE_BYTES_TARGET {
            match self.ready.pop_front() {
                Some(item) => {
                    bytes += encoded_bytes(&item);
                    items.push(item);
                }
                None if self.step(tables) => {}
                None => return Ok(ManifestPage { items, last: true }),
            }
        }
        Ok(ManifestPage { items, last: false })
    }

    /// Gets on by one step; false when there is none.
    fn step(&mut self, tables: Tables<'_>) -> bool {
        if let Some(walk) = &mut self.walk {
            match walk.next(tables.open) {
                Some(Step::Found(found)) => self.found(found, tables),
                Some(Step::Left {
                    directory,
                    complete,
                }) => {
                    let directory = directory.id;
                    self.ready.push_back(Item::Note(Note::DirectoryEnd {
                        directory,
                        complete,
                    }));
                }
                Some(Step::Trouble(trouble)) => self.trouble(trouble),
                None => self.walk = None,
            }
            return true;
        }
        let root = self.begun;
        let Some(spec) = self.sources.get(root as usize).cloned() else {
            return false;
        };
        self.begun += 1;
        if let Err(error) = self.begin(root, &spec, tables) {
            self.skip(Place::Root(root), error.fault(), true);
        }
        true
    }

    /// Tells a source itself.
    fn begin(
        &mut self,
        root: u32,
        spec: &SourceSpec,
        tables: Tables<'_>,
    ) -> Result<(), StorageError> {
        let keeps = self.options.preserve.symlinks && !spec.path.ends_with(b"/");
        let last = if keeps {
            LastSymlink::Keep
        } else {
            LastSymlink::Follow
        };
        let (seen, status) = spec.root.resolve(&spec.path, last)?;
        let place = Place::Root(root);
        if status.is_directory() {
            return self.begin_directory(place, spec, tables);
        }
        if status.is_symlink() {
            let failed = |errno| StorageError::new("read the link", &*spec.path, errno);
            // An empty path names the link that was opened itself (readlinkat(2)).
            let target = rustix::fs::readlinkat(&seen, c"", Vec::new()).map_err(failed)?;
            let kind = EntryKind::Symlink(target.into_bytes());
            self.tell(place, kind, status.metadata());
            return Ok(());
        }
        if !status.is_file() {
            return Err(special(&spec.path, status.kind));
        }
        let xattrs = self.xattrs(|| {
            let (file, _) = spec.root.open_regular(&spec.path)?;
            Ok((spec.path.clone(), xattr::read_open(file)))
        });
        self.file(place, &status, xattrs, Location::Root(spec.clone()), tables);
        Ok(())
    }

    fn begin_directory(
        &mut self,
        place: Place,
        spec: &SourceSpec,
        tables: Tables<'_>,
    ) -> Result<(), StorageError> {
        if !self.options.recursive {
            let text = "it is a directory; add -r to copy it with all below it";
            return Err(StorageError::refused(
                "copy",
                &*spec.path,
                FaultCode::Invalid,
                text,
            ));
        }
        let id = EntryId(self.next_id);
        let base = Directory::base(id, Arc::clone(&spec.root), spec.path.clone());
        let fd = tables.open.open(&base)?;
        let failed = |errno| StorageError::new("look at", &*spec.path, errno);
        let status = Status::of(&fd).map_err(failed)?;
        let xattrs = self.xattrs(|| Ok((spec.path.clone(), xattr::read_open(&fd))));
        self.tell_with(place, EntryKind::Directory, &status, xattrs);
        self.walk = Some(Walk::new(
            base,
            status,
            OwnFiles::Hidden,
            self.names_bytes_max,
        ));
        Ok(())
    }

    /// Tells what a walk found.
    fn found(&mut self, found: Found, tables: Tables<'_>) {
        let place = Place::In(found.parent.id, found.name.clone());
        let path = || found.parent.path_of(found.name.as_bytes());
        if self.leaves_out(&found.parent, &found.name, found.status.is_directory()) {
            return;
        }
        if found.mount_point {
            let text = "is a mount point; other mounts are not entered";
            return self.note(place, &path(), text);
        }
        let status = found.status;
        if status.is_directory() && found.parent.depth >= DEPTH_MAX {
            // A receiver takes no more either, so it is not even told.
            let text = format!(
                "directories are nested more than {DEPTH_MAX} deep; copy the lower ones by themselves"
            );
            let error = StorageError::refused("copy", path(), FaultCode::Storage, text);
            self.skip(place, error.fault(), true);
        } else if status.is_directory() {
            let id = EntryId(self.next_id);
            if let Some(walk) = &mut self.walk {
                walk.descend(id, &found);
            }
            let xattrs = self.xattrs_of(&found, tables);
            self.tell_with(place, EntryKind::Directory, &status, xattrs);
        } else if status.is_file() {
            let xattrs = self.xattrs_of(&found, tables);
            let location = Location::In(found.parent, found.name);
            self.file(place, &status, xattrs, location, tables);
        } else if status.is_symlink() && !self.options.preserve.symlinks {
            self.note(
                place,
                &path(),
                "is a symbolic link; symbolic links are carried with -a",
            );
        } else if status.is_symlink() {
            match open_parent(&found, tables).and_then(|fd| {
                read_link(&fd, &found.name)
                    .map_err(|errno| StorageError::new("read the link", path(), errno))
            }) {
                Ok(target) => self.tell(place, EntryKind::Symlink(target), status.metadata()),
                Err(error) => self.skip(place, error.fault(), true),
            }
        } else {
            let text = format!("is {}", not_copied(status.kind));
            self.note(place, &path(), &text);
        }
    }

    fn file(
        &mut self,
        place: Place,
        status: &Status,
        xattrs: Result<Xattrs, StorageError>,
        location: Location,
        tables: Tables<'_>,
    ) {
        let id = EntryId(self.next_id);
        let linked = self.options.preserve.hard_links && status.links > 1;
        let first = if linked {
            self.links.first(status, id)
        } else {
            Ok(None)
        };
        let kind = match first {
            Ok(Some(first)) => EntryKind::HardLink(first),
            Ok(None) => EntryKind::File {
                len: status.len,
                linked,
            },
            Err(error) => {
                // The file is carried all the same, as one of its own.
                let error = StorageError::new("keep track of the links of", location.path(), error);
                self.skip(place.clone(), error.fault(), true);
                EntryKind::File {
                    len: status.len,
                    linked: false,
                }
            }
        };
        tables.files.insert(id, location);
        self.tell_with(place, kind, status, xattrs);
    }

    /// Tells an entry, and beside it the loss of its attributes if they could not be read.
    fn tell_with(
        &mut self,
        place: Place,
        kind: EntryKind,
        status: &Status,
        xattrs: Result<Xattrs, StorageError>,
    ) {
        let mut metadata = status.metadata();
        let mut loss = None;
        match xattrs {
            Ok(xattrs) => metadata.xattrs = xattrs,
            Err(error) => loss = Some((place.clone(), error.fault())),
        }
        self.tell(place, kind, metadata);
        if let Some((place, fault)) = loss {
            self.skip(place, fault, true);
        }
    }

    fn tell(&mut self, place: Place, kind: EntryKind, metadata: Metadata) {
        let id = EntryId(self.next_id);
        self.next_id += 1;
        self.ready.push_back(Item::Entry(Entry {
            id,
            place,
            kind,
            metadata,
        }));
    }

    /// Whether the filters leave out what has this name.
    fn leaves_out(&self, parent: &Directory, name: &Name, is_directory: bool) -> bool {
        let path = || parent.relative_of(name.as_bytes());
        let filters = &self.options.filters;
        filters.leaves_out(name.as_bytes(), is_directory, path)
    }

    fn trouble(&mut self, trouble: Trouble) {
        if let TroubleAt::Name(parent, name) = &trouble.at
            && self.leaves_out(parent, name, false)
        {
            return;
        }
        let place = match trouble.at {
            TroubleAt::Name(parent, name) => Place::In(parent.id, name),
            TroubleAt::Directory(directory) => match directory.parent() {
                Some((parent, name)) => Place::In(parent.id, name.clone()),
                // The directory of a walk that runs is the source that was begun last.
                None => Place::Root(self.begun.saturating_sub(1)),
            },
        };
        self.skip(place, trouble.error.fault(), !trouble.vanished);
    }

    fn note(&mut self, place: Place, path: &[u8], text: &str) {
        let text = format!("'{}' {text}", ShownPath(path));
        self.skip(place, Fault::new(FaultCode::Special, text), false);
    }

    fn skip(&mut self, place: Place, fault: Fault, failure: bool) {
        self.ready.push_back(Item::Note(Note::Skipped {
            place,
            fault,
            failure,
        }));
    }

    fn xattrs_of(&self, found: &Found, tables: Tables<'_>) -> Result<Xattrs, StorageError> {
        self.xattrs(|| {
            let fd = open_parent(found, tables)?;
            let path = found.parent.path_of(found.name.as_bytes());
            Ok((path, xattr::read_at(&fd, &found.name)))
        })
    }

    /// The attributes that `read` gives, if any are carried.
    fn xattrs(
        &self,
        read: impl FnOnce() -> Result<(Vec<u8>, Result<Xattrs, XattrError>), StorageError>,
    ) -> Result<Xattrs, StorageError> {
        const OP: &str = "read the extended attributes of";
        if !self.options.preserve.xattrs {
            return Ok(Xattrs::new());
        }
        let (path, xattrs) = read()?;
        xattrs.map_err(|error| match error {
            XattrError::Io(errno) => StorageError::new(OP, path, errno),
            XattrError::TooMany => {
                StorageError::refused(OP, path, FaultCode::Storage, error.to_string())
            }
        })
    }
}

fn open_parent(found: &Found, tables: Tables<'_>) -> Result<Arc<OwnedFd>, StorageError> {
    tables.open.open(&found.parent)
}

/// About what an item takes in a page, in bytes.
fn encoded_bytes(item: &Item) -> usize {
    let place_bytes = |place: &Place| match place {
        Place::Root(_) => 0,
        Place::In(_, name) => name.as_bytes().len(),
    };
    let variable = match item {
        Item::Entry(entry) => {
            let xattrs = &entry.metadata.xattrs;
            let xattrs: usize = xattrs
                .iter()
                .map(|(name, value)| name.len() + value.len() + 8)
                .sum();
            let target = match &entry.kind {
                EntryKind::Symlink(target) => target.len(),
                _ => 0,
            };
            place_bytes(&entry.place) + target + xattrs
        }
        Item::Note(Note::Skipped { place, fault, .. }) => place_bytes(place) + fault.text.len(),
        Item::Note(_) => 0,
    };
    ITEM_BYTES + variable
}
