//! Thousands of small clusters in BSP with random faults. Every weight that a worker may read equals the oracle's
//! weight. Every run ends with all its rounds, or with an error that names the cause.
//!
//! A seed decides everything: the model, workers, hubs, cores, shards of a core, optimizer and compression.
//! It also decides the network's faults, and when workers die and come back. The compression is bf16, which
//! codes each element separately; for other codecs see `bits::compressed`. A failure prints its seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric::sim::{Net, seeds};
use pbox_core::OnLoss;
use pbox_core::codec::Codec;
use pbox_core::oracle::{self, Step};
use pbox_core::{
    ChunkId, Compression, Content, Credit, Dtype, Groups, Key, KeyId, Layout, Multipliers, Notice, Numbers,
    NumbersByRound, Optimizer, Round, Schedule,
};
use sim_tests::plan::{Drafts, Plan};
use sim_tests::simulated::{JOB, Simulated, Terms};
use sim_tests::trouble::{Dice, ENDS, Strike, Trouble, optimizer, optimizer_by_key};
use sim_tests::values::{mix, rounded, same_bits};
use worker_shim::Exchange;

const CLUSTERS: u64 = 5_000;
/// The number of steps without work after which a run is over: more than the longest delay.
const PATIENCE: u32 = 200;

/// More steps than any run needs. A run with so many steps fails.
const MANY: u32 = 20_000;

