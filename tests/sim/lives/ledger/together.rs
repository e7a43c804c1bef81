//! The ledger of workers that step together: which rounds no chunk has stepped, and so what each weight must be.

use std::ops::Range;
use std::sync::Arc;

use pbox_core::{ChunkId, KeyId, Layout, Round, SnapshotPart};
use worker_shim::Exchange;

/// The rounds that chunks have left out. All others are stepped once, and take 1 from a weight. Round 0 makes it 0.
pub struct Together {
    layout: Arc<Layout>,
    /// The skipped rounds, by chunk, in order.
    skipped: Vec<Vec<Range<u32>>>,
    /// Whether hubs count all steps: a checkpoint has no count for each chunk.
    is_counted: bool,
}

impl Together {
    /// Creates the ledger of a job that has left out nothing.
    pub fn new(layout: &Arc<Layout>) -> Self {
        let skipped = vec![Vec::new(); layout.chunks().len()];
        Together { layout: Arc::clone(layout), skipped, is_counted: true }
    }

    /// Notes that a chunk leaves out rounds. No round is left out twice.
    pub fn skip(&mut self, chunk: ChunkId, rounds: Range<u32>) {
        let of_chunk = &mut self.skipped[chunk.index()];
        let former = of_chunk.last().map_or(1, |last| last.end);
        assert!(former <= rounds.start && !rounds.is_empty(), "{chunk:?}: {rounds:?} after {of_chunk:?}");
        of_chunk.push(rounds);
    }

    /// Begins again from the state before a round.
    pub fn begin_again(&mut self, Round(before): Round) {
        for rounds in self.skipped.iter_mut().flatten() {
            (rounds.start, rounds.end) = (rounds.start.min(before), rounds.end.min(before));
        }
        self.skipped.iter_mut().for_each(|of_chunk| of_chunk.retain(|rounds| !rounds.is_empty()));
        self.is_counted = false;
    }

    /// Returns how many steps a chunk has made before a round, without the broadcast.
    pub fn steps(&self, chunk: ChunkId, Round(before): Round) -> u32 {
        let left_out = self.skipped[chunk.index()].iter();
        let left_out: u32 = left_out.map(|rounds| rounds.end.min(before).saturating_sub(rounds.start)).sum();
        before.saturating_sub(1) - left_out
    }

    /// Checks the weights of the keys that a worker may push.
    pub fn check<P: fabric::Port>(&self, worker: &Exchange<P>) {
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

    /// Checks a part of a snapshot before a round.
    pub fn check_part(&self, part: &SnapshotPart, before: Round) {
        let weights = weights_of(&self.layout, part);
        for ((chunk, of_chunk), &steps) in weights.zip(&part.steps) {
            self.check_values(of_chunk, chunk, before);
            assert!(
                !self.is_counted || steps == self.steps(chunk, before),
                "{chunk:?}: {steps} before {before:?}"
            );
        }
    }

    fn check_values(&self, weights: &[f32], chunk: ChunkId, before: Round) {
        let expected = -(self.steps(chunk, before) as f32);
        let is_right = weights.iter().all(|&weight| weight == expected);
        assert!(is_right, "{chunk:?} before {before:?}: {weights:?}, not {expected}");
    }
}

/// Returns the weights of each chunk of a part, which has them in front of the chunk's state.
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
