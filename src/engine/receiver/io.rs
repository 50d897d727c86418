//! What goes into and comes out of a [`Receiver`](super::Receiver).

use std::ops::Range;
use std::sync::Arc;

use crate::engine::{Event, FetchToken, LaneId, Ledger};
use crate::ids::{EntryId, RegionId};
use crate::limits::{PAGES_CREDIT_DEFAULT, REGION_CREDIT_BYTES_DEFAULT};
use crate::manifest::{Item, Version};
use crate::units::{ByteRange, ChunkIndex, ChunkRange, ChunkSize};
use crate::wire::message::{HashKind, Outcome, RegionKey, Removal, Wanted};
use crate::wire::{Fault, Message};

/// How a receiver behaves. The sender need not know any of it but the hash and the chunk size.
#[derive(Clone, Debug)]
pub struct ReceiverOptions {
    /// What proves chunks; as in Open.
    pub hash: HashKind,
    /// Chunk size; as in Open.
    pub chunk: ChunkSize,
    /// Manifest pages with unsettled entries: bounds the memory per entry. At least 1.
    pub pages_credit: u32,
    /// Granted and unreleased bytes: bounds what the sender exposes. At least one chunk and one
    /// packed file; less is raised to that.
    pub region_credit_bytes: u64,
    /// Fetches in flight per lane: hides the round trip. At least 1.
    pub lane_fetches_max: u32,
    /// Bytes in flight on all lanes, packs until they are stored: bounds buffer memory. At least
    /// one fetch always goes.
    pub in_flight_bytes_max: u64,
    /// The first failed entry ends the run.
    pub fail_early: bool,
    /// What the source does not have is removed at the end.
    pub mirror: bool,
    /// The sender is told what was removed.
    pub tell_removals: bool,
}

impl ReceiverOptions {
    /// The usual bounds.
    pub fn new(hash: HashKind, chunk: ChunkSize) -> Self {
        Self {
            hash,
            chunk,
            pages_credit: PAGES_CREDIT_DEFAULT,
            region_credit_bytes: REGION_CREDIT_BYTES_DEFAULT,
            lane_fetches_max: 8,
            in_flight_bytes_max: 64 << 20,
            fail_early: false,
            mirror: false,
            tell_removals: false,
        }
    }
}

/// An event that the driver reports. Every job output is answered by exactly one input.
#[derive(Clone, Debug)]
pub enum Input {
    /// The peer said this in our transfer.
    Message(Message),
    /// Answer to [`Output::Place`]: what becomes of each entry of that page, all of them. Of fewer
    /// only if a [`Input::Cancel`] follows.
    Placed {
        /// From the output.
        page: u64,
        /// One per entry; notes have none.
        entries: Vec<(EntryId, Placed)>,
        /// Directories that ended in this page with nothing outstanding.
        directories: Vec<(EntryId, Outcome)>,
    },
    /// Answer to [`Output::Prepare`].
    Prepared {
        /// From the output.
        entry: EntryId,
        /// What is there already if chunks can be written.
        result: Result<Prepared, Fault>,
    },
    /// Answer to [`Output::Prove`].
    Proved {
        /// From the output.
        entry: EntryId,
        /// From the output.
        region: RegionId,
        /// Those that are what the earlier run had proved, with their values; the others are fetched.
        /// Or why the file can't be used.
        result: Result<Vec<(ChunkIndex, [u8; 32])>, Fault>,
    },
    /// Answer to [`Output::Compare`].
    Compared {
        /// From the output.
        entry: EntryId,
        /// From the output.
        region: RegionId,
        /// All chunks of the output, each with whether it is there now and has that value; the others
        /// are fetched. Or why the file can't be used.
        result: Result<Vec<(ChunkIndex, bool)>, Fault>,
    },
    /// Answer to [`Output::Allocate`].
    Allocated {
        /// From the output.
        entry: EntryId,
        /// From the output.
        region: RegionId,
        /// Whether there is space for these ranges.
        result: Result<(), Fault>,
    },
    /// Answer to [`Output::Fetch`] or [`Output::FetchPack`], from the lane. It comes after the last
    /// use of the fetch's buffers, also when the lane is lost.
    Landed {
        /// From the output.
        token: FetchToken,
        /// The digest of what arrived (stored already, for chunks), or why it did not.
        result: Result<Option<[u8; 32]>, FetchFailure>,
    },
    /// Answer to [`Output::StorePack`].
    PackStored {
        /// From the output.
        region: RegionId,
        /// One per file of the output.
        results: Vec<(EntryId, PackResult)>,
    },
    /// Answer to [`Output::Publish`].
    Published {
        /// From the output.
        entry: EntryId,
        /// The file is under its name (durable if asked for), or why not.
        result: Result<Published, Fault>,
    },
    /// Answer to [`Output::Link`].
    Linked {
        /// From the output.
        entry: EntryId,
        /// Whether the name had to be made, or why it is not there.
        result: Result<bool, Fault>,
    },
    /// Storage removed something that the source does not have: in the way of an entry, or in answer to
    /// [`Output::Mirror`], and then before [`Input::Mirrored`].
    Removed(Vec<Removal>),
    /// Answer to [`Output::Mirror`]: whether there is more to compare.
    Mirrored {
        /// It wants to go on.
        more: bool,
    },
    /// Answer to [`Output::Settled`]: directories that are done with since nothing below them is
    /// outstanding any more, each told once.
    DirectoriesSettled(Vec<(EntryId, Outcome)>),
    /// A lane can take fetches.
    LaneUp {
        /// Which.
        lane: LaneId,
        /// The rail whose keys it reads with; tcp has rail 0 only.
        rail: u16,
    },
    /// A lane takes no more fetches. Those in flight on it land, each exactly once, before or after.
    LaneDown {
        /// Which.
        lane: LaneId,
    },
    /// End the run for this reason. Fetches and jobs in flight are waited for.
    Cancel(Fault),
}

