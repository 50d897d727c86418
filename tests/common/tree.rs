//! Trees of files: made with everything that a file system holds, read back, compared.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

/// Content is compared in blocks of this size; blocks of zeros count as holes.
const BLOCK_BYTES: usize = 64 << 10;

/// Cheap numbers that are the same in every run (xorshift64*).
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Zero would give zeros for ever.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// A file of `len` random bytes with an old time of modification.
pub(crate) fn random_file(path: &Path, len: usize, seed: u64) {
    fs::write(path, Random::new(seed).bytes(len)).expect("a file can be written");
    set_mtime(
        path,
        1_500_000_000 + i64::try_from(seed % 1000).expect("small"),
        123_456_789,
    );
}

/// A file of `len` bytes that is data only around these offsets.
pub(crate) fn sparse_file(path: &Path, len: u64, islands: &[u64]) {
    let file = File::create(path).expect("a file can be made");
    file.set_len(len).expect("a file can be made long");
    for (island, offset) in (1u64..).zip(islands) {
        let data = Random::new(island).bytes(10_000);
        let room = usize::try_from((len - offset).min(data.len() as u64)).expect("small");
        file.write_all_at(&data[..room], *offset)
            .expect("a file can be written");
    }
    drop(file);
    set_mtime(path, 1_400_000_000, 1);
}

/// Sets the time of modification of the thing itself, never of what a symlink points to.
pub(crate) fn set_mtime(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(seconds, 0),
        last_modification: time(seconds, nanoseconds),
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("times can be set");
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode can be set");
}

/// Sizes at which programs break: nothing, pages, chunks, packs, each one less and one more.
pub(crate) const SIZES: &[usize] = &[
    0,
    1,
    4095,
    4096,
    4097,
    (64 << 10) - 1,
    64 << 10,
    (64 << 10) + 1,
    (256 << 10) - 1,
    256 << 10,
    (256 << 10) + 1,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    5 << 20,
];

/// A directory with one file for each of [`SIZES`].
pub(crate) fn make_sizes(root: &Path) {
    fs::create_dir_all(root).expect("a directory can be made");
    for (seed, size) in (1u64..).zip(SIZES) {
        random_file(&root.join(format!("{size:07}")), *size, seed);
    }
}

/// Names that break programs which take names for text.
pub(crate) fn odd_names() -> Vec<OsString> {
    let longest = vec![b'n'; 255];
    let names: &[&[u8]] = &[
        b"with space",
        b" leading and trailing ",
        b"-rf",
        b"--help",
        b"new\nline",
        b"esc\x1b[31mred",
        b"\x1b]0;title\x07",
        b"\xff\xfe not UTF-8",
        b"\xc3",
        b"back\\slash",
        b"\\n",
        b"quote'\"`$(id)",
        b"*?[a]",
        b"...",
        b"..x",
        b".hidden",
        b"~",
        b"%41%2f",
        b"a:b",
        b"tab\tand\rreturn",
        b"\x01\x7f",
        "\u{4e2d}\u{6587} \u{1f980}".as_bytes(),
        "right\u{202e}left".as_bytes(),
        b"#",
        b"?",
        &longest,
    ];
    names
        .iter()
        .map(|bytes| OsString::from_vec(bytes.to_vec()))
        .collect()
}

/// A tree with everything that `-a` carries. It can be made anywhere where `user.*` attributes
/// and ACLs can.
pub(crate) fn make_everything(root: &Path) {
    let dir = |name: &str| {
        let path = root.join(name);
        fs::create_dir_all(&path).expect("a directory can be made");
        path
    };
    dir("");
    make_odd_names(&dir("odd"));
    make_links(&dir("links"));
    make_modes(&dir("modes"));
    make_attributes(&dir("attributes"));
    make_random(&dir("random"), 7, 60);
    dir("empty");
    dir("empty tree/a/b/c");
    let mut deep = dir("deep");
    for level in 0..120 {
        deep.push(format!("d{level}"));
    }
    fs::create_dir_all(&deep).expect("a directory can be made");
    random_file(&deep.join("bottom"), 10, 99);
    sparse_file(
        &root.join("sparse"),
        64 << 20,
        &[0, 30 << 20, (64 << 20) - 1],
    );
    sparse_file(&root.join("all hole"), 3 << 20, &[]);
    random_file(&root.join("big"), (5 << 20) + 3, 3);
    date_all(root);
}

fn make_odd_names(root: &Path) {
    for (seed, name) in (200u64..).zip(odd_names()) {
        random_file(&root.join(&name), 20, seed);
        let mut directory = OsString::from("d");
        directory.push(&name);
        // The longest name gets no longer.
        let directory = OsStr::from_bytes(&directory.as_bytes()[..directory.len().min(255)]);
        fs::create_dir(root.join(directory)).expect("a directory can be made");
        random_file(&root.join(directory).join(&name), 21, seed);
    }
}

