use super::*;
use crate::io::tests::captured;
use crate::output::Output;
use rdcp::ids::TransferId;
use rdcp::units::Timestamp;
use rdcp::wire::message::Outcome;
use serde_json::Value;

fn lines(run: impl FnOnce(&mut Output), to: JsonTo) -> Vec<Value> {
    let (io, out, err) = captured(true);
    let mut output = Output::new(io);
    output.use_json(to);
    run(&mut output);
    output.finish(End::of(ErrorKind::Busy));
    // A second end adds nothing, nor does what comes late.
    output.finish(End::DONE);
    output.error(&Error::new(ErrorKind::Internal, "late"));
    let (told, silent) = match to {
        JsonTo::Stdout => (out, err),
        JsonTo::Stderr => (err, out),
    };
    assert_eq!(silent.text(), "");
    told.text()
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

#[test]
fn every_line_is_an_object_with_the_same_head_and_the_summary_is_last() {
    let lines = lines(
        |output| {
            output.begin_copy(false, true, false);
            // Before the start there is no progress.
            output.progress(Progress::default());
            output.event(&Event::Started {
                transfer: TransferId([7; 16]),
                transport: "tcp",
                reason: "no\x1b device".into(),
                note: None,
            });
            output.progress(Progress::default());
            output.progress(Progress::default());
            output.event(&Event::Ended {
                path: b"a\xff\n".to_vec(),
                entry: EntryType::File,
                location: None,
                outcome: Outcome::Published {
                    bytes: 5,
                    digest: Some([1; 32]),
                },
                len: 6,
            });
            output.event(&Event::Ended {
                path: b"b".to_vec(),
                entry: EntryType::Directory,
                location: Some(Location::local(*b"/x/b")),
                outcome: Outcome::Failed(Fault::new(FaultCode::Busy, "later")),
                len: 0,
            });
            output.event(&Event::Warning {
                path: Vec::new(),
                fault: Fault::new(FaultCode::Special, "socket"),
                location: None,
            });
            output.error(&Error::new(ErrorKind::Busy, "draining").with_hint("wait"));
        },
        JsonTo::Stdout,
    );
    let kinds = lines
        .iter()
        .map(|line| line["type"].as_str().unwrap())
        .collect::<Vec<_>>();
    // Two progress reports within half a second are one.
    assert_eq!(
        kinds,
        [
            "start",
            "progress",
            "file",
            "directory",
            "warning",
            "error",
            "summary"
        ]
    );
    for (seq, line) in lines.iter().enumerate() {
        assert_eq!(
            (&line["v"], &line["seq"]),
            (&Value::from(1), &Value::from(seq))
        );
        assert_eq!(line["transfer_id"], "07".repeat(16));
        line["time"]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap();
    }
    assert_eq!(lines[0]["reason"], "no\\x1b device");
    assert_eq!(lines[2]["path"], "a\\xff\\n");
    assert_eq!(lines[2]["path_b64"], STANDARD.encode(b"a\xff\n"));
    assert_eq!(lines[2]["digest"], "01".repeat(32));
    assert_eq!(lines[3]["error"]["kind"], "busy");
    assert_eq!(lines[3]["path"], "b");
    assert_eq!(lines[3]["error"]["path"], "/x/b");
    assert_eq!(lines[3]["error"]["side"], "local");
    assert_eq!(
        (&lines[5]["hint"], &lines[5]["exit_status"]),
        (&"wait".into(), &14.into())
    );
    let last = &lines[6];
    assert_eq!(
        (&last["exit_status"], &last["retryable"]),
        (&14.into(), &true.into())
    );
}

#[test]
fn lines_step_aside_for_a_file_on_standard_output() {
    let lines = lines(|_| {}, JsonTo::Stderr);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["type"], "summary");
    assert_eq!(lines[0]["transfer_id"], Value::Null);
}

#[test]
fn listings_are_exact() {
    let listed = Listed {
        path: b"l".to_vec(),
        kind: ListedKind::Symlink(b"\xff".to_vec()),
        len: u64::MAX,
        mode: 0o120_777,
        uid: 1,
        gid: 2,
        mtime: Timestamp {
            seconds: 1,
            nanoseconds: 500_000_000,
        },
        digest: None,
        fault: None,
        left: None,
    };
    let export = Listed {
        kind: ListedKind::Export { writable: true },
        ..listed.clone()
    };
    let lines = lines(
        |output| {
            output.entry(b"l", b"l", &listed, false);
            output.entry(b"data", b"data", &export, false);
            output.digest(b"f", &[0; 32], HashKind::Sha256, 3);
            output.difference(b"f", Difference::MissingHere);
        },
        JsonTo::Stdout,
    );
    assert_eq!(lines[0]["size"], u64::MAX);
    assert_eq!(lines[0]["mode"], "0777");
    assert_eq!(lines[0]["mtime"], "1970-01-01T00:00:01.5Z");
    assert_eq!(lines[0]["target_b64"], "/w==");
    assert_eq!(
        (&lines[1]["kind"], &lines[1]["writable"]),
        (&"export".into(), &true.into())
    );
    assert_eq!(lines[2]["hash"], "sha256");
    assert_eq!(lines[3]["difference"], "missing_here");
}
