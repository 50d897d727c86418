//! The commands beside the copies: what they print, what they change, how they end.

mod common;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::command::json_lines;
use common::tree;
use common::{Proxy, Scope, World};
use rustix::process::Signal;
use serde_json::Value;

/// No byte that a terminal would act on, except the ends of lines.
#[track_caller]
fn assert_harmless(text: &[u8]) {
    let harmful = text
        .iter()
        .position(|byte| (*byte < 0x20 && *byte != b'\n') || *byte == 0x7f);
    assert_eq!(harmful, None, "in {:?}", String::from_utf8_lossy(text));
    assert!(
        std::str::from_utf8(text).is_ok(),
        "{:?} is no text",
        String::from_utf8_lossy(text)
    );
}

/// The bytes of the path that a JSON line tells.
fn path_of(line: &Value) -> Option<Vec<u8>> {
    let encoded = line["path_b64"].as_str()?;
    Some(STANDARD.decode(encoded).expect("path_b64 is base64"))
}

#[test]
fn ls_shows_exports_directories_and_files() {
    let world = World::new();
    world.write("export/dir/b", "bb");
    world.write("export/dir/a", "a");
    world.write("export/dir/sub/c", "ccc");
    world.write("export/file", "12345");
    let daemon = world.serve();
    let ls = |words: &[&str]| {
        let (options, path) = words.split_at(words.len() - 1);
        let done = world
            .rdcp("ls")
            .args(options)
            .arg(daemon.url(path[0]))
            .run()
            .ok();
        assert_harmless(&done.stdout);
        done.text()
    };
    assert!(ls(&[""]).contains("data"));
    assert_eq!(
        ls(&["data/dir"])
            .lines()
            .map(|line| line.trim_end_matches('/'))
            .collect::<Vec<_>>(),
        ["a", "b", "sub"]
    );
    assert!(ls(&["data/file"]).contains("file"));
    let all = ls(&["-r", "data/dir"]);
    for name in ["a", "b", "sub", "sub/c"] {
        assert!(
            all.lines().any(|line| line.trim_end_matches('/') == name),
            "{name} in {all}"
        );
    }
    let long = ls(&["-l", "data/dir"]);
    assert!(
        long.lines()
            .any(|line| line.contains('2') && line.ends_with('b')),
        "{long}"
    );
    assert_eq!(ls(&["data/dir/sub/"]).lines().collect::<Vec<_>>(), ["c"]);
}

#[test]
fn listings_of_odd_names_are_harmless_and_json_has_every_byte() {
    let world = World::new();
    let names = tree::odd_names();
    for name in &names {
        fs::write(world.path("export").join(name), "x").unwrap();
    }
    let daemon = world.serve();
    for options in [&[][..], &["-l"], &["-r"]] {
        let done = world
            .rdcp("ls")
            .args(options)
            .arg(daemon.url("data"))
            .run()
            .ok();
        assert_harmless(&done.stdout);
        assert_eq!(
            done.text().lines().count(),
            names.len(),
            "{options:?}: one name a line"
        );
    }
    let done = world
        .rdcp("ls")
        .arg("--json")
        .arg(daemon.url("data"))
        .run()
        .ok();
    let told: BTreeSet<Vec<u8>> = done.json().iter().filter_map(path_of).collect();
    let expected: BTreeSet<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
    assert_eq!(told, expected);
    // Each of them can be asked for by its URL.
    for name in &names {
        let path = [b"data/", name.as_bytes()].concat();
        world
            .rdcp("stat")
            .arg(daemon.url(common::name(&path)))
            .run()
            .ok();
    }
}

