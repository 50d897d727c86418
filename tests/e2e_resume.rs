//! Copies that are interrupted go on where they were: what is there already is proved again where it
//! lies, and only the rest travels. What can't be trusted is fetched anew, and what is not ours is
//! neither followed nor touched. Runs are stopped by a proxy at a known byte, and ended once their
//! journal holds something.

mod common;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use common::{Daemon, Proxy, Running, Scope, World, tree, wait_for};
use rustix::process::Signal;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 40 * MIB;
/// What passes before the proxy holds the rest back.
const PASSED_BYTES: u64 = 24 * MIB;
/// A journal of this length speaks of some chunks at least, in however many batches they came.
const JOURNAL_BYTES_MIN: u64 = 96 + 10 * 76;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Pull,
    Push,
}

/// A copy from `from` to `copy`, in either direction.
struct Copying {
    world: World,
    way: Way,
    options: Vec<&'static str>,
}

impl Copying {
    fn new(way: Way, options: &[&'static str]) -> Self {
        let world = World::new();
        let copying = Self {
            world,
            way,
            options: options.to_vec(),
        };
        let len = usize::try_from(FILE_BYTES).unwrap();
        tree::random_file(&copying.source(), len, 1);
        copying
    }

    fn source(&self) -> PathBuf {
        self.world.path(match self.way {
            Way::Pull => "export/file",
            Way::Push => "local/file",
        })
    }

    /// The directory that is copied into.
    fn target(&self) -> PathBuf {
        self.world.path(match self.way {
            Way::Pull => "local",
            Way::Push => "export",
        })
    }

    fn start(&self, url: impl Fn(&str) -> OsString) -> Running {
        let (command, words) = match self.way {
            Way::Pull => ("pull", [url("data/file"), "copy".into()]),
            Way::Push => ("push", ["file".into(), url("data/copy")]),
        };
        let command = self.world.rdcp(command).arg("--json").args(&self.options);
        command.args(words).start()
    }

    /// Copies until the proxy holds the rest back and the journal speaks of some chunks.
    fn hold(&self, daemon: &Daemon) -> (Proxy, Running) {
        let proxy = Proxy::new(daemon.address()).hold_after(PASSED_BYTES, Scope::Data);
        let copying = self.start(|rest| proxy.url(rest));
        proxy.wait_held();
        wait_for("the journal speaks of some chunks", || {
            let journal = self.hidden(".journal")?;
            (fs::metadata(journal).ok()?.len() >= JOURNAL_BYTES_MIN).then_some(())
        });
        (proxy, copying)
    }

    /// Kills whoever receives, without a word; the daemon lives on if the client is killed.
    fn kill(&self, daemon: &mut Daemon) {
        let (_proxy, copying) = self.hold(daemon);
        match self.way {
            Way::Pull => {
                copying.signal(Signal::KILL);
                copying.wait().expect(137);
            }
            Way::Push => {
                daemon.signal(Signal::KILL);
                daemon.wait();
                // Else it would go on with the next one by itself.
                copying.signal(Signal::INT);
                copying.wait().expect(130);
                *daemon = self.world.serve();
            }
        }
    }

    /// The one hidden name that ends so.
    fn hidden(&self, end: &str) -> Option<PathBuf> {
        let names = fs::read_dir(self.target()).unwrap();
        let mut paths = names.map(|entry| entry.unwrap().path());
        paths.find(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with(".rdcp-") && name.ends_with(end)
        })
    }

    fn part(&self) -> PathBuf {
        self.hidden(".part").expect("the part file is left")
    }

    fn journal(&self) -> PathBuf {
        self.hidden(".journal").expect("the journal is left")
    }

    /// Copies to the end: the copy is right and nothing else is left. The bytes that were not copied
    /// again, and what was said.
    #[track_caller]
    fn finish(&self, daemon: &Daemon) -> (u64, Vec<Value>) {
        let lines = self.start(|rest| daemon.url(rest)).wait().ok().json();
        let end = lines.last().expect("there is a summary");
        let resumed = end["bytes_resumed"].as_u64().expect("it is told");
        let moved = end["bytes_moved"].as_u64().expect("it is told");
        assert_eq!(resumed + moved, FILE_BYTES, "{end}");
        self.assert_done();
        (resumed, lines)
    }

