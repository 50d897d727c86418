//! What a copy says of itself is true: how each entry ended, what was left out, and that nothing
//! is published after a cancel. And receivers that are not root keep access to what they made.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use common::{Finished, World, is_root, wait_for};
use rustix::process::Signal;

/// "nobody" on most systems; any user that is not root will do.
const OTHER_USER: u32 = 65534;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Outcomes by path, and the summary, of a copy with `--json`.
fn outcomes(done: &Finished) -> (BTreeMap<String, String>, serde_json::Value) {
    let lines = done.json();
    let settled = ["file", "directory", "symlink"];
    let entries = lines
        .iter()
        .filter(|line| settled.iter().any(|kind| line["type"] == *kind));
    let told = entries.map(|line| {
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        (text("path"), text("outcome"))
    });
    (told.collect(), lines.last().unwrap().clone())
}

/// A tree whose times are old enough to be trusted.
fn settled_tree(world: &World, below: &str) {
    world.write(format!("{below}/d/file"), "content");
    world.write(format!("{below}/d/other"), vec![7; 300_000]);
    let at = |name: &str| world.path(below).join(name);
    fs::hard_link(at("d/file"), at("d/link")).unwrap();
    symlink("file", at("d/symlink")).unwrap();
    let touched = ["d/file", "d/other", "d/symlink", "d", "."];
    let touch = world
        .tool("touch")
        .args(["-h", "-d", "2020-02-02 02:02:02"]);
    touch.args(touched.map(at)).run().ok();
}

#[test]
fn reruns_tell_what_is_unchanged_and_what_was_updated() {
    let world = World::new();
    settled_tree(&world, "local/src");
    let daemon = world.serve();
    let push = || {
        let push = world.rdcp("push").args(["-a", "--json"]);
        push.arg(world.path("local/src"))
            .arg(daemon.url("data/"))
            .run()
            .ok()
    };
    let (first, summary) = outcomes(&push());
    assert_eq!(first.len(), 6, "{first:?}");
    assert!(
        first.values().all(|outcome| outcome == "published"),
        "{first:?}"
    );
    assert_eq!(summary["published"], 6);

    let (again, summary) = outcomes(&push());
    assert!(
        again.values().all(|outcome| outcome == "unchanged"),
        "{again:?}"
    );
    assert_eq!(
        (&summary["published"], &summary["updated"]),
        (&0.into(), &0.into())
    );
    assert_eq!(summary["unchanged"], 6);

    // Metadata only: a mode, and the time of a link.
    set_mode(&world.path("local/src/d/other"), 0o600);
    let touch = world
        .tool("touch")
        .args(["-h", "-d", "2021-01-01 01:01:01"]);
    touch.arg(world.path("local/src/d/symlink")).run().ok();
    set_mode(&world.path("local/src/d"), 0o750);
    let (third, summary) = outcomes(&push());
    for (path, outcome) in &third {
        let expected = match path.as_str() {
            "src/d" | "src/d/other" | "src/d/symlink" => "updated",
            _ => "unchanged",
        };
        assert_eq!(outcome, expected, "{path}");
    }
    assert_eq!(summary["updated"], 3);
    assert_eq!(mode(&world.path("export/src/d/other")), 0o600);
    assert_eq!(mode(&world.path("export/src/d")), 0o750);

    // One new file changes its directory's time; nothing else.
    world.write("local/src/d/new", "x");
    let (fourth, _) = outcomes(&push());
    assert_eq!(fourth["src/d/new"], "published");
    assert_eq!(fourth["src/d"], "updated");
    assert_eq!(fourth["src/d/link"], "unchanged");
}

#[test]
fn a_push_tells_what_the_server_left_out() {
    let world = World::new();
    world.make("local/src");
    for number in 0..7 {
        let path = world.write(format!("local/src/tool{number}"), "#!/bin/sh");
        set_mode(&path, 0o4755);
    }
    let daemon = world.serve();
    let push = |json: &[&str]| {
        let push = world.rdcp("push").arg("-a").args(json);
        push.arg(world.path("local/src"))
            .arg(daemon.url("data/"))
            .run()
            .ok()
    };
    let said = push(&[]);
    let warnings = said
        .stderr
        .lines()
        .filter(|line| line.contains("set-user-id"));
    assert_eq!(warnings.count(), 1, "{}", said.stderr);
    for part in ["'src/tool0'", "'src/tool3'", "and 3 more"] {
        assert!(said.stderr.contains(part), "{part} in {}", said.stderr);
    }
    assert_eq!(mode(&world.path("export/src/tool0")), 0o755);
    // The same on a rerun, and for programs.
    let lines = push(&["--json"]).json();
    let warnings = lines.iter().filter(|line| line["type"] == "warning");
    assert_eq!(warnings.count(), 1, "{lines:?}");
    assert_eq!(lines.last().unwrap()["warnings"], 1);
}

#[test]
fn owners_that_a_server_may_not_set_are_told_to_the_client() {
    if !is_root("owners that a server may not set are told to the client") {
        return;
    }
    let world = World::new();
    world.write("local/src/file", "x");
    world.write("local/src/big", vec![1; 1 << 20]);
    let daemon = world.serve_by(OTHER_USER);
    let push = world.rdcp("push").arg("-a").arg(world.path("local/src"));
    let said = push.arg(daemon.url("data/")).run().ok();
    let warnings = said
        .stderr
        .lines()
        .filter(|line| line.contains("owners were not set"));
    assert_eq!(warnings.count(), 1, "{}", said.stderr);
    assert!(said.stderr.contains("'src/file'"), "{}", said.stderr);
}

