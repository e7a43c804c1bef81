//! LARS and LAMB in jobs where machines sum first. The weights equal those of the oracle, bit for bit, for
//! every shape of hubs.

use fabric::conformance::Watchdog;
use hub_tests::training::Training;
use hub_tests::{addresses, hub, hub_below};
use pbox_core::{Dtype, Key, Optimizer, Schedule};

use super::{Machines, train};

const LARS: Optimizer =
    Optimizer::Lars { learning_rate: 1.0, weight_decay: 1e-3, momentum: 0.9, trust: 0.01 };
const LAMB: Optimizer =
    Optimizer::Lamb { learning_rate: 0.01, weight_decay: 0.1, beta1: 0.9, beta2: 0.99, epsilon: 1e-6 };

/// Returns keys of sizes around a block, which is 32 KiB, in f32 and bf16. One key is not adapted.
fn keys() -> Vec<Key> {
    let sizes = [1u64, 17, 8192, 8193, 16_384, 30_000];
    let dtypes = [Dtype::F32, Dtype::BF16].into_iter().cycle();
    let of = |(&size, dtype)| Key::new(dtype, format!("of {size}"), [size]);
    let mut keys: Vec<Key> = sizes.iter().zip(dtypes).map(of).collect();
    keys[1].wd_mult = 0.0;
    keys
}

fn by_key(job: &str, optimizer: Optimizer) -> Training {
    Training { rounds: 5, ..Training::new(job, keys(), optimizer) }
}

#[test]
fn machines_below_hubs_adapt_keys_as_one_job() {
    let _watchdog = Watchdog::start();
    for tops in [1, 3] {
        let machines = Machines::start(tops, 2);
        for optimizer in [LARS, LAMB] {
            train(&machines, &[2, 2], &by_key(optimizer.name(), optimizer));
        }
    }
}

#[test]
fn a_mesh_adapts_keys_as_one_job() {
    let _watchdog = Watchdog::start();
    for shape in [vec![2, 2], vec![1, 1, 1]] {
        let mesh = Machines::mesh(shape.len() as u32);
        for optimizer in [LARS, LAMB] {
            for schedule in [Schedule::KvStore, Schedule::P3] {
                let job = format!("{}-{schedule}", optimizer.name());
                train(&mesh, &shape, &Training { schedule, ..by_key(&job, optimizer) });
            }
        }
    }
}

#[test]
fn three_levels_adapt_keys_as_one_job() {
    let _watchdog = Watchdog::start();
    let top = [hub(2), hub(1)];
    let between = hub_below(&addresses(&top), 0, 1);
    let machine = hub_below(&between.address().to_string(), 0, 1);
    let keys = vec![Key::f32("a", [3]), Key::f32("b", [20_000]), Key::f32("c", [9000])];
    let training = Training { workers: 2, keys, ..by_key("job", LAMB) };
    // With one machine on each level, the sums are those of a job at a single hub.
    let flat = training.run(&hub(1).address().to_string());
    assert!(training.run(&machine.address().to_string()) == flat);
}
