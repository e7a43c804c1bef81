//! The settings of the simulated cluster, and its report: one JSON object.

use anyhow::Result;
use pbox_core::{Key, Layout, SPLIT_ABOVE, models};
use serde_json::json;
use worker_shim::batch::Batching;

use super::{Cluster, ITERATIONS, Spread, join, key_bytes_by_hub, layers, simulate};
use crate::compute::trace;

/// Simulates machines with a worker, a hub and a link each, which pull weights in batches.
///
/// Prints one JSON object: how long an iteration takes with each choice of batches.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "phub-cluster", version)]
pub struct Args {
    /// Built-in trace of the network, as in `phub-probe --compute`.
    #[arg(long, default_value = "vgg19-22k", value_name = "TRACE")]
    pub compute: String,

    /// Multiply the trace's times by this factor.
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    pub time_scale: f64,

    /// Divide the size of each tensor by this number.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub shrink: u64,

    /// The number of machines.
    #[arg(long, default_value_t = 72, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub nodes: u32,

    /// Rate of each machine's link in Gb/s, each way.
    #[arg(long, default_value_t = 10.0, value_name = "GBPS", value_parser = rate)]
    pub gbps: f64,

    /// Start-up time of each pull, in milliseconds.
    #[arg(long, default_value_t = 0.0, value_name = "MS", value_parser = delay)]
    pub start_up_ms: f64,

    /// Latency of a message without bytes, in milliseconds.
    #[arg(long, default_value_t = 0.0, value_name = "MS", value_parser = delay)]
    pub latency_ms: f64,

    /// Send gradients when the whole backward pass has ended, instead of layer by layer.
    #[arg(long)]
    pub push_at_the_end: bool,

    /// How tensors are spread over the hubs.
    #[arg(long, default_value = "hubs", value_enum)]
    pub spread: Spread,

    /// Join neighbouring layers whose names are equal up to this character, for example to count modules as layers. Default:
    /// no layers are joined.
    #[arg(long, value_name = "CHAR")]
    pub join_by: Option<char>,

    /// Size of a chunk in bytes.
    #[arg(long, default_value_t = pbox_core::DEFAULT_CHUNK_BYTES, value_name = "BYTES")]
    pub chunk_bytes: usize,
}

/// Parses the rate of a link, in Gb/s. With any rate in this range the simulation comes to an end.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(gbps) if (0.001..=1e6).contains(&gbps) => Ok(gbps),
        _ => Err("expected a number from 0.001 to 1000000".to_owned()),
    }
}

/// Parses a delay, in milliseconds.
fn delay(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ms) if (0.0..=1e6).contains(&ms) => Ok(ms),
        _ => Err("expected a number from 0 to 1000000".to_owned()),
    }
}

/// Runs the simulation, and prints the report.
pub fn run(args: &Args) -> Result<()> {
    let mut keys = models::model(&args.compute)?.keys;
    for key in keys.iter_mut().filter(|_| args.shrink > 1) {
        key.shape = vec![key.elements().unwrap_or(0).div_ceil(args.shrink)];
    }
    let plan = trace(&args.compute)?.plan(&keys, args.time_scale)?;
    let plan = args.join_by.map(|by| join(plan.clone(), by)).unwrap_or(plan);
    let hubs = args.nodes as usize;
    let key_bytes: Vec<u64> = keys.iter().filter_map(Key::bytes).collect();
    let layout = Layout::new(keys, args.chunk_bytes)?;
    let split_above = SPLIT_ABOVE / args.shrink;
    let cluster = Cluster {
        nodes: hubs,
        link_bytes_per_s: args.gbps * 1e9 / 8.0,
        start_up: args.start_up_ms / 1e3,
        latency: args.latency_ms / 1e3,
        push_at_the_end: args.push_at_the_end,
        layers: layers(&plan, &key_bytes_by_hub(&layout, args.spread, hubs, split_above), hubs),
    };
    let profile = cluster.profile();
    let ms = |seconds: f64| seconds * 1e3;
    let batching = |batching: Batching| {
        let batches = batching.batches(&profile);
        let ran = simulate(&cluster, &batches, ITERATIONS);
        json!({
            "batching": batching.to_string(),
            "batches": batches.iter().map(ExactSizeIterator::len).collect::<Vec<_>>(), // layers in each batch
            "iteration": ms(ran.iteration),
            "pull": ms(ran.pull),
            "pull_and_forward": ms(ran.pull_and_forward),
            "to_last_layer": ms(ran.to_last_layer),
        })
    };
    // All times are in milliseconds. `computing` is forward and backward without communication. No schedule
    // is faster than the bound.
    let answer = json!({
        "compute": args.compute,
        "nodes": args.nodes,
        "computing": ms(plan.compute().as_secs_f64()),
        "forward": ms(profile.layers.iter().map(|layer| layer.forward).sum()),
        "bound": ms(cluster.bound(&plan, &key_bytes)),
        "batchings": Batching::ALL.map(batching),
    });
    phub_server::program::print(format_args!("{answer}\n"))
}
