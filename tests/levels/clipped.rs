//! Gradients that are clipped by the norm of all keys together, in jobs where machines sum first. Weights,
//! norms and skipped rounds equal those of the oracle, bit for bit, for every shape of hubs.

use fabric::conformance::Watchdog;
use hub_tests::training::Training;
use hub_tests::{addresses, hub, hub_below};
use pbox_core::{Dtype, Key, Optimizer, Schedule};

use super::{Machines, train};

const ADAM: Optimizer =
    Optimizer::Adam { learning_rate: 0.01, weight_decay: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-3, momentum: 0.9 };

/// Returns keys of sizes around a block, which is 32 KiB, in f32 and bf16.
fn keys() -> Vec<Key> {
    let sizes = [1u64, 17, 8192, 8193, 16_384, 30_000];
    let dtypes = [Dtype::F32, Dtype::BF16].into_iter().cycle();
    sizes.iter().zip(dtypes).map(|(&size, dtype)| Key::new(dtype, format!("of {size}"), [size])).collect()
}

fn of_f32() -> Vec<Key> {
    vec![Key::f32("a", [3]), Key::f32("b", [20_000]), Key::f32("c", [9000])]
}

fn clipped(job: &str, optimizer: Optimizer) -> Training {
    Training { clip_norm: Some(3.0), rounds: 5, ..Training::new(job, keys(), optimizer) }
}

#[test]
fn machines_below_hubs_clip_as_one_job() {
    let _watchdog = Watchdog::start();
    for tops in [1, 3] {
        let machines = Machines::start(tops, 2);
        for (optimizer, skipped) in [(NESTEROV, vec![]), (ADAM, vec![1, 2]), (Optimizer::Average, vec![])] {
            let training = Training { skipped, ..clipped(optimizer.name(), optimizer) };
            train(&machines, &[2, 2], &training);
        }
    }
}

/// Returns a training with spikes. The spike of round 3 is among the first ten norms, so its round makes a
/// step, and its norm counts.
fn with_spikes(optimizer: Optimizer) -> Training {
    let (skip_spikes, spikes) = (Some(2.0), vec![3, 10, 12, 13]);
    let job = format!("spikes-{}", optimizer.name());
    Training { clip_norm: None, skip_spikes, spikes, rounds: 15, ..clipped(&job, optimizer) }
}

fn by_former(optimizer: Optimizer) -> Training {
    let job = format!("former-{}", optimizer.name());
    Training { clip_norm: None, clip_norm_last: Some(3.0), ..clipped(&job, optimizer) }
}

#[test]
fn machines_skip_spikes_and_clip_by_the_last_norm_as_one_job() {
    let _watchdog = Watchdog::start();
    for machines in [Machines::start(1, 2), Machines::start(3, 2), Machines::mesh(2)] {
        for optimizer in [NESTEROV, ADAM] {
            train(&machines, &[2, 2], &with_spikes(optimizer));
            train(&machines, &[2, 2], &by_former(optimizer));
        }
    }
}

#[test]
fn a_mesh_clips_as_one_job() {
    let _watchdog = Watchdog::start();
    for shape in [vec![2, 2], vec![1, 1, 1]] {
        let mesh = Machines::mesh(shape.len() as u32);
        for (optimizer, skipped) in [(NESTEROV, vec![]), (ADAM, vec![1, 2])] {
            for schedule in [Schedule::KvStore, Schedule::P3] {
                let job = format!("{}-{schedule}", optimizer.name());
                let training = Training { skipped: skipped.clone(), schedule, ..clipped(&job, optimizer) };
                train(&mesh, &shape, &training);
            }
        }
    }
}

/// With one worker on each machine, the sums are those of a job at a single hub, in the same order.
#[test]
fn a_mesh_of_single_workers_has_the_bits_of_the_flat_job() {
    let _watchdog = Watchdog::start();
    let training = Training { workers: 3, keys: of_f32(), ..clipped("job", ADAM) };
    let flat = training.run(&hub(2).address().to_string());
    assert!(train(&Machines::mesh(3), &[1, 1, 1], &training) == flat);
}

#[test]
fn three_levels_clip_as_one_job() {
    let _watchdog = Watchdog::start();
    let top = [hub(2), hub(1)];
    let between = hub_below(&addresses(&top), 0, 1);
    let machine = hub_below(&between.address().to_string(), 0, 1);
    let training = Training { workers: 2, skipped: vec![2], keys: of_f32(), ..clipped("job", NESTEROV) };
    // With one machine on each level, the sums are those of a job at a single hub.
    let flat = training.run(&hub(1).address().to_string());
    assert!(training.run(&machine.address().to_string()) == flat);
}
