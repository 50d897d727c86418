//! A server that real clients connect to, and that says what a test wants.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rdcp::TransferId;
use rdcp::ids::SessionId;
use rdcp::session::own_key::OwnKey;
use rdcp::session::tls;
use rdcp::wire::Message;
use rdcp::wire::message::{Open, TransportOffer, Welcome};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::data::Data;
use super::make::KEY;
use super::{Heard, Hostile, Tls};
use crate::common::DEADLINE;

const SESSION: SessionId = SessionId(0x0bad);
/// First byte of a TLS record that begins a handshake.
const TLS_HANDSHAKE: u8 = 22;

/// What a server does in one session.
type Script = dyn Fn(&mut Hostile) + Send + Sync;

/// It listens until the test ends; its threads sleep in the kernel then.
pub(crate) struct HostileServer {
    address: SocketAddr,
}

struct Shared {
    config: Arc<ServerConfig>,
    script: Box<Script>,
    content: Vec<u8>,
    /// The key of the session that began last.
    key: Mutex<Option<[u8; 32]>>,
}

impl HostileServer {
    /// Runs `script` in each session. READs under [`KEY`] are answered out of `content`, honestly.
    pub(crate) fn start(
        content: Vec<u8>,
        script: impl Fn(&mut Hostile) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let address = listener.local_addr().expect("it listens");
        let key = OwnKey::ephemeral().expect("a key");
        let shared = Arc::new(Shared {
            config: tls::server_config(&key, tls::ClientKeys::Unasked).expect("a configuration"),
            script: Box::new(script),
            content,
            key: Mutex::new(None),
        });
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                thread::spawn(move || connection(&shared, stream));
            }
        });
        Self { address }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

fn connection(shared: &Shared, stream: TcpStream) {
    stream.set_read_timeout(Some(DEADLINE)).expect("not zero");
    stream.set_write_timeout(Some(DEADLINE)).expect("not zero");
    stream.set_nodelay(true).expect("it is TCP");
    let mut first = [0];
    if !matches!(stream.peek(&mut first), Ok(1)) {
        return;
    }
    if first == [TLS_HANDSHAKE] {
        control(shared, stream);
        return;
    }
    let key = *shared.key.lock().expect("no holder panics");
    let Some(key) = key else { return };
    let Ok(mut data) = Data::accept(stream, &key) else {
        return;
    };
    while data.serve_one(KEY, &shared.content).is_ok() {}
}

fn control(shared: &Shared, stream: TcpStream) {
    let address = stream.local_addr().expect("it is connected");
    let connection = ServerConnection::new(Arc::clone(&shared.config)).expect("a connection");
    let mut stream = StreamOwned::new(connection, stream);
    while stream.conn.is_handshaking() {
        if stream.conn.complete_io(&mut stream.sock).is_err() {
            return;
        }
    }
    let mut hostile = Hostile::new(Tls::Server(stream), address);
    hostile.session = SESSION;
    if !matches!(hostile.hear(DEADLINE), Heard::Said(_, Message::Hello(_))) {
        return;
    }
    *shared.key.lock().expect("no holder panics") = Some(hostile.key());
    hostile.say(
        TransferId::NONE,
        Message::Welcome(Welcome {
            level: 1,
            session: SESSION,
            epoch: 1,
            software: "hostile".to_owned(),
            data_connections_max: 4,
            transports: vec![TransportOffer {
                name: "tcp".to_owned(),
                available: true,
                reason: String::new(),
            }],
        }),
    );
    (shared.script)(&mut hostile);
    // What was said is to be read before the end.
    while matches!(hostile.hear(Duration::from_secs(30)), Heard::Said(..)) {}
}

impl Hostile {
    /// As a server: waits for a client to begin a transfer, and lets it.
    pub(crate) fn opened(&mut self) -> Option<(TransferId, Open)> {
        loop {
            match self.hear(DEADLINE) {
                Heard::Said(transfer, Message::Open(open)) => {
                    self.say(transfer, Message::Opened);
                    return Some((transfer, open));
                }
                Heard::Said(..) => {}
                Heard::Ended | Heard::Silence => return None,
            }
        }
    }

    /// As a server: waits until the client wants something; `false` if it goes instead.
    pub(crate) fn wanted(&mut self) -> bool {
        loop {
            match self.hear(DEADLINE) {
                Heard::Said(_, Message::Want(_)) => return true,
                Heard::Said(_, Message::Failed(_) | Message::Goodbye(_)) => return false,
                Heard::Said(..) => {}
                Heard::Ended | Heard::Silence => return false,
            }
        }
    }
}
