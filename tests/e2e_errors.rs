//! What a person meets when something goes wrong: that it is told, on which side, to what, and what
//! to do about it; that JSON says the same; and that the daemon's log does.

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::command::json_lines;
use common::tree;
use common::{Proxy, Scope, World};
use rustix::process::Signal;
use serde_json::Value;

fn of_type<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == kind).collect()
}

fn summary(lines: &[Value]) -> &Value {
    let last = lines.last().expect("there are lines");
    assert_eq!(last["type"], "summary", "{lines:#?}");
    last
}

// ---- standard output as the destination ----------------------------------------------------------

#[test]
fn a_file_that_standard_output_does_not_take_is_a_failure() {
    let world = World::new();
    let daemon = world.serve();
    tree::random_file(&world.path("export/big"), 4 << 20, 1);
    let big = || daemon.url("data/big");
    // A reader that leaves early.
    for json in [false, true] {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let pull = world.rdcp("pull").args([big(), "-".into()]);
        let pull = if json { pull.arg("--json") } else { pull };
        let pull = pull.stdout(writer).start();
        reader.read_exact(&mut [0; 10]).unwrap();
        drop(reader);
        let done = pull
            .wait()
            .expect(7)
            .says("standard output was closed after ");
        if json {
            let lines = json_lines(&done.stderr);
            let end = summary(&lines);
            assert_eq!(
                (&end["exit_status"], &end["kind"]),
                (&7.into(), &"storage".into())
            );
            assert_eq!(
                (&end["failed"], &end["verified"]),
                (&1.into(), &false.into())
            );
        }
    }
    // None at all: Rust's runtime puts /dev/null in its place.
    let rdcp = common::program("rdcp");
    let closed = |words: &str| {
        let script = format!("exec \"$0\" {words} >&-");
        let line = world.tool("sh").args(["-c", &script]).arg(&rdcp).args([
            "pull".into(),
            "--accept-new".into(),
            "--known-hosts".into(),
            world.path("known").into_os_string(),
            big(),
            "-".into(),
        ]);
        line.run()
    };
    closed("\"$@\"")
        .expect(7)
        .says("standard output was closed after 0 bytes");
    // The opposite: what is asked to be thrown away is delivered there.
    let null = File::options().write(true).open("/dev/null").unwrap();
    world
        .rdcp("pull")
        .args([big(), "-".into()])
        .stdout(null)
        .run()
        .ok();
    let full = File::options().write(true).open("/dev/full").unwrap();
    world
        .rdcp("pull")
        .args([big(), "-".into()])
        .stdout(full)
        .run()
        .expect(7)
        .says("No space left");
    // Words that nobody reads are no failure.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    world
        .rdcp("ls")
        .arg(daemon.url("data"))
        .stdout(writer)
        .run()
        .ok();
}

#[test]
fn a_file_on_standard_output_is_told_like_any_other() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", "content");
    let done = world
        .rdcp("pull")
        .args(["--json".into(), daemon.url("data/file"), "-".into()])
        .run()
        .ok();
    assert_eq!(done.stdout, b"content");
    let lines = json_lines(&done.stderr);
    assert_eq!(lines[0]["type"], "start");
    let files = of_type(&lines, "file");
    assert_eq!(files.len(), 1, "{lines:#?}");
    assert_eq!(
        (&files[0]["path"], &files[0]["outcome"], &files[0]["size"]),
        (&"file".into(), &"published".into(), &7.into())
    );
    let end = summary(&lines);
    assert_eq!((&end["files"], &end["bytes"]), (&1.into(), &7.into()));
    let id = lines[0]["transfer_id"].as_str().unwrap();
    assert!(daemon.log().contains(id), "the daemon knows it by the same");
    world.make("export/tree");
    world
        .rdcp("pull")
        .args([daemon.url("data/tree"), "-".into()])
        .run()
        .expect(2)
        .says("is a directory")
        .says("rdcp pull -r ");
}

// ---- what is in the way --------------------------------------------------------------------------

