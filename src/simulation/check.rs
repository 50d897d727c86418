//! What must hold of a destination, whatever happened: looked at in a real directory, live or laid out.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use super::plan::Plan;
use super::tree::{Thing, Tree, below, parent_of, place};
use crate::integrity::{ChunkHasher, HashPlan, Sha256State};
use crate::limits::PACK_FILE_BYTES_MAX;
use crate::manifest::{Name, Version};
use crate::storage::part_name::{Hidden, hidden, part_name, stem_of};
use crate::storage::sink::Identity;
use crate::storage::{Status, version_of};
use crate::units::{ChunkIndex, ChunkSize};
use crate::wire::message::HashKind;

/// A file as a sender may have granted it.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    path: Vec<u8>,
    version: Version,
    content: Arc<Vec<u8>>,
    /// The value of each chunk.
    values: Vec<[u8; 32]>,
}

/// What journals claim.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) chunks: u64,
    /// By path: those whose bytes, or whose value, are not the source's.
    pub(crate) wrong: BTreeSet<(Vec<u8>, u64)>,
}

impl Granted {
    /// All files of a source that can be gone on with.
    pub(crate) fn of(tree: &Tree, source: &Path, plan: &Plan) -> Vec<Self> {
        let mut granted = Vec::new();
        for path in tree.0.keys() {
            let Some(file) = tree.file(path) else {
                continue;
            };
            let status = Status::of(fs::File::open(place(source, path)).unwrap()).unwrap();
            granted.push(Self {
                path: path.clone(),
                version: version_of(&status),
                values: values(&file.content, plan),
                content: Arc::clone(&file.content),
            });
        }
        granted
    }
}

fn values(content: &[u8], plan: &Plan) -> Vec<[u8; 32]> {
    let file_len = content.len() as u64;
    let mut before = Sha256State::INITIAL;
    let mut values = Vec::new();
    for chunk in (0..plan.chunk.count(file_len)).map(ChunkIndex) {
        let bytes = bytes_of(content, plan.chunk, chunk.0);
        let hash_plan = match plan.hash {
            HashKind::Blake3 => HashPlan::Blake3 {
                chunk,
                chunk_size: plan.chunk,
                file_len,
            },
            HashKind::Sha256 => HashPlan::Sha256 {
                before,
                start: plan.chunk.range(chunk, file_len).start,
                file_len,
            },
            _ => return values,
        };
        let mut hasher = ChunkHasher::new(&hash_plan);
        hasher.update(bytes);
        let value = hasher.finish().expect("the whole chunk was hashed");
        before = Sha256State(value);
        values.push(value);
    }
    values
}

fn bytes_of(content: &[u8], size: ChunkSize, chunk: u64) -> &[u8] {
    let range = size.range(ChunkIndex(chunk), content.len() as u64);
    let at = |offset: u64| usize::try_from(offset).unwrap();
    &content[at(range.start)..at(range.end)]
}

/// What has a name that a user sees is one of the versions that there were, and whole. `history`: what
/// stood there before, and then the sources.
pub(crate) fn visible(when: &str, top: &Path, plan: &Plan, history: &[Tree]) {
    let top = place(top, plan.destination);
    walk(&top, b"", &mut |path, at| {
        let name = &path[parent_of(path).len()..];
        if hidden(name.strip_prefix(b"/").unwrap_or(name)).is_some() {
            return;
        }
        let metadata = fs::symlink_metadata(at).unwrap();
        let shown = path.escape_ascii();
        let of: Vec<&Thing> = history.iter().filter_map(|tree| tree.0.get(path)).collect();
        assert!(!of.is_empty(), "{when}: {shown} was in no tree");
        if metadata.is_dir() {
            assert!(
                of.contains(&&Thing::Directory),
                "{when}: {shown} is no directory"
            );
        } else if metadata.is_symlink() {
            let target = fs::read_link(at).unwrap().into_os_string().into_vec();
            assert!(
                of.contains(&&Thing::Symlink(target)),
                "{when}: {shown} leads elsewhere"
            );
        } else if !plan.reuse.in_place {
            let content = fs::read(at).unwrap();
            let mut versions = history.iter().filter_map(|tree| tree.file(path));
            let is_one = versions.any(|file| *file.content == content);
            assert!(
                is_one,
                "{when}: {shown} ({} bytes) is neither old nor new",
                content.len()
            );
        }
    });
}

/// What the receiver said to be published is there as the source has it.
pub(crate) fn published(
    when: &str,
    top: &Path,
    plan: &Plan,
    source: &Tree,
    told: &BTreeSet<Vec<u8>>,
) {
    let top = place(top, plan.destination);
    for path in told {
        assert_same(when, &top, path, source);
    }
}

fn assert_same(when: &str, top: &Path, path: &[u8], source: &Tree) {
    let at = place(top, path);
    let shown = path.escape_ascii();
    let metadata = fs::symlink_metadata(&at);
    let metadata = metadata.unwrap_or_else(|error| panic!("{when}: {shown}: {error}"));
    match source.0.get(path) {
        // The top itself.
        None => assert!(metadata.is_dir(), "{when}: {shown} is no directory"),
        Some(Thing::Directory) => assert!(metadata.is_dir(), "{when}: {shown} is no directory"),
        Some(Thing::Symlink(target)) => {
            let there = fs::read_link(&at).unwrap();
            assert_eq!(there.as_os_str().as_bytes(), target, "{when}: {shown}");
        }
        Some(Thing::File(_) | Thing::Link(_)) => {
            let file = source.file(path).expect("links lead to files");
            let content = fs::read(&at).unwrap();
            assert!(
                content == *file.content,
                "{when}: {shown} is not what its source is"
            );
        }
    }
}

