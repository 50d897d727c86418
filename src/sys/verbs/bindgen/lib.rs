//! bindgen 0.72 under the version that rdma-sys asks for; the manifest says why.

pub use current::*;
