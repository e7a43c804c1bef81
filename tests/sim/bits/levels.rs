//! Thousands of small trees of hubs with random faults. Every weight that a worker may read equals the oracle's weight.
//! The oracle, too, sums on each machine first. Every run ends with all its rounds, or with an error that names the
//! cause.
//!
//! A seed decides everything: the tree of two or three levels, or the mesh; the model, cores, optimizer, schedules
//! and credit. It also decides the codec between the hubs of two levels, the network's faults, and when workers and
//! hubs die and come back. A failure prints its seed. For machines that step alone (SSP, ASP) see
//! `staleness::levels`.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric::sim::{Net, seeds};
use pbox_core::oracle::{self, Step};
use pbox_core::{
    Compression, Content, Credit, Dtype, JobTerms, Key, KeyId, Layout, LevelTerms, Numbers, OnLoss, Round,
    Schedule,
};
use sim_tests::levels::{ENDS, Levels, Losses, Shape, Strike, Terms, Worker};
use sim_tests::model::{CODECS, Model};
use sim_tests::plan::{Drafts, Plan};
use sim_tests::trouble::{Dice, Trouble, optimizer, optimizer_by_key};
use sim_tests::values::{mix, rounded, same_bits};

const TREES: u64 = 10_000;

/// The number of steps without work after which a run is over: more than the longest delay.
const PATIENCE: u32 = 200;

/// More steps than any run needs. A run with so many steps fails.
const MANY: u32 = 20_000;

struct Tree {
    dice: Dice,
    trouble: Trouble,
    layout: Arc<Layout>,
    rounds: u32,
    /// The expected weights by round, key and element.
    expected: Vec<Vec<Vec<f32>>>,
    /// The norm that workers receive, by round, in a job whose steps wait for the norm.
    norms: Vec<Option<f32>>,
    /// Whether all workers skip the round, by round.
    skipped: Vec<bool>,
    /// The terms at the top.
    terms: JobTerms,
    job: Levels,
    losses: Losses,
    plan: Plan,
    /// The bytes ahead of each worker.
    drafts: Vec<Drafts>,
}

/// Returns two levels, or three.
fn shape(dice: &mut Dice) -> Vec<Shape> {
    let machine = |dice: &mut Dice| Shape::Hub(vec![Shape::Worker; dice.from(1..=3) as usize]);
    let rack = |dice: &mut Dice| (0..dice.from(1..=3)).map(|_| machine(dice)).collect::<Vec<_>>();
    match dice.below(3) {
        0 => (0..dice.from(1..=2)).map(|_| Shape::Hub(rack(dice))).collect(),
        _ => rack(dice),
    }
}

fn depth(shape: &[Shape]) -> usize {
    shape
        .iter()
        .map(|below| if let Shape::Hub(below) = below { 1 + depth(below) } else { 1 })
        .max()
        .unwrap_or(0)
}

fn workers(shape: &[Shape]) -> u32 {
    shape.iter().map(|below| if let Shape::Hub(below) = below { workers(below) } else { 1 }).sum()
}

