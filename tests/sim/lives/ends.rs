//! The end of a job, the return of a job, and joins that are refused.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use membership::{End, Event, Failure, Step};
use sim_tests::control::{Control, Harm};
use sim_tests::counts::count;
use sim_tests::simulated::{EarlierLife, JOB};

use super::ledger::Ledger;
use super::life::{Life, Stage, WORKERS, simulated};

impl Life {
    /// Ends a job that has failed at a hub. Checks that all members are notified, and that nothing is left of
    /// the job.
    pub fn end(&mut self) {
        if self.dice.below(3) == 0 {
            self.job.hubs.messages.gives_up_one_in = Some(3 + self.dice.below(30));
        }
        let is_over = |life: &mut Life| {
            life.tell_hubs();
            match life.dice.below(400) {
                0 => life.waits_for_last_state(),
                1 if life.any_hub().saves_last() => life.any_hub().dies(),
                _ => {}
            }
            let waits = |stage: &Stage| matches!(stage, Stage::Dead | Stage::HubLost);
            life.job.hubs.has_failed().1 && !life.job.is_busy() && life.stages.iter().all(waits)
        };
        self.until(is_over, 0);
        for (place, core) in self.job.cores.iter_mut().enumerate() {
            assert_eq!(core.links(JOB).count(), 0, "core {place} has links");
            assert!(core.hold(JOB).is_none(), "core {place} has chunks");
        }
        for hub in &mut self.job.hubs.hubs {
            assert!(hub.failure().is_some(), "members hear nothing: {:?}", hub.last_news());
            (0..WORKERS).for_each(|rank| hub.answers(rank));
            assert!(!hub.has_unnotified(), "the hub waits until its members hear that it stops");
            hub.forget();
        }
        self.check_last_state();
        count("jobs failed", 1);
    }

    /// Lets much time pass if a hub waits for a decision about the last state, and no message or command is in flight.
    /// In this case a hub, a disk or a request must have failed.
    fn waits_for_last_state(&mut self) {
        if self.job.hubs.only_waits() && self.job.hubs.hubs.iter().any(Control::saves_last) {
            assert!(
                self.job.hubs.has_trouble_with_last(),
                "a hub waits for the last state, and nothing is lost"
            );
            self.job.hubs.hubs.iter_mut().for_each(Control::waits_long_for_lead);
        }
    }

    /// Checks that all hubs have saved the same last state, or that one hub could not save it.
    fn check_last_state(&mut self) {
        let hubs = &self.job.hubs.hubs;
        let written = BTreeSet::from_iter(hubs.iter().filter_map(|hub| hub.last.written));
        assert!(written.len() <= 1, "the hubs have saved states before {written:?}");
        let has_trouble = self.job.hubs.has_trouble_with_last();
        let is_saved = |hub: &Control| matches!(hub.last.over, Some(Ok(_)));
        self.is_last_saved = !has_trouble;
        assert!(
            has_trouble || hubs.iter().all(is_saved),
            "{:?}",
            Vec::from_iter(hubs.iter().map(|hub| &hub.last))
        );
        count(
            "last states of several hubs",
            usize::from(hubs.len() > 1 && !written.is_empty() && !has_trouble),
        );
    }

    /// Lets some workers notice that the job has failed at one hub. Each acts as its state machine says: it gives up,
    /// or it notifies the hubs that a hub is lost and waits to join again.
    fn tell_hubs(&mut self) {
        let failed = self.job.hubs.hubs.iter().find_map(|hub| hub.failure());
        let Some((reason, end)) = failed.map(|(reason, end)| (reason.to_owned(), end)) else { return };
        for rank in 0..WORKERS {
            let stage = self.stages[rank as usize];
            if matches!(stage, Stage::Dead | Stage::HubLost) || self.dice.below(8) > 0 {
                continue;
            }
            self.job.ends_for(rank, Harm::GivesUp);
            self.stages[rank as usize] = Stage::Dead;
            if !matches!(stage, Stage::TakesPart | Stage::Unlinked) {
                continue;
            }
            let told = match (self.came_back.contains(&rank), end) {
                (true, End::HubLost) => {
                    count("hubs lost again before workers had weights", 1);
                    self.does(rank, Event::Failed(Failure::HubLost))
                }
                (true, End::JobOver) => self.does(rank, Event::Failed(Failure::Permanent)),
                (false, _) => {
                    let explain = self.does(rank, Event::LinkEnded { may_relink: false });
                    assert_eq!(explain, Some(Step::Explain(None)));
                    self.does(rank, Event::Ended(end))
                }
            };
            assert_eq!(told == Some(Step::TellLoss), end == End::HubLost, "{told:?}");
            if told == Some(Step::TellLoss) {
                self.job.hubs.hubs.iter_mut().for_each(|hub| hub.loses_hub(rank, &reason));
                let mut next = self.does(rank, Event::Told);
                if let Some(Step::Wait(_)) = next {
                    next = self.does(rank, Event::TimePassed);
                }
                assert!(matches!(next, Some(Step::Join(_))), "{next:?}");
                self.stages[rank as usize] = Stage::HubLost;
            }
        }
    }

