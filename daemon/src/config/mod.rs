//! The configuration file: TOML text in, typed values with their places out, or everything that is
//! wrong with it. It knows nothing of the command line and touches no file but the one it reads;
//! [`settings`](crate::settings) joins it with the rest and looks at directories.

mod keys;
pub(crate) mod problem;
pub(crate) mod rdma;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use toml::de::DeTable;

use self::problem::{Places, Problems, Source};
use self::rdma::{ConfigRdma, RawRdma};
use crate::args::parse_listen;
use crate::export::Access;
use crate::settings::{AuthMode, LogFormat, Said};

/// Largest configuration file that is read: thousands of exports fit, a device file does not.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// What a configuration file says, each value with its place. What it does not say is `None`.
#[derive(Debug, Default)]
pub(crate) struct Config {
    pub(crate) listen: Option<Said<Vec<SocketAddr>>>,
    pub(crate) audit: Option<Said<PathBuf>>,
    pub(crate) state_dir: Option<Said<PathBuf>>,
    pub(crate) auth: Option<Said<AuthMode>>,
    pub(crate) authorized_keys: Option<Said<PathBuf>>,
    pub(crate) drain_seconds: Option<Said<u32>>,
    pub(crate) sessions_max: Option<Said<usize>>,
    pub(crate) log_format: Option<Said<LogFormat>>,
    pub(crate) log_filter: Option<Said<String>>,
    pub(crate) rdma: ConfigRdma,
    pub(crate) exports: Vec<Said<ConfigExport>>,
}

/// One `[exports.NAME]`.
#[derive(Debug)]
pub(crate) struct ConfigExport {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) access: Access,
}

/// The file as serde sees it: right types, nothing checked.
#[derive(Deserialize)]
struct RawConfig {
    audit: Option<Spanned<PathBuf>>,
    listen: Option<Spanned<Vec<Spanned<String>>>>,
    state_dir: Option<Spanned<PathBuf>>,
    auth: Option<Spanned<String>>,
    authorized_keys: Option<Spanned<PathBuf>>,
    drain_seconds: Option<Spanned<u32>>,
    #[serde(default)]
    limits: RawLimits,
    #[serde(default)]
    log: RawLog,
    #[serde(default)]
    rdma: RawRdma,
    #[serde(default)]
    groups: BTreeMap<Spanned<String>, Vec<String>>,
    #[serde(default)]
    exports: BTreeMap<Spanned<String>, RawExport>,
}

#[derive(Default, Deserialize)]
struct RawLimits {
    sessions_max: Option<Spanned<usize>>,
}

#[derive(Default, Deserialize)]
struct RawLog {
    format: Option<Spanned<String>>,
    level: Option<Spanned<String>>,
}

#[derive(Deserialize)]
struct RawExport {
    path: Spanned<PathBuf>,
    writable: Option<bool>,
    rights: Option<Spanned<Vec<String>>>,
    clients: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default)]
    from: Vec<String>,
    integrity: Option<Spanned<String>>,
}

impl Config {
    /// Reads and checks a configuration file.
    pub(crate) fn read(path: &Path) -> Result<Self, Problems> {
        let text = read_text(path).map_err(|what| {
            let mut problems = Problems::default();
            problems.add(&Source::CommandLine("--config"), what);
            problems
        })?;
        Self::parse(path, &text)
    }

    /// Checks a configuration text; `path` is for messages only.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, Problems> {
        let places = Places::new(path, text);
        let mut problems = Problems::default();
        match DeTable::parse(text) {
            Ok(table) => keys::refuse_wrong(table.get_ref(), &places, &mut problems),
            Err(error) => {
                add_toml_error(&error, &places, &mut problems);
                return Err(problems);
            }
        }
        match toml::from_str::<RawConfig>(text) {
            Ok(raw) => {
                let config = Checker {
                    places: &places,
                    problems: &mut problems,
                }
                .check(raw);
                problems.into_result(config)
            }
            Err(error) => {
                add_toml_error(&error, &places, &mut problems);
                Err(problems)
            }
        }
    }
}

/// Turns raw values into checked ones and notes those that can't be.
struct Checker<'c> {
    places: &'c Places<'c>,
    problems: &'c mut Problems,
}

