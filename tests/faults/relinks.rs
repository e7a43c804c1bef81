//! Workers that lose their links while their hub is alive, for example because a NIC fails, make new links
//! and continue. All weights have the bits of a run without losses.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::returning::{WORKERS, after, begun, step, waiting, weights};
use crate::processes::hub::start_hub;
use crate::processes::worker::Remote;
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::program::{Program, until};
use hub_tests::relay::{Relay, RelayPath, Stall};
use hub_tests::{
    describe, free_address, hub, join_by_hand, join_request, on_threads, refusal_of_member, says,
};
use pbox_core::control::{JobState, JoinRequest};
use pbox_core::{Consistency, KeyId, OnLoss, Schedule};
use rustix::process::Signal;
use worker_shim::{Background, Returns, Session, SessionConfig};

/// A hub with two cores, if the machine has two, and a relay in front of it.
struct Behind {
    _process: Program,
    address: String,
    relay: Relay,
}

impl Behind {
    fn start() -> Self {
        Self::start_with("shm,tcp")
    }

    fn start_with(transports: &str) -> Self {
        let (control, data) = (free_address(), free_address());
        let cores = hub_tests::cpus().min(2).to_string();
        let (process, address) = start_hub(&[
            ("PHUB_TRANSPORTS", transports),
            ("PHUB_LISTEN", &control.to_string()),
            ("PHUB_DATA_LISTEN", &data.to_string()),
            ("PHUB_CORES", &cores),
        ]);
        Behind { _process: process, address, relay: Relay::start(control, data) }
    }

    /// Returns a worker that reaches the hub through the relay.
    fn far(&self, rank: u32) -> SessionConfig {
        let (hub, transport) = (self.relay.address(), Some(Transport::Tcp));
        SessionConfig { hub, transport, ..waiting(free_address(), rank) }
    }
}

/// Cuts the links through these relays one after another, at any moment, until the run is over. The workers
/// make a step between two cuts.
pub(super) fn cut(relays: &[&Relay], made: &AtomicU32, over: &AtomicBool) {
    let mut cuts = 0u32;
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(u64::from(7 * cuts % 23)));
        relays[cuts as usize % relays.len()].cut(RelayPath::Data);
        cuts += 1;
        let seen = made.load(Ordering::Relaxed);
        until("a step is made", || over.load(Ordering::Relaxed) || made.load(Ordering::Relaxed) > seen);
    }
}

/// All workers lose all links many times, at any moment of a round. `tests/sim/relinks.rs` tests other terms
/// by seeds.
#[test]
fn links_to_one_hub_or_several_that_are_cut_at_any_moment_are_made_again_and_change_no_bit() {
    const STEPS: u32 = 80;
    for hubs in [1, 2] {
        let _watchdog = Watchdog::start();
        let far: Vec<Behind> = (0..hubs).map(|_| Behind::start()).collect();
        let (made, over) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let relays: Vec<&Relay> = far.iter().map(|hub| &hub.relay).collect();
            let (made, over) = (&made, &over);
            scope.spawn(move || cut(&relays, made, over));
            on_threads(WORKERS, |rank| {
                let hub = far.iter().map(|hub| hub.relay.address()).collect::<Vec<_>>().join(",");
                let mut session = begun(SessionConfig { hub, ..far[0].far(rank) });
                for number in 0..STEPS {
                    step(&mut session, rank, number).unwrap();
                    made.fetch_add(1, Ordering::Relaxed);
                }
                assert_eq!(weights(&session), after(STEPS), "{hubs} hubs");
                assert!(session.relinks() > 5, "{hubs} hubs: {}", session.relinks());
                assert_eq!(session.returns(), Returns::default(), "no round is lost");
                // The cuts end before a worker leaves, because a worker that leaves would not wait for new
                // links.
                until("all are done", || {
                    session.is_ready(hub_tests::FIRST).unwrap();
                    made.load(Ordering::Relaxed) >= WORKERS * STEPS
                });
                over.store(true, Ordering::Relaxed);
                session.leave().unwrap();
            });
        });
    }
}

