//! Whole transfers into a temporary directory, seen from outside.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, XattrFlags, flock, lgetxattr, lsetxattr};

use super::*;
use crate::manifest::{Entry, EntryKind, Item, Note, Place};
use crate::storage::identity::Identity;
use crate::storage::part_name::{part_name, stem_of};
use crate::storage::status::Status;
use crate::units::{ByteRange, Timestamp};
use crate::wire::message::{RemarkKind, RootName};

const OLD: Timestamp = Timestamp {
    seconds: 1_500_000_000,
    nanoseconds: 123_456_789,
};
const ARCHIVE: Preserve = Preserve {
    mode: true,
    symlinks: true,
    hard_links: true,
    xattrs: true,
    owner: false,
};

/// A destination directory `dst` in a temporary directory, filled as contents of one source.
struct Field {
    outer: tempfile::TempDir,
    preserve: Preserve,
    overwrite: Overwrite,
    reuse: Reuse,
    sync: bool,
    descriptors: usize,
    budget: Budget,
}

impl Field {
    fn new() -> Self {
        Self::on("/tmp")
    }

    fn on(directory: impl AsRef<Path>) -> Self {
        let outer = tempfile::tempdir_in(directory).unwrap();
        fs::create_dir(outer.path().join("dst")).unwrap();
        let (preserve, overwrite) = (ARCHIVE, Overwrite::IfDifferent);
        Self {
            outer,
            preserve,
            overwrite,
            reuse: Reuse::default(),
            sync: true,
            descriptors: 16,
            budget: Budget::of_process(),
        }
    }

    fn dst(&self) -> PathBuf {
        self.outer.path().join("dst")
    }

    fn sink(&self) -> Sink {
        let root = Arc::new(Root::open(self.outer.path(), Identity::current()).unwrap());
        let placement = Placement {
            into_directory: false,
            make_parents: false,
            roots: vec![RootName {
                name: b"src".to_vec(),
                contents: true,
            }],
        };
        let (overwrite, preserve, sync) = (self.overwrite, self.preserve, self.sync);
        let options = SinkOptions {
            last_symlink: LastSymlink::Follow,
            placement,
            overwrite,
            preserve,
            sync,
            only_adds: false,
            dry_run: false,
            mirror: None,
            reuse: self.reuse,
            writer: "transfer 1".into(),
            chunk: ChunkSize::MIN,
        };
        let (descriptors, budget) = (self.descriptors, self.budget.clone());
        Sink::with_descriptors(root, b"dst".to_vec(), options, descriptors, budget)
    }

    /// One file named `f` is sent; how it was placed, and whether it then was published.
    fn send(&self, content: &[u8], metadata: Metadata) -> (Placed, PathBuf) {
        let sink = self.sink();
        let file = entry(1, 0, b"f", file(content.len()), metadata);
        let page = sink.place(vec![top(), file, end(0)]);
        let placed = page.entries[1].1.clone();
        if placed == Placed::Fetch {
            store(&sink, 1, content).unwrap();
        }
        sink.settled(&[EntryId(1)]);
        (placed, self.dst().join("f"))
    }
}

fn metadata(mode: u32) -> Metadata {
    Metadata {
        mode,
        mtime: OLD,
        ..Metadata::default()
    }
}

fn file(len: usize) -> EntryKind {
    EntryKind::File {
        len: len as u64,
        linked: false,
    }
}

fn linked(len: usize) -> EntryKind {
    EntryKind::File {
        len: len as u64,
        linked: true,
    }
}

fn top() -> Item {
    let place = Place::Root(0);
    let (kind, metadata) = (EntryKind::Directory, metadata(0o755));
    Item::Entry(Entry {
        id: EntryId(0),
        place,
        kind,
        metadata,
    })
}

fn entry(id: u64, parent: u64, name: &[u8], kind: EntryKind, metadata: Metadata) -> Item {
    let place = Place::In(EntryId(parent), Name::new(name).unwrap());
    Item::Entry(Entry {
        id: EntryId(id),
        place,
        kind,
        metadata,
    })
}

fn end(directory: u64) -> Item {
    Item::Note(Note::DirectoryEnd {
        directory: EntryId(directory),
        complete: true,
    })
}

fn store(sink: &Sink, id: u64, bytes: &[u8]) -> Result<(), Fault> {
    let results = sink.store_pack(&[PackFile {
        id: EntryId(id),
        bytes,
    }]);
    assert_eq!(results.len(), 1);
    results.into_iter().next().unwrap().1
}

fn fill(sink: &Sink, id: u64, bytes: &[u8]) -> Result<(), Fault> {
    let part = sink.prepare(EntryId(id), bytes.len() as u64)?;
    part.allocate(&[ByteRange {
        start: 0,
        end: bytes.len() as u64,
    }])
    .unwrap();
    part.write_at(bytes, 0).unwrap();
    drop(part);
    sink.publish(EntryId(id))
}

fn code(placed: &Placed) -> FaultCode {
    match placed {
        Placed::Settled(Outcome::Failed(fault)) => fault.code,
        other => panic!("{other:?}"),
    }
}

fn settled_ids(outcomes: &[(EntryId, Outcome)]) -> Vec<u64> {
    outcomes.iter().map(|(id, _)| id.0).collect()
}

fn hidden(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.file_name().unwrap().as_bytes().starts_with(b".rdcp-"))
        .collect()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn mtime(path: &Path) -> (i64, i64) {
    let seen = fs::symlink_metadata(path).unwrap();
    (seen.mtime(), seen.mtime_nsec())
}

const OLD_PAIR: (i64, i64) = (1_500_000_000, 123_456_789);

