//! What a server may say of an open file: every number of a grant is checked before it is used.

use std::sync::{Arc, OnceLock};

use super::{CHUNK, out_of_turn};
use crate::error::{Error, ErrorKind};
use crate::ids::EntryId;
use crate::limits::{
    GRANT_EXTENTS_MAX, PACK_BYTES_MAX, PACK_FILE_BYTES_MAX, RAILS_MAX, WINDOW_BYTES,
};
use crate::manifest::Version;
use crate::units::{ByteRange, ChunkRange};
use crate::wire::message::{ChunkDigest, Grant, GrantPart};

/// Longest file: what a signed 64-bit offset of the operating system can reach.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// A file as it was told, and which of its chunks are wanted and not granted yet.
#[derive(Debug, Default)]
pub(super) struct Expected {
    entry: EntryId,
    len: u64,
    /// As the first grant told it, of this opening or of one that it goes on from.
    version: Arc<OnceLock<Version>>,
    wanted: ChunkRange,
    /// The first chunk of `wanted` that no grant has told.
    next: u64,
}

impl Expected {
    /// A file that the manifest told.
    pub(super) fn new(entry: EntryId, len: u64) -> Result<Self, Error> {
        if len > FILE_BYTES_MAX {
            return Err(out_of_turn());
        }
        Ok(Self {
            entry,
            len,
            ..Self::default()
        })
    }

    /// Its version, once it is known.
    pub(super) fn version(&self) -> Arc<OnceLock<Version>> {
        Arc::clone(&self.version)
    }

    /// It has to be the file of this length and version that was open before.
    pub(super) fn go_on(&mut self, len: u64, version: Arc<OnceLock<Version>>) -> Result<(), Error> {
        self.version = version;
        if self.len == len {
            return Ok(());
        }
        let message = "the file is not what it was when it was opened";
        Err(Error::new(ErrorKind::SourceChanged, message))
    }

    /// Its handle.
    pub(super) fn entry(&self) -> EntryId {
        self.entry
    }

    /// Its length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// These chunks of it, which it has, are asked for now.
    pub(super) fn want(&mut self, wanted: ChunkRange) {
        self.next = wanted.start;
        self.wanted = wanted;
    }

    /// Whether all that was asked for is granted.
    pub(super) fn is_granted(&self) -> bool {
        self.next >= self.wanted.end
    }

    /// Takes a grant of the next wanted chunks, or of the whole file if it is small; its one part.
    ///
    /// # Errors
    /// [`ErrorKind::SourceChanged`] if it is of another version; else the protocol is broken.
    pub(super) fn grant(&mut self, grant: &Grant) -> Result<GrantPart, Error> {
        let [part] = grant.parts.as_slice() else {
            return Err(out_of_turn());
        };
        self.check_entry(part.entry)?;
        if self.is_granted() || !is_readable(grant) {
            return Err(out_of_turn());
        }
        let known = *self.version.get_or_init(|| part.version);
        if part.version != known || part.file_len != self.len {
            let message = "the file is not what it was when it was opened";
            return Err(Error::new(ErrorKind::SourceChanged, message));
        }
        let end = if part.packed {
            self.check_whole(grant, part)?
        } else {
            self.check_window(grant, part)?
        };
        self.next = end;
        Ok(part.clone())
    }

    /// Whether the digest is of a chunk that is wanted. Those of an earlier read that failed may
    /// still come.
    pub(super) fn digest(&self, digest: &ChunkDigest) -> Result<bool, Error> {
        self.check_entry(digest.entry)?;
        if digest.chunk >= CHUNK.count(self.len) {
            return Err(out_of_turn());
        }
        let wanted = self.wanted.start..self.wanted.end;
        // A small file comes whole, whatever is wanted of it.
        let whole = self.len <= PACK_FILE_BYTES_MAX;
        Ok(whole || wanted.contains(&digest.chunk))
    }

    /// Whether `entry` is the file.
    pub(super) fn check_entry(&self, entry: EntryId) -> Result<(), Error> {
        if entry == self.entry {
            Ok(())
        } else {
            Err(out_of_turn())
        }
    }

    fn check_whole(&self, grant: &Grant, part: &GrantPart) -> Result<u64, Error> {
        let whole = part.last && part.file_offset == 0 && part.len == self.len;
        let small = part.len <= PACK_FILE_BYTES_MAX && grant.len <= PACK_BYTES_MAX;
        let first = self.next == self.wanted.start;
        let told = part.extents.len() <= GRANT_EXTENTS_MAX;
        if whole && small && first && told && is_within_region(grant, part) {
            Ok(self.wanted.end)
        } else {
            Err(out_of_turn())
        }
    }

