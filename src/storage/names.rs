//! The names of one directory in byte order, in bounded memory: of each directory, and of all that are
//! walked in the process.
//!
//! In: names as `getdents64(2)` tells them. Out: the same names, sorted. Names beyond the limit go
//! to a scratch file as sorted runs that are merged while they are read.
//!
//! ```text
//! push -> [ block in memory ] -- full --> run of level 0 in the scratch file
//!                                         FAN_IN runs of one level -> one run of the next
//! next <- smallest head of all runs, each read ahead by READ_AHEAD_BYTES
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::scratch::scratch_file;
use crate::limits::WALK_NAMES_BYTES_PROCESS_MAX;

/// Runs of one level that are merged into one of the next.
const FAN_IN: usize = 32;
/// What a run reads ahead.
const READ_AHEAD_BYTES: usize = 8 << 10;
/// What a name costs in the block beside its bytes.
const INDEX_BYTES: usize = size_of::<(u32, u32)>();

/// A block of less is not spilled because of what others hold: runs must not become too many.
const CROWDED_BLOCK_BYTES_MIN: usize = 256 << 10;
/// Blocks count what they hold in steps of this.
const COUNTED_BYTES: usize = 16 << 10;

/// What all blocks of the process hold. It counts and guards no other memory, so no order is needed.
static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Takes names in any order.
pub(super) struct NameSorter {
    block: Block,
    block_bytes_max: usize,
    spill: Option<Spill>,
}

/// Gives names in byte order.
pub(super) enum SortedNames {
    Memory(Block),
    Merged(Merge),
}

impl NameSorter {
    /// A sorter that keeps at most `block_bytes_max` bytes in memory while it takes names.
    pub(super) fn new(block_bytes_max: usize) -> Self {
        // Offsets in the block are 32 bits wide.
        let block_bytes_max = block_bytes_max.min(1 << 30);
        Self {
            block: Block::default(),
            block_bytes_max,
            spill: None,
        }
    }

    /// Takes a name of at most 255 bytes.
    pub(super) fn push(&mut self, name: &[u8]) -> io::Result<()> {
        let held = self.block.held_bytes();
        let is_crowded = || {
            held >= CROWDED_BLOCK_BYTES_MIN
                && HELD_BYTES.load(Ordering::Relaxed) > WALK_NAMES_BYTES_PROCESS_MAX
        };
        if held + name.len() + INDEX_BYTES > self.block_bytes_max || is_crowded() {
            self.spill_block()?;
        }
        self.block.push(name);
        Ok(())
    }

    /// The names, sorted.
    pub(super) fn finish(mut self) -> io::Result<SortedNames> {
        if self.spill.is_none() {
            self.block.sort();
            return Ok(SortedNames::Memory(self.block));
        }
        self.spill_block()?;
        let Some(spill) = self.spill else {
            return Ok(SortedNames::Memory(Block::default()));
        };
        Ok(SortedNames::Merged(Merge::new(&spill.file, &spill.runs)?))
    }

    fn spill_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let spill = match &mut self.spill {
            Some(spill) => spill,
            none => none.insert(Spill::new()?),
        };
        self.block.sort();
        let block = &mut self.block;
        spill.add_run(0, |write| {
            while let Some(name) = block.next() {
                write(name)?;
            }
            Ok(())
        })?;
        // Its memory is given back too: it may be others that have none.
        self.block = Block::default();
        spill.merge_full_levels()
    }
}

impl Default for SortedNames {
    fn default() -> Self {
        Self::Memory(Block::default())
    }
}

impl SortedNames {
    /// The next name.
    pub(super) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Memory(block) => Ok(block.next().map(<[u8]>::to_vec)),
            Self::Merged(merge) => merge.next(),
        }
    }

    /// Memory that it holds, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Self::Memory(block) => block.held_bytes(),
            Self::Merged(merge) => merge.readers.len() * READ_AHEAD_BYTES,
        }
    }
}

/// Names one after the other in one piece of memory.
#[derive(Default)]
pub(super) struct Block {
    bytes: Vec<u8>,
    /// Where each name starts and ends.
    index: Vec<(u32, u32)>,
    given: usize,
    counted: Counted,
}

/// What of the process's sum is a block's. It is taken off when this is dropped.
#[derive(Default)]
struct Counted(usize);

