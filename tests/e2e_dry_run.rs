//! Dry runs with the real programs: they say what a copy would do, they are right about it, and
//! neither side is any different afterwards.

mod common;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use common::tree::{self, set_mode, set_mtime};
use common::way::copy;
use common::{Daemon, Finished, WAYS, Way, World, name};

/// All that a change of any kind would change, but for the time of the last look.
fn snapshot(root: &Path) -> BTreeMap<OsString, Vec<i64>> {
    let seen = |path: &std::path::PathBuf| {
        let of = path.symlink_metadata().unwrap();
        let numbers = [
            of.ino(),
            of.nlink(),
            of.len(),
            u64::from(of.mode()),
            of.uid().into(),
        ];
        let mut facts: Vec<i64> = numbers
            .map(|number| i64::try_from(number).unwrap())
            .to_vec();
        facts.extend([of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec()]);
        (path.clone().into_os_string(), facts)
    };
    tree::walk(root).iter().map(seen).collect()
}

/// Runs it dry between two looks at both sides.
#[track_caller]
fn dry(
    world: &World,
    daemon: &Daemon,
    way: Way,
    options: &[&str],
    from: &str,
    to: &str,
) -> Finished {
    let sides = || {
        [
            snapshot(&world.path("local")),
            snapshot(&world.path("export")),
        ]
    };
    let before = sides();
    let options = [&["-n"], options].concat();
    let done = copy(world, daemon, way, &options, from, to);
    assert_eq!(
        sides(),
        before,
        "{way:?} {options:?}: a dry run changed something"
    );
    done
}

/// What JSON lines say of each path: outcome and reason.
fn told(done: &Finished) -> BTreeMap<String, (String, String)> {
    let lines = done.json();
    let entries = lines.iter().filter(|line| line["outcome"].is_string());
    entries
        .map(|line| {
            let text = |field: &str| line[field].as_str().unwrap_or("").to_owned();
            (text("path"), (text("outcome"), text("reason")))
        })
        .collect()
}

/// A source and a destination that differ in every way that counts.
fn make_differences(from: &Path, to: &Path) {
    let write = |top: &Path, name: &str, content: &str, seconds: i64| {
        let path = top.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        set_mtime(&path, seconds, 5);
    };
    for (name, ours, theirs, our_time, their_time) in [
        ("same", "same", Some("same"), 1_500_000_000, 1_500_000_000),
        (
            "longer",
            "longer",
            Some("long"),
            1_500_000_000,
            1_500_000_000,
        ),
        (
            "newer",
            "newer",
            Some("older"),
            1_500_000_001,
            1_500_000_000,
        ),
        (
            "older",
            "older",
            Some("newer"),
            1_500_000_000,
            1_500_000_001,
        ),
        ("mode", "mode", Some("mode"), 1_500_000_000, 1_500_000_000),
        ("new", "new", None, 1_500_000_000, 0),
        ("new dir/below/it", "x", None, 1_500_000_000, 0),
        ("dir/in", "in", Some("in"), 1_500_000_000, 1_500_000_000),
    ] {
        write(from, name, ours, our_time);
        if let Some(theirs) = theirs {
            write(to, name, theirs, their_time);
        }
    }
    set_mode(&from.join("mode"), 0o640);
    set_mode(&to.join("mode"), 0o600);
    write(from, "was a link", "a file", 1_500_000_000);
    symlink("/etc/passwd", to.join("was a link")).unwrap();
    symlink("same", from.join("link")).unwrap();
    symlink("same", to.join("link")).unwrap();
    symlink("here", from.join("led elsewhere")).unwrap();
    symlink("there", to.join("led elsewhere")).unwrap();
    set_mtime(&from.join("link"), 1_500_000_000, 0);
    set_mtime(&to.join("link"), 1_500_000_000, 0);
    fs::hard_link(from.join("same"), from.join("same too")).unwrap();
    fs::hard_link(to.join("same"), to.join("same too")).unwrap();
    fs::hard_link(from.join("same"), from.join("unlinked")).unwrap();
    write(to, "unlinked", "same", 1_500_000_000);
    for top in [from, to] {
        set_mtime(&top.join("dir"), 1_500_000_000, 0);
    }
    set_mtime(from, 1_500_000_000, 0);
    set_mtime(to, 1_500_000_000, 1);
    write(to, "extraneous", "stays", 1);
    set_mtime(to, 1_400_000_000, 0);
}

