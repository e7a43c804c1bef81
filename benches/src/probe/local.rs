//! A probe of this machine: a hub process, worker processes, and the machine's limit before and
//! after them.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use pbox_core::Layout;

use super::args::{Args, WeightsChoice};
use super::limit::Limit;
use super::report::{Report, progress_bar};
use super::worker::{Outcome, Word, describe_hub};
use crate::child::Role;

/// How long each of the two measurements of the limit takes, about.
const LIMIT_TIME: Duration = Duration::from_millis(1500);

pub(super) fn run(args: &Args) -> Result<Report> {
    let (_, keys) = args.keys()?;
    let layout = Layout::new(keys, args.chunk_bytes)?;
    check_memory(args, &layout)?;
    let progress = progress_bar(args);

    let mut hub = Role::start("the hub", &args.for_role("hub"))?;
    let address = hub.hear()?;
    let cpus: Vec<u32> = describe_hub(&address)?.cores.iter().map(|core| core.cpu).collect();

    progress.set_message("measuring the machine's limit");
    let limit = Limit::new(args, &layout, &cpus);
    let mut passes = limit.measure(LIMIT_TIME)?;

    progress.set_message("workers join");
    let mut workers = Vec::new();
    for rank in 0..args.workers {
        let mut line = args.for_role("worker");
        line.extend(["--hub".into(), address.clone(), "--rank".into(), rank.to_string()]);
        workers.push(Role::start(format!("worker {rank}"), &line)?);
    }
    for worker in &mut workers {
        match hear(worker)? {
            Word::Ready => {}
            other => bail!("expected Ready from a worker, heard {other:?}"),
        }
    }
    let before = describe_hub(&address)?;
    progress.set_message("rounds");
    workers.iter_mut().try_for_each(|worker| worker.tell("go"))?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for worker in &mut workers {
        outcomes.push(loop {
            match hear(worker)? {
                Word::Rounds(rounds) => progress.set_position(rounds.into()),
                Word::Done(outcome) => break outcome,
                Word::Ready => bail!("a worker was ready twice"),
            }
        });
    }
    let after = describe_hub(&address)?;
    workers.iter_mut().try_for_each(|worker| worker.tell("leave"))?;
    workers.into_iter().try_for_each(Role::finish)?;
    hub.tell("stop")?;
    hub.finish()?;

    progress.set_message("measuring the machine's limit again");
    passes.extend(limit.measure(LIMIT_TIME)?);
    progress.finish_and_clear();
    Report::new(args, &layout, &outcomes, &before, &after, Some(passes))
}

/// Refuses what would end in the kernel's killer: a window for each worker, weights and what is kept, and
/// copies of the weights where they are private. The limit is measured while no worker lives.
fn check_memory(args: &Args, layout: &Layout) -> Result<()> {
    let copies = match args.weights {
        WeightsChoice::Shared => args.workers + 1,
        WeightsChoice::Private => 2 * args.workers + 1,
    };
    let windows = u64::from(copies) * layout.window_bytes() as u64;
    let needed = windows + layout.kept_bytes(&args.optimizer());
    let available = fabric::available_bytes().unwrap_or(u64::MAX);
    if needed > available {
        bail!(
            "{} workers of a {:.1} MB model need {:.1} GB of memory, this machine has {:.1} GB available; use fewer --workers or a smaller --model",
            args.workers,
            layout.model_bytes() as f64 / 1e6,
            needed as f64 / 1e9,
            available as f64 / 1e9,
        );
    }
    Ok(())
}

fn hear(worker: &mut Role) -> Result<Word> {
    let line = worker.hear()?;
    serde_json::from_str(&line).with_context(|| format!("a worker said {line:?}"))
}
