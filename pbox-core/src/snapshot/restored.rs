//! A job's whole state from a checkpoint, for the hub's cores. Plain data; does not depend on files.

use std::ops::Range;

use fabric::Slab;

use crate::kernels::{Numbers, NumbersByRound, Tensor};
use crate::layout::{KeyId, Round};
use crate::whole::{ExactSum, NormMean};

/// A hub's state of a job from a checkpoint: the tensors of each key, for the elements in the hub's share.
#[derive(Debug)]
pub struct Restored {
    round: Round,
    numbers: NumbersByRound,
    values: Slab,
    keys: Vec<RestoredKey>,
    /// The number of steps of each key, if the state has the numbers. Otherwise empty.
    steps: Vec<Option<u32>>,
    /// The sum of squares of the mean gradients in the previous round, if the state has this sum.
    last_squares: Option<ExactSum>,
    /// The running mean of the norms of accepted rounds, if the state has it.
    norm_mean: NormMean,
}

/// The positions of one key's tensors among the values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredKey {
    /// The key's elements that this hub has: all elements, unless the job is spread over several hubs.
    pub elements: Range<usize>,
    /// The start of each of the key's tensors, by [`Tensor::place`]. Empty if the hub has no element of the key.
    pub starts: Vec<usize>,
}

impl Restored {
    /// Describes the values of a checkpoint.
    ///
    /// # Panics
    /// Panics if a tensor is not inside `values`, or if there are no hyperparameters of the optimizer. The reader of
    /// the checkpoint has checked both conditions.
    pub fn new(round: Round, numbers: Vec<(Round, Numbers)>, values: Slab, keys: Vec<RestoredKey>) -> Self {
        let total = values.as_slice().len();
        let inside = |key: &RestoredKey| {
            key.starts.iter().all(|start| start.saturating_add(key.elements.len()) <= total)
        };
        assert!(keys.iter().all(inside), "every tensor is inside the checkpoint's values");
        let numbers =
            NumbersByRound::of_changes(numbers).expect("a checkpoint has the optimizer's hyperparameters");
        Restored {
            round,
            numbers,
            values,
            keys,
            steps: Vec::new(),
            last_squares: None,
            norm_mean: NormMean::default(),
        }
    }

    /// Adds the number of steps of each key, if known.
    pub fn with_steps(self, steps: Vec<Option<u32>>) -> Self {
        Restored { steps, ..self }
    }

    /// Adds the sum of squares of the mean gradients in the previous round, over the hub's share.
    pub fn with_last_squares(self, last_squares: Option<ExactSum>) -> Self {
        Restored { last_squares, ..self }
    }

    /// Returns the sum of squares of the mean gradients in the previous round, if the state has this sum.
    pub fn last_squares(&self) -> Option<ExactSum> {
        self.last_squares
    }

    /// Adds the running mean of the norms of accepted rounds.
    pub fn with_norm_mean(self, norm_mean: NormMean) -> Self {
        Restored { norm_mean, ..self }
    }

    /// Returns the running mean of the norms of accepted rounds, or a mean of no norms if the state has none.
    pub fn norm_mean(&self) -> NormMean {
        self.norm_mean
    }

    /// Returns the round to continue with.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Returns the number of steps of a key, if the state has the number.
    pub fn steps(&self, key: KeyId) -> Option<u32> {
        self.steps.get(key.index()).copied().flatten()
    }

    /// Returns the optimizer's hyperparameters by round, beginning with the state's round.
    pub fn numbers(&self) -> NumbersByRound {
        self.numbers.clone()
    }

    /// Returns a range of a key's weights. Panics if the range ends beyond the last element.
    pub fn weights(&self, key: KeyId, elements: Range<usize>) -> &[f32] {
        self.tensor(key, Tensor::Weights, elements)
    }

    /// Returns a range of one state of a key. `which` is the state's index in
    /// [`Tensors::state_names`](crate::Tensors::state_names). Panics if the range ends beyond the last element, or if the
    /// job has no such state.
    pub fn state(&self, key: KeyId, which: usize, elements: Range<usize>) -> &[f32] {
        self.tensor(key, Tensor::State(which), elements)
    }

    /// Returns a range of a key's tensor. Panics as [`weights`](Self::weights) and [`state`](Self::state) do.
    pub fn tensor(&self, key: KeyId, tensor: Tensor, elements: Range<usize>) -> &[f32] {
        let key = &self.keys[key.index()];
        let first = key.elements.start;
        let values = &self.values.as_slice()[key.starts[tensor.place()]..][..key.elements.len()];
        &values[elements.start - first..elements.end - first]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Optimizer;

    #[test]
    fn what_was_restored_is_read_by_key() {
        let mut values = Slab::zeroed("test", 12).unwrap();
        values.as_mut_slice().iter_mut().zip(0u16..).for_each(|(value, n)| *value = n.into());
        let keys = vec![
            RestoredKey { elements: 0..4, starts: vec![2, 8] },
            RestoredKey { elements: 0..2, starts: vec![0, 6] },
        ];
        let of = |learning_rate| Numbers::new(Optimizer::Sgd { learning_rate, weight_decay: 0.0 });
        let numbers = vec![(Round(2), of(0.5)), (Round(9), of(0.25))];
        let restored = Restored::new(Round(7), numbers, values, keys).with_steps(vec![Some(3), None]);
        assert_eq!(restored.weights(KeyId(0), 1..3), [3.0, 4.0]);
        assert_eq!(restored.state(KeyId(0), 0, 0..4), [8.0, 9.0, 10.0, 11.0]);
        assert_eq!(restored.weights(KeyId(1), 0..2), [0.0, 1.0]);
        let numbers = restored.numbers();
        assert_eq!([7, 8, 9].map(|round| numbers.at(Round(round)).clone()), [of(0.5), of(0.5), of(0.25)]);
        assert_eq!([0, 1, 2].map(|key| restored.steps(KeyId(key))), [Some(3), None, None]);
    }
}
