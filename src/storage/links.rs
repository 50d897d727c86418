//! Which inodes with several links were told already.
//!
//! In: a file's status and the entry that names it now. Out: the entry that named it first, if
//! there was one. Small tables live in memory and lose an inode once all its links were seen; a
//! table that outgrows memory moves to a scratch file, where an answer costs about one read.
//!
//! The scratch file is a hash table of buckets with open addressing. A bucket is [`BUCKET_BYTES`]
//! of records; a record that is all zero is free, so that a new file is an empty table:
//!
//! ```text
//! 0        8        16             24
//! | device | inode  | entry id + 1 |     little-endian
//! ```

use std::collections::HashMap;
use std::collections::hash_map::{Entry as Slot, RandomState};
use std::fs::File;
use std::hash::BuildHasher;
use std::io;
use std::os::unix::fs::FileExt;

use super::scratch::scratch_file;
use super::status::Status;
use crate::ids::EntryId;

const RECORD_BYTES: usize = 24;
const BUCKET_RECORDS: usize = 42;
const BUCKET_BYTES: usize = BUCKET_RECORDS * RECORD_BYTES;
/// Buckets of a new table on disk. It doubles when it is half full.
const BUCKETS_MIN: u64 = 1 << 12;

type Inode = (u64, u64);

/// The table.
pub(super) struct LinkTable {
    memory: HashMap<Inode, Known>,
    memory_entries_max: usize,
    disk: Option<DiskTable>,
}

struct Known {
    first: EntryId,
    /// Links that were not seen yet.
    missing: u32,
}

impl LinkTable {
    /// A table that keeps at most `memory_entries_max` inodes in memory.
    pub(super) fn new(memory_entries_max: usize) -> Self {
        Self {
            memory: HashMap::new(),
            memory_entries_max,
            disk: None,
        }
    }

    /// The entry that was told first for this inode; `None` if `entry` is the first.
    pub(super) fn first(&mut self, status: &Status, entry: EntryId) -> io::Result<Option<EntryId>> {
        let inode = (status.device, status.inode);
        if let Some(disk) = &mut self.disk {
            return disk.first(inode, entry);
        }
        match self.memory.entry(inode) {
            Slot::Occupied(mut known) => {
                let first = known.get().first;
                known.get_mut().missing = known.get().missing.saturating_sub(1);
                if known.get().missing == 0 {
                    known.remove();
                }
                return Ok(Some(first));
            }
            Slot::Vacant(free) => {
                free.insert(Known {
                    first: entry,
                    missing: status.links.saturating_sub(1),
                });
            }
        }
        if self.memory.len() > self.memory_entries_max {
            self.move_to_disk()?;
        }
        Ok(None)
    }

    fn move_to_disk(&mut self) -> io::Result<()> {
        let mut disk = DiskTable::new(BUCKETS_MIN)?;
        for (inode, known) in &self.memory {
            disk.first(*inode, known.first)?;
        }
        self.memory = HashMap::new();
        self.disk = Some(disk);
        Ok(())
    }
}

struct DiskTable {
    file: File,
    buckets: u64,
    entries: u64,
    // Inode numbers can be chosen by whoever makes files, so their order in the table must not be.
    hasher: RandomState,
}

impl DiskTable {
    fn new(buckets: u64) -> io::Result<Self> {
        let file = scratch_file()?;
        file.set_len(buckets * BUCKET_BYTES as u64)?;
        Ok(Self {
            file,
            buckets,
            entries: 0,
            hasher: RandomState::new(),
        })
    }

    fn first(&mut self, inode: Inode, entry: EntryId) -> io::Result<Option<EntryId>> {
        let mut bucket = self.hasher.hash_one(inode) % self.buckets;
        let mut bytes = [0; BUCKET_BYTES];
        loop {
            let start = bucket * BUCKET_BYTES as u64;
            self.file.read_exact_at(&mut bytes, start)?;
            for (i, record) in bytes.as_chunks::<RECORD_BYTES>().0.iter().enumerate() {
                match decode(record) {
                    Some((known, first)) if known == inode => return Ok(Some(first)),
                    Some(_) => {}
                    None => {
                        let at = start + (i * RECORD_BYTES) as u64;
                        self.file.write_all_at(&encode(inode, entry), at)?;
                        return self.count().map(|()| None);
                    }
                }
            }
            // Half of the records are free, so this ends.
            bucket = (bucket + 1) % self.buckets;
        }
    }

    fn count(&mut self) -> io::Result<()> {
        self.entries += 1;
        if self.entries * 2 < self.buckets * BUCKET_RECORDS as u64 {
            return Ok(());
        }
        let mut larger = Self::new(self.buckets * 2)?;
        let mut bytes = [0; BUCKET_BYTES];
        for bucket in 0..self.buckets {
            self.file
                .read_exact_at(&mut bytes, bucket * BUCKET_BYTES as u64)?;
            for record in bytes.as_chunks::<RECORD_BYTES>().0 {
                if let Some((inode, first)) = decode(record) {
                    larger.first(inode, first)?;
                }
            }
        }
        *self = larger;
        Ok(())
    }
}

fn encode((device, inode): Inode, entry: EntryId) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(&device.to_le_bytes());
    record[8..16].copy_from_slice(&inode.to_le_bytes());
    record[16..].copy_from_slice(&entry.0.wrapping_add(1).to_le_bytes());
    record
}

fn decode(record: &[u8; RECORD_BYTES]) -> Option<(Inode, EntryId)> {
    let (words, _) = record.as_chunks::<8>();
    let [device, inode, id] = [0, 1, 2].map(|i| u64::from_le_bytes(words[i]));
    id.checked_sub(1).map(|id| ((device, inode), EntryId(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(inode: u64, links: u32) -> Status {
        let base = Status::of(tempfile::tempfile().unwrap()).unwrap();
        Status {
            inode,
            links,
            ..base
        }
    }

    #[test]
    fn the_first_entry_is_found_in_memory_and_on_disk() {
        let base = status(0, 3);
        for memory_entries_max in [0, 10, usize::MAX] {
            let mut table = LinkTable::new(memory_entries_max);
            let inode = |i| Status { inode: i, ..base };
            for i in 0..3000 {
                assert_eq!(table.first(&inode(i), EntryId(i)).unwrap(), None);
            }
            for i in (0..3000).rev() {
                let found = table.first(&inode(i), EntryId(9000 + i)).unwrap();
                assert_eq!(found, Some(EntryId(i)), "{memory_entries_max}");
            }
        }
    }

    #[test]
    fn tables_on_disk_grow() {
        let mut table = DiskTable::new(1).unwrap();
        for i in 0..2000 {
            assert_eq!(table.first((7, i), EntryId(i)).unwrap(), None);
        }
        assert!(table.buckets >= 64);
        for i in 0..2000 {
            assert_eq!(table.first((7, i), EntryId(0)).unwrap(), Some(EntryId(i)));
        }
    }

    #[test]
    fn memory_forgets_inodes_whose_links_were_all_seen() {
        let mut table = LinkTable::new(10);
        let twice = status(5, 2);
        assert_eq!(table.first(&twice, EntryId(1)).unwrap(), None);
        assert_eq!(table.first(&twice, EntryId(2)).unwrap(), Some(EntryId(1)));
        assert!(table.memory.is_empty());
    }
}
