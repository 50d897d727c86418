//! A peer that says what a test tells it to, over a plain blocking socket.

use std::io::Read;
use std::net::TcpStream;

use super::header::{ConnectionKeys, HEADER_BYTES, Header, Message, Opener, Sealer};
use crate::ids::RemoteKey;
use crate::transport::Refusal;

/// One end's keys, counts and request numbers.
pub(crate) struct Scripted {
    sealer: Sealer,
    opener: Opener,
    request_next: u64,
}

impl Scripted {
    pub(crate) fn new(keys: &ConnectionKeys) -> Self {
        let (sealer, opener) = (Sealer::new(&keys.send), Opener::new(&keys.receive));
        Self {
            sealer,
            opener,
            request_next: 0,
        }
    }

    /// A READ, valid or not.
    pub(crate) fn read(&mut self, key: RemoteKey, offset: u64, len: u64) -> Header {
        let request = self.request_next;
        self.request_next += 1;
        self.sealer
            .seal(Message::Read {
                request,
                key,
                offset,
                len,
            })
            .unwrap()
    }

    /// The header of a DATA.
    pub(crate) fn data(&mut self, request: u64, offset: u64, bytes: u32, last: bool) -> Header {
        self.sealer
            .seal(Message::Data {
                request,
                offset,
                bytes,
                last,
            })
            .unwrap()
    }

    /// Reads one header; the code if it is a FAIL.
    pub(crate) fn refusal(&mut self, socket: &mut TcpStream) -> Option<Refusal> {
        match self.message(socket) {
            Message::Fail { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// Reads one DATA and appends its payload.
    pub(crate) fn segment(&mut self, socket: &mut TcpStream, payload: &mut Vec<u8>) {
        let Message::Data { bytes, .. } = self.message(socket) else {
            panic!("not DATA")
        };
        let start = payload.len();
        payload.resize(start + bytes as usize, 0);
        socket.read_exact(&mut payload[start..]).unwrap();
    }

    fn message(&mut self, socket: &mut TcpStream) -> Message {
        let mut header = [0; HEADER_BYTES];
        socket.read_exact(&mut header).unwrap();
        self.opener.open(&header).unwrap()
    }
}
