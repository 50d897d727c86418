//! Attacks that have no better place among the tests of what they attack. `tests/hostile/README.md` has
//! the whole list of what an attacker may try, and which test guards it.

mod common;
mod hostile;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::holdings::{Holdings, assert_serves};
use common::{DEADLINE, Daemon, Finished, World, is_root, tree};
use hostile::data::Data;
use hostile::make::{
    credit, digests, end, entry, file, grant, list, page, part, pull, push, want, within,
};
use hostile::{Heard, Hostile, is_protocol};
use rdcp::manifest::{Entry, EntryKind, Item, Metadata, Place};
use rdcp::wire::message::{Grant, Hello, Wanted};
use rdcp::wire::{Envelope, Message, encode};
use rdcp::{ChunkSize, Fault, FaultCode, TransferId};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

/// How often a directory and a link change places, in all.
const SWAPS: u64 = 100_000;
/// Handshakes that are begun, and how many of them at once.
const HALF_OPEN: usize = 10_000;
const HALF_OPEN_AT_ONCE: usize = 700;
/// The flood's address, which the real clients don't have.
const ELSEWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 7));

fn bytes_of(transfer: TransferId, message: Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&Envelope { transfer, message }, &mut bytes).unwrap();
    bytes
}

/// It may fail, and not by a defect or a signal.
#[track_caller]
fn assert_no_defect(done: &Finished) {
    let fails_well = done.status == 0 || (3..15).contains(&done.status);
    assert!(
        fails_well,
        "{}: {}\n{}",
        done.shown, done.status, done.stderr
    );
}

/// Swaps two names until told to stop; how often that was done.
fn swap(one: &Path, other: &Path, stop: &AtomicBool, swaps: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        // Either may be gone for a moment, while a run removes it or puts it there.
        if renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok() {
            swaps.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs `work` while the two names are swapped, as often as it takes for half of all swaps.
fn while_swapped(one: &Path, other: &Path, mut work: impl FnMut(u64)) {
    let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // However `work` ends, the swapping ends too, or a failure would never be told.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        scope.spawn(|| swap(one, other, &stop, &swaps));
        for round in 0.. {
            work(round);
            if round >= 3 && swaps.load(Ordering::Relaxed) >= SWAPS / 2 {
                return;
            }
        }
    });
}

/// `outside`, with the names that are in the trees that are copied.
fn outside(world: &World) -> PathBuf {
    for number in 0..20 {
        world.write(format!("outside/file{number}"), "SECRET");
    }
    world.write("outside/sub/inner", "SECRET");
    world.path("outside")
}

#[track_caller]
fn assert_untouched(outside: &Path) {
    assert_eq!(tree::listing(outside).len(), 22);
    for path in tree::walk(outside) {
        if path.is_file() {
            assert_eq!(fs::read(&path).unwrap(), b"SECRET", "{}", path.display());
        }
    }
}

fn make_tree(world: &World, top: &str) {
    for number in 0..20 {
        world.write(format!("{top}/file{number}"), "harmless");
    }
    world.write(format!("{top}/sub/inner"), "harmless");
}

/// Nothing below has what only `outside` has.
#[track_caller]
fn assert_nothing_stolen(copy: &Path) {
    if copy.symlink_metadata().is_err() {
        return;
    }
    for path in tree::walk(copy) {
        if path.symlink_metadata().is_ok_and(|found| found.is_file()) {
            assert_ne!(fs::read(&path).unwrap(), b"SECRET", "{}", path.display());
        }
    }
}

