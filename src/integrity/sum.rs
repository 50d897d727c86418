//! The digest of one file, read here, by several threads where the hash allows it.

use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::chunk::{ChunkHasher, HashPlan};
use super::{FileHasher, RootBuilder, Value};
use crate::units::{ByteRange, ChunkIndex, ChunkSize};
use crate::wire::message::HashKind;

/// Bytes per read: each thread's buffer, still in the second-level cache when it is hashed.
const READ_BYTES: u64 = 256 << 10;
/// What a thread takes at a time: long enough that the kernel's read-ahead sees a run of reads.
const SHARE: ChunkSize = match ChunkSize::from_log2(22) {
    Some(size) => size,
    None => ChunkSize::MAX,
};
/// More threads than this gain nothing on a single file.
const THREADS_MAX: usize = 16;

/// Computes the digest of the `len` bytes that `read_at(buffer, offset)` reads from, as `pread`
/// does. It blocks; memory is 256 KiB per thread. BLAKE3 uses up to `threads` threads, the caller's
/// among them; SHA-256 has no use for a second one. To cancel, let `read_at` fail.
///
/// # Errors
/// The first error of `read_at` ([`io::ErrorKind::Interrupted`] is tried again);
/// [`io::ErrorKind::UnexpectedEof`] if it reads nothing before `len`;
/// [`io::ErrorKind::InvalidInput`] if the kind is [`HashKind::None`].
pub fn sum_file<R>(read_at: R, len: u64, kind: HashKind, threads: NonZeroUsize) -> io::Result<Value>
where
    R: Fn(&mut [u8], u64) -> io::Result<usize> + Sync,
{
    let shares = SHARE.count(len);
    let threads = threads
        .get()
        .min(THREADS_MAX)
        .min(usize::try_from(shares).unwrap_or(usize::MAX));
    if kind == HashKind::Blake3 && threads > 1 {
        return Shared::new(read_at, len).run(threads);
    }
    let mut hasher = FileHasher::new(kind)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no hash was chosen"))?;
    let mut buffer = buffer_for(len);
    for_each_piece(
        &read_at,
        ByteRange { start: 0, end: len },
        &mut buffer,
        |piece| {
            hasher.update(piece);
        },
    )?;
    Ok(hasher.finish())
}

/// What the threads of one BLAKE3 sum share.
struct Shared<R> {
    read_at: R,
    len: u64,
    /// The next share that nobody has taken; past the end once someone failed.
    next: AtomicU64,
    root: Mutex<RootBuilder>,
}

