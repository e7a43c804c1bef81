//! A hub ends and is started again while its weights are pulled in batches of layers. The planner begins
//! again, and no batch waits for a key that is not pushed again.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::returning::{Stops, WORKERS, after, begun, end_together, start_process, waiting, weights, write};
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{free_address, on_threads, small_model};
use pbox_core::{KeyId, Schedule};
use rustix::process::Signal;
use worker_shim::batch::Batching;
use worker_shim::{Background, Pull, Returns, Session, SessionConfig};

/// Returns a worker that pulls in batches. The batches change with the profile.
fn pulling(address: SocketAddr, rank: u32, batching: Batching) -> SessionConfig {
    let transport = [Transport::Shm, Transport::Tcp][rank as usize % 2];
    let config = SessionConfig {
        pull: Some(Pull::new(batching)),
        transport: Some(transport),
        ..waiting(address, rank)
    };
    config.with_terms(|terms| terms.level.schedule = Schedule::KvStore)
}

/// Makes a step like a training loop: it pushes the last layer's gradient first, and waits for the first
/// layer's weights first.
fn step(session: &mut Session, rank: u32, number: u32) {
    let keys: Vec<KeyId> = session.keys().collect();
    for &key in &keys {
        session.wait(key).unwrap();
    }
    write(session, rank, number);
    keys.iter().rev().for_each(|&key| session.push(key).unwrap());
}

#[test]
fn a_hub_that_stops_loses_nothing_of_batches() {
    const STEPS: u32 = 60;
    const STOPS: u32 = 3;
    let _watchdog = Watchdog::start();
    let expected = after(STEPS);
    for batching in [Batching::Layer, Batching::Optimum, Batching::All] {
        let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
        let mut hub = start_process(address, dir.path(), 1000);
        hub.read_reply();
        let (stops, ended) = (Stops::every(WORKERS, STEPS / (STOPS + 1)), AtomicU32::new(0));
        let seen = std::thread::scope(|scope| {
            scope.spawn(|| {
                stops.make(STOPS, |_| {
                    hub.finish();
                    hub = start_process(address, dir.path(), 1000);
                    hub.read_reply();
                });
            });
            on_threads(WORKERS, |rank| {
                let mut session = begun(pulling(address, rank, batching));
                for number in 0..STEPS {
                    stops.before(&mut session, number);
                    step(&mut session, rank, number);
                }
                end_together(&mut session, &ended, WORKERS);
                assert_eq!(session.returns(), Returns { times: STOPS, lost_rounds: 0 }, "{batching}");
                weights(&session)
            })
        });
        assert!(seen[0] == expected && seen[1] == expected, "{batching}");
    }
}

#[test]
fn a_hub_may_be_killed_at_any_moment_of_a_batch() {
    const STEPS: u32 = 240;
    const KILLS: u32 = 5;
    let _watchdog = Watchdog::start();
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let mut hub = start_process(address, dir.path(), 10);
    hub.read_reply();
    let (stops, ended) = (Stops::every(WORKERS, STEPS / (KILLS + 1)), AtomicU32::new(0));
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            until("a checkpoint is there", || dir.path().join("job.safetensors").exists());
            stops.kill(KILLS, |_| {
                hub.signal(Signal::KILL);
                hub.end();
                hub = start_process(address, dir.path(), 10);
                hub.read_reply();
            });
        });
        on_threads(WORKERS, |rank| {
            let mut session = begun(pulling(address, rank, Batching::Optimum));
            for number in 0..STEPS {
                stops.before(&mut session, number);
                step(&mut session, rank, number);
                std::thread::sleep(Duration::from_millis(u64::from(rank + number) % 3));
            }
            end_together(&mut session, &ended, WORKERS);
            (weights(&session), session.returns().lost_rounds, session.next_round())
        })
    });
    assert_eq!(seen[0], seen[1]);
    let (_, lost, round) = seen[0]; // a worker may see two ends of a hub as one
    assert_eq!(u64::from(round.0) + lost, u64::from(STEPS) + 1, "{lost} are lost");
}

/// The session's thread drives the batches, and its callers wait.
#[test]
fn a_session_on_its_own_thread_pulls_in_batches_after_a_return() {
    let _watchdog = Watchdog::start();
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let mut hub = start_process(address, dir.path(), 1000);
    hub.read_reply();
    let sessions = on_threads(WORKERS, |rank| {
        let session = Background::join(pulling(address, rank, Batching::Layer), &mut || false).unwrap();
        session.broadcast_written(&mut || false).unwrap();
        session
    });
    let keys = small_model().len() as u32;
    let round = || {
        on_threads(WORKERS, |rank| {
            let session = &sessions[rank as usize];
            for key in (0..keys).rev().map(KeyId) {
                session.push(key).unwrap();
            }
            (0..keys).for_each(|key| session.wait(KeyId(key), &mut || false).unwrap());
        })
    };
    round();
    hub.finish();
    let _hub = start_process(address, dir.path(), 1000);
    round();
    round();
    let returns = sessions[0].with(|session| session.returns(), &mut || false).unwrap();
    assert_eq!(returns, Returns { times: 1, lost_rounds: 0 });
}
