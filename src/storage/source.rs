//! Where a sender's bytes come from: the sources of one transfer.
//!
//! In: what was asked for, then handles. Out: manifest pages, open files, packs full of small files
//! with their proofs, and whether a file is still what it was. Entries that were handed out are
//! remembered until [`Source::forget`], so memory is bounded by what the receiver has not settled.
//! The source does not know credit, regions or the order of the conversation.
//!
//! All methods take `&self`: a page can be walked while packs are filled. `Tour` walks, the table
//! of files answers for handles, and both share the directories that are held open.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl};

use super::at;
use super::directory::{Directory, OpenDirectories};
use super::error::StorageError;
use super::extents::{Extents, next_data};
use super::file::SourceFile;
use super::filter::Filters;
use super::root::Root;
use super::status::Status;
use super::tour::Tour;
use super::version::version_of;
use crate::ids::EntryId;
use crate::manifest::{Name, Version};
use crate::units::{ByteRange, ChunkSize};
use crate::wire::FaultCode;
use crate::wire::message::{HashKind, ManifestPage, Preserve};

/// One thing that was asked for.
#[derive(Clone, Debug)]
pub struct SourceSpec {
    /// The export, or the local directory that it lies in.
    pub root: Arc<Root>,
    /// Its path below the root; empty for the root itself. A trailing slash says that a symlink
    /// stands for its target even if symlinks are carried as such.
    pub path: Vec<u8>,
}

/// How sources are walked and proved.
#[derive(Clone, Debug)]
pub struct WalkOptions {
    /// Directories are walked, not refused.
    pub recursive: bool,
    /// Which of what is found takes part.
    pub filters: Arc<Filters>,
    /// What is told beside data and mtime.
    pub preserve: Preserve,
    /// What proves the files of packs.
    pub hash: HashKind,
    /// The transfer's chunk size.
    pub chunk: ChunkSize,
}

/// A file that was opened for sending.
#[derive(Clone)]
pub struct OpenSource {
    /// Its bytes.
    pub file: Arc<dyn SourceFile>,
    /// Its version when it was opened.
    pub version: Version,
    /// Its length then, in bytes.
    pub len: u64,
    extents: Arc<Extents>,
}

/// The sources of one transfer.
pub struct Source {
    pub(super) options: WalkOptions,
    tour: Mutex<Tour>,
    files: Files,
    directories: OpenDirectories,
}

/// Where a file is.
#[derive(Debug)]
pub(super) enum Location {
    /// It is a source itself.
    Root(SourceSpec),
    /// It has this name in a directory.
    In(Arc<Directory>, Name),
}

/// Files by handle.
#[derive(Debug, Default)]
pub(super) struct Files(Mutex<HashMap<EntryId, Arc<Location>>>);

impl Source {
    /// The sources of a transfer; root n of the manifest is the n-th.
    pub fn new(sources: Vec<SourceSpec>, options: WalkOptions) -> Self {
        Self {
            tour: Mutex::new(Tour::new(sources, options.clone())),
            options,
            files: Files::default(),
            directories: OpenDirectories::default(),
        }
    }

    /// The next page of the manifest. What can't be had is told in it. After the last page, empty
    /// last pages follow.
    ///
    /// # Errors
    /// When nothing of what was asked for can be done on this machine.
    pub fn next_page(&self) -> Result<ManifestPage, StorageError> {
        let mut tour = self.tour.lock().unwrap_or_else(PoisonError::into_inner);
        tour.next_page(&self.directories, &self.files)
    }

    /// Opens a file that was told and not forgotten.
    pub fn open_file(&self, entry: EntryId) -> Result<OpenSource, StorageError> {
        let location = self.files.get(entry)?;
        let (file, status) = self.open_at(&location)?;
        // Regular files ignore O_NONBLOCK, but io_uring would answer reads of it with EAGAIN on file
        // systems that can't read without waiting.
        let blocking =
            fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags - OFlags::NONBLOCK));
        blocking.map_err(|errno| StorageError::new("open", location.path(), errno))?;
        let file = Arc::new(ReadFile(file.into()));
        Ok(OpenSource {
            file,
            version: version_of(&status),
            len: status.len,
            extents: Arc::new(Extents::new(status.len, status.allocated)),
        })
    }

    /// Where the file has data within `range`, in at most `max` extents.
    pub fn extents(&self, file: &OpenSource, range: ByteRange, max: usize) -> Vec<ByteRange> {
        file.extents.of(file.file.as_fd(), range, max)
    }

    /// Where the file has data next, from `position` on; its length if there is no more.
    pub fn next_data(&self, file: &OpenSource, position: u64) -> u64 {
        next_data(file.file.as_fd(), position, file.len)
    }

    /// Whether the open file still has this version. A file that can't be looked at has not.
    pub fn unchanged(&self, file: &dyn SourceFile, version: Version) -> bool {
        Status::of(file.as_fd()).is_ok_and(|status| version_of(&status) == version)
    }

    /// Makes the next reads of `range` come from the device, as far as the kernel can forget it:
    /// a proof that did not match is computed afresh.
    pub fn drop_cache(&self, file: &dyn SourceFile, range: ByteRange) {
        // Only a hint: pages that are dirty or mapped stay, and are the file's content anyway.
        let _ = fadvise(
            file.as_fd(),
            range.start,
            NonZeroU64::new(range.len()),
            Advice::DontNeed,
        );
    }

    /// The entry is settled: nothing will be asked of it any more.
    pub fn forget(&self, entry: EntryId) {
        self.files.remove(entry);
    }

    /// How many files are remembered.
    pub fn remembered(&self) -> usize {
        self.files.len()
    }

    pub(super) fn location(&self, entry: EntryId) -> Result<Arc<Location>, StorageError> {
        self.files.get(entry)
    }

    pub(super) fn open_at(&self, location: &Location) -> Result<(OwnedFd, Status), StorageError> {
        match location {
            Location::Root(spec) => spec.root.open_regular(&spec.path),
            Location::In(directory, name) => {
                let held = self.directories.open(directory)?;
                at::open_regular(&held, name)
                    .map_err(|errno| StorageError::new("open", location.path(), errno))
            }
        }
    }
}

impl Location {
    /// The path for messages.
    pub(super) fn path(&self) -> Vec<u8> {
        match self {
            Self::Root(spec) => spec.path.clone(),
            Self::In(directory, name) => directory.path_of(name.as_bytes()),
        }
    }
}

impl Files {
    pub(super) fn insert(&self, entry: EntryId, location: Location) {
        self.locked().insert(entry, Arc::new(location));
    }

    fn get(&self, entry: EntryId) -> Result<Arc<Location>, StorageError> {
        self.locked().get(&entry).map(Arc::clone).ok_or_else(|| {
            let text = format!("entry {entry} is not a file of this transfer, or is settled");
            StorageError::refused("open", *b"", FaultCode::Protocol, text)
        })
    }

    fn remove(&self, entry: EntryId) {
        self.locked().remove(&entry);
    }

    fn len(&self) -> usize {
        self.locked().len()
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<EntryId, Arc<Location>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct ReadFile(File);

impl SourceFile for ReadFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        read_at(&self.0, buffer, offset)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `pread(2)` that outlasts signals.
pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, offset) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            answer => return answer,
        }
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
