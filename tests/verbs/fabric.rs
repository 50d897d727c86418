//! A device, and pairs of queue pairs that are connected to each other on it.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdcp::memory::{Pool, Slot};
use rdcp::sys::verbs::queue_pair::Route;
use rdcp::sys::verbs::{
    self, Batch, CompletionQueue, Context, Destination, Domain, Finished, GidEntry, GidKind,
    Initialise, LinkLayer, Mtu, Port, PortState, QueuePair, Read, Receiving, RemoteMemory, Sending,
    Transport, region,
};

use crate::Outcome;

/// Bytes of a slot.
pub(crate) const SLOT_BYTES: usize = 256 << 10;
/// READs that a queue pair is made for.
pub(crate) const DEPTH: u32 = 16;
/// Longer than anything here takes, even emulated.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Fabric {
    pub(crate) context: Arc<Context>,
    pub(crate) port: Port,
    gid: Option<GidEntry>,
}

impl Fabric {
    pub(crate) fn open() -> Result<Self, Box<dyn Error>> {
        for device in verbs::devices()? {
            if device.transport() != Transport::InfiniBand {
                continue;
            }
            let context = Context::open(&device)?;
            for number in 1..=context.limits()?.ports {
                let port = context.port(number)?;
                if port.state == PortState::Active {
                    let gids = context.gids()?;
                    let gid = gids
                        .iter()
                        .filter(|entry| entry.port == number && entry.gid.is_unicast())
                        .max_by_key(|entry| {
                            let is_v2 = entry.kind == GidKind::RoceV2;
                            (is_v2, !entry.gid.is_link_local())
                        });
                    return Ok(Self {
                        gid: gid.cloned(),
                        context,
                        port,
                    });
                }
            }
        }
        Err("no active port of an InfiniBand or RoCE device".into())
    }

    pub(crate) fn describe(&self) -> Outcome {
        let limits = self.context.limits()?;
        let pkey = self.context.pkey(self.port.number, 0)?;
        let message = self.port.message_bytes_max;
        let gid = self.gid.as_ref().ok_or("no address")?;
        if limits.queue_pairs_max == 0 || limits.reads_posted_max == 0 || pkey & 0x7fff == 0 {
            return Err(format!("{limits:?}, P_Key {pkey:#x}").into());
        }
        if self.port.link_layer == LinkLayer::Ethernet && gid.interface_name().is_none() {
            return Err(format!("no interface of {gid:?}").into());
        }
        Ok(format!(
            "{}, {:?}, mtu {:?}, {} Mbit/s, gid {} {} {:?} on {:?}, pkey {pkey:#x}, reads {}/{}, \
             message {message:?}, on demand {}",
            self.context.name(),
            self.port.link_layer,
            self.port.mtu,
            self.port.mbit_per_s,
            gid.index,
            gid.gid,
            gid.kind,
            gid.interface_name(),
            limits.reads_served_max,
            limits.reads_posted_max,
            limits.on_demand_reads,
        ))
    }

    pub(crate) fn pair(&self) -> Result<Pair, Box<dyn Error>> {
        self.pair_on(&CompletionQueue::new(&self.context, 2 * DEPTH)?)
    }

    pub(crate) fn pair_on(
        &self,
        completions: &Arc<CompletionQueue>,
    ) -> Result<Pair, Box<dyn Error>> {
        let (reading, serving) = (Domain::new(&self.context)?, Domain::new(&self.context)?);
        let mut reader = QueuePair::new(&reading, completions, DEPTH)?;
        let serving_completions = CompletionQueue::new(&self.context, DEPTH)?;
        let mut server = QueuePair::new(&serving, &serving_completions, DEPTH)?;
        self.connect(&mut reader, server.number(), false)?;
        self.connect(&mut server, reader.number(), true)?;
        Ok(Pair {
            reader,
            server,
            completions: Arc::clone(completions),
            pool: Pool::new(SLOT_BYTES, 2 * DEPTH as usize),
            batch: Batch::new(1),
        })
    }

    fn connect(
        &self,
        queue_pair: &mut QueuePair,
        peer: u32,
        serves: bool,
    ) -> Result<(), Box<dyn Error>> {
        queue_pair.initialise(&Initialise {
            port: self.port.number,
            pkey_index: 0,
            serves,
        })?;
        let route = self.gid.as_ref().map(|entry| Route {
            gid: entry.gid,
            local_index: entry.index,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
        });
        let destination = Destination {
            queue_pair: peer,
            lid: self.port.lid,
            service_level: 0,
            route,
        };
        queue_pair.receive(
            self.port.number,
            &Receiving {
                destination,
                psn: 0x12_3456,
                mtu: self.port.mtu.unwrap_or(Mtu::B1024),
                reads_served: 16,
                rnr_timer: 12,
            },
        )?;
        queue_pair.send(&Sending {
            psn: 0x12_3456,
            reads_posted: 16,
            timeout: 14,
            retry_count: 6,
            rnr_retry: 7,
        })?;
        Ok(())
    }
}

/// A queue pair that READs, and one that serves.
pub(crate) struct Pair {
    pub(crate) reader: QueuePair,
    pub(crate) server: QueuePair,
    pub(crate) completions: Arc<CompletionQueue>,
    pub(crate) pool: Pool,
    batch: Batch,
}

impl Pair {
    /// A slot that READs may land in.
    pub(crate) fn landing(&self) -> Result<Slot, Box<dyn Error>> {
        let mut slot = self.pool.take().ok_or("no slot")?;
        slot.fill(0);
        region::register_landing(&mut slot, self.reader.domain())?;
        Ok(slot)
    }

    /// A slot that the peer may read, with bytes that differ from place to place.
    pub(crate) fn serving(&self) -> Result<(Slot, RemoteMemory), Box<dyn Error>> {
        let mut slot = self.pool.take().ok_or("no slot")?;
        slot.copy_from_slice(&pattern(SLOT_BYTES));
        let remote = region::register_serving(&mut slot, self.server.domain())?;
        Ok((slot, remote))
    }

    /// Posts a READ of `len` bytes, from `offset` on, into the start of a new slot.
    pub(crate) fn read(
        &mut self,
        id: u64,
        remote: &RemoteMemory,
        offset: u64,
        len: usize,
    ) -> Result<(), Box<dyn Error>> {
        let read = Read {
            id,
            slot: self.landing()?,
            range: 0..len,
            address: remote.address + offset,
            rkey: remote.rkey,
        };
        self.reader
            .post_read(read)
            .map_err(|(_, error)| error.into())
    }

    /// The next READ to be over, waited for by polling.
    pub(crate) fn finish(&mut self) -> Result<Finished, Box<dyn Error>> {
        let begun = Instant::now();
        while begun.elapsed() < DEADLINE {
            self.completions.poll(&mut self.batch)?;
            if let Some(completion) = self.batch.drain().next() {
                let finished = self.reader.finish(completion);
                return finished.ok_or_else(|| "a completion of nobody's".into());
            }
            std::thread::yield_now();
        }
        Err("no completion".into())
    }
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0u64..)
        .map(|at| (at.wrapping_mul(31).wrapping_add(at / 251) % 256).to_le_bytes()[0])
        .take(len)
        .collect()
}
