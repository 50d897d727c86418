//! Files that replace an older copy of themselves: only chunks that differ travel, the copy is the
//! source's to the byte, and until it is complete the older one stands untouched. What travelled and
//! what was there is as the summary tells.

mod common;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Daemon, Proxy, Reactor, Running, Scope, World, tree, wait_for};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 64 * MIB;
/// When an older copy was last written: long ago.
const OLD: i64 = 1_500_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Pull,
    Push,
}

const BOTH_WAYS: [Way; 2] = [Way::Pull, Way::Push];

/// A copy of `file` to where an older `file` is, in either direction.
struct Copying {
    world: World,
    way: Way,
    options: Vec<&'static str>,
}

/// What a summary says of bytes.
#[derive(Debug, PartialEq)]
struct Bytes {
    moved: u64,
    reused: u64,
}

impl Copying {
    /// Both are the same to begin with, but for their times.
    fn new(way: Way, options: &[&'static str]) -> Self {
        Self::with(World::new(), way, options)
    }

    fn with(world: World, way: Way, options: &[&'static str]) -> Self {
        let copying = Self {
            world,
            way,
            options: options.to_vec(),
        };
        let len = usize::try_from(FILE_BYTES).unwrap();
        tree::random_file(&copying.source(), len, 7);
        fs::copy(copying.source(), copying.copy()).unwrap();
        tree::set_mtime(&copying.copy(), OLD, 0);
        copying
    }

    fn source(&self) -> PathBuf {
        self.world.path(match self.way {
            Way::Pull => "export/file",
            Way::Push => "local/file",
        })
    }

    fn copy(&self) -> PathBuf {
        self.world.path(match self.way {
            Way::Pull => "local/file",
            Way::Push => "export/file",
        })
    }

    /// Changes the source from `at` on.
    fn change(&self, at: u64, len: u64) {
        let mut options = fs::File::options();
        let file = options.read(true).write(true).open(self.source()).unwrap();
        let mut bytes = vec![0; usize::try_from(len).unwrap()];
        let read = file.read_at(&mut bytes, at).unwrap();
        bytes[read..].fill(3);
        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        file.write_all_at(&bytes, at).unwrap();
    }

    fn start(&self, url: impl Fn(&str) -> OsString) -> Running {
        let (command, words) = match self.way {
            Way::Pull => ("pull", [url("data/file"), "file".into()]),
            Way::Push => ("push", ["file".into(), url("data/file")]),
        };
        let command = self.world.rdcp(command).arg("--json").args(&self.options);
        command.args(words).start()
    }

    /// Copies to the end. What was said.
    #[track_caller]
    fn run(&self, daemon: &Daemon) -> Value {
        let mut lines = self.start(|rest| daemon.url(rest)).wait().ok().json();
        lines.pop().expect("there is a summary")
    }

    /// The same, and the copy is right and nothing else is left.
    #[track_caller]
    fn copies(&self, daemon: &Daemon) -> Bytes {
        let end = self.run(daemon);
        self.assert_right();
        let number = |name: &str| end[name].as_u64().expect("it is told");
        assert_eq!(number("bytes_resumed"), 0, "{end}");
        assert_eq!(number("files"), 1, "{end}");
        Bytes {
            moved: number("bytes_moved"),
            reused: number("bytes_reused"),
        }
    }

    #[track_caller]
    fn assert_right(&self) {
        let same = fs::read(self.source()).unwrap() == fs::read(self.copy()).unwrap();
        assert!(same, "the copy is not what the source is");
        let times = [self.source(), self.copy()].map(|path| fs::metadata(path).unwrap().mtime());
        assert_eq!(times[0], times[1]);
        let names = fs::read_dir(self.copy().parent().unwrap()).unwrap();
        let hidden = |name: &OsString| name.to_string_lossy().starts_with(".rdcp-");
        let mut names = names.map(|entry| entry.unwrap().file_name());
        assert_eq!(names.find(hidden), None);
    }
}

#[test]
fn only_chunks_that_differ_travel() {
    for (way, hash) in [
        (Way::Pull, "blake3"),
        (Way::Push, "blake3"),
        (Way::Pull, "sha256"),
        (Way::Push, "sha256"),
    ] {
        let copying = Copying::new(way, &["--hash", hash]);
        for at in [3 * MIB + 5, 40 * MIB, FILE_BYTES - 1] {
            copying.change(at, 1);
        }
        let daemon = copying.world.serve();
        let older = fs::metadata(copying.copy()).unwrap().ino();
        let held = fs::File::open(copying.copy()).unwrap();
        let before = fs::read(copying.copy()).unwrap();
        let bytes = copying.copies(&daemon);
        let (moved, reused) = (3 * MIB, FILE_BYTES - 3 * MIB);
        assert_eq!(bytes, Bytes { moved, reused }, "{way:?} {hash}");
        // The older copy was read and not written.
        assert_ne!(fs::metadata(copying.copy()).unwrap().ino(), older);
        let mut kept = vec![0; before.len()];
        held.read_exact_at(&mut kept, 0).unwrap();
        assert!(kept == before, "the older copy was written to");
    }
}

#[test]
fn a_change_across_chunks_costs_the_chunks_that_it_touches() {
    for reactor in Reactor::BOTH {
        for way in BOTH_WAYS {
            let copying = Copying::with(World::with(reactor), way, &[]);
            copying.change(20 * MIB + 12_345, 2 * MIB);
            let daemon = copying.world.serve();
            let bytes = copying.copies(&daemon);
            let (moved, reused) = (3 * MIB, FILE_BYTES - 3 * MIB);
            assert_eq!(bytes, Bytes { moved, reused }, "{reactor:?} {way:?}");
        }
    }
}

/// What `./run bench delta` measures, small: what is told is what comes over the data connections, and
/// digests are no part of it.
#[test]
fn ten_changed_chunks_cost_ten_and_a_run_of_as_many_one_more() {
    for way in BOTH_WAYS {
        for (runs, chunks) in [(10, 10), (1, 11)] {
            let copying = Copying::new(way, &[]);
            for run in 0..runs {
                let at = match runs {
                    1 => 20 * MIB + 123_457,
                    _ => (6 * run + 1) * MIB,
                };
                copying.change(at, 10 / runs * MIB);
            }
            let daemon = copying.world.serve();
            let proxy = Proxy::new(daemon.address());
            let lines = copying.start(|rest| proxy.url(rest)).wait().ok().json();
            copying.assert_right();
            let end = lines.last().unwrap();
            assert_eq!(end["bytes_moved"], chunks * MIB, "{way:?} {end}");
            assert_eq!(
                end["bytes_reused"],
                FILE_BYTES - chunks * MIB,
                "{way:?} {end}"
            );
            // Headers of READs and of what answers them.
            let travelled = proxy.data_bytes();
            let most = chunks * (MIB + 4096) + (64 << 10);
            assert!(
                (chunks * MIB..most).contains(&travelled),
                "{way:?} {travelled}"
            );
        }
    }
}

#[test]
fn a_file_that_grew_or_shrank_keeps_what_both_lengths_have() {
    for way in BOTH_WAYS {
        let copying = Copying::new(way, &[]);
        let daemon = copying.world.serve();
        // The chunk that was the last is longer now, and so another.
        let older = fs::File::options().write(true).open(copying.copy());
        older.unwrap().set_len(FILE_BYTES - 5).unwrap();
        copying.change(FILE_BYTES, MIB / 2);
        let bytes = copying.copies(&daemon);
        let (moved, reused) = (MIB + MIB / 2, FILE_BYTES - MIB);
        assert_eq!(bytes, Bytes { moved, reused }, "{way:?}");

        // The last chunk is shorter now; the older copy has all of its bytes.
        let file = fs::File::options().write(true).open(copying.source());
        file.unwrap().set_len(30 * MIB + 77).unwrap();
        copying.change(MIB, 1);
        let bytes = copying.copies(&daemon);
        let (moved, reused) = (MIB, 29 * MIB + 77);
        assert_eq!(bytes, Bytes { moved, reused }, "{way:?}");

        // Less than a chunk is left of it, and is fetched.
        let file = fs::File::options().write(true).open(copying.source());
        file.unwrap().set_len(600 << 10).unwrap();
        let bytes = copying.copies(&daemon);
        assert_eq!((bytes.moved, bytes.reused), (600 << 10, 0), "{way:?}");
    }
}

#[test]
fn holes_of_the_source_are_holes_whatever_the_older_copy_has_there() {
    for way in BOTH_WAYS {
        let copying = Copying::new(way, &[]);
        let data = fs::read(copying.source()).unwrap();
        // Data in front, in half of a chunk further on, and at the end, as it was.
        let source = fs::File::create(copying.source()).unwrap();
        source.set_len(FILE_BYTES).unwrap();
        let island = 35 * MIB + (512 << 10);
        for (start, end) in [
            (0, 8 * MIB),
            (island, island + (256 << 10)),
            (FILE_BYTES - 4096, FILE_BYTES),
        ] {
            let range = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
            source.write_all_at(&data[range], start).unwrap();
        }
        let daemon = copying.world.serve();
        let bytes = copying.copies(&daemon);
        assert_eq!((bytes.moved, bytes.reused), (2 * MIB, 8 * MIB), "{way:?}");
        let allocated = fs::metadata(copying.copy()).unwrap().blocks() * 512;
        assert!(allocated < 12 * MIB, "{way:?}: {allocated} bytes on disk");

        // The other way round: holes of the older copy are filled.
        let filled = fs::File::options().write(true).open(copying.source());
        filled.unwrap().write_all_at(&data, 0).unwrap();
        let bytes = copying.copies(&daemon);
        let reused = 8 * MIB;
        let moved = FILE_BYTES - reused;
        assert_eq!(bytes, Bytes { moved, reused }, "{way:?}");
    }
}

#[test]
fn an_older_copy_that_changes_meanwhile_spoils_nothing() {
    for way in BOTH_WAYS {
        let copying = Copying::new(way, &[]);
        copying.change(5 * MIB, 1);
        let daemon = copying.world.serve();
        let older = fs::File::options()
            .write(true)
            .open(copying.copy())
            .unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = tree::Random::new(3);
                while !over.load(Ordering::Relaxed) {
                    let byte = [u8::try_from(random.below(256)).unwrap()];
                    older.write_all_at(&byte, random.below(FILE_BYTES)).unwrap();
                }
            });
            let end = copying.run(&daemon);
            over.store(true, Ordering::Relaxed);
            let sum = end["bytes_moved"].as_u64().unwrap() + end["bytes_reused"].as_u64().unwrap();
            assert_eq!(sum, FILE_BYTES);
        });
        copying.assert_right();
    }
}

