//! Gradients that are clipped by the norm of all keys together, bit for bit. The tests use every transport
//! and schedule, several numbers of hubs and cores, types and chunk sizes. A job without clipping is a plain
//! job.

use fabric::conformance::Watchdog;
use hub_tests::training::Training;
use hub_tests::{addresses, hub, on_threads, says, transports_of_two};
use pbox_core::{Compression, Dtype, Key, KeyId, Optimizer, Schedule};
use worker_shim::{Session, WeightsMode};

const ADAM: Optimizer =
    Optimizer::Adam { learning_rate: 0.01, weight_decay: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-3, momentum: 0.9 };

/// Returns keys of sizes around a block, which is 32 KiB, in all types. The norm of a round's mean is about 120.
fn keys() -> Vec<Key> {
    let sizes = [1u64, 17, 8192, 8193, 16_384, 50_000];
    let dtypes = [Dtype::F32, Dtype::BF16, Dtype::F16].into_iter().cycle();
    sizes.iter().zip(dtypes).map(|(&size, dtype)| Key::new(dtype, format!("of {size}"), [size])).collect()
}

fn clipped(job: &str, optimizer: Optimizer, most: f32) -> Training {
    Training { clip_norm: Some(most), workers: 2, rounds: 4, ..Training::new(job, keys(), optimizer) }
}

#[test]
fn clipped_gradients_are_exact() {
    let _watchdog = Watchdog::start();
    for optimizer in [Optimizer::Average, Optimizer::Sum, NESTEROV, ADAM] {
        let runs = [1, 2].map(|cores| {
            let training = clipped(optimizer.name(), optimizer, 3.0);
            training.run(&hub(cores).address().to_string())
        });
        assert!(runs[0] == runs[1], "{}: one core and two give the same bits", optimizer.name());
    }
}

#[test]
fn jobs_of_one_hub_have_norms_of_their_own() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let address = hub.address().to_string();
    let alone = [1.0, 3.0].map(|most| clipped(&format!("alone-{most}"), NESTEROV, most).run(&address));
    let beside = on_threads(2, |job| {
        clipped(&format!("beside-{job}"), NESTEROV, [1.0, 3.0][job as usize]).run(&address)
    });
    assert!(alone[0] != alone[1] && beside == alone);
}

#[test]
fn the_bits_are_the_same_by_every_transport_and_schedule() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let run = |training: Training| training.run(&hub.address().to_string());
    let expected = run(clipped("shm", NESTEROV, 3.0));
    for schedule in [Schedule::KvStore, Schedule::Layerwise, Schedule::Sliced, Schedule::P3] {
        for transport in transports_of_two() {
            let job = format!("{schedule}-{}", transport(1).unwrap());
            let seen = run(Training { schedule, transport, ..clipped(&job, NESTEROV, 3.0) });
            assert!(seen == expected, "{job}");
        }
    }
    run(Training { weights: WeightsMode::Private, ..clipped("private", NESTEROV, 3.0) });
}

/// Formerly a job had at most 256 hubs, because there were only 256 ids for the hubs' parts of the norm.
#[test]
fn the_parts_of_300_hubs_make_one_norm() {
    let _watchdog = Watchdog::start();
    let hubs: Vec<_> = (0..300).map(|_| hub(1)).collect();
    let keys = vec![Key::f32("of all hubs", [300 * 4 * 16])];
    let training = Training { keys, chunk_bytes: 64, rounds: 2, ..clipped("many", NESTEROV, 3.0) };
    let expected = training.run(&hubs[0].address().to_string());
    assert!(training.run(&addresses(&hubs)) == expected);
}

