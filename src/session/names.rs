//! Paths of a transfer's entries, for messages, logs and events.
//!
//! Manifest items go in, paths come out. Kept only for what is unsettled and for the directories
//! above it, so memory is bounded by the window of pages and the depth of the tree.

use std::collections::HashMap;

use super::earlier::{Before, Key};
use crate::ids::EntryId;
use crate::limits::{DEPTH_MAX, PATH_BYTES_MAX};
use crate::manifest::{Entry, EntryKind, Item, Note, Place};
use crate::progress::EntryType;
use crate::wire::{Fault, FaultCode};

/// The names of the entries under way.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// What each root is called, by its number.
    roots: Vec<Vec<u8>>,
    known: HashMap<EntryId, Known>,
    /// Directories whose end was not told yet.
    open_directories: usize,
    /// Directories whose end the last page told: what it told of things in them comes after it.
    ended: Vec<EntryId>,
}

#[derive(Debug)]
struct Known {
    place: Place,
    len: u64,
    entry: EntryType,
    /// A regular file itself, not another name of one.
    is_file: bool,
    /// Entries that hang here and are still known.
    children: u32,
    /// Nothing more will hang here, and it is settled itself.
    over: bool,
    ended: bool,
    /// It came to nothing, and so does all that lies in it.
    failed: bool,
    /// What earlier attempts of the run made of it.
    before: Before,
    /// Its data was about to move.
    started: bool,
}

impl Known {
    fn is_directory(&self) -> bool {
        self.entry == EntryType::Directory
    }
}

impl Names {
    pub(crate) fn new(roots: Vec<Vec<u8>>) -> Self {
        Self {
            roots,
            known: HashMap::new(),
            open_directories: 0,
            ended: Vec::new(),
        }
    }

    /// Learns what a page tells.
    ///
    /// # Errors
    /// An entry that lies in no open directory, or more directories open at once than a tree can be
    /// deep: an honest walk ends each directory before it tells the next beside it.
    pub(crate) fn learn(&mut self, items: &[Item]) -> Result<(), Fault> {
        for directory in std::mem::take(&mut self.ended) {
            self.sweep(directory);
        }
        for item in items {
            match item {
                Item::Entry(entry) => self.learn_entry(entry)?,
                Item::Note(Note::DirectoryEnd { directory, .. }) => {
                    if let Some(known) = self.known.get_mut(directory)
                        && known.is_directory()
                        && !known.ended
                    {
                        known.ended = true;
                        self.open_directories -= 1;
                    }
                    self.ended.push(*directory);
                }
                Item::Note(_) => {}
            }
        }
        Ok(())
    }

    fn learn_entry(&mut self, entry: &Entry) -> Result<(), Fault> {
        let protocol = |text: &str| Err(Fault::new(FaultCode::Protocol, text));
        if let Place::In(parent, _) = &entry.place {
            match self.known.get_mut(parent) {
                Some(parent) if parent.is_directory() && !parent.ended => parent.children += 1,
                _ => return protocol("the manifest tells an entry outside of its directory"),
            }
        }
        let (entry_type, len) = match entry.kind {
            EntryKind::File { len, .. } => (EntryType::File, len),
            EntryKind::HardLink(_) => (EntryType::File, 0),
            EntryKind::Directory => (EntryType::Directory, 0),
            EntryKind::Symlink(_) => (EntryType::Symlink, 0),
        };
        let is_file = matches!(entry.kind, EntryKind::File { .. });
        self.open_directories += usize::from(entry_type == EntryType::Directory);
        if self.open_directories > DEPTH_MAX + 1 {
            return protocol("the manifest leaves more directories open than a tree is deep");
        }
        let known = Known {
            place: entry.place.clone(),
            len,
            entry: entry_type,
            is_file,
            children: 0,
            over: false,
            ended: false,
            failed: false,
            before: Before::New,
            started: false,
        };
        self.known.insert(entry.id, known);
        Ok(())
    }

    /// The path of an entry: its root's name and the names below it, joined by `/`.
    pub(crate) fn path(&self, entry: EntryId) -> Vec<u8> {
        match self.known.get(&entry) {
            Some(known) => self.path_of_place(&known.place),
            None => Vec::new(),
        }
    }

    /// The path of a place. Of one that is longer than paths are, only the end.
    pub(crate) fn path_of_place(&self, place: &Place) -> Vec<u8> {
        let (root, below) = self.split(place);
        let name = root.and_then(|number| self.roots.get(number as usize));
        match name {
            Some(name) if below.is_empty() => name.clone(),
            Some(name) if !name.is_empty() => [name, &b"/"[..], &below].concat(),
            _ => below,
        }
    }

    /// The path of what lies `below` a root, by the same rule.
    pub(crate) fn path_below(&self, root: u32, below: &[u8]) -> Vec<u8> {
        match self.roots.get(root as usize) {
            Some(name) if below.is_empty() => name.clone(),
            Some(name) if !name.is_empty() => [name, &b"/"[..], below].concat(),
            _ => below.to_vec(),
        }
    }

