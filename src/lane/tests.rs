//! One body of expectations, run over both reactors.
#![allow(clippy::cast_possible_truncation)] // Lengths of test files.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::*;
use crate::ids::{EntryId, RegionId, RemoteKey};
use crate::integrity::{ChunkHasher, HashPlan};
use crate::limits::READS_PER_CONNECTION_MAX;
use crate::storage::{DirectIo, SinkFile, SourceFile};
use crate::units::{ByteRange, ChunkIndex, ChunkSize};

/// Patience before a test calls something hung.
const PATIENCE: Duration = Duration::from_secs(60);
const KEY: RemoteKey = RemoteKey(77);

#[test]
fn conforms_over_readiness() {
    conformance(true);
}

#[test]
fn conforms_over_io_uring() {
    if ring::probe().is_ok() {
        conformance(false);
    }
}

fn conformance(force_readiness: bool) {
    let bench = Bench::new(force_readiness);
    sizes_around_every_boundary(&bench);
    a_chunk_of_many_slots(&bench);
    sources_in_memory_and_cold_ones(&bench);
    offsets_beyond_32_bits(&bench);
    holes_are_not_written(&bench);
    direct_writes(&bench);
    memory_is_delivered(&bench);
    reads_below_a_chunk_are_not_hashed(&bench);
    impossible_fetches(&bench);
    out_of_range_and_unknown(&bench);
    revoked(&bench);
    truncated_source(&bench);
    storage_that_fails(&bench);
    broken_headers(&bench);
    reads_out_of_any_range(&bench);
    half_close_in_mid_reply(&bench);
    detached_with_fetches(&bench);
    a_peer_that_never_reads(&bench);
    peers_that_never_read_do_not_use_up_slots(force_readiness);
    peers_that_never_finish_do_not_keep_slots(force_readiness);
    many_connections(&bench);
    deliveries_leave_slots_for_others(&bench);
    both_directions_at_once(&bench);
    shutdown_answers_all(force_readiness);
}

/// A sending and a receiving end.
struct Bench {
    sender: Lanes,
    receiver: Lanes,
}

/// One connection, with what both ends heard.
struct Link {
    near: DataConnection,
    heard: Receiver<LaneEvent>,
    _far: DataConnection,
    served: Receiver<LaneEvent>,
    regions: Arc<RegionTable>,
}

impl Bench {
    fn new(force_readiness: bool) -> Self {
        let options = LaneOptions {
            lanes: Some(2),
            force_readiness,
            ..LaneOptions::default()
        };
        let bench = Self {
            sender: Lanes::start(&options).unwrap(),
            receiver: Lanes::start(&options).unwrap(),
        };
        assert_eq!(bench.sender.describe().uring, !force_readiness);
        bench
    }

    fn link(&self, lane: usize) -> Link {
        let (near, far) = socket_pair();
        let (sink, heard) = events();
        let (far_sink, served) = events();
        let regions = RegionTable::new(Arc::clone(&far_sink));
        let nothing = RegionTable::new(Arc::clone(&sink));
        Link {
            near: self.receiver.attach(lane, near, keys(), nothing, sink),
            heard,
            _far: self
                .sender
                .attach(lane, far, far_keys(), Arc::clone(&regions), far_sink),
            served,
            regions,
        }
    }

    /// A receiving end whose peer is the test.
    fn receiver_of_raw(&self) -> (DataConnection, Receiver<LaneEvent>, TcpStream) {
        let (near, far) = socket_pair();
        let (sink, heard) = events();
        let nothing = RegionTable::new(Arc::clone(&sink));
        (
            self.receiver.attach(0, near, keys(), nothing, sink),
            heard,
            far,
        )
    }

    /// A sending end whose peer is the test.
    fn sender_to_raw(
        &self,
        lane: usize,
    ) -> (
        DataConnection,
        Receiver<LaneEvent>,
        Arc<RegionTable>,
        TcpStream,
    ) {
        let (near, far) = socket_pair();
        let (sink, heard) = events();
        let regions = RegionTable::new(Arc::clone(&sink));
        let table = Arc::clone(&regions);
        (
            self.sender.attach(lane, far, far_keys(), table, sink),
            heard,
            regions,
            near,
        )
    }
}

impl Link {
    fn landed(&self) -> (u64, Result<Landed, FetchError>) {
        landed(&self.heard)
    }

