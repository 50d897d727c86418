//! Small reads of a file without a digest and without a task between: a region that stays granted, and
//! a connection of its own that the calling thread posts on and polls.
//!
//! ```text
//!  hold      a pull of the one file that wants a range and never releases it   (the session)
//!  keep      renews the lease, hears when it is over                          (a task)
//!  read_at   posts a READ and waits for it                                    (the caller's thread)
//! ```
//!
//! In: a range that is to be held, reads of it. Out: bytes as the server's memory had them. What a
//! read brings counts only if the lease was good when it began and when it was over: after that, what
//! was granted may be somebody else's.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};

use super::super::connect::Session;
use super::super::transport::TransportReport;
use super::{CHUNK, Reading, closed, out_of_turn};
use crate::error::{Error, ErrorKind};
use crate::ids::{RemoteKey, TransferId};
use crate::lane::{LANDING_SLOT_BYTES, Solo, SoloError, SoloRead};
use crate::limits::{WINDOW_BYTES, WINDOWS_PER_FILE_MAX};
use crate::memory::{Pool, Slot};
use crate::session::exposing::{LEASE_PATIENCE, RENEWAL_PAUSE};
use crate::session::peer::Peer;
use crate::session::rails::talk::Gone;
use crate::units::{ByteRange, ChunkRange};
use crate::wire::Message;
use crate::wire::message::{Carried, Grant, GrantPart, HashKind, RailLink, RemotePath};

/// What a lease is good for after a sign of life was sent: less than the server waits for the next, which
/// it hears later than it was sent.
const LEASE_GOOD_FOR: Duration = Duration::from_secs(LEASE_PATIENCE.as_secs() - 5);
/// How long a read may take, whatever the session allows.
const READ_PATIENCE_MAX: Duration = Duration::from_secs(30);

const _: () = assert!(RENEWAL_PAUSE.as_secs() * 2 < LEASE_GOOD_FOR.as_secs());

/// A range of a remote file that stays ready to be read, in small pieces and at once.
///
/// Reads are **not verified**: no digest is of less than a chunk. What is read is what the server's
/// memory held at that moment; a file that is changed meanwhile may show old bytes or new ones. For
/// bytes that are proved there is [`RemoteFile::read_at`].
///
/// Each region has a connection of its own: over RDMA a queue pair that the calling thread posts READs
/// on and polls, else a data connection by TCP that it waits on. It keeps its session and memory of the
/// server's for as long as it lives, so drop it when it is not needed.
///
/// [`RemoteFile::read_at`]: crate::RemoteFile::read_at
pub struct HeldRegion {
    range: ByteRange,
    parts: Vec<HeldPart>,
    /// Ended before anything else of this is given up.
    way: Option<Way>,
    report: TransportReport,
    lease: Arc<Lease>,
    patience: Duration,
    /// Why it is of no use any more.
    broken: Option<(ErrorKind, String)>,
    /// Ends the task that keeps the lease.
    _let_go: oneshot::Sender<()>,
}

/// Memory of this process that reads of held regions land in, registered with the adapter that they
/// came by.
///
/// Its bytes are those of the last read that succeeded, at its start. After one that failed they mean
/// nothing.
pub struct RegisteredBuffer {
    pool: Pool,
    /// `None` while it is read into, or when the kernel has no memory.
    slot: Option<Slot>,
    len: usize,
}

/// Where a part of the range lies; `None`: nowhere, it is a hole.
#[derive(Debug)]
struct HeldPart {
    file: ByteRange,
    at: Option<(RemoteKey, u64)>,
}

struct Way {
    /// The first field: it ends before the peer is told so.
    solo: Solo,
    /// For a queue pair.
    link: Option<OwnLink>,
}

/// Tells the peer when it is dropped that the queue pair has ended.
struct OwnLink {
    peer: Arc<Peer>,
    link: RailLink,
    gone: Gone,
}

impl Drop for OwnLink {
    fn drop(&mut self) {
        let (link, reason) = (self.link, "it is not needed any more".to_owned());
        let down = Message::RailDown { link, reason };
        self.peer.say(TransferId::NONE, down);
    }
}

/// How good what was granted still is; shared with the task that keeps it so.
struct Lease {
    epoch: Instant,
    /// When the last sign of life was sent, after `epoch`.
    renewed_ms: AtomicU64,
    over: OnceLock<(ErrorKind, String)>,
}

