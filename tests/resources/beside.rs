//! A large job starts and ends. The threads of the hub's cores are never the first to touch its memory,
//! because they run the rounds of other jobs.

use std::fs;

use crate::processes::hub::start_hub;
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::{config_at, push_all};
use pbox_core::{Key, Optimizer};
use worker_shim::Session;

/// Returns the number of page faults of a hub's core threads that needed no disk.
fn faults_of_cores(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let of_a_core = |stat: &String| stat.contains("(phub-core-");
    let stats = tasks.map(|task| fs::read_to_string(task.path().join("stat")).unwrap_or_default());
    let faults = |stat: String| {
        let behind_the_name = stat.rsplit_once(") ").unwrap().1;
        behind_the_name.split(' ').nth(7).unwrap().parse::<u64>().unwrap()
    };
    stats.filter(of_a_core).map(faults).sum()
}

#[test]
fn a_core_waits_for_no_pages_of_a_job_that_joins() {
    let _watchdog = Watchdog::start();
    for transport in [Transport::Shm, Transport::Tcp] {
        let (hub, address) = start_hub(&[("PHUB_TRANSPORTS", &transport.to_string())]);
        let mut small = Session::join(config_at(&address, "small", 0, 1)).unwrap();
        small.broadcast_weights(|_, weights: &mut [f32]| weights.fill(1.0)).unwrap();
        let mut large = config_at(&address, "large", 0, 1);
        large.terms.keys = vec![Key::f32("large", [64 << 20])]; // 256 MiB, and 256 MiB of momentum
        large.terms.chunk_bytes = 1 << 20;
        large.terms.optimizer = Optimizer::Nesterov { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.0 };
        let before = faults_of_cores(hub.pid());
        let large = Session::join(large).unwrap();
        let of_join = faults_of_cores(hub.pid()) - before;
        assert!(of_join < 64, "{transport}: {of_join} faults of the core; huge pages alone would be 256");
        large.leave().unwrap();
        push_all(&mut small).unwrap();
        small.wait_all().unwrap();
    }
}
