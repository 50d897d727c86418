//! A disk that can be looked at as it is, and as it would be after the power went.
//!
//! In: what the calls of storage did, a script of what goes wrong. Out: the answer to each call, and
//! what is needed to draw an [image](super::image) of what would be left. The live side is a real
//! directory, in which the kernel carries everything out; kept here is what of it is durable, and what
//! is not yet. What is promised of the order, and no more than that:
//!
//! - a sync that succeeds makes the file's content and length durable, or the directory's names;
//! - a rename is whole or not there; so is any other change of a name, a mode or a time;
//! - of content that was not synced any write may be there, missing, or torn between sectors of 512
//!   bytes, and any length that the file had since; it does not matter in which order it was written;
//! - after a sync that failed some of the writes are gone for good, and the next sync says nothing
//!   of it: `fsync(2)` tells an error once;
//! - with [`Order::Journal`] changes of names, modes and times become durable in their order, and every
//!   sync takes along all that went before it, as ext4 and xfs do it; with [`Order::None`] each becomes
//!   durable or not for itself, and a sync of a file does nothing for its name. Until a program that was
//!   killed is started again they all are: of names that it finds, the next run knows no better.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, Timestamps};
use rustix::io::{self, Errno};

use crate::simulation::random::Random;

/// Number of a file, directory or symlink.
pub(crate) type Inode = u64;

/// Kinds of calls, as far as what can go wrong depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    Create,
    Mkdir,
    Symlink,
    Link,
    Unlink,
    Rename,
    Write,
    Length,
    Allocate,
    SyncFile,
    SyncDirectory,
    Access,
    Times,
}

impl Call {
    pub(crate) const ALL: &[Self] = &[
        Self::Create,
        Self::Mkdir,
        Self::Symlink,
        Self::Link,
        Self::Unlink,
        Self::Rename,
        Self::Write,
        Self::Length,
        Self::Allocate,
        Self::SyncFile,
        Self::SyncDirectory,
        Self::Access,
        Self::Times,
    ];
}

/// What is promised of the order in which changes of names, modes and times become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As they were made; a sync of anything takes all before it along.
    Journal,
    /// None.
    None,
}

/// What goes wrong, by the number of the call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub(crate) faults: Vec<Fault>,
    /// From this call on nothing is done any more.
    pub(crate) ends_at: Option<u64>,
}

/// Calls that fail: so many of those that the kind concerns, from one of this number on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) first: u64,
    pub(crate) calls: u64,
    pub(crate) kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Whatever such a call may answer.
    Any,
    /// What takes space fails.
    Full,
    /// All that writes fails.
    ReadOnly,
    /// Syncs fail, and nothing else.
    Syncs,
    /// Writes take less than they were given, or were interrupted.
    Short,
}

/// One file, directory or symlink.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The kernel's numbers are not in the order in which things were made.
    pub(crate) number: usize,
    pub(crate) kind: NodeKind,
    pub(crate) mode: u32,
    /// Nothing: some time of this run.
    pub(crate) mtime: Option<(i64, u32)>,
}

#[derive(Clone, Debug)]
pub(crate) enum NodeKind {
    File(Content),
    Directory,
    Symlink(Vec<u8>),
}

/// A file's bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pub(crate) durable: Vec<u8>,
    pub(crate) pending: Vec<Write>,
}

#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) what: What,
    /// A sync failed with it: nothing brings it to the disk any more.
    pub(crate) lost: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Bytes { at: u64, bytes: Vec<u8> },
    Zeros { at: u64, end: u64 },
    Len(u64),
    LenAtLeast(u64),
}

/// A change of a name, a mode or a time.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Name {
        directory: Inode,
        name: Vec<u8>,
        node: Inode,
    },
    NoName {
        directory: Inode,
        name: Vec<u8>,
    },
    Rename {
        from: (Inode, Vec<u8>),
        to: (Inode, Vec<u8>),
        node: Inode,
    },
    Mode(Inode, u32),
    Time(Inode, Option<(i64, u32)>),
}

/// See the module's first paragraph.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) top: Inode,
    pub(crate) nodes: BTreeMap<Inode, Node>,
    /// Names as they were durable in the beginning.
    pub(crate) names: BTreeMap<Inode, BTreeMap<Vec<u8>, Inode>>,
    /// All changes since, and whether each is durable.
    pub(crate) changes: Vec<(Change, bool)>,
    pub(crate) order: Order,
    /// Files whose time is the kernel's.
    written: BTreeSet<Inode>,
    script: Script,
    random: Random,
    calls: u64,
    /// How often each kind of call was made, and failed by the script.
    pub(crate) made: BTreeMap<Call, u64>,
    pub(crate) failed: BTreeMap<Call, u64>,
    dead: bool,
}

