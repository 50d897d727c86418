//! What the data plane costs: a file is moved over tcp loopback by the lanes of one process, both
//! ends, without session or engine. Prints wall and CPU time per GiB of each run.
//!
//! ```text
//! lane_bench [key=value]...     source=FILE destination=FILE size_mib=1024 chunk_kib=1024
//!                               window=8 (chunks in flight per connection) connections=2 lanes=2
//!                               hash=blake3|none runs=3 store=file|discard
//!                               reactor=ring,readiness,loop (interleaved; see below)
//!                               direct=0|1 (O_DIRECT destination)
//! ```
//! `loop` is no lane at all but the bare calls, for scale: per connection one thread that reads,
//! hashes and sends, and one that receives, hashes and writes, without headers or requests.
//! The source is made if it is missing. Before each run, memory is touched and freed, so that no
//! run pays for pages that a virtual machine has to get from its host first.
#![allow(clippy::cast_precision_loss)] // Figures for people.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use rdcp::ids::{EntryId, RegionId, RemoteKey};
use rdcp::integrity::HashPlan;
use rdcp::lane::{
    ConnectionKeys, DataConnection, EventSink, Fetch, LaneEvent, LaneOptions, Lanes, RegionTable,
    Served, ServedRegion, Store,
};
use rdcp::storage::{DirectIo, SinkFile, SourceFile};
use rdcp::units::{ByteRange, ChunkIndex, ChunkSize};

struct Source(File);

impl SourceFile for Source {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

struct Sink {
    file: File,
    direct: Option<File>,
}

impl SinkFile for Sink {
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
    fn allocate(&self, ranges: &[ByteRange]) -> io::Result<()> {
        for range in ranges {
            rustix::fs::fallocate(
                &self.file,
                rustix::fs::FallocateFlags::empty(),
                range.start,
                range.len(),
            )?;
        }
        Ok(())
    }
}

struct Settings(HashMap<String, String>);

impl Settings {
    fn text(&self, key: &str, default: &str) -> String {
        self.0
            .get(key)
            .cloned()
            .unwrap_or_else(|| default.to_owned())
    }
    fn number(&self, key: &str, default: u64) -> u64 {
        self.0
            .get(key)
            .map_or(default, |value| value.parse().expect("a number"))
    }
}

fn main() {
    let arguments = std::env::args().skip(1);
    let settings = Settings(
        arguments
            .map(|argument| {
                let (key, value) = argument.split_once('=').expect("key=value");
                (key.to_owned(), value.to_owned())
            })
            .collect(),
    );
    let size = settings.number("size_mib", 1024) << 20;
    let source = settings.text("source", "/dev/shm/lane_bench.source");
    make_source(Path::new(&source), size);
    for _ in 0..settings.number("runs", 3) {
        for reactor in settings.text("reactor", "ring,readiness,loop").split(',') {
            warm_memory(size + size / 4);
            match reactor {
                "loop" => run_loop(&settings, &source, size),
                _ => run(&settings, &source, size, reactor == "readiness"),
            }
        }
    }
}

fn make_source(path: &Path, size: u64) {
    if path.metadata().is_ok_and(|found| found.len() >= size) {
        return;
    }
    let mut file = File::create(path).expect("source");
    let mut block = vec![0u8; 1 << 20];
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for _ in 0..size >> 20 {
        for word in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&block).expect("source");
    }
}

fn warm_memory(bytes: u64) {
    let path = Path::new("/dev/shm/lane_bench.warm");
    let mut file = File::create(path).expect("warm");
    let block = vec![1u8; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&block).expect("warm");
    }
    drop(file);
    std::fs::remove_file(path).expect("warm");
}

