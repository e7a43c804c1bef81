//! A hub that was killed is brought to the present by its workers: rounds go on, and what is lost in part is said.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::returning::{
    Hubs, NESTEROV, SEED, Stops, WORKERS, begun, end_together, start_process, step, waiting, weights, write,
};
use crate::processes::hub::{begin_hub, start_hub};
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::program::{Program, until};
use hub_tests::relay::{Relay, Stall, Way};
use hub_tests::values::{Reference, bits, fill_weights};
use hub_tests::{SGD, copying_transports, describe, free_address, on_threads, refused, says, small_model};
use pbox_core::{Consistency, Key, KeyId, Optimizer, Round, Schedule};
use rustix::process::Signal;
use worker_shim::batch::Batching;
use worker_shim::{Pull, Returns, Session, SessionConfig, SessionError, WeightsMode};

/// A worker that asks for the present.
fn present(address: SocketAddr, rank: u32, (transport, weights): (Transport, WeightsMode)) -> SessionConfig {
    let mut config = waiting(address, rank);
    config.terms.optimizer = SGD;
    SessionConfig { hub_present: true, transport: Some(transport), weights, ..config }
}

/// A hub without checkpoints.
fn start(address: SocketAddr) -> Program {
    let mut hub = begin_hub(&[("PHUB_LISTEN", &address.to_string())]);
    hub.read_reply();
    hub
}

fn kill(hub: &mut Program) {
    hub.signal(Signal::KILL);
    hub.end();
}

/// Waits until a worker has seen the loss, and its hub is back: what it pushes before may have been stepped.
fn comes_back(session: &mut Session) -> Result<(), SessionError> {
    let (times, mut lost) = (session.returns().times, Ok(()));
    until("the hub is back", || {
        lost = session.is_ready(KeyId(0)).map(|_| ());
        lost.is_err() || session.returns().times > times
    });
    lost
}

/// Where workers get weights, and from which memory.
fn ways() -> impl Iterator<Item = (Transport, WeightsMode)> {
    let transports = copying_transports().into_iter().chain([Transport::Shm]);
    transports.flat_map(|transport| [WeightsMode::Shared, WeightsMode::Private].map(|mode| (transport, mode)))
}

/// The weights after steps at these rates; without a rate a step is lost.
fn after(rates: &[Option<f32>]) -> Vec<Vec<u32>> {
    let mut reference = Reference::new(SEED, WORKERS, SGD, &small_model());
    for rate in rates {
        match rate {
            Some(rate) => reference.advance(*rate),
            None => reference.lose(1),
        }
    }
    reference.weights.iter().map(|weights| bits(weights)).collect()
}

