//! From what was typed to a job that can run, or a usage error that says what to write instead.
//!
//! Directions, hosts and destinations are settled here, before anything is opened or connected.
//! Nothing here has side effects.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use rdcp::options::{Deleting, HashKind, Overwrite, RdmaOptions, TransferOptions, TransportChoice};
use rdcp::remote::Remote;
use rdcp::{Cleaning, Error, ErrorKind};

use crate::args::{
    CleanArgs, Command, ConnectionArgs, CpArgs, FilterArgs, TransferArgs, TransferOutput,
    VerifyArgs,
};
use crate::escape;
use crate::output::JsonTo;

/// What is to be done, complete.
#[derive(Debug)]
pub(crate) enum Job {
    /// Copy a tree or files.
    Transfer(Box<TransferJob>),
    /// Write one file to standard output.
    Print {
        source: Remote,
        connection: ConnectionArgs,
        timeout: Option<Duration>,
        output: TransferOutput,
    },
    /// List directories or exports.
    List {
        paths: Vec<Remote>,
        long: bool,
        recursive: bool,
        connection: ConnectionArgs,
    },
    /// Show what things are.
    Stat {
        paths: Vec<Remote>,
        connection: ConnectionArgs,
    },
    /// Print digests.
    Sum {
        paths: Vec<Place>,
        hash: HashKind,
        recursive: bool,
        connection: ConnectionArgs,
    },
    /// Compare.
    Verify(Box<VerifyJob>),
    /// Remove.
    Remove {
        paths: Vec<Remote>,
        recursive: bool,
        connection: ConnectionArgs,
    },
    /// Make directories.
    MakeDirectory {
        paths: Vec<Remote>,
        parents: bool,
        connection: ConnectionArgs,
    },
    /// Remove what copies left behind.
    Clean {
        paths: Vec<Place>,
        which: Cleaning,
        dry_run: bool,
        connection: ConnectionArgs,
    },
    /// Measure round trips.
    Ping {
        host: String,
        port: u16,
        count: u16,
        connection: ConnectionArgs,
    },
    /// Show what a server does.
    Status {
        host: String,
        port: u16,
        connection: ConnectionArgs,
    },
    /// Measure transports.
    Bench(Box<BenchJob>),
    /// Find out what keeps this machine from RDMA.
    Doctor {
        host: Option<(String, u16)>,
        paths: Vec<PathBuf>,
        connection: ConnectionArgs,
    },
    /// Make a key, or tell the one that is there.
    Keygen { identity: Option<PathBuf> },
    /// Print a completion script.
    Completions(clap_complete::Shell),
    /// Print or write the manual.
    Manual {
        page: Option<String>,
        dir: Option<PathBuf>,
    },
}

/// A copy.
#[derive(Debug)]
pub(crate) struct TransferJob {
    /// What goes where.
    pub(crate) way: Way,
    /// How.
    pub(crate) options: TransferOptions,
    /// Which entries take part; files of such rules are still to be read.
    pub(crate) filters: FilterArgs,
    /// Data connections, if told.
    pub(crate) streams: Option<usize>,
    /// The way that bytes take.
    pub(crate) transport: TransportChoice,
    pub(crate) rdma: RdmaOptions,
    /// How the server is trusted.
    pub(crate) connection: ConnectionArgs,
    /// What is told.
    pub(crate) output: TransferOutput,
}

/// Which way a copy goes. All that is remote is on one server.
#[derive(Debug, PartialEq)]
pub(crate) enum Way {
    /// From a server. There is at least one source.
    Pull {
        sources: Vec<Remote>,
        destination: PathBuf,
    },
    /// To a server.
    Push {
        sources: Vec<PathBuf>,
        destination: Remote,
    },
}

/// A measurement.
#[derive(Debug)]
pub(crate) struct BenchJob {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Which; auto is each.
    pub(crate) transport: TransportChoice,
    /// How long for each.
    pub(crate) time: Duration,
    /// Bytes for each at most, if told.
    pub(crate) bytes_max: Option<u64>,
    /// Data connections, if told.
    pub(crate) streams: Option<usize>,
    /// How the server is trusted.
    pub(crate) connection: ConnectionArgs,
}

