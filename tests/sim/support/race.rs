//! Workers of a job in SSP or ASP that run ahead over the simulated network, and the possible values of their
//! weights.
//!
//! Weights tell which pushes they contain. Element `e` belongs to rank `e mod W`: this rank pushes the number
//! of its round there, and the other ranks push zero. At a learning rate of 1, the weight after the pushes of
//! rounds 1 to `k` is `-(1 + 2 + ... + k)`. This number is exact in f32, and no other set of rounds gives it.
//!
//! In a tree, the hub at the top steps for each machine, by the mean of the machine's workers. There a "rank" is the
//! number of a machine. All workers of a machine push the same number, so the mean does not depend on who takes part.

use std::sync::Arc;

use crate::levels::Levels;
use crate::simulated::{Simulated, Terms};
use fabric::sim::{self, Net};
use pbox_core::{Consistency, KeyId, Layout, Optimizer, Round};
use worker_shim::{Exchange, ExchangeError};

pub const SGD: Optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
/// The number of steps without work after which a job is stuck.
const PATIENCE: u32 = 2000;

/// A simulated job in which the members of the top hub step alone.
pub trait Job {
    fn exchange(&mut self, worker: usize) -> &mut Exchange<sim::Port>;
    fn weights(&self, worker: usize, key: KeyId) -> &[f32];
    fn is_alive(&self, worker: usize) -> bool;
    /// Lets every core and every living worker work once. Returns true if anything happened.
    fn step(&mut self) -> Result<bool, ExchangeError>;
    /// Returns, for each worker, the member of the top hub whose pushes contain the worker's pushes: the worker itself,
    /// or its machine.
    fn members(&self) -> Vec<usize>;
}

impl Job for Simulated {
    fn exchange(&mut self, worker: usize) -> &mut Exchange<sim::Port> {
        &mut self.workers[worker]
    }

    fn weights(&self, worker: usize, key: KeyId) -> &[f32] {
        self.workers[worker].weights(key).unwrap()
    }

    fn is_alive(&self, worker: usize) -> bool {
        Simulated::is_alive(self, worker as u32)
    }

    fn step(&mut self) -> Result<bool, ExchangeError> {
        Simulated::step(self)
    }

    fn members(&self) -> Vec<usize> {
        (0..self.workers.len()).collect()
    }
}

impl Job for Levels {
    fn exchange(&mut self, worker: usize) -> &mut Exchange<sim::Port> {
        &mut self.workers[worker].exchange
    }

    fn weights(&self, worker: usize, key: KeyId) -> &[f32] {
        self.workers[worker].exchange.weights(key).unwrap()
    }

    fn is_alive(&self, worker: usize) -> bool {
        Levels::is_alive(self, worker)
    }

    fn step(&mut self) -> Result<bool, ExchangeError> {
        Levels::step(self)
    }

    fn members(&self) -> Vec<usize> {
        self.workers.iter().map(|worker| self.rank_above(worker.node)).collect()
    }
}

/// A race of workers that push at random times.
pub struct Race<J = Simulated> {
    layout: Arc<Layout>,
    /// The number of rounds with gradients. In later rounds workers push zeros, and the answers show the final weights.
    rounds: u32,
    pub job: J,
    consistency: Consistency,
    dice: u64,
    /// The member of the top hub that each worker belongs to, by worker.
    member: Vec<usize>,
    /// Whether the member's pushes carry the numbers of their rounds, by member. A member that returned
    /// pushes zeros.
    pub telling: Vec<bool>,
    /// The number of rounds that were pushed, by worker and key. Round 0 counts.
    pub pushed: Vec<Vec<u32>>,
    pub answered: Vec<Vec<u32>>,
}

impl Race {
    /// Creates a race. Workers push zeros after `rounds` rounds with gradients.
    pub fn new(seed: u64, net: Net, layout: &Arc<Layout>, terms: Terms, rounds: u32) -> Self {
        let consistency = terms.job.level.consistency;
        Self::of(seed, Simulated::new(net, layout, terms).unwrap(), consistency, layout, rounds)
    }

    /// Pushes a key in the worker's next round, unless a push of the key is in flight. The push is sent in the worker's
    /// next turn. If the key has a group, the push is sent together with the pushes of the group's other keys.
    pub fn push(&mut self, rank: usize, key: KeyId) -> bool {
        self.try_push(rank, key).unwrap()
    }

