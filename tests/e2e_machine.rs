//! What else a machine does to a copy: file systems that become read-only, too few descriptors, too
//! little address space, permissions and directories that go away while it runs, sources that are
//! replaced or removed. Each ends with its status and a message that names what it is about, other
//! entries go on, nothing that is not whole has a name, and once it is mended the same command does the
//! rest. (Sources that grow, shrink or are rewritten: e2e_exit; crowds that take all descriptors:
//! e2e_crowds; full disks: e2e_space; disks that fail, and quotas: the lab.) Runs are held at a known
//! byte by a proxy.

mod common;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use common::mounts::{SmallFileSystem, with_own_mounts};
use common::tree::{self, Carried};
use common::{Daemon, Finished, Proxy, Rdcp, Scope, WAYS, Way, World, program, wait_for};

const MIB: u64 = 1 << 20;
/// Who is not root, and owns what root gives away here.
const USER: u32 = 65534;

/// A copy of `tree` into `to`, in either direction.
struct Copying {
    world: World,
    way: Way,
}

impl Copying {
    fn new(way: Way, make: impl FnOnce(&Path)) -> Self {
        let copying = Self {
            world: World::new(),
            way,
        };
        fs::create_dir(copying.source()).unwrap();
        make(&copying.source());
        let (here, there) = copying.sides();
        copying.world.make(format!("{here}/to"));
        copying.world.make(format!("{there}/to"));
        copying
    }

    fn sides(&self) -> (&'static str, &'static str) {
        match self.way {
            Way::Pull => ("export", "local"),
            Way::Push => ("local", "export"),
        }
    }

    fn source(&self) -> PathBuf {
        self.world.path(self.sides().0).join("tree")
    }

    /// What is copied into.
    fn to(&self) -> PathBuf {
        self.world.path(self.sides().1).join("to")
    }

    fn target(&self) -> PathBuf {
        self.to().join("tree")
    }

    fn command(&self, rdcp: Rdcp, url: impl Fn(&str) -> OsString) -> Rdcp {
        let rdcp = rdcp.args(self.words(url));
        rdcp.arg("--accept-new")
    }

    fn words(&self, url: impl Fn(&str) -> OsString) -> [OsString; 4] {
        match self.way {
            Way::Pull => [
                "pull".into(),
                "-r".into(),
                url("data/tree"),
                self.to().into(),
            ],
            Way::Push => [
                "push".into(),
                "-r".into(),
                self.source().into(),
                url("data/to/"),
            ],
        }
    }

    fn rdcp(&self, url: impl Fn(&str) -> OsString) -> Rdcp {
        let words = self.words(url);
        let command = self.world.rdcp(words[0].to_str().unwrap());
        command.args(&words[1..])
    }

    /// The same command does all that is left.
    #[track_caller]
    fn mends(&self, daemon: &Daemon) {
        self.rdcp(|rest| daemon.url(rest)).run().ok();
        tree::assert_same(&self.source(), &self.target(), Carried::Plain);
        self.assert_nothing_hidden();
    }

    /// Of a push the daemon may still be ending its half.
    #[track_caller]
    fn assert_nothing_hidden(&self) {
        wait_for("nothing hidden is left", || {
            let names = tree::listing(&self.to());
            let mut names = names.iter().map(|name| name.to_string_lossy());
            (!names.any(|name| name.contains(".rdcp-"))).then_some(())
        });
    }

    /// What has a name is all that its source is; of the others nothing is there.
    #[track_caller]
    fn assert_whole(&self, context: &str) {
        if !self.target().exists() {
            return;
        }
        for path in tree::walk(&self.target()) {
            let name = path.strip_prefix(self.target()).unwrap();
            if !path.is_file() || name.to_string_lossy().contains(".rdcp-") {
                continue;
            }
            let source = fs::read(self.source().join(name)).unwrap_or_default();
            assert!(
                fs::read(&path).unwrap() == source,
                "{context}: {path:?} is not whole"
            );
        }
    }
}

/// A file that takes a while, before and behind it some that do not.
fn make_tree(root: &Path) {
    for directory in ["a", "m", "z"] {
        fs::create_dir(root.join(directory)).unwrap();
        for number in 0..20 {
            tree::random_file(&root.join(format!("{directory}/{number}")), 5000, number);
        }
    }
    tree::random_file(&root.join("m/large"), 24 << 20, 7);
}