#[test]
fn whole_files_travel_where_that_was_asked_for_or_nothing_can_be_proved() {
    for way in BOTH_WAYS {
        for options in [["-W"].as_slice(), &["--hash", "none"]] {
            let copying = Copying::new(way, options);
            copying.change(5 * MIB, 1);
            let daemon = copying.world.serve();
            let bytes = copying.copies(&daemon);
            assert_eq!((bytes.moved, bytes.reused), (FILE_BYTES, 0), "{way:?}");
        }
    }
}

#[test]
fn an_interrupted_copy_goes_on_with_both_what_it_brought_and_the_older_copy() {
    for way in BOTH_WAYS {
        let copying = Copying::new(way, &[]);
        // The second half is new.
        copying.change(FILE_BYTES / 2, FILE_BYTES / 2);
        let daemon = copying.world.serve();
        let proxy = Proxy::new(daemon.address()).hold_after(16 * MIB, Scope::Data);
        let running = copying.start(|rest| proxy.url(rest));
        proxy.wait_held();
        running.signal(rustix::process::Signal::INT);
        running.wait().expect(130);
        drop(proxy);
        wait_for("the daemon has ended it", || {
            daemon.log().contains("transfer ended").then_some(())
        });
        let end = copying.run(&daemon);
        copying.assert_right();
        let number = |name: &str| end[name].as_u64().expect("it is told");
        let sum = number("bytes_moved") + number("bytes_resumed") + number("bytes_reused");
        assert_eq!(sum, FILE_BYTES, "{way:?} {end}");
        assert!(number("bytes_moved") <= FILE_BYTES / 2, "{way:?} {end}");
    }
}

