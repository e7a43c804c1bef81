//! A thousand joins and leaves, after which the hub's process holds the same resources as before.

use crate::processes::hub::start_hub;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::usage::{holds, holds_at_rest, status_bytes};
use hub_tests::{config_at, describe, push_all, ready_all};
use worker_shim::Session;

/// The number of times that workers join and leave before the hub's memory is first measured. Then the hub's
/// allocator and tables have their final size.
const WARM_UP: u32 = 100;
const TIMES: u32 = 1000;
/// The most that the hub may grow: half a page for each join. Windows that the hub kept would take eight
/// times as much.
const GROWTH_BYTES: u64 = 2 << 20;

fn comes_and_goes(hub: &str, job: &str) {
    let mut session = Session::join(config_at(hub, job, 0, 1)).unwrap();
    session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap();
    session.leave().unwrap();
}

/// Makes a round of two workers, which then leave. They leave in one order if `time` is even, and in the
/// other order if it is odd.
fn two_come_and_go(hub: &str, time: u32) {
    let mut sessions = ready_all(2, |rank| config_at(hub, "two", rank, 2));
    sessions.iter_mut().for_each(|session| push_all(session).unwrap());
    sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
    if time.is_multiple_of(2) {
        sessions.reverse();
    }
    sessions.into_iter().for_each(|session| session.leave().unwrap());
}

fn nothing_stays(mut once: impl FnMut(&str, u32), times: u32) {
    let (hub, address) = start_hub(&[]);
    let pid = hub.pid();
    let at_first = holds_at_rest(&address, pid);
    // The workers' connections to the control port end shortly after the workers.
    let quiet = |what| until(what, || describe(&address).jobs.is_empty() && holds(pid) == at_first);
    (0..WARM_UP).for_each(|time| once(&address, time));
    quiet("the hub has forgotten those of the warm-up");
    let resident = status_bytes(pid, "VmRSS:");
    (0..times).for_each(|time| once(&address, time));
    quiet("the hub has forgotten all");
    let grown = status_bytes(pid, "VmRSS:").saturating_sub(resident);
    eprintln!("{times} times: the hub has grown by {grown} bytes");
    assert!(grown < GROWTH_BYTES, "{grown} bytes of the hub stay after {times} joins and leaves");
}

#[test]
fn one_worker_comes_and_goes_a_thousand_times() {
    let _watchdog = Watchdog::start();
    nothing_stays(|hub, time| comes_and_goes(hub, ["this", "that"][time as usize % 2]), TIMES);
}

#[test]
fn two_workers_come_and_go_five_hundred_times() {
    let _watchdog = Watchdog::start();
    nothing_stays(two_come_and_go, TIMES / 2);
}
