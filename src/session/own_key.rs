//! The key that an end proves to hold: a server's, made at its first start, and a client's.
//!
//! In comes the path of a file, out comes a key with its certificate. The key file is PKCS #8 in
//! PEM, private to its owner. It appears under its name whole or not at all, and never replaces
//! another: of two processes that make it at once, one does and both use it. The certificate only
//! carries the key, so it is made anew at each start and never stored; the other end knows the key.

use std::ffi::OsString;
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::ParsedCertificate;
use sha2::{Digest, Sha256};

/// Far more than any key that this program makes.
const KEY_FILE_BYTES_MAX: u64 = 16 << 10;

/// What a person compares: SHA-256 over the SubjectPublicKeyInfo, shown as OpenSSH shows its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of the key in a certificate.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Result<Self, rustls::Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        Ok(Self(
            Sha256::digest(parsed.subject_public_key_info().as_ref()).into(),
        ))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SHA256:{}", STANDARD_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not `SHA256:` with 43 base64 digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is written SHA256: and 43 base64 digits")]
pub struct FingerprintError;

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let digits = text.strip_prefix("SHA256:").ok_or(FingerprintError)?;
        let bytes = STANDARD_NO_PAD
            .decode(digits)
            .map_err(|_| FingerprintError)?;
        bytes.try_into().map(Self).map_err(|_| FingerprintError)
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnKeyError {
    /// The file or its directory can't be read or written.
    #[error("can't {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others may read or change the key, so it proves nothing.
    #[error(
        "{path} must belong to this user and be private: chmod 600 it, or remove it for a new key"
    )]
    NotPrivate {
        /// The file.
        path: PathBuf,
    },
    /// The file holds something else, or was cut.
    #[error("{path} holds no private key that can be used: restore it, or remove it for a new key")]
    NotAKey {
        /// The file.
        path: PathBuf,
    },
    /// The cryptography failed.
    #[error("can't make a key")]
    Make(#[source] rcgen::Error),
    /// A certificate of our own can't be read.
    #[error("can't read the certificate just made")]
    Certificate(#[source] rustls::Error),
}

/// A key of this end's with a certificate that carries it.
pub struct OwnKey {
    key_pkcs8: Vec<u8>,
    certificate: CertificateDer<'static>,
    fingerprint: Fingerprint,
}

impl OwnKey {
    /// The key in the file at `path`; the file and its directory are made if they are not there.
    pub fn load_or_create(path: &Path) -> Result<Self, OwnKeyError> {
        if let Some(key) = Self::load(path)? {
            return Ok(key);
        }
        create(path)?;
        // Read back even after a success: whoever came first, the file decides.
        match Self::load(path)? {
            Some(key) => Ok(key),
            None => Err(failed("read", path)(io::ErrorKind::NotFound.into())),
        }
    }

    /// The key in the file at `path`, or nothing if there is no file.
    pub fn load(path: &Path) -> Result<Option<Self>, OwnKeyError> {
        match load(path)? {
            Some(pair) => Self::from_pair(&pair).map(Some),
            None => Ok(None),
        }
    }

    /// A key that is gone with the process, for servers that nobody reaches twice.
    pub fn ephemeral() -> Result<Self, OwnKeyError> {
        Self::from_pair(&generate()?)
    }

    /// What the other end knows it by.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The self-signed certificate.
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    /// The private key as TLS takes it.
    pub(super) fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key_pkcs8.clone()).into()
    }

    fn from_pair(pair: &KeyPair) -> Result<Self, OwnKeyError> {
        let params = CertificateParams::new(vec!["rdcp".to_owned()]).map_err(OwnKeyError::Make)?;
        let certificate = params
            .self_signed(pair)
            .map_err(OwnKeyError::Make)?
            .der()
            .clone();
        let fingerprint =
            Fingerprint::of_certificate(&certificate).map_err(OwnKeyError::Certificate)?;
        Ok(Self {
            key_pkcs8: pair.serialize_der(),
            certificate,
            fingerprint,
        })
    }
}

impl fmt::Debug for OwnKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnKey")
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

fn failed<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> OwnKeyError + use<'a> {
    move |source| OwnKeyError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

fn generate() -> Result<KeyPair, OwnKeyError> {
    KeyPair::generate_for(&PKCS_ED25519).map_err(OwnKeyError::Make)
}

