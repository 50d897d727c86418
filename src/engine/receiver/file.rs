//! A file that travels in windows: what has been granted of it and how far each chunk is.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::engine::wanted::Remaining;
use crate::ids::RegionId;
use crate::limits::REPAIRS_MAX;
use crate::manifest::Version;
use crate::units::{ByteRange, ChunkIndex, ChunkRange, ChunkSize};
use crate::wire::Fault;
use crate::wire::message::{GrantPart, HashKind, RegionKey};

use super::comparing::Comparing;
use super::io::Proof;
use super::lanes::Avoid;

/// How far a file is.
///
/// ```text
/// Fetching -> Settling -> Closing -> Publishing -> (settled)
///     \___________\__________\____________\-> Failing -> (settled)
/// ```
#[derive(Debug)]
pub(super) enum Phase {
    /// Grants and chunks come in.
    Fetching,
    /// All is there; Close waits for its turn.
    Settling,
    /// Close was said.
    Closing,
    /// Storage gives it its name.
    Publishing,
    /// It failed; what is in flight is waited for.
    Failing(Fault),
}

/// Whether chunks can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartFile {
    None,
    Preparing,
    Ready,
}

/// A wanted file that is not in a pack.
#[derive(Debug)]
pub(super) struct File {
    pub(super) phase: Phase,
    pub(super) remaining: Remaining,
    /// Version and length, from the first grant.
    pub(super) granted: Option<(Version, u64)>,
    pub(super) part_file: PartFile,
    /// Chunks that an earlier run may have written, ascending.
    pub(super) held: Vec<ChunkRange>,
    /// Chunks before this one are compared with an older copy.
    pub(super) older: u64,
    /// It is written where it stands.
    pub(super) in_place: bool,
    /// Granted and not released, ascending.
    pub(super) windows: VecDeque<Window>,
    /// Digests that came before the grant of their chunk.
    pub(super) early: Vec<(u64, [u8; 32])>,
    /// It stands in the queue of work.
    pub(super) queued: bool,
    /// It was granted and its Closed is to come: it is open at the sender.
    pub(super) open: bool,
    /// Fetches in flight and jobs out.
    pub(super) pending: u32,
    /// Bytes that arrived and were proved.
    pub(super) bytes: u64,
    /// A READ of it ended this way's connection: the others go elsewhere if they can.
    pub(super) wary: Option<Avoid>,
}

impl File {
    pub(super) fn new(remaining: Remaining) -> Self {
        Self {
            phase: Phase::Fetching,
            remaining,
            granted: None,
            part_file: PartFile::None,
            held: Vec::new(),
            older: 0,
            in_place: false,
            windows: VecDeque::new(),
            early: Vec::new(),
            queued: false,
            open: false,
            pending: 0,
            bytes: 0,
            wary: None,
        }
    }

    pub(super) fn is_failing(&self) -> bool {
        matches!(self.phase, Phase::Failing(_))
    }

    pub(super) fn window(&mut self, region: RegionId) -> Option<&mut Window> {
        self.windows
            .iter_mut()
            .find(|window| window.region == region)
    }

    /// Whether all that was wanted has been granted, stored and proved.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.phase, Phase::Fetching)
            && self.granted.is_some()
            && self.remaining.is_done()
            && self.windows.is_empty()
            && self.part_file == PartFile::Ready
    }

    /// The next chunk that can be fetched: its window, its place there, a way to avoid.
    pub(super) fn next_chunk(&mut self, hash: HashKind) -> Option<(usize, u32, Option<Avoid>)> {
        if !matches!(self.phase, Phase::Fetching) {
            return None;
        }
        self.windows
            .iter_mut()
            .enumerate()
            .find_map(|(at, window)| {
                let (index, avoid) = window.next_chunk(hash)?;
                Some((at, index, avoid))
            })
    }
}

