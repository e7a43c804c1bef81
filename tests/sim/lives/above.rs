//! The hubs at the top of a tree are lost and come back. They end at any moment, and then the jobs below them end, too.
//! The sessions of all machines wait, and join again when the hubs continue from their last file.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::sim::Net;
use membership::{End, Event, Limits, Member, Step};
use pbox_core::{Restored, Round};
use sim_tests::control::Stopping;
use sim_tests::counts::count;
use sim_tests::levels::Levels;
use sim_tests::simulated::EarlierLife;

use super::ledger::Ledger;
use super::tree::{ABANDONED, Tree};

/// The longest time that a session waits for a hub.
const LIMIT: Duration = Duration::from_secs(60);

impl Tree {
    /// Kills the hubs at the top. `have_begun` says that all workers have got weights since the job last began. If it
    /// is false, the rounds that were noted at the previous loss are still right.
    pub fn hubs_above_die(&mut self, have_begun: bool) {
        if have_begun {
            self.note_reached();
        }
        count("hubs above lost", 1);
        self.job.nodes[0].control.dies();
        self.job.kill_hub(0);
    }

    /// Ends the hubs at the top: kills them, or stops them cleanly.
    pub fn hubs_above_end(&mut self) {
        if self.dice.below(2) == 0 {
            return self.hubs_above_die(true);
        }
        let limit = Duration::from_millis(self.dice.from(100..=8000));
        self.job.nodes[0].control.begins_to_stop(limit);
        if let Ledger::Alone(alone) = &mut self.ledger {
            alone.may_end = true;
        }
        count("stops in order", 1);
        let have_stopped = |tree: &mut Tree| {
            let may_be_late = tree.dice.below(500) == 0;
            let root = &mut tree.job.nodes[0].control;
            if may_be_late && root.stopping.state == Stopping::Saves {
                root.stop_takes_too_long(|_| true);
            }
            let has_failed = root.failed.is_some();
            (0..tree.job.workers.len()).for_each(|worker| tree.relink(worker));
            (1..tree.job.nodes.len()).for_each(|hub| tree.relink_hub(hub));
            has_failed
        };
        self.until(have_stopped, u32::MAX);
        self.note_reached();
        let saved = self.job.nodes[0].control.stopping.state == Stopping::Saved(true);
        count("jobs saved at a stop", usize::from(saved));
        self.job.kill_hub(0);
    }

    /// Kills a machine with its hub, in a job that then stops. The job may come back later.
    pub fn machine_dies(&mut self, hub: usize) {
        self.job.kill_machine(hub);
        self.forget();
        self.note_reached();
        count("machines lost, and the job with them", 1);
    }

    /// Notes the round that each living worker has reached.
    fn note_reached(&mut self) {
        let is_there = |worker: &usize| self.takes_part(*worker) || self.unlinked.contains(worker);
        let round = |worker: usize| {
            self.keys().map(|key| self.job.workers[worker].exchange.round(key)).min().expect("a key")
        };
        let workers = 0..self.job.workers.len();
        self.reached = workers.map(|worker| is_there(&worker).then(|| round(worker))).collect();
    }

    /// Runs the jobs below to their end. Asserts that each job ends because a hub is lost, so that the job's sessions
    /// wait.
    pub fn end(&mut self) {
        let are_below =
            |tree: &Tree, hub: usize| tree.job.above(hub) == Some(0) && tree.job.is_hub_alive(hub);
        let below = Vec::from_iter((1..self.job.nodes.len()).filter(|&hub| are_below(self, hub)));
        let have_workers = if self.terms.mesh { BTreeSet::new() } else { self.with_workers() };
        if self.terms.mesh {
            // In a mesh each machine's hub is one of the hubs above, so its process is gone.
            (1..self.job.nodes.len()).for_each(|hub| self.job.kill_machine(hub));
        }
        let unlinked = std::mem::take(&mut self.unlinked_hubs);
        unlinked.into_iter().filter(|hub| below.contains(hub)).for_each(|hub| self.job.gives_up_above(hub));
        for _ in 0..20_000 {
            if (0..self.job.nodes.len()).all(|hub| !self.job.is_hub_alive(hub)) {
                break;
            }
            // A worker whose hub is gone notices that its links are closed.
            if let Err(error) = self.job.step() {
                let gone = |worker: &usize| self.job.is_alive(*worker) && !self.job.has_hub(*worker);
                let gone = Vec::from_iter((0..self.job.workers.len()).filter(gone));
                assert!(!gone.is_empty(), "{error}");
                gone.into_iter().for_each(|worker| self.job.kill(worker));
            }
        }
        let end = self.job.nodes[0].control.failure().map(|(_, end)| end);
        assert_eq!(end, Some(End::HubLost), "the hub above: {:?}", self.job.nodes[0].control.failed);
        // If the last worker of a hub is gone, the hub may end because of that, instead of the loss of a hub.
        for hub in below.into_iter().filter(|hub| have_workers.contains(hub)) {
            let control = &self.job.nodes[hub].control;
            let end = control.failure().map(|(_, end)| end);
            let is_abandoned = control.failed.as_ref().is_some_and(|why| why.contains(ABANDONED));
            let is_right = is_abandoned || end == Some(End::HubLost);
            assert!(is_right, "hub {hub} ends with those above: {:?}", control.failed);
        }
        check_that_sessions_wait();
    }

