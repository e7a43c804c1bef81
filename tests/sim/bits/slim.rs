//! Slim-DP in small clusters over the simulated network. Every weight that a worker reads equals the weight of a plain
//! model, element by element. This holds for any order of arrival and number of cores, even if the network corrupts
//! pushes so that the hub cannot read them.
//!
//! A seed decides everything. A failure prints its seed.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabric::sim::{Faults, Net, seeds};
use pbox_core::oracle::{self, Step};
use pbox_core::slim::{Drawer, Explorer, SlimDp, set};
use pbox_core::{ChunkId, Compression, Credit, Key, KeyId, Layout, Optimizer, Round, Schedule};
use sim_tests::simulated::{SEED, Simulated, Terms};
use sim_tests::trouble::Dice;
use sim_tests::values::{mix, same_bits};

const CLUSTERS: u64 = 1_000;
/// The learning rate of a worker's own step.
const OWN_RATE: f32 = 0.0625;

/// A chunk of the model.
struct Chunk {
    key: KeyId,
    /// The first element in its key.
    start: usize,
    weights: Vec<f32>,
    state: Vec<[f32; 3]>,
    /// The significant set that pushes use now.
    significant: Option<Vec<u64>>,
    /// The weights of each worker.
    local: Vec<Vec<f32>>,
    /// The values that stay in each worker's gradient after the push of a round.
    left_out: Vec<Vec<f32>>,
}

/// The plain model of Slim-DP, which handles one element after another.
struct Model {
    slim: SlimDp,
    /// Whether a worker adds each gradient to the values that it did not push, instead of overwriting these
    /// values.
    keeps: bool,
    optimizer: Optimizer,
    workers: u32,
    chunks: Vec<Chunk>,
    /// The significant set that was selected after the previous round, by chunk.
    selected: Option<Vec<Vec<u64>>>,
    /// The number of pushes of chunks with only the two sets of Slim-DP: the significant set, and the explorer
    /// (elements drawn at random). `mended` counts the chunks that were pushed again as a whole.
    sets: usize,
    mended: usize,
}

impl Model {
    fn new(slim: SlimDp, keeps: bool, terms: &Terms, layout: &Layout) -> Self {
        let chunk = |chunk: &pbox_core::Chunk| {
            let start = (chunk.span.offset - layout.key_span(chunk.key).offset) / 4;
            let elements = chunk.span.bytes / 4;
            let weights: Vec<f32> = (0..elements).map(|i| value(0, Round(0), chunk.key, start + i)).collect();
            let local = vec![weights.clone(); terms.job.workers as usize];
            let left_out = vec![vec![0.0; elements]; terms.job.workers as usize];
            let state = vec![[0.0; 3]; elements];
            Chunk { key: chunk.key, start, state, significant: None, local, left_out, weights }
        };
        let chunks = layout.chunks().iter().map(chunk).collect();
        Model {
            slim,
            keeps,
            optimizer: terms.job.optimizer,
            workers: terms.job.workers,
            chunks,
            selected: None,
            sets: 0,
            mended: 0,
        }
    }

    /// Makes a round. `corrupt` has the pushes whose significant set arrived with a corrupt signature.
    fn round(&mut self, round: Round, corrupt: &BTreeSet<(u32, ChunkId)>) {
        let selects = self.slim.selects(round, Round(1));
        let step = Step::new(&self.optimizer, self.workers, round, self.optimizer.learning_rate(), 1.0, 1.0);
        let mut significance = Vec::new();
        let selected = self.selected.take();
        for (id, chunk) in (0..).map(ChunkId).zip(&mut self.chunks) {
            let elements = chunk.weights.len();
            let pushed = |rank: u32| -> Vec<u64> {
                let mut all = vec![0; set::words(elements)];
                match &chunk.significant {
                    Some(significant) if !selects && !corrupt.contains(&(rank, id)) => {
                        self.slim.explore(
                            elements,
                            significant,
                            &mut all,
                            Drawer { seed: SEED, rank, round, chunk: id },
                        );
                    }
                    _ => (0..elements).for_each(|place| set::insert(&mut all, place)),
                }
                all
            };
            let pushed: Vec<Vec<u64>> = (0..self.workers).map(pushed).collect();
            if chunk.significant.is_some() && !selects {
                let mended = corrupt.iter().filter(|(_, chunk)| *chunk == id).count();
                self.mended += mended;
                self.sets += self.workers as usize - mended;
            }
            for place in 0..elements {
                let gradient = |rank: u32| value(rank, round, chunk.key, chunk.start + place);
                let mut sum = 0.0;
                for rank in 0..self.workers {
                    let left_out = &mut chunk.left_out[rank as usize][place];
                    *left_out = if self.keeps { *left_out + gradient(rank) } else { gradient(rank) };
                    if set::has(&pushed[rank as usize], place) {
                        sum += std::mem::take(left_out);
                    }
                }
                let (weight, state) = (&mut chunk.weights[place], &mut chunk.state[place]);
                oracle::step(&self.optimizer, &step, sum, weight, state);
                let mean = sum * (1.0 / self.workers as f32);
                let c = self.slim.c.expect("the model knows its c");
                significance.push(weight.abs() + c * mean.abs());
                for rank in 0..self.workers {
                    let local = &mut chunk.local[rank as usize][place];
                    let is_sent = set::has(&pushed[rank as usize], place);
                    *local = if is_sent { *weight } else { *local - OWN_RATE * gradient(rank) };
                }
            }
        }
        if let Some(sets) = selected {
            self.chunks
                .iter_mut()
                .zip(sets)
                .for_each(|(chunk, significant)| chunk.significant = Some(significant));
        }
        self.selected = selects.then(|| self.select(&significance));
    }

