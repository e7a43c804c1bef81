//! A probe over the simulated transport: hub and workers work in turn in one thread. Its speed means nothing; its results are
//! checked like those of other transports.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use fabric::sim::{Faults, Net};
use hub_tests::simulated::{Simulated, Terms};
use pbox_core::control::{CoreReply, HubReply, PROTOCOL};
use pbox_core::kernels::Kernels;
use pbox_core::{Element, KeyId, Wire};
use phub_server::CoreSelection;

use super::args::Args;
use super::expected::{Expected, allowed};
use super::report::{CreditReport, Crossed, Leg, Report, digest, progress_bar};

/// The probe gives up after this many steps without work; the network loses nothing.
const PATIENCE: u32 = 1000;

pub(super) fn run(args: &Args) -> Result<Report> {
    in_dtype!(args.dtype, run_in(args))
}

fn run_in<E: Element>(args: &Args) -> Result<Report> {
    let (_, keys) = args.keys()?;
    let job = args.terms(keys);
    let layout = Arc::clone(Wire::of_terms(&job)?.layout());
    let cores = match &args.cores {
        None => std::thread::available_parallelism()?.get(),
        Some(CoreSelection::Count(count)) => (*count).max(1),
        Some(CoreSelection::Cpus(cpus)) => cpus.len(),
    };
    let (workers, optimizer) = (args.workers, args.optimizer);
    // A little delay, so that workers do not arrive in order.
    let net = Net::new(1, Faults { delay: 0..4, ..Faults::NONE });
    let worker_credit = job.level.credit().at_first();
    let terms = Terms { job, cores, batch_keys: None, worker_credit };
    let mut job = Simulated::new(net, &layout, terms)?;
    let keys = || (0..layout.keys().len() as u32).map(KeyId);

    if optimizer.keeps_weights() {
        for worker in &mut job.workers {
            for key in keys() {
                Expected::<E>::fill_weights(key, worker.gradient_mut(key)?);
                worker.push(key)?;
            }
        }
        job.settle(PATIENCE)?;
    }
    for (worker, rank) in job.workers.iter_mut().zip(0..) {
        for key in keys() {
            Expected::<E>::fill_gradient(args.consistency, rank, key, worker.gradient_mut(key)?);
        }
    }

    let mut expected =
        Expected::<E>::new(optimizer, args.ablate(), args.consistency, workers).compressed(args.compress);
    let crossed_before = job.workers[0].traffic();
    let before = describe(&job);
    let progress = progress_bar(args);
    let mut round_ns = Vec::new();
    for round in 0..args.rounds {
        let begun = Instant::now();
        for worker in &mut job.workers {
            keys().rev().try_for_each(|key| worker.push(key))?;
        }
        job.settle(PATIENCE)?;
        round_ns.push(begun.elapsed().as_nanos() as u64);
        expected.expect(allowed(args.consistency, workers, round + 1, args.rounds));
        let worker = &job.workers[(round % workers) as usize];
        expected.check_lines(&layout, 0, 1, round, |key| Ok(worker.weights(key)?))?;
        progress.inc(1);
    }
    progress.finish_and_clear();
    let mut crossed = Vec::new();
    for worker in &job.workers {
        keys().try_for_each(|key| expected.check(&layout, key, worker.weights(key)?))?;
        let mut all = 0;
        for key in keys() {
            let weights: &[E] = worker.weights(key)?;
            all = digest(all, weights.iter().map(|weight| weight.to_f32().to_bits()));
        }
        crossed.push(Crossed::new(crossed_before, worker.traffic(), args.rounds, all));
    }
    if args.ends_alike() {
        Crossed::check(&crossed)?;
    }
    let rss_bytes = fabric::resident_bytes().unwrap_or(0);
    Report::new(
        args,
        "sim",
        &layout,
        &[Leg::new(&[round_ns], Vec::new())],
        rss_bytes,
        &[(before, describe(&job))],
        CreditReport::given(worker_credit),
        crossed[0],
    )
}

fn describe(job: &Simulated) -> HubReply {
    let core = |(slot, core): (usize, &pbox_core::Core<_>)| CoreReply {
        cpu: slot as u32,
        nic: None,
        chunks: core.tally().chunks,
        chunk_bytes: core.tally().chunk_bytes,
        busy_ns: 0,
        waiting_ns: 0,
    };
    HubReply {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").into(),
        kernels: Kernels::detect().name().into(),
        rss_bytes: fabric::resident_bytes().unwrap_or(0),
        transports: Vec::new(),
        cores: job.cores.iter().enumerate().map(core).collect(),
        jobs: Vec::new(),
    }
}
