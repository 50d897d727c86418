//! Fetching what was granted of an open file: chunks in flight, their proofs, repair.
//!
//! In: a grant and the part that lies in it. Out: bytes, each proved by the digest of its chunk. Which
//! chunks are wanted, and what becomes of the grant, is not decided here.

use std::collections::HashMap;
use std::sync::PoisonError;

use super::{CHUNK, IN_FLIGHT_MAX, Reading, out_of_turn};
use crate::engine::LaneId;
use crate::error::{Error, ErrorKind};
use crate::integrity::{self, HashPlan};
use crate::lane::{Fetch, FetchError, LaneEvent, Store};
use crate::limits::REPAIRS_MAX;
use crate::memory::Slot;
use crate::units::{ByteRange, ChunkIndex};
use crate::wire::Message;
use crate::wire::message::{Grant, GrantPart, HashKind, RegionKey};

/// A chunk that landed.
struct Arrived {
    slot: Slot,
    digest: Option<[u8; 32]>,
}

impl Reading {
    /// Fetches a small file from its pack.
    pub(super) async fn fetch_whole(
        &mut self,
        grant: &Grant,
        part: &GrantPart,
    ) -> Result<Vec<u8>, Error> {
        let len = usize::try_from(part.len).unwrap_or(usize::MAX);
        let mut tries = 0;
        while tries <= REPAIRS_MAX {
            let bytes = if len == 0 {
                Vec::new()
            } else {
                let token = self
                    .post(grant, part.region_offset, part.len, HashPlan::None)
                    .await?;
                let Some(arrived) = self.arrive(token).await? else {
                    // Its connection was lost: that is no wrong try.
                    continue;
                };
                arrived.slot.get(..len).ok_or_else(out_of_turn)?.to_vec()
            };
            let mut proofs = Vec::new();
            integrity::proofs(HashKind::Blake3, CHUNK, &bytes, |chunk, value| {
                proofs.push((chunk, value));
            });
            let mut right = true;
            for (chunk, value) in proofs {
                // They may come after the grant.
                right &= self.digest(chunk).await? == value;
            }
            if right {
                return Ok(bytes);
            }
            tries += 1;
        }
        Err(corrupt(0))
    }

    /// Fetches the chunks of a window that have data, and proves them. Unless the file can't be read
    /// any more, nothing is under way at its end.
    pub(super) async fn fetch_window(
        &mut self,
        grant: &Grant,
        part: &GrantPart,
        base: u64,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let file_len = self.file.len();
        let window = ByteRange {
            start: part.file_offset,
            end: part.file_offset + part.len,
        };
        let chunks = CHUNK.index_of(window.start).0..CHUNK.count(window.end);
        let has_data =
            |range: ByteRange| part.extents.iter().any(|e| !e.intersect(range).is_empty());
        let mut todo: Vec<(ChunkIndex, u32)> = chunks
            .map(ChunkIndex)
            .filter(|&chunk| has_data(CHUNK.range(chunk, file_len)))
            .map(|chunk| (chunk, 0))
            .collect();
        todo.reverse();
        let mut flying: HashMap<u64, (ChunkIndex, u32)> = HashMap::new();
        let mut beyond_repair = None;
        while !todo.is_empty() || !flying.is_empty() {
            while flying.len() < IN_FLIGHT_MAX
                && let Some((chunk, tries)) = todo.pop()
            {
                let range = CHUNK.range(chunk, file_len);
                let plan = HashPlan::Blake3 {
                    chunk,
                    chunk_size: CHUNK,
                    file_len,
                };
                let offset = part.region_offset + (range.start - window.start);
                let token = self.post(grant, offset, range.len(), plan).await?;
                flying.insert(token, (chunk, tries));
            }
            let (token, arrived) = self.arrive_any().await?;
            let Some((chunk, tries)) = flying.remove(&token) else {
                continue;
            };
            if beyond_repair.is_some() {
                continue;
            }
            let Some(arrived) = arrived else {
                // Its connection was lost: that costs the chunk nothing.
                todo.push((chunk, tries));
                continue;
            };
            let range = CHUNK.range(chunk, file_len);
            let expected = self.digest(chunk).await?;
            if arrived.digest != Some(expected) {
                if tries >= REPAIRS_MAX {
                    beyond_repair = Some(corrupt(chunk.0));
                    todo.clear();
                    continue;
                }
                self.digests.remove(&chunk.0);
                self.seat.say(Message::Recheck {
                    entry: self.file.entry(),
                    chunk: chunk.0,
                });
                todo.push((chunk, tries + 1));
                continue;
            }
            let at = usize::try_from(range.start - base).unwrap_or(usize::MAX);
            let len = usize::try_from(range.len()).unwrap_or(usize::MAX);
            let (Some(to), Some(from)) = (bytes.get_mut(at..at + len), arrived.slot.get(..len))
            else {
                return Err(out_of_turn());
            };
            to.copy_from_slice(from);
        }
        beyond_repair.map_or(Ok(()), Err)
    }

