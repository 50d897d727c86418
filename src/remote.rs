//! How a person writes a place on a server: `host:/export/path` and `rdcp://host[:port]/export/path`.
//!
//! A word from a command line goes in; a checked [`Remote`], or "this is a local path", comes out.
//! Names are bytes from end to end. Nothing here resolves hosts, opens files or knows a client.
//!
//! The grammar:
//!
//! ```text
//! rdcp://host[:port]/export/path   percent-decoded; the only form that carries a daemon's port
//! ssh://[user@]host[:port]/path     percent-decoded; no daemon has to run, ssh starts one; an absolute path
//! host:/export/path                taken as it stands
//! [v6addr]:/export/path            likewise; brackets because the address holds colons
//! anything else with a colon before its first slash is an error, never a local file
//! everything else is local; ./a:b is the local file "a:b"
//! ```

use std::ffi::OsStr;
use std::fmt;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt;

use crate::error::{Error, ErrorKind};
use crate::limits::PATH_BYTES_MAX;

/// The port that servers listen on unless told otherwise.
pub const DEFAULT_PORT: u16 = 20471;

/// The export in which a server that was started by ssh serves everything.
pub const SSH_EXPORT: &str = "host";

/// How ssh is to log in on a host. What is not said is as ssh's own configuration has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SshLogin {
    /// The user there.
    pub user: Option<String>,
    /// The port of the ssh daemon.
    pub port: Option<u16>,
}

/// A place on a server, as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Remote {
    /// How to log in, if the server is to be started by ssh.
    pub ssh: Option<SshLogin>,
    /// Name or address of the server; IPv6 addresses without brackets. With ssh, what ssh calls it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The export's name; empty for the server's top, where the exports are.
    pub export: String,
    /// Bytes below the export, without slashes at either end; empty for the export's top.
    pub path: Vec<u8>,
    /// It was written with a slash (or `/.`) at its end: of a source the contents are meant, of a
    /// destination the inside.
    pub trailing_slash: bool,
}

impl Remote {
    /// A server's top, where its exports are.
    pub fn top(host: impl Into<String>, port: u16) -> Self {
        Self {
            ssh: None,
            host: host.into(),
            port,
            export: String::new(),
            path: Vec::new(),
            trailing_slash: true,
        }
    }

    /// Reads a word. `None`: it is a local path. An error: it is neither.
    pub fn parse(word: &OsStr) -> Result<Option<Self>, Error> {
        let bytes = word.as_bytes();
        if let Some((scheme, rest)) = split_scheme(bytes) {
            return match scheme.to_ascii_lowercase().as_slice() {
                b"rdcp" => Self::from_url(word, rest).map(Some),
                b"ssh" => Self::from_ssh_url(word, rest).map(Some),
                _ => Err(usage(word, "not a scheme that rdcp knows")
                    .with_hint("write host:/export/path or rdcp://host/export/path; ./ before it makes it local")),
            };
        }
        if let Some(rest) = bytes.strip_prefix(b"[") {
            // A local name may start with a bracket; only "]:" before the first slash makes it remote.
            let head = rest.split(|byte| *byte == b'/').next().unwrap_or_default();
            let Some(end) = head.windows(2).position(|pair| pair == b"]:") else {
                return if head.contains(&b':') {
                    Err(no_absolute_path(word))
                } else {
                    Ok(None)
                };
            };
            let host = host_v6(word, &rest[..end])?;
            let path = &rest[end + 2..];
            if !path.starts_with(b"/") {
                return Err(usage(word, "a remote path starts with ':/'").with_hint(format!(
                    "write [{host}]:/export/path, or rdcp://[{host}]:PORT/export/path for a port"
                )));
            }
            return Self::from_parts(word, host, DEFAULT_PORT, path).map(Some);
        }
        let Some(colon) = bytes.iter().position(|byte| matches!(byte, b':' | b'/')) else {
            return Ok(None);
        };
        if bytes[colon] == b'/' {
            return Ok(None);
        }
        let path = &bytes[colon + 1..];
        if !path.starts_with(b"/") {
            return Err(no_absolute_path(word));
        }
        let host = host_name(word, &bytes[..colon])?;
        Self::from_parts(word, host, DEFAULT_PORT, path).map(Some)
    }

