//! Both ends over real loopback sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::ids::{SessionId, TransferId};
use crate::session::control::{
    ClientControl, ConnectOptions, ControlError, Greeted, Greeting, ServerControl, connect, greet,
};
use crate::session::data::{
    ConnectionKind, DataConnection, DataError, SessionKey, accept_data, classify, open_data,
};
use crate::session::own_key::OwnKey;
use crate::session::known_hosts::{HostDecision, HostPort, HostTrust, KnownHosts};
use crate::session::tls;
use crate::wire::level::LEVEL_MAX;
use crate::wire::message::Envelope;
use crate::wire::{Fault, FaultCode, Message};

const SESSION: SessionId = SessionId(0x0102_0304_0506_0708);
/// For peers that stall: long enough for nothing else, short enough to wait for.
const SHORT: Duration = Duration::from_millis(50);
/// For everything that must not hang on it.
const LONG: Duration = Duration::from_secs(60);

struct Server {
    address: SocketAddr,
    key: OwnKey,
    listener: TcpListener,
}

impl Server {
    async fn start() -> Self {
        Self::with_key(OwnKey::ephemeral().unwrap()).await
    }

    async fn with_key(key: OwnKey) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            key,
            listener,
        }
    }

    fn host(&self) -> HostPort {
        HostPort::new("127.0.0.1", self.address.port())
    }

    async fn stream(&self) -> TcpStream {
        self.listener.accept().await.unwrap().0
    }

    async fn greet(&self, deadline: Duration) -> Result<Greeted, ControlError> {
        let config = tls::server_config(&self.key).unwrap();
        greet(self.stream().await, config, deadline).await
    }

    async fn welcome(&self) -> Result<(ServerControl, SessionKey), ControlError> {
        let greeted = self.greet(LONG).await?;
        let key = greeted.session_key(SESSION)?;
        Ok((greeted.welcome(greeting()).await?, key))
    }
}

fn greeting() -> Greeting {
    Greeting {
        session: SESSION,
        epoch: 7,
        software: "rdcpd test".into(),
        data_connections_max: 8,
        transports: Vec::new(),
    }
}

struct Client {
    options: ConnectOptions,
    asked: Arc<AtomicUsize>,
    _directory: tempfile::TempDir,
}

