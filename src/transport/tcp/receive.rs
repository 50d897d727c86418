//! The receiving half of a connection.

use std::io::{self, IoSliceMut, Read};
use std::ops::Range;
use std::time::Instant;

use super::header::{HEADER_BYTES, Header, Message};
use super::send::Request;
use super::{Connection, broken, protocol};
use crate::ids::WorkRequestId;
use crate::limits::READS_PER_CONNECTION_MAX;
use crate::transport::{Host, LostReason, Turn};

/// What is arriving: the rest of a segment's payload, if one was announced, then a header.
pub(super) struct Inbound {
    header: Header,
    header_filled: usize,
    /// Bytes of the landing slot that are still to come of this segment.
    missing: Range<usize>,
    /// Where in the slot the segment began.
    segment_start: usize,
}

impl Default for Inbound {
    fn default() -> Self {
        Self {
            header: [0; HEADER_BYTES],
            header_filled: 0,
            missing: 0..0,
            segment_start: 0,
        }
    }
}

impl Connection {
    /// Takes what has arrived, up to about `budget` bytes.
    pub(crate) fn receive<H: Host>(
        &mut self,
        host: &mut H,
        budget: usize,
    ) -> Result<Turn, LostReason> {
        let mut taken = 0;
        while taken < budget {
            if !self.inbound.missing.is_empty() && self.landing.is_none() {
                let Some(posted) = self.reads.front() else {
                    return Err(LostReason::Protocol("payload without a READ"));
                };
                self.landing = host.landing_slot(posted.read.id, 0);
                if self.landing.is_none() {
                    return Ok(Turn::NoSlot);
                }
                self.landing_since = Instant::now();
            }
            match self.receive_once() {
                Ok(0) => return Err(LostReason::Closed),
                Ok(received) => taken += received.max(HEADER_BYTES),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Turn::WouldBlock);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(broken(error)),
            }
            self.take_in(host)?;
        }
        Ok(Turn::Again)
    }

    /// One system call: the rest of the payload and the header behind it.
    fn receive_once(&mut self) -> io::Result<usize> {
        let Inbound {
            header,
            header_filled,
            missing,
            ..
        } = &mut self.inbound;
        let payload = match &mut self.landing {
            Some(slot) => &mut slot[missing.clone()],
            None => &mut [],
        };
        let payload_len = payload.len();
        let header_rest = &mut header[*header_filled..];
        let received = if payload.is_empty() {
            (&self.socket).read(header_rest)?
        } else {
            let mut buffers = [IoSliceMut::new(payload), IoSliceMut::new(header_rest)];
            (&self.socket).read_vectored(&mut buffers)?
        };
        let of_payload = received.min(payload_len);
        missing.start += of_payload;
        *header_filled += received - of_payload;
        Ok(received)
    }

    /// Acts on what is complete by now.
    fn take_in<H: Host>(&mut self, host: &mut H) -> Result<(), LostReason> {
        if !self.inbound.missing.is_empty() {
            return Ok(());
        }
        let segment = self.inbound.segment_start..self.inbound.missing.end;
        if !segment.is_empty() {
            self.inbound.segment_start = 0;
            self.inbound.missing = 0..0;
            self.finish_segment(host, segment);
        }
        if self.inbound.header_filled == HEADER_BYTES {
            self.inbound.header_filled = 0;
            let message = self.opener.open(&self.inbound.header).map_err(protocol)?;
            self.act_on(host, message)?;
        }
        Ok(())
    }

    fn finish_segment<H: Host>(&mut self, host: &mut H, segment: Range<usize>) {
        let (Some(posted), Some(slot)) = (self.reads.front_mut(), &self.landing) else {
            return;
        };
        posted.received = segment.end;
        host.landed(posted.read.id, slot, segment);
        if posted.received == posted.read.len {
            let id = posted.read.id;
            self.reads.pop_front();
            host.completed(id, self.landing.take(), Ok(()));
        }
    }

    fn act_on<H: Host>(&mut self, host: &mut H, message: Message) -> Result<(), LostReason> {
        match message {
            Message::Read {
                request,
                key,
                offset,
                len,
            } => self.take_request(Request {
                request,
                key,
                offset,
                len,
            }),
            Message::Data {
                request,
                offset,
                bytes,
                last,
            } => self.expect_segment(request, offset, bytes, last),
            Message::Fail { request, refusal } => {
                let id = self.answered(request)?.0;
                self.reads.pop_front();
                host.completed(id, self.landing.take(), Err(refusal));
                Ok(())
            }
        }
    }

    fn take_request(&mut self, request: Request) -> Result<(), LostReason> {
        // The one that is being answered counts until its reply is out.
        if self.requests.len() + usize::from(self.reply.is_some()) >= READS_PER_CONNECTION_MAX {
            return Err(LostReason::Protocol("too many READs are unanswered"));
        }
        self.requests.push_back(request);
        Ok(())
    }

    fn expect_segment(
        &mut self,
        request: u64,
        offset: u64,
        bytes: u32,
        last: bool,
    ) -> Result<(), LostReason> {
        let (_, received, len) = self.answered(request)?;
        let at = self.reads.front().map_or(0, |posted| posted.read.offset);
        // Both are lengths in memory, so the sums below can't overflow.
        let end = received + bytes as usize;
        if end > len || last != (end == len) || offset != at.wrapping_add(received as u64) {
            return Err(LostReason::Protocol("a DATA does not continue its reply"));
        }
        self.inbound.segment_start = received;
        self.inbound.missing = received..end;
        Ok(())
    }

    /// The READ that is being answered, if `request` is its number: id, received, length.
    fn answered(&self, request: u64) -> Result<(WorkRequestId, usize, usize), LostReason> {
        let told = self.reads.len() - self.untold;
        match self.reads.front() {
            Some(posted) if told > 0 && posted.request == request => {
                Ok((posted.read.id, posted.received, posted.read.len))
            }
            _ => Err(LostReason::Protocol(
                "a reply to no READ that is open, or out of order",
            )),
        }
    }
}
