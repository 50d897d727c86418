//! Part files: the hidden names under which files grow until they are renamed.
//!
//! In: a held directory and the final name. Out: an open, locked file that only this run writes,
//! with its way around the page cache where that pays. The one rule for removal: a name is
//! unlinked only while it still is the inode that was made here, or was proved to be a leftover of
//! ours. One that takes long has a journal, and both stay if the run is interrupted. Nothing here
//! knows metadata, entries or when a file is complete.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags, fstatvfs, openat, statx};
use rustix::io::Errno;

use super::directory::Handle;
use super::in_place;
use super::journal::{Claims, Identity, Record};
use super::media::Media;
use super::older::{Older, OlderCopy, read_at, whole_chunks};
use super::resume::{self, Found, Journal, Taken};
use crate::manifest::Name;
use crate::storage::calls::{
    create, fallocate, fchmod, fdatasync, ftruncate, unlinkat, write_all_at,
};
use crate::storage::descriptors::Hold;
use crate::storage::error::{ShownPath, StorageError};
use crate::storage::file::{DirectIo, SinkFile};
use crate::storage::leftover::{Leftover, Lock, lock, remove_if_stale};
use crate::storage::part_name::{journal_name, part_name, stem_of};
use crate::storage::status::Status;
use crate::storage::writers::{Writing, writer_of};
use crate::units::{ByteRange, ChunkSize};
use crate::wire::FaultCode;

/// Files from this length on are written around the page cache where the file system lets us:
/// below it the cache is as cheap, and a sync soon after finds little to do.
const DIRECT_BYTES_MIN: u64 = 4 << 20;
/// Blocks of direct IO. A page at least, so that a direct write never shares a page of the cache
/// with the buffered write of the tail.
const DIRECT_ALIGNMENT_BYTES: u32 = 4096;
/// How often a part file is made anew when another process removes it between two steps.
pub(crate) const RACES_MAX: usize = 8;
/// Before the next try where somebody else has the lock.
const BUSY_PAUSE: Duration = Duration::from_millis(2);

/// A file that is being filled, under its hidden name.
#[derive(Debug)]
pub(crate) struct PartFile {
    directory: Arc<Handle>,
    name: Name,
    file: OwnedFd,
    direct: Option<OwnedFd>,
    /// Who writes through the page cache: file systems let one do it at a time, and have the others
    /// spin for as long as that one runs, a fifth of both ends' time when two lanes fill one file.
    writing: Mutex<()>,
    len: u64,
    inode: (u64, u64),
    natural_mode: u32,
    /// For as long as its descriptors are open.
    _counted: Vec<Hold>,
    /// Whoever comes second is told who writes it.
    _writing: Option<Writing>,
    /// Whether the hidden name still has to be removed.
    named: AtomicBool,
    /// What an earlier run says that it has written of it.
    claims: Claims,
    /// What it is to replace, if that has some of the same bytes.
    older: Option<Older>,
    /// That stays if its content turns out to be the same.
    pub(super) by_content: bool,
    /// It is the very file that it is to replace, up to so many bytes.
    over: Option<u64>,
    /// Where that is recorded, for runs to come.
    recording: Mutex<Recording>,
    /// A sync before a record failed so.
    sync_failure: OnceLock<Errno>,
}

/// How far the journal of a part file is.
#[derive(Debug)]
enum Recording {
    /// There is none, and there won't be one.
    Off,
    /// It is made with the first record.
    Wanted(Identity),
    On(Journal),
}

/// A part file that was made, or taken over.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) part: PartFile,
    /// What an earlier run had left is of an earlier state of the source, and was dropped.
    pub(crate) changed: bool,
}

