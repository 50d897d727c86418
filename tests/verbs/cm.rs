//! A connection by rdma_cm, both ends in this process, and a READ over it.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdcp::memory::Pool;
use rdcp::sys::verbs::cm::{
    Decided, Event, EventChannel, Identifier, PRIVATE_DATA_BYTES_MAX, Parameters,
};
use rdcp::sys::verbs::{Batch, CompletionQueue, Domain, Mtu, QueuePair, Read, region};

use crate::Outcome;
use crate::fabric::{Fabric, SLOT_BYTES, pattern};

const LISTENER: u64 = 1;
const ACTIVE: u64 = 2;
const PASSIVE: u64 = 3;
/// The protocol's reason for a request that whoever listens does not want.
const BY_LISTENER: i32 = 28;
const TIMEOUT: Duration = Duration::from_secs(10);

fn next(channel: &Arc<EventChannel>) -> Result<Event, Box<dyn Error>> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        if let Some(event) = channel.next_event()? {
            return Ok(event);
        }
        std::thread::yield_now();
    }
    Err("no event".into())
}

fn other(event: Event) -> Box<dyn Error> {
    format!("unexpected: {event:?}").into()
}

fn parameters(private_data: &[u8]) -> Parameters<'_> {
    Parameters {
        private_data,
        reads_served: 16,
        reads_posted: 16,
        retry_count: 6,
        rnr_retry: 7,
    }
}

/// A packet's size that no port has by itself: both ends have to keep to it.
fn decided(serves: bool) -> Decided {
    Decided {
        serves,
        mtu_max: Some(Mtu::B512),
        ..Decided::default()
    }
}

/// Both identifiers, as far as the request.
struct Met {
    channel: Arc<EventChannel>,
    active: Identifier,
    passive: Identifier,
    reader: QueuePair,
    completions: Arc<CompletionQueue>,
    private_data: Vec<u8>,
    _listener: Identifier,
}

fn meet(fabric: &Fabric, address: &str) -> Result<Met, Box<dyn Error>> {
    let ip: IpAddr = address.parse()?;
    let channel = EventChannel::new()?;
    let mut listener = Identifier::new(&channel, LISTENER)?;
    listener.listen(SocketAddr::new(ip, 0), 16)?;
    let target = SocketAddr::new(ip, listener.local_port());
    let mut active = Identifier::new(&channel, ACTIVE)?;
    active.resolve_address(Some(SocketAddr::new(ip, 0)), target, TIMEOUT)?;
    match next(&channel)? {
        Event::AddressResolved { id: ACTIVE } => {}
        event => return Err(other(event)),
    }
    if active.device_name().as_deref() != Some(fabric.context.name())
        || active.device_port() != fabric.port.number
    {
        return Err(format!("{address} leads to {:?}", active.device_name()).into());
    }
    active.resolve_route(TIMEOUT)?;
    match next(&channel)? {
        Event::RouteResolved { id: ACTIVE } => {}
        event => return Err(other(event)),
    }
    let domain = Domain::new(&fabric.context)?;
    let completions = CompletionQueue::new(&fabric.context, 4)?;
    let mut reader = QueuePair::new(&domain, &completions, 4)?;
    active.initialise(&mut reader, false)?;
    let too_long = [0; PRIVATE_DATA_BYTES_MAX + 1];
    if active.connect(&reader, &parameters(&too_long)).is_ok() {
        return Err("too much private data was taken".into());
    }
    active.connect(&reader, &parameters(b"hello from here"))?;
    match next(&channel)? {
        Event::ConnectRequest {
            id: LISTENER,
            request,
            told,
        } => Ok(Met {
            channel,
            active,
            passive: request,
            reader,
            completions,
            private_data: told.private_data,
            _listener: listener,
        }),
        event => Err(other(event)),
    }
}