#[test]
fn a_thing_of_another_kind_in_the_way_is_12_with_its_place() {
    let world = World::new();
    let daemon = world.serve();
    for side in ["export", "local"] {
        world.write(Path::new(side).join("tree/file"), "content");
        world.write(Path::new(side).join("file"), "content");
        world.write(Path::new(side).join("to/file/inside"), "in the way");
        world.write(Path::new(side).join("to/tree"), "in the way");
    }
    let to = world.path("local/to").into_os_string();
    let file = world.path("local/file").into_os_string();
    let here = |below: &str| world.path("local").join(below).display().to_string();
    let there = |below: &str| daemon.url(below).into_string().unwrap();
    let table = [
        ("pull", daemon.url("data/file"), to.clone(), here("to/file")),
        (
            "pull",
            daemon.url("data/tree"),
            file.clone(),
            here("file/tree"),
        ),
        ("pull", daemon.url("data/tree"), to, here("to/tree")),
        (
            "push",
            "file".into(),
            daemon.url("data/to/"),
            there("data/to/file"),
        ),
        (
            "push",
            "tree".into(),
            daemon.url("data/file"),
            there("data/file/tree"),
        ),
        (
            "push",
            "tree".into(),
            daemon.url("data/to"),
            there("data/to/tree"),
        ),
    ];
    for (command, from, to, place) in table {
        let run = |json: bool| {
            let rdcp = world
                .rdcp(command)
                .arg("-r")
                .args([from.clone(), to.clone()]);
            let rdcp = if json { rdcp.arg("--json") } else { rdcp };
            rdcp.run().expect(12)
        };
        run(false)
            .says(&format!("rdcp: {place}: "))
            .says("remove it or choose another place");
        let lines = run(true).json();
        let failed: Vec<_> = lines
            .iter()
            .filter(|line| line["error"].is_object())
            .collect();
        let error = &failed[0]["error"];
        let side = if command == "pull" { "local" } else { "remote" };
        assert_eq!(
            (&error["path"], &error["side"], &error["retryable"]),
            (&place.as_str().into(), &side.into(), &false.into()),
            "{lines:#?}"
        );
    }
    world
        .rdcp("mkdir")
        .arg(daemon.url("data/file/x"))
        .run()
        .expect(12);
    world
        .rdcp("mkdir")
        .args(["-p".into(), daemon.url("data/file/x")])
        .run()
        .expect(12);
    // Nothing can be there where a file is above it.
    world
        .rdcp("stat")
        .arg(daemon.url("data/file/x"))
        .run()
        .expect(5)
        .says(&there("data/file/x"));
}

#[test]
fn two_sources_of_one_name_are_refused_before_anything_is_sent() {
    let world = World::new();
    let daemon = world.serve();
    for side in ["export", "local"] {
        world.write(Path::new(side).join("a/file"), "one");
        world.write(Path::new(side).join("b/file"), "two");
    }
    world.make("local/to");
    for words in [
        [
            "pull".into(),
            daemon.url("data/a/file"),
            daemon.url("data/b/file"),
            "to".into(),
        ],
        [
            "push".into(),
            "a/file".into(),
            "b/file".into(),
            daemon.url("data/"),
        ],
    ] {
        world
            .rdcp(words[0].to_str().unwrap())
            .args(&words[1..])
            .run()
            .expect(2)
            .says("both become 'file'");
    }
    assert!(!world.exists("local/to/file") && !world.exists("export/file"));
    assert!(!daemon.log().contains("transfer began"), "{}", daemon.log());
}

