//! The entry of calls from C. No panic leaves a call, and pointers are checked before they are used.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::status::{Failure, PhubStatus, keep, last};

/// Runs a call from C. A panic in the call is a defect, and has its own status.
pub(crate) fn enter(call: impl FnOnce() -> Result<(), Failure>) -> PhubStatus {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => PhubStatus::Ok,
        Ok(Err(failure)) => keep(failure),
        Err(panic) => {
            let words = panic.downcast_ref::<&str>().map(ToString::to_string);
            let words = words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            let words = format!("a defect of libphub; report it with this text: {words}");
            keep(Failure { status: PhubStatus::Internal, words })
        }
    }
}

/// Returns the text at the pointer `what` from C.
///
/// # Safety
/// `text` is null, or ends with a zero byte and does not change for `'a`.
pub(crate) unsafe fn text<'a>(what: &str, text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{what} is null: expected a text")));
    }
    // SAFETY: not null, and the caller's promise.
    let bytes = unsafe { CStr::from_ptr(text) };
    bytes.to_str().map_err(|error| Failure::invalid(format!("{what} is no UTF-8 text: {error}")))
}

/// Returns the value at the pointer `what` from C.
///
/// # Safety
/// `pointer` is null, or points to a `T` that lives for `'a` and that nobody changes meanwhile.
pub(crate) unsafe fn given<'a, T>(what: &str, pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::invalid(format!("{what} is null")))
}

/// Writes a value to the place at the pointer `what` from C.
///
/// # Safety
/// `place` is null, or points to room for a `T`.
pub(crate) unsafe fn put<T>(what: &str, place: *mut T, value: T) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::invalid(format!("{what} is null: expected room for a result")));
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// Frees a value that C was given; does nothing if the pointer is null.
///
/// # Safety
/// `given` is null, or comes from a box, and no thread uses it any more.
pub(crate) unsafe fn free<T>(given: *mut T) {
    if !given.is_null() {
        enter(|| {
            // SAFETY: not null, and the caller's promise.
            drop(unsafe { Box::from_raw(given) });
            Ok(())
        });
    }
}

/// Returns the text of this thread's last call that failed, never null. The text is valid until this thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn phub_last_error() -> *const c_char {
    last()
}

/// Returns this library's version, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn phub_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