/// A region that is a window of one file.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) region: RegionId,
    pub(super) keys: Arc<[RegionKey]>,
    pub(super) data: Arc<[ByteRange]>,
    /// Storage was asked to reserve space for it.
    pub(super) asked: bool,
    /// Space for it is reserved: chunks may be fetched.
    pub(super) allocated: bool,
    /// It is looked which of its chunks are there already.
    proving: bool,
    pub(super) comparing: Comparing,
    /// The SHA-256 state before the first chunk.
    before: Option<[u8; 32]>,
    first_chunk: u64,
    /// Where byte 0 of the file would be in the region.
    region_start: u64,
    file_offset: u64,
    pub(super) chunks: Vec<Chunk>,
    /// Chunks before this one have been fetched at least once.
    cursor: u32,
    /// Chunks to fetch again, and the way that should not be used for it.
    pub(super) again: VecDeque<(u32, Option<Avoid>)>,
    /// Chunks that came wrong, and how often.
    repairs: Vec<(u32, u32)>,
    left: u32,
}

/// One chunk of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) state: ChunkState,
    /// The way that it went last.
    way: Option<Avoid>,
    /// The sender's digest is known: it is `value`.
    pub(super) told: bool,
    /// The sender's digest, or, while it is not known, our own of what landed.
    pub(super) value: [u8; 32],
}

/// Whether a chunk that an earlier run stored counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Yes,
    /// It was not asked about.
    No,
    /// The sender has told another value.
    Changed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkState {
    /// To be fetched.
    Waiting,
    InFlight,
    /// An earlier run may have stored it; that is being looked at.
    Held,
    /// An earlier run stored it, and it still is what that run had proved.
    Kept,
    /// An older copy may have it; it is compared once the sender's digest is known.
    Older,
    /// That is being done.
    Comparing,
    /// Stored; the sender's digest is awaited.
    Landed,
    /// It came wrong; the sender was asked to look again.
    Rechecking,
    /// Stored and proved, or a hole.
    Done,
}

/// What a landed chunk or a digest led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing yet.
    Wait,
    /// The chunk is proved.
    Verified,
    /// The chunk came wrong and is read again once the sender has looked at it.
    Recheck,
    /// The chunk came wrong too often.
    GiveUp,
    /// The chunk can be fetched now.
    Ready,
    /// The chunk can be compared now.
    Compare,
    /// The sender changed a digest that it had told.
    Contradiction,
    /// What an earlier run stored is not what the source holds now.
    Changed,
}

impl Window {
    /// The window that a checked grant tells, and its chunks without data as ranges.
    pub(super) fn new(
        part: &GrantPart,
        region: RegionId,
        keys: &[RegionKey],
        chunk: ChunkSize,
    ) -> (Self, Vec<ChunkRange>) {
        let first_chunk = chunk.index_of(part.file_offset).0;
        let count = if part.extents.is_empty() {
            0
        } else {
            chunk.count(part.len)
        };
        let waiting = Chunk {
            state: ChunkState::Waiting,
            way: None,
            told: false,
            value: [0; 32],
        };
        let mut window = Self {
            region,
            keys: keys.into(),
            data: part.extents.as_slice().into(),
            asked: false,
            allocated: false,
            proving: false,
            comparing: Comparing::default(),
            before: None,
            first_chunk,
            region_start: part.region_offset,
            file_offset: part.file_offset,
            chunks: (0..count).map(|_| waiting).collect(),
            cursor: 0,
            again: VecDeque::new(),
            repairs: Vec::new(),
            left: u32::try_from(count).unwrap_or(u32::MAX),
        };
        let holes = if count == 0 && part.len > 0 {
            vec![ChunkRange {
                start: first_chunk,
                end: first_chunk + chunk.count(part.len),
            }]
        } else {
            window.mark_holes(part, chunk)
        };
        (window, holes)
    }

