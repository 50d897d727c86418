//! Each exit status, provoked once with the real programs.

mod common;

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::tree;
use common::{Proxy, Scope, World, is_root};
use rustix::process::Signal;

/// A file system of its own with so much room; unmounted when dropped.
struct SmallFileSystem(PathBuf);

impl SmallFileSystem {
    fn mount(at: PathBuf, size: &str) -> Self {
        fs::create_dir_all(&at).unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o"])
            .arg(format!("size={size}"))
            .arg("tmpfs")
            .arg(&at)
            .status()
            .expect("mount(8) is there");
        assert!(status.success(), "a tmpfs can be mounted");
        Self(at)
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        // Lazily: a daemon may still have it open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn no_part_files(directory: &Path) {
    let left: Vec<_> = tree::listing(directory)
        .into_iter()
        .filter(|name| name.to_string_lossy().contains(".rdcp-"))
        .collect();
    assert!(left.is_empty(), "part files are left: {left:?}");
}

#[test]
fn status_0_done() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", "content");
    let done = world
        .rdcp("pull")
        .args([daemon.url("data/file"), ".".into()])
        .run()
        .ok();
    assert!(done.stdout.is_empty());
}

#[test]
fn status_2_usage() {
    let world = World::new();
    world.write("local/file", "content");
    let table: &[(&[&str], &str)] = &[
        (&["pull"], ""),
        (&["pull", "127.0.0.1:file", "."], "/"),
        (
            &["pull", "--no-such-option", "127.0.0.1:/data/f", "."],
            "--no-such-option",
        ),
        (
            &["pull", "--chunk", "3M", "127.0.0.1:/data/f", "."],
            "--chunk",
        ),
        (
            &["pull", "--hash", "md5", "127.0.0.1:/data/f", "."],
            "blake3",
        ),
        (
            &["pull", "--timeout", "soon", "127.0.0.1:/data/f", "."],
            "--timeout",
        ),
        (
            &[
                "pull",
                "-u",
                "--overwrite",
                "never",
                "127.0.0.1:/data/f",
                ".",
            ],
            "--overwrite",
        ),
        (&["pull", "a", "b"], ""),
        (&["push", "file", "elsewhere"], ""),
        (&["cp", "file", "elsewhere"], "cp"),
        (&["cp", "127.0.0.1:/data/a", "127.0.0.2:/data/b"], ""),
        (&["pull", "rdcp://127.0.0.1/data/%zz", "."], "%25"),
        (&["pull", "rdcp://127.0.0.1:99999/data/f", "."], "port"),
        (&["pull", "127.0.0.1:/data/../f", "."], ".."),
        (&["frobnicate"], "frobnicate"),
    ];
    for (args, part) in table {
        let done = world.bare(args[0]).args(&args[1..]).run();
        assert_eq!(done.status, 2, "{args:?}: {}", done.stderr);
        assert!(
            done.stderr.contains(part),
            "{args:?}: {part:?} is not in {}",
            done.stderr
        );
    }
}

#[test]
fn status_3_unreachable() {
    let world = World::new();
    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let url = common::daemon::url(free, "data/file");
    let done = world.rdcp("pull").args([url, ".".into()]).run().expect(3);
    assert!(
        done.stderr.contains(&free.port().to_string()),
        "{}",
        done.stderr
    );
    // Something that listens there and speaks another language is no daemon either.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = common::daemon::url(listener.local_addr().unwrap(), "data/file");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = std::io::Write::write_all(&mut stream, b"220 mail.example ESMTP\r\n");
        }
    });
    world.rdcp("pull").args([url, ".".into()]).run().expect(3);
}

#[test]
fn status_4_unknown_key() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", "content");
    let pull = || {
        world
            .bare("pull")
            .args([daemon.url("data/file"), ".".into()])
    };
    pull().run().expect(4).says("--accept-new");
    assert!(!world.exists("local/file"));
    pull().arg("--accept-new").run().ok();
    pull().run().ok();
}

