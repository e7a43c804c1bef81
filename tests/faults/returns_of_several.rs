//! One of several hubs ends and is started again. The other hubs end their part of the job, and the sessions
//! wait for all hubs.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::returning::{
    Hubs, SEED, Stops, WORKERS, after, begun, end_together, has_a_checkpoint, places, step, waiting, weights,
    write,
};
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::values::fill_gradient;
use hub_tests::{copying_transports, free_address, on_threads, ready_all, says, settings};
use pbox_core::Round;
use phub_server::{Hub, HubSettings};
use worker_shim::{Returns, Session, SessionConfig};

/// Returns a worker of these hubs that waits for lost hubs.
fn config(list: &str, rank: u32) -> SessionConfig {
    let transport = [Transport::Shm, Transport::Tcp][rank as usize % 2];
    SessionConfig { hub: list.to_owned(), transport: Some(transport), ..waiting(NOT_ASKED, rank) }
}

const NOT_ASKED: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

/// All workers make all their steps, and have the same weights at the end.
#[test]
fn one_hub_of_several_may_be_killed_at_any_moment() {
    const STEPS: u32 = 300;
    const KILLS: u32 = 5;
    let _watchdog = Watchdog::start();
    let mut hubs = Hubs::start(2, 10);
    let list = hubs.list();
    let (stops, ended) = (Stops::every(WORKERS, STEPS / (KILLS + 1)), AtomicU32::new(0));
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            until("a checkpoint is whole", || has_a_checkpoint(&hubs.dirs));
            stops.kill(KILLS, |number| {
                hubs.kill(number % 2);
                hubs.again(number % 2);
            });
        });
        on_threads(WORKERS, |rank| {
            let mut session = begun(config(&list, rank));
            for number in 0..STEPS {
                stops.before(&mut session, number);
                // Each key is waited for separately, so keys are in different rounds when the hub ends.
                for key in session.keys() {
                    session.wait(key).unwrap();
                    fill_gradient(SEED, rank, number, key, session.gradient_mut(key).unwrap());
                    session.push(key).unwrap();
                }
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

/// The workers push the gradients of a round one after another, as in a backward pass. The two hubs stop in turn.
#[test]
fn a_hub_of_several_that_stops_in_the_middle_of_a_round_loses_nothing() {
    const STEPS: u32 = 60;
    const STOPS: u32 = 4;
    let _watchdog = Watchdog::start();
    let mut hubs = Hubs::start(2, 1000);
    let list = hubs.list();
    let (stops, ended) = (Stops::every(WORKERS, STEPS / (STOPS + 1)), AtomicU32::new(0));
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            stops.make(STOPS, |stop| {
                let hub = stop as usize % 2;
                hubs.programs[hub].finish();
                hubs.again(hub);
            });
        });
        on_threads(WORKERS, |rank| {
            let mut session = begun(config(&list, rank));
            for number in 0..STEPS {
                stops.before(&mut session, number);
                write(&mut session, rank, number);
                for key in session.keys() {
                    std::thread::sleep(Duration::from_millis(2)); // computing
                    session.push(key).unwrap();
                }
                session.wait_all().unwrap();
            }
            end_together(&mut session, &ended, WORKERS);
            assert_eq!(session.returns(), Returns { times: STOPS, lost_rounds: 0 });
            weights(&session)
        })
    });
    assert!(seen[0] == after(STEPS) && seen[1] == after(STEPS), "a step with the gradients of some workers");
}