thread_local! {
    static DISK: RefCell<Option<Disk>> = const { RefCell::new(None) };
}

/// Puts a disk beneath all calls of this thread; gives back the one that was there.
pub(crate) fn replace(disk: Option<Disk>) -> Option<Disk> {
    DISK.with_borrow_mut(|here| std::mem::replace(here, disk))
}

/// Does something with this thread's disk, if it has one.
pub(crate) fn with<T>(work: impl FnOnce(&mut Disk) -> T) -> Option<T> {
    DISK.with_borrow_mut(|disk| disk.as_mut().map(work))
}

/// Whether this thread has a disk of its own.
pub(crate) fn is_here() -> bool {
    DISK.with_borrow(Option::is_some)
}

/// The number of what is open.
pub(super) fn inode_of(of: impl AsFd) -> Inode {
    rustix::fs::fstat(of).expect("it is open").st_ino
}

/// The number of what has this name.
pub(super) fn inode_at(directory: impl AsFd, name: &[u8]) -> Inode {
    let status = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    status.expect("a call has just found it").st_ino
}

impl Disk {
    /// All that is below `top` is durable.
    pub(crate) fn new(top: &Path, order: Order, script: Script, random: Random) -> Self {
        let metadata = std::fs::metadata(top).unwrap();
        let mut disk = Self {
            top: metadata.ino(),
            nodes: BTreeMap::new(),
            names: BTreeMap::new(),
            changes: Vec::new(),
            order,
            written: BTreeSet::new(),
            script,
            random,
            calls: 0,
            made: BTreeMap::new(),
            failed: BTreeMap::new(),
            dead: false,
        };
        disk.take_in(top.to_owned());
        disk
    }

    fn take_in(&mut self, path: PathBuf) {
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        let kind = if metadata.is_dir() {
            let mut names = BTreeMap::new();
            let mut entries: Vec<_> = std::fs::read_dir(&path).unwrap().flatten().collect();
            entries.sort_by_key(std::fs::DirEntry::file_name);
            for entry in entries {
                let name = std::os::unix::ffi::OsStringExt::into_vec(entry.file_name());
                names.insert(name, entry.metadata().unwrap().ino());
                self.take_in(entry.path());
            }
            self.names.insert(metadata.ino(), names);
            NodeKind::Directory
        } else if metadata.is_symlink() {
            let target = std::fs::read_link(&path).unwrap();
            NodeKind::Symlink(std::os::unix::ffi::OsStringExt::into_vec(
                target.into_os_string(),
            ))
        } else {
            let durable = std::fs::read(&path).unwrap();
            let pending = Vec::new();
            NodeKind::File(Content { durable, pending })
        };
        let nanoseconds = u32::try_from(metadata.mtime_nsec()).unwrap();
        let node = Node {
            number: self.nodes.len(),
            kind,
            mode: metadata.mode() & 0o7777,
            mtime: Some((metadata.mtime(), nanoseconds)),
        };
        self.nodes.insert(metadata.ino(), node);
    }

    /// Whether the end that the script has was reached.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }

    /// Goes on from here with another script, content that is not durable as it is.
    pub(crate) fn go_on(&mut self, script: Script) {
        if self.order == Order::None {
            self.changes
                .iter_mut()
                .for_each(|(_, durable)| *durable = true);
        }
        (self.script, self.calls, self.dead) = (script, 0, false);
    }

    /// Whether a call may be made.
    pub(super) fn admit(&mut self, call: Call) -> io::Result<()> {
        match self.fault(call) {
            Some(FaultKind::Short) | None => Ok(()),
            Some(kind) => Err(self.errno(call, kind)),
        }
    }

    /// How many bytes of a write are taken.
    pub(super) fn admit_write(&mut self, len: usize) -> io::Result<usize> {
        match self.fault(Call::Write) {
            None => Ok(len),
            Some(FaultKind::Short) if len > 1 && !self.random.one_in(3) => {
                *self.failed.entry(Call::Write).or_default() += 1;
                Ok(1 + self.random.index(len - 1))
            }
            Some(FaultKind::Short) => Err(Errno::INTR),
            Some(kind) => Err(self.errno(Call::Write, kind)),
        }
    }

