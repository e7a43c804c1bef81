//! Workers that leave early or in the regular way, names that are used again, jobs side by side, and the
//! notices to the remaining workers.

use std::time::Duration;

use fabric::IdlePolicy;
use fabric::conformance::Watchdog;
use hub_tests::proxy::Proxy;
use hub_tests::training::Training;
use hub_tests::{
    FIRST, config, config_at, describe, hub, join_by_hand, join_request, leave_by_hand, on_threads, push_all,
    ready_all, refused, says, settings,
};
use pbox_core::{Key, KeyId, Optimizer};
use phub_server::{Hub, HubSettings};
use serde_json::{Value, json};
use worker_shim::{Session, SessionError};

#[test]
fn a_worker_that_leaves_early_is_named_to_the_others() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    // Workers that never sleep get the notice, too. Each case has its own job, because a name is free again only when the hub
    // has seen the end of its sessions.
    let policies = [IdlePolicy::SHARED, IdlePolicy::DEDICATED, IdlePolicy::BUSY_POLL];
    for (job, idle) in ["job-a", "job-b", "job-c"].into_iter().zip(policies) {
        let mut sessions = ready_all(3, |rank| {
            let mut config = config(&hub, job, rank, 3);
            config.idle = idle;
            config
        });
        sessions.remove(1).leave().unwrap();
        // If a session were dropped, the job would end for the other workers. So all sessions are kept until
        // the end.
        for session in &mut sessions {
            push_all(session).unwrap();
            let error = session.wait(FIRST).unwrap_err();
            says(&error, &[job, "worker 1 left", "before round 1", "\"first.weight\"", "same number"]);
            assert!(matches!(error, SessionError::PeerLeft { rank: 1, left_at: 1, round: 1, .. }));
        }
    }
}

/// Lets worker 1 leave after two workers have completed round 0 of the first key. Worker 1 joins at
/// `address`.
fn leaves_with_one_key(hub: &Hub, address: &str) -> (Session, KeyId) {
    let address = |rank| if rank == 1 { address.to_owned() } else { hub.address().to_string() };
    let mut sessions = ready_all(2, |rank| config_at(&address(rank), "job", rank, 2));
    let keys = Vec::from_iter(sessions[0].keys());
    sessions.iter_mut().for_each(|session| session.push(keys[0]).unwrap());
    sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
    sessions.pop().unwrap().leave().unwrap();
    (sessions.pop().unwrap(), keys[1])
}

/// A worker that leaves before it has pushed a key is named to the workers that wait for the key. The backend
/// of torch.distributed uses keys in turn, so a leave request reports a round for each key.
#[test]
fn a_worker_that_leaves_before_it_has_pushed_a_key_is_named_to_who_waits_for_it() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let (mut stays, key) = leaves_with_one_key(&hub, &hub.address().to_string());
    stays.push(key).unwrap();
    let error = stays.wait(key).unwrap_err();
    says(&error, &["job", "worker 1 left", "before round 1", "same number"]);
    assert!(matches!(error, SessionError::PeerLeft { rank: 1, left_at: 1, round: 1, .. }));
}

/// A member that speaks protocol 11 reports one round, the highest of all its keys.
#[test]
fn a_push_that_waits_for_an_older_worker_that_has_left_fails_the_job() {
    fn older(path: &str, answer: &mut Value) {
        if path.ends_with("/join") {
            answer["protocol"] = json!(11);
        }
    }
    fn as_older(path: &str, request: &mut Value) {
        assert!(!path.ends_with("/leave") || request.get("behind").is_none(), "{request}");
    }
    let _watchdog = Watchdog::start();
    let hub = Hub::start(&HubSettings { late_warning_s: 1, ..settings(2, 30) }).unwrap();
    let proxy = Proxy::start(hub.address());
    proxy.rewrites(as_older, older);
    let (mut stays, key) = leaves_with_one_key(&hub, &proxy.address());
    stays.push(key).unwrap();
    let error = stays.wait(key).unwrap_err();
    says(&error, &["job", "worker 1 has left the job", "wait for its push", "the same calls"]);
}

/// A round in which the leaving worker took part is completed for all workers.
#[test]
fn the_round_before_a_leave_is_whole() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let mut sessions = ready_all(2, |rank| config(&hub, "job", rank, 2));
    for session in &mut sessions {
        for key in session.keys() {
            session.gradient_mut(key).unwrap().fill(1.0);
        }
        push_all(session).unwrap();
    }
    let [leaver, mut stayer] = sessions.try_into().map_err(|_| "two workers").unwrap();
    leaver.leave().unwrap();
    stayer.wait_all().unwrap();
    assert!(stayer.keys().all(|key| stayer.weights::<f32>(key).unwrap().iter().all(|&weight| weight == 0.5)));
    stayer.leave().unwrap();
}

