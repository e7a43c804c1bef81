//! Attacks on jobs of hubs below hubs, and of a mesh.

use std::time::Duration;

use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::relay::{RelayPath, Stall};
use hub_tests::{config_at, describe, on_threads, push_all, says};
use pbox_core::control::{JobState, Mesh};
use phub_server::Machine;
use rustix::process::Signal;
use worker_shim::{Session, SessionConfig, SessionError};

use super::{Behind, LIMIT_S, beside};

/// Returns a session on each machine, with weights of 1.
fn ready(config: impl Fn(u32) -> SessionConfig + Sync) -> Vec<Session> {
    on_threads(2, |machine| {
        let mut session = Session::join(config(machine)).unwrap_or_else(|error| panic!("{machine}: {error}"));
        session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap();
        session
    })
}

/// Lets each session make `count` rounds with gradients of one while `what` runs. A round takes 0.5 from each
/// weight, and the bits are compared after each round.
fn rounds_while(sessions: &mut [Session], count: u32, what: impl FnOnce()) -> Vec<Result<(), SessionError>> {
    let rounds = |session: &mut Session| {
        for _ in 0..count {
            let round = session.next_round().0;
            session
                .keys()
                .try_for_each(|key| session.gradient_mut(key).map(|gradient| gradient.fill(1.0)))?;
            push_all(session)?;
            session.wait_all()?;
            for key in session.keys() {
                let weights = session.weights::<f32>(key)?;
                assert!(
                    weights.iter().all(|&weight| weight == 1.0 - 0.5 * round as f32),
                    "{round}: {weights:?}"
                );
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            sessions.iter_mut().map(|session| scope.spawn(move || rounds(session))).collect();
        what();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns a hub at the top, and two hubs below, which reach the top hub through its network.
fn tree(variables: &[(&str, &str)]) -> (Behind, [Behind; 2]) {
    let top = Behind::start(variables);
    let above = top.relay.address();
    let below =
        ["0/2", "1/2"].map(|machine| Behind::start(&[("PHUB_ABOVE", &above), ("PHUB_MACHINE", machine)]));
    (top, below)
}

#[test]
fn a_partition_between_two_levels_heals() {
    let _watchdog = Watchdog::start();
    let (top, below) = tree(&[("PHUB_TRANSPORTS", "tcp")]);
    beside(&[&top.address()], || {
        let mut sessions = ready(|machine| config_at(&below[machine as usize].address(), "job", 0, 1));
        for stall in [Stall { up: true, down: false }, Stall { up: false, down: true }, Stall::BOTH] {
            top.relay.stall(RelayPath::Data, stall);
            let ended = rounds_while(&mut sessions, 3, || {
                std::thread::sleep(Duration::from_secs(LIMIT_S + 1));
                top.relay.stall(RelayPath::Data, Stall::NONE);
            });
            ended.into_iter().for_each(|ended| ended.unwrap_or_else(|error| panic!("{stall:?}: {error}")));
        }
        sessions.into_iter().for_each(|session| session.leave().unwrap());
    });
}

#[test]
fn a_hub_below_that_stands_still_is_named_on_the_other_machine() {
    let _watchdog = Watchdog::start();
    let (top, below) = tree(&[]);
    // Only the top hub runs innocent jobs, because a job through a hub below needs both machines.
    beside(&[&top.address()], || {
        let mut sessions = ready(|machine| config_at(&below[machine as usize].address(), "job", 0, 1));
        let ended = rounds_while(&mut sessions, u32::MAX, || {
            below[1].process.stop();
            until("the hub above has given the job up", || {
                let mut jobs = describe(&top.address()).jobs.into_iter();
                jobs.any(|job| job.name == "job.above" && matches!(job.state, JobState::Failed { .. }))
            });
            below[1].process.signal(Signal::CONT);
        });
        let told: Vec<_> = ended.into_iter().map(Result::unwrap_err).collect();
        says(&told[0], &["\"job\" failed", "machine 1", "silent"]);
        says(&told[1], &["\"job\""]);
        drop(sessions);
        // The machine can be used again.
        ready(|machine| config_at(&below[machine as usize].address(), "after", 0, 1))
            .into_iter()
            .for_each(|session| session.leave().unwrap());
    });
}

#[test]
fn a_machine_of_a_mesh_comes_back_with_another_hub() {
    let _watchdog = Watchdog::start();
    let first = Behind::start(&[]);
    let mut second = Behind::start(&[]);
    beside(&[&first.address()], || {
        for _ in 0..2 {
            let hubs = [first.address(), second.address()];
            let mut sessions = ready(|machine| {
                let mut config = config_at(&hubs[machine as usize], "job", 0, 1);
                config.mesh =
                    Some(Mesh { machine: Machine { number: machine, of: 2 }, meet: hubs[0].clone() });
                config
            });
            let ended = rounds_while(&mut sessions, u32::MAX, || {
                second.process.signal(Signal::KILL);
                second.start_again(&[]);
            });
            for error in ended.into_iter().map(Result::unwrap_err) {
                says(error, &["\"job\""]);
            }
        }
    });
}
