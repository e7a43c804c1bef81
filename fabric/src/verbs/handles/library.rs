//! libibverbs, loaded once and when it is first asked for: the same program runs where there is none.
//!
//! On the `unsafe` list. Any thread. Knows no device.

use std::io;
use std::sync::OnceLock;

use super::ffi::Ibverbs;

/// The version of the interface that `ffi.rs` describes; it has been this one since 2005.
const NAME: &str = "libibverbs.so.1";

/// RDMA was asked for, and the library for it is not there or not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The loader found none, or one without a function that is needed.
    #[error(
        "RDMA needs {name}, which cannot be loaded: {why}; install it and the drivers of NICs (Debian, Ubuntu: apt-get install libibverbs1 ibverbs-providers; Fedora: dnf install libibverbs), or use shared memory"
    )]
    Missing {
        /// The library's file.
        name: &'static str,
        /// The loader's words.
        why: String,
    },
    /// `ibv_fork_init` failed: a fork would break transfers.
    #[error(
        "libibverbs cannot be made safe against fork (ibv_fork_init: {why}); something in this process used RDMA before: unset RDMAV_HUGEPAGES_SAFE, or load this before it"
    )]
    Fork {
        /// The errno, in words.
        why: String,
    },
}

/// The functions of libibverbs. The library is never unloaded.
pub(in crate::verbs) fn library() -> Result<&'static Ibverbs, LibraryError> {
    static LIBRARY: OnceLock<Result<Ibverbs, LibraryError>> = OnceLock::new();
    LIBRARY.get_or_init(|| load(NAME)).as_ref().map_err(LibraryError::clone)
}

fn load(name: &'static str) -> Result<Ibverbs, LibraryError> {
    // SAFETY: libibverbs has no initialiser that asks anything of the process, and a file of this name and
    // version has functions of the types in `ffi.rs`; one that is missing is an error here, not later.
    let library =
        unsafe { Ibverbs::new(name) }.map_err(|error| LibraryError::Missing { name, why: words(&error) })?;
    // Before anything else: a child's copy-on-write must not take pages away from under a NIC. On kernels
    // that copy pinned pages at the fork (5.12 and later) this notes it and costs nothing.
    // SAFETY: takes no arguments; nothing of libibverbs was called before through this library.
    let errno = unsafe { library.ibv_fork_init() };
    if errno != 0 {
        return Err(LibraryError::Fork { why: io::Error::from_raw_os_error(errno).to_string() });
    }
    Ok(library)
}

/// What the loader said: the cause is an error beneath the error.
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
