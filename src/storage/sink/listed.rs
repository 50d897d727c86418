//! What the source has: every name of it below the directories that were there before, kept until the
//! end, when the destination is compared with it.
//!
//! In: the manifest, in its order, and which directory each was put in. Out: the same once more, a
//! token at a time. A tree may have millions of names, so they go to an unlinked file beyond a little
//! memory. Whether a directory's listing was complete is known at its end only, and is then noted at
//! its beginning, as whoever compares needs it there. Of a directory that this run made only the name
//! is kept: nothing is superfluous in it. What is not in the order of a walk counts as not complete.
//!
//! ```text
//! root       1 flags source inode mtime          then what is in it
//! directory  2 flags name inode mtime            then what is in it
//! name       3 name
//! leave      4
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::ids::EntryId;
use crate::storage::scratch::scratch_file;
use crate::units::Timestamp;

/// Bytes in memory before they go to the file.
const BUFFER_BYTES: usize = 128 << 10;

const ROOT: u8 = 1;
const DIRECTORY: u8 = 2;
const NAME: u8 = 3;
const LEAVE: u8 = 4;
/// Its listing was complete.
const COMPLETE: u8 = 1;

/// A directory that was there before this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// File system and number.
    pub(super) inode: (u64, u64),
    /// The time that the source's has.
    pub(super) mtime: Timestamp,
}

/// Takes names.
#[derive(Debug, Default)]
pub(super) struct Listed {
    log: Log,
    /// Directories on the way, innermost last.
    open: Vec<Open>,
    /// Why it can't be used.
    failed: Option<io::Error>,
}

#[derive(Debug)]
struct Open {
    id: EntryId,
    /// Its source, and its name in the one before; nothing for a source.
    root: u32,
    name: Vec<u8>,
    /// Where its flags are; nothing if what is in it is not kept.
    flags_at: Option<u64>,
    last: Vec<u8>,
    in_order: bool,
}

/// One step of what was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Root {
        root: u32,
        seen: Seen,
        complete: bool,
    },
    Directory {
        name: Vec<u8>,
        seen: Seen,
        complete: bool,
    },
    Name(Vec<u8>),
    Leave,
}

/// Gives them back.
#[derive(Debug)]
pub(super) struct Tokens {
    log: Log,
    position: u64,
    ahead: Vec<u8>,
    used: usize,
}

impl Listed {
    /// A source that is a directory; `seen` unless this run made its place.
    pub(super) fn root(&mut self, root: u32, id: EntryId, seen: Option<Seen>) {
        self.open.clear();
        self.enter(id, root, Vec::new(), seen);
    }

    /// A directory in another; `seen` unless this run made it.
    pub(super) fn directory(
        &mut self,
        parent: EntryId,
        name: &[u8],
        id: EntryId,
        seen: Option<Seen>,
    ) {
        let Some(root) = self.within(parent).map(|open| open.root) else {
            return;
        };
        if self.is_kept() && seen.is_some() {
            self.note_order(name);
            self.enter(id, root, name.to_vec(), seen);
        } else {
            self.name(parent, name);
            self.enter(id, root, name.to_vec(), None);
        }
    }

    /// Anything else, also what is not copied.
    pub(super) fn name(&mut self, parent: EntryId, name: &[u8]) {
        if self.within(parent).is_none() || !self.is_kept() {
            return;
        }
        self.note_order(name);
        self.append(&[NAME]);
        self.append_name(name);
    }

    /// A directory has ended.
    pub(super) fn end(&mut self, id: EntryId, complete: bool) {
        if self.open.last().is_none_or(|open| open.id != id) {
            self.confuse();
            return;
        }
        let Some(open) = self.open.pop() else { return };
        let Some(flags_at) = open.flags_at else {
            return;
        };
        self.append(&[LEAVE]);
        let noted = match complete && open.in_order {
            true => self.log.set(flags_at, COMPLETE),
            false => Ok(()),
        };
        self.keep(noted);
    }

    /// The source and the path below it of the innermost directory, if it is this one.
    pub(super) fn path_of(&self, directory: EntryId) -> Option<(u32, Vec<u8>)> {
        let innermost = self.open.last().filter(|open| open.id == directory)?;
        let names = self.open.iter().map(|open| &*open.name);
        let parts: Vec<&[u8]> = names.filter(|name| !name.is_empty()).collect();
        Some((innermost.root, parts.join(&b'/')))
    }

