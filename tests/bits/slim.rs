//! Slim-DP with a real hub: the bits are the same with every transport, with several hubs and after a
//! checkpoint. Terms that Slim-DP does not allow are refused. `tests/sim/bits/slim.rs` checks the weights
//! themselves. RDMA is tested if `PHUB_TEST_DEVICE` names devices.

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use half::{bf16, f16};
use hub_tests::values::fill_gradient;
use hub_tests::{
    FIRST, PATIENT_S, SECOND, THIRD, config, config_at, has_rdma, hub, join_request, on_threads, push_all,
    ready_all, refusal, refused, says, settings,
};
use pbox_core::OnLoss;
use pbox_core::control::JoinRequest;
use pbox_core::{Compression, Consistency, Dtype, Key, KeyId, Optimizer, Round, Schedule};
use phub_server::Hub;
use worker_shim::{Session, SessionConfig};

const ROUNDS: u32 = 14;
const ADD: Optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };

fn slim(text: &str) -> Option<Compression> {
    Some(text.parse().unwrap())
}

/// Makes a worker's own step for a round, and pushes the change.
fn step(session: &mut Session, rank: u32, round: u32) {
    for (key, dtype) in session.keys().zip(session.layout().keys().to_vec()) {
        match dtype.dtype {
            Dtype::F32 => step_key::<f32>(session, key, rank, round),
            Dtype::F16 => step_key::<f16>(session, key, rank, round),
            Dtype::BF16 => step_key::<bf16>(session, key, rank, round),
        }
    }
    session.wait_all().unwrap();
}

fn step_key<E: pbox_core::Element>(session: &mut Session, key: KeyId, rank: u32, round: u32) {
    let mut changes = vec![0.0; session.gradient_mut::<E>(key).unwrap().len()];
    fill_gradient(3, rank, round, key, &mut changes);
    let own = session.weights_mut::<E>(key).unwrap().iter_mut().zip(&changes);
    own.for_each(|(weight, change)| *weight = E::from_f32(weight.to_f32() - change));
    let pushed = session.gradient_mut::<E>(key).unwrap().iter_mut().zip(&changes);
    pushed.for_each(|(pushed, change)| *pushed = E::from_f32(*change));
    session.push(key).unwrap();
}

/// Runs a job. Returns the bits of the last weights of each worker.
fn train(hub: &str, job: &str, change: impl Fn(u32, &mut SessionConfig) + Sync) -> Vec<Vec<u32>> {
    on_threads(3, |rank| {
        let mut config = config_at(hub, job, rank, 3);
        config.terms.keys = vec![
            Key::f32("a", [3, 400]),
            Key::new(Dtype::BF16, "b", [300]),
            Key::f32("c", [1]),
            Key::new(Dtype::F16, "d", [70]),
        ];
        (config.terms.chunk_bytes, config.terms.optimizer) = (256, ADD);
        config.terms.level.compression = slim("slim:0.5:0.25:5");
        change(rank, &mut config);
        let mut session = Session::join(config).unwrap();
        session.broadcast_written().unwrap();
        (1..=ROUNDS).for_each(|round| step(&mut session, rank, round));
        let bits = |session: &Session, key| -> Vec<u32> {
            let bits32 = |weights: &[f32]| weights.iter().map(|weight| weight.to_bits()).collect();
            let bits16 = |weights: Vec<u16>| weights.into_iter().map(u32::from).collect();
            match session.layout().keys()[KeyId::index(key)].dtype {
                Dtype::F32 => bits32(session.weights(key).unwrap()),
                Dtype::F16 => {
                    bits16(session.weights::<f16>(key).unwrap().iter().map(|w| w.to_bits()).collect())
                }
                Dtype::BF16 => {
                    bits16(session.weights::<bf16>(key).unwrap().iter().map(|w| w.to_bits()).collect())
                }
            }
        };
        let all = session.keys().flat_map(|key| bits(&session, key)).collect();
        session.leave().unwrap();
        all
    })
}

#[test]
fn the_bits_are_the_same_by_every_transport() {
    let _watchdog = Watchdog::start();
    let (hub, wide) = (hub(1), hub(2));
    let address = hub.address().to_string();
    let shm = train(&address, "shm", |_, config| config.transport = Some(Transport::Shm));
    assert_ne!(shm[0], shm[1], "each worker keeps what it did not send");
    assert_eq!(train(&address, "tcp", |_, config| config.transport = Some(Transport::Tcp)), shm);
    let mixed = |rank, config: &mut SessionConfig| {
        config.transport = Some(if rank == 1 { Transport::Tcp } else { Transport::Shm });
    };
    assert_eq!(train(&wide.address().to_string(), "mixed", mixed), shm, "on two cores");
    assert_eq!(train(&address, "p3", |_, config| config.terms.level.schedule = Schedule::P3), shm);
    let keys =
        |_, config: &mut SessionConfig| config.terms.level.compression = slim("slim:0.5:0.25:5:none:keys");
    assert_eq!(train(&address, "keys", keys), shm, "the same explorers, sent with their places");
    if has_rdma() {
        let verbs = |_, config: &mut SessionConfig| config.transport = Some(Transport::Verbs);
        assert_eq!(train(&address, "verbs", verbs), shm);
        let verbs_keys = |rank, config: &mut SessionConfig| {
            keys(rank, config);
            config.transport = Some(Transport::Verbs);
        };
        assert_eq!(train(&wide.address().to_string(), "verbs-keys", verbs_keys), shm, "on two cores");
        let mixed = |rank, config: &mut SessionConfig| {
            config.transport = Some(Transport::ALL[rank as usize % 3]);
            config.terms.level.schedule = Schedule::P3;
        };
        assert_eq!(
            train(&wide.address().to_string(), "mixed-with-rdma", mixed),
            shm,
            "each worker by another transport"
        );
    }
}

