//! What the two ends say on the control connection.
//!
//! Participants: a client and a server; per transfer a sender and a receiver. The conversation of
//! a transfer, in both directions and on every transport:
//!
//! ```text
//! client                    server
//!   Open            ->                     which way, what, options
//!                   <-      Opened         or a Fault
//! receiver                  sender
//!   Credit          ->                     pages and region bytes that may be sent
//!                   <-      Manifest       pages of entries, against page credit
//!   Want            ->                     per entry: nothing, all, or ranges of chunks
//!                   <-      Grant          a region and what lies where in it, against byte credit
//!   (READs on the transport)
//!                   <-      Digests        the proof of each chunk, any time around its grant
//!   Recheck         ->                     a digest did not match: read that chunk afresh
//!   Release         ->                     after the last completion was polled
//!   Close           ->                     is the file still in the version that was granted?
//!                   <-      Closed
//!   Settled         ->                     published, updated, unchanged or failed; durable when told
//!   Deleted         ->                     what was removed, if that was asked for
//!   Remarks         ->                     what was left out, before the Settled of what it names
//!   Finish          ->                     everything is settled, and how its bytes came
//!                   <-      Finished
//! ```
//!
//! MUST NOTs: no path travels from receiver to sender, but for those in Deleted, which open nothing; no READ is posted after Release of its
//! region; nothing is published before Closed said so (files in packs carry that answer in their
//! grant); no message that costs memory is sent without credit.

use std::num::NonZeroU64;

use crate::ids::{EntryId, RegionId, RemoteKey, SessionId, TransferId};
use crate::manifest::{Item, Version};
use crate::units::{ByteRange, ChunkRange, ChunkSize, Timestamp};
use crate::wire::Fault;
pub use crate::wire::left_behind::{Cleaning, Fate, LeftBehind, Why};
pub use crate::wire::plan::{Action, Reason};
pub use crate::wire::rail::{
    GidKind, Invitation, LinkLayer, PROBE_BYTES, PathMtu, PortGid, Probe, QueuePair,
    RAIL_TOKEN_BYTES, RailAnswer, RailConnect, RailDial, RailEnd, RailLink, RailOffer, RailPair,
    RailPort, RailReady, RailToken,
};
pub use crate::wire::removal::{Deleting, Removal, Removed, RemovedKind};

pub use crate::wire::status::{
    Moved, Running, SessionStatus, StatusPage, StatusQuery, TransferStatus, WayStatus,
};

/// A message with the transfer that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The transfer or operation; [`TransferId::NONE`] for messages of the session.
    pub transfer: TransferId,
    /// What is said.
    pub message: Message,
}

