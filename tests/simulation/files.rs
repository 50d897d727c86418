//! Virtual files: the source's tree with what will go wrong with it, and the sink's store.
//!
//! A chunk's content is one number, its digest a simple function of it, so a run costs
//! microseconds whatever the files' sizes.

use std::collections::{BTreeMap, BTreeSet};

use rdcp::engine::receiver::{Placed, Proof};
use rdcp::ids::EntryId;
use rdcp::manifest::{Entry, EntryKind, Item, Metadata, Name, Note, Place, Version};
use rdcp::units::{ByteRange, ChunkIndex, ChunkRange, ChunkSize};
use rdcp::wire::message::{HashKind, ManifestPage, Outcome, Wanted};
use rdcp::wire::{Fault, FaultCode};

use super::random::{Random, mix};

/// A file at the source.
#[derive(Clone, Debug)]
pub struct SourceFile {
    pub seed: u64,
    /// What a page tells; `len` may differ by the time it is opened.
    pub listed_len: u64,
    pub len: u64,
    /// Which chunks have data.
    pub data: Vec<bool>,
    /// Raised by each change of a chunk's content.
    pub generations: Vec<u64>,
    /// Raised by each change that the version shows.
    pub version: u64,
    /// The version that was granted.
    pub opened_version: u64,
    pub trouble: Trouble,
}

/// What goes wrong with one file, drawn when the tree is made. Everything that is not `None` may
/// fail the file, with the code that [`allowed`](Trouble::allowed) tells, and with no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    None,
    /// It is gone when it is opened.
    Vanishes,
    /// Reading it fails once in so many times.
    Unreadable(u64),
    /// It changes at some time, and its version shows that.
    Changes,
    /// It changes and no time stamp shows it.
    ChangesUnseen,
    /// Chunks arrive damaged, once in so many times. 1 is always.
    Damaged(u64),
    /// The sink can't make the part file.
    PrepareFails,
    /// The sink can't reserve space.
    AllocateFails,
    /// The sink can't write.
    WriteFails,
    /// The sink can't publish it (or the group commit fails it).
    PublishFails,
    /// The sink is full when this file is published.
    Full,
}

impl Trouble {
    pub fn allowed(self, code: FaultCode) -> bool {
        match self {
            Self::None => false,
            Self::Vanishes => code == FaultCode::NotFound,
            // Also when every try of a pack or chunk was refused.
            Self::Unreadable(_) => code == FaultCode::Storage,
            Self::Changes => code == FaultCode::SourceChanged,
            // Seen only where a repair reads it again.
            Self::ChangesUnseen => code == FaultCode::SourceChanged,
            Self::Damaged(_) => code == FaultCode::Integrity,
            Self::PrepareFails | Self::AllocateFails => code == FaultCode::Denied,
            Self::WriteFails | Self::PublishFails => code == FaultCode::Storage,
            Self::Full => code == FaultCode::NoSpace,
        }
    }
}

impl SourceFile {
    pub fn new(seed: u64, len: u64, chunk: ChunkSize) -> Self {
        let count = usize::try_from(chunk.count(len)).unwrap();
        Self {
            seed,
            listed_len: len,
            len,
            data: vec![true; count],
            generations: vec![0; count],
            version: 1,
            opened_version: 0,
            trouble: Trouble::None,
        }
    }

