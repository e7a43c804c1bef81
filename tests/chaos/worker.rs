//! A worker of the run, as a process. After each round it compares its weights with the expected weights, and
//! writes a line to its standard output:
//!
//! ```text
//!   began ROUND DIGEST     it has its first weights
//!   round ROUND DIGEST     its weights after this round are right
//!   returned LOST          its hub was restarted once more; LOST rounds are lost since the worker joined
//!   finished ROUND DIGEST  it has left the job
//!   error TEXT             an error of its session; the worker ends, which is allowed
//!   wrong TEXT             weights that are not the expected ones
//! ```

use std::time::{Duration, Instant};

use hub_tests::state::fetch_all;
use hub_tests::training::Training;
use hub_tests::values::{self, Reference, Saved, mix};
use pbox_core::{Consistency, Key, KeyId, OnLoss, Optimizer};
use serde::{Deserialize, Serialize};
use worker_shim::{Returns, Session, SessionConfig, SessionError};

use super::expect::{Expect, Model, Pushes, Rounds, Subsets};

/// The kind of a job, which decides what weights are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// BSP without losses: the bits of the oracle.
    Exact,
    /// BSP that continues without lost workers: each step is the mean of the workers that are left, always
    /// including this worker.
    Survivors,
    /// A job with a codec: the bits of the plain model, which begins from zero whenever the job begins from
    /// zero.
    Codec,
    /// SSP: weights that count pushes.
    Ssp,
    /// BSP that waits for a lost hub: the weights count rounds, and the count falls if the hub was killed.
    Returns,
}

impl Kind {
    /// Whether the worker waits for a lost hub.
    pub fn returns(self) -> bool {
        self == Kind::Returns
    }
}

/// The task of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    pub kind: Kind,
    pub hub: String,
    /// The hubs above the hub of this worker.
    pub above: Vec<String>,
    pub job: String,
    /// The rank of the worker at its hub. `workers` is the number of workers at this hub.
    pub rank: u32,
    pub workers: u32,
    /// The number of workers on each machine. `number` is this worker's number among the workers of all
    /// machines.
    pub shape: Vec<u32>,
    pub number: u32,
    pub rounds: u32,
    pub transport: Option<String>,
    pub pace_ms: u64,
    pub seed: u64,
}

pub const STALENESS: u32 = 3;
/// The time within which faults of a control port end.
const STATE_LIMIT: Duration = Duration::from_secs(20);
const ADAM: Optimizer =
    Optimizer::Adam { learning_rate: 0.01, weight_decay: 1e-3, beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };
const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.25, weight_decay: 0.0 };
const COUNTING: Optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };

impl Task {
    fn training(&self) -> Training {
        let all = self.shape.iter().sum();
        let keys = vec![Key::f32("a", [3000]), Key::f32("b", [1]), Key::f32("c", [70, 90])];
        let plain = |optimizer| Training::new(&self.job, keys, optimizer);
        let mut training = match self.kind {
            Kind::Exact => plain(ADAM),
            Kind::Survivors => plain(SGD),
            Kind::Ssp | Kind::Returns => plain(COUNTING),
            Kind::Codec => {
                Training { job: self.job.clone(), ..Training::compressed("", "dgc:0.1:0.9:none:4") }
            }
        };
        (training.workers, training.chunk_bytes, training.seed) = (all, 1024, self.seed);
        training
    }

    fn config(&self, training: &Training) -> SessionConfig {
        let mut config = training.config(&self.hub, self.rank);
        config.terms.workers = self.workers;
        config.transport = self.transport.as_ref().map(|name| name.parse().expect("the run's own word"));
        (config.join_limit, config.wait_limit) = (Duration::from_secs(20), Duration::from_secs(60));
        match self.kind {
            Kind::Survivors => config.terms.on_loss = OnLoss::Continue,
            Kind::Ssp => {
                config.terms.level.consistency = Consistency::Ssp { staleness: STALENESS };
                config.terms.compare_every = 0; // the workers have different weights
            }
            Kind::Returns => config.hub_wait = Duration::from_secs(60),
            Kind::Exact | Kind::Codec => {}
        }
        config
    }

    /// Returns the expectation of a job from now on. `went_on_with` is the state from which the job
    /// continued, if it did.
    fn expect(
        &self,
        training: &Training,
        session: &Session,
        went_on_with: Option<&Saved>,
    ) -> Box<dyn Expect> {
        let first = read(training, session);
        let next = session.next_round().0;
        match self.kind {
            Kind::Exact => {
                let reference =
                    Reference::new(self.seed, training.workers, training.optimizer, &training.keys);
                let reference = reference.on_machines(self.shape.clone());
                Box::new(match went_on_with {
                    Some(state) => reference.with(state),
                    None => reference,
                })
            }
            Kind::Codec => Box::new(Model::new(training.clone(), went_on_with)),
            Kind::Survivors => Box::new(Subsets::new(self, training, session.layout().clone(), first)),
            Kind::Ssp => Box::new(Pushes::new(self.number, training.workers, next, first)),
            Kind::Returns => Box::new(Rounds::new(next, &first)),
        }
    }

