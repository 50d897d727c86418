//! The binary against a real server in this process: what a user sees and what lands on disk.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use rdcp::server::{Export, Server};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A server with one writable export `data`, and a directory to work in.
struct World {
    runtime: Runtime,
    server: Option<Server>,
    address: SocketAddr,
    directory: TempDir,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        for name in ["export", "here", "state"] {
            fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        let runtime = Runtime::new().expect("a runtime");
        let export = Export::new("data", directory.path().join("export")).writable(true);
        let server = Server::builder()
            .export(export)
            .listen(SocketAddr::from(([127, 0, 0, 1], 0)))
            .state_directory(directory.path().join("state"))
            .start();
        let server = runtime.block_on(server).expect("the server starts");
        let address = server.local_addrs()[0];
        Self {
            runtime,
            server: Some(server),
            address,
            directory,
        }
    }

    fn export(&self, name: &str) -> PathBuf {
        self.directory.path().join("export").join(name)
    }

    fn here(&self, name: &str) -> PathBuf {
        self.directory.path().join("here").join(name)
    }

    /// Words of a line; `@` stands for the server's URL without its last slash.
    fn command(&self, line: &str) -> Command {
        let url = format!("rdcp://{}", self.address);
        let mut words = line.split_whitespace().map(|word| word.replace('@', &url));
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdcp"));
        let name = words.next().expect("a command");
        let known_hosts = self.directory.path().join("known_hosts");
        command
            .arg(name)
            .arg("--accept-new")
            .arg("--known-hosts")
            .arg(known_hosts);
        command
            .args(words)
            .stdin(Stdio::null())
            .current_dir(self.directory.path().join("here"));
        command
    }

    fn run(&self, line: &str) -> (i32, String, String) {
        let Output {
            status,
            stdout,
            stderr,
        } = self.command(line).output().expect("it starts");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (
            status.code().expect("no signal"),
            text(stdout),
            text(stderr),
        )
    }

    /// Runs what must go well and say nothing that was not asked for.
    fn well(&self, line: &str) -> String {
        let (status, out, err) = self.run(line);
        assert_eq!((status, err.as_str()), (0, ""), "{line}");
        out
    }

    fn fails(&self, line: &str, expected: i32) -> String {
        let (status, _, err) = self.run(line);
        assert_eq!(status, expected, "{line}: {err}");
        assert!(err.starts_with("rdcp: "), "{line}: {err}");
        err
    }

    fn json(&self, line: &str) -> (i32, Vec<Value>) {
        let (status, out, _) = self.run(line);
        let lines = out
            .lines()
            .map(|line| serde_json::from_str(line).expect(line));
        let lines = lines.collect::<Vec<Value>>();
        let last = lines.last().expect("a summary");
        assert_eq!(
            (&last["type"], &last["exit_status"]),
            (&"summary".into(), &status.into())
        );
        assert_eq!(
            lines
                .iter()
                .filter(|line| line["type"] == "summary")
                .count(),
            1
        );
        (status, lines)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.shutdown(Duration::ZERO));
        }
    }
}

fn write(path: &Path, content: &[u8]) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
    fs::write(path, content).expect("a file");
}

fn noise(len: u32) -> Vec<u8> {
    (0..len)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0])
        .collect()
}

#[test]
fn a_file_goes_there_and_back_and_says_nothing() {
    let world = World::new();
    let content = noise(3_000_000);
    write(&world.here("big.bin"), &content);
    assert_eq!(world.well("push big.bin @/data"), "");
    assert_eq!(fs::read(world.export("big.bin")).unwrap(), content);
    assert_eq!(world.well("cp @/data/big.bin copy.bin"), "");
    assert_eq!(fs::read(world.here("copy.bin")).unwrap(), content);
    // And without a file at all.
    let output = world.command("pull @/data/big.bin -").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(output.stdout == content);
}

