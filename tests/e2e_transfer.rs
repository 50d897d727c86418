//! Files and trees pushed and pulled with the real programs: what arrives is what was sent.

mod common;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use common::tree::{self, Carried, SIZES, assert_same};
use common::{Daemon, Proxy, Reactor, WAYS, Way, World};

/// Copies `from` as what it is to `to`, both below the sides of `way`.
#[track_caller]
fn copy(world: &World, daemon: &Daemon, way: Way, options: &[&str], from: &str, to: &str) {
    let done = world
        .rdcp(way.command())
        .args(options)
        .arg(way.source(world, daemon, from))
        .arg(way.destination(world, daemon, to))
        .run()
        .ok();
    assert!(
        done.stdout.is_empty(),
        "a copy prints nothing: {}",
        done.text()
    );
}

#[test]
fn files_of_every_size_by_every_hash_chunk_and_reactor() {
    for reactor in Reactor::BOTH {
        let world = World::with(reactor);
        let daemon = world.serve();
        for way in WAYS {
            let source = world.path(way.from()).join("sizes");
            tree::make_sizes(&source);
            for hash in ["blake3", "sha256", "none"] {
                for chunk in ["64K", "1M", "16M"] {
                    let to = format!("{hash}-{chunk}");
                    let options = ["-r", "--no-fsync", "--hash", hash, "--chunk", chunk];
                    copy(&world, &daemon, way, &options, "sizes/", &to);
                    let copied = world.path(way.to()).join(&to);
                    assert_same(&source, &copied, Carried::Plain);
                    fs::remove_dir_all(&copied).unwrap();
                }
            }
            fs::remove_dir_all(&source).unwrap();
        }
    }
}

#[test]
fn one_file_of_each_size() {
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        for (seed, size) in (1u64..).zip(SIZES) {
            let from = world.path(way.from()).join("file");
            tree::random_file(&from, *size, seed);
            copy(&world, &daemon, way, &[], "file", "copy");
            let to = world.path(way.to()).join("copy");
            assert_eq!(
                fs::read(&from).unwrap(),
                fs::read(&to).unwrap(),
                "{size} {way:?}"
            );
            let (from, to) = (from.metadata().unwrap(), to.metadata().unwrap());
            let mtime = |of: &fs::Metadata| (of.mtime(), of.mtime_nsec());
            assert_eq!(mtime(&from), mtime(&to), "{size} {way:?}");
        }
        fs::remove_file(world.path(way.from()).join("file")).unwrap();
        fs::remove_file(world.path(way.to()).join("copy")).unwrap();
    }
}

#[test]
fn a_tree_with_everything() {
    for reactor in Reactor::BOTH {
        let world = World::with(reactor);
        let daemon = world.serve();
        for (way, hash) in [(Way::Push, "blake3"), (Way::Pull, "sha256")] {
            let source = world.path(way.from()).join("source");
            tree::make_everything(&source);
            copy(&world, &daemon, way, &["-a", "--hash", hash], "source", "");
            let copied = world.path(way.to()).join("source");
            assert_same(&source, &copied, Carried::All);
            fs::remove_dir_all(&source).unwrap();
            fs::remove_dir_all(&copied).unwrap();
        }
    }
}

#[test]
fn there_and_back_again() {
    let world = World::new();
    let daemon = world.serve();
    tree::make_everything(&world.path("local/first"));
    copy(&world, &daemon, Way::Push, &["-a"], "first/", "there");
    copy(&world, &daemon, Way::Pull, &["-a"], "there/", "back");
    assert_same(
        &world.path("local/first"),
        &world.path("local/back"),
        Carried::All,
    );
    // And the independent judges agree.
    world
        .tool("diff")
        .args(["-r", "--no-dereference", "first", "back"])
        .run()
        .ok();
}

