//! The library libibverbs. It is loaded once, when RDMA is first requested, so the program also runs on
//! machines without the library.
//!
//! This file is on the `unsafe` list. Any thread may use the library. This module does not depend on devices.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io;
use std::sync::OnceLock;

use super::ffi::*;

/// The library's file, with the version of the interface that `ffi.rs` describes. The version has been the
/// same since 2005.
const NAME: &str = "libibverbs.so.1";

/// The error of RDMA that was requested on a machine whose library is missing or unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The loader found no library, or a library in which a required function is missing.
    #[error(
        "RDMA needs {name}, which cannot be loaded: {why}; install the library and the drivers of NICs (Debian, Ubuntu: apt-get install libibverbs1 ibverbs-providers; Fedora: dnf install libibverbs), or use shared memory"
    )]
    Missing {
        /// The library's file.
        name: &'static str,
        /// The loader's message.
        why: String,
    },
    /// `ibv_fork_init` failed, so a fork would break transfers.
    #[error(
        "libibverbs cannot be made safe against fork (ibv_fork_init: {why}); another library of this process used RDMA before: unset RDMAV_HUGEPAGES_SAFE, or load phub first"
    )]
    Fork {
        /// The error number in words.
        why: String,
    },
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of a library, which stays loaded.
        pub(in crate::verbs) struct Ibverbs {
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
            /// `None` if the library is older than rdma-core 28.
            pub ibv_reg_mr_iova2: Option<RegMrIova2>,
            /// `None` if the library is older than rdma-core 34.
            pub ibv_reg_dmabuf_mr: Option<RegDmaBuf>,
            /// `None` if the library is older than rdma-core 35.
            ibv_is_fork_initialized: Option<unsafe extern "C" fn() -> c_int>,
            _library: libloading::Library,
        }

        /// The functions, as their manual pages describe them.
        #[allow(clippy::missing_safety_doc)]
        impl Ibverbs {
            /// Loads a library, and finds all functions in it.
            ///
            /// # Safety
            /// The library's functions of these names must have these types. The library's initialisers must
            /// have no requirements.
            pub unsafe fn new(file: &str) -> Result<Self, libloading::Error> {
                // SAFETY: the caller guarantees it.
                let library = unsafe { libloading::Library::new(file) }?;
                Ok(Ibverbs {
                    $(
                        // SAFETY: as above.
                        $name: unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                            .map(|symbol| *symbol)?,
                    )*
                    // SAFETY: as above.
                    ibv_reg_mr_iova2: unsafe { library.get(b"ibv_reg_mr_iova2\0") }.map(|symbol| *symbol).ok(),
                    // SAFETY: as above.
                    ibv_reg_dmabuf_mr: unsafe { library.get(b"ibv_reg_dmabuf_mr\0") }.map(|symbol| *symbol).ok(),
                    // SAFETY: as above.
                    ibv_is_fork_initialized: unsafe { library.get(b"ibv_is_fork_initialized\0") }
                        .map(|symbol| *symbol)
                        .ok(),
                    _library: library,
                })
            }

            $(pub unsafe fn $name(&self, $($argument: $type),*) $(-> $result)? {
                // SAFETY: the library is loaded, and the caller guarantees the rest.
                unsafe { (self.$name)($($argument),*) }
            })*
        }
    };
}

/// The function that the macro `ibv_reg_mr` of `infiniband/verbs.h` calls if there are optional access flags.
/// Unlike the function `ibv_reg_mr`, it drops flags that the kernel does not know.
pub(in crate::verbs) type RegMrIova2 = unsafe extern "C" fn(
    pd: *mut ibv_pd,
    start: *mut c_void,
    bytes: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr;

/// The function for dma-bufs, as its manual page describes it.
pub(in crate::verbs) type RegDmaBuf = unsafe extern "C" fn(
    pd: *mut ibv_pd,
    offset: u64,
    bytes: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr;

functions! {
    ibv_fork_init() -> c_int;
    ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list(list: *mut *mut ibv_device);
    ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    ibv_close_device(context: *mut ibv_context) -> c_int;
    ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int;
    ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, key: *mut u16) -> c_int;
    ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    ibv_ack_async_event(event: *mut ibv_async_event);
    ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    ibv_reg_mr(pd: *mut ibv_pd, start: *mut c_void, bytes: usize, access: c_int) -> *mut ibv_mr;
    ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    ibv_create_cq(context: *mut ibv_context, entries: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq;
    ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int;
    ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint);
    ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
}

/// `IBV_FORK_UNNEEDED`: the kernel reports that forks do no harm.
const FORK_UNNEEDED: c_int = 2;

/// Returns the functions of libibverbs. The library is never unloaded.
pub(in crate::verbs) fn library() -> Result<&'static Ibverbs, LibraryError> {
    static LIBRARY: OnceLock<Result<Ibverbs, LibraryError>> = OnceLock::new();
    LIBRARY.get_or_init(|| load(NAME)).as_ref().map_err(LibraryError::clone)
}

fn load(name: &'static str) -> Result<Ibverbs, LibraryError> {
    // SAFETY: the initialisers of libibverbs have no requirements. A file of this name and version has
    // functions of the types in `ffi.rs`. A missing function is an error at this point.
    let library =
        unsafe { Ibverbs::new(name) }.map_err(|error| LibraryError::Missing { name, why: words(&error) })?;
    // `ibv_fork_init` must come before any use of RDMA: after a fork, copy-on-write must not remove pages that a
    // NIC uses. Kernels that copy pinned pages at the fork (5.12 and later) need nothing else. For other
    // kernels, the library excludes each registered range from children, which splits huge pages at the ends
    // of ranges.
    // SAFETY: the function takes no arguments.
    let is_needed = library.ibv_is_fork_initialized.is_none_or(|ask| unsafe { ask() } != FORK_UNNEEDED);
    // SAFETY: the function takes no arguments. Before it, only `ibv_is_fork_initialized` of this library was
    // called.
    let errno = if is_needed { unsafe { library.ibv_fork_init() } } else { 0 };
    if errno != 0 {
        return Err(LibraryError::Fork { why: io::Error::from_raw_os_error(errno).to_string() });
    }
    Ok(library)
}

/// Returns the loader's message, with the error that caused it.
fn words(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_the_way_to_get_it() {
        let error = load("libibverbs-of-no-machine.so.1").err().unwrap().to_string();
        for expected in ["libibverbs-of-no-machine.so.1", "apt-get install libibverbs1 ibverbs-providers"] {
            assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        }
    }

    #[test]
    fn a_library_that_lacks_a_function_is_not_used() {
        let error = load("libc.so.6").err().unwrap().to_string();
        assert!(error.contains("ibv_"), "{error:?} names no function");
    }
}
