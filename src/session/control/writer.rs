//! The writing half: envelopes in, bytes onto the connection.
//!
//! Senders encode straight into one shared buffer; a task swaps it out and writes it, so all that
//! gathered while the last write was under way goes out together. What may gather is bounded by the
//! protocol's credits, by a maximum for each connection and by one for the process, in case those
//! are wrong; and a peer that takes nothing for long loses the connection.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::outbound::{Budget, Queue};
use crate::session::control::ControlError;
use crate::wire::{Envelope, Fault, FaultCode, encode};

/// How long a closing connection may take to write what is left and say goodbye.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);
/// How long a peer may take nothing of what is written to it. An honest one always reads; longer than
/// a stopped process is usually left alone, and no longer than one is believed alive that says
/// nothing.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Below this many queued bytes a producer of long messages may go on, whatever credit it has.
const READY_BYTES: usize = 256 << 10;
/// A buffer above this capacity is given back once it is written.
const IDLE_BYTES_MAX: usize = 256 << 10;

/// Sends messages; clones share one connection. When the last clone is dropped, what is queued is
/// still written and the connection is closed in good order.
#[derive(Clone, Debug)]
pub struct ControlWriter {
    handle: Arc<Handle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    /// What is queued is written, then the connection is closed.
    Closing,
    /// Nothing more is written.
    Aborting,
    /// The task is gone.
    Ended,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    queued: Notify,
    drained: Notify,
    phase: watch::Sender<Phase>,
    /// Why writing ended, if not because it was to.
    failure: OnceLock<Fault>,
}

impl ControlWriter {
    /// Starts the task that writes to `io`.
    pub(super) fn start(io: impl AsyncWrite + Send + Unpin + 'static) -> Self {
        Self::start_within(io, Budget::of_process())
    }

    fn start_within(io: impl AsyncWrite + Send + Unpin + 'static, budget: Budget) -> Self {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::new(budget)),
            queued: Notify::new(),
            drained: Notify::new(),
            phase: watch::Sender::new(Phase::Open),
            failure: OnceLock::new(),
        });
        tokio::spawn(run(io, Arc::clone(&shared)));
        Self {
            handle: Arc::new(Handle { shared }),
        }
    }

    /// Queues a message. Never waits; the peer has granted the credit that it costs.
    pub fn send(&self, envelope: &Envelope) -> Result<(), ControlError> {
        let shared = &self.handle.shared;
        if *shared.phase.borrow() != Phase::Open {
            return Err(ControlError::Closed);
        }
        let mut queue = shared.lock();
        if !queue.has_room() {
            let bytes = queue.waiting();
            return Err(ControlError::Unread { bytes });
        }
        queue.append(|bytes| encode(envelope, bytes))?;
        drop(queue);
        shared.queued.notify_one();
        Ok(())
    }

    /// Bytes that are queued or being written.
    pub fn queued_bytes(&self) -> usize {
        self.handle.shared.lock().waiting()
    }

    /// Waits until little is queued: for producers of long messages, as a peer may give any credit and
    /// read nothing.
    pub async fn ready(&self) -> Result<(), ControlError> {
        let shared = &self.handle.shared;
        loop {
            let drained = shared.drained.notified();
            if *shared.phase.borrow() != Phase::Open {
                return Err(ControlError::Closed);
            }
            if shared.lock().waiting() < READY_BYTES {
                return Ok(());
            }
            drained.await;
        }
    }

    /// Writes what is queued, closes in good order and waits until that is done, or has taken too
    /// long. Nothing can be sent any more.
    pub async fn close(&self) {
        let shared = &self.handle.shared;
        shared.advance(Phase::Closing);
        // The sender lives in `shared`, so the wait can't fail.
        let _ = shared
            .phase
            .subscribe()
            .wait_for(|phase| *phase == Phase::Ended)
            .await;
    }

    /// Ends the connection without writing what is queued.
    pub fn abort(&self) {
        self.handle.shared.advance(Phase::Aborting);
    }

    /// Waits until nothing is written any more, for whatever reason.
    pub async fn closed(&self) {
        let mut phase = self.handle.shared.phase.subscribe();
        let _ = phase.wait_for(|phase| *phase == Phase::Ended).await;
    }

    /// Waits until the peer can't be written to any more, and says why. Never comes if writing ended
    /// because it was to.
    pub async fn failed(&self) -> Fault {
        self.closed().await;
        match self.handle.shared.failure.get() {
            // Its last words may still be there to be read, and are the better reason.
            Some(fault) if fault.code == FaultCode::Lost => {
                tokio::time::sleep(CLOSE_DEADLINE).await;
                fault.clone()
            }
            Some(fault) => fault.clone(),
            None => std::future::pending().await,
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.advance(Phase::Closing);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic while encoding leaves at worst half a frame, which the peer refuses.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves on to a later phase and wakes everyone who waits.
    fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let later = *phase < to;
            if later {
                *phase = to;
            }
            later
        });
        self.queued.notify_one();
        self.drained.notify_waiters();
    }
}

