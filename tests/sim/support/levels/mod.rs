//! Hubs below hubs over the simulated transport, in one thread: a tree whose root steps and whose leaves are
//! workers. The caller makes every step, and a seed decides everything else.

mod drive;
mod link;
mod losses;
mod strike;

use std::sync::Arc;

use anyhow::Result;
use fabric::sim::{self, EndId, Net};
use fabric::{RecvWindow, SendWindow};
use pbox_core::kernels::Kernels;
use pbox_core::{
    Core, JobId, JobTerms, Layout, LevelTerms, Members, Notice, Numbers, NumbersByRound, Placement, Round,
    Wire,
};
use worker_shim::{Exchange, ExchangeError};

use crate::control::{Control, Harm};
use crate::simulated::EarlierLife;
use crate::trouble::Dice;

pub use losses::Losses;
pub use strike::{ENDS, Strike};

/// The number of the job at every hub. In a mesh, the job at the top has the number `ABOVE`, because both jobs are on
/// the same cores.
const JOB: JobId = JobId(0);
const ABOVE: JobId = JobId(1);

/// The members below a hub: workers or hubs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    Worker,
    Hub(Vec<Shape>),
}

/// The terms of a tree.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The terms of the job. Their number of hubs is the number of hubs at the root. Their model, members and level
    /// are not used.
    pub job: JobTerms,
    /// The terms of each level, from the root down. Levels below the root step together and have no codec.
    pub levels: Vec<LevelTerms>,
    /// The number of cores of each hub, in the order in which hubs are made. The last number applies to all
    /// later hubs. In a mesh, the first number applies to all hubs.
    pub cores: Vec<usize>,
    /// The credit of each link at a worker, in bytes.
    pub worker_credit: Option<usize>,
    /// Whether the tree is a mesh: the hubs of all machines together are the root, and each owns a share of the chunks.
    pub mesh: bool,
    /// Whether the network is orderly, as in [`simulated`](crate::simulated::Terms::is_orderly).
    pub is_orderly: bool,
    /// The seed of a late control, as in [`simulated`](crate::simulated::Terms::late).
    pub late: Option<u64>,
    /// The state that the job continues from, if it continues, with the round that each worker had reached. Then
    /// `Levels::new` returns before all workers take part.
    pub earlier: Option<EarlierLife>,
}

/// A hub, or all hubs of the root together.
pub struct Node {
    terms: Arc<JobTerms>,
    wire: Wire,
    /// The places of the chunks that each hub owns.
    shares: Vec<Placement>,
    placement: Placement,
    /// The windows that the members read: one for each hub of this node. In a mesh, members read the windows of their
    /// own machine.
    weights: Vec<Arc<SendWindow>>,
    job: JobId,
    /// The numbers of this node's cores among the cores of all hubs.
    cores: Vec<usize>,
    /// The number of the hub above, and the rank of this hub there.
    above: Option<(usize, u32)>,
    /// One entry for each rank.
    members: Vec<Member>,
    cores_of_a_hub: usize,
    depth: usize,
    /// The windows of this node's links to the hub above.
    up: Option<Up>,
    alive: bool,
    pub control: Control,
}

/// The windows of a hub's links to hubs above.
#[derive(Clone)]
struct Up {
    sums: Arc<SendWindow>,
    /// The window that workers read.
    shown: Arc<RecvWindow>,
    /// Whether hubs above write into a window of this hub.
    takes_answers: bool,
    /// The number of this hub among the hubs above, in a mesh.
    own: Option<usize>,
    /// The links of each core, by core.
    by_core: Vec<Vec<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Member {
    Worker(usize),
    Hub(usize),
}

/// A worker, and its place in the tree.
pub struct Worker {
    pub exchange: Exchange<sim::Port>,
    pub node: usize,
    pub rank: u32,
    ends: Vec<EndId>,
    memory: sim::Windows,
    alive: bool,
}

/// A tree of hubs, and its workers.
pub struct Levels {
    net: Net,
    layout: Arc<Layout>,
    terms: Terms,
    /// The cores of all hubs that live.
    cores: Vec<Option<Core<sim::Port>>>,
    /// The nodes, the root first.
    pub nodes: Vec<Node>,
    /// The workers, in the order of the tree.
    pub workers: Vec<Worker>,
    /// The notices of all nodes so far, each with its node.
    pub notices: Vec<(usize, Notice)>,
    /// The dice that decide when a late control works.
    dice: Dice,
}

impl Levels {
    /// Connects a tree over `net`.
    pub fn new(net: Net, layout: &Arc<Layout>, terms: Terms, root: &[Shape]) -> Result<Self> {
        let layout = Arc::clone(layout);
        let (nodes, workers, notices) = (Vec::new(), Vec::new(), Vec::new());
        let dice = Dice::new(terms.late.unwrap_or(0));
        let mut tree = Levels { net, layout, terms, cores: Vec::new(), nodes, workers, notices, dice };
        tree.add(root, None, 0)?;
        if tree.terms.earlier.is_some() {
            return Ok(tree);
        }
        tree.until(|tree| {
            (0..tree.nodes.len()).all(|node| tree.begins(node, 0..tree.nodes[node].members.len() as u32))
        })?;
        Ok(tree)
    }