#[test]
fn a_directory_that_is_swapped_for_a_link_leads_nowhere() {
    let world = World::new();
    let outside = outside(&world);
    make_tree(&world, "export/dir");
    make_tree(&world, "local/tree");
    symlink("../outside", world.path("export/link")).unwrap();
    let mut daemon = world.serve();
    let dir = |rest: &str| daemon.url(format!("data/dir{rest}"));
    while_swapped(
        &world.path("export/dir"),
        &world.path("export/link"),
        |round| {
            let got = format!("got{round}");
            let commands: [&[OsString]; 8] = [
                &["pull".into(), "-r".into(), dir("/"), got.clone().into()],
                &["pull".into(), dir("/file1"), format!("{got}f").into()],
                &["push".into(), "-r".into(), "tree/".into(), dir("")],
                &["push".into(), "tree/file2".into(), dir("/file2")],
                &["sum".into(), "-r".into(), dir("")],
                &["ls".into(), "-r".into(), dir("")],
                &["rm".into(), dir("/file3")],
                &["mkdir".into(), "-p".into(), dir(&format!("/made/{round}"))],
            ];
            for words in commands {
                let command = words[0].to_str().unwrap();
                let push = ["--no-fsync"];
                let options = &push[..usize::from(command == "push")];
                let done = world.rdcp(command).args(options).args(&words[1..]).run();
                assert_no_defect(&done);
                if command == "sum" {
                    let secret = blake3::hash(b"SECRET").to_hex();
                    assert!(!done.text().contains(secret.as_str()), "{}", done.text());
                }
            }
            assert_nothing_stolen(&world.path("local").join(&got));
            assert_nothing_stolen(&world.path("local").join(format!("{got}f")));
            assert_untouched(&outside);
        },
    );
    daemon.assert_alive();
}

#[test]
fn a_pull_into_a_directory_that_is_swapped_stays_inside() {
    let world = World::new();
    let outside = outside(&world);
    make_tree(&world, "export/tree/dir");
    make_tree(&world, "local/dst/dir");
    symlink("../../outside", world.path("local/dst/link")).unwrap();
    let mut daemon = world.serve();
    let (one, other) = (world.path("local/dst/dir"), world.path("local/dst/link"));
    while_swapped(&one, &other, |round| {
        // What is new each time is written each time.
        for number in 0..20 {
            world.write(
                format!("export/tree/dir/file{number}"),
                format!("new {round}"),
            );
        }
        let pull = world.rdcp("pull").args(["-r", "--no-fsync"]);
        let done = pull.args([daemon.url("data/tree/"), "dst/".into()]).run();
        assert_no_defect(&done);
        assert_untouched(&outside);
        let clean = world.rdcp("clean").args(["-r", "dst"]).run();
        assert_ne!(clean.status, 1, "{}", clean.stderr);
        assert_untouched(&outside);
    });
    daemon.assert_alive();
}

#[test]
fn paths_that_are_too_long_are_refused() {
    let world = World::new();
    let mut daemon = world.serve();
    let before = Holdings::after_warming_up(&world, &daemon);
    // A path as long as may be, and one byte more, which no honest encoder says.
    let longest = "a/".repeat(2047) + "b";
    let id = TransferId::random();
    let mut bytes = bytes_of(id, list(&longest));
    let at = bytes
        .windows(4)
        .position(|window| window == b"a/a/")
        .unwrap();
    let mut peer = Hostile::connect(daemon.address());
    peer.write(&bytes);
    let fault = peer.given_up().expect("it is told");
    assert!(!is_protocol(&fault), "{fault:?}");
    peer.cut();
    let count = u16::from_le_bytes([bytes[at - 2], bytes[at - 1]]);
    assert_eq!(usize::from(count), longest.len());
    bytes[at - 2..at].copy_from_slice(&4096_u16.to_le_bytes());
    bytes.insert(at, b'a');
    let body = u32::from_le_bytes(bytes[..4].try_into().unwrap()) + 1;
    bytes[..4].copy_from_slice(&body.to_le_bytes());
    let mut peer = Hostile::connect(daemon.address());
    peer.write(&bytes);
    let fault = peer.given_up().expect("it is told");
    assert!(is_protocol(&fault), "{fault:?}");
    peer.cut();
    // A component longer than any file system has.
    for command in ["ls", "stat", "sum", "rm", "mkdir"] {
        let url = daemon.url(format!("data/{}", "n".repeat(3000)));
        let done = world.rdcp(command).arg(url).run();
        assert!(![0, 1].contains(&done.status), "{}", done.stderr);
    }
    assert_serves(&world, &daemon);
    before.assert_again(&daemon);
    daemon.assert_alive();
}