/// A moment of step 1.
#[derive(Clone, Copy)]
struct Moment {
    /// The hub stands still, and answers nothing any more.
    stands_still: bool,
    /// What each rank has pushed.
    pushed: [&'static [KeyId]; 2],
    /// The key of which rank 1 has the answer.
    awaited: Option<KeyId>,
}

const BETWEEN: Moment = Moment { stands_still: false, pushed: [&[], &[]], awaited: None };
/// One key has its answer at one worker, and the others are pushed by the other worker alone.
const WITHIN: Moment = Moment { stands_still: false, pushed: [ALL, &[KeyId(0)]], awaited: Some(KeyId(0)) };
const PUSHED: Moment = Moment { stands_still: true, pushed: [ALL, ALL], awaited: None };

const ALL: &[KeyId] = &[KeyId(0), KeyId(1), KeyId(2)];

/// Step 0, then step 1 with another learning rate, in which a hub without checkpoints is killed, then steps 2 and 3.
fn killed(
    way: (Transport, WeightsMode),
    schedule: Schedule,
    Moment { stands_still, pushed, awaited }: Moment,
) -> (Vec<Vec<u32>>, Returns) {
    let address = free_address();
    let mut hub = start(address);
    // A hub that stands still answers no request either.
    let config = |rank| {
        let config = present(address, rank, way).with_terms(|terms| terms.level.schedule = schedule);
        SessionConfig { compare_every: u32::from(!stands_still), ..config }
    };
    let sessions = on_threads(WORKERS, |rank| begun(config(rank)));
    let sessions: Vec<Mutex<Session>> = sessions.into_iter().map(Mutex::new).collect();
    let session = |rank: u32| sessions[rank as usize].lock().unwrap();
    on_threads(WORKERS, |rank| step(&mut session(rank), rank, 0).unwrap());
    session(0).set_learning_rate(0.125).unwrap();
    on_threads(WORKERS, |rank| write(&mut session(rank), rank, 1));
    if stands_still {
        hub.stop();
    }
    on_threads(WORKERS, |rank| {
        pushed[rank as usize].iter().for_each(|&key| session(rank).push(key).unwrap());
        if rank == 1 {
            awaited.into_iter().for_each(|key| session(rank).wait(key).unwrap());
        }
    });
    kill(&mut hub);
    let _again = start(address);
    let seen = on_threads(WORKERS, |rank| {
        let mut session = session(rank);
        comes_back(&mut session).unwrap();
        let left = ALL.iter().filter(|key| !pushed[rank as usize].contains(key));
        left.for_each(|&key| session.push(key).unwrap());
        session.wait_all().unwrap();
        (2..4).for_each(|number| step(&mut session, rank, number).unwrap());
        assert_eq!(session.next_round(), Round(5), "{way:?}");
        (weights(&session), session.returns())
    });
    assert!(seen[0] == seen[1], "{way:?}");
    seen[0].clone()
}

#[test]
fn a_hub_that_was_killed_between_rounds_loses_nothing() {
    let _watchdog = Watchdog::start();
    for way in ways() {
        let (seen, returns) = killed(way, Schedule::Sliced, BETWEEN);
        assert_eq!(returns, Returns { times: 1, ..Returns::default() }, "{way:?}");
        assert!(seen == after(&[Some(0.5), Some(0.125), Some(0.125), Some(0.125)]), "{way:?}");
    }
}

#[test]
fn a_hub_that_was_killed_within_a_round_loses_nothing_of_what_some_worker_has_or_has_not_pushed() {
    let _watchdog = Watchdog::start();
    let schedules = [Schedule::Sliced, Schedule::P3, Schedule::Layerwise, Schedule::KvStore];
    for (way, schedule) in ways().flat_map(|way| schedules.map(|schedule| (way, schedule))) {
        let (seen, returns) = killed(way, schedule, WITHIN);
        assert_eq!(returns, Returns { times: 1, ..Returns::default() }, "{way:?}, {schedule}");
        assert!(seen == after(&[Some(0.5), Some(0.125), Some(0.125), Some(0.125)]), "{way:?}, {schedule}");
    }
}

/// Nobody can say of the hub's own memory what it has stepped. A copy is known to be that of before.
#[test]
fn a_round_that_all_have_pushed_and_nobody_has_is_pushed_again_or_said_to_be_lost() {
    let _watchdog = Watchdog::start();
    for way in ways() {
        let (seen, returns) = killed(way, Schedule::Sliced, PUSHED);
        let (step, lost_in_part) = match way.1 {
            WeightsMode::Shared => (None, 3),
            WeightsMode::Private => (Some(0.125), 0),
        };
        assert_eq!(returns, Returns { times: 1, lost_in_part, ..Returns::default() }, "{way:?}");
        assert!(seen == after(&[Some(0.5), step, Some(0.125), Some(0.125)]), "{way:?}");
    }
}

const COUNTING: Optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };

/// What a step adds to all weights, in whole numbers.
fn adds(step: u32) -> f32 {
    (step % 5 + 1) as f32
}

