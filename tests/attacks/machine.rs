//! A machine whose wall clock jumps, a machine whose disk does not answer, and a machine whose name server is
//! silent. A library that is loaded before the hub causes these faults.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::training::Training;
use hub_tests::{authorization, describe, join_request};
use pbox_core::control::{JoinRequest, Mesh};

use super::{Behind, LIMIT_S, beside};
use crate::processes::worker::Worker;

/// Returns the library, or prints a message and returns `None` if there is no C compiler.
fn library(dir: &Path) -> Option<PathBuf> {
    let path = dir.join("preload.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/attacks/preload.c");
    let mut cc = Command::new("cc");
    match cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", source, "-o"]).arg(&path).status() {
        Ok(status) => {
            assert!(status.success(), "{cc:?}: {status}");
            Some(path)
        }
        Err(error) => {
            println!("skipped: there is no C compiler: {error}");
            None
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("tempfile's names are UTF-8")
}

#[test]
fn a_wall_clock_that_jumps_by_ten_years_moves_no_limit() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let Some(library) = library(dir.path()) else { return };
    let variables = [
        ("LD_PRELOAD", text(&library)),
        ("JUMP_S", "315360000"),
        ("PHUB_CHECKPOINTS", text(dir.path())),
        ("PHUB_CHECKPOINT_EVERY", "10"),
    ];
    let hub = Behind::start(&variables);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", hub.process.pid())).unwrap();
    assert!(maps.contains("preload.so"), "the hub has the library");
    beside(&[&hub.address()], || {
        let mut worker = Worker::join(&format!("{} job 0 1", hub.address())).unwrap();
        for _ in 0..20 {
            worker.round().unwrap();
        }
        // The pause is longer than the heartbeat limit. The worker must still be a member after the pause.
        std::thread::sleep(Duration::from_secs(LIMIT_S + 2));
        worker.round().unwrap();
        worker.leave().unwrap();
    });
}

#[test]
fn a_disk_that_stands_still_holds_up_no_round_and_loses_no_checkpoint() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let Some(library) = library(dir.path()) else { return };
    let (checkpoints, stall) = (dir.path().join("checkpoints"), dir.path().join("stall"));
    std::fs::create_dir(&checkpoints).unwrap();
    let variables = [
        ("LD_PRELOAD", text(&library)),
        ("STALL", text(&stall)),
        ("PHUB_CHECKPOINTS", text(&checkpoints)),
        ("PHUB_CHECKPOINT_EVERY", "10"),
    ];
    let mut hub = Behind::start(&variables);
    let address = hub.address();
    let written = |address: &str| {
        let job = describe(address).jobs.into_iter().find(|job| job.name == "job");
        job.and_then(|job| job.checkpoint).map(|checkpoint| checkpoint.round.0)
    };
    let mut worker = Worker::join(&format!("{address} job 0 1")).unwrap();
    std::fs::write(&stall, "").unwrap();
    // This innocent job does not end before the disk answers, because its end would wait for the disk.
    let mut other = Worker::join(&format!("{address} innocent 0 1")).unwrap();
    for _ in 0..100 {
        worker.round().unwrap();
        other.round().unwrap();
    }
    std::thread::sleep(Duration::from_secs(LIMIT_S + 2));
    for _ in 0..100 {
        worker.round().unwrap();
        other.round().unwrap();
    }
    assert_eq!(written(&address), None, "the disk stands still");
    std::fs::remove_file(&stall).unwrap();
    until("the checkpoint that waited for the disk is written", || written(&address).is_some());
    other.leave().unwrap();
    // The last checkpoint waits for the disk, and its worker waits for the checkpoint. Such a worker still
    // counts as alive.
    std::fs::write(&stall, "").unwrap();
    worker.round().unwrap();
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| worker.leave());
        std::thread::sleep(Duration::from_secs(LIMIT_S + 2));
        std::fs::remove_file(&stall).unwrap();
        leaving.join().unwrap().unwrap();
    });
    hub.process.signal(rustix::process::Signal::KILL);
    hub.start_again(&variables);
    let worker = Worker::join(&format!("{address} job 0 1"));
    assert_eq!(worker.map(|worker| worker.next_round()).unwrap(), 202, "the state of all rounds is there");
}

/// Returns the number of threads of a process that look up names.
fn lookups(pid: u32) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let names = threads.map(|thread| std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default());
    names.filter(|name| name == "phub-names\n").count()
}

/// A silent name server delays nobody. Each join names a host where the hubs of a mesh are to meet, and the
/// name server never resolves this name. The page, the metrics, other jobs and the hub's stop do not wait for
/// these joins.
#[test]
fn a_name_server_that_is_silent_holds_up_nobody_and_no_stop() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let Some(library) = library(dir.path()) else { return };
    let silent = dir.path().join("silent");
    std::fs::write(&silent, "").unwrap();
    let variables =
        [("LD_PRELOAD", text(&library)), ("SILENT", text(&silent)), ("PHUB_ABOVE_LIMIT_S", "600")];
    let mut hub = Behind::start(&variables);
    let (address, ended) = (hub.address(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (address, ended) = (&address, &ended);
            let mesh = Mesh { machine: "1/2".parse().unwrap(), meet: format!("hub-{number}.silent:7077") };
            let request = JoinRequest { mesh: Some(mesh), ..join_request(0, 1) };
            scope.spawn(move || {
                let url = format!("http://{address}/v1/jobs/slow-{number}/join");
                let join = ureq::post(url).header("authorization", authorization()).send_json(&request);
                ended.fetch_add(1, Ordering::SeqCst);
                join.expect_err("nobody meets it");
            });
        }
        until("all of them look a name up", || lookups(hub.process.pid()) >= 4);
        assert_eq!(describe(&address).jobs.len(), 0);
        let metrics = ureq::get(format!("http://{address}/metrics")).header("authorization", authorization());
        assert!(metrics.call().unwrap().body_mut().read_to_string().unwrap().contains("phub_"));
        let beside = Training::small("beside");
        let bits =
            |weights: Vec<Vec<f32>>| Vec::from_iter(weights.concat().iter().map(|each| each.to_bits()));
        assert_eq!(beside.run(&address).concat(), bits(beside.reference_after(beside.rounds)));
        assert_eq!(ended.load(Ordering::SeqCst), 0, "the joins go on");
        // Each join has asked the name server again in the meantime.
        std::thread::sleep(Duration::from_secs(LIMIT_S + 2));
        assert_eq!(lookups(hub.process.pid()), 4, "one for each name");
        assert!(hub.process.finish().success(), "the hub stops while the name server is silent");
    });
}