    pub fn version(&self) -> Version {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&self.version.to_le_bytes());
        Version(bytes)
    }

    /// Whether its version is another one than was granted.
    pub fn is_changed(&self) -> bool {
        self.version != self.opened_version
    }

    /// The content of a chunk as it reads now.
    pub fn content(&self, chunk: u64) -> u64 {
        self.content_of(chunk, self.generations[usize::try_from(chunk).unwrap()])
    }

    /// Whether the chunk ever had this content.
    pub fn had(&self, chunk: u64, content: u64) -> bool {
        let newest = self.generations[usize::try_from(chunk).unwrap()];
        (0..=newest).any(|generation| self.content_of(chunk, generation) == content)
    }

    /// The content that a chunk had at first.
    pub fn first_content(&self, chunk: u64) -> u64 {
        self.content_of(chunk, 0)
    }

    fn content_of(&self, chunk: u64, generation: u64) -> u64 {
        if self.data[usize::try_from(chunk).unwrap()] {
            mix(self.seed ^ mix(chunk ^ mix(generation))) | 1
        } else {
            0
        }
    }

    /// Where a range has data. The first chunk's data begins late, to have chunks with edges.
    pub fn extents(&self, range: ByteRange, size: ChunkSize) -> Vec<ByteRange> {
        let mut extents: Vec<ByteRange> = Vec::new();
        for chunk in size.index_of(range.start).0..size.count(range.end) {
            let bytes = size.range(ChunkIndex(chunk), self.len).intersect(range);
            if !self.data[usize::try_from(chunk).unwrap()] {
                continue;
            }
            let skip = if mix(self.seed ^ chunk) & 3 == 0 {
                bytes.len() / 3
            } else {
                0
            };
            let extent = ByteRange {
                start: bytes.start + skip,
                end: bytes.end,
            };
            match extents.last_mut() {
                Some(last) if last.end == extent.start => last.end = extent.end,
                _ => extents.push(extent),
            }
        }
        extents
    }

    /// Where data begins at or after a position, as `SEEK_DATA` tells it.
    pub fn next_data(&self, position: u64, size: ChunkSize) -> u64 {
        let rest = ByteRange {
            start: position,
            end: self.len,
        };
        let first = self.extents(rest, size).first().map(|extent| extent.start);
        first.unwrap_or(self.len)
    }

    pub fn change(&mut self, random: &mut Random, seen: bool) {
        if !self.generations.is_empty() {
            let chunk = random.index(self.generations.len());
            self.generations[chunk] += 1;
        }
        if seen {
            self.version += 1;
        }
    }
}

/// The value of a chunk with this content.
pub fn digest(content: u64, chunk: u64, proof: Proof) -> Option<[u8; 32]> {
    let before = match proof {
        Proof::None => return None,
        Proof::Blake3 => mix(chunk),
        Proof::Sha256 { before: None } => {
            assert_eq!(
                chunk, 0,
                "only the first chunk starts from the initial state"
            );
            7
        }
        Proof::Sha256 {
            before: Some(before),
        } => u64::from_le_bytes(before[..8].try_into().unwrap()),
    };
    let mut value = [0x5a; 32];
    value[..8].copy_from_slice(&mix(content ^ before.rotate_left(9)).to_le_bytes());
    Some(value)
}

/// The values of a whole file's chunks; one for an empty file.
pub fn digests(contents: &[u64], hash: HashKind) -> Vec<[u8; 32]> {
    let mut values = Vec::new();
    let empty = [0];
    let contents = if contents.is_empty() {
        &empty
    } else {
        contents
    };
    for (chunk, &content) in (0_u64..).zip(contents) {
        let proof = match hash {
            HashKind::Blake3 => Proof::Blake3,
            HashKind::Sha256 => Proof::Sha256 {
                before: values.last().copied(),
            },
            _ => Proof::None,
        };
        values.extend(digest(content, chunk, proof));
    }
    values
}

/// The source's tree, told page by page.
#[derive(Debug, Default)]
pub struct Tree {
    pub files: BTreeMap<EntryId, SourceFile>,
    pub links: BTreeMap<EntryId, EntryId>,
    pub parents: BTreeMap<EntryId, Option<EntryId>>,
    pub pages: Vec<ManifestPage>,
    items: Vec<Item>,
    next: u64,
}

impl Tree {
    pub fn add(&mut self, parent: Option<EntryId>, kind: EntryKind) -> EntryId {
        let id = EntryId(self.next);
        self.next += 1;
        let place = match parent {
            None => Place::Root(0),
            Some(parent) => Place::In(
                parent,
                Name::new(format!("n{}", id.0).into_bytes()).unwrap(),
            ),
        };
        if let EntryKind::HardLink(to) = kind {
            self.links.insert(id, to);
        }
        self.parents.insert(id, parent);
        self.items.push(Item::Entry(Entry {
            id,
            place,
            kind,
            metadata: Metadata::default(),
        }));
        id
    }

    pub fn add_file(&mut self, parent: Option<EntryId>, file: SourceFile, linked: bool) -> EntryId {
        let id = self.add(
            parent,
            EntryKind::File {
                len: file.listed_len,
                linked,
            },
        );
        self.files.insert(id, file);
        id
    }

    pub fn end_directory(&mut self, directory: EntryId) {
        self.items.push(Item::Note(Note::DirectoryEnd {
            directory,
            complete: true,
        }));
    }

