//! What goes wrong with files, and the fault that tells it to a peer and a person.
//!
//! In: the operation, the path as the user may see it, and the kernel's answer or a refusal of our
//! own. Out: a [`Fault`] with the class that decides the exit status and a text that says what to
//! do next. Nothing here knows who asked or what becomes of the transfer.

use std::fmt::{self, Write as _};
use std::io;

use rustix::io::Errno;

use crate::wire::{Fault, FaultCode};

/// Longest path that a fault's text shows, in bytes before escaping; the end is what tells most.
const PATH_SHOWN_BYTES_MAX: usize = 160;

/// An operation on a file that failed.
#[derive(Debug)]
pub struct StorageError {
    /// What was tried, as a verb: "open", "list".
    pub op: &'static str,
    /// On what: relative to the export or as the user wrote it, never the server's own prefix.
    pub path: Vec<u8>,
    /// Why it failed.
    pub cause: Cause,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The kernel said no.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// We said no: the class, and the words.
    #[error("{}", .0.text)]
    Refused(Fault),
}

impl StorageError {
    /// A failure that the kernel reported.
    pub fn new(op: &'static str, path: impl Into<Vec<u8>>, source: impl Into<io::Error>) -> Self {
        Self {
            op,
            path: path.into(),
            cause: Cause::Io(source.into()),
        }
    }

    /// A refusal of our own.
    pub fn refused(
        op: &'static str,
        path: impl Into<Vec<u8>>,
        code: FaultCode,
        text: impl Into<String>,
    ) -> Self {
        Self {
            op,
            path: path.into(),
            cause: Cause::Refused(Fault::new(code, text)),
        }
    }

    /// The kernel's error number, if it was the kernel.
    pub fn errno(&self) -> Option<Errno> {
        match &self.cause {
            Cause::Io(error) => Errno::from_io_error(error),
            Cause::Refused(_) => None,
        }
    }

    /// The class that decides the exit status.
    pub fn code(&self) -> FaultCode {
        match &self.cause {
            Cause::Io(error) => code_of(error),
            Cause::Refused(fault) => fault.code,
        }
    }

    /// The failure as it crosses the wire.
    pub fn fault(&self) -> Fault {
        let mut text = format!("{self}: {}", self.cause);
        if let Some(hint) = self.errno().and_then(hint_of) {
            text.push_str("; ");
            text.push_str(hint);
        }
        Fault::new(self.code(), text)
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            return write!(f, "can't {}", self.op);
        }
        write!(f, "can't {} '{}'", self.op, ShownPath(&self.path))
    }
}

impl std::error::Error for StorageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

impl From<&StorageError> for Fault {
    fn from(error: &StorageError) -> Self {
        error.fault()
    }
}

impl From<StorageError> for Fault {
    fn from(error: StorageError) -> Self {
        error.fault()
    }
}

/// A path for people: control characters, those that can't be seen or change how others are seen, and
/// bytes that are not UTF-8 escaped, long ones cut in front.
pub struct ShownPath<'a>(pub &'a [u8]);

impl fmt::Display for ShownPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = self.0.len().saturating_sub(PATH_SHOWN_BYTES_MAX);
        if cut > 0 {
            f.write_str("...")?;
        }
        for chunk in self.0[cut..].utf8_chunks() {
            for character in chunk.valid().chars() {
                match u8::try_from(character) {
                    Ok(byte @ (..b' ' | b'\\' | 0x7f)) => write!(f, "{}", byte.escape_ascii())?,
                    _ if is_treacherous(character) => write!(f, "{}", character.escape_unicode())?,
                    _ => f.write_char(character)?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// What a terminal obeys, or shows as something else than is there. Accents that stand alone are left:
/// names of some systems are full of them.
fn is_treacherous(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{feff}'
            | '\u{ffa0}'
            // Zero width, marks, separators, embeddings and overrides, isolates, operators.
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
            // Private use: whatever a font makes of it.
            | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}')
}

/// The fault class of an error from the kernel.
pub fn code_of(error: &io::Error) -> FaultCode {
    let Some(errno) = Errno::from_io_error(error) else {
        return FaultCode::Storage;
    };
    match errno {
        // A component of the path that is no directory: what was named can't be there.
        Errno::NOENT | Errno::NOTDIR => FaultCode::NotFound,
        Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::XDEV | Errno::LOOP => FaultCode::Denied,
        Errno::EXIST => FaultCode::Exists,
        Errno::NOSPC | Errno::DQUOT => FaultCode::NoSpace,
        Errno::ISDIR => FaultCode::WrongKind,
        Errno::NAMETOOLONG | Errno::INVAL => FaultCode::Invalid,
        // A mount, swap space, a device: who has it will have it at the next try, too.
        Errno::BUSY => FaultCode::Storage,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOTEMPTY => FaultCode::Busy,
        Errno::STALE => FaultCode::SourceChanged,
        Errno::NOSYS => FaultCode::Incompatible,
        _ => FaultCode::Storage,
    }
}

/// What a person can do about it, where the kernel's words don't say.
fn hint_of(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::XDEV => {
            "the path leads outside of the export (of a local path: a symbolic link leads nowhere)"
        }
        Errno::LOOP => "a symbolic link stands where none is followed",
        Errno::ROFS => "mount the file system for writing or choose another place",
        Errno::NOSPC => "free space or choose another place, then run the same command again",
        Errno::DQUOT => "raise the quota or free space, then run the same command again",
        Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n, LimitNOFILE=)",
        Errno::NOSYS => {
            "this needs openat2(2): Linux 5.6 or later, and a seccomp profile that allows it"
        }
        Errno::NOTEMPTY => {
            "something was put into it meanwhile; stop what writes there, or run the command again"
        }
        Errno::STALE => "the file system's server replaced the file",
        Errno::ACCESS => "ask for permission, or run the side that holds the file as its owner",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_name_the_operation_the_path_and_a_way_out() {
        let fault = StorageError::new("write", *b"a/b", Errno::NOSPC).fault();
        assert_eq!(fault.code, FaultCode::NoSpace);
        assert!(
            fault.text.starts_with("can't write 'a/b': "),
            "{}",
            fault.text
        );
        assert!(fault.text.contains("free space"), "{}", fault.text);
    }

    #[test]
    fn shown_paths_are_escaped_and_cut() {
        assert_eq!(
            ShownPath(b"a\nb\x1b\xff\\").to_string(),
            "a\\nb\\x1b\\xff\\\\"
        );
        for fair in ["grün", "gru\u{308}n", "日本"] {
            assert_eq!(ShownPath(fair.as_bytes()).to_string(), fair);
        }
        for foul in [
            '\u{202e}',
            '\u{2028}',
            '\u{feff}',
            '\u{9b}',
            '\u{200b}',
            '\u{e0041}',
        ] {
            let shown = ShownPath(format!("a{foul}b").as_bytes()).to_string();
            assert_eq!(shown, format!("a{}b", foul.escape_unicode()));
        }
        for worst in [
            &b"\xff"[..],
            b"\x1b",
            "\u{80}".as_bytes(),
            "\u{10ffff}".as_bytes(),
        ] {
            let long = StorageError::new("open", worst.repeat(5000), Errno::LOOP)
                .fault()
                .text;
            assert!(long.len() < crate::limits::TEXT_BYTES_MAX, "{}", long.len());
        }
    }
}
