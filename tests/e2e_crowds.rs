//! More of everything than there is room for: sessions, silent connections, operations, unread
//! answers, descriptors. Whoever takes too much is told or let go, and the others get in.

mod common;
mod hostile;

use std::fs;
use std::io::Read;
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use common::holdings::{Holdings, assert_serves};
use common::tree::{self, Carried, assert_same};
use common::{Daemon, World};
use hostile::make::{credit, list, pull};
use hostile::{Heard, Hostile};
use rdcp::wire::level::LEVEL_BENCH;
use rdcp::wire::{FaultCode, Message};
use rdcp::{Fault, TransferId};

/// An address that the real clients of these tests don't come from.
const ELSEWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 66));

/// For what takes the daemon a minute by design.
const LONG: Duration = Duration::from_secs(150);

/// A daemon with room for so many sessions.
fn serve(world: &World, sessions_max: usize) -> Daemon {
    let config = format!(
        "listen = [\"127.0.0.1:0\"]\n[limits]\nsessions_max = {sessions_max}\n\
         [exports.data]\npath = {:?}\n",
        world.path("export")
    );
    let config = world.write("rdcpd.toml", config);
    world.serve_as(&["--config".into(), config.into()])
}

/// Sessions from one address, as many as the daemon takes, and what it said to the next one.
fn all_it_takes(daemon: &Daemon, from: Option<IpAddr>) -> (Vec<Hostile>, Fault) {
    let mut sessions = Vec::new();
    loop {
        match Hostile::connect_from(daemon.address(), from) {
            Ok(session) => sessions.push(session),
            Err(fault) => return (sessions, fault),
        }
    }
}

#[test]
fn one_address_does_not_get_every_session() {
    let world = World::new();
    world.write("export/file", "content");
    let mut daemon = serve(&world, 16);
    let ls = || world.rdcp("ls").arg(daemon.url("data")).run();
    let (taken, refused) = all_it_takes(&daemon, Some(ELSEWHERE));
    assert_eq!(refused.code, FaultCode::Busy);
    assert!(refused.text.contains("from this address"), "{refused:?}");
    assert!((12..16).contains(&taken.len()), "{} sessions", taken.len());
    // Somebody else gets in, as often as they come.
    for _ in 0..5 {
        ls().ok();
    }
    drop(taken);
    // The same crowd from the address of the real clients: they are told to come later.
    common::wait_for("the places are free", || (ls().status == 0).then_some(()));
    let (taken, _) = all_it_takes(&daemon, None);
    ls().expect(14).says("from this address");
    drop(taken);
    common::wait_for("the places are free", || (ls().status == 0).then_some(()));
    daemon.assert_alive();
}

#[test]
fn idle_sessions_give_way_when_all_places_are_taken() {
    let world = World::new();
    world.write("export/file", "content");
    let mut daemon = serve(&world, 4);
    // One that has something under way, before the crowd.
    let mut busy = Hostile::connect(daemon.address());
    let id = TransferId::random();
    busy.say(id, pull("file"));
    busy.say(id, credit(1, 0));
    busy.expect("a page", |_, message| {
        matches!(message, Message::Manifest(_)).then_some(())
    });
    let (mut idle, refused) = all_it_takes(&daemon, None);
    assert_eq!(refused.code, FaultCode::Busy);
    let ls = || world.rdcp("ls").arg(daemon.url("data")).run();
    ls().expect(14);
    // They say that they are alive, and ask for nothing.
    common::wait_for("there is a place", || {
        for session in &mut idle {
            session.say(TransferId::NONE, Message::Ping { nonce: 1 });
        }
        std::thread::sleep(Duration::from_millis(500));
        (ls().status == 0).then_some(())
    });
    let told = idle.iter_mut().any(|session| {
        loop {
            match session.hear(Duration::from_millis(100)) {
                Heard::Said(_, Message::Goodbye(fault)) => break fault.code == FaultCode::Busy,
                Heard::Said(..) => {}
                Heard::Ended | Heard::Silence => break false,
            }
        }
    });
    assert!(told, "nobody was told that the place was needed");
    assert!(
        busy.is_answered(),
        "one with a transfer under way was ended"
    );
    daemon.assert_alive();
}

