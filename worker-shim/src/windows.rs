//! A worker's windows: gradients that it writes, weights that it reads.
//!
//! On the `unsafe` list: reading the weights window while the protocol says that the hub does not
//! write it. Knows spans, not rounds; `exchange` says when a key may be touched.

use std::sync::Arc;

use fabric::{RecvWindow, SendWindow, Slab, Span, Spans, WindowError};
use pbox_core::{Element, KeyId, Layout};
use zerocopy::{FromBytes, IntoBytes};

/// The two windows of one worker, by key.
#[derive(Debug)]
pub struct Windows {
    layout: Arc<Layout>,
    gradients: Spans,
    /// By core: the window in which its hub's answers come, the same for all cores of a hub.
    weights: Vec<Arc<RecvWindow>>,
    private: Option<Slab>,
}

impl Windows {
    /// A gradient window for the layout, and its spans by key. The window goes to the transport.
    pub fn gradients(layout: &Layout) -> Result<(Arc<SendWindow>, Spans), WindowError> {
        let keys = (0..layout.keys().len()).map(|key| layout.key_span(KeyId(key as u32))).collect();
        let split = SendWindow::new(layout.window_bytes())?.split(vec![keys]);
        let (window, mut spans) = split.expect("a layout's keys are disjoint, aligned and inside");
        Ok((window, spans.remove(0)))
    }

    /// A worker's windows: `gradients` from [`gradients`](Self::gradients), `weights` of each core as the
    /// transport shows its hub's. With `private`, weights are read from a copy.
    ///
    /// # Panics
    /// When there is no core, or the cores are of several hubs and `private` is not set: a key's weights may lie
    /// in several windows then, and only the copy has them in one piece.
    pub fn new(
        layout: Arc<Layout>,
        gradients: Spans,
        weights: Vec<Arc<RecvWindow>>,
        private: bool,
    ) -> Result<Self, WindowError> {
        assert_eq!(gradients.len(), layout.keys().len(), "one span a key");
        let expected = layout.window_bytes();
        for window in &weights {
            if window.bytes() < expected {
                return Err(WindowError::TooSmall { expected, seen: window.bytes() as u64 });
            }
        }
        let one = weights.iter().all(|window| Arc::ptr_eq(window, &weights[0]));
        assert!(!weights.is_empty() && (one || private), "weights of several hubs are copied");
        let elements = expected.div_ceil(size_of::<f32>());
        let private = private.then(|| Slab::zeroed("private weights", elements)).transpose()?;
        Ok(Windows { layout, gradients, weights, private })
    }

    /// A key's gradient, to write. `E` is the key's type, here and below: `exchange` has checked it.
    pub(crate) fn gradient_mut<E: Element>(&mut self, key: KeyId) -> &mut [E] {
        self.gradients.elements_mut(key.index())
    }

    /// A key's weights.
    ///
    /// # Safety
    /// No push of the key may be unanswered: the hub writes weights only between the last worker's
    /// push and its answer.
    pub(crate) unsafe fn weights<E: Element>(&self, key: KeyId) -> &[E] {
        // SAFETY: the caller's word is the one that `read` asks for.
        unsafe { read(&self.private, &self.weights[0], self.layout.key_span(key)) }
    }

    /// A key's weights, and its gradient to write.
    ///
    /// # Safety
    /// As for [`weights`](Self::weights).
    pub(crate) unsafe fn tensors<E: Element>(&mut self, key: KeyId) -> (&[E], &mut [E]) {
        let Windows { layout, gradients, weights, private } = self;
        // SAFETY: as in `weights`.
        let weights = unsafe { read(private, &weights[0], layout.key_span(key)) };
        (weights, gradients.elements_mut(key.index()))
    }

    /// Copies a span's weights, which came from this core, where they are kept private; nothing otherwise.
    ///
    /// # Safety
    /// As for [`weights`](Self::weights), for the chunk at this span.
    pub(crate) unsafe fn arrived(&mut self, span: Span, core: usize) {
        if let Some(copy) = &mut self.private {
            // SAFETY: the caller's word; the span is a part of a key's, inside by `new`.
            let fresh =
                unsafe { self.weights[core].elements::<u8>(span) }.expect("inside the window, by new");
            copy.as_mut_slice().as_mut_bytes()[bytes(span)].copy_from_slice(fresh);
        }
    }
}

/// A span of the weights, wherever this worker reads them.
///
/// # Safety
/// As for [`Windows::weights`], for the chunks of this span.
unsafe fn read<'a, E: Element>(private: &'a Option<Slab>, shared: &'a RecvWindow, span: Span) -> &'a [E] {
    match private {
        Some(copy) => <[E]>::ref_from_bytes(&copy.as_slice().as_bytes()[bytes(span)])
            .expect("a key starts on 64 bytes and holds whole elements"),
        // SAFETY: the caller's word is the one that `elements` asks for; `new` checked the window's size.
        None => unsafe { shared.elements(span) }.expect("inside the window, by new"),
    }
}

fn bytes(span: Span) -> std::ops::Range<usize> {
    span.offset..span.offset + span.bytes
}
