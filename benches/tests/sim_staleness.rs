//! SSP and ASP over the simulated network: whole jobs whose workers run ahead at random, held against what
//! the consistency promises. A failure prints its seed.
//!
//! Weights tell which pushes they contain: element `e` belongs to rank `e mod W`, which pushes its round's
//! number there and zero elsewhere; at a learning rate of 1 its weight after the pushes of rounds 1 to `k`
//! is `-(1 + 2 + ... + k)`, exact in f32, and that of no other set of rounds in this order.

use std::sync::Arc;

use benches::simulated::{Simulated, Terms};
use fabric::sim::{Faults, Net, seeds};
use pbox_core::control::OnLoss;
use pbox_core::{Consistency, Key, KeyId, Layout, Notice, Optimizer};

const WORKERS: u32 = 3;
/// Rounds with gradients; one more, of zeros, shows what all of them came to.
const ROUNDS: u32 = 12;
const SGD: Optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
/// Steps without anything to do after which a job is stuck.
const PATIENCE: u32 = 2000;

const fn ssp(staleness: u32) -> Consistency {
    Consistency::Ssp { staleness }
}

fn layout() -> Arc<Layout> {
    let keys = vec![Key::f32("a", [1]), Key::f32("b", [17]), Key::f32("c", [300]), Key::f32("d", [16, 9])];
    Arc::new(Layout::new(keys, 256).unwrap())
}

fn keys() -> impl Iterator<Item = KeyId> {
    (0..layout().keys().len() as u32).map(KeyId)
}

/// The rounds of each rank that a chunk's weights contain; `None` where it has no element of that rank.
fn contained(weights: &[f32], first: usize) -> [Option<u32>; WORKERS as usize] {
    std::array::from_fn(|rank| {
        let of_rank = (first..).zip(weights).filter(|(e, _)| e % WORKERS as usize == rank);
        let mut rounds = of_rank.map(|(e, &weight)| {
            (0..=ROUNDS)
                .find(|&k| weight == -((k * (k + 1) / 2) as f32))
                .unwrap_or_else(|| panic!("element {e}: {weight} is no sum of rank {rank}'s first rounds"))
        });
        let first = rounds.next()?;
        assert!(rounds.all(|rounds| rounds == first), "a chunk is stepped as a whole");
        Some(first)
    })
}

/// A job in which workers do as they like.
struct Race {
    job: Simulated,
    consistency: Consistency,
    dice: u64,
    /// By rank: whether its pushes say which they are. Those of one that came back do not.
    telling: Vec<bool>,
    /// By rank and key: rounds that were pushed, and of these answered ones; round 0 is one.
    pushed: Vec<Vec<u32>>,
    answered: Vec<Vec<u32>>,
}

impl Race {
    /// After the broadcast, of zeros.
    fn new(seed: u64, consistency: Consistency, on_loss: OnLoss) -> Self {
        let net = Net::new(seed, Faults { delay: 0..20, reorder: true, ..Faults::NONE });
        let mut terms = Terms::new(WORKERS, 1 + (seed % 3) as usize, SGD);
        (terms.consistency, terms.on_loss) = (consistency, on_loss);
        let job = Simulated::new(net, &layout(), terms).unwrap();
        let zeros = || vec![vec![0; keys().count()]; WORKERS as usize];
        let telling = vec![true; WORKERS as usize];
        Race { job, consistency, dice: seed, telling, pushed: zeros(), answered: zeros() }
    }

    /// A number below `n`.
    fn draw(&mut self, n: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % n
    }

    /// The worker's next push of a key, unless one is under way.
    fn push(&mut self, rank: usize, key: KeyId) -> bool {
        let alive = self.job.is_alive(rank as u32);
        let worker = &mut self.job.workers[rank];
        if !alive || !worker.is_ready(key) {
            return false;
        }
        let round = worker.round(key).0;
        assert_eq!(round, self.pushed[rank][key.index()]);
        let value = if round > ROUNDS || !self.telling[rank] { 0.0 } else { round as f32 };
        for (e, gradient) in worker.gradient_mut::<f32>(key).unwrap().iter_mut().enumerate() {
            *gradient = if e % WORKERS as usize == rank { value } else { 0.0 };
        }
        worker.push(key).unwrap();
        self.pushed[rank][key.index()] += 1;
        true
    }

    /// Pushes what these workers can push.
    fn push_all(&mut self, ranks: &[usize]) {
        for (&rank, key) in ranks.iter().flat_map(|rank| keys().map(move |key| (rank, key))) {
            self.push(rank, key);
        }
    }

