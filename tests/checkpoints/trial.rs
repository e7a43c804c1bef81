//! A trial, such as the doctor's, leaves no files at a hub that keeps checkpoints.

use std::ffi::OsString;

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::{PATIENT_S, config, join_request, post_as_member, push_all, refused, says, settings};
use pbox_core::control::LeaveRequest;
use pbox_core::{ChunkId, Round};
use phub_server::Hub;
use worker_shim::Session;

use crate::hostile::by_hand::{ByHand, JOB};

/// Returns the files in the hub's directory after a job of one round. `was_trial` says how its worker leaves.
fn kept_after(was_trial: bool) -> Vec<OsString> {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = settings(1, PATIENT_S);
    settings.checkpoints = Some(dir.path().to_owned());
    let hub = Hub::start(&settings).unwrap();
    let mut worker = ByHand::join(&hub, &join_request(0, 1), Transport::Shm);
    worker.until_running(&hub);
    for chunk in 0..worker.chunks() {
        worker.post(worker.owner(chunk), worker.wire.gradient_span(ChunkId(chunk)), chunk, 0);
    }
    let mut answers = 0;
    while answers < worker.chunks() as usize {
        worker.wait();
        answers += worker.poll();
    }
    let token = worker.reply.token.clone();
    let leave =
        serde_json::to_vec(&LeaveRequest { round: Round(1), was_trial, ..LeaveRequest::default() }).unwrap();
    let (status, said) = post_as_member(&hub, JOB, "leave", &token, leave);
    assert_eq!((status, said.trim()), (200, "{}"));
    let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().is_some_and(|name| name.contains(JOB))).collect()
}

#[test]
fn a_trial_leaves_no_checkpoint() {
    let _watchdog = Watchdog::start();
    assert_eq!(kept_after(false).len(), 1, "another job does");
    assert_eq!(kept_after(true), Vec::<OsString>::new());
}

/// Formerly the second run of a probe was wrong, because its job continued from the weights of the first run.
#[test]
fn a_job_that_is_a_trial_goes_on_from_no_checkpoint_and_writes_none() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let mut settings = settings(1, PATIENT_S);
    settings.checkpoints = Some(dir.path().to_owned());
    settings.checkpoint_every = std::num::NonZeroU32::new(1);
    let hub = Hub::start(&settings).unwrap();
    let run = |trial: bool| {
        let mut config_of_run = config(&hub, JOB, 0, 1);
        config_of_run.trial = trial;
        let mut session = Session::join(config_of_run).unwrap();
        let first = session.next_round();
        session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap(); // a round; only a new job has it
        for _ in 0..3 {
            push_all(&mut session).unwrap();
            session.wait_all().unwrap();
        }
        let mut other = config(&hub, JOB, 0, 1);
        other.trial = !trial;
        says(refused(other), &["trial", "another job name"]);
        session.leave().unwrap();
        first
    };
    let files = || std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let of_the_job = || files().filter(|name| name.to_string_lossy().contains(JOB)).count();
    assert_eq!(run(true), Round(0));
    assert_eq!((run(true), of_the_job()), (Round(0), 0));
    assert_eq!(run(false), Round(0));
    let kept = of_the_job();
    assert!(kept > 0);
    assert_eq!((run(true), of_the_job()), (Round(0), kept), "another's checkpoints are left alone");
    assert_eq!(run(false), Round(4));
}
