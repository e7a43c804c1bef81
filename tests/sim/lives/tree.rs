//! A life of a tree of hubs, or of a mesh. Workers and hubs below are lost, lose their links and come back,
//! at any moment, also before they take part again. The hubs at the top take snapshots, and may also be
//! [lost](super::above).
//!
//! All workers push the same number, as in [`Life`](super::life::Life). A hub sends a sum up together with the number
//! of its gradients, so the mean is the pushed number for any set of workers. Machines that step alone (SSP, ASP) push
//! ones in their own elements.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use coordinator::Use;
use fabric::sim::{Faults, Net};
use pbox_core::{
    Consistency, JobTerms, Key, KeyId, Layout, LevelTerms, Members, Notice, OnLoss, Round, Schedule,
    Selection, Tensor,
};
use sim_tests::counts::count;
use sim_tests::levels::{Levels, Shape, Terms};
use sim_tests::race::SGD;
use sim_tests::trouble::Dice;

use super::disks::Disks;
use super::ledger::{Ledger, Together};
use super::life::BY_KEY;

/// The number of steps in which events may happen.
const STEPS: u32 = 300;
/// Codecs that keep the pushed numbers and their sums exactly.
const LOSSLESS: [&str; 3] = ["f16", "bf16", "topk:1"];
/// A part of the error of a hub that has sent a round up and has no worker left who could push the round.
pub const ABANDONED: &str = "was the last worker that could push";
/// A time that no life reaches.
const FOR_EVER: Duration = Duration::from_secs(1_000_000);
/// The largest difference between the rounds of a worker's keys.
const AHEAD: u32 = 3;

/// A tree of hubs, and the values that the test expects.
pub struct Tree {
    pub dice: Dice,
    pub layout: Arc<Layout>,
    pub shape: Vec<Shape>,
    pub terms: Terms,
    pub faults: Faults,
    pub job: Levels,
    pub ledger: Ledger,
    /// The disks of the hubs at the top. These hubs count as one hub.
    pub disks: Disks,
    /// The round that each worker had reached when the hubs above were lost.
    pub reached: Vec<Option<Round>>,
    /// Whether the hubs at the top may be lost.
    pub may_fall: bool,
    /// The workers that have lost their links and are making new ones.
    pub unlinked: BTreeSet<usize>,
    /// The hubs that have lost their links and are making new ones.
    pub unlinked_hubs: BTreeSet<usize>,
    /// The number of notices that were read.
    pub read: usize,
}

/// Draws the shape of a tree with two or three levels.
fn shape(dice: &mut Dice) -> Vec<Shape> {
    let machine = |dice: &mut Dice| Shape::Hub(vec![Shape::Worker; dice.from(1..=3) as usize]);
    let rack = |dice: &mut Dice| (0..dice.from(1..=3)).map(|_| machine(dice)).collect::<Vec<_>>();
    match dice.below(3) {
        0 => (0..2).map(|_| Shape::Hub(rack(dice))).collect(),
        _ => rack(dice),
    }
}

/// Draws the terms at the top.
fn above(layout: &Layout, machines: u32, dice: &mut Dice) -> JobTerms {
    let job = JobTerms { hubs: dice.from(1..=3) as u32, ..JobTerms::new(machines, Vec::new(), SGD) };
    let consistency = match dice.below(8) {
        0 => Consistency::Asp,
        1 | 2 => Consistency::Ssp { staleness: dice.below(4) as u32 },
        _ => Consistency::Bsp,
    };
    let codec = LOSSLESS[dice.below(3) as usize].parse().unwrap();
    let compression = (dice.below(3) == 0).then_some(codec);
    let waits_for_norm = dice.below(2) == 0;
    let clip_norm = waits_for_norm.then(|| Together::bound(layout, compression.is_some(), dice));
    let skip_nonfinite = dice.below(2) == 0;
    let may_wait = consistency == Consistency::Bsp && !waits_for_norm && !skip_nonfinite;
    JobTerms {
        optimizer: if may_wait && dice.below(2) == 0 { BY_KEY } else { SGD },
        on_loss: if dice.below(6) == 0 { OnLoss::Stop } else { OnLoss::Continue },
        keys: layout.keys().to_vec(),
        level: LevelTerms { consistency, compression, members: Members::Hubs, ..job.level },
        clip_norm,
        skip_nonfinite,
        ..job
    }
}

