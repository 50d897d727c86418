//! The conversation over adapters of memory: both drivers as they are, joined by their messages.

mod by_cm;
mod own;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::book::Book;
use super::client::{self, ClientRules, Outcome, Wish};
use super::fabric::{Fabric, Half, Lost, LostSender, Owner, Path, Reached, Survey, Way};
use super::pairing::{LocalGid, LocalPort, PeerPolicy};
use super::server::{self, ServerRules};
use super::talk::{RailSender, digest};
use crate::ids::RemoteKey;
use crate::wire::Message;
use crate::wire::message::{
    GidKind, Invitation, LinkLayer, PROBE_BYTES, PathMtu, PortGid, Probe, QueuePair, RailAnswer,
    RailConnect, RailDial, RailEnd, RailLink, RailOffer, RailPair, RailPort, RailToken,
};
use crate::workers::Workers;

/// A test that waits longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// All adapters' memory, and how many queue pairs there are.
#[derive(Default)]
struct World {
    probes: Mutex<HashMap<u64, [u8; PROBE_BYTES]>>,
    queue_pairs: AtomicUsize,
    queue_pairs_most: AtomicUsize,
    next: AtomicU32,
    /// Devices over which READs bring other bytes.
    damaged: Mutex<Vec<String>>,
    /// Tokens that are expected, by the number of their queue pair, and whether they were dialled.
    expected: Mutex<HashMap<[u8; 32], (u32, bool)>>,
}

struct Adapters {
    world: Arc<World>,
    ports: Mutex<Vec<LocalPort>>,
    /// There is a reason that may pass.
    may_pass: AtomicBool,
    /// What making queue pairs fails with.
    refuses: Mutex<Option<io::ErrorKind>>,
}

struct OpenHalf {
    world: Arc<World>,
    device: String,
    address: u64,
    queue_pairs: Vec<QueuePair>,
    connected: Vec<Option<Wire>>,
    invitation: Option<Invitation>,
    dials: Option<Vec<RailToken>>,
}

/// One connected queue pair.
struct Wire(Arc<World>);

