//! The commands that look at servers and this machine, the small changes, and the manual.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use clap_complete::Shell;
use rdcp::limits::STREAMS_MAX;

use super::values::{SumHashArg, TransportArg, bench_time, duration, size};
use super::{ConnectionArgs, OUTPUT};

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
    pub(crate) output: LookOutput,
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
    pub(crate) output: LookOutput,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// `rdcp clean`.
#[derive(Debug, Args)]
pub(crate) struct CleanArgs {
    /// Directories, local or remote [default: .]
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<OsString>,
    /// Remove what did not change for so long, like 90m or 24h, whether it can be gone on with or not
    #[arg(long, value_name = "AGE", value_parser = duration)]
    pub(crate) older_than: Option<Duration>,
    /// Remove all that no copy works on, however young
    #[arg(long, conflicts_with = "older_than")]
    pub(crate) all: bool,
    /// Remove nothing; say what would be removed, and why
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) output: LookOutput,
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

/// `rdcp status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The server: host, host:port or rdcp://host:port
    #[arg(value_name = "HOST", value_hint = ValueHint::Hostname)]
    pub(crate) host: OsString,
    #[command(flatten)]
    pub(crate) output: LookOutput,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// `rdcp bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// The server: host, host:port or rdcp://host:port
    #[arg(value_name = "HOST", value_hint = ValueHint::Hostname)]
    pub(crate) host: OsString,
    /// The transport to measure; auto is each of them
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    pub(crate) transport: TransportArg,
    /// How long each is measured, at most a minute
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = bench_time)]
    pub(crate) time: Duration,
    /// Bytes that each reads at most, like 512M or 8G [default: what the time allows]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) size: Option<u64>,
    /// Data connections to the server by tcp [default: one for each core, at most 2;
    /// 8 to a server that is 5 ms away or more]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=STREAMS_MAX as i64))]
    pub(crate) streams: Option<u16>,
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

/// `rdcp keygen`.
#[derive(Debug, Args)]
pub(crate) struct KeygenArgs {
    /// The file of the key [default: ~/.config/rdcp/identity.pem]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) identity: Option<PathBuf>,
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
    /// The command whose page is printed, or `failures` for rdcp-failures(1); without it rdcp(1)
    #[arg(value_name = "PAGE")]
    pub(crate) page: Option<String>,
    /// Write all pages into this directory instead, with that of the rdcpd that lies beside this rdcp
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "page")]
    pub(crate) dir: Option<PathBuf>,
}
