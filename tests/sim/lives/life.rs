//! A life of a job: events that happen to workers and hubs, and the weights that are expected after them.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use coordinator::Use;
use fabric::sim::{Faults, Net};
use membership::{Limits, Member};
use pbox_core::codec::Codec;
use pbox_core::{
    Compression, Consistency, Credit, Key, KeyId, Layout, Look, Notice, OnLoss, Optimizer, Round, Schedule,
    Selection, Tensor, Waits,
};
use sim_tests::counts::count;
use sim_tests::race::SGD;
use sim_tests::simulated::{Simulated, Terms};
use sim_tests::trouble::Dice;
use sim_tests::values::mix;

use super::disks::Disks;
use super::ledger::{Ledger, Together};

pub const WORKERS: u32 = 3;
/// The number of steps in which events may happen.
const STEPS: u32 = 300;
/// The largest difference between the rounds of a worker's keys.
const AHEAD: u32 = 3;
/// The longest time that a session waits for a hub.
const LIMIT: Duration = Duration::from_secs(60);

/// The number of steps that is enough for living workers to push, and for the pushes to arrive. If nothing has changed
/// for longer, the job stands still.
const STANDS: u32 = 60;

/// A time that no life reaches.
const FOR_EVER: Duration = Duration::from_secs(1_000_000);

/// The state of a worker, as the worker itself knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Dead,
    /// The worker has joined, and waits until it takes part.
    Joined,
    TakesPart,
    /// The worker has asked for new links.
    Unlinked,
    /// The worker hangs, and sends no heartbeat.
    Hangs,
    /// The worker sends heartbeats, and pushes nothing.
    Late,
    /// The worker has lost a hub, and waits until the hubs return.
    HubLost,
}

/// The event that may end the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plot {
    /// No such event.
    Calm,
    /// The death of a worker. It ends a job that does not continue without lost workers, and any job if the
    /// worker is the last worker.
    Deaths,
    /// A hub that stops, or dies.
    Stop,
    /// Hubs that do not reach each other.
    Silence,
}

pub struct Life {
    pub dice: Dice,
    pub layout: Arc<Layout>,
    pub terms: Terms,
    pub job: Simulated,
    pub ledger: Ledger,
    pub disks: Disks,
    /// The slowness of each hub's disk: in each step, the disk writes a waiting file with a chance of one in this
    /// number.
    pub writes_one_in: Vec<u64>,
    /// The latest state that all hubs have reported as written, or from which the job has continued.
    pub floor: Option<Round>,
    /// The latest state that the living hubs have reported as written.
    pub said: Option<Round>,
    pub plot: Plot,
    pub stages: Vec<Stage>,
    /// The state machine of each worker's session, by rank.
    pub machines: Vec<Member>,
    /// The state machine of a new worker's session.
    pub machine: Member,
    /// The ranks that have come back, and have no weights yet.
    pub came_back: Vec<u32>,
    /// The round that each worker had reached when it lost a hub, by rank.
    pub reached: Vec<Option<Round>>,
    /// The round of each worker's last comparison, by rank: its weights before this round were compared with the
    /// weights of the other workers.
    pub compared: Vec<u32>,
    /// The last check of the cores, the workers' stages at that time, and the step since which both have not changed.
    looked: Option<(Look, Vec<Stage>, u32)>,
    steps: u32,
    /// The last step in which living members were silent.
    silent: u32,
    /// The number of notices that were read.
    pub read: usize,
    /// Whether all hubs have saved the last state of the job that failed last.
    pub is_last_saved: bool,
}

