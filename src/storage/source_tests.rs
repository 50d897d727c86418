//! Sources from outside: what a manifest tells of a tree, and what files give afterwards.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;
use crate::limits::PAGE_ITEMS_MAX;
use crate::manifest::{Entry, EntryKind, Item, Note, Place};
use crate::storage::identity::Identity;
use crate::storage::part_name::part_name;
use crate::wire::Fault;

const ARCHIVE: Preserve = Preserve {
    mode: true,
    symlinks: true,
    hard_links: true,
    xattrs: true,
    owner: false,
};

fn source(top: &Path, paths: &[&[u8]], preserve: Preserve) -> Source {
    let root = Arc::new(Root::open(top, Identity::current()).unwrap());
    let specs = paths.iter().map(|path| SourceSpec {
        root: Arc::clone(&root),
        path: path.to_vec(),
    });
    let options = WalkOptions {
        filters: Arc::default(),
        recursive: true,
        preserve,
        hash: HashKind::Blake3,
        chunk: ChunkSize::MIN,
    };
    Source::new(specs.collect(), options)
}

fn manifest(source: &Source) -> Vec<Item> {
    let mut items = Vec::new();
    loop {
        let page = source.next_page().unwrap();
        assert!(page.items.len() <= PAGE_ITEMS_MAX);
        assert!(page.last || !page.items.is_empty());
        items.extend(page.items);
        if page.last {
            return items;
        }
    }
}

fn entries(items: &[Item]) -> Vec<&Entry> {
    let mut entries = Vec::new();
    for item in items {
        if let Item::Entry(entry) = item {
            entries.push(entry);
        }
    }
    entries
}

fn skipped(items: &[Item]) -> Vec<(&Fault, bool)> {
    let mut notes = Vec::new();
    for item in items {
        if let Item::Note(Note::Skipped { fault, failure, .. }) = item {
            notes.push((fault, *failure));
        }
    }
    notes
}

fn named<'a>(items: &'a [Item], wanted: &[u8]) -> &'a Entry {
    let is_it = |entry: &&&Entry| match &entry.place {
        Place::In(_, name) => name.as_bytes() == wanted,
        Place::Root(_) => false,
    };
    entries(items).iter().find(is_it).unwrap()
}