#[test]
fn a_server_that_is_not_root_can_come_back_to_what_it_closed() {
    if !is_root("a server that is not root can come back to what it closed") {
        return;
    }
    let world = World::new();
    world.write("local/src/closed/sub/file", "x");
    let linked = world.write("local/src/closed/linked", "y");
    world.write("local/src/read-only/file", "z");
    let secret = world.write("local/src/secret", "s");
    fs::hard_link(&linked, world.path("local/src/z-link")).unwrap();
    set_mode(&secret, 0o000);
    set_mode(&world.path("local/src/read-only"), 0o555);
    set_mode(&world.path("local/src/closed"), 0o000);
    let daemon = world.serve_by(OTHER_USER);
    let push = |source: &str, to: &str| {
        let push = world.rdcp("push").arg("-a").arg(world.path(source));
        push.arg(daemon.url(to)).run().ok();
    };
    for round in 0..3 {
        push("local/src", "data/");
        // The closed directory itself is the destination.
        push("local/src/closed/", "data/other");
        for (path, expected) in [
            ("export/src/closed", 0o000),
            ("export/src/read-only", 0o555),
            ("export/src/secret", 0o000),
            ("export/other", 0o000),
        ] {
            assert_eq!(mode(&world.path(path)), expected, "{path} in round {round}");
        }
        let inode = |path: &str| fs::metadata(world.path(path)).unwrap().ino();
        assert_eq!(
            inode("export/src/z-link"),
            inode("export/src/closed/linked")
        );
        // The next round has something to do in each.
        for directory in ["closed", "closed/sub", "read-only"] {
            world.write(format!("local/src/{directory}/new{round}"), "n");
        }
        set_mode(&world.path("local/src/closed"), 0o000);
    }
    assert!(world.exists("export/other/new1"));
    assert!(world.exists("export/src/read-only/new1"));
}

#[test]
fn nothing_is_published_once_a_push_was_cancelled() {
    let world = World::new();
    for number in 0..20_000 {
        world.write(format!("local/src/f{number}"), "content");
    }
    let daemon = world.serve();
    let push = world.rdcp("push").arg("-r").arg(world.path("local/src/"));
    let push = push.arg(daemon.url("data/dst")).start();
    let target = world.path("export/dst");
    let published = || {
        let entries = fs::read_dir(&target).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter(|name| !name.starts_with('.')).count()
    };
    wait_for("some files are there", || (published() > 0).then_some(()));
    push.signal(Signal::INT);
    push.wait().expect(130);
    wait_for("the server has seen the end", || {
        daemon.log().contains("session ended").then_some(())
    });
    let then = published();
    assert!(then < 20_000, "it was too fast to be cancelled");
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(published(), then);
}

#[test]
fn links_in_a_local_destination_are_what_the_user_means() {
    let world = World::new();
    world.write("export/file", "new");
    world.write("export/tree/inner", "i");
    let daemon = world.serve();
    let elsewhere = world.make("elsewhere");
    let target = world.write("elsewhere/target", "old");
    let pull = |source: &str, to: &str| {
        let pull = world.rdcp("pull").arg("-r").arg(daemon.url(source));
        pull.arg(world.path("local").join(to)).run().ok();
    };
    // A link to a directory stands for it, wherever it leads, with and without a slash.
    symlink(&elsewhere, world.path("local/absolute")).unwrap();
    symlink("../elsewhere", world.path("local/relative")).unwrap();
    pull("data/file", "absolute");
    pull("data/tree", "relative/");
    pull("data/file", "absolute/deeper");
    assert_eq!(world.read("elsewhere/file"), b"new");
    assert_eq!(world.read("elsewhere/tree/inner"), b"i");
    assert_eq!(world.read("elsewhere/deeper"), b"new");
    assert!(
        fs::symlink_metadata(world.path("local/absolute"))
            .unwrap()
            .is_symlink()
    );

    // Any other is replaced by the file; what it led to stays.
    symlink(&target, world.path("local/to-file")).unwrap();
    symlink("../elsewhere/target", world.path("local/to-file-relative")).unwrap();
    symlink("/nowhere/at/all", world.path("local/dangling")).unwrap();
    for name in ["to-file", "to-file-relative", "dangling"] {
        pull("data/file", name);
        let path = world.path("local").join(name);
        assert!(fs::symlink_metadata(&path).unwrap().is_file(), "{name}");
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }
    assert_eq!(fs::read(&target).unwrap(), b"old");
}

#[test]
fn a_huge_sparse_file_arrives_as_one() {
    let world = World::new();
    let path = world.write("local/sparse", "begin");
    let file = fs::File::options().write(true).open(&path).unwrap();
    let len = 1_u64 << 43;
    // Not every file system has files as long as that.
    let len = if file.set_len(len).is_ok() {
        len
    } else {
        1 << 38
    };
    file.set_len(len).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"middle", len / 2 + 12_345).unwrap();
    let daemon = world.serve();
    let push = world.rdcp("push").arg(&path);
    push.arg(daemon.url("data/copy")).run().ok();
    let copy = fs::File::open(world.path("export/copy")).unwrap();
    assert_eq!(copy.metadata().unwrap().len(), len);
    let mut middle = [0; 6];
    std::os::unix::fs::FileExt::read_exact_at(&copy, &mut middle, len / 2 + 12_345).unwrap();
    assert_eq!(&middle, b"middle");
    assert!(copy.metadata().unwrap().blocks() * 512 < 64 << 20);
}