/// A comparison.
#[derive(Debug)]
pub(crate) struct VerifyJob {
    /// This side.
    pub(crate) local: PathBuf,
    /// The other.
    pub(crate) remote: Remote,
    /// By which digest.
    pub(crate) hash: HashKind,
    /// Differences are not listed.
    pub(crate) quiet: bool,
    /// How the server is trusted.
    pub(crate) connection: ConnectionArgs,
}

/// Where a path is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// On this host.
    Local(PathBuf),
    /// On a server.
    Remote(Remote),
}

impl Job {
    /// What the command means.
    pub(crate) fn from_command(command: Command) -> Result<Self, Error> {
        Ok(match command {
            Command::Pull(args) => pull(
                args.sources,
                args.destination,
                args.transfer,
                args.output,
                args.connection,
            )?,
            Command::Push(args) => push(
                args.sources,
                &args.destination,
                args.transfer,
                args.output,
                args.connection,
            )?,
            Command::Cp(args) => copy(args)?,
            Command::Ls(args) => Self::List {
                paths: remotes(&args.paths, "ls")?,
                long: args.long,
                recursive: args.recursive,
                connection: args.connection,
            },
            Command::Stat(args) => Self::Stat {
                paths: in_exports(&args.paths, "stat")?,
                connection: args.connection,
            },
            Command::Sum(args) => Self::Sum {
                paths: places(&args.paths)?,
                hash: args.hash.into(),
                recursive: args.recursive,
                connection: args.connection,
            },
            Command::Verify(args) => verify(args)?,
            Command::Rm(args) => Self::Remove {
                paths: below_exports(&args.paths, "rm")?,
                recursive: args.recursive,
                connection: args.connection,
            },
            Command::Mkdir(args) => Self::MakeDirectory {
                // Of a whole export, the server is asked what to write instead.
                paths: in_exports(&args.paths, "mkdir")?,
                parents: args.parents,
                connection: args.connection,
            },
            Command::Clean(args) => clean(args)?,
            Command::Ping(args) => {
                let (host, port) = Remote::parse_server(&args.host)?;
                let count = args.count;
                Self::Ping {
                    host,
                    port,
                    count,
                    connection: args.connection,
                }
            }
            Command::Status(args) => {
                let (host, port) = Remote::parse_server(&args.host)?;
                Self::Status {
                    host,
                    port,
                    connection: args.connection,
                }
            }
            Command::Bench(args) => {
                let (host, port) = Remote::parse_server(&args.host)?;
                Self::Bench(Box::new(BenchJob {
                    host,
                    port,
                    transport: args.transport.into(),
                    time: args.time,
                    bytes_max: args.size,
                    streams: args.streams.map(usize::from),
                    connection: args.connection,
                }))
            }
            Command::Doctor(args) => Self::Doctor {
                host: args.host.as_deref().map(Remote::parse_server).transpose()?,
                paths: args.paths,
                connection: args.connection,
            },
            Command::Keygen(args) => Self::Keygen {
                identity: args.identity,
            },
            Command::Completions(args) => Self::Completions(args.shell),
            Command::Man(args) => Self::Manual {
                page: args.page,
                dir: args.dir,
            },
        })
    }
}

/// Where JSON lines were asked for; needed before anything else is known, as errors go there too.
pub(crate) fn json_of(command: &Command) -> Option<JsonTo> {
    let (json, to_stdout) = match command {
        Command::Pull(args) => (args.output.json, args.destination == "-"),
        Command::Push(args) => (args.output.json, false),
        Command::Cp(args) => (args.output.json, args.destination == "-"),
        Command::Ls(args) => (args.output.json, false),
        Command::Stat(args) => (args.output.json, false),
        Command::Sum(args) => (args.output.json, false),
        Command::Verify(args) => (args.output.json, false),
        Command::Ping(args) => (args.output.json, false),
        Command::Status(args) => (args.output.json, false),
        Command::Bench(args) => (args.output.json, false),
        Command::Doctor(args) => (args.json, false),
        Command::Rm(args) => (args.output.json, false),
        Command::Mkdir(args) => (args.output.json, false),
        Command::Clean(args) => (args.output.json, false),
        Command::Keygen(_) | Command::Completions(_) | Command::Man(_) => (false, false),
    };
    json.then_some(if to_stdout {
        JsonTo::Stderr
    } else {
        JsonTo::Stdout
    })
}

