//! A session that is lost does not end a copy: daemons are killed and restarted, drained and never come
//! back, networks are cut and swallow everything. What was settled is neither copied nor told again, a big
//! file goes on in its middle, and one command has one beginning and one end. Copies are stopped by a proxy
//! at known bytes, so that something is under way whenever the daemon goes.

mod common;

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use common::{Daemon, Proxy, Rdcp, Scope, WAYS, Way, World, tree, wait_for};
use rustix::process::Signal;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A tree that is copied from one side to the other through a proxy, in either direction.
struct Copying {
    world: World,
    way: Way,
    daemon: Daemon,
    proxy: Proxy,
    /// Regular files, and their bytes.
    files: u64,
    bytes: u64,
}

impl Copying {
    /// With so many small files of 16 KiB, and big ones of these lengths in MiB.
    fn new(way: Way, small: u64, big: &[u64]) -> Self {
        let world = World::new();
        let source = match way {
            Way::Pull => world.make("export/tree"),
            Way::Push => world.make("local/tree"),
        };
        let mut bytes = 0;
        let mut file = |path: PathBuf, len: u64, seed| {
            tree::random_file(&path, usize::try_from(len).unwrap(), seed);
            bytes += len;
        };
        for number in 0..small {
            let directory = source.join(format!("directory {}", number / 100));
            fs::create_dir_all(&directory).unwrap();
            let path = directory.join(format!("small {number}"));
            file(path, 16 << 10, number);
        }
        for (number, len) in (0..).zip(big) {
            file(
                source.join(format!("big {number}")),
                len * MIB,
                5000 + number,
            );
        }
        let daemon = world.serve();
        let proxy = Proxy::new(daemon.address());
        Self {
            world,
            way,
            daemon,
            proxy,
            files: small + big.len() as u64,
            bytes,
        }
    }

    fn source(&self) -> PathBuf {
        self.way.tree(&self.world)
    }

    fn copy(&self) -> PathBuf {
        self.way.copied(&self.world)
    }

    fn command(&self, options: &[&str]) -> Rdcp {
        let (command, words) = match self.way {
            Way::Pull => ("pull", [self.proxy.url("data/tree/"), "copy".into()]),
            Way::Push => (
                "push",
                [OsString::from("tree/"), self.proxy.url("data/copy")],
            ),
        };
        let command = self.world.rdcp(command).args(["--json", "-r"]);
        command.args(options).args(words)
    }

    /// Holds everything back that comes after so many bytes more.
    fn hold_after(&self, more_bytes: u64) {
        self.proxy
            .hold_on(self.proxy.data_bytes() + more_bytes, Scope::Data);
    }

    fn kill(&mut self) {
        self.daemon.signal(Signal::KILL);
        self.daemon.wait();
    }

    /// Kills the daemon and starts another in its place.
    fn restart(&mut self) {
        let address = self.daemon.address();
        self.kill();
        self.daemon = self.world.serve_at(address);
    }

    /// How many small files are there.
    fn published(&self) -> usize {
        let Ok(directories) = fs::read_dir(self.copy()) else {
            return 0;
        };
        let directories = directories.filter_map(|entry| fs::read_dir(entry.ok()?.path()).ok());
        let names = directories.flatten().filter_map(Result::ok);
        names
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
            .count()
    }

