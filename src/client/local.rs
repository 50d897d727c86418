//! Local paths as sources and destinations: what of a path is held open, and what lies below it.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Error;
use crate::location::Location;
use crate::options::{HashKind, Preserve};
use crate::storage::source::SourceSpec;
use crate::storage::{Identity, Root, StorageError, operations};
use crate::wire::message::{Listed, RootName};

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
            // The walk tells what is missing, and the other sources go on.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let local = destination(path)?;
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
    let here = |error: StorageError| {
        Error::from(error.fault()).at(Location::local(path.as_os_str().as_bytes()))
    };
    let (spec, _) = source(path, Preserve::default()).map_err(here)?;
    let mut output = operations::Output {
        tell: on,
        cancelled: &|| false,
    };
    operations::sum(&spec.root, &spec.path, recursive, hash, &mut output).map_err(here)
}