    fn fetch(&self, token: u64, range: ByteRange, hash: HashPlan, store: Store) {
        let (offset, len) = (range.start, range.len());
        self.near.fetch(Fetch {
            token,
            remote: KEY,
            offset,
            len,
            hash,
            store,
        });
    }
}

struct Plain {
    file: File,
    direct: Option<File>,
}

impl SourceFile for Plain {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl SinkFile for Plain {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }
    fn direct(&self) -> Option<DirectIo<'_>> {
        let file = self.direct.as_ref()?;
        Some(DirectIo {
            fd: file.as_fd(),
            alignment_bytes: 4096,
        })
    }
    fn allocate(&self, _: &[ByteRange]) -> io::Result<()> {
        Ok(())
    }
}

/// A sink that can't be written.
struct Full;

impl SinkFile for Full {
    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }
    fn allocate(&self, _: &[ByteRange]) -> io::Result<()> {
        Ok(())
    }
}

fn sizes_around_every_boundary(bench: &Bench) {
    let (page, segment, slot) = (
        4096,
        u64::from(SEGMENT_BYTES_MAX),
        LANDING_SLOT_BYTES as u64,
    );
    let link = bench.link(0);
    let mut sizes = vec![1, 2];
    for boundary in [page, segment, slot, slot + segment] {
        sizes.extend([boundary - 1, boundary, boundary + 1]);
    }
    for size in sizes {
        let content = noise(size);
        copy_and_compare(&link, &content, ChunkSize::DEFAULT, |file| Plain {
            file,
            direct: None,
        });
    }
}

fn a_chunk_of_many_slots(bench: &Bench) {
    let link = bench.link(1);
    let content = noise((5 << 20) + 12345);
    let chunk_size = ChunkSize::from_bytes(4 << 20).unwrap();
    copy_and_compare(&link, &content, chunk_size, |file| Plain {
        file,
        direct: None,
    });
}

/// Moves a whole file in chunks, and compares content, values at both ends, and events.
fn copy_and_compare(
    link: &Link,
    content: &[u8],
    chunk_size: ChunkSize,
    sink: impl Fn(File) -> Plain,
) {
    let len = content.len() as u64;
    expose_file(link, content, Some(chunk_size));
    let target = target_file();
    let file: Arc<dyn SinkFile> = Arc::new(sink(target.try_clone().unwrap()));
    let data: Arc<[ByteRange]> = Arc::from([ByteRange { start: 0, end: len }]);
    let chunks = chunk_size.count(len);
    for chunk in 0..chunks {
        let range = chunk_size.range(ChunkIndex(chunk), len);
        let (file, data) = (Arc::clone(&file), Arc::clone(&data));
        let store = Store::File {
            file,
            offset: range.start,
            data,
        };
        link.fetch(chunk, range, plan(chunk, chunk_size, len), store);
    }
    let mut values = vec![None; usize::try_from(chunks).unwrap()];
    for _ in 0..chunks {
        let (token, result) = link.landed();
        let landed = result.unwrap();
        assert!(landed.slot.is_none());
        values[usize::try_from(token).unwrap()] = landed.digest;
    }
    drop(file);
    for chunk in 0..chunks {
        let expected = expected_value(content, chunk, chunk_size);
        assert_eq!(
            values[usize::try_from(chunk).unwrap()],
            expected,
            "chunk {chunk} of {len}"
        );
        let LaneEvent::Hashed {
            entry: EntryId(5),
            chunk: hashed,
            value,
            ..
        } = next(&link.served, |event| {
            matches!(event, LaneEvent::Hashed { .. })
        })
        else {
            panic!()
        };
        assert_eq!((hashed, Some(value)), (ChunkIndex(chunk), expected));
    }
    let mut arrived = vec![0; content.len()];
    target.read_exact_at(&mut arrived, 0).unwrap();
    assert!(arrived == content, "content of {len} bytes");
    link.regions.revoke(RegionId(9));
    next(&link.served, |event| {
        matches!(
            event,
            LaneEvent::Revoked {
                region: RegionId(9)
            }
        )
    });
}

