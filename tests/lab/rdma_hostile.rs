//! A hostile client with RDMA: it negotiates rails as clients do, and then READs what it likes.
//!
//! In: a daemon's address, and files whose words say whose they are. Out: an end with an error at the
//! first byte that this session had no right to see, and at every READ that should have been refused.
//! The daemon is told nothing but the wire protocol; what it says of keys and addresses is all that
//! this program knows of its memory.
//!
//! ```text
//! rdma_hostile make=FILE seed=1 kib=9216 [every=4]    a file for it: each word tells the seed and its
//!                                                     place; `every`: only each so many MiB hold data
//! rdma_hostile server=10.0.0.1:20471 memory=odp|mmap|pool [rounds=8]
//!              steps=bounds,release,guess,sessions,slots,lease (all of these)
//! ```
//! The server serves `mine` and `sparse` (seed 1), `other` (seed 2) and `tiny` (seed 1, below 256 KiB)
//! in the export `data`.

mod common {
    //! What `hostile` needs of the tests' common part.

    /// Before something is called hung. Emulated machines are slow.
    pub(crate) const DEADLINE: std::time::Duration = std::time::Duration::from_secs(120);
}
#[path = "../hostile/mod.rs"]
mod hostile;

use std::collections::HashMap;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::DEADLINE;
use hostile::{Heard, Hostile, make};
use rdcp::TransferId;
use rdcp::ids::{RegionId, RemoteKey};
use rdcp::integrity::HashPlan;
use rdcp::lane::{
    DataConnection, EventSink, Fetch, FetchError, LaneEvent, LaneOptions, Lanes, RegionTable, Store,
};
use rdcp::manifest::{EntryKind, Item};
use rdcp::transport::rdma::{
    self, Endpoint, GidFacts, LinkOptions, PortFacts, ProbeRegion, RailPolicy, RemotePort,
    SessionDomains,
};
use rdcp::wire::level::LEVEL_RAILS;
use rdcp::wire::message::{
    GidKind, Grant, LinkLayer, PathMtu, PortGid, Probe, QueuePair, RailAnswer, RailConnect,
    RailDial, RailEnd, RailLink, RailOffer, RailPair, RailPort, RailReady, RegionKey,
};
use rdcp::wire::{Fault, FaultCode, Message};

const MIB: usize = 1 << 20;
/// A slot that serves windows in pool mode, for chunks of the usual size.
const SLOT_BYTES: usize = 4 * MIB;
/// A slot that serves packs.
const PACK_BYTES: usize = MIB;
const PAGE: u64 = 4096;
const MINE: u16 = 1;
const OTHERS: u16 = 2;
const NONCE: [u8; 32] = [7; 32];

fn main() {
    let mut told: HashMap<String, String> = HashMap::new();
    for argument in std::env::args().skip(1) {
        let (key, value) = argument.split_once('=').expect("key=value");
        told.insert(key.to_owned(), value.to_owned());
    }
    let text = |key: &str, default: &str| told.get(key).map_or(default, |v| v).to_owned();
    let number = |key: &str, default: &str| text(key, default).parse::<u64>().expect("a number");
    if let Some(path) = told.get("make") {
        let seed = u16::try_from(number("seed", "1")).expect("16 bits");
        return make_file(
            Path::new(path),
            seed,
            number("kib", "1024"),
            number("every", "1"),
        );
    }
    let field = Field {
        server: text("server", "10.0.0.1:20471")
            .parse()
            .expect("an address"),
        memory: text("memory", "pool"),
        lanes: Lanes::start(&LaneOptions::default()).expect("lanes"),
    };
    let steps = text("steps", "bounds,release,guess,sessions,slots,lease");
    for step in steps.split(',') {
        println!("-- {step}");
        match step {
            "bounds" => bounds(&field),
            "release" => release(&field),
            "guess" => guess(&field),
            "sessions" => sessions(&field),
            "slots" => slots(&field, number("rounds", "8")),
            "lease" => lease(&field),
            other => panic!("no step {other}"),
        }
    }
    println!("nothing was seen that was not ours");
}

