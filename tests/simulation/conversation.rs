//! Runs where nothing is left to chance, read as conversations.

use rdcp::engine::receiver::{self, Placed};
use rdcp::engine::sender;
use rdcp::engine::{LaneId, Verdict};
use rdcp::ids::EntryId;
use rdcp::manifest::EntryKind;
use rdcp::units::{ChunkRange, ChunkSize};
use rdcp::wire::message::{Carried, HashKind, Outcome, Wanted};
use rdcp::wire::{FaultCode, Message};

use super::files::{SourceFile, Trouble, fault};
use super::pair::{Pair, Side};
use super::plan::Plan;

const MIB: u64 = 1 << 20;

fn quiet(hash: HashKind) -> Plan {
    Plan::quiet(hash, ChunkSize::DEFAULT)
}

fn file(len: u64) -> SourceFile {
    SourceFile::new(len + 1, len, ChunkSize::DEFAULT)
}

fn orderly(mut plan: Plan) -> Pair {
    plan.tree.end_page(true);
    let mut pair = Pair::new(plan);
    (pair.orderly, pair.record) = (true, true);
    pair
}

/// Runs to the end and tells what was said, a line per message.
fn conversation(plan: Plan) -> (Pair, Vec<String>) {
    let mut pair = orderly(plan);
    pair.drive();
    pair.check_end();
    let lines = pair.said.iter().map(line).collect();
    (pair, lines)
}

fn line((side, message): &(Side, Message)) -> String {
    let text = match message {
        Message::Credit {
            pages,
            region_bytes,
        } => {
            format!("credit {pages} pages {} MiB", region_bytes / MIB)
        }
        Message::Manifest(page) => format!("manifest {} items", page.items.len()),
        Message::Want(wants) => format!("want {}", ids(wants.iter().map(|(id, _)| *id))),
        Message::Grant(grant) => {
            let parts = grant.parts.iter().map(|part| {
                let kind = if part.packed { "packed" } else { "window" };
                let last = if part.last { " last" } else { "" };
                let (start, end) = (part.file_offset, part.file_offset + part.len);
                format!("; {} {kind} {start}..{end}{last}", part.entry)
            });
            format!("grant {} bytes{}", grant.len, parts.collect::<String>())
        }
        Message::Digests(digests) => {
            let of = digests
                .iter()
                .map(|digest| format!(" {}:{}", digest.entry, digest.chunk));
            format!("digests{}", of.collect::<String>())
        }
        Message::Release(regions) => format!("release {}", regions.len()),
        Message::Close(entries) => format!("close {}", ids(entries.iter().copied())),
        Message::Closed(answers) => {
            let of = answers
                .iter()
                .map(|(entry, same)| format!(" {entry} {same}"));
            format!("closed{}", of.collect::<String>())
        }
        Message::Settled(outcomes) => {
            let of = outcomes.iter().map(|(entry, outcome)| match outcome {
                Outcome::Published { bytes, .. } => format!(" {entry} published {bytes}"),
                Outcome::Unchanged => format!(" {entry} unchanged"),
                Outcome::Updated => format!(" {entry} updated"),
                Outcome::Failed(fault) => format!(" {entry} failed {:?}", fault.code),
                other => format!(" {entry} {other:?}"),
            });
            format!("settled{}", of.collect::<String>())
        }
        Message::EntryFailed { entry, fault } => format!("entry {entry} failed {:?}", fault.code),
        Message::Recheck { entry, chunk } => format!("recheck {entry}:{chunk}"),
        Message::Failed(fault) => format!("failed {:?}", fault.code),
        Message::Finish(carried) => {
            format!("finish {} by tcp {} by rdma", carried.tcp, carried.rdma)
        }
        other => format!("{other:?}").to_lowercase(),
    };
    match side {
        Side::Receiver => format!("receiver: {text}"),
        Side::Sender => format!("sender: {text}"),
    }
}