fn sources_in_memory_and_cold_ones(bench: &Bench) {
    let content = noise((6 << 20) + 77);
    let in_memory: File = rustix::fs::memfd_create("source", rustix::fs::MemfdFlags::CLOEXEC)
        .unwrap()
        .into();
    let on_disk = tempfile::tempfile().unwrap();
    for source in [in_memory, on_disk] {
        source.write_all_at(&content, 0).unwrap();
        source.sync_all().unwrap();
        // Advice: where it is not taken the source is warm, which must work as well.
        let _ = rustix::fs::fadvise(&source, 0, None, rustix::fs::Advice::DontNeed);
        let link = bench.link(0);
        let len = content.len() as u64;
        expose(
            &link.regions,
            RegionId(9),
            KEY,
            source,
            0,
            len,
            Some(ChunkSize::DEFAULT),
        );
        for chunk in 0..ChunkSize::DEFAULT.count(len) {
            let range = ChunkSize::DEFAULT.range(ChunkIndex(chunk), len);
            link.fetch(
                chunk,
                range,
                plan(chunk, ChunkSize::DEFAULT, len),
                Store::Discard,
            );
        }
        for _ in 0..ChunkSize::DEFAULT.count(len) {
            let (token, result) = link.landed();
            let expected = expected_value(&content, token, ChunkSize::DEFAULT);
            assert_eq!(result.unwrap().digest, expected);
        }
    }
}

fn offsets_beyond_32_bits(bench: &Bench) {
    let link = bench.link(0);
    let source = tempfile::tempfile().unwrap();
    let (position, len) = ((5 << 30) + (1 << 20), 100_000u64);
    let content = noise(len);
    source.write_all_at(&content, position).unwrap();
    let file_len = position + len;
    expose(
        &link.regions,
        RegionId(9),
        KEY,
        source,
        0,
        file_len,
        Some(ChunkSize::DEFAULT),
    );
    let target = target_file();
    let file: Arc<dyn SinkFile> = Arc::new(plain(&target));
    let data = Arc::from([ByteRange {
        start: 0,
        end: file_len,
    }]);
    let chunk = position >> 20;
    let range = ByteRange {
        start: position,
        end: file_len,
    };
    let store = Store::File {
        file,
        offset: position,
        data,
    };
    link.fetch(1, range, plan(chunk, ChunkSize::DEFAULT, file_len), store);
    assert!(link.landed().1.unwrap().digest.is_some());
    let mut arrived = vec![0; content.len()];
    target.read_exact_at(&mut arrived, position).unwrap();
    assert!(arrived == content);
    next(
        &link.served,
        |event| matches!(event, LaneEvent::Hashed { chunk: ChunkIndex(at), .. } if *at == chunk),
    );
}

fn holes_are_not_written(bench: &Bench) {
    let link = bench.link(0);
    let content = noise(300_000);
    expose_file(&link, &content, None);
    for direct in [false, true] {
        let target = target_file();
        let sink = Plain {
            direct: direct.then(|| target.try_clone().unwrap()),
            ..plain(&target)
        };
        let ranges = [(1000, 2000), (10_000, 270_000), (299_000, 400_000)];
        let data = Arc::from(ranges.map(|(start, end)| ByteRange { start, end }));
        let store = Store::File {
            file: Arc::new(sink),
            offset: 0,
            data,
        };
        link.fetch(
            2,
            ByteRange {
                start: 0,
                end: 300_000,
            },
            HashPlan::None,
            store,
        );
        assert!(link.landed().1.unwrap().digest.is_none());
        let mut arrived = vec![0; content.len()];
        target.read_exact_at(&mut arrived, 0).unwrap();
        let mut expected = vec![0; content.len()];
        for (start, end) in ranges {
            let part = start as usize..content.len().min(end as usize);
            expected[part.clone()].copy_from_slice(&content[part]);
        }
        assert!(arrived == expected);
    }
}

/// The direct descriptor is an ordinary one here, which takes the same operations everywhere.
fn direct_writes(bench: &Bench) {
    let link = bench.link(1);
    for size in [70_000, (3 << 20) + 5000, 4096, 4 << 20] {
        let content = noise(size);
        copy_and_compare(&link, &content, ChunkSize::DEFAULT, |file| {
            let direct = Some(file.try_clone().unwrap());
            Plain { file, direct }
        });
    }
}

