//! The handles of libibverbs. Each kind of handle has its own type, which destroys the handle and holds its
//! parent.
//!
//! Most files are on the `unsafe` list. This module does not depend on links.

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
