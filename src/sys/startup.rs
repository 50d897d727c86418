//! What has to be looked at before the program's own first line: whether standard output was open.
//!
//! In: the process as it was started. Out: one fact. Rust opens `/dev/null` in the place of a missing
//! standard stream before `main` begins, and from then on a file that is written to a closed standard
//! output disappears without an error. So this looks earlier, by an entry in `.init_array`, which the
//! loader runs before. It knows nothing of who asks.

#![allow(unsafe_code)] // A link section is an unsafe attribute.

use std::sync::atomic::{AtomicBool, Ordering};

static STDOUT_MISSING: AtomicBool = AtomicBool::new(false);

extern "C" fn look() {
    // F_GETFD has no effect, and EBADF is its only answer for a descriptor that is not open.
    if rustix::io::fcntl_getfd(rustix::stdio::stdout()) == Err(rustix::io::Errno::BADF) {
        STDOUT_MISSING.store(true, Ordering::Relaxed);
    }
}

// SAFETY: the section holds pointers to functions of the C calling convention that are called once
// with arguments that they may ignore (System V gABI, "Initialization and Termination Functions").
// `look` is one: it takes none, does not unwind, and uses nothing that is set up later, but one
// system call and one atomic.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Whether the process was started without a standard output, as by `>&-`.
pub fn stdout_was_missing() -> bool {
    STDOUT_MISSING.load(Ordering::Relaxed)
}
