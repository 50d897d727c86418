//! The library as an embedding program uses it: server and client in one process, real sockets and
//! real files.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use rdcp::{
    Client, ClientOptions, ErrorKind, Event, Export, HashKind, Hex, Outcome, PullSource,
    RemotePath, Server, TransferOptions, TransportChoice, UnknownHost,
};
use tempfile::TempDir;

/// A server with one writable export, a client of it, and a directory to play in.
struct World {
    server: Server,
    client: Client,
    exported: TempDir,
    local: TempDir,
}

impl World {
    async fn new() -> Self {
        let exported = TempDir::new().expect("a directory");
        let local = TempDir::new().expect("a directory");
        let server = Server::builder()
            .export(Export::new("data", exported.path()).writable(true))
            .listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .start()
            .await
            .expect("the server starts");
        let port = server.local_addrs()[0].port();
        let mut options = ClientOptions::default();
        options.known_hosts = Some(local.path().join("known_hosts"));
        options.unknown_host = UnknownHost::AcceptNew;
        let client = Client::connect("127.0.0.1", port, options)
            .await
            .expect("it connects");
        Self {
            server,
            client,
            exported,
            local,
        }
    }

    fn port(&self) -> u16 {
        self.server.local_addrs()[0].port()
    }

    fn write(&self, name: &str, content: &[u8]) {
        std::fs::write(self.exported.path().join(name), content).expect("a file is written");
    }
}