fn ids(entries: impl Iterator<Item = EntryId>) -> String {
    entries
        .map(|entry| entry.to_string())
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn small_files_travel_in_one_pack() {
    let mut plan = quiet(HashKind::Blake3);
    let directory = plan.tree.add(None, EntryKind::Directory);
    for len in [0, 10, 200] {
        plan.tree.add_file(Some(directory), file(len), false);
    }
    plan.tree.end_directory(directory);
    let (_, said) = conversation(plan);
    assert_eq!(
        said,
        [
            "receiver: credit 16 pages 256 MiB",
            "sender: manifest 5 items",
            "receiver: want 1 2 3",
            "sender: grant 210 bytes; 1 packed 0..0 last; 2 packed 0..10 last; 3 packed 0..200 last",
            "sender: digests 1:0 2:0 3:0",
            "receiver: release 1",
            "receiver: settled 1 published 0 2 published 10 3 published 200",
            "receiver: settled 0 unchanged",
            "receiver: finish 210 by tcp 0 by rdma",
            "sender: finished",
        ]
    );
}

#[test]
fn a_big_file_is_closed_before_it_is_published() {
    let mut plan = quiet(HashKind::Blake3);
    plan.tree.add_file(None, file(2 * MIB + 5), false);
    let (_, said) = conversation(plan);
    let digests = said
        .iter()
        .filter(|line| line.starts_with("sender: digests"))
        .count();
    assert_eq!(digests, 3, "each chunk is hashed as it is served");
    let others: Vec<&str> = said
        .iter()
        .filter(|line| !line.starts_with("sender: digests"))
        .map(String::as_str)
        .collect();
    assert_eq!(
        others,
        [
            "receiver: credit 16 pages 256 MiB",
            "sender: manifest 1 items",
            "receiver: want 0",
            "sender: grant 2097157 bytes; 0 window 0..2097157 last",
            "receiver: release 1",
            "receiver: close 0",
            "sender: closed 0 true",
            "receiver: settled 0 published 2097157",
            "receiver: finish 2097157 by tcp 0 by rdma",
            "sender: finished",
        ]
    );
}

#[test]
fn sha256_states_come_before_their_window_and_the_one_before_it_too() {
    let mut plan = quiet(HashKind::Sha256);
    plan.receiver.region_credit_bytes = 8 * MIB;
    plan.tree.add_file(None, file(4 * MIB), false);
    let (_, said) = conversation(plan);
    let told: Vec<&str> = said
        .iter()
        .filter(|line| line.starts_with("sender: digests") || line.starts_with("sender: grant"))
        .map(String::as_str)
        .collect();
    assert_eq!(
        told,
        [
            "sender: digests 0:0 0:1",
            "sender: grant 2097152 bytes; 0 window 0..2097152",
            "sender: digests 0:1 0:2 0:3",
            "sender: grant 2097152 bytes; 0 window 2097152..4194304 last",
        ]
    );
}

#[test]
fn holes_are_granted_without_bytes_and_never_read() {
    for hash in [HashKind::Blake3, HashKind::Sha256, HashKind::None] {
        let mut plan = quiet(hash);
        let mut hole = file(70 * MIB);
        hole.data.fill(false);
        plan.tree.add_file(None, hole, false);
        let (pair, said) = conversation(plan);
        let grants: Vec<&String> = said.iter().filter(|line| line.contains("grant")).collect();
        assert_eq!(
            grants,
            [
                "sender: grant 0 bytes; 0 window 0..67108864",
                "sender: grant 0 bytes; 0 window 67108864..73400320 last",
            ]
        );
        assert!(!said.iter().any(|line| line.contains("release")));
        let published = Outcome::Published {
            bytes: 0,
            digest: None,
        };
        assert_eq!(pair.outcomes[&EntryId(0)], published);
    }
}

#[test]
fn a_run_of_holes_of_any_length_takes_a_few_grants() {
    for hash in [HashKind::Blake3, HashKind::None] {
        let mut plan = quiet(hash);
        // Data in the middle, beginning within its chunk, and at the end.
        let mut sparse = file(20_000 * MIB);
        sparse.data.fill(false);
        sparse.data[12_345] = true;
        sparse.data[19_999] = true;
        plan.tree.add_file(None, sparse, false);
        let (pair, said) = conversation(plan);
        let grants: Vec<&String> = said.iter().filter(|line| line.contains("grant")).collect();
        // Four windows are out before the first says that it is a hole; a window of data follows
        // each long run, and three more are out by then.
        assert!(grants.len() <= 16, "{grants:?}");
        let Outcome::Published { bytes, .. } = pair.outcomes[&EntryId(0)] else {
            panic!("{:?}", pair.outcomes);
        };
        assert_eq!(bytes, 2 * MIB);
    }
}

#[test]
fn a_file_that_became_empty_gets_its_one_grant() {
    let mut plan = quiet(HashKind::Blake3);
    let mut shrunk = file(0);
    shrunk.listed_len = 5 * MIB;
    plan.tree.add_file(None, shrunk, false);
    let (_, said) = conversation(plan);
    assert!(said.contains(&"sender: grant 0 bytes; 0 window 0..0 last".to_owned()));
    assert!(said.contains(&"receiver: settled 0 published 0".to_owned()));
}

#[test]
fn a_small_file_that_grew_is_served_as_a_big_one() {
    let mut plan = quiet(HashKind::Blake3);
    let mut grown = file(3 * MIB);
    grown.listed_len = 100;
    plan.tree.add_file(None, grown, false);
    let (_, said) = conversation(plan);
    assert!(said.contains(&"sender: grant 3145728 bytes; 0 window 0..3145728 last".to_owned()));
}

#[test]
fn only_wanted_chunks_are_granted() {
    let mut plan = quiet(HashKind::Sha256);
    let id = plan.tree.add_file(None, file(9 * MIB), false);
    let ranges = vec![
        ChunkRange { start: 2, end: 3 },
        ChunkRange { start: 7, end: 100 },
    ];
    plan.placed
        .insert(id, Placed::Fetch(Wanted::Chunks(ranges)));
    let (_, said) = conversation(plan);
    let told: Vec<&str> = said
        .iter()
        .filter(|line| line.starts_with("sender: digests") || line.starts_with("sender: grant"))
        .map(String::as_str)
        .collect();
    assert_eq!(
        told,
        [
            "sender: digests 0:1 0:2",
            "sender: grant 1048576 bytes; 0 window 2097152..3145728",
            "sender: digests 0:6 0:7 0:8",
            "sender: grant 2097152 bytes; 0 window 7340032..9437184 last",
        ]
    );
}

#[test]
fn a_hard_link_fails_with_its_file() {
    let mut plan = quiet(HashKind::Blake3);
    let mut bad = file(5);
    bad.trouble = Trouble::Vanishes;
    let bad = plan.tree.add_file(None, bad, true);
    let good = plan.tree.add_file(None, file(6), true);
    let to_bad = plan.tree.add(None, EntryKind::HardLink(bad));
    let to_good = plan.tree.add(None, EntryKind::HardLink(good));
    plan.tree.end_page(false);
    // These are told when their files are long settled.
    let late_bad = plan.tree.add(None, EntryKind::HardLink(bad));
    let late_good = plan.tree.add(None, EntryKind::HardLink(good));
    plan.receiver.pages_credit = 1;
    let (pair, _) = conversation(plan);
    for link in [to_bad, late_bad] {
        let Outcome::Failed(fault) = &pair.outcomes[&link] else {
            panic!("{link} was linked")
        };
        assert_eq!(fault.code, FaultCode::NotFound);
    }
    for link in [to_good, late_good] {
        assert_eq!(
            pair.outcomes[&link],
            Outcome::Published {
                bytes: 0,
                digest: None
            }
        );
    }
}

#[test]
fn a_huge_file_does_not_hold_up_small_ones() {
    let mut plan = quiet(HashKind::Blake3);
    plan.tree.add_file(None, file(2000 * MIB), false);
    for _ in 0..100 {
        plan.tree.add_file(None, file(200_000), false);
    }
    let (_, said) = conversation(plan);
    let settled: Vec<usize> = (0..said.len())
        .filter(|n| said[*n].starts_with("receiver: settled"))
        .collect();
    assert!(
        said[*settled.last().unwrap()].contains(" 0 published"),
        "the huge one is the last"
    );
    let grants = said[..settled[settled.len() - 2]].iter();
    let windows = grants.filter(|line| line.contains("window")).count();
    assert!(
        windows < 16,
        "all small files are there after {windows} of 32 windows"
    );
}

#[test]
fn a_source_that_changed_is_not_published() {
    let mut plan = quiet(HashKind::Blake3);
    plan.tree.add_file(None, file(3 * MIB), false);
    let mut pair = orderly(plan);
    while !pair.said.iter().any(|said| line(said).contains("grant")) {
        pair.step();
    }
    pair.plan.tree.files.get_mut(&EntryId(0)).unwrap().version += 1;
    pair.drive();
    let said: Vec<String> = pair.said.iter().map(line).collect();
    assert!(said.contains(&"sender: closed 0 false".to_owned()));
    assert!(said.contains(&"receiver: settled 0 failed SourceChanged".to_owned()));
    let ledger = &pair.receiver_end.unwrap().ledger;
    assert_eq!(ledger.verdict(), Verdict::One(FaultCode::SourceChanged));
}

#[test]
fn a_damaged_chunk_is_doubted_read_again_and_given_up_after_three_repairs() {
    for (trouble, code) in [(Trouble::Damaged(1), FaultCode::Integrity)] {
        let mut plan = quiet(HashKind::Blake3);
        let mut spoilt = file(MIB);
        spoilt.trouble = trouble;
        plan.tree.add_file(None, spoilt, false);
        let mut small = file(10);
        small.trouble = trouble;
        plan.tree.add_file(None, small, false);
        let (pair, said) = conversation(plan);
        let rechecks = said
            .iter()
            .filter(|line| *line == "receiver: recheck 0:0")
            .count();
        assert_eq!(rechecks, 3);
        for entry in [EntryId(0), EntryId(1)] {
            let Outcome::Failed(fault) = &pair.outcomes[&entry] else {
                panic!("published")
            };
            assert_eq!(fault.code, code);
        }
    }
}

#[test]
fn without_lanes_a_run_waits_and_then_goes_on() {
    let mut plan = quiet(HashKind::Blake3);
    plan.rails = vec![0];
    plan.tree.add_file(None, file(30 * MIB), false);
    let mut pair = orderly(plan);
    while !pair.said.iter().any(|said| line(said).contains("digests")) {
        pair.step();
    }
    pair.lane_down();
    // The pair brings the lane back once nothing else can happen.
    pair.drive();
    pair.check_end();
    assert_eq!(pair.receiver_end.unwrap().ledger.bytes, 30 * MIB);
}

#[test]
fn what_an_earlier_run_left_does_not_travel_again() {
    for hash in [HashKind::Blake3, HashKind::Sha256] {
        let mut plan = quiet(hash);
        plan.interrupted = true;
        for seed in 0..8 {
            let left = SourceFile {
                seed,
                ..file(30 * MIB)
            };
            plan.tree.add_file(None, left, false);
        }
        let mut pair = orderly(plan);
        pair.drive();
        pair.check_end();
        let ledger = pair.receiver_end.unwrap().ledger;
        assert!(ledger.carried.resumed > 30 * MIB, "{ledger:?}");
        assert_eq!(ledger.bytes + ledger.carried.resumed, 8 * 30 * MIB);
    }
}

/// The values come unasked, and only what differs is read.
#[test]
fn what_an_older_copy_has_does_not_travel() {
    for hash in [HashKind::Blake3, HashKind::Sha256, HashKind::None] {
        let mut plan = quiet(hash);
        plan.older = true;
        for seed in 0..9 {
            let old = SourceFile {
                seed,
                ..file(30 * MIB)
            };
            plan.tree.add_file(None, old, false);
        }
        let mut pair = orderly(plan);
        pair.drive();
        pair.check_end();
        let ledger = pair.receiver_end.unwrap().ledger;
        let reused = ledger.carried.reused;
        assert_eq!(reused > 20 * MIB, hash != HashKind::None, "{ledger:?}");
        assert_eq!(ledger.bytes + reused, 9 * 30 * MIB);
        assert_eq!(ledger.carried.tcp, ledger.bytes);
    }
}

#[test]
fn cancelling_either_side_ends_both_with_its_reason() {
    for at_sender in [false, true] {
        let mut plan = quiet(HashKind::Sha256);
        plan.faults.cancel = Some((60, at_sender));
        plan.tree.add_file(None, file(300 * MIB), false);
        plan.tree.add_file(None, file(300), false);
        let mut pair = orderly(plan);
        pair.drive();
        pair.check_end();
        for end in [pair.receiver_end.unwrap(), pair.sender_end.unwrap()] {
            assert_eq!(end.fault.unwrap().code, FaultCode::Cancelled);
        }
    }
}

#[test]
fn a_full_disk_ends_the_run_only_if_any_failure_does() {
    for fail_early in [true, false] {
        let mut plan = quiet(HashKind::Blake3);
        plan.receiver.fail_early = fail_early;
        let mut full = file(MIB);
        full.trouble = Trouble::Full;
        plan.tree.add_file(None, full, false);
        plan.tree.add_file(None, file(900 * MIB), false);
        let mut pair = orderly(plan);
        pair.drive();
        pair.check_end();
        let end = pair.receiver_end.unwrap();
        assert_eq!(end.fault.is_some(), fail_early);
        assert_eq!(end.ledger.verdict(), Verdict::One(FaultCode::NoSpace));
        assert_eq!(end.ledger.published, u64::from(!fail_early));
    }
}

#[test]
fn a_peer_that_breaks_the_protocol_ends_the_run() {
    let lies: [Message; 6] = [
        Message::Finished,
        Message::Opened,
        Message::Closed(vec![(EntryId(0), true)]),
        Message::EntryFailed {
            entry: EntryId(77),
            fault: fault(FaultCode::Storage),
        },
        Message::Finish(Carried::default()),
        Message::Release(Vec::new()),
    ];
    for lie in lies {
        let mut plan = quiet(HashKind::Blake3);
        plan.tree.add_file(None, file(3 * MIB), false);
        let mut pair = orderly(plan);
        while !pair.said.iter().any(|said| line(said).contains("grant")) {
            pair.step();
        }
        pair.receiver.handle(receiver::Input::Message(lie));
        pair.drive();
        for end in [pair.receiver_end.unwrap(), pair.sender_end.unwrap()] {
            assert_eq!(end.fault.unwrap().code, FaultCode::Protocol);
        }
    }
}

#[test]
fn a_defect_of_the_driver_is_told_as_such() {
    let mut pair = orderly(quiet(HashKind::None));
    pair.sender.handle(sender::Input::Unexposed {
        region: rdcp::ids::RegionId(5),
    });
    pair.drive();
    assert_eq!(
        pair.sender_end.unwrap().fault.unwrap().code,
        FaultCode::Internal
    );
    // A lane that nobody knows is none.
    let mut pair = orderly(quiet(HashKind::None));
    pair.receiver
        .handle(receiver::Input::LaneDown { lane: LaneId(99) });
    pair.drive();
    pair.check_end();
}

/// A run of one file whose every READ over the rail meets a remote access error.
fn denied(change: bool) -> (Pair, Vec<String>) {
    let mut plan = quiet(HashKind::None);
    plan.rails = vec![1, 0];
    plan.faults.denied = 1;
    let entry = plan.tree.add_file(None, file(3 * MIB), false);
    let mut pair = orderly(plan);
    while pair.denied.is_empty() {
        assert!(pair.step());
    }
    pair.plan.tree.files.get_mut(&entry).unwrap().version += u64::from(change);
    pair.drive();
    let lines = pair.said.iter().map(line).collect();
    (pair, lines)
}

#[test]
fn a_file_that_a_rail_may_not_read_goes_on_over_tcp() {
    let (pair, said) = denied(false);
    pair.check_end();
    let about_it = |line: &&String| line.contains("recheck") || line.contains("digests");
    let about_it: Vec<&String> = said.iter().filter(about_it).collect();
    assert_eq!(about_it, ["receiver: recheck 0:0", "sender: digests 0:0"]);
    assert!(said.contains(&"receiver: settled 0 published 3145728".to_owned()));
    assert_eq!(pair.denied[&EntryId(0)], 1);
    assert!(pair.stood_in >= 2, "what was lost and came later avoids it");
}

#[test]
fn a_changed_file_is_found_without_a_hash_too() {
    let (_, said) = denied(true);
    assert!(said.contains(&"sender: entry 0 failed SourceChanged".to_owned()));
    assert!(said.contains(&"receiver: settled 0 failed SourceChanged".to_owned()));
}