#[test]
fn without_archive_links_are_skipped_and_named() {
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        let source = world.make(format!("{}/source", way.from()));
        tree::random_file(&source.join("file"), 5_000, 1);
        fs::hard_link(source.join("file"), source.join("other name")).unwrap();
        symlink("file", source.join("a symlink")).unwrap();
        let done = world
            .rdcp(way.command())
            .arg("-r")
            .arg(way.source(&world, &daemon, "source"))
            .arg(way.destination(&world, &daemon, ""))
            .run()
            .ok();
        assert!(
            done.stderr.contains("a symlink"),
            "{way:?}: {}",
            done.stderr
        );
        let copied = world.path(way.to()).join("source");
        assert_eq!(tree::listing(&copied), ["file", "other name"], "{way:?}");
        assert_eq!(
            copied.join("file").metadata().unwrap().nlink(),
            1,
            "{way:?}"
        );
        fs::remove_dir_all(&source).unwrap();
        fs::remove_dir_all(&copied).unwrap();
    }
}

#[test]
fn what_is_no_file_is_skipped_and_named() {
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        let source = world.make(format!("{}/source", way.from()));
        tree::random_file(&source.join("file"), 50, 1);
        let fifo = source.join("a fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let done = world
            .rdcp(way.command())
            .arg("-a")
            .arg(way.source(&world, &daemon, "source"))
            .arg(way.destination(&world, &daemon, ""))
            .run()
            .ok();
        assert!(done.stderr.contains("a fifo"), "{way:?}: {}", done.stderr);
        let copied = world.path(way.to()).join("source");
        assert_eq!(tree::listing(&copied), ["file"], "{way:?}");
        fs::remove_dir_all(&source).unwrap();
        fs::remove_dir_all(&copied).unwrap();
    }
}

#[test]
fn set_id_bits_are_dropped() {
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        let source = world.path(way.from()).join("set-id");
        tree::random_file(&source, 50, 1);
        tree::set_mode(&source, 0o6755);
        copy(&world, &daemon, way, &["-a"], "set-id", "copy");
        let copied = world.path(way.to()).join("copy");
        assert_eq!(copied.metadata().unwrap().mode() & 0o7777, 0o755, "{way:?}");
        fs::remove_file(&source).unwrap();
        fs::remove_file(&copied).unwrap();
    }
}

