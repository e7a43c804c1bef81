//! A worker's windows: gradients that it writes, and weights that it reads. In a compressed job both windows
//! hold frames. Gradients and weights then lie in private memory, and `coder` translates between the two.
//!
//! Unsafe (docs/unsafe.md): reading the weights window. It is read only while the protocol forbids the hub to write.
//! Depends on spans, but not on rounds; `exchange` decides when a key may be touched.

use std::sync::Arc;

use fabric::{DmaBuf, RecvWindow, SendWindow, Slab, Span, Spans, WindowError};
use pbox_core::frame::FrameError;
use pbox_core::{ChunkId, Content, Element, KeyId, Layout, NormSum, Round, Wire};

use super::coder::{Coder, elements, elements_mut, part, part_mut};

/// The two windows of one worker, by key.
#[derive(Debug)]
pub struct Windows {
    layout: Arc<Layout>,
    gradients: Gradients,
    /// The window that the hub of each core writes, by core. All cores of a hub have the same window.
    weights: Vec<Arc<RecvWindow>>,
    private: Option<Slab>,
    /// Spans in the gradient window for parts of the gradient's norm. This worker writes each hub's part there, for the
    /// other hubs.
    lines: Spans,
    wire: Wire,
}

/// The memory that a worker reads its weights from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightsMode {
    /// The weights window itself. The weights change when the answers of the next round arrive.
    #[default]
    Shared,
    /// A private buffer, into which answers are copied from the window. Meant for callers whose weights must lie in memory that
    /// no other process writes.
    Private,
}

/// The memory in which gradients are written.
#[derive(Debug)]
enum Gradients {
    /// The gradient window, with a span for each key. If it is in a dma-buf, this process does not write it.
    Window(Spans),
    /// The coder's memory; the window has frames.
    Framed(Box<Coder>),
}

impl Gradients {
    fn of_key<E: Element>(&mut self, layout: &Layout, key: KeyId) -> Option<&mut [E]> {
        match self {
            Gradients::Window(spans) if spans.window().dma_buf().is_some() => None,
            Gradients::Window(spans) => Some(spans.elements_mut(key.index())),
            Gradients::Framed(coder) => {
                Some(elements_mut(part_mut(coder.gradients_mut(), layout.key_span(key))))
            }
        }
    }
}

impl Windows {
    /// Returns a gradient window for the transport, and its spans: by key, or by chunk if the job has frames.
    /// If this worker passes hubs' parts of the gradient's norm on to other hubs, spans for these parts follow.
    pub fn gradients(wire: &Wire) -> Result<(Arc<SendWindow>, Spans), WindowError> {
        Self::gradients_in(wire, None)
    }

    /// Allocates a gradient window like [`gradients`](Self::gradients), in a dma-buf if one is given and the job has no
    /// frames.
    pub(crate) fn gradients_in(
        wire: &Wire,
        dma_buf: Option<&DmaBuf>,
    ) -> Result<(Arc<SendWindow>, Spans), WindowError> {
        let layout = wire.layout();
        let mut spans: Vec<Span> = match wire.framing() {
            None => (0..layout.keys().len() as u32).map(|key| layout.key_span(KeyId(key))).collect(),
            Some(_) => {
                (0..layout.chunks().len() as u32).map(|chunk| wire.gradient_span(ChunkId(chunk))).collect()
            }
        };
        spans.extend(wire.gradient_lines());
        let bytes = wire.gradient_window_bytes();
        let window = match dma_buf {
            Some(dma_buf) => SendWindow::in_dma_buf(dma_buf, bytes)?,
            None => SendWindow::new(bytes)?,
        };
        let split = window.split(vec![spans]);
        let (window, mut spans) = split.expect("keys and frames are disjoint, aligned and inside");
        Ok((window, spans.remove(0)))
    }