#[test]
fn a_tree_that_is_too_deep_says_so_and_is_not_worth_a_retry() {
    let world = World::new();
    let daemon = world.serve();
    for side in ["export", "local"] {
        let mut at: std::os::fd::OwnedFd = File::open(world.make(Path::new(side).join("deep")))
            .unwrap()
            .into();
        for _ in 0..1030 {
            rustix::fs::mkdirat(&at, "d", rustix::fs::Mode::RWXU).unwrap();
            let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
            at = rustix::fs::openat(&at, "d", flags, rustix::fs::Mode::empty()).unwrap();
        }
    }
    world.make("local/to");
    for words in [
        ["pull".into(), daemon.url("data/deep"), "to".into()],
        ["push".into(), "deep".into(), daemon.url("data/there/")],
    ] {
        let done = world
            .rdcp(words[0].to_str().unwrap())
            .args(["-r", "--mkpath", "--json"])
            .args(&words[1..])
            .run()
            .expect(7);
        let lines = done.json();
        assert_eq!(summary(&lines)["retryable"], false, "{:?}", words[0]);
        let failed: Vec<_> = lines
            .iter()
            .filter(|line| line["error"].is_object())
            .collect();
        assert_eq!(failed.len(), 1, "{:?}", words[0]);
        let error = &failed[0]["error"];
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("nested more than 1024 deep"), "{message}");
        assert!(
            error["path"].as_str().unwrap().ends_with("/d/d/d/d") && error["side"].is_string(),
            "{error}"
        );
    }
}

#[test]
fn a_tree_that_is_written_to_while_it_is_removed_is_busy_at_worst() {
    let world = World::new();
    let daemon = world.serve();
    let stop = Arc::new(AtomicBool::new(false));
    let busy = world.path("export/busy");
    let writing = {
        let (stop, busy) = (Arc::clone(&stop), busy.clone());
        std::thread::spawn(move || {
            let mut number = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let directory = busy.join("inner");
                // Both fail whenever the remover was faster.
                let _ = fs::create_dir_all(&directory);
                let _ = fs::write(directory.join(number.to_string()), "x");
            }
        })
    };
    for _ in 0..10 {
        common::wait_for("there is something", || busy.exists().then_some(()));
        let done = world
            .rdcp("rm")
            .args(["-r".into(), daemon.url("data/busy")])
            .run();
        assert!([0, 14].contains(&done.status), "{}", done.stderr);
        if done.status == 14 {
            done.says("run the command again");
        }
    }
    stop.store(true, Ordering::Relaxed);
    writing.join().unwrap();
}

// ---- hosts ---------------------------------------------------------------------------------------

#[test]
fn a_host_that_takes_connections_and_says_nothing_times_out_by_name() {
    let world = World::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let url = common::daemon::url(address, "data/file");
    world
        .rdcp("pull")
        .args(["--timeout".into(), "300ms".into(), url.clone(), ".".into()])
        .run()
        .expect(11)
        .says(&address.to_string())
        .says("300ms");
}

#[test]
fn hosts_that_can_not_be_used_say_why() {
    let world = World::new();
    world
        .rdcp("ls")
        .arg("no-such-host.invalid:/data")
        .run()
        .expect(3)
        .says("no-such-host.invalid")
        .says("hint: is it spelt right?");
    let daemon = world.serve();
    world
        .bare("ls")
        .env_clear()
        .arg(daemon.url("data"))
        .run()
        .expect(2)
        .says("HOME")
        .says("--known-hosts FILE");
    // A changed key: the command that is offered mends it.
    let known = world.write("known hosts", "# kept\n");
    let entry = format!("{} SHA256:{}\n", daemon.address(), "A".repeat(43));
    fs::write(&known, format!("# kept\n{entry}other:1 # damaged\n")).unwrap();
    let ls = || {
        world
            .bare("ls")
            .args(["--known-hosts".into(), known.clone().into_os_string()])
            .arg(daemon.url("data"))
    };
    let done = ls().run().expect(4).says("known hosts, line 2)");
    let command = done
        .stderr
        .lines()
        .find_map(|line| line.split_once("as a new one: "))
        .expect("a command is offered")
        .1
        .to_owned();
    world.tool("sh").args(["-c", &command]).run().ok();
    assert_eq!(
        fs::read_to_string(&known).unwrap(),
        "# kept\nother:1 # damaged\n"
    );
    let done = ls().run().expect(4).says("is not known");
    assert_eq!(
        done.stderr.matches("compare").count(),
        1,
        "a hint is said once: {}",
        done.stderr
    );
    ls().arg("--accept-new").run().ok();
}

