//! SSP and ASP between machines. The workers of a machine step together. The machine pushes their mean, and
//! does not wait for the other machines.

use fabric::conformance::Watchdog;
use hub_tests::values::{self, same_bits};
use hub_tests::{SGD, config_at, hub, on_threads, says};
use pbox_core::{Consistency, Optimizer};
use worker_shim::{Session, SessionConfig};

use super::Machines;

const ROUNDS: u32 = 4;
const SEED: u64 = 7;
const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 0.01, momentum: 0.9 };

fn train(config: SessionConfig) -> Vec<f32> {
    let rank = config.rank;
    let mut session = Session::join(config).unwrap();
    session.broadcast_weights(|key, weights| values::fill_weights(SEED, key, weights)).unwrap();
    for round in 0..ROUNDS {
        for key in session.keys() {
            values::fill_gradient(SEED, rank, round, key, session.gradient_mut(key).unwrap());
            session.push(key).unwrap();
        }
        session.wait_all().unwrap();
    }
    let weights = session.keys().flat_map(|key| session.weights::<f32>(key).unwrap().to_vec()).collect();
    session.leave().unwrap();
    weights
}

/// Runs `work` for each item, each on its own thread.
fn at_once<I: Send, T: Send>(each: impl IntoIterator<Item = I>, work: impl Fn(I) -> T + Sync) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = each.into_iter().map(|one| scope.spawn(move || work(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A single machine steps like a job of the machine's workers, because the machine pushes the means of these
/// workers.
#[test]
fn one_machine_steps_by_the_mean_of_its_workers() {
    let _watchdog = Watchdog::start();
    let flat = hub(1);
    let with = |mut config: SessionConfig, consistency: &str, codec: Option<&str>| {
        config.terms.optimizer = NESTEROV;
        config.terms.level.consistency = consistency.parse().unwrap();
        config.terms.level.compression = codec.map(|codec| codec.parse().unwrap());
        config
    };
    let expected = on_threads(3, |rank| {
        train(with(config_at(&flat.address().to_string(), "job", rank, 3), "bsp", None))
    });
    for machines in [Machines::mesh(1), Machines::start(1, 1)] {
        for consistency in ["asp", "ssp:1"] {
            let seen =
                on_threads(3, |rank| train(with(machines.config(0, "job", rank, 3), consistency, None)));
            for (rank, seen) in seen.iter().enumerate() {
                same_bits(format!("{consistency}, worker {rank}"), seen, &expected[0]);
            }
        }
        // With top-k of all values, nothing is left out, and nothing is rounded.
        let all = Some("topk:1");
        let coded = on_threads(3, |rank| train(with(machines.config(0, "job", rank, 3), "asp", all)));
        assert!(coded.windows(2).all(|both| both[0] == both[1]));
    }
}

/// Machine 0 gets ahead of machine 1, as far as it may. At the end both machines have made all steps.
#[test]
fn machines_do_not_wait_for_each_other() {
    let _watchdog = Watchdog::start();
    for machines in [Machines::mesh(2), Machines::start(1, 2), Machines::start(2, 2)] {
        for (consistency, codec) in [("asp", None), ("ssp:2", None), ("asp", Some("qsgd:8:512"))] {
            let join = |machine, rank| {
                let mut config = machines.config(machine, "job", rank, 2);
                config.terms.optimizer = SGD;
                config.terms.level.consistency = consistency.parse().unwrap();
                config.terms.level.compression = codec.map(|codec: &str| codec.parse().unwrap());
                let mut session = Session::join(config).unwrap();
                session.broadcast_weights(|_, weights| weights.fill(8.0)).unwrap();
                session
            };
            let round = |session: &mut Session| {
                for key in session.keys() {
                    session.gradient_mut::<f32>(key).unwrap().fill(1.0);
                    session.push(key).unwrap();
                }
                session.wait_all().unwrap();
                session.weights::<f32>(hub_tests::FIRST).unwrap()[0]
            };
            let (mut first, mut second) = std::thread::scope(|scope| {
                // Each machine's workers join at their hub at the same time.
                let second = scope.spawn(|| on_threads(2, |rank| join(1, rank)));
                let first = on_threads(2, |rank| {
                    let mut session = join(0, rank);
                    // A step is half of the mean, which is 1.
                    assert_eq!(
                        [round(&mut session), round(&mut session)],
                        [7.5, 7.0],
                        "{consistency}, {codec:?}"
                    );
                    session
                });
                (first, second.join().unwrap())
            });
            for expected in [6.5, 6.0] {
                let seen = at_once(&mut second, round);
                assert_eq!(seen, [expected; 2], "{consistency}, {codec:?}");
            }
            first.append(&mut second);
            at_once(&mut first, |session| session.wait_all().unwrap());
            at_once(first.drain(..), |session| session.leave().unwrap());
        }
    }
}

/// A job over more than one level of hubs must step together.
#[test]
fn machines_step_alone_between_two_levels_only() {
    let _watchdog = Watchdog::start();
    let top = hub(1);
    let rack = hub_tests::hub_below(&top.address().to_string(), 0, 1);
    let machine = hub_tests::hub_below(&rack.address().to_string(), 0, 1);
    let mut config = config_at(&machine.address().to_string(), "job", 0, 1);
    config.terms.level.consistency = Consistency::Asp;
    says(hub_tests::refused(config), &["a hub below other hubs with consistency asp from hubs below"]);
}
