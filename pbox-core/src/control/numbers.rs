//! Requests of a worker to change the hyperparameters of a job's optimizer while the job runs.
//!
//! Plain data. A job's terms say whether the hyperparameters can be used (`JobTerms::check_numbers`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::kernels::{Groups, Multipliers, Numbers, Optimizer};
use crate::layout::{KeyId, Round};

/// `POST /v1/jobs/{job}/learning-rate`: a new learning rate from a round on. The hub replies once every core has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearningRateRequest {
    /// The token of the worker's join. It is sent only in the header of the request; a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The new learning rate.
    pub learning_rate: f32,
    /// The first round that uses the new rate.
    pub from_round: Round,
}

/// `POST /v1/jobs/{job}/optimizer`: new hyperparameters of the job's optimizer from a round on. The hub replies once
/// every core has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerRequest {
    /// The token of the worker's join. It is sent only in the header of the request; a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The job's optimizer with all its new hyperparameters.
    pub optimizer: Optimizer,
    /// The multipliers of learning rate and weight decay for each key, in the order of the join's keys. Without this field,
    /// the multipliers do not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<Arc<[Multipliers]>>,
    /// The keys that use other hyperparameters, until the next request. Without this field, all keys use `optimizer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Arc<Groups>>,
    /// The first round that uses the new hyperparameters.
    pub from_round: Round,
    /// The numbers of the keys whose optimizer state is set to zero before that round, as if they had made no step. A hub
    /// refuses such a request if each worker steps alone (SSP, ASP), or if this worker has pushed the round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reset: Vec<u32>,
}

impl OptimizerRequest {
    /// Creates a request for these hyperparameters from a round on. The optimizer state of some keys is set to zero.
    pub fn new(
        token: String,
        numbers: Numbers,
        from_round: Round,
        reset: impl IntoIterator<Item = KeyId>,
    ) -> Self {
        let Numbers { optimizer, multipliers: keys, groups } = numbers;
        let reset = reset.into_iter().map(|key| key.0).collect();
        OptimizerRequest { token, optimizer, keys, groups, from_round, reset }
    }
}
