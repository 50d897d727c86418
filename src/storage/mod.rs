//! Files: where a sender's bytes come from and where a receiver's bytes go.
//!
//! In: directories that are held open, names, and what the engine decided. Out: manifest entries,
//! open files, packs, published files, and faults in words. Everything is reached relative to a
//! held directory and nothing follows a symlink but the very path that was named. Nothing here
//! knows connections, the protocol's order, or threads: calls block and are made from workers.

pub mod at;
pub mod cleaning;
pub mod error;
pub mod extents;
pub mod file;
pub mod filter;
pub mod identity;
pub mod operations;
pub mod root;
pub mod sink;
pub mod source;
pub mod status;
pub mod version;
pub mod xattr;

pub(crate) mod calls;
pub(crate) mod descriptors;
mod directory;
mod leftover;
mod links;
mod names;
mod open_up;
mod pack;
pub(crate) mod part_name;
mod scratch;
mod tour;
mod walk;
pub(crate) mod within;
mod writers;

pub use error::StorageError;
pub use file::{DirectIo, SinkFile, SourceFile};
pub use filter::{FilterError, Filters};
pub use identity::Identity;
pub use pack::PackFilled;
pub use root::{LastSymlink, Root};
pub use sink::{MirrorOptions, PackFile, Placed, PlacedPage, Sink, SinkOptions};
pub use source::{OpenSource, Source, SourceSpec, WalkOptions};
pub use status::Status;
pub use version::version_of;
