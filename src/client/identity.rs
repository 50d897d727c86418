//! A user's own key: where it is, how it is made, what others know it by.
//!
//! In: the path of a file, or the environment that says where users keep their configuration. Out: a
//! key to be proved to servers. Nothing here connects.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind};
use crate::session::own_key::{OwnKey, OwnKeyError};

/// The key's file in the directory of a user's configuration.
const IDENTITY_FILE: &str = "identity.pem";

/// A user's key, as `rdcp keygen` tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Where the secret half is. Only its owner may read it.
    pub path: PathBuf,
    /// What servers know it by: `SHA256:` and the digest of the public half.
    pub fingerprint: String,
    /// Whether it was made just now.
    pub is_new: bool,
}

impl Identity {
    /// Where a user's own key is, if the environment says where users keep their configuration.
    pub fn default_path() -> Option<PathBuf> {
        default_file()
    }

    /// The key in `file`, or in the default place; it is made if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if there is no default place, [`ErrorKind::Storage`] for a file that can't
    /// be read or made, is no key, or may be read by others.
    pub fn load_or_create(file: Option<&Path>) -> Result<Self, Error> {
        let path = match file {
            Some(path) => path.to_owned(),
            None => default_file().ok_or_else(homeless)?,
        };
        let existing = OwnKey::load(&path).map_err(unusable)?;
        let is_new = existing.is_none();
        let key = match existing {
            Some(key) => key,
            None => OwnKey::load_or_create(&path).map_err(unusable)?,
        };
        Ok(Self {
            path,
            fingerprint: key.fingerprint().to_string(),
            is_new,
        })
    }

    /// The key in the default place, if there is one.
    ///
    /// # Errors
    /// As [`Self::load_or_create`].
    pub fn load() -> Result<Option<Self>, Error> {
        let Some(path) = default_file() else {
            return Ok(None);
        };
        let key = OwnKey::load(&path).map_err(unusable)?;
        Ok(key.map(|key| Self {
            path,
            fingerprint: key.fingerprint().to_string(),
            is_new: false,
        }))
    }
}

/// The key to prove: the one that was chosen, or the one in the default place if there is one.
pub(super) fn load(chosen: Option<PathBuf>) -> Result<Option<OwnKey>, Error> {
    let Some(path) = chosen else {
        return match default_file() {
            Some(path) => OwnKey::load(&path).map_err(unusable),
            None => Ok(None),
        };
    };
    match OwnKey::load(&path).map_err(unusable)? {
        Some(key) => Ok(Some(key)),
        None => Err(Error::new(
            ErrorKind::Usage,
            format!("there is no key at {}", path.display()),
        )
        .with_hint(format!(
            "make it: rdcp keygen --identity {}",
            path.display()
        ))),
    }
}

/// Where this user keeps the configuration of rdcp.
pub(super) fn config_directory() -> Option<PathBuf> {
    let from = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let config = from("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = config.or_else(|| from("HOME").map(|home| PathBuf::from(home).join(".config")));
    config.map(|config| config.join("rdcp"))
}

fn default_file() -> Option<PathBuf> {
    config_directory().map(|directory| directory.join(IDENTITY_FILE))
}

fn homeless() -> Error {
    let message = "there is no place for a key: neither HOME nor XDG_CONFIG_HOME is set";
    Error::new(ErrorKind::Usage, message).with_hint("set HOME, or name a file: --identity FILE")
}

fn unusable(error: OwnKeyError) -> Error {
    Error::new(ErrorKind::Storage, "this user's own key can't be used").with_source(error)
}