impl Drop for Wire {
    fn drop(&mut self) {
        self.0.queue_pairs.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Fabric for Adapters {
    type Half = OpenHalf;

    fn survey(&self) -> Survey {
        let ports = self.ports.lock().unwrap().clone();
        Survey {
            has_devices: !ports.is_empty(),
            reasons: if ports.is_empty() {
                vec!["there is no RDMA device".to_owned()]
            } else {
                Vec::new()
            },
            may_pass: self.may_pass.load(Ordering::SeqCst),
            ports,
        }
    }

    fn open(
        &self,
        port: &LocalPort,
        gid: usize,
        probe: [u8; 32],
        queue_pairs: usize,
        way: Way,
    ) -> io::Result<OpenHalf> {
        if let Some(kind) = *self.refuses.lock().unwrap() {
            return Err(kind.into());
        }
        let world = Arc::clone(&self.world);
        let number = || world.next.fetch_add(1, Ordering::SeqCst) + 1;
        let address = u64::from(number());
        world.probes.lock().unwrap().insert(address, probe);
        let made = (0..queue_pairs).map(|_| {
            let now = world.queue_pairs.fetch_add(1, Ordering::SeqCst) + 1;
            world.queue_pairs_most.fetch_max(now, Ordering::SeqCst);
            let pair = QueuePair {
                number: number(),
                psn: 7,
            };
            (pair, Some(Wire(Arc::clone(&world))))
        });
        let (queue_pairs, connected): (Vec<QueuePair>, _) = made.unzip();
        let (mut invitation, mut dials) = (None, None);
        match way {
            Way::Direct => {}
            Way::Await(_) => {
                let expect = |pair: &QueuePair| {
                    let token = crate::sys::random_bytes();
                    let mut expected = world.expected.lock().unwrap();
                    expected.insert(token, (pair.number, false));
                    RailToken(token)
                };
                invitation = Some(Invitation {
                    address: port.port.gids[gid].gid,
                    port: 20471,
                    tokens: queue_pairs.iter().map(expect).collect(),
                });
            }
            Way::Dial { invitation, .. } => dials = Some(invitation.tokens),
        }
        Ok(OpenHalf {
            device: port.device.clone(),
            address,
            queue_pairs,
            connected,
            invitation,
            dials,
            world,
        })
    }
}

impl Half for OpenHalf {
    type Connection = Wire;

    fn queue_pairs(&self) -> Vec<QueuePair> {
        self.queue_pairs.clone()
    }

    fn probe(&self) -> (u64, RemoteKey) {
        (self.address, RemoteKey(self.address))
    }

    fn invitation(&self) -> Option<Invitation> {
        self.invitation.clone()
    }

    fn connect(&mut self, path: &Path, theirs: &[QueuePair], _: Instant) -> io::Result<Reached> {
        assert_eq!(theirs.len(), self.queue_pairs.len());
        assert_eq!(path.agreement.mtu, PathMtu::B1024);
        let mut expected = self.world.expected.lock().unwrap();
        for (token, theirs) in self.dials.iter().flatten().zip(theirs) {
            let known = expected.get_mut(&token.0);
            let (number, dialled) = known.ok_or_else(|| io::Error::other("refused"))?;
            if *number != theirs.number || std::mem::replace(dialled, true) {
                return Err(io::Error::other("not for this queue pair"));
            }
        }
        for token in self.invitation.iter().flat_map(|told| &told.tokens) {
            if !expected[&token.0].1 {
                return Err(io::Error::other("nobody has dialled"));
            }
        }
        Ok(Reached {
            kind: path.kind,
            mtu: path.agreement.mtu,
        })
    }

    fn read_probe(&mut self, _: usize, probe: &Probe, _: Instant) -> io::Result<[u8; 32]> {
        if self.world.damaged.lock().unwrap().contains(&self.device) {
            return Ok([0; 32]);
        }
        let probes = self.world.probes.lock().unwrap();
        probes
            .get(&probe.address)
            .copied()
            .ok_or_else(|| io::Error::other("retries ran out"))
    }

    fn take(&mut self, queue_pair: usize) -> Option<Wire> {
        self.connected.get_mut(queue_pair)?.take()
    }
}

/// One end's session: what it says goes to the other end, or to the test.
struct End {
    to: OnceLock<RailSender>,
    said: mpsc::UnboundedSender<Message>,
    up: Mutex<HashMap<RailLink, (Wire, LostSender)>>,
    changed: tokio::sync::Notify,
    gave_up: OnceLock<String>,
}

impl End {
    fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Message>) {
        let (said, heard) = mpsc::unbounded_channel();
        let end = Self {
            to: OnceLock::new(),
            said,
            up: Mutex::default(),
            changed: tokio::sync::Notify::new(),
            gave_up: OnceLock::new(),
        };
        (Arc::new(end), heard)
    }

    fn links(&self) -> Vec<RailLink> {
        let mut links: Vec<_> = self.up.lock().unwrap().keys().copied().collect();
        links.sort_unstable();
        links
    }

    async fn until(&self, holds: impl Fn(&[RailLink]) -> bool) -> Vec<RailLink> {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                let links = self.links();
                if holds(&links) {
                    return links;
                }
                changed.await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap()
    }

    /// As if the adapter had said so.
    fn lose(&self, link: RailLink) {
        self.lose_so(link, true);
    }

    fn lose_so(&self, link: RailLink, may_pass: bool) {
        let (_, lost) = self.up.lock().unwrap().remove(&link).unwrap();
        lost.send(Lost {
            link,
            reason: "retries ran out".to_owned(),
            may_pass,
        })
        .unwrap();
        self.changed.notify_waiters();
    }
}

impl Owner<Wire> for End {
    fn say(&self, message: Message) {
        let _ = self.said.send(message.clone());
        if let Some(to) = self.to.get() {
            to.hear(message).unwrap();
        }
    }

    fn attach(self: &Arc<Self>, link: RailLink, connection: Wire, lost: LostSender) -> bool {
        let before = self.up.lock().unwrap().insert(link, (connection, lost));
        assert!(before.is_none(), "{link:?} is attached twice");
        self.changed.notify_waiters();
        true
    }

