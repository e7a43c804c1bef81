//! Weights equal those of an oracle that sums on each machine first, bit for bit, for every shape of hubs.

use fabric::conformance::Watchdog;
use hub_tests::values::{self, same_bits};
use hub_tests::{config_at, describe, hub, hub_below, on_threads, small_model};
use pbox_core::oracle::{self, Step};
use pbox_core::{Key, KeyId, Optimizer, Round, Schedule};
use worker_shim::Session;

use super::{Machines, on_machines};

const ROUNDS: u32 = 5;
const SEED: u64 = 3;
const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 0.01, momentum: 0.9 };
const ADAMW: Optimizer =
    Optimizer::AdamW { learning_rate: 0.1, weight_decay: 0.01, beta1: 0.9, beta2: 0.99, epsilon: 1e-6 };

/// Returns a worker's number among the workers of all machines.
fn number(machine: u32, workers: u32, rank: u32) -> u32 {
    machine * workers + rank
}

/// Trains some rounds, and compares all weights after each round. The learning rate changes from round 3 on.
fn train(mut session: Session, keys: &[Key], optimizer: Optimizer, worker: u32, shape: &[u32]) {
    if optimizer.keeps_weights() {
        // Only the weights of worker 0 are used.
        session
            .broadcast_weights(|key, weights| match worker {
                0 => values::fill_weights(SEED, key, weights),
                _ => weights.fill(77.0),
            })
            .unwrap();
    }
    let mut oracle = Oracle::new(keys, optimizer, shape);
    for round in 0..ROUNDS {
        if round == 3 && optimizer.keeps_weights() {
            // Both calls set the same learning rate, through all levels of hubs.
            match worker % 2 {
                0 => session.set_learning_rate(0.02).unwrap(),
                _ => session.set_optimizer(optimizer.with_learning_rate(0.02), None).unwrap(),
            }
        }
        for key in session.keys() {
            values::fill_gradient(SEED, worker, round, key, session.gradient_mut(key).unwrap());
            session.push(key).unwrap();
        }
        oracle.advance(if round < 3 { 0.1 } else { 0.02 });
        for key in session.keys() {
            session.wait(key).unwrap();
            let what = format!("worker {worker}, round {round}, key {}", key.0);
            same_bits(what, session.weights(key).unwrap(), &oracle.weights[key.index()]);
        }
    }
    session.leave().unwrap();
}

/// A plain model whose gradients are summed on each machine first, in f32.
struct Oracle<'a> {
    optimizer: Optimizer,
    /// The number of workers on each machine.
    shape: &'a [u32],
    round: u32,
    weights: Vec<Vec<f32>>,
    state: Vec<Vec<[f32; 3]>>,
}

impl<'a> Oracle<'a> {
    fn new(keys: &[Key], optimizer: Optimizer, shape: &'a [u32]) -> Self {
        let elements = |key: &Key| key.elements().unwrap() as usize;
        let mut weights: Vec<Vec<f32>> = keys.iter().map(|key| vec![0.0; elements(key)]).collect();
        if optimizer.keeps_weights() {
            weights.iter_mut().zip(0..).for_each(|(w, key)| values::fill_weights(SEED, KeyId(key), w));
        }
        let state = keys.iter().map(|key| vec![[0.0; 3]; elements(key)]).collect();
        Oracle { optimizer, shape, round: 0, weights, state }
    }

    fn advance(&mut self, rate: f32) {
        let workers = self.shape.iter().sum();
        let step = Step::new(&self.optimizer, workers, Round(self.round + 1), rate, 1.0, 1.0);
        for (key, (weights, states)) in (0..).zip(self.weights.iter_mut().zip(&mut self.state)) {
            for (i, (weight, state)) in weights.iter_mut().zip(states).enumerate() {
                let mut next = 0;
                let of_machine = |&workers: &u32| {
                    let ranks = next..next + workers;
                    next = ranks.end;
                    oracle::sum(ranks.map(|rank| values::gradient(SEED, rank, self.round, KeyId(key), i)))
                };
                let sum = oracle::sum(self.shape.iter().map(of_machine).collect::<Vec<_>>());
                oracle::step(&self.optimizer, &step, sum, weight, state);
            }
        }
        self.round += 1;
    }
}

#[test]
fn machines_below_one_hub_and_below_two() {
    let _watchdog = Watchdog::start();
    for (tops, optimizer) in [(1, NESTEROV), (2, ADAMW), (1, Optimizer::Average)] {
        let machines = Machines::start(tops, 2);
        on_machines(2, 2, |machine, rank, _| {
            let mut config = machines.config(machine, "job", rank, 2);
            config.terms.optimizer = optimizer;
            let session = Session::join(config).unwrap();
            train(session, &small_model(), optimizer, number(machine, 2, rank), &[2, 2]);
        });
        for hub in &machines.top {
            assert!(describe(&hub.address().to_string()).jobs.is_empty(), "the job ended in good order");
        }
    }
}

#[test]
fn a_mesh_of_two_and_of_three() {
    let _watchdog = Watchdog::start();
    for (machines, workers, optimizer) in [(2, 2, NESTEROV), (3, 1, ADAMW), (2, 1, Optimizer::Average)] {
        let mesh = Machines::mesh(machines);
        on_machines(machines, workers, |machine, rank, _| {
            let mut config = mesh.config(machine, "job", rank, workers);
            config.terms.optimizer = optimizer;
            let session = Session::join(config).unwrap();
            let shape = vec![workers; machines as usize];
            train(session, &small_model(), optimizer, number(machine, workers, rank), &shape);
        });
        for hub in &mesh.below {
            assert!(describe(&hub.address().to_string()).jobs.is_empty(), "both jobs ended in good order");
        }
    }
}

#[test]
fn every_schedule_and_credit() {
    let _watchdog = Watchdog::start();
    let above = [Machines::start(1, 2), Machines::mesh(2)];
    for (machines, schedule) in above.iter().flat_map(|machines| Schedule::ALL.map(|each| (machines, each))) {
        on_machines(2, 2, |machine, rank, _| {
            let mut config = machines.config(machine, "job", rank, 2);
            config.terms.optimizer = NESTEROV;
            config.terms.level.schedule = schedule;
            config.terms.level.credit = "128".parse().ok();
            let session = Session::join(config).unwrap();
            train(session, &small_model(), NESTEROV, number(machine, 2, rank), &[2, 2]);
        });
    }
}

#[test]
fn racks_above_machines() {
    let _watchdog = Watchdog::start();
    let top = hub(2);
    let rack = hub_below(&top.address().to_string(), 0, 1);
    let machines: Vec<_> = (0..2).map(|machine| hub_below(&rack.address().to_string(), machine, 2)).collect();
    on_machines(2, 2, |machine, rank, _| {
        let hub = machines[machine as usize].address().to_string();
        let mut config = config_at(&hub, "job", rank, 2);
        config.terms.optimizer = NESTEROV;
        let session = Session::join(config).unwrap();
        train(session, &small_model(), NESTEROV, number(machine, 2, rank), &[2, 2]);
    });
}

/// With one machine, the bits are those of a job without levels.
#[test]
fn one_machine_below_a_hub_has_the_bits_of_the_flat_job() {
    let _watchdog = Watchdog::start();
    let (flat, machines) = (hub(1), Machines::start(1, 1));
    for hub in [flat.address().to_string(), machines.address(0)] {
        on_threads(3, |rank| {
            let mut config = config_at(&hub, "job", rank, 3);
            config.terms.optimizer = ADAMW;
            train(Session::join(config).unwrap(), &small_model(), ADAMW, rank, &[3]);
        });
    }
}