#[test]
fn by_content_what_is_the_same_stays_and_what_is_not_does_not_pass_for_it() {
    for way in BOTH_WAYS {
        for hash in ["blake3", "sha256"] {
            let copying = Copying::new(way, &["-c", "--hash", hash]);
            let daemon = copying.world.serve();
            let inode = || fs::metadata(copying.copy()).unwrap().ino();
            let older = inode();
            // The same content with another time: only the time is set.
            let end = copying.run(&daemon);
            copying.assert_right();
            assert_eq!(end["updated"], 1, "{way:?} {end}");
            // All is the same.
            let end = copying.run(&daemon);
            assert_eq!(end["unchanged"], 1, "{way:?} {end}");
            for (name, bytes) in [
                ("bytes_moved", 0),
                ("bytes_reused", FILE_BYTES),
                ("files", 0),
            ] {
                assert_eq!(end[name], bytes, "{way:?} {end}");
            }
            assert_eq!(inode(), older);
            // Another content with the same size and time.
            let time = fs::metadata(copying.source()).unwrap();
            for at in [50 * MIB, 9 * MIB] {
                copying.change(at, 1);
            }
            tree::set_mtime(&copying.source(), time.mtime(), time.mtime_nsec());
            let bytes = copying.copies(&daemon);
            let (moved, reused) = (2 * MIB, FILE_BYTES - 2 * MIB);
            assert_eq!(bytes, Bytes { moved, reused }, "{way:?}");
            assert_ne!(inode(), older);
        }
    }
}

