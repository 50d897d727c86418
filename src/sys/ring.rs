//! The reactor over io_uring.
//!
//! Sockets are waited for with one-shot polls, file operations are posted as reads and writes; all
//! of a turn's submissions travel with the call that waits. The ring owns every posted operation,
//! with its slot and its file, until the kernel's completion gives it back; a ring that is dropped
//! waits for them first. That is what makes the pointers handed to the kernel good.
#![allow(unsafe_code)] // Submission takes raw pointers; the module's types keep them valid.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{Builder, IoUring, Probe, cqueue, opcode, squeue};

use super::reactor::{Direction, Event, FileOperation, Interest, Reactor, TOKEN_END, Token, Waker};

/// Submissions collected before the kernel must be called.
const SUBMISSIONS: u32 = 256;
/// Completions that fit the shared queue; the kernel keeps what exceeds it (checked: NODROP).
const COMPLETIONS: u32 = 2048;
/// File operations in flight. Enough depth for any device; the rest is done by plain calls.
const OPERATIONS_MAX: usize = 64;
/// How long a dropped ring waits for the kernel before it leaks what the kernel still uses.
const DRAIN_TIME: Duration = Duration::from_secs(10);

// poll(2) event bits, the same on every architecture that Linux's asm-generic headers serve.
const POLL_IN: u32 = 0x1;
const POLL_OUT: u32 = 0x4;
const POLL_RDHUP: u32 = 0x2000;

// Kinds of submissions, in the bits above a token.
const KIND_READABLE: u64 = 0;
const KIND_WRITABLE: u64 = TOKEN_END;
const KIND_FILE: u64 = 2 * TOKEN_END;
const KIND_WAKER: u64 = 3 * TOKEN_END;
const KIND_REMOVAL: u64 = 4 * TOKEN_END;
const KIND_MASK: u64 = !(TOKEN_END - 1);

/// See the module's first paragraph.
pub(crate) struct Ring<F: AsFd> {
    ring: IoUring,
    waker: Arc<Waker>,
    /// Index = name in submissions. `None` is free and listed in `free`.
    operations: Vec<Option<FileOperation<F>>>,
    free: Vec<usize>,
    /// Sockets whose descriptors submissions may still name; closed after the next submission.
    retired: Vec<OwnedFd>,
    waker_armed: bool,
}

/// Whether this process may use io_uring, and why not.
pub(crate) fn probe() -> Result<(), String> {
    let ring = build().map_err(|error| format!("io_uring_setup(2) is refused: {error}"))?;
    if !ring.params().is_feature_nodrop() || !ring.params().is_feature_ext_arg() {
        return Err("this kernel's io_uring is older than Linux 5.11".to_owned());
    }
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| format!("io_uring can't be probed: {error}"))?;
    let needed = [
        opcode::PollAdd::CODE,
        opcode::Read::CODE,
        opcode::Write::CODE,
    ];
    if needed.iter().any(|&code| !probe.is_supported(code)) {
        return Err("this kernel's io_uring lacks operations".to_owned());
    }
    Ok(())
}

