//! What making rails needs of the machine and of the session, as traits: the conversation is the
//! same over any adapter, and its tests need none.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;

use super::pairing::{Agreement, LocalPort};
use crate::ids::RemoteKey;
use crate::wire::Message;
use crate::wire::message::{GidKind, Invitation, PROBE_BYTES, PathMtu, Probe, QueuePair, RailLink};

/// The ports of this host, and why some can't be used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// Those that can.
    pub(crate) ports: Vec<LocalPort>,
    /// Why not the others, or why there is none.
    pub(crate) reasons: Vec<String>,
    /// One of the reasons may pass by itself: a link that is down, an address that is to come.
    pub(crate) may_pass: bool,
    /// There are RDMA devices, usable or not.
    pub(crate) has_devices: bool,
}

/// This host's adapters as one session uses them. Its calls block.
pub(crate) trait Fabric: Send + Sync + 'static {
    type Half: Half;

    /// Looks at all ports afresh.
    fn survey(&self) -> Survey;

    /// Makes queue pairs on a port, to be connected from its GID with this index among `port`'s, and
    /// memory that holds `probe` for the peer to READ.
    fn open(
        &self,
        port: &LocalPort,
        gid: usize,
        probe: [u8; PROBE_BYTES],
        queue_pairs: usize,
        way: Way,
    ) -> io::Result<Self::Half>;
}

/// How the queue pairs of a half are connected.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// By their numbers.
    Direct,
    /// By rdma_cm: the other end gets an invitation and dials.
    Await(Path),
    /// By rdma_cm: this end dials.
    Dial {
        invitation: Invitation,
        /// It may lead beyond the networks of this end's port.
        may_be_far: bool,
    },
}

/// How the queue pairs of one rail are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// How packets travel, as far as both ends' words tell.
    pub(crate) kind: GidKind,
    /// This end's GID, by its index in the port's table.
    pub(crate) gid_index: u8,
    /// The other end's.
    pub(crate) remote_gid: [u8; 16],
    /// The other end's LID, on InfiniBand.
    pub(crate) remote_lid: u16,
    /// Its longest message in bytes; 0 if it does not say.
    pub(crate) remote_message_bytes_max: u32,
    /// What both keep to.
    pub(crate) agreement: Agreement,
}

/// How packets of a connected half travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) kind: GidKind,
    pub(crate) mtu: PathMtu,
}

/// This end's half of a rail in the making. Its calls block, and so does dropping it.
pub(crate) trait Half: Send + 'static {
    type Connection: Send + 'static;

    /// Its queue pairs, connected or not.
    fn queue_pairs(&self) -> Vec<QueuePair>;

    /// Where the peer finds the probe.
    fn probe(&self) -> (u64, RemoteKey);

    /// Where the peer is to dial, if it is to.
    fn invitation(&self) -> Option<Invitation>;

    /// Connects its queue pairs with the peer's, in order. One that is dialled by the peer has to be
    /// connected already.
    fn connect(
        &mut self,
        path: &Path,
        theirs: &[QueuePair],
        deadline: Instant,
    ) -> io::Result<Reached>;

    /// READs the peer's probe over one queue pair.
    fn read_probe(
        &mut self,
        queue_pair: usize,
        probe: &Probe,
        deadline: Instant,
    ) -> io::Result<[u8; PROBE_BYTES]>;

    /// Takes a queue pair out, to be used; nothing if it is not there (any more).
    fn take(&mut self, queue_pair: usize) -> Option<Self::Connection>;
}

/// A queue pair in use that was lost at this end.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub(crate) link: RailLink,
    pub(crate) reason: String,
    /// One that is made in its place may do better.
    pub(crate) may_pass: bool,
}

/// Hears of them.
pub(crate) type LostSender = mpsc::UnboundedSender<Lost>;

/// The session that rails are made for.
pub(crate) trait Owner<C>: Send + Sync + 'static {
    /// Tells the peer.
    fn say(&self, message: Message);

    /// Takes a queue pair into use; `false` if the session is over.
    fn attach(self: &Arc<Self>, link: RailLink, connection: C, lost: LostSender) -> bool;

    /// Takes one out of use.
    fn detach(&self, link: RailLink);

    /// None is in use any more and none will be made, for these reasons.
    fn gave_up(&self, reason: &str);
}
