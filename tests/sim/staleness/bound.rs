//! SSP and ASP over the simulated network: whole jobs whose workers run ahead at random keep what the consistency promises. A
//! failure prints its seed.

use std::sync::Arc;

use fabric::sim::{Faults, Net, seeds};
use pbox_core::OnLoss;
use pbox_core::{Consistency, Key, KeyId, Layout, Notice, Schedule};
use sim_tests::race::{Race, SGD};
use sim_tests::simulated::Terms;

const WORKERS: u32 = 3;
/// Rounds with gradients. One more round, of zeros, shows the final weights.
const ROUNDS: u32 = 12;

const fn ssp(staleness: u32) -> Consistency {
    Consistency::Ssp { staleness }
}

fn layout() -> Arc<Layout> {
    let keys = vec![Key::f32("a", [1]), Key::f32("b", [17]), Key::f32("c", [300]), Key::f32("d", [16, 9])];
    Arc::new(Layout::new(keys, 256).unwrap())
}

fn keys() -> impl Iterator<Item = KeyId> {
    (0..layout().keys().len() as u32).map(KeyId)
}

/// A job of three workers after the broadcast of zeros.
fn race(seed: u64, consistency: Consistency, on_loss: OnLoss) -> Race {
    let net = Net::new(seed, Faults { delay: 0..20, reorder: true, ..Faults::NONE });
    let mut terms = Terms::new(WORKERS, 1 + (seed % 3) as usize, SGD);
    (terms.job.level.consistency, terms.job.on_loss) = (consistency, on_loss);
    terms.job.level.schedule = Schedule::ALL[(seed / 5 % 4) as usize];
    Race::new(seed, net, &layout(), terms, ROUNDS)
}

const ALL: [Consistency; 5] = [ssp(0), ssp(1), ssp(3), ssp(100), Consistency::Asp];

#[test]
fn every_answer_keeps_the_bound_and_every_push_counts_once() {
    for seed in seeds(200) {
        let consistency = ALL[(seed % 5) as usize];
        let mut race = race(seed, consistency, OnLoss::Stop);
        race.run(ROUNDS + 1);
        let last_begun = race.answered.iter().flatten().all(|&answered| answered == ROUNDS + 1);
        assert!(last_begun && race.job.notices.is_empty(), "{:?}", race.job.notices);
        race.run(ROUNDS + 2);
        race.check_all_pushes();
        let steps: u64 = race.job.cores.iter().map(|core| core.tally().chunks).sum();
        assert_eq!(steps, u64::from(WORKERS * (ROUNDS + 2)) * layout().chunks().len() as u64);
    }
}

/// For how many rounds after the broadcast a worker gets answers while another worker stands still.
fn rounds_alone(seed: u64, consistency: Consistency) -> u32 {
    let mut race = race(seed, consistency, OnLoss::Stop);
    race.run(1);
    for _ in 0..=ROUNDS {
        race.push_all(&[0, 1]);
        race.settle();
    }
    assert_eq!(race.answered[0], race.answered[1]);
    assert_eq!(race.answered[2], vec![1; keys().count()], "it has the first weights and pushes nothing");
    assert!(race.answered[0].iter().all(|&answered| answered == race.answered[0][0]));
    race.answered[0][0] - 1
}

#[test]
fn a_slow_worker_holds_the_others_exactly_at_the_staleness() {
    for seed in seeds(4) {
        for staleness in [0, 1, 2, 5] {
            assert_eq!(rounds_alone(seed, ssp(staleness)), staleness, "staleness {staleness}");
        }
        assert_eq!(rounds_alone(seed, Consistency::Asp), ROUNDS + 1, "nobody waits");
    }
}