impl Life {
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let keys = (0..dice.from(1..=5)).map(|key| Key::f32(format!("{key}"), [1 + 40 * dice.below(3)]));
        let keys = keys.map(|key| Key { wd_mult: 0.0, ..key });
        let layout = Arc::new(Layout::new(keys.collect(), 64).unwrap());
        let mut terms = Terms::new(WORKERS, dice.from(1..=2) as usize, SGD);
        (terms.job.hubs, terms.late) = (dice.from(1..=3) as u32, Some(seed));
        terms.job.on_loss = if dice.below(6) == 0 { OnLoss::Stop } else { OnLoss::Continue };
        terms.snapshot_every = NonZeroU32::new(dice.below(8) as u32);
        draw_level(&mut terms, &layout, &mut dice);
        if std::env::var_os("PHUB_SIM_SEED").is_some() {
            eprintln!("{terms:?}");
        }
        let job = simulated(&mut dice, &layout, &terms);
        let disks = Disks::new(&layout, job.placement(), (terms.job.hubs, terms.cores), terms.job.optimizer);
        let mut ledger = Ledger::new(&layout, &terms.job);
        (0..WORKERS).for_each(|rank| ledger.begins(rank, &job));
        let writes_one_in = (0..terms.job.hubs).map(|_| [2, 4, 40][dice.below(3) as usize]).collect();
        let stages = vec![Stage::TakesPart; WORKERS as usize];
        let machine = Member::linked(Limits { hubs: terms.job.hubs as usize, links: LIMIT, hub: LIMIT });
        let (plot, machines) = (Plot::Calm, vec![machine.clone(); WORKERS as usize]);
        count("steps wait for their key", usize::from(terms.job.optimizer.adapts_keys()));
        count("clipped by the last norm", usize::from(terms.job.clip_norm_last.is_some()));
        count("scaled", usize::from(matches!(&ledger, Ledger::Together(of) if of.scales())));
        Life {
            dice,
            layout,
            terms,
            job,
            ledger,
            disks,
            writes_one_in,
            floor: None,
            said: None,
            plot,
            stages,
            machines,
            machine,
            came_back: Vec::new(),
            reached: Vec::new(),
            compared: vec![0; WORKERS as usize],
            looked: None,
            steps: 0,
            silent: 0,
            read: 0,
            is_last_saved: false,
        }
    }

    /// Runs the job, which may fail and come back, until nothing more happens to it.
    pub fn live(mut self) {
        for plots in [3, 2, 0] {
            self.plot = match self.dice.below(6) {
                0 if plots > 0 => Plot::Deaths,
                1 if plots > 0 => Plot::Stop,
                2 if plots > 0 => Plot::Silence,
                _ => Plot::Calm,
            };
            self.begin();
            self.happen();
            if !self.fails() {
                self.finish();
            }
            if !self.fails() {
                (0..WORKERS).for_each(|rank| self.job.leave(rank));
                count("jobs that all workers left", 1);
            }
            if let Ledger::Together(together) = &self.ledger {
                count("scaled by a round that some chunks passed", together.scaled_by_part());
            }
            if !self.fails() {
                break;
            }
            self.end();
            self.come_back();
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = KeyId> + use<> {
        (0..self.layout.keys().len() as u32).map(KeyId)
    }

    /// Returns the rounds of all workers and keys.
    fn rounds(&self) -> impl Iterator<Item = u32> {
        self.job.workers.iter().flat_map(|worker| self.keys().map(|key| worker.round(key).0))
    }

    pub fn fails(&self) -> bool {
        self.job.hubs.has_failed().0
    }

    fn goes_on(&self) -> bool {
        self.terms.job.on_loss == OnLoss::Continue
    }

    /// Runs until all workers have weights and take part. If a worker dies before that, its job ends. A hub
    /// may be lost again before all workers are back.
    fn begin(&mut self) {
        let first = self.rounds().max().unwrap();
        let may_be_lost = !self.came_back.is_empty() && self.dice.below(2) == 0;
        let have_begun = |life: &mut Life| {
            if may_be_lost && life.dice.below(100) == 0 {
                let hub = life.dice.below(life.job.hubs.hubs.len() as u64) as usize;
                life.job.hubs.hubs[hub].dies();
            }
            if life.dice.below(50) == 0 {
                life.refuses();
            }
            let takes_part = |rank| life.job.takes_part(rank);
            let is_ready = |worker: &worker_shim::Exchange<_>| life.keys().all(|key| worker.is_ready(key));
            let begun = life.rounds().all(|round| round > first);
            life.fails() || begun && (0..WORKERS).all(takes_part) && life.job.workers.iter().all(is_ready)
        };
        self.until(have_begun, first);
        if !self.fails() {
            self.go_on();
        }
    }

    /// Makes events at random for `STEPS` steps, or until the job has failed.
    fn happen(&mut self) {
        let silence = Some(3 + self.dice.below(30)).filter(|_| self.plot == Plot::Silence);
        self.job.hubs.messages.gives_up_one_in = silence;
        for _ in 0..STEPS {
            if self.fails() {
                return;
            }
            match self.dice.below(60) {
                0 => self.wants(),
                1..7 => {
                    let rank = self.dice.below(u64::from(WORKERS)) as u32;
                    self.happens(rank);
                }
                7 => self.refuses(),
                8 if self.plot == Plot::Silence => self.time_passes(),
                8 if !self.is_stopping() || self.dice.below(8) == 0 => self.make_silent(),
                9 if self.plot == Plot::Stop && self.dice.below(4) == 0 => self.stops(),
                10 if self.is_stopping() && self.dice.below(5) == 0 => self.breaks_stop(),
                11 if !self.is_stopping() => self.any_hub().stands_still(),
                12 if self.plot == Plot::Stop => self.any_hub().drains(),
                14 if self.dice.below(3) == 0 => self.changes_rate(),
                13 if !self.is_stopping() => self.hold_up(),
                15 => self.any_hub().measures(),
                _ => {}
            }
            self.step(u32::MAX);
        }
    }

    /// Asks for the state: as files of all hubs, or as a copy of one hub's part for a client. A hub without chunks has
    /// no part.
    fn wants(&mut self) {
        let furthest = self.rounds().max().unwrap();
        let Life { job, dice, .. } = self;
        let (hubs, is_file) = (&mut job.hubs.hubs, dice.below(3) > 0);
        let selection = [Selection::All, Selection::One(Tensor::Weights)][dice.below(2) as usize];
        let purpose = if is_file { Use::File } else { Use::Client(selection) };
        let hub = if is_file { 0 } else { dice.below(hubs.len() as u64) as usize };
        let may_wait = hubs[hub].has_chunks() && dice.below(2) == 0;
        let limit = if may_wait { FOR_EVER } else { Duration::from_millis(dice.from(10..=200)) };
        match is_file || !hubs[hub].has_chunks() || dice.below(2) == 0 {
            true => hubs[hub].want(purpose, limit),
            // This round may never be reached.
            false => hubs[hub].want_before(
                Round((furthest + 4).saturating_sub(dice.below(6) as u32)),
                selection,
                Duration::from_millis(dice.from(10..=200)),
            ),
        }
    }

    /// Makes an event for a worker. A worker leaves, or dies in a job that must not end, only if another worker takes
    /// part, because a job without workers ends.
    fn happens(&mut self, rank: u32) {
        let takes_part = |&other: &u32| other != rank && self.stages[other as usize] == Stage::TakesPart;
        let is_last = !(0..WORKERS).any(|other| takes_part(&other));
        let may_die = self.plot == Plot::Deaths || self.goes_on() && !is_last;
        let may_be_late = may_die && self.may_be_late();
        let stage = &mut self.stages[rank as usize];
        match (*stage, self.dice.below(3)) {
            (Stage::Dead, 2)
                if may_die && self.dice.below(4) == 0 && self.job.hubs.lead().joins_in_vain(rank) =>
            {
                count("joins in vain", 1);
            }
            (Stage::Dead, _) if self.job.come_back(rank).unwrap() => *stage = Stage::Joined,
            (Stage::Unlinked, 1..) if self.job.relink(rank).unwrap() => *stage = Stage::TakesPart,
            (Stage::Unlinked, 0) if self.dice.below(3) == 0 => self.job.asks_again(rank),
            (Stage::TakesPart, 0) => {
                self.job.unlink(rank);
                *stage = Stage::Unlinked;
            }
            (Stage::TakesPart | Stage::Unlinked | Stage::Joined, 1) if may_die => self.dies(rank),
            (Stage::TakesPart, 2) if may_die && self.dice.below(3) == 0 => {
                *stage = Stage::Hangs;
                self.job.hang(rank);
                count("hangs", 1);
            }
            (Stage::TakesPart, 2) if may_be_late && self.dice.below(3) == 0 => {
                *stage = Stage::Late;
                self.job.stall(rank);
                count("stalls", 1);
            }
            (Stage::TakesPart, 2) if self.terms.job.on_loss == OnLoss::Continue && !is_last => {
                *stage = Stage::Dead;
                self.ledger.ends(rank, &self.job);
                self.job.leave(rank);
                count("leaves", 1);
            }
            _ => {}
        }
    }

    pub fn dies(&mut self, rank: u32) {
        self.ledger.ends(rank, &self.job);
        self.job.kill(rank);
        self.stages[rank as usize] = Stage::Dead;
        count("deaths", 1);
    }

    /// Lets so much time pass that no hub waits for another hub any more.
    fn time_passes(&mut self) {
        for hub in &mut self.job.hubs.hubs {
            hub.time_passes(|rank| !matches!(self.stages[rank as usize], Stage::Dead | Stage::Hangs));
        }
    }

    /// Makes living members silent for less than the limit. A member that hangs is lost meanwhile.
    fn make_silent(&mut self) {
        // Many silences one after another would make a cut (a pause of the job) longer than its limit.
        if self.steps - self.silent < STANDS / 2 {
            return;
        }
        self.silent = self.steps;
        for hub in &mut self.job.hubs.hubs {
            if hub.failed.is_none() {
                hub.make_silent(|rank| !matches!(self.stages[rank as usize], Stage::Dead | Stage::Hangs));
                let is_silent = |stage: &Stage| matches!(stage, Stage::Dead | Stage::Hangs);
                let may_fail = self.stages.iter().any(is_silent) || hub.is_closed();
                assert!(hub.failed.is_none() || may_fail, "it was not silent for long: {:?}", hub.failed);
            }
        }
    }

    /// Changes the learning rate from a round on that no worker has pushed.
    fn changes_rate(&mut self) {
        let furthest = self.rounds().max().unwrap();
        let Ledger::Together(together) = &mut self.ledger else { return };
        let rate = [0.5, 1.0, 2.0][self.dice.below(3) as usize];
        let from = Round(furthest + AHEAD + 2 + self.dice.below(3) as u32);
        together.change_rate(rate, from);
        self.job.change_rate(rate, from);
        count("rates changed", 1);
    }

    /// Whether the hub loses a worker that only sends heartbeats while other workers wait for it.
    fn may_be_late(&self) -> bool {
        self.terms.job.hubs == 1 && matches!(self.ledger, Ledger::Together(_))
    }

    /// Lets much time pass, if all rounds wait for workers that only send heartbeats. These workers are then lost.
    pub fn hold_up(&mut self) {
        self.job.look();
        let look = self.job.look(); // nothing has moved since the first look
        let is_late = |(rank, waits): (&u32, &Waits)| match self.stages[*rank as usize] {
            Stage::Late => true,
            stage => waits.is_waiting && stage == Stage::TakesPart,
        };
        let are_late = self.stages.contains(&Stage::Late) && look.workers.iter().all(is_late);
        let former = self.looked.take().filter(|(of, stages, _)| *of == look && *stages == self.stages);
        let since = former.map_or(self.steps, |(.., since)| since);
        self.looked = Some((look.clone(), self.stages.clone(), since));
        // The job stands still only if no pushes are in flight. Pushes that a worker repeats over new links count, too.
        let stands = self.steps - since > STANDS && !look.is_moving;
        if stands && are_late && !look.workers.is_empty() {
            let lives = |rank| !matches!(self.stages[rank as usize], Stage::Dead | Stage::Hangs);
            self.job.hubs.lead().hold_up(&look, lives);
            count("stalls that were too long", 1);
        }
    }

    /// Pushes all keys that workers can push, and lets all workers and hubs work once.
    fn step(&mut self, until: u32) {
        self.steps += 1;
        for rank in 0..WORKERS {
            self.update_stage(rank);
            if self.stages[rank as usize] == Stage::TakesPart && self.dice.below(3) > 0 {
                self.push(rank, until);
            }
        }
        self.job.step().unwrap();
        self.read_notices();
        self.write_files();
        self.write_last_states();
        for rank in 0..WORKERS {
            self.check(rank);
        }
    }

    /// Updates the state of a worker that begins to take part, or that a hub has lost. If hubs do not reach each other,
    /// a hub may lose a living worker.
    fn update_stage(&mut self, rank: u32) {
        let stage = &mut self.stages[rank as usize];
        if *stage == Stage::Joined && self.job.takes_part(rank) {
            *stage = Stage::TakesPart;
            self.ledger.begins(rank, &self.job);
            if self.goes_on() && self.dice.below(8) == 0 {
                // Kills all other workers. Then no worker is left who could push the rounds before this
                // worker's first round.
                let others = (0..WORKERS).filter(|&other| other != rank);
                let there =
                    |other: &u32| matches!(self.stages[*other as usize], Stage::TakesPart | Stage::Unlinked);
                others.filter(there).collect::<Vec<_>>().into_iter().for_each(|other| self.dies(other));
            }
        }
        let is_dead = self.stages[rank as usize] == Stage::Dead;
        if !is_dead && !self.fails() && !self.job.hubs.have(rank) {
            let stage = self.stages[rank as usize];
            let may_be = self.plot == Plot::Silence || matches!(stage, Stage::Hangs | Stage::Late);
            assert!(may_be, "rank {rank} is lost, and lives");
            self.dies(rank);
        }
    }

    fn push(&mut self, rank: u32, until: u32) {
        let slowest = self.keys().map(|key| self.job.workers[rank as usize].round(key).0).min().unwrap();
        for key in self.keys() {
            let worker = &mut self.job.workers[rank as usize];
            let Round(round) = worker.round(key);
            let may = worker.is_ready(key) && round <= until.min(slowest + AHEAD);
            if may && self.dice.below(2) == 0 {
                for (element, value) in worker.gradient_mut::<f32>(key).unwrap().iter_mut().enumerate() {
                    *value = self.ledger.pushed(rank, round, element);
                }
                let pushed = worker.push(key);
                assert!(pushed.is_ok() || self.fails(), "rank {rank}: {pushed:?}");
            }
        }
    }

    /// Checks that a worker's weights have the expected values of its round.
    fn check(&mut self, rank: u32) {
        let Life { job, stages, ledger, .. } = self;
        let has_links = |stage| matches!(stage, Stage::TakesPart | Stage::Unlinked);
        if has_links(stages[rank as usize]) {
            ledger.check((rank, rank as usize), job, |rank| {
                has_links(stages[rank as usize]) && job.hubs.have(rank)
            });
            self.compare(rank);
        }
    }

    /// Compares the digest of a worker's weights with the digests of the other workers, every fourth round.
    fn compare(&mut self, rank: u32) {
        let worker = &self.job.workers[rank as usize];
        let Round(round) = worker.round(KeyId(0));
        let is_there = |key| worker.is_ready(key) && worker.round(key).0 == round;
        let is_due = matches!(self.ledger, Ledger::Together(_)) && round.is_multiple_of(4);
        if !is_due || round <= self.compared[rank as usize] || !self.keys().all(is_there) {
            return;
        }
        let weights = self.keys().flat_map(|key| worker.weights::<f32>(key).unwrap());
        let digest = weights.fold(0, |digest, weight| mix(digest ^ u64::from(weight.to_bits())));
        self.compared[rank as usize] = round;
        self.job.hubs.lead().compares(rank, Round(round), digest);
    }

    /// Reads the notices. Checks that snapshots have the weights of their round.
    fn read_notices(&mut self) {
        let Life { job, stages, ledger, .. } = self;
        let has_links = |rank: u32| matches!(stages[rank as usize], Stage::TakesPart | Stage::Unlinked);
        for notice in &job.notices[self.read..] {
            match notice {
                Notice::Snapshot { taken, .. } => {
                    if let Ok(part) = &taken.part {
                        ledger.check_part(part, taken.before, job, |rank| {
                            has_links(rank) && job.hubs.have(rank)
                        });
                        self.disks.take(part, taken.occasion);
                        count("snapshots", 1);
                    }
                }
                Notice::Skipped { chunk, rounds, .. } => match ledger {
                    Ledger::Together(together) => together.skip(*chunk, rounds.clone()),
                    Ledger::Alone(_) => panic!("nobody who steps alone leaves rounds out: {notice:?}"),
                },
                Notice::WorkerGone { by_itself: true, .. } => {}
                // A hub was lost again before all workers had weights, or a push came after the last state.
                Notice::JobFailed { .. } | Notice::WorkerGone { .. } if job.hubs.has_failed().0 => {}
                notice => panic!("{notice:?}, {stages:?}"),
            }
        }
        self.read = job.notices.len();
    }

    /// Brings all workers back, and makes some more rounds, unless the job fails.
    fn finish(&mut self) {
        self.job.hubs.messages.gives_up_one_in = None;
        let come_back = |life: &mut Life| {
            // A hub may still wait for another hub that it does not reach, so time must pass.
            match life.dice.below(200) {
                0 if life.plot == Plot::Silence => life.time_passes(),
                1..4 if life.stages.contains(&Stage::Hangs) => life.make_silent(),
                4..7 => life.hold_up(),
                _ => {}
            }
            for rank in 0..WORKERS {
                let stage = &mut life.stages[rank as usize];
                match *stage {
                    _ if life.job.hubs.has_failed().0 => return true,
                    Stage::Dead if life.job.come_back(rank).unwrap() => *stage = Stage::Joined,
                    Stage::Unlinked if life.job.relink(rank).unwrap() => *stage = Stage::TakesPart,
                    _ => {}
                }
            }
            life.stages.iter().all(|&stage| stage == Stage::TakesPart)
        };
        // A job that cannot continue does not admit a worker that comes back.
        self.until(come_back, u32::MAX);
        let last = self.rounds().max().unwrap() + 3;
        let is_done = |life: &mut Life| {
            if life.plot == Plot::Silence && life.dice.below(200) == 0 {
                life.time_passes();
            }
            let are_wanted = life.job.hubs.hubs.iter().any(|hub| hub.files.are_wanted());
            let is_done = life.rounds().all(|round| round > last) && !life.job.is_busy() && !are_wanted;
            is_done || life.fails()
        };
        self.until(is_done, last);
    }

    /// Makes steps until `is_so` returns true, which must happen after a limited number of steps.
    pub fn until(&mut self, mut is_so: impl FnMut(&mut Life) -> bool, last: u32) {
        for _ in 0..20_000 {
            if is_so(self) {
                return;
            }
            self.step(last);
        }
        let rounds = Vec::from_iter(self.rounds());
        panic!(
            "nothing comes of it: {:?}, {:?}, {rounds:?}, {:?}, {:?}",
            self.plot, self.stages, self.looked, self.terms
        );
    }
}

/// An optimizer whose steps wait for the norms of their whole key. The steps equal those of SGD, because LARS
/// does not adapt a key without decay.
pub const BY_KEY: Optimizer =
    Optimizer::Lars { learning_rate: 1.0, weight_decay: 0.0, momentum: 0.0, trust: 1.0 };

/// Draws consistency, compression and other terms of the level. All codecs keep the pushed values exactly.
fn draw_level(terms: &mut Terms, layout: &Layout, dice: &mut Dice) {
    let level = &mut terms.job.level;
    level.schedule = Schedule::ALL[dice.below(4) as usize];
    level.consistency = match dice.below(6) {
        0 => Consistency::Asp,
        1 => Consistency::Ssp { staleness: dice.below(5) as u32 },
        _ => Consistency::Bsp,
    };
    level.compression = (dice.below(4) == 0).then_some(Compression::Codec(Codec::F16));
    let may_wait = level.consistency == Consistency::Bsp && level.compression.is_none();
    let by_key = may_wait && dice.below(5) == 1;
    // With several hubs, the last state may lack a round whose norm another hub has found.
    let may_wait = may_wait && !by_key && terms.job.hubs == 1;
    match dice.below(5) {
        0 if may_wait => terms.job.clip_norm = Some(Together::bound(layout, false, dice)),
        2 | 3 if may_wait => terms.job.clip_norm_last = Some(Together::bound(layout, false, dice)),
        _ => {}
    }
    if by_key {
        terms.job.optimizer = BY_KEY;
    }
    level.slice_bytes = Some(dice.from(0..=512) as usize);
    let mut credit = || (dice.below(3) == 0).then(|| dice.from(1..=600) as usize);
    (terms.worker_credit, level.credit) = (credit(), credit().map(Credit::Bytes).or(Some(Credit::None)));
    terms.batch_keys = (dice.below(2) == 0).then(|| dice.from(1..=4) as usize);
}

/// Returns a job over a network that has its own seed.
pub fn simulated(dice: &mut Dice, layout: &Arc<Layout>, terms: &Terms) -> Simulated {
    let net = Net::new(
        dice.below(u64::MAX),
        // A message with the norm must arrive before the answers of its round.
        Faults {
            delay: 0..dice.from(1..=20),
            reorder: dice.below(2) == 0 && !terms.job.finds_norms(),
            ..Faults::NONE
        },
    );
    let mut job = Simulated::new(net, layout, terms.clone()).unwrap();
    job.hubs.messages.loses_parts_one_in = Some(40);
    let saves = dice.below(4) > 0;
    job.hubs.hubs.iter_mut().for_each(|hub| (hub.forgets, hub.is_swept, hub.saves) = (true, true, saves));
    job
}
