//! Workers lose their links at any moment of a round, and make others in the same memory, while the network delays and reorders.
//! All rounds are made, and every weight has the oracle's bits. A failure prints its seed.

use std::sync::Arc;

use fabric::sim::{Faults, Net, seeds};
use pbox_core::{Credit, Key, KeyId, Layout, Notice, Optimizer, Round, Schedule, oracle};
use sim_tests::simulated::{Simulated, Terms};

const WORKERS: u32 = 3;
const ROUNDS: u32 = 4;
const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 0.01, momentum: 0.9 };

/// Small keys, which are groups, before and behind keys of several chunks.
fn layout() -> Arc<Layout> {
    let small = (0..9).map(|key| Key::f32(format!("small{key}"), [1 + key % 3]));
    let large = [Key::f32("b", [170]), Key::f32("c", [700]), Key::f32("d", [64, 9])];
    let last = (0..5).map(|key| Key::f32(format!("last{key}"), [2]));
    Arc::new(Layout::new(small.chain(large).chain(last).collect(), 256).unwrap())
}

fn keys(layout: &Layout) -> impl Iterator<Item = KeyId> + use<> {
    (0..layout.keys().len() as u32).map(KeyId)
}

/// What a worker pushes: another number for every round, element and worker. Round 0 is the broadcast.
fn value(rank: u32, round: u32, key: KeyId, element: usize) -> f32 {
    let mix = rank * 7919 + round * 104_729 + key.0 * 1299 + element as u32 * 31;
    (mix % 1009) as f32 / 37.0 - 13.0
}

/// The oracle's weights of one element after all rounds.
fn expected(key: KeyId, element: usize) -> f32 {
    let (mut weight, mut state) = (value(0, 0, key, element), [0.0]);
    for round in 1..=ROUNDS {
        let step = oracle::Step::new(&NESTEROV, WORKERS, Round(round), 0.1, 1.0, 1.0);
        let sum = oracle::sum((0..WORKERS).map(|rank| value(rank, round, key, element)));
        oracle::step(&NESTEROV, &step, sum, &mut weight, &mut state);
    }
    weight
}

struct Run {
    job: Simulated,
    dice: u64,
    losses: u32,
    /// By rank: so many steps until the links are there that it makes; `None` while it has links.
    relinks_in: Vec<Option<u64>>,
}

impl Run {
    fn draw(&mut self, n: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % n
    }

    /// A worker loses its links. Either end may see it first, and the other workers go on.
    fn lose(&mut self, rank: usize) {
        if self.draw(2) == 0 {
            let cut = self.draw(self.job.ends[rank].len() as u64) as usize;
            self.job.net().cut(self.job.ends[rank][cut]);
            for _ in 0..self.draw(4) {
                let Simulated { cores, notices, .. } = &mut self.job;
                cores.iter_mut().for_each(|core| _ = core.turn(notices));
            }
        }
        self.job.unlink(rank as u32);
        self.relinks_in[rank] = Some(self.draw(30));
        self.losses += 1;
    }

    fn step(&mut self) {
        for rank in 0..WORKERS as usize {
            match &mut self.relinks_in[rank] {
                None => {}
                Some(0) => {
                    self.relinks_in[rank] = None;
                    self.job.relink(rank as u32).unwrap();
                }
                Some(left) => *left -= 1,
            }
        }
        self.job.step().unwrap();
    }

    /// Every worker pushes all keys once, in an order of its own, some of them together.
    fn round(&mut self, round: u32) {
        let keys: Vec<KeyId> = keys(&layout()).collect();
        let mut left: Vec<Vec<KeyId>> = (0..WORKERS)
            .map(|_| {
                let first = self.draw(keys.len() as u64) as usize;
                keys[first..].iter().chain(&keys[..first]).rev().copied().collect()
            })
            .collect();
        while left.iter().any(|keys| !keys.is_empty()) {
            let rank = self.draw(u64::from(WORKERS)) as usize;
            match self.draw(12) {
                0 if self.relinks_in[rank].is_none() => self.lose(rank),
                0..3 => self.step(),
                // A session without links makes them before its caller goes on.
                _ if self.relinks_in[rank].is_some() => self.step(),
                _ => {
                    for _ in 0..1 + self.draw(6) {
                        let Some(key) = left[rank].pop() else { break };
                        let worker = &mut self.job.workers[rank];
                        let gradient = worker.gradient_mut(key).unwrap();
                        let fill = |(i, g): (usize, &mut f32)| *g = value(rank as u32, round, key, i);
                        gradient.iter_mut().enumerate().for_each(fill);
                        worker.put(key).unwrap();
                    }
                    if self.draw(4) > 0 {
                        self.job.workers[rank].flush().unwrap();
                    }
                }
            }
        }
        let mut steps = 0;
        while self.job.workers.iter().any(|worker| worker.first_under_way().is_some()) {
            for rank in 0..WORKERS as usize {
                if self.relinks_in[rank].is_none() {
                    self.job.workers[rank].flush().unwrap();
                }
            }
            let rank = self.draw(u64::from(WORKERS)) as usize;
            if self.draw(40) == 0 && self.relinks_in[rank].is_none() {
                self.lose(rank);
            }
            self.step();
            steps += 1;
            assert!(steps < 100_000, "round {round} does not end: {:?}", self.job.notices);
        }
    }
}

