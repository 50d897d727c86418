//! The keys that a server lets in: some said when it is started, some in a file that is edited while
//! it runs.
//!
//! In: fingerprints, the path of a file. Out: what a key is good for. A file that can't be understood
//! when it is first read keeps the server from starting; later it is told in the log, and what was
//! read before stays in force, so that a slip of the pen locks nobody out and lets nobody in.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use rustix::fs::OFlags;

use super::line::{Grant, parse};
use crate::session::own_key::Fingerprint;

/// A file beyond this lists no keys.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Why a file of authorized keys can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthorizedKeysError {
    /// It can't be read.
    #[error("can't read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others could add a key to it.
    #[error(
        "{} must belong to root or to this user, and only its owner may write it: chmod go-w it",
        path.display()
    )]
    NotSafe {
        /// The file.
        path: PathBuf,
    },
    /// A line makes no sense.
    #[error("{}, line {line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

/// The keys that are let in.
#[derive(Debug)]
pub(crate) struct AuthorizedKeys {
    said: Vec<Fingerprint>,
    file: Option<PathBuf>,
    read: Mutex<Listed>,
}

/// What the file said when it was last read.
#[derive(Debug, Default)]
struct Listed {
    stamp: Option<Looked>,
    /// Of each key its lines, in their order.
    keys: HashMap<Fingerprint, Vec<Arc<Grant>>>,
}

/// What looking at the file came to.
type Looked = Result<Stamp, io::ErrorKind>;

/// Changes when a file is edited or replaced.
type Stamp = (u64, u64, u64, i64, i64);

impl AuthorizedKeys {
    /// The keys `said`, and those in `file`.
    pub(crate) fn new(
        said: Vec<Fingerprint>,
        file: Option<PathBuf>,
    ) -> Result<Self, AuthorizedKeysError> {
        let read = match &file {
            Some(path) => read(path)?,
            None => Listed::default(),
        };
        Ok(Self {
            said,
            file,
            read: Mutex::new(read),
        })
    }

    /// Whether some are listed in a file.
    pub(crate) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// What a key is good for, from there, now. The first of its lines that counts decides.
    pub(crate) fn find(
        &self,
        key: &Fingerprint,
        from: IpAddr,
        now: Timestamp,
    ) -> Option<Arc<Grant>> {
        if self.said.contains(key) {
            return Some(Arc::new(Grant::WHOLE));
        }
        let read = self.lock();
        let found = read
            .keys
            .get(key)?
            .iter()
            .find(|grant| grant.counts(from, now));
        found.map(Arc::clone)
    }

    /// Reads the file again if it has changed. To be called now and then, from where reading may
    /// block.
    pub(crate) fn refresh(&self) -> Result<(), AuthorizedKeysError> {
        let Some(path) = &self.file else {
            return Ok(());
        };
        let looked = open(path).and_then(|file| stamp_of(&file));
        let stamp = Some(looked.map_err(|error| error.kind()));
        if stamp == self.lock().stamp {
            return Ok(());
        }
        let fresh = match read(path) {
            // A file that was removed lists nobody.
            Err(AuthorizedKeysError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                Ok(Listed {
                    stamp,
                    ..Listed::default()
                })
            }
            other => other,
        };
        match fresh {
            Ok(fresh) => {
                *self.lock() = fresh;
                Ok(())
            }
            Err(error) => {
                // Told once for each state of the file.
                self.lock().stamp = stamp;
                Err(error)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Listed> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(path: &Path) -> Result<Listed, AuthorizedKeysError> {
    let failed = |source| AuthorizedKeysError::Io {
        path: path.to_owned(),
        source,
    };
    let file = open(path).map_err(failed)?;
    let stamp = stamp_of(&file).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is no regular file")));
    }
    let owner = metadata.uid();
    let owned = owner == 0 || owner == rustix::process::geteuid().as_raw();
    if !owned || metadata.mode() & 0o022 != 0 {
        return Err(AuthorizedKeysError::NotSafe {
            path: path.to_owned(),
        });
    }
    let mut text = String::new();
    let mut limited = file.take(FILE_BYTES_MAX + 1);
    let len = limited.read_to_string(&mut text).map_err(failed)?;
    if len as u64 > FILE_BYTES_MAX {
        return Err(failed(io::Error::other("it is too large to list keys")));
    }
    let mut keys: HashMap<_, Vec<_>> = HashMap::new();
    for (line, number) in text.lines().zip(1..) {
        match parse(line) {
            Ok(Some((key, grant))) => keys.entry(key).or_default().push(Arc::new(grant)),
            Ok(None) => {}
            Err(reason) => {
                return Err(AuthorizedKeysError::Line {
                    path: path.to_owned(),
                    line: number,
                    reason,
                });
            }
        }
    }
    let stamp = Some(Ok(stamp));
    Ok(Listed { stamp, keys })
}

/// A FIFO in its place must not hold anybody up.
fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn stamp_of(file: &File) -> io::Result<Stamp> {
    let found = file.metadata()?;
    Ok((
        found.dev(),
        found.ino(),
        found.len(),
        found.ctime(),
        found.ctime_nsec(),
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::session::own_key::OwnKey;

    fn key() -> Fingerprint {
        OwnKey::ephemeral().unwrap().fingerprint()
    }

    fn lists(keys: &AuthorizedKeys, key: &Fingerprint) -> bool {
        let now = Timestamp::now();
        keys.find(key, [127, 0, 0, 1].into(), now).is_some()
    }

    #[test]
    fn edits_count_and_slips_change_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        let (first, second, said) = (key(), key(), key());
        fs::write(&path, format!("# keys\n{first} a\n")).unwrap();
        let keys = AuthorizedKeys::new(vec![said], Some(path.clone())).unwrap();
        assert!(lists(&keys, &first) && lists(&keys, &said) && !lists(&keys, &second));

        fs::write(&path, format!("{second}\n\nnonsense\n")).unwrap();
        let error = keys.refresh().unwrap_err().to_string();
        assert!(error.contains("line 3: no key"), "{error}");
        assert!(lists(&keys, &first) && !lists(&keys, &second));
        // Not told again.
        keys.refresh().unwrap();

        fs::write(&path, format!("{second}\n")).unwrap();
        keys.refresh().unwrap();
        assert!(!lists(&keys, &first) && lists(&keys, &second));

        // First something that can't be read, then nothing at all.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(keys.refresh().is_err());
        assert!(lists(&keys, &second));
        fs::remove_dir(&path).unwrap();
        keys.refresh().unwrap();
        assert!(!lists(&keys, &second) && lists(&keys, &said));
    }

    #[test]
    fn a_file_that_others_may_write_is_not_taken() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        fs::write(&path, format!("{}\n", key())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o662)).unwrap();
        let error = AuthorizedKeys::new(Vec::new(), Some(path.clone())).unwrap_err();
        assert!(
            matches!(error, AuthorizedKeysError::NotSafe { .. }),
            "{error}"
        );
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            std::os::unix::fs::chown(&path, Some(1), None).unwrap();
            let error = AuthorizedKeys::new(Vec::new(), Some(path.clone())).unwrap_err();
            assert!(error.to_string().contains("belong to root"), "{error}");
        }
        let absent = AuthorizedKeys::new(Vec::new(), Some(directory.path().join("none")));
        assert!(matches!(absent, Err(AuthorizedKeysError::Io { .. })));
        assert!(AuthorizedKeys::new(Vec::new(), Some(directory.path().into())).is_err());
    }
}
