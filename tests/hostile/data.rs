//! Data connections as FORMAT.md draws them, with every field in the hands of the test.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use hmac::{Hmac, KeyInit, Mac};
use rdcp::ids::SessionId;
use sha2::Sha256;

use super::{Hostile, tcp};

const READ: u8 = 1;
const DATA: u8 = 2;
const FAIL: u8 = 3;
const LAST: u16 = 1;
const SEGMENT_BYTES: usize = 256 << 10;

/// One data connection.
pub(crate) struct Data {
    pub(crate) stream: TcpStream,
    send: [u8; 32],
    pub(crate) sequence: u64,
    /// Flipped in every MAC that is sent.
    pub(crate) spoil: u8,
}

/// What a client sends to open one.
pub(crate) struct Opening {
    pub(crate) hello: Vec<u8>,
    pub(crate) proof: Vec<u8>,
}

fn prove(key: &[u8; 32], label: &[u8; 32], seen: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length does");
    mac.update(label);
    for part in seen {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

pub(crate) fn hello(session: SessionId) -> Vec<u8> {
    let mut hello = b"RDCPDATA\x01\0\0\0".to_vec();
    hello.extend(session.0.to_le_bytes());
    hello.extend([7; 32]);
    hello
}

impl Data {
    /// One of this session.
    pub(crate) fn open(of: &Hostile) -> io::Result<Self> {
        Self::open_as(of.server(), of.session(), &of.key()).map(|(data, _)| data)
    }

    /// One of any session, under any key; and what was sent for it.
    pub(crate) fn open_as(
        server: SocketAddr,
        session: SessionId,
        key: &[u8; 32],
    ) -> io::Result<(Self, Opening)> {
        let mut stream = tcp(server, None);
        let hello = hello(session);
        stream.write_all(&hello)?;
        let mut answer = [0; 64];
        stream.read_exact(&mut answer)?;
        let nonce = &answer[..32];
        let proof = prove(key, b"rdcp/1 data: proof of the client", &[&hello, nonce]);
        stream.write_all(&proof)?;
        let send = prove(key, b"rdcp/1 data: key, client sends  ", &[&hello, nonce]);
        let opening = Opening {
            hello,
            proof: proof.to_vec(),
        };
        Ok((Self::new(stream, send), opening))
    }

    /// The server's end of one.
    pub(super) fn accept(mut stream: TcpStream, key: &[u8; 32]) -> io::Result<Self> {
        let mut hello = [0; 52];
        stream.read_exact(&mut hello)?;
        let nonce = [9; 32];
        let proof = prove(key, b"rdcp/1 data: proof of the server", &[&hello, &nonce]);
        stream.write_all(&[nonce, proof].concat())?;
        let mut theirs = [0; 32];
        stream.read_exact(&mut theirs)?;
        let expected = prove(key, b"rdcp/1 data: proof of the client", &[&hello, &nonce]);
        if theirs != expected {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let send = prove(key, b"rdcp/1 data: key, server sends  ", &[&hello, &nonce]);
        Ok(Self::new(stream, send))
    }

    fn new(stream: TcpStream, send: [u8; 32]) -> Self {
        Self {
            stream,
            send,
            sequence: 0,
            spoil: 0,
        }
    }

    /// Sends a header: kind, status, flags, bytes behind it, then request, key, offset and length.
    pub(crate) fn header(
        &mut self,
        kind: u8,
        status: u8,
        flags: u16,
        bytes: u32,
        numbers: [u64; 4],
    ) -> io::Result<()> {
        let mut header = vec![kind, status];
        header.extend(flags.to_le_bytes());
        header.extend(bytes.to_le_bytes());
        header.extend(self.sequence.to_le_bytes());
        for number in numbers {
            header.extend(number.to_le_bytes());
        }
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.send).expect("any length does");
        mac.update(&header);
        header.extend(&mac.finalize().into_bytes()[..16]);
        header[63] ^= self.spoil;
        self.sequence += 1;
        self.stream.write_all(&header)
    }

    pub(crate) fn read(&mut self, request: u64, key: u64, offset: u64, len: u64) -> io::Result<()> {
        self.header(READ, 0, 0, 0, [request, key, offset, len])
    }

    /// The next header from the other end, with what follows it.
    pub(crate) fn hear(&mut self) -> io::Result<([u8; 64], Vec<u8>)> {
        let mut header = [0; 64];
        self.stream.read_exact(&mut header)?;
        let mut bytes = Vec::new();
        if header[0] == DATA {
            let len = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
            bytes = vec![0; len as usize];
            self.stream.read_exact(&mut bytes)?;
        }
        Ok((header, bytes))
    }

    /// Whether the other end refuses a READ; an error if it ends the connection.
    pub(crate) fn is_refused(&mut self) -> io::Result<bool> {
        let (header, _) = self.hear()?;
        Ok(header[0] == FAIL)
    }

    /// Whether the other end closes it.
    pub(crate) fn is_closed(&mut self) -> bool {
        loop {
            match self.hear() {
                Ok(_) => {}
                Err(error) => {
                    let waits = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
                    return !waits.contains(&error.kind());
                }
            }
        }
    }

    /// Answers one READ with the bytes of `content` there; refuses what is not in it.
    pub(super) fn serve_one(&mut self, key: u64, content: &[u8]) -> io::Result<()> {
        let (header, _) = self.hear()?;
        let number =
            |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let (request, asked_key, offset, len) = (number(16), number(24), number(32), number(40));
        let range = usize::try_from(offset)
            .ok()
            .zip(usize::try_from(offset.saturating_add(len)).ok());
        let bytes = range.and_then(|(start, end)| content.get(start..end));
        let Some(bytes) = bytes.filter(|_| asked_key == key) else {
            return self.header(FAIL, 1, 0, 0, [request, 0, 0, 0]);
        };
        let mut at = 0;
        for segment in bytes.chunks(SEGMENT_BYTES) {
            let end = at + segment.len();
            let flags = if end == bytes.len() { LAST } else { 0 };
            let len = u32::try_from(segment.len()).expect("a segment is small");
            self.header(DATA, 0, flags, len, [request, 0, offset + at as u64, 0])?;
            self.stream.write_all(segment)?;
            at = end;
        }
        Ok(())
    }
}
