//! Workers of a job in SSP or ASP that run ahead over the simulated network, and what their weights may contain.
//!
//! Weights tell which pushes they contain. Element `e` belongs to rank `e mod W`: this rank pushes the number of its round
//! there, and the others push zero. At a learning rate of 1 the weight after the pushes of rounds 1 to `k` is
//! `-(1 + 2 + ... + k)`. It is exact in f32, and no other set of rounds gives it.

use std::sync::Arc;

use crate::simulated::{Simulated, Terms};
use fabric::sim::Net;
use pbox_core::{Consistency, KeyId, Layout, Optimizer};
use worker_shim::ExchangeError;

pub const SGD: Optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
/// A job is stuck after this many steps without work.
const PATIENCE: u32 = 2000;

/// A job whose workers push at random times.
pub struct Race {
    layout: Arc<Layout>,
    /// Rounds with gradients. Workers push zeros in later rounds, whose answers show the final weights.
    rounds: u32,
    pub job: Simulated,
    consistency: Consistency,
    dice: u64,
    /// By rank: whether its pushes carry the number of their round. A worker that came back pushes zeros.
    pub telling: Vec<bool>,
    /// By rank and key: rounds pushed, and rounds answered, with round 0.
    pub pushed: Vec<Vec<u32>>,
    pub answered: Vec<Vec<u32>>,
}

impl Race {
    /// After `rounds` rounds with gradients, workers push zeros.
    pub fn new(seed: u64, net: Net, layout: &Arc<Layout>, terms: Terms, rounds: u32) -> Self {
        let workers = terms.job.workers as usize;
        let zeros = || vec![vec![0; layout.keys().len()]; workers];
        Race {
            consistency: terms.job.level.consistency,
            job: Simulated::new(net, layout, terms).unwrap(),
            layout: Arc::clone(layout),
            rounds,
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

    /// The elements of a chunk.
    fn chunk(&self) -> usize {
        self.layout.chunk_bytes() / size_of::<f32>()
    }

    /// How many rounds of each rank a chunk's weights contain; `None` if the chunk has no element of the rank.
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

    /// Draws a number below `n`.
    pub fn draw(&mut self, n: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % n
    }

    /// Pushes a key in the worker's next round, unless a push of the key is under way. It leaves in the worker's next turn, with
    /// the other keys of its group, if they were pushed.
    pub fn push(&mut self, rank: usize, key: KeyId) -> bool {
        self.try_push(rank, key).unwrap()
    }

    /// As [`push`](Self::push), on links that may have ended.
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
        worker.put(key)?;
        self.pushed[rank][key.index()] += 1;
        Ok(true)
    }

    /// Pushes every key of these workers that is not under way.
    pub fn push_all(&mut self, ranks: &[usize]) {
        for &rank in ranks {
            self.keys().for_each(|key| _ = self.push(rank, key));
        }
    }

    /// Lets one core and one worker work, drawn at random, and checks what was answered.
    pub fn step(&mut self) {
        let core = self.draw(self.job.cores.len() as u64) as usize;
        self.job.cores[core].turn(&mut self.job.notices);
        let rank = self.draw(self.workers() as u64) as usize;
        if self.job.is_alive(rank as u32) {
            self.job.workers[rank].flush().unwrap();
            self.job.workers[rank].progress().unwrap();
            self.keys().for_each(|key| self.check(rank, key));
        }
    }

    /// Lets all cores and all living workers work once, and checks what was answered. True if anything happened.
    pub fn step_all(&mut self) -> Result<bool, ExchangeError> {
        let living: Vec<usize> = (0..self.workers()).filter(|&rank| self.job.is_alive(rank as u32)).collect();
        for &rank in &living {
            self.job.workers[rank].flush()?;
        }
        let worked = self.job.step()?;
        for rank in living.into_iter().filter(|&rank| self.job.is_alive(rank as u32)).collect::<Vec<_>>() {
            self.keys().for_each(|key| self.check(rank, key));
        }
        Ok(worked)
    }

    /// If a push of the key was just answered: checks its weights.
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

    /// All workers push until each has made `rounds` rounds, at random speeds, and get their answers.
    pub fn run(&mut self, rounds: u32) {
        let speeds: Vec<u64> = (0..self.workers()).map(|_| 1 + self.draw(40)).collect();
        let mut idle = 0;
        while self.lacks_answers(rounds) {
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

    /// Whether a living worker lacks answers of the first `rounds` rounds.
    pub fn lacks_answers(&self, rounds: u32) -> bool {
        let behind = |rank: usize| self.answered[rank].iter().any(|&answered| answered < rounds);
        (0..self.workers()).any(|rank| self.job.is_alive(rank as u32) && behind(rank))
    }

    /// Steps until nothing can happen any more.
    pub fn settle(&mut self) {
        (0..PATIENCE / 4).for_each(|_| self.step());
    }

    /// Asserts that every living worker's weights contain every push of the living workers once.
    pub fn check_all_pushes(&self) {
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

    /// A worker that was killed comes back. Its pushes are zeros from now on.
    pub fn rejoin(&mut self, rank: u32) {
        self.job.rejoin(rank).unwrap();
        let worker = &self.job.workers[rank as usize];
        let from = self.keys().map(|key| worker.round(key).0 + 1).max().unwrap();
        self.telling[rank as usize] = false;
        self.pushed[rank as usize].fill(from);
        self.answered[rank as usize].fill(from - 1);
    }
}