async fn run(io: impl AsyncWrite + Unpin, shared: Arc<Shared>) {
    tokio::select! {
        result = write_out(io, &shared) => {
            if let Err(error) = result {
                tracing::debug!(%error, "control connection can't be written");
                // Only this task sets it.
                let _ = shared.failure.set(error.to_fault());
            }
        }
        () = overdue(&shared) => tracing::debug!("control connection is dropped unwritten"),
    }
    shared.advance(Phase::Ended);
    shared.lock().abandon();
}

/// Returns when the writing must be given up.
async fn overdue(shared: &Shared) {
    let mut phase = shared.phase.subscribe();
    let _ = phase.wait_for(|phase| *phase >= Phase::Closing).await;
    let aborting = phase.wait_for(|phase| *phase >= Phase::Aborting);
    let _ = timeout(CLOSE_DEADLINE, aborting).await;
}

async fn write_out(mut io: impl AsyncWrite + Unpin, shared: &Shared) -> Result<(), ControlError> {
    let mut batch = Vec::new();
    loop {
        let phase = *shared.phase.borrow();
        // An abort must not look like an end in good order: no close_notify goes out.
        if phase >= Phase::Aborting {
            return Ok(());
        }
        shared.lock().swap(&mut batch);
        if !batch.is_empty() {
            write_batch(&mut io, &batch).await?;
            batch.clear();
            batch.shrink_to(IDLE_BYTES_MAX);
            shared.lock().written();
            shared.drained.notify_waiters();
        } else if phase == Phase::Open {
            shared.queued.notified().await;
        } else {
            return io.shutdown().await.map_err(ControlError::Lost);
        }
    }
}

async fn write_batch(io: &mut (impl AsyncWrite + Unpin), batch: &[u8]) -> Result<(), ControlError> {
    let mut rest = batch;
    while !rest.is_empty() {
        let written = within_stall(io.write(rest), rest.len()).await?;
        if written == 0 {
            return Err(ControlError::Lost(std::io::ErrorKind::WriteZero.into()));
        }
        rest = &rest[written..];
    }
    within_stall(io.flush(), batch.len()).await
}