/// Replaces terms that the hubs refuse in combination. The error must name each of these terms. Returns
/// whether any term was replaced.
fn leave_out_refused(job: &mut JobTerms, is_deep: bool) -> bool {
    let mut are_refused = false;
    loop {
        let below = JobTerms { hubs: 1, ..job.clone() }; // the terms of a hub between two levels
        let why = match (job.check(), below.check_below()) {
            (Err(why), _) => why.to_string(),
            (Ok(()), Err(why)) if is_deep => why.to_string(),
            (Ok(()), _) => return are_refused,
        };
        are_refused = true;
        let (steps_alone, level) = (job.level.consistency.steps_alone(), &mut job.level);
        match why {
            why if why.contains("from hubs below") && why.contains("consistency") => {
                assert!(is_deep && steps_alone, "{why}");
                level.consistency = Consistency::Bsp;
            }
            why if why.contains("from hubs below") && why.contains("codec") => {
                assert!(is_deep && level.compression.is_some(), "{why}");
                level.compression = None;
            }
            why if why.contains("consistency") && why.contains("clip_norm") => {
                assert!(steps_alone && job.clip_norm.take().is_some(), "{why}");
            }
            why => {
                assert!(job.skip_nonfinite && why.contains("skip_nonfinite"), "{why}");
                assert!(steps_alone || why.contains("the codec topk"), "{why}");
                job.skip_nonfinite = false;
            }
        }
    }
}

