//! Hubs below hubs over the simulated transport, in one thread: a tree whose root steps and whose leaves are workers. The
//! caller makes every step, and a seed decides the rest.

use std::sync::Arc;

use anyhow::Result;
use fabric::sim::{self, EndId, Net};
use fabric::{RecvWindow, SendWindow};
use pbox_core::kernels::Kernels;
use pbox_core::{
    Below, Core, JobId, JobTerms, Layout, LevelTerms, Members, Notice, OnLoss, Placement, Round, ShardSpec,
    Share, Slices, WindowsBelow, Wire,
};
use worker_shim::{Exchange, ExchangeError, WeightsMode, Windows};

/// The job at every hub, and in a mesh its name at the top, where both are on the same cores.
const JOB: JobId = JobId(0);
const ABOVE: JobId = JobId(1);

/// What is below a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    Worker,
    Hub(Vec<Shape>),
}

/// The terms of a tree.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The job's terms at the root, whose number of hubs is that of the root. Its model, its members and its level are not
    /// used.
    pub job: JobTerms,
    /// The terms of each level, that of the root first.
    pub levels: Vec<LevelTerms>,
    /// The number of cores of each hub, in the order in which hubs are made; the last is that of all others. In a mesh all
    /// have the first.
    pub cores: Vec<usize>,
    /// The credit of each link at a worker, in bytes.
    pub worker_credit: Option<usize>,
    /// The machines' hubs are the root: each owns a share.
    pub mesh: bool,
}

/// A hub, or the hubs of the root together.
pub struct Node {
    terms: Arc<JobTerms>,
    wire: Wire,
    /// Of each hub.
    shares: Vec<Placement>,
    placement: Placement,
    /// By hub: the window that its members read, or in a mesh those of one machine.
    weights: Vec<Arc<SendWindow>>,
    job: JobId,
    /// Their numbers among the cores of all hubs.
    cores: Vec<usize>,
    /// The hub above, and this hub's rank there.
    above: Option<(usize, u32)>,
    /// By rank.
    members: Vec<Member>,
    cores_of_a_hub: usize,
    depth: usize,
    alive: bool,
}

#[derive(Clone, Copy, Debug)]
enum Member {
    Worker(usize),
    Hub(usize),
}

/// A worker, and where it is.
pub struct Worker {
    pub exchange: Exchange<sim::Port>,
    pub node: usize,
    pub rank: u32,
    ends: Vec<EndId>,
    alive: bool,
}

/// A tree of hubs, and its workers.
pub struct Levels {
    net: Net,
    layout: Arc<Layout>,
    terms: Terms,
    /// The cores of all hubs, as long as they live.
    cores: Vec<Option<Core<sim::Port>>>,
    /// The root first.
    pub nodes: Vec<Node>,
    /// In the order of the tree.
    pub workers: Vec<Worker>,
    /// The notices of all nodes so far, each with its node.
    pub notices: Vec<(usize, Notice)>,
}

impl Levels {
    /// Connects a tree over `net`.
    pub fn new(net: Net, layout: &Arc<Layout>, terms: Terms, root: &[Shape]) -> Result<Self> {
        let layout = Arc::clone(layout);
        let (nodes, workers, notices) = (Vec::new(), Vec::new(), Vec::new());
        let mut tree = Levels { net, layout, terms, cores: Vec::new(), nodes, workers, notices };
        tree.add(root, None, 0)?;
        tree.begin(0, Round(0))?;
        Ok(tree)
    }

    /// Adds a hub with what is below it. Returns its number.
    fn add(&mut self, below: &[Shape], above: Option<(usize, u32)>, depth: usize) -> Result<usize> {
        let number = self.nodes.len();
        let of_number = if self.terms.mesh { 0 } else { number };
        let cores = *self.terms.cores.get(of_number).or(self.terms.cores.last()).expect("cores of hubs");
        let has_hubs = below.iter().any(|shape| *shape != Shape::Worker);
        let members = if has_hubs { Members::Hubs } else { Members::Workers };
        let level = LevelTerms { members, ..self.terms.levels[depth] };
        let hubs = match above {
            None if self.terms.mesh => below.len() as u32,
            None => self.terms.job.hubs,
            Some(_) => 1,
        };
        let terms = JobTerms {
            workers: below.len() as u32,
            keys: self.layout.keys().to_vec(),
            chunk_bytes: self.layout.chunk_bytes(),
            level,
            hubs,
            ..self.terms.job.clone()
        };
        let node = self.make(Arc::new(terms), above, cores, depth)?;
        self.nodes.push(node);
        for (rank, shape) in (0..).zip(below) {
            let member = match shape {
                Shape::Hub(below) => Member::Hub(self.add(below, Some((number, rank)), depth + 1)?),
                Shape::Worker => {
                    let (exchange, ends) = self.connect(number, rank)?;
                    self.workers.push(Worker { exchange, node: number, rank, ends, alive: true });
                    Member::Worker(self.workers.len() - 1)
                }
            };
            self.nodes[number].members.push(member);
        }
        Ok(number)
    }