#[test]
fn a_tree_arrives_with_its_metadata_bottom_up() {
    let field = Field::new();
    let sink = field.sink();
    let page = sink.place(vec![
        top(),
        entry(1, 0, b"a", EntryKind::Directory, metadata(0o555)),
        entry(2, 1, b"b", EntryKind::Directory, metadata(0o700)),
        entry(3, 2, b"small", file(5), metadata(0o4640)),
        end(2),
        entry(4, 1, b"large", file(1 << 20), metadata(0o444)),
        entry(
            5,
            1,
            b"link",
            EntryKind::Symlink(b"/nowhere".to_vec()),
            metadata(0o777),
        ),
        end(1),
        end(0),
    ]);
    let placed: Vec<_> = page
        .entries
        .iter()
        .map(|(_, placed)| placed.clone())
        .collect();
    let published = Placed::Settled(Outcome::Published {
        bytes: 0,
        digest: None,
    });
    use Placed::{Directory, Fetch};
    assert_eq!(
        placed,
        [Directory, Directory, Directory, Fetch, Fetch, published]
    );
    assert!(page.finished.is_empty());
    store(&sink, 3, b"small").unwrap();
    fill(&sink, 4, &vec![7; 1 << 20]).unwrap();
    assert_eq!(settled_ids(&sink.settled(&[EntryId(5), EntryId(3)])), [2]);
    assert_eq!(settled_ids(&sink.settled(&[EntryId(4)])), [1, 0]);

    let dst = field.dst();
    assert_eq!(fs::read(dst.join("a/b/small")).unwrap(), b"small");
    assert_eq!(fs::read(dst.join("a/large")).unwrap(), vec![7; 1 << 20]);
    assert_eq!(
        fs::read_link(dst.join("a/link")).unwrap(),
        Path::new("/nowhere")
    );
    let table = [
        ("a", 0o555),
        ("a/b", 0o700),
        ("a/b/small", 0o640),
        ("a/large", 0o444),
    ];
    for (path, mode) in table {
        let seen = fs::metadata(dst.join(path)).unwrap().mode() & 0o7777;
        assert_eq!(seen, mode, "{path}: {seen:o}");
    }
    for path in ["", "a", "a/b", "a/b/small", "a/large", "a/link"] {
        assert_eq!(mtime(&dst.join(path)), OLD_PAIR, "{path}");
    }
    assert!(hidden(&dst.join("a")).is_empty() && hidden(&dst.join("a/b")).is_empty());
    let set_id = Remark {
        kind: RemarkKind::SetId,
        count: 1,
        entries: vec![EntryId(3)],
    };
    assert_eq!(sink.take_remarks(), [set_id]);
}

#[test]
fn a_second_run_finds_everything_unchanged() {
    let field = Field::new();
    let items = || {
        vec![
            top(),
            entry(1, 0, b"d", EntryKind::Directory, metadata(0o555)),
            entry(2, 1, b"f", file(3), metadata(0o640)),
            entry(
                3,
                1,
                b"l",
                EntryKind::Symlink(b"t".to_vec()),
                metadata(0o777),
            ),
            end(1),
            end(0),
        ]
    };
    let sink = field.sink();
    sink.place(items());
    store(&sink, 2, b"abc").unwrap();
    sink.settled(&[EntryId(2)]);
    let again = field.sink().place(items());
    for (id, placed) in &again.entries {
        let unchanged = matches!(
            placed,
            Placed::Directory | Placed::Settled(Outcome::Unchanged)
        );
        assert!(unchanged, "{id}: {placed:?}");
    }
    let unchanged = |(id, outcome): &(EntryId, Outcome)| (id.0, *outcome == Outcome::Unchanged);
    let finished: Vec<_> = again.finished.iter().map(unchanged).collect();
    assert_eq!(finished, [(1, true), (0, true)]);
}

#[test]
fn each_rule_of_overwriting_is_kept() {
    use Overwrite::{Error, IfDifferent, Never, Older};
    let newer = Timestamp {
        seconds: OLD.seconds + 10,
        ..OLD
    };
    let older = Timestamp {
        seconds: OLD.seconds - 10,
        ..OLD
    };
    // Rule, time of the source, its content, what is there in the end. "old" is there, since OLD.
    let table: &[(Overwrite, Timestamp, &[u8], &[u8])] = &[
        (IfDifferent, OLD, b"new", b"old"),
        (IfDifferent, OLD, b"longer", b"longer"),
        (IfDifferent, newer, b"new", b"new"),
        (IfDifferent, older, b"new", b"new"),
        (Older, newer, b"new", b"new"),
        (Older, older, b"new", b"old"),
        (Older, OLD, b"new", b"old"),
        (Never, newer, b"longer", b"old"),
        (Error, OLD, b"old", b"old"),
    ];
    for &(overwrite, mtime, content, expected) in table {
        let mut field = Field::new();
        field.send(b"old", metadata(0o644));
        field.overwrite = overwrite;
        let (placed, path) = field.send(
            content,
            Metadata {
                mtime,
                ..metadata(0o644)
            },
        );
        assert_eq!(fs::read(path).unwrap(), expected, "{overwrite:?} {mtime:?}");
        if overwrite == Error {
            assert_eq!(code(&placed), FaultCode::Exists);
        } else if expected == b"old" {
            assert_eq!(placed, Placed::Settled(Outcome::Unchanged));
        }
    }
}

#[test]
fn a_file_that_appears_meanwhile_is_not_replaced_where_that_was_ruled_out() {
    let mut field = Field::new();
    for overwrite in [Overwrite::Error, Overwrite::Never] {
        field.overwrite = overwrite;
        let sink = field.sink();
        sink.place(vec![top(), entry(1, 0, b"f", file(3), metadata(0o644))]);
        fs::write(field.dst().join("f"), "theirs").unwrap();
        assert_eq!(store(&sink, 1, b"new").unwrap_err().code, FaultCode::Exists);
        assert_eq!(fs::read(field.dst().join("f")).unwrap(), b"theirs");
        assert!(hidden(&field.dst()).is_empty());
        fs::remove_file(field.dst().join("f")).unwrap();
    }
}

#[test]
fn modes_that_are_not_preserved_follow_what_is_there_or_the_umask() {
    let mut field = Field::new();
    field.preserve = Preserve::default();
    let (_, path) = field.send(b"one", metadata(0o666));
    let plain = field.outer.path().join("plain");
    fs::File::create(&plain).unwrap();
    let by_umask = fs::metadata(&plain).unwrap().mode();
    assert_eq!(fs::metadata(&path).unwrap().mode(), by_umask);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    field.send(b"other", metadata(0o666));
    assert_eq!(fs::read(&path).unwrap(), b"other");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn metadata_of_unchanged_files_is_brought_up_to_date() {
    let field = Field::new();
    let (_, path) = field.send(b"same", metadata(0o644));
    let xattrs = vec![(b"user.colour".to_vec(), b"green".to_vec())];
    let (placed, _) = field.send(
        b"same",
        Metadata {
            xattrs,
            ..metadata(0o600)
        },
    );
    assert_eq!(placed, Placed::Settled(Outcome::Updated));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    let mut value = [0; 16];
    assert_eq!(lgetxattr(&path, "user.colour", &mut value[..]), Ok(5));
    field.send(b"same", metadata(0o600));
    assert_eq!(
        lgetxattr(&path, "user.colour", &mut value[..]),
        Err(Errno::NODATA)
    );
}

/// `user::rw-,user:1234:r--,group::r--,mask::r--,other::---` as the kernel keeps it.
fn access_list() -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    let undefined = u32::MAX;
    for (tag, permissions, id) in [
        (1_u16, 6_u16, undefined),
        (2, 4, 1234),
        (4, 4, undefined),
        (16, 4, undefined),
        (32, 0, undefined),
    ] {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&permissions.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    }
    list
}

