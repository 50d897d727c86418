//! What can be typed: the one definition behind `-h`, `--help`, the manual and the completions.
//!
//! Words come out as they were typed; what they mean together is decided in `job`. Nothing here
//! has side effects.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Effects, Styles};
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use rdcp::limits::STREAMS_MAX;
use rdcp::options::{HashKind, Overwrite, RdmaMemory, TransportChoice};
use rdcp::units::ChunkSize;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().effects(Effects::BOLD))
    .usage(AnsiColor::Green.on_default().effects(Effects::BOLD))
    .literal(AnsiColor::Cyan.on_default().effects(Effects::BOLD))
    .placeholder(AnsiColor::Cyan.on_default());

/// Heading of what is the same in every command.
const GENERAL: &str = "General options";
const CONNECTION: &str = "Connection";
const OUTPUT: &str = "Output";
const SELECTION: &str = "What is copied";
const DESTINATION: &str = "At the destination";
const DATA_PATH: &str = "How data travels";
const FAILURES: &str = "When something fails";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "rdcp",
    version,
    about = "Copy files and trees between hosts, every byte verified",
    long_about = "Copies files and trees between this host and one that runs rdcpd, every byte verified \
        with a digest, over the fastest transport that works.\n\n\
        A remote place is written host:/export/path, [v6address]:/export/path or \
        rdcp://host:port/export/path. An export is a directory that a server offers under a name; \
        'rdcp ls host:/' lists those that you may see. Whatever has a colon before its first slash is \
        remote; write ./a:b for a local file of that name.",
    after_help = "'rdcp COMMAND -h' shows the options of a command, --help tells more.",
    after_long_help = long_tail(MAIN_EXAMPLES),
    styles = STYLES,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_flag = true
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,

    /// Log what happens on standard error, with transfer ids, and sum a copy up; -vv and -vvv tell more
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = GENERAL)]
    pub(crate) verbose: u8,

    /// Show help; -h is short, --help has examples and the exit statuses
    // Ours instead of clap's, so that it does not stand before the options that are looked for.
    #[arg(short, long, global = true, action = clap::ArgAction::Help, help_heading = GENERAL)]
    help: Option<bool>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Copy from a server to this host
    ///
    /// Copies REMOTE files and trees to LOCAL. A directory becomes LOCAL/name; with a slash at the
    /// end of REMOTE its contents go into LOCAL. A file goes into LOCAL if LOCAL ends in a slash, is
    /// a directory, or there are several sources; otherwise LOCAL is its new name. Files that are
    /// there with the same size and time of modification are left alone, so running the same command
    /// again is cheap and fetches what is missing.
    ///
    /// If LOCAL is -, one file is written to standard output, every chunk verified before it is
    /// handed on.
    #[command(after_long_help = long_tail(PULL_EXAMPLES))]
    Pull(PullArgs),

    /// Copy from this host to a server
    ///
    /// Copies LOCAL files and trees to REMOTE. A directory becomes REMOTE/name; with a slash at the
    /// end of LOCAL its contents go into REMOTE. A file goes into REMOTE if REMOTE ends in a slash,
    /// is a directory, or there are several sources; otherwise REMOTE is its new name. Files that
    /// are there with the same size and time of modification are left alone.
    #[command(after_long_help = long_tail(PUSH_EXAMPLES))]
    Push(PushArgs),

    /// Copy either way, whichever the arguments say
    ///
    /// With a remote destination it is push, with remote sources it is pull; all rules and options
    /// are theirs. Two remote sides are not supported, and for two local ones there is cp(1).
    #[command(after_long_help = long_tail(CP_EXAMPLES))]
    Cp(CpArgs),

    /// List a directory, or the exports of a server
    ///
    /// Names are shown one a line, escaped so that every line is one harmless name; --json has them
    /// byte for byte.
    #[command(after_long_help = long_tail(LS_EXAMPLES))]
    Ls(LsArgs),

    /// Show what one remote file or directory is
    #[command(after_long_help = long_tail(STAT_EXAMPLES))]
    Stat(StatArgs),

    /// Print digests of local or remote files, as sha256sum and b3sum do
    ///
    /// Digests are computed where the files are, always from their content. The lines can be checked
    /// with 'sha256sum -c' or 'b3sum -c'. Remote paths are printed as a pull into the current
    /// directory would name them: host:/data/run as run/..., host:/data/run/ without the run/.
    #[command(after_long_help = long_tail(SUM_EXAMPLES))]
    Sum(SumArgs),

    /// Compare a local and a remote file or tree by content
    ///
    /// Reads both sides whole, each where it lies, and compares digests of all regular files. Lists
    /// what is missing on either side or differs; exits with 13 if anything does. Symbolic links,
    /// empty directories and metadata are not compared.
    #[command(after_long_help = long_tail(VERIFY_EXAMPLES))]
    Verify(VerifyArgs),

    /// Remove remote files or trees
    #[command(after_long_help = long_tail(RM_EXAMPLES))]
    Rm(RmArgs),

    /// Make remote directories
    #[command(after_long_help = long_tail(MKDIR_EXAMPLES))]
    Mkdir(MkdirArgs),

    /// Measure the round trip to a server and show which transports it offers, and why
    #[command(after_long_help = long_tail(PING_EXAMPLES))]
    Ping(PingArgs),

    /// Find out what keeps this machine from RDMA, and the command that mends each thing
    ///
    /// Looks at libraries, devices, their ports and addresses, device files, the limit on locked
    /// memory, and tries how files can be registered. With HOST also at the route to it, and
    /// connects to its daemon to see whether rails come up. Changes nothing, and needs no privileges.
    ///
    /// Ends with 0 if a transfer would use RDMA: with HOST, rails came up; without, a port can be
    /// used and memory can be registered. Else with 10.
    #[command(after_long_help = long_tail(DOCTOR_EXAMPLES))]
    Doctor(DoctorArgs),

    /// Print a completion script for a shell
    #[command(after_long_help = long_tail(COMPLETIONS_EXAMPLES))]
    Completions(CompletionsArgs),

    /// Print the manual as roff, or write all its pages
    ///
    /// The page of the daemon, rdcpd(1), comes from the daemon itself: rdcpd --man.
    #[command(after_long_help = long_tail(MAN_EXAMPLES))]
    Man(ManArgs),
}

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
    /// Copy directories with all below them
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

    /// When to replace a file that exists
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, help_heading = DESTINATION)]
    pub(crate) overwrite: OverwriteArg,
    /// Replace only files that are older than their source; the same as --overwrite older
    #[arg(short, long, conflicts_with = "overwrite", help_heading = DESTINATION)]
    pub(crate) update: bool,
    /// Make missing parents of the destination
    #[arg(long, help_heading = DESTINATION)]
    pub(crate) mkpath: bool,
    /// Do not wait until files are safe on disk before they count as done
    ///
    /// Faster for many small files. If the destination loses power soon after, files that were
    /// reported as done may be missing or empty.
    #[arg(long, help_heading = DESTINATION)]
    pub(crate) no_fsync: bool,

    /// The digest that proves every chunk
    #[arg(long, value_enum, value_name = "HASH", default_value_t, help_heading = DATA_PATH)]
    pub(crate) hash: HashArg,
    /// The way that bytes take; a choice that is not available is an error, never replaced
    #[arg(long, value_enum, value_name = "NAME", default_value_t, help_heading = DATA_PATH)]
    pub(crate) transport: TransportArg,
    /// How files get before RDMA adapters when this end sends; the best that works is found by trying
    #[arg(long, value_enum, value_name = "WAY", default_value_t, help_heading = DATA_PATH)]
    pub(crate) rdma_memory: RdmaMemoryArg,
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
    /// Data connections to the server [default: one for each lane, at most 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=STREAMS_MAX as i64),
          help_heading = DATA_PATH)]
    pub(crate) streams: Option<u16>,

    /// End at the first entry that fails instead of going on with the rest
    #[arg(long, help_heading = FAILURES)]
    pub(crate) fail_early: bool,
    /// End if nothing has moved for this long, like 30s or 5m [default: 120s, and 10s for each step of
    /// connecting]
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