#[test]
fn modes_come_with_p_and_not_without() {
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        let source = world.path(way.from()).join("file");
        tree::random_file(&source, 50, 1);
        tree::set_mode(&source, 0o751);
        copy(&world, &daemon, way, &["-p"], "file", "with");
        copy(&world, &daemon, way, &[], "file", "without");
        let mode = |name: &str| {
            let path = world.path(way.to()).join(name);
            path.metadata().unwrap().mode() & 0o7777
        };
        assert_eq!(mode("with"), 0o751, "{way:?}");
        // As any new file by the umask, with cp's rule: never more than the source has.
        assert_eq!(mode("without") & !0o777, 0, "{way:?}");
        assert_eq!(mode("without") & 0o600, 0o600, "{way:?}");
        for path in [
            source,
            world.path(way.to()).join("with"),
            world.path(way.to()).join("without"),
        ] {
            fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn a_sparse_file_beyond_4_gib() {
    const LEN: u64 = (5 << 30) + 4097;
    let islands = [
        0,
        (1 << 30) - 5_000,
        (4 << 30) - 3,
        (4 << 30) + (64 << 20),
        LEN - 9_000,
    ];
    for (reactor, hash) in [(Reactor::Ring, "blake3"), (Reactor::Readiness, "none")] {
        let world = World::with(reactor);
        let daemon = world.serve();
        for way in WAYS {
            let source = world.path(way.from()).join("large");
            tree::sparse_file(&source, LEN, &islands);
            copy(&world, &daemon, way, &["--hash", hash], "large", "copy");
            let copied = world.path(way.to()).join("copy");
            assert_eq!(copied.metadata().unwrap().len(), LEN);
            assert_eq!(
                tree::content(&source),
                tree::content(&copied),
                "{way:?} {hash}"
            );
            let allocated = copied.metadata().unwrap().blocks() * 512;
            assert!(
                allocated < 16 << 20,
                "{way:?}: {allocated} bytes for a sparse file"
            );
            fs::remove_file(source).unwrap();
            fs::remove_file(copied).unwrap();
        }
    }
}

#[test]
fn many_small_files() {
    for (reactor, way) in [(Reactor::Ring, Way::Push), (Reactor::Readiness, Way::Pull)] {
        let world = World::with(reactor);
        let daemon = world.serve();
        let source = world.make(format!("{}/many", way.from()));
        for directory in 0..20 {
            let directory = source.join(format!("d{directory}"));
            fs::create_dir(&directory).unwrap();
            for file in 0..100 {
                fs::write(
                    directory.join(format!("f{file}")),
                    format!("{file} of {directory:?}"),
                )
                .unwrap();
            }
        }
        copy(&world, &daemon, way, &["-a", "--no-fsync"], "many", "");
        assert_same(&source, &world.path(way.to()).join("many"), Carried::All);
    }
}

#[test]
fn several_streams_carry_one_file() {
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        let source = world.path(way.from()).join("file");
        tree::random_file(&source, 9 << 20, 4);
        for streams in ["1", "5"] {
            copy(
                &world,
                &daemon,
                way,
                &["--streams", streams],
                "file",
                streams,
            );
            let copied = world.path(way.to()).join(streams);
            assert_eq!(fs::read(&source).unwrap(), fs::read(&copied).unwrap());
            fs::remove_file(copied).unwrap();
        }
        fs::remove_file(source).unwrap();
    }
}

#[test]
fn a_rate_is_kept() {
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        let big = world.path(way.from()).join("big");
        tree::random_file(&big, 4 << 20, 4);
        // These travel in packs.
        let small = world.path(way.from()).join("small");
        fs::create_dir(&small).unwrap();
        let names = (0..16).map(|name: u64| name.to_string());
        for (seed, name) in names.clone().enumerate() {
            tree::random_file(&small.join(name), 256 << 10, seed as u64);
        }
        for from in ["big", "small"] {
            let begun = Instant::now();
            let options = ["-r", "--mkpath", "--bwlimit", "1M/s"];
            copy(&world, &daemon, way, &options, from, "copied/");
            // Nothing waits for the last MiB.
            let shortest = Duration::from_millis(2900);
            assert!(begun.elapsed() >= shortest, "{way:?} of {from}");
        }
        let copied = world.path(way.to()).join("copied");
        assert!(fs::read(&big).unwrap() == fs::read(copied.join("big")).unwrap());
        for name in names {
            let arrived = fs::read(copied.join("small").join(&name)).unwrap();
            assert!(fs::read(small.join(&name)).unwrap() == arrived, "{name}");
        }
        world
            .rdcp(way.command())
            .args(["--bwlimit", "64K", "--chunk", "16M"])
            .arg(way.source(&world, &daemon, "big"))
            .arg(way.destination(&world, &daemon, "other"))
            .run()
            .expect(2)
            .says("2048 KiB");
        fs::remove_dir_all(small).unwrap();
        fs::remove_dir_all(copied).unwrap();
        fs::remove_file(big).unwrap();
    }
}

/// What stands at the destination before the copy.
#[derive(Clone, Copy, Debug)]
enum Before {
    Nothing,
    Directory,
    File,
}

/// One row of the placement table: sources, destination, what is there, options; what is there
/// afterwards, or the statuses one of which it ends with.
type Row = (
    &'static [&'static str],
    &'static str,
    Before,
    &'static [&'static str],
    Outcome,
);

enum Outcome {
    Gives(&'static [&'static str]),
    Fails(&'static [i32]),
}