#[test]
fn attributes_and_access_lists_arrive_and_privileged_ones_do_not() {
    let field = Field::new();
    let sink = field.sink();
    let xattrs = vec![
        (b"security.evil".to_vec(), b"x".to_vec()),
        (b"system.posix_acl_access".to_vec(), access_list()),
        (b"user.colour".to_vec(), b"green\0raw".to_vec()),
    ];
    let with = Metadata {
        xattrs,
        ..metadata(0o640)
    };
    sink.place(vec![
        top(),
        entry(1, 0, b"packed", file(1), with.clone()),
        entry(2, 0, b"parted", file(1), with),
        end(0),
    ]);
    store(&sink, 1, b"x").unwrap();
    fill(&sink, 2, b"x").unwrap();
    for name in ["packed", "parted"] {
        let path = field.dst().join(name);
        let mut value = [0; 256];
        let len = lgetxattr(&path, "system.posix_acl_access", &mut value[..]).unwrap();
        assert_eq!(&value[..len], access_list());
        let len = lgetxattr(&path, "user.colour", &mut value[..]).unwrap();
        assert_eq!(&value[..len], b"green\0raw");
        assert!(lgetxattr(&path, "security.evil", &mut value[..]).is_err());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(mtime(&path), OLD_PAIR);
    }
    let remark = Remark {
        kind: RemarkKind::AttributesPrivileged,
        count: 2,
        entries: vec![EntryId(1), EntryId(2)],
    };
    assert_eq!(sink.take_remarks(), [remark]);
}

#[test]
fn a_symlink_put_in_a_directorys_place_is_not_followed() {
    let mut field = Field::new();
    field.descriptors = 1;
    let outside = field.outer.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let sink = field.sink();
    sink.place(vec![
        top(),
        entry(1, 0, b"a", EntryKind::Directory, metadata(0o755)),
        entry(2, 1, b"f", file(4), metadata(0o644)),
        entry(3, 1, b"g", file(4), metadata(0o644)),
        end(1),
        entry(4, 0, b"z", EntryKind::Directory, metadata(0o755)),
        end(4),
        end(0),
    ]);
    // One descriptor only: `a` is closed by now and has to be opened again.
    fs::rename(field.dst().join("a"), field.dst().join("aside")).unwrap();
    symlink(&outside, field.dst().join("a")).unwrap();
    assert!(store(&sink, 2, b"data").is_err());
    assert!(sink.prepare(EntryId(3), 4).is_err());
    let finished = sink.settled(&[EntryId(2), EntryId(3)]);
    assert!(
        matches!(&finished[0], (EntryId(1), Outcome::Failed(_))),
        "{finished:?}"
    );
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(fs::metadata(&outside).unwrap().mode() & 0o777, 0o755);
}

#[test]
fn devices_fifos_and_sockets_are_never_replaced() {
    use std::os::unix::fs::FileTypeExt;
    let field = Field::new();
    let fifo = field.dst().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(field.dst().join("socket")).unwrap();
    let sink = field.sink();
    let page = sink.place(vec![
        top(),
        entry(1, 0, b"fifo", file(4), metadata(0o644)),
        entry(2, 0, b"socket", file(4), metadata(0o644)),
        end(0),
    ]);
    for (_, placed) in &page.entries[1..] {
        assert_eq!(code(placed), FaultCode::WrongKind);
    }
    assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    let there = fs::symlink_metadata(field.dst().join("socket")).unwrap();
    assert!(there.file_type().is_socket());
    drop(socket);
}

