//! The ledger of a job: the pushes that are in its weights, and so the expected value of each weight.
//!
//! Workers that step together all push the same number, which equals its own mean. Workers that step alone (SSP, ASP)
//! each push ones, in their own elements.

mod alone;
mod together;

use std::ops::RangeInclusive;
use std::sync::Arc;

use fabric::sim;
use pbox_core::{Consistency, JobTerms, KeyId, Layout, Restored, Round, SnapshotPart};
use sim_tests::levels::Levels;
use sim_tests::simulated::Simulated;
use worker_shim::Exchange;

pub use alone::Alone;
pub use together::{Together, weights_of};

/// The part of a job that the ledger uses. Its members are workers, or machines with workers.
pub trait Members {
    /// Returns the exchange of a worker.
    fn exchange(&self, worker: usize) -> &Exchange<sim::Port>;

    /// Returns the rounds of a key that a member's workers push next, as a range from the member's slowest worker to
    /// its furthest worker.
    fn next(&self, rank: u32, key: KeyId) -> RangeInclusive<u32>;
}

/// Returns the round of a key that a worker pushes next.
fn next_push(worker: &Exchange<sim::Port>, key: KeyId) -> u32 {
    worker.round(key).0 + u32::from(!worker.is_ready(key))
}

impl Members for Simulated {
    fn exchange(&self, worker: usize) -> &Exchange<sim::Port> {
        &self.workers[worker]
    }

    fn next(&self, rank: u32, key: KeyId) -> RangeInclusive<u32> {
        let next = next_push(&self.workers[rank as usize], key);
        next..=next
    }
}

impl Members for Levels {
    fn exchange(&self, worker: usize) -> &Exchange<sim::Port> {
        &self.workers[worker].exchange
    }

    fn next(&self, rank: u32, key: KeyId) -> RangeInclusive<u32> {
        let of_rank = |worker: &usize| self.rank_above(self.workers[*worker].node) == rank as usize;
        let workers = || (0..self.workers.len()).filter(of_rank);
        let next = |worker: usize| next_push(&self.workers[worker].exchange, key);
        let takes_part = |worker: &usize| self.is_alive(*worker) && self.first_round(*worker).is_some();
        let furthest = workers().map(next).max().unwrap_or(0);
        // A worker that makes new links has pushed as many rounds as the other workers, or fewer.
        workers().filter(takes_part).map(next).min().unwrap_or(furthest)..=furthest
    }
}

/// The ledger of a job whose workers step together, or alone.
pub enum Ledger {
    Together(Together),
    Alone(Alone),
}

impl Ledger {
    /// Creates the ledger of a new job.
    pub fn new(layout: &Arc<Layout>, terms: &JobTerms) -> Self {
        match terms.level.consistency {
            Consistency::Bsp => {
                Ledger::Together(Together::new(layout, terms.clip_norm, terms.clip_norm_last))
            }
            consistency => Ledger::Alone(Alone::new(layout, consistency, terms.workers)),
        }
    }

    /// Returns the value that a worker pushes for an element of a key.
    pub fn pushed(&self, rank: u32, round: u32, element: usize) -> f32 {
        match self {
            Ledger::Together(together) => together.pushed(round),
            Ledger::Alone(alone) => f32::from(u8::from(round > 0 && alone.owner(element) == rank)),
        }
    }

    /// Notes that a worker takes part from its first round on.
    pub fn begins(&mut self, rank: u32, job: &Simulated) {
        if let Ledger::Alone(alone) = self {
            alone.begins(rank, Round(*job.next(rank, KeyId(0)).start()));
        }
    }

    /// Notes that a member pushes no more.
    pub fn ends(&mut self, rank: u32, job: &impl Members) {
        if let Ledger::Alone(alone) = self {
            alone.ends(rank, job);
        }
    }

    pub fn begin_again(&mut self, restored: Option<&Restored>) {
        match self {
            Ledger::Together(together) => {
                together.begin_again(restored);
            }
            Ledger::Alone(alone) => alone.begin_again(restored),
        }
    }

    /// Checks the weights of a worker: `of` has the rank of its member, and the worker's number. `lives` returns
    /// whether a member takes part.
    pub fn check(&mut self, of: (u32, usize), job: &impl Members, lives: impl Fn(u32) -> bool) {
        match self {
            Ledger::Together(together) => together.check(job.exchange(of.1)),
            Ledger::Alone(alone) => alone.check(of, job, lives),
        }
    }

    /// Checks a part of the last state before a round. `lowest` is the lowest round of any chunk when the job was paused.
    pub fn check_last(&mut self, part: &SnapshotPart, lowest: Round, before: Round, job: &impl Members) {
        match self {
            Ledger::Together(together) => together.check_last(part, (lowest, before)),
            Ledger::Alone(alone) => alone.check_last(part, before, job),
        }
    }

    pub fn check_part(
        &mut self,
        part: &SnapshotPart,
        before: Round,
        job: &impl Members,
        lives: impl Fn(u32) -> bool,
    ) {
        match self {
            Ledger::Together(together) => together.check_part(part, before),
            Ledger::Alone(alone) => alone.check_part(part, before, job, lives),
        }
    }
}
