//! Headers on data connections: 64 bytes with a sequence number and a MAC, to and from messages.
//!
//! [`Sealer`] and [`Opener`] hold one direction's key and count. Opening trusts nothing: every
//! field is checked, after the MAC. Nothing here knows sockets, regions or what is outstanding.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::ids::RemoteKey;
use crate::limits::SEGMENT_BYTES_MAX;
use crate::transport::Refusal;

/// Length of every header, in bytes.
pub(super) const HEADER_BYTES: usize = 64;
/// How much of it the MAC covers.
const MACED_BYTES: usize = 48;

const KIND_READ: u8 = 1;
const KIND_DATA: u8 = 2;
const KIND_FAIL: u8 = 3;
const FLAG_LAST: u16 = 1;

/// A header, as it lies on the wire.
pub(super) type Header = [u8; HEADER_BYTES];

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Send me these bytes.
    Read {
        request: u64,
        key: RemoteKey,
        offset: u64,
        len: u64,
    },
    /// This many bytes follow.
    Data {
        request: u64,
        offset: u64,
        bytes: u32,
        last: bool,
    },
    /// The request won't be answered (any further).
    Fail { request: u64, refusal: Refusal },
}

/// The keys of a data connection, both new with it, derived from the session's secrets.
#[derive(Clone)]
pub struct ConnectionKeys {
    /// For what this end sends.
    pub send: [u8; 32],
    /// For what it receives.
    pub receive: [u8; 32],
}

impl std::fmt::Debug for ConnectionKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConnectionKeys(..)")
    }
}

/// One direction's MAC and message count.
struct Channel {
    /// Keyed; cloned for each message, which saves hashing the key again.
    mac: Hmac<Sha256>,
    sequence: u64,
}

impl Channel {
    fn new(key: &[u8; 32]) -> Self {
        let mac = Hmac::new_from_slice(key).expect("HMAC takes keys of any length");
        Self { mac, sequence: 0 }
    }

    fn mac(&self, header: &Header) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(&header[..MACED_BYTES]);
        mac
    }

    fn advance(&mut self) -> Result<(), &'static str> {
        self.sequence = self
            .sequence
            .checked_add(1)
            .ok_or("the sequence numbers are used up")?;
        Ok(())
    }
}

/// Makes headers.
pub(super) struct Sealer(Channel);

impl Sealer {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        Self(Channel::new(key))
    }

    /// The header for the next message of this direction.
    pub(super) fn seal(&mut self, message: Message) -> Result<Header, &'static str> {
        let mut header = encode(message, self.0.sequence);
        let mac = self.0.mac(&header).finalize().into_bytes();
        header[MACED_BYTES..].copy_from_slice(&mac[..HEADER_BYTES - MACED_BYTES]);
        self.0.advance()?;
        Ok(header)
    }
}

/// Reads headers.
pub(super) struct Opener(Channel);

impl Opener {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        Self(Channel::new(key))
    }

    /// What the next header of this direction says, or how it breaks the protocol.
    pub(super) fn open(&mut self, header: &Header) -> Result<Message, &'static str> {
        self.0
            .mac(header)
            .verify_truncated_left(&header[MACED_BYTES..])
            .map_err(|_| "a header's MAC is wrong")?;
        if u64_at(header, 8) != self.0.sequence {
            return Err("a header's sequence number is wrong");
        }
        self.0.advance()?;
        decode(header)
    }
}

