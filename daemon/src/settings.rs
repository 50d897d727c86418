//! The settings in force: command line over configuration file over default, every value checked
//! and every value with its source. A [`Settings`] can be served as it is.

use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use rdcp::client::Identity;
use rdcp::remote::DEFAULT_PORT;
use rdcp::server::ServerLimits;
use tracing_subscriber::EnvFilter;

use crate::args::Args;
use crate::config::Config;
use crate::config::problem::{Problems, Source};
use crate::config::rdma::ConfigRdma;
use crate::export::{Access, CheckedExport};
use crate::state_dir;

/// A value and who said it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said<T> {
    pub(crate) value: T,
    pub(crate) source: Source,
}

impl<T> Said<T> {
    fn default(value: T) -> Self {
        Self {
            value,
            source: Source::Default,
        }
    }

    fn by_option(value: T, option: &'static str) -> Self {
        Self {
            value,
            source: Source::CommandLine(option),
        }
    }
}

/// How clients prove who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AuthMode {
    /// They do not: whoever reaches the port may use the exports.
    None,
    /// By a key that is authorized. Started by hand, the starter's own is.
    Keys,
}

impl AuthMode {
    fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Keys => "keys",
        }
    }
}

/// Form of the log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// Everything that the daemon is told.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) listen: Said<Vec<SocketAddr>>,
    pub(crate) state_dir: Said<PathBuf>,
    /// `None`: nobody said anything of it, and every address in `listen` is loopback.
    pub(crate) auth: Option<Said<AuthMode>>,
    pub(crate) authorize: Vec<String>,
    pub(crate) authorized_keys: Option<Said<PathBuf>>,
    pub(crate) audit: Option<Said<PathBuf>>,
    /// Whether a configuration file was read.
    pub(crate) from_file: bool,
    pub(crate) drain: Said<Duration>,
    pub(crate) sessions_max: Said<usize>,
    pub(crate) log_format: Said<LogFormat>,
    pub(crate) log_filter: Said<String>,
    pub(crate) rdma: ConfigRdma,
    pub(crate) exports: Vec<Said<CheckedExport>>,
}

/// How long running transfers may go on after SIGTERM: well below the 90 s after which systemd
/// kills a service that does not end.
const DRAIN_DEFAULT: Duration = Duration::from_secs(30);
const LOG_FILTER_DEFAULT: &str = "info";

impl Settings {
    /// Reads the configuration file that the command line names, if any, and joins the two.
    pub(crate) fn load(args: Args) -> Result<Self, Problems> {
        let config = match &args.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        Self::join(args, config)
    }