#[test]
fn symlinks_in_the_destination_are_not_directories() {
    let field = Field::new();
    let outside = field.outer.path().join("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, field.dst().join("a")).unwrap();
    symlink(outside.join("victim"), field.dst().join("f")).unwrap();
    let sink = field.sink();
    let page = sink.place(vec![
        top(),
        entry(1, 0, b"a", EntryKind::Directory, metadata(0o755)),
        entry(2, 1, b"below", file(4), metadata(0o644)),
        end(1),
        entry(3, 0, b"f", file(4), metadata(0o644)),
        end(0),
    ]);
    assert_eq!(code(&page.entries[1].1), FaultCode::WrongKind);
    assert_eq!(code(&page.entries[2].1), FaultCode::WrongKind);
    store(&sink, 3, b"data").unwrap();
    assert!(
        fs::symlink_metadata(field.dst().join("f"))
            .unwrap()
            .is_file()
    );
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn things_of_the_wrong_kind_are_in_the_way() {
    let field = Field::new();
    fs::create_dir(field.dst().join("f")).unwrap();
    fs::create_dir(field.dst().join("l")).unwrap();
    fs::write(field.dst().join("d"), "file").unwrap();
    let page = field.sink().place(vec![
        top(),
        entry(1, 0, b"d", EntryKind::Directory, metadata(0o755)),
        end(1),
        entry(2, 0, b"f", file(4), metadata(0o644)),
        entry(
            3,
            0,
            b"l",
            EntryKind::Symlink(b"t".to_vec()),
            metadata(0o777),
        ),
        end(0),
    ]);
    for (_, placed) in &page.entries[1..] {
        assert_eq!(code(placed), FaultCode::WrongKind);
    }
    assert_eq!(settled_ids(&page.finished), [0]);
}

fn part_path(field: &Field, name: &[u8]) -> PathBuf {
    let part = part_name(stem_of(&Name::new(name).unwrap()));
    field.dst().join(part.as_os_str())
}

fn one_wanted(field: &Field) -> Sink {
    let sink = field.sink();
    sink.place(vec![
        top(),
        entry(1, 0, b"f", file(4), metadata(0o644)),
        end(0),
    ]);
    sink
}

#[test]
fn leftovers_of_ours_are_taken_over() {
    let field = Field::new();
    let path = part_path(&field, b"f");
    fs::write(&path, "left by a run that died").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let sink = one_wanted(&field);
    fill(&sink, 1, b"good").unwrap();
    assert_eq!(fs::read(field.dst().join("f")).unwrap(), b"good");
    assert!(!path.exists());
}

#[test]
fn what_dead_runs_left_is_swept_where_a_run_writes_and_nothing_else_is() {
    let field = Field::new();
    let at = |name: &[u8]| field.dst().join(Name::new(name).unwrap().as_os_str());
    let [left, held] = [1, 2].map(part_name);
    let users = at(b".rdcp-0123456789abcdef.part");
    let (left, held) = (at(left.as_bytes()), at(held.as_bytes()));
    for path in [&users, &left, &held] {
        fs::write(path, "x").unwrap();
    }
    let other = fs::File::open(&held).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();

    let (placed, _) = field.send(b"new", metadata(0o644));
    assert_eq!(placed, Placed::Fetch);
    assert!(!left.exists());
    assert!(held.exists() && users.exists());
}

#[test]
fn a_users_file_called_like_one_of_ours_arrives() {
    let field = Field::new();
    let sink = field.sink();
    let name = b".rdcp-0123456789abcdef.part";
    let page = sink.place(vec![
        top(),
        entry(1, 0, name, file(4), metadata(0o644)),
        end(0),
    ]);
    assert_eq!(page.entries[1].1, Placed::Fetch);
    store(&sink, 1, b"mine").unwrap();
    let path = field.dst().join(Path::new(".rdcp-0123456789abcdef.part"));
    assert_eq!(fs::read(path).unwrap(), b"mine");
}

#[test]
fn foreign_part_files_are_neither_followed_nor_removed() {
    let victim = "victim";
    let planted: &[fn(&Path, &Path)] = &[
        |path, victim| symlink(victim, path).unwrap(),
        |path, victim| fs::hard_link(victim, path).unwrap(),
        |path, _| fs::create_dir(path).unwrap(),
        |path, _| {
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, path, kind, rustix::fs::Mode::RUSR, 0).unwrap();
        },
    ];
    for plant in planted {
        let field = Field::new();
        let target = field.outer.path().join(victim);
        fs::write(&target, "precious").unwrap();
        let path = part_path(&field, b"f");
        plant(&path, &target);
        let sink = one_wanted(&field);
        let fault = sink.prepare(EntryId(1), 4).map(|_| ()).unwrap_err();
        assert_eq!(fault.code, FaultCode::Denied, "{}", fault.text);
        drop(sink);
        assert!(fs::symlink_metadata(&path).is_ok());
        assert_eq!(fs::read(&target).unwrap(), b"precious");
    }
}

#[test]
fn a_second_writer_is_told_that_it_is_the_second() {
    let field = Field::new();
    let (first, second) = (one_wanted(&field), one_wanted(&field));
    let _part = first.prepare(EntryId(1), 4).unwrap();
    let fault = second.prepare(EntryId(1), 4).map(|_| ()).unwrap_err();
    assert_eq!(fault.code, FaultCode::Busy);
    let who = "another transfer is writing 'dst/f' (transfer 1);";
    assert!(fault.text.contains(who), "{}", fault.text);
    // A lock by somebody else's process looks the same.
    drop((first, _part));
    let path = part_path(&field, b"f");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let other = fs::File::open(&path).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    assert_eq!(
        second.prepare(EntryId(1), 4).map(|_| ()).unwrap_err().code,
        FaultCode::Busy
    );
    drop(other);
    assert!(second.prepare(EntryId(1), 4).is_ok());
}

#[test]
fn what_is_abandoned_or_dropped_leaves_nothing() {
    let field = Field::new();
    let sink = one_wanted(&field);
    let part = sink.prepare(EntryId(1), 4).unwrap();
    assert_eq!(hidden(&field.dst()).len(), 1);
    sink.abandon(EntryId(1));
    assert!(hidden(&field.dst()).is_empty());
    part.write_at(b"late", 0).unwrap();
    let again = sink.prepare(EntryId(1), 4).unwrap();
    assert_eq!(hidden(&field.dst()).len(), 1);
    drop(sink);
    assert!(hidden(&field.dst()).is_empty());
    drop(again);
    // Somebody else's file under that name by now is left alone.
    let sink = one_wanted(&field);
    let _part = sink.prepare(EntryId(1), 4).unwrap();
    let path = part_path(&field, b"f");
    fs::remove_file(&path).unwrap();
    fs::write(&path, "theirs").unwrap();
    drop(sink);
    assert_eq!(fs::read(&path).unwrap(), b"theirs");
}

#[test]
fn one_bad_file_of_a_pack_fails_alone() {
    let field = Field::new();
    let sink = field.sink();
    sink.place(vec![
        top(),
        entry(1, 0, b"a", file(1), metadata(0o644)),
        entry(2, 0, b"b", file(1), metadata(0o644)),
        entry(3, 0, b"c", file(0), metadata(0o644)),
        end(0),
    ]);
    fs::create_dir(field.dst().join("b")).unwrap();
    let pack = [(1, &b"x"[..]), (2, b"y"), (3, b""), (9, b"z")];
    let pack = pack.map(|(id, bytes)| PackFile {
        id: EntryId(id),
        bytes,
    });
    let mut results = sink.store_pack(&pack);
    results.sort_by_key(|(id, _)| *id);
    let codes: Vec<_> = results
        .into_iter()
        .map(|(id, result)| (id.0, result.err().map(|f| f.code)))
        .collect();
    let expected = [
        (1, None),
        (2, Some(FaultCode::WrongKind)),
        (3, None),
        (9, Some(FaultCode::Internal)),
    ];
    assert_eq!(codes, expected);
    assert_eq!(fs::read(field.dst().join("c")).unwrap(), b"");
    assert!(hidden(&field.dst()).is_empty());
}

#[test]
fn holes_stay_holes() {
    let field = Field::new();
    let len = 64 << 20;
    let sink = field.sink();
    sink.place(vec![
        top(),
        entry(1, 0, b"sparse", file(len), metadata(0o644)),
        end(0),
    ]);
    let part = sink.prepare(EntryId(1), len as u64).unwrap();
    let data = ByteRange {
        start: 32 << 20,
        end: (32 << 20) + 65536,
    };
    part.allocate(&[data]).unwrap();
    part.write_at(&[1; 65536], data.start).unwrap();
    sink.publish(EntryId(1)).unwrap();
    let seen = fs::metadata(field.dst().join("sparse")).unwrap();
    assert_eq!(seen.len(), len as u64);
    assert!(seen.blocks() * 512 < 1 << 20, "{} blocks", seen.blocks());
}

/// Memory on its own page, as lanes have it.
#[repr(align(4096))]
struct Page([u8; 4096]);

#[test]
fn long_files_have_a_way_around_the_cache_on_disks_only() {
    let len = (4 << 20) + 1000;
    let field = Field::on(std::env::current_dir().unwrap());
    if media::Media::of(fs::File::open(field.dst()).unwrap()) == Ok(media::Media::Disk) {
        let sink = field.sink();
        sink.place(vec![
            top(),
            entry(1, 0, b"f", file(len), metadata(0o644)),
            end(0),
        ]);
        let part = sink.prepare(EntryId(1), len as u64).unwrap();
        if let Some(direct) = part.direct() {
            let page = Page([9; 4096]);
            assert_eq!(direct.alignment_bytes, 4096);
            assert_eq!(rustix::io::pwrite(direct.fd, &page.0, 8192), Ok(4096));
        }
        part.write_at(&[5; 1000], 4 << 20).unwrap();
        sink.publish(EntryId(1)).unwrap();
        let seen = fs::File::open(field.dst().join("f")).unwrap();
        let mut tail = [0; 1001];
        seen.read_exact_at(&mut tail, (4 << 20) - 1).unwrap();
        assert!(tail[0] == 0 && tail[1..].iter().all(|&byte| byte == 5));
        assert_eq!(seen.metadata().unwrap().len(), len as u64);
    }
    let field = Field::on("/dev/shm");
    let sink = field.sink();
    sink.place(vec![
        top(),
        entry(1, 0, b"f", file(len), metadata(0o644)),
        end(0),
    ]);
    assert!(
        sink.prepare(EntryId(1), len as u64)
            .unwrap()
            .direct()
            .is_none()
    );
}

/// A tmpfs of 1 MiB, unmounted in the end.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        Self::mount_with(&["-t", "tmpfs", "-o", "size=1m"])
    }

    fn mount_with(options: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(options)
            .arg("rdcp-test")
            .arg(directory.path())
            .stderr(std::process::Stdio::null())
            .status();
        mounted
            .is_ok_and(|status| status.success())
            .then_some(Self(directory))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(self.0.path())
            .status();
    }
}

