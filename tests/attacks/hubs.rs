//! Attacks on jobs of several hubs. A hub is cut off, is slow, stops running for a time, is replaced at its
//! address, or lacks a worker.

use std::time::Duration;

use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::relay::{RelayPath, Stall};
use hub_tests::{
    addresses, config_at, describe, hub_with_limit, join_by_hand, join_request, on_threads, ready_all, says,
};
use pbox_core::JobTerms;
use pbox_core::control::{JobState, JoinRequest, Peers};
use rustix::process::Signal;
use worker_shim::Session;

use super::{Behind, LIMIT_S, beside};
use crate::processes::worker::Worker;

/// Returns two workers of a job over these hubs, after a round.
fn two_workers(hubs: &str, job: &str, transport: &str) -> Vec<Worker> {
    on_threads(2, |rank| {
        let mut worker = Worker::join(&format!("{hubs} {job} {rank} 2{transport}")).unwrap();
        worker.round().unwrap();
        worker
    })
}

/// Lets each worker make `count` rounds while `what` runs, and checks every bit.
fn rounds_while(workers: &mut [Worker], count: u32, what: impl FnOnce()) -> Vec<Result<(), String>> {
    std::thread::scope(|scope| {
        let round = |worker: &mut Worker| (0..count).try_for_each(|_| worker.round());
        let rounds: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(move || round(worker))).collect();
        what();
        rounds.into_iter().map(|round| round.join().unwrap().map_err(|error| error.to_string())).collect()
    })
}

#[test]
fn one_of_two_hubs_is_cut_off_from_gradients_and_not_from_requests() {
    let _watchdog = Watchdog::start();
    let hubs = [Behind::start(&[]), Behind::start(&[])];
    let list = hubs.iter().map(|hub| hub.relay.address()).collect::<Vec<_>>().join(",");
    beside(&[&hubs[0].address(), &hubs[1].address()], || {
        let mut workers = two_workers(&list, "job", " tcp");
        for stall in [Stall { up: true, down: false }, Stall { up: false, down: true }, Stall::BOTH] {
            hubs[1].relay.stall(RelayPath::Data, stall);
            let ended = rounds_while(&mut workers, 3, || {
                std::thread::sleep(Duration::from_secs(LIMIT_S + 1));
                hubs[1].relay.stall(RelayPath::Data, Stall::NONE);
            });
            assert_eq!(ended, [Ok(()), Ok(())], "{stall:?}");
        }
        workers.into_iter().for_each(|worker| worker.leave().unwrap());
    });
}

/// Workers connect at once to a hub that first touches the memory of its large share, and answers only then.
#[test]
fn hubs_that_are_slow_to_answer_are_connected_to_at_once() {
    let _watchdog = Watchdog::start();
    let hubs = [Behind::start(&[]), Behind::start(&[])];
    let list = hubs.iter().map(|hub| hub.relay.address()).collect::<Vec<_>>().join(",");
    hubs.iter().for_each(|hub| hub.relay.stall(RelayPath::Data, Stall::DOWN));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| Worker::join(&format!("{list} job 0 1 tcp")).unwrap());
        until("both hubs are connected to", || hubs.iter().all(|hub| hub.relay.open(RelayPath::Data) > 0));
        hubs.iter().for_each(|hub| hub.relay.stall(RelayPath::Data, Stall::NONE));
        let mut worker = worker.join().unwrap();
        worker.round().unwrap();
        worker.leave().unwrap();
    });
}

#[test]
fn one_of_two_hubs_stands_still_beyond_its_limit() {
    let _watchdog = Watchdog::start();
    let hubs = [Behind::start(&[]), Behind::start(&[])];
    let list = hubs.iter().map(Behind::address).collect::<Vec<_>>().join(",");
    beside(&[&hubs[0].address()], || {
        let mut workers = two_workers(&list, "job", "");
        hubs[1].process.stop();
        let ended = rounds_while(&mut workers, 50, || {
            std::thread::sleep(Duration::from_secs(LIMIT_S + 2));
            hubs[1].process.signal(Signal::CONT);
        });
        for ended in &ended {
            // The stopped hub got no heartbeats, but it names no worker as lost, because it notices that it was
            // stopped itself.
            assert_eq!(*ended, Ok(()), "{ended:?}");
        }
        workers.into_iter().for_each(|worker| worker.leave().unwrap());
    });
}

#[test]
fn one_of_two_hubs_is_another_one_behind_the_same_address() {
    let _watchdog = Watchdog::start();
    let first = Behind::start(&[]);
    let mut second = Behind::start(&[]);
    let list = [first.address(), second.address()].join(",");
    beside(&[&first.address()], || {
        for _ in 0..3 {
            let mut workers = two_workers(&list, "job", "");
            let ended = rounds_while(&mut workers, u32::MAX, || {
                second.process.signal(Signal::KILL);
                second.start_again(&[]);
            });
            for ended in ended {
                let error = ended.unwrap_err();
                assert!(error.contains("\"job\"") && error.contains(&second.address()), "{error}");
            }
            drop(workers);
            until("the first hub has given the job up", || {
                let jobs = describe(&first.address()).jobs.into_iter().filter(|job| job.name == "job");
                jobs.map(|job| job.state).all(|state| matches!(state, JobState::Failed { .. }))
            });
        }
        // A job of the same name can begin again at once, with right bits.
        two_workers(&list, "job", "").into_iter().for_each(|worker| worker.leave().unwrap());
    });
}

/// The error names a client that joins at the first hub and never connects to the second hub. The client has all
/// rights.
#[test]
fn a_worker_that_comes_to_one_of_two_hubs_is_named() {
    let _watchdog = Watchdog::start();
    let hubs = [hub_with_limit(1, LIMIT_S), hub_with_limit(1, LIMIT_S)];
    let names: Vec<String> = hubs.iter().map(|hub| hub.address().to_string()).collect();
    beside(&[&names[0], &names[1]], || {
        let request = join_request(0, 2);
        let terms = JobTerms { hubs: 2, ..request.terms };
        let peers = Some(Peers { hubs: names.clone(), pass: None });
        let half = join_by_hand(&hubs[0], "job", &JoinRequest { hub: 0, peers, terms, ..request });
        let error = Session::join(config_at(&addresses(&hubs), "job", 1, 2)).map(|_| ()).unwrap_err();
        says(error, &["\"job\"", "worker 0"]);
        drop(half);
        // The name of the job is free again.
        let sessions = ready_all(2, |rank| config_at(&addresses(&hubs), "job", rank, 2));
        sessions.into_iter().for_each(|session| session.leave().unwrap());
    });
}
