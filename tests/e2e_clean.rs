//! What interrupted copies left behind, found and removed by `rdcp clean`, here and on servers, and by
//! a daemon when it starts; and that nothing else is ever touched, whatever it is called.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use common::{Daemon, Finished, Proxy, Scope, World, is_root, tree, wait_for};
use rustix::process::Signal;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// The name of a file in the making, as the format is: a number, and a mark that is computed from it.
fn hidden_name(stem: u64, end: &str) -> String {
    let key = b"rdcp: the name of a part file   ";
    let mark = blake3::keyed_hash(key, &stem.to_be_bytes());
    let mark = &mark.to_hex()[..16];
    format!(".rdcp-{stem:016x}{mark}.{end}")
}

/// The number for a file of this name.
fn stem_of(name: &str) -> u64 {
    u64::from_str_radix(&blake3::hash(name.as_bytes()).to_hex()[..16], 16).unwrap()
}

fn plant(directory: &Path, name: &str) -> PathBuf {
    fs::create_dir_all(directory).unwrap();
    let path = directory.join(name);
    fs::write(&path, "left").unwrap();
    path
}

/// Waits until the daemon has swept what it serves.
#[track_caller]
fn wait_swept(daemon: &Daemon) {
    wait_for("the daemon has swept", || {
        let swept = daemon.log().contains("what copies left behind was swept");
        swept.then_some(())
    });
}

/// What was told of each, by its name.
fn told(done: &Finished) -> BTreeMap<String, Value> {
    let lines = done.json().into_iter();
    let lines = lines.filter(|line| line["type"] == "leftover");
    lines
        .map(|line| {
            let path = line["path"].as_str().unwrap();
            let name = path.rsplit('/').next().unwrap().to_owned();
            (name, line)
        })
        .collect()
}

fn fate(line: &Value) -> (&str, &str) {
    let word = |field: &str| line[field].as_str().unwrap();
    (word("fate"), word("reason"))
}

/// A place that is cleaned: here, or by a daemon.
struct Cleaned {
    world: World,
    daemon: Option<Daemon>,
}

impl Cleaned {
    const BOTH: [bool; 2] = [false, true];

    fn new(remote: bool) -> Self {
        let world = World::new();
        let daemon = remote.then(|| {
            let daemon = world.serve();
            // What is planted later is not for the sweep at its start.
            wait_swept(&daemon);
            daemon
        });
        Self { world, daemon }
    }

    fn directory(&self) -> PathBuf {
        self.world.path(match self.daemon {
            Some(_) => "export/tree",
            None => "local/tree",
        })
    }

    fn clean(&self, options: &[&str]) -> Finished {
        let place = match &self.daemon {
            Some(daemon) => daemon.url("data/tree"),
            None => "tree".into(),
        };
        let command = self.world.rdcp("clean").arg("--json").args(options);
        command.arg(place).run()
    }
}

