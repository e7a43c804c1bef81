//! Sessions on their own threads. The exchange continues while callers do other work, and errors reach every
//! caller that waits. `background_ends` shows that no thread is left.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::proxy::Proxy;
use hub_tests::relay::{Relay, RelayPath, Stall};
use hub_tests::{
    FIRST, SECOND, SGD, THIRD, config, describe, free_address, hub, hub_with_limit, on_threads, says,
};
use pbox_core::control::JobState;
use pbox_core::{JobTerms, Key, KeyId, Round};
use phub_server::Hub;
use serde_json::Value;
use worker_shim::{Background, BackgroundError, Pushed, Session, SessionConfig};

/// Returns false, for a caller that waits without a limit.
fn patient() -> bool {
    false
}

fn join(config: SessionConfig) -> Background {
    let rank = config.rank;
    Background::join(config, &mut patient).unwrap_or_else(|error| panic!("rank {rank}: {error}"))
}

/// Joins all workers of a job and broadcasts weights of 1.
fn ready_all(workers: u32, config: impl Fn(u32) -> SessionConfig + Sync) -> Vec<Background> {
    on_threads(workers, |rank| {
        let session = join(config(rank));
        fill(&session, 1.0);
        session.broadcast_written(&mut patient).unwrap();
        session
    })
}

fn fill(session: &Background, value: f32) {
    let write = move |session: &mut Session| {
        session.keys().try_for_each(|key| session.gradient_mut::<f32>(key).map(|key| key.fill(value)))
    };
    session.with(write, &mut patient).unwrap().unwrap();
}

/// Returns every weight, key after key.
fn weights(session: &Background) -> Vec<f32> {
    let read = |session: &mut Session| -> Vec<f32> {
        session.keys().flat_map(|key| session.weights::<f32>(key).unwrap().to_vec()).collect()
    };
    session.with(read, &mut patient).unwrap()
}

fn push_all(session: &Background) -> Result<(), BackgroundError> {
    (0..session.keys().len() as u32).try_for_each(|key| session.push(KeyId(key)))
}

fn over(transport: Transport) -> impl Fn(&Hub, &str, u32, u32) -> SessionConfig {
    move |hub, job, rank, workers| {
        let mut config = config(hub, job, rank, workers);
        config.transport = Some(transport);
        config
    }
}

#[test]
fn rounds_are_those_of_a_session() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    for transport in [Transport::Shm, Transport::Tcp] {
        let config = over(transport);
        let job = transport.to_string();
        let sessions = ready_all(2, |rank| config(&hub, &job, rank, 2));
        thread::scope(|scope| {
            for (rank, session) in (0u8..).zip(&sessions) {
                scope.spawn(move || {
                    for _ in 0..3 {
                        fill(session, f32::from(rank));
                        push_all(session).unwrap();
                        for key in [FIRST, SECOND, THIRD] {
                            session.wait(key, &mut patient).unwrap();
                            assert!(session.is_ready(key).unwrap());
                        }
                    }
                    session.leave(&mut patient).unwrap();
                    let left = session.push(FIRST).unwrap_err();
                    says(left, &["this session has left", &format!("{transport}")]);
                });
            }
        });
    }
}

#[test]
fn the_exchange_goes_on_while_its_caller_does_not_look() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    for transport in [Transport::Shm, Transport::Tcp] {
        let base = over(transport);
        // The model is larger than the buffers of sockets, so most of it waits for room.
        let config = |rank| {
            let mut config = base(&hub, &transport.to_string(), rank, 2);
            config.terms.keys = vec![Key::f32("large", [6 << 20]), Key::f32("small", [3])];
            config.terms.chunk_bytes = 32 << 10;
            config
        };
        let sessions = ready_all(2, config);
        let first = sessions[0].next_round();
        sessions.iter().for_each(|session| push_all(session).unwrap());
        // Asking for the round wakes no thread.
        while sessions.iter().any(|session| session.next_round() == first) {
            thread::yield_now();
        }
        for session in &sessions {
            session.wait_all(&mut patient).unwrap();
            assert_eq!(weights(session).iter().find(|&&weight| weight != 0.5), None, "1 less half of 1");
        }
    }
}

