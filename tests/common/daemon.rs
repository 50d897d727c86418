//! `rdcpd` as a process: started, its address learnt from its log, looked at through /proc,
//! ended when dropped.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{program, wait_for};

/// Lines of the log that a failed test shows.
const LOG_LINES_SHOWN: usize = 60;

/// A running daemon. It is killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
}

impl Daemon {
    /// Starts it with these arguments and environment; `--log-format json` is added, so that its
    /// log can be read.
    #[track_caller]
    pub(crate) fn start(args: &[OsString], environment: &[(&str, OsString)]) -> Self {
        Self::start_by(Command::new(program("rdcpd")), args, environment)
    }

    /// The same under a limit of open files, as `ulimit` takes it: `-n 512`, `-Sn 100`.
    #[track_caller]
    pub(crate) fn start_limited(
        limit: &str,
        args: &[OsString],
        environment: &[(&str, OsString)],
    ) -> Self {
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(format!("ulimit {limit} && exec \"$0\" \"$@\""))
            .arg(program("rdcpd"));
        Self::start_by(shell, args, environment)
    }

    #[track_caller]
    fn start_by(mut command: Command, args: &[OsString], environment: &[(&str, OsString)]) -> Self {
        let mut child = command
            .args(["--log-format", "json"])
            .args(args)
            .env_clear()
            .envs(environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("rdcpd can be started");
        let stream = child.stderr.take().expect("it was asked for");
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                lines.lock().expect("no holder panics").push(line);
            }
        });
        // Made before its address is known, so that a failure to start kills it and shows its log.
        let mut daemon = Self {
            child,
            address: SocketAddr::from(([0, 0, 0, 0], 0)),
            log,
        };
        daemon.address = wait_for("the daemon tells its address", || {
            let ended = daemon.child.try_wait().expect("it is our child");
            assert!(
                ended.is_none(),
                "the daemon ended: {ended:?}\n{}",
                daemon.log()
            );
            daemon.listening().into_iter().next()
        });
        daemon
    }

    /// Where its log says that it listens.
    pub(crate) fn listening(&self) -> Vec<SocketAddr> {
        let lines = self.log.lock().expect("no holder panics");
        lines
            .iter()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter(|line| line["message"] == "listening")
            .filter_map(|line| line["address"].as_str()?.parse().ok())
            .collect()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// `rdcp://address/rest`, percent-encoded.
    pub(crate) fn url(&self, rest: impl AsRef<OsStr>) -> OsString {
        url(self.address, rest)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the daemon can be signalled");
    }

    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for("the daemon ends", || {
            self.child.try_wait().expect("it is our child")
        })
    }

    #[track_caller]
    pub(crate) fn assert_alive(&mut self) {
        let ended = self.child.try_wait().expect("it is our child");
        assert!(ended.is_none(), "the daemon ended: {ended:?}");
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("no holder panics").join("\n")
    }

    /// Its soft and hard limit of open files.
    pub(crate) fn file_limits(&self) -> (String, String) {
        let limits = fs::read_to_string(format!("/proc/{}/limits", self.child.id()))
            .expect("the daemon is running");
        let line = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"));
        let mut words = line.expect("the kernel tells it").split_whitespace();
        let mut word = || words.next().expect("two limits").to_owned();
        (word(), word())
    }

    /// Open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        self.count("fd")
    }

    pub(crate) fn threads(&self) -> usize {
        self.count("task")
    }

    fn count(&self, what: &str) -> usize {
        fs::read_dir(format!("/proc/{}/{what}", self.child.id()))
            .expect("the daemon is running")
            .count()
    }

    /// Resident memory that is its own, not that of mapped files, in KiB.
    pub(crate) fn anonymous_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .expect("the daemon is running");
        status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))
            .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok())
            .expect("the kernel tells RssAnon")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            // Its last lines may still be on their way through the pipe.
            std::thread::sleep(Duration::from_millis(50));
            let log = self.log();
            let lines = log.lines().count();
            eprintln!("the daemon's log, its end:");
            for line in log.lines().skip(lines.saturating_sub(LOG_LINES_SHOWN)) {
                eprintln!("  {line}");
            }
        }
    }
}

/// `rdcp://address/rest`, percent-encoded.
pub(crate) fn url(address: SocketAddr, rest: impl AsRef<OsStr>) -> OsString {
    let mut url = format!("rdcp://{address}/");
    for byte in rest.as_ref().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
            url.push(char::from(*byte));
        } else {
            url.push_str(&format!("%{byte:02X}"));
        }
    }
    url.into()
}