#[test]
fn what_goes_and_what_stays_is_told_with_its_reason() {
    for remote in Cleaned::BOTH {
        let place = Cleaned::new(remote);
        let top = place.directory();
        let below = top.join("a/b");
        let big = stem_of("big.iso");
        let (resumable, journal) = (hidden_name(big, "part"), hidden_name(big, "journal"));
        let abandoned = hidden_name(1, "part");
        let held = hidden_name(2, "part");
        let linked = hidden_name(3, "part");
        let link = hidden_name(4, "part");
        let directory = hidden_name(5, "part");
        let lone = hidden_name(6, "journal");
        plant(&below, "big.iso");
        for name in [&resumable, &journal, &abandoned, &held] {
            plant(&below, name);
        }
        plant(&top, &lone);
        let content = plant(&top, "content");
        fs::hard_link(&content, below.join(&linked)).unwrap();
        symlink(&content, below.join(&link)).unwrap();
        fs::create_dir(below.join(&directory)).unwrap();
        let own = plant(&below.join(&directory), &hidden_name(7, "part"));
        // The user's: only called like one.
        let similar = plant(&below, ".rdcp-0123456789abcdef0123456789abcdef.part");
        // Out of the tree.
        let outside = plant(&place.world.path("outside"), &hidden_name(8, "part"));
        symlink(place.world.path("outside"), top.join("link")).unwrap();
        let writing = fs::File::open(below.join(&held)).unwrap();
        rustix::fs::flock(&writing, rustix::fs::FlockOperation::LockExclusive).unwrap();

        let stays = [
            (&held, ("kept", "in_use")),
            (&linked, ("kept", "linked")),
            (&link, ("kept", "no_file")),
            (&directory, ("kept", "no_file")),
        ];
        let before = tree::listing(&top);
        let check = |options: &[&str], others: &[(&String, (&str, &str))]| {
            let told = told(&place.clean(options).ok());
            let mut expected: BTreeMap<_, _> = stays.into_iter().collect();
            expected.extend(others.iter().copied());
            let found: BTreeMap<_, _> =
                told.iter().map(|(name, line)| (name, fate(line))).collect();
            assert_eq!(found, expected, "{options:?} remote: {remote}");
            told
        };
        let lines = check(
            &["-n"],
            &[
                (&resumable, ("kept", "resumable")),
                (&abandoned, ("would_remove", "abandoned")),
                (&lone, ("would_remove", "abandoned")),
            ],
        );
        assert_eq!(tree::listing(&top), before, "a dry run changed something");
        let line = &lines[&resumable];
        assert_eq!(
            (&line["destination"], &line["journal"], &line["size"]),
            (&"big.iso".into(), &true.into(), &4.into()),
            "{line}"
        );
        assert_eq!(lines[&abandoned]["destination"], Value::Null);
        assert!(line["allocated"].is_u64() && line["age_s"].as_u64().unwrap() < 3600);

        check(
            &["--older-than", "1h"],
            &[
                (&resumable, ("kept", "young")),
                (&abandoned, ("kept", "young")),
                (&lone, ("kept", "young")),
            ],
        );
        assert_eq!(tree::listing(&top), before, "what is younger is gone");
        check(
            &[],
            &[
                (&resumable, ("kept", "resumable")),
                (&abandoned, ("removed", "abandoned")),
                (&lone, ("removed", "abandoned")),
            ],
        );
        // What it is old enough for is decided by its last change, which nobody can set.
        wait_for("it is a second old", || {
            let line = &told(&place.clean(&["-n"]).ok())[&resumable];
            (line["age_s"].as_u64()? >= 1).then_some(())
        });
        check(
            &["-n", "--older-than", "1s"],
            &[(&resumable, ("would_remove", "expired"))],
        );
        check(&["--all"], &[(&resumable, ("removed", "asked"))]);
        drop(writing);
        let told = told(&place.clean(&[]).ok());
        assert_eq!(fate(&told[&held]), ("removed", "abandoned"));

        for path in [&own, &similar, &outside, &content] {
            assert_eq!(fs::read(path).unwrap(), b"left", "{path:?}");
        }
        assert!(below.join(&link).is_symlink() && below.join(&linked).exists());
        assert!(!below.join(&journal).exists() && !below.join(&resumable).exists());
    }
}

#[test]
fn a_copy_that_runs_keeps_what_it_writes_and_one_that_was_killed_does_not() {
    let world = World::new();
    tree::random_file(&world.path("export/file"), 24 << 20, 1);
    let daemon = world.serve();
    let proxy = Proxy::new(daemon.address()).hold_after(16 * MIB, Scope::Data);
    let pull = world.rdcp("pull").arg(proxy.url("data/file"));
    let pull = pull.arg("copy").start();
    proxy.wait_held();
    wait_for("there is a journal", || {
        let names = tree::listing(&world.path("local"));
        let mut names = names.iter().map(|name| name.to_string_lossy());
        names.any(|name| name.ends_with(".journal")).then_some(())
    });
    // Without a path it is this directory.
    let clean = |options: &[&str]| {
        let command = world.rdcp("clean").arg("--json").args(options);
        let lines: Vec<_> = told(&command.run().ok()).into_values().collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(
            (&lines[0]["journal"], &lines[0]["size"]),
            (&true.into(), &(24 * MIB).into())
        );
        (
            lines[0]["fate"].as_str().unwrap().to_owned(),
            lines[0]["reason"].as_str().unwrap().to_owned(),
        )
    };
    let is = |fate: &str, reason: &str| (fate.to_owned(), reason.to_owned());
    assert_eq!(clean(&["--all"]), is("kept", "in_use"));
    pull.signal(Signal::KILL);
    pull.wait().expect(137);
    assert_eq!(clean(&[]), is("kept", "resumable"));
    assert_eq!(clean(&["--all"]), is("removed", "asked"));
    assert!(tree::listing(&world.path("local")).is_empty());
    // People are told in a line.
    let name = hidden_name(9, "part");
    plant(&world.path("local/x"), &name);
    let done = world.rdcp("clean").arg("-n").run().ok().text();
    assert!(
        done.starts_with("would remove ")
            && done.contains(&format!("./x/{name}: no copy works on it")),
        "{done}"
    );
}

