//! Room on disk for tables that outgrow memory: files without a name, gone when they are closed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

/// A new file that has no name: in `$TMPDIR`, else in `/var/tmp`, which is on disk where `/tmp` may
/// be memory, else in `/tmp`.
pub(super) fn scratch_file() -> io::Result<File> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    let wished = std::env::var_os("TMPDIR").map(PathBuf::from);
    for place in wished.into_iter().chain(["/var/tmp".into(), "/tmp".into()]) {
        match nameless(&place).or_else(|_| unlinked(&place)) {
            Ok(file) => return Ok(file),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn nameless(place: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
    Ok(openat(CWD, place, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// For file systems without `O_TMPFILE`.
fn unlinked(place: &Path) -> io::Result<File> {
    let tag = u64::from_le_bytes(crate::sys::random_bytes());
    let path = place.join(format!(".rdcp-{tag:016x}.scratch"));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn scratch_files_have_no_name() {
        assert_eq!(scratch_file().unwrap().metadata().unwrap().nlink(), 0);
        assert_eq!(
            unlinked(&std::env::temp_dir())
                .unwrap()
                .metadata()
                .unwrap()
                .nlink(),
            0
        );
    }
}
