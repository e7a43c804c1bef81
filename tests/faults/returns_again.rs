//! A restarted hub ends again before all its workers have joined again. Some workers know that it was
//! restarted, and other workers do not know. All workers continue from the same step.

use std::sync::atomic::{AtomicBool, Ordering};

use super::returning::{NESTEROV, SEED, WORKERS, begun, step, waiting, weights, write};
use crate::processes::hub::begin_hub;
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::relay::{Relay, RelayPath, Stall};
use hub_tests::values::{Reference, bits};
use hub_tests::{describe, free_address, on_threads, small_model};
use pbox_core::Round;
use rustix::process::Signal;
use worker_shim::{Returns, Session, SessionConfig};

#[test]
fn a_hub_may_be_lost_again_before_all_workers_are_back() {
    let _watchdog = Watchdog::start();
    let (dir, control, data) = (tempfile::tempdir().unwrap(), free_address(), free_address());
    let start = || {
        let mut hub = begin_hub(&[
            ("PHUB_LISTEN", &control.to_string()),
            ("PHUB_DATA_LISTEN", &data.to_string()),
            ("PHUB_CHECKPOINTS", dir.path().to_str().unwrap()),
        ]);
        hub.read_reply();
        hub
    };
    let mut hub = start();
    let relay = Relay::start(control, data);
    let sessions = on_threads(WORKERS, |rank| {
        let config = waiting(control, rank);
        let mut session = begun(match rank {
            0 => config,
            _ => SessionConfig { hub: relay.address(), transport: Some(Transport::Tcp), ..config },
        });
        step(&mut session, rank, 0).unwrap();
        if rank == 0 {
            assert_eq!(session.checkpoint().unwrap().round, Round(2));
        }
        (1..4).for_each(|number| step(&mut session, rank, number).unwrap());
        session
    });
    let [mut first, mut second]: [Session; 2] = sessions.try_into().ok().unwrap();
    hub.signal(Signal::KILL);
    hub.end();
    hub = start();
    let is_back = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            (4..6).for_each(|number| step(&mut second, 1, number).unwrap());
            second
        });
        until("the second worker has its links again", || {
            let jobs = describe(&control.to_string()).jobs;
            let members = jobs.iter().flat_map(|job| &job.members);
            members.into_iter().any(|member| member.rank == 1 && member.transport.is_some())
        });
        relay.stall(RelayPath::Data, Stall::DOWN); // the weights do not arrive
        let first = scope.spawn(|| {
            write(&mut first, 0, 4);
            first.keys().try_for_each(|key| first.push(key)).unwrap();
            until("the hub is back for the first worker", || {
                first.is_ready(hub_tests::FIRST).unwrap();
                first.returns().times == 1
            });
            is_back.store(true, Ordering::Relaxed);
            first.wait_all().unwrap();
            step(&mut first, 0, 5).unwrap();
            first
        });
        until("the first worker is back", || is_back.load(Ordering::Relaxed));
        hub.signal(Signal::KILL);
        hub.end();
        relay.cut(RelayPath::Data); // they never arrive
        relay.stall(RelayPath::Data, Stall::NONE);
        hub = start();
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        assert_eq!(first.returns(), Returns { times: 2, lost_rounds: 3 });
        assert_eq!(second.returns(), Returns { times: 1, lost_rounds: 3 });
        // Steps 1 to 3 are lost. Steps 4 and 5 follow step 0.
        let mut reference = Reference::new(SEED, WORKERS, NESTEROV, &small_model());
        reference.advance(0.1);
        reference.lose(3);
        reference.advance(0.1);
        reference.advance(0.1);
        let expected: Vec<Vec<u32>> = reference.weights.iter().map(|weights| bits(weights)).collect();
        assert_eq!((weights(&first), weights(&second)), (expected.clone(), expected));
    });
}
