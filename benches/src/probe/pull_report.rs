//! What the probe says of pulls in batches: the profile, the plan, and what came of it.
//!
//! Plain data, which a worker process tells its parent. Times are to the last layer: from when the first batch could be
//! pulled to when the last layer can be computed, all others being done.

use serde::{Deserialize, Serialize};
use worker_shim::batch::{Batching, Timeline};
use worker_shim::{PullPlan, Session};

/// Of one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PullReport {
    batching: String,
    /// Layers of each batch.
    batches: Vec<usize>,
    /// The mean of the iterations since the plan.
    measured_ms: Option<f64>,
    iterations: u32,
    /// How many profiles there were.
    profiles: u32,
    /// Where there is a profile.
    profile: Option<ProfileReport>,
    /// Of it, in words.
    words: String,
}

/// What was measured, and what it promises.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ProfileReport {
    predicted_ms: f64,
    start_up_ms: f64,
    /// By layer that has weights; the last one's forward is not seen, and 0.
    transfer_ms: Vec<f64>,
    forward_ms: Vec<f64>,
    /// To the last layer, by whichever batches.
    predictions: Vec<Prediction>,
}

/// What other batches promise.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Prediction {
    batching: String,
    batches: Vec<usize>,
    to_last_layer_ms: f64,
}

impl PullReport {
    /// Of a session at its end; `None` where it does not pull in batches, or has no plan yet.
    pub fn of(session: &Session) -> Option<Self> {
        let plan = session.pull_plan()?;
        Some(PullReport {
            batching: plan.batching.to_string(),
            batches: plan.batches.iter().map(ExactSizeIterator::len).collect(),
            measured_ms: plan.measured_s.map(|seconds| seconds * 1e3),
            iterations: plan.rounds,
            profiles: plan.profiles,
            profile: ProfileReport::of(plan),
            words: plan.to_string(),
        })
    }

    /// In words.
    pub fn words(&self) -> &str {
        &self.words
    }
}

impl ProfileReport {
    fn of(plan: &PullPlan) -> Option<Self> {
        let profile = plan.profile.as_ref()?;
        let prediction = |batching: Batching| {
            let batches = batching.batches(profile);
            let to_last_layer_ms = Timeline::new(profile, &batches).last_begun * 1e3;
            let batches = batches.iter().map(ExactSizeIterator::len).collect();
            Prediction { batching: batching.to_string(), batches, to_last_layer_ms }
        };
        Some(ProfileReport {
            predicted_ms: plan.predicted_s? * 1e3,
            start_up_ms: profile.start_up * 1e3,
            transfer_ms: profile.layers.iter().map(|layer| layer.transfer * 1e3).collect(),
            forward_ms: profile.layers.iter().map(|layer| layer.forward * 1e3).collect(),
            predictions: Batching::ALL.map(prediction).into(),
        })
    }
}
