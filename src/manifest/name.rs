//! One path component, checked when it is made.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::limits::NAME_BYTES_MAX;

/// One component of a path: not empty, at most 255 bytes, without `/` and NUL, not `.` or `..`.
/// Bytes from end to end: it need not be UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

/// Why bytes are not a [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No bytes at all.
    #[error("a file name is empty")]
    Empty,
    /// Longer than file systems allow.
    #[error("a file name is longer than {NAME_BYTES_MAX} bytes")]
    TooLong,
    /// `.`, `..`, or a byte that separates or ends paths.
    #[error("a file name holds '/', NUL, or is '.' or '..'")]
    Forbidden,
}

impl Name {
    /// Checks `bytes` and keeps them.
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Result<Self, NameError> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(NameError::Empty);
        }
        if bytes.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        let forbidden = bytes.iter().any(|byte| matches!(byte, b'/' | 0));
        if forbidden || matches!(&*bytes, b"." | b"..") {
            return Err(NameError::Forbidden);
        }
        Ok(Self(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The name as the operating system takes it.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_harmless_components_are_names() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0"] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        assert!(Name::new(vec![b'x'; 256]).is_err());
        for good in [&b"a"[..], b"...", b"\xff\xfe", b" ", b"-rf", b"\x1b[31m"] {
            assert!(Name::new(good).is_ok(), "{good:?}");
        }
    }
}
