//! Digests: what proves a chunk, and how chunk proofs become a file's digest.