    /// Creates the windows of worker `rank`. `gradients` comes from [`gradients`](Self::gradients), and `weights`, by
    /// core, from the transport. Weights are read from a copy in three cases: with [`WeightsMode::Private`], with
    /// frames, and with several windows. With several hubs there are several windows if one hub is on this machine,
    /// because that hub shares its own pages.
    ///
    /// # Panics
    /// Panics if there is no core.
    pub fn new(
        wire: &Wire,
        rank: u32,
        mut gradients: Spans,
        weights: Vec<Arc<RecvWindow>>,
        mode: WeightsMode,
    ) -> Result<Self, WindowError> {
        let layout = Arc::clone(wire.layout());
        let expected = wire.weights_window_bytes();
        for window in &weights {
            if window.bytes() < expected {
                return Err(WindowError::TooSmall { expected, seen: window.bytes() as u64 });
            }
        }
        assert!(!weights.is_empty(), "at least one core");
        let is_one_window = weights.iter().all(|window| Arc::ptr_eq(window, &weights[0]));
        let private = mode == WeightsMode::Private || wire.framing().is_some() || !is_one_window;
        let elements = layout.window_bytes().div_ceil(size_of::<f32>());
        let private = private.then(|| Slab::zeroed("private weights", elements)).transpose()?;
        let lines = gradients.split_off(gradients.len() - wire.gradient_lines().count());
        let gradients = match wire.framing() {
            None => {
                assert_eq!(gradients.len(), layout.keys().len(), "one span a key");
                Gradients::Window(gradients)
            }
            Some(framing) => {
                let values = Slab::zeroed("gradients", elements)?;
                Gradients::Framed(Box::new(Coder::new(framing, rank, values, gradients)?))
            }
        };
        Ok(Windows { layout, gradients, weights, private, lines, wire: wire.clone() })
    }

    /// Returns the coder, in a job that sends frames instead of values.
    pub(crate) fn coder(&self) -> Option<&Coder> {
        match &self.gradients {
            Gradients::Window(_) => None,
            Gradients::Framed(coder) => Some(coder),
        }
    }

    pub(crate) fn coder_mut(&mut self) -> Option<&mut Coder> {
        match &mut self.gradients {
            Gradients::Window(_) => None,
            Gradients::Framed(coder) => Some(coder),
        }
    }

    /// Whether round 0 is a broadcast of weights.
    pub(crate) fn broadcasts(&self) -> bool {
        self.wire.broadcasts()
    }

    /// Returns the wire format of the job.
    pub(crate) fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Reads a hub's part of a round's norm. The core of the hub's first chunk has sent the part. Returns `None` if
    /// the part in the window is of another round.
    ///
    /// # Safety
    /// The hub must have sent the part. This worker must not yet have pushed all chunks of the round after the next
    /// round. The hub overwrites the part only four rounds later, after more pushes of this worker.
    pub(crate) unsafe fn norm_part(&self, hub: usize, round_bits: u8, core: usize) -> Option<NormSum> {
        let line = self.wire.weights_line(hub, Round(round_bits.into()));
        // SAFETY: the caller's promise.
        let words = unsafe { self.weights[core].elements::<u64>(line) }.expect("inside the window, by new");
        NormSum::read(words).filter(|part| part.round.low_bits() == round_bits)
    }

    /// Writes a hub's part of the norm into this worker's window, for the other hubs. Returns the span to post.
    pub(crate) fn pass_on(&mut self, hub: usize, part: &NormSum) -> Span {
        let of_a_hub = self.lines.len() / self.wire.hubs().len();
        let place = hub * of_a_hub + part.round.0 as usize % of_a_hub;
        part.write(self.lines.elements_mut(place));
        self.lines.span(place)
    }

    /// Returns the window that this worker writes.
    pub(crate) fn sent(&self) -> &Arc<SendWindow> {
        match &self.gradients {
            Gradients::Window(spans) => spans.window(),
            Gradients::Framed(coder) => coder.window(),
        }
    }

    /// Returns the windows that hubs write, by core.
    pub(crate) fn received(&self) -> &[Arc<RecvWindow>] {
        &self.weights
    }

    /// Sets the window that each core writes, after new links were made. The windows themselves must be the former
    /// windows, because the addresses of weights must stay.
    ///
    /// # Panics
    /// Panics if one of the windows is new.
    pub(crate) fn receive(&mut self, weights: Vec<Arc<RecvWindow>>) {
        let is_former = |window: &Arc<RecvWindow>| self.weights.iter().any(|each| Arc::ptr_eq(each, window));
        assert!(weights.iter().all(is_former), "addresses stay");
        self.weights = weights;
    }

