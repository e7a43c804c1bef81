//! Lives of jobs: workers that die, lose their links, come back and die again before they take part, and snapshots, all at any
//! moment, at one hub or several, whose control is late.
//!
//! All workers push ones, and the mean of ones is one, whoever takes part: at a learning rate of 1 a weight after round `r` is `-r`, less
//! the rounds that all who took part left behind. A round that is stepped twice, or not at all, has another weight.

mod ledger;

use std::sync::Arc;

use fabric::sim::{Faults, Net, seeds};
use ledger::Ledger;
use pbox_core::{Key, KeyId, Layout, Notice, OnLoss, Round, Schedule};
use sim_tests::race::SGD;
use sim_tests::simulated::{Simulated, Terms};
use sim_tests::trouble::Dice;
use worker_shim::Exchange;

const WORKERS: u32 = 3;
/// The number of steps in which something may happen.
const STEPS: u32 = 400;

/// The most rounds that a worker's keys are apart.
const AHEAD: u32 = 3;

/// The state of a worker, as its own program knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Dead,
    /// It has joined, and waits until it takes part.
    Joined,
    TakesPart,
    /// It has asked for other links.
    Unlinked,
}

struct Life {
    dice: Dice,
    layout: Arc<Layout>,
    job: Simulated,
    ledger: Ledger,
    stages: Vec<Stage>,
    /// The notices that were read.
    read: usize,
    snapshots: usize,
    deaths: usize,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let keys = (0..dice.from(1..=5)).map(|key| Key::f32(format!("{key}"), [1 + 40 * dice.below(3)]));
        let layout = Arc::new(Layout::new(keys.collect(), 64).unwrap());
        let mut terms = Terms::new(WORKERS, dice.from(1..=2) as usize, SGD);
        (terms.job.hubs, terms.job.on_loss, terms.late) =
            (dice.from(1..=3) as u32, OnLoss::Continue, Some(seed));
        terms.job.level.schedule = Schedule::ALL[dice.below(4) as usize];
        let net = Net::new(seed, Faults { delay: 0..dice.from(1..=20), ..Faults::NONE });
        let job = Simulated::new(net, &layout, terms).unwrap();
        let (ledger, stages) = (Ledger::new(&layout), vec![Stage::TakesPart; WORKERS as usize]);
        Life { dice, layout, job, ledger, stages, read: 0, snapshots: 0, deaths: 0 }
    }

    fn keys(&self) -> impl Iterator<Item = KeyId> + use<> {
        (0..self.layout.keys().len() as u32).map(KeyId)
    }

    /// The rounds of all workers and keys.
    fn rounds(&self) -> impl Iterator<Item = u32> {
        self.job.workers.iter().flat_map(|worker| self.keys().map(|key| worker.round(key).0))
    }

    /// Something happens to a worker. One always takes part, because the job ends without.
    fn happens(&mut self, rank: u32) {
        let takes_part = |&other: &u32| other != rank && self.stages[other as usize] == Stage::TakesPart;
        let may_die = (0..WORKERS).any(|other| takes_part(&other));
        let stage = &mut self.stages[rank as usize];
        match (*stage, self.dice.below(3)) {
            (Stage::Dead, _) if self.job.come_back(rank).unwrap() => *stage = Stage::Joined,
            (Stage::Unlinked, 1..) if self.job.relink(rank).unwrap() => *stage = Stage::TakesPart,
            (Stage::TakesPart, 0) => {
                self.job.unlink(rank);
                *stage = Stage::Unlinked;
            }
            (Stage::TakesPart | Stage::Unlinked | Stage::Joined, 1) if may_die => {
                self.job.kill(rank);
                *stage = Stage::Dead;
                self.deaths += 1;
            }
            _ => {}
        }
    }

    /// Workers that take part push what they can, and everybody works once.
    fn step(&mut self, until: u32) {
        for rank in 0..WORKERS {
            let stage = &mut self.stages[rank as usize];
            if *stage == Stage::Joined && self.job.takes_part(rank) {
                *stage = Stage::TakesPart;
            }
            if *stage != Stage::TakesPart || self.dice.below(3) == 0 {
                continue;
            }
            let slowest = self.keys().map(|key| self.job.workers[rank as usize].round(key).0).min().unwrap();
            for key in self.keys() {
                let worker = &mut self.job.workers[rank as usize];
                let Round(round) = worker.round(key);
                let may = worker.is_ready(key) && round <= until.min(slowest + AHEAD);
                if may && self.dice.below(2) == 0 {
                    let value = if round == 0 { 0.0 } else { 1.0 };
                    worker.gradient_mut::<f32>(key).unwrap().fill(value);
                    worker.push(key).unwrap();
                }
            }
        }
        self.job.step().unwrap();
        self.read_notices();
        for rank in 0..WORKERS {
            self.check(rank);
        }
    }

    /// A worker's weights are those of its round.
    fn check(&self, rank: u32) {
        let worker = &self.job.workers[rank as usize];
        if !matches!(self.stages[rank as usize], Stage::TakesPart | Stage::Unlinked) {
            return;
        }
        for key in self.keys().filter(|&key| worker.is_ready(key) && worker.round(key) > Round(0)) {
            self.ledger.check(worker, key);
        }
    }

    /// Snapshots have the weights of their round. Each core may then take the next one.
    fn read_notices(&mut self) {
        let mut done = 0;
        for notice in &self.job.notices[self.read..] {
            match notice {
                Notice::Snapshot { taken, .. } => {
                    if let Ok(part) = &taken.part {
                        self.ledger.check_part(part, &self.layout, taken.before);
                        self.snapshots += 1;
                    }
                    done += 1;
                }
                Notice::WorkerGone { by_itself: true, .. } => {}
                Notice::Skipped { chunk, rounds, .. } => self.ledger.skip(*chunk, rounds.clone()),
                notice => panic!("{notice:?}, {:?}", self.stages),
            }
        }
        self.read = self.job.notices.len();
        if done > 0 {
            (0..self.job.cores.len()).for_each(|core| self.job.give_back(core));
        }
    }

    fn live(&mut self) {
        // A job whose worker dies before all have the first weights ends.
        let has_weights = |life: &Life, worker: &Exchange<_>| life.keys().all(|key| worker.is_ready(key));
        let have_begun = |life: &mut Life| {
            let begun = life.rounds().all(|round| round > 0);
            begun && life.job.workers.iter().all(|worker| has_weights(life, worker))
        };
        self.until(have_begun, 0);
        for _ in 0..STEPS {
            match self.dice.below(60) {
                0 => self.job.snapshot(),
                1..7 => {
                    let rank = self.dice.below(u64::from(WORKERS)) as u32;
                    self.happens(rank);
                }
                _ => {}
            }
            self.step(u32::MAX);
        }
        // Everybody comes back, and makes some rounds more.
        let all = |life: &Life| life.stages.iter().all(|&stage| stage == Stage::TakesPart);
        self.until(
            |life| {
                for rank in 0..WORKERS {
                    let stage = &mut life.stages[rank as usize];
                    match *stage {
                        Stage::Dead if life.job.come_back(rank).unwrap() => *stage = Stage::Joined,
                        Stage::Unlinked if life.job.relink(rank).unwrap() => *stage = Stage::TakesPart,
                        _ => {}
                    }
                }
                all(life)
            },
            u32::MAX,
        );
        let last = self.rounds().max().unwrap() + 3;
        self.until(
            |life| {
                let is_done = life.rounds().all(|round| round > last);
                is_done && !life.job.is_busy()
            },
            last,
        );
    }

    /// Steps until something is so, which must be before long.
    fn until(&mut self, mut is_so: impl FnMut(&mut Life) -> bool, last: u32) {
        for _ in 0..20_000 {
            if is_so(self) {
                return;
            }
            self.step(last);
        }
        panic!("nothing comes of it: {:?}", self.stages);
    }
}

#[test]
fn whoever_comes_and_goes_each_round_is_stepped_once() {
    let (mut snapshots, mut deaths) = (0, 0);
    for seed in seeds(500) {
        let mut life = Life::new(seed);
        life.live();
        (snapshots, deaths) = (snapshots + life.snapshots, deaths + life.deaths);
    }
    eprintln!("{deaths} deaths, {snapshots} parts of snapshots");
    if std::env::var_os("PHUB_SIM_SEED").is_none() {
        assert!(deaths > 1000 && snapshots > 500, "{deaths} deaths, {snapshots} parts of snapshots");
    }
}
