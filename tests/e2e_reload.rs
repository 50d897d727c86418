//! A configuration that is read again: what is new is there, what is gone ends with the sessions that had it,
//! what has nothing to do with either goes on, and what is wrong changes nothing.

mod common;

use std::ffi::OsString;
use std::fs;

use common::tree::random_file;
use common::{Daemon, Proxy, Scope, World, wait_for};
use rustix::process::Signal;

const MIB: u64 = 1 << 20;
const TAKEN: &str = "the configuration was read again";
const STAYS: &str = "the configuration was not taken: all stays as it was";

/// A daemon and its file, in which `TOP` stands for the world's directory.
struct Served {
    world: World,
    daemon: Daemon,
    told: std::cell::Cell<usize>,
}

impl Served {
    fn new(world: World, text: &str) -> Self {
        write(&world, text);
        let file = world.path("rdcpd.toml");
        let arguments: [OsString; 4] = [
            "--config".into(),
            file.into(),
            "--listen".into(),
            "127.0.0.1:0".into(),
        ];
        let daemon = world.serve_as(&arguments);
        let told = std::cell::Cell::new(0);
        Self {
            world,
            daemon,
            told,
        }
    }

    /// Has it read this, and gives the lines that it says about it.
    #[track_caller]
    fn reload(&self, text: &str, expected: &str) -> String {
        write(&self.world, text);
        self.daemon.signal(Signal::HUP);
        let lines = || -> Vec<String> {
            let log = self.daemon.log();
            let about = log
                .lines()
                .filter(|line| line.contains(TAKEN) || line.contains(STAYS));
            about.skip(self.told.get()).map(str::to_owned).collect()
        };
        let said = wait_for("it says what it made of it", || {
            let lines = lines();
            (!lines.is_empty()).then_some(lines)
        });
        self.told.set(self.told.get() + said.len());
        assert!(said.iter().all(|line| line.contains(expected)), "{said:?}");
        said.join("\n")
    }

    fn ls(&self, path: &str) -> common::Finished {
        self.world.rdcp("ls").arg(self.daemon.url(path)).run()
    }

    fn ended_sessions(&self) -> usize {
        self.daemon.log().matches("a session is ended").count()
    }
}

fn write(world: &World, text: &str) {
    let top = world.path("");
    let top = top.to_str().unwrap().trim_end_matches('/').to_owned();
    world.write("rdcpd.toml", text.replace("TOP", &top));
}

fn export(name: &str, rest: &str) -> String {
    format!("[exports.{name}]\npath = \"TOP/{name}\"\n{rest}\n")
}

/// Two exports with a large file each.
fn two() -> World {
    let world = World::new();
    for (name, seed) in [("one", 1), ("two", 2)] {
        world.make(name);
        random_file(&world.path(name).join("file"), 24 << 20, seed);
    }
    world
}

#[test]
fn what_is_taken_away_ends_at_once_and_the_rest_goes_on() {
    let served = Served::new(two(), &(export("one", "") + &export("two", "")));
    let held = |name: &str| {
        let proxy = Proxy::new(served.daemon.address()).hold_after(4 * MIB, Scope::Data);
        let url = proxy.url(format!("{name}/file"));
        let running = served.world.rdcp("pull").args([url, name.into()]).start();
        proxy.wait_held();
        (proxy, running)
    };
    // Whoever has keys from nobody sees every export, so both have something to lose.
    let (first, losing) = held("one");
    served.reload(&export("two", ""), TAKEN);
    first.release();
    losing
        .wait()
        .expect(5)
        .says("no export is called 'one'; there are: two");
    assert!(!served.world.exists("local/one"));
    served.ls("one/").expect(5);

    // What is added takes nothing from anybody.
    let ended = served.ended_sessions();
    let (second, staying) = held("two");
    served.reload(
        &(export("two", "writable = true") + &export("one", "")),
        TAKEN,
    );
    served.ls("one/file").ok();
    second.release();
    staying.wait().ok();
    assert_eq!(
        served.world.read("local/two"),
        served.world.read("two/file")
    );
    assert_eq!(served.ended_sessions(), ended);
}

#[test]
fn a_session_that_loses_an_export_it_does_not_use_connects_again_and_goes_on() {
    let served = Served::new(two(), &(export("one", "") + &export("two", "")));
    let proxy = Proxy::new(served.daemon.address()).hold_after(4 * MIB, Scope::Data);
    let pull = served.world.rdcp("pull");
    let running = pull.args([proxy.url("two/file"), "two".into()]).start();
    proxy.wait_held();
    served.reload(&export("two", ""), TAKEN);
    wait_for("its session is ended", || {
        (served.ended_sessions() > 0).then_some(())
    });
    proxy.release();
    running.wait().ok();
    assert_eq!(
        served.world.read("local/two"),
        served.world.read("two/file")
    );
}

