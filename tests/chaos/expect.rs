//! The expected weights of a worker after each round, by the kind of its job.

use std::sync::Arc;

use hub_tests::model;
use hub_tests::training::Training;
use hub_tests::values::Saved;
use hub_tests::values::{self, Reference};
use pbox_core::oracle::{self, Step};
use pbox_core::{KeyId, Layout, Optimizer, Round};

use super::worker::{STALENESS, Task};

/// The expectation of a worker's weights.
pub trait Expect {
    /// Checks the weights with which a worker begins.
    fn first(&mut self, weights: &[Vec<f32>]) -> Result<(), String>;

    /// Checks the weights after a round.
    fn after(&mut self, round: u32, weights: &[Vec<f32>]) -> Result<(), String>;

    /// Checks the weights after a round in which the hub was restarted.
    fn after_return(&mut self, round: u32, weights: &[Vec<f32>]) -> Result<(), String> {
        self.after(round, weights)
    }
}

fn same(seen: &[Vec<f32>], expected: &[Vec<f32>]) -> Result<(), String> {
    for (key, (seen, expected)) in seen.iter().zip(expected).enumerate() {
        let differs = |(seen, expected): (&f32, &f32)| seen.to_bits() != expected.to_bits();
        if let Some(i) = seen.iter().zip(expected).position(differs) {
            return Err(format!("key {key}, element {i}: expected {:e}, saw {:e}", expected[i], seen[i]));
        }
    }
    Ok(())
}

impl Expect for Reference {
    fn first(&mut self, weights: &[Vec<f32>]) -> Result<(), String> {
        same(weights, &self.weights)
    }

    fn after(&mut self, _: u32, weights: &[Vec<f32>]) -> Result<(), String> {
        self.advance(self.learning_rate());
        same(weights, &self.weights)
    }
}

/// Weights that begin with 0, and from which each step subtracts 1. So they count their steps. If a hub ends
/// in the middle of a round, a chunk may miss its step.
pub struct Rounds {
    /// The number of steps that each weight has missed.
    without: Vec<Vec<f32>>,
}

impl Rounds {
    pub fn new(next: u32, first: &[Vec<f32>]) -> Self {
        Rounds { without: Self::steps_without(next - 1, first) }
    }

    fn steps_without(round: u32, weights: &[Vec<f32>]) -> Vec<Vec<f32>> {
        weights.iter().map(|key| key.iter().map(|weight| weight + round as f32).collect()).collect()
    }
}

impl Expect for Rounds {
    fn first(&mut self, _: &[Vec<f32>]) -> Result<(), String> {
        match self.without.iter().flatten().find(|&&steps| steps < 0.0 || steps.fract() != 0.0) {
            Some(steps) => Err(format!("a weight went without {steps} steps")),
            None => Ok(()),
        }
    }

    fn after(&mut self, round: u32, weights: &[Vec<f32>]) -> Result<(), String> {
        same(&Self::steps_without(round, weights), &self.without)
    }

    fn after_return(&mut self, round: u32, weights: &[Vec<f32>]) -> Result<(), String> {
        self.without = Self::steps_without(round, weights);
        self.first(weights)
    }
}

/// The weights of a compressed job, by the plain model.
pub struct Model {
    training: Training,
    model: model::Model,
}

impl Model {
    pub fn new(training: Training, went_on_with: Option<&Saved>) -> Self {
        let mut model = training.model(training.compression.expect("a codec"));
        went_on_with.into_iter().for_each(|state| model.restart_with(state));
        Model { training, model }
    }
}

impl Expect for Model {
    fn first(&mut self, weights: &[Vec<f32>]) -> Result<(), String> {
        same(weights, &self.model.all_weights())
    }

    fn after(&mut self, round: u32, weights: &[Vec<f32>]) -> Result<(), String> {
        self.training.advance(&mut self.model, round - 1);
        same(weights, &self.model.all_weights())
    }
}

