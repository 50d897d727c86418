//! Hostile servers against the real command and against files that are open in a program: nothing
//! that was not proved is kept, nothing is written elsewhere, and the reason is told.

mod common;
mod hostile;

use std::time::Duration;

use common::{World, tree};
use hostile::Hostile;
use hostile::make::{digests, end, entry, file, grant, more, page, part, within};
use hostile::server::HostileServer;
use rdcp::ids::{EntryId, RemoteKey};
use rdcp::limits::PAGES_CREDIT_DEFAULT;
use rdcp::manifest::{EntryKind, Item, Place};
use rdcp::units::{ByteRange, Timestamp};
use rdcp::wire::Message;
use rdcp::wire::message::{
    Carried, ChunkDigest, Grant, Listed, ListedKind, Outcome, Reason, Removal, Removed, RemovedKind,
};
use rdcp::{
    ChunkSize, Client, ClientOptions, Error, ErrorKind, Fault, FaultCode, RemoteFile, TransferId,
    UnknownHost,
};

const LEN: usize = 4 << 20;

fn content() -> Vec<u8> {
    tree::Random::new(3).bytes(LEN)
}

/// A pull from a server that tells one file, and once it is wanted does as `script` says.
fn pull_of_one_file(
    world: &World,
    len: usize,
    script: impl Fn(&mut Hostile, TransferId) + Send + Sync + 'static,
) -> common::Finished {
    let server = HostileServer::start(content(), move |peer| {
        let Some((id, _)) = peer.opened() else { return };
        peer.say(id, page(vec![entry(0, Place::Root(0), file(len as u64))]));
        if peer.wanted() {
            script(peer, id);
        }
    });
    let url = common::daemon::url(server.address(), "data/file");
    world
        .rdcp("pull")
        .args(["--timeout", "3s"])
        .args([url, "copy".into()])
        .run()
}

/// Whatever a run left in the directory that it was run in.
#[track_caller]
fn assert_nothing_left(world: &World, what: &str) {
    let left = tree::listing(&world.path("local"));
    assert!(left.is_empty(), "{what}: {left:?}");
}

type Change = fn(&mut Grant);

/// A grant of all of a file of [`LEN`] bytes, falsified.
const FALSE_WINDOWS: &[(&str, Change)] = &[
    ("another entry", |grant| grant.parts[0].entry = EntryId(9)),
    ("before its file", |grant| {
        grant.parts[0].file_offset = u64::MAX;
    }),
    ("not aligned", |grant| {
        grant.parts[0].file_offset = 5;
        grant.parts[0].len -= 5;
    }),
    ("not the next", |grant| {
        grant.parts[0].file_offset = 1 << 20;
        grant.parts[0].len -= 1 << 20;
        grant.parts[0].extents[0].start = 1 << 20;
    }),
    ("beyond its file", |grant| grant.parts[0].len = 1 << 40),
    ("nothing", |grant| grant.parts[0].len = 0),
    ("cut", |grant| grant.parts[0].len -= 1),
    ("beyond its region", |grant| grant.len = 1 << 20),
    ("far in its region", |grant| {
        grant.parts[0].region_offset = u64::MAX;
    }),
    ("no key", |grant| grant.keys.clear()),
    ("no address", |grant| grant.keys[0].address = u64::MAX),
    ("no part", |grant| grant.parts.clear()),
    ("two windows", |grant| {
        grant.parts.push(grant.parts[0].clone());
    }),
    ("data before", |grant| {
        grant.parts[0].file_offset = 1 << 20;
        grant.parts[0].len -= 1 << 20;
    }),
    ("data behind", |grant| {
        grant.parts[0].extents[0].end = 1 << 50
    }),
    ("data twice", |grant| {
        let extent = grant.parts[0].extents[0];
        grant.parts[0].extents.push(extent);
    }),
    ("a pack", |grant| grant.parts[0].packed = true),
    ("not last", |grant| grant.parts[0].last = false),
];

