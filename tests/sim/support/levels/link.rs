//! Makes the hubs of a tree, the links between them, and the windows (memory that links write or read), in the same way
//! as real hubs.

use std::sync::Arc;

use anyhow::Result;
use fabric::sim;
use fabric::{RecvWindow, SendWindow};
use pbox_core::{
    Above, Below, Expected, JobTerms, LevelTerms, Placement, ShardSpec, Share, Slices, WindowsBelow, Wire,
};
use worker_shim::{Exchange, WeightsMode, Windows};

use super::{ABOVE, JOB, Levels, Node, Up, Worker};
use crate::control::{Control, LinkAbove};

impl Node {
    /// Gives the cores links to hubs above.
    pub(super) fn add_links_above(&mut self, (level, links): (LevelTerms, Vec<Vec<LinkAbove>>)) {
        let of_cores = links.into_iter().enumerate();
        of_cores.for_each(|(place, links)| self.control.add_above(place, level, links));
    }
}

impl Levels {
    /// Returns a hub with the number `number` and without members. If the hub is below another hub, connects it to that
    /// hub.
    pub(super) fn make(
        &mut self,
        number: usize,
        terms: Arc<JobTerms>,
        above: Option<(usize, u32)>,
        cores_of_a_hub: usize,
        depth: usize,
    ) -> Result<Node> {
        let mut wire = Wire::new(Arc::clone(&self.layout), &terms);
        if let Some((parent, _)) = above {
            wire = wire.below(&self.placed(parent)).expect("hubs that are there");
        }
        let control = |job, cores, placement: &Placement| {
            let owners = placement.chunks_by_core().iter().filter(|chunks| !chunks.is_empty()).count();
            let named = (job, format!("the job of hub {number}"));
            Control::with_owners(named, &terms, Share::WHOLE, (cores, above.is_some()), &[owners])
        };
        let node = |shares, placement, weights, job, cores: Vec<usize>| Node {
            control: control(job, cores.len(), &placement),
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
            up: None,
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
                for mut spec in specs {
                    spec.restored = self.terms.earlier.as_ref().and_then(|earlier| earlier.restored.clone());
                    cores.push(self.new_core());
                    self.core(*cores.last().expect("just pushed")).add_job(job, spec)?;
                }
            }
            return Ok(node(shares, placement, weights, job, cores));
        };
        let below = Below::new(&self.nodes[parent].shares, cores_of_a_hub);
        let Node { terms: terms_above, wire: wire_above, .. } = &self.nodes[parent];
        let (level, wire_above) = (terms_above.level, wire_above.clone());
        let (WindowsBelow { sums, shown }, specs) =
            ShardSpec::of_cores_below((&terms, &wire), (level, &wire_above), &below, rank)?;
        // In a mesh, the hub of a machine has the same number as a hub above.
        let own = self.terms.mesh.then_some(rank as usize);
        let cores: Vec<usize> = match own {
            Some(own) => self.nodes[parent].cores[own * cores_of_a_hub..][..cores_of_a_hub].to_vec(),
            None => (0..cores_of_a_hub).map(|_| self.new_core()).collect(),
        };
        for (&core, spec) in cores.iter().zip(specs) {
            self.core(core).add_job(JOB, spec)?;
        }
        // If `shown` is given, other hubs above write into the windows that the workers read.
        let takes_answers = shown.is_some();
        let weights = match (shown, own) {
            (Some(shown), _) => shown,
            (None, Some(own)) => Arc::clone(&self.nodes[parent].weights[own]),
            (None, None) => Arc::new(SendWindow::new(wire.weights_window_bytes())?),
        };
        let shown = Arc::new(RecvWindow::shown(&weights));
        let up = Up { sums, shown, takes_answers, own, by_core: below.cores_above };
        self.nodes[parent].control.join(rank);
        let links = self.link_up((parent, rank), &up)?;
        let mut made = node(vec![below.placement.clone()], below.placement, vec![weights], JOB, cores);
        made.add_links_above(links);
        Ok(Node { up: Some(up), ..made })
    }

    /// Returns the places of a node's chunks, in the form in which the node reports them to the hubs below.
    fn placed(&self, node: usize) -> Above {
        let Node { terms, cores_of_a_hub, above, .. } = &self.nodes[node];
        Above {
            schedule: terms.level.schedule,
            split_above: terms.splits_above(),
            cores: vec![(*cores_of_a_hub).into(); terms.hubs as usize],
            above: above.map(|(parent, _)| Box::new(self.placed(parent))),
        }
    }

    /// Links a hub to all cores of the hub above (`parent`), where it has the rank `rank`. Returns the links of each
    /// core of the lower hub.
    pub(super) fn link_up(
        &mut self,
        (parent, rank): (usize, u32),
        up: &Up,
    ) -> Result<(LevelTerms, Vec<Vec<LinkAbove>>)> {
        let Node { terms, wire, .. } = &self.nodes[parent];
        let (level, bytes) = (terms.level, wire.weights_window_bytes());
        let is_read = up.takes_answers || !wire.hubs().is_empty();
        let received = |hub| match up.takes_answers || up.own == Some(hub) {
            true => Ok(Arc::new(RecvWindow::local(bytes)?)),
            false => Ok(Arc::clone(&up.shown)),
        };
        let ends = self.link(parent, rank, &up.sums, received)?;
        let ends = ends.into_iter().map(|(end, window)| (end, is_read.then_some(window)));
        let mut ends: Vec<_> = ends.map(Some).collect();
        let of_core =
            |numbers: &Vec<usize>| numbers.iter().filter_map(|&number| ends[number].take()).collect();
        Ok((level, up.by_core.iter().map(of_core).collect()))
    }

    /// Links a member's windows to all cores of a node. `recv` gives, for each hub, the window that the member receives
    /// into. Returns the member's endpoints, each with the window that it receives into.
    fn link(
        &mut self,
        node: usize,
        rank: u32,
        send: &Arc<SendWindow>,
        recv: impl Fn(usize) -> Result<Arc<RecvWindow>>,
    ) -> Result<Vec<(sim::Endpoint, Arc<RecvWindow>)>> {
        let Node { wire, placement, shares, weights, cores, terms, control, .. } = &mut self.nodes[node];
        let cores_of_a_hub = cores.len() / weights.len();
        let at_hub = Arc::new(RecvWindow::local(wire.gradient_window_bytes())?);
        let windows = match wire.has_own_weights() {
            true => shares.iter().map(|share| share.weights_window(wire)).collect::<Result<Vec<_>, _>>()?,
            false => weights.iter().map(|window| (Arc::clone(window), Vec::new())).collect(),
        };
        let received = (0..windows.len()).map(recv).collect::<Result<Vec<_>>>()?;
        let mut windows: Vec<_> =
            windows.into_iter().map(|(window, own)| (window, own.into_iter())).collect();
        let mut endpoints = Vec::new();
        let on_cores = Arc::new(placement.clone());
        for (place, capacity) in placement.capacities().into_iter().enumerate() {
            let hub = place / cores_of_a_hub;
            let (window, own) = &mut windows[hub];
            let member = sim::Windows { send: Arc::clone(send), recv: Arc::clone(&received[hub]) };
            let of_hub = sim::Windows { send: Arc::clone(window), recv: Arc::clone(&at_hub) };
            let (mut to_hub, mut to_member) = self.net.link(member, of_hub, wire.posts(capacity as usize));
            if self.terms.is_orderly {
                let of_hub = Expected::of_hub(wire, terms.level.schedule);
                to_hub.obey(Box::new(of_hub.on_core(&on_cores, place)));
                to_member.obey(Box::new(Expected::of_member(wire, rank).on_core(&on_cores, place)));
            }
            endpoints.push((to_hub, Arc::clone(&received[hub])));
            control.add(place, rank, Arc::clone(&at_hub), own.next(), to_member);
        }
        Ok(endpoints)
    }

    /// Links a worker to the cores of `node`, with the worker's `windows`. A worker that relinks gives the
    /// windows that it had. Returns the worker's endpoints.
    pub(super) fn link_worker(
        &mut self,
        node: usize,
        rank: u32,
        windows: &sim::Windows,
    ) -> Result<Vec<sim::Endpoint>> {
        let endpoints = self.link(node, rank, &windows.send, |_| Ok(Arc::clone(&windows.recv)))?;
        Ok(endpoints.into_iter().map(|(end, _)| end).collect())
    }

    /// Connects a worker.
    pub(super) fn connect(&mut self, node: usize, rank: u32) -> Result<Worker> {
        let Node { wire, placement, terms, .. } = &self.nodes[node];
        let (wire, placement, level) = (wire.clone(), placement.clone(), terms.level);
        let (send, spans) = Windows::gradients(&wire)?;
        let memory = sim::Windows { send, recv: Arc::new(RecvWindow::local(wire.weights_window_bytes())?) };
        self.nodes[node].control.join(rank);
        let endpoints = self.link_worker(node, rank, &memory)?;
        let ends = endpoints.iter().map(sim::Endpoint::id).collect();
        let received = vec![Arc::clone(&memory.recv); placement.cores()];
        let windows = Windows::new(&wire, rank, spans, received, WeightsMode::Shared)?;
        let slice_bytes = level.slice_bytes.unwrap_or(self.layout.chunk_bytes());
        let slices = Slices::new(&self.layout, &placement, level.schedule, slice_bytes);
        let mut exchange =
            Exchange::new(self.net.port(), endpoints, Arc::clone(&self.layout), windows, slices);
        exchange.set_credit(self.terms.worker_credit);
        exchange.let_ahead(vec![self.terms.is_orderly; self.nodes[node].cores.len()], false);
        Ok(Worker { exchange, node, rank, ends, memory, alive: true })
    }
}
