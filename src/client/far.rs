//! A server that ssh starts, for one client: `rdcpd --stdio` on the other host, as the user that ssh logs in.
//!
//! In: how to log in, and the program to do it with. Out: the server's addresses and key, and a key that it lets in,
//! both made for this client alone and exchanged through ssh, which is what vouches for them. Connections are made
//! to the server directly; where none can be, ssh is asked to forward a port to it. The server ends when nobody
//! holds this any more. Nothing here speaks the protocol of sessions.
//!
//! What is said through ssh is a line each way, and a blank at the end of neither:
//!
//! ```text
//! client   rdcp-ssh 1 SHA256:...                          the client's key
//! server   rdcp-ssh 1 SHA256:... ADDRESS:PORT...          its own, and where it listens; the last one is loopback
//!          rdcp-ssh error TEXT                            or why not
//! ```

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;

use crate::error::{Error, ErrorKind};
use crate::options::SshOptions;
use crate::remote::{Remote, SshLogin};
use crate::session::own_key::{Fingerprint, OwnKey};
use crate::sys::random_bytes;

/// First word of what both ends say.
pub(crate) const MARK: &str = "rdcp-ssh";
/// What follows it: the way in which they speak.
pub(crate) const VERSION: &str = "1";

/// What the shell's own files may print on the other host before the server speaks.
const NOISE_BYTES_MAX: u64 = 64 << 10;
/// Exit status of ssh if it is ssh that failed (ssh(1), EXIT STATUS).
const SSH_FAILED: i32 = 255;
/// What a shell says of a program that can't be started, and of one that is not there.
const NOT_STARTED: [i32; 2] = [126, 127];

/// See the module's first paragraph.
pub(super) struct Far {
    remote: Remote,
    options: SshOptions,
    /// The server's key, as ssh brought it.
    pub(super) fingerprint: Fingerprint,
    /// The key that it lets in.
    pub(super) identity: Arc<OwnKey>,
    /// Where it can be reached if nothing is in the way.
    pub(super) direct: Vec<SocketAddr>,
    /// Where it listens for what ssh forwards.
    near: SocketAddr,
    control: ControlSocket,
    /// Its end ends the server.
    stdin: Option<ChildStdin>,
    child: Option<Child>,
}

impl Far {
    /// Logs in and starts the server. Waits for as long as ssh does: it may ask its user for a password.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if ssh can't log in or there is no rdcpd; what the server says.
    pub(super) fn start(remote: &Remote, options: &SshOptions) -> Result<Self, Error> {
        let identity = OwnKey::ephemeral().map_err(|error| {
            Error::new(ErrorKind::Internal, "no key can be made").with_source(error)
        })?;
        let control = ControlSocket::new()?;
        let mut command = ssh(remote, options, &control)?;
        command.args(["-M", "-T", "-o", "ControlPersist=no"]);
        command.args(destination(remote));
        command.arg(format!("{} --stdio", shell_word(options.rdcpd())));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            let program = command.get_program().to_string_lossy().into_owned();
            Error::new(ErrorKind::Unreachable, format!("can't start {program}"))
                .with_source(error)
                .with_hint("install OpenSSH's client, or say what to use: --ssh COMMAND")
        })?;
        let (mut stdin, stdout) = match (child.stdin.take(), child.stdout.take()) {
            (Some(stdin), Some(stdout)) => (stdin, stdout),
            _ => return Err(Error::new(ErrorKind::Internal, "ssh has no pipes")),
        };
        // If it has ended, its answer tells why.
        let _ = writeln!(stdin, "{MARK} {VERSION} {}", identity.fingerprint());
        let said = answer(BufReader::new(stdout.take(NOISE_BYTES_MAX)));
        let host = remote.host.clone();
        let Some(said) = said else {
            drop(stdin);
            let ended = child.wait();
            return Err(not_started(&host, ended.ok(), options));
        };
        let parsed = parse(&said);
        let (fingerprint, addresses) = parsed.map_err(|error| {
            let _ = child.kill();
            let _ = child.wait();
            error.named(&host)
        })?;
        let (near, direct) = match addresses.split_last() {
            Some((near, direct)) => (*near, direct.to_vec()),
            None => return Err(Answer::NoSense.named(&host)),
        };
        Ok(Self {
            remote: remote.clone(),
            options: options.clone(),
            fingerprint,
            identity: Arc::new(identity),
            direct,
            near,
            control,
            stdin: Some(stdin),
            child: Some(child),
        })
    }

    /// Has ssh forward a port of this host to the server, and gives the port. Only who has the key gets in by it.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if ssh does not do it.
    pub(super) fn forward(&self) -> Result<u16, Error> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Unreachable, "no port can be forwarded").with_source(error)
        };
        // Free a moment ago; ssh says so if it is taken meanwhile.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .map_err(failed)?
            .port();
        let mut command = ssh(&self.remote, &self.options, &self.control)?;
        command.args(["-O", "forward", "-L"]);
        command.arg(format!("127.0.0.1:{port}:{}", self.near));
        command.args(destination(&self.remote));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let status = command.status().map_err(failed)?;
        if status.success() {
            return Ok(port);
        }
        Err(self.unforwarded())
    }

    /// That nothing goes through ssh.
    pub(super) fn unforwarded(&self) -> Error {
        let message = format!("{}: ssh forwards no port to rdcpd", self.remote.host);
        Error::new(ErrorKind::Unreachable, message).with_hint(
            "let the host's sshd forward ports (AllowTcpForwarding), or open a port for rdcpd and start it there",
        )
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // The server sees the end of its input, ends, and ssh with it.
        self.stdin = None;
        if let Some(mut child) = self.child.take() {
            thread::spawn(move || child.wait());
        }
    }
}