impl Checker<'_> {
    fn check(&mut self, raw: RawConfig) -> Config {
        let groups = self.groups(raw.groups);
        Config {
            listen: raw.listen.map(|list| self.listen(list)),
            audit: raw.audit.map(|path| self.absolute("audit", path)),
            state_dir: raw.state_dir.map(|path| self.absolute("state_dir", path)),
            auth: raw.auth.and_then(|text| {
                self.word(
                    "auth",
                    &text,
                    &[("keys", AuthMode::Keys), ("none", AuthMode::None)],
                    "",
                )
            }),
            authorized_keys: raw
                .authorized_keys
                .map(|path| self.absolute("authorized_keys", path)),
            drain_seconds: raw.drain_seconds.map(|value| self.said(value)),
            sessions_max: raw.limits.sessions_max.map(|value| {
                let value = self.said(value);
                if value.value == 0 {
                    self.problems.add(
                        &value.source,
                        "`limits.sessions_max` is 0: write at least 1",
                    );
                }
                value
            }),
            log_format: raw.log.format.and_then(|text| {
                let known = [("text", LogFormat::Text), ("json", LogFormat::Json)];
                self.word("log.format", &text, &known, "")
            }),
            log_filter: raw.log.level.map(|text| self.said(text)),
            rdma: ConfigRdma::check(raw.rdma, self.places, self.problems),
            exports: raw
                .exports
                .into_iter()
                .map(|(name, export)| self.export(name, export, &groups))
                .collect(),
        }
    }

    fn said<T>(&self, value: Spanned<T>) -> Said<T> {
        let source = self.places.at(value.span().start);
        Said {
            value: value.into_inner(),
            source,
        }
    }

    fn listen(&mut self, list: Spanned<Vec<Spanned<String>>>) -> Said<Vec<SocketAddr>> {
        let source = self.places.at(list.span().start);
        let mut addresses = Vec::new();
        for text in list.into_inner() {
            match parse_listen(text.get_ref()) {
                Ok(address) => addresses.push(address),
                Err(what) => self.problems.add(&self.places.at(text.span().start), what),
            }
        }
        Said {
            value: addresses,
            source,
        }
    }

    fn absolute(&mut self, key: &str, path: Spanned<PathBuf>) -> Said<PathBuf> {
        let path = self.said(path);
        if !path.value.is_absolute() {
            let what = format!(
                "`{key}` is `{}`: write a path that begins with `/`; nothing is taken from the \
                 working directory of a service",
                path.value.display().to_string().escape_debug()
            );
            self.problems.add(&path.source, what);
        }
        path
    }

    fn word<T: Copy>(
        &mut self,
        key: &str,
        text: &Spanned<String>,
        known: &[(&str, T)],
        reason: &str,
    ) -> Option<Said<T>> {
        let source = self.places.at(text.span().start);
        if let Some((_, value)) = known.iter().find(|(word, _)| word == text.get_ref()) {
            return Some(Said {
                value: *value,
                source,
            });
        }
        let words: Vec<_> = known
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect();
        let got = text.get_ref().escape_debug();
        let what = format!("`{key}` is \"{got}\": write {}{reason}", words.join(" or "));
        self.problems.add(&source, what);
        None
    }

    fn groups(&mut self, raw: BTreeMap<Spanned<String>, Vec<String>>) -> Groups {
        let mut groups = Groups::new();
        for (name, keys) in raw {
            let source = self.places.at(name.span().start);
            let name = name.into_inner();
            if let Some(wrong) = keys.iter().find_map(|key| wrong_key(key)) {
                let what = format!("group `{}`: {wrong}", name.escape_debug());
                self.problems.add(&source, what);
            }
            groups.insert(name, keys);
        }
        groups
    }

    fn export(
        &mut self,
        name: Spanned<String>,
        raw: RawExport,
        groups: &Groups,
    ) -> Said<ConfigExport> {
        let source = self.places.at(name.span().start);
        let path = self.absolute("path", raw.path).value;
        let rights = raw.rights.map(|rights| self.said(rights));
        if let (Some(rights), Some(_)) = (&rights, raw.writable) {
            let what = "`rights` and `writable` say the same twice: write one of them";
            self.problems.add(&rights.source, what.to_owned());
        }
        let access = Access {
            writable: raw.writable.unwrap_or(false),
            rights: rights.map(|rights| rights.value),
            clients: raw
                .clients
                .map(|list| self.clients(list.into_inner(), groups)),
            networks: raw.from,
            unverified: raw.integrity.and_then(|text| {
                let known = [("required", false), ("optional", true)];
                self.word("integrity", &text, &known, "")
                    .map(|said| said.value)
            }),
        };
        let name = name.into_inner();
        Said {
            value: ConfigExport { name, path, access },
            source,
        }
    }

    /// Keys, with the groups among them replaced by theirs.
    fn clients(&mut self, list: Vec<Spanned<String>>, groups: &Groups) -> Vec<String> {
        let mut keys = Vec::new();
        for client in list {
            let source = self.places.at(client.span().start);
            let client = client.into_inner();
            match client
                .strip_prefix(GROUP_MARK)
                .map(|name| (name, groups.get(name)))
            {
                Some((_, Some(group))) => keys.extend_from_slice(group),
                Some((name, None)) => {
                    let name = name.escape_debug();
                    let what = format!(
                        "no group is called `{name}`: write it as a list of keys under [groups]"
                    );
                    self.problems.add(&source, what);
                }
                None => match wrong_key(&client) {
                    Some(what) => self.problems.add(&source, what),
                    None => keys.push(client),
                },
            }
        }
        keys
    }
}