#[test]
fn grants_that_do_not_fit_end_a_pull() {
    let world = World::new();
    for &(what, change) in FALSE_WINDOWS {
        let done = pull_of_one_file(&world, LEN, move |peer, id| {
            let len = LEN as u64;
            let mut region = grant(1, len, vec![part(0, len)]);
            change(&mut region);
            peer.say(
                id,
                Message::Digests(digests(0, ChunkSize::DEFAULT, &content())),
            );
            peer.say(id, Message::Grant(region));
        });
        assert_eq!(done.status, 3, "{what}: {}", done.stderr);
        assert!(
            done.stderr.contains("protocol") || done.stderr.contains("peer"),
            "{what}: {}",
            done.stderr
        );
        assert_nothing_left(&world, what);
    }
    let twice = pull_of_one_file(&world, LEN, |peer, id| {
        let len = LEN as u64;
        let region = || Message::Grant(grant(1, len, vec![part(0, len)]));
        peer.say(id, region());
        peer.say(id, region());
    });
    twice.expect(3);
    assert_nothing_left(&world, "a region twice");
}

#[test]
fn bytes_that_are_not_proved_are_not_kept() {
    let world = World::new();
    let len = LEN as u64;
    // The wrong key: the server itself refuses to serve what it granted.
    let done = pull_of_one_file(&world, LEN, move |peer, id| {
        let mut region = grant(1, len, vec![part(0, len)]);
        region.keys[0].key = RemoteKey(1);
        peer.say(
            id,
            Message::Digests(digests(0, ChunkSize::DEFAULT, &content())),
        );
        peer.say(id, Message::Grant(region));
    });
    done.failed();
    assert_nothing_left(&world, "a wrong key");

    // Digests that never come, or only some of them.
    for told in [0, 2] {
        let done = pull_of_one_file(&world, LEN, move |peer, id| {
            let mut proofs = digests(0, ChunkSize::DEFAULT, &content());
            proofs.truncate(told);
            peer.say(id, Message::Digests(proofs));
            peer.say(id, Message::Grant(grant(1, len, vec![part(0, len)])));
        });
        done.expect(11);
        assert_nothing_left(&world, "no digests");
    }

    // Digests that are wrong, and stay so when asked again.
    let done = pull_of_one_file(&world, LEN, move |peer, id| {
        let mut proofs = digests(0, ChunkSize::DEFAULT, &content());
        proofs[1].value[0] ^= 1;
        let wrong = proofs[1];
        peer.say(id, Message::Digests(proofs));
        peer.say(id, Message::Grant(grant(1, len, vec![part(0, len)])));
        loop {
            let again = peer.expect("a recheck", |_, message| match message {
                Message::Recheck { chunk, .. } => Some(Some(chunk)),
                Message::Failed(_) | Message::Finish(_) => Some(None),
                _ => None,
            });
            let Some(chunk) = again else { break };
            assert_eq!(chunk, 1);
            peer.say(id, Message::Digests(vec![wrong]));
        }
        peer.say(id, Message::Finished);
    });
    done.expect(6);
    assert_nothing_left(&world, "wrong digests");

    // A digest of a chunk that the file does not have.
    let done = pull_of_one_file(&world, LEN, move |peer, id| {
        peer.say(id, Message::Grant(grant(1, len, vec![part(0, len)])));
        let stray = ChunkDigest {
            entry: EntryId(0),
            chunk: u64::MAX,
            value: [0; 32],
        };
        peer.say(id, Message::Digests(vec![stray]));
    });
    done.expect(3);
    assert_nothing_left(&world, "a stray digest");

    // A small file in a pack, with the wrong digest.
    let done = pull_of_one_file(&world, 100, |peer, id| {
        let wrong = ChunkDigest {
            entry: EntryId(0),
            chunk: 0,
            value: [9; 32],
        };
        let mut small = part(0, 100);
        small.packed = true;
        peer.say(id, Message::Digests(vec![wrong]));
        peer.say(id, Message::Grant(grant(1, 100, vec![small.clone()])));
        // As often as it is read again.
        for _ in 0..20 {
            let over = peer.expect("what becomes of it", |_, message| match message {
                Message::Recheck { .. } => Some(false),
                Message::Failed(_) | Message::Finish(_) => Some(true),
                _ => None,
            });
            if over {
                break;
            }
            peer.say(id, Message::Digests(vec![wrong]));
        }
        peer.say(id, Message::Finished);
    });
    done.expect(6);
    assert_nothing_left(&world, "a wrong digest in a pack");
}

