//! The one door to atomics. `../loom` compiles the ring and the bell with another one, to loom's.
//!
//! Every release in this crate names its acquire by a tag in a comment, `[ring-publish]` and so on.

pub use std::sync::atomic::{AtomicU32, Ordering, fence};
