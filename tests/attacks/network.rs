//! Networks that carry nothing on the data path of a worker, in one direction or both, while its control path
//! works. In other tests, networks carry nothing on both paths for so long that the worker is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::relay::{RelayPath, Stall};
use hub_tests::{config_at, describe, on_threads};
use pbox_core::control::JobState;
use pbox_core::{OnLoss, Optimizer};
use worker_shim::{Session, SessionConfig, SessionError};

use super::{Behind, LIMIT_S, beside};
use crate::processes::worker::Worker;

#[test]
fn a_partition_of_the_data_path_is_named_and_heals() {
    let _watchdog = Watchdog::start();
    let hub = Behind::start(&[]);
    let address = hub.address();
    beside(&[&address], || {
        for stall in [Stall::UP, Stall::DOWN, Stall::BOTH] {
            let mut workers = on_threads(2, |rank| {
                let args = if rank == 0 {
                    format!("{address} job 0 2")
                } else {
                    format!("{} job 1 2 tcp", hub.relay.address())
                };
                let mut worker = Worker::join(&args).unwrap();
                worker.round().unwrap();
                worker
            });
            hub.relay.stall(RelayPath::Data, stall);
            std::thread::scope(|scope| {
                let rounds: Vec<_> = workers
                    .iter_mut()
                    // Each round checks every bit.
                    .map(|worker| scope.spawn(|| (0..3).try_for_each(|_| worker.round())))
                    .collect();
                let job = || describe(&address).jobs.into_iter().find(|job| job.name == "job").unwrap();
                until("the worker behind the partition is named", || {
                    job().held_up_by.iter().map(|late| late.rank).collect::<Vec<_>>() == [1]
                });
                // The worker's heartbeats arrive, so the hub does not count the worker as lost.
                std::thread::sleep(Duration::from_secs(LIMIT_S + 1));
                assert_eq!(job().state, JobState::Running, "{stall:?}");
                hub.relay.stall(RelayPath::Data, Stall::NONE);
                rounds.into_iter().for_each(|round| round.join().unwrap().unwrap());
            });
            workers.into_iter().for_each(|worker| worker.leave().unwrap());
        }
    });
}

/// Makes a round, and checks that each round so far has subtracted 1 from weights that began with 0. The
/// result is the same for any set of workers.
fn count(session: &mut Session) -> Result<(), SessionError> {
    for key in session.keys() {
        session.gradient_mut::<f32>(key)?.fill(1.0);
        session.push(key)?;
    }
    session.wait_all()?;
    let rounds = session.next_round().0 - 1;
    for key in session.keys() {
        assert!(
            session.weights::<f32>(key)?.iter().all(|&weight| weight == -(rounds as f32)),
            "after round {rounds}"
        );
    }
    Ok(())
}

#[test]
fn a_worker_that_was_declared_lost_goes_on_with_the_others_when_the_network_is_back() {
    let _watchdog = Watchdog::start();
    let hub = Behind::start(&[]);
    let (near, far) = (hub.address(), hub.relay.address());
    beside(&[&near], || {
        let workers = on_threads(2, |rank| {
            let mut config = config_at(if rank == 0 { &near } else { &far }, "job", rank, 2);
            config.terms.optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
            config.terms.on_loss = OnLoss::Continue;
            let transport = (rank == 1).then_some(Transport::Tcp);
            let config = SessionConfig { hub_wait: Duration::from_secs(60), transport, ..config };
            let mut session = Session::join(config).unwrap();
            session.broadcast_weights(|_, weights: &mut [f32]| weights.fill(0.0)).unwrap();
            session
        });
        let over = &AtomicBool::new(false);
        let [mut steady, mut cut_off]: [Session; 2] = workers.try_into().ok().unwrap();
        std::thread::scope(|scope| {
            let steady = scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    count(&mut steady).unwrap();
                }
                steady.leave().unwrap();
            });
            let cut_off = scope.spawn(move || {
                while cut_off.returns().times == 0 {
                    count(&mut cut_off).unwrap();
                }
                let back = cut_off.next_round();
                while cut_off.next_round().0 < back.0 + 5 {
                    count(&mut cut_off).unwrap();
                }
                assert_eq!(cut_off.returns().lost_rounds, 0, "the others made its rounds");
                cut_off.leave().unwrap();
            });
            let members = || {
                let jobs = describe(&near).jobs;
                let job = jobs.into_iter().find(|job| job.name == "job").unwrap();
                job.members.iter().map(|member| member.rank).collect::<Vec<_>>()
            };
            for path in [RelayPath::Control, RelayPath::Data] {
                hub.relay.stall(path, Stall::BOTH);
            }
            until("the worker behind the network is lost", || members() == [0]);
            for path in [RelayPath::Control, RelayPath::Data] {
                hub.relay.stall(path, Stall::NONE);
            }
            cut_off.join().unwrap();
            over.store(true, Ordering::Relaxed);
            steady.join().unwrap();
        });
    });
}