impl Lease {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            epoch: Instant::now(),
            renewed_ms: AtomicU64::new(0),
            over: OnceLock::new(),
        })
    }

    /// To be called before the sign of life is sent.
    fn renew(&self) {
        let now = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.renewed_ms.store(now, Ordering::Release);
    }

    fn end(&self, error: &Error) {
        let _ = self.over.set((error.kind(), error.to_string()));
    }

    /// Why it is not good any more. That it ran out is for good: what was withdrawn does not come back.
    fn is_over(&self) -> Option<&(ErrorKind, String)> {
        let renewed = Duration::from_millis(self.renewed_ms.load(Ordering::Acquire));
        if self.over.get().is_none() && self.epoch.elapsed() > renewed + LEASE_GOOD_FOR {
            let text = "the lease of the region could not be renewed in time";
            let _ = self.over.set((ErrorKind::TimedOut, text.to_owned()));
        }
        self.over.get()
    }
}

pub(super) async fn hold(
    session: Arc<Session>,
    path: &RemotePath,
    len: u64,
    range: Range<u64>,
) -> Result<HeldRegion, Error> {
    let range = ByteRange {
        start: range.start,
        end: range.end,
    };
    if range.is_empty() || range.end > len || range.len() > WINDOW_BYTES {
        let most = WINDOW_BYTES >> 20;
        let message = format!("what is held is a range of the file, of 1 byte to {most} MiB");
        return Err(Error::new(ErrorKind::Usage, message));
    }
    // Whoever demands that all is verified has to be asked here, before anything is granted. No digest
    // is of less than a chunk, so the server need not read all of the range for any.
    let id = TransferId::random();
    let mut reading = Reading::begin(Arc::clone(&session), path, id, HashKind::None).await?;
    if reading.file.len() != len {
        let message = "the file is not what it was when it was opened";
        return Err(Error::new(ErrorKind::SourceChanged, message));
    }
    let grants = reading.grants_of(range).await?;
    let (way, rail, report) = connect(&session, &reading, &grants).await?;
    let parts = grants
        .iter()
        .map(|(grant, part)| held_part(grant, part, rail));
    let lease = Lease::new();
    reading.renew_lease(&lease);
    let (let_go, gone) = oneshot::channel();
    let region = HeldRegion {
        range,
        parts: parts.collect::<Result<_, _>>()?,
        way,
        report,
        lease: Arc::clone(&lease),
        patience: session.stall_timeout().min(READ_PATIENCE_MAX),
        broken: None,
        _let_go: let_go,
    };
    tokio::spawn(reading.keep(lease, gone));
    Ok(region)
}

impl Reading {
    /// Has the chunks of a range granted, all of them.
    async fn grants_of(&mut self, range: ByteRange) -> Result<Vec<(Grant, GrantPart)>, Error> {
        let wanted = ChunkRange {
            start: CHUNK.index_of(range.start).0,
            end: CHUNK.index_of(range.end - 1).0 + 1,
        };
        self.ask(wanted);
        let mut grants = Vec::new();
        loop {
            let (grant, part) = self.grant().await?;
            let is_last = part.last || part.packed;
            grants.push((grant, part));
            if is_last {
                return Ok(grants);
            }
            if grants.len() == WINDOWS_PER_FILE_MAX {
                // The next one is granted when one of these is given back, which is never.
                return Err(too_much(&grants));
            }
        }
    }

    fn renew_lease(&self, lease: &Lease) {
        lease.renew();
        self.renew();
    }

    /// Keeps what was granted until nobody needs it, or it is over.
    async fn keep(mut self, lease: Arc<Lease>, mut let_go: oneshot::Receiver<()>) {
        let mut renewals = interval(RENEWAL_PAUSE);
        renewals.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = &mut let_go => return,
                _ = renewals.tick() => self.renew_lease(&lease),
                inbound = self.seat.inbox.recv() => {
                    let heard = inbound.ok_or_else(closed).and_then(|inbound| self.hear(inbound));
                    // Values that a server sends all the same, and nobody compares.
                    self.digests.clear();
                    if let Err(error) = heard {
                        lease.end(&error);
                        return;
                    }
                }
            }
        }
    }
}

/// The server's windows are shorter where it copies files into a pool for its adapters.
fn too_much(grants: &[(Grant, GrantPart)]) -> Error {
    let bytes: u64 = grants.iter().map(|(_, part)| part.len).sum();
    let message = format!(
        "the server holds at most {} MiB of a file at once, as it copies them for its adapters",
        bytes >> 20
    );
    Error::new(ErrorKind::Usage, message).with_hint("hold a shorter range")
}

