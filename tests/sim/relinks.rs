//! Workers lose their links at any moment of a round, while the network delays and reorders messages. The
//! workers make new links into the same memory. With any terms, all rounds are made, and every weight has the
//! bits of a run without losses. A failure prints its seed. `lives` has the same test for workers that step
//! alone (SSP, ASP).

use std::sync::Arc;

use fabric::sim::{Faults, Net, seeds};
use pbox_core::slim::SlimDp;
use pbox_core::{
    Compression, Consistency, Content, Credit, Key, KeyId, Layout, Notice, OnLoss, Optimizer, Round,
    Schedule, oracle,
};
use sim_tests::model::CODECS;
use sim_tests::plan::{Drafts, Plan};
use sim_tests::race::SGD;
use sim_tests::simulated::{Simulated, Terms};
use sim_tests::trouble::{Dice, optimizer_by_key};
use sim_tests::values::same_bits;
use worker_shim::Exchange;

const WORKERS: u32 = 3;
const ROUNDS: u32 = 4;
const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 0.01, momentum: 0.9 };

/// Returns a layout with small keys, which form groups, before and after keys of several chunks.
fn layout() -> Arc<Layout> {
    let small = (0..9).map(|key| Key::f32(format!("small{key}"), [1 + key % 3]));
    let large = [Key::f32("b", [170]), Key::f32("c", [700]), Key::f32("d", [64, 9])];
    let last = (0..5).map(|key| Key::f32(format!("last{key}"), [2]));
    Arc::new(Layout::new(small.chain(large).chain(last).collect(), 256).unwrap())
}

fn keys(layout: &Layout) -> impl Iterator<Item = KeyId> + use<> {
    (0..layout.keys().len() as u32).map(KeyId)
}

/// Returns the value that a worker pushes: a different number for every round, element and worker. Round 0 is the
/// broadcast.
fn value(rank: u32, round: u32, key: KeyId, element: usize) -> f32 {
    let mix = rank * 7919 + round * 104_729 + key.0 * 1299 + element as u32 * 31;
    (mix % 1009) as f32 / 37.0 - 13.0
}

/// Returns the oracle's weights of one element after all rounds.
fn expected(plan: Plan, key: KeyId, element: usize) -> f32 {
    let (mut weight, mut state) = (0.0, [0.0]);
    for round in 0..=ROUNDS {
        let pushed = |rank| value(rank, round, key, element);
        match plan.together(WORKERS, Round(round), key) {
            Content::Weights => weight = pushed(0),
            Content::Nothing => {}
            _ => {
                let step = oracle::Step::new(&NESTEROV, WORKERS, Round(round), 0.1, 1.0, 1.0);
                let has = |&rank: &u32| plan.has_gradient(rank, Round(round), key);
                let sum = oracle::sum((0..WORKERS).filter(has).map(pushed));
                oracle::step(&NESTEROV, &step, sum, &mut weight, &mut state);
            }
        }
    }
    weight
}

/// The links of a job's workers, which are lost and replaced.
struct Links {
    dice: Dice,
    losses: u32,
    /// The number of steps until the worker reconnects, by rank; `None` while the worker has links.
    made_in: Vec<Option<u64>>,
}

impl Links {
    fn new(seed: u64) -> Self {
        Links { dice: Dice::new(seed), losses: 0, made_in: vec![None; WORKERS as usize] }
    }

    fn are_there(&self, rank: usize) -> bool {
        self.made_in[rank].is_none()
    }

    /// Loses a worker's links. The worker or the hub may notice the loss first. The other workers continue.
    fn lose(&mut self, job: &mut Simulated, rank: usize) {
        if self.dice.below(2) == 0 {
            let cut = self.dice.below(job.ends[rank].len() as u64) as usize;
            job.net().cut(job.ends[rank][cut]);
            for _ in 0..self.dice.below(4) {
                (0..job.cores.len()).for_each(|core| _ = job.turn_core(core));
            }
        }
        job.unlink(rank as u32);
        self.made_in[rank] = Some(self.dice.below(30));
        self.losses += 1;
    }

    /// Makes the links that are due.
    fn make(&mut self, job: &mut Simulated) {
        for (rank, made_in) in (0..).zip(&mut self.made_in) {
            match made_in {
                None => {}
                // If a core has not dropped the old links yet, the new links are made in a later step.
                Some(0) => *made_in = (!job.relink(rank).unwrap()).then_some(0),
                Some(left) => *left -= 1,
            }
        }
    }
}

/// A job whose workers step together, and lose their links now and then.
struct Run {
    job: Simulated,
    links: Links,
    losing: bool,
    terms: String,
    plan: Plan,
    /// The gradients that were sent ahead, by rank.
    drafts: Vec<Drafts>,
}