    fn fault(&mut self, call: Call) -> Option<FaultKind> {
        if self.dead {
            return Some(FaultKind::Any);
        }
        let number = self.calls;
        self.calls += 1;
        if self.script.ends_at.is_some_and(|end| number >= end) {
            self.dead = true;
            return Some(FaultKind::Any);
        }
        *self.made.entry(call).or_default() += 1;
        let is_sync = matches!(call, Call::SyncFile | Call::SyncDirectory);
        let hit = self.script.faults.iter_mut().find(|fault| {
            let concerns = match fault.kind {
                FaultKind::Any => true,
                FaultKind::ReadOnly => !is_sync,
                FaultKind::Full => !is_sync && call != Call::Unlink && call != Call::Access,
                FaultKind::Syncs => is_sync,
                FaultKind::Short => call == Call::Write,
            };
            concerns && number >= fault.first && fault.calls > 0
        })?;
        hit.calls -= 1;
        Some(hit.kind)
    }

    fn errno(&mut self, call: Call, kind: FaultKind) -> Errno {
        if self.dead {
            return Errno::IO;
        }
        *self.failed.entry(call).or_default() += 1;
        let from: &[Errno] = match (kind, call) {
            (FaultKind::Full, _) => &[Errno::NOSPC, Errno::DQUOT],
            (FaultKind::ReadOnly, _) => &[Errno::ROFS],
            (_, Call::Create) => &[
                Errno::IO,
                Errno::NOSPC,
                Errno::DQUOT,
                Errno::MFILE,
                Errno::NFILE,
                Errno::ROFS,
                Errno::NOMEM,
            ],
            (_, Call::Mkdir | Call::Symlink | Call::Rename) => &[
                Errno::IO,
                Errno::NOSPC,
                Errno::DQUOT,
                Errno::ROFS,
                Errno::NOMEM,
            ],
            (_, Call::Link) => &[Errno::IO, Errno::NOSPC, Errno::MLINK, Errno::PERM],
            (_, Call::Unlink) => &[Errno::IO, Errno::ROFS, Errno::NOMEM],
            (_, Call::Write) => &[Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::INTR],
            (_, Call::Length) => &[Errno::IO, Errno::FBIG, Errno::NOSPC],
            (_, Call::Allocate) => &[
                Errno::IO,
                Errno::NOSPC,
                Errno::DQUOT,
                Errno::INTR,
                Errno::NOTSUP,
            ],
            (_, Call::SyncFile) => &[Errno::IO, Errno::NOSPC, Errno::DQUOT],
            (_, Call::SyncDirectory | Call::Times) => &[Errno::IO],
            (_, Call::Access) => &[Errno::IO, Errno::PERM],
        };
        self.random.pick(from)
    }

    /// Enters a node that was made under this name. What lies elsewhere is none of this disk's.
    pub(super) fn made(&mut self, directory: BorrowedFd<'_>, name: &[u8], node: Inode) {
        let status = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let kind = match rustix::fs::FileType::from_raw_mode(status.st_mode) {
            rustix::fs::FileType::Directory => NodeKind::Directory,
            rustix::fs::FileType::Symlink => {
                let target = rustix::fs::readlinkat(directory, name, Vec::new()).unwrap();
                NodeKind::Symlink(target.into_bytes())
            }
            _ => NodeKind::File(Content::default()),
        };
        let mode = status.st_mode & 0o7777;
        let made = Node {
            number: self.nodes.len(),
            kind,
            mode,
            mtime: None,
        };
        self.nodes.insert(node, made);
        self.written.insert(node);
        self.linked(directory, name, node);
    }

    pub(super) fn linked(&mut self, directory: BorrowedFd<'_>, name: &[u8], node: Inode) {
        let directory = inode_of(directory);
        let name = name.to_vec();
        self.change(Change::Name {
            directory,
            name,
            node,
        });
    }

    pub(super) fn unlinked(&mut self, directory: BorrowedFd<'_>, name: &[u8]) {
        let directory = inode_of(directory);
        let name = name.to_vec();
        self.change(Change::NoName { directory, name });
    }

