//! The thread that hears what devices say unasked: one for the process, asleep until they do.
//!
//! Nothing here knows what an event means; see [`super::adapter`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::adapter::{Adapter, Adapters};

/// How often devices are looked for that went without a word, and retries are counted.
const LOOK_PAUSE: Duration = Duration::from_secs(2);

/// Wakes the thread, because there are other devices to listen to.
pub(super) struct Bell {
    event: OwnedFd,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event })
    }

    pub(super) fn ring(&self) {
        // The only failure is a full counter, which wakes as well.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        // Nothing to read means that nobody has rung.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

/// Starts the thread, which lasts as long as the process, as the adapters do.
pub(super) fn start(adapters: &Arc<Adapters>) -> io::Result<()> {
    let adapters = Arc::clone(adapters);
    std::thread::Builder::new()
        .name("rdcp-rdma-events".to_owned())
        .spawn(move || {
            let mut looked = Instant::now();
            loop {
                listen(&adapters);
                if looked.elapsed() >= LOOK_PAUSE {
                    looked = Instant::now();
                    for adapter in adapters.snapshot() {
                        adapter.look_at_retries();
                    }
                }
            }
        })?;
    Ok(())
}

/// Waits for one round of events and acts on them.
fn listen(adapters: &Adapters) {
    let open = adapters.snapshot();
    let spoke = wait(adapters, &open);
    adapters.bell().silence();
    for (adapter, spoke) in open.iter().zip(spoke) {
        if let Some(reason) = hear(adapter, spoke) {
            adapters.give_up(adapter, reason);
        }
    }
}

/// Which devices have something to say. With none it waits for the bell alone.
fn wait(adapters: &Adapters, open: &[Arc<Adapter>]) -> Vec<bool> {
    let fds = open
        .iter()
        .map(|adapter| adapter.events.as_fd())
        .chain([adapters.bell().event.as_fd()]);
    let mut fds: Vec<PollFd<'_>> = fds
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let pause = Timespec::try_from(LOOK_PAUSE).ok();
    let pause = pause.as_ref().filter(|_| !open.is_empty());
    if poll(&mut fds, pause).is_err() {
        // Interrupted, or out of memory for a moment: the next round waits again.
        std::thread::sleep(Duration::from_millis(10));
        return vec![false; open.len()];
    }
    fds[..open.len()]
        .iter()
        .map(|fd| !fd.revents().is_empty())
        .collect()
}

/// Why the device is of no use any more, if it is not.
fn hear(adapter: &Adapter, spoke: bool) -> Option<&'static str> {
    if adapter.has_vanished() {
        return Some("the device was removed");
    }
    if !spoke {
        return None;
    }
    loop {
        match adapter.events.next_event() {
            Ok(Some(event)) => {
                if !adapter.hear(event) {
                    return Some("the device failed or was removed");
                }
            }
            Ok(None) => return None,
            Err(error) => {
                tracing::debug!(%error, source = %error.io(), "an RDMA device fell silent");
                return Some("the device failed or was removed");
            }
        }
    }
}