    /// A hub without members. Below another, it is connected to it.
    fn make(
        &mut self,
        terms: Arc<JobTerms>,
        above: Option<(usize, u32)>,
        cores_of_a_hub: usize,
        depth: usize,
    ) -> Result<Node> {
        let wire = Wire::new(Arc::clone(&self.layout), &terms);
        let node = |shares, placement, weights, job, cores| Node {
            terms: Arc::clone(&terms),
            wire: wire.clone(),
            shares,
            placement,
            weights,
            job,
            cores,
            above,
            members: Vec::new(),
            cores_of_a_hub,
            depth,
            alive: true,
        };
        let Some((parent, rank)) = above else {
            let share = |hub| {
                let share = Share::of_hub(&terms, hub);
                Placement::of_share(&self.layout, terms.level.schedule, share, cores_of_a_hub)
            };
            let shares: Vec<Placement> = (0..terms.hubs).map(share).collect();
            let placement = Placement::over_hubs(&shares);
            let job = if self.terms.mesh { ABOVE } else { JOB };
            let (mut weights, mut cores) = (Vec::new(), Vec::new());
            for share in &shares {
                let (window, spans) = share.shown_window(&wire)?;
                let specs = ShardSpec::of_cores(&terms, &wire, share.chunks_by_core().into_iter().zip(spans));
                weights.push(window);
                for spec in specs {
                    cores.push(self.new_core());
                    self.core(*cores.last().expect("just pushed")).add_job(job, spec)?;
                }
            }
            return Ok(node(shares, placement, weights, job, cores));
        };
        let below = Below::new(&self.nodes[parent].shares, cores_of_a_hub);
        let (level, wire_above) = (self.nodes[parent].terms.level, self.nodes[parent].wire.clone());
        let (WindowsBelow { sums, .. }, specs) =
            ShardSpec::of_cores_below((&terms, &wire), (level, &wire_above), &below, rank)?;
        // In a mesh, a machine's hub is the hub above of the same number.
        let own = self.terms.mesh.then_some(rank as usize);
        let cores: Vec<usize> = match own {
            Some(own) => self.nodes[parent].cores[own * cores_of_a_hub..][..cores_of_a_hub].to_vec(),
            None => (0..cores_of_a_hub).map(|_| self.new_core()).collect(),
        };
        for (&core, spec) in cores.iter().zip(specs) {
            self.core(core).add_job(JOB, spec)?;
        }
        let weights = match own {
            Some(own) => Arc::clone(&self.nodes[parent].weights[own]),
            None => Arc::new(SendWindow::new(wire.weights_window_bytes())?),
        };
        let shown = Arc::new(RecvWindow::shown(&weights));
        let received = |hub| match own == Some(hub) {
            true => Ok(Arc::new(RecvWindow::local(wire.weights_window_bytes())?)),
            false => Ok(Arc::clone(&shown)),
        };
        let endpoints = self.link(parent, rank, &sums, received)?;
        let mut endpoints: Vec<Option<sim::Endpoint>> = endpoints.into_iter().map(Some).collect();
        for (&core, ways) in cores.iter().zip(&below.ways) {
            let endpoints = ways.iter().map(|&way| (endpoints[way].take().expect("each has one way"), None));
            self.core(core).add_above(JOB, &level, endpoints.collect::<Vec<_>>())?;
        }
        Ok(node(vec![below.placement.clone()], below.placement, vec![weights], JOB, cores))
    }

    fn new_core(&mut self) -> usize {
        self.cores.push(Some(Core::new(self.net.port(), Kernels::detect())));
        self.cores.len() - 1
    }

    fn core(&mut self, number: usize) -> &mut Core<sim::Port> {
        self.cores[number].as_mut().expect("a core that lives")
    }

    /// The living cores of a node.
    fn cores_of(&mut self, node: usize) -> impl Iterator<Item = &mut Core<sim::Port>> {
        let of_node = &self.nodes[node].cores;
        let cores = self.cores.iter_mut().enumerate().filter(|(number, _)| of_node.contains(number));
        cores.filter_map(|(_, core)| core.as_mut())
    }

