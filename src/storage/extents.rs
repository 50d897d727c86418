//! Where a file has data and where it has holes.
//!
//! In: an open file and a range of it. Out: the data in it, as `SEEK_DATA` and `SEEK_HOLE` tell it
//! (lseek(2)). A file system that can't tell has one extent: all of it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::units::ByteRange;

/// Most extents that are looked at; behind them all counts as data. With 4 KiB blocks this is more
/// than four windows can hold.
const SEEN_MAX: usize = 1 << 15;

/// What is known of where one open file has data.
///
/// A file system may walk through all of a file's pages to find the next hole, so a file that has
/// no room for holes is not asked, and the end of a run of data is asked for once, not once for each
/// window of the file.
#[derive(Debug)]
pub struct Extents {
    /// The file takes as much on disk as it is long.
    dense: bool,
    /// The run of data that was found last.
    known: Mutex<ByteRange>,
}

impl Extents {
    /// Of a file that is `len` bytes long and takes `allocated` bytes on disk.
    pub fn new(len: u64, allocated: u64) -> Self {
        Self {
            dense: allocated >= len,
            known: Mutex::default(),
        }
    }

    /// The data in `range`; see [`extents`].
    pub fn of(&self, file: impl AsFd, range: ByteRange, max: usize) -> Vec<ByteRange> {
        if range.is_empty() {
            return Vec::new();
        }
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if self.dense || (known.start <= range.start && range.end <= known.end) {
            return vec![range];
        }
        let file = file.as_fd();
        let (found, last) = seek_through(file, range);
        if let Some(last) = last {
            *self.known.lock().unwrap_or_else(PoisonError::into_inner) = last;
        }
        coarsen(found, max.max(1))
    }
}

/// Where data begins at or after `position`; `len`, the file's length, if there is none.
pub fn next_data(file: impl AsFd, position: u64, len: u64) -> u64 {
    match seek(file, SeekFrom::Data(position)) {
        Ok(start) => start.max(position).min(len),
        Err(Errno::NXIO) => len,
        // What can't be told counts as data.
        Err(_) => position,
    }
}

/// The data in `range`, ascending and disjoint, in at most `max` extents (at least one is allowed):
/// where there are more, the smallest holes count as data.
///
/// Moves the descriptor's file position, which nothing else here uses.
pub fn extents(file: impl AsFd, range: ByteRange, max: usize) -> Vec<ByteRange> {
    coarsen(seek_through(file.as_fd(), range).0, max.max(1))
}

/// The data in `range`, and the last run of it as far as it goes beyond the range.
fn seek_through(file: BorrowedFd<'_>, range: ByteRange) -> (Vec<ByteRange>, Option<ByteRange>) {
    let mut found = Vec::new();
    let mut last = None;
    let mut position = range.start;
    while position < range.end {
        let start = match seek(file, SeekFrom::Data(position)) {
            Ok(start) if found.len() < SEEN_MAX => start,
            // No data from here on.
            Err(Errno::NXIO) => break,
            Ok(_) | Err(_) => {
                found.push(ByteRange {
                    start: position,
                    end: range.end,
                });
                break;
            }
        };
        if start >= range.end {
            break;
        }
        let hole = seek(file, SeekFrom::Hole(start)).unwrap_or(range.end);
        // The answer for a file that changes meanwhile may lie anywhere; it must still get on.
        let hole = hole.max(start.max(position) + 1);
        last = Some(ByteRange { start, end: hole });
        let end = hole.min(range.end);
        found.push(ByteRange {
            start: start.max(position),
            end,
        });
        position = end;
    }
    (found, last)
}

/// Fills the smallest gaps until at most `max` extents are left.
fn coarsen(extents: Vec<ByteRange>, max: usize) -> Vec<ByteRange> {
    let surplus = extents.len().saturating_sub(max);
    if surplus == 0 {
        return extents;
    }
    let mut gaps: Vec<(u64, usize)> = extents
        .windows(2)
        .enumerate()
        .map(|(i, pair)| (pair[1].start - pair[0].end, i))
        .collect();
    gaps.select_nth_unstable(surplus - 1);
    let mut filled = vec![false; extents.len()];
    for &(_, before) in &gaps[..surplus] {
        filled[before] = true;
    }
    let mut coarse: Vec<ByteRange> = Vec::with_capacity(max);
    let mut joins = false;
    for (extent, joins_next) in extents.into_iter().zip(filled) {
        match coarse.last_mut() {
            Some(last) if joins => last.end = extent.end,
            _ => coarse.push(extent),
        }
        joins = joins_next;
    }
    coarse
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const BLOCK: u64 = 64 << 10;
    static BLOCK_OF_ONES: [u8; 64 << 10] = [1; 64 << 10];

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    /// Data in the blocks 2 and 5 of ten, if the file system keeps holes.
    fn sparse() -> std::fs::File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10 * BLOCK).unwrap();
        file.write_all_at(&BLOCK_OF_ONES, 2 * BLOCK).unwrap();
        file.write_all_at(&BLOCK_OF_ONES, 5 * BLOCK).unwrap();
        file
    }

    #[test]
    fn holes_are_left_out() {
        let file = sparse();
        let found = extents(&file, range(0, 10 * BLOCK), 8);
        assert_eq!(
            found,
            [range(2 * BLOCK, 3 * BLOCK), range(5 * BLOCK, 6 * BLOCK)]
        );
        let found = extents(&file, range(2 * BLOCK + 10, 4 * BLOCK), 8);
        assert_eq!(found, [range(2 * BLOCK + 10, 3 * BLOCK)]);
        assert!(extents(&file, range(7 * BLOCK, 10 * BLOCK), 8).is_empty());
        assert!(extents(&file, range(0, 0), 8).is_empty());
    }

    #[test]
    fn what_is_known_gives_the_same_answers() {
        let file = sparse();
        let known = Extents::new(10 * BLOCK, 2 * BLOCK);
        for (start, end) in [
            (0, 10),
            (0, 1),
            (2, 3),
            (2, 4),
            (5, 6),
            (5, 10),
            (3, 6),
            (1, 3),
        ] {
            let range = range(start * BLOCK, end * BLOCK);
            assert_eq!(
                known.of(&file, range, 8),
                extents(&file, range, 8),
                "{start}..{end}"
            );
        }
        let dense = Extents::new(BLOCK, BLOCK);
        assert_eq!(dense.of(&file, range(0, BLOCK), 8), [range(0, BLOCK)]);
    }

    #[test]
    fn small_gaps_are_filled_first() {
        let fine = vec![range(0, 10), range(11, 20), range(50, 60), range(65, 70)];
        assert_eq!(coarsen(fine.clone(), 2), [range(0, 20), range(50, 70)]);
        assert_eq!(coarsen(fine.clone(), 1), [range(0, 70)]);
        assert_eq!(coarsen(fine.clone(), 4), fine);
    }

    #[test]
    fn what_can_not_seek_is_all_data() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(extents(&reader, range(5, 9), 4), [range(5, 9)]);
    }
}