fn run(settings: &Settings, source: &str, size: u64, force_readiness: bool) {
    let chunk_size =
        ChunkSize::from_bytes(settings.number("chunk_kib", 1024) << 10).expect("chunk");
    let hashed = settings.text("hash", "blake3") == "blake3";
    let connections = usize::try_from(settings.number("connections", 2)).expect("connections");
    let options = LaneOptions {
        lanes: Some(usize::try_from(settings.number("lanes", 2)).expect("lanes")),
        force_readiness,
        ..LaneOptions::default()
    };
    let sender = Lanes::start(&options).expect("lanes");
    let receiver = Lanes::start(&options).expect("lanes");
    let (sender_sink, _sender_events) = event_queue();
    let (sink, events) = event_queue();
    let regions = RegionTable::new(Arc::clone(&sender_sink));
    let file: Arc<dyn SourceFile> = Arc::new(Source(File::open(source).expect("source")));
    let key = RemoteKey(0x1234_5678);
    regions.expose(ServedRegion {
        region: RegionId(1),
        key,
        content: Served::File {
            file,
            entry: EntryId(1),
            file_offset: 0,
            len: size,
            file_len: size,
            hash: hashed.then_some(chunk_size),
        },
    });
    let destination = settings.text("destination", "/dev/shm/lane_bench.destination");
    let target = (settings.text("store", "file") == "file").then(|| {
        let file = File::create(&destination).expect("destination");
        let direct = (settings.number("direct", 0) == 1).then(|| {
            let flags = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).expect("flag");
            let mut direct = OpenOptions::new();
            direct
                .write(true)
                .custom_flags(flags)
                .open(&destination)
                .expect("O_DIRECT")
        });
        let sink: Arc<dyn SinkFile> = Arc::new(Sink { file, direct });
        if settings.number("direct", 0) == 1 {
            sink.allocate(&[ByteRange {
                start: 0,
                end: size,
            }])
            .expect("allocate");
        }
        sink
    });
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let links: Vec<(DataConnection, DataConnection)> = (0..connections)
        .map(|index| {
            let near = TcpStream::connect(listener.local_addr().expect("address")).expect("dial");
            let (far, _) = listener.accept().expect("accept");
            let keys = ConnectionKeys {
                send: [1; 32],
                receive: [2; 32],
            };
            let other = ConnectionKeys {
                send: [2; 32],
                receive: [1; 32],
            };
            let nothing = RegionTable::new(Arc::clone(&sink));
            (
                receiver.attach(index, near, keys, nothing, Arc::clone(&sink)),
                sender.attach(
                    index,
                    far,
                    other,
                    Arc::clone(&regions),
                    Arc::clone(&sender_sink),
                ),
            )
        })
        .collect();

    let chunks = chunk_size.count(size);
    let window = settings.number("window", 8) * connections as u64;
    let data: Arc<[ByteRange]> = Arc::from([ByteRange {
        start: 0,
        end: size,
    }]);
    let fetch = |chunk: u64| {
        let range = chunk_size.range(ChunkIndex(chunk), size);
        let hash = if hashed {
            HashPlan::Blake3 {
                chunk: ChunkIndex(chunk),
                chunk_size,
                file_len: size,
            }
        } else {
            HashPlan::None
        };
        let store = match &target {
            Some(file) => Store::File {
                file: Arc::clone(file),
                offset: range.start,
                data: Arc::clone(&data),
            },
            None => Store::Discard,
        };
        Fetch {
            token: chunk,
            remote: key,
            offset: range.start,
            len: range.len(),
            hash,
            store,
        }
    };
    // Like an engine: a chunk that lands frees its connection for the next one.
    let (begin, begin_cpu) = (Instant::now(), cpu_seconds());
    let mut carrier = HashMap::new();
    let mut next = 0;
    let mut landed = 0;
    while landed < chunks {
        while next < chunks && next - landed < window {
            let index = carrier.remove(&(next.wrapping_sub(window)));
            let index = index.unwrap_or(usize::try_from(next).expect("index") % connections);
            links[index].0.fetch(fetch(next));
            next += 1;
        }
        match events.recv().expect("lanes live") {
            LaneEvent::Landed { token, result } => {
                result.expect("landed");
                landed += 1;
                // The chunk that is fetched next goes where this one came from.
                let index = usize::try_from(token).expect("index") % connections;
                carrier.insert(next.wrapping_sub(window), index);
            }
            LaneEvent::ConnectionLost { reason, .. } => panic!("lost: {reason}"),
            _ => {}
        }
    }
    report(
        if receiver.describe().uring {
            "ring"
        } else {
            "readiness"
        },
        size,
        begin,
        begin_cpu,
    );
    drop(links);
    if target.is_some() {
        let _ = std::fs::remove_file(&destination);
    }
}

/// See the module's text.
fn run_loop(settings: &Settings, source: &str, size: u64) {
    let connections = settings.number("connections", 2);
    let piece = usize::try_from(settings.number("piece_kib", 256) << 10).expect("piece");
    let hashed = settings.text("hash", "blake3") == "blake3";
    let store = settings.text("store", "file") == "file";
    let destination = settings.text("destination", "/dev/shm/lane_bench.destination");
    let (input, output) = (
        File::open(source).expect("source"),
        File::create(&destination),
    );
    let output = output.expect("destination");
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let (begin, begin_cpu) = (Instant::now(), cpu_seconds());
    std::thread::scope(|scope| {
        for index in 0..connections {
            let mut near =
                TcpStream::connect(listener.local_addr().expect("address")).expect("dial");
            let (mut far, _) = listener.accept().expect("accept");
            let share = ByteRange {
                start: size / connections * index,
                end: size / connections * (index + 1),
            };
            let (input, output) = (&input, &output);
            scope.spawn(move || {
                each_piece(
                    share,
                    piece,
                    hashed,
                    |bytes, at| {
                        input.read_exact_at(bytes, at).expect("read");
                    },
                    |bytes, _| far.write_all(bytes).expect("send"),
                );
            });
            scope.spawn(move || {
                each_piece(
                    share,
                    piece,
                    hashed,
                    |bytes, _| {
                        near.read_exact(bytes).expect("receive");
                    },
                    |bytes, at| {
                        if store {
                            output.write_all_at(bytes, at).expect("write");
                        }
                    },
                );
            });
        }
    });
    report("loop", size, begin, begin_cpu);
    let _ = std::fs::remove_file(&destination);
}

fn each_piece(
    share: ByteRange,
    piece: usize,
    hashed: bool,
    mut fill: impl FnMut(&mut [u8], u64),
    mut empty: impl FnMut(&[u8], u64),
) {
    let mut buffer = vec![0u8; piece];
    let mut at = share.start;
    while at < share.end {
        let len = usize::try_from((share.end - at).min(piece as u64)).expect("piece");
        fill(&mut buffer[..len], at);
        if hashed {
            std::hint::black_box(blake3::hash(&buffer[..len]));
        }
        empty(&buffer[..len], at);
        at += len as u64;
    }
}

fn report(what: &str, size: u64, begin: Instant, begin_cpu: f64) {
    let (wall, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - begin_cpu);
    let gib = size as f64 / (1u64 << 30) as f64;
    println!(
        "{what}: {:.3} s/GiB wall, {:.3} CPU-s/GiB",
        wall / gib,
        cpu / gib
    );
}

fn event_queue() -> (EventSink, Receiver<LaneEvent>) {
    let (sender, receiver) = channel();
    // Whoever stopped listening needs no events.
    (Arc::new(move |event| drop(sender.send(event))), receiver)
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
