//! The step of a chunk, on the sum or on the mean of its pushes. A step uses the optimizer's rule and hyperparameters,
//! and the values that the hub keeps for each chunk in addition to the weights.
//!
//! Owned by the core, and laid out in the order of the shard's chunks.

use fabric::{MapError, Slab};
use zerocopy::{FromBytes, IntoBytes};

use super::chunks::Chunk;
use super::counts::StepCounts;
use super::former::Former;
use crate::job::JobTerms;
use crate::kernels::oracle::BLOCK_BYTES;
use crate::kernels::{
    Ablate, Before, Decay, Element, Kernels, Numbers, NumbersByRound, Optimizer, Selection, Slots, Step,
    Tensors,
};
use crate::layout::{KeyId, Round};
use crate::snapshot::Restored;
use crate::whole::{Found, Sums};

/// The optimizer's rule, its hyperparameters, and the kept values of a shard's chunks.
#[derive(Debug)]
pub(super) struct Steps {
    pub tensors: Tensors,
    /// The decay of the average of weights, if an average is kept.
    decay: Option<Decay>,
    rule: Rule,
    /// The sign of a step: 1, or -1 if steps go up the gradient.
    sign: f32,
    pub numbers: NumbersByRound,
    pub counts: StepCounts,
    /// The values in f32 that are kept in addition to the weights, chunk by chunk.
    kept: Slab,
}

/// The way in which a step uses the sum.
#[derive(Debug)]
enum Rule {
    /// The sum is not used, because the job leaves out both sum and step.
    Nothing,
    /// The sum replaces the weights.
    Sum,
    /// The mean replaces the weights: the job leaves out the step.
    Mean,
    /// The optimizer's step is made.
    Step,
}

impl Steps {
    /// Creates the steps of a shard that posts its sums to the hubs above.
    pub fn sums(terms: &JobTerms, chunks: usize) -> Result<Self, MapError> {
        let JobTerms { ablate, .. } = terms;
        let rule = if ablate.optimize && ablate.aggregate { Rule::Nothing } else { Rule::Sum };
        let kept = Slab::zeroed("nothing beside the sums", 0)?;
        let tensors = Tensors::from(Optimizer::Average);
        let numbers = NumbersByRound::new(Numbers::new(*tensors.optimizer()));
        let counts = StepCounts::new(terms, chunks);
        Ok(Steps { tensors, decay: None, rule, sign: 1.0, numbers, counts, kept })
    }

    /// Creates the steps of a shard. Allocates and touches memory: call it on the core's NUMA node.
    pub fn new(terms: &JobTerms, chunks: &[Chunk]) -> Result<Self, MapError> {
        let (tensors, sign) = (terms.tensors(), if terms.maximize { -1.0 } else { 1.0 });
        let of = |chunk: &Chunk| chunk.elements * tensors.kept_per_element(chunk.dtype);
        let mut kept = Slab::zeroed("master weights and optimizer state", chunks.iter().map(of).sum())?;
        kept.as_mut_slice().fill(0.0);
        let rule = match terms.ablate {
            Ablate { optimize: true, aggregate: true } => Rule::Nothing,
            Ablate { optimize: true, aggregate: false } => Rule::Mean,
            _ => Rule::Step,
        };
        let numbers = NumbersByRound::new(Numbers::new(terms.optimizer));
        let counts = StepCounts::new(terms, chunks.len());
        Ok(Steps { tensors, decay: tensors.decay(), rule, sign, numbers, counts, kept })
    }

    /// Whether a snapshot has values of this shard.
    pub fn keeps_weights(&self) -> bool {
        self.tensors.optimizer().keeps_weights()
    }

    /// Sums the slots, which are the pushes of `workers` workers. Steps the weights of the chunk at index `place`, and counts the
    /// step.
    #[inline]
    pub fn run<E: Element>(
        &mut self,
        kernels: &Kernels,
        (place, chunk): (usize, &Chunk),
        slots: &Slots<E>,
        workers: u32,
        weights: &mut [E],
        round: Round,
    ) {
        let number = self.counts.count(place);
        let Some((rule, step)) = self.step(chunk, workers, number, round) else { return };
        let kept =
            &mut self.kept.as_mut_slice()[chunk.kept..][..chunk.elements * rule.kept_per_element(E::DTYPE)];
        kernels.run(&rule, &step, slots, weights, kept);
        self.average(kernels, chunk, weights);
    }