#[test]
fn a_wait_can_be_interrupted_and_the_session_lives_on() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let sessions = ready_all(2, |rank| config(&hub, "job", rank, 2));
    sessions[0].push(SECOND).unwrap();
    let mut asked = 0;
    let mut impatient = || {
        asked += 1;
        asked == 2
    };
    let error = sessions[0].wait(SECOND, &mut impatient).unwrap_err();
    assert!(matches!(error, BackgroundError::Interrupted { .. }), "{error}");
    says(error, &["interrupted", "second.bias"]);
    says(sessions[0].push(SECOND).unwrap_err(), &["second.bias", "in flight in round 1", "pushing it again"]);
    sessions[1].push(SECOND).unwrap();
    for session in &sessions {
        session.wait(SECOND, &mut patient).unwrap();
    }
}

#[test]
fn an_error_reaches_every_caller_that_waits() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut sessions = ready_all(2, |rank| config(&hub, "job", rank, 2));
    let dies = sessions.pop().unwrap();
    let waits = sessions.pop().unwrap();
    waits.push(FIRST).unwrap();
    waits.push(THIRD).unwrap();
    dies.push(SECOND).unwrap();
    let waiting = AtomicU32::new(0);
    thread::scope(|scope| {
        let callers: Vec<_> = [FIRST, THIRD, THIRD]
            .map(|key| {
                let (waits, waiting) = (&waits, &waiting);
                scope.spawn(move || {
                    let mut first = true;
                    let mut here = || {
                        waiting.fetch_add(u32::from(std::mem::take(&mut first)), Ordering::Relaxed);
                        false
                    };
                    waits.wait(key, &mut here).unwrap_err()
                })
            })
            .into();
        while waiting.load(Ordering::Relaxed) < 3 {
            thread::yield_now();
        }
        drop(dies); // a key is in flight, so the worker is lost and has not left
        for caller in callers {
            says(caller.join().unwrap(), &["job \"job\" failed", "worker 1"]);
        }
    });
    says(waits.push(FIRST).unwrap_err(), &["job \"job\" failed", "worker 1"]);
}

#[test]
fn a_caller_that_waits_is_asked_although_other_keys_arrive() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let [one, other] = ready_all(2, |rank| config(&hub, "job", rank, 2)).try_into().unwrap();
    one.push(FIRST).unwrap(); // the other worker does not push it yet
    thread::scope(|scope| {
        let waiter = scope.spawn(|| one.wait(FIRST, &mut || true).unwrap_err());
        while !waiter.is_finished() {
            for session in [&one, &other] {
                session.push(SECOND).unwrap();
            }
            for session in [&one, &other] {
                session.wait(SECOND, &mut patient).unwrap();
            }
        }
        says(waiter.join().unwrap(), &["interrupted while waiting", "first.weight"]);
    });
    other.push(FIRST).unwrap();
    for session in [&one, &other] {
        session.leave(&mut patient).unwrap();
    }
}

#[test]
fn a_leave_that_was_interrupted_can_be_called_again() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let relay = Relay::start(hub.address(), free_address()); // gradients take the shared memory
    let session = join(SessionConfig { hub: relay.address(), ..config(&hub, "job", 0, 1) });
    session.broadcast_written(&mut patient).unwrap();
    relay.stall(RelayPath::Control, Stall::BOTH);
    for _call in 0..2 {
        says(session.leave(&mut || true).unwrap_err(), &["interrupted", "the hub's answer to the leave"]);
    }
    relay.stall(RelayPath::Control, Stall::NONE);
    // Formerly, if the leave had ended between two calls, the next call returned an error.
    until("the leave has arrived", || describe(&hub.address().to_string()).jobs.is_empty());
    session.leave(&mut patient).unwrap();
    says(session.leave(&mut patient).unwrap_err(), &["this session has left the job"]);
}

/// Whether the proxy passes the answers of joins on.
static PASSES: AtomicBool = AtomicBool::new(false);