    /// How much the journals of unfinished files say.
    fn journal_bytes(&self) -> u64 {
        let Ok(names) = fs::read_dir(self.copy()) else {
            return 0;
        };
        let journals = names.filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().to_string_lossy().into_owned();
            name.ends_with(".journal")
                .then(|| entry.metadata().map_or(0, |journal| journal.len()))
        });
        journals.sum()
    }

    /// The copy is what the source is, and nothing else is left.
    #[track_caller]
    fn assert_same(&self) {
        assert_eq!(tree::listing(&self.source()), tree::listing(&self.copy()));
        for path in tree::walk(&self.source()) {
            let from = self.source().join(&path);
            if from.is_file() {
                let same = fs::read(&from).unwrap() == fs::read(self.copy().join(&path)).unwrap();
                assert!(same, "{} is not what its source is", path.display());
            }
        }
    }

    /// What was said is the story of one copy that went on so many times, in which every file was
    /// copied once. The bytes that travelled for it.
    #[track_caller]
    fn assert_told_once(&self, lines: &[Value], reconnects: u64) -> u64 {
        let of = |kind: &str| lines.iter().filter(|line| line["type"] == kind).count() as u64;
        assert_eq!((of("start"), of("summary"), of("error")), (1, 1, 0));
        let warnings: Vec<_> = lines
            .iter()
            .filter(|line| line["type"] == "warning")
            .collect();
        assert_eq!(warnings, Vec::<&Value>::new());
        let end = lines.last().unwrap();
        assert_eq!(end["type"], "summary");
        assert_eq!(end["reconnects"], reconnects, "{end}");
        let state = |state: &str| {
            let told = lines.iter().filter(|line| line["type"] == "reconnect");
            told.filter(|line| line["state"] == state).count() as u64
        };
        assert_eq!(
            (state("lost"), state("connected")),
            (reconnects, reconnects)
        );
        assert_eq!(end["files"], self.files, "{end}");
        assert_eq!(end["bytes"], self.bytes, "{end}");
        assert_eq!(
            (&end["unchanged"], &end["failed"]),
            (&0.into(), &0.into()),
            "{end}"
        );
        assert_eq!(
            (&end["warnings"], &end["bytes_resumed"]),
            (&0.into(), &0.into()),
            "{end}"
        );
        let published = |line: &&Value| line["outcome"] == "published";
        let mut paths: Vec<_> = lines
            .iter()
            .filter(|line| line["type"] == "file")
            .filter(published)
            .map(|line| line["path_b64"].as_str().unwrap())
            .collect();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!((of("file"), paths.len() as u64), (self.files, self.files));
        assert_progress(lines);
        let moved = end["bytes_moved"].as_u64().unwrap();
        assert!(moved >= self.bytes, "{end}");
        moved
    }
}

/// Progress never falls, and is never more than there is.
#[track_caller]
fn assert_progress(lines: &[Value]) {
    let mut last = [0; 5];
    for line in lines.iter().filter(|line| line["type"] == "progress") {
        let fields = [
            "files_seen",
            "files_done",
            "bytes_seen",
            "bytes_done",
            "bytes_moved",
        ];
        let now = fields.map(|field| line[field].as_u64().unwrap());
        assert!(
            now.iter().zip(last).all(|(now, last)| *now >= last),
            "{last:?}: {line}"
        );
        assert!(now[1] <= now[0] && now[3] <= now[2], "{line}");
        last = now;
    }
}

fn text(bytes: &Path) -> String {
    fs::read_to_string(bytes).unwrap_or_default()
}

#[test]
fn ten_restarts_of_the_daemon_cost_a_big_file_only_what_was_under_way() {
    for way in WAYS {
        let mut copying = Copying::new(way, 0, &[96]);
        copying.hold_after(6 * MIB);
        let running = copying.command(&["--timeout", "40s"]).start();
        let mut journalled = 0;
        for _ in 0..10 {
            copying.proxy.wait_held();
            if way == Way::Push {
                // What the daemon has and has not written down goes with it.
                wait_for("the journal grows", || {
                    (copying.journal_bytes() > journalled).then_some(())
                });
                journalled = copying.journal_bytes();
            }
            copying.restart();
            copying.hold_after(6 * MIB);
        }
        copying.proxy.release();
        let lines = running.wait().ok().json();
        copying.assert_same();
        copying.assert_told_once(&lines, 10);
        // Two connections, each with a chunk half done, and one that nothing had proved yet. Begun anew
        // each time it would be 60 MiB more.
        let again = copying.proxy.data_bytes() - copying.bytes;
        assert!(
            again <= 10 * 4 * MIB,
            "{way:?}: {again} bytes were copied again"
        );
    }
}

