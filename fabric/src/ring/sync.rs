//! The only module that imports atomics. The crate `fabric-loom` compiles the ring and the bell with a module
//! that imports loom's atomics instead.
//!
//! Each release in this crate names its acquire by a tag in a comment, such as `[ring-publish]`.

pub use std::sync::atomic::{AtomicU32, Ordering, fence};
