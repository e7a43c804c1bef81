//! The ledger of a job: which pushes its weights have, and so what each weight must be.
//!
//! Workers that step together push the same number, which is its own mean. Of workers that step alone each pushes ones in elements of its own.

mod alone;
mod together;

use std::sync::Arc;

use pbox_core::{Consistency, JobTerms, Layout, Restored, Round, SnapshotPart};
use sim_tests::simulated::Simulated;

pub use alone::Alone;
pub use together::{Together, weights_of};

/// The ledger of a job of either kind.
pub enum Ledger {
    Together(Together),
    Alone(Alone),
}

impl Ledger {
    /// Creates the ledger of a job that begins.
    pub fn new(layout: &Arc<Layout>, terms: &JobTerms) -> Self {
        match terms.level.consistency {
            Consistency::Bsp => Ledger::Together(Together::new(layout, terms.clip_norm)),
            consistency => Ledger::Alone(Alone::new(layout, consistency, terms.workers)),
        }
    }

    /// Returns what a worker pushes of an element of a key.
    pub fn pushed(&self, rank: u32, round: u32, element: usize) -> f32 {
        match self {
            Ledger::Together(together) => together.pushed(round),
            Ledger::Alone(alone) => f32::from(u8::from(round > 0 && alone.owner(element) == rank)),
        }
    }

    /// Notes that a worker takes part from its round on.
    pub fn begins(&mut self, rank: u32, job: &Simulated) {
        if let Ledger::Alone(alone) = self {
            alone.begins(rank, job);
        }
    }

    /// Notes that a worker pushes nothing any more.
    pub fn ends(&mut self, rank: u32, job: &Simulated) {
        if let Ledger::Alone(alone) = self {
            alone.ends(rank, job);
        }
    }

    /// Begins again from a state, or anew.
    pub fn begin_again(&mut self, restored: Option<&Restored>) {
        match self {
            Ledger::Together(together) => {
                together.begin_again(restored.map_or(Round(0), |restored| restored.round()));
            }
            Ledger::Alone(alone) => alone.begin_again(restored),
        }
    }

    /// Checks the weights of a worker. `lives` says who takes part.
    pub fn check(&mut self, rank: u32, job: &Simulated, lives: impl Fn(u32) -> bool) {
        match self {
            Ledger::Together(together) => together.check(&job.workers[rank as usize]),
            Ledger::Alone(alone) => alone.check(rank, job, lives),
        }
    }

    /// Checks a part of a snapshot before a round.
    pub fn check_part(
        &mut self,
        part: &SnapshotPart,
        before: Round,
        job: &Simulated,
        lives: impl Fn(u32) -> bool,
    ) {
        match self {
            Ledger::Together(together) => together.check_part(part, before),
            Ledger::Alone(alone) => alone.check_part(part, before, job, lives),
        }
    }
}
