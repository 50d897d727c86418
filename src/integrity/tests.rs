//! Chunks, orders and pieces of all kinds against one-shot hashes, and against the tools that a
//! person would check with.

use std::io::Write;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::*;
use crate::units::{ChunkIndex, ChunkRange, ChunkSize};
use crate::wire::message::HashKind;

const SIZE: ChunkSize = ChunkSize::MIN;
const CHUNK: usize = 64 << 10;
const EDGES: [usize; 19] = [
    0,
    1,
    63,
    64,
    65,
    1023,
    1024,
    1025,
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    2 * CHUNK - 1,
    2 * CHUNK,
    2 * CHUNK + 1,
    3 * CHUNK + 1,
    4 * CHUNK,
    5 * CHUNK + 1,
    7 * CHUNK + 1024,
    8 * CHUNK + 1,
];

fn file(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

fn chunk_of(file: &[u8], index: usize) -> &[u8] {
    &file[(index * CHUNK).min(file.len())..((index + 1) * CHUNK).min(file.len())]
}

/// Hashes in pieces whose lengths repeat `pieces`.
fn hash(plan: &HashPlan, bytes: &[u8], pieces: &[usize]) -> Value {
    let mut hasher = ChunkHasher::new(plan);
    let mut rest = bytes;
    for &len in pieces.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at(len.min(rest.len()));
        hasher.update(piece);
        rest = after;
    }
    hasher.finish().expect("there is a plan")
}

/// Hashes as a socket would let it: shown more and more of the chunk, in steps of `pieces`.
fn hash_landing(plan: &HashPlan, bytes: &[u8], pieces: &[usize]) -> Value {
    let mut hasher = ChunkHasher::new(plan);
    let mut landed = 0;
    for &len in pieces.iter().cycle() {
        landed = (landed + len).min(bytes.len());
        hasher.catch_up(&bytes[..landed]);
        if landed == bytes.len() {
            break;
        }
    }
    hasher.finish().expect("there is a plan")
}

fn blake3_plan(index: usize, file: &[u8]) -> HashPlan {
    let chunk = ChunkIndex(index as u64);
    HashPlan::Blake3 {
        chunk,
        chunk_size: SIZE,
        file_len: file.len() as u64,
    }
}

/// The states before each chunk, and the digest.
fn sha256_states(file: &[u8]) -> (Vec<Sha256State>, Value) {
    let mut ahead = Sha256Ahead::new();
    let mut states = vec![Sha256State::INITIAL];
    states.extend(file.chunks(CHUNK).filter_map(|chunk| ahead.update(chunk)));
    (states, ahead.finish())
}

fn check_blake3(file: &[u8], order: &[usize], pieces: &[usize]) {
    let mut root = RootBuilder::new(SIZE, file.len() as u64);
    for &index in order {
        assert_eq!(root.finish().is_some(), file.is_empty());
        let value = hash(&blake3_plan(index, file), chunk_of(file, index), pieces);
        root.add(ChunkIndex(index as u64), value).unwrap();
    }
    assert_eq!(
        root.finish(),
        Some(blake3::hash(file).into()),
        "{} bytes",
        file.len()
    );
}

fn check_sha256(file: &[u8], order: &[usize], pieces: &[usize]) {
    let (states, digest) = sha256_states(file);
    let expected: Value = Sha256::digest(file).into();
    assert_eq!(digest, expected);
    for &index in order {
        let start = (index * CHUNK) as u64;
        let plan = HashPlan::Sha256 {
            before: states[index],
            start,
            file_len: file.len() as u64,
        };
        let after = if index + 1 == order.len() {
            digest
        } else {
            states[index + 1].0
        };
        assert_eq!(
            hash(&plan, chunk_of(file, index), pieces),
            after,
            "chunk {index}"
        );
    }
}

fn chunks_of(len: usize) -> usize {
    len.div_ceil(CHUNK).max(1)
}

#[test]
fn the_edges_of_blocks_and_chunks_give_the_standard_digests() {
    for len in EDGES {
        let file = file(len, 1);
        let forwards: Vec<_> = (0..chunks_of(len)).collect();
        let backwards: Vec<_> = forwards.iter().rev().copied().collect();
        for order in [forwards, backwards] {
            check_blake3(&file, &order, &[usize::MAX]);
            check_sha256(&file, &order, &[usize::MAX]);
        }
    }
}

