//! Where calls from C enter: no panic leaves, and pointers are checked before they are used.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::status::{Failure, PhubStatus, keep, last};

/// Runs a call of C's. A panic in it is a defect, and is said as one.
pub(crate) fn enter(call: impl FnOnce() -> Result<(), Failure>) -> PhubStatus {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => PhubStatus::Ok,
        Ok(Err(failure)) => keep(failure),
        Err(panic) => {
            let words = panic.downcast_ref::<&str>().map(ToString::to_string);
            let words = words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            let words = format!("a defect of libphub, please report it: {words}");
            keep(Failure { status: PhubStatus::Internal, words })
        }
    }
}

/// The text that C gives as `what`.
///
/// # Safety
/// `text` is null, or ends with a zero byte and stays as it is for `'a`.
pub(crate) unsafe fn text<'a>(what: &str, text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{what} is null: expected a text")));
    }
    // SAFETY: not null, and the caller's word.
    let bytes = unsafe { CStr::from_ptr(text) };
    bytes.to_str().map_err(|error| Failure::invalid(format!("{what} is no UTF-8 text: {error}")))
}

/// What C gives a pointer to, as `what`.
///
/// # Safety
/// `pointer` is null, or leads to a `T` that lives for `'a` and that nobody changes meanwhile.
pub(crate) unsafe fn given<'a, T>(what: &str, pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: the caller's word.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::invalid(format!("{what} is null")))
}

/// Puts a value where C wants it, as `what`.
///
/// # Safety
/// `place` is null, or leads to room for a `T`.
pub(crate) unsafe fn put<T>(what: &str, place: *mut T, value: T) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::invalid(format!("{what} is null: expected room for a result")));
    }
    // SAFETY: not null, and the caller's word.
    unsafe { place.write(value) };
    Ok(())
}

/// The words of this thread's last call that failed, never null. They stay until this thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn phub_last_error() -> *const c_char {
    last()
}

/// This library's version, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn phub_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
