//! File systems of a test's own, small ones for example, in mounts that nobody else sees.
//!
//! A test that wants them runs itself again below unshare(1): as root with mounts of its own, else as the
//! root of a user namespace of its own. Everything that it mounts ends with its processes.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Tells the second run of a test that it is that.
const INSIDE: &str = "RDCP_TEST_OWN_MOUNTS";

/// Runs `body` where file systems can be mounted. `test` is the full name of the test that calls this.
#[track_caller]
pub(crate) fn with_own_mounts(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let is_root = rustix::process::geteuid().is_root();
    let unshare = || {
        let mut command = Command::new("unshare");
        command.arg("-m").args((!is_root).then_some("-Ur"));
        command
    };
    let tried = unshare().arg("true").stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        assert!(!is_root, "root can have mounts of its own");
        // A plain write: the test harness swallows what the print macros say.
        let _ = writeln!(
            std::io::stderr(),
            "NOT TESTED, needs root or user namespaces: {test}"
        );
        return;
    }
    let program = std::env::current_exe().expect("the test knows its own path");
    let status = unshare()
        .arg(program)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .expect("it was tried");
    assert!(status.success(), "{test} failed in mounts of its own");
}

/// A tmpfs with so much room. It is unmounted when dropped.
pub(crate) struct SmallFileSystem {
    pub(crate) at: PathBuf,
}

impl SmallFileSystem {
    #[track_caller]
    pub(crate) fn mount(at: PathBuf, bytes: u64) -> Self {
        fs::create_dir_all(&at).expect("a directory can be made");
        mount(
            &["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"],
            &at,
        );
        Self { at }
    }

    /// An ext4 with so much room in a file; nothing where the machine has no loop devices, and that is
    /// said.
    #[track_caller]
    pub(crate) fn mount_disk(at: PathBuf, image: &Path, bytes: u64) -> Option<Self> {
        let file = fs::File::create(image).expect("a file can be made");
        file.set_len(bytes).expect("a file can be made long");
        fs::create_dir_all(&at).expect("a directory can be made");
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F", "-m", "0", "-N", "2048"]).arg(image);
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(image).arg(&at);
        for command in [&mut mkfs, &mut mount] {
            let status = command.stderr(Stdio::null()).status();
            if !status.is_ok_and(|status| status.success()) {
                let what = "NOT TESTED, needs root, mkfs.ext4 and loop devices: a small disk";
                let _ = writeln!(std::io::stderr(), "{what}");
                return None;
            }
        }
        Some(Self { at })
    }

    /// Is mounted with this option too.
    #[track_caller]
    pub(crate) fn remount(&self, option: &str) {
        assert!(self.remounts(option), "remount with {option}");
    }

    /// Can't be written any more, or again. False while somebody has a file open for writing.
    pub(crate) fn set_read_only(&self, read_only: bool) -> bool {
        self.remounts(if read_only { "ro" } else { "rw" })
    }

    /// Of a tmpfs. The options that it has are not said again: its owner has no name in a user namespace.
    fn remounts(&self, option: &str) -> bool {
        let mut command = Command::new("mount");
        let command = command.args(["-i", "-n", "-t", "tmpfs", "-o"]);
        let command = command.arg(format!("remount,{option}")).arg("tmpfs");
        let status = command.arg(&self.at).stderr(Stdio::null()).status();
        status.expect("mount(8) is there").success()
    }

    /// Has a file take all but about so much room.
    pub(crate) fn fill(&self, name: &str, room_bytes: u64) -> PathBuf {
        let path = self.at.join(name);
        let file = fs::File::create(&path).expect("a name fits");
        let mut len = 0;
        // Others may take some of it at the same time, and the file needs blocks for itself.
        let mut piece = u64::MAX;
        while piece >= 4096 {
            let told = rustix::fs::statvfs(&self.at).expect("it is mounted");
            let free = (told.f_bavail * told.f_frsize).saturating_sub(room_bytes);
            piece = piece.min(free);
            let flags = rustix::fs::FallocateFlags::empty();
            match rustix::fs::fallocate(&file, flags, len, piece.max(1)) {
                Ok(()) => len += piece.max(1),
                Err(_) => piece /= 2,
            }
        }
        path
    }
}

#[track_caller]
fn mount(arguments: &[&str], at: &Path) {
    let status = Command::new("mount").args(arguments).arg(at).status();
    let status = status.expect("mount(8) is there");
    assert!(status.success(), "mount {arguments:?} on {}", at.display());
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        // Lazily: a daemon may still have it open.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}
