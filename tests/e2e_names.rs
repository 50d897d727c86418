//! Hostile names and links: a pull writes nowhere but below its destination, a push and every
//! other command nowhere but below the export.

mod common;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use common::tree;
use common::{Daemon, Proxy, Scope, World};
use rustix::process::Signal;

/// A world with `outside`, which nothing may touch, and its content.
fn world_with_outside() -> World {
    let world = World::new();
    world.write("outside/secret", "secret");
    world.write("outside/file", "outside");
    world.write("outside/sub/inner", "inner");
    world
}

#[track_caller]
fn assert_untouched(world: &World) {
    let outside = world.path("outside");
    assert_eq!(
        tree::listing(&outside),
        ["file", "secret", "sub", "sub/inner"]
    );
    assert_eq!(world.read("outside/secret"), b"secret");
    assert_eq!(world.read("outside/file"), b"outside");
    assert_eq!(world.read("outside/sub/inner"), b"inner");
}

/// The sides of a copy: where it comes from and goes to, and the words for it.
fn both_ways(daemon: &Daemon) -> [(&'static str, &'static str, &'static str, [OsString; 2]); 2] {
    [
        (
            "pull",
            "export",
            "local",
            [daemon.url("data/src/"), "dst".into()],
        ),
        (
            "push",
            "local",
            "export",
            ["src/".into(), daemon.url("data/dst")],
        ),
    ]
}

#[test]
fn a_link_in_the_destination_is_never_followed() {
    for archive in ["-r", "-a"] {
        let world = world_with_outside();
        let daemon = world.serve();
        for (command, from, to, words) in both_ways(&daemon) {
            // The source's directory and files meet links of the same names.
            world.write(format!("{from}/src/linked/secret"), "planted, small");
            world.write(format!("{from}/src/linked/new"), "planted");
            world.write(format!("{from}/src/linked/large"), vec![b'x'; 700_000]);
            world.write(format!("{from}/src/file"), "planted through a link");
            world.write(format!("{from}/src/large"), vec![b'y'; 700_000]);
            world.write(format!("{from}/src/z fine"), "fine");
            let destination = world.make(format!("{to}/dst"));
            symlink(world.path("outside"), destination.join("linked")).unwrap();
            symlink(world.path("outside/file"), destination.join("file")).unwrap();
            symlink(world.path("outside/none"), destination.join("large")).unwrap();
            let done = world.rdcp(command).arg(archive).args(&words).run();
            assert_untouched(&world);
            if done.status == 0 {
                // Then the links are gone, and what was sent stands there.
                tree::assert_same(
                    &world.path(from).join("src"),
                    &destination,
                    tree::Carried::Plain,
                );
            } else {
                assert!(done.stderr.contains("linked"), "{command}: {}", done.stderr);
            }
            assert_eq!(
                fs::read(destination.join("z fine")).unwrap(),
                b"fine",
                "{command}"
            );
            for name in ["file", "large"] {
                let is_link = destination.join(name).is_symlink();
                assert!(
                    !is_link,
                    "{command}: a file replaces the link {name}, as rename does"
                );
            }
            for side in ["src", "dst"] {
                for place in [from, to] {
                    let _ = fs::remove_dir_all(world.path(place).join(side));
                }
            }
        }
    }
}

#[test]
fn a_link_that_a_first_copy_brought_is_not_followed_by_a_second() {
    let world = world_with_outside();
    let daemon = world.serve();
    for (command, from, to, words) in both_ways(&daemon) {
        let source = world.make(format!("{from}/src"));
        symlink(world.path("outside"), source.join("trap")).unwrap();
        world.rdcp(command).arg("-a").args(&words).run().ok();
        let copied = world.path(to).join("dst/trap");
        assert_eq!(
            fs::read_link(&copied).unwrap(),
            world.path("outside"),
            "links stay as they are"
        );
        fs::remove_file(source.join("trap")).unwrap();
        fs::create_dir(source.join("trap")).unwrap();
        fs::write(source.join("trap/file"), "planted").unwrap();
        fs::write(source.join("trap/new"), "planted").unwrap();
        let _ = world.rdcp(command).arg("-a").args(&words).run();
        assert_untouched(&world);
        fs::remove_dir_all(source).unwrap();
        fs::remove_dir_all(world.path(to).join("dst")).unwrap();
    }
}

#[test]
fn no_command_leaves_the_export() {
    let world = world_with_outside();
    let mut daemon = world.serve();
    world.write("local/file", "from a client");
    world.make("export/sub");
    symlink(world.path("outside"), world.path("export/absolute")).unwrap();
    symlink("../outside", world.path("export/relative")).unwrap();
    symlink("../../outside", world.path("export/sub/up")).unwrap();
    symlink("/", world.path("export/root")).unwrap();
    symlink("/proc/self/root", world.path("export/magic")).unwrap();
    symlink(
        world.path("outside/secret"),
        world.path("export/secret link"),
    )
    .unwrap();
    let hidden = world.path("outside").strip_prefix("/").unwrap().to_owned();
    let ways_out: Vec<String> = [
        "absolute".to_owned(),
        "relative".to_owned(),
        "sub/up".to_owned(),
        format!("root/{}", hidden.display()),
        format!("magic/{}", hidden.display()),
    ]
    .into();
    for way in &ways_out {
        let url = |rest: &str| daemon.url(format!("data/{way}{rest}"));
        // The link itself is in the export and may be looked at; what is behind it is not.
        let at_link: &[&[OsString]] = &[
            &["pull".into(), "-r".into(), url("/"), "stolen".into()],
            &["ls".into(), url("/")],
            &["ls".into(), "-r".into(), url("/")],
            &["stat".into(), url("/")],
            &["sum".into(), "-r".into(), url("/")],
        ];
        let behind_link: &[&[OsString]] = &[
            &["pull".into(), url("/secret"), "stolen".into()],
            &["pull".into(), "-a".into(), url("/sub"), "stolen".into()],
            &["ls".into(), "-r".into(), url("/sub")],
            &["stat".into(), url("/secret")],
            &["sum".into(), url("/secret")],
            &["sum".into(), "-r".into(), url("/sub")],
            &["verify".into(), "file".into(), url("/file")],
            &["push".into(), "file".into(), url("/")],
            &["push".into(), "file".into(), url("/file")],
            &["push".into(), "file".into(), url("/new")],
            &[
                "push".into(),
                "--mkpath".into(),
                "file".into(),
                url("/a/b/new"),
            ],
            &["rm".into(), url("/file")],
            &["rm".into(), "-r".into(), url("/sub")],
            &["mkdir".into(), url("/made")],
            &["mkdir".into(), "-p".into(), url("/made/deep")],
        ];
        for words in at_link.iter().chain(behind_link) {
            let done = world
                .rdcp(words[0].to_str().unwrap())
                .args(&words[1..])
                .run();
            assert!(
                done.status != 0 || at_link.contains(words),
                "{words:?} got out of the export: {}",
                done.text()
            );
            for content in ["inner", "secret"] {
                let told = done.text().lines().any(|line| line.ends_with(content));
                assert!(!told, "{words:?}: {}", done.text());
            }
            assert_untouched(&world);
            assert!(!world.exists("local/stolen/secret"), "{words:?}");
            assert!(!world.path("local/stolen").is_file(), "{words:?}");
        }
    }
    // The link itself is in the export; what it points to is not.
    let words = [daemon.url("data/secret link"), "stolen".into()];
    let done = world.rdcp("pull").args(words).run();
    assert!(
        !world.path("local/stolen").is_file(),
        "{}: content from outside was served",
        done.status
    );
    // Removing a tree removes the links in it, not what they point to.
    symlink(world.path("outside"), world.path("export/sub/link")).unwrap();
    world
        .rdcp("rm")
        .args(["-r".into(), daemon.url("data/sub")])
        .run()
        .ok();
    assert!(!world.exists("export/sub"));
    world.rdcp("rm").arg(daemon.url("data/absolute")).run().ok();
    assert_untouched(&world);
    daemon.assert_alive();
}

#[test]
fn a_file_pushed_onto_a_link_replaces_the_link() {
    let world = world_with_outside();
    let daemon = world.serve();
    for (len, name) in [(10, "small"), (900_000, "large")] {
        tree::random_file(&world.path("local").join(name), len, 1);
        symlink(world.path("outside/file"), world.path("export").join(name)).unwrap();
        let done = world
            .rdcp("push")
            .args([name.into(), daemon.url("data/")])
            .run();
        assert_untouched(&world);
        if done.status == 0 {
            let copied = world.path("export").join(name);
            assert!(!copied.is_symlink());
            assert_eq!(
                fs::read(copied).unwrap(),
                world.read(format!("local/{name}"))
            );
        }
    }
}

#[test]
fn paths_that_climb_are_refused() {
    let world = world_with_outside();
    let daemon = world.serve();
    world.write("local/file", "from a client");
    let address = daemon.address();
    for path in [
        "data/../outside/new",
        "data/..",
        "data/%2e%2e/outside/new",
        "data/x/../../outside/new",
        "data/%2e%2e%2foutside%2fnew",
        "data/a%00b",
        "../outside/new",
        "%2e%2e/outside/new",
    ] {
        let url = OsString::from(format!("rdcp://{address}/{path}"));
        let done = world
            .rdcp("push")
            .args(["--mkpath".into(), "file".into(), url.clone()])
            .run();
        assert_ne!(done.status, 0, "{path}");
        let done = world.rdcp("pull").args([url, "copy".into()]).run();
        assert_ne!(done.status, 0, "{path}");
        assert_untouched(&world);
        assert!(tree::listing(&world.path("export")).is_empty(), "{path}");
        assert_eq!(tree::listing(&world.path("local")), ["file"], "{path}");
    }
}

#[test]
fn a_planted_part_file_is_not_written_through() {
    for command in ["pull", "push"] {
        let world = world_with_outside();
        let daemon = world.serve();
        let (from, to) = if command == "pull" {
            ("export", "local")
        } else {
            ("local", "export")
        };
        tree::random_file(&world.path(from).join("source"), 8 << 20, 1);
        let words = |base: &dyn Fn(&str) -> OsString| match command {
            "pull" => [base("data/source"), "copy".into()],
            _ => ["source".into(), base("data/copy")],
        };
        let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, Scope::Data);
        let copying = world
            .rdcp(command)
            .args(words(&|rest| proxy.url(rest)))
            .start();
        proxy.wait_held();
        let part = common::wait_for("the part file is there", || {
            let names = tree::listing(&world.path(to));
            names
                .into_iter()
                .find(|name| name.to_string_lossy().starts_with(".rdcp-"))
        });
        copying.signal(Signal::KILL);
        drop(copying.wait());
        drop(proxy);
        let part = world.path(to).join(part);
        for target in ["outside/file", "outside/none", "outside"] {
            replace_by_link(&part, &world.path(target));
            let done = world
                .rdcp(command)
                .args(words(&|rest| daemon.url(rest)))
                .run();
            assert_untouched(&world);
            if done.status == 0 {
                let copied = world.path(to).join("copy");
                assert!(fs::read(copied).unwrap() == world.read(format!("{from}/source")));
                fs::remove_file(world.path(to).join("copy")).unwrap();
            }
        }
    }
}