    /// One look of one core and one worker, drawn; and a look at whatever is answered.
    fn step(&mut self) {
        let core = self.draw(self.job.cores.len() as u64) as usize;
        self.job.cores[core].turn(&mut self.job.notices);
        let rank = self.draw(u64::from(WORKERS)) as usize;
        if self.job.is_alive(rank as u32) {
            self.job.workers[rank].progress().unwrap();
            keys().for_each(|key| self.check(rank, key));
        }
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
        for (c, chunk) in weights.chunks(256 / 4).enumerate() {
            let seen = contained(chunk, c * (256 / 4));
            for (other, seen) in seen.into_iter().enumerate() {
                let Some(seen) = seen else { continue };
                let what =
                    format!("{}: rank {rank} before its round {next}, of rank {other}", self.consistency);
                if !self.telling[other] {
                    continue;
                }
                assert!(seen < self.pushed[other][k], "{what}: {seen} rounds, not yet pushed");
                if other == rank {
                    assert_eq!(seen, (next - 1).min(ROUNDS), "{what}");
                } else if self.job.is_alive(other as u32) {
                    let least = match self.consistency {
                        Consistency::Ssp { staleness } => (next - 1).saturating_sub(staleness).min(ROUNDS),
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
    fn run(&mut self, rounds: u32) {
        let speeds: Vec<u64> = (0..WORKERS).map(|_| 1 + self.draw(40)).collect();
        let mut idle = 0;
        while self.missing(rounds) {
            for (rank, &speed) in speeds.iter().enumerate() {
                let key = KeyId(self.draw(keys().count() as u64) as u32);
                if self.draw(40) < speed && self.pushed[rank][key.index()] < rounds && self.push(rank, key) {
                    idle = 0;
                }
            }
            self.step();
            idle += 1;
            assert!(idle < PATIENCE, "stuck: pushed {:?}, answered {:?}", self.pushed, self.answered);
        }
    }

    fn missing(&self, rounds: u32) -> bool {
        let behind = |rank: usize| self.answered[rank].iter().any(|&answered| answered < rounds);
        (0..WORKERS as usize).any(|rank| self.job.is_alive(rank as u32) && behind(rank))
    }

    /// Steps as long as anything can still happen.
    fn settle(&mut self) {
        (0..PATIENCE / 4).for_each(|_| self.step());
    }

    /// Everybody has every push in its weights, once.
    fn all_is_there(&self) {
        for (rank, worker) in self.job.workers.iter().enumerate() {
            for key in keys() {
                for (c, chunk) in worker.weights::<f32>(key).unwrap().chunks(256 / 4).enumerate() {
                    let seen = contained(chunk, c * (256 / 4));
                    let seen = seen.iter().zip(&self.telling).filter(|(_, telling)| **telling);
                    for (rounds, _) in seen {
                        assert!(rounds.is_none_or(|rounds| rounds == ROUNDS), "rank {rank}: {rounds:?}");
                    }
                }
            }
        }
    }
}

const ALL: [Consistency; 5] = [ssp(0), ssp(1), ssp(3), ssp(100), Consistency::Asp];

#[test]
fn every_answer_keeps_the_bound_and_every_push_counts_once() {
    for seed in seeds(200) {
        let consistency = ALL[(seed % 5) as usize];
        let mut race = Race::new(seed, consistency, OnLoss::Stop);
        race.run(ROUNDS + 1);
        let last_begun = race.answered.iter().flatten().all(|&answered| answered == ROUNDS + 1);
        assert!(last_begun && race.job.notices.is_empty(), "{:?}", race.job.notices);
        race.run(ROUNDS + 2);
        race.all_is_there();
        let steps: u64 = race.job.cores.iter().map(|core| core.tally().chunks).sum();
        assert_eq!(steps, u64::from(WORKERS * (ROUNDS + 2)) * layout().chunks().len() as u64);
    }
}

/// How many rounds, of those after the broadcast, a worker gets answers for while another one stands still.
fn rounds_alone(seed: u64, consistency: Consistency) -> u32 {
    let mut race = Race::new(seed, consistency, OnLoss::Stop);
    race.run(1);
    for _ in 0..=ROUNDS {
        race.push_all(&[0, 1]);
        race.settle();
    }
    assert_eq!(race.answered[0], race.answered[1]);
    assert_eq!(race.answered[2], vec![1; keys().count()], "it has the first weights and pushes nothing");
    assert!(race.answered[0].iter().all(|&answered| answered == race.answered[0][0]));
    race.answered[0][0] - 1
}

#[test]
fn a_slow_worker_holds_the_others_exactly_at_the_staleness() {
    for seed in seeds(4) {
        for staleness in [0, 1, 2, 5] {
            assert_eq!(rounds_alone(seed, ssp(staleness)), staleness, "staleness {staleness}");
        }
        assert_eq!(rounds_alone(seed, Consistency::Asp), ROUNDS + 1, "nobody waits");
    }
}

/// With a staleness of 0 everybody's weights before a round are those of all rounds before, as in BSP.
#[test]
fn with_no_staleness_nobody_is_ahead() {
    for seed in seeds(20) {
        let mut race = Race::new(seed, ssp(0), OnLoss::Stop);
        for rounds in 1..=ROUNDS {
            race.run(rounds);
            for (worker, key) in race.job.workers.iter().flat_map(|w| keys().map(move |key| (w, key))) {
                let seen = contained(&worker.weights::<f32>(key).unwrap()[..1], 0);
                assert_eq!(seen[0], Some(rounds - 1));
            }
        }
    }
}

#[test]
fn the_death_of_the_slowest_lets_those_go_that_waited_for_it() {
    for seed in seeds(20) {
        let mut race = Race::new(seed, ssp(2), OnLoss::Continue);
        race.run(1);
        for _ in 0..4 {
            race.push_all(&[0, 1]);
            race.settle();
        }
        assert_eq!(race.answered[0], vec![3; keys().count()], "two rounds ahead");
        race.job.kill(2);
        race.settle();
        assert_eq!(race.answered[0], vec![3; keys().count()], "the hub does not know yet");
        let is_two = |notice: &Notice| matches!(notice, Notice::WorkerGone { rank: 2, .. });
        assert!(!race.job.notices.is_empty() && race.job.notices.iter().all(is_two));
        race.job.lose(2);
        race.settle();
        assert_eq!(race.answered[0], vec![4; keys().count()]);
        race.run(ROUNDS + 1);
        for rank in [0, 1] {
            assert_eq!(race.answered[rank], vec![ROUNDS + 1; keys().count()], "{:?}", race.job.notices);
        }
    }
}

#[test]
fn one_that_dies_anywhere_and_comes_back_is_in_the_bound_again() {
    for seed in seeds(200) {
        let mut race = Race::new(seed, ALL[(seed % 5) as usize], OnLoss::Continue);
        race.run(3);
        // Somewhere in a round.
        race.push_all(&[0, 1, 2]);
        (0..race.draw(60)).for_each(|_| race.step());
        race.job.kill(2);
        // The hub may see the end of its links only when it comes back.
        if race.draw(2) == 0 {
            race.settle();
            race.job.lose(2);
            race.run(6);
        }
        race.job.rejoin(2).unwrap();
        let from = keys().map(|key| race.job.workers[2].round(key).0 + 1).max().unwrap();
        race.telling[2] = false;
        race.pushed[2].fill(from);
        race.answered[2].fill(from - 1);
        race.run(ROUNDS + 1);
        race.run(ROUNDS + 2);
        race.all_is_there();
    }
}

#[test]
fn while_it_is_held_a_job_stands_still_and_then_nothing_is_lost() {
    for seed in seeds(60) {
        let mut race = Race::new(seed, ALL[(seed % 5) as usize], OnLoss::Continue);
        race.run(3);
        // The last one is the slowest.
        race.push_all(&[0, 1]);
        (0..race.draw(200)).for_each(|_| race.step());
        let front = race.job.hold();
        let steps = |race: &Race| race.job.cores.iter().map(|core| core.tally().chunks).sum::<u64>();
        let before = steps(&race);
        race.push_all(&[0, 1, 2]);
        race.settle();
        let dies = seed % 2 == 0;
        if dies {
            race.job.kill(2);
            race.settle();
            race.job.lose(2);
            race.telling[2] = false; // of what it pushed in the hold nothing counts
        }
        assert_eq!((steps(&race), race.job.hold()), (before, front), "while it is held");
        race.job.release(front, &[]);
        race.settle();
        assert!(dies || steps(&race) > before, "what was noted is stepped");
        race.run(ROUNDS + 1);
        race.run(ROUNDS + 2);
        if !dies {
            race.all_is_there();
        }
    }
}

#[test]
fn a_push_before_the_answer_costs_the_link() {
    for consistency in [ssp(0), Consistency::Asp] {
        let mut race = Race::new(1, consistency, OnLoss::Stop);
        // Round 0 of the others is missing, so this is not answered; the network shows it twice.
        let end = race.job.ends[0][0];
        race.job.net().duplicate_next(end);
        race.push_all(&[0]);
        for _ in 0..200 {
            let Simulated { cores, notices, .. } = &mut race.job;
            cores.iter_mut().for_each(|core| _ = core.turn(notices));
        }
        let [Notice::WorkerGone { rank: 0, reason, .. }] = &race.job.notices[..] else {
            panic!("{consistency}: {:?}", race.job.notices)
        };
        assert!(reason.contains("again before it was answered in round 0"), "{reason}");
    }
}
