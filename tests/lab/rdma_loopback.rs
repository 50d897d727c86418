//! RDMA from end to end in one process: two endpoints on one port, real lanes on both sides.
//!
//! Wants a machine with an RDMA device, soft-RoCE for one, and ends with an error at the first thing
//! that is not as it must be. Prints what it found; figures are for people and are not judged.
//!
//! ```text
//! rdma_loopback [key=value]...   steps=data,files,speed,kill,revoke,cycles (all of these)
//!                                      port,unplug (only when named: they take the device away)
//!                                folder=/tmp (of a file system to serve from)  size_mib=256
//!                                cycles=500  window=8  depth=16
//!                                netdev=v0 device=rxe0 (of `port` and `unplug`)
//! ```
#![allow(clippy::cast_precision_loss)] // Figures for people.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rdcp::ids::RemoteKey;
use rdcp::integrity::{ChunkHasher, HashPlan};
use rdcp::lane::{
    DataConnection, EventSink, Fetch, FetchError, Landed, LaneEvent, LaneOptions, Lanes,
    LostReason, RegionTable, Store,
};
use rdcp::memory::{Pool, Slot};
use rdcp::storage::SinkFile;
use rdcp::transport::rdma::{
    self, Endpoint, FileAccess, GidKind, LinkLayer, LinkOptions, PortFacts, ProbeRegion,
    RailPolicy, RegionAddress, RemotePort, SessionDomains,
};
use rdcp::units::{ByteRange, ChunkIndex, ChunkSize};

/// Before something is called hung. Emulated machines are slow.
const PATIENCE: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;
const SLOT_BYTES: usize = 4 * MIB;

fn main() {
    let mut settings: HashMap<String, String> = HashMap::new();
    for argument in std::env::args().skip(1) {
        let (key, value) = argument.split_once('=').expect("key=value");
        settings.insert(key.to_owned(), value.to_owned());
    }
    let text = |key: &str, default: &str| settings.get(key).map_or(default, |v| v).to_owned();
    let number = |key: &str, default: &str| text(key, default).parse().expect("a number");
    let bench = Bench::new(number("depth", "16"), number("window", "8"));
    let folder = PathBuf::from(text("folder", "/tmp"));
    for step in text("steps", "data,files,speed,kill,revoke,cycles").split(',') {
        println!("-- {step}");
        match step {
            "data" => data(&bench, &folder),
            "files" => files(&bench, &folder),
            "speed" => speed(&bench, number("size_mib", "256")),
            "kill" => kill(&bench),
            "revoke" => revoke(&bench),
            "cycles" => cycles(&bench, number("cycles", "500")),
            "port" => port_down(&bench, &text("netdev", "v0")),
            "unplug" => unplug(&bench, &text("device", "rxe0"), &text("netdev", "v0")),
            other => panic!("no step {other}"),
        }
    }
    println!("all as it must be");
}

/// Both ends' lanes, and how they are to be joined.
struct Bench {
    receiver: Lanes,
    sender: Lanes,
    depth: usize,
    window: usize,
}

/// One connection, with what both ends heard.
struct Link {
    near: Option<DataConnection>,
    far: Option<DataConnection>,
    heard: Receiver<LaneEvent>,
    served: Receiver<LaneEvent>,
    /// The sending end's: what it registers, the receiving end may READ.
    serving: SessionDomains,
    _receiving: SessionDomains,
}

/// What is to be fetched.
#[derive(Clone, Copy)]
struct Range {
    address: u64,
    key: RemoteKey,
    len: u64,
}

impl Bench {
    fn new(depth: usize, window: usize) -> Self {
        let options = LaneOptions {
            lanes: Some(1),
            ..LaneOptions::default()
        };
        let bench = Self {
            receiver: Lanes::start(&options).expect("lanes"),
            sender: Lanes::start(&options).expect("lanes"),
            depth,
            window,
        };
        println!("lanes: {}", bench.receiver.describe().reason);
        println!("port: {:?}", usable_port().expect("a usable port"));
        bench
    }