impl Client {
    fn new(decision: HostDecision) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let policy = move |trust: &HostTrust| {
            assert!(matches!(trust, HostTrust::Unknown { .. }), "{trust:?}");
            counter.fetch_add(1, Ordering::Relaxed);
            decision
        };
        let options = ConnectOptions {
            software: "rdcp test".into(),
            known_hosts: KnownHosts::new(directory.path().join("known_hosts")),
            policy: Arc::new(policy),
            deadline: LONG,
        };
        Self {
            options,
            asked,
            _directory: directory,
        }
    }

    async fn connect(&self, server: &Server) -> Result<ClientControl, ControlError> {
        connect(&server.host(), &self.options).await
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

fn session(nonce: u64) -> Envelope {
    Envelope {
        transfer: TransferId::NONE,
        message: Message::Ping { nonce },
    }
}

fn transfer(message: Message) -> Envelope {
    Envelope {
        transfer: TransferId([9; 16]),
        message,
    }
}

async fn pair() -> (ClientControl, ServerControl, SessionKey, Server) {
    let server = Server::start().await;
    let client = Client::new(HostDecision::AcceptOnce);
    let (near, far) = tokio::join!(client.connect(&server), server.welcome());
    let (far, key) = far.unwrap();
    (near.unwrap(), far, key, server)
}

#[tokio::test]
async fn both_ends_know_each_other_after_the_greeting() {
    let (client, server, key, listening) = pair().await;
    assert_eq!(client.welcome.session, SESSION);
    assert_eq!(client.welcome.level, LEVEL_MAX);
    assert_eq!(client.welcome.software, "rdcpd test");
    assert_eq!(server.hello.software, "rdcp test");
    assert_eq!(server.level, LEVEL_MAX);
    assert!(client.key == key);
    assert_eq!(client.fingerprint, listening.key.fingerprint());
    assert_eq!(client.peer, listening.address);
}

#[tokio::test]
async fn messages_travel_both_ways_and_the_end_is_told() {
    let (mut client, mut server, ..) = pair().await;
    let long = transfer(Message::Close((0..512).map(crate::ids::EntryId).collect()));
    for nonce in 0..100 {
        client.writer.send(&session(nonce)).unwrap();
        server.writer.send(&long).unwrap();
    }
    for nonce in 0..100 {
        assert_eq!(server.reader.next().await.unwrap(), Some(session(nonce)));
        assert_eq!(client.reader.next().await.unwrap().as_ref(), Some(&long));
    }
    client.writer.close().await;
    assert_eq!(server.reader.next().await.unwrap(), None);
    assert!(matches!(
        client.writer.send(&session(0)),
        Err(ControlError::Closed)
    ));
    // The other direction is still open until its own end closes it.
    server.writer.send(&long).unwrap();
    drop(server.writer);
    assert_eq!(client.reader.next().await.unwrap(), Some(long));
    assert_eq!(client.reader.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_connection_that_is_cut_is_a_loss_and_no_end() {
    let (mut client, server, ..) = pair().await;
    server.writer.abort();
    server.writer.closed().await;
    drop(server.reader);
    assert!(matches!(
        client.reader.next().await,
        Err(ControlError::Lost(_))
    ));
}

#[tokio::test]
async fn a_host_is_asked_about_once_and_then_known() {
    let server = Server::start().await;
    let client = Client::new(HostDecision::Remember);
    for _ in 0..2 {
        let (near, far) = tokio::join!(client.connect(&server), server.welcome());
        near.unwrap();
        far.unwrap();
    }
    assert_eq!(client.asked(), 1);
}

#[tokio::test]
async fn a_server_that_did_not_wait_for_the_decision_is_connected_anew() {
    let server = Server::start().await;
    let client = Client::new(HostDecision::AcceptOnce);
    let impatient = async {
        // Past TLS, then gone, as if the greeting had taken too long.
        let config = tls::server_config(&server.key).unwrap();
        let stream = server.stream().await;
        drop(
            tokio_rustls::TlsAcceptor::from(config)
                .accept(stream)
                .await
                .unwrap(),
        );
        server.welcome().await
    };
    let (near, far) = tokio::join!(client.connect(&server), impatient);
    near.unwrap();
    far.unwrap();
    assert_eq!(client.asked(), 1);
}

/// Shows one key's certificate and signs with another.
#[derive(Debug)]
struct Impostor(Arc<rustls::sign::CertifiedKey>);

impl rustls::server::ResolvesServerCert for Impostor {
    fn resolve(
        &self,
        _hello: rustls::server::ClientHello<'_>,
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

#[tokio::test]
async fn a_certificate_without_its_key_is_worth_nothing() {
    let server = Server::start().await;
    let thief = OwnKey::ephemeral().unwrap();
    let signing = rustls::crypto::ring::sign::any_supported_type(&thief.private_key()).unwrap();
    let stolen = rustls::sign::CertifiedKey::new(vec![server.key.certificate()], signing);
    let mut config = Arc::unwrap_or_clone(tls::server_config(&thief).unwrap());
    config.cert_resolver = Arc::new(Impostor(Arc::new(stolen)));

    let client = Client::new(HostDecision::Remember);
    let known = server.key.fingerprint();
    client
        .options
        .known_hosts
        .remember(&server.host(), &known)
        .unwrap();
    let greeting = async { greet(server.stream().await, Arc::new(config), LONG).await };
    let (near, far) = tokio::join!(client.connect(&server), greeting);
    let Err(ControlError::Tls(error)) = near else {
        panic!("not refused")
    };
    assert!(error.to_string().contains("BadSignature"), "{error}");
    assert!(far.is_err());
}

#[tokio::test]
async fn an_unknown_host_is_refused_before_anything_is_said() {
    let server = Server::start().await;
    let client = Client::new(HostDecision::Refuse);
    let (near, far) = tokio::join!(client.connect(&server), server.greet(LONG));
    let Err(ControlError::HostUnknown { fingerprint, .. }) = near else {
        panic!("not refused");
    };
    assert_eq!(fingerprint, server.key.fingerprint());
    assert!(matches!(
        far,
        Err(ControlError::Lost(_) | ControlError::Closed | ControlError::Tls(_))
    ));
}

#[tokio::test]
async fn a_changed_key_is_refused_with_both_fingerprints_and_without_asking() {
    let server = Server::start().await;
    let client = Client::new(HostDecision::Remember);
    let (accepted, other) = (
        OwnKey::ephemeral().unwrap().fingerprint(),
        server.key.fingerprint(),
    );
    client
        .options
        .known_hosts
        .remember(&server.host(), &accepted)
        .unwrap();
    let (near, far) = tokio::join!(client.connect(&server), server.greet(LONG));
    let Err(
        error @ ControlError::HostChanged {
            known, presented, ..
        },
    ) = near
    else {
        panic!("not refused");
    };
    assert_eq!((known, presented), (accepted, other));
    let text = error.to_string();
    assert!(
        text.contains(&accepted.to_string()) && text.contains(&other.to_string()),
        "{text}"
    );
    assert_eq!(error.to_fault().code, FaultCode::Denied);
    assert_eq!(client.asked(), 0);
    assert!(far.is_err());
}

#[tokio::test]
async fn two_servers_have_a_key_each() {
    let (first, second) = (Server::start().await, Server::start().await);
    let client = Client::new(HostDecision::Remember);
    for server in [&first, &second, &first] {
        let (near, far) = tokio::join!(client.connect(server), server.welcome());
        assert_eq!(near.unwrap().fingerprint, server.key.fingerprint());
        far.unwrap();
    }
    assert_eq!(client.asked(), 2);
}

#[tokio::test]
async fn a_server_may_say_why_not() {
    let server = Server::start().await;
    let client = Client::new(HostDecision::AcceptOnce);
    let fault = Fault::new(FaultCode::Busy, "draining");
    let refusing = async { server.greet(LONG).await?.refuse(fault.clone()).await };
    let (near, far) = tokio::join!(client.connect(&server), refusing);
    far.unwrap();
    let Err(ControlError::Refused(told)) = near else {
        panic!("not refused")
    };
    assert_eq!(told, fault);
}

/// A client of TLS alone, for what a real client never says.
async fn raw_tls(server: &Server) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let config = tls::client_config().unwrap();
    let stream = TcpStream::connect(server.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(config);
    connector.connect(tls::server_name().unwrap(), stream).await
}

async fn greet_raw(bytes: Vec<u8>) -> (Result<Greeted, ControlError>, Vec<u8>) {
    let server = Server::start().await;
    let client = async {
        let mut stream = raw_tls(&server).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer
    };
    tokio::join!(server.greet(LONG), client)
}

#[tokio::test]
async fn a_client_of_other_levels_is_told_so() {
    let mut hello = vec![6, 0, 0, 0, 1, 0, 1, 0];
    hello.extend([0; 16]);
    hello.extend([0, 0x10, 0, 0x20, 0, 0]);
    let (greeted, answer) = greet_raw(hello).await;
    assert!(matches!(
        greeted,
        Err(ControlError::Incompatible {
            min: 0x1000,
            max: 0x2000
        })
    ));
    let mut decoder = crate::wire::Decoder::new();
    decoder.feed(&answer);
    let Some(Envelope {
        message: Message::Goodbye(fault),
        ..
    }) = decoder.next().unwrap()
    else {
        panic!("no goodbye");
    };
    assert_eq!(fault.code, FaultCode::Incompatible);
}

#[tokio::test]
async fn a_client_that_does_not_greet_is_not_heard() {
    let mut ping = Vec::new();
    crate::wire::encode(&session(1), &mut ping).unwrap();
    let (greeted, _) = greet_raw(ping).await;
    assert!(matches!(
        greeted,
        Err(ControlError::OutOfTurn { expected: "Hello" })
    ));

    // Before its Hello a client can't make the server hold a large frame.
    let (greeted, _) = greet_raw([&[0, 0, 2, 0, 1, 0, 1, 0][..], &[0; 16]].concat()).await;
    assert!(matches!(greeted, Err(ControlError::Wire(_))));
}

#[tokio::test]
async fn a_client_of_another_protocol_is_refused() {
    let server = Server::start().await;
    let mut config = Arc::unwrap_or_clone(tls::client_config().unwrap());
    config.alpn_protocols = Vec::new();
    let client = async {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        connector.connect(tls::server_name().unwrap(), stream).await
    };
    let (greeted, _stream) = tokio::join!(server.greet(LONG), client);
    assert!(matches!(greeted, Err(ControlError::NotRdcp)));
}

/// A ClientHello of TLS 1.2: no extension names a later version.
const TLS12_CLIENT_HELLO: &[u8] = &[
    0x16, 0x03, 0x01, 0x00, 0x4b, // record: handshake, 75 bytes
    0x01, 0x00, 0x00, 0x47, // ClientHello, 71 bytes
    0x03, 0x03, // TLS 1.2
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, // random
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,   //
    0x00, // no session id
    0x00, 0x04, 0xc0, 0x2b, 0xc0, 0x2f, // ECDHE with AES-128-GCM
    0x01, 0x00, // no compression
    0x00, 0x1a, // extensions, 26 bytes
    0x00, 0x0a, 0x00, 0x06, 0x00, 0x04, 0x00, 0x1d, 0x00, 0x17, // groups
    0x00, 0x0d, 0x00, 0x08, 0x00, 0x06, 0x04, 0x03, 0x08, 0x07, 0x08, 0x04, // signatures
    0x00, 0x17, 0x00, 0x00, // extended master secret
];

#[tokio::test]
async fn a_client_of_tls_1_2_is_refused_with_an_alert() {
    let server = Server::start().await;
    let client = async {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(TLS12_CLIENT_HELLO).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let (greeted, answer) = tokio::join!(server.greet(LONG), client);
    let Err(ControlError::Tls(error)) = greeted else {
        panic!("not refused")
    };
    assert!(error.to_string().contains("SupportedVersions"), "{error}");
    // A fatal alert: protocol_version (70).
    assert_eq!((answer[0], &answer[5..]), (0x15, &[2, 70][..]));
}

#[tokio::test]
async fn rubbish_is_refused() {
    let server = Server::start().await;
    let client = async {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream
            .write_all(b"\x16 GET / HTTP/1.1\r\n\r\n")
            .await
            .unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    };
    let (greeted, ()) = tokio::join!(server.greet(LONG), client);
    assert!(matches!(greeted, Err(ControlError::Tls(_))));
}

#[tokio::test]
async fn a_handshake_that_stalls_is_given_up() {
    let server = Server::start().await;
    let (greeted, _stalled) = tokio::join!(server.greet(SHORT), TcpStream::connect(server.address));
    assert!(matches!(greeted, Err(ControlError::TimedOut { .. })));
    let (greeted, _silent) = tokio::join!(server.greet(SHORT), raw_tls(&server));
    assert!(matches!(greeted, Err(ControlError::TimedOut { .. })));

    let mut client = Client::new(HostDecision::AcceptOnce);
    client.options.deadline = SHORT;
    let (near, _stalled) = tokio::join!(client.connect(&server), server.stream());
    assert!(matches!(near, Err(ControlError::TimedOut { .. })));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let server = Server::start().await;
    let host = server.host();
    drop(server);
    let client = Client::new(HostDecision::Refuse);
    let Err(error) = connect(&host, &client.options).await else {
        panic!("connected")
    };
    assert_eq!(error.to_string(), format!("can't connect to {host}"));
}

// ---- data connections

/// One acceptance of a data connection under `key`.
fn accepting(
    listener: TcpListener,
    key: SessionKey,
) -> JoinHandle<Result<DataConnection, DataError>> {
    tokio::spawn(async move {
        let stream = listener.accept().await.unwrap().0;
        assert_eq!(classify(&stream, LONG).await?, ConnectionKind::Data);
        accept_data(
            stream,
            |session| (session == SESSION).then(|| key.clone()),
            LONG,
        )
        .await
    })
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn key(byte: u8) -> SessionKey {
    SessionKey::new([byte; 32])
}

#[tokio::test]
async fn data_connections_get_keys_of_their_own() {
    let mut all = Vec::new();
    for _ in 0..2 {
        let (listener, address) = listen().await;
        let server = accepting(listener, key(1));
        let near = open_data(address, SESSION, LEVEL_MAX, &key(1), LONG)
            .await
            .unwrap();
        let far = server.await.unwrap().unwrap();
        assert_eq!((far.session, far.level), (SESSION, LEVEL_MAX));
        assert_eq!(
            (near.keys.send, near.keys.receive),
            (far.keys.receive, far.keys.send)
        );
        all.extend([near.keys.send, near.keys.receive]);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4, "a key is used twice");
}

#[tokio::test]
async fn what_follows_the_opening_stays_on_the_socket() {
    let (listener, address) = listen().await;
    let server = accepting(listener, key(1));
    let near = open_data(address, SESSION, LEVEL_MAX, &key(1), LONG)
        .await
        .unwrap();
    let mut near = TcpStream::from_std(near.stream).unwrap();
    near.write_all(b"first").await.unwrap();
    let far = server.await.unwrap().unwrap();
    let mut far = TcpStream::from_std(far.stream).unwrap();
    let mut bytes = [0; 5];
    far.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"first");
}

#[tokio::test]
async fn a_wrong_key_and_an_unknown_session_fail_alike() {
    for (session, wrong) in [(SESSION, key(2)), (SessionId(1), key(1))] {
        let (listener, address) = listen().await;
        let server = accepting(listener, key(1));
        // An honest client notices first.
        let near = open_data(address, session, LEVEL_MAX, &wrong, LONG).await;
        assert!(matches!(near, Err(DataError::NotProved)));
        assert!(matches!(server.await.unwrap(), Err(DataError::Lost(_))));

        // One that goes on regardless gets the same answer, and then the end.
        let (listener, address) = listen().await;
        let server = accepting(listener, key(1));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&hello(session, 5)).await.unwrap();
        stream.read_exact(&mut [0; 64]).await.unwrap();
        stream.write_all(&[0; 32]).await.unwrap();
        assert_eq!(stream.read_to_end(&mut Vec::new()).await.unwrap(), 0);
        assert!(matches!(server.await.unwrap(), Err(DataError::NotProved)));
    }
}

fn hello(session: SessionId, nonce: u8) -> Vec<u8> {
    let mut hello = b"RDCPDATA\x01\0\0\0".to_vec();
    hello.extend(session.0.to_le_bytes());
    hello.extend([nonce; 32]);
    hello
}

#[tokio::test]
async fn a_replayed_opening_is_refused() {
    // Recorded: everything that an honest client sends, by a relay between it and the server.
    let (listener, server_address) = listen().await;
    let server = accepting(listener, key(1));
    let (relay, relay_address) = listen().await;
    let relaying = tokio::spawn(async move {
        let mut client = relay.accept().await.unwrap().0;
        let mut server = TcpStream::connect(server_address).await.unwrap();
        let (mut hello, mut answer, mut proof) = ([0; 52], [0; 64], [0; 32]);
        client.read_exact(&mut hello).await.unwrap();
        server.write_all(&hello).await.unwrap();
        server.read_exact(&mut answer).await.unwrap();
        client.write_all(&answer).await.unwrap();
        client.read_exact(&mut proof).await.unwrap();
        server.write_all(&proof).await.unwrap();
        (hello, answer, proof)
    });
    open_data(relay_address, SESSION, LEVEL_MAX, &key(1), LONG)
        .await
        .unwrap();
    server.await.unwrap().unwrap();
    let (hello, answer, proof) = relaying.await.unwrap();

    // To the server again.
    let (listener, address) = listen().await;
    let server = accepting(listener, key(1));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&hello).await.unwrap();
    stream.write_all(&proof).await.unwrap();
    assert!(matches!(server.await.unwrap(), Err(DataError::NotProved)));

    // To a client, in the server's place; and its own nonce and proof sent back to it.
    for reflect in [false, true] {
        let (listener, address) = listen().await;
        let playing = tokio::spawn(async move {
            let mut stream = listener.accept().await.unwrap().0;
            stream.read_exact(&mut [0; 52]).await.unwrap();
            let mut bytes = answer;
            if reflect {
                bytes[32..].copy_from_slice(&proof);
            }
            stream.write_all(&bytes).await.unwrap();
            stream
        });
        let near = open_data(address, SESSION, LEVEL_MAX, &key(1), LONG).await;
        assert!(matches!(near, Err(DataError::NotProved)));
        playing.await.unwrap();
    }
}

#[tokio::test]
async fn what_is_no_hello_is_refused() {
    let mut reserved = hello(SESSION, 5);
    reserved[10] = 1;
    let mut other_level = hello(SESSION, 5);
    other_level[9] = 0x40;
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 60],
        reserved,
        other_level,
    ] {
        let (listener, address) = listen().await;
        let server = accepting(listener, key(1));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        assert!(matches!(server.await.unwrap(), Err(DataError::NotAHello)));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert_eq!(answer, b"");
    }
}

#[tokio::test]
async fn openings_that_stall_are_given_up() {
    let (listener, address) = listen().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let accepted = listener.accept().await.unwrap().0;
    assert!(matches!(
        classify(&accepted, SHORT).await,
        Err(DataError::TimedOut)
    ));
    stream.write_all(&hello(SESSION, 5)[..20]).await.unwrap();
    let opened = accept_data(accepted, |_| None, SHORT).await;
    assert!(matches!(opened, Err(DataError::TimedOut)));

    let opened = open_data(address, SESSION, LEVEL_MAX, &key(1), SHORT).await;
    assert!(matches!(opened, Err(DataError::TimedOut)));
}

#[tokio::test]
async fn the_first_byte_tells_control_from_data() {
    let (listener, address) = listen().await;
    for (byte, kind) in [
        (0x16, ConnectionKind::Control),
        (b'R', ConnectionKind::Data),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&[byte]).await.unwrap();
        let mut accepted = listener.accept().await.unwrap().0;
        assert_eq!(classify(&accepted, LONG).await.unwrap(), kind);
        assert_eq!(accepted.read_u8().await.unwrap(), byte, "it is still there");
    }
    drop(TcpStream::connect(address).await.unwrap());
    let accepted = listener.accept().await.unwrap().0;
    assert!(matches!(
        classify(&accepted, LONG).await,
        Err(DataError::Lost(_))
    ));
}