/// What is there of a file when its part file is.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// Chunks that an earlier run may have written already, ascending and disjoint. They are proved
    /// where they lie before they count.
    pub held: Vec<ChunkRange>,
    /// Chunks before this one are in an older copy, which may hold the same. Counts only for a file
    /// that was wanted as [`Wanted::Compared`].
    pub older: u64,
    /// It is the older copy itself, which is written where it stands.
    pub in_place: bool,
}

/// What storage says of an entry that a page told.
#[derive(Clone, Debug)]
pub enum Placed {
    /// A file whose data is wanted: all of it, also after it was compared, or some chunks. `Nothing` is
    /// not allowed here.
    Fetch(Wanted),
    /// It needs nothing more: made, unchanged or impossible.
    Settled(Outcome),
    /// A directory that is there. Its outcome comes when all below it is settled; it holds no page
    /// credit until then, as that may be at the very end.
    Directory,
    /// A hard link, to be made after that entry is there.
    Link(EntryId),
}

/// How a file that is complete came to stand under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// It was put there.
    New {
        /// Its digest if it is known.
        digest: Option<[u8; 32]>,
    },
    /// What stood there had the same content and stays.
    Kept {
        /// Its metadata was brought up to date.
        updated: bool,
    },
}

/// Why a fetch brought nothing.
#[derive(Clone, Debug)]
pub enum FetchFailure {
    /// The lane was lost. Costs the chunk nothing: it is fetched again.
    Lost,
    /// The sender answered with an error.
    Remote,
    /// The sender's device did not let it be read, and the connection died of that: the lane goes
    /// down too. Costs a repair; the sender looks whether the source is still what it was.
    Access,
    /// The bytes could not be stored.
    Storage(Fault),
}

/// What became of a file of a pack.
#[derive(Clone, Debug)]
pub enum PackResult {
    /// It is under its name (durable if asked for).
    Stored {
        /// Its digest if there is a hash.
        digest: Option<[u8; 32]>,
    },
    /// What stood there had the same content and stays.
    Kept {
        /// Its metadata was brought up to date.
        updated: bool,
    },
    /// Its bytes did not match the expected digests; nothing was stored.
    Mismatch,
    /// It could not be stored.
    Failed(Fault),
}

