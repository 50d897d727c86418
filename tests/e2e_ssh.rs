//! `ssh://host/path`: nothing runs on the other host before, a real sshd logs in, its user's rdcpd serves this one
//! client and ends with it. Directly and through ssh; what can go wrong on the way says what to do about it.

mod common;

use std::ffi::OsString;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::tree::{self, Carried};
use common::{Rdcp, World, program, wait_for};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// An sshd of this test's own, on loopback, that lets one key in as whoever runs the test.
struct Sshd {
    child: Child,
    directory: PathBuf,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Sshd {
    /// `more`: lines for its configuration.
    fn start(world: &World, more: &str) -> Self {
        let directory = world.make("ssh");
        let file = |name: &str| directory.join(name).to_str().unwrap().to_owned();
        for key in ["host", "user"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f", &file(key)])
                .status();
            assert!(made.expect("ssh-keygen is installed").success());
        }
        if rustix::process::geteuid().is_root() {
            // Where Debian's sshd locks itself in.
            let _ = fs::create_dir_all("/run/sshd");
        }
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let port = address.port();
        fs::write(
            directory.join("sshd_config"),
            format!(
                "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\n\
                 StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nLogLevel VERBOSE\n{more}\n",
                file("host"),
                file("user.pub"),
            ),
        )
        .unwrap();
        fs::write(
            directory.join("config"),
            format!(
                "Host far\n HostName 127.0.0.1\n Port {port}\n IdentityFile {}\n IdentitiesOnly yes\n \
                 UserKnownHostsFile {}\n StrictHostKeyChecking accept-new\n BatchMode yes\n LogLevel ERROR\n",
                file("user"),
                file("known_hosts"),
            ),
        )
        .unwrap();
        let log = fs::File::create(directory.join("log")).unwrap();
        let child = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f", &file("sshd_config")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("sshd is installed");
        let sshd = Self { child, directory };
        wait_for("sshd listens", || {
            std::net::TcpStream::connect(address).ok()
        });
        sshd
    }

    fn ssh(&self) -> String {
        format!("ssh -F {}", self.directory.join("config").display())
    }

    /// `rdcp` with this ssh. Nothing about hosts or keys is said.
    fn rdcp(&self, world: &World, command: &str) -> Rdcp {
        let rdcp = world
            .bare(command)
            .args(["--ssh", &self.ssh(), "--ssh-rdcpd"]);
        // What is left behind is looked for there.
        rdcp.arg(program("rdcpd")).env("TMPDIR", world.make("tmp"))
    }
}

/// `ssh://far` and an absolute path.
fn url(path: &Path) -> OsString {
    let mut url = OsString::from("ssh://far");
    url.push(path);
    url
}

/// Processes that serve over ssh and have this test's directory in their environment or arguments.
fn servers(world: &World) -> Vec<i32> {
    let top = world.path("");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        let is_server = words.first().is_some_and(|word| word.ends_with(b"rdcpd"))
            && words.contains(&b"--stdio".as_slice());
        let parent_is_ours = parents(pid).any(|parent| {
            let line = fs::read(format!("/proc/{parent}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(top.to_str().unwrap())
        });
        if is_server && parent_is_ours {
            found.push(pid);
        }
    }
    found
}

/// Who started it, who started that, and so on.
fn parents(pid: i32) -> impl Iterator<Item = i32> {
    std::iter::successors(Some(pid), |pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()?;
        (parent > 1).then_some(parent)
    })
    .skip(1)
}

fn assert_nothing_left(world: &World) {
    wait_for("the server has ended", || {
        servers(world).is_empty().then_some(())
    });
    assert_eq!(fs::read_dir(world.path("tmp")).unwrap().count(), 0);
    assert!(!world.exists("home/.config/rdcp/known_hosts"));
}

#[test]
fn nothing_has_to_run_there_before() {
    for tunnel in [false, true] {
        let world = World::new();
        world.make("far/tree");
        tree::random_file(&world.path("far/tree/large"), 9 << 20, 1);
        for number in 0..50 {
            tree::random_file(&world.path(format!("far/tree/{number}")), 3000, number + 2);
        }
        world.make("local/got");
        let sshd = Sshd::start(&world, "");
        let rdcp = |command: &str| match tunnel {
            true => sshd.rdcp(&world, command).arg("--ssh-tunnel"),
            false => sshd.rdcp(&world, command),
        };
        let far = |name: &str| url(&world.path("far").join(name));
        rdcp("pull")
            .args(["-a".into(), far("tree"), "got".into()])
            .run()
            .ok();
        tree::assert_same(
            &world.path("far/tree"),
            &world.path("local/got/tree"),
            Carried::All,
        );
        rdcp("push")
            .args(["-a".into(), "got/tree/".into(), far("back")])
            .run()
            .ok();
        tree::assert_same(
            &world.path("far/tree"),
            &world.path("far/back"),
            Carried::All,
        );
        let listed = rdcp("ls").args([far("tree/large"), far("back")]).run().ok();
        assert!(
            String::from_utf8(listed.stdout.clone())
                .unwrap()
                .contains("large")
        );
        rdcp("verify")
            .args(["got/tree".into(), far("back")])
            .run()
            .ok();
        let printed = rdcp("pull").args([far("tree/7"), "-".into()]).run().ok();
        assert_eq!(printed.stdout, world.read("far/tree/7"));
        rdcp("rm").args(["-r".into(), far("back")]).run().ok();
        assert!(!world.exists("far/back"));
        // Messages name what was written, not where it went.
        rdcp("pull")
            .args([far("none"), "x".into()])
            .run()
            .expect(5)
            .says("ssh://far/");
        let told = rdcp("pull")
            .args(["--json".into(), far("tree/large"), "y".into()])
            .run()
            .ok();
        let told = String::from_utf8_lossy(&told.stdout).into_owned() + &told.stderr;
        assert!(told.contains("\"transport\":\"tcp\""), "{told}");
        assert_nothing_left(&world);
    }
}

#[test]
fn links_lead_where_they_lead_for_everybody() {
    let world = World::new();
    world.make("elsewhere/run");
    tree::random_file(&world.path("elsewhere/run/file"), 1000, 1);
    symlink(world.path("elsewhere"), world.path("data")).unwrap();
    world.make("local/a");
    world.make("local/b");
    let sshd = Sshd::start(&world, "");
    let pull = |path: &str, to: &str| {
        sshd.rdcp(&world, "pull")
            .args(["-r".into(), url(&world.path(path)), to.into()])
            .run()
    };
    pull("data/run", "a").ok();
    assert_eq!(
        world.read("local/a/run/file"),
        world.read("elsewhere/run/file")
    );
    pull("data/", "b").ok();
    assert_eq!(
        world.read("local/b/run/file"),
        world.read("elsewhere/run/file")
    );
    world.write("local/new", "new");
    let push = sshd
        .rdcp(&world, "push")
        .args(["new".into(), url(&world.path("data/run/"))]);
    push.run().ok();
    assert_eq!(world.read("elsewhere/run/new"), b"new");
}

#[test]
fn it_serves_its_client_alone_and_ends_with_it() {
    let world = World::new();
    world.make("far");
    tree::random_file(&world.path("far/file"), 32 << 20, 1);
    let sshd = Sshd::start(&world, "");
    let running = sshd.rdcp(&world, "pull").args(["--bwlimit", "4M"]);
    let running = running
        .args([url(&world.path("far/file")), "got".into()])
        .start();
    let pid = wait_for("it is served", || servers(&world).first().copied());
    let address = wait_for("it listens", || listening(pid));
    world.bare("keygen").run().ok();
    let other = world.rdcp("ls").arg(format!("rdcp://{address}/host/"));
    other.run().expect(4).says("is not among those");
    running.signal(Signal::KILL);
    assert_ends(pid);
}

#[test]
fn a_copy_outlives_its_ssh_where_it_does_not_go_through_it() {
    let world = World::new();
    world.make("far");
    tree::random_file(&world.path("far/file"), 24 << 20, 1);
    let sshd = Sshd::start(&world, "");
    let running = sshd.rdcp(&world, "pull").args(["--bwlimit", "6M"]);
    let running = running
        .args([url(&world.path("far/file")), "got".into()])
        .start();
    let pid = wait_for("it is served", || servers(&world).first().copied());
    wait_for("it is under way", || {
        let part = fs::read_dir(world.path("local")).unwrap().flatten();
        part.into_iter()
            .find(|entry| entry.file_name().to_string_lossy().contains(".rdcp-"))
    });
    let ssh = child_named(running.id(), "ssh").expect("it has an ssh");
    kill_process(Pid::from_raw(ssh).unwrap(), Signal::KILL).unwrap();
    running.wait().ok();
    assert_eq!(world.read("local/got"), world.read("far/file"));
    assert_ends(pid);
}

#[test]
fn what_goes_wrong_says_what_to_do() {
    let world = World::new();
    world.write("far/file", "content");
    let sshd = Sshd::start(&world, "AllowTcpForwarding no");
    let pull = || {
        world
            .bare("pull")
            .args([url(&world.path("far/file")), "x".into()])
    };
    let ssh = sshd.ssh();
    let rdcpd = program("rdcpd").into_os_string();
    pull()
        .args(["--ssh", &ssh, "--ssh-rdcpd", "/no/rdcpd"])
        .run()
        .expect(3)
        .says("--ssh-rdcpd PATH");
    pull()
        .args(["--ssh", "no-such-ssh"])
        .run()
        .expect(3)
        .says("--ssh COMMAND");
    pull()
        .args([
            "--ssh",
            &format!("{ssh} -o IdentityFile=/none -o IdentitiesOnly=yes -l nobody-at-all"),
        ])
        .run()
        .expect(3)
        .says("ssh can't log in");
    pull()
        .args(["--ssh", &ssh, "--ssh-rdcpd", "true"])
        .run()
        .expect(3)
        .says("before it served anything");
    pull()
        .args(["--ssh", &ssh, "--ssh-tunnel", "--ssh-rdcpd"])
        .arg(&rdcpd)
        .run()
        .expect(3)
        .says("AllowTcpForwarding");
    // Shells that greet are no hindrance, and neither are names that mean something to them.
    let noisy = world.write(
        "it's a; shell",
        format!(
            "#!/bin/sh\necho Welcome\necho\nexec '{}' \"$@\"\n",
            program("rdcpd").display()
        ),
    );
    fs::set_permissions(&noisy, fs::Permissions::from_mode(0o755)).unwrap();
    pull()
        .args(["--ssh", &ssh, "--ssh-rdcpd"])
        .arg(noisy)
        .run()
        .ok();
    assert_eq!(world.read("local/x"), b"content");
    let other = world.write(
        "other",
        "#!/bin/sh\necho rdcp-ssh 9 SHA256:x 127.0.0.1:1\nsleep 1\n",
    );
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    pull()
        .args(["--ssh", &ssh, "--ssh-rdcpd"])
        .arg(other)
        .run()
        .expect(3)
        .says("install the same release");
    for word in [
        "ssh://far",
        "ssh://far/~/x",
        "ssh://-oProxyCommand=x/y",
        "ssh://-l@far/x",
    ] {
        world.bare("pull").args([word, "z"]).run().expect(2);
    }
}

#[test]
fn the_daemons_end_of_it_refuses_what_is_no_client() {
    let world = World::new();
    for said in [
        "",
        "hello\n",
        "rdcp-ssh 1 nonsense\n",
        "rdcp-ssh 2 SHA256:x\n",
    ] {
        let mut child = Command::new(program("rdcpd"))
            .arg("--stdio")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        use std::io::Write;
        child
            .stdin
            .take()
            .unwrap()
            .write_all(said.as_bytes())
            .unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{said:?}");
        let told = String::from_utf8(ended.stdout).unwrap();
        assert!(
            told.starts_with("rdcp-ssh error ") && told.lines().count() == 1,
            "{told}"
        );
    }
    let config = world.write("c.toml", "");
    let both = world
        .tool(program("rdcpd").to_str().unwrap())
        .arg("--stdio")
        .arg("--config")
        .arg(config);
    both.run().expect(2);
}

#[track_caller]
fn assert_ends(pid: i32) {
    let pid = Pid::from_raw(pid).unwrap();
    wait_for("the server ends", || {
        test_kill_process(pid).is_err().then_some(())
    });
}

/// An address that a process listens on.
fn listening(pid: i32) -> Option<SocketAddr> {
    let inodes: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter_map(|link| {
            Some(
                link.to_str()?
                    .strip_prefix("socket:[")?
                    .trim_end_matches(']')
                    .to_owned(),
            )
        })
        .collect();
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        // 0A: it listens (proc(5) shows the kernel's numbers).
        if fields.get(3) != Some(&"0A")
            || !inodes
                .iter()
                .any(|inode| fields.get(9) == Some(&inode.as_str()))
        {
            return None;
        }
        let port = u16::from_str_radix(fields[1].rsplit(':').next()?, 16).ok()?;
        Some(SocketAddr::from(([127, 0, 0, 1], port)))
    })
}

/// A child process with this name.
fn child_named(parent: u32, name: &str) -> Option<i32> {
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
        (comm.trim() == name && parents(pid).next() == i32::try_from(parent).ok()).then_some(pid)
    })
}
