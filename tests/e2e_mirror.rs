//! `--delete` with the real programs: what the source does not have goes, in both directions, and what
//! must not go stays, whatever the reason.

mod common;
mod hostile;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use common::tree::{self, set_mode, set_mtime};
use common::{Daemon, Finished, World, is_root, name};
use hostile::Hostile;
use hostile::make::{end, entry, file, page, push, within};
use rdcp::TransferId;
use rdcp::manifest::{EntryKind, Place};
use rdcp::wire::Message;
use rdcp::wire::message::{Deleting, Direction};

const WAYS: [Way; 2] = [Way::Push, Way::Pull];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Push,
    Pull,
}

/// A source and a destination in a world of their own.
struct Two {
    world: World,
    daemon: Daemon,
    way: Way,
}

impl Two {
    fn new(way: Way) -> Self {
        let world = World::new();
        let daemon = world.serve();
        Self { world, daemon, way }
    }

    fn from(&self, below: &str) -> PathBuf {
        let side = match self.way {
            Way::Push => "local",
            Way::Pull => "export",
        };
        self.world.path(side).join(below)
    }

    fn to(&self, below: &str) -> PathBuf {
        let side = match self.way {
            Way::Push => "export",
            Way::Pull => "local",
        };
        self.world.path(side).join(below)
    }

    fn copy(&self, options: &[&str], from: &[&str], to: &str) -> Finished {
        let here = |below: &str| OsString::from(self.world.path("local").join(below));
        let there = |below: &str| self.daemon.url(format!("data/{below}"));
        let (command, sources, destination): (_, Vec<OsString>, _) = match self.way {
            Way::Push => (
                "push",
                from.iter().map(|from| here(from)).collect(),
                there(to),
            ),
            Way::Pull => (
                "pull",
                from.iter().map(|from| there(from)).collect(),
                here(to),
            ),
        };
        let rdcp = self.world.rdcp(command).args(options);
        rdcp.args(sources).arg(destination).run()
    }
}

