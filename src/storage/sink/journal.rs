//! The journal's bytes: what a part file is of, and which of its chunks were proved.
//!
//! In: records to be written, or the bytes of a journal that an earlier run left. Out: bytes to
//! append, or what they claim. A claim is a hint and never proof: a chunk counts only once its bytes
//! on disk were hashed again and match. So a journal need not be durable, and one that is damaged,
//! cut short, of another file or of a later release costs a fetch and nothing else. Nothing here
//! opens, names or trusts files, and what a digest means is others' affair.
//!
//! All numbers are little-endian. A journal is a header and then batches, appended one by one:
//!
//! ```text
//!  at  bytes  header                            at  bytes  batch
//!   0      8  "rdcp-jnl"                         0      4  records in it, 1 to 4096
//!   8      2  version of this format: 1          4     40  for each: u64 chunk, 32 bytes of its proof
//!  10      1  proof: 1 BLAKE3, 2 SHA-256         ..    32  checksum: BLAKE3 of the batch's number
//!  11      1  chunk size: log2 of its bytes                (u64, from 0) and the bytes above, keyed
//!  12      4  zero                                         by the header's checksum
//!  16      8  length of the file in bytes
//!  24     32  the source's version as it was granted
//!  56      8  stem of the destination's name
//!  64     32  checksum: BLAKE3 of the bytes above under a key of its own
//! ```
//!
//! The first batch whose checksum is wrong ends what is believed: a run that was killed while it
//! appended leaves half a batch there, and the next one cuts it off.

use std::io::Read;

use crate::manifest::Version;
use crate::units::{ChunkRange, ChunkSize};
use crate::wire::message::HashKind;

const MAGIC: &[u8; 8] = b"rdcp-jnl";
const FORMAT: u16 = 1;
const HEADER_KEY: &[u8; 32] = b"rdcp: the header of a journal   ";
const HEADER_BYTES: usize = 96;
const CHECKSUM_BYTES: usize = 32;
const RECORD_BYTES: usize = 40;
const BATCH_RECORDS_MAX: usize = 4096;
/// Most chunks that a journal speaks of: 1 TiB in chunks of 1 MiB, and 40 MiB of memory while one is
/// gone on with. What lies beyond is fetched anew.
pub(crate) const CLAIMS_MAX: usize = 1 << 20;

/// A chunk and the value that proves it.
pub(crate) type Record = (u64, [u8; 32]);

/// What a part file is of. A journal counts only for exactly this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The destination's name; see [`stem_of`](crate::storage::part_name::stem_of).
    pub(crate) stem: u64,
    pub(crate) hash: HashKind,
    pub(crate) chunk: ChunkSize,
    pub(crate) len: u64,
    /// The source's, as its grant told it.
    pub(crate) version: Version,
}

/// Why a journal is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// It is of the same destination, and its source was another or has changed.
    Source,
    /// It is of something else, of another release, or damaged.
    Foreign,
}

/// What a journal claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    /// Ascending, each chunk once.
    records: Vec<Record>,
}

/// A journal that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Journalled {
    pub(crate) claims: Claims,
    /// Where the next batch belongs.
    pub(crate) appender: Appender,
}

/// Makes the bytes of batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Appender {
    key: [u8; 32],
    batches: u64,
    /// Length of the journal so far, in bytes.
    pub(crate) len: u64,
    records: usize,
}

impl Identity {
    fn header(&self) -> Option<[u8; HEADER_BYTES]> {
        let hash = match self.hash {
            HashKind::Blake3 => 1,
            HashKind::Sha256 => 2,
            // Without proofs there is nothing to go on with.
            HashKind::None => return None,
        };
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(MAGIC);
        header[8..10].copy_from_slice(&FORMAT.to_le_bytes());
        header[10] = hash;
        header[11] = self.chunk.log2();
        header[16..24].copy_from_slice(&self.len.to_le_bytes());
        header[24..56].copy_from_slice(&self.version.0);
        header[56..64].copy_from_slice(&self.stem.to_le_bytes());
        let checksum = blake3::keyed_hash(HEADER_KEY, &header[..64]);
        header[64..].copy_from_slice(checksum.as_bytes());
        Some(header)
    }

