//! Doors for the fuzz targets (`tests/fuzz`) to what reads a peer's bytes or a file's and is no part of
//! any interface. In: bytes. Out: nothing; what must hold whatever they are is asserted here, where
//! it can be seen. Nothing in the library comes this way.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::ids::SessionId;
use crate::manifest::Version;
use crate::session::clients::parse_line;
use crate::session::control;
use crate::session::data::{self, SessionKey};
use crate::session::known_hosts::{HostPort, KnownHosts};
use crate::session::own_key::Fingerprint;
use crate::storage::sink::journal::Identity;
use crate::units::ChunkSize;
use crate::wire::message::HashKind;

/// Some key.
const KEY: &str = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
/// Where a journal's batches begin.
const JOURNAL_HEADER_BYTES: usize = 96;
/// What one record takes in a batch, and the checksum behind them.
const RECORD_BYTES: usize = 40;
const CHECKSUM_BYTES: usize = 32;

/// A fresh control connection, TLS aside, as a server hears it or as a client does.
pub fn greeting(said: &[u8], by_client: bool) {
    let heard = at_once(control::overhear(said, by_client));
    if let Ok(messages) = heard {
        // Each has a header of its own.
        assert!(messages < said.len());
    }
}

/// The opening of a data connection: nobody gets in who does not hold the session's key.
pub fn data_opening(said: &[u8], by_client: bool) {
    let key = SessionKey::random();
    let io = tokio::io::join(said, tokio::io::sink());
    let opened = match by_client {
        true => at_once(data::answer(io, |_| Some(key.clone()))).map(|_| ()),
        false => at_once(data::ask(io, SessionId(1), 1, &key)).map(|_| ()),
    };
    assert!(opened.is_err(), "a data connection without the key");
}

/// A file of authorized keys. A line that is taken is taken in the same sense with its spaces
/// changed, and grants nothing with its key away. What is wrong with another can be shown.
pub fn authorized_keys(text: &str) {
    for line in text.lines() {
        let (key, grant) = match parse_line(line) {
            Ok(Some(taken)) => taken,
            Ok(None) => continue,
            Err(wrong) => {
                assert!(!wrong.contains(char::is_control), "{wrong:?}");
                continue;
            }
        };
        let spaced = format!("  {}\t", line.trim());
        assert_eq!(parse_line(&spaced), Ok(Some((key, grant))));
        let without = line.replace(&key.to_string(), "");
        assert!(
            !matches!(parse_line(&without), Ok(Some((other, _))) if other == key),
            "{without:?} still names its key"
        );
    }
}

/// A file of known hosts. What is written behind it is found, unless the file names that host
/// differently already or not so that it can be read.
pub fn known_hosts(text: &[u8]) {
    let hosts = KnownHosts::new("known_hosts");
    let host = HostPort::new("host", 20471);
    let key: Fingerprint = KEY.parse().expect("it is written as keys are");
    let Ok(before) = hosts.parse(text, &host) else {
        return;
    };
    let longer = [text, format!("\n{host} {key}\n").as_bytes()].concat();
    let after = hosts.parse(&longer, &host).expect("the new line is right");
    assert_eq!(after[..before.len()], before);
    assert_eq!(after.last().map(|(_, key)| *key), Some(key));
    // The host's spelling is its own, whatever the case.
    if let Some(word) = text.split(|byte| byte.is_ascii_whitespace()).next()
        && let Ok(word) = std::str::from_utf8(word)
        && let Some(host) = HostPort::parse(word)
    {
        assert_eq!(HostPort::parse(&host.to_string()), Some(host));
    }
}

/// A journal, for the file that its header speaks of. With `mended`, all checksums are right, so that
/// what is behind them is reached too.
pub fn journal(bytes: &[u8], mended: bool) {
    let Some(identity) = identity(bytes) else {
        return;
    };
    let mut bytes = bytes.to_vec();
    if mended {
        mend(&identity, &mut bytes);
    }
    let Ok(read) = identity.read(bytes.as_slice()) else {
        return;
    };
    let len = usize::try_from(read.appender.len).expect("it is in memory");
    assert!(len <= bytes.len());
    let chunks = identity.chunk.count(identity.len);
    for range in read.claims.ranges() {
        assert!(range.start < range.end && range.end <= chunks);
        assert!(read.claims.value(range.start).is_some());
    }
    // What is appended where it ends is read back with all that was there.
    if chunks > 0 {
        let mut appender = read.appender;
        bytes.truncate(len);
        bytes.extend(appender.append(&[(chunks - 1, [9; 32])]));
        let again = identity.read(bytes.as_slice()).expect("it was read before");
        assert_eq!(again.claims.value(chunks - 1), Some([9; 32]));
        for range in read.claims.ranges() {
            assert!(again.claims.value(range.start).is_some());
        }
    }
}

/// Of which file a journal with this header would be.
fn identity(bytes: &[u8]) -> Option<Identity> {
    let header = bytes.get(..JOURNAL_HEADER_BYTES)?;
    let number = |at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&header[at..at + 8]);
        u64::from_le_bytes(number)
    };
    let mut version = [0; 32];
    version.copy_from_slice(&header[24..56]);
    Some(Identity {
        stem: number(56),
        hash: match header[10] {
            1 => HashKind::Blake3,
            2 => HashKind::Sha256,
            _ => HashKind::None,
        },
        chunk: ChunkSize::from_log2(header[11])?,
        len: number(16),
        version: Version(version),
    })
}

/// Puts the right checksums where checksums belong.
fn mend(identity: &Identity, bytes: &mut [u8]) {
    let Some((header, mut appender)) = identity.begin() else {
        return;
    };
    bytes[..JOURNAL_HEADER_BYTES].copy_from_slice(&header);
    let mut rest = &mut bytes[JOURNAL_HEADER_BYTES..];
    while rest.len() >= 4 {
        let (fields, _) = rest.split_at(4);
        let count = usize::try_from(u32::from_le_bytes([
            fields[0], fields[1], fields[2], fields[3],
        ]));
        let len = count
            .ok()
            .and_then(|count| count.checked_mul(RECORD_BYTES)?.checked_add(4));
        let Some(len) = len.filter(|len| rest.len() >= len.saturating_add(CHECKSUM_BYTES)) else {
            return;
        };
        if len == 4 {
            return;
        }
        let (batch, after) = rest.split_at_mut(len + CHECKSUM_BYTES);
        let checksum = appender.checksum(&batch[..len]);
        batch[len..].copy_from_slice(&checksum);
        appender.took(batch);
        rest = after;
    }
}

/// The result of what never waits.
fn at_once<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("bytes in memory were waited for"),
    }
}
