//! The slots of one chunk: each worker's gradient for it, where the worker wrote it.
//!
//! On the `unsafe` list: the step from addresses in workers' windows to something kernels may read.

use std::marker::PhantomData;
use std::sync::Arc;

use fabric::{RecvWindow, Span, SpanError};

use super::element::Element;

/// `elements` elements from each of one or more workers, in worker order.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'a, E = f32> {
    starts: &'a [*const E],
    elements: usize,
    _borrowed: PhantomData<&'a [E]>,
}

impl<'a, E: Element> Slots<'a, E> {
    /// From addresses.
    ///
    /// # Safety
    /// Each start must be readable for `elements` elements, unwritten, for as long as `'a`.
    pub unsafe fn new(starts: &'a [*const E], elements: usize) -> Self {
        assert!(!starts.is_empty(), "a sum has at least one worker");
        Slots { starts, elements, _borrowed: PhantomData }
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.starts.len()
    }

    /// Length of each slot.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Worker `rank`'s slot.
    #[inline(always)]
    pub fn slot(&self, rank: usize) -> &'a [E] {
        // SAFETY: `new`'s caller vouched for every start and for `elements`.
        unsafe { std::slice::from_raw_parts(self.starts[rank], self.elements) }
    }

    /// The first worker's slot alone.
    pub fn first(&self) -> Slots<'a, E> {
        Slots { starts: &self.starts[..1], ..*self }
    }
}

/// The gradient windows of a job's workers.
#[derive(Debug)]
pub(crate) struct Gradients {
    windows: Vec<Option<Arc<RecvWindow>>>,
    /// Scratch of `slots`: where each worker's slot of the current chunk begins.
    starts: Vec<*const u8>,
}

// SAFETY: `starts` is meaningful only while a borrow from `slots` lives; the rest is Send by itself.
unsafe impl Send for Gradients {}

impl Gradients {
    pub fn new(workers: u32) -> Self {
        let workers = workers as usize;
        Gradients { windows: vec![None; workers], starts: vec![std::ptr::null(); workers] }
    }

    /// Brings in worker `rank`'s window; checks the spans that will be asked for, and touches them.
    pub fn add(
        &mut self,
        rank: u32,
        window: Arc<RecvWindow>,
        spans: impl Iterator<Item = Span>,
    ) -> Result<(), SpanError> {
        for span in spans {
            window.elements_ptr::<u8>(span)?;
            window.touch(span);
        }
        self.windows[rank as usize] = Some(window);
        Ok(())
    }

    /// Takes worker `rank`'s window out.
    pub fn remove(&mut self, rank: u32) {
        self.windows[rank as usize] = None;
    }

    /// What worker `rank` wrote at `span`. Panics when either was not added.
    ///
    /// # Safety
    /// By the protocol the worker does not write there while the result lives: it has posted the chunk, and was not
    /// answered yet.
    #[inline]
    pub unsafe fn bytes(&self, rank: u32, span: Span) -> &[u8] {
        let window = self.windows[rank as usize].as_ref().expect("a worker that pushed was added");
        // SAFETY: the caller's word.
        unsafe { window.elements(span) }.expect("checked by add")
    }

    /// The slots of `ranks` at `span`, in their order. Panics when a worker or the span was not added,
    /// or does not hold whole elements.
    ///
    /// # Safety
    /// By the protocol none of these workers writes its slot while the result lives: all have pushed
    /// the chunk, and none was answered yet.
    #[inline]
    pub unsafe fn slots<E: Element>(&mut self, span: Span, ranks: impl Iterator<Item = u32>) -> Slots<'_, E> {
        let mut count = 0;
        for (start, rank) in self.starts.iter_mut().zip(ranks) {
            let window = self.windows[rank as usize].as_ref().expect("a worker that pushed was added");
            *start = window.elements_ptr::<E>(span).expect("checked by add, and by the layout").0.cast();
            count += 1;
        }
        // SAFETY: addresses are alike whatever they point to; all `count` were set above.
        let starts = unsafe { std::slice::from_raw_parts(self.starts.as_ptr().cast::<*const E>(), count) };
        // SAFETY: `elements_ptr` checked bounds and alignment; the windows live in `self`, which the
        // result borrows; that nobody writes is the caller's word.
        unsafe { Slots::new(starts, span.bytes / size_of::<E>()) }
    }
}