    /// The lanes that can read what was granted, in the order to try: rails before tcp, the next in
    /// turn first.
    fn reach(&self, grant: &Grant, token: u64) -> Vec<(LaneId, RegionKey)> {
        let with_key = |(lane, rail): &(LaneId, u16)| {
            let key = grant.keys.iter().find(|key| key.rail == *rail)?;
            Some((*lane, *key))
        };
        let (mut tcp, mut rails): (Vec<_>, Vec<_>) = self
            .lanes
            .iter()
            .filter_map(with_key)
            .partition(|(_, key)| key.rail == 0);
        let turn = usize::try_from(token).unwrap_or(0);
        for lanes in [&mut rails, &mut tcp] {
            let by = turn % lanes.len().max(1);
            lanes.rotate_left(by);
        }
        rails.append(&mut tcp);
        rails
    }

    /// Posts a fetch on the next lane in turn; waits for one if all connections are lost, as they
    /// are made anew.
    async fn post(
        &mut self,
        grant: &Grant,
        offset: u64,
        len: u64,
        hash: HashPlan,
    ) -> Result<u64, Error> {
        if grant.keys.is_empty() {
            return Err(out_of_turn());
        }
        let token = self.next_token;
        self.next_token += 1;
        loop {
            for (lane, key) in self.reach(grant, token) {
                let fetch = Fetch {
                    token,
                    remote: key.key,
                    offset: key.address.saturating_add(offset),
                    len,
                    hash,
                    store: Store::Deliver,
                };
                if self.seat.fetch(lane, fetch) {
                    self.posted.insert(token, (key.rail, len));
                    return Ok(token);
                }
            }
            let landed = self.receive().await?;
            self.landed.extend(landed);
        }
    }

    /// Waits for one fetch; nothing if its connection was lost.
    async fn arrive(&mut self, token: u64) -> Result<Option<Arrived>, Error> {
        loop {
            let (landed, arrived) = self.arrive_any().await?;
            if landed == token {
                return Ok(arrived);
            }
        }
    }

    /// The next fetch that is over; nothing if its connection was lost.
    async fn arrive_any(&mut self) -> Result<(u64, Option<Arrived>), Error> {
        loop {
            let event = match self.landed.pop_front() {
                Some(event) => Some(event),
                None => self.receive().await?,
            };
            let Some(LaneEvent::Landed { token, result }) = event else {
                continue;
            };
            let posted = self.posted.remove(&token);
            return match result {
                Ok(landed) => {
                    self.count(posted);
                    let slot = landed.slot.ok_or_else(out_of_turn)?;
                    Ok((
                        token,
                        Some(Arrived {
                            slot,
                            digest: landed.digest,
                        }),
                    ))
                }
                Err(FetchError::ConnectionLost) => Ok((token, None)),
                Err(error) => Err(self.refused(error).await),
            };
        }
    }

    fn count(&self, landed: Option<(u16, u64)>) {
        let Some((rail, bytes)) = landed else { return };
        let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        let way = match rail {
            0 => &mut carried.tcp,
            _ => &mut carried.rdma,
        };
        *way = way.saturating_add(bytes);
    }

    /// Why the server did not serve a READ: it says so on the control connection, if it is the
    /// file's fault.
    async fn refused(&mut self, error: FetchError) -> Error {
        let patience = std::time::Duration::from_secs(2);
        let explained = async {
            loop {
                if let Err(error) = self.receive().await {
                    return error;
                }
            }
        };
        match tokio::time::timeout(patience, explained).await {
            Ok(explained) if explained.kind() != ErrorKind::TimedOut => explained,
            _ => {
                Error::new(ErrorKind::Storage, "the server did not serve a read").with_source(error)
            }
        }
    }

    async fn digest(&mut self, chunk: ChunkIndex) -> Result<[u8; 32], Error> {
        loop {
            if let Some(value) = self.digests.get(&chunk.0) {
                return Ok(*value);
            }
            // What lands meanwhile is looked at after the digest is here.
            let landed = self.receive().await?;
            self.landed.extend(landed);
        }
    }
}

fn corrupt(chunk: u64) -> Error {
    let message = format!("chunk {chunk} does not match its digest");
    Error::new(ErrorKind::Integrity, message)
        .with_hint("something between the two hosts alters data: check memory and network")
}