#[test]
fn over_two_hubs_each_selects_from_its_share() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(2)];
    let address = hubs.each_ref().map(|hub| hub.address().to_string()).join(",");
    let one = train(&address, "one", |_, _| {});
    assert_eq!(train(&address, "two", |_, config| config.transport = Some(Transport::Tcp)), one);
    let all = |_, config: &mut SessionConfig| config.terms.level.compression = slim("slim:1:1:5");
    let everything = train(&address, "all", all);
    assert!(
        everything.iter().all(|weights| *weights == everything[0]),
        "a worker that sends everything has what all have"
    );
}

#[test]
fn a_job_goes_on_from_a_checkpoint() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let mut settings = settings(2, PATIENT_S);
    settings.checkpoints = Some(dir.path().to_owned());
    for life in 0..3 {
        let hub = Hub::start(&settings).unwrap();
        let first = 1 + life * 7;
        let weights = on_threads(2, |rank| {
            let mut config = config(&hub, "job", rank, 2);
            (config.terms.level.compression, config.terms.optimizer) = (slim("slim:1:0.5:4"), ADD);
            let mut session = Session::join(config).unwrap();
            for key in session.keys() {
                // If the job has weights already, the hub ignores the weights that this worker broadcasts.
                session.gradient_mut::<f32>(key).unwrap().fill(life as f32);
            }
            session.broadcast_written().unwrap();
            assert_eq!(session.next_round(), Round(first));
            // Each worker sends all values, half of them as its explorer, so it gets the sum of all changes.
            let was = session.weights::<f32>(SECOND).unwrap()[0];
            assert_eq!(was, (first - 1) as f32 * -2.0);
            for _ in 0..7 {
                for key in session.keys() {
                    let gradient = session.gradient_mut::<f32>(key).unwrap();
                    gradient.iter_mut().for_each(|change| *change += 2.0);
                }
                push_all(&mut session).unwrap();
                session.wait_all().unwrap();
            }
            let weights =
                session.keys().map(|key| session.weights::<f32>(key).unwrap()[0]).collect::<Vec<_>>();
            session.leave().unwrap();
            weights
        });
        assert_eq!(weights, vec![vec![(first + 6) as f32 * -2.0; 3]; 2]);
        hub.stop("the test is done with it");
    }
}

#[test]
fn keys_of_a_round_that_selects_come_together() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut sessions = ready_all(1, |rank| {
        let mut config = config(&hub, "job", rank, 1);
        (config.terms.level.compression, config.terms.optimizer) = (slim("slim:0.5:0.25:4"), ADD);
        config
    });
    let session = &mut sessions[0];
    session.push(FIRST).unwrap();
    session.wait(FIRST).unwrap();
    let early = session.push(FIRST).unwrap_err();
    says(early, &["\"first.weight\"", "round 2", "\"second.bias\"", "push every key once a round"]);
    session.push(SECOND).unwrap();
    session.push(THIRD).unwrap();
    session.push(FIRST).unwrap();
    session.wait_all().unwrap();
}

#[test]
fn terms_that_do_not_fit_are_named() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let beside = |change: &dyn Fn(&mut JoinRequest), words: &[&str]| {
        let mut request = join_request(0, 1);
        (request.terms.level.compression, request.terms.optimizer) = (slim("slim:0.2:0.1"), ADD);
        change(&mut request);
        let (status, error) = refusal(&hub, "/v1/jobs/job/join", serde_json::to_vec(&request).unwrap());
        assert_eq!(status, 400, "{error}");
        says(error, words);
        let mut config = config(&hub, "job", 0, 1);
        config.terms = request.terms;
        says(refused(config), words);
    };
    beside(
        &|request| request.terms.optimizer = Optimizer::Average,
        &["Slim-DP with the optimizer average", "sgd"],
    );
    beside(
        &|request| request.terms.level.consistency = Consistency::Asp,
        &["Slim-DP with consistency asp", "use bsp"],
    );
    beside(
        &|request| request.terms.level.schedule = Schedule::Layerwise,
        &["Slim-DP with schedule layerwise", "use sliced or p3"],
    );
    beside(&|request| request.terms.on_loss = OnLoss::Continue, &["on_loss continue", "use on_loss stop"]);
    let large = |request: &mut JoinRequest| {
        request.terms.keys = vec![Key::f32("a", [100_000])];
        request.terms.chunk_bytes = 1 << 20;
    };
    beside(&large, &["chunks of 100000 elements", "at most 65536"]);
    let mut plain = ready_all(1, |rank| config(&hub, "plain", rank, 1));
    says(plain[0].weights_mut::<f32>(FIRST).unwrap_err(), &["\"first.weight\"", "only the hub writes"]);
}