impl PartFile {
    /// Makes the part file of `name` with `len` bytes, all holes, for its owner only. With `identity`
    /// it goes on with what an interrupted run left of exactly that, and records what is written. Of an
    /// `older` copy it has the bytes from the beginning if it is made anew and the file system can share
    /// them; see [`Self::older`].
    ///
    /// With `natural` it tells as [`Self::natural_mode`] what the kernel makes of that mode here,
    /// by umask or an inherited access list; for that the file, still empty, has it for a moment.
    pub(crate) fn create(
        directory: Arc<Handle>,
        name: &Name,
        len: u64,
        natural: Option<u32>,
        identity: Option<Identity>,
        older: Option<OlderCopy>,
    ) -> Result<Made, StorageError> {
        let shown = directory.shown(name);
        let part = part_name(stem_of(name));
        let private = Mode::RUSR | Mode::WUSR;
        let mode = natural.map_or(private, |mode| Mode::from_raw_mode(mode & 0o777));
        let failed = |op| {
            let shown = &shown;
            move |errno: Errno| StorageError::new(op, shown.as_slice(), errno)
        };
        let identity = identity.filter(|identity| resume::is_worth_it(identity.len));
        let sized = failed("set the length of");
        let mut changed = false;
        for _ in 0..RACES_MAX {
            let file = match create_new(&directory, &part, mode) {
                Err(Errno::EXIST) => {
                    match identity.map(|of| resume::take(&directory, &part, &of, natural)) {
                        Some(Taken::Found(found)) => {
                            let mut part = Self::taken_over(directory, part, len, *found);
                            part.older = older.map(|copy| copy.beside(len));
                            return Ok(Made { part, changed });
                        }
                        Some(Taken::Changed) => changed = true,
                        Some(Taken::Nothing) | None => {}
                    }
                    remove_leftover(&directory, name, &part, &shown)?;
                    continue;
                }
                answer => answer.map_err(failed("create a part file for"))?,
            };
            let made = Status::of(&file).map_err(failed("look at the part file of"))?;
            let mut new = Self {
                directory: directory.clone(),
                name: part.clone(),
                file,
                direct: None,
                len,
                inode: (made.device, made.inode),
                natural_mode: made.mode,
                writing: Mutex::new(()),
                _counted: Vec::new(),
                _writing: None,
                named: AtomicBool::new(true),
                claims: Claims::default(),
                older: None,
                by_content: false,
                over: None,
                recording: Mutex::new(identity.map_or(Recording::Off, Recording::Wanted)),
                sync_failure: OnceLock::new(),
            };
            // Somebody may take it for a leftover in the moment before it is locked.
            let locked = lock(&new.file).map_err(failed("lock the part file of"))?;
            if locked == Lock::Busy || !is_still(&directory, &part, new.inode) {
                continue;
            }
            if natural.is_some() {
                fchmod(&new.file, private).map_err(failed("set the mode of"))?;
            }
            if let Some(of) = identity {
                // Of another part file that is gone. What can't be removed is proved or not used.
                let _ = remove_if_stale(&*directory, &journal_name(of.stem));
            }
            match older {
                Some(copy) => new.older = Some(copy.give_to(&new.file, len).map_err(sized)?),
                None => ftruncate(&new.file, len).map_err(sized)?,
            }
            new.direct = new.open_direct();
            return Ok(Made { part: new, changed });
        }
        Err(busy(&directory, &part, &shown))
    }

    fn taken_over(directory: Arc<Handle>, name: Name, len: u64, found: Found) -> Self {
        let mut part = Self {
            directory,
            name,
            file: found.file,
            direct: None,
            len,
            inode: (found.status.device, found.status.inode),
            natural_mode: found.natural_mode,
            writing: Mutex::new(()),
            _counted: Vec::new(),
            _writing: None,
            named: AtomicBool::new(true),
            claims: found.claims,
            older: None,
            by_content: false,
            over: None,
            recording: Mutex::new(Recording::On(found.journal)),
            sync_failure: OnceLock::new(),
        };
        part.direct = part.open_direct();
        part
    }

    /// The file that was seen under this name, itself: it is written where it stands. What it has is
    /// compared in chunks of this size and before this one, or dropped. It is never removed.
    pub(crate) fn over(
        directory: Arc<Handle>,
        name: &Name,
        seen: &Status,
        len: u64,
        compared: Option<(ChunkSize, u64)>,
    ) -> Result<Self, StorageError> {
        let (file, status) = in_place::open(&directory, name, seen)?;
        let (chunk_bytes, chunks) = compared.map_or((0, 0), |(chunk, most)| {
            (
                chunk.bytes(),
                whole_chunks(chunk, status.len, len).min(most),
            )
        });
        let kept = chunks.saturating_mul(chunk_bytes).min(len);
        in_place::fit(&file, &status, kept, len).map_err(|errno| {
            StorageError::new("set the length of", directory.shown(name), errno)
        })?;
        let mut part = Self {
            directory,
            name: name.clone(),
            file,
            direct: None,
            writing: Mutex::new(()),
            len,
            inode: (status.device, status.inode),
            natural_mode: status.mode,
            _counted: Vec::new(),
            _writing: None,
            named: AtomicBool::new(false),
            claims: Claims::default(),
            older: Some(Older::Within { chunks }),
            by_content: false,
            over: Some(kept),
            recording: Mutex::new(Recording::Off),
            sync_failure: OnceLock::new(),
        };
        part.direct = part.open_direct();
        Ok(part)
    }

    /// Which inode it is if that is the one that it is to replace.
    pub(crate) fn over_inode(&self) -> Option<(u64, u64)> {
        self.over.map(|_| self.inode)
    }

    /// What an earlier run says that it has written. Nothing of it is proved.
    pub(crate) fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Where the bytes of what it is to replace are to be had, if anywhere.
    pub(crate) fn older(&self) -> Option<&Older> {
        self.older.as_ref()
    }