#[test]
fn where_things_land() {
    use Before::{Directory, File, Nothing};
    use Outcome::{Fails, Gives};
    let table: &[Row] = &[
        (&["f"], "dst", Nothing, &[], Gives(&["dst"])),
        (&["f"], "dst", File, &[], Gives(&["dst"])),
        (&["f"], "dst", Directory, &[], Gives(&["dst", "dst/f"])),
        (&["f"], "dst/", Directory, &[], Gives(&["dst", "dst/f"])),
        (
            &["f"],
            "dst/",
            Nothing,
            &["--mkpath"],
            Gives(&["dst", "dst/f"]),
        ),
        (&["f"], "dst/", File, &[], Fails(&[2, 5, 7, 12])),
        (&["f"], "x/y/dst", Nothing, &[], Fails(&[5])),
        (
            &["f"],
            "x/y/dst",
            Nothing,
            &["--mkpath"],
            Gives(&["x", "x/y", "x/y/dst"]),
        ),
        (
            &["f"],
            "x/dst/",
            Nothing,
            &["--mkpath"],
            Gives(&["x", "x/dst", "x/dst/f"]),
        ),
        (
            &["f", "g"],
            "dst",
            Directory,
            &[],
            Gives(&["dst", "dst/f", "dst/g"]),
        ),
        (
            &["f", "g"],
            "dst",
            Nothing,
            &["--mkpath"],
            Gives(&["dst", "dst/f", "dst/g"]),
        ),
        (&["f", "g"], "dst", File, &[], Fails(&[2, 5, 7, 12])),
        (&["d"], "dst", Directory, &[], Fails(&[2])),
        (
            &["d"],
            "dst",
            Directory,
            &["-r"],
            Gives(&["dst", "dst/d", "dst/d/s", "dst/d/s/y", "dst/d/x"]),
        ),
        (
            &["d"],
            "dst/",
            Nothing,
            &["-r", "--mkpath"],
            Gives(&["dst", "dst/d", "dst/d/s", "dst/d/s/y", "dst/d/x"]),
        ),
        (
            &["d/"],
            "dst",
            Directory,
            &["-r"],
            Gives(&["dst", "dst/s", "dst/s/y", "dst/x"]),
        ),
        (
            &["d/"],
            "dst",
            Nothing,
            &["-r"],
            Gives(&["dst", "dst/s", "dst/s/y", "dst/x"]),
        ),
        (&["d/s/"], "dst", Nothing, &["-r"], Gives(&["dst", "dst/y"])),
        (
            &["d/s"],
            "dst",
            Directory,
            &["-r"],
            Gives(&["dst", "dst/s", "dst/s/y"]),
        ),
        (&["d/s/y"], "dst/", Directory, &[], Gives(&["dst", "dst/y"])),
        (
            &["d/", "f"],
            "dst",
            Directory,
            &["-r"],
            Gives(&["dst", "dst/f", "dst/s", "dst/s/y", "dst/x"]),
        ),
        (&["d/"], "x/y/dst", Nothing, &["-r"], Fails(&[5])),
        (&["d"], "dst", File, &["-r"], Fails(&[2, 5, 7, 12])),
        (&["none"], "dst", Nothing, &[], Fails(&[5])),
    ];
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        for (sources, destination, before, options, outcome) in table {
            let row =
                format!("{way:?} {options:?} {sources:?} to {destination:?}, there: {before:?}");
            for side in ["export", "local"] {
                // The directories themselves stay: the daemon holds its export open.
                for below in fs::read_dir(world.path(side)).unwrap() {
                    fs::remove_dir_all(below.unwrap().path()).unwrap();
                }
            }
            for (file, content) in [("f", "F"), ("g", "G"), ("d/x", "X"), ("d/s/y", "Y")] {
                world.write(format!("{}/src/{file}", way.from()), content);
            }
            world.make(format!("{}/base", way.to()));
            let there = format!("{}/base/dst", way.to());
            match before {
                Nothing => {}
                Directory => drop(world.make(&there)),
                File => drop(world.write(&there, "old")),
            }
            let done = world
                .rdcp(way.command())
                .args(*options)
                .args(
                    sources
                        .iter()
                        .map(|name| way.source(&world, &daemon, &format!("src/{name}"))),
                )
                .arg(way.destination(&world, &daemon, &format!("base/{destination}")))
                .run();
            let base = world.path(way.to()).join("base");
            match outcome {
                Gives(expected) => {
                    assert_eq!(done.status, 0, "{row}: {}", done.stderr);
                    assert_eq!(tree::listing(&base), *expected, "{row}");
                    assert_contents(&base, &row);
                }
                Fails(statuses) => {
                    assert!(
                        statuses.contains(&done.status),
                        "{row}: {}: {}",
                        done.status,
                        done.stderr
                    );
                    assert!(!done.stderr.is_empty(), "{row}: no word of why");
                    if matches!(before, File) {
                        assert_eq!(fs::read(base.join("dst")).unwrap(), b"old", "{row}");
                    }
                }
            }
        }
    }
}

