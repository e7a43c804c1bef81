//! Workers of a job in SSP or ASP that run ahead over the simulated network, and what they may read.
//!
//! Weights tell which pushes they contain: element `e` belongs to rank `e mod W`, which pushes its round's
//! number there and zero elsewhere; at a learning rate of 1 its weight after the pushes of rounds 1 to `k`
//! is `-(1 + 2 + ... + k)`, exact in f32, and that of no other set of rounds in this order.

use std::sync::Arc;

use crate::simulated::{Simulated, Terms};
use fabric::sim::Net;
use pbox_core::{Consistency, KeyId, Layout, Optimizer};
use worker_shim::ExchangeError;

pub const SGD: Optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
/// Steps without anything to do after which a job is stuck.
const PATIENCE: u32 = 2000;

/// A job in which workers do as they like.
pub struct Race {
    layout: Arc<Layout>,
    /// Rounds with gradients; those after it have zeros, and show what all came to.
    rounds: u32,
    pub job: Simulated,
    consistency: Consistency,
    dice: u64,
    /// By rank: whether its pushes say which they are. Those of one that came back do not.
    pub telling: Vec<bool>,
    /// By rank and key: rounds that were pushed, and of these answered ones; round 0 is one.
    pub pushed: Vec<Vec<u32>>,
    pub answered: Vec<Vec<u32>>,
}

