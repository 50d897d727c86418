//! The RDMA libraries, found when the program runs: one binary starts with and without them.
//!
//! rdma-sys declares their functions as symbols that the linker must find, and a program that uses
//! one of those does not start where libibverbs.so.1 is missing. So only types are taken from
//! rdma-sys; each function that is called here is looked up by name, once, and kept in a table. The
//! compiler checks the table's signatures against rdma-sys's declarations, which leaves no trace in
//! the binary. A call of a declared symbol would bring the dependency back: a test looks for that.
#![allow(unsafe_code)] // Functions of a shared library are raw addresses.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::mem;
use std::ptr::NonNull;
use std::sync::OnceLock;

use libc::sockaddr;
use rdma_sys::{
    __be16, __be64, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, rdma_cm_event,
    rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_port_space,
};

use super::gid::RawGidEntry;

/// Why RDMA, or a part of it, can't be used in this process. Says what to install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    text: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Unavailable {}

/// Whether libibverbs is there. Looked up once: what is installed later counts after a restart.
pub fn library() -> Result<(), Unavailable> {
    verbs().map(|_| ())
}

/// Whether librdmacm is there. Only [`super::cm`] needs it.
pub fn cm_library() -> Result<(), Unavailable> {
    cm().map(|_| ())
}

pub(super) fn verbs() -> Result<&'static Verbs, Unavailable> {
    static TABLE: OnceLock<Result<Verbs, Unavailable>> = OnceLock::new();
    TABLE
        .get_or_init(|| Verbs::load(c"libibverbs.so.1", "libibverbs1 ibverbs-providers"))
        .as_ref()
        .map_err(Clone::clone)
}

pub(super) fn cm() -> Result<&'static Cm, Unavailable> {
    static TABLE: OnceLock<Result<Cm, Unavailable>> = OnceLock::new();
    TABLE
        .get_or_init(|| Cm::load(c"librdmacm.so.1", "librdmacm1"))
        .as_ref()
        .map_err(Clone::clone)
}

/// A table of functions: `declared` ones stand in rdma-sys and are checked against it.
macro_rules! table {
    (
        $(#[$doc:meta])* $table:ident,
        declared { $(fn $name:ident($($arg:ty),*) $(-> $ret:ty)?;)* }
        own { $(fn $own:ident($($own_arg:ty),*) $(-> $own_ret:ty)?;)* }
    ) => {
        $(#[$doc])*
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(pub(super) $own: unsafe extern "C" fn($($own_arg),*) $(-> $own_ret)?,)*
        }

        impl $table {
            fn load(file: &'static CStr, packages: &str) -> Result<Self, Unavailable> {
                let library = Library::open(file, packages)?;
                Ok(Self {
                    $($name: {
                        let address = library.symbol(concat!(stringify!($name), "\0"))?;
                        // SAFETY: the address is that of the function with this name, and C's
                        // prototype is what rdma-sys read from the library's header, to which the
                        // signature was compared below.
                        unsafe {
                            mem::transmute::<
                                NonNull<c_void>,
                                unsafe extern "C" fn($($arg),*) $(-> $ret)?,
                            >(address)
                        }
                    },)*
                    $($own: {
                        let address = library.symbol(concat!(stringify!($own), "\0"))?;
                        // SAFETY: as above; the signature was written from the C header.
                        unsafe {
                            mem::transmute::<
                                NonNull<c_void>,
                                unsafe extern "C" fn($($own_arg),*) $(-> $own_ret)?,
                            >(address)
                        }
                    },)*
                })
            }
        }

        // Evaluated by the compiler alone: no reference to the symbols gets into an object file.
        $(const _: unsafe extern "C" fn($($arg),*) $(-> $ret)? = rdma_sys::$name;)*
    };
}

table! {
    /// libibverbs. Whoever calls one of these meets what its manual page asks for.
    Verbs,
    declared {
        fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(*mut *mut ibv_device);
        fn ibv_get_device_guid(*mut ibv_device) -> __be64;
        fn ibv_open_device(*mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(*mut ibv_context) -> c_int;
        fn ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(*mut ibv_async_event);
        fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        fn ibv_query_pkey(*mut ibv_context, u8, c_int, *mut __be16) -> c_int;
        fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(
            *mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int
        ) -> *mut ibv_cq;
        fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
        fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut ibv_cq, c_uint);
        fn ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        fn ibv_destroy_qp(*mut ibv_qp) -> c_int;
    }
    own {
        fn _ibv_query_gid_table(*mut ibv_context, *mut RawGidEntry, usize, u32, usize) -> isize;
    }
}

table! {
    /// librdmacm. Whoever calls one of these meets what its manual page asks for.
    Cm,
    declared {
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_destroy_event_channel(*mut rdma_event_channel);
        fn rdma_create_id(
            *mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, rdma_port_space::Type
        ) -> c_int;
        fn rdma_destroy_id(*mut rdma_cm_id) -> c_int;
        fn rdma_bind_addr(*mut rdma_cm_id, *mut sockaddr) -> c_int;
        fn rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_resolve_addr(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
        fn rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        fn rdma_establish(*mut rdma_cm_id) -> c_int;
        fn rdma_disconnect(*mut rdma_cm_id) -> c_int;
        fn rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        fn rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
        fn rdma_init_qp_attr(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
        fn rdma_get_src_port(*mut rdma_cm_id) -> __be16;
    }
    own {}
}

/// A shared library that stays loaded for the life of the process.
struct Library {
    file: &'static CStr,
    handle: NonNull<c_void>,
}

impl Library {
    fn open(file: &'static CStr, packages: &str) -> Result<Self, Unavailable> {
        // SAFETY: the name is a C string; what the library's initialisers do is what every
        // program that links to it accepts.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let name = file.to_string_lossy();
        let handle = NonNull::new(handle).ok_or_else(|| {
            let reason = loader_error();
            let missing = format!("{name}: cannot open shared object file");
            let text = if reason.starts_with(&missing) {
                format!("{name} is not installed; apt-get install {packages}")
            } else {
                format!("{name} can't be loaded: {reason}; apt-get install {packages}")
            };
            Unavailable { text }
        })?;
        Ok(Self { file, handle })
    }

    /// `name` ends in NUL.
    fn symbol(&self, name: &str) -> Result<NonNull<c_void>, Unavailable> {
        let name_text = name.trim_end_matches('\0');
        // SAFETY: the handle is open, and the name is ended by NUL by the table's macro.
        let address = unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr().cast::<c_char>()) };
        NonNull::new(address).ok_or_else(|| Unavailable {
            text: format!(
                "{} has no {name_text}: rdma-core is older than version 32; upgrade it",
                self.file.to_string_lossy()
            ),
        })
    }
}

fn loader_error() -> String {
    // SAFETY: takes nothing; the answer is null or a C string that is good until this thread's next
    // call of the loader, and is copied before.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown error".to_owned();
    }
    // SAFETY: not null, see above.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let error = Library::open(c"libibverbs-not-there.so.1", "libibverbs1")
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            "libibverbs-not-there.so.1 is not installed; apt-get install libibverbs1"
        );
    }

    #[test]
    fn a_missing_function_is_named() {
        let library = Library::open(c"libc.so.6", "libc6").ok().unwrap();
        assert!(library.symbol("open\0").is_ok());
        let error = library.symbol("ibv_not_there\0").unwrap_err();
        assert!(
            error.to_string().contains("has no ibv_not_there"),
            "{error}"
        );
    }
}
