//! A life of a tree of hubs, or of a mesh: workers and hubs below that are lost, lose their links and come back, at any moment, also
//! before they take part again; and snapshots of the hub above all.
//!
//! All push the same number, as in [`Life`](super::life::Life): a machine's sum goes up with its count, so that the mean is that number,
//! whoever takes part.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use coordinator::Use;
use fabric::sim::{Faults, Net};
use pbox_core::{JobTerms, Key, KeyId, Layout, LevelTerms, Notice, OnLoss, Schedule};
use sim_tests::levels::{Levels, Shape, Terms};
use sim_tests::race::SGD;
use sim_tests::trouble::Dice;

use super::Counts;
use super::ledger::Together;

/// The number of steps in which something may happen.
const STEPS: u32 = 300;
/// Codecs that keep the numbers that are pushed here, and their sums.
const LOSSLESS: [&str; 3] = ["f16", "bf16", "topk:1"];
/// No life is as long.
const FOR_EVER: Duration = Duration::from_secs(1_000_000);
/// The most rounds that a worker's keys are apart.
const AHEAD: u32 = 3;

/// A tree, and what is known of it.
pub struct Tree {
    dice: Dice,
    layout: Arc<Layout>,
    job: Levels,
    ledger: Together,
    /// The workers that have lost their links, and make others.
    unlinked: BTreeSet<usize>,
    /// The hubs that have.
    unlinked_hubs: BTreeSet<usize>,
    is_mesh: bool,
    /// The notices that were read.
    read: usize,
    counts: Counts,
}

/// Returns two levels, or three.
fn shape(dice: &mut Dice) -> Vec<Shape> {
    let machine = |dice: &mut Dice| Shape::Hub(vec![Shape::Worker; dice.from(1..=3) as usize]);
    let rack = |dice: &mut Dice| (0..dice.from(1..=3)).map(|_| machine(dice)).collect::<Vec<_>>();
    match dice.below(3) {
        0 => (0..2).map(|_| Shape::Hub(rack(dice))).collect(),
        _ => rack(dice),
    }
}

