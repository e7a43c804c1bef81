//! A session reports how it spent its time: computing, pushing, or waiting for the hub.

use std::time::Duration;

use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{config, describe, hub, on_threads, push_all, ready_all};
use pbox_core::KeyId;
use phub_server::Hub;
use worker_shim::{Background, Session, Times, Traffic};

/// The size of the small model, in bytes.
const MODEL: u64 = 4 * (120 + 1 + 50);

/// Returns the time that the hub has waited for worker 1, in microseconds.
fn waited_for_worker_1(hub: &Hub) -> u64 {
    let rounds = describe(&hub.address().to_string()).jobs.remove(0).rounds;
    rounds.filter(|rounds| rounds.waits_for == [1]).map_or(0, |rounds| rounds.waited_us)
}

/// Checks the invariants of times.
fn check(times: &Times, rounds: u32) {
    let bytes = u64::from(rounds) * MODEL;
    assert_eq!((times.rounds, times.traffic), (rounds, Traffic { sent: bytes, received: bytes }), "{times}");
    assert!(times.pushing > Duration::ZERO && times.asleep <= times.waiting, "{times:?}");
    assert_eq!(times.computing() + times.pushing + times.waiting, times.total, "{times:?}");
}

#[test]
fn who_waits_for_another_worker_waits_and_the_other_computes() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    // Sessions outlive the threads, so that a worker which is done does not look lost to the other worker.
    let train = |rank: u32, mut session: Session| {
        check_start(&session.times());
        for _round in 0..9 {
            if rank == 1 {
                until("the hub waits for worker 1", || waited_for_worker_1(&hub) > 10_000);
            }
            push_all(&mut session).unwrap();
            session.wait_all().unwrap();
        }
        (session.times(), session)
    };
    let sessions = ready_all(2, |rank| config(&hub, "job", rank, 2));
    let trained: Vec<(Times, Session)> = std::thread::scope(|scope| {
        let train = &train;
        let of = |(rank, session)| scope.spawn(move || train(rank, session));
        let threads: Vec<_> = (0..).zip(sessions).map(of).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let times: Vec<&Times> = trained.iter().map(|(times, _session)| times).collect();
    times.iter().for_each(|times| check(times, 9));
    assert!(times[0].waiting > times[1].waiting && times[0].asleep > Duration::ZERO, "{times:?}");
    assert!(times[1].computing() > times[0].computing(), "{times:?}");
}

/// Checks the times after the broadcast, before any round.
fn check_start(times: &Times) {
    assert_eq!((times.rounds, times.traffic, times.waiting), (0, Traffic::default(), Duration::ZERO));
}

#[test]
fn the_callers_of_a_background_session_wait_and_its_thread_does_not_count() {
    const WAIT: Duration = Duration::from_millis(50);
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let sessions: Vec<Background> = on_threads(2, |rank| {
        let session = Background::join(config(&hub, "job", rank, 2), &mut || false).unwrap();
        session.broadcast_written(&mut || false).unwrap();
        check_start(&session.times());
        session
    });
    let [first, second] = &sessions[..] else { unreachable!() };
    let push = |session: &Background| (0..3).for_each(|key| session.push(KeyId(key)).unwrap());
    for round in 1..=2 {
        push(first);
        std::thread::scope(|scope| {
            // Two callers that wait at the same time count as one wait.
            let callers = [KeyId(0), KeyId(2)].map(|key| scope.spawn(move || first.wait(key, &mut || false)));
            until("somebody has waited", || first.times().waiting >= round * WAIT);
            push(second);
            callers.into_iter().for_each(|caller| caller.join().unwrap().unwrap());
        });
        sessions.iter().for_each(|session| session.wait_all(&mut || false).unwrap());
    }
    for session in &sessions {
        session.leave(&mut || false).unwrap();
        check(&session.times(), 2);
    }
    let (waited, total) = (first.times().waiting, first.times().total);
    assert!(waited >= 2 * WAIT && waited <= total, "{waited:?} of {total:?}");
    assert_eq!(first.times().asleep, first.times().waiting, "a caller that waits sleeps");
}