#[test]
fn stat_tells_what_a_thing_is() {
    let world = World::new();
    tree::random_file(&world.path("export/file"), 12_345, 1);
    tree::set_mode(&world.path("export/file"), 0o640);
    symlink("some/target", world.path("export/link")).unwrap();
    let daemon = world.serve();
    let stat = |path: &str| world.rdcp("stat").arg(daemon.url(path)).run().ok().text();
    assert!(stat("data/file").contains("12345"), "{}", stat("data/file"));
    assert!(
        stat("data").to_lowercase().contains("dir"),
        "{}",
        stat("data")
    );
    assert!(
        stat("data/link").contains("some/target"),
        "{}",
        stat("data/link")
    );
    let done = world
        .rdcp("stat")
        .args(["--json".into(), daemon.url("data/file")])
        .run()
        .ok();
    let lines = done.json();
    assert!(
        lines
            .iter()
            .any(|line| line["size"] == 12_345 || line["len"] == 12_345),
        "{lines:?}"
    );
}

/// Files whose digests are compared with those of the standard tools, with odd names.
fn make_sums(world: &World, side: &str) {
    let mib = 1 << 20;
    for (seed, len) in (1u64..).zip([
        0,
        1,
        63,
        64,
        65,
        1023,
        1024,
        1025,
        mib - 1,
        mib,
        mib + 1,
        4 * mib + 5,
    ]) {
        let path = world.make(format!("{side}/sums")).join(len.to_string());
        tree::random_file(&path, len, seed);
    }
    for name in [
        "with space",
        "-dash",
        "sub/below",
        "new\nline",
        "back\\slash",
    ] {
        world.write(format!("{side}/sums/{name}"), name);
    }
}

#[test]
fn sums_are_those_of_the_standard_tools() {
    let world = World::new();
    make_sums(&world, "local");
    make_sums(&world, "export");
    let daemon = world.serve();
    let files: Vec<OsString> = tree::walk(&world.path("local/sums"))
        .iter()
        .filter(|path| path.is_file())
        .map(|path| {
            path.strip_prefix(world.path("local"))
                .unwrap()
                .as_os_str()
                .to_owned()
        })
        .collect();
    for (hash, tool) in [("sha256", "sha256sum"), ("blake3", "b3sum")] {
        let sorted =
            |text: String| -> BTreeSet<String> { text.lines().map(str::to_owned).collect() };
        let expected = sorted(world.tool(tool).arg("--").args(&files).run().ok().text());
        let here = world
            .bare("sum")
            .args(["--hash", hash, "--"])
            .args(&files)
            .run()
            .ok();
        assert_eq!(sorted(here.text()), expected, "{hash} of local files");
        let tree = world
            .bare("sum")
            .args(["--hash", hash, "-r", "sums"])
            .run()
            .ok();
        assert_eq!(sorted(tree.text()), expected, "{hash} of a local tree");
        let there = world
            .rdcp("sum")
            .args([
                "--hash".into(),
                hash.into(),
                "-r".into(),
                daemon.url("data/sums"),
            ])
            .run()
            .ok();
        assert_eq!(sorted(there.text()), expected, "{hash} of a remote tree");
        // The round trip through the tool's own check.
        let list = world.write("local/list", there.stdout);
        let check = world.tool(tool).arg("--check").arg(&list).run();
        assert_eq!(
            check.status,
            0,
            "{tool} --check: {} {}",
            check.text(),
            check.stderr
        );
        fs::write(world.path("local/sums/65"), "changed").unwrap();
        world.tool(tool).arg("--check").arg(&list).run().expect(1);
        fs::copy(world.path("export/sums/65"), world.path("local/sums/65")).unwrap();
    }
    // BLAKE3 is what comes without being asked for.
    let plain = world.bare("sum").arg("sums/65").run().ok().text();
    assert_eq!(plain, world.tool("b3sum").arg("sums/65").run().ok().text());
}

