//! Sessions on their own threads pull in batches. The times of their callers decide the plan.

use std::thread;
use std::time::{Duration, Instant};

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::{FIRST, SECOND, THIRD, config, hub, on_threads, says};
use pbox_core::{KeyId, Schedule};
use worker_shim::batch::Batching;
use worker_shim::{Background, BackgroundError, PROFILE_ROUNDS, Pull, PullPlan, SessionConfig};

const KEYS: [KeyId; 3] = [FIRST, SECOND, THIRD];
/// The start-up time of a pull, which the session imitates.
const START_UP: Duration = Duration::from_millis(2);
/// The compute time of a key, which the caller imitates.
const FORWARD: Duration = Duration::from_millis(3);

fn patient() -> bool {
    false
}

fn pulling(config: SessionConfig, batching: Batching) -> SessionConfig {
    let pull = Pull { start_up: START_UP, ..Pull::new(batching) };
    SessionConfig { pull: Some(pull), ..config }.with_terms(|terms| terms.level.schedule = Schedule::KvStore)
}

/// Joins all workers of a job and gives them weights.
fn ready_all(workers: u32, config: impl Fn(u32) -> SessionConfig + Sync) -> Vec<Background> {
    on_threads(workers, |rank| {
        let session = Background::join(config(rank), &mut patient).unwrap();
        session.broadcast_written(&mut patient).unwrap();
        session
    })
}

fn push_all(session: &Background) {
    KEYS.into_iter().rev().for_each(|key| session.push(key).unwrap());
}

fn plan(session: &Background) -> Option<PullPlan> {
    session.with(|session| session.pull_plan().cloned(), &mut patient).unwrap()
}

/// Makes a round that imitates computing after each wait except the last.
fn round(session: &Background, wait: impl Fn(KeyId)) {
    push_all(session);
    for key in KEYS {
        wait(key);
        let begun = Instant::now();
        while key != THIRD && begun.elapsed() < FORWARD {
            thread::sleep(FORWARD.saturating_sub(begun.elapsed()));
        }
    }
}

fn patiently(session: &Background) -> impl Fn(KeyId) + '_ {
    |key| session.wait(key, &mut patient).unwrap()
}

/// Returns a wait that first asks whether the key is ready, as the Python package does.
fn looking_first(session: &Background) -> impl Fn(KeyId) + '_ {
    |key| {
        if !session.is_ready(key).unwrap() {
            session.wait(key, &mut patient).unwrap();
        }
        assert!(session.is_ready(key).unwrap(), "a second look is no second use");
    }
}

/// The times of the profile are at least the imitated times. If the session had not seen the waits, the times
/// of the profile would be zero.
#[test]
fn a_background_plans_by_its_callers_times() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    for (batching, transport) in [(Batching::Optimum, Transport::Tcp), (Batching::Greedy, Transport::Shm)] {
        let base =
            |rank| SessionConfig { transport: Some(transport), ..config(&hub, batching.name(), rank, 2) };
        let sessions = ready_all(2, |rank| pulling(base(rank), batching));
        thread::scope(|scope| {
            for (rank, session) in sessions.iter().enumerate() {
                scope.spawn(move || {
                    for _round in 0..2 * PROFILE_ROUNDS {
                        assert_eq!(plan(session), None);
                        match rank {
                            0 => round(session, patiently(session)),
                            _ => round(session, looking_first(session)),
                        }
                    }
                    for _round in 0..3 {
                        round(session, patiently(session));
                    }
                    push_all(session); // the pushes of the previous round
                    let plan = plan(session).unwrap();
                    println!("{batching} over {transport}: {plan}");
                    assert_eq!((plan.batching, plan.profiles, plan.rounds), (batching, 1, 3));
                    let profile = plan.profile.unwrap();
                    let forward = FORWARD.as_secs_f64();
                    assert_eq!(profile.layers.len(), KEYS.len());
                    assert!(profile.layers[..2].iter().all(|layer| layer.forward >= forward), "{profile:?}");
                    assert!(plan.predicted_s.unwrap() >= 2.0 * forward);
                    let least = START_UP.as_secs_f64() + 2.0 * forward;
                    assert!(plan.measured_s.unwrap() >= least, "all three layers, one after the other");
                    session.leave(&mut patient).unwrap();
                });
            }
        });
    }
}

#[test]
fn waiting_for_everything_is_no_forward_pass() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let session = ready_all(1, |rank| pulling(config(&hub, "job", rank, 1), Batching::Optimum)).remove(0);
    for _round in 0..4 * PROFILE_ROUNDS {
        push_all(&session);
        session.wait_all(&mut patient).unwrap();
    }
    assert_eq!(plan(&session), None);
    for _round in 0..=2 * PROFILE_ROUNDS {
        assert_eq!(plan(&session), None);
        round(&session, patiently(&session));
    }
    assert!(plan(&session).is_some());
    session.leave(&mut patient).unwrap();
}

#[test]
fn a_wait_that_would_never_end_is_an_error_and_harms_nothing() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let session = ready_all(1, |rank| pulling(config(&hub, "job", rank, 1), Batching::All)).remove(0);
    session.push(FIRST).unwrap();
    let unpushed = |error: BackgroundError| {
        says(error, &["first.weight", "pulled in batches", "second.bias", "push every key"]);
    };
    unpushed(session.wait(FIRST, &mut patient).unwrap_err());
    unpushed(session.wait_all(&mut patient).unwrap_err());
    session.push(SECOND).unwrap();
    session.push(THIRD).unwrap();
    session.wait(FIRST, &mut patient).unwrap();
    session.leave(&mut patient).unwrap();
}