    pub(super) fn renamed(
        &mut self,
        (from, old): (BorrowedFd<'_>, &[u8]),
        (to, new): (BorrowedFd<'_>, &[u8]),
    ) {
        let node = inode_at(to, new);
        self.change(Change::Rename {
            from: (inode_of(from), old.to_vec()),
            to: (inode_of(to), new.to_vec()),
            node,
        });
    }

    pub(super) fn wrote(&mut self, file: Inode, what: What) {
        let Some(content) = self.content(file) else {
            return;
        };
        content.pending.push(Write { what, lost: false });
        if self.written.insert(file) {
            self.change(Change::Time(file, None));
        }
    }

    pub(super) fn mode_set(&mut self, node: Inode, mode: Mode) {
        if self.nodes.contains_key(&node) {
            self.change(Change::Mode(node, mode.as_raw_mode() & 0o7777));
        }
    }

    pub(super) fn time_set(&mut self, node: Inode, times: &Timestamps) {
        if self.nodes.contains_key(&node) {
            let to = times.last_modification;
            let nanoseconds = u32::try_from(to.tv_nsec).unwrap();
            self.written.remove(&node);
            self.change(Change::Time(node, Some((to.tv_sec, nanoseconds))));
        }
    }

    /// Syncs a file or a directory.
    pub(super) fn sync(&mut self, of: BorrowedFd<'_>, data_only: bool) -> io::Result<()> {
        let node = inode_of(of);
        let is_directory = matches!(
            self.nodes.get(&node),
            Some(Node {
                kind: NodeKind::Directory,
                ..
            })
        );
        let call = if is_directory {
            Call::SyncDirectory
        } else {
            Call::SyncFile
        };
        if let Err(errno) = self.admit(call) {
            if !self.dead {
                self.lose(node);
            }
            return Err(errno);
        }
        if let Some(content) = self.content(node) {
            content.settle();
        }
        match self.order {
            // Without a change of its metadata a file's data go without the journal.
            Order::Journal if data_only && self.random.one_in(2) => {}
            Order::Journal => self
                .changes
                .iter_mut()
                .for_each(|(_, durable)| *durable = true),
            Order::None => {
                for (change, durable) in &mut self.changes {
                    *durable |= change.is_of(node) && !data_only;
                }
            }
        }
        Ok(())
    }

    /// The file's bytes without those that were lost, if any were.
    pub(super) fn forget_lost(&mut self, file: Inode) -> Option<Vec<u8>> {
        if self.dead {
            return None;
        }
        let content = self.content(file)?;
        let before = content.pending.len();
        content.pending.retain(|write| !write.lost);
        if content.pending.len() == before {
            return None;
        }
        let mut bytes = content.durable.clone();
        for write in &content.pending {
            write.what.apply(&mut bytes);
        }
        Some(bytes)
    }

    /// A sync failed: some of what it was to write is gone.
    fn lose(&mut self, node: Inode) {
        let mut random = self.random.clone();
        if let Some(content) = self.content(node) {
            for write in &mut content.pending {
                write.lost |= random.one_in(2);
            }
        }
        self.random = random;
    }

    fn change(&mut self, change: Change) {
        self.changes.push((change, false));
    }

    fn content(&mut self, file: Inode) -> Option<&mut Content> {
        match self.nodes.get_mut(&file) {
            Some(Node {
                kind: NodeKind::File(content),
                ..
            }) => Some(content),
            _ => None,
        }
    }
}

impl Change {
    /// Whether a sync of this node is one of the change, where there is no order.
    fn is_of(&self, synced: Inode) -> bool {
        match self {
            Self::Name { directory, .. } | Self::NoName { directory, .. } => *directory == synced,
            Self::Rename { from, to, .. } => from.0 == synced && to.0 == synced,
            Self::Mode(node, _) | Self::Time(node, _) => *node == synced,
        }
    }
}

impl Content {
    /// All that is not lost becomes durable.
    fn settle(&mut self) {
        for write in std::mem::take(&mut self.pending) {
            if !write.lost {
                write.what.apply(&mut self.durable);
            }
        }
    }
}

impl What {
    /// Does it to a file's bytes.
    pub(crate) fn apply(&self, to: &mut Vec<u8>) {
        let place = |at: u64| usize::try_from(at).unwrap();
        match self {
            Self::Bytes { at, bytes } => {
                let start = place(*at);
                if to.len() < start + bytes.len() {
                    to.resize(start + bytes.len(), 0);
                }
                to[start..start + bytes.len()].copy_from_slice(bytes);
            }
            Self::Zeros { at, end } => {
                let end = place(*end).min(to.len());
                let start = place(*at).min(end);
                to[start..end].fill(0);
            }
            Self::Len(len) => to.resize(place(*len), 0),
            Self::LenAtLeast(len) => to.resize(to.len().max(place(*len)), 0),
        }
    }
}
