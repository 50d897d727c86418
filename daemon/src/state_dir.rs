//! Where the daemon keeps what must outlive it: its host key.

use std::env;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::config::problem::Source;

/// The state directory when nobody names one; `as_service`: started from a configuration file.
pub(crate) fn default(as_service: bool) -> Result<(PathBuf, Source), String> {
    let is_root = rustix::process::geteuid().is_root();
    choose(as_service && is_root, &|name| env::var_os(name))
}

/// Makes the directory if it is not there. Only its owner may look into it: it holds a secret key.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn choose(
    system_wide: bool,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<(PathBuf, Source), String> {
    let absolute = |name: &'static str| {
        let path = PathBuf::from(variable(name)?);
        path.is_absolute().then_some(path)
    };
    // systemd gives a list when a unit has several; the first is ours (systemd.exec(5)).
    let given = variable("STATE_DIRECTORY").and_then(|list| env::split_paths(&list).next());
    if let Some(path) = given.filter(|path| path.is_absolute()) {
        return Ok((path, Source::Environment("STATE_DIRECTORY")));
    }
    if system_wide {
        return Ok((PathBuf::from("/var/lib/rdcp"), Source::Default));
    }
    if let Some(path) = absolute("XDG_STATE_HOME") {
        return Ok((path.join("rdcp"), Source::Environment("XDG_STATE_HOME")));
    }
    if let Some(path) = absolute("HOME") {
        return Ok((path.join(".local/state/rdcp"), Source::Default));
    }
    Err("no directory for the host key: $HOME is not set; write --state-dir DIR".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(system_wide: bool, variables: &[(&str, &str)]) -> Option<PathBuf> {
        let find = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.into())
        };
        choose(system_wide, &find).ok().map(|(path, _)| path)
    }

    #[test]
    fn the_first_that_is_said_is_taken() {
        let all = [
            ("STATE_DIRECTORY", "/a:/b"),
            ("XDG_STATE_HOME", "/x"),
            ("HOME", "/h"),
        ];
        assert_eq!(chosen(false, &all), Some("/a".into()));
        assert_eq!(chosen(true, &all[1..]), Some("/var/lib/rdcp".into()));
        assert_eq!(chosen(false, &all[1..]), Some("/x/rdcp".into()));
        assert_eq!(
            chosen(false, &all[2..]),
            Some("/h/.local/state/rdcp".into())
        );
        assert_eq!(chosen(false, &[("XDG_STATE_HOME", "relative")]), None);
        assert_eq!(chosen(false, &[]), None);
    }
}