#[test]
fn a_peer_that_vanishes_is_told_in_plain_words() {
    let world = World::new();
    let daemon = world.serve();
    tree::random_file(&world.path("export/large"), 16 << 20, 1);
    let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, Scope::Data);
    // The client is killed: the daemon's log.
    let pull = world
        .rdcp("pull")
        .args([proxy.url("data/large"), "copy".into()])
        .start();
    proxy.wait_held();
    pull.signal(Signal::KILL);
    pull.wait();
    common::wait_for("the session ends", || {
        daemon.log().contains("session ended").then_some(())
    });
    assert!(
        !daemon.log().contains("close_notify") && !daemon.log().contains("rustls"),
        "{}",
        daemon.log()
    );
    // The daemon is killed: the client's words, with the host.
    let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, Scope::Data);
    let pull = world
        .rdcp("pull")
        .args(["--timeout", "2s"])
        .args([proxy.url("data/large"), "copy".into()])
        .start();
    proxy.wait_held();
    daemon.signal(Signal::KILL);
    let done = pull.wait().expect(3);
    assert!(
        !done.stderr.contains("close_notify") && !done.stderr.contains("http"),
        "{}",
        done.stderr
    );
    assert!(
        done.stderr.contains(&proxy.address().to_string()),
        "{}",
        done.stderr
    );
}

#[test]
fn an_export_that_is_not_there_is_told_with_those_that_are() {
    let world = World::new();
    let daemon = world.serve();
    world
        .rdcp("mkdir")
        .arg(daemon.url("new"))
        .run()
        .expect(2)
        .says("there are: data")
        .says("/data/new");
    world
        .rdcp("mkdir")
        .arg(daemon.url("new/directory"))
        .run()
        .expect(5)
        .says("there are: data");
    world
        .rdcp("mkdir")
        .arg(daemon.url("data"))
        .run()
        .expect(2)
        .says("is an export");
}

// ---- what is told of a copy ----------------------------------------------------------------------

#[test]
fn json_tells_kinds_ids_and_no_more_than_was_done() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/tree/directory/file", "content");
    // Long ago: what was changed a moment ago is copied again.
    tree::set_mtime(&world.path("export/tree/directory/file"), 1_600_000_000, 0);
    std::os::unix::fs::symlink("file", world.path("export/tree/link")).unwrap();
    let pull = || {
        let words = ["--json".into(), daemon.url("data/tree"), ".".into()];
        world.rdcp("pull").arg("-a").args(words).run().ok().json()
    };
    let lines = pull();
    let paths = |kind| {
        let mut paths: Vec<_> = of_type(&lines, kind)
            .iter()
            .map(|line| line["path"].as_str().unwrap().to_owned())
            .collect();
        paths.sort();
        paths
    };
    assert_eq!(paths("file"), ["tree/directory/file"]);
    assert_eq!(paths("directory"), ["tree", "tree/directory"]);
    assert_eq!(paths("symlink"), ["tree/link"]);
    assert_eq!(summary(&lines)["verified"], true);
    // A second time nothing is read, and so nothing is proved.
    let lines = pull();
    let end = summary(&lines);
    assert_eq!(
        (&end["files"], &end["verified"]),
        (&0.into(), &Value::Null),
        "{end}"
    );
    // Every line has the id, even where no host was reached.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let url = common::daemon::url(free, "data/file");
    let words = ["--json".into(), url, ".".into()];
    let lines = world.rdcp("pull").args(words).run().expect(3).json();
    for line in &lines {
        assert_eq!(
            line["transfer_id"].as_str().map(str::len),
            Some(32),
            "{line}"
        );
    }
}

