//! A worker is alive and does not push. The other workers learn its rank in time, and no other worker is
//! named.

use std::time::Duration;

use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{FIRST, SECOND, config_at, describe, push_all, ready_all, says, settings};
use pbox_core::control::JobState;
use pbox_core::{Consistency, OnLoss, Round};
use phub_server::{Hub, HubSettings};
use worker_shim::{Session, SessionConfig};

/// Returns a hub that names a late worker after a second.
fn hub(late_limit_s: Option<u64>) -> Hub {
    Hub::start(&HubSettings { late_warning_s: 1, late_limit_s, ..settings(2, 30) }).unwrap()
}

fn workers(hub: &Hub, count: u32, change: impl Fn(&mut SessionConfig) + Sync) -> Vec<Session> {
    let address = hub.address().to_string();
    ready_all(count, |rank| {
        let mut config = config_at(&address, "job", rank, count);
        change(&mut config);
        config
    })
}

/// Waits until the hub names a rank. Returns the ranks that it names.
fn named(hub: &Hub) -> Vec<u32> {
    let mut named = Vec::new();
    until("somebody is named", || {
        named =
            describe(&hub.address().to_string()).jobs[0].held_up_by.iter().map(|late| late.rank).collect();
        !named.is_empty()
    });
    named
}

#[test]
fn the_one_that_does_not_push_is_named() {
    let _watchdog = Watchdog::start();
    let hub = hub(None);
    let mut sessions = workers(&hub, 3, |config| config.wait_limit = Duration::from_secs(5));
    push_all(&mut sessions[0]).unwrap();
    // Worker 2 waits for worker 1 before it pushes its other keys. Worker 2's pushes are missing, too, but
    // worker 2 must not be named.
    sessions[2].push(FIRST).unwrap();
    assert_eq!(named(&hub), [1]);
    let late = describe(&hub.address().to_string()).jobs[0].held_up_by[0].clone();
    assert_eq!((late.who.as_str(), late.round), ("worker 1", Round(1)));
    assert!(late.chunks > 1 && late.seconds >= 1, "{late:?}");
    until("the workers know", || sessions.iter().all(|session| session.held_up_by().len() == 1));
    let error = sessions[0].wait(FIRST).unwrap_err();
    says(
        error,
        &[
            "have no answer yet",
            "worker 1 lives and holds up round 1",
            "chunk(s) have waited for its push for",
        ],
    );
    // The worker pushes again, and no worker is named any more.
    push_all(&mut sessions[1]).unwrap();
    sessions[1].wait(FIRST).unwrap();
    // Worker 2 now has its answer for the first key, and does not push the next key.
    until("worker 2 is named", || named(&hub) == [2]);
    sessions[2].push(SECOND).unwrap();
    sessions[2].push(hub_tests::THIRD).unwrap();
    sessions[1].wait_all().unwrap();
    until("nobody is named", || describe(&hub.address().to_string()).jobs[0].held_up_by.is_empty());
}

#[test]
fn a_job_that_rests_is_held_up_by_nobody() {
    let _watchdog = Watchdog::start();
    let hub = hub(Some(1));
    let mut sessions = workers(&hub, 2, |_| {});
    std::thread::sleep(Duration::from_secs(3));
    let job = &describe(&hub.address().to_string()).jobs[0];
    assert!(job.held_up_by.is_empty() && job.state == JobState::Running, "{job:?}");
    sessions.iter_mut().for_each(|session| push_all(session).unwrap());
    sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
}

#[test]
fn with_ssp_it_is_the_one_behind_the_bound() {
    let _watchdog = Watchdog::start();
    let hub = hub(None);
    let ssp = Consistency::Ssp { staleness: 1 };
    let mut sessions = workers(&hub, 2, |config| config.terms.level.consistency = ssp);
    push_all(&mut sessions[0]).unwrap();
    sessions[0].wait_all().unwrap();
    push_all(&mut sessions[0]).unwrap();
    assert_eq!(named(&hub), [1]);
    push_all(&mut sessions[1]).unwrap();
    sessions[0].wait_all().unwrap();
}

#[test]
fn beyond_the_limit_it_is_lost() {
    let _watchdog = Watchdog::start();
    let words = ["worker 1 lives and holds up round 1", "the limit is 2 s (--late-limit-s)"];
    let stopping = hub(Some(2));
    let mut sessions = workers(&stopping, 2, |_| {});
    push_all(&mut sessions[0]).unwrap();
    says(sessions[0].wait_all().unwrap_err(), &["\"job\" failed", words[0], words[1]]);
    let going_on = hub(Some(2));
    let mut sessions = workers(&going_on, 2, |config| config.terms.on_loss = OnLoss::Continue);
    push_all(&mut sessions[0]).unwrap();
    sessions[0].wait_all().unwrap();
    says(push_all(&mut sessions[1]).and_then(|()| sessions[1].wait_all()).unwrap_err(), &words);
}
