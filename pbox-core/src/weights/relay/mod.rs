//! The reply of a hub below other hubs. It posts sums to the hubs above, from the window that the step writes. It posts
//! answers to the workers, from the window that the hubs above write. Nothing is copied, except in a mesh with
//! SSP or ASP, in which each machine has its own answers.

mod coded;

use fabric::{Span, Spans};

use super::bare::Push;
use super::chunks::Chunk;
use super::{Reply, Stepped, To};
use crate::kernels::Kernels;
use crate::layout::{Content, Round};
use crate::wire::counted;
use crate::wire::frame::FrameError;

pub(crate) use coded::{CodedRelay, CodedSpec, OneSum};

/// The reply that posts sums to the hubs above, and answers to the workers.
#[derive(Debug)]
pub(crate) struct Relay {
    /// The number of workers. The links to hubs above have higher numbers.
    workers: u32,
    /// The span of each chunk's sum and count, in the window that the hubs above read.
    sums: Vec<Span>,
    /// The span of each chunk's count, in the order of the chunks.
    counts: Spans,
    /// The span of each chunk in the window that the workers read. `None` if the hubs above write this window.
    shown: Option<Spans>,
    /// Whether the job's first weights come from another hub's workers. Then the hubs above read no weights from this hub.
    keeps_first: bool,
}

impl Relay {
    pub fn new(
        workers: u32,
        sums: Vec<Span>,
        counts: Spans,
        shown: Option<Spans>,
        keeps_first: bool,
    ) -> Self {
        Relay { workers, sums, counts, shown, keeps_first }
    }
}

impl<R> Reply<R, Spans> for Relay {
    #[inline]
    fn answer(&mut self, _: &Kernels, chunk: &Chunk, place: usize, _: &Spans, to: To) -> Span {
        if to.rank < self.workers {
            return chunk.span;
        }
        let sum = self.sums[place];
        match to.content {
            Content::Nothing => counted::line(sum),
            Content::Weights if to.round == Round(0) && self.keeps_first => Span { bytes: 0, ..sum },
            _ => sum,
        }
    }

    fn add_worker(&mut self, _: &[Chunk], _: &Spans, _: u32, own: Option<Spans>) {
        assert!(own.is_none(), "all workers read one window");
    }

    #[inline]
    fn prepare(&mut self, stepped: Stepped, _: &mut R, _: &Spans) {
        self.counts.elements_mut::<u32>(stepped.place)[0] = stepped.workers.to_le();
    }

    fn prepare_nothing(&mut self, _: &Chunk, place: usize, workers: u32) {
        self.counts.elements_mut::<u32>(place)[0] = workers.to_le();
    }

    #[inline]
    fn place_of_answers(&self, chunk: &Chunk) -> Option<Span> {
        self.shown.is_some().then_some(chunk.span)
    }

    fn take_answer(
        &mut self,
        _: &Kernels,
        chunk: &Chunk,
        place: usize,
        answer: Push,
        _: To,
    ) -> Result<(), FrameError> {
        if let Some(shown) = &mut self.shown {
            shown.elements_mut::<u8>(place)[..chunk.bytes].copy_from_slice(&answer.bytes()[..chunk.bytes]);
        }
        Ok(())
    }
}
