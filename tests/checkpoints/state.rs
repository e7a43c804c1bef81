//! A job's state over the control port: taken from some hubs and brought to others. The job continues with
//! the bits of a job that was never interrupted. A state that does not fit the job is refused.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::checkpoint::rounds;
use fabric::conformance::Watchdog;
use hub_tests::state::{fetch, fetch_all};
use hub_tests::training::Training;
use hub_tests::values::Saved;
use hub_tests::values::{self, same_bits};
use hub_tests::{
    PATIENT_S, SGD, addresses, authorization, bring, config, config_at, describe, hub, join_by_hand,
    join_request, on_threads, post_as_member, ready_all, refusal, refused, says, settings, small_model,
};
use pbox_core::control::{ErrorReply, JobReply, JobState, OfferReply};
use pbox_core::{Consistency, Dtype, Key, KeyId, Optimizer, Round};
use phub_server::{Hub, HubSettings};
use serde_json::json;
use worker_shim::{Session, SessionConfig, State};

const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-3, momentum: 0.9 };
const ADAM: Optimizer =
    Optimizer::Adam { learning_rate: 0.1, weight_decay: 1e-3, beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };

const PATIENT: Duration = Duration::from_secs(PATIENT_S);

/// Returns a job's state, put together from its parts at these hubs.
pub(crate) fn gather<S: AsRef<str>>(hubs: &[S], job: &str, keys: &[Key], optimizer: &Optimizer) -> Saved {
    fetch_all(hubs, job, keys, &(*optimizer).into(), PATIENT).unwrap()
}

pub(crate) fn ones(before: u32, values: usize) -> State {
    let bytes: Vec<u8> = std::iter::repeat_n(1f32.to_le_bytes(), values).flatten().collect();
    State { before: Round(before), steps: None, values: Box::new(std::io::Cursor::new(bytes)) }
}

/// Makes rounds until the session's next round is `last`.
pub(super) fn train_to(training: &Training, session: &mut Session, rank: u32, last: u32) {
    for round in session.next_round().0..=last {
        for key in session.keys() {
            // Round 0 is the broadcast, which is not a step. So the reference, which counts steps, is at
            // `round - 1`.
            training.write(session, key, |gradient| {
                values::fill_gradient(training.seed, rank, round - 1, key, gradient);
            });
            session.push(key).unwrap();
        }
        session.wait_all().unwrap();
    }
}

fn goes_on_elsewhere(optimizer: Optimizer, from: usize, to: usize) {
    let mut keys = vec![Key::f32("a", [3000]), Key::f32("b", [1]), Key::f32("c", [70, 90])];
    // The state has the master weights of these keys, which are finer than the workers' weights.
    (keys[1].dtype, keys[2].dtype) = (Dtype::F16, Dtype::BF16);
    let mut training = Training::new("job", keys, optimizer);
    (training.chunk_bytes, training.ema) = (1024, Some(0.9));
    let first: Vec<_> = (0..from).map(|_| hub(2)).collect();
    let address = addresses(&first);
    let states = on_threads(training.workers, |rank| {
        let mut session = Session::join(training.config(&address, rank)).unwrap();
        training.broadcast(&mut session, rank).unwrap();
        train_to(&training, &mut session, rank, 4);
        // Meanwhile the other workers begin the next round, which does not end without this worker.
        let hubs: Vec<&str> = address.split(',').collect();
        let fetched = || fetch_all(&hubs, "job", &training.keys, &training.tensors(), PATIENT).unwrap();
        let state = (rank == 0).then(fetched);
        train_to(&training, &mut session, rank, 5);
        session.leave().unwrap();
        state
    });
    first.into_iter().for_each(|hub| assert!(hub.stop("the test goes on elsewhere").is_empty()));
    let second: Vec<_> = (0..to).map(|_| hub(1)).collect();
    let address = addresses(&second);
    let state = states.into_iter().flatten().next().unwrap();
    let seen = on_threads(training.workers, |rank| {
        let config = training.config(&address, rank);
        let joined = match rank {
            0 => Session::join_with(config, state.state()),
            _ => Session::join(config),
        };
        let mut session = joined.unwrap();
        assert_eq!(session.next_round(), Round(5));
        training.broadcast(&mut session, rank).unwrap(); // has no effect
        train_to(&training, &mut session, rank, 9);
        let weights: Vec<_> = session.keys().map(|key| training.read(&session, key)).collect();
        if rank == 0 {
            training.check_averages(&address, 9);
        }
        session.leave().unwrap();
        weights
    });
    for weights in seen {
        for (key, (seen, expected)) in weights.iter().zip(training.reference_after(9)).enumerate() {
            same_bits(format!("key {key}"), seen, &expected);
        }
    }
}