    #[track_caller]
    fn assert_done(&self) {
        let same =
            fs::read(self.source()).unwrap() == fs::read(self.target().join("copy")).unwrap();
        assert!(same, "the copy is not what the source is");
        self.assert_nothing_hidden();
    }

    #[track_caller]
    fn assert_nothing_hidden(&self) {
        assert_eq!(self.hidden(""), None);
    }
}

fn says(lines: &[Value], part: &str) -> bool {
    let is_warning = |line: &&Value| line["type"] == "warning";
    let mut warnings = lines.iter().filter(is_warning);
    warnings.any(|line| line["message"].as_str().unwrap().contains(part))
}

fn flip(path: &Path, at: u64) {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn a_killed_receiver_goes_on_where_it_was() {
    for (way, options) in [
        (Way::Pull, &[][..]),
        (Way::Pull, &["--hash", "sha256"]),
        (Way::Pull, &["--no-fsync", "--chunk", "64K"]),
        (Way::Push, &[]),
        (Way::Push, &["--hash", "sha256", "-p"]),
    ] {
        let copying = Copying::new(way, options);
        let mut daemon = copying.world.serve();
        copying.kill(&mut daemon);
        let (resumed, lines) = copying.finish(&daemon);
        let least = if options.contains(&"64K") {
            MIB / 2
        } else {
            8 * MIB
        };
        assert!(
            resumed >= least && resumed <= PASSED_BYTES,
            "{way:?} {resumed}"
        );
        assert!(!says(&lines, ""), "{lines:?}");
    }
}

#[test]
fn a_copy_can_be_interrupted_more_than_once() {
    let copying = Copying::new(Way::Pull, &[]);
    let mut daemon = copying.world.serve();
    copying.kill(&mut daemon);
    let before = fs::metadata(copying.journal()).unwrap().len();
    let proxy = Proxy::new(daemon.address()).hold_after(8 * MIB, Scope::Data);
    let again = copying.start(|rest| proxy.url(rest));
    proxy.wait_held();
    wait_for("the journal grows", || {
        (fs::metadata(copying.journal()).unwrap().len() > before).then_some(())
    });
    again.signal(Signal::KILL);
    again.wait().expect(137);
    let (resumed, _) = copying.finish(&daemon);
    assert!(resumed > 8 * MIB, "{resumed}");
}

#[test]
fn an_interrupted_client_keeps_what_is_there_and_says_so() {
    for way in [Way::Pull, Way::Push] {
        let copying = Copying::new(way, &[]);
        let mut daemon = copying.world.serve();
        let (_proxy, running) = copying.hold(&daemon);
        running.signal(Signal::INT);
        let lines = running.wait().expect(130).json();
        let error = lines.iter().find(|line| line["type"] == "error").unwrap();
        assert!(
            error["hint"].as_str().unwrap().contains("goes on"),
            "{error}"
        );
        daemon.assert_alive();
        // The daemon may still be ending its half.
        wait_for("nobody works on the part file", || {
            let file = fs::File::open(copying.part()).unwrap();
            rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockShared).ok()
        });
        let (resumed, _) = copying.finish(&daemon);
        assert!(resumed >= 8 * MIB, "{way:?} {resumed}");
    }
}

#[test]
fn a_lost_peer_leaves_what_is_there() {
    let mut copying = Copying::new(Way::Pull, &["--timeout", "5s"]);
    let mut daemon = copying.world.serve();
    let (_proxy, running) = copying.hold(&daemon);
    daemon.signal(Signal::KILL);
    daemon.wait();
    let lines = running.wait().expect(3).json();
    copying.options.clear();
    let error = lines.iter().find(|line| line["type"] == "error").unwrap();
    assert!(
        error["hint"].as_str().unwrap().contains("goes on"),
        "{error}"
    );
    let daemon = copying.world.serve();
    let (resumed, _) = copying.finish(&daemon);
    assert!(resumed >= 8 * MIB, "{resumed}");
}

