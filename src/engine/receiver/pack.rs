//! A pack: a region with many small files, fetched, proved and stored at once.

use std::ops::Range;
use std::sync::Arc;

use crate::ids::EntryId;
use crate::units::ChunkSize;
use crate::wire::message::{GrantPart, HashKind, RegionKey};

use super::io::PackFile;
use super::lanes::Avoid;

/// A granted pack, until all its files are stored or failed.
#[derive(Debug)]
pub(super) struct Pack {
    pub(super) len: u64,
    pub(super) keys: Arc<[RegionKey]>,
    /// Files not yet stored or failed, ascending by entry.
    pub(super) files: Vec<PackFile>,
    digests: Vec<Option<[u8; 32]>>,
    missing: usize,
    /// How often files in it came wrong.
    pub(super) repairs: u32,
    /// The way that brought it wrong.
    pub(super) avoid: Option<Avoid>,
    /// Its bytes are in a buffer.
    pub(super) landed: bool,
    /// Storage is at it.
    pub(super) storing: bool,
}

impl Pack {
    pub(super) fn new(len: u64, keys: &[RegionKey]) -> Self {
        Self {
            len,
            keys: keys.into(),
            files: Vec::new(),
            digests: Vec::new(),
            missing: 0,
            repairs: 0,
            avoid: None,
            // Nothing to fetch when all files are empty.
            landed: len == 0,
            storing: false,
        }
    }

    /// Takes in a checked part.
    pub(super) fn add(&mut self, part: &GrantPart, chunk: ChunkSize, hash: HashKind) {
        let start = self.digests.len();
        let count = match hash {
            HashKind::None => 0,
            // A packed file has few chunks, so the count fits.
            _ => usize::try_from(chunk.count(part.len).max(1)).unwrap_or(usize::MAX),
        };
        self.digests.resize(start + count, None);
        self.missing += count;
        self.files.push(PackFile {
            entry: part.entry,
            offset: part.region_offset,
            len: part.len,
            digests: start..start + count,
        });
    }

    /// The sender's digest of a chunk; `false` if there is no such chunk or another digest of it.
    pub(super) fn tell(&mut self, entry: EntryId, chunk: u64, value: [u8; 32]) -> bool {
        let Some(digests) = self.digests_of(entry) else {
            return false;
        };
        let Ok(chunk) = usize::try_from(chunk) else {
            return false;
        };
        let Some(slot) = self.digests[digests].get_mut(chunk) else {
            return false;
        };
        match slot {
            Some(told) => *told == value,
            None => {
                *slot = Some(value);
                self.missing -= 1;
                true
            }
        }
    }

    fn digests_of(&self, entry: EntryId) -> Option<Range<usize>> {
        let at = self
            .files
            .binary_search_by_key(&entry, |file| file.entry)
            .ok()?;
        Some(self.files[at].digests.clone())
    }

    /// Whether it can be stored.
    pub(super) fn is_ready(&self) -> bool {
        self.landed && self.missing == 0
    }

    /// The digests of all files, once none is missing.
    pub(super) fn digests(&self) -> Vec<[u8; 32]> {
        self.digests.iter().copied().flatten().collect()
    }
}