#[test]
fn on_a_server_it_takes_the_right_to_delete_and_to_list() {
    let world = World::new();
    let name = hidden_name(1, "part");
    let key = |name: &str| {
        let file = world.path(name).into_os_string();
        let done = world.bare("keygen").arg("--identity").arg(file).run().ok();
        done.text().trim().to_owned()
    };
    let mut lines = String::new();
    for (who, rights) in [
        ("deleter", "delete"),
        ("lister", "list"),
        ("both", "delete,list"),
    ] {
        lines += &format!("rights=\"{rights}\" {}\n", key(who));
    }
    let keys = world.write("keys", lines);
    let mut export = std::ffi::OsString::from("data=");
    export.push(world.path("export"));
    export.push(":rw");
    let daemon = world.serve_as(&[
        "--export".into(),
        export,
        "--listen".into(),
        "127.0.0.1:0".into(),
        "--authorized-keys".into(),
        keys.into_os_string(),
    ]);
    wait_swept(&daemon);
    let left = plant(&world.path("export"), &name);
    let clean = |who: &str, options: &[&str]| {
        let clean = world.rdcp("clean").args(options).arg("--identity");
        let clean = clean.arg(world.path(who)).arg(daemon.url("data"));
        clean.run()
    };
    for who in ["deleter", "lister"] {
        clean(who, &["-n"]).expect(4).says("no right to ");
        clean(who, &["--all"]).expect(4);
    }
    assert!(left.exists());
    clean("both", &[]).ok();
    assert!(!left.exists());
}

#[test]
fn what_can_not_be_cleaned_has_its_status() {
    let world = World::new();
    // As a variable has it that is not set.
    world
        .rdcp("clean")
        .args(["--all", ""])
        .run()
        .expect(2)
        .says("empty path");
    let daemon = world.serve();
    world.write("local/file", "x");
    world.write("export/file", "x");
    world.rdcp("clean").arg("none").run().expect(5).says("none");
    world
        .rdcp("clean")
        .arg(daemon.url("data/none"))
        .run()
        .expect(5);
    for place in ["file".into(), daemon.url("data/file")] {
        let done = world.rdcp("clean").arg(place).run().expect(2);
        done.says("no directory");
    }
    let both = world.rdcp("clean").args(["--all", "--older-than", "1d"]);
    both.run().expect(2);
    // The others go on.
    let left = plant(&world.path("local/x"), &hidden_name(1, "part"));
    world.rdcp("clean").args(["none", "x"]).run().expect(5);
    assert!(!left.exists());
    if !is_root("a directory that another user may not change") {
        return;
    }
    let left = plant(&world.path("local/closed"), &hidden_name(1, "part"));
    let user = 65534;
    std::os::unix::fs::chown(&left, Some(user), Some(user)).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(world.path(""), open).unwrap();
    let copy = world.path("rdcp");
    fs::copy(common::program("rdcp"), &copy).unwrap();
    let clean = |uid: &str| {
        let reuid = format!("--reuid={uid}");
        let tool = world.tool("setpriv").args([&reuid, "--clear-groups"]);
        tool.arg(&copy).args(["clean", "--json", "closed"]).run()
    };
    let done = clean("65534").expect(4);
    assert_eq!(
        fate(&told(&clean("65533").ok())[&hidden_name(1, "part")]),
        ("kept", "foreign")
    );
    assert!(left.exists(), "{}", done.text());
}

#[test]
fn a_daemon_sweeps_its_writable_exports_when_it_starts() {
    let world = World::new();
    let deep = world.path("export/a/b/c");
    let big = stem_of("big.iso");
    let gone = plant(&deep, &hidden_name(1, "part"));
    let kept = [
        plant(&deep, &hidden_name(big, "part")),
        plant(&deep, &hidden_name(big, "journal")),
        plant(&deep, ".rdcp-0123456789abcdef0123456789abcdef.part"),
        plant(&world.path("read only"), &hidden_name(2, "part")),
    ];
    let export = |name: &str, path: &str, end: &str| {
        let mut export = std::ffi::OsString::from(name);
        export.push(world.path(path));
        export.push(end);
        export
    };
    let daemon = world.serve_as(&[
        "--export".into(),
        export("data=", "export", ":rw"),
        "--export".into(),
        export("read=", "read only", ""),
        "--listen".into(),
        "127.0.0.1:0".into(),
    ]);
    wait_swept(&daemon);
    let lines = common::command::json_lines(&daemon.log());
    let line = lines.iter().find(|line| line["removed"].is_u64()).unwrap();
    assert_eq!(
        (
            &line["export"],
            &line["removed"],
            &line["directories"],
            &line["complete"]
        ),
        (&"data".into(), &1.into(), &4.into(), &true.into())
    );
    assert!(!gone.exists());
    for path in kept {
        assert!(path.exists(), "{path:?}");
    }
}