#[test]
fn a_source_that_changed_is_fetched_anew_and_that_is_told() {
    for way in [Way::Pull, Way::Push] {
        let copying = Copying::new(way, &[]);
        let mut daemon = copying.world.serve();
        copying.kill(&mut daemon);
        // Of the same length, and the first chunk stays as it was.
        flip(&copying.source(), 30 * MIB);
        let (resumed, lines) = copying.finish(&daemon);
        assert_eq!(resumed, 0);
        assert!(says(&lines, "fetched anew"), "{way:?} {lines:?}");
    }
}

#[test]
fn a_journal_that_is_damaged_or_gone_is_not_believed() {
    let damages: &[Damage] = &[
        ("its first byte", |path| flip(path, 0)),
        ("its length of the file", |path| flip(path, 16)),
        ("its first record", |path| flip(path, 110)),
        ("cut in its header", |path| cut(path, 50)),
        ("cut in its first batch", |path| cut(path, 130)),
        ("empty", |path| cut(path, 0)),
        ("gone", |path| fs::remove_file(path).unwrap()),
    ];
    let copying = Copying::new(Way::Pull, &[]);
    let mut daemon = copying.world.serve();
    for (what, damage) in damages {
        copying.kill(&mut daemon);
        damage(&copying.journal());
        let (resumed, _) = copying.finish(&daemon);
        assert_eq!(resumed, 0, "{what}");
        fs::remove_file(copying.target().join("copy")).unwrap();
    }
}