/// Where it all happens.
struct Field {
    server: SocketAddr,
    /// How the daemon was told to serve files.
    memory: String,
    lanes: Lanes,
}

/// A session with the daemon, and what it has of the local adapter.
struct Session<'field> {
    field: &'field Field,
    control: Hostile,
    domains: SessionDomains,
    facts: PortFacts,
    attempt: u32,
    transfer: TransferId,
}

/// A queue pair that both ends have proved.
struct Rail {
    link: RailLink,
    data: DataConnection,
    heard: Receiver<LaneEvent>,
    _probe: ProbeRegion,
}

impl Field {
    fn session(&self) -> Session<'_> {
        Session {
            field: self,
            control: Hostile::connect_at(self.server, LEVEL_RAILS),
            domains: SessionDomains::new(),
            facts: usable_port(),
            attempt: 0,
            transfer: TransferId::NONE,
        }
    }

    /// What of a granted window the adapter can reach: pool mode shows the slot.
    fn reach(&self, grant: &Grant) -> usize {
        let len = usize::try_from(grant.len).expect("in memory");
        if self.memory == "pool" {
            SLOT_BYTES
        } else {
            len
        }
    }
}

impl Session<'_> {
    /// Makes a rail, as an honest client does.
    fn rail(&mut self) -> Rail {
        let begun = Instant::now();
        loop {
            self.attempt += 1;
            let attempt = self.attempt;
            let offer = RailOffer {
                attempt,
                ports: vec![told_port(&self.facts)],
                rails_only: false,
                connect: Some(RailDial::Direct),
            };
            self.say(Message::RailOffer(offer));
            let is_answer = |message| match message {
                Message::RailAnswer(answer) if answer.attempt == attempt => Some(answer),
                _ => None,
            };
            let RailAnswer { rails, reasons, .. } = self.expect("an answer", is_answer);
            if let Some(pair) = rails.into_iter().next() {
                return self.connect(&pair);
            }
            assert!(begun.elapsed() < DEADLINE, "no rail: {reasons:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn connect(&mut self, pair: &RailPair) -> Rail {
        let attempt = self.attempt;
        let link = RailLink {
            attempt,
            rail: pair.rail,
            queue_pair: 0,
        };
        let endpoint = Endpoint::new(&self.domains, &self.facts, 16).expect("an endpoint");
        let probe = ProbeRegion::new(&self.domains, &self.facts, NONCE).expect("a probe");
        let own = QueuePair {
            number: endpoint.number(),
            psn: endpoint.psn(),
        };
        let theirs = pair.end.queue_pairs[0];
        let remote = RemotePort {
            gid: pair.server.gids[0].gid,
            lid: pair.server.lid,
            qp_number: theirs.number,
            psn: theirs.psn,
        };
        let options = link_options(&self.facts);
        let mut connected = endpoint.connect(&remote, &options).expect("connected");
        let end = RailEnd {
            probe: Probe {
                address: probe.address(),
                key: probe.key(),
                digest: *blake3::hash(&NONCE).as_bytes(),
            },
            queue_pairs: vec![own],
        };
        let rails = vec![(pair.rail, end)];
        self.say(Message::RailConnect(RailConnect { attempt, rails }));
        let is_ready = |message| match message {
            Message::RailReady(ready) if ready.attempt == attempt => Some(ready),
            _ => None,
        };
        let RailReady { rails, reasons, .. } = self.expect("readiness", is_ready);
        assert_eq!(rails, [pair.rail], "{reasons:?}");
        let until = Instant::now() + DEADLINE;
        let read = connected.probe(pair.end.probe.address, pair.end.probe.key, until);
        let read = read.expect("the probe is there");
        self.say(Message::RailProof { link, read });
        self.expect("a proof", |message| match message {
            Message::RailProof { link: about, read } if about == link => Some(read),
            Message::RailDown {
                link: about,
                reason,
            } if about == link => panic!("{reason}"),
            _ => None,
        });
        let (sender, heard) = channel();
        // Whoever stopped listening needs no events.
        let sink: EventSink = Arc::new(move |event| drop(sender.send(event)));
        let nothing = RegionTable::new(Arc::clone(&sink));
        let lanes = &self.field.lanes;
        let data = lanes.attach_rdma(0, connected.into_connection(), nothing, sink);
        Rail {
            link,
            data,
            heard,
            _probe: probe,
        }
    }

    /// Gives a rail up, and says so: the daemon's adapter does not know that it was refused.
    fn give_up(&mut self, rail: Rail) {
        let link = rail.link;
        drop(rail);
        let reason = "hostile".to_owned();
        self.say(Message::RailDown { link, reason });
    }

    /// READs what must be refused, over a rail that is gone afterwards.
    fn assert_refused(&mut self, what: &str, address: u64, key: RemoteKey, len: usize) {
        let rail = self.rail();
        let result = rail.read(address, key, len);
        assert!(
            matches!(result, Err(FetchError::Access)),
            "{what}: {}",
            shown(&result)
        );
        println!("refused: {what}");
        self.give_up(rail);
    }

    /// Begins a pull: what is granted, until all of the file is.
    fn grants(&mut self, path: &str) -> Vec<Grant> {
        self.transfer = TransferId::random();
        self.say_in(make::pull(path));
        self.say_in(make::credit(8, 64 << 20));
        let file = self.expect("a page", |message| match message {
            Message::Manifest(page) => page.items.iter().find_map(|item| match item {
                Item::Entry(entry) if matches!(entry.kind, EntryKind::File { .. }) => {
                    Some(entry.id)
                }
                _ => None,
            }),
            Message::Failed(fault) => panic!("{fault:?}"),
            _ => None,
        });
        self.say_in(make::want(file.0));
        let mut grants: Vec<Grant> = Vec::new();
        while !grants
            .iter()
            .any(|grant| grant.parts.iter().any(|part| part.last))
        {
            grants.push(self.expect("a grant", |message| match message {
                Message::Grant(grant) => Some(grant),
                Message::Failed(fault) | Message::EntryFailed { fault, .. } => panic!("{fault:?}"),
                _ => None,
            }));
        }
        // A grant without data has nothing to be read.
        grants.retain(|grant| grant.len > 0 && grant.keys.len() > 1);
        assert!(!grants.is_empty(), "{path} is not registered");
        grants
    }

    fn release(&mut self, grants: &[Grant]) {
        let regions: Vec<RegionId> = grants.iter().map(|grant| grant.region).collect();
        self.say_in(Message::Release(regions));
    }

    /// Ends the transfer; its memory goes.
    fn end_transfer(&mut self) {
        self.say_in(Message::Failed(Fault::new(FaultCode::Cancelled, "hostile")));
    }

    fn say(&mut self, message: Message) {
        self.control.say(TransferId::NONE, message);
    }

    fn say_in(&mut self, message: Message) {
        self.control.say(self.transfer, message);
    }

    #[track_caller]
    fn expect<T>(&mut self, what: &str, mut wanted: impl FnMut(Message) -> Option<T>) -> T {
        self.control.expect(what, |_, message| wanted(message))
    }
}

impl Rail {
    /// READs at most a MiB, from anywhere.
    fn read(&self, address: u64, key: RemoteKey, len: usize) -> Result<Vec<u8>, FetchError> {
        self.post(0, address, key, len);
        self.landed(len)
    }

    fn post(&self, token: u64, address: u64, key: RemoteKey, len: usize) {
        self.data.fetch(Fetch {
            token,
            remote: key,
            offset: address,
            len: len as u64,
            hash: HashPlan::None,
            store: Store::Deliver,
        });
    }

    /// What the next READ that is over has brought.
    fn landed(&self, len: usize) -> Result<Vec<u8>, FetchError> {
        loop {
            let event = self.heard.recv_timeout(DEADLINE).expect("an event");
            if let LaneEvent::Landed { result, .. } = event {
                let slot = result?.slot.expect("delivered");
                return Ok(slot[..len].to_vec());
            }
        }
    }

    /// READs a range, a MiB at a time.
    fn read_all(&self, key: &RegionKey, len: usize) -> Result<Vec<u8>, FetchError> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let piece = MIB.min(len - bytes.len());
            bytes.extend(self.read(key.address + bytes.len() as u64, key.key, piece)?);
        }
        Ok(bytes)
    }

    /// READs until that is refused, or the rail is gone; what comes before is the session's own.
    fn read_until_refused(&self, key: &RegionKey, len: usize) -> FetchError {
        let begun = Instant::now();
        loop {
            match self.read(key.address, key.key, len) {
                Ok(bytes) => {
                    assert_own(&bytes, MINE, "before it was taken back");
                }
                Err(error) => return error,
            }
            assert!(begun.elapsed() < DEADLINE, "it can be read for ever");
        }
    }
}

