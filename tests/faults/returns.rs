//! A hub ends and is started again. Its sessions wait for the new hub, and continue in the same memory.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::returning::{
    NESTEROV, SEED, WORKERS, after, begun, end_together, places, start_process, step, waiting, weights, write,
};
use crate::processes::hub::begin_hub;
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::proxy::{Break, Proxy};
use hub_tests::training::Training;
use hub_tests::values::{Reference, bits, same_bits};
use hub_tests::{
    FIRST, copying_transports, describe, free_address, on_threads, ready_all, refused, says, settings,
    small_model,
};
use pbox_core::control::JobState;
use pbox_core::{KeyId, Optimizer, Round, Schedule};
use phub_server::{Hub, HubSettings};
use rustix::process::Signal;
use worker_shim::{Background, Returns, Session, SessionConfig};

fn start(address: SocketAddr, directory: &Path) -> Hub {
    let checkpoints = Some(directory.to_owned());
    started(&HubSettings { listen: address, checkpoints, ..settings(1, 30) })
}

/// Starts a hub right after another hub with the same settings has ended. If another test starts a process
/// meanwhile, that process has the former hub's sockets and lock until it runs its own program. So the first
/// tries may fail.
fn started(settings: &HubSettings) -> Hub {
    let mut started = None;
    until("a hub starts where the former one was", || {
        let again = Hub::start(settings);
        started = again.inspect_err(|error| eprintln!("not yet: {error}")).ok();
        started.is_some()
    });
    started.unwrap()
}

#[test]
fn a_hub_that_is_started_again_costs_nothing() {
    let _watchdog = Watchdog::start();
    for transport in copying_transports().into_iter().chain([Transport::Shm]) {
        let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
        // The workers and the thread that restarts the hub meet three times. While a worker waits for a
        // meeting, it must drive its session. The other worker may have lost its last answers with the hub.
        // Then the other worker waits until this worker joins again.
        let here = AtomicU32::new(0);
        let meet = |meeting: u32, look: &mut dyn FnMut()| {
            here.fetch_add(1, Ordering::Relaxed);
            until("all are here", || {
                look();
                here.load(Ordering::Relaxed) >= meeting * (WORKERS + 1)
            });
        };
        let mut hub = start(address, dir.path());
        let seen = std::thread::scope(|scope| {
            let again = scope.spawn(|| {
                for meeting in 1..=2 {
                    meet(meeting, &mut || {});
                    hub.stop("a test");
                    hub = start(address, dir.path());
                }
                meet(3, &mut || {});
                hub
            });
            let seen = on_threads(WORKERS, |rank| {
                let mut session =
                    begun(SessionConfig { transport: Some(transport), ..waiting(address, rank) });
                let before = places(&mut session);
                for number in 0..6 {
                    // The hub ends during steps 2 and 4, or just before or after these steps. A new hub runs at step 5.
                    if let Some(before) = [2, 4, 5].iter().position(|&step| step == number) {
                        meet(1 + before as u32, &mut || _ = session.is_ready(KeyId(0)).unwrap());
                    }
                    step(&mut session, rank, number).unwrap();
                }
                assert_eq!(places(&mut session), before, "{transport}: the memory stays where it is");
                // The worker may see the two ends of the hub as one.
                assert!(matches!(session.returns(), Returns { times: 1.., lost_rounds: 0 }), "{transport}");
                assert_eq!(session.next_round(), Round(7));
                let last = session.keys().map(|key| session.weights::<f32>(key).unwrap().to_vec());
                let last: Vec<Vec<f32>> = last.collect();
                session.leave().unwrap();
                last
            });
            drop(again.join().unwrap());
            seen
        });
        let mut reference = Reference::new(SEED, WORKERS, NESTEROV, &small_model());
        (0..6).for_each(|_| reference.advance(0.1));
        for (key, expected) in reference.weights.iter().enumerate() {
            same_bits(format!("{transport}, key {key}"), &seen[0][key], expected);
            same_bits(format!("{transport}, key {key}"), &seen[1][key], expected);
        }
    }
}