#[test]
fn a_name_is_free_again_after_a_good_end() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let address = hub.address().to_string();
    for (run, workers) in [(0, 3), (1, 2), (2, 3)] {
        Training { workers, seed: run, ..Training::small("again") }.run(&address);
        assert_eq!(describe(&address).jobs, [], "a job that all have left is gone");
    }
}

#[test]
fn a_name_is_free_again_after_a_failure() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let mut sessions = ready_all(2, |rank| config(&hub, "again", rank, 2));
    drop(sessions.remove(0));
    let error = push_all(&mut sessions[0]).and_then(|()| sessions[0].wait_all()).unwrap_err();
    says(error, &["\"again\" failed"]);
    Training::small("again").run(&hub.address().to_string());
}

/// Requests of a failed job's workers do not affect the new job of the same name.
#[test]
fn leaving_a_failed_job_does_not_touch_its_namesake() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let old = join_by_hand(&hub, "job", &join_request(0, 2));
    assert_eq!(leave_by_hand(&hub, "job", &old.token), 200, "it gives up, and the job fails");
    // The new job begins to wait for its workers; then the old worker leaves once more.
    join_by_hand(&hub, "job", &join_request(0, 2));
    assert_eq!(leave_by_hand(&hub, "job", &old.token), 200);
    let mut third = config(&hub, "job", 0, 2);
    third.join_limit = Duration::from_secs(5);
    let error = refused(third);
    says(error, &["rank 0", "taken"]);
}

#[test]
fn a_worker_that_drops_its_session_is_named_to_the_others() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    for (job, idle) in [("job-a", IdlePolicy::SHARED), ("job-b", IdlePolicy::BUSY_POLL)] {
        let mut sessions = ready_all(3, |rank| {
            let mut config = config(&hub, job, rank, 3);
            config.idle = idle;
            config
        });
        // Both other workers already wait for the push of worker 2, whose session is then dropped.
        sessions.iter_mut().take(2).for_each(|session| push_all(session).unwrap());
        drop(sessions.pop());
        for session in &mut sessions {
            let error = session.wait_all().unwrap_err();
            says(&error, &[job, "failed", "worker 2 is gone", "exited or was killed"]);
            says(
                session.push(FIRST).and_then(|()| session.wait(FIRST)).unwrap_err(),
                &["first.weight", "in flight"],
            );
        }
    }
}

#[test]
fn jobs_side_by_side_do_not_disturb_each_other() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let address = hub.address().to_string();
    let keys = |sizes: &[u64]| -> Vec<Key> {
        sizes.iter().enumerate().map(|(i, &n)| Key::f32(format!("key {i}"), [n])).collect()
    };
    let nesterov = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-3, momentum: 0.9 };
    let mut trainings = [
        Training::new("one", keys(&[1000, 20_000, 3]), nesterov),
        Training::new("two", keys(&[1000, 20_000, 3]), nesterov),
        Training::new("three", keys(&[7, 9000]), Optimizer::Average),
    ];
    for (training, seed) in trainings.iter_mut().zip(10..) {
        (training.seed, training.chunk_bytes, training.rounds) = (seed, 4096, 20);
    }
    let alone = trainings.each_ref().map(|training| training.run(&address));
    let beside = on_threads(3, |job| trainings[job as usize].run(&address));
    assert!(alone.as_slice() == beside, "a job's bits are its own");
}

#[test]
fn a_failing_job_does_not_disturb_its_neighbour() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let address = hub.address().to_string();
    let training = Training { rounds: 300, ..Training::small("steady") };
    std::thread::scope(|scope| {
        scope.spawn(|| training.run(&address));
        for _ in 0..10 {
            let mut sessions = ready_all(2, |rank| config(&hub, "shaky", rank, 2));
            push_all(&mut sessions[0]).unwrap();
            drop(sessions.pop());
            says(sessions[0].wait_all().unwrap_err(), &["\"shaky\" failed", "worker 1"]);
        }
    });
}

#[test]
fn a_hub_that_stops_says_so() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let address = hub.address().to_string();
    let mut sessions = ready_all(2, |rank| config(&hub, "job", rank, 2));
    push_all(&mut sessions[0]).unwrap();
    hub.stop("it is Friday");
    says(sessions[0].wait_all().unwrap_err(), &["\"job\" failed", "it is Friday"]);
    let error = push_all(&mut sessions[1]).and_then(|()| sessions[1].wait_all()).unwrap_err();
    says(error, &["\"job\" failed", "it is Friday"]);
    let error = Session::join(config_at(&address, "job", 0, 1)).map(|_| ()).unwrap_err();
    says(error, &["cannot reach", &address]);
}