fn replace_by_link(path: &Path, target: &Path) {
    // It is gone if the side that was killed left nothing, or the other one cleaned up.
    let _ = fs::remove_file(path);
    symlink(target, path).unwrap();
}

#[test]
fn part_files_are_neither_listed_nor_served() {
    let world = World::new();
    let daemon = world.serve();
    tree::random_file(&world.path("local/source"), 8 << 20, 1);
    world.write("export/dir/other", "other");
    let proxy = Proxy::new(daemon.address()).hold_after(1 << 20, Scope::Data);
    let push = world
        .rdcp("push")
        .args(["source".into(), proxy.url("data/dir/copy")])
        .start();
    proxy.wait_held();
    common::wait_for("the part file is there", || {
        let names = tree::listing(&world.path("export/dir"));
        names
            .into_iter()
            .find(|name| name.to_string_lossy().starts_with(".rdcp-"))
    });
    let ls = world
        .rdcp("ls")
        .args(["-r".into(), daemon.url("data")])
        .run()
        .ok()
        .text();
    assert!(!ls.contains(".rdcp-") && ls.contains("other"), "{ls}");
    world
        .rdcp("pull")
        .args(["-a".into(), daemon.url("data/dir"), ".".into()])
        .run()
        .ok();
    assert_eq!(tree::listing(&world.path("local/dir")), ["other"]);
    let sum = world
        .rdcp("sum")
        .args(["-r".into(), daemon.url("data")])
        .run()
        .ok()
        .text();
    assert!(!sum.contains(".rdcp-"), "{sum}");
    proxy.release();
    push.wait().ok();
    assert_eq!(tree::listing(&world.path("export/dir")), ["copy", "other"]);
}