/// The workers push the gradients of a round one after another, as in a backward pass.
#[test]
fn a_hub_that_stops_in_the_middle_of_a_round_loses_nothing() {
    const STEPS: u32 = 60;
    const STOPS: u32 = 3;
    let _watchdog = Watchdog::start();
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let mut hub = start(address, dir.path());
    let made = AtomicU32::new(0);
    let seen = std::thread::scope(|scope| {
        let again = scope.spawn(|| {
            for stop in 1..=STOPS {
                until("some more rounds", || made.load(Ordering::Relaxed) >= stop * STEPS / (STOPS + 1));
                hub.stop("a test");
                hub = start(address, dir.path());
            }
            hub
        });
        let seen = on_threads(WORKERS, |rank| {
            let transport = [Transport::Shm, Transport::Tcp][rank as usize];
            let mut session = begun(SessionConfig { transport: Some(transport), ..waiting(address, rank) });
            for number in 0..STEPS {
                write(&mut session, rank, number);
                for key in session.keys() {
                    std::thread::sleep(Duration::from_millis(2)); // computing
                    session.push(key).unwrap();
                }
                session.wait_all().unwrap();
                made.fetch_max(number, Ordering::Relaxed);
            }
            assert_eq!(session.returns(), Returns { times: STOPS, lost_rounds: 0 });
            let seen = weights(&session);
            session.leave().unwrap();
            seen
        });
        drop(again.join().unwrap());
        seen
    });
    let expected = after(STEPS);
    assert!(seen[0] == expected && seen[1] == expected, "a step with the gradients of some workers");
}

#[test]
fn a_hub_that_was_killed_goes_on_from_its_checkpoint_and_workers_hear_what_was_lost() {
    let _watchdog = Watchdog::start();
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let mut hub = start_process(address, dir.path(), 1000);
    let (between, ended) = (Barrier::new(WORKERS as usize + 1), AtomicU32::new(0));
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            between.wait();
            hub.signal(Signal::KILL);
            hub.end();
            between.wait();
            hub = start_process(address, dir.path(), 1000);
        });
        on_threads(WORKERS, |rank| {
            let mut session = begun(waiting(address, rank));
            step(&mut session, rank, 0).unwrap();
            if rank == 0 {
                assert_eq!(session.checkpoint().unwrap().round, Round(2));
                session.set_learning_rate(0.5).unwrap(); // the checkpoint does not have this rate
            }
            for number in 1..4 {
                step(&mut session, rank, number).unwrap();
            }
            between.wait();
            between.wait(); // the hub is dead
            for number in 4..6 {
                step(&mut session, rank, number).unwrap();
            }
            end_together(&mut session, &ended, WORKERS);
            assert_eq!(session.returns(), Returns { times: 1, lost_rounds: 3 });
            assert_eq!(session.next_round(), Round(4));
            weights(&session)
        })
    });
    assert_eq!(seen[0], seen[1]);
    // Steps 1 to 3 are lost. Steps 4 and 5 follow step 0, with the learning rate that was set before step 1.
    let mut reference = Reference::new(SEED, WORKERS, NESTEROV, &small_model());
    reference.advance(0.1);
    reference.lose(3);
    reference.advance(0.5);
    reference.advance(0.5);
    let expected: Vec<Vec<u32>> = reference.weights.iter().map(|weights| bits(weights)).collect();
    assert_eq!(seen[0], expected);
}

#[test]
fn a_hub_that_does_not_come_back_is_an_error_in_time() {
    let _watchdog = Watchdog::start();
    let address = free_address();
    let hub = Hub::start(&HubSettings { listen: address, ..settings(1, 30) }).unwrap();
    let config = |rank| SessionConfig { hub_wait: Duration::from_millis(300), ..waiting(address, rank) };
    let mut sessions = ready_all(WORKERS, config);
    hub.stop("a test");
    let error = step(&mut sessions[0], 0, 0).unwrap_err();
    says(error, &["\"job\" failed", "a test", "the hub did not come back within", "cannot reach"]);
}

/// Formerly the error said that the hub had not come back.
#[test]
fn a_worker_that_returns_alone_hears_that_the_hub_is_back() {
    let _watchdog = Watchdog::start();
    let address = free_address();
    let listening = HubSettings { listen: address, ..settings(1, 30) };
    let hub = Hub::start(&listening).unwrap();
    let mut sessions = ready_all(WORKERS, |rank| SessionConfig {
        join_limit: Duration::from_millis(300),
        hub_wait: Duration::from_secs(5),
        ..waiting(address, rank)
    });
    hub.stop("a test");
    let _again = started(&listening);
    let error = step(&mut sessions[0], 0, 0).unwrap_err().to_string();
    says(&error, &["a test", "the hub answers again", "worker(s) [1] of 2", "start the job again"]);
    assert!(!error.contains("did not come back"), "{error}");
}

