//! What may be exported: a well-formed name, and a directory of real files.

use std::path::{Path, PathBuf};

/// Longest export name, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// An export that can be served: its name is well formed and its directory existed when looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckedExport {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) writable: bool,
}

impl CheckedExport {
    /// Checks name and directory. The error says what to write.
    pub(crate) fn new(name: String, path: PathBuf, writable: bool) -> Result<Self, String> {
        check_name(&name)?;
        check_directory(&path)?;
        Ok(Self {
            name,
            path,
            writable,
        })
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    // `.` and `..` would be taken for directories in an address.
    if (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(legal)
        && name.bytes().any(|byte| byte != b'.')
    {
        return Ok(());
    }
    let shown: String = name.chars().take(NAME_BYTES_MAX + 1).collect();
    Err(format!(
        "`{}` can't be the name of an export: write 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -",
        shown.escape_debug()
    ))
}

fn check_directory(path: &Path) -> Result<(), String> {
    let shown = path.display().to_string();
    let shown = shown.escape_debug();
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => {
            return Err(format!(
                "`{shown}` is not a directory: export the one it is in"
            ));
        }
        Err(error) => {
            return Err(format!(
                "`{shown}` can't be exported: {error}: make the directory or correct the path"
            ));
        }
    }
    let kind = rustix::fs::statfs(path)
        .map_err(|error| format!("`{shown}` can't be looked at: {error}"))?
        .f_type;
    match KERNEL_FILE_SYSTEMS
        .iter()
        .find(|(magic, _)| i128::from(*magic) == i128::from(kind))
    {
        Some((_, name)) => Err(format!(
            "`{shown}` is on {name}, where reading has effects and files have no true length: \
             export a directory of real files"
        )),
        None => Ok(()),
    }
}

/// File systems whose files are interfaces of the kernel, by the magic number that statfs(2)
/// gives (linux/magic.h).
const KERNEL_FILE_SYSTEMS: &[(u32, &str)] = &[
    (0x0000_9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x0000_1cd1, "devpts"),
    (0x7363_6673, "securityfs"),
    (0x6265_6570, "configfs"),
    (0xcafe_4a11, "bpf"),
    (0xf97c_ff8c, "selinuxfs"),
    (0x6165_676c, "pstore"),
    (0xde5e_81e4, "efivarfs"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["a", "data", "A.b_c-9", "..x", &"x".repeat(64)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a b",
            "é",
            "a:b",
            "a\n",
            &"x".repeat(65),
        ] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn directories() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(check_directory(directory.path()), Ok(()));
        let file = directory.path().join("f");
        std::fs::write(&file, "").unwrap();
        assert!(
            check_directory(&file)
                .unwrap_err()
                .contains("not a directory")
        );
        assert!(
            check_directory(&directory.path().join("none"))
                .unwrap_err()
                .contains("make the")
        );
        assert!(
            check_directory(Path::new("/proc"))
                .unwrap_err()
                .contains("is on proc")
        );
        assert!(
            check_directory(Path::new("/sys"))
                .unwrap_err()
                .contains("is on sysfs")
        );
    }
}
