//! Paths of a transfer's entries, for messages, logs and events.
//!
//! Manifest items go in, paths come out. Kept only for what is unsettled and for the directories
//! above it, so memory is bounded by the window of pages and the depth of the tree.

use std::collections::HashMap;

use crate::ids::EntryId;
use crate::manifest::{EntryKind, Item, Note, Place};

/// The names of the entries under way.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// What each root is called, by its number.
    roots: Vec<Vec<u8>>,
    known: HashMap<EntryId, Known>,
}

#[derive(Debug)]
struct Known {
    place: Place,
    len: u64,
    is_file: bool,
    /// Entries that hang here and are still known.
    children: u32,
    /// Nothing more will hang here, and it is settled itself.
    over: bool,
    is_directory: bool,
    ended: bool,
}

impl Names {
    pub(crate) fn new(roots: Vec<Vec<u8>>) -> Self {
        Self {
            roots,
            known: HashMap::new(),
        }
    }

    /// Learns what a page tells.
    pub(crate) fn learn(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Entry(entry) => {
                    if let Place::In(parent, _) = &entry.place
                        && let Some(parent) = self.known.get_mut(parent)
                    {
                        parent.children += 1;
                    }
                    let (len, is_file) = match entry.kind {
                        EntryKind::File { len, .. } => (len, true),
                        _ => (0, false),
                    };
                    let known = Known {
                        place: entry.place.clone(),
                        len,
                        is_file,
                        children: 0,
                        over: false,
                        is_directory: matches!(entry.kind, EntryKind::Directory),
                        ended: false,
                    };
                    self.known.insert(entry.id, known);
                }
                Item::Note(Note::DirectoryEnd { directory, .. }) => {
                    if let Some(known) = self.known.get_mut(directory) {
                        known.ended = true;
                    }
                    self.sweep(*directory);
                }
                Item::Note(_) => {}
            }
        }
    }

    /// The path of an entry: its root's name and the names below it, joined by `/`.
    pub(crate) fn path(&self, entry: EntryId) -> Vec<u8> {
        match self.known.get(&entry) {
            Some(known) => self.path_of_place(&known.place),
            None => Vec::new(),
        }
    }

    /// The path of a place.
    pub(crate) fn path_of_place(&self, place: &Place) -> Vec<u8> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut place = place;
        loop {
            match place {
                Place::In(parent, name) => {
                    parts.push(name.as_bytes());
                    match self.known.get(parent) {
                        Some(parent) => place = &parent.place,
                        None => break,
                    }
                }
                Place::Root(number) => {
                    let root = self
                        .roots
                        .get(*number as usize)
                        .map_or(&b""[..], Vec::as_slice);
                    if !root.is_empty() {
                        parts.push(root);
                    }
                    break;
                }
            }
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// The listed length of a file; 0 for everything else.
    pub(crate) fn len(&self, entry: EntryId) -> u64 {
        self.known.get(&entry).map_or(0, |known| known.len)
    }

    /// Whether the entry is a regular file.
    pub(crate) fn is_file(&self, entry: EntryId) -> bool {
        self.known.get(&entry).is_some_and(|known| known.is_file)
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
            if !known.over || known.children > 0 || (known.is_directory && !known.ended) {
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
    use crate::manifest::{Entry, Metadata, Name};

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
        names.learn(&[
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
        ]);
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
            names.learn(&[Item::Note(end)]);
        }
        assert!(names.known.is_empty());
    }
}
