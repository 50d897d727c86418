//! Trees of files: what a source has, what stood at the destination before.
//!
//! In: chance. Out: trees as values, and the same laid out as directories.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{Timespec, Timestamps, UTIME_OMIT};

use super::random::Random;
use crate::limits::PACK_FILE_BYTES_MAX;

/// Holes are of this size, and so are most of the changes between two versions.
const PIECE_BYTES: usize = 64 << 10;

/// When a directory was changed last; trees of other sizes have earlier ones.
const DIRECTORY_MTIME: u64 = 1_200_000_000;

/// What stands under a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    Directory,
    File(File),
    Symlink(Vec<u8>),
    /// Another name of the file with this path.
    Link(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) content: Arc<Vec<u8>>,
    /// In whole seconds; each version of a file has another.
    pub(crate) mtime: i64,
    pub(crate) mode: u32,
}

/// Things by path; what lies in a directory comes behind it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree(pub(crate) BTreeMap<Vec<u8>, Thing>);

impl Tree {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let mut tree = Self::default();
        let mut directories = vec![Vec::new()];
        let mut files: Vec<Vec<u8>> = Vec::new();
        let mut large = 1 + random.below(2);
        for number in 0..1 + random.below(9) {
            let parent = &directories[random.index(directories.len())];
            let path = below(parent, format!("n{number}").as_bytes());
            let thing = match random.below(10) {
                0 | 1 => {
                    directories.push(path.clone());
                    Thing::Directory
                }
                2 => Thing::Symlink(format!("target-{number}").into_bytes()),
                3 if !files.is_empty() => Thing::Link(files[random.index(files.len())].clone()),
                kind => {
                    let len = match kind {
                        7.. if large > 0 => {
                            large -= 1;
                            PACK_FILE_BYTES_MAX + 1 + random.below(6 * PIECE_BYTES as u64)
                        }
                        6 => random.below(PACK_FILE_BYTES_MAX / 2),
                        5 => random.below(3),
                        _ => random.below(9000),
                    };
                    files.push(path.clone());
                    Thing::File(File::draw(len, random))
                }
            };
            tree.0.insert(path, thing);
        }
        tree
    }

    /// What stands at the destination before: some of the same paths, with something else or the same.
    pub(crate) fn older(&self, random: &mut Random) -> Self {
        let mut older = Self::default();
        for (path, thing) in &self.0 {
            let parent = parent_of(path);
            let has_place = parent.is_empty() || older.0.contains_key(parent);
            if !has_place || random.one_in(3) {
                continue;
            }
            let thing = match thing {
                Thing::Directory => Thing::Directory,
                Thing::File(file) if random.one_in(6) => Thing::File(file.clone()),
                Thing::File(file) => Thing::File(file.changed(random)),
                Thing::Symlink(_) => Thing::Symlink(b"elsewhere".to_vec()),
                Thing::Link(_) => continue,
            };
            older.0.insert(path.clone(), thing);
        }
        older
    }

    /// Some files have another content.
    pub(crate) fn change(&mut self, random: &mut Random) {
        for thing in self.0.values_mut() {
            if let Thing::File(file) = thing
                && random.one_in(2)
            {
                *file = file.changed(random);
            }
        }
    }

    /// The file with this path, whichever of its names that is.
    pub(crate) fn file(&self, path: &[u8]) -> Option<&File> {
        match self.0.get(path)? {
            Thing::File(file) => Some(file),
            Thing::Link(to) => self.file(to),
            _ => None,
        }
    }

    /// Lays all of it out below a directory that is there, over what an earlier version left.
    pub(crate) fn lay_out(&self, top: &Path) {
        // Links last: what they lead to may come behind them.
        let is_link = |thing: &Thing| matches!(thing, Thing::Link(_));
        let (links, others): (Vec<_>, Vec<_>) = self.0.iter().partition(|(_, of)| is_link(of));
        for (path, thing) in others.into_iter().chain(links) {
            let at = place(top, path);
            match thing {
                Thing::Directory if at.is_dir() => {}
                Thing::Directory => fs::create_dir(&at).unwrap(),
                Thing::File(file) => file.lay_out(&at),
                Thing::Symlink(target) if !at.is_symlink() => {
                    symlink(OsStr::from_bytes(target), &at).unwrap();
                }
                Thing::Link(to) if !at.exists() => fs::hard_link(place(top, to), &at).unwrap(),
                Thing::Symlink(_) | Thing::Link(_) => {}
            }
        }
        // Not when they were laid out: that would be another time in each run of a seed.
        let is_directory = |of: &(&Vec<u8>, &Thing)| *of.1 == Thing::Directory;
        let directories = self
            .0
            .iter()
            .filter(is_directory)
            .map(|(path, _)| place(top, path));
        for at in directories.chain([top.to_owned()]) {
            let since = Duration::from_secs(DIRECTORY_MTIME - self.0.len() as u64);
            fs::File::open(at)
                .unwrap()
                .set_modified(UNIX_EPOCH + since)
                .unwrap();
        }
    }
}

