//! A place of its own for each test: directories, a configuration, a daemon's state.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{Daemon, Rdcp, program};

/// How lanes wait for their sockets and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reactor {
    /// io_uring, where the kernel lets.
    Ring,
    /// Forced: the loop that works everywhere.
    Readiness,
}

impl Reactor {
    pub(crate) const BOTH: [Self; 2] = [Self::Ring, Self::Readiness];
}

/// A directory with `export`, `local`, and whatever else a test makes in it. Gone when dropped.
pub(crate) struct World {
    directory: TempDir,
    reactor: Reactor,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Reactor::Ring)
    }

    pub(crate) fn with(reactor: Reactor) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("rdcp-test-")
            .tempdir()
            .expect("a temporary directory can be made");
        let world = Self { directory, reactor };
        world.make("export");
        world.make("local");
        world
    }

    /// A path in this world.
    pub(crate) fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(below)
    }

    /// Makes a directory with its parents.
    pub(crate) fn make(&self, below: impl AsRef<Path>) -> PathBuf {
        let path = self.path(below);
        fs::create_dir_all(&path).expect("a directory can be made");
        path
    }

    /// Writes a file, and its parents.
    pub(crate) fn write(&self, below: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(below);
        fs::create_dir_all(path.parent().expect("it is below the world"))
            .expect("a directory can be made");
        fs::write(&path, content).expect("a file can be written");
        path
    }

    #[track_caller]
    pub(crate) fn read(&self, below: impl AsRef<Path>) -> Vec<u8> {
        let path = self.path(below);
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    pub(crate) fn exists(&self, below: impl AsRef<Path>) -> bool {
        self.path(below).symlink_metadata().is_ok()
    }

    /// A daemon that serves `export` as `data`, writable, on a free port.
    #[track_caller]
    pub(crate) fn serve(&self) -> Daemon {
        let mut export = OsString::from("data=");
        export.push(self.path("export"));
        export.push(":rw");
        self.serve_as(&[
            "--export".into(),
            export,
            "--listen".into(),
            "127.0.0.1:0".into(),
        ])
    }

    /// The same at this address, where one was before.
    #[track_caller]
    pub(crate) fn serve_at(&self, address: SocketAddr) -> Daemon {
        let mut export = OsString::from("data=");
        export.push(self.path("export"));
        export.push(":rw");
        let listen = address.to_string();
        self.serve_as(&["--export".into(), export, "--listen".into(), listen.into()])
    }

    /// A daemon that serves `export` as `data`, writable, and runs as this user, to whom the export
    /// is given. Needs root.
    #[track_caller]
    pub(crate) fn serve_by(&self, user: u32) -> Daemon {
        let give = |path: &Path| {
            std::os::unix::fs::chown(path, Some(user), Some(user)).expect("root may do this");
        };
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.directory.path(), open).expect("it is ours");
        give(&self.path("export"));
        give(&self.make("state"));
        // Where cargo builds may be closed to other users.
        let copy = self.path("rdcpd");
        fs::copy(program("rdcpd"), &copy).expect("there is space");
        let mut command = Command::new(copy);
        command.uid(user).gid(user);
        let mut export = OsString::from("data=");
        export.push(self.path("export"));
        export.push(":rw");
        let args = [
            "--state-dir".into(),
            self.path("state").into_os_string(),
            "--export".into(),
            export,
            "--listen".into(),
            "127.0.0.1:0".into(),
        ];
        Daemon::start_command(command, &args, &self.environment())
    }

    /// The same under a limit of open files; see [`Daemon::start_limited`].
    #[track_caller]
    pub(crate) fn serve_limited(&self, limit: &str) -> Daemon {
        let mut export = OsString::from("data=");
        export.push(self.path("export"));
        export.push(":rw");
        let args = [
            "--state-dir".into(),
            self.path("state").into_os_string(),
            "--export".into(),
            export,
            "--listen".into(),
            "127.0.0.1:0".into(),
        ];
        Daemon::start_limited(limit, &args, &self.environment())
    }

    /// A daemon with these arguments, and with its state in this world.
    #[track_caller]
    pub(crate) fn serve_as(&self, args: &[OsString]) -> Daemon {
        let state = ["--state-dir".into(), self.path("state").into_os_string()];
        Daemon::start(&[&state, args].concat(), &self.environment())
    }

    /// `rdcp` as a user of this world would run it, in `local`.
    pub(crate) fn rdcp(&self, command: &str) -> Rdcp {
        self.bare(command).arg("--accept-new")
    }

    /// `rdcp` without any option.
    pub(crate) fn bare(&self, command: &str) -> Rdcp {
        let mut rdcp = Rdcp::new(program("rdcp")).env_clear();
        for (name, value) in self.environment() {
            rdcp = rdcp.env(name, value);
        }
        rdcp.current_dir(self.path("local")).arg(command)
    }

    /// Another program, in `local`.
    pub(crate) fn tool(&self, tool: &str) -> Rdcp {
        Rdcp::new(tool).current_dir(self.path("local"))
    }

    fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut environment = vec![
            ("PATH", std::env::var_os("PATH").unwrap_or_default()),
            ("HOME", self.path("home").into()),
            ("XDG_CONFIG_HOME", self.path("config").into()),
            ("LC_ALL", "C.UTF-8".into()),
            ("RUST_BACKTRACE", "1".into()),
        ];
        if self.reactor == Reactor::Readiness {
            environment.push(("RDCP_NO_URING", "1".into()));
        }
        environment
    }
}
