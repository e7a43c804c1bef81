//! The hub describes the pace of a job in one line, with the rank that it waits for.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{config, describe, hub, push_all, ready_all, says, settings};
use pbox_core::Consistency;
use pbox_core::control::{JobReply, RoundsReply};
use phub_server::{Hub, HubSettings};
use worker_shim::{Session, SessionConfig};

/// Returns the only job of a hub.
fn job(hub: &Hub) -> JobReply {
    describe(&hub.address().to_string()).jobs.remove(0)
}

/// Trains with one thread for each worker until `seen` holds. In each round, worker `late` first does other
/// work for some time.
fn train(hub: &Hub, late: u32, change: impl Fn(&mut SessionConfig) + Sync, seen: impl Fn(&JobReply) -> bool) {
    let sessions = ready_all(3, |rank| {
        let mut config = config(hub, "job", rank, 3);
        change(&mut config);
        config
    });
    let is_over = AtomicBool::new(false);
    let work = |rank: u32, mut session: Session| {
        while !is_over.load(Relaxed) {
            if rank == late {
                std::thread::sleep(Duration::from_millis(15));
            }
            // An error says that another worker has left because the test is over.
            if push_all(&mut session).and_then(|()| session.wait_all()).is_err() {
                assert!(is_over.load(Relaxed));
            }
        }
    };
    std::thread::scope(|scope| {
        for (rank, session) in (0..).zip(sessions) {
            let work = &work;
            scope.spawn(move || work(rank, session));
        }
        until("the hub has seen it", || seen(&job(hub)));
        is_over.store(true, Relaxed);
    });
}

fn names_worker_1(job: &JobReply) -> bool {
    let Some(RoundsReply { ranks, window, per_second, .. }) = &job.rounds else { return false };
    // On a busy machine, another worker may be late for some time.
    job.verdict.contains("waiting for rank 1: last in ")
        && *window >= 20
        && *per_second > 0.0
        && 2 * ranks[1].last > *window
        && ranks[0].last + ranks[2].last < *window
        && ranks[1].late_us > 2000
        && ranks[1].greatest_us >= ranks[1].late_us
}

#[test]
fn the_worker_that_comes_last_is_named_with_its_time() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    train(&hub, 1, |_| {}, names_worker_1);
}

#[test]
fn with_ssp_it_is_the_one_whom_the_others_wait_for() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let ssp = Consistency::Ssp { staleness: 1 };
    train(&hub, 1, |config| config.terms.level.consistency = ssp, names_worker_1);
}

#[test]
fn a_round_that_stands_is_told_with_who_is_awaited() {
    let _watchdog = Watchdog::start();
    let hub = Hub::start(&HubSettings { late_warning_s: 600, ..settings(2, 60) }).unwrap();
    assert!(describe(&hub.address().to_string()).jobs.is_empty());
    let mut sessions = ready_all(3, |rank| config(&hub, "job", rank, 3));
    push_all(&mut sessions[0]).unwrap();
    push_all(&mut sessions[1]).unwrap();
    until("the round has stood for a second", || job(&hub).verdict.contains("has waited"));
    let seen = job(&hub);
    says(&seen.verdict, &["round 1 has waited", "for rank 2"]);
    assert_eq!(seen.rounds.unwrap().waits_for, [2]);
    push_all(&mut sessions[2]).unwrap();
    sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
    until("nobody is awaited", || {
        let seen = job(&hub);
        seen.rounds.is_some_and(|rounds| rounds.waits_for.is_empty() && rounds.ranks[2].last >= 1)
    });
    assert!(!job(&hub).verdict.contains("has waited"));
}

#[test]
fn a_job_that_gathers_says_for_whom() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    hub_tests::join_by_hand(&hub, "job", &hub_tests::join_request(1, 3));
    assert_eq!(job(&hub).verdict, "waits for ranks 0, 1, 2 to join");
}
