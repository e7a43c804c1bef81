//! The ledger of workers that step together: the rounds that each chunk has left out, and so the expected value of
//! each weight.
//!
//! All workers push the same number, so the mean of a round is this number. The number is 1 if norms have no bound.
//! If norms have a bound, the number differs from round to round, and the oracle scales the steps of some rounds.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use pbox_core::oracle::{self, Step};
use pbox_core::{ChunkId, KeyId, Layout, Restored, Round, SnapshotPart};
use sim_tests::race::SGD;
use sim_tests::trouble::Dice;
use worker_shim::Exchange;

/// The pushed numbers if the norm has a bound, by the round modulo 3. Sums of a few of these numbers are exact with 8
/// significant bits. The norms are so large that the small constant in the formula of the scale has no effect.
const NUMBERS: [f32; 3] = [64.0, 256.0, 128.0];

/// The rounds that each chunk has left out. Each remaining round makes one step, which subtracts the round's number from
/// the weight. The weight is 0 after round 0.
pub struct Together {
    layout: Arc<Layout>,
    /// The number that is pushed, and the scale of its step, by the round modulo 3.
    pushes: [(f32, f32); 3],
    /// The bound of the norm of the previous round, if that norm scales a step.
    most_of_last: Option<f32>,
    /// The learning rates, each with its first round, in order.
    rates: Vec<(Round, f32)>,
    /// The skipped rounds, by chunk, in order.
    skipped: Vec<Vec<Range<u32>>>,
    /// The computed weight before each round, by chunk.
    weights: Vec<Vec<f32>>,
    /// The rounds with which the job began from a checkpoint. A checkpoint has only the norm of its last round.
    restored: BTreeSet<u32>,
    /// Whether the hubs' counts of steps are checked, chunk by chunk. False after the job has begun again, because a checkpoint
    /// has no count for each chunk.
    is_counted: bool,
}

impl Together {
    /// Creates the ledger of a job that has left out no round. `most` is `clip_norm`, the bound of a round's own norm.
    /// `most_of_last` is `clip_norm_last`, the bound of the previous round's norm.
    pub fn new(layout: &Arc<Layout>, most: Option<f32>, most_of_last: Option<f32>) -> Self {
        let (chunks, layout) = (layout.chunks().len(), Arc::clone(layout));
        let pushes = NUMBERS.map(|number| match most {
            None => (if most_of_last.is_some() { number } else { 1.0 }, 1.0),
            Some(most) => (number, oracle::clip_scale(norm_of(&layout, number), most)),
        });
        let (skipped, weights) = (vec![Vec::new(); chunks], vec![vec![0.0; 2]; chunks]);
        Together {
            layout,
            pushes,
            most_of_last,
            rates: vec![(Round(0), SGD.learning_rate())],
            skipped,
            weights,
            restored: BTreeSet::new(),
            is_counted: true,
        }
    }

    /// Draws a bound for the norm. The bound scales the steps of all rounds, of two rounds in three, or of no round. With
    /// codecs, all scales are powers of 2.
    pub fn bound(layout: &Layout, is_coded: bool, dice: &mut Dice) -> f32 {
        let of_least = if is_coded { [0.25, 1.0, 4.0] } else { [0.3, 1.5, 10.0] };
        norm_of(layout, NUMBERS[0]) * of_least[dice.below(3) as usize]
    }

    /// Returns the number that all workers push in a round.
    pub fn pushed(&self, round: u32) -> f32 {
        if round == 0 { 0.0 } else { self.pushes[round as usize % 3].0 }
    }

    /// Whether the steps of most rounds are scaled.
    pub fn scales(&self) -> bool {
        self.pushes.iter().filter(|(_, scale)| *scale < 1.0).count() > 1
    }

