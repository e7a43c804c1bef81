//! Faults that end no job. A proxy answers for the hub, an answer is lost, or a hub is suspended for some
//! time.

use authority::Credential;
use std::io::Read;
use std::time::Duration;

use crate::processes::hub::start_hub;
use crate::processes::worker::Worker;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::proxy::{Break, Proxy};
use hub_tests::{config_at, hub_with_limit, ready_all, refused, says};
use membership::{Join, Named};
use pbox_core::Round;
use rustix::process::Signal;
use worker_shim::{Session, SessionConfig, SessionError, State};

/// Longer than the test's watchdog waits.
const PATIENCE: Duration = Duration::from_secs(600);

const BREAKS: [Break; 6] =
    [Break::Page(200), Break::Page(502), Break::Page(503), Break::Page(504), Break::Lose, Break::LoseAnswer];

/// Returns the only worker of a job, which reaches its hub through a proxy.
fn alone(proxy: &Proxy) -> Session {
    ready_all(1, |rank| config_at(&proxy.address(), "job", rank, 1)).remove(0)
}

fn round(session: &mut Session) {
    hub_tests::push_all(session).unwrap();
    session.wait_all().unwrap();
}

#[test]
fn heartbeats_go_on_through_what_passes() {
    let _watchdog = Watchdog::start();
    let hub = hub_with_limit(1, 3);
    let proxy = Proxy::start(hub.address());
    let mut session = alone(&proxy);
    for how in BREAKS {
        proxy.breaks("heartbeat", how, 2);
        until("the heartbeats are broken", || proxy.left() == 0);
        round(&mut session);
    }
    // The next heartbeat after the last broken heartbeat arrives within the limit.
    std::thread::sleep(Duration::from_secs(4));
    round(&mut session);
    session.leave().unwrap();
}

#[test]
fn requests_are_made_again_and_may_come_twice() {
    let _watchdog = Watchdog::start();
    let hub = hub_with_limit(1, 3);
    let proxy = Proxy::start(hub.address());
    for how in BREAKS {
        if matches!(how, Break::Page(502..)) {
            proxy.breaks("join", how, 2);
        }
        let mut session = alone(&proxy);
        assert_eq!(proxy.left(), 0, "{how:?}");
        proxy.breaks("learning-rate", how, 2);
        session.set_learning_rate(0.25).unwrap_or_else(|error| panic!("{how:?}: {error}"));
        assert_eq!(proxy.left(), 0, "{how:?}");
        round(&mut session);
        proxy.breaks("leave", how, 2);
        session.leave().unwrap_or_else(|error| panic!("{how:?}: {error}"));
        assert_eq!(proxy.left(), 0, "{how:?}");
    }
}

#[test]
fn a_state_is_offered_again() {
    let _watchdog = Watchdog::start();
    let hub = hub_with_limit(1, 3);
    let proxy = Proxy::start(hub.address());
    for status in [502, 503, 504] {
        let config = config_at(&proxy.address(), &format!("job-{status}"), 0, 1);
        let elements: u64 = config.terms.keys.iter().map(|key| key.elements().unwrap()).sum();
        let values = Box::new(std::io::repeat(0).take(elements * 4));
        proxy.breaks("offer", Break::Page(status), 2);
        let state = State { before: Round(5), steps: None, values };
        let session = Session::join_with(config, state).unwrap();
        assert_eq!((proxy.left(), session.next_round()), (0, Round(5)), "{status}");
        session.leave().unwrap();
    }
}

/// The hub admits the worker, but the hub's answer is lost. The rank is free after the hub's limit of one
/// second.
#[test]
fn a_worker_whose_join_was_cut_waits_for_its_own_rank() {
    let _watchdog = Watchdog::start();
    let hubs = [hub_with_limit(1, 1), hub_with_limit(1, 1)];
    let proxies = hubs.each_ref().map(|hub| Proxy::start(hub.address()));
    let [first, second] = proxies.each_ref().map(Proxy::address);
    let both = format!("{first},{second}");
    for (job, hubs, cut) in [("one", &first, 0), ("first", &both, 0), ("second", &both, 1)] {
        proxies[cut].breaks("join", Break::LoseAnswer, 1);
        let config = |rank| SessionConfig { hub_wait: PATIENCE, ..config_at(hubs, job, rank, 1) };
        let mut session = ready_all(1, config).remove(0);
        assert_eq!(proxies[cut].left(), 0, "{job}");
        round(&mut session);
        session.leave().unwrap();
    }
}

