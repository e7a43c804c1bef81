//! A hub and its workers over the simulated transport, in one thread: every step is the caller's,
//! and a seed decides the rest. For tests with faults, and for a probe without processes.

use std::sync::Arc;

use anyhow::Result;
use fabric::sim::{self, EndId, Net};
use fabric::{RecvWindow, SendWindow, Span};
use pbox_core::control::OnLoss;
use pbox_core::kernels::Kernels;
use pbox_core::{
    Ablate, ChunkId, Core, JobId, Layout, Notice, Optimizer, Placement, Round, Shard, ShardSpec,
};
use worker_shim::{Exchange, ExchangeError, Windows};

/// A job of one hub over a simulated network.
pub struct Simulated {
    net: Net,
    /// The hub's cores.
    pub cores: Vec<Core<sim::Port>>,
    /// The workers, by rank.
    pub workers: Vec<Exchange<sim::Port>>,
    /// The worker's end of each link, by rank and core: what faults are aimed at.
    pub ends: Vec<Vec<EndId>>,
    /// What the cores had to say so far.
    pub notices: Vec<Notice>,
}

/// The one job.
const JOB: JobId = JobId(0);

impl Simulated {
    /// Connects `workers` workers to a hub of `cores` cores over `net`.
    pub fn new(
        net: Net,
        layout: &Arc<Layout>,
        workers: u32,
        cores: usize,
        optimizer: Optimizer,
        ablate: Ablate,
    ) -> Result<Self> {
        let placement = Placement::new(layout, cores);
        let chunks = placement.chunks_by_core();
        let spans = |ids: &Vec<ChunkId>| ids.iter().map(|&id| layout.chunk(id).span).collect::<Vec<Span>>();
        let weights = SendWindow::new(layout.window_bytes())?;
        let (weights, claims) = weights.split(chunks.iter().map(spans).collect())?;

        let mut hub = Vec::new();
        for (ids, weights) in chunks.iter().zip(claims) {
            let spec = ShardSpec {
                layout: Arc::clone(layout),
                chunks: ids.clone(),
                weights,
                workers,
                restored: None,
                snapshot_every: None,
                optimizer,
                ablate,
            };
            let mut core = Core::new(net.port(), Kernels::detect());
            core.add_job(JOB, Shard::new(spec)?, OnLoss::Stop);
            hub.push(core);
        }
        let mut simulated =
            Simulated { net, cores: hub, workers: Vec::new(), ends: Vec::new(), notices: Vec::new() };
        for rank in 0..workers {
            simulated.connect(rank, layout, &weights, &placement)?;
        }
        let ranks: Vec<u32> = (0..workers).collect();
        for core in &mut simulated.cores {
            core.release(JOB, Round(0), &ranks, &mut simulated.notices);
        }
        simulated.workers.iter_mut().try_for_each(|worker| worker.begin(Round(0)))?;
        Ok(simulated)
    }

    fn connect(
        &mut self,
        rank: u32,
        layout: &Arc<Layout>,
        weights: &Arc<SendWindow>,
        placement: &Placement,
    ) -> Result<()> {
        let (gradients, spans) = Windows::gradients(layout)?;
        let at_hub = Arc::new(RecvWindow::local(layout.window_bytes())?);
        let at_worker = Arc::new(RecvWindow::local(layout.window_bytes())?);
        let (mut endpoints, mut ends) = (Vec::new(), Vec::new());
        for (core, capacity) in self.cores.iter_mut().zip(placement.capacities()) {
            let worker = sim::Windows { send: Arc::clone(&gradients), recv: Arc::clone(&at_worker) };
            let hub = sim::Windows { send: Arc::clone(weights), recv: Arc::clone(&at_hub) };
            let (to_hub, to_worker) = self.net.link(worker, hub, capacity.max(1));
            ends.push(to_hub.id());
            endpoints.push(to_hub);
            core.add_worker(JOB, rank, Arc::clone(&at_hub), to_worker)?;
        }
        let windows = Windows::new(Arc::clone(layout), spans, at_worker, false)?;
        let exchange =
            Exchange::new(self.net.port(), endpoints, placement.clone(), Arc::clone(layout), windows);
        self.workers.push(exchange);
        self.ends.push(ends);
        Ok(())
    }

    /// The network, to break.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// Every core turns once and every worker looks once; true when anything happened.
    pub fn step(&mut self) -> Result<bool, ExchangeError> {
        let mut worked = false;
        for core in &mut self.cores {
            worked |= core.turn(&mut self.notices);
        }
        for worker in &mut self.workers {
            worked |= worker.progress()? > 0;
        }
        Ok(worked)
    }

    /// Steps until no push is under way. A network that lost something would step for ever: after
    /// `limit` steps without any work the first key that waits is the error.
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