/// How the server is trusted.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConnectionArgs {
    /// Trust a host that is not known yet, and remember its key
    ///
    /// Without it, an unknown host is asked about on a terminal and refused elsewhere. A host whose
    /// key has changed is always refused.
    #[arg(long, help_heading = CONNECTION)]
    pub(crate) accept_new: bool,
    /// Where keys of known hosts are kept [default: ~/.config/rdcp/known_hosts]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = CONNECTION)]
    pub(crate) known_hosts: Option<PathBuf>,
}

/// `--json` of the commands that look.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LookOutput {
    /// Tell everything as JSON, an object a line; the last is the summary
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

/// `rdcp ls`.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Directories, files, or host:/ for the exports
    #[arg(required = true, value_name = "REMOTE", value_hint = ValueHint::Other)]
    pub(crate) paths: Vec<OsString>,
    /// Show kind, mode, owner, size in bytes and time too
    #[arg(short, long)]
    pub(crate) long: bool,
    /// List all below, depth first
    #[arg(short, long, short_alias = 'R')]
    pub(crate) recursive: bool,
    #[command(flatten)]
    pub(crate) output: LookOutput,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// `rdcp stat`.
#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    /// Remote files and directories
    #[arg(required = true, value_name = "REMOTE", value_hint = ValueHint::Other)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) output: LookOutput,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// `rdcp sum`.