    /// Works like [`run`](Self::run), but with a mean that the caller has computed over `workers` workers. `found` is the result
    /// of the round's norm.
    pub fn run_on_mean<E: Element>(
        &mut self,
        kernels: &Kernels,
        (place, chunk): (usize, &Chunk),
        (mean, workers): (&[f32], u32),
        found: Found,
        weights: &mut [E],
        round: Round,
    ) {
        let number = self.counts.count(place);
        let Some((rule, mut step)) = self.step(chunk, workers, number, round) else { return };
        step.rescale = 1f32.copysign(step.rescale);
        match found {
            Found::Scale(scale) => step.rescale *= scale,
            Found::Quotient(quotient) => step = step.adapted(&rule, quotient),
            Found::Skip => return,
        }
        let kept =
            &mut self.kept.as_mut_slice()[chunk.kept..][..chunk.elements * rule.kept_per_element(E::DTYPE)];
        kernels.step(&rule, &step, mean, weights, kept);
        self.average(kernels, chunk, weights);
    }

    /// Returns the sums of squares that a chunk adds to the norms of its key. Call this before the chunk's step on the mean,
    /// which is over `workers` workers. Changes nothing.
    pub fn squares<E: Element>(
        &self,
        kernels: &Kernels,
        (place, chunk): (usize, &Chunk),
        (mean, workers): (&[f32], u32),
        weights: &[E],
        round: Round,
    ) -> Sums {
        let mut sums = Sums::default();
        let number = Round(self.counts.of(place).saturating_add(1));
        let Some((rule, mut step)) = self.step(chunk, workers, number, round) else { return sums };
        step.rescale = 1f32.copysign(step.rescale);
        let (master, states) = (rule.master_per_element(E::DTYPE), rule.state_per_element());
        let kept = &self.kept.as_slice()[chunk.kept..];
        let (master, kept) = kept.split_at(chunk.elements * master);
        let (first, kept) = kept.split_at(chunk.elements);
        let second = &kept[..chunk.elements * (states - 1)];
        let in_f32 = |weights| <[f32]>::ref_from_bytes(weights).expect("weights without a master are f32");
        let weights = if master.is_empty() { in_f32(weights.as_bytes()) } else { master };
        let length = BLOCK_BYTES / size_of::<E>();
        for at in (0..chunk.elements).step_by(length) {
            let block = at..chunk.elements.min(at + length);
            let second = if second.is_empty() { second } else { &second[block.clone()] };
            let states = [&first[block.clone()], second];
            let before = Before { mean: &mean[block.clone()], weights: &weights[block], states };
            let squares = kernels.squares(&rule, &step, before);
            sums.iter_mut().zip(squares).for_each(|(sum, square)| sum.add(square));
        }
        sums
    }

    /// Updates the average of a chunk's weights after a step, if the job keeps an average.
    #[inline]
    fn average<E: Element>(&mut self, kernels: &Kernels, chunk: &Chunk, weights: &[E]) {
        let Some(decay) = self.decay else { return };
        let (master, _, averages) = self.kept_of::<E>(chunk);
        // If there are no master weights, the weights are f32.
        let in_f32 = |weights| <[f32]>::ref_from_bytes(weights).expect("weights without a master are f32");
        let weights = if master.is_empty() { in_f32(weights.as_bytes()) } else { &*master };
        kernels.average(decay, weights, averages);
    }

    /// Makes a trial of the [step](Self::run) on `weights`. Nothing else changes.
    #[allow(clippy::too_many_arguments)]
    pub fn run_trial<E: Element>(
        &self,
        kernels: &Kernels,
        (place, chunk): (usize, &Chunk),
        slots: &Slots<E>,
        workers: u32,
        weights: &mut [E],
        round: Round,
        former: &mut Former,
    ) {
        let number = Round(self.counts.of(place).saturating_add(1));
        let Some((rule, step)) = self.step(chunk, workers, number, round) else { return };
        let kept = &self.kept.as_slice()[chunk.kept..][..chunk.elements * rule.kept_per_element(E::DTYPE)];
        kernels.run(&rule, &step, slots, weights, former.trial(kept));
    }