impl Counted {
    /// The block holds so much now.
    fn holds(&mut self, bytes: usize) {
        if bytes > self.0 {
            let more = (bytes - self.0).next_multiple_of(COUNTED_BYTES);
            HELD_BYTES.fetch_add(more, Ordering::Relaxed);
            self.0 += more;
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        HELD_BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

impl Block {
    fn push(&mut self, name: &[u8]) {
        // The sorter keeps a block below 1 GiB.
        #[allow(clippy::cast_possible_truncation)]
        let (start, end) = (
            self.bytes.len() as u32,
            (self.bytes.len() + name.len()) as u32,
        );
        self.bytes.extend_from_slice(name);
        self.index.push((start, end));
        self.counted.holds(self.held_bytes());
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        self.index
            .sort_unstable_by_key(|&(start, end)| &bytes[start as usize..end as usize]);
    }

    fn next(&mut self) -> Option<&[u8]> {
        let &(start, end) = self.index.get(self.given)?;
        self.given += 1;
        Some(&self.bytes[start as usize..end as usize])
    }

    fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    fn held_bytes(&self) -> usize {
        self.bytes.len() + self.index.len() * INDEX_BYTES
    }
}

/// Sorted runs in a scratch file. A name is one byte of length, then its bytes.
struct Spill {
    file: Arc<File>,
    end: u64,
    runs: Vec<Run>,
}

#[derive(Clone, Copy)]
struct Run {
    start: u64,
    end: u64,
    level: u32,
}

impl Spill {
    fn new() -> io::Result<Self> {
        Ok(Self {
            file: Arc::new(scratch_file()?),
            end: 0,
            runs: Vec::new(),
        })
    }

    fn add_run(
        &mut self,
        level: u32,
        fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>,
    ) -> io::Result<()> {
        let start = self.end;
        let mut out = BufWriter::new(Appender {
            file: &self.file,
            end: start,
        });
        fill(&mut |name| {
            let len = u8::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidData)?;
            out.write_all(&[len])?;
            out.write_all(name)
        })?;
        let end = out
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?
            .end;
        self.end = end;
        self.runs.push(Run { start, end, level });
        Ok(())
    }

    fn merge_full_levels(&mut self) -> io::Result<()> {
        while let Some(&Run { level, .. }) = self.runs.last() {
            let same = self
                .runs
                .iter()
                .rev()
                .take_while(|run| run.level == level)
                .count();
            if same < FAN_IN {
                break;
            }
            let merged = self.runs.split_off(self.runs.len() - same);
            let mut merge = Merge::new(&self.file, &merged)?;
            self.add_run(level + 1, |write| {
                while let Some(name) = merge.next()? {
                    write(&name)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

struct Appender<'a> {
    file: &'a File,
    end: u64,
}

impl io::Write for Appender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write_at(bytes, self.end)?;
        self.end += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The heads of all runs, smallest first.
pub(super) struct Merge {
    readers: Vec<RunReader>,
    heads: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
}

impl Merge {
    fn new(file: &Arc<File>, runs: &[Run]) -> io::Result<Self> {
        let mut merge = Self {
            readers: Vec::new(),
            heads: BinaryHeap::new(),
        };
        for (i, run) in runs.iter().enumerate() {
            let mut reader = RunReader::new(Arc::clone(file), *run);
            if let Some(name) = reader.next()? {
                merge.heads.push(Reverse((name, i)));
            }
            merge.readers.push(reader);
        }
        Ok(merge)
    }

    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(Reverse((name, from))) = self.heads.pop() else {
            return Ok(None);
        };
        if let Some(follower) = self.readers[from].next()? {
            self.heads.push(Reverse((follower, from)));
        }
        Ok(Some(name))
    }
}

struct RunReader {
    file: Arc<File>,
    /// What of the run was not yet read into `ahead`.
    rest: Run,
    ahead: Vec<u8>,
    used: usize,
}

impl RunReader {
    fn new(file: Arc<File>, rest: Run) -> Self {
        Self {
            file,
            rest,
            ahead: Vec::new(),
            used: 0,
        }
    }

    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.used == self.ahead.len() && self.rest.start == self.rest.end {
            return Ok(None);
        }
        let len = usize::from(self.take(1)?[0]);
        self.take(len).map(|name| Some(name.to_vec()))
    }

    /// The next `count` bytes, at most 255.
    fn take(&mut self, count: usize) -> io::Result<&[u8]> {
        if self.ahead.len() - self.used < count {
            self.read_ahead()?;
        }
        let taken = self.used..self.used + count;
        self.used = taken.end;
        self.ahead
            .get(taken)
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn read_ahead(&mut self) -> io::Result<()> {
        self.ahead.drain(..self.used);
        self.used = 0;
        let kept = self.ahead.len();
        let left = self.rest.end - self.rest.start;
        let more = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(READ_AHEAD_BYTES);
        self.ahead.resize(kept + more, 0);
        self.file
            .read_exact_at(&mut self.ahead[kept..], self.rest.start)?;
        self.rest.start += more as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(names: &[Vec<u8>], block_bytes_max: usize) -> Vec<Vec<u8>> {
        let mut sorter = NameSorter::new(block_bytes_max);
        for name in names {
            sorter.push(name).unwrap();
        }
        let mut out = sorter.finish().unwrap();
        std::iter::from_fn(|| out.next().unwrap()).collect()
    }

    #[test]
    fn many_walks_share_their_memory() {
        let mut all = Vec::new();
        for number in 0..32_u32 {
            let mut sorter = NameSorter::new(8 << 20);
            for name in 0..8_000_u32 {
                sorter
                    .push(format!("{number}-{name:0240}").as_bytes())
                    .unwrap();
            }
            all.push(sorter.finish().unwrap());
        }
        // Two megabytes each.
        let held: usize = all.iter().map(SortedNames::held_bytes).sum();
        assert!(held < WALK_NAMES_BYTES_PROCESS_MAX + (4 << 20), "{held}");
        for names in &mut all {
            let count = std::iter::from_fn(|| names.next().unwrap()).count();
            assert_eq!(count, 8_000);
        }
    }

    #[test]
    fn any_limit_gives_byte_order() {
        // 7919 is prime, so all of the numbers come, mixed up.
        let names: Vec<Vec<u8>> = (0..5000_u32)
            .map(|i| format!("{}-{}", i * 7919 % 5000, "x".repeat(i as usize % 200)).into_bytes())
            .collect();
        let mut expected = names.clone();
        expected.sort_unstable();
        // The smallest makes more than FAN_IN squared runs.
        for limit in [512, 4096, 100_000, usize::MAX] {
            assert_eq!(sorted(&names, limit), expected, "{limit}");
        }
        assert!(sorted(&[], 0).is_empty());
        assert_eq!(
            sorted(&[vec![255; 255], vec![1]], 0),
            [vec![1], vec![255; 255]]
        );
    }
}
