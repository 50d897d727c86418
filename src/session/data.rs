//! Opening data connections: the first bytes on them, until both ends have proved the session's key.
//!
//! ```text
//! client                               server
//!   hello: level, session, nonce   ->
//!                                  <-  nonce, proof
//!   proof                          ->
//!   data messages                 <->
//! ```
//!
//! Both proofs are HMACs under the session's key over the hello and the server's nonce, so nothing
//! that was recorded fits a second time, and neither end's proof fits the other's place. Each
//! connection and direction gets its own key. Out comes a plain socket with those keys, for a lane;
//! nothing of what follows the proofs has been read off it.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpStream as PlainStream};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::ids::SessionId;
use crate::sys::random_bytes;
pub use crate::transport::tcp::ConnectionKeys;
use crate::wire::level;

/// How long the opening of a data connection may take.
pub const DATA_HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// The first bytes of a data connection. The first of them is no TLS record's.
const MAGIC: &[u8; 8] = b"RDCPDATA";
/// First byte of a TLS record that begins a handshake.
const TLS_HANDSHAKE: u8 = 0x16;
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
const HELLO_BYTES: usize = 8 + 2 + 2 + 8 + NONCE_BYTES;
const LABEL_BYTES: usize = 32;

const _: () = assert!(MAGIC[0] != TLS_HANDSHAKE);

// What each HMAC is for stands in front of what it covers; all are of one width, so that no two of
// them can be taken for one another.
const CLIENT_PROOF: &[u8; LABEL_BYTES] = b"rdcp/1 data: proof of the client";
const SERVER_PROOF: &[u8; LABEL_BYTES] = b"rdcp/1 data: proof of the server";
const CLIENT_SENDS: &[u8; LABEL_BYTES] = b"rdcp/1 data: key, client sends  ";
const SERVER_SENDS: &[u8; LABEL_BYTES] = b"rdcp/1 data: key, server sends  ";

/// The secret that a session's two ends share beside their control connection: from its exporter.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKey([u8; 32]);

impl SessionKey {
    /// Wraps key material of the TLS exporter.
    pub(super) fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A key that nobody else has.
    pub(crate) fn random() -> Self {
        Self(random_bytes())
    }

    fn mac(&self, label: &[u8; LABEL_BYTES], opening: &Opening) -> Hmac<Sha256> {
        // HMAC fills a short key up with zeros to the hash's block (RFC 2104).
        let mut block = [0; 64];
        block[..self.0.len()].copy_from_slice(&self.0);
        let mut mac = Hmac::new(&block.into());
        mac.update(label);
        mac.update(&opening.hello);
        mac.update(&opening.server_nonce);
        mac
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey")
    }
}

/// An open data connection.
#[derive(Debug)]
pub struct DataConnection {
    /// The socket, non-blocking, right behind the opening.
    pub stream: PlainStream,
    /// Its keys.
    pub keys: ConnectionKeys,
    /// The session that it belongs to.
    pub session: SessionId,
    /// The level that the client named.
    pub level: u16,
}

/// Why a data connection was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The connection can't be made, or broke.
    #[error("the data connection broke")]
    Lost(#[from] io::Error),
    /// The peer took too long.
    #[error("the data connection was not opened in time")]
    TimedOut,
    /// What came is no hello of a data connection that this release understands.
    #[error("what came is no hello of a data connection")]
    NotAHello,
    /// The peer does not hold the session's key, or there is no such session.
    #[error("the peer on a data connection did not prove the session's key")]
    NotProved,
}

/// What a fresh connection on the port will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionKind {
    /// A control connection: TLS comes.
    Control,
    /// A data connection: its hello comes. Or rubbish, which the hello will show.
    Data,
}

/// Looks at the first byte without taking it.
pub async fn classify(stream: &TcpStream, deadline: Duration) -> Result<ConnectionKind, DataError> {
    let mut first = [0];
    let peeked = async { Ok(stream.peek(&mut first).await?) };
    match (within(deadline, peeked).await?, first) {
        (0, _) => Err(DataError::Lost(io::ErrorKind::UnexpectedEof.into())),
        (_, [TLS_HANDSHAKE]) => Ok(ConnectionKind::Control),
        _ => Ok(ConnectionKind::Data),
    }
}

/// Opens a data connection of `session` to `server`.
pub async fn open_data(
    server: SocketAddr,
    session: SessionId,
    level: u16,
    key: &SessionKey,
    deadline: Duration,
) -> Result<DataConnection, DataError> {
    within(deadline, open(server, session, level, key)).await
}

async fn open(
    server: SocketAddr,
    session: SessionId,
    level: u16,
    key: &SessionKey,
) -> Result<DataConnection, DataError> {
    let mut stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let keys = ask(&mut stream, session, level, key).await?;
    Ok(DataConnection {
        stream: stream.into_std()?,
        keys,
        session,
        level,
    })
}

