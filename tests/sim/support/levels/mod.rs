//! Hubs below hubs over the simulated transport, in one thread: a tree whose root steps and whose leaves are workers. The
//! caller makes every step, and a seed decides the rest.

mod link;
mod losses;
mod strike;

use std::sync::Arc;

use anyhow::Result;
use fabric::sim::{self, EndId, Net};
use fabric::{RecvWindow, SendWindow};
use pbox_core::kernels::Kernels;
use pbox_core::{Core, JobId, JobTerms, Layout, LevelTerms, Members, Notice, OnLoss, Placement, Round, Wire};
use worker_shim::{Exchange, ExchangeError};

pub use losses::Losses;
pub use strike::{ENDS, Strike};

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
    /// The terms of each level, that of the root first. Below the root, levels step together and have no codec.
    pub levels: Vec<LevelTerms>,
    /// The number of cores of each hub, in the order in which hubs are made; the last is that of all others. In a mesh all
    /// have the first.
    pub cores: Vec<usize>,
    /// The credit of each link at a worker, in bytes.
    pub worker_credit: Option<usize>,
    /// The machines' hubs are the root: each owns a share.
    pub mesh: bool,
    /// As in [`simulated`](crate::simulated::Terms::is_orderly).
    pub is_orderly: bool,
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
    /// How it is linked to the hub above.
    up: Option<Up>,
    alive: bool,
}

/// The windows of a hub's links that lead up.
#[derive(Clone)]
struct Up {
    sums: Arc<SendWindow>,
    /// That of the workers.
    shown: Arc<RecvWindow>,
    /// The hub above writes a window of its own.
    takes_answers: bool,
    /// In a mesh.
    own: Option<usize>,
    /// By core.
    ways: Vec<Vec<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    memory: sim::Windows,
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
        let node = self.make(Arc::new(terms), above, cores, depth)?;
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

    /// The living cores of a node.
    fn cores_of(&mut self, node: usize) -> impl Iterator<Item = &mut Core<sim::Port>> {
        let of_node = &self.nodes[node].cores;
        let cores = self.cores.iter_mut().enumerate().filter(|(number, _)| of_node.contains(number));
        cores.filter_map(|(_, core)| core.as_mut())
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

    /// A worker that lives loses its links: its hub lets go of them. It counts as dead until it makes others.
    pub fn unlink(&mut self, worker: usize) {
        let Worker { node, rank, .. } = self.workers[worker];
        self.cores_of(node).for_each(|core| drop(core.unlink_worker(JOB, rank)));
        let port = self.net.port();
        self.workers[worker].exchange.cut(port);
        self.workers[worker].alive = false;
    }

    /// It makes others, and pushes again what has no answer.
    pub fn relink(&mut self, worker: usize) -> Result<()> {
        let Worker { node, rank, ref memory, .. } = self.workers[worker];
        let memory = memory.clone();
        let endpoints = self.link_worker(node, rank, &memory)?;
        let (port, credit) = (self.net.port(), self.terms.worker_credit);
        let Worker { exchange, ends, alive, .. } = &mut self.workers[worker];
        (*ends, *alive) = (endpoints.iter().map(sim::Endpoint::id).collect(), true);
        let received = vec![memory.recv; endpoints.len()];
        exchange.relink(port, endpoints, received);
        exchange.set_credit(credit);
        Ok(exchange.push_again()?)
    }

    /// A hub loses the links to the hub above, which lets go of them. All cores make so many turns before this hub does, too.
    pub fn unlink_hub(&mut self, node: usize, turns: u64) {
        let (parent, rank) = self.nodes[node].above.expect("a hub below another");
        let job = self.nodes[parent].job;
        self.cores_of(parent).for_each(|core| drop(core.unlink_worker(job, rank)));
        for _ in 0..turns {
            let cores = self.cores.iter_mut().flatten();
            cores.for_each(|core| _ = core.turn(&mut Vec::new())); // the links end: that is no news
        }
        self.cores_of(node).for_each(|core| drop(core.unlink_above(JOB)));
    }

    /// It makes others, and its sums that have no answer go up again.
    pub fn relink_hub(&mut self, node: usize) -> Result<()> {
        let Node { above, up, cores, .. } = &self.nodes[node];
        let (above, up, cores) = (above.expect("as before"), up.clone().expect("as before"), cores.clone());
        self.link_up(above, &up, &cores)
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
        self.workers[worker] = self.connect(node, rank)?;
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
            self.workers[worker] = self.connect(node, rank)?;
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

    /// A node's rank at the hub above.
    pub fn rank_above(&self, node: usize) -> usize {
        self.nodes[node].above.map_or(0, |(_, rank)| rank as usize)
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
