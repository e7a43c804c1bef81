//! What a worker must know to join: each setting once, with its default.

use std::time::Duration;

use fabric::IdlePolicy;
use fabric::any::Transport;
use fabric::verbs::NicList;
use pbox_core::{JobTerms, Key, Optimizer};

use crate::exchange::WeightsMode;
use crate::pull::{Pull, PullError};

/// Settings of a [`Session`](crate::Session).
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The hub's control port, `host:port`; several with commas between them where the job is spread over hubs. All
    /// workers name the same ones in the same order.
    pub hub: String,
    /// Name of the job; workers with the same name train together.
    pub job: String,
    /// This worker's number, from 0.
    pub rank: u32,
    /// What all ends of the job agree on. The join counts `hubs` from the list above. With compression, weights are
    /// always read from memory of the worker's own.
    pub terms: JobTerms,
    /// With [`Schedule::KvStore`](pbox_core::Schedule::KvStore): pull weights in batches of layers. All keys of a round are pushed then before one is
    /// waited for, and a key is there when all of its batch is. A worker that comes to a job that has weights pulls
    /// those so, too: its first round begins with waiting for them. Default: each key is pulled as soon as it can be,
    /// whatever the caller computes meanwhile.
    pub pull: Option<Pull>,
    /// How to come to the hub. Default: by the best transport that it offers and that leads there.
    pub transport: Option<Transport>,
    /// RDMA NICs of this worker. Default: what `NCCL_IB_HCA` says, else every one that has a link.
    pub nics: Option<NicList>,
    /// Where weights are read. Default shared.
    pub weights: WeightsMode,
    /// How long to wait at the start for the other workers, and for each answer of the hub; the hub
    /// itself must be there. Default 60 s.
    pub join_limit: Duration,
    /// How long to wait for a key before giving up on workers that live but do not push.
    /// Default 30 min.
    pub wait_limit: Duration,
    /// How the calling thread waits. Default: spin where the machine has cores to spare.
    pub idle: IdlePolicy,
}

impl SessionConfig {
    /// The same settings with other terms of the job.
    pub fn with_terms(mut self, change: impl FnOnce(&mut JobTerms)) -> Self {
        change(&mut self.terms);
        self
    }

    /// Checks what batches there are to pull.
    pub(crate) fn check_pull(&self) -> Result<(), PullError> {
        let Some(pull) = &self.pull else { return Ok(()) };
        if !self.terms.level.schedule.pulls() {
            let (batching, schedule) = (pull.batching, self.terms.level.schedule);
            return Err(PullError::Nothing { batching, schedule });
        }
        pull.layers(self.terms.keys.len()).map(|_| ())
    }

    /// Everything that has no default.
    pub fn new(
        hub: impl Into<String>,
        job: impl Into<String>,
        rank: u32,
        workers: u32,
        keys: Vec<Key>,
        optimizer: Optimizer,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        SessionConfig {
            hub: hub.into(),
            job: job.into(),
            rank,
            terms: JobTerms::new(workers, keys, optimizer),
            pull: None,
            transport: None,
            nics: None,
            weights: WeightsMode::Shared,
            join_limit: Duration::from_secs(60),
            wait_limit: Duration::from_secs(30 * 60),
            // A worker that spins on a core that the hub or another worker needs delays itself.
            idle: if cores > 2 * workers as usize { IdlePolicy::DEDICATED } else { IdlePolicy::SHARED },
        }
    }
}