pub(crate) fn connected(fabric: &Fabric, address: &str) -> Outcome {
    let mut met = meet(fabric, address)?;
    if !met.private_data.starts_with(b"hello from here") {
        return Err(format!("private data: {:?}", met.private_data).into());
    }
    let domain = Domain::new(&fabric.context)?;
    let completions = CompletionQueue::new(&fabric.context, 4)?;
    let mut server = QueuePair::new(&domain, &completions, 4)?;
    met.passive.set_key(PASSIVE);
    met.passive.initialise(&mut server, true)?;
    let found = met.passive.ready(&mut server, &decided(true))?;
    met.passive.accept(&server, &parameters(b"welcome"))?;
    match next(&met.channel)? {
        Event::ConnectResponse { id: ACTIVE, told }
            if told.private_data.starts_with(b"welcome") => {}
        event => return Err(other(event)),
    }
    let other_found = met.active.ready(&mut met.reader, &decided(false))?;
    if found != other_found || found.mtu != Some(Mtu::B512) {
        return Err(format!("ways: {found:?} and {other_found:?}").into());
    };
    met.active.establish()?;
    match next(&met.channel)? {
        Event::Established { id: PASSIVE } => {}
        event => return Err(other(event)),
    }

    let pool = Pool::new(SLOT_BYTES, 2);
    let mut served = pool.take().ok_or("no slot")?;
    served.copy_from_slice(&pattern(SLOT_BYTES));
    let remote = region::register_serving(&mut served, &domain)?;
    let mut slot = pool.take().ok_or("no slot")?;
    region::register_landing(&mut slot, met.reader.domain())?;
    let read = Read {
        id: 1,
        slot,
        range: 0..SLOT_BYTES,
        address: remote.address,
        rkey: remote.rkey,
    };
    met.reader.post_read(read).map_err(|(_, error)| error)?;
    let mut batch = Batch::new(1);
    while met.completions.poll(&mut batch)? == 0 {
        std::thread::yield_now();
    }
    let completion = batch.drain().next().ok_or("no completion")?;
    let finished = met.reader.finish(completion).ok_or("nobody's completion")?;
    finished.outcome?;
    if finished.slot[..] != served[..] {
        return Err("other bytes landed".into());
    }

    met.active.disconnect()?;
    let mut over = Vec::new();
    while over.len() < 2 {
        match next(&met.channel)? {
            Event::Disconnected { id } => {
                if id == PASSIVE {
                    met.passive.disconnect()?;
                }
                over.push(id);
            }
            Event::TimeWaitOver { .. } => {}
            event => return Err(other(event)),
        }
    }
    over.sort_unstable();
    if over != [ACTIVE, PASSIVE] {
        return Err(format!("disconnected: {over:?}").into());
    }
    Ok(format!("{SLOT_BYTES} bytes read over it"))
}

pub(crate) fn rejected(fabric: &Fabric, address: &str) -> Outcome {
    let mut met = meet(fabric, address)?;
    met.passive.reject(b"no")?;
    match next(&met.channel)? {
        Event::Rejected {
            id: ACTIVE,
            reason,
            private_data,
        } if private_data.starts_with(b"no") => Ok(format!("reason {reason}")),
        event => Err(other(event)),
    }
}

/// Requests to a listener that expects other tokens: each has to be refused by it.
pub(crate) fn refused(fabric: &Fabric, listener: &str, requests: usize) -> Outcome {
    let target: SocketAddr = listener.parse()?;
    let channel = EventChannel::new()?;
    let domain = Domain::new(&fabric.context)?;
    let completions = CompletionQueue::new(&fabric.context, 4)?;
    // As many bytes as a token has, fewer, more, and none.
    let claims: [&[u8]; 4] = [&[7; 32], &[7; 31], &[7; PRIVATE_DATA_BYTES_MAX], b""];
    for private_data in claims.into_iter().cycle().take(requests) {
        let mut active = Identifier::new(&channel, ACTIVE)?;
        active.resolve_address(None, target, TIMEOUT)?;
        match next(&channel)? {
            Event::AddressResolved { id: ACTIVE } => {}
            event => return Err(other(event)),
        }
        active.resolve_route(TIMEOUT)?;
        match next(&channel)? {
            Event::RouteResolved { id: ACTIVE } => {}
            event => return Err(other(event)),
        }
        let mut reader = QueuePair::new(&domain, &completions, 4)?;
        active.initialise(&mut reader, false)?;
        active.connect(&reader, &parameters(private_data))?;
        match next(&channel)? {
            Event::Rejected {
                id: ACTIVE,
                reason: BY_LISTENER,
                ..
            } => {}
            event => return Err(other(event)),
        }
    }
    Ok(format!("{requests} requests"))
}
