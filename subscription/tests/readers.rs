//! Readers of a job at its hub: each version has the bits of the oracle's round, and each misuse is an error in words.

use std::num::NonZeroU32;
use std::thread;
use std::time::Duration;

use fabric::conformance::Watchdog;
use subscription::{Names, Precision, SourceError, SourceSettings, Subscription, SubscriptionError, Wanted};

use crate::job::{check, hub, newest, settings, step, while_stepping, worker};

const PLAIN: [(&str, Precision); 3] =
    [("first", Precision::F32), ("second", Precision::F32), ("third", Precision::F32)];

#[test]
fn each_version_has_the_bits_of_its_round_until_the_job_ends() {
    let _watchdog = Watchdog::start();
    let hub = hub();
    let mut session = worker(&hub);
    step(&mut session);
    let all = [Precision::F32, Precision::Bf16, Precision::F16];
    let kinds = all.into_iter().flat_map(|of_all| [(of_all, of_all), (of_all, Precision::F16)]);
    for ((precision, of_second), fetch_deltas) in kinds.flat_map(|kind| [(kind, false), (kind, true)]) {
        // The first key has another name, and the second one may have its own type.
        let expected = [("model.first", precision), ("second", of_second), ("third", precision)];
        let names = Names::default().with("first", "model.first", None);
        let names = names.with("second", "second", Some(of_second));
        let versions = newest(SourceSettings { precision, names, fetch_deltas, ..settings(&hub) });
        let rounds = while_stepping(&mut session, || {
            let next = || versions.next_version().unwrap().unwrap();
            let all = [(); 5].map(|()| next());
            all.iter().for_each(|version| check(version, expected));
            all.map(|version| (version.origin.round, version.id, version.skipped))
        });
        assert!(
            rounds.is_sorted_by(|(a, ..), (b, ..)| a < b),
            "each is newer than the one before: {rounds:?}"
        );
        assert!(rounds.iter().all(|&(_, id, skipped)| (id, skipped) == (None, 0)));
    }
    let versions = newest(settings(&hub));
    let last = versions.next_version().unwrap().unwrap();
    assert_eq!(last.origin.round, session.next_round().0);
    check(&last, PLAIN);
    session.leave().unwrap();
    assert_eq!(versions.next_version().unwrap(), None, "the job has ended");
}

#[test]
fn the_weights_before_each_round_that_is_wanted_come_and_those_that_were_missed_are_counted() {
    let _watchdog = Watchdog::start();
    let hub = hub();
    let mut session = worker(&hub);
    step(&mut session);
    let each = NonZeroU32::new(5).unwrap();
    let versions = Subscription::to_hubs(settings(&hub), Wanted::Each(each)).unwrap();
    while_stepping(&mut session, || {
        let mut last = None;
        for _ in 0..4 {
            let version = versions.next_version().unwrap().unwrap();
            check(&version, PLAIN);
            let round = version.origin.round;
            assert!(round.is_multiple_of(5) && Some(round) > last, "{round} after {last:?}");
            assert_eq!(version.skipped, last.map_or(0, |last| u64::from((round - last) / 5 - 1)));
            last = Some(round);
        }
    });
}

#[test]
fn a_wait_ends_by_its_timeout_an_interrupt_or_a_close_and_one_thread_waits_at_a_time() {
    let _watchdog = Watchdog::start();
    let hub = hub();
    let mut session = worker(&hub);
    step(&mut session);
    let versions = newest(settings(&hub)).with_timeout(Duration::from_millis(100));
    check(&versions.next_version().unwrap().unwrap(), PLAIN);
    let why = versions.next_version().unwrap_err();
    assert!(matches!(why, SubscriptionError::Timeout { .. }), "{why:?}");
    let said = why.to_string();
    assert!(said.contains("no version within the timeout: the job is still before round 2"), "{said}");
    step(&mut session);
    assert_eq!(versions.next_version().unwrap().unwrap().origin.round, 3, "it goes on");

    let versions = newest(settings(&hub));
    versions.next_version().unwrap().unwrap();
    let mut asked = 0;
    let interrupted = versions.next_version_unless(&mut || {
        asked += 1;
        // This thread waits, so another one cannot.
        let busy = thread::scope(|scope| scope.spawn(|| versions.next_version()).join().unwrap());
        assert!(matches!(busy, Err(SubscriptionError::Busy)), "{busy:?}");
        asked == 3
    });
    assert!(matches!(interrupted, Err(SubscriptionError::Interrupted)), "{interrupted:?}");
    let closed = versions.next_version_unless(&mut || {
        versions.close();
        false
    });
    assert_eq!(closed.unwrap(), None);
    assert_eq!(versions.next_version().unwrap(), None, "it stays closed");
}

#[test]
fn what_cannot_be_read_is_named() {
    let _watchdog = Watchdog::start();
    let hub = hub();
    let mut session = worker(&hub);
    step(&mut session);
    let refused = |settings: SourceSettings| {
        Subscription::to_hubs(settings, Wanted::default()).map(drop).unwrap_err().to_string()
    };
    let says = |said: String, words: &str| assert!(said.contains(words), "{said}");
    says(refused(SourceSettings::new("nowhere", "job")), "nowhere");
    let address = hub.address().to_string();
    says(refused(SourceSettings::new(&format!("{address},{address}"), "job")), "is listed twice");
    says(refused(SourceSettings::new(&address, "a/b")), "a/b");
    for (key, name, words) in [
        ("fourth", "a", "job \"job\" has no key \"fourth\", which the mapping of names calls \"a\""),
        (
            "first",
            "second",
            "job \"job\" would have two tensors with the name \"second\", of key \"first\" and of key \"second\"",
        ),
    ] {
        let names = Names::default().with(key, name, None);
        let why = newest(SourceSettings { names, ..settings(&hub) }).next_version().unwrap_err();
        says(why.to_string(), words);
    }
    let why = newest(SourceSettings { averages: true, ..settings(&hub) }).next_version().unwrap_err();
    assert!(matches!(why, SubscriptionError::Source(SourceError::Hub(_))), "{why:?}");
    says(why.to_string(), "keeps no averages of its weights");
    // No hub listens at this port.
    let nobody = SourceSettings::new("127.0.0.1:1", "job");
    let lost = newest(SourceSettings { hub_wait: Duration::ZERO, ..nobody }).next_version().unwrap_err();
    assert!(matches!(&lost, SubscriptionError::Lost(why) if why.contains("127.0.0.1:1")), "{lost:?}");
}