fn copy(args: CpArgs) -> Result<Job, Error> {
    let CpArgs {
        sources,
        destination,
        transfer,
        output,
        connection,
    } = args;
    let sources_remote = sources
        .iter()
        .map(|source| Ok(Remote::parse(source)?.is_some()))
        .collect::<Result<Vec<_>, Error>>()?;
    let all_remote = sources_remote.iter().all(|remote| *remote);
    let any_remote = sources_remote.iter().any(|remote| *remote);
    match Remote::parse(&destination)? {
        Some(_) if any_remote => Err(usage("both sides are remote")
            .with_hint("run rdcp on one of the two hosts, or pull and then push")),
        Some(_) => push(sources, &destination, transfer, output, connection),
        None if all_remote => pull(sources, destination, transfer, output, connection),
        None if any_remote => Err(usage("some sources are local and so is the destination")
            .with_hint("copy the remote ones with rdcp and the local ones with cp")),
        None => Err(usage("neither side is remote")
            .with_hint("use cp for local copies; a remote place is written host:/export/path")),
    }
}

fn pull(
    sources: Vec<OsString>,
    destination: OsString,
    transfer: TransferArgs,
    output: TransferOutput,
    connection: ConnectionArgs,
) -> Result<Job, Error> {
    if Remote::parse(&destination)?.is_some() {
        return Err(usage(format!(
            "pull: the destination {} is remote",
            shown(&destination)
        ))
        .with_hint("rdcp pull REMOTE... LOCAL; rdcp push goes the other way"));
    }
    let sources = in_exports(&sources, "pull")?;
    one_server(&sources)?;
    if destination == "-" {
        return print(sources, &transfer, output, connection);
    }
    if destination.is_empty() {
        return Err(usage("the destination is empty").with_hint("write . for this directory"));
    }
    let way = Way::Pull {
        sources,
        destination: destination.into(),
    };
    transfer_job(way, &transfer, output, connection)
}

fn print(
    mut sources: Vec<Remote>,
    transfer: &TransferArgs,
    output: TransferOutput,
    connection: ConnectionArgs,
) -> Result<Job, Error> {
    let timeout = transfer.timeout;
    let rest = TransferArgs {
        timeout: None,
        ..transfer.clone()
    };
    if rest != TransferArgs::default() {
        return Err(
            usage("only -q, --json, --timeout and options of the connection go with -").with_hint(
                "- writes the content of one file to standard output; ./- is a file of that name",
            ),
        );
    }
    match sources.pop() {
        Some(source) if sources.is_empty() && !source.trailing_slash && !source.path.is_empty() => {
            Ok(Job::Print {
                source,
                connection,
                timeout,
                output,
            })
        }
        _ => Err(usage("- takes the content of exactly one file")
            .with_hint("- is standard output; ./- is a file of that name")),
    }
}

fn push(
    sources: Vec<OsString>,
    destination: &OsStr,
    transfer: TransferArgs,
    output: TransferOutput,
    connection: ConnectionArgs,
) -> Result<Job, Error> {
    let Some(destination) = Remote::parse(destination)? else {
        return Err(usage(format!(
            "push: the destination {} is local",
            shown(destination)
        ))
        .with_hint("rdcp push LOCAL... host:/export/path; rdcp pull goes the other way"));
    };
    if destination.export.is_empty() {
        return Err(no_export(&destination));
    }
    let sources = sources
        .into_iter()
        .map(push_source)
        .collect::<Result<_, Error>>()?;
    let way = Way::Push {
        sources,
        destination,
    };
    transfer_job(way, &transfer, output, connection)
}

fn push_source(source: OsString) -> Result<PathBuf, Error> {
    if Remote::parse(&source)?.is_some() {
        return Err(
            usage(format!("push: the source {} is remote", shown(&source)))
                .with_hint("rdcp push LOCAL... REMOTE; rdcp pull goes the other way"),
        );
    }
    match source.as_bytes() {
        b"" => Err(usage("a source is empty")),
        b"-" => Err(usage("standard input can't be pushed in this release")
            .with_hint("./- is a file of that name")),
        _ => Ok(with_contents_slash(source).into()),
    }
}

/// `.` and `..` are no names that something could get at a destination, so their contents are
/// meant, as in rsync.
fn with_contents_slash(source: OsString) -> OsString {
    let last = source
        .as_bytes()
        .rsplit(|byte| *byte == b'/')
        .next()
        .unwrap_or_default();
    if matches!(last, b"." | b"..") {
        let mut bytes = source.into_vec();
        bytes.push(b'/');
        return OsString::from_vec(bytes);
    }
    source
}

