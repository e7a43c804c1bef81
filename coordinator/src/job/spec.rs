//! The parts of a job that stay as they were when it began.

use std::net::IpAddr;
use std::sync::Arc;

use pbox_core::control::Mesh;
use pbox_core::{JobId, JobTerms};
use serde::{Deserialize, Serialize};

/// The number, name and terms of a job, and the decisions of the time when it was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobSpec {
    /// The number at this hub, which its name was reserved for.
    pub id: JobId,
    /// The name.
    pub name: String,
    /// The terms of the first worker. All workers must ask for the same.
    pub terms: Arc<JobTerms>,
    /// The decisions that were taken when the job was made.
    pub made: Made,
}

/// Decisions that are taken when a job is made.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Made {
    /// The number of this hub's cores that have a link of each worker.
    pub cores: usize,
    /// The number of those that own chunks: all, unless the job has fewer chunks than cores.
    pub owners: usize,
    /// Whether its sums go up to other hubs.
    pub is_below: bool,
    /// The memory that it was promised, in bytes.
    pub promised: u64,
    /// The address of the worker that made it.
    pub owner: Option<IpAddr>,
    /// Whether it neither goes on from a checkpoint nor leaves one.
    pub trial: bool,
    /// The mesh that its workers ask for.
    pub mesh: Option<Mesh>,
}
