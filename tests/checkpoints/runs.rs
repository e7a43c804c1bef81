//! Runs without a chosen name, at a hub that keeps the checkpoints of a limited number of jobs.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{PATIENT_S, config, push_all, ready_all, settings};
use phub_server::{Hub, HubSettings};

/// Returns the files of a directory whose names are those of checkpoints.
fn files(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().flatten().map(|file| file.file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".safetensors")).collect();
    names.sort();
    names
}

fn run(hub: &Hub, job: &str) {
    let mut sessions = ready_all(1, |rank| config(hub, job, rank, 1));
    for _ in 0..2 {
        push_all(&mut sessions[0]).unwrap();
        sessions[0].wait_all().unwrap();
    }
    sessions.remove(0).leave().unwrap();
}

#[test]
fn old_runs_leave_their_files_and_those_that_are_here_keep_theirs() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let (checkpoints, checkpoint_jobs) = (Some(dir.path().to_owned()), NonZeroU32::new(2));
    let hub = Hub::start(&HubSettings { checkpoints, checkpoint_jobs, ..settings(1, PATIENT_S) }).unwrap();
    // A file that no hub wrote: a user keeps a model here.
    std::fs::write(dir.path().join("model.safetensors"), "8 bytes and more").unwrap();
    run(&hub, "here");
    let mut here = ready_all(1, |rank| config(&hub, "here", rank, 1));
    std::fs::write(dir.path().join("run-1@not-finite.safetensors"), "put aside").unwrap();
    for number in 1..=4 {
        run(&hub, &format!("run-{number}"));
    }
    until("the files of two jobs are left, beside the model", || files(dir.path()).len() == 3);
    assert_eq!(files(dir.path()), ["here.safetensors", "model.safetensors", "run-4.safetensors"]);
    // The clock is set back by an hour, so the earlier file looks newer. Each run's own file once went first.
    let earlier = std::fs::File::options().write(true).open(dir.path().join("run-4.safetensors")).unwrap();
    earlier.set_modified(SystemTime::now() + Duration::from_secs(3600)).unwrap();
    run(&hub, "run-5");
    until("two jobs are left", || !files(dir.path()).contains(&"run-4.safetensors".to_owned()));
    assert_eq!(files(dir.path()), ["here.safetensors", "model.safetensors", "run-5.safetensors"]);
    here.remove(0).leave().unwrap();
}