/// What the driver is to do. Jobs (Place, Prepare, Allocate, Prove, Compare, StorePack, Publish, Link, Mirror,
/// Settled) are answered by their input. Jobs of one entry never overlap, but for one Allocate, one Prove
/// and some Compares per region; Place jobs do, and are to be done in order. Several Publish or Link of one
/// round of polling may be done
/// together.
#[derive(Clone, Debug)]
pub enum Output {
    /// Say this to the peer.
    Send(Message),
    /// Make real what can be, look at what is there. Pages come in order.
    Place {
        /// Comes back in [`Input::Placed`].
        page: u64,
        /// The page's items.
        items: Vec<Item>,
    },
    /// Make the part file.
    Prepare {
        /// The file.
        entry: EntryId,
        /// Its final length.
        file_len: u64,
        /// Its version at the sender.
        version: Version,
    },
    /// Reserve space for data that is about to come. Always after a good Prepared.
    Allocate {
        /// The file.
        entry: EntryId,
        /// Comes back in [`Input::Allocated`].
        region: RegionId,
        /// Absolute in the file, ascending and disjoint.
        ranges: Arc<[ByteRange]>,
    },
    /// Look whether these chunks are there already, as storage said they may be, and make zeros of
    /// those that are not. Always after a good Prepared.
    Prove {
        /// The file.
        entry: EntryId,
        /// Comes back in [`Input::Proved`].
        region: RegionId,
        /// Ascending, each with how it is hashed.
        chunks: Vec<(ChunkIndex, Proof)>,
    },
    /// See whether the older copy has these chunks, and put those that it has into the prepared file; the
    /// others must be zeros there where the region has no data. Always after a good Prepared.
    Compare {
        /// The file.
        entry: EntryId,
        /// Comes back in [`Input::Compared`].
        region: RegionId,
        /// In any order, each with how it is hashed and the sender's value.
        chunks: Vec<(ChunkIndex, Proof, [u8; 32])>,
        /// Where the region's part of the file has data, as in [`Fetch::data`].
        data: Arc<[ByteRange]>,
    },
    /// Read a chunk, hash it and write it to the prepared file.
    Fetch(Fetch),
    /// Read a whole pack region into one buffer, and keep that under the region's id until
    /// [`Output::StorePack`] uses it up, another FetchPack replaces it, or the run ends.
    FetchPack {
        /// Comes back in [`Input::Landed`].
        token: FetchToken,
        /// On this lane.
        lane: LaneId,
        /// The region.
        region: RegionId,
        /// Its address and key on the lane's rail.
        key: RegionKey,
        /// Bytes, from offset 0; at most `PACK_BYTES_MAX`.
        len: u64,
    },
    /// Hash the files in a pack that landed (or has no bytes: then nothing was fetched), compare, store those that match, all in one commit.
    StorePack {
        /// The region whose bytes landed.
        region: RegionId,
        /// The files to store: a second round after a mismatch names only those.
        files: Vec<PackFile>,
        /// The expected digests of all files; empty without a hash.
        digests: Vec<[u8; 32]>,
    },
    /// This chunk of the file is stored and matched (or there is no hash: then no digest).
    Verified {
        /// The file.
        entry: EntryId,
        /// The chunk.
        chunk: ChunkIndex,
        /// Its proof, as in `ChunkDigest`.
        digest: Option<[u8; 32]>,
    },
    /// These chunks are holes: zero bytes that were not fetched.
    Hole {
        /// The file.
        entry: EntryId,
        /// Which.
        chunks: ChunkRange,
        /// SHA-256: the sender's value of the last of them, for the digest of a file that ends so.
        value: Option<[u8; 32]>,
    },
    /// All data is there and the source did not change: give the file its name.
    Publish {
        /// The file.
        entry: EntryId,
    },
    /// Make the hard link.
    Link {
        /// The link.
        entry: EntryId,
        /// Its first name.
        to: EntryId,
    },
    /// Compare a part of the destination with what the pages told, and remove what they did not. Only
    /// when nothing else is under way and nothing failed.
    Mirror,
    /// These entries, which were placed as Fetch or Link, are done with: remove part files that
    /// were not published, finish directories that only waited for them.
    Settled(Vec<EntryId>),
    /// For people and programs that watch.
    Event(Event),
    /// The run ended well, whatever became of single entries. The last output.
    Finished(Ledger),
    /// The run ended before its time. The last output; the peer was told unless it told us.
    Failed {
        /// Why.
        fault: Fault,
        /// What had been settled by then.
        ledger: Ledger,
    },
}

/// One chunk to read, prove and store.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// Comes back in [`Input::Landed`].
    pub token: FetchToken,
    /// On this lane.
    pub lane: LaneId,
    /// The file.
    pub entry: EntryId,
    /// The chunk.
    pub chunk: ChunkIndex,
    /// The region it lies in.
    pub region: RegionId,
    /// The region's address and key on the lane's rail.
    pub key: RegionKey,
    /// Where the chunk starts in the region.
    pub region_offset: u64,
    /// Where it starts in the file.
    pub file_offset: u64,
    /// Its bytes.
    pub len: u64,
    /// The file's length.
    pub file_len: u64,
    /// How it is hashed.
    pub proof: Proof,
    /// Where the region's part of the file has data, absolute in the file; may reach beyond the
    /// chunk. Bytes outside are zero and need no writing.
    pub data: Arc<[ByteRange]>,
}

/// What a lane must compute of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Nothing.
    None,
    /// The BLAKE3 subtree value (the root if the file has one chunk).
    Blake3,
    /// The SHA-256 state after the chunk (the digest if it is the last), from this one before it;
    /// `None` for the initial state at chunk 0.
    Sha256 {
        /// The state before the chunk.
        before: Option<[u8; 32]>,
    },
}

/// A file in a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackFile {
    /// The file.
    pub entry: EntryId,
    /// Where it starts in the pack.
    pub offset: u64,
    /// Its bytes: the whole file.
    pub len: u64,
    /// Which of the output's digests are its chunks', in order; one for an empty file; empty
    /// without a hash.
    pub digests: Range<usize>,
}