#[test]
fn rights_that_are_taken_away_are_gone_for_those_who_are_connected() {
    let world = two();
    random_file(&world.path("local/new"), 24 << 20, 3);
    let served = Served::new(world, &export("one", "writable = true"));
    let proxy = Proxy::new(served.daemon.address()).hold_after(4 * MIB, Scope::Data);
    let push = served.world.rdcp("push");
    let running = push.args(["new".into(), proxy.url("one/new")]).start();
    proxy.wait_held();
    served.reload(&export("one", ""), TAKEN);
    proxy.release();
    running.wait().expect(4).says("read-only");
    assert!(!served.world.exists("one/new"));
}

#[test]
fn another_directory_in_the_place_of_one_is_what_is_served() {
    let served = Served::new(two(), &export("one", ""));
    let top = |name: &str| served.world.path(name);
    fs::rename(top("one"), top("old")).unwrap();
    fs::create_dir(top("one")).unwrap();
    served.world.write("one/fresh", "fresh");
    // Until it is told, it serves the directory that it opened.
    served.ls("one/file").ok();
    served.reload(&export("one", ""), TAKEN);
    served.ls("one/file").expect(5);
    served.ls("one/fresh").ok();
}

#[test]
fn what_is_wrong_changes_nothing() {
    let one = export("one", "");
    let served = Served::new(two(), &one);
    let wrong = [
        (one.clone() + "nonsense", "rdcpd.toml"),
        (export("two", "") + &export("absent", ""), "absent"),
        (export("two", "rights = [\"write\"]"), "`write` is no right"),
        (String::new(), "[exports"),
        (
            "state_dir = \"TOP/elsewhere\"\n".to_owned()
                + &export("two", "")
                + "[rdma]\nenabled = false\n",
            "the use of RDMA can't be changed while the server runs; start it again",
        ),
    ];
    for (text, part) in wrong {
        let said = served.reload(&text, STAYS);
        assert!(said.contains(part), "{part}: {said}");
        served.ls("one/file").ok();
        served.ls("two/file").expect(5);
    }
    // Without a file there is nothing to read.
    fs::remove_file(served.world.path("rdcpd.toml")).unwrap();
    served.daemon.signal(Signal::HUP);
    wait_for("it says so", || {
        served.daemon.log().contains("can't open").then_some(())
    });
    served.told.set(served.told.get() + 1);
    served.ls("one/file").ok();
    served.reload(&export("two", ""), TAKEN);
    served.ls("two/file").ok();
    served.ls("one/file").expect(5);
}

#[test]
fn keys_limits_and_the_log_are_taken_too() {
    let served = Served::new(two(), &export("one", ""));
    let world = &served.world;
    let key = |name: &str| {
        let file = format!("{name}.pem");
        let told = world.bare("keygen").args(["--identity", &file]).run().ok();
        String::from_utf8(told.stdout.clone()).unwrap()
    };
    let line = key("ada");
    let keys = |name: &str, text: &str| {
        let file = world.write(name, text);
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    };
    keys("keys", &line);
    let as_ada = || {
        let ls = world.rdcp("ls").args(["--identity", "ada.pem"]);
        ls.arg(served.daemon.url("one/file")).run()
    };
    served.ls("one/file").ok();
    served.reload(
        &("authorized_keys = \"TOP/keys\"\n".to_owned()
            + &export("one", "")
            + "[log]\nlevel = \"debug\"\n"),
        TAKEN,
    );
    served
        .ls("one/file")
        .expect(4)
        .says("asks its clients for a key");
    as_ada().ok();
    assert!(
        served.daemon.log().contains("\"DEBUG\""),
        "nothing was logged at that level"
    );
    // Another list, in which it is not.
    keys("others", &key("bob"));
    served.reload(
        &("authorized_keys = \"TOP/others\"\n".to_owned() + &export("one", "")),
        TAKEN,
    );
    as_ada().expect(4).says("is not among those");
    served.reload(&(export("one", "") + "[limits]\nsessions_max = 1\n"), TAKEN);
    served.ls("one/file").ok();
}

#[test]
fn started_by_hand_it_ends_when_its_terminal_does() {
    let world = World::new();
    let mut daemon = world.serve();
    daemon.signal(Signal::HUP);
    assert_eq!(daemon.wait().code(), Some(0));
}