/// The file that a pull of `path` tells, and the grant of all of it.
fn granted(peer: &mut Hostile, id: TransferId, path: &str) -> Grant {
    peer.say(id, pull(path));
    peer.say(id, credit(16, 64 << 20));
    peer.expect("a page", |of, message| {
        (of == id && matches!(message, Message::Manifest(_))).then_some(())
    });
    peer.say(id, want(0));
    peer.expect("a grant", |of, message| match message {
        Message::Grant(grant) if of == id => Some(grant),
        _ => None,
    })
}

#[test]
fn handles_are_good_in_their_own_transfer_alone() {
    let world = World::new();
    tree::random_file(&world.path("export/one"), 2 << 20, 1);
    tree::random_file(&world.path("export/two"), 2 << 20, 2);
    let mut daemon = world.serve();
    let before = Holdings::after_warming_up(&world, &daemon);
    for what in ["a wish", "a release", "a recheck"] {
        let mut peer = Hostile::connect(daemon.address());
        let (first, second) = (TransferId::random(), TransferId::random());
        let one = granted(&mut peer, first, "one");
        // The second transfer was told nothing yet.
        peer.say(second, pull("two"));
        let entry = one.parts[0].entry;
        peer.say(
            second,
            match what {
                "a wish" => want(entry.0),
                "a release" => Message::Release(vec![one.region]),
                _ => Message::Recheck { entry, chunk: 0 },
            },
        );
        let fault = peer.given_up().expect("it is told");
        assert!(is_protocol(&fault), "{what}: {fault:?}");
        peer.cut();
    }
    // The first goes on undisturbed while another transfer is given up.
    let mut peer = Hostile::connect(daemon.address());
    let (first, second) = (TransferId::random(), TransferId::random());
    let one = granted(&mut peer, first, "one");
    peer.say(second, pull("two"));
    peer.say(second, Message::Release(vec![one.region]));
    let mut data = Data::open(&peer).unwrap();
    data.read(0, one.keys[0].key.0, 0, 1000).unwrap();
    assert_eq!(data.hear().unwrap().1, world.read("export/one")[..1000]);
    drop((peer, data));
    assert_serves(&world, &daemon);
    before.assert_again(&daemon);
    daemon.assert_alive();
}

#[test]
fn digests_take_the_right_to_read() {
    let world = World::new();
    world.write("export/file", "content");
    world.write("local/file", "content");
    let made = world
        .bare("keygen")
        .args(["--identity", "writer.pem"])
        .run()
        .ok()
        .text();
    let key = made
        .split_whitespace()
        .find(|word| word.starts_with("SHA256:"));
    let list = format!(
        "rights=\"list,create,overwrite\" {}\n",
        key.expect("it is told")
    );
    let listed = world.write("authorized_keys", list);
    fs::set_permissions(&listed, fs::Permissions::from_mode(0o600)).unwrap();
    let mut export = OsString::from("data=");
    export.push(world.path("export"));
    export.push(":rw");
    let mut daemon = world.serve_as(&[
        "--authorized-keys".into(),
        listed.into(),
        "--export".into(),
        export,
        "--listen".into(),
        "127.0.0.1:0".into(),
    ]);
    let url = || daemon.url("data/file");
    let digest = blake3::hash(b"content").to_hex();
    let attempts: [&[OsString]; 5] = [
        &["sum".into(), url()],
        &["sum".into(), "--hash".into(), "sha256".into(), url()],
        &["verify".into(), "file".into(), url()],
        &["push".into(), "-c".into(), "file".into(), url()],
        &["pull".into(), url(), "copy".into()],
    ];
    for words in attempts {
        let command = world.rdcp(words[0].to_str().unwrap()).arg("--identity");
        let done = command.arg("writer.pem").args(&words[1..]).run();
        let done = done.expect(4);
        assert!(!done.text().contains(digest.as_str()), "{}", done.text());
    }
    assert!(!world.exists("local/copy"));
    daemon.assert_alive();
}

