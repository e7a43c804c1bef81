//! SSP and ASP with sessions over shared memory. Threads work at their own speeds, workers pause, leave, die
//! and return, and checkpoints are written.
//!
//! Element `e` belongs to rank `e mod W`, which pushes 1 there and 0 elsewhere. A weight begins at 1, and
//! each of that rank's rounds takes 0.5 from it.

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::values::mix;
use hub_tests::{
    FIRST, PATIENT_S, SECOND, THIRD, describe, hub, join_all, join_by_hand, join_request, push_all,
    ready_all, refusal, refused, says,
};
use hub_tests::{on_threads, settings, small_model};
use pbox_core::OnLoss;
use pbox_core::{Consistency, KeyId, Optimizer, Round};
use phub_server::Hub;
use worker_shim::{Session, SessionConfig, SessionError, WeightsMode};

const ASP: Consistency = Consistency::Asp;

const fn ssp(staleness: u32) -> Consistency {
    Consistency::Ssp { staleness }
}

fn config(hub: &Hub, rank: u32, workers: u32, consistency: Consistency) -> SessionConfig {
    let mut config = hub_tests::config(hub, "job", rank, workers);
    config.terms.level.consistency = consistency;
    config
}

/// Writes worker `rank`'s gradient: `value` for its own elements, 0 for the other elements.
fn gradients(session: &mut Session, rank: u32, workers: u32, value: f32) {
    for key in session.keys() {
        for (e, gradient) in (0u32..).zip(session.gradient_mut::<f32>(key).unwrap()) {
            *gradient = if e % workers == rank { value } else { 0.0 };
        }
    }
}

/// Returns the number of rounds of a rank that a key's weights contain, or `None` if no element belongs to
/// the rank.
fn contained(session: &Session, key: KeyId, rank: u32, workers: u32) -> Option<u32> {
    let weights = session.weights::<f32>(key).unwrap();
    let of_rank = (0u32..).zip(weights).filter(|(e, _)| e % workers == rank);
    // The chunks of a key may contain different numbers of rounds.
    of_rank.map(|(_, &weight)| rounds(weight)).min()
}

fn rounds(weight: f32) -> u32 {
    let rounds = (1.0 - weight) * 2.0;
    assert!(rounds >= 0.0 && rounds.fract() == 0.0, "{weight} is not 1 less some halves");
    rounds as u32
}

/// Makes whole rounds by a worker, and waits for their answers.
fn go(session: &mut Session, count: u32) -> Result<(), SessionError> {
    for _ in 0..count {
        push_all(session)?;
        session.wait_all()?;
    }
    Ok(())
}

#[test]
fn a_fast_worker_is_held_exactly_at_the_staleness() {
    let _watchdog = Watchdog::start();
    // The hub has one core, so that answers arrive in the order of its decisions.
    let hub = hub(1);
    let mut sessions = ready_all(2, |rank| config(&hub, rank, 2, ssp(2)));
    let [fast, slow] = &mut sessions[..] else { unreachable!() };
    gradients(fast, 0, 2, 1.0);
    gradients(slow, 1, 2, 1.0);
    go(fast, 2).unwrap();
    assert_eq!((contained(fast, FIRST, 0, 2), contained(fast, FIRST, 1, 2)), (Some(2), Some(0)));
    push_all(fast).unwrap();
    slow.push(FIRST).unwrap();
    fast.wait(FIRST).unwrap();
    assert_eq!((contained(fast, FIRST, 0, 2), contained(fast, FIRST, 1, 2)), (Some(3), Some(1)));
    for key in [SECOND, THIRD] {
        // Answers for these keys would have arrived before the answer for `FIRST`.
        says(fast.weights::<f32>(key).unwrap_err(), &["in flight in round 3"]);
    }
    slow.push(SECOND).unwrap();
    slow.push(THIRD).unwrap();
    fast.wait_all().unwrap();
    slow.wait_all().unwrap();
    assert_eq!((contained(slow, THIRD, 0, 2), contained(slow, THIRD, 1, 2)), (Some(3), Some(1)));
    assert_eq!((fast.next_round(), slow.next_round()), (Round(4), Round(2)));
}

