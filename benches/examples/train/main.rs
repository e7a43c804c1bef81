//! Trains a small network on real data over a parameter hub, with a process for each worker, and proves that the result is
//! that of one process: the same weights, bit for bit.
//!
//! ```text
//!                 +-- hub process: sums gradients in worker order, steps, returns weights
//!   this program -+-- worker 0: forward and backward on shard 0      (worker.rs)
//!    (run.rs)     +-- worker 1: ...
//!                 `-- then itself: all shards one after another      (benches::train::one_process)
//! ```
//!
//! To see how a worker uses a session, read `worker.rs`.

mod args;
mod hub;
mod report;
mod run;
mod task;
mod wine;
mod worker;

use clap::Parser;

use args::{Args, Role};

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.role {
        None => run::run(&args),
        Some(Role::Hub) => hub::run(),
        Some(Role::Worker) => worker::run(&args),
    }
}
