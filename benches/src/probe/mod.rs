//! The zero-compute probe (PHub's ZeroComputeEngine): workers push and wait, without anything in between. So
//! the probe measures the exchange alone, and the machine's limit for comparison. With a trace, workers wait
//! for the times of compute between pushes. The probe then measures what a training would see.

/// Calls a function that is generic over the element type.
macro_rules! in_dtype {
    ($dtype:expr, $($function:ident)::+ ( $($argument:expr),* )) => {
        match $dtype {
            pbox_core::Dtype::F32 => $($function)::+::<f32>($($argument),*),
            pbox_core::Dtype::F16 => $($function)::+::<half::f16>($($argument),*),
            pbox_core::Dtype::BF16 => $($function)::+::<half::bf16>($($argument),*),
        }
    };
}

mod args;
mod expected;
mod limit;
mod local;
mod report;
mod trace;
mod worker;

pub use args::Args;

use crate::child::{self, ChildRole};
use anyhow::ensure;
use phub_server::program::WrongSetting;

/// Runs the probe in the role that the arguments name.
pub fn run(args: Args) -> anyhow::Result<()> {
    phub_server::program::log("warn", None)?; // RUST_LOG=info shows the logs of hub and workers
    // Finds errors before any process is started.
    check(&args).map_err(|error| WrongSetting(format!("{error:#}")))?;
    match args.role {
        Some(ChildRole::Hub) => return child::run_hub(args.hub_settings()),
        Some(ChildRole::Worker) => return worker::run(&args),
        None => {}
    }
    let (report, traced) = local::run(&args)?;
    report.print(args.json)?;
    if let Some(path) = traced {
        eprintln!("timeline of the last rounds: {}; https://ui.perfetto.dev opens it", path.display());
    }
    Ok(())
}

/// Checks the settings.
fn check(args: &Args) -> anyhow::Result<()> {
    args.terms(args.keys()?.1).check()?;
    if args.role.is_some() {
        return Ok(()); // the process that started this one has checked the rest
    }
    args.plan()?;
    ensure!(
        args.hub.is_none() || args.hubs == 1 && args.machines.is_none(),
        "--hubs and --machines: hubs are started here only without --hub; leave one of the two out"
    );
    ensure!(
        args.hubs == 1 || args.machines.is_none(),
        "--hubs {} with --machines: each machine has one hub; leave one of the two out",
        args.hubs
    );
    Ok(())
}
