//! A simulation by events: machines with a worker and a hub each, which train in BSP and pull in batches.
//!
//! The rules are those of the exchange, on a simulated clock:
//!
//! ```text
//!   backward, last layer first -> a layer's gradients queue at the worker's link
//!   all workers' gradients of a layer have arrived -> notice -> batch due -> start-up -> pull -> arrival -> next batch due
//!   a batch's layers compute forward when the batch has arrived and the previous batch is computed
//! ```
//!
//! Sums and steps take no time. The simulation is deterministic. It must not depend on how batches are
//! chosen.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use super::network::{Flow, share_out};

/// A layer of every worker.
#[derive(Clone, Debug)]
pub struct ClusterLayer {
    /// The time of the forward pass, in seconds.
    pub forward: f64,
    /// The time of the backward pass, in seconds.
    pub backward: f64,
    /// The number of the layer's bytes on each machine's hub.
    pub by_hub: Vec<f64>,
}

/// Machines with a worker, a hub and a link each.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The number of machines.
    pub nodes: usize,
    /// The rate of each link in each direction.
    pub link_bytes_per_s: f64,
    /// The time in seconds from the moment when a batch can be pulled to the request for the batch.
    pub start_up: f64,
    /// The time in seconds of a message without bytes.
    pub latency: f64,
    /// Whether gradients are sent only when the whole backward pass is done.
    pub push_at_the_end: bool,
    /// The layers, in the order of the forward pass.
    pub layers: Vec<ClusterLayer>,
}

/// An iteration in seconds, as means over the workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ran {
    /// The time from a forward pass to the next one.
    pub iteration: f64,
    /// The time from the moment when the first batch can be pulled to the arrival of the last batch.
    pub pull: f64,
    /// The time from the moment when the first batch can be pulled to the end of the forward pass.
    pub pull_and_forward: f64,
    /// The time from the moment when the first batch can be pulled to the beginning of the last layer.
    pub to_last_layer: f64,
    /// The time of each batch from the moment when it can be pulled to its arrival.
    pub pulls: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// A worker has computed a batch forward.
    Forward(usize, usize),
    /// A worker has computed a layer backward.
    Backward(usize, usize),
    /// All workers can pull a layer.
    Noticed(usize),
    /// A worker requests a batch.
    Asked(usize, usize),
}

/// An event with its time and its number in the order of planning. Events are sorted by time, and then by this number.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Planned(f64, u64, Event);

impl Eq for Planned {}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone, Debug, Default)]
struct Worker {
    /// The layers whose gradients wait for the link. The gradients of the first layer are on the link.
    pushes: VecDeque<usize>,
    /// Whether the worker has been notified of each layer.
    noticed: Vec<bool>,
    /// The batch that is being pulled, or the next batch to pull. The flag says whether its pull has begun.
    batch: usize,
    is_pulling: bool,
    /// The number of batches that have arrived, and the number that are computed or being computed.
    there: usize,
    computed: usize,
    is_computing: bool,
    /// The time when the first batch of the round could be pulled, and the time when the current batch could
    /// be pulled.
    first_due_at: f64,
    due_at: f64,
    forward_at: f64,
    ran: Ran,
}

/// A flow: a worker's push of a layer, or its pull of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cargo {
    Push(usize, usize),
    Pull(usize, usize),
}

struct Simulation<'a> {
    cluster: &'a Cluster,
    batches: &'a [Range<usize>],
    now: f64,
    planned: BinaryHeap<Reverse<Planned>>,
    count: u64,
    flows: Vec<Flow>,
    cargo: Vec<Cargo>,
    workers: Vec<Worker>,
    /// The number of workers whose gradients have arrived, by layer.
    pushed: Vec<usize>,
    iterations: u32,
}

