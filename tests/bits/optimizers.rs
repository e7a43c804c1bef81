//! Weights equal those of the naive parameter server, bit for bit. The tests use every optimizer, number of
//! cores and chunk size, keys of odd sizes, multipliers and changing learning rates.

use fabric::conformance::Watchdog;
use hub_tests::hub;
use hub_tests::training::Training;
use pbox_core::{Dtype, Groups, Key, Optimizer};
use worker_shim::WeightsMode;

const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.3, weight_decay: 0.01 };
const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-3, momentum: 0.9 };
const MOMENTUM: Optimizer = Optimizer::Momentum { learning_rate: 0.1, weight_decay: 1e-3, momentum: 0.9 };
const ADAM: Optimizer =
    Optimizer::Adam { learning_rate: 0.01, weight_decay: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
const ADAMW: Optimizer =
    Optimizer::AdamW { learning_rate: 0.01, weight_decay: 0.1, beta1: 0.8, beta2: 0.99, epsilon: 1e-6 };

const DAMPENED: Optimizer =
    Optimizer::Dampened { learning_rate: 0.1, weight_decay: 1e-3, momentum: 0.9, dampening: 0.5 };
const AMSGRAD: Optimizer =
    Optimizer::AmsGrad { learning_rate: 0.01, weight_decay: 1e-3, beta1: 0.9, beta2: 0.5, epsilon: 1e-8 };
const AMSGRADW: Optimizer =
    Optimizer::AmsGradW { learning_rate: 0.01, weight_decay: 0.1, beta1: 0.8, beta2: 0.5, epsilon: 1e-6 };
const LION: Optimizer = Optimizer::Lion { learning_rate: 1e-3, weight_decay: 0.1, beta1: 0.9, beta2: 0.99 };

/// Returns keys of sizes around a chunk of 8192 elements, with multipliers.
fn odd_keys() -> Vec<Key> {
    let mut keys: Vec<Key> = [1u64, 17, 8192, 8193, 100_000]
        .iter()
        .map(|&elements| Key::f32(format!("of {elements}"), [elements]))
        .collect();
    (keys[1].lr_mult, keys[1].wd_mult) = (2.0, 0.0);
    (keys[3].lr_mult, keys[3].wd_mult) = (0.1, 3.0);
    (keys[4].lr_mult, keys[4].wd_mult) = (0.0, 1.0);
    keys
}

/// Runs the same job on a hub of one core and on a hub of two cores. Both hubs must give the reference's
/// bits.
fn on_one_and_two_cores(training: &Training) {
    let runs = [1, 2].map(|cores| {
        let hub = hub(cores);
        let last = training.run(&hub.address().to_string());
        hub.stop("the test is done");
        last
    });
    assert!(runs[0] == runs[1], "{}: one core and two give the same bits", training.job);
}

#[test]
fn averages_are_exact() {
    let _watchdog = Watchdog::start();
    on_one_and_two_cores(&Training::new("average", odd_keys(), Optimizer::Average));
}

#[test]
fn sgd_is_exact() {
    let _watchdog = Watchdog::start();
    on_one_and_two_cores(&Training::new("sgd", odd_keys(), SGD));
}

#[test]
fn nesterov_is_exact() {
    let _watchdog = Watchdog::start();
    on_one_and_two_cores(&Training::new("nesterov", odd_keys(), NESTEROV));
}

#[test]
fn momentum_is_exact() {
    let _watchdog = Watchdog::start();
    on_one_and_two_cores(&of_two_workers(MOMENTUM));
}

#[test]
fn adam_is_exact() {
    let _watchdog = Watchdog::start();
    on_one_and_two_cores(&of_two_workers(ADAM));
}

#[test]
fn adamw_is_exact() {
    let _watchdog = Watchdog::start();
    on_one_and_two_cores(&of_two_workers(ADAMW));
}

#[test]
fn dampened_momentum_is_exact() {
    let _watchdog = Watchdog::start();
    on_one_and_two_cores(&of_two_workers(DAMPENED));
}

#[test]
fn amsgrad_is_exact() {
    let _watchdog = Watchdog::start();
    on_one_and_two_cores(&of_two_workers(AMSGRAD));
    on_one_and_two_cores(&of_two_workers(AMSGRADW));
}

#[test]
fn lion_is_exact() {
    let _watchdog = Watchdog::start();
    on_one_and_two_cores(&of_two_workers(LION));
}

#[test]
fn steps_up_the_gradient_are_exact() {
    let _watchdog = Watchdog::start();
    for (optimizer, clip_norm) in [(SGD, None), (ADAMW, None), (LION, None), (AMSGRAD, Some(3.0))] {
        on_one_and_two_cores(&Training { maximize: true, clip_norm, ..of_two_workers(optimizer) });
    }
}

fn of_two_workers(optimizer: Optimizer) -> Training {
    Training { workers: 2, ..Training::new(optimizer.name(), odd_keys(), optimizer) }
}

/// Returns the odd keys in f16, bf16 and f32 by turns. The hub sums 16-bit gradients and steps their weights in f32.
fn mixed_keys() -> Vec<Key> {
    let dtypes = [Dtype::F16, Dtype::BF16, Dtype::F32].into_iter().cycle();
    let mixed = |(key, dtype)| Key { dtype, ..key };
    let mut keys: Vec<Key> = odd_keys().into_iter().zip(dtypes).map(mixed).collect();
    keys.push(Key::new(Dtype::BF16, "of 16385", [16_385]));
    keys
}

#[test]
fn sixteen_bit_keys_are_exact() {
    let _watchdog = Watchdog::start();
    for optimizer in [Optimizer::Average, SGD, MOMENTUM, NESTEROV, ADAM, ADAMW, AMSGRADW, LION] {
        let name = format!("mixed-{}", optimizer.name());
        let mut training = Training { workers: 2, rounds: 4, ..Training::new(name, mixed_keys(), optimizer) };
        on_one_and_two_cores(&training);
        training.weights = WeightsMode::Private;
        training.run(&hub(1).address().to_string());
    }
}

#[test]
fn learning_rates_change_between_rounds() {
    let _watchdog = Watchdog::start();
    for optimizer in [SGD, NESTEROV, ADAMW] {
        let mut training = Training::new(optimizer.name(), odd_keys(), optimizer);
        training.rates = vec![(0, 0.2), (2, 0.05), (3, 0.01), (5, 0.0)];
        on_one_and_two_cores(&training);
    }
}

/// All hyperparameters change, and the multipliers of the keys, too. Small neighbouring keys have equal multipliers only in
/// some rounds.
#[test]
fn all_numbers_change_between_rounds() {
    let _watchdog = Watchdog::start();
    let (learning_rate, weight_decay) = (0.05, 0.2);
    for (optimizer, next) in [
        (SGD, Optimizer::Sgd { learning_rate, weight_decay }),
        (MOMENTUM, Optimizer::Momentum { learning_rate, weight_decay, momentum: 0.0 }),
        (NESTEROV, Optimizer::Nesterov { learning_rate, weight_decay, momentum: 0.5 }),
        (ADAM, Optimizer::Adam { learning_rate, weight_decay, beta1: 0.5, beta2: 0.25, epsilon: 1e-3 }),
        (ADAMW, Optimizer::AdamW { learning_rate, weight_decay, beta1: 0.0, beta2: 0.9, epsilon: 1e-4 }),
        (DAMPENED, Optimizer::Dampened { learning_rate, weight_decay, momentum: 0.5, dampening: 0.0 }),
        (LION, Optimizer::Lion { learning_rate, weight_decay, beta1: 0.5, beta2: 0.25 }),
    ] {
        let mut keys = odd_keys();
        keys.extend((0..4).map(|number| Key::f32(format!("small {number}"), [16])));
        let of_keys = |apart: usize| (0..keys.len()).map(|key| [1.5, (key % apart) as f32]).collect();
        let numbers = vec![
            (0, next.with_learning_rate(0.0), Some(of_keys(1))),
            (2, next, Some(of_keys(4))),
            (3, optimizer, None),
            (5, next, Some(of_keys(2))),
        ];
        let rates = vec![(4, 0.125)];
        let plain = Training { rates, numbers, ..Training::new(optimizer.name(), keys, optimizer) };
        on_one_and_two_cores(&plain);
        // Some keys keep their hyperparameters. Two of these keys are small neighbours.
        let of_keys = (0..plain.keys.len()).map(|key| u8::from([1, 4, 7, 8].contains(&key))).collect();
        let groups = Groups { optimizers: vec![optimizer], of_keys };
        on_one_and_two_cores(&Training { groups: Some(groups.into()), ..plain });
    }
}

#[test]
fn the_size_of_chunks_does_not_show() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let runs = [64, 4096, 32 * 1024, 1 << 20].map(|chunk_bytes| {
        let mut training = Training::new(format!("chunks-of-{chunk_bytes}"), odd_keys(), NESTEROV);
        training.chunk_bytes = chunk_bytes;
        training.rounds = 3;
        training.run(&hub.address().to_string())
    });
    assert!(runs.iter().all(|run| *run == runs[0]), "every chunk size gives the same bits");
}

#[test]
fn private_weights_are_the_same_weights() {
    let _watchdog = Watchdog::start();
    let mut training = Training::new("private", odd_keys(), NESTEROV);
    training.weights = WeightsMode::Private;
    on_one_and_two_cores(&training);
}

#[test]
fn workers_are_summed_in_their_order_however_many() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    for workers in [1, 2, 7, 70] {
        let keys = vec![Key::f32("a", [33]), Key::f32("b", []), Key::f32("c", [2, 3, 5])];
        let mut training = Training::new(format!("of-{workers}"), keys, NESTEROV);
        (training.workers, training.chunk_bytes, training.rounds) = (workers, 64, 4);
        training.run(&hub.address().to_string());
    }
}

/// The immediate carries the low eight bits of a round, which wrap around.
#[test]
fn rounds_wrap_around_in_immediates() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let keys = vec![Key::f32("a", [33]), Key::f32("b", [])];
    let mut training = Training::new("long", keys, NESTEROV);
    (training.workers, training.chunk_bytes, training.rounds) = (2, 64, 600);
    training.run(&hub.address().to_string());
}
