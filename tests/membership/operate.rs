//! An operator stops a job, and drains a hub.

use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{
    PATIENT_S, config, describe, hub, post, push_all, ready_all, refusal, refused, says, settings,
};
use pbox_core::control::{DrainReply, JobState, StopReply};
use phub_server::{Hub, HubSettings};

#[test]
fn a_job_is_stopped_after_its_checkpoint_and_its_workers_are_told() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = Some(dir.path().to_owned());
    let hub = Hub::start(&HubSettings { checkpoints, ..settings(1, PATIENT_S) }).unwrap();
    let mut sessions = ready_all(2, |rank| config(&hub, "job", rank, 2));
    let mut beside = ready_all(1, |rank| config(&hub, "beside", rank, 1));
    sessions.iter_mut().for_each(|session| push_all(session).unwrap());
    sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
    push_all(&mut sessions[0]).unwrap();

    let (status, said) = post(&hub, "/v1/jobs/job/stop", "");
    assert_eq!(status, 200, "{said}");
    let StopReply { checkpoint, checkpoint_error } = serde_json::from_str(&said).unwrap();
    // Rank 0 has pushed a round that rank 1 has not pushed. The file has the state before that round.
    assert_eq!(checkpoint_error, None);
    assert!(checkpoint.unwrap().round.0 > 0);
    assert!(dir.path().join("job.safetensors").exists());
    says(sessions[0].wait_all().unwrap_err(), &["\"job\" failed", "an operator stopped the job"]);

    push_all(&mut beside[0]).unwrap();
    beside[0].wait_all().unwrap();
    says(refusal(&hub, "/v1/jobs/nobody/stop", "").1, &["no job \"nobody\""]);
    says(refusal(&hub, "/v1/jobs/job/stop", "").1, &["no job \"job\""]);
}

#[test]
fn a_hub_that_is_drained_takes_no_job_and_ends_with_its_last() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut sessions = ready_all(1, |rank| config(&hub, "job", rank, 1));
    let (status, said) = post(&hub, "/v1/drain", "");
    assert_eq!(status, 200, "{said}");
    let DrainReply { jobs } = serde_json::from_str(&said).unwrap();
    assert_eq!(jobs, ["job"]);
    let seen = describe(&hub.address().to_string());
    assert!(seen.draining && seen.jobs[0].state == JobState::Running);
    says(refused(config(&hub, "other", 0, 1)), &["\"other\"", "takes no new jobs", "another hub"]);
    push_all(&mut sessions[0]).unwrap();
    sessions[0].wait_all().unwrap();
    let mut drained = Box::pin(hub.drained());
    let mut is_over = || {
        let waker = std::task::Waker::noop();
        drained.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_ready()
    };
    assert!(!is_over());
    sessions.pop().unwrap().leave().unwrap();
    until("the hub is empty", is_over);
}
