//! The hubs of a job and its workers over the simulated transport, in one thread. The caller makes every
//! step, and a seed decides everything else. Tests of faults, of orders of messages, and of checkpoints use
//! this cluster.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use coordinator::Files;
use fabric::sim::{self, EndId, Net};
use fabric::{RecvWindow, SendWindow};
use pbox_core::frame::HEADER_BYTES;
use pbox_core::kernels::Kernels;
use pbox_core::{
    ChunkId, Core, Credit, Expected, JobId, JobTerms, KeyId, Layout, LevelTerms, Look, Notice, Numbers,
    NumbersByRound, Optimizer, Placement, Restored, Round, ShardSpec, Share, Slices, Wire,
};
use worker_shim::{Batches, Exchange, ExchangeError, WeightsMode, Windows};

use crate::control::Harm;
use crate::hubs::Hubs;
use crate::trouble::Dice;

/// The terms of a simulated cluster.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The job's terms. [`Simulated::new`] sets their keys and chunk size to those of its layout.
    pub job: JobTerms,
    /// The number of cores of each hub. A cut of several hubs is a cut of all their cores.
    pub cores: usize,
    /// The number of shards of each core. The keys of a core's chunks are divided among the core's shards.
    pub shards: usize,
    /// The number of keys that rank 0 pulls in a batch, from the last key on. Each rank pulls one key more than
    /// the previous rank.
    pub batch_keys: Option<usize>,
    /// The credit of each link at a worker, in bytes. The terms of the job set the credit at the hub.
    pub worker_credit: Option<usize>,
    /// Whether the network keeps the order of posts, and neither loses nor repeats posts, like real transports. In such
    /// a network, gradients may be sent ahead, and both ends of a link check arrivals.
    pub is_orderly: bool,
    /// The seed of delays: cores carry out the control's commands late, and the control takes in reports
    /// late. Without a seed, both happen at once.
    pub late: Option<u64>,
    /// The interval of snapshots, in rounds.
    pub snapshot_every: Option<NonZeroU32>,
    /// The earlier life that the job continues, if there is one.
    pub earlier: Option<EarlierLife>,
}

/// The earlier life of a job that continues after its hubs have ended.
#[derive(Clone, Debug)]
pub struct EarlierLife {
    /// The state of all hubs, if there is one.
    pub restored: Option<Arc<Restored>>,
    /// Whether rank 0 brings the state, because the hubs have no files.
    pub is_brought: bool,
    /// The files of each hub that owns chunks.
    pub files: Files,
    /// The round that each worker had reached, by rank, or `None` for a new worker.
    pub reached: Vec<Option<Round>>,
}

impl Terms {
    /// Creates the terms of a job in BSP that stops when a worker is lost. The hub does all its work (no
    /// ablation), each chunk is one slice, and links have no limit of credit.
    pub fn new(workers: u32, cores: usize, optimizer: Optimizer) -> Self {
        let job = JobTerms { seed: SEED, ..JobTerms::new(workers, Vec::new(), optimizer) };
        let level = LevelTerms { slice_bytes: Some(0), credit: Some(Credit::None), ..job.level };
        let job = JobTerms { level, ..job };
        Terms {
            job,
            cores,
            shards: 1,
            batch_keys: None,
            worker_credit: None,
            is_orderly: false,
            late: None,
            snapshot_every: None,
            earlier: None,
        }
    }

    /// Returns these terms with changed terms of the job.
    pub fn with(mut self, change: impl FnOnce(&mut JobTerms)) -> Self {
        change(&mut self.job);
        self
    }
}

/// The seed of random compression.
pub const SEED: u64 = 7;