    /// A new journal's first bytes, and what appends to it; nothing without a hash.
    pub(crate) fn begin(&self) -> Option<([u8; HEADER_BYTES], Appender)> {
        let header = self.header()?;
        Some((header, Appender::after(&header)))
    }

    /// Reads a journal as far as it can be believed. An error of the reader ends it like its end.
    pub(crate) fn read(&self, mut journal: impl Read) -> Result<Journalled, Unusable> {
        let expected = self.header().ok_or(Unusable::Foreign)?;
        let mut header = [0; HEADER_BYTES];
        journal
            .read_exact(&mut header)
            .map_err(|_| Unusable::Foreign)?;
        if header != expected {
            return Err(self.what_else(&header, &expected));
        }
        let mut appender = Appender::after(&header);
        let mut records = Vec::new();
        let mut batch = Vec::new();
        while records.len() < CLAIMS_MAX && self.read_batch(&mut journal, &appender, &mut batch) {
            appender.took(&batch);
            let fields = &batch[4..batch.len() - CHECKSUM_BYTES];
            records.extend(fields.chunks_exact(RECORD_BYTES).map(record));
        }
        // Of a chunk that was recorded twice, the later record counts.
        records.reverse();
        records.sort_by_key(|(chunk, _)| *chunk);
        records.dedup_by_key(|(chunk, _)| *chunk);
        let claims = Claims { records };
        Ok(Journalled { claims, appender })
    }

    fn what_else(&self, header: &[u8; HEADER_BYTES], expected: &[u8; HEADER_BYTES]) -> Unusable {
        let checksum = blake3::keyed_hash(HEADER_KEY, &header[..64]);
        // All but length and version are the same.
        let same = header[..16] == expected[..16] && header[56..64] == expected[56..64];
        match checksum.as_bytes() == &header[64..] && same {
            true => Unusable::Source,
            false => Unusable::Foreign,
        }
    }

    /// Reads the next batch; whether it is whole and right.
    fn read_batch(
        &self,
        journal: &mut impl Read,
        appender: &Appender,
        batch: &mut Vec<u8>,
    ) -> bool {
        batch.resize(4, 0);
        if journal.read_exact(batch).is_err() {
            return false;
        }
        let count = usize::try_from(u32_at(batch)).unwrap_or(usize::MAX);
        if !(1..=BATCH_RECORDS_MAX).contains(&count) {
            return false;
        }
        batch.resize(4 + count * RECORD_BYTES + CHECKSUM_BYTES, 0);
        if journal.read_exact(&mut batch[4..]).is_err() {
            return false;
        }
        let (fields, checksum) = batch.split_at(batch.len() - CHECKSUM_BYTES);
        let chunks = self.chunk.count(self.len);
        appender.checksum(fields) == checksum
            && fields[4..]
                .chunks_exact(RECORD_BYTES)
                .all(|bytes| record(bytes).0 < chunks)
    }
}

impl Appender {
    fn after(header: &[u8; HEADER_BYTES]) -> Self {
        let mut key = [0; 32];
        key.copy_from_slice(&header[64..]);
        Self {
            key,
            batches: 0,
            len: HEADER_BYTES as u64,
            records: 0,
        }
    }

    /// The bytes that say so, to be written at the length so far; nothing once the journal is full.
    pub(crate) fn append(&mut self, records: &[Record]) -> Vec<u8> {
        let room = CLAIMS_MAX.saturating_sub(self.records);
        let records = &records[..records.len().min(room)];
        let mut bytes = Vec::with_capacity(records.len() * RECORD_BYTES + 64);
        for part in records.chunks(BATCH_RECORDS_MAX) {
            let start = bytes.len();
            let count = u32::try_from(part.len()).unwrap_or(u32::MAX);
            bytes.extend_from_slice(&count.to_le_bytes());
            for (chunk, value) in part {
                bytes.extend_from_slice(&chunk.to_le_bytes());
                bytes.extend_from_slice(value);
            }
            let checksum = self.checksum(&bytes[start..]);
            bytes.extend_from_slice(&checksum);
            self.took(&bytes[start..]);
        }
        bytes
    }