#[test]
fn a_state_goes_on_at_another_hub_with_the_bits_of_a_job_that_was_not_interrupted() {
    let _watchdog = Watchdog::start();
    goes_on_elsewhere(NESTEROV, 1, 1);
    goes_on_elsewhere(ADAM, 1, 1);
}

#[test]
fn a_state_is_dealt_to_several_hubs_and_comes_from_several() {
    let _watchdog = Watchdog::start();
    goes_on_elsewhere(NESTEROV, 1, 2);
    goes_on_elsewhere(ADAM, 2, 3);
    goes_on_elsewhere(NESTEROV, 3, 1);
    // A hub that owns no chunk begins the job with the other hubs.
    let hubs = [hub(1), hub(1)];
    let keys = vec![Key::f32("only", [4])];
    let mut config = config_at(&addresses(&hubs), "job", 0, 1);
    config.terms.keys = keys.clone();
    let session = Session::join_with(config, ones(7, 4)).unwrap();
    assert_eq!(session.next_round(), Round(7));
    assert_eq!(session.weights::<f32>(KeyId(0)).unwrap(), [1.0; 4]);
    let hubs = hubs.each_ref().map(|hub| hub.address().to_string());
    assert_eq!(hubs.iter().filter(|hub| fetch(hub, "job", PATIENT).unwrap().is_empty()).count(), 1);
    let state = gather(&hubs, "job", &keys, &SGD);
    assert_eq!((state.before, state.values), (Round(7), 1f32.to_le_bytes().repeat(4)));
    session.leave().unwrap();
}

/// Hub 0 requests snapshots from both hubs for checkpoints, and clients request a snapshot from each hub
/// separately.
#[test]
fn states_and_checkpoints_of_several_hubs_do_not_wait_for_each_other() {
    let _watchdog = Watchdog::start();
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let with_checkpoints = |dir: &tempfile::TempDir| {
        let settings = HubSettings { checkpoints: Some(dir.path().to_owned()), ..settings(2, PATIENT_S) };
        phub_server::Hub::start(&settings).unwrap()
    };
    let hubs = dirs.each_ref().map(with_checkpoints);
    let addresses = addresses(&hubs);
    let mut session = ready_all(1, |rank| config_at(&addresses, "job", rank, 1)).remove(0);
    let each: Vec<&str> = addresses.split(',').collect();
    let (done, mut refused) = (AtomicBool::new(false), Vec::new());
    std::thread::scope(|scope| {
        for hub in &each {
            let done = &done;
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    assert!(!fetch(hub, "job", PATIENT).unwrap().is_empty());
                }
            });
        }
        for _ in 0..30 {
            rounds(&mut session, 1).unwrap();
            // After three refusals, the worker requests no more checkpoints: a hub that misses more rounds
            // than the other hubs keep for it cannot catch up.
            if refused.len() < 3 {
                refused.extend(session.checkpoint().err().map(|error| error.to_string()));
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    refused.iter().for_each(|why| says(why, &["the previous checkpoint is not written yet"]));
    for round in 32..40 {
        rounds(&mut session, 1).unwrap();
        // A client that has received a whole state does not hinder the hubs.
        assert_eq!(gather(&each, "job", &small_model(), &SGD).before, Round(round));
        assert_eq!(session.checkpoint().unwrap().round, Round(round));
    }
}

#[test]
fn a_state_of_another_length_is_refused_by_several_hubs() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(1)];
    let values = elements();
    for (values, why) in [(values - 1, "bytes too early"), (values + 1, "too long")] {
        let config = config_at(&addresses(&hubs), &format!("job.{values}"), 0, 1);
        says(Session::join_with(config, ones(7, values)).map(drop).unwrap_err(), &["state", why]);
    }
}

