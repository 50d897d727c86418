//! How C answers, in Rust's words: structures that start as zeros, return codes, null pointers.
//!
//! Nothing here knows a verb.
#![allow(unsafe_code)] // Zeroed C structures are made here, once.

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;

/// A C structure of which all zero bits are a value.
///
/// # Safety
/// That is so: it has only integers, arrays and unions of them, raw pointers and optional functions.
pub(super) unsafe trait Plain: Sized {
    /// All bits zero.
    fn zeroed() -> Self {
        // SAFETY: whoever implemented the trait has promised it.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! plain {
    ($($name:ident),* $(,)?) => {
        // SAFETY: C structures of integers, arrays, pointers, optional functions, and unions of
        // these; their enumerations are integers in the bindings.
        $(unsafe impl Plain for rdma_sys::$name {})*
    };
}

plain!(
    ibv_device_attr,
    ibv_device_attr_ex,
    ibv_port_attr,
    ibv_qp_attr,
    ibv_qp_init_attr,
    ibv_send_wr,
    ibv_wc,
    rdma_conn_param,
);

/// For calls that answer 0, an error number, or -1 with `errno`.
pub(super) fn check(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        // Some providers answer the number negated, as the kernel does.
        ..-1 => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        -1 => Err(io::Error::last_os_error()),
        1.. => Err(io::Error::from_raw_os_error(code)),
    }
}

/// For calls that answer -1 with `errno`, or anything else.
pub(super) fn check_errno(code: c_int) -> io::Result<()> {
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// For calls that answer null with `errno`.
pub(super) fn non_null<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

/// The text in a fixed array that C may have filled to its last byte.
pub(super) fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| byte.cast_unsigned()).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

/// The descriptor `fd` of an object that `_owner` borrows.
///
/// # Safety
/// `fd` is open for as long as the owner lives.
pub(super) unsafe fn borrow<O>(_owner: &O, fd: RawFd) -> BorrowedFd<'_> {
    // SAFETY: the caller promises it.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Makes reads of `fd` answer "nothing there" instead of waiting.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(
        fd,
        flags | rustix::fs::OFlags::NONBLOCK,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_all_kinds_become_errors() {
        assert!(check(0).is_ok());
        assert_eq!(check(12).unwrap_err().raw_os_error(), Some(12));
        assert_eq!(check(-22).unwrap_err().raw_os_error(), Some(22));
    }

    #[test]
    fn a_name_may_fill_its_array() {
        assert_eq!(text(&[b'a'.cast_signed(), 0, b'b'.cast_signed()]), "a");
        assert_eq!(text(&[b'a'.cast_signed(); 2]), "aa");
    }
}
