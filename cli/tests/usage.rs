//! The binary itself, as a shell runs it: what never needs a server.

use std::fs::File;
use std::process::{Command, Output, Stdio};

fn rdcp(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdcp"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command
}

fn run(line: &str) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = rdcp(line).output().expect("the binary starts");
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn usage_errors_exit_with_2_and_a_hint() {
    let table = [
        ("cp a b", "cp(1)|use cp"),
        ("cp h:/e/a g:/e/b", "pull and then push"),
        ("pull host:path .", "host:/path"),
        ("pull ssh://host .", "ssh://host/"),
        ("pull h:/e/a g:/e/b .", "once for each"),
        ("pull h:/ .", "rdcp ls h:/"),
        ("push x host:20471", "rdcp://host:20471"),
        ("rm h:/e", "something in it"),
        ("ls me@h:/e/x", "write h:/e/x"),
        ("pull h:99:/e/x .", "write rdcp://h:99/e/x"),
        ("pull h::e/x .", "write h:/e/x"),
        ("man nothing", "--help"),
    ];
    for (line, hints) in table {
        let (status, out, err) = run(line);
        assert_eq!((status, out.as_str()), (Some(2), ""), "{line}");
        let (first, hint) = err.split_once('\n').expect(line);
        assert!(first.starts_with("rdcp: "), "{line}: {first}");
        assert!(
            hint.starts_with("hint: ") && hint.ends_with('\n'),
            "{line}: {hint}"
        );
        assert!(
            hints.split('|').any(|expected| hint.contains(expected)),
            "{line}: {hint}"
        );
        assert_eq!(err.lines().count(), 2, "{line}: {err}");
    }
}

#[test]
fn what_the_parser_refuses_exits_with_2() {
    for line in [
        "",
        "pull",
        "pul h:/e/a .",
        "pull --frob h:/e/a .",
        "pull --chunk 3M h:/e/a .",
        "pull --timeout never h:/e/a .",
        "pull --streams 0 h:/e/a .",
        "pull -u --overwrite never h:/e/a .",
        "sum --hash none x",
        "ping -n 0 h",
        "bench",
        "bench --time 2m h",
        "bench --time 0 h",
        "bench --size 0 h",
        "bench --size 5X h",
        "bench --transport carrier-pigeon h",
    ] {
        let (status, out, err) = run(line);
        assert_eq!((status, out.as_str()), (Some(2), ""), "{line}");
        assert!(!err.is_empty(), "{line}");
    }
}

#[test]
fn json_ends_with_one_summary_whatever_happens() {
    for line in [
        "pull --json a b",
        "pull --json --frob",
        "verify --json a b",
        "ls --json x",
    ] {
        let (status, out, _) = run(line);
        assert_eq!(status, Some(2), "{line}");
        let lines = out
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).expect(line))
            .collect::<Vec<_>>();
        let last = lines.last().expect("at least the summary");
        assert_eq!(
            (&last["type"], &last["exit_status"]),
            (&"summary".into(), &2.into()),
            "{line}"
        );
        assert_eq!(
            lines
                .iter()
                .filter(|line| line["type"] == "summary")
                .count(),
            1,
            "{line}"
        );
    }
}

#[test]
fn a_full_disk_behind_standard_output_is_a_failure() {
    let full = File::options()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full is there");
    let status = rdcp("completions bash")
        .stdout(full)
        .stderr(Stdio::null())
        .status()
        .expect("runs");
    assert_eq!(status.code(), Some(7));
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let mut child = rdcp("completions bash")
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("ends").code(), Some(0));
    let mut child = rdcp("pull a b")
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    drop(child.stderr.take());
    assert_eq!(child.wait().expect("ends").code(), Some(2));
}

#[test]
fn names_in_errors_are_harmless() {
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"\x1b[2J\xff\xe2\x80\xae\n");
    let output = rdcp("push").arg(odd).arg(odd).output().expect("runs");
    assert_eq!(output.status.code(), Some(2));
    let err = String::from_utf8(output.stderr).expect("output is UTF-8");
    assert!(err.contains("\\x1b[2J\\xff\\u{202e}\\n"), "{err}");
    assert!(!err.contains('\x1b') && !err.contains('\u{202e}'), "{err}");
}

#[test]
fn nothing_answers_is_3() {
    // Port 1 of loopback: refused at once. The library names the host in its message.
    let (status, out, err) = run("ls rdcp://127.0.0.1:1/");
    assert_eq!((status, out.as_str()), (Some(3), ""), "{err}");
    assert!(err.starts_with("rdcp: "), "{err}");
}

#[test]
fn doctor_tells_what_to_do_about_all_that_keeps_from_rdma() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().to_str().expect("UTF-8");
    let (status, out, err) = run(&format!("doctor --json --path {path}"));
    assert_eq!(err, "");
    let [line] = out.lines().collect::<Vec<_>>()[..] else {
        panic!("one object: {out}")
    };
    let told = serde_json::from_str::<serde_json::Value>(line).expect("it is JSON");
    let would = told["would_use_rdma"].as_bool().expect("an answer");
    let devices = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|all| all.count() > 0);
    assert!(devices || !would, "{out}");
    assert_eq!(status, Some(if would { 0 } else { 10 }), "{out}");
    assert_eq!(
        (&told["v"], &told["exit_status"]),
        (&1.into(), &status.into())
    );
    let checks = told["checks"].as_array().expect("checks");
    for check in checks {
        let fix = check["fix"].as_str().unwrap_or_default();
        let bad = ["warning", "problem"].contains(&check["status"].as_str().expect("a status"));
        assert!(!bad || !fix.is_empty(), "{check}");
        assert!(
            check["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{check}"
        );
    }
    let of = |name: &'static str| checks.iter().filter(move |check| check["check"] == name);
    assert!(
        of("registration").any(|check| check["about"] == path),
        "{out}"
    );
    if !devices {
        assert!(
            of("device").all(|check| check["status"] == "problem"),
            "{out}"
        );
        assert_eq!(of("device").count(), 1, "{out}");
    }
}

#[test]
fn doctor_says_why_rails_to_a_host_do_not_come_up() {
    // Port 1 of loopback: nothing answers.
    let (status, out, err) = run("doctor 127.0.0.1:1");
    assert_eq!((status, err.as_str()), (Some(10), ""), "{out}");
    for words in [
        "ok       route 127.0.0.1: it is this machine",
        "problem  rails 127.0.0.1:1: ",
        "$ ssh 127.0.0.1 sudo systemctl start rdcpd\n",
        "a transfer would not use RDMA\n",
    ] {
        assert!(out.contains(words), "{words} is not in {out}");
    }
}
