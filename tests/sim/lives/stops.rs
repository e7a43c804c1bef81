//! Stops of hubs: clean stops, immediate stops and kills, and events in the middle of a stop.

use std::time::Duration;

use sim_tests::control::{Control, Stopping};
use sim_tests::counts::count;

use super::ledger::Ledger;
use super::life::{Life, Stage};

impl Life {
    pub fn any_hub(&mut self) -> &mut Control {
        let hub = self.dice.below(self.job.hubs.hubs.len() as u64) as usize;
        &mut self.job.hubs.hubs[hub]
    }

    /// Stops a hub cleanly or at once, or kills it.
    pub fn stops(&mut self) {
        match self.dice.below(6) {
            0 => self.any_hub().stops(),
            1 => self.any_hub().dies(),
            _ => self.begins_to_stop(),
        }
    }

    fn begins_to_stop(&mut self) {
        let limit = Duration::from_millis(self.dice.from(100..=8000));
        self.any_hub().begins_to_stop(limit);
        if let Ledger::Alone(alone) = &mut self.ledger {
            alone.may_end = true;
        }
        count("stops in order", 1);
    }

    /// Whether a hub waits until its job is saved.
    pub fn is_stopping(&self) -> bool {
        self.job.hubs.hubs.iter().any(|hub| hub.stopping.state == Stopping::Saves)
    }

    /// Disturbs a stop: stops any hub, at once or cleanly, kills a hub, or lets the saving take longer than a stop may
    /// take.
    pub fn breaks_stop(&mut self) {
        count("stops broken", 1);
        match self.dice.below(5) {
            0 => self.any_hub().stops(),
            1 => self.any_hub().dies(),
            2 => {
                let hubs = self.job.hubs.hubs.iter_mut();
                let stopping = hubs.filter(|hub| hub.stopping.state == Stopping::Saves);
                let lives = |rank| !matches!(self.stages[rank as usize], Stage::Dead | Stage::Hangs);
                stopping.for_each(|hub| hub.stop_takes_too_long(lives));
            }
            _ => self.begins_to_stop(),
        }
    }

    /// Whether a hub that stopped has saved the job, and no worker has made a round after the saved state.
    pub fn was_saved_at_stop(&mut self) -> bool {
        let states = self.job.hubs.hubs.iter().map(|hub| hub.stopping.state);
        let (mut saved, mut not_saved) = (0, 0);
        for state in states {
            saved += usize::from(state == Stopping::Saved(true));
            not_saved += usize::from(matches!(state, Stopping::Saved(false) | Stopping::TooLate));
        }
        count("jobs saved at a stop", saved);
        count("jobs not saved at a stop", not_saved);
        // With several hubs, workers that step alone make more rounds after the cut, and these rounds are lost.
        saved > 0 && (self.terms.job.hubs == 1 || !self.terms.job.level.consistency.steps_alone())
    }
}