fn memory_is_delivered(bench: &Bench) {
    let link = bench.link(0);
    let mut slot = Pool::new(1 << 20, 1).take().unwrap();
    let content = noise(700_000);
    slot[..content.len()].copy_from_slice(&content);
    let content_len = content.len() as u64;
    link.regions.expose(ServedRegion {
        region: RegionId(9),
        key: KEY,
        content: Served::Memory {
            slot: Arc::new(slot),
            len: content_len,
        },
    });
    link.fetch(
        3,
        ByteRange {
            start: 0,
            end: content_len,
        },
        HashPlan::None,
        Store::Deliver,
    );
    let landed = link.landed().1.unwrap();
    assert!(landed.slot.unwrap()[..content.len()] == content);
    link.fetch(
        4,
        ByteRange {
            start: 1000,
            end: 1010,
        },
        HashPlan::None,
        Store::Deliver,
    );
    assert_eq!(
        link.landed().1.unwrap().slot.unwrap()[..10],
        content[1000..1010]
    );
    // What was not filled is not shown.
    link.fetch(
        5,
        ByteRange {
            start: 0,
            end: content_len + 1,
        },
        HashPlan::None,
        Store::Deliver,
    );
    assert!(matches!(
        link.landed().1,
        Err(FetchError::Refused(Refusal::OutOfRange))
    ));
}

fn reads_below_a_chunk_are_not_hashed(bench: &Bench) {
    let link = bench.link(0);
    let content = noise(3 << 20);
    expose_file(&link, &content, Some(ChunkSize::DEFAULT));
    for (token, (start, end)) in [(0, 4096), (4096, 1 << 20), (8192, 9000)]
        .into_iter()
        .enumerate()
    {
        link.fetch(
            token as u64,
            ByteRange { start, end },
            HashPlan::None,
            Store::Discard,
        );
        link.landed().1.unwrap();
    }
    // The first two READs make one whole chunk; nothing else does.
    link.regions.revoke(RegionId(9));
    let mut hashed = Vec::new();
    loop {
        match link.served.recv_timeout(PATIENCE).unwrap() {
            LaneEvent::Hashed { chunk, value, .. } => hashed.push((chunk, value)),
            LaneEvent::Revoked { .. } => break,
            _ => {}
        }
    }
    let expected = expected_value(&content, 0, ChunkSize::DEFAULT).unwrap();
    assert_eq!(hashed, [(ChunkIndex(0), expected)]);
}

fn impossible_fetches(bench: &Bench) {
    let link = bench.link(0);
    let none = HashPlan::None;
    let remote = KEY;
    let big = LANDING_SLOT_BYTES as u64 + 1;
    for (offset, len, store) in [
        (0, 0, Store::Discard),
        (0, big, Store::Deliver),
        (u64::MAX, 2, Store::Discard),
    ] {
        link.near.fetch(Fetch {
            token: 8,
            remote,
            offset,
            len,
            hash: none,
            store,
        });
        assert!(matches!(link.landed(), (8, Err(FetchError::Invalid(_)))));
    }
}

