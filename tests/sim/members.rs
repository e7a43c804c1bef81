//! Members that lose their links again and again. Each member does what the state machine of a session
//! (`membership::Member`) tells it. Meanwhile requests to the control ports, and their answers, are lost, late or
//! repeated. No round is lost, and no round is stepped twice.
//!
//! All workers push ones, and the learning rate is 1, so a weight after round `r` is `-r`.

use std::sync::Arc;

use fabric::sim::{Faults, Net, seeds};
use pbox_core::{Key, KeyId, Layout, Notice, Optimizer, Round};
use sim_tests::member::{Members, Seen};
use sim_tests::simulated::{Simulated, Terms};
use sim_tests::trouble::Dice;

const WORKERS: u32 = 3;
const ROUNDS: u32 = 12;
const ONE: Optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };

/// Makes all rounds of a job. Returns the number of reconnects, and the events of the network.
fn live(seed: u64) -> (u32, Seen) {
    let mut dice = Dice::new(seed);
    let keys = (0..dice.from(1..=4)).map(|key| Key::f32(format!("{key}"), [1 + 40 * dice.below(3)]));
    let layout = Arc::new(Layout::new(keys.collect(), 64).unwrap());
    let mut terms = Terms::new(WORKERS, dice.from(1..=2) as usize, ONE);
    (terms.job.hubs, terms.late) = (dice.from(1..=3) as u32, Some(seed));
    let hubs = terms.job.hubs as usize;
    let net = Net::new(seed, Faults { delay: 0..dice.from(1..=20), ..Faults::NONE });
    let mut job = Simulated::new(net, &layout, terms).unwrap();
    let mut members = Members::new(seed, WORKERS, hubs);
    let keys: Vec<KeyId> = (0..layout.keys().len() as u32).map(KeyId).collect();
    let mut steps = 0;
    let is_done = |job: &Simulated| {
        let has_all = |&key: &KeyId| {
            job.workers.iter().all(|worker| worker.is_ready(key) && worker.round(key) > Round(ROUNDS))
        };
        keys.iter().all(has_all)
    };
    while !is_done(&job) {
        let rank = dice.below(u64::from(WORKERS)) as u32;
        if dice.below(120) == 0 {
            let end = dice.below(job.ends[rank as usize].len() as u64) as usize;
            job.net().cut(job.ends[rank as usize][end]);
        }
        let key = keys[dice.below(keys.len() as u64) as usize];
        let worker = &mut job.workers[rank as usize];
        let round = worker.round(key).0;
        if members.has_links(rank) && worker.is_ready(key) && round <= ROUNDS {
            worker.gradient_mut::<f32>(key).unwrap().fill(if round == 0 { 0.0 } else { 1.0 });
            if let Err(error) = worker.push(key) {
                members.closed(&mut job, rank, &error);
            }
        }
        members.step(&mut job);
        steps += 1;
        assert!(steps < 100_000, "seed {seed}: the rounds do not end: {:?}", members.seen);
    }
    let ended = |notice: &Notice| matches!(notice, Notice::WorkerGone { by_itself: true, .. });
    assert!(job.notices.iter().all(ended), "seed {seed}: {:?}", job.notices);
    for (rank, worker) in job.workers.iter().enumerate() {
        for &key in &keys {
            let weights = worker.weights::<f32>(key).unwrap();
            let last = -(ROUNDS as f32);
            assert!(
                weights.iter().all(|&weight| weight == last),
                "seed {seed}, rank {rank}, {key:?}: {weights:?}"
            );
        }
    }
    (members.relinks(), members.seen)
}

#[test]
fn requests_that_are_lost_late_and_repeated_lose_no_round() {
    let (mut relinks, mut all) = (0, Seen::default());
    for seed in seeds(300) {
        let (made, seen) = live(seed);
        relinks += made;
        all.lost += seen.lost;
        all.again += seen.again;
        all.stale += seen.stale;
        all.tries += seen.tries;
    }
    eprintln!("{relinks} relinks, {all:?}");
    if std::env::var_os("PHUB_SIM_SEED").is_none() {
        assert!(
            relinks > 1000 && all.lost.min(all.again).min(all.stale).min(all.tries) > 300,
            "{relinks}, {all:?}"
        );
    }
}