/// Kills at any moment: whole numbers tell what is missing of each weight, and it is no more than was said.
fn killed_at_any_moment(
    hubs: &str,
    kill_and_start: &mut (dyn FnMut(usize) + Send),
    has_begun: &dyn Fn() -> bool,
    mode: WeightsMode,
) -> Vec<Returns> {
    const STEPS: u32 = 150;
    const KILLS: u32 = 5;
    let (stops, ended) = (Stops::every(STEPS / (KILLS + 1)), AtomicU32::new(0));
    let seen = std::thread::scope(|scope| {
        let (stops, ended) = (&stops, &ended);
        let workers = scope.spawn(move || {
            on_threads(WORKERS, |rank| {
                let way = ([Transport::Tcp, Transport::Shm][rank as usize], mode);
                let mut config = SessionConfig { hub: hubs.to_owned(), ..present(NOT_ASKED, rank, way) };
                config.terms.optimizer = COUNTING;
                let mut session = begun(config);
                for number in 0..STEPS {
                    stops.before(&mut session, number);
                    // Each key is waited for on its own: keys are in different rounds when the hub goes.
                    for key in session.keys() {
                        session.wait(key).unwrap();
                        let part = -adds(number) * [0.5, 1.5][rank as usize];
                        session.gradient_mut(key).unwrap().fill(part);
                        session.push(key).unwrap();
                    }
                    std::thread::sleep(Duration::from_millis(u64::from(rank + number) % 3));
                }
                end_together(&mut session, ended, WORKERS);
                assert_eq!(session.next_round(), Round(STEPS + 1));
                let seen: Vec<Vec<f32>> =
                    session.keys().map(|key| session.weights(key).unwrap().to_vec()).collect();
                (seen, session.returns())
            })
        });
        until("the job has begun", has_begun);
        stops.kill(KILLS, kill_and_start);
        workers.join().unwrap()
    });
    assert!(seen[0].0 == seen[1].0);
    let all: f32 = (0..STEPS).map(adds).sum();
    for (key, of) in small_model().iter().zip(0..) {
        let mut first = vec![0.0; of_elements(key)];
        fill_weights(SEED, KeyId(of), &mut first);
        for (weight, first) in seen[0].0[of as usize].iter().zip(first) {
            let missing = first + all - weight;
            // The first weights are no whole numbers, and are rounded in the sums.
            let most = 5.0 * seen[0].1.lost_in_part as f32;
            assert!((-0.1..=most + 0.1).contains(&missing), "{missing} are missing, {:?}", seen[0].1);
        }
    }
    seen.into_iter().map(|(_, returns)| returns).collect()
}

fn of_elements(key: &Key) -> usize {
    key.elements().unwrap() as usize
}

const NOT_ASKED: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

#[test]
fn a_hub_without_checkpoints_may_be_killed_at_any_moment() {
    let _watchdog = Watchdog::start();
    for mode in [WeightsMode::Shared, WeightsMode::Private] {
        let address = free_address();
        let mut hub = start(address);
        let mut again = |_| {
            kill(&mut hub);
            hub = start(address);
        };
        let list = address.to_string();
        let has_begun = || describe(&list).jobs.iter().any(|job| job.round > Round(1));
        for returns in killed_at_any_moment(&list, &mut again, &has_begun, mode) {
            assert_eq!((returns.lost_rounds, returns.lost_state_rounds), (0, 0));
        }
    }
}

#[test]
fn a_hub_with_checkpoints_may_be_killed_at_any_moment_too() {
    let _watchdog = Watchdog::start();
    let mut hubs = Hubs::start(1, 10);
    let (list, dirs) = (hubs.list(), hubs.dirs.iter().map(|dir| dir.path().to_owned()).collect::<Vec<_>>());
    let mut again = |_| {
        hubs.kill(0);
        hubs.again(0);
    };
    let has_begun = || dirs[0].join("job.safetensors").exists();
    for returns in killed_at_any_moment(&list, &mut again, &has_begun, WeightsMode::Shared) {
        assert_eq!((returns.lost_rounds, returns.lost_state_rounds), (0, 0));
    }
}

