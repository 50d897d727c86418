//! The command line of `rdcpd`, as it was typed. What it means together with a configuration file
//! is decided in [`settings`](crate::settings).

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgAction, Parser};
use rdcp::remote::DEFAULT_PORT;

use crate::settings::{AuthMode, LogFormat};

/// Serves directories to `rdcp`: peers push and pull files and trees, every byte checked.
///
/// Started by hand it needs no file:  rdcpd --export data=/srv/data:rw
/// As a service it reads one:         rdcpd --config /etc/rdcp/rdcpd.toml
///
/// What the command line says goes before what the file says.
#[derive(Clone, Debug, Parser)]
#[command(name = "rdcpd", version, after_help = EXIT_STATUSES, verbatim_doc_comment)]
pub(crate) struct Args {
    /// Read the configuration from this TOML file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Check the configuration, say what is wrong with it, and exit
    #[arg(long, conflicts_with = "show_config")]
    pub(crate) check_config: bool,

    /// Print every setting in force and where it comes from, and exit
    #[arg(long)]
    pub(crate) show_config: bool,

    /// Serve the directory PATH under NAME, read-only or (`:rw`) writable; may be repeated
    ///
    /// A PATH whose own name ends in `:rw` or `:ro` is written with one of them added.
    #[arg(long = "export", value_name = "NAME=PATH[:rw]",
          value_parser = OsStringValueParser::new().try_map(|text| ExportArg::parse(&text)))]
    pub(crate) exports: Vec<ExportArg>,

    /// Let files of the --export directories be copied without any digest: --hash none, and held regions
    ///
    /// Default: only while nothing but loopback addresses are listened on. In a configuration: `integrity`.
    #[arg(long, requires = "exports")]
    pub(crate) allow_unverified: bool,

    /// Listen here; may be repeated. Port 0 takes a free one, told in the log
    /// [default: 127.0.0.1:20471]
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listen)]
    pub(crate) listen: Vec<SocketAddr>,

    /// How clients prove who they are [default: keys if any are authorized; else only loopback is
    /// listened on, for every user of this host]
    #[arg(long, value_name = "MODE")]
    pub(crate) auth: Option<AuthMode>,

    /// Let in the client with this key, as `rdcp keygen` prints it; may be repeated
    #[arg(long, value_name = "SHA256:...")]
    pub(crate) authorize: Vec<String>,

    /// Let in the clients whose keys this file lists
    ///
    /// A line is a key as `rdcp keygen` prints it. Options before it, with commas between them and no
    /// spaces, limit it: export="a,b", rights="list,read,create,overwrite,delete",
    /// from="10.0.0.0/8,::1", expires="2027-01-31". The file is read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub(crate) authorized_keys: Option<PathBuf>,

    /// Append a line of JSON to this file for each session and request, and for each client that is refused
    #[arg(long, value_name = "FILE")]
    pub(crate) audit: Option<PathBuf>,

    /// Serve the one client that started this by ssh, as the user it logged in; rdcp does it for ssh://host/path
    ///
    /// All that the user may reach is served to that client's key alone, until standard input ends and no session is
    /// left. A line is read and a line is written first.
    #[arg(long, conflicts_with_all = ["config", "check_config", "show_config", "exports", "listen", "auth",
                                      "authorize", "authorized_keys", "audit", "state_dir"])]
    pub(crate) stdio: bool,

    /// Print the manual page rdcpd(1) as roff, and exit
    #[arg(long, exclusive = true)]
    pub(crate) man: bool,

    /// Keep the host key here
    ///
    /// Default: $STATE_DIRECTORY, as systemd sets it; for root with --config /var/lib/rdcp; else
    /// $XDG_STATE_HOME/rdcp or ~/.local/state/rdcp.
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Form of the log lines on standard error
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,

    /// What is logged: a level (error, warn, info, debug, trace) or directives as in RUST_LOG
    /// [default: info]
    #[arg(long = "log", value_name = "FILTER", conflicts_with = "verbose")]
    pub(crate) log_filter: Option<String>,

    /// Log more: -v is `--log debug`, -vv is `--log trace`
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// `--export NAME=PATH[:rw]` taken apart; neither name nor directory is checked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportArg {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) writable: bool,
}

impl ExportArg {
    fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let Some(equals) = bytes.iter().position(|byte| *byte == b'=') else {
            return Err("write NAME=PATH, such as data=/srv/data, or NAME=PATH:rw".into());
        };
        let name = String::from_utf8(bytes[..equals].to_vec())
            .map_err(|_| "the name before `=` is not UTF-8".to_owned())?;
        let rest = &bytes[equals + 1..];
        let (path, writable) = match rest {
            [path @ .., b':', b'r', b'w'] => (path, true),
            [path @ .., b':', b'r', b'o'] => (path, false),
            path => (path, false),
        };
        if path.is_empty() {
            return Err(format!("no directory after `=`: write {name}=/srv/{name}"));
        }
        Ok(Self {
            name,
            path: OsString::from_vec(path.to_vec()).into(),
            writable,
        })
    }
}

/// An address to listen on. The error says what to write instead.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let port = DEFAULT_PORT;
    if let Ok(ip) = text.trim_matches(['[', ']']).parse() {
        let whole = SocketAddr::new(ip, port);
        return Err(format!("`{text}` has no port: write {whole}"));
    }
    Err(format!(
        "`{text}` is not an IP address with a port, and names are not looked up here: write \
         127.0.0.1:{port}, [::1]:{port} or the address of an interface"
    ))
}

pub(crate) const EXIT_STATUSES: &str = "\
Exit status: 0 ended by SIGTERM or SIGINT after running transfers were given time to end; \
1 a defect of rdcpd; 2 command line or configuration; 3 an address can't be listened on; \
7 the state directory or the audit record can't be used; 129, 130, 143 ended at once by a second signal.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn export(text: &str) -> Result<ExportArg, String> {
        ExportArg::parse(OsStr::new(text))
    }

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn exports_are_taken_apart() {
        let of = |name: &str, path: &str, writable| {
            Ok(ExportArg {
                name: name.into(),
                path: path.into(),
                writable,
            })
        };
        assert_eq!(export("data=/srv/data"), of("data", "/srv/data", false));
        assert_eq!(export("data=/srv/data:rw"), of("data", "/srv/data", true));
        assert_eq!(export("data=/srv/data:ro"), of("data", "/srv/data", false));
        assert_eq!(export("d=/odd:rw:ro"), of("d", "/odd:rw", false));
        assert_eq!(export("d=/a=b:rw"), of("d", "/a=b", true));
        assert!(export("/srv/data").is_err());
        assert!(export("data=").is_err());
        assert!(export("data=:rw").is_err());
    }

    #[test]
    fn listen_errors_say_what_to_write() {
        assert!(parse_listen("[::1]:1").is_ok());
        assert!(
            parse_listen("10.0.0.1")
                .unwrap_err()
                .ends_with("write 10.0.0.1:20471")
        );
        assert!(
            parse_listen("::1")
                .unwrap_err()
                .ends_with("write [::1]:20471")
        );
        assert!(
            parse_listen("localhost:20471")
                .unwrap_err()
                .contains("not looked up")
        );
        assert!(parse_listen("").is_err());
    }
}
