//! Processes of workers and hubs that are killed or stopped in the middle of a round. All other workers get an error
//! with the name of the party and the reason, and no worker hangs.

use crate::processes::hub::start_hub;
use crate::processes::worker::{Remote, Worker};
use fabric::conformance::Watchdog;
use hub_tests::{config_at, describe, hub, hub_with_limit, on_threads, refused, says};
use pbox_core::control::{JobReply, JobState};
use rustix::process::Signal;

/// Starts ranks 0 to `workers - 2` in this process, and the last rank in its own process. All ranks are in
/// round 2, and the last rank has pushed a part of this round.
fn in_the_middle_of_a_round(hub: &str, workers: u32) -> (Vec<Worker>, Remote) {
    let last = workers - 1;
    let mut remote = Remote::start(&format!("{hub} job {last} {workers}"));
    let mut here =
        on_threads(last, |rank| Worker::join(&format!("{hub} job {rank} {workers}")).expect("rank joins"));
    remote.says("joined");
    remote.send("round");
    rounds(&mut here).into_iter().for_each(|result| result.unwrap());
    remote.says("round 1");
    remote.send("push");
    remote.says("pushed");
    (here, remote)
}

fn rounds(workers: &mut [Worker]) -> Vec<Result<(), worker_shim::SessionError>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(|| worker.round())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn a_worker_killed_in_a_round_is_named() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let (mut here, remote) = in_the_middle_of_a_round(&hub.address().to_string(), 3);
    // One worker has pushed its part and waits; the other worker pushes later.
    let (first, second) = here.split_at_mut(1);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| first[0].round().unwrap_err());
        remote.process().signal(Signal::KILL);
        let words = ["\"job\" failed", "worker 2 is gone", "exited or was killed"];
        says(waiting.join().unwrap(), &words);
        says(second[0].round().unwrap_err(), &words);
    });
}

#[test]
fn a_worker_killed_before_it_pushed_is_named() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let address = hub.address().to_string();
    let mut remote = Remote::start(&format!("{address} job 1 2"));
    let mut here = Worker::join(&format!("{address} job 0 2")).unwrap();
    remote.says("joined");
    remote.process().signal(Signal::KILL);
    says(here.round().unwrap_err(), &["\"job\" failed", "worker 1 is gone", "exited or was killed"]);
}

#[test]
fn a_worker_killed_while_others_gather_is_named() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let address = hub.address().to_string();
    let remote = Remote::start(&format!("{address} job 1 3"));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Worker::join(&format!("{address} job 0 3")).map(|_| ()).unwrap_err());
        until_missing(&address, &[2]);
        remote.process().signal(Signal::KILL);
        says(waiting.join().unwrap(), &["\"job\" failed", "worker 1 is gone"]);
    });
}

#[test]
fn a_hub_killed_in_a_round_is_named() {
    let _watchdog = Watchdog::start();
    let (hub, address) = start_hub(&[]);
    let (mut here, mut remote) = in_the_middle_of_a_round(&address, 3);
    let (first, second) = here.split_at_mut(1);
    let words = ["\"job\"", "lost the hub", &address, "closed the link, exited or was killed"];
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| first[0].round().unwrap_err());
        hub.signal(Signal::KILL);
        says(waiting.join().unwrap(), &words);
        says(second[0].round().unwrap_err(), &words);
    });
    remote.send("finish");
    remote.says(&format!(
        "error job \"job\": lost the hub at {address}: the link to the hub's core 0 closed: the peer closed the link, exited or was killed"
    ));
    says(refused(config_at(&address, "job", 0, 1)), &["cannot reach", &address]);
}

#[test]
fn a_hub_killed_while_workers_gather_is_named() {
    let _watchdog = Watchdog::start();
    let (hub, address) = start_hub(&[]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Worker::join(&format!("{address} job 0 2")).map(|_| ()).unwrap_err());
        until_missing(&address, &[1]);
        hub.signal(Signal::KILL);
        says(waiting.join().unwrap(), &["\"job\"", "lost the hub", &address, "exited or was killed"]);
    });
}

/// Waits until exactly these ranks of the only job have not connected.
fn until_missing(address: &str, ranks: &[u32]) {
    hub_tests::program::until("the others have joined", || {
        let jobs = describe(address).jobs;
        matches!(&jobs[..], [JobReply { state: JobState::Gathering { missing, .. }, .. }] if missing == ranks)
    });
}

#[test]
fn a_worker_stopped_beyond_the_limit_is_named() {
    let _watchdog = Watchdog::start();
    let hub = hub_with_limit(1, 2);
    let (mut here, mut remote) = in_the_middle_of_a_round(&hub.address().to_string(), 2);
    remote.process().stop();
    let words = ["\"job\" failed", "worker 1 was silent for", "the limit is 2.0 s"];
    says(here[0].round().unwrap_err(), &words);
    // When the stopped worker continues, it gets the same error.
    remote.process().signal(Signal::CONT);
    remote.send("finish");
    let mut reply = remote.read_reply();
    if reply == "round 2" {
        // The stopped worker's pushes arrived before the hub's order to end the job, so the worker may begin a next
        // round. No other worker takes part in that round.
        remote.send("round");
        reply = remote.read_reply();
    }
    says(reply, &words);
}

/// A worker is stopped and continued many times, at any moment of a round.
#[test]
fn rounds_are_right_through_stops_at_any_moment() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let address = hub.address().to_string();
    let mut remote = Remote::start(&format!("{address} job 1 2"));
    let mut here = Worker::join(&format!("{address} job 0 2")).unwrap();
    remote.says("joined");
    for round in 1..=50 {
        remote.send("round");
        remote.process().signal(Signal::STOP);
        std::thread::scope(|scope| {
            let done = scope.spawn(|| here.round().unwrap());
            remote.process().signal(Signal::CONT);
            done.join().unwrap();
        });
        remote.says(&format!("round {round}"));
    }
    here.leave().unwrap();
    remote.send("leave");
    remote.says("left");
}

#[test]
fn a_hub_stopped_for_a_moment_is_waited_for() {
    let _watchdog = Watchdog::start();
    let (hub, address) = start_hub(&[]);
    let mut here = Worker::join(&format!("{address} job 0 1")).unwrap();
    here.round().unwrap();
    hub.stop();
    std::thread::scope(|scope| {
        let done = scope.spawn(|| here.round());
        hub.signal(Signal::CONT);
        done.join().unwrap().unwrap();
    });
    here.leave().unwrap();
}