#[test]
fn each_entry_is_told_with_its_reason_and_the_copy_then_does_that() {
    for way in WAYS {
        let world = World::new();
        let daemon = world.serve();
        let (from, to) = (
            world.path(way.from()).join("tree"),
            world.path(way.to()).join("tree"),
        );
        make_differences(&from, &to);
        let done = dry(&world, &daemon, way, &["-a", "--json"], "tree/", "tree").ok();
        let told = told(&done);
        let expected = [
            ("", "would_update", "metadata_differs"),
            ("dir", "would_keep", "there"),
            ("dir/in", "would_keep", "same_size_and_time"),
            ("led elsewhere", "would_copy", "target_differs"),
            ("link", "would_keep", "there"),
            ("longer", "would_copy", "size_differs"),
            ("mode", "would_update", "metadata_differs"),
            ("new", "would_copy", "new"),
            ("new dir", "would_copy", "new"),
            ("new dir/below", "would_copy", "new"),
            ("new dir/below/it", "would_copy", "new"),
            ("newer", "would_copy", "newer"),
            ("older", "would_copy", "older"),
            ("same", "would_keep", "same_size_and_time"),
            ("same too", "would_keep", "there"),
            ("unlinked", "would_copy", "not_linked"),
            ("was a link", "would_copy", "type_differs"),
        ];
        let expected: BTreeMap<_, _> = expected
            .map(|(path, outcome, reason)| {
                (path.to_owned(), (outcome.to_owned(), reason.to_owned()))
            })
            .into();
        assert_eq!(told, expected, "{way:?}");
        let summary = done.json().pop().unwrap();
        assert_eq!(summary["dry_run"], true);
        assert_eq!(summary["verified"], serde_json::Value::Null);
        let count = |outcome: &str| told.values().filter(|(told, _)| told == outcome).count();
        assert_eq!(summary["published"], count("would_copy"));
        assert_eq!(summary["updated"], count("would_update"));
        assert_eq!(summary["unchanged"], count("would_keep"));
        // Six files: longer, new, it, newer, older, was a link.
        assert_eq!(
            (&summary["files"], &summary["bytes"]),
            (&6.into(), &26.into())
        );
        assert_eq!(summary["bytes_moved"], 0);

        // And so it comes.
        let done = copy(&world, &daemon, way, &["-a", "--json"], "tree/", "tree").ok();
        let happened: BTreeMap<_, _> = self::told(&done)
            .into_iter()
            .map(|(path, (outcome, _))| {
                let planned = match outcome.as_str() {
                    "published" => "would_copy",
                    "updated" => "would_update",
                    "unchanged" => "would_keep",
                    other => panic!("{path}: {other}"),
                };
                (path, planned.to_owned())
            })
            .collect();
        let planned = told.into_iter().map(|(path, (outcome, _))| (path, outcome));
        assert_eq!(happened, planned.collect());
        assert!(to.join("extraneous").exists());
    }
}

#[test]
fn people_get_a_line_for_each_entry_and_a_sum() {
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        let from = world.make(format!("{}/tree", way.from()));
        for odd in [&b"plain"[..], b"esc\x1b[2J\nline"] {
            tree::random_file(&from.join(name(odd)), 1000, 1);
        }
        let done = dry(&world, &daemon, way, &["-r"], "tree", "").ok();
        assert_eq!(
            done.text(),
            "copy    tree/  (new)\ncopy    tree/esc\\x1b[2J\\nline  (new)\ncopy    tree/plain  (new)\n"
        );
        done.says("dry run: would copy 3 entries, 2.0 KiB");
        let quiet = dry(&world, &daemon, way, &["-r", "-q"], "tree", "").ok();
        assert_eq!((quiet.text(), quiet.stderr.as_str()), (String::new(), ""));
        copy(&world, &daemon, way, &["-r"], "tree", "").ok();
        let done = dry(
            &world,
            &daemon,
            way,
            &["-r", "--overwrite", "never"],
            "tree",
            "",
        )
        .ok();
        assert!(
            done.text()
                .contains("keep    tree/plain  (kept: --overwrite never)\n"),
            "{}",
            done.text()
        );
        done.says("would copy 0 entries");
        fs::remove_dir_all(from).unwrap();
        fs::remove_dir_all(world.path(way.to()).join("tree")).unwrap();
    }
}

#[test]
fn it_fails_as_the_copy_would() {
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        let (from, to) = (world.path(way.from()), world.path(way.to()));
        for path in [
            from.join("tree/file"),
            from.join("tree/dir/x"),
            to.join("there/tree/file"),
        ] {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        fs::write(to.join("there/tree/dir"), "in the way").unwrap();
        for (options, source, destination, status) in [
            (
                &["-r", "--overwrite", "error"][..],
                "tree/file",
                "there/tree/file",
                12,
            ),
            (&["-r"], "tree/dir", "there/tree", 12),
            (&["-r"], "tree", "nowhere/at/all", 5),
            (&["-r"], "missing", "there", 5),
            (&[], "tree", "there", 2),
        ] {
            let dry = dry(&world, &daemon, way, options, source, destination).expect(status);
            let wet = copy(&world, &daemon, way, options, source, destination).expect(status);
            assert_eq!(
                dry.stderr.lines().next(),
                wet.stderr.lines().next(),
                "{way:?}"
            );
        }
        // Missing parents are made by a run, and by a dry one not.
        let done = dry(
            &world,
            &daemon,
            way,
            &["-r", "--mkpath"],
            "tree/file",
            "new/deep/file",
        )
        .ok();
        assert!(
            done.text().contains("copy    file  (new)"),
            "{}",
            done.text()
        );
        fs::remove_dir_all(from.join("tree")).unwrap();
        fs::remove_dir_all(to.join("there")).unwrap();
    }
}

#[test]
fn a_server_that_takes_no_files_refuses_it() {
    let world = World::new();
    let mut export = OsString::from("data=");
    export.push(world.path("export"));
    export.push(":ro");
    let listen = ["--listen".into(), "127.0.0.1:0".into()];
    let daemon = world.serve_as(&[&["--export".into(), export][..], &listen].concat());
    world.write("local/file", "x");
    world.write("export/file", "y");
    dry(&world, &daemon, Way::Push, &[], "file", "new")
        .expect(4)
        .says("read-only");
    let done = dry(&world, &daemon, Way::Pull, &[], "file", "file").ok();
    assert!(
        done.text().starts_with("copy    file  ("),
        "{}",
        done.text()
    );
}

#[test]
fn nothing_is_written_to_standard_output_for_it() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", "y");
    let pull = world.rdcp("pull").arg("-n").arg(daemon.url("data/file"));
    pull.arg("-").run().expect(2);
}
