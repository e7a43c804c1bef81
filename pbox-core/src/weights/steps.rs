//! The step: the optimizer's rule, its learning rates, and the values that it keeps of each chunk beside the weights.
//!
//! Owned by the core. All modes use this step. Knows neither windows nor frames.

use fabric::{MapError, Slab};

use super::chunks::Chunk;
use crate::job::JobTerms;
use crate::kernels::Step;
use crate::kernels::{Ablate, Element, Kernels, LearningRates, Optimizer, Slots};
use crate::layout::{KeyId, Round};
use crate::snapshot::Restored;

/// Steps a shard's chunks.
#[derive(Debug)]
pub(crate) struct Steps {
    optimizer: Optimizer,
    /// `None` when the job leaves out both sum and step.
    rule: Option<Optimizer>,
    rates: LearningRates,
    /// By chunk, in f32: master weights, when the hub's weights are coarser, then optimizer state.
    kept: Slab,
}

impl Steps {
    /// Allocates and touches memory: call it on the thread that owns the core.
    pub fn new(terms: &JobTerms, chunks: &[Chunk]) -> Result<Self, MapError> {
        let optimizer = terms.optimizer;
        let of = |chunk: &Chunk| chunk.elements * optimizer.kept_per_element(chunk.dtype);
        let mut kept = Slab::zeroed("master weights and optimizer state", chunks.iter().map(of).sum())?;
        kept.as_mut_slice().fill(0.0);
        let rule = match terms.ablate {
            Ablate { optimize: true, aggregate: true } => None,
            Ablate { optimize: true, aggregate: false } => Some(Optimizer::Average),
            _ => Some(optimizer),
        };
        Ok(Steps { optimizer, rule, rates: LearningRates::new(optimizer.learning_rate()), kept })
    }

    /// Whether round 0 is a broadcast of the first weights.
    #[inline]
    pub fn keeps_weights(&self) -> bool {
        self.optimizer.keeps_weights()
    }

    /// Learning rates by round.
    pub fn rates(&mut self) -> &mut LearningRates {
        &mut self.rates
    }

    /// Sums the slots, which are the pushes of this many workers, and steps the weights. `number` counts the chunk's
    /// steps from 1.
    #[inline]
    #[allow(clippy::too_many_arguments)] // what a step depends on
    pub fn run<E: Element>(
        &mut self,
        kernels: &Kernels,
        chunk: &Chunk,
        slots: &Slots<E>,
        workers: u32,
        weights: &mut [E],
        round: Round,
        number: Round,
    ) {
        let Some(rule) = &self.rule else { return };
        let step = Step::new(rule, workers, number, self.rates.at(round), chunk.lr_mult, chunk.wd_mult);
        let kept =
            &mut self.kept.as_mut_slice()[chunk.kept..][..chunk.elements * rule.kept_per_element(E::DTYPE)];
        kernels.run(rule, &step, slots, weights, kept);
    }

    /// The chunk begins with these weights. They become the master weights, too.
    pub fn begin<E: Element>(&mut self, chunk: &Chunk, weights: &[E]) {
        let (master, _) = self.kept_of::<E>(chunk);
        master.iter_mut().zip(weights).for_each(|(master, weight)| *master = weight.to_f32());
    }

    /// Master weights and state of a chunk.
    fn kept_of<E: Element>(&mut self, chunk: &Chunk) -> (&mut [f32], &mut [f32]) {
        let kept = chunk.elements * self.optimizer.kept_per_element(E::DTYPE);
        let kept = &mut self.kept.as_mut_slice()[chunk.kept..][..kept];
        kept.split_at_mut(chunk.elements * self.optimizer.master_per_element(E::DTYPE))
    }

    /// Takes a chunk's state from a checkpoint. The chunk's elements begin at `start` in the key. Returns the chunk's
    /// weights in the checkpoint.
    pub fn restore<'a, E: Element>(
        &mut self,
        chunk: &Chunk,
        key: KeyId,
        start: usize,
        restored: &'a Restored,
    ) -> &'a [f32] {
        let (elements, states) = (chunk.elements, self.optimizer.state_per_element());
        let range = start..start + elements;
        let weights = restored.weights(key, range.clone());
        let (master, state) = self.kept_of::<E>(chunk);
        master.copy_from_slice(&weights[..master.len()]);
        for which in 0..states {
            let state = &mut state[which * elements..][..elements];
            state.copy_from_slice(restored.state(key, which, range.clone()));
        }
        weights
    }

    /// Writes a chunk's values for a snapshot: its weights (the master weights, if there are any), then its state.
    pub fn copy_to_snapshot<E: Element>(&self, chunk: &Chunk, weights: &[E], values: &mut [f32]) {
        let kept = chunk.elements * self.optimizer.kept_per_element(E::DTYPE);
        // Kept values are laid out as in a snapshot. Weights without a master stand before them.
        let (rounded, rest) = values.split_at_mut(values.len() - kept);
        rounded.iter_mut().zip(weights).for_each(|(value, weight)| *value = weight.to_f32());
        rest.copy_from_slice(&self.kept.as_slice()[chunk.kept..][..kept]);
    }
}
