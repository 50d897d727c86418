//! The conversation over adapters of memory: both drivers as they are, joined by their messages.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::book::Book;
use super::client::{self, ClientRules, Outcome, Wish};
use super::fabric::{Fabric, Half, LostSender, Owner, Path, Survey};
use super::pairing::{LocalGid, LocalPort, PeerPolicy};
use super::server::{self, ServerRules};
use super::talk::{RailSender, digest};
use crate::ids::RemoteKey;
use crate::wire::Message;
use crate::wire::message::{
    GidKind, LinkLayer, PROBE_BYTES, PathMtu, PortGid, Probe, QueuePair, RailAnswer, RailConnect,
    RailEnd, RailLink, RailOffer, RailPort,
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
}

struct Adapters {
    world: Arc<World>,
    ports: Mutex<Vec<LocalPort>>,
}

struct OpenHalf {
    world: Arc<World>,
    device: String,
    address: u64,
    queue_pairs: Vec<QueuePair>,
    connected: Vec<Option<Wire>>,
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
            ports,
        }
    }

    fn open(&self, port: &LocalPort, probe: [u8; 32], queue_pairs: usize) -> io::Result<OpenHalf> {
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
        let (queue_pairs, connected) = made.unzip();
        Ok(OpenHalf {
            device: port.device.clone(),
            address,
            queue_pairs,
            connected,
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

    fn connect(&mut self, path: &Path, theirs: &[QueuePair]) -> io::Result<()> {
        assert_eq!(theirs.len(), self.queue_pairs.len());
        assert_eq!(path.agreement.mtu, PathMtu::B1024);
        Ok(())
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
}

impl End {
    fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Message>) {
        let (said, heard) = mpsc::unbounded_channel();
        let end = Self {
            to: OnceLock::new(),
            said,
            up: Mutex::default(),
            changed: tokio::sync::Notify::new(),
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
        let (_, lost) = self.up.lock().unwrap().remove(&link).unwrap();
        lost.send((link, "retries ran out".to_owned())).unwrap();
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
    })
}

fn workers() -> Workers {
    Workers::start(NonZeroUsize::new(4).unwrap()).unwrap()
}

fn policy() -> PeerPolicy {
    PeerPolicy {
        peer: "192.0.2.1".parse().unwrap(),
        networks: Vec::new(),
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
    let (client, _) = End::new();
    let (server, _) = End::new();
    let client_book = Arc::<Mutex<Book>>::default();
    let (wishes, wished) = mpsc::channel(1);
    let workers = workers();
    let server_sender = server::start(
        adapters(&world, of_server),
        Arc::clone(&server),
        workers.clone(),
        Arc::default(),
        ServerRules {
            policy: policy(),
            queue_pairs_max: 2,
        },
    );
    client.to.set(server_sender).unwrap();
    let outcome = client::start(
        adapters(&world, of_client),
        Arc::clone(&client),
        workers,
        Arc::clone(&client_book),
        ClientRules {
            policy: policy(),
            queue_pairs: 2,
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
async fn who_reads_alone_gets_a_queue_pair_that_no_lane_carries() {
    let joined = join(
        Arc::default(),
        &[port("c0", "10.0.0.1")],
        &[port("s0", "10.0.0.2")],
    )
    .await;
    let of_lanes = joined.server.until(|links| links.len() == 2).await;
    let wish = async |rail| {
        let (answer, answered) = oneshot::channel();
        joined
            .wishes
            .send(Wish { rail, answer })
            .await
            .ok()
            .unwrap();
        let answered = tokio::time::timeout(PATIENCE, answered).await;
        answered.unwrap().unwrap()
    };
    let own = wish(1).await.ok().unwrap();
    let served = joined.server.until(|links| links.len() == 3).await;
    assert!(served.contains(&own.link));
    assert_eq!(joined.client.links(), of_lanes, "no lane has it");
    assert_eq!(wish(2).await.err().unwrap(), "the rail was lost");
    assert!(own.gone.get().is_none());
    // Lost at the server, it is made known to its reader and not made anew.
    joined.server.lose(own.link);
    let gone = async {
        while own.gone.get().is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
    assert_eq!(joined.client.links(), of_lanes);
    // Given up by its reader, the server ends it.
    let other = wish(1).await.ok().unwrap();
    joined.server.until(|links| links.len() == 3).await;
    let link = other.link;
    joined.client.say(Message::RailDown {
        link,
        reason: "done".to_owned(),
    });
    joined.server.until(|links| links == of_lanes).await;
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
        let world = Arc::<World>::default();
        let (server, said) = End::new();
        let to = server::start(
            adapters(&world, &[port("s0", "10.0.0.2")]),
            Arc::clone(&server),
            workers(),
            Arc::default(),
            ServerRules {
                policy: policy(),
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
        let ports = vec![RailPort {
            queue_pairs: 8,
            ..port("c0", "10.0.0.1").port
        }];
        self.to
            .hear(Message::RailOffer(RailOffer { attempt, ports }))
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