/// The cheapest ring that this kernel makes.
fn build() -> io::Result<IoUring> {
    let cheapest: fn(&mut Builder) = |builder| {
        builder
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag();
    };
    let cooperative: fn(&mut Builder) = |builder| {
        builder.setup_coop_taskrun().setup_taskrun_flag();
    };
    let plain: fn(&mut Builder) = |_| {};
    let mut last = io::Error::from(io::ErrorKind::Unsupported);
    for choose in [cheapest, cooperative, plain] {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp().setup_cqsize(COMPLETIONS);
        choose(&mut builder);
        match builder.build(SUBMISSIONS) {
            Ok(ring) => return Ok(ring),
            // Only "unknown flag" is worth another try.
            Err(error) if error.raw_os_error() == Some(22) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

impl<F: AsFd> Ring<F> {
    /// A ring for the calling thread, which must be the one that uses it.
    pub(crate) fn new(waker: Arc<Waker>) -> io::Result<Self> {
        let mut operations = Vec::new();
        operations.resize_with(OPERATIONS_MAX, || None);
        Ok(Self {
            ring: build()?,
            waker,
            operations,
            free: (0..OPERATIONS_MAX).rev().collect(),
            retired: Vec::new(),
            waker_armed: false,
        })
    }

    fn poll(&mut self, fd: BorrowedFd<'_>, flags: u32, user_data: u64) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(fd.as_raw_fd()), flags)
            .build()
            .user_data(user_data);
        // SAFETY: a poll names no memory. Its descriptor stays open until it is submitted: sockets
        // are closed through `retire`, the waker's lives as long as the ring.
        unsafe { self.push(&entry) }
    }

    /// # Safety
    /// Memory that the entry names must stay valid, and be touched by nobody else, until its
    /// completion; its descriptor must stay open until the next submission.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        for _ in 0..2 {
            // SAFETY: the caller's promise is exactly what `push` asks for.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn in_flight(&self) -> usize {
        OPERATIONS_MAX - self.free.len()
    }

    fn enter(&mut self, block: bool) -> io::Result<()> {
        let submission = self.ring.submission();
        let idle = submission.is_empty() && !submission.taskrun() && !submission.cq_overflow();
        drop(submission);
        if idle && !block {
            return Ok(());
        }
        if block && !self.retired.is_empty() {
            // The wait may be long: an idle lane must not hold sockets that have ended until then.
            self.submit(0)?;
        }
        self.submit(usize::from(block))
    }

    /// Submits, waits for so many completions, and closes what no submission names any more.
    fn submit(&mut self, wait_for: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(wait_for) {
            Ok(_) => {}
            // Interrupted, or completions must be taken first: the caller looks and comes back.
            Err(error) if matches!(error.raw_os_error(), Some(4 | 11 | 16)) => return Ok(()),
            Err(error) => return Err(error),
        }
        if self.ring.submission().is_empty() {
            self.retired.clear();
        }
        Ok(())
    }

    fn reap(&mut self, events: &mut Vec<Event<F>>) {
        // The entries are copied out one at a time so that `self` stays usable in between.
        while let Some(entry) = { self.ring.completion().next() } {
            self.translate(&entry, events);
        }
    }

    fn translate(&mut self, entry: &cqueue::Entry, events: &mut Vec<Event<F>>) {
        let token = entry.user_data() & !KIND_MASK;
        match entry.user_data() & KIND_MASK {
            KIND_READABLE => events.push(Event::Ready {
                token,
                interest: Interest::Readable,
            }),
            KIND_WRITABLE => events.push(Event::Ready {
                token,
                interest: Interest::Writable,
            }),
            KIND_WAKER => {
                self.waker.drain();
                self.waker_armed = false;
            }
            // The poll that it removed, if there was one, has answered for itself.
            KIND_REMOVAL => {}
            _ => {
                let index = usize::try_from(token).unwrap_or(usize::MAX);
                let slot = self.operations.get_mut(index).and_then(Option::take);
                let Some(operation) = slot else {
                    debug_assert!(false, "completion of an operation that was not posted");
                    return;
                };
                self.free.push(index);
                let result = usize::try_from(entry.result())
                    .map_err(|_| io::Error::from_raw_os_error(entry.result().saturating_neg()));
                events.push(Event::File { operation, result });
            }
        }
    }
}

impl<F: AsFd> Reactor<F> for Ring<F> {
    fn add(&mut self, _: Token, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn arm(&mut self, token: Token, socket: BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
        debug_assert!(token < TOKEN_END);
        match interest {
            Interest::Readable => self.poll(socket, POLL_IN | POLL_RDHUP, token | KIND_READABLE),
            Interest::Writable => self.poll(socket, POLL_OUT, token | KIND_WRITABLE),
        }
    }

    fn retire(&mut self, token: Token, socket: OwnedFd) {
        // A poll keeps the file open beyond its descriptor. A socket that was shut down ends it;
        // nothing else that is waited for here does.
        let removal = opcode::PollRemove::new(token | KIND_READABLE)
            .build()
            .user_data(KIND_REMOVAL);
        // SAFETY: a removal names neither memory nor a descriptor.
        if let Err(error) = unsafe { self.push(&removal) } {
            tracing::debug!(%error, "a poll is left to its socket's end");
        }
        self.retired.push(socket);
    }

    fn post(&mut self, mut operation: FileOperation<F>) -> Result<(), FileOperation<F>> {
        let Some(index) = self.free.pop() else {
            return Err(operation);
        };
        let fd = Fd(operation.file.as_fd().as_raw_fd());
        let bytes = &mut operation.slot[operation.range.clone()];
        let Ok(len) = u32::try_from(bytes.len()) else {
            self.free.push(index);
            return Err(operation);
        };
        let entry = match operation.direction {
            Direction::Read => opcode::Read::new(fd, bytes.as_mut_ptr(), len)
                .offset(operation.offset)
                .build(),
            Direction::Write => opcode::Write::new(fd, bytes.as_ptr(), len)
                .offset(operation.offset)
                .build(),
        };
        // `index` is below OPERATIONS_MAX.
        let entry = entry.user_data(KIND_FILE | index as u64);
        self.operations[index] = Some(operation);
        // SAFETY: `operations` owns slot and file until this entry's completion is reaped, or
        // leaks them; a slot's memory does not move when the slot does.
        if unsafe { self.push(&entry) }.is_ok() {
            return Ok(());
        }
        self.free.push(index);
        self.operations[index].take().map_or(Ok(()), Err)
    }

    fn wait(&mut self, block: bool, events: &mut Vec<Event<F>>) -> io::Result<()> {
        if !self.waker_armed {
            let waker = Arc::clone(&self.waker);
            self.poll(waker.fd(), POLL_IN, KIND_WAKER)?;
            self.waker_armed = true;
        }
        let block = block && self.ring.completion().is_empty();
        self.enter(block)?;
        self.reap(events);
        Ok(())
    }
}

impl<F: AsFd> Drop for Ring<F> {
    fn drop(&mut self) {
        let deadline = Instant::now() + DRAIN_TIME;
        let mut events = Vec::new();
        while self.in_flight() > 0 && Instant::now() < deadline {
            let moment = Timespec::new().nsec(100_000_000);
            let arguments = SubmitArgs::new().timespec(&moment);
            // An error, a time-out among them, shows as an operation still in flight.
            let _ = self.ring.submitter().submit_with_args(1, &arguments);
            self.reap(&mut events);
            events.clear();
        }
        if self.in_flight() > 0 {
            tracing::warn!(
                operations = self.in_flight(),
                "file operations hang; leaking memory"
            );
            // The kernel may still write there: never free it.
            self.operations.drain(..).for_each(std::mem::forget);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::readiness::Readiness;
    use super::*;
    use crate::memory::Pool;
    use std::fs::File;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    /// Before a test calls something hung.
    const PATIENCE: Duration = Duration::from_secs(60);

    type Made = (Arc<Waker>, Box<dyn Reactor<Arc<File>>>);

    fn reactors() -> Vec<Made> {
        let waker = Waker::new().unwrap();
        let mut all: Vec<Made> =
            vec![(Arc::clone(&waker), Box::new(Readiness::new(waker).unwrap()))];
        if probe().is_ok() {
            let waker = Waker::new().unwrap();
            all.push((Arc::clone(&waker), Box::new(Ring::new(waker).unwrap())));
        }
        all
    }

    fn wait_for(reactor: &mut dyn Reactor<Arc<File>>) -> Event<Arc<File>> {
        let mut events = Vec::new();
        while events.is_empty() {
            reactor.wait(true, &mut events).unwrap();
        }
        events.remove(0)
    }

    #[test]
    fn file_operations_give_their_slot_back() {
        for (_, mut reactor) in reactors() {
            let file = Arc::new(tempfile::tempfile().unwrap());
            let pool = Pool::new(8192, 1);
            let mut slot = pool.take().unwrap();
            slot[10..15].copy_from_slice(b"hello");
            let write = FileOperation {
                tag: 1,
                direction: Direction::Write,
                file: Arc::clone(&file),
                slot,
                range: 10..15,
                offset: 1 << 33,
            };
            reactor.post(write).unwrap();
            let Event::File { operation, result } = wait_for(&mut *reactor) else {
                panic!()
            };
            assert_eq!((operation.tag, result.unwrap()), (1, 5));
            let read = FileOperation {
                direction: Direction::Read,
                range: 100..200,
                ..operation
            };
            reactor.post(read).unwrap();
            let Event::File { operation, result } = wait_for(&mut *reactor) else {
                panic!()
            };
            assert_eq!(result.unwrap(), 5);
            assert_eq!(&operation.slot[100..105], b"hello");
        }
    }

    #[test]
    fn armed_sockets_report_and_wakers_wake() {
        for (waker, mut reactor) in reactors() {
            let (mut near, far) = UnixStream::pair().unwrap();
            far.set_nonblocking(true).unwrap();
            reactor.add(5, far.as_fd()).unwrap();
            reactor.arm(5, far.as_fd(), Interest::Readable).unwrap();
            let mut events = Vec::new();
            reactor.wait(false, &mut events).unwrap();
            waker.announce_sleep();
            let thread = std::thread::spawn(move || waker.wake());
            events.clear();
            reactor.wait(true, &mut events).unwrap();
            thread.join().unwrap();
            near.write_all(b"x").unwrap();
            loop {
                if let Event::Ready {
                    token: 5,
                    interest: Interest::Readable,
                } = wait_for(&mut *reactor)
                {
                    break;
                }
            }
            reactor.retire(5, far.into());
        }
    }

    #[test]
    fn what_is_retired_is_closed_though_it_was_armed() {
        for (_, mut reactor) in reactors() {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            reactor.add(5, reader.as_fd()).unwrap();
            reactor.arm(5, reader.as_fd(), Interest::Readable).unwrap();
            let mut events = Vec::new();
            reactor.wait(false, &mut events).unwrap();
            reactor.retire(5, reader);
            let nobody_reads = || {
                let mut ends = [PollFd::new(&writer, PollFlags::OUT)];
                poll(&mut ends, Some(&Timespec::default())).unwrap();
                ends[0].revents().contains(PollFlags::ERR)
            };
            let begin = Instant::now();
            while !nobody_reads() {
                assert!(begin.elapsed() < PATIENCE, "the reading end stays open");
                reactor.wait(false, &mut events).unwrap();
            }
        }
    }

    #[test]
    fn dropping_a_ring_waits_for_what_it_posted() {
        for (_, mut reactor) in reactors() {
            let file = Arc::new(tempfile::tempfile().unwrap());
            let pool = Pool::new(1 << 20, 4);
            for index in 0..4 {
                let slot = pool.take().unwrap();
                let range = 0..slot.len();
                let (direction, file) = (Direction::Write, Arc::clone(&file));
                let offset = index << 20;
                reactor
                    .post(FileOperation {
                        tag: index,
                        direction,
                        file,
                        slot,
                        range,
                        offset,
                    })
                    .unwrap();
            }
            drop(reactor);
            assert_eq!(pool.available(), 4);
            assert_eq!(file.metadata().unwrap().len(), 4 << 20);
        }
    }
}
