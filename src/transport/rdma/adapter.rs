//! The RDMA devices of this machine, opened once for the whole process.
//!
//! Devices come and go: each look at the ports lists them anew, opens what is new and gives up what
//! has gone. One thread hears what devices say unasked, and rings the alarms of the connections that
//! are concerned. Nothing here knows sessions or lanes.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::alarm::Alarm;
use super::facts::{self, PortFacts, RailPolicy};
use super::pace::Pace;
use super::region::Trials;
use super::watch::{self, Bell};
use crate::sys::verbs::{self, AsyncEvent, Context, Device, Events, Transport};

/// See the module's first paragraph.
pub struct Adapters {
    open: Mutex<Vec<Arc<Adapter>>>,
    /// Why others can't be used, as of the last look.
    unusable: Mutex<Vec<String>>,
    bell: Bell,
}

/// One opened device.
pub(super) struct Adapter {
    pub(super) context: Arc<Context>,
    pub(super) events: Events,
    pub(super) trials: Trials,
    guid: u64,
    is_iwarp: bool,
    /// The folder that the kernel takes away first when the device goes.
    node: Option<PathBuf>,
    /// By port.
    paces: Mutex<HashMap<u8, Arc<Pace>>>,
    /// By number of their queue pair.
    connections: Mutex<HashMap<u32, Watched>>,
    gone: AtomicBool,
}

struct Watched {
    port: u8,
    alarm: Alarm,
}

/// Counts of packets that were sent again, by whichever driver has them: mlx5 the first three, rxe the
/// last.
const RETRY_COUNTERS: [&str; 4] = [
    "local_ack_timeout_err",
    "packet_seq_err",
    "implied_nak_seq_err",
    "completer_retry_err",
];

/// The process's devices; the text says why there are none.
pub fn adapters() -> Result<Arc<Adapters>, String> {
    static ADAPTERS: OnceLock<Result<Arc<Adapters>, String>> = OnceLock::new();
    // Whether the library is there is found out once; a device may come later.
    let adapters = ADAPTERS
        .get_or_init(|| {
            verbs::library().map_err(|why| why.to_string())?;
            let bell = Bell::new().map_err(|error| format!("eventfd(2) failed: {error}"))?;
            let adapters = Arc::new(Adapters {
                open: Mutex::default(),
                unusable: Mutex::default(),
                bell,
            });
            watch::start(&adapters)
                .map_err(|error| format!("the thread for device events: {error}"))?;
            Ok(adapters)
        })
        .clone()?;
    adapters.refresh()?;
    if adapters.open().is_empty() {
        let unusable = adapters.unusable();
        return Err(match unusable.is_empty() {
            true => "this machine has no RDMA device".to_owned(),
            false => unusable.join("; "),
        });
    }
    Ok(adapters)
}

