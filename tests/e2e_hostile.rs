//! Hostile clients against a real daemon: each is told why, loses its connection or its session, and
//! nobody else notices; nothing is written where it does not belong, and nothing grows.

mod common;
mod hostile;

use std::fs;
use std::io::{Read, Write};
use std::time::Duration;

use common::holdings::{Holdings, assert_serves};
use common::{Daemon, World, tree};
use hostile::data::{self, Data};
use hostile::make::{
    credit, digests, end, entry, file, grant, list, more, page, part, pull, push, want, within,
};
use hostile::{Heard, Hostile, is_protocol};
use rdcp::ids::{EntryId, RegionId, SessionId};
use rdcp::limits::{FRAME_BYTES_MAX, PAGES_CREDIT_DEFAULT, REGION_CREDIT_BYTES_DEFAULT};
use rdcp::manifest::{EntryKind, Item, Note, Place};
use rdcp::units::ByteRange;
use rdcp::wire::message::{Carried, Grant, Hello, Outcome, Wanted};
use rdcp::wire::{Envelope, FaultCode, Message, encode};
use rdcp::{ChunkSize, Fault, TransferId};

/// A daemon with some files, warmed up, and what it holds.
fn field() -> (World, Daemon, Holdings) {
    let world = World::new();
    let daemon = world.serve();
    tree::random_file(&world.path("export/big"), 8 << 20, 1);
    world.write("export/small/a", "some content");
    world.write("export/small/b", "other content");
    world.write("secret", "not exported");
    let holdings = Holdings::after_warming_up(&world, &daemon);
    (world, daemon, holdings)
}

/// All is as it was: the daemon lives, serves, and holds nothing more.
#[track_caller]
fn assert_unharmed(world: &World, daemon: &mut Daemon, before: &Holdings) {
    assert_serves(world, daemon);
    before.assert_again(daemon);
    daemon.assert_alive();
    assert_eq!(world.read("secret"), b"not exported");
}

/// Waits until the daemon's log has a line with all of these.
#[track_caller]
fn assert_logged(daemon: &Daemon, parts: &[&str]) {
    common::wait_for(&format!("the log tells {parts:?}"), || {
        let log = daemon.log();
        let mut lines = log.lines();
        lines
            .any(|line| parts.iter().all(|part| line.contains(part)))
            .then_some(())
    });
}

fn bytes_of(transfer: TransferId, message: Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&Envelope { transfer, message }, &mut bytes).unwrap();
    bytes
}

/// A frame around any body.
fn frame(kind: u16, transfer: TransferId, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).unwrap();
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.extend(kind.to_le_bytes());
    bytes.extend(1_u16.to_le_bytes());
    bytes.extend(transfer.0);
    bytes.extend(body);
    bytes
}

#[test]
fn garbage_inside_of_tls_ends_the_session_with_its_reason() {
    let (world, mut daemon, before) = field();
    let id = TransferId::random();
    let mut random = tree::Random::new(5);
    let mut cases = vec![
        (
            "a length of 2^63",
            [&[0xff; 7][..], &[0x7f], &[0; 100]].concat(),
        ),
        ("a body one byte too long", {
            let len = u32::try_from(FRAME_BYTES_MAX).unwrap() + 1;
            [&len.to_le_bytes()[..], &[0; 20]].concat()
        }),
        ("a type that nobody knows", frame(9999, id, &[])),
        ("noise", random.bytes(5000)),
    ];
    for kind in [5, 16, 19, 20, 21, 22, 23, 25, 28, 29, 48] {
        cases.push(("a body that is cut", frame(kind, id, &[])));
    }
    for (what, bytes) in cases {
        let mut peer = Hostile::connect(daemon.address());
        peer.write(&bytes);
        let fault = peer
            .given_up()
            .unwrap_or_else(|| panic!("{what}: no reason"));
        let known = [FaultCode::Protocol, FaultCode::Incompatible];
        assert!(known.contains(&fault.code), "{what}: {fault:?}");
    }
    // Noise behind a header may happen to say something; then it is about a transfer that is not
    // there.
    for kind in 1..60 {
        let mut peer = Hostile::connect(daemon.address());
        peer.write(&frame(kind, id, &random.bytes(300)));
        let _ = peer.is_answered();
    }
    assert_logged(&daemon, &["session ended", "the peer broke the protocol"]);
    assert_unharmed(&world, &mut daemon, &before);
}