#[test]
fn in_asp_no_worker_waits_for_a_worker_that_stands_still() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let mut sessions = ready_all(3, |rank| config(&hub, rank, 3, ASP));
    for (rank, session) in (0..).zip(&mut sessions[..2]) {
        gradients(session, rank, 3, 1.0);
        go(session, 100).unwrap();
    }
    assert_eq!(contained(&sessions[1], FIRST, 0, 3), Some(100), "the first one's are all there");
    gradients(&mut sessions[2], 2, 3, 1.0);
    go(&mut sessions[2], 1).unwrap();
    let seen = [0, 1, 2].map(|rank| contained(&sessions[2], FIRST, rank, 3));
    assert_eq!(seen, [Some(100), Some(100), Some(1)]);
}

/// Lets three threads race with different pauses, and checks every answer against the bound.
fn race(consistency: Consistency) {
    const WORKERS: u32 = 3;
    const ROUNDS: u32 = 300;
    let hub = hub(2);
    let pushed: [AtomicU32; WORKERS as usize] = Default::default();
    let over = Barrier::new(WORKERS as usize);
    on_threads(WORKERS, |rank| {
        let mut config = config(&hub, rank, WORKERS, consistency);
        config.weights = if rank == 1 { WeightsMode::Private } else { WeightsMode::Shared };
        let mut session = Session::join(config).unwrap();
        session.broadcast_weights::<f32>(|_, weights| weights.fill(1.0)).unwrap();
        gradients(&mut session, rank, WORKERS, 1.0);
        for round in 1..=ROUNDS {
            for _ in 0..mix(u64::from(rank) << 32 | u64::from(round)) % (1 << (2 * rank)) {
                std::thread::yield_now();
            }
            pushed[rank as usize].store(round, Ordering::Release);
            go(&mut session, 1).unwrap();
            for (key, other) in session.keys().flat_map(|key| (0..WORKERS).map(move |other| (key, other))) {
                let Some(seen) = contained(&session, key, other, WORKERS) else { continue };
                let what = format!("{consistency}, rank {rank}, round {round}, key {}, of {other}", key.0);
                let least = match consistency {
                    _ if other == rank => round,
                    Consistency::Ssp { staleness } => round.saturating_sub(staleness),
                    _ => 0,
                };
                let most = pushed[other as usize].load(Ordering::Acquire);
                assert!((least..=most).contains(&seen), "{what}: {seen} of {least} to {most}");
                assert!(other != rank || seen == round, "{what}: {seen}");
            }
        }
        over.wait();
        gradients(&mut session, rank, WORKERS, 0.0);
        go(&mut session, 1).unwrap();
        for (key, other) in session.keys().flat_map(|key| (0..WORKERS).map(move |other| (key, other))) {
            let seen = contained(&session, key, other, WORKERS);
            assert!(seen.is_none_or(|seen| seen == ROUNDS), "rank {rank}, of {other}: {seen:?}");
        }
        session.leave().unwrap();
    });
}

#[test]
fn every_answer_keeps_the_bound_under_load() {
    let _watchdog = Watchdog::start();
    [ssp(0), ssp(3), ASP].into_iter().for_each(race);
}