/// A job on one or several hubs over a simulated network.
pub struct Simulated {
    net: Net,
    wire: Wire,
    placement: Placement,
    weights: Arc<SendWindow>,
    terms: Terms,
    /// The hub's cores.
    pub cores: Vec<Core<sim::Port>>,
    /// The workers, by rank.
    pub workers: Vec<Exchange<sim::Port>>,
    /// The batches in which each worker pulls, by rank.
    pub batches: Vec<Option<Batches>>,
    /// The worker's end of each link, by rank and core. Tests use these ends to cause faults.
    pub ends: Vec<Vec<EndId>>,
    /// The worker's own windows, by rank.
    windows: Vec<sim::Windows>,
    /// Whether the worker lives, by rank.
    alive: Vec<bool>,
    /// The number of arrivals that each worker has taken in so far, by rank.
    pub arrivals: Vec<u64>,
    /// The notices of all cores so far.
    pub notices: Vec<Notice>,
    /// The control of each hub.
    pub hubs: Hubs,
    /// The workers that take part at hub 0 and not yet at all hubs, each with its first round.
    begins: Vec<(u32, Round)>,
    /// The hubs' count of wake-ups at the time when the worker began to wait, by rank.
    waits: Vec<Option<u64>>,
    dice: Dice,
}

/// Returns a core's chunks, divided among its shards. The chunks of a key stay in one shard, because schedules by layer
/// answer them together. So do the chunks of a group, which are also answered together.
fn dealt(layout: &Layout, chunks: &[ChunkId], shards: usize) -> Vec<Vec<ChunkId>> {
    let shard = |&chunk: &ChunkId| {
        let group = layout.groups().iter().find(|group| group.contains(&chunk.0));
        layout.chunk(group.map_or(chunk, |group| ChunkId(group.start))).key.index() % shards
    };
    (0..shards).map(|at| chunks.iter().copied().filter(|chunk| shard(chunk) == at).collect()).collect()
}

/// The only job.
pub const JOB: JobId = JobId(0);

impl Simulated {
    /// Connects a job's workers to its hubs over `net`.
    pub fn new(net: Net, layout: &Arc<Layout>, terms: Terms) -> Result<Self> {
        let job =
            JobTerms { keys: layout.keys().to_vec(), chunk_bytes: layout.chunk_bytes(), ..terms.job.clone() };
        let (job, cores) = (Arc::new(job), terms.cores);
        let of_hub = |hub| Placement::of_share(layout, job.level.schedule, Share::of_hub(&job, hub), cores);
        let placement = match job.hubs {
            1 => Placement::new(layout, cores),
            hubs => Placement::over_hubs(&(0..hubs).map(of_hub).collect::<Vec<_>>()),
        };
        let wire = Wire::new(Arc::clone(layout), &job);
        let shards =
            placement.chunks_by_core().into_iter().flat_map(|chunks| dealt(layout, &chunks, terms.shards));
        let shards: Vec<Vec<ChunkId>> = shards.collect();
        let of_hub = shards.chunks(cores * terms.shards);
        let owners = of_hub.map(|shards| shards.iter().filter(|chunks| !chunks.is_empty()).count());
        let owners = Vec::from_iter(owners);
        let spans = |chunks: &Vec<ChunkId>| wire.weights_spans(chunks);
        let (weights, claims) =
            SendWindow::new(wire.weights_window_bytes())?.split(shards.iter().map(spans).collect())?;
        let (mut owned, of_hub) = (shards.into_iter().zip(claims), cores * terms.shards);
        let specs = |_| ShardSpec::of_cores(&job, &wire, owned.by_ref().take(of_hub));
        let mut specs = (0..job.hubs).flat_map(specs).collect::<Vec<_>>().into_iter();
        let mut hub = Vec::new();
        for _ in 0..placement.cores() {
            let mut core = Core::new(net.port(), Kernels::detect());
            for mut spec in specs.by_ref().take(terms.shards) {
                spec.snapshot_every = terms.snapshot_every;
                let again = terms.earlier.as_ref().filter(|earlier| !earlier.is_brought);
                spec.restored = again.and_then(|again| again.restored.clone());
                core.add_job(JOB, spec)?;
            }
            hub.push(core);
        }
        let workers = job.workers;
        let (dice, mut hubs) = (Dice::new(terms.late.unwrap_or(0)), Hubs::new(&job, cores, &owners));
        if let Some(EarlierLife { restored, is_brought, files, reached }) = &terms.earlier {
            let here = restored.as_ref().filter(|_| !is_brought);
            let numbers = || NumbersByRound::new(Numbers::new(job.optimizer));
            let from = here.map_or_else(|| (Round(0), numbers()), |state| (state.round(), state.numbers()));
            for hub in &mut hubs.hubs {
                hub.begin_again(from.clone(), files, reached);
                restored.iter().filter(|_| *is_brought).for_each(|state| hub.will_bring(layout, state));
            }
        }
        let mut simulated = Simulated {
            net,
            wire,
            placement,
            weights,
            terms,
            cores: hub,
            workers: Vec::new(),
            batches: (0..workers).map(|_| None).collect(),
            ends: Vec::new(),
            windows: Vec::new(),
            alive: vec![true; workers as usize],
            arrivals: vec![0; workers as usize],
            notices: Vec::new(),
            hubs,
            begins: Vec::new(),
            waits: vec![None; workers as usize],
            dice,
        };
        for rank in 0..workers {
            let (exchange, ends, windows) = simulated.connect(rank)?;
            simulated.workers.push(exchange);
            simulated.ends.push(ends);
            simulated.windows.push(windows);
        }
        simulated.control_all()?;
        Ok(simulated)
    }

