//! Checkpoints of a running hub. A job continues from its last checkpoint with the bits of a job that was
//! never interrupted. If a checkpoint cannot be written, no job suffers.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::processes::hub::start_hub;
use fabric::conformance::Watchdog;
use hub_tests::program::{Program, until};
use hub_tests::training::Training;
use hub_tests::values::same_bits;
use hub_tests::{
    PATIENT_S, authorization, config, cpus, describe, join_all, on_threads, push_all, ready_all, refusal,
    refused, says, settings,
};
use pbox_core::OnLoss;
use pbox_core::control::{CheckpointReply, JobState};
use pbox_core::{Dtype, Key, KeyId, Optimizer, Round};
use phub_server::Hub;
use rustix::process::Signal;
use serde_json::json;
use worker_shim::{Session, SessionError};

/// The number of rounds between two checkpoints.
pub(super) const EVERY: u32 = 3;
pub(super) const ADAM: Optimizer =
    Optimizer::Adam { learning_rate: 0.1, weight_decay: 1e-3, beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };

fn hub(dir: &Path) -> Hub {
    hub_every(dir, None)
}

pub(super) fn hub_every(dir: &Path, every: Option<u32>) -> Hub {
    let mut settings = settings(2, PATIENT_S);
    settings.checkpoints = Some(dir.to_owned());
    settings.checkpoint_every = every.map(|every| every.try_into().unwrap());
    Hub::start(&settings).unwrap()
}

/// Starts a hub in its own process. Returns the process and the hub's address.
pub(super) fn hub_to_kill(dir: &Path) -> (Program, String) {
    let (cores, every) = (cpus().min(2).to_string(), EVERY.to_string());
    let dir = dir.to_str().expect("tempfile's names are UTF-8");
    start_hub(&[("PHUB_CORES", &cores), ("PHUB_CHECKPOINTS", dir), ("PHUB_CHECKPOINT_EVERY", &every)])
}

/// Pushes gradients of ones: the weights after round `r` are `1 - r / 2`.
pub(crate) fn rounds(session: &mut Session, count: u32) -> Result<(), SessionError> {
    for _ in 0..count {
        session.keys().try_for_each(|key| session.gradient_mut(key).map(|gradient| gradient.fill(1.0)))?;
        push_all(session)?;
        session.wait_all()?;
    }
    Ok(())
}

#[track_caller]
pub(crate) fn weights_are(session: &Session, value: f32) {
    for key in session.keys() {
        let weights = session.weights::<f32>(key).unwrap();
        assert!(weights.iter().all(|&weight| weight == value), "key {key:?}: {weights:?}, expected {value}");
    }
}

/// Trains with the gradients of [`Training`], from the job's last checkpoint if there is one, until the hub
/// is gone or the job is done. Returns the last weights.
pub(super) fn train(
    training: &Training,
    hub: &str,
    rank: u32,
    rounds: u32,
    done: impl Fn(u32),
) -> Result<Vec<Vec<f32>>, SessionError> {
    let mut session = Session::join(training.config(hub, rank))?;
    training.broadcast(&mut session, rank)?;
    for round in session.next_round().0..=rounds {
        for key in session.keys() {
            // The reference counts steps, and the broadcast is not a step.
            training.write(&mut session, key, |gradient| {
                training.fill_gradient(rank, round - 1, key, gradient);
            });
            session.push(key)?;
        }
        session.wait_all()?;
        done(round);
    }
    let weights = session.keys().map(|key| training.read(&session, key)).collect();
    if rank == 0 && training.ema.is_some() {
        training.check_averages(hub, rounds);
    }
    session.leave()?;
    Ok(weights)
}

#[test]
fn a_hub_that_is_killed_goes_on_with_the_bits_of_one_that_was_not() {
    let _watchdog = Watchdog::start();
    goes_on_after_kills(|_| {});
}