#[derive(Debug, Args)]
pub(crate) struct SumArgs {
    /// Files and directories, local or remote
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<OsString>,
    /// Which digest
    #[arg(long, value_enum, value_name = "HASH", default_value_t)]
    pub(crate) hash: SumHashArg,
    /// All files below directories
    #[arg(short, long)]
    pub(crate) recursive: bool,
    #[command(flatten)]
    pub(crate) output: LookOutput,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// `rdcp verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Local file or directory
    #[arg(value_name = "LOCAL", value_hint = ValueHint::AnyPath)]
    pub(crate) local: OsString,
    /// The remote file or directory that is to be the same
    #[arg(value_name = "REMOTE", value_hint = ValueHint::Other)]
    pub(crate) remote: OsString,
    /// Which digest
    #[arg(long, value_enum, value_name = "HASH", default_value_t)]
    pub(crate) hash: SumHashArg,
    /// Say nothing of what differs; the exit status tells
    #[arg(short, long, help_heading = OUTPUT)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) output: LookOutput,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// `rdcp rm`.
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Remote files, or with -r trees
    #[arg(required = true, value_name = "REMOTE", value_hint = ValueHint::Other)]
    pub(crate) paths: Vec<OsString>,
    /// Remove directories with all below them
    #[arg(short, long)]
    pub(crate) recursive: bool,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// `rdcp mkdir`.
#[derive(Debug, Args)]
pub(crate) struct MkdirArgs {
    /// Remote directories to make
    #[arg(required = true, value_name = "REMOTE", value_hint = ValueHint::Other)]
    pub(crate) paths: Vec<OsString>,
    /// Make missing parents too; a directory that exists is fine
    #[arg(short, long)]
    pub(crate) parents: bool,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// `rdcp ping`.
#[derive(Debug, Args)]
pub(crate) struct PingArgs {
    /// The server: host, host:port or rdcp://host:port
    #[arg(value_name = "HOST", value_hint = ValueHint::Hostname)]
    pub(crate) host: OsString,
    /// How many round trips are measured
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) count: u16,
    #[command(flatten)]
    pub(crate) output: LookOutput,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// `rdcp doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// A server to try: host, host:port or rdcp://host:port
    #[arg(value_name = "HOST", value_hint = ValueHint::Hostname)]
    pub(crate) host: Option<OsString>,
    /// Try the file system of this directory or file; may be repeated [default: . and /dev/shm]
    #[arg(long = "path", value_name = "DIR", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// Tell everything as one JSON object
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// `rdcp completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// `rdcp man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The command whose page is printed; without it rdcp(1)
    #[arg(value_name = "COMMAND")]
    pub(crate) page: Option<String>,
    /// Write all pages into this directory instead
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "page")]
    pub(crate) dir: Option<PathBuf>,
}

/// `--overwrite`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OverwriteArg {
    /// If size or time of modification differ
    #[default]
    IfDifferent,
    /// If it is older than its source
    Older,
    /// Not at all; it counts as present
    Never,
    /// Not at all; it counts as failed
    Error,
}

impl From<OverwriteArg> for Overwrite {
    fn from(arg: OverwriteArg) -> Self {
        match arg {
            OverwriteArg::IfDifferent => Self::IfDifferent,
            OverwriteArg::Older => Self::Older,
            OverwriteArg::Never => Self::Never,
            OverwriteArg::Error => Self::Error,
        }
    }
}

/// `--hash` of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum HashArg {
    /// What b3sum prints; the fastest
    #[default]
    Blake3,
    /// What sha256sum prints
    Sha256,
    /// Nothing is verified
    None,
}

impl From<HashArg> for HashKind {
    fn from(arg: HashArg) -> Self {
        match arg {
            HashArg::Blake3 => Self::Blake3,
            HashArg::Sha256 => Self::Sha256,
            HashArg::None => Self::None,
        }
    }
}

/// `--hash` where there must be one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SumHashArg {
    /// What b3sum prints; the fastest
    #[default]
    Blake3,
    /// What sha256sum prints
    Sha256,
}

