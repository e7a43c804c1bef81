//! Pulls in batches of layers. A batch is pulled at its time and given to the caller as a whole, and the bits do not change. A
//! session makes a plan and shows it. RDMA is tested if `PHUB_TEST_DEVICE` names devices.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use fabric::sim::{Faults, Net};
use hub_tests::simulated::{Simulated, Terms};
use hub_tests::training::Training;
use hub_tests::{config, has_rdma, hub, push_all, ready_all, refused, says};
use pbox_core::OnLoss;
use pbox_core::{Consistency, Key, KeyId, Layout, Optimizer, Round, Schedule};
use worker_shim::batch::Batching;
use worker_shim::{Pull, Session, SessionConfig};

const KEYS: u32 = 6;
const CUTS: [&[Range<usize>]; 4] =
    [&[0..1, 1..2, 2..3, 3..4], &[0..1, 1..3, 3..4], &[0..3, 3..4], &[0..4; 1]];

/// Returns layers that are not in the order of the manifest. Some have two keys.
fn layers() -> Vec<Vec<KeyId>> {
    vec![vec![KeyId(1), KeyId(0)], vec![KeyId(3)], vec![KeyId(2), KeyId(5)], vec![KeyId(4)]]
}

fn keys() -> Vec<Key> {
    [1000, 10, 700, 64, 5000, 3].iter().enumerate().map(|(i, &n)| Key::f32(format!("k{i}"), [n])).collect()
}

/// The network delays and reorders. At any time, the keys that the caller has got are those of the first batches.
#[test]
fn batches_come_whole_and_in_order() {
    let _watchdog = Watchdog::start();
    let layout = Arc::new(Layout::new(keys(), 256).unwrap());
    for seed in fabric::sim::seeds(40) {
        let cut = CUTS[seed as usize % CUTS.len()];
        let cores = 1 + seed as usize % 3;
        let terms =
            Terms::new(2, cores, Optimizer::Average).with(|job| job.level.schedule = Schedule::KvStore);
        let faults = Faults { delay: 1..9, reorder: true, ..Faults::NONE };
        let mut job = Simulated::new(Net::new(seed, faults), &layout, terms).unwrap();
        job.pull_in_batches(&layers(), cut);
        let batches: Vec<Vec<KeyId>> = cut.iter().map(|batch| layers()[batch.clone()].concat()).collect();
        for round in 1..4 {
            for worker in &mut job.workers {
                (0..KEYS).rev().for_each(|key| worker.push(KeyId(key)).unwrap());
            }
            while job.workers.iter().any(|worker| worker.first_under_way().is_some()) {
                job.step().unwrap();
                for (worker, pulled) in job.workers.iter().zip(&job.batches) {
                    let ready = |batch: &&Vec<KeyId>| batch.iter().all(|&key| worker.is_ready(key));
                    let there = batches.iter().take_while(ready).count();
                    let later = batches[there..].iter().flatten();
                    assert_eq!(later.filter(|&&key| worker.is_ready(key)).count(), 0, "seed {seed}");
                    let total = (round - 1) * batches.len() + there;
                    let counts = pulled.as_ref().unwrap().counts();
                    assert_eq!(counts.there, total as u64, "seed {seed}");
                    // At most one more batch is pulled.
                    assert!(counts.due <= total as u64 + 1, "seed {seed}");
                }
            }
        }
    }
}

/// The number of notices and pulls is the same as without batches: one for each part of a layer, worker and
/// round.
#[test]
fn batches_cost_no_messages() {
    let _watchdog = Watchdog::start();
    let layout = Arc::new(Layout::new(keys(), 256).unwrap());
    let arrivals = |cut: Option<&[Range<usize>]>| {
        let terms = Terms::new(2, 2, Optimizer::Average).with(|job| job.level.schedule = Schedule::KvStore);
        let mut job = Simulated::new(Net::new(1, Faults::NONE), &layout, terms).unwrap();
        if let Some(cut) = cut {
            job.pull_in_batches(&layers(), cut);
        }
        for _round in 0..3 {
            for worker in &mut job.workers {
                (0..KEYS).rev().for_each(|key| worker.push(KeyId(key)).unwrap());
            }
            job.settle(100).unwrap();
        }
        (job.cores.iter().map(|core| core.tally().arrivals).sum::<u64>(), job.arrivals.iter().sum::<u64>())
    };
    let at_once = arrivals(None);
    assert!(CUTS.into_iter().all(|cut| arrivals(Some(cut)) == at_once));
}

