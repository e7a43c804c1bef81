//! The failures that a seed causes in a simulated cluster, and the ends of such a cluster.

use crate::simulated::Simulated;
use fabric::sim::{Faults, Rate};
use pbox_core::{Notice, OnLoss, Optimizer};

use super::values::mix;

/// Random numbers from a seed.
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

/// Returns an optimizer whose steps wait for the norms of a key.
pub fn optimizer_by_key(dice: &mut Dice) -> Optimizer {
    let (learning_rate, weight_decay) = (0.125, 0.01);
    match dice.below(2) {
        0 => Optimizer::Lars { learning_rate, weight_decay, momentum: 0.9, trust: 0.02 },
        _ => Optimizer::Lamb { learning_rate, weight_decay, beta1: 0.9, beta2: 0.99, epsilon: 1e-6 },
    }
}

/// Draws any optimizer.
pub fn optimizer(dice: &mut Dice) -> Optimizer {
    let (learning_rate, weight_decay, momentum) = (0.125, 0.01, 0.9);
    let (beta1, beta2, epsilon) = (0.9, 0.99, 1e-6);
    match dice.below(10) {
        0 => Optimizer::Average,
        1 => Optimizer::Sgd { learning_rate, weight_decay },
        2 => Optimizer::Momentum { learning_rate, weight_decay, momentum },
        3 => Optimizer::Nesterov { learning_rate, weight_decay, momentum },
        4 => Optimizer::Adam { learning_rate, weight_decay, beta1, beta2, epsilon },
        5 => Optimizer::AdamW { learning_rate, weight_decay, beta1, beta2, epsilon },
        6 => Optimizer::Dampened { learning_rate, weight_decay, momentum, dampening: 0.5 },
        7 => Optimizer::AmsGrad { learning_rate, weight_decay, beta1, beta2, epsilon },
        8 => Optimizer::AmsGradW { learning_rate, weight_decay, beta1, beta2, epsilon },
        _ => Optimizer::Lion { learning_rate, weight_decay, beta1, beta2 },
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Delays and reordering, which the contract of a port allows.
    None,
    /// Posts that vanish or arrive twice, which the contract does not allow.
    Posts,
    /// The death of a worker, which ends the job.
    Death,
    /// Deaths and returns of workers, while the job continues.
    ComingAndGoing,
}

/// The failure of a worker.
pub enum Strike {
    Kill(u32),
    Rejoin(u32),
}

/// The number of ends that [`Trouble::name_end`] distinguishes.
pub const ENDS: usize = 6;

impl Trouble {
    pub fn from_seed(seed: u64) -> Self {
        [Trouble::None, Trouble::Posts, Trouble::Death, Trouble::ComingAndGoing][seed as usize % 4]
    }

    pub fn on_loss(self) -> OnLoss {
        if self == Trouble::ComingAndGoing { OnLoss::Continue } else { OnLoss::Stop }
    }

    /// Returns the faults of the network.
    pub fn faults(self, dice: &mut Dice) -> Faults {
        let mut faults = Faults { delay: 0..dice.from(1..=30), reorder: dice.below(2) == 0, ..Faults::NONE };
        if self == Trouble::Posts {
            let mut rate = || Rate::per_mille(dice.below(30) as u32);
            (faults.drop, faults.duplicate) = (rate(), rate());
        }
        faults
    }

    /// Returns the event of this step, which the dice decide. `begun` says that all living workers have the
    /// first weights.
    pub fn strike(self, dice: &mut Dice, job: &Simulated, begun: bool) -> Option<Strike> {
        let workers = job.workers.len() as u32;
        let victim = dice.below(u64::from(workers)) as u32;
        let alive = (0..workers).filter(|&rank| job.is_alive(rank)).count() as u32;
        match self {
            Trouble::None | Trouble::Posts => None,
            Trouble::Death => (alive == workers && dice.below(40) == 0).then_some(Strike::Kill(victim)),
            Trouble::ComingAndGoing if dice.below(15) > 0 => None,
            Trouble::ComingAndGoing if !job.is_alive(victim) => Some(Strike::Rejoin(victim)),
            // Before all workers have the weights, the loss of any worker would end the job. Later, only the loss of
            // the last worker would.
            Trouble::ComingAndGoing => (alive > 1 && begun).then_some(Strike::Kill(victim)),
        }
    }

    /// Names the end of a run.
    ///
    /// # Panics
    /// Panics if the run is not allowed to end like this.
    pub fn name_end(self, ended: &Result<(), String>, notices: &[Notice]) -> &'static str {
        let said = |words: &str| {
            notices.iter().any(|notice| match notice {
                Notice::WorkerGone { reason, .. }
                | Notice::AboveGone { reason, .. }
                | Notice::JobFailed { reason, .. } => reason.contains(words),
                Notice::Snapshot { .. } | Notice::Skipped { .. } => false,
            })
        };
        match (self, ended) {
            (Trouble::None | Trouble::ComingAndGoing, Ok(())) => "whole",
            (Trouble::None | Trouble::ComingAndGoing, Err(error)) => panic!("{self:?}: {error}, {notices:?}"),
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