impl<R> Shared<R>
where
    R: Fn(&mut [u8], u64) -> io::Result<usize> + Sync,
{
    fn new(read_at: R, len: u64) -> Self {
        Self {
            read_at,
            len,
            next: AtomicU64::new(0),
            root: Mutex::new(RootBuilder::new(SHARE, len)),
        }
    }

    fn run(self, threads: usize) -> io::Result<Value> {
        thread::scope(|scope| {
            let helpers: Vec<_> = (1..threads)
                .map_while(|number| {
                    let name = format!("rdcp-sum-{number}");
                    // With fewer threads than asked for, the sum only takes longer.
                    thread::Builder::new()
                        .name(name)
                        .spawn_scoped(scope, || self.work())
                        .ok()
                })
                .collect();
            let own = self.work();
            helpers.into_iter().fold(own, |result, helper| {
                let theirs = helper
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result.and(theirs)
            })
        })?;
        let root = self
            .root
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        root.finish()
            .ok_or_else(|| io::Error::other("a part of the file was not hashed"))
    }

    /// Takes shares until there is none, or until anyone fails.
    fn work(&self) -> io::Result<()> {
        let mut buffer = buffer_for(self.len);
        loop {
            let share = ChunkIndex(self.next.fetch_add(1, Ordering::Relaxed));
            if share.0 >= SHARE.count(self.len) {
                return Ok(());
            }
            if let Err(error) = self.hash(share, &mut buffer) {
                self.next.store(SHARE.count(self.len), Ordering::Relaxed);
                return Err(error);
            }
        }
    }

    fn hash(&self, share: ChunkIndex, buffer: &mut [u8]) -> io::Result<()> {
        let plan = HashPlan::Blake3 {
            chunk: share,
            chunk_size: SHARE,
            file_len: self.len,
        };
        let mut hasher = ChunkHasher::new(&plan);
        for_each_piece(
            &self.read_at,
            SHARE.range(share, self.len),
            buffer,
            |piece| {
                hasher.update(piece);
            },
        )?;
        if let Some(value) = hasher.finish() {
            let mut root = self.root.lock().unwrap_or_else(PoisonError::into_inner);
            root.add(share, value).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

fn buffer_for(len: u64) -> Vec<u8> {
    // At most 256 KiB, so the cast keeps the value.
    #[allow(clippy::cast_possible_truncation)]
    let bytes = len.min(READ_BYTES) as usize;
    vec![0; bytes]
}

/// Reads a range front to back. Buffers are filled before they are passed on, so that short reads
/// do not become short pieces.
fn for_each_piece(
    read_at: impl Fn(&mut [u8], u64) -> io::Result<usize>,
    range: ByteRange,
    buffer: &mut [u8],
    mut take: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut offset = range.start;
    while offset < range.end {
        let want =
            usize::try_from(range.end - offset).map_or(buffer.len(), |left| left.min(buffer.len()));
        let piece = &mut buffer[..want];
        fill(&read_at, piece, offset)?;
        take(piece);
        offset += want as u64;
    }
    Ok(())
}

fn fill(
    read_at: impl Fn(&mut [u8], u64) -> io::Result<usize>,
    piece: &mut [u8],
    offset: u64,
) -> io::Result<()> {
    let mut filled = 0;
    while filled < piece.len() {
        let position = offset + filled as u64;
        match read_at(&mut piece[filled..], position) {
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("the file ended early, at byte {position}"),
                ));
            }
            // A reader that claims more than it was given room for must not make us panic.
            Ok(read) => filled = filled.saturating_add(read).min(piece.len()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
// Lengths in tests fit every integer.
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use super::*;
    use crate::integrity::digest;
    use std::sync::atomic::AtomicUsize;

    const KINDS: [HashKind; 2] = [HashKind::Blake3, HashKind::Sha256];

    fn file(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i / 3 + i / 4099) as u8).collect()
    }

    fn threads(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).unwrap()
    }

    /// Reads at most `most` bytes at a time.
    fn reader(file: &[u8], most: usize) -> impl Fn(&mut [u8], u64) -> io::Result<usize> + Sync {
        move |buffer, offset| {
            let rest = &file[(offset as usize).min(file.len())..];
            let len = buffer.len().min(rest.len()).min(most);
            buffer[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        }
    }

    #[test]
    fn any_number_of_threads_gives_the_standard_digest() {
        const SHARE_BYTES: usize = 4 << 20;
        for len in [
            0,
            1,
            300_000,
            SHARE_BYTES,
            SHARE_BYTES + 1,
            5 * SHARE_BYTES - 7,
        ] {
            let file = file(len);
            for kind in KINDS {
                let expected = digest(kind, &file).unwrap();
                for count in [1, 2, 3, 100] {
                    let sum = sum_file(reader(&file, 99_999), len as u64, kind, threads(count));
                    assert_eq!(
                        sum.unwrap(),
                        expected,
                        "{len} bytes, {kind:?}, {count} threads"
                    );
                }
            }
        }
    }

    #[test]
    fn a_file_that_ends_early_is_an_error() {
        let file = file(9 << 20);
        for kind in KINDS {
            let sum = sum_file(reader(&file, usize::MAX), 10 << 20, kind, threads(2));
            assert_eq!(sum.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn a_failed_read_ends_the_sum_for_all_threads() {
        let reads = AtomicUsize::new(0);
        let read_at = |buffer: &mut [u8], offset: u64| {
            reads.fetch_add(1, Ordering::Relaxed);
            if offset >= 6 << 20 {
                Err(io::Error::other("bad sector"))
            } else {
                Ok(buffer.len())
            }
        };
        let sum = sum_file(read_at, 1 << 50, HashKind::Blake3, threads(2));
        assert_eq!(sum.unwrap_err().to_string(), "bad sector");
        // Each thread ends within its share.
        assert!(reads.load(Ordering::Relaxed) <= 3 * (SHARE.bytes() / READ_BYTES) as usize);
    }

    #[test]
    fn interrupted_reads_are_tried_again() {
        let file = file(100);
        let calls = AtomicUsize::new(0);
        let read_at = |buffer: &mut [u8], offset: u64| {
            if calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            reader(&file, 7)(buffer, offset)
        };
        let sum = sum_file(read_at, 100, HashKind::Blake3, threads(1));
        assert_eq!(sum.unwrap(), digest(HashKind::Blake3, &file).unwrap());
    }

    #[test]
    fn a_reader_that_claims_too_much_does_no_harm() {
        let sum = sum_file(
            |_: &mut [u8], _| Ok(usize::MAX),
            10,
            HashKind::Blake3,
            threads(1),
        );
        assert_eq!(sum.unwrap(), digest(HashKind::Blake3, &[0; 10]).unwrap());
    }

    #[test]
    fn no_hash_is_refused() {
        let sum = sum_file(|_: &mut [u8], _| Ok(0), 0, HashKind::None, threads(2));
        assert_eq!(sum.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