    /// Reads a server without a path: `host`, `host:port`, `[v6]`, `[v6]:port`, a bare IPv6 address,
    /// or any form that [`Remote::parse`] takes, whose path is then ignored.
    pub fn parse_server(word: &OsStr) -> Result<(String, u16), Error> {
        let bytes = word.as_bytes();
        if bytes.contains(&b'/') {
            return match Self::parse(word)? {
                Some(Self { ssh: Some(_), .. }) => Err(usage(word, "no server that runs by itself")
                    .with_hint("what ssh starts ends with the command: ask about the host's own rdcpd, by host:port")),
                Some(remote) => Ok((remote.host, remote.port)),
                None => Err(usage(word, "not a host")
                    .with_hint("write host, host:port or rdcp://host:port")),
            };
        }
        let bare_v6 = std::str::from_utf8(bytes).is_ok_and(is_v6);
        if bare_v6 {
            return Ok((host_v6(word, bytes)?, DEFAULT_PORT));
        }
        // "host:" is what remains when the path of host:/path was left out.
        let (host, port) = authority(word, bytes.strip_suffix(b":").unwrap_or(bytes))?;
        Ok((host, port.unwrap_or(DEFAULT_PORT)))
    }

    fn from_url(word: &OsStr, rest: &[u8]) -> Result<Self, Error> {
        let (server, path) = split_path(rest);
        let (host, port) = authority(word, server)?;
        let path = url_path(word, path)?;
        Self::from_parts(word, host, port.unwrap_or(DEFAULT_PORT), &path)
    }

    fn from_ssh_url(word: &OsStr, rest: &[u8]) -> Result<Self, Error> {
        let (server, path) = split_path(rest);
        let at = server.iter().rposition(|byte| *byte == b'@');
        let user = at.map(|at| ssh_user(word, &server[..at])).transpose()?;
        let (host, port) = authority(word, &server[at.map_or(0, |at| at + 1)..])?;
        let path = url_path(word, path)?;
        if path.is_empty() {
            return Err(usage(word, "no path behind the host")
                .with_hint(format!("write ssh://{host}/ and the absolute path there")));
        }
        if path.starts_with(b"/~") {
            return Err(usage(word, "'~' in a URL is no home directory")
                .with_hint("write the absolute path, such as ssh://host/home/me/data"));
        }
        let mut below = format!("/{SSH_EXPORT}").into_bytes();
        below.extend_from_slice(&path);
        let remote = Self::from_parts(word, host, DEFAULT_PORT, &below)?;
        Ok(Self {
            ssh: Some(SshLogin { user, port }),
            ..remote
        })
    }