/// Everything that can be said on the control connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// Client's first message.
    Hello(Hello),
    /// Server's answer to Hello.
    Welcome(Welcome),
    /// Liveness, either way.
    Ping {
        /// Comes back in the Pong.
        nonce: u64,
    },
    /// Answer to a Ping.
    Pong {
        /// From the Ping.
        nonce: u64,
    },
    /// The sender of this ends the session, for this reason.
    Goodbye(Fault),
    /// Client: rails are wanted.
    RailOffer(RailOffer),
    /// Server: which rails can be tried.
    RailAnswer(RailAnswer),
    /// Client: its halves of them.
    RailConnect(RailConnect),
    /// Server: which are connected.
    RailReady(RailReady),
    /// Either way: what a READ of the peer's probe brought.
    RailProof {
        /// Over this queue pair.
        link: RailLink,
        /// The bytes.
        read: [u8; PROBE_BYTES],
    },
    /// Either way: this queue pair is gone, or came to nothing.
    RailDown {
        /// Which.
        link: RailLink,
        /// Why.
        reason: String,
    },
    /// Client: tell what you do. From level 3 on.
    StatusQuery(StatusQuery),
    /// Server: what it does, and some of its sessions.
    StatusPage(StatusPage),
    /// Either way: memory could not be made readable over the rails, so bytes of the one who says
    /// this go by tcp. For people only: who does not know it skips it.
    RailMemory {
        /// Why.
        reason: String,
    },

    /// Client: begin a transfer under the envelope's id.
    Open(Open),
    /// Server: it began. For a push, the server is the receiver.
    Opened,
    /// Either way: this transfer or operation ends here, failed.
    Failed(Fault),
    /// Receiver to sender: more may be sent. Adds to what was granted before.
    Credit {
        /// Manifest pages.
        pages: u32,
        /// Bytes of granted regions.
        region_bytes: u64,
    },
    /// Sender: the next page.
    Manifest(ManifestPage),
    /// Receiver: what is wanted of entries that a page told.
    Want(Vec<(EntryId, Wanted)>),
    /// Sender: a region may be read.
    Grant(Grant),
    /// Sender: the proofs of chunks.
    Digests(Vec<ChunkDigest>),
    /// Receiver: a chunk did not match its digest. The sender drops what it has cached of it, reads
    /// the file again and answers with Digests or with an EntryFailed (source changed).
    Recheck {
        /// The file.
        entry: EntryId,
        /// The chunk.
        chunk: u64,
    },
    /// Receiver: nothing of this region will be read any more; all completions were polled.
    Release(Vec<RegionId>),
    /// Receiver: all chunks of these files are stored and proved. Still the same version?
    Close(Vec<EntryId>),
    /// Sender: the answers; `false` = the source changed.
    Closed(Vec<(EntryId, bool)>),
    /// Sender: this entry can't be had (any more).
    EntryFailed {
        /// The entry.
        entry: EntryId,
        /// Why.
        fault: Fault,
    },
    /// Receiver: these entries are done with, each durable if published. The sender forgets them.
    Settled(Vec<(EntryId, Outcome)>),
    /// Receiver: the last page came and everything in it is settled. With how its bytes came, which
    /// only a receiver knows.
    Finish(Carried),
    /// Sender: seen.
    Finished,
    /// Receiver: what it left out or did otherwise. Adds to what was remarked before. A sender that
    /// does not know it skips it.
    Remarks(Vec<Remark>),
    /// Receiver: what it removed at the destination, or would. For people; nothing is opened by it.
    Deleted {
        /// It comes of the comparison at the end, which had begun: an empty list says that it goes on.
        comparing: bool,
        /// What; at most `REMOVALS_MAX`.
        removals: Vec<Removal>,
    },
    /// Client: memory is wanted to measure the transport with. The server answers with a Grant
    /// without parts; Credit of nothing keeps its lease, Release ends it, and Done answers that.
    Bench {
        /// Bytes of the region; it may have fewer.
        region_bytes: u64,
    },

    /// Client: one operation outside transfers.
    Operate(Operation),
    /// Server: part of an operation's result; for List and Sum.
    Listing(Vec<Listed>),
    /// Server: the operation is done, completely.
    Done,
}

/// Payload bytes that landed, by the way they came; what was read twice counts twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Over data connections.
    pub tcp: u64,
    /// Over RDMA rails.
    pub rdma: u64,
    /// Not at all: an interrupted run had left them, and they were proved where they lie.
    pub resumed: u64,
    /// Not at all: an older copy at the destination had the same, and they were proved like what
    /// travels.
    pub reused: u64,
}

/// The client's greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Lowest feature level that the client can speak.
    pub level_min: u16,
    /// Highest.
    pub level_max: u16,
    /// Name and release, for logs.
    pub software: String,
}

/// The server's greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The level that both speak from now on.
    pub level: u16,
    /// Names this session in the hello of data connections.
    pub session: SessionId,
    /// Random, new at every connect; stale messages of an earlier session can't match.
    pub epoch: u64,
    /// Name and release, for logs.
    pub software: String,
    /// Most data connections of this session.
    pub data_connections_max: u16,
    /// Why the server offers no better transport than tcp; shown by ping.
    pub transports: Vec<TransportOffer>,
}

/// What a server says of one transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportOffer {
    /// `rdma`, `tcp` or `local`.
    pub name: String,
    /// Whether it can be used.
    pub available: bool,
    /// Why, or why not.
    pub reason: String,
}

/// What a client asks for in a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Which way.
    pub direction: Direction,
    /// What.
    pub hash: HashKind,
    /// Chunk size.
    pub chunk: ChunkSize,
    /// What is carried beside the data.
    pub preserve: Preserve,
    /// Directories are walked, not refused.
    pub recursive: bool,
    /// Nothing is read, written, made or touched: the receiver settles every entry as
    /// [`Outcome::Planned`], and asks for no data.
    pub dry_run: bool,
    /// Which entries take part, in the order in which they are tried.
    pub filters: Vec<FilterRule>,
}

/// A rule about which entries of a tree take part. The first one that matches an entry decides; what
/// none matches takes part. Of a directory that is left out nothing below it takes part either; a
/// source itself always does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FilterRule {
    /// What matches takes part; else it is left out.
    pub include: bool,
    /// Of a name, or, with a slash that is not its end, of a path below the source: `*` is anything but
    /// a slash, `**` anything, `?` one character, `[a-z]` one of those, `\\` takes the meaning off what
    /// follows. With a slash at its end it matches directories only.
    pub pattern: Vec<u8>,
}