/// Weights where each chunk steps with the mean of a subset of the workers, which always includes this
/// worker. A lost worker has pushed only a part of its round, so the test tries all subsets. The previous
/// weights and the new weights show which subset it was.
pub struct Subsets {
    number: u32,
    workers: u32,
    seed: u64,
    optimizer: Optimizer,
    layout: Arc<Layout>,
    weights: Vec<Vec<f32>>,
}

impl Subsets {
    pub fn new(task: &Task, training: &Training, layout: Arc<Layout>, weights: Vec<Vec<f32>>) -> Self {
        let (number, seed) = (task.number, task.seed);
        Subsets { number, workers: training.workers, seed, optimizer: training.optimizer, layout, weights }
    }

    /// Returns one element's weight after a step of these workers.
    fn step(&self, who: u32, round: u32, key: KeyId, i: usize) -> f32 {
        let ranks = (0..self.workers).filter(|rank| who & (1 << rank) != 0);
        let step = Step::new(
            &self.optimizer,
            who.count_ones(),
            Round(round),
            self.optimizer.learning_rate(),
            1.0,
            1.0,
        );
        let sum = oracle::sum(ranks.map(|rank| values::gradient(self.seed, rank, round - 1, key, i)));
        let mut weight = self.weights[key.index()][i];
        oracle::step(&self.optimizer, &step, sum, &mut weight, &mut []);
        weight
    }
}

impl Expect for Subsets {
    fn first(&mut self, _: &[Vec<f32>]) -> Result<(), String> {
        Ok(())
    }

    fn after(&mut self, round: u32, weights: &[Vec<f32>]) -> Result<(), String> {
        for (id, chunk) in self.layout.chunks().iter().enumerate() {
            let first = (chunk.span.offset - self.layout.key_span(chunk.key).offset) / 4;
            let elements = first..first + chunk.span.bytes / 4;
            let is = |who: u32| {
                let right = |i: usize| {
                    let seen = weights[chunk.key.index()][i];
                    self.step(who, round, chunk.key, i).to_bits() == seen.to_bits()
                };
                who & (1 << self.number) != 0 && elements.clone().all(right)
            };
            if !(1..1 << self.workers).rev().any(is) {
                return Err(format!("chunk {id} is the mean of no workers with worker {}", self.number));
            }
        }
        self.weights = weights.to_vec();
        Ok(())
    }
}

/// Weights that count pushes: element `i` counts the pushes of worker number `i` modulo the number of
/// workers.
pub struct Pushes {
    number: usize,
    workers: usize,
    /// The number of rounds before the last start of the job.
    before: u32,
    first: Vec<Vec<f32>>,
}

impl Pushes {
    pub fn new(number: u32, workers: u32, next: u32, first: Vec<Vec<f32>>) -> Self {
        Pushes { number: number as usize, workers: workers as usize, before: next - 1, first }
    }

    pub fn gradient(number: u32, workers: u32, into: &mut [f32]) {
        let of = |i: usize| if i as u32 % workers == number { -1.0 } else { 0.0 };
        into.iter_mut().enumerate().for_each(|(i, slot)| *slot = of(i));
    }
}

impl Expect for Pushes {
    fn first(&mut self, _: &[Vec<f32>]) -> Result<(), String> {
        Ok(())
    }

    fn after(&mut self, round: u32, weights: &[Vec<f32>]) -> Result<(), String> {
        let mine = round - self.before;
        for (key, (weights, first)) in weights.iter().zip(&self.first).enumerate() {
            for (i, (weight, first)) in weights.iter().zip(first).enumerate() {
                let (pushes, of) = (weight - first, i % self.workers);
                // Another worker may have pushed before this worker read its first weights.
                let least = (mine as f32 - 2.0 * STALENESS as f32 - 1.0).max(0.0);
                let most = (mine + STALENESS + 1) as f32;
                let right =
                    if of == self.number { pushes == mine as f32 } else { (least..=most).contains(&pushes) };
                if !right {
                    return Err(format!(
                        "key {key}, element {i}: {pushes} pushes of worker {of} since it began, and {mine} of its own"
                    ));
                }
            }
        }
        Ok(())
    }
}