fn out_of_range_and_unknown(bench: &Bench) {
    let link = bench.link(1);
    let content = noise(100_000);
    expose_file(&link, &content, None);
    let refused = |start, end| {
        link.fetch(1, ByteRange { start, end }, HashPlan::None, Store::Discard);
        match link.landed().1 {
            Err(FetchError::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(0, 100_001), Refusal::OutOfRange);
    assert_eq!(refused(100_000, 100_001), Refusal::OutOfRange);
    assert_eq!(refused(1 << 63, (1 << 63) + 1), Refusal::OutOfRange);
    assert_eq!(refused(u64::MAX - 1, u64::MAX), Refusal::OutOfRange);
    // A fetch of many READs is answered once, and the connection lives on.
    assert_eq!(refused(0, 50 << 20), Refusal::OutOfRange);
    let (remote, hash, store) = (RemoteKey(KEY.0 + 1), HashPlan::None, Store::Discard);
    link.near.fetch(Fetch {
        token: 2,
        remote,
        offset: 0,
        len: 1,
        hash,
        store,
    });
    assert!(matches!(
        link.landed(),
        (2, Err(FetchError::Refused(Refusal::UnknownKey)))
    ));
    link.fetch(
        3,
        ByteRange {
            start: 0,
            end: 100_000,
        },
        HashPlan::None,
        Store::Discard,
    );
    link.landed().1.unwrap();
}

fn revoked(bench: &Bench) {
    let link = bench.link(0);
    expose_file(&link, &noise(100_000), None);
    link.regions.revoke(RegionId(9));
    next(&link.served, |event| {
        matches!(
            event,
            LaneEvent::Revoked {
                region: RegionId(9)
            }
        )
    });
    link.fetch(
        1,
        ByteRange { start: 0, end: 1 },
        HashPlan::None,
        Store::Discard,
    );
    assert!(matches!(
        link.landed().1,
        Err(FetchError::Refused(Refusal::UnknownKey))
    ));
}

fn truncated_source(bench: &Bench) {
    let link = bench.link(0);
    let source = tempfile::tempfile().unwrap();
    source.write_all_at(&noise(700_000), 0).unwrap();
    expose(&link.regions, RegionId(9), KEY, source, 0, 1 << 20, None);
    // The first segments come, then the source ends.
    link.fetch(
        1,
        ByteRange {
            start: 0,
            end: 1 << 20,
        },
        HashPlan::None,
        Store::Discard,
    );
    assert!(matches!(
        link.landed().1,
        Err(FetchError::Refused(Refusal::SourceFailed))
    ));
    let event = next(&link.served, |event| {
        matches!(event, LaneEvent::SourceFailed { .. })
    });
    let LaneEvent::SourceFailed {
        entry: EntryId(5),
        error,
        ..
    } = event
    else {
        panic!()
    };
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    link.fetch(
        2,
        ByteRange {
            start: 0,
            end: 600_000,
        },
        HashPlan::None,
        Store::Discard,
    );
    link.landed().1.unwrap();
}

fn storage_that_fails(bench: &Bench) {
    let link = bench.link(0);
    let content = noise(5 << 20);
    expose_file(&link, &content, None);
    let whole = ByteRange {
        start: 0,
        end: 5 << 20,
    };
    let store = Store::File {
        file: Arc::new(Full),
        offset: 0,
        data: Arc::from([whole]),
    };
    link.fetch(1, whole, HashPlan::None, store);
    let Err(FetchError::Storage(error)) = link.landed().1 else {
        panic!()
    };
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    link.fetch(2, whole, HashPlan::None, Store::Discard);
    link.landed().1.unwrap();
}

fn broken_headers(bench: &Bench) {
    for (index, garbage) in [vec![0; 64], noise(64), noise(100_000)]
        .into_iter()
        .enumerate()
    {
        let (near, heard, mut far) = bench.receiver_of_raw();
        let whole = ByteRange {
            start: 0,
            end: 1000,
        };
        let (offset, len) = (whole.start, whole.len());
        let (hash, store) = (HashPlan::None, Store::Discard);
        near.fetch(Fetch {
            token: 1,
            remote: KEY,
            offset,
            len,
            hash,
            store,
        });
        // The peer may have hung up before all of it was written.
        let _ = far.write_all(&garbage);
        assert!(
            matches!(landed(&heard), (1, Err(FetchError::ConnectionLost))),
            "{index}"
        );
        let lost = next(&heard, |event| {
            matches!(event, LaneEvent::ConnectionLost { .. })
        });
        let LaneEvent::ConnectionLost { connection, reason } = lost else {
            panic!()
        };
        assert_eq!(connection, near.id());
        assert!(matches!(reason, LostReason::Protocol(_)), "{reason}");
        // A fetch that comes too late is answered as well.
        let store = Store::Discard;
        near.fetch(Fetch {
            token: 2,
            remote: KEY,
            offset,
            len,
            hash,
            store,
        });
        assert!(matches!(
            landed(&heard),
            (2, Err(FetchError::ConnectionLost))
        ));
    }
}

fn reads_out_of_any_range(bench: &Bench) {
    let (_far, _, regions, mut near) = bench.sender_to_raw(0);
    expose(
        &regions,
        RegionId(9),
        KEY,
        tempfile::tempfile().unwrap(),
        0,
        1 << 20,
        None,
    );
    let mut peer = crate::transport::tcp::Scripted::new(&keys());
    let reads = [
        (0, 1 << 63),
        (1 << 63, 1 << 63),
        (u64::MAX, u64::MAX),
        ((1 << 20) - 1, 2),
    ];
    for (offset, len) in reads {
        near.write_all(&peer.read(KEY, offset, len)).unwrap();
        assert_eq!(peer.refusal(&mut near), Some(Refusal::OutOfRange));
    }
    // Nothing to read is no READ.
    near.write_all(&peer.read(KEY, 0, 0)).unwrap();
    assert_eq!(near.read(&mut [0; 1]).unwrap_or(0), 0);
    // Nor is one more than may be open.
    let (_far, heard, regions, mut near) = bench.sender_to_raw(0);
    expose_content(&regions, &noise(4 << 20), None);
    let mut peer = crate::transport::tcp::Scripted::new(&keys());
    for _ in 0..READS_PER_CONNECTION_MAX * 2 {
        // The end comes while this is still being written.
        let _ = near.write_all(&peer.read(KEY, 0, 4 << 20));
    }
    let lost = next(&heard, |event| {
        matches!(event, LaneEvent::ConnectionLost { .. })
    });
    assert!(matches!(
        lost,
        LaneEvent::ConnectionLost {
            reason: LostReason::Protocol(_),
            ..
        }
    ));
}

fn half_close_in_mid_reply(bench: &Bench) {
    let (near, heard, mut far) = bench.receiver_of_raw();
    for token in 0..5 {
        let (offset, len, hash) = (0, 200_000, HashPlan::None);
        near.fetch(Fetch {
            token,
            remote: KEY,
            offset,
            len,
            hash,
            store: Store::Discard,
        });
    }
    let mut peer = crate::transport::tcp::Scripted::new(&far_keys());
    far.read_exact(&mut [0; 5 * 64]).unwrap();
    far.write_all(&peer.data(0, 0, 200_000, true)).unwrap();
    far.write_all(&noise(123_456)).unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    let mut tokens: Vec<u64> = (0..5)
        .map(|_| {
            let (token, result) = landed(&heard);
            assert!(matches!(result, Err(FetchError::ConnectionLost)));
            token
        })
        .collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [0, 1, 2, 3, 4]);
    let lost = next(&heard, |event| {
        matches!(event, LaneEvent::ConnectionLost { .. })
    });
    assert!(matches!(
        lost,
        LaneEvent::ConnectionLost {
            reason: LostReason::Closed,
            ..
        }
    ));
    assert!(heard.try_recv().is_err(), "answered once");
}

fn detached_with_fetches(bench: &Bench) {
    let (near, heard, _far) = bench.receiver_of_raw();
    for token in 0..100 {
        let (offset, len, hash) = (0, 200_000, HashPlan::None);
        near.fetch(Fetch {
            token,
            remote: KEY,
            offset,
            len,
            hash,
            store: Store::Discard,
        });
    }
    drop(near);
    for _ in 0..100 {
        assert!(matches!(landed(&heard).1, Err(FetchError::ConnectionLost)));
    }
    let lost = next(&heard, |event| {
        matches!(event, LaneEvent::ConnectionLost { .. })
    });
    assert!(matches!(
        lost,
        LaneEvent::ConnectionLost {
            reason: LostReason::Detached,
            ..
        }
    ));
}

fn a_peer_that_never_reads(bench: &Bench) {
    let (_far, _heard, regions, mut near) = bench.sender_to_raw(0);
    let content = noise(8 << 20);
    expose_content(&regions, &content, None);
    let mut peer = crate::transport::tcp::Scripted::new(&keys());
    for _ in 0..READS_PER_CONNECTION_MAX {
        near.write_all(&peer.read(KEY, 0, 8 << 20)).unwrap();
    }
    let link = bench.link(0);
    copy_and_compare(&link, &content, ChunkSize::DEFAULT, |file| Plain {
        file,
        direct: None,
    });
}

fn peers_that_never_read_do_not_use_up_slots(force_readiness: bool) {
    // The smallest lane: its serving slots are fewer than the peers that never read.
    let options = LaneOptions {
        lanes: Some(1),
        memory_bytes: 0,
        force_readiness,
        ..LaneOptions::default()
    };
    let (sender, receiver) = (
        Lanes::start(&options).unwrap(),
        Lanes::start(&options).unwrap(),
    );
    let bench = Bench { sender, receiver };
    let content = noise(32 << 20);
    let mut stuck: Vec<_> = (0..SLOTS_MIN * 3)
        .map(|_| {
            let (far, heard, regions, mut near) = bench.sender_to_raw(0);
            expose_content(&regions, &content, None);
            let mut peer = crate::transport::tcp::Scripted::new(&keys());
            near.write_all(&peer.read(KEY, 0, 32 << 20)).unwrap();
            (far, heard, regions, near, peer)
        })
        .collect();
    let link = bench.link(0);
    copy_and_compare(&link, &content, ChunkSize::DEFAULT, |file| Plain {
        file,
        direct: None,
    });
    // What waited goes on, unharmed.
    for (_, _, _, near, peer) in &mut stuck {
        let mut arrived = Vec::new();
        while arrived.len() < content.len() {
            peer.segment(near, &mut arrived);
        }
        assert!(arrived == content);
    }
}

fn peers_that_never_finish_do_not_keep_slots(force_readiness: bool) {
    // The smallest lane: its landing slots are fewer than the peers that never finish a reply.
    let options = LaneOptions {
        lanes: Some(1),
        memory_bytes: 0,
        force_readiness,
        landing_patience: Duration::from_millis(100),
    };
    let (sender, receiver) = (
        Lanes::start(&options).unwrap(),
        Lanes::start(&options).unwrap(),
    );
    let bench = Bench { sender, receiver };
    let stuck: Vec<_> = (0..SLOTS_MIN * 3)
        .map(|token| {
            let (near, heard, mut far) = bench.receiver_of_raw();
            near.fetch(Fetch {
                token: token as u64,
                remote: KEY,
                offset: 0,
                len: 200_000,
                hash: HashPlan::None,
                store: Store::Discard,
            });
            let mut peer = crate::transport::tcp::Scripted::new(&far_keys());
            far.read_exact(&mut [0; 64]).unwrap();
            far.write_all(&peer.data(0, 0, 200_000, true)).unwrap();
            far.write_all(&noise(1000)).unwrap();
            (near, heard, far)
        })
        .collect();
    let content = noise(8 << 20);
    let link = bench.link(0);
    expose_content(&link.regions, &content, None);
    copy_and_compare(&link, &content, ChunkSize::DEFAULT, |file| Plain {
        file,
        direct: None,
    });
    // At least as many had to go as were in the way.
    let ended = stuck.iter().filter(|(_, heard, _)| {
        heard.try_iter().any(|event| {
            matches!(
                event,
                LaneEvent::ConnectionLost {
                    reason: LostReason::Stalled,
                    ..
                }
            )
        })
    });
    assert!(ended.count() > SLOTS_MIN);
}

fn many_connections(bench: &Bench) {
    let content = noise(3 << 20);
    let links: Vec<Link> = (0..64).map(|index| bench.link(index)).collect();
    for link in &links {
        expose_file(link, &content, None);
        for token in 0..6 {
            let start = token << 19;
            let hash = HashPlan::None;
            link.fetch(
                token,
                ByteRange {
                    start,
                    end: start + (1 << 19),
                },
                hash,
                Store::Deliver,
            );
        }
    }
    // Slots that wait to be looked at are missing elsewhere: look as they come.
    let mut outstanding = links.len() * 6;
    let deadline = Instant::now() + PATIENCE;
    while outstanding > 0 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
        for event in links.iter().flat_map(|link| link.heard.try_iter()) {
            let LaneEvent::Landed { token, result } = event else {
                panic!("{event:?}")
            };
            let slot = result.unwrap().slot.unwrap();
            let start = (token << 19) as usize;
            assert!(slot[..1 << 19] == content[start..start + (1 << 19)]);
            outstanding -= 1;
        }
    }
}

