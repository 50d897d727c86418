//! Operations from outside.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use crate::storage::identity::Identity;
use crate::storage::part_name::part_name;

fn never() -> bool {
    false
}

fn open(top: &Path) -> Root {
    Root::open(top, Identity::current()).unwrap()
}

fn tree() -> tempfile::TempDir {
    let top = tempfile::tempdir().unwrap();
    fs::create_dir_all(top.path().join("d/sub/deep")).unwrap();
    fs::write(top.path().join("d/file"), "abc").unwrap();
    fs::write(top.path().join("d/sub/other"), "").unwrap();
    let part = part_name(1);
    fs::write(top.path().join("d").join(part.as_os_str()), "").unwrap();
    symlink("../..", top.path().join("d/up")).unwrap();
    top
}

fn lines(
    run: impl FnOnce(&mut Output<'_>) -> Result<(), StorageError>,
) -> Result<Vec<Listed>, StorageError> {
    let mut lines = Vec::new();
    run(&mut Output {
        tell: &mut |line| lines.push(line),
        cancelled: &never,
    })?;
    Ok(lines)
}

fn paths(lines: &[Listed]) -> Vec<&str> {
    lines
        .iter()
        .map(|line| std::str::from_utf8(&line.path).unwrap())
        .collect()
}

#[test]
fn lists_are_sorted_and_hide_our_own_files() {
    let top = tree();
    let root = open(top.path());
    let flat = lines(|output| list(&root, b"d", false, output)).unwrap();
    assert_eq!(paths(&flat), ["file", "sub", "up"]);
    assert_eq!((flat[0].kind.clone(), flat[0].len), (ListedKind::File, 3));
    assert_eq!(flat[2].kind, ListedKind::Symlink(b"../..".to_vec()));
    let deep = lines(|output| list(&root, b"d/", true, output)).unwrap();
    assert_eq!(paths(&deep), ["file", "sub", "sub/deep", "sub/other", "up"]);
    let one = lines(|output| list(&root, b"d/file", false, output)).unwrap();
    assert_eq!(paths(&one), [""]);
    let link = lines(|output| list(&root, b"d/up", false, output)).unwrap();
    assert_eq!(link[0].kind, ListedKind::Symlink(b"../..".to_vec()));
    let error = lines(|output| list(&root, b"none", false, output)).unwrap_err();
    assert_eq!(error.code(), FaultCode::NotFound);
}

#[test]
fn stat_tells_the_thing_itself() {
    let top = tree();
    let root = open(top.path());
    assert_eq!(
        stat(&root, b"d/up").unwrap().kind,
        ListedKind::Symlink(b"../..".to_vec())
    );
    assert_eq!(stat(&root, b"").unwrap().kind, ListedKind::Directory);
    assert_eq!(stat(&root, b"d/file").unwrap().len, 3);
    assert_eq!(stat(&root, b"../x").unwrap_err().code(), FaultCode::Denied);
}

#[test]
fn sums_are_the_plain_digests() {
    let top = tree();
    let root = open(top.path());
    let all = lines(|output| sum(&root, b"d", true, HashKind::Blake3, output)).unwrap();
    assert_eq!(paths(&all), ["file", "sub/other"]);
    assert_eq!(all[0].digest, Some(*blake3::hash(b"abc").as_bytes()));
    let one = lines(|output| sum(&root, b"d/file", false, HashKind::Sha256, output)).unwrap();
    let digest = one[0].digest.unwrap();
    assert_eq!(digest[..4], [0xba, 0x78, 0x16, 0xbf]);
    let error = lines(|output| sum(&root, b"d", false, HashKind::Blake3, output)).unwrap_err();
    assert_eq!(error.code(), FaultCode::Invalid);
}

#[test]
fn cancelled_operations_end() {
    let top = tree();
    let root = open(top.path());
    let cancelled = || true;
    let mut tell = |_| ();
    let mut output = Output {
        tell: &mut tell,
        cancelled: &cancelled,
    };
    let kind = HashKind::Blake3;
    for path in [&b"d"[..], b"d/file"] {
        let error = sum(&root, path, true, kind, &mut output).unwrap_err();
        assert_eq!(error.code(), FaultCode::Cancelled);
    }
    assert!(remove(&root, b"d", true, &cancelled).is_err());
    assert!(top.path().join("d/file").exists());
}

#[test]
fn trees_are_removed_and_nothing_behind_their_symlinks() {
    let top = tree();
    let root = open(top.path());
    fs::write(top.path().join("kept"), "").unwrap();
    symlink(top.path().join("kept"), top.path().join("d/sub/absolute")).unwrap();
    let error = remove(&root, b"d", false, &never).unwrap_err();
    assert_eq!(error.code(), FaultCode::Invalid);
    remove(&root, b"d", true, &never).unwrap();
    assert!(!top.path().join("d").exists());
    assert!(top.path().join("kept").exists());
    assert_eq!(
        remove(&root, b"d", true, &never).unwrap_err().code(),
        FaultCode::NotFound
    );
}

#[test]
fn a_symlink_is_removed_itself_and_the_root_never() {
    let top = tree();
    let root = open(top.path());
    symlink("d", top.path().join("link")).unwrap();
    remove(&root, b"link", true, &never).unwrap();
    assert!(top.path().join("d/file").exists());
    for path in [&b""[..], b".", b"/", b"d/..", b"../x"] {
        assert!(remove(&root, path, true, &never).is_err());
    }
    assert!(top.path().join("d/file").exists());
}

#[test]
fn trees_deeper_than_the_open_directories_are_removed() {
    let top = tempfile::tempdir().unwrap();
    let deep: std::path::PathBuf = (0..200).map(|i| format!("{i}")).collect();
    fs::create_dir_all(top.path().join("d").join(deep)).unwrap();
    remove(&open(top.path()), b"d", true, &never).unwrap();
    assert!(!top.path().join("d").exists());
}

#[test]
fn other_mounts_are_not_removed() {
    let top = tree();
    let inner = top.path().join("d/sub/deep");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(&inner)
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        eprintln!("SKIPPED: can't mount a tmpfs here");
        return;
    }
    fs::write(inner.join("f"), "x").unwrap();
    let root = open(top.path());
    let outer = remove(&root, b"d", true, &never);
    let itself = remove(&root, b"d/sub/deep", true, &never);
    let kept = inner.join("f").exists();
    assert!(
        std::process::Command::new("umount")
            .arg(&inner)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(outer.unwrap_err().code(), FaultCode::Denied);
    assert_eq!(itself.unwrap_err().code(), FaultCode::Denied);
    assert!(kept && !top.path().join("d/file").exists());
}

#[test]
fn directories_are_made() {
    let top = tree();
    let root = open(top.path());
    make_directory(&root, b"new", false).unwrap();
    assert_eq!(
        make_directory(&root, b"new", false).unwrap_err().code(),
        FaultCode::Exists
    );
    let error = make_directory(&root, b"a/b", false).unwrap_err();
    assert_eq!(error.code(), FaultCode::NotFound);
    make_directory(&root, b"a/b//c/", true).unwrap();
    make_directory(&root, b"a/b/c", true).unwrap();
    assert!(top.path().join("a/b/c").is_dir());
    let error = make_directory(&root, b"d/file/x", true).unwrap_err();
    assert_eq!(error.code(), FaultCode::WrongKind);
    // Where a file of somebody's may be growing, and no listing would show it.
    for parents in [false, true] {
        let hidden = part_name(7);
        let error = make_directory(&root, hidden.as_bytes(), parents).unwrap_err();
        assert_eq!(error.code(), FaultCode::Denied);
    }
    assert!(make_directory(&root, b"../x", true).is_err());
    assert!(make_directory(&root, b"d/up/up/x", true).is_err());
    assert!(make_directory(&root, b"/x", true).is_err());
}