    /// Takes what stands behind the host apart: `path` is empty or starts with a slash.
    fn from_parts(word: &OsStr, host: String, port: u16, path: &[u8]) -> Result<Self, Error> {
        if path.contains(&0) {
            return Err(usage(word, "a path with a NUL byte"));
        }
        let trailing_slash = path.ends_with(b"/") || path.ends_with(b"/.");
        let mut parts = path
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty() && **part != b"."[..]);
        let export = parts.next().unwrap_or_default();
        let below = parts.collect::<Vec<_>>();
        if export == b".." || below.contains(&&b".."[..]) {
            // Where symlinks are about, ".." means different things to different readers.
            return Err(usage(word, "'..' in a remote path").with_hint("write the path without it"));
        }
        let export = std::str::from_utf8(export)
            .map_err(|_| usage(word, "the name of an export is not UTF-8"))?
            .to_owned();
        let path = below.join(&b'/');
        if path.len() > PATH_BYTES_MAX {
            return Err(usage(
                word,
                format!("a path of more than {PATH_BYTES_MAX} bytes"),
            ));
        }
        Ok(Self {
            ssh: None,
            host,
            port,
            export,
            path,
            trailing_slash,
        })
    }

    /// Last component of the path; empty for an export's top.
    pub fn file_name(&self) -> &[u8] {
        self.path
            .rsplit(|byte| *byte == b'/')
            .next()
            .unwrap_or_default()
    }

    /// What it is called where it arrives: the last component, or the export's name for its top.
    pub fn own_name(&self) -> &[u8] {
        match self.file_name() {
            b"" => self.export.as_bytes(),
            name => name,
        }
    }

    /// The shortest form that means the same, byte for byte.
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.ssh.is_some() || self.port != DEFAULT_PORT || self.path.is_empty() {
            return self.to_string().into_bytes();
        }
        let mut top = self.clone();
        top.path.clear();
        let mut bytes = top.to_string().into_bytes();
        bytes.push(b'/');
        bytes.extend_from_slice(&self.path);
        bytes
    }

    /// Whether both are on the same server.
    pub fn same_server(&self, other: &Self) -> bool {
        self.ssh == other.ssh
            && self.port == other.port
            && self.host.eq_ignore_ascii_case(&other.host)
    }
}

/// The shortest form that means the same; bytes that are no text are shown as U+FFFD.
impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v6 = self.host.contains(':');
        let (open, close) = if v6 { ("[", "]") } else { ("", "") };
        if let Some(SshLogin { user, port }) = &self.ssh {
            f.write_str("ssh://")?;
            if let Some(user) = user {
                write!(f, "{user}@")?;
            }
            write!(f, "{open}{}{close}", self.host)?;
            if let Some(port) = port {
                write!(f, ":{port}")?;
            }
            f.write_str("/")?;
            return percent_encoded(f, &self.path);
        }
        if self.port == DEFAULT_PORT {
            write!(f, "{open}{}{close}:/{}", self.host, self.export)?;
            if !self.path.is_empty() {
                write!(f, "/{}", String::from_utf8_lossy(&self.path))?;
            }
            return Ok(());
        }
        write!(f, "rdcp://{open}{}{close}:{}/", self.host, self.port)?;
        percent_encoded(f, self.export.as_bytes())?;
        if !self.path.is_empty() {
            f.write_str("/")?;
            percent_encoded(f, &self.path)?;
        }
        Ok(())
    }
}

/// `scheme://rest`, if the word starts like a URL.
fn split_scheme(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.windows(3).position(|three| three == b"://")?;
    let scheme = &bytes[..end];
    let is_scheme = scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
    is_scheme.then(|| (scheme, &bytes[end + 3..]))
}

/// What stands before the path of a URL, and the path with its slash.
fn split_path(rest: &[u8]) -> (&[u8], &[u8]) {
    let slash = rest.iter().position(|byte| *byte == b'/');
    rest.split_at(slash.unwrap_or(rest.len()))
}

/// A URL's path, decoded.
fn url_path(word: &OsStr, path: &[u8]) -> Result<Vec<u8>, Error> {
    // Kept free for later meanings, as in other URLs.
    if let Some(mark) = path.iter().find(|byte| matches!(byte, b'?' | b'#')) {
        return Err(
            usage(word, format!("a bare {:?} in a URL", char::from(*mark))).with_hint(format!(
                "write %{mark:02X} for it, or use host:/export/path"
            )),
        );
    }
    percent_decoded(word, path)
}