    fn check_window(&self, grant: &Grant, part: &GrantPart) -> Result<u64, Error> {
        let count = CHUNK.count(part.len);
        // No overflow: wanted chunks lie within the file.
        let start = self.next * CHUNK.bytes();
        let next = count > 0 && count <= self.wanted.end - self.next && part.file_offset == start;
        if !next || part.len > self.len - start {
            return Err(out_of_turn());
        }
        let (end, upto) = (start + part.len, self.next + count);
        let aligned = end == self.len || end.is_multiple_of(CHUNK.bytes());
        if !aligned || part.last != (upto == self.wanted.end) {
            return Err(out_of_turn());
        }
        let readable = part.len <= WINDOW_BYTES && is_within_region(grant, part);
        if !part.extents.is_empty() && !readable {
            return Err(out_of_turn());
        }
        if are_extents(&part.extents, ByteRange { start, end }) {
            Ok(upto)
        } else {
            Err(out_of_turn())
        }
    }
}

/// Whether there is a way to read the region, if it has any bytes, all of which have an address.
fn is_readable(grant: &Grant) -> bool {
    let keys = &grant.keys;
    keys.len() <= RAILS_MAX
        && (grant.len == 0 || !keys.is_empty())
        && keys
            .iter()
            .all(|key| key.address.checked_add(grant.len).is_some())
}

fn is_within_region(grant: &Grant, part: &GrantPart) -> bool {
    part.region_offset <= grant.len && part.len <= grant.len - part.region_offset
}

