//! The servers' keys that this user has accepted, by host and port.
//!
//! A text file that a person can edit, one server a line: `host:port fingerprint`, IPv6 addresses
//! in brackets, `#` begins a comment. It is only ever appended to, so lines that mean nothing here
//! stay as they are. A line of the very host that is asked for must make sense, though: to take a
//! damaged line for an unknown host would turn "changed" into "new".

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::Ipv6Addr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::session::own_key::Fingerprint;

/// A file beyond this is not a list of hosts that a user keeps.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// A server as the user names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    host: String,
    port: u16,
}

impl HostPort {
    /// A name or address, without brackets, and a port. Spellings of one host become the same.
    pub fn new(host: &str, port: u16) -> Self {
        let host = host.trim_end_matches('.');
        let host = match host.parse::<Ipv6Addr>() {
            Ok(address) => address.to_string(),
            Err(_) => host.to_ascii_lowercase(),
        };
        Self { host, port }
    }

    /// The name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Reads `host:port` or `[v6]:port`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let parsed = match bare {
            Some(address) => Self::new(address, port),
            None if host.contains(':') => return None,
            None => Self::new(host, port),
        };
        // Brackets around nothing, and dots alone, name no host.
        (!parsed.host.is_empty()).then_some(parsed)
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// What is known of a server's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostTrust {
    /// It is the key that was accepted before.
    Known,
    /// No key was ever accepted for this host and port.
    Unknown {
        /// The key that it shows.
        fingerprint: Fingerprint,
    },
    /// It shows another key than was accepted.
    Changed {
        /// The key that was accepted.
        known: Fingerprint,
        /// The key that it shows.
        presented: Fingerprint,
        /// The lines of the file that name keys of this host, counted from 1.
        lines: Vec<usize>,
    },
}

/// What to do about an unknown host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostDecision {
    /// No connection.
    Refuse,
    /// This connection, without writing it down.
    AcceptOnce,
    /// This connection and all later ones that show the same key.
    Remember,
}

/// Asked about hosts that are [`HostTrust::Unknown`], on a thread that may block. A changed key is
/// never asked about: it is refused.
pub type HostPolicy = Arc<dyn Fn(&HostTrust) -> HostDecision + Send + Sync>;

/// Why the file can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KnownHostsError {
    /// It can't be read or written.
    #[error("can't {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line about the host in question makes no sense.
    #[error("{path}, line {line}: {reason}; mend or remove that line")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The file is larger than any list of hosts.
    #[error("{path} is larger than {FILE_BYTES_MAX} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Another process accepted another key for this host a moment ago.
    #[error("{path} now names another key for {host}")]
    Conflict {
        /// The file.
        path: PathBuf,
        /// The host.
        host: HostPort,
    },
}

/// The file of accepted keys. It is read at every question, so edits count at once.
#[derive(Clone, Debug)]
pub struct KnownHosts {
    path: PathBuf,
}

impl KnownHosts {
    /// The file at `path`, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is known of the key that `host` presented.
    pub fn check(
        &self,
        host: &HostPort,
        presented: &Fingerprint,
    ) -> Result<HostTrust, KnownHostsError> {
        Ok(judge(&self.accepted(host)?, presented))
    }

    /// The key that was accepted for `host`, if one was: the first, should there be several.
    pub fn pinned(&self, host: &HostPort) -> Result<Option<Fingerprint>, KnownHostsError> {
        Ok(self.accepted(host)?.first().map(|(_, key)| *key))
    }

    /// The keys accepted for `host`, with their lines.
    fn accepted(&self, host: &HostPort) -> Result<Vec<Accepted>, KnownHostsError> {
        match File::open(&self.path) {
            Ok(file) => self.parse(&self.read(&file)?, host),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(self.failed("open", error)),
        }
    }

