//! The ring and the bell of `fabric`, the same file, over loom's atomics: `tests/` runs them under every
//! interleaving.

#![forbid(unsafe_code)]

#[path = "../../src/ring/ends.rs"]
pub mod ring;

pub use ring::bell;

/// The door to atomics. In this crate it leads to loom's.
mod sync {
    pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
}