#[test]
fn by_content_holes_are_compared_too() {
    for way in BOTH_WAYS {
        let copying = Copying::new(way, &["-c"]);
        let daemon = copying.world.serve();
        for path in [copying.source(), copying.copy()] {
            let file = fs::File::create(path).unwrap();
            file.set_len(FILE_BYTES).unwrap();
            file.write_all_at(&[7; 4096], 0).unwrap();
        }
        let older = fs::File::options()
            .write(true)
            .open(copying.copy())
            .unwrap();
        // Zeros that are written are as good as a hole.
        older.write_all_at(&[0; 4096], 20 * MIB).unwrap();
        let end = copying.run(&daemon);
        assert_eq!(
            (&end["files"], &end["bytes_moved"]),
            (&0.into(), &0.into()),
            "{end}"
        );
        copying.assert_right();
        // A byte in what is a hole of the source.
        older.write_all_at(&[1], 30 * MIB).unwrap();
        tree::set_mtime(&copying.copy(), OLD, 0);
        tree::set_mtime(&copying.source(), OLD, 0);
        let bytes = copying.copies(&daemon);
        assert_eq!(
            bytes,
            Bytes {
                moved: 0,
                reused: MIB
            },
            "{way:?}"
        );
    }
}

#[test]
fn small_files_are_told_apart_by_content_too() {
    for way in BOTH_WAYS {
        let world = World::new();
        let (from, to) = match way {
            Way::Pull => ("export", "local"),
            Way::Push => ("local", "export"),
        };
        for (name, content) in [
            ("same", "content"),
            ("dated", "content"),
            ("other", "content"),
        ] {
            for side in [from, to] {
                let path = world.write(format!("{side}/tree/{name}"), content);
                tree::set_mtime(&path, OLD, 5);
            }
        }
        let path = world.write(format!("{from}/tree/other"), "CONTENT");
        tree::set_mtime(&path, OLD, 5);
        tree::set_mtime(&world.path(format!("{from}/tree/dated")), OLD + 9, 5);
        let daemon = world.serve();
        let inode = |name: &str| {
            let path = world.path(format!("{to}/tree/{name}"));
            fs::metadata(path).unwrap().ino()
        };
        let before = ["same", "dated"].map(inode);
        let copy = |options: &[&str]| {
            let (command, words) = match way {
                Way::Pull => ("pull", [daemon.url("data/tree"), ".".into()]),
                Way::Push => ("push", ["tree".into(), daemon.url("data/")]),
            };
            let command = world.rdcp(command).args(["--json", "-r"]).args(options);
            command.args(words).run().ok().json().pop().unwrap()
        };
        let blind = copy(&[]);
        assert_eq!(world.read(format!("{to}/tree/other")), b"content");
        assert_eq!(blind["files"], 1, "the dated one, by its time: {blind}");
        tree::set_mtime(&world.path(format!("{from}/tree/dated")), OLD + 12, 5);
        let dated = inode("dated");
        let end = copy(&["-c"]);
        assert_eq!(world.read(format!("{to}/tree/other")), b"CONTENT");
        assert_eq!(
            (&end["files"], &end["updated"]),
            (&1.into(), &1.into()),
            "{end}"
        );
        assert_eq!(["same", "dated"].map(inode), [before[0], dated]);
        let time = fs::metadata(world.path(format!("{to}/tree/dated")))
            .unwrap()
            .mtime();
        assert_eq!(time, OLD + 12);
    }
}

