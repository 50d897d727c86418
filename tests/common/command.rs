//! `rdcp` as a process: started, bounded by a deadline, its output kept.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::DEADLINE;

/// A command line of `rdcp` (or of another program) in the making.
pub(crate) struct Rdcp {
    command: Command,
    deadline: Duration,
}

impl Rdcp {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self {
            command,
            deadline: DEADLINE,
        }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn env_clear(mut self) -> Self {
        self.command.env_clear();
        self
    }

    pub(crate) fn current_dir(mut self, path: impl AsRef<Path>) -> Self {
        self.command.current_dir(path);
        self
    }

    pub(crate) fn stdin(mut self, stdin: impl Into<Stdio>) -> Self {
        self.command.stdin(stdin);
        self
    }

    pub(crate) fn stdout(mut self, stdout: impl Into<Stdio>) -> Self {
        self.command.stdout(stdout);
        self
    }

    pub(crate) fn start(mut self) -> Running {
        let shown = format!("{:?}", self.command);
        let mut child = self
            .command
            .spawn()
            .unwrap_or_else(|error| panic!("{shown}: {error}"));
        Running {
            stdout: child.stdout.take().map(collect),
            stderr: child.stderr.take().map(collect),
            deadline: Instant::now() + self.deadline,
            shown,
            child,
        }
    }

    /// Runs it to its end.
    #[track_caller]
    pub(crate) fn run(self) -> Finished {
        self.start().wait()
    }
}

fn collect(mut stream: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is what there is to be seen.
        let _ = stream.read_to_end(&mut bytes);
        bytes
    })
}

/// A running command. It is killed when dropped.
pub(crate) struct Running {
    child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
    deadline: Instant,
    shown: String,
}

impl Running {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process can be signalled");
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// Waits for its end; a command that does not end fails the test.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Finished {
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                break Some(status);
            }
            if Instant::now() >= self.deadline {
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        if status.is_none() {
            self.child.kill().expect("the process can be killed");
        }
        let take = |stream: &mut Option<JoinHandle<Vec<u8>>>| {
            stream
                .take()
                .map(|thread| thread.join().expect("the reader does not panic"))
                .unwrap_or_default()
        };
        let stdout = take(&mut self.stdout);
        let stderr = String::from_utf8_lossy(&take(&mut self.stderr)).into_owned();
        let shown = std::mem::take(&mut self.shown);
        let Some(status) = status else {
            panic!("{shown} did not end; it said:\n{stderr}");
        };
        Finished {
            status: code(status),
            stdout,
            stderr,
            shown,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It fails if the process has ended, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As a shell tells it: death by a signal is 128 + its number.
fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .expect("a process ends by itself or by a signal")
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) shown: String,
}

impl Finished {
    /// Asserts its exit status.
    #[track_caller]
    pub(crate) fn expect(self, status: i32) -> Self {
        assert_eq!(
            self.status,
            status,
            "exit status of {}\nstderr:\n{}\nstdout:\n{}",
            self.shown,
            self.stderr,
            self.text()
        );
        self
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        self.expect(0)
    }

    /// Asserts that it failed, with any status but those of defects and usage.
    #[track_caller]
    pub(crate) fn failed(self) -> Self {
        assert!(
            self.status > 2 && self.status < 15,
            "exit status {} of {}\nstderr:\n{}",
            self.status,
            self.shown,
            self.stderr
        );
        self
    }

    /// Asserts that standard error holds `part`.
    #[track_caller]
    pub(crate) fn says(self, part: &str) -> Self {
        assert!(
            self.stderr.contains(part),
            "{} does not say {part:?} but:\n{}",
            self.shown,
            self.stderr
        );
        self
    }

    /// Standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard output as one JSON value a line.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<serde_json::Value> {
        json_lines(&self.text())
    }
}

/// One JSON object a line, nothing else.
#[track_caller]
pub(crate) fn json_lines(text: &str) -> Vec<serde_json::Value> {
    text.lines()
        .map(|line| {
            let value: serde_json::Value =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
            assert!(value.is_object(), "{line:?} is no object");
            value
        })
        .collect()
}

/// Words of different kinds as one command line.
#[macro_export]
macro_rules! words {
    ($($word:expr),* $(,)?) => {
        [$(std::ffi::OsString::from(&$word)),*]
    };
}

/// A byte string as a word of a command line.
pub(crate) fn word(bytes: &[u8]) -> OsString {
    super::name(bytes).to_owned()
}