/// The connection to read all of this by, with its rail: a queue pair of a rail that reaches all, else
/// tcp. None if there is nothing to read.
async fn connect(
    session: &Session,
    reading: &Reading,
    grants: &[(Grant, GrantPart)],
) -> Result<(Option<Way>, u16, TransportReport), Error> {
    let with_bytes = || grants.iter().filter(|(_, part)| !part.extents.is_empty());
    let mut report = session.transport(Carried::default());
    if with_bytes().next().is_none() {
        return Ok((None, 0, report));
    }
    let mut why_not = Vec::new();
    let reaches = |rail: u16| {
        let has_key = |grant: &Grant| grant.keys.iter().any(|key| key.rail == rail);
        with_bytes().all(|(grant, _)| has_key(grant))
    };
    let mut rails: Vec<u16> = reading.lanes.iter().map(|(_, rail)| *rail).collect();
    rails.sort_unstable();
    rails.dedup();
    for rail in rails
        .into_iter()
        .filter(|rail| *rail != 0 && reaches(*rail))
    {
        match session.own_queue_pair(rail).await {
            Ok(own) => {
                let link = OwnLink {
                    peer: Arc::clone(session.peer()),
                    link: own.link,
                    gone: own.gone,
                };
                let solo = Solo::rdma(own.connection);
                let way = Way {
                    solo,
                    link: Some(link),
                };
                return Ok((Some(way), rail, report));
            }
            Err(reason) => why_not.push(reason),
        }
    }
    if !reaches(0) {
        return Err(out_of_turn());
    }
    let has_rails = report.transport == "rdma";
    if why_not.is_empty() && has_rails {
        why_not.push("no rail reaches all of the range".to_owned());
    }
    let connection = session.own_connection(&why_not.join("; ")).await?;
    let solo = Solo::tcp(connection.stream, &connection.keys).map_err(|error| {
        Error::new(ErrorKind::Unreachable, "the data connection broke").with_source(error)
    })?;
    if !why_not.is_empty() {
        report.reason = format!("no queue pair of its own: {}", why_not.join("; "));
    }
    report.transport = "tcp";
    Ok((Some(Way { solo, link: None }), 0, report))
}

fn held_part(grant: &Grant, part: &GrantPart, rail: u16) -> Result<HeldPart, Error> {
    let file = ByteRange {
        start: part.file_offset,
        end: part.file_offset + part.len,
    };
    if part.extents.is_empty() {
        return Ok(HeldPart { file, at: None });
    }
    let key = grant.keys.iter().find(|key| key.rail == rail);
    let key = key.ok_or_else(out_of_turn)?;
    // No overflow: each byte of a region has an address, and the part lies in it.
    let at = Some((key.key, key.address + part.region_offset));
    Ok(HeldPart { file, at })
}

impl HeldRegion {
    /// The range of the file that is held.
    pub fn range(&self) -> Range<u64> {
        self.range.start..self.range.end
    }

    /// What reads go by, and why nothing better.
    pub fn transport(&self) -> &TransportReport {
        &self.report
    }

