//! The two directions, so that one table of a test serves both.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::{Daemon, Finished, World};

pub(crate) const WAYS: [Way; 2] = [Way::Push, Way::Pull];

/// Which way a copy goes. `from` and `to` are the directories of the world that play the part of source
/// and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Push,
    Pull,
}

impl Way {
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pull => "pull",
        }
    }

    pub(crate) fn from(self) -> &'static str {
        match self {
            Self::Push => "local",
            Self::Pull => "export",
        }
    }

    pub(crate) fn to(self) -> &'static str {
        match self {
            Self::Push => "export",
            Self::Pull => "local",
        }
    }

    /// Where a tree that is copied this way is.
    pub(crate) fn tree(self, world: &World) -> PathBuf {
        world.path(self.from()).join("tree")
    }

    /// Where its copy is.
    pub(crate) fn copied(self, world: &World) -> PathBuf {
        world.path(self.to()).join("copy")
    }

    /// How the source `below` is written.
    pub(crate) fn source(self, world: &World, daemon: &Daemon, below: &str) -> OsString {
        match self {
            Self::Push => world.path("local").join(below).into(),
            Self::Pull => daemon.url(format!("data/{below}")),
        }
    }

    /// How the destination `below` is written.
    pub(crate) fn destination(self, world: &World, daemon: &Daemon, below: &str) -> OsString {
        match self {
            Self::Push => daemon.url(format!("data/{below}")),
            Self::Pull => world.path("local").join(below).into(),
        }
    }
}

/// Copies `from` to `to`, both below the sides of `way`, with these options.
#[track_caller]
pub(crate) fn copy(
    world: &World,
    daemon: &Daemon,
    way: Way,
    options: &[impl AsRef<OsStr>],
    from: &str,
    to: &str,
) -> Finished {
    world
        .rdcp(way.command())
        .args(options)
        .arg(way.source(world, daemon, from))
        .arg(way.destination(world, daemon, to))
        .run()
}