/// Whether the extents ascend, are disjoint and lie in the window.
fn are_extents(extents: &[ByteRange], window: ByteRange) -> bool {
    let mut at = window.start;
    extents.len() <= GRANT_EXTENTS_MAX
        && extents.iter().all(|extent| {
            let fits = extent.start >= at && !extent.is_empty() && extent.end <= window.end;
            at = extent.end;
            fits
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{RegionId, RemoteKey};
    use crate::wire::message::RegionKey;

    const FILE: EntryId = EntryId(7);
    const UNIT: u64 = CHUNK.bytes();
    const LEN: u64 = 20 * UNIT + 5;

    /// A file of which the chunks 4 to 10 are wanted.
    fn expected() -> Expected {
        let mut file = Expected::new(FILE, LEN).unwrap();
        file.want(ChunkRange { start: 4, end: 10 });
        file
    }

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    /// A grant of so many chunks from there on.
    fn window(start: u64, end: u64, last: bool) -> Grant {
        let part = GrantPart {
            entry: FILE,
            version: Version([1; 32]),
            file_len: LEN,
            file_offset: start * UNIT,
            region_offset: 0,
            len: (end * UNIT).min(LEN) - start * UNIT,
            extents: vec![range(start * UNIT, (end * UNIT).min(LEN))],
            last,
            packed: false,
        };
        Grant {
            region: RegionId(1),
            len: part.len,
            lease_ms: 1,
            keys: vec![RegionKey {
                rail: 0,
                address: 1 << 40,
                key: RemoteKey(3),
            }],
            parts: vec![part],
        }
    }

    fn pack(len: u64) -> Grant {
        let mut grant = window(0, 1, true);
        grant.len = len;
        let part = &mut grant.parts[0];
        (part.len, part.file_len, part.packed) = (len, len, true);
        part.extents.clear();
        grant
    }

    fn small(len: u64) -> Expected {
        let mut file = Expected::new(FILE, len).unwrap();
        file.want(ChunkRange { start: 0, end: 1 });
        file
    }

    #[test]
    fn windows_in_turn_are_taken_until_all_is_granted() {
        let mut file = expected();
        assert!(!file.is_granted());
        file.grant(&window(4, 7, false)).unwrap();
        let mut hole = window(7, 8, false);
        (hole.len, hole.keys) = (0, Vec::new());
        hole.parts[0].extents.clear();
        file.grant(&hole).unwrap();
        file.grant(&window(8, 10, true)).unwrap();
        assert!(file.is_granted());
        // Nothing is wanted any more.
        assert!(file.grant(&window(8, 10, true)).is_err());
        file.want(ChunkRange { start: 20, end: 21 });
        file.grant(&window(20, 21, true)).unwrap();
        assert!(file.is_granted());
    }

    #[test]
    fn a_grant_that_does_not_fit_is_refused() {
        type Change = fn(&mut Grant);
        let bad: &[(&str, Change)] = &[
            ("no part", |grant| grant.parts.clear()),
            ("two parts", |grant| {
                grant.parts.push(grant.parts[0].clone())
            }),
            ("entry", |grant| grant.parts[0].entry = EntryId(8)),
            ("no key", |grant| grant.keys.clear()),
            ("keys", |grant| {
                grant.keys = vec![grant.keys[0]; RAILS_MAX + 1]
            }),
            ("address", |grant| grant.keys[0].address = u64::MAX - 5),
            ("before", |grant| grant.parts[0].file_offset = 0),
            ("offset", |grant| grant.parts[0].file_offset += 1),
            ("far", |grant| grant.parts[0].file_offset = u64::MAX),
            ("after", |grant| grant.parts[0].file_offset += UNIT),
            ("empty", |grant| grant.parts[0].len = 0),
            ("cut", |grant| grant.parts[0].len -= 1),
            ("long", |grant| grant.parts[0].len = u64::MAX),
            ("longer", |grant| {
                grant.parts[0].len += UNIT;
                grant.len += UNIT;
            }),
            ("not last", |grant| grant.parts[0].last = false),
            ("short", |grant| grant.len -= 1),
            ("nothing", |grant| grant.len = 0),
            ("region", |grant| grant.parts[0].region_offset = 1),
            ("region far", |grant| {
                grant.parts[0].region_offset = u64::MAX
            }),
            ("extent before", |grant| grant.parts[0].extents[0].start = 0),
            ("extent after", |grant| {
                grant.parts[0].extents[0].end = u64::MAX;
            }),
            ("extent empty", |grant| {
                grant.parts[0].extents[0].end = grant.parts[0].extents[0].start;
            }),
            ("extents overlap", |grant| {
                let extent = grant.parts[0].extents[0];
                grant.parts[0].extents = vec![extent, range(extent.end - 1, extent.end)];
            }),
            ("extents", |grant| {
                let at = grant.parts[0].file_offset;
                let count = GRANT_EXTENTS_MAX as u64 + 1;
                grant.parts[0].extents = (at..at + count).map(|n| range(n, n + 1)).collect();
            }),
            ("packed", |grant| grant.parts[0].packed = true),
        ];
        expected().grant(&window(4, 10, true)).unwrap();
        for (name, change) in bad {
            let mut grant = window(4, 10, true);
            change(&mut grant);
            let error = expected().grant(&grant).expect_err(name);
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{name}");
        }
    }

    #[test]
    fn another_version_or_length_is_a_changed_source() {
        let mut grant = window(4, 10, true);
        grant.parts[0].file_len += 1;
        let error = expected().grant(&grant).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SourceChanged);
        let mut file = expected();
        file.grant(&window(4, 7, false)).unwrap();
        let mut grant = window(7, 10, true);
        grant.parts[0].version = Version([2; 32]);
        let error = file.grant(&grant).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SourceChanged);
    }

    #[test]
    fn a_small_file_comes_whole_or_not_at_all() {
        small(100).grant(&pack(100)).unwrap();
        let most = PACK_FILE_BYTES_MAX;
        small(most).grant(&pack(most)).unwrap();
        assert!(small(most + 1).grant(&pack(most + 1)).is_err());
        let bad: &[fn(&mut Grant)] = &[
            |grant| grant.parts[0].len -= 1,
            |grant| grant.parts[0].file_offset = UNIT,
            |grant| grant.parts[0].last = false,
            |grant| grant.parts[0].region_offset = 1,
            |grant| grant.parts[0].region_offset = u64::MAX,
            |grant| grant.len = 99,
            |grant| grant.len = PACK_BYTES_MAX + 1,
        ];
        for change in bad {
            let mut grant = pack(100);
            change(&mut grant);
            assert!(small(100).grant(&grant).is_err(), "{grant:?}");
        }
        let mut file = small(100);
        file.grant(&pack(100)).unwrap();
        assert!(file.is_granted());
        assert!(file.grant(&pack(100)).is_err());
    }

    #[test]
    fn only_digests_of_wanted_chunks_are_kept() {
        let digest = |entry, chunk| ChunkDigest {
            entry,
            chunk,
            value: [0; 32],
        };
        let file = expected();
        assert!(file.digest(&digest(FILE, 4)).unwrap());
        assert!(file.digest(&digest(FILE, 9)).unwrap());
        assert!(!file.digest(&digest(FILE, 10)).unwrap());
        assert!(!file.digest(&digest(FILE, 20)).unwrap());
        assert!(file.digest(&digest(FILE, 21)).is_err());
        assert!(file.digest(&digest(FILE, u64::MAX)).is_err());
        assert!(file.digest(&digest(EntryId(8), 4)).is_err());
        assert!(small(2 * UNIT).digest(&digest(FILE, 1)).unwrap());
    }

    #[test]
    fn nothing_is_expected_before_a_manifest_and_no_file_is_endless() {
        assert!(Expected::default().grant(&window(0, 1, true)).is_err());
        assert!(Expected::new(FILE, FILE_BYTES_MAX + 1).is_err());
    }
}
