//! The plan of a session that pulls in batches, in types of Python.

use pbox_core::KeyId;
use worker_shim::PullPlan;

/// Batching; ranges of layers; start-up, prediction and mean in seconds; rounds, profiles; all of it as text.
pub type PlanTuple = (String, Vec<(usize, usize)>, Option<f64>, Option<f64>, Option<f64>, u32, u32, String);

/// Layers of keys by number.
pub fn layers(numbers: &[Vec<u32>]) -> Vec<Vec<KeyId>> {
    numbers.iter().map(|layer| layer.iter().copied().map(KeyId).collect()).collect()
}

/// A plan.
pub fn of_plan(plan: &PullPlan) -> PlanTuple {
    let PullPlan { batching, batches, profile, predicted_s, measured_s, rounds, profiles } = plan;
    let start_up = profile.as_ref().map(|profile| profile.start_up);
    let batches = batches.iter().map(|batch| (batch.start, batch.end)).collect();
    (batching.to_string(), batches, start_up, *predicted_s, *measured_s, *rounds, *profiles, plan.to_string())
}
