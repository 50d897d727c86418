//! Digests: what proves a chunk, and how the proofs of chunks become a file's digest.
//!
//! Bytes flow in, in pieces of any size, from whoever has them hot; 32-byte values flow out. Every
//! file has a plain, standard digest that `b3sum` or `sha256sum` prints, and every chunk of it is
//! proved alone:
//!
//! - BLAKE3: a chunk is a subtree of the file's hash tree. [`ChunkHasher`] computes its value in any
//!   order and on any thread; [`RootBuilder`] merges the values to the file's digest. A file of at
//!   most one chunk has one value, its digest.
//! - SHA-256: a chain, so the sender goes ahead front to back ([`Sha256Ahead`]) and tells the
//!   [`Sha256State`] between chunks; from the state before a chunk and its bytes, [`ChunkHasher`]
//!   computes the state after it. After the last chunk that is the file's digest.
//!
//! Nothing here knows peers, transports or where bytes are stored, and nothing here compares: what
//! a mismatch means is decided by who asked.

mod chunk;
mod file;
mod hex;
mod root;
mod sha256;
mod sum;

#[cfg(test)]
// Lengths in tests fit every integer.
#[allow(clippy::cast_possible_truncation)]
mod tests;

pub use chunk::{ChunkHasher, HashPlan};
pub use file::{FileHasher, digest, proofs};
pub use hex::Hex;
pub use root::{RootBuilder, RootError};
pub use sha256::{Sha256Ahead, Sha256State};
pub use sum::sum_file;

/// A file's digest, or what proves one chunk of it.
pub type Value = [u8; 32];