/// Checks that workers wait for a lost hub also while a proxy in front of it answers 502 in the hub's place.
#[test]
fn a_request_waits_for_a_hub_that_is_started_again_behind_a_proxy() {
    let _watchdog = Watchdog::start();
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let start = || {
        begin_hub(&[
            ("PHUB_LISTEN", &address.to_string()),
            ("PHUB_CHECKPOINTS", dir.path().to_str().unwrap()),
            ("PHUB_HEARTBEAT_LIMIT_S", "2"),
        ])
    };
    let hub = start();
    let proxy = Proxy::start(address);
    let mut config = waiting(proxy.address().parse().unwrap(), 0);
    config.terms.workers = 1;
    let mut session = begun(config);
    step(&mut session, 0, 0).unwrap();
    session.checkpoint().unwrap();
    drop(hub); // kills it
    proxy.breaks("join", Break::Page(502), 2);
    std::thread::scope(|scope| {
        let again = scope.spawn(|| {
            until("the worker has tried to join again", || proxy.left() == 0);
            start()
        });
        session.set_learning_rate(0.25).unwrap();
        let _hub = again.join().unwrap();
        assert_eq!(session.returns().times, 1);
        step(&mut session, 0, 1).unwrap();
        session.leave().unwrap();
    });
}

#[test]
fn a_join_waits_for_its_hub() {
    let _watchdog = Watchdog::start();
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let config = |rank| SessionConfig { hub_wait: Duration::from_millis(100), ..waiting(address, rank) };
    says(refused(config(0)), &["cannot reach", &address.to_string(), "tried"]);
    std::thread::scope(|scope| {
        let joining = scope.spawn(|| ready_all(WORKERS, |rank| waiting(address, rank)));
        let _hub = start_process(address, dir.path(), 1000);
        drop(joining.join().unwrap());
    });
}

#[test]
fn a_session_on_its_own_thread_holds_out_too_and_its_callers_may_give_up() {
    let _watchdog = Watchdog::start();
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let hub = start(address, dir.path());
    let ready = |rank| {
        let session = Background::join(waiting(address, rank), &mut || false).unwrap();
        session.broadcast_written(&mut || false).unwrap();
        session
    };
    let sessions = on_threads(WORKERS, ready);
    let round = |session: &Background| {
        session.push(FIRST)?;
        session.wait(FIRST, &mut || false)
    };
    let all = |sessions: &[Background]| on_threads(WORKERS, |rank| round(&sessions[rank as usize]).unwrap());
    all(&sessions);
    // The other keys are pushed, too, because a checkpoint is of a whole round.
    on_threads(WORKERS, |rank| {
        let session = &sessions[rank as usize];
        (1..3).for_each(|key| session.push(pbox_core::KeyId(key)).unwrap());
        session.wait_all(&mut || false).unwrap();
    });
    hub.stop("a test");
    let hub = start(address, dir.path());
    all(&sessions);
    all(&sessions[..]);
    let returns = sessions[0].with(|session| session.returns(), &mut || false).unwrap();
    assert_eq!(returns, Returns { times: 1, lost_rounds: 0 });
    hub.stop("a test");
    sessions[0].push(FIRST).unwrap();
    let began = std::time::Instant::now();
    drop(sessions);
    assert!(began.elapsed() < Duration::from_secs(30), "nobody waits for the hub any more");
}

#[test]
fn a_compressed_job_goes_on_too() {
    let _watchdog = Watchdog::start();
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let hub = start(address, dir.path());
    let training = Training::compressed("job", "qsgd:8:512");
    let training = Training { workers: WORKERS, ..training };
    let config = |rank| SessionConfig {
        hub_wait: Duration::from_secs(60),
        ..training.config(&address.to_string(), rank)
    };
    let mut sessions = on_threads(WORKERS, |rank| {
        let mut session = Session::join(config(rank)).unwrap();
        training.broadcast(&mut session, rank).unwrap();
        session
    });
    let round = |sessions: &mut [Session]| {
        std::thread::scope(|scope| {
            for session in sessions {
                scope.spawn(|| {
                    session.keys().try_for_each(|key| session.push(key)).unwrap();
                    session.wait_all().unwrap();
                });
            }
        });
    };
    round(&mut sessions);
    hub.stop("a test");
    let _hub = start(address, dir.path());
    round(&mut sessions);
    let last =
        |session: &Session| session.keys().map(|key| bits(&training.read(session, key))).collect::<Vec<_>>();
    assert_eq!(last(&sessions[0]), last(&sessions[1]));
    assert_eq!(sessions[0].returns(), Returns { times: 1, lost_rounds: 0 });
}

