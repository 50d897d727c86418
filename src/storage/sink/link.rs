//! Hard links, once their file is published.
//!
//! In: entries that are to be another name of a file. Out: the name, or, where the file system
//! can't link, a copy and a note. The file is found again by the path it was published under, with
//! no symlink on the way.

use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

use rustix::fs::{AtFlags, SeekFrom, seek};
use rustix::io::{Errno, pread};

use super::apply::{OWNER_ALL, OWNER_READS};
use super::commit::{Staged, StagedFile, rename};
use super::directory::{Handle, open_strictly};
use super::part::PartFile;
use super::{Job, Results, Sink, State, not_wanted};
use crate::ids::EntryId;
use crate::manifest::Name;
use crate::storage::at;
use crate::storage::calls::{linkat, unlinkat};
use crate::storage::error::StorageError;
use crate::storage::file::SinkFile;
use crate::storage::open_up::OpenedUp;
use crate::storage::status::Status;
use crate::wire::message::RemarkKind;
use crate::wire::{Fault, FaultCode};

/// Bytes that a copy moves at once.
const COPY_BYTES: usize = 256 << 10;
/// Longest path handed to the kernel at once; longer ones are opened in steps.
const STEP_BYTES_MAX: usize = 2048;

/// By entry, whether a name was made that was not there.
pub(crate) type LinkResults = Vec<(EntryId, Result<bool, Fault>)>;

/// What linking came to.
enum Linked {
    /// It is in this directory now.
    Made(Arc<Handle>),
    /// It was that file's name before.
    Already,
    /// The file system does not link these; the file to copy.
    Impossible(OwnedFd, Status),
}

impl Sink {
    /// Makes one wanted hard link; `false` if it was there.
    pub fn link(&self, entry: EntryId) -> Result<bool, Fault> {
        let mut results = self.link_all(&[entry]);
        results
            .pop()
            .map_or_else(|| Err(not_wanted(entry)), |(_, result)| result)
    }

    /// Makes wanted hard links; each directory is synced once. Their files must have been
    /// published, or found unchanged, before.
    pub fn link_all(&self, entries: &[EntryId]) -> LinkResults {
        let mut results: LinkResults = Vec::with_capacity(entries.len());
        let mut made = Vec::new();
        let mut copies = Vec::new();
        for &entry in entries {
            let (job, to) = match self.take_for_job(entry) {
                Ok((job, State::Link(to))) => (job, to),
                Ok((_, state)) => {
                    self.give_back(entry, state);
                    results.push((entry, Err(not_wanted(entry))));
                    continue;
                }
                Err(fault) => {
                    results.push((entry, Err(fault)));
                    continue;
                }
            };
            let parent = job.parent.clone();
            match self.link_or_reopen(&job, to) {
                Ok(Linked::Made(directory)) => made.push((entry, parent, directory)),
                Ok(Linked::Already) => {
                    self.give_back(entry, State::Done);
                    results.push((entry, Ok(false)));
                }
                Ok(Linked::Impossible(file, status)) => {
                    match self.copy(entry, job, &file, &status) {
                        Ok(staged) => copies.push(staged),
                        Err(fault) => {
                            self.give_back(entry, State::Done);
                            results.push((entry, Err(fault)));
                        }
                    }
                }
                Err(fault) => {
                    self.give_back(entry, State::Done);
                    results.push((entry, Err(fault)));
                }
            }
        }
        let mut copied = Results::new();
        self.commit(copies, &mut copied);
        let copied = copied.into_iter();
        results.extend(copied.map(|(entry, result)| (entry, result.map(|()| true))));
        let named = made
            .iter()
            .map(|(_, parent, directory)| (parent, directory));
        let synced = self.sync_names(named);
        for (entry, _, _) in made {
            self.give_back(entry, State::Done);
            results.push((entry, synced.clone().map(|()| true)));
        }
        results
    }

    /// A directory that is finished may be closed even to its owner: it is opened for the moment.
    fn link_or_reopen(&self, job: &Job, to: EntryId) -> Result<Linked, Fault> {
        self.check_running()?;
        match self.link_one(job, to, None) {
            Err(fault) if fault.code == FaultCode::Denied => {}
            answer => return answer,
        }
        // One at a time, or one would close what another has just opened.
        let _only = self
            .reopening
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut opened = Vec::new();
        let answer = self.link_one(job, to, Some(&mut opened));
        for opened in opened.into_iter().rev() {
            let restored = opened.restore();
            restored.map_err(|errno| {
                StorageError::new(
                    "set the mode of the directory of",
                    job.name.as_bytes(),
                    errno,
                )
            })?;
        }
        answer
    }

