//! The handles of libibverbs: one type for each kind of handle. It destroys the handle and holds its parent.
//!
//! Most of it is on the `unsafe` list. Knows nothing of links.

#[allow(unsafe_code)]
pub(super) mod chain;
#[allow(unsafe_code)]
pub(super) mod completion;
#[allow(unsafe_code)]
pub(super) mod context;
#[allow(unsafe_code)]
pub(super) mod domain;
pub(super) mod error;
#[allow(unsafe_code, dead_code, non_camel_case_types)] // names and layouts of C
pub(super) mod ffi;
#[allow(unsafe_code)]
pub(super) mod library;
#[allow(unsafe_code)]
pub(super) mod queue_pair;
#[allow(unsafe_code)]
pub(super) mod region;
pub(super) mod words;
pub(super) mod work;