#[test]
fn sums_of_a_file_beyond_4_gib() {
    // What sha256sum and b3sum print for it. The tools themselves take too long to be run here.
    const SHA256: &str = "d491ee3082f9db70b1a0229f768f329915e787b6893e1ab7e588464e030cd12d";
    const BLAKE3: &str = "9875ade127cd67d92f956c80aec915523794278cdcc10cd01c32b4700f12fef6";
    const LEN: u64 = 5 << 30;
    let world = World::new();
    let islands = [5, (4 << 30) - 100, LEN - 10];
    tree::sparse_file(&world.path("local/large"), LEN, &islands);
    fs::hard_link(world.path("local/large"), world.path("export/large")).unwrap();
    let daemon = world.serve();
    let sum = |hash: &str, word: OsString| {
        let words = ["--hash".into(), hash.into(), word];
        world.rdcp("sum").args(words).run().ok().text()
    };
    assert_eq!(sum("sha256", "large".into()), format!("{SHA256}  large\n"));
    assert_eq!(sum("blake3", "large".into()), format!("{BLAKE3}  large\n"));
    let there = sum("blake3", daemon.url("data/large"));
    assert_eq!(there, format!("{BLAKE3}  large\n"));
}

#[test]
fn a_directory_is_summed_only_with_r() {
    let world = World::new();
    make_sums(&world, "local");
    make_sums(&world, "export");
    let daemon = world.serve();
    for word in ["sums".into(), daemon.url("data/sums")] {
        let done = world.rdcp("sum").arg(word).run();
        assert_ne!(done.status, 0);
        assert!(done.stdout.is_empty());
    }
}

#[test]
fn verify_finds_each_kind_of_difference() {
    let world = World::new();
    let daemon = world.serve();
    tree::make_random(&world.path("local/tree"), 9, 40);
    world
        .rdcp("push")
        .args(["-a".into(), "tree".into(), daemon.url("data/")])
        .run()
        .ok();
    let verify = || {
        let here = world.path("local/tree").into_os_string();
        world
            .rdcp("verify")
            .args([here, daemon.url("data/tree")])
            .run()
    };
    verify().ok();
    let files: Vec<_> = tree::walk(&world.path("export/tree"))
        .into_iter()
        .filter(|path| path.metadata().unwrap().len() > 0 && path.is_file())
        .collect();
    let shown = |done: &common::Finished| format!("{}{}", done.text(), done.stderr);
    // The same size and time, one bit of content.
    let old = fs::read(&files[3]).unwrap();
    let mut new = old.clone();
    new[0] ^= 1;
    fs::write(&files[3], &new).unwrap();
    let done = verify().expect(13);
    let name = files[3].file_name().unwrap().to_string_lossy().into_owned();
    assert!(shown(&done).contains(&name), "{}", shown(&done));
    fs::write(&files[3], &old).unwrap();
    verify().ok();
    world.write("export/tree/too much", "x");
    let done = verify().expect(13);
    assert!(shown(&done).contains("too much"), "{}", shown(&done));
    fs::remove_file(world.path("export/tree/too much")).unwrap();
    world.write("local/tree/missing there", "x");
    let done = verify().expect(13);
    assert!(shown(&done).contains("missing there"), "{}", shown(&done));
    fs::remove_file(world.path("local/tree/missing there")).unwrap();
    let words = [
        "--hash".into(),
        "sha256".into(),
        "tree".into(),
        daemon.url("data/tree"),
    ];
    world.rdcp("verify").args(words).run().ok();
    world
        .rdcp("verify")
        .args(["none".into(), daemon.url("data/tree")])
        .run()
        .expect(5);
    world
        .rdcp("verify")
        .args(["tree".into(), daemon.url("data/none")])
        .run()
        .expect(5);
}

