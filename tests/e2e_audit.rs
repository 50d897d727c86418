//! The record of who did what: each session and request has its lines, with names that no reader can be fooled by;
//! it is appended to, can be rotated, and one that can't be kept keeps the daemon from starting.

mod common;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::{Daemon, Proxy, Scope, World, tree, wait_for};
use rustix::process::Signal;
use serde_json::Value;

fn serve(world: &World, more: &[&str]) -> Daemon {
    let top = world.path("");
    let config = format!(
        "audit = \"{0}record\"\n[exports.data]\npath = \"{0}export\"\nwritable = true\n\
         [exports.closed]\npath = \"{0}export\"\n",
        top.to_str().unwrap().trim_end_matches('/').to_owned() + "/"
    );
    let file = world.write("rdcpd.toml", config);
    let arguments: [OsString; 4] = [
        "--config".into(),
        file.into(),
        "--listen".into(),
        "127.0.0.1:0".into(),
    ];
    let more: Vec<OsString> = more.iter().map(Into::into).collect();
    world.serve_as(&[&arguments[..], &more].concat())
}

/// The lines so far. Those that are numbered are numbered without a gap.
fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines: Vec<Value> = whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for line in &lines {
        assert_eq!(line["v"], 1);
        assert!(line["time"].as_str().unwrap().ends_with('Z'), "{line}");
    }
    lines
}

/// Waits for a line of which this is true.
#[track_caller]
fn await_line(file: &Path, is_it: impl Fn(&Value) -> bool) -> Value {
    wait_for("the record has the line", || {
        lines(file).into_iter().find(|line| is_it(line))
    })
}

#[test]
fn sessions_and_requests_are_told_with_their_end() {
    let world = World::new();
    let odd = OsStr::from_bytes(b"a\n\x1b[2J\xff");
    fs::write(world.path("export").join(odd), "content").unwrap();
    world.make("export/tree");
    world.make("local/got");
    tree::random_file(&world.path("export/tree/one"), 300_000, 1);
    tree::random_file(&world.path("export/tree/two"), 5, 2);
    let record = world.path("record");
    let mut daemon = serve(&world, &[]);
    let run = |command: &str, words: &[OsString]| world.rdcp(command).args(words.to_vec()).run();

    run(
        "pull",
        &["-r".into(), daemon.url("data/tree/"), "got".into()],
    )
    .ok();
    run("push", &["-rn".into(), "got".into(), daemon.url("data/")]).ok();
    run("push", &["-r".into(), "got".into(), daemon.url("data/")]).ok();
    run("push", &["-r".into(), "got".into(), daemon.url("closed/")]).expect(4);
    let mut path = OsString::from("data/");
    path.push(odd);
    run("sum", &[daemon.url(&path)]).ok();
    run("rm", &[daemon.url("data/none")]).expect(5);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));

    let told = lines(&record);
    let numbers: Vec<_> = told
        .iter()
        .map(|line| line["seq"].as_u64().unwrap())
        .collect();
    assert!(
        numbers.iter().copied().eq(0..numbers.len() as u64),
        "{numbers:?}"
    );
    assert_eq!(told[0]["event"], "daemon_started");
    assert_eq!(told[told.len() - 1]["event"], "daemon_ended");
    let of = |event: &str| -> Vec<&Value> {
        told.iter().filter(|line| line["event"] == event).collect()
    };
    let (began, ended) = (of("request_began"), of("request_ended"));
    assert_eq!(of("session_began").len(), of("session_ended").len());
    assert!(
        of("session_began")[0]["software"]
            .as_str()
            .unwrap()
            .starts_with("rdcp ")
    );
    // Each begin has its end, of the same request in the same session.
    assert_eq!(began.len(), ended.len());
    for (began, ended) in began.iter().zip(&ended) {
        for field in [
            "session", "from", "transfer", "request", "places", "dry_run",
        ] {
            assert_eq!(began[field], ended[field], "{field}");
        }
        assert!(began["from"].as_str().unwrap().starts_with("127.0.0.1:"));
    }
    let find = |request: &str, at: usize| -> &Value {
        ended
            .iter()
            .filter(|line| line["request"] == request)
            .nth(at)
            .unwrap()
    };
    let pull = find("pull", 0);
    assert_eq!(pull["result"], "done");
    assert_eq!(pull["places"][0]["export"], "data");
    assert_eq!(pull["places"][0]["path"], "tree");
    assert_eq!(
        (&pull["published"], &pull["bytes"]),
        (&2.into(), &300_005.into())
    );
    assert!(pull.get("reason").is_none() && pull.get("kind").is_none());
    assert_eq!(find("push", 0)["dry_run"], true);
    assert_eq!(find("push", 1)["published"], 3);
    let refused = find("push", 2);
    assert_eq!(
        (&refused["result"], &refused["kind"]),
        (&"failed".into(), &"denied".into())
    );
    assert!(refused["reason"].as_str().unwrap().contains("read-only"));
    let sum = find("sum", 0);
    assert_eq!(
        sum["places"][0]["path_b64"],
        STANDARD.encode(odd.as_bytes())
    );
    let removed = find("remove", 0);
    assert_eq!(
        (&removed["result"], &removed["kind"]),
        (&"failed".into(), &"not_found".into())
    );
    // No name can look like another line, or command a terminal.
    let bytes = fs::read(&record).unwrap();
    assert!(
        bytes
            .iter()
            .all(|byte| *byte == b'\n' || !byte.is_ascii_control())
    );
}

