//! The values of a shard: weights, what is kept beside them, the workers' windows, and the [`step`].
//!
//! Owned by the core, as a part of its shard, and laid out by place: the chunks' order in the shard.
//! Knows who steps only by what it is told.
//!
//! ```text
//!   BSP        slots of all --step--> weights: the window that all workers read
//!   SSP, ASP   slot of one  --step--> weights: the hub's own --at each answer--> that worker's window
//! ```
//!
//! In a compressed job slots and windows hold frames, and the weights are the hub's own, in f32: what follows from where
//! they are is in [`weights`].

mod coded;
mod private;
#[allow(unsafe_code)]
mod step;
mod store;

use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use fabric::{MapError, RecvWindow, Slab, Span, SpanError, Spans};

use crate::job::JobTerms;
use crate::kernels::{Ablate, Element, Gradients, LearningRates, Optimizer, typed};
use crate::layout::{Chunk, ChunkId, Dtype, Layout, Round};
use crate::slim::Selection;
use crate::snapshot::Restored;
use crate::wire::Wire;

pub(crate) use private::HubWeights;
use store::Weights;

/// One owned chunk.
#[derive(Debug)]
pub(crate) struct Owned {
    pub chunk: ChunkId,
    /// Its place in the windows.
    pub span: Span,
    /// Length of its values there, without frames.
    pub bytes: usize,
    elements: usize,
    /// Of the weights as the hub has them.
    dtype: Dtype,
    /// Where what is kept of it begins: master weights, where the window is too coarse, then state.
    kept: usize,
    /// Where its values begin in a snapshot's part.
    values: usize,
    lr_mult: f32,
    wd_mult: f32,
}

/// Memory and arithmetic of a shard's chunks.
#[derive(Debug)]
pub(crate) struct Values {
    owned: Vec<Owned>,
    weights: Weights,
    kept: Slab,
    gradients: Gradients,
    /// Weights windows of single workers, by rank.
    own_weights: Vec<Option<Spans>>,
    optimizer: Optimizer,
    ablate: Ablate,
    learning_rates: LearningRates,
    answers_apart: bool,
}

impl Values {
    /// Allocates and touches memory: on the thread that owns the core.
    pub fn new(
        wire: &Wire,
        chunks: &[ChunkId],
        weights: Spans,
        terms: &JobTerms,
        selection: Option<Selection>,
    ) -> Result<Self, MapError> {
        let JobTerms { workers, optimizer, ablate, .. } = *terms;
        assert_eq!(weights.len(), chunks.len(), "one span a chunk");
        let layout = wire.layout();
        let mut owned = Vec::with_capacity(chunks.len());
        let (mut kept_elements, mut values) = (0, 0);
        for &id in chunks {
            let chunk = layout.chunk(id);
            let key = &layout.keys()[chunk.key.index()];
            let dtype = if wire.framing().is_some() { Dtype::F32 } else { key.dtype };
            let elements = chunk.span.bytes / key.dtype.bytes();
            owned.push(Owned {
                chunk: id,
                span: wire.span(id),
                bytes: chunk.span.bytes,
                elements,
                dtype,
                kept: kept_elements,
                values,
                lr_mult: key.lr_mult,
                wd_mult: key.wd_mult,
            });
            kept_elements += elements * optimizer.kept_per_element(dtype);
            values += elements * optimizer.saved_per_element();
        }
        let weights = Weights::new(wire, chunks, weights, workers, selection)?;
        let mut kept = Slab::zeroed("master weights and optimizer state", kept_elements)?;
        kept.as_mut_slice().fill(0.0);
        Ok(Values {
            owned,
            weights,
            kept,
            gradients: Gradients::new(workers),
            own_weights: (0..workers).map(|_| None).collect(),
            learning_rates: LearningRates::new(optimizer.learning_rate()),
            answers_apart: wire.framing().is_some_and(|framing| framing.compression().has_own_answers()),
            optimizer,
            ablate,
        })
    }

    /// Takes weights, state and learning rates from a checkpoint.
    pub fn restore(&mut self, layout: &Layout, restored: &Restored) {
        self.learning_rates = restored.learning_rates();
        for place in 0..self.owned.len() {
            if self.optimizer.keeps_weights() {
                typed!(self.owned[place].dtype, E => self.restore_in::<E>(place, layout, restored));
            }
            self.weights.restored(place, &mut self.own_weights);
        }
        self.weights.begin_at(restored.round());
    }