/// A user's name for ssh. It becomes an argument of a program: nothing that could be an option.
fn ssh_user(word: &OsStr, bytes: &[u8]) -> Result<String, Error> {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_+$".contains(byte);
    match std::str::from_utf8(bytes) {
        Ok(user) if !bytes.is_empty() && bytes.iter().all(allowed) && !user.starts_with('-') => {
            Ok(user.to_owned())
        }
        _ => Err(usage(word, "no user's name before the '@'")
            .with_hint("write ssh://user@host/path, or leave the user to ssh's own configuration")),
    }
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
fn authority(word: &OsStr, bytes: &[u8]) -> Result<(String, Option<u16>), Error> {
    if let Some(rest) = bytes.strip_prefix(b"[") {
        let end = rest
            .iter()
            .position(|byte| *byte == b']')
            .ok_or_else(|| usage(word, "a '[' without its ']'"))?;
        let host = host_v6(word, &rest[..end])?;
        return match &rest[end + 1..] {
            [] => Ok((host, None)),
            [b':', digits @ ..] => Ok((host, Some(port(word, digits)?))),
            _ => Err(usage(word, "something between ']' and the port")),
        };
    }
    match bytes.iter().position(|byte| *byte == b':') {
        None => Ok((host_name(word, bytes)?, None)),
        Some(colon) if bytes[colon + 1..].contains(&b':') => {
            Err(usage(word, "an IPv6 address needs brackets here")
                .with_hint("write [address]:port"))
        }
        Some(colon) => Ok((
            host_name(word, &bytes[..colon])?,
            Some(port(word, &bytes[colon + 1..])?),
        )),
    }
}

fn port(word: &OsStr, digits: &[u8]) -> Result<u16, Error> {
    // u16's own parser would take a sign.
    std::str::from_utf8(digits)
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .filter(|port| *port != 0)
        .ok_or_else(|| usage(word, "a port must be a number from 1 to 65535"))
}

fn host_name(word: &OsStr, bytes: &[u8]) -> Result<String, Error> {
    if bytes.is_empty() {
        return Err(usage(word, "no host before the ':'")
            .with_hint("write host:/export/path; ./ before the word makes it a local path"));
    }
    if bytes.contains(&b'@') {
        let host = String::from_utf8_lossy(bytes);
        let (user, host) = host.rsplit_once('@').unwrap_or_default();
        let text = word.to_string_lossy();
        // With its path, if that follows.
        let rest = text.rsplit_once('@').map_or(host, |(_, rest)| rest);
        let scheme = split_scheme(word.as_bytes()).map_or("", |_| "rdcp://");
        return Err(usage(word, "a user before the host").with_hint(format!(
            "write {scheme}{rest}: an rdcpd knows no user names; ssh://{user}@{host}/absolute/path has ssh start one"
        )));
    }
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_".contains(byte);
    match std::str::from_utf8(bytes) {
        Ok(host) if bytes.iter().all(allowed) => Ok(host.to_owned()),
        _ => Err(usage(word, "not a host name before the ':'")
            .with_hint("./ before the word makes it a local path")),
    }
}

fn host_v6(word: &OsStr, bytes: &[u8]) -> Result<String, Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) if is_v6(text) => Ok(text.to_owned()),
        _ => Err(usage(word, "not an IPv6 address in the brackets")),
    }
}

/// An IPv6 address, with or without a zone (`fe80::1%eth0`).
fn is_v6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
    let zone_is_sound = !zone.is_empty()
        && zone
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    address.parse::<Ipv6Addr>().is_ok() && zone_is_sound
}

/// Strict: an escape that is none is an error, and none can make a slash or a NUL.
fn percent_decoded(word: &OsStr, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        if *first != b'%' {
            decoded.push(*first);
            rest = tail;
            continue;
        }
        let value = tail
            .get(..2)
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .ok_or_else(|| {
                usage(word, "a '%' in a URL without two hexadecimal digits")
                    .with_hint("write %25 for a percent sign, or use host:/export/path")
            })?;
        if matches!(value, b'/' | 0) {
            return Err(usage(word, "%2F and %00 can't be part of a name"));
        }
        decoded.push(value);
        rest = &tail[2..];
    }
    Ok(decoded)
}