    /// Links a member's windows to all cores of a node; `recv` says by hub what the member receives into. Returns the
    /// member's endpoints.
    fn link(
        &mut self,
        node: usize,
        rank: u32,
        send: &Arc<SendWindow>,
        recv: impl Fn(usize) -> Result<Arc<RecvWindow>>,
    ) -> Result<Vec<sim::Endpoint>> {
        let Node { wire, placement, weights, job, cores, .. } = &self.nodes[node];
        let cores_of_a_hub = cores.len() / weights.len();
        let at_hub = Arc::new(RecvWindow::local(wire.gradient_window_bytes())?);
        let mut endpoints = Vec::new();
        for (place, (&core, capacity)) in cores.iter().zip(placement.capacities()).enumerate() {
            let hub = place / cores_of_a_hub;
            let member = sim::Windows { send: Arc::clone(send), recv: recv(hub)? };
            let of_hub = sim::Windows { send: Arc::clone(&weights[hub]), recv: Arc::clone(&at_hub) };
            let (to_hub, to_member) = self.net.link(member, of_hub, capacity.max(1));
            endpoints.push(to_hub);
            if let Some(core) = &mut self.cores[core] {
                core.add_worker(*job, rank, Arc::clone(&at_hub), None, to_member)?;
            }
        }
        Ok(endpoints)
    }

    /// Connects a worker. Returns its exchange and its ends of the links.
    fn connect(&mut self, node: usize, rank: u32) -> Result<(Exchange<sim::Port>, Vec<EndId>)> {
        let Node { wire, placement, terms, .. } = &self.nodes[node];
        let (wire, placement, level) = (wire.clone(), placement.clone(), terms.level);
        let (gradients, spans) = Windows::gradients(&wire)?;
        let recv = Arc::new(RecvWindow::local(wire.weights_window_bytes())?);
        let endpoints = self.link(node, rank, &gradients, |_| Ok(Arc::clone(&recv)))?;
        let ends = endpoints.iter().map(sim::Endpoint::id).collect();
        let windows = Windows::new(&wire, rank, spans, vec![recv; placement.cores()], WeightsMode::Shared)?;
        let slice_bytes = level.slice_bytes.unwrap_or(self.layout.chunk_bytes());
        let slices = Slices::new(&self.layout, &placement, level.schedule, slice_bytes);
        let mut exchange =
            Exchange::new(self.net.port(), endpoints, Arc::clone(&self.layout), windows, slices);
        exchange.set_credit(self.terms.worker_credit);
        Ok((exchange, ends))
    }

    /// Lets all members of a node and below take part from a round on, as the registries of its hubs do.
    fn begin(&mut self, node: usize, from: Round) -> Result<()> {
        if self.nodes[node].above.is_some() {
            self.cores_of(node).for_each(|core| core.begin_below(JOB, from));
        }
        let members = self.nodes[node].members.clone();
        let from = self.admit(node, &(0..members.len() as u32).collect::<Vec<_>>());
        for member in members {
            match member {
                Member::Hub(below) => self.begin(below, from)?,
                Member::Worker(worker) => self.workers[worker].exchange.begin(from)?,
            }
        }
        Ok(())
    }

    /// Lets members of a node take part from the next cut on. Returns its round.
    fn admit(&mut self, node: usize, ranks: &[u32]) -> Round {
        let mut notices = Vec::new();
        let job = self.nodes[node].job;
        let fronts = self.cores_of(node).filter_map(|core| core.hold(job));
        let from = fronts.map(|front| front.highest).max().unwrap_or_default();
        self.cores_of(node).for_each(|core| core.release(job, from, ranks, &mut notices));
        self.notices.extend(notices.into_iter().map(|notice| (node, notice)));
        from
    }

    /// Kills a worker: its links end without a goodbye.
    pub fn kill(&mut self, worker: usize) {
        self.workers[worker].alive = false;
        self.workers[worker].ends.iter().for_each(|&end| self.net.kill(end));
    }

    /// Kills a hub: all its links end.
    pub fn kill_hub(&mut self, node: usize) {
        self.nodes[node].alive = false;
        for number in self.nodes[node].cores.clone() {
            self.cores[number] = None;
        }
    }

    /// Kills a hub and all below.
    pub fn kill_machine(&mut self, node: usize) {
        self.kill_hub(node);
        for member in self.nodes[node].members.clone() {
            match member {
                Member::Worker(worker) => self.kill(worker),
                Member::Hub(below) => self.kill_machine(below),
            }
        }
    }

