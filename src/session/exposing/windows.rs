//! Making a window of a file readable: in place, by a copy in a slot, or by the lanes alone.
//!
//! Runs on the workers. The bytes of a window in place are not touched by a CPU here: a file that was
//! cut shorter would end the process, and the digest has to come from what reads give anyway.

use std::sync::Arc;

use super::super::hashing::{PIECE_BYTES, became_shorter, chunks_with_data, read_fault};
use super::super::sending::Done;
use super::rails::{self, Hold, RailMemory, Way};
use super::{
    Exposing, Made, Proofs, Room, SessionMemory, Window, expose_to, served, tcp_key, way_of,
};
use crate::engine::sender::ExposedWindow;
use crate::integrity::{ChunkHasher, HashPlan};
use crate::lane::Served;
use crate::limits::GRANT_EXTENTS_MAX;
use crate::memory::Slot;
use crate::storage::source::OpenSource;
use crate::units::{ByteRange, ChunkIndex, ChunkSize};
use crate::wire::Fault;
use crate::wire::message::{HashKind, RegionKey};

/// What a region is made of.
struct Making {
    content: Served,
    hold: Option<Hold>,
    keys: Vec<RegionKey>,
    made: Made,
}

/// What making it needs to know.
struct Task {
    window: Window,
    hash: HashKind,
    chunk: ChunkSize,
    session: Arc<SessionMemory>,
    rails: Option<Arc<dyn RailMemory>>,
}

impl Exposing {
    pub(super) fn start_window(&mut self, window: Window, room: Room) {
        let (region, entry) = (window.region, window.entry);
        self.hold(region, Some(entry));
        let (source, regions) = (Arc::clone(&self.source), Arc::clone(&self.regions));
        let jobs = self.jobs.clone();
        let task = Task {
            window,
            hash: self.hash,
            chunk: self.chunk,
            session: Arc::clone(&self.session),
            rails: self.session.rails().cloned(),
        };
        self.jobs.run(move || {
            let range = task.window.range;
            let extents = source.extents(&task.window.file, range, GRANT_EXTENTS_MAX);
            let making = match task.make(room, &extents) {
                Ok(making) => making,
                Err(fault) => return Done::Exposed(region, Err(fault)),
            };
            let (key, tcp) = tcp_key();
            let mut keys = vec![tcp];
            keys.extend(making.keys);
            let served = served(region, key, making.content);
            expose_to(&regions, served, making.hold, &jobs);
            let hole_end = match extents.is_empty() {
                true => source.next_data(&task.window.file, range.end),
                false => range.end,
            };
            let exposed = ExposedWindow {
                keys,
                extents,
                hole_end,
            };
            Done::Exposed(region, Ok((exposed, making.made)))
        });
    }
}

impl Task {
    fn make(&self, room: Room, extents: &[ByteRange]) -> Result<Making, Fault> {
        match (room, &self.rails) {
            // A hole is told and not read.
            (Room::Registered(reservation), Some(rails)) if !extents.is_empty() => {
                let Window { file, range, .. } = &self.window;
                let way = match self.window.way {
                    // It was opened before there were rails.
                    Way::Lanes => way_of(&**rails, file, &self.session.activity)?,
                    way => way,
                };
                if !matches!(way, Way::OnDemand | Way::Pinned) {
                    return Ok(self.by_lanes(extents));
                }
                match rails.register_window(file.file.as_fd(), *range, way) {
                    Ok((keys, hold)) => Ok(Making {
                        content: self.file_content(None),
                        // In this order: the bytes are free for others when nothing is registered.
                        hold: Some(Box::new((hold, reservation))),
                        keys,
                        made: Made {
                            way: Some(way),
                            proofs: self.proofs_in_place(extents),
                        },
                    }),
                    Err(error) if rails.policy().is_strict() => Err(rails::refusal(&error)),
                    Err(error) => {
                        self.session.refusals.note(&error);
                        Ok(self.by_lanes(extents))
                    }
                }
            }
            (Room::Slot(slot), Some(rails)) if !extents.is_empty() => {
                self.copied(slot, &**rails, extents)
            }
            _ => Ok(self.by_lanes(extents)),
        }
    }

