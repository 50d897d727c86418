//! A network that misbehaves on demand: a TCP proxy between `rdcp` and `rdcpd`.
//!
//! It knows of the protocol only that the first byte of a connection tells TLS (the control
//! connection) from data connections. It can hold traffic back from a number of bytes on, slow it down,
//! cut connections or let them die without a word, and damage payload: wherever the test's marker comes by
//! on a data connection, a bit is flipped, so that nothing but payload is hit. Where more than that is to be
//! hit, `flips` knows what is what.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use super::flips::{Flips, Reader, Reads, Side};
use super::tree::Random;
use super::wait_for;

/// Stands in the content of files whose transfer is to be damaged. Not likely anywhere else.
pub(crate) const MARKER: &[u8; 16] = b"\x9e\xc1<damage me>\xf3\x1d\x80";
/// The first byte of a TLS record that begins a connection: handshake.
const TLS_HANDSHAKE: u8 = 22;
/// Small, so that a gate closes about where it was told to.
const PIECE_BYTES: usize = 16 << 10;

/// Which connections are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Data,
    All,
}

/// The proxy. Its connections end when it is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: SocketAddr,
    gate: Mutex<Gate>,
    changed: Condvar,
    /// Bits still to be flipped.
    flips: AtomicI64,
    flipped: AtomicU64,
    /// Bytes that came by on data connections.
    data_bytes: AtomicU64,
    data_connections: AtomicU64,
    streams: Mutex<Vec<(Kind, TcpStream)>>,
    /// Connections before this one carry nothing any more.
    swallowed: AtomicU64,
    connections: AtomicU64,
    /// What passes on a data connection each second, if that is limited.
    data_rate: AtomicU64,
    /// Bits that are flipped wherever they are to be.
    flipping: Option<Arc<Flips>>,
    /// How long pieces may be held back, by chance; and the numbers that decide it.
    delay_ms_max: AtomicU64,
    dice: Mutex<Random>,
    ended: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Control,
    Data,
}

/// Nothing of `scope` passes once `data_bytes_max` bytes have come by on data connections.
struct Gate {
    data_bytes_max: Option<u64>,
    scope: Scope,
    /// Somebody waits at it.
    reached: bool,
}

impl Proxy {
    /// A proxy in front of this address, which does no harm yet.
    pub(crate) fn new(target: SocketAddr) -> Self {
        Self::with(target, None)
    }

    /// One that flips these bits.
    pub(crate) fn flipping(target: SocketAddr, flips: &Arc<Flips>) -> Self {
        Self::with(target, Some(Arc::clone(flips)))
    }