    pub(crate) fn checksum(&self, fields: &[u8]) -> [u8; CHECKSUM_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.batches.to_le_bytes());
        hasher.update(fields);
        hasher.finalize().into()
    }

    pub(crate) fn took(&mut self, batch: &[u8]) {
        self.batches += 1;
        self.len += batch.len() as u64;
        self.records += (batch.len() - 4 - CHECKSUM_BYTES) / RECORD_BYTES;
    }
}

impl Claims {
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The value that the chunk is claimed to have.
    pub(crate) fn value(&self, chunk: u64) -> Option<[u8; 32]> {
        let at = self
            .records
            .binary_search_by_key(&chunk, |(chunk, _)| *chunk);
        at.ok().map(|at| self.records[at].1)
    }

    /// The chunks that are claimed, ascending, in as few ranges as there can be.
    pub(crate) fn ranges(&self) -> Vec<ChunkRange> {
        let mut ranges: Vec<ChunkRange> = Vec::new();
        for &(chunk, _) in &self.records {
            match ranges.last_mut() {
                Some(last) if last.end == chunk => last.end += 1,
                _ => ranges.push(ChunkRange {
                    start: chunk,
                    end: chunk + 1,
                }),
            }
        }
        ranges
    }
}

fn record(bytes: &[u8]) -> Record {
    let (mut chunk, mut value) = ([0; 8], [0; 32]);
    chunk.copy_from_slice(&bytes[..8]);
    value.copy_from_slice(&bytes[8..RECORD_BYTES]);
    (u64::from_le_bytes(chunk), value)
}

