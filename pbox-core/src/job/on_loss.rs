//! The effect of a lost worker on its job.

use serde::{Deserialize, Serialize};

/// The effect on a job when a worker is lost, or leaves before the other workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLoss {
    /// The job fails. So the job's results are always those of all workers.
    #[default]
    Stop,
    /// The job continues with the remaining workers. A worker may join again with the rank of a lost worker.
    Continue,
}
