//! More processes than cores: sixteen workers end with the right bits, and waiting workers use no processor
//! time.

use crate::processes::hub::start_hub;
use crate::processes::worker::{Remote, Worker};
use fabric::conformance::Watchdog;
use hub_tests::usage::ticks;
use hub_tests::{authorization, cpus, join_request};

const WORKERS: u32 = 16;
/// The most processor time of a process that waits, in hundredths of a second, over two heartbeats of 3.3 s.
/// A thread that spins uses 660. A thread that wakes every half second uses less than one.
const TICKS_OF_IDLENESS: u64 = 30;

#[test]
fn sixteen_workers_on_any_machine() {
    let _watchdog = Watchdog::start();
    let (_hub, address) = start_hub(&[("PHUB_CORES", &cpus().to_string())]);
    let mut workers: Vec<Remote> =
        (0..WORKERS).map(|rank| Remote::start(&format!("{address} job {rank} {WORKERS}"))).collect();
    workers.iter_mut().for_each(|worker| worker.says("joined"));
    for round in 1..=10 {
        workers.iter_mut().for_each(|worker| worker.send("round"));
        // Each worker checks every bit.
        workers.iter_mut().for_each(|worker| worker.says(&format!("round {round}")));
    }
    workers.iter_mut().for_each(|worker| worker.send("leave"));
    workers.iter_mut().for_each(|worker| worker.says("left"));
}

#[test]
fn processes_that_wait_use_no_processor_time() {
    let _watchdog = Watchdog::start();
    let (hub, address) = start_hub(&[("PHUB_CORES", &cpus().to_string()), ("PHUB_HEARTBEAT_LIMIT_S", "10")]);
    let mut remote = [0, 1].map(|rank| Remote::start(&format!("{address} job {rank} 3")));
    let mut late = Worker::join(&format!("{address} job 2 3")).unwrap();
    remote.iter_mut().for_each(|worker| worker.says("joined"));
    // Both workers wait for the push of the third worker.
    remote.iter_mut().for_each(|worker| worker.send("round"));

    let pids = [hub.pid(), remote[0].process().pid(), remote[1].process().pid()];
    let post = |path: &str, shown: &str, body: serde_json::Value| -> serde_json::Value {
        let url = format!("http://{address}/v1/jobs/other/{path}");
        ureq::post(url)
            .header("authorization", shown)
            .send_json(body)
            .unwrap()
            .body_mut()
            .read_json()
            .unwrap()
    };
    // A heartbeat replaces a clock here: the hub holds a heartbeat without news for a fixed time.
    let joined = post("join", &authorization(), serde_json::to_value(join_request(0, 2)).unwrap());
    let shown = format!("Phub-Member {}", joined["token"].as_str().unwrap());
    let beat = || {
        assert_eq!(post("heartbeat", &shown, serde_json::json!({"seen": 1}))["version"], 1);
    };
    beat(); // in this time the processes finish their work
    let before = pids.map(ticks);
    beat();
    beat();
    let used: Vec<u64> = pids.iter().zip(before).map(|(&pid, before)| ticks(pid) - before).collect();
    eprintln!("ticks of hub and two workers that wait: {used:?}");
    assert!(used.iter().all(|&used| used < TICKS_OF_IDLENESS), "ticks while waiting: {used:?}");

    late.round().unwrap();
    remote.iter_mut().for_each(|worker| worker.says("round 1"));
    remote.iter_mut().for_each(|worker| worker.send("leave"));
    remote.iter_mut().for_each(|worker| worker.says("left"));
    late.leave().unwrap();
}