#[test]
fn ten_restarts_of_the_daemon_copy_no_small_file_twice() {
    for way in WAYS {
        let mut copying = Copying::new(way, 3000, &[]);
        copying.hold_after(4 * MIB);
        let running = copying.command(&["--timeout", "40s"]).start();
        let mut published = 0;
        for _ in 0..10 {
            copying.proxy.wait_held();
            wait_for("more files are there", || {
                (copying.published() > published).then_some(())
            });
            published = copying.published();
            copying.restart();
            copying.hold_after(4 * MIB);
        }
        copying.proxy.release();
        let lines = running.wait().ok().json();
        copying.assert_same();
        copying.assert_told_once(&lines, 10);
        let again = copying.proxy.data_bytes() - copying.bytes;
        // All that was let pass, and what was under way then, could have been for nothing; but what had been
        // published before the last restart was not asked for any more.
        let kept = published as u64 * (16 << 10);
        assert!(
            again <= 10 * 5 * MIB - kept,
            "{way:?}: {again} bytes were copied again, {kept} were there"
        );
    }
}

#[test]
fn ten_restarts_of_the_daemon_and_a_tree_of_both() {
    for way in WAYS {
        let mut copying = Copying::new(way, 300, &[24, 3, 24]);
        copying.hold_after(2 * MIB);
        let running = copying
            .command(&["--timeout", "40s", "--hash", "sha256"])
            .start();
        for _ in 0..10 {
            copying.proxy.wait_held();
            copying.restart();
            copying.hold_after(6 * MIB);
        }
        copying.proxy.release();
        let lines = running.wait().ok().json();
        copying.assert_same();
        copying.assert_told_once(&lines, 10);
    }
}

#[test]
fn a_network_that_is_cut_is_no_end_while_the_daemon_lives() {
    for way in WAYS {
        let mut copying = Copying::new(way, 200, &[24]);
        copying.hold_after(MIB);
        let running = copying.command(&["--timeout", "40s"]).start();
        for _ in 0..5 {
            copying.proxy.wait_held();
            copying.proxy.cut(Scope::All);
            copying.hold_after(3 * MIB);
        }
        copying.proxy.release();
        let lines = running.wait().ok().json();
        copying.assert_same();
        copying.assert_told_once(&lines, 5);
        copying.daemon.assert_alive();
    }
}

#[test]
fn a_network_that_swallows_everything_is_noticed() {
    for way in WAYS {
        let mut copying = Copying::new(way, 100, &[24]);
        copying.hold_after(4 * MIB);
        let running = copying.command(&["--timeout", "12s"]).start();
        copying.proxy.wait_held();
        copying.proxy.swallow();
        copying.proxy.release();
        // The daemon doesn't know that its client is gone, and still holds what the other run needs.
        let lines = running.wait().ok().json();
        copying.assert_same();
        copying.assert_told_once(&lines, 1);
        copying.daemon.assert_alive();
    }
}

#[test]
fn a_daemon_that_is_drained_sends_its_clients_to_the_next_one() {
    for way in WAYS {
        let mut copying = Copying::new(way, 100, &[24]);
        let address = copying.daemon.address();
        let config = format!(
            "listen = [\"{address}\"]\ndrain_seconds = 1\n[exports.data]\npath = {:?}\nwritable = true\n",
            copying.world.path("export")
        );
        let config = copying.world.write("rdcpd.toml", config);
        copying.kill();
        let serve = |world: &World| world.serve_as(&["--config".into(), config.clone().into()]);
        copying.daemon = serve(&copying.world);
        copying.hold_after(4 * MIB);
        let running = copying.command(&["--timeout", "40s"]).start();
        copying.proxy.wait_held();
        copying.daemon.signal(Signal::TERM);
        assert_eq!(copying.daemon.wait().code(), Some(0));
        copying.daemon = serve(&copying.world);
        copying.proxy.release();
        let lines = running.wait().ok().json();
        copying.assert_same();
        copying.assert_told_once(&lines, 1);
        let lost = lines.iter().find(|line| line["state"] == "lost").unwrap();
        assert!(
            lost["message"].as_str().unwrap().contains("shutting down"),
            "{lost}"
        );
    }
}