/// READs of a window end where it ends.
fn bounds(field: &Field) {
    let mut session = field.session();
    let rail = session.rail();
    let grants = session.grants("mine");
    for grant in &grants {
        let key = *rdma_key(grant);
        let len = usize::try_from(grant.len).expect("in memory");
        let bytes = rail
            .read_all(&key, len)
            .expect("what is granted can be read");
        assert_exact(&bytes, MINE, grant.parts[0].file_offset);
        // Whatever else of a slot is shown.
        let reach = rail.read_all(&key, field.reach(grant)).expect("the slot");
        assert_own(&reach, MINE, "the whole slot");
    }
    session.give_up(rail);
    let grant = grants.last().expect("not empty").clone();
    let key = *rdma_key(&grant);
    let end = key.address + field.reach(&grant) as u64;
    let key = key.key;
    session.assert_refused("a READ across the end", end - PAGE, key, 2 * 4096);
    session.assert_refused("a READ behind the end", end, key, 4096);
    session.assert_refused(
        "a READ before the begin",
        rdma_key(&grant).address - 8,
        key,
        4096,
    );
    session.assert_refused("a READ of address 0", 0, key, 4096);
    session.assert_refused(
        "a READ at the end of numbers",
        u64::MAX - 2 * PAGE,
        key,
        4096,
    );
    // What was granted still is.
    let rail = session.rail();
    let key = *rdma_key(&grant);
    let len = usize::try_from(grant.len).expect("in memory").min(MIB);
    let bytes = rail.read(key.address, key.key, len).expect("still granted");
    assert_exact(&bytes, MINE, grant.parts[0].file_offset);
    let tiny = session.grants("tiny");
    let key = *rdma_key(&tiny[0]);
    let bytes = rail
        .read(key.address, key.key, PACK_BYTES)
        .expect("the pack's slot");
    assert_own(&bytes, MINE, "the whole pack");
    assert!(bytes[..8] != [0; 8], "the pack has the file");
    session.give_up(rail);
    session.assert_refused(
        "a READ behind a pack",
        key.address + PACK_BYTES as u64,
        key.key,
        4096,
    );
}