#[test]
fn trees_follow_the_slash_rule_and_come_back_the_same() {
    let world = World::new();
    write(&world.here("tree/a/one"), b"1");
    write(&world.here("tree/two"), &noise(400_000));
    write(
        &world
            .here("tree")
            .join(std::ffi::OsStr::from_bytes(b"odd\xff\n\x1b")),
        b"odd",
    );
    world.well("push -r tree @/data");
    assert!(world.export("tree/a/one").exists());
    world.well("push -r tree/ @/data/inside --mkpath");
    assert!(world.export("inside/a/one").exists());
    world.well("pull -r @/data/tree back --mkpath");
    assert_eq!(world.well("verify back/tree @/data/tree"), "");
    assert_eq!(world.well("verify tree @/data/inside"), "");
    let listing = world.well("ls @/data/tree");
    assert_eq!(listing, "a\nodd\\xff\\n\\x1b\ntwo\n");
    world.fails("push tree @/data/x", 2);
}

#[test]
fn a_rerun_copies_nothing() {
    let world = World::new();
    write(&world.export("set/a"), b"a");
    write(&world.export("set/b"), b"b");
    // What changed a moment ago is in doubt, and copied again.
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    for name in ["set/a", "set/b"] {
        let file = fs::File::options()
            .write(true)
            .open(world.export(name))
            .unwrap();
        file.set_modified(long_ago).unwrap();
    }
    let (status, lines) = world.json("pull -r --json @/data/set .");
    assert_eq!(status, 0);
    assert_eq!(lines[0]["type"], "start");
    let id = lines[0]["transfer_id"].as_str().expect("an id").to_owned();
    assert!(
        lines.iter().all(|line| line["transfer_id"] == id.as_str()),
        "{lines:?}"
    );
    let files = lines.iter().filter(|line| line["type"] == "file");
    let mut paths = files
        .map(|line| line["path"].as_str().unwrap().to_owned())
        .collect::<Vec<_>>();
    paths.retain(|path| !path.is_empty() && !path.ends_with("set"));
    paths.sort();
    assert_eq!(paths, ["set/a", "set/b"]);
    let data_ms = |lines: &[serde_json::Value]| lines.last().unwrap()["data_ms"].as_f64();
    assert!(
        data_ms(&lines).is_some_and(|data_ms| data_ms > 0.0),
        "{lines:?}"
    );
    let (_, lines) = world.json("pull -r --json @/data/set .");
    assert_eq!(data_ms(&lines), None, "nothing was read");
    let again = lines.iter().filter(|line| line["type"] == "file");
    assert!(again.clone().count() >= 2 && again.clone().all(|line| line["outcome"] == "unchanged"));
    let last = lines.last().unwrap();
    assert_eq!(last["bytes_by_transport"]["tcp"], 0, "{last}");
    let moved = (&last["files"], &last["published"], &last["bytes_moved"]);
    assert_eq!(moved, (&0.into(), &0.into(), &0.into()), "{last}");
}

#[test]
fn digests_can_be_checked_with_the_usual_tools() {
    let world = World::new();
    write(&world.export("set/a"), &noise(2_000_000));
    write(&world.export("set/back\\slash"), b"");
    write(&world.export("set/new\nline"), b"x");
    world.well("pull -r @/data/set .");
    let there = world.well("sum -r --hash sha256 @/data/set");
    assert_eq!(there, world.well("sum -r --hash sha256 set"));
    let sums = world.here("sums");
    fs::write(&sums, &there).unwrap();
    let check = Command::new("sha256sum")
        .args(["--strict", "-c", "sums"])
        .current_dir(world.here(""))
        .output()
        .expect("coreutils are there");
    assert!(
        check.status.success(),
        "{}",
        String::from_utf8_lossy(&check.stderr)
    );
    assert_eq!(there.lines().count(), 3);
    assert!(world.well("sum -r @/data").contains("  data/set/a\n"));
    assert!(world.well("sum @/data/set/a").ends_with("  a\n"));
    assert!(world.well("sum -r @/data/set/").contains("  a\n"));
}