    /// Pushes every key of these workers that is not in flight.
    pub fn push_all(&mut self, ranks: &[usize]) {
        for &rank in ranks {
            self.keys().for_each(|key| _ = self.push(rank, key));
        }
    }

    /// Lets one core and one worker work, both drawn at random, and checks the answers.
    pub fn step(&mut self) {
        let core = self.draw(self.job.cores.len() as u64) as usize;
        self.job.turn_core(core);
        self.job.control().unwrap();
        let rank = self.draw(self.telling.len() as u64) as usize;
        if self.job.is_alive(rank as u32) {
            self.job.workers[rank].flush().unwrap();
            self.job.workers[rank].progress().unwrap();
            self.keys().for_each(|key| self.check(rank, key));
        }
    }

    /// Lets all workers push at random speeds, until each has made `rounds` rounds and has got the answers of these
    /// rounds.
    pub fn run(&mut self, rounds: u32) {
        let speeds: Vec<u64> = (0..self.telling.len()).map(|_| 1 + self.draw(40)).collect();
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

    /// Makes so many steps that everything in flight has arrived.
    pub fn settle(&mut self) {
        (0..PATIENCE / 4).for_each(|_| self.step());
    }
}

impl<J: Job> Race<J> {
    /// Works like [`new`](Race::new), for any job.
    pub fn of(seed: u64, job: J, consistency: Consistency, layout: &Arc<Layout>, rounds: u32) -> Self {
        let member = job.members();
        let zeros = || vec![vec![0; layout.keys().len()]; member.len()];
        Race {
            consistency,
            job,
            layout: Arc::clone(layout),
            rounds,
            dice: seed,
            telling: vec![true; member.iter().max().map_or(0, |last| last + 1)],
            pushed: zeros(),
            answered: zeros(),
            member,
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = KeyId> + use<J> {
        (0..self.layout.keys().len() as u32).map(KeyId)
    }

    fn living(&self) -> Vec<usize> {
        (0..self.member.len()).filter(|&worker| self.job.is_alive(worker)).collect()
    }

    /// Returns the number of rounds of a key that all living workers of a member have pushed, or `None` if the member
    /// has no living worker.
    fn pushed_by(&self, member: usize, key: usize) -> Option<u32> {
        let of_member = self.living().into_iter().filter(|&worker| self.member[worker] == member);
        of_member.map(|worker| self.pushed[worker][key]).min()
    }

    fn chunk(&self) -> usize {
        self.layout.chunk_bytes() / size_of::<f32>()
    }

    /// Returns, for each rank, the number of rounds that a chunk's weights contain, or `None` if the chunk has no
    /// element of the rank.
    pub fn contained(&self, weights: &[f32], first: usize) -> Vec<Option<u32>> {
        let of_rank = |rank: usize| {
            let of_rank = (first..).zip(weights).filter(|(e, _)| e % self.telling.len() == rank);
            let mut rounds = of_rank.map(|(e, &weight)| {
                (0..=self.rounds).find(|&k| weight == -((k * (k + 1) / 2) as f32)).unwrap_or_else(|| {
                    panic!("element {e}: {weight} is no sum of rank {rank}'s first rounds")
                })
            });
            let first = rounds.next()?;
            assert!(rounds.all(|rounds| rounds == first), "a chunk is stepped as a whole");
            Some(first)
        };
        (0..self.telling.len()).map(of_rank).collect()
    }

    /// Draws a number below `n`.
    pub fn draw(&mut self, n: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % n
    }

    /// Pushes a key like [`push`](Race::push), in a job whose links may have ended.
    pub fn try_push(&mut self, worker: usize, key: KeyId) -> Result<bool, ExchangeError> {
        let (member, members) = (self.member[worker], self.telling.len());
        if !self.job.is_alive(worker) || !self.job.exchange(worker).is_ready(key) {
            return Ok(false);
        }
        let round = self.job.exchange(worker).round(key).0;
        assert_eq!(round, self.pushed[worker][key.index()]);
        let value = if round > self.rounds || !self.telling[member] { 0.0 } else { round as f32 };
        let exchange = self.job.exchange(worker);
        for (e, gradient) in exchange.gradient_mut::<f32>(key).unwrap().iter_mut().enumerate() {
            *gradient = if e % members == member { value } else { 0.0 };
        }
        exchange.put(key)?;
        self.pushed[worker][key.index()] += 1;
        Ok(true)
    }

    /// Lets all cores and all living workers work once, and checks the answers. Returns true if anything
    /// happened.
    pub fn step_all(&mut self) -> Result<bool, ExchangeError> {
        for worker in self.living() {
            self.job.exchange(worker).flush()?;
        }
        let worked = self.job.step()?;
        for worker in self.living() {
            self.keys().for_each(|key| self.check(worker, key));
        }
        Ok(worked)
    }

    /// Checks a key's weights if a push of the key was just answered.
    fn check(&mut self, worker: usize, key: KeyId) {
        let k = key.index();
        if !self.job.exchange(worker).is_ready(key) || self.answered[worker][k] == self.pushed[worker][k] {
            return;
        }
        self.answered[worker][k] = self.pushed[worker][k];
        let (rank, next) = (self.member[worker], self.pushed[worker][k]);
        let weights = self.job.weights(worker, key);
        for (c, chunk) in weights.chunks(self.chunk()).enumerate() {
            let seen = self.contained(chunk, c * self.chunk());
            for (other, seen) in seen.into_iter().enumerate() {
                let Some(seen) = seen else { continue };
                let what =
                    format!("{}: rank {rank} before its round {next}, of rank {other}", self.consistency);
                if !self.telling[other] {
                    continue;
                }
                let living = self.pushed_by(other, k);
                let of_the_dead = || {
                    let of_member =
                        self.pushed.iter().zip(&self.member).filter(|(_, member)| **member == other);
                    of_member.map(|(pushed, _)| pushed[k]).max().expect("a member has workers")
                };
                assert!(seen < living.unwrap_or_else(of_the_dead), "{what}: {seen} rounds, not yet pushed");
                if other == rank {
                    assert_eq!(seen, (next - 1).min(self.rounds), "{what}");
                } else if living.is_some() {
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
        for other in 0..self.telling.len() {
            let Some(pushed) = self.pushed_by(other, k) else { continue };
            assert!(pushed >= 1, "rank {other} has no weights yet, and rank {rank} has");
            if let Consistency::Ssp { staleness } = self.consistency {
                let ahead = next.saturating_sub(pushed);
                assert!(ahead <= staleness, "rank {rank} is {ahead} rounds ahead of rank {other}");
            }
        }
    }

    /// Whether a living worker lacks answers of the first `rounds` rounds.
    pub fn lacks_answers(&self, rounds: u32) -> bool {
        let behind = |worker: usize| self.answered[worker].iter().any(|&answered| answered < rounds);
        self.living().into_iter().any(behind)
    }

    /// Asserts that the weights of every living worker contain each push of the living members exactly once.
    pub fn check_all_pushes(&self) {
        for (worker, key) in
            self.living().iter().flat_map(|&worker| self.keys().map(move |key| (worker, key)))
        {
            let weights = self.job.weights(worker, key);
            for (c, chunk) in weights.chunks(self.chunk()).enumerate() {
                let seen = self.contained(chunk, c * self.chunk());
                let telling = |other: &usize| self.telling[*other] && self.pushed_by(*other, 0).is_some();
                for other in (0..self.telling.len()).filter(telling) {
                    let rounds = seen[other];
                    let all = rounds.is_none_or(|rounds| rounds == self.rounds);
                    assert!(all, "worker {worker} has {rounds:?} rounds of rank {other}");
                }
            }
        }
    }

    /// Lets a worker that has come back continue with the round from which it takes part.
    fn goes_on(&mut self, worker: usize, from: u32) {
        self.pushed[worker].fill(from);
        self.answered[worker].fill(from - 1);
    }
}

impl Race<Levels> {
    pub fn rejoin_worker(&mut self, worker: usize) {
        self.job.rejoin(worker).unwrap();
        self.let_come_back(worker);
    }

    /// Brings back a machine with all its workers. Its pushes are zeros from now on.
    pub fn rejoin_machine(&mut self, node: usize) {
        self.job.rejoin_hub(node).unwrap();
        self.telling[self.job.rank_above(node)] = false;
        let of_node = |worker: &usize| self.job.workers[*worker].node == node;
        let back: Vec<usize> = (0..self.member.len()).filter(of_node).collect();
        back.into_iter().for_each(|worker| self.let_come_back(worker));
    }

    /// Lets a worker that has come back continue, unless its hub has ended meanwhile.
    fn let_come_back(&mut self, worker: usize) {
        let from = self.job.first_round(worker);
        from.into_iter().for_each(|Round(from)| self.goes_on(worker, from));
    }
}