/// What was released can't be read for long.
fn release(field: &Field) {
    let mut session = field.session();
    for path in ["mine", "tiny"] {
        // Before the file is opened: memory is registered for the rails that are there then.
        let rail = session.rail();
        let grants = session.grants(path);
        let grant = grants[0].clone();
        let key = *rdma_key(&grant);
        let len = usize::try_from(grant.len).expect("in memory").min(MIB);
        assert_own(
            &rail.read(key.address, key.key, len).expect("granted"),
            MINE,
            path,
        );
        session.release(&grants);
        let error = rail.read_until_refused(&key, len);
        println!("{path} after its release: {error}");
        session.give_up(rail);
        session.assert_refused("a READ after release", key.address, key.key, 4096);
        session.end_transfer();
    }
}

/// Keys near one that is known open nothing.
fn guess(field: &Field) {
    let mut session = field.session();
    let _rail = session.rail();
    let grants = session.grants("mine");
    let key = *rdma_key(&grants[0]);
    for change in [1, 0x80, 0x100, 0x200, 0x1000, 0x80_0000] {
        let guessed = RemoteKey(key.key.0 ^ change);
        session.assert_refused("a guessed key", key.address, guessed, 4096);
    }
}

/// A key is good in its own session, and as long as that.
fn sessions(field: &Field) {
    let mut session = field.session();
    let mut other = field.session();
    let rail = session.rail();
    let grants = session.grants("mine");
    let key = *rdma_key(&grants[0]);
    other.assert_refused("another session's key", key.address, key.key, 4096);
    let bytes = rail.read(key.address, key.key, MIB).expect("granted");
    assert_exact(&bytes, MINE, grants[0].parts[0].file_offset);
    session.control.cut();
    let error = rail.read_until_refused(&key, MIB);
    println!("after the session's end: {error}");
    other.assert_refused("a key of a session that ended", key.address, key.key, 4096);
}

