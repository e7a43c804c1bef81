//! The gradients of the probe's workers, and the exact weights that the hub must return.
//!
//! Gradients and first weights repeat with a small period over a key's elements. So one period of the oracle
//! gives the exact result of every round, for a model of any size.
//!
//! LARS and LAMB adapt each key to its own norms, so there every key has its own period.
//!
//! In SSP and ASP, the order of pushes is not known. All workers push the same gradients there, so weights
//! depend only on the number of steps. `allowed` returns the possible numbers.

mod norms;

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use pbox_core::{
    Ablate, Chunk, ChunkId, Compression, Consistency, Element, KeyId, Layout, Optimizer, Round, oracle,
};

use norms::Norms;

/// The period. It is a prime, so an address that is wrong by a power of two leads to another value.
const PERIOD: usize = 61;

/// The expected weights and state of the hub, and the gradients that change them.
#[derive(Clone, Debug)]
pub struct Expected<E> {
    optimizer: Optimizer,
    ablate: Ablate,
    /// The number of workers of each machine whose gradients are in a step.
    workers: u32,
    /// The number of machines whose sums are in a step, if there is a mesh. All machines have the same gradients.
    machines: Option<u32>,
    /// Whether each step is of one worker or machine alone. Then all workers push the gradient of rank 0.
    alone: bool,
    /// The factor by which the mean gradient is clipped, and the first step with the factor.
    scale: Option<(Round, f32)>,
    /// Whether results must equal the oracle's.
    exact: bool,
    /// The number of the next step.
    next: Round,
    /// One period for all keys, or with `norms` one period for each key.
    periods: Vec<Period<E>>,
    /// The norms of keys, if the optimizer uses them.
    norms: Option<Norms>,
}

/// One period of a key.
#[derive(Clone, Debug)]
struct Period<E> {
    weights: [E; PERIOD],
    /// The master weight, `m` and `v` of each element, as far as the optimizer has them.
    kept: [[f32; 3]; PERIOD],
    /// The weights after each number of steps that a worker may still see, the lowest number first.
    possible: VecDeque<[E; PERIOD]>,
}

/// Returns how many steps a worker's weights may contain after `round` of its own rounds. Each worker pushes
/// `total` rounds.
pub fn allowed(consistency: Consistency, workers: u32, round: u32, total: u32) -> RangeInclusive<u32> {
    let others = workers - 1;
    match consistency {
        Consistency::Bsp => round..=round,
        // Every other worker has pushed at least `round` - S rounds, and at most `round` + S + 1 rounds. The
        // second bound holds because this worker may be the slowest, and the other worker may have waited for
        // this worker's push.
        Consistency::Ssp { staleness } => {
            let most = round.saturating_add(staleness).saturating_add(1).min(total);
            round + others * round.saturating_sub(staleness)..=round + others * most
        }
        Consistency::Asp => round..=round + others * total,
    }
}

/// Returns the phase of an element. Neighbouring keys begin at different phases.
fn phase(key: KeyId, element: usize) -> usize {
    (element + 13 * key.index()) % PERIOD
}