#[test]
fn every_order_of_seven_chunks_gives_the_standard_digest() {
    fn permute(order: &mut Vec<usize>, fixed: usize, check: &mut impl FnMut(&[usize])) {
        if fixed == order.len() {
            return check(order);
        }
        for other in fixed..order.len() {
            order.swap(fixed, other);
            permute(order, fixed + 1, check);
            order.swap(fixed, other);
        }
    }
    let file = file(6 * CHUNK + 1, 2);
    let values: Vec<_> = (0..7)
        .map(|i| hash(&blake3_plan(i, &file), chunk_of(&file, i), &[CHUNK]))
        .collect();
    permute(&mut (0..7).collect(), 0, &mut |order| {
        let mut root = RootBuilder::new(SIZE, file.len() as u64);
        for &index in order {
            root.add(ChunkIndex(index as u64), values[index]).unwrap();
        }
        assert_eq!(root.finish(), Some(blake3::hash(&file).into()), "{order:?}");
    });
}

#[test]
fn every_chunk_size_gives_the_standard_digest() {
    let file = file((33 << 20) + 5, 3);
    for log2 in ChunkSize::MIN.log2()..=ChunkSize::MAX.log2() {
        let size = ChunkSize::from_log2(log2).unwrap();
        let mut root = RootBuilder::new(size, file.len() as u64);
        proofs(HashKind::Blake3, size, &file, |chunk, value| {
            root.add(chunk, value).unwrap()
        });
        assert_eq!(root.finish(), Some(blake3::hash(&file).into()), "{size:?}");
    }
}

#[test]
fn proofs_of_files_in_memory_are_those_of_their_chunks() {
    for len in EDGES {
        let file = file(len, 4);
        let mut told = Vec::new();
        proofs(HashKind::Blake3, SIZE, &file, |chunk, value| {
            told.push((chunk, value))
        });
        let expected: Vec<_> = (0..chunks_of(len))
            .map(|i| {
                (
                    ChunkIndex(i as u64),
                    hash(&blake3_plan(i, &file), chunk_of(&file, i), &[CHUNK]),
                )
            })
            .collect();
        assert_eq!(told, expected, "{len}");

        told.clear();
        proofs(HashKind::Sha256, SIZE, &file, |chunk, value| {
            told.push((chunk, value))
        });
        let (states, root) = sha256_states(&file);
        let expected: Vec<_> = (0..chunks_of(len))
            .map(|i| {
                let last = i + 1 == chunks_of(len);
                (
                    ChunkIndex(i as u64),
                    if last { root } else { states[i + 1].0 },
                )
            })
            .collect();
        assert_eq!(told, expected, "{len}");

        proofs(HashKind::None, SIZE, &file, |_, _| {
            panic!("nothing is proved")
        });
        for kind in [HashKind::Blake3, HashKind::Sha256] {
            let mut hasher = FileHasher::new(kind).unwrap();
            file.chunks(1000).for_each(|piece| hasher.update(piece));
            assert_eq!(Some(hasher.finish()), digest(kind, &file), "{len}");
        }
    }
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        proptest::sample::select(EDGES.to_vec()),
        0..4096_usize,
        0..12 * CHUNK,
        (1..12_usize, 0..3_usize).prop_map(|(chunks, tail)| chunks * CHUNK + tail),
    ]
}

fn files_and_orders() -> impl Strategy<Value = (Vec<u8>, Vec<usize>)> {
    (lengths(), any::<u64>()).prop_flat_map(|(len, seed)| {
        let order = Just((0..chunks_of(len)).collect::<Vec<_>>()).prop_shuffle();
        (Just(file(len, seed)), order)
    })
}