// ---- read-only file systems ------------------------------------------------------------------------

#[test]
fn a_read_only_destination_is_told_and_copied_into_once_it_is_not() {
    let test = "a_read_only_destination_is_told_and_copied_into_once_it_is_not";
    with_own_mounts(test, || {
        for way in WAYS {
            let copying = Copying::new(way, make_tree);
            let small = SmallFileSystem::mount(copying.to(), 64 * MIB);
            let daemon = copying.world.serve();
            assert!(small.set_read_only(true));
            let done = copying.rdcp(|rest| daemon.url(rest)).run().expect(4);
            done.says("Read-only file system")
                .says("for writing")
                .says("tree");
            assert!(small.set_read_only(false));
            copying.mends(&daemon);
            drop(daemon);
        }
    });
}

#[test]
fn a_destination_that_becomes_read_only_is_told() {
    with_own_mounts("a_destination_that_becomes_read_only_is_told", || {
        for way in WAYS {
            // Of what is small nothing is open until it is here.
            let copying = Copying::new(way, |root| {
                for number in 0..50 {
                    tree::random_file(&root.join(number.to_string()), 5000, number);
                }
            });
            let small = SmallFileSystem::mount(copying.to(), 64 * MIB);
            let daemon = copying.world.serve();
            let proxy = Proxy::new(daemon.address()).hold_after(1, Scope::Data);
            let running = copying.rdcp(|rest| proxy.url(rest)).start();
            proxy.wait_held();
            wait_for("nobody has a file open there", || {
                small.set_read_only(true).then_some(())
            });
            proxy.release();
            running.wait().expect(4).says("Read-only file system");
            copying.assert_whole(&format!("{way:?}"));
            assert!(small.set_read_only(false));
            copying.mends(&daemon);
            drop(daemon);
        }
    });
}

// ---- too little of what a process has --------------------------------------------------------------

/// A command under limits of ulimit(1).
fn limited(world: &World, limit: &str) -> Rdcp {
    let script = format!("ulimit {limit} && exec \"$0\" \"$@\"");
    let tool = world.tool("sh").args(["-c", &script]).arg(program("rdcp"));
    tool.env("XDG_CONFIG_HOME", world.path("config"))
}

/// It did it, or it said why not in the documented way.
#[track_caller]
fn assert_documented(done: &Finished, context: &str) {
    assert!(
        done.status == 0 || (3..=14).contains(&done.status),
        "{context}: status {}\n{}",
        done.status,
        done.stderr
    );
    assert!(
        !done.stderr.contains("panicked"),
        "{context}: {}",
        done.stderr
    );
}

#[test]
fn few_descriptors_are_enough_or_are_told() {
    for way in WAYS {
        let copying = Copying::new(way, |root| {
            for directory in 0..30 {
                let directory = root.join(format!("{directory}/below/it"));
                fs::create_dir_all(&directory).unwrap();
                for number in 0..10 {
                    tree::random_file(&directory.join(number.to_string()), 3000, number);
                }
                tree::random_file(&directory.join("large"), 2 << 20, 1);
            }
        });
        let daemon = copying.world.serve();
        // From what a program hardly starts with to what is always enough.
        let mut told = 0;
        for files in [8, 24, 40, 64, 128] {
            let rdcp = limited(&copying.world, &format!("-n {files}"));
            let done = copying.command(rdcp, |rest| daemon.url(rest)).run();
            let context = format!("{way:?}, client with {files} files");
            assert_documented(&done, &context);
            if done.status != 0 {
                told += 1;
                assert!(
                    done.stderr.contains("open files"),
                    "{context}: {}",
                    done.stderr
                );
                assert!(files < 128, "{context}: {}", done.stderr);
            }
            copying.assert_whole(&context);
        }
        assert!(told > 0, "{way:?}: eight files are not enough");
        copying.mends(&daemon);
        fs::remove_dir_all(copying.target()).unwrap();
        drop(daemon);

        for files in [40, 64, 128] {
            let context = format!("{way:?}, daemon with {files} files");
            let mut daemon = copying.world.serve_limited(&format!("-n {files}"));
            // Others hold some of what it has.
            let held: Vec<_> = (0..4)
                .map(|_| std::net::TcpStream::connect(daemon.address()).unwrap())
                .collect();
            let done = copying.rdcp(|rest| daemon.url(rest)).run();
            assert_documented(&done, &context);
            if done.status != 0 {
                let is_told = ["open files", "busy", "too many"];
                let is_told = is_told.iter().any(|text| done.stderr.contains(text));
                assert!(is_told, "{context}: {}", done.stderr);
            }
            daemon.assert_alive();
            copying.assert_whole(&context);
            drop(held);
        }
        copying.mends(&copying.world.serve());
    }
}

