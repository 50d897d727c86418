//! The real `rdcpd`, started as a process: what it says and how it exits.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A directory with an export in it, and ways to start the daemon there.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("data")).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdcpd"));
        command
            .current_dir(self.directory.path())
            .env_clear()
            .env("HOME", self.path("home"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().unwrap()
    }

    fn start(&self, arguments: &[&str]) -> Daemon {
        let child = self
            .command()
            .args(["--log-format", "json", "--export", "data=data:rw"])
            .args(arguments)
            .spawn()
            .unwrap();
        Daemon::of(child)
    }
}

/// A running daemon and its log. It is killed when dropped, so that a failed test leaves none.
struct Daemon {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Daemon {
    fn of(mut child: Child) -> Self {
        let log = BufReader::new(child.stderr.take().unwrap());
        Self { child, log }
    }

    /// Reads the log up to the line with this message, and gives that line and those before it.
    fn until(&mut self, message: &str) -> (serde_json::Value, Vec<String>) {
        let mut before = Vec::new();
        loop {
            let mut line = String::new();
            let read = self.log.read_line(&mut line).unwrap();
            assert!(read > 0, "the log ended before {message:?}: {before:#?}");
            let value: serde_json::Value =
                serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
            if value["message"]
                .as_str()
                .is_some_and(|text| text.contains(message))
            {
                return (value, before);
            }
            before.push(line);
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn exit_status(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It fails if the daemon has ended, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_command_lines_exit_2_and_say_what_to_write() {
    let place = Place::new();
    for (arguments, part) in [
        (&["--nonsense"][..], "--nonsense"),
        (&[], "write --export NAME=PATH"),
        (&["--export", "data"], "write NAME=PATH"),
        (&["--export", "a/b=data"], "can't be an export's name"),
        (&["--export", "d=none"], "none"),
        (&["--export", "d=/proc"], "/proc"),
        (
            &["--export", "d=data", "--listen", "0.0.0.0:0"],
            "auth = \"none\"",
        ),
        (
            &["--export", "d=data", "--listen", "127.0.0.1"],
            "write 127.0.0.1:20471",
        ),
        (&["--export", "d=data", "--log", "x=y=z"], "no log filter"),
        (&["--export", "d=data", "--log", "bogus"], "no log filter"),
        (
            &["--export", "d=data", "--auth", "passwords"],
            "possible values: none, keys",
        ),
        (
            &[
                "--export",
                "d=data",
                "--check-config",
                "--authorized-keys",
                "none",
            ],
            "none: No such file",
        ),
        (&["--config", "none.toml"], "can't open none.toml"),
    ] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(
            stderr(&output).contains(part),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(
            !stderr(&output).contains("rdcpd: rdcpd:"),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn wrong_files_exit_2_and_name_every_line() {
    let place = Place::new();
    place.write(
        "bad.toml",
        "lisen = []\n[exports.d]\npath = \"/none\"\n[exports.e]\npath = 1\n",
    );
    let output = place.run(&["--check-config", "--config", "bad.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(
        text.contains("bad.toml:1: unknown key `lisen`; did you mean `listen`?"),
        "{text}"
    );
    assert!(
        text.contains("bad.toml:5: `exports.e.path` must be a text in quotes"),
        "{text}"
    );
    // The words of the program's inside are no help.
    for inside in ["usize", "u32", "invalid type", "PathBuf", "expected"] {
        assert!(!text.contains(inside), "{text}");
    }
    place.write(
        "loud.toml",
        "[log]\nlevel = \"loud\"\n[exports.d]\npath = \"/tmp\"\n",
    );
    let output = place.run(&["--check-config", "--config", "loud.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(
        text.contains("loud.toml:2: \"loud\" is no log filter"),
        "{text}"
    );
}

#[test]
fn the_example_files_pass_check_config() {
    let place = Place::new();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config");
    let mut seen = 0;
    for entry in fs::read_dir(examples).unwrap() {
        let example = entry.unwrap().path();
        // The directory that they export need not be on this host.
        let data = place.path("data");
        let text = fs::read_to_string(&example).unwrap();
        assert!(text.contains("\"/srv\""), "{}", example.display());
        place.write("c.toml", &text.replace("\"/srv\"", &format!("{data:?}")));
        for action in ["--check-config", "--show-config"] {
            let output = place.run(&[action, "--config", "c.toml"]);
            let text = stderr(&output);
            assert_eq!(
                output.status.code(),
                Some(0),
                "{}: {text}",
                example.display()
            );
        }
        seen += 1;
    }
    assert!(seen >= 2);
}

#[test]
fn what_is_shown_is_a_configuration() {
    let place = Place::new();
    let shown = place.run(&["--show-config", "--export", "d=data:rw", "--auth", "none"]);
    assert_eq!(shown.status.code(), Some(0));
    place.write("shown.toml", &String::from_utf8(shown.stdout).unwrap());
    let output = place.run(&["--check-config", "--config", "shown.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn it_tells_where_it_listens_and_ends_cleanly_on_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::new();
        let mut daemon = place.start(&["--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0"]);
        let (line, _) = daemon.until("listening");
        let address = line["address"].as_str().unwrap();
        assert!(
            address.starts_with("127.0.0.") && !address.ends_with(":0"),
            "{address}"
        );
        let (line, _) = daemon.until("host key");
        assert!(
            line["fingerprint"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
        let (line, _) = daemon.until("data plane");
        assert!(
            line["reactor"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
        assert!(place.path("home/.local/state/rdcp").is_dir());
        daemon.signal(signal);
        daemon.until("draining");
        daemon.until("ended");
        assert_eq!(daemon.exit_status(), Some(0));
    }
}

#[test]
fn no_authentication_is_told_at_every_start() {
    let place = Place::new();
    for _ in 0..2 {
        let mut daemon = place.start(&["--listen", "127.0.0.1:0", "--auth", "none"]);
        let (line, _) = daemon.until("AUTHENTICATION IS OFF");
        assert_eq!(line["level"], "WARN");
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.exit_status(), Some(0));
    }
}

#[test]
fn an_address_in_use_exits_3() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = place.run(&["--export", "d=data", "--listen", &address]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains(&address), "{}", stderr(&output));
}

#[test]
fn a_state_directory_that_can_not_be_made_exits_7() {
    let place = Place::new();
    place.write("file", "");
    let output = place.run(&["--export", "d=data", "--state-dir", "file/state"]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("file/state"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_host_key_stays_the_same_over_restarts() {
    let place = Place::new();
    let fingerprint = || {
        let mut daemon = place.start(&["--listen", "127.0.0.1:0"]);
        let (line, _) = daemon.until("host key");
        daemon.until("data plane");
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.exit_status(), Some(0));
        line["fingerprint"].clone()
    };
    assert_eq!(fingerprint(), fingerprint());
}

#[test]
fn its_manual_page_is_roff() {
    let output = Place::new().run(&["--man"]);
    assert_eq!(output.status.code(), Some(0));
    let page = String::from_utf8_lossy(&output.stdout).replace("\\-", "-");
    for part in [".TH rdcpd 1", "--show-config", "EXIT STATUS", "rdcp(1)"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn help_and_version_exit_0() {
    let place = Place::new();
    for argument in ["--help", "-h", "--version"] {
        let output = place.run(&[argument]);
        assert_eq!(output.status.code(), Some(0));
        assert!(!output.stdout.is_empty());
    }
}