#[test]
fn a_daemon_that_stays_away_ends_the_copy_in_time() {
    for way in WAYS {
        let mut copying = Copying::new(way, 50, &[16]);
        copying.hold_after(4 * MIB);
        let running = copying.command(&["--timeout", "2s"]).start();
        copying.proxy.wait_held();
        copying.kill();
        copying.proxy.release();
        let lines = running.wait().expect(3).json();
        let end = lines.last().unwrap();
        assert_eq!(
            (&end["exit_status"], &end["retryable"]),
            (&3.into(), &true.into())
        );
        assert_eq!(
            lines
                .iter()
                .filter(|line| line["type"] == "summary")
                .count(),
            1
        );
        let errors: Vec<_> = lines
            .iter()
            .filter(|line| line["type"] == "error")
            .collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0]["hint"].as_str().unwrap().contains("goes on"),
            "{errors:?}"
        );
        // The same command goes on from there.
        let address = copying.daemon.address();
        copying.daemon = copying.world.serve_at(address);
        copying.command(&[]).run().ok();
        copying.assert_same();
    }
}

#[test]
fn another_host_key_ends_the_copy() {
    let mut copying = Copying::new(Way::Pull, 10, &[16]);
    copying.hold_after(4 * MIB);
    // It accepts what is new, which is not what is other.
    let running = copying.command(&["--timeout", "30s"]).start();
    copying.proxy.wait_held();
    let address = copying.daemon.address();
    copying.kill();
    fs::remove_dir_all(copying.world.path("state")).unwrap();
    // Nor does it matter that the key is not written down any more.
    fs::remove_file(copying.world.path("config/rdcp/known_hosts")).unwrap();
    copying.daemon = copying.world.serve_at(address);
    copying.proxy.release();
    let lines = running.wait().expect(4).json();
    assert_eq!(lines.last().unwrap()["exit_status"], 4);
}

#[test]
fn an_export_that_is_gone_ends_the_copy() {
    let mut copying = Copying::new(Way::Pull, 10, &[16]);
    copying.hold_after(4 * MIB);
    let running = copying.command(&["--timeout", "30s"]).start();
    copying.proxy.wait_held();
    let address = copying.daemon.address();
    copying.kill();
    let mut export = OsString::from("other=");
    export.push(copying.world.path("export"));
    let listen = address.to_string();
    let args = ["--export".into(), export, "--listen".into(), listen.into()];
    copying.daemon = copying.world.serve_as(&args);
    copying.proxy.release();
    running.wait().expect(5);
}

#[test]
fn an_interrupt_ends_a_copy_whose_peer_says_nothing() {
    for way in WAYS {
        let copying = Copying::new(way, 0, &[16]);
        copying
            .proxy
            .hold_on(copying.proxy.data_bytes() + 4 * MIB, Scope::All);
        // What is to end it is the signal, and not the silence.
        let running = copying.command(&["--timeout", "1h"]).start();
        copying.proxy.wait_held();
        running.signal(Signal::INT);
        let lines = running.wait().expect(130).json();
        assert_eq!(lines.last().unwrap()["type"], "summary");
        assert!(!copying.copy().join("big 0").exists());
    }
}