#[test]
fn where_access_lists_are_not_kept_the_group_does_not_get_their_mask() {
    if !is_root() {
        return;
    }
    let Some(disk) = SmallDisk::mount_with(&["-t", "ramfs"]) else {
        return;
    };
    let field = Field::on(disk.0.path());
    // user::rw-, user:1000:rw-, group::r--, mask::rw-, other::---
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [(1, 6, u32::MAX), (2, 6, 1000), (4, 4, u32::MAX)] {
        list.extend(list_entry(tag, permissions, id));
    }
    list.extend(list_entry(16, 6, u32::MAX));
    list.extend(list_entry(32, 0, u32::MAX));
    let with = Metadata {
        xattrs: vec![(b"system.posix_acl_access".to_vec(), list)],
        ..metadata(0o660)
    };
    let tell = |sink: &Sink| {
        sink.place(vec![
            top(),
            entry(1, 0, b"packed", file(1), with.clone()),
            entry(2, 0, b"parted", file(1), with.clone()),
            entry(3, 0, b"directory", EntryKind::Directory, with.clone()),
            end(3),
            end(0),
        ])
    };
    let sink = field.sink();
    tell(&sink);
    store(&sink, 1, b"x").unwrap();
    fill(&sink, 2, b"x").unwrap();
    let remarks = sink.take_remarks();
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    assert_eq!(remarks[0].kind, RemarkKind::AccessListsUnsupported);
    assert_eq!(remarks[0].count, 3);
    // Neither the first run nor one that finds them there.
    for again in [false, true] {
        if again {
            let page = tell(&field.sink());
            let unchanged = Placed::Settled(Outcome::Unchanged);
            assert_eq!(page.entries[1].1, unchanged);
            assert_eq!(page.entries[2].1, unchanged);
            assert_eq!(page.finished[0].1, Outcome::Unchanged);
        }
        for name in ["packed", "parted", "directory"] {
            let mode = fs::metadata(field.dst().join(name)).unwrap().mode();
            assert_eq!(mode & 0o7777, 0o640, "{name}");
        }
    }
}

fn list_entry(tag: u16, permissions: u16, id: u32) -> Vec<u8> {
    let halves = [tag, permissions].map(u16::to_le_bytes).concat();
    [halves, id.to_le_bytes().to_vec()].concat()
}

