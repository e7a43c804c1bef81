//! The real library.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::OnceLock;

/// The paths at which distributions install the real library.
const REAL: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    "/usr/lib/aarch64-linux-gnu/libibverbs.so.1",
    "/usr/lib64/libibverbs.so.1",
    "/usr/lib/libibverbs.so.1",
];
const RTLD_NOW: c_int = 2;
/// The flag of `dlopen` that makes the library's symbols global. The drivers of NICs look up its private functions there.
const RTLD_GLOBAL: c_int = 0x100;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Returns a function of the real library.
pub fn real(name: &str) -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        let found = REAL.iter().find(|file| Path::new(file).exists()).expect("a libibverbs.so.1");
        let file = CString::new(*found).unwrap();
        // SAFETY: `file` is a path, and the library's initialisers ask nothing of the process.
        unsafe { dlopen(file.as_ptr(), RTLD_NOW | RTLD_GLOBAL) as usize }
    });
    let symbol = CString::new(name).unwrap();
    // SAFETY: the library is never unloaded, and `symbol` is a name.
    let found = unsafe { dlsym(library as *mut c_void, symbol.as_ptr()) };
    assert!(!found.is_null(), "the real libibverbs has no {name}");
    found
}