/// What is done to a journal, and the doing.
type Damage = (&'static str, fn(&Path));

fn cut(path: &Path, len: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(len).unwrap();
}

#[test]
fn chunks_that_are_not_what_they_were_are_fetched_again() {
    let copying = Copying::new(Way::Pull, &[]);
    let mut daemon = copying.world.serve();
    copying.kill(&mut daemon);
    let whole = {
        // What would be gone on with if nobody had touched it: as many chunks as the journal has.
        let len = fs::metadata(copying.journal()).unwrap().len();
        (len - 96) / 76
    };
    let part = copying.part();
    // The first chunk, which is in every journal, and what no journal speaks of.
    flip(&part, 5);
    flip(&part, FILE_BYTES - 5);
    let (resumed, _) = copying.finish(&daemon);
    assert!(resumed >= (whole - 1) * MIB, "{resumed}");
    assert!(resumed < PASSED_BYTES, "{resumed}");
}

#[test]
fn holes_stay_zeros_whatever_was_written_there() {
    let copying = Copying::new(Way::Pull, &[]);
    // Data at the beginning and in the middle of a chunk further on, and nothing else.
    let data = fs::read(copying.source()).unwrap();
    fs::remove_file(copying.source()).unwrap();
    let source = fs::File::create(copying.source()).unwrap();
    source.set_len(FILE_BYTES).unwrap();
    let end = usize::try_from(26 * MIB).unwrap();
    source.write_all_at(&data[..end], 0).unwrap();
    source
        .write_all_at(&data[..4096], 35 * MIB + (64 << 10))
        .unwrap();
    let mut daemon = copying.world.serve();
    copying.kill(&mut daemon);
    for at in [30 * MIB, 35 * MIB, 35 * MIB + (512 << 10), 39 * MIB] {
        flip(&copying.part(), at);
    }
    let lines = copying.start(|rest| daemon.url(rest)).wait().ok().json();
    let resumed = lines.last().unwrap()["bytes_resumed"].as_u64().unwrap();
    assert!(resumed >= 8 * MIB, "{resumed}");
    copying.assert_done();
}

#[test]
fn foreign_things_at_the_hidden_names_are_not_followed() {
    let copying = Copying::new(Way::Pull, &[]);
    let mut daemon = copying.world.serve();
    let victim = copying.world.write("victim", "the user's own");
    let untouched = || assert_eq!(fs::read(&victim).unwrap(), b"the user's own");

    // A journal that is a symbolic link, or a second name of something.
    for plant in [
        (|victim, at| symlink(victim, at).unwrap()) as fn(&Path, &Path),
        |victim, at| fs::hard_link(victim, at).unwrap(),
    ] {
        copying.kill(&mut daemon);
        let journal = copying.journal();
        fs::remove_file(&journal).unwrap();
        plant(&victim, &journal);
        let lines = copying.start(|rest| daemon.url(rest)).wait().ok().json();
        assert_eq!(lines.last().unwrap()["bytes_resumed"], 0);
        untouched();
        fs::remove_file(copying.target().join("copy")).unwrap();
        if journal.symlink_metadata().is_ok() {
            fs::remove_file(&journal).unwrap();
        }
        copying.assert_nothing_hidden();
    }

    // A part file that is one, beside a good journal: the copy fails rather than go through it.
    for plant in [
        (|victim, at| symlink(victim, at).unwrap()) as fn(&Path, &Path),
        |victim, at| fs::hard_link(victim, at).unwrap(),
    ] {
        copying.kill(&mut daemon);
        let part = copying.part();
        fs::remove_file(&part).unwrap();
        plant(&victim, &part);
        let done = copying.start(|rest| daemon.url(rest)).wait();
        done.expect(4);
        untouched();
        fs::remove_file(&part).unwrap();
        assert_eq!(copying.finish(&daemon).0, 0);
        fs::remove_file(copying.target().join("copy")).unwrap();
    }
}

#[test]
fn what_others_can_write_is_not_gone_on_with() {
    use std::os::unix::fs::PermissionsExt;
    let copying = Copying::new(Way::Pull, &[]);
    let mut daemon = copying.world.serve();
    for which in [Copying::part, Copying::journal] {
        copying.kill(&mut daemon);
        let open = fs::Permissions::from_mode(0o666);
        fs::set_permissions(which(&copying), open).unwrap();
        assert_eq!(copying.finish(&daemon).0, 0);
        fs::remove_file(copying.target().join("copy")).unwrap();
    }
}

#[test]
fn without_resuming_nothing_is_left_and_nothing_is_used() {
    for way in [Way::Pull, Way::Push] {
        let mut copying = Copying::new(way, &[]);
        let mut daemon = copying.world.serve();
        copying.kill(&mut daemon);
        copying.options = vec!["--no-resume"];
        assert_eq!(copying.finish(&daemon).0, 0);
        fs::remove_file(copying.target().join("copy")).unwrap();

        for options in [["--no-resume"].as_slice(), &["--hash", "none"]] {
            copying.options = options.to_vec();
            let proxy = Proxy::new(daemon.address()).hold_after(PASSED_BYTES, Scope::Data);
            let running = copying.start(|rest| proxy.url(rest));
            proxy.wait_held();
            running.signal(Signal::INT);
            running.wait().expect(130);
            wait_for("the part file is gone", || {
                copying.hidden("").is_none().then_some(())
            });
        }
    }
}

#[test]
fn what_can_be_gone_on_with_outlives_other_copies_and_is_no_content() {
    let copying = Copying::new(Way::Push, &[]);
    let mut daemon = copying.world.serve();
    copying.kill(&mut daemon);
    copying.world.write("local/other", "x");
    let world = &copying.world;
    let push = world.rdcp("push").arg("other").arg(daemon.url("data/"));
    push.run().ok();
    let listed = world.rdcp("ls").arg(daemon.url("data/")).run().ok().text();
    assert_eq!(listed.trim(), "other");
    let pull = world.rdcp("pull").arg("-r").arg(daemon.url("data/"));
    pull.arg("back").run().ok();
    assert_eq!(fs::read_dir(world.path("local/back")).unwrap().count(), 1);
    let (resumed, _) = copying.finish(&daemon);
    assert!(resumed >= 8 * MIB, "{resumed}");
}