    fn link(&self) -> Link {
        let facts = usable_port().expect("a usable port");
        let (receiving, serving) = (SessionDomains::new(), SessionDomains::new());
        let make = |domains| Endpoint::new(domains, &facts, self.depth).expect("endpoint");
        let (near, far) = (make(&receiving), make(&serving));
        let gid = best_gid(&facts);
        let remote = |end: &Endpoint| RemotePort {
            gid: facts.gids[gid].gid,
            lid: facts.lid,
            qp_number: end.number(),
            psn: end.psn(),
        };
        let options = LinkOptions {
            mtu: facts.mtu,
            gid_index: facts.gids[gid].index,
            traffic_class: 0,
            service_level: 0,
            retry_cnt: 6,
            timeout: 14,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: facts.max_qp_init_rd_atom.min(facts.max_qp_rd_atom),
            max_dest_rd_atomic: facts.max_qp_rd_atom.min(facts.max_qp_init_rd_atom),
            peer_max_msg_bytes: facts.max_msg_bytes,
        };
        let (to_near, to_far) = (remote(&near), remote(&far));
        let mut near = near.connect(&to_far, &options).expect("connect");
        let mut far = far.connect(&to_near, &options).expect("connect");
        for (end, peer, nonce) in [(&mut near, &serving, 7), (&mut far, &receiving, 9)] {
            let region = ProbeRegion::new(peer, &facts, [nonce; 32]).expect("probe region");
            let deadline = Instant::now() + PATIENCE;
            let read = end.probe(region.address(), region.key(), deadline);
            assert_eq!(read.expect("probe"), [nonce; 32]);
        }
        let (sink, heard) = events();
        let (far_sink, served) = events();
        let attach = |lanes: &Lanes, end: rdma::Connected, sink: EventSink| {
            let nothing = RegionTable::new(Arc::clone(&sink));
            lanes.attach_rdma(0, end.into_connection(), nothing, sink)
        };
        Link {
            near: Some(attach(&self.receiver, near, sink)),
            far: Some(attach(&self.sender, far, far_sink)),
            heard,
            served,
            serving,
            _receiving: receiving,
        }
    }
}

impl Link {
    fn fetch(&self, token: u64, range: Range, hash: HashPlan, store: Store) {
        let near = self.near.as_ref().expect("not dropped");
        near.fetch(Fetch {
            token,
            remote: range.key,
            offset: range.address,
            len: range.len,
            hash,
            store,
        });
    }

    /// The next fetch that is over.
    fn landed(&self) -> (u64, Result<Landed, FetchError>) {
        loop {
            let event = self.heard.recv_timeout(PATIENCE).expect("an event");
            if let LaneEvent::Landed { token, result } = event {
                return (token, result);
            }
        }
    }

    /// A slot full of a pattern, which the receiving end may READ.
    fn served_slot(&self) -> (Slot, RegionAddress) {
        let mut slot = Pool::new(SLOT_BYTES, 1).take().expect("a slot");
        fill(&mut slot, 0);
        let mut addresses = self.serving.register_slot(&mut slot).expect("register");
        assert_eq!(addresses.len(), 1);
        (slot, addresses.remove(0))
    }

    /// Why the connection ended, as the end with these events heard.
    fn lost(events: &Receiver<LaneEvent>) -> LostReason {
        loop {
            let event = events.recv_timeout(PATIENCE).expect("an event");
            if let LaneEvent::ConnectionLost { reason, .. } = event {
                return reason;
            }
        }
    }

    /// Ends both ends, and waits until they have ended.
    fn close(mut self) {
        drop(self.near.take());
        drop(self.far.take());
        assert!(matches!(Self::lost(&self.heard), LostReason::Detached));
        assert!(matches!(Self::lost(&self.served), LostReason::Detached));
    }
}

/// Memory arrives byte by byte as it is, hashed, delivered and stored, in odd pieces too.
fn data(bench: &Bench, folder: &Path) {
    let link = bench.link();
    let (slot, region) = link.served_slot();
    let mut token = 0;
    for (start, len) in [
        (0, 1),
        (1, 4095),
        (4097, 65_537),
        (0, MIB),
        (MIB + 1, MIB - 1),
    ] {
        let range = Range {
            address: region.address + start as u64,
            key: region.key,
            len: len as u64,
        };
        link.fetch(token, range, HashPlan::None, Store::Deliver);
        let (answered, result) = link.landed();
        let delivered = result.expect("landed").slot.expect("delivered");
        assert_eq!(answered, token);
        assert!(
            delivered[..len] == slot[start..start + len],
            "{start}+{len}"
        );
        token += 1;
    }
    let path = folder.join("rdma_loopback.sink");
    let sink: Arc<dyn SinkFile> = Arc::new(Sink(File::create(&path).expect("sink")));
    let range = Range {
        address: region.address,
        key: region.key,
        len: SLOT_BYTES as u64,
    };
    check_chunks(bench, &link, range, 0, &slot, |at| {
        let everything = ByteRange {
            start: 0,
            end: SLOT_BYTES as u64,
        };
        Store::File {
            file: Arc::clone(&sink),
            offset: at,
            data: Arc::from([everything]),
        }
    });
    assert!(
        std::fs::read(&path).expect("sink") == slot[..],
        "stored bytes"
    );
    std::fs::remove_file(&path).expect("sink");
    // Keys that no adapter knows cost the connection, and nothing else.
    let strange = Range {
        key: RemoteKey(1 << 32),
        ..range
    };
    link.fetch(token, strange, HashPlan::None, Store::Discard);
    assert!(link.landed().1.is_err());
    bench.link().close();
}