    /// Connects a worker. Returns its exchange, its ends of the links and its windows.
    fn connect(&mut self, rank: u32) -> Result<(Exchange<sim::Port>, Vec<EndId>, sim::Windows)> {
        let wire = &self.wire;
        let LevelTerms { schedule, slice_bytes, .. } = self.terms.job.level;
        let (gradients, spans) = Windows::gradients(wire)?;
        let at_worker = Arc::new(RecvWindow::local(wire.weights_window_bytes())?);
        let own_windows = sim::Windows { send: gradients, recv: Arc::clone(&at_worker) };
        self.hubs.join(rank);
        let (endpoints, ends) = self.link(rank, &own_windows)?;
        let Simulated { net, wire, placement, .. } = self;
        let windows =
            Windows::new(wire, rank, spans, vec![at_worker; placement.cores()], WeightsMode::Shared)?;
        let layout = wire.layout();
        let slices = Slices::new(layout, placement, schedule, slice_bytes.unwrap_or(layout.chunk_bytes()));
        let (port, layout) = (net.port(), Arc::clone(layout));
        let mut exchange = Exchange::new(port, endpoints, layout, windows, slices);
        exchange.set_credit(self.terms.worker_credit);
        exchange.let_ahead(vec![self.terms.is_orderly; self.cores.len()], self.terms.job.answers_ahead);
        if let Some(batch) = self.terms.batch_keys.filter(|_| schedule.pulls()) {
            let keys = exchange.layout().keys().len();
            let layers = (0..keys as u32).rev().map(|key| vec![KeyId(key)]).collect();
            let mut batches = Batches::begin(layers, &mut exchange);
            let step = batch + rank as usize;
            let ranges = (0..keys).step_by(step).map(|start| start..keys.min(start + step));
            batches.set(&ranges.collect::<Vec<_>>());
            self.batches[rank as usize] = Some(batches);
        }
        Ok((exchange, ends, own_windows))
    }

    /// Links a worker's windows to all cores. Returns the worker's ends.
    fn link(&mut self, rank: u32, windows: &sim::Windows) -> Result<(Vec<sim::Endpoint>, Vec<EndId>)> {
        let (weights, own) = if self.wire.has_own_weights() {
            self.placement.weights_window(&self.wire)?
        } else {
            (Arc::clone(&self.weights), Vec::new())
        };
        let own = own.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        let at_hub = Arc::new(RecvWindow::local(self.wire.gradient_window_bytes())?);
        let (mut endpoints, mut ends) = (Vec::new(), Vec::new());
        let placement = Arc::new(self.placement.clone());
        let capacities = self.placement.capacities().into_iter().enumerate().zip(own);
        for ((place, capacity), own) in capacities {
            let hub = sim::Windows { send: Arc::clone(&weights), recv: Arc::clone(&at_hub) };
            let posts = self.wire.posts(capacity as usize);
            let (mut to_hub, mut to_worker) = self.net.link(windows.clone(), hub, posts);
            if self.terms.is_orderly {
                let of_hub = Expected::of_hub(&self.wire, self.terms.job.level.schedule);
                to_hub.obey(Box::new(of_hub.on_core(&placement, place)));
                let of_member = Expected::of_member(&self.wire, rank);
                to_worker.obey(Box::new(of_member.on_core(&placement, place)));
            }
            ends.push(to_hub.id());
            endpoints.push(to_hub);
            let (hub, core) = (place / self.terms.cores, place % self.terms.cores);
            self.hubs.hubs[hub].add(core, rank, Arc::clone(&at_hub), own, to_worker);
        }
        Ok((endpoints, ends))
    }