#[test]
fn the_bits_are_the_same_over_several_hubs() {
    let _watchdog = Watchdog::start();
    let (one, hubs) = (hub(1), [hub(1), hub(2), hub(1)]);
    for (optimizer, skipped) in [(NESTEROV, vec![]), (ADAM, vec![1, 2]), (Optimizer::Average, vec![])] {
        for schedule in [Schedule::KvStore, Schedule::Sliced, Schedule::P3] {
            let job = format!("{}-{schedule}", optimizer.name());
            let clipped =
                Training { schedule, skipped: skipped.clone(), rounds: 5, ..clipped(&job, optimizer, 3.0) };
            let expected = clipped.run(&one.address().to_string());
            for transport in transports_of_two() {
                let over_hubs = Training { transport, ..clipped.clone() };
                assert!(over_hubs.run(&addresses(&hubs)) == expected, "{job}, {}", transport(1).unwrap());
            }
        }
    }
    // One of these hubs owns no chunk, and adds nothing to the norm.
    let keys = vec![Key::f32("a", [3]), Key::f32("b", [5])];
    Training { clip_norm: Some(0.5), workers: 2, ..Training::new("small", keys, NESTEROV) }
        .run(&addresses(&hubs));
}

#[test]
fn the_mean_of_decoded_sums_is_clipped() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(2), hub(1)];
    let codecs = ["bf16", "qsgd:4:64", "onebit", "topk:0.1", "dgc:0.1:0.9:none:4"];
    for (codec, optimizer) in codecs.into_iter().zip([NESTEROV, ADAM, Optimizer::Average, NESTEROV, ADAM]) {
        // Decoded sums are in f32. So each block of the norm has f32 values, whatever the type of the key.
        let keys = keys().into_iter().chain([Key::new(Dtype::BF16, "more", [40_000])]).collect();
        let (job, compression) = (codec.replace(':', "-"), Some(codec.parse().unwrap()));
        let training = Training { keys, compression, ..clipped(&job, optimizer, 3.0) };
        let one = training.run(&hubs[0].address().to_string());
        assert!(one == training.run(&addresses(&hubs)), "{codec}");
    }
    for codec in ["f16", "bf16"] {
        let compression = Some(codec.parse().unwrap());
        let job = format!("{codec}-skips");
        let skipped = Training { skipped: vec![1, 2], compression, ..clipped(&job, NESTEROV, 3.0) };
        skipped.run(&hubs[0].address().to_string());
    }
}

#[test]
fn the_size_of_chunks_does_not_show() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let runs = [32 << 10, 96 << 10, 1 << 20].map(|chunk_bytes| {
        let job = format!("chunks-of-{chunk_bytes}");
        Training { chunk_bytes, ..clipped(&job, ADAM, 3.0) }.run(&hub.address().to_string())
    });
    assert!(runs.iter().all(|run| *run == runs[0]), "every chunk size gives the same bits");
}

#[test]
fn a_norm_that_is_never_reached_changes_no_bit() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let far = clipped("far", NESTEROV, 1e6);
    let plain = Training { job: "plain".into(), clip_norm: None, ..far.clone() };
    let [far, plain, near] =
        [far, plain, clipped("near", NESTEROV, 3.0)].map(|each| each.run(&hub.address().to_string()));
    assert!(far == plain && near != plain);
}

#[test]
fn a_round_that_is_not_finite_is_no_step() {
    let _watchdog = Watchdog::start();
    for (optimizer, clip_norm) in [(NESTEROV, None), (ADAM, Some(3.0)), (Optimizer::Average, None)] {
        let training = clipped(optimizer.name(), optimizer, 3.0);
        let run = |training: Training, cores| training.run(&hub(cores).address().to_string());
        let skipped = Training { clip_norm, skipped: vec![1, 2], rounds: 5, ..training };
        assert!(run(skipped.clone(), 1) == run(skipped.clone(), 2), "{}", optimizer.name());
        for transport in transports_of_two() {
            run(Training { transport, schedule: Schedule::KvStore, ..skipped.clone() }, 2);
        }
    }
}