#[test]
fn a_session_can_neither_be_chosen_nor_taken_over() {
    let world = World::new();
    let mut daemon = world.serve();
    let before = Holdings::after_warming_up(&world, &daemon);
    let address = daemon.address();
    let (mut victim, attacker) = (Hostile::connect(address), Hostile::connect(address));
    assert_ne!(victim.session(), attacker.session());
    // The attacker's own secret, made as if its session were the victim's.
    let forged = attacker.key_for(victim.session());
    assert_ne!(forged, victim.key());
    let (mut data, _) = Data::open_as(address, victim.session(), &forged).unwrap();
    let _ = data.read(0, 1, 0, 1);
    assert!(data.is_closed());
    // A second greeting does not change what the session is called.
    let mut peer = Hostile::connect(address);
    let hello = Message::Hello(Hello {
        level_min: 1,
        level_max: 1,
        software: "again".to_owned(),
    });
    peer.say(TransferId::NONE, hello);
    assert!(is_protocol(&peer.given_up().expect("it is told")));
    assert!(victim.is_answered());
    drop((victim, attacker, data, peer));
    assert_serves(&world, &daemon);
    before.assert_again(&daemon);
    daemon.assert_alive();
}

#[test]
fn nothing_is_said_in_clear() {
    let world = World::new();
    let mut daemon = world.serve();
    let hello = bytes_of(
        TransferId::NONE,
        Message::Hello(Hello {
            level_min: 1,
            level_max: 3,
            software: "in clear".to_owned(),
        }),
    );
    let openings = [
        hello,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(),
        vec![0; 512],
    ];
    for opening in openings {
        let mut stream = hostile::tcp(daemon.address(), None);
        stream.write_all(&opening).unwrap();
        let mut said = Vec::new();
        // An error is a reset, as not all that was said was read.
        let _ = stream.read_to_end(&mut said);
        assert!(said.is_empty(), "{}", said.escape_ascii());
    }
    daemon.assert_alive();
}

/// The hidden names of a file called so: that of what is being written, and its journal's. Made from
/// what the project says of them, as an attacker would.
fn hidden_names(name: &str) -> [String; 2] {
    let first = |hash: blake3::Hash| {
        u64::from_be_bytes(hash.as_bytes()[..8].try_into().expect("eight bytes"))
    };
    let stem = first(blake3::hash(name.as_bytes()));
    let key = b"rdcp: the name of a part file   ";
    let mark = first(blake3::keyed_hash(key, &stem.to_be_bytes()));
    ["part", "journal"].map(|kind| format!(".rdcp-{stem:016x}{mark:016x}.{kind}"))
}

type Plant = fn(&Path, &Path);