    fn join(args: Args, config: Config) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let from_file = args.config.is_some();
        let file = args.config.clone();
        let authorized_keys = args
            .authorized_keys
            .map(|path| {
                Said::by_option(
                    std::path::absolute(&path).unwrap_or(path),
                    "--authorized-keys",
                )
            })
            .or(config.authorized_keys);
        let audit = args.audit;
        let audit = audit
            .map(|path| Said::by_option(std::path::absolute(&path).unwrap_or(path), "--audit"))
            .or(config.audit);
        let auth = args
            .auth
            .map(|mode| Said::by_option(mode, "--auth"))
            .or(config.auth);
        let auth = join_auth(
            auth,
            &args.authorize,
            authorized_keys.as_ref(),
            from_file,
            &mut problems,
        );
        let settings = Self {
            listen: join_listen(args.listen, config.listen, auth.is_some(), &mut problems),
            state_dir: join_state_dir(args.state_dir, config.state_dir, from_file, &mut problems),
            auth,
            authorize: args.authorize,
            authorized_keys,
            audit,
            from_file,
            drain: config
                .drain_seconds
                .map_or(Said::default(DRAIN_DEFAULT), |seconds| Said {
                    value: Duration::from_secs(seconds.value.into()),
                    source: seconds.source,
                }),
            sessions_max: config
                .sessions_max
                .unwrap_or_else(|| Said::default(ServerLimits::default().sessions_max)),
            log_format: args
                .log_format
                .map(|format| Said::by_option(format, "--log-format"))
                .or(config.log_format)
                .unwrap_or(Said::default(LogFormat::Text)),
            log_filter: join_filter(
                args.log_filter,
                args.verbose,
                config.log_filter,
                &mut problems,
            ),
            rdma: config.rdma,
            exports: join_exports(
                args.exports,
                args.allow_unverified.then_some(true),
                config.exports,
                from_file,
                &mut problems,
            ),
        };
        settings.refuse_own_files(file.as_deref(), &mut problems);
        settings.refuse_unknowable_clients(&mut problems);
        problems.into_result(settings)
    }

    /// What no client may reach: it says who is let in, and holds what clients trust.
    fn refuse_own_files(&self, file: Option<&Path>, problems: &mut Problems) {
        let keys = self.authorized_keys.as_ref().map(|keys| &*keys.value);
        let host_key = self.state_dir.value.join(rdcp::server::HOST_KEY_FILE);
        // By hand the starter's own key is let in, so whoever has it would be.
        let asks = self
            .auth
            .as_ref()
            .is_some_and(|auth| auth.value == AuthMode::Keys);
        let starter = (asks && !self.from_file)
            .then(Identity::default_path)
            .flatten();
        let own = [
            Some(&*self.state_dir.value),
            Some(&*host_key),
            keys,
            file,
            self.audit.as_ref().map(|audit| &*audit.value),
            starter.as_deref(),
        ];
        for export in &self.exports {
            let held = own
                .iter()
                .flatten()
                .find_map(|own| export.value.refuse_holding(own).err());
            if let Some(what) = held {
                problems.add(&export.source, what);
            }
        }
    }

    /// Who shows no key is none of the clients that an export is for.
    fn refuse_unknowable_clients(&self, problems: &mut Problems) {
        let asks = self
            .auth
            .as_ref()
            .is_some_and(|auth| auth.value == AuthMode::Keys);
        for export in self.exports.iter().filter(|_| !asks) {
            if export.value.access.clients.is_some() {
                let what = "`clients` names keys, and this daemon asks nobody for a key: set `authorized_keys`";
                problems.add(&export.source, what.to_owned());
            }
        }
    }

    /// The settings as a configuration file, each line with its source.
    pub(crate) fn to_toml(&self) -> String {
        let mut out = String::new();
        let mut line = |key: &str, value: String, source: &Source| {
            // Writing to a String can't fail.
            let _ = writeln!(out, "{:<44} # {source}", format!("{key} = {value}"));
        };
        let listen: Vec<_> = self
            .listen
            .value
            .iter()
            .map(|addr| format!("\"{addr}\""))
            .collect();
        line(
            "listen",
            format!("[{}]", listen.join(", ")),
            &self.listen.source,
        );
        line(
            "state_dir",
            quoted_path(&self.state_dir.value),
            &self.state_dir.source,
        );
        if let Some(auth) = &self.auth {
            line("auth", format!("\"{}\"", auth.value.word()), &auth.source);
        }
        if let Some(file) = &self.authorized_keys {
            line("authorized_keys", quoted_path(&file.value), &file.source);
        }
        if let Some(file) = &self.audit {
            line("audit", quoted_path(&file.value), &file.source);
        }
        line(
            "drain_seconds",
            self.drain.value.as_secs().to_string(),
            &self.drain.source,
        );
        line(
            "limits.sessions_max",
            self.sessions_max.value.to_string(),
            &self.sessions_max.source,
        );
        let format = format!("\"{}\"", self.log_format.value);
        line("log.format", format, &self.log_format.source);
        line(
            "log.level",
            quoted(&self.log_filter.value),
            &self.log_filter.source,
        );
        for (key, value, source) in self.rdma.lines() {
            let _ = writeln!(out, "{:<44} # {source}", format!("rdma.{key} = {value}"));
        }
        let mut line = |key: &str, value: String, source: &Source| {
            let _ = writeln!(out, "{:<44} # {source}", format!("{key} = {value}"));
        };
        for export in &self.exports {
            let CheckedExport { name, path, access } = &export.value;
            let mut line = |key: &str, value| {
                line(&format!("exports.\"{name}\".{key}"), value, &export.source)
            };
            line("path", quoted_path(path));
            match &access.rights {
                Some(rights) => line("rights", quoted_list(rights)),
                None => line("writable", access.writable.to_string()),
            }
            if let Some(clients) = &access.clients {
                line("clients", quoted_list(clients));
            }
            if let Some(allowed) = access.unverified {
                let word = if allowed { "optional" } else { "required" };
                line("integrity", quoted(word));
            }
            if !access.networks.is_empty() {
                line("from", quoted_list(&access.networks));
            }
        }
        out
    }
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn quoted_list(texts: &[String]) -> String {
    let quoted: Vec<_> = texts.iter().map(|text| quoted(text)).collect();
    format!("[{}]", quoted.join(", "))
}