    /// Writes down that `host` shows this key. The file and its directory are made if need be.
    pub fn remember(
        &self,
        host: &HostPort,
        fingerprint: &Fingerprint,
    ) -> Result<(), KnownHostsError> {
        let file = self.open_locked()?;
        let text = self.read(&file)?;
        // Looked at again under the lock: another process may have asked the same question.
        match judge(&self.parse(&text, host)?, fingerprint) {
            HostTrust::Known => return Ok(()),
            HostTrust::Unknown { .. } => {}
            HostTrust::Changed { .. } => {
                return Err(KnownHostsError::Conflict {
                    path: self.path.clone(),
                    host: host.clone(),
                });
            }
        }
        // One write of one line; a last line without an end, by an editor or a crash, gets one.
        let separator = if text.is_empty() || text.ends_with(b"\n") {
            ""
        } else {
            "\n"
        };
        let line = format!("{separator}{host} {fingerprint}\n");
        let mut appending = &file;
        appending
            .write_all(line.as_bytes())
            .map_err(|error| self.failed("write", error))?;
        match file.sync_all() {
            // No file but /dev/null or the like: who names that wants nothing kept.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
            synced => synced.map_err(|error| self.failed("write", error)),
        }
    }

    /// Opens the file to read and append; closing it gives the lock back.
    fn open_locked(&self) -> Result<File, KnownHostsError> {
        if let Some(directory) = self
            .path
            .parent()
            .filter(|path| !path.as_os_str().is_empty())
        {
            let made = DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory);
            made.map_err(|error| self.failed("make the directory of", error))?;
        }
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        let file = options
            .open(&self.path)
            .map_err(|error| self.failed("open", error))?;
        let locked = flock(&file, FlockOperation::LockExclusive);
        locked.map_err(|error| self.failed("lock", error.into()))?;
        Ok(file)
    }

    fn read(&self, file: &File) -> Result<Vec<u8>, KnownHostsError> {
        let mut text = Vec::new();
        let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text);
        let len = read.map_err(|error| self.failed("read", error))?;
        if u64::try_from(len).is_ok_and(|len| len <= FILE_BYTES_MAX) {
            return Ok(text);
        }
        Err(KnownHostsError::TooLarge {
            path: self.path.clone(),
        })
    }

    /// The keys accepted for `host`, with their lines. Lines of others that make no sense are named in the log.
    pub(crate) fn parse(
        &self,
        text: &[u8],
        host: &HostPort,
    ) -> Result<Vec<Accepted>, KnownHostsError> {
        let mut found = Vec::new();
        for (line, number) in text.split(|byte| *byte == b'\n').zip(1..) {
            match parse_line(line) {
                Line::Nothing => {}
                Line::Entry(name, key) if name == *host => found.push((number, key)),
                Line::Entry(..) => {}
                Line::Damaged(Some(name), reason) if name == *host => {
                    let path = self.path.clone();
                    return Err(KnownHostsError::Line {
                        path,
                        line: number,
                        reason,
                    });
                }
                Line::Damaged(_, reason) => {
                    tracing::warn!(path = %self.path.display(), line = number, reason, "known hosts");
                }
            }
        }
        Ok(found)
    }

    fn failed(&self, action: &'static str, source: io::Error) -> KnownHostsError {
        KnownHostsError::Io {
            action,
            path: self.path.clone(),
            source,
        }
    }
}