    /// Unlinks a living worker, which then asks all hubs for new links.
    pub fn unlink(&mut self, rank: u32) {
        (0..self.hubs.hubs.len()).for_each(|hub| self.ask_for_links(rank, hub));
        self.drop_links(rank);
        self.control_at_once().expect("links are dropped");
    }

    /// Asks a hub for new links of a living worker.
    pub fn ask_for_links(&mut self, rank: u32, hub: usize) {
        self.hubs.hubs[hub].unlink(rank);
    }

    /// Whether all cores of a hub have dropped the links of a worker that has asked for new links.
    pub fn has_dropped_links(&mut self, rank: u32, hub: usize) -> bool {
        self.hubs.hubs[hub].has_dropped(rank)
    }

    /// Drops a worker's links.
    pub fn drop_links(&mut self, rank: u32) {
        self.workers[rank as usize].cut(self.net.port());
        self.alive[rank as usize] = false;
    }

    /// Makes new links for a worker, if all cores have dropped the old links.
    pub fn relink(&mut self, rank: u32) -> Result<bool> {
        if !self.ask_if_woken(rank, |hubs| hubs.relink(rank)) {
            return Ok(false);
        }
        let windows = self.windows[rank as usize].clone();
        let (endpoints, ends) = self.link(rank, &windows)?;
        let (worker, port) = (&mut self.workers[rank as usize], self.net.port());
        worker.relink(port, endpoints, vec![windows.recv; self.placement.cores()]);
        worker.set_credit(self.terms.worker_credit);
        (self.ends[rank as usize], self.alive[rank as usize]) = (ends, true);
        self.control_at_once()?;
        self.workers[rank as usize].push_again()?;
        Ok(true)
    }

    /// Makes every worker pull these layers in these batches from now on.
    pub fn pull_in_batches(&mut self, layers: &[Vec<KeyId>], ranges: &[Range<usize>]) {
        let begin = |worker: &mut Exchange<_>| {
            let mut batches = Batches::begin(layers.to_vec(), worker);
            batches.set(ranges);
            Some(batches)
        };
        self.batches = self.workers.iter_mut().map(begin).collect();
    }

    /// Handles all messages that wait in the control.
    fn control_all(&mut self) -> Result<()> {
        while self.hubs.is_busy() {
            (0..self.cores.len()).try_for_each(|core| self.obey(core))?;
            self.hubs.work(None);
            self.begin()?;
        }
        Ok(())
    }

    /// Handles at once the messages that wait in the control, unless the control is late.
    fn control_at_once(&mut self) -> Result<()> {
        if self.terms.late.is_none() { self.control_all() } else { Ok(()) }
    }

    /// Handles some of the messages that wait in the control, or all of them if nothing is late.
    pub fn control(&mut self) -> Result<()> {
        if self.terms.late.is_none() {
            return self.control_all();
        }
        for core in 0..self.cores.len() {
            if self.dice.below(4) == 0 {
                self.obey(core)?;
            }
        }
        self.hubs.work(Some(&mut self.dice));
        self.begin()
    }

    /// Lets a core make a turn. Its hub gets the core's reports.
    pub fn turn_core(&mut self, core: usize) -> bool {
        let known = self.notices.len();
        let worked = self.cores[core].turn(&mut self.notices);
        self.pass_notices(core, known);
        worked
    }

    /// Gives a core's hub the core's notices, beginning with number `from`.
    fn pass_notices(&mut self, core: usize, from: usize) {
        let (hub, core) = (core / self.terms.cores, core % self.terms.cores);
        let hub = &mut self.hubs.hubs[hub];
        self.notices[from..].iter().for_each(|notice| hub.handle_notice(core, notice));
    }

    /// Lets a worker begin once it takes part at all hubs. A real session also waits for the news of all its hubs.
    fn begin(&mut self) -> Result<()> {
        self.begins.extend(self.hubs.lead().begun());
        for (rank, from) in self.begins.extract_if(.., |(rank, _)| self.hubs.takes_part(*rank)) {
            self.workers[rank as usize].begin(from)?;
        }
        Ok(())
    }