/// A private directory with the socket by which ssh can be told more.
struct ControlSocket(PathBuf);

impl ControlSocket {
    fn new() -> Result<Self, Error> {
        let name = format!("rdcp-ssh-{:016x}", u64::from_le_bytes(random_bytes()));
        let directory = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|error| {
            let message = format!("can't make {}", directory.display());
            Error::new(ErrorKind::Storage, message).with_source(error)
        })?;
        Ok(Self(directory))
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// ssh with what it needs to find its connection again.
fn ssh(remote: &Remote, options: &SshOptions, control: &ControlSocket) -> Result<Command, Error> {
    let mut words = options.command().into_iter();
    let program = words
        .next()
        .ok_or_else(|| Error::new(ErrorKind::Usage, "--ssh names no program"))?;
    let mut command = Command::new(program);
    command.args(words);
    command.arg("-S").arg(control.0.join("s"));
    let SshLogin { user, port } = remote.ssh.clone().unwrap_or_default();
    if let Some(user) = user {
        command.args(["-l", &user]);
    }
    if let Some(port) = port {
        command.args(["-p", &port.to_string()]);
    }
    Ok(command)
}

/// The host as ssh's argument. No name of one is an option.
fn destination(remote: &Remote) -> [OsString; 2] {
    ["--".into(), remote.host.clone().into()]
}

/// A word as a shell on the other host takes it.
fn shell_word(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+,:@%~".contains(&byte);
    match word.bytes().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// The server's line, if it comes.
fn answer(stdout: BufReader<impl Read>) -> Option<String> {
    for line in stdout.split(b'\n') {
        let line = String::from_utf8_lossy(&line.ok()?).trim_end().to_owned();
        if let Some(said) = line.strip_prefix(MARK)
            && said.starts_with(' ')
        {
            return Some(said.trim_start().to_owned());
        }
    }
    None
}

/// What a server said that is of no use.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Error(String),
    OtherVersion(String),
    NoSense,
}

impl Answer {
    fn named(self, host: &str) -> Error {
        match self {
            Self::Error(text) => Error::new(
                ErrorKind::Unreachable,
                format!("{host}: rdcpd can't serve: {text}"),
            ),
            Self::OtherVersion(theirs) => Error::new(
                ErrorKind::Unreachable,
                format!(
                    "{host}: rdcpd there speaks version {theirs} through ssh, and this is {VERSION}"
                ),
            )
            .with_hint("install the same release on both hosts"),
            Self::NoSense => Error::new(
                ErrorKind::Unreachable,
                format!(
                    "{host}: what answers through ssh is no rdcpd that this release understands"
                ),
            ),
        }
    }
}

/// Takes the server's line apart.
fn parse(said: &str) -> Result<(Fingerprint, Vec<SocketAddr>), Answer> {
    let mut words = said.split(' ');
    match words.next() {
        Some("error") => {
            let text: Vec<_> = words.collect();
            return Err(Answer::Error(text.join(" ").escape_debug().to_string()));
        }
        Some(VERSION) => {}
        Some(other) if !other.is_empty() && other.bytes().all(|byte| byte.is_ascii_digit()) => {
            return Err(Answer::OtherVersion(other.to_owned()));
        }
        _ => return Err(Answer::NoSense),
    }
    let fingerprint = words.next().and_then(|word| word.parse().ok());
    let fingerprint = fingerprint.ok_or(Answer::NoSense)?;
    let addresses: Result<Vec<_>, _> = words.map(str::parse).collect();
    let addresses: Vec<SocketAddr> = addresses.map_err(|_| Answer::NoSense)?;
    match addresses.last() {
        Some(near) if near.ip().is_loopback() => Ok((fingerprint, addresses)),
        _ => Err(Answer::NoSense),
    }
}

/// Why there is no server.
fn not_started(host: &str, ended: Option<ExitStatus>, options: &SshOptions) -> Error {
    let code = ended.and_then(|status| status.code());
    let program = options.rdcpd();
    match code {
        Some(SSH_FAILED) => Error::new(ErrorKind::Unreachable, format!("{host}: ssh can't log in"))
            .with_hint("it says above why; 'ssh HOST true' has to work"),
        Some(code) if NOT_STARTED.contains(&code) => Error::new(
            ErrorKind::Unreachable,
            format!("{host}: there is no {program}"),
        )
        .with_hint("install rdcpd there, or say where it is: --ssh-rdcpd PATH"),
        Some(code) => Error::new(
            ErrorKind::Unreachable,
            format!("{host}: {program} ended with status {code} before it served anything"),
        )
        .with_hint("it says above why; is it of the same release?"),
        None => Error::new(ErrorKind::Unreachable, format!("{host}: ssh was ended")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "SHA256:gb8L4eyoDDUOYyKxPGGLSXbqFHVNEYQeAtWT1Fpsxyg";

    #[test]
    fn the_servers_line_is_found_and_taken_apart() {
        let noise =
            format!("Welcome!\nrdcp-sshd is here\n{MARK} 1 {KEY} 10.0.0.2:4 127.0.0.1:5\nrest");
        let said = answer(BufReader::new(noise.as_bytes())).unwrap();
        let (key, addresses) = parse(&said).unwrap();
        assert_eq!(key.to_string(), KEY);
        assert_eq!(addresses.len(), 2);
        assert!(answer(BufReader::new(&b"Welcome!\n"[..])).is_none());
        assert!(answer(BufReader::new(&b"\xff\xfe"[..])).is_none());
    }

    #[test]
    fn other_lines_are_refused_with_what_they_are() {
        let error = |said: &str| parse(said).unwrap_err();
        assert_eq!(
            error("error no\x1b[2J room"),
            Answer::Error("no\\u{1b}[2J room".to_owned())
        );
        assert_eq!(
            error(&format!("2 {KEY} [::1]:5")),
            Answer::OtherVersion("2".to_owned())
        );
        for said in [
            String::new(),
            "1".to_owned(),
            "x".to_owned(),
            format!("1 {KEY}"),
            format!("1 {KEY} 10.0.0.2:4"),
            format!("1 {KEY} here 127.0.0.1:5"),
            "1 SHA256:short 127.0.0.1:5".to_owned(),
        ] {
            assert_eq!(error(&said), Answer::NoSense, "{said}");
        }
    }

    #[test]
    fn a_program_is_one_word_for_the_shell() {
        assert_eq!(shell_word("/opt/rdcp/bin/rdcpd"), "/opt/rdcp/bin/rdcpd");
        assert_eq!(shell_word("~/bin/rdcpd"), "~/bin/rdcpd");
        assert_eq!(shell_word("it's; rm"), r"'it'\''s; rm'");
    }
}
