//! As `bits::sim_seeds`, in SSP and ASP: thousands of small clusters with random faults. Every answer keeps the bound, every
//! push counts once, and every run ends with all its rounds or with an error that names what went wrong. A failure prints
//! its seed.

use std::sync::Arc;

use fabric::sim::{Net, seeds};
use pbox_core::codec::Codec;
use pbox_core::{Compression, Consistency, Credit, Key, KeyId, Layout, Schedule};
use sim_tests::race::{Race, SGD};
use sim_tests::simulated::Terms;
use sim_tests::trouble::{Dice, ENDS, Strike, Trouble};

const CLUSTERS: u64 = 5_000;
/// A run is over after this many steps without work: more than the longest delay.
const PATIENCE: u32 = 200;
/// More steps than any run needs.
const MANY: u32 = 20_000;

/// The cluster of a seed.
struct Cluster {
    dice: Dice,
    trouble: Trouble,
    /// All rounds: the broadcast, those with gradients, and a round of zeros that shows the final weights.
    rounds: u32,
    race: Race,
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let trouble = Trouble::from_seed(seed);
        // Small keys may be groups.
        let longest = [16, 80][dice.below(2) as usize];
        let keys = (0..dice.from(1..=6)).map(|key| Key::f32(format!("key {key}"), [dice.from(1..=longest)]));
        let layout = Arc::new(Layout::new(keys.collect(), 64 * dice.from(1..=3) as usize).unwrap());
        let mut terms = Terms::new(dice.from(1..=4) as u32, dice.from(1..=4) as usize, SGD);
        terms.job.on_loss = trouble.on_loss();
        terms.late = (dice.below(2) == 0).then_some(seed);
        terms.job.level.consistency = match dice.below(5) {
            0 => Consistency::Asp,
            staleness => Consistency::Ssp { staleness: staleness as u32 - 1 },
        };
        terms.job.level.schedule = Schedule::ALL[dice.below(4) as usize];
        terms.batch_keys = (dice.below(2) == 0).then(|| dice.from(1..=4) as usize);
        // bf16 holds the numbers that are pushed here exactly.
        terms.job.level.compression = (dice.below(2) == 0).then_some(Compression::Codec(Codec::Bf16));
        terms.job.level.slice_bytes = Some(dice.from(64..=512) as usize);
        let mut credit = || (dice.below(3) > 0).then(|| dice.from(1..=600) as usize);
        (terms.worker_credit, terms.job.level.credit) = (credit(), credit().map(Credit::Bytes));
        let faults = trouble.faults(&mut dice);
        let rounds = dice.from(1..=5) as u32;
        let race = Race::new(seed, Net::new(seed, faults), &layout, terms, rounds);
        Cluster { dice, trouble, rounds: rounds + 2, race }
    }

    /// Runs until all living workers have done all rounds, or nothing moves any more, or there is an error.
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
            // From here on nothing is broken, so that the living workers can finish.
            if step < MANY / 10 {
                let begun = !self.race.lacks_answers(1);
                match self.trouble.strike(&mut self.dice, &self.race.job, begun) {
                    Some(Strike::Kill(rank)) => self.race.job.kill(rank),
                    Some(Strike::Rejoin(rank)) => self.race.rejoin(rank),
                    None => {}
                }
            }
            for rank in 0..self.race.telling.len() {
                let key = KeyId(self.dice.below(self.race.keys().count() as u64) as u32);
                if self.dice.below(3) > 0 && self.race.pushed[rank][key.index()] < rounds {
                    self.race.try_push(rank, key).map_err(|error| error.to_string())?;
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
    let mut ends = std::collections::BTreeMap::<&str, u32>::new();
    for seed in seeds(CLUSTERS) {
        let mut cluster = Cluster::new(seed);
        let ended = cluster.run();
        let end = cluster.trouble.name_end(&ended, &cluster.race.job.notices);
        if end == "whole" {
            cluster.race.check_all_pushes();
        }
        *ends.entry(end).or_default() += 1;
    }
    eprintln!("{ends:?}");
    if std::env::var_os("PHUB_SIM_SEED").is_none() {
        assert_eq!(ends.len(), ENDS, "every way to end was seen: {ends:?}");
    }
}