#[test]
fn manifests_that_lie_end_a_pull() {
    let world = World::new();
    let outside = world.make("outside");
    let target = outside.clone().into_os_string().into_encoded_bytes();
    let top = || entry(0, Place::Root(0), EntryKind::Directory);
    let cases: Vec<(&str, Vec<Item>)> = vec![
        ("no such root", vec![entry(0, Place::Root(9), file(1))]),
        ("in itself", vec![entry(5, within(5, b"x"), file(1))]),
        (
            "in nothing",
            vec![top(), entry(1, within(9, b"x"), file(1))],
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
            "in a link",
            vec![
                top(),
                entry(1, within(0, b"l"), EntryKind::Symlink(target.clone())),
                entry(2, within(1, b"evil"), file(1)),
            ],
        ),
        (
            "a link in a directory's way",
            vec![
                top(),
                entry(1, within(0, b"l"), EntryKind::Symlink(target)),
                entry(2, within(0, b"l"), EntryKind::Directory),
                entry(3, within(2, b"evil"), file(0)),
                end(2),
                end(0),
            ],
        ),
        (
            "a file as long as can be",
            vec![entry(0, Place::Root(0), file(u64::MAX))],
        ),
        (
            "a link to nothing",
            vec![
                top(),
                entry(1, within(0, b"x"), EntryKind::HardLink(EntryId(77))),
            ],
        ),
    ];
    for (what, items) in cases {
        let server = HostileServer::start(Vec::new(), move |peer| {
            let Some((id, _)) = peer.opened() else { return };
            peer.say(id, page(items.clone()));
            // Wanted or not, nothing is given.
            peer.wanted();
        });
        let url = common::daemon::url(server.address(), "data/tree");
        let done = world
            .rdcp("pull")
            .args(["-a", "--timeout", "3s"])
            .args([url, ".".into()])
            .run()
            .failed();
        assert_ne!(done.status, 6, "{what}: {}", done.stderr);
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "{what}");
        let _ = std::fs::remove_dir_all(world.path("local"));
        world.make("local");
    }
}

#[test]
fn manifests_without_an_end_end_a_pull() {
    let world = World::new();
    type PageOf = fn(u64) -> Vec<Item>;
    let cases: &[(&str, PageOf)] = &[
        // Each holds its credit, as its file never comes.
        ("credit", |number| {
            let name = format!("{number}");
            vec![match number {
                0 => entry(0, Place::Root(0), EntryKind::Directory),
                _ => entry(number, within(0, name.as_bytes()), file(1)),
            }]
        }),
        // None holds any.
        ("nothing", |_| Vec::new()),
    ];
    for &(says, items) in cases {
        let server = HostileServer::start(Vec::new(), move |peer| {
            let Some((id, _)) = peer.opened() else { return };
            for number in 0..1000 * u64::from(PAGES_CREDIT_DEFAULT) {
                peer.say(id, more(items(number)));
            }
        });
        let url = common::daemon::url(server.address(), "data/tree");
        let done = world.rdcp("pull").arg("-r").args([url, ".".into()]).run();
        assert_eq!(done.status, 3, "{says}: {}", done.stderr);
        done.says(says);
    }
}