#[test]
fn the_bits_are_the_same_in_batches() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let nesterov = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-4, momentum: 0.9 };
    let keys = vec![Key::f32("a", [33]), Key::f32("b", [70_000]), Key::f32("c", [9000])];
    let mut runs = Vec::new();
    let mut ways: Vec<(fn(u32) -> _, _)> =
        vec![(|_| Some(Transport::Tcp), "tcp"), (|_| Some(Transport::Shm), "shm")];
    if has_rdma() {
        ways.push((|_| Some(Transport::Verbs), "verbs"));
    }
    for (transport, how) in ways {
        for batching in Batching::ALL.map(Some).into_iter().chain([None]) {
            let job = format!("{how}-{}", batching.map_or("once", Batching::name));
            let mut training = Training::new(job, keys.clone(), nesterov);
            (training.schedule, training.transport) = (Schedule::KvStore, transport);
            let start_up = Duration::from_micros(if how == "shm" { 300 } else { 0 });
            training.pull = batching.map(|batching| Pull { start_up, ..Pull::new(batching) });
            runs.push(training.run(&hub.address().to_string()));
        }
    }
    assert!(runs.iter().all(|run| *run == runs[0]));
}

fn pulling(config: SessionConfig, batching: Batching) -> SessionConfig {
    let config = SessionConfig { pull: Some(Pull::new(batching)), ..config };
    config.with_terms(|terms| terms.level.schedule = Schedule::KvStore)
}

/// The caller waits for one key after another, so that the session can measure.
#[test]
fn a_session_profiles_and_plans() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    for (batching, consistency) in [
        (Batching::Optimum, Consistency::Bsp),
        (Batching::Greedy, Consistency::Bsp),
        (Batching::Optimum, Consistency::Ssp { staleness: 1 }),
        (Batching::Optimum, Consistency::Asp),
    ] {
        let job = format!("{batching}-{consistency}").replace(':', "-");
        let config = |rank| {
            pulling(config(&hub, &job, rank, 2), batching)
                .with_terms(|terms| terms.level.consistency = consistency)
        };
        let mut sessions = ready_all(2, config);
        let mut rounds = 0;
        while sessions.iter().any(|session| session.pull_plan().is_none()) {
            assert!(rounds <= 2 * worker_shim::PROFILE_ROUNDS, "a profile has an end");
            sessions.iter_mut().for_each(|session| push_all(session).unwrap());
            for session in &mut sessions {
                session.keys().for_each(|key| session.wait(key).unwrap());
            }
            rounds += 1;
        }
        assert_eq!(
            rounds,
            2 * worker_shim::PROFILE_ROUNDS + 1,
            "it is made at the first push after its rounds"
        );
        for session in sessions {
            let plan = session.pull_plan().unwrap();
            assert_eq!((plan.batching, plan.profiles), (batching, 1));
            assert_eq!(plan.profile.as_ref().unwrap().layers.len(), session.keys().count());
            assert!(plan.to_string().starts_with(&format!("{batching}, ")), "{plan}");
            session.leave().unwrap();
        }
    }
}

