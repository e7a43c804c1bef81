//! The plan of a run. It is the same in all processes of the run.

use anyhow::{Result, ensure};
use pbox_core::Optimizer;

/// The limit on the workers, which share the batch of a round.
pub const MAX_WORKERS: u32 = 32;

/// Step size of the first epoch.
const LEARNING_RATE: f32 = 0.02;
/// The factor by which the step size is multiplied after every epoch.
const DECAY: f32 = 0.95;
/// `mu`.
const MOMENTUM: f32 = 0.9;
/// L2 penalty of weights; biases have none.
const WEIGHT_DECAY: f32 = 5e-3;

/// The plan of a run: its length, its data and its step sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingPlan {
    /// The number of workers, each of which has a shard.
    pub workers: u32,
    /// The number of passes through the training set.
    pub epochs: u32,
    /// The number of samples of one worker in a round.
    pub batch: usize,
    /// The number of rounds in an epoch. It is the same for all workers, because a round ends only when all workers have
    /// pushed.
    pub rounds_per_epoch: usize,
    /// The seed of the split, of the first weights, and of the order of the batches.
    pub seed: u64,
}

impl TrainingPlan {
    /// Divides `round_batch` samples per round between the workers. With more workers, a step has the same number of
    /// samples, and each worker has fewer.
    ///
    /// # Errors
    /// Returns an error if the smallest shard does not have a whole batch.
    pub fn new(workers: u32, epochs: u32, round_batch: usize, seed: u64, train: usize) -> Result<Self> {
        ensure!((1..=MAX_WORKERS).contains(&workers), "{workers} workers; expected 1 to {MAX_WORKERS}");
        let batch = (round_batch / workers as usize).max(1);
        let rounds_per_epoch = train / workers as usize / batch;
        ensure!(
            rounds_per_epoch > 0,
            "a round takes {round_batch} samples, but the training set has {train}: ask for a smaller batch"
        );
        Ok(TrainingPlan { workers, epochs, batch, rounds_per_epoch, seed })
    }

    /// Returns the number of rounds, not counting the broadcast of the first weights.
    pub fn rounds(&self) -> usize {
        self.epochs as usize * self.rounds_per_epoch
    }

    /// Returns the hub's optimizer.
    pub fn optimizer(&self) -> Optimizer {
        Optimizer::Nesterov {
            learning_rate: self.learning_rate(0),
            weight_decay: WEIGHT_DECAY,
            momentum: MOMENTUM,
        }
    }

    /// Returns the step size of an epoch. It is computed by repeated multiplication, because the power function of a
    /// library may round differently on another machine.
    pub fn learning_rate(&self, epoch: u32) -> f32 {
        (0..epoch).fold(LEARNING_RATE, |rate, _| rate * DECAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_needs_a_whole_batch() {
        let plan = TrainingPlan::new(4, 3, 64, 1, 1000).unwrap();
        assert_eq!((plan.batch, plan.rounds_per_epoch, plan.rounds()), (16, 15, 45));
        assert!(TrainingPlan::new(1, 3, 2000, 1, 1000).unwrap_err().to_string().contains("smaller batch"));
        assert!(TrainingPlan::new(33, 3, 64, 1, 1000).is_err());
    }

    #[test]
    fn the_learning_rate_falls_epoch_by_epoch() {
        let plan = TrainingPlan::new(1, 3, 64, 1, 1000).unwrap();
        assert_eq!(plan.learning_rate(0), plan.optimizer().learning_rate());
        assert!((0..100).all(|epoch| plan.learning_rate(epoch + 1) < plan.learning_rate(epoch)));
    }
}
