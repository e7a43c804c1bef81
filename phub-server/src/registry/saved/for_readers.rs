//! The count of memory for readers. It is changed without the registry's lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Memory for readers, which is promised to no job. All values count in one sum, until they are dropped.
#[derive(Debug, Default)]
pub(crate) struct ForReaders {
    sum: Arc<AtomicU64>,
    bytes: u64,
}

impl ForReaders {
    /// Returns the bytes of the sum.
    pub fn all(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// Counts other memory in the same sum.
    pub fn beside(&self, bytes: u64) -> Self {
        self.sum.fetch_add(bytes, Relaxed);
        ForReaders { sum: Arc::clone(&self.sum), bytes }
    }
}

impl Drop for ForReaders {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Relaxed);
    }
}