    fn with(target: SocketAddr, flipping: Option<Arc<Flips>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port can be had");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            target,
            gate: Mutex::new(Gate {
                data_bytes_max: None,
                scope: Scope::Data,
                reached: false,
            }),
            changed: Condvar::new(),
            flips: AtomicI64::new(0),
            flipped: AtomicU64::new(0),
            data_bytes: AtomicU64::new(0),
            data_connections: AtomicU64::new(0),
            streams: Mutex::new(Vec::new()),
            swallowed: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            data_rate: AtomicU64::new(0),
            flipping,
            delay_ms_max: AtomicU64::new(0),
            dice: Mutex::new(Random::new(1)),
            ended: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if accepting.ended.load(Ordering::SeqCst) {
                    break;
                }
                let shared = Arc::clone(&accepting);
                // A connection that fails on either side simply ends on the other.
                thread::spawn(move || drop(carry(&shared, stream)));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// `rdcp://proxy/rest`.
    pub(crate) fn url(&self, rest: impl AsRef<std::ffi::OsStr>) -> std::ffi::OsString {
        super::daemon::url(self.address, rest)
    }

    /// Flips a bit in each of the next `times` markers.
    pub(crate) fn damage(self, times: u64) -> Self {
        let times = i64::try_from(times).unwrap_or(i64::MAX);
        self.shared.flips.store(times, Ordering::SeqCst);
        self
    }

    /// Holds back everything of `scope` from the first `data_bytes_max` on.
    pub(crate) fn hold_after(self, data_bytes_max: u64, scope: Scope) -> Self {
        self.set_gate(Some(data_bytes_max), scope);
        self
    }

    /// The same of a proxy that is in use.
    pub(crate) fn hold_on(&self, data_bytes_max: u64, scope: Scope) {
        self.set_gate(Some(data_bytes_max), scope);
    }

    /// Waits until something is held back.
    #[track_caller]
    pub(crate) fn wait_held(&self) {
        wait_for("the proxy holds something back", || {
            self.shared.gate.lock().unwrap().reached.then_some(())
        });
    }

    /// Lets everything pass from now on.
    pub(crate) fn release(&self) {
        self.set_gate(None, Scope::Data);
    }

    fn set_gate(&self, data_bytes_max: Option<u64>, scope: Scope) {
        *self.shared.gate.lock().unwrap() = Gate {
            data_bytes_max,
            scope,
            reached: false,
        };
        self.shared.changed.notify_all();
    }

    /// Ends all connections of the kind that is open now, and none that comes later.
    pub(crate) fn cut(&self, scope: Scope) {
        self.shared
            .streams
            .lock()
            .unwrap()
            .retain(|(kind, stream)| {
                let hit = scope == Scope::All || *kind == Kind::Data;
                if hit {
                    // It fails if the connection has ended by itself.
                    let _ = stream.shutdown(Shutdown::Both);
                }
                !hit
            });
    }

    /// From now on nothing passes on the connections that are open, and nobody is told; those that come
    /// later are as good as any.
    pub(crate) fn swallow(&self) {
        let so_far = self.shared.connections.load(Ordering::SeqCst);
        self.shared.swallowed.store(so_far, Ordering::SeqCst);
    }

    /// Lets so many bytes pass in a second on each data connection.
    pub(crate) fn slow_down(&self, bytes_per_second: u64) {
        self.shared
            .data_rate
            .store(bytes_per_second, Ordering::SeqCst);
    }

    /// From now on one piece in ten is held back for up to so many milliseconds, and all behind it.
    pub(crate) fn delay(&self, ms_max: u64, seed: u64) {
        *self.shared.dice.lock().unwrap() = Random::new(seed);
        self.shared.delay_ms_max.store(ms_max, Ordering::SeqCst);
    }

    pub(crate) fn flipped(&self) -> u64 {
        self.shared.flipped.load(Ordering::SeqCst)
    }

    pub(crate) fn data_bytes(&self) -> u64 {
        self.shared.data_bytes.load(Ordering::SeqCst)
    }

    pub(crate) fn data_connections(&self) -> u64 {
        self.shared.data_connections.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.release();
        self.cut(Scope::All);
        // Wakes the accepting thread, which then sees that it is to end.
        let _ = TcpStream::connect(self.address);
    }
}

fn carry(shared: &Arc<Shared>, mut client: TcpStream) -> std::io::Result<()> {
    let mut first = [0];
    client.read_exact(&mut first)?;
    let kind = if first[0] == TLS_HANDSHAKE {
        Kind::Control
    } else {
        shared.data_connections.fetch_add(1, Ordering::SeqCst);
        Kind::Data
    };
    let number = shared.connections.fetch_add(1, Ordering::SeqCst);
    let mut server = TcpStream::connect(shared.target)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        shared
            .streams
            .lock()
            .unwrap()
            .push((kind, stream.try_clone()?));
    }
    server.write_all(&first)?;
    let (back_from, back_to) = (server.try_clone()?, client.try_clone()?);
    let back = Arc::clone(shared);
    let reads = Arc::new(Reads::default());
    let back_reads = Arc::clone(&reads);
    thread::spawn(move || {
        let reader = back.reader(kind, Side::Server, 0);
        pump(
            &back,
            kind,
            number,
            (reader, &back_reads),
            back_from,
            back_to,
        );
    });
    let reader = shared.reader(kind, Side::Client, first.len());
    pump(shared, kind, number, (reader, &reads), client, server);
    Ok(())
}