fn transfer_job(
    way: Way,
    transfer: &TransferArgs,
    output: TransferOutput,
    connection: ConnectionArgs,
) -> Result<Job, Error> {
    let mut options = if transfer.archive {
        TransferOptions::archive()
    } else {
        TransferOptions::default()
    };
    options.recursive |= transfer.recursive;
    options.preserve.mode |= transfer.perms;
    options.hash = transfer.hash.into();
    options.overwrite = if transfer.update {
        Overwrite::Older
    } else {
        transfer.overwrite.into()
    };
    options.dry_run = transfer.dry_run;
    options.delete = transfer.delete.then_some(Deleting {
        max: transfer.max_delete,
        allow_empty: transfer.allow_empty,
    });
    if transfer.delete && !options.recursive {
        return Err(usage("--delete is about directories: it needs -r or -a")
            .with_hint("-a copies a tree with all that can be carried"));
    }
    options.make_parents = transfer.mkpath;
    options.sync = !transfer.no_fsync;
    options.resume = !transfer.no_resume;
    options.bytes_per_s = transfer.bwlimit;
    options.reuse.delta = !transfer.whole_file;
    options.reuse.checksum = transfer.checksum;
    options.reuse.in_place = transfer.inplace;
    options.fail_early = transfer.fail_early;
    options.chunk = transfer.chunk.unwrap_or(options.chunk);
    options.stall_timeout = transfer.timeout.unwrap_or(options.stall_timeout);
    let streams = transfer.streams.map(usize::from);
    let transport = transfer.transport.into();
    let rdma = rdma(transfer);
    Ok(Job::Transfer(Box::new(TransferJob {
        way,
        options,
        filters: transfer.filters.clone(),
        streams,
        transport,
        rdma,
        connection,
        output,
    })))
}

/// What is not said stays as the library has it.
fn rdma(transfer: &TransferArgs) -> RdmaOptions {
    let mut rdma = RdmaOptions::default();
    rdma.memory = transfer.rdma_memory.into();
    rdma.connect = transfer.rdma_connect.into();
    rdma.devices.clone_from(&transfer.rdma_device);
    rdma.gid_index = transfer.rdma_gid_index;
    rdma.traffic_class = transfer.rdma_traffic_class.unwrap_or(rdma.traffic_class);
    rdma.service_level = transfer.rdma_service_level.unwrap_or(rdma.service_level);
    rdma.queue_pairs = transfer.rdma_queue_pairs.unwrap_or(rdma.queue_pairs);
    rdma
}

fn verify(args: VerifyArgs) -> Result<Job, Error> {
    if Remote::parse(&args.local)?.is_some() {
        return Err(usage(format!("verify: {} is remote", shown(&args.local)))
            .with_hint("rdcp verify LOCAL REMOTE"));
    }
    let remote = in_exports(std::slice::from_ref(&args.remote), "verify")?.remove(0);
    Ok(Job::Verify(Box::new(VerifyJob {
        local: args.local.into(),
        remote,
        hash: args.hash.into(),
        quiet: args.quiet,
        connection: args.connection,
    })))
}

fn places(words: &[OsString]) -> Result<Vec<Place>, Error> {
    words
        .iter()
        .map(|word| match Remote::parse(word)? {
            Some(remote) if remote.export.is_empty() => Err(no_export(&remote)),
            Some(remote) => Ok(Place::Remote(remote)),
            None => Ok(Place::Local(word.into())),
        })
        .collect()
}

fn clean(args: CleanArgs) -> Result<Job, Error> {
    // A variable that is not set, and not the directory that one stands in.
    if args.paths.iter().any(|path| path.is_empty()) {
        return Err(usage("an empty path: name a file or directory")
            .with_hint("no path at all stands for this directory"));
    }
    let paths = match args.paths.is_empty() {
        true => vec![Place::Local(".".into())],
        false => places(&args.paths)?,
    };
    let which = match (args.all, args.older_than) {
        (true, _) => Cleaning::All,
        (false, Some(age)) => Cleaning::OlderThan {
            age_s: age.as_secs().max(1),
        },
        (false, None) => Cleaning::Stale,
    };
    Ok(Job::Clean {
        paths,
        which,
        dry_run: args.dry_run,
        connection: args.connection,
    })
}