impl Run {
    fn step(&mut self) {
        self.links.make(&mut self.job);
        let level = &self.terms;
        self.job.step().unwrap_or_else(|error| panic!("{level:?}: {error}"));
    }

    /// Makes every worker push all keys once. Each worker has its own order, and pushes some keys together.
    fn round(&mut self, round: u32) {
        let keys: Vec<KeyId> = keys(&layout()).collect();
        let mut left: Vec<Vec<KeyId>> = (0..WORKERS)
            .map(|_| {
                let first = self.links.dice.below(keys.len() as u64) as usize;
                keys[first..].iter().chain(&keys[..first]).rev().copied().collect()
            })
            .collect();
        while left.iter().any(|keys| !keys.is_empty()) {
            let rank = self.links.dice.below(u64::from(WORKERS)) as usize;
            let has_links = self.links.are_there(rank);
            match self.links.dice.below(12) {
                0 if has_links && self.losing => self.links.lose(&mut self.job, rank),
                0..3 => self.step(),
                // A session without links makes new links before its caller continues.
                _ if !has_links => self.step(),
                _ => {
                    let (ahead, some) =
                        (self.links.dice.below(3) == 0, 1 + self.links.dice.below(6) as usize);
                    for _ in 0..some.min(left[rank].len()) {
                        let worker = &mut self.job.workers[rank];
                        let write = |worker: &mut Exchange<_>, key, more| {
                            let gradient = worker.gradient_mut(key).unwrap();
                            let fill =
                                |(i, g): (usize, &mut f32)| *g = value(rank as u32, round, key, i) + more;
                            gradient.iter_mut().enumerate().for_each(fill);
                        };
                        let drafts = &mut self.drafts[rank];
                        if ahead {
                            let key = left[rank][self.links.dice.below(left[rank].len() as u64) as usize];
                            let write = |worker: &mut _, more| write(worker, key, more);
                            drafts.perhaps(&mut self.links.dice, worker, key, write).unwrap();
                        } else if let Some(key) = left[rank].pop() {
                            write(worker, key, 0.0);
                            let content = self.plan.content(rank as u32, Round(round), key);
                            drafts.push(worker, key, content).unwrap();
                        }
                    }
                    if self.links.dice.below(4) > 0 {
                        self.job.workers[rank].flush().unwrap();
                    }
                }
            }
        }
        let mut steps = 0;
        while self.job.workers.iter().any(|worker| worker.first_under_way().is_some()) {
            for rank in (0..WORKERS as usize).filter(|&rank| self.links.are_there(rank)) {
                self.job.workers[rank].flush().unwrap();
            }
            let rank = self.links.dice.below(u64::from(WORKERS)) as usize;
            if self.losing && self.links.dice.below(40) == 0 && self.links.are_there(rank) {
                self.links.lose(&mut self.job, rank);
            }
            self.step();
            steps += 1;
            let notices = &self.job.notices;
            assert!(steps < 100_000, "{}: round {round} does not end: {notices:?}", self.terms);
        }
    }

    /// Makes all rounds. Returns the weights of each worker and key, and the number of lost links.
    fn weights(seed: u64, terms: &Terms, plan: Plan, losing: bool) -> (Vec<Vec<Vec<f32>>>, u32) {
        let net = Net::new(seed, Faults { delay: 0..40, reorder: !terms.is_orderly, ..Faults::NONE });
        let job = Simulated::new(net, &layout(), terms.clone()).unwrap();
        let drafts = (0..WORKERS).map(|_| Drafts::default()).collect();
        let (links, words) = (Links::new(seed), format!("seed {seed}, {terms:?}"));
        let mut run = Run { job, links, losing, terms: words, plan, drafts };
        (0..=ROUNDS).for_each(|round| run.round(round));
        let is_end = |notice: &Notice| matches!(notice, Notice::WorkerGone { by_itself: true, .. });
        assert!(run.job.notices.iter().all(is_end), "seed {seed}: {:?}", run.job.notices);
        let of_worker = |worker: &Exchange<_>| {
            keys(&layout()).map(|key| worker.weights::<f32>(key).unwrap().to_vec()).collect()
        };
        (run.job.workers.iter().map(of_worker).collect(), run.links.losses)
    }
}

/// Draws terms of any kind.
fn terms(dice: &mut Dice, optimizer: Optimizer) -> Terms {
    let mut terms = Terms::new(WORKERS, dice.from(1..=3) as usize, optimizer);
    terms.job.hubs = dice.from(1..=2) as u32;
    let level = &mut terms.job.level;
    level.schedule = Schedule::ALL[dice.below(4) as usize];
    level.slice_bytes = Some(dice.from(0..=512) as usize);
    let mut credit = || (dice.below(3) == 0).then(|| dice.from(300..=900) as usize);
    (terms.worker_credit, level.credit) = (credit(), credit().map(Credit::Bytes).or(Some(Credit::None)));
    terms.batch_keys = (dice.below(2) == 0).then(|| dice.from(1..=4) as usize);
    terms
}

