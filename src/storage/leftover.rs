//! What runs that died left behind: telling it from what is being written, and removing it.
//!
//! In: a directory, and names in it. Out: whether a name is a part file that nobody works on any
//! more, and its removal. The proof has four parts: the name carries the mark of [`part_name`], it
//! belongs to this user, nobody holds its lock, and that lock works here. Whoever writes a part
//! file holds its lock from the moment it is there; the kernel drops it with the process. What
//! can't be locked - a symlink, a second name of a file, any file where there are no locks - is left
//! alone until it is an hour old: such names live for moments. A part file with a journal was left to
//! be gone on with, so a sweep spares both for a week; whoever writes that very file decides by
//! itself. Nothing here knows transfers.
//!
//! [`part_name`]: super::part_name

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::{self, Errno};

use super::at::{DIRECTORY_BUFFER_BYTES, open_again, read_directory};
use super::calls::unlinkat;
use super::open_up::OpenedUp;
use super::part_name::{Hidden, hidden, is_part_name, journal_name, part_name};
use super::status::Status;
use crate::manifest::Name;
use crate::wire::message::{Cleaning, Fate, Why};

/// How old a hidden name must be if there is no lock to go by.
const UNLOCKED_AGE_SECONDS: i64 = 3600;
/// How long a part file stays that could be gone on with, from the last time that anything was
/// recorded of it: an interrupted copy of a Friday can go on after the week-end and a day of leave.
const RESUMABLE_AGE_SECONDS: i64 = 7 * 24 * 3600;
/// How long a directory that was swept is not swept again by this process, which removes its own
/// part files by itself. Many small transfers into one huge directory don't list it each time.
const SWEPT_FOR: Duration = Duration::from_secs(600);
/// Directories whose sweep is remembered; beyond that all are forgotten.
const SWEPT_MAX: usize = 4096;

/// What a try to lock a file came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    /// It is ours while the descriptor is open.
    Taken,
    /// Somebody else has it.
    Busy,
    /// There are no locks here.
    None,
}

/// Locks a file against other transfers.
pub(crate) fn lock(file: impl AsFd) -> io::Result<Lock> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock::Taken),
        Err(Errno::WOULDBLOCK) => Ok(Lock::Busy),
        Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK | Errno::INVAL) => Ok(Lock::None),
        Err(errno) => Err(errno),
    }
}

/// What stands under the name of a part file.
#[derive(Debug)]
pub(crate) enum Leftover {
    /// Nothing.
    Gone,
    /// Left by a run that is over. The lock, if there is one, is held by the descriptor.
    Stale(Option<OwnedFd>, Status),
    /// Somebody is writing it.
    Busy,
    /// It can't be told whether somebody is at work on it.
    Doubtful,
    /// It is not ours.
    Foreign,
}

/// Judges what stands under this name.
pub(crate) fn judge(directory: impl AsFd, name: &Name) -> io::Result<Leftover> {
    let directory = directory.as_fd();
    if !is_part_name(name.as_bytes()) {
        return Ok(Leftover::Foreign);
    }
    let seen = match Status::at(directory, name) {
        Err(Errno::NOENT) => return Ok(Leftover::Gone),
        answer => answer?,
    };
    let user = rustix::process::geteuid();
    // Root gives a file to its owner before it renames it.
    let is_ours = seen.uid == user.as_raw() || user.is_root();
    if !is_ours || !(seen.is_file() || seen.is_symlink()) {
        return Ok(Leftover::Foreign);
    }
    // To remove one name of several, or a symlink, never loses content.
    if seen.is_symlink() || seen.links > 1 {
        return Ok(by_age(seen));
    }
    let Some(file) = open(directory, name, &seen)? else {
        return Ok(Leftover::Gone);
    };
    match lock(&file)? {
        Lock::Busy => Ok(Leftover::Busy),
        Lock::None => Ok(by_age(seen)),
        // It may have been renamed, or replaced, in the meantime.
        Lock::Taken if !is_still(directory, name, &seen) => Ok(Leftover::Gone),
        Lock::Taken => Ok(Leftover::Stale(Some(file), seen)),
    }
}

