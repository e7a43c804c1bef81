//! Memory: mappings, and the windows that links mirror.
//!
//! This module depends on pages and descriptors, but not on what the bytes mean.

mod amount;
#[allow(unsafe_code)]
mod dma_buf;
mod machine;
#[allow(unsafe_code)]
mod mapping;
mod room;
#[allow(unsafe_code)]
mod slab;
#[allow(unsafe_code)]
mod spans;
mod window;

pub(crate) use mapping::{Access, HUGE_PAGE, Mapping};
pub(crate) use spans::check_plain;

pub use amount::Amount;
pub use dma_buf::{DmaBuf, DmaBufError};
pub use machine::{SHARED_HUGE_PAGES, resident_bytes, shared_huge_pages};
pub use mapping::{MapError, few_heaps, trim_heap};
pub use room::{MemoryBound, MemoryRoom, available_bytes, memory_room};
pub use slab::Slab;
pub use spans::{Plain, RecvWindow, SpanError, Spans};
pub use window::{SendWindow, WindowError};
