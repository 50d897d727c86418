//! One daemon under load and under attack: it goes on, others notice nothing, nothing grows.

mod common;

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use common::holdings::{Holdings, assert_serves};
use common::tree::{self, Carried, assert_same};
use common::{DEADLINE, Daemon, Proxy, Reactor, Scope, World};
use rustix::process::Signal;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};

/// The name of the protocol in the TLS handshake.
const PROTOCOL: &[u8] = b"rdcp/1";
fn connect(daemon: &Daemon) -> TcpStream {
    let stream = TcpStream::connect(daemon.address()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Reads until the daemon closes the connection.
#[track_caller]
fn assert_closed(mut stream: impl Read, what: &str) {
    let mut sink = [0; 4096];
    loop {
        match stream.read(&mut sink) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("{what}: the daemon does not close the connection");
            }
            // A reset is an end too, and TLS tells an end without its goodbye as an error.
            Err(_) => break,
        }
    }
}

#[test]
fn many_clients_at_once() {
    for reactor in Reactor::BOTH {
        let world = World::with(reactor);
        let mut daemon = world.serve();
        let before = Holdings::after_warming_up(&world, &daemon);
        tree::make_random(&world.path("export/tree"), 8, 40);
        tree::random_file(&world.path("local/up"), 2 << 20, 3);
        let clients: Vec<_> = (0..16)
            .map(|number| {
                let name = format!("copy{number}");
                let words = if number % 2 == 0 {
                    world.make(format!("local/{name}"));
                    ["-r".into(), daemon.url("data/tree"), name.into()]
                } else {
                    ["-r".into(), "up".into(), daemon.url(format!("data/{name}"))]
                };
                let command = if number % 2 == 0 { "pull" } else { "push" };
                world.rdcp(command).arg("--no-fsync").args(words).start()
            })
            .collect();
        for client in clients {
            client.wait().ok();
        }
        for number in 0..16 {
            if number % 2 == 0 {
                let copied = world.path(format!("local/copy{number}/tree"));
                assert_same(&world.path("export/tree"), &copied, Carried::Plain);
            } else {
                let copied = world.read(format!("export/copy{number}"));
                assert!(copied == world.read("local/up"));
            }
        }
        before.assert_again(&daemon);
        daemon.assert_alive();
    }
}

#[test]
fn idle_sessions_cost_no_threads() {
    let world = World::new();
    let daemon = world.serve();
    let before = Holdings::after_warming_up(&world, &daemon);
    let sessions: Vec<_> = (0..50).map(|_| greet(&daemon)).collect();
    assert_serves(&world, &daemon);
    assert!(
        daemon.threads() <= before.threads + 4,
        "{} threads",
        daemon.threads()
    );
    drop(sessions);
    before.assert_again(&daemon);
}

#[test]
fn garbage_ends_its_connection_and_nothing_else() {
    let world = World::new();
    let mut daemon = world.serve();
    let before = Holdings::after_warming_up(&world, &daemon);
    let mut random = tree::Random::new(1);
    let mut hello = vec![22, 3, 1];
    hello.extend(random.bytes(300));
    let garbage: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(),
        vec![0; 5000],
        vec![0xff; 5000],
        random.bytes(100_000),
        hello,
        // A TLS record that claims to be as long as can be.
        vec![22, 3, 1, 0xff, 0xff, 1, 0xff, 0xff, 0xff],
    ];
    let streams: Vec<_> = (0..3)
        .flat_map(|_| &garbage)
        .map(|bytes| {
            let mut stream = connect(&daemon);
            // It may be closed before all is written.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(Shutdown::Write);
            (stream, bytes)
        })
        .collect();
    assert_serves(&world, &daemon);
    for (stream, bytes) in streams {
        assert_closed(stream, &format!("{:?}", &bytes[..bytes.len().min(16)]));
    }
    before.assert_again(&daemon);
    daemon.assert_alive();
}

#[test]
fn half_a_hello_and_silence() {
    let world = World::new();
    let mut daemon = world.serve();
    let before = Holdings::after_warming_up(&world, &daemon);
    let mut hello = Vec::new();
    tls(&daemon).conn.write_tls(&mut hello).unwrap();
    let streams: Vec<_> = [0, 1, 3, hello.len() / 2, hello.len()]
        .iter()
        .flat_map(|len| [&hello[..*len], &hello[..*len]])
        .map(|part| {
            let mut stream = connect(&daemon);
            stream.write_all(part).unwrap();
            stream
        })
        .chain((0..3).map(|_| {
            // And one that begins like a data connection.
            let mut stream = connect(&daemon);
            stream.write_all(&[1]).unwrap();
            stream
        }))
        .collect();
    assert_serves(&world, &daemon);
    // Nobody waits for them for ever.
    for stream in streams {
        assert_closed(stream, "silence");
    }
    before.assert_again(&daemon);
    daemon.assert_alive();
}

