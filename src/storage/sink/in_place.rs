//! Files that are written where they stand, instead of beside and renamed.
//!
//! In: a name and what was seen there. Out: that file, open for writing, locked, and as long as it is to
//! become. Until it is complete it is neither the old file nor the new one, and its time of modification
//! says so: that is set last. A file with several names is refused, as each of them would change; a
//! symbolic link is never followed. Nothing here knows digests.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use super::directory::Handle;
use crate::manifest::Name;
use crate::storage::at;
use crate::storage::calls::ftruncate;
use crate::storage::error::StorageError;
use crate::storage::leftover::{Lock, lock};
use crate::storage::status::Status;
use crate::storage::writers::writer_of;
use crate::wire::FaultCode;

/// Refuses what must not be written where it stands.
pub(super) fn check(seen: &Status, shown: &[u8]) -> Result<(), StorageError> {
    if seen.links <= 1 {
        return Ok(());
    }
    let text = format!(
        "it has {} names (hard links), and all of them would change; without --inplace this one gets a \
         file of its own",
        seen.links
    );
    let code = FaultCode::WrongKind;
    Err(StorageError::refused("write in place", shown, code, text))
}

/// Opens the file that was seen under this name for writing.
pub(super) fn open(
    directory: &Handle,
    name: &Name,
    seen: &Status,
) -> Result<(OwnedFd, Status), StorageError> {
    let shown = directory.shown(name);
    let failed = |errno| StorageError::new("open for writing", &*shown, errno);
    let (file, status) = match at::open_for_writing(directory, name) {
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ISDIR) => {
            return Err(replaced(&shown));
        }
        answer => answer.map_err(failed)?,
    };
    if !status.same_file(seen) {
        return Err(replaced(&shown));
    }
    check(&status, &shown)?;
    // Two runs at once would each take the other's bytes for those of the older copy.
    if lock(&file).map_err(failed)? == Lock::Busy {
        let who = writer_of((status.device, status.inode));
        let text = format!(
            "{} has it locked; wait for it or stop it",
            who.as_deref().unwrap_or("another process")
        );
        return Err(StorageError::refused(
            "write in place",
            shown,
            FaultCode::Busy,
            text,
        ));
    }
    Ok((file, status))
}

/// Makes a file `len` bytes long, of which only the first `kept` stay.
pub(super) fn fit(file: impl AsFd, status: &Status, kept: u64, len: u64) -> Result<(), Errno> {
    if status.len > kept {
        ftruncate(&file, kept)?;
    }
    if status.len != len || kept < len {
        ftruncate(&file, len)?;
    }
    Ok(())
}

/// Whether the file still has its name.
pub(super) fn check_still(
    directory: &Handle,
    name: &Name,
    inode: (u64, u64),
    shown: &[u8],
) -> Result<(), StorageError> {
    match Status::at(directory, name) {
        Ok(seen) if (seen.device, seen.inode) == inode => Ok(()),
        _ => Err(replaced(shown)),
    }
}

fn replaced(shown: &[u8]) -> StorageError {
    let text = "something else took its place meanwhile; run it again";
    StorageError::refused("write in place", shown, FaultCode::Busy, text)
}