impl Tree {
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let keys = (0..dice.from(1..=4)).map(|key| Key::f32(format!("{key}"), [1 + 40 * dice.below(3)]));
        let layout = Arc::new(Layout::new(keys.collect(), 64).unwrap());
        let shape = shape(&mut dice);
        let has_two = shape.iter().all(|below| matches!(below, Shape::Hub(of) if of[0] == Shape::Worker));
        let is_mesh = has_two && dice.below(3) == 0;
        let job = JobTerms { hubs: dice.from(1..=3) as u32, ..JobTerms::new(1, Vec::new(), SGD) };
        let job = JobTerms { on_loss: OnLoss::Continue, ..job };
        // Nobody pulls.
        let schedules = Vec::from_iter(Schedule::ALL.into_iter().filter(|schedule| !schedule.pulls()));
        let mut level = || LevelTerms {
            schedule: schedules[dice.below(schedules.len() as u64) as usize],
            slice_bytes: Some(dice.from(0..=512) as usize),
            ..LevelTerms::default()
        };
        let mut levels = vec![level(), level(), level()];
        let cores = (0..dice.from(1..=4)).map(|_| dice.from(1..=2) as usize).collect();
        let is_coded = has_two && dice.below(2) == 0;
        let codec = LOSSLESS[dice.below(3) as usize].parse().unwrap();
        levels[0].compression = is_coded.then_some(codec);
        let waits_for_norm = dice.below(2) == 0;
        let clip_norm = waits_for_norm.then(|| Together::bound(&layout, is_coded, &mut dice));
        let job = JobTerms { clip_norm, skip_nonfinite: dice.below(2) == 0, ..job };
        let terms = Terms {
            job,
            levels,
            cores,
            worker_credit: None,
            mesh: is_mesh,
            is_orderly: false,
            late: Some(seed),
        };
        // What a core tells comes before its answers.
        let reorder = dice.below(2) == 0 && !terms.job.waits_for_all();
        let faults = Faults { delay: 0..dice.from(1..=20), reorder, ..Faults::NONE };
        let (ledger, mut counts) = (Together::new(&layout, terms.job.clip_norm), Counts::default());
        counts.add("coded", usize::from(is_coded));
        counts.add("steps wait for the norm", usize::from(terms.job.waits_for_all()));
        let job = Levels::new(Net::new(seed, faults), &layout, terms, &shape).unwrap();
        counts.add("scaled", usize::from(ledger.scales()));
        let (unlinked, unlinked_hubs) = (BTreeSet::new(), BTreeSet::new());
        Tree { dice, layout, job, ledger, unlinked, unlinked_hubs, is_mesh, read: 0, counts }
    }

    /// Runs the tree until nothing more happens, and all come back.
    pub fn live(mut self) -> Counts {
        let first = |tree: &mut Tree| tree.rounds().all(|round| round > 0);
        self.until(first, 0);
        for _ in 0..STEPS {
            match self.dice.below(30) {
                0 => self.job.nodes[0].control.want(Use::File, FOR_EVER),
                1..4 => self.happens_to_worker(),
                4..6 => self.happens_to_hub(),
                _ => {}
            }
            self.step(u32::MAX);
        }
        let are_back = |tree: &mut Tree| {
            (0..tree.job.workers.len()).for_each(|worker| tree.mend(worker));
            (1..tree.job.nodes.len()).for_each(|hub| tree.mend_hub(hub));
            (0..tree.job.workers.len()).all(|worker| tree.takes_part(worker)) && tree.unlinked_hubs.is_empty()
        };
        self.until(are_back, u32::MAX);
        let last = self.rounds().max().unwrap() + 3;
        let is_done = |tree: &mut Tree| {
            tree.rounds().all(|round| round > last) && !tree.job.nodes[0].control.files.are_wanted()
        };
        self.until(is_done, last);
        self.counts
    }

    fn keys(&self) -> impl Iterator<Item = KeyId> + use<> {
        (0..self.layout.keys().len() as u32).map(KeyId)
    }

    fn rounds(&self) -> impl Iterator<Item = u32> {
        self.job.workers.iter().flat_map(|worker| self.keys().map(|key| worker.exchange.round(key).0))
    }

    fn takes_part(&self, worker: usize) -> bool {
        self.job.is_alive(worker) && self.job.first_round(worker).is_some()
    }

    /// Returns the hubs that have a worker below that takes part.
    fn with_workers(&self) -> BTreeSet<usize> {
        let workers = (0..self.job.workers.len()).filter(|&worker| self.takes_part(worker));
        let of_worker = |worker: usize| {
            std::iter::successors(Some(self.job.workers[worker].node), |&hub| self.job.above(hub))
        };
        workers.flat_map(of_worker).collect()
    }

    /// A hub ends while a worker below takes part only if nobody is left who could push a round that went up, or with the hub above.
    fn check_end(&mut self, hub: usize) {
        let why = self.job.nodes[hub].control.failed.as_deref().unwrap_or_default();
        let is_abandoned = why.contains("all are gone that could push");
        let above_lives = self.job.above(hub).is_some_and(|above| self.job.is_hub_alive(above));
        assert!(is_abandoned || !above_lives, "hub {hub} ends, and a worker below takes part: {why:?}");
        self.counts.add("hubs whose round nobody could push", usize::from(is_abandoned));
    }

    /// Whether a worker or a hub stays, so that the job goes on: worker 0, and the hubs above it; and in a mesh a worker of each machine.
    fn stays(&self, worker: usize) -> bool {
        worker == 0 || self.is_mesh && self.job.workers[worker].rank == 0
    }

    fn happens_to_worker(&mut self) {
        let worker = self.dice.below(self.job.workers.len() as u64) as usize;
        match self.dice.below(3) {
            0 if self.takes_part(worker) => {
                self.job.unlink(worker);
                self.unlinked.insert(worker);
                self.counts.add("workers without links", 1);
            }
            1 if !self.stays(worker) && (self.job.is_alive(worker) || self.unlinked.contains(&worker)) => {
                self.job.kill(worker);
                self.unlinked.remove(&worker);
                self.counts.add("workers lost", 1);
            }
            _ => self.mend(worker),
        }
    }

    fn happens_to_hub(&mut self) {
        let hub = self.dice.below(self.job.nodes.len() as u64) as usize;
        if hub == 0 {
            return self.loses_network();
        }
        match self.dice.below(3) {
            0 if self.is_linked_above(hub) => self.loses_links(hub),
            1 if self.job.is_hub_alive(hub) && self.job.has_workers(hub) && !self.is_mesh => {
                if self.job.workers[0].node != hub {
                    self.job.kill_machine(hub);
                    self.forget();
                    self.counts.add("hubs lost", 1);
                }
            }
            _ => self.mend_hub(hub),
        }
    }

    /// Loses the links of all hubs at once: what one of them has passed on helps no other.
    fn loses_network(&mut self) {
        let linked = (1..self.job.nodes.len()).filter(|&hub| self.is_linked_above(hub));
        linked.collect::<Vec<_>>().into_iter().for_each(|hub| self.loses_links(hub));
        self.counts.add("all hubs without links", 1);
    }

    fn loses_links(&mut self, hub: usize) {
        let turns = self.dice.below(4);
        self.job.unlink_hub(hub, turns);
        self.unlinked_hubs.insert(hub);
        self.counts.add("hubs without links", 1);
    }

    /// Whether a hub takes part at the hub above, by links that it has.
    fn is_linked_above(&self, hub: usize) -> bool {
        let Some(above) = self.job.above(hub) else { return false };
        let rank = self.job.rank_above(hub) as u32;
        let lives = self.job.is_hub_alive(hub) && self.job.is_hub_alive(above);
        lives
            && !self.unlinked_hubs.contains(&hub)
            && self.job.nodes[above].control.job().members.takes_part(rank)
    }

    /// Checks that workers and hubs that are gone make no links any more.
    fn forget(&mut self) {
        let Tree { job, unlinked, unlinked_hubs, .. } = self;
        unlinked.retain(|&worker| job.is_hub_alive(job.workers[worker].node));
        unlinked_hubs.retain(|&hub| job.is_hub_alive(hub));
    }

    /// Makes a worker's links again, or brings the worker back, if it can.
    fn mend(&mut self, worker: usize) {
        if self.unlinked.contains(&worker) {
            if self.job.relink(worker).unwrap() {
                self.unlinked.remove(&worker);
            }
        } else if !self.job.is_alive(worker) && self.job.come_back(worker).unwrap() {
            self.counts.add("workers back", 1);
        }
    }

    /// Makes a hub's links again, or brings the hub back, if it can.
    fn mend_hub(&mut self, hub: usize) {
        if self.unlinked_hubs.contains(&hub) {
            if self.job.relink_hub(hub).unwrap() {
                self.unlinked_hubs.remove(&hub);
            }
        } else if !self.job.is_hub_alive(hub) && self.job.hub_comes_back(hub).unwrap() {
            self.counts.add("hubs back", 1);
        }
    }

    /// Pushes what workers that take part can push, and lets everybody work once.
    fn step(&mut self, until: u32) {
        for worker in
            (0..self.job.workers.len()).filter(|&worker| self.takes_part(worker)).collect::<Vec<_>>()
        {
            let slowest =
                self.keys().map(|key| self.job.workers[worker].exchange.round(key).0).min().unwrap();
            for key in self.keys() {
                let exchange = &mut self.job.workers[worker].exchange;
                let round = exchange.round(key).0;
                if exchange.is_ready(key) && round <= until.min(slowest + AHEAD) && self.dice.below(2) == 0 {
                    exchange.gradient_mut::<f32>(key).unwrap().fill(self.ledger.pushed(round));
                    exchange.push(key).unwrap();
                }
            }
        }
        let with_workers = self.with_workers();
        self.job.step().unwrap();
        for hub in with_workers {
            if !self.job.is_hub_alive(hub) {
                self.check_end(hub);
            }
        }
        self.forget();
        self.read_notices();
        let root = &mut self.job.nodes[0].control;
        if root.has_file() && self.dice.below(4) == 0 {
            root.write(|_, _, _| Ok(Vec::new()));
        }
        assert!(root.failed.is_none(), "the job fails: {:?}", root.failed);
        for worker in 0..self.job.workers.len() {
            if self.takes_part(worker) {
                self.ledger.check(&self.job.workers[worker].exchange);
            }
        }
    }

    fn read_notices(&mut self) {
        for (node, notice) in &self.job.notices[self.read..] {
            match notice {
                Notice::Snapshot { taken, .. } => {
                    if let Ok(part) = &taken.part {
                        self.ledger.check_part(part, taken.before);
                        self.counts.add("snapshots", 1);
                    }
                }
                Notice::Skipped { chunk, rounds, .. } if *node == 0 => {
                    self.ledger.skip(*chunk, rounds.clone())
                }
                Notice::WorkerGone { by_itself: true, .. } | Notice::AboveGone { .. } => {}
                // Whether it may end like this is checked where it ends.
                Notice::JobFailed { .. } if *node > 0 => {}
                notice => panic!("hub {node}: {notice:?}"),
            }
        }
        self.read = self.job.notices.len();
    }

    /// Steps until something is so, which must be before long.
    fn until(&mut self, mut is_so: impl FnMut(&mut Tree) -> bool, last: u32) {
        for _ in 0..20_000 {
            if is_so(self) {
                return;
            }
            self.step(last);
        }
        panic!("nothing comes of it: {:?}, {:?}", self.unlinked, self.unlinked_hubs);
    }
}