#[test]
fn an_interrupt_ends_the_search_for_the_daemon() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut copying = Copying::new(Way::Pull, 10, &[16]);
        copying.hold_after(4 * MIB);
        let told = copying.world.path("told");
        let output = File::create(&told).unwrap();
        let running = copying
            .command(&["--timeout", "300s"])
            .stdout(output)
            .start();
        copying.proxy.wait_held();
        copying.kill();
        wait_for("the loss is told", || {
            text(&told).contains("\"lost\"").then_some(())
        });
        running.signal(signal);
        running.wait().expect(status);
        let last = text(&told);
        let last: Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
        assert_eq!(
            (&last["type"], &last["exit_status"]),
            (&"summary".into(), &status.into())
        );
    }
}

#[test]
fn a_source_that_changes_meanwhile_is_copied_anew_and_that_is_told() {
    for way in WAYS {
        let mut copying = Copying::new(way, 0, &[24]);
        copying.hold_after(6 * MIB);
        let running = copying.command(&["--timeout", "40s"]).start();
        copying.proxy.wait_held();
        wait_for("there is something to go on with", || {
            (copying.journal_bytes() > 0).then_some(())
        });
        let address = copying.daemon.address();
        copying.kill();
        tree::random_file(&copying.source().join("big 0"), 24 << 20, 77);
        copying.daemon = copying.world.serve_at(address);
        copying.proxy.release();
        let lines = running.wait().ok().json();
        copying.assert_same();
        let warned = |line: &Value| {
            line["type"] == "warning" && line["message"].as_str().unwrap().contains("fetched anew")
        };
        assert!(lines.iter().any(warned), "{way:?}: {lines:?}");
        assert_eq!(lines.last().unwrap()["reconnects"], 1);
    }
}

#[test]
fn what_a_copy_made_itself_is_not_in_its_own_way() {
    for way in WAYS {
        let mut copying = Copying::new(way, 200, &[16]);
        copying.hold_after(6 * MIB);
        let options = ["--overwrite", "error", "--timeout", "40s"];
        let running = copying.command(&options).start();
        copying.proxy.wait_held();
        copying.restart();
        copying.hold_after(4 * MIB);
        copying.proxy.wait_held();
        copying.restart();
        copying.proxy.release();
        let lines = running.wait().ok().json();
        copying.assert_same();
        copying.assert_told_once(&lines, 2);

        // What was there before is.
        let theirs = copying.copy().join("directory 1/small 150");
        fs::remove_dir_all(copying.copy()).unwrap();
        fs::create_dir_all(theirs.parent().unwrap()).unwrap();
        fs::write(&theirs, "theirs").unwrap();
        copying.hold_after(MIB);
        let running = copying.command(&options).start();
        copying.proxy.wait_held();
        copying.restart();
        copying.proxy.release();
        let lines = running.wait().expect(12).json();
        let end = lines.last().unwrap();
        assert_eq!(end["files"], copying.files - 1, "{way:?}: {end}");
        assert_eq!(end["failed"], 1, "{way:?}: {end}");
        assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
    }
}

#[test]
fn what_failed_or_was_left_out_is_told_once() {
    for way in WAYS {
        let mut copying = Copying::new(way, 200, &[16]);
        // Before and behind what is under way when the daemon goes.
        for name in ["a socket", "directory 0/a socket"] {
            std::os::unix::net::UnixListener::bind(copying.source().join(name)).unwrap();
        }
        for name in ["big 0", "directory 0/small 7"] {
            fs::create_dir_all(copying.copy().join(name)).unwrap();
        }
        copying.hold_after(MIB);
        let running = copying.command(&["--timeout", "40s"]).start();
        copying.proxy.wait_held();
        copying.restart();
        copying.hold_after(MIB);
        copying.proxy.wait_held();
        copying.restart();
        copying.proxy.release();
        let lines = running.wait().expect(12).json();
        let end = lines.last().unwrap();
        assert_eq!(
            (&end["failed"], &end["warnings"]),
            (&2.into(), &2.into()),
            "{way:?}: {end}"
        );
        assert_eq!(end["files"], copying.files - 2, "{way:?}: {end}");
        let failed = lines
            .iter()
            .filter(|line| line["outcome"] == "failed")
            .count();
        let warned = lines
            .iter()
            .filter(|line| line["type"] == "warning")
            .count();
        assert_eq!((failed, warned), (2, 2), "{way:?}");
        assert_progress(&lines);
    }
}