    fn obey(&mut self, place: usize) -> Result<()> {
        let (hub, core) = (place / self.terms.cores, place % self.terms.cores);
        Ok(self.hubs.hubs[hub].obey(core, self.cores.get_mut(place), &mut self.notices)?)
    }

    /// Pauses the job. Returns the round that no chunk has passed.
    pub fn hold(&mut self) -> Round {
        let fronts = self.cores.iter_mut().filter_map(|core| core.hold(JOB));
        fronts.map(|front| front.highest).max().unwrap_or_default()
    }

    /// Lets the job continue. The workers in `admitted` take part from round `from` on.
    pub fn release(&mut self, from: Round, admitted: &[u32]) {
        self.cores.iter_mut().for_each(|core| core.release(JOB, from, admitted, &mut self.notices));
    }

    /// Hangs a worker, so that it does nothing any more and its links remain.
    pub fn hang(&mut self, rank: u32) {
        self.hubs.hubs.iter_mut().for_each(|hub| hub.harms(rank, Harm::Hangs));
        self.alive[rank as usize] = false;
    }

    /// Notes that a worker stalls: its program pushes nothing any more, and its session takes answers and sends heartbeats.
    pub fn stall(&mut self, rank: u32) {
        self.hubs.hubs.iter_mut().for_each(|hub| hub.harms(rank, Harm::Late));
    }

    /// Changes the learning rate at all hubs, from a round on that no worker has pushed.
    pub fn change_rate(&mut self, rate: f32, from: Round) {
        let cores = self.cores.chunks_mut(self.terms.cores);
        for (hub, cores) in self.hubs.hubs.iter_mut().zip(cores) {
            hub.changes_rate(rate, from, cores.iter_mut());
        }
    }

    /// Looks at the rounds on all cores.
    pub fn look(&mut self) -> Look {
        self.cores.iter_mut().fold(Look::default(), |look, core| look.with(core.look(JOB)))
    }

    /// Lets a worker leave all hubs and then close its links.
    pub fn leave(&mut self, rank: u32) {
        self.hubs.hubs.iter_mut().for_each(|hub| hub.leaves(rank));
        self.alive[rank as usize] = false;
        self.ends[rank as usize].iter().for_each(|&end| self.net.kill(end));
    }

    /// Kills a worker, so that its links end without a message.
    pub fn kill(&mut self, rank: u32) {
        self.ends_for(rank, Harm::Killed);
    }

    /// Ends a worker's links and heartbeat without a message. `why` is the harm that the test has done to the worker.
    pub fn ends_for(&mut self, rank: u32, why: Harm) {
        self.alive[rank as usize] = false;
        self.ends[rank as usize].iter().for_each(|&end| self.net.kill(end));
        self.hubs.hubs.iter_mut().for_each(|hub| hub.hang_up(rank, why.clone()));
    }

    /// Lets a killed worker join again without weights, and waits until it takes part. Returns its first round. The hub
    /// first loses the former worker, if it has not noticed its death yet.
    pub fn rejoin(&mut self, rank: u32) -> Result<Round> {
        self.hubs.lead().lose(rank, "it comes back");
        self.wait_until(|hubs| hubs.is_free(rank))?;
        anyhow::ensure!(self.come_back(rank)?, "rank {rank} is free");
        self.wait_until(|hubs| hubs.lead().job().members.takes_part(rank))?;
        Ok(self.hubs.lead().first_round(rank).expect("it takes part"))
    }

    /// Lets a killed worker join again without weights if its rank is free at all hubs. Returns whether the worker
    /// joins. The worker takes part some steps later.
    pub fn come_back(&mut self, rank: u32) -> Result<bool> {
        if !self.ask_if_woken(rank, |hubs| hubs.is_free(rank)) {
            return Ok(false);
        }
        self.begins.retain(|(begins, _)| *begins != rank); // of its previous life
        let (exchange, ends, windows) = self.connect(rank)?;
        (self.workers[rank as usize], self.ends[rank as usize]) = (exchange, ends);
        self.windows[rank as usize] = windows;
        self.alive[rank as usize] = true;
        Ok(true)
    }

