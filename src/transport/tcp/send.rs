//! The sending half of a connection.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::header::{HEADER_BYTES, Message};
use super::{Connection, broken, protocol};
use crate::ids::RemoteKey;
use crate::limits::{READS_PER_CONNECTION_MAX, SEGMENT_BYTES_MAX};
use crate::memory::Slot;
use crate::transport::{Fill, Host, LostReason, Refusal, Source, Turn};

/// A READ of the peer's.
pub(super) struct Request {
    pub(super) request: u64,
    pub(super) key: RemoteKey,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// The answer that is going out.
pub(super) struct Reply {
    request: Request,
    source: Source,
    /// Bytes whose header was made: they will be sent, or the connection ends.
    announced: u64,
    /// A piece that the host was asked for has not come.
    filling: bool,
}

/// Bytes that wait for room in the socket: headers, then at most one segment's payload.
#[derive(Default)]
pub(super) struct Outbound {
    headers: Vec<u8>,
    payload: Option<Payload>,
    /// How much of the two is through.
    sent: usize,
}

struct Payload {
    bytes: Bytes,
    len: usize,
}

enum Bytes {
    /// A filled piece, at the slot's start.
    Slot(Slot),
    /// A part of exposed memory.
    Shared(Arc<Slot>, Range<usize>),
    /// The piece's slot was given up; the reply has to ask for the bytes again.
    Missing,
}

impl Payload {
    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Slot(slot) => &slot[..self.len],
            Bytes::Shared(slot, range) => &slot[range.clone()],
            Bytes::Missing => &[],
        }
    }
}

impl Outbound {
    fn is_empty(&self) -> bool {
        self.headers.is_empty() && self.payload.is_none()
    }

    fn payload_missing(&self) -> bool {
        matches!(
            &self.payload,
            Some(Payload {
                bytes: Bytes::Missing,
                ..
            })
        )
    }
}