/// Slots that a session holds on to are not missed by those that store.
fn deliveries_leave_slots_for_others(bench: &Bench) {
    let content = noise(1 << 20);
    let hoarder = bench.link(0);
    expose_file(&hoarder, &content, None);
    for token in 0..200 {
        hoarder.fetch(
            token,
            ByteRange {
                start: 0,
                end: 1000,
            },
            HashPlan::None,
            Store::Deliver,
        );
    }
    let link = bench.link(0);
    copy_and_compare(&link, &content, ChunkSize::DEFAULT, |file| Plain {
        file,
        direct: None,
    });
    for _ in 0..200 {
        hoarder.landed().1.unwrap();
    }
}

fn both_directions_at_once(bench: &Bench) {
    let (near, far) = socket_pair();
    let content = noise(6 << 20);
    let ends = [
        (near, keys(), &bench.receiver),
        (far, far_keys(), &bench.sender),
    ];
    let ends: Vec<_> = ends
        .into_iter()
        .map(|(stream, keys, lanes)| {
            let (sink, heard) = events();
            let regions = RegionTable::new(Arc::clone(&sink));
            expose_content(&regions, &content, None);
            (lanes.attach(1, stream, keys, regions, sink), heard)
        })
        .collect();
    for (connection, _) in &ends {
        for token in 0..60 {
            let (remote, offset, len) = (KEY, (token % 6) << 20, 1 << 20);
            let (hash, store) = (HashPlan::None, Store::Discard);
            connection.fetch(Fetch {
                token,
                remote,
                offset,
                len,
                hash,
                store,
            });
        }
    }
    for (_, heard) in &ends {
        for _ in 0..60 {
            landed(heard).1.unwrap();
        }
    }
}

