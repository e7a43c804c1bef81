//! The number of steps that each chunk of a shard has made. This number can differ from the chunk's round, because a
//! round may leave the weights unchanged, or replace them.
//!
//! Owned by the core, as a part of its shard. Uses rounds only for a restored state that has no number of steps.

use std::ops::Range;

use crate::job::JobTerms;
use crate::layout::{KeyId, Round};
use crate::snapshot::Restored;

/// The step counts of a shard's chunks.
#[derive(Debug)]
pub(super) struct StepCounts {
    /// The number of steps of each chunk, by the chunk's index in the shard.
    steps: Vec<u32>,
    /// The chunks of each group that makes one step. The indices of the groups follow the indices of the chunks.
    groups: Vec<Range<usize>>,
    /// The number of steps in a round in which every worker pushes.
    of_a_round: u32,
}

impl StepCounts {
    /// Begins with chunks that have made no step.
    pub fn new(terms: &JobTerms, chunks: usize) -> Self {
        let of_a_round = if terms.level.consistency.steps_alone() { terms.workers } else { 1 };
        StepCounts { steps: vec![0; chunks], groups: Vec::new(), of_a_round }
    }

    /// Adds a group of these chunks, at the next index.
    pub fn join(&mut self, chunks: Range<usize>) {
        self.groups.push(chunks);
    }

    /// Returns the number of steps that the chunk at index `place` has made.
    pub fn of(&self, place: usize) -> u32 {
        self.steps[place]
    }

    /// Counts a step of the chunk at index `place`, or of each chunk of a group. Returns the number of this step, from 1.
    /// For a group, returns the number of the first chunk's step.
    #[inline]
    pub fn count(&mut self, place: usize) -> Round {
        let chunks = match place.checked_sub(self.steps.len()) {
            None => place..place + 1,
            Some(group) => self.groups[group].clone(),
        };
        let steps = &mut self.steps[chunks];
        // A state from a worker may have any number, so the count must not overflow.
        steps.iter_mut().for_each(|steps| *steps = steps.saturating_add(1));
        Round(steps[0])
    }

    /// Resets the count of the chunk at index `place`. The chunk's next step has number 1.
    pub fn reset(&mut self, place: usize) {
        self.steps[place] = 0;
    }

    /// Restores the number of steps of the chunk at index `place` from a state. If the state has no number, one step is
    /// counted for each round after the broadcast. In SSP and ASP, one step is counted for each round and worker.
    pub fn restore(&mut self, place: usize, key: KeyId, restored: &Restored) {
        let of_rounds = || restored.round().0.saturating_sub(1).saturating_mul(self.of_a_round);
        self.steps[place] = restored.steps(key).unwrap_or_else(of_rounds);
    }
}

#[cfg(test)]
mod tests {
    use fabric::Slab;

    use super::*;
    use crate::job::Consistency;
    use crate::kernels::{Numbers, Optimizer};
    use crate::layout::Key;
    use crate::snapshot::RestoredKey;

    const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 };

    fn counts(consistency: Consistency) -> StepCounts {
        let mut terms = JobTerms::new(3, vec![Key::f32("a", [1])], SGD);
        terms.level.consistency = consistency;
        StepCounts::new(&terms, 3)
    }

    #[test]
    fn chunks_count_by_themselves_and_a_group_counts_for_all_its_chunks() {
        let mut counts = counts(Consistency::Bsp);
        counts.join(1..3);
        assert_eq!((counts.count(0), counts.count(0), counts.count(1)), (Round(1), Round(2), Round(1)));
        assert_eq!(counts.count(3), Round(2), "of the group's first chunk");
        assert_eq!([0, 1, 2].map(|place| counts.of(place)), [2, 2, 1]);
        counts.reset(1);
        assert_eq!((counts.count(1), counts.of(2)), (Round(1), 1));
    }

    #[test]
    fn a_state_says_how_many_steps_it_has_or_has_one_for_each_round() {
        let keys = vec![RestoredKey { elements: 0..1, starts: vec![0] }; 2];
        let values = Slab::zeroed("test", 1).unwrap();
        let rates = vec![(Round(0), Numbers::new(SGD))];
        let restored = Restored::new(Round(8), rates, values, keys).with_steps(vec![None, Some(u32::MAX)]);
        for (consistency, expected) in [(Consistency::Bsp, 7), (Consistency::Asp, 21)] {
            let mut counts = counts(consistency);
            (0..2).for_each(|place| counts.restore(place, KeyId(place as u32), &restored));
            assert_eq!([counts.of(0), counts.of(1)], [expected, u32::MAX]);
            assert_eq!(counts.count(1), Round(u32::MAX), "it does not overflow");
        }
    }
}