/// All words as remote places.
fn remotes(words: &[OsString], command: &str) -> Result<Vec<Remote>, Error> {
    words
        .iter()
        .map(|word| {
            Remote::parse(word)?.ok_or_else(|| {
                usage(format!("{command}: {} is local", shown(word)))
                    .with_hint("a remote place is written host:/export/path")
            })
        })
        .collect()
}

/// All words as places in an export or its top.
fn in_exports(words: &[OsString], command: &str) -> Result<Vec<Remote>, Error> {
    let remotes = remotes(words, command)?;
    match remotes.iter().find(|remote| remote.export.is_empty()) {
        Some(remote) => Err(no_export(remote)),
        None => Ok(remotes),
    }
}

/// All words as places below an export's top.
fn below_exports(words: &[OsString], command: &str) -> Result<Vec<Remote>, Error> {
    let remotes = in_exports(words, command)?;
    match remotes.iter().find(|remote| remote.path.is_empty()) {
        Some(remote) => Err(usage(format!("{command}: {remote} is a whole export"))
            .with_hint(format!("name something in it: {remote}/..."))),
        None => Ok(remotes),
    }
}

fn one_server(remotes: &[Remote]) -> Result<(), Error> {
    let different = remotes
        .windows(2)
        .find(|pair| !pair[0].same_server(&pair[1]));
    match different {
        Some(pair) => Err(usage(format!(
            "{} and {} are on different servers",
            pair[0], pair[1]
        ))
        .with_hint("run rdcp once for each")),
        None => Ok(()),
    }
}

fn no_export(remote: &Remote) -> Error {
    let mut top = remote.clone();
    top.trailing_slash = true;
    usage(format!("{remote} names no export")).with_hint(format!("rdcp ls {top} lists the exports"))
}

fn shown(word: &OsStr) -> String {
    escape::path(word.as_bytes())
}