/// Takes every certificate: these tests are the attacker.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![
            SignatureScheme::ED25519,
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ECDSA_NISTP384_SHA384,
            SignatureScheme::RSA_PSS_SHA256,
        ]
    }
}

/// A TLS connection of which nothing has been sent yet.
fn tls(daemon: &Daemon) -> StreamOwned<ClientConnection, TcpStream> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_no_client_auth();
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(connection, connect(daemon))
}

/// A TLS connection whose handshake is done, on which nothing of the protocol was said.
fn greet(daemon: &Daemon) -> StreamOwned<ClientConnection, TcpStream> {
    let mut stream = tls(daemon);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).unwrap();
    }
    stream
}

#[test]
fn frames_that_lie_about_their_length() {
    let world = World::new();
    let mut daemon = world.serve();
    let before = Holdings::after_warming_up(&world, &daemon);
    let mut frames: Vec<Vec<u8>> = [1 << 63, u64::MAX, 1 << 32, u64::from(u32::MAX)]
        .iter()
        .map(|len: &u64| [&len.to_le_bytes()[..], &[0; 100]].concat())
        .collect();
    frames.extend((0..20).map(|seed| tree::Random::new(seed).bytes(200)));
    frames.push(vec![0xff; 100_000]);
    let streams: Vec<_> = frames
        .iter()
        .map(|frame| {
            let mut stream = greet(&daemon);
            // It may be closed before all is written.
            let _ = stream.write_all(frame).and_then(|()| stream.flush());
            let _ = stream.sock.shutdown(Shutdown::Write);
            stream
        })
        .collect();
    assert_serves(&world, &daemon);
    for (stream, frame) in streams.into_iter().zip(&frames) {
        assert_closed(stream, &format!("{:?}", &frame[..16]));
    }
    before.assert_again(&daemon);
    daemon.assert_alive();
}

#[test]
fn peers_that_never_read() {
    let world = World::new();
    let mut daemon = world.serve();
    let before = Holdings::after_warming_up(&world, &daemon);
    tree::random_file(&world.path("export/large"), 64 << 20, 1);
    for number in 0..3_000 {
        fs::write(
            world.make("export/names").join(format!("{number:0200}")),
            "",
        )
        .unwrap();
    }
    let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, Scope::All);
    let mut clients: Vec<_> = (0..4)
        .map(|number| {
            let words = [proxy.url("data/large"), format!("held{number}").into()];
            world
                .rdcp("pull")
                .args(["--timeout", "300s"])
                .args(words)
                .start()
        })
        .collect();
    proxy.wait_held();
    // One that asks for a long listing and reads nothing of it.
    let listing = world
        .rdcp("ls")
        .args(["-r".into(), proxy.url("data/names")])
        .start();
    clients.push(listing);
    for _ in 0..3 {
        assert_serves(&world, &daemon);
    }
    let grown = daemon.anonymous_kib().saturating_sub(before.anonymous_kib);
    assert!(grown < 300 << 10, "memory grew by {grown} KiB");
    for client in clients {
        client.signal(Signal::KILL);
        drop(client.wait());
    }
    drop(proxy);
    before.assert_again(&daemon);
    daemon.assert_alive();
}

#[test]
fn a_client_that_is_killed_leaves_nothing_behind() {
    let world = World::new();
    let mut daemon = world.serve();
    let before = Holdings::after_warming_up(&world, &daemon);
    tree::random_file(&world.path("local/file"), 16 << 20, 1);
    tree::random_file(&world.path("export/file"), 16 << 20, 2);
    for command in ["push", "pull"] {
        let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, Scope::Data);
        let words = match command {
            "push" => ["file".into(), proxy.url("data/copy")],
            _ => [proxy.url("data/file"), "copy".into()],
        };
        let client = world.rdcp(command).args(words).start();
        proxy.wait_held();
        client.signal(Signal::KILL);
        client.wait().expect(137);
        drop(proxy);
        let copied = if command == "push" {
            "export/copy"
        } else {
            "local/copy"
        };
        assert!(
            !world.exists(copied),
            "a file that was not transferred whole"
        );
        let ls = world
            .rdcp("ls")
            .args(["-r".into(), daemon.url("data")])
            .run()
            .ok()
            .text();
        assert!(!ls.contains(".rdcp-"), "{ls}");
        before.assert_again(&daemon);
        let words = match command {
            "push" => ["file".into(), daemon.url("data/copy")],
            _ => [daemon.url("data/file"), "copy".into()],
        };
        world.rdcp(command).args(words).run().ok();
    }
    assert!(world.read("export/copy") == world.read("local/file"));
    assert!(world.read("local/copy") == world.read("export/file"));
    for side in ["export", "local"] {
        let names = tree::listing(&world.path(side));
        let parts = names
            .iter()
            .filter(|name| name.to_string_lossy().starts_with(".rdcp-"));
        assert_eq!(parts.count(), 0, "{names:?}");
    }
    daemon.assert_alive();
}