/// Bytes that no two offsets share and no compression shrinks.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn remote(path: &str) -> RemotePath {
    RemotePath {
        export: "data".to_owned(),
        path: path.as_bytes().to_vec(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_pulled_and_its_digest_told() {
    let world = World::new().await;
    let content = noise(3_000_000, 1);
    world.write("file", &content);
    for hash in [HashKind::Blake3, HashKind::Sha256, HashKind::None] {
        let mut options = TransferOptions::default();
        options.hash = hash;
        let to = world.local.path().join(format!("{hash:?}"));
        let mut transfer = world
            .client
            .pull(&[PullSource::new("data", "file")], &to, options);
        let mut outcomes = Vec::new();
        let mut last = rdcp::Progress::default();
        while let Some(event) = transfer.next_event().await {
            match event {
                Event::Ended {
                    path, outcome, len, ..
                } => outcomes.push((path, outcome, len)),
                Event::Progress(progress) => {
                    assert!(progress.bytes_done >= last.bytes_done, "progress fell");
                    last = progress;
                }
                _ => {}
            }
        }
        let report = transfer.finish().await.expect("it ends well");
        assert_eq!(
            (report.files, report.failed, report.bytes_moved),
            (1, 0, 3_000_000)
        );
        assert_eq!((report.carried.tcp, report.carried.rdma), (3_000_000, 0));
        assert_eq!(report.verified(), Some(hash != HashKind::None));
        assert_eq!(last.bytes_done, 3_000_000);
        assert_eq!(std::fs::read(&to).expect("the copy"), content);
        let [(path, Outcome::Published { digest, .. }, 3_000_000)] = outcomes.as_slice() else {
            panic!("{outcomes:?}");
        };
        assert_eq!(path, b"file");
        let mut sum = None;
        rdcp::sum_local(&to, false, HashKind::Sha256, &mut |line| sum = line.digest)
            .expect("a sum");
        match hash {
            HashKind::Blake3 => assert_eq!(*digest, Some(blake3::hash(&content).into())),
            HashKind::Sha256 => assert_eq!(*digest, sum, "{:?}", digest.map(Hex)),
            _ => assert_eq!(*digest, None),
        }
    }
    world.server.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_is_pushed_and_pushed_again_without_reading_it() {
    let world = World::new().await;
    let tree = world.local.path().join("tree");
    std::fs::create_dir_all(tree.join("a/b")).expect("directories");
    for (name, len) in [("a/one", 1), ("a/b/empty", 0), ("big", 2_500_000)] {
        std::fs::write(tree.join(name), noise(len, len as u64)).expect("a file");
        // Older than the moment in which time stamps are doubted.
        let old = std::time::SystemTime::now() - Duration::from_secs(60);
        let file = std::fs::File::open(tree.join(name)).expect("the file");
        file.set_modified(old).expect("its time");
    }
    let push = || {
        let sources = [tree.clone()];
        world
            .client
            .push(&sources, &remote(""), false, TransferOptions::archive())
    };
    let report = push().finish().await.expect("it ends well");
    assert_eq!((report.files, report.failed), (3, 0), "{report:?}");
    // What the server has counted; the small files travelled in a pack.
    assert!(report.carried.tcp > 2_500_000, "{report:?}");
    assert_eq!((report.transport, report.carried.rdma), ("tcp", 0));
    for name in ["a/one", "a/b/empty", "big"] {
        let sent = std::fs::read(tree.join(name)).expect("the source");
        let there = std::fs::read(world.exported.path().join("tree").join(name)).expect("the copy");
        assert!(sent == there, "{name}");
    }
    let again = push().finish().await.expect("it ends well");
    assert_eq!(
        (again.files, again.bytes_moved, again.failed),
        (0, 0, 0),
        "{again:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_at_random_give_the_right_bytes() {
    let world = World::new().await;
    let big = noise(10_000_000, 7);
    world.write("big", &big);
    world.write("small", &big[..100_000]);
    world.write("empty", b"");
    for (name, content) in [
        ("big", &big[..]),
        ("small", &big[..100_000]),
        ("empty", b""),
    ] {
        let file = world.client.open(&remote(name)).await.expect("it opens");
        assert_eq!(file.len(), content.len() as u64);
        let reads = [
            (0, 1),
            (0, 70_000),
            (65_535, 2),
            (1_234_567, 300_000),
            (9_999_999, 1),
            (9_999_999, 100),
            (20_000_000, 5),
            (0, 10_000_001),
        ];
        for (offset, len) in reads {
            let mut buffer = vec![0xaa; len];
            let read = file
                .read_at(&mut buffer, offset as u64)
                .await
                .expect("it reads");
            let expected = content.get(offset..).unwrap_or(&[]);
            let expected = &expected[..expected.len().min(len)];
            assert_eq!(read, expected.len(), "{name} {offset} {len}");
            assert!(buffer[..read] == *expected, "{name} {offset} {len}");
        }
        file.finish().await.expect("nobody changed it");
    }
    // Never read, and changed between two reads.
    let file = world.client.open(&remote("big")).await.expect("it opens");
    file.finish().await.expect("nothing was read");
    let file = world.client.open(&remote("big")).await.expect("it opens");
    let mut buffer = vec![0; 100];
    file.read_at(&mut buffer, 0).await.expect("it reads");
    world.write("big", &big[1..]);
    let error = file.finish().await.expect_err("it was changed");
    assert_eq!(error.kind(), rdcp::ErrorKind::SourceChanged, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_range_is_read_by_the_calling_thread() {
    let world = World::new().await;
    let big = noise(10_000_000, 7);
    world.write("big", &big);
    world.write("small", &big[..100_000]);
    world.write("empty", b"");
    for (name, content) in [("big", &big[..]), ("small", &big[..100_000])] {
        let file = world.client.open(&remote(name)).await.expect("it opens");
        let (start, end) = (70_001, content.len() as u64 - 3);
        let mut region = file.hold(start..end).await.expect("it is held");
        assert_eq!(region.range(), start..end);
        assert_eq!(region.transport().transport, "tcp");
        // The region needs neither.
        drop(file);
        let mut buffer = region.buffer(5000).expect("memory");
        assert_eq!(buffer.len(), 5000);
        for (offset, len, wanted) in [
            (start, 1, 1),
            (start, 4096, 4096),
            (start + 12_345, 9999, 5000),
            (end - 7, 100, 7),
            (end - 7, 0, 0),
            (end, 100, 0),
            (u64::MAX, 100, 0),
        ] {
            let read = region.read_at(offset, &mut buffer, len).expect("it reads");
            assert_eq!(read, wanted, "{name} {offset} {len}");
            let expected = content.iter().skip(usize::try_from(offset).unwrap());
            assert!(
                buffer[..read].iter().eq(expected.take(read)),
                "{name} {offset}"
            );
        }
        let error = region
            .read_at(start - 1, &mut buffer, 1)
            .expect_err("before it");
        assert_eq!(error.kind(), rdcp::ErrorKind::Usage);
        assert!(region.buffer(0).is_err() && region.buffer((1 << 20) + 1).is_err());
    }
    let file = world.client.open(&remote("big")).await.expect("it opens");
    for wrong in [5..5, 0..10_000_001, 0..u64::MAX] {
        let error = file.hold(wrong).await.expect_err("no such range");
        assert_eq!(error.kind(), rdcp::ErrorKind::Usage);
    }
    let empty = world.client.open(&remote("empty")).await.expect("it opens");
    assert!(empty.hold(0..1).await.is_err());
    // A file that was exchanged is another one.
    world.write("big", &big[1..]);
    let error = file.hold(0..10).await.expect_err("it changed");
    assert_eq!(error.kind(), rdcp::ErrorKind::SourceChanged, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_range_ends_with_its_session_and_holes_are_not_fetched() {
    let world = World::new().await;
    let path = world.exported.path().join("sparse");
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(100 << 20).expect("its length");
    std::os::unix::fs::FileExt::write_all_at(&file, b"island", 5 << 20).expect("an island");
    let opened = world
        .client
        .open(&remote("sparse"))
        .await
        .expect("it opens");
    let mut region = opened.hold(4 << 20..60 << 20).await.expect("it is held");
    let mut hole = opened.hold(90 << 20..100 << 20).await.expect("it is held");
    let mut buffer = region.buffer(4096).expect("memory");
    buffer.fill(1);
    assert_eq!(
        region
            .read_at(5 << 20, &mut buffer, 4096)
            .expect("it reads"),
        4096
    );
    assert!(buffer.starts_with(b"island") && buffer[6..].iter().all(|byte| *byte == 0));
    buffer.fill(1);
    assert_eq!(
        hole.read_at(95 << 20, &mut buffer, 4096).expect("it reads"),
        4096
    );
    assert!(buffer.iter().all(|byte| *byte == 0));
    world.client.clone().close().await;
    let begun = std::time::Instant::now();
    let error = loop {
        // That the session is over is told to the region by a task.
        match region.read_at(5 << 20, &mut buffer, 4096) {
            Ok(read) => assert!(buffer[..read].starts_with(b"island")),
            Err(error) => break error,
        }
        assert!(begun.elapsed().as_secs() < 60, "it can still be read");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    };
    assert_eq!(error.kind(), rdcp::ErrorKind::Unreachable, "{error}");
    let again = region
        .read_at(5 << 20, &mut buffer, 4096)
        .expect_err("for good");
    assert_eq!(again.kind(), rdcp::ErrorKind::Unreachable, "{again}");
    assert_eq!(buffer.len(), 4096);
    drop((region, hole));
    buffer.fill(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hole_reads_as_zeros_and_costs_no_transfer() {
    let world = World::new().await;
    let path = world.exported.path().join("sparse");
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(1 << 30).expect("its length");
    std::os::unix::fs::FileExt::write_all_at(&file, b"island", 500 << 20).expect("an island");
    let opened = world
        .client
        .open(&remote("sparse"))
        .await
        .expect("it opens");
    let mut buffer = vec![1; 1 << 20];
    let at = (500 << 20) - 1000;
    assert_eq!(
        opened.read_at(&mut buffer, at).await.expect("it reads"),
        1 << 20
    );
    assert_eq!(&buffer[1000..1006], b"island");
    assert!(
        buffer[..1000]
            .iter()
            .chain(&buffer[1006..])
            .all(|&byte| byte == 0)
    );
    let mut far = vec![1; 1 << 20];
    opened.read_at(&mut far, 900 << 20).await.expect("it reads");
    assert!(far.iter().all(|&byte| byte == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_file_or_not_there_is_not_opened() {
    let world = World::new().await;
    std::fs::create_dir(world.exported.path().join("directory")).expect("a directory");
    let missing = world
        .client
        .open(&remote("missing"))
        .await
        .expect_err("nothing is there");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let directory = world
        .client
        .open(&remote("directory"))
        .await
        .expect_err("it is no file");
    assert_eq!(directory.kind(), ErrorKind::Usage);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_transfer_says_so_and_leaves_nothing() {
    let world = World::new().await;
    world.write("file", &noise(40_000_000, 3));
    let to = world.local.path().join("copy");
    let source = PullSource::new("data", "file");
    let transfer = world
        .client
        .pull(&[source], &to, TransferOptions::default());
    transfer.canceller().cancel();
    let error = transfer.finish().await.expect_err("it was cancelled");
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(!to.exists());
    let hidden = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.expect("an entry").file_name();
        name.to_string_lossy().starts_with(".rdcp-")
    };
    let mut left = std::fs::read_dir(world.local.path()).expect("the directory");
    assert!(!left.any(hidden), "a part file was left");
    // The session is as good as before.
    let source = PullSource::new("data", "file");
    let report = world
        .client
        .pull(&[source], &to, TransferOptions::default())
        .finish()
        .await;
    assert_eq!(report.expect("it ends well").files, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_transfers_share_one_session() {
    let world = World::new().await;
    let contents: Vec<_> = (0..12)
        .map(|n| noise(300_000 * (n + 1), n as u64))
        .collect();
    for (n, content) in contents.iter().enumerate() {
        world.write(&format!("f{n}"), content);
    }
    let transfers: Vec<_> = (0..contents.len())
        .map(|n| {
            let to = world.local.path().join(format!("f{n}"));
            let source = PullSource::new("data", format!("f{n}"));
            world
                .client
                .pull(&[source], &to, TransferOptions::default())
        })
        .collect();
    for transfer in transfers {
        assert_eq!(transfer.finish().await.expect("it ends well").files, 1);
    }
    for (n, content) in contents.iter().enumerate() {
        let copy = std::fs::read(world.local.path().join(format!("f{n}"))).expect("the copy");
        assert!(copy == *content, "f{n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transport_that_is_not_there_is_an_error_when_forced() {
    let world = World::new().await;
    let connect = async |transport| {
        let mut options = ClientOptions::default();
        options.known_hosts = Some(world.local.path().join("known"));
        options.unknown_host = UnknownHost::AcceptNew;
        options.transport = transport;
        Client::connect("127.0.0.1", world.port(), options).await
    };
    let error = connect(TransportChoice::Local)
        .await
        .err()
        .expect("there is none");
    assert_eq!(error.kind(), ErrorKind::TransportUnavailable);
    let client = connect(TransportChoice::Rdma)
        .await
        .expect("it is not known yet");
    let source = PullSource::new("data", "file");
    let transfer = client.pull(&[source], Path::new("nowhere"), TransferOptions::default());
    let error = transfer.finish().await.expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::TransportUnavailable);
    // Whatever RDMA there may be on this host is not asked for.
    let client = connect(TransportChoice::Tcp).await.expect("it is there");
    let chosen = client.transport().await.expect("it is there");
    assert_eq!(
        (chosen.transport, chosen.reason.as_str()),
        ("tcp", "tcp was asked for")
    );
}

#[tokio::test]
async fn addresses_that_others_reach_need_a_word() {
    let exported = TempDir::new().expect("a directory");
    let server = || {
        Server::builder()
            .export(Export::new("data", exported.path()))
            .listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))
    };
    let error = server().start().await.err().expect("it refuses");
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("auth = \"none\""))
    );
    server()
        .auth_none(true)
        .start()
        .await
        .expect("it was told to");
}

/// Fetches are numbered on three levels: by the engine, by the transfer, on the lane. More of them
/// than fit any small counter must all find their way back.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_very_many_chunks_arrives() {
    let world = World::new().await;
    let piece = noise(1 << 20, 11);
    let path = world.exported.path().join("long");
    let mut file = std::fs::File::create(&path).expect("a file");
    for _ in 0..400 {
        std::io::Write::write_all(&mut file, &piece).expect("room for it");
    }
    let mut options = TransferOptions::default();
    options.chunk = rdcp::ChunkSize::MIN;
    options.hash = HashKind::None;
    let to = world.local.path().join("long");
    let source = PullSource::new("data", "long");
    let report = world
        .client
        .pull(&[source], &to, options)
        .finish()
        .await
        .expect("it ends well");
    assert_eq!(report.bytes_moved, 400 << 20);
    let mut same = std::process::Command::new("cmp");
    assert!(
        same.arg(&path)
            .arg(&to)
            .status()
            .expect("cmp runs")
            .success()
    );
}