    /// Selects the most significant elements of the model. If several elements at the limit have the same significance,
    /// takes none of them.
    fn select(&self, significance: &[f32]) -> Vec<Vec<u64>> {
        let room = (f64::from(self.slim.beta) * significance.len() as f64) as usize;
        let mut sorted = significance.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let above = sorted.get(room).copied().unwrap_or(-1.0);
        let mut significance = significance.iter();
        let significant = |chunk: &Chunk| {
            let mut significant = vec![0; set::words(chunk.weights.len())];
            for place in 0..chunk.weights.len() {
                if *significance.next().expect("of every element") > above {
                    set::insert(&mut significant, place);
                }
            }
            significant
        };
        self.chunks.iter().map(significant).collect()
    }
}

/// Returns the value that a worker pushes. Rank 0 pushes weights in round 0.
fn value(rank: u32, round: Round, key: KeyId, element: usize) -> f32 {
    let place = u64::from(rank) << 48 | u64::from(round.0) << 32 | u64::from(key.0) << 16 | element as u64;
    (mix(place) % 4001) as f32 / 1000.0 - 2.0
}

fn settings(dice: &mut Dice) -> (SlimDp, Optimizer) {
    let alpha = dice.from(1..=10) as f32 / 10.0;
    let beta = alpha * dice.from(0..=4) as f32 / 4.0;
    let explorer = if dice.below(2) == 0 { Explorer::Keys } else { Explorer::Seeded };
    let c = Some(dice.below(30) as f32 / 10.0);
    let slim = SlimDp { q: dice.from(1..=6) as u32, c, explorer, ..SlimDp::new(alpha, beta) };
    let (learning_rate, weight_decay, momentum) = (0.125, 0.01, 0.9);
    let optimizer = match dice.below(3) {
        0 => Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 },
        1 => Optimizer::Momentum { learning_rate, weight_decay, momentum },
        _ => Optimizer::Nesterov { learning_rate, weight_decay, momentum },
    };
    (slim, optimizer)
}