/// A worker that joins a running job does not wait for weights in the join. Its first forward pass counts as
/// a round like any other.
#[test]
fn a_worker_that_joins_a_running_job_pulls_in_batches() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    for consistency in [Consistency::Bsp, Consistency::Ssp { staleness: 2 }] {
        let job = consistency.to_string().replace(':', "-");
        let config = |rank| {
            pulling(config(&hub, &job, rank, 2), Batching::Layer).with_terms(|terms| {
                (terms.level.consistency, terms.on_loss) = (consistency, OnLoss::Continue);
            })
        };
        let mut sessions = ready_all(2, config);
        drop(sessions.pop());
        let [stays] = &mut sessions[..] else { unreachable!("one is left") };
        // The rounds continue until this worker knows that the other worker is gone, and for one round more.
        while stays.members().len() > 1 {
            push_all(stays).and_then(|()| stays.wait_all()).unwrap();
        }
        let mut comes = Session::join(config(1)).unwrap();
        let from = comes.next_round();
        assert!(from > Round(0), "{consistency}");
        comes.broadcast_weights::<f32>(|_, _| unreachable!("there are weights")).unwrap();
        for key in comes.keys() {
            comes.wait(key).unwrap();
            assert_eq!(
                comes.weights::<f32>(key).unwrap(),
                stays.weights::<f32>(key).unwrap(),
                "{consistency}"
            );
        }
        for session in [&mut *stays, &mut comes] {
            push_all(session).unwrap();
        }
        assert_eq!(comes.pull_plan().unwrap().rounds, 1, "its first weights came in batches, key by key");
        comes.wait_all().unwrap();
        stays.wait_all().unwrap();
    }
}

#[test]
fn a_wait_that_would_never_end_is_an_error() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut session = Session::join(pulling(config(&hub, "job", 0, 1), Batching::All)).unwrap();
    session.broadcast_weights::<f32>(|_, weights| weights.fill(1.0)).unwrap();
    let keys: Vec<KeyId> = session.keys().collect();
    session.push(keys[0]).unwrap();
    says(
        session.wait(keys[0]).unwrap_err(),
        &["pulled in batches", "push every key", "or leave out batches"],
    );
    keys[1..].iter().for_each(|&key| session.push(key).unwrap());
    session.wait_all().unwrap();
    session.leave().unwrap();
}

/// A session that gets another order of layers measures and plans again.
#[test]
fn other_layers_are_pulled_by_between_rounds() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut session = Session::join(pulling(config(&hub, "job", 0, 1), Batching::All)).unwrap();
    session.broadcast_weights::<f32>(|_, weights| weights.fill(1.0)).unwrap();
    let keys: Vec<KeyId> = session.keys().collect();
    let round = |session: &mut Session| {
        keys.iter().for_each(|&key| session.push(key).unwrap());
        keys.iter().rev().for_each(|&key| session.wait(key).unwrap());
    };
    round(&mut session);
    assert_eq!(session.pull_plan().unwrap().batches, [0..3; 1]);
    session.push(keys[0]).unwrap();
    let together = vec![vec![keys[2]], vec![keys[1], keys[0]]];
    says(session.pull_by(together.clone()).unwrap_err(), &["in flight", "pulling by other layers"]);
    keys[1..].iter().for_each(|&key| session.push(key).unwrap());
    session.wait_all().unwrap();
    says(session.pull_by(vec![vec![keys[0]]]).unwrap_err(), &["every key once"]);
    session.pull_by(together).unwrap();
    assert_eq!(session.pull_plan().unwrap().batches, [0..2; 1]);
    round(&mut session);
    round(&mut session);
    assert_eq!(session.pull_plan().unwrap().rounds, 1, "of the new plan, up to the last push");
    session.leave().unwrap();
    let mut session = Session::join(config(&hub, "plain", 0, 1)).unwrap();
    says(
        session.pull_by(Vec::new()).unwrap_err(),
        &["does not pull layers in batches", "SessionConfig::pull"],
    );
}

#[test]
fn bad_layers_are_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let config = || pulling(config(&hub, "job", 0, 1), Batching::Optimum);
    says(
        refused(config().with_terms(|terms| terms.level.schedule = Schedule::P3)),
        &["pull ibatch with schedule p3", "only kvstore"],
    );
    let with = |layers: Vec<Vec<KeyId>>| {
        let pull = Some(Pull { layers, ..Pull::new(Batching::Layer) });
        refused(SessionConfig { pull, ..config() })
    };
    says(with(vec![vec![KeyId(0)], vec![]]), &["layer 1 has no keys", "every key once"]);
    says(with(vec![vec![KeyId(0), KeyId(99)]]), &["key 99 does not exist"]);
    says(with(vec![vec![KeyId(0), KeyId(0)]]), &["key 0 is in 2 layers"]);
    says(with(vec![vec![KeyId(1)]]), &["key 0 is in 0 layers"]);
}
