//! A hub is asked to stop while a worker does not push its part of a round. The stop waits ten seconds for
//! the push. Only pushes that arrive in this time count.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::returning::{WORKERS, begun, end_together, start_process, waiting};
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{FIRST, describe, free_address, on_threads};
use pbox_core::control::{JobReply, RefusalCode};
use pbox_core::{KeyId, Optimizer};
use worker_shim::{Returns, Session, SessionConfig};

/// The number of steps before the step in which the hub stops.
const BEFORE: u32 = 3;
/// The number of steps after the step in which the hub stops.
const AFTER: u32 = 2;

/// Pushes gradients of the value rank plus 1. A step with both workers takes 1.5 from each weight, a step
/// with worker 0 alone takes 1.
fn push(session: &mut Session, rank: u32, keys: &[KeyId]) {
    for &key in keys {
        session.gradient_mut::<f32>(key).unwrap().fill(rank as f32 + 1.0);
        session.push(key).unwrap();
    }
}

/// Returns the change of each key's weights over the steps of a training, if hub `stopped` of `count` hubs
/// stops.
fn taken(count: usize, stopped: usize) -> Vec<f32> {
    let _watchdog = Watchdog::start();
    let addresses: Vec<SocketAddr> = (0..count).map(|_| free_address()).collect();
    let dirs: Vec<_> = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
    let start = |hub: usize| {
        let mut program = start_process(addresses[hub], dirs[hub].path(), 1000);
        program.read_reply();
        program
    };
    let hubs = Mutex::new((0..count).map(start).collect::<Vec<_>>());
    let list = addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
    let (pushed, over, ended) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let seen = on_threads(WORKERS, |rank| {
        let mut config = waiting(addresses[0], rank);
        config.hub = list.clone();
        config.terms.optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
        let mut session = begun(config);
        let first: Vec<f32> = session.keys().map(|key| session.weights::<f32>(key).unwrap()[0]).collect();
        for number in 0..BEFORE + 1 + AFTER {
            let keys: Vec<_> = session.keys().collect();
            let early = if number == BEFORE && rank == 1 { 1 } else { keys.len() };
            push(&mut session, rank, &keys[..early]);
            if number == BEFORE {
                session.wait(FIRST).unwrap(); // after this, the hub has begun this round
                pushed.fetch_add(1, Ordering::Relaxed);
                if rank == 0 {
                    until("both have pushed", || pushed.load(Ordering::Relaxed) == WORKERS);
                    let program = &mut hubs.lock().unwrap()[stopped];
                    program.finish();
                    *program = start(stopped);
                    over.store(1, Ordering::Relaxed);
                }
                until("the stop is over", || {
                    session.is_ready(FIRST).unwrap();
                    over.load(Ordering::Relaxed) == 1
                });
            }
            push(&mut session, rank, &keys[early..]);
            session.wait_all().unwrap();
        }
        end_together(&mut session, &ended, WORKERS);
        assert_eq!(session.returns(), Returns { times: 1, lost_rounds: 0 });
        let last = session.keys().map(|key| session.weights::<f32>(key).unwrap()[0]);
        last.zip(first).map(|(last, first)| first - last).collect::<Vec<_>>()
    });
    assert_eq!(seen[0], seen[1]);
    seen[0].clone()
}

/// Asserts that only late pushes are lost. Worker 1 has pushed the first key, which steps with both pushes. The other
/// keys step with worker 0 alone. Worker 1 pushes them too late, so its pushes do not count.
fn lost_is_what_had_not_come(taken: &[f32]) {
    let all = 1.5 * (BEFORE + 1 + AFTER) as f32;
    assert_eq!(taken, [all, all - 0.5, all - 0.5]);
}

#[test]
fn a_stop_that_waits_in_vain_loses_only_what_has_not_come() {
    lost_is_what_had_not_come(&taken(1, 0));
}

#[test]
fn the_second_hub_of_two_does_the_same() {
    lost_is_what_had_not_come(&taken(2, 1));
}

/// A job has a round in flight when its hub is asked to stop. A worker of another job joins during the stop.
#[test]
fn a_worker_that_comes_while_the_hub_stops_begins_at_the_next_hub() {
    let _watchdog = Watchdog::start();
    let (address, directory) = (free_address(), tempfile::tempdir().unwrap());
    let mut hub = start_process(address, directory.path(), 1000);
    hub.read_reply();
    let mut session = begun(SessionConfig { job: "first".into(), ..alone(address) });
    let keys: Vec<_> = session.keys().collect();
    push(&mut session, 0, &keys[..1]);
    session.wait(FIRST).unwrap();
    let stops = std::thread::spawn(move || hub.finish());
    let name = address.to_string();
    let health =
        || membership::wait_for(&[name.as_str()], &membership::Named::Here, Instant::now(), &|| false);
    until("the hub says that it stops", || {
        health().is_err_and(|error| error.code() == Some(RefusalCode::NotReady))
    });
    let refused = Session::join(SessionConfig { hub_wait: Duration::ZERO, ..alone(address) });
    let refused = refused.err().expect("the hub refuses");
    assert!(refused.to_string().contains("the hub is stopping"), "{refused}");

    let comes = std::thread::spawn(move || begun(alone(address)).returns());
    push(&mut session, 0, &keys[1..]);
    assert!(stops.join().unwrap().success());
    let mut hub = start_process(address, directory.path(), 1000);
    hub.read_reply();
    assert_eq!(comes.join().unwrap(), Returns::default(), "it was never in the former hub");
    session.wait_all().unwrap();
    assert_eq!(session.returns().lost_rounds, 0);
    hub.finish();
}

/// Formerly the joins of workers that waited for each other failed if the hub was restarted.
#[test]
fn a_worker_that_waits_for_the_other_worker_joins_the_next_hub() {
    let _watchdog = Watchdog::start();
    let (address, directory) = (free_address(), tempfile::tempdir().unwrap());
    let mut hub = start_process(address, directory.path(), 1000);
    hub.read_reply();
    let worker = move |rank| std::thread::spawn(move || begun(waiting(address, rank)));
    let first = worker(0);
    let name = address.to_string();
    let has_links = |job: &JobReply| job.members.iter().any(|member| member.transport.is_some());
    until("the first worker has joined", || describe(&name).jobs.iter().any(has_links));
    assert!(hub.finish().success());
    let mut hub = start_process(address, directory.path(), 1000);
    hub.read_reply();
    let second = worker(1);
    // A session that ends while the other worker still waits for the first weights fails the job.
    for session in [first, second].map(|worker| worker.join().unwrap()) {
        assert_eq!(session.returns(), Returns::default(), "no round was lost");
    }
    hub.finish();
}

fn alone(address: SocketAddr) -> SessionConfig {
    let mut config = waiting(address, 0);
    config.terms.workers = 1;
    config
}
