//! The three stages together, and the traits that connect their types.
//!
//! Owned by the core, as a part of its shard. The caller says which workers step.
//!
//! On the `unsafe` list: the calls that read the workers' slots.

use std::sync::Arc;

use fabric::{MapError, RecvWindow, Span, SpanError, Spans};

use super::bare::Gradients;
use super::chunks::Chunk;
use super::steps::Steps;
use crate::job::JobTerms;
use crate::kernels::{Element, Kernels, LearningRates, Slots, typed};
use crate::layout::{Layout, Round};
use crate::snapshot::Restored;
use crate::wire::frame::FrameError;

/// The first stage: workers' pushes become slots that a kernel can sum.
pub(crate) trait Read {
    /// Checks a push before it counts. Returns false when the push does not count, and the worker must push the chunk
    /// again.
    ///
    /// # Errors
    /// When the push is not a frame of this chunk and round.
    fn check(
        &self,
        gradients: &Gradients,
        chunk: &Chunk,
        place: usize,
        rank: u32,
        round: Round,
    ) -> Result<bool, FrameError>;

    /// Takes one worker's push as the chunk's first weights.
    ///
    /// # Safety
    /// The worker has pushed the chunk, and gets no answer before this returns.
    unsafe fn begin<E: Element>(
        &mut self,
        gradients: &Gradients,
        chunk: &Chunk,
        rank: u32,
        weights: &mut [E],
    );

    /// Gives `then` the slots that make up the pushes of `ranks`, and the number of these workers.
    ///
    /// # Safety
    /// All of `ranks` have pushed the chunk, and none of them gets an answer before this returns.
    #[allow(clippy::too_many_arguments)] // a push is named by all of them
    unsafe fn sum<E: Element>(
        &mut self,
        kernels: &Kernels,
        gradients: &mut Gradients,
        chunk: &Chunk,
        place: usize,
        ranks: impl Iterator<Item = u32>,
        round: Round,
        then: impl FnOnce(&Slots<E>, u32),
    );
}

/// The place of the weights that a step writes. `E` is the chunk's type at the hub.
pub(crate) trait Weights {
    /// A chunk's weights.
    fn elements<E: Element>(&self, place: usize) -> &[E];

    /// A chunk's weights, to write.
    fn elements_mut<E: Element>(&mut self, place: usize) -> &mut [E];
}

/// A chunk that was stepped, or got its first weights.
pub(crate) struct Stepped<'a> {
    pub kernels: &'a Kernels,
    pub chunk: &'a Chunk,
    pub place: usize,
    pub round: Round,
    /// The number of workers whose pushes are in the step; 0 for first weights.
    pub workers: u32,
}

/// A worker that gets a chunk's weights.
pub(crate) struct To {
    pub rank: u32,
    /// The round that the weights answer.
    pub round: Round,
    /// The first round of the worker: before it, the worker has no weights to add a difference to.
    pub first: Round,
}

/// The third stage: how weights are sent to workers. A mode implements only the methods that it needs.
pub(crate) trait Reply<R, W> {
    /// Returns the span to post to a worker. The values that the worker reads are in place then.
    fn answer(&mut self, kernels: &Kernels, chunk: &Chunk, place: usize, weights: &W, to: To) -> Span;

    /// A worker is there. In modes with own weights windows, `own` is the worker's window.
    fn add_worker(&mut self, chunks: &[Chunk], weights: &W, rank: u32, own: Option<Spans>);

    /// A worker is gone.
    fn remove_worker(&mut self, _rank: u32) {}

    /// Prepares the answers of a round, right after its step.
    #[inline]
    fn prepare(&mut self, _stepped: Stepped, _read: &mut R, _weights: &W) {}

    /// The job goes on from `first` with weights that no step made: workers get these weights next.
    fn restore(&mut self, _chunks: &[Chunk], _weights: &W, _first: Round) {}

    /// Prepares the weights of the other workers for workers that have none. The other workers may still read their
    /// answers.
    fn greet(&mut self, _chunk: &Chunk, _place: usize) {}

    /// Whether a chunk with all pushes of a round must wait for a task of the core.
    #[inline]
    fn awaits_task(&self, _round: Round) -> bool {
        false
    }

    /// Whether there is a task for the core between turns.
    #[inline]
    fn has_task(&self) -> bool {
        false
    }

    /// Does the task for one chunk. Returns whether there was a chunk to do.
    fn work(&mut self, _weights: &W) -> bool {
        false
    }
}

/// A shard's chunks, their memory and their three stages.
#[derive(Debug)]
pub(crate) struct Staged<R, W, A> {
    chunks: Vec<Chunk>,
    gradients: Gradients,
    steps: Steps,
    read: R,
    weights: W,
    reply: A,
}

/// The methods that a shard needs from its stages of any type.
pub(crate) trait Stages {
    /// The chunks, by place.
    fn chunks(&self) -> &[Chunk];

    /// Checks a push before it counts, as [`Read::check`].
    fn check_push(&self, place: usize, rank: u32, round: Round) -> Result<bool, FrameError>;

    /// Sums the pushes of `ranks` and steps a chunk in `round`. `number` counts the chunk's steps from 1. In round 0,
    /// when weights are kept, the first push becomes the weights.
    ///
    /// # Safety
    /// All of `ranks` have pushed the chunk, and none of them gets an answer before this returns.
    unsafe fn step(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32>,
        round: Round,
        number: Round,
    );

    /// The span to post to a worker, like [`Reply::answer`].
    fn answer(&mut self, kernels: &Kernels, place: usize, to: To) -> Span;