    fn link_one(
        &self,
        job: &Job,
        to: EntryId,
        mut opened: Option<&mut Vec<OpenedUp>>,
    ) -> Result<Linked, Fault> {
        let directory = self.handle(&job.parent, job.name.as_bytes())?;
        let shown = directory.shown(&job.name);
        let (at, name) = self.find(to, &shown, opened.as_deref_mut())?;
        let link = |new: &Name| {
            linkat(
                &at,
                name.as_bytes(),
                &*directory,
                new.as_bytes(),
                AtFlags::empty(),
            )
        };
        let failed = |errno| StorageError::new("make the hard link", &*shown, errno);
        let mut answer = link(&job.name);
        if answer == Err(Errno::EXIST) {
            let file = Status::at(&at, &name).map_err(failed)?;
            let there = Status::at(&*directory, &job.name).map_err(failed)?;
            if there.same_file(&file) {
                return Ok(Linked::Already);
            }
            let hidden = self.unique.next();
            answer = link(&hidden);
            if answer.is_ok() {
                let renamed = rename(&directory, &hidden, &job.name, self.must_be_new(), &shown);
                if renamed.is_err() {
                    let _ = unlinkat(&*directory, hidden.as_bytes(), AtFlags::empty());
                }
                renamed?;
            }
        }
        match answer {
            Ok(()) => {
                self.table().directories.touch(&job.parent);
                Ok(Linked::Made(directory))
            }
            Err(Errno::MLINK | Errno::XDEV | Errno::PERM | Errno::NOTSUP | Errno::NOSYS) => {
                if let Some(opened) = opened {
                    let file = OpenedUp::below(&at, name.as_bytes(), OWNER_READS);
                    opened.push(file.map_err(failed)?);
                }
                let (file, status) = at::open_regular(&at, &name).map_err(failed)?;
                Ok(Linked::Impossible(file, status))
            }
            Err(errno) => Err(failed(errno).into()),
        }
    }

    /// The directory and name that an entry was published under.
    fn find(
        &self,
        to: EntryId,
        shown: &[u8],
        opened: Option<&mut Vec<OpenedUp>>,
    ) -> Result<(OwnedFd, Name), Fault> {
        let failed = |error: std::io::Error| StorageError::new("find the file of", shown, error);
        let path = {
            let published = self
                .published
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            published.get(to).map_err(failed)?
        };
        let missing = || {
            let text = "the file that it is a hard link to was not published";
            StorageError::refused("make the hard link", shown, FaultCode::NotFound, text)
        };
        let path = path.ok_or_else(missing)?;
        let (held, below) = self.destination.split(&path).ok_or_else(missing)?;
        let (front, last) = match below.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (&below[..slash], &below[slash + 1..]),
            None => (&b""[..], below),
        };
        let name = Name::new(last).map_err(|_| missing())?;
        let directory = match opened {
            Some(opened) => open_closed(&held, front, opened),
            None => open_in_steps(&held, front),
        };
        let directory = directory.map_err(|errno| failed(errno.into()))?;
        Ok((directory, name))
    }

    /// Copies a file that can't be linked, ready to be committed.
    fn copy(
        &self,
        entry: EntryId,
        job: Job,
        file: &OwnedFd,
        status: &Status,
    ) -> Result<Staged, Fault> {
        let directory = self.handle(&job.parent, job.name.as_bytes())?;
        let shown = directory.shown(&job.name);
        let part = PartFile::create(directory.clone(), &job.name, status.len, None, None, None)?;
        let part = part.part.counted(|| self.descriptors.hold(), &self.writer);
        copy_data(file, &part, status.len)
            .map_err(|error| StorageError::new("copy", &*shown, error))?;
        self.notes.of(entry).add(RemarkKind::LinkCopied);
        let mode = self.rules.exact_mode(job.metadata.mode, Some(status.mode));
        self.table().directories.touch(&job.parent);
        let file = StagedFile::Part(Arc::new(part));
        Ok(Staged {
            entry,
            job,
            directory,
            file,
            mode,
        })
    }
}

/// Copies what is data; holes stay holes.
fn copy_data(from: &OwnedFd, to: &PartFile, len: u64) -> std::io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = 0;
    while at < len {
        let start = match seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()),
            // No holes are known here.
            Err(Errno::INVAL | Errno::NOTSUP) => at,
            Err(errno) => return Err(errno.into()),
        };
        let end = seek(from, SeekFrom::Hole(start)).unwrap_or(len).min(len);
        at = start;
        while at < end {
            let room = usize::try_from(end - at).map_or(COPY_BYTES, |left| left.min(COPY_BYTES));
            let got = pread(from, &mut buffer[..room], at)?;
            if got == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            to.write_at(&buffer[..got], at)?;
            at += got as u64;
        }
        at = at.max(end);
    }
    Ok(())
}

/// Opens a directory whose path may be longer than the kernel takes at once.
fn open_in_steps(held: &Handle, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let mut at = open_strictly(held, b".")?;
    let mut rest = path;
    while !rest.is_empty() {
        let cut = if rest.len() <= STEP_BYTES_MAX {
            rest.len()
        } else {
            let slash = rest[..STEP_BYTES_MAX]
                .iter()
                .rposition(|&byte| byte == b'/');
            slash.ok_or(Errno::NAMETOOLONG)?
        };
        at = open_strictly(&at, &rest[..cut])?;
        rest = rest[cut..].strip_prefix(b"/").unwrap_or(&rest[cut..]);
    }
    Ok(at)
}

/// The same, component by component; those that are closed to us and ours are opened up.
fn open_closed(
    held: &Handle,
    path: &[u8],
    opened: &mut Vec<OpenedUp>,
) -> rustix::io::Result<OwnedFd> {
    let mut at = open_strictly(held, b".")?;
    for component in path
        .split(|&byte| byte == b'/')
        .filter(|part| !part.is_empty())
    {
        let name = Name::new(component).map_err(|_| Errno::INVAL)?;
        let user = rustix::process::geteuid().as_raw();
        let seen = Status::at(&at, &name)?;
        if seen.uid == user && seen.mode & OWNER_ALL != OWNER_ALL {
            opened.push(OpenedUp::below(&at, component, OWNER_ALL)?);
        }
        at = open_strictly(&at, component)?;
    }
    Ok(at)
}
