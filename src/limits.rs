//! Every maximum of the protocol and of the engine, with the relations between them asserted at
//! compile time. A peer that exceeds one has broken the protocol; the session ends.

/// Largest frame body on the control connection, in bytes.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// Most entries and notes in one manifest page.
pub const PAGE_ITEMS_MAX: usize = 512;
/// A page is closed once its encoded items reach this many bytes.
pub const PAGE_BYTES_TARGET: usize = 128 << 10;
/// Manifest pages that a receiver lets a sender have unsettled, unless told otherwise.
pub const PAGES_CREDIT_DEFAULT: u32 = 16;
/// Granted and unreleased region bytes that a receiver allows, unless told otherwise.
pub const REGION_CREDIT_BYTES_DEFAULT: u64 = 256 << 20;
/// Longest file name: one path component, in bytes (`NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest path in a request or symlink target, in bytes (`PATH_MAX` less its NUL).
pub const PATH_BYTES_MAX: usize = 4095;
/// Deepest nesting of directories below a transfer's root.
pub const DEPTH_MAX: usize = 1024;
/// Most sources in one transfer.
pub const ROOTS_MAX: usize = 4096;
/// Most filters of one transfer.
pub const FILTERS_MAX: usize = 1024;
/// Longest pattern of a filter, in bytes.
pub const FILTER_BYTES_MAX: usize = 1024;
/// Patterns of all filters of a transfer together, in bytes: with the length of a path it bounds what
/// it costs to look at an entry.
pub const FILTERS_BYTES_MAX: usize = 32 << 10;
/// Most extended attributes carried per entry.
pub const XATTRS_MAX: usize = 64;
/// Largest sum of names and values of one entry's extended attributes, in bytes.
pub const XATTR_BYTES_MAX: usize = 64 << 10;
/// Files up to this many bytes travel in packs.
pub const PACK_FILE_BYTES_MAX: u64 = 256 << 10;
/// Largest pack region, in bytes. At most the smallest slot that a pack is read into.
pub const PACK_BYTES_MAX: u64 = 1 << 20;
/// Most files in one pack.
pub const PACK_FILES_MAX: usize = 512;
/// Window of a file that one region covers, in bytes.
pub const WINDOW_BYTES: u64 = 64 << 20;
/// How long one chunk may take at the rate that a client asks for, in seconds: what moves no chunk for
/// long makes the other end look whether anybody is there.
pub const CHUNK_LASTS_S_MAX: u64 = 8;
/// Most windows of one file that are out at once; a quarter of the credit each is all of it.
pub const WINDOWS_PER_FILE_MAX: usize = 4;
/// Most data extents told per grant; a more fragmented window is told in coarser extents.
pub const GRANT_EXTENTS_MAX: usize = 1024;
/// Most chunk digests in one DIGESTS message.
pub const DIGESTS_MAX: usize = 1024;
/// Most entries in one WANT, CLOSE, CLOSED or SETTLED message.
pub const BATCH_ENTRIES_MAX: usize = 512;
/// Most transports that a greeting tells of.
pub const TRANSPORTS_MAX: usize = 8;
/// Largest frame body of a greeting, in bytes: a peer that has not greeted yet costs no more.
pub const GREETING_BYTES_MAX: usize = 32 << 10;
/// Bytes that may wait on a control connection to be written. What is long, pages and listings, is
/// said only while little waits; a peer that lets more gather asks without reading.
pub const OUTBOUND_BYTES_MAX: usize = 16 << 20;
/// Bytes that may wait on every control connection, whatever others let gather.
pub const OUTBOUND_BYTES_OWN: usize = 256 << 10;
/// Bytes that may wait on all control connections of the process together, beyond what each has of
/// its own.
pub const OUTBOUND_BYTES_PROCESS_MAX: usize = 32 << 20;
/// Most big files that a sender has granted windows of and not yet answered Closed for.
pub const OPEN_FILES_MAX: usize = 128;
/// Most ranges in one entry's WANT, and in all entries' of one message.
pub const WANT_RANGES_MAX: usize = 16 << 10;
/// Most digests that a receiver keeps for chunks that no grant has told yet.
pub const EARLY_DIGESTS_MAX: usize = 4 * DIGESTS_MAX;
/// Most rails of a session, and so keys of a grant. Rail 0 is tcp; the others are pairs of RDMA
/// ports.
pub const RAILS_MAX: usize = 16;
/// Most sessions in one page of a server's status.
pub const STATUS_SESSIONS_MAX: usize = 16;
/// Most transfers and operations that are told of one session.
pub const STATUS_TRANSFERS_MAX: usize = 16;
/// Most ways of exposing memory that are told of one session.
pub const STATUS_WAYS_MAX: usize = 8;
/// Most kinds of remarks in one message.
pub const REMARKS_MAX: usize = 16;
/// Most entries that one remark names, and that are kept of one kind.
pub const REMARK_ENTRIES_MAX: usize = 4;
/// Most RDMA ports that one end tells of.
pub const RAIL_PORTS_MAX: usize = 16;
/// Most addresses of one port that are told.
pub const PORT_GIDS_MAX: usize = 8;
/// Most queue pairs of one rail.
pub const RAIL_QUEUE_PAIRS_MAX: usize = 8;
/// Most removed entries that one message tells.
pub const REMOVALS_MAX: usize = 128;
/// How often a chunk is read again after its digest did not match.
pub const REPAIRS_MAX: u32 = 3;
/// Longest text in a fault, greeting or log line from a peer, in bytes.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Payload bytes behind one reply header on a data connection. A piece of this size is still in
/// the second-level cache when it is hashed.
pub const SEGMENT_BYTES_MAX: u32 = 256 << 10;
/// Most data connections of one session.
pub const STREAMS_MAX: usize = 64;
/// Longest name of an export, in bytes.
pub const EXPORT_NAME_BYTES_MAX: usize = 64;
/// Most lines in one LISTING message.
pub const LISTING_LINES_MAX: usize = 512;
/// A LISTING message is sent once its lines reach about this many bytes.
pub const LISTING_BYTES_TARGET: usize = 128 << 10;
/// Names of directories being walked that one walk keeps in memory, in bytes; more are sorted on
/// disk.
pub const WALK_NAMES_BYTES_MAX: usize = 16 << 20;
/// Names of directories that all walks of the process keep in memory, in bytes, before even small
/// directories are sorted on disk.
pub const WALK_NAMES_BYTES_PROCESS_MAX: usize = 16 << 20;
/// Inodes with several links that a walk keeps in memory; more are kept on disk.
pub const LINKS_IN_MEMORY_MAX: usize = 64 << 10;
/// Directories that one source holds open.
pub const DIRECTORIES_OPEN_MAX: usize = 48;
/// Most READs that one data connection may have unanswered. Beyond what any engine's window asks of
/// one connection; small enough that a queue of requests is no burden.
pub const READS_PER_CONNECTION_MAX: usize = 64;