impl Tree {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let trouble = Trouble::from_seed(seed);
        // Small keys may form groups.
        let longest = [16, 80][dice.below(2) as usize];
        let keys = (0..dice.from(1..=6)).map(|key| {
            let dtype = [Dtype::F32, Dtype::F32, Dtype::F16, Dtype::BF16][dice.below(4) as usize];
            Key::new(dtype, format!("key {key}"), [dice.from(1..=longest)])
        });
        let layout = Arc::new(Layout::new(keys.collect(), 64 * dice.from(1..=3) as usize).unwrap());
        let (shape, optimizer) = (shape(&mut dice), optimizer(&mut dice));
        let mesh = depth(&shape) == 2 && dice.below(3) == 0;
        let depth = depth(&shape);
        let mut job = JobTerms::new(1, Vec::new(), optimizer);
        (job.on_loss, job.hubs, job.seed) = (trouble.on_loss(), dice.from(1..=2) as u32, seed);
        let mut level = |level: usize| {
            // Hubs do not pull from each other.
            let schedules = if level + 1 < depth { 3 } else { 4 };
            let schedules: Vec<Schedule> =
                Schedule::ALL.into_iter().filter(|s| !s.pulls()).take(schedules).collect();
            LevelTerms {
                schedule: schedules[dice.below(schedules.len() as u64) as usize],
                slice_bytes: Some(dice.from(64..=512) as usize),
                credit: Some(match dice.below(3) {
                    0 => Credit::None,
                    _ => Credit::Bytes(dice.from(1..=600) as usize),
                }),
                ..LevelTerms::default()
            }
        };
        let mut levels: Vec<LevelTerms> = (0..depth).map(&mut level).collect();
        let coded = depth == 2 && dice.below(2) == 0;
        levels[0].compression = coded.then(|| codec(&mut dice, trouble));
        let cores = (0..dice.from(1..=6)).map(|_| dice.from(1..=3) as usize).collect();
        let worker_credit = (dice.below(3) > 0).then(|| dice.from(1..=600) as usize);
        let mut faults = trouble.faults(&mut dice);
        let rounds = dice.from(1..=4) as u32;
        // This draw uses other random numbers than `dice`, so that all other draws of a seed stay the same.
        if mix(seed ^ 0x1a25).is_multiple_of(4) {
            job.optimizer = optimizer_by_key(&mut Dice::new(seed));
        }
        let by_key = job.optimizer.adapts_keys();
        let carries_all = levels[0].compression.is_none_or(carries_all);
        job.clip_norm = (dice.below(2) == 0).then(|| dice.from(1..=40) as f32).filter(|_| !by_key);
        job.skip_nonfinite = carries_all && dice.below(2) == 0 && !by_key;
        let skips_spikes = carries_all && !by_key && mix(seed ^ 0x51e8).is_multiple_of(6);
        job.skip_spikes = skips_spikes.then_some([1.5, 2.5][seed as usize % 2]);
        if mix(seed ^ 0x1a57).is_multiple_of(6) && !job.waits_for_all() && !by_key {
            job.clip_norm_last = Some(Dice::new(seed).from(1..=40) as f32);
        }
        let rounds = rounds + if skips_spikes { 11 } else { 0 }; // a spike needs ten norms before it
        // In a job with norms the network must keep the order of messages, because a core sends its part of the norm
        // before its answers.
        faults.reorder &= !job.finds_norms();
        let is_orderly = trouble != Trouble::Posts && !faults.reorder;
        let late = (mix(seed).is_multiple_of(2)).then_some(seed);
        let terms = Terms { job, levels, cores, worker_credit, mesh, is_orderly, late, earlier: None };
        let plan =
            Plan::new(seed, terms.job.optimizer.keeps_weights()).alike(trouble.on_loss() == OnLoss::Continue);
        let (expected, norms) = match terms.levels[0].compression {
            None => expected(&layout, &terms.job, trouble, &shape, rounds, plan),
            Some(compression) => {
                expected_coded(&layout, &terms.job, compression, trouble, &shape, rounds, plan)
            }
        };
        let drafts = (0..workers(&shape)).map(|_| Drafts::default()).collect();
        let (of_top, skipped) = (terms.job.clone(), skipped(&terms.job, &norms));
        let job = Levels::new(Net::new(seed, faults), &layout, terms, &shape).unwrap();
        let losses = Losses::default();
        Tree {
            dice,
            trouble,
            layout,
            rounds,
            expected,
            skipped,
            norms,
            terms: of_top,
            job,
            losses,
            plan,
            drafts,
        }
    }

    fn keys(&self) -> impl Iterator<Item = KeyId> + use<> {
        (0..self.layout.keys().len() as u32).map(KeyId)
    }

    fn living(&self) -> impl Iterator<Item = usize> {
        (0..self.job.workers.len()).filter(|&worker| self.job.is_alive(worker))
    }

    /// Runs until all living workers have made all rounds, or nothing moves any more, or there is an error.
    fn run(&mut self) -> Result<(), String> {
        let mut idle = 0;
        for step in 0.. {
            if idle >= PATIENCE || self.is_done() {
                break;
            }
            assert!(step < MANY, "steps without end: {}", self.waiting_keys());
            // Faults occur only in the first tenth of `MANY` steps, so that the living workers can finish.
            if step < MANY / 10 {
                let begun =
                    |key| self.living().all(|worker| self.job.workers[worker].exchange.round(key).0 > 0);
                let begun = self.keys().all(begun);
                match self.job.strike(self.trouble, &mut self.dice, begun) {
                    Some(Strike::Kill(worker)) => self.job.kill(worker),
                    Some(Strike::KillHub(hub)) => self.job.kill_hub(hub),
                    Some(Strike::KillMachine(hub)) => self.job.kill_machine(hub),
                    Some(Strike::Rejoin(worker)) => self.job.rejoin(worker).unwrap(),
                    Some(Strike::RejoinHub(hub)) => self.job.rejoin_hub(hub).unwrap(),
                    None => {}
                }
                if begun {
                    self.losses.lose(&mut self.job, &mut self.dice);
                }
            }
            self.losses.mend(&mut self.job);
            for worker in 0..self.job.workers.len() {
                if self.job.is_alive(worker) && self.dice.below(3) > 0 {
                    self.work(worker)?;
                }
            }
            let worked = self.job.step().map_err(|error| error.to_string())?;
            // At first, nothing arrives over new links.
            idle = if worked || !self.losses.are_mended() { 0 } else { idle + 1 };
        }
        if self.is_done() { Ok(()) } else { Err(self.waiting_keys()) }
    }

    /// Checks all weights of a worker that waits for nothing, and pushes its next round. If the worker still waits for
    /// some weights, checks only the weights that have arrived.
    fn work(&mut self, number: usize) -> Result<(), String> {
        let exchange = &mut self.job.workers[number].exchange;
        for (id, key) in (0..).map(KeyId).zip(self.layout.keys()).filter(|(id, _)| exchange.is_ready(*id)) {
            if let Some(before) = exchange.round(id).0.checked_sub(1) {
                let what = format!("worker {number}, round {before}, key {}", id.0);
                same_bits(&what, &read(exchange, id, key.dtype), &self.expected[before as usize][id.index()]);
                if self.trouble.on_loss() != OnLoss::Continue {
                    let together = self.plan.together(self.drafts.len() as u32, Round(before), id);
                    let is_skipped = self.skipped[before as usize];
                    let stays = together == Content::Nothing || is_skipped && together == Content::Gradient;
                    assert_eq!(exchange.was_left_alone(id), stays, "{what}");
                }
            }
        }
        self.check_norm(number);
        let Worker { exchange, rank, .. } = &mut self.job.workers[number];
        if exchange.first_under_way().is_some() || exchange.round(KeyId(0)).0 > self.rounds {
            return Ok(());
        }
        let round = exchange.round(KeyId(0));
        let mut keys: Vec<KeyId> = (0..self.layout.keys().len() as u32).map(KeyId).collect();
        let first = self.dice.below(keys.len() as u64) as usize;
        keys.rotate_left(first);
        let workers = self.drafts.len() as u32;
        let (drafts, later) = (&mut self.drafts[number], self.dice.below(3) == 0);
        for id in keys {
            let dtype = self.layout.keys()[id.index()].dtype;
            let content = self.plan.together(workers, round, id);
            let of = |i| pushed(self.trouble, &self.terms, content, number as u32, round, id, i);
            let done = if later {
                drafts.perhaps(&mut self.dice, exchange, id, |exchange, more| {
                    write(exchange, id, dtype, |i| of(i) + more)
                })
            } else {
                write(exchange, id, dtype, of);
                drafts.push(exchange, id, self.plan.content_at_hub(number as u32, *rank, round, id))
            };
            done.map_err(|error| error.to_string())?;
        }
        exchange.flush().map_err(|error| error.to_string())
    }

    /// Checks the norm that a worker received last.
    fn check_norm(&self, number: usize) {
        let exchange = &self.job.workers[number].exchange;
        let (found, is_whole) = (exchange.found(), self.trouble.on_loss() != OnLoss::Continue);
        if let Some(found) = found {
            let of_rounds = &self.norms[..=found.round.0 as usize];
            let expected = of_rounds.last().copied().flatten().unwrap_or(0.0); // the broadcast has no gradients
            let what = format!("worker {number} is told of {:?}", found.round);
            assert_eq!(found.sum.norm().to_bits(), expected.to_bits(), "{what}");
            let skipped = self.skipped[..of_rounds.len()].iter().filter(|skipped| **skipped).count();
            assert!(!is_whole || found.skipped == skipped as u64, "{what}: {}", found.skipped);
        }
        let last = exchange.round(KeyId(0)).0.checked_sub(1);
        if let Some(last) = last.filter(|&last| self.norms[last as usize].is_some())
            && exchange.first_under_way().is_none()
            && (is_whole && self.trouble != Trouble::Posts && self.terms.waits_for_all())
        {
            let round = found.map(|found| found.round.0);
            assert_eq!(round, Some(last), "worker {number} has the weights of round {last} and not its norm");
        }
    }

    fn is_done(&self) -> bool {
        let done = |key| {
            self.living().all(|worker| {
                let exchange = &self.job.workers[worker].exchange;
                exchange.round(key).0 > self.rounds && exchange.is_ready(key)
            })
        };
        self.losses.are_mended() && self.living().count() > 0 && self.keys().all(done)
    }

    fn waiting_keys(&self) -> String {
        let waits = |worker: usize| {
            let exchange = &self.job.workers[worker].exchange;
            let key = exchange.first_under_way()?;
            Some(format!("worker {worker} waits for key {} in round {}", key.0, exchange.round(key).0))
        };
        self.living().find_map(waits).unwrap_or_else(|| "nobody waits, and not all is done".into())
    }
}