    /// Calls `ask`, and returns its result. If `ask` returned false, the worker waits: later calls ask again only after
    /// a hub has woken the waiting members.
    fn ask_if_woken(&mut self, rank: u32, ask: impl FnOnce(&mut Hubs) -> bool) -> bool {
        let (woken, waits) = (self.hubs.wakes(), self.waits[rank as usize]);
        let is_there = waits != Some(woken) && ask(&mut self.hubs);
        self.waits[rank as usize] = (!is_there).then_some(woken);
        is_there
    }

    /// Asks all hubs for links once more, as a worker without links does after a lost answer.
    pub fn asks_again(&mut self, rank: u32) {
        self.hubs.hubs.iter_mut().for_each(|hub| hub.unlink(rank));
    }

    /// Whether a worker takes part at all hubs, and knows it.
    pub fn takes_part(&self, rank: u32) -> bool {
        self.hubs.takes_part(rank) && self.begins.iter().all(|(begins, _)| *begins != rank)
    }

    /// Whether the control has something to do.
    pub fn is_busy(&self) -> bool {
        self.hubs.is_busy()
    }

    /// Makes turns until `is_there` returns true for the hubs.
    fn wait_until(&mut self, is_there: impl Fn(&mut Hubs) -> bool) -> Result<()> {
        self.control()?;
        while !is_there(&mut self.hubs) {
            anyhow::ensure!(self.hubs.is_busy(), "a worker comes back, and nothing is under way");
            self.turn()?;
            self.control()?;
        }
        Ok(())
    }

    /// Inverts a byte of the significant set's signature in a worker's next push of a chunk, with Slim-DP. A push of
    /// the whole chunk has no such set, so the hub can still read that push.
    pub fn corrupt_signature(&self, rank: u32, chunk: ChunkId) {
        let end = self.ends[rank as usize][self.placement.owner(chunk)];
        self.net.flip_next(end, self.wire.weights_span(chunk).offset + HEADER_BYTES);
    }

    /// Whether a worker lives.
    pub fn is_alive(&self, rank: u32) -> bool {
        self.alive[rank as usize]
    }

    /// Returns the placement of the chunks.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    pub fn net(&self) -> &Net {
        &self.net
    }

    /// Lets every core and every living worker work once. Returns true if anything happened.
    pub fn step(&mut self) -> Result<bool, ExchangeError> {
        self.control().expect("cores take what the control gives them");
        self.turn()
    }

    fn turn(&mut self) -> Result<bool, ExchangeError> {
        let mut worked = self.hubs.is_busy();
        for core in 0..self.cores.len() {
            worked |= self.turn_core(core);
        }
        let (may_end, _) = self.hubs.has_failed();
        let workers =
            self.workers.iter_mut().zip(&mut self.batches).zip(&mut self.arrivals).zip(&mut self.alive);
        let workers = (0..).zip(workers);
        for (rank, (((worker, batches), arrivals), alive)) in workers.filter(|(_, (_, alive))| **alive) {
            let worked_off = worker.progress().and_then(|count| {
                if let Some(batches) = batches {
                    batches.take_news(worker);
                    batches.pull(worker)?;
                }
                Ok(count)
            });
            let count = match worked_off {
                // The hubs have closed the links of a worker that they have lost.
                Err(_) if may_end || !self.hubs.have(rank) => {
                    *alive = false;
                    continue;
                }
                count => count?,
            };
            *arrivals += count as u64;
            worked |= count > 0;
        }
        Ok(worked)
    }

    /// Makes steps until no push is in flight. If nothing moves for `limit` steps, because the network has lost a post,
    /// returns an error that names the first key that waits.
    pub fn settle(&mut self, limit: u32) -> Result<()> {
        let mut idle = 0;
        while let Some((rank, key)) = self.first_under_way() {
            idle = if self.step()? { 0 } else { idle + 1 };
            let worker = &self.workers[rank];
            anyhow::ensure!(
                idle < limit,
                "worker {rank} waits for {} chunks of key {:?} in round {}, and nothing moves any more",
                worker.outstanding(key),
                worker.layout().keys()[key.index()].name,
                worker.round(key).0,
            );
        }
        Ok(())
    }

    fn first_under_way(&self) -> Option<(usize, pbox_core::KeyId)> {
        let mut ranks = self.workers.iter().enumerate();
        ranks.find_map(|(rank, worker)| worker.first_under_way().map(|key| (rank, key)))
    }
}