#[test]
fn one_hub_of_several_may_be_killed_at_any_moment_and_is_brought_to_the_present() {
    let _watchdog = Watchdog::start();
    let addresses = [free_address(), free_address()];
    let mut hubs = addresses.map(start);
    let mut again = |number: usize| {
        kill(&mut hubs[number % 2]);
        hubs[number % 2] = start(addresses[number % 2]);
    };
    let list = format!("{},{}", addresses[0], addresses[1]);
    let first = addresses[0].to_string();
    let has_begun = || describe(&first).jobs.iter().any(|job| job.round > Round(1));
    killed_at_any_moment(&list, &mut again, &has_begun, WeightsMode::Shared);
}

/// The weights are the present's, and momentum is the checkpoint's.
#[test]
fn the_optimizers_state_is_that_of_the_checkpoint() {
    let _watchdog = Watchdog::start();
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let mut hub = start_process(address, dir.path(), 1000);
    let config = |rank| {
        let mut config = present(address, rank, (Transport::Shm, WeightsMode::Shared));
        config.terms.optimizer = NESTEROV;
        config
    };
    let sessions: Vec<Mutex<Session>> =
        on_threads(WORKERS, |rank| begun(config(rank))).into_iter().map(Mutex::new).collect();
    let steps = |range: std::ops::Range<u32>| {
        on_threads(WORKERS, |rank| {
            let mut session = sessions[rank as usize].lock().unwrap();
            range.clone().for_each(|number| step(&mut session, rank, number).unwrap());
            (weights(&session), session.next_round(), session.returns())
        })
    };
    steps(0..2);
    assert_eq!(sessions[0].lock().unwrap().checkpoint().unwrap().round, Round(3));
    let before = steps(2..5);
    let mut expected = Reference::new(SEED, WORKERS, NESTEROV, &small_model());
    (0..5).for_each(|_| expected.advance(0.1));
    assert_eq!(before[0].0, expected.weights.iter().map(|weights| bits(weights)).collect::<Vec<_>>());
    kill(&mut hub);
    hub = start_process(address, dir.path(), 1000);
    on_threads(WORKERS, |rank| comes_back(&mut sessions[rank as usize].lock().unwrap()).unwrap());
    let after = steps(5..7);
    assert_eq!(after[0], after[1]);
    let returns = Returns { times: 1, lost_state_rounds: 3, ..Returns::default() };
    assert_eq!((after[0].1, after[0].2), (Round(8), returns));
    // Nobody comes back to an older momentum where a stop has written the present.
    assert!(hub.finish().success());
    let _hub = start_process(address, dir.path(), 1000);
    let last = steps(7..8);
    assert_eq!((last[0].1, last[0].2), (Round(9), Returns { times: 2, ..returns }));
}

/// A worker is lost with the hub. Another one in its place begins where the others stand.
#[test]
fn a_worker_that_has_nothing_gets_the_present_of_the_others() {
    let _watchdog = Watchdog::start();
    let address = free_address();
    let mut hub = start(address);
    let way = (Transport::Tcp, WeightsMode::Private);
    let mut sessions = on_threads(WORKERS, |rank| begun(present(address, rank, way)));
    std::thread::scope(|scope| {
        for (session, rank) in sessions.iter_mut().zip(0..) {
            scope.spawn(move || (0..3).for_each(|number| step(session, rank, number).unwrap()));
        }
    });
    hub.stop();
    drop(sessions.pop());
    kill(&mut hub);
    let _again = start(address);
    let first = Mutex::new(sessions.pop().unwrap());
    let seen = on_threads(WORKERS, |rank| match rank {
        0 => {
            let mut session = first.lock().unwrap();
            comes_back(&mut session).unwrap();
            step(&mut session, rank, 3).unwrap();
            (weights(&session), None)
        }
        _ => {
            let mut session = begun(present(address, rank, way));
            assert_eq!(session.next_round(), Round(4));
            step(&mut session, rank, 3).unwrap();
            (weights(&session), Some(session)) // the other one may wait yet
        }
    });
    assert!(seen[0].0 == seen[1].0 && seen[0].0 == after(&[Some(0.5); 4]));
}