/// Every file has the content that its name, or the name `dst` given to `f`, promises.
#[track_caller]
fn assert_contents(base: &Path, row: &str) {
    for path in tree::walk(base).into_iter().filter(|path| path.is_file()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let expected = if name == "dst" {
            "F".into()
        } else {
            name.to_uppercase()
        };
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            expected,
            "{row}: {path:?}"
        );
    }
}

#[test]
fn a_link_to_the_destination_is_followed_when_the_user_names_it() {
    let world = World::new();
    let daemon = world.serve();
    world.write("export/file", "content");
    world.make("local/real");
    symlink("real", world.path("local/link")).unwrap();
    copy(&world, &daemon, Way::Pull, &[], "file", "link/");
    assert_eq!(world.read("local/real/file"), b"content");
    assert!(world.path("local/link").is_symlink());
}

#[test]
fn all_forms_of_addresses() {
    let world = World::new();
    let export = world.path("export");
    let mut word = OsString::from("data=");
    word.push(&export);
    word.push(":rw");
    world.write("export/a b/c%d:e", "1");
    world.write("local/./up:load", "2");
    let host = common::own_loopback_address(2);
    let daemon = world.serve_as(&[
        "--export".into(),
        word,
        "--listen".into(),
        format!("{host}:20471").into(),
        "--listen".into(),
        "[::1]:0".into(),
    ]);
    let v6 = daemon
        .listening()
        .into_iter()
        .find(|address| address.is_ipv6());
    let v6 = v6.unwrap_or_else(|| {
        common::wait_for("it listens on ::1 too", || {
            daemon
                .listening()
                .into_iter()
                .find(|address| address.is_ipv6())
        })
    });
    let v6 = v6.port();
    for (number, remote) in [
        format!("{host}:/data/a b/c%d:e"),
        format!("rdcp://{host}/data/a%20b/c%25d:e"),
        format!("rdcp://{host}:20471/data/a%20b/c%25d%3ae"),
        format!("rdcp://[::1]:{v6}/data/a%20b/c%25d:e"),
        format!("RDCP://[::1]:{v6}//data/./a%20b//c%25d:e"),
    ]
    .iter()
    .enumerate()
    {
        let name = format!("copy{number}");
        for command in ["pull", "cp"] {
            world.rdcp(command).args([remote, &name]).run().ok();
            assert_eq!(
                world.read(format!("local/{name}")),
                b"1",
                "{command} {remote}"
            );
            fs::remove_file(world.path("local").join(&name)).unwrap();
        }
    }
    world
        .rdcp("push")
        .args(["./up:load", &format!("{host}:/data/")])
        .run()
        .ok();
    assert_eq!(world.read("export/up:load"), b"2");
    world
        .rdcp("cp")
        .args(["./up:load", &format!("{host}:/data/second")])
        .run()
        .ok();
    assert_eq!(world.read("export/second"), b"2");
}

