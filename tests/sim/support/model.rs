//! A plain model of a compressed job. It computes each chunk with the real codecs, without frames, windows
//! and links.

use std::collections::BTreeMap;

use pbox_core::codec::{Codec, Draw};
use pbox_core::kernels::Kernels;
use pbox_core::oracle::{self, Step};
use pbox_core::{ChunkId, Compression, Content, Dtype, Key, KeyId, Layout, Numbers, Optimizer, Round};

use super::values::{Saved, rounded};

/// A model of a job in BSP whose workers all take part.
pub struct Model {
    layout: Layout,
    codec: Codec,
    answer: Codec,
    seed: u64,
    workers: u32,
    /// The number of gradients in a round: one for each worker. If workers push sums, the number of gradients in all
    /// sums.
    pub gradients: u32,
    optimizer: Optimizer,
    /// The bound on the norm of a round's mean, if steps wait for this norm.
    pub clip_norm: Option<f32>,
    /// The bound on the norm of the previous round, if that norm scales steps.
    pub clip_norm_last: Option<f32>,
    /// Whether the job skips rounds that are not finite.
    pub skips: bool,
    /// The factor of a spike: a round is skipped if its norm is more than this factor times the mean of the norms.
    pub skip_spikes: Option<f32>,
    /// The norms of the rounds that were not skipped, if the job looks for spikes.
    norms: Vec<f32>,
    /// The norm of the last round's mean, in a job that computes norms.
    pub norm: Option<f32>,
    /// The norm of the last mean that was not 0.
    former: f32,
    /// The hub's next round.
    pub round: Round,
    chunks: Vec<Chunk>,
}

struct Chunk {
    /// The hub's weights. If the optimizer keeps no weights, the field has the values that the codec left out of the
    /// last answer.
    weights: Vec<f32>,
    /// The number of steps that the hub has made.
    steps: u32,
    state: Vec<[f32; 3]>,
    /// The workers' weights.
    seen: Vec<f32>,
    /// The values that each rank's encoder keeps for the next round.
    kept: Vec<Vec<f32>>,
}

impl Model {
    pub fn new(
        keys: &[Key],
        chunk_bytes: usize,
        compression: Compression,
        seed: u64,
        workers: u32,
        optimizer: Optimizer,
    ) -> Self {
        let layout = Layout::new(keys.to_vec(), chunk_bytes).unwrap();
        let Compression::Codec(codec) = compression else { panic!("a model of codecs") };
        let chunk = |chunk: &pbox_core::Chunk| {
            let elements = chunk.span.bytes / layout.keys()[chunk.key.index()].dtype.bytes();
            Chunk {
                weights: vec![0.0; elements],
                steps: 0,
                state: vec![[0.0; 3]; elements],
                seen: vec![0.0; elements],
                kept: vec![vec![0.0; elements * codec.state_per_element()]; workers as usize],
            }
        };
        let chunks = layout.chunks().iter().map(chunk).collect();
        let answer = codec.answer_codec(workers);
        Model {
            layout,
            codec,
            answer,
            seed,
            workers,
            gradients: workers,
            optimizer,
            clip_norm: None,
            clip_norm_last: None,
            skips: false,
            skip_spikes: None,
            norms: Vec::new(),
            norm: None,
            former: 0.0,
            round: Round(0),
            chunks,
        }
    }

    /// Begins with the weights that `value` gives.
    pub fn broadcast(&mut self, value: impl Fn(KeyId, usize) -> f32) {
        for id in 0..self.chunks.len() {
            let (key, first, dtype) = self.place(id);
            for (i, weight) in self.chunks[id].weights.iter_mut().enumerate() {
                *weight = rounded(dtype, value(key, first + i));
            }
            self.chunks[id].seen = self.chunks[id].weights.clone();
        }
        self.round = self.round.next();
    }

    /// Continues from a checkpoint with new workers.
    pub fn restart(&mut self) {
        for id in 0..self.chunks.len() {
            let (_, _, dtype) = self.place(id);
            let Chunk { weights, seen, kept, .. } = &mut self.chunks[id];
            *seen = weights.iter().map(|&weight| rounded(dtype, weight)).collect();
            kept.iter_mut().for_each(|kept| kept.fill(0.0));
        }
    }

    /// Continues with new workers from a state that the job had.
    pub fn restart_with(&mut self, state: &Saved) {
        let [weights, first, second] = state.tensors(self.layout.keys());
        for id in 0..self.chunks.len() {
            let (key, begin, _) = self.place(id);
            let chunk = &mut self.chunks[id];
            chunk.steps = state.before.0 - 1;
            for i in 0..chunk.weights.len() {
                let (key, at) = (key.index(), begin + i);
                (chunk.weights[i], chunk.state[i]) =
                    (weights[key][at], [first[key][at], second[key][at], 0.0]);
            }
        }
        self.round = state.before;
        self.restart();
    }

