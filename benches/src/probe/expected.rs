//! What the probe's workers push, and what must come back, bit for bit.
//!
//! Gradients and first weights repeat with a small period over a key's elements, so that the exact
//! result of every round is known from one period of the oracle, however large the model.

use pbox_core::{Ablate, ChunkId, Element, KeyId, Layout, Optimizer, Round, oracle};

/// A prime, so that no power-of-two stride of a wrong address hits the right value.
const PERIOD: usize = 61;

/// One period of weights and of what the hub keeps, and the gradients that move them.
#[derive(Clone, Debug)]
pub struct Expected<E> {
    optimizer: Optimizer,
    ablate: Ablate,
    workers: u32,
    /// The round that `advance` goes to; 0 is the broadcast.
    next: Round,
    weights: [E; PERIOD],
    /// Master weight, `m` and `v` of each element, as far as there are any.
    kept: [[f32; 3]; PERIOD],
}

/// The phase of an element: neighbouring keys begin at different ones.
fn phase(key: KeyId, element: usize) -> usize {
    (element + 13 * key.index()) % PERIOD
}

/// Division rounds: sums of such values differ in their last bits with the order of the workers, so a
/// wrong order shows. (A library's sine would not do: compilers fold it to other last bits.)
fn gradient<E: Element>(rank: u32, phase: usize) -> E {
    E::from_f32(((phase * 29 + rank as usize * 17) % 127) as f32 / 61.0 - 1.0)
}

fn first_weight<E: Element>(phase: usize) -> E {
    E::from_f32((phase * 37 % 61) as f32 / 31.0 - 1.0)
}

fn fill<E: Element>(key: KeyId, values: &mut [E], value: impl Fn(usize) -> E) {
    let period: Vec<E> = (0..PERIOD).map(|i| value(phase(key, i))).collect();
    for part in values.chunks_mut(PERIOD) {
        part.copy_from_slice(&period[..part.len()]);
    }
}

impl<E: Element> Expected<E> {
    /// Before the first round, after the broadcast.
    pub fn new(optimizer: Optimizer, ablate: Ablate, workers: u32) -> Self {
        let (mut weights, mut kept) = ([E::default(); PERIOD], [[0.0; 3]; PERIOD]);
        if optimizer.keeps_weights() {
            weights = std::array::from_fn(first_weight);
        }
        if optimizer.master_per_element(E::DTYPE) > 0 {
            kept.iter_mut().zip(weights).for_each(|(kept, weight)| kept[0] = weight.to_f32());
        }
        Expected { optimizer, ablate, workers, next: Round(1), weights, kept }
    }

    /// Writes worker `rank`'s gradient of a key.
    pub fn fill_gradient(rank: u32, key: KeyId, values: &mut [E]) {
        fill(key, values, |phase| gradient(rank, phase));
    }

    /// Writes the weights that rank 0 broadcasts.
    pub fn fill_weights(key: KeyId, values: &mut [E]) {
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
            let sum = oracle::sum((0..ranks).map(|rank| gradient::<E>(rank, p).to_f32()));
            oracle::step_rounded(&optimizer, &step, sum, &mut self.weights[p], &mut self.kept[p]);
        }
    }

    /// Compares elements of a key, from `first` on.
    pub fn check(&self, layout: &Layout, key: KeyId, first: usize, seen: &[E]) -> anyhow::Result<()> {
        for (i, &seen) in seen.iter().enumerate() {
            let (expected, seen) = (self.weights[phase(key, first + i)].to_f32(), seen.to_f32());
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
        weights: impl Fn(KeyId) -> anyhow::Result<&'a [E]>,
    ) -> anyhow::Result<()> {
        let line_elements = 64 / size_of::<E>();
        for id in (from..layout.chunks().len()).step_by(stride) {
            let chunk = layout.chunk(ChunkId(id as u32));
            let elements = chunk.span.bytes / size_of::<E>();
            let first = (chunk.span.offset - layout.key_span(chunk.key).offset) / size_of::<E>();
            let line = first + round as usize * line_elements % elements.next_multiple_of(line_elements);
            let end = (line + line_elements).min(first + elements);
            self.check(layout, chunk.key, line, &weights(chunk.key)?[line..end])?;
        }
        Ok(())
    }
}
