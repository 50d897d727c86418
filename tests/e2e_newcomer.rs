//! What somebody meets who uses rdcp for the first time: things in a tree that can't be copied,
//! words that other programs take, one cause told once, and answers for programs that are true.

mod common;

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use common::World;
use common::command::json_lines;
use common::tree;
use rustix::fs::{CWD, FileType, Mode, OFlags, mkdirat, mknodat, openat};
use serde_json::Value;

fn of_type<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == kind).collect()
}

fn summary(lines: &[Value]) -> &Value {
    let last = lines.last().expect("there are lines");
    assert_eq!(last["type"], "summary", "{lines:#?}");
    last
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO can be made");
}

/// Makes directories of 200 bytes in each other until a file in the last has a path of more than
/// 4095 bytes below `top`; a file lies in each. Tells how many files there are.
fn make_long(top: &Path) -> usize {
    const NAME: &str = "d";
    let name = NAME.repeat(200);
    let mut at: OwnedFd = File::open(top).expect("it is there").into();
    let mut files = 0;
    for depth in 0.. {
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = openat(&at, "file", flags, Mode::RUSR | Mode::WUSR).expect("a file can be made");
        rustix::io::write(&file, format!("content {depth}").as_bytes()).expect("it can be written");
        files += 1;
        if depth * 201 > 4095 {
            return files;
        }
        mkdirat(&at, &*name, Mode::RWXU).expect("a directory can be made");
        let flags = OFlags::DIRECTORY | OFlags::RDONLY;
        at = openat(&at, &*name, flags, Mode::empty()).expect("it was made");
    }
    files
}

// ---- what is in trees ----------------------------------------------------------------------------

#[test]
fn a_path_too_long_for_a_line_is_one_failure_and_the_rest_is_told() {
    let world = World::new();
    let daemon = world.serve();
    for side in ["export", "local"] {
        let top = world.make(Path::new(side).join("tree"));
        world.write(Path::new(side).join("tree/z"), "after it");
        make_long(&top);
    }
    let url = daemon.url("data/tree");
    let ls = world.rdcp("ls").args(["-r".into(), url.clone()]).run();
    let ls = ls.expect(7).says("its path is longer than 4095 bytes");
    assert_eq!(ls.stderr.lines().count(), 1, "{}", ls.stderr);
    assert!(ls.stderr.len() < 2000, "it is cut: {}", ls.stderr);
    assert!(ls.text().lines().any(|line| line == "z"), "{}", ls.text());
    let sum = world.rdcp("sum").args(["-r".into(), url.clone()]).run();
    let sum = sum.expect(7).says("its path is longer than 4095 bytes");
    assert_eq!(sum.stderr.lines().count(), 1, "{}", sum.stderr);
    assert!(sum.text().lines().any(|line| line.ends_with("  tree/z")));
    let words = ["--json".into(), "-r".into(), url.clone()];
    let lines = world.rdcp("sum").args(words).run().expect(7).json();
    let errors = of_type(&lines, "error");
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert_eq!(
        (&errors[0]["side"], &errors[0]["kind"]),
        (&"remote".into(), &"storage".into())
    );
    assert_eq!(summary(&lines)["exit_status"], 7);
    // Both sides say so, and nothing is called missing or different.
    let verify = world.rdcp("verify").args(["tree".into(), url]).run();
    let verify = verify.expect(7);
    assert_eq!(verify.text(), "");
    assert_eq!(verify.stderr.lines().count(), 2, "{}", verify.stderr);
}

#[test]
fn a_tree_with_paths_of_any_length_is_copied_whole_both_ways() {
    let world = World::new();
    let daemon = world.serve();
    let mut files = 0;
    for side in ["export", "local"] {
        files = make_long(&world.make(Path::new(side).join("tree")));
    }
    world.make("local/to");
    world.make("export/to");
    for words in [
        ["pull".into(), daemon.url("data/tree"), "to".into()],
        ["push".into(), "tree".into(), daemon.url("data/to")],
    ] {
        let run = world.rdcp(words[0].to_str().unwrap());
        let lines = run.args(["-r", "--json"]).args(&words[1..]).run().ok();
        assert_eq!(summary(&lines.json())["files"], files, "{words:?}");
    }
}

