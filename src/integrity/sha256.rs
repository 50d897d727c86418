//! SHA-256 as a chain that can be entered at any block: states go in and out between blocks, so
//! that a chunk can be proved by whoever knows the state before it.

use sha2::block_api::compress256;

const BLOCK_BYTES: usize = 64;
const LENGTH_BYTES: usize = 8;
/// FIPS 180-4, section 5.3.3.
const INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// The compression state after a whole number of 64-byte blocks, before any padding: eight words,
/// big-endian, as a digest has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sha256State(pub [u8; 32]);

impl Sha256State {
    /// The state before a file's first byte.
    pub const INITIAL: Self = Self(bytes_of(INITIAL));
}

/// Hashes a file front to back and tells the state between its chunks: the sender's side of
/// SHA-256. `finish` gives the last chunk's proof, the file's digest.
#[derive(Clone)]
pub struct Sha256Ahead(Sha256Stream);

impl Sha256Ahead {
    /// Before a file's first byte.
    pub fn new() -> Self {
        Self(Sha256Stream::resume(Sha256State::INITIAL, 0))
    }

    /// Hashes the bytes that follow. Gives the state after them if they end with a block, as those
    /// of every chunk but a file's last do.
    pub fn update(&mut self, bytes: &[u8]) -> Option<Sha256State> {
        self.0.update(bytes);
        self.0.state()
    }

    /// Bytes hashed so far.
    pub fn position(&self) -> u64 {
        self.0.position
    }

    /// The file's digest, if it ends here.
    pub fn finish(self) -> [u8; 32] {
        self.0.finish()
    }
}

impl Default for Sha256Ahead {
    fn default() -> Self {
        Self::new()
    }
}

/// The chain, from any block on.
#[derive(Clone)]
pub(super) struct Sha256Stream {
    state: [u32; 8],
    /// Bytes of the file up to here, those in `tail` included.
    position: u64,
    /// The started block; its first `position % 64` bytes count.
    tail: [u8; BLOCK_BYTES],
}

impl Sha256Stream {
    /// Goes on after `before`, at byte `position`, a multiple of 64.
    pub(super) fn resume(before: Sha256State, position: u64) -> Self {
        debug_assert!(position.is_multiple_of(BLOCK_BYTES as u64));
        Self {
            state: words_of(before.0),
            position,
            tail: [0; BLOCK_BYTES],
        }
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        let held = self.held();
        self.position = self.position.wrapping_add(bytes.len() as u64);
        if held > 0 {
            let (head, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - held));
            self.tail[held..held + head.len()].copy_from_slice(head);
            if held + head.len() < BLOCK_BYTES {
                return;
            }
            compress256(&mut self.state, &[self.tail]);
            bytes = rest;
        }
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        compress256(&mut self.state, blocks);
        self.tail[..rest.len()].copy_from_slice(rest);
    }

    /// The state here, if no block is half full.
    pub(super) fn state(&self) -> Option<Sha256State> {
        (self.held() == 0).then(|| Sha256State(bytes_of(self.state)))
    }

    /// Pads as at the end of a file of `position` bytes.
    pub(super) fn finish(mut self) -> [u8; 32] {
        let held = self.held();
        let bits = self.position.wrapping_mul(8).to_be_bytes();
        self.tail[held] = 0x80;
        self.tail[held + 1..].fill(0);
        if held + 1 + LENGTH_BYTES > BLOCK_BYTES {
            compress256(&mut self.state, &[self.tail]);
            self.tail.fill(0);
        }
        self.tail[BLOCK_BYTES - LENGTH_BYTES..].copy_from_slice(&bits);
        compress256(&mut self.state, &[self.tail]);
        bytes_of(self.state)
    }

    fn held(&self) -> usize {
        // Below 64, so the cast keeps the value.
        #[allow(clippy::cast_possible_truncation)]
        let held = (self.position % BLOCK_BYTES as u64) as usize;
        held
    }
}

const fn bytes_of(words: [u32; 8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    let mut i = 0;
    while i < 32 {
        bytes[i] = words[i / 4].to_be_bytes()[i % 4];
        i += 1;
    }
    bytes
}

fn words_of(bytes: [u8; 32]) -> [u32; 8] {
    let (words, _) = bytes.as_chunks::<4>();
    std::array::from_fn(|i| u32::from_be_bytes(words[i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    #[test]
    fn every_padding_case_is_the_standard_one() {
        let bytes = [0x5a; 260];
        for len in 0..bytes.len() {
            let mut ahead = Sha256Ahead::new();
            ahead.update(&bytes[..len]);
            let expected: [u8; 32] = Sha256::digest(&bytes[..len]).into();
            assert_eq!(ahead.finish(), expected, "{len} bytes");
        }
    }

    #[test]
    fn a_state_exists_only_between_blocks() {
        let mut ahead = Sha256Ahead::new();
        assert_eq!(ahead.update(&[]), Some(Sha256State::INITIAL));
        assert_eq!(ahead.update(&[1; 63]), None);
        assert!(ahead.update(&[1; 1]).is_some());
        assert_eq!(ahead.position(), 64);
    }
}