#[test]
fn who_is_not_let_in_and_who_goes_away_is_told() {
    let world = World::new();
    tree::random_file(&world.path("export/file"), 24 << 20, 1);
    let key = |name: &str| {
        let file = format!("{name}.pem");
        let told = world.bare("keygen").args(["--identity", &file]).run().ok();
        let line = String::from_utf8(told.stdout.clone()).unwrap();
        line.split(' ').next().unwrap().to_owned()
    };
    let (ada, bob) = (key("ada"), key("bob"));
    let record = world.path("record");
    let daemon = serve(&world, &["--authorize", &ada]);
    let as_one = |name: &str, command: &str| {
        world
            .rdcp(command)
            .args(["--identity".to_owned(), format!("{name}.pem")])
    };
    as_one("bob", "ls").arg(daemon.url("data/")).run().expect(4);
    let refused = await_line(&record, |line| line["event"] == "client_refused");
    assert_eq!(refused["key"], bob.as_str());
    assert!(
        refused["reason"]
            .as_str()
            .unwrap()
            .contains("is not among those")
    );

    let proxy = Proxy::new(daemon.address()).hold_after(4 << 20, Scope::Data);
    let running = as_one("ada", "pull")
        .args([proxy.url("data/file"), "got".into()])
        .start();
    proxy.wait_held();
    running.signal(Signal::KILL);
    let ended = await_line(&record, |line| line["event"] == "request_ended");
    assert_eq!(
        (&ended["key"], &ended["result"]),
        (&ada.as_str().into(), &"failed".into())
    );
    await_line(&record, |line| {
        line["event"] == "session_ended" && line["session"] == ended["session"]
    });
}

#[test]
fn it_is_appended_to_and_can_be_rotated() {
    let world = World::new();
    world.write("export/file", "content");
    let record = world.write(
        "record",
        "{\"v\":1,\"time\":\"2026-01-01T00:00:00Z\",\"event\":\"earlier\"}\n",
    );
    let daemon = serve(&world, &[]);
    let ls = || world.rdcp("ls").arg(daemon.url("data/")).run().ok();
    ls();
    await_line(&record, |line| line["event"] == "session_ended");
    assert_eq!(lines(&record)[0]["event"], "earlier");
    let rotated = world.path("record.1");
    fs::rename(&record, &rotated).unwrap();
    daemon.signal(Signal::HUP);
    wait_for("it is opened again", || record.exists().then_some(()));
    let before = lines(&rotated).len();
    ls();
    await_line(&record, |line| line["event"] == "session_ended");
    assert_eq!(lines(&rotated).len(), before);
}

#[test]
fn a_record_that_can_not_be_kept_keeps_the_daemon_from_starting() {
    let world = World::new();
    let started = |audit: &Path| {
        let mut export = OsString::from("data=");
        export.push(world.path("export"));
        world
            .tool(common::program("rdcpd").to_str().unwrap())
            .args(["--state-dir".into(), world.path("state").into_os_string()])
            .args(["--export".into(), export, "--audit".into()])
            .arg(audit)
            .args(["--listen", "127.0.0.1:0"])
            .run()
    };
    started(&world.path("none/record"))
        .expect(7)
        .says("the audit record");
    started(&world.path("local")).expect(7);
    std::os::unix::fs::symlink(world.write("victim", "kept"), world.path("link")).unwrap();
    started(&world.path("link")).expect(7);
    assert_eq!(world.read("victim"), b"kept");
    // What clients may reach is no place for it.
    started(&world.path("export/record"))
        .expect(2)
        .says("which is the daemon's own");
}
