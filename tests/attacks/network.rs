//! The data path of a worker stands still, in one direction or both, and its control path lives.

use std::time::Duration;

use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::relay::{Stall, Way};
use hub_tests::{describe, on_threads};
use pbox_core::control::JobState;

use super::{Behind, LIMIT_S, beside};
use crate::processes::worker::Worker;

const UP: Stall = Stall { up: true, down: false };
const DOWN: Stall = Stall { up: false, down: true };

#[test]
fn a_partition_of_the_data_path_is_named_and_heals() {
    let _watchdog = Watchdog::start();
    let hub = Behind::start(&[]);
    let address = hub.address();
    beside(&[&address], || {
        for stall in [UP, DOWN, Stall::BOTH] {
            let mut workers = on_threads(2, |rank| {
                let way = if rank == 0 {
                    format!("{address} job 0 2")
                } else {
                    format!("{} job 1 2 tcp", hub.relay.address())
                };
                let mut worker = Worker::join(&way).unwrap();
                worker.round().unwrap();
                worker
            });
            hub.relay.stall(Way::Data, stall);
            std::thread::scope(|scope| {
                let rounds: Vec<_> = workers
                    .iter_mut()
                    // Every bit is checked.
                    .map(|worker| scope.spawn(|| (0..3).try_for_each(|_| worker.round())))
                    .collect();
                let job = || describe(&address).jobs.into_iter().find(|job| job.name == "job").unwrap();
                until("the worker behind the partition is named", || {
                    job().held_up_by.iter().map(|late| late.rank).collect::<Vec<_>>() == [1]
                });
                // Its heartbeats come: it is not lost.
                std::thread::sleep(Duration::from_secs(LIMIT_S + 1));
                assert_eq!(job().state, JobState::Running, "{stall:?}");
                hub.relay.stall(Way::Data, Stall::NONE);
                rounds.into_iter().for_each(|round| round.join().unwrap().unwrap());
            });
            workers.into_iter().for_each(|worker| worker.leave().unwrap());
        }
    });
}