#[test]
fn special_files_in_a_tree_are_named_and_skipped_and_are_no_failure() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/tree/file", "content");
    fifo(&world.path("export/tree/pipe"));
    for option in ["-r", "-a"] {
        let words = [option.into(), daemon.url("data/tree"), "to/".into()];
        let done = world.rdcp("pull").arg("--mkpath").args(words).run().ok();
        done.says("tree/pipe: is a FIFO; only regular files, directories and symbolic links");
        assert!(world.exists("local/to/tree/file") && !world.exists("local/to/tree/pipe"));
    }
    let words = ["--json".into(), "-r".into(), daemon.url("data/tree")];
    let lines = world.rdcp("pull").args(words).arg("as/").arg("--mkpath");
    let lines = lines.run().ok().json();
    let warnings = of_type(&lines, "warning");
    assert_eq!(warnings.len(), 1, "{lines:#?}");
    assert_eq!(warnings[0]["kind"], "left_out");
}

#[test]
fn a_special_file_that_is_named_itself_says_what_it_is() {
    let world = World::new();
    let daemon = world.serve();
    for side in ["export", "local"] {
        fifo(&world.path(side).join("pipe"));
        world.write(Path::new(side).join("file"), "content");
    }
    let text = "it is a FIFO; only regular files, directories and symbolic links are copied";
    world.make("local/to");
    for words in [
        vec!["pull".into(), daemon.url("data/pipe"), "to".into()],
        vec!["push".into(), "pipe".into(), daemon.url("data/to")],
        vec!["sum".into(), daemon.url("data/pipe")],
        vec!["sum".into(), "pipe".into()],
    ] {
        let run = world.rdcp(words[0].to_str().unwrap()).args(&words[1..]);
        run.run().expect(5).says(text).says("pipe: ");
    }
    // Others go on.
    let words = ["pipe".into(), "file".into(), daemon.url("data/both/")];
    let run = world.rdcp("push").arg("--mkpath").args(words).run();
    run.expect(5).says(text);
    assert_eq!(world.read("export/both/file"), b"content");
}

#[test]
fn what_has_no_path_on_this_host_is_not_told_in_words_of_exports() {
    let world = World::new();
    let daemon = world.serve();
    let (reader, _writer) = std::io::pipe().unwrap();
    let words = ["/dev/stdin".into(), daemon.url("data/x")];
    let push = world.rdcp("push").args(words).stdin(reader).run();
    let push = push.expect(5).says("rdcp: /dev/stdin: ").says("a FIFO");
    assert!(!push.stderr.contains("export"), "{}", push.stderr);
    // A link that leads nowhere, and by an absolute path.
    symlink("/nothing/there", world.path("local/dangling")).unwrap();
    let words = ["dangling".into(), daemon.url("data/x")];
    let push = world.rdcp("push").args(words).run();
    let push = push.expect(5).says("rdcp: dangling: ");
    assert!(!push.stderr.contains("export"), "{}", push.stderr);
    let sum = world.rdcp("sum").arg("/proc/self/status").run();
    let sum = sum.expect(4).says("whose files have no lasting content");
    assert!(!sum.stderr.contains("cop"), "{}", sum.stderr);
}

// ---- words ---------------------------------------------------------------------------------------

#[test]
fn a_port_before_a_path_is_answered_with_the_url_for_it() {
    let world = World::new();
    let words = ["pull", "gpu7:20471/data/run 7", "."];
    let done = world.rdcp("pull").args(&words[1..]).run().expect(2);
    done.says("write rdcp://gpu7:20471/data/run%207 if 20471 is the port");
}

#[test]
fn options_of_rsync_are_answered_with_what_rdcp_does() {
    let world = World::new();
    for (option, part) in [
        ("-az", "hint: contents are not compressed"),
        ("--filter=x", "hint: write --exclude"),
        ("-aP", "hint: the same command again goes on"),
        ("--delete-excluded", "hint: what is left out stays"),
    ] {
        let words = ["push", option, "a", "h:/e"];
        let done = world.bare(words[0]).args(&words[1..]).run().expect(2);
        done.says(part).says("unexpected argument");
    }
    let done = world.bare("push").args(["--json", "-z", "a", "h:/e"]).run();
    let lines = json_lines(&done.expect(2).text());
    let hint = lines[0]["hint"].as_str().expect("it has one");
    assert!(hint.contains("compressed"), "{hint}");
}

// ---- one cause, told once ------------------------------------------------------------------------