/// Memory that goes from one session to another shows nothing of the one before.
fn slots(field: &Field, rounds: u64) {
    let mut session = field.session();
    let mut other = field.session();
    let mut rail = session.rail();
    let other_rail = other.rail();
    let (mut seen, mut late) = (0, 0);
    for round in 0..rounds {
        // The other client's bytes come into memory, and it goes.
        let theirs = other.grants("other");
        for grant in &theirs {
            let key = rdma_key(grant);
            let bytes = other_rail.read(key.address, key.key, MIB).expect("granted");
            assert_exact(&bytes, OTHERS, grant.parts[0].file_offset);
        }
        other.release(&theirs);
        other.end_transfer();
        // Ours come, in files that leave most of their memory unused.
        let path = ["sparse", "tiny"][usize::from(round % 2 == 1)];
        let grants = session.grants(path);
        for grant in &grants {
            let reach = if path == "tiny" {
                PACK_BYTES
            } else {
                field.reach(grant)
            };
            let bytes = rail.read_all(rdma_key(grant), reach).expect("granted");
            seen += assert_own(&bytes, MINE, path);
        }
        // READs that are under way while it is taken back and given to the other.
        let key = *rdma_key(&grants[0]);
        let len = usize::try_from(grants[0].len).expect("in memory").min(MIB);
        let posted = 12;
        for token in 0..posted {
            rail.post(token, key.address, key.key, len);
        }
        session.release(&grants);
        session.end_transfer();
        let theirs = other.grants("other");
        let mut refused = false;
        for _ in 0..posted {
            match rail.landed(len) {
                Ok(bytes) => {
                    assert_own(&bytes, MINE, "while it was taken back");
                    late += 1;
                }
                Err(_) => refused = true,
            }
        }
        other.release(&theirs);
        other.end_transfer();
        if refused {
            session.give_up(rail);
            rail = session.rail();
        }
    }
    println!("{seen} words of ours were seen, and {late} READs landed beside a release");
    assert!(seen > 0, "nothing was read");
}

/// Who says nothing loses what was granted, and sees nothing of what comes into its place.
fn lease(field: &Field) {
    let mut session = field.session();
    let mut other = field.session();
    let _other_rail = other.rail();
    let rail = session.rail();
    let grants = session.grants("mine");
    let key = *rdma_key(&grants[0]);
    let begun = Instant::now();
    let mut reads = 0_u32;
    let error = loop {
        // Other READs are under way when the memory goes.
        for token in 0..8 {
            rail.post(token, key.address, key.key, MIB);
        }
        let mut error = None;
        for _ in 0..8 {
            match rail.landed(MIB) {
                Ok(bytes) => {
                    assert_exact(&bytes, MINE, grants[0].parts[0].file_offset);
                    reads += 1;
                }
                Err(found) => drop(error.get_or_insert(found)),
            }
        }
        if let Some(error) = error {
            break error;
        }
        assert!(begun.elapsed() < DEADLINE, "the lease does not end");
        // Pings are answered here, and nothing is said in the transfer.
        let heard = session.control.hear(Duration::from_millis(1));
        assert!(!matches!(heard, Heard::Ended), "the session ended");
        let theirs = other.grants("other");
        other.release(&theirs);
        other.end_transfer();
    };
    println!("after {reads} READs in silence: {error}");
    let fault = session.expect("word of the lease", |message| match message {
        Message::EntryFailed { fault, .. } => Some(fault),
        _ => None,
    });
    assert_eq!(fault.code, FaultCode::TimedOut, "{fault:?}");
    session.give_up(rail);
    session.assert_refused("a READ after the lease", key.address, key.key, 4096);
    assert!(session.control.is_answered(), "the session goes on");
}

