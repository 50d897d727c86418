//! Local paths as sources and destinations: what of a path is held open, and what lies below it.

use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FileType;

use crate::error::Error;
use crate::location::Location;
use crate::options::{HashKind, Preserve};
use crate::storage::root::special;
use crate::storage::source::SourceSpec;
use crate::storage::{Identity, Root, StorageError, cleaning, operations};
use crate::wire::FaultCode;
use crate::wire::message::{Cleaning, Listed, RootName};

/// Symbolic links that are followed in a row, as the kernel does (path_resolution(7)).
const LINKS_FOLLOWED_MAX: usize = 40;

/// A local path split into a directory that is held open and what is named below it.
///
/// The user's own path may pass through symlinks; below the held directory nothing follows one.
pub(super) struct Local {
    pub(super) root: Arc<Root>,
    pub(super) below: Vec<u8>,
}

/// A destination: the deepest directory of it that exists is held, the rest is named below it. The
/// user's links to directories are followed, wherever they lead; any other link at the end of the
/// path is a name like another, and what is written there replaces it.
pub(super) fn destination(path: &Path) -> Result<Local, StorageError> {
    let mut missing: Vec<Vec<u8>> = Vec::new();
    let mut held = path.to_path_buf();
    loop {
        let at = if held.as_os_str().is_empty() {
            Path::new(".")
        } else {
            held.as_path()
        };
        if at.is_dir() {
            let root = Root::open(at, Identity::current())?;
            missing.reverse();
            return Ok(Local {
                root: Arc::new(root),
                below: missing.join(&b'/'),
            });
        }
        let Some(name) = held.file_name() else {
            // `..` below something missing, or `/`, which always is a directory.
            let root = Root::open(at, Identity::current())?;
            return Ok(Local {
                root: Arc::new(root),
                below: Vec::new(),
            });
        };
        missing.push(name.as_bytes().to_vec());
        held.pop();
    }
}

/// A source and what it is called at its destination. A symlink that the command line names stands
/// for its target unless symlinks are carried as such; with a trailing slash always.
pub(super) fn source(
    path: &Path,
    preserve: Preserve,
) -> Result<(SourceSpec, RootName), StorageError> {
    let bytes = path.as_os_str().as_bytes();
    let contents = bytes.len() > 1 && bytes.ends_with(b"/");
    let shown_name = last_component(path);
    let failed = |error| StorageError::new("open", bytes, error);
    let is_link = !contents && path.is_symlink() && preserve.symlinks;
    let real = if is_link {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let parent = parent.canonicalize().map_err(failed)?;
        parent.join(path.file_name().unwrap_or_default())
    } else {
        match path.canonicalize() {
            Ok(real) => real,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                // A pipe behind /dev/stdin, a file that was deleted since it was opened.
                if let Ok(there) = path.metadata() {
                    return Err(nameless(bytes, &there));
                }
                // The walk tells what is missing, and the other sources go on.
                let local = destination(&behind_links(path))?;
                let name = shown_name.unwrap_or_default();
                let spec = SourceSpec {
                    root: local.root,
                    path: local.below,
                };
                return Ok((spec, RootName { name, contents }));
            }
            Err(error) => return Err(failed(error)),
        }
    };
    let name =
        shown_name.unwrap_or_else(|| real.file_name().unwrap_or_default().as_bytes().to_vec());
    let (held, below) = match (real.parent(), real.file_name()) {
        (Some(parent), Some(file_name)) => (parent.to_path_buf(), file_name.as_bytes().to_vec()),
        _ => (PathBuf::from("/"), Vec::new()),
    };
    let root = Arc::new(Root::open(&held, Identity::current())?);
    Ok((
        SourceSpec { root, path: below },
        RootName { name, contents },
    ))
}

/// What is there, but under no path.
fn nameless(path: &[u8], there: &Metadata) -> StorageError {
    let kind = FileType::from_raw_mode(there.mode());
    if there.is_file() || there.is_dir() {
        let text = "it was deleted and has no name any more";
        return StorageError::refused("open", path, FaultCode::NotFound, text);
    }
    special(path, kind)
}

/// What a symbolic link names that leads nowhere: that is what is missing, not the link.
fn behind_links(path: &Path) -> PathBuf {
    let mut at = path.components().as_path().to_path_buf();
    for _ in 0..LINKS_FOLLOWED_MAX {
        let Ok(target) = at.read_link() else { break };
        at = at.parent().unwrap_or(Path::new("")).join(target);
    }
    at
}

/// What the user called it: its last component, unless that is `.`, `..` or nothing.
fn last_component(path: &Path) -> Option<Vec<u8>> {
    path.file_name().map(|name| name.to_os_string().into_vec())
}

/// Digests a local file, or all files below a local directory if `recursive`, from their content,
/// and tells a line for each. It blocks.
///
/// # Errors
/// What can't be read, if it is the thing itself; a file of a tree that can't be read is told as a
/// [`Listed`] with its fault.
pub fn sum_local(
    path: &Path,
    recursive: bool,
    hash: HashKind,
    on: &mut dyn FnMut(Listed),
) -> Result<(), Error> {
    in_tree(path, on, |spec, output| {
        operations::sum(&spec.root, &spec.path, recursive, hash, output)
    })
}

/// Removes what copies that died left in a local directory and below, as
/// [`Client::clean`](crate::Client::clean) does on a server. It blocks.
///
/// # Errors
/// If it is no directory or can't be listed; what is wrong further below is told as a [`Listed`] with
/// its fault.
pub fn clean_local(
    path: &Path,
    which: Cleaning,
    dry_run: bool,
    on: &mut dyn FnMut(Listed),
) -> Result<(), Error> {
    in_tree(path, on, |spec, output| {
        cleaning::clean(&spec.root, &spec.path, which, dry_run, output)
    })
}

/// Does an operation on a local path that nobody cancels.
fn in_tree(
    path: &Path,
    on: &mut dyn FnMut(Listed),
    operation: impl FnOnce(&SourceSpec, &mut operations::Output<'_>) -> Result<(), StorageError>,
) -> Result<(), Error> {
    let mut output = operations::Output {
        tell: on,
        cancelled: &|| false,
    };
    let (spec, _) = source(path, Preserve::default()).map_err(|error| at_path(path, &error))?;
    operation(&spec, &mut output).map_err(|error| at_path(path, &error))
}

fn at_path(path: &Path, error: &StorageError) -> Error {
    Error::from(error.fault()).at(Location::local(path.as_os_str().as_bytes()))
}