    /// Adds a hub with the workers or hubs below it. Returns its number.
    fn add(&mut self, below: &[Shape], above: Option<(usize, u32)>, depth: usize) -> Result<usize> {
        let number = self.nodes.len();
        let of_number = if self.terms.mesh { 0 } else { number };
        let cores = *self.terms.cores.get(of_number).or(self.terms.cores.last()).expect("cores of hubs");
        let has_hubs = below.iter().any(|shape| *shape != Shape::Worker);
        let members = match (has_hubs, self.terms.mesh) {
            (false, _) => Members::Workers,
            (true, false) => Members::Hubs,
            (true, true) => Members::Mesh,
        };
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
        let mut node = self.make(number, Arc::new(terms), above, cores, depth)?;
        if let Some(EarlierLife { restored, files, reached, .. }) = &self.terms.earlier {
            let first = restored.as_ref().filter(|_| above.is_none()).map(|restored| restored.round());
            let numbers = NumbersByRound::new(Numbers::new(self.terms.job.optimizer));
            let reached = reached.iter().skip(if has_hubs { reached.len() } else { self.workers.len() });
            let reached = Vec::from_iter(reached.copied().chain(std::iter::repeat(None)).take(below.len()));
            node.control.begin_again((first.unwrap_or_default(), numbers), files, &reached);
        }
        self.nodes.push(node);
        for (rank, shape) in (0..).zip(below) {
            let member = match shape {
                Shape::Hub(below) => Member::Hub(self.add(below, Some((number, rank)), depth + 1)?),
                Shape::Worker => {
                    let worker = self.connect(number, rank)?;
                    self.workers.push(worker);
                    Member::Worker(self.workers.len() - 1)
                }
            };
            self.nodes[number].members.push(member);
        }
        Ok(number)
    }

    fn new_core(&mut self) -> usize {
        self.cores.push(Some(Core::new(self.net.port(), Kernels::detect())));
        self.cores.len() - 1
    }

    fn core(&mut self, number: usize) -> &mut Core<sim::Port> {
        self.cores[number].as_mut().expect("a core that lives")
    }

    /// Returns the living cores of a node.
    fn cores_of(&mut self, node: usize) -> impl Iterator<Item = &mut Core<sim::Port>> {
        let of_node = &self.nodes[node].cores;
        let cores = self.cores.iter_mut().enumerate().filter(|(number, _)| of_node.contains(number));
        cores.filter_map(|(_, core)| core.as_mut())
    }

    /// Changes the learning rate at the hubs at the top, from a round on that no worker has pushed. The worker asks its
    /// own hub, and each hub passes the request on to the hub above.
    pub fn change_rate(&mut self, worker: usize, rate: f32, from: Round) {
        let mut hub = self.workers[worker].node;
        while let Some(above) = self.above(hub) {
            self.nodes[hub].control.passes_rate(rate, from);
            hub = above;
        }
        let Levels { nodes, cores, .. } = self;
        let Node { cores: of_node, control, .. } = &mut nodes[hub];
        let cores = cores.iter_mut().enumerate().filter(|(number, _)| of_node.contains(number));
        control.changes_rate(rate, from, cores.filter_map(|(_, core)| core.as_mut()));
    }

    /// Kills a worker, so that its links end without a message.
    pub fn kill(&mut self, worker: usize) {
        let Worker { node, rank, ref mut alive, ref ends, .. } = self.workers[worker];
        *alive = false;
        ends.iter().for_each(|&end| self.net.kill(end));
        self.nodes[node].control.hang_up(rank, Harm::Killed);
    }