#[test]
fn links_that_are_made_again_at_any_moment_change_no_bit() {
    let mut all_losses = 0;
    for seed in seeds(400) {
        let mut dice = Dice::new(seed);
        let mut terms = terms(&mut dice, NESTEROV);
        let level = &mut terms.job.level;
        level.compression = match dice.below(4) {
            0 | 1 => None,
            2 if !level.schedule.by_layer() => Some(Compression::Slim(SlimDp::new(0.5, 0.25))),
            _ => Some(CODECS[dice.below(CODECS.len() as u64) as usize].parse().unwrap()),
        };
        if !matches!(level.compression, Some(Compression::Slim(_))) {
            terms.shards = dice.from(1..=2) as usize;
        }
        terms.is_orderly = dice.below(2) == 0;
        terms.job.answers_ahead = dice.below(2) == 0;
        // The bound is above all norms, so the weights have the bits of a job without a bound, even if parts of the
        // norm are lost with the links.
        let clips = terms.is_orderly && terms.job.level.compression.is_none() && dice.below(2) == 0;
        terms.job.clip_norm = clips.then_some(1e30);
        let is_slim = matches!(terms.job.level.compression, Some(Compression::Slim(_)));
        let by_key = !clips && !is_slim && dice.below(2) == 0;
        if by_key {
            terms.job.optimizer = optimizer_by_key(&mut dice);
        }
        terms.late = (dice.below(2) == 0).then_some(seed);
        let plan = match terms.job.level.compression {
            Some(Compression::Slim(_)) => Plan::plain(),
            _ => Plan::new(seed, true),
        };
        let (seen, losses) = Run::weights(seed, &terms, plan, true);
        let (without, _) = Run::weights(seed, &terms, plan, false);
        all_losses += losses;
        for (rank, (seen, without)) in seen.iter().zip(&without).enumerate() {
            for (key, (seen, without)) in (0..).map(KeyId).zip(seen.iter().zip(without)) {
                same_bits(format!("seed {seed}, rank {rank}, {key:?}, {:?}", terms.job.level), seen, without);
                if terms.job.level.compression.is_none() && !by_key {
                    let expected: Vec<f32> = (0..seen.len()).map(|i| expected(plan, key, i)).collect();
                    same_bits(format!("seed {seed}, rank {rank}, {key:?}"), seen, &expected);
                }
            }
        }
    }
    assert!(all_losses > 1000, "only {all_losses} losses");
}

/// Returns whether the hub has dropped a worker after its first push, and after its second push. Each push arrives
/// twice. The job has one chunk.
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
        let _ = job.workers[0].push(KeyId(0)); // the link may be closed by now
        for _ in 0..200 {
            job.turn_core(0);
            let _ = job.workers[0].progress(); // it fails after a second answer or a closed link
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
    // After a loss, the hub accepts that the first push arrives twice, unless both copies arrive in the same turn: then
    // the second answer has no room.
    assert!(after_a_loss.iter().any(|&[first, _]| !first), "{after_a_loss:?}");
    assert!(after_a_loss.iter().all(|&[_, second]| second), "{after_a_loss:?}");
}

#[test]
fn a_newcomer_that_loses_its_first_weights_gets_them_again() {
    for (consistency, codec) in
        [(Consistency::Bsp, None), (Consistency::Asp, None), (Consistency::Asp, Some("f16"))]
    {
        let layout = Arc::new(Layout::new(vec![Key::f32("a", [40])], 64).unwrap());
        let net = Net::new(1, Faults { delay: 50..51, ..Faults::NONE });
        let mut terms = Terms::new(2, 1, SGD).with(|job| job.on_loss = OnLoss::Continue);
        terms.job.level.consistency = consistency;
        terms.job.level.compression = codec.map(|codec| codec.parse().unwrap());
        let mut job = Simulated::new(net, &layout, terms).unwrap();
        for _ in 0..2 {
            for worker in &mut job.workers {
                worker.gradient_mut::<f32>(KeyId(0)).unwrap().fill(1.0);
                worker.push(KeyId(0)).unwrap();
            }
            job.settle(100).unwrap();
        }
        job.kill(1);
        assert_eq!(job.rejoin(1).unwrap(), Round(2), "{consistency}");
        // The first weights of the new worker are in flight.
        (0..10).for_each(|_| _ = job.turn_core(0));
        assert!(!job.workers[1].is_ready(KeyId(0)));
        job.unlink(1);
        assert!(job.relink(1).unwrap());
        job.settle(100).unwrap();
        let steps = if consistency.steps_alone() { 2.0 } else { 1.0 };
        assert_eq!(job.workers[1].weights::<f32>(KeyId(0)).unwrap(), [1.0 - steps; 40], "{consistency}");
    }
}