    /// A worker that was killed comes back to its hub.
    pub fn rejoin(&mut self, worker: usize) -> Result<()> {
        let Worker { node, rank, .. } = self.workers[worker];
        self.remove(node, rank);
        let (exchange, ends) = self.connect(node, rank)?;
        self.workers[worker] = Worker { exchange, node, rank, ends, alive: true };
        let from = self.admit(node, &[rank]);
        self.workers[worker].exchange.begin(from)?;
        Ok(())
    }

    /// A hub of workers that was killed comes back with all its workers.
    pub fn rejoin_hub(&mut self, node: usize) -> Result<()> {
        let Node { above, cores_of_a_hub, depth, .. } = self.nodes[node];
        let (parent, rank) = above.expect("the root does not come back");
        self.remove(parent, rank);
        let made = self.make(Arc::clone(&self.nodes[node].terms), above, cores_of_a_hub, depth)?;
        let members = std::mem::replace(&mut self.nodes[node], made).members;
        for (rank, member) in (0..).zip(members) {
            let Member::Worker(worker) = member else { panic!("a hub of workers") };
            let (exchange, ends) = self.connect(node, rank)?;
            self.workers[worker] = Worker { exchange, node, rank, ends, alive: true };
            self.nodes[node].members.push(member);
        }
        let from = self.admit(parent, &[rank]);
        self.begin(node, from)
    }

    /// Removes a member from all cores of a node, as the registry does when a core has lost it.
    fn remove(&mut self, node: usize, rank: u32) {
        let mut notices = Vec::new();
        let job = self.nodes[node].job;
        self.cores_of(node).for_each(|core| drop(core.remove_worker(job, rank, &mut notices)));
        self.notices.extend(notices.into_iter().map(|notice| (node, notice)));
    }

    /// Whether a worker lives.
    pub fn is_alive(&self, worker: usize) -> bool {
        self.workers[worker].alive
    }

    /// Whether a hub lives.
    pub fn is_hub_alive(&self, node: usize) -> bool {
        self.nodes[node].alive
    }

    /// Whether a node's members are workers.
    pub fn has_workers(&self, node: usize) -> bool {
        matches!(self.nodes[node].members[..], [Member::Worker(_), ..])
    }

    /// The number of the hub above a node.
    pub fn above(&self, node: usize) -> Option<usize> {
        self.nodes[node].above.map(|(above, _)| above)
    }

    /// Every core and every living worker works once. True if anything happened.
    pub fn step(&mut self) -> Result<bool, ExchangeError> {
        let mut worked = false;
        for core in 0..self.cores.len() {
            let mut notices = Vec::new();
            worked |= self.cores[core].as_mut().is_some_and(|core| core.turn(&mut notices));
            for notice in notices {
                let node = self.node_of(core, &notice);
                if self.nodes[node].alive {
                    self.follow(node, &notice);
                }
                self.notices.push((node, notice));
            }
        }
        for worker in self.workers.iter_mut().filter(|worker| worker.alive) {
            worked |= worker.exchange.progress()? > 0;
        }
        Ok(worked)
    }

    /// The node that a core's notice is about.
    fn node_of(&self, core: usize, notice: &Notice) -> usize {
        let job = match notice {
            Notice::WorkerGone { job, .. }
            | Notice::AboveGone { job, .. }
            | Notice::Snapshot { job, .. }
            | Notice::Skipped { job, .. }
            | Notice::JobFailed { job, .. } => *job,
        };
        let of_core = |node: &Node| node.job == job && node.cores.contains(&core);
        self.nodes.iter().position(of_core).expect("a core's job is a node's")
    }

    /// Does what a hub's registry does: goes on without a lost member, or ends the job here.
    fn follow(&mut self, node: usize, notice: &Notice) {
        match *notice {
            Notice::Snapshot { .. } | Notice::Skipped { .. } => {}
            Notice::WorkerGone { rank, .. } if self.terms.job.on_loss == OnLoss::Continue => {
                let heard = self.notices.len();
                self.remove(node, rank);
                let failed = |(_, notice): &(usize, Notice)| matches!(notice, Notice::JobFailed { .. });
                let alone = !self.nodes[node].members.iter().any(|member| self.lives(*member));
                if alone || self.notices[heard..].iter().any(failed) {
                    self.kill_machine(node);
                }
            }
            // Other workers of this hub could not go on elsewhere.
            _ if self.terms.job.on_loss == OnLoss::Continue => self.kill_machine(node),
            Notice::WorkerGone { .. } | Notice::AboveGone { .. } | Notice::JobFailed { .. } => {
                self.kill_hub(node);
            }
        }
    }

    fn lives(&self, member: Member) -> bool {
        match member {
            Member::Worker(worker) => self.workers[worker].alive,
            Member::Hub(node) => self.nodes[node].alive,
        }
    }
}