    fn does(&mut self, rank: u32, event: Event) -> Option<Step> {
        self.machines[rank as usize].handle(event, Instant::now())
    }

    /// Checks that workers that have come back have the weights.
    pub fn go_on(&mut self) {
        for rank in std::mem::take(&mut self.came_back) {
            assert_eq!(self.does(rank, Event::CaughtUp), Some(Step::GoOn));
        }
    }

    /// Restarts the hubs from the last round that is on all disks. The living workers join again, with the rounds that
    /// they have reached, and the dead workers as new workers.
    pub fn come_back(&mut self) {
        self.floor = self.floor.max(self.job.hubs.lead().files.whole);
        let (restored, files, is_damaged) = self.disks.restore(&mut self.dice);
        let is_last_saved =
            self.is_last_saved && (self.terms.job.hubs == 1 || matches!(self.ledger, Ledger::Together(_)));
        let is_all_saved = (self.was_saved_at_stop() || is_last_saved) && !is_damaged;
        let restored = restored.map(Arc::new);
        // Rank 0 brings the state if the hubs have lost all their files.
        let is_brought = restored.is_some() && self.dice.below(4) == 0;
        let files = if is_brought { self.disks.lose_all() } else { files };
        count("states brought", usize::from(is_brought));
        let from = restored.as_ref().map(|restored| restored.round());
        assert!(is_damaged || from >= self.floor, "goes on from {from:?}, and {:?} was written", self.floor);
        (self.floor, self.said) = if is_brought { (None, None) } else { (from, from) };
        let first = from.unwrap_or_default();
        self.ledger.begin_again(restored.as_deref());
        let reached = |rank: u32| {
            let worker = &self.job.workers[rank as usize];
            match self.stages[rank as usize] {
                // The worker has got no weights since it last came back, so its former value still counts.
                Stage::HubLost if self.came_back.contains(&rank) => self.reached[rank as usize],
                Stage::HubLost => self.keys().map(|key| worker.round(key)).min(),
                _ => None,
            }
        };
        let reached = Vec::from_iter((0..WORKERS).map(reached));
        self.reached.clone_from(&reached);
        self.came_back.clear();
        self.compared.fill(0);
        // Workers that step alone (SSP, ASP) keep the lead over the slowest worker that they had.
        let are_apart = matches!(self.ledger, Ledger::Alone(_)) && from.is_some();
        let known = || reached.iter().flatten();
        let furthest = if are_apart { known().min() } else { known().max() };
        let furthest = furthest.map_or(0, |reached| reached.0);
        // If workers step alone, the lowest round of all workers counts. The round of a dead worker is unknown and may
        // be the lowest. So nothing is checked if a worker is dead.
        let is_all_saved = is_all_saved && (!are_apart || reached.iter().all(Option::is_some));
        assert!(!is_all_saved || furthest <= first.0, "the stop lost rounds {} to {furthest}", first.0);
        count("jobs gone on from a checkpoint", usize::from(restored.is_some()));
        self.terms.earlier = Some(EarlierLife { restored, is_brought, files, reached });
        self.terms.late = Some(self.dice.below(u64::MAX));
        for rank in 0..WORKERS {
            match self.stages[rank as usize] {
                Stage::HubLost => {
                    assert_eq!(self.does(rank, Event::TakesPart), Some(Step::CatchUp));
                    self.came_back.push(rank);
                }
                _ => self.machines[rank as usize] = self.machine.clone(),
            }
        }
        self.job = simulated(&mut self.dice, &self.layout, &self.terms);
        (self.read, self.stages) = (0, vec![Stage::TakesPart; WORKERS as usize]);
        (0..WORKERS).for_each(|rank| self.ledger.begins(rank, &self.job));
        for hub in &self.job.hubs.hubs {
            assert_eq!(hub.last_news().lost, furthest.saturating_sub(first.0), "rounds are lost");
        }
    }

    /// Asks to join with a taken rank, or with terms that differ from the job's terms. The hubs refuse.
    pub fn refuses(&mut self) {
        let (rank, differs) = (self.dice.below(u64::from(WORKERS)) as u32, self.dice.below(3) == 0);
        let hubs = self.job.hubs.hubs.iter_mut();
        count("refusals", hubs.map(|hub| usize::from(hub.refuses(rank, differs))).sum::<usize>());
    }
}
