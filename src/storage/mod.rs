//! Files: where a sender's bytes come from and where a receiver's bytes go.
//!
//! In: directories that are held open, names, and what the engine decided. Out: manifest entries,
//! open files, packs, published files, and faults in words. Everything is reached relative to a
//! held directory and nothing follows a symlink but the very path that was named. Nothing here
//! knows connections, the protocol's order, or threads: calls block and are made from workers.

pub mod at;
pub mod error;
pub mod identity;
pub mod root;
pub mod status;
pub mod xattr;

pub use error::StorageError;
pub use identity::Identity;
pub use root::{LastSymlink, Root};
pub use status::Status;
