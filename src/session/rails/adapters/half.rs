//! This end's half of a rail over an adapter.
//!
//! In: queue pairs that were made, how they are to be connected. Out: the same, connected and in use.
//! Which port they are of was settled before.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::super::by_cm::{self, Reception};
use super::super::fabric::{Half, Path, Reached};
use crate::ids::RemoteKey;
use crate::options::RdmaOptions;
use crate::sys::random_bytes;
use crate::transport::rdma::cm::{Awaited, Dial, Token};
use crate::transport::rdma::{
    self, Connected, Connection, Endpoint, LinkOptions, PortFacts, ProbeRegion, RemotePort,
};
use crate::wire::message::{Invitation, PROBE_BYTES, PathMtu, Probe, QueuePair, RailToken};

/// How long rdma_cm may take to connect the queue pairs of one rail.
const DIAL_DEADLINE: Duration = Duration::from_secs(5);

/// See the module's first paragraph.
pub(crate) struct AdapterHalf {
    /// As they were made, whatever became of them.
    queue_pairs: Vec<QueuePair>,
    stages: Vec<Stage>,
    /// For the other end, if it is to dial.
    invitation: Option<Invitation>,
    /// What this end dials for each of its queue pairs, if it is to.
    pub(super) dials: Vec<Dial>,
    probe: ProbeRegion,
    pub(super) facts: PortFacts,
    options: RdmaOptions,
}

enum Stage {
    Open(Endpoint),
    /// The other end is to dial it.
    Awaited(Awaited),
    Connected(Connected),
    /// In use, or of no use any more.
    Gone,
}

impl AdapterHalf {
    pub(super) fn new(
        endpoints: Vec<Endpoint>,
        probe: ProbeRegion,
        facts: PortFacts,
        options: RdmaOptions,
    ) -> Self {
        let numbers = endpoints.iter().map(|endpoint| QueuePair {
            number: endpoint.number(),
            psn: endpoint.psn(),
        });
        Self {
            queue_pairs: numbers.collect(),
            stages: endpoints.into_iter().map(Stage::Open).collect(),
            invitation: None,
            dials: Vec::new(),
            probe,
            facts,
            options,
        }
    }

    /// Has a listener expect a request for each queue pair.
    pub(super) fn invite(
        &mut self,
        reception: &Reception,
        own: SocketAddr,
        path: &Path,
    ) -> io::Result<()> {
        let listener = reception.at(own)?;
        let link = self.link(path);
        let mut tokens = Vec::new();
        for stage in &mut self.stages {
            if let Stage::Open(endpoint) = std::mem::replace(stage, Stage::Gone) {
                let token = RailToken(random_bytes());
                *stage = Stage::Awaited(listener.expect(Token(token.0), endpoint, &link));
                tokens.push(token);
            }
        }
        self.invitation = Some(by_cm::invitation(own.ip(), listener.port(), tokens));
        Ok(())
    }

    fn link(&self, path: &Path) -> LinkOptions {
        LinkOptions {
            mtu: path.agreement.mtu.bytes(),
            gid_index: path.gid_index,
            traffic_class: self.options.traffic_class,
            service_level: self.options.service_level,
            retry_cnt: self.options.retry_count,
            timeout: self.options.timeout,
            rnr_retry: self.options.rnr_retry,
            min_rnr_timer: self.options.min_rnr_timer,
            max_rd_atomic: path.agreement.reads_posted,
            max_dest_rd_atomic: path.agreement.reads_served,
            peer_max_msg_bytes: match path.remote_message_bytes_max {
                0 => None,
                max => Some(max.into()),
            },
        }
    }

    /// rdma_cm chooses the GID, by the address; one that was asked for by its index must be it.
    fn reached(&self, way: rdma::Way, path: &Path) -> io::Result<Reached> {
        if let (Some(wanted), Some(found)) = (self.options.gid_index, way.gid_index)
            && wanted != found
        {
            let why = format!("rdma_cm takes the GID with index {found}, not {wanted}");
            return Err(io::Error::other(why));
        }
        let index = way.gid_index.unwrap_or(path.gid_index);
        Ok(Reached {
            kind: by_cm::kind_of(&self.facts, index).unwrap_or(path.kind),
            mtu: PathMtu::from_bytes(way.mtu).unwrap_or(path.agreement.mtu),
        })
    }
}

impl Half for AdapterHalf {
    type Connection = Connection;

    fn queue_pairs(&self) -> Vec<QueuePair> {
        self.queue_pairs.clone()
    }

    fn probe(&self) -> (u64, RemoteKey) {
        (self.probe.address(), self.probe.key())
    }

    fn invitation(&self) -> Option<Invitation> {
        self.invitation.clone()
    }

    fn connect(
        &mut self,
        path: &Path,
        theirs: &[QueuePair],
        deadline: Instant,
    ) -> io::Result<Reached> {
        let link = self.link(path);
        // One that can't be reached must not use up what others have.
        let deadline = deadline.min(Instant::now() + DIAL_DEADLINE);
        let mut reached = Reached {
            kind: path.kind,
            mtu: path.agreement.mtu,
        };
        for (at, theirs) in theirs.iter().enumerate().take(self.stages.len()) {
            let connected = match std::mem::replace(&mut self.stages[at], Stage::Gone) {
                Stage::Open(endpoint) => match self.dials.get(at) {
                    Some(dial) => {
                        let dial = Dial {
                            queue_pair: theirs.number,
                            ..*dial
                        };
                        endpoint.dial(&dial, &link, deadline)?
                    }
                    None => {
                        let remote = RemotePort {
                            gid: path.remote_gid,
                            lid: path.remote_lid,
                            qp_number: theirs.number,
                            psn: theirs.psn,
                        };
                        endpoint.connect(&remote, &link)?
                    }
                },
                Stage::Awaited(awaited) => awaited.take(theirs.number)?,
                Stage::Connected(_) | Stage::Gone => {
                    return Err(io::Error::other("the queue pair is connected already"));
                }
            };
            reached = self.reached(connected.way(), path)?;
            self.stages[at] = Stage::Connected(connected);
        }
        Ok(reached)
    }

    fn read_probe(
        &mut self,
        queue_pair: usize,
        probe: &Probe,
        deadline: Instant,
    ) -> io::Result<[u8; PROBE_BYTES]> {
        match self.stages.get_mut(queue_pair) {
            Some(Stage::Connected(connected)) => {
                connected.probe(probe.address, probe.key, deadline)
            }
            _ => Err(io::Error::other("the queue pair is not connected")),
        }
    }

    fn take(&mut self, queue_pair: usize) -> Option<Connection> {
        let stage = self.stages.get_mut(queue_pair)?;
        match std::mem::replace(stage, Stage::Gone) {
            Stage::Connected(connected) => Some(connected.into_connection()),
            other => {
                *stage = other;
                None
            }
        }
    }
}