#[test]
fn what_was_done_before_a_copy_ended_early_is_told() {
    let world = World::new();
    let daemon = world.serve();
    world.make("export/tree");
    tree::random_file(&world.path("export/tree/a"), 1 << 20, 1);
    tree::random_file(&world.path("export/tree/b"), 16 << 20, 2);
    let proxy = Proxy::new(daemon.address()).hold_after(4 << 20, Scope::Data);
    // Over one connection, on which all of the first file comes before what is held.
    let words = ["-r".into(), proxy.url("data/tree"), ".".into()];
    let options = ["--json", "--streams", "1"];
    let pull = world.rdcp("pull").args(options).args(words).start();
    proxy.wait_held();
    common::wait_for("the first file is there", || {
        world.exists("local/tree/a").then_some(())
    });
    pull.signal(Signal::INT);
    let lines = pull.wait().expect(130).json();
    let end = summary(&lines);
    assert_eq!(
        (&end["files"], &end["bytes"]),
        (&1.into(), &(1 << 20).into()),
        "{end}"
    );
}

#[test]
fn bytes_done_never_pass_bytes_seen() {
    let world = World::new();
    let daemon = world.serve();
    let source = world.path("export/file");
    tree::random_file(&source, 12 << 20, 1);
    let proxy = Proxy::new(daemon.address()).hold_after(6 << 20, Scope::Data);
    let words = ["--json".into(), proxy.url("data/file"), "copy".into()];
    let pull = world.rdcp("pull").args(words).start();
    proxy.wait_held();
    tree::random_file(&source, 12 << 20, 2);
    proxy.release();
    let done = pull.wait().expect(9);
    let lines = done.json();
    for line in of_type(&lines, "progress") {
        assert!(
            line["bytes_done"].as_u64() <= line["bytes_seen"].as_u64(),
            "{line}"
        );
    }
    let failed = of_type(&lines, "file");
    assert_eq!(failed[0]["error"]["side"], "remote", "{lines:#?}");
}

#[test]
fn a_log_on_a_file_is_quiet_unless_asked() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", "content");
    let pull = |to: &str| {
        world
            .rdcp("pull")
            .args([daemon.url("data/file"), to.into()])
    };
    assert_eq!(pull("one").run().ok().stderr, "");
    pull("two").arg("-v").run().ok().says("1 file, 7 B in ");
}

#[test]
fn the_log_says_what_was_done_to_what() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/tree/file", "content");
    world.write("local/odd\n", "content");
    let id = |done: common::command::Finished| {
        let lines = done.json();
        lines[0]["transfer_id"].as_str().unwrap().to_owned()
    };
    let pulled = world
        .rdcp("pull")
        .args(["--json".into(), "-r".into(), daemon.url("data/tree")])
        .arg(".")
        .run()
        .ok();
    let pushed = world
        .rdcp("push")
        .args([
            "--json".into(),
            common::command::word(b"odd\n"),
            daemon.url("data/tree/odd\n"),
        ])
        .run()
        .ok();
    world
        .rdcp("rm")
        .args(["-r".into(), daemon.url("data/tree")])
        .run()
        .ok();
    let lines = common::wait_for("the log tells the last", || {
        let lines = json_lines(&daemon.log());
        let told = lines
            .iter()
            .any(|line| line["message"] == "operation ended");
        told.then_some(lines)
    });
    let find = |message: &str, key: &str, value: &str| {
        lines
            .iter()
            .find(|line| line["message"] == message && line[key] == value)
            .unwrap_or_else(|| panic!("{message} of {value} is not in {lines:#?}"))
    };
    for (transfer, direction, path) in [
        (id(pulled), "pull", "tree"),
        (id(pushed), "push", "tree/odd\\n"),
    ] {
        for message in ["transfer began", "transfer ended"] {
            let line = find(message, "transfer", &transfer);
            assert_eq!(
                (&line["direction"], &line["export"], &line["path"]),
                (&direction.into(), &"data".into(), &path.into())
            );
        }
        let line = find("transfer ended", "transfer", &transfer);
        assert_eq!(
            (&line["result"], &line["bytes"]),
            (&"done".into(), &7.into())
        );
    }
    let line = find("operation ended", "operation", "remove");
    assert_eq!(
        (&line["export"], &line["path"], &line["result"]),
        (&"data".into(), &"tree".into(), &"done".into())
    );
}
