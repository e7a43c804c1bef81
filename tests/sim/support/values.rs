//! Gradients and first weights that change with every seed, worker, round and element. `pbox_core::oracle`
//! computes the expected weights from them, one element at a time.

use std::os::unix::fs::FileExt;

use half::{bf16, f16};
use pbox_core::oracle::{self, Step};
use pbox_core::{Dtype, Key, KeyId, Numbers, Optimizer, Round};
use worker_shim::State;

/// The value of `rank` that stands for the first weights.
const BROADCAST: u32 = u32::MAX;

/// A gradient that is so large that the norm of its round is a spike. All element types can represent it.
pub const SPIKE: f32 = 8192.0;

/// Returns a number from -4 to 4. The numbers differ much in size (binades), so that the rounded sum depends on the
/// order of summation.
fn value(seed: u64, rank: u32, round: u32, key: usize, element: usize) -> f32 {
    let place = (u64::from(rank) << 32 | u64::from(round)) ^ (key as u64) << 56 ^ (element as u64) << 8;
    let bits = mix(seed ^ mix(place));
    let unit = (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    unit * [4.0, 1.0, 0.125, 0.003][(bits & 3) as usize]
}

/// Mixes bits by the finaliser of Steele's SplitMix64.
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Writes the gradient of worker `rank` for a key in a round.
pub fn fill_gradient(seed: u64, rank: u32, round: u32, key: KeyId, into: &mut [f32]) {
    into.iter_mut().enumerate().for_each(|(i, slot)| *slot = value(seed, rank, round, key.index(), i));
}

/// Writes the weights that rank 0 broadcasts.
pub fn fill_weights(seed: u64, key: KeyId, into: &mut [f32]) {
    fill_gradient(seed, BROADCAST, 0, key, into);
}

/// Returns one element of the values that [`fill_gradient`] writes.
pub fn gradient(seed: u64, rank: u32, round: u32, key: KeyId, element: usize) -> f32 {
    value(seed, rank, round, key.index(), element)
}

/// Returns one element of the values that [`fill_weights`] writes.
pub fn weight(seed: u64, key: KeyId, element: usize) -> f32 {
    value(seed, BROADCAST, 0, key.index(), element)
}

pub fn rounded(dtype: Dtype, value: f32) -> f32 {
    match dtype {
        Dtype::F32 => value,
        Dtype::F16 => f16::from_f32(value).to_f32(),
        Dtype::BF16 => bf16::from_f32(value).to_f32(),
    }
}

/// A simple parameter server as a reference: it computes in f32, and rounds only the weights that it sends.
pub struct Reference {
    seed: u64,
    workers: u32,
    /// The number of workers of each machine, if each machine sums first.
    machines: Vec<u32>,
    optimizer: Optimizer,
    clip_norm: Option<f32>,
    /// The bound on the norm of the previous round, if that norm scales steps.
    pub clip_norm_last: Option<f32>,
    /// The rounds in which rank 1 pushes a [large value](SPIKE).
    pub spikes: Vec<u32>,
    /// The norm of the mean gradient of the last round.
    pub norm: f32,
    /// Whether steps go in the direction of the gradient.
    pub maximize: bool,
    /// The decay of the averages.
    pub ema: Option<f64>,
    /// The averages of the master weights, by key, if there is a decay.
    pub averages: Vec<Vec<f32>>,
    keys: Vec<Key>,
    round: u32,
    /// The number of steps that each key has made.
    steps: Vec<u32>,
    /// The workers' weights, by key.
    pub weights: Vec<Vec<f32>>,
    master: Vec<Vec<f32>>,
    state: Vec<Vec<[f32; 3]>>,
}

impl Reference {
    /// Creates a server. If the optimizer keeps weights, the broadcast has already been made.
    pub fn new(seed: u64, workers: u32, optimizer: Optimizer, keys: &[Key]) -> Self {
        let zeros: Vec<Vec<f32>> = keys.iter().map(|key| vec![0.0; elements(key)]).collect();
        let state = keys.iter().map(|key| vec![[0.0; 3]; elements(key)]).collect();
        let mut weights = zeros;
        if optimizer.keeps_weights() {
            for ((weights, id), key) in weights.iter_mut().zip(0..).zip(keys) {
                fill_weights(seed, KeyId(id), weights);
                weights.iter_mut().for_each(|weight| *weight = rounded(key.dtype, *weight));
            }
        }
        let master = weights.clone();
        let machines = vec![workers];
        Reference {
            seed,
            workers,
            machines,
            optimizer,
            clip_norm: None,
            clip_norm_last: None,
            spikes: Vec::new(),
            norm: 0.0,
            maximize: false,
            ema: None,
            averages: weights.clone(),
            keys: keys.to_vec(),
            round: 0,
            steps: vec![0; keys.len()],
            weights,
            master,
            state,
        }
    }

    /// Returns the server with its workers on several machines. Each machine first sums its own workers' gradients.
    /// `machines` has each machine's number of workers.
    pub fn on_machines(self, machines: Vec<u32>) -> Self {
        assert_eq!(machines.iter().sum::<u32>(), self.workers);
        Reference { machines, ..self }
    }

    /// Returns the server, set back to a state that it had earlier.
    pub fn with(mut self, state: &Saved) -> Self {
        let [master, first, second] = state.tensors(&self.keys);
        (self.master, self.round) = (master, state.before.0 - 1);
        self.steps.clone_from(&state.steps);
        for (key, state) in self.state.iter_mut().enumerate() {
            let values = first[key].iter().zip(&second[key]);
            *state = values.map(|(&first, &second)| [first, second, 0.0]).collect();
        }
        for ((weights, master), key) in self.weights.iter_mut().zip(&self.master).zip(&self.keys) {
            *weights = master.iter().map(|&weight| rounded(key.dtype, weight)).collect();
        }
        self
    }

    /// Returns the server whose keys have made these numbers of steps.
    pub fn with_steps(self, steps: &[u32]) -> Self {
        Reference { steps: steps.to_vec(), ..self }
    }

    /// Resets a key's optimizer state to zero.
    pub fn reset(&mut self, key: KeyId) {
        self.state[key.index()].fill([0.0; 3]);
        self.steps[key.index()] = 0;
    }

    /// Returns the server after `rounds` more rounds.
    pub fn after(mut self, rounds: u32) -> Self {
        (0..rounds).for_each(|_| self.advance(self.learning_rate()));
        self
    }

    /// Returns the learning rate of the optimizer.
    pub fn learning_rate(&self) -> f32 {
        self.optimizer.learning_rate()
    }

    /// Loses the gradients of `rounds` rounds, as if nobody had pushed them.
    pub fn lose(&mut self, rounds: u32) {
        self.round += rounds;
    }

    /// Loses the gradients of a round. Returns the norm of their mean.
    pub fn skip(&mut self) -> f32 {
        let norm = self.norm_of(&self.means(&self.optimizer));
        self.lose(1);
        norm
    }

    /// Makes one round at this learning rate.
    pub fn advance(&mut self, learning_rate: f32) {
        self.advance_by(&Numbers::new(self.optimizer.with_learning_rate(learning_rate)));
    }

    /// Returns the server with clipping: it clips the mean of each round to the norm `clip_norm`, if one is given.
    pub fn clipped(self, clip_norm: Option<f32>) -> Self {
        Reference { clip_norm, ..self }
    }

    /// Makes one round with these hyperparameters of the optimizer.
    pub fn advance_by(&mut self, numbers: &Numbers) {
        let sums = self.means(&numbers.optimizer);
        let by_former = self.clip_norm_last.map_or(1.0, |most| oracle::clip_scale_after(self.norm, most));
        self.norm = self.norm_of(&sums);
        let scale = self.clip_norm.map_or(by_former, |most| oracle::clip_scale(self.norm, most));
        for (key, settings) in self.keys.iter().enumerate() {
            let of_terms = [settings.lr_mult, settings.wd_mult];
            let [lr_mult, wd_mult] = numbers.multipliers.as_ref().map_or(of_terms, |of_keys| of_keys[key]);
            let optimizer = numbers.of(KeyId(key as u32));
            self.steps[key] += 1;
            let number = Round(self.steps[key]);
            let step =
                Step::new(optimizer, self.workers, number, optimizer.learning_rate(), lr_mult, wd_mult);
            let sign = if self.maximize { -1.0 } else { 1.0 };
            let mut step = Step { rescale: sign * scale, ..step };
            if optimizer.adapts_keys() {
                step = step.adapted(optimizer, self.quotient(key, optimizer, &step, &sums[key]));
            }
            let values = self.master[key].iter_mut().zip(&mut self.state[key]).enumerate();
            for (i, (master, state)) in values {
                oracle::step(optimizer, &step, sums[key][i], master, state);
                self.weights[key][i] = rounded(settings.dtype, *master);
                if let Some(decay) = self.ema {
                    oracle::average(decay, *master, &mut self.averages[key][i]);
                }
            }
        }
        self.round += 1;
    }

    /// Returns the mean gradients of the round, by key.
    fn means(&self, optimizer: &Optimizer) -> Vec<Vec<f32>> {
        let mut sums: Vec<Vec<f32>> = (0..self.keys.len()).map(|key| self.sums(key)).collect();
        let rescale = Step::new(optimizer, self.workers, Round(1), 0.0, 1.0, 1.0).rescale;
        sums.iter_mut().flatten().for_each(|sum| *sum *= rescale);
        sums
    }

    /// Returns the sums of a key's gradients.
    fn sums(&self, key: usize) -> Vec<f32> {
        let dtype = self.keys[key].dtype;
        let has_spike = key == 0 && self.spikes.contains(&self.round);
        let gradient = |rank, i| match (rank, i) {
            (1, 0) if has_spike => SPIKE,
            _ => rounded(dtype, value(self.seed, rank, self.round, key, i)),
        };
        let sum = |i| {
            let mut next = 0;
            let sum_of_machine = |&workers: &u32| {
                let ranks = next..next + workers;
                next = ranks.end;
                let sum = oracle::sum(ranks.map(|rank| gradient(rank, i)));
                if self.machines.len() > 1 { rounded(dtype, sum) } else { sum }
            };
            oracle::sum(self.machines.iter().map(sum_of_machine))
        };
        (0..self.master[key].len()).map(sum).collect()
    }

    /// Returns the quotient of a key's two norms: of its weights, and of the gradient or update from `mean`, before the
    /// step.
    fn quotient(&self, key: usize, optimizer: &Optimizer, step: &Step, mean: &[f32]) -> f32 {
        let (weights, states) = (&self.master[key], &self.state[key]);
        let of = |i: usize| oracle::measured(optimizer, step, mean[i], weights[i], &states[i]);
        let measured: Vec<f32> = (0..mean.len()).map(of).collect();
        let length = oracle::BLOCK_BYTES / self.keys[key].dtype.bytes();
        let blocks = weights.chunks(length).zip(measured.chunks(length));
        oracle::quotient(blocks.map(|(weights, measured)| [weights, measured].map(oracle::squares)))
    }

    fn norm_of(&self, means: &[Vec<f32>]) -> f32 {
        let blocks = means.iter().zip(&self.keys).flat_map(|(means, key)| {
            means.chunks(oracle::BLOCK_BYTES / key.dtype.bytes()).map(oracle::squares)
        });
        oracle::norm(blocks)
    }
}

fn elements(key: &Key) -> usize {
    key.elements().expect("a test's key") as usize
}

/// Returns the bits of numbers. Comparing bits also distinguishes signed zeros, and compares NaN.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Asserts that `seen` and `expected` are equal, bit for bit.
#[track_caller]
pub fn same_bits(what: impl std::fmt::Display, seen: &[f32], expected: &[f32]) {
    assert_eq!(seen.len(), expected.len(), "{what}: length");
    for (i, (seen, expected)) in seen.iter().zip(expected).enumerate() {
        assert_eq!(
            seen.to_bits(),
            expected.to_bits(),
            "{what}, element {i}: expected {expected:e}, saw {seen:e}"
        );
    }
}

/// Changes one bit of these values, as defective memory does.
pub fn flip_a_bit<E>(values: &[E]) {
    let memory = std::fs::File::options().read(true).write(true).open("/proc/self/mem").unwrap();
    let (mut byte, at) = ([0], values.as_ptr().addr() as u64);
    memory.read_exact_at(&mut byte, at).unwrap();
    memory.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// The state of a job, with all its keys.
pub struct Saved {
    pub before: Round,
    /// The number of steps of each key. A job that fails in the middle of a round may have stepped only some of the
    /// keys.
    pub steps: Vec<u32>,
    /// The values in the form in which a session brings them.
    pub values: Vec<u8>,
}

impl Saved {
    /// Returns the state in the form in which a session brings it.
    pub fn state(&self) -> State {
        State {
            before: self.before,
            steps: None,
            values: Box::new(std::io::Cursor::new(self.values.clone())),
        }
    }

    /// Returns one tensor of each key. Tensor 0 is the weights, and tensor 1 is the first optimizer state.
    pub fn tensor(&self, keys: &[Key], which: usize) -> Vec<Vec<f32>> {
        let all: usize = keys.iter().map(elements).sum();
        let values = self.values.chunks_exact(4).skip(which * all);
        let mut values = values.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        keys.iter().map(|key| values.by_ref().take(elements(key)).collect()).collect()
    }

    /// Returns the weights of each key, and each key's first and second optimizer state. A state that the
    /// optimizer does not have is 0.
    pub fn tensors(&self, keys: &[Key]) -> [Vec<Vec<f32>>; 3] {
        let mut values =
            self.values.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        [(); 3].map(|()| {
            let of = |key: &Key| (0..key.elements().unwrap()).map(|_| values.next().unwrap_or(0.0)).collect();
            keys.iter().map(of).collect()
        })
    }
}