#[test]
fn a_lost_worker_holds_no_other_and_may_come_back() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let config = |rank| {
        let mut config = config(&hub, rank, 3, ssp(1));
        config.terms.on_loss = OnLoss::Continue;
        config
    };
    let mut sessions = ready_all(3, config);
    for (rank, session) in (0..).zip(&mut sessions) {
        gradients(session, rank, 3, 1.0);
    }
    // Both other workers wait for the third worker in round 2. Then the third worker dies.
    for session in &mut sessions[..2] {
        go(session, 1).unwrap();
        push_all(session).unwrap();
    }
    drop(sessions.pop());
    for session in &mut sessions {
        session.wait_all().unwrap();
    }
    let [zero, one] = &mut sessions[..] else { unreachable!() };
    go(zero, 1).unwrap();
    // The worker returns at the round of the slowest worker, round 3. So the first worker, which is one round
    // ahead, must wait again: otherwise it would be two rounds ahead.
    let mut two = Session::join(config(2)).unwrap();
    assert_eq!(two.next_round(), Round(3));
    assert_eq!([0, 1, 2].map(|rank| contained(&two, FIRST, rank, 3)), [Some(3), Some(2), Some(0)]);
    two.broadcast_weights::<f32>(|_, _| panic!("the job has weights")).unwrap();
    gradients(&mut two, 2, 3, 1.0);
    push_all(zero).unwrap();
    go(one, 1).unwrap();
    two.push(FIRST).unwrap();
    zero.wait(FIRST).unwrap();
    assert_eq!([0, 1, 2].map(|rank| contained(zero, FIRST, rank, 3)), [Some(4), Some(3), Some(1)]);
    two.push(SECOND).unwrap();
    two.push(THIRD).unwrap();
    zero.wait_all().unwrap();
    two.wait_all().unwrap();
    // Nobody waits for a worker that leaves, either.
    sessions.remove(1).leave().unwrap();
    two.leave().unwrap();
    go(&mut sessions[0], 5).unwrap();
}

#[test]
fn a_worker_that_left_holds_workers_that_would_be_too_far_ahead() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let mut sessions = ready_all(2, |rank| config(&hub, rank, 2, ssp(1)));
    gradients(&mut sessions[0], 0, 2, 1.0);
    sessions.pop().unwrap().leave().unwrap();
    let mut session = sessions.pop().unwrap();
    go(&mut session, 1).unwrap();
    says(go(&mut session, 1).unwrap_err(), &["worker 1", "left", "round 2"]);
    drop(session);

    let mut sessions = ready_all(2, |rank| {
        let mut config = config(&hub, rank, 2, ASP);
        config.job = "another".into();
        config
    });
    sessions.pop().unwrap().leave().unwrap();
    go(&mut sessions[0], 50).unwrap();
    sessions.pop().unwrap().leave().unwrap();
}

#[test]
fn a_push_is_stepped_at_the_rate_of_its_own_round() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let mut sessions = ready_all(2, |rank| config(&hub, rank, 2, ASP));
    let [fast, slow] = &mut sessions[..] else { unreachable!() };
    gradients(fast, 0, 2, 1.0);
    gradients(slow, 1, 2, 1.0);
    let weights = |session: &Session| session.weights::<f32>(FIRST).unwrap()[..2].to_vec();
    go(fast, 1).unwrap();
    fast.set_learning_rate(0.25).unwrap();
    go(fast, 1).unwrap();
    assert_eq!(weights(fast), [0.25, 1.0]);
    go(slow, 1).unwrap();
    assert_eq!(weights(slow), [0.25, 0.5], "round 1 is still at a half");
    // Setting the rate of round 2 again, by the same schedule, does not undo the rate of round 3.
    fast.set_learning_rate(0.125).unwrap();
    slow.set_learning_rate(0.25).unwrap();
    go(fast, 1).unwrap();
    go(slow, 1).unwrap();
    assert_eq!(weights(slow), [0.125, 0.25]);
}

fn hub_with_checkpoints(dir: &Path, every: Option<u32>) -> Hub {
    let mut settings = settings(2, PATIENT_S);
    settings.checkpoints = Some(dir.to_owned());
    settings.checkpoint_every = every.map(|every| every.try_into().unwrap());
    Hub::start(&settings).unwrap()
}