    /// The number of a place's root and the names below that, joined by `/`. Of a path that is
    /// longer than paths are only the end, without a root.
    pub(crate) fn split(&self, place: &Place) -> (Option<u32>, Vec<u8>) {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut bytes = 0;
        let mut place = place;
        let root = loop {
            if bytes > PATH_BYTES_MAX {
                parts.push(b"...");
                break None;
            }
            bytes += parts.last().map_or(0, |part| part.len() + 1);
            match place {
                Place::In(parent, name) => {
                    parts.push(name.as_bytes());
                    match self.known.get(parent) {
                        Some(parent) => place = &parent.place,
                        None => break None,
                    }
                }
                Place::Root(number) => break Some(*number),
            }
        };
        parts.reverse();
        (root, parts.join(&b'/'))
    }

    /// Where a known entry stands in the walk: depth first, in the order of names' bytes.
    pub(crate) fn key(&self, entry: EntryId) -> Option<Key> {
        self.key_of_place(&self.known.get(&entry)?.place)
    }

    /// Where a place stands in the walk. Nothing if it hangs nowhere.
    pub(crate) fn key_of_place(&self, place: &Place) -> Option<Key> {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut place = place;
        let root = loop {
            match place {
                Place::Root(number) => break *number,
                Place::In(parent, name) => {
                    names.push(name.as_bytes());
                    place = &self.known.get(parent)?.place;
                }
            }
        };
        let mut key = root.to_be_bytes().to_vec();
        for name in names.iter().rev() {
            // No name has this byte, and none is lower: what lies in a directory comes after it and
            // before its neighbours.
            key.push(0);
            key.extend_from_slice(name);
        }
        Some(key)
    }

    /// What earlier attempts made of an entry.
    pub(crate) fn before(&self, entry: EntryId) -> Before {
        self.known
            .get(&entry)
            .map_or(Before::New, |known| known.before)
    }

    /// Earlier attempts made this of an entry.
    pub(crate) fn set_before(&mut self, entry: EntryId, before: Before) {
        if let Some(known) = self.known.get_mut(&entry) {
            known.before = before;
        }
    }

    /// Data of this entry is about to move.
    pub(crate) fn start(&mut self, entry: EntryId) {
        if let Some(known) = self.known.get_mut(&entry) {
            known.started = true;
        }
    }

    /// What is not settled: each with its key, what earlier attempts made of it, and whether its data
    /// was about to move.
    pub(crate) fn open(&self) -> impl Iterator<Item = (Key, Before, bool)> {
        let open = self.known.iter().filter(|(_, known)| !known.over);
        open.filter_map(|(_, known)| {
            let key = self.key_of_place(&known.place)?;
            Some((key, known.before, known.started))
        })
    }

    /// Where a known entry is.
    pub(crate) fn place(&self, entry: EntryId) -> Option<Place> {
        self.known.get(&entry).map(|known| known.place.clone())
    }

    /// What an entry is.
    pub(crate) fn entry_type(&self, entry: EntryId) -> EntryType {
        self.known
            .get(&entry)
            .map_or(EntryType::Unknown, |known| known.entry)
    }

    /// The listed length of a file; 0 for everything else.
    pub(crate) fn len(&self, entry: EntryId) -> u64 {
        self.known.get(&entry).map_or(0, |known| known.len)
    }

    /// Whether the entry is a regular file.
    pub(crate) fn is_file(&self, entry: EntryId) -> bool {
        self.known.get(&entry).is_some_and(|known| known.is_file)
    }

    /// The entry came to nothing. Whether the directory that it lies in did so before, which is then
    /// the reason.
    pub(crate) fn fail(&mut self, entry: EntryId) -> bool {
        let Some(known) = self.known.get_mut(&entry) else {
            return false;
        };
        known.failed = true;
        match known.place {
            Place::In(parent, _) => self.known.get(&parent).is_some_and(|parent| parent.failed),
            Place::Root(_) => false,
        }
    }

    /// The entry is settled: its name is dropped once nothing hangs below it.
    pub(crate) fn settle(&mut self, entry: EntryId) {
        if let Some(known) = self.known.get_mut(&entry) {
            known.over = true;
        }
        self.sweep(entry);
    }