/// Computes a gradient by a division, because divisions round. So the last bits of a sum depend on the order of the
/// workers, and a wrong order is detected. A library's sine would not do, because compilers may compute other last
/// bits.
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
    /// Creates the state after the broadcast, before the first round. `machines` is the number of machines of a mesh,
    /// each with `workers` workers.
    pub fn new(
        optimizer: Optimizer,
        ablate: Ablate,
        consistency: Consistency,
        workers: u32,
        machines: Option<u32>,
    ) -> Self {
        let (mut weights, mut kept) = ([E::default(); PERIOD], [[0.0; 3]; PERIOD]);
        if optimizer.keeps_weights() {
            weights = std::array::from_fn(first_weight);
        }
        if optimizer.master_per_element(E::DTYPE) > 0 {
            kept.iter_mut().zip(weights).for_each(|(kept, weight)| kept[0] = weight.to_f32());
        }
        let alone = consistency.steps_alone();
        let workers = if alone && machines.is_none() { 1 } else { workers };
        let machines = machines.map(|machines| if alone { 1 } else { machines });
        let periods = vec![Period { weights, kept, possible: VecDeque::from([weights]) }];
        let (exact, next, scale, norms) = (true, Round(1), None, None);
        Expected { optimizer, ablate, workers, machines, alone, scale, exact, next, periods, norms }
    }

    /// Adapts the steps of each key to its norms.
    pub fn by_key(mut self, layout: &Layout) -> Self {
        self.periods = vec![self.periods[0].clone(); layout.keys().len()];
        self.norms = Some(Norms::new::<E>(layout));
        self
    }

    /// Whether a step takes too long to be computed between two rounds.
    pub fn is_slow(&self) -> bool {
        self.norms.is_some()
    }

    /// Returns the index of a key's period.
    fn period(&self, key: KeyId) -> usize {
        if self.norms.is_some() { key.index() } else { 0 }
    }

    /// Returns the norm of the mean gradient of all keys. Every round has the same gradients, and so the same norm.
    pub fn norm(&self, layout: &Layout) -> f32 {
        let rescale = self.numbers(Round(1)).rescale;
        let means: [f32; PERIOD] = std::array::from_fn(|phase| self.sum(phase) * rescale);
        let of_chunk = |chunk: &Chunk| {
            let key = chunk.key;
            let first = (chunk.span.offset - layout.key_span(key).offset) / size_of::<E>();
            let elements = first..first + chunk.span.bytes / size_of::<E>();
            let means: Vec<f32> = elements.map(|element| means[phase(key, element)]).collect();
            let blocks = means.chunks(oracle::BLOCK_BYTES / size_of::<E>());
            blocks.map(oracle::squares).collect::<Vec<_>>()
        };
        oracle::norm(layout.chunks().iter().flat_map(of_chunk))
    }

    /// Clips gradients to the norm `most` from the step `from` on.
    pub fn clipped(mut self, layout: &Layout, most: f32, from: Round) -> Self {
        self.scale = Some((from, oracle::clip_scale(self.norm(layout), most)));
        self
    }

    /// Returns the hyperparameters of a step, for the oracle.
    fn numbers(&self, round: Round) -> oracle::Step {
        let optimizer = if self.ablate.optimize { Optimizer::Average } else { self.optimizer };
        let gradients = self.workers * self.machines.unwrap_or(1);
        oracle::Step::new(&optimizer, gradients, round, self.optimizer.learning_rate(), 1.0, 1.0)
    }

    /// Returns the sum of an element's gradients.
    fn sum(&self, phase: usize) -> f32 {
        let of = |count: u32| if self.ablate.aggregate { 1 } else { count };
        let ranks = (0..of(self.workers)).map(|rank| if self.alone { 0 } else { rank });
        let sum = oracle::sum(ranks.map(|rank| gradient::<E>(rank, phase).to_f32()));
        let Some(machines) = self.machines else { return sum };
        // The sum crosses the network in the key's type.
        let of_a_machine = E::from_f32(sum).to_f32();
        oracle::sum((0..of(machines)).map(|_| of_a_machine))
    }

    /// Accepts any result if there is compression.
    pub fn compressed(self, compression: Option<Compression>) -> Self {
        Expected { exact: compression.is_none(), ..self }
    }

    /// Writes worker `rank`'s gradient of a key.
    pub fn fill_gradient(consistency: Consistency, rank: u32, key: KeyId, values: &mut [E]) {
        let rank = if consistency.steps_alone() { 0 } else { rank };
        fill(key, values, |phase| gradient(rank, phase));
    }

    /// Writes the weights that rank 0 broadcasts.
    pub fn fill_weights(key: KeyId, values: &mut [E]) {
        fill(key, values, first_weight);
    }

    /// Sets the numbers of steps that weights may contain from now on. Neither bound may fall from one call to the next.
    pub fn expect(&mut self, steps: RangeInclusive<u32>) {
        while self.next.0 <= *steps.end() {
            self.advance();
            self.periods.iter_mut().for_each(|period| period.possible.push_back(period.weights));
        }
        let kept = (steps.end() - steps.start()) as usize + 1;
        for Period { possible, .. } in &mut self.periods {
            possible.drain(..possible.len() - kept);
        }
    }

    fn advance(&mut self) {
        let Ablate { aggregate, optimize } = self.ablate;
        if aggregate && optimize {
            self.next = self.next.next();
            return;
        }
        let optimizer = if optimize { Optimizer::Average } else { self.optimizer };
        let step = self.numbers(self.next);
        // Clipping and norms apply to the mean.
        let scale = self.scale.map(|(from, scale)| if self.next < from { 1.0 } else { scale });
        let of_mean = scale.or(self.norms.is_some().then_some(1.0));
        let mean = of_mean.map(|scale| (step.rescale, oracle::Step { rescale: scale, ..step }));
        self.next = self.next.next();
        let (sums, step): ([f32; PERIOD], _) = match mean {
            Some((rescale, step)) => (std::array::from_fn(|p| self.sum(p) * rescale), step),
            None => (std::array::from_fn(|p| self.sum(p)), step),
        };
        for (key, period) in self.periods.iter_mut().enumerate() {
            let step = match &self.norms {
                Some(norms) => {
                    let measured = period.measured(&optimizer, &step, &sums);
                    step.adapted(&optimizer, norms.quotient(key, measured))
                }
                None => step,
            };
            for ((sum, weight), kept) in sums.iter().zip(&mut period.weights).zip(&mut period.kept) {
                oracle::step_rounded(&optimizer, &step, *sum, weight, kept);
            }
        }
    }

    /// Checks the elements of a chunk, which begins at the key's element `first`. All elements must contain the same
    /// number of steps.
    fn check_part(&self, layout: &Layout, key: KeyId, first: usize, seen: &[E]) -> anyhow::Result<()> {
        let differs = |weights: &[E; PERIOD]| {
            let bits = |value: E| value.to_f32().to_bits();
            (first..).zip(seen).find(|&(i, &seen)| bits(seen) != bits(weights[phase(key, i)]))
        };
        let Period { possible, .. } = &self.periods[self.period(key)];
        if !self.exact || possible.iter().any(|weights| differs(weights).is_none()) {
            return Ok(());
        }
        let latest = possible.back().expect("some number of steps is allowed");
        let (element, &seen) = differs(latest).expect("all of them differ");
        let name = &layout.keys()[key.index()].name;
        let expected = latest[phase(key, element)].to_f32();
        let or = match possible.len() {
            1 => String::new(),
            count => format!(" (or the value after one of the {} steps before)", count - 1),
        };
        anyhow::bail!(
            "wrong result: key {name:?}, element {element}: expected {expected:e}{or}, saw {:e}",
            seen.to_f32()
        );
    }

    /// Checks all elements of a key.
    pub fn check(&self, layout: &Layout, key: KeyId, seen: &[E]) -> anyhow::Result<()> {
        for id in layout.key_chunks(key) {
            let span = layout.chunk(ChunkId(id)).span;
            let first = (span.offset - layout.key_span(key).offset) / size_of::<E>();
            self.check_part(layout, key, first, &seen[first..][..span.bytes / size_of::<E>()])?;
        }
        Ok(())
    }

    /// Checks one cache line of every `stride`-th chunk from `from` on. `round` selects the line.
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
            self.check_part(layout, chunk.key, line, &weights(chunk.key)?[line..end])?;
        }
        Ok(())
    }
}

