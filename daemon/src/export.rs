//! An export as the daemon knows it: looked at once, when the settings are made.

use std::path::PathBuf;

use rdcp::server::Export;

/// An export that could be served when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckedExport {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) writable: bool,
}

impl CheckedExport {
    /// Checks name and directory. The error says what to write.
    pub(crate) fn new(name: String, path: PathBuf, writable: bool) -> Result<Self, String> {
        let checked = Self {
            name,
            path,
            writable,
        };
        checked
            .offer()
            .check()
            .map_err(|error| match error.hint() {
                Some(hint) => format!("{error}: {hint}"),
                None => format!("{error}: correct the path, or make the directory"),
            })?;
        Ok(checked)
    }

    /// What the library's server takes.
    pub(crate) fn offer(&self) -> Export {
        Export::new(&self.name, &self.path).writable(self.writable)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn error(name: &str, path: &Path) -> String {
        CheckedExport::new(name.to_owned(), path.to_owned(), false).expect_err("it is wrong")
    }

    #[test]
    fn names_and_directories_are_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert!(CheckedExport::new("A.b_c-9".to_owned(), path.to_owned(), true).is_ok());
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