/// If rounds are not skipped, an infinite norm acts like `torch.nn.utils.clip_grad_norm_` with
/// `error_if_nonfinite=False`.
#[test]
fn without_a_skip_an_infinite_norm_makes_all_zero_but_what_is_infinite() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let training = Training { workers: 1, ..clipped("infinite", Optimizer::Average, 3.0) };
    let mut session = Session::join(training.config(&hub.address().to_string(), 0)).unwrap();
    for (bad, is_none) in [(f32::INFINITY, false), (f32::NAN, true)] {
        for key in session.keys() {
            training.write(&mut session, key, |values| {
                values.fill(1.0);
                values[0] = if key == KeyId(2) { bad } else { 1.0 };
            });
            session.push(key).unwrap();
        }
        session.wait_all().unwrap();
        let (_, norm) = session.norm().unwrap();
        assert_eq!((norm.is_nan(), norm.is_finite(), session.skipped()), (is_none, false, 0));
        for key in session.keys() {
            let means = training.read(&session, key);
            assert!(key != KeyId(2) || means[0].is_nan());
            assert!(means[1..].iter().all(|mean| if is_none { mean.is_nan() } else { *mean == 0.0 }));
        }
    }
    session.leave().unwrap();
}

#[test]
fn what_has_no_norm_is_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let join = |change: &dyn Fn(&mut worker_shim::SessionConfig)| {
        let mut config = clipped("refused", NESTEROV, 3.0).config(&hub.address().to_string(), 0);
        change(&mut config);
        Session::join(config).map(|_| ()).unwrap_err().to_string()
    };
    for (value, seen) in
        [("0", "clip_norm 0"), ("-1", "clip_norm -1"), ("inf", "clip_norm inf"), ("nan", "clip_norm NaN")]
    {
        let error = join(&|config| config.set("clip_norm", value).unwrap());
        says(&error, &[seen, "expected a number above 0"]);
    }
    let error = join(&|config| config.set("consistency", "asp").unwrap());
    says(&error, &["clip_norm with consistency asp", "use bsp"]);
    let error = join(&|config| {
        config.terms.level.compression = Some("slim:0.2:0.1:10".parse::<Compression>().unwrap());
    });
    says(&error, &["clip_norm with Slim-DP", "clip before you push"]);
    let error = join(&|config| {
        (config.terms.clip_norm, config.terms.skip_nonfinite) = (None, true);
        config.terms.level.compression = Some("qsgd:8:64".parse::<Compression>().unwrap());
    });
    says(&error, &["skip_nonfinite with the codec qsgd:8:64", "use f16 or bf16"]);
}

/// Returns a training whose norm changes much from round to round, so that the use of another round's scale
/// is noticed.
fn by_former(job: &str, optimizer: Optimizer) -> Training {
    Training { clip_norm: None, clip_norm_last: Some(3.0), rounds: 6, ..clipped(job, optimizer, 1.0) }
}

#[test]
fn a_round_is_scaled_by_the_norm_of_the_one_before() {
    let _watchdog = Watchdog::start();
    for optimizer in [NESTEROV, ADAM, Optimizer::Average] {
        let runs = [1, 2].map(|cores| {
            let training = by_former(optimizer.name(), optimizer);
            training.run(&hub(cores).address().to_string())
        });
        assert!(runs[0] == runs[1], "{}: on one core and two", optimizer.name());
    }
    let (hub, hubs) = (hub(2), [hub(1), hub(2), hub(1)]);
    for transport in transports_of_two() {
        let job = format!("former-{}", transport(1).unwrap());
        let training = Training { transport, ..by_former(&job, ADAM) };
        let runs = [addresses(&hubs), hub.address().to_string()].map(|hubs| training.run(&hubs));
        assert!(runs[0] == runs[1], "{job}: over three hubs and at one");
    }
    for schedule in [Schedule::KvStore, Schedule::Layerwise, Schedule::P3] {
        let job = format!("former-{schedule}");
        Training { schedule, ..by_former(&job, NESTEROV) }.run(&addresses(&hubs));
    }
    for chunk_bytes in [96 << 10, 1 << 20] {
        let job = format!("chunks-of-{chunk_bytes}");
        Training { chunk_bytes, ..by_former(&job, ADAM) }.run(&hub.address().to_string());
    }
    for codec in ["bf16", "qsgd:8", "topk:0.1"] {
        let training = Training { clip_norm_last: Some(0.5), ..Training::compressed("former", codec) };
        training.run(&hub.address().to_string());
    }
}

