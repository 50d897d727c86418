//! A network that flips bits, delays and cuts: whatever arrives is what was sent, or the copy fails and says
//! so. Nothing wrong is ever published and nothing hangs, whichever bit it was: of payload, which only its
//! digest covers, of the headers of data connections, which have a MAC, or of what TLS carries.
//!
//! Each run is made from a seed, which a failure names. `RDCP_FLIPS=100000` flips more bits of payload than
//! the 10,000 of an ordinary run, `RDCP_SEED` begins with another seed.

mod common;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use common::flips::{Flips, Harm, Told};
use common::{Daemon, Finished, Proxy, Rdcp, Scope, WAYS, Way, World, tree, wait_for};
use rustix::process::Signal;
use serde_json::Value;

/// Bits of payload that are flipped in all.
const FLIPS: u64 = 10_000;
/// As limits.rs has it: how often a chunk or pack is read again.
const REPAIRS_MAX: u32 = 3;
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const FILE_BYTES: usize = 16 * MIB;
/// The shortest there are, so that there are many.
const CHUNK: &str = "64K";
const CHUNK_BYTES: usize = 64 * KIB;
const REPAIRED: &str = "did not match its digest and is read again";

const HASHES: [&str; 2] = ["blake3", "sha256"];

/// What is copied.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    /// One file of many chunks.
    Big,
    /// Many that travel in packs.
    Small,
    /// One of which an older copy is there.
    Delta,
    /// One of which an interrupted run left a part.
    Resume,
}

/// A tree that is copied from one side to the other, in either direction.
struct Copying {
    world: World,
    daemon: Daemon,
    way: Way,
    hash: &'static str,
}

impl Copying {
    fn new(way: Way, hash: &'static str, what: What, len: usize, seed: u64) -> Self {
        let world = World::new();
        let daemon = world.serve();
        let copying = Self {
            world,
            daemon,
            way,
            hash,
        };
        let source = copying.source();
        fs::create_dir_all(&source).unwrap();
        if what == What::Small {
            let mut dice = tree::Random::new(seed);
            let mut bytes = 0;
            for number in 0.. {
                // Up to the longest that travel in packs.
                let small = usize::try_from(1 + dice.below(1 << (10 + number % 9))).unwrap();
                tree::random_file(
                    &source.join(format!("small {number}")),
                    small,
                    seed + number,
                );
                bytes += small;
                if bytes > len {
                    break;
                }
            }
        } else {
            tree::random_file(&source.join("big"), len, seed);
        }
        match what {
            What::Big | What::Small => {}
            What::Delta => copying.leave_an_older_copy(),
            What::Resume => copying.leave_a_part(),
        }
        copying
    }

    /// A copy in which two chunks of five are others.
    fn leave_an_older_copy(&self) {
        fs::create_dir_all(self.copy()).unwrap();
        let mut content = fs::read(self.source().join("big")).unwrap();
        for (number, chunk) in content.chunks_mut(CHUNK_BYTES).enumerate() {
            if number % 5 < 2 {
                chunk[0] ^= 1;
            }
        }
        let older = self.copy().join("big");
        fs::write(&older, content).unwrap();
        tree::set_mtime(&older, 1_400_000_000, 0);
    }

    /// What a copy leaves that is interrupted in its first third.
    fn leave_a_part(&self) {
        let proxy = Proxy::new(self.daemon.address());
        proxy.hold_on(FILE_BYTES as u64 / 3, Scope::Data);
        let running = self.command(&proxy).start();
        proxy.wait_held();
        wait_for("there is a journal with some chunks", || {
            let names = fs::read_dir(self.copy()).ok()?;
            let mut names = names.filter_map(Result::ok);
            let journal = names.find(|name| {
                let name = name.file_name().to_string_lossy().into_owned();
                name.ends_with(".journal")
            })?;
            (journal.metadata().ok()?.len() > 2000).then_some(())
        });
        running.signal(Signal::INT);
        running.wait().expect(130);
    }

    fn source(&self) -> PathBuf {
        self.way.tree(&self.world)
    }

    fn copy(&self) -> PathBuf {
        self.way.copied(&self.world)
    }