/// The order in which a worker needs its keys is no part of a checkpoint. The hub gets the order when a worker learns it, and
/// again after a return.
#[test]
fn a_hub_that_came_back_gets_the_order_of_the_keys_again() {
    let _watchdog = Watchdog::start();
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let hub = start(address, dir.path());
    let proxy = Proxy::start(address);
    let mut config = waiting(proxy.address().parse().unwrap(), 0);
    (config.terms.workers, config.terms.level.schedule) = (1, Schedule::P3);
    let mut session = begun(config);
    let order = Vec::from_iter(session.keys().collect::<Vec<_>>().into_iter().rev());
    proxy.breaks("priorities", Break::LoseAnswer, 1);
    session.need(&order).unwrap();
    assert_eq!(proxy.left(), 0, "the hub got the order");
    step(&mut session, 0, 0).unwrap();
    proxy.breaks("priorities", Break::LoseAnswer, 1);
    hub.stop("a test");
    let _hub = start(address, dir.path());
    step(&mut session, 0, 1).unwrap();
    assert_eq!((session.returns().times, proxy.left()), (1, 0), "the hub got the order again");
    session.leave().unwrap();
}

#[test]
fn a_job_without_weights_needs_no_checkpoint() {
    let _watchdog = Watchdog::start();
    let address = free_address();
    let settings = HubSettings { listen: address, ..settings(1, 30) };
    let config = |rank| {
        let mut config = waiting(address, rank);
        config.terms.optimizer = Optimizer::Average;
        config
    };
    let mean = |sessions: &mut [Session]| {
        std::thread::scope(|scope| {
            for (session, value) in sessions.iter_mut().zip([1.0, 3.0]) {
                scope.spawn(move || {
                    session.keys().for_each(|key| session.gradient_mut(key).unwrap().fill(value));
                    session.keys().try_for_each(|key| session.push(key)).unwrap();
                    session.wait_all().unwrap();
                    assert!(session.weights::<f32>(FIRST).unwrap().iter().all(|&mean| mean == 2.0));
                });
            }
        });
    };
    let hub = Hub::start(&settings).unwrap();
    let mut sessions = on_threads(WORKERS, |rank| Session::join(config(rank)).unwrap());
    mean(&mut sessions);
    hub.stop("a test");
    let _hub = started(&settings);
    mean(&mut sessions);
    assert_eq!(sessions[0].returns(), Returns { times: 1, lost_rounds: 1 });
}

/// The worker that learns last of the new job also learns that this job has failed. The other worker has already ended.
/// Formerly the last worker made a third job, and waited there for the other worker.
#[test]
fn a_hub_that_comes_back_without_the_weights_is_an_error_of_each_worker_at_once() {
    let _watchdog = Watchdog::start();
    let address = free_address();
    let settings = HubSettings { listen: address, ..settings(1, 30) };
    let (hub, proxy) = (Hub::start(&settings).unwrap(), Proxy::start(address));
    let addresses = [address, proxy.address().parse().unwrap()];
    let mut sessions = ready_all(WORKERS, |rank| waiting(addresses[rank as usize], rank));
    let (mut last, mut first) = (sessions.pop().unwrap(), sessions.pop().unwrap());
    proxy.breaks("heartbeat", Break::Lose, u32::MAX);
    hub.stop("a test");
    let _hub = started(&settings);
    let ends = std::thread::scope(|scope| {
        let last = scope.spawn(|| step(&mut last, 1, 0).unwrap_err());
        let of_first = step(&mut first, 0, 0).unwrap_err();
        drop(first);
        until("the job has failed", || {
            let jobs = describe(&address.to_string()).jobs;
            jobs.iter().any(|job| matches!(job.state, JobState::Failed { .. }))
        });
        proxy.breaks("heartbeat", Break::Lose, 0);
        [of_first, last.join().unwrap()]
    });
    ends.into_iter().for_each(|end| says(end, &["without the job's weights", "--checkpoints"]));
}
