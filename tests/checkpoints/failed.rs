//! The last state of a failed job: no training is lost. `tests/sim/lives` has several hubs, and workers that step alone.

use std::path::Path;

use super::checkpoint::{hub_every, rounds};
use crate::processes::hub::start_hub;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{PATIENT_S, addresses, config_at, describe, hub_below, ready_all, says, settings};
use pbox_core::{Optimizer, Round};
use phub_server::Hub;
use rustix::process::Signal;
use worker_shim::{Session, SessionConfig};

/// Returns a hub with checkpoints that names late workers soon.
pub(super) fn impatient(dir: &Path) -> Hub {
    let mut settings = settings(2, PATIENT_S);
    (settings.checkpoints, settings.late_warning_s) = (Some(dir.to_owned()), 1);
    Hub::start(&settings).unwrap()
}

/// Loses worker 1. Before that, two workers finish three rounds and the first key of the fourth, with gradients
/// of one. Worker 0 then pushes gradients of three for the other keys. When all these pushes have arrived at
/// the hub, worker 1 is lost.
fn lose_one(hub: &Hub, mut sessions: Vec<Session>) {
    std::thread::scope(|scope| {
        sessions.iter_mut().for_each(|session| drop(scope.spawn(|| rounds(session, 3).unwrap())));
    });
    let keys: Vec<_> = sessions[0].keys().collect();
    for session in &mut sessions {
        for &key in &keys {
            session.gradient_mut(key).unwrap().fill(1.0);
        }
        session.push(keys[0]).unwrap();
    }
    sessions.iter_mut().for_each(|session| session.wait(keys[0]).unwrap());
    let lost = sessions.remove(1);
    let mut left = sessions.remove(0);
    for &key in &keys[1..] {
        left.gradient_mut(key).unwrap().fill(3.0);
        left.push(key).unwrap();
    }
    let chunks: u32 = keys[1..].iter().map(|&key| left.layout().key_chunks(key).len() as u32).sum();
    until("the pushes are there, and wait for worker 1", || {
        let late = describe(&hub.address().to_string()).jobs.into_iter().flat_map(|job| job.held_up_by);
        late.map(|late| late.chunks).sum::<u32>() == chunks
    });
    drop(lost);
    says(left.wait_all().unwrap_err(), &["worker 1"]);
}

fn file_of(dir: &Path, end: &str) -> Option<String> {
    let names =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(end)).max()
}

/// Asserts that the failed job continues with the weight `weights.0` for the first key, and `weights.1` for
/// the other keys.
fn goes_on(config: impl Fn(u32) -> SessionConfig + Sync, weights: (f32, f32)) {
    let sessions = ready_all(2, config);
    assert_eq!(sessions[0].next_round(), Round(5));
    let keys: Vec<_> = sessions[0].keys().collect();
    for session in &sessions {
        for &key in &keys {
            let expected = if key == keys[0] { weights.0 } else { weights.1 };
            let seen = session.weights::<f32>(key).unwrap();
            assert!(seen.iter().all(|&weight| weight == expected), "{key:?}: {seen:?}, expected {expected}");
        }
    }
}

#[test]
fn a_compressed_job_is_saved_when_it_fails() {
    let _watchdog = Watchdog::start();
    let rate = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
    for codec in ["bf16", "slim:1:1:100"] {
        let dir = tempfile::tempdir().unwrap();
        let hub = impatient(dir.path());
        let config = |rank| {
            let mut config = config_at(&hub.address().to_string(), "job", rank, 2);
            (config.terms.level.compression, config.terms.optimizer) = (Some(codec.parse().unwrap()), rate);
            config
        };
        lose_one(&hub, ready_all(2, config));
        until("the failed job is saved", || file_of(dir.path(), "job.safetensors").is_some());
        goes_on(config, (1.0 - 4.0, 1.0 - 3.0 - 3.0));
    }
}

#[test]
fn a_part_that_one_hub_cannot_save_is_no_generation() {
    let _watchdog = Watchdog::start();
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let start = |dir: &tempfile::TempDir| start_hub(&[("PHUB_CHECKPOINTS", dir.path().to_str().unwrap())]);
    let (lead, other) = (start(&dirs[0]), start(&dirs[1]));
    let list = format!("{},{}", lead.1, other.1);
    let mut session = ready_all(1, |rank| config_at(&list, "job", rank, 1)).remove(0);
    rounds(&mut session, 1).unwrap();
    session.checkpoint().unwrap();
    rounds(&mut session, 3).unwrap();
    other.0.signal(Signal::KILL);
    session.keys().for_each(|key| session.push(key).unwrap_or_default());
    session.wait_all().unwrap_err();
    drop(session);
    until("hub 0 says that it saves nothing", || {
        let job = describe(&lead.1).jobs.remove(0);
        job.checkpoint_error.is_some_and(|why| why.contains("hub 1 of the job, at"))
    });
    assert_eq!(file_of(dirs[0].path(), ".safetensors").unwrap(), "job@2.hub0of2.safetensors");
    let again = start(&dirs[1]);
    let list = format!("{},{}", lead.1, again.1);
    let session = Session::join(config_at(&list, "job", 0, 1)).unwrap();
    assert_eq!(session.next_round(), Round(2));
}

#[test]
fn the_hubs_above_save_what_machines_have_trained() {
    let _watchdog = Watchdog::start();
    for tops in [1, 2] {
        let dirs: Vec<_> = (0..tops).map(|_| tempfile::tempdir().unwrap()).collect();
        let top: Vec<Hub> = dirs.iter().map(|dir| hub_every(dir.path(), None)).collect();
        let list = addresses(&top);
        let below: Vec<Hub> = (0..2).map(|machine| hub_below(&list, machine, 2)).collect();
        let config = |machine: u32| config_at(&below[machine as usize].address().to_string(), "job", 0, 1);
        let mut sessions = ready_all(2, config);
        std::thread::scope(|scope| {
            sessions.iter_mut().for_each(|session| drop(scope.spawn(|| rounds(session, 3).unwrap())));
        });
        let mut left = sessions.remove(0);
        left.keys().for_each(|key| left.push(key).unwrap());
        drop(sessions);
        says(left.wait_all().unwrap_err(), &["machine 1"]);
        drop(left);
        for dir in &dirs {
            until("the hubs above save the failed job", || file_of(dir.path(), ".safetensors").is_some());
        }
        let sessions = ready_all(2, config);
        // The sum of machine 0 may have reached the hubs above, or not.
        assert!([Round(4), Round(5)].contains(&sessions[0].next_round()));
        let weight = sessions[0].weights::<f32>(pbox_core::KeyId(1)).unwrap()[0];
        assert_eq!(weight, 1.0 - (sessions[0].next_round().0 - 1) as f32 * 0.5);
    }
}