#[test]
fn by_content_needs_a_hash_and_does_not_go_with_whole_files() {
    let copying = Copying::new(Way::Pull, &["-c", "--hash", "none"]);
    let daemon = copying.world.serve();
    let refused = copying.start(|rest| daemon.url(rest)).wait();
    refused.expect(2);
    let both = Copying {
        options: vec!["-c", "-W"],
        ..copying
    };
    both.start(|rest| daemon.url(rest)).wait().expect(2);
}

#[test]
fn in_place_only_what_differs_is_written_into_the_file_that_is_there() {
    for reactor in Reactor::BOTH {
        for way in BOTH_WAYS {
            let copying = Copying::with(World::with(reactor), way, &["--inplace"]);
            for at in [3 * MIB + 5, 40 * MIB] {
                copying.change(at, 1);
            }
            let daemon = copying.world.serve();
            let inode = || fs::metadata(copying.copy()).unwrap().ino();
            let older = inode();
            let bytes = copying.copies(&daemon);
            let (moved, reused) = (2 * MIB, FILE_BYTES - 2 * MIB);
            assert_eq!(bytes, Bytes { moved, reused }, "{reactor:?} {way:?}");
            // It grows, with a hole, and then shrinks.
            let file = fs::File::options()
                .write(true)
                .open(copying.source())
                .unwrap();
            file.set_len(FILE_BYTES + 4 * MIB).unwrap();
            file.write_all_at(&[9; 100], FILE_BYTES + 3 * MIB).unwrap();
            let bytes = copying.copies(&daemon);
            assert_eq!((bytes.moved, bytes.reused), (MIB, FILE_BYTES));
            file.set_len(10 * MIB + 3).unwrap();
            let bytes = copying.copies(&daemon);
            assert_eq!((bytes.moved, bytes.reused), (0, 10 * MIB + 3));
            assert_eq!(inode(), older, "{reactor:?} {way:?}");
        }
    }
}

#[test]
fn in_place_holes_of_the_source_are_zeros() {
    for options in [
        ["--inplace"].as_slice(),
        &["--inplace", "-W"],
        &["--inplace", "--hash", "none"],
    ] {
        for way in BOTH_WAYS {
            let copying = Copying::new(way, options);
            let data = fs::read(copying.source()).unwrap();
            let source = fs::File::create(copying.source()).unwrap();
            source.set_len(FILE_BYTES).unwrap();
            let start = usize::try_from(35 * MIB + (512 << 10)).unwrap();
            let island = &data[start..start + 5000];
            source.write_all_at(island, start as u64).unwrap();
            let daemon = copying.world.serve();
            let older = fs::metadata(copying.copy()).unwrap().ino();
            let bytes = copying.copies(&daemon);
            // A sender counts what is data in the chunk.
            assert_eq!(bytes.reused, 0, "{options:?} {way:?}");
            assert!(
                (1..=MIB).contains(&bytes.moved),
                "{options:?} {way:?} {bytes:?}"
            );
            assert_eq!(fs::metadata(copying.copy()).unwrap().ino(), older);
        }
    }
}

