//! A whole job over the simulated network. Results do not depend on anything that the contract of a port allows.
//! Violations of the contract are noticed. A failure prints its seed.

use std::sync::Arc;

use fabric::sim::{Faults, Net, Rate, seeds};
use pbox_core::OnLoss;
use pbox_core::{Consistency, Key, KeyId, Layout, Notice, Optimizer, Round, oracle};
use sim_tests::simulated::{Simulated, Terms};

const WORKERS: u32 = 3;
const ROUNDS: u32 = 4;
const SGD: Optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 0.01, momentum: 0.9 };

fn layout() -> Arc<Layout> {
    let keys = vec![Key::f32("a", [1]), Key::f32("b", [17]), Key::f32("c", [700]), Key::f32("d", [64, 9])];
    Arc::new(Layout::new(keys, 256).unwrap())
}

fn keys(layout: &Layout) -> Vec<KeyId> {
    (0..layout.keys().len() as u32).map(KeyId).collect()
}

/// Returns the value that a worker pushes: a different number for every round, element and worker. Round 0 is the
/// broadcast.
fn value(rank: u32, round: u32, key: KeyId, element: usize) -> f32 {
    let mix = rank * 7919 + round * 104_729 + key.0 * 1299 + element as u32 * 31;
    (mix % 1009) as f32 / 37.0 - 13.0
}

/// Returns the weights that the oracle computes after `rounds` rounds of the whole job.
fn expected(layout: &Layout, rounds: u32) -> Vec<Vec<f32>> {
    let element = |key: KeyId, i: usize| {
        let (mut weight, mut state) = (value(0, 0, key, i), [0.0]);
        for round in 1..=rounds {
            let step = oracle::Step::new(&NESTEROV, WORKERS, Round(round), 0.1, 1.0, 1.0);
            let sum = oracle::sum((0..WORKERS).map(|rank| value(rank, round, key, i)));
            oracle::step(&NESTEROV, &step, sum, &mut weight, &mut state);
        }
        weight
    };
    keys(layout)
        .into_iter()
        .map(|key| (0..layout.key_span(key).bytes / 4).map(|i| element(key, i)).collect())
        .collect()
}

fn push_all(job: &mut Simulated, round: u32) -> anyhow::Result<()> {
    for (rank, worker) in (0..).zip(&mut job.workers) {
        for key in keys(&layout()).into_iter().rev() {
            let gradient = worker.gradient_mut(key)?;
            gradient.iter_mut().enumerate().for_each(|(i, g)| *g = value(rank, round, key, i));
            worker.push(key)?;
        }
    }
    Ok(())
}

fn run(seed: u64, faults: Faults, cores: usize) -> anyhow::Result<Simulated> {
    let net = Net::new(seed, faults);
    let mut job = Simulated::new(net, &layout(), Terms::new(WORKERS, cores, NESTEROV))?;
    for round in 0..=ROUNDS {
        push_all(&mut job, round)?;
        job.settle(10_000)?;
    }
    Ok(job)
}

#[test]
fn results_do_not_depend_on_the_network_nor_on_the_cores() {
    let expected = expected(&layout(), ROUNDS);
    for seed in seeds(40) {
        let faults = Faults { delay: 0..50, reorder: seed % 2 == 0, ..Faults::NONE };
        let cores = 1 + (seed % 4) as usize;
        let job = run(seed, faults, cores).unwrap();
        assert!(job.notices.is_empty(), "{:?}", job.notices);
        for worker in &job.workers {
            for (key, expected) in keys(&layout()).into_iter().zip(&expected) {
                assert_eq!(worker.weights::<f32>(key).unwrap(), expected, "key {key:?} on {cores} cores");
            }
        }
    }
}

#[test]
fn a_post_that_vanishes_ends_in_an_error_that_names_key_and_round() {
    for seed in seeds(20) {
        let faults = Faults { delay: 0..5, drop: Rate::per_mille(100), ..Faults::NONE };
        let error = run(seed, faults, 2).err().expect("a tenth of all posts vanished").to_string();
        assert!(error.contains("waits for") && error.contains("key") && error.contains("round"), "{error}");
    }
}

#[test]
fn a_post_that_arrives_twice_is_noticed_at_both_ends() {
    for seed in seeds(40) {
        let faults = Faults { delay: 0..5, duplicate: Rate::per_mille(50), reorder: true, ..Faults::NONE };
        let net = Net::new(seed, faults);
        let mut job = Simulated::new(net, &layout(), Terms::new(WORKERS, 2, NESTEROV)).unwrap();
        let outcome = (0..=ROUNDS).try_for_each(|round| {
            push_all(&mut job, round)?;
            job.settle(1000)
        });
        // A worker may see an answer that it does not expect. A hub may see a violation of the protocol by a
        // worker, and then drops this worker.
        match outcome {
            Err(error) if error.to_string().contains("the hub broke the protocol") => {}
            other => {
                let hub_saw = |notice: &Notice| matches!(notice, Notice::WorkerGone { reason, .. } if reason.contains("pushed chunk"));
                assert!(job.notices.iter().any(hub_saw), "nobody saw a repeat: {other:?}, {:?}", job.notices);
            }
        }
    }
}