/// The key at `path`, or nothing if there is no file.
fn load(path: &Path) -> Result<Option<KeyPair>, OwnKeyError> {
    // Non-blocking, as a FIFO in the key's place must not hang the start. Symlinks are followed:
    // mounted secrets are symlinks, and the file behind one is checked just as well.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("open", path)(error)),
    };
    check_private(&file, path)?;
    let mut pem = String::new();
    file.take(KEY_FILE_BYTES_MAX)
        .read_to_string(&mut pem)
        .map_err(failed("read", path))?;
    match KeyPair::from_pem(&pem) {
        Ok(pair) => Ok(Some(pair)),
        Err(_) => Err(OwnKeyError::NotAKey {
            path: path.to_owned(),
        }),
    }
}

fn check_private(file: &File, path: &Path) -> Result<(), OwnKeyError> {
    let metadata = file.metadata().map_err(failed("examine", path))?;
    let owner = metadata.uid();
    let owned = owner == 0 || owner == rustix::process::geteuid().as_raw();
    if !metadata.is_file() || !owned || metadata.mode() & 0o077 != 0 {
        return Err(OwnKeyError::NotPrivate {
            path: path.to_owned(),
        });
    }
    Ok(())
}

/// Puts a new key at `path` unless there is one by then.
fn create(path: &Path) -> Result<(), OwnKeyError> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed("make", path)(io::ErrorKind::IsADirectory.into()));
    };
    // A bare name lies in the working directory.
    let directory = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed("make", directory))?;
    let pem = generate()?.serialize_pem();
    let nonce = u64::from_le_bytes(crate::sys::random_bytes());
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{nonce:016x}"));
    let temporary = directory.join(temporary);
    let written = write_new(&temporary, pem.as_bytes())
        .map_err(failed("write", &temporary))
        .and_then(|()| settle(&temporary, path).map_err(failed("make", path)));
    // After a rename there is nothing to remove; in every other case it must not stay.
    let _ = std::fs::remove_file(&temporary);
    written?;
    let sync = |directory: File| directory.sync_all();
    File::open(directory)
        .and_then(sync)
        .map_err(failed("sync", directory))
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Gives the file its final name if that is free; a name taken meanwhile is fine.
fn settle(temporary: &Path, path: &Path) -> io::Result<()> {
    use rustix::io::Errno;
    let result = match renameat_with(CWD, temporary, CWD, path, RenameFlags::NOREPLACE) {
        // Not every file system can rename without replacing; a hard link never replaces.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => std::fs::hard_link(temporary, path),
        result => result.map_err(io::Error::from),
    };
    match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b/key.pem");
        assert!(OwnKey::load(&path).unwrap().is_none());
        let first = OwnKey::load_or_create(&path).unwrap();
        let second = OwnKey::load_or_create(&path).unwrap();
        assert_eq!(first.fingerprint(), second.fingerprint());
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let beside = std::fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(beside.count(), 1);
        assert_ne!(
            first.fingerprint(),
            OwnKey::ephemeral().unwrap().fingerprint()
        );
    }

    #[test]
    fn processes_that_start_at_once_share_one_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = &directory.path().join("key.pem");
        let prints: Vec<_> = std::thread::scope(|scope| {
            let start = || OwnKey::load_or_create(path).unwrap().fingerprint();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(
            prints.windows(2).all(|pair| pair[0] == pair[1]),
            "{prints:?}"
        );
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_key_that_others_may_read_or_that_is_none_is_refused_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key.pem");
        OwnKey::load_or_create(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let error = OwnKey::load_or_create(&path).unwrap_err();
        assert!(matches!(error, OwnKeyError::NotPrivate { .. }), "{error}");

        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(&path, "-----BEGIN PRIVATE KEY-----\nrubbish").unwrap();
        let error = OwnKey::load_or_create(&path).unwrap_err();
        assert!(matches!(error, OwnKeyError::NotAKey { .. }), "{error}");
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("rubbish"));
    }

    #[test]
    fn fingerprints_are_read_as_they_are_shown() {
        let print = OwnKey::ephemeral().unwrap().fingerprint();
        let text = print.to_string();
        assert_eq!(text.len(), "SHA256:".len() + 43);
        assert_eq!(text.parse(), Ok(print));
        for bad in ["", "SHA256:", "MD5:abc", &text[..49], &format!("{text}=")] {
            assert_eq!(bad.parse::<Fingerprint>(), Err(FingerprintError), "{bad}");
        }
    }
}
