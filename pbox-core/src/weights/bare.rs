//! The stages of bare BSP: the core reads workers' gradients in the windows where the workers wrote them. The step
//! writes the window that all workers read. Nothing is copied.
//!
//! On the `unsafe` list: addresses in workers' windows become slices that kernels read.

use std::sync::Arc;

use fabric::{RecvWindow, Span, SpanError, Spans};

use zerocopy::FromBytes;

use super::chunks::Chunk;
use super::staged::{Read, Reply, To, Weights};
use crate::kernels::{Ablate, Element, Kernels, Slots};
use crate::layout::Round;
use crate::wire::frame::FrameError;

/// Reads bare slots: the kernel sums them where they are.
#[derive(Debug)]
pub(crate) struct BareSlots {
    /// Slots that are read: all, or 1 when the job leaves out the sum.
    most: usize,
}

impl BareSlots {
    pub fn new(ablate: Ablate) -> Self {
        BareSlots { most: if ablate.aggregate { 1 } else { usize::MAX } }
    }
}

impl Read for BareSlots {
    /// Every value is a gradient.
    #[inline]
    fn check(&self, _: &Gradients, _: &Chunk, _: usize, _: u32, _: Round) -> Result<bool, FrameError> {
        Ok(true)
    }

    #[inline]
    unsafe fn begin<E: Element>(
        &mut self,
        gradients: &Gradients,
        chunk: &Chunk,
        rank: u32,
        weights: &mut [E],
    ) {
        // SAFETY: the caller guarantees it.
        let slot = unsafe { gradients.bytes(rank, chunk.span) };
        weights
            .copy_from_slice(<[E]>::ref_from_bytes(slot).expect("a chunk holds whole elements, on 64 bytes"));
    }

    #[inline]
    unsafe fn sum<E: Element>(
        &mut self,
        _: &Kernels,
        gradients: &mut Gradients,
        chunk: &Chunk,
        _: usize,
        ranks: impl Iterator<Item = u32>,
        _: Round,
        then: impl FnOnce(&Slots<E>, u32),
    ) {
        // SAFETY: the caller guarantees it.
        let slots = unsafe { gradients.slots::<E>(chunk.span, ranks) };
        let workers = slots.workers() as u32;
        then(&slots.at_most(self.most), workers);
    }
}

impl Weights for Spans {
    #[inline]
    fn elements<E: Element>(&self, place: usize) -> &[E] {
        self.elements(place)
    }

    #[inline]
    fn elements_mut<E: Element>(&mut self, place: usize) -> &mut [E] {
        self.elements_mut(place)
    }
}

/// Replies with the window of the weights itself.
#[derive(Debug)]
pub(crate) struct RawForAll;

impl<R> Reply<R, Spans> for RawForAll {
    #[inline]
    fn answer(&mut self, _: &Kernels, chunk: &Chunk, _: usize, _: &Spans, _: To) -> Span {
        chunk.span
    }

    fn add_worker(&mut self, _: &[Chunk], _: &Spans, _: u32, own: Option<Spans>) {
        assert!(own.is_none(), "all workers read one window");
    }
}

/// The gradient windows of a job's workers.
#[derive(Debug)]
pub(crate) struct Gradients {
    windows: Vec<Option<Arc<RecvWindow>>>,
    /// Scratch memory of `slots`: the start of each worker's slot of the current chunk.
    starts: Vec<*const u8>,
}

// SAFETY: `starts` is read only while a borrow from `slots` lives; the other fields are Send.
unsafe impl Send for Gradients {}

impl Gradients {
    pub fn new(workers: u32) -> Self {
        let workers = workers as usize;
        Gradients { windows: vec![None; workers], starts: vec![std::ptr::null(); workers] }
    }

    /// Adds worker `rank`'s window. Checks and touches the spans that will be read.
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

    /// Removes worker `rank`'s window.
    pub fn remove(&mut self, rank: u32) {
        self.windows[rank as usize] = None;
    }

    /// The bytes that worker `rank` wrote at `span`. Panics if the worker or the span was not added.
    ///
    /// # Safety
    /// By the protocol the worker must not write there while the result lives: it has posted the chunk, and has no
    /// answer yet.
    #[inline]
    pub unsafe fn bytes(&self, rank: u32, span: Span) -> &[u8] {
        let window = self.windows[rank as usize].as_ref().expect("a worker that pushed was added");
        // SAFETY: the caller guarantees it.
        unsafe { window.elements(span) }.expect("checked by add")
    }

    /// The slots of `ranks` at `span`, in the order of `ranks`. Panics if a worker or the span was not added, or the
    /// span does not hold whole elements.
    ///
    /// # Safety
    /// By the protocol none of these workers may write its slot while the result lives: all have pushed the chunk,
    /// and none has its answer yet.
    #[inline]
    pub unsafe fn slots<E: Element>(&mut self, span: Span, ranks: impl Iterator<Item = u32>) -> Slots<'_, E> {
        let mut count = 0;
        for (start, rank) in self.starts.iter_mut().zip(ranks) {
            let window = self.windows[rank as usize].as_ref().expect("a worker that pushed was added");
            *start = window.elements_ptr::<E>(span).expect("checked by add, and by the layout").0.cast();
            count += 1;
        }
        // SAFETY: pointers to all types have the same layout; all `count` were set above.
        let starts = unsafe { std::slice::from_raw_parts(self.starts.as_ptr().cast::<*const E>(), count) };
        // SAFETY: `elements_ptr` checked bounds and alignment; the windows live in `self`, which the result
        // borrows; the caller guarantees that nobody writes.
        unsafe { Slots::new(starts, span.bytes / size_of::<E>()) }
    }
}
