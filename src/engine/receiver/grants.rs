//! Grants and digests: every number in them is checked before anything is believed.

use crate::engine::{Event, protocol};
use crate::ids::{EntryId, RegionId};
use crate::limits::{
    DIGESTS_MAX, EARLY_DIGESTS_MAX, GRANT_EXTENTS_MAX, OPEN_FILES_MAX, PACK_BYTES_MAX,
    PACK_FILE_BYTES_MAX, PACK_FILES_MAX, RAILS_MAX, WINDOW_BYTES,
};
use crate::units::{ByteRange, ChunkRange};
use crate::wire::Fault;
use crate::wire::message::{ChunkDigest, Grant, GrantPart, HashKind};

use super::entries::{State, changed};
use super::fetching::Work;
use super::file::{File, PartFile, Phase, Step, Window};
use super::pack::Pack;
use super::{Output, Receiver};

/// Longest file: what a signed 64-bit offset of the operating system can reach.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

impl Receiver {
    pub(super) fn grant(&mut self, grant: Grant) -> Result<(), Fault> {
        self.check_region(&grant)?;
        if grant.len > 0 {
            self.regions.insert(grant.region, grant.len);
            self.region_bytes += grant.len;
        }
        match grant.parts.as_slice() {
            [part] if !part.packed => self.grant_window(&grant, part),
            _ => self.grant_pack(&grant),
        }
    }

    fn check_region(&self, grant: &Grant) -> Result<(), Fault> {
        let credit = self.options.region_credit_bytes - self.region_bytes;
        let keys = grant.keys.len();
        let reachable =
            |key: &crate::wire::message::RegionKey| key.address.checked_add(grant.len).is_some();
        if self.regions.contains_key(&grant.region) || self.packs.contains_key(&grant.region) {
            Err(protocol("a region is granted twice"))
        } else if grant.len > credit {
            Err(protocol("a grant exceeds the region credit"))
        } else if keys > RAILS_MAX || (grant.len > 0 && keys == 0) {
            Err(protocol("a grant without keys, or with too many"))
        } else if !grant.keys.iter().all(reachable) {
            Err(protocol("a region wraps around the address space"))
        } else {
            Ok(())
        }
    }

    /// Nothing of the region will be read (any more): its credit comes back with the Release.
    pub(super) fn release(&mut self, region: RegionId) {
        if let Some(len) = self.regions.remove(&region) {
            self.region_bytes -= len;
            self.outbox.release.push(region);
        }
    }

    fn grant_pack(&mut self, grant: &Grant) -> Result<(), Fault> {
        check_pack(grant)?;
        let mut pack = Pack::new(grant.len, &grant.keys);
        for part in &grant.parts {
            self.check_told(part.entry)?;
            let Some(record) = self.entries.get_mut(&part.entry) else {
                continue;
            };
            let State::File(file) = &mut record.state else {
                return Err(protocol("a grant of an entry that is not wanted"));
            };
            if file.is_failing() {
                continue;
            }
            if file.granted.is_some() {
                return Err(protocol("a file is granted in a pack and in a window"));
            }
            pack.add(part, self.options.chunk, self.options.hash);
            let early = std::mem::take(&mut file.early);
            record.state = State::Packed(grant.region);
            self.early_digests -= early.len();
            for (chunk, value) in early {
                if !pack.tell(part.entry, chunk, value) {
                    return Err(protocol("a digest of a chunk that is not in its file"));
                }
            }
            let event = Event::Started {
                entry: part.entry,
                len: part.len,
            };
            self.outputs.push_back(Output::Event(event));
        }
        if pack.files.is_empty() {
            self.release(grant.region);
            return Ok(());
        }
        if !pack.landed {
            self.ready.push_back(Work::Pack(grant.region));
        }
        self.packs.insert(grant.region, pack);
        self.store_pack(grant.region);
        Ok(())
    }

