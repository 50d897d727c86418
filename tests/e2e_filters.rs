//! Filters with the real programs: who walks the source leaves out what the rules say, in both
//! directions alike.

mod common;

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use common::way::copy;
use common::{WAYS, Way, World, name, tree};

fn words(line: &[&str]) -> Vec<OsString> {
    line.iter().map(OsString::from).collect()
}

fn make(top: &Path, files: &[&str]) {
    for file in files {
        let path = top.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
}

const FILES: &[&str] = &[
    "a.o",
    "a.rs",
    "build/x",
    "build/y.rs",
    "keep.tmp",
    "other.tmp",
    "src/b.o",
    "src/b.rs",
    "src/build",
    "src/deep/er/c.rs",
    "src/deep/er/c.tmp",
];

#[test]
fn rules_select_by_name_path_kind_and_order() {
    let world = World::new();
    let daemon = world.serve();
    let table: &[(&[&str], &[&str])] = &[
        (
            &["--exclude", "*.o"],
            &[
                "a.rs",
                "build",
                "build/x",
                "build/y.rs",
                "keep.tmp",
                "other.tmp",
                "src",
                "src/b.rs",
                "src/build",
                "src/deep",
                "src/deep/er",
                "src/deep/er/c.rs",
                "src/deep/er/c.tmp",
            ],
        ),
        // Directories only: the file of that name is copied. What is below is not looked at.
        (
            &[
                "--include",
                "y.rs",
                "--exclude",
                "build/",
                "--exclude",
                "*.[ot]*",
            ],
            &[
                "a.rs",
                "src",
                "src/b.rs",
                "src/build",
                "src/deep",
                "src/deep/er",
                "src/deep/er/c.rs",
            ],
        ),
        // The first that matches decides.
        (
            &[
                "--include",
                "keep.tmp",
                "--exclude",
                "*.tmp",
                "--exclude",
                "/src",
                "--exclude=build",
            ],
            &["a.o", "a.rs", "keep.tmp"],
        ),
        (
            &["--include", "*/", "--include=src/**.rs", "--exclude", "*"],
            &[
                "build",
                "src",
                "src/b.rs",
                "src/deep",
                "src/deep/er",
                "src/deep/er/c.rs",
            ],
        ),
        (
            &[
                "--exclude",
                "src/*",
                "--exclude",
                "build/**",
                "--exclude",
                "?.*",
                "--exclude",
                "*.tmp",
            ],
            &["build", "src"],
        ),
    ];
    for way in WAYS {
        make(&world.path(way.from()).join("tree"), FILES);
        for (rules, expected) in table {
            for (from, top) in [("tree", "to/tree"), ("tree/", "to")] {
                let options = words(&[&["-r", "--mkpath"], *rules].concat());
                copy(&world, &daemon, way, &options, from, "to").ok();
                let copied = world.path(way.to()).join(top);
                assert_eq!(
                    tree::listing(&copied),
                    **expected,
                    "{way:?} {rules:?} {from}"
                );
                fs::remove_dir_all(world.path(way.to()).join("to")).unwrap();
            }
        }
    }
}

#[test]
fn what_is_named_itself_is_copied_and_bytes_are_matched_as_they_are() {
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        let from = world.path(way.from()).join("tree");
        fs::create_dir_all(&from).unwrap();
        for odd in [&b"\xff\n\x1b[1m"[..], b"plain", "\u{e4}".as_bytes()] {
            fs::write(from.join(name(odd)), "x").unwrap();
        }
        let mut options = words(&["-r", "--exclude", "tree", "--exclude"]);
        options.push(name(b"\xff*").to_owned());
        options.extend(words(&["--exclude", "?"]));
        copy(&world, &daemon, way, &options, "tree", "").ok();
        assert_eq!(tree::listing(&world.path(way.to()).join("tree")), ["plain"]);
        let plain = words(&["--exclude", "*"]);
        copy(&world, &daemon, way, &plain, "tree/plain", "alone").ok();
        assert_eq!(world.read(format!("{}/alone", way.to())), b"x");
        fs::remove_dir_all(from).unwrap();
        fs::remove_dir_all(world.path(way.to()).join("tree")).unwrap();
        fs::remove_file(world.path(way.to()).join("alone")).unwrap();
    }
}

#[test]
fn files_of_rules_are_read_in_their_place() {
    let world = World::new();
    let daemon = world.serve();
    world.write("rules", "# what is kept\n+ keep.tmp\n\n- *.tmp\n");
    let rules = world.path("rules");
    let mut options = words(&["-r", "--include", "other.tmp", "--filter-from"]);
    options.push(rules.clone().into());
    for way in WAYS {
        make(
            &world.path(way.from()).join("tree"),
            &["keep.tmp", "other.tmp", "third.tmp"],
        );
        copy(&world, &daemon, way, &options, "tree", "").ok();
        let copied = world.path(way.to()).join("tree");
        assert_eq!(tree::listing(&copied), ["keep.tmp", "other.tmp"], "{way:?}");
        fs::remove_dir_all(world.path(way.from()).join("tree")).unwrap();
        fs::remove_dir_all(copied).unwrap();
    }
    fs::write(&rules, "- ok\nwhat is this\n").unwrap();
    copy(&world, &daemon, Way::Push, &options, "tree", "")
        .expect(2)
        .says("line 2");
    let bad = words(&["-r", "--exclude", "[a"]);
    copy(&world, &daemon, Way::Pull, &bad, "tree", "")
        .expect(2)
        .says("without its ]");
}

#[test]
fn what_is_left_out_is_not_even_looked_into() {
    let world = World::new();
    let daemon = world.serve();
    for way in WAYS {
        let top = world.path(way.from()).join("tree");
        make(&top, &["a", "special/x"]);
        let mode = rustix::fs::Mode::RUSR;
        let fifo = rustix::fs::FileType::Fifo;
        for at in ["special/fifo", "fifo"] {
            rustix::fs::mknodat(rustix::fs::CWD, top.join(at), fifo, mode, 0).unwrap();
        }
        let options = words(&["-r", "--exclude", "special", "--exclude", "/fifo"]);
        let done = copy(&world, &daemon, way, &options, "tree", "").ok();
        assert_eq!(done.stderr, "", "{way:?}");
        assert_eq!(tree::listing(&world.path(way.to()).join("tree")), ["a"]);
        // They would be named otherwise.
        let told = copy(&world, &daemon, way, &words(&["-r"]), "tree", "").ok();
        assert_eq!(told.stderr.matches("fifo").count(), 2, "{}", told.stderr);
        fs::remove_dir_all(&top).unwrap();
        fs::remove_dir_all(world.path(way.to()).join("tree")).unwrap();
    }
}
