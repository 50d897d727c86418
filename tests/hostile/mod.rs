//! A peer that breaks the rules: it speaks real TLS and the real wire format, and says whatever a
//! test wants, as a client or as a server.
//!
//! In: what to say. Out: what the other end answers. What data connections say is made here from
//! the drawing in `FORMAT.md`, not by the library's own code, so that both check each other.
//! Everything blocks, each wait has a deadline, and nothing here judges an answer.

// Each test program uses its own part of this.
#![allow(dead_code)]

pub(crate) mod data;
pub(crate) mod make;
pub(crate) mod server;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rdcp::TransferId;
use rdcp::ids::SessionId;
use rdcp::session::tls;
use rdcp::wire::message::{Hello, Welcome};
use rdcp::wire::{Decoder, Envelope, Fault, FaultCode, Message, encode};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};

use crate::common::DEADLINE;

/// The exporter's label for the key of data connections.
const EXPORTER_LABEL: &[u8] = b"EXPORTER-rdcp data connections";

/// One control connection, from either end.
pub(crate) struct Hostile {
    tls: Tls,
    decoder: Decoder,
    unfed: Vec<u8>,
    session: SessionId,
    server: SocketAddr,
}

enum Tls {
    Client(StreamOwned<ClientConnection, TcpStream>),
    Server(StreamOwned<ServerConnection, TcpStream>),
}

/// What came of waiting for the other end.
#[derive(Debug)]
pub(crate) enum Heard {
    Said(TransferId, Message),
    /// It closed the connection.
    Ended,
    /// Nothing, for as long as was waited.
    Silence,
}

/// A TCP connection to `server`, from an address of one's own if that is named.
pub(crate) fn tcp(server: SocketAddr, from: Option<IpAddr>) -> TcpStream {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
    let stream = match from {
        None => TcpStream::connect(server).expect("it listens"),
        Some(from) => {
            let socket = socket_with(
                AddressFamily::INET,
                SocketType::STREAM,
                SocketFlags::CLOEXEC,
                None,
            )
            .expect("a socket");
            bind(&socket, &SocketAddr::new(from, 0)).expect("loopback is ours");
            connect(&socket, &server).expect("it listens");
            TcpStream::from(socket)
        }
    };
    stream.set_nodelay(true).expect("it is TCP");
    stream.set_read_timeout(Some(DEADLINE)).expect("not zero");
    stream.set_write_timeout(Some(DEADLINE)).expect("not zero");
    stream
}

impl Hostile {
    /// A TLS connection to a daemon on which nothing was said yet.
    pub(crate) fn begin(server: SocketAddr, from: Option<IpAddr>) -> Self {
        let config = tls::client_config(None).expect("a configuration");
        let name = ServerName::try_from("rdcp").expect("a name");
        let connection = ClientConnection::new(config, name).expect("a connection");
        let mut stream = StreamOwned::new(connection, tcp(server, from));
        while stream.conn.is_handshaking() {
            let done = stream.conn.complete_io(&mut stream.sock);
            done.expect("the handshake is done");
        }
        Self::new(Tls::Client(stream), server)
    }

    /// A session with a daemon.
    pub(crate) fn connect(server: SocketAddr) -> Self {
        Self::connect_from(server, None).expect("it is welcome")
    }

    /// A session with a daemon, or why there is none.
    pub(crate) fn connect_from(server: SocketAddr, from: Option<IpAddr>) -> Result<Self, Fault> {
        Self::begin(server, from).greet(1)
    }

    /// A session with a daemon, at the highest level up to this one.
    pub(crate) fn connect_at(server: SocketAddr, level_max: u16) -> Self {
        let greeted = Self::begin(server, None).greet(level_max);
        greeted.expect("it is welcome")
    }

    fn greet(mut self, level_max: u16) -> Result<Self, Fault> {
        self.say(
            TransferId::NONE,
            Message::Hello(Hello {
                level_min: 1,
                level_max,
                software: "hostile".to_owned(),
            }),
        );
        match self.hear(DEADLINE) {
            Heard::Said(_, Message::Welcome(Welcome { session, .. })) => {
                self.session = session;
                Ok(self)
            }
            Heard::Said(_, Message::Goodbye(fault)) => Err(fault),
            other => panic!("instead of a welcome: {other:?}"),
        }
    }

    fn new(tls: Tls, server: SocketAddr) -> Self {
        Self {
            tls,
            decoder: Decoder::new(),
            unfed: Vec::new(),
            session: SessionId(0),
            server,
        }
    }

    /// Says it. That the other end has closed meanwhile is seen when it is heard.
    pub(crate) fn say(&mut self, transfer: TransferId, message: Message) {
        let mut bytes = Vec::new();
        encode(&Envelope { transfer, message }, &mut bytes).expect("it can be said");
        self.write(&bytes);
    }