#[test]
fn a_rerun_reads_nothing_and_touches_nothing() {
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        let source = world.path(way.from()).join("tree");
        tree::make_random(&source, 5, 40);
        tree::random_file(&source.join("big"), 3 << 20, 1);
        tree::date_all(&source);
        copy(&world, &daemon, way, &["-a"], "tree", "");
        let copied = world.path(way.to()).join("tree");
        let inodes = |root: &Path| -> Vec<u64> {
            tree::walk(root)
                .iter()
                .map(|path| path.metadata().unwrap().ino())
                .collect()
        };
        let before = inodes(&copied);
        // Times changed in the last two seconds are in doubt; these are not.
        std::thread::sleep(std::time::Duration::from_millis(2_200));
        let proxy = Proxy::new(daemon.address());
        let (from, to) = match way {
            Way::Push => (source.clone().into(), proxy.url("data/")),
            Way::Pull => (proxy.url("data/tree"), world.path("local").into()),
        };
        world
            .rdcp(way.command())
            .arg("-a")
            .args([from, to])
            .run()
            .ok();
        assert_eq!(before, inodes(&copied), "{way:?}: something was replaced");
        assert_same(&source, &copied, Carried::All);
        assert!(
            proxy.data_bytes() < 10_000,
            "{way:?}: {} bytes read",
            proxy.data_bytes()
        );
        // Only what changed travels.
        tree::random_file(&source.join("big"), (2 << 20) + 5, 2);
        copy(&world, &daemon, way, &["-a"], "tree", "");
        assert_same(&source, &copied, Carried::All);
        fs::remove_dir_all(&source).unwrap();
        fs::remove_dir_all(&copied).unwrap();
    }
}

#[test]
fn when_a_file_is_replaced() {
    const SECOND: i64 = 1_500_000_000;
    // Options; seconds by which the destination's file is newer; whether it is replaced; status.
    let table: &[(&[&str], i64, bool, i32)] = &[
        (&[], -10, true, 0),
        (&[], 10, true, 0),
        (&["--overwrite", "if-different"], 10, true, 0),
        (&["--overwrite", "older"], -10, true, 0),
        (&["--overwrite", "older"], 10, false, 0),
        (&["-u"], -10, true, 0),
        (&["-u"], 10, false, 0),
        (&["--update"], 10, false, 0),
        (&["--overwrite", "never"], -10, false, 0),
        (&["--overwrite", "never"], 10, false, 0),
        (&["--overwrite", "error"], -10, false, 12),
    ];
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        // Once a file that travels in a pack, once one that does not.
        for len in [1_000, 400_000] {
            for (options, newer, replaced, status) in table {
                let row = format!("{way:?} {options:?} {newer} s newer, {len} bytes");
                let from = world.path(way.from()).join("file");
                let to = world.path(way.to()).join("copy");
                tree::random_file(&from, len, 1);
                tree::set_mtime(&from, SECOND, 7);
                fs::write(&to, "old").unwrap();
                tree::set_mtime(&to, SECOND + newer, 7);
                let done = world
                    .rdcp(way.command())
                    .args(*options)
                    .arg(way.source(&world, &daemon, "file"))
                    .arg(way.destination(&world, &daemon, "copy"))
                    .run();
                assert_eq!(done.status, *status, "{row}: {}", done.stderr);
                let content = fs::read(&to).unwrap();
                assert_eq!(content != b"old", *replaced, "{row}");
                if *replaced {
                    assert_eq!(content, fs::read(&from).unwrap(), "{row}");
                }
                fs::remove_file(from).unwrap();
                fs::remove_file(to).unwrap();
            }
        }
    }
}

#[test]
fn a_file_is_replaced_whole_or_not_at_all() {
    let world = World::new();
    let daemon = world.serve();
    let proxy = Proxy::new(daemon.address()).hold_after(600_000, common::Scope::Data);
    tree::random_file(&world.path("export/file"), 8 << 20, 1);
    world.write("local/file", "the old version");
    let pull = world
        .rdcp("pull")
        .args([proxy.url("data/file"), "file".into()])
        .start();
    proxy.wait_held();
    assert_eq!(world.read("local/file"), b"the old version");
    proxy.release();
    pull.wait().ok();
    assert_eq!(world.read("local/file"), world.read("export/file"));
    assert_eq!(
        tree::listing(&world.path("local")),
        ["file"],
        "nothing is left beside it"
    );
}

#[test]
fn a_file_goes_to_standard_output() {
    let world = World::new();
    let daemon = world.serve();
    for (seed, size) in [(1, 0), (2, 1), (3, 300_000), (4, (2 << 20) + 1)] {
        tree::random_file(&world.path("export/file"), size, seed);
        let done = world
            .rdcp("pull")
            .args([daemon.url("data/file"), "-".into()])
            .run()
            .ok();
        assert!(done.stdout == world.read("export/file"), "{size} bytes");
    }
}

