//! Files in the making, seen from outside: what a killed receiver leaves is removed by the next
//! copy into the same directory, what a living one works on is not, and a user's own files are
//! content whatever they are called.

mod common;

use std::fs;
use std::path::Path;

use common::{Proxy, Scope, World, tree, wait_for};
use rustix::process::Signal;

/// Names that start like those of files in the making.
fn hidden(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(".rdcp-"))
        .collect()
}

fn many_small_files(world: &World, below: &str) {
    for number in 0..3000 {
        world.write(format!("{below}/f{number}"), format!("content {number}"));
    }
}

#[test]
fn what_a_killed_daemon_left_is_swept_by_the_next_push() {
    let world = World::new();
    many_small_files(&world, "local/src");
    let source = world.path("local/src/");
    let mut daemon = world.serve();
    let push = world.rdcp("push").arg("-r").arg(&source);
    let push = push.arg(daemon.url("data/dst")).start();
    let target = world.path("export/dst");
    wait_for("files are in the making", || {
        (!hidden(&target).is_empty()).then_some(())
    });
    daemon.signal(Signal::KILL);
    daemon.wait();
    // Else it would go on with the next one by itself.
    push.signal(Signal::INT);
    push.wait().expect(130);

    let daemon = world.serve();
    let push = world.rdcp("push").arg("-r").arg(&source);
    push.arg(daemon.url("data/dst")).run().ok();
    assert_eq!(hidden(&target), Vec::<String>::new());
    assert_eq!(fs::read_dir(&target).unwrap().count(), 3000);
}

#[test]
fn what_a_killed_pull_left_is_swept_by_the_next_one() {
    let world = World::new();
    many_small_files(&world, "export/src");
    let daemon = world.serve();
    let pull = || {
        let pull = world.rdcp("pull").arg("-r").arg(daemon.url("data/src/"));
        pull.arg(world.path("local/dst"))
    };
    let target = world.path("local/dst");
    let killed = pull().start();
    wait_for("files are in the making", || {
        (!hidden(&target).is_empty()).then_some(())
    });
    killed.signal(Signal::KILL);
    killed.wait().expect(137);

    pull().run().ok();
    assert_eq!(hidden(&target), Vec::<String>::new());
    assert_eq!(fs::read_dir(&target).unwrap().count(), 3000);
}

#[test]
fn what_a_killed_pull_left_is_swept_where_nothing_is_to_be_copied_any_more() {
    let world = World::new();
    many_small_files(&world, "export/src");
    // Long enough ago that their times can be trusted.
    let ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    for entry in fs::read_dir(world.path("export/src")).unwrap() {
        let file = fs::File::open(entry.unwrap().path()).unwrap();
        file.set_modified(ago).unwrap();
    }
    let daemon = world.serve();
    let target = world.path("local/dst");
    let pull = || {
        let pull = world
            .rdcp("pull")
            .args(["-a", "--json"])
            .arg(daemon.url("data/src/"));
        pull.arg(world.path("local/dst"))
    };
    let killed = pull().start();
    wait_for("files are in the making", || {
        (!hidden(&target).is_empty()).then_some(())
    });
    killed.signal(Signal::KILL);
    killed.wait().expect(137);
    assert!(!hidden(&target).is_empty());

    // Somebody else brings the rest.
    let from = world.path("export/src/.");
    let copy = world.tool("cp").arg("-a").arg(&from).arg(&target);
    copy.run().ok();
    let done = pull().run().ok();
    let summary: serde_json::Value =
        serde_json::from_str(done.text().lines().last().unwrap()).unwrap();
    assert_eq!(
        (&summary["files"], &summary["unchanged"]),
        (&0.into(), &3001.into()),
        "{summary}"
    );
    assert_eq!(hidden(&target), Vec::<String>::new());
    let changed = |path: &str| fs::metadata(world.path(path)).unwrap().modified().unwrap();
    assert_eq!(changed("local/dst"), changed("export/src"));
}

#[test]
fn two_receivers_in_one_directory_leave_each_other_alone() {
    let world = World::new();
    many_small_files(&world, "export/one");
    for number in 0..3000 {
        world.write(format!("export/two/g{number}"), format!("other {number}"));
    }
    let daemon = world.serve();
    world.make("local/dst");
    let pull = |source: &str| {
        let pull = world.rdcp("pull").arg("-r").arg(daemon.url(source));
        pull.arg(world.path("local/dst")).start()
    };
    let runs = [pull("data/one/"), pull("data/two/")];
    for run in runs {
        run.wait().ok();
    }
    let target = world.path("local/dst");
    assert_eq!(hidden(&target), Vec::<String>::new());
    assert_eq!(fs::read_dir(&target).unwrap().count(), 6000);
}

#[test]
fn a_second_writer_is_told_who_the_first_one_is() {
    let world = World::new();
    tree::random_file(&world.path("export/file"), 16 << 20, 1);
    tree::random_file(&world.path("local/file"), 16 << 20, 2);
    let daemon = world.serve();
    let proxy = Proxy::new(daemon.address()).hold_after(4 << 20, Scope::Data);

    // Two processes on this host.
    let first = world
        .rdcp("pull")
        .args([proxy.url("data/file"), "got".into()])
        .start();
    proxy.wait_held();
    let second = world
        .rdcp("pull")
        .args([daemon.url("data/file"), "got".into()])
        .run();
    second
        .expect(14)
        .says(&format!("(process {}, rdcp)", first.id()));
    first.signal(Signal::KILL);
    first.wait().expect(137);

    // Two transfers of one daemon.
    let proxy = Proxy::new(daemon.address()).hold_after(4 << 20, Scope::Data);
    let push = |url| world.rdcp("push").args(["file".into(), url]);
    let first = push(proxy.url("data/new")).start();
    proxy.wait_held();
    let second = push(daemon.url("data/new")).run().expect(14);
    second.says("(a client at 127.0.0.1)");
    first.signal(Signal::KILL);
    first.wait().expect(137);
}

#[test]
fn a_users_file_called_like_one_in_the_making_is_content() {
    let world = World::new();
    let name = ".rdcp-0123456789abcdef.part";
    world.write(format!("local/src/{name}"), "the user's own");
    let daemon = world.serve();
    let push = world.rdcp("push").arg("-a").arg(world.path("local/src"));
    push.arg(daemon.url("data/")).run().ok();
    assert_eq!(world.read(format!("export/src/{name}")), b"the user's own");

    let listed = world.rdcp("ls").arg(daemon.url("data/src")).run();
    assert!(listed.ok().text().contains(name));
    // A later copy into the directory does not sweep it.
    world.write("local/src/more", "x");
    let push = world.rdcp("push").arg("-a").arg(world.path("local/src"));
    push.arg(daemon.url("data/")).run().ok();
    assert!(world.exists(format!("export/src/{name}")));

    world.write(format!("export/src/{name}"), "changed content");
    let verify = world.rdcp("verify").arg(world.path("local/src"));
    let differs = verify.arg(daemon.url("data/src")).run().failed();
    assert!(differs.text().contains(name), "{}", differs.text());
}