const _: () = assert!(LISTING_BYTES_TARGET + PATH_BYTES_MAX * 2 + TEXT_BYTES_MAX < FRAME_BYTES_MAX);
const _: () = assert!(OUTBOUND_BYTES_OWN < OUTBOUND_BYTES_MAX);
// One connection alone may use its maximum: none may hold more than is left.
const _: () = assert!(2 * OUTBOUND_BYTES_MAX <= OUTBOUND_BYTES_PROCESS_MAX);
const _: () = assert!(PACK_FILE_BYTES_MAX <= PACK_BYTES_MAX);
const _: () = assert!(PACK_BYTES_MAX <= WINDOW_BYTES);
const _: () = assert!(WINDOW_BYTES <= REGION_CREDIT_BYTES_DEFAULT);
const _: () = assert!(PAGE_BYTES_TARGET + XATTR_BYTES_MAX + 2 * PATH_BYTES_MAX < FRAME_BYTES_MAX);
const _: () = assert!(DIGESTS_MAX * 64 < FRAME_BYTES_MAX);
const _: () = assert!(FILTER_BYTES_MAX <= FILTERS_BYTES_MAX);
const _: () = assert!(WANT_RANGES_MAX * 16 + BATCH_ENTRIES_MAX * 16 < FRAME_BYTES_MAX);
// All values of a window of smallest chunks, and the one before, may come before its grant.
const _: () = assert!(WINDOW_BYTES / (64 << 10) < EARLY_DIGESTS_MAX as u64);
const _: () = assert!(PAGE_ITEMS_MAX <= BATCH_ENTRIES_MAX);
const _: () = assert!((1 + TRANSPORTS_MAX * 2) * (TEXT_BYTES_MAX + 8) + 64 < GREETING_BYTES_MAX);
const _: () =
    assert!(PACK_FILES_MAX * 128 + GRANT_EXTENTS_MAX * 16 + RAILS_MAX * 18 < FRAME_BYTES_MAX);
const _: () = assert!(REMOVALS_MAX * (PATH_BYTES_MAX + TEXT_BYTES_MAX + 16) < FRAME_BYTES_MAX);
const _: () = assert!(BATCH_ENTRIES_MAX * (TEXT_BYTES_MAX + 16) < FRAME_BYTES_MAX);
// An answer: a port of the server, a half of its rail and a reason for each port of the offer.
const _: () = assert!(
    RAIL_PORTS_MAX * (2 * TEXT_BYTES_MAX + 128 + PORT_GIDS_MAX * 17 + RAIL_QUEUE_PAIRS_MAX * 8)
        < FRAME_BYTES_MAX
);
const _: () = assert!(RAILS_MAX <= RAIL_PORTS_MAX + 1);
// A page of status: of each session two texts, its rails, ways and transfers.
const _: () = assert!(
    STATUS_SESSIONS_MAX
        * ((2 + RAILS_MAX + 2 * STATUS_WAYS_MAX + STATUS_TRANSFERS_MAX) * (TEXT_BYTES_MAX + 64)
            + 128)
        + TRANSPORTS_MAX * (TEXT_BYTES_MAX + 32)
        < FRAME_BYTES_MAX
);
