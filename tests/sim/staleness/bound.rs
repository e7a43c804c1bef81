//! SSP and ASP over the simulated network: the number of rounds that a worker can make alone, and the result of a push
//! beyond that number. The tests in `lives` also check the bound, and that each push counts once. A failure prints its
//! seed.

use std::sync::Arc;

use fabric::sim::{Faults, Net, seeds};
use pbox_core::{Consistency, Key, KeyId, Layout, Notice, Schedule};
use sim_tests::race::{Race, SGD};
use sim_tests::simulated::Terms;

const WORKERS: u32 = 3;
/// The number of rounds with gradients.
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

/// Returns a job of three workers after the broadcast of zeros.
fn race(seed: u64, consistency: Consistency) -> Race {
    let net = Net::new(seed, Faults { delay: 0..20, reorder: true, ..Faults::NONE });
    let mut terms = Terms::new(WORKERS, 1 + (seed % 3) as usize, SGD);
    terms.job.level.consistency = consistency;
    terms.job.level.schedule = Schedule::ALL[(seed / 5 % 4) as usize];
    Race::new(seed, net, &layout(), terms, ROUNDS)
}

/// Returns the number of rounds after the broadcast in which a worker gets answers while another worker does
/// nothing.
fn rounds_alone(seed: u64, consistency: Consistency) -> u32 {
    let mut race = race(seed, consistency);
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

#[test]
fn a_push_before_the_answer_costs_the_link() {
    for consistency in [ssp(0), Consistency::Asp] {
        let mut race = race(1, consistency);
        // The other workers have not pushed round 0, so the hub does not answer this push. The network
        // delivers it twice.
        let end = race.job.ends[0][0];
        race.job.net().duplicate_next(end);
        race.push_all(&[0]);
        for _ in 0..200 {
            (0..race.job.cores.len()).for_each(|core| _ = race.job.turn_core(core));
        }
        let [Notice::WorkerGone { rank: 0, reason, .. }] = &race.job.notices[..] else {
            panic!("{consistency}: {:?}", race.job.notices)
        };
        assert!(reason.contains("again, but its push of round 0 has no answer yet"), "{reason}");
    }
}