#[test]
fn links_that_are_made_again_at_any_moment_change_no_bit() {
    let mut losses = 0;
    for seed in seeds(400) {
        let net = Net::new(seed, Faults { delay: 0..40, reorder: seed % 2 == 0, ..Faults::NONE });
        let mut terms = Terms::new(WORKERS, 1 + (seed % 3) as usize, NESTEROV).with(|job| {
            job.level.schedule = if seed % 5 == 0 { Schedule::P3 } else { Schedule::Sliced };
            job.level.credit = Some(if seed % 4 == 0 { Credit::Bytes(600) } else { Credit::None });
        });
        assert!(terms.job.may_relink());
        terms.shards = 1 + (seed % 7 == 0) as usize;
        terms.worker_credit = (seed % 6 == 0).then_some(500);
        let job = Simulated::new(net, &layout(), terms).unwrap();
        let mut run = Run { job, dice: seed, losses: 0, relinks_in: vec![None; WORKERS as usize] };
        (0..=ROUNDS).for_each(|round| run.round(round));
        losses += run.losses;
        let is_end = |notice: &Notice| matches!(notice, Notice::WorkerGone { by_itself: true, .. });
        assert!(run.job.notices.iter().all(is_end), "seed {seed}: {:?}", run.job.notices);
        for (rank, worker) in run.job.workers.iter().enumerate() {
            for key in keys(&layout()) {
                for (i, seen) in worker.weights::<f32>(key).unwrap().iter().enumerate() {
                    let expected = expected(key, i);
                    assert_eq!(seen.to_bits(), expected.to_bits(), "seed {seed}, rank {rank}, {key:?}, {i}");
                }
            }
        }
    }
    assert!(losses > 1000, "only {losses} losses");
}

/// Whether a worker of one chunk is dropped after the first push that comes twice, and after the second.
fn dropped_after_repeats(seed: u64, lost: bool) -> [bool; 2] {
    let layout = Arc::new(Layout::new(vec![Key::f32("a", [16])], 64).unwrap());
    let net = Net::new(seed, Faults { delay: 0..50, ..Faults::NONE });
    let mut job = Simulated::new(net, &layout, Terms::new(1, 1, NESTEROV)).unwrap();
    if lost {
        job.unlink(0);
        job.relink(0).unwrap();
    }
    [(); 2].map(|()| {
        job.net().duplicate_next(job.ends[0][0]);
        let _ = job.workers[0].push(KeyId(0)); // whose link may be closed by now
        for _ in 0..200 {
            job.cores[0].turn(&mut job.notices);
            let _ = job.workers[0].progress(); // a second answer is one too many, and so is a link that closed
        }
        job.notices.iter().any(|notice| matches!(notice, Notice::WorkerGone { by_itself: false, .. }))
    })
}

#[test]
fn a_push_that_is_answered_is_repeated_only_after_a_loss_of_links_and_once() {
    for seed in seeds(20) {
        assert!(dropped_after_repeats(seed, false)[0], "seed {seed}: no links were lost");
    }
    let after_a_loss: Vec<_> = seeds(20).map(|seed| dropped_after_repeats(seed, true)).collect();
    // Where both copies come at once, the second answer has no room.
    assert!(after_a_loss.iter().any(|&[first, _]| !first), "{after_a_loss:?}");
    assert!(after_a_loss.iter().all(|&[_, second]| second), "{after_a_loss:?}");
}
