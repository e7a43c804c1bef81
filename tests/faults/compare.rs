//! Weights are compared between workers (`compare_every`). If a single bit differs, the job ends with an
//! error that names the ranks. All tests with `Training` show that equal weights pass.

use std::time::Duration;

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use half::{bf16, f16};
use hub_tests::values::flip_a_bit;
use hub_tests::{SECOND, config, describe, hub, hub_below, on_threads, push_all, ready_all, refused, says};
use pbox_core::{Consistency, Dtype, Key, Round};
use phub_server::Hub;
use worker_shim::{Pushed, Session, SessionConfig, SessionError};

const WORKERS: u32 = 3;

/// Returns a worker that compares every third round. One worker uses shared memory, and all other workers use TCP.
fn comparing(hub: &Hub, rank: u32) -> SessionConfig {
    let transport = Some(if rank == 2 { Transport::Shm } else { Transport::Tcp });
    let config = SessionConfig { transport, ..config(hub, "job", rank, WORKERS) };
    config.with_terms(|terms| terms.compare_every = 3)
}

/// Makes `count` rounds of all these sessions.
fn rounds(sessions: &mut [Session], count: u32) {
    for _ in 0..count {
        sessions.iter_mut().for_each(|session| push_all(session).unwrap());
        sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
    }
}

fn equal_before(hub: &Hub) -> Option<Round> {
    describe(&hub.address().to_string()).jobs[0].equal_before
}

#[test]
fn the_hub_says_since_when_weights_are_known_to_be_equal() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut sessions = ready_all(WORKERS, |rank| comparing(&hub, rank));
    assert_eq!(equal_before(&hub), None);
    rounds(&mut sessions, 3);
    assert_eq!(equal_before(&hub), Some(Round(3)));
    rounds(&mut sessions, 9);
    assert_eq!(equal_before(&hub), Some(Round(12)));
}

#[test]
fn a_bit_that_differs_ends_the_job_and_names_the_worker() {
    let _watchdog = Watchdog::start();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        let hub = hub(1);
        let keys = vec![Key::f32("equal", [1]), Key::new(dtype, "different", [33])];
        let mut sessions = on_threads(WORKERS, |rank| {
            let config = comparing(&hub, rank).with_terms(|terms| terms.keys = keys.clone());
            let mut session = Session::join(config).unwrap();
            session.broadcast_written().unwrap();
            session
        });
        rounds(&mut sessions, 5);
        match dtype {
            Dtype::F32 => flip_a_bit(sessions[1].weights::<f32>(SECOND).unwrap()),
            Dtype::F16 => flip_a_bit(sessions[1].weights::<f16>(SECOND).unwrap()),
            Dtype::BF16 => flip_a_bit(sessions[1].weights::<bf16>(SECOND).unwrap()),
        }
        let pushed: Vec<_> = sessions.iter_mut().map(push_all).collect();
        for (session, pushed) in sessions.iter_mut().zip(pushed) {
            let error = pushed.and_then(|()| session.wait_all()).unwrap_err();
            says(error, &["\"job\" failed", "weights differ before round 6", "workers [0, 2] and of [1]"]);
        }
    }
}

#[test]
fn workers_that_are_not_in_step_have_nothing_to_compare() {
    let hub = hub(1);
    for consistency in [Consistency::Ssp { staleness: 2 }, Consistency::Asp] {
        let config = comparing(&hub, 0).with_terms(|terms| terms.level.consistency = consistency);
        says(
            refused(config),
            &["compare_every 3 with consistency", "different weights", "leave compare_every out"],
        );
    }
}

#[test]
fn a_worker_that_would_compare_alone_is_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let refusal = on_threads(2, |rank| {
        // The worker that joins second is refused. So the first worker waits for a worker that never joins, and gives
        // up.
        let config = comparing(&hub, rank).with_terms(|terms| terms.compare_every *= rank);
        let config = SessionConfig { join_limit: Duration::from_secs(1), ..config };
        Session::join(config).err().map(|error| error.to_string())
    });
    assert!(refusal.iter().flatten().any(|why| why.contains("compare_every")), "{refusal:?}");
}

/// Makes a round in which each worker writes its own value into one key, and pushes the gradients of the
/// other keys.
fn write(sessions: &mut [Session], value: impl Fn(usize) -> f32) -> Vec<Result<(), SessionError>> {
    let pushed: Vec<_> = sessions
        .iter_mut()
        .enumerate()
        .map(|(rank, session)| {
            session.gradient_mut::<f32>(SECOND)?.fill(value(rank));
            session.push_as(Pushed::Weights, [SECOND])?;
            let rest: Vec<_> = session.keys().filter(|&key| key != SECOND).collect();
            session.push_keys(rest)
        })
        .collect();
    let wait = |(session, pushed): (&mut Session, Result<_, _>)| pushed.and_then(|()| session.wait_all());
    sessions.iter_mut().zip(pushed).map(wait).collect()
}

/// Writes different values. Asserts that every session ends with these words, in that round or the next round.
fn differ(sessions: &mut [Session], value: impl Fn(usize) -> f32, words: &[&str]) {
    let ends = write(sessions, value);
    for (session, end) in sessions.iter_mut().zip(ends) {
        let end = end.and_then(|()| push_all(session)).and_then(|()| session.wait_all());
        says(end.unwrap_err(), words);
    }
}

#[test]
fn weights_that_workers_write_are_compared_in_every_round() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut sessions = ready_all(WORKERS, |rank| comparing(&hub, rank));
    rounds(&mut sessions, 1);
    // Round 2 compares only the written weights. Round 3, like every third round, also compares the weights before the
    // round.
    for round in [2, 3] {
        assert!(write(&mut sessions, |_| round as f32).iter().all(Result::is_ok));
        assert!(sessions.iter().all(|session| session.weights::<f32>(SECOND).unwrap()[0] == round as f32));
    }
    assert_eq!(equal_before(&hub), Some(Round(3)));
    let words =
        ["workers [0, 2] and [1] wrote different weights in round 4", "write the same weights on all"];
    differ(&mut sessions, |rank| if rank == 1 { 7.0 } else { 8.0 }, &words);
}

#[test]
fn machines_that_write_different_weights_are_named() {
    let _watchdog = Watchdog::start();
    let top = hub(1);
    let list = top.address().to_string();
    let below = [0, 1].map(|number| hub_below(&list, number, 2));
    let mut sessions = on_threads(2, |machine| {
        let config = config(&below[machine as usize], "job", 0, 1);
        let mut session = Session::join(config.with_terms(|terms| terms.compare_every = 100)).unwrap();
        session.broadcast_written().unwrap();
        session
    });
    assert!(write(&mut sessions, |_| 1.0).iter().all(Result::is_ok));
    let words = ["machines [0] and [1] wrote different weights in round 2"];
    differ(&mut sessions, |machine| machine as f32, &words);
}
