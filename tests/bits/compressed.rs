//! Compressed jobs with a real hub have the bits of a plain model, with every transport and schedule. RDMA is
//! tested if `PHUB_TEST_DEVICE` names devices.

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use half::f16;
use hub_tests::model::CODECS;
use hub_tests::training::Training;
use hub_tests::{FIRST, config, has_rdma, hub, push_all, ready_all};
use pbox_core::{Consistency, Credit, Dtype, Key, KeyId, Optimizer, Schedule};
use worker_shim::Session;

#[test]
fn the_bits_are_those_of_a_plain_model_by_every_transport() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let address = hub.address().to_string();
    for codec in CODECS {
        let run = |job: &str, change: &dyn Fn(&mut Training)| {
            let mut training = Training::compressed(job, codec);
            change(&mut training);
            training.run(&address)
        };
        let shm = run("shm", &|training| training.transport = |_| Some(Transport::Shm));
        let mixed = |rank| Some(if rank % 2 == 0 { Transport::Tcp } else { Transport::Shm });
        assert_eq!(run("tcp", &|training| training.transport = |_| Some(Transport::Tcp)), shm, "{codec}");
        assert_eq!(run("mixed", &|training| training.transport = mixed), shm, "{codec}");
        for schedule in Schedule::ALL {
            let scheduled = run(&format!("{schedule}"), &|training| {
                (training.schedule, training.credit) = (schedule, Some(Credit::Bytes(100)));
            });
            assert_eq!(scheduled, shm, "{codec}, {schedule}");
        }
        run("mean", &|training| training.optimizer = Optimizer::Average);
    }
}

/// This test is separate, because an emulated virtual machine runs only this test: the test above takes too
/// long there.
#[test]
fn by_rdma_the_bits_are_those_of_a_plain_model() {
    if !has_rdma() {
        return;
    }
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let address = hub.address().to_string();
    for codec in CODECS {
        let mut rdma = Training::compressed("verbs", codec);
        rdma.transport = |_| Some(Transport::Verbs);
        let mut mixed = Training::compressed("mixed", codec);
        mixed.transport = |rank| Some(Transport::ALL[rank as usize % 3]);
        (mixed.schedule, mixed.credit) = (Schedule::P3, Some(Credit::Bytes(100)));
        assert_eq!(mixed.run(&address), rdma.run(&address), "{codec}");
    }
}

#[test]
fn a_compressed_job_over_two_hubs() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(2)];
    let address = hubs.each_ref().map(|hub| hub.address().to_string()).join(",");
    for codec in ["bf16", "topk:0.1"] {
        assert_eq!(
            Training::compressed("job", codec).run(&address),
            Training::compressed("job", codec).run(&hubs[1].address().to_string())
        );
    }
}

#[test]
fn values_that_are_not_finite_are_counted() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut sessions = ready_all(1, |rank| {
        let mut config = config(&hub, "job", rank, 1);
        config.terms.level.compression = Some("qsgd:8".parse().unwrap());
        config
    });
    let session = &mut sessions[0];
    let gradient = session.gradient_mut::<f32>(FIRST).unwrap();
    (gradient[3], gradient[40]) = (f32::NAN, f32::INFINITY);
    push_all(session).unwrap();
    session.wait_all().unwrap();
    assert_eq!(session.not_finite(), 2);
    assert!(session.weights::<f32>(FIRST).unwrap().iter().all(|weight| weight.is_finite()));
}

/// Gradients overflow if a loss scale is too large. Then the mean of one round is infinite, and the next mean
/// is right.
#[test]
fn a_mean_that_overflows_does_so_for_one_round() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut config = config(&hub, "job", 0, 1);
    config.terms.optimizer = Optimizer::Average;
    config.terms.keys = vec![Key::new(Dtype::F16, "a", [100])];
    config.terms.level.compression = Some("bf16".parse().unwrap());
    let mut session = Session::join(config).unwrap();
    for (pushed, mean) in [(f16::INFINITY, f32::INFINITY), (f16::ONE, 1.0)] {
        session.gradient_mut::<f16>(FIRST).unwrap().fill(pushed);
        push_all(&mut session).unwrap();
        session.wait_all().unwrap();
        let weights = session.weights::<f16>(FIRST).unwrap();
        assert!(weights.iter().all(|weight| weight.to_f32() == mean), "{weights:?}");
    }
}

/// In SSP and ASP the hub sends each worker, coded by the codec, the values that this worker lacks. With a
/// single worker, all bits and the number of bytes equal those of BSP.
#[test]
fn a_worker_that_steps_alone_is_sent_what_it_lacks() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    for codec in ["bf16", "qsgd:4:64", "onebit", "terngrad", "topk:0.25", "randomk:0.25"] {
        let train = |consistency: Consistency| {
            let job = format!("{codec}-{consistency}").replace(':', "-");
            let config = config(&hub, &job, 0, 1).with_terms(|terms| {
                (terms.level.consistency, terms.level.compression) = (consistency, codec.parse().ok());
                terms.keys = vec![Key::f32("a", [500]), Key::new(Dtype::F16, "b", [100])];
            });
            let mut session = Session::join(config).unwrap();
            session.gradient_mut::<f32>(FIRST).unwrap().fill(1.0);
            session.gradient_mut::<f16>(KeyId(1)).unwrap().fill(f16::NEG_ONE);
            session.broadcast_written().unwrap();
            let mut seen = Vec::new();
            for round in 1..6 {
                let gradient = |index: usize| ((index * 7 + round * 31) % 23) as f32 / 8.0 - 1.0;
                let a = session.gradient_mut::<f32>(FIRST).unwrap();
                a.iter_mut().enumerate().for_each(|(index, value)| *value = gradient(index));
                let b = session.gradient_mut::<f16>(KeyId(1)).unwrap();
                b.iter_mut().enumerate().for_each(|(index, value)| *value = f16::from_f32(gradient(index)));
                push_all(&mut session).unwrap();
                session.wait_all().unwrap();
                seen.push((
                    session
                        .weights::<f32>(FIRST)
                        .unwrap()
                        .iter()
                        .map(|weight| weight.to_bits())
                        .collect::<Vec<_>>(),
                    session.weights::<f16>(KeyId(1)).unwrap().to_vec(),
                ));
            }
            let traffic = session.traffic();
            session.leave().unwrap();
            (seen, traffic)
        };
        let together = train(Consistency::Bsp);
        for alone in [Consistency::Ssp { staleness: 2 }, Consistency::Asp] {
            assert_eq!(train(alone), together, "{codec}, {alone}");
        }
    }
}
