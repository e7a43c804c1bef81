//! Numbers of a job's optimizer that change while it runs: a worker's request to the hub.
//!
//! Plain data. A job's terms say whether the numbers can be taken (`JobTerms::check_numbers`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::kernels::{Groups, Multipliers, Numbers, Optimizer};
use crate::layout::{KeyId, Round};

/// `POST /v1/jobs/{job}/learning-rate`: a new step size from a round on. The hub replies when every core has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearningRateRequest {
    /// The token of the join. It is only in the header of the request, and a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The new rate.
    pub learning_rate: f32,
    /// The first round that uses it.
    pub from_round: Round,
}

/// `POST /v1/jobs/{job}/optimizer`: new numbers of the job's optimizer from a round on. The hub replies when every core has
/// them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerRequest {
    /// The token of the join. It is only in the header of the request, and a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The job's optimizer with all its new numbers.
    pub optimizer: Optimizer,
    /// A pair of multipliers for each key, of the learning rate and the weight decay, in the order of the join. Without this
    /// field they do not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<Arc<[Multipliers]>>,
    /// Keys that have other numbers, until the next request. Without it there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Arc<Groups>>,
    /// The first round that uses them.
    pub from_round: Round,
    /// Numbers of the keys whose optimizer state is set to zero before that round, as if they had made no step. Only if workers
    /// step together, and the worker that asks has not pushed the round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reset: Vec<u32>,
}

impl OptimizerRequest {
    /// Asks for these numbers from a round on, and for a state of zeros of some keys.
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