/// Runs a cluster. Returns the number of chunks that were pushed as the sets of Slim-DP, and the number of chunks that
/// were pushed again.
fn cluster(seed: u64) -> (usize, usize) {
    let mut dice = Dice::new(seed);
    let keys = (0..dice.from(1..=4)).map(|key| Key::f32(format!("key {key}"), [dice.from(1..=150)]));
    let layout = Arc::new(Layout::new(keys.collect(), 64 * dice.from(1..=6) as usize).unwrap());
    let (slim, optimizer) = settings(&mut dice);
    let mut terms = Terms::new(dice.from(1..=4) as u32, dice.from(1..=4) as usize, optimizer);
    terms.job.level.schedule = [Schedule::Sliced, Schedule::P3][dice.below(2) as usize];
    terms.job.level.compression = Some(Compression::Slim(slim));
    let mut credit = || (dice.below(3) > 0).then(|| dice.from(1..=600) as usize);
    (terms.worker_credit, terms.job.level.credit) = (credit(), credit().map(Credit::Bytes));
    let faults = Faults { delay: 0..dice.from(1..=30), reorder: dice.below(2) == 0, ..Faults::NONE };
    let mut job = Simulated::new(Net::new(seed, faults), &layout, terms.clone()).unwrap();
    let mut model = Model::new(slim, dice.below(2) == 0, &terms, &layout);
    let keys = || (0..layout.keys().len() as u32).map(KeyId);
    for round in (0..dice.from(6..=16) as u32).map(Round) {
        let mut corrupt = BTreeSet::new();
        for rank in 0..terms.job.workers {
            if round > Round(2) && dice.below(6) == 0 {
                let chunk = ChunkId(dice.below(layout.chunks().len() as u64) as u32);
                job.corrupt_signature(rank, chunk);
                corrupt.insert((rank, chunk));
            }
            let worker = &mut job.workers[rank as usize];
            let mut order: Vec<KeyId> = keys().collect();
            order.rotate_left(dice.below(layout.keys().len() as u64) as usize);
            for key in order {
                let elements = layout.key_span(key).bytes / 4;
                let gradients: Vec<f32> = (0..elements).map(|i| value(rank, round, key, i)).collect();
                if round > Round(0) {
                    let own = worker.weights_mut::<f32>(key).unwrap().iter_mut().zip(&gradients);
                    own.for_each(|(weight, gradient)| *weight -= OWN_RATE * gradient);
                }
                for (slot, gradient) in worker.gradient_mut::<f32>(key).unwrap().iter_mut().zip(&gradients) {
                    *slot = if model.keeps { *slot + gradient } else { *gradient };
                }
                worker.push(key).unwrap();
            }
        }
        job.settle(2_000).unwrap();
        if round > Round(0) {
            model.round(round, &corrupt);
        }
        for (chunk, rank) in
            model.chunks.iter().flat_map(|chunk| (0..terms.job.workers).map(move |rank| (chunk, rank)))
        {
            let seen = &job.workers[rank as usize].weights::<f32>(chunk.key).unwrap()[chunk.start..];
            let expected = &chunk.local[rank as usize];
            let what = format!("rank {rank}, round {}, key {} from {}", round.0, chunk.key.0, chunk.start);
            same_bits(&what, &seen[..expected.len()], expected);
            let left_out = &chunk.left_out[rank as usize];
            let gradient = &job.workers[rank as usize].gradient_mut::<f32>(chunk.key).unwrap()[chunk.start..];
            same_bits(&what, &gradient[..left_out.len()], left_out);
        }
    }
    (model.sets, model.mended)
}

#[test]
fn every_weight_is_the_models() {
    let (mut sets, mut mended) = (0, 0);
    for seed in seeds(CLUSTERS) {
        let seen = cluster(seed);
        (sets, mended) = (sets + seen.0, mended + seen.1);
    }
    eprintln!("{sets} chunks were pushed as significant set and explorer, {mended} again and whole");
    if std::env::var_os("PHUB_SIM_SEED").is_none() {
        assert!(sets > 1000 && mended > 100, "{sets} sets, {mended} mended: all that can happen was seen");
    }
}

/// In this ablation the hub does not sum: it reads only the push of rank 0, and steps as if the other workers had
/// pushed zeros. So rank 0 gets the same weights as in a run without ablation in which the other workers push zeros.
#[test]
fn without_the_sum_only_the_first_push_counts() {
    let layout = Arc::new(Layout::new(vec![Key::f32("a", [200]), Key::f32("b", [40])], 256).unwrap());
    let run = |aggregate: bool| {
        let terms = Terms::new(3, 2, Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 }).with(|job| {
            job.level.compression = "slim:0.4:0.2:3".parse().ok();
            job.ablate.aggregate = aggregate;
        });
        let mut job = Simulated::new(Net::new(1, Faults::NONE), &layout, terms).unwrap();
        let keys = [KeyId(0), KeyId(1)];
        for round in 0..8 {
            for (rank, worker) in job.workers.iter_mut().enumerate() {
                for key in keys {
                    let counts = rank == 0 || aggregate;
                    let gradient = worker.gradient_mut::<f32>(key).unwrap().iter_mut().enumerate();
                    gradient.for_each(|(element, to)| {
                        *to = if counts { value(rank as u32, Round(round), key, element) } else { 0.0 };
                    });
                    worker.push(key).unwrap();
                }
            }
            job.settle(1000).unwrap();
        }
        let bits =
            |key| job.workers[0].weights::<f32>(key).unwrap().iter().map(|weight| weight.to_bits()).collect();
        keys.map(|key| -> Vec<u32> { bits(key) })
    };
    assert_eq!(run(true), run(false));
}