impl From<SumHashArg> for HashKind {
    fn from(arg: SumHashArg) -> Self {
        match arg {
            SumHashArg::Blake3 => Self::Blake3,
            SumHashArg::Sha256 => Self::Sha256,
        }
    }
}

/// `--rdma-memory`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RdmaMemoryArg {
    /// The best that works for each file system
    #[default]
    Auto,
    /// Mapped, and faulted in by the adapter
    Odp,
    /// Mapped and pinned
    Mmap,
    /// Copied
    Pool,
}

impl From<RdmaMemoryArg> for RdmaMemory {
    fn from(arg: RdmaMemoryArg) -> Self {
        match arg {
            RdmaMemoryArg::Auto => Self::Auto,
            RdmaMemoryArg::Odp => Self::Odp,
            RdmaMemoryArg::Mmap => Self::Mmap,
            RdmaMemoryArg::Pool => Self::Pool,
        }
    }
}

/// `--transport`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportArg {
    /// The best that works
    #[default]
    Auto,
    /// RDMA READs
    Rdma,
    /// TCP, wherever there is a network
    Tcp,
    /// A copy within this host
    Local,
}

impl From<TransportArg> for TransportChoice {
    fn from(arg: TransportArg) -> Self {
        match arg {
            TransportArg::Auto => Self::Auto,
            TransportArg::Rdma => Self::Rdma,
            TransportArg::Tcp => Self::Tcp,
            TransportArg::Local => Self::Local,
        }
    }
}

/// `1048576`, `1M`, `1MiB`: units are powers of 1024, as chunks are.
fn chunk_size(text: &str) -> Result<ChunkSize, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        _ => return Err("expected a number with K or M behind it, like 256K or 4M".to_owned()),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .and_then(ChunkSize::from_bytes)
        .ok_or_else(|| "a chunk is 64K, 128K, 256K, 512K, 1M, 2M, 4M, 8M or 16M".to_owned())
}

/// `90` (seconds), `90s`, `1m30s`, `500ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a duration like 90s, 5m or 1h30m".to_owned();
    let parsed = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        Duration::from_secs(text.parse().map_err(|_| expected())?)
    } else {
        let signed = text
            .parse::<jiff::SignedDuration>()
            .map_err(|_| expected())?;
        signed.try_into().map_err(|_| expected())?
    };
    if parsed.is_zero() {
        return Err("must be longer than nothing".to_owned());
    }
    Ok(parsed)
}

/// What stands below the options in `--help`: examples, then the statuses.
fn long_tail(examples: &str) -> String {
    format!(
        "Examples:\n{examples}\n\nExit status:\n{}",
        crate::exit::table_text().trim_end()
    )
}

/// The examples of a page, which the manual shows as well.
pub(crate) fn examples(command: &str) -> &'static str {
    match command {
        "pull" => PULL_EXAMPLES,
        "push" => PUSH_EXAMPLES,
        "cp" => CP_EXAMPLES,
        "ls" => LS_EXAMPLES,
        "stat" => STAT_EXAMPLES,
        "sum" => SUM_EXAMPLES,
        "verify" => VERIFY_EXAMPLES,
        "rm" => RM_EXAMPLES,
        "mkdir" => MKDIR_EXAMPLES,
        "ping" => PING_EXAMPLES,
        "doctor" => DOCTOR_EXAMPLES,
        "completions" => COMPLETIONS_EXAMPLES,
        "man" => MAN_EXAMPLES,
        _ => MAIN_EXAMPLES,
    }
}

const MAIN_EXAMPLES: &str = "  \
  rdcp ls gpu7:/                              what gpu7 offers
  rdcp pull gpu7:/data/model.safetensors .    fetch a file
  rdcp push -a results/ gpu7:/scratch/me/     send what is in results
  rdcp verify results gpu7:/scratch/me        compare both by content";
const PULL_EXAMPLES: &str = "  \
  rdcp pull gpu7:/data/model.safetensors .       a file, into this directory
  rdcp pull -r gpu7:/ckpt/step-9000 /mnt/nvme    a tree, as /mnt/nvme/step-9000
  rdcp pull -a gpu7:/ckpt/step-9000/ here        what is in it, into here, with all metadata
  rdcp pull gpu7:/data/log.zst - | zstdcat       a file, to standard output
  rdcp pull -r --json gpu7:/data/set . | jq .    told as JSON lines";
const PUSH_EXAMPLES: &str = "  \
  rdcp push disk.img gpu7:/images/            a file, into a directory
  rdcp push -a run-17 gpu7:/results           a tree, as run-17 in the export results
  rdcp push -a -u run-17/ gpu7:/results/x     what is in it, unless newer files are there
  rdcp push --mkpath a b gpu7:/data/new/dir/  several files, into a directory that is made";
