//! Where files are that later entries may be hard links to.
//!
//! In: an entry and its path. Out: the path, any time later. A tree may have millions of them, so
//! only the newest stay in memory; older ones lie in an unlinked file as runs sorted by entry.
//! Entries come in ascending order by and large, so a lookup touches one run or two.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::ids::EntryId;
use crate::storage::scratch::scratch_file;

/// Most paths kept in memory.
const KEPT_MAX: usize = 64 << 10;
/// An index record: entry, position of its path, length of the path; each 8 bytes.
const RECORD_BYTES: usize = 24;

/// Paths by entry.
#[derive(Debug)]
pub(crate) struct Published {
    kept: BTreeMap<EntryId, Box<[u8]>>,
    kept_max: usize,
    spill: Option<Spill>,
}

#[derive(Debug)]
struct Spill {
    file: File,
    end: u64,
    runs: Vec<Run>,
}

/// A sorted index in the file.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: EntryId,
    last: EntryId,
    position: u64,
    records: u64,
}

impl Default for Published {
    fn default() -> Self {
        Self::with_kept_max(KEPT_MAX)
    }
}

impl Published {
    fn with_kept_max(kept_max: usize) -> Self {
        Self {
            kept: BTreeMap::new(),
            kept_max,
            spill: None,
        }
    }

    /// Remembers a path.
    pub(crate) fn add(&mut self, entry: EntryId, path: Vec<u8>) -> io::Result<()> {
        if self.kept.len() >= self.kept_max {
            self.spill()?;
        }
        self.kept.insert(entry, path.into());
        Ok(())
    }

    /// The path of an entry, if it was added.
    pub(crate) fn get(&self, entry: EntryId) -> io::Result<Option<Vec<u8>>> {
        if let Some(path) = self.kept.get(&entry) {
            return Ok(Some(path.to_vec()));
        }
        self.spill
            .as_ref()
            .map_or(Ok(None), |spill| spill.get(entry))
    }

    fn spill(&mut self) -> io::Result<()> {
        let spill = match &mut self.spill {
            Some(spill) => spill,
            empty => empty.insert(Spill {
                file: scratch_file()?,
                end: 0,
                runs: Vec::new(),
            }),
        };
        spill.write(&self.kept)?;
        self.kept.clear();
        Ok(())
    }
}

impl Spill {
    fn write(&mut self, kept: &BTreeMap<EntryId, Box<[u8]>>) -> io::Result<()> {
        let (Some((&first, _)), Some((&last, _))) = (kept.first_key_value(), kept.last_key_value())
        else {
            return Ok(());
        };
        let mut paths = Vec::new();
        let mut index = Vec::with_capacity(kept.len() * RECORD_BYTES);
        for (entry, path) in kept {
            for number in [entry.0, self.end + paths.len() as u64, path.len() as u64] {
                index.extend_from_slice(&number.to_le_bytes());
            }
            paths.extend_from_slice(path);
        }
        self.file.write_all_at(&paths, self.end)?;
        let position = self.end + paths.len() as u64;
        self.file.write_all_at(&index, position)?;
        // Only now it counts: a run cut short by a full disk is overwritten by the next.
        self.end = position + index.len() as u64;
        self.runs.push(Run {
            first,
            last,
            position,
            records: kept.len() as u64,
        });
        Ok(())
    }

    fn get(&self, entry: EntryId) -> io::Result<Option<Vec<u8>>> {
        for run in self.runs.iter().rev() {
            if (run.first..=run.last).contains(&entry)
                && let Some(path) = self.search(*run, entry)?
            {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    fn search(&self, run: Run, entry: EntryId) -> io::Result<Option<Vec<u8>>> {
        let (mut low, mut high) = (0, run.records);
        while low < high {
            let middle = low.midpoint(high);
            let [found, position, len] = self.record(run, middle)?;
            match found.cmp(&entry.0) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => {
                    let len = usize::try_from(len).map_err(io::Error::other)?;
                    let mut path = vec![0; len];
                    self.file.read_exact_at(&mut path, position)?;
                    return Ok(Some(path));
                }
            }
        }
        Ok(None)
    }

    fn record(&self, run: Run, index: u64) -> io::Result<[u64; 3]> {
        let mut bytes = [0; RECORD_BYTES];
        self.file
            .read_exact_at(&mut bytes, run.position + index * RECORD_BYTES as u64)?;
        let mut numbers = [0; 3];
        for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = bytes
                .iter()
                .rev()
                .fold(0, |sum, &byte| (sum << 8) | u64::from(byte));
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_in_memory_and_in_every_run() {
        let mut published = Published::with_kept_max(10);
        // Pairs swapped: entries are published only roughly in order.
        let order = (0..100_u64).map(|index| EntryId(3 * (index ^ 1)));
        for entry in order.clone() {
            published
                .add(entry, format!("path/{entry}").into_bytes())
                .unwrap();
        }
        assert!(published.kept.len() <= 10);
        for entry in order {
            let path = published.get(entry).unwrap().unwrap();
            assert_eq!(path, format!("path/{entry}").into_bytes());
            assert_eq!(published.get(EntryId(entry.0 + 1)).unwrap(), None);
        }
        assert_eq!(published.get(EntryId(9999)).unwrap(), None);
    }
}
