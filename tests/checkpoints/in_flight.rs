//! Checkpoints that a worker asks for while its keys are in flight. The hub waits for the end of the round, so the worker
//! must first send the keys.

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::{config, push_all, ready_all};
use pbox_core::{Credit, KeyId, Round, Schedule};
use phub_server::Hub;
use worker_shim::{Background, SessionConfig};

use super::checkpoint::hub_every;

fn patient() -> bool {
    false
}

/// Returns settings with which a push waits for the answer to the previous push.
fn one_after_the_other(hub: &Hub, job: &str) -> SessionConfig {
    let mut config = config(hub, job, 0, 1);
    config.transport = Some(Transport::Tcp);
    (config.terms.level.schedule, config.terms.level.credit) = (Schedule::P3, Some(Credit::Bytes(1)));
    config
}

/// Formerly the hub refused the checkpoint after 30 s.
#[test]
fn keys_in_flight_are_sent_before_a_checkpoint() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hub = hub_every(dir.path(), None);
    let mut session = ready_all(1, |_| one_after_the_other(&hub, "session")).remove(0);
    for round in 2..5 {
        push_all(&mut session).unwrap();
        assert_eq!(session.checkpoint().unwrap().round, Round(round));
    }
    session.leave().unwrap();

    let background = Background::join(one_after_the_other(&hub, "background"), &mut patient).unwrap();
    background.broadcast_written(&mut patient).unwrap();
    for round in 2..5 {
        (0..background.keys().len() as u32).for_each(|key| background.push(KeyId(key)).unwrap());
        assert_eq!(background.checkpoint(&mut patient).unwrap().round, Round(round));
    }
    background.leave(&mut patient).unwrap();
}