/// All of the source is there as it is.
pub(crate) fn complete(top: &Path, plan: &Plan, source: &Tree) {
    let top = place(top, plan.destination);
    for (path, thing) in &source.0 {
        assert_same("at the end", &top, path, source);
        let shown = path.escape_ascii();
        let metadata = fs::symlink_metadata(place(&top, path)).unwrap();
        if let Some(file) = source.file(path) {
            assert_eq!(metadata.mtime(), file.mtime, "{shown}: its time");
            assert_eq!(metadata.mode() & 0o7777, file.mode, "{shown}: its mode");
        }
        if let (Thing::Link(to), true) = (thing, plan.preserve.hard_links) {
            let other = fs::metadata(place(&top, to)).unwrap();
            assert_eq!(metadata.ino(), other.ino(), "{shown} is no link");
        }
    }
}

/// Nothing is left that nobody sees, in any directory that something was put in: others are not swept.
pub(crate) fn tidy(top: &Path, plan: &Plan, source: &Tree, told: &BTreeSet<Vec<u8>>) {
    let top = place(top, plan.destination);
    let mut left = BTreeSet::new();
    walk(&top, b"", &mut |path, at| {
        let directory = parent_of(path);
        let name = path[directory.len()..].strip_prefix(b"/");
        let Some(Hidden::Part(stem) | Hidden::Journal(stem)) = hidden(name.unwrap_or(path)) else {
            return;
        };
        let metadata = fs::symlink_metadata(at).unwrap();
        // Links can't be locked, so nobody takes those of others away before they are an hour old.
        let is_link = metadata.is_symlink() || metadata.nlink() > 1;
        let is_swept = told
            .iter()
            .any(|put| !put.is_empty() && parent_of(put) == directory);
        // What could be gone on with is spared for a week. A file that has become so small that it
        // comes in a pack does not look for it.
        let is_spared = source.0.keys().any(|path| {
            let last = path[parent_of(path).len()..].strip_prefix(b"/");
            let file = source.file(path);
            parent_of(path) == directory
                && stem_of(&Name::new(last.unwrap_or(path)).unwrap()) == stem
                && file.is_some_and(|file| file.content.len() as u64 <= PACK_FILE_BYTES_MAX)
        });
        if !is_link && is_swept && !is_spared {
            left.insert(format!(
                "{} ({} bytes)",
                path.escape_ascii(),
                metadata.len()
            ));
        }
    });
    assert!(left.is_empty(), "{left:?} is left");
}

/// What the journals below `top` claim, and what of it is not so.
pub(crate) fn claims(top: &Path, plan: &Plan, granted: &[Granted]) -> Claimed {
    let top = place(top, plan.destination);
    let mut claimed = Claimed::default();
    walk(&top, b"", &mut |path, at| {
        let directory = parent_of(path);
        let name = path[directory.len()..].strip_prefix(b"/").unwrap_or(path);
        let Some(Hidden::Journal(stem)) = hidden(name) else {
            return;
        };
        let part = part_name(stem);
        let Ok(part) = fs::read(place(&top, &below(directory, part.as_bytes()))) else {
            return;
        };
        let journal = fs::read(at).unwrap();
        for of in granted.iter().filter(|of| parent_of(&of.path) == directory) {
            let last = of.path[directory.len()..]
                .strip_prefix(b"/")
                .unwrap_or(&of.path);
            let identity = Identity {
                stem: stem_of(&Name::new(last).unwrap()),
                hash: plan.hash,
                chunk: plan.chunk,
                len: of.content.len() as u64,
                version: of.version,
            };
            if identity.stem != stem {
                continue;
            }
            let Ok(read) = identity.read(journal.as_slice()) else {
                continue;
            };
            for chunk in read
                .claims
                .ranges()
                .iter()
                .flat_map(|range| range.start..range.end)
            {
                claimed.chunks += 1;
                let range = plan.chunk.range(ChunkIndex(chunk), identity.len);
                let at = |offset: u64| usize::try_from(offset).unwrap();
                let value = of.values.get(at(chunk)).copied();
                let right = value == read.claims.value(chunk)
                    && part.get(at(range.start)..at(range.end))
                        == Some(bytes_of(&of.content, plan.chunk, chunk));
                if !right {
                    claimed.wrong.insert((of.path.clone(), chunk));
                }
            }
        }
    });
    claimed
}

/// Calls `each` with every path below `top` that there is, and where it is.
pub(crate) fn walk(top: &Path, path: &[u8], each: &mut dyn FnMut(&[u8], &Path)) {
    let Ok(entries) = fs::read_dir(place(top, path)) else {
        return;
    };
    for entry in entries {
        let entry = entry.unwrap();
        let path = below(path, entry.file_name().as_bytes());
        each(&path, &entry.path());
        if entry.file_type().unwrap().is_dir() {
            walk(top, &path, each);
        }
    }
}
