//! Full disks, at many points: the exit status is that of storage, each file that did not fit is named
//! with what to do, nothing that is not whole has a name, older versions stand untouched, what fits is
//! copied, nothing hidden is left, and once there is room the same command does the rest.

mod common;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use common::mounts::{SmallFileSystem, with_own_mounts};
use common::tree::{self, Carried, Random};
use common::{Daemon, Finished, Proxy, Running, Scope, WAYS, Way, World, wait_for};
use serde_json::Value;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Points at which space runs out.
const POINTS: u64 = 50;
/// The same on a disk.
const DISK_POINTS: u64 = 10;
/// Room for all, and for an older version of it.
const ROOM_BYTES: u64 = 96 * MIB;
/// The file that takes the room that there is.
const FILLER: &str = "filler";

/// When the disk is full.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// From the beginning: so many bytes fit.
    Before(u64),
    /// Somebody else fills it once so many bytes have travelled.
    During(u64),
}

/// A file as it was before.
#[derive(Debug, PartialEq)]
struct Older {
    content: Vec<u8>,
    mtime: (i64, i64),
}

/// A copy of a tree into a file system of its own.
struct Copying {
    way: Way,
    // In the order in which they go: nobody holds what is unmounted and removed.
    daemon: Daemon,
    small: SmallFileSystem,
    world: World,
}

/// What is full.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Disk {
    /// Memory, where nothing is preallocated.
    Tmpfs,
    /// A disk, where all of a file is.
    Ext4,
}

impl Copying {
    /// With so much room. `make` makes the source. Nothing where there can be no such disk.
    fn new(way: Way, disk: Disk, bytes: u64, make: impl FnOnce(&Path)) -> Option<Self> {
        let world = World::new();
        let at = world.path(match way {
            Way::Pull => "local/small",
            Way::Push => "export/small",
        });
        let small = match disk {
            Disk::Tmpfs => SmallFileSystem::mount(at, bytes),
            Disk::Ext4 => SmallFileSystem::mount_disk(at, &world.path("image"), bytes)?,
        };
        let daemon = world.serve();
        let copying = Self {
            world,
            way,
            small,
            daemon,
        };
        fs::create_dir(copying.source()).unwrap();
        make(&copying.source());
        Some(copying)
    }

    fn source(&self) -> PathBuf {
        self.world.path(match self.way {
            Way::Pull => "export/tree",
            Way::Push => "local/tree",
        })
    }

    fn target(&self) -> PathBuf {
        self.small.at.join("tree")
    }

    fn start(&self, url: impl Fn(&str) -> OsString, json: bool) -> Running {
        let (command, words) = match self.way {
            Way::Pull => ("pull", [url("data/tree"), "small".into()]),
            Way::Push => ("push", ["tree".into(), url("data/small/")]),
        };
        let command = self.world.rdcp(command).arg("-r").args(words);
        command.args(json.then_some("--json")).start()
    }

    fn run(&self, json: bool) -> Finished {
        self.start(|rest| self.daemon.url(rest), json).wait()
    }

    /// There is room, and the same command does the rest.
    #[track_caller]
    fn mends(&self) {
        fs::remove_file(self.small.at.join(FILLER)).unwrap();
        self.run(false).ok();
        tree::assert_same(&self.source(), &self.target(), Carried::Plain);
        self.assert_nothing_hidden();
    }

    /// Of a push the daemon may still be ending its half.
    #[track_caller]
    fn assert_nothing_hidden(&self) {
        wait_for("nothing hidden is left", || {
            let names = tree::listing(&self.small.at);
            let mut names = names.iter().map(|name| name.to_string_lossy());
            (!names.any(|name| name.contains(".rdcp-"))).then_some(())
        });
    }

    fn older(&self) -> BTreeMap<PathBuf, Older> {
        if !self.target().exists() {
            return BTreeMap::new();
        }
        let files = tree::walk(&self.target()).into_iter();
        let files = files.filter(|path| path.is_file());
        files.map(|path| (path.clone(), older(&path))).collect()
    }

    /// Each file is the source's or what was there before.
    #[track_caller]
    fn assert_whole(&self, before: &BTreeMap<PathBuf, Older>) {
        let now = self.older();
        for (path, found) in &now {
            let name = path.strip_prefix(self.target()).unwrap();
            let is_new = found.content == fs::read(self.source().join(name)).unwrap();
            assert!(
                is_new || before.get(path) == Some(found),
                "{path:?} is neither the new nor the old version: {} bytes",
                found.content.len()
            );
        }
        for path in before.keys() {
            assert!(now.contains_key(path), "{path:?} is gone");
        }
    }
}