#[test]
fn once_stopped_nothing_new_is_published() {
    let field = Field::new();
    let sink = field.sink();
    let page = |first: u64| {
        vec![
            entry(
                first,
                0,
                format!("f{first}").as_bytes(),
                file(1),
                metadata(0o644),
            ),
            entry(
                first + 1,
                0,
                format!("l{first}").as_bytes(),
                link(1),
                metadata(0o644),
            ),
        ]
    };
    fn link(to: u64) -> EntryKind {
        EntryKind::HardLink(EntryId(to))
    }
    sink.place(vec![
        top(),
        entry(1, 0, b"first", linked(1), metadata(0o644)),
        entry(2, 0, b"open", file(1), metadata(0o644)),
        entry(3, 0, b"link", link(1), metadata(0o644)),
        entry(4, 0, b"packed", file(1), metadata(0o644)),
    ]);
    store(&sink, 1, b"x").unwrap();
    let part = sink.prepare(EntryId(2), 1).unwrap();
    part.write_at(b"y", 0).unwrap();
    sink.stop();
    let code = |result: Result<(), Fault>| result.unwrap_err().code;
    assert_eq!(code(sink.publish(EntryId(2))), FaultCode::Cancelled);
    assert_eq!(
        code(sink.link(EntryId(3)).map(|_| ())),
        FaultCode::Cancelled
    );
    assert_eq!(code(store(&sink, 4, b"z")), FaultCode::Cancelled);
    let late = sink.place(page(5));
    for (_, placed) in &late.entries {
        let Placed::Settled(Outcome::Failed(fault)) = placed else {
            panic!("{placed:?}");
        };
        assert_eq!(fault.code, FaultCode::Cancelled);
    }
    drop((part, sink));
    let names: Vec<_> = fs::read_dir(field.dst()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn a_full_disk_leaves_the_old_version_and_nothing_else() {
    if !is_root() {
        return;
    }
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let field = Field::on(disk.0.path());
    let big = vec![1; 2 << 20];
    for name in [&b"packed"[..], b"parted"] {
        fs::write(field.dst().join(std::ffi::OsStr::from_bytes(name)), "old").unwrap();
    }
    let sink = field.sink();
    sink.place(vec![
        top(),
        entry(1, 0, b"packed", file(big.len()), metadata(0o644)),
        entry(2, 0, b"parted", file(big.len()), metadata(0o644)),
        end(0),
    ]);
    assert_eq!(store(&sink, 1, &big).unwrap_err().code, FaultCode::NoSpace);
    let part = sink.prepare(EntryId(2), big.len() as u64).unwrap();
    let all = ByteRange {
        start: 0,
        end: big.len() as u64,
    };
    let early = part.allocate(&[all]).unwrap_err();
    assert_eq!(crate::storage::error::code_of(&early), FaultCode::NoSpace);
    assert!(part.write_at(&big, 0).is_err());
    sink.abandon(EntryId(2));
    assert_eq!(settled_ids(&sink.settled(&[EntryId(1), EntryId(2)])), [0]);
    assert!(hidden(&field.dst()).is_empty());
    for name in ["packed", "parted"] {
        assert_eq!(fs::read(field.dst().join(name)).unwrap(), b"old");
    }
}

#[test]
fn the_kernels_own_file_systems_are_not_written_into() {
    let root = Arc::new(Root::open(Path::new("/"), Identity::current()).unwrap());
    let roots = vec![RootName {
        name: b"src".to_vec(),
        contents: true,
    }];
    let placement = Placement {
        into_directory: false,
        make_parents: false,
        roots,
    };
    let (overwrite, preserve) = (Overwrite::Never, Preserve::default());
    let options = SinkOptions {
        last_symlink: LastSymlink::Follow,
        placement,
        overwrite,
        preserve,
        sync: false,
        only_adds: false,
        dry_run: false,
        mirror: None,
        reuse: Reuse::default(),
        chunk: ChunkSize::DEFAULT,
        writer: "transfer 1".into(),
    };
    // Descriptors of "/" itself are not touched: its times are those that it has.
    let seen = Status::of(fs::File::open("/").unwrap()).unwrap();
    let place = Place::Root(0);
    let metadata = Metadata {
        mtime: seen.mtime,
        mode: seen.mode,
        ..Metadata::default()
    };
    let top = Entry {
        id: EntryId(0),
        place,
        kind: EntryKind::Directory,
        metadata,
    };
    let sink = Sink::new(root, &b""[..], options);
    let page = sink.place(vec![
        Item::Entry(top),
        entry(1, 0, b"proc", EntryKind::Directory, Metadata::default()),
        end(1),
    ]);
    assert_eq!(page.entries[0].1, Placed::Directory);
    assert_eq!(code(&page.entries[1].1), FaultCode::Denied);
}

#[test]
fn hard_links_become_one_file_again() {
    let field = Field::new();
    fs::write(field.dst().join("there"), "something else").unwrap();
    let items = || {
        vec![
            top(),
            entry(1, 0, b"d", EntryKind::Directory, metadata(0o755)),
            entry(2, 1, b"first", linked(3), metadata(0o644)),
            end(1),
            entry(
                3,
                0,
                b"second",
                EntryKind::HardLink(EntryId(2)),
                metadata(0o644),
            ),
            entry(
                4,
                0,
                b"there",
                EntryKind::HardLink(EntryId(2)),
                metadata(0o644),
            ),
            end(0),
        ]
    };
    let sink = field.sink();
    let page = sink.place(items());
    assert_eq!(page.entries[3].1, Placed::Link { to: EntryId(2) });
    let early = sink.link(EntryId(3)).unwrap_err();
    assert_eq!(early.code, FaultCode::NotFound);
    store(&sink, 2, b"abc").unwrap();
    // The directory is finished and forgotten; the path is not.
    assert_eq!(settled_ids(&sink.settled(&[EntryId(2), EntryId(3)])), [1]);
    sink.link(EntryId(4)).unwrap();
    assert_eq!(settled_ids(&sink.settled(&[EntryId(4)])), [0]);
    let first = fs::metadata(field.dst().join("d/first")).unwrap();
    assert_eq!(
        fs::metadata(field.dst().join("there")).unwrap().ino(),
        first.ino()
    );

    // Again: the file is unchanged, its links are made where they are missing.
    let sink = field.sink();
    let page = sink.place(items());
    assert_eq!(page.entries[2].1, Placed::Settled(Outcome::Unchanged));
    let results = sink.link_all(&[EntryId(3), EntryId(4)]);
    assert!(
        results.iter().all(|(_, result)| result.is_ok()),
        "{results:?}"
    );
    assert_eq!(
        fs::metadata(field.dst().join("d/first")).unwrap().nlink(),
        3
    );
    assert!(hidden(&field.dst()).is_empty());
}

#[test]
fn links_across_file_systems_are_copied() {
    if !is_root() {
        return;
    }
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let field = Field::new();
    let other = field.dst().join("other");
    fs::create_dir(&other).unwrap();
    let mut mount = std::process::Command::new("mount");
    let bound = mount
        .arg("--bind")
        .arg(disk.0.path())
        .arg(&other)
        .status()
        .unwrap();
    assert!(bound.success());
    let sink = field.sink();
    sink.place(vec![
        top(),
        entry(1, 0, b"first", linked(3), metadata(0o640)),
        entry(2, 0, b"other", EntryKind::Directory, metadata(0o755)),
        entry(
            3,
            2,
            b"second",
            EntryKind::HardLink(EntryId(1)),
            metadata(0o640),
        ),
        end(2),
        end(0),
    ]);
    store(&sink, 1, b"abc").unwrap();
    let result = sink.link(EntryId(3));
    let seen = fs::read(other.join("second"));
    let time = seen.is_ok().then(|| mtime(&other.join("second")));
    let left = hidden(&other);
    let _ = std::process::Command::new("umount")
        .arg("-l")
        .arg(&other)
        .status();
    result.unwrap();
    assert_eq!(seen.unwrap(), b"abc");
    assert_eq!(time, Some(OLD_PAIR));
    assert!(left.is_empty());
    assert_eq!(sink.take_remarks()[0].kind, RemarkKind::LinkCopied);
}

#[test]
fn names_are_bytes_and_may_be_as_long_as_names_are() {
    let field = Field::new();
    let sink = field.sink();
    let longest = [b'n'; 255];
    let names: [&[u8]; 4] = [b"\xff\xfe\x01", &longest, b"-rf", b" \n"];
    let mut items = vec![top()];
    for (id, name) in (1..).zip(names) {
        items.push(entry(id, 0, name, file(1), metadata(0o644)));
    }
    items.push(entry(
        9,
        0,
        &[b'd'; 255],
        EntryKind::Directory,
        metadata(0o755),
    ));
    items.push(entry(10, 9, &[0xfe; 255], file(1), metadata(0o644)));
    items.extend([end(9), end(0)]);
    sink.place(items);
    for id in [1, 3, 4] {
        store(&sink, id, b"x").unwrap();
    }
    fill(&sink, 2, b"x").unwrap();
    fill(&sink, 10, b"x").unwrap();
    for name in names {
        assert!(
            field.dst().join(std::ffi::OsStr::from_bytes(name)).exists(),
            "{name:?}"
        );
    }
}

#[test]
fn a_sender_that_lies_harms_nothing() {
    let field = Field::new();
    let sink = field.sink();
    let symlinked = EntryKind::Symlink(Vec::new());
    let page = sink.place(vec![
        top(),
        entry(1, 0, b"f", file(1), metadata(0o644)),
        entry(2, 0, b"f", file(1), metadata(0o644)),
        entry(2, 0, b"again", file(1), metadata(0o644)),
        entry(3, 77, b"nowhere", file(1), metadata(0o644)),
        entry(4, 1, b"below-a-file", file(1), metadata(0o644)),
        entry(5, 77, b"nowhere", EntryKind::Directory, metadata(0o755)),
        entry(6, 5, b"below", EntryKind::Directory, metadata(0o755)),
        entry(7, 6, b"deeper", file(1), metadata(0o644)),
        end(6),
        end(5),
        end(77),
        entry(8, 0, part_name(0).as_bytes(), file(1), metadata(0o644)),
        entry(9, 0, b"empty", symlinked, metadata(0o777)),
        entry(
            10,
            0,
            b"self",
            EntryKind::HardLink(EntryId(10)),
            metadata(0o644),
        ),
        entry(11, 0, b"d", EntryKind::Directory, metadata(0o755)),
        entry(12, 0, b"d", EntryKind::Directory, metadata(0o755)),
        end(12),
        end(11),
        end(11),
        end(0),
        entry(13, 0, b"late", file(1), metadata(0o644)),
    ]);
    use FaultCode::{Exists, Invalid, Protocol};
    let codes: Vec<_> = page
        .entries
        .iter()
        .map(|(id, placed)| match placed {
            Placed::Settled(Outcome::Failed(fault)) => (id.0, Some(fault.code)),
            _ => (id.0, None),
        })
        .collect();
    let p = Some(Protocol);
    let expected = [
        (0, None),
        (1, None),
        (2, Some(Exists)),
        (2, p),
        (3, p),
        (4, p),
        (5, p),
        (6, p),
        (7, p),
        (8, Some(Invalid)),
        (9, p),
        (10, p),
        (11, None),
        (12, None),
        (13, p),
    ];
    assert_eq!(codes, expected);
    store(&sink, 1, b"x").unwrap();
    assert!(store(&sink, 1, b"y").is_err());
    assert_eq!(settled_ids(&sink.settled(&[EntryId(1), EntryId(1)])), [0]);
    assert_eq!(fs::read(field.dst().join("f")).unwrap(), b"x");
}

#[test]
fn nesting_ends_where_the_limit_says() {
    let mut field = Field::on("/dev/shm");
    field.descriptors = 4;
    let sink = field.sink();
    let mut items = vec![top()];
    let deepest = crate::limits::DEPTH_MAX as u64;
    for id in 1..=deepest + 2 {
        items.push(entry(
            id,
            id - 1,
            b"d",
            EntryKind::Directory,
            metadata(0o755),
        ));
    }
    let page = sink.place(items);
    let made = page
        .entries
        .iter()
        .filter(|(_, placed)| *placed == Placed::Directory)
        .count();
    assert_eq!(made as u64, deepest + 1);
    let finished = sink.place((0..=deepest).rev().map(end).collect()).finished;
    assert_eq!(finished.len() as u64, deepest + 1);
}

#[test]
fn a_spent_budget_slows_a_transfer_but_does_not_stop_it() {
    const LEVELS: u64 = 40;
    // A transfer alone gets three quarters at most.
    for (budget, left) in [(0, 0), (5, 2), (1000, 1000 - 33)] {
        let mut field = Field::new();
        (field.descriptors, field.budget) = (512, Budget::new(budget));
        let sink = field.sink();
        let mut page = vec![top()];
        for level in 1..=LEVELS {
            page.push(entry(
                level,
                level - 1,
                b"d",
                EntryKind::Directory,
                metadata(0o755),
            ));
        }
        for level in 0..=LEVELS {
            page.push(entry(100 + level, level, b"f", file(1), metadata(0o644)));
        }
        sink.place(page);
        // All of them, the top included, but those that everyone is guaranteed.
        assert_eq!(field.budget.left(), left);
        let files: Vec<PackFile<'_>> = (0..=LEVELS)
            .map(|level| PackFile {
                id: EntryId(100 + level),
                bytes: b"x",
            })
            .collect();
        let results = sink.store_pack(&files);
        assert_eq!(results.len(), files.len());
        assert!(results.iter().all(|(_, result)| result.is_ok()));
        let mut path = field.dst();
        for _ in 0..=LEVELS {
            assert_eq!(fs::read(path.join("f")).unwrap(), b"x");
            path.push("d");
        }
        drop(sink);
        assert_eq!(field.budget.left(), i64::try_from(budget).unwrap());
    }
}

#[test]
fn thousands_of_directories_need_few_descriptors() {
    let mut field = Field::on("/dev/shm");
    field.descriptors = 8;
    let sink = field.sink();
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let mut items = vec![top()];
    let count = 3000;
    for index in 0..count {
        let (directory, child) = (1 + 2 * index, 2 + 2 * index);
        let name = format!("d{index}");
        items.push(entry(
            directory,
            0,
            name.as_bytes(),
            EntryKind::Directory,
            metadata(0o755),
        ));
        items.push(entry(child, directory, b"f", file(1), metadata(0o644)));
        items.push(end(directory));
    }
    items.push(end(0));
    sink.place(items);
    // Other tests run beside this one and open files too.
    assert!(open() < before + 1000);
    let ids: Vec<_> = (0..count).map(|index| EntryId(2 + 2 * index)).collect();
    let pack: Vec<_> = ids.iter().map(|&id| PackFile { id, bytes: b"x" }).collect();
    assert!(
        sink.store_pack(&pack)
            .iter()
            .all(|(_, result)| result.is_ok())
    );
    assert_eq!(sink.settled(&ids).len() as u64, count + 1);
}

#[test]
fn jobs_of_one_transfer_run_beside_each_other_and_beside_placing() {
    let field = Field::new();
    let sink = field.sink();
    sink.place(vec![top()]);
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel::<u64>();
        let told = Arc::new(Mutex::new(told));
        for _ in 0..3 {
            let (told, sink) = (told.clone(), &sink);
            scope.spawn(move || {
                loop {
                    let next = told.lock().unwrap().recv();
                    let Ok(id) = next else { return };
                    if id % 2 == 0 {
                        store(sink, id, b"data").unwrap();
                    } else {
                        fill(sink, id, b"data").unwrap();
                    }
                    sink.settled(&[EntryId(id)]);
                }
            });
        }
        for directory in (1..100).step_by(5) {
            let name = format!("d{directory}");
            let mut items = vec![entry(
                directory,
                0,
                name.as_bytes(),
                EntryKind::Directory,
                metadata(0o755),
            )];
            for id in directory + 1..directory + 5 {
                let name = format!("f{id}");
                items.push(entry(
                    id,
                    directory,
                    name.as_bytes(),
                    file(4),
                    metadata(0o644),
                ));
            }
            items.push(end(directory));
            sink.place(items);
            for id in directory + 1..directory + 5 {
                tell.send(id).unwrap();
            }
        }
    });
    assert_eq!(settled_ids(&sink.place(vec![end(0)]).finished), [0]);
    for directory in (1..100).step_by(5) {
        let path = field.dst().join(format!("d{directory}"));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 4);
        assert_eq!(mtime(&path), OLD_PAIR);
    }
}

