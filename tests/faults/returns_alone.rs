//! A hub ends and is started again while workers step alone. Every lost push is reported. No push counts twice, except a push
//! that was in flight when the hub was killed.
//!
//! The weights count pushes: each worker adds its own digit to all weights.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::returning::{Hubs, Stops, WORKERS, end_together, has_a_checkpoint, places, waiting};
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::on_threads;
use hub_tests::program::until;
use pbox_core::{Consistency, Optimizer, Round};
use worker_shim::{Returns, Session, SessionConfig};

pub(super) const COUNTING: Optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
/// The value that a push of rank 1 adds; a push of rank 0 adds 1. No rank pushes 2048 times.
pub(super) const DIGIT: f32 = 2048.0;

/// Returns a worker of one or several hubs, after the broadcast.
fn begun(list: &str, rank: u32, consistency: Consistency, transport: Transport) -> Session {
    let config = SessionConfig {
        hub: list.to_owned(),
        transport: Some(transport),
        ..waiting("127.0.0.1:1".parse().unwrap(), rank)
    };
    let config = config.with_terms(|terms| {
        (terms.level.consistency, terms.optimizer) = (consistency, COUNTING);
        terms.compare_every = 0; // they have different weights
    });
    let mut session = Session::join(config).unwrap();
    session.broadcast_weights(|_, weights: &mut [f32]| weights.fill(0.0)).unwrap();
    session
}

/// Pushes each key as soon as it is idle. So keys are in different rounds when the hub ends.
pub(super) fn step(session: &mut Session, gradient: f32) {
    for key in session.keys() {
        session.wait(key).unwrap();
        session.gradient_mut::<f32>(key).unwrap().fill(gradient);
        session.push(key).unwrap();
    }
}

pub(super) fn digit(rank: u32) -> f32 {
    [-1.0, -DIGIT][rank as usize]
}

/// The result of a worker after all workers have ended.
pub(super) struct Ended {
    pub returns: Returns,
    pub next_round: Round,
    /// The lowest and the highest number of pushes that a weight has, for each rank.
    pub pushes: Vec<(u32, u32)>,
}

/// Waits for all workers, and gets the weights with all pushes that have arrived. No hub ends any more.
pub(super) fn ended(session: &mut Session, [here, last]: &[AtomicU32; 2], workers: u32) -> Ended {
    end_together(session, here, workers);
    let (returns, next_round) = (session.returns(), session.next_round());
    step(session, 0.0);
    end_together(session, last, workers);
    let weights = session.keys().flat_map(|key| session.weights::<f32>(key).unwrap().to_vec());
    let counts: Vec<[u32; 2]> =
        weights.map(|weight| [(weight % DIGIT) as u32, (weight / DIGIT) as u32]).collect();
    let of_rank = |rank: usize| {
        let of_rank = || counts.iter().map(|counts| counts[rank]);
        (of_rank().min().unwrap(), of_rank().max().unwrap())
    };
    Ended { returns, next_round, pushes: (0..2).map(of_rank).collect() }
}

/// Asserts that the rounds and the lost rounds of each worker add up to its steps.
pub(super) fn assert_adds_up(ended: &[Ended], steps: u32) {
    for Ended { returns, next_round, .. } in ended {
        assert_eq!(u64::from(next_round.0) + returns.lost_rounds, u64::from(steps) + 1, "{returns:?}");
    }
}

/// Kills hubs at any moment, also while a job begins again after a kill. `tests/sim/lives` tests the other
/// kinds of consistency, and hubs that stop.
#[test]
fn one_hub_of_two_may_be_killed_while_workers_step_alone() {
    const STEPS: u32 = 240;
    const KILLS: u32 = 4;
    let (consistency, _watchdog) = (Consistency::Ssp { staleness: 3 }, Watchdog::start());
    let mut hubs = Hubs::start(2, 10);
    let list = hubs.list();
    let (stops, here): (_, [AtomicU32; 2]) = (Stops::every(WORKERS, STEPS / (KILLS + 1)), Default::default());
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            until("a checkpoint is there", || has_a_checkpoint(&hubs.dirs));
            stops.kill(KILLS, |number| {
                hubs.kill(number % 2);
                hubs.again(number % 2);
            });
        });
        on_threads(WORKERS, |rank| {
            let transport = [Transport::Shm, Transport::Tcp][rank as usize];
            let mut session = begun(&list, rank, consistency, transport);
            let before = places(&mut session);
            for number in 0..STEPS {
                stops.before(&mut session, number);
                step(&mut session, digit(rank));
                std::thread::sleep(Duration::from_millis(u64::from(2 * rank + number) % 4));
            }
            let ended = ended(&mut session, &here, WORKERS);
            assert_eq!(places(&mut session), before, "the memory stays where it is");
            ended
        })
    });
    assert_adds_up(&seen, STEPS);
    assert_counts_add_up(&seen, consistency, STEPS);
    assert!(seen[0].pushes.iter().any(|&(least, _)| least < STEPS), "kills lose something");
}

/// Asserts that after kills the weights contain each rank's pushes, without the pushes that were reported as
/// lost.
pub(super) fn assert_counts_add_up(seen: &[Ended], consistency: Consistency, steps: u32) {
    assert!(seen.iter().all(|ended| ended.returns.times > 2), "{consistency}");
    // A worker that was ahead loses its extra rounds, too: with ASP any number of them. One push without an
    // answer may have been in the checkpoint.
    let ahead = match consistency {
        Consistency::Ssp { staleness } => u64::from(staleness + 1),
        Consistency::Asp | Consistency::Bsp => u64::from(steps),
    };
    for (rank, Ended { returns: Returns { times, lost_rounds }, .. }) in seen.iter().enumerate() {
        let fewest = u64::from(steps).saturating_sub(lost_rounds + u64::from(*times) * ahead);
        let most = u64::from(steps + times);
        let (least, highest) = seen[0].pushes[rank];
        assert!(
            (fewest..=most).contains(&least.into()) && (fewest..=most).contains(&highest.into()),
            "{consistency}: {least} to {highest} pushes of rank {rank}, expected {fewest} to {most}"
        );
    }
    assert_eq!(seen[0].pushes, seen[1].pushes, "{consistency}: there is one state");
}
