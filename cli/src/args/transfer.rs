//! The commands that copy, and their options.

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::time::Duration;

use clap::{Args, ValueHint};
use rdcp::limits::STREAMS_MAX;
use rdcp::units::ChunkSize;

use super::values::{
    HashArg, OverwriteArg, RdmaConnectArg, RdmaMemoryArg, TransportArg, chunk_size, duration, rate,
};
use super::{ConnectionArgs, DATA_PATH, DESTINATION, FAILURES, FilterArgs, OUTPUT, SELECTION};

/// `rdcp pull`.
#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// Remote files and trees, all on one host
    #[arg(required = true, value_name = "REMOTE", value_hint = ValueHint::Other)]
    pub(crate) sources: Vec<OsString>,
    /// Local destination; - is standard output
    #[arg(value_name = "LOCAL", value_hint = ValueHint::AnyPath)]
    pub(crate) destination: OsString,
    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
    #[command(flatten)]
    pub(crate) output: TransferOutput,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// `rdcp push`.
#[derive(Debug, Args)]
pub(crate) struct PushArgs {
    /// Local files and trees
    #[arg(required = true, value_name = "LOCAL", value_hint = ValueHint::AnyPath)]
    pub(crate) sources: Vec<OsString>,
    /// Remote destination
    #[arg(value_name = "REMOTE", value_hint = ValueHint::Other)]
    pub(crate) destination: OsString,
    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
    #[command(flatten)]
    pub(crate) output: TransferOutput,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// `rdcp cp`.
#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// Sources: all local, or all on one host
    #[arg(required = true, value_name = "SRC", value_hint = ValueHint::AnyPath)]
    pub(crate) sources: Vec<OsString>,
    /// Destination on the other side
    #[arg(value_name = "DST", value_hint = ValueHint::AnyPath)]
    pub(crate) destination: OsString,
    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
    #[command(flatten)]
    pub(crate) output: TransferOutput,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// What a copy carries, how it treats what is there, and how data travels.
#[derive(Clone, Debug, Default, PartialEq, Args)]
pub(crate) struct TransferArgs {
    /// Copy directories with all below them, but for devices, FIFOs and sockets
    ///
    /// These are named in a warning and skipped, with -r and -a alike, and are no failure.
    #[arg(short, long, help_heading = SELECTION)]
    pub(crate) recursive: bool,
    /// Carry all that can be carried: -r with modes, symbolic and hard links, user attributes, ACLs,
    /// and owners where that is allowed
    ///
    /// Set-user-id and set-group-id bits are never carried. Without -a, symbolic links below a
    /// directory are skipped with a warning, and each hard link becomes a file. A symbolic link that
    /// is named as a source is copied as a link with -a; without -a, or with a slash at its end, it
    /// stands for what it leads to.
    #[arg(short, long, help_heading = SELECTION)]
    pub(crate) archive: bool,
    /// Carry permission bits; times are always carried
    #[arg(short, long = "perms", help_heading = SELECTION)]
    pub(crate) perms: bool,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    /// Say what would be done about each entry, and why, and do nothing
    ///
    /// A line for each on standard output: copy, update or keep, the path, and the reason. Neither side
    /// is changed; only the key of a host that is not known yet is asked about and kept as ever. The
    /// exit status is that of the copy, as far as looking can tell: space on disk is not reckoned.
    #[arg(short = 'n', long, help_heading = SELECTION)]
    pub(crate) dry_run: bool,