/// The cluster of a seed.
struct Cluster {
    dice: Dice,
    trouble: Trouble,
    layout: Arc<Layout>,
    terms: Terms,
    /// The optimizer's hyperparameters, which change from round to round.
    numbers: NumbersByRound,
    rounds: u32,
    /// The chunks, each with a round, that got no step, because every worker that could push them in this round was
    /// gone.
    skipped: BTreeSet<(ChunkId, u32)>,
    /// The expected weights by round, key and element.
    expected: Vec<Vec<Vec<f32>>>,
    /// The norm that workers receive, by round, in a job whose steps wait for the norm.
    norms: Vec<Option<f32>>,
    job: Simulated,
    plan: Plan,
    /// The bytes ahead of each rank.
    drafts: Vec<Drafts>,
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let trouble = Trouble::from_seed(seed);
        // Small keys may form groups. A group steps as one if its keys fill whole cache lines.
        let longest = [16, 80][dice.below(2) as usize];
        let line = [1, 16][dice.below(2) as usize];
        let keys = (0..dice.from(1..=6))
            .map(|key| Key::f32(format!("key {key}"), [line * dice.from(1..=longest / line)]));
        let layout = Arc::new(Layout::new(keys.collect(), 64 * dice.from(1..=3) as usize).unwrap());
        let mut terms = Terms::new(dice.from(1..=4) as u32, dice.from(1..=4) as usize, optimizer(&mut dice));
        terms.job.on_loss = trouble.on_loss();
        terms.late = (dice.below(2) == 0).then_some(seed);
        let mut faults = trouble.faults(&mut dice);
        let mut rounds = dice.from(1..=5) as u32;
        terms.job.level.schedule = Schedule::ALL[dice.below(4) as usize];
        terms.batch_keys = (dice.below(2) == 0).then(|| dice.from(1..=4) as usize);
        terms.job.level.compression = (dice.below(2) == 0).then_some(Compression::Codec(Codec::Bf16));
        terms.job.level.slice_bytes = Some(dice.from(64..=512) as usize);
        let mut credit = || (dice.below(3) > 0).then(|| dice.from(1..=600) as usize);
        (terms.worker_credit, terms.job.level.credit) = (credit(), credit().map(Credit::Bytes));
        terms.job.hubs = dice.from(1..=3) as u32;
        terms.shards = dice.from(1..=2) as usize;
        terms.job.clip_norm = (dice.below(2) == 0).then(|| dice.from(1..=40) as f32 * 50.0);
        terms.job.skip_nonfinite = dice.below(2) == 0;
        match dice.below(5) {
            0 | 1 => {
                (terms.job.clip_norm, terms.job.skip_nonfinite) = (None, false);
                terms.job.optimizer = optimizer_by_key(&mut dice);
            }
            2 => {
                let most = dice.from(1..=40) as f32 * 50.0;
                (terms.job.clip_norm, terms.job.skip_nonfinite) = (None, false);
                terms.job.clip_norm_last = Some(most);
            }
            3 => {
                terms.job.skip_spikes = Some(dice.from(3..=6) as f32 / 2.0);
                rounds += 11; // a spike needs ten norms before it
            }
            _ => {}
        }
        // In a job with norms the network must keep the order of messages, because a core sends its part of the norm
        // before its answers.
        faults.reorder &= !terms.job.finds_norms();
        terms.is_orderly = trouble != Trouble::Posts && !faults.reorder;
        terms.job.answers_ahead = dice.below(2) == 0;
        let is_alike = terms.job.on_loss == OnLoss::Continue;
        let plan = Plan::new(seed, terms.job.optimizer.keeps_weights()).alike(is_alike);
        let drafts = (0..terms.job.workers).map(|_| Drafts::default()).collect();
        let (skipped, changes) = (BTreeSet::new(), changes(&mut dice, &terms, layout.keys().len(), rounds));
        let mut numbers = NumbersByRound::new(Numbers::new(terms.job.optimizer));
        let mut job = Simulated::new(Net::new(seed, faults), &layout, terms.clone()).unwrap();
        for (from, changed) in changes {
            job.cores.iter_mut().for_each(|core| {
                core.set_numbers(JOB, from, &changed);
            });
            numbers.change(from, changed);
        }
        let (expected, norms) = expected(&layout, &terms, &numbers, rounds, &skipped, plan);
        Cluster { dice, trouble, layout, terms, numbers, rounds, skipped, expected, norms, job, plan, drafts }
    }

    fn keys(&self) -> impl Iterator<Item = KeyId> + use<> {
        (0..self.layout.keys().len() as u32).map(KeyId)
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
                let begun = self.is_begun();
                match self.trouble.strike(&mut self.dice, &self.job, begun) {
                    Some(Strike::Kill(rank)) => self.job.kill(rank),
                    Some(Strike::Rejoin(rank)) => _ = self.job.rejoin(rank).unwrap(),
                    None => {}
                }
            }
            self.read_notices();
            for rank in 0..self.terms.job.workers {
                if self.job.is_alive(rank) && self.dice.below(3) > 0 {
                    self.work(rank)?;
                }
            }
            idle = if self.job.step().map_err(|error| error.to_string())? { 0 } else { idle + 1 };
        }
        if self.is_done() { Ok(()) } else { Err(self.waiting_keys()) }
    }

    /// Reads the notices of chunks that have skipped a round.
    fn read_notices(&mut self) {
        let before = self.skipped.len();
        for notice in &self.job.notices {
            if let Notice::Skipped { chunk, rounds, .. } = notice {
                self.skipped.extend(rounds.clone().map(|round| (*chunk, round)));
            }
        }
        if self.skipped.len() > before {
            let Cluster { layout, terms, numbers, rounds, skipped, plan, .. } = self;
            (self.expected, self.norms) = expected(layout, terms, numbers, *rounds, skipped, *plan);
        }
    }

    /// Checks all weights of a worker that waits for nothing, and pushes its next round. If the worker still waits for
    /// some weights, checks only the weights that have arrived.
    fn work(&mut self, rank: u32) -> Result<(), String> {
        let worker = &mut self.job.workers[rank as usize];
        for key in (0..self.layout.keys().len() as u32).map(KeyId).filter(|&key| worker.is_ready(key)) {
            if self.drafts[rank as usize].has(key) {
                continue; // the hub may answer this key ahead
            }
            if let Some(before) = worker.round(key).0.checked_sub(1) {
                let what = format!("rank {rank}, round {before}, key {}", key.0);
                same_bits(
                    &what,
                    worker.weights::<f32>(key).unwrap(),
                    &self.expected[before as usize][key.index()],
                );
                if self.terms.job.on_loss != OnLoss::Continue && !self.terms.job.answers_ahead {
                    let together = self.plan.together(self.terms.job.workers, Round(before), key);
                    let is_skipped = is_skipped(&self.terms, &self.norms, before);
                    let stays = together == Content::Nothing || is_skipped && together == Content::Gradient;
                    assert_eq!(worker.was_left_alone(key), stays, "{what}");
                }
            }
        }
        let found = worker.found();
        if let Some(found) = found {
            let norm = self.norms[found.round.0 as usize].unwrap_or(0.0); // the broadcast has no gradients
            assert_eq!(
                found.sum.norm().to_bits(),
                norm.to_bits(),
                "rank {rank} is told of {:?}",
                found.round
            );
            if self.terms.job.on_loss != OnLoss::Continue {
                let skips = |round: &u32| is_skipped(&self.terms, &self.norms, *round);
                let skipped = (0..=found.round.0).filter(skips).count();
                assert_eq!(found.skipped, skipped as u64, "rank {rank}, {:?}", found.round);
            }
        }
        if self.terms.is_orderly
            && self.terms.job.waits_for_all()
            && self.terms.job.on_loss != OnLoss::Continue
            && worker.first_under_way().is_none()
            && let Some(last) = worker.round(KeyId(0)).0.checked_sub(1)
            && self.norms[last as usize].is_some()
        {
            let round = found.map(|found| found.round.0);
            assert_eq!(round, Some(last), "rank {rank} has the weights of round {last} and not its norm");
        }
        if worker.first_under_way().is_some() || worker.round(KeyId(0)).0 > self.rounds {
            return Ok(());
        }
        let round = worker.round(KeyId(0));
        let first = self.dice.below(self.layout.keys().len() as u64) as usize;
        let mut keys: Vec<KeyId> = self.keys().collect();
        keys.rotate_left(first);
        let worker = &mut self.job.workers[rank as usize];
        let (drafts, later) = (&mut self.drafts[rank as usize], self.dice.below(3) == 0);
        for key in keys {
            let write = |worker: &mut Exchange<_>, more| {
                let gradient = worker.gradient_mut::<f32>(key).unwrap().iter_mut().enumerate();
                gradient.for_each(|(i, slot)| *slot = value(&self.terms, rank, round, key, i) + more);
            };
            let done = if later {
                drafts.perhaps(&mut self.dice, worker, key, write)
            } else {
                write(worker, 0.0);
                drafts.push(worker, key, self.plan.content(rank, round, key))
            };
            done.map_err(|error| error.to_string())?;
        }
        worker.flush().map_err(|error| error.to_string())
    }

    fn living(&self) -> impl Iterator<Item = u32> {
        (0..self.terms.job.workers).filter(|&rank| self.job.is_alive(rank))
    }

    /// Whether all living workers have finished the first round.
    fn is_begun(&self) -> bool {
        let begun = |key| self.living().all(|rank| self.job.workers[rank as usize].round(key).0 > 0);
        self.keys().all(begun)
    }

    fn is_done(&self) -> bool {
        let done = |key| {
            self.living().all(|rank| {
                let worker = &self.job.workers[rank as usize];
                worker.round(key).0 > self.rounds && worker.is_ready(key)
            })
        };
        self.keys().all(done)
    }

    fn waiting_keys(&self) -> String {
        let waits = |rank: u32| {
            let worker = &self.job.workers[rank as usize];
            let key = worker.first_under_way()?;
            let name = &self.layout.keys()[key.index()].name;
            Some(format!("worker {rank} waits for {name:?} in round {}", worker.round(key).0))
        };
        self.living().find_map(waits).unwrap_or_else(|| "nobody waits, and not all is done".into())
    }
}