#[test]
fn a_worker_that_joins_as_its_hub_stops_waits_for_the_next_hub() {
    let _watchdog = Watchdog::start();
    let hub = hub_with_limit(1, 1);
    let proxy = Proxy::start(hub.address());
    proxy.breaks("join", Break::Stops, 2);
    let config = |rank| SessionConfig { hub_wait: PATIENCE, ..config_at(&proxy.address(), "job", rank, 1) };
    let mut session = ready_all(1, config).remove(0);
    assert_eq!(proxy.left(), 0);
    round(&mut session);
    session.leave().unwrap();
    // If the worker does not wait for a hub, its error has the hub's text.
    proxy.breaks("join", Break::Stops, u32::MAX);
    says(refused(config_at(&proxy.address(), "other", 0, 1)), &["the hub stops"]);
}

#[test]
fn a_rank_of_another_worker_is_an_error_at_once() {
    let _watchdog = Watchdog::start();
    let hub = hub_with_limit(1, 300);
    let proxy = Proxy::start(hub.address());
    let there = hub_tests::join_by_hand(&hub, "job", &hub_tests::join_request(1, 2));
    proxy.breaks("join", Break::Page(502), 1);
    let config = SessionConfig { hub_wait: PATIENCE, ..config_at(&proxy.address(), "job", 1, 2) };
    says(refused(config), &["rank 1", "taken"]);
    drop(there);
}

#[test]
fn a_request_that_never_comes_through_says_how_often_it_was_made() {
    let _watchdog = Watchdog::start();
    let hub = hub_with_limit(1, 1);
    let proxy = Proxy::start(hub.address());
    for status in [502, 503, 504] {
        let mut session = alone(&proxy);
        proxy.breaks("learning-rate", Break::Page(status), u32::MAX);
        let error = session.set_learning_rate(0.25).unwrap_err();
        says(&error, &[&status.to_string(), "no hub here", "(tried ", " times in "]);
        assert!(matches!(&error, SessionError::Member(lost) if lost.is_loss_of_hub()), "{error}");
        session.leave().unwrap();
    }
}

#[test]
fn a_request_that_is_lost_while_its_hub_stops_says_that_the_hub_stops() {
    let _watchdog = Watchdog::start();
    let hub = hub_with_limit(1, 30);
    let proxy = Proxy::start(hub.address());
    let mut session = alone(&proxy);
    proxy.breaks("learning-rate", Break::Lose, u32::MAX);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until("a request is lost", || proxy.left() < u32::MAX);
            drop(hub);
        });
        let error = session.set_learning_rate(0.25).unwrap_err();
        assert!(matches!(&error, SessionError::Member(lost) if lost.is_loss_of_hub()), "{error}");
    });
}

#[test]
fn a_hub_that_stood_still_for_longer_than_its_limit_goes_on() {
    let _watchdog = Watchdog::start();
    let (hub, address) = start_hub(&[("PHUB_HEARTBEAT_LIMIT_S", "3")]);
    let mut here = Worker::join(&format!("{address} job 0 1")).unwrap();
    for _ in 0..2 {
        here.round().unwrap();
        hub.stop();
        std::thread::sleep(Duration::from_secs(4));
        hub.signal(Signal::CONT);
        here.round().unwrap();
        // If the worker were silent now, the hub would notice within this time.
        std::thread::sleep(Duration::from_secs(4));
    }
    here.round().unwrap();
    here.leave().unwrap();
}

/// Making windows and links may take longer than the hub accepts silence.
#[test]
fn a_member_lives_from_its_join_on() {
    let _watchdog = Watchdog::start();
    let hub = hub_with_limit(1, 1);
    let request = hub_tests::join_request(0, 1);
    let address = hub.address().to_string();
    let credential = Credential::find_if_any().unwrap();
    let join = Join {
        addresses: &[&address],
        job: "job",
        limit: Duration::from_secs(10),
        request: &request,
        credential: credential.as_ref(),
        named: &Named::Here,
    };
    let let_in = join.once().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let job = &hub_tests::describe(&address).jobs[0];
    assert!(matches!(job.state, pbox_core::control::JobState::Gathering { .. }), "{job:?}");
    drop(let_in);
}