    /// Unlinks a living worker, which asks for new links. The worker counts as dead until it has made the new links.
    pub fn unlink(&mut self, worker: usize) {
        let Worker { node, rank, .. } = self.workers[worker];
        self.nodes[node].control.unlink(rank);
        let port = self.net.port();
        self.workers[worker].exchange.cut(port);
        self.workers[worker].alive = false;
        self.control_at_once().expect("links are dropped");
    }

    /// Makes new links for a worker if all cores have dropped the old links. Then the worker pushes all keys
    /// without an answer again. Returns whether the links were made.
    pub fn relink(&mut self, worker: usize) -> Result<bool> {
        let Worker { node, rank, ref memory, .. } = self.workers[worker];
        if !self.nodes[node].control.relink(rank) {
            return Ok(false);
        }
        let memory = memory.clone();
        let endpoints = self.link_worker(node, rank, &memory)?;
        let (port, credit) = (self.net.port(), self.terms.worker_credit);
        let Worker { exchange, ends, alive, .. } = &mut self.workers[worker];
        (*ends, *alive) = (endpoints.iter().map(sim::Endpoint::id).collect(), true);
        let received = vec![memory.recv; endpoints.len()];
        exchange.relink(port, endpoints, received);
        exchange.set_credit(credit);
        self.control_at_once()?;
        self.workers[worker].exchange.push_again()?;
        Ok(true)
    }

    /// Unlinks a hub from the hub above, and asks for new links. All cores make `turns` turns before this hub drops its
    /// ends of the links.
    pub fn unlink_hub(&mut self, node: usize, turns: u64) {
        let (parent, rank) = self.nodes[node].above.expect("a hub below another");
        self.nodes[node].control.loses_above();
        self.nodes[parent].control.unlink(rank);
        self.control_at_once().expect("links are dropped");
        for _ in 0..turns {
            self.turn_cores();
        }
        self.nodes[node].control.unlink_above();
        self.control_at_once().expect("links are dropped");
    }

    /// Makes new links for a hub if all cores have dropped the old links. Then the hub sends its sums without
    /// an answer up again. Returns whether the links were made.
    pub fn relink_hub(&mut self, node: usize) -> Result<bool> {
        let Node { above, up, control, .. } = &self.nodes[node];
        let ((parent, rank), up) = (above.expect("as before"), up.clone().expect("as before"));
        if !control.is_unlinked_above() || !self.nodes[parent].control.relink(rank) {
            return Ok(false);
        }
        let links = self.link_up((parent, rank), &up)?;
        self.nodes[node].add_links_above(links);
        self.control_at_once()?;
        Ok(true)
    }

    /// Kills a hub, so that all its links end.
    pub fn kill_hub(&mut self, node: usize) {
        for number in self.nodes[node].cores.clone() {
            self.cores[number] = None;
        }
        self.note_gone(node);
        if let Some((parent, rank)) = self.nodes[node].above {
            self.nodes[parent].control.hang_up(rank, Harm::Killed);
        }
    }

    /// Kills a hub and everything below it.
    pub fn kill_machine(&mut self, node: usize) {
        self.kill_hub(node);
        self.kill_below(node);
    }

    fn kill_below(&mut self, node: usize) {
        for member in self.nodes[node].members.clone() {
            match member {
                Member::Worker(worker) => self.kill(worker),
                Member::Hub(below) => self.kill_machine(below),
            }
        }
    }

    /// Notes that a hub makes no round of the job any more.
    fn note_gone(&mut self, node: usize) {
        self.nodes[node].alive = false;
        self.nodes[node].control.end();
    }

    /// Lets a killed worker join its hub again, and waits until it takes part, or until the hub has ended.
    pub fn rejoin(&mut self, worker: usize) -> Result<()> {
        let Worker { node, rank, .. } = self.workers[worker];
        self.lose(node, rank)?;
        if self.come_back(worker)? {
            self.until(|tree| tree.begins(node, [rank]))?;
        }
        Ok(())
    }

    /// Lets a killed worker join again if its hub lives and its rank is free. Returns whether the worker joins. The
    /// worker takes part some steps later.
    pub fn come_back(&mut self, worker: usize) -> Result<bool> {
        let Worker { node, rank, .. } = self.workers[worker];
        let may_join = self.is_free(node, rank);
        if may_join {
            self.workers[worker] = self.connect(node, rank)?;
        }
        Ok(may_join)
    }

