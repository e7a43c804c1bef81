//! LARS and LAMB, whose steps wait for the norms of a key, bit for bit. The tests use every transport and
//! schedule, any number of cores and workers, every type and chunk size.

use fabric::conformance::Watchdog;
use hub_tests::training::Training;
use hub_tests::{addresses, hub, says, transports_of_two};
use pbox_core::{Compression, Dtype, Key, KeyId, Optimizer, Schedule};
use worker_shim::{Session, WeightsMode};

const LARS: Optimizer =
    Optimizer::Lars { learning_rate: 1.0, weight_decay: 1e-3, momentum: 0.9, trust: 0.01 };
const LAMB: Optimizer =
    Optimizer::Lamb { learning_rate: 0.01, weight_decay: 0.1, beta1: 0.9, beta2: 0.99, epsilon: 1e-6 };

/// Returns keys of sizes around a block, which is 32 KiB, in all types. One key is not adapted, and one key
/// has its own learning rate.
fn keys() -> Vec<Key> {
    let sizes = [1u64, 17, 8192, 8193, 16_384, 50_000];
    let dtypes = [Dtype::F32, Dtype::BF16, Dtype::F16].into_iter().cycle();
    let of = |(&size, dtype)| Key::new(dtype, format!("of {size}"), [size]);
    let mut keys: Vec<Key> = sizes.iter().zip(dtypes).map(of).collect();
    keys[1].wd_mult = 0.0;
    keys[3].lr_mult = 0.5;
    keys
}

fn by_key(job: &str, optimizer: Optimizer) -> Training {
    Training { workers: 2, rounds: 4, ..Training::new(job, keys(), optimizer) }
}

#[test]
fn steps_by_key_are_exact_for_any_number_of_cores_and_workers() {
    let _watchdog = Watchdog::start();
    for optimizer in [LARS, LAMB] {
        for workers in [1, 4] {
            let runs = [1, 2, 3].map(|cores| {
                let training = Training { workers, ..by_key(optimizer.name(), optimizer) };
                training.run(&hub(cores).address().to_string())
            });
            assert!(runs.iter().all(|run| *run == runs[0]), "{}, {workers} workers", optimizer.name());
        }
    }
}

#[test]
fn a_step_waits_for_its_own_key_alone() {
    let _watchdog = Watchdog::start();
    for optimizer in [LARS, LAMB] {
        let hub = hub(2);
        let alone = Training { workers: 1, ..by_key("alone", optimizer) };
        let mut session = Session::join(alone.config(&hub.address().to_string(), 0)).unwrap();
        session.broadcast_written().unwrap();
        let (first, second) = (KeyId(0), KeyId(1));
        session.push(first).unwrap();
        session.wait(first).unwrap();
        session.push(second).unwrap();
        session.wait_all().unwrap();
    }
}

#[test]
fn the_bits_are_the_same_by_every_transport_and_schedule() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let run = |training: Training| training.run(&hub.address().to_string());
    let expected = run(by_key("shm", LAMB));
    for schedule in [Schedule::KvStore, Schedule::Layerwise, Schedule::Sliced, Schedule::P3] {
        for transport in transports_of_two() {
            let job = format!("{schedule}-{}", transport(1).unwrap());
            let seen = run(Training { schedule, transport, ..by_key(&job, LAMB) });
            assert!(seen == expected, "{job}");
        }
    }
    for optimizer in [LARS, LAMB] {
        let job = by_key(&format!("private-{}", optimizer.name()), optimizer);
        run(Training { weights: WeightsMode::Private, ema: Some(0.5), maximize: true, ..job });
    }
}

/// With several hubs each key is at one hub, whatever its length.
#[test]
fn the_bits_are_the_same_over_several_hubs() {
    let _watchdog = Watchdog::start();
    let (one, hubs) = (hub(1), [hub(1), hub(2), hub(1)]);
    for optimizer in [LARS, LAMB] {
        for schedule in [Schedule::KvStore, Schedule::Layerwise, Schedule::Sliced, Schedule::P3] {
            let job = format!("{}-{schedule}", optimizer.name());
            let training = Training { schedule, ..by_key(&job, optimizer) };
            let expected = training.run(&one.address().to_string());
            for transport in transports_of_two() {
                let seen = Training { transport, ..training.clone() }.run(&addresses(&hubs));
                assert!(seen == expected, "{job}, {}", transport(1).unwrap());
            }
        }
    }
    // Two of these hubs own no chunk.
    Training { keys: vec![Key::f32("alone", [50_000])], ..by_key("alone", LAMB) }.run(&addresses(&hubs));
}

#[test]
fn codecs_are_exact() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(2), hub(1)];
    for (codec, optimizer) in ["bf16", "qsgd:4:64", "topk:0.1"].into_iter().zip([LARS, LAMB, LAMB]) {
        let (job, compression) = (codec.replace(':', "-"), Some(codec.parse().unwrap()));
        let training = Training { compression, ..by_key(&job, optimizer) };
        let one = training.run(&hubs[0].address().to_string());
        assert!(one == training.run(&addresses(&hubs)), "{codec}");
    }
}

#[test]
fn the_size_of_chunks_does_not_show() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    for optimizer in [LARS, LAMB] {
        let runs = [32 << 10, 96 << 10, 1 << 20].map(|chunk_bytes| {
            let job = format!("{}-of-{chunk_bytes}", optimizer.name());
            Training { chunk_bytes, ..by_key(&job, optimizer) }.run(&hub.address().to_string())
        });
        assert!(runs.iter().all(|run| *run == runs[0]), "{}", optimizer.name());
    }
}

#[test]
fn what_has_no_norm_of_a_key_is_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let join = |optimizer, change: &dyn Fn(&mut worker_shim::SessionConfig)| {
        let mut config = by_key("refused", optimizer).config(&hub.address().to_string(), 0);
        change(&mut config);
        Session::join(config).map(|_| ()).unwrap_err().to_string()
    };
    let error = join(LARS, &|config| config.set("consistency", "ssp:2").unwrap());
    says(&error, &["the optimizer lars with consistency ssp:2", "use bsp"]);
    let error = join(LAMB, &|config| config.set("clip_norm", "1").unwrap());
    says(&error, &["the optimizer lamb with clip_norm", "skip_spikes out"]);
    let error = join(LAMB, &|config| {
        config.terms.level.compression = Some("slim:0.2:0.1:10".parse::<Compression>().unwrap());
    });
    says(&error, &["the optimizer lamb with Slim-DP", "use a codec"]);
    let none = Optimizer::Lars { learning_rate: 1.0, weight_decay: 0.0, momentum: 0.9, trust: 0.0 };
    says(join(none, &|_| {}), &["lars: trust is 0", "above 0"]);
}
