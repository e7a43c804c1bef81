//! The parent of a run. A probe of this machine starts hubs and workers as processes, and measures the machine's limit.
//! Some rounds and the passes of the limit after them are a leg, and the probe makes several legs. On a shared machine,
//! the memory's speed changes from second to second, so only the ratio within a leg counts. A probe of a hub that runs
//! elsewhere has one worker process and one leg.

use std::path::PathBuf;

use anyhow::{Result, bail};
use fabric::any::Transport;
use pbox_core::{Tensors, Wire};

use super::args::{Args, WeightsChoice};
use super::limit::Limit;
use super::report::{Crossed, Leg, Measured, Report, progress_bar};
use super::trace::Trace;
use super::worker::{Word, describe_hubs};
use crate::child::ChildProcess;

/// The most legs. A leg has enough rounds for a median.
const LEGS: u32 = 10;
const ROUNDS_PER_LEG: u32 = 5;

/// Runs the probe. Returns the report, and the path of the timeline.
pub(super) fn run(args: &Args) -> Result<(Report, Option<PathBuf>)> {
    let (_, keys) = args.keys()?;
    let wire = Wire::of_terms(&args.terms(keys.clone()))?;
    let layout = wire.layout();
    let is_here = args.hub.is_none();
    if is_here {
        check_memory(args, &wire)?;
    }
    let mut trace = args.trace.as_deref().map(|path| Trace::create(path, args.rank)).transpose()?;
    let progress = progress_bar(args);

    let start = |hub| ChildProcess::start(format!("hub {hub}"), &args.for_role("hub"));
    let own_hubs = if is_here { args.machines.unwrap_or(args.hubs) } else { 0 };
    let mut hubs: Vec<ChildProcess> = (0..own_hubs).map(start).collect::<Result<_>>()?;
    trace.iter_mut().for_each(|trace| hubs.iter().for_each(|hub| trace.add_hub(hub.pid())));
    let own = hubs.iter_mut().map(ChildProcess::read_line).collect::<Result<Vec<String>>>()?;
    let address = args.hub.clone().unwrap_or(own.join(","));

    progress.set_message("memory for the machine's limit");
    let start = || {
        let cpus: Vec<u32> = describe_hubs(&address)?.cores.iter().map(|core| core.cpu).collect();
        Limit::start(args, layout, &cpus)
    };
    let limit = (is_here && args.has_limit()).then(start).transpose()?;

    progress.set_message("workers join");
    let mut workers = Vec::new();
    for number in args.rank.map_or(0..args.all_workers(), |rank| rank..rank + 1) {
        let mut line = args.for_role("worker");
        let (machine, rank) = (number / args.workers, number % args.workers);
        match args.machines {
            _ if !is_here => {}
            None => line.extend(["--hub".into(), address.clone(), "--rank".into(), rank.to_string()]),
            Some(machines) => {
                let (hub, mesh) = (own[machine as usize].clone(), format!("{machine}/{machines}@{}", own[0]));
                line.extend(["--hub".into(), hub, "--rank".into(), rank.to_string(), "--mesh".into(), mesh]);
            }
        }
        let worker = ChildProcess::start(format!("worker {number}"), &line)?;
        let rank = if is_here { rank } else { number };
        trace.iter_mut().for_each(|trace| trace.add_worker(worker.pid(), rank));
        workers.push(worker);
    }
    let mut transport = String::new();
    for worker in &mut workers {
        match worker.read_message()? {
            Word::Ready { transport: of_this } => transport = of_this,
            other => bail!("expected Ready from a worker, read {other:?}"),
        }
    }
    progress.set_message("rounds, and the machine's limit");
    // The iterations of a trace overlap, so they are measured in one leg.
    let in_legs = is_here && args.compute.compute.is_none();
    let count = if in_legs { (args.rounds / ROUNDS_PER_LEG).clamp(1, LEGS) } else { 1 };
    let mut computed = Vec::new();
    let (mut legs, mut looks) = (Vec::new(), Vec::new());
    for leg in 0..count {
        let rounds = args.rounds / count + u32::from(leg < args.rounds % count);
        let before = describe_hubs(&address)?;
        workers.iter_mut().try_for_each(|worker| worker.send(&rounds.to_string()))?;
        let mut by_worker = Vec::new();
        for worker in &mut workers {
            by_worker.push(loop {
                match worker.read_message()? {
                    Word::Rounds(rounds) => progress.set_position(progress.position().max(rounds.into())),
                    Word::Leg(round_ns) => break round_ns,
                    Word::Computed(times) => {
                        computed.push(times);
                        break computed[computed.len() - 1].iterations.clone();
                    }
                    other => bail!("expected a leg's rounds from a worker, read {other:?}"),
                }
            });
        }
        looks.push((before, describe_hubs(&address)?));
        let passes = limit.as_ref().map(|limit| limit.measure(rounds)).transpose()?;
        legs.push(Leg::new(&by_worker, passes.unwrap_or_default()));
    }
    let (mut worker_rss, mut credits, mut crossed, mut pulls) = (0, Vec::new(), Vec::new(), Vec::new());
    let mut norm = None;
    for worker in &mut workers {
        worker.send("done")?;
        match worker.read_message()? {
            Word::Right { rss_bytes, credit, crossed: of_this, pull, norm: of_last } => {
                norm = of_last;
                worker_rss = worker_rss.max(rss_bytes);
                credits.push(credit);
                crossed.push(of_this);
                pulls.push(pull);
            }
            other => bail!("expected the last look from a worker, read {other:?}"),
        }
    }
    // Only a run on this machine checks the total number of steps: workers on other machines may still have rounds to
    // make.
    let last = if is_here { "check the total" } else { "leave" };
    workers.iter_mut().try_for_each(|worker| worker.send(last))?;
    workers.into_iter().try_for_each(ChildProcess::finish)?;
    hubs.iter_mut().try_for_each(|hub| hub.send("stop"))?;
    hubs.into_iter().try_for_each(ChildProcess::finish)?;
    let traced = trace.map(Trace::finish).transpose()?;

    progress.finish_and_clear();
    if args.ends_alike() {
        Crossed::check(&crossed)?;
    }
    let measured = Measured {
        transport,
        layout,
        legs: &legs,
        worker_rss,
        hub: &looks,
        credit: credits.swap_remove(0),
        crossed: crossed[0],
        computed: &computed,
        pull: pulls.swap_remove(0),
        norm,
    };
    Ok((Report::new(args, measured)?, traced))
}

