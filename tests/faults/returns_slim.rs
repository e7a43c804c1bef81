//! A hub of a job with Slim-DP ends and is started again. The values that a worker has not sent stay in its
//! gradients, and later pushes send them.

use std::sync::atomic::AtomicU32;

use super::returning::{Stops, WORKERS, end_together, places, start_process, waiting};
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{free_address, on_threads};
use pbox_core::Optimizer;
use rustix::process::Signal;
use worker_shim::{Returns, Session, SessionConfig};

const STEPS: u32 = 60;
const ENDS: u32 = 3;
/// An optimizer whose step is the mean of the workers' changes.
const ADDING: Optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };

/// Trains two workers. Each adds -1 to every gradient in every step, so that the weights count the steps.
fn train(transport: Transport, every: u32, kill: bool) -> Vec<(Returns, Vec<f32>)> {
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let mut hub = start_process(address, dir.path(), every);
    hub.read_reply();
    let (stops, here, last) =
        (Stops::every(WORKERS, STEPS / (ENDS + 1)), AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until("a checkpoint is there", || !kill || dir.path().join("job.safetensors").exists());
            stops.make(ENDS, |_| {
                if kill {
                    hub.signal(Signal::KILL);
                    hub.end();
                } else {
                    hub.finish();
                }
                hub = start_process(address, dir.path(), every);
                hub.read_reply();
            });
        });
        on_threads(WORKERS, |rank| {
            let config = waiting(address, rank);
            let config = SessionConfig { transport: Some(transport), ..config };
            let config = config.with_terms(|terms| {
                (terms.optimizer, terms.compare_every) = (ADDING, 0);
                terms.level.compression = Some("slim:0.4:0.2:5".parse().unwrap());
            });
            let mut session = Session::join(config).unwrap();
            session.broadcast_weights(|_, weights: &mut [f32]| weights.fill(0.0)).unwrap();
            let before = places(&mut session);
            for number in 0..STEPS {
                stops.before(&mut session, number);
                session.wait_all().unwrap();
                for key in session.keys() {
                    session.gradient_mut::<f32>(key).unwrap().iter_mut().for_each(|change| *change -= 1.0);
                    session.push(key).unwrap();
                }
            }
            end_together(&mut session, &here, WORKERS);
            assert_eq!(places(&mut session), before, "{transport}: the memory stays where it is");
            let returns = session.returns();
            // From here on nothing is added. Every fifth round all values are pushed, so that no value is
            // left to send.
            for _ in 0..6 {
                session.keys().try_for_each(|key| session.push(key)).unwrap();
                session.wait_all().unwrap();
            }
            end_together(&mut session, &last, WORKERS);
            let weights = session.keys().flat_map(|key| session.weights::<f32>(key).unwrap().to_vec());
            (returns, weights.collect())
        })
    })
}

#[test]
fn a_hub_that_stops_loses_nothing_of_slim_dp() {
    let _watchdog = Watchdog::start();
    for transport in [Transport::Shm, Transport::Tcp] {
        for (returns, weights) in train(transport, 1000, false) {
            assert_eq!(returns, Returns { times: ENDS, lost_rounds: 0 }, "{transport}");
            assert!(weights.iter().all(|&weight| weight == STEPS as f32), "{transport}: {weights:?}");
        }
    }
}

/// A push of a lost round also has values that earlier rounds left out. They are at most five rounds old,
/// because every fifth round pushes all values.
#[test]
fn a_hub_of_slim_dp_that_is_killed_loses_the_rounds_since_its_checkpoint() {
    let _watchdog = Watchdog::start();
    for transport in [Transport::Shm, Transport::Tcp] {
        let seen = train(transport, 4, true);
        for (Returns { times, lost_rounds }, weights) in &seen {
            assert!((1..=ENDS).contains(times), "{transport}"); // two ends may look like one
            let fewest = STEPS as f32 - *lost_rounds as f32 - 5.0 * ENDS as f32;
            let expected = fewest..=STEPS as f32;
            assert!(
                weights.iter().all(|weight| expected.contains(weight)),
                "{transport}: {expected:?}, {weights:?}"
            );
        }
        assert_eq!(seen[0].1, seen[1].1, "{transport}: nothing is left");
    }
}