#[test]
fn servers_that_stop_or_talk_out_of_turn_are_left() {
    let world = World::new();
    type Script = fn(&mut Hostile, TransferId);
    let cases: &[(&str, i32, Script)] = &[
        ("silence", 11, |_, _| {}),
        ("finished too early", 3, |peer, id| {
            peer.say(id, Message::Finished);
        }),
        ("a wish of a receiver", 3, |peer, id| {
            peer.say(id, hostile::make::want(0));
        }),
        ("an answer that nobody asked for", 3, |peer, id| {
            peer.say(id, Message::Closed(vec![(EntryId(0), true)]));
        }),
        ("an operation's end", 3, |peer, id| {
            peer.say(id, Message::Done)
        }),
        ("a second greeting", 3, |peer, _| {
            let software = "hostile".to_owned();
            peer.say(
                TransferId::NONE,
                Message::Hello(rdcp::wire::message::Hello {
                    level_min: 1,
                    level_max: 1,
                    software,
                }),
            );
        }),
        ("noise", 3, |peer, _| peer.write(&[0xff; 3000])),
        ("cancelled", 14, |peer, id| {
            let fault = Fault::new(FaultCode::Cancelled, "no more of this");
            peer.say(id, Message::Failed(fault));
        }),
        ("a goodbye", 14, |peer, _| {
            let fault = Fault::new(FaultCode::Cancelled, "no more of this");
            peer.say(TransferId::NONE, Message::Goodbye(fault));
        }),
        ("busy", 14, |peer, id| {
            let text = "busy\u{1b}[2J\r\nrdcp: all is well";
            peer.say(id, Message::Failed(Fault::new(FaultCode::Busy, text)));
        }),
    ];
    for &(what, status, script) in cases {
        let done = pull_of_one_file(&world, LEN, script);
        assert_eq!(done.status, status, "{what}: {}", done.stderr);
        // What the server said is said to be from there.
        if status == 14 {
            assert!(
                done.stderr.contains("127.0.0.1:"),
                "{what}: {}",
                done.stderr
            );
        }
        assert!(!done.stderr.contains('\u{1b}'), "{what}: {:?}", done.stderr);
        assert!(
            !done.stderr.contains("\nrdcp: all is well"),
            "{what}: {:?}",
            done.stderr
        );
        assert_nothing_left(&world, what);
    }
}

/// Opens a file at a server that, once something of it is wanted, does as `script` says.
async fn opened(
    world: &World,
    len: usize,
    script: impl Fn(&mut Hostile, TransferId) + Send + Sync + 'static,
) -> (Client, RemoteFile) {
    let server = HostileServer::start(content(), move |peer| {
        let Some((id, _)) = peer.opened() else { return };
        peer.say(id, page(vec![entry(0, Place::Root(0), file(len as u64))]));
        while peer.wanted() {
            script(peer, id);
        }
    });
    let mut options = ClientOptions::default();
    options.known_hosts = Some(world.path("known_hosts"));
    options.unknown_host = UnknownHost::AcceptNew;
    options.stall_timeout = Duration::from_secs(2);
    let port = server.address().port();
    let client = Client::connect("127.0.0.1", port, options).await.unwrap();
    let file = client.open(&hostile::make::remote("file")).await.unwrap();
    (client, file)
}