/// Links to the other hub cannot be made for a while. The new links on shared memory then end unused, and no
/// worker may count as dead.
#[test]
fn links_on_shared_memory_are_made_again_beside_others() {
    let _watchdog = Watchdog::start();
    let (near, far) = (Behind::start(), Behind::start_with("tcp"));
    let mut sessions = on_threads(WORKERS, |rank| {
        let hub = format!("{},{}", near.address, far.relay.address());
        let join_limit = Duration::from_secs(1);
        let mut session = begun(SessionConfig { hub, join_limit, ..waiting(free_address(), rank) });
        step(&mut session, rank, 0).unwrap();
        session
    });
    let asked = || describe(&near.address).counts.relinks;
    far.relay.stall(RelayPath::Data, Stall::BOTH);
    far.relay.cut(RelayPath::Data);
    std::thread::scope(|scope| {
        for (rank, session) in (0..).zip(&mut sessions) {
            scope.spawn(move || step(session, rank, 1).unwrap());
        }
        until("both workers have made links in vain", || asked() > u64::from(2 * WORKERS));
        far.relay.stall(RelayPath::Data, Stall::NONE);
    });
    for session in sessions {
        assert_eq!((weights(&session), session.relinks()), (after(2), 1));
        session.leave().unwrap();
    }
}

/// A worker that computes does not notice that its links end. The other workers wait for it.
#[test]
fn a_worker_that_computes_while_its_links_end_is_waited_for() {
    let _watchdog = Watchdog::start();
    let hub = Behind::start();
    let [mut near, mut far]: [Session; 2] = on_threads(WORKERS, |rank| {
        let mut session = begun(if rank == 0 {
            SessionConfig { hub: hub.address.clone(), ..waiting(free_address(), rank) }
        } else {
            hub.far(rank)
        });
        step(&mut session, rank, 0).unwrap();
        session
    })
    .try_into()
    .ok()
    .unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| step(&mut near, 0, 1));
        hub.relay.cut(RelayPath::Data);
        until("the hub has let go of the links", || hub.relay.open(RelayPath::Data) == 0);
        // The pause is longer than the hub's limit for a worker without heartbeats.
        std::thread::sleep(Duration::from_secs(4));
        assert_eq!(describe(&hub.address).jobs[0].state, JobState::Running);
        step(&mut far, 1, 1).unwrap();
        waits.join().unwrap().unwrap();
    });
    assert_eq!([weights(&near), weights(&far)], [after(2), after(2)]);
    assert_eq!((near.relinks(), far.relinks()), (0, 1));
    assert_eq!(describe(&hub.address).counts.relinks, 1);
    [near, far].into_iter().for_each(|session| session.leave().unwrap());
}

/// A background session makes links on its own thread while its caller computes.
#[test]
fn a_session_on_its_own_thread_makes_links_too() {
    let _watchdog = Watchdog::start();
    let hub = Behind::start();
    let sessions = on_threads(WORKERS, |rank| {
        let session = Background::join(hub.far(rank), &mut || false).unwrap();
        session.broadcast_written(&mut || false).unwrap();
        session
    });
    let relinks = || {
        let of = |session: &Background| session.with(|session| session.relinks(), &mut || false).unwrap();
        sessions.iter().map(of).collect::<Vec<_>>()
    };
    for round in 1..=3 {
        on_threads(WORKERS, |rank| {
            let session = &sessions[rank as usize];
            let keys = 0..session.keys().len() as u32;
            keys.into_iter().try_for_each(|key| session.push(KeyId(key))).unwrap();
            session.wait_all(&mut || false).unwrap();
        });
        hub.relay.cut(RelayPath::Data);
        until("the links are made again", || relinks() == [round; WORKERS as usize]);
    }
    let rounds: Vec<u32> = sessions.iter().map(|session| session.next_round().0).collect();
    assert_eq!(rounds[0], rounds[1]);
    let leave = |rank: u32| sessions[rank as usize].leave(&mut || false);
    on_threads(WORKERS, leave).into_iter().for_each(Result::unwrap);
}