/// A path that is not UTF-8 can only have come from the command line, and is shown as near as a
/// TOML string comes to it.
fn quoted_path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

fn join_listen(
    typed: Vec<SocketAddr>,
    config: Option<Said<Vec<SocketAddr>>>,
    auth_is_said: bool,
    problems: &mut Problems,
) -> Said<Vec<SocketAddr>> {
    let listen = if typed.is_empty() {
        config.unwrap_or_else(|| {
            Said::default(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT))])
        })
    } else {
        Said::by_option(typed, "--listen")
    };
    if listen.value.is_empty() {
        let what = "no address to listen on: write listen = [\"127.0.0.1:20471\"], or leave it out";
        problems.add(&listen.source, what);
    }
    // Port 0 is another one each time.
    let again =
        |(at, addr): &(usize, &SocketAddr)| addr.port() != 0 && listen.value[..*at].contains(addr);
    if let Some((_, twice)) = listen.value.iter().enumerate().find(again) {
        let what = format!("{twice} is there twice: write each address once");
        problems.add(&listen.source, what);
    }
    if let Some(open) = listen.value.iter().find(|addr| !addr.ip().is_loopback())
        && !auth_is_said
    {
        let what = format!(
            "{open} can be reached from other hosts, and nothing says who may connect: authorize \
             keys of clients (--authorize SHA256:..., or authorized_keys = \"/etc/rdcp/authorized_keys\" \
             in the configuration; 'rdcp keygen' prints a client's), or say that everybody who reaches \
             the port may use the exports: write auth = \"none\" in the configuration, or --auth none"
        );
        problems.add(&listen.source, what);
    }
    listen
}

/// Keys that were named are asked for; to name them and let everybody in is a contradiction.
fn join_auth(
    said: Option<Said<AuthMode>>,
    authorize: &[String],
    file: Option<&Said<PathBuf>>,
    from_file: bool,
    problems: &mut Problems,
) -> Option<Said<AuthMode>> {
    let named = match (authorize.is_empty(), file) {
        (false, _) => Some(Source::CommandLine("--authorize")),
        (true, Some(file)) => Some(file.source.clone()),
        (true, None) => None,
    };
    if let Some(file) = file
        && let Err(error) = rdcp::server::check_authorized_keys(&file.value)
    {
        problems.add(&file.source, crate::with_causes(&error));
    }
    let Some(said) = said else {
        let value = AuthMode::Keys;
        return named.map(|source| Said { value, source });
    };
    match (said.value, &named) {
        (AuthMode::None, Some(source)) => {
            let what = "keys are authorized, and auth = \"none\" lets in everybody: leave out one";
            problems.add(source, what);
        }
        // By hand, there is the starter's own key.
        (AuthMode::Keys, None) if from_file => {
            let what = "nobody's key is authorized: write authorized_keys = \"/etc/rdcp/authorized_keys\" \
                        and list keys there; 'rdcp keygen' prints a client's";
            problems.add(&said.source, what);
        }
        _ => {}
    }
    Some(said)
}

fn join_state_dir(
    typed: Option<PathBuf>,
    config: Option<Said<PathBuf>>,
    from_file: bool,
    problems: &mut Problems,
) -> Said<PathBuf> {
    let chosen = match typed {
        Some(path) => std::path::absolute(&path)
            .map(|path| Said::by_option(path, "--state-dir"))
            .map_err(|error| format!("can't make `{}` absolute: {error}", path.display())),
        None => match config {
            Some(said) => Ok(said),
            None => state_dir::default(from_file).map(|(value, source)| Said { value, source }),
        },
    };
    chosen.unwrap_or_else(|what| {
        problems.add(&Source::Default, what);
        Said::default(PathBuf::new())
    })
}

