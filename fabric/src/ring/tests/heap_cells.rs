//! The words of a ring on the heap, for the unit tests and for loom.

use std::sync::Arc;

use super::{AtomicU32, Cells};

/// A handle to cells that the two ends share.
#[derive(Clone)]
pub struct HeapCells(Arc<Words>);

struct Words {
    tail: AtomicU32,
    head: AtomicU32,
    wake_at: AtomicU32,
    slots: Box<[AtomicU32]>,
}

impl HeapCells {
    /// Allocates cells for `capacity` items, a power of two.
    pub fn new(capacity: u32) -> Self {
        let [tail, head, wake_at] = std::array::from_fn(|_| AtomicU32::new(0));
        let slots = (0..capacity).map(|_| AtomicU32::new(0)).collect();
        HeapCells(Arc::new(Words { tail, head, wake_at, slots }))
    }
}

impl Cells for HeapCells {
    fn tail(&self) -> &AtomicU32 {
        &self.0.tail
    }
    fn head(&self) -> &AtomicU32 {
        &self.0.head
    }
    fn wake_at(&self) -> &AtomicU32 {
        &self.0.wake_at
    }
    fn slots(&self) -> &[AtomicU32] {
        &self.0.slots
    }
}