    fn command(&self, proxy: &Proxy) -> Rdcp {
        let (command, words) = match self.way {
            Way::Pull => ("pull", [proxy.url("data/tree/"), "copy".into()]),
            Way::Push => ("push", [OsString::from("tree/"), proxy.url("data/copy")]),
        };
        let command = self.world.rdcp(command).args(["--json", "-r"]);
        let command = command.args(["--hash", self.hash, "--chunk", CHUNK]);
        command.args(["--timeout", "30s"]).args(words)
    }

    /// How many chunks and packs the receiver says it read again: on standard output if it is the client,
    /// else in the daemon's log.
    fn repairs(&self, ended: &Finished) -> u64 {
        let count = |text: &str| text.matches(REPAIRED).count() as u64;
        match self.way {
            Way::Pull => count(&ended.text()),
            Way::Push => count(&self.daemon.log()),
        }
    }

    /// The copy is what the source is, and nothing else is left.
    #[track_caller]
    fn assert_same(&self) {
        assert_eq!(tree::listing(&self.source()), tree::listing(&self.copy()));
        self.assert_nothing_wrong();
    }

    /// What is there is what the source has.
    #[track_caller]
    fn assert_nothing_wrong(&self) {
        let Ok(names) = fs::read_dir(self.copy()) else {
            return;
        };
        for name in names {
            let name = name.unwrap().file_name();
            if name.to_string_lossy().starts_with(".rdcp-") {
                continue;
            }
            let same = fs::read(self.copy().join(&name)).unwrap()
                == fs::read(self.source().join(&name)).unwrap();
            assert!(same, "{name:?} is not what its source is");
        }
    }

    /// Nothing was published.
    #[track_caller]
    fn assert_nothing_there(&self) {
        let names = fs::read_dir(self.copy()).into_iter().flatten();
        let mut names = names.map(|name| name.unwrap().file_name());
        assert_eq!(names.next(), None);
    }
}