/// Every way to serve a file that works here delivers the file's bytes.
fn files(bench: &Bench, folder: &Path) {
    let path = folder.join("rdma_loopback.source");
    let mut content = vec![0; 9 * MIB + 12_345];
    fill(&mut content, 5);
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&path)
        .expect("source");
    file.write_all(&content).expect("source");
    let readable = File::open(&path).expect("source");
    let link = bench.link();
    let trial = link.serving.file_access(readable.as_fd()).expect("trial");
    println!(
        "{}: {} ({})",
        folder.display(),
        trial.possible,
        trial.reason
    );
    assert_eq!(
        link.serving.file_access(readable.as_fd()).expect("cached"),
        trial
    );
    for access in [FileAccess::OnDemand, FileAccess::Pinned] {
        // From the beginning of a page: soft-RoCE of Linux 7.3 answers on-demand READs that begin
        // elsewhere with bytes of the next page.
        let within = if access == FileAccess::OnDemand {
            0
        } else {
            77
        };
        let (offset, len) = (4096 + within, content.len() - 4096 - within);
        let window =
            link.serving
                .register_file_window(readable.as_fd(), offset as u64, len, access);
        let window = match window {
            Ok(window) => window,
            Err(error) => {
                assert!(
                    access < trial.possible,
                    "{access} was said to work: {error}"
                );
                println!("{access}: {error}");
                continue;
            }
        };
        let address = window.addresses()[0].clone();
        let range = Range {
            address: address.address,
            key: address.key,
            len: len as u64,
        };
        check_chunks(bench, &link, range, 0, &content[offset..], |_| {
            Store::Discard
        });
        println!("{access}: all bytes right");
        drop(window);
    }
    if trial.possible == FileAccess::OnDemand {
        let window = link
            .serving
            .register_file_window(readable.as_fd(), 0, content.len(), FileAccess::OnDemand)
            .expect("window");
        file.set_len(MIB as u64).expect("truncate");
        let address = window.addresses()[0].clone();
        let range = Range {
            address: address.address + 4 * MIB as u64,
            key: address.key,
            len: MIB as u64,
        };
        link.fetch(0, range, HashPlan::None, Store::Discard);
        let result = link.landed().1;
        assert!(matches!(result, Err(FetchError::Access)), "{result:?}");
        println!("odp: a file that was cut shorter is refused");
    }
    drop(file);
    std::fs::remove_file(&path).expect("source");
    bench.link().close();
}

fn speed(bench: &Bench, size_mib: usize) {
    let link = bench.link();
    let (slot, region) = link.served_slot();
    for hashed in [false, true, false, true] {
        let begin = Instant::now();
        let (mut posted, mut landed) = (0, 0);
        while landed < size_mib {
            while posted < size_mib && posted - landed < bench.window {
                let at = posted % (SLOT_BYTES / MIB);
                let range = Range {
                    address: region.address + (at * MIB) as u64,
                    key: region.key,
                    len: MIB as u64,
                };
                let hash = if hashed {
                    plan(at as u64, SLOT_BYTES as u64)
                } else {
                    HashPlan::None
                };
                link.fetch(posted as u64, range, hash, Store::Discard);
                posted += 1;
            }
            link.landed().1.expect("landed");
            landed += 1;
        }
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{size_mib} MiB, {}: {:.1} MiB/s",
            if hashed { "blake3" } else { "no hash" },
            size_mib as f64 / seconds
        );
    }
    drop(slot);
    link.close();
}