fn read_all(source: &Source, entry: EntryId) -> Vec<u8> {
    let opened = source.open_file(entry).unwrap();
    let mut bytes = vec![0; usize::try_from(opened.len).unwrap()];
    assert_eq!(opened.file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

#[test]
fn a_tree_is_told_with_its_names_as_bytes() {
    let top = tempfile::tempdir().unwrap();
    fs::create_dir_all(top.path().join("d/sub")).unwrap();
    let odd = [&b"d/\xff\xfe"[..], b"d/a\nb", b"d/sub/\x1b[31m"];
    for name in odd {
        fs::write(top.path().join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    let source = source(top.path(), &[b"d"], Preserve::default());
    let items = manifest(&source);
    assert_eq!(entries(&items).len(), 5);
    let top_entry = entries(&items)[0];
    assert_eq!(
        (&top_entry.place, &top_entry.kind),
        (&Place::Root(0), &EntryKind::Directory)
    );
    for name in odd {
        let last = name.rsplit(|&byte| byte == b'/').next().unwrap();
        assert_eq!(read_all(&source, named(&items, last).id), name);
    }
    let ends: Vec<&Item> = items
        .iter()
        .filter(|item| matches!(item, Item::Note(Note::DirectoryEnd { .. })))
        .collect();
    assert_eq!(ends.len(), 2);
    assert_eq!(
        items.last().unwrap(),
        &Item::Note(Note::DirectoryEnd {
            directory: top_entry.id,
            complete: true
        })
    );
    assert!(source.next_page().unwrap().items.is_empty());
}

#[test]
fn many_files_come_in_pages_and_are_forgotten_when_settled() {
    let top = tempfile::tempdir().unwrap();
    for i in 0..5000 {
        fs::write(top.path().join(format!("{i}")), "").unwrap();
    }
    let source = source(top.path(), &[b""], Preserve::default());
    let items = manifest(&source);
    let told = entries(&items);
    assert_eq!(told.len(), 5001);
    assert!(told.windows(2).all(|pair| pair[0].id < pair[1].id));
    assert_eq!(source.remembered(), 5000);
    for entry in &told {
        source.forget(entry.id);
    }
    assert_eq!(source.remembered(), 0);
    let error = source.open_file(told[1].id).err().unwrap();
    assert_eq!(error.code(), FaultCode::Protocol);
}

#[test]
fn what_is_not_carried_is_noted() {
    let top = tempfile::tempdir().unwrap();
    let at = |name: &str| top.path().join(name);
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    symlink("/etc/passwd", at("link")).unwrap();
    let part = part_name(1);
    fs::write(top.path().join(part.as_os_str()), "half").unwrap();
    // Only called like one of ours: it is content.
    let own = ".rdcp-0123456789abcdef.part";
    fs::write(at(own), "whole").unwrap();
    let items = manifest(&source(top.path(), &[b""], Preserve::default()));
    assert_eq!(entries(&items).len(), 2);
    named(&items, own.as_bytes());
    let notes = skipped(&items);
    assert_eq!(notes.len(), 2);
    assert!(
        notes
            .iter()
            .all(|(fault, failure)| fault.code == FaultCode::Special && !failure)
    );

    let items = manifest(&source(top.path(), &[b""], ARCHIVE));
    assert_eq!(
        named(&items, b"link").kind,
        EntryKind::Symlink(b"/etc/passwd".to_vec())
    );
}

#[test]
fn sources_that_can_not_be_had_are_failures_and_the_others_go_on() {
    let top = tempfile::tempdir().unwrap();
    let at = |name: &str| top.path().join(name);
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("file"), "x").unwrap();
    symlink("file", at("link")).unwrap();
    symlink("../outside", at("escape")).unwrap();
    let paths: &[&[u8]] = &[
        b"none", b"fifo", b"dir", b"escape", b"../x", b"file", b"link",
    ];
    let mut source = source(top.path(), paths, Preserve::default());
    source.options.recursive = false;
    source = Source::new(
        paths
            .iter()
            .map(|path| SourceSpec {
                root: Arc::new(Root::open(top.path(), Identity::current()).unwrap()),
                path: path.to_vec(),
            })
            .collect(),
        source.options,
    );
    let items = manifest(&source);
    let codes: Vec<FaultCode> = skipped(&items)
        .iter()
        .map(|(fault, failure)| {
            assert!(failure);
            fault.code
        })
        .collect();
    let denied = FaultCode::Denied;
    let expected = [
        FaultCode::NotFound,
        FaultCode::Special,
        FaultCode::Invalid,
        denied,
        denied,
    ];
    assert_eq!(codes, expected);
    assert!(skipped(&items)[2].0.text.contains("-r"));
    let told = entries(&items);
    assert_eq!(
        told.iter().map(|entry| &entry.place).collect::<Vec<_>>(),
        [&Place::Root(5), &Place::Root(6)]
    );
    assert_eq!(read_all(&source, told[1].id), b"x");
}

#[test]
fn a_symlink_as_source_is_itself_unless_a_slash_follows() {
    let top = tempfile::tempdir().unwrap();
    fs::create_dir(top.path().join("dir")).unwrap();
    symlink("dir", top.path().join("link")).unwrap();
    let items = manifest(&source(top.path(), &[b"link", b"link/"], ARCHIVE));
    let kinds: Vec<_> = entries(&items).iter().map(|entry| &entry.kind).collect();
    assert_eq!(
        kinds,
        [&EntryKind::Symlink(b"dir".to_vec()), &EntryKind::Directory]
    );
}

#[test]
fn a_file_that_became_something_else_is_not_followed_and_does_not_block() {
    let top = tempfile::tempdir().unwrap();
    let at = |name: &str| top.path().join(name);
    fs::create_dir(at("d")).unwrap();
    for name in ["d/link", "d/fifo", "d/dir", "d/gone"] {
        fs::write(at(name), "old").unwrap();
    }
    fs::write(at("secret"), "secret").unwrap();
    let source = source(top.path(), &[b"d"], Preserve::default());
    let items = manifest(&source);
    for name in ["d/link", "d/fifo", "d/dir", "d/gone"] {
        fs::remove_file(at(name)).unwrap();
    }
    symlink("../secret", at("d/link")).unwrap();
    mknodat(
        CWD,
        at("d/fifo"),
        FileType::Fifo,
        Mode::RUSR | Mode::WUSR,
        0,
    )
    .unwrap();
    fs::create_dir(at("d/dir")).unwrap();
    let ids: Vec<EntryId> = entries(&items)[1..].iter().map(|entry| entry.id).collect();
    for id in &ids {
        assert!(source.open_file(*id).is_err());
    }
    let pack = source.fill_pack(&ids, &mut [0; 100]);
    assert_eq!(
        (pack.failed.len(), pack.parts.len(), pack.used_len),
        (4, 0, 0)
    );
}

#[test]
fn a_directory_that_became_a_symlink_is_not_followed() {
    let top = tempfile::tempdir().unwrap();
    let at = |name: &str| top.path().join(name);
    fs::create_dir_all(at("top/d")).unwrap();
    fs::create_dir(at("other")).unwrap();
    fs::write(at("top/d/f"), "own").unwrap();
    fs::write(at("other/f"), "other").unwrap();
    let source = source(top.path(), &[b"top"], Preserve::default());
    let items = manifest(&source);
    let id = named(&items, b"f").id;
    fs::rename(at("top/d"), at("moved")).unwrap();
    symlink("../other", at("top/d")).unwrap();
    // Held open still: the file that was listed.
    assert_eq!(read_all(&source, id), b"own");
    let forgetful = Source {
        directories: OpenDirectories::default(),
        ..source
    };
    assert!(forgetful.open_file(id).is_err());
}

#[test]
fn packs_hold_files_with_their_proofs() {
    let top = tempfile::tempdir().unwrap();
    let contents: [&[u8]; 4] = [b"", b"one", &[7; 200_000], b"last"];
    for (i, content) in contents.iter().enumerate() {
        fs::write(top.path().join(format!("{i}")), content).unwrap();
    }
    for hash in [HashKind::Blake3, HashKind::Sha256, HashKind::None] {
        let mut source = source(top.path(), &[b""], Preserve::default());
        source.options.hash = hash;
        let items = manifest(&source);
        let ids: Vec<EntryId> = entries(&items)[1..].iter().map(|entry| entry.id).collect();
        let mut memory = vec![0; 200_010];
        let pack = source.fill_pack(&ids, &mut memory);
        assert!(pack.failed.is_empty() && pack.unfit.is_empty());
        assert_eq!(pack.used_len, 200_007);
        for (part, content) in pack.parts.iter().zip(contents) {
            let start = usize::try_from(part.region_offset).unwrap();
            assert_eq!(&memory[start..start + content.len()], content);
            assert!(part.packed && part.last && part.file_len == content.len() as u64);
        }
        let of = |id| pack.digests.iter().filter(move |digest| digest.entry == id);
        match hash {
            HashKind::None => assert!(pack.digests.is_empty()),
            HashKind::Blake3 => {
                assert_eq!(
                    of(ids[0]).next().unwrap().value,
                    *blake3::hash(b"").as_bytes()
                );
                assert_eq!(
                    of(ids[1]).next().unwrap().value,
                    *blake3::hash(b"one").as_bytes()
                );
                assert_eq!(of(ids[2]).count(), 4);
            }
            _ => {
                use sha2::Digest;
                let expected: [u8; 32] = sha2::Sha256::digest([7; 200_000]).into();
                assert_eq!(of(ids[2]).next_back().unwrap().value, expected);
                assert_eq!(of(ids[2]).count(), 4);
            }
        }
    }
}

#[test]
fn packs_take_files_as_they_are_now() {
    let top = tempfile::tempdir().unwrap();
    let at = |name: &str| top.path().join(name);
    for name in ["grown", "huge", "shrunk"] {
        fs::write(at(name), "0123456789").unwrap();
    }
    let source = source(top.path(), &[b""], Preserve::default());
    let items = manifest(&source);
    fs::write(at("grown"), "0123456789abc").unwrap();
    fs::write(at("huge"), [0; 1000]).unwrap();
    fs::write(at("shrunk"), "0").unwrap();
    let ids: Vec<EntryId> = entries(&items)[1..].iter().map(|entry| entry.id).collect();
    let pack = source.fill_pack(&ids, &mut [0; 30]);
    let lens: Vec<u64> = pack.parts.iter().map(|part| part.len).collect();
    assert_eq!(lens, [13, 1]);
    assert_eq!(pack.unfit, [named(&items, b"huge").id]);
}

#[test]
fn versions_tell_changes() {
    let top = tempfile::tempdir().unwrap();
    fs::write(top.path().join("f"), "0123456789").unwrap();
    let source = source(top.path(), &[b"f"], Preserve::default());
    let id = entries(&manifest(&source))[0].id;
    let opened = source.open_file(id).unwrap();
    assert!(source.unchanged(&*opened.file, opened.version));
    source.drop_cache(&*opened.file, ByteRange { start: 0, end: 10 });
    assert!(source.unchanged(&*opened.file, opened.version));
    let file = fs::File::options()
        .write(true)
        .open(top.path().join("f"))
        .unwrap();
    file.write_all_at(b"x", 20).unwrap();
    assert!(!source.unchanged(&*opened.file, opened.version));
    let whole = ByteRange { start: 0, end: 10 };
    assert_eq!(source.extents(&opened, whole, 8), [whole]);
}

#[test]
fn hard_links_are_told_only_where_they_are_carried() {
    let top = tempfile::tempdir().unwrap();
    fs::write(top.path().join("a"), "x").unwrap();
    fs::hard_link(top.path().join("a"), top.path().join("b")).unwrap();
    fs::hard_link(top.path().join("a"), top.path().join("c")).unwrap();
    let items = manifest(&source(top.path(), &[b""], ARCHIVE));
    let first = named(&items, b"a");
    assert_eq!(
        first.kind,
        EntryKind::File {
            len: 1,
            linked: true
        }
    );
    assert_eq!(named(&items, b"b").kind, EntryKind::HardLink(first.id));
    assert_eq!(named(&items, b"c").kind, EntryKind::HardLink(first.id));

    let items = manifest(&source(top.path(), &[b""], Preserve::default()));
    assert_eq!(
        named(&items, b"b").kind,
        EntryKind::File {
            len: 1,
            linked: false
        }
    );
}

#[test]
fn attributes_are_carried_and_too_many_are_a_loss_that_is_told() {
    let top = tempfile::tempdir().unwrap();
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty())
    };
    for name in ["few", "many"] {
        fs::write(top.path().join(name), "x").unwrap();
    }
    let few = top.path().join("few");
    if set(&few, "user.colour", b"red\0").is_err() {
        eprintln!("SKIPPED: no user attributes on {}", top.path().display());
        return;
    }
    set(&few, "trusted.secret", b"no").ok();
    set(top.path(), "user.of-directory", b"d").unwrap();
    let many = top.path().join("many");
    let stored = (0..65)
        .take_while(|i| set(&many, &format!("user.{i}"), b"v").is_ok())
        .count();
    let items = manifest(&source(top.path(), &[b""], ARCHIVE));
    let colour = (b"user.colour".to_vec(), b"red\0".to_vec());
    assert_eq!(named(&items, b"few").metadata.xattrs, [colour]);
    assert_eq!(entries(&items)[0].metadata.xattrs.len(), 1);
    if stored == 65 {
        assert!(named(&items, b"many").metadata.xattrs.is_empty());
        let notes = skipped(&items);
        assert!(notes.len() == 1 && notes[0].1, "{notes:?}");
    }
    let items = manifest(&source(top.path(), &[b""], Preserve::default()));
    assert!(named(&items, b"few").metadata.xattrs.is_empty());
}

#[test]
fn mount_points_are_noted_and_not_entered() {
    let top = tempfile::tempdir().unwrap();
    let inner = top.path().join("inner");
    fs::create_dir(&inner).unwrap();
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
    let items = manifest(&source(top.path(), &[b""], ARCHIVE));
    let inside = manifest(&source(top.path(), &[b"inner"], ARCHIVE));
    assert!(
        std::process::Command::new("umount")
            .arg(&inner)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(entries(&items).len(), 1);
    let notes = skipped(&items);
    assert!(notes.len() == 1 && !notes[0].1 && notes[0].0.text.contains("mount point"));
    assert_eq!(entries(&inside).len(), 2, "a mount that is named is meant");
}

#[test]
fn unreadable_things_are_failures_and_what_surrounds_them_goes_on() {
    let top = tempfile::tempdir().unwrap();
    let at = |name: &str| top.path().join(name);
    fs::create_dir(at("closed")).unwrap();
    fs::write(at("file"), "x").unwrap();
    fs::write(at("secret"), "x").unwrap();
    for (name, mode) in [("closed", 0), ("secret", 0), ("", 0o755)] {
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    if rustix::process::geteuid().is_root() {
        // Root may read everything; only this test's thread gives that up.
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
    }
    let source = source(top.path(), &[b""], Preserve::default());
    let items = manifest(&source);
    let closed = named(&items, b"closed");
    let end = Note::DirectoryEnd {
        directory: closed.id,
        complete: false,
    };
    assert!(items.contains(&Item::Note(end)));
    let notes = skipped(&items);
    assert!(
        notes.len() == 1 && notes[0].1 && notes[0].0.code == FaultCode::Denied,
        "{notes:?}"
    );
    let pack = source.fill_pack(
        &[named(&items, b"secret").id, named(&items, b"file").id],
        &mut [0; 10],
    );
    assert_eq!((pack.failed.len(), pack.parts.len()), (1, 1));
    assert_eq!(pack.failed[0].1.code, FaultCode::Denied);
}

#[test]
fn threads_share_a_source() {
    fn shared<T: Send + Sync>() {}
    shared::<Source>();
}