#[test]
fn a_checkpoint_is_of_the_slowest_ones_round() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let first = hub_with_checkpoints(dir.path(), None);
    let mut sessions = ready_all(2, |rank| config(&first, rank, 2, ssp(3)));
    for (rank, session) in (0..).zip(&mut sessions) {
        gradients(session, rank, 2, 1.0);
    }
    go(&mut sessions[1], 1).unwrap();
    go(&mut sessions[0], 4).unwrap();
    assert_eq!(sessions[0].checkpoint().unwrap().round, Round(2));
    drop((sessions, first));

    let second = hub_with_checkpoints(dir.path(), Some(2));
    let mut sessions = join_all(2, |rank| config(&second, rank, 2, ssp(3)));
    for (rank, session) in (0..).zip(&mut sessions) {
        assert_eq!(session.next_round(), Round(2), "where the slowest was");
        let seen = [0, 1].map(|rank| contained(session, THIRD, rank, 2));
        assert_eq!(seen, [Some(4), Some(1)], "with what the other worker had pushed beyond it");
        gradients(session, rank, 2, 1.0);
    }
    for session in &mut sessions {
        go(session, 3).unwrap();
    }
    sessions.into_iter().for_each(|session| session.leave().unwrap());
    drop(second);

    // Both workers made three rounds at the second hub, so no push is beyond the round of the checkpoint.
    let third = hub_with_checkpoints(dir.path(), None);
    let sessions = join_all(2, |rank| config(&third, rank, 2, ASP));
    assert_eq!(sessions[0].next_round(), Round(5));
    for session in &sessions {
        assert_eq!([0, 1].map(|rank| contained(session, THIRD, rank, 2)), [Some(7), Some(4)]);
    }
}

/// Rounds that a job passes at the same time leave one checkpoint. A job may pass several such rounds when
/// its slowest worker is lost.
#[test]
fn rounds_that_are_passed_at_once_leave_one_checkpoint() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hub = hub_with_checkpoints(dir.path(), Some(2));
    let mut sessions = ready_all(2, |rank| {
        let mut config = config(&hub, rank, 2, ASP);
        config.terms.on_loss = OnLoss::Continue;
        config
    });
    gradients(&mut sessions[0], 0, 2, 1.0);
    go(&mut sessions[0], 10).unwrap();
    let saved = || describe(&hub.address().to_string()).jobs[0].checkpoint.as_ref().map(|c| c.round);
    assert_eq!(saved(), None, "the slowest is before round 1");
    drop(sessions.pop());
    until("the checkpoint of round 2 is written", || saved() == Some(Round(2)));
    // The job is before round 11 now, and the next checkpoint is due before round 12. If a core does not yet
    // know that its memory is free, the checkpoint is before a later round.
    until("a later checkpoint is written", || {
        go(&mut sessions[0], 1).unwrap();
        saved().is_some_and(|round| round >= Round(12) && round.0 % 2 == 0)
    });
}

#[test]
fn what_does_not_fit_is_refused_at_both_ends() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let mut config = config(&hub, 0, 2, ssp(4));
    config.terms.optimizer = Optimizer::Average;
    says(refused(config.clone()), &["consistency ssp:4 with the optimizer average", "use bsp"]);
    let mut request = join_request(0, 2);
    (request.terms.level.consistency, request.terms.optimizer) = (ASP, Optimizer::Average);
    let (status, error) = refusal(&hub, "/v1/jobs/job/join", serde_json::to_vec(&request).unwrap());
    assert_eq!(status, 400);
    says(error, &["consistency asp with the optimizer average"]);

    let mut request = join_request(0, 2);
    request.terms.level.consistency = ssp(4);
    join_by_hand(&hub, "job", &request);
    says(refused(hub_tests::config(&hub, "job", 1, 2)), &["has consistency ssp:4", "asks for bsp"]);
    let mut body = serde_json::to_value(join_request(0, 1)).unwrap();
    body["consistency"] = serde_json::json!({"ssp": {"staleness": 1, "stale": 2}});
    let (status, _) = refusal(&hub, "/v1/jobs/another/join", body.to_string());
    assert_eq!(status, 400);
    assert_eq!(small_model().len(), 3, "FIRST to THIRD are all keys");
}