fn join_filter(
    typed: Option<String>,
    verbose: u8,
    config: Option<Said<String>>,
    problems: &mut Problems,
) -> Said<String> {
    let filter = match (typed, verbose) {
        (Some(filter), _) => Said::by_option(filter, "--log"),
        (None, 1) => Said::by_option("debug".to_owned(), "-v"),
        (None, 2..) => Said::by_option("trace".to_owned(), "-vv"),
        (None, 0) => config.unwrap_or_else(|| Said::default(LOG_FILTER_DEFAULT.to_owned())),
    };
    if let Some(part) = wrong_directive(&filter.value) {
        let what = format!(
            "\"{}\" is no log filter (`{}`): write off, error, warn, info, debug or trace, or \
             directives such as info,rdcp=debug",
            filter.value.escape_debug(),
            part.escape_debug()
        );
        problems.add(&filter.source, what);
    }
    filter
}

/// The directive of a filter that says nothing. A word that is no level would be taken for the name of
/// a module, whose lines are then all there is: a misspelt level would switch the log off.
fn wrong_directive(filter: &str) -> Option<&str> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    if filter.contains('[') {
        // Spans and their fields may hold commas; they are seldom written by hand.
        return EnvFilter::try_new(filter).is_err().then_some(filter);
    }
    filter.split(',').find(|part| {
        let level = match part.split_once('=') {
            Some((target, level)) if !target.trim().is_empty() => level,
            Some(_) => return true,
            None => part,
        };
        !is_level(level.trim()) || EnvFilter::try_new(part).is_err()
    })
}

fn join_exports(
    typed: Vec<crate::args::ExportArg>,
    unverified: Option<bool>,
    config: Vec<Said<crate::config::ConfigExport>>,
    from_file: bool,
    problems: &mut Problems,
) -> Vec<Said<CheckedExport>> {
    let mut exports: Vec<Said<CheckedExport>> = Vec::new();
    let mut seen = Vec::new();
    for export in typed {
        let source = Source::CommandLine("--export");
        if seen.contains(&export.name) {
            let name = export.name.escape_debug();
            problems.add(
                &source,
                format!("`{name}` is exported twice: write two names"),
            );
            continue;
        }
        seen.push(export.name.clone());
        let path = std::path::absolute(&export.path).unwrap_or(export.path);
        add_export(
            export.name,
            path,
            Access {
                writable: export.writable,
                unverified,
                ..Access::default()
            },
            source,
            &mut exports,
            problems,
        );
    }
    for Said { value, source } in config {
        // The command line replaces what the file says about the same name.
        if !seen.contains(&value.name) {
            add_export(
                value.name,
                value.path,
                value.access,
                source,
                &mut exports,
                problems,
            );
        }
    }
    if exports.is_empty() && problems.is_empty() {
        let what = if from_file {
            "nothing to serve: write at least one [exports.NAME] with path = \"/...\" in it"
        } else {
            "nothing to serve: write --export NAME=PATH, or --config FILE"
        };
        problems.add(&Source::Default, what);
    }
    exports
}