#[test]
fn rm_removes_what_it_is_told() {
    let world = World::new();
    let daemon = world.serve();
    for file in ["a", "b", "dir/x", "dir/sub/y", "kept"] {
        world.write(format!("export/{file}"), file);
    }
    world
        .rdcp("rm")
        .args([daemon.url("data/a"), daemon.url("data/b")])
        .run()
        .ok();
    let done = world.rdcp("rm").arg(daemon.url("data/dir")).run();
    assert_ne!(done.status, 0, "a directory only with -r");
    assert!(world.exists("export/dir/sub/y"));
    world
        .rdcp("rm")
        .args(["-r".into(), daemon.url("data/dir")])
        .run()
        .ok();
    assert_eq!(tree::listing(&world.path("export")), ["kept"]);
    let done = world
        .rdcp("rm")
        .args(["-r".into(), daemon.url("data/")])
        .run();
    assert_ne!(done.status, 0, "a whole export is not removed");
    assert!(world.exists("export/kept"));
}

#[test]
fn mkdir_makes_what_it_is_told() {
    let world = World::new();
    let daemon = world.serve();
    world
        .rdcp("mkdir")
        .args([daemon.url("data/a"), daemon.url("data/a/b")])
        .run()
        .ok();
    world
        .rdcp("mkdir")
        .arg(daemon.url("data/x/y/z"))
        .run()
        .expect(5);
    world
        .rdcp("mkdir")
        .args(["-p".into(), daemon.url("data/x/y/z")])
        .run()
        .ok();
    world
        .rdcp("mkdir")
        .args(["-p".into(), daemon.url("data/x/y/z")])
        .run()
        .ok();
    let done = world.rdcp("mkdir").arg(daemon.url("data/a")).run();
    assert_ne!(done.status, 0, "it exists");
    assert_eq!(
        tree::listing(&world.path("export")),
        ["a", "a/b", "x", "x/y", "x/y/z"]
    );
    world.write("export/file", "content");
    let done = world
        .rdcp("mkdir")
        .args(["-p".into(), daemon.url("data/file")])
        .run();
    assert_ne!(done.status, 0, "a file is in the way");
    assert_eq!(world.read("export/file"), b"content");
}

#[test]
fn ping_tells_transports_and_reasons() {
    let world = World::new();
    let daemon = world.serve();
    let host = daemon.address().to_string();
    let done = world.rdcp("ping").arg(&host).run();
    // 10 is what it ends with where RDMA would not be used.
    assert!(
        [0, 10].contains(&done.status),
        "{}: {}",
        done.status,
        done.stderr
    );
    let text = done.text();
    for word in ["round trip", "tcp", "rdma"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    let done = world.rdcp("ping").args(["--json", &host]).run();
    assert!(
        [0, 10].contains(&done.status),
        "{}: {}",
        done.status,
        done.stderr
    );
    assert!(!done.json().is_empty());
}

#[test]
fn completions_and_manual_cover_every_command() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish"] {
        let text = world.bare("completions").arg(shell).run().ok().text();
        for command in ["pull", "push", "verify", "ping"] {
            assert!(text.contains(command), "{shell}: {command}");
        }
    }
    let script = world.bare("completions").arg("bash").run().ok().stdout;
    let script = world.write("local/completion", script);
    world.tool("bash").arg("-n").arg(script).run().ok();
    let page = world.bare("man").run().ok().text();
    assert!(page.contains(".TH") && page.contains("pull"), "{page}");
    let page = world.bare("man").arg("pull").run().ok().text();
    assert!(page.contains("overwrite"));
    let page = world.bare("man").arg("failures").run().ok().text();
    assert!(page.contains(".TH") && page.contains("The destination fills up"));
    let pages = world.make("pages");
    world.bare("man").arg("--dir").arg(&pages).run().ok();
    let names = tree::listing(&pages);
    for command in [
        "rdcp.1",
        "rdcp-pull.1",
        "rdcp-push.1",
        "rdcp-verify.1",
        "rdcp-failures.1",
    ] {
        assert!(
            names.iter().any(|name| name == command),
            "{command} in {names:?}"
        );
    }
    assert!(
        world
            .bare("--help")
            .run()
            .ok()
            .text()
            .contains("Exit status")
    );
    assert!(
        world
            .bare("--version")
            .run()
            .ok()
            .text()
            .starts_with("rdcp ")
    );
}