#[test]
fn status_4_changed_key() {
    let world = World::new();
    world.write("export/file", "content");
    let mut export = OsString::from("data=");
    export.push(world.path("export"));
    let mut daemon = world.serve();
    let address = daemon.address();
    world
        .rdcp("pull")
        .args([daemon.url("data/file"), "first".into()])
        .run()
        .ok();
    let fingerprint = |log: &str| -> String {
        common::command::json_lines(log)
            .iter()
            .find_map(|line| line["fingerprint"].as_str().map(str::to_owned))
            .expect("the daemon tells its fingerprint")
    };
    let old = fingerprint(&daemon.log());
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
    // Another daemon, with another key, at the same address.
    let other = common::Daemon::start(
        &[
            "--export".into(),
            export,
            "--listen".into(),
            address.to_string().into(),
            "--state-dir".into(),
            world.path("other state").into(),
        ],
        &[("HOME", world.path("home").into())],
    );
    let new = common::wait_for("the daemon tells its fingerprint", || {
        let log = other.log();
        log.contains("fingerprint").then(|| fingerprint(&log))
    });
    for command in [world.bare("pull"), world.rdcp("pull")] {
        command
            .args([other.url("data/file"), "second".into()])
            .run()
            .expect(4)
            .says(&old)
            .says(&new)
            .says("config/rdcp/known_hosts, line 1)")
            .says("sed -i '1d' ");
        assert!(!world.exists("local/second"));
    }
}

#[test]
fn status_4_read_only_export() {
    let world = World::new();
    world.write("local/file", "content");
    world.write("export/there", "content");
    let mut export = OsString::from("data=");
    export.push(world.path("export"));
    let daemon = world.serve_as(&[
        "--export".into(),
        export,
        "--listen".into(),
        "127.0.0.1:0".into(),
    ]);
    world
        .rdcp("push")
        .args(["file".into(), daemon.url("data/file")])
        .run()
        .expect(4);
    world
        .rdcp("mkdir")
        .arg(daemon.url("data/directory"))
        .run()
        .expect(4);
    world
        .rdcp("rm")
        .arg(daemon.url("data/there"))
        .run()
        .expect(4);
    assert_eq!(tree::listing(&world.path("export")), ["there"]);
}

#[test]
fn status_5_not_there() {
    let world = World::new();
    let daemon = world.serve();
    world.write("local/file", "content");
    for command in ["stat", "ls", "sum", "rm"] {
        world
            .rdcp(command)
            .arg(daemon.url("data/none"))
            .run()
            .expect(5)
            .says("none");
    }
    world
        .rdcp("pull")
        .args([daemon.url("data/none"), ".".into()])
        .run()
        .expect(5)
        .says("none");
    world
        .rdcp("push")
        .args(["none".into(), daemon.url("data/")])
        .run()
        .expect(5)
        .says("none");
    world
        .rdcp("push")
        .args(["file".into(), daemon.url("data/none/file")])
        .run()
        .expect(5);
    // An unknown export lists those that the user may see.
    world
        .rdcp("pull")
        .args([daemon.url("dada/file"), ".".into()])
        .run()
        .expect(5)
        .says("data");
    world
        .rdcp("push")
        .args(["file".into(), daemon.url("dada/file")])
        .run()
        .expect(5)
        .says("data");
    assert_eq!(tree::listing(&world.path("local")), ["file"]);
}

#[test]
fn status_6_integrity() {
    for (hash, len) in [
        ("blake3", 3 << 20),
        ("blake3", 50_000),
        ("sha256", 3 << 20),
        ("sha256", 50_000),
    ] {
        let world = World::new();
        let daemon = world.serve();
        let content = common::proxy::marked_content(len, 1);
        world.write("export/file", &content);
        world.write("local/file", &content);
        let proxy = Proxy::new(daemon.address()).damage(u64::MAX);
        let pull = [
            "--hash".into(),
            hash.into(),
            proxy.url("data/file"),
            "copy".into(),
        ];
        world.rdcp("pull").args(pull).run().expect(6).says("copy: ");
        let push = [
            "--hash".into(),
            hash.into(),
            "file".into(),
            proxy.url("data/copy"),
        ];
        world
            .rdcp("push")
            .args(push)
            .run()
            .expect(6)
            .says("data/copy: ");
        assert!(proxy.flipped() >= 2);
        for side in ["local", "export"] {
            assert!(
                !world.path(side).join("copy").exists(),
                "damaged content was published"
            );
            no_part_files(&world.path(side));
        }
    }
}

#[test]
fn damage_goes_unnoticed_only_when_asked_for() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", common::proxy::marked_content(1 << 20, 1));
    let proxy = Proxy::new(daemon.address()).damage(u64::MAX);
    let words = [
        "--hash".into(),
        "none".into(),
        proxy.url("data/file"),
        "copy".into(),
    ];
    world.rdcp("pull").args(words).run().ok();
    assert_ne!(world.read("local/copy"), world.read("export/file"));
}