fn read(exchange: &worker_shim::Exchange<fabric::sim::Port>, key: KeyId, dtype: Dtype) -> Vec<f32> {
    match dtype {
        Dtype::F32 => exchange.weights::<f32>(key).unwrap().to_vec(),
        Dtype::F16 => exchange.weights::<half::f16>(key).unwrap().iter().map(|w| w.to_f32()).collect(),
        Dtype::BF16 => exchange.weights::<half::bf16>(key).unwrap().iter().map(|w| w.to_f32()).collect(),
    }
}

fn write(
    exchange: &mut worker_shim::Exchange<fabric::sim::Port>,
    key: KeyId,
    dtype: Dtype,
    value: impl Fn(usize) -> f32,
) {
    macro_rules! fill {
        ($E:ty, $from:expr) => {{
            let slots = exchange.gradient_mut::<$E>(key).unwrap().iter_mut().enumerate();
            slots.for_each(|(i, slot)| *slot = $from(value(i)));
        }};
    }
    match dtype {
        Dtype::F32 => fill!(f32, |value| value),
        Dtype::F16 => fill!(half::f16, half::f16::from_f32),
        Dtype::BF16 => fill!(half::bf16, half::bf16::from_f32),
    }
}

/// Whole numbers. In f32, the mean of equal numbers of this list is exactly the number. In bf16, sums of up to 18 such
/// numbers are exact.
const EXACT: [f32; 5] = [1.0, 2.0, 4.0, 8.0, 9.0];