    /// Drops an entry that nothing needs any more, and then its parents likewise.
    fn sweep(&mut self, mut entry: EntryId) {
        while let Some(known) = self.known.get(&entry) {
            if !known.over || known.children > 0 || (known.is_directory() && !known.ended) {
                return;
            }
            let Some(Known {
                place: Place::In(parent, _),
                ..
            }) = self.known.remove(&entry)
            else {
                return;
            };
            if let Some(known) = self.known.get_mut(&parent) {
                known.children -= 1;
            }
            entry = parent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Metadata, Name};

    fn entry(id: u64, place: Place, kind: EntryKind) -> Item {
        Item::Entry(Entry {
            id: EntryId(id),
            place,
            kind,
            metadata: Metadata::default(),
        })
    }

    fn inside(parent: u64, name: &str) -> Place {
        Place::In(EntryId(parent), Name::new(name.as_bytes()).expect("a name"))
    }

    #[test]
    fn paths_join_names_and_settled_branches_are_dropped() {
        let mut names = Names::new(vec![b"top".to_vec()]);
        names
            .learn(&[
                entry(0, Place::Root(0), EntryKind::Directory),
                entry(1, inside(0, "a"), EntryKind::Directory),
                entry(
                    2,
                    inside(1, "f"),
                    EntryKind::File {
                        len: 7,
                        linked: false,
                    },
                ),
            ])
            .unwrap();
        assert_eq!(names.path(EntryId(2)), b"top/a/f");
        assert_eq!(names.len(EntryId(2)), 7);
        for id in 0..3 {
            names.settle(EntryId(id));
        }
        assert_eq!(names.known.len(), 2, "directories that may still grow stay");
        for id in [1, 0] {
            let end = Note::DirectoryEnd {
                directory: EntryId(id),
                complete: true,
            };
            names.learn(&[Item::Note(end)]).unwrap();
        }
        assert_eq!(names.path(EntryId(0)), b"top", "its page may tell more");
        names.learn(&[]).unwrap();
        assert!(names.known.is_empty());
    }

    #[test]
    fn manifests_that_no_walk_makes_are_refused() {
        let learn = |items: &[Item]| Names::new(vec![b"top".to_vec()]).learn(items);
        let file = || EntryKind::File {
            len: 1,
            linked: false,
        };
        let top = || entry(0, Place::Root(0), EntryKind::Directory);
        assert!(learn(&[entry(5, inside(5, "itself"), EntryKind::Directory)]).is_err());
        assert!(learn(&[entry(5, inside(9, "later"), file())]).is_err());
        assert!(
            learn(&[
                entry(0, Place::Root(0), file()),
                entry(1, inside(0, "x"), file())
            ])
            .is_err()
        );
        let end = Note::DirectoryEnd {
            directory: EntryId(0),
            complete: true,
        };
        assert!(learn(&[top(), Item::Note(end), entry(1, inside(0, "x"), file())]).is_err());
        let mut deep = vec![top()];
        for id in 1..=DEPTH_MAX as u64 {
            deep.push(entry(id, inside(id - 1, "d"), EntryKind::Directory));
        }
        learn(&deep).unwrap();
        let id = DEPTH_MAX as u64 + 1;
        deep.push(entry(id, inside(id - 1, "d"), EntryKind::Directory));
        assert!(learn(&deep).is_err());
        // Side by side without an end is as bad.
        let wide = |id| entry(id, inside(0, &format!("d{id}")), EntryKind::Directory);
        let wide: Vec<_> = [top()].into_iter().chain((1..=id).map(wide)).collect();
        assert!(learn(&wide).is_err());
    }

    #[test]
    fn keys_come_in_the_order_of_the_walk() {
        let mut names = Names::new(vec![b"one".to_vec(), b"two".to_vec()]);
        let file = || EntryKind::File {
            len: 1,
            linked: false,
        };
        names
            .learn(&[
                entry(0, Place::Root(0), EntryKind::Directory),
                entry(1, inside(0, "a"), EntryKind::Directory),
                entry(2, inside(1, "z"), file()),
                entry(3, inside(0, "a-b"), file()),
                entry(4, inside(0, "a.b"), file()),
                entry(5, inside(0, "b"), file()),
                entry(6, Place::Root(1), file()),
            ])
            .unwrap();
        let keys: Vec<_> = (0..7).filter_map(|id| names.key(EntryId(id))).collect();
        assert_eq!(keys.len(), 7);
        assert!(keys.is_sorted(), "{keys:?}");
        names.start(EntryId(5));
        names.set_before(EntryId(4), Before::Settled);
        for id in [2, 3, 6] {
            names.settle(EntryId(id));
        }
        let mut open: Vec<_> = names.open().collect();
        open.sort();
        let shown: Vec<_> = open
            .iter()
            .map(|(_, before, started)| (*before, *started))
            .collect();
        assert_eq!(
            shown,
            [
                (Before::New, false),
                (Before::New, false),
                (Before::Settled, false),
                (Before::New, true)
            ]
        );
    }

    #[test]
    fn paths_longer_than_paths_are_cut() {
        let mut names = Names::new(vec![b"top".to_vec()]);
        let name = "n".repeat(255);
        names
            .learn(&[entry(0, Place::Root(0), EntryKind::Directory)])
            .unwrap();
        for id in 1..100 {
            names
                .learn(&[entry(id, inside(id - 1, &name), EntryKind::Directory)])
                .unwrap();
        }
        let path = names.path(EntryId(99));
        assert!(path.starts_with(b".../") && path.ends_with(name.as_bytes()));
        assert!(path.len() < PATH_BYTES_MAX + 600);
    }
}
