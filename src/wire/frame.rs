//! The frame around each message, and the decoder that takes frames out of a stream of bytes.
//!
//! Bytes flow in as they come off a connection, in pieces of any size; envelopes flow out. The
//! decoder's memory is bounded by one frame, whatever is fed to it.

use crate::ids::TransferId;
use crate::limits::FRAME_BYTES_MAX;
use crate::wire::codec::Writer;
use crate::wire::decode::message as read_message;
use crate::wire::encode::message as write_message;
use crate::wire::kind::Kind;
use crate::wire::message::Envelope;
use crate::wire::{EncodeError, WireError};

/// Bytes of a frame before its body.
pub const FRAME_HEADER_BYTES: usize = 24;
/// Flag: a reader that does not know the type must refuse it instead of skipping it.
pub const FLAG_REFUSE_UNKNOWN: u16 = 1;
/// A buffer above this capacity is given back once it is empty.
const IDLE_BYTES_MAX: usize = 64 << 10;

/// Appends `envelope` as one frame to `out`. On an error `out` is as it was.
pub fn encode(envelope: &Envelope, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let start = out.len();
    let result = append(envelope, out);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

fn append(envelope: &Envelope, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let kind = Kind::of(&envelope.message);
    if kind.is_of_session() != (envelope.transfer == TransferId::NONE) {
        return Err(EncodeError::Misplaced);
    }
    let start = out.len();
    let mut writer = Writer::new(out);
    writer.u32(0); // the length, known below
    writer.u16(kind.to_wire());
    writer.u16(if kind.may_be_skipped() {
        0
    } else {
        FLAG_REFUSE_UNKNOWN
    });
    writer.array(&envelope.transfer.0);
    write_message(&mut writer, &envelope.message);
    writer.finish()?;
    let body_len = out.len() - start - FRAME_HEADER_BYTES;
    match u32::try_from(body_len) {
        Ok(len) if body_len <= FRAME_BYTES_MAX => {
            out[start..start + 4].copy_from_slice(&len.to_le_bytes());
            Ok(())
        }
        _ => Err(EncodeError::FrameTooLong(body_len)),
    }
}

/// The header of a frame as it stands on the wire.
struct Header {
    body_len: u32,
    kind: u16,
    flags: u16,
    transfer: TransferId,
}

impl Header {
    /// Reads a header off the front of `bytes`, if it is there whole.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (body_len, rest) = bytes.split_first_chunk::<4>()?;
        let (kind, rest) = rest.split_first_chunk::<2>()?;
        let (flags, rest) = rest.split_first_chunk::<2>()?;
        let (transfer, _) = rest.split_first_chunk::<16>()?;
        Some(Self {
            body_len: u32::from_le_bytes(*body_len),
            kind: u16::from_le_bytes(*kind),
            flags: u16::from_le_bytes(*flags),
            transfer: TransferId(*transfer),
        })
    }
}

/// Takes frames out of a stream: [`feed`](Self::feed) it bytes, then call [`next`](Self::next)
/// until it has nothing more. After an error it repeats that error.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes at the front of the buffer that belong to frames already taken.
    taken: usize,
    body_bytes_max: usize,
    failed: Option<WireError>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder at the start of a stream.
    pub fn new() -> Self {
        Self::with_limit(FRAME_BYTES_MAX)
    }

    /// A decoder that takes bodies of at most `body_bytes_max` bytes, for peers who have not said
    /// who they are yet.
    pub fn with_limit(body_bytes_max: usize) -> Self {
        let body_bytes_max = body_bytes_max.min(FRAME_BYTES_MAX);
        Self {
            buffer: Vec::new(),
            taken: 0,
            body_bytes_max,
            failed: None,
        }
    }

    /// From the next frame on, bodies may be as long as the protocol allows.
    pub fn lift_limit(&mut self) {
        self.body_bytes_max = FRAME_BYTES_MAX;
    }

    /// Takes bytes from the front of `bytes` and says how many: all, unless a whole frame is
    /// waiting to be taken by [`next`](Self::next).
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        if self.buffer.is_empty() && self.buffer.capacity() > IDLE_BYTES_MAX {
            self.buffer = Vec::new();
        }
        let frame_bytes_max = FRAME_HEADER_BYTES + self.body_bytes_max;
        let room = frame_bytes_max.saturating_sub(self.buffer.len());
        let fed = bytes.len().min(room);
        self.buffer.extend_from_slice(&bytes[..fed]);
        fed
    }

    /// The next message, if it is there whole. Frames of unknown types that may be skipped are.
    #[allow(clippy::should_implement_trait)] // a stream with errors, not an iterator
    pub fn next(&mut self) -> Result<Option<Envelope>, WireError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.take()
            .inspect_err(|error| self.failed = Some(error.clone()))
    }

    /// Whether the stream may end here: no part of a frame is waiting.
    pub fn is_between_frames(&self) -> bool {
        self.taken == self.buffer.len()
    }

    fn take(&mut self) -> Result<Option<Envelope>, WireError> {
        loop {
            let waiting = &self.buffer[self.taken..];
            let Some(header) = Header::parse(waiting) else {
                return Ok(None);
            };
            let body_len = self.check_length(header.body_len)?;
            let kind = Kind::from_wire(header.kind);
            // Refused at once: a body that nobody reads is not waited for.
            if kind.is_none() && header.flags & FLAG_REFUSE_UNKNOWN != 0 {
                return Err(WireError::UnknownType(header.kind));
            }
            let frame_len = FRAME_HEADER_BYTES + body_len;
            let Some(body) = waiting.get(FRAME_HEADER_BYTES..frame_len) else {
                return Ok(None);
            };
            self.taken += frame_len;
            if let Some(kind) = kind {
                return decode_frame(kind, header.transfer, body).map(Some);
            }
        }
    }

    fn check_length(&self, len: u32) -> Result<usize, WireError> {
        match usize::try_from(len) {
            Ok(body_len) if body_len <= self.body_bytes_max => Ok(body_len),
            _ => Err(WireError::FrameTooLong {
                len,
                max: self.body_bytes_max,
            }),
        }
    }
}