fn older(path: &Path) -> Older {
    let metadata = fs::metadata(path).unwrap();
    Older {
        content: fs::read(path).unwrap(),
        mtime: (metadata.mtime(), metadata.mtime_nsec()),
    }
}

fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    let end = u64::try_from(choices.len()).unwrap();
    choices[usize::try_from(random.below(end)).unwrap()]
}

/// Files of all sizes that are treated differently, some with holes, in a few directories.
fn make_tree(root: &Path, random: &mut Random) {
    for directory in 0..=random.below(3) {
        let directory = root.join(format!("d{directory}/below"));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..4 + random.below(8) {
            let path = directory.join(format!("f{file}"));
            let len = pick(random, &[0, 100, 4096, 50_000, 300_000, MIB + 1, 3 * MIB]);
            tree::random_file(&path, usize::try_from(len).unwrap(), random.next());
        }
        tree::sparse_file(
            &directory.join("holes"),
            8 * MIB,
            &[0, 3 * MIB, 8 * MIB - 5000],
        );
    }
    // Of which something does not fit in any case.
    tree::random_file(&root.join("large"), 4 << 20, random.next());
}

/// Older versions of some of the files, shorter or longer.
fn make_older(source: &Path, target: &Path, random: &mut Random) {
    for path in tree::walk(source).into_iter().filter(|path| path.is_file()) {
        if random.below(2) == 0 {
            let to = target.join(path.strip_prefix(source).unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            let len = usize::try_from(random.below(100 * KIB)).unwrap();
            tree::random_file(&to, len, random.next());
        }
    }
}

fn allocated(root: &Path) -> u64 {
    let metadata = tree::walk(root)
        .into_iter()
        .map(|path| path.symlink_metadata());
    metadata
        .map(|metadata| metadata.unwrap().blocks() * 512)
        .sum()
}

fn of_type<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == kind).collect()
}

/// One point; whether anything did not fit.
fn run_out(seed: u64, disk: Disk) -> Option<bool> {
    let mut random = Random::new(seed);
    let way = pick(&mut random, &WAYS);
    let with_older = random.below(2) == 0;
    let make = |root: &Path| make_tree(root, &mut random);
    let copying = Copying::new(way, disk, ROOM_BYTES, make)?;
    if with_older {
        make_older(&copying.source(), &copying.target(), &mut random);
    }
    let wanted = allocated(&copying.source());
    let when = match random.below(2) {
        0 => When::Before(random.below(wanted * 9 / 10)),
        _ => When::During(random.below(wanted)),
    };
    let before = copying.older();
    let context =
        format!("RDCP_SEED={seed}: {way:?}, {disk:?}, {when:?} of {wanted}, older: {with_older}");
    eprintln!("{context}");
    let done = match when {
        When::Before(room) => {
            copying.small.fill(FILLER, room);
            copying.run(true)
        }
        When::During(bytes) => {
            let proxy = Proxy::new(copying.daemon.address()).hold_after(bytes, Scope::Data);
            let mut running = copying.start(|rest| proxy.url(rest), true);
            // Headers count too, but what is the same as before does not travel.
            wait_for("the proxy holds it, or it is over", || {
                (proxy.is_held() || !running.is_running()).then_some(())
            });
            copying.small.fill(FILLER, 0);
            proxy.release();
            running.wait()
        }
    };
    assert!([0, 7].contains(&done.status), "{context}\n{}", done.stderr);
    let lines = done.json();
    let files = of_type(&lines, "file");
    let mut failed = 0;
    for line in &files {
        let path = line["path"].as_str().unwrap();
        let copy = copying.small.at.join(path);
        let source = copying.source().join(path.strip_prefix("tree/").unwrap());
        match line["outcome"].as_str().unwrap() {
            "published" => {
                assert!(
                    fs::read(&copy).unwrap() == fs::read(&source).unwrap(),
                    "{context} {path}"
                );
            }
            "failed" => {
                failed += 1;
                let error = &line["error"];
                let message = error["message"].as_str().unwrap();
                assert!(
                    message.contains("No space left") && message.contains("free space or"),
                    "{context} {line}"
                );
                assert_eq!(error["kind"], "storage", "{context} {line}");
                let place = error["path"].as_str().unwrap();
                assert!(place.ends_with(path), "{context} {line}");
                assert_eq!(
                    copy.exists(),
                    before.contains_key(&copy),
                    "{context} {line}"
                );
            }
            other => assert_eq!(other, "unchanged", "{context} {line}"),
        }
    }
    let summary = lines.last().unwrap();
    assert_eq!(
        done.status == 7,
        summary["failed"].as_u64() > Some(0),
        "{context} {summary}"
    );
    // Files in a directory that could not be made are not told one by one.
    if done.status == 0 {
        assert_eq!(failed, 0, "{context}");
    }
    copying.assert_whole(&before);
    copying.assert_nothing_hidden();
    copying.mends();
    Some(done.status == 7)
}

