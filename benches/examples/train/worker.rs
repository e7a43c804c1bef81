//! A worker's process. It makes rounds on its own shard, and the hub sums and steps.

use std::time::Duration;

use anyhow::{Context, Result};
use benches::child;
use serde::{Deserialize, Serialize};
use training::{Network, NetworkPass, Shard, Weights};
use worker_shim::{Session, SessionConfig};

use crate::args::Args;
use crate::task::Task;

/// The size of a chunk. It is so small that the keys of this small network have several chunks, on several of
/// the hub's cores.
const CHUNK_BYTES: usize = 1024;
/// The time that a round may take before this worker gives up.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// A message from a worker to its parent.
#[derive(Debug, Serialize, Deserialize)]
pub enum Word {
    /// An epoch has ended. `loss` is the mean loss of its batches, each computed before the batch's step.
    Epoch { loss: f64 },
    /// The training has ended. `weights` has the bits of the weights, by key.
    Done { weights: Vec<Vec<u32>> },
}

/// Runs a worker's process.
pub fn run(args: &Args) -> Result<()> {
    child::die_with_parent();
    work(args).with_context(|| format!("worker {}", args.rank))
}

fn work(args: &Args) -> Result<()> {
    let task = Task::new(args)?;
    let mut worker = Worker::join(args, &task)?;
    let mut shard = Shard::new(&task.plan, &task.train, args.rank);
    for epoch in 0..task.plan.epochs {
        shard.begin_epoch(epoch);
        worker.begin_epoch(task.plan.learning_rate(epoch))?;
        let mut loss = 0.0;
        for round in 0..task.plan.rounds_per_epoch {
            loss += f64::from(training::round(&mut worker.session, &mut worker.pass, &shard.batch(round))?);
        }
        child::say(&Word::Epoch { loss: loss / task.plan.rounds_per_epoch as f64 })?;
    }
    child::say(&Word::Done { weights: worker.weights(&task.network)?.to_bits() })?;
    Ok(worker.session.leave()?)
}

struct Worker<'a> {
    session: Session,
    pass: NetworkPass<'a>,
}

impl<'a> Worker<'a> {
    fn join(args: &Args, task: &'a Task) -> Result<Self> {
        let hub = args.hub.as_deref().context("a worker needs --hub")?;
        let (keys, optimizer) = (task.network.keys(), task.plan.optimizer());
        let mut config = SessionConfig::new(hub, &*args.job, args.rank, args.workers, keys, optimizer);
        config.terms.chunk_bytes = CHUNK_BYTES;
        config.wait_limit = WAIT_LIMIT;
        config.hub_wait = Duration::ZERO; // the hub is another process of the example
        (config.terms.level.compression, config.terms.seed) = (args.compress, args.seed);
        let mut session = Session::join(config)?;
        session.broadcast_weights(|key, values| task.network.fill_weights(args.seed, key, values))?;
        Ok(Worker { session, pass: NetworkPass::new(&task.network) })
    }

    /// Begins an epoch. The new step size applies from the next round on, so all workers must have finished
    /// the last round.
    fn begin_epoch(&mut self, learning_rate: f32) -> Result<()> {
        self.session.wait_all()?;
        Ok(self.session.set_learning_rate(learning_rate)?)
    }

    fn weights(&mut self, network: &Network) -> Result<Weights> {
        self.session.wait_all()?;
        let mut weights = Weights::zeroed(network);
        for key in self.session.keys() {
            weights.key_mut(key).copy_from_slice(self.session.weights(key)?);
        }
        Ok(weights)
    }
}