    fn gave_up(&self, reason: &str) {
        self.gave_up.set(reason.to_owned()).unwrap();
        self.changed.notify_waiters();
    }

    fn detach(&self, link: RailLink) {
        self.up.lock().unwrap().remove(&link);
        self.changed.notify_waiters();
    }
}

fn port(device: &str, address: &str) -> LocalPort {
    let address: IpAddr = address.parse().unwrap();
    let IpAddr::V4(v4) = address else {
        panic!("an IPv4 address");
    };
    LocalPort {
        device: device.to_owned(),
        port: RailPort {
            label: device.to_owned(),
            guid: u64::from(v4.to_bits()),
            number: 1,
            link: LinkLayer::Ethernet,
            lid: 0,
            pkey: 0xffff,
            mtu: PathMtu::B1024,
            speed_mbps: 10_000,
            reads_served_max: 16,
            reads_posted_max: 16,
            message_bytes_max: 0,
            queue_pairs: 2,
            gids: vec![PortGid {
                kind: GidKind::RoceV2,
                gid: v4.to_ipv6_mapped().octets(),
            }],
        },
        gids: vec![LocalGid {
            index: 3,
            network: super::network::IpNetwork::new(address, 24),
        }],
    }
}

fn adapters(world: &Arc<World>, ports: &[LocalPort]) -> Arc<Adapters> {
    Arc::new(Adapters {
        world: Arc::clone(world),
        ports: Mutex::new(ports.to_vec()),
        may_pass: AtomicBool::new(false),
        refuses: Mutex::default(),
    })
}

fn workers() -> Workers {
    Workers::start(NonZeroUsize::new(4).unwrap()).unwrap()
}

fn policy() -> PeerPolicy {
    PeerPolicy {
        peer: "192.0.2.1".parse().unwrap(),
        networks: Vec::new(),
        by_cm: false,
    }
}

struct Joined {
    world: Arc<World>,
    client: Arc<End>,
    server: Arc<End>,
    client_book: Arc<Mutex<Book>>,
    wishes: mpsc::Sender<Wish<Wire>>,
    outcome: Outcome,
}

/// Both ends with these ports, after the first attempt.
async fn join(world: Arc<World>, of_client: &[LocalPort], of_server: &[LocalPort]) -> Joined {
    let of_client = adapters(&world, of_client);
    let of_server = adapters(&world, of_server);
    join_adapters(world, of_client, of_server, (RailDial::Direct, false)).await
}

/// `ways`: what the client wants, and whether the server connects by rdma_cm.
async fn join_by(
    world: Arc<World>,
    of_client: &[LocalPort],
    of_server: &[LocalPort],
    ways: (RailDial, bool),
) -> Joined {
    let of_client = adapters(&world, of_client);
    let of_server = adapters(&world, of_server);
    join_adapters(world, of_client, of_server, ways).await
}

async fn join_adapters(
    world: Arc<World>,
    of_client: Arc<Adapters>,
    of_server: Arc<Adapters>,
    ways: (RailDial, bool),
) -> Joined {
    let (client, _) = End::new();
    let (server, _) = End::new();
    let client_book = Arc::<Mutex<Book>>::default();
    let (wishes, wished) = mpsc::channel(1);
    let workers = workers();
    let server_sender = server::start(
        of_server,
        Arc::clone(&server),
        workers.clone(),
        Arc::default(),
        ServerRules {
            policy: PeerPolicy {
                by_cm: ways.1,
                ..policy()
            },
            queue_pairs_max: 2,
        },
    );
    client.to.set(server_sender).unwrap();
    let outcome = client::start(
        of_client,
        Arc::clone(&client),
        workers,
        Arc::clone(&client_book),
        ClientRules {
            policy: policy(),
            queue_pairs: 2,
            rails_only: false,
            connect: ways.0,
        },
        wished,
        |client_sender| server.to.set(client_sender).unwrap(),
    );
    let outcome = tokio::time::timeout(PATIENCE, outcome)
        .await
        .unwrap()
        .unwrap();
    Joined {
        world,
        client,
        server,
        client_book,
        wishes,
        outcome,
    }
}

#[tokio::test]
async fn every_pair_of_ports_becomes_a_rail_at_both_ends() {
    let of_client = [port("c0", "10.0.0.1"), port("c1", "10.0.1.1")];
    let of_server = [port("s0", "10.0.1.2"), port("s1", "10.0.0.2")];
    let joined = join(Arc::default(), &of_client, &of_server).await;
    assert_eq!(joined.outcome.up, 4, "{:?}", joined.outcome);
    assert!(joined.outcome.reasons.is_empty() && joined.outcome.has_devices);
    let links = joined.server.until(|links| links.len() == 4).await;
    assert_eq!(links, joined.client.links());
    let rails = joined.client_book.lock().unwrap().reports();
    let rails: Vec<_> = rails.iter().map(ToString::to_string).collect();
    let about = "(RoCE v2, MTU 1024, 10 Gbit/s, 2 queue pairs)";
    assert_eq!(
        rails,
        [format!("c0 to s1 {about}"), format!("c1 to s0 {about}")]
    );
}

#[tokio::test]
async fn a_rail_that_reads_other_bytes_is_left_out_and_the_rest_goes_on() {
    let world = Arc::<World>::default();
    world.damaged.lock().unwrap().push("s0".to_owned());
    let of_client = [port("c0", "10.0.0.1"), port("c1", "10.0.1.1")];
    let of_server = [port("s0", "10.0.0.2"), port("s1", "10.0.1.2")];
    let joined = join(world, &of_client, &of_server).await;
    assert_eq!(joined.outcome.up, 2);
    let told = joined.outcome.reasons.join("; ");
    assert!(
        told.contains("c0 to s0: the peer says") && told.contains("other bytes"),
        "{told}"
    );
    let links = joined.server.until(|links| links.len() == 2).await;
    assert_eq!(links, joined.client.links());
}

#[tokio::test]
async fn what_is_lost_is_dropped_at_the_other_end_and_made_anew() {
    let joined = join(
        Arc::default(),
        &[port("c0", "10.0.0.1")],
        &[port("s0", "10.0.0.2")],
    )
    .await;
    let first = joined.server.until(|links| links.len() == 2).await;
    for (at, end) in [(0, &joined.client), (1, &joined.server)] {
        let lost = first[at];
        end.lose(lost);
        let made_anew = |links: &[RailLink]| links.len() == 2 && !links.contains(&lost);
        let links = joined.client.until(made_anew).await;
        assert_eq!(joined.server.until(made_anew).await, links);
        assert!(
            links.iter().all(|link| link.rail == first[0].rail),
            "its number stays"
        );
    }
    assert!(joined.world.queue_pairs_most.load(Ordering::SeqCst) <= 8);
}

#[tokio::test]
async fn ports_that_come_up_later_become_rails() {
    for late_at_client in [true, false] {
        let world = Arc::<World>::default();
        let (client, server) = ([port("c0", "10.0.0.1")], [port("s0", "10.0.0.2")]);
        let of = |late: bool, ports: &[LocalPort]| {
            let adapters = adapters(&world, if late { &[] } else { ports });
            adapters.may_pass.store(late, Ordering::SeqCst);
            adapters
        };
        let of_client = of(late_at_client, &client);
        let of_server = of(!late_at_client, &server);
        let joined = join_adapters(
            Arc::clone(&world),
            Arc::clone(&of_client),
            Arc::clone(&of_server),
            (RailDial::Direct, false),
        )
        .await;
        assert_eq!((joined.outcome.up, joined.outcome.may_pass), (0, true));
        *of_client.ports.lock().unwrap() = client.to_vec();
        *of_server.ports.lock().unwrap() = server.to_vec();
        let links = joined.client.until(|links| links.len() == 2).await;
        assert_eq!(joined.server.until(|up| up.len() == 2).await, links);
    }
}

#[tokio::test]
async fn what_waiting_does_not_mend_is_told_apart() {
    for at_client in [true, false] {
        let world = Arc::<World>::default();
        let of_client = adapters(&world, &[port("c0", "10.0.0.1")]);
        let of_server = adapters(&world, &[port("s0", "10.0.0.2")]);
        let refusing = if at_client { &of_client } else { &of_server };
        for (kind, may_pass) in [
            (io::ErrorKind::PermissionDenied, false),
            (io::ErrorKind::NetworkUnreachable, true),
        ] {
            *refusing.refuses.lock().unwrap() = Some(kind);
            let joined = join_adapters(
                Arc::clone(&world),
                Arc::clone(&of_client),
                Arc::clone(&of_server),
                (RailDial::Direct, false),
            )
            .await;
            let Outcome { up, reasons, .. } = &joined.outcome;
            let said = if at_client {
                "c0: making"
            } else {
                "the server: s0: making"
            };
            assert!(*up == 0 && reasons[0].starts_with(said), "{reasons:?}");
            assert_eq!(joined.outcome.may_pass, may_pass, "{reasons:?}");
        }
    }
}

#[tokio::test]
async fn who_can_not_keep_any_queue_pair_is_given_up_with_the_reason() {
    for at_client in [true, false] {
        let (client, server) = ([port("c0", "10.0.0.1")], [port("s0", "10.0.0.2")]);
        let joined = join(Arc::default(), &client, &server).await;
        let first = joined.server.until(|links| links.len() == 2).await;
        let end = if at_client {
            &joined.client
        } else {
            &joined.server
        };
        end.lose_so(first[0], false);
        end.lose_so(first[1], false);
        joined.client.until(<[_]>::is_empty).await;
        let given_up = |_: &[RailLink]| joined.client.gave_up.get().is_some();
        joined.client.until(given_up).await;
        let reason = joined.client.gave_up.get().unwrap();
        assert!(reason.contains("retries ran out"), "{reason}");
        assert!(joined.client.links().is_empty());
    }
}

#[tokio::test]
async fn without_ports_there_are_reasons() {
    let joined = join(Arc::default(), &[port("c0", "10.0.0.1")], &[]).await;
    assert_eq!(joined.outcome.up, 0);
    let told = joined.outcome.reasons.join("; ");
    assert!(told.contains("c0: the other end has no port"), "{told}");
    assert!(told.contains("there is no RDMA device"), "{told}");
    let joined = join(Arc::default(), &[], &[port("s0", "10.0.0.2")]).await;
    assert!(!joined.outcome.has_devices);
    assert_eq!(joined.outcome.reasons, ["there is no RDMA device"]);
}

/// A server that is spoken to by hand.
struct ByHand {
    world: Arc<World>,
    server: Arc<End>,
    said: mpsc::UnboundedReceiver<Message>,
    to: RailSender,
}

impl ByHand {
    fn new() -> Self {
        Self::of_server(false)
    }