/// What begins a name of `[groups]` where a key may stand too.
const GROUP_MARK: char = '@';

/// The keys of each group.
type Groups = BTreeMap<String, Vec<String>>;

/// What to write in place of what is no key.
fn wrong_key(text: &str) -> Option<String> {
    let error = rdcp::server::check_key(text).err()?;
    Some(format!(
        "{error}: write SHA256:..., as 'rdcp keygen' prints it, or {GROUP_MARK}GROUP"
    ))
}

fn add_toml_error(error: &toml::de::Error, places: &Places<'_>, problems: &mut Problems) {
    let start = error.span().map_or(0, |span| span.start);
    let place = places.at(start);
    // A wrong type was told already, in words that are not those of the program's inside.
    if problems.are_about(&place) {
        return;
    }
    // The parser's message may have several lines; a problem has one.
    problems.add(&place, error.message().trim().replace('\n', ", "));
}

fn read_text(path: &Path) -> Result<String, String> {
    use std::io::Read;

    let shown = path.display();
    let file = std::fs::File::open(path).map_err(|error| format!("can't open {shown}: {error}"))?;
    let mut bytes = Vec::new();
    file.take(CONFIG_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("can't read {shown}: {error}"))?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(format!(
            "{shown} is larger than {CONFIG_BYTES_MAX} bytes: not a configuration"
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..at]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        format!("{shown}:{line}: not UTF-8: write the file as UTF-8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, Vec<String>> {
        Config::parse(Path::new("t.toml"), text)
            .map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    fn errors(text: &str) -> Vec<String> {
        parse(text).expect_err("the text is wrong")
    }

    #[test]
    fn a_whole_file_is_read_with_places() {
        let config = parse(concat!(
            "listen = [\"127.0.0.1:1\", \"[::1]:2\"]\n",
            "state_dir = \"/var/lib/rdcp\"\n",
            "auth = \"none\"\n",
            "drain_seconds = 5\n",
            "[limits]\nsessions_max = 7\n",
            "[log]\nformat = \"json\"\nlevel = \"debug\"\n",
            "[rdma]\nenabled = false\n",
            "[exports.a]\npath = \"/srv\"\n",
            "[exports.\"b.c\"]\npath = \"/tmp\"\nwritable = true\n",
        ))
        .expect("it is right");
        assert_eq!(config.listen.unwrap().value.len(), 2);
        assert_eq!(config.sessions_max.as_ref().unwrap().value, 7);
        let file = |line| Source::File {
            path: "t.toml".into(),
            line,
        };
        assert_eq!(config.sessions_max.unwrap().source, file(6));
        assert_eq!(config.exports[0].value.name, "a");
        assert_eq!(config.exports[1].value.name, "b.c");
        assert_eq!(config.exports[1].source, file(14));
        assert!(!config.rdma.options().enabled);
        assert!(config.exports[1].value.access.writable);
    }

    #[test]
    fn an_empty_file_says_nothing() {
        let config = parse("").expect("it is right");
        assert!(config.listen.is_none() && config.exports.is_empty());
    }

    #[test]
    fn unknown_keys_are_refused_with_line_and_nearest_key() {
        assert_eq!(
            errors("\n[exports.d]\npath = \"/srv\"\nwriteable = true\n"),
            ["t.toml:4: unknown key `exports.d.writeable`; did you mean `writable`?"]
        );
        assert_eq!(
            errors("lisen = []\n[limits]\nsession_max = 1\n[log]\nzzz = 1\n"),
            [
                "t.toml:1: unknown key `lisen`; did you mean `listen`?",
                "t.toml:3: unknown key `limits.session_max`; did you mean `sessions_max`?",
                "t.toml:5: unknown key `log.zzz`; known here: format, level",
            ]
        );
    }

    #[test]
    fn wrong_values_say_line_and_what_to_write() {
        for (text, part) in [
            (
                "\nlisten = [\n\"0.0.0.0\"]",
                "t.toml:3: `0.0.0.0` has no port: write 0.0.0.0:20471",
            ),
            (
                "auth = \"key\"",
                "t.toml:1: `auth` is \"key\": write \"keys\" or \"none\"",
            ),
            (
                "[log]\nformat = \"xml\"",
                "t.toml:2: `log.format` is \"xml\": write \"text\" or",
            ),
            (
                "state_dir = \"x\"",
                "t.toml:1: `state_dir` is `x`: write a path that begins",
            ),
            (
                "[exports.a]\npath = \"x\"",
                "t.toml:2: `path` is `x`: write a path that begins",
            ),
            (
                "[limits]\nsessions_max = 0",
                "t.toml:2: `limits.sessions_max` is 0: write at least",
            ),
            (
                "[limits]\nsessions_max = -1",
                "t.toml:2: `limits.sessions_max` must be a number from 0 to",
            ),
            (
                "drain_seconds = 1.5",
                "t.toml:1: `drain_seconds` must be a number from 0 to",
            ),
            (
                "listen = \"127.0.0.1:1\"",
                "t.toml:1: `listen` must be a list of texts in quotes",
            ),
            (
                "listen = [1]",
                "t.toml:1: `listen` must be a list of texts in quotes",
            ),
            (
                "[exports]\na = \"/srv\"",
                "t.toml:2: `exports.a` must be a table: write [exports.a]",
            ),
            (
                "[exports.a]\npath = 1",
                "t.toml:2: `exports.a.path` must be a text in quotes",
            ),
            (
                "[exports.a]\npath = \"/srv\"\nwritable = \"yes\"",
                "t.toml:3: `exports.a.writable` must be true or false",
            ),
            ("log = 1", "t.toml:1: `log` must be a table of keys"),
            (
                "[exports.a]\nwritable = true",
                "t.toml:1: `exports.a.path` is missing: write path",
            ),
            (
                "[rdma]\nservice_level = 16",
                "t.toml:2: `rdma.service_level` must be a number from 0 to 15",
            ),
            (
                "[rdma]\nqps_per_rail = 0",
                "t.toml:2: `rdma.qps_per_rail` must be a number from 1 to 8",
            ),
            (
                "[rdma]\npeer_networks = [\n\"10.0.0.1/8\"]",
                "t.toml:3: `10.0.0.1/8` has bits behind its prefix: write 10.0.0.0/8",
            ),
            (
                "[rdma]\nmemory = \"disk\"",
                "t.toml:2: `rdma.memory` is \"disk\": write \"auto\", \"odp\", \"mmap\" or \"pool\"",
            ),
            (
                "[rdma]\nconnect = \"rdma_cm\"",
                "t.toml:2: `rdma.connect` is \"rdma_cm\": write \"direct\" or \"cm\"",
            ),
            (
                "[rdma]\ntimeout = 300",
                "t.toml:2: `rdma.timeout` must be a number from 1 to 31",
            ),
            (
                "[rdma]\ngid_index = 300",
                "t.toml:2: `rdma.gid_index` must be a number from 0 to 255",
            ),
            (
                "[rdma]\ncm_port = 65536",
                "t.toml:2: `rdma.cm_port` must be a number from 0 to 65535",
            ),
            ("a = = 1", "t.toml:1: "),
        ] {
            let all = errors(text);
            assert!(all[0].starts_with(part), "{all:?} begins with {part:?}");
        }
    }

    #[test]
    fn every_problem_is_told_at_once() {
        assert_eq!(
            errors("auth = \"x\"\nstate_dir = \"y\"\n[log]\nformat = \"z\"\n").len(),
            3
        );
    }

    #[test]
    fn the_example_files_are_right_and_the_long_one_shows_every_key() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config");
        let mut seen = 0;
        for entry in std::fs::read_dir(directory).expect("config/ is there") {
            let path = entry.expect("it can be listed").path();
            let text = std::fs::read_to_string(&path).expect("it can be read");
            let parsed = Config::parse(&path, &text);
            assert!(parsed.is_ok(), "{parsed:?}");
            seen += 1;
            if path.file_name().is_some_and(|name| name == "rdcpd.toml") {
                for key in [keys::TOP, keys::LIMITS, keys::LOG, keys::RDMA, keys::EXPORT].concat() {
                    assert!(text.contains(key), "{key} is missing in {}", path.display());
                }
            }
        }
        assert!(seen >= 2);
    }
}