    /// Returns the state from which a job continues. If the job failed in the middle of a round, this state has
    /// steps with the gradients of only some workers. Nobody can compute such a state. Earlier states are
    /// known, because the driver compares digests.
    fn state(&self, training: &Training, next: u32) -> Result<Saved, Ended> {
        // The hubs at the top have the state.
        let (hubs, job) = match self.above.is_empty() {
            true => (self.hub.split(',').collect(), self.job.clone()),
            false => {
                (self.above.iter().map(String::as_str).collect::<Vec<_>>(), format!("{}.above", self.job))
            }
        };
        let begun = Instant::now();
        loop {
            let limit = Duration::from_secs(5);
            match fetch_all(&hubs, &job, &training.keys, &training.tensors(), limit) {
                Ok(state) if state.before.0 == next => return Ok(state),
                Ok(state) => {
                    let wrong = format!("round {next} began with the state before {:?}", state.before);
                    return Err(Ended::Wrong(wrong));
                }
                Err(_) if begun.elapsed() < STATE_LIMIT => std::thread::sleep(Duration::from_millis(200)),
                Err(why) => {
                    return Err(Ended::Error(format!(
                        "{job}: the hubs {hubs:?} did not give its state: {why}"
                    )));
                }
            }
        }
    }

    /// Writes the gradient of this worker in a round; the first round is 0.
    fn gradient(&self, round: u32, key: KeyId, into: &mut [f32]) {
        match self.kind {
            Kind::Ssp => Pushes::gradient(self.number, self.shape.iter().sum(), into),
            Kind::Returns => into.fill(1.0),
            _ => values::fill_gradient(self.seed, self.number, round, key, into),
        }
    }
}

fn read(training: &Training, session: &Session) -> Vec<Vec<f32>> {
    session.keys().map(|key| training.read(session, key)).collect()
}

/// Returns the digest of weights, which workers and readers compare.
pub fn digest(weights: &[Vec<f32>]) -> u64 {
    weights.iter().flatten().fold(7, |digest, weight| mix(digest ^ u64::from(weight.to_bits())))
}

/// Runs the worker process.
pub fn run(task: &Task) -> bool {
    match train(task) {
        Ok(()) => true,
        Err(Ended::Wrong(wrong)) => {
            println!("wrong {wrong}");
            false
        }
        Err(Ended::Error(error)) => {
            println!("error {}", error.replace('\n', " "));
            true
        }
    }
}

/// The reason why a worker does not finish.
enum Ended {
    /// Weights that are not the expected ones.
    Wrong(String),
    /// An error of a session or a hub.
    Error(String),
}

impl From<SessionError> for Ended {
    fn from(error: SessionError) -> Self {
        Ended::Error(error.to_string())
    }
}

fn train(task: &Task) -> Result<(), Ended> {
    let training = task.training();
    let mut session = Session::join(task.config(&training))?;
    match task.kind {
        Kind::Ssp | Kind::Returns => session.broadcast_weights(|_, weights: &mut [f32]| weights.fill(0.0))?,
        _ => training.broadcast(&mut session, task.number)?,
    }
    let mut weights = read(&training, &session);
    println!("began {} {:016x}", session.next_round().0, digest(&weights));
    let next = session.next_round().0;
    let goes_on = next > 1 && matches!(task.kind, Kind::Exact | Kind::Codec);
    let state = goes_on.then(|| task.state(&training, next)).transpose()?;
    let mut expect = task.expect(&training, &session, state.as_ref());
    expect.first(&weights).map_err(|wrong| Ended::Wrong(format!("before round {next}: {wrong}")))?;
    let (mut steps, mut returns) = (0, Returns::default());
    while session.next_round().0 <= task.rounds {
        let round = session.next_round().0;
        for key in session.keys() {
            training.write(&mut session, key, |gradient| task.gradient(round - 1, key, gradient));
            session.push(key)?;
        }
        session.wait_all()?;
        steps += 1;
        let round = session.next_round().0 - 1; // differs from the round above if the hub was restarted meanwhile
        weights = read(&training, &session);
        let seen = if session.returns() == returns {
            expect.after(round, &weights)
        } else {
            returns = session.returns();
            println!("returned {}", returns.lost_rounds);
            expect.after_return(round, &weights)
        };
        if let Err(wrong) = seen {
            // The hub may have lost this worker while the worker was stopped. Its answers had arrived, but
            // the workers that continue have changed the weights in the shared window since. The next round
            // then ends with an error that shows the loss.
            if task.kind == Kind::Survivors {
                session.keys().try_for_each(|key| session.push(key))?;
                session.wait_all()?;
            }
            return Err(Ended::Wrong(format!("round {round}: {wrong}")));
        }
        println!("round {round} {:016x}", digest(&weights));
        std::thread::sleep(Duration::from_millis(task.pace_ms));
    }
    let (last, digest) = (session.next_round().0 - 1, digest(&weights));
    let kept = u64::from(session.next_round().0 - next);
    if kept + returns.lost_rounds != steps {
        return Err(Ended::Wrong(format!("{steps} steps made {kept} rounds, and {returns:?}")));
    }
    session.leave()?;
    println!("finished {last} {digest:016x}");
    Ok(())
}