fn percent_encoded(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
            write!(f, "{}", char::from(*byte))
        } else {
            write!(f, "%{byte:02X}")
        }
    })
}

/// Bytes as a URL holds them.
struct Encoded<'a>(&'a [u8]);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        percent_encoded(f, self.0)
    }
}

/// What follows a word's first colon.
fn after_colon(word: &OsStr) -> &[u8] {
    let bytes = word.as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':');
    colon.map_or(&[], |colon| &bytes[colon + 1..])
}

fn no_absolute_path(word: &OsStr) -> Error {
    let text = word.to_string_lossy();
    let head = text.split('/').next().unwrap_or_default();
    if let Some(hint) = hint_for_habits(&text) {
        return usage(word, "not how a remote place is written").with_hint(hint);
    }
    if head.matches(':').count() > 1 && !head.contains('[') {
        return usage(word, "an IPv6 address needs brackets")
            .with_hint("write [address]:/export/path");
    }
    let (host, path) = text.split_once(':').unwrap_or((&text, ""));
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let is_port = first.parse().is_ok_and(|port: u16| port != 0);
    let hint = if path.is_empty() {
        format!("write {host}:/ for its exports, {host}:/export/path for what is in them")
    } else if is_port && rest.is_empty() {
        format!("write rdcp://{host}:{first}/export/path for a port, ./{text} for a local file")
    } else if is_port {
        // An export may be called like a number, so both are offered; a port is the likelier one.
        let url = Encoded(after_colon(word));
        format!(
            "write rdcp://{host}:{url} if {first} is the port, {host}:/{path} if it is an export, \
             ./{text} for a local file"
        )
    } else {
        format!(
            "write {host}:/{path} if {path} starts with the name of an export, ./{text} for a local file"
        )
    };
    usage(word, "a remote path starts with ':/'").with_hint(hint)
}

/// What to write instead of what other programs take: `host:port:/path`, and rsync's `host::module`.
fn hint_for_habits(text: &str) -> Option<String> {
    let (host, rest) = text.split_once(':')?;
    let (host, rest) = match host.rsplit_once('@') {
        Some((_, host)) => (host, rest),
        None => (host, rest),
    };
    let is_name = !host.is_empty()
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    if !is_name || is_v6(text.split('/').next().unwrap_or_default()) {
        return None;
    }
    if let Some(path) = rest.strip_prefix(':') {
        let head = path.split('/').next().unwrap_or_default();
        let path = path.trim_start_matches('/');
        return (!head.contains(':')).then(|| format!("write {host}:/{path}"));
    }
    let (port, path) = rest.split_once(":/")?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_port.then(|| {
        format!(
            "write rdcp://{host}:{port}/{}",
            path.trim_start_matches('/')
        )
    })
}