impl Connection {
    /// Sends requests and replies, up to about `budget` bytes.
    pub(crate) fn send<H: Host>(
        &mut self,
        host: &mut H,
        budget: usize,
    ) -> Result<Turn, LostReason> {
        let mut sent = 0;
        while sent < budget {
            if self.outbound.is_empty() {
                self.tell_reads()?;
                match self.next_segment(host)? {
                    Turn::Again => {}
                    other if self.outbound.is_empty() => return Ok(other),
                    // Headers are there even though there is no payload to go with them.
                    _ => {}
                }
            }
            if self.outbound.payload_missing() {
                match self.restore_payload(host)? {
                    Turn::Again => {}
                    other => return Ok(other),
                }
            }
            match self.send_once() {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Turn::WouldBlock);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error)),
            }
            self.finish_reply(host);
        }
        Ok(Turn::Again)
    }

    /// The piece that [`Fill::Later`] promised; `None` if the source failed.
    pub(crate) fn filled<H: Host>(
        &mut self,
        host: &mut H,
        piece: Option<Slot>,
    ) -> Result<(), LostReason> {
        let Some(reply) = &mut self.reply else {
            return Ok(());
        };
        reply.filling = false;
        if let Some(payload) = &mut self.outbound.payload {
            // Its header is out: without the bytes, nothing can follow.
            let slot = piece.ok_or(LostReason::Protocol("a source failed in mid-segment"))?;
            payload.bytes = Bytes::Slot(slot);
            return Ok(());
        }
        match piece {
            Some(slot) => self.announce(Bytes::Slot(slot)),
            None => self.fail(host, Refusal::SourceFailed),
        }
    }

    /// Gives up the slot of a piece that waits for room in the socket. The piece will be filled
    /// again when the peer reads on.
    pub(crate) fn yield_slot(&mut self) -> Option<Slot> {
        let payload = self.outbound.payload.as_mut()?;
        if !matches!(payload.bytes, Bytes::Slot(_)) {
            return None;
        }
        match std::mem::replace(&mut payload.bytes, Bytes::Missing) {
            Bytes::Slot(slot) => Some(slot),
            Bytes::Shared(..) | Bytes::Missing => None,
        }
    }

    /// Makes headers of the READs that were posted.
    fn tell_reads(&mut self) -> Result<(), LostReason> {
        let first = self.reads.len() - self.untold;
        for posted in self.reads.range(first..) {
            let read = posted.read;
            let message = Message::Read {
                request: posted.request,
                key: read.key,
                offset: read.offset,
                len: read.len as u64,
            };
            let header = self.sealer.seal(message).map_err(protocol)?;
            self.outbound.headers.extend_from_slice(&header);
        }
        self.untold = 0;
        Ok(())
    }

    /// Makes the next segment of the reply that is going out, or the first of the next one.
    fn next_segment<H: Host>(&mut self, host: &mut H) -> Result<Turn, LostReason> {
        while self.reply.is_none() {
            let Some(request) = self.requests.pop_front() else {
                return Ok(Turn::Idle);
            };
            match host.open(request.key, request.offset, request.len) {
                Ok(source) => {
                    self.reply = Some(Reply {
                        request,
                        source,
                        announced: 0,
                        filling: false,
                    });
                }
                Err(refusal) => self.refuse(request.request, refusal)?,
            }
            if self.outbound.headers.len() > READS_PER_CONNECTION_MAX * HEADER_BYTES {
                return Ok(Turn::Again);
            }
        }
        let Some(reply) = &mut self.reply else {
            return Ok(Turn::Idle);
        };
        if reply.filling {
            return Ok(Turn::Idle);
        }
        let len = segment_len(reply.request.len - reply.announced);
        let bytes = match &reply.source {
            Source::Memory(slot, start) => {
                // The host vouches that the request lies in the slot.
                let start = start + usize::try_from(reply.announced).unwrap_or(usize::MAX);
                Bytes::Shared(Arc::clone(slot), start..start + len)
            }
            Source::Filled => match host.fill(reply.announced, len) {
                Fill::Now(slot) => Bytes::Slot(slot),
                Fill::Later => {
                    reply.filling = true;
                    return Ok(Turn::Idle);
                }
                Fill::NoSlot => return Ok(Turn::NoSlot),
                Fill::Failed => {
                    self.fail(host, Refusal::SourceFailed)?;
                    return Ok(Turn::Again);
                }
            },
        };
        self.announce(bytes)?;
        Ok(Turn::Again)
    }

    /// Puts a segment behind the headers.
    fn announce(&mut self, bytes: Bytes) -> Result<(), LostReason> {
        let Some(reply) = &mut self.reply else {
            return Ok(());
        };
        let left = reply.request.len - reply.announced;
        let len = segment_len(left);
        let message = Message::Data {
            request: reply.request.request,
            offset: reply.request.offset + reply.announced,
            // At most SEGMENT_BYTES_MAX, a u32.
            bytes: u32::try_from(len).unwrap_or(SEGMENT_BYTES_MAX),
            last: len as u64 == left,
        };
        let header = self.sealer.seal(message).map_err(protocol)?;
        self.outbound.headers.extend_from_slice(&header);
        self.outbound.payload = Some(Payload { bytes, len });
        reply.announced += len as u64;
        Ok(())
    }

    fn refuse(&mut self, request: u64, refusal: Refusal) -> Result<(), LostReason> {
        let header = self
            .sealer
            .seal(Message::Fail { request, refusal })
            .map_err(protocol)?;
        self.outbound.headers.extend_from_slice(&header);
        Ok(())
    }

    /// Ends the reply that is going out, between two of its segments.
    fn fail<H: Host>(&mut self, host: &mut H, refusal: Refusal) -> Result<(), LostReason> {
        let Some(reply) = self.reply.take() else {
            return Ok(());
        };
        host.served(reply.announced);
        self.refuse(reply.request.request, refusal)
    }

    fn restore_payload<H: Host>(&mut self, host: &mut H) -> Result<Turn, LostReason> {
        let (Some(reply), Some(payload)) = (&mut self.reply, &mut self.outbound.payload) else {
            return Ok(Turn::Again);
        };
        if reply.filling {
            return Ok(Turn::Idle);
        }
        match host.refill(reply.announced - payload.len as u64, payload.len) {
            Fill::Now(slot) => payload.bytes = Bytes::Slot(slot),
            Fill::Later => {
                reply.filling = true;
                return Ok(Turn::Idle);
            }
            Fill::NoSlot => return Ok(Turn::NoSlot),
            Fill::Failed => return Err(LostReason::Protocol("a source failed in mid-segment")),
        }
        Ok(Turn::Again)
    }

    /// One system call: headers and payload.
    fn send_once(&mut self) -> io::Result<usize> {
        let Outbound {
            headers,
            payload,
            sent,
        } = &mut self.outbound;
        let payload_bytes = payload.as_ref().map_or(&[][..], Payload::bytes);
        let total = headers.len() + payload_bytes.len();
        let headers_rest = &headers[(*sent).min(headers.len())..];
        let payload_rest = &payload_bytes[sent.saturating_sub(headers.len())..];
        let buffers = [IoSlice::new(headers_rest), IoSlice::new(payload_rest)];
        let buffers = if headers_rest.is_empty() {
            &buffers[1..]
        } else {
            &buffers[..]
        };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let through = sendmsg(
            &self.socket,
            buffers,
            &mut SendAncillaryBuffer::default(),
            flags,
        )?;
        *sent += through;
        if *sent == total {
            headers.clear();
            *payload = None;
            *sent = 0;
        }
        Ok(through)
    }

    /// Tells the host when the last byte of a reply is with the kernel.
    fn finish_reply<H: Host>(&mut self, host: &mut H) {
        let Some(reply) = &self.reply else { return };
        if reply.announced == reply.request.len && self.outbound.payload.is_none() {
            host.served(reply.request.len);
            self.reply = None;
        }
    }
}

fn segment_len(left: u64) -> usize {
    // At most SEGMENT_BYTES_MAX.
    usize::try_from(left.min(u64::from(SEGMENT_BYTES_MAX))).unwrap_or(0)
}