/// Simulates a first iteration, before which all weights have arrived, and then `iterations` more. Returns the last
/// iteration.
pub fn simulate(cluster: &Cluster, batches: &[Range<usize>], iterations: u32) -> Ran {
    let layers = cluster.layers.len();
    let ran = Ran { pulls: vec![0.0; batches.len()], ..Ran::default() };
    let (there, batch) = (batches.len(), batches.len());
    let worker = Worker { noticed: vec![false; layers], there, batch, ran, ..Worker::default() };
    let mut simulation = Simulation {
        cluster,
        batches,
        now: 0.0,
        planned: BinaryHeap::new(),
        count: 0,
        flows: Vec::new(),
        cargo: Vec::new(),
        workers: vec![worker; cluster.nodes],
        pushed: vec![0; layers],
        iterations: 0,
    };
    (0..cluster.nodes).for_each(|worker| simulation.go_on(worker));
    while simulation.iterations < (iterations + 1) * cluster.nodes as u32 {
        simulation.step();
    }
    let mean = |of: &dyn Fn(&Ran) -> f64| {
        simulation.workers.iter().map(|worker| of(&worker.ran)).sum::<f64>() / cluster.nodes as f64
    };
    Ran {
        iteration: mean(&|ran| ran.iteration),
        pull: mean(&|ran| ran.pull),
        pull_and_forward: mean(&|ran| ran.pull_and_forward),
        to_last_layer: mean(&|ran| ran.to_last_layer),
        pulls: (0..batches.len()).map(|batch| mean(&|ran| ran.pulls[batch])).collect(),
    }
}