/// Both hubs stop at the same time, as when a whole cluster is restarted.
#[test]
fn all_hubs_of_a_job_may_stop_at_once() {
    let _watchdog = Watchdog::start();
    let mut hubs = Hubs::start(2, 1000);
    let list = hubs.list();
    let mut sessions = ready_all(WORKERS, |rank| config(&list, rank));
    let round = |sessions: &mut [Session], number| {
        std::thread::scope(|scope| {
            for (session, rank) in sessions.iter_mut().zip(0..) {
                scope.spawn(move || step(session, rank, number).unwrap());
            }
        });
    };
    sessions.iter_mut().for_each(|session| assert_eq!(session.next_round(), Round(1)));
    round(&mut sessions, 0);
    let [first, second] = &mut hubs.programs[..] else { unreachable!("there are two") };
    std::thread::scope(|scope| {
        scope.spawn(|| first.finish());
        second.finish();
    });
    (0..2).for_each(|hub| hubs.again(hub));
    round(&mut sessions, 1);
    assert!(sessions.iter().all(|session| session.returns() == Returns { times: 1, lost_rounds: 0 }));
}

/// The arrays stay in place, whichever hub ends, with each transport, and if two hubs end at once.
#[test]
fn the_arrays_stay_when_one_hub_of_several_comes_back() {
    let _watchdog = Watchdog::start();
    for transport in copying_transports().into_iter().chain([Transport::Shm]) {
        let mut hubs = Hubs::start(2, 1);
        let list = hubs.list();
        let sessions = on_threads(WORKERS, |rank| {
            begun(SessionConfig { transport: Some(transport), ..config(&list, rank) })
        });
        let sessions: Vec<_> = sessions.into_iter().map(Mutex::new).collect();
        let before: Vec<_> = sessions.iter().map(|session| places(&mut session.lock().unwrap())).collect();
        let round = |number| {
            on_threads(WORKERS, |rank| {
                step(&mut sessions[rank as usize].lock().unwrap(), rank, number).unwrap()
            });
        };
        round(0);
        for (number, hub) in [(1, 0), (2, 1)] {
            until("the round is saved", || has_a_checkpoint(&hubs.dirs));
            hubs.kill(hub);
            hubs.again(hub);
            round(number);
        }
        let after: Vec<_> = sessions.iter().map(|session| places(&mut session.lock().unwrap())).collect();
        assert_eq!(before, after, "{transport}: the memory stays where it is");
        let last: Vec<_> = sessions.iter().map(|session| weights(&session.lock().unwrap())).collect();
        assert_eq!(last[0], last[1], "{transport}");
        let times = sessions[0].lock().unwrap().returns().times;
        assert_eq!(times, 2, "{transport}");
    }
}

#[test]
fn a_hub_of_several_that_does_not_come_back_is_named_to_all_workers_in_time() {
    let _watchdog = Watchdog::start();
    let mut hubs = Hubs::start(2, 1);
    let list = hubs.list();
    let config = |rank| SessionConfig { hub_wait: Duration::from_millis(700), ..config(&list, rank) };
    let sessions: Vec<_> = ready_all(WORKERS, config).into_iter().map(Mutex::new).collect();
    hubs.kill(1);
    let lost = hubs.addresses[1].to_string();
    for error in on_threads(WORKERS, |rank| {
        step(&mut sessions[rank as usize].lock().unwrap(), rank, 0).unwrap_err().to_string()
    }) {
        says(error, &["job \"job\"", "lost the hub at", &lost, "did not come back within", "cannot reach"]);
    }
}

#[test]
fn hubs_that_come_back_without_the_job_are_an_error() {
    let _watchdog = Watchdog::start();
    let start = |address| Hub::start(&HubSettings { listen: address, ..settings(1, 30) }).unwrap();
    let addresses = [free_address(), free_address()];
    let _first = start(addresses[0]);
    let second = start(addresses[1]);
    let list = format!("{},{}", addresses[0], addresses[1]);
    let config = |rank| SessionConfig { hub_wait: Duration::from_secs(3), ..config(&list, rank) };
    let sessions: Vec<_> = ready_all(WORKERS, config).into_iter().map(Mutex::new).collect();
    second.stop("a test");
    let _second = start(addresses[1]);
    let ends = on_threads(WORKERS, |rank| {
        step(&mut sessions[rank as usize].lock().unwrap(), rank, 0).unwrap_err().to_string()
    });
    let says = |end: &String| end.contains("without the job's weights") && end.contains("--checkpoints");
    assert!(ends.iter().any(says), "{ends:?}");
}