/// Codecs that keep every number of [`EXACT`].
const LOSSLESS: [&str; 3] = ["f16", "bf16", "topk:1"];

/// Returns the value that a worker pushes. If workers join and leave, all push the same number, so that the
/// mean does not depend on who takes part.
fn value(trouble: Trouble, worker: u32, round: Round, key: KeyId, element: usize) -> f32 {
    let worker = if trouble.on_loss() == OnLoss::Continue { 0 } else { worker };
    let mixed =
        mix(u64::from(worker) << 48 | u64::from(round.0) << 32 | u64::from(key.0) << 16 | element as u64);
    if trouble.on_loss() == OnLoss::Continue {
        let whole = EXACT[mixed as usize % EXACT.len()];
        return if mixed & 64 == 0 { whole } else { -whole };
    }
    ((mixed % 255) as f32 - 127.0) / 37.0
}

/// Returns, by round, whether all workers skip the round. `norms` has the norm of each round.
fn skipped(job: &JobTerms, norms: &[Option<f32>]) -> Vec<bool> {
    let mut counted = Vec::new();
    let is_skipped = |norm: &Option<f32>| {
        let Some(norm) = *norm else { return false };
        let is_spike = job.skip_spikes.is_some_and(|times| oracle::is_spike(&counted, norm, times));
        let is_skipped = job.skips() && !norm.is_finite() || is_spike;
        counted.extend((!is_skipped).then_some(norm));
        is_skipped
    };
    norms.iter().map(is_skipped).collect()
}

/// Works like [`value`]. If rounds are skipped, one of four rounds has an infinite gradient, or gradients with a large
/// norm. Weights are always finite: a codec sends differences of weights, and the difference of two infinite weights is
/// a NaN.
fn pushed(
    trouble: Trouble,
    job: &JobTerms,
    content: Content,
    worker: u32,
    round: Round,
    key: KeyId,
    element: usize,
) -> f32 {
    let is_chosen = |salt: u64| round > Round(0) && mix(u64::from(round.0) ^ salt).is_multiple_of(4);
    if job.skip_nonfinite && content != Content::Weights && (key.0, element) == (0, 0) && is_chosen(0x5c1b) {
        return f32::INFINITY;
    }
    let is_long = job.skip_spikes.is_some() && is_chosen(0x1093);
    value(trouble, worker, round, key, element) * if is_long { 4.0 } else { 1.0 }
}