#[test]
fn little_address_space_spoils_nothing() {
    for way in WAYS {
        let copying = Copying::new(way, make_tree);
        let daemon = copying.world.serve();
        let mut done_with = Vec::new();
        for mib in [30, 60, 100, 150, 250, 400, 700, 1500, 4000] {
            let rdcp = limited(&copying.world, &format!("-v {}", mib << 10));
            let done = copying.command(rdcp, |rest| daemon.url(rest)).run();
            let context = format!("{way:?} in {mib} MiB: status {}", done.status);
            eprintln!("{context} {}", done.stderr.trim());
            done_with.push((mib, done.status));
            copying.assert_whole(&context);
        }
        // The last is enough.
        assert_eq!(done_with.last().unwrap().1, 0, "{done_with:?}");
        copying.mends(&daemon);
    }
}

// ---- what goes away in mid-run ---------------------------------------------------------------------

#[test]
fn a_directory_that_may_not_be_written_any_more_fails_and_others_go_on() {
    for way in WAYS {
        let copying = Copying::new(way, make_tree);
        let daemon = serve_as_user(&copying);
        let closed = copying.target().join("m");
        let proxy = Proxy::new(daemon.address()).hold_after(16 * MIB, Scope::Data);
        let running = copying
            .command(as_user(&copying.world), |rest| proxy.url(rest))
            .start();
        proxy.wait_held();
        wait_for("the directory is there", || closed.exists().then_some(()));
        tree::set_mode(&closed, 0o555);
        proxy.release();
        let done = running.wait().expect(4);
        // Twenty failures are listed, in the order in which they come: the large file's may be the one that is not.
        done.says("tree/m/")
            .says("Permission denied")
            .says("ask for permission");
        copying.assert_whole(&format!("{way:?}"));
        assert!(!closed.join("large").exists());
        for number in 0..20 {
            let name = format!("z/{number}");
            assert!(copying.target().join(&name).exists(), "{way:?}: {name}");
        }
        tree::set_mode(&closed, 0o755);
        let again = copying.command(as_user(&copying.world), |rest| daemon.url(rest));
        again.run().ok();
        tree::assert_same(&copying.source(), &copying.target(), Carried::Plain);
        copying.assert_nothing_hidden();
    }
}

/// `rdcp` as somebody who is not root.
fn as_user(world: &World) -> Rdcp {
    if !rustix::process::geteuid().is_root() {
        return world.tool(program("rdcp").to_str().unwrap());
    }
    // Where cargo builds may be closed to other users.
    let copy = world.path("rdcp");
    if !copy.exists() {
        fs::copy(program("rdcp"), &copy).unwrap();
    }
    let config = world.make("config of user");
    std::os::unix::fs::chown(&config, Some(USER), Some(USER)).unwrap();
    let (user, group) = (format!("--reuid={USER}"), format!("--regid={USER}"));
    let tool = world.tool("setpriv").args([&user, &group]);
    let tool = tool.arg("--clear-groups").arg(copy);
    tool.env("XDG_CONFIG_HOME", config)
}

/// A daemon that is not root, with all that the copy is about given to that user.
fn serve_as_user(copying: &Copying) -> Daemon {
    if !rustix::process::geteuid().is_root() {
        return copying.world.serve();
    }
    tree::set_mode(&copying.world.path(""), 0o755);
    for path in [copying.to(), copying.source()] {
        for path in tree::walk(&path).into_iter().chain([path]) {
            std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
        }
    }
    copying.world.serve_by(USER)
}