    /// Notes that a chunk leaves out rounds. No round is left out twice.
    pub fn skip(&mut self, chunk: ChunkId, rounds: Range<u32>) {
        let of_chunk = &mut self.skipped[chunk.index()];
        let former = of_chunk.last().map_or(1, |last| last.end);
        assert!(former <= rounds.start && !rounds.is_empty(), "{chunk:?}: {rounds:?} after {of_chunk:?}");
        self.weights[chunk.index()].truncate(rounds.start as usize + 1);
        if self.most_of_last.is_some() {
            // The computed weights of the other chunks are dropped, too: the norm of the skipped round no longer
            // includes this chunk, and this norm scales the next step of all chunks.
            self.weights.iter_mut().for_each(|of_chunk| of_chunk.truncate(rounds.start as usize + 2));
        }
        of_chunk.push(rounds);
    }

    /// Begins again from a state, or from zero. The learning rates of later rounds come from the state.
    pub fn begin_again(&mut self, restored: Option<&Restored>) {
        let Round(before) = restored.map_or(Round(0), Restored::round);
        match restored {
            Some(restored) => {
                self.rates.retain(|(from, _)| from.0 < before);
                let later = restored.numbers().changes_from(Round(before));
                let later =
                    later.iter().map(|(from, of)| (Round(from.0.max(before)), of.optimizer.learning_rate()));
                self.rates.extend(later);
            }
            None => self.rates.truncate(1),
        }
        for rounds in self.skipped.iter_mut().flatten() {
            (rounds.start, rounds.end) = (rounds.start.min(before), rounds.end.min(before));
        }
        self.skipped.iter_mut().for_each(|of_chunk| of_chunk.retain(|rounds| !rounds.is_empty()));
        self.weights.iter_mut().for_each(|of_chunk| of_chunk.truncate(2.max(before as usize + 1)));
        self.restored.retain(|&round| round < before);
        self.restored.insert(before);
        self.is_counted = false;
    }

    /// Changes the learning rate from a round on.
    pub fn change_rate(&mut self, rate: f32, from: Round) {
        let place = self.rates.partition_point(|(of, _)| *of < from);
        if self.rates.get(place).is_some_and(|(of, _)| *of == from) {
            self.rates.remove(place);
        }
        self.rates.insert(place, (from, rate));
    }

    fn rate(&self, round: u32) -> f32 {
        self.rates[self.rates.partition_point(|(from, _)| from.0 <= round) - 1].1
    }

    /// Returns the number of steps that a chunk has made before a round, without the broadcast.
    pub fn steps(&self, chunk: ChunkId, Round(before): Round) -> u32 {
        let left_out = self.skipped[chunk.index()].iter();
        let left_out: u32 = left_out.map(|rounds| rounds.end.min(before).saturating_sub(rounds.start)).sum();
        before.saturating_sub(1) - left_out
    }

    fn is_skipped(&self, chunk: usize, round: u32) -> bool {
        self.skipped[chunk].iter().any(|rounds| rounds.contains(&round))
    }

    /// Returns the number of rounds that only some chunks have stepped, and whose norm scales the next round.
    pub fn scaled_by_part(&self) -> usize {
        let chunks = self.skipped.len();
        let of = |rounds: &Range<u32>| rounds.clone();
        let passed = BTreeSet::from_iter(self.skipped.iter().flatten().flat_map(of));
        let has_part = |round: &u32| (0..chunks).any(|chunk| !self.is_skipped(chunk, *round));
        if self.most_of_last.is_some() { passed.iter().filter(|round| has_part(round)).count() } else { 0 }
    }

    /// Returns the scale of a round's steps. If no chunk has stepped the previous round, the norm of an earlier round
    /// counts.
    fn scale(&self, round: u32) -> f32 {
        let Some(most) = self.most_of_last else { return self.pushes[round as usize % 3].1 };
        let (before, chunks) = (round - 1, self.layout.chunks().iter().enumerate());
        let stepped = chunks.filter(|(chunk, _)| !self.is_skipped(*chunk, before));
        let squares =
            stepped.map(|(_, chunk)| oracle::squares(&vec![self.pushed(before); chunk.span.bytes / 4]));
        let norm = oracle::norm(squares);
        if norm == 0.0 && before > 0 && !self.restored.contains(&round) {
            return self.scale(before);
        }
        oracle::clip_scale_after(norm, most)
    }