/// A session ends if it cannot reconnect, even if the session has pushed nothing, waits for no answer, and
/// the hub is alive.
#[test]
fn links_that_cannot_be_made_again_end_a_session_that_has_pushed_nothing() {
    let _watchdog = Watchdog::start();
    let hub = Behind::start();
    let mut config = hub.far(0);
    config.terms.workers = 1;
    (config.hub_wait, config.join_limit) = (Duration::from_secs(1), Duration::from_secs(1));
    let mut session = begun(config);
    step(&mut session, 0, 0).unwrap();
    hub.relay.stall(RelayPath::Data, Stall::BOTH);
    hub.relay.cut(RelayPath::Data);
    let error = loop {
        match session.is_ready(hub_tests::FIRST) {
            Ok(_) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => break error,
        }
    };
    says(error, &["job \"job\"", "this worker could not reconnect"]);
}

/// A killed worker makes no links, and is named as dead. The hub may first see that the worker's links end,
/// or that the connection of its heartbeat ends.
#[test]
fn a_worker_that_is_killed_is_named_though_it_would_have_made_its_links_again() {
    let _watchdog = Watchdog::start();
    let hub = Behind::start();
    let far = hub.relay.address();
    let mut remote = Remote::start(&format!("{far} job 1 2 tcp waits"));
    let mut here = begun_beside_a_remote(&hub.address);
    remote.says("joined");
    let waits = std::thread::spawn(move || {
        here.keys().try_for_each(|key| here.push(key)).and_then(|()| here.wait_all())
    });
    remote.process().signal(Signal::KILL);
    says(waits.join().unwrap().unwrap_err(), &["\"job\" failed", "worker 1 is gone", "exited or was killed"]);
}

fn begun_beside_a_remote(hub: &str) -> Session {
    let mut config = hub_tests::config_at(hub, "job", 0, 2);
    config.terms.on_loss = OnLoss::Stop;
    let mut session = Session::join(config).unwrap();
    session.broadcast_weights(|_, weights: &mut [f32]| weights.fill(0.0)).unwrap();
    session
}

/// A worker that does not wait for hubs is lost with its links, at once and with the usual error.
#[test]
fn a_worker_that_waits_for_nothing_is_lost_with_its_links() {
    let _watchdog = Watchdog::start();
    let hub = Behind::start();
    let (ready, hub) = (&AtomicU32::new(0), &hub);
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WORKERS)
            .map(|rank| {
                scope.spawn(move || {
                    let mut session = begun(SessionConfig { hub_wait: Duration::ZERO, ..hub.far(rank) });
                    step(&mut session, rank, 0).unwrap();
                    ready.fetch_add(1, Ordering::Relaxed);
                    until("all are ready", || ready.load(Ordering::Relaxed) > WORKERS);
                    step(&mut session, rank, 1)
                })
            })
            .collect();
        until("both are ready", || ready.load(Ordering::Relaxed) == WORKERS);
        hub.relay.cut(RelayPath::Data);
        ready.fetch_add(1, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for result in results {
        says(result.unwrap_err(), &["\"job\" failed", "is gone", "closed the link, exited or was killed"]);
    }
}

#[test]
fn who_may_make_links_again_is_said_in_the_join_and_others_are_refused() {
    let hub = hub(1);
    type Change = fn(&mut JoinRequest);
    let changes: [(&str, Change, bool); 7] = [
        ("plain", |_| (), true),
        ("goes-on", |request| request.terms.on_loss = OnLoss::Continue, true),
        ("p3", |request| request.terms.level.schedule = Schedule::P3, true),
        ("does-not-ask", |request| request.relinks = false, false),
        ("kvstore", |request| request.terms.level.schedule = Schedule::KvStore, true),
        ("alone", |request| request.terms.level.consistency = Consistency::Asp, true),
        ("codec", |request| request.terms.level.compression = Some("topk:0.25".parse().unwrap()), true),
    ];
    for (job, change, relinks) in changes {
        let mut request = JoinRequest { relinks: true, ..join_request(0, 2) };
        change(&mut request);
        let reply = join_by_hand(&hub, job, &request);
        assert_eq!(reply.relinks, relinks, "{job}");
        let ask = |token: &str| refusal_of_member(&hub, job, "relink", token, r#"{"why": "a test"}"#);
        // The worker does not take part yet.
        let (status, why) = ask(&reply.token);
        assert_eq!(status, 409);
        says(why, &["worker 0", job, "cannot reconnect"]);
        assert_eq!(ask("0f3c").0, 404);
    }
}
