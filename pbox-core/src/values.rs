//! The values of a shard: weights, what is kept beside them, the workers' windows, and the step.
//!
//! Owned by the core, as a part of its shard, and laid out by place: the chunks' order in the shard.
//! Knows who steps only by what it is told.
//!
//! ```text
//!   BSP        slots of all --step--> weights: the window that all workers read
//!   SSP, ASP   slot of one  --step--> weights: the hub's own --at each answer--> that worker's window
//! ```
//!
//! On the `unsafe` list: the call that reads the workers' slots.

use std::ops::Range;
use std::sync::Arc;

use fabric::{MapError, RecvWindow, Slab, Span, SpanError, Spans};

use crate::chunk::{ChunkId, Round};
use crate::element::{Element, typed};
use crate::kernels::Kernels;
use crate::key::Dtype;
use crate::layout::Layout;
use crate::optimizer::{Ablate, LearningRates, Optimizer};
use crate::oracle::Step;
use crate::restored::Restored;
use crate::slots::Gradients;

/// One owned chunk.
#[derive(Debug)]
pub(crate) struct Owned {
    pub chunk: ChunkId,
    pub span: Span,
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
    weights: Spans,
    kept: Slab,
    gradients: Gradients,
    /// Weights windows of single workers, by rank.
    own_weights: Vec<Option<Spans>>,
    optimizer: Optimizer,
    ablate: Ablate,
    learning_rates: LearningRates,
}

impl Values {
    /// Allocates and touches memory: on the thread that owns the core.
    pub fn new(
        layout: &Layout,
        chunks: &[ChunkId],
        mut weights: Spans,
        workers: u32,
        optimizer: Optimizer,
        ablate: Ablate,
    ) -> Result<Self, MapError> {
        assert_eq!(weights.len(), chunks.len(), "one span a chunk");
        let mut owned = Vec::with_capacity(chunks.len());
        let (mut kept_elements, mut values) = (0, 0);
        for (place, &id) in chunks.iter().enumerate() {
            let chunk = layout.chunk(id);
            let key = &layout.keys()[chunk.key.index()];
            owned.push(Owned {
                chunk: id,
                span: chunk.span,
                dtype: key.dtype,
                kept: kept_elements,
                values,
                lr_mult: key.lr_mult,
                wd_mult: key.wd_mult,
            });
            let elements = chunk.span.bytes / key.dtype.bytes();
            kept_elements += elements * optimizer.kept_per_element(key.dtype);
            values += elements * (1 + optimizer.state_per_element());
            weights.elements_mut::<u8>(place).fill(0);
        }
        let mut kept = Slab::zeroed("master weights and optimizer state", kept_elements)?;
        kept.as_mut_slice().fill(0.0);
        Ok(Values {
            owned,
            weights,
            kept,
            gradients: Gradients::new(workers),
            own_weights: (0..workers).map(|_| None).collect(),
            learning_rates: LearningRates::new(optimizer.learning_rate()),
            optimizer,
            ablate,
        })
    }

    /// Takes weights, state and learning rates from a checkpoint.
    pub fn restore(&mut self, layout: &Layout, restored: &Restored) {
        self.learning_rates = restored.learning_rates();
        for place in 0..self.owned.len() {
            typed!(self.owned[place].dtype, E => self.restore_in::<E>(place, layout, restored));
        }
    }

    fn restore_in<E: Element>(&mut self, place: usize, layout: &Layout, restored: &Restored) {
        let owned = &self.owned[place];
        let key = layout.chunk(owned.chunk).key;
        let start = (owned.span.offset - layout.key_span(key).offset) / size_of::<E>();
        let elements = owned.span.bytes / size_of::<E>();
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
        let elements = owned.span.bytes / owned.dtype.bytes();
        owned.values..owned.values + elements * (1 + self.optimizer.state_per_element())
    }

    /// A chunk's values for a snapshot: the weights, which are the master's where there is one, then the
    /// state.
    pub fn copy_to_snapshot(&self, place: usize, values: &mut [f32]) {
        typed!(self.owned[place].dtype, E => self.copy_in::<E>(place, values));
    }

    fn copy_in<E: Element>(&self, place: usize, values: &mut [f32]) {
        let owned = &self.owned[place];
        let kept_elements = owned.span.bytes / size_of::<E>() * self.optimizer.kept_per_element(E::DTYPE);
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
            (0..weights.len()).for_each(|place| weights.elements_mut::<u8>(place).fill(0));
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
            own.elements_mut::<u8>(place).copy_from_slice(self.weights.elements(place));
        }
    }

    /// Sum of the slots of `ranks` and step of a chunk in `round`, as the chunk's step of this `number`
    /// from 1. In round 0, where weights are kept, the first slot becomes the weights.
    ///
    /// # Safety
    /// All of `ranks` have pushed the chunk, and none of them is answered before this returns.
    #[inline]
    pub unsafe fn step(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32>,
        round: Round,
        number: Round,
    ) {
        typed!(self.owned[place].dtype, E => {
            // SAFETY: the caller's word.
            unsafe { self.step_in::<E>(kernels, place, ranks, round, number) }
        });
    }

    /// # Safety
    /// As for [`step`](Self::step).
    unsafe fn step_in<E: Element>(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32>,
        round: Round,
        number: Round,
    ) {
        let owned = &self.owned[place];
        let elements = owned.span.bytes / size_of::<E>();
        // SAFETY: all of them have pushed this chunk, and are answered after this function: the caller's
        // word.
        let mut slots = unsafe { self.gradients.slots::<E>(owned.span, ranks) };
        let workers = slots.workers() as u32;
        let weights = self.weights.elements_mut::<E>(place);
        let kept_elements = elements * self.optimizer.kept_per_element(E::DTYPE);
        let mut kept = &mut self.kept.as_mut_slice()[owned.kept..][..kept_elements];
        if round == Round(0) && self.optimizer.keeps_weights() {
            // The first round is the broadcast of rank 0's weights.
            weights.copy_from_slice(slots.slot(0));
            let (master, _state) = kept.split_at_mut(elements * self.optimizer.master_per_element(E::DTYPE));
            master.iter_mut().zip(weights).for_each(|(master, weight)| *master = weight.to_f32());
            return;
        }
        let mut optimizer = &self.optimizer;
        if self.ablate.aggregate {
            slots = slots.first();
        }
        if self.ablate.optimize {
            if self.ablate.aggregate {
                return;
            }
            (optimizer, kept) = (&Optimizer::Average, &mut []);
        }
        let learning_rate = self.learning_rates.at(round);
        let step = Step::new(optimizer, workers, number, learning_rate, owned.lr_mult, owned.wd_mult);
        kernels.run(optimizer, &step, &slots, weights, kept);
    }
}

/// Weights as a window of this type holds them.
fn round_into<E: Element>(window: &mut [E], weights: &[f32]) {
    window.iter_mut().zip(weights).for_each(|(place, &weight)| *place = E::from_f32(weight));
}