#[test]
fn what_is_planted_under_hidden_names_is_not_used() {
    let plants: &[(&str, Plant)] = &[
        ("a link", |path, victim| symlink(victim, path).unwrap()),
        ("a link to nothing", |path, victim| {
            symlink(victim.with_file_name("new"), path).unwrap();
        }),
        ("a hard link", |path, victim| {
            fs::hard_link(victim, path).unwrap()
        }),
        ("a FIFO", |path, _| {
            mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
        }),
        ("a directory", |path, _| fs::create_dir(path).unwrap()),
        ("a file that all may write", |path, _| {
            fs::write(path, vec![b'x'; 8 << 20]).unwrap();
            tree::set_mode(path, 0o666);
        }),
        ("somebody else's file", |path, _| {
            fs::write(path, vec![b'x'; 8 << 20]).unwrap();
            if is_root("what another user planted") {
                std::os::unix::fs::chown(path, Some(12345), Some(12345)).unwrap();
            }
        }),
    ];
    for (way, from, to) in [("pull", "export", "local"), ("push", "local", "export")] {
        let world = World::new();
        let victim = world.write("outside/victim", "precious");
        tree::set_mode(&victim, 0o640);
        tree::random_file(&world.path(from).join("source"), 8 << 20, 1);
        let mut daemon = world.serve();
        let [part, journal] = hidden_names("copy").map(|name| world.path(to).join(name));
        let words = match way {
            "pull" => [daemon.url("data/source"), "copy".into()],
            _ => ["source".into(), daemon.url("data/copy")],
        };
        for (what, plant) in plants {
            for places in [&[&part][..], &[&journal], &[&part, &journal]] {
                for place in places {
                    plant(place, &victim);
                }
                let done = world.rdcp(way).arg("--no-fsync").args(&words).run();
                assert_no_defect(&done);
                let copy = world.path(to).join("copy");
                if done.status == 0 {
                    let metadata = copy.symlink_metadata().unwrap();
                    assert!(metadata.is_file(), "{way} {what}");
                    assert_eq!(
                        metadata.uid(),
                        rustix::process::geteuid().as_raw(),
                        "{way} {what}"
                    );
                    assert_eq!(metadata.mode() & 0o002, 0, "{way} {what}");
                    let right = world.path(from).join("source");
                    assert!(
                        fs::read(&copy).unwrap() == fs::read(right).unwrap(),
                        "{way} {what}"
                    );
                    fs::remove_file(&copy).unwrap();
                } else {
                    assert!(!copy.exists(), "{way} {what}");
                }
                assert_eq!(fs::read(&victim).unwrap(), b"precious", "{way} {what}");
                assert_eq!(
                    victim.metadata().unwrap().mode() & 0o777,
                    0o640,
                    "{way} {what}"
                );
                assert_eq!(
                    tree::listing(&world.path("outside")),
                    ["victim"],
                    "{way} {what}"
                );
                for place in [&part, &journal] {
                    let _ = fs::remove_dir(place);
                    let _ = fs::remove_file(place);
                }
            }
        }
        daemon.assert_alive();
    }
}

/// An entry with all that may not be taken from a peer.
fn privileged(id: u64, place: Place, kind: EntryKind) -> Item {
    // Revision 2, effective; every capability that there is.
    let mut capability = 0x0200_0001_u32.to_le_bytes().to_vec();
    capability.extend([0xff; 16]);
    let xattrs = [
        (&b"security.capability"[..], capability),
        (
            b"security.selinux",
            b"system_u:object_r:bin_t:s0\0".to_vec(),
        ),
        (b"trusted.overlay.opaque", b"y".to_vec()),
        (b"system.posix_acl_default", vec![2, 0, 0, 0]),
        (b"user.harmless", b"kept".to_vec()),
    ];
    Item::Entry(Entry {
        id: rdcp::ids::EntryId(id),
        place,
        kind,
        metadata: Metadata {
            mode: 0o7777,
            xattrs: xattrs.map(|(name, value)| (name.to_vec(), value)).into(),
            ..Metadata::default()
        },
    })
}

