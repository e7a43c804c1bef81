//! The data, network and plan that every process of a run derives from the settings.

use anyhow::Result;
use training::{Network, Samples, TrainingPlan};

use crate::args::Args;
use crate::wine;

/// One wine in five is in the test set.
const TEST_EVERY: usize = 5;
/// Widths of the hidden layers.
const HIDDEN: [usize; 2] = [64, 32];
const CLASSES: usize = 2;

/// The task of a run.
pub struct Task {
    pub train: Samples,
    pub test: Samples,
    pub network: Network,
    pub plan: TrainingPlan,
}

impl Task {
    pub fn new(args: &Args) -> Result<Self> {
        let (mut train, mut test) = wine::wines().split(args.seed, TEST_EVERY);
        train.standardise(&mut test);
        let network = Network::new([train.features(), HIDDEN[0], HIDDEN[1], CLASSES]);
        let plan = TrainingPlan::new(args.workers, args.epochs, args.batch as usize, args.seed, train.len())?;
        Ok(Task { train, test, network, plan })
    }
}