/// The word is quoted so that the message stays one line whatever is in it.
fn usage(word: &OsStr, what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Usage, format!("{word:?}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(word: &str) -> Result<Option<Remote>, Error> {
        Remote::parse(OsStr::new(word))
    }

    fn remote(host: &str, port: u16, export: &str, path: &str, trailing_slash: bool) -> Remote {
        Remote {
            ssh: None,
            host: host.to_owned(),
            port,
            export: export.to_owned(),
            path: path.as_bytes().to_vec(),
            trailing_slash,
        }
    }

    #[test]
    fn places_that_ssh_reaches() {
        let login = |user: Option<&str>, port| SshLogin {
            user: user.map(str::to_owned),
            port,
        };
        for (word, host, path, slash, expected) in [
            (
                "ssh://far/srv/a%20b",
                "far",
                "srv/a b",
                false,
                login(None, None),
            ),
            (
                "ssh://me@far:2222/srv/",
                "far",
                "srv",
                true,
                login(Some("me"), Some(2222)),
            ),
            (
                "SSH://[fe80::1%eth0]:22/",
                "fe80::1%eth0",
                "",
                true,
                login(None, Some(22)),
            ),
        ] {
            let parsed = parse(word).unwrap().unwrap();
            let plain = remote(host, DEFAULT_PORT, SSH_EXPORT, path, slash);
            assert_eq!(
                parsed,
                Remote {
                    ssh: Some(expected),
                    ..plain
                },
                "{word}"
            );
            let again = parse(&parsed.to_string()).unwrap().unwrap();
            assert!(
                again.same_server(&parsed) && again.path == parsed.path,
                "{parsed}"
            );
        }
        let one = parse("ssh://me@far/x").unwrap().unwrap();
        for other in [
            "ssh://far/x",
            "ssh://you@far/x",
            "ssh://me@far:22/x",
            "far:/host/x",
        ] {
            assert!(!one.same_server(&parse(other).unwrap().unwrap()), "{other}");
        }
    }

    #[test]
    fn remote_words() {
        let table = [
            (
                "gpu7:/data/run",
                remote("gpu7", 20471, "data", "run", false),
            ),
            (
                "gpu7:/data/run/",
                remote("gpu7", 20471, "data", "run", true),
            ),
            (
                "gpu7:/data/run/.",
                remote("gpu7", 20471, "data", "run", true),
            ),
            ("gpu7:/data", remote("gpu7", 20471, "data", "", false)),
            ("gpu7:/", remote("gpu7", 20471, "", "", true)),
            (
                "gpu7:/data//a/./b",
                remote("gpu7", 20471, "data", "a/b", false),
            ),
            (
                "gpu7:/data/100%20",
                remote("gpu7", 20471, "data", "100%20", false),
            ),
            (
                "gpu7:/data/a:b",
                remote("gpu7", 20471, "data", "a:b", false),
            ),
            ("10.0.0.1:/d/x", remote("10.0.0.1", 20471, "d", "x", false)),
            (
                "[fe80::1%eth0]:/d/x",
                remote("fe80::1%eth0", 20471, "d", "x", false),
            ),
            ("[::1]:/d", remote("::1", 20471, "d", "", false)),
            ("rdcp://gpu7", remote("gpu7", 20471, "", "", false)),
            ("rdcp://gpu7/", remote("gpu7", 20471, "", "", true)),
            (
                "RDCP://gpu7:99/d/a%20b%25",
                remote("gpu7", 99, "d", "a b%", false),
            ),
            ("rdcp://[::1]:99/d/x/", remote("::1", 99, "d", "x", true)),
            (
                "rdcp://gpu7/d/a:b",
                remote("gpu7", 20471, "d", "a:b", false),
            ),
        ];
        for (word, expected) in table {
            assert_eq!(parse(word).unwrap(), Some(expected), "{word}");
        }
    }

    #[test]
    fn local_words() {
        for word in [
            "", ".", "a", "/a:b", "./a:b", "../x", "a/b:c", "-", "[a]", "[a]/b:c", "~/x", "a%3Ab",
            "[",
        ] {
            assert_eq!(parse(word).unwrap(), None, "{word}");
        }
        assert_eq!(Remote::parse(OsStr::from_bytes(b"\xff\xfe")).unwrap(), None);
    }

    #[test]
    fn words_that_are_neither_say_what_to_write() {
        let table = [
            ("host:path", "write host:/path"),
            ("host:", "write host:/ for its exports"),
            ("host:20471", "rdcp://host:20471/"),
            ("host:20471/", "rdcp://host:20471/export/path"),
            (
                "host:20471/data/run 7",
                "write rdcp://host:20471/data/run%207 if 20471 is the port, host:/20471/data/run 7 if",
            ),
            ("host:99999/data", "write host:/99999/data if"),
            ("fe80::1:/data", "[address]:/export"),
            (":/data", "host:/export/path"),
            ("me@host:/data", "write host:/data"),
            ("rdcp://me@host:7/data", "write rdcp://host:7/data"),
            ("host:99:/data/x", "write rdcp://host:99/data/x"),
            ("host::data/x", "write host:/data/x"),
            ("host::/data", "write host:/data"),
            ("me@host::data", "write host:/data"),
            ("fe80::1:/x", "[address]:/export"),
            ("fe80::1/x", "[address]:/export"),
            ("ssh://host", "absolute path"),
            ("ssh://host/~/x", "/home/me"),
            ("ssh://host/d?x", "%3F"),
            ("ssh://-o@host/x", "ssh://user@host"),
            ("ssh://a;b@host/x", "ssh://user@host"),
            ("ssh://@host/x", "ssh://user@host"),
            ("ssh://ho st/x", "./"),
            ("http://host/x", "rdcp://host"),
            ("host://data", "host:/export/path"),
            ("host:/data/../x", "without it"),
            ("rdcp://host/d/%zz", "%25"),
            ("rdcp://host/d/%4", "%25"),
            ("rdcp://host/d?x", "%3F"),
            ("rdcp://fe80::1/d", "[address]:port"),
            ("a b:/x", "./"),
        ];
        for (word, hint) in table {
            let error = parse(word).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{word}");
            assert!(
                error.hint().unwrap_or_default().contains(hint),
                "{word}: {:?}",
                error.hint()
            );
            assert!(error.to_string().contains(word), "{error}");
        }
        for word in [
            "rdcp://",
            "rdcp:///data",
            "rdcp://host:0/d",
            "rdcp://host:+1/d",
            "rdcp://host:99999/d",
            "rdcp://[::1/d",
            "rdcp://[::1]x/d",
            "rdcp://host/d/%2F",
            "rdcp://host/d/%00",
            "rdcp://host/%ff",
            "[zz]:/data",
            "[::1]:99",
        ] {
            assert_eq!(parse(word).unwrap_err().kind(), ErrorKind::Usage, "{word}");
        }
    }

    #[test]
    fn names_are_bytes() {
        let word = OsStr::from_bytes(b"host:/data/\xff\n");
        assert_eq!(Remote::parse(word).unwrap().unwrap().path, b"\xff\n");
        let word = OsStr::new("rdcp://host/data/%ff%0a");
        assert_eq!(Remote::parse(word).unwrap().unwrap().path, b"\xff\n");
    }

    #[test]
    fn servers_without_paths() {
        let table = [
            ("gpu7", ("gpu7", 20471)),
            ("gpu7:99", ("gpu7", 99)),
            ("gpu7:", ("gpu7", 20471)),
            ("gpu7:/data", ("gpu7", 20471)),
            ("rdcp://gpu7:99", ("gpu7", 99)),
            ("::1", ("::1", 20471)),
            ("[::1]", ("::1", 20471)),
            ("[::1]:99", ("::1", 99)),
        ];
        for (word, (host, port)) in table {
            let parsed = Remote::parse_server(OsStr::new(word)).unwrap();
            assert_eq!(parsed, (host.to_owned(), port), "{word}");
        }
        for word in ["", "/x", "a/b", "a b", "x:y", "me@host"] {
            assert!(Remote::parse_server(OsStr::new(word)).is_err(), "{word}");
        }
    }

    #[test]
    fn what_is_shown_can_be_typed_again() {
        for word in [
            "gpu7:/data/run",
            "gpu7:/",
            "[::1]:/d/x",
            "rdcp://gpu7:99/d/a%20b",
            "rdcp://[::1]:99/d",
        ] {
            let first = parse(word).unwrap().unwrap();
            assert_eq!(first.to_string(), word);
            let again = parse(&first.to_string()).unwrap().unwrap();
            assert_eq!(
                (first.host, first.export, first.path),
                (again.host, again.export, again.path)
            );
        }
    }
}