fn encode(message: Message, sequence: u64) -> Header {
    let (kind, status, flags, bytes, request, key, offset, len) = match message {
        Message::Read {
            request,
            key,
            offset,
            len,
        } => (KIND_READ, 0, 0, 0, request, key.0, offset, len),
        Message::Data {
            request,
            offset,
            bytes,
            last,
        } => (
            KIND_DATA,
            0,
            if last { FLAG_LAST } else { 0 },
            bytes,
            request,
            0,
            offset,
            0,
        ),
        Message::Fail { request, refusal } => (KIND_FAIL, code(refusal), 0, 0, request, 0, 0, 0),
    };
    let mut header = [0; HEADER_BYTES];
    header[0] = kind;
    header[1] = status;
    header[2..4].copy_from_slice(&flags.to_le_bytes());
    header[4..8].copy_from_slice(&bytes.to_le_bytes());
    for (index, number) in [sequence, request, key, offset, len]
        .into_iter()
        .enumerate()
    {
        let at = 8 + 8 * index;
        header[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    header
}

fn decode(header: &Header) -> Result<Message, &'static str> {
    let status = header[1];
    let flags = u16::from_le_bytes([header[2], header[3]]);
    let bytes = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    let [request, key, offset, len] = [16, 24, 32, 40].map(|at| u64_at(header, at));
    match header[0] {
        KIND_READ => {
            if status != 0 || flags != 0 || bytes != 0 {
                return Err("a READ has fields set that it must not have");
            }
            if len == 0 {
                return Err("a READ asks for nothing");
            }
            Ok(Message::Read {
                request,
                key: RemoteKey(key),
                offset,
                len,
            })
        }
        KIND_DATA => {
            if status != 0 || flags & !FLAG_LAST != 0 || key != 0 || len != 0 {
                return Err("a DATA has fields set that it must not have");
            }
            if bytes == 0 || bytes > SEGMENT_BYTES_MAX {
                return Err("a DATA's payload is empty or too long");
            }
            Ok(Message::Data {
                request,
                offset,
                bytes,
                last: flags == FLAG_LAST,
            })
        }
        KIND_FAIL => {
            if flags != 0 || bytes != 0 || key != 0 || offset != 0 || len != 0 {
                return Err("a FAIL has fields set that it must not have");
            }
            let refusal = refusal(status).ok_or("a FAIL's code is unknown")?;
            Ok(Message::Fail { request, refusal })
        }
        _ => Err("a header's kind is unknown"),
    }
}

const fn code(refusal: Refusal) -> u8 {
    match refusal {
        Refusal::UnknownKey => 1,
        Refusal::OutOfRange => 2,
        // Only adapters refuse access, and those have no headers.
        Refusal::SourceFailed | Refusal::Access => 3,
    }
}

const fn refusal(code: u8) -> Option<Refusal> {
    match code {
        1 => Some(Refusal::UnknownKey),
        2 => Some(Refusal::OutOfRange),
        3 => Some(Refusal::SourceFailed),
        _ => None,
    }
}

fn u64_at(header: &Header, at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&header[at..at + 8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: [u8; 32] = [7; 32];

    fn message() -> impl Strategy<Value = Message> {
        let refusals = [
            Refusal::UnknownKey,
            Refusal::OutOfRange,
            Refusal::SourceFailed,
        ]
        .map(Just)
        .to_vec();
        prop_oneof![
            (any::<u64>(), any::<u64>(), any::<u64>(), 1u64..).prop_map(
                |(request, key, offset, len)| {
                    Message::Read {
                        request,
                        key: RemoteKey(key),
                        offset,
                        len,
                    }
                }
            ),
            (
                any::<u64>(),
                any::<u64>(),
                1..=SEGMENT_BYTES_MAX,
                any::<bool>()
            )
                .prop_map(|(request, offset, bytes, last)| Message::Data {
                    request,
                    offset,
                    bytes,
                    last
                }),
            (any::<u64>(), proptest::strategy::Union::new(refusals))
                .prop_map(|(request, refusal)| Message::Fail { request, refusal }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens(messages in proptest::collection::vec(message(), 1..8)) {
            let (mut sealer, mut opener) = (Sealer::new(&KEY), Opener::new(&KEY));
            for message in messages {
                let header = sealer.seal(message).unwrap();
                prop_assert_eq!(opener.open(&header), Ok(message));
            }
        }

        #[test]
        fn any_flipped_bit_is_found(message in message(), bit in 0..HEADER_BYTES * 8) {
            let mut header = Sealer::new(&KEY).seal(message).unwrap();
            header[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Opener::new(&KEY).open(&header).is_err());
        }

        #[test]
        fn decoding_never_panics(bytes in any::<[u8; 32]>(), rest in any::<[u8; 32]>()) {
            let mut header = [0; HEADER_BYTES];
            header[..32].copy_from_slice(&bytes);
            header[32..].copy_from_slice(&rest);
            header[0] %= 4;
            let _ = decode(&header);
        }
    }

    #[test]
    fn replays_and_other_keys_are_refused() {
        let message = Message::Read {
            request: 1,
            key: RemoteKey(2),
            offset: 3,
            len: 4,
        };
        let header = Sealer::new(&KEY).seal(message).unwrap();
        let mut opener = Opener::new(&KEY);
        assert!(opener.open(&header).is_ok());
        assert_eq!(
            opener.open(&header),
            Err("a header's sequence number is wrong")
        );
        assert_eq!(
            Opener::new(&[8; 32]).open(&header),
            Err("a header's MAC is wrong")
        );
    }
}