    /// All that was kept, from its beginning.
    pub(super) fn tokens(&mut self) -> io::Result<Tokens> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => Ok(Tokens {
                log: std::mem::take(&mut self.log),
                position: 0,
                ahead: Vec::new(),
                used: 0,
            }),
        }
    }

    /// The innermost directory, if it is this one. Whatever else is told of is not complete: a walk is
    /// depth first.
    fn within(&mut self, parent: EntryId) -> Option<&Open> {
        if self.open.last().is_none_or(|open| open.id != parent) {
            self.confuse();
            return None;
        }
        self.open.last()
    }

    fn confuse(&mut self) {
        for open in &mut self.open {
            open.in_order = false;
        }
    }

    fn is_kept(&self) -> bool {
        self.open.last().is_some_and(|open| open.flags_at.is_some())
    }

    /// Names ascend. One may be told twice, as with what could not be carried of it.
    fn note_order(&mut self, name: &[u8]) {
        if let Some(open) = self.open.last_mut() {
            open.in_order &= *open.last <= *name;
            open.last = name.to_vec();
        }
    }

    fn enter(&mut self, id: EntryId, root: u32, name: Vec<u8>, seen: Option<Seen>) {
        let flags_at = seen.map(|seen| {
            let flags_at = self.log.len() + 1;
            if self.open.is_empty() {
                self.append(&[ROOT, 0]);
                self.append(&root.to_le_bytes());
            } else {
                self.append(&[DIRECTORY, 0]);
                self.append_name(&name);
            }
            self.append(&seen.inode.0.to_le_bytes());
            self.append(&seen.inode.1.to_le_bytes());
            self.append(&seen.mtime.seconds.to_le_bytes());
            self.append(&seen.mtime.nanoseconds.to_le_bytes());
            flags_at
        });
        self.open.push(Open {
            id,
            root,
            name,
            flags_at,
            last: Vec::new(),
            in_order: true,
        });
    }

    fn append_name(&mut self, name: &[u8]) {
        // A name has at most 255 bytes.
        self.append(&[u8::try_from(name.len()).unwrap_or(0)]);
        self.append(name);
    }

    fn append(&mut self, bytes: &[u8]) {
        let appended = self.log.append(bytes);
        self.keep(appended);
    }

    fn keep(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }
}

impl Tokens {
    /// The next one.
    pub(super) fn next(&mut self) -> io::Result<Option<Token>> {
        if self.is_over()? {
            return Ok(None);
        }
        let kind = self.take::<1>()?[0];
        let token = match kind {
            ROOT | DIRECTORY => {
                let complete = self.take::<1>()?[0] & COMPLETE != 0;
                let (root, name) = match kind {
                    ROOT => (u32::from_le_bytes(self.take()?), Vec::new()),
                    _ => (0, self.name()?),
                };
                let inode = (
                    u64::from_le_bytes(self.take()?),
                    u64::from_le_bytes(self.take()?),
                );
                let mtime = Timestamp {
                    seconds: i64::from_le_bytes(self.take()?),
                    nanoseconds: u32::from_le_bytes(self.take()?),
                };
                let seen = Seen { inode, mtime };
                match kind {
                    ROOT => Token::Root {
                        root,
                        seen,
                        complete,
                    },
                    _ => Token::Directory {
                        name,
                        seen,
                        complete,
                    },
                }
            }
            NAME => Token::Name(self.name()?),
            LEAVE => Token::Leave,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(Some(token))
    }

    /// Passes over all that is in the directory that was just told.
    pub(super) fn skip(&mut self) -> io::Result<()> {
        let mut inside = 1_usize;
        while inside > 0 {
            match self.next()?.ok_or(io::ErrorKind::UnexpectedEof)? {
                Token::Root { .. } | Token::Directory { .. } => inside += 1,
                Token::Leave => inside -= 1,
                Token::Name(_) => {}
            }
        }
        Ok(())
    }

    fn name(&mut self) -> io::Result<Vec<u8>> {
        let len = usize::from(self.take::<1>()?[0]);
        self.fill(len)?;
        let name = self.ahead[self.used..self.used + len].to_vec();
        self.used += len;
        Ok(name)
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.fill(N)?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.ahead[self.used..self.used + N]);
        self.used += N;
        Ok(bytes)
    }

    fn is_over(&mut self) -> io::Result<bool> {
        Ok(self.used == self.ahead.len() && self.position == self.log.len())
    }

