//! What a worker must know to join: each setting once, with its default.

use std::sync::Arc;
use std::time::Duration;

use fabric::IdlePolicy;
use fabric::any::Transport;
use fabric::verbs::NicList;
use pbox_core::control::{JoinRequest, OnLoss, PROTOCOL};
use pbox_core::{
    Ablate, Compression, Consistency, DEFAULT_CHUNK_BYTES, FramingTerms, Key, Layout, Optimizer, Round,
    SPLIT_ABOVE, Schedule, Share, Wire,
};

use super::credit::Credit;
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
    /// How many workers take part.
    pub workers: u32,
    /// The model, in the order of the forward pass.
    pub keys: Vec<Key>,
    /// What the hub does with the sum of the gradients.
    pub optimizer: Optimizer,
    /// Size of a chunk; a multiple of 64. Default 32 KiB.
    pub chunk_bytes: usize,
    /// How gradients and weights are made smaller before they cross. Default: not at all. Weights are then always
    /// read from memory of the worker's own. All workers must say the same, here and of the seed.
    pub compression: Option<Compression>,
    /// Where the randomness of compression comes from: equal seeds, equal bits. Default 0.
    pub seed: u64,
    /// What the hub leaves out, for measurement. Default nothing.
    pub ablate: Ablate,
    /// How far workers may be apart. Default: not at all (BSP). With SSP and ASP every push is a step of its
    /// own, with this worker's gradient alone: as many steps a round as there are workers, so the learning
    /// rate is that of a batch of one worker.
    pub consistency: Consistency,
    /// What becomes of the job when a worker is lost, or leaves before the others. Default: it stops.
    pub on_loss: OnLoss,
    /// In what order gradients and weights leave, at both ends. Default: slices as they are pushed. All workers must
    /// say the same.
    pub schedule: Schedule,
    /// The most bytes of a slice, a unit of the schedule: consecutive chunks of one key for one core. Default: one
    /// chunk.
    pub slice_bytes: Option<usize>,
    /// Bytes that may be under way on each link, each way. Default: what the schedule needs ([`Credit::of`]), 1 MiB
    /// with [`Schedule::P3`], any number with the others.
    pub credit: Option<Credit>,
    /// With [`Schedule::KvStore`]: pull weights in batches of layers. All keys of a round are pushed then before one is
    /// waited for, and a key is there when all of its batch is. A worker that comes to a job that has weights pulls
    /// those so, too: its first round begins with waiting for them. Default: each key is pulled as soon as it can be,
    /// whatever the caller computes meanwhile.
    pub pull: Option<Pull>,
    /// With several hubs and a schedule by layer, tensors of more parameters are split over the hubs, others go whole
    /// to one. Default 10^6, as P3's baseline has it. All workers must say the same.
    pub split_above: u64,
    /// How many of the hub's cores the job gets. Default all.
    pub cores: Option<u32>,
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
    /// Bytes that may be under way on each link.
    pub fn credit(&self) -> Credit {
        self.credit.unwrap_or_else(|| Credit::of(self.schedule))
    }

    /// What of this layout crosses, and where it lies in the windows.
    pub fn wire(&self, layout: Arc<Layout>) -> Wire {
        let SessionConfig { seed, workers, consistency, .. } = *self;
        let terms = |compression| FramingTerms::new(compression, seed, workers, &self.optimizer, consistency);
        Wire::new(layout, self.compression.map(terms))
    }

    /// Checks what batches there are to pull.
    pub(crate) fn check_pull(&self) -> Result<(), PullError> {
        let Some(pull) = &self.pull else { return Ok(()) };
        if !self.schedule.pulls() {
            let (batching, schedule) = (pull.batching, self.schedule);
            return Err(PullError::Nothing { batching, schedule });
        }
        pull.layers(self.keys.len()).map(|_| ())
    }

    /// What is said to a hub at the join, for a job with one hub; `state_before` if this worker brings a state.
    pub(super) fn join_request(&self, state_before: Option<Round>) -> JoinRequest {
        JoinRequest {
            protocol: PROTOCOL,
            rank: self.rank,
            workers: self.workers,
            chunk_bytes: self.chunk_bytes,
            compression: self.compression,
            seed: self.seed,
            optimizer: self.optimizer,
            ablate: self.ablate,
            consistency: self.consistency,
            on_loss: self.on_loss,
            schedule: self.schedule,
            credit_bytes: self.credit().at_first().map(|bytes| bytes as u64),
            share: Share { split_above: self.split_above, ..Share::default() },
            cores: self.cores,
            state_before,
            keys: self.keys.clone(),
        }
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
            workers,
            keys,
            optimizer,
            chunk_bytes: DEFAULT_CHUNK_BYTES,
            compression: None,
            seed: 0,
            ablate: Ablate::default(),
            consistency: Consistency::Bsp,
            on_loss: OnLoss::Stop,
            schedule: Schedule::default(),
            slice_bytes: None,
            credit: None,
            pull: None,
            split_above: SPLIT_ABOVE,
            cores: None,
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