impl Race {
    /// After `rounds` rounds with gradients, workers push zeros.
    pub fn new(seed: u64, net: Net, layout: &Arc<Layout>, terms: Terms, rounds: u32) -> Self {
        let workers = terms.workers as usize;
        let zeros = || vec![vec![0; layout.keys().len()]; workers];
        Race {
            job: Simulated::new(net, layout, terms).unwrap(),
            layout: Arc::clone(layout),
            rounds,
            consistency: terms.consistency,
            dice: seed,
            telling: vec![true; workers],
            pushed: zeros(),
            answered: zeros(),
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = KeyId> + use<> {
        (0..self.layout.keys().len() as u32).map(KeyId)
    }

    fn workers(&self) -> usize {
        self.telling.len()
    }

    /// Elements of a chunk.
    fn chunk(&self) -> usize {
        self.layout.chunk_bytes() / size_of::<f32>()
    }

    /// The rounds of each rank that a chunk's weights contain; `None` where it has no element of that rank.
    pub fn contained(&self, weights: &[f32], first: usize) -> Vec<Option<u32>> {
        let of_rank = |rank: usize| {
            let of_rank = (first..).zip(weights).filter(|(e, _)| e % self.workers() == rank);
            let mut rounds = of_rank.map(|(e, &weight)| {
                (0..=self.rounds).find(|&k| weight == -((k * (k + 1) / 2) as f32)).unwrap_or_else(|| {
                    panic!("element {e}: {weight} is no sum of rank {rank}'s first rounds")
                })
            });
            let first = rounds.next()?;
            assert!(rounds.all(|rounds| rounds == first), "a chunk is stepped as a whole");
            Some(first)
        };
        (0..self.workers()).map(of_rank).collect()
    }

    /// A number below `n`.
    pub fn draw(&mut self, n: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % n
    }

    /// The worker's next push of a key, unless one is under way.
    pub fn push(&mut self, rank: usize, key: KeyId) -> bool {
        self.try_push(rank, key).unwrap()
    }

    /// As [`push`](Self::push), over links that may have ended.
    pub fn try_push(&mut self, rank: usize, key: KeyId) -> Result<bool, ExchangeError> {
        let (alive, workers) = (self.job.is_alive(rank as u32), self.workers());
        let worker = &mut self.job.workers[rank];
        if !alive || !worker.is_ready(key) {
            return Ok(false);
        }
        let round = worker.round(key).0;
        assert_eq!(round, self.pushed[rank][key.index()]);
        let value = if round > self.rounds || !self.telling[rank] { 0.0 } else { round as f32 };
        for (e, gradient) in worker.gradient_mut::<f32>(key).unwrap().iter_mut().enumerate() {
            *gradient = if e % workers == rank { value } else { 0.0 };
        }
        worker.push(key)?;
        self.pushed[rank][key.index()] += 1;
        Ok(true)
    }

    /// Pushes what these workers can push.
    pub fn push_all(&mut self, ranks: &[usize]) {
        for &rank in ranks {
            self.keys().for_each(|key| _ = self.push(rank, key));
        }
    }

    /// One look of one core and one worker, drawn; and a look at whatever is answered.
    pub fn step(&mut self) {
        let core = self.draw(self.job.cores.len() as u64) as usize;
        self.job.cores[core].turn(&mut self.job.notices);
        let rank = self.draw(self.workers() as u64) as usize;
        if self.job.is_alive(rank as u32) {
            self.job.workers[rank].progress().unwrap();
            self.keys().for_each(|key| self.check(rank, key));
        }
    }

    /// All cores and all workers that live look once; a look at whatever is answered. True when anything
    /// happened.
    pub fn look(&mut self) -> Result<bool, ExchangeError> {
        let worked = self.job.step()?;
        for rank in (0..self.workers()).filter(|&rank| self.job.is_alive(rank as u32)).collect::<Vec<_>>() {
            self.keys().for_each(|key| self.check(rank, key));
        }
        Ok(worked)
    }

    /// Where a push of the key was just answered: whether its weights are what they may be.
    fn check(&mut self, rank: usize, key: KeyId) {
        let (worker, k) = (&self.job.workers[rank], key.index());
        if !worker.is_ready(key) || self.answered[rank][k] == self.pushed[rank][k] {
            return;
        }
        self.answered[rank][k] = self.pushed[rank][k];
        let next = self.pushed[rank][k];
        let weights = worker.weights::<f32>(key).unwrap();
        for (c, chunk) in weights.chunks(self.chunk()).enumerate() {
            let seen = self.contained(chunk, c * self.chunk());
            for (other, seen) in seen.into_iter().enumerate() {
                let Some(seen) = seen else { continue };
                let what =
                    format!("{}: rank {rank} before its round {next}, of rank {other}", self.consistency);
                if !self.telling[other] {
                    continue;
                }
                assert!(seen < self.pushed[other][k], "{what}: {seen} rounds, not yet pushed");
                if other == rank {
                    assert_eq!(seen, (next - 1).min(self.rounds), "{what}");
                } else if self.job.is_alive(other as u32) {
                    let least = match self.consistency {
                        Consistency::Ssp { staleness } => {
                            (next - 1).saturating_sub(staleness).min(self.rounds)
                        }
                        _ => 0,
                    };
                    assert!(seen >= least, "{what}: {seen} rounds, expected {least} or more");
                }
            }
        }
        for (other, pushed) in self.pushed.iter().enumerate() {
            if !self.job.is_alive(other as u32) {
                continue;
            }
            assert!(pushed[k] >= 1, "rank {other} has no weights yet, and rank {rank} has");
            if let Consistency::Ssp { staleness } = self.consistency {
                let ahead = next.saturating_sub(pushed[k]);
                assert!(ahead <= staleness, "rank {rank} is {ahead} rounds ahead of rank {other}");
            }
        }
    }

    /// All push so many rounds in all, at their own random speeds, and get their answers.
    pub fn run(&mut self, rounds: u32) {
        let speeds: Vec<u64> = (0..self.workers()).map(|_| 1 + self.draw(40)).collect();
        let mut idle = 0;
        while self.missing(rounds) {
            for (rank, &speed) in speeds.iter().enumerate() {
                let key = KeyId(self.draw(self.keys().count() as u64) as u32);
                if self.draw(40) < speed && self.pushed[rank][key.index()] < rounds && self.push(rank, key) {
                    idle = 0;
                }
            }
            self.step();
            idle += 1;
            assert!(idle < PATIENCE, "stuck: pushed {:?}, answered {:?}", self.pushed, self.answered);
        }
    }

    /// Whether anybody who lives has fewer answers than these rounds have.
    pub fn missing(&self, rounds: u32) -> bool {
        let behind = |rank: usize| self.answered[rank].iter().any(|&answered| answered < rounds);
        (0..self.workers()).any(|rank| self.job.is_alive(rank as u32) && behind(rank))
    }

    /// Steps as long as anything can still happen.
    pub fn settle(&mut self) {
        (0..PATIENCE / 4).for_each(|_| self.step());
    }

    /// Everybody who lives has every push of those who do in its weights, once.
    pub fn all_is_there(&self) {
        let living: Vec<usize> = (0..self.workers()).filter(|&rank| self.job.is_alive(rank as u32)).collect();
        for (&rank, key) in living.iter().flat_map(|rank| self.keys().map(move |key| (rank, key))) {
            let weights = self.job.workers[rank].weights::<f32>(key).unwrap();
            for (c, chunk) in weights.chunks(self.chunk()).enumerate() {
                let seen = self.contained(chunk, c * self.chunk());
                for &other in living.iter().filter(|&&other| self.telling[other]) {
                    let rounds = seen[other];
                    let all = rounds.is_none_or(|rounds| rounds == self.rounds);
                    assert!(all, "rank {rank} has {rounds:?} rounds of rank {other}");
                }
            }
        }
    }

    /// A worker that was killed comes back; its pushes do not tell which they are any more.
    pub fn rejoin(&mut self, rank: u32) {
        self.job.rejoin(rank).unwrap();
        let worker = &self.job.workers[rank as usize];
        let from = self.keys().map(|key| worker.round(key).0 + 1).max().unwrap();
        self.telling[rank as usize] = false;
        self.pushed[rank as usize].fill(from);
        self.answered[rank as usize].fill(from - 1);
    }
}