#[test]
fn before_the_greeting_nothing_else_is_heard() {
    let (world, mut daemon, before) = field();
    let hello = |min, max| {
        let software = "hostile".to_owned();
        Message::Hello(Hello {
            level_min: min,
            level_max: max,
            software,
        })
    };
    for message in [
        Message::Ping { nonce: 1 },
        Message::Goodbye(Fault::new(FaultCode::Internal, "goodbye")),
    ] {
        let mut peer = Hostile::begin(daemon.address(), None);
        peer.say(TransferId::NONE, message);
        assert_eq!(peer.given_up().map(|fault| fault.code), None);
    }
    let mut early = Hostile::begin(daemon.address(), None);
    early.say(TransferId::random(), pull("big"));
    assert_eq!(early.given_up().map(|fault| fault.code), None);
    assert_logged(&daemon, &["control connection failed", "Hello was due"]);

    let mut future = Hostile::begin(daemon.address(), None);
    future.say(TransferId::NONE, hello(500, 600));
    let fault = future.given_up().expect("it is told");
    assert_eq!(fault.code, FaultCode::Incompatible);

    // A greeting needs little; more is not taken before it.
    let mut long = Hostile::begin(daemon.address(), None);
    long.write(&frame(1, TransferId::NONE, &vec![0; 200_000]));
    assert_eq!(long.given_up().map(|fault| fault.code), None);

    // A second greeting is out of turn.
    let mut twice = Hostile::connect(daemon.address());
    twice.say(TransferId::NONE, hello(1, 1));
    assert!(is_protocol(&twice.given_up().expect("it is told")));
    assert_unharmed(&world, &mut daemon, &before);
}

#[test]
fn a_connection_that_stops_anywhere_leaves_nothing_behind() {
    let (world, mut daemon, before) = field();
    let address = daemon.address();
    let hello = bytes_of(TransferId::NONE, Message::Ping { nonce: 1 });
    for round in 0..3 {
        // In its greeting, and in a message after it.
        let mut peer = Hostile::begin(address, None);
        peer.write(&hello[..hello.len() / 2]);
        peer.cut();
        let mut peer = Hostile::connect(address);
        peer.write(&bytes_of(TransferId::random(), pull("big"))[..30]);
        peer.cut();

        // In a pull: after each of its steps.
        for steps in 0..5 {
            let mut peer = Hostile::connect(address);
            let id = TransferId::random();
            peer.say(id, pull("big"));
            if steps > 0 {
                peer.say(id, credit(16, 64 << 20));
            }
            if steps > 1 {
                peer.expect("a page", |_, message| {
                    matches!(message, Message::Manifest(_)).then_some(())
                });
                peer.say(id, want(0));
            }
            if steps > 2 {
                let mut data = Data::open(&peer).unwrap();
                let granted: Grant = peer.expect("a grant", |_, message| match message {
                    Message::Grant(grant) => Some(grant),
                    _ => None,
                });
                let key = granted.keys[0].key.0;
                for chunk in 0..4 {
                    data.read(chunk, key, chunk << 20, 1 << 20).unwrap();
                }
                if steps > 3 {
                    data.stream.read_exact(&mut [0; 100_000]).unwrap();
                }
            }
            peer.cut();
        }

        // In a push: after each of its steps.
        for steps in 0..4 {
            let mut peer = Hostile::connect(address);
            let id = TransferId::random();
            let name = format!("cut{round}{steps}");
            peer.say(id, push(&name));
            if steps > 0 {
                peer.expect("credit", |_, message| {
                    matches!(message, Message::Credit { .. }).then_some(())
                });
                peer.say(id, page(vec![entry(0, Place::Root(0), file(4 << 20))]));
            }
            if steps > 1 {
                peer.expect("a wish", |_, message| {
                    matches!(message, Message::Want(_)).then_some(())
                });
                let granted = grant(1, 4 << 20, vec![part(0, 4 << 20)]);
                peer.say(id, Message::Grant(granted));
            }
            if steps > 2 {
                let mut data = Data::open(&peer).unwrap();
                let (header, _) = data.hear().unwrap();
                let request = u64::from_le_bytes(header[16..24].try_into().unwrap());
                data.header(2, 0, 0, 1000, [request, 0, 0, 0]).unwrap();
                data.stream.write_all(&[1; 500]).unwrap();
            }
            peer.cut();
        }
    }
    assert_unharmed(&world, &mut daemon, &before);
    let names = common::wait_for("what was cut off is gone", || {
        let names = tree::listing(&world.path("export"));
        let left = |name: &std::ffi::OsString| name.to_string_lossy().contains(".rdcp-");
        (!names.iter().any(left)).then_some(names)
    });
    let written = |name: &std::ffi::OsString| name.to_string_lossy().ends_with("root");
    assert!(!names.iter().any(written), "{names:?}");
}