    fn of_server(by_cm: bool) -> Self {
        let world = Arc::<World>::default();
        let (server, said) = End::new();
        let to = server::start(
            adapters(&world, &[port("s0", "10.0.0.2")]),
            Arc::clone(&server),
            workers(),
            Arc::default(),
            ServerRules {
                policy: PeerPolicy { by_cm, ..policy() },
                queue_pairs_max: 2,
            },
        );
        Self {
            world,
            server,
            said,
            to,
        }
    }

    async fn next(&mut self) -> Message {
        tokio::time::timeout(PATIENCE, self.said.recv())
            .await
            .unwrap()
            .unwrap()
    }

    fn offer(&self, attempt: u32) {
        self.offer_to_be(attempt, Some(RailDial::Direct));
    }

    fn offer_to_be(&self, attempt: u32, connect: Option<RailDial>) {
        let ports = vec![RailPort {
            queue_pairs: 8,
            ..port("c0", "10.0.0.1").port
        }];
        self.to
            .hear(Message::RailOffer(RailOffer {
                attempt,
                ports,
                rails_only: false,
                connect,
            }))
            .unwrap();
    }

    async fn answer(&mut self) -> RailAnswer {
        match self.next().await {
            Message::RailAnswer(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    /// Connects two queue pairs whose probe holds `nonce`.
    async fn connect(&mut self, attempt: u32, nonce: [u8; 32]) {
        self.world.probes.lock().unwrap().insert(1 << 40, nonce);
        let end = RailEnd {
            probe: Probe {
                address: 1 << 40,
                key: RemoteKey(1),
                digest: digest(&nonce),
            },
            queue_pairs: vec![QueuePair { number: 1, psn: 1 }; 2],
        };
        let rails = vec![(1, end)];
        self.to
            .hear(Message::RailConnect(RailConnect { attempt, rails }))
            .unwrap();
        let ready = self.next().await;
        assert!(
            matches!(ready, Message::RailReady(ref ready) if ready.rails == [1]),
            "{ready:?}"
        );
    }

    fn probe(&self, answer: &RailAnswer) -> [u8; 32] {
        self.world.probes.lock().unwrap()[&answer.rails[0].end.probe.address]
    }

    fn prove(&self, attempt: u32, queue_pair: u8, read: [u8; 32]) {
        let link = RailLink {
            attempt,
            rail: 1,
            queue_pair,
        };
        self.to.hear(Message::RailProof { link, read }).unwrap();
    }
}

#[tokio::test]
async fn a_flood_of_offers_holds_the_queue_pairs_of_one_attempt() {
    let mut hand = ByHand::new();
    for attempt in 1..=50 {
        hand.offer(attempt);
    }
    let mut answered = 0;
    while answered < 50 {
        let answer = hand.answer().await;
        assert!(
            answer.attempt > answered,
            "attempts are answered in their order"
        );
        assert_eq!(
            answer.rails[0].end.queue_pairs.len(),
            2,
            "not more than it may have"
        );
        answered = answer.attempt;
    }
    assert_eq!(hand.world.queue_pairs_most.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn only_proved_queue_pairs_of_the_last_attempt_come_into_use() {
    let mut hand = ByHand::new();
    hand.offer(4);
    let stale = hand.answer().await;
    hand.offer(5);
    let answer = hand.answer().await;
    // All of this belongs to no attempt that goes on.
    hand.offer(5);
    hand.offer(3);
    let probe = hand.probe(&answer);
    assert_ne!(probe, hand.probe(&stale));
    hand.connect(5, [9; 32]).await;
    for _ in 0..2 {
        let proof = hand.next().await;
        assert!(
            matches!(proof, Message::RailProof { read, .. } if read == [9; 32]),
            "{proof:?}"
        );
    }
    hand.prove(4, 0, probe);
    hand.prove(5, 7, probe);
    hand.prove(5, 1, hand.probe(&stale));
    let down = hand.next().await;
    assert!(
        matches!(down, Message::RailDown { link, .. } if link.queue_pair == 1),
        "{down:?}"
    );
    assert!(hand.server.links().is_empty());
    // Too late for the one that was given up; in time for the other.
    hand.prove(5, 1, probe);
    hand.prove(5, 0, probe);
    let links = hand.server.until(|links| !links.is_empty()).await;
    assert_eq!((links.len(), links[0].queue_pair), (1, 0));
    // With one in use there is room for one more.
    hand.offer(6);
    let answer = hand.answer().await;
    assert_eq!(answer.rails[0].end.queue_pairs.len(), 1);
    assert_eq!(answer.rails[0].rail, 1);
}

#[tokio::test]
async fn a_peer_whose_probe_can_not_be_read_gets_no_rail() {
    let mut hand = ByHand::new();
    hand.offer(1);
    let answer = hand.answer().await;
    let probe = hand.probe(&answer);
    hand.world.damaged.lock().unwrap().push("s0".to_owned());
    hand.connect(1, [9; 32]).await;
    hand.prove(1, 0, probe);
    hand.prove(1, 1, probe);
    for _ in 0..2 {
        let down = hand.next().await;
        assert!(matches!(down, Message::RailDown { .. }), "{down:?}");
    }
    hand.offer(2);
    hand.answer().await;
    assert!(hand.server.links().is_empty());
}

#[tokio::test]
async fn who_says_more_than_there_is_to_say_is_told_so() {
    let hand = ByHand::new();
    let down = || Message::RailDown {
        link: RailLink {
            attempt: 1,
            rail: 1,
            queue_pair: 0,
        },
        reason: String::new(),
    };
    // The driver has no turn in between: this test does not wait for anything.
    let refused = (0..100_000).any(|_| hand.to.hear(down()).is_err());
    assert!(refused);
}