#[test]
fn inherited_access_lists_decide_where_modes_are_not_preserved_and_not_elsewhere() {
    for preserve in [Preserve::default(), ARCHIVE] {
        let mut field = Field::new();
        field.preserve = preserve;
        let list = access_list();
        lsetxattr(
            field.dst(),
            "system.posix_acl_default",
            &list,
            XattrFlags::empty(),
        )
        .unwrap();
        let sink = field.sink();
        sink.place(vec![
            top(),
            entry(1, 0, b"packed", file(1), metadata(0o666)),
            entry(2, 0, b"parted", file(1), metadata(0o666)),
        ]);
        store(&sink, 1, b"x").unwrap();
        fill(&sink, 2, b"x").unwrap();
        let plain = field.dst().join("plain");
        fs::File::create(&plain).unwrap();
        for name in ["packed", "parted"] {
            let path = field.dst().join(name);
            let mode = fs::metadata(&path).unwrap().mode();
            let mut value = [0; 256];
            let inherited = lgetxattr(&path, "system.posix_acl_access", &mut value[..]);
            if preserve.xattrs {
                assert_eq!(
                    (mode & 0o7777, inherited),
                    (0o666, Err(Errno::NODATA)),
                    "{name}"
                );
            } else {
                assert_eq!(mode, fs::metadata(&plain).unwrap().mode(), "{name}");
                assert_eq!(inherited, Ok(list.len()), "{name}");
            }
        }
    }
}