/// Returns an error if a run needs more memory than is available, before the kernel kills a process. The run
/// needs a gradient window for each worker, the weights and the state. It also needs a weights window for
/// each worker if pushes step alone, and copies of private weights. The limit needs gradients, weights and
/// state once more.
fn check_memory(args: &Args, wire: &Wire) -> Result<()> {
    let layout = wire.layout();
    // With compression, a worker has its own gradients and weights, in its own memory.
    let private =
        u32::from(args.weights == WeightsChoice::Private).max(2 * u32::from(args.compress.is_some()));
    let of_a_worker = 1 + private + u32::from(args.consistency.steps_alone());
    // Without shared memory, each window exists at both ends.
    let of_a_worker =
        of_a_worker + if matches!(args.transport, Some(Transport::Tcp | Transport::Verbs)) { 2 } else { 0 };
    // A machine of a mesh has two windows more: one for its own sums, and one for all machines' sums of the chunks in
    // its share.
    let of_levels = args.machines.map_or(0, |machines| 2 * machines);
    let copies = of_a_worker * args.all_workers() + of_levels + 1;
    let windows = u64::from(copies) * wire.weights_window_bytes() as u64;
    let kept = wire.kept_bytes(&Tensors::from(args.optimizer).with_ema(args.ema));
    let limit = u64::from(args.workers + 1) * layout.window_bytes() as u64 + kept;
    let needed = windows + kept + if args.has_limit() { limit } else { 0 };
    let available = fabric::available_bytes().unwrap_or(u64::MAX);
    if needed > available {
        bail!(
            "{} workers of a {:.1} MB model need {:.1} GB of memory, this machine has {:.1} GB available; use fewer --workers{} or a smaller --model",
            args.workers,
            layout.model_bytes() as f64 / 1e6,
            needed as f64 / 1e9,
            available as f64 / 1e9,
            if args.has_limit() { ", --limit off" } else { "" },
        );
    }
    Ok(())
}