fn make(top: &Path, files: &[&str]) {
    for file in files {
        let path = top.join(file);
        if let Some(directory) = file.strip_suffix('/') {
            fs::create_dir_all(top.join(directory)).unwrap();
            continue;
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
}

/// Paths that JSON lines say were deleted, or would be.
fn deleted(done: &Finished, outcome: &str) -> Vec<String> {
    let lines = done.json();
    let of = lines.iter().filter(|line| line["outcome"] == outcome);
    let mut paths: Vec<_> = of
        .map(|line| line["path"].as_str().unwrap().to_owned())
        .collect();
    paths.sort();
    paths
}

#[test]
fn what_the_source_does_not_have_goes_and_nothing_else() {
    for way in WAYS {
        let two = Two::new(way);
        make(
            &two.from("tree"),
            &["a", "dir/b", "dir/deep/c", "empty/", "z"],
        );
        make(
            &two.to("dst"),
            &[
                "beside",
                "tree/a",
                "tree/aa",
                "tree/dir/0",
                "tree/dir/b",
                "tree/dir/deep/old/er/x",
                "tree/empty/not",
                "tree/gone/1",
                "tree/gone/2/3",
                "tree/zz",
                "tree/-rf",
            ],
        );
        for odd in [&b"new\nline"[..], b"\x1b[2J", b"\xff"] {
            make(&two.to("dst/tree"), &[]);
            fs::write(two.to("dst/tree").join(name(odd)), "x").unwrap();
        }
        let outside = two.world.make("outside/kept");
        symlink(&outside, two.to("dst/tree/link")).unwrap();
        symlink(&outside, two.to("dst/tree/gone/link")).unwrap();
        set_mtime(&two.from("tree/dir"), 1_500_000_000, 7);
        let planned = two
            .copy(&["-an", "--json", "--delete"], &["tree"], "dst")
            .ok();
        let before = tree::listing(&two.to(""));
        let done = two
            .copy(&["-a", "--json", "--delete"], &["tree"], "dst")
            .ok();
        assert_ne!(tree::listing(&two.to("")), before);
        let gone = [
            "tree/-rf",
            "tree/\\x1b[2J",
            "tree/\\xff",
            "tree/aa",
            "tree/dir/0",
            "tree/dir/deep/old",
            "tree/dir/deep/old/er",
            "tree/dir/deep/old/er/x",
            "tree/empty/not",
            "tree/gone",
            "tree/gone/1",
            "tree/gone/2",
            "tree/gone/2/3",
            "tree/gone/link",
            "tree/link",
            "tree/new\\nline",
            "tree/zz",
        ];
        assert_eq!(deleted(&done, "deleted"), gone, "{way:?}");
        assert_eq!(deleted(&planned, "would_delete"), gone, "{way:?}");
        for summary in [&done, &planned].map(|done| done.json().pop().unwrap()) {
            assert_eq!(summary["deleted"], gone.len(), "{way:?}");
            assert_eq!(
                (&summary["failed"], &summary["warnings"]),
                (&0.into(), &0.into())
            );
        }
        tree::assert_same(&two.from("tree"), &two.to("dst/tree"), tree::Carried::All);
        assert_eq!(tree::listing(&two.to("dst"))[0], "beside");
        assert!(outside.exists(), "a link was followed");
        // What changed in it is no change of its time.
        assert_eq!(
            two.to("dst/tree/dir").metadata().unwrap().mtime(),
            1_500_000_000
        );
        let again = two.copy(&["-a", "-v", "--delete"], &["tree"], "dst").ok();
        assert!(!again.stderr.contains("deleted "), "{}", again.stderr);
    }
}

#[test]
fn a_slash_at_the_end_means_the_destination_itself() {
    for way in WAYS {
        let two = Two::new(way);
        make(&two.from("tree"), &["a"]);
        make(&two.to("dst"), &["old", "sub/old"]);
        make(&two.to(""), &["beside"]);
        let done = two.copy(&["-r", "-v", "--delete"], &["tree/"], "dst").ok();
        assert_eq!(tree::listing(&two.to("dst")), ["a"]);
        assert!(two.to("beside").exists());
        let done = done.says("rdcp: deleted sub/old").says("3 deleted");
        assert!(done.stdout.is_empty());
        // A place that this run makes has nothing to lose.
        two.copy(&["-r", "--delete"], &["tree/"], "new").ok();
        // Of several sources each has its own tree.
        make(&two.from("other"), &["b"]);
        make(&two.from(""), &["file"]);
        make(
            &two.to("many"),
            &["tree/old", "other/old", "third/kept", "file"],
        );
        two.copy(&["-r", "--delete"], &["tree", "other", "file"], "many")
            .ok();
        assert_eq!(
            tree::listing(&two.to("many")),
            [
                "file",
                "other",
                "other/b",
                "third",
                "third/kept",
                "tree",
                "tree/a"
            ]
        );
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_moves() {
    for way in WAYS {
        let two = Two::new(way);
        make(&two.from("tree"), &["a"]);
        make(&two.from("other"), &["b"]);
        make(&two.from(""), &["file"]);
        make(&two.to("dst"), &["old"]);
        for (options, sources, part) in [
            (&["--delete"][..], &["tree"][..], "-r or -a"),
            (&["--max-delete", "3"], &["tree"], "--delete"),
            (&["--allow-empty"], &["tree"], "--delete"),
            (&["-r", "--delete"], &["tree/", "other"], "alone"),
            (&["-r", "--delete"], &["tree/", "other/"], "alone"),
            (&["-r", "--delete"], &["file"], "about directories"),
        ] {
            two.copy(options, sources, "dst").expect(2).says(part);
        }
        assert_eq!(tree::listing(&two.to("dst")), ["old"]);
        let missing = two.copy(&["-r", "--delete"], &["nothing"], "dst").expect(5);
        assert!(
            missing
                .stderr
                .contains("nothing that the source does not have"),
            "{}",
            missing.stderr
        );
        assert_eq!(tree::listing(&two.to("dst")), ["old"]);
    }
    let two = Two::new(Way::Pull);
    make(&two.from(""), &["file"]);
    let pull = two.world.rdcp("pull").args(["-r", "--delete"]);
    pull.arg(two.daemon.url("data/file"))
        .arg("-")
        .run()
        .expect(2);
}

#[test]
fn an_empty_source_empties_nothing_unless_told_so() {
    for way in WAYS {
        let two = Two::new(way);
        make(&two.from("tree"), &["left out"]);
        make(&two.from("empty"), &[]);
        fs::create_dir_all(two.from("empty")).unwrap();
        make(
            &two.to("dst"),
            &["empty/old", "empty/dir/old", "tree/old", "tree/left out"],
        );
        for (options, source) in [
            (&["-r", "--delete"][..], "empty"),
            (&["-rn", "--delete"], "empty"),
            // All of it is left out: that is as empty.
            (&["-r", "--delete", "--exclude", "left*"], "tree"),
        ] {
            let done = two.copy(options, &[source], "dst").expect(5);
            done.says("--allow-empty");
        }
        assert_eq!(tree::listing(&two.to("dst")).len(), 7);
        two.copy(&["-r", "--delete", "--allow-empty"], &["empty"], "dst")
            .ok();
        assert_eq!(tree::listing(&two.to("dst/empty")).len(), 0);
        // With nothing to delete there is nothing to refuse.
        two.copy(&["-r", "--delete"], &["empty"], "dst").ok();
        // An empty directory below the source is a directory like another.
        make(&two.from("empty"), &["sub/", "f"]);
        make(&two.to("dst"), &["empty/sub/old"]);
        two.copy(&["-r", "--delete"], &["empty"], "dst").ok();
        assert_eq!(tree::listing(&two.to("dst/empty")), ["f", "sub"]);
    }
}

#[test]
fn no_more_is_deleted_than_allowed_and_then_the_run_fails() {
    for way in WAYS {
        let two = Two::new(way);
        make(&two.from("tree"), &["a"]);
        make(&two.to("tree"), &["1", "2", "3", "dir/4", "dir/5"]);
        let options = ["-r", "--delete", "--max-delete", "2", "--json"];
        let planned = two
            .copy(&[&options[..], &["-n"]].concat(), &["tree"], "")
            .expect(12);
        assert_eq!(deleted(&planned, "would_delete"), ["tree/1", "tree/2"]);
        let done = two.copy(&options, &["tree"], "").expect(12);
        assert_eq!(deleted(&done, "deleted"), ["tree/1", "tree/2"]);
        let summary = done.json().pop().unwrap();
        assert_eq!(summary["deleted"], 2);
        assert!(
            done.text().contains("--max-delete allows"),
            "{}",
            done.text()
        );
        assert_eq!(
            tree::listing(&two.to("tree")),
            ["3", "a", "dir", "dir/4", "dir/5"]
        );
        two.copy(&["-r", "--delete", "--max-delete", "0"], &["tree"], "")
            .expect(12);
        two.copy(&["-r", "--delete", "--max-delete", "4"], &["tree"], "")
            .ok();
        assert_eq!(tree::listing(&two.to("tree")), ["a"]);
    }
}

#[test]
fn nothing_is_deleted_where_something_failed() {
    for way in WAYS {
        let two = Two::new(way);
        make(&two.from("tree"), &["a", "dir/b"]);
        make(&two.to("tree"), &["dir/old", "old"]);
        // A FIFO in the way of a file: --delete removes no such thing.
        let fifo = two.to("tree/a");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let done = two.copy(&["-r", "--delete"], &["tree"], "").expect(12);
        done.says("nothing that the source does not have was deleted");
        assert_eq!(
            tree::listing(&two.to("tree")),
            ["a", "dir", "dir/b", "dir/old", "old"]
        );
    }
}

#[test]
fn a_directory_that_cant_be_listed_protects_what_is_there() {
    if is_root("for root every directory can be listed") {
        // The daemon is another user's, who may not list it.
        let world = World::new();
        let daemon = world.serve_by(12345);
        let way = Way::Pull;
        let two = Two { world, daemon, way };
        make(&two.from("tree"), &["a", "closed/b"]);
        set_mode(&two.from("tree/closed"), 0o700);
        make(&two.to("tree"), &["closed/b", "closed/kept", "old"]);
        let done = two.copy(&["-r", "--delete"], &["tree"], "").expect(4);
        let done = done
            .says("closed")
            .says("nothing that the source does not have was deleted");
        assert!(done.stdout.is_empty());
        let left = ["a", "closed", "closed/b", "closed/kept", "old"];
        assert_eq!(tree::listing(&two.to("tree")), left);
        return;
    }
    for way in WAYS {
        let two = Two::new(way);
        make(&two.from("tree"), &["a", "closed/b"]);
        set_mode(&two.from("tree/closed"), 0o000);
        make(&two.to("tree"), &["closed/b", "closed/kept", "old"]);
        two.copy(&["-r", "--delete"], &["tree"], "")
            .expect(4)
            .says("closed");
        let left = ["a", "closed", "closed/b", "closed/kept", "old"];
        assert_eq!(tree::listing(&two.to("tree")), left);
        set_mode(&two.from("tree/closed"), 0o700);
    }
}

#[test]
fn what_is_left_out_stays_and_so_do_its_directories() {
    for way in WAYS {
        let two = Two::new(way);
        make(&two.from("tree"), &["a", "cache/x", "dir/b"]);
        make(
            &two.to("tree"),
            &[
                "cache/kept",
                "dir/x.keep",
                "dir/old",
                "gone/deep/x.keep",
                "gone/deep/y",
                "gone/z",
            ],
        );
        let options = [
            "-r",
            "--delete",
            "--exclude",
            "*.keep",
            "--exclude",
            "/cache/",
        ];
        let planned = two
            .copy(&[&options[..], &["-n", "--json"]].concat(), &["tree"], "")
            .ok();
        let expected = ["tree/dir/old", "tree/gone/deep/y", "tree/gone/z"];
        assert_eq!(deleted(&planned, "would_delete"), expected);
        two.copy(&options, &["tree"], "").ok();
        assert_eq!(
            tree::listing(&two.to("tree")),
            [
                "a",
                "cache",
                "cache/kept",
                "dir",
                "dir/b",
                "dir/x.keep",
                "gone",
                "gone/deep",
                "gone/deep/x.keep"
            ]
        );
    }
}

#[test]
fn what_stands_in_the_way_is_removed_first() {
    for way in WAYS {
        let two = Two::new(way);
        make(&two.from("tree"), &["file", "dir/in", "dir too/in"]);
        symlink("file", two.from("tree/link")).unwrap();
        make(&two.to("tree"), &["file/deep/x", "dir", "link/y"]);
        let outside = two.world.make("outside/kept");
        symlink(&outside, two.to("tree/dir too")).unwrap();
        two.copy(&["-a"], &["tree"], "").expect(12);
        let options = ["-a", "--delete", "--json"];
        two.copy(&["-a", "--delete", "--overwrite", "never"], &["tree"], "")
            .expect(12);
        two.copy(
            &[&options[..], &["--max-delete", "1"]].concat(),
            &["tree"],
            "",
        )
        .expect(12);
        make(&two.to("tree"), &["file/deep/x", "link/y"]);
        fs::remove_dir_all(two.to("tree/dir"))
            .unwrap_or_else(|_| fs::remove_file(two.to("tree/dir")).unwrap());
        make(&two.to("tree"), &["dir"]);
        let planned = two
            .copy(&[&options[..], &["-n"]].concat(), &["tree"], "")
            .ok();
        let done = two.copy(&options, &["tree"], "").ok();
        assert_eq!(deleted(&planned, "would_delete"), deleted(&done, "deleted"));
        let gone = deleted(&done, "deleted");
        assert!(gone.contains(&"tree/file/deep/x".to_owned()), "{gone:?}");
        assert!(gone.contains(&"tree/link".to_owned()), "{gone:?}");
        tree::assert_same(&two.from("tree"), &two.to("tree"), tree::Carried::All);
        assert!(outside.exists(), "a link was followed");
    }
}

#[test]
fn what_others_are_writing_stays() {
    for way in WAYS {
        let two = Two::new(way);
        make(&two.from("tree"), &["a", "dir/b"]);
        make(&two.to("tree"), &["dir/old", "gone/old"]);
        // The names and locks of a file in the making; one is nobody's any more.
        let hidden = |directory: &str, stem: u64| {
            let path = two.to("tree").join(directory).join(part_name(stem));
            fs::write(&path, "x").unwrap();
            path
        };
        let (live, gone, stale) = (hidden("dir", 1), hidden("gone", 2), hidden("gone", 3));
        let locks = [&live, &gone].map(|path| {
            let file = File::open(path).unwrap();
            rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
            file
        });
        let done = two.copy(&["-r", "--delete"], &["tree"], "").ok();
        done.says("another run is writing");
        assert!(live.exists() && gone.exists() && !stale.exists());
        assert!(!two.to("tree/gone/old").exists() && !two.to("tree/dir/old").exists());
        drop(locks);
        two.copy(&["-r", "--delete"], &["tree"], "").ok();
        assert!(!two.to("tree/gone").exists());
    }
}

/// A name that only a run gives: a stem, and what the library makes of it.
fn part_name(stem: u64) -> String {
    let key = b"rdcp: the name of a part file   ";
    let mark = blake3::keyed_hash(key, &stem.to_be_bytes()).to_hex();
    format!(".rdcp-{stem:016x}{}.part", &mark[..16])
}

#[test]
fn other_mounts_are_neither_entered_nor_removed() {
    if !is_root("a file system of one's own, which has to be mounted") {
        return;
    }
    for way in WAYS {
        let two = Two::new(way);
        make(&two.from("tree"), &["a", "both/x"]);
        make(&two.to("tree"), &["both/", "only/", "gone/in/", "gone/old"]);
        let mounts: Vec<_> = ["both", "only", "gone/in"]
            .map(|at| Mounted::at(two.to("tree").join(at)))
            .into();
        for mount in &mounts {
            fs::write(mount.0.join("kept"), "x").unwrap();
        }
        let done = two.copy(&["-r", "--delete"], &["tree"], "").ok();
        assert_eq!(
            done.stderr.matches("is a mount point").count(),
            3,
            "{}",
            done.stderr
        );
        for mount in &mounts {
            assert!(mount.0.join("kept").exists(), "{way:?}");
        }
        assert!(!two.to("tree/gone/old").exists());
    }
}

struct Mounted(PathBuf);

impl Mounted {
    fn at(path: PathBuf) -> Self {
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "tmpfs"])
            .arg(&path)
            .status()
            .unwrap();
        assert!(mount.success(), "root can mount");
        Self(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .status();
    }
}

#[test]
fn a_server_wants_the_rights_to_delete_and_to_list() {
    let world = World::new();
    let key = |name: &str| {
        let file = format!("{name}.pem");
        let told = world.bare("keygen").args(["--identity", &file]).run().ok();
        told.text().split(' ').next().unwrap().to_owned()
    };
    let keys = format!(
        "rights=\"list,create,overwrite\" {}\nrights=\"create,overwrite,delete\" {}\n\
         rights=\"list,create,delete\" {}\n",
        key("adds"),
        key("blind"),
        key("all")
    );
    world.write("keys", keys);
    let mut export = OsString::from("data=");
    export.push(world.path("export"));
    export.push(":rw");
    let daemon = world.serve_as(&[
        "--authorized-keys".into(),
        world.path("keys").into(),
        "--listen".into(),
        "127.0.0.1:0".into(),
        "--export".into(),
        export,
    ]);
    make(&world.path("local/tree"), &["a"]);
    make(&world.path("export/tree"), &["old"]);
    let push = |name: &str, options: &[&str]| {
        let identity = format!("{name}.pem");
        let push = world
            .rdcp("push")
            .args(["--identity", &identity, "-r", "--delete"]);
        let push = push.args(options).arg(world.path("local/tree"));
        push.arg(daemon.url("data/")).run()
    };
    for options in [&[][..], &["-n"]] {
        push("adds", options).expect(4).says("no right to delete");
        push("blind", options).expect(4).says("no right to list");
        push("all", options).expect(4).says("--overwrite never");
    }
    assert_eq!(tree::listing(&world.path("export/tree")), ["old"]);
    push("all", &["--overwrite", "never"]).ok();
    assert_eq!(tree::listing(&world.path("export/tree")), ["a"]);

    let mut export = OsString::from("data=");
    export.push(world.path("export"));
    export.push(":ro");
    let listen = ["--listen".into(), "127.0.0.1:0".into()];
    let world_two = World::new();
    let daemon = world_two.serve_as(&[&["--export".into(), export][..], &listen].concat());
    let push = world_two.rdcp("push").args(["-r", "--delete"]);
    let push = push.arg(world.path("local/tree")).arg(daemon.url("data/"));
    push.run().expect(4).says("read-only");
}

/// A push of `root` into `to` that asks for deletions.
fn deleting(to: &str) -> Message {
    let Message::Open(mut open) = push(to) else {
        panic!("a push is opened");
    };
    if let Direction::Push { delete, .. } = &mut open.direction {
        *delete = Some(Deleting::default());
    }
    Message::Open(open)
}

#[test]
fn a_manifest_that_no_walk_makes_deletes_nothing() {
    let root = || entry(0, Place::Root(0), EntryKind::Directory);
    let directory = |id, name: &[u8]| entry(id, within(0, name), EntryKind::Directory);
    let cases: [(&str, Vec<rdcp::manifest::Item>); 4] = [
        // Names that do not ascend.
        (
            "order",
            vec![
                root(),
                directory(1, b"b"),
                end(1),
                directory(2, b"a"),
                end(2),
                end(0),
            ],
        ),
        // The end of a directory that was never begun.
        (
            "end",
            vec![root(), end(7), directory(1, b"a"), end(1), end(0)],
        ),
        // The outer one ends first.
        ("nesting", vec![root(), directory(1, b"a"), end(0), end(1)]),
        // Something beside the source.
        (
            "beside",
            vec![
                root(),
                entry(1, Place::Root(1), file(0)),
                directory(2, b"a"),
                end(2),
                end(0),
            ],
        ),
    ];
    for (case, items) in cases {
        let world = World::new();
        let mut daemon = world.serve();
        make(
            &world.path("export/dst"),
            &["root/a/old", "root/b/old", "root/old", "old"],
        );
        let before: BTreeMap<_, _> = tree::listing(&world.path("export"))
            .into_iter()
            .map(|path| (path, ()))
            .collect();
        let mut peer = Hostile::connect(daemon.address());
        let id = TransferId::random();
        peer.say(id, deleting("dst"));
        peer.say(id, page(items));
        // It goes to its end or is ended: either way what was there is there.
        peer.expect("an end", |_, message| {
            matches!(message, Message::Finish(_) | Message::Failed(_)).then_some(())
        });
        for path in before.keys() {
            assert!(world.path("export").join(path).exists(), "{case}: {path:?}");
        }
        daemon.assert_alive();
    }
}

#[test]
fn a_directory_that_became_a_link_leads_nowhere() {
    let world = World::new();
    let mut daemon = world.serve();
    make(&world.path("export/dst"), &["root/a/old", "root/gone/old"]);
    make(&world.path("outside"), &["kept", "old"]);
    let mut peer = Hostile::connect(daemon.address());
    let id = TransferId::random();
    peer.say(id, deleting("dst"));
    let root = entry(0, Place::Root(0), EntryKind::Directory);
    let a = entry(1, within(0, b"a"), EntryKind::Directory);
    peer.say(id, hostile::make::more(vec![root, a]));
    // The page's credit comes back when what it told is in its place.
    peer.expect("a page's credit", |_, message| {
        matches!(message, Message::Credit { pages: 1, .. }).then_some(())
    });
    for directory in ["a", "gone"] {
        let path = world.path("export/dst/root").join(directory);
        fs::rename(&path, world.path("outside").join(directory)).unwrap();
        symlink(world.path("outside"), &path).unwrap();
    }
    peer.say(id, page(vec![end(1), end(0)]));
    peer.expect("an end", |_, message| {
        matches!(message, Message::Finish(_) | Message::Failed(_)).then_some(())
    });
    for kept in ["kept", "old", "a/old", "gone/old"] {
        assert!(world.path("outside").join(kept).exists(), "{kept}");
    }
    daemon.assert_alive();
}
