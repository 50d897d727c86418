//! The two digests that storage computes itself: proofs of small files in memory, and sums.

use std::io;

use sha2::block_api::compress256;
use sha2::{Digest, Sha256};

use crate::units::{ChunkIndex, ChunkSize};
use crate::wire::message::HashKind;

type Value = [u8; 32];

const SUM_READ_BYTES: usize = 1 << 20;
/// FIPS 180-4, section 5.3.3.
const SHA256_INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// Tells the proof of each chunk of a file that lies in memory, in order; an empty file has one.
pub(super) fn proofs(
    kind: HashKind,
    chunk_size: ChunkSize,
    file: &[u8],
    mut tell: impl FnMut(ChunkIndex, Value),
) {
    let chunks = chunk_size.count(file.len() as u64);
    let mut state = SHA256_INITIAL;
    for (i, bytes) in (0..).zip(file.chunks(1 << chunk_size.log2())) {
        let value = match kind {
            HashKind::None => return,
            _ if chunks == 1 => break,
            HashKind::Blake3 => subtree(bytes, i * chunk_size.bytes()),
            HashKind::Sha256 if i + 1 == chunks => Sha256::digest(file).into(),
            HashKind::Sha256 => {
                compress256(&mut state, bytes.as_chunks::<64>().0);
                let mut value = [0; 32];
                for (bytes, word) in value.as_chunks_mut::<4>().0.iter_mut().zip(state) {
                    *bytes = word.to_be_bytes();
                }
                value
            }
        };
        tell(ChunkIndex(i), value);
    }
    match kind {
        _ if chunks > 1 => {}
        HashKind::Blake3 => tell(ChunkIndex(0), blake3::hash(file).into()),
        HashKind::Sha256 => tell(ChunkIndex(0), Sha256::digest(file).into()),
        HashKind::None => {}
    }
}

fn subtree(bytes: &[u8], offset: u64) -> Value {
    use blake3::hazmat::HasherExt as _;
    blake3::Hasher::new()
        .set_input_offset(offset)
        .update(bytes)
        .finalize_non_root()
}

/// The digest of what `read_at` gives: `len` bytes, front to back.
pub(super) fn sum_file(
    read_at: impl Fn(&mut [u8], u64) -> io::Result<usize>,
    len: u64,
    kind: HashKind,
) -> io::Result<Value> {
    let mut blake3 = blake3::Hasher::new();
    let mut sha256 = Sha256::new();
    let room = usize::try_from(len)
        .unwrap_or(usize::MAX)
        .clamp(1, SUM_READ_BYTES);
    let mut buffer = vec![0; room];
    let mut position = 0;
    while position < len {
        let want = usize::try_from(len - position)
            .unwrap_or(usize::MAX)
            .min(room);
        let count = read_at(&mut buffer[..want], position)?;
        match (count, kind) {
            (0, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            (_, HashKind::Blake3) => drop(blake3.update(&buffer[..count])),
            (_, HashKind::Sha256) => sha256.update(&buffer[..count]),
            (_, HashKind::None) => {}
        }
        position += count as u64;
    }
    match kind {
        HashKind::Blake3 => Ok(blake3.finalize().into()),
        HashKind::Sha256 => Ok(sha256.finalize().into()),
        HashKind::None => Err(io::ErrorKind::InvalidInput.into()),
    }
}
