//! The request of a member to get keys in its own order, and not in the order of the job.

use serde::{Deserialize, Serialize};

/// `POST /v1/jobs/{job}/priorities`: the order of the hub's answers to a member, with the schedule p3. The hub replies once
/// every core has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrioritiesRequest {
    /// The token of the member's join. It is sent only in the header of the request; a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The priority of each key, in the order of the join's keys. Of the waiting keys, that with the lowest number is sent first.
    pub keys: Vec<u32>,
}
