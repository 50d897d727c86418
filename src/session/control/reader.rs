//! The reading half: bytes off the connection, envelopes out.

use std::io;
use std::ops::Range;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadHalf, WriteHalf};

use crate::session::control::ControlError;
use crate::session::tls;
use crate::wire::{Decoder, Envelope};

/// Bytes asked of the connection at once: the largest TLS record.
const READ_BYTES: usize = 16 << 10;

/// Yields what the peer says. Whoever holds it must keep asking: everything that costs memory was
/// sent against credit, so there is never a reason to stop, and liveness hangs on it.
pub struct ControlReader<R> {
    io: R,
    decoder: Decoder,
    chunk: Box<[u8]>,
    /// The part of the chunk that the decoder had no room for yet.
    unfed: Range<usize>,
}

impl<R: AsyncRead + Unpin> ControlReader<R> {
    /// Reads from `io`, going on where `decoder` stands.
    pub(super) fn new(io: R, decoder: Decoder) -> Self {
        Self {
            io,
            decoder,
            chunk: vec![0; READ_BYTES].into_boxed_slice(),
            unfed: 0..0,
        }
    }

    /// The next message; `None` once the peer has closed in good order. May be dropped while it
    /// waits without losing anything.
    pub async fn next(&mut self) -> Result<Option<Envelope>, ControlError> {
        loop {
            if let Some(envelope) = self.decoder.next()? {
                return Ok(Some(envelope));
            }
            if self.unfed.is_empty() {
                let len = self
                    .io
                    .read(&mut self.chunk)
                    .await
                    .map_err(|error| ControlError::Lost(tls::without_goodbye(error)))?;
                if len == 0 {
                    return self.ended();
                }
                self.unfed = 0..len;
            }
            self.unfed.start += self.decoder.feed(&self.chunk[self.unfed.clone()]);
        }
    }

    fn ended(&self) -> Result<Option<Envelope>, ControlError> {
        if self.decoder.is_between_frames() {
            return Ok(None);
        }
        let cut = io::ErrorKind::UnexpectedEof.into();
        Err(ControlError::Lost(tls::without_goodbye(cut)))
    }

    /// The connection itself.
    pub(super) fn io(&self) -> &R {
        &self.io
    }

    /// The connection itself, for what is said before the two halves part.
    pub(super) fn io_mut(&mut self) -> &mut R {
        &mut self.io
    }
}

impl<S: AsyncRead + AsyncWrite> ControlReader<S> {
    /// Parts the connection: the reader goes on where it stands, with frames of any length.
    pub(super) fn part(mut self) -> (ControlReader<ReadHalf<S>>, WriteHalf<S>) {
        self.decoder.lift_limit();
        let (reading, writing) = tokio::io::split(self.io);
        let Self {
            decoder,
            chunk,
            unfed,
            ..
        } = self;
        (
            ControlReader {
                io: reading,
                decoder,
                chunk,
                unfed,
            },
            writing,
        )
    }
}