#[test]
fn privileges_can_not_be_smuggled_in() {
    let world = World::new();
    let mut daemon = world.serve();
    let content = b"#!/bin/sh";
    let len = content.len() as u64;
    let mut peer = Hostile::connect(daemon.address());
    let id = TransferId::random();
    peer.say(id, push("in"));
    peer.say(
        id,
        page(vec![
            privileged(0, Place::Root(0), EntryKind::Directory),
            privileged(1, within(0, b"tool"), file(len)),
            end(0),
        ]),
    );
    let wanted = peer.expect("a wish", |_, message| match message {
        Message::Want(wanted) => Some(wanted),
        _ => None,
    });
    assert!(wanted.iter().any(|(_, wanted)| *wanted != Wanted::Nothing));
    let mut data = Data::open(&peer).unwrap();
    peer.say(
        id,
        Message::Digests(digests(1, ChunkSize::DEFAULT, content)),
    );
    let mut whole = part(1, len);
    whole.packed = true;
    peer.say(id, Message::Grant(grant(1, len, vec![whole])));
    let (header, _) = data.hear().unwrap();
    let request = u64::from_le_bytes(header[16..24].try_into().unwrap());
    data.header(2, 0, 1, u32::try_from(len).unwrap(), [request, 0, 0, 0])
        .unwrap();
    data.stream.write_all(content).unwrap();
    peer.expect("the end", |_, message| {
        matches!(message, Message::Finish(_)).then_some(())
    });
    peer.say(id, Message::Finished);
    let root = world.path("export/in");
    let tool = tree::walk(&root)
        .into_iter()
        .find(|path| path.ends_with("tool"));
    let tool = tool.expect("it arrived");
    assert_eq!(fs::read(&tool).unwrap(), content);
    for path in [tool.as_path(), tool.parent().unwrap()] {
        assert_eq!(
            path.metadata().unwrap().mode() & 0o6000,
            0,
            "{}",
            path.display()
        );
        for name in ["security.capability", "trusted.overlay.opaque"] {
            let found = rustix::fs::lgetxattr(path, name, &mut [0; 64][..]);
            assert!(found.is_err(), "{name} of {}", path.display());
        }
    }
    let found = rustix::fs::lgetxattr(&tool, "system.posix_acl_default", &mut [0; 64][..]);
    assert!(found.is_err());
    let mut value = [0; 64];
    let kept = rustix::fs::lgetxattr(&tool, "user.harmless", &mut value[..]).unwrap();
    assert_eq!(&value[..kept], b"kept");
    peer.cut();
    daemon.assert_alive();
}

#[test]
fn ten_thousand_handshakes_that_stop_halfway_stop_nobody() {
    let world = World::new();
    tree::random_file(&world.path("export/big"), 16 << 20, 1);
    let mut daemon = world.serve();
    let before = Holdings::after_warming_up(&world, &daemon);
    // The head of a TLS record that promises a ClientHello, and the first bytes of one.
    let half: &[u8] = &[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    let flooding = AtomicBool::new(true);
    let address = daemon.address();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut open = VecDeque::new();
            for _ in 0..HALF_OPEN {
                let mut stream = hostile::tcp(address, Some(ELSEWHERE));
                // It may have given way already.
                let _ = stream.write_all(half);
                open.push_back(stream);
                if open.len() > HALF_OPEN_AT_ONCE {
                    open.pop_front();
                }
            }
            flooding.store(false, Ordering::Relaxed);
        });
        let mut round = 0;
        while flooding.load(Ordering::Relaxed) || round == 0 {
            let words = [daemon.url("data/big"), "copy".into()];
            world.rdcp("pull").arg("--no-fsync").args(words).run().ok();
            assert!(world.read("local/copy") == world.read("export/big"));
            fs::remove_file(world.path("local/copy")).unwrap();
            round += 1;
        }
    });
    assert_serves(&world, &daemon);
    before.assert_again(&daemon);
    daemon.assert_alive();
}