fn shutdown_answers_all(force_readiness: bool) {
    let bench = Bench::new(force_readiness);
    let (near, heard, _far) = bench.receiver_of_raw();
    let fetch = |token| {
        let (offset, len, hash) = (0, 200_000, HashPlan::None);
        near.fetch(Fetch {
            token,
            remote: KEY,
            offset,
            len,
            hash,
            store: Store::Discard,
        });
    };
    fetch(1);
    bench.receiver.shutdown();
    fetch(2);
    for _ in 0..2 {
        assert!(matches!(landed(&heard).1, Err(FetchError::ConnectionLost)));
    }
}

fn socket_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

fn keys() -> ConnectionKeys {
    ConnectionKeys {
        send: [1; 32],
        receive: [2; 32],
    }
}

fn far_keys() -> ConnectionKeys {
    ConnectionKeys {
        send: [2; 32],
        receive: [1; 32],
    }
}

fn events() -> (EventSink, Receiver<LaneEvent>) {
    let (sender, receiver) = channel();
    (Arc::new(move |event| drop(sender.send(event))), receiver)
}

/// The next event that fits; others are passed over.
fn next(events: &Receiver<LaneEvent>, fits: impl Fn(&LaneEvent) -> bool) -> LaneEvent {
    loop {
        let event = events.recv_timeout(PATIENCE).expect("an event");
        if fits(&event) {
            return event;
        }
    }
}

