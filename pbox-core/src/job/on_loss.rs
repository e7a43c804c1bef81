//! The fate of a job when a worker is lost.

use serde::{Deserialize, Serialize};

/// The fate of a job when a worker is lost, or leaves before the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLoss {
    /// The job fails: all workers or none. Its results are those of the whole job.
    #[default]
    Stop,
    /// The job continues with the workers that are left; a lost worker's rank may join again.
    Continue,
}