/// Draws changes of the optimizer's hyperparameters, each with its first round. All numbers change, and the
/// multipliers of all keys; some keys have the same multipliers.
fn changes(dice: &mut Dice, terms: &Terms, keys: usize, rounds: u32) -> Vec<(Round, Numbers)> {
    let mut numbers = Numbers::new(terms.job.optimizer);
    let mut changes = Vec::new();
    for from in (1..=rounds).map(Round) {
        if dice.below(2) == 0 {
            continue;
        }
        let learning_rate = [0.0, 0.0625, 0.25][dice.below(3) as usize];
        let weight_decay = [0.0, 0.03125][dice.below(2) as usize];
        let (momentum, beta1, beta2) = (0.5, [0.5, 0.875][dice.below(2) as usize], 0.75);
        let epsilon = 0.25;
        let optimizer = match numbers.optimizer {
            same @ (Optimizer::Average | Optimizer::Sum) => same,
            Optimizer::Sgd { .. } => Optimizer::Sgd { learning_rate, weight_decay },
            Optimizer::Momentum { .. } => Optimizer::Momentum { learning_rate, weight_decay, momentum },
            Optimizer::Nesterov { .. } => Optimizer::Nesterov { learning_rate, weight_decay, momentum },
            Optimizer::Dampened { .. } => {
                Optimizer::Dampened { learning_rate, weight_decay, momentum, dampening: 0.25 }
            }
            Optimizer::Adam { .. } => Optimizer::Adam { learning_rate, weight_decay, beta1, beta2, epsilon },
            Optimizer::AdamW { .. } => {
                Optimizer::AdamW { learning_rate, weight_decay, beta1, beta2, epsilon }
            }
            Optimizer::AmsGrad { .. } => {
                Optimizer::AmsGrad { learning_rate, weight_decay, beta1, beta2, epsilon }
            }
            Optimizer::AmsGradW { .. } => {
                Optimizer::AmsGradW { learning_rate, weight_decay, beta1, beta2, epsilon }
            }
            Optimizer::Lion { .. } => Optimizer::Lion { learning_rate, weight_decay, beta1, beta2 },
            Optimizer::Lars { .. } => Optimizer::Lars { learning_rate, weight_decay, momentum, trust: 0.125 },
            Optimizer::Lamb { .. } => Optimizer::Lamb { learning_rate, weight_decay, beta1, beta2, epsilon },
        };
        let of_key = |dice: &mut Dice| [[1.0, 1.0], [2.0, 0.0]][dice.below(2) as usize];
        let of_keys = (dice.below(2) == 0).then(|| (0..keys).map(|_| of_key(dice)).collect());
        let groups = (dice.below(3) == 0).then(|| {
            let of_keys = (0..keys).map(|_| dice.below(2) as u8).collect();
            Groups { optimizers: vec![terms.job.optimizer], of_keys }.into()
        });
        numbers = numbers.then(Numbers { optimizer, multipliers: of_keys, groups });
        changes.push((from, numbers.clone()));
    }
    changes
}