enum Line {
    Nothing,
    Entry(HostPort, Fingerprint),
    Damaged(Option<HostPort>, &'static str),
}

fn parse_line(line: &[u8]) -> Line {
    let Ok(line) = std::str::from_utf8(line) else {
        return Line::Damaged(None, "the line is not UTF-8");
    };
    let mut words = line.split_ascii_whitespace();
    let Some(name) = words.next().filter(|word| !word.starts_with('#')) else {
        return Line::Nothing;
    };
    let Some(host) = HostPort::parse(name) else {
        return Line::Damaged(None, "the line does not begin with host:port");
    };
    let Some(key) = words.next().and_then(|word| word.parse().ok()) else {
        return Line::Damaged(Some(host), "the host is not followed by a fingerprint");
    };
    match words.next() {
        Some(word) if !word.starts_with('#') => {
            Line::Damaged(Some(host), "something follows the fingerprint")
        }
        _ => Line::Entry(host, key),
    }
}

/// An accepted key and its line, counted from 1.
pub(crate) type Accepted = (usize, Fingerprint);

fn judge(known: &[Accepted], presented: &Fingerprint) -> HostTrust {
    match known.first() {
        None => HostTrust::Unknown {
            fingerprint: *presented,
        },
        Some(_) if known.iter().any(|(_, key)| key == presented) => HostTrust::Known,
        Some((_, first)) => HostTrust::Changed {
            known: *first,
            presented: *presented,
            lines: known.iter().map(|(line, _)| *line).collect(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::own_key::OwnKey;

    fn key() -> Fingerprint {
        OwnKey::ephemeral().unwrap().fingerprint()
    }

    fn file() -> (tempfile::TempDir, KnownHosts) {
        let directory = tempfile::tempdir().unwrap();
        let known = KnownHosts::new(directory.path().join("rdcp/known_hosts"));
        (directory, known)
    }

    #[test]
    fn a_host_is_unknown_then_known_then_changed() {
        let (_directory, hosts) = file();
        let (mine, other) = (key(), key());
        let host = HostPort::new("Store-1.example.", 20471);
        let unknown = HostTrust::Unknown { fingerprint: mine };
        assert_eq!(hosts.check(&host, &mine).unwrap(), unknown);
        hosts.remember(&host, &mine).unwrap();
        hosts.remember(&host, &mine).unwrap();
        assert_eq!(hosts.check(&host, &mine).unwrap(), HostTrust::Known);
        let changed = HostTrust::Changed {
            known: mine,
            presented: other,
            lines: vec![1],
        };
        assert_eq!(hosts.check(&host, &other).unwrap(), changed);
        assert!(matches!(
            hosts.remember(&host, &other),
            Err(KnownHostsError::Conflict { .. })
        ));
        let same_name_other_port = HostPort::new("store-1.example", 1);
        assert!(matches!(
            hosts.check(&same_name_other_port, &mine),
            Ok(HostTrust::Unknown { .. })
        ));
        let text = std::fs::read_to_string(hosts.path()).unwrap();
        assert_eq!(text, format!("store-1.example:20471 {mine}\n"));
    }

    #[test]
    fn addresses_are_told_apart_from_their_ports() {
        let (_directory, hosts) = file();
        let mine = key();
        hosts
            .remember(&HostPort::new("2001:DB8::0:1", 9), &mine)
            .unwrap();
        let text = std::fs::read_to_string(hosts.path()).unwrap();
        assert_eq!(text, format!("[2001:db8::1]:9 {mine}\n"));
        assert_eq!(
            hosts
                .check(&HostPort::new("2001:db8::1", 9), &mine)
                .unwrap(),
            HostTrust::Known
        );
        assert_eq!(HostPort::parse("2001:db8::1"), None);
        for nameless in [":9", "[]:9", ".:9", "[.]:9"] {
            assert_eq!(HostPort::parse(nameless), None, "{nameless}");
        }
        for spelling in ["[0:0::1.]:9", "Store.:9", "[fe80::1%eth0]:9", "[store]:9"] {
            let host = HostPort::parse(spelling).unwrap();
            assert_eq!(HostPort::parse(&host.to_string()), Some(host), "{spelling}");
        }
    }

    #[test]
    fn other_lines_stay_and_a_damaged_line_of_the_host_is_named() {
        let (_directory, hosts) = file();
        let mine = key();
        std::fs::create_dir_all(hosts.path().parent().unwrap()).unwrap();
        let before = b"# mine\n\nnonsense \xff\ncut:1 SHA256:abc\nlast:1 x".to_vec();
        std::fs::write(hosts.path(), &before).unwrap();
        hosts.remember(&HostPort::new("new", 1), &mine).unwrap();
        let text = std::fs::read(hosts.path()).unwrap();
        assert!(text.starts_with(&before));
        assert_eq!(
            hosts.check(&HostPort::new("new", 1), &mine).unwrap(),
            HostTrust::Known
        );
        let error = hosts.check(&HostPort::new("cut", 1), &mine).unwrap_err();
        assert!(
            matches!(error, KnownHostsError::Line { line: 4, .. }),
            "{error}"
        );
        assert!(hosts.remember(&HostPort::new("last", 1), &mine).is_err());
    }

    #[test]
    fn processes_that_remember_at_once_lose_no_line() {
        let (_directory, hosts) = file();
        let mine = key();
        std::thread::scope(|scope| {
            for port in 1..20 {
                let hosts = &hosts;
                scope.spawn(move || hosts.remember(&HostPort::new("h", port), &mine).unwrap());
            }
        });
        for port in 1..20 {
            let trust = hosts.check(&HostPort::new("h", port), &mine).unwrap();
            assert_eq!(trust, HostTrust::Known);
        }
    }
}
