//! Placeholder.

pub mod file;

pub use file::{DirectIo, SinkFile, SourceFile};