/// The peer's queue pair goes while READs are under way: each fetch is answered once, none with
/// other people's fault, and the lanes go on.
fn kill(bench: &Bench) {
    for far_dies in [true, false] {
        let mut link = bench.link();
        let (slot, region) = link.served_slot();
        many(&link, &region, 48);
        let mut outcomes = Outcomes::default();
        for _ in 0..4 {
            outcomes.count(link.landed());
        }
        assert_eq!(outcomes.landed, 4);
        let begin = Instant::now();
        if far_dies {
            drop(link.far.take());
        } else {
            drop(link.near.take());
        }
        for _ in 4..48 {
            outcomes.count(link.landed());
        }
        println!(
            "{} end gone: {outcomes:?} after {:?}: {}",
            if far_dies { "far" } else { "near" },
            begin.elapsed(),
            Link::lost(&link.heard)
        );
        assert!(outcomes.lost > 0 && outcomes.access == 0, "{outcomes:?}");
        drop(slot);
    }
    bench.link().close();
}

/// A region goes while READs of it are under way, then before others are posted: the first of those
/// is told so, and its followers are lost without blame. The process and its lanes go on.
fn revoke(bench: &Bench) {
    let link = bench.link();
    let (slot, region) = link.served_slot();
    many(&link, &region, 48);
    let mut outcomes = Outcomes::default();
    for _ in 0..4 {
        outcomes.count(link.landed());
    }
    drop(slot);
    for _ in 4..48 {
        outcomes.count(link.landed());
    }
    println!("in mid-run: {outcomes:?}: {}", Link::lost(&link.heard));
    // Some devices fall silent in the middle of an answer, which says nothing of the READ.
    assert!(outcomes.access <= 1 && outcomes.lost > 0, "{outcomes:?}");
    let link = bench.link();
    let (slot, region) = link.served_slot();
    drop(slot);
    many(&link, &region, 8);
    let mut outcomes = Outcomes::default();
    for _ in 0..8 {
        outcomes.count(link.landed());
    }
    println!("before: {outcomes:?}: {}", Link::lost(&link.heard));
    assert_eq!((outcomes.access, outcomes.lost), (1, 7), "{outcomes:?}");
    bench.link().close();
}

/// Connections leave nothing behind.
fn cycles(bench: &Bench, count: usize) {
    for _ in 0..3 {
        bench.link().close();
    }
    let before = settled();
    let begin = Instant::now();
    for _ in 0..count {
        let link = bench.link();
        let (slot, region) = link.served_slot();
        let range = Range {
            address: region.address,
            key: region.key,
            len: 4096,
        };
        link.fetch(0, range, HashPlan::None, Store::Discard);
        link.landed().1.expect("landed");
        drop(slot);
        link.close();
    }
    println!("{count} connections in {:?}", begin.elapsed());
    let deadline = Instant::now() + PATIENCE;
    while settled() != before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(settled(), before);
    println!("left as it was: {before:?}");
}

/// The port goes down: both ends hear of it without any READ under way.
fn port_down(bench: &Bench, netdev: &str) {
    let link = bench.link();
    run("ip2", &["link", "set", netdev, "down"]);
    println!("near end: {}", Link::lost(&link.heard));
    println!("far end: {}", Link::lost(&link.served));
    assert!(usable_port().is_none(), "the port is down");
    run("ip2", &["link", "set", netdev, "up"]);
    await_port();
    bench.link().close();
}

/// The device goes while it is in use, and comes again.
fn unplug(bench: &Bench, device: &str, netdev: &str) {
    let link = bench.link();
    let (slot, region) = link.served_slot();
    let removed = {
        let device = device.to_owned();
        // Some drivers wait for everybody who has the device open.
        std::thread::spawn(move || run("rdma", &["link", "delete", &device]))
    };
    println!("near end: {}", Link::lost(&link.heard));
    println!("far end: {}", Link::lost(&link.served));
    let range = Range {
        address: region.address,
        key: region.key,
        len: 1,
    };
    link.fetch(0, range, HashPlan::None, Store::Discard);
    assert!(matches!(link.landed().1, Err(FetchError::ConnectionLost)));
    let facts = PortFacts {
        device: device.to_owned(),
        ..last_facts()
    };
    let gone = Endpoint::new(&SessionDomains::new(), &facts, 4);
    println!("a new endpoint: {}", gone.expect_err("no device"));
    drop(slot);
    drop(link);
    removed.join().expect("the device goes when nobody has it");
    assert!(usable_port().is_none(), "{:?}", usable_port());
    run(
        "rdma",
        &["link", "add", device, "type", "rxe", "netdev", netdev],
    );
    await_port();
    bench.link().close();
}

/// What became of many fetches.
#[derive(Debug, Default)]
struct Outcomes {
    landed: usize,
    lost: usize,
    access: usize,
}

