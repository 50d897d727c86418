//! The thread that reads rdma_cm's events: one for the process, there while anyone listens, dials
//! or has a connection, and asleep until something happens.
//!
//! In: who is to hear of which identifier. Out: the events, each to its hearer. Nothing here knows
//! what an event means.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::unavailable;
use crate::sys::verbs::cm::{Event, EventChannel};

/// Pause after the kernel would not tell of events, lest the thread burn a processor.
const FAULT_PAUSE: Duration = Duration::from_millis(100);

/// Who hears of an identifier's events, on the reader's thread.
pub(super) trait Ear: Send + Sync {
    fn hear(&self, event: Event);
}

/// Whoever holds it keeps the thread.
pub(super) struct Reader(Arc<Shared>);

struct Shared {
    channel: Arc<EventChannel>,
    ears: Mutex<HashMap<u64, Arc<dyn Ear>>>,
    key_next: AtomicU64,
    /// Becomes readable when nobody holds the reader any more.
    over: OwnedFd,
}

/// A key under which somebody hears events, until it is dropped.
pub(super) struct Hearing {
    reader: Arc<Reader>,
    key: u64,
}

impl Reader {
    /// The one that there is, or a new one.
    pub(super) fn get() -> io::Result<Arc<Self>> {
        static READER: Mutex<Weak<Reader>> = Mutex::new(Weak::new());
        let mut known = READER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reader) = known.upgrade() {
            return Ok(reader);
        }
        let shared = Arc::new(Shared {
            channel: EventChannel::new().map_err(unavailable)?,
            ears: Mutex::default(),
            key_next: AtomicU64::new(1),
            over: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let reading = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("rdcp-rdma-cm".to_owned())
            .spawn(move || while reading.turn() {})?;
        let reader = Arc::new(Self(shared));
        *known = Arc::downgrade(&reader);
        Ok(reader)
    }

    /// Where identifiers are made.
    pub(super) fn channel(&self) -> &Arc<EventChannel> {
        &self.0.channel
    }

    /// A key for an identifier, whose events `ear` hears from now on.
    pub(super) fn enter(self: &Arc<Self>, ear: Arc<dyn Ear>) -> Hearing {
        let key = self.0.key_next.fetch_add(1, Ordering::Relaxed);
        self.0.ears().insert(key, ear);
        Hearing {
            reader: Arc::clone(self),
            key,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The only failure is a full counter, which wakes as well.
        let _ = rustix::io::write(&self.0.over, &1_u64.to_ne_bytes());
    }
}

impl Hearing {
    pub(super) fn key(&self) -> u64 {
        self.key
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        let ear = self.reader.0.ears().remove(&self.key);
        // Without the lock: it may be the last one, and own things whose end takes a while.
        drop(ear);
    }
}

impl Shared {
    /// Waits for events and hands them out; `false` when nobody wants any.
    fn turn(&self) -> bool {
        let channel = self.channel.as_fd();
        let over = self.over.as_fd();
        let mut fds = [channel, over].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        if poll(&mut fds, None).is_err() {
            // Interrupted, or out of memory for a moment: the next turn waits again.
            std::thread::sleep(Duration::from_millis(10));
            return true;
        }
        if !fds[1].revents().is_empty() {
            return false;
        }
        loop {
            match self.channel.next_event() {
                Ok(Some(event)) => self.hand_out(event),
                Ok(None) => return true,
                Err(error) => {
                    tracing::warn!(%error, source = %error.io(), "rdma_cm's events can't be read");
                    std::thread::sleep(FAULT_PAUSE);
                    return true;
                }
            }
        }
    }

    /// An event of an identifier that nobody holds any more is nobody's; a request in it is refused
    /// by being dropped.
    fn hand_out(&self, event: Event) {
        let ear = self.ears().get(&event.id()).cloned();
        // Without the lock: hearing may enter others.
        if let Some(ear) = ear {
            ear.hear(event);
        }
    }

    fn ears(&self) -> MutexGuard<'_, HashMap<u64, Arc<dyn Ear>>> {
        // Whole between any two statements.
        self.ears.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether this process has the thread.
    fn runs() -> bool {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks.filter_map(Result::ok).any(|task| {
            let name = std::fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.trim() == "rdcp-rdma-cm")
        })
    }

    #[test]
    fn the_thread_ends_with_its_last_holder_or_the_reason_for_none_is_told() {
        match Reader::get() {
            Ok(reader) => {
                let other = Reader::get().unwrap();
                assert!(Arc::ptr_eq(&reader, &other));
                drop(reader);
                assert!(runs());
                drop(other);
                while runs() {
                    std::thread::yield_now();
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