#[test]
fn status_7_no_space_here() {
    if !is_root("a full file system of one's own, which has to be mounted") {
        return;
    }
    let world = World::new();
    let daemon = world.serve();
    let small = SmallFileSystem::mount(world.path("local/small"), "2m");
    tree::random_file(&world.path("export/large"), 6 << 20, 1);
    fs::write(small.0.join("large"), "the old version").unwrap();
    let pull = || {
        world
            .rdcp("pull")
            .args([daemon.url("data/large"), "small/".into()])
            .run()
    };
    let done = pull().expect(7).says("rdcp: small/large: ");
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    assert!(done.stderr.contains("No space"), "{}", done.stderr);
    assert_eq!(world.read("local/small/large"), b"the old version");
    no_part_files(&small.0);
    // Nor does it fit in small pieces, which travel otherwise.
    for number in 0..40 {
        tree::random_file(
            &world.make("export/many").join(number.to_string()),
            100_000,
            1,
        );
    }
    let words = ["-r".into(), daemon.url("data/many"), "small/".into()];
    let done = world.rdcp("pull").args(words).run().expect(7);
    let done = done.says("rdcp: small/many/").says("No space");
    let told = done.stderr.lines().filter(|line| line.contains("No space"));
    assert!((1..40).contains(&told.count()), "{}", done.stderr);
    no_part_files(&small.0);
    let whole = tree::walk(&small.0.join("many"));
    for path in whole.iter().filter(|path| path.is_file()) {
        assert_eq!(
            path.metadata().unwrap().len(),
            100_000,
            "{path:?} is not whole"
        );
    }
}

#[test]
fn what_lies_in_other_mounts_is_neither_equal_nor_removed() {
    if !is_root("a file system of one's own, which has to be mounted") {
        return;
    }
    let world = World::new();
    let daemon = world.serve();
    world.write("export/dir/file", "same");
    world.write("local/dir/file", "same");
    let mounted = SmallFileSystem::mount(world.path("local/dir/mount"), "1m");
    fs::write(mounted.0.join("only here"), "x").unwrap();
    let words = ["dir".into(), daemon.url("data/dir")];
    let done = world.rdcp("verify").args(words).run();
    assert_ne!(done.status, 0, "what was not looked at is not the same");
    done.says("mount point");
    let theirs = SmallFileSystem::mount(world.path("export/dir/mount"), "1m");
    fs::write(theirs.0.join("kept"), "x").unwrap();
    let words = ["-r".into(), daemon.url("data/dir")];
    world.rdcp("rm").args(words).run().expect(4).says("unmount");
    assert!(theirs.0.join("kept").exists());
}

#[test]
fn status_7_no_space_there() {
    if !is_root("a full file system of one's own, which has to be mounted") {
        return;
    }
    let world = World::new();
    let small = SmallFileSystem::mount(world.path("export/small"), "2m");
    let mut export = OsString::from("data=");
    export.push(world.path("export/small"));
    export.push(":rw");
    let mut daemon = world.serve_as(&[
        "--export".into(),
        export,
        "--listen".into(),
        "127.0.0.1:0".into(),
    ]);
    tree::random_file(&world.path("local/large"), 6 << 20, 1);
    tree::random_file(&world.path("local/tiny"), 100, 1);
    fs::write(small.0.join("large"), "the old version").unwrap();
    let words = ["large".into(), daemon.url("data/")];
    world.rdcp("push").args(words).run().expect(7).says("space");
    assert_eq!(world.read("export/small/large"), b"the old version");
    no_part_files(&small.0);
    daemon.assert_alive();
    world
        .rdcp("push")
        .args(["tiny".into(), daemon.url("data/")])
        .run()
        .ok();
}

#[test]
fn status_8_failures_of_several_kinds() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/there", "new");
    world.write("export/fine", "fine");
    world.write("local/there", "old");
    let done = world
        .rdcp("pull")
        .args(["--overwrite", "error"])
        .args(["data/missing", "data/there", "data/fine"].map(|name| daemon.url(name)))
        .arg("./")
        .run()
        .expect(8);
    assert!(
        done.stderr.contains("missing") && done.stderr.contains("there"),
        "{}",
        done.stderr
    );
    assert_eq!(world.read("local/there"), b"old");
    assert_eq!(
        world.read("local/fine"),
        b"fine",
        "what can be done is done"
    );
    // One kind gives its own status, however often.
    world
        .rdcp("pull")
        .args(["data/missing", "data/missing too", "data/fine"].map(|name| daemon.url(name)))
        .arg("./")
        .run()
        .expect(5);
}