/// Whether a round is skipped. `norms` has the norms of the rounds so far.
fn is_skipped(terms: &Terms, norms: &[Option<f32>], round: u32) -> bool {
    let mut counted = Vec::new();
    let is_skipped = |norm: Option<f32>| {
        let Some(norm) = norm else { return false };
        let is_spike = terms.job.skip_spikes.is_some_and(|times| oracle::is_spike(&counted, norm, times));
        let is_skipped = terms.job.skip_nonfinite && !norm.is_finite() || is_spike;
        counted.extend((!is_skipped).then_some(norm));
        is_skipped
    };
    norms[..=round as usize].iter().copied().map(is_skipped).last().expect("norms up to this round")
}

/// Returns the value that a worker pushes. If workers join and leave, all push the same whole number, so that the
/// mean does not depend on who takes part. If rounds are skipped, one of four rounds has an infinite value, or
/// gradients with a large norm. If the optimizer adapts keys (LARS, LAMB), all values of a key are zero in one of
/// five rounds.
fn value(terms: &Terms, rank: u32, round: Round, key: KeyId, element: usize) -> f32 {
    if terms.job.skip_nonfinite
        && round > Round(0)
        && (key.0, element) == (0, 0)
        && mix(u64::from(round.0) ^ 0x5c1b).is_multiple_of(4)
    {
        return f32::INFINITY;
    }
    if terms.job.optimizer.adapts_keys() && mix(u64::from(round.0) << 8 | u64::from(key.0)).is_multiple_of(5)
    {
        return 0.0; // gives norms of weights, or of gradients, that are 0
    }
    let rank = if terms.job.on_loss == OnLoss::Continue { 0 } else { rank };
    let mixed =
        mix(u64::from(rank) << 48 | u64::from(round.0) << 32 | u64::from(key.0) << 16 | element as u64);
    let is_long = terms.job.skip_spikes.is_some() && mix(u64::from(round.0) ^ 0x1093).is_multiple_of(4);
    let whole = ((mixed % 255) as f32 - 127.0) * if is_long { 4.0 } else { 1.0 };
    if terms.job.on_loss == OnLoss::Continue { whole } else { whole / 37.0 }
}

