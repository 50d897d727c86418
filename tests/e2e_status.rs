//! What a server tells of what it does, while it does it.

mod common;

use common::command::json_lines;
use common::tree;
use common::{Proxy, Scope, World};
use serde_json::Value;

fn of_type<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == kind).collect()
}

#[test]
fn a_running_transfer_is_told_with_its_session_and_its_bytes() {
    let world = World::new();
    let daemon = world.serve();
    tree::random_file(&world.path("export/file"), 16 << 20, 1);
    tree::random_file(&world.path("local/file"), 16 << 20, 2);
    let status = || {
        let host = format!("rdcp://{}", daemon.address());
        let run = world.rdcp("status").arg("--json").arg(host).run().ok();
        run.json()
    };
    for (words, kind, about) in [
        (
            ["pull".into(), daemon.url("data/file"), "copy".into()],
            "pull",
            "data/file",
        ),
        (
            ["push".into(), "file".into(), daemon.url("data/other")],
            "push",
            "data/other",
        ),
    ] {
        let proxy = Proxy::new(daemon.address()).hold_after(2 << 20, Scope::Data);
        let through = |word: &std::ffi::OsString| {
            let word = word.to_str().expect("it is text");
            let rest = word
                .split_once("/data/")
                .map(|(_, rest)| format!("data/{rest}"));
            rest.map_or(word.into(), |rest| proxy.url(rest))
        };
        let rdcp = world.rdcp(kind).args(words[1..].iter().map(through));
        let running = rdcp.arg("--json").start();
        proxy.wait_held();
        let lines = common::wait_for("the transfer is told", || {
            let lines = status();
            let sessions = of_type(&lines, "session");
            let runs = sessions
                .iter()
                .any(|session| session["transfers"][0]["files_seen"] == 1);
            // That of the copy before may still be about to end.
            (runs && sessions.len() == 2).then_some(lines)
        });
        let sessions = of_type(&lines, "session");
        let own: Vec<_> = sessions.iter().map(|session| &session["own"]).collect();
        assert_eq!(own, [false, true]);
        let transfer = &sessions[0]["transfers"][0];
        assert_eq!(
            (&transfer["kind"], &transfer["about"]),
            (&kind.into(), &about.into())
        );
        assert_eq!(transfer["bytes_seen"], 16 << 20);
        assert!(sessions[0]["tcp_connections"].as_u64() >= Some(1));
        let whole = of_type(&lines, "status")[0];
        assert_eq!(whole["sessions"], 2);
        proxy.release();
        let done = json_lines(&running.wait().ok().text());
        assert_eq!(
            transfer["id"], done[0]["transfer_id"],
            "both ends call it the same"
        );
    }
    // Bytes outlive the sessions that they went in.
    let lines = common::wait_for("the sessions are gone", || {
        let lines = status();
        (of_type(&lines, "session").len() == 1).then_some(lines)
    });
    let tcp = &of_type(&lines, "status")[0]["transports"][0];
    assert_eq!(tcp["name"], "tcp");
    assert_eq!(
        (&tcp["sent_bytes"], &tcp["received_bytes"]),
        (&(16 << 20).into(), &(16 << 20).into())
    );
    let host = format!("rdcp://{}", daemon.address());
    let text = world.rdcp("status").arg(host).run().ok().text();
    assert!(text.contains("(this one) from 127.0.0.1:"), "{text}");
    assert!(
        text.contains("tcp: 16.0 MiB sent, 16.0 MiB received"),
        "{text}"
    );
}

#[test]
fn more_sessions_than_one_page_holds_are_all_told() {
    let world = World::new();
    let daemon = world.serve();
    tree::random_file(&world.path("export/file"), 4 << 20, 1);
    let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, Scope::Data);
    let running: Vec<_> = (0..20)
        .map(|number| {
            let words = [proxy.url("data/file"), format!("copy{number}").into()];
            world.rdcp("pull").args(words).start()
        })
        .collect();
    common::wait_for("all sessions are told", || {
        let host = format!("rdcp://{}", daemon.address());
        let run = world.rdcp("status").arg("--json").arg(host).run().ok();
        let lines = run.json();
        let sessions = of_type(&lines, "session");
        let numbers: Vec<_> = sessions.iter().map(|it| it["session"].as_u64()).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        (sessions.len() == 21).then_some(())
    });
    proxy.release();
    running.into_iter().for_each(|run| {
        run.wait().ok();
    });
}