/// Offers a state by plain HTTP. Returns the number of bytes that the hub wants, or the status and the error.
pub(crate) fn offer(
    hub: &phub_server::Hub,
    job: &str,
    token: &str,
    before: u32,
) -> Result<Option<u64>, String> {
    let request = json!({"state_before": before}).to_string();
    let (status, body) = post_as_member(hub, job, "offer", token, request);
    match status {
        200 => Ok(serde_json::from_str::<OfferReply>(&body).unwrap().state_bytes),
        _ => Err(format!("{status}: {}", serde_json::from_str::<ErrorReply>(&body).unwrap().error)),
    }
}

pub(crate) fn elements() -> usize {
    small_model().iter().map(|key| key.elements().unwrap() as usize).sum()
}

/// Returns a worker of a job with SGD and one key of four elements.
fn small(hub: &phub_server::Hub, rank: u32, workers: u32) -> SessionConfig {
    config(hub, "job", rank, workers).with_terms(|terms| terms.keys = vec![Key::f32("only", [4])])
}

#[test]
fn workers_that_are_apart_begin_with_a_state_too() {
    let _watchdog = Watchdog::start();
    for consistency in [Consistency::Asp, Consistency::Ssp { staleness: 2 }] {
        let hub = hub(1);
        on_threads(2, |rank| {
            let config = small(&hub, rank, 2).with_terms(|terms| terms.level.consistency = consistency);
            let session = match rank {
                0 => Session::join_with(config, ones(7, 4)).unwrap(),
                _ => Session::join(config).unwrap(),
            };
            assert_eq!(session.next_round(), Round(7));
            assert_eq!(session.weights::<f32>(KeyId(0)).unwrap(), [1.0; 4]);
            session.leave().unwrap();
        });
    }
}

#[test]
fn a_job_that_has_a_state_goes_on_with_its_own() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let mut settings = settings(1, PATIENT_S);
    settings.checkpoints = Some(dir.path().to_owned());
    let hub = phub_server::Hub::start(&settings).unwrap();
    let mut session = ready_all(1, |rank| small(&hub, rank, 1)).remove(0);
    let own = session.weights::<f32>(KeyId(0)).unwrap().to_vec();
    session.checkpoint().unwrap();
    session.leave().unwrap();
    let session = Session::join_with(small(&hub, 0, 1), ones(9, 4)).unwrap();
    assert_eq!(session.next_round(), Round(1));
    assert_eq!(session.weights::<f32>(KeyId(0)).unwrap(), own);
}

#[test]
fn a_job_whose_state_has_another_length_does_not_begin() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    for (values, words) in [(3, "ends 4 bytes too early; expected 16 bytes"), (5, "is too long")] {
        let errors = on_threads(2, |rank| match rank {
            0 => {
                // This worker joins after the other worker. If the job had failed already, this worker
                // would begin another job.
                let failed = |job: &JobReply| matches!(job.state, JobState::Failed { .. });
                while describe(&hub.address().to_string()).jobs.iter().all(failed) {
                    std::thread::yield_now();
                }
                Session::join_with(small(&hub, 0, 2), ones(3, values)).err().unwrap().to_string()
            }
            _ => refused(small(&hub, 1, 2)),
        });
        says(&errors[0], &[words]);
        says(&errors[1], &["worker 0 is gone"]);
    }
}

#[test]
fn a_bad_state_is_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut request = join_request(0, 2);
    let first = join_by_hand(&hub, "job", &request);
    let second = join_by_hand(&hub, "job", &join_request(1, 2));
    let offered = |token: &str, before: u32| offer(&hub, "job", token, before);
    says(offered(&second.token, 3).unwrap_err(), &["400: worker 1 offers a state", "rank 0"]);
    says(
        offered(&first.token, 0).unwrap_err(),
        &["400: the state is before round 0", "expected a round of at least 1"],
    );
    says(offered(&first.token, u32::MAX).unwrap_err(), &["400", "is not a round"]);
    says(offered(&first.token, Round::LIMIT.0).unwrap_err(), &["400", "below 4026531839"]);
    says(offered("none", 3).unwrap_err(), &["404", "no worker"]);
    let bytes = offered(&first.token, 3).unwrap().unwrap() as usize;
    assert_eq!(bytes, 4 * elements());
    says(offered(&first.token, 3).unwrap_err(), &["409", "worker 0 offers a state too late"]);
    let mut average = join_request(0, 2);
    average.terms.optimizer = Optimizer::Average;
    let averages = join_by_hand(&hub, "average", &average);
    says(
        offer(&hub, "average", &averages.token, 3).unwrap_err(),
        &["400: the optimizer average keeps no state"],
    );

    // The sender's token counts only in a header, and never in the address.
    let in_address = format!("/v1/jobs/job/state?token={}", first.token);
    for path in ["/v1/jobs/job/state", &in_address] {
        assert_eq!(refusal(&hub, path, vec![0; bytes]).0, 401);
    }
    let (status, why) = bring(&hub, "job", &second.token, vec![0; bytes]);
    assert_eq!(status, 409);
    says(why, &["expects no state from worker 1"]);
    let (status, why) = bring(&hub, "job", &first.token, vec![0; bytes - 4]);
    assert_eq!(status, 400);
    says(why, &[&format!("{} bytes, expected {bytes}", bytes - 4), "join again"]);
    let (status, why) = bring(&hub, "job", &first.token, vec![0; bytes]);
    assert_eq!(status, 409, "once: {why}");

    request.terms.workers = 1;
    let alone = join_by_hand(&hub, "long", &request);
    offer(&hub, "long", &alone.token, 3).unwrap().unwrap();
    assert_eq!(bring(&hub, "long", &alone.token, vec![0; bytes + 1]).0, 413);
}