/// Returns the oracle's weights after each round. `skipped` has the chunks without a step, each with the round.
fn expected(
    layout: &Layout,
    terms: &Terms,
    numbers: &NumbersByRound,
    rounds: u32,
    skipped: &BTreeSet<(ChunkId, u32)>,
    plan: Plan,
) -> (Vec<Vec<Vec<f32>>>, Vec<Option<f32>>) {
    let chunk_of = |key: KeyId, element: usize| {
        let at = layout.key_span(key).offset + 4 * element;
        let ends = |&chunk: &u32| at < layout.chunk(ChunkId(chunk)).span.end().unwrap();
        ChunkId(layout.key_chunks(key).find(ends).unwrap())
    };
    let keys: Vec<KeyId> = (0..layout.keys().len() as u32).map(KeyId).collect();
    let zeros = |key: &KeyId| vec![0.0; layout.key_span(*key).bytes / 4];
    let elements: usize = layout.parameters() as usize;
    let mut hub = vec![Element::default(); elements];
    let (mut by_round, mut norms) = (Vec::new(), Vec::new());
    for round in (0..=rounds).map(Round) {
        let mut weights: Vec<Vec<f32>> = keys.iter().map(zeros).collect();
        let is_broadcast = round == Round(0) && terms.job.optimizer.keeps_weights();
        let norm = (terms.job.finds_norms() && !is_broadcast).then(|| {
            let mean = |key: KeyId, chunk: u32| mean_of(layout, terms, plan, round, key, ChunkId(chunk));
            let of_chunks = |key: KeyId| layout.key_chunks(key).map(move |chunk| (key, chunk));
            let is_stepped = |chunk: u32| !skipped.contains(&(ChunkId(chunk), round.0));
            let chunks = keys.iter().flat_map(|&key| of_chunks(key)).filter(|&(_, chunk)| is_stepped(chunk));
            let squares = chunks.map(|(key, chunk)| oracle::squares(&mean(key, chunk)));
            oracle::norm(squares)
        });
        let former = norms.iter().flatten().rev().copied().find(|&norm| norm != 0.0).unwrap_or(0.0);
        norms.push(norm);
        let is_skipped = is_skipped(terms, &norms, round.0);
        let scale = norm.map(|norm| match (terms.job.clip_norm, terms.job.clip_norm_last) {
            (Some(most), _) => oracle::clip_scale(norm, most),
            (None, Some(most)) => oracle::clip_scale_after(former, most),
            (None, None) => 1.0,
        });
        let mut hub = &mut hub[..];
        for &key in &keys {
            let of_key;
            (of_key, hub) = hub.split_at_mut(weights[key.index()].len());
            let by = match plan.together(terms.job.workers, round, key) {
                Content::Gradient if terms.job.optimizer.adapts_keys() => {
                    let chunks: Vec<ChunkId> = layout.key_chunks(key).map(ChunkId).collect();
                    let stepped = chunks.iter().filter(|chunk| !skipped.contains(&(**chunk, round.0)));
                    let mean = |chunk: &ChunkId| mean_of(layout, terms, plan, round, key, *chunk);
                    let first = |chunk: &ChunkId| {
                        (layout.chunk(*chunk).span.offset - layout.key_span(key).offset) / 4
                    };
                    let blocks = stepped.map(|chunk| {
                        let mean = mean(chunk);
                        let elements = &of_key[first(chunk)..][..mean.len()];
                        squares_of(terms, numbers.at(round), key, elements, &mean)
                    });
                    By::Quotient(oracle::quotient(blocks))
                }
                _ => scale.map_or(By::Nothing, By::Scale),
            };
            for ((i, weight), element) in weights[key.index()].iter_mut().enumerate().zip(of_key) {
                if !skipped.contains(&(chunk_of(key, i), round.0)) {
                    let together = match plan.together(terms.job.workers, round, key) {
                        Content::Gradient if is_skipped => Content::Nothing,
                        together => together,
                    };
                    let pushed = |rank| match plan.content(rank, round, key) {
                        Content::Nothing => None,
                        _ => Some(value(terms, rank, round, key, i)),
                    };
                    let numbers = numbers.at(round);
                    let (optimizer, multipliers) = (numbers.of(key), &numbers.multipliers);
                    let multipliers = multipliers.as_ref().map_or([1.0; 2], |of_keys| of_keys[key.index()]);
                    element.advance(terms, (optimizer, multipliers), by, together, pushed);
                }
                *weight = element.seen;
            }
        }
        by_round.push(weights);
    }
    (by_round, norms)
}

/// Returns the mean gradient of a chunk in a round. The mean is zero if the round has no gradients.
fn mean_of(layout: &Layout, terms: &Terms, plan: Plan, round: Round, key: KeyId, chunk: ChunkId) -> Vec<f32> {
    let span = layout.chunk(chunk).span;
    let first = (span.offset - layout.key_span(key).offset) / 4;
    let workers = terms.job.workers;
    let is_step = plan.together(workers, round, key) == Content::Gradient;
    let mean = |element: usize| {
        let pushes = |rank| plan.content(rank, round, key) != Content::Nothing;
        let of = |rank| coded(terms, value(terms, rank, round, key, element));
        let rescale = if terms.job.optimizer == Optimizer::Sum { 1.0 } else { 1.0 / workers as f32 };
        oracle::sum((0..workers).filter(|&rank| pushes(rank)).map(of)) * rescale
    };
    (first..first + span.bytes / 4).map(|element| if is_step { mean(element) } else { 0.0 }).collect()
}