fn add_export(
    name: String,
    path: PathBuf,
    access: Access,
    source: Source,
    exports: &mut Vec<Said<CheckedExport>>,
    problems: &mut Problems,
) {
    match CheckedExport::new(name, path, access) {
        Ok(value) => exports.push(Said { value, source }),
        Err(what) => problems.add(&source, what),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Joins a command line with a configuration text.
    fn join(arguments: &[&str], config: &str) -> Result<Settings, Vec<String>> {
        let args = Args::try_parse_from([&["rdcpd", "--state-dir", "/s"], arguments].concat())
            .expect("it can be parsed");
        let strings =
            |problems: Problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>();
        let config = Config::parse(Path::new("t.toml"), config).map_err(strings)?;
        Settings::join(args, config).map_err(strings)
    }

    const EXPORT: &str = "[exports.d]\npath = \"/usr\"\n";

    #[test]
    fn the_command_line_goes_before_the_file_and_the_file_before_defaults() {
        let config = format!("listen = [\"127.0.0.1:5\"]\ndrain_seconds = 1\n{EXPORT}");
        let settings = join(&["--listen", "[::1]:6", "-v"], &config).unwrap();
        assert_eq!(settings.listen.value, ["[::1]:6".parse().unwrap()]);
        assert_eq!(settings.log_filter.value, "debug");
        assert_eq!(settings.drain.value, Duration::from_secs(1));
        assert_eq!(
            settings.sessions_max,
            Said::default(ServerLimits::default().sessions_max)
        );
    }

    #[test]
    fn exports_of_both_are_joined_by_name() {
        let settings = join(&["--export", "d=/tmp:rw", "--export", "e=/tmp"], EXPORT).unwrap();
        let names: Vec<_> = settings
            .exports
            .iter()
            .map(|e| e.value.name.as_str())
            .collect();
        assert_eq!(names, ["d", "e"]);
        assert!(settings.exports[0].value.access.writable);
        assert!(
            join(&["--export", "d=/tmp", "--export", "d=/usr"], "").unwrap_err()[0]
                .contains("exported twice")
        );
    }

    #[test]
    fn other_addresses_than_loopback_need_the_words() {
        let open = format!("\nlisten = [\"127.0.0.1:1\", \"0.0.0.0:1\"]\n{EXPORT}");
        let error = &join(&[], &open).unwrap_err()[0];
        assert!(
            error.starts_with("t.toml:2: 0.0.0.0:1 can be reached"),
            "{error}"
        );
        assert!(error.contains("auth = \"none\""), "{error}");
        assert!(join(&["--auth", "none"], &open).is_ok());
        assert!(join(&[], &format!("auth = \"none\"{open}")).is_ok());
        assert!(join(&["--listen", "[::]:1"], EXPORT).is_err());
        assert!(join(&["--listen", "127.9.9.9:1"], EXPORT).is_ok());
    }

    #[test]
    fn nothing_to_serve_is_an_error() {
        assert!(join(&[], "").unwrap_err()[0].contains("--export NAME=PATH"));
        assert!(join(&[], "listen = []").unwrap_err()[0].contains("no address to listen on"));
        let twice = format!("listen = [\"127.0.0.1:5\", \"[::1]:5\", \"127.0.0.1:5\"]\n{EXPORT}");
        let told = join(&[], &twice).unwrap_err();
        assert!(told[0].contains("127.0.0.1:5 is there twice"), "{told:?}");
        let any = format!("listen = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\n{EXPORT}");
        assert!(join(&[], &any).is_ok());
    }

    #[test]
    fn a_wrong_filter_is_told_at_its_place() {
        let error = join(&[], &format!("[log]\nlevel = \"x=y=z\"\n{EXPORT}")).unwrap_err();
        assert!(
            error[0].starts_with("t.toml:2: \"x=y=z\" is no log filter"),
            "{error:?}"
        );
    }

    #[test]
    fn only_levels_and_directives_are_filters() {
        for filter in [
            "info",
            "WARN",
            "off",
            "info,rdcp=debug",
            "rdcpd=trace,rdcp=off",
            "[session]=debug",
        ] {
            assert_eq!(wrong_directive(filter), None, "{filter}");
        }
        for (filter, part) in [
            ("bogus", "bogus"),
            ("inf", "inf"),
            ("", ""),
            ("info,", ""),
            ("info, rdcp=off", " rdcp=off"),
            ("rdcp=loud", "rdcp=loud"),
            ("info,rdcp", "rdcp"),
            ("=info", "=info"),
            ("x=y=z", "x=y=z"),
        ] {
            assert_eq!(wrong_directive(filter), Some(part), "{filter}");
        }
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        let rules =
            "[exports.r]\npath = \"/usr\"\nrights = [\"list\", \"create\"]\nfrom = [\"::1\"]\n";
        let config = format!(
            "[rdma]\ndevices = [\"a:1\"]\ngid_index = 3\nconnect = \"cm\"\ncm_port = 4711\n{EXPORT}{rules}"
        );
        let first = join(&["--export", "a.b=/tmp:rw", "--auth", "none"], &config).unwrap();
        let shown = first.to_toml();
        let again = join(&[], &shown).unwrap();
        let exports = |settings: &Settings| {
            settings
                .exports
                .iter()
                .map(|e| e.value.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(exports(&again), exports(&first));
        assert_eq!(again.exports.len(), 3);
        assert_eq!(again.listen.value, first.listen.value);
        assert_eq!(again.rdma.options(), first.rdma.options());
        assert_eq!(again.rdma.options().gid_index, Some(3));
        let connect = (again.rdma.options().connect, again.rdma.options().cm_port);
        assert_eq!(connect, (rdcp::RdmaConnect::Cm, 4711));
        assert!(
            shown.contains("# --export") && shown.contains("# default"),
            "{shown}"
        );
    }
}