    /// Makes one round at this learning rate. Each rank pushes `value`.
    pub fn advance(&mut self, learning_rate: f32, value: impl Fn(u32, KeyId, usize) -> f32) {
        self.advance_by(&Numbers::new(self.optimizer.with_learning_rate(learning_rate)), value);
    }

    /// Makes one round with these hyperparameters. Each rank pushes `value`.
    pub fn advance_by(&mut self, numbers: &Numbers, value: impl Fn(u32, KeyId, usize) -> f32) {
        self.advance_as(numbers, |_, _| Content::Gradient, value);
    }

    /// Makes one round in which the ranks may push other contents than gradients.
    pub fn advance_as(
        &mut self,
        numbers: &Numbers,
        content: impl Fn(u32, KeyId) -> Content,
        value: impl Fn(u32, KeyId, usize) -> f32,
    ) {
        let mut sums = Vec::new();
        for id in 0..self.chunks.len() {
            let (key, first, dtype) = self.place(id);
            if content(0, key) == Content::Weights {
                let Chunk { weights, seen, .. } = &mut self.chunks[id];
                (0..).zip(&mut *seen).for_each(|(i, seen)| *seen = rounded(dtype, value(0, key, first + i)));
                if self.optimizer.keeps_weights() {
                    weights.clone_from(seen);
                }
                continue;
            }
            if (0..self.workers).all(|rank| content(rank, key) == Content::Nothing) {
                continue;
            }
            let elements = self.chunks[id].weights.len();
            let mut sum = vec![0.0; elements];
            for rank in (0..self.workers).filter(|&rank| content(rank, key) == Content::Gradient) {
                let pushed: Vec<f32> =
                    (0..elements).map(|i| rounded(dtype, value(rank, key, first + i))).collect();
                let mut kept = std::mem::take(&mut self.chunks[id].kept[rank as usize]);
                self.add_coded(&self.codec, &pushed, &mut kept, rank, id, &mut sum);
                self.chunks[id].kept[rank as usize] = kept;
            }
            sums.push((id, sum));
        }
        let former = self.former;
        self.norm = None;
        let mut scale = None;
        let has_norm = self.clip_norm.or(self.clip_norm_last).or(self.skip_spikes).is_some();
        if has_norm || self.skips {
            let rescale = Step::new(&self.optimizer, self.gradients, Round(1), 0.0, 1.0, 1.0).rescale;
            sums.iter_mut().flat_map(|(_, sum)| sum).for_each(|sum| *sum *= rescale);
            let blocks =
                sums.iter().flat_map(|(_, means)| means.chunks(oracle::BLOCK_BYTES / size_of::<f32>()));
            let norm = oracle::norm(blocks.map(oracle::squares));
            let by_former = self.clip_norm_last.map_or(1.0, |most| oracle::clip_scale_after(former, most));
            scale = Some(self.clip_norm.map_or(by_former, |most| oracle::clip_scale(norm, most)));
            self.norm = Some(norm);
            self.former = if norm == 0.0 { former } else { norm };
        }
        let is_spike =
            |norm| self.skip_spikes.is_some_and(|times| oracle::is_spike(&self.norms, norm, times));
        let is_skipped = |norm: f32| self.skips && !norm.is_finite() || is_spike(norm);
        if !self.norm.is_some_and(is_skipped) {
            self.norms.extend(self.norm);
            let quotients = self.quotients(numbers, &mut sums);
            sums.into_iter().for_each(|(id, sum)| self.step_by(numbers, id, &sum, scale, &quotients));
        }
        self.round = self.round.next();
    }

    /// Turns these sums into means. Returns the quotient of norms of each key, if steps use it.
    fn quotients(&self, numbers: &Numbers, sums: &mut [(usize, Vec<f32>)]) -> BTreeMap<KeyId, f32> {
        let mut squares = BTreeMap::<KeyId, Vec<[f64; 2]>>::new();
        for (id, sum) in sums.iter_mut() {
            let (optimizer, step) = self.step_of(numbers, *id);
            if optimizer.adapts_keys() {
                sum.iter_mut().for_each(|sum| *sum *= step.rescale);
                let step = Step { rescale: 1.0, ..step };
                let Chunk { weights, state, .. } = &self.chunks[*id];
                let of = |i: usize| oracle::measured(optimizer, &step, sum[i], weights[i], &state[i]);
                let measured: Vec<f32> = (0..sum.len()).map(of).collect();
                let length = oracle::BLOCK_BYTES / size_of::<f32>();
                let blocks = weights.chunks(length).zip(measured.chunks(length));
                let of_blocks = blocks.map(|(weights, measured)| [weights, measured].map(oracle::squares));
                squares.entry(self.place(*id).0).or_default().extend(of_blocks);
            }
        }
        squares.into_iter().map(|(key, blocks)| (key, oracle::quotient(blocks.into_iter()))).collect()
    }