/// The client's side of an opening, over anything that carries bytes.
pub(crate) async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    session: SessionId,
    level: u16,
    key: &SessionKey,
) -> Result<ConnectionKeys, DataError> {
    let hello = Hello {
        level,
        session,
        nonce: random_bytes(),
    }
    .to_bytes();
    stream.write_all(&hello).await?;
    let mut server_nonce = [0; NONCE_BYTES];
    stream.read_exact(&mut server_nonce).await?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await?;
    let opening = Opening {
        hello,
        server_nonce,
    };
    verify(key, SERVER_PROOF, &opening, &proof)?;
    stream
        .write_all(&prove(key, CLIENT_PROOF, &opening))
        .await?;
    Ok(ConnectionKeys {
        send: prove(key, CLIENT_SENDS, &opening),
        receive: prove(key, SERVER_SENDS, &opening),
    })
}

/// Takes a fresh data connection through its opening. `key_of` tells the key of a session, if that
/// lives. A peer that fails learns nothing of why, not even whether there is such a session.
pub async fn accept_data(
    stream: TcpStream,
    key_of: impl Fn(SessionId) -> Option<SessionKey>,
    deadline: Duration,
) -> Result<DataConnection, DataError> {
    within(deadline, accept(stream, key_of)).await
}

async fn accept(
    mut stream: TcpStream,
    key_of: impl Fn(SessionId) -> Option<SessionKey>,
) -> Result<DataConnection, DataError> {
    stream.set_nodelay(true)?;
    let (hello, keys) = answer(&mut stream, key_of).await?;
    Ok(DataConnection {
        stream: stream.into_std()?,
        keys,
        session: hello.session,
        level: hello.level,
    })
}

/// The server's side of an opening, over anything that carries bytes.
pub(crate) async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    key_of: impl Fn(SessionId) -> Option<SessionKey>,
) -> Result<(Hello, ConnectionKeys), DataError> {
    // The magic is looked at alone, so that a peer of another protocol is not waited for.
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello[..MAGIC.len()]).await?;
    if !hello.starts_with(MAGIC) {
        return Err(DataError::NotAHello);
    }
    stream.read_exact(&mut hello[MAGIC.len()..]).await?;
    let said = Hello::parse(&hello).ok_or(DataError::NotAHello)?;
    // An unknown session goes on under a key that nobody has, and so fails where a wrong key does.
    let key = key_of(said.session).unwrap_or_else(SessionKey::random);
    let opening = Opening {
        hello,
        server_nonce: random_bytes(),
    };
    let mut answer = [0; NONCE_BYTES + PROOF_BYTES];
    answer[..NONCE_BYTES].copy_from_slice(&opening.server_nonce);
    answer[NONCE_BYTES..].copy_from_slice(&prove(&key, SERVER_PROOF, &opening));
    stream.write_all(&answer).await?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await?;
    verify(&key, CLIENT_PROOF, &opening, &proof)?;
    let keys = ConnectionKeys {
        send: prove(&key, SERVER_SENDS, &opening),
        receive: prove(&key, CLIENT_SENDS, &opening),
    };
    Ok((said, keys))
}

/// What a client says first.
pub(crate) struct Hello {
    level: u16,
    session: SessionId,
    nonce: [u8; NONCE_BYTES],
}

impl Hello {
    fn to_bytes(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&self.level.to_le_bytes());
        // 10..12: reserved, zero
        bytes[12..20].copy_from_slice(&self.session.0.to_le_bytes());
        bytes[20..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Reads a hello; nothing if it is none, or one of a release that asks for what is not known
    /// here.
    fn parse(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (level, rest) = rest.split_first_chunk()?;
        let (reserved, rest) = rest.split_first_chunk::<2>()?;
        let (session, rest) = rest.split_first_chunk()?;
        let nonce = *rest.first_chunk()?;
        let level = u16::from_le_bytes(*level);
        let session = SessionId(u64::from_le_bytes(*session));
        let understood = level::is_spoken(level) && reserved == &[0; 2];
        understood.then_some(Self {
            level,
            session,
            nonce,
        })
    }
}

/// What both ends have seen of an opening: all that proofs and keys hang on.
struct Opening {
    hello: [u8; HELLO_BYTES],
    server_nonce: [u8; NONCE_BYTES],
}

fn prove(key: &SessionKey, label: &[u8; LABEL_BYTES], opening: &Opening) -> [u8; PROOF_BYTES] {
    key.mac(label, opening).finalize().into_bytes().into()
}

/// Compares in constant time.
fn verify(
    key: &SessionKey,
    label: &[u8; LABEL_BYTES],
    opening: &Opening,
    proof: &[u8; PROOF_BYTES],
) -> Result<(), DataError> {
    key.mac(label, opening)
        .verify_slice(proof)
        .map_err(|_| DataError::NotProved)
}

async fn within<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, DataError>>,
) -> Result<T, DataError> {
    timeout(deadline, work)
        .await
        .unwrap_or(Err(DataError::TimedOut))
}
