//! Jobs that continue without lost workers, and workers that return.
//!
//! If every gradient is 1, the weights after round `r` are `1 - r / 2`, whichever workers take part. So each
//! test can count rounds. A job over several hubs continues in the same way.

use fabric::conformance::Watchdog;
use hub_tests::{
    FIRST, addresses, config_at, describe, hub, join_all, join_by_hand, join_request, push_all, ready_all,
    refused, says,
};
use pbox_core::OnLoss;
use pbox_core::{KeyId, Round};
use phub_server::Hub;
use worker_shim::{Session, SessionConfig};

fn config(hubs: &[Hub], rank: u32, workers: u32) -> SessionConfig {
    let mut config = config_at(&addresses(hubs), "job", rank, workers);
    config.terms.on_loss = OnLoss::Continue;
    config
}

fn gradients(session: &mut Session, value: f32) {
    session.keys().for_each(|key| session.gradient_mut(key).unwrap().fill(value));
}

#[track_caller]
fn weights_are(session: &Session, value: f32) {
    for key in session.keys() {
        let weights = session.weights::<f32>(key).unwrap();
        assert!(weights.iter().all(|&weight| weight == value), "key {key:?}: {weights:?}, expected {value}");
    }
}

/// Waits until the session knows that these workers are the members. The test's watchdog is the limit.
fn until_members(session: &Session, expected: &[u32]) {
    while session.members() != expected {
        std::thread::yield_now();
    }
}

/// Makes a round: all workers push gradients of 1, and wait.
fn round(sessions: &mut [Session]) {
    for session in sessions.iter_mut() {
        gradients(session, 1.0);
        push_all(session).unwrap();
    }
    sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
}

#[test]
fn the_others_go_on_with_the_mean_of_their_gradients() {
    let _watchdog = Watchdog::start();
    those_left_go_on(&[hub(2)]);
    those_left_go_on(&[hub(2), hub(1)]);
}

fn those_left_go_on(hubs: &[Hub]) {
    let mut sessions = ready_all(3, |rank| config(hubs, rank, 3));
    // If the round of a chunk was not complete, the lost worker's push for the chunk does not count.
    for (session, value) in sessions.iter_mut().zip([1.0, 100.0, 3.0]) {
        gradients(session, value);
    }
    for rank in [0, 1] {
        push_all(&mut sessions[rank]).unwrap();
    }
    drop(sessions.remove(1));
    until_members(&sessions[1], &[0, 2]);
    push_all(&mut sessions[1]).unwrap();
    for session in &mut sessions {
        session.wait_all().unwrap();
        weights_are(session, 0.0);
        until_members(session, &[0, 2]);
    }
    round(&mut sessions);
    sessions.iter().for_each(|session| weights_are(session, -0.5));
    sessions.pop().unwrap().leave().unwrap();
    until_members(&sessions[0], &[0]);
    round(&mut sessions);
    weights_are(&sessions[0], -1.0);
    sessions.pop().unwrap().leave().unwrap();
    for hub in hubs {
        assert_eq!(describe(&hub.address().to_string()).jobs, [], "the last one's leave ends the job");
    }
}

#[test]
fn a_worker_that_comes_back_has_the_weights_of_the_round_before() {
    let _watchdog = Watchdog::start();
    one_comes_back(&[hub(2)]);
    one_comes_back(&[hub(2), hub(1)]);
}

fn one_comes_back(hubs: &[Hub]) {
    let mut sessions = ready_all(3, |rank| config(hubs, rank, 3));
    round(&mut sessions);
    drop(sessions.pop());
    until_members(&sessions[0], &[0, 1]);
    round(&mut sessions);
    // The worker joins between two rounds and waits for nobody.
    let mut back = Session::join(config(hubs, 2, 3)).unwrap();
    assert_eq!((back.next_round(), back.members()), (Round(3), vec![0, 1, 2]));
    weights_are(&back, 0.0);
    back.broadcast_weights(|_, _: &mut [f32]| panic!("the job has weights")).unwrap();
    sessions.push(back);
    round(&mut sessions);
    sessions.iter().for_each(|session| weights_are(session, -0.5));
    drop(sessions.pop());
    until_members(&sessions[0], &[0, 1]);

    // The worker joins within a round. Some keys have finished the round, other keys wait for the other
    // worker.
    for session in &mut sessions {
        gradients(session, 1.0);
        session.push(FIRST).unwrap();
    }
    sessions.iter_mut().for_each(|session| session.wait(FIRST).unwrap());
    sessions[0].push(KeyId(1)).unwrap();
    let back = std::thread::scope(|scope| {
        let back = scope.spawn(|| Session::join(config(hubs, 2, 3)).unwrap());
        until_members(&sessions[1], &[0, 1, 2]);
        assert!(!back.is_finished(), "two keys of the round before are not finished");
        sessions[0].push(KeyId(2)).unwrap();
        sessions[1].push(KeyId(1)).unwrap();
        sessions[1].push(KeyId(2)).unwrap();
        back.join().unwrap()
    });
    sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
    assert_eq!(back.next_round(), sessions[0].next_round());
    weights_are(&back, -1.0);
    sessions.push(back);
    round(&mut sessions);
    sessions.iter().for_each(|session| weights_are(session, -1.5));
}

#[test]
fn a_job_without_weights_does_not_go_on() {
    let _watchdog = Watchdog::start();
    without_weights(&[hub(2)]);
    without_weights(&[hub(2), hub(1)]);
}

fn without_weights(hubs: &[Hub]) {
    let mut sessions = join_all(2, |rank| config(hubs, rank, 2));
    drop(sessions.remove(0));
    let error = sessions[0].broadcast_weights(|_, _: &mut [f32]| ()).unwrap_err();
    says(error, &["\"job\" failed", "worker 0 is gone before all workers had the first weights"]);
}

#[test]
fn workers_of_a_job_ask_for_the_same_on_loss() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    join_by_hand(&hub, "job", &join_request(0, 2));
    says(refused(config(&[hub], 1, 2)), &["has on_loss Stop", "asks for Continue"]);
}

#[test]
fn a_job_has_its_share_of_the_cores() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    if describe(&hub.address().to_string()).cores.len() < 2 {
        return eprintln!("skipped: one cpu");
    }
    let mut sessions: Vec<Session> = ["one", "two"]
        .map(|job| {
            let mut config = hub_tests::config(&hub, job, 0, 1);
            config.terms.cores = Some(1);
            let mut session = Session::join(config).unwrap();
            session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap();
            session
        })
        .into();
    for _ in 0..10 {
        round(&mut sessions);
    }
    let chunks = sessions[0].layout().chunks().len() as u64;
    sessions.into_iter().for_each(|session| session.leave().unwrap());
    let done =
        || describe(&hub.address().to_string()).cores.iter().map(|core| core.chunks).collect::<Vec<_>>();
    while done().iter().sum::<u64>() < 22 * chunks {
        std::thread::yield_now(); // cores publish their counts now and then
    }
    assert_eq!(done(), [11 * chunks, 11 * chunks], "each job has a core of its own");
}