fn make_links(root: &Path) {
    for (target, name) in [
        (&b"../big"[..], "relative"),
        (b"nowhere/at all", "dangling"),
        (b"/etc/passwd", "absolute"),
        (b".", "itself"),
        (b"../../../../../../..", "up"),
        (b"\xff\n\x1b[1m", "odd target"),
        (&[b't'; 4000], "long target"),
    ] {
        symlink(OsStr::from_bytes(target), root.join(name)).expect("a symlink can be made");
    }
    random_file(&root.join("one"), 300_000, 11);
    fs::create_dir(root.join("sub")).expect("a directory can be made");
    for name in ["two", "sub/three", "a first one"] {
        fs::hard_link(root.join("one"), root.join(name)).expect("a hard link can be made");
    }
    random_file(&root.join("small"), 3, 12);
    fs::hard_link(root.join("small"), root.join("sub/small too")).expect("a hard link can be made");
}

fn make_modes(root: &Path) {
    for mode in [0o600, 0o644, 0o640, 0o755, 0o777, 0o444, 0o400] {
        let path = root.join(format!("{mode:o}"));
        random_file(&path, 5, u64::from(mode));
        set_mode(&path, mode);
    }
    for mode in [0o555, 0o500, 0o700, 0o1777] {
        let path = root.join(format!("d{mode:o}"));
        fs::create_dir_all(path.join("sub")).expect("a directory can be made");
        random_file(&path.join("file"), 6, u64::from(mode));
        set_mode(&path.join("sub"), mode & 0o777);
        set_mode(&path, mode);
    }
}

fn make_attributes(root: &Path) {
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
            .expect("this file system has extended attributes");
    };
    let file = root.join("file");
    random_file(&file, 100, 31);
    set(&file, "user.text", b"value");
    set(&file, "user.empty", b"");
    set(&file, "user.bytes", &[0, 0xff, b'\n']);
    set(&file, "user.long", &[b'x'; 2000]);
    let acl = root.join("acl");
    random_file(&acl, 100, 32);
    set(&acl, "system.posix_acl_access", &acl_of(0o640, 1234));
    let directory = root.join("directory");
    fs::create_dir(&directory).expect("a directory can be made");
    set(&directory, "user.text", b"of a directory");
    set(&directory, "system.posix_acl_default", &acl_of(0o750, 4321));
    random_file(&root.join("big with attributes"), 600_000, 33);
    set(&root.join("big with attributes"), "user.text", b"large");
}

/// A POSIX ACL as the kernel takes it (linux/posix_acl_xattr.h): these bits, and read for a user.
fn acl_of(mode: u16, user: u32) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let (owner, group, other) = (mode >> 6 & 7, mode >> 3 & 7, mode & 7);
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, bits, id) in [
        (0x01, owner, NOBODY),
        (0x02, 4, user),
        (0x04, group, NOBODY),
        (0x10, 4 | group, NOBODY),
        (0x20, other, NOBODY),
    ] {
        let (tag, bits): (u16, u16) = (tag, bits);
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&bits.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    acl
}

/// A tree of about `entries` plain files and directories, the same for the same seed.
pub(crate) fn make_random(root: &Path, seed: u64, entries: u64) {
    let mut random = Random::new(seed);
    let mut directories = vec![root.to_path_buf()];
    fs::create_dir_all(root).expect("a directory can be made");
    for number in 0..entries {
        let choice = random.below(directories.len() as u64);
        let parent = directories[usize::try_from(choice).expect("small")].clone();
        let path = parent.join(format!("{:x}-{number}", random.below(1 << 20)));
        if random.below(6) == 0 {
            fs::create_dir(&path).expect("a directory can be made");
            directories.push(path);
        } else {
            let len = match random.below(10) {
                0 => 0,
                1..=6 => random.below(5_000),
                7..=8 => random.below(100_000),
                _ => random.below(700_000),
            };
            random_file(
                &path,
                usize::try_from(len).expect("small"),
                random.next() % 10_000,
            );
        }
    }
}

/// Gives everything below `root` a time of its own with nanoseconds, children before parents.
pub(crate) fn date_all(root: &Path) {
    let mut paths: Vec<PathBuf> = walk(root);
    paths.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    for (number, path) in (0i64..).zip(paths) {
        set_mtime(
            &path,
            1_600_000_000 + number * 60,
            (number * 7_919_191) % 1_000_000_000,
        );
    }
}

/// Everything below `root`, and itself.
pub(crate) fn walk(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.to_path_buf()];
    let mut next = 0;
    while next < found.len() {
        let path = found[next].clone();
        next += 1;
        let metadata = path
            .symlink_metadata()
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if metadata.is_dir() {
            let entries =
                fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            found.extend(entries.map(|entry| entry.expect("it can be listed").path()));
        }
    }
    found
}

/// The relative paths of everything below `root`, sorted.
pub(crate) fn listing(root: &Path) -> Vec<OsString> {
    let mut paths: Vec<OsString> = walk(root)
        .iter()
        .filter(|path| *path != root)
        .map(|path| relative(root, path))
        .collect();
    paths.sort();
    paths
}

fn relative(root: &Path, path: &Path) -> OsString {
    path.strip_prefix(root)
        .expect("it was found below")
        .as_os_str()
        .to_owned()
}