    fn grant_window(&mut self, grant: &Grant, part: &GrantPart) -> Result<(), Fault> {
        self.check_told(part.entry)?;
        check_window(grant, part, self.options.chunk.bytes())?;
        let Some(record) = self.entries.get_mut(&part.entry) else {
            // It was settled here while the grant was under way.
            self.release(grant.region);
            return Ok(());
        };
        let State::File(file) = &mut record.state else {
            return Err(protocol("a grant of an entry that is not wanted"));
        };
        if file.is_failing() {
            self.release(grant.region);
            return Ok(());
        }
        let same = (part.version, part.file_len);
        if *file.granted.get_or_insert(same) != same {
            self.release(grant.region);
            self.fail_file(part.entry, changed());
            return Ok(());
        }
        let first = !std::mem::replace(&mut file.open, true);
        if first {
            // With its mark, and before anything is refused: what settles the file takes both back.
            self.open_files += 1;
            file.remaining
                .clamp(self.options.chunk.count(part.file_len));
        }
        if !matches!(file.phase, Phase::Fetching) || !cover(file, part, first, self.options.chunk) {
            return Err(protocol(
                "a window is not the next one that was wanted of its file",
            ));
        }
        if first {
            self.start_file(part)?;
        }
        self.add_window(grant, part);
        Ok(())
    }

    fn start_file(&mut self, part: &GrantPart) -> Result<(), Fault> {
        if self.open_files > OPEN_FILES_MAX {
            return Err(protocol("too many files are open at once"));
        }
        let entry = part.entry;
        if let Some(file) = self.file(entry) {
            file.part_file = PartFile::Preparing;
            file.pending += 1;
        }
        self.outputs.push_back(Output::Event(Event::Started {
            entry,
            len: part.file_len,
        }));
        let (file_len, version) = (part.file_len, part.version);
        self.start_job(Output::Prepare {
            entry,
            file_len,
            version,
        });
        Ok(())
    }

    fn add_window(&mut self, grant: &Grant, part: &GrantPart) {
        let (entry, hash) = (part.entry, self.options.hash);
        let region = grant.region;
        let (mut window, holes) = Window::new(part, region, &grant.keys, self.options.chunk);
        let Some(file) = self.file(entry) else { return };
        let mut early = std::mem::take(&mut file.early);
        for &(chunk, value) in &early {
            tell_window(&mut window, chunk, value, hash);
        }
        for hole in holes {
            let last = hole.end - 1;
            let value = early.iter().rev().find(|(chunk, _)| *chunk == last);
            let value = value
                .map(|(_, value)| *value)
                .filter(|_| hash == HashKind::Sha256);
            self.outputs.push_back(Output::Hole {
                entry,
                chunks: hole,
                value,
            });
        }
        // Windows ascend: only their successors can use digests that this one does not.
        let before = early.len();
        let end = self.options.chunk.count(part.file_offset + part.len);
        early.retain(|(chunk, _)| chunk.saturating_add(1) >= end && !part.last);
        self.early_digests -= before - early.len();
        let Some(file) = self.file(entry) else { return };
        file.early = early;
        if window.is_done() {
            self.release(grant.region);
            self.complete(entry);
            return;
        }
        file.windows.push_back(window);
        if file.part_file == PartFile::Ready {
            self.allocate(entry);
        }
    }

    pub(super) fn digests(&mut self, digests: &[ChunkDigest]) -> Result<(), Fault> {
        if digests.len() > DIGESTS_MAX {
            return Err(protocol("too many digests in a message"));
        }
        digests.iter().try_for_each(|digest| self.digest(digest))
    }

    fn digest(&mut self, digest: &ChunkDigest) -> Result<(), Fault> {
        let &ChunkDigest {
            entry,
            chunk,
            value,
        } = digest;
        self.check_told(entry)?;
        // Of an entry that failed or was settled here while the digest was under way.
        let Some(record) = self.entries.get_mut(&entry) else {
            return Ok(());
        };
        match &mut record.state {
            State::File(file) if file.is_failing() => Ok(()),
            State::File(_) => self.digest_of_window(entry, chunk, value),
            State::Packed(region) => {
                let region = *region;
                let pack = self.packs.get_mut(&region);
                if !pack.is_some_and(|pack| pack.tell(entry, chunk, value)) {
                    return Err(protocol("a digest of a chunk that is not in its file"));
                }
                self.store_pack(region);
                Ok(())
            }
            State::Placing | State::LinkWaiting | State::Linking | State::Directory => {
                Err(protocol("a digest of an entry that is not wanted"))
            }
        }
    }

