//! What can be typed: the one definition behind `-h`, `--help`, the manual and the completions.
//!
//! Words come out as they were typed; what they mean together is decided in `job`. Nothing here
//! has side effects. Below: the commands that copy, those that look, the values of options, the
//! examples.

mod examples;
mod filters;
mod look;
mod transfer;
mod values;

use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Effects, Styles};
use clap::{Args, Parser, Subcommand, ValueHint};

pub(crate) use examples::examples;
use examples::long_tail;
pub(crate) use filters::FilterArgs;
use look::{
    BenchArgs, CompletionsArgs, DoctorArgs, KeygenArgs, LsArgs, ManArgs, MkdirArgs, PingArgs,
    RmArgs, StatArgs, StatusArgs, SumArgs,
};
pub(crate) use look::{CleanArgs, VerifyArgs};
pub(crate) use transfer::{CpArgs, TransferArgs, TransferOutput};
use transfer::{PullArgs, PushArgs};

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
        remote; write ./a:b for a local file of that name. ssh://[user@]host[:port]/absolute/path is a \
        place on a host where rdcpd is installed and need not run: ssh starts it for this command.",
    after_help = "'rdcp COMMAND -h' shows the options of a command, --help tells more.",
    after_long_help = long_tail(examples::MAIN_EXAMPLES),
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
    #[command(after_long_help = long_tail(examples::PULL_EXAMPLES))]
    Pull(PullArgs),

    /// Copy from this host to a server
    ///
    /// Copies LOCAL files and trees to REMOTE. A directory becomes REMOTE/name; with a slash at the
    /// end of LOCAL its contents go into REMOTE. A file goes into REMOTE if REMOTE ends in a slash,
    /// is a directory, or there are several sources; otherwise REMOTE is its new name. Files that
    /// are there with the same size and time of modification are left alone.
    #[command(after_long_help = long_tail(examples::PUSH_EXAMPLES))]
    Push(PushArgs),

    /// Copy either way, whichever the arguments say
    ///
    /// With a remote destination it is push, with remote sources it is pull; all rules and options
    /// are theirs. Two remote sides are not supported, and for two local ones there is cp(1).
    #[command(after_long_help = long_tail(examples::CP_EXAMPLES))]
    Cp(CpArgs),

    /// List a directory, or the exports of a server
    ///
    /// Names are shown one a line, escaped so that every line is one harmless name; --json has them
    /// byte for byte.
    #[command(after_long_help = long_tail(examples::LS_EXAMPLES))]
    Ls(LsArgs),

    /// Show what one remote file or directory is
    #[command(after_long_help = long_tail(examples::STAT_EXAMPLES))]
    Stat(StatArgs),

    /// Print digests of local or remote files, as sha256sum and b3sum do
    ///
    /// Digests are computed where the files are, always from their content. The lines can be checked
    /// with 'sha256sum -c' or 'b3sum -c'. Remote paths are printed as a pull into the current
    /// directory would name them: host:/data/run as run/..., host:/data/run/ without the run/.
    #[command(after_long_help = long_tail(examples::SUM_EXAMPLES))]
    Sum(SumArgs),

    /// Compare a local and a remote file or tree by content
    ///
    /// Reads both sides whole, each where it lies, and compares digests of all regular files. Lists
    /// what is missing on either side or differs; exits with 13 if anything does. Symbolic links,
    /// empty directories and metadata are not compared.
    #[command(after_long_help = long_tail(examples::VERIFY_EXAMPLES))]
    Verify(VerifyArgs),

    /// Remove remote files or trees
    #[command(after_long_help = long_tail(examples::RM_EXAMPLES))]
    Rm(RmArgs),

    /// Make remote directories
    #[command(after_long_help = long_tail(examples::MKDIR_EXAMPLES))]
    Mkdir(MkdirArgs),

    /// Remove what interrupted copies left behind
    ///
    /// A copy writes each file under a hidden name, .rdcp-*.part, and keeps a journal beside one that
    /// takes long. What a copy that was killed leaves of them is used or removed by the next one into the
    /// same directory; this finds it in whole trees, without a copy, and says of each how old and large
    /// it is, what file it was to become (if an older one is there), and why it goes or stays. Other
    /// mounts are not entered and symbolic links not followed.
    ///
    /// Removed is what no copy can go on with, and what could be gone on with once that was not done for
    /// seven days; --older-than and --all choose otherwise. What a copy works on stays in any case, and so
    /// does everything else: files that are only called like one, links, files with other names, other
    /// users' files. On a server it takes the rights delete and list.
    #[command(after_long_help = long_tail(examples::CLEAN_EXAMPLES))]
    Clean(CleanArgs),

    /// Measure the round trip to a server and show which transports it offers, and why
    #[command(after_long_help = long_tail(examples::PING_EXAMPLES))]
    Ping(PingArgs),

    /// Show what a server does: its sessions, what runs in them, memory and bytes by transport
    ///
    /// A server that asks its clients for keys answers those whose key is not limited; another answers
    /// everybody who may connect. Bytes that the adapters of clients read by RDMA are not seen by the
    /// server; it counts the windows that it exposed to them, by the way that each got before adapters
    /// and with the reason.
    #[command(after_long_help = long_tail(examples::STATUS_EXAMPLES))]
    Status(StatusArgs),

    /// Measure throughput and latency of each transport to a server, from memory to memory
    ///
    /// The server lends some memory, and the same connections as a copy has read it over and over, with
    /// no file and no digest: what a copy can't be faster than. First READs of 1 MiB, as many at a time
    /// as a copy has, then READs of 4 KiB, one at a time. A transport that is not there is told with its
    /// reason; with --transport that is an error.
    #[command(after_long_help = long_tail(examples::BENCH_EXAMPLES))]
    Bench(BenchArgs),

    /// Find out what keeps this machine from RDMA, and the command that mends each thing
    ///
    /// Looks at libraries, devices, their ports and addresses, device files, the limit on locked
    /// memory, and tries how files can be registered. With HOST also at the route to it, and
    /// connects to its daemon to see whether rails come up. Changes nothing, and needs no privileges.
    ///
    /// Ends with 0 if a transfer would use RDMA: with HOST, rails came up; without, a port can be
    /// used and memory can be registered. Else with 10.
    #[command(after_long_help = long_tail(examples::DOCTOR_EXAMPLES))]
    Doctor(DoctorArgs),

    /// Make a key of your own, if there is none, and print the line by which servers know it
    ///
    /// A server that asks its clients for keys lets in those that it lists. The line that is printed
    /// goes into its file of authorized keys; options before it limit what the key is good for (see
    /// rdcpd(1)). The key itself stays in a file that only you can read, and is shown to servers
    /// whose own key is known, to no others.
    #[command(after_long_help = long_tail(examples::KEYGEN_EXAMPLES))]
    Keygen(KeygenArgs),

    /// Print a completion script for a shell
    #[command(after_long_help = long_tail(examples::COMPLETIONS_EXAMPLES))]
    Completions(CompletionsArgs),

    /// Print the manual as roff, or write all its pages
    ///
    /// The page of the daemon, rdcpd(1), comes from the daemon itself: rdcpd --man prints it, and
    /// --dir asks the rdcpd in the directory of this rdcp for it.
    #[command(after_long_help = long_tail(examples::MAN_EXAMPLES))]
    Man(ManArgs),
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
    /// Your own key, for servers that ask for one [default: ~/.config/rdcp/identity.pem, if it is there]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = CONNECTION)]
    pub(crate) identity: Option<PathBuf>,
    /// For ssh://: log in with this, options behind it with blanks between them [default: ssh]
    #[arg(long, value_name = "COMMAND", help_heading = CONNECTION)]
    pub(crate) ssh: Option<String>,
    /// For ssh://: the daemon's program on the other host [default: rdcpd]
    #[arg(long, value_name = "PROGRAM", help_heading = CONNECTION)]
    pub(crate) ssh_rdcpd: Option<String>,
    /// For ssh://: send everything through ssh, even where the other host could be reached directly
    #[arg(long, help_heading = CONNECTION)]
    pub(crate) ssh_tunnel: bool,
}

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
    fn update_and_overwrite_exclude_each_other() {
        let words = ["rdcp", "pull", "-u", "--overwrite", "never", "h:/e/f", "."];
        assert!(Cli::try_parse_from(words).is_err());
        assert!(Cli::try_parse_from(["rdcp", "pull", "-u", "h:/e/f", "."]).is_ok());
    }
}
