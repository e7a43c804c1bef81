//! Codecs above machines. Workers share memory with their machine's hub, and push plain values. Only the
//! machines' sums are coded, as a worker's gradients are in a job at a single hub.

use fabric::conformance::Watchdog;
use half::f16;
use hub_tests::model::CODECS;
use hub_tests::values::{self, same_bits};
use hub_tests::{SGD, config_at, hub, on_threads, small_model};
use pbox_core::kernels::Element;
use pbox_core::{Dtype, Key, OnLoss, Optimizer};
use worker_shim::{Session, SessionConfig};

use super::{Machines, on_machines};

const ROUNDS: u32 = 5;
const SEED: u64 = 3;

/// Trains some rounds. Returns all weights after each round. `gradient` gets a round, a key and an element.
fn train<E: Element>(
    config: SessionConfig,
    keeps_weights: bool,
    gradient: impl Fn(u32, pbox_core::KeyId, usize) -> f32,
) -> Vec<Vec<f32>> {
    let first = config.rank == 0;
    let mut session = Session::join(config).unwrap();
    if keeps_weights {
        session
            .broadcast_weights::<E>(|key, weights| {
                for (i, weight) in weights.iter_mut().enumerate() {
                    *weight = E::from_f32(if first { values::weight(SEED, key, i) } else { 77.0 });
                }
            })
            .unwrap();
    }
    let mut seen = Vec::new();
    for round in 0..ROUNDS {
        for key in session.keys() {
            let values = session.gradient_mut::<E>(key).unwrap().iter_mut().enumerate();
            values.for_each(|(i, value)| *value = E::from_f32(gradient(round, key, i)));
            session.push(key).unwrap();
        }
        session.wait_all().unwrap();
        let weights = |key| session.weights::<E>(key).unwrap().iter().map(|value| value.to_f32());
        seen.push(session.keys().flat_map(weights).collect());
    }
    session.leave().unwrap();
    seen
}

/// Compares two jobs: two machines with two workers each, and two workers that push these machines' sums. The
/// mean of the first job is half of the mean of the second job. Everything else is equal, bit for bit:
/// frames, random draws, values that are left out, answers.
fn compare<E: Element>(machines: &Machines, keys: &[Key], optimizer: Optimizer, codec: &str) {
    let with = |mut config: SessionConfig, optimizer: Optimizer| {
        config.terms.keys = keys.to_vec();
        config.terms.optimizer = optimizer;
        config.terms.level.compression = Some(codec.parse().unwrap());
        config
    };
    let (keeps_weights, sgd) = (optimizer.keeps_weights(), |learning_rate| match optimizer {
        Optimizer::Sgd { weight_decay, .. } => Optimizer::Sgd { learning_rate, weight_decay },
        other => other,
    });
    let of_worker =
        |worker| move |round, key, i| E::from_f32(values::gradient(SEED, worker, round, key, i)).to_f32();
    let seen = on_machines(2, 2, |machine, rank, _| {
        let config = with(machines.config(machine, "job", rank, 2), sgd(0.5));
        train::<E>(config, keeps_weights, of_worker(2 * machine + rank))
    });
    let flat = hub(2);
    let expected = on_threads(2, |machine| {
        let config = with(config_at(&flat.address().to_string(), "job", machine, 2), sgd(0.25));
        let [first, second] = [2 * machine, 2 * machine + 1].map(of_worker);
        train::<E>(config, keeps_weights, |round, key, i| first(round, key, i) + second(round, key, i))
    });
    let factor = if keeps_weights { 1.0 } else { 0.5 };
    for (worker, seen) in seen.iter().flatten().enumerate() {
        for (round, (seen, expected)) in seen.iter().zip(&expected[0]).enumerate() {
            let expected: Vec<f32> = expected.iter().map(|value| value * factor).collect();
            same_bits(format!("{codec}, {optimizer:?}, worker {worker}, round {round}"), seen, &expected);
        }
    }
}

#[test]
fn sums_of_machines_are_coded_as_gradients_of_workers() {
    let _watchdog = Watchdog::start();
    let halves: Vec<Key> = small_model().into_iter().map(|key| Key { dtype: Dtype::F16, ..key }).collect();
    for machines in [Machines::mesh(2), Machines::start(2, 2)] {
        for codec in CODECS {
            compare::<f32>(&machines, &small_model(), SGD, codec);
        }
        compare::<f32>(&machines, &small_model(), Optimizer::Average, "qsgd:4:64");
        compare::<f32>(&machines, &small_model(), Optimizer::Average, "topk:0.25");
        compare::<f16>(&machines, &halves, SGD, "qsgd:4:64");
    }
}

/// The frames carry the number of gradients, so the mean is right when workers leave. A machine that returns
/// gets the job's current weights.
#[test]
fn a_coded_mean_is_over_those_who_take_part() {
    let _watchdog = Watchdog::start();
    let machines = Machines::start(1, 2);
    let config = |machine, rank| {
        let mut config = machines.config(machine, "job", rank, 2);
        (config.terms.on_loss, config.terms.level.compression) =
            (OnLoss::Continue, Some("qsgd:8:512".parse().unwrap()));
        config
    };
    let ready = |machine, rank| {
        let mut session = Session::join(config(machine, rank)).unwrap();
        session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap();
        session
    };
    let mut sessions = on_machines(2, 2, |machine, rank, _| ready(machine, rank));
    let round = |sessions: Vec<&mut Session>| -> Vec<f32> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = sessions
                .into_iter()
                .map(|session| {
                    scope.spawn(move || {
                        for key in session.keys() {
                            session.gradient_mut::<f32>(key).unwrap().fill(1.0);
                            session.push(key).unwrap();
                        }
                        session.wait_all().unwrap();
                        session.weights::<f32>(hub_tests::FIRST).unwrap()[0]
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    drop(sessions[1].remove(1));
    assert_eq!(round(sessions.iter_mut().flatten().collect()), [0.5; 3]);
    // All workers of the second machine leave, and return.
    sessions.truncate(1);
    assert_eq!(round(sessions.iter_mut().flatten().collect()), [0.0; 2]);
    let mut back = on_threads(2, |rank| Session::join(config(1, rank)).unwrap());
    assert_eq!(round(sessions.iter_mut().flatten().chain(&mut back).collect()), [-0.5; 4]);
}