#[test]
fn a_peer_that_trickles_stands_still() {
    let copying = Copying::new(Way::Pull, 0, &[16]);
    copying.hold_after(4 * MIB);
    let running = copying.command(&["--timeout", "3s"]).start();
    copying.proxy.wait_held();
    // The control connection is alive, and bytes come all the time.
    copying.proxy.slow_down(200);
    copying.proxy.release();
    let lines = running.wait().expect(11).json();
    assert_eq!(lines.last().unwrap()["exit_status"], 11);
}

#[test]
fn a_file_on_standard_output_goes_on_at_its_byte() {
    for change in [false, true] {
        let world = World::new();
        let mut daemon = world.serve();
        let address = daemon.address();
        let source = world.path("export/file");
        tree::random_file(&source, 24 << 20, 1);
        let proxy = Proxy::new(address).hold_after(9 * MIB, Scope::Data);
        let out = world.path("out");
        let words = [proxy.url("data/file"), "-".into()];
        let pull = world.rdcp("pull").args(["--json", "--timeout", "30s"]);
        let running = pull.args(words).stdout(File::create(&out).unwrap()).start();
        proxy.wait_held();
        daemon.signal(Signal::KILL);
        daemon.wait();
        if change {
            // Of the same length.
            tree::random_file(&source, 24 << 20, 2);
        }
        let _daemon = world.serve_at(address);
        proxy.release();
        let done = running.wait().expect(if change { 9 } else { 0 });
        let lines = common::command::json_lines(&done.stderr);
        let end = lines.last().unwrap();
        assert_eq!(
            (&end["type"], &end["reconnects"]),
            (&"summary".into(), &1.into()),
            "{end}"
        );
        if !change {
            assert!(fs::read(&out).unwrap() == fs::read(&source).unwrap());
            assert!(proxy.data_bytes() < 40 * MIB, "{}", proxy.data_bytes());
        }
    }
}

#[test]
fn the_state_is_told_to_who_asks_and_nothing_is_disturbed() {
    for way in WAYS {
        let copying = Copying::new(way, 300, &[16]);
        copying.hold_after(6 * MIB);
        let mut running = copying.command(&[]).start();
        // While sessions come up, and the copy begins.
        wait_for("the client connects", || {
            (copying.proxy.data_connections() > 0).then_some(())
        });
        for _ in 0..50 {
            running.signal(Signal::USR1);
            copying.daemon.signal(Signal::USR1);
        }
        copying.proxy.wait_held();
        assert!(running.is_running());
        let about = match way {
            Way::Pull => ["sending", "regions: "],
            Way::Push => ["receiving", "in flight: "],
        };
        wait_for("the daemon has told its state", || {
            running.signal(Signal::USR1);
            copying.daemon.signal(Signal::USR1);
            let log = copying.daemon.log();
            let told = |part: &&str| {
                log.lines()
                    .any(|line| line.contains("state: ") && line.contains(*part))
            };
            about.iter().all(told).then_some(())
        });
        copying.proxy.release();
        for _ in 0..50 {
            copying.daemon.signal(Signal::USR1);
        }
        let done = running.wait().ok();
        copying.assert_same();
        copying.assert_told_once(&done.json(), 0);
        let about = match way {
            Way::Pull => "receiving",
            Way::Push => "sending",
        };
        for part in ["rdcp: state: transfer ", about, "credit", "progress: last "] {
            assert!(
                done.stderr.contains(part),
                "{part:?} is not in {}",
                done.stderr
            );
        }
    }
}