/// Which way a transfer goes and what its server side names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The server sends these sources, in this order: root n is the n-th.
    Pull(Vec<RemotePath>),
    /// The server receives.
    Push {
        /// Where to.
        destination: RemotePath,
        /// How sources become names there; root n is the n-th.
        placement: Placement,
        /// What to do about what is there.
        overwrite: Overwrite,
        /// Whether files are synced before they count as done.
        sync: bool,
        /// Whether it goes on with what an interrupted run left, and leaves something to go on with.
        resume: bool,
        /// How many bytes of file content the server reads a second, at most.
        bytes_per_s: Option<NonZeroU64>,
        /// Whether what the source does not have is removed.
        delete: Option<Deleting>,
        /// What becomes of the content of files that are there.
        reuse: Reuse,
    },
}

/// A path on a server: an export and bytes below it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemotePath {
    /// The export's name.
    pub export: String,
    /// Path below the export, without a leading `/`; may be empty; checked by the server.
    pub path: Vec<u8>,
}

/// How a receiver names roots. The rule: a directory becomes DST/name, or, with a trailing slash
/// at the source, its contents go into DST. A file goes into DST when DST ends in `/`, is a
/// directory, or there are several sources; else DST is its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The destination was written with a trailing slash.
    pub into_directory: bool,
    /// Missing parents of the destination are made.
    pub make_parents: bool,
    /// One per source.
    pub roots: Vec<RootName>,
}

/// What a source is called at its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootName {
    /// Last component of the source as the user wrote it; empty for an export's top.
    pub name: Vec<u8>,
    /// The source was written with a trailing slash: a directory's contents are meant.
    pub contents: bool,
}

/// What a transfer carries beside data and mtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preserve {
    /// Permission bits (set-id bits never).
    pub mode: bool,
    /// Symlinks as symlinks; without it they are noted and skipped.
    pub symlinks: bool,
    /// Hard links as hard links; without it each name is a file.
    pub hard_links: bool,
    /// `user.*` attributes and POSIX ACLs.
    pub xattrs: bool,
    /// Owner and group, where the receiver may set them.
    pub owner: bool,
}

/// What to do about a file that is there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overwrite {
    /// Same size and mtime counts as present; else it is replaced.
    #[default]
    IfDifferent,
    /// Only files older than the source are replaced; newer ones count as present.
    Older,
    /// Nothing that exists is replaced; it counts as present.
    Never,
    /// A file that exists is an error.
    Error,
}

/// What a receiver does with the content of a file that it is to replace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Chunks that the older copy has already are taken from it and do not travel. Nothing is compared
    /// without a hash, nor for a peer that may not read.
    pub delta: bool,
    /// Files are told apart by their content, whatever their times say: one of the same length is
    /// compared, and stays if it is the same. Needs a hash and, of a server, the right to read.
    pub checksum: bool,
    /// What differs is written into the file that is there, which is not atomic: one that failed may be
    /// part old and part new, until the same is done again. What is not to be compared is dropped first.
    /// Files with several names are refused. Not with [`Overwrite::Older`]: an unfinished file is newer
    /// than its source.
    pub in_place: bool,
}

/// Which digest proves chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HashKind {
    /// BLAKE3 subtrees; the root is what `b3sum` prints.
    #[default]
    Blake3,
    /// SHA-256 by midstates; the last is what `sha256sum` prints.
    Sha256,
    /// Nothing is proved: "not verified".
    None,
}

/// A page of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestPage {
    /// In walk order: depth first, byte-sorted in a directory.
    pub items: Vec<Item>,
    /// No page follows.
    pub last: bool,
}

/// What a receiver wants of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It has it, or won't have it. A Settled with the outcome comes with it or later.
    Nothing,
    /// The whole file.
    All,
    /// These chunks, ascending and disjoint.
    Chunks(Vec<ChunkRange>),
    /// The whole file. The receiver has an older copy of the chunks before this one, and compares it
    /// before it reads anything of them: their proofs follow their grant at once.
    Compared(u64),
}

/// A region that may be read, and what lies where in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its name, used once within the session. Grants may come in another order than regions are
    /// numbered.
    pub region: RegionId,
    /// Length in bytes; 0 when the parts need no data (holes to the end).
    pub len: u64,
    /// How long it stays if nothing is heard, in milliseconds.
    pub lease_ms: u32,
    /// Address and key per rail; tcp has rail 0 only.
    pub keys: Vec<RegionKey>,
    /// Files or windows of a file in the region, ascending by offset, disjoint.
    pub parts: Vec<GrantPart>,
}