/// The first round after each kill is scaled by the norm of a round that an earlier hub has made.
#[test]
fn a_hub_that_is_killed_knows_the_norm_of_the_round_before() {
    let _watchdog = Watchdog::start();
    goes_on_after_kills(|training| training.clip_norm_last = Some(3.0));
}

/// A spike can be found only after ten rounds, and between two kills there are fewer rounds. So the hub must
/// keep the mean of the norms from before a kill.
#[test]
fn a_hub_that_is_killed_knows_the_mean_of_the_norms_before() {
    let _watchdog = Watchdog::start();
    goes_on_after_kills(|training| {
        (training.skip_spikes, training.spikes) = (Some(2.0), (12..80).step_by(5).collect());
    });
}

fn goes_on_after_kills(change: fn(&mut Training)) {
    let dir = tempfile::tempdir().unwrap();
    let mut keys = vec![Key::f32("a", [3000]), Key::f32("b", [1]), Key::f32("c", [70, 90])];
    // The checkpoint has the master weights of these keys, which are finer than the workers' weights.
    (keys[1].dtype, keys[2].dtype) = (Dtype::F16, Dtype::BF16);
    let mut training = Training::new("job", keys, ADAM);
    (training.chunk_bytes, training.rounds, training.ema) = (1024, 80, Some(0.9));
    change(&mut training);
    let mut lives = 0;
    let last = loop {
        let (hub, address) = hub_to_kill(dir.path());
        let killer = hub.pid();
        lives += 1;
        // Each hub is killed some rounds later than the previous hub, while it computes, copies or writes.
        // The last hub is not killed.
        let last_words = AtomicU32::new(0);
        let ended = on_threads(training.workers, |rank| {
            let done = |round| {
                let begun = last_words.fetch_add(1, Ordering::Relaxed) + 1;
                if rank == 0 && lives <= 12 && begun > lives * 2 && round < 70 {
                    hub_tests::program::kill(killer, Signal::KILL);
                }
            };
            train(&training, &address, rank, training.rounds, done)
        });
        if let Ok(weights) = ended.into_iter().collect::<Result<Vec<_>, _>>() {
            break weights;
        }
    };
    assert!(lives > 3, "it was killed {} times", lives - 1);
    let expected = training.reference_after(training.rounds);
    for weights in last {
        for (key, (seen, expected)) in weights.iter().zip(&expected).enumerate() {
            same_bits(format!("key {key} after {lives} lives"), seen, expected);
        }
    }
}

#[test]
fn a_checkpoint_is_written_on_request_at_the_end_and_at_a_clean_stop() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let first = hub(dir.path());
    let mut sessions = ready_all(2, |rank| config(&first, "job", rank, 2));
    for session in &mut sessions {
        session.keys().for_each(|key| session.gradient_mut(key).unwrap().fill(0.0));
        session.push(KeyId(0)).unwrap();
    }
    sessions.iter_mut().for_each(|session| session.wait(KeyId(0)).unwrap());
    sessions.iter_mut().for_each(|session| session.push(KeyId(1)).unwrap());
    let asked = std::thread::scope(|scope| {
        let address = format!("http://{}/v1/jobs/job/checkpoint", first.address());
        let asked = scope.spawn(move || {
            let mut answer =
                ureq::post(address).header("authorization", authorization()).send_empty().unwrap();
            answer.body_mut().read_json::<CheckpointReply>().unwrap()
        });
        sessions.iter_mut().for_each(|session| session.push(KeyId(2)).unwrap());
        sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
        asked.join().unwrap()
    });
    assert_eq!(asked.round, Round(2), "the round that key 0 was in");
    let file = dir.path().join("job.safetensors");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), asked.bytes);
    let seen = describe(&first.address().to_string()).jobs.remove(0).checkpoint;
    assert_eq!(seen.as_ref(), Some(&asked));
    drop(sessions);
    drop(first);

    let second = hub(dir.path());
    let mut sessions = join_all(2, |rank| config(&second, "job", rank, 2));
    all_push_rounds(&mut sessions, 3, Round(2), 1.0);
    assert_eq!(sessions[0].checkpoint().unwrap().round, Round(5));
    all_push_rounds(&mut sessions, 2, Round(5), -0.5);
    sessions.into_iter().for_each(|session| session.leave().unwrap());

    // The end of the job writes a checkpoint. A stop of the hub between two rounds writes a checkpoint, too.
    let mut sessions = join_all(2, |rank| config(&second, "job", rank, 2));
    all_push_rounds(&mut sessions, 1, Round(7), -1.5);
    second.stop("it is Friday");
    drop(sessions);
    let third = hub(dir.path());
    let mut sessions = join_all(2, |rank| config(&third, "job", rank, 2));
    all_push_rounds(&mut sessions, 1, Round(8), -2.0);
}