impl Simulation<'_> {
    /// Advances to the next event or the next end of a flow, whichever is earlier.
    fn step(&mut self) {
        let flow_ends =
            self.flows.iter().map(|flow| self.now + flow.bytes / flow.rate).fold(f64::INFINITY, f64::min);
        let event_at = self.planned.peek().map_or(f64::INFINITY, |Reverse(planned)| planned.0);
        let next = f64::min(flow_ends, event_at);
        assert!(next.is_finite(), "workers that wait for each other");
        let passed = next - self.now;
        self.flows.iter_mut().for_each(|flow| flow.bytes -= flow.rate * passed);
        self.now = next;
        let before = self.flows.len();
        // Times that differ by less than a billionth of a second count as equal, so that equal workers stay
        // in step.
        let mut ended = Vec::new();
        for index in (0..self.flows.len()).rev() {
            if self.flows[index].bytes <= self.flows[index].rate * 1e-9 {
                self.flows.swap_remove(index);
                ended.push(self.cargo.swap_remove(index));
            }
        }
        let mut changed = before != self.flows.len();
        ended.into_iter().for_each(|cargo| self.arrived(cargo));
        while let Some(&Reverse(Planned(at, _, event))) = self.planned.peek()
            && at <= self.now + 1e-9
        {
            self.planned.pop();
            self.happen(event);
        }
        changed |= before != self.flows.len() || self.flows.iter().any(|flow| flow.rate == 0.0);
        if changed {
            share_out(&mut self.flows, 2 * self.cluster.nodes, self.cluster.link_bytes_per_s);
        }
    }

    fn plan(&mut self, after: f64, event: Event) {
        self.count += 1;
        self.planned.push(Reverse(Planned(self.now + after, self.count, event)));
    }

    /// Sends the bytes of these layers between a worker and the hubs of all other machines. The
    /// bytes use the worker's own link `here`, and each hub's link `there`. The bytes of the worker's own hub use
    /// no link.
    fn send(&mut self, layers: Range<usize>, worker: usize, [here, there]: [usize; 2], cargo: Cargo) {
        let nodes = self.cluster.nodes;
        let by_hub = |hub: usize| {
            self.cluster.layers[layers.clone()].iter().map(|layer| layer.by_hub[hub]).sum::<f64>()
        };
        let others: Vec<(usize, f64)> = (0..nodes)
            .filter(|&hub| hub != worker)
            .map(|hub| (hub, by_hub(hub)))
            .filter(|(_, bytes)| *bytes > 0.0)
            .collect();
        let bytes: f64 = others.iter().map(|(_, bytes)| bytes).sum();
        let mut shares: Vec<(usize, f64)> =
            others.iter().map(|(hub, part)| (there * nodes + hub, part / bytes)).collect();
        shares.push((here * nodes + worker, 1.0));
        if bytes > 0.0 {
            self.flows.push(Flow { bytes, shares, rate: 0.0 });
            self.cargo.push(cargo);
        } else {
            self.arrived(cargo);
        }
    }

    fn push(&mut self, worker: usize, layer: usize) {
        self.send(layer..layer + 1, worker, [UP, DOWN], Cargo::Push(worker, layer));
    }

    fn arrived(&mut self, cargo: Cargo) {
        match cargo {
            Cargo::Push(worker, layer) => {
                self.pushed[layer] += 1;
                if self.pushed[layer] == self.cluster.nodes {
                    self.pushed[layer] = 0;
                    self.plan(2.0 * self.cluster.latency, Event::Noticed(layer));
                }
                self.workers[worker].pushes.pop_front();
                if let Some(&next) = self.workers[worker].pushes.front() {
                    self.push(worker, next);
                }
            }
            Cargo::Pull(worker, batch) => {
                let now = self.now;
                let state = &mut self.workers[worker];
                (state.there, state.batch, state.is_pulling) = (batch + 1, batch + 1, false);
                state.ran.pulls[batch] = now - state.due_at;
                state.ran.pull = now - state.first_due_at;
                self.go_on(worker);
                self.pull_if_due(worker);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Noticed(layer) => {
                for worker in 0..self.cluster.nodes {
                    self.workers[worker].noticed[layer] = true;
                    self.pull_if_due(worker);
                }
            }
            Event::Asked(worker, batch) => {
                self.send(self.batches[batch].clone(), worker, [DOWN, UP], Cargo::Pull(worker, batch));
            }
            Event::Forward(worker, batch) => {
                (self.workers[worker].computed, self.workers[worker].is_computing) = (batch + 1, false);
                if batch + 1 < self.batches.len() {
                    return self.go_on(worker);
                }
                self.forward_is_over(worker);
            }
            Event::Backward(worker, layer) => {
                let at_the_end = self.cluster.push_at_the_end;
                if layer > 0 {
                    self.plan(self.cluster.layers[layer - 1].backward, Event::Backward(worker, layer - 1));
                }
                let layers = self.cluster.layers.len();
                match at_the_end {
                    false => self.queue_push(worker, layer),
                    true if layer == 0 => (0..layers).rev().for_each(|layer| self.queue_push(worker, layer)),
                    true => {}
                }
            }
        }
    }

    fn queue_push(&mut self, worker: usize, layer: usize) {
        self.workers[worker].pushes.push_back(layer);
        if self.workers[worker].pushes.len() == 1 {
            self.push(worker, layer);
        }
    }

    fn forward_is_over(&mut self, worker: usize) {
        let last = self.cluster.layers.len() - 1;
        let now = self.now;
        let state = &mut self.workers[worker];
        state.ran.iteration = now - state.forward_at;
        state.ran.pull_and_forward = now - state.first_due_at;
        state.ran.to_last_layer = state.ran.pull_and_forward - self.cluster.layers[last].forward;
        state.forward_at = now;
        (state.batch, state.there, state.computed) = (0, 0, 0);
        state.noticed.fill(false);
        self.iterations += 1;
        self.plan(self.cluster.layers[last].backward, Event::Backward(worker, last));
    }

    /// Computes the next batch if the batch has arrived.
    fn go_on(&mut self, worker: usize) {
        let state = &mut self.workers[worker];
        let batch = state.computed;
        if !state.is_computing && batch < state.there {
            state.is_computing = true;
            let forward =
                self.cluster.layers[self.batches[batch].clone()].iter().map(|layer| layer.forward).sum();
            self.plan(forward, Event::Forward(worker, batch));
        }
    }

    fn pull_if_due(&mut self, worker: usize) {
        let state = &mut self.workers[worker];
        let Some(layers) = self.batches.get(state.batch).filter(|_| !state.is_pulling) else { return };
        if !state.noticed[layers.clone()].iter().all(|noticed| *noticed) {
            return;
        }
        let batch = state.batch;
        state.due_at = self.now;
        if batch == 0 {
            state.first_due_at = self.now;
        }
        state.is_pulling = true;
        self.plan(self.cluster.start_up + self.cluster.latency, Event::Asked(worker, batch));
    }
}

/// The two directions of a machine's link.
const UP: usize = 0;
const DOWN: usize = 1;