fn u32_at(bytes: &[u8]) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[..4]);
    u32::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            stem: 77,
            hash: HashKind::Blake3,
            chunk: ChunkSize::DEFAULT,
            len: 20 * ChunkSize::DEFAULT.bytes() + 1,
            version: Version([5; 32]),
        }
    }

    fn value(seed: u64) -> [u8; 32] {
        blake3::hash(&seed.to_le_bytes()).into()
    }

    /// Three batches, with a chunk in two of them.
    fn batches() -> [Vec<Record>; 3] {
        let batch = |chunks: &[u64]| chunks.iter().map(|&n| (n, value(n))).collect();
        let mut last: Vec<Record> = batch(&[20, 0]);
        last.push((7, value(700)));
        [batch(&[0, 1, 2]), batch(&[7, 5]), last]
    }

    /// Its bytes, and where each batch ends.
    fn journal() -> (Vec<u8>, Vec<usize>) {
        let (header, mut appender) = identity().begin().unwrap();
        let mut bytes = header.to_vec();
        let ends = batches().map(|batch| {
            bytes.extend(appender.append(&batch));
            assert_eq!(appender.len, bytes.len() as u64);
            bytes.len()
        });
        (bytes, ends.to_vec())
    }

    /// What the first so many batches claim.
    fn claims(batches_read: usize) -> Claims {
        let mut records = std::collections::BTreeMap::new();
        for (chunk, value) in batches().into_iter().take(batches_read).flatten() {
            records.insert(chunk, value);
        }
        let records = records.into_iter().collect();
        Claims { records }
    }

    #[test]
    fn what_was_written_is_read_and_can_be_gone_on_with() {
        let (mut bytes, _) = journal();
        let read = identity().read(bytes.as_slice()).unwrap();
        assert_eq!(read.claims, claims(3));
        assert_eq!(read.claims.value(7), Some(value(700)));
        assert_eq!(read.claims.value(6), None);
        let ranges: Vec<_> = read.claims.ranges();
        let ranges: Vec<_> = ranges
            .iter()
            .map(|range| (range.start, range.end))
            .collect();
        assert_eq!(ranges, [(0, 3), (5, 6), (7, 8), (20, 21)]);

        let mut appender = read.appender;
        bytes.extend(appender.append(&[(9, value(9))]));
        let read = identity().read(bytes.as_slice()).unwrap();
        assert_eq!(read.claims.value(9), Some(value(9)));
        assert_eq!(read.appender, appender);
    }

    #[test]
    fn a_journal_that_was_cut_anywhere_claims_what_its_whole_batches_do() {
        let (bytes, ends) = journal();
        for len in 0..bytes.len() {
            let read = identity().read(&bytes[..len]);
            if len < HEADER_BYTES {
                assert_eq!(read, Err(Unusable::Foreign), "{len}");
                continue;
            }
            let whole = ends.iter().filter(|end| **end <= len).count();
            let read = read.unwrap();
            assert_eq!(read.claims, claims(whole), "{len}");
            let end = whole.checked_sub(1).map_or(HEADER_BYTES, |last| ends[last]);
            assert_eq!(read.appender.len, end as u64, "{len}");
        }
    }

    #[test]
    fn nothing_behind_a_flipped_bit_is_believed() {
        let (bytes, ends) = journal();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                let read = identity().read(damaged.as_slice());
                if at < HEADER_BYTES {
                    assert_eq!(read, Err(Unusable::Foreign), "{at}");
                    continue;
                }
                let whole = ends.iter().filter(|end| **end <= at).count();
                assert_eq!(read.unwrap().claims, claims(whole), "{at} {bit}");
            }
        }
    }

    #[test]
    fn journals_of_other_files_are_told_from_those_of_a_changed_source() {
        let (bytes, _) = journal();
        let same = identity();
        let version = Version([6; 32]);
        for changed in [Identity { version, ..same }, Identity { len: 5, ..same }] {
            assert_eq!(changed.read(bytes.as_slice()), Err(Unusable::Source));
        }
        let chunk = ChunkSize::MIN;
        let hash = HashKind::Sha256;
        for other in [
            Identity { stem: 78, ..same },
            Identity { chunk, ..same },
            Identity { hash, ..same },
        ] {
            assert_eq!(other.read(bytes.as_slice()), Err(Unusable::Foreign));
        }
        let unproved = Identity {
            hash: HashKind::None,
            ..same
        };
        assert!(unproved.begin().is_none());
        assert_eq!(unproved.read(bytes.as_slice()), Err(Unusable::Foreign));

        // A later format, written by somebody who computes checksums as we do.
        let mut newer = bytes;
        newer[8] = 2;
        let checksum = blake3::keyed_hash(HEADER_KEY, &newer[..64]);
        newer[64..96].copy_from_slice(checksum.as_bytes());
        assert_eq!(same.read(newer.as_slice()), Err(Unusable::Foreign));
    }

    #[test]
    fn batches_have_their_place_and_their_chunks_are_the_files() {
        let (bytes, ends) = journal();
        let mut swapped = bytes[..HEADER_BYTES].to_vec();
        swapped.extend_from_slice(&bytes[ends[0]..ends[1]]);
        swapped.extend_from_slice(&bytes[HEADER_BYTES..ends[0]]);
        let read = identity().read(swapped.as_slice()).unwrap();
        assert!(read.claims.is_empty());

        let (header, mut appender) = identity().begin().unwrap();
        let mut beyond = header.to_vec();
        beyond.extend(appender.append(&[(0, value(0)), (21, value(21))]));
        assert!(
            identity()
                .read(beyond.as_slice())
                .unwrap()
                .claims
                .is_empty()
        );
    }

    #[test]
    fn a_journal_does_not_grow_for_ever() {
        let huge = Identity {
            len: u64::MAX >> 1,
            ..identity()
        };
        let (header, mut appender) = huge.begin().unwrap();
        let records: Vec<Record> = (0..CLAIMS_MAX as u64 + 5000)
            .map(|n| (n, [1; 32]))
            .collect();
        let mut bytes = header.to_vec();
        bytes.extend(appender.append(&records));
        assert!(appender.append(&records).is_empty());
        let read = huge.read(bytes.as_slice()).unwrap();
        assert_eq!(read.claims.records.len(), CLAIMS_MAX);
        assert_eq!(read.appender, appender);
    }
}