    /// Memory for reads of this region, of 1 byte to 1 MiB. Other regions' reads may land in it too.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for another length; [`ErrorKind::Storage`] if there is no memory, or it can't
    /// be registered.
    pub fn buffer(&self, len: usize) -> Result<RegisteredBuffer, Error> {
        if !(1..=LANDING_SLOT_BYTES).contains(&len) {
            let message = "a buffer for reads of a held region has 1 byte to 1 MiB";
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let pool = Pool::new(len, 1);
        let mut slot = pool.take().ok_or_else(no_memory)?;
        if let Some(way) = &self.way {
            way.solo.prepare(&mut slot).map_err(unregistered)?;
        }
        let slot = Some(slot);
        Ok(RegisteredBuffer { pool, slot, len })
    }

    /// Reads up to `len` bytes from byte `offset` of the file on to the buffer's start, and waits for
    /// them on the calling thread, which over RDMA is busy for as long. Tells how many there were: as
    /// many as fit into the buffer, or fewer where the range or what lies together at the server ends; 0
    /// only at the end of the range. **They are not verified.**
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for an offset before the range. After any other the region is of no use any
    /// more, and the buffer's bytes mean nothing: [`ErrorKind::TimedOut`] if the lease could not be
    /// renewed or no answer came, [`ErrorKind::Storage`] if the server does not serve the bytes any more,
    /// [`ErrorKind::Unreachable`] if the connection or the session is lost, or what the server said.
    pub fn read_at(
        &mut self,
        offset: u64,
        buffer: &mut RegisteredBuffer,
        len: usize,
    ) -> Result<usize, Error> {
        self.check()?;
        if offset < self.range.start {
            let message = format!("byte {offset} is not in the range that is held");
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let part = self.parts.iter().find(|part| part.file.end > offset);
        let Some(part) = part.filter(|_| offset < self.range.end) else {
            return Ok(0);
        };
        let left = part.file.end.min(self.range.end) - offset;
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len);
        let len = len.min(most);
        let (Some((remote, base)), Some(way)) = (part.at, &mut self.way) else {
            buffer[..len].fill(0);
            return Ok(len);
        };
        let len = len.min(way.solo.read_bytes(buffer.len));
        if len == 0 {
            return Ok(0);
        }
        let mut slot = buffer.slot.take().ok_or_else(no_memory)?;
        if let Err(error) = way.solo.prepare(&mut slot) {
            buffer.slot = Some(slot);
            return Err(unregistered(error));
        }
        let read = SoloRead {
            remote,
            offset: base + (offset - part.file.start),
            len,
        };
        let gone = way.link.as_ref().map(|link| &link.gone);
        let over = || {
            let lost = gone.and_then(|gone| gone.get().cloned());
            lost.or_else(|| self.lease.is_over().map(|(_, text)| text.clone()))
        };
        let deadline = Instant::now() + self.patience;
        let failed = match way.solo.read(read, slot, deadline, over) {
            Ok(slot) => {
                buffer.slot = Some(slot);
                // What was granted was still so when the bytes were here.
                match self.check() {
                    Ok(()) => return Ok(len),
                    Err(error) => error,
                }
            }
            Err(error) => self.failed(error),
        };
        self.broken = Some((failed.kind(), failed.to_string()));
        self.end();
        buffer.renew();
        Err(failed)
    }

    fn check(&self) -> Result<(), Error> {
        let over = self.broken.as_ref().or_else(|| self.lease.is_over());
        over.map_or(Ok(()), |(kind, text)| Err(Error::new(*kind, text.clone())))
    }

    fn failed(&self, error: SoloError) -> Error {
        if let Some((kind, text)) = self.lease.is_over() {
            return Error::new(*kind, text.clone()).with_source(error);
        }
        let kind = match &error {
            SoloError::TimedOut => ErrorKind::TimedOut,
            SoloError::Refused(_) => ErrorKind::Storage,
            SoloError::Lost(_) | SoloError::Over(_) => ErrorKind::Unreachable,
        };
        Error::new(kind, "a held region can't be read any more").with_source(error)
    }

    /// After this nothing is written to any buffer, and the peer may be told that it is over.
    fn end(&mut self) {
        if let Some(Way { solo, link }) = self.way.take() {
            solo.end();
            drop(link);
        }
    }
}

impl Drop for HeldRegion {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for HeldRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldRegion")
            .field("range", &self.range)
            .field("transport", &self.report.transport)
            .finish_non_exhaustive()
    }
}

impl RegisteredBuffer {
    /// After a read that failed has lost the memory.
    fn renew(&mut self) {
        // The pool has this one slot, which came back when the connection ended.
        let slot = self.slot.take().or_else(|| self.pool.take());
        self.slot = slot.map(|mut slot| {
            slot.zero();
            slot
        });
    }
}

impl Deref for RegisteredBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let slot = self.slot.as_ref();
        slot.map_or(&[], |slot| &slot[..self.len])
    }
}

impl DerefMut for RegisteredBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let slot = self.slot.as_mut();
        slot.map_or(&mut [], |slot| &mut slot[..self.len])
    }
}

impl fmt::Debug for RegisteredBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredBuffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

fn no_memory() -> Error {
    Error::new(ErrorKind::Storage, "there is no memory for a buffer")
}

fn unregistered(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Storage, "a buffer can't be registered")
        .with_source(error)
        .with_hint("raise the limit on locked memory: ulimit -l, LimitMEMLOCK= in a unit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_ran_out_does_not_come_back() {
        let lease = Lease {
            epoch: Instant::now() - LEASE_GOOD_FOR,
            renewed_ms: AtomicU64::new(1000),
            over: OnceLock::new(),
        };
        assert!(lease.is_over().is_none());
        lease.renewed_ms.store(0, Ordering::Release);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(lease.is_over().unwrap().0, ErrorKind::TimedOut);
        lease.renew();
        assert!(lease.is_over().is_some());
    }

    #[test]
    fn what_the_server_says_ends_a_lease() {
        let lease = Lease::new();
        lease.renew();
        assert!(lease.is_over().is_none());
        lease.end(&Error::new(ErrorKind::SourceChanged, "it changed"));
        lease.end(&closed());
        assert_eq!(lease.is_over().unwrap().1, "it changed");
    }
}
