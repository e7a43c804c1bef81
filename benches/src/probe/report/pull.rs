//! The probe's report of pulls in batches: the profile, the plan, and the result.
//!
//! A worker process sends this plain data to its parent. The times "to the last layer" begin when the first
//! batch can be pulled. They end when the last layer can compute and all other layers are done.

use serde::{Deserialize, Serialize};
use worker_shim::batch::{Batching, Timeline};
use worker_shim::{PullPlan, Session};

/// The pulls of one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::probe) struct PullReport {
    batching: String,
    /// The number of layers of each batch.
    batches: Vec<usize>,
    /// The mean time to the last layer, over the iterations since the plan.
    measured_ms: Option<f64>,
    iterations: u32,
    /// The number of measured profiles.
    profiles: u32,
    /// The profile, if there is one.
    profile: Option<ProfileReport>,
    /// The profile as text.
    words: String,
}

/// The measured profile, and the prediction of the plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ProfileReport {
    predicted_ms: f64,
    start_up_ms: f64,
    /// The transfer time of each layer that has weights. The forward time of the last layer cannot be
    /// measured, and is 0.
    transfer_ms: Vec<f64>,
    forward_ms: Vec<f64>,
    /// The predicted time to the last layer, for several choices of batches.
    predictions: Vec<Prediction>,
}

/// The prediction for one choice of batches.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Prediction {
    batching: String,
    batches: Vec<usize>,
    to_last_layer_ms: f64,
}

impl PullReport {
    /// Returns the report of a session at its end. Returns `None` if the session does not pull in batches, or
    /// has no plan yet.
    pub fn from_session(session: &Session) -> Option<Self> {
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

    /// Returns the report as text.
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