impl Outcomes {
    fn count(&mut self, (_, result): (u64, Result<Landed, FetchError>)) {
        match result {
            Ok(_) => self.landed += 1,
            Err(FetchError::ConnectionLost) => self.lost += 1,
            Err(FetchError::Access) => self.access += 1,
            Err(other) => panic!("{other}"),
        }
    }
}

fn many(link: &Link, region: &RegionAddress, count: u64) {
    for token in 0..count {
        let range = Range {
            address: region.address + token % 4 * MIB as u64,
            key: region.key,
            len: MIB as u64,
        };
        link.fetch(token, range, HashPlan::None, Store::Discard);
    }
}

/// Fetches `range` chunk by chunk, a window at a time, and compares every chunk's value.
fn check_chunks(
    bench: &Bench,
    link: &Link,
    range: Range,
    first_token: u64,
    content: &[u8],
    store: impl Fn(u64) -> Store,
) {
    let chunk_size = chunk_size();
    let chunks = chunk_size.count(range.len);
    let (mut posted, mut landed) = (0, 0);
    while landed < chunks {
        while posted < chunks && posted - landed < bench.window as u64 {
            let part = chunk_size.range(ChunkIndex(posted), range.len);
            let piece = Range {
                address: range.address + part.start,
                key: range.key,
                len: part.len(),
            };
            let store = store(part.start);
            link.fetch(first_token + posted, piece, plan(posted, range.len), store);
            posted += 1;
        }
        let (token, result) = link.landed();
        let chunk = token - first_token;
        let digest = result.expect("landed").digest.expect("a value");
        let part = chunk_size.range(ChunkIndex(chunk), range.len);
        let position = |at: u64| usize::try_from(at).expect("in memory");
        let mut hasher = ChunkHasher::new(&plan(chunk, range.len));
        hasher.update(&content[position(part.start)..position(part.end)]);
        assert_eq!(Some(digest), hasher.finish(), "chunk {chunk}");
        landed += 1;
    }
}

fn plan(chunk: u64, file_len: u64) -> HashPlan {
    HashPlan::Blake3 {
        chunk: ChunkIndex(chunk),
        chunk_size: chunk_size(),
        file_len,
    }
}

fn chunk_size() -> ChunkSize {
    ChunkSize::from_bytes(MIB as u64).expect("a power of two")
}

fn usable_port() -> Option<PortFacts> {
    let adapters = rdma::adapters().ok()?;
    let mut ports = adapters.ports(&RailPolicy::default()).into_iter();
    ports.find(|facts| facts.active && !facts.is_iwarp && !facts.gids.is_empty())
}

/// Facts of a port that is not there any more.
fn last_facts() -> PortFacts {
    PortFacts {
        device: String::new(),
        guid: 0,
        port: 1,
        link_layer: LinkLayer::Ethernet,
        active: true,
        state: "active".to_owned(),
        lid: 0,
        pkey_index: 0,
        pkey: 0xffff,
        mtu: 1024,
        speed_mbps: 0,
        gids: Vec::new(),
        max_qp_rd_atom: 1,
        max_qp_init_rd_atom: 1,
        max_msg_bytes: None,
        is_iwarp: false,
    }
}

/// An IPv4 address before the link's own.
fn best_gid(facts: &PortFacts) -> usize {
    let rank = |index: &usize| {
        let gid = &facts.gids[*index];
        (gid.kind != GidKind::RoceV2, gid.gid[..10] != [0; 10])
    };
    (0..facts.gids.len()).min_by_key(rank).expect("an address")
}

fn await_port() {
    let deadline = Instant::now() + PATIENCE;
    while usable_port().is_none() {
        assert!(Instant::now() < deadline, "the port does not come back");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Descriptors of the process, and what the kernel has of RDMA.
fn settled() -> (usize, String) {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("proc").count();
    let resources = Command::new("rdma").args(["resource", "show"]).output();
    let resources = resources.expect("rdma(8)").stdout;
    (
        descriptors,
        String::from_utf8_lossy(&resources).into_owned(),
    )
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    assert!(status.expect(program).success(), "{program} {arguments:?}");
}

fn fill(bytes: &mut [u8], seed: u64) {
    let mut state = 0x9E37_79B9_7F4A_7C15u64 ^ seed;
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}

fn events() -> (EventSink, Receiver<LaneEvent>) {
    let (sender, receiver) = channel();
    // Whoever stopped listening needs no events.
    (Arc::new(move |event| drop(sender.send(event))), receiver)
}

struct Sink(File);

impl SinkFile for Sink {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }
    fn allocate(&self, _: &[ByteRange]) -> io::Result<()> {
        Ok(())
    }
}