    fn restore_in<E: Element>(&mut self, place: usize, layout: &Layout, restored: &Restored) {
        let owned = &self.owned[place];
        let Chunk { key, span } = layout.chunk(owned.chunk);
        let start = (span.offset - layout.key_span(key).offset) / layout.keys()[key.index()].dtype.bytes();
        let elements = owned.elements;
        let range = start..start + elements;
        let weights = restored.weights(key, range.clone());
        round_into::<E>(self.weights.elements_mut(place), weights);
        let kept = &mut self.kept.as_mut_slice()[owned.kept..];
        let (master, state) = kept.split_at_mut(elements * self.optimizer.master_per_element(E::DTYPE));
        master.copy_from_slice(&weights[..master.len()]);
        for which in 0..self.optimizer.state_per_element() {
            let state = &mut state[which * elements..][..elements];
            state.copy_from_slice(restored.state(key, which, range.clone()));
        }
    }

    /// The chunk at a place.
    #[inline]
    pub fn owned(&self, place: usize) -> &Owned {
        &self.owned[place]
    }

    /// What is done with sums.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Learning rates by round.
    pub fn learning_rates(&mut self) -> &mut LearningRates {
        &mut self.learning_rates
    }

    /// Length of a snapshot's part.
    pub fn snapshot_elements(&self) -> usize {
        self.owned.last().map_or(0, |last| self.snapshot_range(last).end)
    }

    /// Where a chunk's values are in a snapshot's part.
    pub fn in_snapshot(&self, place: usize) -> Range<usize> {
        self.snapshot_range(&self.owned[place])
    }

    fn snapshot_range(&self, owned: &Owned) -> Range<usize> {
        owned.values..owned.values + owned.elements * self.optimizer.saved_per_element()
    }

    /// A chunk's values for a snapshot: the weights, which are the master's where there is one, then the
    /// state.
    pub fn copy_to_snapshot(&self, place: usize, values: &mut [f32]) {
        if self.optimizer.keeps_weights() {
            typed!(self.owned[place].dtype, E => self.copy_in::<E>(place, values));
        }
    }

    fn copy_in<E: Element>(&self, place: usize, values: &mut [f32]) {
        let owned = &self.owned[place];
        let kept_elements = owned.elements * self.optimizer.kept_per_element(E::DTYPE);
        // What is kept is laid out as a snapshot is, but for weights that the window alone has.
        let (weights, kept) = values.split_at_mut(values.len() - kept_elements);
        weights.iter_mut().zip(self.weights.elements::<E>(place)).for_each(|(w, e)| *w = e.to_f32());
        kept.copy_from_slice(&self.kept.as_slice()[owned.kept..][..kept_elements]);
    }

    /// Brings in a worker's gradients, and the window for its own weights where it has one; checks every
    /// span once, and touches this core's part.
    pub fn add_worker(
        &mut self,
        rank: u32,
        gradients: Arc<RecvWindow>,
        weights: Option<Spans>,
    ) -> Result<(), SpanError> {
        self.gradients.add(rank, gradients, self.owned.iter().map(|owned| owned.span))?;
        self.own_weights[rank as usize] = weights.map(|mut weights| {
            assert_eq!(weights.len(), self.owned.len(), "one span a chunk");
            self.weights.begin_own(&mut weights);
            weights
        });
        Ok(())
    }

    /// Takes a worker's windows out.
    pub fn remove_worker(&mut self, rank: u32) {
        self.gradients.remove(rank);
        self.own_weights[rank as usize] = None;
    }

    /// Copies a chunk's weights to where worker `rank` alone reads them; nothing where all read the same.
    #[inline]
    pub fn show(&mut self, place: usize, rank: u32) {
        if let Some(own) = &mut self.own_weights[rank as usize] {
            self.weights.show(place, own);
        }
    }

    /// Sees to it that one who has no weights yet is sent what the others have; they may still read their answer.
    pub fn show_newcomers(&mut self, place: usize) {
        self.weights.show_newcomers(place);
    }

    /// What of a chunk is posted to a worker for a round, which takes part from `first` on.
    #[inline]
    pub fn answer_span(&self, place: usize, rank: u32, round: Round, first: Round) -> Span {
        self.weights.answer_span(place, self.owned[place].span, rank, round, first)
    }

    /// Whether a chunk that has all pushes of a round must wait for a selection of Slim-DP's core.
    #[inline]
    pub fn is_awaited(&self, round: Round) -> bool {
        self.weights.is_awaited(round)
    }

    /// Whether each worker is sent something else, in rounds that end for all at once.
    pub fn answers_apart(&self) -> bool {
        self.answers_apart
    }

    /// What to wake the core with that owns these values, when a selection can go on.
    pub fn wake_for_selections(&self, waker: Waker) {
        self.weights.wake_for_selections(waker);
    }

    /// Whether a selection may go on between turns.
    #[inline]
    pub fn is_selecting(&self) -> bool {
        self.weights.is_selecting()
    }

    /// Goes on with a selection by one chunk; whether it did.
    pub fn select(&mut self) -> bool {
        self.weights.select()
    }
}

/// Weights as a window of this type holds them.
fn round_into<E: Element>(window: &mut [E], weights: &[f32]) {
    window.iter_mut().zip(weights).for_each(|(place, &weight)| *place = E::from_f32(weight));
}
