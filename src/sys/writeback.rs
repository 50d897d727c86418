//! Starting the kernel's writeback of a file without waiting for it: `sync_file_range(2)`.
//!
//! In: an open file. Out: nothing; a later `fsync` is what makes bytes durable and tells errors.
#![allow(unsafe_code)] // The call has no safe wrapper in the crates used here.

use std::os::fd::{AsFd, AsRawFd};

/// Asks the kernel to begin writing the file's dirty pages to its device. Only a hint: where it is
/// not possible nothing happens, because the `fsync` that must follow does the same work.
pub(crate) fn start_writeback(file: impl AsFd) {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: `fd` is open for the length of the call, as `file` is borrowed; the call takes
    // numbers only, and length 0 means up to the end of the file.
    let _ = unsafe { libc::sync_file_range(fd, 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}
