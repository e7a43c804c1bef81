//! The hubs at the top name a late worker of another machine, because that machine's hub reports the worker.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{describe, hub, join_by_hand, join_request, post_as_member, push_all, says};
use pbox_core::Members;
use pbox_core::control::{JobReply, JoinReply, Latest};
use phub_server::Hub;
use worker_shim::Session;

use super::{Machines, on_machines};

/// Returns the job at a hub at the top.
fn job_above(hub: &Hub) -> JobReply {
    let jobs = describe(&hub.address().to_string()).jobs;
    jobs.into_iter().find(|job| job.name == "job.above").expect("the job at the top")
}

/// Trains with three workers on each of two machines. Worker 2 of machine 1 is late in each round. Ends when
/// a hub at the top names this worker.
fn train(machines: &Machines) {
    let top = if machines.is_mesh { &machines.below } else { &machines.top };
    let is_over = AtomicBool::new(false);
    // Nothing is asserted about machine 0: on a busy machine one of its workers may be late now and then.
    let says_so = |job: &JobReply| {
        let latest = job.members[1].latest.as_ref();
        latest.is_some_and(|late| late.path == [2] && 2 * late.last > late.window && late.late_us > 2000)
    };
    let named = |hub: &Hub| {
        let job = job_above(hub);
        let seen = job.verdict.contains("waiting for rank 1: last in ");
        seen && job.verdict.contains("(machine 1: worker 2, last in ") && says_so(&job)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            on_machines(2, 3, |machine, rank, begin| {
                let mut session = Session::join(machines.config(machine, "job", rank, 3)).unwrap();
                session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap();
                begin.wait();
                while !is_over.load(Relaxed) {
                    if (machine, rank) == (1, 2) {
                        std::thread::sleep(Duration::from_millis(15));
                    }
                    // An error means that another worker has left, because the test is over.
                    if let Err(error) = push_all(&mut session).and_then(|()| session.wait_all()) {
                        assert!(is_over.load(Relaxed), "{error}");
                    }
                }
            })
        });
        until("the job is at the top", || !describe(&top[0].address().to_string()).jobs.is_empty());
        until("the job runs", || top.iter().all(|hub| job_above(hub).round.0 > 0));
        // In a mesh, both hubs must name the worker.
        until("the hubs at the top name the worker", || top.iter().all(named));
        is_over.store(true, Relaxed);
    });
}

#[test]
fn hubs_above_name_the_worker_that_is_late_on_another_machine() {
    let _watchdog = Watchdog::start();
    train(&Machines::start(1, 2));
}

#[test]
fn all_hubs_of_a_mesh_name_the_worker_that_is_late_on_another_machine() {
    let _watchdog = Watchdog::start();
    train(&Machines::mesh(2));
}

#[test]
fn what_cannot_be_late_is_refused_by_name() {
    let hub = hub(1);
    let join = |job: &str, members| {
        let mut request = join_request(0, 2);
        request.terms.level.members = members;
        join_by_hand(&hub, job, &request)
    };
    let latest = Latest { path: vec![2], window: 100, last: 98, late_us: 6_500, waited_us: 0 };
    let say = |job: &str, joined: &JoinReply, latest: &Latest| {
        let request = serde_json::json!({"seen": 0, "latest": latest}).to_string();
        post_as_member(&hub, job, "heartbeat", &joined.token, request)
    };
    let (worker, machine) = (join("job", Members::Workers), join("above", Members::Hubs));
    let (status, why) = say("job", &worker, &latest);
    says(format!("{status} {why}"), &["400", "worker 0 sent a heartbeat", "only a hub has workers"]);
    for (wrong, expected) in [
        (Latest { path: vec![], ..latest.clone() }, "expected 1 to 16"),
        (Latest { path: vec![0; 17], ..latest.clone() }, "expected 1 to 16"),
        (Latest { path: vec![4096], ..latest.clone() }, "expected ranks below 4096"),
        (Latest { last: 101, ..latest.clone() }, "last in 101 of 100 rounds"),
        (Latest { window: 0, last: 0, ..latest.clone() }, "last in 0 of 0 rounds"),
    ] {
        let (status, why) = say("above", &machine, &wrong);
        says(format!("{status} {why}"), &["400", "the hub of machine 0 sent a heartbeat", expected]);
    }
    let (status, news) = say("above", &machine, &latest);
    assert_eq!(status, 200, "{news}");
    let jobs = describe(&hub.address().to_string()).jobs;
    let above = jobs.iter().find(|job| job.name == "above").unwrap();
    assert_eq!(above.members[0].latest, Some(latest));
}