const CP_EXAMPLES: &str = "  \
  rdcp cp gpu7:/data/x.tar .        pull
  rdcp cp -r run-17 gpu7:/results   push";
const LS_EXAMPLES: &str = "  \
  rdcp ls gpu7:/             the exports
  rdcp ls -l gpu7:/data      what is in one, with sizes
  rdcp ls -r gpu7:/data/run  all below a directory";
const STAT_EXAMPLES: &str = "  \
  rdcp stat gpu7:/data/model.safetensors
  rdcp stat --json gpu7:/data/run | jq .size";
const SUM_EXAMPLES: &str = "  \
  rdcp sum gpu7:/data/x.tar                                    BLAKE3, computed on gpu7
  rdcp sum --hash sha256 -r gpu7:/data/run | sha256sum -c      check ./run against gpu7
  rdcp sum -r run                                              local files";
const VERIFY_EXAMPLES: &str = "  \
  rdcp verify run gpu7:/data/run
  rdcp verify -q x.tar gpu7:/data/x.tar || echo differs";
const RM_EXAMPLES: &str = "  \
  rdcp rm gpu7:/scratch/old.tar
  rdcp rm -r gpu7:/scratch/run-3";
const MKDIR_EXAMPLES: &str = "  \
  rdcp mkdir gpu7:/scratch/run-4
  rdcp mkdir -p gpu7:/scratch/a/b/c";
const PING_EXAMPLES: &str = "  \
  rdcp ping gpu7
  rdcp ping -n 100 --json gpu7:20471";
const DOCTOR_EXAMPLES: &str = "  \
  rdcp doctor                               this machine alone
  rdcp doctor --path /srv/data gpu7         and how /srv/data is served, and rails to gpu7
  rdcp doctor --json | jq .would_use_rdma";
const COMPLETIONS_EXAMPLES: &str = "  \
  rdcp completions bash > /etc/bash_completion.d/rdcp
  rdcp completions zsh > ~/.zfunc/_rdcp
  rdcp completions fish > ~/.config/fish/completions/rdcp.fish";
const MAN_EXAMPLES: &str = "  \
  rdcp man | man -l -
  rdcp man pull | man -l -
  rdcp man --dir /usr/share/man/man1
  rdcpd --man > /usr/share/man/man1/rdcpd.1";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_option_and_command_is_documented() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                let help = argument
                    .get_help()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                assert!(
                    !help.is_empty(),
                    "{}: {}",
                    command.get_name(),
                    argument.get_id()
                );
                assert!(
                    !help.ends_with('.'),
                    "{}: {}",
                    command.get_name(),
                    argument.get_id()
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn help_shows_every_option_examples_and_statuses() {
        for command in Cli::command().get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            for argument in command
                .get_arguments()
                .filter(|argument| !argument.is_hide_set())
            {
                if let Some(long) = argument.get_long() {
                    assert!(
                        help.contains(&format!("--{long}")),
                        "{}: --{long}",
                        command.get_name()
                    );
                }
            }
            assert!(help.contains("Examples:\n"), "{}", command.get_name());
            assert!(
                help.contains("  130  interrupted"),
                "{}",
                command.get_name()
            );
        }
    }

    #[test]
    fn chunk_sizes() {
        for (text, bytes) in [
            ("64K", 64 << 10),
            ("1M", 1 << 20),
            ("16MiB", 16 << 20),
            ("65536", 65536),
        ] {
            assert_eq!(chunk_size(text).unwrap().bytes(), bytes, "{text}");
        }
        for text in [
            "",
            "0",
            "3M",
            "32K",
            "32M",
            "1G",
            "-1",
            "M",
            "1 M",
            "99999999999999999999",
        ] {
            assert!(chunk_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, millis) in [
            ("90", 90_000),
            ("90s", 90_000),
            ("2m", 120_000),
            ("500ms", 500),
        ] {
            assert_eq!(
                duration(text).unwrap(),
                Duration::from_millis(millis),
                "{text}"
            );
        }
        for text in [
            "",
            "0",
            "0s",
            "-1s",
            "x",
            "1 fortnight",
            "99999999999999999999",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn update_and_overwrite_exclude_each_other() {
        let words = ["rdcp", "pull", "-u", "--overwrite", "never", "h:/e/f", "."];
        assert!(Cli::try_parse_from(words).is_err());
        assert!(Cli::try_parse_from(["rdcp", "pull", "-u", "h:/e/f", "."]).is_ok());
    }
}