/// What a client says in a pull that is under way and can't be meant so.
fn out_of_place() -> Vec<(&'static str, Message)> {
    let region = |len| Message::Grant(grant(1, len, vec![part(0, len)]));
    vec![
        ("a page", page(vec![])),
        ("a grant", region(5)),
        ("digests", Message::Digests(vec![])),
        ("closed", Message::Closed(vec![(EntryId(0), true)])),
        ("finished", Message::Finished),
        ("a listing", Message::Listing(vec![])),
        ("done", Message::Done),
        ("an entry that was never told", want(99)),
        ("a close of it", Message::Close(vec![EntryId(99)])),
        (
            "its settling",
            Message::Settled(vec![(EntryId(99), Outcome::Unchanged)]),
        ),
        ("a recheck of it", {
            let entry = EntryId(99);
            Message::Recheck { entry, chunk: 0 }
        }),
        ("a recheck of what was not granted", {
            let entry = EntryId(0);
            Message::Recheck {
                entry,
                chunk: 1 << 60,
            }
        }),
        (
            "a region never granted",
            Message::Release(vec![RegionId(77)]),
        ),
        ("an end too early", Message::Finish(Carried::default())),
        ("chunks out of order", {
            let range = |start, end| rdcp::units::ChunkRange { start, end };
            let wanted = Wanted::Chunks(vec![range(3, 5), range(1, 2)]);
            Message::Want(vec![(EntryId(0), wanted)])
        }),
    ]
}

#[test]
fn messages_out_of_place_end_their_transfer_or_session_alone() {
    let (world, mut daemon, before) = field();
    let mut taken = Vec::new();
    for (what, message) in out_of_place() {
        let mut peer = Hostile::connect(daemon.address());
        let id = TransferId::random();
        peer.say(id, pull("big"));
        peer.say(id, credit(4, 0));
        peer.expect("a page", |_, message| {
            matches!(message, Message::Manifest(_)).then_some(())
        });
        peer.say(id, message.clone());
        peer.say(id, message);
        match peer.given_up_within(Duration::from_secs(10)) {
            Heard::Said(_, Message::Failed(fault) | Message::Goodbye(fault)) => {
                assert!(is_protocol(&fault), "{what}: {fault:?}");
            }
            _ => taken.push(what),
        }
    }
    assert!(taken.is_empty(), "taken for good: {taken:?}");
    // Of no transfer at all.
    let mut peer = Hostile::connect(daemon.address());
    let welcome = rdcp::wire::message::Welcome {
        level: 1,
        session: SessionId(1),
        epoch: 1,
        software: String::new(),
        data_connections_max: 1,
        transports: Vec::new(),
    };
    peer.say(TransferId::NONE, Message::Welcome(welcome));
    assert!(is_protocol(&peer.given_up().expect("it is told")));
    // A transfer that never began is not answered, and costs nothing.
    let mut peer = Hostile::connect(daemon.address());
    for number in 0..1000_u16 {
        let mut id = [1; 16];
        id[..2].copy_from_slice(&number.to_le_bytes());
        peer.say(TransferId(id), want(0));
    }
    assert!(peer.is_answered());
    peer.cut();
    assert_unharmed(&world, &mut daemon, &before);
}

/// A push whose manifest is these pages; why the daemon gave it up.
#[track_caller]
fn push_refused(daemon: &Daemon, pages: Vec<Message>) -> Fault {
    let mut peer = Hostile::connect(daemon.address());
    let id = TransferId::random();
    peer.say(id, push("in"));
    for page in pages {
        peer.say(id, page);
    }
    let fault = peer.given_up().expect("it is told");
    peer.cut();
    fault
}