    /// Brings back all hubs and all workers. The hubs above continue from their last file.
    pub fn come_back(&mut self) {
        let floor = self.job.nodes[0].control.files.whole;
        let (restored, files, is_damaged) = self.disks.restore(&mut self.dice);
        let restored = restored.map(Arc::new);
        let from = restored.as_deref().map(Restored::round);
        let is_lower = |floor| from < Some(floor) && !is_damaged;
        assert!(!floor.is_some_and(is_lower), "goes on from {from:?}, and {floor:?} was written");
        let is_saved = self.job.nodes[0].control.stopping.state == Stopping::Saved(true) && !is_damaged;
        let are_together = matches!(self.ledger, Ledger::Together(_));
        let furthest = self.reached.iter().flatten().max().copied();
        assert!(
            !(is_saved && are_together) || furthest <= from,
            "the stop lost rounds {from:?} to {furthest:?}"
        );
        count("gone on from a file", usize::from(from.is_some()));
        self.ledger.begin_again(restored.as_deref());
        (self.terms.earlier, self.terms.late) = (
            Some(EarlierLife { restored, is_brought: false, files, reached: self.reached.clone() }),
            Some(self.dice.below(u64::MAX)),
        );
        let net = Net::new(self.dice.below(u64::MAX), self.faults.clone());
        self.job = Levels::new(net, &self.layout, self.terms.clone(), &self.shape).unwrap();
        self.read = 0;
        self.unlinked.clear();
        self.unlinked_hubs.clear();
    }

    /// Checks that the members of all hubs learn the number of lost rounds.
    pub fn check_lost(&self) {
        let Some(EarlierLife { restored, .. }) = &self.terms.earlier else { return };
        let of_machine = |rank: usize| {
            let is_of = |&worker: &usize| self.job.rank_above(self.job.workers[worker].node) == rank;
            (0..self.job.workers.len()).filter(is_of).filter_map(|worker| self.reached[worker]).max()
        };
        let first = restored.as_ref().map_or(Round(0), |restored| restored.round());
        let steps_alone = matches!(self.ledger, Ledger::Alone(_));
        let furthest = match steps_alone && restored.is_some() {
            true => (0..self.shape.len()).filter_map(of_machine).min(),
            false => self.reached.iter().flatten().copied().max(),
        };
        let lost = furthest.map_or(0, |furthest| furthest.0.saturating_sub(first.0));
        for (hub, node) in self.job.nodes.iter().enumerate() {
            // If machines step alone, only hub 0 is checked: if the job then begins from zero, each machine knows only
            // its own lost rounds.
            if hub == 0 || !steps_alone {
                assert_eq!(node.control.last_news().lost, lost, "rounds are lost, hub {hub} says");
            }
        }
    }
}

/// Checks that a session joins again if its job has ended because a hub is lost.
fn check_that_sessions_wait() {
    let mut session = Member::linked(Limits { hubs: 1, links: LIMIT, hub: LIMIT });
    let mut does = |event| session.handle(event, Instant::now());
    assert_eq!(does(Event::LinkEnded { may_relink: false }), Some(Step::Explain(None)));
    assert_eq!(does(Event::Ended(End::HubLost)), Some(Step::TellLoss));
    let mut next = does(Event::Told);
    if let Some(Step::Wait(_)) = next {
        next = does(Event::TimePassed);
    }
    assert!(matches!(next, Some(Step::Join(_))), "{next:?}");
    assert_eq!(does(Event::TakesPart), Some(Step::CatchUp));
}
