//! Who is writing a file: the second writer of a destination is told who the first one is.
//!
//! In: files that this process has locked, and for whom it writes them. Out: words for a person. Of another
//! process the kernel says which one holds the lock (proc_locks(5)); of one on another host, or in another
//! PID namespace, nobody here can say anything. Only messages depend on it, never what is done.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// A file, by its file system's device (as [`Status`](super::status::Status) has it: the major number in the
/// upper half) and its number there.
type Inode = (u64, u64);

static WRITERS: LazyLock<Mutex<HashMap<Inode, Arc<str>>>> = LazyLock::new(Mutex::default);

fn writers() -> MutexGuard<'static, HashMap<Inode, Arc<str>>> {
    WRITERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// That a file is being written, for as long as this is kept.
#[derive(Debug)]
pub(crate) struct Writing(Inode);

impl Writing {
    /// The file's lock is held by this process, for a transfer that is called so.
    pub(crate) fn new(inode: Inode, who: Arc<str>) -> Self {
        writers().insert(inode, who);
        Self(inode)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        writers().remove(&self.0);
    }
}

/// Who holds the lock of a file, if that can be told.
pub(crate) fn writer_of(inode: Inode) -> Option<String> {
    if let Some(who) = writers().get(&inode) {
        return Some(who.to_string());
    }
    let process = holder(&fs::read_to_string("/proc/locks").ok()?, inode)?;
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    Some(format!(
        "process {process}, {}",
        name.trim_end().escape_debug()
    ))
}

/// The process that holds a whole file's lock.
fn holder(locks: &str, (device, inode): Inode) -> Option<u32> {
    let wanted = format!("{:02x}:{:02x}:{inode}", device >> 32, device & 0xffff_ffff);
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        // Who waits for it has an arrow there.
        let is_held = words.next()? == "FLOCK";
        let (_kind, _access, process) = (words.next()?, words.next()?, words.next()?);
        let is_it = is_held && words.next()? == wanted;
        // 0 or less: in a PID namespace that can't be seen from here.
        is_it.then(|| process.parse().ok().filter(|&pid: &u32| pid > 0))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(major: u64, minor: u64) -> u64 {
        (major << 32) | minor
    }

    #[test]
    fn who_locked_a_file_is_read_from_the_kernels_list() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 08:02:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 08:02:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 08:02:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 0 103:1f:5 0 EOF\n\
                     4: FLOCK\n";
        assert_eq!(holder(locks, (device(8, 2), 77)), Some(12));
        assert_eq!(holder(locks, (device(8, 2), 78)), None);
        assert_eq!(holder(locks, (device(0x103, 0x1f), 5)), None);
    }

    #[test]
    fn a_file_is_written_for_somebody_as_long_as_that_lasts() {
        let inode = (u64::MAX, 1);
        let writing = Writing::new(inode, "transfer 7".into());
        assert_eq!(writer_of(inode).as_deref(), Some("transfer 7"));
        drop(writing);
        assert_eq!(writer_of(inode), None);
    }
}