/// Lets this test have as many descriptors as the system allows.
fn raise_file_limit() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("up to the hard limit");
    limit.current.unwrap_or(u64::MAX)
}

#[test]
fn silent_connections_do_not_keep_others_out() {
    let world = World::new();
    let mut daemon = world.serve();
    let before = Holdings::after_warming_up(&world, &daemon);
    let room = raise_file_limit() > 3000;
    assert!(
        room,
        "this test needs more open files than the system allows"
    );
    let mut silent: Vec<TcpStream> = Vec::new();
    let until = Instant::now() + Duration::from_secs(4);
    let mut served = 0;
    // More than there are places, for longer than one may be silent; always as many as fit.
    while Instant::now() < until {
        while silent.len() < 1100 {
            silent.push(hostile::tcp(daemon.address(), Some(ELSEWHERE)));
        }
        assert_serves(&world, &daemon);
        served += 1;
        // Which of them were let go.
        silent.retain_mut(|stream| {
            stream.set_nonblocking(true).unwrap();
            let waits = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
            stream.read(&mut [0; 1]).is_err_and(waits)
        });
    }
    assert!(served > 0);
    drop(silent);
    assert!(
        daemon.log().contains("gave way"),
        "no silent connection gave way"
    );
    before.assert_again(&daemon);
    daemon.assert_alive();
}

#[test]
fn one_that_never_reads_loses_its_session() {
    let world = World::new();
    let mut daemon = world.serve();
    let names = world.make("export/names");
    for number in 0..2_000 {
        fs::write(names.join(format!("{number:0250}")), "").unwrap();
    }
    let before = Holdings::after_warming_up(&world, &daemon);
    let mut peer = Hostile::connect(daemon.address());
    // Far more than fits into the sockets, far less than may wait at most.
    for _ in 0..40 {
        let id = TransferId::random();
        peer.say(id, list("names"));
        peer.say(id, credit(1000, 0));
    }
    let until = Instant::now() + LONG;
    while !daemon.log().contains("has read nothing for") {
        assert!(Instant::now() < until, "the daemon waits for ever");
        // It lives, and shows that.
        peer.say(TransferId::NONE, Message::Ping { nonce: 1 });
        std::thread::sleep(Duration::from_secs(2));
    }
    assert_serves(&world, &daemon);
    before.assert_again(&daemon);
    daemon.assert_alive();
}

#[test]
fn operations_that_nobody_takes_the_answers_of_end() {
    let world = World::new();
    let mut daemon = world.serve();
    // More than waits for a client while it takes nothing.
    let names = world.make("export/names");
    for number in 0..3000 {
        fs::write(names.join(number.to_string()), "").unwrap();
    }
    let before = Holdings::after_warming_up(&world, &daemon);
    // Nine sessions, each with more than it may run: all that may run at once, and some.
    let mut peers: Vec<_> = (0..9).map(|_| Hostile::connect(daemon.address())).collect();
    for peer in &mut peers {
        for _ in 0..8 {
            let id = TransferId::random();
            peer.say(id, list("names"));
            // Credit that is none buys no time.
            peer.say(id, credit(0, 0));
        }
    }
    // No thread for each of them, and transfers go on.
    assert!(
        daemon.threads() <= before.threads + 40,
        "{}",
        daemon.threads()
    );
    assert_serves(&world, &daemon);
    let mut codes = Vec::new();
    let until = Instant::now() + LONG;
    // By turns, so that every session answers what it is asked meanwhile.
    while codes.len() < 9 * 8 {
        assert!(
            Instant::now() < until,
            "{} operations have ended",
            codes.len()
        );
        for peer in &mut peers {
            match peer.hear(Duration::from_millis(50)) {
                Heard::Said(_, Message::Failed(fault)) => codes.push(fault.code),
                Heard::Said(_, other) => panic!("without credit: {other:?}"),
                Heard::Ended => panic!("the session was ended"),
                Heard::Silence => {}
            }
        }
    }
    let known = |code: &FaultCode| matches!(code, FaultCode::TimedOut | FaultCode::Busy);
    assert!(codes.iter().all(known), "{codes:?}");
    assert!(codes.contains(&FaultCode::TimedOut), "{codes:?}");
    world.rdcp("ls").arg(daemon.url("data/names")).run().ok();
    drop(peers);
    before.assert_again(&daemon);
    daemon.assert_alive();
}