/// Returns the oracle's weights after each round. Also returns the norm of each round, if steps wait for the norm.
/// Each hub sums its workers and the hubs below it, in order, in the type of the key.
fn expected(
    layout: &Layout,
    terms: &JobTerms,
    trouble: Trouble,
    shape: &[Shape],
    rounds: u32,
    plan: Plan,
) -> (Vec<Vec<Vec<f32>>>, Vec<Option<f32>>) {
    let (workers, optimizer) = (workers(shape), terms.optimizer);
    let keys = || (0..).map(KeyId).zip(layout.keys());
    let of_key = |(_, key): (KeyId, &Key)| {
        let elements = key.elements().unwrap() as usize;
        (vec![0.0f32; elements], vec![[0.0; 3]; elements], 0)
    };
    let mut hub: Vec<_> = keys().map(of_key).collect();
    let (mut by_round, mut norms) = (Vec::new(), Vec::new());
    for round in (0..=rounds).map(Round) {
        let push = |worker, id, key: &Key, i| {
            let content = plan.together(workers, round, id);
            rounded(key.dtype, pushed(trouble, terms, content, worker, round, id, i))
        };
        // Only keys for which workers push gradients are in the norm.
        let means = |id: KeyId, key: &Key| -> Option<Vec<f32>> {
            (plan.together(workers, round, id) == Content::Gradient).then_some(())?;
            let rescale = Step::new(&optimizer, workers, Round(1), 0.0, 1.0, 1.0).rescale;
            let mean = |i| {
                let gradient =
                    |worker| plan.has_gradient(worker, round, id).then(|| push(worker, id, key, i));
                sum(shape, &mut 0, key.dtype, &gradient).expect("some worker has a gradient") * rescale
            };
            Some((0..key.elements().unwrap() as usize).map(mean).collect())
        };
        let means: Vec<Option<Vec<f32>>> = keys().map(|(id, key)| means(id, key)).collect();
        let is_broadcast = round == Round(0) && optimizer.keeps_weights();
        let norm = (terms.finds_norms() && !is_broadcast).then(|| {
            let blocks = layout.keys().iter().zip(&means).filter_map(|(key, means)| {
                Some(means.as_ref()?.chunks(layout.chunk_bytes() / key.dtype.bytes()))
            });
            oracle::norm(blocks.flatten().map(oracle::squares))
        });
        norms.push(norm);
        let is_skipped = skipped(terms, &norms)[round.0 as usize];
        let before = norms[..round.0 as usize].iter().flatten();
        let former = before.rev().copied().find(|&norm| norm != 0.0).unwrap_or(0.0);
        let by_former = terms.clip_norm_last.map_or(1.0, |most| oracle::clip_scale_after(former, most));
        let scale =
            norm.zip(terms.clip_norm).map_or(by_former, |(norm, most)| oracle::clip_scale(norm, most));
        let mut weights = Vec::new();
        for (((id, key), means), (masters, states, steps)) in keys().zip(means).zip(&mut hub) {
            if plan.together(workers, round, id) == Content::Weights {
                masters.iter_mut().enumerate().for_each(|(i, master)| *master = push(0, id, key, i));
            }
            if let Some(means) = means.filter(|_| !is_skipped) {
                *steps += 1;
                let step = Step::new(&optimizer, workers, Round(*steps), optimizer.learning_rate(), 1.0, 1.0);
                let mut step = Step { rescale: scale, ..step };
                if optimizer.adapts_keys() {
                    let blocks = layout.chunk_bytes() / key.dtype.bytes();
                    let of = |i: usize| oracle::measured(&optimizer, &step, means[i], masters[i], &states[i]);
                    let measured: Vec<f32> = (0..means.len()).map(of).collect();
                    let blocks = masters.chunks(blocks).zip(measured.chunks(blocks));
                    let squares =
                        blocks.map(|(of_masters, of_means)| [of_masters, of_means].map(oracle::squares));
                    step = step.adapted(&optimizer, oracle::quotient(squares));
                }
                for ((mean, master), state) in
                    means.into_iter().zip(masters.iter_mut()).zip(states.iter_mut())
                {
                    oracle::step(&optimizer, &step, mean, master, state);
                }
            }
            weights.push(masters.iter().map(|&weight| rounded(key.dtype, weight)).collect());
        }
        by_round.push(weights);
    }
    (by_round, norms)
}