#[test]
fn the_last_norm_is_refused_by_name_where_there_is_none() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let join = |change: &dyn Fn(&mut worker_shim::SessionConfig)| {
        let mut config = by_former("refused", NESTEROV).config(&hub.address().to_string(), 0);
        change(&mut config);
        Session::join(config).map(|_| ()).unwrap_err().to_string()
    };
    for (value, seen) in [("0", "clip_norm_last 0"), ("nan", "clip_norm_last NaN")] {
        let error = join(&|config| config.set("clip_norm_last", value).unwrap());
        says(&error, &[seen, "above 0"]);
    }
    let error = join(&|config| config.set("clip_norm", "1").unwrap());
    says(&error, &["clip_norm_last with clip_norm", "use clip_norm alone"]);
    let error = join(&|config| config.set("consistency", "asp").unwrap());
    says(&error, &["clip_norm_last with consistency asp", "use bsp"]);
}

/// Returns a training with spikes. The spike of round 3 is among the first ten norms, so its round makes a
/// step, and its norm counts.
fn with_spikes(job: &str, optimizer: Optimizer) -> Training {
    let (skip_spikes, spikes) = (Some(2.0), vec![3, 10, 12, 13]);
    Training { clip_norm: None, skip_spikes, spikes, rounds: 15, ..clipped(job, optimizer, 1.0) }
}

#[test]
fn a_round_whose_norm_is_a_spike_is_no_step() {
    let _watchdog = Watchdog::start();
    for (optimizer, clip_norm) in [(NESTEROV, None), (ADAM, Some(3.0)), (Optimizer::Average, None)] {
        let training = Training { clip_norm, ..with_spikes(optimizer.name(), optimizer) };
        let runs = [1, 2].map(|cores| training.run(&hub(cores).address().to_string()));
        assert!(runs[0] == runs[1], "{}: on one core and two", optimizer.name());
    }
    let (hub, hubs) = (hub(2), [hub(1), hub(2), hub(1)]);
    for transport in transports_of_two() {
        let skipped = Training { skipped: vec![11], transport, ..with_spikes("skips-both", ADAM) };
        skipped.run(&addresses(&hubs));
        skipped.run(&hub.address().to_string());
    }
    let training = Training::compressed("spikes", "bf16");
    let Training { skip_spikes, spikes, rounds, .. } = with_spikes("", ADAM);
    Training { skip_spikes, spikes, rounds, ..training }.run(&hub.address().to_string());
}

#[test]
fn a_mean_of_norms_is_refused_by_name_where_there_is_none() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let join = |change: &dyn Fn(&mut worker_shim::SessionConfig)| {
        let mut config = with_spikes("refused", NESTEROV).config(&hub.address().to_string(), 0);
        change(&mut config);
        Session::join(config).map(|_| ()).unwrap_err().to_string()
    };
    for (value, seen) in [("1", "skip_spikes 1:"), ("inf", "skip_spikes inf"), ("nan", "skip_spikes NaN")] {
        let error = join(&|config| config.set("skip_spikes", value).unwrap());
        says(&error, &[seen, "a number above 1", "leave skip_spikes out to skip no round"]);
    }
    let error = join(&|config| config.set("consistency", "asp").unwrap());
    says(&error, &["skip_spikes with consistency asp", "use bsp"]);
    let error = join(&|config| config.set("clip_norm_last", "1").unwrap());
    says(&error, &["clip_norm_last with skip_spikes"]);
    let error = join(&|config| config.set("compression", "qsgd:8:64").unwrap());
    says(&error, &["skip_spikes with the codec qsgd:8:64", "use f16 or bf16"]);
}