impl<E: Element> Period<E> {
    /// Returns the elements whose norms are compared: the weights, and the gradient or update.
    fn measured(
        &self,
        optimizer: &Optimizer,
        step: &oracle::Step,
        means: &[f32; PERIOD],
    ) -> [[f32; PERIOD]; 2] {
        let masters = optimizer.master_per_element(E::DTYPE);
        let weights: [f32; PERIOD] = std::array::from_fn(|p| match masters {
            0 => self.weights[p].to_f32(),
            _ => self.kept[p][0],
        });
        let state = |p: usize| &self.kept[p][masters..];
        let other = |p: usize| oracle::measured(optimizer, step, means[p], weights[p], state(p));
        [weights, std::array::from_fn(other)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pbox_core::Key;

    const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-4, momentum: 0.9 };

    /// Returns a key's weights after `steps` steps with one worker's gradient.
    fn after(steps: u32, elements: usize) -> Vec<f32> {
        let mut expected = Expected::<f32>::new(NESTEROV, Ablate::default(), Consistency::Asp, 3, None);
        expected.expect(steps..=steps);
        (0..elements).map(|i| expected.periods[0].weights[phase(KeyId(0), i)]).collect()
    }

    #[test]
    fn weights_of_an_allowed_number_of_steps_pass_and_no_others() {
        let layout = Layout::new(vec![Key::f32("a", [100])], 256).unwrap();
        let ssp = Consistency::Ssp { staleness: 1 };
        let mut expected = Expected::<f32>::new(NESTEROV, Ablate::default(), ssp, 3, None);
        for round in 1..=4 {
            expected.expect(allowed(ssp, 3, round, 5));
        }
        let passes = |seen: &[f32]| expected.check(&layout, KeyId(0), seen).is_ok();
        // The weights contain four steps of the worker itself, and three to five of each other worker.
        let steps: Vec<u32> = (0..30).filter(|&steps| passes(&after(steps, 100))).collect();
        assert_eq!(steps, (10..=14).collect::<Vec<_>>());
        let mut two_chunks = after(10, 100);
        two_chunks[64..].copy_from_slice(&after(12, 100)[64..]);
        assert!(passes(&two_chunks), "chunks are stepped one by one");
        two_chunks[63] = after(12, 100)[63];
        assert!(!passes(&two_chunks), "a chunk is of one number of steps");
    }

    #[test]
    fn machines_of_a_mesh_sum_their_own_workers_first() {
        let of = |workers, machines| {
            let mut expected = Expected::<f32>::new(
                Optimizer::Average,
                Ablate::default(),
                Consistency::Bsp,
                workers,
                machines,
            );
            expected.expect(1..=1);
            expected.periods[0].weights
        };
        assert_eq!(of(2, None), of(2, Some(1)));
        assert_eq!(of(2, None), of(2, Some(4)), "a power of two rounds nothing");
        assert_ne!(of(4, None), of(2, Some(2)), "the second machine's workers begin with rank 0 again");
        let differs = |(three, one): (f32, f32)| (three - one).abs() > 1e-6;
        assert!(!of(1, Some(3)).into_iter().zip(of(1, None)).any(differs));
    }

    #[test]
    fn bsp_allows_one_number() {
        assert_eq!(allowed(Consistency::Bsp, 8, 5, 9), 5..=5);
        assert_eq!(allowed(Consistency::Ssp { staleness: 0 }, 2, 5, 9), 10..=11);
        assert_eq!(allowed(Consistency::Asp, 2, 5, 9), 5..=14);
    }
}