/// Returns the codec between the hubs. If workers join and leave, draws a codec that keeps every number of [`EXACT`]
/// and their sums. Other codecs leave values out, and these values depend on the workers that take part.
fn codec(dice: &mut Dice, trouble: Trouble) -> Compression {
    let codecs = if trouble.on_loss() == OnLoss::Continue { &LOSSLESS[..] } else { &CODECS };
    codecs[dice.below(codecs.len() as u64) as usize].parse().unwrap()
}

fn carries_all(compression: Compression) -> bool {
    matches!(compression, Compression::Codec(codec) if codec.carries_all())
}

/// Works like [`expected`]. The machines' sums go through the codec like the gradients of workers.
fn expected_coded(
    layout: &Layout,
    job: &JobTerms,
    compression: Compression,
    trouble: Trouble,
    shape: &[Shape],
    rounds: u32,
    plan: Plan,
) -> (Vec<Vec<Vec<f32>>>, Vec<Option<f32>>) {
    let (machines, optimizer) = (shape.len() as u32, job.optimizer);
    let mut model =
        Model::new(layout.keys(), layout.chunk_bytes(), compression, job.seed, machines, optimizer);
    model.gradients = workers(shape);
    model.clip_norm_last = job.clip_norm_last;
    (model.clip_norm, model.skips, model.skip_spikes) = (job.clip_norm, job.skips(), job.skip_spikes);
    let by_round = (0..=rounds).map(Round).map(|round| {
        if round == Round(0) && optimizer.keeps_weights() {
            model.broadcast(|key, i| value(trouble, 0, round, key, i));
        } else {
            let value = |machine, key: KeyId, i| {
                let (before, here) = shape.split_at(machine as usize);
                let Shape::Hub(here) = &here[0] else { panic!("a machine") };
                let dtype = layout.keys()[key.index()].dtype;
                let content = plan.together(workers(shape), round, key);
                let pushed = |worker| rounded(dtype, pushed(trouble, job, content, worker, round, key, i));
                if content == Content::Weights {
                    return Some(pushed(0));
                }
                let gradient = |worker| plan.has_gradient(worker, round, key).then(|| pushed(worker));
                sum(here, &mut workers(before), dtype, &gradient)
            };
            let content = |machine, key| match plan.together(workers(shape), round, key) {
                Content::Weights => Content::Weights,
                _ if value(machine, key, 0).is_some() => Content::Gradient,
                _ => Content::Nothing,
            };
            model.advance_as(&Numbers::new(optimizer), content, |machine, key, i| {
                value(machine, key, i).expect("a machine with a gradient")
            });
        }
        (model.all_weights(), model.norm)
    });
    by_round.unzip()
}

/// Returns the sum of the gradients below a hub, if a worker below the hub has a gradient. `next` is the number of the
/// first worker below the hub.
fn sum(below: &[Shape], next: &mut u32, dtype: Dtype, gradient: &impl Fn(u32) -> Option<f32>) -> Option<f32> {
    let pushed: Vec<f32> = below
        .iter()
        .filter_map(|shape| match shape {
            Shape::Hub(below) => sum(below, next, dtype, gradient).map(|sum| rounded(dtype, sum)),
            Shape::Worker => {
                *next += 1;
                gradient(*next - 1)
            }
        })
        .collect();
    (!pushed.is_empty()).then(|| oracle::sum(pushed))
}

#[test]
fn weights_are_the_oracles_or_the_run_ends_with_a_named_error() {
    let mut ends = BTreeMap::<&str, u32>::new();
    for seed in seeds(TREES) {
        let mut tree = Tree::new(seed);
        let ended = tree.run();
        *ends.entry(tree.job.name_end(tree.trouble, &ended)).or_default() += 1;
    }
    eprintln!("{ends:?}");
    if std::env::var_os("PHUB_SIM_SEED").is_none() {
        assert_eq!(ends.len(), ENDS, "every way to end was seen: {ends:?}");
    }
}

#[test]
fn workers_and_hubs_below_other_hubs_make_their_links_again_and_no_bit_changes() {
    let mut losses = 0;
    for seed in seeds(TREES / 2).filter(|&seed| Trouble::from_seed(seed) == Trouble::None) {
        let mut tree = Tree::new(seed);
        tree.losses = Losses::of(20);
        tree.run().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        losses += 20 - tree.losses.left;
        assert!(tree.job.is_whole(), "seed {seed}: {:?}", tree.job.notices);
    }
    assert!(losses > 5000, "only {losses} losses");
}