#[test]
fn a_worker_that_dies_in_a_round_is_named_and_the_others_results_stand() {
    for seed in seeds(20) {
        let net = Net::new(seed, Faults { delay: 0..20, reorder: true, ..Faults::NONE });
        let mut job = Simulated::new(net, &layout(), Terms::new(WORKERS, 2, NESTEROV)).unwrap();
        push_all(&mut job, 0).unwrap();
        job.settle(1000).unwrap();
        push_all(&mut job, 1).unwrap();
        for _ in 0..seed {
            job.step().unwrap();
        }
        for end in job.ends[1].clone() {
            job.net().kill(end);
        }
        while job.step().unwrap_or(true) {}
        for _ in 0..100 {
            let _ = job.step();
        }
        let is_one = |notice: &Notice| matches!(notice, Notice::WorkerGone { rank: 1, .. });
        assert!(!job.notices.is_empty() && job.notices.iter().all(is_one), "{:?}", job.notices);
        // The completed part has the right weights.
        let after_one = expected(&layout(), 1);
        for (key, expected) in keys(&layout()).into_iter().zip(&after_one) {
            if job.workers[0].is_ready(key) {
                assert_eq!(job.workers[0].weights::<f32>(key).unwrap(), expected);
            }
        }
    }
}

#[test]
fn a_cut_link_is_told_at_both_ends() {
    for seed in seeds(10) {
        let mut job = run(seed, Faults::NONE, 2).unwrap();
        job.net().cut(job.ends[2][1]);
        let at_worker = (0..100).find_map(|_| job.step().err()).expect("the worker sees its link close");
        assert!(at_worker.to_string().contains("core 1 closed"), "{at_worker}");
        let _ = (0..100).map(|_| job.step()).count();
        let is_two = |notice: &Notice| matches!(notice, Notice::WorkerGone { rank: 2, .. });
        assert!(job.notices.iter().any(is_two), "{:?}", job.notices);
    }
}

#[test]
fn one_seed_gives_one_run() {
    let clock = |seed| {
        let faults = Faults { delay: 0..30, reorder: true, ..Faults::NONE };
        run(seed, faults, 3).unwrap().net().now()
    };
    for seed in seeds(5) {
        assert_eq!(clock(seed), clock(seed));
    }
}

/// The last worker of a job dies after it has pushed some keys, so that nobody can end the round. A new
/// worker begins after that round, and waits for the weights of all keys.
#[test]
fn a_round_that_no_worker_can_end_is_left_out() {
    for newcomer_first in [true, false] {
        let terms = Terms::new(2, 2, SGD).with(|job| job.on_loss = OnLoss::Continue);
        let mut job = Simulated::new(Net::new(1, Faults::NONE), &layout(), terms).unwrap();
        push_all(&mut job, 0).unwrap();
        job.settle(100).unwrap();
        job.kill(1);
        let _ = (0..10).map(|_| job.step().unwrap()).count();
        let [first, last] = [KeyId(0), KeyId(3)];
        job.workers[0].gradient_mut::<f32>(last).unwrap().fill(1.0);
        job.workers[0].push(last).unwrap();
        job.settle(100).unwrap();
        if newcomer_first {
            job.rejoin(1).unwrap();
            job.kill(0);
        } else {
            job.kill(0);
            job.rejoin(1).unwrap();
        }
        let _ = (0..100).map(|_| job.step().unwrap()).count();
        let newcomer = &mut job.workers[1];
        assert_eq!(newcomer.first_under_way(), None, "the newcomer has all weights of round 1");
        let began = |key, i| value(0, 0, key, i);
        assert_eq!(newcomer.weights::<f32>(first).unwrap()[0], began(first, 0), "nobody pushed it");
        assert_eq!(newcomer.weights::<f32>(last).unwrap()[5], began(last, 5) - 1.0, "it was pushed");
        let skipped = |notice: &Notice| match notice {
            Notice::Skipped { chunk, rounds, .. } => Some((layout().chunk(*chunk).key, rounds.clone())),
            _ => None,
        };
        let skipped: Vec<_> = job.notices.iter().filter_map(skipped).collect();
        assert!(skipped.contains(&(first, 1..2)) && !skipped.contains(&(last, 1..2)), "{skipped:?}");
        // The job continues.
        let mut push = |key| {
            job.workers[1].gradient_mut::<f32>(key).unwrap().fill(1.0);
            job.workers[1].push(key).unwrap();
        };
        keys(&layout()).into_iter().for_each(&mut push);
        let _ = (0..100).map(|_| job.step().unwrap()).count();
        assert_eq!(job.workers[1].weights::<f32>(first).unwrap()[0], began(first, 0) - 1.0);
    }
}

/// If all other workers are lost before all workers have the first weights, the job fails without an answer to the
/// remaining worker. So this worker's own weights never become the first weights, whenever it pushes.
#[test]
fn no_worker_is_answered_before_the_first_weights() {
    for (seed, consistency) in
        (0..20).flat_map(|seed| [Consistency::Bsp, Consistency::Asp].map(|c| (seed, c)))
    {
        let net = Net::new(seed, Faults { delay: 0..20, reorder: true, ..Faults::NONE });
        let terms = Terms::new(2, 2, SGD)
            .with(|job| (job.on_loss, job.level.consistency) = (OnLoss::Continue, consistency));
        let mut job = Simulated::new(net, &layout(), terms).unwrap();
        job.kill(0);
        let begin = |job: &mut Simulated| {
            let worker = &mut job.workers[1];
            keys(&layout()).into_iter().for_each(|key| worker.push(key).unwrap());
        };
        if seed % 2 == 0 {
            begin(&mut job);
        }
        (0..100).for_each(|_| _ = job.step().unwrap());
        if seed % 2 == 1 {
            begin(&mut job);
        }
        let front = job.hold(); // as if another worker joined now
        job.release(front, &[]);
        (0..100).for_each(|_| _ = job.step().unwrap());
        let failed = |notice: &Notice| matches!(notice, Notice::JobFailed { .. });
        assert!(job.notices.iter().any(failed), "seed {seed}, {consistency}: {:?}", job.notices);
        assert_eq!(
            job.arrivals[1], 0,
            "seed {seed}, {consistency}: answers of a broadcast that rank 0 did not make"
        );
    }
}