    /// The lanes read the file, and hash what they send. A receiver that compares first has the values
    /// from a job: what does not match is hashed by the lane once more.
    fn by_lanes(&self, extents: &[ByteRange]) -> Making {
        let hash = (self.hash == HashKind::Blake3).then_some(self.chunk);
        Making {
            content: self.file_content(hash),
            hold: None,
            keys: Vec::new(),
            made: Made {
                way: None,
                proofs: match self.window.told_ahead {
                    true => self.proofs_in_place(extents),
                    false => Proofs::Elsewhere,
                },
            },
        }
    }

    fn file_content(&self, hash: Option<ChunkSize>) -> Served {
        let Window {
            entry, file, range, ..
        } = &self.window;
        Served::File {
            file: Arc::clone(&file.file),
            entry: *entry,
            file_offset: range.start,
            len: range.len(),
            file_len: file.len,
            hash,
        }
    }

    /// Adapters tell nobody what they have read: the values come from a job.
    fn proofs_in_place(&self, extents: &[ByteRange]) -> Proofs {
        if self.hash != HashKind::Blake3 {
            return Proofs::Elsewhere;
        }
        let Window { file, range, .. } = &self.window;
        let chunks = chunks_with_data(*range, extents, self.chunk, file.len);
        Proofs::ToHash(chunks.collect(), Arc::clone(file))
    }

    fn copied(
        &self,
        mut slot: Slot,
        rails: &dyn RailMemory,
        extents: &[ByteRange],
    ) -> Result<Making, Fault> {
        slot.adopt(self.session.owner);
        let Window { file, range, .. } = &self.window;
        let values = fill(&mut slot, file, *range, extents, (self.hash, self.chunk))?;
        let mut keys = Vec::new();
        match rails.register_slot(&mut slot) {
            Ok(registered) => keys = registered,
            Err(error) if rails.policy().is_strict() => return Err(rails::refusal(&error)),
            Err(error) => self.session.refusals.note(&error),
        }
        let way = (!keys.is_empty()).then_some(Way::Pool);
        Ok(Making {
            content: Served::Memory {
                slot: Arc::new(slot),
                len: range.len(),
            },
            hold: None,
            keys,
            made: Made {
                way,
                proofs: Proofs::Known(values),
            },
        })
    }
}

/// Reads the chunks of a window that have data into `slot`, and hashes each piece while it is hot
/// (BLAKE3). All other bytes of the slot are zero afterwards: the peer can see them.
fn fill(
    slot: &mut [u8],
    file: &OpenSource,
    window: ByteRange,
    extents: &[ByteRange],
    (hash, chunk_size): (HashKind, ChunkSize),
) -> Result<Vec<(ChunkIndex, [u8; 32])>, Fault> {
    let mut values = Vec::new();
    let mut filled = 0;
    for chunk in chunks_with_data(window, extents, chunk_size, file.len) {
        let range = chunk_size.range(chunk, file.len);
        let start = offset(range.start - window.start);
        let end = offset(range.end - window.start);
        slot[filled..start].fill(0);
        filled = end;
        let plan = match hash {
            HashKind::Blake3 => HashPlan::Blake3 {
                chunk,
                chunk_size,
                file_len: file.len,
            },
            // SHA-256 was hashed ahead.
            _ => HashPlan::None,
        };
        let mut hasher = ChunkHasher::new(&plan);
        let mut at = start;
        while at < end {
            let piece = &mut slot[at..end.min(at + PIECE_BYTES)];
            let read = file
                .file
                .read_at(piece, window.start + at as u64)
                .map_err(|error| read_fault(&error))?;
            if read == 0 {
                return Err(became_shorter());
            }
            hasher.update(&piece[..read]);
            at += read;
        }
        values.extend(hasher.finish().map(|value| (chunk, value)));
    }
    slot[filled..].fill(0);
    Ok(values)
}

/// A place in a slot, which a window fits into.
fn offset(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
