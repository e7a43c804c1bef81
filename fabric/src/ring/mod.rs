//! Rings of immediates between two processes, and the bell that wakes a sleeping consumer.

mod ends;
mod sync;

pub(crate) use sync::AtomicU32;

pub use ends::{Cells, Consumer, Corrupt, MAX_CAPACITY, Producer, bell};
