//! The size of a shard's gradients: the mean over the workers, measured in one round of 64 when it is summed.
//!
//! Owned by the core, as a part of its shard. Allocates nothing after its creation. Chunks may differ by a round, so a
//! round is complete when all elements of the shard were measured.

use super::chunks::Chunk;
use crate::job::JobTerms;
use crate::kernels::{Element, Kernels, Magnitude, Slots};
use crate::layout::Round;
use crate::whole::Told;

/// The interval of rounds that are looked at, first round 1: round 0 has weights, and no gradients.
///
/// A look reads the slots a second time, right before the step, which then finds them in the cache.
const EVERY: u32 = 64;
const FIRST: u32 = 1;
/// The number of rounds that are kept.
const KEPT: usize = 32;

/// The observed gradients of a job, on one core or several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gauged {
    /// Values of a round.
    pub elements: u64,
    /// Values that were not finite, in all rounds that were looked at.
    pub not_finite: u64,
    /// The last rounds that were looked at, in any order.
    pub rounds: Vec<GaugedRound>,
    /// The last round for which all cores have the result, if steps wait for results.
    pub found: Option<Told>,
}

/// The observed gradients of one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaugedRound {
    /// The round.
    pub round: Round,
    /// Values that were looked at.
    pub elements: u64,
    /// The mean over the workers.
    pub mean: Magnitude,
}

/// The gauge of one shard.
#[derive(Debug)]
pub(super) struct Gauge {
    /// The remainder of the round numbers that are measured. If the gauge is off, no round has it.
    remainder: u32,
    elements: u64,
    not_finite: u64,
    /// The observed rounds, by number of the look modulo the length; empty when the gauge is off.
    rounds: Vec<Option<GaugedRound>>,
}

impl Gauge {
    /// Creates a gauge of a shard that steps. It is off if workers step alone, because then no round has the pushes of
    /// all workers. It is also off if the job leaves out the sum.
    pub fn new(terms: &JobTerms, chunks: &[Chunk]) -> Self {
        if terms.level.consistency.steps_alone() || terms.ablate.aggregate {
            return Self::off();
        }
        let elements = chunks.iter().map(|chunk| chunk.elements as u64).sum();
        Gauge { remainder: FIRST, elements, not_finite: 0, rounds: vec![None; KEPT] }
    }

    /// Returns a gauge that looks at nothing.
    pub fn off() -> Self {
        Gauge { remainder: EVERY, elements: 0, not_finite: 0, rounds: Vec::new() }
    }

    /// Whether the gradients of a round must be measured.
    #[inline(always)]
    pub fn concerns(&self, round: Round) -> bool {
        round.0 % EVERY == self.remainder
    }

    /// Looks at a chunk's gradients of `workers` workers, in a round that it [concerns](Self::concerns).
    #[cold]
    #[inline(never)]
    pub fn look<E: Element>(&mut self, kernels: &Kernels, slots: &Slots<E>, workers: u32, round: Round) {
        let seen = kernels.magnitude(slots, workers);
        self.not_finite += seen.not_finite;
        let kept = &mut self.rounds[(round.0 / EVERY) as usize % KEPT];
        let of_round = GaugedRound { round, elements: 0, mean: Magnitude::default() };
        let row = kept.get_or_insert(of_round);
        if row.round != round {
            *row = of_round;
        }
        row.add(slots.elements() as u64, seen);
    }

    /// Returns its observations.
    pub fn gauged(&self) -> Gauged {
        let Gauge { elements, not_finite, .. } = *self;
        Gauged { elements, not_finite, rounds: self.rounds.iter().flatten().copied().collect(), found: None }
    }
}

impl GaugedRound {
    fn add(&mut self, elements: u64, mean: Magnitude) {
        self.elements += elements;
        self.mean.squares += mean.squares;
        self.mean.not_finite += mean.not_finite;
    }
}

impl Gauged {
    /// Returns the joint observations of two shards.
    pub fn with(mut self, other: Gauged) -> Self {
        self.elements += other.elements;
        self.not_finite += other.not_finite;
        self.found = self.found.into_iter().chain(other.found).max_by_key(|found| found.round);
        for theirs in other.rounds {
            match self.rounds.iter_mut().find(|ours| ours.round == theirs.round) {
                Some(ours) => ours.add(theirs.elements, theirs.mean),
                None => self.rounds.push(theirs),
            }
        }
        self
    }

    /// Returns the rounds that were looked at as a whole, the oldest first.
    pub fn whole(&self) -> impl Iterator<Item = GaugedRound> {
        let mut whole = self.rounds.clone();
        whole.retain(|round| round.elements == self.elements);
        whole.sort_unstable_by_key(|round| round.round);
        whole.into_iter()
    }

    /// Returns the interval of rounds that are looked at.
    pub fn every(&self) -> u32 {
        EVERY
    }
}
