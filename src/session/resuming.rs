//! What a receiving run records of its files, and how it proves what an interrupted one left.
//!
//! In: chunks that were proved, part files with the claims of an earlier run. Out: batches for the
//! journals, and the chunks that are what they are claimed to be. A claim becomes a fact only by
//! hashing what lies on the disk; that runs on workers, a window at a time and in one buffer. Where
//! files and journals are, and whether they can be trusted so far, is storage's affair.

use std::io;
use std::time::Duration;

use crate::engine::receiver::Proof;
use crate::integrity::{ChunkHasher, HashPlan, Sha256State};
use crate::storage::sink::{PartFile, Record};
use crate::units::{ChunkIndex, ChunkRange, ChunkSize};

/// A file's records go into its journal once they are of so many bytes,
pub(super) const RECORDING_BYTES: u64 = 64 << 20;
/// or once they have waited for this long, twice at most: with the above, what an interruption loses.
pub(super) const RECORDING_PAUSE: Duration = Duration::from_secs(1);
/// A part file is read in pieces of this many bytes, which are hashed while they are in the cache.
const PIECE_BYTES: usize = 256 << 10;

/// Chunks of a file that were proved and are not in its journal yet. No more than a record is moved
/// for a chunk: files and system calls are left to the workers.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// Whether the file has a journal, or may get one.
    wanted: bool,
    waiting: Vec<Record>,
    /// They have been waiting when it was last looked.
    old: bool,
    /// A job appends the ones before these.
    appending: bool,
}

impl Records {
    pub(super) fn of(part: &PartFile) -> Self {
        Self {
            wanted: part.is_recorded(),
            ..Self::default()
        }
    }

    /// A chunk is there and proved. What an earlier run has recorded is not recorded again.
    pub(super) fn add(&mut self, part: Option<&PartFile>, chunk: ChunkIndex, value: [u8; 32]) {
        let is_known = |part: &PartFile| part.claims().value(chunk.0) == Some(value);
        if self.wanted && !part.is_some_and(is_known) {
            self.waiting.push((chunk.0, value));
        }
    }

    pub(super) fn bytes(&self, size: ChunkSize) -> u64 {
        (self.waiting.len() as u64).saturating_mul(size.bytes())
    }

    /// Whether there is something to append and nobody at it.
    pub(super) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty() && !self.appending
    }

    /// Whether they waited when this was last asked, and still do: a file that is done sooner needs no
    /// journal.
    pub(super) fn is_overdue(&mut self) -> bool {
        let waiting = self.are_waiting();
        std::mem::replace(&mut self.old, waiting) && waiting
    }

    /// Those that wait, for a job that appends them.
    pub(super) fn take(&mut self) -> Vec<Record> {
        (self.appending, self.old) = (true, false);
        std::mem::take(&mut self.waiting)
    }

    /// That job is done.
    pub(super) fn recorded(&mut self) {
        self.appending = false;
    }

    /// The run is interrupted: what waits is recorded if the file has been recorded before. One that
    /// was under way for less than a batch is not worth keeping, unless the run `goes_on` at once: its
    /// session was lost.
    pub(super) fn finish(self, part: &PartFile, sync: bool, goes_on: bool) {
        let worth_it = goes_on && self.wanted && !self.waiting.is_empty();
        if part.has_journal() || worth_it {
            part.record(&self.waiting, sync);
        }
    }
}

/// How a chunk is hashed to be proved so.
pub(super) fn hash_plan(proof: Proof, chunk: ChunkIndex, size: ChunkSize, len: u64) -> HashPlan {
    match proof {
        Proof::None => HashPlan::None,
        Proof::Blake3 => HashPlan::Blake3 {
            chunk,
            chunk_size: size,
            file_len: len,
        },
        Proof::Sha256 { before } => HashPlan::Sha256 {
            before: before.map_or(Sha256State::INITIAL, Sha256State),
            start: size.range(chunk, len).start,
            file_len: len,
        },
    }
}

/// Those of the chunks that are on the disk as they are claimed to be, with their values. The others
/// are made zeros, so that holes in them are right once the rest has been fetched.
///
/// # Errors
/// A chunk could not be made zeros: then none may be kept or fetched into this file.
pub(super) fn prove_held(
    part: &PartFile,
    len: u64,
    size: ChunkSize,
    chunks: &[(ChunkIndex, Proof)],
) -> io::Result<Vec<(ChunkIndex, [u8; 32])>> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut proved = Vec::with_capacity(chunks.len());
    for &(chunk, proof) in chunks {
        let plan = hash_plan(proof, chunk, size, len);
        // What can't be read is not there.
        let value = hash_chunk(part, &plan, chunk, size, len, &mut piece)
            .ok()
            .flatten();
        match value.filter(|value| part.claims().value(chunk.0) == Some(*value)) {
            Some(value) => proved.push((chunk, value)),
            None => part.clear(size.range(chunk, len))?,
        }
    }
    Ok(proved)
}

pub(super) fn hash_chunk(
    part: &PartFile,
    plan: &HashPlan,
    chunk: ChunkIndex,
    size: ChunkSize,
    len: u64,
    piece: &mut [u8],
) -> io::Result<Option<[u8; 32]>> {
    let bytes = size.range(chunk, len);
    let mut hasher = ChunkHasher::new(plan);
    let mut at = bytes.start;
    while at < bytes.end {
        let wanted = usize::try_from(bytes.end - at).unwrap_or(usize::MAX);
        let wanted = wanted.min(piece.len());
        let read = part.read_at(&mut piece[..wanted], at)?;
        if read < wanted {
            return Ok(None);
        }
        hasher.update(&piece[..read]);
        at += read as u64;
    }
    Ok(hasher.finish())
}

/// Makes holes of what an earlier run wrote there, or an older copy had.
pub(super) fn clear_holes(
    part: &PartFile,
    len: u64,
    size: ChunkSize,
    holes: &[ChunkRange],
) -> io::Result<()> {
    if !part.has_bytes_of_old() {
        return Ok(());
    }
    for hole in holes.iter().filter(|hole| hole.start < hole.end) {
        let mut range = size.range(ChunkIndex(hole.start), len);
        range.end = size.range(ChunkIndex(hole.end - 1), len).end;
        part.clear(range)?;
    }
    Ok(())
}
