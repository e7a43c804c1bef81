//! Averages of weights that a hub keeps, bit for bit. The tests use every optimizer and type, any number of
//! cores and hubs, codecs, and rounds without a step. The hub's state contains the averages.

use std::time::Duration;

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::state::fetch_all;
use hub_tests::training::Training;
use hub_tests::{PATIENT_S, addresses, hub, says, values};
use pbox_core::{Ablate, Consistency, Dtype, Key, KeyId, Numbers, Optimizer, Schedule, oracle};
use worker_shim::{Pushed, Session};

const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.3, weight_decay: 0.01 };
const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-3, momentum: 0.9 };
const MOMENTUM: Optimizer = Optimizer::Momentum { learning_rate: 0.1, weight_decay: 1e-3, momentum: 0.9 };
const ADAM: Optimizer =
    Optimizer::Adam { learning_rate: 0.01, weight_decay: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
const AMSGRADW: Optimizer =
    Optimizer::AmsGradW { learning_rate: 0.01, weight_decay: 0.1, beta1: 0.8, beta2: 0.5, epsilon: 1e-6 };
const LION: Optimizer = Optimizer::Lion { learning_rate: 1e-3, weight_decay: 0.1, beta1: 0.9, beta2: 0.99 };

/// Returns keys in all types, with sizes near those of a chunk and of a vector.
fn keys() -> Vec<Key> {
    let sizes = [1u64, 3, 17, 8192, 8193, 50_000];
    let dtypes = [Dtype::F32, Dtype::F32, Dtype::BF16, Dtype::F16].into_iter().cycle();
    sizes.iter().zip(dtypes).map(|(&size, dtype)| Key::new(dtype, format!("of {size}"), [size])).collect()
}

fn averaged(job: &str, optimizer: Optimizer) -> Training {
    Training { ema: Some(0.9), workers: 2, rounds: 4, ..Training::new(job, keys(), optimizer) }
}

#[test]
fn averages_of_every_optimizer_follow_each_step() {
    let _watchdog = Watchdog::start();
    for optimizer in [SGD, MOMENTUM, NESTEROV, ADAM, AMSGRADW, LION] {
        let runs =
            [1, 2].map(|cores| averaged(optimizer.name(), optimizer).run(&hub(cores).address().to_string()));
        let without = Training { ema: None, ..averaged("without", optimizer) };
        assert!(runs == [(); 2].map(|()| without.run(&hub(1).address().to_string())), "{}", optimizer.name());
    }
}

#[test]
fn averages_follow_numbers_that_change_and_gradients_that_are_clipped() {
    let _watchdog = Watchdog::start();
    let training = Training { rates: vec![(1, 0.2), (3, 0.0)], ..averaged("changed", NESTEROV) };
    training.run(&hub(2).address().to_string());
    let clipped = Training { clip_norm: Some(3.0), ..averaged("clipped", ADAM) };
    clipped.run(&hub(2).address().to_string());
    Training { maximize: true, ..averaged("up", SGD) }.run(&hub(1).address().to_string());
}

#[test]
fn a_round_that_is_skipped_moves_no_average() {
    let _watchdog = Watchdog::start();
    let skipped = Training { skipped: vec![1, 2], rounds: 5, ..averaged("skipped", ADAM) };
    skipped.run(&hub(2).address().to_string());
    skipped.run(&addresses(&[hub(1), hub(1)]));
}

#[test]
fn averages_are_at_the_hub_of_each_piece() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(2), hub(1)];
    for schedule in [Schedule::Sliced, Schedule::P3, Schedule::KvStore] {
        let job = schedule.to_string();
        Training { schedule, ..averaged(&job, NESTEROV) }.run(&addresses(&hubs));
    }
}

#[test]
fn averages_follow_weights_that_are_shown_ahead() {
    let _watchdog = Watchdog::start();
    let transport: fn(u32) -> Option<Transport> = |_| Some(Transport::Tcp);
    let keys = vec![Key::f32("a", [9000]), Key::new(Dtype::BF16, "b", [70, 90])];
    Training { keys, ahead: true, transport, ..averaged("ahead", ADAM) }.run(&hub(2).address().to_string());
}

/// Returns the weights and averages of a job's state.
fn kept(training: &Training, hub: &str) -> [Vec<f32>; 2] {
    let limit = Duration::from_secs(PATIENT_S);
    let saved = fetch_all(&[hub], &training.job, &training.keys, &training.tensors(), limit).unwrap();
    [0, 2].map(|which| saved.tensor(&training.keys, which).concat())
}

/// Compares the averages of a worker's job with the weights in the hub's state, which are finer than the
/// worker's weights. With BSP the worker writes other weights in round 2, and then resets the state of a key.
fn follow(training: &Training, consistency: Consistency, hub: &str) {
    let mut config = training.config(hub, 0);
    (config.terms.level.consistency, config.terms.compare_every) = (consistency, 0);
    let mut session = Session::join(config).unwrap();
    training.broadcast(&mut session, 0).unwrap();
    let [weights, mut expected] = kept(training, hub);
    assert_eq!(weights, expected, "{}: an average begins with the weights", training.job);
    for round in 0..training.rounds {
        let (is_put, is_reset) = (round == 2, round == 3);
        let is_put = is_put && consistency == Consistency::Bsp;
        if is_reset && consistency == Consistency::Bsp {
            session.set_numbers(Numbers::new(training.optimizer), &[KeyId(0)]).unwrap();
        }
        for key in session.keys() {
            let fill = |gradient: &mut [f32]| values::fill_gradient(1, 0, round, key, gradient);
            training.write(&mut session, key, fill);
            session.push_as(if is_put { Pushed::Weights } else { Pushed::Gradient }, [key]).unwrap();
        }
        session.wait_all().unwrap();
        let [weights, averages] = kept(training, hub);
        let steps = if is_put { &mut [] } else { &mut expected[..] }.iter_mut().zip(&weights);
        steps.for_each(|(average, &weight)| oracle::average(0.9, weight, average));
        values::same_bits(format!("{}, round {round}", training.job), &averages, &expected);
    }
    session.leave().unwrap();
}

#[test]
fn averages_follow_the_hubs_own_weights_and_no_others() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let address = hub.address().to_string();
    let plain = |job: &str| Training { workers: 1, rounds: 5, ..averaged(job, MOMENTUM) };
    for codec in ["qsgd:8", "topk:0.1", "onebit"] {
        let job = plain(&codec.replace(':', "-"));
        follow(&Training { compression: Some(codec.parse().unwrap()), ..job }, Consistency::Bsp, &address);
    }
    follow(&plain("asp"), Consistency::Asp, &address);
    follow(&plain("bsp"), Consistency::Bsp, &address);
}

#[test]
fn averages_that_there_cannot_be_are_refused_by_name() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let join = |change: &dyn Fn(&mut worker_shim::SessionConfig)| {
        let mut config = averaged("refused", SGD).config(&hub.address().to_string(), 0);
        change(&mut config);
        Session::join(config).err().unwrap()
    };
    for (value, seen) in [
        ("0", "ema 0"),
        ("1", "ema 1"),
        ("-0.5", "ema -0.5"),
        ("nan", "ema NaN"),
        ("0.99999999999", "also in f32"),
    ] {
        says(join(&|config| config.set("ema", value).unwrap()), &[seen, "above 0 and below 1"]);
    }
    says(join(&|config| config.terms.optimizer = Optimizer::Average), &["ema with the optimizer average"]);
    let ablate = Ablate { optimize: true, aggregate: false };
    says(join(&|config| config.terms.ablate = ablate), &["ema with ablate"]);
}