    fn mark_holes(&mut self, part: &GrantPart, size: ChunkSize) -> Vec<ChunkRange> {
        let mut holes: Vec<ChunkRange> = Vec::new();
        let mut extents = part.extents.iter().peekable();
        for (index, chunk) in (self.first_chunk..).zip(self.chunks.iter_mut()) {
            let bytes = size.range(ChunkIndex(index), part.file_len);
            while extents
                .next_if(|extent| extent.end <= bytes.start)
                .is_some()
            {}
            if extents
                .peek()
                .is_some_and(|extent| extent.start < bytes.end)
            {
                continue;
            }
            chunk.state = ChunkState::Done;
            self.left -= 1;
            match holes.last_mut() {
                Some(last) if last.end == index => last.end += 1,
                _ => holes.push(ChunkRange {
                    start: index,
                    end: index + 1,
                }),
            }
        }
        holes
    }

    /// Whether all its chunks are stored and proved.
    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Where chunk `index` of the window is.
    pub(super) fn chunk_index(&self, index: u32) -> ChunkIndex {
        ChunkIndex(self.first_chunk + u64::from(index))
    }

    pub(super) fn region_offset(&self, file_offset: u64) -> u64 {
        self.region_start + (file_offset - self.file_offset)
    }

    /// Which of its chunks this chunk of the file is.
    pub(super) fn position(&self, chunk: u64) -> Option<u32> {
        let index = chunk.checked_sub(self.first_chunk)?;
        (index < self.chunks.len() as u64).then(|| u32::try_from(index).ok())?
    }

    fn next_chunk(&mut self, hash: HashKind) -> Option<(u32, Option<Avoid>)> {
        if !self.allocated || self.proving {
            return None;
        }
        if let Some(again) = self.again.pop_front() {
            return Some(again);
        }
        while let Some(chunk) = self.chunks.get(self.cursor as usize) {
            if chunk.state == ChunkState::Waiting {
                let known = hash != HashKind::Sha256 || self.is_provable(self.cursor);
                return known.then(|| {
                    self.cursor += 1;
                    (self.cursor - 1, None)
                });
            }
            self.cursor += 1;
        }
        None
    }

    /// Sets those of its chunks aside that an earlier run may have stored. Which, and how each is
    /// proved.
    pub(super) fn hold(&mut self, held: &[ChunkRange], hash: HashKind) -> Vec<(ChunkIndex, Proof)> {
        let is_held = |chunk: u64| {
            let at = held.partition_point(|range| range.end <= chunk);
            held.get(at).is_some_and(|range| range.start <= chunk)
        };
        let count = u32::try_from(self.chunks.len()).unwrap_or(u32::MAX);
        let candidates = (0..count).filter(|&index| {
            self.chunks[index as usize].state == ChunkState::Waiting
                && is_held(self.chunk_index(index).0)
                && (hash != HashKind::Sha256 || self.is_provable(index))
        });
        let candidates: Vec<u32> = candidates.collect();
        self.proving = !candidates.is_empty();
        candidates
            .into_iter()
            .map(|index| {
                self.chunks[index as usize].state = ChunkState::Held;
                (self.chunk_index(index), self.proof(index, hash))
            })
            .collect()
    }

    /// A chunk that was set aside is there, with this value. Whether it counts.
    pub(super) fn keep(&mut self, index: u32, value: [u8; 32]) -> Keep {
        let chunk = &mut self.chunks[index as usize];
        if chunk.state != ChunkState::Held {
            return Keep::No;
        }
        if chunk.told && chunk.value != value {
            return Keep::Changed;
        }
        (chunk.state, chunk.value) = (ChunkState::Kept, value);
        self.left -= 1;
        Keep::Yes
    }

    /// It has been looked at all that was set aside: what was not kept is fetched.
    pub(super) fn proved(&mut self) {
        self.proving = false;
        for chunk in &mut self.chunks {
            if chunk.state == ChunkState::Held {
                chunk.state = ChunkState::Waiting;
            }
        }
    }

    /// SHA-256: whether the states around the chunk are known.
    pub(super) fn is_provable(&self, index: u32) -> bool {
        let before_known = match index.checked_sub(1) {
            Some(previous) => self.chunks[previous as usize].told,
            None => self.first_chunk == 0 || self.before.is_some(),
        };
        before_known && self.chunks[index as usize].told
    }