    /// Writes bytes that need not be a message.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream().0.write_all(bytes);
        let _ = self.stream().0.flush();
    }

    /// What the other end says next. Its Pings are answered.
    pub(crate) fn hear(&mut self, patience: Duration) -> Heard {
        let until = Instant::now() + patience;
        loop {
            match self.decoder.next() {
                Ok(Some(Envelope { transfer, message })) => {
                    if let Message::Ping { nonce } = message {
                        self.say(TransferId::NONE, Message::Pong { nonce });
                        continue;
                    }
                    return Heard::Said(transfer, message);
                }
                Ok(None) => {}
                Err(error) => panic!("the other end breaks the format: {error}"),
            }
            if self.unfed.is_empty() {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Heard::Silence;
                }
                let (stream, socket) = self.stream();
                socket.set_read_timeout(Some(left)).expect("not zero");
                let mut bytes = vec![0; 64 << 10];
                match stream.read(&mut bytes) {
                    Ok(0) => return Heard::Ended,
                    Ok(len) => self.unfed = bytes[..len].to_vec(),
                    Err(error)
                        if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                    {
                        return Heard::Silence;
                    }
                    // A reset is an end too, and TLS tells an end without its goodbye as an error.
                    Err(_) => return Heard::Ended,
                }
            }
            let fed = self.decoder.feed(&self.unfed);
            self.unfed.drain(..fed);
        }
    }

    /// Hears until something of `transfer` is what `wanted` looks for; an end is a failed test.
    #[track_caller]
    pub(crate) fn expect<T>(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(TransferId, Message) -> Option<T>,
    ) -> T {
        loop {
            match self.hear(DEADLINE) {
                Heard::Said(transfer, message) => {
                    let shown = format!("{message:?}");
                    if let Some(found) = wanted(transfer, message) {
                        return found;
                    }
                    assert!(
                        !shown.starts_with("Goodbye"),
                        "instead of {what} came {shown}"
                    );
                }
                other => panic!("instead of {what} came {other:?}"),
            }
        }
    }

    /// Why the other end gave up the transfer, or the whole session; `None` if it ended the session
    /// without a word.
    #[track_caller]
    pub(crate) fn given_up(&mut self) -> Option<Fault> {
        match self.given_up_within(DEADLINE) {
            Heard::Said(_, Message::Failed(fault) | Message::Goodbye(fault)) => Some(fault),
            Heard::Ended => None,
            _ => panic!("the other end does not give up"),
        }
    }

    /// The same, or silence.
    pub(crate) fn given_up_within(&mut self, patience: Duration) -> Heard {
        loop {
            let heard = self.hear(patience);
            let goes_on = match &heard {
                Heard::Said(_, message) => {
                    !matches!(message, Message::Failed(_) | Message::Goodbye(_))
                }
                Heard::Ended | Heard::Silence => false,
            };
            if !goes_on {
                return heard;
            }
        }
    }

    /// Whether the other end still answers, after all that was said to it.
    pub(crate) fn is_answered(&mut self) -> bool {
        let nonce = 0xfeed;
        self.say(TransferId::NONE, Message::Ping { nonce });
        loop {
            match self.hear(DEADLINE) {
                Heard::Said(_, Message::Pong { nonce: 0xfeed }) => return true,
                Heard::Said(_, Message::Goodbye(_)) | Heard::Ended => return false,
                Heard::Said(..) => {}
                Heard::Silence => panic!("the other end neither answers nor ends"),
            }
        }
    }

    /// Ends it in the middle of whatever was being said.
    pub(crate) fn cut(mut self) {
        let _ = self.stream().1.shutdown(std::net::Shutdown::Both);
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// The daemon's address.
    pub(crate) fn server(&self) -> SocketAddr {
        self.server
    }

    /// The secret of its data connections.
    pub(crate) fn key(&self) -> [u8; 32] {
        self.key_for(self.session)
    }

    /// What this connection would have for a secret if its session had that name.
    pub(crate) fn key_for(&self, session: SessionId) -> [u8; 32] {
        let context = session.0.to_le_bytes();
        let exported = match &self.tls {
            Tls::Client(stream) => {
                stream
                    .conn
                    .export_keying_material([0; 32], EXPORTER_LABEL, Some(&context))
            }
            Tls::Server(stream) => {
                stream
                    .conn
                    .export_keying_material([0; 32], EXPORTER_LABEL, Some(&context))
            }
        };
        exported.expect("the handshake is done")
    }

    fn stream(&mut self) -> (&mut dyn ReadWrite, TcpStream) {
        match &mut self.tls {
            Tls::Client(stream) => {
                let socket = stream.sock.try_clone().expect("a descriptor");
                (stream, socket)
            }
            Tls::Server(stream) => {
                let socket = stream.sock.try_clone().expect("a descriptor");
                (stream, socket)
            }
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// The fault of a peer that was caught.
pub(crate) fn is_protocol(fault: &Fault) -> bool {
    fault.code == FaultCode::Protocol
}