/// With a staleness of 0 every worker's weights contain all rounds before its round, as in BSP.
#[test]
fn with_no_staleness_no_worker_is_ahead() {
    for seed in seeds(20) {
        let mut race = race(seed, ssp(0), OnLoss::Stop);
        for rounds in 1..=ROUNDS {
            race.run(rounds);
            for (worker, key) in race.job.workers.iter().flat_map(|w| keys().map(move |key| (w, key))) {
                let seen = race.contained(&worker.weights::<f32>(key).unwrap()[..1], 0);
                assert_eq!(seen[0], Some(rounds - 1));
            }
        }
    }
}

#[test]
fn the_death_of_the_slowest_releases_the_workers_that_waited_for_it() {
    for seed in seeds(20) {
        let mut race = race(seed, ssp(2), OnLoss::Continue);
        race.run(1);
        for _ in 0..4 {
            race.push_all(&[0, 1]);
            race.settle();
        }
        assert_eq!(race.answered[0], vec![3; keys().count()], "two rounds ahead");
        race.job.kill(2);
        race.settle();
        let is_two = |notice: &Notice| matches!(notice, Notice::WorkerGone { rank: 2, .. });
        assert!(!race.job.notices.is_empty() && race.job.notices.iter().all(is_two));
        assert_eq!(race.answered[0], vec![4; keys().count()]);
        race.run(ROUNDS + 1);
        for rank in [0, 1] {
            assert_eq!(race.answered[rank], vec![ROUNDS + 1; keys().count()], "{:?}", race.job.notices);
        }
    }
}

#[test]
fn a_worker_that_dies_anywhere_and_comes_back_keeps_the_bound() {
    for seed in seeds(200) {
        let mut race = race(seed, ALL[(seed % 5) as usize], OnLoss::Continue);
        race.run(3);
        // Anywhere in a round.
        race.push_all(&[0, 1, 2]);
        (0..race.draw(60)).for_each(|_| race.step());
        race.job.kill(2);
        // The hub may see the end of its links only when the worker comes back.
        if race.draw(2) == 0 {
            race.settle();
            race.run(6);
        }
        race.rejoin(2);
        race.run(ROUNDS + 1);
        race.run(ROUNDS + 2);
        race.check_all_pushes();
    }
}

#[test]
fn a_held_job_stands_still_and_loses_nothing() {
    for seed in seeds(60) {
        let mut race = race(seed, ALL[(seed % 5) as usize], OnLoss::Continue);
        race.run(3);
        // The last rank is the slowest.
        race.push_all(&[0, 1]);
        (0..race.draw(200)).for_each(|_| race.step());
        let front = race.job.hold();
        let steps = |race: &Race| race.job.cores.iter().map(|core| core.tally().chunks).sum::<u64>();
        let before = steps(&race);
        race.push_all(&[0, 1, 2]);
        race.settle();
        let dies = seed % 2 == 0;
        if dies {
            race.job.kill(2);
            race.settle();
            race.telling[2] = false; // its pushes during the hold do not count
        }
        assert_eq!((steps(&race), race.job.hold()), (before, front), "while it is held");
        race.job.release(front, &[]);
        race.settle();
        assert!(dies || steps(&race) > before, "the arrivals of the hold are stepped");
        race.run(ROUNDS + 1);
        race.run(ROUNDS + 2);
        if !dies {
            race.check_all_pushes();
        }
    }
}

#[test]
fn a_push_before_the_answer_costs_the_link() {
    for consistency in [ssp(0), Consistency::Asp] {
        let mut race = race(1, consistency, OnLoss::Stop);
        // The others have not pushed round 0, so the hub does not answer this. The network delivers it twice.
        let end = race.job.ends[0][0];
        race.job.net().duplicate_next(end);
        race.push_all(&[0]);
        for _ in 0..200 {
            (0..race.job.cores.len()).for_each(|core| _ = race.job.turn_core(core));
        }
        let [Notice::WorkerGone { rank: 0, reason, .. }] = &race.job.notices[..] else {
            panic!("{consistency}: {:?}", race.job.notices)
        };
        assert!(reason.contains("again before it was answered in round 0"), "{reason}");
    }
}
