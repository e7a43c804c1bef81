//! Trains a small network on real data over a parameter hub, with a process for each worker. It then proves
//! that the result is bit for bit that of one process.
//!
//! ```text
//!                 +-- hub process: sums gradients in worker order, steps, returns weights
//!   this program -+-- worker 0: forward and backward on shard 0      (worker.rs)
//!    (run.rs)     +-- worker 1: ...
//!                 `-- then itself: all shards one after another      (training::one_process)
//! ```
//!
//! To see how a worker uses a session, read `worker.rs`.

mod args;
mod report;
mod run;
mod task;
mod wine;
mod worker;

use clap::Parser;

use args::Args;
use benches::child::{self, ChildRole};
use phub_server::HubSettings;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.role {
        None => run::run(&args),
        Some(ChildRole::Hub) => child::run_hub(HubSettings::default()),
        Some(ChildRole::Worker) => worker::run(&args),
    }
}