#[test]
fn in_place_what_has_several_names_or_none_is_not_written_to() {
    for way in BOTH_WAYS {
        for len in [FILE_BYTES, 1000] {
            let copying = Copying::new(way, &["--inplace"]);
            for path in [copying.source(), copying.copy()] {
                let file = fs::File::options().write(true).open(path).unwrap();
                file.set_len(len).unwrap();
            }
            copying.change(5, 1);
            let daemon = copying.world.serve();
            let before = fs::read(copying.copy()).unwrap();
            let other = copying.copy().with_file_name("aside");
            fs::hard_link(copying.copy(), &other).unwrap();
            let refused = copying.start(|rest| daemon.url(rest)).wait();
            let said = refused.expect(12);
            assert!(
                said.text().contains("2 names (hard links)"),
                "{}",
                said.text()
            );
            assert!(fs::read(&other).unwrap() == before, "{way:?}");

            // A symbolic link is replaced, and what it leads to stays.
            fs::remove_file(copying.copy()).unwrap();
            std::os::unix::fs::symlink("aside", copying.copy()).unwrap();
            copying.copies(&daemon);
            assert!(fs::symlink_metadata(copying.copy()).unwrap().is_file());
            assert!(fs::read(&other).unwrap() == before, "{way:?}");

            // What is not there is made as ever.
            fs::remove_file(copying.copy()).unwrap();
            copying.copies(&daemon);
        }
    }
}

#[test]
fn in_place_small_files_keep_their_identity() {
    for way in BOTH_WAYS {
        let copying = Copying::new(way, &["--inplace"]);
        let daemon = copying.world.serve();
        let inode = || fs::metadata(copying.copy()).unwrap().ino();
        let older = inode();
        for content in [
            "a first content",
            "shorter",
            "",
            "longer than the others were",
        ] {
            fs::write(copying.source(), content).unwrap();
            copying.copies(&daemon);
            assert_eq!(inode(), older);
        }
    }
}

#[test]
fn in_place_an_interrupted_copy_is_mended_by_the_same_command() {
    for way in BOTH_WAYS {
        let copying = Copying::new(way, &["--inplace"]);
        copying.change(0, FILE_BYTES / 2);
        let daemon = copying.world.serve();
        let proxy = Proxy::new(daemon.address()).hold_after(16 * MIB, Scope::Data);
        let running = copying.start(|rest| proxy.url(rest));
        proxy.wait_held();
        running.signal(rustix::process::Signal::INT);
        let ended = running.wait().expect(130);
        assert!(
            ended.text().contains("part old and part new"),
            "{}",
            ended.text()
        );
        drop(proxy);
        wait_for("the daemon has ended it", || {
            daemon.log().contains("transfer ended").then_some(())
        });
        assert_ne!(fs::metadata(copying.copy()).unwrap().mtime(), OLD);
        let bytes = copying.copies(&daemon);
        assert_eq!(bytes.moved + bytes.reused, FILE_BYTES, "{way:?}");
        assert!(bytes.moved < FILE_BYTES / 2, "{way:?} {bytes:?}");
    }
}

#[test]
fn in_place_a_copy_that_fails_says_what_it_leaves() {
    for way in BOTH_WAYS {
        let copying = Copying::new(way, &["--inplace"]);
        copying.change(0, FILE_BYTES / 2);
        let daemon = copying.world.serve();
        let proxy = Proxy::new(daemon.address()).hold_after(16 * MIB, Scope::Data);
        let running = copying.start(|rest| proxy.url(rest));
        proxy.wait_held();
        copying.change(60 * MIB, 1);
        proxy.release();
        let failed = running.wait().expect(9);
        assert!(
            failed.text().contains("part old and part new"),
            "{}",
            failed.text()
        );
        let bytes = copying.copies(&daemon);
        assert_eq!(bytes.moved + bytes.reused, FILE_BYTES, "{way:?}");
    }
}

#[test]
fn in_place_does_not_go_with_update() {
    let copying = Copying::new(Way::Pull, &["--inplace", "-u"]);
    let daemon = copying.world.serve();
    copying.start(|rest| daemon.url(rest)).wait().expect(2);
    let older = Copying {
        options: vec!["--inplace", "--overwrite", "older"],
        ..copying
    };
    older.start(|rest| daemon.url(rest)).wait().expect(2);
}
