//! Raw replies for all workers: they read the window that the step writes. Nothing is copied.

use fabric::{Span, Spans};

use super::chunks::Chunk;
use super::staged::{Reply, To, Weights};
use crate::kernels::{Element, Kernels};

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
