//! What the outside-in tests share: the real `rdcp` and `rdcpd` as processes, trees of files and
//! their comparison, and a network that misbehaves on demand.
//!
//! The programs are taken from the directory that cargo builds into: `cargo test` and
//! `cargo build` at the top of the workspace build them. Every wait has a deadline, and no test
//! asserts how long anything took.

// Each test program uses its own part of this.
#![allow(dead_code, unused_imports)]

pub(crate) mod command;
pub(crate) mod daemon;
pub(crate) mod flips;
pub(crate) mod holdings;
pub(crate) mod proxy;
pub(crate) mod tree;
pub(crate) mod world;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(crate) use command::{Finished, Rdcp, Running};
pub(crate) use daemon::Daemon;
pub(crate) use proxy::{Proxy, Scope};
pub(crate) use world::{Reactor, World};

/// Nothing that works takes this long, even on a loaded machine and in a build without
/// optimisation.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The program of this name, built by cargo beside the running test.
pub(crate) fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its own path");
    let directory = test
        .parent()
        .and_then(|deps| deps.parent())
        .expect("cargo puts tests into a directory below its output");
    let path = directory.join(name);
    assert!(
        path.is_file(),
        "{} is missing: run `cargo build` at the top of the workspace, or `cargo test` there",
        path.display()
    );
    path
}

/// Waits until `condition` gives something, and fails the test if that takes too long.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < DEADLINE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether tests that need root can run; if not, that is said where nothing captures it.
pub(crate) fn is_root(what: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        // A plain write: the test harness swallows what the print macros say.
        let _ = writeln!(std::io::stderr(), "NOT TESTED, needs root: {what}");
    }
    is_root
}

/// A name as bytes.
pub(crate) fn name(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

/// An address of the loopback net that no other run of the tests uses, so that the default port
/// is free there.
pub(crate) fn own_loopback_address(test: u8) -> std::net::Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    // 127.255.255.255 is the net's broadcast address.
    std::net::Ipv4Addr::new(127, 80 + test, high, low)
}