fn decode_frame(kind: Kind, transfer: TransferId, body: &[u8]) -> Result<Envelope, WireError> {
    if kind.is_of_session() != (transfer == TransferId::NONE) {
        return Err(WireError::Misplaced {
            message: kind.name(),
        });
    }
    let message = read_message(kind, body)?;
    Ok(Envelope { transfer, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Message;

    const PING: Envelope = Envelope {
        transfer: TransferId::NONE,
        message: Message::Ping { nonce: 7 },
    };

    fn frame(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
        bytes.extend(kind.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend([0; 16]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn frames_come_out_whole_however_the_bytes_come_in() {
        let mut stream = Vec::new();
        for _ in 0..3 {
            encode(&PING, &mut stream).unwrap();
        }
        for step in 1..stream.len() {
            let mut decoder = Decoder::new();
            let mut count = 0;
            for piece in stream.chunks(step) {
                assert_eq!(decoder.feed(piece), piece.len());
                while let Some(envelope) = decoder.next().unwrap() {
                    assert_eq!(envelope, PING);
                    count += 1;
                }
            }
            assert_eq!(count, 3);
            assert!(decoder.is_between_frames());
        }
    }

    #[test]
    fn unknown_types_are_skipped_or_refused_as_they_say() {
        let mut stream = frame(0x7777, 0, b"from the future");
        encode(&PING, &mut stream).unwrap();
        let mut decoder = Decoder::new();
        decoder.feed(&stream);
        assert_eq!(decoder.next(), Ok(Some(PING)));

        let mut decoder = Decoder::new();
        decoder.feed(&frame(0x7777, 0xffff, b"")[..FRAME_HEADER_BYTES]);
        assert_eq!(decoder.next(), Err(WireError::UnknownType(0x7777)));
        decoder.feed(&stream);
        assert_eq!(decoder.next(), Err(WireError::UnknownType(0x7777)));
    }

    #[test]
    fn fields_of_later_releases_at_the_end_of_a_body_are_ignored() {
        let mut decoder = Decoder::new();
        decoder.feed(&frame(3, 1, &[7, 0, 0, 0, 0, 0, 0, 0, 0xaa, 0xbb]));
        assert_eq!(decoder.next(), Ok(Some(PING)));
        assert!(decoder.is_between_frames());
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_by_its_header() {
        let mut decoder = Decoder::new();
        decoder.feed(&u32::MAX.to_le_bytes());
        assert_eq!(decoder.next(), Ok(None));
        decoder.feed(&[0; 20]);
        let error = WireError::FrameTooLong {
            len: u32::MAX,
            max: FRAME_BYTES_MAX,
        };
        assert_eq!(decoder.next(), Err(error));

        let mut decoder = Decoder::with_limit(16);
        decoder.feed(&frame(3, 1, &[0; 17]));
        assert_eq!(
            decoder.next(),
            Err(WireError::FrameTooLong { len: 17, max: 16 })
        );
    }

    #[test]
    fn the_buffer_is_bounded_by_one_frame() {
        let mut decoder = Decoder::new();
        let flood = vec![0; 3 * FRAME_BYTES_MAX];
        let room = FRAME_BYTES_MAX + FRAME_HEADER_BYTES;
        assert_eq!(decoder.feed(&flood), room);
        assert_eq!(decoder.feed(&flood), 0);
    }

    #[test]
    fn messages_stand_under_the_right_kind_of_id() {
        let stray = Envelope {
            transfer: TransferId([1; 16]),
            ..PING
        };
        let mut out = vec![9];
        assert_eq!(encode(&stray, &mut out), Err(EncodeError::Misplaced));
        assert_eq!(out, [9]);
        let mut decoder = Decoder::new();
        decoder.feed(&frame(Kind::Finish.to_wire(), 1, b""));
        assert_eq!(
            decoder.next(),
            Err(WireError::Misplaced { message: "Finish" })
        );
    }
}