#[test]
fn a_source_that_changes_fails_alone() {
    let world = World::new();
    let mut daemon = world.serve();
    let tree_path = world.make("export/tree");
    tree::random_file(&tree_path.join("a first"), 1 << 20, 1);
    tree::random_file(&tree_path.join("b changing"), 24 << 20, 2);
    tree::random_file(&tree_path.join("c last"), 1 << 20, 3);
    tree::random_file(&tree_path.join("d small"), 100, 4);
    for truncate in [true, false] {
        tree::random_file(&tree_path.join("b changing"), 24 << 20, 2);
        world.make("local/copy");
        let proxy = Proxy::new(daemon.address()).hold_after(3 << 20, Scope::Data);
        let words = ["-r".into(), proxy.url("data/tree"), "copy".into()];
        let pull = world.rdcp("pull").args(words).start();
        proxy.wait_held();
        let file = fs::OpenOptions::new()
            .write(true)
            .open(tree_path.join("b changing"))
            .unwrap();
        if truncate {
            file.set_len(5).unwrap();
        } else {
            file.write_all_at(b"rewritten", (24 << 20) - 100).unwrap();
        }
        proxy.release();
        pull.wait().expect(9).says("b changing");
        let names = tree::listing(&world.path("local/copy/tree"));
        assert_eq!(
            names,
            ["a first", "c last", "d small"],
            "truncated: {truncate}"
        );
        for name in ["a first", "c last", "d small"] {
            let copied = world.read(format!("local/copy/tree/{name}"));
            assert!(copied == fs::read(tree_path.join(name)).unwrap(), "{name}");
        }
        fs::remove_dir_all(world.path("local/copy")).unwrap();
        daemon.assert_alive();
    }
}

#[test]
fn sigterm_lets_transfers_end_and_takes_no_new_ones() {
    let world = World::new();
    let mut daemon = world.serve();
    tree::random_file(&world.path("export/file"), 8 << 20, 1);
    let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, Scope::Data);
    let pull = world
        .rdcp("pull")
        .args([proxy.url("data/file"), "copy".into()])
        .start();
    proxy.wait_held();
    daemon.signal(Signal::TERM);
    common::wait_for("the daemon drains", || {
        daemon.log().contains("draining").then_some(())
    });
    let done = world
        .rdcp("pull")
        .args([daemon.url("data/file"), "late".into()])
        .run();
    assert!(
        [3, 14].contains(&done.status),
        "{}: {}",
        done.status,
        done.stderr
    );
    proxy.release();
    pull.wait().ok();
    assert!(world.read("local/copy") == world.read("export/file"));
    assert_eq!(daemon.wait().code(), Some(0));
}

#[test]
fn sigterm_does_not_wait_for_ever() {
    let world = World::new();
    tree::random_file(&world.path("export/file"), 8 << 20, 1);
    let config = format!(
        "listen = [\"127.0.0.1:0\"]\ndrain_seconds = 1\n[exports.data]\npath = {:?}\n",
        world.path("export")
    );
    let config = world.write("rdcpd.toml", config);
    let mut daemon = world.serve_as(&["--config".into(), config.into()]);
    let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, Scope::Data);
    let words = [
        "--timeout".into(),
        "5s".into(),
        proxy.url("data/file"),
        "copy".into(),
    ];
    let pull = world.rdcp("pull").args(words).start();
    proxy.wait_held();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    let done = pull.wait();
    assert!(
        [3, 11, 14].contains(&done.status),
        "{}: {}",
        done.status,
        done.stderr
    );
    assert!(!world.exists("local/copy"));
}

#[test]
fn its_host_key_outlives_it() {
    let world = World::new();
    world.write("export/file", "content");
    let host = common::own_loopback_address(1);
    for number in 0..2 {
        let mut export = OsString::from("data=");
        export.push(world.path("export"));
        let mut daemon = world.serve_as(&[
            "--export".into(),
            export,
            "--listen".into(),
            format!("{host}:20471").into(),
        ]);
        let pull = if number == 0 {
            world.rdcp("pull")
        } else {
            world.bare("pull")
        };
        pull.args([&format!("{host}:/data/file"), "copy"])
            .run()
            .ok();
        daemon.signal(Signal::TERM);
        assert!(daemon.wait().success());
    }
}