#[test]
fn verify_lists_what_differs_and_exits_with_13() {
    let world = World::new();
    for side in [world.here("t"), world.export("t")] {
        write(&side.join("same"), b"same");
        write(&side.join("changed"), side.as_os_str().as_bytes());
    }
    write(&world.here("t/only-here"), b"");
    write(&world.export("t/only-there"), b"");
    let (status, out, err) = world.run("verify t @/data/t");
    assert_eq!((status, err.as_str()), (13, ""));
    let mut lines = out.lines().collect::<Vec<_>>();
    lines.sort_unstable();
    let expected = [
        "differs        changed",
        "missing here   only-there",
        "missing there  only-here",
    ];
    assert_eq!(lines, expected);
    let (status, out, _) = world.run("verify -q t @/data/t");
    assert_eq!((status, out.as_str()), (13, ""));
    let (status, lines) = world.json("verify --json t @/data/t");
    assert_eq!((status, lines.len()), (13, 4));
    assert_eq!(world.run("verify t/same @/data/t").0, 13);
    world.fails("verify nothing @/data/t", 5);
    world.fails("verify t @/data/nothing", 5);
}

#[test]
fn failures_have_their_status() {
    let world = World::new();
    write(&world.here("f"), b"new");
    write(&world.export("f"), b"old!");
    world.fails("pull @/data/nothing .", 5);
    world.fails("pull @/nothing/f .", 5);
    world.fails("push nothing @/data", 5);
    world.fails("push --overwrite error f @/data", 12);
    world.fails("push --transport rdma f @/data", 10);
    world.fails("push --transport local f @/data", 10);
    assert_eq!(fs::read(world.export("f")).unwrap(), b"old!");
    world.fails("pull rdcp://127.0.0.1:1/data/f .", 3);
}

#[test]
fn an_unknown_host_is_refused_without_a_terminal() {
    let world = World::new();
    let known_hosts = world.here("nobody");
    let output = Command::new(env!("CARGO_BIN_EXE_rdcp"))
        .args(["ls", "--known-hosts"])
        .arg(&known_hosts)
        .arg(format!("rdcp://{}/", world.address))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{err}");
    assert!(
        err.contains("SHA256:") && err.contains("--accept-new"),
        "{err}"
    );
    assert!(!known_hosts.exists());
}

#[test]
fn small_requests() {
    let world = World::new();
    assert_eq!(world.well("ls @/"), "data\n");
    assert_eq!(world.well("ls -l @/"), "rw  data\n");
    world.well("mkdir @/data/d");
    world.fails("mkdir @/data/d", 12);
    world.well("mkdir -p @/data/d @/data/x/y/z");
    write(&world.export("d/f"), b"12345");
    fs::set_permissions(world.export("d/f"), fs::Permissions::from_mode(0o640)).unwrap();
    let line = world.well("ls -l @/data/d");
    assert!(
        line.starts_with("-rw-r-----") && line.ends_with("  f\n"),
        "{line}"
    );
    let text = world.well("stat @/data/d/f");
    assert!(
        text.contains("  size: 5 bytes\n  mode: 0640 (-rw-r-----)\n"),
        "{text}"
    );
    assert_eq!(world.well("ls -r @/data/x"), "y\ny/z\n");
    assert_eq!(world.well("ls @/data/d/f"), "f\n");
    world.fails("rm @/data/d", 2);
    world.well("rm -r @/data/d @/data/x");
    assert_eq!(world.well("ls @/data"), "");
    world.fails("rm @/data/d", 5);
    let text = world.well("ping -n 3 @");
    assert!(text.contains("of 3\n") && text.contains("\ntcp"), "{text}");
    let (_, lines) = world.json("ping --json @");
    assert_eq!(
        (&lines[0]["type"], &lines[0]["count"]),
        (&"ping".into(), &4.into())
    );
}

