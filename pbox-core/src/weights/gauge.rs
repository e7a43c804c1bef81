//! The norm of a shard's mean gradient over the workers. It is measured when the pushes are summed, in one of every 64
//! rounds.
//!
//! Owned by the core, as a part of its shard. Allocates nothing after its creation. Chunks may differ by a round, so the
//! measurement of a round is complete only when all elements of the shard were measured.

use super::chunks::Chunk;
use crate::job::JobTerms;
use crate::kernels::{Element, Kernels, Magnitude, Slots};
use crate::layout::Round;
use crate::whole::NormSum;

/// The number of rounds from one measured round to the next. The first measured round is round 1, because round 0 has
/// weights and no gradients.
///
/// A measurement reads the slots a second time, right before the step. The step then finds the slots in the cache.
const EVERY: u32 = 64;
const FIRST: u32 = 1;
/// The number of rounds that are kept.
const KEPT: usize = 32;

/// The measured gradients of a job, on one core or several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gauged {
    /// The number of values in a round.
    pub elements: u64,
    /// The number of values that were not finite, in all measured rounds.
    pub not_finite: u64,
    /// The last measured rounds, in any order.
    pub rounds: Vec<GaugedRound>,
    /// The last round whose result all cores have, if steps wait for results.
    pub found: Option<NormSum>,
}

/// The measured gradients of one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaugedRound {
    /// The round.
    pub round: Round,
    /// The number of measured values.
    pub elements: u64,
    /// The mean over the workers.
    pub mean: Magnitude,
}

/// The gauge of one shard.
#[derive(Debug)]
pub(super) struct Gauge {
    /// A round is measured if its number, divided by the interval, has this remainder. If the gauge is off, no round
    /// has this remainder.
    remainder: u32,
    elements: u64,
    not_finite: u64,
    /// The measured rounds. The index of a round is the number of its measurement modulo the length. Empty if the gauge
    /// is off.
    rounds: Vec<Option<GaugedRound>>,
}

impl Gauge {
    /// Creates the gauge of a shard that steps. The gauge is off in SSP and ASP, because no round then has the
    /// pushes of all workers. It is also off if the job leaves out the sum.
    pub fn new(terms: &JobTerms, chunks: &[Chunk]) -> Self {
        if terms.level.consistency.steps_alone() || terms.ablate.aggregate {
            return Self::off();
        }
        let elements = chunks.iter().map(|chunk| chunk.elements as u64).sum();
        Gauge { remainder: FIRST, elements, not_finite: 0, rounds: vec![None; KEPT] }
    }

    /// Returns a gauge that is off.
    pub fn off() -> Self {
        Gauge { remainder: EVERY, elements: 0, not_finite: 0, rounds: Vec::new() }
    }

    /// Whether the gradients of a round must be measured.
    #[inline(always)]
    pub fn concerns(&self, round: Round) -> bool {
        round.0 % EVERY == self.remainder
    }

    /// Measures a chunk's gradients of `workers` workers, in a round that the gauge [must measure](Self::concerns).
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

    /// Returns the measurements.
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
    /// Combines the measurements of two shards.
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

    /// Returns the rounds whose measurement is complete, the oldest first.
    pub fn whole(&self) -> impl Iterator<Item = GaugedRound> {
        let mut whole = self.rounds.clone();
        whole.retain(|round| round.elements == self.elements);
        whole.sort_unstable_by_key(|round| round.round);
        whole.into_iter()
    }

    /// Returns the interval of measured rounds.
    pub fn every(&self) -> u32 {
        EVERY
    }
}
