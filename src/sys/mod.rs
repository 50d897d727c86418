//! The only room for unsafe code.
//!
//! Policy: each area is one file that wraps what the kernel or a device can touch behind types that
//! can't be misused; every unsafe block names the requirements it meets and where they are met.
//! Nothing here knows an idea of rdcp above "register, post, poll, map".
//!
//! - `reactor`: what a lane waits on; `ring` (unsafe: submission entries name memory) and
//!   `readiness` (safe) are its two implementations.
//! - `heap` (unsafe: a call of the C library): freed memory goes back to the system.
//! - `quiet` (unsafe: a call of the C library): a signal that is ignored.
//! - `startup` (unsafe: it runs before `main`): whether the process has a standard output.
//! - [`verbs`]: RDMA devices, memory regions and queue pairs; its own page tells its files.

pub(crate) mod heap;
pub(crate) mod interfaces;
pub mod quiet;
pub(crate) mod reactor;
pub(crate) mod readiness;
pub(crate) mod ring;
pub mod startup;
pub mod verbs;

pub(crate) mod writeback;

/// Fills an array from the kernel's random source.
///
/// # Panics
/// If the kernel has no random source, without which nothing here would be safe.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .expect("getrandom(2) works on every kernel that has io_uring or TLS peers");
    bytes
}