/// How a region is READ over the only rail.
fn rdma_key(grant: &Grant) -> &RegionKey {
    let key = grant.keys.iter().find(|key| key.rail != 0);
    key.expect("only registered grants are kept")
}

/// The word at this place of a file with this seed.
fn word(seed: u16, place: u64) -> u64 {
    u64::from(seed) << 48 | place
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let words = bytes.chunks_exact(8);
    words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
}

/// These are the bytes of the file with this seed from `offset` on.
#[track_caller]
fn assert_exact(bytes: &[u8], seed: u16, offset: u64) {
    for (at, found) in (offset / 8..).zip(words(bytes)) {
        assert_eq!(found, word(seed, at), "word {at}: {found:#x}");
    }
}

/// Each word is zero or of this seed; how many are of the seed.
#[track_caller]
fn assert_own(bytes: &[u8], seed: u16, what: &str) -> usize {
    let mut own = 0;
    for (at, found) in words(bytes).enumerate() {
        let is_own = found >> 48 == u64::from(seed);
        assert!(
            is_own || found == 0,
            "{what}: word {at} is foreign: {found:#x}"
        );
        own += usize::from(is_own);
    }
    own
}

fn make_file(path: &Path, seed: u16, kib: u64, every: u64) {
    let file = File::create(path).expect("a new file");
    file.set_len(kib << 10).expect("its length");
    let piece = (kib << 10).min(MIB as u64);
    for start in (0..kib << 10)
        .step_by(MIB)
        .step_by(usize::try_from(every).expect("small"))
    {
        let end = (kib << 10).min(start + piece);
        let bytes: Vec<u8> = (start / 8..end / 8)
            .flat_map(|place| word(seed, place).to_le_bytes())
            .collect();
        file.write_all_at(&bytes, start).expect("written");
    }
}

fn shown(result: &Result<Vec<u8>, FetchError>) -> String {
    match result {
        Ok(bytes) => format!(
            "it brought {} bytes: {:x?}",
            bytes.len(),
            &bytes[..8.min(bytes.len())]
        ),
        Err(error) => format!("it ended otherwise: {error:?}"),
    }
}

fn usable_port() -> PortFacts {
    let adapters = rdma::adapters().expect("adapters");
    let mut ports = adapters.ports(&RailPolicy::default()).into_iter();
    let usable = |facts: &PortFacts| facts.active && facts.gids.iter().any(is_ipv4);
    ports.find(usable).expect("a usable port")
}

fn is_ipv4(gid: &GidFacts) -> bool {
    gid.kind == rdma::GidKind::RoceV2 && gid.gid[..10] == [0; 10]
}

fn own_gid(facts: &PortFacts) -> &GidFacts {
    let gid = facts.gids.iter().find(|gid| is_ipv4(gid));
    gid.expect("the port was chosen for it")
}

fn told_port(facts: &PortFacts) -> RailPort {
    RailPort {
        label: "hostile".to_owned(),
        guid: facts.guid,
        number: facts.port,
        link: LinkLayer::Ethernet,
        lid: facts.lid,
        pkey: facts.pkey,
        mtu: PathMtu::from_bytes(facts.mtu).expect("an MTU"),
        speed_mbps: facts.speed_mbps,
        reads_served_max: facts.max_qp_rd_atom,
        reads_posted_max: facts.max_qp_init_rd_atom,
        message_bytes_max: 0,
        queue_pairs: 1,
        gids: vec![PortGid {
            kind: GidKind::RoceV2,
            gid: own_gid(facts).gid,
        }],
    }
}

fn link_options(facts: &PortFacts) -> LinkOptions {
    LinkOptions {
        mtu: facts.mtu,
        gid_index: own_gid(facts).index,
        traffic_class: 0,
        service_level: 0,
        retry_cnt: 6,
        timeout: 14,
        rnr_retry: 7,
        min_rnr_timer: 12,
        max_rd_atomic: facts.max_qp_init_rd_atom.min(16),
        max_dest_rd_atomic: facts.max_qp_rd_atom.min(16),
        peer_max_msg_bytes: None,
    }
}