    /// Lets a killed hub and its workers join again, and waits until the workers take part, or until the hub has ended.
    pub fn rejoin_hub(&mut self, node: usize) -> Result<()> {
        let (parent, rank) = self.nodes[node].above.expect("the root does not come back");
        self.lose(parent, rank)?;
        if self.hub_comes_back(node)? {
            let ranks = 0..self.nodes[node].members.len() as u32;
            self.until(|tree| tree.begins(node, ranks.clone()))?;
        }
        Ok(())
    }

    /// Lets a killed hub and all its workers join again if the hub above lives and its rank there is free. The hubs
    /// below this hub join by themselves. Returns whether the hub joins.
    pub fn hub_comes_back(&mut self, node: usize) -> Result<bool> {
        let Node { above, cores_of_a_hub, depth, .. } = self.nodes[node];
        let (parent, rank) = above.expect("the root does not come back");
        if !self.is_free(parent, rank) {
            return Ok(false);
        }
        let terms = Arc::clone(&self.nodes[node].terms);
        let made = self.make(node, terms, above, cores_of_a_hub, depth)?;
        let members = std::mem::replace(&mut self.nodes[node], made).members;
        for (rank, &member) in (0..).zip(&members) {
            if let Member::Worker(worker) = member {
                self.workers[worker] = self.connect(node, rank)?;
            }
        }
        self.nodes[node].members = members;
        Ok(true)
    }

    /// Whether a hub lives and this rank of its job is free.
    fn is_free(&self, node: usize, rank: u32) -> bool {
        self.nodes[node].alive && self.nodes[node].control.job().members.get(rank).is_none()
    }

    /// Makes the hub lose the former member of a rank that comes back, because the hub may not have noticed yet that
    /// the member is gone.
    fn lose(&mut self, node: usize, rank: u32) -> Result<()> {
        self.nodes[node].control.lose(rank, "it comes back");
        self.end_failed(node);
        self.control_all()
    }

    /// Whether the members of these ranks take part, or the node has ended.
    fn begins(&self, node: usize, ranks: impl IntoIterator<Item = u32>) -> bool {
        let Node { alive, control, .. } = &self.nodes[node];
        !alive || ranks.into_iter().all(|rank| control.job().members.takes_part(rank))
    }

    /// Whether a worker lives.
    pub fn is_alive(&self, worker: usize) -> bool {
        self.workers[worker].alive
    }

    /// Returns the round from which a worker takes part, if it takes part.
    pub fn first_round(&self, worker: usize) -> Option<Round> {
        let Worker { node, rank, .. } = self.workers[worker];
        let of_node = &self.nodes[node];
        of_node.control.first_round(rank).filter(|_| of_node.alive)
    }

    /// Whether the hub of a worker lives.
    pub fn has_hub(&self, worker: usize) -> bool {
        self.is_hub_alive(self.workers[worker].node)
    }

    /// Whether a hub lives.
    pub fn is_hub_alive(&self, node: usize) -> bool {
        self.nodes[node].alive
    }

    /// Whether a node's members are workers.
    pub fn has_workers(&self, node: usize) -> bool {
        matches!(self.nodes[node].members[..], [Member::Worker(_), ..])
    }

    /// Returns the places of the chunks at the hubs of the root.
    pub fn placement(&self) -> &Placement {
        &self.nodes[0].placement
    }

    pub fn rank_above(&self, node: usize) -> usize {
        self.nodes[node].above.map_or(0, |(_, rank)| rank as usize)
    }

    pub fn above(&self, node: usize) -> Option<usize> {
        self.nodes[node].above.map(|(above, _)| above)
    }

    /// Lets every core and every living worker work once. Returns true if anything happened.
    pub fn step(&mut self) -> Result<bool, ExchangeError> {
        self.control().expect("cores take what the control gives them");
        self.turn()
    }

    fn turn(&mut self) -> Result<bool, ExchangeError> {
        let mut worked = self.turn_cores() | self.are_controls_busy();
        for worker in self.workers.iter_mut().filter(|worker| worker.alive) {
            worked |= worker.exchange.progress()? > 0;
        }
        Ok(worked)
    }

    fn turn_cores(&mut self) -> bool {
        let mut worked = false;
        for core in 0..self.cores.len() {
            let mut notices = Vec::new();
            worked |= self.cores[core].as_mut().is_some_and(|core| core.turn(&mut notices));
            for notice in notices {
                let node = self.node_of(core, &notice);
                let place = self.nodes[node].cores.iter().position(|&of| of == core).expect("its core");
                self.handle_notice(node, place, notice);
            }
        }
        worked
    }

    /// Returns the node whose job a core's notice is about. In a mesh, a core has jobs of two nodes.
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
}