#[test]
fn a_destination_that_is_not_there_is_one_error_with_its_remedy() {
    let world = World::new();
    let daemon = world.serve();
    for side in ["export", "local"] {
        for number in 0..30 {
            let name = format!("tree/{}/{number}", number % 3);
            world.write(Path::new(side).join(name), "content");
        }
    }
    let there = daemon.url("data/new").into_string().unwrap();
    for (words, place) in [
        (
            ["pull".into(), daemon.url("data/tree"), "new".into()],
            "new".to_owned(),
        ),
        (
            ["push".into(), "tree".into(), daemon.url("data/new")],
            there.clone(),
        ),
        (
            ["pull".into(), daemon.url("data/tree/0/0"), "new/a/b".into()],
            "new/a/b".to_owned(),
        ),
        (
            ["push".into(), "tree/0/0".into(), daemon.url("data/new/b")],
            format!("{there}/b"),
        ),
    ] {
        let run = world.rdcp(words[0].to_str().unwrap());
        let done = run.arg("-r").args(&words[1..]).run().expect(5);
        let done = done.says(&format!("rdcp: {place}: can't write to it: there is no "));
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
        done.says("let --mkpath make it");
        let run = world.rdcp(words[0].to_str().unwrap());
        let lines = run.args(["-r", "--json"]).args(&words[1..]).run().expect(5);
        let lines = lines.json();
        let errors = of_type(&lines, "error");
        assert_eq!(errors.len(), 1, "{lines:#?}");
        assert_eq!(errors[0]["path"], place.as_str());
        let failed = lines.iter().filter(|line| line["outcome"] == "failed");
        assert_eq!(failed.count(), 1, "{lines:#?}");
        assert_eq!(summary(&lines)["failed"], 1);
    }
    assert!(!world.exists("local/new") && !world.exists("export/new"));
}

#[test]
fn what_lies_in_a_directory_that_failed_is_counted_and_not_told_again() {
    let world = World::new();
    let daemon = world.serve();
    for number in 0..30 {
        world.write(format!("export/tree/dir/{number}"), "content");
        world.write(format!("local/tree/dir/{number}"), "content");
    }
    world.write("export/tree/z", "content");
    world.write("local/tree/z", "content");
    world.write("local/to/tree/dir", "in the way");
    world.write("export/to/tree/dir", "in the way");
    for words in [
        ["pull".into(), daemon.url("data/tree"), "to".into()],
        ["push".into(), "tree".into(), daemon.url("data/to")],
    ] {
        let run = world.rdcp(words[0].to_str().unwrap());
        let done = run.arg("-r").args(&words[1..]).run().expect(12);
        let lines: Vec<_> = done.stderr.lines().collect();
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[0].contains("to/tree/dir: "), "{lines:#?}");
        assert_eq!(lines[1], "rdcp: and 30 more");
        let run = world.rdcp(words[0].to_str().unwrap());
        let told = run
            .args(["-r", "--json"])
            .args(&words[1..])
            .run()
            .expect(12);
        assert_eq!(summary(&told.json())["failed"], 31);
    }
    assert_eq!(world.read("local/to/tree/z"), b"content");
    assert_eq!(world.read("export/to/tree/z"), b"content");
}

// ---- answers for programs ------------------------------------------------------------------------

#[test]
fn json_lines_that_nobody_reads_do_not_end_the_copy_and_are_a_failure() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", "content");
    let told = "standard output was closed before all JSON lines were read";
    let run = |words: &[&str], url| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let run = world.rdcp(words[0]).arg("--json").arg(url);
        run.args(&words[1..]).stdout(writer).run()
    };
    run(&["pull", "."], daemon.url("data/file"))
        .expect(7)
        .says(told);
    assert_eq!(world.read("local/file"), b"content");
    run(&["ls"], daemon.url("data")).expect(7).says(told);
    // What failed otherwise keeps its status.
    run(&["stat"], daemon.url("data/none")).expect(5).says(told);
    // No standard output at all.
    let rdcp = common::program("rdcp");
    let script = "exec \"$0\" \"$@\" >&-";
    let known = world.path("known").into_os_string();
    let shell = world.tool("sh").args(["-c", script]).arg(rdcp);
    let options = ["ls", "--json", "--accept-new", "--known-hosts"];
    let shell = shell.args(options).arg(known);
    let closed = shell.arg(daemon.url("data")).run();
    closed.expect(7).says("standard output: it is closed");
}