#[test]
fn fail_early_ends_at_the_first_failure_and_others_go_on_without_it() {
    for push in [true, false] {
        let world = World::new();
        let daemon = world.serve();
        let (from, to) = match push {
            true => ("local", "export"),
            false => ("export", "local"),
        };
        // It fails when it is placed; the other one can't be there before that is known.
        world.write(format!("{from}/tree/a"), "new");
        world.write(format!("{to}/tree/a"), "in the way");
        tree::random_file(&world.path(from).join("tree/z"), 3 << 20, 1);
        let run = |early: bool| {
            let mut words = common_words(&["-r", "--overwrite", "error"]);
            words.extend(early.then(|| "--fail-early".into()));
            let (command, places) = match push {
                true => ("push", ["tree".into(), daemon.url("data/")]),
                false => ("pull", [daemon.url("data/tree"), ".".into()]),
            };
            words.extend(places);
            world.rdcp(command).args(words).run().expect(12);
            world.exists(format!("{to}/tree/z"))
        };
        assert!(!run(true), "push {push}");
        assert!(run(false), "push {push}");
    }
}

fn common_words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// What happens to a source while it is read.
#[derive(Clone, Copy, Debug)]
enum Change {
    Rewritten,
    Truncated,
    Grown,
}

fn change(path: &Path, how: Change) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    match how {
        Change::Rewritten => {
            let start = len - (1 << 20);
            file.write_all_at(&tree::Random::new(77).bytes(1 << 20), start)
                .unwrap();
        }
        Change::Truncated => file.set_len(100_000).unwrap(),
        Change::Grown => file.write_all_at(b"more", len).unwrap(),
    }
}

#[test]
fn status_9_source_changed_on_its_way_to_standard_output() {
    for how in [Change::Rewritten, Change::Truncated, Change::Grown] {
        let world = World::new();
        let mut daemon = world.serve();
        let source = world.path("export").join("file");
        tree::random_file(&source, 16 << 20, 1);
        let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, Scope::Data);
        let copying = world
            .rdcp("pull")
            .arg(proxy.url("data/file"))
            .arg("-")
            .start();
        proxy.wait_held();
        change(&source, how);
        proxy.release();
        let done = copying.wait();
        assert_eq!(done.status, 9, "{how:?}: {}", done.stderr);
        assert!(done.stderr.contains("file"), "{how:?}: {}", done.stderr);
        daemon.assert_alive();
    }
}

#[test]
fn status_9_source_changed() {
    for how in [Change::Rewritten, Change::Truncated, Change::Grown] {
        for hash in ["blake3", "sha256", "none"] {
            let world = World::new();
            let mut daemon = world.serve();
            for (command, side) in [("pull", "export"), ("push", "local")] {
                let source = world.path(side).join("file");
                tree::random_file(&source, 16 << 20, 1);
                let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, Scope::Data);
                let words = match command {
                    "pull" => [proxy.url("data/file"), world.path("local/copy").into()],
                    _ => [source.clone().into(), proxy.url("data/copy")],
                };
                let copying = world
                    .rdcp(command)
                    .args(["--hash", hash])
                    .args(words)
                    .start();
                proxy.wait_held();
                change(&source, how);
                proxy.release();
                let done = copying.wait();
                assert_eq!(done.status, 9, "{command} {hash} {how:?}: {}", done.stderr);
                assert!(
                    done.stderr.contains("file"),
                    "{command} {hash} {how:?}: {}",
                    done.stderr
                );
                for side in ["local", "export"] {
                    let copied = world.path(side).join("copy");
                    assert!(
                        !copied.exists(),
                        "{command} {hash} {how:?}: a mixture was published"
                    );
                    no_part_files(&world.path(side));
                }
                fs::remove_file(source).unwrap();
            }
            daemon.assert_alive();
        }
    }
}

#[test]
fn status_10_forced_transport() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", "content");
    world.write("local/up", "content");
    if Path::new("/sys/class/infiniband")
        .read_dir()
        .is_ok_and(|mut list| list.next().is_some())
    {
        // With devices it may be available.
        return;
    }
    for words in [
        [
            "--transport".into(),
            "rdma".into(),
            daemon.url("data/file"),
            ".".into(),
        ],
        [
            "--transport=rdma".into(),
            "-q".into(),
            daemon.url("data/file"),
            ".".into(),
        ],
    ] {
        world.rdcp("pull").args(words).run().expect(10).says("rdma");
    }
    let words = [
        "--transport".into(),
        "rdma".into(),
        "up".into(),
        daemon.url("data/"),
    ];
    world.rdcp("push").args(words).run().expect(10);
    assert_eq!(tree::listing(&world.path("local")), ["up"]);
    assert_eq!(tree::listing(&world.path("export")), ["file"]);
    let words = [
        "--transport".into(),
        "tcp".into(),
        daemon.url("data/file"),
        ".".into(),
    ];
    world.rdcp("pull").args(words).run().ok();
}