/// In a notebook, the hub may answer an interrupted join after the next try has begun. Formerly that next try
/// then got "rank taken".
#[test]
fn a_join_waits_for_an_interrupted_join_whose_answer_is_late() {
    fn held(path: &str, _: &mut Value) {
        while path.ends_with("/join") && !PASSES.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let proxy = Proxy::start(hub.address());
    proxy.rewrites(|_, _| {}, held);
    let settings = || SessionConfig { hub: proxy.address(), ..config(&hub, "job", 0, 1) };
    let mut joined = || describe(&hub.address().to_string()).counts.joins == 1;
    says(Background::join(settings(), &mut joined).unwrap_err(), &["interrupted"]);
    let again = Background::join(settings(), &mut || {
        PASSES.store(true, Ordering::Release);
        false
    });
    again.unwrap().leave(&mut patient).unwrap();
}

#[test]
fn calls_out_of_order_are_named_and_harm_nothing() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let session = join(config(&hub, "job", 0, 1));
    says(session.push(FIRST).unwrap_err(), &["push", "no weights yet", "broadcast the weights once"]);
    says(session.wait(KeyId(7), &mut patient).unwrap_err(), &["key 7 does not exist", "3 keys"]);
    fill(&session, 1.0);
    session.broadcast_written(&mut patient).unwrap();
    assert_eq!(session.next_round(), Round(1));
    let panics = session.with(|_| panic!("on purpose"), &mut patient).unwrap_err();
    says(panics, &["a call on the session's thread panicked"]);
    says(session.push(FIRST).unwrap_err(), &["panicked", "the session is over"]);
}

#[test]
fn a_wait_for_a_norm_of_keys_that_are_not_pushed_is_an_error_and_harms_nothing() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let clipped = |terms: &mut JobTerms| terms.clip_norm = Some(1.0);
    let session = ready_all(1, |rank| config(&hub, "job", rank, 1).with_terms(clipped)).remove(0);
    session.push(FIRST).unwrap();
    let unpushed = |error: BackgroundError| {
        says(
            error,
            &["first.weight", "waits for the push of key", "second.bias", "clip_norm", "push every key"],
        );
    };
    unpushed(session.wait(FIRST, &mut patient).unwrap_err());
    unpushed(session.leave(&mut patient).unwrap_err());
    session.push(SECOND).unwrap();
    session.push(THIRD).unwrap();
    session.wait(FIRST, &mut patient).unwrap();
    session.leave(&mut patient).unwrap();
}

#[test]
fn a_learning_rate_holds_from_the_next_round_on() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut settings = config(&hub, "job", 0, 1);
    settings.terms.optimizer = SGD;
    let session = ready_all(1, |_| settings.clone()).pop().unwrap();
    for (learning_rate, expected) in [(0.5, 0.5), (0.25, 0.25)] {
        session.with(move |session| session.set_learning_rate(learning_rate), &mut patient).unwrap().unwrap();
        push_all(&session).unwrap();
        session.wait_all(&mut patient).unwrap();
        assert_eq!(weights(&session).iter().find(|&&weight| weight != expected), None);
    }
}

/// Checks that a push in an order that Slim-DP cannot use is refused at the push, and that the session goes on.
/// Formerly the error appeared only at the wait, and ended the session.
#[test]
fn a_push_that_slim_dp_cannot_use_is_refused_at_once() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let session = ready_all(1, |rank| {
        let mut config = config(&hub, "job", rank, 1);
        config.terms.level.compression = Some("slim:0.5:0.25:4".parse().unwrap());
        config.terms.optimizer = SGD;
        config
    })
    .remove(0);
    session.push(FIRST).unwrap();
    session.wait(FIRST, &mut patient).unwrap();
    let early = session.push_as(&[FIRST], Pushed::Gradient).unwrap_err();
    says(early, &["\"first.weight\"", "round 2", "\"second.bias\"", "push every key once a round"]);
    let early = session.push_as(&[SECOND, FIRST], Pushed::Gradient).unwrap_err();
    says(early, &["\"first.weight\"", "round 2", "\"third.weight\""]);
    session.push_as(&[THIRD, FIRST], Pushed::Gradient).unwrap();
    session.wait_all(&mut patient).unwrap();
    session.leave(&mut patient).unwrap();
}

/// Checks that the place of an interrupted join is free when the call ends. Formerly the thread of the join left a
/// moment after the call, and the next join was refused.
#[test]
fn an_interrupted_join_gives_its_rank_back() {
    let _watchdog = Watchdog::start();
    let hub = hub_with_limit(1, 300);
    for _ in 0..3 {
        let given_up = Background::join(config(&hub, "job", 0, 2), &mut || true).unwrap_err();
        says(given_up, &["interrupted while waiting for the other workers"]);
        let job = describe(&hub.address().to_string()).jobs.remove(0);
        assert!(matches!(job.state, JobState::Failed { .. }), "{job:?}");
    }
    ready_all(2, |rank| config(&hub, "job", rank, 2));
}
