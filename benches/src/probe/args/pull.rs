//! The probe's settings for weights that are pulled in batches of layers.

use std::time::Duration;

use pbox_core::KeyId;
use worker_shim::batch::Batching;
use worker_shim::{PROFILE_ROUNDS, Pull};

use super::COMPUTE;
use crate::compute::ComputePlan;

/// The settings of pulls in batches.
#[derive(Clone, Debug, clap::Args)]
pub struct PullArgs {
    /// Pull weights in batches of the trace's layers, as iBatch does: one batch after another, while earlier layers
    /// compute. With ibatch, batches are those that a profile of the first iterations predicts to end soonest. With
    /// greedy, batches are the paper's. With layer, each layer is a batch. With all, one batch is pulled before
    /// computing. With this flag the schedule is kvstore. Default: each key is pulled as soon as possible.
    #[arg(long, help_heading = COMPUTE, value_name = "ibatch|greedy|layer|all", requires = "compute")]
    pub pull: Option<Batching>,

    /// Delay each pull by this time, in microseconds, to imitate a system whose pulls begin slowly.
    #[arg(long, help_heading = COMPUTE, default_value_t = 0, value_name = "US", requires = "pull")]
    pub pull_start_up_us: u64,
}

impl PullArgs {
    /// Returns the pull settings of a session that computes by this plan.
    pub fn pull(&self, plan: Option<&ComputePlan>) -> Option<Pull> {
        let steps = plan.map_or(&[][..], |plan| &plan.steps[..]);
        // A layer without weights belongs to the previous layer.
        let layers: Vec<Vec<KeyId>> =
            steps.iter().map(|step| step.keys.clone()).filter(|keys| !keys.is_empty()).collect();
        let start_up = Duration::from_micros(self.pull_start_up_us);
        self.pull.map(|batching| Pull { batching, layers, start_up })
    }

    /// Returns the number of iterations before the plan.
    pub fn profile_rounds(&self) -> u32 {
        if self.pull.is_some_and(Batching::needs_profile) { 2 * PROFILE_ROUNDS } else { 0 }
    }
}