fn pieces() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(
        prop_oneof![1..200_usize, 1..70_000_usize, Just(16 << 10)],
        1..6,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn blake3_of_any_order_and_pieces((file, order) in files_and_orders(), pieces in pieces()) {
        check_blake3(&file, &order, &pieces);
    }

    #[test]
    fn sha256_of_any_order_and_pieces((file, order) in files_and_orders(), pieces in pieces()) {
        check_sha256(&file, &order, &pieces);
    }

    #[test]
    fn landing_bytes_give_the_value_of_the_chunk(
        len in prop_oneof![0..4 * CHUNK, Just(4 * CHUNK), 4 * CHUNK..9 * CHUNK],
        pieces in pieces(),
    ) {
        let chunk_size = ChunkSize::from_bytes(4 * CHUNK as u64).unwrap();
        let file = file(len, 7);
        let file_len = len as u64;
        for (index, bytes) in file.chunks(4 * CHUNK).enumerate() {
            let chunk = ChunkIndex(index as u64);
            let start = (index * 4 * CHUNK) as u64;
            for plan in [
                HashPlan::Blake3 { chunk, chunk_size, file_len },
                HashPlan::Sha256 { before: Sha256State::INITIAL, start, file_len },
            ] {
                let expected = hash(&plan, bytes, &[usize::MAX]);
                prop_assert_eq!(hash_landing(&plan, bytes, &pieces), expected);
            }
        }
    }

    #[test]
    fn holes_are_chunks_of_zeros(
        len in lengths(),
        cuts in proptest::collection::vec((1..5_u64, any::<bool>()), 1..12),
        shuffle in any::<u64>(),
    ) {
        // Runs of chunks, each a hole or data, told in some order.
        let chunks = chunks_of(len) as u64;
        let mut bytes = file(len, 5);
        let mut runs = Vec::new();
        let mut start = 0;
        for &(count, hole) in cuts.iter().cycle() {
            let end = (start + count).min(chunks);
            if hole {
                let range = SIZE.range(ChunkIndex(start), len as u64).start as usize
                    ..SIZE.range(ChunkIndex(end - 1), len as u64).end as usize;
                bytes[range].fill(0);
            }
            runs.push((ChunkRange { start, end }, hole));
            start = end;
            if start == chunks {
                break;
            }
        }
        let turn = shuffle as usize % runs.len();
        runs.rotate_left(turn);
        if shuffle & 1 == 1 {
            runs.reverse();
        }
        let mut root = RootBuilder::new(SIZE, len as u64);
        for (range, hole) in runs {
            if hole {
                root.add_hole(range).unwrap();
                prop_assert!(root.add_hole(range).is_err());
                continue;
            }
            for index in range.start..range.end {
                let bytes_of_chunk = chunk_of(&bytes, index as usize);
                let value = hash(&blake3_plan(index as usize, &bytes), bytes_of_chunk, &[CHUNK]);
                root.add(ChunkIndex(index), value).unwrap();
            }
        }
        prop_assert_eq!(root.missing(), 0);
        prop_assert_eq!(root.finish(), Some(blake3::hash(&bytes).into()));
    }

    #[test]
    fn one_flipped_bit_is_seen(
        (file, order) in files_and_orders(), bit in any::<prop::sample::Index>(),
    ) {
        prop_assume!(!file.is_empty());
        let index = order[0];
        let good = chunk_of(&file, index);
        let mut bad = good.to_vec();
        let bit = bit.index(bad.len() * 8);
        bad[bit / 8] ^= 1 << (bit % 8);
        let plan = blake3_plan(index, &file);
        prop_assert_ne!(hash(&plan, good, &[CHUNK]), hash(&plan, &bad, &[CHUNK]));
        let (states, _) = sha256_states(&file);
        let start = (index * CHUNK) as u64;
        let plan = HashPlan::Sha256 { before: states[index], start, file_len: file.len() as u64 };
        prop_assert_ne!(hash(&plan, good, &[CHUNK]), hash(&plan, &bad, &[CHUNK]));
    }
}

/// Runs `tool -c` over files of all lengths in [`EDGES`] with the digests computed here.
fn check_with_tool(tool: &str, digest_of: impl Fn(&[u8]) -> Value) {
    let directory = tempfile::tempdir().unwrap();
    let mut list = String::new();
    for len in EDGES {
        let file = file(len, 6);
        let name = format!("file-{len}");
        std::fs::write(directory.path().join(&name), &file).unwrap();
        list += &format!("{}  {name}\n", Hex(digest_of(&file)));
    }
    let mut child = Command::new(tool)
        .args(["-c", "-"])
        .current_dir(directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(list.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}");
    assert_eq!(
        report.lines().filter(|line| line.ends_with(": OK")).count(),
        EDGES.len(),
        "{report}"
    );
}

#[test]
fn sha256sum_agrees() {
    check_with_tool("sha256sum", |file| {
        let mut last = None;
        proofs(HashKind::Sha256, SIZE, file, |_, value| last = Some(value));
        last.unwrap()
    });
}

#[test]
fn b3sum_agrees() {
    let missing = Command::new("b3sum")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_err();
    if missing {
        assert!(
            std::env::var_os("RDCP_REQUIRE_B3SUM").is_none_or(|value| value != "1"),
            "RDCP_REQUIRE_B3SUM=1, but b3sum is not installed"
        );
        eprintln!("not checked against b3sum: it is not installed (apt-get install b3sum)");
        return;
    }
    check_with_tool("b3sum", |file| {
        let mut root = RootBuilder::new(SIZE, file.len() as u64);
        proofs(HashKind::Blake3, SIZE, file, |chunk, value| {
            root.add(chunk, value).unwrap()
        });
        root.finish().unwrap()
    });
}