async fn read(file: &RemoteFile) -> Result<usize, Error> {
    file.read_at(&mut vec![0; LEN], 0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_that_do_not_fit_end_an_open_file() {
    let world = World::new();
    for &(what, change) in FALSE_WINDOWS {
        let (_client, file) = opened(&world, LEN, move |peer, id| {
            let len = LEN as u64;
            let mut region = grant(1, len, vec![part(0, len)]);
            change(&mut region);
            let proofs = digests(0, ChunkSize::MIN, &content());
            peer.say(id, Message::Digests(proofs));
            peer.say(id, Message::Grant(region));
        })
        .await;
        let error = read(&file).await.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{what}: {error}");
        assert!(error.to_string().contains("protocol"), "{what}: {error}");
        // The reason stays the reason.
        let again = read(&file).await.expect_err(what);
        assert_eq!(again.to_string(), error.to_string());
    }
    // What was granted once is not taken twice, and nothing that was not asked for.
    let (_client, file) = opened(&world, LEN, |peer, id| {
        let len = LEN as u64;
        for region in 1..10 {
            peer.say(id, Message::Grant(grant(region, len, vec![part(0, len)])));
        }
    })
    .await;
    let error = read(&file).await.expect_err("a grant twice");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_an_open_file_are_proved_or_fail() {
    let world = World::new();
    let len = LEN as u64;
    // An honest one, to see that the hostile server can serve at all.
    let (_client, file) = opened(&world, LEN, move |peer, id| {
        peer.say(id, Message::Digests(digests(0, ChunkSize::MIN, &content())));
        peer.say(id, Message::Grant(grant(1, len, vec![part(0, len)])));
    })
    .await;
    let mut bytes = vec![0; LEN];
    assert_eq!(file.read_at(&mut bytes, 0).await.unwrap(), LEN);
    assert!(bytes == content());

    // Digests that never come.
    let (_client, file) = opened(&world, LEN, move |peer, id| {
        peer.say(id, Message::Grant(grant(1, len, vec![part(0, len)])));
    })
    .await;
    let error = read(&file).await.expect_err("no digests");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");

    // No grant at all.
    let (_client, file) = opened(&world, LEN, |_, _| {}).await;
    let error = read(&file).await.expect_err("no grant");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");

    // A wrong key.
    let (_client, file) = opened(&world, LEN, move |peer, id| {
        let mut region = grant(1, len, vec![part(0, len)]);
        region.keys[0].key = RemoteKey(1);
        peer.say(id, Message::Grant(region));
    })
    .await;
    let error = read(&file).await.expect_err("a wrong key");
    assert_eq!(error.kind(), ErrorKind::Storage, "{error}");

    // A digest that is wrong and stays so: told afresh as often as it is asked for.
    let (_client, file) = opened(&world, LEN, move |peer, id| {
        let mut proofs = digests(0, ChunkSize::MIN, &content());
        proofs[7].value[0] ^= 1;
        let wrong = proofs[7];
        peer.say(id, Message::Digests(proofs));
        peer.say(id, Message::Grant(grant(1, len, vec![part(0, len)])));
        for _ in 0..rdcp::limits::REPAIRS_MAX {
            peer.expect("a recheck", |_, message| {
                matches!(message, Message::Recheck { chunk: 7, .. }).then_some(())
            });
            peer.say(id, Message::Digests(vec![wrong]));
        }
    })
    .await;
    let error = read(&file).await.expect_err("a wrong digest");
    assert_eq!(error.kind(), ErrorKind::Integrity, "{error}");

    // Another version of the file than was granted first.
    let (_client, file) = opened(&world, LEN, move |peer, id| {
        peer.say(id, Message::Digests(digests(0, ChunkSize::MIN, &content())));
        let (mut first, mut second) = (part(0, len), part(0, len));
        (first.len, first.last) = (1 << 20, false);
        first.extents = vec![ByteRange {
            start: 0,
            end: 1 << 20,
        }];
        second.file_offset = 1 << 20;
        second.len = len - (1 << 20);
        second.extents[0].start = 1 << 20;
        second.version.0[0] ^= 1;
        peer.say(id, Message::Grant(grant(1, 1 << 20, vec![first])));
        peer.say(id, Message::Grant(grant(2, second.len, vec![second])));
    })
    .await;
    let error = read(&file).await.expect_err("another version");
    assert_eq!(error.kind(), ErrorKind::SourceChanged, "{error}");
}

#[test]
fn a_server_of_an_older_level_is_not_asked_for_its_status() {
    let world = World::new();
    let server = HostileServer::start(content(), |peer| {
        // Whatever it hears beyond its level it would take for a breach.
        while let hostile::Heard::Said(_, message) = peer.hear(Duration::from_secs(30)) {
            assert!(!matches!(message, Message::StatusQuery(_)));
        }
    });
    let host = format!("rdcp://{}", server.address());
    let done = world.rdcp("status").arg(host).run().expect(3);
    done.says("speaks level 1, and its status can be asked for from level 3 on")
        .says("hint: install a newer rdcpd there");
}

#[test]
fn lines_about_what_was_not_asked_for_are_not_shown() {
    let world = World::new();
    let paths: &[&[u8]] = &[
        b"../../x",
        b"/etc/passwd",
        b"a/../../x",
        b".",
        b"a//b",
        b"a/",
    ];
    for &path in paths {
        let server = HostileServer::start(Vec::new(), move |peer| {
            let id = peer.expect("a request", |id, message| {
                matches!(message, Message::Operate(_)).then_some(id)
            });
            let line = Listed {
                path: path.to_vec(),
                kind: ListedKind::File,
                len: 1,
                mode: 0o644,
                uid: 0,
                gid: 0,
                mtime: Timestamp::default(),
                digest: Some([1; 32]),
                fault: None,
                left: None,
            };
            peer.say(id, Message::Listing(vec![line]));
            peer.say(id, Message::Done);
        });
        let url = common::daemon::url(server.address(), "data/d");
        for command in ["ls", "sum"] {
            let done = world.rdcp(command).arg("-r").arg(&url).run();
            let done = done.expect(3).says("was not asked for").says("127.0.0.1:");
            assert!(done.stdout.is_empty(), "{:?}", done.stdout);
        }
        // Of one thing nothing has a path.
        world.rdcp("stat").arg(&url).run().expect(3);
    }
}

#[test]
fn a_receiver_that_wants_data_in_a_dry_run_or_tells_of_deletions_unasked_is_left() {
    let world = World::new();
    tree::random_file(&world.path("local/file"), 100_000, 1);
    let deleted = |outcome| {
        let removal = Removal {
            root: 0,
            path: b"../../\x1b[2J\nx".to_vec(),
            kind: RemovedKind::File,
            outcome,
        };
        Message::Deleted {
            comparing: false,
            removals: vec![removal],
        }
    };
    let settled = |outcome| Message::Settled(vec![(EntryId(0), outcome)]);
    let cases: [(&str, &[&str], i32, Vec<Message>); 6] = [
        ("a want", &["-n"], 3, vec![hostile::make::want(0)]),
        ("a lie", &["-n"], 3, vec![settled(Outcome::Unchanged)]),
        (
            "a plan",
            &[],
            3,
            vec![settled(Outcome::Planned(Reason::New))],
        ),
        ("a deletion", &[], 3, vec![deleted(Removed::Gone)]),
        (
            "an honest plan",
            &["-n"],
            0,
            vec![
                settled(Outcome::Planned(Reason::Newer)),
                Message::Finish(Carried::default()),
            ],
        ),
        (
            "a path that acts on a terminal",
            &["-r", "-v", "--delete"],
            0,
            vec![
                deleted(Removed::Gone),
                settled(Outcome::Unchanged),
                Message::Finish(Carried::default()),
            ],
        ),
    ];
    for (what, options, status, messages) in cases {
        let server = HostileServer::start(content(), move |peer| {
            let Some((id, _)) = peer.opened() else { return };
            peer.say(id, hostile::make::credit(4, 64 << 20));
            peer.expect("a page", |_, message| {
                matches!(message, Message::Manifest(_)).then_some(())
            });
            for message in &messages {
                peer.say(id, message.clone());
            }
        });
        let url = common::daemon::url(server.address(), "data/file");
        let push = world.rdcp("push").args(options).arg("file").arg(url).run();
        assert_eq!(push.status, status, "{what}: {}", push.stderr);
        assert!(!push.stderr.contains('\u{1b}'), "{what}: {}", push.stderr);
        match what {
            "an honest plan" => {
                assert_eq!(push.text(), "copy    file  (the source is newer)\n");
            }
            _ => assert_eq!(push.text(), "", "{what}"),
        }
    }
}