#[test]
fn set_id_bits_never_come_from_a_source_nor_stay_on_new_content() {
    let field = Field::new();
    let (_, path) = field.send(b"x", metadata(0o7777));
    assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, 0o1777);
    let mut field = Field::new();
    field.preserve = Preserve::default();
    let path = field.dst().join("f");
    fs::write(&path, "privileged").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    field.send(b"x", metadata(0o644));
    assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, 0o755);
}

/// An older copy lends its bytes by a clone where the file system can, and else is read beside.
#[test]
fn a_part_file_begins_with_what_is_to_be_compared_and_nothing_else() {
    let mut field = Field::new();
    field.reuse.delta = true;
    let chunk = usize::try_from(ChunkSize::MIN.bytes()).unwrap();
    let path = field.dst().join("f");
    let older = vec![7; 6 * chunk + 5];
    for (listed, len, chunks) in [
        // As listed; and when the source has become longer, or shorter, since.
        (9 * chunk, 9 * chunk, 6),
        (5 * chunk + 9, 9 * chunk, 6),
        (9 * chunk, 4 * chunk + 3, 5),
        (6 * chunk, 6 * chunk, 6),
    ] {
        fs::write(&path, &older).unwrap();
        let sink = field.sink();
        let page = sink.place(vec![
            top(),
            entry(1, 0, b"f", file(listed), metadata(0o644)),
            end(0),
        ]);
        let asked = ChunkSize::MIN.count(listed as u64).min(6);
        assert_eq!(page.entries[1].1, Placed::Compare { chunks: asked });
        let part = sink.prepare_as(EntryId(1), len as u64, None).unwrap();
        let told = part.older().unwrap();
        assert_eq!(told.chunks(), asked.min(chunks), "{listed} {len}");
        assert_eq!(Status::of(part.file()).unwrap().len, len as u64);
        let mut bytes = vec![1; len];
        assert_eq!(part.read_at(&mut bytes, 0).unwrap(), len);
        let kept = match told {
            Older::Within { chunks } => (usize::try_from(*chunks).unwrap() * chunk).min(len),
            Older::Beside { copy, .. } => {
                let mut seen = vec![0; chunk];
                assert_eq!(copy.read_at(&mut seen, 0).unwrap(), chunk);
                assert!(seen == older[..chunk]);
                0
            }
        };
        assert!(
            bytes[..kept].iter().all(|byte| *byte == 7),
            "{listed} {len}"
        );
        assert!(
            bytes[kept..].iter().all(|byte| *byte == 0),
            "{listed} {len}"
        );
        sink.settled(&[EntryId(1)]);
        assert!(
            fs::read(&path).unwrap() == older,
            "the older copy was touched"
        );
    }
}

#[test]
fn what_is_no_file_of_several_chunks_is_not_compared() {
    let mut field = Field::new();
    field.reuse.delta = true;
    let chunk = usize::try_from(ChunkSize::MIN.bytes()).unwrap();
    let path = field.dst().join("f");
    let place = |field: &Field, len: usize| {
        let sink = field.sink();
        let page = sink.place(vec![
            top(),
            entry(1, 0, b"f", file(len), metadata(0o644)),
            end(0),
        ]);
        page.entries[1].1.clone()
    };
    fs::write(&path, vec![7; 4 * chunk - 1]).unwrap();
    assert_eq!(
        place(&field, 9 * chunk),
        Placed::Fetch,
        "three whole chunks"
    );
    fs::write(&path, vec![7; 9 * chunk]).unwrap();
    assert_eq!(place(&field, 9 * chunk), Placed::Compare { chunks: 9 });
    // It travels in a pack.
    assert_eq!(place(&field, 4 * chunk), Placed::Fetch);
    fs::rename(&path, field.dst().join("other")).unwrap();
    symlink("other", &path).unwrap();
    assert_eq!(
        place(&field, 9 * chunk),
        Placed::Fetch,
        "a link is not followed"
    );
    field.reuse.delta = false;
    fs::rename(field.dst().join("other"), &path).unwrap();
    assert_eq!(place(&field, 9 * chunk), Placed::Fetch);
}