    fn step_of<'a>(&self, numbers: &'a Numbers, id: usize) -> (&'a Optimizer, Step) {
        let (key, ..) = self.place(id);
        let Key { lr_mult, wd_mult, .. } = self.layout.keys()[key.index()];
        let [lr_mult, wd_mult] =
            numbers.multipliers.as_ref().map_or([lr_mult, wd_mult], |of_keys| of_keys[key.index()]);
        let (optimizer, number) = (numbers.of(key), Round(self.chunks[id].steps + 1));
        let rate = optimizer.learning_rate();
        (optimizer, Step::new(optimizer, self.gradients, number, rate, lr_mult, wd_mult))
    }

    /// Steps a chunk with these hyperparameters. `sum` is a sum, or already a mean: if there is a scale, or if the
    /// chunk's key has a quotient.
    fn step_by(
        &mut self,
        numbers: &Numbers,
        id: usize,
        sum: &[f32],
        scale: Option<f32>,
        quotients: &BTreeMap<KeyId, f32>,
    ) {
        let (key, _, dtype) = self.place(id);
        let (optimizer, step) = self.step_of(numbers, id);
        let step = match quotients.get(&key) {
            Some(&quotient) => Step { rescale: 1.0, ..step }.adapted(optimizer, quotient),
            None => Step { rescale: scale.unwrap_or(step.rescale), ..step },
        };
        self.chunks[id].steps += 1;
        self.step(id, dtype, &step, sum);
    }

    fn step(&mut self, id: usize, dtype: Dtype, step: &Step, sum: &[f32]) {
        let keeps_weights = self.optimizer.keeps_weights();
        let Chunk { weights, state, seen, .. } = &mut self.chunks[id];
        let whole: Vec<f32> = if keeps_weights {
            for ((weight, state), sum) in weights.iter_mut().zip(state).zip(sum) {
                oracle::step(&self.optimizer, step, *sum, weight, state);
            }
            weights.iter().zip(&*seen).map(|(weight, seen)| weight - seen).collect()
        } else {
            let mean = |sum: &f32| {
                let mut mean = 0.0;
                oracle::step(&self.optimizer, step, *sum, &mut mean, &mut []);
                mean
            };
            sum.iter().zip(&*weights).map(|(sum, left_out)| mean(sum) + left_out).collect()
        };
        // Values in f32 are added in place. For other types the sum is rounded.
        let mut seen = std::mem::take(seen);
        if !keeps_weights {
            seen.fill(0.0);
        }
        let exact = seen.clone();
        if dtype == Dtype::F32 {
            self.add_coded(&self.answer, &whole, &mut [], u32::MAX, id, &mut seen);
        } else {
            let mut decoded = vec![0.0; seen.len()];
            self.add_coded(&self.answer, &whole, &mut [], u32::MAX, id, &mut decoded);
            let sums = exact.iter().zip(&decoded).map(|(exact, decoded)| rounded(dtype, exact + decoded));
            seen = sums.collect();
        }
        let chunk = &mut self.chunks[id];
        if !keeps_weights {
            chunk.weights = whole.iter().zip(&seen).map(|(whole, seen)| whole - seen).collect();
        }
        chunk.seen = seen;
    }

    /// Encodes values, decodes them and adds the result to `sum`.
    fn add_coded(
        &self,
        codec: &Codec,
        values: &[f32],
        kept: &mut [f32],
        rank: u32,
        id: usize,
        sum: &mut [f32],
    ) {
        let scalar = Kernels::available().last().expect("scalar kernels run everywhere");
        let mut payload = vec![0; codec.payload_bytes(values.len())];
        let draw = Draw { seed: self.seed, rank, round: self.round, chunk: ChunkId(id as u32) };
        let encoded = codec.encode(scalar, values, kept, draw, &mut payload);
        codec.add(scalar, &payload[..encoded.bytes], sum);
    }

    /// Returns a key's weights at the workers.
    pub fn weights(&self, key: KeyId) -> Vec<f32> {
        let chunks = self.layout.key_chunks(key);
        self.chunks[chunks.start as usize..chunks.end as usize]
            .iter()
            .flat_map(|chunk| chunk.seen.clone())
            .collect()
    }

    /// Returns the weights of all keys.
    pub fn all_weights(&self) -> Vec<Vec<f32>> {
        (0..self.layout.keys().len() as u32).map(|key| self.weights(KeyId(key))).collect()
    }

    /// Returns a chunk's key, the index of its first element in the key, and the key's type.
    fn place(&self, id: usize) -> (KeyId, usize, Dtype) {
        let chunk = self.layout.chunks()[id];
        let dtype = self.layout.keys()[chunk.key.index()].dtype;
        let first = (chunk.span.offset - self.layout.key_span(chunk.key).offset) / dtype.bytes();
        (chunk.key, first, dtype)
    }
}

/// Examples of codecs as text, one of each kind.
pub const CODECS: [&str; 8] =
    ["f16", "bf16", "qsgd:4:64", "onebit", "terngrad", "topk:0.1", "randomk:0.2", "dgc:0.1:0.9:none:4"];