#[test]
fn manifests_that_lie_are_refused_and_write_nothing_outside() {
    let (world, mut daemon, before) = field();
    let top = || entry(0, Place::Root(0), EntryKind::Directory);
    let pages: Vec<(&str, Vec<Item>)> = vec![
        ("no such root", vec![entry(0, Place::Root(7), file(1))]),
        ("in itself", vec![entry(5, within(5, b"x"), file(1))]),
        (
            "in nothing",
            vec![top(), entry(1, within(9, b"x"), file(1))],
        ),
        (
            "a cycle",
            vec![
                top(),
                entry(1, within(2, b"x"), EntryKind::Directory),
                entry(2, within(1, b"y"), EntryKind::Directory),
            ],
        ),
        (
            "a handle twice",
            vec![
                top(),
                entry(1, within(0, b"x"), file(1)),
                entry(1, within(0, b"y"), file(1)),
            ],
        ),
        (
            "handles that fall",
            vec![
                top(),
                entry(5, within(0, b"x"), file(1)),
                entry(4, within(0, b"y"), file(1)),
            ],
        ),
        ("the end of nothing", vec![top(), end(3)]),
        (
            "after its directory's end",
            vec![top(), end(0), entry(1, within(0, b"x"), file(1))],
        ),
        (
            "a link to nothing",
            vec![
                top(),
                entry(1, within(0, b"x"), EntryKind::HardLink(EntryId(77))),
            ],
        ),
        (
            "a link to itself",
            vec![
                top(),
                entry(1, within(0, b"x"), EntryKind::HardLink(EntryId(1))),
            ],
        ),
    ];
    let mut accepted = Vec::new();
    for (what, items) in pages {
        let mut peer = Hostile::connect(daemon.address());
        let id = TransferId::random();
        peer.say(id, push("in"));
        peer.say(id, page(items));
        // The whole run is refused, or the entry that lies fails; never is it believed.
        let refused = peer.expect(what, |_, message| match message {
            Message::Failed(fault) | Message::Goodbye(fault) => Some(Some(fault)),
            Message::Settled(outcomes) => outcomes
                .iter()
                .any(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
                .then_some(None),
            Message::Finish(_) => {
                accepted.push(what);
                Some(None)
            }
            _ => None,
        });
        if let Some(fault) = refused {
            assert!(is_protocol(&fault), "{what}: {fault:?}");
        }
        peer.cut();
    }
    assert!(accepted.is_empty(), "believed: {accepted:?}");

    // Names that are no single component can't be said by an honest encoder: they are forged.
    for (fair, foul) in [
        ("@@", ".."),
        ("@", "."),
        ("@@@@@@@@@@", "../../evil"),
        ("@@@@@@@@@", "/tmp/evil"),
        ("@@@@", "a/b@"),
        ("@@@", "a\0b"),
    ] {
        let id = TransferId::random();
        let mut peer = Hostile::connect(daemon.address());
        peer.say(id, push("in"));
        let mut bytes = bytes_of(
            id,
            page(vec![top(), entry(1, within(0, fair.as_bytes()), file(1))]),
        );
        let at = bytes
            .windows(fair.len())
            .rposition(|window| window == fair.as_bytes())
            .expect("the name is there");
        bytes[at..at + fair.len()].copy_from_slice(foul.as_bytes());
        peer.write(&bytes);
        let fault = peer.given_up().expect("it is told");
        assert!(is_protocol(&fault), "{foul:?}: {fault:?}");
    }

    // A directory in a directory in a directory, further than any path goes.
    let mut deep = vec![top()];
    for id in 1..=1100 {
        deep.push(entry(id, within(id - 1, b"d"), EntryKind::Directory));
    }
    let mut pages: Vec<_> = deep.chunks(500).map(|chunk| more(chunk.to_vec())).collect();
    // It ends without an end of any of them.
    pages.push(page(Vec::new()));
    let fault = push_refused(&daemon, pages);
    // A slow disk may still be making directories when the run is to end.
    let known = [FaultCode::Protocol, FaultCode::TimedOut];
    assert!(known.contains(&fault.code), "{fault:?}");

    // A destination above the export.
    for to in ["..", "../out", "in/../../out", "/etc"] {
        let mut peer = Hostile::connect(daemon.address());
        let id = TransferId::random();
        peer.say(id, push(to));
        peer.say(id, page(vec![entry(0, Place::Root(0), file(1))]));
        let outcome = peer.expect("a refusal", |_, message| match message {
            Message::Failed(fault) | Message::Goodbye(fault) => Some(fault),
            Message::Settled(outcomes) => {
                outcomes.into_iter().find_map(|(_, outcome)| match outcome {
                    Outcome::Failed(fault) => Some(fault),
                    _ => None,
                })
            }
            _ => None,
        });
        assert_ne!(outcome.code, FaultCode::Internal, "{to}: {outcome:?}");
        peer.cut();
    }
    assert!(!world.exists("evil") && !world.exists("out"));
    assert!(!std::path::Path::new("/tmp/evil").exists());
    assert_unharmed(&world, &mut daemon, &before);
}

#[test]
fn links_and_files_of_one_name_do_not_lead_outside() {
    let (world, mut daemon, before) = field();
    let outside = world.make("outside");
    let target = outside.clone().into_os_string().into_encoded_bytes();
    let symlink = |target: &[u8]| EntryKind::Symlink(target.to_vec());
    let mut peer = Hostile::connect(daemon.address());
    let id = TransferId::random();
    peer.say(id, push("in"));
    peer.say(
        id,
        page(vec![
            entry(0, Place::Root(0), EntryKind::Directory),
            entry(1, within(0, b"l"), symlink(&target)),
            entry(2, within(0, b"l"), EntryKind::Directory),
            entry(3, within(2, b"evil"), file(3)),
            entry(
                4,
                within(0, b"f"),
                symlink(&[&target[..], b"/evil"].concat()),
            ),
            entry(5, within(0, b"f"), file(3)),
            end(2),
            end(0),
        ]),
    );
    let wanted = peer.expect("a wish or an end", |_, message| match message {
        Message::Want(wanted) => Some(wanted),
        Message::Failed(_) => Some(Vec::new()),
        _ => None,
    });
    let wanted: Vec<_> = wanted
        .into_iter()
        .filter(|(_, wanted)| *wanted != Wanted::Nothing)
        .map(|(entry, _)| entry)
        .collect();
    let mut parts = Vec::new();
    for (number, entry) in (0..).zip(&wanted) {
        let mut part = part(entry.0, 3);
        (part.region_offset, part.packed) = (3 * number, true);
        parts.push(part);
    }
    if !parts.is_empty() {
        let mut data = Data::open(&peer).unwrap();
        for entry in &wanted {
            let proofs = digests(entry.0, ChunkSize::DEFAULT, b"BAD");
            peer.say(id, Message::Digests(proofs));
        }
        let len = 3 * parts.len() as u64;
        peer.say(id, Message::Grant(grant(1, len, parts)));
        let content = b"BAD".repeat(wanted.len());
        let (header, _) = data.hear().unwrap();
        let request = u64::from_le_bytes(header[16..24].try_into().unwrap());
        let bytes = u32::try_from(content.len()).unwrap();
        data.header(2, 0, 1, bytes, [request, 0, 0, 0]).unwrap();
        data.stream.write_all(&content).unwrap();
        peer.expect("its settling", |_, message| {
            matches!(message, Message::Settled(_) | Message::Failed(_)).then_some(())
        });
    }
    peer.cut();
    assert_eq!(
        fs::read_dir(&outside).unwrap().count(),
        0,
        "written outside"
    );
    assert_unharmed(&world, &mut daemon, &before);
}

#[test]
fn more_than_there_is_credit_for_ends_the_transfer() {
    let (world, mut daemon, before) = field();
    // Pages: empty ones, and ones full of notes.
    let note = || {
        Item::Note(Note::Skipped {
            place: within(0, b"n"),
            fault: Fault::new(FaultCode::Special, "a note"),
            failure: false,
        })
    };
    let empty = || more(Vec::new());
    let full = || more((0..500).map(|_| note()).collect());
    for build in [&empty as &dyn Fn() -> Message, &full] {
        let mut peer = Hostile::connect(daemon.address());
        let id = TransferId::random();
        peer.say(id, push("in"));
        peer.say(
            id,
            more(vec![entry(0, Place::Root(0), EntryKind::Directory)]),
        );
        let mut sent = 0_u32;
        // Never a look at what the daemon allows. It ends the transfer long before this does.
        while sent < 200 * PAGES_CREDIT_DEFAULT
            && matches!(
                peer.hear(Duration::from_millis(1)),
                Heard::Silence | Heard::Said(_, Message::Opened | Message::Credit { .. })
            )
        {
            for _ in 0..50 {
                peer.say(id, build());
                sent += 1;
            }
        }
        assert!(
            sent < 200 * PAGES_CREDIT_DEFAULT,
            "all of {sent} pages were taken"
        );
        peer.cut();
    }
    // Regions.
    let mut peer = Hostile::connect(daemon.address());
    let id = TransferId::random();
    let len = REGION_CREDIT_BYTES_DEFAULT + (1 << 20);
    peer.say(id, push("regions"));
    peer.say(id, page(vec![entry(0, Place::Root(0), file(len))]));
    peer.expect("a wish", |_, message| {
        matches!(message, Message::Want(_)).then_some(())
    });
    for window in 0.. {
        let mut part = part(0, 64 << 20);
        part.file_len = len;
        part.file_offset = window * (64 << 20);
        part.extents = vec![ByteRange {
            start: part.file_offset,
            end: part.file_offset + part.len,
        }];
        part.last = false;
        if part.file_offset + part.len > len {
            (part.len, part.last) = (1 << 20, true);
            part.extents[0].end = len;
            let region = grant(window + 1, 1 << 20, vec![part]);
            peer.say(id, Message::Grant(region));
            break;
        }
        peer.say(id, Message::Grant(grant(window + 1, 64 << 20, vec![part])));
    }
    let fault = peer.given_up().expect("it is told");
    assert!(
        is_protocol(&fault) && fault.text.contains("credit"),
        "{fault:?}"
    );
    drop(peer);

    // An operation that waits for its turn, and messages for it that nobody takes.
    let names = world.make("export/names");
    for number in 0..3000 {
        fs::write(names.join(number.to_string()), "").unwrap();
    }
    let mut peer = Hostile::connect(daemon.address());
    for _ in 0..4 {
        let id = TransferId::random();
        peer.say(id, list("names"));
        // It has its turn, and keeps it: there is more than it can say for this.
        peer.say(id, credit(1, 0));
        peer.expect("lines", |_, message| {
            matches!(message, Message::Listing(_)).then_some(())
        });
    }
    let waiting = TransferId::random();
    peer.say(waiting, list("names"));
    peer.write(&bytes_of(waiting, credit(0, 0)).repeat(20_000));
    let fault = peer.given_up().expect("it is told");
    assert!(
        is_protocol(&fault) && fault.text.contains("credit"),
        "{fault:?}"
    );
    drop(peer);
    assert_unharmed(&world, &mut daemon, &before);
}

#[test]
fn grants_to_a_pushing_client_s_server_are_checked() {
    let (world, mut daemon, before) = field();
    let len = 4_u64 << 20;
    type Change = fn(&mut Grant);
    let cases: &[(&str, Change)] = &[
        ("another entry", |grant| grant.parts[0].entry = EntryId(9)),
        ("before its file", |grant| {
            grant.parts[0].file_offset = u64::MAX
        }),
        ("beyond its file", |grant| grant.parts[0].len = 1 << 40),
        ("not aligned", |grant| {
            grant.parts[0].file_offset = 5;
            grant.parts[0].len -= 5;
        }),
        ("not the next", |grant| {
            grant.parts[0].file_offset = 1 << 20;
            grant.parts[0].len -= 1 << 20;
            grant.parts[0].extents[0].start = 1 << 20;
        }),
        ("cut", |grant| grant.parts[0].len -= 1),
        ("beyond its region", |grant| grant.len = 1 << 20),
        ("far in its region", |grant| {
            grant.parts[0].region_offset = u64::MAX;
        }),
        ("no key", |grant| grant.keys.clear()),
        ("no address", |grant| grant.keys[0].address = u64::MAX),
        ("no part", |grant| grant.parts.clear()),
        ("two windows", |grant| {
            grant.parts.push(grant.parts[0].clone())
        }),
        ("data outside", |grant| {
            grant.parts[0].extents[0].end = 1 << 50
        }),
        ("data twice", |grant| {
            let extent = grant.parts[0].extents[0];
            grant.parts[0].extents.push(extent);
        }),
        ("a pack too large", |grant| grant.parts[0].packed = true),
    ];
    for (what, change) in cases {
        let mut peer = Hostile::connect(daemon.address());
        let id = TransferId::random();
        peer.say(id, push("in"));
        peer.say(id, page(vec![entry(0, Place::Root(0), file(len))]));
        peer.expect("a wish", |_, message| {
            matches!(message, Message::Want(_)).then_some(())
        });
        let mut region = grant(1, len, vec![part(0, len)]);
        change(&mut region);
        peer.say(id, Message::Grant(region));
        let fault = peer.given_up().expect("it is told");
        assert!(is_protocol(&fault), "{what}: {fault:?}");
        peer.cut();
    }
    assert!(!world.exists("export/in/root"));
    assert_unharmed(&world, &mut daemon, &before);
}

#[test]
fn data_connections_belong_to_their_session() {
    let (world, mut daemon, before) = field();
    let address = daemon.address();
    let (one, mut other) = (Hostile::connect(address), Hostile::connect(address));
    let mut refused = Vec::new();

    // A wrong key, another session's key, a session that is not there.
    for (session, key) in [
        (one.session(), [0; 32]),
        (one.session(), other.key()),
        (SessionId(u64::MAX), one.key()),
    ] {
        refused.push(Data::open_as(address, session, &key).unwrap().0);
    }
    // What was said for a good one, once more.
    let (good, opening) = Data::open_as(address, one.session(), &one.key()).unwrap();
    let mut stream = hostile::tcp(address, None);
    stream.write_all(&opening.hello).unwrap();
    stream.read_exact(&mut [0; 64]).unwrap();
    stream.write_all(&opening.proof).unwrap();
    assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
    // A hello of a later release, and half a hello.
    let mut strange = data::hello(one.session());
    strange[8] = 0xff;
    for bytes in [&strange[..], &strange[..20]] {
        let mut stream = hostile::tcp(address, None);
        stream.write_all(bytes).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
    }
    for mut data in refused {
        let _ = data.read(0, 1, 0, 1);
        assert!(data.is_closed());
    }
    assert_logged(&daemon, &["a data connection failed", "did not prove"]);

    // A region of one's own, read from elsewhere.
    let id = TransferId::random();
    other.say(id, pull("big"));
    other.say(id, credit(16, 64 << 20));
    other.expect("a page", |_, message| {
        matches!(message, Message::Manifest(_)).then_some(())
    });
    other.say(id, want(0));
    let granted: Grant = other.expect("a grant", |_, message| match message {
        Message::Grant(grant) => Some(grant),
        _ => None,
    });
    let key = granted.keys[0].key.0;
    let mut own = Data::open(&other).unwrap();
    own.read(0, key, 0, 1000).unwrap();
    assert_eq!(own.hear().unwrap().1, world.read("export/big")[..1000]);
    let mut strangers = good;
    strangers.read(0, key, 0, 1000).unwrap();
    assert!(strangers.is_refused().unwrap());
    for (request, (offset, len)) in (1..).zip([
        (0, granted.len + 1),
        (granted.len, 1),
        (u64::MAX, 2),
        (1, u64::MAX),
        (0, 1 << 63),
    ]) {
        own.read(request, key, offset, len).unwrap();
        assert!(own.is_refused().unwrap(), "{offset} {len}");
    }
    other.say(id, Message::Release(vec![granted.region]));
    assert!(other.is_answered());
    common::wait_for("the region is gone", || {
        let request = own.sequence;
        own.read(request, key, 0, 1000).unwrap();
        own.is_refused().unwrap().then_some(())
    });

    // Headers that lie end their connection, and no other.
    type Lie = fn(&mut Data) -> std::io::Result<()>;
    let lies: &[(&str, Lie)] = &[
        ("a wrong MAC", |data| {
            data.spoil = 1;
            data.read(0, 1, 0, 1)
        }),
        ("a wrong sequence", |data| {
            data.sequence = 1;
            data.read(0, 1, 0, 1)
        }),
        ("nothing asked for", |data| data.read(0, 1, 0, 0)),
        ("an unknown kind", |data| data.header(9, 0, 0, 0, [0; 4])),
        ("data that nobody asked for", |data| {
            data.header(2, 0, 1, 100, [0; 4])
        }),
        ("a refusal of nothing", |data| {
            data.header(3, 1, 0, 0, [0; 4])
        }),
        ("stray flags", |data| data.header(1, 1, 1, 1, [0, 1, 0, 1])),
        ("too many READs", |data| {
            (0..1000).try_for_each(|request| data.read(request, 1, 0, 1))
        }),
    ];
    for (what, lie) in lies {
        let mut data = Data::open(&other).unwrap();
        // It may be closed before all is said.
        let _ = lie(&mut data);
        // READs beyond the limit are answered or end the connection; the others always do.
        if *what != "too many READs" {
            assert!(data.is_closed(), "{what}");
        }
    }
    assert!(other.is_answered());
    // More connections than a session may have.
    let mut many: Vec<_> = (0..40).filter_map(|_| Data::open(&other).ok()).collect();
    let open = many
        .iter_mut()
        .filter_map(|data| {
            data.read(0, 1, 0, 1).ok()?;
            data.is_refused().ok()
        })
        .count();
    assert!(open <= 16, "{open} connections");
    drop((one, other, own, strangers, many));
    assert_unharmed(&world, &mut daemon, &before);
}

#[test]
fn floods_cost_their_sender_alone() {
    let (world, mut daemon, before) = field();
    let mut pings = Vec::new();
    for nonce in 0..200_000 {
        pings.extend(bytes_of(TransferId::NONE, Message::Ping { nonce }));
    }
    let mut pongs = Vec::new();
    for nonce in 0..200_000 {
        pongs.extend(bytes_of(TransferId::NONE, Message::Pong { nonce }));
    }
    let mut peers: Vec<_> = (0..4).map(|_| Hostile::connect(daemon.address())).collect();
    for peer in &mut peers {
        for flood in [&pings, &pongs] {
            peer.write(flood);
        }
    }
    assert_serves(&world, &daemon);
    let grown = daemon.anonymous_kib().saturating_sub(before.anonymous_kib);
    assert!(grown < 64 << 10, "memory grew by {grown} KiB");
    for peer in &mut peers {
        assert!(peer.is_answered());
    }
    drop(peers);

    // Transfers and operations, each asked for and left.
    let mut peer = Hostile::connect(daemon.address());
    for _ in 0..500 {
        peer.say(TransferId::random(), pull("small"));
    }
    let busy = peer.expect("a refusal", |_, message| match message {
        Message::Failed(fault) => Some(fault),
        _ => None,
    });
    assert_eq!(busy.code, FaultCode::Busy, "{busy:?}");
    assert_serves(&world, &daemon);
    peer.cut();
    // The same transfer twice.
    let mut peer = Hostile::connect(daemon.address());
    let id = TransferId::random();
    peer.say(id, pull("small"));
    peer.say(id, pull("small"));
    assert!(is_protocol(&peer.given_up().expect("it is told")));
    peer.cut();
    assert_unharmed(&world, &mut daemon, &before);
}

#[test]
fn memory_to_measure_with_is_taken_back() {
    let (world, mut daemon, before) = field();
    let bench = Message::Bench { region_bytes: 1 };
    let id = TransferId::random();
    let failed = |peer: &mut Hostile| {
        peer.expect("a failure", |_, message| match message {
            Message::Failed(fault) => Some(fault.code),
            _ => None,
        })
    };
    let mut old = Hostile::connect(daemon.address());
    old.say(id, bench.clone());
    assert_eq!(failed(&mut old), FaultCode::Protocol);
    let mut peer = Hostile::connect_at(daemon.address(), 3);
    let lent = |peer: &mut Hostile| {
        peer.say(id, bench.clone());
        peer.expect("a grant", |_, message| match message {
            Message::Grant(grant) => Some(grant),
            _ => None,
        })
    };
    let grant = lent(&mut peer);
    assert_eq!((grant.len, grant.keys.len(), grant.parts.len()), (1, 1, 0));
    // What it says of another region ends it, and the next is another one.
    peer.say(id, Message::Release(vec![RegionId(grant.region.0 + 1)]));
    assert_eq!(failed(&mut peer), FaultCode::Protocol);
    let next = lent(&mut peer);
    assert!(next.region != grant.region && next.keys != grant.keys);
    peer.say(id, Message::Release(vec![next.region]));
    let done = |_, message| matches!(message, Message::Done).then_some(());
    peer.expect("the end", done);
    // It goes and says nothing.
    lent(&mut peer);
    drop((peer, old));
    assert_unharmed(&world, &mut daemon, &before);
}