#[test]
fn the_soft_limit_of_open_files_is_raised() {
    let world = World::new();
    let daemon = world.serve_limited("-Sn 100");
    let (soft, hard) = daemon.file_limits();
    assert_eq!(soft, hard);
    assert_ne!(soft, "100");
}

#[test]
fn many_transfers_share_few_descriptors() {
    const FILES_MAX: usize = 1024;
    let world = World::new();
    let mut daemon = world.serve_limited(&format!("-n {FILES_MAX}"));
    // Many directories, small files in packs, and some files with part files of their own.
    let make = |at: &str| {
        for number in 0..40 {
            let directory = format!("{at}/{}/{}", number % 7, number);
            world.write(format!("{directory}/small"), vec![number; 500]);
            world.write(format!("{directory}/other"), vec![number; 70_000]);
        }
        for number in 0..12 {
            let path = world.path(format!("{at}/{number}/big"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            tree::random_file(&path, 600_000, number);
        }
    };
    make("export/tree");
    make("local/tree");
    let clients: Vec<_> = (0..20)
        .map(|number| {
            let words = if number % 2 == 0 {
                let to = format!("copy{number}/");
                world.make(format!("local/copy{number}"));
                ["-r".into(), daemon.url("data/tree"), to.into()]
            } else {
                let to = daemon.url(format!("data/copy{number}/"));
                world.make(format!("export/copy{number}"));
                ["-r".into(), "tree".into(), to]
            };
            let command = if number % 2 == 0 { "pull" } else { "push" };
            world.rdcp(command).args(words).start()
        })
        .collect();
    let mut most = 0;
    let mut running: Vec<_> = clients.into_iter().map(Some).collect();
    while running.iter().any(Option::is_some) {
        most = most.max(daemon.descriptors());
        for client in &mut running {
            if client.as_mut().is_some_and(|client| !client.is_running()) {
                client.take().unwrap().wait().ok();
            }
        }
    }
    assert!(most < FILES_MAX, "{most} descriptors were open");
    for number in 0..20 {
        let (side, from) = if number % 2 == 0 {
            ("local", "export/tree")
        } else {
            ("export", "local/tree")
        };
        let copied = world.path(format!("{side}/copy{number}/tree"));
        assert_same(&world.path(from), &copied, Carried::Plain);
    }
    daemon.assert_alive();
}

/// The most that a daemon has resident while it is looked at, in KiB beyond what it had.
fn peak_kib(daemon: &Daemon, before: &Holdings, looks: Duration) -> u64 {
    let until = Instant::now() + looks;
    let mut most = 0;
    while Instant::now() < until {
        most = most.max(daemon.anonymous_kib());
        std::thread::sleep(Duration::from_millis(20));
    }
    most.saturating_sub(before.anonymous_kib)
}

/// Waits until a daemon has given back all but so much of what it had beyond its first transfers.
#[track_caller]
fn assert_given_back(world: &World, daemon: &Daemon, before: &Holdings, kib: u64) {
    let most = before.anonymous_kib + kib;
    let until = Instant::now() + common::DEADLINE;
    loop {
        let held = daemon.anonymous_kib();
        if held <= most {
            return;
        }
        let shown = before.anonymous_kib;
        assert!(
            Instant::now() < until,
            "{held} KiB are held, {shown} before; {}",
            daemon.log()
        );
        // What threads let go of after a session's end goes back at the end of the next one.
        world.rdcp("ls").arg(daemon.url("data/warm")).run().ok();
        std::thread::sleep(Duration::from_secs(2));
    }
}

#[test]
fn listings_that_nobody_reads_cost_little_memory() {
    const SESSIONS: usize = 20;
    let world = World::new();
    let mut daemon = world.serve();
    let names = world.make("export/names");
    for number in 0..6_000 {
        fs::write(names.join(format!("{number:0250}")), "").unwrap();
    }
    let before = Holdings::after_warming_up(&world, &daemon);
    // Listings of megabytes, with all the credit that there is.
    let mut peers: Vec<_> = (0..SESSIONS)
        .map(|_| Hostile::connect(daemon.address()))
        .collect();
    for peer in &mut peers {
        for _ in 0..32 {
            let id = TransferId::random();
            peer.say(id, list("names"));
            peer.say(id, credit(u32::MAX, u64::MAX));
            peer.say(id, credit(u32::MAX, u64::MAX));
        }
    }
    let peak = peak_kib(&daemon, &before, Duration::from_secs(5));
    assert_serves(&world, &daemon);
    world.rdcp("ls").arg(daemon.url("data")).run().ok();
    // A few batches of each, and the names of the directories that are being listed.
    assert!(peak < 64 << 10, "{peak} KiB for {SESSIONS} sessions");
    drop(peers);
    assert_given_back(&world, &daemon, &before, 16 << 10);
    daemon.assert_alive();
}

#[test]
fn memory_to_measure_with_is_shared_and_comes_back() {
    let world = World::new();
    let mut daemon = world.serve();
    let before = Holdings::after_warming_up(&world, &daemon);
    let mut peer = Hostile::connect_at(daemon.address(), LEVEL_BENCH);
    let asked = 40;
    for _ in 0..asked {
        let region_bytes = u64::MAX;
        peer.say(TransferId::random(), Message::Bench { region_bytes });
    }
    let (mut granted, mut busy) = (0, 0);
    while granted + busy < asked {
        peer.expect("an answer", |_, message| match message {
            Message::Grant(_) => {
                granted += 1;
                Some(())
            }
            Message::Failed(fault) => {
                assert_eq!(fault.code, FaultCode::Busy, "{fault:?}");
                busy += 1;
                Some(())
            }
            _ => None,
        });
    }
    assert!((1..=4).contains(&granted), "{granted} of {asked}");
    // Others measure meanwhile.
    let words = ["--transport", "tcp", "--time", "0.2s"];
    world
        .rdcp("bench")
        .args(words)
        .arg(format!("rdcp://{}", daemon.address()))
        .run()
        .ok();
    drop(peer);
    assert_given_back(&world, &daemon, &before, 8 << 10);
    daemon.assert_alive();
}

#[test]
fn refusals_do_not_fill_the_log() {
    let world = World::new();
    let mut daemon = world.serve();
    let mut peer = Hostile::connect(daemon.address());
    for _ in 0..20 {
        for _ in 0..250 {
            // Not to be had at this level.
            let region_bytes = 1;
            peer.say(TransferId::random(), Message::Bench { region_bytes });
        }
        assert!(peer.is_answered());
    }
    drop(peer);
    common::wait_for("the session ends", || {
        daemon.log().contains("session ended").then_some(())
    });
    let log = daemon.log();
    let lines: Vec<_> = log
        .lines()
        .filter(|line| line.contains("refused"))
        .collect();
    assert!((1..20).contains(&lines.len()), "{} lines", lines.len());
    let count = |line: &&str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["count"].as_u64().unwrap()
    };
    assert_eq!(lines.iter().map(count).sum::<u64>(), 5000, "{lines:?}");
    daemon.assert_alive();
}

#[test]
fn runs_into_one_new_tree_do_not_fail_each_other() {
    let world = World::new();
    let mut daemon = world.serve();
    // What changed a moment ago would be copied again, and not be looked at.
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    for number in 0..400 {
        let path = world.write(format!("export/tree/{}/{number}", number % 3), "content");
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(long_ago).unwrap();
    }
    for round in 0..3 {
        let to = format!("round{round}/");
        let pulls: Vec<_> = (0..6)
            .map(|_| {
                let words = [
                    "-a".into(),
                    "--mkpath".into(),
                    daemon.url("data/tree"),
                    to.clone().into(),
                ];
                world.rdcp("pull").args(words).start()
            })
            .collect();
        for pull in pulls {
            pull.wait().ok();
        }
        let copied = world.path(format!("local/{to}tree"));
        assert_same(&world.path("export/tree"), &copied, Carried::Plain);
    }
    daemon.assert_alive();
}