    /// Adds a worker's gradients and, in modes with own weights windows, the window for its weights. Checks every
    /// span once, and touches this core's part.
    fn add_worker(
        &mut self,
        rank: u32,
        gradients: Arc<RecvWindow>,
        own: Option<Spans>,
    ) -> Result<(), SpanError>;

    /// Removes a worker's windows.
    fn remove_worker(&mut self, rank: u32);

    /// Takes weights, state and learning rates from a checkpoint.
    fn restore(&mut self, layout: &Layout, restored: &Restored);

    /// Writes a chunk's values into a snapshot.
    fn copy_to_snapshot(&self, place: usize, values: &mut [f32]);

    /// As [`Reply::greet`].
    fn greet(&mut self, place: usize);

    /// Learning rates by round.
    fn rates(&mut self) -> &mut LearningRates;

    /// As [`Reply::awaits_task`].
    fn awaits_task(&self, round: Round) -> bool;

    /// As [`Reply::has_task`].
    fn has_task(&self) -> bool;

    /// As [`Reply::work`].
    fn work(&mut self) -> bool;
}

impl<R: Read, W: Weights, A: Reply<R, W>> Staged<R, W, A> {
    /// Allocates and touches memory: call it on the thread that owns the core.
    pub fn new(
        terms: &JobTerms,
        chunks: Vec<Chunk>,
        read: R,
        weights: W,
        reply: A,
    ) -> Result<Self, MapError> {
        let steps = Steps::new(terms, &chunks)?;
        Ok(Staged { chunks, gradients: Gradients::new(terms.workers), steps, read, weights, reply })
    }
}

impl<R: Read, W: Weights, A: Reply<R, W>> Stages for Staged<R, W, A> {
    #[inline]
    fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    #[inline]
    fn check_push(&self, place: usize, rank: u32, round: Round) -> Result<bool, FrameError> {
        self.read.check(&self.gradients, &self.chunks[place], place, rank, round)
    }

    #[inline]
    unsafe fn step(
        &mut self,
        kernels: &Kernels,
        place: usize,
        mut ranks: impl Iterator<Item = u32>,
        round: Round,
        number: Round,
    ) {
        let Staged { chunks, gradients, steps, read, weights, reply } = self;
        let chunk = &chunks[place];
        let mut workers = 0;
        typed!(chunk.dtype, E => {
            let weights = weights.elements_mut::<E>(place);
            if round == Round(0) && steps.keeps_weights() {
                let Some(first) = ranks.next() else { return };
                // SAFETY: the caller guarantees it.
                unsafe { read.begin(gradients, chunk, first, weights) };
                steps.begin(chunk, weights);
            } else {
                let step = |slots: &Slots<E>, count| {
                    workers = count;
                    steps.run(kernels, chunk, slots, count, weights, round, number);
                };
                // SAFETY: the caller guarantees it.
                unsafe { read.sum(kernels, gradients, chunk, place, ranks, round, step) };
            }
        });
        reply.prepare(Stepped { kernels, chunk, place, round, workers }, read, weights);
    }

    #[inline]
    fn answer(&mut self, kernels: &Kernels, place: usize, to: To) -> Span {
        self.reply.answer(kernels, &self.chunks[place], place, &self.weights, to)
    }

    fn add_worker(
        &mut self,
        rank: u32,
        gradients: Arc<RecvWindow>,
        own: Option<Spans>,
    ) -> Result<(), SpanError> {
        self.gradients.add(rank, gradients, self.chunks.iter().map(|chunk| chunk.span))?;
        self.reply.add_worker(&self.chunks, &self.weights, rank, own);
        Ok(())
    }

    fn remove_worker(&mut self, rank: u32) {
        self.gradients.remove(rank);
        self.reply.remove_worker(rank);
    }

    fn restore(&mut self, layout: &Layout, restored: &Restored) {
        let Staged { chunks, steps, weights, reply, .. } = self;
        *steps.rates() = restored.learning_rates();
        let kept = if steps.keeps_weights() { &chunks[..] } else { &[] };
        for (place, chunk) in kept.iter().enumerate() {
            let of_layout = layout.chunk(chunk.id);
            let key = of_layout.key;
            let before = of_layout.span.offset - layout.key_span(key).offset;
            let start = before / layout.keys()[key.index()].dtype.bytes();
            typed!(chunk.dtype, E => {
                let values = steps.restore::<E>(chunk, key, start, restored);
                let weights = weights.elements_mut::<E>(place).iter_mut();
                weights.zip(values).for_each(|(weight, &value)| *weight = E::from_f32(value));
            });
        }
        reply.restore(chunks, weights, restored.round());
    }

    fn copy_to_snapshot(&self, place: usize, values: &mut [f32]) {
        let chunk = &self.chunks[place];
        if !self.steps.keeps_weights() {
            return; // nothing of it is saved
        }
        typed!(chunk.dtype, E => {
            self.steps.copy_to_snapshot(chunk, self.weights.elements::<E>(place), values);
        });
    }

    fn greet(&mut self, place: usize) {
        self.reply.greet(&self.chunks[place], place);
    }

    fn rates(&mut self) -> &mut LearningRates {
        self.steps.rates()
    }

    #[inline]
    fn awaits_task(&self, round: Round) -> bool {
        self.reply.awaits_task(round)
    }

    #[inline]
    fn has_task(&self) -> bool {
        self.reply.has_task()
    }

    fn work(&mut self) -> bool {
        self.reply.work(&self.weights)
    }
}