    /// When to replace a file that exists
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, help_heading = DESTINATION)]
    pub(crate) overwrite: OverwriteArg,
    /// Replace only files that are older than their source; the same as --overwrite older
    #[arg(short, long, conflicts_with = "overwrite", help_heading = DESTINATION)]
    pub(crate) update: bool,
    /// Remove what destination directories hold and the source does not
    ///
    /// With -r or -a, and only in the directories that are copied: DST/name, or DST itself if the source
    /// ends in a slash. It is done last, and only if nothing failed. What stands in the way of an entry,
    /// a directory in the place of a file or the reverse, is removed just before. Never removed are
    /// what --exclude leaves out, other mounts, what lies in a directory whose listing was not complete,
    /// and what other runs are writing; symbolic links are removed themselves. An empty source is
    /// refused (see --allow-empty). A server asks for the rights to delete and to list. Look first with
    /// -n.
    #[arg(long, help_heading = DESTINATION)]
    pub(crate) delete: bool,
    /// Remove at most N entries; if there are more, they stay, and the run fails
    #[arg(long, value_name = "N", requires = "delete", help_heading = DESTINATION)]
    pub(crate) max_delete: Option<u64>,
    /// With --delete, let a source that is empty empty its destination
    ///
    /// Without it that is refused: an empty directory is often one where a file system is not mounted.
    #[arg(long, requires = "delete", help_heading = DESTINATION)]
    pub(crate) allow_empty: bool,
    /// Make missing parents of the destination
    #[arg(long, help_heading = DESTINATION)]
    pub(crate) mkpath: bool,
    /// Do not wait until files are safe on disk before they count as done
    ///
    /// Faster for many small files. If the destination loses power soon after, files that were
    /// reported as done may be missing or empty.
    #[arg(long, help_heading = DESTINATION)]
    pub(crate) no_fsync: bool,

    /// Tell files apart by content: the same size and time are no proof that a file is there
    ///
    /// A file with the size of its source is read and hashed at both ends. What is the same stays and
    /// counts as unchanged, or as updated if its time or what else is carried differed; of what is not,
    /// only the chunks that differ travel. Files up to 256 KiB travel to be compared. Not with --hash none.
    #[arg(short, long, conflicts_with = "whole_file", help_heading = DESTINATION)]
    pub(crate) checksum: bool,
    /// Copy files whole, whatever an older copy at the destination has already
    ///
    /// Without it, a file that replaces an older copy of itself takes from that what is the same, and
    /// only the chunks that differ travel; each is proved by the digest that the source has now. That
    /// holds for files that have at least four chunks (--chunk) in common with the older copy's length,
    /// whether they grew or shrank, and not for --hash none. A push does it where the client's key may
    /// read, since which chunks are asked for tells what is there. What is compared is read and hashed at
    /// both ends: where the network is faster than that, or nothing will be the same, -W is faster.
    #[arg(short = 'W', long, help_heading = DESTINATION)]
    pub(crate) whole_file: bool,
    /// Write what differs into the file that is there, instead of beside it and renamed
    ///
    /// Needs no space for a second copy, and keeps the file's identity for those who have it open. But it
    /// is not atomic: until the copy is complete the file is part old and part new, and so it stays if the
    /// copy fails or is interrupted; its time is set last, so the same command mends it. With -W, --hash
    /// none, or a client's key that may not read, the file is emptied first. A file with several names
    /// (hard links) is refused, and a symbolic link is replaced as ever; what is not there yet is made
    /// beside and renamed. Not with -u.
    #[arg(long, conflicts_with = "update", help_heading = DESTINATION)]
    pub(crate) inplace: bool,
    /// Do not go on with what an interrupted copy left, and leave nothing of one
    ///
    /// Without it, an interrupted copy leaves what it has of a file that takes long under a hidden name,
    /// .rdcp-*.part, with a journal of what is proved, and the same command goes on with it: what is
    /// there is proved again where it lies, and the rest is fetched. That holds for files of 8 MiB and
    /// more with the same --hash and --chunk, not for --hash none, and only while the source is what it
    /// was; otherwise the file is fetched whole. What nobody goes on with is removed by the first copy
    /// into the same directory after seven days.
    #[arg(long, help_heading = DESTINATION)]
    pub(crate) no_resume: bool,

    /// The digest that proves every chunk
    #[arg(long, value_enum, value_name = "HASH", default_value_t, help_heading = DATA_PATH)]
    pub(crate) hash: HashArg,
    /// The way that bytes take; a choice that is not available is an error, never replaced
    #[arg(long, value_enum, value_name = "NAME", default_value_t, help_heading = DATA_PATH)]
    pub(crate) transport: TransportArg,
    /// How files get before RDMA adapters when this end sends; the best that works is found by trying
    #[arg(long, value_enum, value_name = "WAY", default_value_t, help_heading = DATA_PATH)]
    pub(crate) rdma_memory: RdmaMemoryArg,
    /// How RDMA queue pairs are connected
    #[arg(long, value_enum, value_name = "WAY", default_value_t, help_heading = DATA_PATH)]
    pub(crate) rdma_connect: RdmaConnectArg,
    /// RDMA devices to use: mlx5_0, a port as mlx5_0:1, an interface as eth0, or a GUID [default: all]
    #[arg(long, value_name = "DEVICE,...", value_delimiter = ',', help_heading = DATA_PATH)]
    pub(crate) rdma_device: Vec<String>,
    /// The one address (GID) of each RDMA port to use, by its index [default: the best that fits]
    #[arg(long, value_name = "N", help_heading = DATA_PATH)]
    pub(crate) rdma_gid_index: Option<u8>,
    /// DSCP and ECN bits of RDMA packets [default: 0]
    #[arg(long, value_name = "BITS", help_heading = DATA_PATH)]
    pub(crate) rdma_traffic_class: Option<u8>,
    /// InfiniBand's service level or RoCE's priority, 0 to 15 [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=15),
          help_heading = DATA_PATH)]
    pub(crate) rdma_service_level: Option<u8>,
    /// RDMA queue pairs for each pair of ports, 1 to 8 [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8),
          help_heading = DATA_PATH)]
    pub(crate) rdma_queue_pairs: Option<u8>,
    /// Unit of verification and repair: a power of two from 64K to 16M [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = chunk_size, help_heading = DATA_PATH)]
    pub(crate) chunk: Option<ChunkSize>,
    /// Read at most so many bytes a second: 50M is 50 MiB a second
    ///
    /// Counted is the content of files, what is read again too, on all connections together. Chunks of
    /// 1M need 128K at least, larger ones more.
    #[arg(long, value_name = "RATE", value_parser = rate, help_heading = DATA_PATH)]
    pub(crate) bwlimit: Option<NonZeroU64>,
    /// Data connections to the server [default: one for each core, at most 2;
    /// 8 to a server that is 5 ms away or more]
    ///
    /// On a long path that loses packets more of them carry more, as each is slowed down by its own losses
    /// only: with 1 % lost and 20 ms each way, 8 were twice as fast as one, or as curl.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=STREAMS_MAX as i64),
          help_heading = DATA_PATH)]
    pub(crate) streams: Option<u16>,

    /// End at the first entry that fails instead of going on with the rest
    #[arg(long, help_heading = FAILURES)]
    pub(crate) fail_early: bool,
    /// End if nothing has moved for this long, like 30s or 5m [default: 120s, and 10s for each step of
    /// connecting]
    ///
    /// Something has moved when a chunk or 64 KiB came over, or a file was done with; a server that only
    /// says that it is there moves nothing. A connection that is lost in a copy is made anew for as long,
    /// and the copy goes on.
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = FAILURES)]
    pub(crate) timeout: Option<Duration>,
}

/// What a copy tells while it runs.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TransferOutput {
    /// No progress bar, summary or warnings; errors only
    #[arg(short, long, help_heading = OUTPUT)]
    pub(crate) quiet: bool,
    /// Tell everything as JSON, an object a line, on standard output
    ///
    /// Types of objects: start, progress (at most two a second), file, directory, symlink, warning,
    /// error, and summary, which comes last and exactly once, with the exit status and whether trying
    /// again may help. What failed has its side (local or remote) and its path there. The lines go to
    /// standard error if the file itself goes to standard output.
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}
