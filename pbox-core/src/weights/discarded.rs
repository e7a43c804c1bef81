//! Memory that a core no longer needs. Another thread frees it, so that the core does not free it between two rounds.

/// Memory that a core no longer needs. Dropping this value frees the memory, which can take long. So drop it on another
/// thread.
#[derive(Default)]
pub struct Discarded(Vec<Box<dyn Send>>);

impl Discarded {
    /// Wraps one value that must be freed.
    pub fn of(something: impl Send + 'static) -> Self {
        let mut discarded = Self::default();
        discarded.add(something);
        discarded
    }

    /// Adds a value that must be freed.
    pub(crate) fn add(&mut self, something: impl Send + 'static) {
        self.0.push(Box::new(something));
    }

    /// Whether there is nothing to free.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for Discarded {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("Discarded").field(&self.0.len()).finish()
    }
}