fn landed(events: &Receiver<LaneEvent>) -> (u64, Result<Landed, FetchError>) {
    match next(events, |event| matches!(event, LaneEvent::Landed { .. })) {
        LaneEvent::Landed { token, result } => (token, result),
        other => panic!("{other:?}"),
    }
}

fn noise(len: u64) -> Vec<u8> {
    let mut state = 0x2545_F491_4F6C_DD1Du64 ^ len;
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(usize::try_from(len).unwrap());
    bytes
}

fn plan(chunk: u64, chunk_size: ChunkSize, file_len: u64) -> HashPlan {
    HashPlan::Blake3 {
        chunk: ChunkIndex(chunk),
        chunk_size,
        file_len,
    }
}

fn expected_value(content: &[u8], chunk: u64, chunk_size: ChunkSize) -> Option<[u8; 32]> {
    let len = content.len() as u64;
    let range = chunk_size.range(ChunkIndex(chunk), len);
    let mut hasher = ChunkHasher::new(&plan(chunk, chunk_size, len));
    let (start, end) = (
        usize::try_from(range.start).unwrap(),
        usize::try_from(range.end).unwrap(),
    );
    hasher.update(&content[start..end]);
    hasher.finish()
}

fn target_file() -> File {
    tempfile::tempfile().unwrap()
}

fn plain(file: &File) -> Plain {
    Plain {
        file: file.try_clone().unwrap(),
        direct: None,
    }
}

fn expose_file(link: &Link, content: &[u8], hash: Option<ChunkSize>) {
    expose_content(&link.regions, content, hash);
}

fn expose_content(regions: &RegionTable, content: &[u8], hash: Option<ChunkSize>) {
    let source = tempfile::tempfile().unwrap();
    source.write_all_at(content, 0).unwrap();
    expose(
        regions,
        RegionId(9),
        KEY,
        source,
        0,
        content.len() as u64,
        hash,
    );
}

fn expose(
    regions: &RegionTable,
    region: RegionId,
    key: RemoteKey,
    source: File,
    file_offset: u64,
    file_len: u64,
    hash: Option<ChunkSize>,
) {
    let file = Arc::new(Plain {
        file: source,
        direct: None,
    });
    let (entry, len) = (EntryId(5), file_len - file_offset);
    let content = Served::File {
        file,
        entry,
        file_offset,
        len,
        file_len,
        hash,
    };
    regions.expose(ServedRegion {
        region,
        key,
        content,
    });
}