    fn digest_of_window(
        &mut self,
        entry: EntryId,
        chunk: u64,
        value: [u8; 32],
    ) -> Result<(), Fault> {
        let (hash, size) = (self.options.hash, self.options.chunk);
        let Some(file) = self.file(entry) else {
            return Ok(());
        };
        if file
            .granted
            .is_some_and(|(_, len)| chunk >= size.count(len).max(1))
        {
            return Err(protocol("a digest of a chunk that is not in its file"));
        }
        let mut found = None;
        for window in &mut file.windows {
            if let Some(index) = window.position(chunk) {
                found = Some((window.region, index, window.tell(index, value, hash)));
            } else if hash == HashKind::Sha256 {
                window.tell_before(chunk, value);
            }
        }
        if let Some((region, index, step)) = found {
            return self.take_step(entry, region, index, step);
        }
        // SHA-256 needs the value of the chunk before the next window too.
        let next = file.remaining.peek().map(|range| range.start);
        if hash == HashKind::None {
            return Err(protocol("a digest in a transfer without a hash"));
        }
        if next.is_some_and(|next| chunk.saturating_add(1) >= next) {
            file.early.push((chunk, value));
            self.early_digests += 1;
            if self.early_digests > EARLY_DIGESTS_MAX {
                return Err(protocol("too many digests ahead of their grants"));
            }
        }
        self.enqueue(entry);
        Ok(())
    }
}

fn tell_window(window: &mut Window, chunk: u64, value: [u8; 32], hash: HashKind) {
    match window.position(chunk) {
        // Two different early values of a chunk: the second is no better, the chunk won't match.
        Some(index) => drop::<Step>(window.tell(index, value, hash)),
        None => drop::<bool>(window.tell_before(chunk, value)),
    }
}

/// Takes the part off what is still to come; `false` if it is not what comes next.
fn cover(file: &mut File, part: &GrantPart, first: bool, size: crate::units::ChunkSize) -> bool {
    match file.remaining.peek() {
        None => first && part.last && part.len == 0 && part.file_offset == 0,
        Some(ChunkRange { start, end }) => {
            let count = size.count(part.len);
            let fits = count > 0 && count <= end - start;
            // No overflow: after the clamp, chunks lie within the file.
            if !fits || part.file_offset != start * size.bytes() {
                return false;
            }
            file.remaining.advance(count);
            part.last == file.remaining.is_done()
        }
    }
}

fn check_pack(grant: &Grant) -> Result<(), Fault> {
    if grant.len > PACK_BYTES_MAX || grant.parts.is_empty() || grant.parts.len() > PACK_FILES_MAX {
        return Err(protocol("a pack is empty or too large"));
    }
    let mut end = 0;
    for part in &grant.parts {
        let whole = part.packed && part.last && part.file_offset == 0 && part.len == part.file_len;
        if !whole || part.len > PACK_FILE_BYTES_MAX || part.extents.len() > GRANT_EXTENTS_MAX {
            return Err(protocol(
                "a pack holds something else than whole small files",
            ));
        }
        let fits = part.region_offset <= grant.len && part.len <= grant.len - part.region_offset;
        if part.region_offset < end || !fits {
            return Err(protocol("files of a pack overlap or reach out of it"));
        }
        end = part.region_offset + part.len;
    }
    if grant
        .parts
        .windows(2)
        .any(|pair| pair[0].entry >= pair[1].entry)
    {
        return Err(protocol("files of a pack are out of order"));
    }
    Ok(())
}

fn check_window(grant: &Grant, part: &GrantPart, chunk_bytes: u64) -> Result<(), Fault> {
    let within_file = part.file_len <= FILE_BYTES_MAX
        && part.file_offset <= part.file_len
        && part.len <= part.file_len - part.file_offset;
    if !within_file {
        return Err(protocol("a window reaches beyond its file"));
    }
    let end = part.file_offset + part.len;
    let aligned = part.file_offset.is_multiple_of(chunk_bytes)
        && (end == part.file_len || end.is_multiple_of(chunk_bytes));
    if !aligned {
        return Err(protocol("a window cuts a chunk"));
    }
    if part.extents.is_empty() {
        return Ok(());
    }
    let within_region =
        part.region_offset <= grant.len && part.len <= grant.len - part.region_offset;
    if !within_region || part.len > WINDOW_BYTES {
        return Err(protocol(
            "a window reaches out of its region or is too large",
        ));
    }
    check_extents(
        &part.extents,
        ByteRange {
            start: part.file_offset,
            end,
        },
    )
}

fn check_extents(extents: &[ByteRange], within: ByteRange) -> Result<(), Fault> {
    let mut at = within.start;
    for extent in extents {
        if extent.start < at || extent.is_empty() || extent.end > within.end {
            return Err(protocol(
                "data extents overlap, are empty or leave their window",
            ));
        }
        at = extent.end;
    }
    if extents.len() > GRANT_EXTENTS_MAX {
        return Err(protocol("too many data extents in a grant"));
    }
    Ok(())
}
