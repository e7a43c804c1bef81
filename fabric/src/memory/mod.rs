//! Memory: mappings, and the windows that links mirror.
//!
//! Knows pages and descriptors, and not what the bytes mean.

#[allow(unsafe_code)]
mod mapping;
#[allow(unsafe_code)]
mod window;

pub(crate) use mapping::{ALIGN, Mapping, advice};
pub use mapping::{MapError, SHARED_HUGE_PAGES, Slab, available_bytes, resident_bytes, shared_huge_pages};
pub use window::{Plain, RecvWindow, SendWindow, SpanError, Spans, WindowError};
