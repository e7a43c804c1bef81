//! SSP and ASP between two levels: thousands of small trees and meshes with random faults. Each machine steps
//! by the mean of its workers.
//!
//! Every answer keeps the bound, and every push of a machine counts once. Every run ends with all its rounds, or
//! with an error that names what went wrong. A failure prints its seed. `bits::levels` tests BSP in the same way.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric::sim::{Net, seeds};
use pbox_core::{Consistency, Credit, JobTerms, Key, KeyId, Layout, LevelTerms, Schedule};
use sim_tests::levels::{ENDS, Levels, Shape, Strike, Terms};
use sim_tests::race::{Race, SGD};
use sim_tests::trouble::{Dice, Trouble};

const TREES: u64 = 10_000;

/// The number of steps without work after which a run is over: more than the longest delay.
const PATIENCE: u32 = 200;

/// More steps than any run needs. A run with so many steps fails.
const MANY: u32 = 20_000;

/// Codecs that keep the pushed numbers, and their differences, exactly.
const LOSSLESS: [&str; 3] = ["f16", "bf16", "topk:1"];

struct Tree {
    dice: Dice,
    trouble: Trouble,
    /// The number of all rounds: the broadcast, the rounds with gradients, and a round of zeros whose answers show the
    /// final weights.
    rounds: u32,
    race: Race<Levels>,
}

impl Tree {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let trouble = Trouble::from_seed(seed);
        // Small keys may form groups.
        let longest = [16, 80][dice.below(2) as usize];
        let keys = (0..dice.from(1..=6)).map(|key| Key::f32(format!("key {key}"), [dice.from(1..=longest)]));
        let layout = Arc::new(Layout::new(keys.collect(), 64 * dice.from(1..=3) as usize).unwrap());
        let machine = |dice: &mut Dice| Shape::Hub(vec![Shape::Worker; dice.from(1..=3) as usize]);
        let shape: Vec<Shape> = (0..dice.from(1..=3)).map(|_| machine(&mut dice)).collect();
        let mut job = JobTerms::new(1, Vec::new(), SGD);
        (job.on_loss, job.hubs) = (trouble.on_loss(), dice.from(1..=2) as u32);
        let mut level = || {
            // No worker pulls.
            let schedules: Vec<Schedule> = Schedule::ALL.into_iter().filter(|s| !s.pulls()).collect();
            LevelTerms {
                schedule: schedules[dice.below(schedules.len() as u64) as usize],
                slice_bytes: Some(dice.from(64..=512) as usize),
                credit: (dice.below(3) > 0).then(|| Credit::Bytes(dice.from(1..=600) as usize)),
                ..LevelTerms::default()
            }
        };
        let mut levels = vec![level(), level()];
        levels[0].consistency = match dice.below(5) {
            0 => Consistency::Asp,
            staleness => Consistency::Ssp { staleness: staleness as u32 - 1 },
        };
        let codec = LOSSLESS[dice.below(3) as usize].parse().unwrap();
        levels[0].compression = (dice.below(2) == 0).then_some(codec);
        let consistency = levels[0].consistency;
        let cores = (0..dice.from(1..=4)).map(|_| dice.from(1..=3) as usize).collect();
        let worker_credit = (dice.below(3) > 0).then(|| dice.from(1..=600) as usize);
        let (mesh, late) = (dice.below(3) == 0, (dice.below(2) == 0).then_some(seed));
        let terms = Terms { job, levels, cores, worker_credit, mesh, is_orderly: false, late, earlier: None };
        let faults = trouble.faults(&mut dice);
        let rounds = dice.from(1..=5) as u32;
        let job = Levels::new(Net::new(seed, faults), &layout, terms, &shape).unwrap();
        let race = Race::of(seed, job, consistency, &layout, rounds);
        Tree { dice, trouble, rounds: rounds + 2, race }
    }

    /// Runs until all living workers have done all rounds, nothing moves any more, or there is an error.
    fn run(&mut self) -> Result<(), String> {
        self.run_to(self.rounds - 1)?;
        self.run_to(self.rounds)
    }

    fn run_to(&mut self, rounds: u32) -> Result<(), String> {
        let mut idle = 0;
        for step in 0.. {
            if idle >= PATIENCE || !self.race.lacks_answers(rounds) {
                break;
            }
            assert!(step < MANY, "steps without end: {}", self.waiting_keys());
            // Faults occur only in the first tenth of `MANY` steps, so that the living workers can finish.
            if step < MANY / 10 {
                let begun = !self.race.lacks_answers(1);
                match self.race.job.strike(self.trouble, &mut self.dice, begun) {
                    Some(Strike::Kill(worker)) => self.race.job.kill(worker),
                    Some(Strike::KillHub(hub)) => self.race.job.kill_hub(hub),
                    Some(Strike::KillMachine(hub)) => self.race.job.kill_machine(hub),
                    Some(Strike::Rejoin(worker)) => self.race.rejoin_worker(worker),
                    Some(Strike::RejoinHub(hub)) => self.race.rejoin_machine(hub),
                    None => {}
                }
            }
            for worker in 0..self.race.pushed.len() {
                let key = KeyId(self.dice.below(self.race.keys().count() as u64) as u32);
                if self.dice.below(3) > 0 && self.race.pushed[worker][key.index()] < rounds {
                    self.race.try_push(worker, key).map_err(|error| error.to_string())?;
                }
            }
            idle = if self.race.step_all().map_err(|error| error.to_string())? { 0 } else { idle + 1 };
        }
        if self.race.lacks_answers(rounds) { Err(self.waiting_keys()) } else { Ok(()) }
    }

    fn waiting_keys(&self) -> String {
        format!(
            "somebody waits for answers: pushed {:?}, answered {:?}",
            self.race.pushed, self.race.answered
        )
    }
}

#[test]
fn every_answer_keeps_the_bound_or_the_run_ends_with_a_named_error() {
    let mut ends = BTreeMap::<&str, u32>::new();
    for seed in seeds(TREES) {
        let mut tree = Tree::new(seed);
        let ended = tree.run();
        let end = tree.race.job.name_end(tree.trouble, &ended);
        if end == "whole" {
            tree.race.check_all_pushes();
        }
        *ends.entry(end).or_default() += 1;
    }
    eprintln!("{ends:?}");
    if std::env::var_os("PHUB_SIM_SEED").is_none() {
        assert_eq!(ends.len(), ENDS, "every way to end was seen: {ends:?}");
    }
}