/// Removes what stands under this name if nobody is at work on it; tells what it was.
pub(crate) fn remove_if_stale(directory: impl AsFd, name: &Name) -> io::Result<Leftover> {
    let directory = directory.as_fd();
    let (lock, seen) = match judge(directory, name)? {
        Leftover::Stale(lock, seen) => (lock, seen),
        other => return Ok(other),
    };
    if is_still(directory, name, &seen) {
        match unlinkat(directory, name.as_bytes(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    // Held until here: whoever made it and was not quick enough to lock it finds it gone.
    drop(lock);
    Ok(Leftover::Stale(None, seen))
}

/// Removes all that is stale in a directory; how many names that were.
pub(crate) fn sweep(directory: impl AsFd) -> io::Result<u64> {
    // A descriptor of its own: where a listing stands is kept with it.
    let listed = open_again(directory)?;
    let mut buffer = Box::new_uninit_slice(DIRECTORY_BUFFER_BYTES);
    let mut removed = 0;
    read_directory(&listed, &mut buffer, |name: &[u8], _| {
        if let Some(name) = hidden(name) {
            removed += sweep_one(listed.as_fd(), name);
        }
        Ok::<(), Errno>(())
    })?;
    Ok(removed)
}

/// How many names were removed. One that can't be judged or removed keeps nobody from the others.
pub(super) fn sweep_one(directory: BorrowedFd<'_>, found: Hidden) -> u64 {
    let remove = |name| {
        let judged = remove_if_stale(directory, &name);
        u64::from(matches!(judged, Ok(Leftover::Stale(..))))
    };
    match found {
        Hidden::Part(stem) if is_resumable(directory, stem) => 0,
        Hidden::Part(stem) => match remove(part_name(stem)) {
            0 => 0,
            removed => removed + remove(journal_name(stem)),
        },
        // Whoever writes the part file made it first.
        Hidden::Journal(stem) => match Status::at(directory, &part_name(stem)) {
            Err(Errno::NOENT) => remove(journal_name(stem)),
            _ => 0,
        },
    }
}

/// Something that a copy left behind, and what became of it.
#[derive(Debug)]
pub(super) struct Judged {
    /// Of the part file, or of the journal without one.
    pub(super) status: Status,
    /// Since the younger of part file and journal changed.
    pub(super) age_s: u64,
    /// What both take on disk.
    pub(super) allocated: u64,
    pub(super) journal: bool,
    pub(super) fate: Fate,
    pub(super) why: Why,
    /// It was to go, and this kept it.
    pub(super) failed: Option<Errno>,
}

/// Judges a name of ours by what is asked for, and removes it, with its journal, if it may go. Nothing
/// for a journal that belongs to a part file, which is judged with that, and for what is gone by now.
///
/// Only what is a regular file, this user's and of one name is ever removed, only while its lock is
/// held, and where there are no locks once it is an hour old. Unlike in a sweep that holds for links
/// too: whoever asks is told of them and can look.
pub(super) fn clean_one(
    directory: impl AsFd,
    found: Hidden,
    which: Cleaning,
    dry_run: bool,
    now_seconds: i64,
) -> io::Result<Option<Judged>> {
    let directory = directory.as_fd();
    let (name, journal) = match found {
        Hidden::Part(stem) => (part_name(stem), seen_at(directory, &journal_name(stem))?),
        Hidden::Journal(stem) => match seen_at(directory, &part_name(stem))? {
            Some(_) => return Ok(None),
            None => (journal_name(stem), None),
        },
    };
    let Some(seen) = seen_at(directory, &name)? else {
        return Ok(None);
    };
    let journal = journal.filter(|journal| cleanable(journal).is_ok());
    let age_of = |seen: &Status| now_seconds.saturating_sub(seen.ctime.seconds);
    let age = journal
        .iter()
        .map(age_of)
        .fold(age_of(&seen), std::cmp::min);
    let judged = |fate, why, failed| {
        let allocated = journal.map_or(0, |journal| journal.allocated);
        Ok(Some(Judged {
            status: seen,
            age_s: u64::try_from(age).unwrap_or(0),
            allocated: seen.allocated.saturating_add(allocated),
            journal: journal.is_some() || matches!(found, Hidden::Journal(_)),
            fate,
            why,
            failed,
        }))
    };
    if let Err(why) = cleanable(&seen) {
        return judged(Fate::Kept, why, None);
    }
    // Opening up what is closed to its owner would change it.
    let opened = match dry_run {
        true => open_as_it_is(directory, &name, &seen),
        false => open(directory, &name, &seen),
    };
    let (file, locked) = match opened {
        Ok(Some(file)) => {
            let locked = lock(&file)?;
            (Some(file), locked)
        }
        Ok(None) => return Ok(None),
        Err(Errno::ACCESS) if dry_run => (None, Lock::None),
        Err(errno) => return judged(Fate::Kept, Why::Doubtful, Some(errno)),
    };
    match locked {
        Lock::Busy => return judged(Fate::Kept, Why::InUse, None),
        Lock::None if age <= UNLOCKED_AGE_SECONDS => {
            return judged(Fate::Kept, Why::Doubtful, None);
        }
        // It may have been renamed, or replaced, in the meantime.
        _ if !is_still(directory, &name, &seen) => return Ok(None),
        Lock::Taken | Lock::None => {}
    }
    let why = match (which, &journal) {
        (Cleaning::Stale, Some(_)) if age <= RESUMABLE_AGE_SECONDS => {
            return judged(Fate::Kept, Why::Resumable, None);
        }
        (Cleaning::OlderThan { age_s }, _) if u64::try_from(age).unwrap_or(0) < age_s => {
            return judged(Fate::Kept, Why::Young, None);
        }
        (_, None) => Why::Abandoned,
        (Cleaning::All, Some(_)) => Why::Asked,
        (_, Some(_)) => Why::Expired,
    };
    if dry_run {
        return judged(Fate::Would, why, None);
    }
    // The journal first, while the lock of its part file is held: afterwards it may be another's.
    let stem = match found {
        Hidden::Part(stem) => Some(stem),
        Hidden::Journal(_) => None,
    };
    let journal_name = stem.map(journal_name);
    let pairs = [
        journal_name.as_ref().zip(journal.as_ref()),
        Some((&name, &seen)),
    ];
    for (name, seen) in pairs.into_iter().flatten() {
        if is_still(directory, name, seen) {
            match unlinkat(directory, name.as_bytes(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return judged(Fate::Kept, why, Some(errno)),
            }
        }
    }
    drop(file);
    judged(Fate::Removed, why, None)
}

/// Whether it is a file that a copy by this user can have left, or why it is not.
fn cleanable(seen: &Status) -> Result<(), Why> {
    let user = rustix::process::geteuid();
    if !seen.is_file() {
        return Err(Why::NoFile);
    }
    // Root gives a file to its owner before it renames it.
    if seen.uid != user.as_raw() && !user.is_root() {
        return Err(Why::Foreign);
    }
    match seen.links {
        0 | 1 => Ok(()),
        _ => Err(Why::Linked),
    }
}

/// What has this name, if anything has.
fn seen_at(directory: BorrowedFd<'_>, name: &Name) -> io::Result<Option<Status>> {
    match Status::at(directory, name) {
        Ok(seen) => Ok(Some(seen)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Whether a run may still go on with the part file of this stem. Only whether it is young and may be
/// ours is looked at: what the journal is worth is found out by who needs it.
fn is_resumable(directory: BorrowedFd<'_>, stem: u64) -> bool {
    let user = rustix::process::geteuid().as_raw();
    Status::at(directory, &journal_name(stem)).is_ok_and(|journal| {
        journal.is_file() && journal.uid == user && age_seconds(&journal) <= RESUMABLE_AGE_SECONDS
    })
}

/// Which directories were swept a short while ago.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sweeper(Arc<Mutex<HashMap<(u64, u64), Instant>>>);

impl Sweeper {
    /// The one that all transfers of this process share.
    pub(crate) fn of_process() -> Self {
        static SHARED: LazyLock<Sweeper> = LazyLock::new(Sweeper::default);
        SHARED.clone()
    }

    /// Sweeps a directory, which has this file system and number, unless that was done lately.
    /// It only tidies up, so what it fails at is left. Whether anything was removed.
    pub(crate) fn sweep(&self, directory: impl AsFd, inode: (u64, u64)) -> bool {
        let now = Instant::now();
        {
            let mut swept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let lately = |at: &Instant| now.duration_since(*at) < SWEPT_FOR;
            if swept.get(&inode).is_some_and(lately) {
                return false;
            }
            if swept.len() >= SWEPT_MAX {
                swept.clear();
            }
            swept.insert(inode, now);
        }
        sweep(directory).is_ok_and(|removed| removed > 0)
    }
}

fn by_age(seen: Status) -> Leftover {
    if age_seconds(&seen) > UNLOCKED_AGE_SECONDS {
        Leftover::Stale(None, seen)
    } else {
        Leftover::Doubtful
    }
}

/// Since the file was last changed in any way. Not its mtime: whoever may write the file sets that.
fn age_seconds(seen: &Status) -> i64 {
    now_seconds().saturating_sub(seen.ctime.seconds)
}

/// Since 1970.
pub(super) fn now_seconds() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Opens the file that was seen, if it is still there. A lock needs no right to read.
fn open(directory: impl AsFd, name: &Name, seen: &Status) -> io::Result<Option<OwnedFd>> {
    let directory = directory.as_fd();
    match open_as_it_is(directory, name, seen) {
        // It has the mode of its source, which may close it even to its owner.
        Err(Errno::ACCESS) => {
            OpenedUp::below(directory, name.as_bytes(), 0o400)?;
            open_as_it_is(directory, name, seen)
        }
        answer => answer,
    }
}

/// The same with the mode that it has.
fn open_as_it_is(
    directory: BorrowedFd<'_>,
    name: &Name,
    seen: &Status,
) -> io::Result<Option<OwnedFd>> {
    // NONBLOCK: a FIFO put in its place must not hold us up.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = openat(
        directory,
        name.as_bytes(),
        flags | OFlags::RDONLY,
        Mode::empty(),
    );
    let file = match opened {
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
        answer => answer?,
    };
    let opened = Status::of(&file)?;
    Ok((opened.is_file() && opened.same_file(seen)).then_some(file))
}

fn is_still(directory: impl AsFd, name: &Name, seen: &Status) -> bool {
    Status::at(directory, name).is_ok_and(|now| now.same_file(seen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::part_name::part_name;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    fn names(path: &Path) -> Vec<Vec<u8>> {
        let all = fs::read_dir(path).unwrap();
        let mut names: Vec<_> = all
            .map(|entry| entry.unwrap().file_name().into_encoded_bytes())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn only_what_is_ours_and_nobodys_work_is_swept() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &Name| top.path().join(name.as_os_str());
        let [stale, closed, live, link, second, directory] = [1, 2, 3, 4, 5, 6].map(part_name);
        let own = Name::new(&b".rdcp-0123456789abcdef.part"[..]).unwrap();
        for name in [&stale, &closed, &live, &own] {
            fs::write(at(name), "x").unwrap();
        }
        fs::set_permissions(at(&closed), fs::Permissions::from_mode(0o000)).unwrap();
        let held = fs::File::open(at(&live)).unwrap();
        assert_eq!(lock(&held).unwrap(), Lock::Taken);
        // Too young to be judged without a lock.
        symlink("nowhere", at(&link)).unwrap();
        fs::hard_link(at(&own), at(&second)).unwrap();
        fs::create_dir(at(&directory)).unwrap();

        let open = fs::File::open(top.path()).unwrap();
        assert_eq!(sweep(&open).unwrap(), 2);
        let mut left: Vec<_> = [&live, &link, &second, &directory, &own]
            .map(|name| name.as_bytes().to_vec())
            .into();
        left.sort();
        assert_eq!(names(top.path()), left);
        let judged = judge(&open, &live).unwrap();
        assert!(matches!(judged, Leftover::Busy), "{judged:?}");
        let judged = judge(&open, &own).unwrap();
        assert!(matches!(judged, Leftover::Foreign), "{judged:?}");

        // The process that wrote it has ended.
        drop(held);
        assert_eq!(sweep(&open).unwrap(), 1);
        assert!(fs::symlink_metadata(at(&live)).is_err());
    }

    #[test]
    fn what_can_be_gone_on_with_is_spared_and_journals_go_with_their_files() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: Name| top.path().join(name.as_os_str());
        for name in [part_name(1), journal_name(1), part_name(2), journal_name(3)] {
            fs::write(at(name), "x").unwrap();
        }
        // A link is no journal, and what it leads to is nobody's business.
        symlink(at(part_name(1)), at(journal_name(2))).unwrap();
        let open = fs::File::open(top.path()).unwrap();
        sweep(&open).unwrap();
        let mut left =
            [part_name(1), journal_name(1), journal_name(2)].map(|name| name.as_bytes().to_vec());
        left.sort();
        assert_eq!(names(top.path()), left);
        // The stem's user is done with it: only a young journal spares a part file.
        fs::remove_file(at(journal_name(1))).unwrap();
        assert_eq!(sweep(&open).unwrap(), 1);
        assert!(!at(part_name(1)).exists());
    }

    #[test]
    fn what_is_cleaned_is_ours_of_one_name_and_nobodys_work() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: Name| top.path().join(name.as_os_str());
        let open = fs::File::open(top.path()).unwrap();
        let clean_at = |found, which, now| {
            let judged = clean_one(&open, found, which, false, now).unwrap();
            judged.map(|judged| (judged.fate, judged.why))
        };
        let (now, all) = (now_seconds(), Cleaning::All);
        // A week and a bit later; the same in a week less a bit.
        for (later, expected) in [
            (RESUMABLE_AGE_SECONDS - 60, (Fate::Kept, Why::Resumable)),
            (RESUMABLE_AGE_SECONDS + 60, (Fate::Removed, Why::Expired)),
        ] {
            fs::write(at(part_name(1)), "x").unwrap();
            fs::write(at(journal_name(1)), "x").unwrap();
            assert_eq!(
                clean_at(Hidden::Journal(1), Cleaning::Stale, now + later),
                None
            );
            let judged = clean_at(Hidden::Part(1), Cleaning::Stale, now + later);
            assert_eq!(judged, Some(expected));
        }
        assert_eq!(names(top.path()), Vec::<Vec<u8>>::new());
        assert_eq!(clean_at(Hidden::Part(1), all, now), None);

        fs::write(at(part_name(2)), "x").unwrap();
        let held = fs::File::open(at(part_name(2))).unwrap();
        assert_eq!(lock(&held).unwrap(), Lock::Taken);
        fs::write(top.path().join("content"), "x").unwrap();
        fs::hard_link(top.path().join("content"), at(part_name(3))).unwrap();
        symlink("content", at(part_name(4))).unwrap();
        fs::create_dir(at(part_name(5))).unwrap();
        fs::write(at(journal_name(6)), "x").unwrap();
        // A link is nobody's journal: its part file has none, and it stays.
        fs::write(at(part_name(7)), "x").unwrap();
        symlink("content", at(journal_name(7))).unwrap();
        let long_after = now + 100 * RESUMABLE_AGE_SECONDS;
        for (found, expected) in [
            (Hidden::Part(2), (Fate::Kept, Why::InUse)),
            (Hidden::Part(3), (Fate::Kept, Why::Linked)),
            (Hidden::Part(4), (Fate::Kept, Why::NoFile)),
            (Hidden::Part(5), (Fate::Kept, Why::NoFile)),
            (Hidden::Journal(6), (Fate::Removed, Why::Abandoned)),
            (Hidden::Part(7), (Fate::Removed, Why::Abandoned)),
            (Hidden::Journal(7), (Fate::Kept, Why::NoFile)),
        ] {
            assert_eq!(
                clean_at(found, all, long_after),
                Some(expected),
                "{found:?}"
            );
        }
    }

    #[test]
    fn what_has_no_lock_is_judged_by_its_age() {
        let top = tempfile::tempdir().unwrap();
        let file = top.path().join("f");
        fs::write(&file, "x").unwrap();
        let mut seen = Status::of(fs::File::open(&file).unwrap()).unwrap();
        assert!(matches!(by_age(seen), Leftover::Doubtful));
        seen.ctime.seconds -= UNLOCKED_AGE_SECONDS + 2;
        assert!(matches!(by_age(seen), Leftover::Stale(None, _)));
    }

    #[test]
    fn a_directory_is_swept_once_in_a_while() {
        let top = tempfile::tempdir().unwrap();
        let file = top.path().join(part_name(1).as_os_str());
        let open = fs::File::open(top.path()).unwrap();
        let status = Status::of(&open).unwrap();
        let sweeper = Sweeper::default();
        fs::write(&file, "x").unwrap();
        sweeper.sweep(&open, (status.device, status.inode));
        assert!(!file.exists());
        fs::write(&file, "x").unwrap();
        sweeper.sweep(&open, (status.device, status.inode));
        assert!(file.exists());
    }
}