/// What holds for the lines of every run.
#[track_caller]
fn assert_sound(lines: &[Value], status: i32) {
    let mut last = None;
    for line in lines {
        assert!(line["v"].is_u64(), "{line}");
        let seq = line["seq"]
            .as_u64()
            .unwrap_or_else(|| panic!("no seq in {line}"));
        assert!(
            last.is_none_or(|last| seq > last),
            "seq does not rise: {line}"
        );
        last = Some(seq);
        assert!(
            line["time"].is_string() || line["time"].is_number(),
            "{line}"
        );
        // Known before the host is reached.
        let id = &line["transfer_id"];
        assert!(
            id.as_str().is_some_and(|id| id.len() == 32),
            "no transfer_id of 128 bits in {line}"
        );
        let kind = line["type"]
            .as_str()
            .unwrap_or_else(|| panic!("no type in {line}"));
        let known = [
            "start",
            "progress",
            "file",
            "directory",
            "symlink",
            "warning",
            "error",
            "summary",
        ];
        assert!(known.contains(&kind), "{line}");
    }
    let summaries = lines
        .iter()
        .filter(|line| line["type"] == "summary")
        .count();
    assert_eq!(summaries, 1, "{lines:#?}");
    let summary = lines.last().expect("there are lines");
    assert_eq!(summary["type"], "summary", "{lines:#?}");
    let text = summary.to_string();
    assert!(
        text.contains(&status.to_string()),
        "no exit status {status} in {text}"
    );
}

#[test]
fn json_lines_of_copies_are_sound() {
    let world = World::new();
    let daemon = world.serve();
    let source = world.make("local/tree");
    let mut expected = BTreeSet::new();
    for name in tree::odd_names() {
        fs::write(source.join(&name), "content").unwrap();
        expected.insert(name.into_vec());
    }
    tree::random_file(&source.join("big"), 3 << 20, 1);
    expected.insert(b"big".to_vec());
    for words in [
        ["push".into(), "tree".into(), daemon.url("data/")],
        ["pull".into(), daemon.url("data/tree"), "back".into()],
    ] {
        world.make("local/back");
        let command = words[0].to_str().unwrap();
        let done = world
            .rdcp(command)
            .args(["--json", "-r"])
            .args(&words[1..])
            .run()
            .ok();
        let lines = done.json();
        assert_sound(&lines, 0);
        assert_eq!(lines[0]["type"], "start", "{}", lines[0]);
        assert!(
            lines
                .iter()
                .all(|line| line["transfer_id"] == lines[0]["transfer_id"]),
            "one run, one id"
        );
        let told: BTreeSet<Vec<u8>> = lines
            .iter()
            .filter(|line| line["type"] == "file")
            .filter_map(path_of)
            .filter_map(|path| {
                let name = path.rsplit(|byte| *byte == b'/').next()?;
                Some(name.to_vec())
            })
            .collect();
        for name in &expected {
            assert!(
                told.contains(name),
                "{command}: {:?} is not told",
                OsStr::from_bytes(name)
            );
        }
        for line in &lines {
            if let Some(path) = line["path"].as_str() {
                assert_harmless(path.as_bytes());
            }
        }
        // The daemon knows the transfer by the same id.
        let id = lines[0]["transfer_id"].as_str().unwrap().to_owned();
        common::wait_for("the daemon's log tells the transfer's id", || {
            daemon.log().contains(&id).then_some(())
        });
    }
}