/// How one rail reads a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionKey {
    /// The rail.
    pub rail: u16,
    /// Address of the region's first byte.
    pub address: u64,
    /// The key.
    pub key: RemoteKey,
}

/// A file, or a window of one, in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantPart {
    /// Which file.
    pub entry: EntryId,
    /// Its version when it was opened.
    pub version: Version,
    /// Its length then.
    pub file_len: u64,
    /// Where this part starts in the file: a multiple of the chunk size.
    pub file_offset: u64,
    /// Where it starts in the region.
    pub region_offset: u64,
    /// Bytes: up to a chunk boundary or the end of the file.
    pub len: u64,
    /// Where this part of the file has data, absolute in the file, ascending and disjoint. Chunks
    /// that touch none of them are holes and are not read; bytes outside them are zero.
    pub extents: Vec<ByteRange>,
    /// No later grant tells more of what was wanted of this file.
    pub last: bool,
    /// The file lies whole in pack memory and its version was checked after it was read: no Close.
    pub packed: bool,
}

/// The proof of one chunk. For BLAKE3 the chunk's subtree value, or, if the file has one chunk or
/// none, its root. For SHA-256 the compression state after the chunk, or, for the last chunk, the
/// file's digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkDigest {
    /// The file.
    pub entry: EntryId,
    /// The chunk.
    pub chunk: u64,
    /// The value.
    pub value: [u8; 32],
}

/// How an entry ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is there under its name, verified if there is a hash, durable if that was asked for.
    Published {
        /// Bytes of data that travelled for it.
        bytes: u64,
        /// The file's digest if it is known.
        digest: Option<[u8; 32]>,
    },
    /// It was there already.
    Unchanged,
    /// It is not there, for this reason.
    Failed(Fault),
    /// Its content was there already; mode, owner, attributes or times were brought up to date.
    Updated,
    /// In a dry run: what would become of it, and why.
    Planned(Reason),
}

/// Something that a receiver left out or did otherwise, of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// What.
    pub kind: RemarkKind,
    /// Of how many entries, beyond those that were counted before.
    pub count: u64,
    /// The first of them; few, and only while they are not settled.
    pub entries: Vec<EntryId>,
}

/// What a receiver may remark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RemarkKind {
    /// Its user may not give files away.
    Owner,
    /// Set-user-id and set-group-id bits are never taken from a peer.
    SetId,
    /// The file system keeps no attributes.
    AttributesUnsupported,
    /// The file system keeps no access lists.
    AccessListsUnsupported,
    /// Attributes that are never taken from peers.
    AttributesPrivileged,
    /// A hard link could not be made, so the file was copied.
    LinkCopied,
    /// What an interrupted run left is of an earlier state of the source, so all was fetched anew.
    BegunAnew,
    /// Something that a later release knows.
    Unknown(u8),
}

/// Operations outside transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Exports (empty export name), or the entries of a directory, or the one file.
    List {
        /// What.
        path: RemotePath,
        /// All below, depth first.
        recursive: bool,
    },
    /// The one thing itself.
    Stat {
        /// What.
        path: RemotePath,
    },
    /// Digests of a file or of all files below a directory, always computed from the content.
    Sum {
        /// What.
        path: RemotePath,
        /// Directories are walked, not refused.
        recursive: bool,
        /// Which digest; not `None`.
        hash: HashKind,
    },
    /// Removes a file, or a tree.
    Remove {
        /// What.
        path: RemotePath,
        /// Directories with all below them.
        recursive: bool,
    },
    /// Makes a directory.
    MakeDirectory {
        /// Which.
        path: RemotePath,
        /// Parents too; one that exists is fine.
        parents: bool,
    },
    /// Removes what copies that died left in a directory and below. From level 4 on.
    Clean {
        /// The directory.
        path: RemotePath,
        /// Which of it.
        which: Cleaning,
        /// Nothing is removed: what would be is told.
        dry_run: bool,
    },
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Path relative to what was asked for; empty for the thing itself.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: ListedKind,
    /// Length in bytes.
    pub len: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last modification.
    pub mtime: Timestamp,
    /// The file's digest, for Sum.
    pub digest: Option<[u8; 32]>,
    /// Why it could not be read, for Sum and recursive List, or removed, for Clean.
    pub fault: Option<Fault>,
    /// What a copy left behind, for Clean.
    pub left: Option<LeftBehind>,
}

/// What a listed thing is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListedKind {
    /// An export: path is its name.
    Export {
        /// Whether it may be written.
        writable: bool,
    },
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link with its target.
    Symlink(Vec<u8>),
    /// A device, FIFO or socket.
    Special,
}