    /// What a lane needs to prove the chunk.
    pub(super) fn proof(&self, index: u32, hash: HashKind) -> Proof {
        match hash {
            HashKind::Blake3 => Proof::Blake3,
            HashKind::Sha256 => Proof::Sha256 {
                before: match index.checked_sub(1) {
                    Some(previous) => Some(self.chunks[previous as usize].value),
                    None => self.before,
                },
            },
            HashKind::None => Proof::None,
        }
    }

    /// The sender's digest of the chunk, if it is known.
    pub(super) fn digest(&self, index: u32) -> Option<[u8; 32]> {
        let chunk = &self.chunks[index as usize];
        chunk.told.then_some(chunk.value)
    }

    /// The chunk is in flight on this way.
    pub(super) fn post(&mut self, index: u32, way: Avoid) {
        let chunk = &mut self.chunks[index as usize];
        (chunk.state, chunk.way) = (ChunkState::InFlight, Some(way));
    }

    /// It could not be posted or its lane was lost: it is fetched first thing, free of charge.
    pub(super) fn requeue(&mut self, index: u32, avoid: Option<Avoid>) {
        self.chunks[index as usize].state = ChunkState::Waiting;
        self.again.push_front((index, avoid));
    }

    /// It landed with this digest.
    pub(super) fn land(&mut self, index: u32, digest: Option<[u8; 32]>) -> Step {
        let chunk = &mut self.chunks[index as usize];
        match digest {
            Some(digest) if !chunk.told => {
                (chunk.state, chunk.value) = (ChunkState::Landed, digest);
                Step::Wait
            }
            Some(digest) if digest != chunk.value => self.refuse(index),
            _ => self.verify(index),
        }
    }

    /// It came wrong, or the sender refused it.
    pub(super) fn refuse(&mut self, index: u32) -> Step {
        let count = match self.repairs.iter_mut().find(|(chunk, _)| *chunk == index) {
            Some((_, count)) => {
                *count += 1;
                *count
            }
            None => {
                self.repairs.push((index, 1));
                1
            }
        };
        if count > REPAIRS_MAX {
            return Step::GiveUp;
        }
        self.chunks[index as usize].state = ChunkState::Rechecking;
        Step::Recheck
    }

    pub(super) fn verify(&mut self, index: u32) -> Step {
        self.chunks[index as usize].state = ChunkState::Done;
        self.left -= 1;
        Step::Verified
    }

    /// The state before the window's first chunk is this, if that is where `chunk` lies.
    pub(super) fn tell_before(&mut self, chunk: u64, value: [u8; 32]) -> bool {
        let adjoins = chunk.checked_add(1) == Some(self.first_chunk);
        if adjoins {
            self.before = Some(value);
        }
        adjoins
    }

    /// The sender's digest of the chunk is this.
    pub(super) fn tell(&mut self, index: u32, value: [u8; 32], hash: HashKind) -> Step {
        let chunk = &mut self.chunks[index as usize];
        if chunk.told && chunk.value != value {
            return Step::Contradiction;
        }
        let own = std::mem::replace(&mut chunk.value, value);
        let again = std::mem::replace(&mut chunk.told, hash != HashKind::None);
        match chunk.state {
            ChunkState::Landed if own == value => self.verify(index),
            ChunkState::Landed => self.refuse(index),
            ChunkState::Rechecking => {
                chunk.state = ChunkState::Waiting;
                self.again.push_back((index, chunk.way));
                Step::Ready
            }
            _ if hash == HashKind::None => Step::Contradiction,
            ChunkState::Waiting => Step::Ready,
            ChunkState::Older if !again => self.comparing.tell(index),
            ChunkState::Kept if own != value => Step::Changed,
            ChunkState::InFlight
            | ChunkState::Held
            | ChunkState::Kept
            | ChunkState::Older
            | ChunkState::Comparing
            | ChunkState::Done => Step::Wait,
        }
    }
}