    /// Sees to it that `count` bytes, at most 255, are ahead.
    fn fill(&mut self, count: usize) -> io::Result<()> {
        if self.ahead.len() - self.used >= count {
            return Ok(());
        }
        self.ahead.drain(..self.used);
        self.used = 0;
        let kept = self.ahead.len();
        let left = usize::try_from(self.log.len() - self.position).unwrap_or(usize::MAX);
        self.ahead.resize(kept + left.min(BUFFER_BYTES), 0);
        self.log.read(&mut self.ahead[kept..], self.position)?;
        self.position += (self.ahead.len() - kept) as u64;
        match self.ahead.len() >= count {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Bytes, the last of them in memory.
#[derive(Debug, Default)]
struct Log {
    file: Option<File>,
    in_file: u64,
    buffer: Vec<u8>,
}

impl Log {
    fn len(&self) -> u64 {
        self.in_file + self.buffer.len() as u64
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            let file = match &mut self.file {
                Some(file) => file,
                none => none.insert(scratch_file()?),
            };
            file.write_all_at(&self.buffer, self.in_file)?;
            self.in_file += self.buffer.len() as u64;
            self.buffer.clear();
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Changes a byte that was appended.
    fn set(&mut self, position: u64, byte: u8) -> io::Result<()> {
        match (position.checked_sub(self.in_file), &self.file) {
            (Some(at), _) => {
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                *self.buffer.get_mut(at).ok_or(io::ErrorKind::InvalidInput)? = byte;
                Ok(())
            }
            (None, Some(file)) => file.write_all_at(&[byte], position),
            (None, None) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Reads into all of `to`.
    fn read(&self, to: &mut [u8], position: u64) -> io::Result<()> {
        let in_file = self.in_file.saturating_sub(position);
        let cut = usize::try_from(in_file).unwrap_or(usize::MAX).min(to.len());
        let (from_file, from_buffer) = to.split_at_mut(cut);
        if let (Some(file), false) = (&self.file, from_file.is_empty()) {
            file.read_exact_at(from_file, position)?;
        }
        if !from_buffer.is_empty() {
            let start =
                usize::try_from(position.saturating_sub(self.in_file)).unwrap_or(usize::MAX);
            let bytes = self
                .buffer
                .get(start..start.saturating_add(from_buffer.len()));
            from_buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(number: u64) -> Option<Seen> {
        let mtime = Timestamp {
            seconds: -1,
            nanoseconds: 7,
        };
        let inode = (1, number);
        Some(Seen { inode, mtime })
    }

    fn all(listed: &mut Listed) -> Vec<Token> {
        let mut tokens = listed.tokens().unwrap();
        std::iter::from_fn(|| tokens.next().unwrap()).collect()
    }

    fn directory(name: &[u8], number: u64, complete: bool) -> Token {
        Token::Directory {
            name: name.to_vec(),
            seen: seen(number).unwrap(),
            complete,
        }
    }

    #[test]
    fn names_come_back_with_the_completeness_of_their_directories() {
        let mut listed = Listed::default();
        listed.root(0, EntryId(0), seen(10));
        listed.name(EntryId(0), b"a\n");
        listed.directory(EntryId(0), b"b", EntryId(1), seen(11));
        listed.name(EntryId(1), b"\xff");
        assert_eq!(listed.path_of(EntryId(1)), Some((0, b"b".to_vec())));
        assert_eq!(listed.path_of(EntryId(0)), None);
        listed.end(EntryId(1), false);
        // Made by this run: its name is enough.
        listed.directory(EntryId(0), b"c", EntryId(2), None);
        listed.name(EntryId(2), b"new");
        listed.directory(EntryId(2), b"below", EntryId(3), seen(12));
        listed.end(EntryId(3), true);
        listed.end(EntryId(2), true);
        listed.end(EntryId(0), true);
        listed.root(1, EntryId(4), None);
        listed.end(EntryId(4), true);
        let root = Token::Root {
            root: 0,
            seen: seen(10).unwrap(),
            complete: true,
        };
        let expected = [
            root,
            Token::Name(b"a\n".to_vec()),
            directory(b"b", 11, false),
            Token::Name(b"\xff".to_vec()),
            Token::Leave,
            Token::Name(b"c".to_vec()),
            Token::Leave,
        ];
        assert_eq!(all(&mut listed), expected);
    }

    #[test]
    fn what_no_walk_tells_is_not_complete() {
        for confuse in [
            // Out of order, in no directory that is open, ended twice.
            (|listed: &mut Listed| listed.name(EntryId(0), b"a")) as fn(&mut Listed),
            |listed| listed.name(EntryId(9), b"z"),
            |listed| listed.directory(EntryId(9), b"z", EntryId(10), seen(3)),
            |listed| listed.end(EntryId(9), true),
        ] {
            let mut listed = Listed::default();
            listed.root(0, EntryId(0), seen(1));
            listed.name(EntryId(0), b"b");
            confuse(&mut listed);
            listed.end(EntryId(0), true);
            let tokens = all(&mut listed);
            assert!(matches!(
                tokens[0],
                Token::Root {
                    complete: false,
                    ..
                }
            ));
        }
    }

    #[test]
    fn more_names_than_memory_holds_go_to_a_file() {
        let mut listed = Listed::default();
        listed.root(0, EntryId(0), seen(1));
        for number in 0..40_000_u64 {
            listed.directory(
                EntryId(0),
                format!("{number:08}").as_bytes(),
                EntryId(1 + number),
                seen(number),
            );
            listed.name(EntryId(1 + number), b"f");
            listed.end(EntryId(1 + number), number % 2 == 0);
        }
        listed.end(EntryId(0), true);
        assert!(listed.log.file.is_some() && listed.log.buffer.len() <= BUFFER_BYTES);
        let mut tokens = listed.tokens().unwrap();
        assert!(matches!(
            tokens.next().unwrap(),
            Some(Token::Root { complete: true, .. })
        ));
        for number in 0..40_000_u64 {
            let expected = directory(format!("{number:08}").as_bytes(), number, number % 2 == 0);
            assert_eq!(tokens.next().unwrap(), Some(expected));
            tokens.skip().unwrap();
        }
        assert_eq!(tokens.next().unwrap(), Some(Token::Leave));
        assert_eq!(tokens.next().unwrap(), None);
    }
}