#[test]
fn one_that_sends_a_byte_at_a_time_holds_up_nobody() {
    let world = World::new();
    let mut daemon = world.serve();
    let before = Holdings::after_warming_up(&world, &daemon);
    let content = tree::Random::new(3).bytes(100 << 10);
    let mut peer = Hostile::connect(daemon.address());
    let id = TransferId::random();
    peer.say(id, push("slow"));
    peer.say(
        id,
        page(vec![entry(0, Place::Root(0), file(content.len() as u64))]),
    );
    peer.expect("a wish", |_, message| {
        matches!(message, Message::Want(_)).then_some(())
    });
    let mut data = Data::open(&peer).unwrap();
    peer.say(
        id,
        Message::Digests(digests(0, ChunkSize::DEFAULT, &content)),
    );
    let mut whole = part(0, content.len() as u64);
    whole.packed = true;
    peer.say(
        id,
        Message::Grant(grant(1, content.len() as u64, vec![whole])),
    );
    let (header, _) = data.hear().unwrap();
    let request = u64::from_le_bytes(header[16..24].try_into().unwrap());
    let len = u32::try_from(content.len()).unwrap();
    data.header(2, 0, 1, len, [request, 0, 0, 0]).unwrap();
    for byte in content.iter().take(20) {
        data.stream.write_all(&[*byte]).unwrap();
        assert_serves(&world, &daemon);
    }
    // A handshake and a message, each by bytes.
    let mut greeting = hostile::tcp(daemon.address(), None);
    let ping = bytes_of(TransferId::NONE, Message::Ping { nonce: 5 });
    for (byte, of_ping) in [22, 3, 1, 2, 0, 1].iter().zip(&ping) {
        greeting.write_all(&[*byte]).unwrap();
        peer.write(&[*of_ping]);
        assert_serves(&world, &daemon);
    }
    peer.write(&ping[6..]);
    assert!(peer.is_answered());
    drop((peer, data, greeting));
    assert_serves(&world, &daemon);
    before.assert_again(&daemon);
    daemon.assert_alive();
}