#[test]
fn removals_and_new_directories_are_told_to_programs() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/old", "content");
    let url = |path: &str| daemon.url(path).into_string().unwrap();
    let run = |command: &str, one: &str, other: &str| {
        let words = ["--json".to_owned(), url(one), url(other)];
        world.rdcp(command).args(words).run()
    };
    let lines = run("mkdir", "data/new", "data/none/new").expect(5).json();
    let made = of_type(&lines, "made");
    assert_eq!(made.len(), 1, "{lines:#?}");
    assert_eq!(made[0]["path"], url("data/new").as_str());
    assert_eq!(of_type(&lines, "error").len(), 1);
    assert_eq!(summary(&lines)["exit_status"], 5);
    let lines = run("rm", "data/old", "data/none").expect(5).json();
    let removed = of_type(&lines, "removed");
    assert_eq!(removed.len(), 1, "{lines:#?}");
    assert_eq!(removed[0]["path"], url("data/old").as_str());
    assert_eq!(summary(&lines)["kind"], "not_found");
    assert!(world.exists("export/new") && !world.exists("export/old"));
}

#[test]
fn verified_is_said_of_what_was_copied_and_of_nothing_else() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", "content");
    tree::set_mtime(&world.path("export/file"), 1_600_000_000, 0);
    let pull = |options: &[&str], to: &str| {
        let words = ["--json".into(), daemon.url("data/file"), to.into()];
        world.rdcp("pull").args(options).args(words).run()
    };
    let lines = pull(&[], "one").ok().json();
    assert_eq!(summary(&lines)["verified"], true);
    let lines = pull(&[], "one").ok().json();
    let end = summary(&lines);
    assert_eq!(
        (&end["verified"], &end["unchanged"], &end["files"]),
        (&Value::Null, &1.into(), &0.into())
    );
    let lines = pull(&["--hash", "none"], "two").ok().json();
    assert_eq!(summary(&lines)["verified"], false);
    world.make("local/three/file/x");
    let lines = pull(&[], "three").expect(12).json();
    assert_eq!(summary(&lines)["verified"], false);
}

#[test]
fn what_is_left_out_is_told_with_a_path() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let daemon = world.serve();
    for side in ["export", "local"] {
        let file = world.write(Path::new(side).join("tree/file"), "content");
        fs::set_permissions(file, fs::Permissions::from_mode(0o4755)).unwrap();
    }
    world.make("local/to");
    world.make("export/to");
    for words in [
        ["pull".into(), daemon.url("data/tree"), "to".into()],
        ["push".into(), "tree".into(), daemon.url("data/to")],
    ] {
        let run = world.rdcp(words[0].to_str().unwrap());
        let lines = run.args(["-a", "--json"]).args(&words[1..]).run().ok();
        let lines = lines.json();
        let of_set_id = |line: &&&Value| {
            let message = line["message"].as_str();
            message.is_some_and(|message| message.contains("set-user-id"))
        };
        let warnings = of_type(&lines, "warning");
        let warning = warnings.iter().find(of_set_id).expect("it is told");
        assert_eq!(warning["path"], "tree/file", "{warning}");
    }
}

// ---- the rest ------------------------------------------------------------------------------------

#[test]
fn a_file_for_standard_output_has_a_time_limit() {
    let world = World::new();
    let daemon = world.serve();
    tree::random_file(&world.path("export/file"), 8 << 20, 1);
    let words = ["--timeout".into(), "60s".into(), daemon.url("data/file")];
    let done = world.rdcp("pull").args(words).arg("-").run().ok();
    assert_eq!(done.stdout, world.read("export/file"));
    let proxy = common::Proxy::new(daemon.address()).hold_after(1 << 20, common::Scope::Data);
    let words = ["--timeout".into(), "1s".into(), proxy.url("data/file")];
    let done = world.rdcp("pull").args(words).arg("-").run();
    done.expect(11).says("nothing moved for 1 s");
}

#[test]
fn the_manual_is_written_with_the_daemons_page() {
    let world = World::new();
    let words = ["--dir", "man"];
    world.bare("man").args(words).run().ok();
    let page = String::from_utf8(world.read("local/man/rdcpd.1")).unwrap();
    assert!(page.contains(".TH rdcpd 1"), "{page}");
    assert!(world.exists("local/man/rdcp-pull.1"));
    // Alone, it says what is missing. The shell copies it: a test beside this one that starts a
    // program in the meantime would hold a copy of ours open for writing.
    let script = "cp \"$0\" alone && ./alone man --dir other";
    let shell = world.tool("sh").args(["-c", script]);
    let done = shell.arg(common::program("rdcp")).run().ok();
    done.says("rdcpd --man");
    assert!(!world.exists("local/other/rdcpd.1"));
}