/// Carries one direction to its end, and hands the end on.
fn pump(
    shared: &Shared,
    kind: Kind,
    number: u64,
    (mut reader, reads): (Option<Reader>, &Reads),
    mut from: TcpStream,
    mut to: TcpStream,
) {
    let mut piece = [0; PIECE_BYTES];
    loop {
        shared.wait_at_gate(kind);
        let rate = match kind {
            Kind::Data => shared.data_rate.load(Ordering::SeqCst),
            Kind::Control => 0,
        };
        let most = match usize::try_from(rate) {
            Ok(rate @ 1..) => (rate / 10).clamp(1, PIECE_BYTES),
            _ => PIECE_BYTES,
        };
        let Ok(len @ 1..) = from.read(&mut piece[..most]) else {
            break;
        };
        if rate > 0 {
            thread::sleep(Duration::from_secs_f64(len as f64 / rate as f64));
        }
        if number < shared.swallowed.load(Ordering::SeqCst) {
            continue;
        }
        let piece = &mut piece[..len];
        if kind == Kind::Data {
            shared.data_bytes.fetch_add(len as u64, Ordering::SeqCst);
            shared.damage(piece);
        }
        if let (Some(reader), Some(flips)) = (&mut reader, &shared.flipping) {
            reader.pass(flips, reads, piece);
        }
        shared.delay();
        // What was read before the gate closed waits too.
        shared.wait_at_gate(kind);
        if to.write_all(piece).is_err() {
            break;
        }
    }
    // Both fail if the other direction has ended the connections.
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

impl Shared {
    fn reader(&self, kind: Kind, side: Side, begun: usize) -> Option<Reader> {
        let flips = self.flipping.as_ref()?;
        Some(match kind {
            Kind::Control => flips.control(side),
            Kind::Data => flips.data(side, begun),
        })
    }

    fn delay(&self) {
        let ms_max = self.delay_ms_max.load(Ordering::SeqCst);
        if ms_max > 0 {
            let mut dice = self.dice.lock().unwrap();
            let late = (dice.below(10) == 0).then(|| dice.below(ms_max));
            drop(dice);
            if let Some(ms) = late {
                thread::sleep(Duration::from_millis(ms));
            }
        }
    }

    fn wait_at_gate(&self, kind: Kind) {
        let mut gate = self.gate.lock().unwrap();
        while gate
            .data_bytes_max
            .is_some_and(|max| self.data_bytes.load(Ordering::SeqCst) >= max)
            && (gate.scope == Scope::All || kind == Kind::Data)
        {
            gate.reached = true;
            gate = self.changed.wait(gate).unwrap();
        }
    }

    fn damage(&self, piece: &mut [u8]) {
        if self.flips.load(Ordering::SeqCst) <= 0 {
            return;
        }
        let mut at = 0;
        while let Some(found) = piece[at..]
            .windows(MARKER.len())
            .position(|window| window == MARKER)
        {
            if self.flips.fetch_sub(1, Ordering::SeqCst) <= 0 {
                return;
            }
            piece[at + found] ^= 1;
            self.flipped.fetch_add(1, Ordering::SeqCst);
            at += found + MARKER.len();
        }
    }
}

/// Content with markers in it, at least one in every 4 KiB.
pub(crate) fn marked_content(len: usize, seed: u64) -> Vec<u8> {
    let mut content = super::tree::Random::new(seed).bytes(len);
    for start in (0..len.saturating_sub(MARKER.len())).step_by(1 << 10) {
        content[start..start + MARKER.len()].copy_from_slice(MARKER);
    }
    content
}
