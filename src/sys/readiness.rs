//! The reactor without io_uring: epoll for sockets, file operations done on the spot.
//!
//! Sockets are registered once, edge-triggered in both directions, so that arming costs no system
//! call: an edge between the call that would have waited and the next look is kept by the kernel.
//! A file operation blocks its lane for as long as the device takes; that is the price where
//! io_uring is not to be had.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::{pread, pwrite, retry_on_intr};

use super::reactor::{Direction, Event, FileOperation, Interest, Reactor, TOKEN_END, Token, Waker};

/// Events fetched per call.
const EVENTS_PER_WAIT: usize = 256;

/// See the module's first paragraph.
pub(crate) struct Readiness<F> {
    epoll: OwnedFd,
    waker: Arc<Waker>,
    done: VecDeque<(FileOperation<F>, io::Result<usize>)>,
    fetched: Vec<epoll::Event>,
}

impl<F: AsFd> Readiness<F> {
    pub(crate) fn new(waker: Arc<Waker>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            waker.fd(),
            EventData::new_u64(TOKEN_END),
            EventFlags::IN,
        )?;
        Ok(Self {
            epoll,
            waker,
            done: VecDeque::new(),
            fetched: Vec::with_capacity(EVENTS_PER_WAIT),
        })
    }
}

impl<F: AsFd> Reactor<F> for Readiness<F> {
    fn add(&mut self, token: Token, socket: BorrowedFd<'_>) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(
            &self.epoll,
            socket,
            EventData::new_u64(token),
            flags,
        )?)
    }

    fn arm(&mut self, _: Token, _: BorrowedFd<'_>, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn retire(&mut self, _: Token, socket: OwnedFd) {
        // Should it fail, closing the last descriptor ends the registration as well.
        let _ = epoll::delete(&self.epoll, &socket);
    }

    fn post(&mut self, mut operation: FileOperation<F>) -> Result<(), FileOperation<F>> {
        let (file, offset) = (operation.file.as_fd(), operation.offset);
        let bytes = &mut operation.slot[operation.range.clone()];
        let result = match operation.direction {
            Direction::Read => retry_on_intr(|| pread(file, &mut *bytes, offset)),
            Direction::Write => retry_on_intr(|| pwrite(file, &*bytes, offset)),
        };
        self.done
            .push_back((operation, result.map_err(io::Error::from)));
        Ok(())
    }

    fn wait(&mut self, block: bool, events: &mut Vec<Event<F>>) -> io::Result<()> {
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let timeout = if block && self.done.is_empty() {
            None
        } else {
            Some(&now)
        };
        let mut fetched = mem::take(&mut self.fetched);
        fetched.clear();
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut fetched),
            timeout,
        ) {
            // Interrupted: nothing happened yet; the caller looks again.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &fetched {
            self.translate(*event, events);
        }
        self.fetched = fetched;
        let done = self.done.drain(..);
        events.extend(done.map(|(operation, result)| Event::File { operation, result }));
        Ok(())
    }
}

impl<F> Readiness<F> {
    fn translate(&self, event: epoll::Event, events: &mut Vec<Event<F>>) {
        let (token, flags) = ({ event.data }.u64(), { event.flags });
        if token == TOKEN_END {
            self.waker.drain();
            return;
        }
        let failed = EventFlags::HUP | EventFlags::ERR;
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP | failed) {
            events.push(Event::Ready {
                token,
                interest: Interest::Readable,
            });
        }
        if flags.intersects(EventFlags::OUT | failed) {
            events.push(Event::Ready {
                token,
                interest: Interest::Writable,
            });
        }
    }
}