impl Tree {
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let keys = (0..dice.from(1..=4))
            .map(|key| Key { wd_mult: 0.0, ..Key::f32(format!("{key}"), [1 + 40 * dice.below(3)]) });
        let layout = Arc::new(Layout::new(keys.collect(), 64).unwrap());
        let shape = shape(&mut dice);
        let is_deep = shape.iter().any(|below| matches!(below, Shape::Hub(of) if of[0] != Shape::Worker));
        let mut job = above(&layout, shape.len() as u32, &mut dice);
        count("refused by name", usize::from(leave_out_refused(&mut job, is_deep)));
        // Hubs do not pull.
        let schedules = Vec::from_iter(Schedule::ALL.into_iter().filter(|schedule| !schedule.pulls()));
        let mut level = |of: LevelTerms| LevelTerms {
            schedule: schedules[dice.below(schedules.len() as u64) as usize],
            slice_bytes: Some(dice.from(0..=512) as usize),
            ..of
        };
        let levels = vec![level(job.level), level(LevelTerms::default()), level(LevelTerms::default())];
        let cores = (0..dice.from(1..=4)).map(|_| dice.from(1..=2) as usize).collect();
        // In a job with norms the network must keep the order of messages, because a core sends its part of the norm
        // before its answers.
        let reorder = dice.below(2) == 0 && !job.finds_norms();
        let faults = Faults { delay: 0..dice.from(1..=20), reorder, ..Faults::NONE };
        let ledger = Ledger::new(&layout, &job);
        count("coded", usize::from(job.level.compression.is_some()));
        count("steps wait for the norm", usize::from(job.waits_for_all()));
        count("steps wait for their key", usize::from(job.optimizer.adapts_keys()));
        count("scaled", usize::from(matches!(&ledger, Ledger::Together(of) if of.scales())));
        count("machines step alone", usize::from(job.level.consistency.steps_alone()));
        let mesh = !is_deep && dice.below(3) == 0;
        let (late, earlier) = (Some(seed), None);
        let terms = Terms { job, levels, cores, worker_credit: None, mesh, is_orderly: false, late, earlier };
        if std::env::var_os("PHUB_SIM_SEED").is_some() {
            eprintln!("{shape:?}, {terms:?}");
        }
        let job = Levels::new(Net::new(seed, faults.clone()), &layout, terms.clone(), &shape).unwrap();
        let disks = Disks::new(&layout, job.placement(), (1, job.placement().cores()), terms.job.optimizer);
        let (unlinked, unlinked_hubs, reached) = Default::default();
        Tree {
            dice,
            layout,
            shape,
            terms,
            faults,
            job,
            ledger,
            disks,
            reached,
            may_fall: false,
            unlinked,
            unlinked_hubs,
            read: 0,
        }
    }

    /// Runs the tree until nothing more happens and all workers and hubs are back.
    pub fn live(mut self) {
        for falls_one_in in [2, 3, 0] {
            self.may_fall = falls_one_in > 0 && self.dice.below(falls_one_in) == 0;
            if self.begin() && self.happen() {
                self.finish();
                break;
            }
            self.end();
            self.come_back();
        }
    }

    /// Runs until all workers take part and have weights, or until the hubs at the top are lost again. Returns whether
    /// the hubs at the top are alive.
    fn begin(&mut self) -> bool {
        let are_lost_again = self.may_fall && self.dice.below(3) == 0;
        let falls = |tree: &mut Tree| {
            if are_lost_again && tree.dice.below(50) == 0 {
                tree.hubs_above_die(false);
                count("hubs above lost again before all had weights", 1);
            }
            !tree.job.is_hub_alive(0)
        };
        let take_part = |tree: &Tree| (0..tree.job.workers.len()).all(|worker| tree.takes_part(worker));
        self.until(|tree| falls(tree) || take_part(tree), 0);
        if self.job.is_hub_alive(0) {
            self.check_lost();
            let first = self.rounds().max().unwrap();
            self.until(|tree| falls(tree) || tree.rounds().all(|round| round > first), first);
        }
        self.job.is_hub_alive(0)
    }

    /// Makes events at random. Returns whether the hubs at the top are alive.
    fn happen(&mut self) -> bool {
        for _ in 0..STEPS {
            match self.dice.below(30) {
                0 => {
                    let selections = [Selection::All, Selection::One(Tensor::Weights)];
                    let clients = selections.map(Use::Client);
                    let purpose = [Use::File, clients[0], clients[1]][self.dice.below(3) as usize];
                    self.job.nodes[0].control.want(purpose, FOR_EVER);
                }
                1..4 => self.happens_to_worker(),
                4..6 => {
                    self.happens_to_hub();
                    if self.is_falling() {
                        return false;
                    }
                }
                6 if self.may_fall && self.dice.below(5) == 0 => {
                    self.hubs_above_end();
                    return false;
                }
                7 => self.changes_rate(),
                8 => self.reorder_keys(),
                9 => self.drains(),
                _ => {}
            }
            self.step(u32::MAX);
        }
        true
    }

    /// Lets a worker change the learning rate from a round on that no worker has pushed.
    fn changes_rate(&mut self) {
        let (furthest, worker) = (self.rounds().max().unwrap(), self.any_worker());
        let Ledger::Together(together) = &mut self.ledger else { return };
        if !self.job.has_hub(worker) {
            return;
        }
        let rate = [0.5, 1.0, 2.0][self.dice.below(3) as usize];
        let from = Round(furthest + AHEAD + 2 + self.dice.below(3) as u32);
        together.change_rate(rate, from);
        self.job.change_rate(worker, rate, from);
        count("rates changed", 1);
    }

    /// Lets a worker send its keys in another order.
    fn reorder_keys(&mut self) {
        let (worker, first) = (self.any_worker(), self.dice.below(self.layout.keys().len() as u64) as usize);
        let mut order = Vec::from_iter(self.keys());
        order.rotate_left(first);
        self.job.workers[worker].exchange.need(&order).unwrap();
        count("orders of keys", usize::from(!self.job.workers[worker].exchange.priorities().is_empty()));
    }

    /// Lets a hub refuse new jobs. The job that it has continues.
    fn drains(&mut self) {
        let hub = self.dice.below(self.job.nodes.len() as u64) as usize;
        if self.job.is_hub_alive(hub) {
            self.job.nodes[hub].control.drains();
            count("hubs drained", 1);
        }
    }

    fn any_worker(&mut self) -> usize {
        self.dice.below(self.job.workers.len() as u64) as usize
    }

    fn goes_on(&self) -> bool {
        self.terms.job.on_loss == OnLoss::Continue
    }

    /// Whether a hub has died in a job that then stops.
    fn is_falling(&self) -> bool {
        !self.goes_on() && (0..self.job.nodes.len()).any(|hub| !self.job.is_hub_alive(hub))
    }

    /// Brings all workers and hubs back, and makes some more rounds.
    fn finish(&mut self) {
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
    }

    pub fn keys(&self) -> impl Iterator<Item = KeyId> + use<> {
        (0..self.layout.keys().len() as u32).map(KeyId)
    }

    fn rounds(&self) -> impl Iterator<Item = u32> {
        self.job.workers.iter().flat_map(|worker| self.keys().map(|key| worker.exchange.round(key).0))
    }

    pub fn takes_part(&self, worker: usize) -> bool {
        self.job.is_alive(worker) && self.job.first_round(worker).is_some()
    }

    /// Returns the hubs with a worker below them that takes part. The worker does not count for the hubs above a hub that
    /// has ended because nobody could push its round: the worker takes part only until it is notified.
    pub fn with_workers(&self) -> BTreeSet<usize> {
        let workers = (0..self.job.workers.len()).filter(|&worker| self.takes_part(worker));
        let of_worker = |worker: usize| {
            let next = |&hub: &usize| self.job.above(hub).filter(|_| !self.is_abandoned(hub));
            std::iter::successors(Some(self.job.workers[worker].node), next)
        };
        workers.flat_map(of_worker).collect()
    }

    /// Whether a hub has ended because no worker was left who could push a round that the hub had already sent up.
    fn is_abandoned(&self, hub: usize) -> bool {
        self.job.nodes[hub].control.failed.as_ref().is_some_and(|why| why.contains(ABANDONED))
    }

    /// Checks the end of a hub. If a worker below takes part, there are two allowed causes. The hub above has ended,
    /// or no worker is left who could push a round that this hub has already sent up.
    fn check_end(&mut self, hub: usize) {
        let why = self.job.nodes[hub].control.failed.as_deref().unwrap_or_default();
        let is_abandoned = self.is_abandoned(hub);
        let above_lives = self.job.above(hub).is_some_and(|above| self.job.is_hub_alive(above));
        assert!(is_abandoned || !above_lives, "hub {hub} ends, and a worker below takes part: {why:?}");
        count("hubs whose round nobody could push", usize::from(is_abandoned));
    }

    /// Whether a machine takes part at the hubs at the top. The machine may lack links for some time.
    fn machine_lives(job: &Levels, rank: u32) -> bool {
        let is_of_rank = |hub: &usize| job.above(*hub) == Some(0) && job.rank_above(*hub) == rank as usize;
        let hub = (1..job.nodes.len()).find(is_of_rank).expect("a machine has a hub");
        job.is_hub_alive(hub) && job.nodes[0].control.job().members.takes_part(rank)
    }

    /// Notes which machines that step alone have begun to take part since the last call, and which no longer take
    /// part.
    pub fn look_at_machines(&mut self) {
        let Tree { job, ledger: Ledger::Alone(alone), shape, .. } = self else { return };
        for rank in 0..shape.len() as u32 {
            match (alone.takes_part(rank), Self::machine_lives(job, rank)) {
                (false, true) => {
                    let first = job.nodes[0].control.first_round(rank);
                    alone.begins(rank, first.expect("it takes part"));
                }
                (true, false) => alone.ends(rank, job),
                _ => {}
            }
        }
    }

    /// Whether a worker or a hub must stay, so that the job continues. Worker 0 and the hubs above it must stay. In a mesh, a
    /// worker of each machine must stay.
    fn stays(&self, worker: usize) -> bool {
        worker == 0 || self.terms.mesh && self.job.workers[worker].rank == 0
    }

    fn happens_to_worker(&mut self) {
        let worker = self.any_worker();
        match self.dice.below(3) {
            0 if self.takes_part(worker) => {
                self.job.unlink(worker);
                self.unlinked.insert(worker);
                count("workers without links", 1);
            }
            1 if self.goes_on()
                && !self.stays(worker)
                && (self.job.is_alive(worker) || self.unlinked.contains(&worker)) =>
            {
                self.job.kill(worker);
                self.unlinked.remove(&worker);
                count("workers lost", 1);
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
            1 if self.job.is_hub_alive(hub) && self.job.has_workers(hub) && !self.terms.mesh => {
                if !self.goes_on() {
                    if self.may_fall {
                        self.machine_dies(hub);
                    }
                } else if self.job.workers[0].node != hub {
                    self.job.kill_machine(hub);
                    self.forget();
                    count("hubs lost", 1);
                }
            }
            _ => self.mend_hub(hub),
        }
    }

    /// Ends the links of all hubs at once, so that the parts of the norm that hubs have passed on are lost.
    fn loses_network(&mut self) {
        let linked = (1..self.job.nodes.len()).filter(|&hub| self.is_linked_above(hub));
        linked.collect::<Vec<_>>().into_iter().for_each(|hub| self.loses_links(hub));
        count("all hubs without links", 1);
    }

    fn loses_links(&mut self, hub: usize) {
        let turns = self.dice.below(4);
        self.job.unlink_hub(hub, turns);
        self.unlinked_hubs.insert(hub);
        count("hubs without links", 1);
    }

    /// Whether a hub takes part at the hub above, and has its links.
    fn is_linked_above(&self, hub: usize) -> bool {
        let Some(above) = self.job.above(hub) else { return false };
        let rank = self.job.rank_above(hub) as u32;
        let lives = self.job.is_hub_alive(hub) && self.job.is_hub_alive(above);
        lives
            && !self.unlinked_hubs.contains(&hub)
            && self.job.nodes[above].control.job().members.takes_part(rank)
    }

    /// Forgets workers and hubs that are gone, so that they make no links any more.
    pub fn forget(&mut self) {
        let Tree { job, unlinked, unlinked_hubs, .. } = self;
        unlinked.retain(|&worker| job.is_hub_alive(job.workers[worker].node));
        unlinked_hubs.retain(|&hub| job.is_hub_alive(hub));
    }

    /// Makes new links for a worker, or brings the worker back, if that is possible.
    fn mend(&mut self, worker: usize) {
        if self.unlinked.contains(&worker) {
            self.relink(worker);
        } else if !self.job.is_alive(worker) && self.job.come_back(worker).unwrap() {
            count("workers back", 1);
        }
    }

    /// Makes new links for a worker that has lost its links, if that is possible.
    pub fn relink(&mut self, worker: usize) {
        if self.unlinked.contains(&worker) && self.job.relink(worker).unwrap() {
            self.unlinked.remove(&worker);
        }
    }

    /// Makes new links for a hub that has lost its links, if that is possible.
    pub fn relink_hub(&mut self, hub: usize) {
        if self.unlinked_hubs.contains(&hub) && self.job.relink_hub(hub).unwrap() {
            self.unlinked_hubs.remove(&hub);
        }
    }

    /// Makes new links for a hub, or brings the hub back, if that is possible.
    fn mend_hub(&mut self, hub: usize) {
        if self.unlinked_hubs.contains(&hub) {
            self.relink_hub(hub);
        } else if !self.job.is_hub_alive(hub) && self.job.hub_comes_back(hub).unwrap() {
            count("hubs back", 1);
        }
    }

    /// Pushes all keys that workers can push, and lets all workers and hubs work once.
    fn step(&mut self, until: u32) {
        for worker in
            (0..self.job.workers.len()).filter(|&worker| self.takes_part(worker)).collect::<Vec<_>>()
        {
            let slowest =
                self.keys().map(|key| self.job.workers[worker].exchange.round(key).0).min().unwrap();
            let rank = self.job.rank_above(self.job.workers[worker].node) as u32;
            for key in self.keys() {
                let exchange = &mut self.job.workers[worker].exchange;
                let round = exchange.round(key).0;
                if exchange.is_ready(key) && round <= until.min(slowest + AHEAD) && self.dice.below(2) == 0 {
                    for (element, value) in exchange.gradient_mut::<f32>(key).unwrap().iter_mut().enumerate()
                    {
                        *value = self.ledger.pushed(rank, round, element);
                    }
                    exchange.push(key).unwrap();
                }
            }
        }
        let with_workers = self.with_workers();
        self.job.step().unwrap();
        // In one step, a hub may be abandoned and the hub above it may then end.
        for hub in with_workers.intersection(&self.with_workers()).copied().collect::<Vec<_>>() {
            if !self.job.is_hub_alive(hub) {
                self.check_end(hub);
            }
        }
        self.forget();
        self.look_at_machines();
        self.read_notices();
        let (root, dice) = (&mut self.job.nodes[0].control, &mut self.dice);
        if root.has_file() && dice.below(4) == 0 {
            let numbers = root.job().numbers.clone();
            root.write(|occasion, before, whole| {
                self.disks.write((0, occasion), (before, &numbers), whole, dice)
            });
        }
        if dice.below(8) == 0 {
            root.end_read();
        }
        assert!(root.failed.is_none() || root.is_closed(), "the job fails: {:?}", root.failed);
        for worker in 0..self.job.workers.len() {
            if self.takes_part(worker) {
                let rank = self.job.rank_above(self.job.workers[worker].node) as u32;
                let Tree { job, ledger, .. } = self;
                ledger.check((rank, worker), job, |rank| Self::machine_lives(job, rank));
            }
        }
    }

    fn read_notices(&mut self) {
        let Tree { job, ledger, disks, .. } = self;
        for (node, notice) in &job.notices[self.read..] {
            match notice {
                Notice::Snapshot { taken, .. } => {
                    if let Ok(part) = &taken.part {
                        ledger.check_part(part, taken.before, job, |rank| Self::machine_lives(job, rank));
                        disks.take(part, taken.occasion);
                        count("snapshots", 1);
                    }
                }
                Notice::Skipped { chunk, rounds, .. } if *node == 0 => match ledger {
                    Ledger::Together(together) => together.skip(*chunk, rounds.clone()),
                    Ledger::Alone(_) => panic!("no machine that steps alone leaves rounds out: {notice:?}"),
                },
                Notice::WorkerGone { by_itself: true, .. } | Notice::AboveGone { .. } => {}
                // The hub at the top has stopped cleanly.
                Notice::JobFailed { .. } | Notice::WorkerGone { .. } if !job.is_hub_alive(0) => {}
                // The end of the run checks whether the job may end like this.
                Notice::JobFailed { .. } if *node > 0 => {}
                notice => panic!("hub {node}: {notice:?}"),
            }
        }
        self.read = job.notices.len();
    }

    /// Makes steps until `is_so` returns true, which must happen after a limited number of steps.
    pub fn until(&mut self, mut is_so: impl FnMut(&mut Tree) -> bool, last: u32) {
        for _ in 0..20_000 {
            if is_so(self) {
                return;
            }
            self.step(last);
        }
        panic!("nothing comes of it: {:?}, {:?}", self.unlinked, self.unlinked_hubs);
    }
}