impl File {
    fn draw(len: u64, random: &mut Random) -> Self {
        let mut content = vec![0; usize::try_from(len).unwrap()];
        for piece in content.chunks_mut(PIECE_BYTES) {
            if piece.len() < PIECE_BYTES || !random.one_in(5) {
                fill(piece, random);
            }
        }
        Self {
            content: Arc::new(content),
            mtime: mtime(random),
            mode: random.pick(&[0o644, 0o600, 0o755, 0o640]),
        }
    }

    /// Another version: other pieces, another end.
    fn changed(&self, random: &mut Random) -> Self {
        let mut content = (*self.content).clone();
        match random.below(4) {
            0 => content.truncate(random.index(content.len() + 1)),
            1 => {
                let more = random.index(PIECE_BYTES);
                let len = content.len();
                content.resize(len + more, 0);
                fill(&mut content[len..], random);
            }
            _ => {}
        }
        let pieces = content.len().div_ceil(PIECE_BYTES);
        if pieces > 0 {
            for _ in 0..1 + random.below(2) {
                let start = random.index(pieces) * PIECE_BYTES;
                let end = content.len().min(start + PIECE_BYTES);
                fill(&mut content[start..end], random);
            }
        }
        let mut mtime = mtime(random);
        if mtime == self.mtime {
            mtime += 1;
        }
        Self {
            content: Arc::new(content),
            mtime,
            mode: self.mode,
        }
    }

    /// In place, so that other names of the file have it too.
    fn lay_out(&self, at: &Path) {
        let mut options = fs::OpenOptions::new();
        let file = options
            .write(true)
            .create(true)
            .truncate(true)
            .open(at)
            .unwrap();
        file.set_len(self.content.len() as u64).unwrap();
        for (number, piece) in self.content.chunks(PIECE_BYTES).enumerate() {
            if piece.iter().any(|byte| *byte != 0) {
                file.write_all_at(piece, (number * PIECE_BYTES) as u64)
                    .unwrap();
            }
        }
        file.set_permissions(PermissionsExt::from_mode(self.mode))
            .unwrap();
        let since = Duration::from_secs(self.mtime.try_into().unwrap());
        file.set_modified(UNIX_EPOCH + since).unwrap();
    }
}

/// Long ago, so that no time of a run is one of these.
fn mtime(random: &mut Random) -> i64 {
    1_000_000_000 + i64::try_from(random.below(100_000_000)).unwrap()
}

fn fill(piece: &mut [u8], random: &mut Random) {
    for bytes in piece.chunks_mut(8) {
        let drawn = random.next().to_le_bytes();
        bytes.copy_from_slice(&drawn[..bytes.len()]);
    }
}

pub(crate) fn below(parent: &[u8], name: &[u8]) -> Vec<u8> {
    match parent.is_empty() {
        true => name.to_vec(),
        false => [parent, b"/", name].concat(),
    }
}

pub(crate) fn parent_of(path: &[u8]) -> &[u8] {
    path.iter()
        .rposition(|byte| *byte == b'/')
        .map_or(b"", |slash| &path[..slash])
}

pub(crate) fn place(top: &Path, path: &[u8]) -> PathBuf {
    top.join(OsStr::from_bytes(path))
}

/// An mtime alone; nothing leaves it as it is.
pub(crate) fn times(mtime: Option<(i64, u32)>) -> Timestamps {
    let omit = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_OMIT,
    };
    let mtime = mtime.map(|(seconds, nanoseconds)| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.into(),
    });
    Timestamps {
        last_access: omit,
        last_modification: mtime.unwrap_or(omit),
    }
}
