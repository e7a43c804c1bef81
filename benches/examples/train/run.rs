//! The parent. It starts hub and workers, prints the loss, and compares the workers' weights with those of
//! the one-process run. With compression, it compares the workers' weights with each other.

use std::time::Instant;

use anyhow::{Result, bail};
use benches::child::ChildProcess;
use training::{Shard, Weights, one_process};

use crate::args::Args;
use crate::report::{report, tell};
use crate::task::Task;
use crate::worker::Word;

/// Trains over a hub, trains again in one process, and compares the weights.
pub fn run(args: &Args) -> Result<()> {
    let task = Task::new(args)?;
    announce(&task);
    let begin = Instant::now();
    let trained = over_hub(args, &task)?;
    let seconds = begin.elapsed().as_secs_f64();

    let expected = match args.compress {
        Some(_) => trained[0].clone(),
        None => {
            tell("one process, the same shards one after another ...");
            let shard = |rank| Shard::new(&task.plan, &task.train, rank);
            one_process(&task.plan, &task.network, &mut (0..args.workers).map(shard).collect::<Vec<_>>())
        }
    };
    compare(args, &trained, &expected, &task)?;

    report(args, &task, &trained[0], seconds)
}

fn announce(task: &Task) {
    let (train, plan) = (task.train.len(), &task.plan);
    tell(&format!(
        "red wines: is one good (6 points or more of 10)? {} features, {train} to train on, {} to test on",
        task.train.features(),
        task.test.len(),
    ));
    tell(&format!(
        "shards of {} wines or one more; {} rounds of {} x {} wines an epoch",
        train / plan.workers as usize,
        plan.rounds_per_epoch,
        plan.workers,
        plan.batch,
    ));
}

/// Trains over a hub. Returns each worker's last weights, by rank.
fn over_hub(args: &Args, task: &Task) -> Result<Vec<Weights>> {
    let (own_hub, address) = match &args.hub {
        Some(address) => (None, address.clone()),
        None => {
            let mut hub = ChildProcess::start("the hub", &["--role", "hub"].map(str::to_owned))?;
            let address = hub.read_line()?;
            (Some(hub), address)
        }
    };
    // The job's name contains the parent's process id, because a hub may serve several runs at once.
    let job = format!("train-{}", std::process::id());
    let start = |rank| ChildProcess::start(format!("worker {rank}"), &args.for_worker(rank, &address, &job));
    let mut workers = (0..args.workers).map(start).collect::<Result<Vec<_>>>()?;
    for epoch in 0..args.epochs {
        let loss = mean_loss(&mut workers)?;
        let (epochs, rate) = (args.epochs, task.plan.learning_rate(epoch));
        tell(&format!("epoch {:>3} of {epochs}   loss {loss:.4}   learning rate {rate:.4}", epoch + 1));
    }
    let weights = workers.iter_mut().map(|worker| match worker.read_message()? {
        Word::Done { weights } => Weights::from_bits(&task.network, &weights),
        other => bail!("expected a worker's weights, read {other:?}"),
    });
    let weights = weights.collect::<Result<_>>()?;
    workers.into_iter().try_for_each(ChildProcess::finish)?;
    if let Some(mut hub) = own_hub {
        hub.send("stop")?;
        hub.finish()?;
    }
    Ok(weights)
}

/// Returns the mean loss over all workers' shards. All batches have the same size, so all workers have the same weight
/// in the mean.
fn mean_loss(workers: &mut [ChildProcess]) -> Result<f64> {
    let mut sum = 0.0;
    for worker in workers.iter_mut() {
        match worker.read_message()? {
            Word::Epoch { loss } => sum += loss,
            Word::Done { .. } => bail!("a worker was done before its last epoch"),
        }
    }
    Ok(sum / workers.len() as f64)
}

/// Compares all elements of all workers, bit by bit.
fn compare(args: &Args, trained: &[Weights], expected: &Weights, task: &Task) -> Result<()> {
    let other = if args.compress.is_some() { "worker 0" } else { "the one-process run" };
    for (rank, weights) in trained.iter().enumerate() {
        if let Some(difference) = weights.difference(expected, &task.network) {
            bail!("worker {rank} and {other} ended with different weights: {difference}");
        }
    }
    Ok(())
}
