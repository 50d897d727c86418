//! Signals whose default is to end the process, and that must not before somebody listens for them.
//!
//! In: nothing. Out: the process ignores SIGUSR1 until a handler is put in its place. What the signal is
//! for is not known here.

#![allow(unsafe_code)] // A call of the C library.

/// Ignores SIGUSR1 from now on. For programs, as the first thing they do: a library has no business with
/// its process's signals.
pub fn ignore_user_signal() {
    // SAFETY: signal(2) may be called at any time with a valid signal and SIG_IGN, which runs no code of
    // ours in a handler. It fails for signals that don't exist only, so its answer says nothing.
    unsafe {
        libc::signal(libc::SIGUSR1, libc::SIG_IGN);
    }
}
