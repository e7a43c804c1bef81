//! The hub measures in some rounds how large gradients are, and counts their values that are not numbers.

use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{config, describe, hub, push_all, ready_all};
use pbox_core::control::GradientNorm;
use pbox_core::{Consistency, KeyId, Optimizer};
use phub_server::Hub;
use worker_shim::{Session, SessionConfig};

/// The number of values in the model, whose keys have 120, 1 and 50 values.
const VALUES: f64 = 171.0;

/// Pushes the same value everywhere, except for one key's first value.
fn round(session: &mut Session, value: f32, first: f32) {
    for key in (0..3).map(KeyId) {
        let gradient = session.gradient_mut::<f32>(key).unwrap();
        gradient.fill(value);
        gradient[0] = if key == KeyId(2) { first } else { value };
    }
    push_all(session).unwrap();
    session.wait_all().unwrap();
}

fn norms(hub: &Hub) -> Option<(u64, GradientNorm)> {
    let job = describe(&hub.address().to_string()).jobs.remove(0);
    let gradients = job.gradients?;
    assert_eq!((gradients.every, gradients.recent.len()), (64, 0), "the history is for those who listen");
    let says = job.verdict.contains("values of the gradients of round 65 were not finite");
    assert_eq!(says, gradients.last.not_finite > 0, "{}", job.verdict);
    Some((gradients.not_finite, gradients.last))
}

/// Trains two workers on two cores. The means of gradients are 2 in round 1. In round 65 the means are 0.5,
/// except two values that are not numbers.
fn train(hub: &Hub, change: impl Fn(&mut SessionConfig) + Sync) {
    let mut sessions = ready_all(2, |rank| {
        let mut config = config(hub, "job", rank, 2);
        change(&mut config);
        config
    });
    for number in 1..=66 {
        std::thread::scope(|scope| {
            for (rank, session) in (0..2).zip(&mut sessions) {
                scope.spawn(move || match number {
                    1 => round(session, [1.0, 3.0][rank], [1.0, 3.0][rank]),
                    65 => round(session, [0.0, 1.0][rank], [f32::INFINITY, f32::NAN][rank]),
                    _ => round(session, 9.0, 9.0),
                });
            }
        });
        match number {
            1 => {
                until("round 1 is seen", || norms(hub).is_some());
                let (not_finite, last) = norms(hub).unwrap();
                assert_eq!((not_finite, last.round.0, last.not_finite), (0, 1, 0));
                assert!((last.norm - (4.0 * VALUES).sqrt()).abs() < 1e-9, "{last:?}");
            }
            66 => {
                until("round 65 is seen", || norms(hub).is_some_and(|(_, last)| last.round.0 == 65));
                let (not_finite, last) = norms(hub).unwrap();
                assert_eq!((not_finite, last.not_finite), (1, 1));
                assert!((last.norm - (0.25 * (VALUES - 1.0)).sqrt()).abs() < 1e-9, "{last:?}");
            }
            _ => {}
        }
    }
}

#[test]
fn the_norm_of_the_mean_and_values_that_are_no_numbers() {
    let _watchdog = Watchdog::start();
    train(&hub(2), |_| {});
    train(&hub(1), |config| config.terms.optimizer = Optimizer::Average);
    // Frames are decoded before they are summed, and f16 can hold all these values.
    train(&hub(2), |config| config.terms.level.compression = Some("f16".parse().unwrap()));
}

#[test]
fn workers_that_step_alone_have_no_mean() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut sessions = ready_all(1, |rank| {
        let mut config = config(&hub, "job", rank, 1);
        config.terms.level.consistency = Consistency::Asp;
        config
    });
    for _ in 0..4 {
        round(&mut sessions[0], 1.0, f32::NAN);
    }
    until("the hub has looked", || {
        let job = describe(&hub.address().to_string()).jobs.remove(0);
        assert_eq!(job.gradients, None);
        job.round.0 >= 4
    });
}

#[test]
fn a_hub_shows_the_norm_of_a_clipped_job_and_its_skipped_rounds() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let mut sessions = ready_all(1, |rank| {
        let mut config = config(&hub, "job", rank, 1);
        (config.terms.clip_norm, config.terms.skip_nonfinite) = (Some(1.0), true);
        config
    });
    for (value, first) in [(2.0, 2.0), (2.0, f32::INFINITY), (3.0, 3.0)] {
        round(&mut sessions[0], value, first);
    }
    let seen = || describe(&hub.address().to_string()).jobs.remove(0).gradients;
    until("round 3 is seen", || seen().is_some_and(|gradients| gradients.last.round.0 == 3));
    let gradients = seen().unwrap();
    assert_eq!(gradients.skipped, Some(1));
    assert!((gradients.last.norm - (9.0 * VALUES).sqrt()).abs() < 1e-5, "{:?}", gradients.last);
}