/// Blocks that are taken below a directory, in bytes. What goes meanwhile takes none.
fn allocated(top: &Path) -> u64 {
    let entries = fs::read_dir(top).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => allocated(&entry.path()),
        Ok(found) => found.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

#[test]
fn declared_sizes_cost_nothing() {
    let world = World::new();
    let mut daemon = world.serve();
    let before = Holdings::after_warming_up(&world, &daemon);
    let used = allocated(&world.path("export"));
    for len in [1 << 45, 1 << 62, i64::MAX as u64, 1 << 63, u64::MAX] {
        let mut peer = Hostile::connect(daemon.address());
        let id = TransferId::random();
        peer.say(id, push("bomb"));
        // One, and so many that no disk has their sum.
        let many = (1..400).map(|number| {
            let name = format!("file{number}");
            entry(number, within(0, name.as_bytes()), file(len))
        });
        let top = entry(0, Place::Root(0), EntryKind::Directory);
        peer.say(
            id,
            page(std::iter::once(top).chain(many).chain([end(0)]).collect()),
        );
        let is_wanted = loop {
            match peer.hear(DEADLINE) {
                Heard::Said(_, Message::Want(wanted)) => {
                    break wanted.iter().any(|(_, want)| *want != Wanted::Nothing);
                }
                Heard::Said(_, Message::Settled(_) | Message::Failed(_)) => break false,
                // Longer than any file can be.
                Heard::Said(_, Message::Goodbye(fault)) => {
                    assert!(
                        is_protocol(&fault) && len > i64::MAX as u64,
                        "{len}: {fault:?}"
                    );
                    break false;
                }
                Heard::Said(..) => {}
                other => panic!("instead of an answer: {other:?}"),
            }
        };
        if is_wanted {
            // A window that is whole holes, as of a sparse file.
            let mut holes = part(1, 64 << 20);
            (holes.file_len, holes.last) = (len, false);
            holes.extents = Vec::new();
            peer.say(id, Message::Grant(grant(1, 64 << 20, vec![holes])));
            // It goes on, fails its entry or ends; it does not hang.
            let heard = peer.hear(Duration::from_secs(5));
            assert!(matches!(
                heard,
                Heard::Said(..) | Heard::Ended | Heard::Silence
            ));
        }
        let taken = allocated(&world.path("export")).saturating_sub(used);
        assert!(
            taken < 64 << 20,
            "{taken} bytes are taken for what was only declared"
        );
        peer.cut();
        assert_serves(&world, &daemon);
    }
    // A page that counts more items than it has.
    let id = TransferId::random();
    let mut bytes = bytes_of(id, page(Vec::new()));
    let at = bytes.len() - 2;
    bytes[at..].copy_from_slice(&u16::MAX.to_le_bytes());
    let mut peer = Hostile::connect(daemon.address());
    peer.say(id, push("count"));
    peer.write(&bytes);
    assert!(is_protocol(&peer.given_up().expect("it is told")));
    peer.cut();
    assert_serves(&world, &daemon);
    before.assert_again(&daemon);
    daemon.assert_alive();
}

/// A daemon whose log is for people.
fn serve_with_text(world: &World) -> (std::process::Child, std::net::SocketAddr, PathBuf) {
    let log = world.path("log");
    let mut export = OsString::from("data=");
    export.push(world.path("export"));
    export.push(":rw");
    let child = std::process::Command::new(common::program("rdcpd"))
        .args([
            "--log-format",
            "text",
            "--listen",
            "127.0.0.1:0",
            "--state-dir",
        ])
        .arg(world.path("state"))
        .arg("--export")
        .arg(export)
        .env("HOME", world.path("home"))
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .expect("rdcpd can be started");
    let address = common::wait_for("the daemon tells its address", || {
        let text = fs::read_to_string(&log).unwrap();
        let at = text.find("127.0.0.1:")?;
        let rest = &text[at..];
        let end =
            rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.' && letter != ':');
        rest[..end?].parse().ok()
    });
    (child, address, log)
}

#[test]
fn nothing_that_a_peer_says_forges_a_line_of_the_log() {
    let evil = "\x1b[2J\x1b]0;title\x07\r\n2026-01-01T00:00:00Z ERROR forged\u{202e}\u{9b}2J\u{7f}";
    let say_it_all = |address| {
        for step in 0..4 {
            let mut peer = Hostile::begin(address, None);
            peer.say(
                TransferId::NONE,
                Message::Hello(Hello {
                    level_min: if step == 0 { 900 } else { 1 },
                    level_max: if step == 0 { 901 } else { 1 },
                    software: evil.to_owned(),
                }),
            );
            let id = TransferId::random();
            let fault = Fault::new(FaultCode::Storage, evil);
            match step {
                1 => peer.say(id, pull(evil)),
                2 => {
                    peer.say(id, push(evil));
                    peer.say(
                        id,
                        page(vec![entry(0, Place::Root(0), EntryKind::Directory), end(0)]),
                    );
                    peer.hear(Duration::from_millis(300));
                    peer.say(id, Message::Failed(fault.clone()));
                }
                _ => {}
            }
            peer.hear(Duration::from_millis(300));
            peer.hear(Duration::from_millis(300));
            peer.say(TransferId::NONE, Message::Goodbye(fault));
            peer.given_up_within(Duration::from_millis(300));
        }
    };
    let harmful = |text: &str| {
        let control = |letter: char| letter.is_control() && letter != '\n';
        text.contains(control) || text.contains('\u{202e}')
    };
    let world = World::new();
    let (mut child, address, log) = serve_with_text(&world);
    say_it_all(address);
    common::wait_for("the log tells of them", || {
        fs::read_to_string(&log)
            .unwrap()
            .contains("forged")
            .then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let text = fs::read_to_string(&log).unwrap();
    assert!(!harmful(&text), "{}", text.escape_debug());
    assert!(
        !text
            .lines()
            .any(|line| line.starts_with("2026-01-01T00:00:00Z ERROR")),
        "{text}"
    );

    let world = World::new();
    let daemon: Daemon = world.serve();
    say_it_all(daemon.address());
    common::wait_for("the log tells of them", || {
        daemon.log().contains("forged").then_some(())
    });
    common::command::json_lines(&daemon.log());
    assert!(!harmful(&daemon.log()), "{}", daemon.log().escape_debug());
}