    /// Whether what it is to replace stays if its content turns out to be the same.
    pub(crate) fn is_by_content(&self) -> bool {
        self.by_content
    }

    /// Whether there may be bytes in it that nobody has proved: holes of the source must be emptied.
    pub(crate) fn has_bytes_of_old(&self) -> bool {
        !self.claims.is_empty() || matches!(self.older, Some(Older::Within { .. }))
    }

    /// Whether records of it are of any use.
    pub(crate) fn is_recorded(&self) -> bool {
        !matches!(*self.recording(), Recording::Off)
    }

    /// Whether anything has been recorded of it.
    pub(crate) fn has_journal(&self) -> bool {
        matches!(*self.recording(), Recording::On(_))
    }

    /// Records that these chunks are written and proved; with `sync` once they are on the disk.
    /// Whatever fails ends the recording: the file itself is none the worse, unless its bytes could not
    /// be synced ([`Self::sync_failure`]).
    pub(crate) fn record(&self, records: &[Record], sync: bool) {
        let mut recording = self.recording();
        if matches!(*recording, Recording::Off) || records.is_empty() {
            return;
        }
        if sync
            && self.directory.media.can_sync()
            && let Err(errno) = fdatasync(&self.file)
        {
            // The kernel tells it once: the sync before the rename would find nothing wrong, though
            // bytes that it was to write are gone.
            let _ = self.sync_failure.set(errno);
            if let Recording::On(journal) = &*recording {
                journal.remove(&self.directory);
            }
            *recording = Recording::Off;
            return;
        }
        if let Recording::Wanted(identity) = &*recording {
            *recording = match Journal::create(&self.directory, identity) {
                Ok(Some(journal)) => Recording::On(journal),
                Ok(None) | Err(_) => Recording::Off,
            };
        }
        if let Recording::On(journal) = &mut *recording
            && journal.append(records).is_err()
        {
            journal.remove(&self.directory);
            *recording = Recording::Off;
        }
    }

    /// Why its bytes may never reach the disk, though a sync from now on may say otherwise. Waits for
    /// what is being recorded.
    pub(crate) fn sync_failure(&self) -> Option<Errno> {
        let _recorded = self.recording();
        self.sync_failure.get().copied()
    }

    /// The run is interrupted: the file stays for one that goes on, if there is a journal of it.
    pub(crate) fn keep(&self) {
        if self.has_journal() {
            self.named.store(false, Ordering::Release);
        }
    }

    /// Makes a range zeros: what an earlier run wrote there is not what belongs there.
    pub(crate) fn clear(&self, range: ByteRange) -> io::Result<()> {
        Ok(resume::clear(&self.file, range)?)
    }

    /// Reads what is there, from `offset` on; less than `buffer` holds only at the end of the file.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        read_at(&self.file, buffer, offset)
    }

    fn recording(&self) -> std::sync::MutexGuard<'_, Recording> {
        self.recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn remove_journal(&self) {
        let recording = std::mem::replace(&mut *self.recording(), Recording::Off);
        if let Recording::On(journal) = recording {
            journal.remove(&self.directory);
        }
    }

    /// The same, its descriptors counted, and written for somebody who is called so.
    pub(crate) fn counted(mut self, hold: impl Fn() -> Hold, writer: &Arc<str>) -> Self {
        self._writing = Some(Writing::new(self.inode, Arc::clone(writer)));
        self._counted.push(hold());
        if matches!(self.older, Some(Older::Beside { .. })) {
            self._counted.push(hold());
        }
        self
    }

    /// The mode that the kernel gave it when it was made.
    pub(crate) fn natural_mode(&self) -> u32 {
        self.natural_mode
    }

    pub(crate) fn directory(&self) -> &Arc<Handle> {
        &self.directory
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The hidden name is gone: it was renamed.
    pub(crate) fn renamed(&self) {
        self.named.store(false, Ordering::Release);
        self.remove_journal();
    }

    /// Removes the hidden name, if it still is this file.
    pub(crate) fn remove(&self) {
        if self.named.swap(false, Ordering::AcqRel) {
            if is_still(&self.directory, &self.name, self.inode) {
                // Nobody is left to be told; the next run that writes here sweeps what stays.
                let _ = unlinkat(&self.directory, self.name.as_bytes(), AtFlags::empty());
            }
            self.remove_journal();
        }
    }

    /// A second descriptor without the page cache, for long files on devices. `None` wherever it
    /// does not work: it only saves time.
    fn open_direct(&self) -> Option<OwnedFd> {
        if self.len < DIRECT_BYTES_MIN || self.directory.media != Media::Disk {
            return None;
        }
        let flags =
            OFlags::WRONLY | OFlags::DIRECT | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let direct = openat(&self.directory, self.name.as_bytes(), flags, Mode::empty()).ok()?;
        let told = statx(
            &direct,
            c"",
            AtFlags::EMPTY_PATH,
            StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN,
        )
        .ok()?;
        let same = Status::from(&told);
        if (same.device, same.inode) != self.inode {
            return None;
        }
        if StatxFlags::from_bits_retain(told.stx_mask).contains(StatxFlags::DIOALIGN) {
            let needed = told.stx_dio_mem_align.max(told.stx_dio_offset_align);
            // 0 means that direct IO does not work on this file, whatever the open said.
            if told.stx_dio_offset_align == 0 || needed > DIRECT_ALIGNMENT_BYTES {
                return None;
            }
        }
        Some(direct)
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        self.remove();
    }
}