    /// Returns the rule and the hyperparameters of a chunk's step. `number` is the number of the step. `None` if the step leaves
    /// the weights unchanged.
    #[inline]
    fn step(&self, chunk: &Chunk, workers: u32, number: Round, round: Round) -> Option<(Optimizer, Step)> {
        let numbers = self.numbers.at(round);
        let optimizer = numbers.of(chunk.key);
        let (rule, workers) = match self.rule {
            Rule::Nothing => return None,
            Rule::Sum => (Optimizer::Average, 1), // the hub that steps divides the sum
            Rule::Mean => (Optimizer::Average, workers),
            Rule::Step => (*optimizer, workers),
        };
        let [lr_mult, wd_mult] = match &numbers.multipliers {
            None => [chunk.lr_mult, chunk.wd_mult],
            Some(multipliers) => multipliers[chunk.key.index()],
        };
        let mut step = Step::new(&rule, workers, number, optimizer.learning_rate(), lr_mult, wd_mult);
        step.rescale *= self.sign;
        Some((rule, step))
    }

    /// Takes new weights of a chunk. They also become the chunk's master weights and, if the chunk has made no step, its average.
    pub fn begin<E: Element>(&mut self, (place, chunk): (usize, &Chunk), weights: &[E]) {
        let is_first = self.counts.of(place) == 0;
        let (master, _, averages) = self.kept_of::<E>(chunk);
        let averages = if is_first { averages } else { &mut [] };
        master.iter_mut().zip(weights).for_each(|(master, weight)| *master = weight.to_f32());
        averages.iter_mut().zip(weights).for_each(|(average, weight)| *average = weight.to_f32());
    }

    /// Returns master weights, optimizer state and average of a chunk.
    pub fn kept_of<E: Element>(&mut self, chunk: &Chunk) -> (&mut [f32], &mut [f32], &mut [f32]) {
        let optimizer = self.tensors.optimizer();
        let (master, states) = (optimizer.master_per_element(E::DTYPE), optimizer.state_per_element());
        let kept = chunk.elements * self.tensors.kept_per_element(E::DTYPE);
        let kept = &mut self.kept.as_mut_slice()[chunk.kept..][..kept];
        let (master, rest) = kept.split_at_mut(chunk.elements * master);
        let (state, averages) = rest.split_at_mut(chunk.elements * states);
        (master, state, averages)
    }

    /// Takes a chunk's state and its number of steps from a checkpoint. The chunk's elements begin at element `start` of
    /// the key. Returns the chunk's weights in the checkpoint.
    pub fn restore<'a, E: Element>(
        &mut self,
        (place, chunk): (usize, &Chunk),
        key: KeyId,
        start: usize,
        restored: &'a Restored,
    ) -> &'a [f32] {
        let elements = chunk.elements;
        let range = start..start + elements;
        let weights = restored.weights(key, range.clone());
        self.counts.restore(place, key, restored);
        let (master, state, averages) = self.kept_of::<E>(chunk);
        master.copy_from_slice(&weights[..master.len()]);
        let states =
            state.chunks_exact_mut(elements.max(1)).chain(averages.chunks_exact_mut(elements.max(1)));
        for (which, state) in states.enumerate() {
            state.copy_from_slice(restored.state(key, which, range.clone()));
        }
        weights
    }

    /// Writes the selected values of a chunk for a snapshot. They are its weights (the master weights, if there are any) and
    /// its state.
    pub fn copy_to_snapshot<E: Element>(
        &self,
        chunk: &Chunk,
        weights: &[E],
        selection: Selection,
        values: &mut [f32],
    ) {
        let elements = chunk.elements;
        // Kept values are laid out as in a snapshot of all tensors. If there are no master weights, the weights come
        // before the kept values.
        let before_kept = 1 - self.tensors.optimizer().master_per_element(E::DTYPE);
        let values = values.chunks_exact_mut(elements.max(1));
        for (tensor, values) in self.tensors.selected(selection).zip(values) {
            match tensor.place().checked_sub(before_kept) {
                None => values.iter_mut().zip(weights).for_each(|(value, weight)| *value = weight.to_f32()),
                Some(of_kept) => {
                    let begin = chunk.kept + of_kept * elements;
                    values.copy_from_slice(&self.kept.as_slice()[begin..][..elements]);
                }
            }
        }
    }
}