#[test]
fn a_measurement_tells_each_transport_or_why_it_is_not_there() {
    let world = World::new();
    let text = world.well("bench --time 200ms --size 64M @");
    let lines: Vec<_> = text.lines().collect();
    let of = |name: &str| lines.iter().find(|line| line.starts_with(name)).unwrap();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        of("tcp").contains("iB/s") && of("tcp").contains("4 KiB in "),
        "{text}"
    );
    assert!(of("local").contains("not available"), "{text}");
    let (status, lines) = world.json("bench --transport tcp --time 100ms --json @");
    assert_eq!((status, lines.len()), (0, 2), "{lines:?}");
    let bench = &lines[0];
    assert_eq!(
        (&bench["type"], &bench["transport"], &bench["available"]),
        (&"bench".into(), &"tcp".into(), &true.into())
    );
    for positive in [
        "bytes",
        "seconds",
        "bytes_per_second",
        "connections",
        "reads",
        "read_p99_us",
    ] {
        assert!(
            bench[positive].as_f64().unwrap() > 0.0,
            "{positive}: {bench}"
        );
    }
    let (_, lines) = world.json("bench --size 5M --transport tcp --json @");
    assert!(
        lines[0]["bytes"].as_u64().unwrap() <= 5 << 20,
        "{}",
        lines[0]
    );
    // What is asked for by name is there or an error.
    world.fails("bench --transport local @", 10);
}

#[test]
fn one_thing_is_named_in_json_as_it_was_asked_for() {
    let world = World::new();
    write(&world.export("a/same"), b"1");
    write(&world.export("b/same"), b"22");
    for command in ["stat", "ls"] {
        let (status, lines) = world.json(&format!("{command} --json @/data/a/same @/data/b/same"));
        assert_eq!(status, 0);
        let url = |path: &str| Value::from(format!("rdcp://{}/{path}", world.address));
        let paths: Vec<_> = lines
            .iter()
            .filter(|line| !line["path"].is_null())
            .map(|line| line["path"].clone())
            .collect();
        assert_eq!(paths, [url("data/a/same"), url("data/b/same")], "{command}");
    }
    let (_, lines) = world.json("ls --json @/data/a");
    assert_eq!(
        lines[0]["path"], "same",
        "what lies in a directory has its name"
    );
}

#[test]
fn a_file_on_standard_output_has_its_bytes_by_transport() {
    let world = World::new();
    let content = noise(3_000_000);
    write(&world.export("file"), &content);
    let output = world.command("pull --json @/data/file -").output().unwrap();
    assert!(output.status.success() && output.stdout == content);
    let text = String::from_utf8(output.stderr).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let by = &last["bytes_by_transport"];
    assert_eq!(
        (&by["tcp"], &by["rdma"]),
        (&3_000_000.into(), &0.into()),
        "{last}"
    );
}

#[test]
fn a_fifo_can_not_be_compared() {
    let world = World::new();
    fs::create_dir(world.export("directory")).unwrap();
    let made = Command::new("mkfifo").arg(world.here("fifo")).status();
    assert!(made.unwrap().success());
    let told = world.fails("verify fifo @/data/directory", 5);
    assert!(told.contains("neither a file nor a directory"), "{told}");
    assert!(!told.contains("-r"), "{told}");
}

#[test]
fn a_measurement_of_all_transports_says_so() {
    let world = World::new();
    let (status, lines) = world.json("bench --json --time 0.1s @");
    assert_eq!(status, 0);
    let tcp = lines
        .iter()
        .find(|line| line["transport"] == "tcp")
        .unwrap();
    assert_eq!(
        tcp["reason"], "each transport is measured by itself",
        "{tcp}"
    );
    let (_, lines) = world.json("bench --json --time 0.1s --transport tcp @");
    assert_eq!(lines[0]["reason"], "tcp was asked for", "{}", lines[0]);
}

#[test]
fn accepted_keys_need_not_be_kept() {
    let world = World::new();
    for _ in 0..2 {
        let output = Command::new(env!("CARGO_BIN_EXE_rdcp"))
            .args(["ls", "--accept-new", "--known-hosts", "/dev/null"])
            .arg(format!("rdcp://{}/", world.address))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, b"data\n");
    }
}