/// One step of writing, in which the peer takes some of what waits.
async fn within_stall<T>(
    step: impl Future<Output = std::io::Result<T>>,
    bytes: usize,
) -> Result<T, ControlError> {
    match timeout(STALL_TIMEOUT, step).await {
        Ok(result) => result.map_err(ControlError::Lost),
        Err(_) => Err(ControlError::Stalled {
            bytes,
            seconds: STALL_TIMEOUT.as_secs(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::ids::TransferId;
    use crate::limits::{OUTBOUND_BYTES_MAX, OUTBOUND_BYTES_OWN};
    use crate::session::control::ControlReader;
    use crate::wire::{Decoder, Message};

    fn ping(nonce: u64) -> Envelope {
        Envelope {
            transfer: TransferId::NONE,
            message: Message::Ping { nonce },
        }
    }

    #[tokio::test]
    async fn what_is_sent_arrives_in_order_and_then_the_end() {
        let (near, far) = tokio::io::duplex(50);
        let writer = ControlWriter::start(near);
        let mut reader = ControlReader::new(far, Decoder::new());
        for nonce in 0..1000 {
            writer.send(&ping(nonce)).unwrap();
        }
        drop(writer);
        for nonce in 0..1000 {
            assert_eq!(reader.next().await.unwrap(), Some(ping(nonce)));
        }
        assert_eq!(reader.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_is_noticed_and_costs_bounded_memory() {
        let (near, far) = tokio::io::duplex(50);
        let writer = ControlWriter::start(near);
        let error = loop {
            if let Err(error) = writer.send(&ping(0)) {
                break error;
            }
        };
        assert!(matches!(error, ControlError::Unread { .. }), "{error}");
        assert!(writer.queued_bytes() < OUTBOUND_BYTES_MAX + 1000);
        writer.abort();
        writer.closed().await;
        assert!(matches!(writer.send(&ping(0)), Err(ControlError::Closed)));
        assert!(matches!(writer.ready().await, Err(ControlError::Closed)));
        drop(far);
    }

    #[tokio::test(start_paused = true)]
    async fn closing_does_not_wait_for_ever() {
        let (near, far) = tokio::io::duplex(8);
        let writer = ControlWriter::start(near);
        writer.send(&ping(0)).unwrap();
        writer.close().await;
        drop(far);
    }

    #[tokio::test]
    async fn readiness_follows_the_reader() {
        let (near, mut far) = tokio::io::duplex(1 << 10);
        let writer = ControlWriter::start(near);
        while writer.queued_bytes() < READY_BYTES {
            writer.send(&ping(0)).unwrap();
        }
        let read = tokio::spawn(async move { far.read_to_end(&mut Vec::new()).await });
        writer.ready().await.unwrap();
        drop(writer);
        assert!(read.await.unwrap().unwrap() >= READY_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_loses_the_connection() {
        let (near, far) = tokio::io::duplex(8);
        let writer = ControlWriter::start(near);
        writer.send(&ping(0)).unwrap();
        let fault = writer.failed().await;
        assert_eq!(fault.code, FaultCode::TimedOut);
        assert!(fault.text.contains("60 s"), "{}", fault.text);
        assert!(matches!(writer.send(&ping(0)), Err(ControlError::Closed)));
        drop(far);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_slowly_keeps_the_connection() {
        let (near, mut far) = tokio::io::duplex(8);
        let writer = ControlWriter::start(near);
        writer.send(&ping(0)).unwrap();
        let mut bytes = Vec::new();
        encode(&ping(0), &mut bytes).unwrap();
        for _ in 0..bytes.len().div_ceil(8) {
            tokio::time::sleep(STALL_TIMEOUT - Duration::from_secs(1)).await;
            let _ = far.read(&mut [0; 8]).await.unwrap();
        }
        writer.send(&ping(1)).unwrap();
    }

    #[tokio::test]
    async fn what_others_leave_unread_does_not_silence_a_connection() {
        let budget = Budget::new(1 << 20);
        let mut unread = Vec::new();
        for _ in 0..20 {
            let (near, far) = tokio::io::duplex(50);
            let writer = ControlWriter::start_within(near, budget.clone());
            while writer.send(&ping(0)).is_ok() {}
            unread.push((writer, far));
        }
        let held: usize = unread.iter().map(|(writer, _)| writer.queued_bytes()).sum();
        assert!(
            held <= 20 * (OUTBOUND_BYTES_OWN + 1000) + (1 << 20),
            "{held}"
        );
        let (near, mut far) = tokio::io::duplex(50);
        let writer = ControlWriter::start_within(near, budget);
        let read = tokio::spawn(async move { far.read_to_end(&mut Vec::new()).await });
        for _ in 0..10 {
            while writer.queued_bytes() < OUTBOUND_BYTES_OWN {
                writer.send(&ping(0)).unwrap();
            }
            writer.ready().await.unwrap();
        }
        drop(writer);
        assert!(read.await.unwrap().unwrap() >= 10 * OUTBOUND_BYTES_OWN / 2);
    }

    #[tokio::test]
    async fn an_end_in_mid_frame_is_a_loss() {
        let (mut near, far) = tokio::io::duplex(100);
        let mut bytes = Vec::new();
        encode(&ping(0), &mut bytes).unwrap();
        near.write_all(&bytes[..20]).await.unwrap();
        drop(near);
        let mut reader = ControlReader::new(far, Decoder::new());
        assert!(matches!(reader.next().await, Err(ControlError::Lost(_))));
    }
}
