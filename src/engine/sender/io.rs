//! What goes into and comes out of a [`Sender`](super::Sender).

use crate::engine::{Event, Ledger};
use crate::ids::{EntryId, RegionId};
use crate::limits::OPEN_FILES_MAX;
use crate::manifest::Version;
use crate::units::{ByteRange, ChunkIndex, ChunkSize};
use crate::wire::message::{ChunkDigest, GrantPart, HashKind, ManifestPage, RegionKey};
use crate::wire::{Fault, Message};

/// How a sender behaves.
#[derive(Clone, Debug)]
pub struct SenderOptions {
    /// What proves chunks; as in Open.
    pub hash: HashKind,
    /// Chunk size; as in Open.
    pub chunk: ChunkSize,
    /// Regions are numbered from here. The driver leaves room between the transfers of a session.
    pub first_region: RegionId,
    /// Big files open at once; at most `OPEN_FILES_MAX`, at least 1.
    pub open_files_max: usize,
    /// Bytes of pack memory in use at once, in steps of `PACK_BYTES_MAX`; at least one of them.
    pub pack_bytes_max: u64,
    /// Regions exposed or being exposed at once; at least 2.
    pub regions_max: usize,
    /// Told in grants, in milliseconds.
    pub lease_ms: u32,
    /// The first entry that the receiver reports failed ends the run.
    pub fail_early: bool,
    /// The receiver only says what it would do; it can't ask for data.
    pub dry_run: bool,
    /// The receiver removes what the source does not have, and tells.
    pub mirror: bool,
}

impl SenderOptions {
    /// The usual bounds.
    pub fn new(hash: HashKind, chunk: ChunkSize) -> Self {
        Self {
            hash,
            chunk,
            first_region: RegionId(0),
            open_files_max: OPEN_FILES_MAX,
            pack_bytes_max: 32 << 20,
            regions_max: 256,
            lease_ms: 60_000,
            fail_early: false,
            dry_run: false,
            mirror: false,
        }
    }
}

/// An event that the driver reports. Every job output is answered by exactly one input.
#[derive(Clone, Debug)]
pub enum Input {
    /// The peer said this in our transfer.
    Message(Message),
    /// Answer to [`Output::NextPage`]. An error ends the run.
    Page(Result<ManifestPage, Fault>),
    /// Answer to [`Output::Open`].
    Opened {
        /// From the output.
        entry: EntryId,
        /// The open file, or why there is none.
        result: Result<OpenedFile, Fault>,
    },
    /// Answer to [`Output::FillPack`].
    PackFilled {
        /// From the output.
        region: RegionId,
        /// The exposed pack.
        pack: FilledPack,
    },
    /// Answer to [`Output::Expose`].
    Exposed {
        /// From the output.
        region: RegionId,
        /// How to read it, or why the file can't be read.
        result: Result<ExposedWindow, Fault>,
    },
    /// The value of a chunk as in `ChunkDigest`: for BLAKE3 from a lane that served it or a job beside,
    /// any number of times; for SHA-256 an answer to [`Output::HashAhead`], each chunk once and in order.
    Hashed {
        /// The file.
        entry: EntryId,
        /// The chunk.
        chunk: ChunkIndex,
        /// The value.
        value: [u8; 32],
    },
    /// Answer to [`Output::Unexpose`]: nothing can read the region any more.
    Unexposed {
        /// From the output.
        region: RegionId,
    },
    /// Answer to [`Output::Check`].
    Checked {
        /// From the output.
        entry: EntryId,
        /// The version is still the one that was opened.
        same: bool,
    },
    /// Answer to [`Output::Rehash`].
    Rehashed {
        /// From the output.
        entry: EntryId,
        /// From the output.
        chunk: ChunkIndex,
        /// The chunk's value as it reads now, or that it can't be read or has changed.
        result: Result<[u8; 32], Fault>,
    },
    /// A file could not be read while it was served or hashed ahead. Also ends a HashAhead.
    SourceFailed {
        /// The file.
        entry: EntryId,
        /// Why.
        fault: Fault,
    },
    /// End the run for this reason.
    Cancel(Fault),
}

/// An open source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedFile {
    /// Its state of content.
    pub version: Version,
    /// Its length.
    pub len: u64,
    /// Most bytes of it that one region may have: what the driver can expose at once. Rounded down
    /// to whole chunks, at least one, at most `WINDOW_BYTES`.
    pub window_bytes: u64,
}

/// A window of a file that may be read.
#[derive(Clone, Debug)]
pub struct ExposedWindow {
    /// One per rail.
    pub keys: Vec<RegionKey>,
    /// Where the window has data, absolute in the file, ascending and disjoint.
    pub extents: Vec<ByteRange>,
    /// If the window has no data: where the file's next data begins, its length if there is none.
    pub hole_end: u64,
}

/// A pack that may be read.
#[derive(Clone, Debug, Default)]
pub struct FilledPack {
    /// Bytes used of it, 0 if there is no data: then it is not exposed.
    pub len: u64,
    /// One per rail; empty when `len` is 0.
    pub keys: Vec<RegionKey>,
    /// The files in it, each `packed`, `last` and whole, ascending.
    pub parts: Vec<GrantPart>,
    /// The values of all chunks of all parts (one for an empty file); empty without a hash.
    pub digests: Vec<ChunkDigest>,
    /// Files that can't be had.
    pub failed: Vec<(EntryId, Fault)>,
    /// Files that are too large by now or did not fit: they are served as big files.
    pub left: Vec<EntryId>,
}

/// What the driver is to do. Jobs are answered by their input; Forget is not answered.
#[derive(Clone, Debug)]
pub enum Output {
    /// Say this to the peer.
    Send(Message),
    /// Walk on. One at a time.
    NextPage,
    /// Open a big file.
    Open {
        /// Which.
        entry: EntryId,
    },
    /// Read small files into pack memory, hash them there and expose it.
    FillPack {
        /// The region it becomes.
        region: RegionId,
        /// The files, ascending. More than `capacity` may have to be left.
        entries: Vec<EntryId>,
        /// Most bytes that may be laid in it.
        capacity: u64,
    },
    /// Expose a window of an open file.
    Expose {
        /// The region it becomes.
        region: RegionId,
        /// The file.
        entry: EntryId,
        /// Its bytes.
        range: ByteRange,
        /// The file's length when it was opened.
        file_len: u64,
        /// BLAKE3: once it is granted, the values of its chunks with data are to be told by
        /// [`Input::Hashed`] whether they are read or not.
        told_ahead: bool,
    },
    /// SHA-256: hash the open file on, front to back, up to this chunk, and report each chunk.
    HashAhead {
        /// The file.
        entry: EntryId,
        /// One past the last chunk; never falls.
        upto: ChunkIndex,
    },
    /// Nothing reads this region any more, or nothing may: withdraw it, give its memory back.
    Unexpose {
        /// Which.
        region: RegionId,
    },
    /// Compare the open file's version with the one it had when opened. Nothing else is asked of
    /// the open file afterwards: it can be closed.
    Check {
        /// The file.
        entry: EntryId,
    },
    /// Drop what is cached of this chunk, read and hash it again; then see that the file is still
    /// the version that was opened: a device may have read what memory held of an earlier state.
    /// Without a hash: read it, any value.
    Rehash {
        /// The file.
        entry: EntryId,
        /// The chunk.
        chunk: ChunkIndex,
        /// SHA-256: the state before the chunk; `None` for the initial one.
        before: Option<[u8; 32]>,
    },
    /// Nothing will be asked about this entry any more.
    Forget {
        /// Which.
        entry: EntryId,
    },
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