    /// Returns the span to post for the push of a chunk, or of a group, in a round. In a job with frames,
    /// encodes the frame first, if it is not encoded yet.
    #[inline]
    pub(crate) fn outgoing(&mut self, chunk: ChunkId, round: Round, content: Content) -> Span {
        let span = self.layout.span(chunk);
        match &mut self.gradients {
            Gradients::Window(_) => span,
            Gradients::Framed(coder) => coder.encode(chunk, (round, content), span),
        }
    }

    /// Whether the caller reads weights from a copy.
    pub(crate) fn has_copy(&self) -> bool {
        self.private.is_some()
    }

    /// Returns a key's gradient, to write; `None` if it lies in a dma-buf. Here and below `E` is the key's
    /// type, as `exchange` has checked.
    pub(crate) fn gradient_mut<E: Element>(&mut self, key: KeyId) -> Option<&mut [E]> {
        self.gradients.of_key(&self.layout, key)
    }

    /// Returns a key's weights.
    ///
    /// # Safety
    /// No push of the key may be unanswered. The hub writes a key's weights only after the last worker's push of the
    /// key, and before it answers the pushes.
    pub(crate) unsafe fn weights<E: Element>(&self, key: KeyId) -> &[E] {
        // SAFETY: the caller guarantees the conditions of `read`.
        unsafe { read(&self.private, &self.weights[0], self.layout.key_span(key)) }
    }

    /// Returns a key's weights, to write. Weights that are not sent stay as the caller wrote them. `None` if
    /// only the hub writes weights.
    pub(crate) fn weights_mut<E: Element>(&mut self, key: KeyId) -> Option<&mut [E]> {
        let keeps_own = self.coder().is_some_and(Coder::keeps_own_weights);
        let copy = self.private.as_mut().filter(|_| keeps_own)?;
        Some(elements_mut(part_mut(copy, self.layout.key_span(key))))
    }

    /// Returns a key's weights, and its gradient to write. The gradient is `None` if it lies in a dma-buf.
    ///
    /// # Safety
    /// See [`weights`](Self::weights).
    pub(crate) unsafe fn tensors<E: Element>(&mut self, key: KeyId) -> (&[E], Option<&mut [E]>) {
        let Windows { layout, gradients, weights, private, .. } = self;
        // SAFETY: as in `weights`.
        let weights = unsafe { read(private, &weights[0], layout.key_span(key)) };
        (weights, gradients.of_key(layout, key))
    }

    /// Handles the answer that a core has sent for a chunk and a round. If weights are private, copies them or decodes
    /// the frame. Returns the number of bytes that arrived.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a frame of this chunk and round.
    ///
    /// # Safety
    /// See [`weights`](Self::weights), for this chunk.
    pub(crate) unsafe fn arrived(
        &mut self,
        chunk: ChunkId,
        round: Round,
        content: Content,
        core: usize,
    ) -> Result<usize, FrameError> {
        let span = self.layout.chunk(chunk).span;
        if let Some(copy) = &mut self.private {
            let copy = part_mut(copy, span);
            if let Gradients::Framed(coder) = &mut self.gradients {
                // SAFETY: the caller's promise; `new` checked that the chunk's frames are inside the window.
                let frames = unsafe { self.weights[core].elements::<u8>(coder.frames_of(chunk)) };
                let frames = frames.expect("inside the window, by new");
                return coder.decode(chunk, (round, content), frames, copy, span);
            }
            // SAFETY: the caller's promise; `new` checked that the key's span is inside the window.
            let fresh =
                unsafe { self.weights[core].elements::<u8>(span) }.expect("inside the window, by new");
            copy.copy_from_slice(fresh);
        }
        Ok(span.bytes)
    }
}

/// Returns a span of the weights: from the private copy if there is one, else from the window.
///
/// # Safety
/// See [`Windows::weights`], for the chunks of this span.
unsafe fn read<'a, E: Element>(private: &'a Option<Slab>, shared: &'a RecvWindow, span: Span) -> &'a [E] {
    match private {
        Some(copy) => elements(part(copy, span)),
        // SAFETY: the caller promises the conditions of `elements`; `new` checked the window's size.
        None => unsafe { shared.elements(span) }.expect("inside the window, by new"),
    }
}