/// The factor by which a norm changes an element's step, if a norm does.
#[derive(Clone, Copy)]
enum By {
    Nothing,
    Scale(f32),
    Quotient(f32),
}

/// Returns a chunk's sums of squares for the norms of its key: of the weights, and of the gradient or update. `mean` is
/// the chunk's mean gradient.
fn squares_of(terms: &Terms, numbers: &Numbers, key: KeyId, elements: &[Element], mean: &[f32]) -> [f64; 2] {
    let optimizer = numbers.of(key);
    let [lr_mult, wd_mult] = numbers.multipliers.as_ref().map_or([1.0; 2], |of_keys| of_keys[key.index()]);
    let measured = elements.iter().zip(mean).map(|(element, &mean)| {
        let number = Round(element.steps + 1);
        let step =
            Step::new(optimizer, terms.job.workers, number, optimizer.learning_rate(), lr_mult, wd_mult);
        let step = Step { rescale: 1.0, ..step };
        oracle::measured(optimizer, &step, mean, element.weight, &element.state)
    });
    let weights: Vec<f32> = elements.iter().map(|element| element.weight).collect();
    [weights, measured.collect()].map(|values| oracle::squares(&values))
}

/// Returns the value as the other end of a link receives it.
fn coded(terms: &Terms, value: f32) -> f32 {
    if terms.job.level.compression.is_some() { rounded(Dtype::BF16, value) } else { value }
}

/// One element at the hub and at the workers.
#[derive(Clone, Default)]
struct Element {
    weight: f32,
    state: [f32; 3],
    /// The number of steps so far. A round without workers has no step.
    steps: u32,
    seen: f32,
    /// The error that rounding has left in the sent means so far. It is added to the next mean.
    left_out: f32,
}

impl Element {
    fn advance(
        &mut self,
        terms: &Terms,
        (optimizer, [lr_mult, wd_mult]): (&Optimizer, Multipliers),
        by: By,
        together: Content,
        pushed: impl Fn(u32) -> Option<f32>,
    ) {
        let compressed = terms.job.level.compression.is_some();
        let keeps_weights = terms.job.optimizer.keeps_weights();
        match (together, pushed(0)) {
            (Content::Weights, Some(first)) => return (self.weight, self.seen) = (first, first), // raw
            (Content::Nothing, _) => return,
            _ => {}
        }
        let coded = |value| coded(terms, value);
        self.steps += 1;
        let (number, rate) = (Round(self.steps), optimizer.learning_rate());
        let mut step = Step::new(optimizer, terms.job.workers, number, rate, lr_mult, wd_mult);
        let mut sum = oracle::sum((0..terms.job.workers).filter_map(pushed).map(coded));
        match by {
            By::Nothing => {}
            By::Scale(scale) => {
                sum *= step.rescale; // the mean is clipped
                step.rescale = scale;
            }
            By::Quotient(quotient) => {
                sum *= step.rescale;
                step = Step { rescale: 1.0, ..step }.adapted(optimizer, quotient);
            }
        }
        oracle::step(optimizer, &step, sum, &mut self.weight, &mut self.state);
        if !compressed {
            self.seen = self.weight;
        } else if keeps_weights {
            let is_there = self.weight == self.seen && self.weight.is_infinite(); // infinity minus infinity is NaN
            self.seen += if is_there { 0.0 } else { coded(self.weight - self.seen) };
        } else {
            let whole = self.weight + self.left_out;
            self.seen = coded(whole);
            self.left_out = whole - self.seen;
        }
    }
}

#[test]
fn weights_are_the_oracles_or_the_run_ends_with_a_named_error() {
    let mut ends = BTreeMap::<&str, u32>::new();
    let mut skips = 0;
    for seed in seeds(CLUSTERS) {
        let mut cluster = Cluster::new(seed);
        let ended = cluster.run();
        let end = cluster.trouble.name_end(&ended, &cluster.job.notices);
        *ends.entry(end).or_default() += 1;
        skips += u32::from(!cluster.skipped.is_empty());
    }
    eprintln!("{ends:?}, {skips} with rounds that nobody was left of");
    if std::env::var_os("PHUB_SIM_SEED").is_none() {
        assert_eq!(ends.len(), ENDS, "every way to end was seen: {ends:?}");
        assert!(skips > 0, "some rounds had no worker left");
    }
}