/// Runs out of space at so many points. Some had copied all before, or had their blocks already.
fn run_out_at(points: u64, disk: Disk) {
    if let Ok(seed) = std::env::var("RDCP_SEED") {
        run_out(seed.parse().expect("a number"), disk);
        return;
    }
    let mut full = 0;
    for seed in 0..points {
        match run_out(seed, disk) {
            Some(is_full) => full += u64::from(is_full),
            None => return,
        }
    }
    assert!(
        full >= points / 3,
        "only {full} of {points} ran out of space"
    );
}

#[test]
fn a_full_memory_loses_nothing_and_the_same_command_mends_it() {
    let test = "a_full_memory_loses_nothing_and_the_same_command_mends_it";
    with_own_mounts(test, || run_out_at(POINTS, Disk::Tmpfs));
}

#[test]
fn a_full_disk_loses_nothing_and_the_same_command_mends_it() {
    let test = "a_full_disk_loses_nothing_and_the_same_command_mends_it";
    with_own_mounts(test, || run_out_at(DISK_POINTS, Disk::Ext4));
}

#[test]
fn what_fits_is_copied_beside_what_does_not() {
    with_own_mounts("what_fits_is_copied_beside_what_does_not", || {
        for (way, disk) in WAYS
            .map(|way| [(way, Disk::Tmpfs), (way, Disk::Ext4)])
            .concat()
        {
            let copying = Copying::new(way, disk, 32 * MIB, |root| {
                tree::random_file(&root.join("huge"), 12 << 20, 1);
                fs::create_dir(root.join("small")).unwrap();
                for number in 0..60 {
                    let path = root.join(format!("small/{number}"));
                    tree::random_file(&path, 20_000, number);
                }
            });
            let Some(copying) = copying else { return };
            copying.small.fill(FILLER, 4 * MIB);
            let done = copying.run(false).expect(7);
            let done = done
                .says("tree/huge: ")
                .says("No space left")
                .says("free space or");
            assert_eq!(done.stderr.lines().count(), 1, "{way:?}: {}", done.stderr);
            assert!(!copying.target().join("huge").exists());
            for number in 0..60 {
                let name = format!("small/{number}");
                let source = fs::read(copying.source().join(&name)).unwrap();
                let copy = fs::read(copying.target().join(&name));
                assert!(
                    copy.is_ok_and(|copy| copy == source),
                    "{way:?}, {disk:?}: {name} is not there\n{}",
                    done.stderr
                );
            }
            copying.assert_nothing_hidden();
            copying.mends();
        }
    });
}

#[test]
fn a_journal_that_does_not_fit_costs_nothing_but_itself() {
    with_own_mounts(
        "a_journal_that_does_not_fit_costs_nothing_but_itself",
        || {
            for way in WAYS {
                let copying = Copying::new(way, Disk::Ext4, ROOM_BYTES, |root| {
                    tree::random_file(&root.join("file"), 32 << 20, 1);
                });
                let Some(copying) = copying else { return };
                let proxy = Proxy::new(copying.daemon.address()).hold_after(4 * MIB, Scope::Data);
                let running = copying.start(|rest| proxy.url(rest), false);
                proxy.wait_held();
                // All of the file is preallocated by now, and nothing else fits any more.
                copying.small.fill(FILLER, 0);
                proxy.release();
                running.wait().ok();
                let (from, to) = (copying.source(), copying.target());
                assert!(fs::read(from.join("file")).unwrap() == fs::read(to.join("file")).unwrap());
                copying.assert_nothing_hidden();
            }
        },
    );
}

#[test]
fn directories_and_files_without_an_inode_are_told() {
    with_own_mounts("directories_and_files_without_an_inode_are_told", || {
        for way in WAYS {
            let copying = Copying::new(way, Disk::Tmpfs, ROOM_BYTES, |root| {
                fs::create_dir_all(root.join("a/b/c")).unwrap();
                fs::write(root.join("a/b/c/file"), "content").unwrap();
                fs::write(root.join("first"), "content").unwrap();
            });
            let copying = copying.expect("tmpfs is everywhere");
            copying.small.fill(FILLER, 32 * MIB);
            copying.small.remount("nr_inodes=3");
            let done = copying.run(false).expect(7);
            done.says("No space left").says("small/tree");
            copying.assert_nothing_hidden();
            copying.small.remount("nr_inodes=1000");
            copying.mends();
        }
    });
}
