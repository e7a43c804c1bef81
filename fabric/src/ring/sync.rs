//! The one door to atomics. The crate `fabric-loom` compiles the ring and the bell with a door to loom's.
//!
//! Every release in this crate names its acquire by a tag in a comment, `[ring-publish]` and so on.

pub use std::sync::atomic::{AtomicU32, Ordering, fence};