fn number_from(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

fn seed() -> u64 {
    number_from("RDCP_SEED", 1)
}

fn summary(ended: &Finished) -> Value {
    let lines = ended.json();
    let end = lines.last().expect("there is a summary").clone();
    assert_eq!(end["type"], "summary");
    end
}

/// So many bits of the payload are flipped, and each is found and repaired.
#[track_caller]
fn flip_payload(what: What) {
    let flips = number_from("RDCP_FLIPS", FLIPS) / 16;
    let mut all = Told::default();
    for (run, (way, hash)) in (0..).zip(WAYS.iter().flat_map(|way| HASHES.map(|hash| (*way, hash))))
    {
        let seed = seed() * 1000 + run;
        // However many that are, no file is copied more than a few times.
        let mut left = flips;
        for round in 0.. {
            let context = format!("{way:?} {hash} {what:?}, seed {seed}, round {round}");
            let copying = Copying::new(way, hash, what, FILE_BYTES, seed + round);
            let harm = match what {
                // Of a pack that is read again, only the files that came wrong are looked at: so packs are
                // hit once, and every bit counts.
                What::Small => Harm::Payload {
                    bits: left,
                    one_in: 1,
                    bits_max: 150,
                    times_max: 1,
                },
                What::Big | What::Delta | What::Resume => Harm::Payload {
                    bits: left,
                    one_in: 2,
                    bits_max: 30,
                    times_max: REPAIRS_MAX,
                },
            };
            let flips = Arc::new(Flips::new(harm, seed + round));
            let proxy = Proxy::flipping(copying.daemon.address(), &flips);
            let ended = copying.command(&proxy).run().ok();
            copying.assert_same();
            let told = flips.told();
            assert!(told.bits > 0, "{context}: nothing was hit");
            assert_eq!(copying.repairs(&ended), told.answers, "{context}: {told:?}");
            let end = summary(&ended);
            assert_eq!(
                (&end["reconnects"], &end["failed"]),
                (&0.into(), &0.into()),
                "{context}: {end}"
            );
            let is_some = |name: &str| end[name].as_u64().unwrap() > 0;
            assert_eq!(
                is_some("bytes_reused"),
                what == What::Delta,
                "{context}: {end}"
            );
            assert_eq!(
                is_some("bytes_resumed"),
                what == What::Resume,
                "{context}: {end}"
            );
            all.bits += told.bits;
            all.answers += told.answers;
            all.single += told.single;
            all.reads += told.reads;
            left -= told.bits;
            if left == 0 {
                break;
            }
        }
    }
    assert_eq!(all.bits, flips * 4);
    assert!(all.single > 0 && all.single < all.answers, "{all:?}");
    println!("{what:?}: {all:?}");
}

#[test]
fn every_flipped_bit_of_a_big_file_is_found_and_repaired() {
    flip_payload(What::Big);
}

#[test]
fn every_flipped_bit_of_packed_files_is_found_and_repaired() {
    flip_payload(What::Small);
}

#[test]
fn every_flipped_bit_is_found_where_an_older_copy_is_built_on() {
    flip_payload(What::Delta);
}

#[test]
fn every_flipped_bit_is_found_where_an_interrupted_copy_goes_on() {
    flip_payload(What::Resume);
}

#[test]
fn what_comes_wrong_three_times_is_repaired_and_once_more_it_fails_unpublished() {
    for way in WAYS {
        for hash in HASHES {
            // A file of sixteen chunks, and one that travels in a pack.
            for len in [16 * CHUNK_BYTES, 10 * KIB] {
                let context = format!("{way:?} {hash}, {len} bytes");
                let copying = Copying::new(way, hash, What::Big, 0, 1);
                let source = copying.source();
                fs::remove_dir_all(&source).unwrap();
                fs::create_dir(&source).unwrap();
                tree::random_file(&source.join("file"), len, 1);
                let each = |times_max| Harm::Payload {
                    bits: u64::MAX,
                    one_in: 1,
                    bits_max: 1,
                    times_max,
                };
                let run = |times_max| {
                    let flips = Arc::new(Flips::new(each(times_max), 1));
                    let proxy = Proxy::flipping(copying.daemon.address(), &flips);
                    (copying.command(&proxy).run(), flips.told())
                };
                let (ended, told) = run(REPAIRS_MAX + 1);
                let ended = ended.expect(6);
                assert!(told.bits > u64::from(REPAIRS_MAX), "{context}: {told:?}");
                assert_eq!(summary(&ended)["failed"], 1, "{context}");
                assert!(ended.text().contains("wrong 3 times more"), "{context}");
                copying.assert_nothing_there();
                let (ended, told) = run(REPAIRS_MAX);
                ended.ok();
                assert_eq!(told.bits, told.reads * u64::from(REPAIRS_MAX), "{context}");
                copying.assert_same();
            }
        }
    }
}

/// Copies so many bytes in one file or in packs, in each direction, while this harm is done. Whatever came of it,
/// nothing wrong is there.
#[track_caller]
fn harm(
    harm: Harm,
    len: usize,
    seeds: std::ops::Range<u64>,
) -> Vec<(String, Copying, Finished, Told)> {
    let mut ends = Vec::new();
    for seed in seeds {
        for way in WAYS {
            let hash = HASHES[usize::try_from(seed % 2).unwrap()];
            let what = [What::Big, What::Small][usize::try_from(seed / 2 % 2).unwrap()];
            let copying = Copying::new(way, hash, what, len, seed);
            let flips = Arc::new(Flips::new(harm, seed));
            let proxy = Proxy::flipping(copying.daemon.address(), &flips);
            let ended = copying.command(&proxy).run();
            copying.assert_nothing_wrong();
            let context = format!("{way:?} {hash} {what:?}, seed {seed}");
            ends.push((context, copying, ended, flips.told()));
        }
    }
    ends
}

#[test]
fn a_flipped_bit_in_a_header_costs_its_data_connection_and_no_more() {
    let headers = Harm::Headers {
        bits: 20,
        one_in: 12,
    };
    let first = seed();
    let mut bits = 0;
    for (context, copying, ended, told) in harm(headers, 8 * MIB, first..first + 2) {
        let ended = ended.ok();
        copying.assert_same();
        assert_eq!(copying.repairs(&ended), 0, "{context}");
        bits += told.bits;
    }
    println!("headers: {bits} bits");
    assert!(bits >= 20, "only {bits} bits were flipped");
}

#[test]
fn a_flipped_bit_in_tls_ends_its_session_and_the_copy_goes_on_in_another() {
    let control = Harm::Control {
        bits: 3,
        from_byte: 1500,
        within_bytes: 1500,
    };
    let first = seed();
    let (mut bits, mut lost) = (0, 0);
    for (context, mut copying, ended, told) in harm(control, 8 * MIB, first..first + 2) {
        let end = summary(&ended);
        if ended.status == 0 {
            copying.assert_same();
        } else {
            // Only a copy that both ends had agreed on goes on by itself.
            let ended = ended.expect(3).text();
            assert_eq!(end["retryable"], true, "{context}");
            assert_eq!(end["bytes_moved"], 0, "{context}");
            assert!(
                ended.contains("the connection was lost"),
                "{context}: {ended}"
            );
            copying.assert_nothing_there();
        }
        let reconnects = end["reconnects"].as_u64().unwrap();
        assert!(reconnects <= told.bits, "{context}: {told:?}");
        bits += told.bits;
        lost += reconnects;
        copying.daemon.assert_alive();
    }
    println!("TLS: {bits} bits, {lost} reconnects");
    assert!(lost > 0, "no session was lost");
}

#[test]
fn a_flipped_bit_in_a_handshake_is_a_clear_end_or_none_at_all() {
    let handshake = Harm::Control {
        bits: 1,
        from_byte: 0,
        within_bytes: 800,
    };
    let first = seed();
    let (mut bits, mut failed) = (0, 0);
    for (context, mut copying, ended, told) in harm(handshake, MIB, first..first + 6) {
        bits += told.bits;
        if ended.status == 0 {
            copying.assert_same();
        } else {
            failed += 1;
            let ended = ended.failed();
            copying.assert_nothing_there();
            let lines = ended.json();
            let told = lines.iter().find(|line| line["type"] == "error");
            assert!(told.is_some(), "{context}: it does not say why");
        }
        copying.daemon.assert_alive();
        // Whatever was said of keys then, the host is who it was.
        let proxy = Proxy::new(copying.daemon.address());
        copying.command(&proxy).run().ok();
        copying.assert_same();
    }
    println!("handshakes: {bits} bits, {failed} copies failed");
    assert!(bits > 0, "nothing was hit");
}

#[test]
fn delays_and_cuts_at_any_moment_cost_only_time() {
    let first = seed();
    for seed in first..first + 2 {
        for way in WAYS {
            let mut dice = tree::Random::new(seed);
            let hash = HASHES[usize::try_from(seed % 2).unwrap()];
            let what = [What::Big, What::Small][usize::try_from(seed / 2 % 2).unwrap()];
            let copying = Copying::new(way, hash, what, 8 * MIB, seed);
            let proxy = Proxy::new(copying.daemon.address());
            proxy.delay(20, seed);
            let mut at = 0;
            let mut cuts = 0;
            let more = |dice: &mut tree::Random| 1 + dice.below(MIB as u64);
            at += more(&mut dice);
            proxy.hold_on(at, Scope::Data);
            let running = copying.command(&proxy).start();
            for _ in 0..6 {
                proxy.wait_held();
                let scope = [Scope::Data, Scope::All][usize::try_from(dice.below(2)).unwrap()];
                proxy.cut(scope);
                cuts += u64::from(scope == Scope::All);
                at = proxy.data_bytes() + more(&mut dice);
                proxy.hold_on(at, Scope::Data);
            }
            proxy.release();
            let ended = running.wait().ok();
            copying.assert_same();
            let end = summary(&ended);
            assert_eq!(end["failed"], 0, "{way:?}, seed {seed}: {end}");
            let reconnects = end["reconnects"].as_u64().unwrap();
            assert!(reconnects <= cuts, "{way:?}, seed {seed}: {end}");
            assert_eq!(copying.repairs(&ended), 0, "{way:?}, seed {seed}");
        }
    }
}
