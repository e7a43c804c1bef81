//! What the probe's workers push, and what must come back, bit for bit.
//!
//! Gradients and first weights repeat with a small period over a key's elements, so that the exact
//! result of every round is known from one period of the oracle, however large the model.

use pbox_core::{Ablate, ChunkId, KeyId, Layout, Optimizer, Round, oracle};

/// A prime, so that no power-of-two stride of a wrong address hits the right value.
const PERIOD: usize = 61;

/// One period of weights and optimizer state, and the gradients that move them.
#[derive(Clone, Debug)]
pub struct Expected {
    optimizer: Optimizer,
    ablate: Ablate,
    workers: u32,
    /// The round that `advance` goes to; 0 is the broadcast.
    next: Round,
    weights: [f32; PERIOD],
    /// `m` and `v` of each element, as far as the optimizer has them.
    state: [[f32; 2]; PERIOD],
}

/// The phase of an element: neighbouring keys begin at different ones.
fn phase(key: KeyId, element: usize) -> usize {
    (element + 13 * key.index()) % PERIOD
}

/// Division rounds: sums of such values differ in their last bits with the order of the workers, so a
/// wrong order shows. (A library's sine would not do: compilers fold it to other last bits.)
fn gradient(rank: u32, phase: usize) -> f32 {
    ((phase * 29 + rank as usize * 17) % 127) as f32 / 61.0 - 1.0
}

fn first_weight(phase: usize) -> f32 {
    (phase * 37 % 61) as f32 / 31.0 - 1.0
}

fn fill(key: KeyId, values: &mut [f32], value: impl Fn(usize) -> f32) {
    let period: Vec<f32> = (0..PERIOD).map(|i| value(phase(key, i))).collect();
    for part in values.chunks_mut(PERIOD) {
        part.copy_from_slice(&period[..part.len()]);
    }
}

impl Expected {
    /// Before the first round, after the broadcast.
    pub fn new(optimizer: Optimizer, ablate: Ablate, workers: u32) -> Self {
        let weights = std::array::from_fn(|p| if optimizer.keeps_weights() { first_weight(p) } else { 0.0 });
        Expected { optimizer, ablate, workers, next: Round(1), weights, state: [[0.0; 2]; PERIOD] }
    }

    /// Writes worker `rank`'s gradient of a key.
    pub fn fill_gradient(rank: u32, key: KeyId, values: &mut [f32]) {
        fill(key, values, |phase| gradient(rank, phase));
    }

    /// Writes the weights that rank 0 broadcasts.
    pub fn fill_weights(key: KeyId, values: &mut [f32]) {
        fill(key, values, first_weight);
    }

    /// One round on.
    pub fn advance(&mut self) {
        let Ablate { aggregate, optimize } = self.ablate;
        if aggregate && optimize {
            return;
        }
        let optimizer = if optimize { Optimizer::Average } else { self.optimizer };
        let rate = self.optimizer.learning_rate();
        let step = oracle::Step::new(&optimizer, self.workers, self.next, rate, 1.0, 1.0);
        self.next = self.next.next();
        let ranks = if aggregate { 1 } else { self.workers };
        for p in 0..PERIOD {
            let sum = oracle::sum((0..ranks).map(|rank| gradient(rank, p)));
            oracle::step(&optimizer, &step, sum, &mut self.weights[p], &mut self.state[p]);
        }
    }

    /// Compares elements of a key, from `first` on.
    pub fn check(&self, layout: &Layout, key: KeyId, first: usize, seen: &[f32]) -> anyhow::Result<()> {
        for (i, &seen) in seen.iter().enumerate() {
            let expected = self.weights[phase(key, first + i)];
            if seen.to_bits() != expected.to_bits() {
                let name = &layout.keys()[key.index()].name;
                anyhow::bail!(
                    "wrong result: key {name:?}, element {}: expected {expected:e}, saw {seen:e}",
                    first + i
                );
            }
        }
        Ok(())
    }

    /// Compares one cache line of every `stride`-th chunk from `from` on; `round` moves the line.
    pub fn check_lines<'a>(
        &self,
        layout: &Layout,
        from: usize,
        stride: usize,
        round: u32,
        weights: impl Fn(KeyId) -> anyhow::Result<&'a [f32]>,
    ) -> anyhow::Result<()> {
        const LINE: usize = 16;
        for id in (from..layout.chunks().len()).step_by(stride) {
            let chunk = layout.chunk(ChunkId(id as u32));
            let elements = chunk.span.bytes / 4;
            let first = (chunk.span.offset - layout.key_span(chunk.key).offset) / 4;
            let line = first + (round as usize * LINE) % elements.next_multiple_of(LINE) / LINE * LINE;
            let end = (line + LINE).min(first + elements);
            self.check(layout, chunk.key, line, &weights(chunk.key)?[line..end])?;
        }
        Ok(())
    }
}