impl SinkFile for PartFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        write_all_at(&self.file, bytes, offset)
    }

    fn direct(&self) -> Option<DirectIo<'_>> {
        let fd = self.direct.as_ref()?.as_fd();
        Some(DirectIo {
            fd,
            alignment_bytes: DIRECT_ALIGNMENT_BYTES,
        })
    }

    fn allocate(&self, ranges: &[ByteRange]) -> io::Result<()> {
        let ranges = ranges.iter().map(|range| {
            range.intersect(ByteRange {
                // What is there already is not touched before it is known to differ.
                start: self.over.unwrap_or(0),
                end: self.len,
            })
        });
        // Of what does not fit, a file system may take all that is left before it says so, and what
        // would fit beside it fails too.
        room_for(&self.file, ranges.clone().map(ByteRange::len).sum())?;
        if self.directory.media == Media::Memory {
            // Reserving pages there costs as much as writing them; asking is free.
            return Ok(());
        }
        for range in ranges.filter(|range| !range.is_empty()) {
            loop {
                match fallocate(
                    &self.file,
                    FallocateFlags::empty(),
                    range.start,
                    range.len(),
                ) {
                    Ok(()) => break,
                    Err(Errno::INTR) => {}
                    Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(()),
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(())
    }
}

fn create_new(directory: &Handle, part: &Name, mode: Mode) -> rustix::io::Result<OwnedFd> {
    create(directory, part.as_bytes(), OFlags::RDWR, mode)
}

fn is_still(directory: &Handle, name: &Name, inode: (u64, u64)) -> bool {
    Status::at(directory, name).is_ok_and(|seen| (seen.device, seen.inode) == inode)
}

/// Removes a part file that an earlier run of ours left, and nothing else. `Ok` says to try again.
fn remove_leftover(
    directory: &Handle,
    name: &Name,
    part: &Name,
    shown: &[u8],
) -> Result<(), StorageError> {
    let judged = remove_if_stale(directory, part)
        .map_err(|errno| StorageError::new("take over the part file of", shown, errno))?;
    match judged {
        Leftover::Gone => Ok(()),
        Leftover::Stale(..) => {
            // Without its part file it is of no use to anybody. What stays is proved or swept.
            let _ = remove_if_stale(directory, &journal_name(stem_of(name)));
            Ok(())
        }
        Leftover::Busy => {
            // By another writer, or for a moment by somebody who looks whether it is a leftover.
            std::thread::sleep(BUSY_PAUSE);
            Ok(())
        }
        Leftover::Doubtful | Leftover::Foreign => Err(foreign(directory, part, shown)),
    }
}

fn busy(directory: &Handle, part: &Name, shown: &[u8]) -> StorageError {
    let seen = Status::at(directory, part).ok();
    let text = busy_text(shown, seen.map(|seen| (seen.device, seen.inode)));
    StorageError::refused("write", shown, FaultCode::Busy, text)
}

/// That another transfer writes what is shown so, into this inode.
fn busy_text(shown: &[u8], inode: Option<(u64, u64)>) -> String {
    let who = inode.and_then(writer_of);
    format!(
        "another transfer is writing '{}'{}; wait for it or stop it",
        ShownPath(shown),
        who.map_or_else(String::new, |who| format!(" ({who})"))
    )
}

fn foreign(directory: &Handle, part: &Name, shown: &[u8]) -> StorageError {
    let text = format!(
        "'{}' is in the way and not a part file of this user; look at it and remove it",
        ShownPath(&directory.shown(part))
    );
    StorageError::refused("write", shown, FaultCode::Denied, text)
}

fn room_for(file: impl AsFd, bytes: u64) -> io::Result<()> {
    let told = fstatvfs(&file)?;
    let free = told.f_bavail.saturating_mul(told.f_frsize);
    // No blocks at all: the file system has no limit of its own.
    if told.f_blocks == 0 || free >= bytes {
        return Ok(());
    }
    // What an interrupted run left has some of it already.
    let missing = bytes.saturating_sub(Status::of(file)?.allocated);
    match free >= missing {
        true => Ok(()),
        false => Err(Errno::NOSPC.into()),
    }
}