/// The numbers of rounds do not wrap around, because the job ends long before the highest number.
#[test]
fn a_job_ends_before_its_rounds_have_no_numbers() {
    let _watchdog = Watchdog::start();
    let hub = Hub::start(&HubSettings { late_warning_s: 1, ..settings(1, PATIENT_S) }).unwrap();
    let values = vec![0; 4 * 4];
    let before = Round(Round::LIMIT.0 - 3);
    let state = State { before, steps: None, values: Box::new(std::io::Cursor::new(values)) };
    let mut session = Session::join_with(small(&hub, 0, 1), state).unwrap();
    assert_eq!(session.next_round(), before);
    let ended = loop {
        let round = session.keys().try_for_each(|key| session.push(key)).and_then(|()| session.wait_all());
        if let Err(error) = round {
            break error;
        }
    };
    says(ended, &["the job has reached round 4026", "before round 4026531839", "save the job's weights"]);
}

#[test]
fn a_state_that_there_is_not_is_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let ask = |job: &str| {
        let url = format!("http://{}/v1/jobs/{job}/state", hub.address());
        let asked = ureq::get(url)
            .header("authorization", authorization())
            .config()
            .http_status_as_error(false)
            .build()
            .call()
            .unwrap();
        let (head, mut body) = asked.into_parts();
        (head.status.as_u16(), body.read_to_string().unwrap())
    };
    let (status, why) = ask("none");
    assert_eq!(status, 404);
    says(why, &["this hub has no job \\\"none\\\""]);
    let session = Session::join(small(&hub, 0, 1)).unwrap();
    let (status, why) = ask("job");
    assert_eq!(status, 409);
    says(why, &["is not there", "no weights yet"]);
    drop(session);
    let reserved = SessionConfig { job: "named".into(), ..small(&hub, 0, 1) }
        .with_terms(|terms| terms.keys = vec![Key::f32("optimizer/a", [4])]);
    let mut session = Session::join(reserved).unwrap();
    session.broadcast_weights(|_, weights: &mut [f32]| weights.fill(1.0)).unwrap();
    let (status, why) = ask("named");
    assert_eq!(status, 409);
    says(why, &["optimizer/a"]);
}

#[test]
fn a_client_that_hangs_up_costs_the_job_nothing() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    // The state is larger than the buffers of sockets, so the hub cannot send all of it before the client is
    // gone.
    let keys = vec![Key::f32("only", [8 << 20])];
    let config = config(&hub, "job", 0, 1).with_terms(|terms| terms.keys = keys);
    let mut session = Session::join(config).unwrap();
    session.broadcast_weights(|_, weights: &mut [f32]| weights.fill(1.0)).unwrap();
    for _ in 0..3 {
        let mut answer = ureq::get(format!("http://{}/v1/jobs/job/state", hub.address()))
            .header("authorization", authorization())
            .call()
            .unwrap();
        let mut beginning = [0; 100];
        answer.body_mut().as_reader().read_exact(&mut beginning).unwrap();
    }
    let file = fetch(&hub.address().to_string(), "job", PATIENT).unwrap();
    assert_eq!(&file[file.len() - 4..], 1f32.to_le_bytes());
    assert!(file.len() > 4 * (8 << 20));
}