#[test]
fn json_ends_with_a_summary_on_every_failure() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", "content");
    tree::random_file(&world.path("export/large"), 16 << 20, 1);
    world.write("local/there", "content");
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let table = [
        (vec![common::daemon::url(free, "data/file"), ".".into()], 3),
        (vec![daemon.url("data/none"), ".".into()], 5),
        (vec![daemon.url("none/file"), ".".into()], 5),
        (
            vec![
                "--transport=rdma".into(),
                daemon.url("data/file"),
                ".".into(),
            ],
            10,
        ),
        (
            vec![
                "--overwrite=error".into(),
                daemon.url("data/file"),
                "there".into(),
            ],
            12,
        ),
    ];
    for (words, status) in table {
        if status == 10 && fs::read_dir("/sys/class/infiniband").is_ok() {
            continue;
        }
        let done = world
            .rdcp("pull")
            .arg("--json")
            .args(&words)
            .run()
            .expect(status);
        let lines = done.json();
        assert_sound(&lines, status);
        assert!(
            lines
                .iter()
                .any(|line| line["type"] == "error" || line["error"].is_object()),
            "{words:?}: {lines:#?}"
        );
    }
    let done = world
        .bare("pull")
        .arg("--json")
        .args([daemon.url("data/file"), ".".into()]);
    let known = world.path("config");
    let _ = fs::remove_dir_all(known);
    let done = done.run().expect(4);
    assert_sound(&done.json(), 4);
    let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, Scope::Data);
    let words = ["--json".into(), proxy.url("data/large"), "copy".into()];
    let pull = world.rdcp("pull").args(words).start();
    proxy.wait_held();
    pull.signal(Signal::INT);
    let done = pull.wait().expect(130);
    assert_sound(&done.json(), 130);
}

#[test]
fn json_goes_to_standard_error_when_the_file_goes_to_standard_output() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", "content");
    let words = ["--json".into(), daemon.url("data/file"), "-".into()];
    let done = world.rdcp("pull").args(words).run().ok();
    assert_eq!(done.stdout, b"content");
    assert_sound(&json_lines(&done.stderr), 0);
}

#[test]
fn other_commands_speak_json_too() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", "content");
    world.write("local/file", "content");
    for words in [
        vec!["ls".into(), daemon.url("data")],
        vec!["ls".into(), daemon.url("")],
        vec!["stat".into(), daemon.url("data/file")],
        vec!["sum".into(), daemon.url("data/file")],
        vec!["verify".into(), "file".into(), daemon.url("data/file")],
    ] {
        let command = words[0].to_str().unwrap();
        let done = world
            .rdcp(command)
            .arg("--json")
            .args(&words[1..])
            .run()
            .ok();
        let lines = done.json();
        assert_eq!(
            lines.last().unwrap()["type"],
            "summary",
            "{command}: {lines:#?}"
        );
        let summaries = lines
            .iter()
            .filter(|line| line["type"] == "summary")
            .count();
        assert_eq!(summaries, 1, "{command}");
    }
}

#[test]
fn failures_name_odd_paths_harmlessly() {
    let world = World::new();
    let daemon = world.serve();
    for name in tree::odd_names() {
        let path = [b"data/none/", name.as_bytes()].concat();
        let words = [daemon.url(common::name(&path)), ".".into()];
        let done = world.rdcp("pull").args(words).run().expect(5);
        assert_harmless(done.stderr.as_bytes());
    }
}

#[test]
fn quiet_is_quiet_and_a_broken_pipe_ends_no_copy() {
    let world = World::new();
    let daemon = world.serve();
    tree::make_random(&world.path("export/tree"), 4, 30);
    let words = [
        "-q".into(),
        "-r".into(),
        daemon.url("data/tree"),
        "quiet".into(),
    ];
    world.make("local/quiet");
    let done = world.rdcp("pull").args(words).run().ok();
    assert!(
        done.stdout.is_empty() && done.stderr.is_empty(),
        "{}",
        done.stderr
    );
    // Nobody reads its lines: the copy goes on, and its end says so.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    world.make("local/broken");
    let words = [
        "--json".into(),
        "-r".into(),
        daemon.url("data/tree"),
        "broken".into(),
    ];
    let done = world.rdcp("pull").args(words).stdout(writer).run();
    done.expect(7);
    tree::assert_same(
        &world.path("export/tree"),
        &world.path("local/broken/tree"),
        tree::Carried::Plain,
    );
}
