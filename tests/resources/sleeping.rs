//! A sleeping core wakes without the help of another thread of the hub, even if its workers use shared memory
//! and TCP.

use crate::processes::hub::start_hub;
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::{config_at, push_all, ready_all};
use worker_shim::Session;

const ROUNDS: u32 = 200;
/// The number of the core's sleeps after which the test ends. No other thread may wake during these sleeps.
const ENOUGH: u64 = 20;

/// Returns the number of times that threads of a process have gone to sleep. The threads are those whose
/// names begin with `name`.
fn sleeps(pid: u32, name: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let status = tasks.map(|task| std::fs::read_to_string(task.path().join("status")).unwrap_or_default());
    let of_name = status.filter(|status| status.starts_with(&format!("Name:\t{name}")));
    of_name.map(|status| counter(&status, "voluntary_ctxt_switches:")).sum()
}

fn counter(status: &str, field: &str) -> u64 {
    let line = status.lines().find(|line| line.starts_with(field)).expect("Linux counts switches");
    line[field.len()..].trim().parse().expect("a number")
}

fn rounds(sessions: &mut [Session]) {
    std::thread::scope(|scope| {
        for session in sessions {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    push_all(session).unwrap();
                    session.wait_all().unwrap();
                }
            });
        }
    });
}

#[test]
fn no_thread_wakes_a_core_whose_workers_come_over_shared_memory_and_tcp() {
    let _watchdog = Watchdog::start();
    let (hub, address) = start_hub(&[]);
    let mut sessions = ready_all(2, |rank| {
        let mut config = config_at(&address, "job", rank, 2);
        config.transport = Some([Transport::Shm, Transport::Tcp][rank as usize]);
        config
    });
    rounds(&mut sessions); // all connections are there
    let count = || ["phub-core", "phub-watch"].map(|name| sleeps(hub.pid(), name));
    let before = count();
    // On a busy machine, many pushes in a row may arrive before a core looks for them.
    let core = loop {
        rounds(&mut sessions);
        let slept = count()[0] - before[0];
        if slept >= ENOUGH {
            break slept;
        }
    };
    let watch = count()[1] - before[1];
    eprintln!("the core slept {core} times, and the watch {watch} times");
    assert_eq!(watch, 0, "the watch woke beside the core, which slept {core} times");
    sessions.into_iter().for_each(|session| session.leave().unwrap());
}