    pub fn note(&mut self, note: Note) {
        self.items.push(Item::Note(note));
    }

    /// How many items wait to be put on a page.
    pub fn unpaged(&self) -> usize {
        self.items.len()
    }

    pub fn end_page(&mut self, last: bool) {
        self.pages.push(ManifestPage {
            items: std::mem::take(&mut self.items),
            last,
        });
    }
}

/// What the sink has of an entry.
#[derive(Debug, Default)]
pub struct SinkFile {
    pub version: Option<Version>,
    pub len: u64,
    pub prepared: bool,
    pub reserved: Vec<ByteRange>,
    /// What was written, proved or not.
    pub written: BTreeMap<u64, u64>,
    /// What of that did not travel.
    pub kept: BTreeSet<u64>,
    /// What of that an older copy had.
    pub compared: BTreeSet<u64>,
    pub verified: BTreeSet<u64>,
    pub holes: BTreeSet<u64>,
}

/// Directories that are done with.
type Directories = Vec<(EntryId, Outcome)>;

/// The receiver's store with its directories.
#[derive(Debug, Default)]
pub struct Sink {
    pub files: BTreeMap<EntryId, SinkFile>,
    pub placed: BTreeMap<EntryId, Placed>,
    parents: BTreeMap<EntryId, Option<EntryId>>,
    /// Per directory: what is outstanding below it; one more until it has ended.
    outstanding: BTreeMap<EntryId, u64>,
    waiting: BTreeSet<EntryId>,
}

impl Sink {
    pub fn place(
        &mut self,
        items: &[Item],
        mut decide: impl FnMut(&Entry) -> Placed,
    ) -> (Vec<(EntryId, Placed)>, Directories) {
        let (mut entries, mut directories) = (Vec::new(), Vec::new());
        for item in items {
            match item {
                Item::Entry(entry) => {
                    let parent = match entry.place {
                        Place::Root(_) => None,
                        Place::In(parent, _) => Some(parent),
                    };
                    let placed = decide(entry);
                    self.parents.insert(entry.id, parent);
                    if !matches!(placed, Placed::Settled(_)) {
                        self.waiting.insert(entry.id);
                        if let Some(parent) = parent {
                            *self.outstanding.get_mut(&parent).unwrap() += 1;
                        }
                    }
                    if matches!(placed, Placed::Directory) {
                        self.outstanding.insert(entry.id, 1);
                    }
                    self.placed.insert(entry.id, placed.clone());
                    entries.push((entry.id, placed));
                }
                Item::Note(Note::DirectoryEnd { directory, .. }) => {
                    self.lower(*directory, &mut directories);
                }
                Item::Note(_) => {}
            }
        }
        (entries, directories)
    }

    pub fn settle(&mut self, entries: &[EntryId]) -> Directories {
        let mut directories = Vec::new();
        for entry in entries {
            assert!(
                self.waiting.remove(entry),
                "{entry} is settled twice or was never placed"
            );
            if let Some(parent) = self.parents[entry] {
                self.lower(parent, &mut directories);
            }
        }
        directories
    }

    /// Entries that storage still waits for.
    pub fn outstanding(&self) -> usize {
        self.waiting.len()
    }

    fn lower(&mut self, directory: EntryId, done: &mut Vec<(EntryId, Outcome)>) {
        let left = self.outstanding.get_mut(&directory).unwrap();
        *left -= 1;
        if *left == 0 {
            let outcome = if directory.0.is_multiple_of(2) {
                Outcome::Unchanged
            } else {
                Outcome::Published {
                    bytes: 0,
                    digest: None,
                }
            };
            done.push((directory, outcome));
            self.waiting.remove(&directory);
            if let Some(parent) = self.parents[&directory] {
                self.lower(parent, done);
            }
        }
    }
}

/// Whether the receiver asked for this chunk.
pub fn is_wanted(wanted: &Wanted, chunk: u64) -> bool {
    match wanted {
        Wanted::Nothing => false,
        Wanted::All | Wanted::Compared(_) => true,
        Wanted::Chunks(ranges) => ranges
            .iter()
            .any(|range: &ChunkRange| (range.start..range.end).contains(&chunk)),
    }
}

pub fn fault(code: FaultCode) -> Fault {
    Fault::new(code, format!("{code:?}, as planned"))
}
