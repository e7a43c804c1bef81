//! The one door to atomics: std's, or loom's under `--cfg loom`.
//!
//! Every release in this crate names its acquire by a tag in a comment, `[ring-publish]` and so on.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, Ordering, fence};