    /// Returns the weight of a chunk before a round.
    fn weight(&mut self, chunk: ChunkId, Round(before): Round) -> f32 {
        while self.weights[chunk.index()].len() <= before as usize {
            let weights = &self.weights[chunk.index()];
            let (round, mut weight) = (weights.len() as u32 - 1, weights[weights.len() - 1]);
            if !self.is_skipped(chunk.index(), round) {
                let (number, rescale) = (self.pushed(round), self.scale(round));
                let step = Step { rescale, ..Step::new(&SGD, 1, Round(1), self.rate(round), 1.0, 1.0) };
                oracle::step(&SGD, &step, number, &mut weight, &mut [0.0; 3]);
            }
            self.weights[chunk.index()].push(weight);
        }
        self.weights[chunk.index()][before as usize]
    }

    /// Checks the weights of the keys that a worker may push.
    pub fn check<P: fabric::Port>(&mut self, worker: &Exchange<P>) {
        let keys = (0..self.layout.keys().len() as u32).map(KeyId);
        for key in keys.filter(|&key| worker.is_ready(key) && worker.round(key) > Round(0)) {
            let mut weights = worker.weights::<f32>(key).unwrap();
            for chunk in self.layout.key_chunks(key).map(ChunkId) {
                let of_chunk;
                (of_chunk, weights) = weights.split_at(self.layout.chunk(chunk).span.bytes / 4);
                self.check_values(of_chunk, chunk, worker.round(key));
            }
            assert!(weights.is_empty());
        }
    }

    pub fn check_part(&mut self, part: &SnapshotPart, before: Round) {
        let layout = Arc::clone(&self.layout);
        let weights = weights_of(&layout, part);
        for ((chunk, of_chunk), &steps) in weights.zip(&part.steps) {
            self.check_values(of_chunk, chunk, before);
            assert!(
                !self.is_counted || steps == self.steps(chunk, before),
                "{chunk:?}: {steps} before {before:?}"
            );
        }
    }

    /// Checks a part of the last state before a round. A chunk that was behind ended its round with the pushes that had
    /// arrived, and left out the rounds without pushes. None of the left-out rounds is before `lowest`.
    pub fn check_last(&mut self, part: &SnapshotPart, (lowest, Round(before)): (Round, Round)) {
        let layout = Arc::clone(&self.layout);
        for (chunk, of_chunk) in weights_of(&layout, part) {
            let mut ends = (lowest.0..=before).rev();
            let is_of = |end: &u32| self.weight(chunk, Round(*end)) == of_chunk[0];
            let Some(end) = ends.find(is_of) else {
                panic!("{chunk:?} before round {before}: {of_chunk:?}, held from round {}", lowest.0)
            };
            if end < before {
                let of_chunk = &mut self.skipped[chunk.index()];
                of_chunk.retain(|rounds| rounds.start < end);
                self.skip(chunk, end..before);
            }
            self.check_values(of_chunk, chunk, Round(before));
        }
    }

    fn check_values(&mut self, weights: &[f32], chunk: ChunkId, before: Round) {
        let expected = self.weight(chunk, before);
        let is_right = weights.iter().all(|&weight| weight == expected);
        assert!(is_right, "{chunk:?} before {before:?}: {weights:?}, not {expected}");
    }
}

/// Returns the norm of a gradient in which every element is `number`.
fn norm_of(layout: &Layout, number: f32) -> f32 {
    let chunks = layout.chunks().iter();
    oracle::norm(chunks.map(|chunk| oracle::squares(&vec![number; chunk.span.bytes / 4])))
}

/// Returns the weights of each chunk of a part. In a part, a chunk's weights come before its state.
pub fn weights_of<'a>(layout: &Layout, part: &'a SnapshotPart) -> impl Iterator<Item = (ChunkId, &'a [f32])> {
    let lengths = Vec::from_iter(part.chunks.iter().map(|&chunk| layout.chunk(chunk).span.bytes / 4));
    let tensors = part.values.as_slice().len() / lengths.iter().sum::<usize>();
    let mut values = part.values.as_slice();
    part.chunks.iter().zip(lengths).map(move |(&chunk, length)| {
        let of_chunk;
        (of_chunk, values) = values.split_at(length * tensors);
        (chunk, &of_chunk[..length])
    })
}