/// What of two trees has to be the same beside names, content and the files' times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// What a copy with `-r` carries.
    Plain,
    /// What `-a` carries.
    All,
}

/// What a thing in a tree is, as far as a copy must reproduce it.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    kind: Kind,
    mtime: Option<(i64, i64)>,
    mode: Option<u32>,
    owner: Option<(u32, u32)>,
    attributes: BTreeMap<OsString, Vec<u8>>,
    /// The first of the names of a file that has several.
    first_name: Option<OsString>,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    File { len: u64, content: String },
    Directory,
    Symlink(PathBuf),
    Special,
}

struct Read {
    nodes: BTreeMap<OsString, Node>,
    /// Bytes that a file takes on disk.
    allocated: BTreeMap<OsString, u64>,
}

fn read(root: &Path, carried: Carried) -> Read {
    let all = carried == Carried::All;
    let mut paths = walk(root);
    paths.sort();
    let mut first_names = BTreeMap::new();
    let mut read = Read {
        nodes: BTreeMap::new(),
        allocated: BTreeMap::new(),
    };
    for path in paths {
        let name = relative(root, &path);
        let metadata = path.symlink_metadata().expect("it was found");
        let kind = if metadata.is_dir() {
            Kind::Directory
        } else if metadata.is_symlink() {
            Kind::Symlink(fs::read_link(&path).expect("a symlink can be read"))
        } else if metadata.is_file() {
            read.allocated.insert(name.clone(), metadata.blocks() * 512);
            Kind::File {
                len: metadata.len(),
                content: content(&path),
            }
        } else {
            Kind::Special
        };
        let is_file = metadata.is_file();
        let is_link = metadata.is_symlink();
        let first_name = (all && is_file && metadata.nlink() > 1).then(|| {
            let key = (metadata.dev(), metadata.ino());
            first_names.entry(key).or_insert(name.clone()).clone()
        });
        let node = Node {
            mtime: (all || is_file).then(|| (metadata.mtime(), metadata.mtime_nsec())),
            mode: (all && !is_link).then(|| metadata.mode() & 0o1777),
            owner: all.then(|| (metadata.uid(), metadata.gid())),
            attributes: if all && !is_link {
                attributes(&path)
            } else {
                BTreeMap::new()
            },
            first_name,
            kind,
        };
        read.nodes.insert(name, node);
    }
    read
}

/// Asserts that `actual` is a copy of `expected`: the same names, kinds, content and times, with
/// [`Carried::All`] modes, owners, hard links and attributes too, and holes where holes were.
#[track_caller]
pub(crate) fn assert_same(expected: &Path, actual: &Path, carried: Carried) {
    let (expected, actual) = (read(expected, carried), read(actual, carried));
    let mut differences = Vec::new();
    for (name, node) in &expected.nodes {
        match actual.nodes.get(name) {
            None => differences.push(format!("{name:?} is missing")),
            Some(other) if other != node => {
                differences.push(format!(
                    "{name:?}:\n  expected {node:?}\n  but is   {other:?}"
                ));
            }
            Some(_) => {}
        }
    }
    for name in actual.nodes.keys() {
        if !expected.nodes.contains_key(name) {
            differences.push(format!("{name:?} is too much"));
        }
    }
    for (name, allocated) in &expected.allocated {
        let most = allocated * 2 + (1 << 20);
        if let Some(other) = actual.allocated.get(name)
            && *other > most
        {
            differences.push(format!(
                "{name:?} takes {other} bytes instead of {allocated}"
            ));
        }
    }
    assert!(
        differences.is_empty(),
        "{} differences:\n{}",
        differences.len(),
        differences
            .iter()
            .take(20)
            .map(|text| text.chars().take(2_000).collect::<String>())
            .collect::<Vec<_>>()
            .join("\n")
    );
}

/// A digest of where which bytes are that are not zero; it does not read holes.
pub(crate) fn content(path: &Path) -> String {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; BLOCK_BYTES];
    let mut offset = 0;
    loop {
        offset = match rustix::fs::seek(&file, SeekFrom::Data(offset)) {
            // Blocks are compared as wholes, wherever data begins in them.
            Ok(data) => data / BLOCK_BYTES as u64 * BLOCK_BYTES as u64,
            Err(Errno::NXIO) => break,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        let mut len = 0;
        while len < block.len() {
            match file.read_at(&mut block[len..], offset + len as u64) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
        if len == 0 {
            break;
        }
        if block[..len].iter().any(|byte| *byte != 0) {
            hasher.update(&offset.to_le_bytes());
            hasher.update(&block[..len]);
        }
        offset += len as u64;
    }
    hasher.finalize().to_hex().to_string()
}

fn attributes(path: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let len = rustix::fs::llistxattr(path, &mut names[..]).expect("attributes can be listed");
    let carried =
        |name: &&[u8]| name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_");
    names[..len]
        .split(|byte| *byte == 0)
        .filter(carried)
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let name = OsStr::from_bytes(name);
            let len = rustix::fs::lgetxattr(path, name, &mut value[..]).expect("it was listed");
            value.truncate(len);
            (name.to_owned(), value)
        })
        .collect()
}