#[test]
fn workers_with_different_weights_have_no_present() {
    let _watchdog = Watchdog::start();
    let (control, data) = (free_address(), free_address());
    let start = || {
        let mut hub =
            begin_hub(&[("PHUB_LISTEN", &control.to_string()), ("PHUB_DATA_LISTEN", &data.to_string())]);
        hub.read_reply();
        hub
    };
    let mut hub = start();
    let relay = Relay::start(control, data);
    // Of what comes to worker 1, a bit of the first key: behind the welcome, and the header of the first frame.
    relay.alter(Way::Data, Stall::DOWN, 16 + 16 + 2);
    let sessions = on_threads(WORKERS, |rank| {
        let config = present(control, rank, (Transport::Tcp, WeightsMode::Shared));
        let hub = if rank == 0 { config.hub.clone() } else { relay.address() };
        begun(SessionConfig { hub, compare_every: 0, ..config })
    });
    let sessions: Vec<_> = sessions.into_iter().map(Mutex::new).collect();
    assert!(relay.has_altered(Way::Data));
    kill(&mut hub);
    let _again = start();
    for error in on_threads(WORKERS, |rank| {
        comes_back(&mut sessions[rank as usize].lock().unwrap()).unwrap_err().to_string()
    }) {
        says(error, &["cannot be brought to the present", "before round 1 differ", "[0] and of [1]"]);
    }
}

#[test]
fn what_the_present_does_not_go_with_is_refused_in_words() {
    let _watchdog = Watchdog::start();
    let config = || present(NOT_ASKED, 0, (Transport::Tcp, WeightsMode::Shared));
    let pulls = SessionConfig { pull: Some(Pull::new(Batching::Layer)), ..config() };
    for (config, why) in [
        (config().with_terms(|terms| terms.level.consistency = Consistency::Asp), "SSP and ASP"),
        (
            config().with_terms(|terms| terms.level.compression = Some("qsgd:8:512".parse().unwrap())),
            "a codec",
        ),
        (config().with_terms(|terms| terms.optimizer = Optimizer::Average), "average"),
        (SessionConfig { mesh: Some("0/2@127.0.0.1:1".parse().unwrap()), ..config() }, "a mesh"),
        (pulls.with_terms(|terms| terms.level.schedule = Schedule::KvStore), "pulls in batches"),
    ] {
        let config = SessionConfig { compare_every: 0, ..config };
        says(refused(config), &["hub_present", "does not go with", why, "leave"]);
    }
    let above = free_address().to_string();
    let (mut below, address) = start_hub(&[("PHUB_ABOVE", &above), ("PHUB_MACHINE", "0/2")]);
    let config = SessionConfig { hub: address, ..config() };
    says(refused(config), &["hub_present", "does not go with a hub below others", "leave it out"]);
    kill(&mut below);
    let address = free_address();
    let _hub = start(address);
    let of = |rank, hub_present| {
        let config = present(address, rank, (Transport::Tcp, WeightsMode::Shared));
        SessionConfig { hub_present, ..config }
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| Session::join(of(0, true)));
        until("the first worker is there", || {
            describe(&address.to_string()).jobs.iter().any(|job| !job.members.is_empty())
        });
        says(refused(of(1, false)), &["has hub_present true", "worker 1 asks for false", "the same"]);
        let second = Session::join(of(1, true));
        assert!(first.join().unwrap().is_ok() && second.is_ok());
    });
}
