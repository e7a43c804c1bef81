//! A worker's windows: gradients that it writes, weights that it reads.
//!
//! On the `unsafe` list: reading the weights window while the protocol says that the hub does not
//! write it. Knows spans, not rounds; `exchange` says when a key may be touched.

use std::sync::Arc;

use fabric::{MapError, RecvWindow, SendWindow, Slab, Span, SpanError, Spans};
use pbox_core::{KeyId, Layout};

/// The two windows of one worker, by key.
#[derive(Debug)]
pub struct Windows {
    layout: Arc<Layout>,
    gradients: Spans,
    weights: Arc<RecvWindow>,
    private: Option<Slab>,
}

impl Windows {
    /// Splits the gradient window by key. With `private`, weights are read from a copy.
    pub fn new(
        layout: Arc<Layout>,
        gradients: SendWindow,
        weights: Arc<RecvWindow>,
        private: bool,
    ) -> Result<Self, WindowsError> {
        let keys = (0..layout.keys().len()).map(|key| layout.key_span(KeyId(key as u32))).collect::<Vec<_>>();
        for &span in &keys {
            weights.f32_ptr(span)?;
        }
        let (_, mut spans) = gradients.split(vec![keys])?;
        let private = private
            .then(|| Slab::zeroed("private weights", layout.window_bytes() / size_of::<f32>()))
            .transpose()?;
        Ok(Windows { layout, gradients: spans.remove(0), weights, private })
    }

    /// A key's gradient, to write.
    pub(crate) fn gradient_mut(&mut self, key: KeyId) -> &mut [f32] {
        self.gradients.f32_mut(key.index())
    }

    /// A key's weights.
    ///
    /// # Safety
    /// No push of the key may be unanswered: the hub writes weights only between the last worker's
    /// push and its answer.
    pub(crate) unsafe fn weights(&self, key: KeyId) -> &[f32] {
        let span = self.layout.key_span(key);
        match &self.private {
            Some(copy) => &copy.as_slice()[elements(span)],
            // SAFETY: the caller's word is the one that `f32` asks for; `new` checked the span.
            None => unsafe { self.weights.f32(span) }.expect("checked by new"),
        }
    }

    /// Copies a span's weights where they are kept private; nothing otherwise.
    ///
    /// # Safety
    /// As for [`weights`](Self::weights), for the chunk at this span.
    pub(crate) unsafe fn arrived(&mut self, span: Span) {
        if let Some(copy) = &mut self.private {
            // SAFETY: the caller's word; the span is a part of a key's, checked by `new`.
            let fresh = unsafe { self.weights.f32(span) }.expect("checked by new");
            copy.as_mut_slice()[elements(span)].copy_from_slice(fresh);
        }
    }
}

fn elements(span: Span) -> std::ops::Range<usize> {
    span.offset / size_of::<f32>()..(span.offset + span.bytes) / size_of::<f32>()
}

/// Windows that do not fit the layout.
#[derive(Debug, thiserror::Error)]
pub enum WindowsError {
    /// A span outside.
    #[error(transparent)]
    Span(#[from] SpanError),
    /// No memory for the private copy.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl From<WindowsError> for std::io::Error {
    fn from(error: WindowsError) -> Self {
        std::io::Error::other(error)
    }
}
