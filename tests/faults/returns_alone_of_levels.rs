//! Machines that step alone. A hub of a machine is killed and started again. The workers of a machine step
//! together, and each machine has its own rounds. `tests/sim/lives` tests hubs above that are lost or stop.
//!
//! The weights count pushes, as in [`returns_alone`](super::returns_alone): each machine adds its own digit.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::returning::{Stops, WORKERS, has_a_checkpoint};
use super::returns_alone::{COUNTING, Ended, assert_adds_up, assert_counts_add_up, digit, ended, step};
use super::returns_of_levels::{Cluster, MACHINES, on_machines};
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use pbox_core::Consistency;
use worker_shim::Session;

/// Trains on all machines, while `faults` ends hubs and starts them again. After a step each worker sleeps
/// for `pause` milliseconds, which depends on the numbers of the worker and the step.
fn trained(
    cluster: &mut Cluster,
    consistency: Consistency,
    steps: u32,
    stops: &Stops,
    pause: impl Fn(u32, u32) -> u64 + Sync,
    faults: impl FnOnce(&mut Cluster) + Send,
) -> Vec<Ended> {
    let configs: Vec<_> = (0..MACHINES * WORKERS)
        .map(|number| {
            let mut config = cluster.config(number / WORKERS, number % WORKERS);
            config.terms.compare_every = 0; // the machines have different weights
            config.with_terms(|terms| {
                (terms.level.consistency, terms.optimizer) = (consistency, COUNTING);
            })
        })
        .collect();
    let here: [AtomicU32; 2] = Default::default();
    std::thread::scope(|scope| {
        scope.spawn(|| faults(cluster));
        on_machines(|worker| {
            let mut session = Session::join(configs[worker as usize].clone()).unwrap();
            session.broadcast_weights(|_, weights: &mut [f32]| weights.fill(0.0)).unwrap();
            for number in 0..steps {
                stops.before(&mut session, number);
                step(&mut session, digit(worker / WORKERS));
                std::thread::sleep(Duration::from_millis(pause(worker, number)));
            }
            ended(&mut session, &here, MACHINES * WORKERS)
        })
    })
}

#[test]
fn a_hub_below_of_machines_that_step_alone_may_be_killed_at_any_moment() {
    const TURN: [usize; 2] = [1, 0];
    const STEPS: u32 = 200;
    const KILLS: u32 = 4;
    let (consistency, _watchdog) = (Consistency::Ssp { staleness: 3 }, Watchdog::start());
    let mut cluster = Cluster::start(false, 10, 30);
    let stops = Stops::every(MACHINES * WORKERS, STEPS / (KILLS + 1));
    let pause = |worker: u32, number: u32| u64::from(2 * worker + number) % 4;
    let seen = trained(&mut cluster, consistency, STEPS, &stops, pause, |cluster| {
        until("a checkpoint is there", || has_a_checkpoint(&cluster.dirs));
        stops.kill(KILLS, |number| {
            cluster.kill(TURN[number % TURN.len()]);
            cluster.again(TURN[number % TURN.len()]);
        });
    });
    assert_adds_up(&seen, STEPS);
    let first_of_machines: Vec<Ended> = seen.into_iter().step_by(WORKERS as usize).collect();
    assert_counts_add_up(&first_of_machines, consistency, STEPS);
}
