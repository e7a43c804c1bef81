//! The demo's workers: threads that train together, as processes would do.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use authority::Credential;
use pbox_core::Optimizer;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use training::{NetworkPass, Shard, Weights, round};
use worker_shim::{Session, SessionConfig, SessionError};

use super::spirals::Task;

pub const JOB: &str = "demo";
const OPTIMIZER: Optimizer =
    Optimizer::Adam { learning_rate: 3e-4, weight_decay: 0.0, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
/// The time that the slow worker adds to each round.
pub const SLOW: Duration = Duration::from_millis(40);
/// The time between two reads of the weights.
const LOOK: Duration = Duration::from_millis(500);
const JOIN_LIMIT: Duration = Duration::from_secs(30);
/// The limit of a worker's wait. A round takes milliseconds, so a longer wait means that another worker is
/// gone.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// The state of the training, as worker 0 has seen it last.
#[derive(Clone, Debug)]
pub struct Seen {
    pub round: u32,
    pub loss: f32,
    pub weights: Weights,
}

/// Workers that train until they are asked to end.
pub struct Team {
    shared: Arc<Shared>,
    ended: UnboundedReceiver<(u32, Result<(), SessionError>)>,
}

#[derive(Debug)]
struct Shared {
    task: Arc<Task>,
    ends: AtomicBool,
    /// The number of the last round of the training. Worker 0 chooses it when the workers must end.
    last: AtomicU32,
    is_slow: AtomicBool,
    seen: Mutex<Option<Seen>>,
}

impl Team {
    /// Starts a thread for each worker.
    ///
    /// # Errors
    /// Returns an error if the machine has no thread left.
    pub fn start(task: &Arc<Task>, hub: &str, credential: &Credential) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            task: Arc::clone(task),
            ends: AtomicBool::new(false),
            last: AtomicU32::new(u32::MAX),
            is_slow: AtomicBool::new(false),
            seen: Mutex::new(None),
        });
        let (sender, ended) = unbounded_channel();
        for rank in 0..task.plan.workers {
            let keys = task.network.keys();
            let mut config = SessionConfig::new(hub, JOB, rank, task.plan.workers, keys, OPTIMIZER);
            config.token = Some(credential.clone());
            (config.join_limit, config.wait_limit) = (JOIN_LIMIT, WAIT_LIMIT);
            config.hub_wait = Duration::ZERO; // no wait for a lost hub: the hub is in this process
            config.trial = true; // a directory of checkpoints that the environment names is not used
            let (shared, sender): (_, UnboundedSender<_>) = (Arc::clone(&shared), sender.clone());
            let work = move || drop(sender.send((rank, shared.work(rank, config))));
            let thread = std::thread::Builder::new().name(format!("worker-{rank}"));
            thread.spawn(work).with_context(|| format!("starting a thread for worker {rank}"))?;
        }
        Ok(Team { shared, ended })
    }

    /// Makes the last worker slow.
    pub fn slow_down(&self) {
        self.shared.is_slow.store(true, Ordering::Relaxed);
    }

    /// Makes all workers leave after the same round.
    pub fn end(&self) {
        self.shared.ends.store(true, Ordering::Relaxed);
    }

    /// Waits for the next worker that ends.
    ///
    /// # Errors
    /// Returns an error if the worker failed.
    pub async fn next_end(&mut self) -> anyhow::Result<Option<u32>> {
        match self.ended.recv().await {
            None => Ok(None),
            Some((rank, Ok(()))) => Ok(Some(rank)),
            Some((rank, Err(error))) => Err(error).with_context(|| format!("worker {rank}")),
        }
    }

    /// Returns the state of the training, or `None` before worker 0 has read the weights.
    pub fn seen(&self) -> Option<Seen> {
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Shared {
    fn work(&self, rank: u32, config: SessionConfig) -> Result<(), SessionError> {
        let Task { network, plan, train, .. } = &*self.task;
        let mut session = Session::join(config)?;
        session.broadcast_weights(|key, values| network.fill_weights(plan.seed, key, values))?;
        let (mut pass, mut shard) = (NetworkPass::new(network), Shard::new(plan, train, rank));
        let mut looked = Instant::now();
        for number in 0.. {
            let in_epoch = number as usize % plan.rounds_per_epoch;
            if in_epoch == 0 {
                shard.begin_epoch(number / plan.rounds_per_epoch as u32);
            }
            if rank == 0 && self.ends.swap(false, Ordering::Relaxed) {
                // No other worker can be beyond this round, because worker 0 has not pushed it yet.
                self.last.store(number, Ordering::SeqCst);
            }
            if number > self.last.load(Ordering::SeqCst) {
                break;
            }
            let loss = round(&mut session, &mut pass, &shard.batch(in_epoch))?;
            if rank + 1 == plan.workers && self.is_slow.load(Ordering::Relaxed) {
                std::thread::sleep(SLOW);
            }
            if rank == 0 && looked.elapsed() > LOOK {
                self.look(&mut session, number, loss)?;
                looked = Instant::now();
            }
        }
        session.leave()
    }

    fn look(&self, session: &mut Session, round: u32, loss: f32) -> Result<(), SessionError> {
        session.wait_all()?;
        let mut weights = Weights::zeroed(&self.task.network);
        for key in session.keys() {
            weights.key_mut(key).copy_from_slice(session.weights(key)?);
        }
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(Seen { round, loss, weights });
        Ok(())
    }
}