#[test]
fn damage_on_the_way_is_repaired() {
    for reactor in Reactor::BOTH {
        let world = World::with(reactor);
        let daemon = world.serve();
        for (way, hash) in [
            (Way::Pull, "blake3"),
            (Way::Push, "blake3"),
            (Way::Pull, "sha256"),
            (Way::Push, "sha256"),
        ] {
            let source = world.make(format!("{}/tree", way.from()));
            for (seed, len) in [(1, 2_000), (2, 200_000), (3, 3 << 20)] {
                let content = common::proxy::marked_content(len, seed);
                fs::write(source.join(len.to_string()), content).unwrap();
            }
            let proxy = Proxy::new(daemon.address()).damage(2);
            let (from, to) = match way {
                Way::Push => (source.clone().into(), proxy.url("data/")),
                Way::Pull => (proxy.url("data/tree"), world.path("local").into()),
            };
            world
                .rdcp(way.command())
                .args(["-r", "--hash", hash])
                .args([from, to])
                .run()
                .ok();
            assert_eq!(
                proxy.flipped(),
                2,
                "{way:?} {hash}: the proxy found what to damage"
            );
            assert_same(&source, &world.path(way.to()).join("tree"), Carried::Plain);
            fs::remove_dir_all(source).unwrap();
            fs::remove_dir_all(world.path(way.to()).join("tree")).unwrap();
        }
    }
}

#[test]
fn a_lost_data_connection_costs_only_time() {
    for reactor in Reactor::BOTH {
        let world = World::with(reactor);
        let daemon = world.serve();
        for way in WAYS {
            let source = world.path(way.from()).join("file");
            tree::random_file(&source, 12 << 20, 1);
            let proxy = Proxy::new(daemon.address()).hold_after(2 << 20, common::Scope::Data);
            let (from, to) = match way {
                Way::Push => (source.clone().into(), proxy.url("data/copy")),
                Way::Pull => (proxy.url("data/file"), world.path("local/copy").into()),
            };
            let copying = world.rdcp(way.command()).args([from, to]).start();
            proxy.wait_held();
            proxy.cut(common::Scope::Data);
            proxy.release();
            copying.wait().ok();
            let copied = world.path(way.to()).join("copy");
            assert!(
                fs::read(&source).unwrap() == fs::read(&copied).unwrap(),
                "{way:?}"
            );
            fs::remove_file(source).unwrap();
            fs::remove_file(copied).unwrap();
        }
    }
}

#[test]
fn a_lost_control_connection_leaves_no_half_file() {
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        let source = world.path(way.from()).join("file");
        tree::random_file(&source, 12 << 20, 1);
        let proxy = Proxy::new(daemon.address()).hold_after(2 << 20, common::Scope::Data);
        let (from, to) = match way {
            Way::Push => (source.clone().into(), proxy.url("data/copy")),
            Way::Pull => (proxy.url("data/file"), world.path("local/copy").into()),
        };
        let copying = world
            .rdcp(way.command())
            .args(["--timeout", "10s"])
            .args([from, to])
            .start();
        proxy.wait_held();
        proxy.cut(common::Scope::All);
        proxy.release();
        let done = copying.wait();
        let copied = world.path(way.to()).join("copy");
        match done.status {
            0 => assert!(
                fs::read(&source).unwrap() == fs::read(&copied).unwrap(),
                "{way:?}"
            ),
            3 | 11 => assert!(
                !copied.exists(),
                "{way:?}: a file that was not transferred whole"
            ),
            other => panic!("{way:?}: exit status {other}: {}", done.stderr),
        }
        // The same command completes it.
        copy(&world, &daemon, way, &[], "file", "copy");
        assert!(
            fs::read(&source).unwrap() == fs::read(&copied).unwrap(),
            "{way:?}"
        );
        fs::remove_file(source).unwrap();
        fs::remove_file(copied).unwrap();
    }
}
