//! Training results are not lost to a slow reader, to NaN, or to a killed worker. Every loss is reported.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use super::checkpoint::{hub_every, rounds};
use super::failed::impatient;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{authorization, config, describe, push_all, ready_all, says};
use pbox_core::control::{CheckpointReply, JobState};
use pbox_core::{Key, Round};
use worker_shim::Session;

/// Returns a client that has asked for a job's state, and reads only the beginning of it.
fn slow_reader(hub: &phub_server::Hub) -> TcpStream {
    let mut client = TcpStream::connect(hub.address()).unwrap();
    let head = format!("host: hub\r\nauthorization: {}\r\n", authorization());
    write!(client, "GET /v1/jobs/job/state HTTP/1.1\r\n{head}\r\n").unwrap();
    let mut beginning = [0; 12];
    client.read_exact(&mut beginning).unwrap();
    assert_eq!(&beginning, b"HTTP/1.1 200");
    client
}

#[test]
fn a_reader_that_is_slow_holds_up_no_checkpoint() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hub = hub_every(dir.path(), Some(2));
    let mut session = ready_all(1, |rank| {
        let mut config = config(&hub, "job", rank, 1);
        // The state is larger than the buffers of sockets.
        (config.terms.keys, config.terms.chunk_bytes) = (vec![Key::f32("large", [8 << 20])], 1 << 20);
        config
    })
    .remove(0);
    let _reader = slow_reader(&hub);
    let described = || describe(&hub.address().to_string()).jobs.remove(0);
    for due in [Round(2), Round(4)] {
        while session.next_round() < due {
            rounds(&mut session, 1).unwrap();
        }
        let written = || described().checkpoint.is_some_and(|CheckpointReply { round, .. }| round == due);
        until("a checkpoint that is due is written beside the reader", written);
    }
    assert_eq!(described().checkpoint_error, None);
    assert_eq!(session.checkpoint().unwrap().round, Round(4));
    session.leave().unwrap();
}

#[test]
fn weights_that_are_nan_replace_no_checkpoint_and_the_last_worker_hears_of_it() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hub = hub_every(dir.path(), None);
    let mut session = ready_all(1, |rank| config(&hub, "job", rank, 1)).remove(0);
    rounds(&mut session, 1).unwrap();
    session.checkpoint().unwrap();
    session.keys().for_each(|key| session.gradient_mut(key).unwrap().fill(f32::NAN));
    push_all(&mut session).unwrap();
    session.wait_all().unwrap();
    says(session.checkpoint().unwrap_err(), &["before round 3", "NaN", "job@not-finite.safetensors"]);
    let told = session.leave().unwrap_err();
    says(told, &["has left", "the last checkpoint", "NaN", "job@not-finite.safetensors"]);
    // The job continues from the last good checkpoint.
    let session = Session::join(config(&hub, "job", 0, 1)).unwrap();
    assert_eq!(session.next_round(), Round(2));
}

#[test]
fn a_checkpoint_that_cannot_be_written_at_the_end_is_told_in_the_leave() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hub = hub_every(dir.path(), None);
    let mut session = ready_all(1, |rank| config(&hub, "job", rank, 1)).remove(0);
    rounds(&mut session, 1).unwrap();
    std::fs::remove_dir_all(dir.path()).unwrap();
    session.checkpoint().unwrap_err();
    std::fs::create_dir(dir.path()).unwrap();
    let address = hub.address().to_string();
    let post = ureq::post(format!("http://{address}/v1/jobs/job/checkpoint"));
    let mut answer = post.header("authorization", authorization()).send_empty().unwrap();
    let reply: CheckpointReply = answer.body_mut().read_json().unwrap();
    says(reply.error_before.unwrap(), &[dir.path().to_str().unwrap()]);
    std::fs::remove_dir_all(dir.path()).unwrap();
    says(session.leave().unwrap_err(), &["has left", dir.path().to_str().unwrap()]);
    assert_eq!(describe(&address).jobs, []);
}

#[test]
fn a_damaged_checkpoint_is_told_where_the_hub_describes_the_job() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hub = hub_every(dir.path(), None);
    let mut session = ready_all(1, |rank| config(&hub, "job", rank, 1)).remove(0);
    for _ in 0..2 {
        rounds(&mut session, 1).unwrap();
        session.checkpoint().unwrap();
    }
    session.leave().unwrap();
    let newest = dir.path().join("job.safetensors");
    let mut bytes = std::fs::read(&newest).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    let session = Session::join(config(&hub, "job", 0, 1)).unwrap();
    assert_eq!(session.next_round(), Round(2));
    let warning = describe(&hub.address().to_string()).jobs.remove(0).checkpoint_warning.unwrap();
    says(warning, &["job@2.safetensors", "job@damaged.safetensors", "digest"]);
}

/// Returns the beginning of a file, which says how its job ended.
fn header(file: &Path) -> String {
    let bytes = std::fs::read(file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    String::from_utf8(bytes[8..8 + length].to_vec()).unwrap()
}

#[test]
fn a_job_that_loses_a_worker_is_saved_with_the_gradients_that_had_come() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hub = impatient(dir.path());
    let two = |rank| config(&hub, "job", rank, 2);
    let mut sessions = ready_all(2, two);
    std::thread::scope(|scope| {
        sessions.iter_mut().for_each(|session| drop(scope.spawn(|| rounds(session, 3).unwrap())));
    });
    // Both workers finish the first key of round 4, and one worker pushes the other keys.
    let keys: Vec<_> = sessions[0].keys().collect();
    for session in &mut sessions {
        for &key in &keys {
            session.gradient_mut(key).unwrap().fill(1.0);
        }
        session.push(keys[0]).unwrap();
    }
    sessions.iter_mut().for_each(|session| session.wait(keys[0]).unwrap());
    let mut lost = sessions.remove(1);
    let mut left = sessions.remove(0);
    for &key in &keys[1..] {
        left.gradient_mut(key).unwrap().fill(3.0);
        left.push(key).unwrap();
    }
    let chunks: u32 = keys[1..].iter().map(|&key| left.layout().key_chunks(key).len() as u32).sum();
    until("the pushes are there, and wait for worker 1", || {
        let jobs = describe(&hub.address().to_string()).jobs;
        jobs.into_iter().flat_map(|job| job.held_up_by).map(|late| late.chunks).sum::<u32>() == chunks
    });
    lost.push(keys[0]).unwrap(); // a key is in flight, so the end of this worker is a loss
    drop(lost);
    says(left.wait_all().unwrap_err(), &["worker 1"]);
    drop(left);
    let file = dir.path().join("job.safetensors");
    until("the failed job is saved", || file.exists());
    says(header(&file), &["\"ended\":\"failed: worker 1", "round 4 was ended with the gradients"]);
    let job = describe(&hub.address().to_string()).jobs.remove(0);
    assert!(matches!(job.state, JobState::Failed { .. }));
    // A new job continues from the saved state. It has all training: the steps with gradients of one, and the
    // pushes of one worker.
    let sessions = ready_all(2, two);
    assert_eq!(sessions[0].next_round(), Round(5));
    assert_eq!(sessions[0].weights::<f32>(keys[0]).unwrap()[0], 1.0 - 4.0 * 0.5);
    for &key in &keys[1..] {
        assert_eq!(sessions[0].weights::<f32>(key).unwrap()[0], 1.0 - 3.0 * 0.5 - 3.0 * 0.5);
    }
}
