//! An export as the daemon knows it: looked at once, when the settings are made.

use std::path::{Path, PathBuf};

use rdcp::server::Export;

/// An export that could be served when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckedExport {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) access: Access,
}

/// What clients may do in an export, and which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) writable: bool,
    /// In place of `writable`.
    pub(crate) rights: Option<Vec<String>>,
    /// Fingerprints; none: all that are let in.
    pub(crate) clients: Option<Vec<String>>,
    pub(crate) networks: Vec<String>,
    /// None: as the addresses that are listened on suggest.
    pub(crate) unverified: Option<bool>,
}

impl Access {
    /// The rights as words with commas between them.
    pub(crate) fn words(&self) -> String {
        match &self.rights {
            Some(rights) => rights.join(","),
            None if self.writable => "all".to_owned(),
            None => "list,read".to_owned(),
        }
    }
}

impl CheckedExport {
    /// Checks name, directory and rules. The error says what to write.
    pub(crate) fn new(name: String, path: PathBuf, access: Access) -> Result<Self, String> {
        let checked = Self { name, path, access };
        checked.offer().check().map_err(|error| in_a_line(&error))?;
        Ok(checked)
    }

    /// What the library's server takes.
    pub(crate) fn offer(&self) -> Export {
        let access = &self.access;
        let mut export = Export::new(&self.name, &self.path)
            .writable(access.writable)
            .networks(&access.networks);
        if let Some(allowed) = access.unverified {
            export = export.unverified(allowed);
        }
        if let Some(rights) = &access.rights {
            export = export.rights(rights.join(","));
        }
        if let Some(clients) = &access.clients {
            export = export.clients(clients);
        }
        export
    }

    /// Why it can't be served by a daemon that has this file or directory.
    pub(crate) fn refuse_holding(&self, own: &Path) -> Result<(), String> {
        match self.offer().holds(own) {
            Ok(false) => Ok(()),
            Ok(true) => Err(format!(
                "`{}` holds {}, which is the daemon's own: export a directory below, or keep it elsewhere",
                self.path.display(),
                own.display()
            )),
            Err(error) => Err(in_a_line(&error)),
        }
    }
}

fn in_a_line(error: &rdcp::Error) -> String {
    match (error.hint(), error.kind()) {
        (Some(hint), _) => format!("{error}: {hint}"),
        // It says itself what to write.
        (None, rdcp::ErrorKind::Usage) => error.to_string(),
        (None, _) => format!("{error}: correct the path, or make the directory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str, path: &Path) -> String {
        CheckedExport::new(name.to_owned(), path.to_owned(), Access::default())
            .expect_err("it is wrong")
    }

    #[test]
    fn names_and_directories_are_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert!(
            CheckedExport::new("A.b_c-9".to_owned(), path.to_owned(), Access::default()).is_ok()
        );
        for name in [
            "",
            ".",
            "..",
            ".x",
            "a/b",
            "a b",
            "\u{e9}",
            "a:b",
            "a\n",
            &"x".repeat(65),
        ] {
            assert!(error(name, path).contains("write 1 to 64"), "{name}");
        }
        std::fs::write(path.join("f"), "").unwrap();
        for wrong in [
            &path.join("f"),
            &path.join("none"),
            Path::new("/proc"),
            Path::new("/sys"),
        ] {
            let text = error("d", wrong);
            assert!(text.contains(&*wrong.to_string_lossy()), "{text}");
        }
    }
}
