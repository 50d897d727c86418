//! Where a thing is that a message is about: on which side, and its path as its user would write it.
//!
//! In: what was named at the start of a transfer, and the names below it. Out: `/srv/run/f` or
//! `host:/export/run/f`. Nothing here opens, resolves or asks; what a destination turns out to be is
//! told by whoever looked.

use crate::remote::Remote;
use crate::wire::{Fault, FaultCode};

/// Which of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The client, where the command runs.
    Local,
    /// The server.
    Remote,
}

impl Side {
    /// `local` or `remote`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Local => Self::Remote,
            Self::Remote => Self::Local,
        }
    }
}

/// A path and its side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Which end.
    pub side: Side,
    /// A path on this host as it was given, or `host:/export/path`; bytes from a user and a peer.
    pub path: Vec<u8>,
}

impl Location {
    /// Something on this host.
    pub fn local(path: impl Into<Vec<u8>>) -> Self {
        let (side, path) = (Side::Local, path.into());
        Self { side, path }
    }

    /// Something on a server.
    pub fn remote(remote: &Remote) -> Self {
        let (side, path) = (Side::Remote, remote.to_bytes());
        Self { side, path }
    }
}

/// The two places that a source and what it becomes have.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    pub(crate) source: Base,
    pub(crate) target: Target,
}

/// What names are joined to.
#[derive(Clone, Debug)]
pub(crate) enum Base {
    Local(Vec<u8>),
    Remote(Remote),
}

/// What a source becomes.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) base: Base,
    /// What a directory is called below the base: nothing where its contents are meant.
    pub(crate) name: Vec<u8>,
    /// A file gets the name below the base too, and does not become the base itself.
    pub(crate) file_inside: bool,
}

/// Turns places of a transfer into locations.
#[derive(Clone, Debug)]
pub(crate) struct Locations {
    pub(crate) roots: Vec<Root>,
    /// Which end sends.
    pub(crate) sender: Side,
}

impl Locations {
    /// Where what a fault tells of is: the entry `below` the root with this number.
    pub(crate) fn of(
        &self,
        root: u32,
        below: &[u8],
        is_directory: bool,
        fault: &Fault,
    ) -> Option<Location> {
        let root = self.roots.get(usize::try_from(root).ok()?)?;
        let side = match fault.code {
            // Whoever finds it out, it is the source that is not as it should be.
            FaultCode::SourceChanged | FaultCode::Special => self.sender,
            // The client is the local one, so what came over the wire is about the other.
            _ if fault.from_peer => Side::Remote,
            _ => Side::Local,
        };
        if side == self.sender {
            return Some(root.source.joined(b"", below));
        }
        debug_assert_eq!(side, self.sender.other());
        let target = &root.target;
        // A source's own name is not missing where it is to be made: the destination is.
        if below.is_empty() && fault.code == FaultCode::NotFound {
            return Some(target.base.joined(b"", b""));
        }
        let inside = is_directory || !below.is_empty() || target.file_inside;
        let name: &[u8] = if inside { &target.name } else { b"" };
        Some(target.base.joined(name, below))
    }
}

impl Locations {
    /// Where what lies `below` the root with this number is at the destination.
    pub(crate) fn at_destination(&self, root: u32, below: &[u8]) -> Option<Location> {
        let target = &self.roots.get(usize::try_from(root).ok()?)?.target;
        Some(target.base.joined(&target.name, below))
    }
}

impl Base {
    fn joined(&self, name: &[u8], below: &[u8]) -> Location {
        match self {
            Self::Local(path) => {
                let mut path = path.clone();
                push(&mut path, name);
                push(&mut path, below);
                Location::local(path)
            }
            Self::Remote(remote) => {
                let mut remote = remote.clone();
                push(&mut remote.path, name);
                push(&mut remote.path, below);
                Location::remote(&remote)
            }
        }
    }
}

fn push(path: &mut Vec<u8>, more: &[u8]) {
    if more.is_empty() {
        return;
    }
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    fn remote(word: &str) -> Remote {
        Remote::parse(OsStr::new(word))
            .expect("it is right")
            .expect("it is remote")
    }

    fn fault(code: FaultCode, from_peer: bool) -> Fault {
        Fault {
            from_peer,
            ..Fault::new(code, "it failed")
        }
    }

    #[test]
    fn each_side_is_named_as_its_user_wrote_it() {
        let pull = |file_inside, name: &str, destination: &str| Locations {
            sender: Side::Remote,
            roots: vec![Root {
                source: Base::Remote(remote("host:/data/run")),
                target: Target {
                    base: Base::Local(destination.into()),
                    name: name.into(),
                    file_inside,
                },
            }],
        };
        let shown = |locations: &Locations, below: &str, is_directory, fault: &Fault| {
            let location = locations
                .of(0, below.as_bytes(), is_directory, fault)
                .expect("the root is known");
            let path = String::from_utf8(location.path).expect("text");
            (location.side.name(), path)
        };
        let (ours, theirs) = (
            fault(FaultCode::Denied, false),
            fault(FaultCode::Denied, true),
        );
        for (inside, name, destination, below, is_directory, local) in [
            (false, "run", "/tmp/x", "", false, "/tmp/x"),
            (true, "run", "/tmp/x", "", false, "/tmp/x/run"),
            (true, "run", "x/", "a/f", false, "x/run/a/f"),
            (false, "run", "x", "", true, "x/run"),
            (true, "", "x", "a", false, "x/a"),
            (true, "run", "/", "", true, "/run"),
        ] {
            let locations = pull(inside, name, destination);
            assert_eq!(
                shown(&locations, below, is_directory, &ours),
                ("local", local.to_owned())
            );
            let remote = if below.is_empty() {
                "host:/data/run".to_owned()
            } else {
                format!("host:/data/run/{below}")
            };
            assert_eq!(
                shown(&locations, below, is_directory, &theirs),
                ("remote", remote)
            );
        }
        let changed = fault(FaultCode::SourceChanged, false);
        assert_eq!(
            shown(&pull(false, "run", "x"), "", false, &changed).0,
            "remote"
        );
        assert!(pull(true, "", "x").of(1, b"", false, &ours).is_none());
    }
}
