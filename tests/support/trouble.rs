//! What a seed breaks in a simulated cluster, and the ways in which such a cluster may end.

use crate::simulated::Simulated;
use fabric::sim::{Faults, Rate};
use pbox_core::Notice;
use pbox_core::control::OnLoss;

use super::values::mix;

/// Numbers from a seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(mix(seed))
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = mix(self.0);
        self.0 % limit
    }

    pub fn from(&mut self, range: std::ops::RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Delays and reordering, which the contract allows.
    None,
    /// Posts that vanish or arrive twice, which it does not.
    Posts,
    /// A worker dies, and the job stops.
    Death,
    /// Workers die and come back, and the job goes on.
    ComingAndGoing,
}

/// What happens to a worker now.
pub enum Strike {
    Kill(u32),
    Rejoin(u32),
}

/// Ways to end that [`Trouble::end`] tells apart.
pub const ENDS: usize = 6;

impl Trouble {
    pub fn of(seed: u64) -> Self {
        [Trouble::None, Trouble::Posts, Trouble::Death, Trouble::ComingAndGoing][seed as usize % 4]
    }

    pub fn on_loss(self) -> OnLoss {
        if self == Trouble::ComingAndGoing { OnLoss::Continue } else { OnLoss::Stop }
    }

    /// The network's part of it.
    pub fn faults(self, dice: &mut Dice) -> Faults {
        let mut faults = Faults { delay: 0..dice.from(1..=30), reorder: dice.below(2) == 0, ..Faults::NONE };
        if self == Trouble::Posts {
            let mut rate = || Rate::per_mille(dice.below(30) as u32);
            (faults.drop, faults.duplicate) = (rate(), rate());
        }
        faults
    }

    /// What the dice break in this step. `begun` when all who live have the first weights.
    pub fn strike(self, dice: &mut Dice, job: &Simulated, begun: bool) -> Option<Strike> {
        let workers = job.workers.len() as u32;
        let victim = dice.below(u64::from(workers)) as u32;
        let alive = (0..workers).filter(|&rank| job.is_alive(rank)).count() as u32;
        match self {
            Trouble::None | Trouble::Posts => None,
            Trouble::Death => (alive == workers && dice.below(40) == 0).then_some(Strike::Kill(victim)),
            Trouble::ComingAndGoing if dice.below(15) > 0 => None,
            Trouble::ComingAndGoing if !job.is_alive(victim) => Some(Strike::Rejoin(victim)),
            // Before all have the weights a loss would end the job, and so would the last one's.
            Trouble::ComingAndGoing => (alive > 1 && begun).then_some(Strike::Kill(victim)),
        }
    }

    /// How a run ended; panics when it may not end so.
    pub fn end(self, ended: &Result<(), String>, notices: &[Notice]) -> &'static str {
        let said = |words: &str| {
            notices.iter().any(|notice| match notice {
                Notice::WorkerGone { reason, .. } | Notice::JobFailed { reason, .. } => {
                    reason.contains(words)
                }
                Notice::Snapshot { .. } | Notice::Skipped { .. } => false,
            })
        };
        match (self, ended) {
            (Trouble::None | Trouble::ComingAndGoing, Ok(())) => "whole",
            (Trouble::None | Trouble::ComingAndGoing, Err(error)) => panic!("{self:?}: {error}"),
            (Trouble::Posts | Trouble::Death, Ok(())) => "whole in spite of trouble",
            (Trouble::Posts, Err(_)) if said("pushed chunk") => "the hub saw a repeat",
            (Trouble::Posts, Err(error)) if error.contains("broke the protocol") => "a worker saw a repeat",
            (Trouble::Posts, Err(error)) if error.contains("waits for") => "a post is missing",
            (Trouble::Death, Err(error)) if error.contains("waits for") && said("was killed") => {
                "a worker is gone"
            }
            (trouble, Err(error)) => panic!("{trouble:?}: {error}, {notices:?}"),
        }
    }
}