#[test]
fn a_source_that_may_not_be_read_any_more_fails_alone() {
    for way in WAYS {
        let copying = Copying::new(way, |root| {
            // More than is granted ahead.
            for number in 0..12 {
                tree::random_file(&root.join(format!("a{number:02}")), 16 << 20, number);
            }
            fs::create_dir(root.join("z")).unwrap();
            tree::random_file(&root.join("z/closed"), 2 << 20, 1);
            tree::random_file(&root.join("z/open"), 2 << 20, 2);
        });
        let daemon = serve_as_user(&copying);
        let proxy = Proxy::new(daemon.address()).hold_after(16 * MIB, Scope::Data);
        let running = copying
            .command(as_user(&copying.world), |rest| proxy.url(rest))
            .start();
        proxy.wait_held();
        let closed = copying.source().join("z/closed");
        tree::set_mode(&closed, 0);
        proxy.release();
        // One that was open already has changed since: its mode is part of what it was.
        let done = running.wait();
        let context = format!("{way:?}, status {}: {}", done.status, done.stderr);
        match done.status {
            4 => assert!(done.stderr.contains("Permission denied"), "{context}"),
            status => assert_eq!(status, 9, "{context}"),
        }
        assert_eq!(done.stderr.lines().count(), 1, "{context}");
        done.says("z/closed: ");
        assert!(!copying.target().join("z/closed").exists());
        assert!(copying.target().join("z/open").exists() && copying.target().join("a11").exists());
        tree::set_mode(&closed, 0o644);
        let again = copying.command(as_user(&copying.world), |rest| daemon.url(rest));
        again.run().ok();
        tree::assert_same(&copying.source(), &copying.target(), Carried::Plain);
        copying.assert_nothing_hidden();
    }
}

#[test]
fn a_destination_that_is_removed_or_renamed_meanwhile_loses_only_itself() {
    for way in WAYS {
        for renamed in [false, true] {
            let copying = Copying::new(way, make_tree);
            let daemon = copying.world.serve();
            let proxy = Proxy::new(daemon.address()).hold_after(16 * MIB, Scope::Data);
            let running = copying.rdcp(|rest| proxy.url(rest)).start();
            proxy.wait_held();
            let gone = copying.target().join("m");
            let elsewhere = copying.to().join("elsewhere");
            wait_for("it is being written", || gone.exists().then_some(()));
            match renamed {
                true => fs::rename(&gone, &elsewhere).unwrap(),
                // What had arrived is still being put in, which keeps a directory from being removed.
                false => wait_for("it is removed", || fs::remove_dir_all(&gone).ok()),
            }
            proxy.release();
            let done = running.wait();
            let context = format!("{way:?}, renamed: {renamed}, status {}", done.status);
            eprintln!("{context} {}", done.stderr);
            // Whoever renames it takes along what is written into it.
            assert_documented(&done, &context);
            if !renamed {
                assert_ne!(done.status, 0, "{context}");
                assert!(
                    done.stderr.contains("tree/m/"),
                    "{context}: {}",
                    done.stderr
                );
            }
            copying.assert_whole(&context);
            for number in 0..20 {
                let name = format!("z/{number}");
                assert!(copying.target().join(&name).exists(), "{context}: {name}");
            }
            if renamed {
                fs::remove_dir_all(elsewhere).unwrap();
            }
            copying.mends(&daemon);
        }
    }
}

#[test]
fn a_source_that_is_replaced_or_removed_meanwhile_is_never_mixed() {
    for way in WAYS {
        for removed in [false, true] {
            let copying = Copying::new(way, make_tree);
            let daemon = copying.world.serve();
            let proxy = Proxy::new(daemon.address()).hold_after(8 * MIB, Scope::Data);
            let running = copying.rdcp(|rest| proxy.url(rest)).start();
            proxy.wait_held();
            let source = copying.source().join("m/large");
            match removed {
                true => fs::remove_file(&source).unwrap(),
                false => {
                    let other = copying.source().join("other");
                    tree::random_file(&other, 24 << 20, 8);
                    fs::rename(other, &source).unwrap();
                }
            }
            proxy.release();
            let done = running.wait();
            let context = format!("{way:?}, removed: {removed}");
            assert_eq!(done.status, 9, "{context}: {}", done.stderr);
            done.says("m/large: ");
            assert!(!copying.target().join("m/large").exists(), "{context}");
            for number in 0..20 {
                let name = format!("z/{number}");
                assert!(copying.target().join(&name).exists(), "{context}: {name}");
            }
            copying.mends(&daemon);
        }
    }
}
