//! The ring and the bell of `fabric`: the same source file as in that crate, compiled with loom's atomics.
//! `tests/` runs both under every interleaving.

#![forbid(unsafe_code)]
// The crate fabric runs the unit tests in these files. `--all-targets` would build these tests here, too.
#![cfg(not(test))]

#[path = "../../src/ring/ends.rs"]
pub mod ring;

pub use ring::bell;

/// The module through which the ring gets its atomics. In this crate they come from loom.
mod sync {
    pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
}
