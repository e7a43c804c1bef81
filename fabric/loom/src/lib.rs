//! The ring and the bell of `fabric`, the same files, over loom's atomics: `tests/` runs them under every
//! interleaving.

#![forbid(unsafe_code)]

#[path = "../../src/ring/bell.rs"]
pub mod bell;
#[path = "../../src/ring/ends.rs"]
pub mod ring;

/// The door to atomics: here, to loom's.
mod sync {
    pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
}
