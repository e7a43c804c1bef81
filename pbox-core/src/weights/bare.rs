//! The stages of BSP without compression (*bare*). The core reads gradients directly from the windows that the workers
//! wrote. The step writes directly to the window that all workers read. Nothing is copied.

use std::sync::Arc;

use fabric::{RecvWindow, Span, SpanError, Spans};

use zerocopy::FromBytes;

use super::chunks::Chunk;
use super::{Read, Reply, To, Weights};
use crate::kernels::{Ablate, Element, Kernels, Slots};
use crate::layout::{Content, Round};

/// The reader of bare slots: the kernel sums them in place.
#[derive(Debug)]
pub(crate) struct BareSlots {
    /// The number of slots that are read: all, or 1 if the job leaves out the sum.
    most: usize,
}

impl BareSlots {
    pub fn new(ablate: Ablate) -> Self {
        BareSlots { most: if ablate.aggregate { 1 } else { usize::MAX } }
    }
}

impl Read for BareSlots {
    fn takes(_: Content, _: bool) -> Result<(), &'static str> {
        Ok(())
    }

    #[inline]
    fn begin<E: Element>(&mut self, _: &Chunk, push: Push, weights: &mut [E]) {
        let first = <[E]>::ref_from_bytes(push.bytes())
            .expect("a chunk has whole elements, at a multiple of 64 bytes");
        weights.copy_from_slice(first);
    }

    #[inline]
    fn sum<E: Element>(
        &mut self,
        _: &Kernels,
        _: &Chunk,
        _: usize,
        _: Round,
        pushes: Pushes<impl Iterator<Item = u32> + Clone>,
        then: impl FnOnce(&Slots<E>, u32),
    ) {
        let slots = pushes.slots::<E>();
        then(&slots.at_most(self.most), slots.workers() as u32);
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

/// The reply without a copy: workers read the window into which the step writes.
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

    /// Adds worker `rank`'s window. Checks the spans that will be read.
    pub fn add(
        &mut self,
        rank: u32,
        window: Arc<RecvWindow>,
        spans: impl Iterator<Item = Span>,
    ) -> Result<(), SpanError> {
        for span in spans {
            window.elements_ptr::<u8>(span)?;
        }
        self.windows[rank as usize] = Some(window);
        Ok(())
    }

    /// Removes worker `rank`'s window.
    pub fn remove(&mut self, rank: u32) -> Option<Arc<RecvWindow>> {
        self.windows[rank as usize].take()
    }

    /// Returns worker `rank`'s push of the chunk at `span`. Panics if the worker or the span was not added.
    ///
    /// # Safety
    /// The worker must not write the span while the result lives. The protocol forbids it: the worker has posted the chunk,
    /// and has no answer yet.
    #[inline]
    pub unsafe fn push(&self, rank: u32, span: Span) -> Push<'_> {
        Push { gradients: self, rank, span }
    }

    /// Returns the pushes of `ranks`, as [`push`](Self::push) does for one worker.
    ///
    /// # Safety
    /// The conditions of `push` must hold for all these workers.
    #[inline]
    pub unsafe fn pushes<I>(&mut self, ranks: I, span: Span) -> Pushes<'_, I> {
        Pushes { gradients: self, ranks, span }
    }

    #[inline]
    fn window(&self, rank: u32) -> &RecvWindow {
        self.windows[rank as usize].as_ref().expect("a worker that pushed was added")
    }
}

/// One worker's push of a chunk.
pub(crate) struct Push<'a> {
    gradients: &'a Gradients,
    rank: u32,
    span: Span,
}

impl<'a> Push<'a> {
    /// Returns the bytes of the push.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        // SAFETY: by the contract of `Gradients::push` the worker does not write the bytes.
        unsafe { self.gradients.window(self.rank).elements(self.span) }.expect("checked by add")
    }
}

/// The pushes of several workers for one chunk.
pub(crate) struct Pushes<'a, I> {
    gradients: &'a mut Gradients,
    ranks: I,
    span: Span,
}

impl<'a, I: Iterator<Item = u32>> Pushes<'a, I> {
    /// Returns the first `bytes` bytes of each push.
    #[inline]
    pub fn first(mut self, bytes: usize) -> Self {
        self.span.bytes = bytes;
        self
    }

    /// Returns each push, in the order of the ranks.
    pub fn bytes(&self) -> impl Iterator<Item = &[u8]>
    where
        I: Clone,
    {
        let Pushes { gradients, ranks, span } = self;
        ranks.clone().map(|rank| Push { gradients, rank, span: *span }.bytes())
    }

    /// Returns each worker's rank and push, in the order of the ranks.
    pub fn each(self) -> impl Iterator<Item = (u32, &'a [u8])> {
        let Pushes { gradients, ranks, span } = self;
        let gradients: &'a Gradients = gradients;
        ranks.map(move |rank| (rank, Push { gradients, rank, span }.bytes()))
    }

    /// Returns the pushes as slots, in the order of the ranks. Panics if the span does not hold whole elements.
    #[inline]
    pub fn slots<E: Element>(self) -> Slots<'a, E> {
        let Pushes { gradients: Gradients { windows, starts }, ranks, span } = self;
        let mut count = 0;
        for (start, rank) in starts.iter_mut().zip(ranks) {
            let window = windows[rank as usize].as_ref().expect("a worker that pushed was added");
            *start = window.elements_ptr::<E>(span).expect("checked by add, and by the layout").0.cast();
            count += 1;
        }
        // SAFETY: pointers to all types have the same layout; all `count` were set above.
        let starts = unsafe { std::slice::from_raw_parts(starts.as_ptr().cast::<*const E>(), count) };
        // SAFETY: `elements_ptr` checked bounds and alignment; the windows live in the `Gradients`, which the result
        // borrows; by the contract of `Gradients::pushes` nobody writes.
        unsafe { Slots::new(starts, span.bytes / size_of::<E>()) }
    }
}