#[test]
fn status_11_stalled() {
    for scope in [Scope::Data, Scope::All] {
        let world = World::new();
        let daemon = world.serve();
        tree::random_file(&world.path("export/file"), 16 << 20, 1);
        tree::random_file(&world.path("local/file"), 16 << 20, 1);
        let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, scope);
        let pull = [
            "--timeout".into(),
            "2s".into(),
            proxy.url("data/file"),
            "copy".into(),
        ];
        let pull = world.rdcp("pull").args(pull).start();
        let second = Proxy::new(daemon.address()).hold_after(1 << 20, scope);
        let push = [
            "--timeout".into(),
            "2s".into(),
            "file".into(),
            second.url("data/copy"),
        ];
        let push = world.rdcp("push").args(push).start();
        let pulled = pull.wait();
        assert_eq!(pulled.status, 11, "pull {scope:?}: {}", pulled.stderr);
        let pushed = push.wait();
        assert_eq!(pushed.status, 11, "push {scope:?}: {}", pushed.stderr);
        assert!(!world.exists("local/copy") && !world.exists("export/copy"));
    }
}

#[test]
fn status_12_exists() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", "there");
    world.write("local/file", "here, longer");
    let pull = [
        "--overwrite".into(),
        "error".into(),
        daemon.url("data/file"),
        ".".into(),
    ];
    world.rdcp("pull").args(pull).run().expect(12).says("file");
    let push = [
        "--overwrite".into(),
        "error".into(),
        "file".into(),
        daemon.url("data/"),
    ];
    world.rdcp("push").args(push).run().expect(12).says("file");
    assert_eq!(world.read("export/file"), b"there");
    assert_eq!(world.read("local/file"), b"here, longer");
}

#[test]
fn status_13_different() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", "there");
    world.write("local/file", "here!");
    world
        .rdcp("verify")
        .args(["file".into(), daemon.url("data/file")])
        .run()
        .expect(13);
    world.write("local/file", "there");
    world
        .rdcp("verify")
        .args(["file".into(), daemon.url("data/file")])
        .run()
        .ok();
}

#[test]
fn status_14_busy() {
    let world = World::new();
    tree::random_file(&world.path("export/file"), 8 << 20, 1);
    let config = format!(
        "listen = [\"127.0.0.1:0\"]\n[limits]\nsessions_max = 1\n[exports.data]\npath = {:?}\n",
        world.path("export")
    );
    let config = world.write("rdcpd.toml", config);
    let daemon = world.serve_as(&["--config".into(), config.into()]);
    let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, Scope::Data);
    let first = world
        .rdcp("pull")
        .args([proxy.url("data/file"), "first".into()])
        .start();
    proxy.wait_held();
    let second = || {
        world
            .rdcp("pull")
            .args([daemon.url("data/file"), "second".into()])
            .run()
    };
    second().expect(14);
    proxy.release();
    first.wait().ok();
    // The place is free again once the daemon has noticed.
    common::wait_for("the session's place is free", || {
        let done = second();
        assert!(
            [0, 14].contains(&done.status),
            "{}: {}",
            done.status,
            done.stderr
        );
        (done.status == 0).then_some(())
    });
}

#[test]
fn status_130_and_143_interrupted() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let world = World::new();
        let mut daemon = world.serve();
        tree::random_file(&world.path("export/file"), 16 << 20, 1);
        tree::random_file(&world.path("local/file"), 16 << 20, 1);
        for command in ["pull", "push"] {
            let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, Scope::Data);
            let words = match command {
                "pull" => [proxy.url("data/file"), "copy".into()],
                _ => ["file".into(), proxy.url("data/copy")],
            };
            let copying = world.rdcp(command).args(words).start();
            proxy.wait_held();
            copying.signal(signal);
            let done = copying.wait();
            assert_eq!(done.status, status, "{command}: {}", done.stderr);
            assert!(
                !world.exists("local/copy") && !world.exists("export/copy"),
                "{command}"
            );
            daemon.assert_alive();
            let words = match command {
                "pull" => [daemon.url("data/file"), "copy".into()],
                _ => ["file".into(), daemon.url("data/copy")],
            };
            world.rdcp(command).args(words).run().ok();
            for side in ["local", "export"] {
                let copied = world.path(side).join("copy");
                // The one that was the destination.
                if copied.exists() {
                    fs::remove_file(copied).unwrap();
                }
                no_part_files(&world.path(side));
            }
        }
    }
}