fn usage(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    fn job(line: &str) -> Result<Job, Error> {
        let words = std::iter::once("rdcp").chain(line.split_whitespace());
        Job::from_command(Cli::try_parse_from(words).expect("parses").command)
    }

    fn way(line: &str) -> Way {
        match job(line).unwrap() {
            Job::Transfer(job) => job.way,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn remote(word: &str) -> Remote {
        Remote::parse(OsStr::new(word)).unwrap().unwrap()
    }

    #[test]
    fn cp_finds_its_direction() {
        let pulled = Way::Pull {
            sources: vec![remote("h:/e/a"), remote("h:/e/b/")],
            destination: "x".into(),
        };
        assert_eq!(way("cp h:/e/a h:/e/b/ x"), pulled);
        assert_eq!(way("pull h:/e/a h:/e/b/ x"), pulled);
        let pushed = Way::Push {
            sources: vec!["a".into(), "./b:c".into()],
            destination: remote("h:/e/x/"),
        };
        assert_eq!(way("cp a ./b:c h:/e/x/"), pushed);
        assert_eq!(way("push a ./b:c h:/e/x/"), pushed);
    }

    #[test]
    fn nonsense_is_a_usage_error_with_a_hint() {
        let table = [
            ("cp a b", "use cp"),
            ("cp h:/e/a h:/e/b", "run rdcp on one"),
            ("cp a h:/e/a b", "with cp"),
            ("cp a h:/e/a h:/e/b", "run rdcp on one"),
            ("pull a b", "host:/export/path"),
            ("pull h:/e/a g:/x", "rdcp push"),
            ("pull h:/e/a g:/e/b x", "once for each"),
            ("pull rdcp://h:1/e/a rdcp://h:2/e/b x", "once for each"),
            ("pull h:/ x", "rdcp ls h:/"),
            ("pull h:e/a x", "h:/e/a"),
            ("pull h:/e/a h:/e/b -", "standard output"),
            ("pull h:/e/ -", "standard output"),
            ("pull -r h:/e/a -", "standard output"),
            ("pull -n h:/e/a -", "standard output"),
            ("pull --delete h:/e/a x", "-a copies a tree"),
            ("push --delete --max-delete 3 a h:/e", "-a copies a tree"),
            ("pull --hash none h:/e/a -", "standard output"),
            ("push a b", "rdcp pull"),
            ("push h:/e/a h:/e/b", "rdcp pull"),
            ("push a h:/", "rdcp ls h:/"),
            ("push - h:/e/a", "./-"),
            ("ls x", "host:/export/path"),
            ("stat h:/", "rdcp ls h:/"),
            ("sum h:/", "rdcp ls h:/"),
            ("verify h:/e/a h:/e/a", "LOCAL REMOTE"),
            ("verify a b", "host:/export/path"),
            ("rm h:/e", "something in it"),
            ("ping a/b", "host:port"),
        ];
        for (line, hint) in table {
            let error = job(line).expect_err(line);
            assert_eq!(error.kind(), ErrorKind::Usage, "{line}");
            let shown = error.hint().unwrap_or_default();
            assert!(shown.contains(hint), "{line}: {error}: {shown:?}");
        }
    }

    #[test]
    fn dots_mean_their_contents() {
        for (word, expected) in [
            (".", "./"),
            ("..", "../"),
            ("a/.", "a/./"),
            ("a", "a"),
            ("a/", "a/"),
            ("a/...", "a/..."),
        ] {
            let Way::Push { sources, .. } = way(&format!("push {word} h:/e")) else {
                panic!("{word}");
            };
            assert_eq!(sources[0].as_os_str(), expected);
        }
    }

    #[test]
    fn options_reach_the_transfer() {
        let Job::Transfer(job) = job(
            "push -rp -u --mkpath --no-fsync --no-resume -W --hash sha256 --transport tcp --chunk 4M \
             --streams 3 --fail-early --timeout 5m --accept-new --known-hosts k \
             --rdma-device mlx5_0:1,eth1 --rdma-device mlx5_2 --rdma-gid-index 3 \
             --rdma-traffic-class 104 --rdma-service-level 5 --rdma-queue-pairs 4 --bwlimit 8M a h:/e",
        )
        .unwrap() else {
            panic!("no transfer");
        };
        let options = &job.options;
        assert!(options.recursive && options.preserve.mode && options.make_parents);
        assert!(options.fail_early && !options.sync && !options.resume);
        assert!(!options.reuse.delta);
        assert!(!options.preserve.symlinks);
        assert_eq!(options.hash, HashKind::Sha256);
        assert_eq!(options.overwrite, Overwrite::Older);
        assert_eq!(
            options.bytes_per_s.map(std::num::NonZeroU64::get),
            Some(8 << 20)
        );
        assert_eq!(job.transport, TransportChoice::Tcp);
        assert_eq!(options.chunk.bytes(), 4 << 20);
        assert_eq!(options.stall_timeout, Duration::from_secs(300));
        assert_eq!(job.streams, Some(3));
        assert_eq!(job.rdma.devices, ["mlx5_0:1", "eth1", "mlx5_2"]);
        assert_eq!((job.rdma.gid_index, job.rdma.traffic_class), (Some(3), 104));
        assert_eq!((job.rdma.service_level, job.rdma.queue_pairs), (5, 4));
        assert!(job.connection.accept_new);
        assert_eq!(job.connection.known_hosts.as_deref(), Some("k".as_ref()));
    }

    #[test]
    fn deleting_and_dry_runs_reach_the_transfer() {
        let Job::Transfer(job) =
            job("push -rn --delete --max-delete 7 --exclude x --include=y a h:/e").unwrap()
        else {
            panic!("no transfer");
        };
        let deleting = Deleting {
            max: Some(7),
            allow_empty: false,
        };
        assert_eq!(job.options.delete, Some(deleting));
        assert!(job.options.dry_run);
        assert_eq!(job.filters.rules().unwrap().len(), 2);
    }

    #[test]
    fn archive_is_what_the_library_says() {
        let Job::Transfer(job) = job("pull -a h:/e/x .").unwrap() else {
            panic!("no transfer")
        };
        let archive = TransferOptions::archive();
        assert!(job.options.recursive);
        assert_eq!(job.options.preserve, archive.preserve);
        assert!(job.options.sync);
    }

    #[test]
    fn names_are_bytes() {
        let odd = OsString::from_vec(b"\xff\n".to_vec());
        let words = ["rdcp".into(), "push".into(), odd.clone(), "h:/e/".into()];
        let job = Job::from_command(Cli::try_parse_from(words).unwrap().command).unwrap();
        let Job::Transfer(job) = job else {
            panic!("no transfer")
        };
        let Way::Push { sources, .. } = &job.way else {
            panic!("no push")
        };
        assert_eq!(sources[0].as_os_str(), odd);
    }
}