/// Whether the kernel has RDMA devices, whoever may use them.
pub fn has_devices() -> bool {
    fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

impl Adapters {
    /// The ports that `policy` allows, as they are now. A device that can't tell is left out, and
    /// the log says why.
    pub fn ports(&self, policy: &RailPolicy) -> Vec<PortFacts> {
        if let Err(error) = self.refresh() {
            tracing::warn!(%error, "RDMA devices can't be listed");
        }
        let mut ports = Vec::new();
        for adapter in self.snapshot() {
            match adapter.ports() {
                Ok(facts) => ports.extend(facts.into_iter().filter(|facts| policy.allows(facts))),
                Err(error) => {
                    let source = error.io();
                    tracing::warn!(%error, %source, "an RDMA device is left out");
                }
            }
        }
        ports
    }

    /// The device of this port.
    pub(super) fn find(&self, facts: &PortFacts) -> Option<Arc<Adapter>> {
        self.open()
            .iter()
            .find(|adapter| adapter.is_of(facts))
            .cloned()
    }

    /// Opens devices that are new and gives up those that have gone.
    fn refresh(&self) -> Result<(), String> {
        let listed = verbs::devices().map_err(|error| error.to_string())?;
        let mut gone = Vec::new();
        let mut unusable = Vec::new();
        let mut changed = false;
        {
            let mut open = self.open();
            open.retain(|adapter| {
                let there = listed.iter().any(|device| adapter.is(device));
                if !there || adapter.is_gone() {
                    gone.push(Arc::clone(adapter));
                }
                there && !adapter.is_gone()
            });
            for device in &listed {
                if open.iter().any(|adapter| adapter.is(device)) {
                    continue;
                }
                match Adapter::open(device) {
                    Ok(Some(adapter)) => {
                        open.push(Arc::new(adapter));
                        changed = true;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        let source = error.io();
                        unusable.push(format!("{error}: {source}"));
                    }
                }
            }
        }
        self.note_unusable(unusable);
        for adapter in &gone {
            adapter.fail("the device was removed");
        }
        if changed || !gone.is_empty() {
            self.bell.ring();
        }
        Ok(())
    }

    /// Why devices that are there can't be used.
    pub fn unusable(&self) -> Vec<String> {
        let unusable = self.unusable.lock();
        unusable.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Each reason is logged when it comes up, and not at every look.
    fn note_unusable(&self, unusable: Vec<String>) {
        let mut known = self.unusable.lock().unwrap_or_else(PoisonError::into_inner);
        for reason in unusable.iter().filter(|reason| !known.contains(reason)) {
            tracing::warn!(reason, "an RDMA device can't be used");
        }
        *known = unusable;
    }

    /// Forgets a device that is of no use any more.
    pub(super) fn give_up(&self, adapter: &Arc<Adapter>, reason: &str) {
        self.open().retain(|open| !Arc::ptr_eq(open, adapter));
        adapter.fail(reason);
    }

    pub(super) fn snapshot(&self) -> Vec<Arc<Adapter>> {
        self.open().clone()
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<Adapter>>> {
        // Whole between any two statements.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Adapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self
            .snapshot()
            .iter()
            .map(|adapter| adapter.context.name().to_owned())
            .collect();
        f.debug_struct("Adapters").field("open", &names).finish()
    }
}

impl Adapter {
    /// Nothing if the device has no reliable connections.
    fn open(device: &Device) -> Result<Option<Self>, verbs::Error> {
        let is_iwarp = match device.transport() {
            Transport::InfiniBand => false,
            Transport::Iwarp => true,
            Transport::Other(_) => return Ok(None),
        };
        let context = Context::open(device)?;
        let events = Events::new(&context)?;
        Ok(Some(Self {
            events,
            context,
            trials: Trials::default(),
            guid: device.guid(),
            is_iwarp,
            node: node(device.name()),
            paces: Mutex::default(),
            connections: Mutex::default(),
            gone: AtomicBool::new(false),
        }))
    }

    fn ports(&self) -> Result<Vec<PortFacts>, verbs::Error> {
        let limits = self.context.limits()?;
        let addresses = self.context.gids()?;
        (1..=limits.ports)
            .map(|number| {
                let facts = facts::facts(&self.context, &limits, number, &addresses)?;
                Ok(PortFacts {
                    guid: self.guid,
                    is_iwarp: self.is_iwarp,
                    ..facts
                })
            })
            .collect()
    }

    fn is(&self, device: &Device) -> bool {
        self.guid == device.guid() && self.context.name() == device.name()
    }

    pub(super) fn is_of(&self, facts: &PortFacts) -> bool {
        self.guid == facts.guid && self.context.name() == facts.device
    }

    pub(super) fn guid(&self) -> u64 {
        self.guid
    }

    /// Whether it is of no use any more.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Whether the kernel has taken it away without a word: it waits for whoever has it open.
    pub(super) fn has_vanished(&self) -> bool {
        self.node
            .as_ref()
            .is_some_and(|node| !is_of(node, self.context.name()))
    }

    /// How long READs over this port may be.
    pub(super) fn pace(&self, port: u8) -> Arc<Pace> {
        let mut paces = self.paces.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(paces.entry(port).or_default())
    }

    /// Looks at how many packets were sent again on the ports that have connections.
    pub(super) fn look_at_retries(&self) {
        let mut ports: Vec<u8> = self
            .connections()
            .values()
            .map(|watched| watched.port)
            .collect();
        ports.sort_unstable();
        ports.dedup();
        for port in ports {
            if let Some(retries) = retries(self.context.name(), port) {
                self.pace(port).look(retries);
            }
        }
    }

    /// Has `alarm` ring when the device says something against this queue pair or port.
    pub(super) fn watch(&self, queue_pair: u32, port: u8, alarm: Alarm) {
        self.connections()
            .insert(queue_pair, Watched { port, alarm });
        if self.is_gone() {
            // It went while the queue pair was made.
            self.fail("the device was removed");
        }
    }

    /// Before the queue pair is destroyed: its number may be another's right after.
    pub(super) fn unwatch(&self, queue_pair: u32) {
        self.connections().remove(&queue_pair);
    }

    /// Acts on what the device said; false: it is of no use any more.
    pub(super) fn hear(&self, event: AsyncEvent) -> bool {
        let device = self.context.name();
        match event {
            AsyncEvent::QueuePairFailed(number) => {
                self.ring(number, "the adapter reports a fault of the queue pair");
            }
            AsyncEvent::RequestRefused(number) => {
                self.ring(number, "the peer sent a request that can't be served");
            }
            AsyncEvent::AccessRefused(number) => {
                self.ring(number, "the peer reached for memory that is not exposed");
            }
            AsyncEvent::PortFailed(port) => {
                tracing::warn!(device, port, "an RDMA port went down");
                self.ring_all(|watched| watched.port == port, "the port went down");
            }
            AsyncEvent::LidChanged(port) => {
                self.ring_all(|watched| watched.port == port, "the port's LID changed");
            }
            AsyncEvent::DeviceFailed => {
                tracing::warn!(device, "an RDMA device failed or was removed");
                return false;
            }
            // Which completion queue is not told: its READs' deadline finds it.
            AsyncEvent::CompletionQueueFailed => {
                tracing::warn!(device, "an RDMA device reports a broken completion queue");
            }
            // What is connected stays so.
            other => tracing::debug!(device, event = ?other, "an RDMA device's event"),
        }
        true
    }

    /// It is of no use any more.
    fn fail(&self, reason: &str) {
        self.gone.store(true, Ordering::Relaxed);
        self.ring_all(|_| true, reason);
    }

    fn ring(&self, queue_pair: u32, reason: &str) {
        let alarm = self
            .connections()
            .get(&queue_pair)
            .map(|watched| watched.alarm.clone());
        if let Some(alarm) = alarm {
            alarm.ring(reason.to_owned());
        }
    }

    fn ring_all(&self, concerned: impl Fn(&Watched) -> bool, reason: &str) {
        let alarms: Vec<Alarm> = self
            .connections()
            .values()
            .filter(|watched| concerned(watched))
            .map(|watched| watched.alarm.clone())
            .collect();
        // Without the lock: whoever is told may end the connection at once.
        for alarm in alarms {
            alarm.ring(reason.to_owned());
        }
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u32, Watched>> {
        // Whole between any two statements.
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The folder of the device's file under `/dev/infiniband`.
fn node(device: &str) -> Option<PathBuf> {
    fs::read_dir("/sys/class/infiniband_verbs")
        .ok()?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|folder| is_of(folder, device))
}

/// Packets that this port sent again so far; nothing if its driver does not count them.
fn retries(device: &str, port: u8) -> Option<u64> {
    let folder = format!("/sys/class/infiniband/{device}/ports/{port}/hw_counters");
    let counts = RETRY_COUNTERS.iter().filter_map(|name| {
        let text = fs::read_to_string(format!("{folder}/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    });
    counts.reduce(u64::saturating_add)
}

fn is_of(node: &std::path::Path, device: &str) -> bool {
    fs::read_to_string(node.join("ibdev")).is_ok_and(|name| name.trim() == device)
}
