//! What a lane waits on: sockets becoming ready, file operations done elsewhere, and wake-ups.
//!
//! Two implementations answer to [`Reactor`]: [`super::ring`] over io_uring, and
//! [`super::readiness`] over epoll where io_uring is forbidden or too old. Bulk bytes that are in
//! memory already cost least by plain calls (a socket that is ready, a page that is cached), so
//! sockets are read and written by their owner, who arms a socket only once a call would have
//! waited; file operations that would wait for a device are posted. A posted operation takes its
//! slot by value and the completion gives it back.
//! Nothing here knows connections, requests or what the bytes mean.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::memory::Slot;

/// Names a socket to its reactor. Below [`TOKEN_END`], and never used twice on one reactor, so that
/// an event that was under way when its socket went can't be taken for another's.
pub(crate) type Token = u64;

/// One past the largest token; the bits above tell kinds of events apart.
pub(crate) const TOKEN_END: Token = 1 << 60;

/// What a socket is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Bytes to read, the end of the stream, or an error.
    Readable,
    /// Room to write, or an error.
    Writable,
}

/// Which way a file operation moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the file into the slot.
    Read,
    /// From the slot into the file.
    Write,
}

/// One positioned read or write. `F` keeps the file open until the completion.
#[derive(Debug)]
pub(crate) struct FileOperation<F> {
    /// Comes back with the completion.
    pub(crate) tag: u64,
    pub(crate) direction: Direction,
    pub(crate) file: F,
    pub(crate) slot: Slot,
    /// Which bytes of the slot; within it, not empty.
    pub(crate) range: Range<usize>,
    /// Position in the file.
    pub(crate) offset: u64,
}

/// What happened.
#[derive(Debug)]
pub(crate) enum Event<F> {
    /// A call that would have waited may succeed now; it may also still have to wait.
    Ready { token: Token, interest: Interest },
    /// A file operation ended, having moved this many bytes.
    File {
        operation: FileOperation<F>,
        result: io::Result<usize>,
    },
}

/// See the module's first paragraph. One thread owns it and makes all calls.
pub(crate) trait Reactor<F: AsFd> {
    /// Makes a socket known, before it is armed.
    fn add(&mut self, token: Token, socket: BorrowedFd<'_>) -> io::Result<()>;

    /// Asks for one [`Event::Ready`], after a call on the socket would have waited.
    fn arm(&mut self, token: Token, socket: BorrowedFd<'_>, interest: Interest) -> io::Result<()>;

    /// Forgets what was armed for a socket that has ended, and closes it once nothing refers to its
    /// descriptor.
    fn retire(&mut self, token: Token, socket: OwnedFd);

    /// Starts a file operation. When it can't be taken now it comes back to be done some other way.
    fn post(&mut self, operation: FileOperation<F>) -> Result<(), FileOperation<F>>;

    /// Appends what happened to `events`. With `block`, waits until something did or the waker was
    /// used; the caller has announced the sleep to its [`Waker`].
    fn wait(&mut self, block: bool, events: &mut Vec<Event<F>>) -> io::Result<()>;
}

/// Wakes one reactor from any thread; costs a system call only when it sleeps.
#[derive(Debug)]
pub(crate) struct Waker {
    event: OwnedFd,
    sleeping: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self {
            event,
            sleeping: AtomicBool::new(false),
        }))
    }

    /// Whatever was made visible before this call is seen by the reactor's owner.
    pub(crate) fn wake(&self) {
        // Pairs with `announce_sleep`: either this sees the announcement, or the owner's look at
        // its queue, which follows the announcement, sees what was put there.
        if self.sleeping.swap(false, Ordering::SeqCst) {
            // The only failures are a full counter, which wakes as well, and a closed descriptor,
            // which `self` excludes.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// The owner is about to block and will look at its queue once more before it does.
    pub(crate) fn announce_sleep(&self) {
        self.sleeping.swap(true, Ordering::SeqCst);
    }

    /// The owner is awake.
    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Takes a wake-up that arrived.
    pub(super) fn drain(&self) {
        let mut count = [0; 8];
        // Nothing to read means that another wake-up's read took it.
        let _ = rustix::io::read(&self.event, &mut count);
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