/// Makes some rounds with all sessions. Asserts that they begin in round `first` with these weights.
#[track_caller]
pub(super) fn all_push_rounds(sessions: &mut [Session], count: u32, first: Round, weights: f32) {
    for session in sessions.iter() {
        assert_eq!(session.next_round(), first);
        weights_are(session, weights);
    }
    std::thread::scope(|scope| {
        sessions.iter_mut().for_each(|session| {
            scope.spawn(|| rounds(session, count).unwrap());
        });
    });
}

/// The job continues with other workers, other cores and another learning rate, and with workers that join
/// and leave.
#[test]
fn a_job_goes_on_in_another_shape() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let first = hub_every(dir.path(), Some(2));
    let mut sessions = ready_all(3, |rank| {
        let mut config = config(&first, "job", rank, 3);
        config.terms.on_loss = OnLoss::Continue;
        config
    });
    drop(sessions.pop());
    all_push_rounds(&mut sessions, 2, Round(1), 1.0);
    sessions[0].set_learning_rate(0.25).unwrap();
    all_push_rounds(&mut sessions, 1, Round(3), 0.0);
    sessions.into_iter().for_each(|session| session.leave().unwrap());
    drop(first);

    let second = hub(dir.path());
    let mut alone = config(&second, "job", 0, 1);
    (alone.terms.chunk_bytes, alone.terms.cores) = (128, Some(1));
    let mut session = Session::join(alone).unwrap();
    all_push_rounds(std::slice::from_mut(&mut session), 2, Round(4), -0.25);
    weights_are(&session, -0.75);
    session.leave().unwrap();
}

#[test]
fn a_checkpoint_that_does_not_fit_is_refused_and_stays() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(dir.path());
    let mut session = ready_all(1, |rank| config(&hub, "job", rank, 1)).remove(0);
    rounds(&mut session, 1).unwrap();
    session.leave().unwrap();
    let file = dir.path().join("job.safetensors");
    let whole = std::fs::read(&file).unwrap();

    let mut other = config(&hub, "job", 0, 1);
    other.terms.keys[1] = Key::f32("second.bias", [2]);
    says(refused(other), &["\"job\"", "job.safetensors", "second.bias"]);
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    says(refused(config(&hub, "job", 0, 1)), &["\"job\"", "job.safetensors"]);
    let mut altered = whole.clone();
    *altered.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &altered).unwrap();
    says(refused(config(&hub, "job", 0, 1)), &["\"job\"", "job.safetensors", "digest"]);
    assert_eq!(std::fs::read(&file).unwrap(), altered, "nobody has replaced it");
    // Other jobs are not affected. The job runs again once its file is repaired.
    ready_all(1, |rank| config(&hub, "another", rank, 1)).remove(0).leave().unwrap();
    std::fs::write(&file, &whole).unwrap();
    assert_eq!(Session::join(config(&hub, "job", 0, 1)).unwrap().next_round(), Round(2));
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_told_and_the_job_goes_on() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hub = hub_every(dir.path(), Some(2));
    let address = hub.address().to_string();
    let mut session = ready_all(1, |rank| config(&hub, "job", rank, 1)).remove(0);
    std::fs::remove_dir_all(dir.path()).unwrap();
    for _ in 0..3 {
        rounds(&mut session, 2).unwrap();
        let (status, error) = refusal(&hub, "/v1/jobs/job/checkpoint", "");
        assert_eq!(status, 507);
        says(&error, &["\"job\"", dir.path().to_str().unwrap()]);
    }
    let job = describe(&address).jobs.remove(0);
    assert_eq!(job.state, JobState::Running);
    says(job.checkpoint_error.unwrap(), &[dir.path().to_str().unwrap()]);
    // The checkpoint can still be written.
    std::fs::create_dir(dir.path()).unwrap();
    assert_eq!(session.checkpoint().unwrap().round, session.next_round());
    session.leave().unwrap();
}

