//! The process's heap: what was freed goes back to the system.
//!
//! glibc keeps freed memory for the threads that freed it, for ever if something small lies above it.
//! After a crowd of peers that would be their peak. Nothing here knows what the memory was for.

#![allow(unsafe_code)] // A call of the C library.

/// Gives freed memory back to the system, where the C library can. May take some milliseconds.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim may be called from any thread at any time (malloc_trim(3): MT-Safe); it
    // takes the arenas' own locks and gives back pages without anything allocated in them only.
    unsafe {
        libc::malloc_trim(0);
    }
}
