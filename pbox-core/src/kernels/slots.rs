//! The slots of one chunk: what a kernel sums.
//!
//! On the `unsafe` list: addresses become slices that kernels read.

use std::marker::PhantomData;

use super::element::Element;

/// `elements` elements from each of one or more workers, in worker order.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'a, E = f32> {
    starts: &'a [*const E],
    elements: usize,
    _borrowed: PhantomData<&'a [E]>,
}

impl<'a, E: Element> Slots<'a, E> {
    /// Slots at these addresses.
    ///
    /// # Safety
    /// During `'a`, each start must be readable for `elements` elements, and nobody may write them.
    pub unsafe fn new(starts: &'a [*const E], elements: usize) -> Self {
        assert!(!starts.is_empty(), "a sum has at least one worker");
        Slots { starts, elements, _borrowed: PhantomData }
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.starts.len()
    }

    /// The elements of each slot.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The slot of the worker at this index.
    #[inline(always)]
    pub fn slot(&self, rank: usize) -> &'a [E] {
        // SAFETY: the caller of `new` guaranteed every start and `elements`.
        unsafe { std::slice::from_raw_parts(self.starts[rank], self.elements) }
    }

    /// The first slots, at most `most` of them.
    #[inline]
    pub fn at_most(&self, most: usize) -> Slots<'a, E> {
        Slots { starts: &self.starts[..self.starts.len().min(most)], ..*self }
    }
}