/// Each worker that leaves learns that the last attempt failed, and not only the last worker: perhaps nobody
/// reads the last worker's result.
#[test]
fn all_who_leave_hear_that_the_last_attempt_failed() {
    let _watchdog = Watchdog::start();
    let parent = tempfile::tempdir().unwrap();
    let (dir, away) = (parent.path().join("here"), parent.path().join("away"));
    let hub = hub(&dir);
    let mut sessions = ready_all(3, |rank| config(&hub, "job", rank, 3));
    let mut leaves = || sessions.pop().unwrap().leave();
    leaves().unwrap();
    std::fs::rename(&dir, &away).unwrap();
    refusal(&hub, "/v1/jobs/job/checkpoint", "");
    says(leaves().unwrap_err(), &["the last checkpoint failed", "tries again", dir.to_str().unwrap()]);
    says(leaves().unwrap_err(), &[dir.to_str().unwrap()]);
}

/// The client hangs up while the hub writes. Only the reply is lost.
#[test]
fn a_client_that_hangs_up_leaves_the_next_checkpoint_possible() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(dir.path());
    let mut session = ready_all(1, |rank| {
        let mut config = config(&hub, "job", rank, 1);
        (config.terms.keys, config.terms.chunk_bytes) = (vec![Key::f32("large", [8 << 20])], 1 << 20);
        config
    })
    .remove(0);
    let being_written = || {
        let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.into_iter().any(|name| name.to_str().unwrap().ends_with(".phub-tmp"))
    };
    let mut client = TcpStream::connect(hub.address()).unwrap();
    let head = format!("host: hub\r\nauthorization: {}\r\n", authorization());
    write!(client, "POST /v1/jobs/job/checkpoint HTTP/1.1\r\n{head}\r\n").unwrap();
    until("a checkpoint is being written", being_written);
    drop(client);
    until("it is written", || !being_written());
    let written = || describe(&hub.address().to_string()).jobs.remove(0).checkpoint;
    until("the hub knows of it", || written().is_some());
    assert_eq!(session.checkpoint().unwrap().round, Round(1));
    session.leave().unwrap();
}

#[test]
fn a_hub_without_a_directory_says_so() {
    let _watchdog = Watchdog::start();
    let hub = hub_tests::hub(1);
    let (status, error) = refusal(&hub, "/v1/jobs/job/checkpoint", json!({}).to_string());
    assert_eq!(status, 409);
    says(error, &["--checkpoints"]);
    let dir = tempfile::tempdir().unwrap();
    let hub = self::hub(dir.path());
    let (status, error) = refusal(&hub, "/v1/jobs/job/checkpoint", "");
    assert_eq!(status, 404);
    says(error, &["no job \"job\""]);
    let mut sessions = join_all(1, |rank| config(&hub, "job", rank, 1));
    says(sessions[0].checkpoint().unwrap_err(), &["no weights yet"]);
    let mut settings = settings(1, PATIENT_S);
    settings.checkpoints = Some(dir.path().to_owned());
    says(Hub::start(&settings).unwrap_err(), &[dir.path().to_str().unwrap(), "another hub"]);
}
